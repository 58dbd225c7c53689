"""What PyTorch's own tests of torch.distributed.checkpoint cover, with tessera.torch's writer and reader in place of PyTorch's: ours with
theirs, theirs with ours, and both ours. PyTorch's values are what is expected."""
import contextlib
import io
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from harness import ROOT
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_model_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch_ranks import run_ranks

sys.path.insert(0, os.path.join(ROOT, "build/wheel/installed"))
import tessera.torch  # noqa: E402

PAIRS = {"ours to theirs": (tessera.torch.StorageWriter, FileSystemReader), "theirs to ours": (FileSystemWriter, tessera.torch.StorageReader),
         "ours to ours": (tessera.torch.StorageWriter, tessera.torch.StorageReader)}
WORLD = 4


class Pair:
    """A writer and a reader of one path."""

    def __init__(self, kinds, path, **always):
        self.kinds, self.path, self.always = kinds, path, always

    def save(self, state, overwrite=False, **options):
        return dcp.save(state, storage_writer=self.writer(overwrite), **self.always, **options)

    def writer(self, overwrite=False):
        return self.kinds[0](self.path, overwrite=overwrite)

    def load(self, state, **options):
        dcp.load(state, storage_reader=self.kinds[1](self.path), **self.always, **options)
        return state

    def beside(self, name):
        return Pair(self.kinds, f"{self.path}-{name}", **self.always)


@contextlib.contextmanager
def failing(what):
    """Says what failed. CheckpointException is not an Exception, so it would end the run of all tests."""
    try:
        yield
    except (Exception, CheckpointException) as e:
        raise AssertionError(f"{what}: {type(e).__name__}: {e}") from e


def local(value):
    return value.to_local() if isinstance(value, DTensor) else value


def same(a, b):
    a, b = local(a), local(b)
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, io.BytesIO):
        return a.getvalue() == b.getvalue()
    return len(a) == len(b) and all(map(same, a, b)) if isinstance(a, (list, tuple)) else type(a) is type(b) and a == b


