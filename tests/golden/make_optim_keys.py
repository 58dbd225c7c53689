"""Which key of an optimizer's state dict is which parameter, by real PyTorch, for tests/optim: python tests/golden/make_optim_keys.py

optim_keys.json (rows B6, B7): `inputs`: what _get_param_id_to_param_from_optim_input makes of an optimizer's input, by group and name,
or that it refuses. `rekeys`: FullyShardedDataParallel.rekey_optim_state_dict with this input (or "optim": the optimizer, whose groups are
`names`). Parameters are written as names, values as in make_optim.py.
"""
import copy
import json
import os
import sys
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "..", "..", "samples"))
warnings.filterwarnings("ignore")

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, OptimStateKeyType
from torch.distributed.fsdp._optim_utils import _get_param_id_to_param_from_optim_input

from describe_modules import modules_document
from make_optim import encode, Net, train


def wrapped():
    net = Net()
    net.blocks[1] = checkpoint_wrapper(net.blocks[1])
    return net


def written(model, value):
    """Parameters as their last names, which are second ones of tied parameters."""
    names = {p: n for n, p in model.named_parameters(remove_duplicate=False)}
    if isinstance(value, nn.Parameter):
        return {"s": names[value]}
    if isinstance(value, dict):
        return {"D": [[encode(k), written(model, v)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"L" if isinstance(value, list) else "U": [written(model, v) for v in value]}
    return encode(value)


def inputs(model):
    params = list(model.parameters())
    two = [{"params": params[2:4], "lr": 0.5}, {"params": params[:2][::-1]}]
    yield from ([None], [params], [params[::-1]], [tuple(params[:2])], [two], [[{"params": []}, {"params": params}]])
    yield from ([[]], [5], ["emb"], [{"params": params}], [[params[0], two[0]]], [[two[0], params[0]]], [[{"lr": 0.5}]], [[5]], [[None]],
                [[("temp", params[0])]])


def named(model, ids, groups):
    """{id: parameter} by group."""
    raw = {p: n for n, p in model.named_parameters()}
    names, at = [raw[p] for p in ids.values()], 0
    for size in groups:
        yield names[at:at + size]
        at += size


def sizes(given, ids):
    return [len(g["params"]) for g in given] if given and isinstance(given[0], dict) else [len(ids)]


def attempt(f):
    try:
        return {"out": f()}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"[:200]}


def read(model, given):
    ids = _get_param_id_to_param_from_optim_input(model, given)
    return list(named(model, ids, sizes(given, ids)))


def changes(osd, to):
    yield osd
    state = dict(osd["state"])
    first = next(iter(state))
    yield {**osd, "state": {**state, (99 if to == "name" else "stranger.weight"): state[first]}}
    yield {**osd, "state": {**state, ("emb.weight" if to == "name" else 0): state[first]}}
    yield {**osd, "state": {}}
    groups = copy.deepcopy(osd["param_groups"])
    groups[-1]["params"].append(99 if to == "name" else "stranger.weight")
    yield {**osd, "param_groups": groups}


def rekeys(model, optim):
    raw = {p: n for n, p in model.named_parameters()}
    given = [[raw[p] for p in g["params"]] for g in optim.param_groups]
    params = [p for g in optim.param_groups for p in g["params"]]
    kinds = {"name": OptimStateKeyType.PARAM_NAME, "id": OptimStateKeyType.PARAM_ID}
    names = FSDP.rekey_optim_state_dict(optim.state_dict(), kinds["name"], model, optim=optim)
    for to, osd in (("name", optim.state_dict()), ("id", names)):
        for how, more in (("optim", {"optim": optim}), ("input", {"optim_input": params}), ("neither", {}), ("both", {"optim": optim, "optim_input": params[::-1]})):
            for state in (changes(osd, to) if how == "optim" else [osd]):
                yield {"to": to, "how": how, "names": given, "input": written(model, more["optim_input"]) if "optim_input" in more else None, "state": encode(state),
                       **attempt(lambda: encode(FSDP.rekey_optim_state_dict(copy.deepcopy(state), kinds[to], model, **more)))}
        yield {"to": to, "how": "optim", "names": given, "input": None, "state": encode(names if to == "name" else optim.state_dict()),
               **attempt(lambda: encode(FSDP.rekey_optim_state_dict(copy.deepcopy(names if to == "name" else optim.state_dict()), kinds[to], model, optim=optim)))}


def case(make, optimizer):
    torch.manual_seed(0)
    model = make()
    optim = optimizer(model)
    train(model, optim)
    return {"modules": modules_document(model), "inputs": [{"input": written(model, i), **attempt(lambda: read(model, i))} for (i,) in inputs(model)],
            "rekeys": list(rekeys(model, optim))}


def groups_of(model):
    params = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW([{"params": params[3:], "lr": 0.5}, {"params": params[:3][::-1]}], lr=0.01)


CASES = {"all": (Net, lambda n: torch.optim.SGD(n.parameters(), lr=0.01, momentum=0.9)), "groups": (Net, groups_of), "wrapped": (wrapped, groups_of)}

if __name__ == "__main__":
    json.dump({"torch": torch.__version__, "cases": {name: case(*how) for name, how in CASES.items()}}, open(os.path.join(HERE, "optim_keys.json"), "w"), separators=(",", ":"))
