"""Small rules of state dicts as real PyTorch applies them: python tests/golden/make_state_rules.py > tests/golden/state_rules.json

rows: ChunkShardingSpec and torch.chunk over dim 0 (E1); reads: _ReaderWithOffset's plan for 2-D optimizer state (E2, E3), one
rank at a time over a fake process group; keys: _flatten_state_dict, DCP's flatten_state_dict and _unflatten_state_dict (D9); checks: which options _verify_options and
_verify_state_dict refuse (A4, A5); choices: the FSDP state dict type they choose (A1); submodules: named modules, FSDP units and
submodule prefixes of a wrapped model (A4); init: what _init_optim_state leaves (A8).
"""
import itertools
import json
import os
import sys
import warnings
from types import SimpleNamespace

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "samples")]
warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import TensorProperties as ShardTensorProperties
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed._state_dict_utils import _flatten_state_dict, _unflatten_state_dict
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint import state_dict as dsd
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.optimizer import _ReaderWithOffset
from torch.testing._internal.distributed.fake_pg import FakeStore

from make_optim import encode


def rows():
    for size, world in itertools.product((0, 1, 2, 3, 7, 8, 100), (1, 2, 3, 5, 8)):
        spec = ChunkShardingSpec(0, [f"rank:{r}/cpu" for r in range(world)])
        shards = spec.build_metadata(torch.Size([size, 2]), ShardTensorProperties()).shards_metadata
        chunks = torch.arange(size).chunk(world)
        starts = [int(c[0]) if c.numel() else 0 for c in chunks]
        yield {"size": size, "world": world, "spec": [[s.shard_offsets[0], s.shard_sizes[0]] for s in shards],
               "chunk": [[s, c.numel()] for s, c in zip(starts, chunks)]}


