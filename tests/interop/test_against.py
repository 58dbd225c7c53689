"""`validate --against MODULES.json` and `fqn MODULES.json --checkpoint`: the state dict of a live model fits the module tree of that model, and nothing less does."""
import contextlib
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel

from harness import ROOT

sys.path.insert(0, os.path.join(ROOT, "samples"))
from describe_modules import modules_document


class Counting(nn.Module):
    def __init__(self, state):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(2.0))
        self.state = state

    def get_extra_state(self):
        return self.state

    def set_extra_state(self, state):
        self.state = state


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(5, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.again = self.layers[0]
        self.out = nn.Linear(4, 5, bias=False)
        self.out.weight = self.emb.weight
        self.first = self.second = nn.Parameter(torch.ones(3))


def findings(t, model, state):
    torch.save(state, t.at("state.pt"))
    with open(t.at("modules.json"), "w") as f:
        json.dump(modules_document(model), f)
    got = t.json("validate", t.at("state.pt"), "--against", t.at("modules.json"), "--rule", "layout/*=warning", "--json")
    return sorted((f["rule"], f["fqn"]) for f in got["findings"] if f["level"] == "warning")


def suggested(t):
    doc = t.json("fqn", t.at("modules.json"), "--checkpoint", t.at("state.pt"), "--json")["against"]
    return doc["missing"], doc["unexpected"], doc["renames"]


def check(t, model, state, *left_out):
    assert findings(t, model, state) == [], (type(model), findings(t, model, state))
    assert suggested(t) == ([], [], []), (type(model), suggested(t))
    for name in left_out:
        less = {k: v for k, v in state.items() if k != name}
        assert findings(t, model, less) == [("layout/missing-entry", name)], (name, findings(t, model, less))
        assert suggested(t) == ([name], [], []), (name, suggested(t))


def test_shared_modules_and_parameters_have_every_name(t):
    model = Tied()
    names = ["again.weight", "layers.0.weight", "out.weight", "emb.weight", "first", "second"]
    assert not set(names) - set(model.state_dict())
    for name in names:
        less = {k: v for k, v in model.state_dict().items() if k != name}
        assert model.load_state_dict(less, strict=False).missing_keys == [name]
    check(t, model, model.state_dict(), *names)


def test_extra_states_are_values_of_any_kind(t):
    for state in ({"steps": torch.arange(3), "n": [1, {"a": 2}]}, torch.arange(4), 7, [torch.ones(1), 2], (1, 2), "text", None):
        model = nn.Sequential(Counting(state), nn.Sequential(Counting({"b": 1})))
        check(t, model, model.state_dict(), "0._extra_state", "1.0._extra_state")
    more = {**model.state_dict(), "0._extra_states": 1, "0.x._extra_state.y": 2}
    assert findings(t, model, more) == [("layout/unexpected-entry", n) for n in ("0._extra_states", "0.x._extra_state.y")]


@contextlib.contextmanager
def process_group(t):
    dist.init_process_group("gloo", init_method="file://" + t.at("store"), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_flat_parameters_have_the_names_of_their_state_dict(t):
    wrap = lambda module, orig: FullyShardedDataParallel(module, use_orig_params=orig, device_id=torch.device("cpu"))
    with process_group(t):
        for orig in (False, True):
            tied = Tied()
            tied.layers[1] = wrap(tied.layers[1], orig)
            inner = wrap(checkpoint_wrapper(nn.Linear(3, 3)), orig)
            for model, names in ((wrap(tied, orig), ["out.weight", "again.bias", "layers.1.bias", "emb.weight"]),
                                 (wrap(nn.Sequential(checkpoint_wrapper(nn.Linear(2, 3)), inner), orig), ["0.weight", "1.bias"])):
                check(t, model, get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)), *names)
