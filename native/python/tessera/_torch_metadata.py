"""What StorageReader.read_metadata returns. Of a DCP it is the content of `.metadata`, as PyTorch's FileSystemReader returns it. Every
other checkpoint is described by its entries: each tensor is announced as one chunk, wherever its elements are stored.

`.metadata` is a pickle. The library has read it before, within its limits. Here it is unpickled with a fixed list of names: PyTorch's
own data classes and plain values. Nothing else is imported, and nothing that the file names is called."""
from __future__ import annotations

import collections
import enum
import io
import math
import pathlib
import pickle

import torch
from torch.distributed.checkpoint import metadata as classes
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, ChunkStorageMetadata, Metadata, TensorProperties, TensorStorageMetadata

from ._choices import Layers
from ._library import warn
from ._save_place import MARKER, RANK_MARKER
from ._slots import dtype_of
from ._torch_versions import MEM_FORMAT_ENCODING, StorageInfo, StoragePrefix, TensorProperties as ShardedTensorProperties, meta_fields


_RECORDS = {**{name: getattr(classes, name) for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties", "ChunkStorageMetadata",
                                    "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING") if hasattr(classes, name)},
            "_StorageInfo": StorageInfo, "_StoragePrefix": StoragePrefix}
# The first releases described tensors with the classes of ShardedTensor.
_FIRST_MODULE = "torch.distributed._shard.sharded_tensor.metadata"
_FIRST_RECORDS = {of.__name__: of for of in (ShardedTensorProperties, MEM_FORMAT_ENCODING)}
_RECORD_MODULES = {"torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem",
                   "torch.distributed._shard.checkpoint.metadata", "torch.distributed._shard.checkpoint.filesystem"}


def _member(of, name):
    """Python 3.11 pickles a member of an enum as getattr(class, name)."""
    if not (isinstance(of, type) and issubclass(of, enum.Enum)):
        raise pickle.UnpicklingError("getattr of something other than an enum")
    return of.__members__[name]


_LAYOUTS = {str(layout): layout for layout in vars(torch).values() if isinstance(layout, torch.layout)}
# Functions are wrapped, because a pickle could set attributes of the originals.
_VALUES = {("torch", "Size"): torch.Size,
           ("torch.serialization", "_get_layout"): lambda name: _LAYOUTS[name],
           ("builtins", "getattr"): lambda of, name: _member(of, name),
           ("collections", "OrderedDict"): collections.OrderedDict,
           **{(module, name): lambda *parts, name=name: getattr(pathlib, name)(*parts)
              for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")}}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if module in _RECORD_MODULES and name in _RECORDS:
            return _RECORDS[name]
        if module == _FIRST_MODULE and name in _FIRST_RECORDS:
            return _FIRST_RECORDS[name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) in _VALUES:
            return _VALUES[module, name]
        raise pickle.UnpicklingError(f"{module}.{name} is not one of the names of a Metadata")


def _unpickled(data):
    """Returns a Metadata, or None if the pickle contains something else, such as the additions of another program."""
    before = {record: dict(vars(record)) for record in (*_RECORDS.values(), *_FIRST_RECORDS.values())}
    try:
        found = _Unpickler(io.BytesIO(data)).load()
    except Exception:  # whatever a pickle can raise
        found = None
    for record, attributes in before.items():
        now = dict(vars(record))
        if now.keys() != attributes.keys() or any(now[name] is not value for name, value in attributes.items()):
            found = None  # the pickle has set attributes of a class
            for name in now.keys() - attributes.keys():
                delattr(record, name)
            for name in (name for name, value in attributes.items() if now.get(name) is not value):
                setattr(record, name, attributes[name])
    return found if isinstance(found, Metadata) and isinstance(found.state_dict_metadata, dict) else None


def marker_of(checkpoint):
    """Returns the name of the metadata file of a DCP; None for other formats."""
    names = checkpoint._session.own_files() if checkpoint.format == "dcp" else []
    return MARKER if MARKER in names else next(filter(RANK_MARKER.fullmatch, names), None)


def has_box(entry, offsets, sizes):
    """Whether chunks of the entry have all elements of a box."""
    if entry._checkpoint._session.is_tiled(entry._index):
        return True
    ends, found = tuple(map(sum, zip(offsets, sizes))), 0
    for at, size in entry.chunks:
        common = (min(end, a + s) - max(begin, a) for begin, end, a, s in zip(offsets, ends, at, size))
        found += math.prod(max(0, n) for n in common)
    return found >= math.prod(sizes)


def warn_of_copies(entries):
    """Warns of copies. entries: those of other ranks that this rank reads, because it did not save them completely itself."""
    names = list(dict.fromkeys(entry.name for entry in entries if entry._has_copies))
    if names:
        warn(f"{entries[0]._checkpoint.path}: this rank has not saved all of {', '.join(map(repr, names[:5]))}{', …' if len(names) > 5 else ''}; several "
             "other ranks have, and the copy of the lowest of them is used")


def _whole(entry):
    size = torch.Size(entry.shape)
    properties = TensorProperties(dtype=dtype_of(entry), requires_grad=entry.requires_grad)
    return TensorStorageMetadata(properties, size, [ChunkStorageMetadata(torch.Size([0] * len(size)), size)])


def is_quantized(entry):
    """Whether an entry is one of PyTorch's quantized tensors, which have scales."""
    return entry.type == "torch.quantized"


def _described(entry, stored=None):
    """stored: what the metadata file has for the entry. It is kept unless PyTorch would load something else than the entry from it: it
    leaves elements that no chunk has as they were."""
    if is_quantized(entry) and isinstance(stored, TensorStorageMetadata):
        return stored
    if entry.kind != "tensor" or dtype_of(entry) is None:
        return stored if isinstance(stored, BytesStorageMetadata) else BytesStorageMetadata()
    if not isinstance(stored, TensorStorageMetadata) or not entry._checkpoint._session.is_tiled(entry._index):
        return _whole(entry)
    stored.properties.requires_grad = entry.requires_grad  # not of integers, for which PyTorch could not set it
    return stored


def has_extension(info):
    """Whether an item is stored through extensions that the library cannot undo. info: PyTorch's _StorageInfo."""
    return any(not name.startswith("stream.zstd") for name in getattr(info, "transform_descriptors", None) or ())


def metadata_of(checkpoint, has_extensions=False):
    """Returns a Metadata that describes an opened checkpoint. has_extensions: items whose extensions the library cannot undo are read by
    PyTorch, so they are what the checkpoint says that they are."""
    marker = marker_of(checkpoint)
    found = _unpickled(checkpoint._session.file(marker)) if marker and checkpoint._layers == Layers() else None
    if found is None or found.state_dict_metadata.keys() != checkpoint.keys():
        return Metadata({name: _described(entry) for name, entry in checkpoint.items()}, storage_data={},
                        planner_data={name: entry.path or (name,) for name, entry in checkpoint.items()},
                        **meta_fields(checkpoint_id=checkpoint.path))
    stored = found.state_dict_metadata
    kept = {index.fqn for index, info in (found.storage_data or {}).items() if has_extension(info)} if has_extensions else ()
    found.state_dict_metadata = {name: stored[name] if name in kept else _described(checkpoint[name], stored[name]) for name in stored}
    return found
