"""Safetensors files that tessera.torch.StorageWriter(…, form="safetensors") writes, with the names and the content of those of PyTorch's
HuggingFaceStorageWriter, and with the checksum of Tessera's.

    shard-0000R-model-0000I-of-0000N.safetensors   what rank R - 1 holds of the tensors of file I (save_distributed)
    model-0000I-of-0000N.safetensors               the whole tensors of file I
    model.safetensors.index.json                   next to whole tensors: which file has which tensor

In a directory, all files are first written next to it, or in it if it is a mount point or nothing can be created next to it. The library
(native/python/output_bindings.c) joins the shards there. When everything is complete, the coordinator publishes it (native/publish/directory_output.h): in
one step if possible; otherwise it removes the old checkpoint and then moves the new files one by one, the index last. Journals and a
record list both, so the next save or run of `tessera` removes what a killed one left. Object stores: see _Objects."""
from __future__ import annotations

import collections
import ctypes
import dataclasses
import functools
import json
import math
import os
import re
from typing import Any, Iterable

import torch
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from ._archive import in_pieces
from ._checkpoint import Checkpoint
from ._library import FOR_NAMES, TesseraError, _WRITE, _char, _function, _int, _p, _u32, _u64, crc32, warn
from ._save_directory import Directory, NewFile, _do, _Lock, _locks, _missing, _names, _write_new
from ._save_objects import SCHEMES, Objects
from ._save_place import TO_REPLACE, with_end_sum
from ._saving import REPLACES, Joining, Saving
from ._torch_save import StorageWriter, _in_host_memory, _Results, in_threads
from ._torch_versions import StorageInfo

_open_files = _function("files_open", _p, _char, _u64, _int, _WRITE, _p)
_begin_files = _function("files_begin", _int, _p, _char, ctypes.c_size_t, _char, ctypes.c_size_t, _p)
_join_files = _function("files_join", _int, _p, _p, _p)
_publish_files = _function("files_publish", _int, _p, _char, ctypes.c_size_t, _u32, _p)
_close_files = _function("files_close", None, _p)
_leave_files = _function("files_leave", None, _p)
_files_directory = _function("files_directory", _int, _char, _char, _p)
_write_journal = _function("files_journal", _int, _char, _u64, _u64, _char, ctypes.c_size_t, _p)

INDEX = "model.safetensors.index.json"
ENDING = ".safetensors"
SHARDED = "sharded"
SHARDS = ".tessera-save-shards"  # in object stores
_NEW_OBJECT = re.compile(r"model-[0-9a-f]{16}-\d{5}-of-\d{5}\.safetensors|\.tessera-save-shards/[0-9a-f]{16}-shard-[-\w]+\.safetensors")
_NO_FILE, _PATH_MAX = 2**32 - 1, 4096
_NO_SUM = "00000000"
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


class _Content:
    """What one file holds of the write items. The order of tensors is that of the safetensors library, in which each begins at a multiple of
    its element size."""

    def __init__(self, items: Iterable[Any], is_shard, is_summed):
        self.is_summed, self.tensors = is_summed, {}
        for item in sorted(items, key=lambda item: (-item.tensor_data.properties.dtype.itemsize, item.index.fqn)):
            data = item.tensor_data
            self.tensors[item.index.fqn] = item, _Tensor(item.index.fqn, data.properties.dtype, tuple(data.chunk.sizes), tuple(data.chunk.offsets))
        header, begin = {}, 0
        for name, (_, tensor) in self.tensors.items():
            header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, begin + tensor.nbytes]}
            begin += tensor.nbytes
        more = {"format": "pt"}
        if is_shard:
            more["DCP_SHARDING_INFO"] = json.dumps({name: {"saved_offsets": list(tensor.offsets)} for name, (_, tensor) in self.tensors.items()})
            more["DCP_VERSION"] = "1.0"
        header["__metadata__"] = {**more, **({"tessera.crc32": _NO_SUM} if is_summed else {})}
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        padded = text + b" " * (-(8 + len(text)) % 64)
        self._header, self._digits = bytearray(len(padded).to_bytes(8, "little") + padded), 8 + len(text) - len(_NO_SUM) - len('"}}')
        self.size = len(self._header) + begin

    def write(self, file, planner, ahead):
        """Writes the header last, because the checksum in it is that of the whole file."""
        crc, at = crc32(0, _address(self._header), len(self._header)), len(self._header)
        for item, data in _in_host_memory([item for item, _ in self.tensors.values()], planner, ahead, as_stored=False):
            tensor, data = self.tensors[item.index.fqn][1], data.resolve_conj().resolve_neg().contiguous()
            if data.dtype != tensor.dtype or tuple(data.shape) != tensor.shape:
                raise TesseraError(f"'{tensor.name}' was planned as {tensor.dtype} {list(tensor.shape)}, but is {data.dtype} {list(data.shape)}", "usage")
            for address, view in in_pieces(data.data_ptr(), tensor.nbytes):
                if self.is_summed:
                    crc = crc32(crc, address, len(view))
                file.write_at(at, view)
                at += len(view)
        if self.is_summed:
            self._header[self._digits:self._digits + len(_NO_SUM)] = b"%08x" % crc
        file.write_at(0, memoryview(self._header))


