"""Samples that the newest and the oldest supported PyTorch write: what a reader of 2.13's files alone would not meet.

2.15 adds the strides to the properties of a tensor in `.metadata` and in a ShardedTensor, and a flag to a device mesh. 2.3
has no StorageMeta in `.metadata`.
"""
import torch
import torch.distributed.checkpoint as dcp

from . import dcp_cases, golden, model, rank_cases, torch_cases
from .dcp_cases import read_dcp
from .registry import case


def layouts():
    """Tensors whose strides tell their layout apart, and others where strides say nothing."""
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    return {"contiguous": base.clone(), "transposed": base.mul(2).t(), "columns": base.add(20)[:, 1:3], "permuted": torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
            "channels_last": torch.arange(48, dtype=torch.float16).reshape(2, 3, 2, 4).contiguous(memory_format=torch.channels_last),
            "expanded": torch.tensor([5.0, 6.0]).reshape(2, 1).expand(2, 3), "scalar": torch.tensor(2.5), "empty": torch.empty(0, 4)}


def fsdp1_sharded():
    """What dcp_fsdp1_sharded saves."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import StateDictType
    module, optimizer = dcp_cases.trained_fsdp1()
    with FSDP.state_dict_type(module, StateDictType.SHARDED_STATE_DICT):
        return {"model": module.state_dict(), "optim": FSDP.optim_state_dict(module, optimizer)}


@case("dcp_v2_15_layouts", read_dcp, "contiguous and transposed tensors, whose strides are in the metadata, and objects", torch="2.15")
def make_layouts(name):
    return dcp_cases.save({"layouts": layouts(), "step": 5, "note": "strides"}, name)


@case("dcp_v2_15_fsdp2", read_dcp, "FSDP2 on a 1-D mesh with nested AdamW state and a transposed plain tensor", ranks=2, torch="2.15")
def make_fsdp2(name):
    state = dcp_cases.trained(dcp_cases.fsdp2(model.seeded(model.Net), dcp_cases.mesh(2)))
    return dcp_cases.save({**state, "plain": layouts()["transposed"], "step": 2}, name)


@case("dcp_v2_15_fsdp1_sharded", read_dcp, "FSDP1 SHARDED_STATE_DICT (ShardedTensors) with its optimizer state", ranks=2, torch="2.15")
def make_fsdp1_sharded(name):
    return dcp_cases.save(fsdp1_sharded(), name)


@case("torch_v2_15_train_state", torch_cases.reader("train.pt"), "a training script's dict with AdamW state, and views with strides", torch="2.15")
def make_train_state(name):
    torch_cases.save({**torch_cases.train_state(), "layouts": layouts()}, name, "train.pt")


@case("torch_ranks_v2_15_fsdp2", rank_cases.read_ranks, "one file per rank: DTensors of FSDP2, whose mesh states whether it keeps the order of its ranks", ranks=2, torch="2.15")
def make_ranks_fsdp2(name):
    state = dcp_cases.trained(dcp_cases.fsdp2(model.seeded(model.Net), dcp_cases.mesh(2)))
    return rank_cases.save_ranks(rank_cases.objects_of({**state, "epoch": 1}), name)


@case("torch_ranks_v2_15_fsdp1_sharded", rank_cases.read_ranks, "one file per rank: ShardedTensors of FSDP1, whose properties have strides", ranks=2, torch="2.15")
def make_ranks_fsdp1_sharded(name):
    return rank_cases.save_ranks(rank_cases.objects_of({"model": fsdp1_sharded()["model"]}), name)


def save_with_2_3(state, name):
    """The values are taken before the save, by hand where dcp_cases.save needs a newer DTensor module."""
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    flat, _ = flatten_state_dict(state)
    known = {fqn: golden.tensor_entry(model.joined(v) if hasattr(v, "local_shards") else v) for fqn, v in flat.items() if model.is_tensor(v)}
    dcp.save(state, checkpoint_id=name)
    return known


@case("dcp_v2_3_layouts", read_dcp, "contiguous and transposed tensors, and objects: metadata without StorageMeta", torch="2.3")
def make_layouts_of_2_3(name):
    return save_with_2_3({"layouts": layouts(), "step": 5, "note": "no strides"}, name)


@case("dcp_v2_3_fsdp1_sharded", read_dcp, "FSDP1 SHARDED_STATE_DICT (ShardedTensors) with its optimizer state", ranks=2, torch="2.3")
def make_fsdp1_sharded_of_2_3(name):
    return save_with_2_3(fsdp1_sharded(), name)


def split(value, path=()):
    """(path, leaf) pairs as PyTorch 2.4 and newer flatten: every dict is entered, a list where a tensor or dict is below it."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) and any(map(has_parts, value)) else None
    if children is None:
        return [(path, value)]
    return [pair for k, v in children for pair in split(v, path + (str(k) if isinstance(value, dict) else k,))]


def has_parts(value):
    return isinstance(value, (torch.Tensor, dict)) or isinstance(value, list) and any(map(has_parts, value))


def read_train_state_of_2_3(case):
    """As torch_cases.reader, with the names that newer versions and Tessera give what is in dicts without tensors."""
    from torch.distributed.checkpoint import _nested_dict
    pairs = lambda state: [(".".join(map(str, path)), path, value) for path, value in split(state)]
    _nested_dict.flatten_state_dict = lambda state: ({n: v for n, _, v in pairs(state)}, {n: p for n, p, _ in pairs(state)})
    return torch_cases.reader("train.pt")(case)


@case("torch_v2_3_train_state", read_train_state_of_2_3, "a training script's dict with AdamW state, and views with strides", torch="2.3")
def make_train_state_of_2_3(name):
    torch_cases.save({**torch_cases.train_state(), "layouts": layouts()}, name, "train.pt")
