"""Directories with one torch.save file per rank: DTensors, ShardedTensors and plain tensors that together form one checkpoint.

Some of these classes can only be loaded in their process group. Every rank therefore loads its own file again, and the golden file
has what PyTorch gathers from the loaded tensors.
"""
import json
import os

import torch
import torch.distributed as dist

from . import dcp_cases, golden, model
from .registry import case


def save_ranks(state, name):
    """Each rank saves its file and loads it again -> the full values, the same before and after."""
    rank = dist.get_rank()
    before = model.known(state)
    file = os.path.join(name, f"rank{rank}.pt")
    torch.save(state, file)
    loaded = torch.load(file, weights_only=False)
    after = model.known(loaded)
    assert before == after, "what was loaded differs from what was saved"
    with open(f"rank{rank}.json", "w") as f:
        json.dump(held(loaded), f)
    return after


def held(loaded):
    """What this rank's file holds of each tensor: its kind, and its pieces with their places."""
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    flat, _ = flatten_state_dict(loaded)
    return {fqn: {"kind": type(value).__name__, **mesh_of(value), "pieces": pieces(value)} for fqn, value in flat.items() if model.is_tensor(value)}


def mesh_of(value):
    if not hasattr(value, "device_mesh"):
        return {}
    return {"mesh": value.device_mesh.mesh.tolist(), "mesh_dim_names": value.device_mesh.mesh_dim_names, "placements": [str(p) for p in value.placements]}


def pieces(value):
    from torch.distributed._shard.sharded_tensor import ShardedTensor
    if isinstance(value, ShardedTensor):
        return [{"offsets": list(s.metadata.shard_offsets), **golden.tensor_entry(s.tensor)} for s in value.local_shards()]
    if hasattr(value, "device_mesh"):
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
        _, offsets = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
        return [{"offsets": list(offsets), **golden.tensor_entry(value.to_local())}]
    return [{"offsets": [0] * value.dim(), **golden.tensor_entry(value)}]


def read_ranks(case):
    """The full values as gathered from the loaded files, the chunks as the ranks hold them, the objects of rank 0."""
    with open("known.json") as f:
        entries = json.load(f)
    ranks = []
    for rank in range(case.ranks):
        with open(f"rank{rank}.json") as f:
            ranks.append(json.load(f))
    for fqn, entry in entries.items():
        entry["chunks"] = chunks(fqn, ranks)
    files = [f"rank{rank}.pt" for rank in range(case.ranks)]
    with open("objects.json") as f:
        objects = json.load(f)
    return {"format": "torch-ranks", "path": case.name, "files": files, "entries": entries, **objects, "ranks": ranks}


def chunks(fqn, ranks):
    """The pieces without repeats, and without the empty ones of a tensor that is not empty."""
    found = []
    for rank in ranks:
        for piece in rank.get(fqn, {}).get("pieces", []):
            chunk = {"offsets": piece["offsets"], "sizes": piece["shape"]}
            if chunk not in found:
                found.append(chunk)
    full = [c for c in found if 0 not in c["sizes"]]
    return full or found[:1]


def objects_of(state):
    """The golden's objects, which the reader cannot load by itself."""
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    flat, _ = flatten_state_dict(state)
    out = golden.sort_out({k: v for k, v in flat.items() if not model.is_tensor(v)})
    if dist.get_rank() == 0:
        with open("objects.json", "w") as f:
            json.dump({"objects": out["objects"], "opaque": out["opaque"]}, f)
    return state


@case("torch_ranks_fsdp2", read_ranks, "one file per rank: DTensors of FSDP2 with short and empty shards, AdamW state", ranks=3)
def make_ranks_fsdp2(name):
    state = dcp_cases.trained(dcp_cases.fsdp2(model.seeded(model.Net), dcp_cases.mesh(3)))
    return save_ranks(objects_of({**state, "epoch": 1}), name)


@case("torch_ranks_tp_fsdp2", read_ranks, "one file per rank: DTensors of tensor parallel x FSDP2, strided shards", ranks=4)
def make_ranks_tp_fsdp2(name):
    both = dcp_cases.mesh(2, 2, names=("dp", "tp"))
    module = dcp_cases.tensor_parallel(model.seeded(model.Net, dim=8, hidden=8, rows=8, few=4), both["tp"])
    return save_ranks(objects_of({"model": dcp_cases.fsdp2(module, both["dp"]).state_dict()}), name)


@case("torch_ranks_fsdp1_sharded", read_ranks, "one file per rank: ShardedTensors of FSDP1", ranks=3)
def make_ranks_fsdp1_sharded(name):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import StateDictType
    module, _ = dcp_cases.trained_fsdp1()
    with FSDP.state_dict_type(module, StateDictType.SHARDED_STATE_DICT):
        return save_ranks(objects_of({"model": module.state_dict()}), name)


@case("torch_ranks_fsdp1_local", read_ranks, "one file per rank: FSDP1 LOCAL_STATE_DICT, flat parameters with padding at their end", ranks=4)
def make_ranks_fsdp1_local(name):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import StateDictType
    module, _ = dcp_cases.trained_fsdp1()
    with FSDP.state_dict_type(module, StateDictType.LOCAL_STATE_DICT):
        return save_ranks(objects_of({"model": module.state_dict()}), name)


@case("torch_ranks_replicated", read_ranks, "one file per rank: plain tensors, equal on all ranks, as DDP scripts save them", ranks=2)
def make_ranks_replicated(name):
    return save_ranks(objects_of({"model": model.seeded(model.TiedNet).state_dict(), "epoch": 1}), name)


@case("torch_ranks_uneven_strided", read_ranks, "[7, 4] on a 3 x 2 mesh of FSDP2 x tensor parallel: shards located by their values (each value is its own flat index)", ranks=6)
def make_ranks_uneven_strided(name):
    module, before = dcp_cases.uneven_strided()
    state = objects_of({"model": module.state_dict()})
    torch.save(state, os.path.join(name, f"rank{dist.get_rank()}.pt"))
    loaded = torch.load(os.path.join(name, f"rank{dist.get_rank()}.pt"), weights_only=False)["model"]["0.weight"]
    described = {"kind": "DTensor", **mesh_of(loaded), "pieces": pieces_by_value(loaded.to_local())}
    with open(f"rank{dist.get_rank()}.json", "w") as f:
        json.dump({"model.0.weight": described}, f)
    return before


def pieces_by_value(local):
    """Runs of neighboring rows, each placed by its first value."""
    width = local.shape[1]
    rows = [int(row[0]) // width for row in local]
    starts = [i for i, row in enumerate(rows) if i == 0 or row != rows[i - 1] + 1] or [0]
    return [{"offsets": [rows[a] if rows else 0, 0], **golden.tensor_entry(local[a:b])} for a, b in zip(starts, [*starts[1:], len(rows)])]
