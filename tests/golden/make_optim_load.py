"""Sharded optimizer state loaded by real PyTorch, for tests/stream: python tests/golden/make_optim_load.py

optim_load/<name>/: checkpoints that worlds of 1 to 3 ranks saved; optim_load.json (row E4): what load_sharded_optimizer_state_dict
gave each rank, data parallel alone (1-D) and FSDP over tensor parallel (2-D). Every rank: [[key, kind, dtype, offsets, sizes,
numbers]…], offsets in the tensor-parallel slice (1-D: in the tensor).
"""
import json
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata, ShardMetadata, TensorProperties
from torch.distributed._shard.sharded_tensor.api import ShardedTensorBase
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh

try:
    from torch.distributed.tensor import distribute_tensor, Shard as ShardOn
except ImportError:  # before 2.5
    from torch.distributed._tensor import distribute_tensor, Shard as ShardOn

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPES = {"fc.weight": (8, 6), "emb.weight": (7, 4), "norm.bias": (5,), "one": (1,)}
SAVED = {"w1": (1, 0), "w2_columns": (2, 1), "w3": (3, 0)}
LOADS = [{"tp": 2, "dp": 2}, {"tp": 1, "dp": 3}, {"dp": 2}, {"dp": 3}, {"dp": 1}]


def optimizer_state():
    at = 0
    state = {}
    for fqn, shape in SHAPES.items():
        n = torch.Size(shape).numel()
        state[fqn] = {"step": torch.tensor(3.0), "exp_avg": torch.arange(at, at + n).reshape(shape).float(), "exp_avg_sq": -torch.arange(at, at + n).reshape(shape).to(torch.bfloat16)}
        at += n
    return {"state": state, "param_groups": [{"lr": 0.5, "params": list(SHAPES)}]}


def save(rank, world, port, dim, directory):
    start(rank, world, port)
    mesh = init_device_mesh("cpu", (world,))
    cut = lambda v: {k: cut(x) for k, x in v.items()} if isinstance(v, dict) else distribute_tensor(v, mesh, [ShardOn(min(dim, v.dim() - 1))]) if v.dim() else v
    optim = optimizer_state()
    dcp.save({"optim": {**optim, "state": cut(optim["state"])}, "model": {"fc.weight": torch.ones(1)}}, checkpoint_id=directory)
    dist.destroy_process_group()


def start(rank, world, port):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)


def slices(shape, tp):
    """Column-wise slices of the tensor-parallel ranks; vectors are whole on all."""
    if len(shape) < 2:
        return [([0] * len(shape), list(shape))] * tp
    return [([0, t * shape[1] // tp], [shape[0], shape[1] // tp]) for t in range(tp)]


def model_state(t, tp):
    """What the tensor-parallel rank `t` of FSDP over tensor parallel has. The data-parallel group is all ranks: PyTorch 2.13
    names its members 0, 1, … in the specs it makes, so that it loads no other group; one run for each tensor-parallel rank."""
    state, group = {}, dist.group.WORLD
    for fqn, shape in SHAPES.items():
        offset, size = slices(shape, tp)[t]
        if shape == (1,):  # no ChunkShardingSpec for more ranks than rows
            continue
        md = ChunkShardingSpec(0, [f"rank:{r}/cpu" for r in range(dist.get_world_size())]).build_metadata(torch.Size(size), TensorProperties())
        mine = [Shard(torch.zeros(s.shard_sizes), s) for s in md.shards_metadata if s.placement.rank() == dist.get_rank()]
        inner = ShardedTensor._init_from_local_shards_and_global_metadata(mine, md, process_group=group)
        state[fqn] = nested(inner, ShardMetadata(offset, size, f"rank:{dist.get_rank()}/cpu"), shape, group)
    return state


def nested(inner, outer, shape, group):
    """A ShardedTensor whose one local shard is a ShardedTensor, as FSDP over tensor parallel gives of models: put together by
    hand, for its constructors compare the shards of all ranks."""
    spec = ChunkShardingSpec(0, [f"rank:{r}/cpu" for r in dist.get_process_group_ranks(group)])
    st = ShardedTensorBase.__new__(ShardedTensor, spec, torch.Size(shape), dtype=torch.float32, layout=torch.strided, pin_memory=False, requires_grad=False)
    shard = Shard.__new__(Shard)
    shard.tensor, shard.metadata = inner, outer
    st._process_group, st._local_shards = group, [shard]
    st._metadata = ShardedTensorMetadata([outer], torch.Size(shape), TensorProperties())
    return st


def encode(key, v):
    if isinstance(v, ShardedTensor):
        local = v.local_shards()
        rows = local[0] if local else None
        return [key, "box", str(v.dtype).removeprefix("torch."), list(rows.metadata.shard_offsets) if rows else None, list(rows.metadata.shard_sizes) if rows else None,
                rows.tensor.reshape(-1).double().tolist() if rows else None]
    if isinstance(v, torch.Tensor):
        return [key, "whole", str(v.dtype).removeprefix("torch."), None, list(v.shape), v.reshape(-1).double().tolist()]
    return [key, "object", None, None, None, None]


def load(rank, world, port, how, directory, out):
    start(rank, world, port)
    tp = how.get("tp")
    for t in range(tp or 1):
        model = model_state(t, tp) if tp else {"fc.weight": torch.ones(1)}
        got = load_sharded_optimizer_state_dict(model, "optim", dcp.FileSystemReader(directory))
        json.dump({"slices": {f: slices(s, tp)[t] for f, s in SHAPES.items()} if tp else None, "entries": [encode(k, v) for k, v in flatten_state_dict(got)[0].items()]},
                  open(os.path.join(out, f"{rank * (tp or 1) + t}.json"), "w"))
    dist.barrier()
    dist.destroy_process_group()


def main():
    root, port, cases = os.path.join(HERE, "optim_load"), 29400, []
    shutil.rmtree(root, ignore_errors=True)
    for name, (world, dim) in SAVED.items():
        directory, port = os.path.join(root, name), port + 1
        mp.spawn(save, (world, port, dim, directory), nprocs=world)
        for how in LOADS:
            port += 1
            ranks = how.get("tp", 1) * how["dp"]
            with tempfile.TemporaryDirectory() as out:
                mp.spawn(load, (how["dp"], port, how, directory, out), nprocs=how["dp"])
                cases.append({"saved": name, **how, "ranks": [json.load(open(os.path.join(out, f"{r}.json"))) for r in range(ranks)]})
    json.dump({"torch": torch.__version__, "cases": cases}, open(os.path.join(HERE, "optim_load.json"), "w"), separators=(",", ":"))


if __name__ == "__main__":
    main()
