"""Numbers of one byte times their scales against torch, in matrices so large that products are looked up: each code occurs, runs begin
inside rows and blocks, and some scales are zero, infinite, NaN or tiny."""
import os

import torch
from safetensors.torch import load_file, save_file

ROWS, COLUMNS = 333, 1000  # three runs of 131,072 elements; blocks at both edges are smaller
DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
ODD = (0.0, float("inf"), float("nan"), -1.5, 1e-40, 3e38)


def need(condition, what):
    if not condition:
        raise AssertionError(what)


def codes(dtype, *shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8).view(dtype)


def odd_scales(*shape):
    scales = torch.rand(*shape) * 4 - 2
    scales.flatten()[:min(scales.numel(), 8 * len(ODD)):8] = torch.tensor(ODD)[:(scales.numel() + 7) // 8]
    return scales


def make(dtype):
    """Name → numbers, their scales as stored, the scale of each element in float32."""
    blocks, odd = torch.rand(3, 8), odd_scales(3, 8)
    exponents = torch.randint(100, 150, (3, 8), dtype=torch.uint8)
    exponents[0, :2] = torch.tensor([0, 255])
    cases = {"block": blocks, "odd": odd, "half": blocks.bfloat16(), "exponent": exponents.view(torch.float8_e8m0fnu), "row": odd_scales(ROWS, 1),
             "wide": torch.rand(3, 1), "groups": torch.rand(ROWS, 10)}
    out = {}
    for name, scales in cases.items():
        numbers = codes(dtype, ROWS, COLUMNS)
        if name == "wide":
            numbers = codes(dtype, 3, COLUMNS)  # rows of 1,000 elements, each with its scale: they are too few for tables
            out[name] = numbers, scales, scales.expand(3, COLUMNS)
        elif name == "groups":
            out[name] = numbers, scales, scales.repeat_interleave(COLUMNS // 10, 1)
        elif name == "row":
            out[name] = numbers, scales, scales.expand(ROWS, COLUMNS)
        else:
            out[name] = numbers, scales, scales.float().repeat_interleave(128, 0)[:ROWS].repeat_interleave(128, 1)[:, :COLUMNS]
    one = torch.tensor(-0.37)
    out["tensor"] = codes(dtype, ROWS, COLUMNS), one, one.expand(ROWS, COLUMNS)
    experts = torch.rand(2, 3, 8)
    out["experts"] = codes(dtype, 2, ROWS, COLUMNS), experts, experts.repeat_interleave(128, 1)[:, :ROWS].repeat_interleave(128, 2)[:, :, :COLUMNS]
    return out


def same(got, want, what):
    nan = want.isnan()
    bits = {2: torch.int16, 4: torch.int32}[want.element_size()]
    need(got.dtype == want.dtype and torch.equal(got.isnan(), nan), f"{what}: NaNs or dtype differ")
    need(torch.equal(got.view(bits)[~nan], want.view(bits)[~nan]), what)


def test_products_are_those_of_torch(t):
    torch.manual_seed(68)
    source, out = os.path.join(t.scratch, "s.safetensors"), os.path.join(t.scratch, "o.safetensors")
    for dtype in DTYPES:
        cases = make(dtype)
        stored = {f"{n}.weight": numbers for n, (numbers, _, _) in cases.items()} | {f"{n}.weight_scale": scales for n, (_, scales, _) in cases.items()}
        save_file(stored, source)
        for wide in (torch.bfloat16, torch.float16, torch.float32):
            t.run("convert", source, out, "--dequantize", "--dtype", str(wide)[6:], "--overwrite")
            got = load_file(out)
            need(len(got) == len(cases), f"names {sorted(got)}")
            for name, (numbers, _, scales) in cases.items():
                same(got[f"{name}.weight"], (numbers.float() * scales).to(wide), f"{name} of {dtype} as {wide}")


def test_products_in_pieces(t):
    """Shards whose rows begin and end inside blocks are those of the whole product."""
    torch.manual_seed(69)
    numbers, scales = codes(torch.float8_e4m3fn, ROWS, COLUMNS), torch.rand(3, 8)
    source, out, joined = (os.path.join(t.scratch, n) for n in ("s.safetensors", "shards", "o.safetensors"))
    save_file({"w": numbers, "w_scale_inv": scales}, source)
    want = (numbers.float() * scales.repeat_interleave(128, 0)[:ROWS].repeat_interleave(128, 1)[:, :COLUMNS]).bfloat16()
    for axis in (0, 1):
        t.run("reshard", source, out, "--mesh", "dp=4", "--placements", f"shard({axis})", "--to", "dcp", "--dequantize", "--overwrite")
        t.run("convert", out, joined, "--overwrite")
        same(load_file(joined)["w"], want, f"shard({axis})")
