"""`tessera fqn` against PyTorch's _get_fqns over random trees in random wrapping."""
import contextlib
import functools
import json
import os
import random
import sys

from harness import ROOT

sys.path.insert(0, os.path.join(ROOT, "samples"))
ROUNDS = 60 if os.environ.get("TSR_TEST_FULL") else 12
NAMES = ["module", "_orig_mod", "fc", "layers", "0", "1", "weight_holder", "_fsdp", "emb"]


def random_tree(r, depth=0):
    from torch import nn
    import torch

    class Extra(nn.Module):
        def get_extra_state(self):
            return 1

        def set_extra_state(self, state):
            pass

    class Modified(nn.Module):
        def _fqn_modifiers(self):
            inner = self._modules["hidden"]
            return {n: "hidden" for n in [*inner._parameters, *inner._modules]}

    kind = r.random()
    node = Extra() if kind < 0.15 else Modified() if kind < 0.25 else nn.Module()
    for i in range(r.randrange(1, 3)):
        node.register_parameter(f"p{i}", nn.Parameter(torch.zeros(r.randrange(1, 4)), requires_grad=r.random() > 0.2))
    if r.random() < 0.4:
        node.register_buffer("buf", torch.zeros(2), persistent=r.random() < 0.5)
    for name in r.sample(NAMES, r.randrange(0, 3 if depth < 3 else 1)):
        node.add_module(name, random_tree(r, depth + 1))
    if isinstance(node, Modified):
        node.hidden = random_tree(r, depth + 1)
    for child in list(node.children()):
        if r.random() < 0.15 and not hasattr(node, "again"):
            node.add_module("again", child)  # a shared module
        elif r.random() < 0.1:
            node.register_parameter("tied", next(child.parameters()))
    return node


def wrap(r, node, sharded=True):
    import torch
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.tensor import DTensor
    from torch.nn.parallel import DistributedDataParallel as DDP
    seen = {}
    for name, child in list(node._modules.items()):
        if child not in seen:
            seen[child] = wrap(r, child, sharded)
        node._modules[name] = seen[child]
    for _ in range(2):
        kind = r.random()
        if kind < 0.12 and not hasattr(node, "get_compiler_config"):
            node = torch.compile(node)
        elif kind < 0.24:
            node = checkpoint_wrapper(node)
        elif kind < 0.3 and any(p.requires_grad for p in node.parameters()) and not any(isinstance(p, DTensor) for p in node.parameters()):
            node = DDP(node)
        elif kind < 0.42 and sharded and not any(isinstance(m, DDP) for m in node.modules()):
            node = shard(r, node)
    return node


def shard(r, node):
    """FSDP1 in both parameter modes, or FSDP2; modules that these refuse stay as they are."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
    params = list(node.parameters())
    orig = len({p.requires_grad for p in params}) > 1 or r.random() < 0.5
    from torch.distributed.tensor import DTensor
    if not params or any(p.dim() == 0 or isinstance(p, DTensor) for p in params):
        return node
    if r.random() < 0.4 and not any(isinstance(m, FSDP) for m in node.modules()):
        return fully_shard(node, mesh=init_device_mesh("cpu", (1,)))
    return FSDP(node, use_orig_params=orig, device_id=torch.device("cpu"))


def odd_names(r, names):
    for n in names:
        parts = n.split(".")
        at = r.randrange(len(parts) + 1)
        yield ".".join(parts[:at] + [r.choice(["module", "_orig_mod", "_checkpoint_wrapped_module", "_extra_state", "", "p0", "nosuch"])] + parts[at:])
        yield ".".join(p for i, p in enumerate(parts) if i != at)


@contextlib.contextmanager
def one_rank(port):
    """DistributedDataParallel wants a process group."""
    import torch.distributed as dist
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ["MASTER_PORT"] = str(port + os.getpid() % 900)
    dist.init_process_group("gloo", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def ask(get_fqns, model, name):
    try:
        return get_fqns(model, name)
    except (AttributeError, AssertionError, RuntimeError):
        return None


def test_random_trees(t):
    from torch.distributed.checkpoint.state_dict import _get_fqns, _iterate_valid_model_state
    from describe_modules import modules_document
    with one_rank(29800):
        for seed in range(ROUNDS):
            r = random.Random(seed)
            model = wrap(r, random_tree(r))
            path, modifiers = t.at("modules.json"), r.choice(["_fqn_modifiers", "_fqn_modifiers", "_no_modifiers"])
            json.dump(modules_document(model, modifiers), open(path, "w"))
            items = [n for n, _ in _iterate_valid_model_state(model, modifiers)]
            wants = {n: ask(functools.partial(_get_fqns, dsd_fqn_modifiers=modifiers), model, n) for n in [*items, *odd_names(r, items[:6])]}
            if all(wants[n] is not None for n in items):
                listed = t.json("fqn", path, "--json")["names"]
                assert [n["raw"] for n in listed] == items, f"seed {seed}: {[n['raw'] for n in listed]} but PyTorch has {items}"
                for n in listed:
                    assert set(n["fqns"]) == wants[n["raw"]], f"seed {seed}: {n}"
            else:
                t.run("fqn", path, "--json", status=2)
            for name, want in list(wants.items())[-12:]:
                if want is None:
                    t.run("fqn", path, "--json", "--", name, status=2)
                else:
                    got = t.json("fqn", path, "--json", "--", name)["names"][0]["fqns"]
                    assert set(got) == want, f"seed {seed}: {name!r} gave {got}, PyTorch {want}"


def test_renames(t):
    """What `fqn` suggests makes `convert` give a wrapped model's checkpoint the names that PyTorch gives."""
    import torch
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from describe_modules import modules_document
    with one_rank(28800):
        for seed in range(ROUNDS):
            r = random.Random(seed)
            plain = torch.nn.ModuleDict({n: torch.nn.Sequential(*[torch.nn.Linear(2 + i, 3 + i) for i in range(r.randrange(1, 5))])
                                         for n in r.sample(["encoder", "decoder", "head", "tok"], r.randrange(1, 4))})
            model = plain
            for name in list(plain):
                model[name] = torch.nn.Sequential(*[wrap(r, m, False) for m in plain[name]]) if r.random() < 0.7 else plain[name]
            model = wrap(r, model, False)  # state_dict of FSDP over compiled modules fails in PyTorch
            wants = get_model_state_dict(model)
            prefix = r.choice(["", "model.", "state.net."])
            torch.save({**{prefix + k: v for k, v in model.state_dict().items()}, "epoch": 3}, t.at("saved.pt"))
            torch.save(wants, t.at("like.pt"))
            json.dump(modules_document(model), open(t.at("m.json"), "w"))
            doc = t.json("fqn", t.at("m.json"), "--checkpoint", t.at("saved.pt"), "--json")
            assert doc["against"]["unexpected"] == ["epoch"] and doc["against"]["missing"] == [], f"seed {seed}: {doc['against']}"
            renames = [a for x in doc["against"]["renames"] for a in ("--rename", x["rename"])]
            t.run("convert", t.at("saved.pt"), t.at("out.pt"), "--to", "torch", "--overwrite", *renames)
            got = torch.load(t.at("out.pt"), weights_only=True)
            assert set(got) == {*wants, "epoch"}, f"seed {seed}: {renames} gives {sorted(got)}, PyTorch has {sorted(wants)}"
            assert all(torch.equal(got[k], v) for k, v in wants.items()), seed
    t.run("fqn", "--checkpoint", t.at("saved.pt"), "--against", t.at("like.pt"))
