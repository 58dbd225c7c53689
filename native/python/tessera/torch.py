"""Load tensors, fill a state dict, and read and write checkpoints with torch.distributed.checkpoint. The StorageReader accepts
every checkpoint that Tessera reads.

    dcp.load(state_dict, storage_reader=tessera.torch.StorageReader("model.safetensors"))

Bytes are read directly into the planner's tensors if these are contiguous, on the CPU and of the stored dtype; several tensors, and
several parts of large ones, are read at the same time. Other tensors are filled through reused memory (_slots.py)."""
from __future__ import annotations

import dataclasses
import io
import os
import uuid
from typing import Any, Sequence

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader as _StorageReader
from torch.futures import Future

from ._checkpoint import Checkpoint
from ._choices import Document, StrPath
from ._library import FOR_VALUES, TesseraError
from ._slots import dtype_of, read_tensors
from ._torch_load import check_cast, load, load_into
from ._torch_metadata import MARKER, has_box, has_extension, is_quantized, marker_of, metadata_of, warn_of_copies
from ._torch_save import StorageWriter
from ._torch_versions import ASKS_FOR_RANK, StorageMeta

__all__ = ["StorageReader", "StorageWriter", "load", "load_into"]


class StorageReader(_StorageReader):
    """A StorageReader for torch.distributed.checkpoint.load. path, threads, part, step, also, shards, map, inverse, lora, dequantize, canonical: as
    for tessera.open. Quantized numbers are never cast without their scales: load them into tensors of the same dtype, or with dequantize=True.

    Values of Python's, numpy's and PyTorch's own types are loaded with their types. They are pickled again, so nothing in the
    checkpoint's pickles is executed. Objects that name other classes or functions are a TesseraError, unless unsafe_objects is set:
    then PyTorch imports and runs what they name.

    verify: as for tessera.torch.load: compare what this rank reads whole with the CRC-32 that the checkpoint has of it.

    _extension_registry: as for PyTorch's FileSystemReader, which reads the items of a directory whose extensions the registry has. Its
    objects need unsafe_objects. ZStandard needs no registry."""

    path: StrPath
    threads: int
    unsafe_objects: bool
    verify: bool
    load_id: str

    def __init__(self, path: StrPath, threads: int = 0, unsafe_objects: bool = False, *, part: str | None = None,
                 step: str | int | None = None, also: StrPath | Sequence[StrPath] = (), shards: Document | None = None,
                 map: Document | None = None, inverse: bool = False, lora: StrPath | Checkpoint | None = None, dequantize: bool = False,
                 canonical: bool = False, verify: bool = True, _extension_registry: Any = None) -> None:
        super().__init__()
        self._registry = _extension_registry
        self._left: dict[Any, Any] = {}  # what PyTorch's own reader reads, by index
        self.path, self.threads, self.unsafe_objects, self.verify = path, threads, unsafe_objects, verify
        self._choices: dict[str, Any] = {"part": part, "step": step, "also": also, "shards": shards, "map": map, "inverse": inverse,
                         "lora": lora.path if isinstance(lora, Checkpoint) else lora, "dequantize": dequantize, "canonical": canonical}
        self.load_id = str(uuid.uuid4())
        self._checkpoint: Checkpoint | None = None
        self._all: Checkpoint | None = None  # the same with the metadata of all ranks
        self._rank: int | None = None  # whose metadata is read, if every rank wrote its own

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_checkpoint": None, "_all": None}  # the copy opens it again

    def reset(self, checkpoint_id: StrPath | None = None) -> None:
        if checkpoint_id:
            self.path = checkpoint_id
        self.load_id = str(uuid.uuid4())
        self._checkpoint, self._all, self._rank = None, None, None

    @property
    def checkpoint_id(self) -> StrPath:
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: StrPath) -> bool:
        try:
            Checkpoint(checkpoint_id, _purpose=FOR_VALUES).close()
        except (TesseraError, OSError):
            return False
        return True

    def _open(self) -> Checkpoint:
        if self._checkpoint is None:
            self._checkpoint = Checkpoint(self.path, self.threads, **self._choices, _purpose=FOR_VALUES, _metadata_rank=self._rank or 0)
        return self._checkpoint

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Opens the checkpoint again, because its files may have been replaced since the last load. rank: read what this rank wrote, if
        every rank wrote its own metadata (use_collectives=False)."""
        self._checkpoint, self._all, self._rank = None, None, kwargs.get("rank")
        if self._rank is None and not ASKS_FOR_RANK:
            self._rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        checkpoint = self._open()
        marker = marker_of(checkpoint)
        if self._rank is None and ASKS_FOR_RANK and marker not in (None, MARKER):  # the loader asks again, with the rank
            raise TesseraError(f"{self.path}: there is no {MARKER} for all ranks, but {marker} and the like, which each rank wrote for itself; "
                               "read_metadata(rank=…) reads one of them", "not found")
        metadata = metadata_of(checkpoint, has_extensions=self._registry is not None)
        if StorageMeta:
            ids = getattr(metadata, "storage_meta", None) or StorageMeta()
            ids.load_id = self.load_id
            metadata.storage_meta = ids
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        checkpoint = self._open()
        can_open = os.path.isdir(checkpoint.path) and not any(self._choices.values())
        files = set(checkpoint._session.own_files()) if can_open else ()
        self._left = {index: info for index, info in (metadata.storage_data or {}).items() if self._is_left(index, info, files)}

    def _is_left(self, index, info, files):
        """Whether an item is left to PyTorch's own reader: one whose extension is in the registry, and, if it is in one of these files,
        a quantized tensor or an object whose code may run, because not all of them can be pickled again."""
        if getattr(info, "transform_descriptors", None):
            return self._registry is not None and has_extension(info)
        entry = self._open().get(index.fqn)
        if entry is None or info.relative_path not in files:
            return False
        return is_quantized(entry) or self.unsafe_objects and entry.kind != "tensor" and not entry.is_data()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def _entry_of_all(self, name):
        """Returns an entry of which this rank saved only some elements, with those of all ranks. PyTorch would leave the others as they
        were."""
        if self._all is None:
            self._all = Checkpoint(self.path, self.threads, **self._choices, _purpose=FOR_VALUES, _warns=False)
        return self._all[name]

    def _load_object(self, item, planner):
        entry = self._open()[item.storage_index.fqn]
        if not self.unsafe_objects:
            entry._check_data("tessera.torch.StorageReader")
        planner.load_bytes(item, io.BytesIO(entry.save()))

    def _read_left(self, plan, planner):
        """Lets PyTorch read items that are left to it."""
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO and not self.unsafe_objects:
                raise TesseraError(f"{self.path}: the object '{item.storage_index.fqn}' is stored through an extension, so whether it is data cannot be "
                                   "seen; tessera.torch.StorageReader(…, unsafe_objects=True) lets PyTorch import and run what objects name", "unsupported")
        reader = FileSystemReader(self._open().path, *filter(None, [self._registry]))
        reader.storage_data = self._left
        reader.read_data(plan, planner).wait()

    def _check_casts(self, targets):
        """Refuses casts that would separate quantized numbers from their scales."""
        for dtype in {target.dtype for *_, target in targets}:
            cast = [entry for entry, _, target in targets if target.dtype == dtype != dtype_of(entry)]
            if cast:
                check_cast(self._open(), cast, dtype, "tessera.torch.StorageReader(…, dequantize=True) multiplies them")

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        checkpoint, targets = self._open(), []
        left = [item for item in plan.items if item.storage_index in self._left]
        if left:
            self._read_left(dataclasses.replace(plan, items=left), planner)
        for item in (item for item in plan.items if item.storage_index not in self._left):
            if item.type == LoadItemType.BYTE_IO:
                self._load_object(item, planner)
                continue
            entry = checkpoint[item.storage_index.fqn]
            if entry.kind != "tensor":
                raise TesseraError(f"{self.path}: '{entry.name}' is {entry.type}, which only PyTorch can read, from a directory without part, step and the like",
                                   "unsupported")
            target = planner.resolve_tensor(item).detach()
            if target.size() != torch.Size(item.lengths):
                raise TesseraError(f"{self.path}: '{entry.name}' is to be read as {list(item.lengths)} into a tensor of {list(target.size())}", "usage")
            chunk = item.storage_index.offset or (0,) * len(item.storage_offsets)
            offsets = tuple(map(sum, zip(chunk, item.storage_offsets)))
            own = self._rank is None or has_box(entry, offsets, item.lengths)
            targets.append((item, own, (entry if own else self._entry_of_all(entry.name), offsets, target)))
        self._check_casts([target for *_, target in targets])
        with checkpoint._session.checking(self.verify) as check:
            read_tensors(checkpoint._session, [target for _, own, target in targets if own], check)
        if self._all:
            warn_of_copies([target[0] for _, own, target in targets if not own])
            with self._all._session.checking(self.verify) as check:
                read_tensors(self._all._session, [target for _, own, target in targets if not own], check)
            self._all.unchanged()
        checkpoint.unchanged()
        for item, _, (*_, target) in targets:
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done
