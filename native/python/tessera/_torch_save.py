"""A StorageWriter for torch.distributed.checkpoint whose checkpoints appear completely or not at all, in a directory
(_save_directory.py) or in an object store (_save_objects.py)."""
from __future__ import annotations

import collections
import dataclasses
import hashlib
import io
import math
import pickle
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, Mapping, Sequence

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter as _StorageWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ._archive import PIECE_BYTES, whole_archive, write_archive
from ._choices import StrPath, path_text
from ._library import TesseraError, warn
from ._save_directory import Directory
from ._save_objects import SCHEMES, Objects
from ._save_place import with_end_sum
from ._torch_versions import BlockingAsyncStager, StorageInfo, StoragePrefix, StreamTransforms, create_cpu_state_dict, meta_fields

# ---- one rank's files ----


class _Digested(io.RawIOBase):
    """A rank's file, with a digest of what is written to it. Small pieces are collected and written together.

    has_archives: what is written are archives with CRC-32s. Of a large record of theirs only the length is digested, because its CRC-32 is
    in the archive's directory, which follows it and is digested as a whole."""

    LARGE = PIECE_BYTES
    SMALL = 1 << 17

    def __init__(self, file, has_archives):
        super().__init__()
        self.file, self.size, self._kept, self._sha, self._has_archives = file, 0, bytearray(), hashlib.sha256(), has_archives

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
        self.file.write(view)
        self._sha.update(len(view).to_bytes(8, "little") if self._has_archives and len(view) >= self.LARGE else view)

    def write_kept(self):
        if self._kept:
            kept, self._kept = self._kept, bytearray()
            self._write(memoryview(kept))


_PINNED_MOST = 256 << 20  # larger tensors are not copied ahead: two of them are in pinned memory at a time


def _start_copy(tensor):
    """Returns the tensor in host memory, and the event after which it is complete or None."""
    if tensor.device.type != "cuda" or tensor.numel() * tensor.element_size() > _PINNED_MOST:
        return tensor.cpu(), None
    host, copied = torch.empty_like(tensor, device="cpu", pin_memory=True), torch.cuda.Event()
    host.copy_(tensor, non_blocking=True)
    copied.record(torch.cuda.current_stream(tensor.device))
    return host, copied


def _end_copy(tensor, copied, as_stored):
    if copied is not None:
        copied.synchronize()
    return tensor.clone() if as_stored and tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size() else tensor


def _check_elements(name, tensor):
    """Names the tensor, which PyTorch's own errors do not."""
    if tensor.layout != torch.strided:
        raise TesseraError(f"'{name}' has the layout {str(tensor.layout).removeprefix('torch.')}; only dense tensors are saved as tensors; in a tuple it is saved as an object", "unsupported")
    if tensor.device.type == "meta":
        raise TesseraError(f"'{name}' is on the meta device and has no elements to save", "unsupported")


def _in_host_memory(items, planner, ahead, as_stored=True):
    """Yields (item, tensor or BytesIO). While the caller writes one of them, the next ones of about `ahead` bytes are copied from their CUDA
    device. as_stored: for archives, which have the whole storage of a tensor: one that is only a view is copied."""
    started, waiting = collections.deque(), 0  # bytes of those behind the first
    for item in items:
        data, size, is_copied = planner.resolve_data(item), 0, False
        if item.type != WriteItemType.BYTE_IO:
            _check_elements(item.index.fqn, data)
            size = data.numel() * data.element_size()
            data = _start_copy(data.detach())
            is_copied = data[1] is not None
        waiting += size if started else 0
        started.append((item, data, size))
        while started and (waiting >= ahead or not is_copied):  # what is in host memory need not wait
            item, data, _ = started.popleft()
            yield _ended(item, data, as_stored)
            waiting -= started[0][2] if started else 0
    for item, data, _ in started:
        yield _ended(item, data, as_stored)


def _ended(item, data: Any, as_stored):
    if item.type == WriteItemType.BYTE_IO:
        return item, data
    tensor, copied = data
    return item, _end_copy(tensor, copied, as_stored)


class _Results(list):
    """What PyTorch gathers from this rank: a list to which weak references are possible."""

    def __reduce__(self):
        return list, (list(self),)


_ITEM_BYTES = 64 << 10  # more than what is written around a tensor, and what most objects have


def _tensor_bytes(item):
    data = item.tensor_data
    return math.prod(data.chunk.sizes) * data.properties.dtype.itemsize if data is not None else 0


