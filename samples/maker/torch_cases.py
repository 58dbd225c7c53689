"""Samples that torch.save writes, as one file or as several that make one checkpoint, and what torch.load reads from them."""
import json
import os
import sys

import torch
from torch import nn

from . import golden, model, values
from .registry import case


def reader(file, form="torch-zip"):
    """The golden of `<name>/<file>`, from torch.load and the flattening that PyTorch's own checkpoints use."""
    def read(case):
        path = os.path.join(case.name, file)
        loaded = torch.load(path, weights_only=False, map_location="cpu")
        return {"format": form, "path": path, "weights_only": verdict(path), **flattened(loaded)}
    return read


def verdict(path):
    """The outcome of torch.load with weights_only=True, its default: "ok", or the type of the error."""
    try:
        torch.load(path, weights_only=True, map_location="cpu")
        return "ok"
    except Exception as e:
        return type(e).__name__


def flattened(loaded):
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    if isinstance(loaded, nn.Module):
        loaded = dict(loaded.state_dict())
    flat, paths = flatten_state_dict(loaded) if isinstance(loaded, dict) else ({"": loaded}, {"": ()})
    out = golden.sort_out(flat)
    for fqn, entry in out["entries"].items():
        entry.update(stride=list(flat[fqn].stride()), storage_offset=flat[fqn].storage_offset())
    return {**out, "paths": {fqn: list(path) for fqn, path in paths.items()}, "shared_storage": shared_storage({k: flat[k] for k in out["entries"]})}


def shared_storage(tensors):
    """Groups of names whose tensors share a storage."""
    groups = {}
    for fqn, tensor in tensors.items():
        if tensor.untyped_storage().nbytes():
            groups.setdefault(tensor.untyped_storage().data_ptr(), []).append(fqn)
    return [g for g in groups.values() if len(g) > 1]


def save(value, name, file, **kwargs):
    torch.save(value, os.path.join(name, file), **kwargs)


def train_state():
    module = model.seeded(model.TiedNet)
    optimizer = torch.optim.AdamW([{"params": module.bn.parameters(), "weight_decay": 0.0}, {"params": [module.emb.weight]}], lr=0.01)
    model.train(module, optimizer)
    return {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": values.scheduler_state()["sequential"], "epoch": 3,
            "rng": torch.get_rng_state(), "args": {"lr": 0.01, "name": "run 1", "betas": (0.9, 0.95), "layers": [1, 2], "resume": None}}


@case("torch_plain", reader("model.pt"), "a module's state dict: OrderedDict with `_metadata`, tied weights, batch norm buffers")
def make_plain(name):
    save(model.seeded(model.TiedNet).state_dict(), name, "model.pt")


@case("torch_train_state", reader("train.pt"), "a training script's dict: model, AdamW state with integer keys and two groups, scheduler, RNG state, arguments")
def make_train_state(name):
    save(train_state(), name, "train.pt")


@case("torch_views", reader("views.pt"), "views on shared storages, strides, stride 0, conjugate and negative bits")
def make_views(name):
    save(values.views(), name, "views.pt")


@case("torch_sizes", reader("sizes.pt"), "0-d, zero-size and many-dimensional tensors, NaN and infinities")
def make_sizes(name):
    save(values.sizes(), name, "sizes.pt")


@case("torch_dtypes", reader("dtypes.pt"), "every dtype that torch.save can write, including bits*")
def make_dtypes(name):
    save(values.every_dtype(), name, "dtypes.pt")


@case("torch_objects", reader("objects.pt"), "plain objects: numbers, strings, bytes, nested containers, integer keys")
def make_objects(name):
    save({**values.plain_objects(), "rng": values.rng_states()}, name, "objects.pt")


@case("torch_classes", reader("classes.pt"), "objects of classes: sets, namedtuples, enums, a user-defined class, numpy arrays")
def make_classes(name):
    save(values.class_objects(), name, "classes.pt")


@case("torch_legacy", reader("train.pt", "torch-legacy"), "a training script's dict in the legacy format (`_use_new_zipfile_serialization=False`)")
def make_legacy(name):
    save(train_state(), name, "train.pt", _use_new_zipfile_serialization=False)


