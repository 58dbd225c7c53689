"""Samples that torch.distributed.checkpoint writes."""
import io
import json
import os

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from . import golden, model, values
from .registry import case


def read_dcp(case):
    """The golden file of a directory with `.metadata`: every tensor loaded whole in one process, every chunk as in the metadata."""
    metadata = dcp.FileSystemReader(case.name).read_metadata()
    flat = load_flat(metadata, dcp.FileSystemReader(case.name))
    return expect_of(case, "dcp", metadata, flat)


def load_flat(metadata, reader):
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
    flat = {fqn: torch.empty(m.size, dtype=m.properties.dtype) if hasattr(m, "size") else None for fqn, m in metadata.state_dict_metadata.items()}
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    _load_state_dict(flat, storage_reader=reader, planner=planner, no_dist=True)
    return flat


def expect_of(case, form, metadata, flat):
    expect = {"format": form, "path": case.name, **golden.sort_out(flat)}
    for fqn, entry in expect["entries"].items():
        chunks = metadata.state_dict_metadata[fqn].chunks
        entry["chunks"] = [{"offsets": list(c.offsets), "sizes": list(c.sizes)} for c in chunks]
    expect["paths"] = {fqn: list(path) for fqn, path in (metadata.planner_data or {}).items()}
    return expect


def training_state(module, optimizer, flatten=False):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
    options = StateDictOptions(flatten_optimizer_state_dict=flatten)
    model_state, optimizer_state = get_state_dict(module, optimizer, options=options)
    return {"model": model_state, "optim": optimizer_state}


def mesh(*shape, names=None):
    from torch.distributed.device_mesh import init_device_mesh
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def fsdp2(module, on):
    from torch.distributed.fsdp import fully_shard
    fully_shard(module.block, mesh=on)
    fully_shard(module, mesh=on)
    return module


def tensor_parallel(module, on):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    plan = {"block.up": ColwiseParallel(), "block.down": RowwiseParallel(), "few": ColwiseParallel()}
    return parallelize_module(module, on, plan)


def save(state, name, **kwargs):
    """Saves the state, and returns the values that went into it."""
    known = model.known(state)
    dcp.save(state, checkpoint_id=name, **kwargs)
    return known


def trained(module, flatten=False, **kwargs):
    optimizer = model.adamw(module)
    model.train(module, optimizer, **kwargs)
    return training_state(module, optimizer, flatten)


@case("dcp_fsdp2", read_dcp, "FSDP2 on a 1-D mesh: short and empty last shards, nested AdamW state, a step counter", ranks=4)
def make_fsdp2(name):
    state = trained(fsdp2(model.seeded(model.Net), mesh(4)))
    return save({**state, "step": 2, "loss": 0.5}, name)


@case("dcp_small", read_dcp, "one linear layer on 2 ranks, and an object: the base of the broken samples", ranks=2)
def make_small(name):
    from torch.distributed.fsdp import fully_shard
    module = model.seeded(nn.Linear, 4, 6)
    fully_shard(module, mesh=mesh(2))
    return save({**module.state_dict(), "step": 7}, name)


@case("dcp_fsdp2_flat_optim", read_dcp, "FSDP2, AdamW state flattened by get_state_dict(flatten_optimizer_state_dict=True)", ranks=2)
def make_fsdp2_flat_optim(name):
    return save(trained(fsdp2(model.seeded(model.Net), mesh(2)), flatten=True), name)


@case("dcp_tp_fsdp2", read_dcp, "tensor parallel x FSDP2 on a 2 x 2 mesh: strided shards, shards on two dims", ranks=4)
def make_tp_fsdp2(name):
    both = mesh(2, 2, names=("dp", "tp"))
    module = tensor_parallel(model.seeded(model.Net, dim=8, hidden=8, rows=8, few=4), both["tp"])
    return save(trained(fsdp2(module, both["dp"]), rows=8), name)


@case("dcp_hsdp", read_dcp, "HSDP (replicate x shard) on a 2 x 2 mesh", ranks=4)
def make_hsdp(name):
    module = fsdp2(model.seeded(model.Net), mesh(2, 2, names=("replicate", "shard")))
    return save({"model": trained(module)["model"]}, name)


@case("dcp_tp", read_dcp, "plain tensor parallel: shard(0), shard(1) and replicated DTensors", ranks=2)
def make_tp(name):
    module = tensor_parallel(model.seeded(model.Net, hidden=7), mesh(2))
    return save({"model": module.state_dict()}, name)


@case("dcp_fsdp1_sharded", read_dcp, "FSDP1 SHARDED_STATE_DICT (ShardedTensors) with its optimizer state", ranks=3)
def make_fsdp1_sharded(name):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import StateDictType
    module, optimizer = trained_fsdp1()
    with FSDP.state_dict_type(module, StateDictType.SHARDED_STATE_DICT):
        return save({"model": module.state_dict(), "optim": FSDP.optim_state_dict(module, optimizer)}, name)


