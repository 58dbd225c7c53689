"""Checkpoints that tessera wrote in Megatron-Core's torch_dist format, loaded by megatron.core.dist_checkpointing.

Each version loads in a process of its own: TESSERA_MEGATRON names directories with megatron-core 0.16 and 0.14, separated by ':'
(pip install --no-deps --target DIR megatron-core==0.14.0; it needs packaging and psutil). Without it the tests are skipped."""
import json
import os
import subprocess
import sys

from ended import leaving
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


# A GPTModel of one rank, without pipeline stages and expert-parallel ranks, loads its weights and its optimizer's states.
LOAD_EXPERTS = r"""
import json, sys
import make_megatron_moe as made
import torch.distributed as dist
from make_megatron import sha
from megatron.core import dist_checkpointing as checkpointing, parallel_state
from megatron.core.dist_checkpointing.optimizer import get_param_id_to_sharded_param_map, optim_state_to_sharding_state
path, store, case = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
state, model = made.state_of(case, 1, 1)
loaded = checkpointing.load(state, path)
model.load_state_dict(loaded["model"])
weights = {n: sha(p) for n, p in model.named_parameters()}
states = [sha(v["momentum_buffer"]) for _, v in sorted(loaded.get("optimizer", {"state": {}})["state"].items())]
print(json.dumps({"weights": weights, "states": states, "iteration": loaded["iteration"], "different": len(set(weights.values()))}))
"""


def load(directory, path, store, script=LOAD, *more):
    env = dict(os.environ, PYTHONPATH=directory + ":" + os.path.dirname(GOLDEN), OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    p = subprocess.run([sys.executable, "-c", leaving(script), path, store, *more], env=env, capture_output=True, timeout=300)
    assert p.returncode == 0, p.stderr.decode()[-800:]
    return json.loads(p.stdout.splitlines()[-1])


def megatron(number):
    directories = os.environ.get("TESSERA_MEGATRON", "").split(":")
    if len(directories) != 2:
        raise Skip("TESSERA_MEGATRON names no directories with megatron-core 0.16 and 0.14")
    return directories[number]


def check(t, number):
    directory = megatron(number)
    name = ("layers", "fragments")[number]
    with open(os.path.join(GOLDEN, f"{name}.json")) as f:
        want = {k: [w["dtype"], w["sha256"]] for k, w in json.load(f)["entries"].items() if not k.startswith("common.")}
    source = os.path.join(GOLDEN, name)
    t.run("convert", source, t.at("converted"), "--to", "megatron-dist")
    t.run("reshard", source, t.at("resharded"), "--mesh", "tp=3", "--placements", "shard(1)")
    for made in ("converted", "resharded"):
        got = load(directory, t.at(made), t.at(f"{made}.store"))
        assert got.pop("tensors") == want, f"{name}, {made}: other tensors"
        assert got == {"rng": [[{"seed": 10 + r, "name": f"rank {r}"}] for r in range(4)], "iteration": 7, "lr": 0.125, "seen": [3, 5],
                       "args": "small"}, got


def test_megatron_016_loads_what_was_written(t):
    check(t, 0)


def test_megatron_014_loads_what_was_written(t):
    check(t, 1)


def test_megatron_loads_experts_that_were_written(t):
    """On another number of ranks than those that saved: what it loads from our files is what it loads from its own."""
    directory = megatron(0)
    for case in ("moe", "moe_layers"):
        source = os.path.join(GOLDEN, case)
        t.run("convert", source, t.at(case), "--to", "megatron-dist")
        t.run("reshard", source, t.at(case + "_ep"), "--mesh", "ep=4", "--placements", "shard(1)" if case == "moe" else "shard(0)")
        want = load(directory, source, t.at(case + ".store"), LOAD_EXPERTS, case)
        assert want["different"] == len(want["weights"]) > 20 and bool(want["states"]) == (case == "moe"), want
        for made in (case, case + "_ep"):
            assert load(directory, t.at(made), t.at(made + ".store2"), LOAD_EXPERTS, case) == want, made