@case("torch_legacy_views", reader("views.pt", "torch-legacy"), "the legacy format with views, strides and shared storages")
def make_legacy_views(name):
    views = {k: v for k, v in values.views().items() if k != "same_bytes_as_float8"}
    save({**views, **values.sizes()}, name, "views.pt", _use_new_zipfile_serialization=False)


@case("torch_legacy_dtypes", reader("dtypes.pt", "torch-legacy"), "the legacy format with every dtype that PyTorch can read from it")
def make_legacy_dtypes(name):
    save(typed(values.every_dtype()), name, "dtypes.pt", _use_new_zipfile_serialization=False)


def read_legacy_untyped(case):
    path = os.path.join(case.name, "dtypes.pt")
    try:
        torch.load(path)
        error = "ok"
    except Exception as e:
        error = f"{type(e).__name__}: {e}"
    written = {k: golden.tensor_entry(v) for k, v in untyped(values.every_dtype()).items()}
    return {"format": "torch-legacy", "path": path, "note": "PyTorch writes this and cannot read it back", "torch": {"load": error}, "written": written}


@case("torch_legacy_untyped", read_legacy_untyped, "the legacy format with dtypes on untyped storages, which PyTorch writes but cannot read")
def make_legacy_untyped(name):
    save(untyped(values.every_dtype()), name, "dtypes.pt", _use_new_zipfile_serialization=False)


def typed(tensors):
    """Those that torch.save writes on typed storages; the dtypes that came after these use untyped ones."""
    return {k: v for k, v in tensors.items() if v.dtype in torch.storage._dtype_to_storage_type_map()}


def save_as_big_endian(tensors, name, file):
    for tensor in tensors.values():
        tensor.untyped_storage().byteswap(tensor.dtype)
    sys.byteorder = "big"  # torch.save writes this name into the file; the bytes are those of such a machine already
    try:
        save(tensors, name, file)
    finally:
        sys.byteorder = "little"


@case("torch_big_endian", reader("model.pt"), "`byteorder` is big: what torch.save writes on a big-endian machine")
def make_big_endian(name):
    tensors = typed(values.every_dtype())
    known = model.known(tensors)
    save_as_big_endian(tensors, name, "model.pt")
    return known


def read_big_endian_untyped(case):
    written = {k: golden.tensor_entry(v) for k, v in untyped(values.every_dtype()).items()}
    note = "PyTorch does not swap the bytes of untyped storages when it loads: `entries` is what it reads, `written` what such a machine had in memory"
    return {**reader("model.pt")(case), "note": note, "written": written}


def untyped(tensors):
    kept = ("float8_e4m3fn", "uint16", "uint32", "uint64", "complex32")
    return {k: v for k, v in tensors.items() if k in kept}


@case("torch_big_endian_untyped", read_big_endian_untyped, "big-endian, with dtypes on untyped storages, whose bytes PyTorch does not swap when it reads them")
def make_big_endian_untyped(name):
    save_as_big_endian(untyped(values.every_dtype()), name, "model.pt")


@case("torch_crc_off", reader("model.pt"), "saved with set_crc32_options(False): every stored CRC is 0")
def make_crc_off(name):
    torch.serialization.set_crc32_options(False)
    save(model.seeded(model.TiedNet).state_dict(), name, "model.pt")


@case("torch_protocol4", reader("train.pt"), "pickle_protocol=4: frames, memoize, short strings")
def make_protocol4(name):
    save(train_state(), name, "train.pt", pickle_protocol=4)


@case("torch_no_byteorder", reader("model.pt"), "no `byteorder` member, as before PyTorch 2.1")
def make_no_byteorder(name):
    save(model.seeded(model.TiedNet).state_dict(), name, "model.pt", _disable_byteorder_record=True)


@case("torch_alignment", reader("model.pt"), "storages aligned to 256 bytes (config.save.storage_alignment)")
def make_alignment(name):
    from torch.utils.serialization import config
    config.save.storage_alignment = 256
    save(model.seeded(model.TiedNet).state_dict(), name, "model.pt")


