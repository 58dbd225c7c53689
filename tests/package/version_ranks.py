"""Ranks of another version of PyTorch that save and load with the package: version_ranks.py PACKAGE DIRECTORY. Each way that worked on all
ranks is a line of stdout."""
import os
import sys
import tempfile
import warnings

sys.path[:0] = [sys.argv[1], os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")]
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter  # noqa: E402
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch_ranks import run_ranks  # noqa: E402

import tessera.torch  # noqa: E402

try:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
except ImportError:  # before 2.5
    from torch.distributed._tensor import DTensor, Replicate, Shard, distribute_tensor
VERSION = tuple(int(n) for n in torch.__version__.split(".")[:2])


def state_of(rank, k, mesh):
    """Every value differs; each rank has a tensor of its own."""
    rows, columns, both = (torch.arange(70.).reshape(10, 7) * n + k for n in (1, 3, 5))
    return {"model": {"rows": distribute_tensor(rows, mesh, [Shard(0)]), "columns": distribute_tensor(columns, mesh, [Shard(1)]),
                      "both": distribute_tensor(both, mesh, [Replicate()]), "plain": torch.arange(5, dtype=torch.int16) + k},
            f"mine{rank}": torch.full((rank + 1, 2), 100. * rank + k), "groups": [{"lr": 0.1 * k}, (k, "x")], "step": k}


def cleared(value):
    if isinstance(value, DTensor):
        return DTensor.from_local(torch.zeros_like(value._local_tensor), value.device_mesh, value.placements, run_check=False, shape=value.shape, stride=value.stride())
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {k: cleared(v) for k, v in value.items()}
    return [cleared(v) for v in value] if isinstance(value, list) else None


def compare(got, want, name="state"):
    assert type(got) is type(want), f"{name}: {got!r}, not {want!r}"
    if isinstance(want, dict):
        assert got.keys() == want.keys(), f"{name}: {list(got)}"
        for k in want:
            compare(got[k], want[k], f"{name}.{k}")
    elif hasattr(want, "local_shards"):
        assert got.metadata() == want.metadata(), name
        compare([s.tensor for s in got.local_shards()], [s.tensor for s in want.local_shards()], name)
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), f"{name}: {got}"
        for k, pair in enumerate(zip(got, want)):
            compare(*pair, f"{name}.{k}")
    elif isinstance(want, torch.Tensor):
        got, want = (t._local_tensor if isinstance(t, DTensor) else t.detach() for t in (got, want))
        assert got.dtype == want.dtype and torch.equal(got, want), f"{name}: {got}, not {want}"
    else:
        assert got == want, f"{name}: {got!r}, not {want!r}"


