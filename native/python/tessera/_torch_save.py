"""A StorageWriter for torch.distributed.checkpoint whose checkpoints appear completely or not at all.

Every rank writes one file under a name that nothing else has. What it creates is listed in a journal next to it before it is created.
When all files are on disk the coordinator writes `.metadata` under a temporary name, syncs it, and renames it: at every instant
the directory holds the old checkpoint or the new one. The files that the old one lists are removed after that.

    __R_TOKEN.distcp          a rank's file; TOKEN is random
    .tessera-save-TOKEN.json  its journal: what a later save may remove if this one is killed
    .tessera-save.lock        held by the coordinator while it saves"""
from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import io
import json
import os
import pickle
import re
import secrets
import stat
import uuid

import torch
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter as _StorageWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.futures import Future

from ._checkpoint import Checkpoint
from ._choices import StrPath
from ._library import FOR_NAMES, TesseraError

_MARKER = ".metadata"
_LOCK = ".tessera-save.lock"
_JOURNAL = re.compile(r"\.tessera-save-([0-9a-f]{16})\.json")
_MOST_JOURNAL_BYTES = 64 << 20
_locks = {}  # directory → file descriptor: a process that saves there again takes its lock over


# ---- files ----


def _sync_directory(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _create(path):
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def _write_new(path, data):
    """A new file with these bytes, on disk when it returns."""
    with open(_create(path), "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


def _remove(path):
    """Whether a regular file was there and is gone."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        os.unlink(path)
        return True
    except FileNotFoundError:
        return False


def _digest_of(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


class _Directory:
    """The directory that is saved to: its marker, what its checkpoint owns, and what interrupted saves left in it."""

    def __init__(self, path):
        self.path = path

    def at(self, name):
        return os.path.join(self.path, name)

    def marker_of(self):
        """The name of the file that makes the directory a checkpoint, or None."""
        names = sorted(os.listdir(self.path)) if os.path.isdir(self.path) else []
        ours = [name for name in names if not name.startswith(".tessera-")]
        return next((name for name in ours if name.endswith(_MARKER) or name.endswith(".index.json")), None)

    def owned(self):
        """Names of the files that the checkpoint here lists as its own, `.metadata` included; empty without one."""
        if not os.path.lexists(self.at(_MARKER)):
            return set()
        with Checkpoint(self.path, _purpose=FOR_NAMES) as checkpoint:
            return set(checkpoint._session.own_files())

    def lock(self):
        key = os.path.realpath(self.path)
        if key in _locks:
            os.close(_locks.pop(key))
        while True:
            fd = os.open(self.at(_LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                raise TesseraError(f"{self.path}: another process is saving to this directory", "exists") from None
            except OSError:  # a file system without locks
                pass
            try:
                if os.path.samestat(os.fstat(fd), os.lstat(self.at(_LOCK))):
                    break
            except FileNotFoundError:
                pass  # its last holder removed it meanwhile
            os.close(fd)
        _locks[key] = fd

    def unlock(self):
        fd = _locks.pop(os.path.realpath(self.path), None)
        if fd is not None:
            _remove(self.at(_LOCK))
            os.close(fd)

    def _journals(self):
        """(token, document) of the journals that a save of this user left."""
        for name in sorted(os.listdir(self.path)):
            match = _JOURNAL.fullmatch(name)
            if not match:
                continue
            info = os.lstat(self.at(name))
            if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_size > _MOST_JOURNAL_BYTES:
                continue
            try:
                with open(self.at(name), "rb") as f:
                    document = json.load(f)
            except ValueError:
                document = {}  # killed while it was written: nothing had been created yet
            if isinstance(document, dict):
                yield match[1], document

    def _left_by(self, token, document):
        """Names that an interrupted save may have created, and those that it was to replace if its marker is in place."""
        names = [name for name in document.get("files", []) if isinstance(name, str) and token in name and "/" not in name]
        published = document.get("marker") and os.path.lexists(self.at(_MARKER)) and _digest_of(self.at(_MARKER)) == document["marker"]
        return names + [name for name in document.get("replaces", []) if published and isinstance(name, str)]

    def clean(self, kept):
        """Removes what interrupted saves left, except the names in `kept`. Every file that no journal lists stays."""
        journals = list(self._journals())
        if not journals:
            return
        for token, document in journals:
            for name in self._left_by(token, document):
                if name not in kept:
                    _remove(self.at(name))
            _remove(self.at(f".tessera-save-{token}.json"))
        _sync_directory(self.path)


# ---- one rank's file ----


class _Digested(io.RawIOBase):
    """A file, with a digest of what is written to it. Of a large record the digest has the length alone: its CRC-32 is in the
    archive's directory, which is written after it and is small."""

    LARGE = 1 << 20

    def __init__(self, fd):
        super().__init__()
        self.fd, self.size, self.digest = fd, 0, hashlib.sha256()

    def writable(self):
        return True

    def tell(self):
        return self.size

    def write(self, data):
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            at += os.write(self.fd, view[at:at + (64 << 20)])
        self.digest.update(view if len(view) < self.LARGE else len(view).to_bytes(8, "little"))
        self.size += len(view)
        return len(view)


class _Crc32Option:
    """Whether torch.save states CRC-32s, as long as this is entered. PyTorch has one setting for the process."""

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


def _tensor_of(item, planner):
    tensor = planner.resolve_data(item).detach()
    tensor = tensor.cpu()
    # torch.save writes the whole storage: of a view only its own elements are wanted.
    return tensor.clone() if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size() else tensor


def _write_items(out, name, plan, planner):
    results = []
    for item in plan.items:
        offset = out.tell()
        if item.type == WriteItemType.BYTE_IO:
            data = planner.resolve_data(item).getbuffer()
            out.write(data)
            out.digest.update(data)
        else:
            torch.save(_tensor_of(item, planner), out)
        length = out.tell() - offset
        results.append(WriteResult(index=item.index, size_in_bytes=length, storage_data=_StorageInfo(name, offset, length)))
    return results


@dataclasses.dataclass
class _Ranked:
    """What prepare_global_plan tells each rank: its number among the plans."""

    number: int


class StorageWriter(_StorageWriter):
    """path: a directory, which is made where there is none. overwrite: replace the checkpoint that is there; files that it does not list
    stay. checksums: state a CRC-32 for every record, and make the save's id a digest of the content; False leaves both out.

    An existing checkpoint is a FileExistsError on every rank, before anything is written. A failure of one rank fails the save on all
    ranks, and leaves the directory's checkpoint, or its absence, as it was. The next save removes what a failed one left."""

    def __init__(self, path: StrPath, *, overwrite: bool = False, checksums: bool = True) -> None:
        super().__init__()
        self.overwrite, self.checksums = overwrite, checksums
        self.reset(path)

    def reset(self, checkpoint_id=None):
        if checkpoint_id:
            path = os.fspath(checkpoint_id)
            if "://" in path:
                raise TesseraError(f"tessera.torch.StorageWriter cannot write to '{path.partition('?')[0]}': it writes to a directory on this machine; "
                                   "save there, and upload the checkpoint with `tessera cp DIRECTORY URL`", "unsupported")
            self._directory = _Directory(path)
        self._coordinator = False
        self._replaced = set()  # the coordinator's: files of the checkpoint that is replaced
        self._save_id = str(uuid.uuid4())

    @property
    def path(self):
        return self._directory.path

    @property
    def checkpoint_id(self):
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return isinstance(checkpoint_id, (str, os.PathLike)) and "://" not in os.fspath(checkpoint_id)

    def storage_meta(self):
        return StorageMeta(checkpoint_id=self.path, save_id=self._save_id)

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        if kwargs.get("use_collectives", True) is False:
            raise TesseraError("tessera.torch.StorageWriter writes one .metadata for all ranks: use_collectives=False is not supported", "unsupported")
        self._coordinator = is_coordinator
        marker = self._directory.marker_of()
        if marker and (not self.overwrite or marker != _MARKER):
            kind = "a checkpoint" if marker == _MARKER else "a checkpoint of another form"
            raise FileExistsError(f"{self.path}: holds {kind} already ({marker})")
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise FileExistsError(f"{self.path}: exists and is not a directory")
        if is_coordinator:
            os.makedirs(self.path, exist_ok=True)
            self._directory.lock()
            try:
                self._replaced = self._directory.owned()  # an old checkpoint whose metadata cannot be read is not replaced
                self._directory.clean(kept=self._replaced)
            except BaseException:
                self._directory.unlock()
                raise

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return [dataclasses.replace(plan, storage_data=_Ranked(number)) for number, plan in enumerate(plans)]

    def write_data(self, plan, planner):
        done = Future()
        try:
            done.set_result(self._write_file(plan, planner) if plan.items else [])
        except BaseException:
            if self._coordinator:
                self._directory.unlock()
            raise
        return done

    def _write_file(self, plan, planner):
        token = secrets.token_hex(8)
        name = f"__{plan.storage_data.number}_{token}.distcp"
        journal = self._directory.at(f".tessera-save-{token}.json")
        os.makedirs(self.path, exist_ok=True)  # local directories of several nodes are made by their own ranks
        _write_new(journal, json.dumps({"files": [name]}).encode())
        try:
            fd = _create(self._directory.at(name))
            try:
                out = _Digested(fd)
                with _Crc32Option(self.checksums):
                    results = _write_items(out, name, plan, planner)
                os.fsync(fd)
            finally:
                os.close(fd)
            _sync_directory(self.path)
        except BaseException:
            _remove(self._directory.at(name))
            _remove(journal)
            raise
        for result in results:
            result.storage_data.digest = out.digest.hexdigest()  # for finish, which takes it off
        return results

    def _take_save_id(self, storage_data):
        """An id out of the names, places and digests, so that equal content has an equal id."""
        digest = hashlib.sha256()
        for index, info in sorted(storage_data.items(), key=lambda item: (item[0].fqn, item[0].index or 0, tuple(item[0].offset or ()))):
            digest.update(f"{index.fqn}\0{index.offset}\0{info.offset}\0{info.length}\0{info.__dict__.pop('digest')}\n".encode("utf-8", "surrogatepass"))
        if self.checksums:
            self._save_id = str(uuid.UUID(bytes=digest.digest()[:16]))

    def finish(self, metadata, results):
        try:
            storage_data = {result.index: result.storage_data for rank in results for result in rank}
            self._take_save_id(storage_data)
            metadata.storage_data, metadata.storage_meta = storage_data, self.storage_meta()
            if hasattr(metadata, "version"):
                from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION
                metadata.version = CURRENT_DCP_VERSION
            self._publish(pickle.dumps(metadata), {info.relative_path for info in storage_data.values()})
        finally:
            self._directory.unlock()

    def _publish(self, data, files):
        directory, token = self._directory, secrets.token_hex(8)
        marker, journal = f".tessera-save-{token}.metadata", f".tessera-save-{token}.json"
        replaced = sorted(self._replaced - files - {_MARKER})
        _write_new(directory.at(journal), json.dumps({"files": [marker], "replaces": replaced, "marker": hashlib.sha256(data).hexdigest()}).encode())
        _write_new(directory.at(marker), data)
        _sync_directory(self.path)
        if self.overwrite:
            os.rename(directory.at(marker), directory.at(_MARKER))
        else:
            self._rename_new(marker)
        _sync_directory(self.path)
        for name in replaced:
            _remove(directory.at(name))
        for name in files:
            _remove(directory.at(f".tessera-save-{name.rpartition('_')[2].removesuffix('.distcp')}.json"))
        _remove(directory.at(journal))
        _sync_directory(self.path)

    def _rename_new(self, marker):
        """Gives the marker its name unless another checkpoint has appeared there."""
        try:
            os.link(self._directory.at(marker), self._directory.at(_MARKER), follow_symlinks=False)
        except FileExistsError:
            raise FileExistsError(f"{self.path}: holds a checkpoint already ({_MARKER}), which appeared during the save") from None
        except OSError:  # a file system without hard links
            os.rename(self._directory.at(marker), self._directory.at(_MARKER))
        _remove(self._directory.at(marker))
