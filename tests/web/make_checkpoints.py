"""Checkpoints for the page's tests, written by PyTorch and safetensors. Usage: make_checkpoints.py DIRECTORY"""
import pathlib
import pickle
import sys

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata)

RANKS = 1024


def metadata_of_many_ranks(path):
    """The `.metadata` of a tensor with one chunk per rank, without the data files."""
    chunks = [ChunkStorageMetadata(torch.Size([r]), torch.Size([1])) for r in range(RANKS)]
    tensor = TensorStorageMetadata(TensorProperties(dtype=torch.float32), torch.Size([RANKS]), chunks)
    storage = {MetadataIndex("w", torch.Size([r]), r): _StorageInfo(f"__{r}_0.distcp", 7 * r, 1500 + r) for r in range(RANKS)}
    path.mkdir()
    with open(path / ".metadata", "wb") as file:
        pickle.dump(Metadata({"w": tensor}, planner_data={"w": ("w",)}, storage_data=storage), file)


def optimizer_without_groups(path):
    """147 parameters with three states each, as saved by a job that leaves the param groups out."""
    names = [f"layers.{i}.weight" for i in range(147)]
    model = {name: torch.full((3, 2), float(i)) for i, name in enumerate(names)}
    state = {name: {"step": torch.tensor(5.0 + i), "exp_avg": torch.full((3, 2), 0.5 + i), "exp_avg_sq": torch.full((3, 2), 0.25 + i)} for i, name in enumerate(names)}
    dcp.save({"model": model, "optim": {"state": state}}, checkpoint_id=path, no_dist=True)


def alike_layers(path):
    """Twelve layers of 60 elements, and an embedding."""
    layers = {f"layers.{i}.{name}": torch.arange(n, dtype=torch.float32) + i for i in range(12) for name, n in (("up", 40), ("down", 20))}
    save_file({**layers, "embed": torch.ones(7)}, path, metadata={"format": "pt", "trained_by": "the tests"})


def suspects(path):
    """One tensor for each kind of finding of a scan, and a normal one."""
    nan, inf = torch.arange(8.0), torch.arange(9.0)
    nan[3] = nan[5] = float("nan")
    inf[4] = -float("inf")
    save_file({"healthy": torch.arange(5.0), "has_nan": nan, "has_inf": inf, "zero": torch.zeros(6), "constant": torch.full((7,), 2.5)}, path)


def renamed(first, second):
    """The same tensors with other names. One value of one of them differs."""
    a, b = torch.arange(24.0).reshape(4, 6), torch.arange(35.0).reshape(5, 7) + 0.5
    other = b.clone()
    other[3, 2] = -1
    save_file({"encoder.a": a, "encoder.b": b, "kept": torch.ones(3)}, first)
    save_file({"body.a": a, "body.b": other, "kept": torch.ones(3)}, second)


def four_bit(first, second):
    """A linear layer as bitsandbytes stores it, in 4 bits, and the same layer in 16 bits. The names of the scales begin with
    that of the weight."""
    name = "layers.0.proj.weight"
    scales = {f"{name}.absmax": torch.arange(16.0) + 1, f"{name}.quant_map": torch.linspace(-1, 1, 16),
              f"{name}.quant_state.bitsandbytes__nf4": torch.arange(88, dtype=torch.uint8)}
    norm = {"norm.weight": torch.arange(300.0).to(torch.float16)}
    save_file({name: (torch.arange(512) % 251).to(torch.uint8).reshape(512, 1), **scales, **norm}, first)
    save_file({name: torch.arange(1024.0).reshape(32, 32).to(torch.bfloat16), **norm}, second)


directory = pathlib.Path(sys.argv[1])
metadata_of_many_ranks(directory / "many_ranks")
optimizer_without_groups(directory / "optimizer_without_groups")
alike_layers(directory / "layers.safetensors")
suspects(directory / "suspects.safetensors")
renamed(directory / "renamed_a.safetensors", directory / "renamed_b.safetensors")
four_bit(directory / "four_bit.safetensors", directory / "sixteen_bit.safetensors")
