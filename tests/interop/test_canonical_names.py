"""Names in one command: --canonical of checkpoints of wrapped models, with their optimizers, is what PyTorch's own get_state_dict
names them; in every command that has the option."""
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.nn.parallel import DistributedDataParallel

from harness import ROOT

sys.path.insert(0, os.path.join(ROOT, "samples"))
from describe_modules import modules_document


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attn = torch.compile(nn.Linear(width, width), backend="eager")
        self.mlp = nn.Linear(width, width)
        self.module = nn.Linear(width, 3)  # an attribute that is called like a wrapper's

    def forward(self, x):
        return self.module(self.mlp(self.attn(x)))


class Net(nn.Module):
    """With `lone`, a submodule whose only child is called `module`, which text alone takes for DDP's."""

    def __init__(self, width=4, lone=False):
        super().__init__()
        self.layers = nn.ModuleList(checkpoint_wrapper(Block(width)) for _ in range(2))
        self.norm = nn.BatchNorm1d(3)
        if lone:
            self.lone = nn.Module()
            self.lone.module = nn.Linear(3, 3)

    def forward(self, x):
        y = self.norm(sum(layer(x) for layer in self.layers))
        return self.lone.module(y) if hasattr(self, "lone") else y


def trained(wrapped, lone=False, frozen=()):
    """A model, possibly in DDP, after two steps of an optimizer with two groups; its raw keys; and the optimizer by raw names."""
    torch.manual_seed(5)
    net = Net(lone=lone)
    for name, p in net.named_parameters():
        p.requires_grad = not any(word in name for word in frozen)
    model = DistributedDataParallel(net) if wrapped else net
    live = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW([{"params": live[::2], "lr": 0.5}, {"params": live[1::2], "lr": 0.25}])
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().sum().backward()
        optimizer.step()
    names = {id(p): n for n, p in model.named_parameters()}
    order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
    raw = optimizer.state_dict()
    raw = {"state": {order[i]: s for i, s in raw["state"].items()},
           "param_groups": [{**g, "params": [order[i] for i in g["params"]]} for g in raw["param_groups"]]}
    return model, optimizer, {"model": dict(model.state_dict()), "optimizer": raw}


def same(a, b, at=""):
    assert type(a) is type(b) or isinstance(a, (dict, list)), f"{at}: {type(a)}, {type(b)}"
    if isinstance(a, dict):
        assert set(a) == set(b), f"{at}: {set(a) ^ set(b)}"
        for key in a:
            same(a[key], b[key], f"{at}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), at
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{at}.{i}")
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), at
    else:
        assert a == b, f"{at}: {a}, {b}"


def expected(model, optimizer):
    """What PyTorch calls everything. It orders the groups' options differently, which does not count."""
    return {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}


def loaded(path):
    if not os.path.isdir(path):
        return torch.load(path, weights_only=True)
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    dcp_to_torch_save(path, path + ".pt")
    return torch.load(path + ".pt", weights_only=True)


