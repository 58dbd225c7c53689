"""More of optimizers' own state dicts and FSDP1's forms in real PyTorch, for tests/statedict: python tests/golden/make_optimizer_forms.py

optimizer_forms.json (rows B3, B6, B7, B11), gloo, 2 ranks: as optimizer_raw.json (make_optimizer_raw.py), with other changes, which are
written out: every get, to_load and load has the state dict that was `given` to the call. States differ by rank, parameter, key and
element. KeyedOptimizer is torchrec's; its state dict has no groups unless it is told to save them.
"""
import copy
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import make_optimizer_raw as raw
from make_fsdp_get_set import describe, handles, modules_document
from make_optim_keys import written
from make_optimizer_state import groups
from make_state_dict import encode

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

HALF = torch.bfloat16


def build(case):
    model, optimizer = raw.build(case)
    for p, params in enumerate(q for g in optimizer.param_groups for q in g["params"]):
        for k, (key, value) in enumerate(optimizer.state.get(params, {}).items()):
            if value.dim():
                ramp = torch.arange(value.numel(), dtype=torch.float32) + 8 * k + 32 * p + 256 * dist.get_rank()
                optimizer.state[params][key] = ramp.reshape(value.shape).to(value.dtype)
            elif key == "step":
                optimizer.state[params][key] = value + p
    if case.get("lacks"):
        del optimizer.state[optimizer.param_groups[0]["params"][0]]
    for options in case.get("empty", []):
        optimizer.param_groups.append({**optimizer.param_groups[0], "params": [], **options})
    return model, optimizer


def every(state, key, f):
    for s in state["state"].values():
        if key in s:
            s[key] = f(s[key])


def change(state, what):
    """Of a state dict that is keyed by name or by number."""
    first = next(iter(state["state"]))
    named, group = isinstance(first, str), state["param_groups"][0]
    if what == "twice":
        state["param_groups"].append({**copy.deepcopy(group), "lr": 7.5})
    if what == "step float64":
        every(state, "step", lambda v: v.to(torch.float64) + 0.25)
    if what == "step int64":
        every(state, "step", lambda v: v.to(torch.int64) + 3)
    if what == "step number":
        every(state, "step", lambda v: 5.0)
    if what == "old":  # as PyTorch 1.11 saved them
        every(state, "step", lambda v: int(v))
        for g in state["param_groups"]:
            for key in ("maximize", "foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"):
                del g[key]
    if what in ("half", "double", "int32"):
        every(state, "exp_avg", lambda v: v.to({"half": HALF, "double": torch.float64, "int32": torch.int32}[what]))
    if what == "number":
        state["state"][first]["exp_avg"] = 4.0
    if what == "strangers":
        state["state"]["stranger" if named else 77] = {"exp_avg": torch.ones(2)}
    if what == "more groups":
        state["param_groups"].append({**copy.deepcopy(group), "params": ["stranger"] if named else [77]})
    if what == "tuples":
        group["params"] = tuple(group["params"])
    if what == "list of betas":
        group["betas"] = list(group["betas"])
    if what == "tensor lr":
        group["lr"] = torch.tensor(0.125)
    if what == "same size":
        group["alpha"] = group.pop("eps")
    if what == "names of params":
        group["param_names"] = [f"p{i}" for i in range(len(group["params"]))]
    if what == "no state at all":
        state["state"] = {}
    if what == "empty state":
        state["state"][first] = {}
    if what == "not a dict":
        state["state"][first] = 3
    if what == "state missing":
        del state["state"]
    if what == "groups missing":
        del state["param_groups"]
    if what == "no options":
        state["param_groups"] = [{"params": g["params"]} for g in state["param_groups"]]
    if what == "params missing":
        del group["params"]
    if what == "other names":
        state["state"] = {(f"module.{k}" if named else k + 1): v for k, v in state["state"].items()}
    if what == "renumbered":
        numbers = {k: i + 10 for i, k in enumerate(k for g in state["param_groups"] for k in g["params"])}
        state["state"] = {numbers[k]: v for k, v in state["state"].items()}
        for g in state["param_groups"]:
            g["params"] = [numbers[k] for k in g["params"]]
    if what == "params reversed":
        for g in state["param_groups"]:
            g["params"] = g["params"][::-1]
    return state


LOADS = ["same", "twice", "step float64", "step int64", "step number", "old", "half", "double", "int32", "number", "strangers", "more groups", "tuples", "list of betas",
         "tensor lr", "same size", "names of params", "no state at all", "empty state", "not a dict", "state missing", "groups missing", "no options", "params missing",
         "other names", "renumbered", "params reversed"]
