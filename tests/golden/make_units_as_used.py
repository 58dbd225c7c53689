"""What FSDP1 and its optimizers give in real PyTorch, for tests/statedict/test_statedict_units_as_used.c: python tests/golden/make_units_as_used.py

units_as_used/states: a DCP of plain tensors, from two ranks with fc.weight [3, 4] and fc.bias [3] in one flat parameter: `full`,
`local.R` and `sharded.R.NAME` (this rank's shard) of state_dict(), `first` of RMSprop without a gradient, and `moments.R`, the rows of
exp_avg that load_sharded_optimizer_state_dict gave. units_as_used/trained: the checkpoint that it read, saved by three ranks."""
import os
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from torch_ranks import run_ranks

TO = os.path.join(HERE, "units_as_used")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)
        values = 1 + torch.arange(15.) / 8
        self.fc.weight.data, self.fc.bias.data = values[:12].reshape(3, 4).clone(), values[12:].clone()

    def forward(self, x):
        return self.fc(x)


def fsdp():
    return FSDP(Net(), device_id=torch.device("cpu"))


def state_of(model, kind):
    with FSDP.state_dict_type(model, kind):
        return model.state_dict()


def shard_of(value):
    shards = value.local_shards()
    return shards[0].tensor.clone() if shards else torch.zeros(0)


def trains(rank, world, directory):
    model = fsdp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    model(torch.tensor([[1., 2, 3, 4]])).mul(torch.tensor([1., 2, 3])).sum().backward()
    optimizer.step()
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        dcp.save({"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer)}, checkpoint_id=os.path.join(TO, "trained"))


def gives(rank, world, directory):
    model = fsdp()
    mine = {f"full.{name}": value for name, value in state_of(model, StateDictType.FULL_STATE_DICT).items()}
    mine[f"local.{rank}"] = shard_of(state_of(model, StateDictType.LOCAL_STATE_DICT)["_flat_param"])
    rows = state_of(model, StateDictType.SHARDED_STATE_DICT)
    mine |= {f"sharded.{rank}.{name}": shard_of(value) for name, value in rows.items()}
    first = get_optimizer_state_dict(model, torch.optim.RMSprop(model.parameters(), lr=0.5), options=StateDictOptions(full_state_dict=True))
    mine |= {f"first.{name}.{key}": value for name, state in first["state"].items() for key, value in state.items()}
    loaded = load_sharded_optimizer_state_dict(rows, "optim", dcp.FileSystemReader(os.path.join(TO, "trained")))["optim"]
    mine |= {f"moments.{rank}.{name}": shard_of(state["exp_avg"]) for name, state in loaded["state"].items()}
    torch.save({name: value.clone() for name, value in mine.items()}, os.path.join(directory, f"{rank}.pt"))


if __name__ == "__main__":
    shutil.rmtree(TO, ignore_errors=True)
    with tempfile.TemporaryDirectory() as directory:
        run_ranks(trains, 3, directory)
        run_ranks(gives, 2, directory)
        states = torch.load(os.path.join(directory, "0.pt")) | torch.load(os.path.join(directory, "1.pt"))
    dcp.save(states, checkpoint_id=os.path.join(TO, "states"), no_dist=True)
    print({name: tuple(value.shape) for name, value in sorted(states.items())})
