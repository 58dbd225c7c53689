"""Safetensors files that tessera.torch.StorageWriter(…, form="safetensors") writes, with the names and the content of those of PyTorch's
HuggingFaceStorageWriter, and with the checksum of Tessera's.

    shard-0000R-model-0000I-of-0000N.safetensors   what rank R - 1 holds of the tensors of file I (save_distributed)
    model-0000I-of-0000N.safetensors               the whole tensors of file I
    model.safetensors.index.json                   next to whole tensors: which file has which tensor

All files are first written below `.tessera-save-files/`. Shards whose tensors are joined are read from there, and the joined tensors are written next to
them. When everything is on disk, the coordinator exchanges the destination for the directory with the new files, in one step. If that
is impossible, because other files are there or the file system cannot do it, it removes the old checkpoint and then moves the new files one by one, the
index last; a journal lists both, so the next save removes what a killed one left."""
from __future__ import annotations

import collections
import ctypes
import dataclasses
import itertools
import json
import math
import os
import re
import secrets
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from ._checkpoint import Checkpoint
from ._library import FOR_NAMES, FOR_VALUES, TesseraError, crc32, exchange
from ._save_directory import Directory, _create, _identity, _naming, _remove, _sync_directory, _write_new
from ._save_place import TO_REPLACE
from ._torch_save import StorageWriter, _in_host_memory, _Results

