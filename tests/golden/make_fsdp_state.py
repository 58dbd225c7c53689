"""Model state dicts of FSDP1 as real PyTorch saves and loads them, for tests/statedict: python tests/golden/make_fsdp_state.py

fsdp_state.json: torch/distributed/fsdp/_state_dict_utils.py on gloo. A case has the module tree, and by rank: the units' own
slices, what else the modules hold (`plain`), and by state type what state_dict() gave, or its error. `loads`: a change of a
saved state, and what load_state_dict() left in slices and plain tensors, or its error. Values as in make_state_dict.py.
"""
import datetime
import faulthandler
import functools
import json
import os
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "samples"))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy, StateDictType
from torch.distributed.fsdp._common_utils import clean_tensor_name
from torch.distributed.fsdp.api import FullStateDictConfig, LocalStateDictConfig, ShardedStateDictConfig
from torch.distributed.tensor import DTensor

from describe_modules import modules_document
from make_state_dict import encode, ramp

TYPES = {"full": (StateDictType.FULL_STATE_DICT, FullStateDictConfig), "local": (StateDictType.LOCAL_STATE_DICT, LocalStateDictConfig),
         "sharded": (StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig)}


class Ignored(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = nn.Parameter(torch.zeros(2, 2))
        self.register_buffer("seen", torch.zeros(2))
        self.step = 5

    def get_extra_state(self):
        return {"step": self.step}

    def set_extra_state(self, state):
        self.step = state["step"]


class Net(nn.Module):
    def __init__(self, tied, ignored):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(3))
        self.emb = nn.Embedding(5, 3)
        self.a = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.b = nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.Linear(3, 2, bias=False)))
        self.head = nn.Linear(3, 5, bias=False)
        if tied:
            self.head.weight = self.emb.weight
        if ignored:
            self.ignored = Ignored()
        self.register_buffer("pos", torch.zeros(5, dtype=torch.int64))
        self.register_buffer("mask", torch.zeros(2), persistent=False)
        for i, (_, t) in enumerate([*self.named_parameters(), *self.named_buffers()]):
            t.data = ramp(t.shape, t.dtype, 10 * i + 1)


def wrap(case):
    more = {"sharding_strategy": getattr(ShardingStrategy, case.get("strategy", "FULL_SHARD")), "use_orig_params": case.get("orig", False)}
    if case.get("mesh"):
        more["device_mesh"] = init_device_mesh("cpu", case["mesh"], mesh_dim_names=("replicate", "shard")[-len(case["mesh"]):])
    if case.get("groups"):
        shards = [dist.new_group(g) for g in case["groups"]]
        across = [dist.new_group(list(g)) for g in zip(*case["groups"])]
        mine = next(i for i, g in enumerate(case["groups"]) if dist.get_rank() in g)
        more["process_group"] = (shards[mine], across[case["groups"][mine].index(dist.get_rank())])
    if case.get("half_buffers"):
        more["mixed_precision"] = MixedPrecision(buffer_dtype=torch.float16)
    f = functools.partial(FSDP, device_id=torch.device("cpu"), **more)
    net = Net(case.get("tied", True), case.get("ignored", False))
    if case.get("ignored"):
        f = functools.partial(f, ignored_modules=[net.ignored])
    net.a = f(net.a)
    wrapper = case.get("checkpoint", "around")  # of the unit, or within it, or none
    if wrapper == "within":
        net.b[1] = checkpoint_wrapper(net.b[1])
    net.b[1] = f(net.b[1], sharding_strategy=ShardingStrategy.NO_SHARD) if case.get("mixed") else f(net.b[1])
    if wrapper == "around":
        net.b[1] = checkpoint_wrapper(net.b[1])
    net.b = f(net.b)
    return net if case.get("bare") else f(net)


def handles(net):
    return {n: m._handle for n, m in net.named_modules() if isinstance(m, FSDP) and m._handle is not None}


def local(net):
    return [encode(h.flat_param.data) for h in handles(net).values()]


def plain_tensors(net, case):
    flat = {id(p) for h in handles(net).values() for p in ([h.flat_param] + list(h.flat_param._params or []) + list(h.flat_param._shared_params or []))}
    return {clean_tensor_name(n): t for n, t in [*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False)] if id(t) not in flat}


def extra_state(net, case):
    return {"ignored._extra_state": net.module.ignored.get_extra_state()} if case.get("ignored") else {}


def set_type(net, kind, **config):
    FSDP.set_state_dict_type(net, TYPES[kind][0], TYPES[kind][1](**config))


