"""What get_ and set_*_state_dict do with models of FSDP1 units in real PyTorch, for tests/statedict: python tests/golden/make_fsdp_get_set.py

fsdp_get_set.json: torch/distributed/checkpoint/state_dict.py on gloo (rows A6, A7, A12). A case is a model of make_fsdp_state.py:
its tree, and by rank the units' slices, what else the modules hold, and the optimizers after two steps; `gets` and `optimizer_gets`
are what came out under several options. `sets`: the result of get number `from`, changed as changed() says and without `drop`, is set
with `options`; by rank what is there afterwards, or the error. Values are written as in make_state_dict.py. PyTorch takes the names of
some states out of sets: their order is settled by PYTHONHASHSEED alone.

`apart` cases: what FSDP1 does not shard differs by rank (parameters outside of units as in expert parallelism, NO_SHARD units, replicas
of hybrid ones, scalars of flat parameters, options), in values, in keys, in which ranks have any state, or in the parameters' names.
"""
import functools
import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import make_fsdp_state as fsdp
from make_fsdp_state import encode, handles, local, modules_document, plain_tensors, run
from make_optimizer_state import adamw, changed, groups, train

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict, get_optimizer_state_dict, set_model_state_dict, set_optimizer_state_dict, StateDictOptions)

FULL, CPU, SPREAD, FLAT = {"full_state_dict": True}, {"cpu_offload": True}, {"broadcast_from_rank0": True}, {"flatten_optimizer_state_dict": True}
LAX, FROZEN = {"strict": False}, {"ignore_frozen_params": True}
GETS = [{}, FULL, CPU, FROZEN]
OPTIMIZER_GETS = [{}, FULL, {**FULL, **CPU}, CPU, FLAT, {**FULL, **FLAT}]
KEY = "b.0.bias"


def two(params):
    a, b = params[::2], params[1::2]
    return [torch.optim.SGD([{"params": [p for _, p in a[:1]]}, {"params": [p for _, p in a[1:]][::-1], "lr": 0.125}], lr=0.25, momentum=0.5),
            torch.optim.Adam([p for _, p in b], betas=(0.5, 0.75), amsgrad=True, foreach=False)]


def inner(model):
    return model._orig_mod if hasattr(model, "_orig_mod") else model


def whole(model, param):
    """Whether no unit cuts the parameter."""
    for h in handles(inner(model)).values():
        if h._sharding_strategy.name == "NO_SHARD":
            continue
        if any(param is p for p in [h.flat_param, *(h.flat_param._params or [])]):
            return False
    return True


