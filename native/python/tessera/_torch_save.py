"""A StorageWriter for torch.distributed.checkpoint whose checkpoints appear completely or not at all, in a directory
(_save_directory.py) or in an object store (_save_objects.py)."""
from __future__ import annotations

import dataclasses
import hashlib
import io
import math
import os
import pickle
import uuid

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter as _StorageWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.checkpoint.filesystem import _StorageInfo, _StoragePrefix
from torch.futures import Future

from ._choices import StrPath
from ._library import TesseraError
from ._save_directory import Directory
from ._save_objects import SCHEMES, Objects
from ._torch_versions import meta_fields

# ---- one rank's file ----


class _Digested(io.RawIOBase):
    """A rank's file, with a digest of what is written to it. Of a large record only the length is digested, because its CRC-32 is in the
    archive's directory, which follows it and is digested as a whole. torch.save writes a tensor in about 40 pieces, most of them of a few
    bytes, so small pieces are collected and written together."""

    LARGE = 1 << 20
    SMALL = 1 << 17

    def __init__(self, file):
        super().__init__()
        self.file, self.size, self._kept, self._sha = file, 0, bytearray(), hashlib.sha256()
        self.failure = None  # what a write raised: torch.save raises an error of its own instead, without the cause

    @property
    def digest(self):
        self.write_kept()
        return self._sha

    def writable(self):
        return True

    def tell(self):
        return self.size

    def write(self, data):
        view = memoryview(data)
        if view.nbytes < self.SMALL:
            self._kept += view
            if len(self._kept) >= self.SMALL:
                self.write_kept()
        else:
            self.write_kept()
            self._write(view.cast("B"))
        self.size += view.nbytes
        return view.nbytes

    def _write(self, view):
        try:
            self.file.write(view)
        except BaseException as e:
            self.failure = self.failure or e
            raise
        self._sha.update(view if len(view) < self.LARGE else len(view).to_bytes(8, "little"))

    def write_kept(self):
        """Not `flush`, which torch.save calls after each tensor."""
        if self._kept:
            kept, self._kept = self._kept, bytearray()
            self._write(memoryview(kept))


class _Crc32Option:
    """Decides whether torch.save writes CRC-32s inside this context. PyTorch has a single setting for the process."""

    def __init__(self, wanted):
        self.wanted = wanted

    def __enter__(self):
        if not hasattr(torch.serialization, "set_crc32_options"):  # before PyTorch 2.6 they are always stated
            return
        self.before = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(self.wanted)

    def __exit__(self, *_):
        if hasattr(self, "before"):
            torch.serialization.set_crc32_options(self.before)


_PINNED_MOST = 256 << 20  # larger tensors are not copied ahead: two of them are in pinned memory at a time


def _start_copy(tensor):
    """Returns the tensor in host memory, and the event after which it is complete or None."""
    if tensor.device.type != "cuda" or tensor.numel() * tensor.element_size() > _PINNED_MOST:
        return tensor.cpu(), None
    host, copied = torch.empty_like(tensor, device="cpu", pin_memory=True), torch.cuda.Event()
    host.copy_(tensor, non_blocking=True)
    copied.record(torch.cuda.current_stream(tensor.device))
    return host, copied


def _end_copy(tensor, copied):
    if copied is not None:
        copied.synchronize()
    # torch.save writes the whole storage: of a view only its own elements are wanted.
    return tensor.clone() if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size() else tensor


def _in_host_memory(items, planner):
    """Yields (item, tensor or BytesIO). While the caller writes one tensor, the next one is copied from its CUDA device."""
    started = None
    for item in items:
        data = planner.resolve_data(item)
        next_one = item, (_start_copy(data.detach()) if item.type != WriteItemType.BYTE_IO else data)
        if started:
            yield _ended(*started)
        started = next_one
    if started:
        yield _ended(*started)


def _ended(item, data):
    return item, data if item.type == WriteItemType.BYTE_IO else _end_copy(*data)


class _Results(list):
    """What PyTorch gathers from this rank: a list to which weak references are possible."""

    def __reduce__(self):
        return list, (list(self),)


_ITEM_BYTES = 64 << 10  # more than what torch.save writes around a tensor, and what most objects have


def _expected_bytes(plan):
    tensors = (item.tensor_data for item in plan.items if item.tensor_data is not None)
    return sum(math.prod(data.chunk.sizes) * data.properties.dtype.itemsize for data in tensors) + _ITEM_BYTES * len(plan.items)


def _write_items(out, name, plan, planner):
    results = _Results()
    for item, data in _in_host_memory(plan.items, planner):
        offset = out.tell()
        if item.type == WriteItemType.BYTE_IO:
            out.write(data.getbuffer())
            out.digest.update(data.getbuffer())
        else:
            torch.save(data, out)
        length = out.tell() - offset
        results.append(WriteResult(index=item.index, size_in_bytes=length, storage_data=_StorageInfo(name, offset, length)))
    return results


