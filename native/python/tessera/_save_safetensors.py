"""Safetensors files that tessera.torch.StorageWriter(…, form="safetensors") writes, with the names and the content of those of PyTorch's
HuggingFaceStorageWriter, and with the checksum of Tessera's.

    shard-0000R-model-0000I-of-0000N.safetensors   what rank R - 1 holds of the tensors of file I (save_distributed)
    model-0000I-of-0000N.safetensors               the whole tensors of file I
    model.safetensors.index.json                   next to whole tensors: which file has which tensor

All files are first written to a directory next to the destination, or in it if that is a mount point or nothing can be created next to it. Shards whose tensors are joined are read from there, and the joined tensors are
written next to them. When everything is complete, the coordinator publishes it (native/publish/rank_files.h): in one step if possible; otherwise it
removes the old checkpoint and then moves the new files one by one, the index last. Journals and a record list both, so the next save or run of
`tessera` removes what a killed one left."""
from __future__ import annotations

import collections
import ctypes
import dataclasses
import itertools
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from ._checkpoint import Checkpoint
from ._library import FOR_NAMES, FOR_VALUES, TesseraError, _WRITE, _char, _function, _int, _p, _u32, _u64, crc32
from ._save_directory import Directory, _create, _do, _Lock, _locks, _missing, _names, _naming, _remove, _write_new
from ._save_place import TO_REPLACE, with_end_sum
from ._torch_save import StorageWriter, _in_host_memory, _Results

_open_files = _function("files_open", _p, _char, _u64, _int, _WRITE, _p)
_begin_files = _function("files_begin", _int, _p, _char, ctypes.c_size_t, _char, ctypes.c_size_t, _p)
_publish_files = _function("files_publish", _int, _p, _char, ctypes.c_size_t, _u32, _p)
_close_files = _function("files_close", None, _p)
_leave_files = _function("files_leave", None, _p)
_files_folder = _function("files_folder", _int, _char, _char, _p)
_write_journal = _function("files_journal", _int, _char, _u64, _u64, _char, ctypes.c_size_t, _p)

INDEX = "model.safetensors.index.json"
ENDING = ".safetensors"
SHARDED = "sharded"
_NO_FILE, _PATH_MAX = 2**32 - 1, 4096
_NO_SUM = "00000000"
_PIECE_BYTES = 8 << 20  # are still in the processor's cache when they are written, after their CRC-32 was computed
_JOIN_BYTES = 64 << 20
_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
           torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64",
           **{getattr(torch, name): stored for name, stored in (
               ("uint64", "U64"), ("uint32", "U32"), ("uint16", "U16"), ("float8_e4m3fn", "F8_E4M3"), ("float8_e5m2", "F8_E5M2"), ("float8_e4m3fnuz", "F8_E4M3FNUZ"),
               ("float8_e5m2fnuz", "F8_E5M2FNUZ"), ("float8_e8m0fnu", "F8_E8M0")) if hasattr(torch, name)}}


# ---- one file ----


