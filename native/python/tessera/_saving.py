"""Writes to object stores through ctypes; see output_bindings.c."""
import ctypes
import os

from ._library import _Error, _Stop, _WRITE, _char, _collect, _function, _int, _interruptible, _p, _raise, _u32, _u64, warn_of_stores

SENDS, PUBLISHES, REPLACES = range(3)

_open = _function("saving_open", _p, _char, _u32, _char, _p)
_close = _function("saving_close", None, _p)
_names = _function("saving_names", _int, _p, _WRITE, _p, _p)
_create = _function("saving_create", _int, _p, _char, _u64, _p)
_write = _function("saving_write", _int, _p, _u64, _p, ctypes.c_size_t, _p)
_hand_over = _function("saving_hand_over", _int, _p, _u64, _WRITE, _p, _p)
_keep = _function("saving_keep", None, _p)
_take_over = _function("saving_take_over", _int, _p, _char, _u64, _p, ctypes.c_size_t, _p)
_join = _function("saving_join", _int, _p, _p, _p)
_complete = _function("saving_complete", _int, _p, _p)
_publish = _function("saving_publish", _int, _p, _char, _p, ctypes.c_size_t, _p)
_put_note = _function("saving_put_note", _int, _p, _char, _char, _p)
_read_note = _function("saving_read_note", _int, _p, _char, _WRITE, _p, _p)
_remove = _function("saving_remove", _int, _p, _char, _p)
_give_up = _function("saving_give_up", _int, _p, _p)


class _Buffer(ctypes.Structure):
    """Python's Py_buffer. ctypes itself cannot give the address of read-only memory."""
    _fields_ = [("buf", _p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t), ("readonly", _int), ("ndim", _int),
                ("format", _p), ("shape", _p), ("strides", _p), ("suboffsets", _p), ("internal", _p)]


_get_buffer, _release_buffer = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
_get_buffer.argtypes, _release_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), _int], [ctypes.POINTER(_Buffer)]


class Joining(ctypes.Structure):
    """The files of whole tensors that are joined from the shards in a directory or below a URL. files: {name: {tensor: bytes}}"""
    _fields_ = [("shards", _char), ("files", _char), ("files_size", ctypes.c_size_t), ("bytes", _p), ("tensors", _char), ("tensors_size", ctypes.c_size_t),
                ("file_of", _p), ("stop", _p), ("threads", _u32), ("unsummed", ctypes.c_uint8)]

    def __init__(self, shards, files, threads, is_summed):
        tensors = [(name, number) for number, of_file in enumerate(files.values()) for name in of_file]
        names, listed = (b"".join(name.encode() + b"\0" for name in of) for of in (files, (name for name, _ in tensors)))
        self._bytes = (_u64 * len(files))(*(sum(of_file.values()) for of_file in files.values()))
        self._file_of = (_u32 * len(tensors))(*(number for _, number in tensors))
        self._stop = _Stop()
        super().__init__(os.fsencode(shards), names, len(names), ctypes.addressof(self._bytes), listed, len(listed), ctypes.addressof(self._file_of),
                         ctypes.addressof(self._stop.flag), threads, not is_summed)

    def write(self, function, handle, path):
        """Joins them with a function of the library. Ctrl-C ends it."""
        err = _Error()
        if _interruptible([self._stop], function, handle, ctypes.byref(self), ctypes.byref(err)) != 0:
            _raise(err, path)


class Saving:
    """One process's share of a save to `url`. SENDS: one rank's file. PUBLISHES: the whole checkpoint, if there is none; REPLACES: also
    if there is one. marker: the name whose presence makes it one. Closing removes what was begun and not published."""

    def __init__(self, url, kind, marker):
        self.url, self._handle, self._process = url, None, os.getpid()
        self._stop = _Stop()  # a signal is handled when the call returns
        err = _Error()
        self._handle = _open(os.fsencode(url), kind, os.fsencode(marker), ctypes.byref(err))
        if not self._handle:
            _raise(err, url)

    def _do(self, function, *arguments):
        err = _Error()
        if function(self._handle, *arguments, ctypes.byref(err)) != 0:
            _raise(err, self.url)

    def _gather(self, function, *arguments):
        return _collect([self._stop], lambda *to: function(self._handle, *arguments, *to), self.url)

    def close(self):
        handle, self._handle = self._handle, None
        if handle and self._process == os.getpid():  # the child of a fork must not abandon what its parent sends
            _close(handle)

    __del__ = close

    def names(self):
        """Returns the names of all objects that were there when this was opened."""
        return [os.fsdecode(name) for name in self._gather(_names).split(b"\0")[:-1]]

    def create(self, name, expected):
        self._do(_create, os.fsencode(name), expected)

    def write(self, offset, view):
        buffer = _Buffer()
        _get_buffer(view, ctypes.byref(buffer), 0)
        try:
            self._do(_write, offset, buffer.buf, buffer.len)
        finally:
            _release_buffer(ctypes.byref(buffer))

    def hand_over(self, size):
        """Sends the rest of the file, and returns what another process needs to make it visible."""
        return self._gather(_hand_over, size)

    def keep(self):
        """Lets closing keep the upload, because it has been completed."""
        if self._handle:
            _keep(self._handle)

    def take_over(self, name, size, note):
        self._do(_take_over, os.fsencode(name), size, note, len(note))

    def complete(self):
        """Makes what was taken over visible; there is no marker among it."""
        self._do(_complete)

    def join(self, joining):
        """Writes the files of whole tensors, which `publish` makes visible."""
        joining.write(_join, self._handle, self.url)

    def publish(self, marker, data):
        self._do(_publish, os.fsencode(marker), data, len(data))
        warn_of_stores()

    def put_note(self, name, text):
        self._do(_put_note, os.fsencode(name), text)

    def read_note(self, name):
        return self._gather(_read_note, os.fsencode(name))

    def remove(self, name):
        self._do(_remove, os.fsencode(name))

    def give_up_uploads(self):
        """Abandons the uploads that killed saves have left."""
        self._do(_give_up)
