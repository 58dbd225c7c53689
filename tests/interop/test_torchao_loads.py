"""State of torchao's 8-bit optimizer, trained here, through every conversion between torch.save and DCP, loaded by torchao.

TESSERA_TORCHAO names a folder with torchao (pip install --no-deps --target DIR torchao). Without it the test is skipped."""
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


def python(folder, script, *paths):
    done = subprocess.run([sys.executable, "-c", script, *paths], env={**os.environ, "PYTHONPATH": folder, "TORCHDYNAMO_DISABLE": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(done.stderr[-800:])


def test_the_8_bit_optimizer_of_torchao(t):
    folder = os.environ.get("TESSERA_TORCHAO", "")
    if not os.path.isdir(os.path.join(folder, "torchao")):
        raise Skip("TESSERA_TORCHAO names no folder with torchao")
    at = lambda name: os.path.join(t.scratch, name)
    python(folder, SAVE, at("run.pt"), at("dcp"))
    for source in ("run.pt", "dcp"):
        t.run("validate", at(source), "--deep", "--fail-on", "warning")
        t.run("convert", at(source), at(f"of {source}.pt"), "--to", "torch")
        t.run("convert", at(source), at(f"of {source}"), "--to", "dcp")
    t.run("diff", at("run.pt"), at("dcp"), "--values")
    python(folder, LOAD, at("run.pt"), *(at(f"of {s}{e}") for s in ("run.pt", "dcp") for e in ("", ".pt")))
