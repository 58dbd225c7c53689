#!/usr/bin/env python3
"""Writes golden_casts.h: what real PyTorch makes of float32 values in the narrow floating types.

    make_golden_casts.py > golden_casts.h        (made with PyTorch 2.13.0, CPU)
"""
import torch

NARROW = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]


def bits32(t):
    return t.to(torch.float32).contiguous().view(torch.int32).tolist()


def rows(numbers, form, per_line):
    for i in range(0, len(numbers), per_line):
        print("        " + " ".join(form.format(n) + "," for n in numbers[i:i + per_line]))


def probes(dtype):
    """Every finite value of the type, the middles between neighbours and what lies just beside them."""
    values = torch.arange(256, dtype=torch.uint8).view(dtype).to(torch.float64)
    finite = torch.unique(values[torch.isfinite(values)])
    middles = ((finite[1:] + finite[:-1]) / 2).to(torch.float32)
    edges = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, -1e-45, 3.4e38, -3.4e38, 448, 464, 465, 480, 57344, 61440, 61441, 65536, 240, 248, 249, 256, 2.0**-127, 2.0**-126, 1.25 * 2.0**-127])
    inf = torch.tensor(float("inf"))
    return torch.cat([edges, middles, torch.nextafter(middles, inf), torch.nextafter(middles, -inf)])


def main():
    print("/* Made by make_golden_casts.py with PyTorch", torch.__version__ + ": do not edit. */\n/* clang-format off */")
    print("static const struct {\n    tsr_dtype dtype;\n    uint32_t values[256]; /* every code as float32 */\n    size_t count;\n"
          "    uint32_t probes[800];\n    uint16_t codes[800];\n} golden_casts[] = {")
    torch.manual_seed(1)
    for name in NARROW + ["float16", "bfloat16"]:
        dtype = getattr(torch, name)
        small = name in NARROW
        values = bits32(torch.arange(256, dtype=torch.uint8).view(dtype)) if small else [0] * 256
        if small:
            asked = probes(dtype)
        else:
            random = torch.randint(-2**31, 2**31 - 1, (300,), dtype=torch.int64).to(torch.int32).view(torch.float32)
            codes = torch.randint(0, 0x7c00 if name == "float16" else 0x7f80, (150,), dtype=torch.int64).to(torch.int16)
            a, b = (c.view(dtype).to(torch.float64) for c in (codes, codes + 1))
            middles = ((a + b) / 2).to(torch.float32)
            inf = torch.tensor(float("inf"))
            asked = torch.cat([torch.tensor([0.0, -0.0, float("inf"), float("-inf"), 65504, 65519, 65520, 65536, 6e-8, 2.9e-8, 3e-8, 3.3895e38, 3.4e38]), random[~torch.isnan(random)], middles[torch.isfinite(middles)], torch.nextafter(middles, inf)[:100]])
        # one by one: the scalar conversion of torch, which is the same on every machine
        codes = [int(x.reshape(1).to(dtype).view(torch.uint8 if small else torch.int16).item()) & 0xffff for x in asked]
        assert len(codes) <= 800
        print(f"    {{TSR_{name.upper()},\n     {{")
        rows([v & 0xffffffff for v in values], "0x{:x}", 14) if small else print("        0,")
        print(f"     }},\n     {len(codes)},\n     {{")
        rows([v & 0xffffffff for v in bits32(asked)], "0x{:x}", 14)
        print("     },\n     {")
        rows(codes, "0x{:x}", 20)
        print("     }},")
    print("};")


main()
