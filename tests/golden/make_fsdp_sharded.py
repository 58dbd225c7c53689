"""FSDP1's sharded optimizer state as real PyTorch gives it, for tests/optim: python tests/golden/make_fsdp_sharded.py

fsdp_sharded.json (rows B10, B12, B13, hybrid strategies): raw state of every rank, FULL state, the unit and index of every FQN, SHARDED state of every rank
(shard_state=True: ShardedTensors, or DTensors where FSDP was given a mesh), and what the ranks load of it. Values are
written as in make_optim.py; a sharded tensor is {"S": {form, shape, placements?, local, offsets, shards?}}.
"""
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy, StateDictType
from torch.distributed.fsdp._optim_utils import _get_fqn_to_fsdp_param_info
from torch.distributed.fsdp.api import (FullOptimStateDictConfig, FullStateDictConfig, ShardedOptimStateDictConfig,
                                        ShardedStateDictConfig)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

import make_optim
from make_optim import Small, flat_params_document, optimizer


def encode(v):
    if isinstance(v, dict):
        return {"D": [[encode(k), encode(x)] for k, x in v.items()]}
    if isinstance(v, DTensor):
        offsets = compute_local_shape_and_global_offset(v.shape, v.device_mesh, v.placements)[1]
        return {"S": {"form": "DTensor", "shape": list(v.shape), "placements": ["shard(0)" if p.is_shard() else "replicate" for p in v.placements],
                      "mesh": list(v.device_mesh.shape), "local": make_optim.encode(v.to_local()), "offsets": list(offsets)}}
    if isinstance(v, ShardedTensor):
        local = v.local_shards()
        return {"S": {"form": "ShardedTensor", "shape": list(v.shape), "local": make_optim.encode(local[0].tensor) if local else None,
                      "offsets": list(local[0].metadata.shard_offsets) if local else None,
                      "shards": [[list(s.shard_offsets), list(s.shard_sizes), str(s.placement)] for s in v.metadata().shards_metadata]}}
    return make_optim.encode(v)


def wrap(case):
    torch.manual_seed(0)
    world = dist.get_world_size()
    more = {"sharding_strategy": getattr(ShardingStrategy, case.get("strategy", "FULL_SHARD"))}
    if case.get("mesh"):
        shape = case["mesh"]
        more["device_mesh"] = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape):])
    elif case.get("groups"):
        shards = [dist.new_group(g) for g in case["groups"]]
        across = [dist.new_group(list(g)) for g in zip(*case["groups"])]
        mine = next(i for i, g in enumerate(case["groups"]) if dist.get_rank() in g)
        more["process_group"] = (shards[mine], across[case["groups"][mine].index(dist.get_rank())])
    f = lambda m: FSDP(m, use_orig_params=case["orig"], device_id=torch.device("cpu"), **more)
    net = Small(case["model"] == "tied")
    if case.get("frozen"):
        net.b[1].bias.requires_grad_(False)
    net.a, net.b = f(net.a), f(net.b)
    return f(net)


def run_rank(rank, world, port, case, directory):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    net = wrap(case)
    optim = optimizer(case, net)
    torch.manual_seed(5)
    for _ in range(2):
        optim.zero_grad()
        net(torch.arange(4)).float().pow(2).sum().backward()
        optim.step()
    raw = optim.state_dict()
    result = {"raw": encode(raw), "flat": flat_params_document(net, optim, [f"rank{r}.pt" for r in range(world)])}
    FSDP.set_state_dict_type(net, StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig(offload_to_cpu=False))
    result["full"] = encode(FSDP.optim_state_dict(net, optim, raw))
    FSDP.set_state_dict_type(net, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(), ShardedOptimStateDictConfig(offload_to_cpu=False))
    sharded = FSDP.optim_state_dict(net, optim, raw)
    result["sharded"] = encode(sharded)
    result["loaded"] = encode(FSDP.optim_state_dict_to_load(net, optim, sharded))
    units = [m for _, m in net.named_modules() if isinstance(m, FSDP) and m._handle is not None]
    result["info"] = {fqn: [[m._handle for m in units].index(i.handle), i.param_indices[fqn], not i.param_requires_grad or i.param_requires_grad[i.param_indices[fqn]]]
                      for fqn, i in _get_fqn_to_fsdp_param_info(net).items()}
    json.dump(result, open(os.path.join(directory, f"{rank}.json"), "w"))
    dist.barrier()
    dist.destroy_process_group()


CASES = {
    "flat_w3": {"orig": False, "model": "tied", "optim": "adamw", "world": 3},
    "orig_w3": {"orig": True, "model": "untied", "optim": "adamw", "world": 3},
    "orig_w2_frozen": {"orig": True, "model": "tied", "optim": "adamw", "world": 2, "frozen": True},
    "flat_w2_mesh": {"orig": False, "model": "tied", "optim": "sgd", "world": 2, "mesh": [2]},
    "orig_w4_mesh": {"orig": True, "model": "tied", "optim": "adamw", "world": 4, "mesh": [4]},
    "flat_hybrid_mesh": {"orig": False, "model": "tied", "optim": "adamw", "world": 4, "mesh": [2, 2], "strategy": "HYBRID_SHARD"},
    "orig_hybrid_mesh": {"orig": True, "model": "tied", "optim": "adamw", "world": 4, "mesh": [2, 2], "strategy": "_HYBRID_SHARD_ZERO2"},
    "flat_hybrid_groups": {"orig": False, "model": "tied", "optim": "sgd", "world": 4, "groups": [[0, 2], [1, 3]], "strategy": "HYBRID_SHARD"},
    "flat_no_shard": {"orig": False, "model": "tied", "optim": "sgd", "world": 2, "strategy": "NO_SHARD"},
    "orig_no_shard": {"orig": True, "model": "tied", "optim": "sgd", "world": 2, "strategy": "NO_SHARD"},
}


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    cases = {}
    for number, (name, case) in enumerate(CASES.items()):
        with tempfile.TemporaryDirectory() as directory:
            try:
                mp.spawn(run_rank, (case["world"], 29500 + number, case, directory), nprocs=case["world"])
            except Exception as e:
                print(f"{name}: {str(e)[-900:]}", file=sys.stderr)
                continue
            ranks = [json.load(open(os.path.join(directory, f"{r}.json"))) for r in range(case["world"])]
            cases[name] = {"flat": ranks[0]["flat"], "full": ranks[0]["full"], "info": ranks[0]["info"], **{k: [r[k] for r in ranks] for k in ("raw", "sharded", "loaded")}}
    json.dump({"torch": torch.__version__, "cases": cases}, open(os.path.join(here, "fsdp_sharded.json"), "w"), separators=(",", ":"))


if __name__ == "__main__":
    main()