@case("dcp_fsdp1_local", read_dcp, "FSDP1 LOCAL_STATE_DICT: flat parameters as ShardedTensors, shorter than the padded ones in memory", ranks=4)
def make_fsdp1_local(name):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import StateDictType
    module, _ = trained_fsdp1()
    with FSDP.state_dict_type(module, StateDictType.LOCAL_STATE_DICT):
        return save({"model": module.state_dict()}, name)


def trained_fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    module = model.seeded(model.Net)
    module.block = FSDP(module.block, device_id=torch.device("cpu"), use_orig_params=False)
    module = FSDP(module, device_id=torch.device("cpu"), use_orig_params=False)
    optimizer = model.adamw(module)
    model.train(module, optimizer)
    return module, optimizer


@case("dcp_ddp", read_dcp, "DDP: everything replicated, batch norm buffers, tied weights, names with the prefix `module.`, as in state_dict()", ranks=2)
def make_ddp(name):
    module = nn.parallel.DistributedDataParallel(model.seeded(model.TiedNet))
    optimizer = model.adamw(module)
    model.train(module, optimizer)
    return save({"model": module.state_dict(), "optim": training_state(module, optimizer)["optim"]}, name)


@case("dcp_dtypes", read_dcp, "every dtype that DCP can save (all but bits*)")
def make_dtypes(name):
    return save({"dtypes": {k: v for k, v in values.every_dtype().items() if not k.startswith("bits")}}, name)


@case("dcp_objects", read_dcp, "objects of every kind: numbers, strings, containers, scheduler and RNG states, user-defined classes")
def make_objects(name):
    state = {**values.plain_objects(), "classes": values.class_objects(), "scheduler": values.scheduler_state(), "rng": values.rng_states()}
    return save(state, name)


@case("dcp_tensors", read_dcp, "views, strides, conjugate and negative bits, 0-d and zero-size tensors, parameters, tied weights")
def make_tensors(name):
    tied = model.seeded(model.TiedNet)
    return save({"views": values.views(), "sizes": values.sizes(), "tied": tied.state_dict(), "parameter": tied.bn.weight}, name)


@case("dcp_file_per_item", read_dcp, "one file for each item (single_file_per_rank=False)", ranks=2)
def make_file_per_item(name):
    state = {"model": fsdp2(model.seeded(model.Net), mesh(2)).state_dict(), "step": 3}
    return save(state, name, storage_writer=dcp.FileSystemWriter(name, single_file_per_rank=False))


@case("dcp_threads", read_dcp, "two writer threads, so two files per rank", ranks=2)
def make_threads(name):
    state = {"model": fsdp2(model.seeded(model.Net), mesh(2)).state_dict(), "step": 3}
    return save(state, name, storage_writer=dcp.FileSystemWriter(name, thread_count=2))


@case("dcp_zstd", read_dcp, "every item compressed as one zstd stream (transform `stream.zstd/1`)", ranks=2)
def make_zstd(name):
    from torch.distributed.checkpoint._extension import ZStandard
    state = {"model": fsdp2(model.seeded(model.Net), mesh(2)).state_dict(), "zeros": torch.zeros(1000), "step": 3}
    return save(state, name, storage_writer=dcp.FileSystemWriter(name, _extensions=[ZStandard()]))


@case("dcp_crc_off", read_dcp, "saved with set_crc32_options(False): every stored CRC is 0", ranks=1)
def make_crc_off(name):
    torch.serialization.set_crc32_options(False)
    return save({"model": model.seeded(model.Net).state_dict(), "step": 3}, name)


def read_uneven_strided(case):
    """PyTorch cannot load what it saved here. The golden file states what the ranks held, what the metadata claims, and what the items are."""
    metadata = dcp.FileSystemReader(case.name).read_metadata()
    with open("known.json") as f:
        held = json.load(f)
    blobs = {}
    for index, info in metadata.storage_data.items():
        chunk = metadata.state_dict_metadata[index.fqn].chunks[index.index]
        shape = list(read_blob(case.name, info).shape)
        blobs[info.relative_path] = {"offsets": list(index.offset), "sizes": list(chunk.sizes), "shape_of_blob": shape}
    problems = [f"model.0.weight: the blob in {f} is {b['shape_of_blob']}, the metadata says {b['sizes']}" for f, b in blobs.items() if b["shape_of_blob"] != b["sizes"]]
    return {"format": "dcp", "path": case.name, "problems": problems, "torch": {"load": load_error(metadata, case.name)}, "held": held, "blobs": blobs}


def load_error(metadata, directory):
    """PyTorch's error when it loads the whole checkpoint, or "ok"."""
    try:
        load_flat(metadata, dcp.FileSystemReader(directory))
    except BaseException as e:  # CheckpointException is not an Exception
        return f"{type(e).__name__}: {str(e).strip().splitlines()[-1]}"
    return "ok"


