"""Optimizer state of DTensors over one, two and three dims of a mesh in real PyTorch, for tests/statedict:
python tests/golden/make_optimizer_mesh.py [CASE...]

optimizer_mesh.json: as optimizer_state.json (make_optimizer_state.py), of models over tensor parallelism, HSDP, and FSDP2 and HSDP over
tensor parallelism, on gloo with 4 ranks, and 8 of three dims (row A12). Every tensor and every part of it has values of its own; so have,
on each rank, options and what is not a DTensor. A DTensor over some dims of the mesh is written as one over the whole mesh that the others
replicate. "gets" have the states before; "unlike" what was given to set_optimizer_state_dict, what the optimizers
held before ("optimizers") and hold afterwards ("then"), or the error.
"""
import json
import logging
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from make_fsdp_state import run
from make_model_state import modules_document, tensors
from make_optimizer_state import FLAT, FULL, SPREAD, groups, then
from make_state_dict import encode

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict, StateDictOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module, RowwiseParallel

# `apart`: replicas differ, too. `rows`: which of ROWS. What is refused after first states were made leaves them there, and PyTorch leaves one optimizer loaded, too.
CASES = {
    "tp_w4": {"world": 4, "mesh": {"tp": 4}, "hidden": 6, "keys": True},
    "hsdp_w4": {"world": 4, "mesh": {"replicate": 2, "shard": 2}, "hidden": 5},
    "fsdp2_tp_w4": {"world": 4, "mesh": {"shard": 2, "tp": 2}, "hidden": 8},
    "fsdp2_tp_fresh_w4": {"world": 4, "mesh": {"shard": 2, "tp": 2}, "hidden": 8, "steps": 0, "rows": ["same", "gradients"]},
    "fsdp2_tp_one_w4": {"world": 4, "mesh": {"shard": 1, "tp": 4}, "hidden": 8, "narrow": True},
    "hsdp_tp_w8": {"world": 8, "mesh": {"replicate": 2, "shard": 2, "tp": 2}, "hidden": 8, "rows": ["same", "lacks"]},
    "hsdp_apart_w4": {"world": 4, "mesh": {"replicate": 2, "shard": 2}, "hidden": 5, "apart": True, "rows": ["same"]},
    "fsdp2_tp_apart_w4": {"world": 4, "mesh": {"shard": 2, "tp": 2}, "hidden": 8, "apart": True, "rows": ["same"]},
}
DONOR = 500_000  # what its numbers are higher by


class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(3))
        self.body = nn.Sequential(nn.Linear(5, hidden), nn.Sequential(nn.Linear(hidden, 7)))
        self.head = nn.Linear(7, 3, bias=False)
        self.head.weight.requires_grad = False
        self.last = nn.Linear(3, 2)


def parallel(case):
    names, shape = tuple(case["mesh"]), tuple(case["mesh"].values())
    net, mesh = Net(case["hidden"]), init_device_mesh("cpu", shape, mesh_dim_names=names)
    if "tp" in names:
        plan = {"body.0": ColwiseParallel(), "body.1.0": RowwiseParallel(), "last": RowwiseParallel()}
        if case.get("narrow"):
            del plan["last"]  # PyTorch cannot gather what leaves a rank nothing (DIFFERENCES.md)
        parallelize_module(net, mesh["tp"], plan)
    data = tuple(n for n in names if n != "tp")
    if data:
        fully_shard(net.body[0], mesh=mesh[data])
        fully_shard(net, mesh=mesh[data])
    return net


def part_of(t, apart):
    """Which part this rank has of it, as a number: replicas have the same unless they are to differ."""
    if apart or not isinstance(t, DTensor):
        return dist.get_rank()
    number = 0
    for dim, p in enumerate(t.placements):
        if p.is_shard():
            number = number * t.device_mesh.size(dim) + t.device_mesh.get_local_rank(dim)
    return number


def fill(t, number, high, apart):
    """Numbers of this tensor and this part alone."""
    local = t.to_local() if isinstance(t, DTensor) else t
    with torch.no_grad():
        local.copy_((torch.arange(local.numel()) + 100 * number + 10_000 * (part_of(t, apart) + 1) + high).reshape(local.shape))


def two(named):
    """Two optimizers, one with two groups, the second of which is in another order than the model's."""
    body, rest = [p for n, p in named if "body" in n], [p for n, p in named if "body" not in n]
    return [torch.optim.SGD(rest[::-1], lr=0.25, momentum=0.5, foreach=False),
            torch.optim.AdamW([{"params": body[:1], "lr": 0.125}, {"params": body[:0:-1], "amsgrad": True}], lr=0.5, betas=(0.5, 0.75), foreach=False)]


def build(case, high=0):
    model = parallel(case)
    named = list(model.named_parameters())
    optimizers = two(named)
    for _ in range(1 if high else case.get("steps", 2)):
        for _, p in named:
            if p.requires_grad:
                p.grad = torch.full_like(p, 2)
        for o in optimizers:
            o.step()
            o.zero_grad()
    number = 0
    for _, p in named:
        fill(p, number := number + 1, high, case.get("apart"))
    for o in optimizers:
        for g in o.param_groups:
            g["lr"] += dist.get_rank() / 8 + (3 if high else 0)
        for state in o.state.values():
            for t in state.values():
                fill(t, number := number + 1, high, case.get("apart"))
    if case.get("keys") and dist.get_rank() == 2:  # of what is not a DTensor
        optimizers[0].state[model.scale]["mine"] = torch.full((2,), 3.0 + high)
    return model, optimizers