@dataclasses.dataclass
class _Tensor:
    """What one file holds of a tensor: all of it, or the box at `offsets`."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def nbytes(self):
        return math.prod(self.shape) * self.dtype.itemsize


def _order(tensor):
    """In this order each tensor begins at a multiple of its element size. It is that of the safetensors library."""
    return -tensor.dtype.itemsize, tensor.name


def _header(tensors, is_shard, is_summed):
    """Returns the header of a file of `tensors`, which are in their order, and the position of the digits of its checksum."""
    header, begin = {}, 0
    for tensor in tensors:
        header[tensor.name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, begin + tensor.nbytes]}
        begin += tensor.nbytes
    more = {"format": "pt"}
    if is_shard:
        more["DCP_SHARDING_INFO"] = json.dumps({tensor.name: {"saved_offsets": list(tensor.offsets)} for tensor in tensors})
        more["DCP_VERSION"] = "1.0"
    header["__metadata__"] = {**more, **({"tessera.crc32": _NO_SUM} if is_summed else {})}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    padded = text + b" " * (-(8 + len(text)) % 64)
    return len(padded).to_bytes(8, "little") + padded, 8 + len(text) - len(_NO_SUM) - len('"}}')


class _Writer:
    """Writes one file from its beginning to its end."""

    def __init__(self, path, tensors, is_shard, is_summed, sync):
        self._path, self._is_summed, self._sync, self._crc = path, is_summed, sync, 0
        header, self._digits = _header(tensors, is_shard, is_summed)
        os.makedirs(os.path.dirname(path), exist_ok=True)  # a directory that the coordinator has just made may not be visible on other nodes yet
        self._fd = _create(path)
        self.write(ctypes.addressof(ctypes.c_char.from_buffer(buffer := bytearray(header))), len(buffer))

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        try:
            with _naming(self._path):
                if not failed and self._is_summed:
                    os.pwrite(self._fd, b"%08x" % self._crc, self._digits)
                if not failed and self._sync:
                    os.fsync(self._fd)
        finally:
            os.close(self._fd)

    def write(self, address, size):
        with _naming(self._path):
            for begin in range(0, size, _PIECE_BYTES):
                piece = memoryview((ctypes.c_char * min(_PIECE_BYTES, size - begin)).from_address(address + begin)).cast("B")
                if self._is_summed:
                    self._crc = crc32(self._crc, address + begin, len(piece))
                while piece:
                    piece = piece[os.write(self._fd, piece):]


# ---- the directory ----


class _Files(Directory):
    """The destination of a save. The coordinator holds Directory's lock."""

    def stage(self, *names):
        return os.path.join(self._stage, *names)

    def set_up(self):
        """Nothing in the destination is looked at before the coordinator has removed what killed saves left."""
        folder = ctypes.create_string_buffer(_PATH_MAX)
        _do(_files_folder, self.path, os.fsencode(self.path), folder)
        self._stage = os.fsdecode(folder.value)

    def _open(self):
        return _Lock(self.path, _open_files, _close_files, self._ranks, self.sync_files)

    def begin(self, ranks, own):
        """own: the files that the coordinator may write."""
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise FileExistsError(f"{self.path}: exists and is not a directory")
        self._made, self._ranks = _missing(self.path), ranks
        os.makedirs(self.path, exist_ok=True)
        self._lock()
        try:
            self._refuse_marker()
            replaced = self._own_files()
            self._refuse_others(replaced)
            own, replaced = _names(own), _names(replaced)
            _do(_begin_files, self.path, self._handle(), own, len(own), replaced, len(replaced))
        except BaseException:
            self.release()
            raise

    def _files_in(self, folder):
        path = self.at(folder)
        return sorted(os.path.join(folder, name) for name in os.listdir(path)) if os.path.isdir(path) and not os.path.islink(path) else []

    def _safetensors(self):
        return [name for folder in ("", SHARDED) for name in self._files_in(folder) if name.endswith(ENDING)]

    def _refuse_marker(self):
        for name in self._files_in(""):
            if name != INDEX and name.endswith((".metadata", ".index.json")) and not name.startswith(".tessera-"):
                raise FileExistsError(f"{self.path}: holds a checkpoint of another form already ({name}); save to another path")
        there = [name for name in (INDEX, *self._safetensors()) if os.path.lexists(self.at(name))]
        if there and not self.overwrite:
            raise FileExistsError(f"{self.path}: holds a checkpoint already ({there[0]}){TO_REPLACE}")

    def _own_files(self):
        """Returns the files of the checkpoint that is there, and of the shards that it was joined from; the index first."""
        found = []
        for folder in ("", SHARDED):
            files = [name for name in self._files_in(folder) if name.endswith(ENDING) or name == INDEX]
            if len(files) == 1 and files != [INDEX]:
                found += files
            elif files:
                with Checkpoint(self.at(folder), _purpose=FOR_NAMES) as checkpoint:
                    found += [os.path.join(folder, name) for name in checkpoint._session.own_files()]
        return sorted(found, key=lambda name: (name != INDEX, name))

    def _refuse_others(self, replaced):
        for name in self._safetensors():
            if name not in replaced:
                raise FileExistsError(f"{self.path}: holds '{name}', which is not part of the checkpoint that is to be replaced and would be "
                                      "loaded with the new one; move it away, or save to another path")

    def begin_rank(self, number, ranks, names):
        """Records the names of the files that a rank is about to write. number: of the rank, from 0."""
        names = _names(names)
        _do(_write_journal, self.path, os.fsencode(self.path), ranks, number, names, len(names))

    def give_up(self):
        if self._ranks > 1:  # what they leave is listed in their journals
            _locks[self._key()].close_handle = _leave_files
        self.release()

    def publish(self, names, marker):
        listed = _names(names)
        _do(_publish_files, self.path, self._handle(), listed, len(listed), names.index(marker) if marker else _NO_FILE)
        self._made = ()


# ---- the writer ----