def attempt(f, most=600):
    try:
        return {"out": f()}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"[:most]}


def drop(state, key):
    return {k: v for k, v in state.items() if k != key}


def without_shards(state, key, rank):
    """Rank `rank` gives no shard of a ShardedTensor."""
    v = state[key]
    if dist.get_rank() == rank:
        v._local_shards = []
    return {**state, key: v}


def long_shard(state, key):
    """Rank 0's shard of a flat parameter has one element more than its slice."""
    shard = state[key]._local_shards
    if dist.get_rank() == 0:
        shard[0].tensor = torch.zeros(shard[0].tensor.numel() + 1)
        shard[0].metadata.shard_sizes = list(shard[0].tensor.shape)
    return state


CHANGES = {
    "full": {"same": lambda s: s, "missing": lambda s: drop(s, "a.0.weight"), "missing_tied": lambda s: drop(s, "head.weight"),
             "unexpected": lambda s: {**s, "b.1.0.extra": torch.zeros(1)}, "shape": lambda s: {**s, "b.0.weight": torch.zeros(3, 3)},
             "half": lambda s: {**s, "b.0.weight": s["b.0.weight"].half()}},
    "sharded": {"same": lambda s: s, "missing": lambda s: drop(s, "a.0.weight"), "unexpected": lambda s: {**s, "b.1.0.extra": torch.zeros(1)},
                "whole": lambda s: {**s, "a.0.weight": torch.zeros(4, 3)}, "no_shards": lambda s: without_shards(s, "a.0.weight", 0)},
    "local": {"same": lambda s: s, "missing": lambda s: drop(s, "a._flat_param"), "whole": lambda s: {**s, "a._flat_param": torch.zeros(3)},
              "no_shards": lambda s: without_shards(s, "a._flat_param", 0), "long": lambda s: long_shard(s, "a._flat_param")},
}


def own_memory(state):
    """Plain tensors and local shards are the model's own memory."""
    for v in state.values():
        for s in v.local_shards() if isinstance(v, ShardedTensor) else ():
            s.tensor = s.tensor.clone()
    return {k: v if isinstance(v, (ShardedTensor, DTensor)) else v.clone() if isinstance(v, torch.Tensor) else v for k, v in state.items()}


def load(case, kind, change, strict):
    net = wrap(case)
    set_type(net, kind)
    state = CHANGES[kind][change](own_memory(net.state_dict()))
    record = {"in": encode(state)}
    with torch.no_grad():
        for h in handles(net).values():
            h.flat_param.data.copy_(torch.full_like(h.flat_param.data, 99))
        for name, t in plain_tensors(net, case).items():
            if name != "mask":
                t.fill_(7)
        if case.get("ignored"):
            net.module.ignored.step = 0
    state = dict(state)
    try:
        keys = net.load_state_dict(state, strict=strict)
        record["missing"], record["unexpected"] = sorted(keys.missing_keys), sorted(keys.unexpected_keys)
    except Exception as e:
        record["error"] = f"{type(e).__name__}: {e}"[:700]
    if "error" not in record:
        record["slices"], record["plain"] = local(net), encode({**plain_tensors(net, case), **extra_state(net, case)})
    return record


def moments(net):
    """The order in which the units' hooks run, seen by hooks that stand beside FSDP's own."""
    log = []
    for name, m in net.named_modules():
        if isinstance(m, FSDP):
            fqn = clean_tensor_name(name + ".x")[:-2]
            m.register_state_dict_pre_hook(lambda *a, fqn=fqn: log.append(["before save", fqn]))
            m._register_state_dict_hook(lambda *a, fqn=fqn: log.append(["after save", fqn]))
            m.register_load_state_dict_pre_hook(lambda *a, fqn=fqn: log.append(["before load", fqn]))
            m.register_load_state_dict_post_hook(lambda *a, fqn=fqn: log.append(["after load", fqn]))
    return log


def types(net):
    """Settings of a tree: set and restored, mixed, asked for."""
    record = {}
    set_type(net, "sharded")
    with FSDP.state_dict_type(net, StateDictType.LOCAL_STATE_DICT):
        record["within"] = FSDP.get_state_dict_type(net.b).state_dict_type.name
    record["after"] = FSDP.get_state_dict_type(net).state_dict_type.name
    set_type(net.b, "local")
    record["get_mixed"] = attempt(lambda: FSDP.get_state_dict_type(net).state_dict_type.name)
    record["get_part"] = attempt(lambda: FSDP.get_state_dict_type(net.b).state_dict_type.name)
    record["save_mixed"] = attempt(lambda: encode(dict(net.state_dict())))
    record["set_mixed"] = attempt(lambda: set_type(net, "full"))
    return record