def emptied(state):
    """The same structure, with other values."""
    if isinstance(state, dict):
        return {key: emptied(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(map(emptied, state))
    return torch.full_like(state, 0) if isinstance(state, torch.Tensor) else None


def check(pair, state, **options):
    """Saves and loads, and compares what this rank holds."""
    pair.save(state, **{name: value for name, value in options.items() if name != "load"})
    got = pair.load(emptied(state), **options.get("load", {}))
    assert same(got, state), (got, state)


# ---- one process ----


def nested(k):
    return {"stream": io.BytesIO(bytes(range(k, 90))), "list of streams": [io.BytesIO(b""), {"in a dict": io.BytesIO(b"\0" * k)}],
            "flat": torch.arange(6.) + k, "nested": {"list": [torch.full((2, k), k), {"deep": torch.tensor(k)}], "a.b": torch.ones(k, 0)},
            "": torch.tensor([k]), "step": k, "text": "ü" * k, "none": None, "tuple": (k, 2.5, "x"), "set": {k, 1}, "complex": 1j * k,
            "bytes": b"\0\xff" * k, "half": torch.arange(5, dtype=torch.bfloat16) * k, "bool": torch.arange(4) % (k + 1) == 0,
            "strided": torch.arange(12.).reshape(3, 4).t() * k, "slice": (torch.arange(100.) * k)[10:13], "size": torch.Size([k, 2]),
            "dtype": torch.float16, "empty": {}, "emptylist": []}


class Counter(Stateful):
    def __init__(self, k):
        self.k, self.weights = k, torch.full((3,), float(k))

    def state_dict(self):
        return {"k": self.k, "weights": self.weights}

    def load_state_dict(self, state):
        self.k, self.weights = state["k"], state["weights"]


class App(Stateful):
    """A model and its optimizer as one object."""

    def __init__(self, seed):
        self.model, self.optimizer = trained(seed, lambda model: model)

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


class Renames(dcp.DefaultSavePlanner):
    """Saves under other names, and twice the values."""

    def set_up_planner(self, state_dict, storage_meta=None, is_coordinator=False):
        super().set_up_planner({f"saved.{key}": value for key, value in state_dict.items()}, storage_meta, is_coordinator)

    def transform_object(self, item, value):
        return value * 2 if isinstance(value, torch.Tensor) else super().transform_object(item, value)


class RenamesBack(dcp.DefaultLoadPlanner):
    def set_up_planner(self, state_dict, metadata=None, is_coordinator=False):
        self.given = state_dict
        super().set_up_planner({f"saved.{key}": value for key, value in state_dict.items()}, metadata, is_coordinator)

    def load_bytes(self, item, value):
        self.given[item.dest_index.fqn.removeprefix("saved.")] = torch.load(value, weights_only=False)


class Halves(dcp.DefaultLoadPlanner):
    """Reads into memory of its own, and copies when all is there."""

    def resolve_tensor(self, item):
        self.target = super().resolve_tensor(item)
        self.staged = {**getattr(self, "staged", {}), id(self.target): torch.empty_like(self.target)}
        return self.staged[id(self.target)]

    def commit_tensor(self, item, tensor):
        super().resolve_tensor(item).copy_(tensor / 2)


def nested_state_dicts(pair):
    check(pair, nested(3))


def planners_that_do_not_flatten(pair):
    plain = {"flatten_state_dict": False, "flatten_sharded_tensors": False}
    state = {"w": torch.arange(4.), "tree": {"deep": [torch.ones(2), 5]}}
    pair.save(state, planner=dcp.DefaultSavePlanner(**plain))
    got = pair.load({"w": torch.zeros(4), "tree": None}, planner=dcp.DefaultLoadPlanner(**plain))
    assert same(got, state), got


def planners_of_the_user(pair):
    state = {"w": torch.arange(4.), "v": torch.full((2, 3), 7.), "step": 9}
    pair.save(state, planner=Renames())
    got = pair.load({"w": torch.zeros(4), "v": torch.zeros(2, 3), "step": 0}, planner=RenamesBack())
    assert same(got, {"w": state["w"] * 2, "v": state["v"] * 2, "step": 9}), got
    got = pair.load({"saved.w": torch.zeros(4)}, planner=Halves())
    assert same(got, {"saved.w": state["w"]}), got


def partial_loads(pair):
    pair.save({"w": torch.arange(4.), "v": torch.ones(2)})
    wanted = lambda: {"w": torch.zeros(4), "new": torch.full((2,), 5.), "count": 3}
    got = pair.load(wanted(), planner=dcp.DefaultLoadPlanner(allow_partial_load=True))
    assert same(got, {**wanted(), "w": torch.arange(4.)}), got
    for state, said in ((wanted(), "Missing key"), ({"w": torch.zeros(5)}, "w")):
        try:
            pair.load(state)
        except CheckpointException as e:
            assert said in str(e), e
            continue
        raise AssertionError(f"{said}: was loaded")


def objects_with_a_state(pair):
    state = {"counter": Counter(4), "app": App(1), "plain": torch.ones(1)}
    pair.save(state)
    other = {"counter": Counter(5), "app": App(2), "plain": torch.zeros(1)}
    pair.load(other)
    assert other["counter"].k == 4 and torch.equal(other["counter"].weights, torch.full((3,), 4.)) and torch.equal(other["plain"], torch.ones(1))
    assert same(other["app"].state_dict(), state["app"].state_dict())


def plan_caching(pair):
    for k in range(3):
        path = pair.beside(f"cached{k}")
        path.save({"w": torch.arange(4.) + k, "step": k}, planner=dcp.DefaultSavePlanner(enable_plan_caching=True))
        assert same(path.load({"w": torch.zeros(4), "step": None}), {"w": torch.arange(4.) + k, "step": k})


def conversions_of_format_utils(pair):
    state = {"w": torch.arange(4.), "tree": {"list": [torch.ones(2), 5], "lr": 0.5}}
    pair.save(state)
    file = f"{pair.path}.pt"
    dcp_to_torch_save(pair.path, file)
    assert same(torch.load(file), state)
    torch_save_to_dcp(file, f"{pair.path}-again")
    assert same(pair.beside("again").load(emptied(state)), state)


def saves_over_an_older_checkpoint(pair):
    """Of what only the older one has, nothing is left."""
    pair.save({"w": torch.arange(4.), "older": torch.ones(2), "step": 1})
    pair.save({"w": torch.arange(6.) * 2, "newer": [torch.full((3,), 3.)]}, overwrite=True)
    assert same(pair.load({"w": torch.zeros(6), "newer": [torch.zeros(3)]}), {"w": torch.arange(6.) * 2, "newer": [torch.full((3,), 3.)]})
    found = {}
    dcp.state_dict_loader._load_state_dict(found, pair.kinds[1](pair.path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert found.keys() == {"w", "newer"}, found


def loads_by_keys(pair):
    """Without a state dict to fill; a key stands for all that is below it."""
    state = {"model": {"a": torch.arange(3.), "b": {"c": torch.ones(2, 2)}}, "optim": {"lr": 0.5, "steps": [torch.tensor(3), 4]}, "epoch": 7}
    pair.save(state)
    for keys, want in ((None, state), ({"model"}, {"model": state["model"]}), ({"optim.steps", "epoch"}, {"optim": {"steps": state["optim"]["steps"]}, "epoch": 7})):
        got = _load_state_dict_from_keys(keys, storage_reader=pair.kinds[1](pair.path))
        assert same(got, want), (keys, got)


def goes_where_the_call_says(pair):
    """checkpoint_id of save and load counts, not the path that the writer and the reader were made for."""
    other = pair.beside("other")
    pair.save({"w": torch.arange(3.)}, checkpoint_id=other.path)
    assert not os.path.exists(os.path.join(pair.path, ".metadata"))
    assert same(pair.load({"w": torch.zeros(3)}, checkpoint_id=other.path), {"w": torch.arange(3.)})


def fine_tuning(pair):
    """A head of another size is trained on a frozen body from the checkpoint, and saved and continued without the body's gradients."""
    model, optimizer = trained(1, lambda model: model)
    pair.save({"model": get_model_state_dict(model)})
    tuned = torch.nn.Sequential(*list(model_of(2))[:3], torch.nn.Linear(3, 4))
    state = pair.load({"model": get_model_state_dict(tuned, submodules={tuned[0], tuned[2]}, options=StateDictOptions(keep_submodule_prefixes=True))})
    set_model_state_dict(tuned, state["model"], options=StateDictOptions(strict=False))
    assert torch.equal(tuned[0].weight, model[0].weight) and tuned[3].weight.shape == (4, 3)
    for parameter in (*tuned[0].parameters(), *tuned[2].parameters()):
        parameter.requires_grad = False
    optimizer = torch.optim.AdamW(tuned[3].parameters(), lr=0.1)
    tuned(torch.ones(2, 7)).sum().backward()
    optimizer.step()
    options = StateDictOptions(ignore_frozen_params=True)
    saved = dict(zip(("model", "optim"), get_state_dict(tuned, optimizer, options=options)))
    again = pair.beside("tuned")
    again.save(saved)
    assert saved["model"].keys() == {"3.weight", "3.bias"} and same(again.load(emptied(saved)), saved)


def saved_again_in_other_shapes(pair):
    """What is loaded has another dtype and other strides than what was saved; PyTorch converts."""
    pair.save({"w": torch.arange(12.).reshape(3, 4), "n": torch.arange(3)})
    got = pair.load({"w": torch.zeros(4, 3, dtype=torch.float64).t(), "n": torch.zeros(3, dtype=torch.int8)})
    assert got["w"].tolist() == torch.arange(12.).reshape(3, 4).tolist() and got["n"].tolist() == [0, 1, 2]


ALONE = [saves_over_an_older_checkpoint, loads_by_keys, goes_where_the_call_says, fine_tuning, nested_state_dicts, planners_that_do_not_flatten, planners_of_the_user, partial_loads, objects_with_a_state, plan_caching,
         conversions_of_format_utils, saved_again_in_other_shapes]


def test_what_one_process_saves_loads_in_every_pairing(t):
    for name, kinds in PAIRS.items():
        for scenario in ALONE:
            with failing(f"{scenario.__name__}, {name}"):
                scenario(Pair(kinds, t.at(f"{scenario.__name__}-{name}"), no_dist=True))


# ---- ranks ----


def model_of(seed):
    """Sizes are not multiples of the number of ranks, and the last rank has no row of some."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3, bias=False), torch.nn.Linear(3, 6))


def rows_for_all_ranks(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(7, 8), torch.nn.ReLU(), torch.nn.Linear(8, 7))


def trained(seed, sharded, model_of=model_of):
    """A model after one step of its optimizer."""
    model = sharded(model_of(seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * seed)
    model(torch.ones(2, 7)).sum().backward()
    optimizer.step()
    return model, optimizer


def fsdp2(model):
    mesh = init_device_mesh("cpu", (WORLD,))
    for layer in (model[0], model[3], model):
        fully_shard(layer, mesh=mesh)
    return model


def hsdp(model):
    return fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def tensor_parallel(model):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {"3": ColwiseParallel(output_layouts=Replicate())})
    return fully_shard(model, mesh=mesh["data"])


def fsdp1(model, use_orig_params=True):
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=use_orig_params)


def fsdp1_flat(model):
    return fsdp1(model, use_orig_params=False)


def ddp(model):
    return torch.nn.parallel.DistributedDataParallel(model)


def state_of(model, optimizer, **options):
    return dict(zip(("model", "optim"), get_state_dict(model, optimizer, options=StateDictOptions(**options))))


def training_state(saved, loaded, model_of=model_of, **planner):
    def scenario(pair):
        model, optimizer = trained(1, saved, model_of)
        pair.save(state_of(model, optimizer), planner=dcp.DefaultSavePlanner(**planner))
        other, its_optimizer = trained(2, loaded, model_of)
        state = pair.load(state_of(other, its_optimizer))
        set_state_dict(other, its_optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        want, got = state_of(model, optimizer, full_state_dict=True), state_of(other, its_optimizer, full_state_dict=True)
        assert same(want, got), f"{saved.__name__} to {loaded.__name__}"
    scenario.__name__ = f"{saved.__name__} to {loaded.__name__}"
    return scenario


def fsdp1_optimizers(pair):
    """SHARDED_STATE_DICT of FSDP itself. Every rank has rows of every parameter, because PyTorch's planner cannot load param_groups on one
    that has none (PyTorch 2.13)."""
    for wrap in (fsdp1, fsdp1_flat):
        fsdp1_optimizer(pair.beside(wrap.__name__), wrap)


def fsdp1_optimizer(pair, wrap):
    FSDP, states = FullyShardedDataParallel, []

    def sharded(seed):
        model, optimizer = trained(seed, wrap, rows_for_all_ranks)
        FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
        return model, optimizer, {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer)}

    *saved, state = sharded(1)
    pair.save(state)
    *loaded, state = sharded(2)
    pair.load(state)
    loaded[0].load_state_dict(state["model"])
    loaded[1].load_state_dict(FSDP.optim_state_dict_to_load(loaded[0], loaded[1], state["optim"]))
    for model, optimizer in (saved, loaded):
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            states.append((model.state_dict(), FSDP.optim_state_dict(model, optimizer)))
    assert states[0][0].keys() == states[1][0].keys() and same(list(states[0]), list(states[1])), states


def fsdp1_models(pair):
    """ShardedTensors."""
    states = []
    for seed in (1, 2):
        model = fsdp1(model_of(seed))
        FullyShardedDataParallel.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
        states.append(model.state_dict())
    local = lambda state: {name: [shard.tensor for shard in value.local_shards()] for name, value in state.items()}
    pair.save(states[0])
    assert dist.get_rank() or not same(*map(local, states))  # the last rank has no elements
    pair.load(states[1])
    assert same(*map(local, states))


def uneven_shards(pair):
    """Rows that do not divide, ranks without any, two mesh dimensions on one tensor dimension, replicas, and what only one rank has."""
    mesh, grid = init_device_mesh("cpu", (WORLD,)), init_device_mesh("cpu", (2, 2))
    rank = dist.get_rank()

    def state(k):
        whole = lambda *shape: torch.arange(float(torch.Size(shape).numel())).reshape(shape) * k
        return {"rows": distribute_tensor(whole(5, 3), mesh, [Shard(0)]), "few": distribute_tensor(whole(2, 2), mesh, [Shard(0)]),
                "columns": distribute_tensor(whole(2, 7), mesh, [Shard(1)]), "both": distribute_tensor(whole(7, 5), grid, [Shard(0), Shard(1)]),
                "twice": distribute_tensor(whole(9, 2), grid, [Shard(0), Shard(0)]), "replica": distribute_tensor(whole(3), mesh, [Replicate()]),
                "half": distribute_tensor(whole(5, 2), grid, [Replicate(), Shard(0)]), "everywhere": whole(4), "step": k,
                f"only{rank}": whole(rank + 1) + rank, "none": distribute_tensor(whole(0, 3), mesh, [Shard(0)])}
    pair.save(state(2))
    got = pair.load(state(0))
    assert same(got, state(2)), (rank, got)
    other = {"rows": distribute_tensor(torch.zeros(5, 3), mesh, [Shard(1)]), "both": torch.zeros(7, 5), "twice": distribute_tensor(torch.zeros(9, 2), mesh, [Shard(0)])}
    pair.load(other)
    full = {name: value.full_tensor() for name, value in state(2).items() if isinstance(value, DTensor)}
    assert same({name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in other.items()}, {name: full[name] for name in other})


def groups_of_ranks(pair):
    """Ranks 1 and 3 save and load on their own."""
    group = dist.new_group([1, 3])
    if dist.get_rank() in (1, 3):
        state = {"w": torch.arange(4.), f"mine{dist.get_rank()}": torch.full((2,), float(dist.get_rank()))}
        pair.save(state, process_group=group)
        assert same(pair.load(emptied(state), process_group=group), state)
    dist.barrier()


def saved_in_the_background(pair):
    mesh = init_device_mesh("cpu", (WORLD,))
    state = {"w": distribute_tensor(torch.arange(10.), mesh, [Shard(0)]), "step": 1, "list": [torch.ones(2)]}
    want = {"w": distribute_tensor(torch.arange(10.), mesh, [Shard(0)]), "step": 1, "list": [torch.ones(2)]}
    future = dcp.async_save(state, storage_writer=pair.kinds[0](pair.path))
    state["w"].to_local().zero_()  # the save has its own copy
    state["list"][0].zero_()
    future.result()
    dist.barrier()
    assert same(pair.load(emptied(want) | {"w": distribute_tensor(torch.zeros(10), mesh, [Shard(0)])}), want)


def saved_in_another_process(pair):
    mesh = init_device_mesh("cpu", (WORLD,))
    state = {"w": distribute_tensor(torch.arange(10.), mesh, [Shard(0)]), "step": 1, "list": [torch.full((2,), 2.)], "stream": io.BytesIO(b"kept")}
    want = {**state, "w": distribute_tensor(torch.arange(10.), mesh, [Shard(0)]), "list": [torch.full((2,), 2.)]}
    future = dcp.async_save(state, storage_writer=pair.writer(), async_checkpointer_type=AsyncCheckpointerType.PROCESS)
    state["w"].to_local().zero_()  # the save has its own copy
    state["list"][0].zero_()
    future.result()
    dist.barrier()
    got = pair.load(emptied(want) | {"w": distribute_tensor(torch.zeros(10), mesh, [Shard(0)])})
    assert same(got, want), got


def every_rank_on_its_own(pair):
    """Values, shapes and dtypes differ under one name, and each rank gets back its own, after a second save, too."""
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (WORLD,))

    def state(k):
        return {"w": torch.arange(6.).reshape(2, 3) + 100 * rank + k, "shape": torch.full((rank + 1,), float(k)),
                "dtype": torch.arange(4).to((torch.float64, torch.int64, torch.bfloat16, torch.bool)[rank]), "equal": torch.full((3,), 7.),
                f"only{rank}": torch.full((2,), float(rank + k)), "object": {"rank": rank, "step": k}, "stream": io.BytesIO(bytes([rank, k])),
                "rows": distribute_tensor(torch.arange(14.).reshape(7, 2) * k, mesh, [Shard(0)])}
    for k in range(1, 3):
        pair.save(state(k), overwrite=k > 1, use_collectives=False)
        assert same(pair.load({**emptied(state(0)), "rows": distribute_tensor(torch.zeros(7, 2), mesh, [Shard(0)])}), state(k)), rank
    dist.barrier()
    if rank == 0:
        assert sorted(name for name in os.listdir(pair.path) if not name.endswith(".distcp")) == [f"__{r}.metadata" for r in range(WORLD)]


def keys_in_another_order_on_each_rank(pair):
    mesh = init_device_mesh("cpu", (WORLD,))
    items = [(f"t{n}", distribute_tensor(torch.arange(9.) + n, mesh, [Shard(0)])) for n in range(WORLD)] + [("last", torch.ones(2))]
    turn = dist.get_rank()
    state = dict(items[turn:] + items[:turn])
    pair.save(state)
    empty = lambda value: distribute_tensor(torch.zeros(9), mesh, [Shard(0)]) if isinstance(value, DTensor) else torch.zeros_like(value)
    assert same(pair.load({name: empty(value) for name, value in reversed(state.items())}), state)


def fewer_ranks_load(pair):
    """What four ranks saved, two load; then one of them as whole tensors, and FSDP1's shards, too."""
    mesh, group = init_device_mesh("cpu", (WORLD,)), dist.new_group([0, 2])
    model = fsdp1(model_of(1))
    FullyShardedDataParallel.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    pair.save({"rows": distribute_tensor(torch.arange(22.).reshape(11, 2), mesh, [Shard(0)]), "columns": distribute_tensor(torch.arange(22.).reshape(2, 11), mesh, [Shard(1)]),
               "model": model.state_dict()})
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        whole = model.state_dict()
    if dist.get_rank() in (0, 2):
        state = {"rows": torch.zeros(11, 2), "columns": torch.zeros(2, 11), "model": {name: torch.zeros_like(value) for name, value in whole.items()}}
        pair.load(state, process_group=group)
        assert same(state, {"rows": torch.arange(22.).reshape(11, 2), "columns": torch.arange(22.).reshape(2, 11), "model": dict(whole)})
    dist.barrier()


class Fails:
    """Fails at one stage, on one rank."""

    def at(self, stage, rank=1):
        self.stage, self.rank = stage, rank
        return self

    def stop(self, stage):
        if stage == self.stage and dist.get_rank() == self.rank:
            raise ValueError(f"planned at {stage}")


class FailsToSave(Fails, dcp.DefaultSavePlanner):
    def create_local_plan(self):
        self.stop("local plan")
        return super().create_local_plan()

    def create_global_plan(self, plans):
        self.stop("global plan")
        return super().create_global_plan(plans)

    def finish_plan(self, plan):
        self.stop("finished plan")
        return super().finish_plan(plan)

    def resolve_data(self, item):
        self.stop("data")
        return super().resolve_data(item)


class FailsToLoad(Fails, dcp.DefaultLoadPlanner):
    def create_local_plan(self):
        self.stop("local plan")
        return super().create_local_plan()

    def create_global_plan(self, plans):
        self.stop("global plan")
        return super().create_global_plan(plans)

    def resolve_tensor(self, item):
        self.stop("data")
        return super().resolve_tensor(item)


def failures_of_one_rank(pair):
    """Every rank learns of them, and no checkpoint appears; then the same path can be saved to."""
    state = {"w": torch.arange(4.), f"mine{dist.get_rank()}": torch.ones(3)}
    for stage in ("local plan", "global plan", "finished plan", "data"):
        expect_failure(stage, lambda: pair.save(state, planner=FailsToSave().at(stage, 0 if stage == "global plan" else 1)))
        assert not os.path.exists(os.path.join(pair.path, ".metadata")), stage
    dist.barrier()
    pair.save(state)
    for stage in ("local plan", "global plan", "data"):
        expect_failure(stage, lambda: pair.load(emptied(state), planner=FailsToLoad().at(stage, 0 if stage == "global plan" else 1)))
    assert same(pair.load(emptied(state)), state)


def expect_failure(stage, call):
    try:
        call()
    except CheckpointException as e:
        assert list(e.failures) == [0 if stage == "global plan" else 1] and f"planned at {stage}" in str(e), e
        return
    raise AssertionError(f"{stage}: nothing was raised")


def caching_with_ranks(pair):
    mesh = init_device_mesh("cpu", (WORLD,))
    for k in range(3):
        state = {"w": distribute_tensor(torch.arange(10.) * k, mesh, [Shard(0)]), "step": k}
        path = pair.beside(f"cached{k}")
        path.save(state, planner=dcp.DefaultSavePlanner(enable_plan_caching=True, dedup_save_to_lowest_rank=k == 1))
        assert same(path.load({"w": distribute_tensor(torch.zeros(10), mesh, [Shard(0)]), "step": None}), state)


RANKS = [training_state(fsdp2, hsdp), training_state(hsdp, tensor_parallel), training_state(tensor_parallel, fsdp2),
         training_state(ddp, fsdp2, dedup_save_to_lowest_rank=True), training_state(fsdp1_flat, fsdp1, rows_for_all_ranks),
         training_state(fsdp1, fsdp1_flat, rows_for_all_ranks), fsdp1_optimizers, fsdp1_models, uneven_shards, every_rank_on_its_own,
         groups_of_ranks, fewer_ranks_load, keys_in_another_order_on_each_rank, saved_in_the_background, saved_in_another_process,
         failures_of_one_rank, caching_with_ranks]


def every_pairing(rank, world, directory):
    torch.set_num_threads(1)
    place = [tempfile.mkdtemp(dir=directory) if rank == 0 else None]  # ranks that hang are started once more
    dist.broadcast_object_list(place)
    directory = place[0]
    for name, kinds in PAIRS.items():
        for scenario in RANKS:
            with failing(f"{scenario.__name__}, {name}, rank {rank}"):
                scenario(Pair(kinds, os.path.join(directory, f"{scenario.__name__}-{name}".replace(" ", "_"))))


def test_what_ranks_save_loads_in_every_pairing(t):
    run_ranks(every_pairing, WORLD, t.scratch)
