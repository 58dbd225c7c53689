"""Optimizers' own state dicts and FSDP1's forms of them in real PyTorch, for tests/statedict: python tests/golden/make_optimizer_raw.py

optimizer_raw.json (rows B3, B6, B7, B11), gloo, 2 ranks. A case is a model of make_fsdp_get_set.py with one optimizer of two groups. By
rank: `raw` and `named` are Optimizer.state_dict() and NamedOptimizer's; `gets`: FSDP.optim_state_dict of one of them (or of the optimizer,
with an `input`) in a form; `to_loads`: FSDP.optim_state_dict_to_load of get number `from`, changed; `loads`: Optimizer's or
NamedOptimizer's load_state_dict of its own changed state dict, and what the optimizer holds afterwards. Each has an `error` instead where
PyTorch refuses. Parameters are written as names, values as in make_state_dict.py.
"""
import copy
import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import make_fsdp_get_set as base
from make_fsdp_get_set import describe, handles, modules_document, part, run
from make_fsdp_state import wrap
from make_optim_keys import written
from make_optimizer_state import changed, groups, train
from make_state_dict import encode

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from torch.distributed.fsdp.api import (
    FullOptimStateDictConfig, FullStateDictConfig, ShardedOptimStateDictConfig, ShardedStateDictConfig)
from torch.distributed.optim import _NamedOptimizer


def adamw(params):
    params = [p for _, p in params]
    return [torch.optim.AdamW([{"params": params[2:][::-1]}, {"params": params[:2], "lr": 0.25}], lr=0.5, betas=(0.5, 0.75), foreach=False)]


def build(case):
    model = wrap(case)
    (optimizer,) = train(model, adamw, case.get("steps", 2))
    if case.get("apart"):
        part(model, [optimizer], case)
    return model, optimizer


def by_name(model, optimizer):
    """The optimizer as NamedOptimizer wraps it."""
    named = _NamedOptimizer(model.named_parameters(), torch.optim.AdamW, lr=0.5)
    raw = {p: n for n, p in model.named_parameters()}
    named._optimizer, named.param_groups = optimizer, optimizer.param_groups
    named.ordered_param_keys = [raw[p] for g in optimizer.param_groups for p in g["params"]]
    return named


def set_form(model, form):
    if form == "sharded":
        FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(), ShardedOptimStateDictConfig(offload_to_cpu=False))
    else:
        FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig(rank0_only=form == "rank0", offload_to_cpu=False))


def attempt(f):
    try:
        return {"out": encode(f())}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"[:200]}


def inputs(model, optimizer):
    params = [p for g in optimizer.param_groups for p in g["params"]]
    two = [{"params": g["params"]} for g in optimizer.param_groups]
    return {"groups": two, "list": params, "fewer": params[:2], "empty": [], "mixed": [params[0], *two], "no params": [{"lr": 1.0}], "number": 5, "numbers": [5]}


def get(case, of, form, given=None):
    model, optimizer = build(case)
    set_form(model, form)
    if of == "input":
        return FSDP._optim_state_dict_impl(model, optimizer, optimizer.state_dict(), optim_input=inputs(model, optimizer)[given], rank0_only=form == "rank0",
                                           full_state_dict=form != "sharded", cpu_offload=False)
    raw = by_name(model, optimizer).state_dict() if of == "named" else optimizer.state_dict()
    if given == "stranger":
        raw["param_groups"][0]["params"].append("stranger" if of == "named" else 99)
    return FSDP.optim_state_dict(model, optimizer, raw)


def to_load(case, j):
    got = get(case, GETS[j["from"]][0], GETS[j["from"]][1])
    model, optimizer = build(case)
    set_form(model, j["form"])
    state = changed(got)
    if j.get("change") == "no groups":
        del state["param_groups"]
    if j.get("change") == "no state":
        state = {}
    if j.get("change") == "stranger":
        state["param_groups"][0]["params"].append("stranger")
    if j["form"] == "rank0" and dist.get_rank():
        state = {}
    if "input" in j:
        return FSDP.shard_full_optim_state_dict(state, model, optim_input=inputs(model, optimizer)[j["input"]], optim=optimizer)
    return FSDP.optim_state_dict_to_load(model, optimizer, state, is_named_optimizer=j["named"])