def over_all(record, mesh):
    """DTensors over some dims, as over the whole mesh."""
    if isinstance(record, list):
        return [over_all(r, mesh) for r in record]
    if not isinstance(record, dict):
        return record
    if list(record) == ["M"]:
        dtype, sizes, over, placements, numbers = record["M"]
        of = dict(zip(re.findall(r"(\w+)=", over), re.split(r",(?! )", placements)))
        text = ",".join(f"{n}={s}" for n, s in mesh.items())
        return {"M": [dtype, sizes, text, ",".join(of.get(n, "replicate") for n in mesh), numbers]}
    return {k: over_all(v, mesh) for k, v in record.items()}


def error_of(e):
    return f"{type(e).__name__}: {e}"[:80]


def gets(case):
    for options in ({}, FULL, {**FULL, "cpu_offload": True}, {"cpu_offload": True}, FLAT, {**FULL, **FLAT}, {"ignore_frozen_params": True}):
        model, optimizers = build(case)
        try:
            yield {"options": options, "out": encode(get_optimizer_state_dict(model, optimizers, options=StateDictOptions(**options)))}
        except Exception as e:
            yield {"options": options, "error": error_of(e)}


def same(state):
    return state


def keep(model, optimizers):
    pass


def lacks(model, optimizers):
    """State of what both dims cut, as if it never had a gradient."""
    optimizers[1].state.pop(model.body[1][0].weight)


def gradients(model, optimizers):
    """Nothing was stepped yet, and there are gradients."""
    for o in optimizers:
        o.state.clear()
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.full_like(p, 2)


def without(state):
    return {**state, "state": {k: v for k, v in state["state"].items() if k != "body.0.bias"}}


def without_flat(state):
    return {k: v for k, v in state.items() if k != "param_groups.body.0.weight.lr"}


ROWS = [("same", keep, same, o) for o in ({}, FULL, {**FULL, "cpu_offload": True}, SPREAD, FLAT)]
ROWS += [(name, prepare, same, o) for name, prepare in (("lacks", lacks), ("gradients", gradients)) for o in ({}, FULL, SPREAD)]
ROWS += [("missing", keep, without, {}), ("missing", keep, without, {"strict": False}), ("no option", keep, without_flat, FLAT)]


def sets(case):
    """As "unlike" of optimizer_state.json."""
    for of, prepare, change, options in ROWS:
        spread = "broadcast_from_rank0" in options
        if spread and case.get("keys"):
            continue  # ranks that hold other names are refused in a broadcast (DIFFERENCES.md)
        if case.get("apart") and "full_state_dict" in options and not spread:
            continue  # PyTorch takes rank 0's values, which are those of all ranks (DIFFERENCES.md)
        if of not in case.get("rows", of):
            continue
        of_donor = {k: v for k, v in options.items() if k in ("full_state_dict", "flatten_optimizer_state_dict")}
        state = change(get_optimizer_state_dict(*build(case, DONOR), options=StateDictOptions(**of_donor)))
        if spread and dist.get_rank():
            state = {}
        model, optimizers = build(case)
        prepare(model, optimizers)
        has = [[[p.grad is not None for p in g["params"]] for g in o.param_groups] for o in optimizers]
        record = {"of": of, "options": options, "state": encode(state), "optimizers": groups(model, optimizers), "gradients": has}
        try:
            set_optimizer_state_dict(model, optimizers, state, options=StateDictOptions(**options))
            record["then"] = then(model, optimizers)
        except Exception as e:
            record["error"] = error_of(e)
        yield record


def make(case):
    model, optimizers = build(case)
    record = {"modules": modules_document(model), "tensors": tensors(model), "optimizers": groups(model, optimizers)}
    return over_all({**record, "gets": list(gets(case)), "unlike": list(sets(case))}, case["mesh"])


def main(names):
    path = os.path.join(HERE, "optimizer_mesh.json")
    cases = {c["of"]: c for c in json.load(open(path))["cases"]} if names else {}
    for port, (name, case) in enumerate(CASES.items(), 30900):
        if names and name not in names:
            continue
        ranks = run(port, make, case)
        modules = ranks[0]["modules"]
        for r in ranks:
            if r["modules"] == modules:
                del r["modules"]
            print(name, [(g["options"], g.get("of"), g["error"]) for g in r["gets"] + r["unlike"] if "error" in g], file=sys.stderr)
        cases[name] = {"of": name, "modules": modules, "ranks": ranks}
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases.values())
    with open(path, "w") as f:
        f.write('{"torch":"%s","cases":[\n' % torch.__version__ + re.sub(r"(?<=\d)\.0(?=[,\]}])", "", lines) + "\n]}\n")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main(sys.argv[1:])
