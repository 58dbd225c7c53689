"""Checkpoints of many parts, written by PyTorch. Usage: make_remote_checkpoints.py DIRECTORY"""
import pathlib
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemWriter

FILES = 1024


def records(path):
    """389 records: 383 storages, the pickle, and five that torch.save adds."""
    torch.save({f"layers.{i}.w": torch.full((100, 64), i + 0.5) for i in range(383)}, path)


def files(path):
    """A file for each tensor, as jobs with many ranks write them."""
    writer = FileSystemWriter(path, single_file_per_rank=False)
    dcp.save({f"layers.{i}.w": torch.full((8,), i + 0.25) for i in range(FILES)}, storage_writer=writer, no_dist=True)


def objects(path, directory):
    """Objects next to tensors, so large that a request does not fetch all of the file."""
    state = {"weights": {f"w{i}": torch.full((300, 300), i + 0.5) for i in range(9)}, "step": 1001, "note": "kept"}
    torch.save(state, path)
    dcp.save(state, checkpoint_id=directory, no_dist=True)


directory = pathlib.Path(sys.argv[1])
records(directory / "records.pt")
files(directory / "dcp_1024")
objects(directory / "objects.pt", directory / "dcp_objects")
