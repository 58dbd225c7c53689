"""How the ranks of a draw share its model."""
import functools

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, FullyShardedDataParallel, ShardingStrategy
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from trees import ExtraNode, Kit, model

SHARDED = ["fsdp2", "fsdp2", "hsdp", "tp"]
FSDP1 = ["fsdp1"] * 3
STRATEGIES = {1: ["plain", "plain", "ddp", "fsdp2", "fsdp1"], 2: ["plain", "ddp", *SHARDED, *FSDP1], 3: ["plain", "ddp", *SHARDED, *FSDP1],
              4: ["ddp", *SHARDED, "hsdp", "fsdp2_tp", "fsdp2_tp", *FSDP1]}


@functools.lru_cache
def mesh_of(shape, names):
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def plain_kit(draw):
    kit = Kit(draw.rng(), True)
    kit.wide = draw.rng("twice") if draw.wide else None
    return kit


def plain(draw):
    return model(plain_kit(draw))


def ddp(draw):
    kit = plain_kit(draw)
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


# ---- FSDP1 ----

def fsdp1_options(draw):
    """What all units have in common; `replica`: how many ranks cut them."""
    rng = draw.rng("fsdp1")
    strategy = rng.choice(["FULL_SHARD", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", *["HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"] * (draw.world == 4)])
    hybrid = "HYBRID" in strategy
    return {"strategy": strategy, "orig": rng.random() < 0.5, "mesh": hybrid or rng.random() < 0.4, "replica": 2 if hybrid else draw.world,
            "ignored": rng.random() < 0.35, "bare": rng.random() < 0.15, "shared": rng.random() < 0.25, "frozen": rng.random() < 0.4, "wrappers": rng.choice([0, 0, 0, 0.2])}


def fsdp1(draw):
    o, rng = fsdp1_options(draw), draw.rng()
    kit = Kit(rng, False, dtype=rng.choice([torch.float32] * 3 + [torch.float64, torch.bfloat16]), shared=o["shared"] and not o["bare"],
              frozen=o["frozen"] and o["orig"], shared_modules=False, compiled=False, wrappers=o["wrappers"])
    made = model(kit)
    more = {"sharding_strategy": getattr(ShardingStrategy, o["strategy"]), "use_orig_params": o["orig"], "device_id": torch.device("cpu")}
    if o["mesh"]:
        more["device_mesh"] = mesh_of((2, 2), ("replicate", "shard")) if o["replica"] != draw.world else mesh_of((draw.world,), ("shard",))
    inner = [m for m in made.children() if next(m.parameters(), None) is not None]
    made.left_out = [rng.choice(inner)] if o["ignored"] and len(inner) > 1 and not kit.shared else []
    apply_fsdp1(kit, made, {**more, "ignored_modules": made.left_out}, o)
    if o["bare"]:
        return made
    left_out = made.left_out
    root = FullyShardedDataParallel(made, **more, ignored_modules=left_out)
    root.left_out = left_out
    return root


def apply_fsdp1(kit, made, more, o):
    """Wraps some of the modules below, from the inside out; of a bare root each child."""
    left_out = {m for out in made.left_out for m in out.modules()}
    for parent in reversed(list(made.modules())):
        for name, child in list(parent.named_children()):
            if isinstance(child, ExtraNode) and kit.chance(0.8):
                continue  # PyTorch does not find the extra state of what a unit wraps directly
            plain = child in left_out or kit.shared or next(child.parameters(), None) is None
            if plain or type(parent).__name__ == "CheckpointWrapper" or not (kit.chance(0.3) or (o["bare"] and parent is made)):
                continue
            strategy = {"sharding_strategy": ShardingStrategy.NO_SHARD} if not o["mesh"] and kit.chance(0.1) else {}
            setattr(parent, name, FullyShardedDataParallel(child, **{**more, **strategy}))


def handles(model):
    """FSDP1's units that have a flat parameter, by raw name."""
    return {n: m._handle for n, m in model.named_modules() if isinstance(m, FullyShardedDataParallel) and m._handle is not None}


def managed(model):
    """Identities of the parameters that FSDP1's units manage."""
    return {id(p) for h in handles(model).values() for p in [h.flat_param, *(h.flat_param._params or []), *(h.flat_param._shared_params or [])]}


def managed_whole(model):
    """Of those the ones of NO_SHARD units."""
    return {id(p) for h in handles(model).values() if h._sharding_strategy.name == "NO_SHARD" for p in [h.flat_param, *(h.flat_param._params or [])]}


def build(draw):
    """The model of a draw, with nothing in its tensors yet."""
    made = globals()[draw.strategy](draw)
    if draw.strategy == "plain" and draw.rng("root").random() < 0.2:
        made = torch.compile(made)
    return made
