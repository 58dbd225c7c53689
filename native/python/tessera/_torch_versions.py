"""What only some of the supported versions of PyTorch have, and everything that PyTorch has only in modules or under names that begin with
an underscore: the classes of ShardedTensor, which files are pickled with, and two with which it stages and transforms. Whether a version has
them is known here alone, and an error names the version."""
from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import save


def _needed(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise ImportError(f"tessera.torch needs {module}.{name}, which PyTorch 2.3 to 2.15 have and PyTorch {torch.__version__} does not have") from None


def _optional(module: str, name: str) -> Any:
    """Returns None where a version does not have it."""
    try:
        return _needed(module, name)
    except ImportError:
        return None


_FILES = "torch.distributed.checkpoint.filesystem"

# In all of them. The pickles of `.metadata` have the first, and plans that planners keep the second.
StorageInfo = _needed(_FILES, "_StorageInfo")
StoragePrefix = _needed(_FILES, "_StoragePrefix")
Shard, ShardedTensor, ShardedTensorMetadata, TensorProperties = (
    _needed("torch.distributed._shard.sharded_tensor", name) for name in ("Shard", "ShardedTensor", "ShardedTensorMetadata", "TensorProperties"))
ShardMetadata = _needed("torch.distributed._shard.sharding_spec", "ShardMetadata")
MEM_FORMAT_ENCODING = _needed("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING")

# From PyTorch 2.5 on in a public module.
DTensor = _optional("torch.distributed.tensor", "DTensor") or _needed("torch.distributed._tensor", "DTensor")
# From PyTorch 2.4 on. Without a stager, async_save stages itself.
StorageMeta = _optional("torch.distributed.checkpoint.metadata", "StorageMeta")
BlockingAsyncStager = _optional("torch.distributed.checkpoint.staging", "BlockingAsyncStager")
create_cpu_state_dict: Any = _needed("torch.distributed._state_dict_utils", "_create_cpu_state_dict") if BlockingAsyncStager else None
# From PyTorch 2.7 on.
StreamTransforms = _optional(_FILES, "_StorageWriterTransforms")

# Whether dcp.save can write metadata per rank, and dcp.load falls back on it: it asks a reader again, with the rank.
ASKS_FOR_RANK = "use_collectives" in inspect.signature(save).parameters


def local_tensor(dtensor):
    """Returns what a DTensor has on this rank, of whatever class it is. to_local() of PyTorch 2.3 makes a view of it, which a ShardedTensor does
    not have."""
    return dtensor._local_tensor


def placed_rank(group, rank):
    """Returns the number by which placements of shards name a rank of a group: its global rank, and before PyTorch 2.4 its rank in the group."""
    return dist.get_global_rank(group, rank) if StorageMeta else rank


def meta_fields(**ids):
    """Returns the field of PyTorch's Metadata that identifies the save or load, by its name; empty if Metadata has no such field."""
    return {"storage_meta": StorageMeta(**ids)} if StorageMeta else {}