def save(case):
    net = wrap(case)
    modules = modules_document(net)
    set_type(net, "full")
    net.state_dict()  # the first casts buffers to the type that they have in training
    record = {"modules": modules, "units": [{"module": n, "strategy": h._sharding_strategy.name, "fqns": list(h.flat_param._fqns)} for n, h in handles(net).items()],
              "slices": local(net), "plain": encode({**plain_tensors(net, case), **extra_state(net, case)}), "saves": {}}
    for name, (kind, config) in {"full": ("full", {}), "rank0": ("full", {"rank0_only": True}), "sharded": ("sharded", {}), "local": ("local", {})}.items():
        set_type(net, kind, **config)
        record["saves"][name] = attempt(lambda: encode(dict(net.state_dict())))
    if case.get("moments"):
        set_type(net, "full")
        log = moments(net)
        net.load_state_dict(net.state_dict())
        record["moments"] = list(log)
        record["types"] = types(net)
    return record


def run_rank(rank, port, directory, make, case, *job):
    faulthandler.enable()
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=case["world"], timeout=datetime.timedelta(seconds=8))
    torch.set_num_threads(1)
    json.dump(make(case, *job), open(os.path.join(directory, f"{rank}.json"), "w"))
    try:
        dist.barrier()
    except RuntimeError:
        pass  # a rank that is through may be gone, and its record lies there
    os._exit(0)


def run(port, make, case, *job):
    """What make(case, *job) gives on each of the case's ranks."""
    with tempfile.TemporaryDirectory() as directory:
        mp.start_processes(run_rank, (port, directory, make, case, *job), nprocs=case["world"], start_method="fork")
        return [json.load(open(os.path.join(directory, f"{r}.json"))) for r in range(case["world"])]


CASES = {
    "flat_w3": {"world": 3, "moments": True, "loads": True},
    "flat_w2_ignored_half": {"world": 2, "ignored": True, "half_buffers": True, "loads": ["same", "half"]},
    "orig_w2": {"world": 2, "orig": True, "ignored": True, "loads": ["same", "missing", "unexpected"]},
    "flat_w4_bare": {"world": 4, "bare": True, "tied": False, "loads": ["same"]},
    "flat_mesh_w2": {"world": 2, "mesh": [2], "loads": ["same", "missing", "whole"]},
    "orig_mesh_w3": {"world": 3, "orig": True, "mesh": [3], "loads": ["same"]},
    "hybrid_mesh_w4": {"world": 4, "mesh": [2, 2], "strategy": "HYBRID_SHARD", "loads": ["same"]},
    "hybrid_groups_w4": {"world": 4, "groups": [[0, 2], [1, 3]], "strategy": "HYBRID_SHARD", "loads": ["same"]},
    "mixed_no_shard_w2": {"world": 2, "mixed": True, "loads": ["same"]},
    "no_shard_w2": {"world": 2, "strategy": "NO_SHARD", "loads": ["same"]},
    "orig_no_shard_w2": {"world": 2, "orig": True, "strategy": "NO_SHARD", "loads": ["same"]},
}


def main(names):
    path, port = os.path.join(HERE, "fsdp_state.json"), 29700
    cases = json.load(open(path))["cases"] if names else {}
    for name, case in CASES.items():
        if names and name not in names:
            continue
        ranks = run(port, save, case)
        modules = ranks[0]["modules"]
        for r in ranks:
            del r["modules"]
        cases[name] = {"case": case, "modules": modules, "ranks": ranks, "loads": []}
        for kind in TYPES:
            for change in CHANGES[kind]:
                if not case["loads"] or (case["loads"] is not True and change not in case["loads"]) or "error" in ranks[0]["saves"].get(kind, {"error": 0}):
                    continue
                lax = change in ("missing", "unexpected") or (kind == "local" and case.get("orig"))
                for strict in (True, False) if lax else (True,):
                    port += 1
                    cases[name]["loads"].append({"type": kind, "change": change, "strict": strict, "ranks": run(port, load, case, kind, change, strict)})
                    print(name, kind, change, strict, cases[name]["loads"][-1]["ranks"][0].get("error"), file=sys.stderr, flush=True)
        json.dump({"torch": torch.__version__, "cases": cases}, open(path, "w"), separators=(",", ":"))


if __name__ == "__main__":
    main(sys.argv[1:])