@case("dcp_uneven_strided", read_uneven_strided, "[7, 4] on a 3 x 2 mesh of FSDP2 x tensor parallel: PyTorch's own chunk offsets disagree with what the ranks hold", ranks=6)
def make_uneven_strided(name):
    module, before = uneven_strided()
    dcp.save({"model": module.state_dict()}, checkpoint_id=name)
    return before


def uneven_strided():
    """Weights that equal their own flat index, so each row shows where it belongs; and their golden before they are sharded."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    both = mesh(3, 2, names=("dp", "tp"))
    module = nn.Sequential(nn.Linear(4, 7, bias=False))
    with torch.no_grad():
        module[0].weight.copy_(torch.arange(28.0).reshape(7, 4))
    before = {"model.0.weight": golden.tensor_entry(module[0].weight)}
    parallelize_module(module, both["tp"], {"0": ColwiseParallel()})
    fully_shard(module, mesh=both["dp"])
    return module, before


def read_rank_local(case):
    """Without collectives, every rank writes its own metadata file. The checkpoint is their union."""
    flat, union = {}, None
    for rank in range(case.ranks):
        reader = dcp.FileSystemReader(case.name)
        metadata = reader.read_metadata(rank=rank)
        union = metadata if union is None else joined_metadata(union, metadata)
        read_into(flat, metadata, case.name)
    return expect_of(case, "dcp", union, flat)


def joined_metadata(union, more):
    for fqn, m in more.state_dict_metadata.items():
        if hasattr(m, "chunks") and fqn in union.state_dict_metadata:
            mine = union.state_dict_metadata[fqn].chunks
            mine += [c for c in m.chunks if c not in mine]
        else:
            union.state_dict_metadata.setdefault(fqn, m)
    union.planner_data = {**union.planner_data, **more.planner_data}
    return union


def read_into(flat, metadata, directory):
    """Reads every item of one metadata file with torch.load, from its location in the metadata."""
    for index, info in metadata.storage_data.items():
        value = read_blob(directory, info)
        if index.offset is None:
            flat[index.fqn] = value
            continue
        whole = flat.setdefault(index.fqn, torch.zeros(metadata.state_dict_metadata[index.fqn].size, dtype=value.dtype))
        whole[tuple(slice(o, o + n) for o, n in zip(index.offset, value.shape))] = value


def read_blob(directory, info):
    with open(os.path.join(directory, info.relative_path), "rb") as f:
        f.seek(info.offset)
        return torch.load(io.BytesIO(f.read(info.length)), weights_only=False)


@case("dcp_rank_local", read_rank_local, "use_collectives=False: one `__R.metadata` per rank, replicated items on every rank", ranks=2)
def make_rank_local(name):
    state = {"model": fsdp2(model.seeded(model.Net), mesh(2)).state_dict(), "step": 3}
    return save(state, name, use_collectives=False)


def read_safetensors_items(case):
    """PyTorch has no reader for these. The safetensors library reads the files; the metadata states where each chunk belongs."""
    metadata = dcp.FileSystemReader(case.name).read_metadata()
    flat = {}
    for index, info in metadata.storage_data.items():
        place_safetensors_item(flat, metadata, index, info, case.name)
    return expect_of(case, "dcp", metadata, flat)


def place_safetensors_item(flat, metadata, index, info, directory):
    from safetensors.torch import load
    if index.offset is None:
        flat[index.fqn] = read_blob(directory, info)
        return
    with open(os.path.join(directory, info.relative_path), "rb") as f:
        f.seek(info.offset)
        part = load(f.read())[index.fqn]
    whole = flat.setdefault(index.fqn, torch.zeros(metadata.state_dict_metadata[index.fqn].size, dtype=part.dtype))
    whole[tuple(slice(o, o + n) for o, n in zip(index.offset, part.shape))] = part


@case("dcp_safetensors_items", read_safetensors_items, "FileSystemWriter with SAFETENSORS serialization, and an object before the header", ranks=2)
def make_safetensors_items(name):
    from torch.distributed.checkpoint.filesystem import SerializationFormat
    state = {"model": fsdp2(model.seeded(model.Net), mesh(2)).state_dict(), "step": 3}
    return save(state, name, storage_writer=dcp.FileSystemWriter(name, serialization_format=SerializationFormat.SAFETENSORS))


def read_hf(case):
    from torch.distributed.checkpoint import HuggingFaceStorageReader
    metadata = HuggingFaceStorageReader(case.name).read_metadata()
    flat = load_flat(metadata, HuggingFaceStorageReader(case.name))
    return expect_of(case, "dcp-safetensors", metadata, flat)


@case("dcp_hf_sharded", read_hf, "HuggingFaceStorageWriter(save_distributed=True): sharded safetensors in two groups of files", ranks=4)
def make_hf_sharded(name):
    state = fsdp2(model.seeded(model.Net), mesh(4)).state_dict()
    places = {fqn: 1 + (i % 2) for i, fqn in enumerate(state)}
    return save(state, name, storage_writer=dcp.HuggingFaceStorageWriter(name, fqn_to_index_mapping=places, save_distributed=True))
