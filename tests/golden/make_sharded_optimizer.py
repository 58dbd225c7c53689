"""Sharded optimizer state, saved by FSDP1 and loaded by real PyTorch, for tests/statedict: python tests/golden/make_sharded_optimizer.py

sharded_optimizer/<name>/: checkpoints that dcp.save wrote on 1 to 3 ranks, of FSDP1's SHARDED states and of a state dict made by hand
(scalars, tuples of tensors, empty tensors, several dtypes). sharded_optimizer.json (rows E2 and E4): a case has by rank the model's
state, [fqn, shape, shard or null, inner shape or null], and what load_sharded_optimizer_state_dict gave, written as in
make_state_dict.py. 1-D: the model's own SHARDED state. 2-D (`slice`, of two): ShardedTensors of ShardedTensors, put together by hand
as make_optim_load.py does, one run for each tensor-parallel rank.

PyTorch 2.13 cannot make the 2-D cases from end to end. A unit with a mesh has DTensors in its SHARDED state, for which the load knows
no slices. Without the mesh, ShardedTensors of ShardedTensors can only be made by the tensor-parallel group of ranks 0, 1, ...: their
placements are numbers within the group, taken for ranks of the world. The load does the same with the data-parallel group, and no rank
but 0 can be in both. With one data-parallel rank nothing is sharded, and with sizes that the ranks do not divide the shards do not fill
the tensor. compare_by_hand() shows that where PyTorch can make the model's state, what is put together by hand is the same.
"""

import json
import os
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from make_optim_load import nested, start
from make_state_dict import encode

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardMetadata, TensorProperties
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.checkpoint.optimizer import _get_state_dict_2d_layout, load_sharded_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

SAVED = {"fsdp2": 2, "fsdp3": 3, "by_hand": 1}
KEY = "optimizer"
# The slices of two tensor-parallel ranks: columns of the first layer; rows of the second, uneven.
SLICES = {"0.weight": [([0, 0], [5, 4]), ([0, 4], [5, 2])], "2.weight": [([0, 0], [2, 5]), ([2, 0], [1, 5])], "2.bias": [([0], [2]), ([2], [1])]}


def model_of():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def sharded_model():
    model = FSDP(model_of(), device_id=torch.device("cpu"), use_orig_params=True)
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    return model


def save_fsdp(directory):
    model = sharded_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25, amsgrad=True)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 6) * (dist.get_rank() + 1)).square().mean().backward()
        optimizer.step()
    dcp.save({"model": model.state_dict(), KEY: FSDP.optim_state_dict(model, optimizer)}, checkpoint_id=directory)


def save_by_hand(directory):
    ramp = lambda *shape: torch.arange(torch.Size(shape).numel()).reshape(shape)
    state = {"0.weight": {"step": torch.tensor(7.0), "exp_avg": ramp(5, 6).float() + 0.5, "wide": ramp(5, 6).double() * -1, "half": ramp(5, 6).to(torch.bfloat16), "count": ramp(5, 6) + 1000},
             "2.bias": {"step": torch.tensor(8.0), "exp_avg": ramp(3).float() - 4, "kind": "text", "one": torch.full((1, 1), 9.0)},
             "gone.weight": {"exp_avg": ramp(7, 2).float() * 3, "none": torch.zeros(0, 3), "strided": ramp(4, 6).float().T}}
    groups = [{"lr": torch.tensor(0.5), "betas": (torch.tensor(0.75), torch.tensor(0.5)), "history": [torch.tensor([1.0, 2.0, 3.0]), torch.tensor(4)], "params": list(state)},
              {"lr": 0.25, "betas": (0.5, 0.75), "flag": None, "params": []}]
    dcp.save({KEY: {"state": state, "param_groups": groups}, "model": {"0.weight": torch.ones(5, 6)}}, checkpoint_id=directory)


def save(rank, world, port, name, directory):
    start(rank, world, port)
    save_by_hand(directory) if name == "by_hand" else save_fsdp(directory)
    dist.destroy_process_group()


def rows_sharded(shape, group):
    """As FSDP's SHARDED state has a tensor of this rank's slice."""
    ranks = dist.get_process_group_ranks(group)
    md = ChunkShardingSpec(0, [f"rank:{r}/cpu" for r in ranks]).build_metadata(torch.Size(shape), TensorProperties())
    mine = [Shard(torch.zeros(s.shard_sizes), s) for s in md.shards_metadata if s.placement.rank() == dist.get_rank()]
    return ShardedTensor._init_from_local_shards_and_global_metadata(mine, md, process_group=group)


