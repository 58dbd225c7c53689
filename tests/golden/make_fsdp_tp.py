"""What get_ and set_*_state_dict do with FSDP1 over tensor parallelism and with FSDP extensions in real PyTorch, for tests/statedict:
python tests/golden/make_fsdp_tp.py [CASE...]

fsdp_tp.json: as fsdp_get_set.json (make_fsdp_get_set.py), of models whose parameters are DTensors over the last dim of a mesh, within
flat parameters that FSDP1 cuts over the dims before it (rows B10, B13); and of models with extensions of their own. Every rank has other
values, in parameters, in what no unit manages and in optimizer state. A DTensor over the last dim alone is written as one over the whole
mesh that the other dims replicate. `specs` has for each unit what pre_flatten_transform took off its originals, null where nothing.

PyTorch's optimizer state of flat parameters is gathered by the group of one unit, in which rank 0 is not, and fails: `world_group` cases give
all ranks as the group, as a call of FSDP.optim_state_dict may. Nothing is offloaded: with rank0_only, DTensors are gathered by rank 0 alone,
which waits for ever. Where tensor parallelism is uneven, DTensors of SHARDED get other shapes on each rank, and fail.
"""
import functools
import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import make_fsdp_state as fsdp
import make_fsdp_get_set as base
from make_fsdp_state import Ignored, attempt, handles
from make_state_dict import placement_text, ramp

import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict as state_dict
import torch.distributed.fsdp.fully_sharded_data_parallel as fully_sharded
from torch import nn
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharding_spec import ShardMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp._fsdp_extensions import FSDPExtensions
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module, RowwiseParallel

NAMES = ("replicate", "shard", "tp")


class Expert(Ignored):
    """What no unit manages; `wide` is over the last dim of the mesh."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(2, 4)


class Net(nn.Module):
    def __init__(self, uneven):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(3))
        self.a = nn.Sequential(nn.Linear(3, 5 if uneven else 6), nn.Linear(5 if uneven else 6, 5))
        self.b = nn.Linear(5, 3)
        self.ignored = Expert()
        self.register_buffer("pos", torch.zeros(5))


class Unshaped(torch.Tensor):
    """PyTorch gives states of original parameters the shape of what was flattened, without looking at what the extension made of them."""

    def reshape(self, *_):
        return self.as_subclass(torch.Tensor)


class Transposed(FSDPExtensions):
    """Matrices lie transposed in the flat parameter, and are cut by columns."""
    of_optimizer = False

    def pre_flatten_transform(self, tensor):
        return (tensor.detach().t().contiguous().requires_grad_(), "transposed") if tensor.dim() == 2 else (tensor, None)

    def post_unflatten_transform(self, tensor, param_extension):
        return tensor.t().as_subclass(Unshaped) if Transposed.of_optimizer else tensor.t()

    def chunk_tensor(self, tensor, rank, world_size, num_devices_per_node, pg, device=None):
        dim = tensor.dim() - 1
        chunks, metadata, at = tensor.chunk(world_size, dim=dim), [], 0
        for r, c in enumerate(chunks):
            metadata.append(ShardMetadata([0] * dim + [at], list(c.shape), f"rank:{r}/cpu"))
            at += c.shape[dim]
        shards = [Shard(chunks[rank].contiguous().clone(), metadata[rank])] if rank < len(chunks) else []
        return ShardedTensor._init_from_local_shards_and_global_metadata(
            shards, ShardedTensorMetadata(metadata, tensor.size(), TensorProperties(dtype=tensor.dtype)), process_group=pg)

    def chunk_dtensor(self, tensor, rank, device_mesh):
        raise NotImplementedError

    def pre_load_state_dict_transform(self, tensor):
        raise NotImplementedError

    def all_gather_dtensor(self, tensor, parent_mesh):
        raise NotImplementedError


def use_extension(state, device_mesh=None):
    state._fsdp_extension = Transposed()
    return state


def coordinates(case):
    """This rank's among the dims that FSDP cuts, and among those of tensor parallelism."""
    tp = case["mesh2d"][-1] if "mesh2d" in case else 1
    return dist.get_rank() // tp, dist.get_rank() % tp


def fill(net):
    """Numbers that only this rank has."""
    rank = dist.get_rank()
    with torch.no_grad():
        for i, t in enumerate([*net.named_parameters(), *net.named_buffers()]):
            t = t[1].to_local() if isinstance(t[1], DTensor) else t[1]
            t.data.copy_(ramp(t.shape, t.dtype, 7 * i) + 128 * (rank + 1))
    net.module.ignored.step += rank


