"""Names as real PyTorch gives them, for tests/fqn: python tests/golden/make_fqns.py > tests/golden/fqns.json

Each case: a module tree (tessera.modules/1 by samples/describe_modules.py), the order of _iterate_valid_model_state,
_get_fqns of every raw and canonical name and of names that look odd, in both settings of the prefix options, and the
fqn_param_mapping / shared_params_mapping of _verify_options.
"""
import json
import os
import sys
import warnings

os.environ.setdefault("MASTER_ADDR", "localhost")
os.environ.setdefault("MASTER_PORT", "29611")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "samples"))
warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import _EXTRA_STATE, _get_fqns, _iterate_valid_model_state, _verify_options
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from describe_modules import modules_document


class Extra(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))

    def get_extra_state(self):
        return {"k": 1}

    def set_extra_state(self, state):
        pass


class Model(nn.Module):
    """Everything at once: tied weights, buffers of both kinds, extra state, a frozen parameter, look-alike names."""

    def __init__(self, tie=True, frozen=True):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.emb = nn.Embedding(7, 4)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4, bias=False)) for _ in range(2)])
        self.bn = nn.BatchNorm1d(4)
        self.extra = Extra()
        self.head = nn.Linear(4, 7, bias=False)
        if tie:
            self.head.weight = self.emb.weight
        self.module = nn.Linear(2, 2)
        self._orig_mod = nn.Linear(2, 1)
        self.register_buffer("pos", torch.arange(5))
        self.register_buffer("mask", torch.zeros(2), persistent=False)
        if frozen:
            self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)


class Modified(nn.Module):
    """Keys hide the child `inner`, as a state dict hook would."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        self.other = nn.Linear(1, 1)

    def _fqn_modifiers(self):
        return {"0": "inner", "1": "inner"}


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = Extra()
        self.b = self.a
        self.c = nn.Sequential(self.a, nn.Linear(2, 2))
        self.c[1].extra_name = self.c[1].weight
        self.w = self.c[1].weight


class Twice(nn.Module):
    """Tensors that one module has under several names, of several kinds."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.w2 = self.w
        hidden, seen = torch.zeros(3), torch.zeros(4)
        self.register_buffer("hidden", hidden, persistent=False)
        self.register_buffer("hidden2", hidden)
        self.register_buffer("seen", seen)
        self.register_buffer("seen2", seen, persistent=False)
        self.register_buffer("seen3", seen)
        self.register_buffer("also_w", self.w)
        self.inner = nn.Module()
        self.inner.register_buffer("hidden3", hidden)
        self.inner.register_buffer("w3", self.w, persistent=False)
        self.inner.v = nn.Parameter(torch.ones(1))
        self.inner.register_buffer("v2", self.inner.v)


def fsdp(model, orig, inner=()):
    for parent, name in inner:
        setattr(parent, name, FSDP(getattr(parent, name), use_orig_params=orig, device_id=torch.device("cpu")))
    return FSDP(model, use_orig_params=orig, device_id=torch.device("cpu"))


def fsdp_nested(orig, tie=True, checkpoint=False):
    m = Model(tie, frozen=orig)
    if checkpoint:
        m.blocks[0][0] = checkpoint_wrapper(m.blocks[0][0])
        m.module = checkpoint_wrapper(m.module)
    return fsdp(m, orig, [(m.blocks, "0"), (m.blocks, "1")])


def checkpoint_of_fsdp():
    m = Model(frozen=False)
    m.blocks[1] = checkpoint_wrapper(FSDP(m.blocks[1], use_orig_params=False, device_id=torch.device("cpu")))
    return FSDP(m, use_orig_params=False, device_id=torch.device("cpu"))


def compile_inside():
    m = Model()
    m.blocks[0] = torch.compile(m.blocks[0])
    m.module = torch.compile(checkpoint_wrapper(m.module))
    return m


def fsdp_of_compiled():
    m = Model()
    m.blocks[0] = FSDP(torch.compile(m.blocks[0]), use_orig_params=True, device_id=torch.device("cpu"))
    m.blocks[1] = torch.compile(FSDP(m.blocks[1], use_orig_params=True, device_id=torch.device("cpu")))
    return FSDP(m, use_orig_params=True, device_id=torch.device("cpu"))


