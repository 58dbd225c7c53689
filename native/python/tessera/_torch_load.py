"""Loads the tensors of a checkpoint: as a dict of new tensors, or into the tensors of a state dict."""
from __future__ import annotations

import contextlib
import itertools
import math
import operator
import os
from collections.abc import Iterable
from typing import Any, Sequence

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from ._checkpoint import Checkpoint
from ._choices import Document, StrPath, state_dict as checked_state_dict, text
from ._library import FOR_VALUES, TesseraError, matches, warn
from ._ranks import agree, attempt
from ._slots import dtype_of, read_tensors
from ._torch_metadata import MARKER, has_box, marker_of, metadata_of, warn_of_copies


def _known_dtype(checkpoint, entry):
    if dtype_of(entry) is None:
        raise TesseraError(f"{checkpoint.path}: '{entry.name}' is {entry.dtype}, which this PyTorch ({torch.__version__}) does not have", "unsupported")
    return dtype_of(entry)


def _is_whole(entry):
    return entry._checkpoint._session.is_tiled(entry._index)


def _open(path, choices, choose, group) -> tuple[Checkpoint, Any, Any]:
    """Returns the checkpoint, the names that `choose` finds in it, and, if every rank wrote its own metadata, what this rank wrote, or None.
    The latter alone is the checkpoint if it has all of these tensors; the ranks together may not even be one checkpoint.

    choose: returns names for a checkpoint, or raises TesseraError if it lacks one. group: the process group in which this rank has its number."""
    own = None
    if dist.is_available() and dist.is_initialized():
        try:
            own = Checkpoint(path, **choices, _purpose=FOR_VALUES, _metadata_rank=dist.get_rank(group))
        except TesseraError as e:
            if e.status != "not found":  # there are fewer ranks in the checkpoint
                raise
    if own and marker_of(own) not in (None, MARKER):
        names, _ = attempt(lambda: choose(own))
        if names is None or not all(name in own and (own[name].kind != "tensor" or _is_whole(own[name])) for name in names):
            checkpoint = Checkpoint(path, **choices, _purpose=FOR_VALUES, _warns=False)
            return checkpoint, choose(checkpoint) if names is None else names, own
    checkpoint = own or Checkpoint(path, **choices, _purpose=FOR_VALUES)
    return checkpoint, choose(checkpoint), None


# ---- load ----


def _checked(names):
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise TypeError(f"names is a list of names, not {'one string' if isinstance(names, (str, bytes)) else type(names).__name__}")
    return list(dict.fromkeys(text(name, "each of names") for name in names))


def _read(sources, verify, *several):
    """Fills targets, as for read_tensors, from the checkpoint and what this rank wrote, if that is not None. several: lists of targets, which
    are filled one list after another."""
    checkpoint, own = sources
    if own is not None:
        warn_of_copies([entry for targets in several for entry, *_ in targets if entry._checkpoint is checkpoint])
    with contextlib.ExitStack() as stack:
        checks = [source and stack.enter_context(source._session.checking(verify)) for source in sources]
        for targets in several:
            for source, check in zip(sources, checks):
                if source is not None:
                    read_tensors(source._session, [target for target in targets if target[0]._checkpoint is source], check)
                    source.unchanged()


def _matching(checkpoint, below, prefix, glob):
    """Returns the names that a GLOB matches. below: those with the prefix, by what is after it."""
    found = [stored for short, stored in below.items() if matches(glob, short)] or [stored for stored in below.values() if matches(glob, stored)]
    if not found:
        what = f"no name matches '{glob}'" if set(glob) & set("*?[") else f"there is no '{glob}'"
        raise TesseraError(f"{checkpoint.path}: {what}" + (f" below the prefix '{prefix}'" if prefix else ""), "not found")
    return found


