"""Loads sharded optimizer state for FSDP from any checkpoint that Tessera reads, as load_sharded_optimizer_state_dict of
torch/distributed/checkpoint/optimizer.py does. The library plans and reads. This file determines the layout of the model's state,
creates PyTorch's tensors, and lets the ranks agree."""
from __future__ import annotations

import io
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

from ._checkpoint import Checkpoint
from ._choices import state_dict, text
from ._library import FOR_VALUES, PlannedRead, TesseraError, warn
from ._ranks import agree, attempt
from ._slots import dtype_of
from ._torch_metadata import MARKER, marker_of
from ._torch_versions import DTensor, Shard, ShardedTensor, ShardedTensorMetadata, ShardMetadata, TensorProperties, local_tensor, placed_rank
from .torch import StorageReader

_CONTAINERS: dict[bool, Any] = {True: list, False: dict}  # by whether their keys are positions
_MOST_POSITIONS = 1 << 20  # of a list in a state dict, so that a damaged path cannot take all memory


# ---- the layout ----


def _slice_of(name, value: Any) -> Any:
    """Returns the only shard of a tensor of the model's state that is a tensor-parallel slice, a ShardedTensor in a ShardedTensor; None of others.
    Refuses what PyTorch's _is_nested_tensor refuses."""
    inner = None
    if type(value) is ShardedTensor and value.local_shards():
        inner = value.local_shards()[0].tensor
    elif type(value) is DTensor:
        inner = local_tensor(value)
    if type(inner) not in (ShardedTensor, DTensor):
        return None
    if type(value) is not ShardedTensor or type(inner) is not ShardedTensor:
        raise TesseraError(f"'{name}' of the model's state is a {type(inner).__name__} inside a {type(value).__name__}; "
                    "only a ShardedTensor inside a ShardedTensor shows its slice", "unsupported")
    if len(value.local_shards()) != 1:
        raise TesseraError(f"'{name}' of the model's state has {len(value.local_shards())} shards on this rank; a slice must be the only one",
                    "unsupported")
    return value.local_shards()[0]


def _layout(model_state_dict):
    """[(fqn, offsets or None, sizes, shape)] and the data-parallel group, which is None in 1-D (_get_state_dict_2d_layout)."""
    slices, group, first = [], None, None
    for name, value in model_state_dict.items():
        if not isinstance(value, torch.Tensor):
            raise TesseraError(f"'{name}' of the model's state is of type {type(value).__name__}, which has no size; "
                        "pass a state dict that holds only tensors", "usage")
        shape = tuple(value.size())
        shard = _slice_of(name, value)
        if shard is None:
            slices.append((str(name), None, shape, shape))
            continue
        slices.append((str(name), tuple(shard.metadata.shard_offsets), tuple(shard.metadata.shard_sizes), shape))
        own = shard.tensor._process_group
        if group is None:
            group, first = own, name
        if dist.get_process_group_ranks(own) != dist.get_process_group_ranks(group):
            raise TesseraError(f"the slice of '{first}' is shared by ranks {dist.get_process_group_ranks(group)}, that of '{name}' by ranks "
                        f"{dist.get_process_group_ranks(own)}; all slices need the same group", "usage")
    return slices, group


# ---- tensors ----


def _device_of(group):
    """Returns the device of a process group, as PyTorch's _get_pg_default_device does, but without its warnings."""
    devices = group._device_types
    device = torch.device("cpu") if torch.device("cpu") in devices else devices[0]
    return device if device.type == "cpu" else torch.device(device.type, getattr(torch, device.type).current_device())


def _placement(group, rank, device):
    placed = placed_rank(group, rank)
    if rank == dist.get_rank(group) or device.type == "cpu":
        return f"rank:{placed}/{device}"
    return f"rank:{placed}/{device.type}:{placed % getattr(torch, device.type).device_count()}"


def _set_element(container: Any, path, value):
    """Sets the value at `path` below a dict, creating dicts and lists on the way: the inverse of DCP's flatten_state_dict."""
    name = ".".join(str(key) for _, key in path)
    for at, (is_position, key) in enumerate(path):
        if type(container) is not _CONTAINERS[is_position]:
            raise TesseraError(f"'{name}': its container is also something else", "usage")
        if is_position and key >= _MOST_POSITIONS:
            raise TesseraError(f"'{name}': {key} is beyond the {_MOST_POSITIONS} positions that a list may have", "limit exceeded")
        if is_position:
            container.extend([None] * (key + 1 - len(container)))
        there = container[key] if is_position else container.get(key)
        if at + 1 == len(path):
            if there is not None:
                raise TesseraError(f"two values of the optimizer's state are at '{name}'", "usage")
            container[key] = value
        elif there is None:
            there = container[key] = _CONTAINERS[path[at + 1][0]]()
        container = there


