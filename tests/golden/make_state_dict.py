"""State dicts across ranks as real PyTorch treats them, for tests/statedict: python tests/golden/make_state_dict.py

state_dict.json: torch/distributed/_state_dict_utils.py on gloo, worlds of 1 to 4 ranks (rows D1-D8). A case has, by rank, what
went in and what came out. Values are written as in make_optim.py; distributed tensors, as a rank holds them, as
{"M": [dtype, shape, mesh, placements, local numbers]} (DTensor) and {"S": [dtype, shape, [[offsets, sizes, numbers]...]]}
(ShardedTensor); {"o": class} is an object of a class.
"""
import json
import os
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
import torch.distributed._state_dict_utils as sdu
import torch.multiprocessing as mp
from torch.distributed._shard.sharded_tensor import Shard as TensorShard, ShardedTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

ROOT = os.path.dirname(os.path.abspath(__file__))


def numbers(t):
    return t.detach().reshape(-1).to(torch.float64).tolist()


def dtype_name(t):
    return str(t.dtype).removeprefix("torch.")


def placement_text(p):
    if isinstance(p, _StridedShard):
        return f"strided_shard({p.dim}, {p.split_factor})"
    if p.is_shard():
        return f"shard({p.dim})"
    return "replicate" if p.is_replicate() else "partial"


def encode(v):
    if isinstance(v, ShardedTensor):
        parts = [[list(s.metadata.shard_offsets), list(s.metadata.shard_sizes), numbers(s.tensor)] for s in v.local_shards()]
        return {"S": [dtype_name(v), list(v.size()), parts]}
    if isinstance(v, DTensor):
        mesh = ",".join(f"{n}={s}" for n, s in zip(v.device_mesh.mesh_dim_names, v.device_mesh.shape))
        return {"M": [dtype_name(v), list(v.shape), mesh, ",".join(map(placement_text, v.placements)), numbers(v.to_local())]}
    if isinstance(v, torch.Tensor):
        return {"T": [dtype_name(v), list(v.shape), numbers(v)]}
    if isinstance(v, dict):
        return {"D": [[encode(k), encode(x)] for k, x in v.items()]}
    if isinstance(v, (list, tuple)):
        return {"L" if isinstance(v, list) else "U": [encode(x) for x in v]}
    if v is None:
        return {"n": 0}
    if type(v) in (bool, int, float, str):
        return {{bool: "b", int: "i", float: "f", str: "s"}[type(v)]: v}
    return {"o": type(v).__name__}


def ramp(shape, dtype=torch.float32, start=0):
    n = torch.Size(shape).numel()
    return (torch.arange(start, start + n, dtype=torch.int64) % 120).reshape(shape).to(dtype)


def sharded(full, parts):
    """A ShardedTensor of which this rank has the boxes that parts[rank] lists as (offsets, sizes)."""
    rank = dist.get_rank()
    local = [TensorShard.from_tensor_and_offsets(
        full[tuple(slice(o, o + s) for o, s in zip(offsets, sizes))].clone(), list(offsets), rank) for offsets, sizes in parts[rank]]
    return ShardedTensor._init_from_local_shards(local, *full.size())