def _expected_bytes(items):
    return sum(map(_tensor_bytes, items)) + _ITEM_BYTES * len(items)


def _split(items, count):
    """Divides items between `count` files as PyTorch's FileSystemWriter does, and leaves out files without any: objects in turn, then the
    largest tensor to the smallest file."""
    if count == 1:
        return [items]
    objects = [item for item in items if item.type == WriteItemType.BYTE_IO]
    groups, sizes = [objects[n::count] for n in range(count)], [0] * count
    for item in sorted((item for item in items if item.type != WriteItemType.BYTE_IO), key=_tensor_bytes, reverse=True):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(item)
        sizes[smallest] += _tensor_bytes(item)
    return [group for group in groups if group]


def in_threads(failures, call, threads, *arguments):
    """Returns the results of call(*each) for each of the arguments, in order; with one thread, called by the caller's. `failures` is a list to which
    exceptions of calls are added, and what interrupts the caller, so that calls in progress can end early. All of them have ended when this
    raises the first one, and none begins afterwards. ThreadPoolExecutor alone does not wait for a thread during whose start Ctrl-C comes."""
    if threads == 1:
        return list(map(call, *arguments))
    may_begin = threading.Event()

    def begin(*each):
        may_begin.wait()
        if failures:
            raise failures[0]
        try:
            return call(*each)
        except BaseException as e:
            failures.append(e)
            raise
    with ThreadPoolExecutor(threads) as pool:
        try:
            calls = [pool.submit(begin, *each) for each in zip(*arguments)]
            may_begin.set()
            return [each.result() for each in calls]
        except BaseException as e:  # such as Ctrl-C
            failures.append(e)
            may_begin.set()
            raise failures[0]


class _RankWriter:
    """Writes the files of one rank, each in one thread."""

    def __init__(self, planner, ahead, transforms, is_summed):
        self._planner, self._ahead, self._transforms, self._is_summed = planner, ahead, transforms, is_summed
        self._failures: list[BaseException] = []

    def write(self, file, items):
        """Returns the results of one file."""
        out = _Digested(file, has_archives=not self._transforms)
        results = [self._write_item(out, file.name, item, data) for item, data in _in_host_memory(items, self._planner, self._ahead)]
        out.write_kept()
        handed = file.finish()
        for result in results:  # for finish, which takes them off
            result.storage_data.digest = out.digest.hexdigest()
        if handed:  # None is lost when PyTorch gathers the results: _StorageInfo leaves it out of its pickle
            results[0].storage_data.handed = handed
        return results

    def write_all(self, files, groups, threads):
        """Returns the results of each file."""
        return in_threads(self._failures, self.write, threads, files, groups)

    def _write_item(self, out, name, item, data):
        if self._failures:
            raise self._failures[0]
        offset, to, more = out.tell(), out, {}
        if self._transforms:
            to, descriptors = self._transforms.transform_save_stream(item, out)
            more = {"transform_descriptors": descriptors}
        if isinstance(data, torch.Tensor) and not write_archive(data, to, self._is_summed):
            data = whole_archive(data)
        if isinstance(data, io.BytesIO):
            to.write(data.getbuffer())
            out.digest.update(data.getbuffer())
        if to is not out:
            to.close()
        length = out.tell() - offset
        return WriteResult(index=item.index, size_in_bytes=length, storage_data=StorageInfo(name, offset, length, **more))


def _number(name, value, least):
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is a whole number of {least} or more, not {value!r}")
    return value


if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import StorageMeta
    from torch.distributed.checkpoint.staging import BlockingAsyncStager as _Stager
else:
    _Stager = BlockingAsyncStager or object