class Ways:
    """A method is one way; all ranks go it together."""

    def __init__(self, rank, world, directory):
        self.rank, self.directory, self.mesh = rank, directory, init_device_mesh("cpu", (world,))

    def state(self, k):
        return state_of(self.rank, k, self.mesh)

    def loads(self, path, k):
        """By PyTorch's own reader and by ours, and in place."""
        want = self.state(k)
        for reader in (FileSystemReader(path), tessera.torch.StorageReader(path)):
            state = cleared(want)
            _load_state_dict(state, storage_reader=reader, planner=dcp.DefaultLoadPlanner())
            compare(state, want)
        state = cleared(want)
        missing, _ = tessera.torch.load_into(state, path, strict=False)
        assert missing == []
        compare({k: v for k, v in state.items() if k not in ("groups", "step")}, {k: v for k, v in want.items() if k not in ("groups", "step")})
        if self.rank == 0:
            allowed = {"dcp/newer"} if VERSION >= (2, 15) else set()
            assert {f.rule for f in tessera.check(path, deep=True)} <= allowed, tessera.check(path, deep=True)
        dist.barrier()

    def save(self):
        path = os.path.join(self.directory, "ours")
        for k, options in enumerate(({}, {"overwrite": True})):
            dcp.save(self.state(k), storage_writer=tessera.torch.StorageWriter(path, **options))
            self.loads(path, k)
        try:
            dcp.save(self.state(7), storage_writer=tessera.torch.StorageWriter(path))
        except BaseException as e:  # noqa: BLE001
            assert "holds a checkpoint already" in str(e), e
        else:
            raise AssertionError("a checkpoint was replaced without overwrite")
        self.loads(path, 1)

    def pytorchs_own_writer(self):
        path = os.path.join(self.directory, "theirs")
        dcp.save(self.state(3), storage_writer=FileSystemWriter(path))
        self.loads(path, 3)

    def in_background(self, name, k, **options):
        state, path = self.state(k), os.path.join(self.directory, name)
        saving = dcp.async_save(state, storage_writer=tessera.torch.StorageWriter(path), **options)
        if VERSION >= (2, 4):  # which stages tensors of the CPU, too
            state["model"]["plain"].add_(100)
        getattr(saving, "upload_completion", saving).result()
        dist.barrier()
        self.loads(path, k)

    def async_save(self):
        self.in_background("async", 4)

    def async_save_in_a_process(self):
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        for k in (5, 6):
            self.in_background(f"process{k}", k, async_checkpointer_type=AsyncCheckpointerType.PROCESS)

    def fsdp2(self):
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError:  # before 2.6
            from torch.distributed._composable.fsdp import fully_shard
        path, module = os.path.join(self.directory, "fsdp2"), torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3))
        fully_shard(module, mesh=self.mesh)
        state = module.state_dict()
        want = {name: value._local_tensor.clone() for name, value in state.items()}
        dcp.save(state, storage_writer=tessera.torch.StorageWriter(path))
        for load in (lambda: dcp.load(state, storage_reader=FileSystemReader(path)), lambda: dcp.load(state, storage_reader=tessera.torch.StorageReader(path)),
                     lambda: tessera.torch.load_into(state, path)):
            for value in state.values():
                value._local_tensor.zero_()
            load()
            compare({name: value._local_tensor for name, value in state.items()}, want)

    def optimizer_state(self):
        from torch.distributed._shard.sharded_tensor import ShardedTensor
        from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp import StateDictType
        path = os.path.join(self.directory, "optimizer")
        module = FSDP(torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3)), device_id=torch.device("cpu"), use_orig_params=True)
        FSDP.set_state_dict_type(module, StateDictType.SHARDED_STATE_DICT)
        model = module.state_dict()

        def moment(value, by):
            shards = [type(shard)(shard.tensor.detach() * by, shard.metadata) for shard in value.local_shards()]
            return ShardedTensor._init_from_local_shards_and_global_metadata(shards, value.metadata(), process_group=value._process_group)
        state = {name: {"step": torch.tensor(3.), "exp_avg": moment(value, 2), "exp_avg_sq": moment(value, 3)} for name, value in model.items()}
        dcp.save({"model": model, "optim": {"state": state, "param_groups": [{"lr": 0.5, "params": list(model)}]}}, storage_writer=tessera.torch.StorageWriter(path))
        want = load_sharded_optimizer_state_dict(model, "optim", FileSystemReader(path))
        compare(tessera.load_sharded_optimizer_state(path, "optim", model), want)
        compare(load_sharded_optimizer_state_dict(model, "optim", tessera.torch.StorageReader(path)), want)


def go(rank, world, directory):
    place = [tempfile.mkdtemp(dir=directory) if rank == 0 else None]
    dist.broadcast_object_list(place)
    ways = Ways(rank, world, place[0])
    names = ["save", "pytorchs_own_writer", "async_save", "fsdp2", "optimizer_state"] + (["async_save_in_a_process"] if VERSION >= (2, 7) else [])
    for name in names:
        getattr(ways, name)()
        dist.barrier()
        if rank == 0:
            print(name, flush=True)


if __name__ == "__main__":
    run_ranks(go, 3, sys.argv[2])
