"""Elements for tensors that are there already: other ones for each tensor and, where ranks may differ, each rank."""
import hashlib

import torch
from torch.distributed.tensor import DTensor


def random(t, generator):
    """A tensor like `t` with random elements."""
    if t.dtype == torch.bool:
        return torch.randint(0, 2, t.shape, generator=generator).bool()
    if t.is_complex() or t.is_floating_point():
        wide = torch.complex128 if t.is_complex() else torch.float64
        return torch.randn(t.shape, dtype=wide, generator=generator).to(t.dtype)
    return torch.randint(0, 100, t.shape, generator=generator).to(t.dtype)


def place(t, rank):
    """Tensors in equal places have equal content: replicas of a DTensor's shard are the same on every rank."""
    if not isinstance(t, DTensor):
        return rank
    return [c for c, p in zip(t.device_mesh.get_coordinate(), t.placements) if not p.is_replicate()]


def number(*parts):
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=7).digest(), "big")


@torch.no_grad()
def fill(t, seed, rank):
    local = t.to_local() if isinstance(t, DTensor) else t.detach()
    generator = torch.Generator().manual_seed(number(seed, place(t, rank)))
    local.copy_(random(local, generator))


def fill_units(handles, seed, slice_):
    """FSDP1's flat parameters: what a rank has of them, padding included."""
    for i, h in enumerate(handles.values()):
        fill(h.flat_param.data, (seed, "unit", i), slice_)


def fill_model(model, seed, rank, besides=()):
    """`besides`: identities of parameters that are not filled."""
    seen = set(besides)
    for i, t in enumerate([*model.parameters(), *model.buffers()]):
        if id(t) not in seen:
            fill(t, (seed, "model", i), rank)
            seen.add(id(t))


def fill_state(value, seed, rank, alike):
    """Every tensor inside a parameter's state; a step stays a whole number. `alike`: scalars are the same on all ranks."""
    if isinstance(value, torch.Tensor):
        if value.is_sparse:
            return
        fill(value, seed, 0 if alike and value.dim() == 0 else rank)
        if value.dim() == 0 and not isinstance(value, DTensor):
            value.copy_(value.abs().mul(8).floor() + 1)
    elif isinstance(value, (dict, list, tuple)):
        for i, v in enumerate(value.values() if isinstance(value, dict) else value):
            fill_state(v, (seed, i), rank, alike)


def fill_optimizers(optimizers, seed, rank, cut=None):
    """`cut`: identities of parameters of which a rank has slice `cut[id]`."""
    for o, optimizer in enumerate(optimizers):
        for g, group in enumerate(optimizer.param_groups):
            for p, parameter in enumerate(group["params"]):
                if parameter in optimizer.state:
                    place = (cut or {}).get(id(parameter))
                    fill_state(optimizer.state[parameter], (seed, o, g, p), rank if place is None else place, place is not None)
