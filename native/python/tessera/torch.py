"""Load tensors, fill a state dict, and read and write checkpoints with torch.distributed.checkpoint. The StorageReader accepts
every checkpoint that Tessera reads.

    dcp.load(state_dict, storage_reader=tessera.torch.StorageReader("model.safetensors"))

Bytes are read directly into the planner's tensors if these are contiguous, on the CPU and of the stored dtype; several tensors, and
several parts of large ones, are read at the same time. Other tensors are filled through reused memory (_slots.py). Every tensor is
announced as one chunk, so planning takes the same time for any number of shards."""
from __future__ import annotations

import io
import uuid
from typing import Sequence

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, ChunkStorageMetadata, Metadata, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType
from torch.distributed.checkpoint.storage import StorageReader as _StorageReader
from torch.futures import Future

from ._checkpoint import Checkpoint
from ._choices import Document, StrPath
from ._library import FOR_VALUES, TesseraError
from ._slots import dtype_of, read_tensors
from ._torch_load import load, load_into
from ._torch_save import StorageWriter
from ._torch_versions import meta_fields

__all__ = ["StorageReader", "StorageWriter", "load", "load_into"]


class StorageReader(_StorageReader):
    """A StorageReader for torch.distributed.checkpoint.load. path, threads, part, step, also, shards: as for tessera.open.

    Values of Python's, numpy's and PyTorch's own types are loaded with their types. They are pickled again, so nothing in the
    checkpoint's pickles is executed. Objects that name other classes or functions are a TesseraError, unless unsafe_objects is set:
    then PyTorch imports and runs what they name."""

    def __init__(self, path: StrPath, threads: int = 0, unsafe_objects: bool = False, *, part: str | None = None,
                 step: str | int | None = None, also: StrPath | Sequence[StrPath] = (), shards: Document | None = None) -> None:
        super().__init__()
        self.path, self.threads, self.unsafe_objects = path, threads, unsafe_objects
        self._choices = {"part": part, "step": step, "also": also, "shards": shards}
        self._checkpoint: Checkpoint | None = None

    def __getstate__(self):
        return {**self.__dict__, "_checkpoint": None}  # the copy opens it again

    def reset(self, checkpoint_id=None):
        if checkpoint_id:
            self.path = checkpoint_id
        self._checkpoint = None

    @property
    def checkpoint_id(self):
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        try:
            Checkpoint(checkpoint_id, _purpose=FOR_VALUES).close()
        except (TesseraError, OSError):
            return False
        return True

    def _open(self):
        if self._checkpoint is None:
            self._checkpoint = Checkpoint(self.path, self.threads, **self._choices, _purpose=FOR_VALUES)
        return self._checkpoint

    def read_metadata(self, *args, **kwargs):
        state, paths = {}, {}
        for name, entry in self._open().items():
            if entry.kind == "tensor" and dtype_of(entry):
                size = torch.Size(entry.shape)
                properties = TensorProperties(dtype=dtype_of(entry), requires_grad=entry.requires_grad)
                state[name] = TensorStorageMetadata(properties, size, [ChunkStorageMetadata(torch.Size([0] * len(size)), size)])
            else:
                state[name] = BytesStorageMetadata()
            paths[name] = entry.path or (name,)
        return Metadata(state, planner_data=paths, storage_data={}, **meta_fields(checkpoint_id=self.path, load_id=str(uuid.uuid4())))

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        self._open()

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return plans

    def _load_object(self, item, planner):
        entry = self._checkpoint[item.storage_index.fqn]
        if not (self.unsafe_objects or entry.is_data()):
            raise TesseraError(f"{self.path}: '{entry.name}' is not data but {entry.type}; "
                        "tessera.torch.StorageReader(…, unsafe_objects=True) lets PyTorch import and run what objects name", "unsupported")
        planner.load_bytes(item, io.BytesIO(entry.save()))

    def read_data(self, plan, planner):
        targets = []
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                self._load_object(item, planner)
                continue
            entry = self._checkpoint[item.storage_index.fqn]
            target = planner.resolve_tensor(item).detach()
            if target.size() != torch.Size(item.lengths):
                raise TesseraError(f"{self.path}: '{entry.name}' is to be read as {list(item.lengths)} into a tensor of {list(target.size())}", "usage")
            targets.append((item, entry, target))
        read_tensors(self._checkpoint._session, [(entry, item.storage_offsets, target) for item, entry, target in targets])
        self._checkpoint.unchanged()
        for item, _, target in targets:
            planner.commit_tensor(item, target)
        done = Future()
        done.set_result(None)
        return done