def part_values(model, optimizers, case):
    rank = dist.get_rank()
    for o in optimizers:
        for g in o.param_groups:
            g["lr"] += rank / 8
        for p, state in o.state.items():
            for name in state:
                cut = not whole(model, p)
                if cut and state[name].dim() == 0 and case.get("orig"):
                    continue  # must be the same on all ranks
                if not cut or state[name].dim() == 0:
                    state[name] = state[name] + 1000 * (rank + 1)
                elif case.get("strategy") == "HYBRID_SHARD":
                    state[name] = state[name] + 1000 * (rank // 2 + 1)


def part_keys(model, optimizers, case):
    rank, (o,) = dist.get_rank(), optimizers
    own = next(p for n, p in model.named_parameters() if "ignored.own" in n)
    if rank == (0 if case.get("orig") else 1):
        o.state[own]["mine"] = torch.full((2, 2), 7.0)
        del o.state[own]["exp_avg_sq"]
    if case.get("lacks") == rank:
        del o.state[own]


def part_presence(model, optimizers, case):
    """Only one rank has state of a parameter of the NO_SHARD unit."""
    p = next(p for n, p in model.named_parameters() if "ignored" not in n and whole(model, p))
    if dist.get_rank() == case["lacks"]:
        del optimizers[0].state[p]


def part(model, optimizers, case):
    rank, net = dist.get_rank(), inner(model)
    part_values(model, optimizers, case)
    if case["apart"] == "user":
        optimizers[0].state["seen"] = {"samples": 100 * (rank + 1), "ema": torch.full((2,), 1.5 + rank)}
        if rank:
            optimizers[0].state["more"] = {"scale": 2.5}
    if case["apart"] == "presence":
        part_presence(model, optimizers, case)
    if case["apart"] == "keys":
        part_keys(model, optimizers, case)
    if case.get("ignored"):
        with torch.no_grad():
            for t in [*net.module.ignored.parameters(), *net.module.ignored.buffers()]:
                t += 100 * rank
        net.module.ignored.step += rank


def name_apart(net, case):
    """Each rank's ignored module has a parameter of another name."""
    own = net.module.ignored.own
    del net.module.ignored.own
    net.module.ignored.register_parameter(f"own{dist.get_rank()}", own)


def build(case):
    model = fsdp.wrap(case)
    if case.get("apart") == "names":
        name_apart(model, case)
    if case.get("frozen"):
        for h in handles(model.b).values():
            h.flat_param.requires_grad = False
    if case.get("compiled"):
        model = torch.compile(model)
    optimizers = train(model, two if case.get("two") else adamw, case.get("steps", 2))
    if case.get("apart"):
        part(model, optimizers, case)
    return model, optimizers


def describe(model, case):
    net = inner(model)
    return {"slices": local(net), "plain": encode({**plain_tensors(net, case), **fsdp.extra_state(net, case)})}


def without(state, key):
    if key in state:
        state.pop(key)
    elif key in state.get("state", {}):
        state["state"].pop(key)
    return state


attempt = functools.partial(fsdp.attempt, most=60)


def head(case):
    model, optimizers = build(case)
    out = {"modules": modules_document(model), "units": [{"module": n, "strategy": h._sharding_strategy.name} for n, h in handles(model).items()]}
    get_model_state_dict(model)  # the first casts buffers to the type that they have in training
    out |= {**describe(model, case), "optimizers": groups(model, optimizers)}
    out["gets"] = [{"options": o, **attempt(lambda: encode(dict(get_model_state_dict(model, options=StateDictOptions(**o)))))} for o in GETS]
    for keep in (True, False):
        o = {"keep_submodule_prefixes": keep}
        out["gets"].append({"options": o, "submodules": ["b"], **attempt(
            lambda: encode(dict(get_model_state_dict(model, submodules={inner(model).b}, options=StateDictOptions(**o)))))})
    out["optimizer_gets"] = [
        {"options": o, **attempt(lambda: encode(get_optimizer_state_dict(model, optimizers, options=StateDictOptions(**o))))} for o in OPTIMIZER_GETS]
    return out


def set_one(case, job):
    model, optimizers = build(case)
    of_model = job["what"] == "model"
    options = StateDictOptions(**(GETS if of_model else OPTIMIZER_GETS)[job["from"]])
    got = get_model_state_dict(model, options=options) if of_model else get_optimizer_state_dict(model, optimizers, options=options)
    state = without(changed(dict(got)), job.get("drop"))
    if "add" in job:
        state[job["add"]] = torch.ones(2)
    if "misshape" in job:
        state[job["misshape"]] = torch.ones(2)
    if job["options"].get("broadcast_from_rank0") and dist.get_rank():
        state = {}
    options = StateDictOptions(**job["options"])
    if of_model:
        keys = set_model_state_dict(model, state, options=options)
        return {**describe(model, case), "missing": sorted(keys.missing_keys), "unexpected": sorted(keys.unexpected_keys)}
    set_optimizer_state_dict(model, optimizers, state, options=options)
    return {"optimizers": groups(model, optimizers)}


def try_set(case, job):
    record = attempt(lambda: set_one(case, job))
    return record.get("out", record)


CASES = {
    "flat_w3": {"world": 3, "checkpoint": "none", "tied": False, "jobs": True},
    "orig_w2": {"world": 2, "orig": True, "checkpoint": "within", "ignored": True, "half_buffers": True, "tied": False, "jobs": True},
    "mesh_w2": {"world": 2, "mesh": [2], "checkpoint": "none", "two": True, "tied": False, "jobs": True},
    "tied_w2": {"world": 2, "checkpoint": "none"},
    "hybrid_w4": {"world": 4, "mesh": [2, 2], "strategy": "HYBRID_SHARD", "checkpoint": "none"},
    "mixed_w2": {"world": 2, "mixed": True, "checkpoint": "none", "tied": False},
    "bare_w3": {"world": 3, "bare": True, "checkpoint": "none", "tied": False},
    "compiled_w2": {"world": 2, "compiled": True, "checkpoint": "none", "tied": False},
    "frozen_w2": {"world": 2, "frozen": True, "two": True, "checkpoint": "none", "tied": False},
    "orig_fresh_w3": {"world": 3, "orig": True, "steps": 0, "checkpoint": "none"},
    "around_w2": {"world": 2, "two": True},
    "apart_w2": {"world": 2, "ignored": True, "checkpoint": "none", "tied": False, "apart": "values"},
    "apart_orig_w3": {"world": 3, "orig": True, "ignored": True, "checkpoint": "none", "tied": False, "apart": "values"},
    "apart_mixed_w2": {"world": 2, "mixed": True, "ignored": True, "checkpoint": "none", "tied": False, "apart": "values"},
    "apart_mixed_orig_w2": {"world": 2, "orig": True, "mixed": True, "ignored": True, "checkpoint": "none", "tied": False, "apart": "values"},
    "apart_hybrid_w4": {"world": 4, "mesh": [2, 2], "strategy": "HYBRID_SHARD", "checkpoint": "none", "tied": False, "apart": "values"},
    "apart_hybrid_orig_w4": {"world": 4, "orig": True, "mesh": [2, 2], "strategy": "HYBRID_SHARD", "checkpoint": "none", "tied": False, "apart": "values"},
    "apart_keys_w2": {"world": 2, "ignored": True, "checkpoint": "none", "tied": False, "apart": "keys"},
    "apart_keys_orig_w3": {"world": 3, "orig": True, "ignored": True, "checkpoint": "none", "tied": False, "apart": "keys"},
    "apart_lacks_w2": {"world": 2, "ignored": True, "checkpoint": "none", "tied": False, "apart": "keys", "lacks": 0},
    "apart_lacks_orig_w2": {"world": 2, "orig": True, "ignored": True, "checkpoint": "none", "tied": False, "apart": "keys", "lacks": 0},
    "apart_needed_w2": {"world": 2, "ignored": True, "checkpoint": "none", "tied": False, "apart": "keys", "lacks": 1},
    "apart_presence_orig_w2": {"world": 2, "orig": True, "mixed": True, "ignored": True, "checkpoint": "none", "tied": False, "apart": "presence", "lacks": 0},
    "apart_presence_orig2_w2": {"world": 2, "orig": True, "mixed": True, "ignored": True, "checkpoint": "none", "tied": False, "apart": "presence", "lacks": 1},
    "apart_user_w2": {"world": 2, "ignored": True, "checkpoint": "none", "tied": False, "apart": "user"},
    "apart_user_orig_w2": {"world": 2, "orig": True, "ignored": True, "checkpoint": "none", "tied": False, "apart": "user"},
    "apart_names_orig_w2": {"world": 2, "orig": True, "ignored": True, "checkpoint": "none", "tied": False, "apart": "names"},
}


def jobs(case):
    model = [(0, {}, {}), (1, FULL, {}), (1, {**FULL, **SPREAD}, {})]
    optimizer = [(0, {}, {}), (1, FULL, {}), (1, {**FULL, **SPREAD}, {})]
    if case.get("lacks") == 1 and not case.get("orig"):  # there is nothing to set: every get is refused
        optimizer = []
    if case.get("apart") == "keys" and "lacks" not in case:  # PyTorch drops what only other ranks hold
        optimizer += [(5, {**FULL, **FLAT, **SPREAD, **lax}, {}) for lax in ({}, LAX)]
    if case.get("jobs"):
        optimizer += [(1, {**FULL, **CPU}, {}), (4, FLAT, {}), (5, {**FULL, **FLAT}, {})]
        model.append((1, {**FULL, **CPU}, {}))
        for lax in ({}, LAX):
            model += [(0, lax, {"drop": KEY}), (1, {**FULL, **lax}, {"drop": KEY}), (0, lax, {"add": "b.stranger"}), (1, {**FULL, **lax}, {"add": "b.stranger"}),
                      (1, {**FULL, **SPREAD, **lax}, {"drop": KEY}), (1, {**FULL, **SPREAD, **lax}, {"add": "b.stranger"})]
            optimizer += [(0, lax, {"drop": KEY}), (1, {**FULL, **lax}, {"drop": KEY}), (1, {**FULL, **SPREAD, **lax}, {"drop": KEY})]
        model += [(1, FULL, {"misshape": KEY}), (0, {}, {"misshape": KEY})]
    return [{"what": what, "from": f, "options": o, **more} for what, all in (("model", model), ("optimizer", optimizer)) for f, o, more in all]


def main(names):
    path, port = os.path.join(HERE, "fsdp_get_set.json"), 30100
    cases = json.load(open(path))["cases"] if names else {}
    for name, case in CASES.items():
        if names and name not in names:
            continue
        ranks = run(port, head, case)
        port += 1
        modules, units = ranks[0]["modules"], ranks[0]["units"]
        for r in ranks:
            if r["modules"] == modules:
                del r["modules"]
            del r["units"]
            print(name, [g.get("error") for g in r["gets"] + r["optimizer_gets"]], file=sys.stderr)
        cases[name] = {"case": case, "modules": modules, "units": units, "ranks": ranks, "sets": []}
        for job in jobs(case):
            port += 1
            cases[name]["sets"].append({**job, "ranks": run(port, try_set, case, job)})
            print(name, job, [r.get("error") for r in cases[name]["sets"][-1]["ranks"]], file=sys.stderr, flush=True)
        print(name, flush=True)
        lines = ",\n".join(f'"{n}":' + json.dumps(c, separators=(",", ":")) for n, c in cases.items())
        with open(path, "w") as f:
            f.write('{"torch":"%s","cases":{\n' % torch.__version__ + re.sub(r"(?<=\d)\.0(?=[,\]}])", "", lines) + "\n}}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
