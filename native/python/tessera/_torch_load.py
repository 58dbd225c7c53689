"""Loads the tensors of a checkpoint: as a dict of new tensors, or into the tensors of a state dict."""
from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Sequence

import torch
import torch.distributed as dist
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from ._checkpoint import Checkpoint
from ._choices import Document, StrPath, state_dict as checked_state_dict, text
from ._library import FOR_VALUES, TesseraError, warn
from ._ranks import agree, attempt
from ._slots import dtype_of, read_tensors
from ._torch_metadata import MARKER, has_box, marker_of, warn_of_copies
from ._torch_versions import compute_local_shape_and_global_offset


def _known_dtype(checkpoint, entry):
    if dtype_of(entry) is None:
        raise TesseraError(f"{checkpoint.path}: '{entry.name}' is {entry.dtype}, which this PyTorch ({torch.__version__}) does not have", "unsupported")
    return dtype_of(entry)


def _is_whole(entry):
    return entry._checkpoint._session.is_tiled(entry._index)


def _open(path, choices, names):
    """Returns the checkpoint and, if every rank wrote its own metadata, what this rank wrote, or None. The latter alone is the checkpoint
    if it has all of these tensors (None: all that it names); the ranks together may not even be one checkpoint."""
    own = None
    if dist.is_available() and dist.is_initialized():
        try:
            own = Checkpoint(path, **choices, _purpose=FOR_VALUES, _metadata_rank=dist.get_rank())
        except TesseraError as e:
            if e.status != "not found":  # there are fewer ranks in the checkpoint
                raise
    if own and marker_of(own) not in (None, MARKER):
        if names is None:
            names = [name for name, entry in own.items() if entry.kind == "tensor"]
        if not all(name in own and _is_whole(own[name]) for name in names):
            return Checkpoint(path, **choices, _purpose=FOR_VALUES, _warns=False), own
    return own or Checkpoint(path, **choices, _purpose=FOR_VALUES), None


# ---- load ----


def _checked(names):
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise TypeError(f"names is a list of names, not {'one string' if isinstance(names, (str, bytes)) else type(names).__name__}")
    return list(dict.fromkeys(text(name, "each of names") for name in names))


def _read(sources, targets):
    """Fills targets, as for read_tensors, from the checkpoint and what this rank wrote, if that is not None."""
    checkpoint, own = sources
    if own is not None:
        warn_of_copies([entry for entry, *_ in targets if entry._checkpoint is checkpoint])
    for source in (checkpoint, own):
        if source is not None:
            read_tensors(source._session, [target for target in targets if target[0]._checkpoint is source])
            source.unchanged()


def _chosen(checkpoint, names):
    if names is None:
        opaque = [name for name, entry in checkpoint.items() if entry.kind == "opaque"]
        if opaque:
            warn(f"{checkpoint.path}: left out, because they are not plain tensors: {', '.join(opaque[:5])}{', …' if len(opaque) > 5 else ''}")
        return [entry for entry in checkpoint.values() if entry.kind == "tensor"]
    for name in names:
        if name not in checkpoint:
            raise TesseraError(f"{checkpoint.path}: there is no '{name}'", "not found")
        if checkpoint[name].kind == "opaque":
            raise TesseraError(f"{checkpoint.path}: '{name}' is not a plain tensor but {checkpoint[name].type}", "unsupported")
    return [checkpoint[name] for name in names if checkpoint[name].kind == "tensor"]


def load(path: StrPath, names: Iterable[str] | None = None, map_location: str | torch.device = "cpu", *, part: str | None = None,
         step: str | int | None = None, also: StrPath | Sequence[StrPath] = (), shards: Document | None = None) -> dict[str, torch.Tensor]:
    """Load tensors from any checkpoint that tessera.open accepts, and return {fqn: tensor}. Nothing in the checkpoint is executed, and
    only the requested tensors are read. If every rank wrote its own metadata (use_collectives=False) and torch.distributed is initialized,
    each rank loads what it saved itself, completed from the other ranks where it saved only some elements of a tensor.

    names: exact names; None loads every tensor. Objects are left out. map_location: the device of the tensors. part, step, also,
    shards: as for tessera.open. Raises TesseraError if a name is not in the checkpoint, if this version of PyTorch lacks a dtype, or
    if the checkpoint cannot be opened or read."""
    device = torch.device(map_location)
    names = None if names is None else _checked(names)
    checkpoint, own = _open(path, {"part": part, "step": step, "also": also, "shards": shards}, names)
    with checkpoint, own or contextlib.nullcontext():
        entries = _chosen(checkpoint if own is None or names is not None else own, names)
        if own is not None:
            entries = [own[entry.name] if entry.name in own and _is_whole(own[entry.name]) else checkpoint[entry.name] for entry in entries]
        loaded = {entry.name: torch.empty(entry.shape, dtype=_known_dtype(checkpoint, entry), device=device) for entry in entries}
        _read([checkpoint, own], [(entry, (0,) * len(entry.shape), loaded[entry.name]) for entry in entries])
    return loaded


# ---- load_into ----


def _is_dtensor(tensor):
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def _pieces(tensor):
    """Returns the local tensors that hold this rank's elements of a tensor, each with its offsets in the whole tensor."""
    if _is_dtensor(tensor):
        if any(placement.is_partial() for placement in tensor.placements):
            raise TesseraError(f"a tensor with the placements {tensor.placements} holds partial sums, and cannot be filled", "usage")
        _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
        local = tensor._local_tensor
        return [(local, tuple(offsets))] if local.numel() else []
    if hasattr(tensor, "local_shards"):  # a ShardedTensor
        return [(shard.tensor, tuple(shard.metadata.shard_offsets)) for shard in tensor.local_shards()]
    return [(tensor, (0,) * tensor.dim())]


