"""Checkpoints that tessera.torch.StorageWriter writes into a directory.

Every rank writes one file or several with unique names, after it has listed the names in a journal next to them. When all files are on
disk, the coordinator writes `.metadata` under a temporary name, syncs it, and renames it. At every moment the directory therefore contains the
old checkpoint or the new one. The files that the old one lists are removed afterwards.

    __R_TOKEN.distcp          a rank's file; TOKEN is random. __R_N_TOKEN.distcp if it has several
    .tessera-save-TOKEN.json  its journal: what a later save may remove if this one is killed
    .tessera-save.lock        held by the coordinator while it saves

A rank that saves on its own is its own coordinator: its marker is `__R.metadata`, and its lock `.tessera-save-R.lock`."""
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
import threading
import time

from ._library import TesseraError
from ._save_place import JOURNAL, MOST_JOURNAL_BYTES, TO_REPLACE, Place, name_of_journal, names_of_files, token_of

_locks = {}  # path of the lock → _Lock; a thread that saves there again reuses its lock
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


def _digest_of(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


class _Lock:
    """Of a coordinator. PyTorch does not tell a writer that another rank has failed, so the lock may still be there when the save is over:
    a thread does one save at a time, and what it began earlier has ended when it begins another one, or when it has ended itself."""

    def __init__(self, fd):
        self._fd, self._thread = fd, threading.current_thread()

    def is_over(self):
        until = time.monotonic() + _LAST_SECONDS
        while self._thread.is_alive() and self._thread is not threading.current_thread():
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def close(self):
        os.close(self._fd)


class _File:
    """One of a rank's files, which is created by its first write."""

    def __init__(self, directory, name):
        self.name, self._directory, self._fd = name, directory, None

    def write(self, view):
        path, at = self._directory.at(self.name), 0
        if self._fd is None:
            self._fd = _create(path)
        with _naming(path):
            while at < len(view):
                at += os.write(self._fd, view[at:at + (64 << 20)])

    def finish(self):
        self.write(b"")  # an object may have no bytes
        with _naming(self._directory.at(self.name)):
            if self._directory.sync_files:
                os.fsync(self._fd)
            self._close()

    def _close(self):
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def discard(self):
        with contextlib.suppress(OSError):
            self._close()
        _remove(self._directory.at(self.name))


class _Files(list):
    """A rank's files, and the journal that lists them."""

    def __init__(self, directory, number, count):
        token = directory.new_token()
        super().__init__(_File(directory, name) for name in names_of_files(number, token, count))
        self._directory, self._journal = directory, directory.at(name_of_journal(token))
        os.makedirs(directory.path, exist_ok=True)  # local directories of several nodes are made by their own ranks
        try:
            _write_new(self._journal, json.dumps({"files": [file.name for file in self]}).encode(), directory.sync_files)
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
    _found = {}  # the coordinator's: identities of the marker and of the files that are replaced, when the save began
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
            self._found = {name: _identity(self.at(name)) for name in sorted(self._replaced | {self.marker})}
            self._clean()
        except BaseException:
            self.release()
            raise

    def new_files(self, number, expected):
        """expected: bytes of each file, about."""
        return _Files(self, number, len(expected))

    def publish(self, data, files):
        """files: the names of all ranks' files."""
        token = self.new_token()
        marker, journal = f".tessera-save-{token}.metadata", name_of_journal(token)
        replaced = {name: then for name, then in self._found.items() if name != self.marker and name not in files}
        written = False
        try:
            _write_new(self.at(journal), json.dumps({"files": [marker], "replaces": replaced, "marker": hashlib.sha256(data).hexdigest()}).encode(),
                       self.sync_files)
            _write_new(self.at(marker), data, self.sync_files)
            written = True
            self.sync()
            if self.overwrite:
                self._refuse_changed()
                os.rename(self.at(marker), self.at(self.marker))
            else:
                self._rename_new(marker)
        except Exception:
            if not (written and self._has_its_name(marker)):
                for name in (marker, *files, *(name_of_journal(token_of(name)) for name in files), journal):
                    _remove(self.at(name))
            raise
        self._made = ()
        _remove(self.at(marker))
        self.sync()
        for name, then in replaced.items():
            self._remove_replaced(name, then)
        for name in files:
            _remove(self.at(name_of_journal(token_of(name))))
        _remove(self.at(journal))
        self.sync()

    def _has_its_name(self, marker):
        """Whether the marker is published, which is possible even if the call that did it failed, for example on NFS."""
        there = _identity(self.at(marker))
        return there is None or there == _identity(self.at(self.marker))

    def _refuse_changed(self):
        """Raises TesseraError if another program has saved here since the save began."""
        for name, then in self._found.items():
            if _identity(self.at(name)) not in (None, then):
                raise TesseraError(f"{self.path}: another program has written '{name}' during the save, so nothing was published", "changed")

    def _remove_replaced(self, name, then):
        """Removes a file only if it has this identity. A planted journal could name any file, but its author cannot know the identity."""
        if then and _identity(self.at(name)) == then:
            _remove(self.at(name))

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

    def _lock_path(self):
        return os.path.join(os.path.realpath(self.path), ".tessera-save.lock" if self.rank is None else f".tessera-save-{self.rank}.lock")

    def _lock(self):
        key = self._lock_path()
        if key in _locks:
            if not _locks[key].is_over():
                raise TesseraError(f"{self.path}: another thread is saving to this directory", "exists")
            _locks.pop(key).close()
        while True:
            fd = os.open(key, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                raise TesseraError(f"{self.path}: another process is saving to this directory", "exists") from None
            except OSError:  # a file system without locks
                pass
            try:
                if os.path.samestat(os.fstat(fd), os.lstat(key)):
                    break
            except FileNotFoundError:
                pass  # its last holder removed it meanwhile
            os.close(fd)
        _locks[key] = _Lock(fd)

    def release(self):
        lock = _locks.pop(self._lock_path(), None)
        if lock:
            _remove(self._lock_path())
            lock.close()
        self.remove_made()

    # ---- what interrupted saves left ----

    def _journals(self):
        """Yields (token, document) of the journals that saves of this user left."""
        for name in sorted(os.listdir(self.path)):
            match = JOURNAL.fullmatch(name)
            if not match or not self.may_clean(match[1]):
                continue
            info = os.lstat(self.at(name))
            if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_size > MOST_JOURNAL_BYTES:
                continue
            try:
                with open(self.at(name), "rb") as f:
                    document = json.load(f)
            except ValueError:
                document = {}  # killed while it was written: nothing had been created yet
            if isinstance(document, dict):
                yield match[1], document

    def _left_by(self, token, document):
        """Returns the names that an interrupted save may have created."""
        return [name for name in document.get("files", []) if isinstance(name, str) and token in name and "/" not in name]

    def _replaced_by(self, document):
        """Returns (name, identity) of the files that an interrupted save was to replace, if its marker is in place."""
        replaces = document.get("replaces")
        published = document.get("marker") and os.path.lexists(self.at(self.marker)) and _digest_of(self.at(self.marker)) == document["marker"]
        return [(name, then) for name, then in replaces.items() if "/" not in name] if published and isinstance(replaces, dict) else []

    def _clean(self):
        """Removes what interrupted saves left, except the files of the checkpoint that is there. Every file that no journal lists stays."""
        journals = list(self._journals())
        if not journals:
            return
        for token, document in journals:
            for name in self._left_by(token, document):
                if name not in self._replaced:
                    _remove(self.at(name))
            for name, then in self._replaced_by(document):
                if name not in self._replaced:
                    self._remove_replaced(name, then)
            _remove(self.at(name_of_journal(token)))
        self.sync()