def _selected(checkpoint, names, prefix):
    """Returns the names of the entries to load."""
    below = {name[len(prefix):]: name for name in checkpoint if name.startswith(prefix)}
    if prefix and not below:
        raise TesseraError(f"{checkpoint.path}: no name begins with the prefix '{prefix}'", "not found")
    selected = list(below.values()) if names is None else []
    for name in names or ():
        exact = below.get(name, name if name.startswith(prefix) and name in checkpoint else None)
        if exact is not None and checkpoint[exact].kind == "opaque":
            raise TesseraError(f"{checkpoint.path}: '{name}' is not a plain tensor but {checkpoint[exact].type}", "unsupported")
        selected += _matching(checkpoint, below, prefix, name) if exact is None else [exact]
    return list(dict.fromkeys(selected))


def _tensors_of(checkpoint, entries):
    opaque = [entry.name for entry in entries if entry.kind == "opaque"]
    if opaque:
        warn(f"{checkpoint.path}: left out, because they are not plain tensors: {', '.join(opaque[:5])}{', …' if len(opaque) > 5 else ''}")
    return [entry for entry in entries if entry.kind == "tensor"]


def _floating(dtype):
    """Returns the dtype to which floating-point tensors are cast, which is given as a torch.dtype or by its name; None if they are not."""
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if dtype is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ValueError(f"dtype is a floating-point dtype of PyTorch, such as torch.bfloat16 or its name, not {dtype!r}")
    return found


def check_cast(checkpoint, entries, dtype, instead):
    """Refuses a cast that would separate quantized numbers from their scales. instead: what the message suggests."""
    try:
        checkpoint._session.check_cast([checkpoint[entry.name]._index for entry in entries], _name_of(dtype))
    except TesseraError as e:
        raise TesseraError(f"{str(e).partition('; pass ')[0]}; {instead}", e.status) from None


def _loaded_dtype(checkpoint, entry, dtype):
    """Returns the dtype that a tensor is loaded as. The step of an optimizer is never cast, because few bits do not hold it."""
    stored = _known_dtype(checkpoint, entry)
    is_step = not entry.shape and entry.name.rpartition(".")[2] == "step"
    if dtype in (None, stored) or not stored.is_floating_point or is_step:
        return stored
    _, failure = attempt(lambda: torch.empty(1, dtype=dtype).copy_(torch.zeros(1, dtype=torch.uint8).expand(stored.itemsize).contiguous().view(stored)))
    if failure:
        raise TesseraError(f"{checkpoint.path}: '{entry.name}' is {entry.dtype}, which PyTorch does not cast to {_name_of(dtype)}", "unsupported")
    return dtype


def _name_of(dtype):
    return str(dtype).removeprefix("torch.")