# Which layers tensor parallelism cuts, and how.
PLANS = {"columns": {"a.0": ColwiseParallel(), "a.1": RowwiseParallel()},
         "one": {"a.1": RowwiseParallel()}}


def _with(net, f):
    net.a = f(net.a)
    return net


def sgd(params):
    return [torch.optim.SGD([{"params": [p for _, p in params[:2]], "lr": 0.25}, {"params": [p for _, p in params[2:]], "momentum": 0.5}], lr=0.5, momentum=0.75)]


def wrap(case):
    if case.get("sgd"):
        base.adamw = sgd
    more = {"sharding_strategy": getattr(ShardingStrategy, case.get("strategy", "FULL_SHARD")), "use_orig_params": case.get("orig", False)}
    net = Net(case.get("uneven", False))
    shape = case.get("mesh2d")
    if shape:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=NAMES[-len(shape):])
        more["device_mesh"] = mesh[NAMES[-len(shape):-1]] if len(shape) > 2 else mesh["shard"]
        parallelize_module(net, mesh["tp"], {**PLANS[case.get("plan", "columns")], "ignored.wide": ColwiseParallel()})
    else:
        fully_sharded._init_extension = use_extension
    if case.get("world_group"):
        state_dict._get_fsdp_process_group = lambda *_: None
    f = functools.partial(FSDP, device_id=torch.device("cpu"), ignored_modules=[net.ignored], **more)
    net = f(net) if case.get("single") else f(_with(net, f))
    fill(net)
    return net


def part(model, optimizers, case):
    """State that only this rank has; the ranks of one place in tensor parallelism agree in keys, and in scalars of originals."""
    (data, tp), (o,) = coordinates(case), optimizers
    for g in o.param_groups:
        g["lr"] += dist.get_rank() / 8
    for p in [p for p in o.state if p.numel() == 0]:  # which trains without a gradient, and so without state
        del o.state[p]
    for i, (p, state) in enumerate(o.state.items()):
        for k, name in enumerate(state):
            t = state[name].to_local() if isinstance(state[name], DTensor) else state[name]
            if t.dim() == 0:
                t += 10 * tp + (0 if case.get("orig") else data)
            else:
                t.copy_(ramp(t.shape, t.dtype, 5 * i + 60 * k) + 128 * (dist.get_rank() + 1))
                t[t.numel() - getattr(p, "_shard_numel_padded", 0):] = 0
    if case.get("keys") and tp == 1:
        for n, p in model.named_parameters():
            if re.search(r"\.(scale|b\.\w+)$", n) and p in o.state:  # a whole unit, which has no DTensors
                del o.state[p]["exp_avg_sq"]
                o.state[p]["mine"] = ramp(p.shape, start=3)


def specs(model):
    def spec(ext, shape):
        if ext is None:
            return None
        return [list(shape)[::-1], "replicate"] if ext == "transposed" else [list(ext.shape), placement_text(ext.placements[0])]

    return [[spec(e, s) for e, s in zip(h.flat_param._param_extensions, h.flat_param._shapes)] for h in handles(model).values()]


def over_all(record, shape):
    """DTensors over the last dim alone, as over the whole mesh."""
    if isinstance(record, list):
        return [over_all(r, shape) for r in record]
    if not isinstance(record, dict):
        return record
    if list(record) == ["M"] and record["M"][2].startswith("tp="):
        dtype, sizes, _, placement, numbers = record["M"]
        mesh = ",".join(f"{n}={s}" for n, s in zip(NAMES[-len(shape):], shape))
        return {"M": [dtype, sizes, mesh, ",".join(["replicate"] * (len(shape) - 1) + [placement]), numbers]}
    return {k: over_all(v, shape) for k, v in record.items()}


def get_optimizer(*args, **options):
    Transposed.of_optimizer = args[0]._handle._use_orig_params
    try:
        return GET_OPTIMIZER(*args, **options)
    finally:
        Transposed.of_optimizer = False


def head(case):
    base.GETS, base.OPTIMIZER_GETS = case.get("gets", GETS), case.get("optimizer_gets", OPTIMIZER_GETS)
    if case.get("uneven"):  # nothing else than FULL
        base.get_model_state_dict = lambda model, submodules=None, options=None: GET(model, options=state_dict.StateDictOptions(**base.FULL))
    model, _ = base.build(case)
    out = {**base.head(case), "specs": specs(model)}
    out["gets"] = [g for g in out["gets"] if not case.get("uneven") or "submodules" not in g]
    return over_all(out, case.get("mesh2d"))


