"""`validate --against MODULES.json`: the state dict of a live model fits the module tree of that model, and nothing less does."""
import json
import os
import sys

import torch
from torch import nn

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


def findings(t, model, state):
    torch.save(state, t.at("state.pt"))
    with open(t.at("modules.json"), "w") as f:
        json.dump(modules_document(model), f)
    got = t.json("validate", t.at("state.pt"), "--against", t.at("modules.json"), "--rule", "layout/*=warning", "--json")
    return sorted((f["rule"], f["fqn"]) for f in got["findings"] if f["level"] == "warning")


def check(t, model, state, *left_out):
    assert findings(t, model, state) == [], (type(model), findings(t, model, state))
    for name in left_out:
        less = {k: v for k, v in state.items() if k != name}
        assert findings(t, model, less) == [("layout/missing-entry", name)], (name, findings(t, model, less))


def test_extra_states_are_values_of_any_kind(t):
    for state in ({"steps": torch.arange(3), "n": [1, {"a": 2}]}, torch.arange(4), 7, [torch.ones(1), 2], (1, 2), "text", None):
        model = nn.Sequential(Counting(state), nn.Sequential(Counting({"b": 1})))
        check(t, model, model.state_dict(), "0._extra_state", "1.0._extra_state")
    more = {**model.state_dict(), "0._extra_states": 1, "0.x._extra_state.y": 2}
    assert findings(t, model, more) == [("layout/unexpected-entry", n) for n in ("0._extra_states", "0.x._extra_state.y")]