GETS = ["same", "strangers", "tensor lr", "list of betas", "no state at all", "empty state", "groups missing", "no options", "step number", "half", "renumbered", "more groups"]
TO_LOADS = ["same", "strangers", "tensor lr", "groups missing", "no options", "step number", "half", "double", "no state at all", "list of betas", "params reversed", "twice"]
FEW = ["same", "twice", "strangers", "no state at all"]
CASES = {
    "flat": {"world": 2, "checkpoint": "none", "tied": False},
    "orig": {"world": 2, "orig": True, "checkpoint": "none", "tied": False, "ignored": True},
    "lacks": {"world": 2, "checkpoint": "none", "tied": False, "ignored": True, "lacks": True, "few": True},
    "empty": {"world": 2, "orig": True, "checkpoint": "none", "tied": False, "ignored": True, "few": True, "empty": [{"lr": 0.75}, {"lr": 0.875, "betas": (0.25, 0.5)}]},
}
INPUTS = {"tuple": lambda ps, gs: tuple(ps), "reversed": lambda ps, gs: ps[::-1], "groups reversed": lambda ps, gs: gs[::-1], "one group": lambda ps, gs: [{"params": ps}],
          "tuple of groups": lambda ps, gs: tuple(gs), "params tuple": lambda ps, gs: [{"params": tuple(g["params"])} for g in gs], "options": lambda ps, gs: [{**g, "lr": 3.0} for g in gs],
          "empty group": lambda ps, gs: [{"params": []}, *gs], "groups mixed": lambda ps, gs: [gs[0], *ps], "a dict": lambda ps, gs: gs[0], "none in it": lambda ps, gs: [*ps, None],
          "names": lambda ps, gs: ["scale"], "params number": lambda ps, gs: [{"params": 5}], "more": lambda ps, gs: [*gs, {"params": []}]}


def state_of(case, of):
    model, optimizer = build(case)
    if of == "keyed":
        names = {p: n for n, p in model.named_parameters()}
        return {"state": {names[p]: s for p, s in optimizer.state.items()}}
    return copy.deepcopy((raw.by_name(model, optimizer) if of == "named" else optimizer).state_dict())


def attempt(f):
    try:
        return f()
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"[:200]}


def load(case, named, given):
    model, optimizer = build(case)
    (raw.by_name(model, optimizer) if named else optimizer).load_state_dict(copy.deepcopy(given))
    return {"optimizers": groups(model, [optimizer])}


def get(case, given, form):
    model, optimizer = build(case)
    raw.set_form(model, form)
    return {"out": encode(FSDP.optim_state_dict(model, optimizer, copy.deepcopy(given)))}


def input_of(model, optimizer, name):
    made = INPUTS[name]([p for g in optimizer.param_groups for p in g["params"]], [{"params": g["params"]} for g in optimizer.param_groups])
    return made, written(model, made)


def get_by_input(case, name):
    model, optimizer = build(case)
    raw.set_form(model, "full")
    return {"out": encode(FSDP._optim_state_dict_impl(model, optimizer, optimizer.state_dict(), optim_input=input_of(model, optimizer, name)[0], rank0_only=False,
                                                     full_state_dict=True, cpu_offload=False))}


def to_load(case, named, form, given, name):
    model, optimizer = build(case)
    raw.set_form(model, form)
    if name:
        return {"out": encode(FSDP.shard_full_optim_state_dict(copy.deepcopy(given), model, optim_input=input_of(model, optimizer, name)[0]))}
    return {"out": encode(FSDP.optim_state_dict_to_load(model, optimizer, copy.deepcopy(given) if form != "rank0" or dist.get_rank() == 0 else {}, is_named_optimizer=named))}


def full_state(case, form):
    model, optimizer = build(case)
    raw.set_form(model, form)
    return FSDP.optim_state_dict(model, optimizer)


def moved(value, by):
    """Other numbers in every tensor, so that loading shows."""
    if isinstance(value, dict):
        return {k: moved(v, by) for k, v in value.items()}
    if isinstance(value, torch.Tensor) and not hasattr(value, "local_shards"):
        return value + by
    return value


def swapped(state, by):
    return {**state, "state": moved(state["state"], by)}


def record(case):
    model, optimizer = build(case)
    out = {"modules": modules_document(model), "units": [{"module": n, "strategy": h._sharding_strategy.name} for n, h in handles(model).items()]}
    out |= {**describe(model, case), "optimizers": groups(model, [optimizer]), "gets": [], "to_loads": [], "loads": []}
    for named in (False, True):
        for what in FEW if case.get("few") else LOADS:
            given = change(swapped(state_of(case, "named" if named else "raw"), 512), what)
            out["loads"].append({"named": named, "change": what, "given": encode(given), **attempt(lambda: load(case, named, given))})
    for of in ("raw", "named", "keyed"):
        for what in ["same"] if of == "keyed" else FEW if case.get("few") else GETS:
            if what == "half" and case.get("orig"):
                continue  # native/live/DIFFERENCES.md
            for form in ("full", "sharded") if what == "same" else ("full",):
                given = state_of(case, of) if of == "keyed" else change(state_of(case, of), what)
                out["gets"].append({"of": of, "form": form, "change": what, "given": encode(given), **attempt(lambda: get(case, given, form))})
    for name in INPUTS if not case.get("few") else []:
        out["gets"].append({"of": "input", "form": "full", "change": name, "input": input_of(model, optimizer, name)[1], **attempt(lambda: get_by_input(case, name))})
    if case.get("lacks"):
        return out
    full = full_state(case, "full")
    for named in (False, True):
        for what in FEW if case.get("few") else TO_LOADS:
            given = change(swapped(copy.deepcopy(full), 512), what)
            for form in ("full", "rank0") if what == "same" else ("full",):
                out["to_loads"].append({"named": named, "form": form, "change": what, "given": encode(given), **attempt(lambda: to_load(case, named, form, given, None))})
    for name in INPUTS if not case.get("few") else []:
        out["to_loads"].append({"named": False, "form": "full", "change": name, "given": encode(full), "input": input_of(model, optimizer, name)[1],
                                **attempt(lambda: to_load(case, False, "full", full, name))})
    return out


if __name__ == "__main__":
    raw.write("optimizer_forms.json", CASES, record, 31940)
