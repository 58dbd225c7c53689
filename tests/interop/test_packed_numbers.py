"""--dequantize of packed integers and of bitsandbytes' codes, against what the libraries' own code made of them
(tests/golden/make_packed.py, make_auto_round.py), and GPTQ and AWQ against their published layout, which is packed here.

TESSERA_QUANTIZERS names a directory with compressed-tensors and bitsandbytes (pip install --target DIR …). With it, other random models
than the stored ones are compared, too."""
import json
import os
import subprocess
import sys

import torch
from safetensors.torch import load_file, save_file

from harness import Skip
from test_nvfp4 import need, same

GOLDENS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")
GOLDEN = os.path.join(GOLDENS, "packed")
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]


def compare(t, model, want, what):
    """In every dtype, in little memory, sharded, and through other containers."""
    out = t.at("out.safetensors")
    for dtype in DTYPES:
        t.run("convert", model, out, "--dequantize", "--dtype", str(dtype)[6:], "--overwrite")
        same(load_file(out), {k: v.to(dtype) for k, v in want.items()}, f"{what}: {dtype}")
    t.run("convert", model, out, "--dequantize", "--dtype", "float32", "--max-mem", "64KiB", "--overwrite")
    same(load_file(out), {k: v.float() for k, v in want.items()}, f"{what}: in little memory")
    t.run("reshard", model, t.at("columns"), "--dequantize", "--dtype", "float32", "--mesh", "tp=3", "--placements", "shard(-1)", "--to", "dcp", "--overwrite")
    t.run("convert", t.at("columns"), out, "--overwrite")
    same(load_file(out), {k: v.float() for k, v in want.items()}, f"{what}: columns")
    files = t.at("files")
    t.run("convert", model, files, "--to", "safetensors", "--max-shard-size", "3K", "--overwrite")
    with open(os.path.join(model, "config.json")) as f, open(os.path.join(files, "config.json"), "w") as g:
        g.write(f.read())
    t.run("convert", files, out, "--dequantize", "--dtype", "float32", "--overwrite")
    same(load_file(out), {k: v.float() for k, v in want.items()}, f"{what}: in several files")
    t.run("diff", model, out, "--dequantize", "--values", status=1)  # model is read in bfloat16
    t.run("merge", out, model, model, "--method", "linear", "--dequantize", "--dtype", "float32", "--overwrite")
    same(load_file(out), {k: v.float() for k, v in want.items()}, f"{what}: merged")


def test_compressed_tensors_and_bitsandbytes(t):
    for name in ("compressed", "ordered", "bitsandbytes"):
        compare(t, os.path.join(GOLDEN, name), load_file(os.path.join(GOLDEN, name + ".safetensors")), name)


def test_packed_in_floats(t):
    """bitsandbytes' quant_storage: FSDP needs one dtype for all that it shards, so the packed numbers are called bfloat16."""
    model, out = os.path.join(GOLDEN, "bitsandbytes"), t.at("out.safetensors")
    need(load_file(os.path.join(model, "model.safetensors"))["l4.weight"].dtype == torch.bfloat16, "no packed numbers in floats")
    for options in (("--dtype", "float32"), ("--dtype", "float64")):
        text = t.run("convert", model, out, "--include", "l4.**", *options, status=2).stderr.decode()
        need("'l4.weight' is scaled by 'l4.weight.quant_state.bitsandbytes__" in text and not os.path.exists(out), text)
    t.run("merge", out, model, model, "--method", "linear", "--include", "l4.**", status=2)
    t.run("convert", model, out, "--include", "l4.**")
    same(load_file(out), {k: v for k, v in load_file(os.path.join(model, "model.safetensors")).items() if k.startswith("l4.")}, "copied as they are")
    need(not t.json("validate", model, "--deep", "--json")["findings"], "packed numbers are not NaN")
    bare = {k: v for k, v in load_file(os.path.join(model, "model.safetensors")).items() if k == "l4.weight"}
    save_file(bare, out)
    need([f["rule"] for f in t.json("validate", out, "--deep", "--json")["findings"]] == ["values/nan"], "the same numbers as bfloat16")


