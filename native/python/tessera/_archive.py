"""Writes what torch.save writes, with CRC-32s by instructions of the processor: PyTorch's own take as long as writing does. Only public functions
of PyTorch are used, and what a release pickles in another way is left to its torch.save."""
import ctypes
import functools
import io
import pickle

import torch

from ._library import _WRITE, _function, _int, _p, _u32, _u64, _written, crc32

PIECE_BYTES = 512 << 10  # are still in the processor's cache when they are written, after their CRC-32 was computed
_PROTOCOL = 2  # of the pickles of torch.save


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


class _Pickler(pickle.Pickler):
    """Pickles a dense tensor in host memory as torch.save does: its storage becomes a reference to the record data/0."""

    def __init__(self, tensor, out):
        super().__init__(out, _PROTOCOL)
        self._tensor, self.kinds = tensor, []  # of the storages that were met; None: a kind that PyTorch does not name

    def persistent_id(self, value):
        if not torch.is_storage(value):
            return None
        kind, size = torch.UntypedStorage, self._tensor.untyped_storage().nbytes()
        if not isinstance(value, kind):
            name = self._tensor.type().rpartition(".")[2]  # such as FloatTensor
            kind, size = getattr(torch, name.replace("Tensor", "Storage"), None), size // self._tensor.element_size()
        self.kinds.append(kind)
        return "storage", kind, "0", "cpu", size


def _pickled(tensor):
    """Returns the pickle that torch.save makes of a tensor, or None if the tensor consists of anything but one storage in host memory."""
    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided or tensor.device.type != "cpu":
        return None
    out = io.BytesIO()
    pickler = _Pickler(tensor, out)
    pickler.dump(tensor)
    return out.getvalue() if len(pickler.kinds) == 1 and pickler.kinds[0] else None


def _piece(item, at):
    return _written(functools.partial(_item_piece, ctypes.byref(item), at), None)


def whole_archive(value):
    """Returns the archive that PyTorch itself makes of any value, as a BytesIO."""
    archive = io.BytesIO()
    torch.save(value, archive)
    return archive


def write_archive(tensor, out, is_summed):
    """Writes the archive of a tensor. Returns False, and writes nothing, if only `whole_archive` can make it."""
    pickled = _pickled(tensor)
    if pickled is None:
        return False
    storage = tensor.untyped_storage()
    lengths, crcs = _u64(storage.nbytes()), _u32(0)
    item = _Item(pickled, len(pickled), ctypes.addressof(lengths), ctypes.addressof(crcs), 1, not is_summed)
    out.write(_piece(item, 0))
    for address, view in in_pieces(storage.data_ptr(), storage.nbytes()):
        if is_summed:
            crcs.value = crc32(crcs.value, address, len(view))
        out.write(view)
    out.write(_piece(item, 1))
    return True