def _check(checkpoint, name, tensor):
    entry = checkpoint[name]
    if tuple(tensor.shape) != entry.shape:
        raise TesseraError(f"{checkpoint.path}: '{name}' has the shape {list(entry.shape)}, the state dict's tensor {list(tensor.shape)}", "usage")
    if dtype_of(entry) != tensor.dtype:
        raise TesseraError(f"{checkpoint.path}: '{name}' is {entry.dtype}, the state dict's tensor {str(tensor.dtype).removeprefix('torch.')}", "usage")
    if tensor.device.type == "meta":  # not is_meta, which ShardedTensor does not have on ranks without a shard
        raise TesseraError(f"'{name}' of the state dict is on the meta device and has no memory to load into", "usage")


def _check_memory(name, piece):
    """What copy_ would refuse, when other tensors have been filled already."""
    if piece.layout != torch.strided:
        raise TesseraError(f"'{name}' of the state dict has the layout {str(piece.layout).removeprefix('torch.')}; only dense tensors can be filled", "usage")
    if any(stride == 0 and size > 1 for stride, size in zip(piece.stride(), piece.shape)):
        raise TesseraError(f"'{name}' of the state dict repeats elements in memory (strides {list(piece.stride())}); pass a clone of it", "usage")


def _compare(checkpoint, tensors, strict):
    """(missing, unexpected), after what may not differ was checked."""
    stored = [name for name, entry in checkpoint.items() if entry.kind == "tensor"]
    missing = [name for name in tensors if name not in checkpoint or checkpoint[name].kind != "tensor"]
    unexpected = [name for name in stored if name not in tensors]
    if strict and (missing or unexpected):
        several = [f"{what}: {', '.join(names[:20])}{', …' if len(names) > 20 else ''}" for what, names in (("missing", missing), ("unexpected", unexpected)) if names]
        raise TesseraError(f"{checkpoint.path}: {'; '.join(several)}; pass strict=False to load what is in both", "not found")
    absent = set(missing)
    for name, tensor in tensors.items():
        if name not in absent:
            _check(checkpoint, name, tensor)
    return missing, unexpected


def _places(pieces):
    """Returns {device of pieces: device that they are read to first}: the same device if it has memory for all of them twice, and
    the host otherwise."""
    needed = {}
    for piece in pieces:
        needed[piece.device] = needed.get(piece.device, 0) + piece.numel() * piece.element_size()
    return {device: device if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] > 2 * size else torch.device("cpu")
            for device, size in needed.items()}


class _Filling:
    """What one rank loads. It is first read into other memory, so an error on any rank leaves every state dict unchanged."""

    def __init__(self, state_dict, path, choices, strict):
        self.state_dict, self.path, self.choices, self.strict = state_dict, path, choices, strict
        self.missing, self.unexpected, self.read = [], [], []

    def stage(self):
        flat, _ = flatten_state_dict(checked_state_dict(self.state_dict))
        tensors = {name: value for name, value in flat.items() if isinstance(value, torch.Tensor) or hasattr(value, "local_shards")}
        checkpoint, own = _open(self.path, self.choices, tensors)
        with checkpoint, own or contextlib.nullcontext():
            self.missing, self.unexpected = _compare(checkpoint, tensors, self.strict)
            targets, absent = [], set(self.missing)
            for name, tensor in tensors.items():
                for piece, offsets in [] if name in absent else _pieces(tensor):
                    _check_memory(name, piece)
                    has_own = own and name in own and has_box(own[name], offsets, piece.shape)
                    targets.append(((own if has_own else checkpoint)[name], offsets, piece))
            places = _places([piece for *_, piece in targets])
            self.read = [(piece, torch.empty(piece.shape, dtype=piece.dtype, device=places[piece.device])) for *_, piece in targets]
            _read([checkpoint, own], [(entry, offsets, fresh) for (entry, offsets, _), (_, fresh) in zip(targets, self.read)])

    def keep(self):
        with torch.no_grad():
            self.read.reverse()  # of tied tensors the last name counts, as in load_state_dict
            while self.read:
                piece, fresh = self.read.pop()
                piece.detach().copy_(fresh)


def load_into(state_dict: dict[str, Any], path: StrPath, strict: bool = True, *, no_dist: bool = False, part: str | None = None,
              step: str | int | None = None, also: StrPath | Sequence[StrPath] = (),
              shards: Document | None = None) -> tuple[list[str], list[str]]:
    """Fill the tensors of a nested or flat state dict in place from any checkpoint that tessera.open accepts. Return
    (missing, unexpected): names that only the state dict has, and names of tensors that only the checkpoint has.

    strict: raise TesseraError for such names. A different shape or dtype is always a TesseraError. Objects are neither filled nor
    listed. Tensors may be plain tensors, DTensors or ShardedTensors on any device; each rank reads only its own elements. Everything is
    read before anything is changed, so after an error the state dicts of all ranks are unchanged. If torch.distributed is
    initialized, every rank of the default group must call this, unless no_dist is set, as with torch.distributed.checkpoint.load.
    part, step, also, shards: as for tessera.open."""
    filling = _Filling(state_dict, path, {"part": part, "step": step, "also": also, "shards": shards}, strict)
    _, failure = attempt(filling.stage)
    if not no_dist and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        agree(failure)
    elif failure:
        raise failure
    filling.keep()
    return filling.missing, filling.unexpected