MAKE = """
import pathlib, sys
sys.path[:0] = sys.argv[1:3]
import torch, make_packed as m
torch.manual_seed(int(sys.argv[4]))
for bits in range(1, 9):
    m.write(pathlib.Path(sys.argv[3]), f"compressed-{bits}", *m.compressed(5, (bits,)))
m.write(pathlib.Path(sys.argv[3]), "bitsandbytes", *m.bitsandbytes(20))
"""


def test_random_models_of_the_libraries(t):
    directory = os.environ.get("TESSERA_QUANTIZERS", "")
    if not all(os.path.isdir(os.path.join(directory, n)) for n in ("compressed_tensors", "bitsandbytes")):
        raise Skip("TESSERA_QUANTIZERS names no directory with compressed-tensors and bitsandbytes")
    for seed in range(2):
        made = t.at(f"made{seed}")
        done = subprocess.run([sys.executable, "-c", MAKE, directory, GOLDENS, made, str(seed)], capture_output=True, text=True, env={**os.environ, "TORCHDYNAMO_DISABLE": "1"})
        need(done.returncode == 0, done.stderr[-800:])
        for name in sorted(n[:-len(".safetensors")] for n in os.listdir(made) if n.endswith(".safetensors")):
            compare(t, os.path.join(made, name), load_file(os.path.join(made, name + ".safetensors")), f"{name} {seed}")


# ---- GPTQ and AWQ ----

def pack(numbers, bits, dim):
    """A dense stream of bits along a dim, the lowest first, in int32."""
    lines = numbers.movedim(dim, -1).long()
    stream = (lines[..., None] >> torch.arange(bits) & 1).flatten(-2)
    stream = torch.nn.functional.pad(stream, (0, -stream.shape[-1] % 32)).unflatten(-1, (-1, 32))
    words = (stream << torch.arange(32)).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int().movedim(-1, dim).contiguous()