def plain_tensors(net, case):
    """After loading, NO_SHARD units of original parameters have new ones, which they do not know."""
    return {n: t for n, t in PLAIN(net, case).items() if n.startswith("ignored") or n == "pos"}


def try_set(case, job):
    return over_all(base.try_set(case, job), case.get("mesh2d"))


base.part, fsdp.wrap, GET = part, wrap, base.get_model_state_dict
base.get_optimizer_state_dict, GET_OPTIMIZER = get_optimizer, base.get_optimizer_state_dict
base.plain_tensors, PLAIN = plain_tensors, base.plain_tensors
TP = {"checkpoint": "none", "tied": False, "apart": "values", "ignored": True, "tp": True}
CASES = {
    "flat_w4": {"world": 4, "mesh2d": [2, 2], "world_group": True},
    "orig_w4": {"world": 4, "mesh2d": [2, 2], "orig": True},
    "keys_w4": {"world": 4, "mesh2d": [2, 2], "orig": True, "keys": True},
    "flat_dp1_w2": {"world": 2, "mesh2d": [1, 2], "world_group": True},
    "orig_dp1_w2": {"world": 2, "mesh2d": [1, 2], "orig": True, "single": True},
    "flat_tp1_w2": {"world": 2, "mesh2d": [2, 1]},
    "orig_tp1_w2": {"world": 2, "mesh2d": [2, 1], "orig": True},
    "flat_hybrid_w8": {"world": 8, "mesh2d": [2, 2, 2], "strategy": "HYBRID_SHARD"},
    "orig_hybrid_w8": {"world": 8, "mesh2d": [2, 2, 2], "strategy": "HYBRID_SHARD", "orig": True},
    "flat_no_shard_w4": {"world": 4, "mesh2d": [2, 2], "strategy": "NO_SHARD", "world_group": True},
    "orig_no_shard_w4": {"world": 4, "mesh2d": [2, 2], "strategy": "NO_SHARD", "orig": True, "single": True},
    "uneven_w4": {"world": 4, "mesh2d": [2, 2], "world_group": True, "uneven": True, "gets": [base.FULL], "optimizer_gets": [base.FULL]},
    "flat_three_w6": {"world": 6, "mesh2d": [3, 2], "world_group": True},
    "orig_three_w6": {"world": 6, "mesh2d": [3, 2], "orig": True},
    "flat_one_w4": {"world": 4, "mesh2d": [2, 2], "world_group": True, "plan": "one", "single": True},
    "orig_one_w4": {"world": 4, "mesh2d": [2, 2], "orig": True, "plan": "one", "sgd": True},
    "orig_grad_op_w4": {"world": 4, "mesh2d": [2, 2], "orig": True, "strategy": "SHARD_GRAD_OP", "single": True},
    "flat_extension_w2": {"world": 2, "extension": True},
    "orig_extension_w3": {"world": 3, "extension": True, "orig": True},
    "flat_extension_single_w3": {"world": 3, "extension": True, "single": True},
    "orig_extension_keys_w2": {"world": 2, "extension": True, "orig": True, "keys": True, "single": True},
}
GETS = [{}, base.FULL, base.CPU]
OPTIMIZER_GETS = [{}, base.FULL, base.FLAT, {**base.FULL, **base.FLAT}]


def main(names):
    path, port = os.path.join(HERE, "fsdp_tp.json"), 30700
    cases = json.load(open(path))["cases"] if names else {}
    for name, case in CASES.items():
        if names and name not in names:
            continue
        case = {**TP, **case}
        ranks = fsdp.run(port, head, case)
        port += 1
        modules, units = ranks[0]["modules"], ranks[0]["units"]
        for r in ranks:
            if r["modules"] == modules:
                del r["modules"]
            del r["units"]
            print(name, [str(g.get("error"))[:300] for g in r["gets"] + r["optimizer_gets"]], file=sys.stderr)
        job = {"what": "model", "from": 0, "options": {}}
        cases[name] = {"case": case, "modules": modules, "units": units, "ranks": ranks}
        cases[name]["sets"] = [] if case.get("extension") or "gets" in case else [{**job, "ranks": fsdp.run(port, try_set, case, job)}]
        port += 1
        print(name, [str(r.get("error"))[:300] for s in cases[name]["sets"] for r in s["ranks"]], file=sys.stderr, flush=True)
        lines = ",\n".join(f'"{n}":' + json.dumps(c, separators=(",", ":")) for n, c in cases.items())
        with open(path, "w") as f:
            f.write('{"torch":"%s","cases":{\n' % torch.__version__ + re.sub(r"(?<=\d)\.0(?=[,\]}])", "", lines) + "\n}}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