def _address(buffer):
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


class _StagedFiles(list):
    def discard(self):
        for file in self:
            file.discard()


@dataclasses.dataclass
class _New:
    """What the coordinator publishes."""

    written: dict[str, Any]  # what the ranks' files have handed over, by their names
    joined: dict[str, dict[str, int]]  # the files that whole tensors of the shards are joined to, and the bytes of each tensor
    keeps_shards: bool
    index: Any  # returns its bytes, given the names of files in the checkpoint by those that they have in a directory; None: there is no index
    threads: int
    is_summed: bool

    def joining(self, shards, names):
        return Joining(shards, {names[name]: tensors for name, tensors in self.joined.items()}, self.threads, self.is_summed)


def _is_of_others(path, name):
    return FileExistsError(f"{path}: holds '{name}', which is not part of the checkpoint that is to be replaced and would be loaded with the new one; "
                           "move it away, or save to another path")


# ---- the directory ----


class _Files(Directory):
    """The destination of a save. The coordinator holds Directory's lock."""

    def stage(self, *names):
        return os.path.join(self._stage, *names)

    def set_up(self):
        """Nothing in the destination is looked at before the coordinator has removed what killed saves left."""
        directory = ctypes.create_string_buffer(_PATH_MAX)
        _do(_files_directory, self.path, os.fsencode(self.path), directory)
        self._stage = os.fsdecode(directory.value)

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

    def _files_in(self, directory):
        path = self.at(directory)
        return sorted(os.path.join(directory, name) for name in os.listdir(path)) if os.path.isdir(path) and not os.path.islink(path) else []

    def _safetensors(self):
        return [name for directory in ("", SHARDED) for name in self._files_in(directory) if name.endswith(ENDING)]

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
        for directory in ("", SHARDED):
            files = [name for name in self._files_in(directory) if name.endswith(ENDING) or name == INDEX]
            if len(files) == 1 and files != [INDEX]:
                found += files
            elif files:
                with Checkpoint(self.at(directory), _purpose=FOR_NAMES) as checkpoint:
                    found += [os.path.join(directory, name) for name in checkpoint._session.own_files()]
        return sorted(found, key=lambda name: (name != INDEX, name))

    def _refuse_others(self, replaced):
        for name in self._safetensors():
            if name not in replaced:
                raise _is_of_others(self.path, name)

    def new_files(self, number, ranks, sizes):
        """Records the names of the files that a rank is about to write. number: of the rank, from 0."""
        names = _names(sizes)
        _do(_write_journal, self.path, os.fsencode(self.path), ranks, number, names, len(names))
        return _StagedFiles(NewFile(self.stage(name), self.sync_files) for name in sizes)

    def give_up(self):
        if self._ranks > 1:  # what they leave is listed in their journals
            _locks[self._key()].close_handle = _leave_files
        self.release()

    def publish(self, new):
        names = list(new.written)
        for name in names:
            if not os.path.exists(self.stage(name)):
                raise TesseraError(f"{self.path}: there is no '{os.path.basename(name)}', which another rank has written; with form=\"safetensors\" all ranks "
                                   "write to one file system", "not found")
        if new.joined:
            shards = self.stage(os.path.dirname(names[0]))
            new.joining(shards, {name: name for name in new.joined}).write(_join_files, self._handle(), self.path)
            if not new.keeps_shards:
                for name in names:
                    os.unlink(self.stage(name))
                names = []
        if new.index:
            _write_new(self.stage(INDEX), new.index({name: name for name in (*new.written, *new.joined)}), self.sync_files)
            names.append(INDEX)
        listed = _names(names)
        _do(_publish_files, self.path, self._handle(), listed, len(listed), len(names) - 1 if new.index else _NO_FILE)
        self._made = ()