def gptq(bits, second, ordered, columns, rows, group, dtype):
    groups = -(-columns // group)
    index = torch.arange(columns) // group
    if ordered:
        index = index[torch.randperm(columns)]
    numbers, zeros = torch.randint(0, 1 << bits, (columns, rows)), torch.randint(0, 1 << bits, (groups, rows))
    scales = (torch.randn(groups, rows) / 20).to(dtype)
    weight = scales[index] * (numbers - zeros[index]).to(dtype)
    stored = zeros if second else (zeros - 1) % (1 << bits)
    return {"qweight": pack(numbers, bits, 0), "qzeros": pack(stored, bits, 1), "scales": scales, "g_idx": index.int(), "bias": torch.randn(rows).half()}, weight.t().contiguous()


def awq(columns, rows, group, dtype):
    groups = columns // group
    numbers, zeros, scales = torch.randint(0, 16, (columns, rows)), torch.randint(0, 16, (groups, rows)), (torch.randn(groups, rows) / 20).to(dtype)
    weight = scales.repeat_interleave(group, 0) * (numbers - zeros.repeat_interleave(group, 0)).to(dtype)
    places = torch.argsort(torch.tensor(AWQ_PLACES))
    stored = lambda x: pack(x.unflatten(1, (-1, 8))[:, :, places].flatten(1), 4, 1)
    return {"qweight": stored(numbers), "qzeros": stored(zeros), "scales": scales}, weight.t().contiguous()


def model_of(t, name, modules, quantization):
    os.makedirs(t.at(name))
    stored = {f"l{i}.{k}": v for i, (parts, _) in enumerate(modules) for k, v in parts.items()}
    save_file(stored, t.at(name, "model.safetensors"), {"format": "pt"})
    with open(t.at(name, "config.json"), "w") as f:
        json.dump({"dtype": "bfloat16", "quantization_config": quantization}, f)
    want = {f"l{i}.weight": weight for i, (_, weight) in enumerate(modules)}
    want.update({k: v for k, v in stored.items() if k.endswith("bias")})
    return t.at(name), want


def test_gptq(t):
    torch.manual_seed(7)
    for bits in (2, 3, 4, 8):
        for second in (False, True):
            modules = [gptq(bits, second, i % 2 == 1, 32 * (1 + i), 32 * (3 - i), 32 if i else 16, (torch.float16, torch.bfloat16)[i % 2]) for i in range(3)]
            if bits != 3:
                modules.append(gptq(bits, second, True, 48, 16, 20, torch.float16))  # the last group is not whole
            config = {"quant_method": "gptq", "bits": bits, "group_size": 32, "checkpoint_format": "gptq_v2" if second else "gptq"}
            compare(t, *model_of(t, f"gptq-{bits}-{second}", modules, config), f"gptq {bits} {second}")
    stored, weight = gptq(4, False, False, 96, 24, 40, torch.float16)
    del stored["g_idx"]
    compare(t, *model_of(t, "without", [(stored, weight)], {"quant_method": "gptq", "bits": 4, "group_size": 40}), "without g_idx")


def test_auto_round(t):
    """Layers of AutoRound (tests/golden/make_auto_round.py), some with bits and groups of their own, and without g_idx; and its packing of AWQ."""
    made = os.path.join(GOLDENS, "auto_round")
    names = sorted(n for n in os.listdir(made) if os.path.isdir(os.path.join(made, n)))
    need(len(names) == 4, names)
    for name in names:
        compare(t, os.path.join(made, name), load_file(os.path.join(made, name + ".safetensors")), name)
    torch.manual_seed(9)
    config = {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "bits": 4, "group_size": 64}
    compare(t, *model_of(t, "by-awq", [awq(64, 24, 64, torch.float16)], config), "packed as AWQ does")


def test_awq(t):
    torch.manual_seed(8)
    modules = [awq(64 * i, 8 * (7 - i), 64, torch.float16) for i in range(1, 5)]
    compare(t, *model_of(t, "awq", modules, {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}), "awq")
    compare(t, *model_of(t, "whole", [awq(40, 16, 40, torch.bfloat16)], {"quant_method": "awq", "bits": 4, "group_size": -1}), "awq without groups")


def test_products_at_the_ends_of_float16(t):
    """Each row of weights has scales of one exponent, from where products are lost in float16 to where they become infinite. Those of NF4 are
    no multiples of what float16 can hold, and 65,520 is the least that it cannot."""
    torch.manual_seed(11)
    modules = []
    scales = torch.ldexp(1 + torch.rand(160, 64), torch.arange(-22, 18).repeat_interleave(4)[:, None])
    scales[-3:] = torch.tensor([65519.0, 65520.0, 65535.0])[:, None]
    table = load_file(os.path.join(GOLDEN, "bitsandbytes", "model.safetensors"))["l9.weight.quant_map"]
    codes = torch.randint(0, 16, (160, 4096))
    state = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": [160, 4096]})
    nf4 = {"weight": (codes[:, 0::2] << 4 | codes[:, 1::2]).to(torch.uint8).reshape(-1, 1), "weight.absmax": scales.flatten(), "weight.quant_map": table,
           "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(state.encode()), dtype=torch.uint8)}
    numbers4 = (table[codes] * scales.repeat_interleave(64, 1)).half()
    for make in (lambda *sizes: gptq(4, False, True, *sizes), lambda *sizes: gptq(4, False, False, *sizes), awq):
        parts, weight = make(2048, 16 * 42, 128, torch.float16)
        exponents = torch.arange(-26, 16).repeat_interleave(16)
        old, scales = parts["scales"], parts["scales"].clone()
        fractions = 1 + torch.randint(0, 1024, scales.shape) / 1024
        scales.copy_(torch.ldexp(fractions, exponents).to(torch.float16) * torch.where(torch.rand(scales.shape) < 0.5, -1, 1))
        index = parts["g_idx"].long() if "g_idx" in parts else torch.arange(2048) // 128
        numbers = (weight.t().float() / old[index].float()).round().to(torch.float16)  # less their zeros
        parts["scales"] = scales
        modules.append((parts, (scales[index] * numbers).t().contiguous()))
    for name, some in (("gptq", modules[:2]), ("awq", modules[2:]), ("bitsandbytes", [(nf4, numbers4)])):
        model, want = model_of(t, name, some, {"quant_method": name, "bits": 4, "group_size": 128, "desc_act": name == "gptq", "version": "gemm"})
        for dtype in DTYPES:
            t.run("convert", model, t.at("out.safetensors"), "--dequantize", "--dtype", str(dtype)[6:], "--overwrite")
            same(load_file(t.at("out.safetensors")), {k: v.to(dtype) for k, v in want.items()}, f"{name}: {dtype}")


def test_large_matrices(t):
    """Words of matrices that are stored column by column are read in bands, and few products are looked up; rows end inside of either."""
    torch.manual_seed(9)
    modules = [gptq(4, False, False, 4096, 200, 128, torch.float16), gptq(4, False, True, 8192, 1096, 128, torch.float16), gptq(8, True, True, 4096, 200, 64, torch.bfloat16),
               gptq(2, False, False, 4096, 200, 2048, torch.float16), gptq(3, False, False, 4096, 200, 1024, torch.float16)]
    for i, (parts, weight) in enumerate(modules):
        bits = (4, 4, 8, 2, 3)[i]
        model, want = model_of(t, f"gptq{i}", [(parts, weight)], {"quant_method": "gptq", "bits": bits, "group_size": (128, 128, 64, 2048, 1024)[i], "checkpoint_format": "gptq_v2" if i == 2 else "gptq"})
        for dtype in (torch.bfloat16, torch.float32)[:2 if weight.numel() < 1 << 20 else 1]:
            t.run("convert", model, t.at("out.safetensors"), "--dequantize", "--dtype", str(dtype)[6:], "--overwrite")
            same(load_file(t.at("out.safetensors")), {k: v.to(dtype) for k, v in want.items()}, f"gptq {bits} bits {dtype}")
    model, want = model_of(t, "awq", [awq(8192, 1096, 128, torch.float16), awq(4096, 200, 4096, torch.float16)], {"quant_method": "awq", "bits": 4, "version": "gemm"})
    for more in ((), ("--max-mem", "64KiB")):
        t.run("convert", model, t.at("out.safetensors"), "--dequantize", "--dtype", "bfloat16", "--overwrite", *more)
        same(load_file(t.at("out.safetensors")), {k: v.bfloat16() for k, v in want.items()}, f"awq {more}")


def test_threads_share_bands(t):
    """Each of several bands is filled by all threads, and read again in part by those that find nothing left to do."""
    torch.manual_seed(10)
    modules = [gptq(bits, False, True, 4096, 4104, 128 if bits == 4 else 1024, torch.float16) for bits in (4, 8)]
    gptqs = model_of(t, "gptq", modules, {"quant_method": "gptq", "bits": 4, "group_size": 128})
    awqs = model_of(t, "awq", [awq(4096, 4104, 128, torch.float16)], {"quant_method": "awq", "bits": 4, "version": "gemm"})
    for threads in (2, 8):
        for model, want in (gptqs, awqs):
            t.run("convert", model, t.at("out.safetensors"), "--dequantize", "--threads", threads, "--overwrite")
            same(load_file(t.at("out.safetensors")), {k: v if k.endswith("bias") else v.bfloat16() for k, v in want.items()}, f"{model}, {threads} threads")
