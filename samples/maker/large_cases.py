"""Samples for benchmarks, made on demand: too big to commit."""
import json
import os
import pickle

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from . import dcp_cases, safetensors_cases, torch_cases
from .registry import case

TENSORS, RANKS = 1000, 1000  # of large_metadata: a chunk for each pair


def sharded(count, rows, columns, dim, dtype=torch.float32):
    """A state dict of DTensors sharded on `dim` over all ranks, each rank filling only its own part."""
    from torch.distributed.tensor import DTensor, Shard
    mesh = dcp_cases.mesh(dist.get_world_size())
    generator = torch.Generator().manual_seed(dist.get_rank())
    shape = [rows, columns]
    shape[dim] //= dist.get_world_size()
    return {f"layers.{i}.weight": DTensor.from_local(torch.randn(shape, generator=generator).to(dtype), mesh, [Shard(dim)]) for i in range(count)}


@case("large_dcp_rows", dcp_cases.read_dcp, "about 300 MB of float32, shard(0) on 4 ranks", ranks=4, set="large")
def make_rows(name):
    dcp.save({"model": sharded(18, 2048, 2048, 0)}, checkpoint_id=name)


@case("large_dcp_columns", dcp_cases.read_dcp, "about 300 MB of bfloat16, shard(1) on 8 ranks: many short runs of bytes", ranks=8, set="large")
def make_columns(name):
    dcp.save({"model": sharded(18, 4096, 2048, 1, torch.bfloat16)}, checkpoint_id=name)


@case("large_torch", torch_cases.reader("model.pt"), "about 300 MB in one torch.save file", set="large")
def make_torch(name):
    generator = torch.Generator().manual_seed(0)
    torch.save({f"layers.{i}.weight": torch.randn(2048, 2048, generator=generator) for i in range(18)}, os.path.join(name, "model.pt"))


def read_large_metadata(case):
    """Too large for a golden with every chunk: the counts, and one chunk of each end."""
    metadata = dcp.FileSystemReader(case.name).read_metadata()
    chunks = [len(m.chunks) for m in metadata.state_dict_metadata.values()]
    last = metadata.state_dict_metadata[f"layers.{TENSORS - 1}.weight"]
    return {"format": "dcp", "path": case.name, "problems": ["there are no data files: only the metadata was made"],
            "counts": {"tensors": len(chunks), "chunks": sum(chunks), "storage_data": len(metadata.storage_data), "files": RANKS},
            "last": {"shape": list(last.size), "offsets": list(last.chunks[-1].offsets), "sizes": list(last.chunks[-1].sizes)}}


@case("large_metadata", read_large_metadata, "a .metadata of 1,000,000 chunks (1,000 tensors on 1,000 ranks) without data files", set="large")
def make_metadata(name):
    from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION
    from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
    tensors, storage, ends = {}, {}, [0] * RANKS
    for t in range(TENSORS):
        add_tensor(f"layers.{t}.weight", tensors, storage, ends)
    metadata = Metadata(tensors, {fqn: (fqn,) for fqn in tensors}, storage, StorageMeta(name, "0" * 8), version=CURRENT_DCP_VERSION)
    with open(os.path.join(name, ".metadata"), "wb") as f:
        pickle.dump(metadata, f)


def add_tensor(fqn, tensors, storage, ends):
    """Two rows a rank; `ends` is where each rank's file ends so far."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties, TensorStorageMetadata
    chunks = [ChunkStorageMetadata(torch.Size([2 * r, 0]), torch.Size([2, 64])) for r in range(RANKS)]
    tensors[fqn] = TensorStorageMetadata(TensorProperties(dtype=torch.bfloat16), torch.Size([2 * RANKS, 64]), chunks)
    for r, chunk in enumerate(chunks):
        storage[MetadataIndex(fqn, chunk.offsets, r)] = _StorageInfo(f"__{r}_0.distcp", ends[r], 1577)
        ends[r] += 1577


def read_many_names(case):
    path = os.path.join(case.name, "model.safetensors")
    import safetensors
    with safetensors.safe_open(path, "pt") as f:
        count = len(f.keys())
    return {"format": "safetensors", "path": path, "counts": {"tensors": count}}


@case("large_safetensors_names", read_many_names, "a safetensors header of 1,000,000 tensors of one byte", set="large")
def make_many_names(name):
    header = {f"layers.{i}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(1_000_000)}
    text = json.dumps(header, separators=(",", ":")).encode()
    safetensors_cases.write_file(os.path.join(name, "model.safetensors"), text, bytes(i % 251 for i in range(len(header))))