def load(case, j):
    model, optimizer = build(case)
    target = by_name(model, optimizer) if j["named"] else optimizer
    state = changed(copy.deepcopy(target.state_dict()))
    change = j["change"]
    first = next(iter(state["state"]))
    if change == "no state":
        del state["state"][first]
    if change == "short state":
        del state["state"][first]["exp_avg"]
    if change == "other state":
        state["state"][first]["other"] = state["state"][first].pop("exp_avg")
    if change == "option":
        state["param_groups"][0]["other"] = 2.0
    if change == "other option":
        state["param_groups"][0]["other"] = state["param_groups"][0].pop("eps")
    if change == "no group":
        state["param_groups"].pop()
    if change == "other group":
        state["param_groups"][0]["params"].pop()
    if change == "order":
        state["param_groups"] = state["param_groups"][::-1]
    if change == "user":
        state["state"]["given"] = {"samples": 3, "ema": torch.full((2,), 4.0)}
    if change == "fresh":
        optimizer.state.clear()
    target.load_state_dict(state)
    return {"optimizers": groups(model, [optimizer])}


GETS = [("raw", "full"), ("named", "full"), ("raw", "sharded"), ("named", "sharded"), ("raw", "rank0"), ("raw", "full", "stranger"), ("named", "full", "stranger"),
        *(("input", "full", i) for i in ("groups", "list", "fewer", "empty", "mixed", "no params", "number", "numbers")), ("input", "sharded", "groups")]
TO_LOADS = [{"from": 0, "form": "full", "named": n} for n in (False, True)] + [{"from": 0, "form": "rank0", "named": n} for n in (False, True)] + [
    {"from": 2, "form": "sharded", "named": n} for n in (False, True)] + [
    {"from": 0, "form": "full", "named": n, "change": c} for c in ("no groups", "no state", "stranger") for n in (False, True)] + [
    {"from": 0, "form": "full", "named": False, "input": i} for i in ("groups", "list", "fewer", "empty", "mixed", "no params", "number")]
LOADS = [{"named": n, "change": c} for n in (False, True) for c in (
    "same", "no state", "short state", "other state", "option", "other option", "no group", "other group", "order", "user", "fresh")]
CASES = {
    "flat": {"world": 2, "checkpoint": "none", "tied": False},
    "orig": {"world": 2, "orig": True, "checkpoint": "none", "tied": False, "ignored": True},
    "user": {"world": 2, "checkpoint": "none", "tied": False, "ignored": True, "apart": "user"},
    "user orig": {"world": 2, "orig": True, "checkpoint": "none", "tied": False, "ignored": True, "apart": "user"},
}


def loaded(case, j):
    try:
        return load(case, j)
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"[:200]}


def record(case):
    model, optimizer = build(case)
    out = {"modules": modules_document(model), "units": [{"module": n, "strategy": h._sharding_strategy.name} for n, h in handles(model).items()]}
    out |= {**describe(model, case), "optimizers": groups(model, [optimizer]), "raw": encode(optimizer.state_dict()),
            "named": attempt(lambda: by_name(model, optimizer).state_dict())}
    user = case.get("apart") == "user"
    out["gets"] = [{"of": g[0], "form": g[1], "input": written(model, inputs(model, optimizer)[g[2]]) if g[0] == "input" else None,
                    "change": g[2] if g[0] != "input" and len(g) > 2 else None, **attempt(lambda: get(case, *g))} for g in GETS if not user or g[0] == "raw"]
    out["to_loads"] = [{**j, "from": [g for g in GETS if not user or g[0] == "raw"].index(GETS[j["from"]]), "input": written(model, inputs(model, optimizer)[j["input"]]) if "input" in j else None,
                        **attempt(lambda: to_load(case, j))} for j in TO_LOADS if not user or not j["named"]]
    out["loads"] = [{**j, **loaded(case, j)} for j in LOADS if not user or not j["named"]]
    return out


def write(file, cases, record, port):
    """Runs every case on ports from `port` + 1 on, and writes what the ranks recorded; modules where they differ from rank 0's."""
    out = {}
    for name, case in cases.items():
        port += 1
        ranks = run(port, record, case)
        modules, units = ranks[0]["modules"], ranks[0]["units"]
        for r in ranks:
            if r["modules"] == modules:
                del r["modules"]
            del r["units"]
        out[name] = {"case": case, "modules": modules, "units": units, "ranks": ranks}
        for what in ("gets", "to_loads", "loads"):
            for r in ranks[0][what]:
                print(name, what, {k: v for k, v in r.items() if k not in ("out", "optimizers", "input", "given")}, file=sys.stderr)
    text = ",\n".join(f'"{n}":' + json.dumps(c, separators=(",", ":")) for n, c in out.items())
    with open(os.path.join(HERE, file), "w") as f:
        f.write('{"torch":"%s","cases":{\n' % torch.__version__ + re.sub(r"(?<=\d)\.0(?=[,\]}])", "", text) + "\n}}\n")


if __name__ == "__main__":
    write("optimizer_raw.json", CASES, record, 31900)