class StorageWriter(_StorageWriter):
    """A StorageWriter for torch.distributed.checkpoint.save and async_save whose checkpoints appear completely or not at all.

    path: a directory, which is created if it does not exist, or an s3://, gs:// or az:// URL. overwrite: replace an existing
    checkpoint, and keep files that it does not list. checksums: write a CRC-32 for every record, and derive the save's id from the
    content; False leaves out both, to save time.

    Without overwrite, an existing checkpoint is a FileExistsError on every rank before anything is written. If one rank fails, the save
    fails on all ranks and changes nothing. The next save removes what a killed one left.

    With use_collectives=False each rank saves on its own, as with PyTorch's FileSystemWriter: its file, and then `__RANK.metadata`. These
    appear, replace those of the last save, or fail, rank by rank."""

    def __init__(self, path: StrPath, *, overwrite: bool = False, checksums: bool = True) -> None:
        super().__init__()
        self.overwrite, self.checksums = overwrite, checksums
        self.reset(os.fspath(path))

    def reset(self, checkpoint_id=None):
        if checkpoint_id:
            self._place = self._place_of(os.fspath(checkpoint_id))
        self._coordinator = False
        self._save_id = str(uuid.uuid4())

    def _place_of(self, path):
        if path.startswith(SCHEMES):
            return Objects(path, self.overwrite)
        if "://" in path:
            raise TesseraError(f"tessera.torch.StorageWriter cannot write to '{path.partition('?')[0]}': it writes to directories, and to s3://, gs:// "
                               "and az:// URLs", "unsupported")
        return Directory(path, self.overwrite)

    @property
    def path(self):
        return self._place.path

    @property
    def checkpoint_id(self):
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        if not isinstance(checkpoint_id, (str, os.PathLike)):
            return False
        path = os.fspath(checkpoint_id)
        return "://" not in path or path.startswith(SCHEMES)

    def storage_meta(self):
        return self._meta_fields().get("storage_meta")

    def _meta_fields(self):
        return meta_fields(checkpoint_id=self.path, save_id=self._save_id)

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        rank = None if kwargs.get("use_collectives", True) else kwargs.get("rank")
        self._place.is_of(rank, dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1)
        self._coordinator = is_coordinator or rank is not None
        self._place.set_up()

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        self._place.begin()
        # PyTorch's own type, because plans that a planner caches are shared by all writers of a process.
        return [plan if plan.storage_data else dataclasses.replace(plan, storage_data=_StoragePrefix(f"__{number}_"))
                for number, plan in enumerate(plans, self._place.rank or 0)]

    def write_data(self, plan, planner):
        done = Future()
        try:
            done.set_result(self._write_file(plan, planner) if plan.items else [])
        except BaseException:
            if self._coordinator:
                self._place.release()
            raise
        return done

    def _write_file(self, plan, planner):
        file = self._place.new_file(plan.storage_data.prefix.strip("_"), _expected_bytes(plan))
        try:
            out = _Digested(file)
            with _Crc32Option(self.checksums):
                results = _write_items(out, file.name, plan, planner)
            out.write_kept()
            handed = file.finish()
        except BaseException as e:
            file.discard()
            if out.failure not in (None, e):
                raise out.failure from None
            raise
        for result in results:  # for finish, which takes them off
            result.storage_data.digest = out.digest.hexdigest()
        if handed:  # None is lost when PyTorch gathers the results: _StorageInfo leaves it out of its pickle
            results[0].storage_data.handed = handed
            self._place.keep_while(results, file)
        return results

    def _take_save_id(self, storage_data):
        """Derives the id from names, locations and digests, so that equal content has an equal id."""
        digest = hashlib.sha256()
        for index, info in sorted(storage_data.items(), key=lambda item: (item[0].fqn, item[0].index or 0, tuple(item[0].offset or ()))):
            digest.update(f"{index.fqn}\0{index.offset}\0{info.offset}\0{info.length}\0{info.__dict__.pop('digest')}\n".encode("utf-8", "surrogatepass"))
        if self.checksums:
            self._save_id = str(uuid.UUID(bytes=digest.digest()[:16]))

    def finish(self, metadata, results):
        try:
            storage_data = {result.index: result.storage_data for rank in results for result in rank}
            files = {rank[0].storage_data.relative_path: rank[0].storage_data.__dict__.pop("handed", None) for rank in results if rank}
            self._take_save_id(storage_data)
            for name, value in {"storage_data": storage_data, **self._meta_fields()}.items():
                setattr(metadata, name, value)
            if hasattr(metadata, "version"):
                from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION
                metadata.version = CURRENT_DCP_VERSION
            self._place.publish(pickle.dumps(metadata), files)
        finally:
            self._place.release()