# ---- object stores ----


class _Objects(Objects):
    """In an object store the names of files have a random token, so that the old checkpoint stays whole until the index is replaced:

        model-TOKEN-0000I-of-0000N.safetensors        uploaded by the rank that has all tensors, or by the coordinator, which joins shards
        .tessera-save-shards/TOKEN-shard-0000R-…      what the coordinator joins, until the index is there
        .tessera-save-TOKEN.json                      the journal, as of other saves (_save_objects.py)"""

    def __reduce__(self):
        return _Objects, (self.path, self.overwrite)

    def is_of(self, rank, world):
        super().is_of(rank, world)
        self.marker = INDEX

    def begin(self, ranks, own):
        super().begin()

    def refuse_marker(self, names):
        names = list(names)
        super().refuse_marker(names)
        self._refuse(name for name in names if name == "model.safetensors")  # which is opened instead of what an index lists

    def refuse_others(self, names):
        self._refuse(name for name in names if name not in self._replaced and self.may_be_data(name.removeprefix(f"{SHARDS}/"), False))

    def _refuse(self, others):
        for name in sorted(others):
            raise _is_of_others(self.path, name)

    def may_be_data(self, name, is_new):
        return bool(_NEW_OBJECT.fullmatch(name)) if is_new else "/" not in name and name.endswith(ENDING)

    def _name_of(self, name, token):
        name = os.path.basename(name)
        return f"{SHARDS}/{token}-{name}" if _is_shard(name) else name.replace("model-", f"model-{token}-", 1)

    def new_files(self, number, ranks, sizes):
        token = self.new_token()
        return self.send((self._name_of(name, token), size) for name, size in sizes.items())

    def publish(self, new):
        token = self.new_token()
        sent = {handed[0]: handed[1:] for handed in new.written.values()}
        names = {name: self._name_of(name, token) for name in new.joined} or {name: handed[0] for name, handed in new.written.items()}

        def make():
            uploads = Saving(self.path, REPLACES, INDEX) if new.joined else self._lead
            for name, (size, note) in sent.items():
                uploads.take_over(name, size, note)
            if new.joined:
                uploads.complete()
                self._lead.join(new.joining(f"{self.path.rstrip('/')}/{SHARDS}", names))
            self._lead.publish(INDEX, new.index(names))
        self.publish_made(make, names.values(), sent if new.joined else ())


# ---- the writer ----


