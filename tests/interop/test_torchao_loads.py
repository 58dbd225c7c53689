"""State of torchao's 8-bit optimizer, trained here, through every conversion between torch.save and DCP, loaded by torchao; and random
weights of every class that --dequantize reads, against what torchao's own dequantize() makes of them.

TESSERA_TORCHAO names a directory with torchao (pip install --no-deps --target DIR torchao). Without it the test is skipped."""
import os
import subprocess
import sys

from harness import Skip

SAVE = """
import sys, torch, torch.distributed.checkpoint as dcp
from torchao.optim import AdamW8bit
torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Linear(64, 80), torch.nn.Linear(80, 8))
optimizer = AdamW8bit(model.parameters(), lr=1e-3)
for _ in range(2):
    model(torch.randn(4, 64)).square().sum().backward()
    optimizer.step()
state = {"model": model.state_dict(), "optim": optimizer.state_dict()}
torch.save(state, sys.argv[1])
dcp.save(state, checkpoint_id=sys.argv[2], no_dist=True)
"""
LOAD = """
import os, sys, torch, torch.distributed.checkpoint as dcp
import torchao.optim
wanted = torch.load(sys.argv[1], weights_only=False)
def inner(t):
    return [getattr(t, n) for n in t.__tensor_flatten__()[0]] if hasattr(t, "__tensor_flatten__") else [t]
def same(a, b):
    return type(a) is type(b) and all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(inner(a), inner(b), strict=True))
for path in sys.argv[2:]:
    if os.path.isfile(path):
        got = torch.load(path, weights_only=False)
    else:
        got = torch.load(sys.argv[1], weights_only=False)
        for s in got["optim"]["state"].values():
            for t in s.values():
                [x.zero_() for x in inner(t)[:2]]  # codes and scale, which are what torchao copies
        dcp.load(got, checkpoint_id=path, no_dist=True)
    for k, s in wanted["optim"]["state"].items():
        for name, t in s.items():
            found = got["optim"]["state"].get(k, got["optim"]["state"].get(str(k)))[name]
            assert same(t, found), f"{path}: {k} {name} is {type(found)}"
    assert any(hasattr(t, "__tensor_flatten__") for s in wanted["optim"]["state"].values() for t in s.values())
"""
QUANTIZE = """
import random, sys, torch, torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import Float8Tensor, Int8Tensor, IntxUnpackedToInt8Tensor, MappingType
from torchao.quantization.granularity import PerAxis, PerBlock, PerGroup, PerRow, PerTensor
seed, directory = int(sys.argv[1]), sys.argv[2]
rng = random.Random(seed)
torch.manual_seed(seed)
state = {}
for dtype in (torch.bfloat16, torch.float16, torch.float32):
    for i in range(12):
        rows, columns = rng.choice((2, 5, 16, 130, 256)), 32 * rng.choice((1, 2, 5, 33))
        x = (torch.randn(rows, columns) * 10 ** rng.uniform(-3, 2) + rng.uniform(-1, 1)).to(dtype)
        kind = rng.choice((MappingType.SYMMETRIC, MappingType.ASYMMETRIC))
        by = rng.choice((PerRow(), PerTensor(), PerGroup(16), PerAxis(1), PerBlock([rows, 16]), PerBlock([1, columns])))
        state[f"{dtype} {i}.int8"] = Int8Tensor.from_hp(x, by, mapping_type=kind)
        state[f"{dtype} {i}.intx"] = IntxUnpackedToInt8Tensor.from_hp(x, (1, rng.choice((8, 32, columns))), getattr(torch, f"int{rng.randint(1, 8)}"), mapping_type=kind)
        state[f"{dtype} {i}.float8"] = Float8Tensor.from_hp(x, granularity=rng.choice((PerRow(), PerTensor())), float8_dtype=rng.choice((torch.float8_e4m3fn, torch.float8_e5m2)))
        if dtype != torch.float16:
            tiled = rng.random() < 0.5
            state[f"{dtype} {i}.mx"] = MXTensor.to_mx(x, rng.choice((torch.float8_e4m3fn, torch.float8_e5m2, torch.float4_e2m1fn_x2)), 32, is_swizzled_scales=tiled)
            whole = per_tensor_amax_to_scale(x.abs().max()) if rng.random() < 0.5 else None
            state[f"{dtype} {i}.nvfp4"] = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=whole, is_swizzled_scales=tiled)
torch.save(state, directory + "/weights.pt")
dcp.save({n: x for n, x in state.items() if not n.endswith("intx")}, checkpoint_id=directory + "/dcp", no_dist=True)
tensors, metadata = flatten_tensor_state_dict(state)
save_file(tensors, directory + "/weights.safetensors", metadata=metadata)
for name, dtype in (("own", None), ("float32", torch.float32)):
    plain = {n: x.dequantize(dtype) if dtype and not n.endswith("intx") else x.dequantize().to(dtype or x.dtype) for n, x in state.items()}
    torch.save(plain, f"{directory}/{name}.pt")
    torch.save({n: x for n, x in plain.items() if not n.endswith("intx")}, f"{directory}/dcp of {name}.pt")
"""


def python(directory, script, *paths):
    done = subprocess.run([sys.executable, "-c", script, *paths], env={**os.environ, "PYTHONPATH": directory, "TORCHDYNAMO_DISABLE": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(done.stderr[-800:])


def test_the_8_bit_optimizer_of_torchao(t):
    directory = os.environ.get("TESSERA_TORCHAO", "")
    if not os.path.isdir(os.path.join(directory, "torchao")):
        raise Skip("TESSERA_TORCHAO names no directory with torchao")
    at = lambda name: os.path.join(t.scratch, name)
    python(directory, SAVE, at("run.pt"), at("dcp"))
    for source in ("run.pt", "dcp"):
        t.run("validate", at(source), "--deep", "--fail-on", "warning")
        t.run("convert", at(source), at(f"of {source}.pt"), "--to", "torch")
        t.run("convert", at(source), at(f"of {source}"), "--to", "dcp")
    t.run("diff", at("run.pt"), at("dcp"), "--values")
    python(directory, LOAD, at("run.pt"), *(at(f"of {s}{e}") for s in ("run.pt", "dcp") for e in ("", ".pt")))


def test_weights_of_torchao_are_what_its_dequantize_returns(t):
    directory = os.environ.get("TESSERA_TORCHAO", "")
    if not os.path.isdir(os.path.join(directory, "torchao")):
        raise Skip("TESSERA_TORCHAO names no directory with torchao")
    at = lambda name: os.path.join(t.scratch, name)
    seed = str(int.from_bytes(os.urandom(4), "little"))
    print("seed", seed)
    python(directory, QUANTIZE, seed, t.scratch)
    for wanted, more in (("own.pt", ()), ("float32.pt", ("--dtype", "float32"))):
        for source, kept in (("weights.pt", ""), ("weights.safetensors", ""), ("dcp", "dcp of ")):  # DCP does not take the class of intx
            out = at(f"{wanted} of {source}.safetensors")
            t.run("convert", at(source), out, "--dequantize", *more)
            t.run("diff", at(kept + wanted), out, "--values")
