"""The library, through ctypes. Structures here mirror those of bindings.c and tessera/status.h."""
from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import sys
import _thread
import threading
import time
import warnings
import weakref
from typing import Any

from ._choices import Choices, Layers, encoded, path_text, whole_number
from ._options import OPTIONS

MAX_NDIM = 64
_QUICK_BYTES = 16 << 20  # smaller reads end too soon for a thread of their own to be worthwhile
_library = ctypes.CDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "_tessera.so"))


class TesseraError(Exception):
    """An error of the library. The message states what is wrong and where. `status` names its kind: "malformed", "i/o", "not found", …;
    `byte_position` is the offset in the file, or None. It can be pickled, so PyTorch's collectives can send it to other ranks."""

    status: str
    byte_position: int | None

    def __init__(self, message: str, status: str, byte_position: int | None = None) -> None:
        super().__init__(message)
        self.status, self.byte_position = status, byte_position

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.status, self.byte_position)


Error = TesseraError


class _Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("byte_position", ctypes.c_uint64), ("message", ctypes.c_char * 768)]


class _Str(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]

    def text(self):
        return ctypes.string_at(self.data, self.size).decode("utf-8", "surrogatepass") if self.size else ""


class _Opening(ctypes.Structure):
    _fields_ = [("paths", ctypes.c_void_p), ("path_count", ctypes.c_size_t), ("part", ctypes.c_char_p), ("step", ctypes.c_char_p),
                ("shards", ctypes.c_char_p), ("shards_text", _Str), ("threads", ctypes.c_uint32), ("io_depth", ctypes.c_uint32), ("purpose", ctypes.c_uint32),
                ("metadata_rank", ctypes.c_uint32), ("has_metadata_rank", ctypes.c_uint8), ("is_compared", ctypes.c_uint8),
                ("salvage", ctypes.c_uint8), ("inverse", ctypes.c_uint8), ("dequantize", ctypes.c_uint8), ("canonical", ctypes.c_uint8), ("map", ctypes.c_char_p), ("map_text", _Str), ("lora", ctypes.c_char_p)]


class EntryInfo(ctypes.Structure):
    _fields_ = [("fqn", _Str), ("type", _Str), ("kind", ctypes.c_char_p), ("dtype", ctypes.c_char_p), ("shape", ctypes.c_uint64 * MAX_NDIM),
                ("bytes", ctypes.c_uint64), ("chunks", ctypes.c_uint64), ("ndim", ctypes.c_uint32), ("path_length", ctypes.c_uint32),
                ("requires_grad", ctypes.c_uint8), ("has_copies", ctypes.c_uint8)]


class _PathItem(ctypes.Structure):
    _fields_ = [("key", _Str), ("integer", ctypes.c_int64), ("kind", ctypes.c_uint32)]


class _ReadItem(ctypes.Structure):
    _fields_ = [("index", ctypes.c_uint64), ("offsets", ctypes.c_void_p), ("sizes", ctypes.c_void_p), ("buffer", ctypes.c_void_p),
                ("bytes", ctypes.c_uint64)]


class _TextSlice(ctypes.Structure):
    _fields_ = [("offsets", ctypes.c_uint64 * MAX_NDIM), ("sizes", ctypes.c_uint64 * MAX_NDIM), ("shape", ctypes.c_uint64 * MAX_NDIM), ("ndim", ctypes.c_uint32)]


class _Slice(ctypes.Structure):
    _fields_ = [("fqn", _Str), ("ndim", ctypes.c_uint32), ("offsets", ctypes.c_void_p), ("sizes", ctypes.c_void_p), ("shape", ctypes.c_void_p)]


class _OptimizerMesh(ctypes.Structure):
    _fields_ = [("data_rank", ctypes.c_uint32), ("data_world", ctypes.c_uint32), ("tensor_parallel", ctypes.c_bool)]


class _Planned(ctypes.Structure):
    _fields_ = [("index", ctypes.c_uint64), ("fqn", _Str), ("parameter", _Str),
                *((name, ctypes.c_uint64 * MAX_NDIM) for name in ("storage_offsets", "dest_offsets", "sizes", "dest_size")),
                ("kind", ctypes.c_uint32), ("path_length", ctypes.c_uint32), ("ndim", ctypes.c_uint32),
                ("has_shard", ctypes.c_uint8), ("is_unknown", ctypes.c_uint8)]


