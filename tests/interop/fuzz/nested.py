"""Jobs on state dicts alone: random nested values, gathered or flattened."""
import torch
import torch.distributed._state_dict_utils as sdu
from torch.distributed.checkpoint import _nested_dict
from torch.distributed.tensor import distribute_tensor, Replicate, Shard

import strategies
import values


def tensor(rng, draw):
    t = torch.zeros([rng.choice([1, 2, 3, 5]) for _ in range(rng.choice([0, 1, 2]))], dtype=rng.choice([torch.float32, torch.int64, torch.bfloat16]))
    if t.dim() and rng.random() < 0.5:
        placement = rng.choice([Replicate(), *[Shard(d) for d in range(t.dim())]])
        t = distribute_tensor(t, strategies.mesh_of((draw.world,), ("dp",)), [placement], src_data_rank=None)
    return t


def value(rng, draw, depth):
    kind = rng.random()
    if depth < 3 and kind < 0.3:
        keys = rng.sample(["a", "b", "c", "a.b", "0", "1"], rng.randrange(4))
        return {k: value(rng, draw, depth + 1) for k in keys}
    if depth < 3 and kind < 0.5:
        items = [value(rng, draw, depth + 1) for _ in range(rng.randrange(4))]
        return items if rng.random() < 0.6 else tuple(items)
    return tensor(rng, draw) if kind < 0.85 else rng.choice([1, 2.5, "text", True])


def state(rng, draw, rank):
    made = {k: value(rng, draw, 0) for k in rng.sample(["model", "optim", "step", "a", "a.b", "b"], rng.randrange(1, 5))}
    values.fill_state(made, (draw.seed, draw.number), rank if draw.apart else 0, False)
    return made


def make(draw, number, rank):
    """The job's description."""
    rng = draw.rng(("nested", number))
    job = draw.jobs[number]
    out = {"op": job["op"], "options": {}, "state": state(rng, draw, rank)}
    if job["op"] == "gather":
        out["ranks_only"] = sorted(rng.sample(range(draw.world), rng.choice([0, 0, 1, draw.world])))
        out["options"] = {"cpu_offload": rng.random() < 0.4}
    return out


def perform(described):
    made = described["state"]
    if described["op"] == "gather":
        got = sdu._gather_state_dict(made, cpu_offload=described["options"]["cpu_offload"], ranks_only=tuple(described["ranks_only"]))
        return {"model": got}
    flatten, unflatten = {"flatten": (sdu._flatten_state_dict, sdu._unflatten_state_dict),
                          "flatten_dcp": (_nested_dict.flatten_state_dict, _nested_dict.unflatten_state_dict)}[described["op"]]
    flat, paths = flatten(made)
    return {"model": flat, "optimizer": unflatten(flat, paths)}