def rows_of(rows, world):
    chunk = -(-rows // world)
    return [(min(r * chunk, rows), min((r + 1) * chunk, rows)) for r in range(world)]


def state(world):
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    out = {
        "rows": distribute_tensor(ramp([5, 3]), mesh, [Shard(0)]),
        "columns": distribute_tensor(ramp([4, 6], torch.bfloat16, 7), mesh, [Shard(1)]),
        "few": distribute_tensor(ramp([2, 2], torch.float64, 3), mesh, [Shard(0)]),
        "copies": distribute_tensor(ramp([3], torch.int64, 1), mesh, [Replicate()]),
        "plain": ramp([2, 3], torch.float16),
        "boxes": sharded(ramp([7, 2], start=5), [[((a, 0), (b - a, 2))] if b > a else [] for a, b in rows_of(7, world)]),
        "deep": {"list": [1, 2.5, distribute_tensor(ramp([6], torch.int32), mesh, [Shard(0)]), {"last": None}],
                 "tuple": ("text", True, distribute_tensor(torch.tensor(4.5), mesh, [Replicate()])), "empty": {}},
        "nothing": distribute_tensor(ramp([0, 4]), mesh, [Shard(0)]),
    }
    if world == 4:
        grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        out["hybrid"] = distribute_tensor(ramp([5, 2], start=11), grid, [Replicate(), Shard(0)])
        out["both"] = distribute_tensor(ramp([6, 6]), grid, [Shard(0), Shard(1)])
        out["twice"] = distribute_tensor(ramp([8, 3]), grid, [Shard(0), Shard(0)])
        out["strided"] = distribute_tensor(ramp([8, 3]), grid, [_StridedShard(0, split_factor=2), Shard(0)])
    return out


def gather_cases(world, add):
    for ranks in ((), (0,), (world - 1, 0)):
        s = state(world)
        add("gather", {"in": encode(s), "out": encode(sdu._gather_state_dict(s, ranks_only=ranks))}, ranks_only=list(ranks))


def local_cases(world, add):
    s = state(world)
    for ranks in ((), (0,)):
        add("offload", {"in": encode(s), "out": encode(sdu._offload_state_dict_to_cpu(s, ranks_only=ranks))}, ranks_only=list(ranks))
    target = sdu._create_cpu_state_dict(s)
    add("create", {"in": encode(s), "out": encode(shapes(target))})
    add("create", {"in": encode(s), "out": encode(shapes(sdu._create_cpu_state_dict(s, share_memory=True)))}, share=True)
    add("copy", {"in": encode(s), "out": encode(sdu._copy_state_dict(s, target))})


def convert_cases(world, add):
    """copy_ converts dtypes and broadcasts."""
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    boxes = [[((a, 0), (b - a, 2))] if b > a else [] for a, b in rows_of(7, world)]
    over = lambda t: distribute_tensor(t, mesh, [Shard(0)])
    s = {"wider": over(ramp([5, 3], start=2)), "narrower": ramp([2, 3], start=1) / 3, "integers": ramp([4], torch.int64, 3),
         "row": ramp([3], start=1), "column": ramp([2, 1], torch.bfloat16, 4), "scalar": torch.tensor(2.5), "boxes": sharded(ramp([7, 2], start=5), boxes)}
    t = {"wider": over(torch.zeros(5, 3, dtype=torch.float64)), "narrower": torch.zeros(2, 3, dtype=torch.bfloat16),
         "integers": torch.zeros(4), "row": torch.zeros(2, 3), "column": torch.zeros(3, 2, 4), "scalar": torch.zeros(3, dtype=torch.float64),
         "boxes": sharded(torch.zeros(7, 2, dtype=torch.bfloat16), boxes)}
    given = {"in": encode(s), "other": encode(t)}
    add("convert", {**given, "out": encode(sdu._copy_state_dict(s, t))})


def shapes(v):
    """What is known of new memory: zeros of the same shapes."""
    if isinstance(v, (ShardedTensor, DTensor)) or (isinstance(v, torch.Tensor) and v.dim() == 0):
        if isinstance(v, DTensor) and v.dim():
            v.to_local().zero_()
        if isinstance(v, ShardedTensor):
            for s in v.local_shards():
                s.tensor.zero_()
        return v
    if isinstance(v, torch.Tensor):
        return torch.zeros_like(v)
    if isinstance(v, dict):
        return {k: shapes(x) for k, x in v.items()}
    return type(v)(shapes(x) for x in v) if isinstance(v, (list, tuple)) else v


def full_state():
    return {"w": ramp([5, 3]), "v": ramp([4, 6], torch.bfloat16, 9), "b": ramp([7], torch.float64, 2), "step": torch.tensor(3.0),
            "lr": 0.5, "extra": ramp([2]), "meta": {"names": ["a", ("b", 2)], "none": None}, "h": ramp([8, 2], start=4),
            "skip": ramp([3])}


def local_state(world, meta):
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    device = "meta" if meta else "cpu"
    out = {"own": torch.ones(2), "b": torch.zeros(7, dtype=torch.float64), "lr": 0.1, "meta": None, "step": torch.tensor(0.0),
           "w": distribute_tensor(torch.zeros(5, 3, device=device), mesh, [Shard(0)]),
           "v": distribute_tensor(torch.zeros(4, 6, device=device, dtype=torch.bfloat16), mesh, [Shard(1)]), "skip": None,
           "count": 12}
    if world == 4:
        grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        out["h"] = distribute_tensor(torch.zeros(8, 2, device=device), grid, [Shard(0), Shard(1)])
    return out


def encode_local(local):
    out = []
    for k, x in local.items():
        value = encode(x) if not (isinstance(x, DTensor) and x.is_meta) else None
        if value is None:
            mesh = ",".join(f"{n}={s}" for n, s in zip(x.device_mesh.mesh_dim_names, x.device_mesh.shape))
            value = {"M": [dtype_name(x), list(x.shape), mesh, ",".join(map(placement_text, x.placements)), None]}
        out.append([encode(k), value])
    return {"D": out}


def other_shapes(add):
    """A whole tensor gives way to one of another shape."""
    local = {"longer": torch.zeros(2), "flat": torch.zeros(2, 3), "first": torch.zeros(()), "number": torch.ones(2)}
    given = encode_local(local)
    full = {"longer": ramp([5]), "flat": ramp([6]), "first": ramp([1]), "number": torch.tensor(0.5)} if dist.get_rank() == 0 else {}
    sdu._broadcast_state_dict(full, local, torch.device("cpu"))
    add("broadcast", {"in": encode(full), "local": given, "out": encode(local)}, strict=False)


def full_cases(world, add):
    for strict in (False, True):
        for meta in (False, True):
            local = local_state(world, meta)
            given = encode_local(local)
            full = full_state() if dist.get_rank() == 0 else {}
            sdu._broadcast_state_dict(full, local, torch.device("cpu"), strict=strict)
            add("broadcast", {"in": encode(full), "local": given, "out": encode(local)}, strict=strict)
    other_shapes(add)
    local = local_state(world, False)
    given = encode_local(local)
    sdu._distribute_state_dict(full_state(), local, torch.device("cpu"))
    add("distribute", {"in": encode(full_state()), "local": given, "out": encode(local)})


class Thing:
    pass


def similar_cases(add):
    a = {"x": ramp([2, 2]), "y": [ramp([3]), 1], "z": ("s", None)}
    others = {
        "same": {"x": ramp([2, 2], start=9), "y": [ramp([3]), 2], "z": ("t", 4)},
        "order of keys": {"z": ("s", None), "y": [ramp([3]), 1], "x": ramp([2, 2])},
        "shape": {"x": ramp([2, 2]), "y": [ramp([4]), 1], "z": ("s", None)},
        "dtype": {"x": ramp([2, 2], torch.float64), "y": [ramp([3]), 1], "z": ("s", None)},
        "a key more": {"x": ramp([2, 2]), "y": [ramp([3]), 1], "z": ("s", None), "q": 1},
        "a key less": {"x": ramp([2, 2]), "y": [ramp([3]), 1]},
        "length": {"x": ramp([2, 2]), "y": [ramp([3])], "z": ("s", None)},
        "list for tuple": {"x": ramp([2, 2]), "y": (ramp([3]), 1), "z": ["s", None]},
        "dict for list": {"x": ramp([2, 2]), "y": {0: ramp([3]), 1: 1}, "z": ("s", None)},
        "list for dict": [ramp([2, 2]), [ramp([3]), 1], ("s", None)],
        "value for value": {"x": ramp([2, 2]), "y": [ramp([3]), "text"], "z": (1.5, [1])},
    }
    for name, b in others.items():
        given = encode(b)  # torch's copies into it
        try:
            same = sdu._check_state_dict_similarity(a, b)
        except AttributeError:  # on its way to say that they differ
            same = False
        add("similar", {"in": encode(a), "other": given, "same": same}, of=name)


def iterate(value, **options):
    keep = lambda v, pg, device, companion: v
    return sdu._iterate_state_dict(value, keep, keep, keep, **options)


def iterate_cases(add):
    t = ramp([2])
    table = [("kinds", {"a": 1, "b": 2.5, "c": "s", "d": None, "e": True, "f": t, "g": [t, (t, {"h": t})], 3: {"i": t}}, {}),
             ("no dict", [t, 1], {}), ("a tensor", t, {}), ("a set", {"a": {1, 2}}, {}), ("an object", {"a": Thing()}, {}),
             ("an object, any type", {"a": Thing()}, {"type_check": False}), ("a dtype", {"a": [torch.float32]}, {}),
             ("others only", {"a": {"b": t}}, {"ranks_only": (1,)}), ("others only, list", [t], {"ranks_only": (1,)}),
             ("companion", {"a": [t, 1]}, {"companion_obj": {"a": [torch.zeros(2), 5]}}),
             ("companion of other keys", {"a": t}, {"companion_obj": {"b": torch.zeros(2)}}),
             ("companion of more keys", {"a": t}, {"companion_obj": {"a": torch.zeros(2), "b": 1}}),
             ("companion of other length", [t, t], {"companion_obj": [torch.zeros(2)]}),
             ("companion without tensor", {"a": t}, {"companion_obj": {"a": 1}}),
             ("companion of other shape", {"a": t}, {"companion_obj": {"a": torch.zeros(3)}})]
    for name, value, options in table:
        record = {"in": encode(value)}
        if "companion_obj" in options:
            record["companion"] = encode(options["companion_obj"])
        try:
            record["out"] = encode(iterate(value, **options))
        except Exception as e:
            record["error"] = type(e).__name__
        add("iterate", record, of=name, type_check=options.get("type_check", True), ranks_only=list(options.get("ranks_only", ())))


def run(rank, world, directory):
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=world)
    records = []

    def add(op, record, **options):
        records.append((op, options, record))

    gather_cases(world, add)
    local_cases(world, add)
    convert_cases(world, add)
    full_cases(world, add)
    if world == 1:
        similar_cases(add)
        iterate_cases(add)
    with open(f"{directory}/{rank}.json", "w") as f:
        json.dump(records, f)
    dist.barrier()
    dist.destroy_process_group()


def main():
    cases = []
    for world in (1, 2, 3, 4):
        with tempfile.TemporaryDirectory() as directory:
            mp.spawn(run, (world, directory), nprocs=world)
            ranks = [json.load(open(f"{directory}/{r}.json")) for r in range(world)]
        for i, (op, options, _) in enumerate(ranks[0]):
            cases.append({"op": op, "world": world, **options, "ranks": [r[i][2] for r in ranks]})
    with open(os.path.join(ROOT, "state_dict.json"), "w") as f:
        f.write('{"torch": "%s", "cases": [\n' % torch.__version__)
        f.write(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
        f.write("\n]}\n")
    print(len(cases), "cases")


if __name__ == "__main__":
    main()
