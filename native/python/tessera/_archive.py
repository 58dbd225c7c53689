"""Writes what torch.save writes, with CRC-32s by instructions of the processor: PyTorch's own take as long as writing does."""
import ctypes
import functools
import pickle

import torch

from ._library import TesseraError, _WRITE, _function, _int, _p, _u32, _u64, _written, crc32

PIECE_BYTES = 512 << 10  # are still in the processor's cache when they are written, after their CRC-32 was computed
_RECORDS = {".format_version", ".storage_alignment", "byteorder"}  # which the library writes


class _Item(ctypes.Structure):
    """A tsr_dcp_pickled."""
    _fields_ = [("pickle", ctypes.c_char_p), ("pickle_size", ctypes.c_size_t), ("byte_lengths", _p), ("crcs", _p), ("storage_count", _u32), ("unsummed", ctypes.c_uint8)]


_item_piece = _function("item_piece", _int, _p, _u32, _WRITE, _p, _p)


def in_pieces(address, size):
    """Yields memory as (address, memoryview), in pieces of PIECE_BYTES or, the last one, of less than twice as many."""
    count = max(1, size // PIECE_BYTES) if size else 0
    for n in range(count):
        begin = n * PIECE_BYTES
        length = PIECE_BYTES if n + 1 < count else size - begin
        yield address + begin, memoryview((ctypes.c_char * length).from_address(address + begin)).cast("B")


class _Archive:
    """Receives from PyTorch's pickler what its own zip writer would: the pickle, and the storages in their order."""

    def __init__(self):
        self._pickle, self._storages = b"", []

    def write_record(self, name, data, size):
        if name == "data.pkl":
            self._pickle = data
        elif name == f"data/{len(self._storages)}":
            self._storages.append((data, size))
        elif name not in _RECORDS:
            raise TesseraError(f"PyTorch {torch.__version__} writes a record '{name}', which tessera.torch.StorageWriter does not know", "unsupported")

    def write(self, out, is_summed):
        count = len(self._storages)
        lengths, crcs = (_u64 * max(1, count))(*(size for _, size in self._storages)), (_u32 * max(1, count))()
        item = _Item(self._pickle, len(self._pickle), ctypes.addressof(lengths), ctypes.addressof(crcs), count, not is_summed)
        for at, (data, size) in enumerate(self._storages):
            out.write(_piece(item, at))
            for address, view in in_pieces(data.data_ptr(), size):
                if is_summed:
                    crcs[at] = crc32(crcs[at], address, len(view))
                out.write(view)
        out.write(_piece(item, count))


def _piece(item, at):
    return _written(functools.partial(_item_piece, ctypes.byref(item), at), None)


def write_archive(value, out, is_summed):
    """Writes the archive of a tensor."""
    archive = _Archive()
    torch.serialization._save(value, archive, pickle, torch.serialization.DEFAULT_PROTOCOL, False)
    archive.write(out, is_summed)