def fsdp2():
    m = Model(tie=False)
    for b in m.blocks:
        fully_shard(b)
    return fully_shard(m)


CASES = {
    "plain": Model,
    "linear": lambda: nn.Linear(2, 2),
    "modified": Modified,
    "modified_checkpoint": lambda: checkpoint_wrapper(Modified()),
    "shared": Shared,
    "twice": Twice,
    "twice_compiled": lambda: torch.compile(Twice()),
    "shared_ddp": lambda: DDP(Shared()),
    "ddp": lambda: DDP(Model()),
    "compiled": lambda: torch.compile(Model()),
    "compiled_ddp": lambda: torch.compile(DDP(Model())),
    "ddp_compiled": lambda: DDP(torch.compile(Model())),
    "compile_inside": compile_inside,
    "checkpoint_root": lambda: checkpoint_wrapper(Model()),
    "fsdp_flat": lambda: fsdp_nested(False),
    "fsdp_orig": lambda: fsdp_nested(True),
    "fsdp_flat_checkpoint": lambda: fsdp_nested(False, False, True),
    "fsdp_orig_checkpoint": lambda: fsdp_nested(True, False, True),
    "checkpoint_of_fsdp": checkpoint_of_fsdp,
    "fsdp_of_compiled": fsdp_of_compiled,
    "fsdp2": fsdp2,
}

ODD = ["", ".", "a.", ".w", "nosuch", "nosuch.w", "emb.nosuch", "emb.weight.more", "extra._extra_state", "extra._extra_state.more",
       "emb._extra_state", "module.weight", "_orig_mod.weight", "module.module.weight", "_orig_mod._orig_mod.weight",
       "_fsdp_wrapped_module._flat_param", "_flat_param", "x._flat_param", "blocks.0._flat_param", "_fsdp_wrapped_module.emb.weight",
       "_checkpoint_wrapped_module.emb.weight", "emb._checkpoint_wrapped_module.weight", "emb_checkpoint_wrapped_module.weight",
       "_check_checkpoint_wrapped_module.point_wrapped_module.emb.weight", "_checkpoint_wrapped_module.", "emb..weight",
       "blocks.0.0.weight", "blocks.0.1", "blocks.-1.0.weight", "blocks.2.0.weight", "blocks.0._orig_mod.0.weight", "bn.running_mean",
       "mask.x", "inner.0.weight", "0.weight", "1.bias", "inner.other", "weight", "b.w", "w.x", "head.weight", "module._extra_state"]


def ask(model, name, **options):
    try:
        return sorted(_get_fqns(model, name, **options))
    except Exception as e:
        return {"error": type(e).__name__}


def describe(model):
    doc = modules_document(model)
    items = list(_iterate_valid_model_state(model))
    buffers = {n for n, _ in model.named_buffers(remove_duplicate=False)}
    names = dict.fromkeys([n for n, _ in items] + [n for n, _ in model.named_parameters(remove_duplicate=False)]
                          + [n for n, _ in model.named_buffers()] + ODD)
    info = _verify_options(model, (), False)
    params = {}
    for key, value in info.fqn_param_mapping.items():
        if not isinstance(key, str):
            params[id(key)] = {"fqns": sorted(value), "shared": key in info.shared_params_mapping}
    return {
        "modules": doc,
        "iterate": [[n, "extra" if isinstance(v, _EXTRA_STATE) else "buffer" if n in buffers else "parameter"] for n, v in items],
        "get_fqns": {n: ask(model, n) for n in names},
        "with_prefixes": {n: ask(model, n, skip_ddp_prefix=False, skip_compiler_prefix=False) for n, _ in items},
        "params": list(params.values()),
    }


def main():
    dist.init_process_group("gloo", rank=0, world_size=1)
    torch.manual_seed(0)
    out = {"torch": torch.__version__, "cases": {}}
    for name, build in CASES.items():
        try:
            out["cases"][name] = describe(build())
        except Exception as e:
            print(f"{name}: PyTorch cannot: {type(e).__name__}: {e}", file=sys.stderr)
    dist.destroy_process_group()
    json.dump(out, sys.stdout, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
