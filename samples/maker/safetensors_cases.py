"""Samples in safetensors files that PyTorch or the safetensors library wrote, and what the library reads of them."""
import hashlib
import json
import os
import struct

import safetensors
import torch
from safetensors.torch import load_file, save_file

from . import dcp_cases, golden, model, values
from .registry import case

# What a header calls the dtypes, and what PyTorch calls them; a header's shape counts elements, also where two share a byte.
NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz",
         "F8_E5M2": "float8_e5m2", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2", "I64": "int64", "I32": "int32",
         "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64"}
NOT_IN_TORCH = {"F6_E2M3": "float6_e2m3", "F6_E3M2": "float6_e3m2"}


def entries_of(path):
    """As safetensors.deserialize reads them: every dtype, those without a counterpart in PyTorch too."""
    with open(path, "rb") as f:
        tensors = safetensors.deserialize(f.read())
    found = {name: raw_entry(t) for name, t in sorted(tensors, key=lambda t: t[0])}  # the library's order is that of a hash map
    for name, tensor in torch_tensors(path).items():
        assert golden.sha256(tensor) == found[name]["sha256"], name
    return found


def raw_entry(tensor):
    name = tensor["dtype"]
    return {"dtype": NOT_IN_TORCH.get(name) or "torch." + NAMES[name], "shape": list(tensor["shape"]), "sha256": hashlib.sha256(bytes(tensor["data"])).hexdigest()}


def torch_tensors(path):
    try:
        return load_file(path)
    except (KeyError, safetensors.SafetensorError):
        return {}  # a dtype that PyTorch has no name for


def reader(file):
    def read(case):
        path = os.path.join(case.name, file)
        with safetensors.safe_open(path, "pt") as f:
            metadata = dict(sorted((f.metadata() or {}).items()))
        return {"format": "safetensors", "path": path, "entries": entries_of(path), "objects": {}, "opaque": {}, "metadata": metadata}
    return read


def read_index(case):
    path = os.path.join(case.name, "model.safetensors.index.json")
    with open(path) as f:
        index = json.load(f)
    shards = {file: entries_of(os.path.join(case.name, file)) for file in sorted(set(index["weight_map"].values()))}
    entries = {fqn: shards[file][fqn] for fqn, file in index["weight_map"].items()}
    return {"format": "safetensors-index", "path": path, "entries": entries, "objects": {}, "opaque": {}, "files": index["weight_map"]}


@case("safetensors_model", reader("model.safetensors"), "a model in one file, with metadata")
def make_model(name):
    save_file(dict(model.seeded(model.Net).state_dict()), os.path.join(name, "model.safetensors"), metadata={"format": "pt", "note": "ünïcode"})


@case("safetensors_dtypes", reader("dtypes.safetensors"), "every dtype that PyTorch and safetensors share")
def make_dtypes(name):
    tensors = {k: v for k, v in values.every_dtype().items() if k in NAMES.values()}
    save_file(tensors, os.path.join(name, "dtypes.safetensors"))


@case("safetensors_float6", reader("float6.safetensors"), "packed F4 and both F6 types; the library cannot write F6, so the file was assembled by hand, and the library reads it")
def make_float6(name):
    tensors = {"f6_e2m3": ("F6_E2M3", [4, 4]), "f6_e3m2": ("F6_E3M2", [2, 8]), "f4": ("F4", [3, 8])}
    header = {n: {"dtype": d, "shape": s, "data_offsets": [12 * i, 12 * i + 12]} for i, (n, (d, s)) in enumerate(tensors.items())}
    write_file(os.path.join(name, "float6.safetensors"), json.dumps(header).encode(), bytes(range(1, 37)))


def write_file(path, header, data):
    """A safetensors file field by field: length of the header, the header padded to 8 bytes, the data."""
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + data)


@case("safetensors_sizes", reader("sizes.safetensors"), "0-d, zero-size and many-dimensional tensors, NaN and infinities")
def make_sizes(name):
    save_file(values.sizes(), os.path.join(name, "sizes.safetensors"))


@case("safetensors_names", reader("names.safetensors"), "odd names: empty, dots, spaces, quotes, control characters, other scripts")
def make_names(name):
    names = ["", "a.b", ".a", "a..b", "with space", 'quote"back\\slash', "tab\tnewline\n", "ключ", "\U0001f600", "*[?]", "__metadata", "x" * 300]
    save_file({n: torch.tensor([float(i)]) for i, n in enumerate(names)}, os.path.join(name, "names.safetensors"))


@case("safetensors_empty", reader("empty.safetensors"), "no tensors")
def make_empty(name):
    save_file({}, os.path.join(name, "empty.safetensors"))


def save_index(name, shards):
    """Shards with the names that model hubs use, and their index."""
    weight_map = {}
    for i, tensors in enumerate(shards, start=1):
        file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        save_file(tensors, os.path.join(name, file), metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, file))
    total = sum(t.nbytes for tensors in shards for t in tensors.values())
    with open(os.path.join(name, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f, indent=2)


@case("safetensors_index", read_index, "three shards and model.safetensors.index.json")
def make_index(name):
    state = dict(model.seeded(model.Net).state_dict())
    save_index(name, [{k: state[k] for k in list(state)[i::3]} for i in range(3)])


@case("safetensors_consolidated", read_index, "HuggingFaceStorageWriter(enable_consolidation=True): no `__metadata__`, no padding of the header", ranks=2)
def make_consolidated(name):
    import torch.distributed.checkpoint as dcp
    state = {k: v for k, v in dcp_cases.fsdp2(model.seeded(model.Net), dcp_cases.mesh(2)).state_dict().items() if v.is_floating_point()}
    places = {fqn: 1 + (i % 2) for i, fqn in enumerate(state)}
    writer = dcp.HuggingFaceStorageWriter(name, fqn_to_index_mapping=places, save_distributed=True, enable_consolidation=True)
    known = model.known(state)
    dcp.save(state, storage_writer=writer)  # with a checkpoint_id the shards would lie among the consolidated files, not in `sharded/`
    return known


@case("safetensors_hf_rank0", read_index, "HuggingFaceStorageWriter without save_distributed: DCP writes a hub-style checkpoint from one process")
def make_hf_rank0(name):
    import torch.distributed.checkpoint as dcp
    state = dict(model.seeded(model.Net).state_dict())
    places = {fqn: 1 + (i % 2) for i, fqn in enumerate(state)}
    return dcp_cases.save(state, name, storage_writer=dcp.HuggingFaceStorageWriter(name, fqn_to_index_mapping=places))
