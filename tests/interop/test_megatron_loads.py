"""Checkpoints that tessera wrote in Megatron-Core's torch_dist format, loaded by megatron.core.dist_checkpointing.

Each version loads in a process of its own: TESSERA_MEGATRON names folders with megatron-core 0.16 and 0.14, separated by ':'
(pip install --no-deps --target DIR megatron-core==0.14.0; it needs packaging and psutil). Without it the tests are skipped."""
import json
import os
import subprocess
import sys

from harness import ROOT, Skip

GOLDEN = os.path.join(ROOT, "tests", "golden", "megatron")
LOAD = r"""
import hashlib, json, sys, numpy, torch
numpy.product = numpy.prod
torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
torch.cuda.current_device = lambda *_: "cpu"
import torch.distributed as dist
from megatron.core import dist_checkpointing as checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedObject
path, store = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
common = checkpointing.load_common_state_dict(path)
tensors = {k: v for k, v in checkpointing.load_plain_tensors(path).items() if isinstance(v, torch.Tensor) and k not in common}
objects = checkpointing.load({f"{r}": ShardedObject("rng_state", None, (4,), (r,)) for r in range(4)}, path)
print(json.dumps({"tensors": {k: [str(v.dtype).removeprefix("torch."), hashlib.sha256(v.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()]
                              for k, v in tensors.items()},
                  "rng": [objects[f"{r}"] for r in range(4)], "iteration": common["iteration"], "lr": common["scheduler"]["lr"],
                  "seen": common["seen"].tolist(), "args": common["args"].name}))
"""


def load(folder, path, store):
    env = dict(os.environ, PYTHONPATH=folder, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    p = subprocess.run([sys.executable, "-c", LOAD, path, store], env=env, capture_output=True, timeout=300)
    assert p.returncode == 0, p.stderr.decode()[-800:]
    return json.loads(p.stdout.splitlines()[-1])


def check(t, number):
    folders = os.environ.get("TESSERA_MEGATRON", "").split(":")
    name = ("layers", "fragments")[number]
    if len(folders) != 2:
        raise Skip("TESSERA_MEGATRON names no folders with megatron-core 0.16 and 0.14")
    with open(os.path.join(GOLDEN, f"{name}.json")) as f:
        want = {k: [w["dtype"], w["sha256"]] for k, w in json.load(f)["entries"].items() if not k.startswith("common.")}
    source = os.path.join(GOLDEN, name)
    t.run("convert", source, t.at("converted"), "--to", "megatron-dist")
    t.run("reshard", source, t.at("resharded"), "--mesh", "tp=3", "--placements", "shard(1)")
    for made in ("converted", "resharded"):
        got = load(folders[number], t.at(made), t.at(f"{made}.store"))
        assert got.pop("tensors") == want, f"{name}, {made}: other tensors"
        assert got == {"rng": [[{"seed": 10 + r, "name": f"rank {r}"}] for r in range(4)], "iteration": 7, "lr": 0.125, "seen": [3, 5],
                       "args": "small"}, got


def test_megatron_016_loads_what_was_written(t):
    check(t, 0)


def test_megatron_014_loads_what_was_written(t):
    check(t, 1)