def load(path: StrPath, names: Iterable[str] | None = None, map_location: str | torch.device = "cpu", *, part: str | None = None,
         step: str | int | None = None, also: StrPath | Sequence[StrPath] = (), shards: Document | None = None, prefix: str = "",
         map: Document | None = None, inverse: bool = False, dtype: torch.dtype | str | None = None, verify: bool = True,
         process_group: dist.ProcessGroup | None = None) -> dict[str, torch.Tensor]:
    """Load tensors from any checkpoint that tessera.open accepts, and return {fqn: tensor}. Nothing in the checkpoint is executed, and
    only the requested tensors are read. If every rank wrote its own metadata (use_collectives=False) and torch.distributed is initialized,
    each rank loads what it saved itself, completed from the other ranks where it saved only some elements of a tensor. process_group: that of
    the save, if it was not the default group.

    names: names, or GLOBs as on the command line, such as "layers.*.weight" or "model.**"; None loads every tensor. A name that is in
    the checkpoint is never taken for a GLOB. Objects are left out. map_location: the device of the tensors. prefix: load only names
    that begin with it, and strip it from them; `names` may be given with or without it. dtype: cast floating-point tensors, as Tensor.to
    does, but not the 0-dim `step` of an optimizer. part, step, also, shards, map, inverse: as for tessera.open.

    verify: compare what is read whole with the CRC-32 that the checkpoint has of it; a difference is a TesseraError with the name of the
    entry, or of the safetensors file, which has one CRC for all of its bytes (those that Tessera writes) and is compared if all of its
    tensors are read. Parts of chunks, files without checksums, and values that a map or scales compute have none.

    Raises TesseraError if a name is not in the checkpoint, if nothing matches a GLOB, if this version of PyTorch lacks a dtype, or if the
    checkpoint cannot be opened or read."""
    device, cast, prefix = torch.device(map_location), _floating(dtype), text(prefix or "", "prefix")
    names = None if names is None else _checked(names)
    choices = {"part": part, "step": step, "also": also, "shards": shards, "map": map, "inverse": inverse}
    checkpoint, found, own = _open(path, choices, lambda of: _selected(of, names, prefix), process_group)
    with checkpoint, own or contextlib.nullcontext():
        entries = _tensors_of(checkpoint, [own[name] if own is not None and name in own and _is_whole(own[name]) else checkpoint[name] for name in found])
        if cast is not None:
            check_cast(checkpoint, entries, cast, "leave out dtype, or load a copy that tessera.convert(…, dequantize=True) has made")
        loaded = {entry.name[len(prefix):]: torch.empty(entry.shape, dtype=_loaded_dtype(checkpoint, entry, cast), device=device) for entry in entries}
        _read([checkpoint, own], verify, [(entry, (0,) * len(entry.shape), tensor) for entry, tensor in zip(entries, loaded.values())])
    return loaded


# ---- load_into ----