def _is_shard(name):
    return os.path.basename(name).startswith("shard-")


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
        if "://" not in path:
            return _Files(path, self.overwrite, self.sync_files)
        shown = path.partition("?")[0]
        if not path.startswith(SCHEMES):
            raise TesseraError(f"tessera.torch.StorageWriter cannot write to '{shown}': it writes to directories, and to s3://, gs:// and az:// URLs", "unsupported")
        if not self._joins():
            raise TesseraError(f"save_distributed=True without enable_consolidation=True is not supported in object stores ('{shown}'): its shards have no index, without "
                               "which a save that was interrupted looks like a complete one", "unsupported")
        if self.save_distributed:
            warn(f"{shown}: the shards are not kept next to the joined tensors in an object store")
        return _Objects(path, self.overwrite)

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
        filled: list[Any] = [plan for plan in plans if plan.items]
        whole = len(filled) < 2 and all(item.tensor_data.chunk.sizes == item.tensor_data.size for plan in filled for item in plan.items)
        return [dataclasses.replace(plan, storage_data={"shard_index": number, "shards": len(plans), "is_whole": whole})
                for number, plan in enumerate(plans, 1)]

    # ---- what one rank writes ----

    def _writes_whole(self, plan, planner):
        """Whether this rank's files are those of the checkpoint. With a planner that caches plans, this one may be of an earlier save, since which
        another rank has gained tensors."""
        return plan["is_whole"] and not self.save_distributed and (plan["shards"] == 1 or not getattr(planner, "_enable_plan_caching", False))

    def _write_files(self, plan, planner):
        groups, seen, rank = collections.defaultdict(list), collections.Counter(), plan.storage_data
        is_whole = self._writes_whole(rank, planner)
        for item in plan.items:
            number = rank["shard_index"] + seen[item.index.fqn] * rank["shards"]  # a rank may hold several boxes of a tensor, but a file only one
            seen[item.index.fqn] += 1
            groups[self._path_of(self._file_of(item.index.fqn), None if is_whole else number)].append(item)
        contents = {name: _Content(items, not is_whole, self.checksums) for name, items in groups.items()}
        files = self._place.new_files(rank["shard_index"] - 1, rank["shards"], {name: content.size for name, content in contents.items()})
        results = _Results()
        try:
            for of_file in in_threads([], functools.partial(self._write_file, planner), self.thread_count, contents, contents.values(), files):
                results += of_file
        except BaseException:
            files.discard()
            raise
        self._place.keep_while(results, files)
        return results

    def _path_of(self, file, shard=None):
        """Returns the path of a file in the directory."""
        name = f"model-{file:05}-of-{self._number_of_files():05}{ENDING}"
        if shard is None:
            return name
        return os.path.join(SHARDED if self.save_distributed and self.enable_consolidation else "", f"shard-{shard:05}-{name}")

    def _write_file(self, planner, name, content, file):
        content.write(file, planner, self.per_thread_copy_ahead)
        results = [WriteResult(index=item.index, size_in_bytes=tensor.nbytes, storage_data=StorageInfo(name, 0, tensor.nbytes))
                   for item, tensor in content.tensors.values()]
        handed = file.finish()
        if handed:
            results[0].storage_data.handed = file.name, *handed
        return results

    # ---- what the coordinator does at the end ----

    def finish(self, metadata, results):
        try:
            written = {}
            for info in sorted((result.storage_data for rank in results for result in rank), key=lambda info: info.relative_path):
                written[info.relative_path] = written.get(info.relative_path) or info.__dict__.pop("handed", None)
            self._place.publish(_New(written, self._files_to_join(metadata, written), self.save_distributed, self._joins() and functools.partial(self._index, metadata),
                                     self.thread_count_consolidation, self.checksums))
        finally:
            self._place.release()

    def _files_to_join(self, metadata, written):
        """Returns the files of whole tensors that are not there yet, with the bytes of their tensors."""
        shards = [name for name in written if _is_shard(name)]
        if not shards or not self._joins():
            return {}
        if len(shards) < len(written):
            raise TesseraError(f"{self.path}: the ranks have saved by plans that do not belong together: some wrote shards, and one whole tensors", "usage")
        files = collections.defaultdict(dict)
        for name, stored in metadata.state_dict_metadata.items():
            files[self._path_of(self._file_of(name))][name] = math.prod(stored.size) * stored.properties.dtype.itemsize
        return files

    def _index(self, metadata, names):
        stored = metadata.state_dict_metadata
        index = {"metadata": {"total_size": sum(math.prod(value.size) * value.properties.dtype.itemsize for value in stored.values())},
                 "weight_map": {name: names[self._path_of(self._file_of(name))] for name in sorted(stored)}}
        data = json.dumps(index, indent=2).encode()
        return with_end_sum(data) if self.checksums else data
