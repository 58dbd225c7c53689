"""Whole modules, compiled ones and TensorDicts in torch.save files: their names and values are those of PyTorch's state_dict(), and a conversion
says what they were. tests/golden/tensordict has what tensordict writes (make_tensordict.py)."""
import json
import os

import torch
from safetensors.torch import load_file

from harness import ROOT

SAYS = "written as state dicts instead of the objects that they were: "
COMPILED = "torch.nn.modules.container.Sequential in torch._dynamo.eval_frame.OptimizedModule"


def module():
    torch.manual_seed(5)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Sequential(torch.nn.Linear(4, 2, bias=False)))
    net.register_buffer("scratch", torch.ones(3), persistent=False)
    return net


def same(got, want):
    assert list(got) == list(want), (list(got), list(want))
    assert all(torch.equal(got[k], want[k]) and got[k].dtype == want[k].dtype for k in want), [k for k in want if not torch.equal(got[k], want[k])]


def check(t, path, want, says, prefix=""):
    """The tensors in every container, and the warning."""
    for to in ("safetensors", "torch", "dcp"):
        out = t.at(f"{os.path.basename(path)}.{to}")
        said = t.run("convert", path, out, "--to", to, "--include", prefix + "**").stderr.decode()
        assert (SAYS + says + "\n") in said, said
        again = t.at("again.safetensors")
        t.run("convert", out, again, "--overwrite", *(("--prefix", prefix) if prefix else ()))
        same(load_file(again), dict(sorted(want.items(), key=lambda item: list(load_file(again)).index(item[0]))))
    return out


def test_a_module_becomes_its_state_dict_and_a_conversion_says_so(t):
    net = module()
    for zip_ in (True, False):
        path = t.at(f"net{zip_}.pt")
        torch.save(net, path, _use_new_zipfile_serialization=zip_)
        check(t, path, net.state_dict(), "the outermost one (torch.nn.modules.container.Sequential)")
        same(torch.load(t.at(f"net{zip_}.pt.torch")), net.state_dict())
    torch.save({"ema": net, "heads": [torch.nn.Linear(2, 2), torch.nn.ReLU()], "step": 3}, t.at("inside.pt"))
    check(t, t.at("inside.pt"), net.state_dict(), "ema (torch.nn.modules.container.Sequential)", "ema.")
    said = t.run("convert", t.at("inside.pt"), t.at("all.pt")).stderr.decode()
    assert SAYS + "ema (torch.nn.modules.container.Sequential), heads.0 (torch.nn.modules.linear.Linear)" in said, said
    assert torch.load(t.at("all.pt"))["step"] == 3
    torch.save({"ema": net.state_dict()}, t.at("plain.pt"))
    assert SAYS.encode() not in t.run("convert", t.at("plain.pt"), t.at("plain.safetensors")).stderr


def test_a_compiled_module_is_the_state_dict_of_what_it_wraps(t):
    net = module()
    torch.save(torch.compile(net), t.at("compiled.pt"))
    check(t, t.at("compiled.pt"), net.state_dict(), f"the outermost one ({COMPILED})")
    outer = torch.nn.ModuleDict({"body": torch.compile(net), "head": torch.nn.Linear(2, 1)})
    torch.save(outer, t.at("outer.pt"))
    want = {k.replace("body._orig_mod.", "body."): v for k, v in outer.state_dict().items()}
    check(t, t.at("outer.pt"), want, "the outermost one (torch.nn.modules.container.ModuleDict)")


def test_a_tensordict_is_its_tensors(t):
    golden = os.path.join(ROOT, "tests", "golden", "tensordict")
    want = load_file(os.path.join(golden, "tensors.safetensors"))
    check(t, os.path.join(golden, "alone.pt"), want, "the outermost one (tensordict._td.TensorDict), b (tensordict._td.TensorDict), b.d (tensordict._td.TensorDict)")
    check(t, os.path.join(golden, "inside.pt"), want, "model (tensordict._td.TensorDict), model.b (tensordict._td.TensorDict), model.b.d (tensordict._td.TensorDict)", "model.")
    listed = {e["fqn"]: e for e in json.loads(t.run("inspect", os.path.join(golden, "inside.pt"), "--json").stdout)["entries"]}
    assert sorted(listed) == ["model.a", "model.b.c", "model.b.d.e", "step"] and listed["step"]["value"] == 3, listed


def test_tensors_that_the_legacy_form_cannot_load_are_named(t):
    """float8 has no typed storage, and torch.load cannot read back an untyped one."""
    torch.save({"w": torch.ones(2), "scaled": torch.ones(3).to(torch.float8_e4m3fn)}, t.at("legacy.pt"), _use_new_zipfile_serialization=False)
    try:
        torch.load(t.at("legacy.pt"))
        raise AssertionError("torch.load reads it")
    except AttributeError:
        pass
    found = [f for f in t.json("validate", t.at("legacy.pt"), "--json")["findings"] if f["rule"] == "pickle/unloadable"]
    assert [(f["level"], f["fqn"]) for f in found] == [("warning", "scaled")] and "'scaled' is in an untyped storage" in found[0]["message"], found