INDEX = "model.safetensors.index.json"
ENDING = ".safetensors"
SHARDED = "sharded"
_STAGE, _TREE, _SHARDS = ".tessera-save-files", "new", "shards"  # the directory; below it: what is to be published, and what is only to be joined
_JOURNAL = "journal.json"
_OURS = re.compile(r"(sharded/)?[^/]+")  # paths that a journal may name
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

    _begun = False
    _replaced: dict = {}  # the coordinator's: identities of the files that are replaced, by their paths below the directory

    def stage(self, *names):
        return os.path.join(self.path, _STAGE, *names)

    def refuse_marker(self, names):
        left = set(self._left()[0])
        for name in sorted(name for name in names if not name.startswith(".tessera-") and name not in left):
            if name.endswith(ENDING) or name == INDEX:
                if not self.overwrite:
                    raise FileExistsError(f"{self.path}: holds a checkpoint already ({name}){TO_REPLACE}")
            elif name.endswith((".metadata", ".index.json")):
                raise FileExistsError(f"{self.path}: holds a checkpoint of another form already ({name}); save to another path")
            elif name == SHARDED and not self.overwrite and any(f.endswith(ENDING) and f"{SHARDED}/{f}" not in left for f in self._files_in(SHARDED)):
                raise FileExistsError(f"{self.path}: holds a checkpoint already ({SHARDED}/){TO_REPLACE}")

    def _files_in(self, name=""):
        return sorted(os.listdir(self.at(name))) if os.path.isdir(self.at(name)) else []

    def begin(self):
        os.makedirs(self.path, exist_ok=True)
        self._lock()
        self._begun = True
        try:
            self._clean()
            self.refuse_marker(self._files_in())
            self._replaced = {name: _identity(self.at(name)) for name in self._own_files()}
            for name in (name for folder in ("", SHARDED) for name in (os.path.join(folder, f) for f in self._files_in(folder))):
                if name.endswith(ENDING) and name not in self._replaced:
                    raise FileExistsError(f"{self.path}: holds '{name}', which is not part of the checkpoint that is to be replaced and would be "
                                          "loaded with the new one; move it away, or save to another path")
            os.makedirs(self.stage(_TREE))
        except BaseException:
            self.release()
            raise

    def _own_files(self):
        """Returns the files of the checkpoint that is there, and of the shards that it was joined from."""
        found = []
        for folder in ("", SHARDED):
            files = [name for name in self._files_in(folder) if name.endswith(ENDING) or name == INDEX]
            if len(files) == 1 and files != [INDEX]:
                found.append(os.path.join(folder, *files))
            elif files:
                with Checkpoint(self.at(folder), _purpose=FOR_NAMES) as checkpoint:
                    found += [os.path.join(folder, name) for name in checkpoint._session.own_files()]
        return found

    def release(self):
        if self._begun:
            shutil.rmtree(self.stage(), ignore_errors=True)
            self._begun = False
        super().release()

    # ---- publishing ----

    def _new_files(self):
        """Returns the paths of the new files, the index last."""
        tree = self.stage(_TREE)
        found = [os.path.relpath(os.path.join(folder, name), tree) for folder, _, names in os.walk(tree) for name in names]
        return sorted(found, key=lambda name: (name == INDEX, name))

    def publish_files(self):
        names = self._new_files()
        for name in names:
            if name not in self._replaced and os.path.lexists(self.at(name)):
                raise FileExistsError(f"{self.path}: holds a checkpoint already ({name}), which appeared during the save{TO_REPLACE}")
        for name, then in self._replaced.items():
            if _identity(self.at(name)) not in (None, then):
                raise TesseraError(f"{self.path}: another program has written '{name}' during the save, so nothing was published", "changed")
        if self.sync_files:
            for folder, *_ in os.walk(self.stage(_TREE)):
                _sync_directory(folder)
        if not self._exchanged():
            self._move(names)
        self._made = ()

    def _others(self, path):
        """Returns what is in the directory at `path`, and is neither replaced nor of this save."""
        names = [name for name in os.listdir(path) if not name.startswith(".tessera-save")]
        if all(f"{SHARDED}/{name}" in self._replaced for name in self._files_in(SHARDED)):
            names = [name for name in names if name != SHARDED]
        return [name for name in names if name not in self._replaced]

    def _exchanged(self):
        """Exchanges the destination for the directory with the new files. Returns False if that is impossible; then nothing has changed."""
        real, tree = os.path.realpath(self.path), self.stage(_TREE)
        beside = os.path.join(os.path.dirname(real), f".{os.path.basename(real)}.tessera-save-{secrets.token_hex(8)}")
        if self._others(real):
            return False
        try:
            shutil.copystat(real, tree)
            for name in (name for name in os.listdir(real) if name.startswith(".tessera-save") and name.endswith(".lock")):
                os.link(os.path.join(real, name), os.path.join(tree, name))  # the lock stays held
            os.rename(tree, beside)
        except OSError:
            return False
        if not exchange(beside, real):
            os.rename(beside, tree)
            for name in (name for name in os.listdir(tree) if name.startswith(".tessera-save")):
                os.unlink(os.path.join(tree, name))
            return False
        if self.sync_files:
            _sync_directory(os.path.dirname(real))
        self._remove_exchanged(beside, real)
        return True

    def _remove_exchanged(self, old, new):
        """Removes the directory that was replaced. What somebody else has written there in the last moment is moved to the new one."""
        for name, then in self._replaced.items():
            if then and _identity(os.path.join(old, name)) == then:
                _remove(os.path.join(old, name))
        shutil.rmtree(os.path.join(old, _STAGE), ignore_errors=True)
        for name in os.listdir(old):
            if name.startswith(".tessera-save"):
                _remove(os.path.join(old, name))
            elif name == SHARDED and not os.listdir(os.path.join(old, name)):
                os.rmdir(os.path.join(old, name))
            elif not os.path.lexists(os.path.join(new, name)):
                os.rename(os.path.join(old, name), os.path.join(new, name))
        if not os.listdir(old):
            os.rmdir(old)

    def _move(self, names):
        """Removes the old checkpoint and moves the new files to their places. A reader that needs the index finds one checkpoint or none."""
        journal = {"files": {name: _identity(self.stage(_TREE, name)) for name in names}, "replaces": self._replaced}
        _write_new(self.stage(_JOURNAL), json.dumps(journal).encode(), self.sync_files)
        self._sync_stage()
        for name in sorted(self._replaced, key=lambda name: (name != INDEX, name)):
            _remove(self.at(name))
            if name == INDEX:
                self.sync()
        for name in names:
            if name == INDEX:
                self._sync_moved(names)
            os.makedirs(os.path.dirname(self.at(name)), exist_ok=True)
            os.rename(self.stage(_TREE, name), self.at(name))
        self._sync_moved(names)

    def _sync_stage(self):
        if self.sync_files:
            _sync_directory(self.stage())
            self.sync()

    def _sync_moved(self, names):
        if self.sync_files:
            for folder in {os.path.dirname(self.at(name)) for name in names if os.path.isdir(os.path.dirname(self.at(name)))}:
                _sync_directory(folder)

    # ---- what interrupted saves left ----

    def _left(self):
        """Returns the files here that a save had moved, or was to remove, when it was killed, if no whole checkpoint can be made of them; and the stage
        of that save, or None. A journal in a checkpoint from somebody else cannot know the identities of files here."""
        try:
            info = os.lstat(self.stage())
        except OSError:
            return [], None
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
            return [], None
        try:
            with open(self.stage(_JOURNAL), "rb") as f:
                journal = json.load(f)
            files, replaces = ({name: then for name, then in journal[key].items() if _OURS.fullmatch(name) and ".." not in name} for key in ("files", "replaces"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return [], self.stage()  # killed before anything was published
        here = lambda names: [name for name, then in names.items() if then and _identity(self.at(name)) == then]
        if not here(files) and len(here(replaces)) == len(replaces):
            return [], self.stage()  # nothing had been moved: the old checkpoint is whole
        return (here(replaces) if len(here(files)) == len(files) else here(files) + here(replaces)), self.stage()

    def _clean(self):
        left, stage = self._left()
        for name in left:
            _remove(self.at(name))
        if stage:
            shutil.rmtree(stage)
        real = os.path.realpath(self.path)
        beside = re.compile(re.escape(f".{os.path.basename(real)}.tessera-save-") + "[0-9a-f]{16}")
        for name in os.listdir(os.path.dirname(real)):
            path = os.path.join(os.path.dirname(real), name)
            if beside.fullmatch(name) and stat.S_ISDIR(os.lstat(path).st_mode) and os.lstat(path).st_uid == os.geteuid():
                self._remove_killed(path)
        self.sync()

    def _remove_killed(self, path):
        """Removes a directory that was exchanged or to be exchanged, except for files that no save makes."""
        shutil.rmtree(os.path.join(path, _STAGE), ignore_errors=True)
        for folder, _, names in os.walk(path, topdown=False):
            for name in names:
                if name.endswith(ENDING) or name == INDEX or name.startswith(".tessera-save"):
                    _remove(os.path.join(folder, name))
            if not os.listdir(folder):
                os.rmdir(folder)


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
        self._place.begin()
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
        results = _Results()
        with ThreadPoolExecutor(self.thread_count) as pool:
            for of_file in pool.map(lambda each: self._write_file(*each, planner, not rank["is_whole"]), files.items()):
                results += of_file
        return results

    def _path_of(self, file, shard=None):
        """Returns the path of a file below the stage."""
        name = f"model-{file:05}-of-{self._number_of_files():05}{ENDING}"
        if shard is None:
            return f"{_TREE}/{name}"
        folder = _SHARDS if not self.save_distributed else f"{_TREE}/{SHARDED}" if self.enable_consolidation else _TREE
        return f"{folder}/shard-{shard:05}-{name}"

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
            results = [result for rank in results for result in rank]
            for path in sorted({result.storage_data.relative_path for result in results}):
                if not os.path.exists(self._place.stage(path)):
                    raise TesseraError(f"{self.path}: there is no '{os.path.basename(path)}', which another rank has written; with form=\"safetensors\" all ranks "
                                       "write to one file system", "not found")
            shards = {os.path.dirname(r.storage_data.relative_path) for r in results if os.path.basename(r.storage_data.relative_path).startswith("shard-")}
            if shards and (self.enable_consolidation or not self.save_distributed):
                self._join(metadata, self._place.stage(*shards))
            if self.enable_consolidation or not self.save_distributed:
                self._write_index(metadata)
            self._place.publish_files()
        finally:
            self._place.release()

    def _join(self, metadata, shards):
        """Makes whole tensors of the shards of all ranks."""
        files = collections.defaultdict(list)
        for name, stored in metadata.state_dict_metadata.items():
            files[self._path_of(self._file_of(name))].append(_Tensor(name, stored.properties.dtype, tuple(stored.size), (0,) * len(stored.size)))
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
        _write_new(self._place.stage(_TREE, INDEX), json.dumps(index, indent=2).encode(), self.sync_files)
