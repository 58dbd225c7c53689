"""Checkpoints that tessera.torch.StorageWriter writes into a directory.

Every rank writes one file or several with unique names, after it has listed the names in a journal next to them. When all files are on
disk, the coordinator writes `.metadata` under a temporary name, syncs it, and renames it. At every moment the directory therefore contains the
old checkpoint or the new one. The files that the old one lists are removed afterwards.

    __R_TOKEN.distcp     a rank's file; TOKEN is random. __R_N_TOKEN.distcp if it has several
    .tessera-save-…      locks, journals and records (native/publish/saves.h), through which saves and the commands of `tessera` know
                         of each other: they do not write to a directory at the same time, and remove what the other left when killed

A rank that saves on its own is its own coordinator, with the marker `__R.metadata`."""
from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import threading
import time
from typing import Any

from ._library import _Error, _WRITE, TesseraError, _char, _function, _int, _p, _raise, warn
from ._save_place import TO_REPLACE, Place, names_of_files, token_of

_open_save = _function("save_open", _p, _char, ctypes.c_int64, _int, _WRITE, _p)
_begin_save = _function("save_begin", _int, _p, _char, _char, ctypes.c_size_t, _p)
_unchanged = _function("save_unchanged", _int, _p, _p)
_record = _function("save_record", _int, _p, _char, _char, ctypes.c_size_t, _p)
_end_save = _function("save_end", _int, _p, _char, _char, ctypes.c_size_t, _p)
_close_save = _function("save_close", None, _p)
_write_journal = _function("save_journal", _int, _char, _char, _char, ctypes.c_size_t, _int, _p)

_locks: dict[tuple[str, int | None], _Lock] = {}  # those of coordinators, by path and rank
os.register_at_fork(after_in_child=_locks.clear)  # the parent's saves are not the child's to end
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}  # of file systems without hard links
_LAST_SECONDS = 2  # that a thread whose save has failed may take to end


def _sync_directory(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _create(path):
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


@contextlib.contextmanager
def _naming(path):
    """Adds the path to errors of descriptors, such as a full disk."""
    try:
        yield
    except OSError as e:
        if e.filename is None and e.errno is not None:
            raise OSError(e.errno, e.strerror, path) from None
        raise


def _write_new(path, data, sync):
    """Creates a file with these bytes, and, with `sync`, returns when it is on disk. Leaves no file if that fails."""
    with open(_create(path), "wb") as f:
        try:
            with _naming(path):
                f.write(data)
                f.flush()
                if sync:
                    os.fsync(f.fileno())
        except BaseException:
            _remove(path)
            raise


def _missing(path):
    """Returns the directories that have to be created for `path`, the lowest first."""
    missing, path = [], path.rstrip("/")
    while path and not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path).rstrip("/")
    return missing


def _remove(path):
    """Removes a regular file. Returns whether there was one."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        os.unlink(path)
        return True
    except FileNotFoundError:
        return False


def _identity(path):
    """Returns what identifies a file and its present content, in a form that JSON can store, or None if the file does not exist. An inode
    number is not enough, because a new file may get that of a removed one."""
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return None
    return [info.st_ino, info.st_size, info.st_mtime_ns]


def _names(names):
    """Returns names as C takes them."""
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def _do(function, path, *arguments):
    err = _Error()
    if function(*arguments, ctypes.byref(err)) != 0:
        _raise(err, path)


def name_of_journal(token):
    return f".tessera-save-{token}.journal"


def name_of_record(token):
    return f".tessera-save-{token}.publishing"


class _Lock:
    """Of a coordinator. PyTorch does not tell a writer that another rank has failed, so the lock may still be there when the save is over:
    a thread does one save at a time, and what it began earlier has ended when it begins another one, or when it has ended itself."""

    def __init__(self, path, open_handle, close_handle, *arguments):
        said, err = [], _Error()

        def write(_ctx, data, size, _err):
            said.append(ctypes.string_at(data, size).decode("utf-8", "replace"))
            return 0
        self._thread = threading.current_thread()
        self.close_handle, self.handle = close_handle, open_handle(os.fsencode(path), *arguments, _WRITE(write), ctypes.byref(err))
        if not self.handle:
            _raise(err, path)
        try:
            for text in said:
                warn(text)
        except BaseException:  # warnings may be errors
            self.close()
            raise

    def is_over(self):
        until = time.monotonic() + _LAST_SECONDS
        while self._thread.is_alive() and self._thread is not threading.current_thread():
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def close(self):
        handle, self.handle = self.handle, None
        self.close_handle(handle)


class NewFile:
    """One of a rank's files, which is created by its first write."""

    def __init__(self, path, sync):
        self.name, self._path, self._sync, self._size = os.path.basename(path), path, sync, 0
        self._fd: Any = None

    def write(self, view):
        self.write_at(self._size, view)

    def write_at(self, offset, view):
        if self._fd is None:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)  # a directory that the coordinator has just made may not be visible on other nodes yet
            self._fd = _create(self._path)
        self._size = max(self._size, offset + len(view))
        with _naming(self._path):
            while view:
                written = os.pwrite(self._fd, view[:64 << 20], offset)
                view, offset = view[written:], offset + written

    def finish(self):
        self.write(b"")  # an object may have no bytes
        with _naming(self._path):
            if self._sync:
                os.fsync(self._fd)
            self._close()

    def _close(self):
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def discard(self):
        with contextlib.suppress(OSError):
            self._close()
        _remove(self._path)


