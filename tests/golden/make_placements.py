#!/usr/bin/env python3
"""What every rank of a mesh really holds of a tensor, asked of PyTorch itself: one process plays all ranks in turn over a
fake process group.

    make_placements.py            writes placements.txt and placements_divergences.txt beside this script

placements.txt, one case a line:
    ORDER MESH PLACEMENTS SHAPE RANK0 RANK1 ...
ORDER is dtensor (distribute_tensor) or fsdp (fully_shard over a tensor-parallel DTensor); a rank is its local shape, and
where it holds anything, "=" and per tensor dim the runs of positions: 3x2=0-2,4-5x0-2.

placements_divergences.txt lists the fsdp ranks for which compute_local_shape_and_global_offset, which DCP plans with, says
other than what the rank holds: the case, the rank, what it holds, what the function says (shape@offset). A save of such a
tensor cannot be loaded by PyTorch. For distribute_tensor no such case was found: the script fails if one is.
"""
import itertools
import os
import random
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset, compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

HERE = os.path.dirname(os.path.abspath(__file__))
warnings.filterwarnings("ignore")


def on_rank(rank, world, play):
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        return play()
    finally:
        dist.destroy_process_group()


def text_of(p):
    if isinstance(p, _StridedShard):
        return f"strided_shard({p.dim},{p.split_factor})"
    return f"shard({p.dim})" if isinstance(p, Shard) else "replicate"


def runs(positions):
    out = []
    for p in positions:
        if out and out[-1][1] == p:
            out[-1][1] = p + 1
        else:
            out.append([p, p + 1])
    return ",".join(f"{a}-{b}" for a, b in out)


def held(local, shape):
    """A local tensor of element numbers -> its text; checks that it is a product of positions."""
    head = "x".join(map(str, local.shape)) or "."
    if local.numel() == 0:
        return head, None
    if not shape:
        return head, ()
    where = torch.stack(torch.unravel_index(local.flatten(), shape)).reshape(len(shape), *local.shape)
    axes = [where[d].movedim(d, 0).reshape(local.shape[d], -1)[:, 0].tolist() for d in range(len(shape))]
    number = torch.arange(local.new_tensor(shape).prod().item()).reshape(shape)
    assert torch.equal(number[torch.meshgrid(*map(torch.tensor, axes), indexing="ij")], local), "not a product of positions"
    return head + "=" + "x".join(map(runs, axes)), tuple(a[0] for a in axes)


def dtensor_case(mesh, placements, shape):
    world = torch.Size(mesh).numel()
    full = torch.arange(torch.Size(shape).numel()).reshape(shape)

    def play():
        m = init_device_mesh("cpu", mesh)
        t = distribute_tensor(full, m, placements, src_data_rank=None)
        return t.to_local(), compute_local_shape_and_global_offset(torch.Size(shape), m, placements)

    ranks = []
    for r in range(world):
        local, (said_shape, said_offset) = on_rank(r, world, play)
        text, first = held(local, shape)
        assert tuple(local.shape) == tuple(said_shape), (mesh, placements, shape, r)
        assert first is None or first == tuple(said_offset), (mesh, placements, shape, r)
        ranks.append(text)
    return ranks


def fsdp_case(mesh, tp_placements, shape):
    """mesh[0] is FSDP's, the others hold the tensor-parallel DTensor -> placements, ranks, divergences."""
    world = torch.Size(mesh).numel()
    full = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    names = tuple("abc"[:len(mesh)])

    def play():
        m = init_device_mesh("cpu", mesh, mesh_dim_names=names)
        tp = m[names[1:]] if len(names) > 2 else m[names[1]]
        module = nn.Module()
        module.w = nn.Parameter(distribute_tensor(full, tp, tp_placements, src_data_rank=None))
        fully_shard(module, mesh=m[names[0]])
        w = module.w
        assert isinstance(w, DTensor) and tuple(w.device_mesh.shape) == mesh
        # With the coordinate given: the mesh that fully_shard joins together keeps that of the first rank played.
        said = _compute_local_shape_and_global_offset(w.shape, mesh, m.get_coordinate(), w.placements)
        return w.to_local().detach().long(), w.placements, said

    ranks, divergences = [], []
    for r in range(world):
        local, placements, (said_shape, said_offset) = on_rank(r, world, play)
        text, first = held(local, shape)
        ranks.append(text)
        if tuple(local.shape) != tuple(said_shape) or (first is not None and first != tuple(said_offset)):
            divergences.append(f"{r} {text} {'x'.join(map(str, said_shape))}@{'x'.join(map(str, said_offset))}")
    return placements, ranks, divergences


def line(order, mesh, placements, shape, ranks):
    return " ".join([order, ",".join(map(str, mesh)), ",".join(map(text_of, placements)), "x".join(map(str, shape)) or ".", *ranks])


def random_placement(rng, rank, strided):
    what = rng.random()
    if rank == 0 or what < 0.25:
        return Replicate()
    d = rng.randrange(rank)
    return _StridedShard(d, split_factor=rng.randint(1, 5)) if strided and what < 0.6 else Shard(d)


def main():
    rng = random.Random(2013)
    lines, divergences = [], []
    while len(lines) < 1500:
        mesh = tuple(rng.choice([1, 2, 2, 3, 4, 5]) for _ in range(rng.randint(1, 4)))
        if torch.Size(mesh).numel() > 16:
            continue
        shape = tuple(rng.choice([0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 17]) for _ in range(rng.choice([0, 1, 1, 1, 2, 2, 3])))
        if torch.Size(shape).numel() > 2000:
            continue
        placements = [random_placement(rng, len(shape), len(lines) % 2) for _ in mesh]
        lines.append(line("dtensor", mesh, placements, shape, dtensor_case(mesh, placements, shape)))
    meshes = [(dp, tp) for dp in (2, 3, 4, 5) for tp in (2, 3, 4)] + [(2, 2, 2), (3, 2, 2)]
    for mesh, n in itertools.product(meshes, (1, 2, 3, 5, 7, 8, 11, 12, 24)):
        tp = [Shard(0)] * (len(mesh) - 1)
        placements, ranks, differ = fsdp_case(mesh, tp, (n, 2))
        lines.append(line("fsdp", mesh, placements, (n, 2), ranks))
        divergences += [line("fsdp", mesh, placements, (n, 2), [d]) for d in differ]
    head = f"# {os.path.basename(__file__)}, PyTorch {torch.__version__}\n"
    for name, body in (("placements.txt", lines), ("placements_divergences.txt", divergences)):
        with open(os.path.join(HERE, name), "w") as f:
            f.write(head + "\n".join(body) + "\n")
        print(name, len(body))


if __name__ == "__main__":
    main()