class _Job:
    """One rank's share of a load: first the plan, then the tensors."""

    def __init__(self, path, key, model_state_dict, opening, unsafe_objects):
        self.path, self.key, self.model_state_dict, self.opening, self.unsafe_objects = path, key, model_state_dict, opening, unsafe_objects
        self.checkpoint: Any = None
        self.reader: Any = None
        self.shared: Any = None
        self.reads = []  # items of Session.read

    def prepare(self):
        text(self.key, "optimizer_key")
        slices, group = _layout(state_dict(self.model_state_dict, "model_state_dict"))
        self.is_2d, self.group = group is not None, group or dist.group.WORLD
        self.device = _device_of(self.group)
        self.checkpoint = Checkpoint(self.path, **self.opening, _purpose=FOR_VALUES)
        self.entries = list(self.checkpoint.values())
        self.reader = StorageReader(self.path, unsafe_objects=True, **self.opening) if marker_of(self.checkpoint) == MARKER else None
        mesh = (dist.get_rank(self.group), dist.get_world_size(self.group), self.is_2d)
        self.plan = self.checkpoint._session.plan_optimizer(self.key, mesh, slices)
        layout = "2-D (FSDP over tensor parallel)" if self.is_2d else "1-D"
        self.shared = [("the optimizer's key", f"'{self.key}'"), ("the model's state", layout)]

    def close(self):
        if self.checkpoint:
            self.checkpoint.close()

    def warn(self):
        unknown = list(dict.fromkeys(read.parameter for read in self.plan if read.is_unknown))
        if not unknown:
            return
        count = f"{len(unknown)} parameter{'s' if len(unknown) > 1 else ''}"
        names = ", ".join(f"'{name}'" for name in unknown[:5]) + (", …" if len(unknown) > 5 else "")
        how = "without a tensor-parallel slice" if self.is_2d else "all the same"
        warn(f"the checkpoint has optimizer state of {count} that the model's state does not have: {names}; it is loaded {how}")

    def load(self):
        self.warn()
        root = {}
        for read in self.plan:
            _set_element(root, read.path, self._value(read))
        self.checkpoint._session.read(self.reads)
        self.checkpoint.unchanged()
        return root

    def _value(self, read):
        if read.index is None:
            return {}
        entry = self.entries[read.index]
        if read.kind == PlannedRead.OBJECT:
            return self._object(entry)
        if dtype_of(entry) is None:
            raise TesseraError(f"{self.checkpoint.path}: '{entry.name}' is of {entry.dtype}, which this PyTorch does not have", "unsupported")
        if read.kind == PlannedRead.WHOLE:
            zeros = (0,) * len(entry.shape)
            return self._tensor(entry, zeros, entry.shape, entry.requires_grad)
        return self._sharded(read, entry)

    def _object(self, entry):
        if not self.unsafe_objects:
            entry._check_data("tessera.load_sharded_optimizer_state")
        elif self.reader and not entry.is_data():
            return self._by_pytorch(entry.name)
        return torch.load(io.BytesIO(entry.save()), map_location=self.device, weights_only=not self.unsafe_objects)

    def _by_pytorch(self, name):
        """Returns an object whose code may run, which cannot always be pickled again, as PyTorch's own reader does."""
        planner, metadata = DefaultLoadPlanner(flatten_state_dict=False), self.reader.read_metadata()
        planner.set_up_planner({name: None}, metadata, True)
        self.reader.set_up_storage_reader(metadata, True)
        self.reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()
        return planner.state_dict[name]

    def _tensor(self, entry, offsets, sizes, requires_grad):
        """Returns a box of an entry as a new tensor. On a device it is filled here; on the CPU, `load` fills all tensors together."""
        tensor = torch.empty(sizes, dtype=dtype_of(entry))
        item = entry._index, tuple(offsets), tuple(sizes), tensor.data_ptr(), tensor.numel() * tensor.element_size()
        if self.device.type == "cpu":
            self.reads += [item] if tensor.numel() else []
        else:
            if tensor.numel():
                self.checkpoint._session.read([item])
            tensor = tensor.to(self.device)
        return tensor.requires_grad_(requires_grad)

    def _sharded(self, read, entry):
        requires_grad = entry.requires_grad and self.is_2d  # in 1-D PyTorch's _create_chunk_sharded_tensor drops it
        shards = self._shards(read.dest_size)
        local = []
        if read.has_shard:
            tensor = self._tensor(entry, read.storage_offsets, read.sizes, requires_grad)
            local = [Shard(tensor, shards[dist.get_rank(self.group)])]
        properties = TensorProperties(dtype=dtype_of(entry), layout=torch.strided, requires_grad=requires_grad,
                                      memory_format=torch.contiguous_format, pin_memory=False)
        metadata = ShardedTensorMetadata(shards, torch.Size(read.dest_size), properties)
        return ShardedTensor._init_from_local_shards_and_global_metadata(local, metadata, process_group=self.group)

    def _shards(self, size):
        """Returns the rows of each rank of the group. In 1-D, trailing ranks without rows have no shard, as with torch.chunk."""
        world, shards = dist.get_world_size(self.group), []
        part = -(-size[0] // world)
        for r in range(world):
            begin, end = min(r * part, size[0]), min((r + 1) * part, size[0])
            if self.is_2d or begin < end or size[0] == 0:
                placement = _placement(self.group, r, self.device)
                shards.append(ShardMetadata([begin, *[0] * (len(size) - 1)], [end - begin, *size[1:]], placement))
        return shards


def load(path, key, model_state_dict, opening, unsafe_objects):
    """opening: options of Checkpoint, by name."""
    if not dist.is_initialized():
        raise TesseraError("there is no process group; call torch.distributed.init_process_group first, also for a single process",
                    "usage")
    job = _Job(path, key, model_state_dict, opening, unsafe_objects)
    try:
        _, failure = attempt(job.prepare)
        agree(failure, job.shared)
        result, failure = attempt(job.load)
        agree(failure)
        return result
    finally:
        job.close()
