"""How the ranks of a draw share its model."""
import functools

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from trees import Kit, model

SHARDED = ["fsdp2", "fsdp2", "hsdp", "tp"]
STRATEGIES = {1: ["plain", "plain", "ddp", "fsdp2"], 2: ["plain", "ddp", *SHARDED], 3: ["plain", "ddp", *SHARDED],
              4: ["ddp", *SHARDED, "hsdp", "fsdp2_tp", "fsdp2_tp"]}


@functools.lru_cache
def mesh_of(shape, names):
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def plain(draw):
    return model(Kit(draw.rng(), True))


def ddp(draw):
    kit = Kit(draw.rng(), True)
    made = model(kit)
    if kit.chance(0.2):
        made = torch.compile(made)
    return DistributedDataParallel(made)


# ---- DTensors ----

def sharded_kit(draw):
    """FSDP2 wants one dtype, and nothing without dimensions; parts that are sharded by themselves share nothing."""
    rng = draw.rng()
    dtype = rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float64])
    return Kit(rng, False, dtype=dtype, shared=rng.random() < 0.4)


def apply_fsdp2(kit, made, mesh):
    if not kit.shared:
        for child in reversed(list(made.modules())[1:]):
            if kit.chance(0.3) and next(child.parameters(), None) is not None and not hasattr(child, "_orig_mod"):
                fully_shard(child, mesh=mesh)
    return fully_shard(made, mesh=mesh)


def fsdp2(draw):
    kit = sharded_kit(draw)
    names = kit.rng.choice([("dp",), ("dp",), None])
    return apply_fsdp2(kit, model(kit), mesh_of((draw.world,), names))


def hsdp(draw):
    kit = sharded_kit(draw)
    shape = kit.rng.choice([(a, draw.world // a) for a in range(1, draw.world + 1) if draw.world % a == 0])
    return apply_fsdp2(kit, model(kit), mesh_of(shape, ("replicate", "shard")))


def apply_tp(kit, made, mesh):
    """Some parameters and buffers over the mesh; the same tensor stays one."""
    places = {}
    for m in made.modules():
        for kept in (m._parameters, m._buffers):
            for name, t in kept.items():
                if id(t) not in places:
                    placement = kit.rng.choice([None, Replicate(), *[Shard(d) for d in kit.tp_dims if d < t.dim()] * 2]) if t.dim() else None
                    if placement is None or t.dtype == torch.bool or (kept is m._buffers and kit.chance(0.7)):
                        places[id(t)] = (t, t)
                        continue
                    spread = distribute_tensor(t.detach(), mesh, [placement], src_data_rank=None)
                    places[id(t)] = (t, nn.Parameter(spread, requires_grad=t.requires_grad) if kept is m._parameters else spread)
                kept[name] = places[id(t)][1]
    return made


def tp(draw):
    kit = sharded_kit(draw)
    return apply_tp(kit, model(kit), mesh_of((draw.world,), ("tp",)))


def fsdp2_tp(draw):
    kit = sharded_kit(draw)
    mesh = mesh_of((2, draw.world // 2), ("dp", "tp"))
    if kit.chance(0.8):
        kit.sizes = [4, 8]
    else:
        kit.tp_dims = [1, 2]  # PyTorch cannot gather what is cut twice along one dimension, and unevenly
    return apply_fsdp2(kit, apply_tp(kit, model(kit), mesh["tp"]), mesh["dp"])


def build(draw):
    """The model of a draw, with nothing in its tensors yet."""
    made = globals()[draw.strategy](draw)
    if draw.strategy == "plain" and draw.rng("root").random() < 0.2:
        made = torch.compile(made)
    return made