class PlannedRead:
    """What a rank reads of one entry of an optimizer's state; see tsr_optim_read in tessera/sys/optim_load.h. `index` is None for an empty
    dict. `path` leads from the root, as (whether it is a position in a list, the key or position)."""

    OBJECT, WHOLE, BOX = range(3)

    def __init__(self, planned, path):
        self.index = planned.index if planned.index != 2**64 - 1 else None
        self.name, self.parameter, self.kind, self.path = planned.fqn.text(), planned.parameter.text(), planned.kind, path
        self.has_shard, self.is_unknown = bool(planned.has_shard), bool(planned.is_unknown)
        self.storage_offsets, self.dest_offsets, self.sizes, self.dest_size = (
            tuple(numbers[:planned.ndim]) for numbers in (planned.storage_offsets, planned.dest_offsets, planned.sizes, planned.dest_size))


_WRITE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_SAY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_Error))
_PROGRESS = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
_p, _int, _char = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_u32 = ctypes.c_uint32
_u64 = ctypes.c_uint64


class _Option(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class _Request(ctypes.Structure):
    _fields_ = [("command", ctypes.c_char_p), ("operands", ctypes.c_void_p), ("operand_count", ctypes.c_size_t),
                ("options", ctypes.c_void_p), ("option_count", ctypes.c_size_t)]


class _Call(ctypes.Structure):
    _fields_ = [("write", _WRITE), ("say", _SAY), ("progress", _PROGRESS), ("stop", ctypes.c_void_p), ("writes", ctypes.c_uint8)]


def _function(name, result, *arguments):
    f = getattr(_library, "tsr_python_" + name)
    f.restype, f.argtypes = result, arguments
    return f


_open = _function("open", _p, _p, _p, _p)
_uses_shards = _function("uses_shards", _int, _p)
_close = _function("close", None, _p)
_allow_expansion = _function("allow_expansion", None, _p)
_unchanged = _function("unchanged", _int, _p, _p)
_status_name = _function("status_name", _char, _int)
_format = _function("format", _char, _p)
_matches = _function("matches", _int, _char, ctypes.c_size_t, _char, ctypes.c_size_t)
_own_files = _function("own_files", _int, _p, _WRITE, _p, _p)
_warnings = _function("warnings", _int, _p, _WRITE, _p, _p)
_file = _function("file", _int, _p, _char, _WRITE, _p, _p)
_take_store_warning = _function("take_store_warning", _int, _char, ctypes.c_size_t)
_count = _function("count", _u64, _p)
_entry = _function("entry", None, _p, _u64, _p)
_chunk = _function("chunk", None, _p, _u64, _u64, _p, _p)
_is_tiled = _function("is_tiled", _int, _p, _u64, _p, _p)
_path_item = _function("path_item", None, _p, _u64, _u32, _p)
_read = _function("read", _int, _p, _p, ctypes.c_size_t, _p, _p)
_check_open = _function("check_open", _p, _p, _p)
_check_end = _function("check_end", _int, _p, _p, ctypes.c_uint8, _p)
_is_plain = _function("is_plain", _int, _p, _u64, _p)
_is_compressed = _function("is_compressed", _int, _p)
_has_value = _function("has_value", _int, _p, _u64)
_object = _function("object", _int, _p, _u64, _WRITE, _p, _p)
_plan_optimizer = _function("plan_optimizer", _p, _p, _char, _p, _p, ctypes.c_size_t, _p)
_free_plan = _function("free_plan", None, _p)
_plan_count = _function("plan_count", ctypes.c_size_t, _p)
_planned = _function("planned", None, _p, ctypes.c_size_t, _p)
_planned_path_item = _function("planned_path_item", None, _p, ctypes.c_size_t, _u32, _p)
_run_command = _function("call", _int, _p, _p)
_parse_slice = _function("slice", _int, _char, ctypes.c_size_t, _u32, _p, _p, _p)
_check_cast = _function("check_cast", _int, _p, _p, ctypes.c_size_t, _char, _p)
_give_up_locks = _function("after_fork", None)
crc32 = _function("crc32", _u32, _u32, _p, ctypes.c_size_t)  # (crc, address, size)


_ALL_OPTIONS = {name: kind for options in OPTIONS.values() for name, kind in options.items()}


def in_python(message, command=None):
    """Options in messages are keywords here: "--world-size 4" is world_size=4. Commands, which are in backticks, stay as they are."""
    options = {**_ALL_OPTIONS, **OPTIONS.get(command or "", {})}

    def keyword(found):
        if not found[1]:
            return found[0]
        name, between, value, more = found[1].replace("-", "_"), found[2] or "", found[3] or "", found[4] or ""
        kind, *words = options.get(name, ("text",))
        if kind == "flag":
            return f"{name}=True{between}{value}{more}"
        if value in words:  # the first of a list
            return f'{name}="{value}"' + re.sub("[a-z][a-z-]+", lambda word: f'"{word[0]}"' if word[0] in words else word[0], more)
        return (f"{name}={value}" if value and value.isupper() else f"{name}{between}{value}") + more
    return re.sub(r"`[^`]*`|--([a-z][a-z-]*[a-z])(?:([ =])([A-Za-z0-9-]+)((?:, [a-z][a-z-]+)*(?: or [a-z][a-z-]+)?))?", keyword, message)


def _raise(err, path):
    message = in_python(err.message.decode("utf-8", "replace"))
    position = None if err.byte_position == 2**64 - 1 else err.byte_position
    if path and path not in message:
        message = f"{path}: {message}"
    raise TesseraError(message, _status_name(err.status).decode(), position)


def matches(glob, name):
    """Whether a GLOB of the command line matches a name."""
    glob, name = encoded(glob), encoded(name)
    return bool(_matches(glob, len(glob), name, len(name)))


def slice_of(inside, entry):
    """Reads the text between the brackets of FQN[SLICE], or None. Returns offsets, sizes and the shape of the result."""
    text, ndim, found, err = None if inside is None else encoded(inside), len(entry.shape), _TextSlice(), _Error()
    if _parse_slice(text, 0 if text is None else len(text), ndim, (_u64 * max(1, ndim))(*entry.shape), ctypes.byref(found), ctypes.byref(err)) != 0:
        _raise(err, f"'{entry.name}'")
    return list(found.offsets[:ndim]), list(found.sizes[:ndim]), list(found.shape[:found.ndim])


def warn(message):
    """Warns at the line that called this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def warn_of_stores():
    """Warns of what an object store refused since the last call, such as checksums in requests."""
    text = ctypes.create_string_buffer(1024)
    if _take_store_warning(text, len(text)):
        warn(text.value.decode(errors="replace"))


class _Stop:
    """Ends the library's calls for one session. `flag`: not 0 while calls must end. `calls`: the calls in progress, of all threads.
    `refusal`: why no more calls are allowed, or None."""

    def __init__(self):
        self.flag, self.calls, self.refusal = ctypes.c_int(0), set(), None

    def end(self):
        """Ends all calls. Returns whether none is in progress any more."""
        until = time.monotonic() + 10
        self.refusal = self.refusal or "the checkpoint is closed"
        self.flag.value = 1
        while self.calls and time.monotonic() < until:
            time.sleep(0.01)
        return not self.calls


def _refuse_ended(stops):
    for stop in stops:
        if stop.refusal:
            raise ValueError(stop.refusal)


def _counted(stops, function, *arguments):
    """Calls a function of the library in this thread. Another thread may close the session meanwhile, which ends the call."""
    call = object()
    try:
        for stop in stops:
            stop.calls.add(call)  # before the session is looked at, which is not freed as long as it has calls
        _refuse_ended(stops)
        result = function(*arguments)
    finally:
        for stop in stops:
            stop.calls.discard(call)
    _refuse_ended(stops)
    return result


def _interruptible(stops, function, *arguments):
    """Calls a function of the library so that Ctrl-C ends it. Python handles signals in its main thread, but not while that is in the
    library, so the call is made in another thread. `stops` belong to the sessions that it uses. Without any, nothing ends the call early,
    and the interruption is raised when it has ended."""
    if threading.current_thread() is not threading.main_thread():
        return _counted(stops, function, *arguments)
    due, results, failures, ended = [True], [], [], []
    running = threading.Lock()  # held until the call has ended
    running.acquire()

    def work():
        try:
            due.pop()
        except IndexError:
            return  # another thread makes the call
        try:
            results.append(_counted(stops, function, *arguments))
        except BaseException as e:
            failures.append(e)
        finally:
            ended.append(True)
            running.release()

    interruption = None
    while not ended:
        # A signal handler can raise anywhere in here, before the thread has started as well as afterwards. So a call that is still due is
        # begun once more, and ends early then.
        try:
            if interruption:
                for stop in stops:
                    stop.flag.value = 1
            if due:
                try:
                    # Not Thread.start, which waits: an exception in that wait can become a RuntimeError, and the call be made twice.
                    _thread.start_new_thread(work, ())
                except RuntimeError:  # the interpreter is ending, or there are no threads left
                    work()
            # Not Thread.join nor Event.wait, which are not safe from an exception at any point. In turns, because the system may
            # deliver the signal to another thread, and this one would sleep on.
            while not ended:
                running.acquire(timeout=0.1)
        except BaseException as e:
            interruption = interruption or e
    for stop in stops:
        stop.flag.value = int(stop.refusal is not None)
    if interruption or failures:
        raise interruption or failures[0]
    return results[0]


def _written(call, path):
    """Returns what a function writes through its callback."""
    parts, err = [], _Error()

    def write(_ctx, data, size, _err):
        parts.append(ctypes.string_at(data, size))
        return 0
    if call(_WRITE(write), None, ctypes.byref(err)) != 0:
        _raise(err, path)
    return b"".join(parts)


def _collect(stops, call, path):
    """The same of a function that Ctrl-C ends."""
    return _written(functools.partial(_interruptible, stops, call), path)


def run_command(command, operands, options, *, writes=False, on_progress: Any = None):
    """Runs a command of the command line. operands: bytes; options: (name, value) as bytes, without dashes; the value of a flag is None.
    Returns what it writes, its messages as (text, status) of warnings (status None) and errors, and whether it ran.

    `writes`: the command makes files. It is then stopped only where it can clean up. Raises what `on_progress` raises, and KeyboardInterrupt,
    once the command has ended."""
    stop, parts, said = _Stop(), [], []
    raised: list[BaseException] = []

    def write(_ctx, data, size, _err):
        parts.append(ctypes.string_at(data, size))
        return 0

    def say(_ctx, saying, text, err):
        if saying == 0:
            position = err.contents.byte_position
            said.append((text, _status_name(err.contents.status).decode(), None if position == 2**64 - 1 else position))
        elif saying == 1:
            said.append((text, None, None))

    def progress(_ctx, done, total):
        try:
            if not raised:
                on_progress(done, total)
        except BaseException as e:
            raised.append(e)
            stop.flag.value = 1

    given, pairs = (_char * len(operands))(*operands), (_Option * len(options))(*options)
    request = _Request(command.encode(), ctypes.addressof(given), len(operands), ctypes.addressof(pairs), len(options))
    call = _Call(_WRITE(write), _SAY(say), _PROGRESS(progress) if on_progress else _PROGRESS(), ctypes.addressof(stop.flag), writes)
    ran = _interruptible([stop], _run_command, ctypes.byref(request), ctypes.byref(call))
    if raised:
        raise raised[0]
    return b"".join(parts), said, bool(ran)


# What a checkpoint is opened for: tsr_purpose of tessera/checkpoint.h.
FOR_VALUES, FOR_NAMES, FOR_FINDINGS = range(3)


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _after_fork():
    """The child has no other threads, so calls that they had in progress never end, and what they write is not the child's."""
    _give_up_locks()
    for session in list(_sessions):
        session.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class Session:
    """An opened checkpoint. Not to be used after close."""

    _handle: int | None = None

    def __init__(self, path, choices=Choices(), layers=Layers(), *, threads=0, io_depth=0, purpose=FOR_VALUES, allow_expansion=False, metadata_rank=None, warns=True):
        self.path = path_text(path)
        self._stop = _Stop()
        _sessions.add(self)
        self._handle = self._open(choices, layers, threads, io_depth, purpose, metadata_rank)
        self._has_warned = not warns
        if allow_expansion:
            _allow_expansion(self._handle)
        if choices.shards is not None and not _uses_shards(self._handle):
            warn(f"{self.path}: shards is not used: its tensors are not plain tensors of several ranks")

    def _open(self, choices, layers, threads, io_depth, purpose, metadata_rank):
        paths, (name, text), err = choices.paths(self.path), choices.map_of_ranks(), _Error()
        array = (_char * len(paths))(*paths)
        what = _Opening(paths=ctypes.addressof(array), path_count=len(paths), part=choices.name_of_part(), step=choices.name_of_step(),
                        shards=name, threads=whole_number(threads, "threads"), io_depth=whole_number(io_depth, "io_depth"), purpose=purpose, metadata_rank=metadata_rank or 0,
                        has_metadata_rank=metadata_rank is not None, is_compared=choices.is_compared, salvage=bool(choices.salvage))
        buffer = kept = None  # which `what` refers to
        if text is not None:
            buffer = ctypes.create_string_buffer(text, len(text) + 1)
            what.shards_text.data, what.shards_text.size = ctypes.addressof(buffer), len(text)
        what.inverse, what.dequantize, what.canonical, what.map = layers.inverse, layers.dequantize, layers.canonical, layers.map_name()
        what.lora = os.fsencode(path_text(layers.lora, "lora")) if layers.lora is not None else None
        document = layers.map_text()
        if document is not None:
            kept = ctypes.create_string_buffer(document, len(document) + 1)
            what.map_text.data, what.map_text.size = ctypes.addressof(kept), len(document)
        handle = _interruptible([self._stop], _open, ctypes.byref(what), ctypes.byref(self._stop.flag), ctypes.byref(err))
        if not handle:
            _raise(err, self.path)
        return handle

    @property
    def handle(self):
        if not self._handle:
            raise ValueError(self._stop.refusal or "the checkpoint is closed")
        return self._handle

    def __reduce__(self):
        raise TypeError(f"{self.path}: an opened checkpoint cannot be copied or pickled; open it where it is used")

    def close(self):
        handle = vars(self).pop("_handle", None)  # in one of several threads, which may have no common lock of the interpreter
        if self._stop.end() and handle:
            _close(handle)

    def after_fork(self):
        if self._stop.calls and self._handle:
            self._handle = None
            self._stop.calls.clear()
            self._stop.refusal = "another thread was reading from the checkpoint when this process was forked; open it again"

    def _do(self, function, *arguments):
        return _counted([self._stop], function, self.handle, *arguments)

    def __del__(self):
        if self._handle:
            self.close()

    def unchanged(self):
        err = _Error()
        if self._do(_unchanged, ctypes.byref(err)) != 0:
            _raise(err, self.path)

    def _warn(self):
        """Says once what everyone who uses values should know, such as which files are not read."""
        if self._has_warned:
            return
        self._has_warned = True
        for text in _collect([self._stop], lambda *to: _warnings(self.handle, *to), self.path).split(b"\0")[:-1]:
            warn(f"{self.path}: {text.decode('utf-8', 'replace')}")

    def format(self):
        return _format(self.handle).decode()

    def own_files(self):
        """Returns the names of the files that the checkpoint lists."""
        names = _collect([self._stop], lambda *to: _own_files(self.handle, *to), self.path)
        return [os.fsdecode(name) for name in names.split(b"\0")[:-1]]

    def file(self, name):
        """Returns the bytes of a file of the checkpoint."""
        return _collect([self._stop], lambda *to: _file(self.handle, os.fsencode(name), *to), self.path)

    def count(self):
        return _count(self.handle)

    def entry(self, index):
        info = EntryInfo()
        _entry(self.handle, index, ctypes.byref(info))
        return info

    def chunk(self, index, number, ndim):
        offsets, sizes = (_u64 * MAX_NDIM)(), (_u64 * MAX_NDIM)()
        self._do(_chunk, index, number, offsets, sizes)
        return tuple(offsets[:ndim]), tuple(sizes[:ndim])

    def is_tiled(self, index):
        """Whether every element of a tensor is in exactly one chunk."""
        is_tiled, err = ctypes.c_uint8(), _Error()
        if self._do(_is_tiled, index, ctypes.byref(is_tiled), ctypes.byref(err)) != 0:
            _raise(err, self.path)
        return bool(is_tiled.value)

    def keys(self, index, length):
        """Returns the path of an entry from the root of the nested state dict: keys as str, and positions in lists as int."""
        item, keys = _PathItem(), []
        for at in range(length):
            _path_item(self.handle, index, at, ctypes.byref(item))
            keys.append(item.key.text() if item.kind == 0 else str(item.integer) if item.kind == 1 else item.integer)
        return tuple(keys)

    @contextlib.contextmanager
    def checking(self, verify=True):
        """Gives what `read` takes as its check: then all that is read whole in this context is compared with the CRCs that are stored."""
        err = _Error()
        check = _interruptible([self._stop], _check_open, self.handle, ctypes.byref(err)) if verify else None
        if verify and not check:
            _raise(err, self.path)
        failed = True
        try:
            yield check
            failed = False
        finally:
            if check and _interruptible([self._stop], _check_end, self.handle, check, not failed, ctypes.byref(err)) != 0:
                _raise(err, self.path)

    def read(self, items, check=None):
        """Reads items, (index, offsets, sizes, address, bytes). The library's threads share the work, without the interpreter's lock.
        check: from `checking`."""
        self._warn()
        array = (_ReadItem * len(items))()
        numbers = []
        for to, (index, offsets, sizes, address, size) in zip(array, items):
            boxes = (_u64 * max(1, 2 * len(offsets)))(*offsets, *sizes)
            numbers.append(boxes)
            at = ctypes.addressof(boxes)
            to.index, to.offsets, to.sizes, to.buffer, to.bytes = index, at, at + 8 * len(offsets), address, size
        err = _Error()
        few = sum(size for *_, size in items) < _QUICK_BYTES
        call = _counted if few else _interruptible
        if call([self._stop], _read, self.handle, array, len(items), check, ctypes.byref(err)) != 0:
            _raise(err, self.path)
        if "://" in str(self.path):
            warn_of_stores()

    def check_cast(self, indices, dtype):
        """Raises TesseraError if a cast of these entries would change numbers or scales of a quantized tensor."""
        err = _Error()
        if self._do(_check_cast, (_u64 * max(1, len(indices)))(*indices), len(indices), dtype.encode(), ctypes.byref(err)) != 0:
            _raise(err, self.path)

    def foreign(self, index):
        """Returns None for an object that is data, otherwise the name of a class or function in it that is not: "" if that is not known."""
        name = _Str()
        return None if self._do(_is_plain, index, ctypes.byref(name)) else name.text()

    def is_compressed(self):
        """Whether chunks may be inside compressed streams, which are read from their beginning."""
        return bool(self._do(_is_compressed))

    def has_value(self, index):
        return bool(self._do(_has_value, index))

    def object(self, index):
        self._warn()
        return _collect([self._stop], lambda *to: _object(self.handle, index, *to), self.path)

    def plan_optimizer(self, key, mesh, slices):
        """Returns what a rank reads below `key`. mesh: (rank, world size, whether it is 2-D) of the data-parallel group. slices: (fqn, offsets
        or None, sizes, shape) of the model's parameters."""
        array, kept = (_Slice * len(slices))(), []
        for to, (fqn, offsets, sizes, shape) in zip(array, slices):
            name = fqn.encode("utf-8", "surrogatepass")
            numbers = [(_u64 * max(1, len(shape)))(*of) if of is not None else None for of in (offsets, sizes, shape)]
            kept += [name, *numbers]
            to.fqn.data, to.fqn.size, to.ndim = ctypes.cast(name, ctypes.c_void_p), len(name), len(shape)
            to.offsets, to.sizes, to.shape = (ctypes.addressof(of) if of is not None else None for of in numbers)
        err, text = _Error(), key.encode("utf-8", "surrogatepass")
        plan = self._do(_plan_optimizer, text, ctypes.byref(_OptimizerMesh(*mesh)), array, len(slices), ctypes.byref(err))
        if not plan:
            _raise(err, self.path)
        try:
            return [self._planned_read(plan, at) for at in range(_plan_count(plan))]
        finally:
            _free_plan(plan)

    @staticmethod
    def _planned_read(plan, at):
        planned, item, path = _Planned(), _PathItem(), []
        _planned(plan, at, ctypes.byref(planned))
        for n in range(planned.path_length):
            _planned_path_item(plan, at, n, ctypes.byref(item))
            path.append((item.kind == 2, item.key.text() if item.kind == 0 else item.integer))
        return PlannedRead(planned, path)