class alone:
    def __enter__(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def __exit__(self, *_):
        dist.destroy_process_group()


def check(t, raw, want, *options):
    """Every command that has --canonical, on a torch file and on a DCP."""
    torch.save(raw, t.at("raw.pt"))
    dcp.save(raw, checkpoint_id=t.at("raw"), no_dist=True)
    torch.save(want, t.at("want.pt"))
    dcp.save(want, checkpoint_id=t.at("want"), no_dist=True)
    for source in ("raw.pt", "raw"):
        goal = t.at(source.replace("raw", "want"))
        t.run("convert", t.at(source), t.at("out.pt"), "--canonical", *options, "--overwrite")
        same(want, loaded(t.at("out.pt")), source)
        t.run("convert", t.at(source), t.at("out"), "--to", "dcp", "--canonical", *options, "--overwrite")
        same(want, loaded(t.at("out")), source)
        t.run("reshard", t.at(source), t.at("cut"), "--to", "dcp", "--mesh", "dp=2", "--placements", "shard(0)", "--canonical", *options, "--overwrite")
        same(want, loaded(t.at("cut")), source)
        t.run("diff", t.at(source), goal, "--canonical", *options, "--values")
        t.run("diff", goal, t.at(source), "--canonical", *options, "--values")
        assert t.run("manifest", t.at(source), "--canonical", *options).stdout == t.run("manifest", goal).stdout, source
        t.run("convert", t.at(source), t.at("model.safetensors"), "--canonical", *options, "--prefix", "model.", "--overwrite")
        assert {e["fqn"] for e in t.json("inspect", t.at("model.safetensors"), "--json")["entries"]} == set(want["model"])


def test_canonical_names_are_those_of_get_state_dict(t):
    with alone():
        for wrapped in (False, True):
            model, optimizer, raw = trained(wrapped)
            check(t, raw, expected(model, optimizer))


def test_an_optimizer_without_all_parameters_follows_the_model(t):
    """Its keys alone show `module` as an only child of `layers.0`, as a wrapper's is."""
    with alone():
        model, optimizer, raw = trained(True, frozen=("attn", "mlp", "norm"))
        assert {n.split(".")[-2] for n in raw["optimizer"]["state"]} == {"module"}
        check(t, raw, expected(model, optimizer))


def test_a_module_tree_decides_what_text_cannot(t):
    with alone():
        model, optimizer, raw = trained(True, lone=True)
        want = expected(model, optimizer)
        torch.save(raw, t.at("raw.pt"))
        t.run("convert", t.at("raw.pt"), t.at("out.pt"), "--canonical")
        assert "lone.weight" in loaded(t.at("out.pt"))["model"]
        for tree in (model, model.module):  # as it is saved, and without its outer wrapper
            with open(t.at("modules.json"), "w") as f:
                json.dump(modules_document(tree), f)
            check(t, raw, want, "--modules", t.at("modules.json"))


def test_flat_optimizer_state_has_canonical_names(t):
    from torch.distributed.checkpoint.state_dict import StateDictOptions
    with alone():
        model, optimizer, raw = trained(True)
        want = {"model": get_model_state_dict(model),
                "optimizer": get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))}
        flat = {f"state.{n}.{k}": v for n, s in raw["optimizer"]["state"].items() for k, v in s.items()}
        for group in raw["optimizer"]["param_groups"]:
            flat.update({f"param_groups.{n}.{k}": v for n in group["params"] for k, v in group.items() if k != "params"})
        raw["optimizer"] = flat
        check(t, raw, want)


def test_two_names_that_become_one_are_refused(t):
    w = torch.arange(3.0)
    for names in (("enc._orig_mod.w", "enc.w"), ("a._fsdp_wrapped_module.w", "a.w"), ("l._checkpoint_wrapped_module.w", "l._fsdp_wrapped_module.w")):
        torch.save({n: w + i for i, n in enumerate(names)}, t.at("two.pt"))
        for command in (("convert", t.at("two.pt"), t.at("out.safetensors")), ("manifest", t.at("two.pt"))):
            said = t.run(*command, "--canonical", status=2).stderr.decode()
            assert all(f"'{n}'" in said for n in names), said
        assert not os.path.exists(t.at("out.safetensors"))
    torch.save({"enc.module.w": w, "enc.w": w + 1}, t.at("own.pt"))  # not a collision: an attribute of the model
    t.run("convert", t.at("own.pt"), t.at("out.safetensors"), "--canonical")
    assert {e["fqn"] for e in t.json("inspect", t.at("out.safetensors"), "--json")["entries"]} == {"enc.module.w", "enc.w"}


def test_a_prefix_selects_and_is_stripped_before_everything_else(t):
    model, optimizer, raw = trained(False)
    torch.save({**raw, "model.x": 3}, t.at("raw.pt"))
    clean = get_model_state_dict(model)
    t.run("convert", t.at("raw.pt"), t.at("out.pt"), "--canonical", "--prefix", "model.layers.", "--rename", "0.=first.", "--exclude", "1.**")
    want = {n.replace("layers.0.", "first."): v for n, v in clean.items() if n.startswith("layers.0.")}
    same(want, loaded(t.at("out.pt")))
    said = t.run("convert", t.at("raw.pt"), t.at("none.pt"), "--prefix", "modle.", status=2).stderr.decode()
    assert "'modle.'" in said and not os.path.exists(t.at("none.pt")), said
    t.run("convert", t.at("raw.pt"), t.at("state.pt"), "--prefix", "optimizer.")
    same(raw["optimizer"], loaded(t.at("state.pt")))