class StorageWriter(_StorageWriter, _Stager):
    """A StorageWriter for torch.distributed.checkpoint.save and async_save whose checkpoints appear completely or not at all.

    path: a directory, which is created if it does not exist, or an s3://, gs:// or az:// URL. overwrite: replace an existing
    checkpoint, and keep files that it does not list. checksums: write a CRC-32 for every record, and derive the save's id from the
    content; False leaves out both, to save time.

    The other options are those of PyTorch's FileSystemWriter. single_file_per_rank: False writes one file per tensor or object, in
    directories only. sync_files: False does not wait until files are on disk, so a crash of the machine may leave a damaged checkpoint;
    object stores always have what was written. thread_count: threads and files per rank. per_thread_copy_ahead: bytes that each thread copies
    from a CUDA device while it writes others. cache_staged_state_dict: async_save uses the memory of its last copy again. _extensions:
    PyTorch's StreamTransformExtensions, such as ZStandard, each for what the one after it writes. serialization_format: only TORCH_SAVE.

    Without overwrite, an existing checkpoint is a FileExistsError on every rank before anything is written. If one rank fails, the save
    fails on all ranks and changes nothing. The next save removes what a killed one left.

    form="safetensors" writes what PyTorch's HuggingFaceStorageWriter writes, and takes its options by name: whole tensors in files named
    model-*.safetensors with an index, which are joined if several ranks have saved them; with save_distributed files of each rank's shards instead,
    and with enable_consolidation both, the shards in `sharded`. fqn_to_index_mapping: the number of each tensor's file, from 1.
    thread_count: files that a rank writes at the same time. thread_count_consolidation: threads that join shards. checksums: a CRC-32 of each
    file. The state dict may hold only tensors. path is a directory that all ranks share, or a URL, where file names have a random part, so
    that an old checkpoint stays whole until the new one is; shards are kept in directories only, and save_distributed alone is refused.

    With use_collectives=False each rank saves on its own, as with PyTorch's FileSystemWriter: its files, and then `__RANK.metadata`. These
    appear, replace those of the last save, or fail, rank by rank."""

    single_file_per_rank: bool
    sync_files: bool
    thread_count: int
    per_thread_copy_ahead: int
    overwrite: bool
    checksums: bool
    serialization_format: Any
    transforms: Any
    form: str
    fqn_to_index_mapping: dict[str, int] | None
    save_distributed: bool
    enable_consolidation: bool
    thread_count_consolidation: int
    state_dict_cache: dict[str, Any] | None
    save_id: str

    def __init__(self, path: StrPath, single_file_per_rank: bool = True, sync_files: bool = True, thread_count: int = 1,
                 per_thread_copy_ahead: int = 10_000_000, cache_staged_state_dict: bool = False, overwrite: bool = False,
                 _extensions: Sequence[Any] | None = None, serialization_format: Any = "torch_save", *, checksums: bool = True,
                 form: Literal["dcp", "safetensors"] = "dcp", fqn_to_index_mapping: Mapping[str, int] | None = None, save_distributed: bool = False,
                 enable_consolidation: bool = False, thread_count_consolidation: int = 1) -> None:
        _StorageWriter.__init__(self)
        if BlockingAsyncStager:
            BlockingAsyncStager.__init__(self, cache_staged_state_dict=cache_staged_state_dict)
        elif cache_staged_state_dict:
            warn(f"cache_staged_state_dict=True is not used: async_save of PyTorch {torch.__version__} copies the state dict itself, and keeps no copy")
        self.single_file_per_rank, self.sync_files = single_file_per_rank, sync_files
        self.thread_count, self.per_thread_copy_ahead = _number("thread_count", thread_count, 1), _number("per_thread_copy_ahead", per_thread_copy_ahead, 0)
        self.overwrite, self.checksums, self.serialization_format = overwrite, checksums, serialization_format
        if getattr(serialization_format, "value", serialization_format) != "torch_save":
            raise TesseraError(f"serialization_format={serialization_format} is not supported: PyTorch's FileSystemReader cannot read what "
                               "FileSystemWriter makes of it. Pass form=\"safetensors\" instead", "unsupported")
        if _extensions and not StreamTransforms:
            raise TesseraError(f"_extensions is not supported by PyTorch {torch.__version__}, whose metadata has no field for it; PyTorch 2.7 has", "unsupported")
        self.transforms = StreamTransforms(_extensions) if _extensions else None
        self.fqn_to_index_mapping = dict(fqn_to_index_mapping) if fqn_to_index_mapping is not None else None
        self.save_distributed, self.enable_consolidation = save_distributed, enable_consolidation
        self.thread_count_consolidation = _number("thread_count_consolidation", thread_count_consolidation, 1)
        self.form = form
        if form == "safetensors" and type(self) is StorageWriter:
            from ._save_safetensors import SafetensorsWriter
            self.__class__ = SafetensorsWriter
        self._check_options()
        if not path_text(path):
            raise ValueError("path is empty; it names a directory or a URL")
        self.reset(path)

    def _check_options(self):
        if self.form != "dcp":
            raise ValueError(f'form is "dcp" or, of StorageWriter itself, "safetensors", not {self.form!r}')
        given = {"fqn_to_index_mapping": self.fqn_to_index_mapping is not None, "save_distributed": self.save_distributed,
                 "enable_consolidation": self.enable_consolidation, "thread_count_consolidation": self.thread_count_consolidation != 1}
        if any(given.values()):
            raise ValueError(f'{next(name for name, is_given in given.items() if is_given)} needs form="safetensors"')

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        if self.cache_staged_state_dict and self.state_dict_cache is None and not torch.cuda.is_available():
            self.state_dict_cache = create_cpu_state_dict(state_dict)  # PyTorch's is in pinned memory, which needs a device
        return super().stage(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, **({"state_dict_cache": None} if BlockingAsyncStager else {})}  # another process saves what it is given

    def reset(self, checkpoint_id: StrPath | None = None) -> None:
        if checkpoint_id:
            self._place: Any = self._place_of(path_text(checkpoint_id))
        self._coordinator = False
        self.save_id = str(uuid.uuid4())

    def _place_of(self, path):
        if path.startswith(SCHEMES):
            if not self.single_file_per_rank:
                warn(f"single_file_per_rank=False is not used for {path}: each file is an upload that stays open until all ranks have sent theirs, "
                     "so a rank writes thread_count files")
            return Objects(path, self.overwrite)
        if "://" in path:
            raise TesseraError(f"tessera.torch.StorageWriter cannot write to '{path.partition('?')[0]}': it writes to directories, and to s3://, gs:// "
                               "and az:// URLs", "unsupported")
        return Directory(path, self.overwrite, self.sync_files)

    @property
    def path(self) -> str:
        return self._place.path

    @property
    def checkpoint_id(self) -> str:
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: StrPath) -> bool:
        try:
            path = path_text(checkpoint_id)
        except (TypeError, ValueError):
            return False
        return "://" not in path or path.startswith(SCHEMES)

    def storage_meta(self) -> StorageMeta | None:
        return self._meta_fields().get("storage_meta")

    def _meta_fields(self):
        return meta_fields(checkpoint_id=self.path, save_id=self.save_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        rank = None if kwargs.get("use_collectives", True) else kwargs.get("rank")
        self._place.is_of(rank, dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1)
        self._coordinator = is_coordinator or rank is not None
        self._place.set_up()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        self._place.begin()
        # PyTorch's own type, because plans that a planner caches are shared by all writers of a process.
        return [plan if plan.storage_data else dataclasses.replace(plan, storage_data=StoragePrefix(f"__{number}_"))
                for number, plan in enumerate(plans, self._place.rank or 0)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        done: Future[list[WriteResult]] = Future()
        try:
            done.set_result(self._write_files(plan, planner) if plan.items else [])
        except BaseException:
            if self._coordinator:
                self._place.give_up()
            raise
        return done

    def _write_files(self, plan, planner):
        if self.single_file_per_rank or isinstance(self._place, Objects):
            groups = _split(list(plan.items), self.thread_count)
        else:
            groups = [[item] for item in plan.items]
        files = self._place.new_files(plan.storage_data.prefix.strip("_"), [_expected_bytes(items) for items in groups])
        writer, results = _RankWriter(planner, self.per_thread_copy_ahead, self.transforms, self.checksums), _Results()
        try:
            for of_file in writer.write_all(files, groups, self.thread_count):
                results += of_file
            files.finish()
        except BaseException:
            files.discard()
            raise
        self._place.keep_while(results, files)
        return results

    def _take_save_id(self, storage_data):
        """Derives the id from names, locations and digests, so that equal content has an equal id."""
        digest = hashlib.sha256()
        for index, info in sorted(storage_data.items(), key=lambda item: (item[0].fqn, item[0].index or 0, tuple(item[0].offset or ()))):
            digest.update(f"{index.fqn}\0{index.offset}\0{info.offset}\0{info.length}\0{info.__dict__.pop('digest')}\n".encode("utf-8", "surrogatepass"))
        if self.checksums:
            self.save_id = str(uuid.UUID(bytes=digest.digest()[:16]))

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        try:
            storage_data = {result.index: result.storage_data for rank in results for result in rank}
            files: dict[str, Any] = {}
            for info in storage_data.values():
                handed = info.__dict__.pop("handed", None)
                files[info.relative_path] = files.get(info.relative_path) or handed
            self._take_save_id(storage_data)
            for name, value in {"storage_data": storage_data, **self._meta_fields()}.items():
                setattr(metadata, name, value)
            if hasattr(metadata, "version"):
                from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION
                metadata.version = CURRENT_DCP_VERSION
            data = pickle.dumps(metadata)
            self._place.publish(with_end_sum(data) if self.checksums else data, files)
        finally:
            self._place.release()
