"""tessera.torch on several ranks with a gloo group, beside PyTorch's own reader and writer."""
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from test_python import tessera
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType
from torch_ranks import run_ranks


def state_of(rank, k):
    return {"both": torch.arange(12.) + k, f"mine{rank}": torch.full((3, rank + 1), 10. * k + rank), "of": {"rank": [torch.ones(2) * k, "x"], "step": k}}


def loaded(rank, reader):
    state = {"both": torch.zeros(12), f"mine{rank}": torch.zeros(3, rank + 1), "of": {"rank": [torch.zeros(2), None], "step": None}}
    dcp.load(state, storage_reader=reader)
    return state


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return len(a) == len(b) and all(map(same, a, b)) if isinstance(a, list) else a == b


def saves(rank, world, path):
    for k, options in enumerate(({}, {"checksums": False, "overwrite": True}, {"overwrite": True})):
        dcp.save(state_of(rank, k), storage_writer=tessera.torch.StorageWriter(path, **options))
        for reader in (FileSystemReader(path), tessera.torch.StorageReader(path)):
            assert same(loaded(rank, reader), state_of(rank, k)), (rank, k)
        dist.barrier()


def test_a_save_of_several_ranks_loads_in_pytorch(t):
    run_ranks(saves, 3, t.at("step"))
    files = os.listdir(t.at("step"))
    assert len(files) == 4 and sum(name.endswith(".distcp") for name in files) == 3, files
    assert tessera.check(t.at("step"), deep=True) == []


def fills_fsdp1(rank, world, path):
    """Of three rows the last rank has no shard."""
    model = FSDP(torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3)), device_id=torch.device("cpu"), use_orig_params=True)
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    state = model.state_dict()
    shards = [shard.tensor for value in state.values() for shard in value.local_shards()]
    assert rank < 3 or len(shards) < len(state), "every rank has a shard of every tensor"
    dcp.save(state, checkpoint_id=path)
    for load in (lambda: dcp.load(state, checkpoint_id=path), lambda: tessera.torch.load_into(state, path)):
        before = [shard.clone() for shard in shards]
        for shard in shards:
            shard.zero_()
        load()
        assert all(map(torch.equal, shards, before)), rank


def test_load_into_fills_sharded_tensors_of_which_a_rank_has_none(t):
    run_ranks(fills_fsdp1, 4, t.at("fsdp1"))