@case("torch_module", reader("module.pt"), "a whole pickled nn.Module; the golden file has the names of its state_dict()")
def make_module(name):
    save(model.seeded(model.TiedNet), name, "module.pt")


@case("torch_root_tensor", reader("tensor.pt"), "the file is a single tensor, whose name is empty")
def make_root_tensor(name):
    save(torch.arange(6).reshape(2, 3), name, "tensor.pt")


class Tagged(torch.Tensor):
    """A tensor subclass that keeps its bytes in itself."""


@case("torch_subclasses", reader("subclasses.pt"), "parameters, buffers, attributes on tensors and parameters, a plain tensor subclass")
def make_subclasses(name):
    with_attribute, parameter = torch.arange(3.0), nn.Parameter(torch.arange(4.0))
    with_attribute.note, parameter.note = "kept", "kept too"
    save({"parameter": nn.Parameter(torch.ones(2), requires_grad=False), "buffer": nn.Buffer(torch.ones(3)), "with_attribute": with_attribute,
          "parameter_with_attribute": parameter, "subclass": torch.arange(5.0).as_subclass(Tagged), "needs_grad": torch.ones(2, requires_grad=True)}, name, "subclasses.pt")


@case("torch_quantized", reader("quantized.pt"), "tensors quantized per tensor and per channel, next to a plain one")
def make_quantized(name):
    weight = torch.linspace(-1, 1, 12).reshape(3, 4)
    by_channel = torch.quantize_per_channel(weight, torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 2]), 0, torch.qint8)
    save({"plain": weight, "by_tensor": torch.quantize_per_tensor(weight, 0.1, 3, torch.quint8), "by_channel": by_channel,
          "int32": torch.quantize_per_tensor(weight, 0.1, 0, torch.qint32)}, name, "quantized.pt")


@case("torch_sparse", reader("sparse.pt"), "sparse tensors (COO, CSR, CSC, BSR) next to a plain one")
def make_sparse(name):
    dense = torch.eye(4)
    save({"plain": dense, "coo": dense.to_sparse(), "csr": dense.to_sparse_csr(), "csc": dense.to_sparse_csc(), "bsr": dense.to_sparse_bsr((2, 2))}, name, "sparse.pt")


@case("torch_nested", reader("nested.pt"), "nested tensors, strided and jagged, next to a plain one")
def make_nested(name):
    parts = [torch.ones(2, 3), torch.zeros(1, 3)]
    save({"plain": parts[0], "strided": torch.nested.nested_tensor(parts), "jagged": torch.nested.nested_tensor(parts, layout=torch.jagged)}, name, "nested.pt")


@case("torch_storages", reader("storages.pt"), "bare storages and a tensor on the meta device, next to a plain tensor on the same storage")
def make_storages(name):
    plain = torch.arange(4, dtype=torch.uint8)
    save({"plain": plain, "untyped": plain.untyped_storage(), "typed": torch.arange(3, dtype=torch.int16).storage(), "meta": torch.empty(2, 3, device="meta")}, name, "storages.pt")


def read_bin_index(case):
    path = os.path.join(case.name, "pytorch_model.bin.index.json")
    with open(path) as f:
        index = json.load(f)
    shards = {file: torch.load(os.path.join(case.name, file), weights_only=True) for file in sorted(set(index["weight_map"].values()))}
    flat = {fqn: shards[file][fqn] for fqn, file in index["weight_map"].items()}
    return {"format": "torch-index", "path": path, **golden.sort_out(flat), "files": index["weight_map"]}


@case("torch_bin_index", read_bin_index, "pytorch_model.bin.index.json and its two shards")
def make_bin_index(name):
    state = dict(model.seeded(model.Net).state_dict())
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    weight_map = {fqn: names[i % 2] for i, fqn in enumerate(state)}
    for file in names:
        save({fqn: state[fqn] for fqn in state if weight_map[fqn] == file}, name, file)
    total = sum(t.nbytes for t in state.values())
    with open(os.path.join(name, "pytorch_model.bin.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f, indent=2)