def grid(shape, rows, columns):
    """Chunks of a tensor saved by rows × columns ranks."""
    cut = lambda n, w: [(i, min(-(-n // w), n - i)) for i in range(0, n, -(-n // w))]
    return [ChunkStorageMetadata(torch.Size([a, b]), torch.Size([x, y])) for a, x in cut(shape[0], rows) for b, y in cut(shape[1], columns)]


def reads():
    for (shape, saved), (tp, dp) in itertools.product((((8, 12), (4, 2)), ((7, 5), (2, 3)), ((3, 4), (1, 1))), ((2, 2), (2, 3), (1, 4))):
        md = TensorStorageMetadata(TensorProperties(), torch.Size(shape), grid(shape, *saved))
        width = shape[1] // tp
        for t, d in itertools.product(range(tp), range(dp)):
            offset, size = [0, t * width], [shape[0], width]
            dist.init_process_group("fake", rank=d, world_size=dp, store=FakeStore())
            spec = ChunkShardingSpec(0, [f"rank:{r}/cpu" for r in range(dp)])
            st_md = spec.build_metadata(torch.Size(size), ShardTensorProperties())
            mine = st_md.shards_metadata[d]
            shard = Shard(torch.empty(mine.shard_sizes), mine)
            st = ShardedTensor._init_from_local_shards_and_global_metadata([shard], st_md)
            reader = _ReaderWithOffset({"o": offset})
            reader.metadata, reader.state_dict = Metadata({"o": md}), {"o": st}
            items = reader.create_local_plan().items
            at = lambda i: [a + b for a, b in zip(i.storage_index.offset, i.storage_offsets)]
            yield {"shape": list(shape), "slice_offsets": offset, "slice_sizes": size, "rank": d, "world": dp,
                   "items": [[at(i), list(i.lengths), [a + b for a, b in zip(reader.translation[i.dest_index].offset, i.dest_offsets)]] for i in items]}
            dist.destroy_process_group()


NESTED = [
    {"a": 1, "b": {"c": [1, {"d": 2}], "t": (3, [4, 5])}, "e": {}, 7: {"x": []}}, {"m": {"w": torch.ones(2)}, "s": torch.Size([2, 3])}, {},
    {"a": {"b": 1}, "a.b": 2},
    {"p": [1, 2], "q": [[1], [2, (3,)]], "r": [torch.ones(1), 5, [6]], "u": [[[{"v": 1.5}], 2]], "w": (torch.zeros(1), {"x": 1})},
    {"g": [{"lr": 0.5, "betas": (0.5, 0.75), "params": [0, 1]}, {"lr": torch.ones(()), "betas": [0.5, 0.75], "params": []}]},
]
# Paths that no flattening gives: positions that are missing, conflicts.
PATHS = [
    [[("a", 2), 1], [("a", 0, "x"), 2]], [[("a", "0"), 1], [("a", "1"), 2]], [[("a", 0, 1), 1], [("b",), 2], [("a", 0, 0), 3]],
    [[("a",), 1], [("a", "b"), 2]], [[("a", 0), 1], [("a", "b"), 2]],
]


def flattened(flatten, nested):
    try:
        flat, mapping = flatten(nested)
        return [[k, list(mapping[k]), encode(v)] for k, v in flat.items()], encode(_unflatten_state_dict(flat, mapping))
    except ValueError:
        return None, None


def keys():
    for nested in NESTED:
        (flat, back), (dcp, dcp_back) = flattened(_flatten_state_dict, nested), flattened(flatten_state_dict, nested)
        yield {"nested": encode(nested), "flat": flat, "back": back, "dcp": dcp, "dcp_back": dcp_back}


def unflattened():
    for paths in PATHS:
        flat, mapping = {str(i): v for i, (_, v) in enumerate(paths)}, {str(i): p for i, (p, _) in enumerate(paths)}
        try:
            out = encode(_unflatten_state_dict(flat, mapping))
        except Exception as e:
            out = None
        yield {"flat": [[k, list(mapping[k]), encode(v)] for k, v in flat.items()], "out": out}


OPTIONS = ["full_state_dict", "cpu_offload", "ignore_frozen_params", "keep_submodule_prefixes", "strict", "broadcast_from_rank0", "flatten_optimizer_state_dict"]


def checks():
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    net = torch.nn.Linear(1, 1)
    optim = torch.optim.SGD(net.parameters(), lr=0.1)
    for bits in itertools.product((False, True), repeat=len(OPTIONS)):
        options = dict(zip(OPTIONS, bits))
        out = {"options": list(bits), "refused": [], "empty": []}
        for optims, only in (((), False), ((), True), ((optim,), True)):
            try:
                dsd._verify_options(net, optims, only, options=dsd.StateDictOptions(**options))
                out["refused"].append(False)
            except (RuntimeError, ValueError):
                out["refused"].append(True)
        for submodules, keys_, optimizer in itertools.product((False, True), ((), ("w",), ("a._flat_param",)), ({}, {"state": 1})):
            info = SimpleNamespace(**options, handle_model=True, handle_optim=True, submodule_prefixes={"x."} if submodules else set(), fsdp_modules=[])
            try:
                dsd._verify_state_dict(dict.fromkeys(keys_, 1), optimizer, info)
                out["empty"].append(False)
            except RuntimeError:
                out["empty"].append(True)
        yield out
    dist.destroy_process_group()


def choices():
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    net = FSDP(torch.nn.Linear(1, 1), device_id=torch.device("cpu"))
    optim = torch.optim.SGD(net.parameters(), lr=0.1)
    for full, offload, rank0 in itertools.product((False, True), repeat=3):
        if rank0 and not full:
            continue
        info = dsd._verify_options(net, (optim,), False, options=dsd.StateDictOptions(full_state_dict=full, cpu_offload=offload, broadcast_from_rank0=rank0))
        said = info.fsdp_context.keywords
        model, state = said["state_dict_config"], said["optim_state_dict_config"]
        yield {"options": [full, offload, rank0], "full": said["state_dict_type"].name == "FULL_STATE_DICT", "offload": [model.offload_to_cpu, state.offload_to_cpu],
               "rank0_only": [getattr(model, "rank0_only", False), getattr(state, "rank0_only", False)]}
    defaults = dsd.StateDictOptions()
    yield {"defaults": [getattr(defaults, o) for o in OPTIONS]}
    dist.destroy_process_group()


def submodules():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from describe_modules import modules_document
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    nn = torch.nn
    wrap = lambda m: FSDP(m, device_id=torch.device("cpu"))
    shared = nn.Linear(2, 2)
    net = nn.ModuleDict({"a": nn.Sequential(nn.Linear(2, 2), wrap(nn.Linear(2, 2))), "b": checkpoint_wrapper(nn.Sequential(shared, nn.Linear(2, 2))), "again": shared})
    net = wrap(net)
    named = list(net.named_modules())
    out = {"modules": modules_document(net), "named": [n for n, _ in named], "units": [named.index((n, m)) for n, m in named if m in set(FSDP.fsdp_modules(net))], "prefixes": []}
    for picked in itertools.combinations(range(len(named)), 2):
        info = dsd._verify_options(net, (), False, submodules={named[i][1] for i in picked}, options=dsd.StateDictOptions())
        out["prefixes"].append([list(picked), sorted(info.submodule_prefixes)])
    yield out
    dist.destroy_process_group()


class Recorder(torch.optim.Optimizer):
    """An optimizer that nobody knows: its state is for a callback to tell."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is not None:
                    self.state[p]["trace"] = torch.full_like(p, 2.0)


INIT = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "sgd_decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.25, nesterov=True),
    "sgd_maximize": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.5, maximize=True, dampening=0.0),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adam_decay": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.5, amsgrad=True),
    "adam_foreach": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.25, foreach=True),
    "adam_tensor_lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), weight_decay=0.25, foreach=False),
    "adam_decoupled": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.5, decoupled_weight_decay=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.5, amsgrad=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "recorder": lambda p: Recorder(p, lr=0.1),
    "with_gradient": lambda p: torch.optim.Adam(p, lr=0.1),
    "with_state": lambda p: torch.optim.Adam(p, lr=0.1),
}


def init():
    for name, build in INIT.items():
        torch.manual_seed(1)
        params = [torch.nn.Parameter(torch.randn(2, 3)), torch.nn.Parameter(torch.randn(())), torch.nn.Parameter(torch.randn(4), requires_grad=False)]
        optim = build([{"params": params[:1], "lr": 0.5}, {"params": params[1:]}])
        if name == "with_state":
            optim.state[params[0]]["step"] = torch.tensor(3.0)
        if name == "with_gradient":
            params[1].grad = torch.ones(())
        before, lrs = [p.detach().clone() for p in params], [g["lr"] for g in optim.param_groups]
        dsd._init_optim_state(optim)
        assert all(torch.equal(a, b) for a, b in zip(before, params)) and lrs == [g["lr"] for g in optim.param_groups]
        assert name == "with_gradient" or all(p.grad is None for p in params)
        state = [{k: v for k, v in optim.state[p].items() if v is not None} if p in optim.state else None for p in params]
        groups = [{k: v for k, v in g.items() if k != "params"} for g in optim.param_groups]
        yield {"name": name, "params": [[encode(p), p.requires_grad, p.grad is not None] for p in params], "groups": encode(groups),
               "state": [encode(s) for s in state]}


if __name__ == "__main__":
    json.dump({"torch": torch.__version__, "rows": list(rows()), "reads": list(reads()), "keys": list(keys()), "unflattened": list(unflattened()), "checks": list(checks()),
               "choices": list(choices()), "submodules": list(submodules()), "init": list(init())}, sys.stdout,
              separators=(",", ":"))
    print()
