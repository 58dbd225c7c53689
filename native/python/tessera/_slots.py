"""Reads entries into tensors of any device, dtype and strides. Contiguous tensors of the stored dtype on the CPU are filled directly. All
others are read through reused slots of host memory: the library's threads fill one slot while another is copied to the device. For
CUDA devices the slots are pinned, so copies run at the rate of the bus."""
from __future__ import annotations

import math
import sys
from typing import Any

import torch

SLOTS = 2
SLOT_BYTES = 32 << 20
ALIGNMENT = 256  # where a piece begins in a slot; a multiple of every dtype's size


def dtype_of(entry) -> Any:
    """Returns PyTorch's dtype of a tensor entry, or None if this version does not have it."""
    return getattr(torch, entry.dtype, None)


class _Slot:
    def __init__(self, size, device):
        self.memory = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.copied = torch.cuda.Event() if device.type == "cuda" else None
        self.device = device

    def wait(self):
        if self.copied is not None:
            self.copied.synchronize()

    def send(self, pieces):
        """Copies pieces, (target, offset of its bytes in the slot, their dtype), to the device. For CUDA, returns before the copies end."""
        for target, at, dtype in pieces:
            size = target.numel() * dtype.itemsize
            target.copy_(self.memory[at:at + size].view(dtype).view(target.shape), non_blocking=self.copied is not None)
        if self.copied is not None:
            self.copied.record(torch.cuda.current_stream(self.device))


def _pieces(target, offsets, most):
    """Splits a target into parts of at most `most` elements, in row-major order. Returns (part, its offsets in the whole tensor)."""
    if target.numel() <= most:
        return [(target, offsets)]
    dim = next(d for d, size in enumerate(target.shape) if size > 1)
    each = max(1, most // math.prod(target.shape[dim + 1:]))
    found = []
    for begin in range(0, target.shape[dim], each):
        part = target.narrow(dim, begin, min(each, target.shape[dim] - begin))
        found += _pieces(part, (*offsets[:dim], offsets[dim] + begin, *offsets[dim + 1:]), most)
    return found


class _SlotReader:
    """Reads entries of one checkpoint into tensors of one device, in the order of `add`; `finish` returns when all are there."""

    def __init__(self, session, device, check):
        self._session, self._device, self._check = session, device, check
        self._items, self._bytes = [], 0

    def add(self, entry, offsets, target, dtype):
        """dtype: torch's dtype of the entry. target: has the sizes of the box at `offsets`."""
        self._items.append((entry, tuple(offsets), target, dtype))
        self._bytes += target.numel() * dtype.itemsize + ALIGNMENT

    def _all_pieces(self):
        most = sys.maxsize if self._session.is_compressed() else SLOT_BYTES  # compressed chunks can be read only from their beginning
        for entry, offsets, target, dtype in self._items:
            for part, at in _pieces(target, offsets, most // dtype.itemsize) if target.numel() else []:
                yield entry, at, part, dtype

    def _fills(self):
        """Yields lists of pieces that are read together, with the number of bytes that they need."""
        together, size = [], 0
        for piece in self._all_pieces():
            *_, part, dtype = piece
            needed = -(-part.numel() * dtype.itemsize // ALIGNMENT) * ALIGNMENT
            if together and size + needed > SLOT_BYTES:
                yield together, size
                together, size = [], 0
            together.append((*piece, size))
            size += needed
        if together:
            yield together, size

    def finish(self):
        slots = []
        for number, (pieces, size) in enumerate(self._fills()):
            if number < SLOTS:
                slots.append(_Slot(max(size, min(SLOT_BYTES, self._bytes)), self._device))
            slot = slots[number % SLOTS]
            slot.wait()
            if size > slot.memory.numel():
                slot.memory = _Slot(size, self._device).memory
            address = slot.memory.data_ptr()
            self._session.read([(entry._index, at, tuple(part.shape), address + begin, part.numel() * dtype.itemsize)
                                for entry, at, part, dtype, begin in pieces], self._check)
            slot.send([(part, begin, dtype) for _, _, part, dtype, begin in pieces])
        for slot in slots:
            slot.wait()


def _takes_bytes(tensor, dtype):
    """Whether a tensor can be filled with the stored bytes as they are."""
    return tensor.device.type == "cpu" and tensor.dtype == dtype and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def read_tensors(session, targets, check=None):
    """Fills targets, (entry, offsets of a box in it, tensor of the box's sizes). Returns when all of them have their values. check: from
    session.checking."""
    direct, readers = [], {}
    for entry, offsets, tensor in targets:
        dtype = dtype_of(entry)
        if _takes_bytes(tensor, dtype):
            direct.append((entry._index, tuple(offsets), tuple(tensor.shape), tensor.data_ptr(), tensor.numel() * tensor.element_size()))
        else:
            readers.setdefault(tensor.device, _SlotReader(session, tensor.device, check)).add(entry, offsets, tensor, dtype)
    session.read(direct, check)
    for reader in readers.values():
        reader.finish()