class _Files(list):
    """A rank's files, and the journal that lists them."""

    def __init__(self, directory, number, count):
        token = directory.new_token()
        super().__init__(NewFile(directory.at(name), directory.sync_files) for name in names_of_files(number, token, count))
        self._directory, self._journal = directory, directory.at(name_of_journal(token))
        os.makedirs(directory.path, exist_ok=True)  # local directories of several nodes are made by their own ranks
        try:
            names = _names(file.name for file in self)
            _do(_write_journal, directory.path, os.fsencode(directory.path), token.encode(), names, len(names), directory.sync_files)
        except BaseException:
            directory.remove_made()
            raise

    def finish(self):
        self._directory.sync()

    def discard(self):
        for file in self:
            file.discard()
        _remove(self._journal)
        self._directory.remove_made()


class Directory(Place):
    _made = ()  # directories that did not exist when the save began, the lowest first; of a failed save, the last rank removes them

    def remove_made(self):
        for directory in self._made:
            try:
                os.rmdir(directory)
            except OSError:  # another rank still has a file there
                return

    def at(self, name):
        return os.path.join(self.path, name)

    def sync(self):
        if self.sync_files:
            _sync_directory(self.path)

    def set_up(self):
        self.refuse_marker(os.listdir(self.path) if os.path.isdir(self.path) else [])
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise FileExistsError(f"{self.path}: exists and is not a directory")
        self._made = _missing(self.path)

    def begin(self):
        os.makedirs(self.path, exist_ok=True)
        self._lock()
        try:  # an old checkpoint whose metadata cannot be read is not replaced
            self._replaced = self.files_of_checkpoint() if os.path.lexists(self.at(self.marker)) else set()
            names = _names(sorted(self._replaced))
            _do(_begin_save, self.path, self._handle(), self.marker.encode(), names, len(names))
        except BaseException:
            self.release()
            raise

    def new_files(self, number, expected):
        """expected: bytes of each file, about."""
        return _Files(self, number, len(expected))

    def publish(self, data, files):
        """files: the names of all ranks' files."""
        token, names = self.new_token(), _names(files)
        marker, written = f".tessera-save-{token}.metadata", False
        try:
            _write_new(self.at(marker), data, self.sync_files)
            _do(_record, self.path, self._handle(), token.encode(), names, len(names))
            written = True
            self.sync()
            if self.overwrite:
                _do(_unchanged, self.path, self._handle())
                os.rename(self.at(marker), self.at(self.marker))
            else:
                self._rename_new(marker)
        except Exception:
            if not (written and self._has_its_name(marker)):
                for name in (marker, *files, *(name_of_journal(token_of(name)) for name in files), name_of_record(token)):
                    _remove(self.at(name))
            raise
        self._made = ()
        _remove(self.at(marker))
        self.sync()
        _do(_end_save, self.path, self._handle(), token.encode(), names, len(names))

    def _has_its_name(self, marker):
        """Whether the marker is published, which is possible even if the call that did it failed, for example on NFS."""
        there = _identity(self.at(marker))
        return there is None or there == _identity(self.at(self.marker))

    def _rename_new(self, marker):
        """Gives the marker its name unless another checkpoint has appeared there."""
        try:
            os.link(self.at(marker), self.at(self.marker), follow_symlinks=False)
        except FileExistsError:
            raise self._appeared() from None
        except OSError as e:
            if e.errno not in _NO_LINKS:
                raise
            if os.path.lexists(self.at(self.marker)):
                raise self._appeared() from None
            os.rename(self.at(marker), self.at(self.marker))

    def _appeared(self):
        return FileExistsError(f"{self.path}: holds a checkpoint already ({self.marker}), which appeared during the save{TO_REPLACE}")

    # ---- one save at a time ----

    def _key(self):
        return os.path.realpath(self.path), self.rank

    def _open(self):
        return _Lock(self.path, _open_save, _close_save, -1 if self.rank is None else self.rank, self.sync_files)

    def _handle(self):
        return _locks[self._key()].handle

    def _lock(self):
        key = self._key()
        if key in _locks:
            if not _locks[key].is_over():
                raise TesseraError(f"{self.path}: another thread is saving to this directory", "exists")
            _locks.pop(key).close()
        _locks[key] = self._open()

    def release(self):
        lock = _locks.pop(self._key(), None)
        if lock:
            lock.close()
        self.remove_made()