def sliced_state(t):
    group, state = dist.group.WORLD, {}
    for name, p in model_of().named_parameters():
        offset, size = SLICES[name][t] if name in SLICES else (None, list(p.shape))
        inner = rows_sharded(size, group)
        state[name] = inner if offset is None else nested(inner, ShardMetadata(offset, size, f"rank:{dist.get_rank()}/cpu"), p.shape, group)
    return state


def describe(state):
    rows = []
    for name, value in state.items():
        shards = value.local_shards() if isinstance(value, ShardedTensor) else []
        inner = shards[0].tensor if shards and isinstance(shards[0].tensor, ShardedTensor) else None
        shard = shards[0].metadata if inner is not None else None
        rows.append([name, list(value.size()), [shard.shard_offsets, shard.shard_sizes] if shard else None, list(inner.size()) if inner is not None else None])
    return rows


def load(rank, world, port, t, directory, out):
    start(rank, world, port)
    state = sharded_model().state_dict() if t is None else sliced_state(t)
    described = describe(state)
    try:
        got = {"got": encode(load_sharded_optimizer_state_dict(state, KEY, dcp.FileSystemReader(directory)))}
    except ValueError as e:  # a trailing rank's empty shard would begin beyond the tensor
        got = {"error": str(e).splitlines()[0]}
    with open(os.path.join(out, f"{rank}.json"), "w") as f:
        json.dump({"model": described, **got}, f)
    dist.barrier()
    dist.destroy_process_group()


# ---- whether what is put together by hand is what FSDP1 gives ----

EVEN = {"0.weight": [([0, 0], [2, 6]), ([2, 0], [2, 6])], "0.bias": [([0], [2]), ([2], [2])], "2.weight": [([0, 0], [2, 2]), ([0, 2], [2, 2])], "2.bias": [([0], [2])] * 2}


def real_state(mesh):
    """The model's SHARDED state of FSDP1 over tensor parallelism. A unit with a mesh gives DTensors, which have no slices; so it
    forgets the mesh."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    model = FSDP(model, device_mesh=mesh["dp"], device_id=torch.device("cpu"), use_orig_params=True)
    for unit in FSDP.fsdp_modules(model):
        unit._device_mesh = None
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    return model.state_dict()


def load_layout(state):
    """What the load takes of a model's state: slices and group."""
    specs, group = _get_state_dict_2d_layout(state)
    return {name: (list(at or ()), list(size)) for name, (at, size) in specs.items()}, dist.get_process_group_ranks(group)


def compare_by_hand(rank, world, port):
    start(rank, world, port)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    group, t = mesh.get_group("dp"), mesh.get_local_rank("tp")
    try:
        real = real_state(mesh)
        hand = {n: nested(rows_sharded(EVEN[n][t][1], group), ShardMetadata(*EVEN[n][t], f"rank:{rank}/cpu"), v.size(), group) for n, v in real.items()}
        assert describe(real) == describe(hand) and load_layout(real) == load_layout(hand), (describe(real), describe(hand))
        found = "as by hand"
    except ValueError as e:
        found = str(e)
    assert found == "as by hand" if rank < 2 else found.startswith("Global rank"), (rank, found)
    print(f"2-D model state of rank {rank}: {found}", flush=True)
    store = dist.distributed_c10d._get_default_store()  # gloo's barrier wants groups that nobody left
    store.set(f"done {rank}", "")
    store.wait([f"done {r}" for r in range(world)])
    dist.destroy_process_group()


def main():
    root, port, cases = os.path.join(HERE, "sharded_optimizer"), 29500, []
    mp.spawn(compare_by_hand, (4, port), nprocs=4)
    shutil.rmtree(root, ignore_errors=True)
    for name, world in SAVED.items():
        directory, port = os.path.join(root, name), port + 1
        mp.spawn(save, (world, port, name, directory), nprocs=world)
        for t, worlds in ((None, (1, 2, 3, 4)), (0, (1, 2)), (1, (2,))):
            for ranks in worlds:
                port += 1
                with tempfile.TemporaryDirectory() as out:
                    mp.spawn(load, (ranks, port, t, directory, out), nprocs=ranks)
                    cases.append({"saved": name, "world": ranks, "slice": t, "ranks": [json.load(open(os.path.join(out, f"{r}.json"))) for r in range(ranks)]})
    with open(os.path.join(HERE, "sharded_optimizer.json"), "w") as f:
        json.dump({"torch": torch.__version__, "cases": cases}, f, separators=(",", ":"))


if __name__ == "__main__":
    main()