def _pieces(shape, itemsize):
    """Yields boxes, (offsets, sizes), that make up a tensor in row-major order, of _JOIN_BYTES or one row each."""
    if not shape:
        yield (), ()
        return
    rows = max(1, _JOIN_BYTES // max(1, math.prod(shape[1:]) * itemsize))
    for row in range(0, shape[0], rows):
        yield (row,) + (0,) * (len(shape) - 1), (min(rows, shape[0] - row), *shape[1:])


class SafetensorsWriter(StorageWriter):
    """What StorageWriter(…, form="safetensors") is."""

    def _check_options(self):
        mapping = self.fqn_to_index_mapping
        if self.transforms:
            raise TesseraError('_extensions is not supported with form="safetensors": its readers know no transformed tensors', "unsupported")
        if not self.single_file_per_rank:
            raise TesseraError('single_file_per_rank=False is not supported with form="safetensors"; fqn_to_index_mapping gives tensors files of their own', "unsupported")
        if mapping is not None and (not mapping or any(isinstance(i, bool) or not isinstance(i, int) or not 1 <= i <= 99999 for i in mapping.values())):
            raise ValueError(f"fqn_to_index_mapping maps names to numbers of files from 1 to 99999, not {mapping!r:.200}")

    def _place_of(self, path):
        if "://" in path:
            raise TesseraError(f'tessera.torch.StorageWriter(…, form="safetensors") cannot write to \'{path.partition("?")[0]}\': it writes to directories. Save with '
                               'form="dcp" there, or copy the files with tessera.copy', "unsupported")
        return _Files(path, self.overwrite, self.sync_files)

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        if not kwargs.get("use_collectives", True):
            raise TesseraError('use_collectives=False is not supported with form="safetensors": files that ranks publish one by one are not a checkpoint', "unsupported")
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)

    # ---- planning ----

    def _number_of_files(self):
        return max(self.fqn_to_index_mapping.values()) if self.fqn_to_index_mapping else 1

    def _joins(self):
        """Whether the checkpoint has whole tensors, and an index of them."""
        return self.enable_consolidation or not self.save_distributed

    def _file_of(self, fqn):
        return self.fqn_to_index_mapping[fqn] if self.fqn_to_index_mapping else 1

    def _refuse(self, item):
        name = item.index.fqn
        if item.type == WriteItemType.BYTE_IO:
            raise TesseraError(f"'{name}' is an object, and safetensors files hold only tensors; leave it out of the state dict, or save with form=\"dcp\"", "unsupported")
        dtype = item.tensor_data.properties.dtype
        if dtype not in _DTYPES:
            raise TesseraError(f"'{name}' is {str(dtype).removeprefix('torch.')}, which safetensors files do not hold; save with form=\"dcp\"", "unsupported")
        if not name or "\0" in name or name == "__metadata__" or any("\ud800" <= c <= "\udfff" for c in name):
            raise TesseraError(f"{name!r} cannot be the name of a tensor in safetensors files; save with form=\"dcp\"", "unsupported")
        if self.fqn_to_index_mapping and name not in self.fqn_to_index_mapping:
            raise TesseraError(f"fqn_to_index_mapping has no file for '{name}'", "usage")

    def prepare_local_plan(self, plan):
        for item in plan.items:
            self._refuse(item)
        return plan

    def prepare_global_plan(self, plans):
        own = [*(self._path_of(file) for file in range(1, self._number_of_files() + 1)), INDEX] if self._joins() else []
        self._place.begin(len(plans), own)
        filled = [plan for plan in plans if plan.items]
        whole = len(filled) < 2 and all(item.tensor_data.chunk.sizes == item.tensor_data.size for plan in filled for item in plan.items)
        return [dataclasses.replace(plan, storage_data={"shard_index": number, "shards": len(plans), "is_whole": whole and not self.save_distributed})
                for number, plan in enumerate(plans, 1)]

    # ---- what one rank writes ----

    def _write_files(self, plan, planner):
        files, seen, rank = collections.defaultdict(list), collections.Counter(), plan.storage_data
        for item in plan.items:
            number = rank["shard_index"] + seen[item.index.fqn] * rank["shards"]  # a rank may hold several boxes of a tensor, but a file only one
            seen[item.index.fqn] += 1
            files[self._path_of(self._file_of(item.index.fqn), None if rank["is_whole"] else number)].append(item)
        self._place.begin_rank(rank["shard_index"] - 1, rank["shards"], files)
        results = _Results()
        try:
            with ThreadPoolExecutor(self.thread_count) as pool:
                for of_file in pool.map(lambda each: self._write_file(*each, planner, not rank["is_whole"]), files.items()):
                    results += of_file
        except BaseException:
            for name in files:
                _remove(self._place.stage(name))
            raise
        return results

    def _path_of(self, file, shard=None):
        """Returns the path of a file in the directory."""
        name = f"model-{file:05}-of-{self._number_of_files():05}{ENDING}"
        if shard is None:
            return name
        return os.path.join(SHARDED if self.save_distributed and self.enable_consolidation else "", f"shard-{shard:05}-{name}")

    def _write_file(self, path, items, planner, is_shard):
        tensors = {}
        for item in items:
            data = item.tensor_data
            tensors[item.index.fqn] = _Tensor(item.index.fqn, data.properties.dtype, tuple(data.chunk.sizes), tuple(data.chunk.offsets))
        items, results = sorted(items, key=lambda item: _order(tensors[item.index.fqn])), []
        with _Writer(self._place.stage(path), [tensors[item.index.fqn] for item in items], is_shard, self.checksums, self.sync_files) as file:
            for item, data in _in_host_memory(items, planner, self.per_thread_copy_ahead, as_stored=False):
                tensor, data = tensors[item.index.fqn], data.resolve_conj().resolve_neg().contiguous()
                if data.dtype != tensor.dtype or tuple(data.shape) != tensor.shape:
                    raise TesseraError(f"'{tensor.name}' was planned as {tensor.dtype} {list(tensor.shape)}, but is {data.dtype} {list(data.shape)}", "usage")
                file.write(data.data_ptr(), tensor.nbytes)
                results.append(WriteResult(index=item.index, size_in_bytes=tensor.nbytes, storage_data=_StorageInfo(path, 0, tensor.nbytes)))
        return results

    # ---- what the coordinator does at the end ----

    def finish(self, metadata, results):
        try:
            names = sorted({result.storage_data.relative_path for rank in results for result in rank})
            for name in names:
                if not os.path.exists(self._place.stage(name)):
                    raise TesseraError(f"{self.path}: there is no '{os.path.basename(name)}', which another rank has written; with form=\"safetensors\" all ranks "
                                       "write to one file system", "not found")
            if self._joins():
                names = self._join(metadata, names)
            self._place.publish(names, INDEX if self._joins() else None)
        finally:
            self._place.release()

    def _join(self, metadata, names):
        """Makes whole tensors of the shards of all ranks, and their index. Returns the names of the files to be published."""
        files = collections.defaultdict(list)
        for name, stored in metadata.state_dict_metadata.items():
            files[self._path_of(self._file_of(name))].append(_Tensor(name, stored.properties.dtype, tuple(stored.size), (0,) * len(stored.size)))
        shards = [name for name in names if name not in files]
        if shards:
            self._join_files(files, self._place.stage(os.path.dirname(shards[0])))
        if not self.save_distributed:
            for name in shards:
                os.unlink(self._place.stage(name))
        self._write_index(metadata)
        return [*files, *(shards if self.save_distributed else ()), INDEX]

    def _join_files(self, files, shards):
        with Checkpoint(shards, _purpose=FOR_VALUES, _warns=False) as checkpoint:
            for tensor in itertools.chain(*files.values()):
                if checkpoint[tensor.name].shape != tensor.shape:
                    raise TesseraError(f"{self.path}: '{tensor.name}' is {list(tensor.shape)}, but its shards make up {list(checkpoint[tensor.name].shape)}", "malformed")
            with ThreadPoolExecutor(self.thread_count_consolidation) as pool:
                list(pool.map(lambda each: self._join_file(checkpoint, each[0], sorted(each[1], key=_order)), files.items()))

    def _join_file(self, checkpoint, path, tensors):
        room = torch.empty(0, dtype=torch.uint8)
        with _Writer(self._place.stage(path), tensors, False, self.checksums, self.sync_files) as file:
            for tensor in tensors:
                for offsets, sizes in _pieces(tensor.shape, tensor.dtype.itemsize):
                    size = math.prod(sizes) * tensor.dtype.itemsize
                    if size > room.numel():
                        room = torch.empty(max(size, min(_JOIN_BYTES, sum(tensor.nbytes for tensor in tensors))), dtype=torch.uint8)
                    if size:
                        checkpoint._session.read([(checkpoint[tensor.name]._index, offsets, sizes, room.data_ptr(), size)])
                        file.write(room.data_ptr(), size)

    def _write_index(self, metadata):
        stored = metadata.state_dict_metadata
        index = {"metadata": {"total_size": sum(math.prod(value.size) * value.properties.dtype.itemsize for value in stored.values())},
                 "weight_map": {name: os.path.basename(self._path_of(self._file_of(name))) for name in sorted(stored)}}
        data = json.dumps(index, indent=2).encode()
        _write_new(self._place.stage(INDEX), with_end_sum(data) if self.checksums else data, self.sync_files)