def _chunk(size, count, number):
    """Returns where one of `count` chunks of a dimension begins and ends, as torch.chunk divides it."""
    each = -(-size // count)
    return min(number * each, size), min((number + 1) * each, size)


def _cut(ranges, begin, end):
    """Returns the ranges that are from `begin` to `end` of ranges which follow each other."""
    found, at = [], 0
    for each in ranges:
        part = each[max(0, begin - at):max(0, end - at)]
        at += len(each)
        if part and found and found[-1].stop == part.start:
            found[-1] = range(found[-1].start, part.stop)
        elif part:
            found.append(part)
    return found


def _ranges(tensor, coordinate):
    """Returns, for each dimension of a DTensor, the ranges of the whole tensor that follow each other in the local tensor of the rank at this
    coordinate of its mesh. Those of a _StridedShard need not be adjacent: it takes a chunk of each of `split_factor` chunks."""
    dims = [[range(size)] for size in tensor.shape]
    for number, (count, placement) in enumerate(zip(tensor.device_mesh.shape, tensor.placements)):
        if placement.is_replicate():
            continue
        if placement.is_partial() or not hasattr(placement, "dim"):
            raise TesseraError(f"a tensor with the placements {tensor.placements} cannot be filled: only Shard and Replicate say which elements a rank "
                               "holds", "usage")
        ranges, found = dims[placement.dim], []
        size, factor = sum(map(len, ranges)), getattr(placement, "split_factor", 1)
        for begin, end in (_chunk(size, factor, n) for n in range(factor)):
            first, last = _chunk(end - begin, count, coordinate[number])
            found += _cut(ranges, begin + first, begin + last)
        dims[placement.dim] = found
    return dims


def _pieces_of_dtensor(tensor):
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:  # this rank is not part of the mesh
        return []
    local, dims = tensor.to_local(), _ranges(tensor, coordinate)
    sizes = tuple(sum(map(len, ranges)) for ranges in dims)
    if local.numel() == 0 == math.prod(sizes):
        return []
    if tuple(local.shape) != sizes:
        raise TesseraError(f"a tensor {list(tensor.shape)} with the placements {tensor.placements} has {list(local.shape)} elements on this rank, which are not "
                           "those that its placements give it", "usage")
    found = []
    for box in itertools.product(*([(sum(map(len, ranges[:n])), each) for n, each in enumerate(ranges)] for ranges in dims)):
        piece = local
        for dim, (at, each) in enumerate(box):
            piece = piece.narrow(dim, at, len(each))
        found.append((piece, tuple(each.start for _, each in box)))
    return found


def _pieces(tensor):
    """Returns the local tensors that hold this rank's elements of a tensor, each with its offsets in the whole tensor."""
    if hasattr(tensor, "device_mesh") and hasattr(tensor, "placements"):
        return _pieces_of_dtensor(tensor)
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


def _memory(piece):
    """Returns where the elements of a tensor are: (device, its first byte, the byte after its last)."""
    begin = piece.data_ptr()
    return str(piece.device), begin, begin + (sum((n - 1) * stride for n, stride in zip(piece.shape, piece.stride())) + 1) * piece.element_size()


def _by_memory(targets):
    """Returns the targets that share no memory with others, and the rest in its order: of tied tensors the last name counts, as in
    load_state_dict. Of targets that are the same memory, the last is kept."""
    last = {}
    for target in targets:
        piece = target[2]
        if piece.numel():
            key = (*_memory(piece), piece.dtype, tuple(piece.shape), piece.stride(), piece.is_conj(), piece.is_neg())
            last.pop(key, None)
            last[key] = target
    shared, end = set(), {}
    for key in sorted(last, key=lambda key: key[:3]):
        device, begin, after = key[:3]
        last_end, last_key = end.get(device, (0, None))
        if begin < last_end:
            shared |= {key, last_key}
        if after > last_end:
            end[device] = after, key
    return [target for key, target in last.items() if key not in shared], [target for key, target in last.items() if key in shared]


def _probe(checkpoint, targets):
    """Reads one element of each chunk that targets need, so that missing and truncated files are found before anything is filled."""
    elements = []
    for entry, offsets, piece in targets:
        if not piece.numel() or entry.dtype.startswith("float4"):  # whose chunks count halves
            continue
        for at, sizes in entry.chunks:
            low, high = tuple(map(max, at, offsets)), tuple(min(a + n, o + m) for a, n, o, m in zip(at, sizes, offsets, piece.shape))
            if all(map(operator.lt, low, high)):
                elements.append((entry, tuple(n - 1 for n in high)))
    room = torch.empty((len(elements), 16), dtype=torch.uint8)
    checkpoint._session.read([(entry._index, at, (1,) * len(at), room[n].data_ptr(), dtype_of(entry).itemsize) for n, (entry, at) in enumerate(elements)])


def _check_files(checkpoint, targets):
    """The same for compressed chunks, of which one element costs as much as all: only the sizes of files are looked at."""
    names = {entry.name for entry, *_ in targets}
    for index, info in (metadata_of(checkpoint).storage_data or {}).items():
        path = os.path.join(checkpoint.path, info.relative_path)
        if index.fqn in names and not (os.path.exists(path) and os.path.getsize(path) >= info.offset + info.length):
            raise TesseraError(f"{checkpoint.path}: the bytes of '{index.fqn}' are missing: the data file '{info.relative_path}' is missing or truncated", "malformed")


class _Filling:
    """What one rank loads."""

    def __init__(self, state_dict, path, choices, strict, verify, group):
        self.state_dict, self.path, self.choices, self.strict, self.verify, self.group = state_dict, path, choices, strict, verify, group
        self.missing, self.unexpected, self.sources, self.targets, self.read = [], [], [], [], []

    def check(self):
        """Finds everything that can be wrong without reading values."""
        planner: Any = DefaultSavePlanner(flatten_sharded_tensors=False)  # which flattens a state dict
        planner.set_up_planner(checked_state_dict(self.state_dict), is_coordinator=False)
        tensors = {name: value for name, value in planner.state_dict.items() if isinstance(value, torch.Tensor) or hasattr(value, "local_shards")}
        checkpoint, _, own = _open(self.path, self.choices, lambda _: list(tensors), self.group)
        self.sources = [checkpoint, own]
        self.missing, self.unexpected = _compare(checkpoint, tensors, self.strict)
        absent = set(self.missing)
        for name, tensor in tensors.items():
            for piece, offsets in [] if name in absent else _pieces(tensor):
                _check_memory(name, piece)
                has_own = own and name in own and has_box(own[name], offsets, piece.shape)
                entry = (own if has_own else checkpoint)[name]
                if not has_own and not has_box(entry, offsets, piece.shape):
                    raise TesseraError(f"{checkpoint.path}: some elements of '{name}' are in no chunk", "malformed")
                self.targets.append((entry, offsets, piece.detach()))
        if "://" not in checkpoint.path:  # where each element would be a request
            for source in filter(None, self.sources):
                probe = _check_files if source._session.is_compressed() else _probe
                probe(source, [target for target in self.targets if target[0]._checkpoint is source])

    def stage(self):
        """Reads into other memory, so an error on any rank leaves every state dict unchanged."""
        places = _places([piece for *_, piece in self.targets])
        self.read = [(piece, torch.empty(piece.shape, dtype=piece.dtype, device=places[piece.device])) for *_, piece in self.targets]
        _read(self.sources, self.verify, [(entry, offsets, fresh) for (entry, offsets, _), (_, fresh) in zip(self.targets, self.read)])

    def keep(self):
        self.read.reverse()
        while self.read:  # in their order: of tied tensors the last name counts, as in load_state_dict
            piece, fresh = self.read.pop()
            piece.copy_(fresh)

    def fill(self):
        try:
            alone, shared = _by_memory(self.targets)
            _read(self.sources, self.verify, alone, *([target] for target in shared))
        except Exception as e:
            raise TesseraError(f"{str(e) or type(e).__name__}; the state dict is partly filled, so load it again before it is used, or pass staged=True, "
                               "which needs its memory twice", getattr(e, "status", "i/o"), getattr(e, "byte_position", None)) from e

    def close(self):
        for source in self.sources:
            if source is not None:
                source.close()


def load_into(state_dict: dict[str, Any], path: StrPath, strict: bool = True, *, no_dist: bool = False, part: str | None = None,
              step: str | int | None = None, also: StrPath | Sequence[StrPath] = (), shards: Document | None = None,
              staged: bool = False, verify: bool = True, process_group: dist.ProcessGroup | None = None) -> tuple[list[str], list[str]]:
    """Fill the tensors of a nested or flat state dict in place from any checkpoint that tessera.open accepts. Return
    (missing, unexpected): names that only the state dict has, and names of tensors that only the checkpoint has.

    strict: raise TesseraError for such names. A different shape or dtype is always a TesseraError. Objects are neither filled nor
    listed. Tensors may be plain tensors, DTensors or ShardedTensors on any device; each rank reads only its own elements. part, step, also,
    shards: as for tessera.open. verify: as for load; of a DTensor, the chunks that this rank reads whole are compared.

    Everything that can be checked is checked on all ranks before anything is changed: names, shapes, dtypes, and, of files on disks, that
    the bytes of every tensor are there. Then tensors are filled without a second copy; if reading fails even so, the error states that the
    state dict is partly filled. staged: read everything into other memory first, so that after any error nothing has changed on any rank.

    If torch.distributed is initialized, every rank of process_group (by default, of the default group) must call this, unless no_dist is set,
    as with torch.distributed.checkpoint.load."""
    filling = _Filling(state_dict, path, {"part": part, "step": step, "also": also, "shards": shards}, strict, verify, process_group)
    are_many = not no_dist and dist.is_available() and dist.is_initialized() and dist.get_world_size(process_group) > 1
    try:
        with torch.no_grad():
            for action in (filling.check, *((filling.stage, filling.keep) if staged else (filling.fill,))):
                _, failure = attempt(action)
                if are_many:
                    agree(failure, group=process_group)
                elif failure:
                    raise failure
    finally:
        filling.close()
    return filling.missing, filling.unexpected
