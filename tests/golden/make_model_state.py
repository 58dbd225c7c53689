"""State dicts of live models as real PyTorch gives and takes them, for tests/statedict: python tests/golden/make_model_state.py

model_state.json: torch/distributed/checkpoint/state_dict.py on gloo, 2 ranks (rows A1, A6, A7). A case is a model: its tree
(tessera.modules/1 by samples/describe_modules.py) and by rank its tensors by raw name, what get_model_state_dict makes of it
under several options, and what set_model_state_dict does: the tensors and extra states afterwards with the keys that did not
match, or the error. Values are written as in make_state_dict.py.
"""
import copy
import json
import os
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
ROOT = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(ROOT, "..", "..", "samples"))
sys.path.insert(0, ROOT)

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import (
    _EXTRA_STATE, _iterate_valid_model_state, get_model_state_dict, set_model_state_dict, StateDictOptions)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from describe_modules import modules_document
from make_state_dict import encode

WORLD = 2


class Extra(nn.Linear):
    """A layer with state of its own."""

    def __init__(self):
        super().__init__(2, 3)
        self.seen = {"steps": 3}

    def get_extra_state(self):
        return self.seen

    def set_extra_state(self, state):
        self.seen = state


class Net(nn.Module):
    """Tied weights, buffers of both kinds, extra state, frozen parameters (one of them tied), uneven sizes."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.emb = nn.Embedding(5, 2)
        self.body = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 2, bias=False)))
        self.extra = Extra()
        self.head = nn.Linear(2, 5, bias=False)
        self.head.weight = self.emb.weight
        self.fixed = nn.Linear(2, 2, bias=False)
        self.fixed.weight.requires_grad = False
        self.also = nn.Linear(2, 2, bias=False)
        self.also.weight = self.fixed.weight
        self.register_buffer("pos", torch.arange(4))
        self.register_buffer("mask", torch.zeros(2), persistent=False)
        with torch.no_grad():
            for i, p in enumerate(self.parameters()):
                p.copy_(torch.arange(p.numel()).reshape(p.shape) + 10 * i)


def compiled_inside():
    net = Net()
    net.body[1] = torch.compile(net.body[1])
    return net


def checkpointed():
    net = Net()
    net.body = checkpoint_wrapper(net.body)
    return net


def sharded():
    net = Net()
    fully_shard(net, mesh=init_device_mesh("cpu", (WORLD,), mesh_dim_names=("dp",)))
    return net


def experts():
    """Each rank has a layer of its own, under a name of its own, which is not distributed."""
    net, expert = Net(), nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        expert.weight.copy_(torch.arange(4).reshape(2, 2) + 100 * (dist.get_rank() + 1))
    net.add_module(f"expert{dist.get_rank()}", expert)
    fully_shard(net, mesh=init_device_mesh("cpu", (WORLD,), mesh_dim_names=("dp",)), ignored_params={expert.weight})
    return net


MODELS = {"plain": Net, "ddp": lambda: DDP(Net()), "compiled": lambda: torch.compile(Net()), "compiled inside": compiled_inside,
          "checkpointed": checkpointed, "ddp of compiled": lambda: DDP(torch.compile(Net())), "sharded": sharded,
          "experts": experts}


def inner(model):
    while hasattr(model, "module") or hasattr(model, "_orig_mod"):
        model = model.module if hasattr(model, "module") else model._orig_mod
    return model


def tensors(model):
    return {n: encode(t) for n, t in _iterate_valid_model_state(model) if not isinstance(t, _EXTRA_STATE)}


def gets(model):
    named = list(model.named_modules())
    some = [i for i, (n, _) in enumerate(named) if n.endswith("body") or n.endswith("fixed")]
    for options, submodules in (
        ({}, []), ({"full_state_dict": True}, []), ({"full_state_dict": True, "cpu_offload": True}, []), ({"cpu_offload": True}, []),
        ({"ignore_frozen_params": True}, []), ({}, some), ({"keep_submodule_prefixes": False}, some[:1]), ({}, [0]),
        ({"broadcast_from_rank0": True}, []),
    ):
        record = {"options": options, "submodules": [named[i][0] for i in submodules]}
        try:
            record["out"] = encode(get_model_state_dict(model, submodules={named[i][1] for i in submodules} or None,
                                                        options=StateDictOptions(**options)))
        except Exception as e:
            record["error"] = type(e).__name__
        yield record


def changed(state):
    out = copy.deepcopy(state)
    for v in out.values():
        if torch.is_tensor(v):
            v.add_(100)
        else:
            v["steps"] = 9
    return out


def without(state):
    state.pop("body.0.bias")
    return state


def stranger(state):
    state["stranger.weight"] = torch.ones(2)
    state["body.0.stranger"] = torch.ones(1)
    return state


def misshapen(state):
    state["pos"] = torch.arange(6)
    return state


def narrowed(state):
    """Tensors of several kinds as bfloat16, which float32 holds exactly."""
    for name in ("scale", "body.0.weight", "body.1.0.weight", "fixed.weight"):
        state[name] = state[name].bfloat16()
    return state


def unfrozen(state):
    """As get_model_state_dict leaves it with ignore_frozen_params: the second name of the frozen parameter is still there."""
    state.pop("fixed.weight")
    return state


def sets(build, wrapped):
    full = {"full_state_dict": True}
    spread = {"full_state_dict": True, "broadcast_from_rank0": True}
    lax = {"strict": False}
    same = lambda state: state
    whole_of = lambda options: full if options.get("full_state_dict") else {}
    for name, options, change in (
        ("as it is", {}, same), ("as it is", full, same), ("as it is", spread, same), ("missing", {}, without),
        ("missing", lax, without), ("missing", full, without), ("missing", spread, without), ("missing", {**spread, **lax}, without),
        ("unexpected", {}, stranger), ("unexpected", lax, stranger), ("unexpected", {**full, **lax}, stranger),
        ("unexpected", {**spread, **lax}, stranger), ("misshapen", {}, misshapen),
        ("nothing", {}, lambda s: {}), ("nothing", lax, lambda s: {}), ("contradiction", {"broadcast_from_rank0": True}, same),
        ("narrowed", {}, narrowed), ("narrowed", full, narrowed), ("narrowed", spread, narrowed),
        ("unfrozen", {**full, "ignore_frozen_params": True}, unfrozen), ("unfrozen", {"ignore_frozen_params": True}, unfrozen),
    ):
        if name == "missing" and options == spread and wrapped:
            continue  # rank 0 fails before the others, which wait for ever
        if name == "unfrozen" and whole_of(options) and wrapped:
            continue  # refused, because PyTorch looks for the names of wrapped models before it fills in local values
        model = build()
        whole = whole_of(options)
        state = change(changed(get_model_state_dict(model, options=StateDictOptions(**whole))))
        if options.get("broadcast_from_rank0") and dist.get_rank():
            state = {}
        record = {"of": name, "options": options, "state": encode(state)}
        try:
            keys = set_model_state_dict(model, state, options=StateDictOptions(**options))
            record |= {"tensors": tensors(model), "extra": encode(inner(model).extra.seen), "missing": list(keys.missing_keys),
                       "unexpected": list(keys.unexpected_keys)}
        except Exception as e:
            record["error"] = type(e).__name__
        dist.barrier()
        yield record


def cases():
    for name, build in MODELS.items():
        model = build()
        case = {"of": name, "modules": modules_document(model), "tensors": tensors(model), "gets": list(gets(model))}
        yield {**case, "sets": [] if name == "experts" else list(sets(build, "ddp" in name or "compiled" in name))}


def run(rank, directory, cases):
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=WORLD)
    with open(f"{directory}/{rank}.json", "w") as f:
        json.dump(list(cases()), f)
    dist.barrier()
    dist.destroy_process_group()


def write(file, cases):
    """What all ranks have in common of each of their cases, and the rest by rank."""
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(run, (directory, cases), nprocs=WORLD)
        by_rank = [json.load(open(f"{directory}/{r}.json")) for r in range(WORLD)]
    lines = []
    for ranks in zip(*by_rank):
        head = {"of": ranks[0]["of"], "modules": ranks[0]["modules"]}
        head["ranks"] = [{k: v for k, v in r.items() if head.get(k) != v} for r in ranks]
        lines.append(json.dumps(head, separators=(",", ":")))
    with open(os.path.join(ROOT, file), "w") as f:
        f.write('{"torch":"%s","cases":[\n' % torch.__version__ + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    write("model_state.json", cases)
