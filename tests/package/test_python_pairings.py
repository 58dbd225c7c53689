"""What PyTorch expects of storage writers and readers, in all four pairings of Tessera's and PyTorch's own: sharded models, other meshes and numbers of
ranks, planners, copies, objects, errors."""
import os

import torch
import torch.distributed as dist
from test_python import is_sound, tessera
from test_python_torch import fails
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.checkpoint.state_dict_saver import _save_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch_names import DTensor, HuggingFaceStorageReader, HuggingFaceStorageWriter, Replicate, Shard, StorageMeta, dcp, distribute_tensor, fully_shard, has, needs
from torch_ranks import run_ranks

WRITERS = {"ours": tessera.torch.StorageWriter, "theirs": FileSystemWriter}
READERS = {"ours": tessera.torch.StorageReader, "theirs": FileSystemReader}
PAIRINGS = [(writer, reader) for writer in WRITERS for reader in READERS]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(6, 10), torch.nn.LayerNorm(10), torch.nn.Linear(10, 3)  # 3 rows: some ranks have none

    def forward(self, x):
        return self.down(self.norm(self.up(x)).relu())


def trained(mesh, kind, seed, steps=1):
    """A model that is parallel in this way, with the state of an optimizer after some steps. Its gradients follow from its parameters: fully_shard of
    PyTorch 2.3 runs on GPUs only."""
    torch.manual_seed(seed)
    model = Net()
    if kind == "tp":
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(output_layouts=Replicate()), "down": RowwiseParallel(input_layouts=Replicate())})
    elif kind is not None:
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 + seed)
    for step in range(steps):
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = parameter.detach() * (number + step + 1) + 0.01
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def meshes(world):
    """The kinds of parallelism that this number of ranks allows: FSDP2, HSDP, tensor parallelism. With PyTorch 2.3 an HSDP model that was never
    saved has other parameters than the same model under FSDP2."""
    found = {"fsdp": init_device_mesh("cpu", (world,), mesh_dim_names=("dp",)), "tp": init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))}
    return {**found, "hsdp": init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))} if world > 2 and has(StorageMeta) else found


def whole(value):
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return value.full_tensor() if isinstance(value, DTensor) else value


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b and type(a) is type(b)


def complete(model, optimizer):
    return whole(dict(zip(("model", "optimizer"), get_state_dict(model, optimizer))))


def saves_models(rank, world, path):
    for kind, mesh in meshes(world).items():
        model, optimizer = trained(mesh, kind, 1, steps=2)
        want = complete(model, optimizer)
        if rank == 0:
            torch.save(want, f"{path}/{kind}.pt")
        for writer, made in WRITERS.items():
            dcp.save(dict(zip(("model", "optimizer"), get_state_dict(model, optimizer))), storage_writer=made(f"{path}/{kind}-{writer}", thread_count=2))


def loads_models(rank, world, path):
    """Each model as it was saved on other ranks, into one that is parallel in each way that is possible here."""
    for saved in ("fsdp", "tp", "hsdp")[:3 if has(StorageMeta) else 2]:
        want = torch.load(f"{path}/{saved}.pt")
        for number, (writer, reader) in enumerate(PAIRINGS):
            kinds = meshes(world) if dist.is_initialized() else {None: None}
            for kind, mesh in list(kinds.items())[number % 2:] or kinds.items():
                model, optimizer = trained(mesh, kind, 2)
                loaded = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
                dcp.load(loaded, storage_reader=READERS[reader](f"{path}/{saved}-{writer}"), no_dist=not dist.is_initialized())
                set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
                assert same(complete(model, optimizer), want), (saved, kind, writer, reader, rank)


def test_models_of_all_kinds_load_on_other_meshes_and_numbers_of_ranks(t):
    os.mkdir(t.at("c"))
    run_ranks(saves_models, 4, t.at("c"))
    run_ranks(loads_models, 4, t.at("c"))
    run_ranks(loads_models, 2, t.at("c"))
    loads_models(0, 1, t.at("c"))
    for kind in ("fsdp", "tp", "hsdp")[:3 if has(StorageMeta) else 2]:
        assert is_sound(t.at(f"c/{kind}-ours")) and tessera.diff(t.at(f"c/{kind}-ours"), t.at(f"c/{kind}-theirs"), values=True)["same"]


PLACEMENTS = ([Shard(0), Replicate()], [Replicate(), Shard(1)], [Shard(1), Shard(0)], [Shard(0), Shard(0)], [Replicate(), Replicate()])


def reshards(rank, world, path):
    mesh, flat = init_device_mesh("cpu", (2, world // 2)), init_device_mesh("cpu", (world,))
    tensor = torch.arange(77.).reshape(7, 11)
    for n, saved in enumerate(PLACEMENTS):
        for writer, made in WRITERS.items():
            dcp.save({"w": distribute_tensor(tensor + n, mesh, saved)}, storage_writer=made(f"{path}/{n}-{writer}"))
        for (writer, reader), (on, wanted) in zip(PAIRINGS, ((mesh, PLACEMENTS[(n + 1) % 5]), (mesh, PLACEMENTS[(n + 2) % 5]), (flat, [Shard(1)]), (flat, [Shard(0)]))):
            state = {"w": distribute_tensor(torch.zeros(7, 11), on, wanted)}
            dcp.load(state, storage_reader=READERS[reader](f"{path}/{n}-{writer}"))
            assert torch.equal(state["w"].full_tensor(), tensor + n), (saved, wanted, writer, reader)
            plain = {"w": torch.zeros(7, 11)}
            dcp.load(plain, storage_reader=READERS[reader](f"{path}/{n}-{writer}"))
            assert torch.equal(plain["w"], tensor + n)


def test_dtensors_load_with_any_other_placements(t):
    run_ranks(reshards, 4, t.at("c"))


def keeps_copies(rank, world, path):
    """What all ranks have is saved once: by any of them, or by the lowest."""
    state = {f"copy{n}": torch.full((1000,), float(n)) for n in range(6)}
    for writer, made in WRITERS.items():
        for lowest in (False, True):
            to = f"{path}/{writer}{lowest}"
            dcp.save({**state, f"own{rank}": torch.full((3,), float(rank))}, storage_writer=made(to), planner=dcp.DefaultSavePlanner(dedup_save_to_lowest_rank=lowest))
            stored = FileSystemReader(to).read_metadata().storage_data
            files = {index.fqn: info.relative_path for index, info in stored.items()}
            assert len(stored) == 6 + world and len(set(files.values())) == world
            copies = {files[name].split("_")[2] for name in state}
            assert copies == ({"0"} if lowest else copies) and (lowest or len(copies) > 1), (writer, lowest, copies)
            for made_reader in READERS.values():
                loaded = {name: torch.zeros(1000) for name in state} | {f"own{(rank + 1) % world}": torch.zeros(3)}
                dcp.load(loaded, storage_reader=made_reader(to))
                assert same(loaded, {**state, f"own{(rank + 1) % world}": torch.full((3,), float((rank + 1) % world))})


def saves_staged(rank, world, path):
    mesh = init_device_mesh("cpu", (world,))
    for writer, reader in PAIRINGS:
        state = {"w": distribute_tensor(torch.arange(12.), mesh, [Shard(0)]), f"own{rank}": torch.full((2,), float(rank)), "of": {"step": 3, "list": [torch.ones(2), "x"]}}
        made = WRITERS[writer](f"{path}/staged-{writer}-{reader}", cache_staged_state_dict=writer == "ours")  # PyTorch's caches only with a device
        future = dcp.async_save(state, storage_writer=made)
        state["w"].to_local().zero_()
        state[f"own{rank}"].zero_()
        state["of"]["list"][0].zero_()
        getattr(future, "upload_completion", future).result()
        loaded = {"w": distribute_tensor(torch.zeros(12), mesh, [Shard(0)]), f"own{rank}": torch.zeros(2), "of": {"step": 0, "list": [torch.zeros(2), ""]}}
        dcp.load(loaded, storage_reader=READERS[reader](f"{path}/staged-{writer}-{reader}"))
        assert same(whole(loaded), {"w": torch.arange(12.), f"own{rank}": torch.full((2,), float(rank)), "of": {"step": 3, "list": [torch.ones(2), "x"]}}), (writer, reader)


def several(rank, world, path):
    keeps_copies(rank, world, path)
    saves_staged(rank, world, path)
    for writer, reader in PAIRINGS:  # one rank holds everything, and the model's full state dict
        model, _ = trained(meshes(world)["fsdp"], "fsdp", 3)
        full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        dcp.save(full if rank == 0 else {}, storage_writer=WRITERS[writer](f"{path}/full-{writer}-{reader}"))
        loaded = get_model_state_dict(model)
        before = whole(loaded)
        for value in loaded.values():
            value.to_local().zero_()
        dcp.load(loaded, storage_reader=READERS[reader](f"{path}/full-{writer}-{reader}"))
        assert same(whole(loaded), before)


def test_copies_are_saved_once_and_staged_state_is_kept(t):
    needs(dcp.DefaultSavePlanner, "dedup_save_to_lowest_rank")
    run_ranks(several, 2, t.at("c"))


# ---- any rank coordinates ----


def safetensors_writer(path, **options):
    return tessera.torch.StorageWriter(path, form="safetensors", **options)


FORMS = [(WRITERS[writer], READERS[reader]) for writer, reader in PAIRINGS] + [
    (writer, reader) for writer in (safetensors_writer, HuggingFaceStorageWriter) for reader in (READERS["ours"], HuggingFaceStorageReader) if has(writer) and has(reader)]


class FailsOn(dcp.DefaultSavePlanner):
    def __init__(self, fails):
        super().__init__()
        self.fails = fails

    def resolve_data(self, item):
        if self.fails:
            raise ValueError("planned")
        return super().resolve_data(item)


def coordinates(rank, world, path):
    """The last rank coordinates saves, and the first one after it loads. Ranks have their keys in different orders, and one has no elements."""
    mesh = init_device_mesh("cpu", (world,))
    full = {"rows": torch.arange(30.).reshape(6, 5), "few": torch.arange(2.), "all": torch.arange(7)}

    def state(k):
        made = {name: distribute_tensor(value * k, mesh, [Shard(0)]) if name != "all" else value * k for name, value in full.items()}
        return dict(sorted(made.items(), reverse=rank % 2 == 1))

    def loads(to, reader, k):
        loaded = state(0)
        _load_state_dict(loaded, reader(to), coordinator_rank=1)
        assert same(whole(dict(sorted(loaded.items()))), {name: value * k for name, value in full.items()}), (to, reader, k)
    for n, (writer, reader) in enumerate(FORMS):
        to = f"{path}/{n}"
        save = lambda k, overwrite, planner=None: _save_state_dict(state(k), writer(to, overwrite=True) if overwrite else writer(to), coordinator_rank=world - 1, planner=planner)
        if writer is HuggingFaceStorageWriter:
            dcp.save(state(2), storage_writer=writer(to, save_distributed=True, enable_consolidation=False))
        else:
            save(2, False)
        loads(to, reader, 2)
        if writer in (WRITERS["ours"], safetensors_writer):
            for bad in (0, world - 1):
                try:
                    save(3, True, FailsOn(rank == bad))
                    raise AssertionError("saved")
                except CheckpointException as e:
                    assert e.failures.keys() == {bad} and "planned" in str(e), e
                loads(to, reader, 2)
            save(4, True)
            loads(to, reader, 4)
            assert not [name for name in os.listdir(to) if name.startswith(".") and name != ".metadata"], os.listdir(to)
        dist.barrier()


def test_any_rank_may_coordinate(t):
    os.mkdir(t.at("c"))
    run_ranks(coordinates, 3, t.at("c"))
    assert sorted(os.listdir(t.at("c"))) == [str(n) for n in range(len(FORMS))], os.listdir(t.at("c"))


# ---- one process ----


def test_nothing_is_saved_and_loaded(t):
    for n, (writer, reader) in enumerate(FORMS[:4]):
        dcp.save({}, storage_writer=writer(t.at(f"{n}")), no_dist=True)
        dcp.load({}, storage_reader=reader(t.at(f"{n}")), no_dist=True)


class RenamesOnSave(dcp.DefaultSavePlanner):
    """Saves under other names, and halves what it saves."""

    def set_up_planner(self, state_dict, *args, **kwargs):
        super().set_up_planner({f"renamed.{name}": value for name, value in state_dict.items()}, *args, **kwargs)

    def resolve_data(self, item):
        return super().resolve_data(item) / 2


class DoublesOnLoad(dcp.DefaultLoadPlanner):
    def commit_tensor(self, item, tensor):
        tensor *= 2


class IntoOtherMemory(dcp.DefaultLoadPlanner):
    """Gives the reader memory of its own, and copies when it is filled."""

    def resolve_tensor(self, item):
        self.real = super().resolve_tensor(item)
        return torch.empty(self.real.shape[::-1]).t() if self.real.dim() == 2 else torch.empty_like(self.real)

    def commit_tensor(self, item, tensor):
        super().resolve_tensor(item).copy_(tensor)


def state_of(k):
    return {"w": torch.arange(12.).reshape(3, 4) * k, "b": torch.arange(5.) + k}


def test_planners_of_users_change_what_is_saved_and_loaded(t):
    for writer, reader in PAIRINGS:
        path = t.at(f"{writer}-{reader}")
        dcp.save(state_of(3), storage_writer=WRITERS[writer](path), planner=RenamesOnSave(), no_dist=True)
        for planner, factor in ((None, 0.5), (DoublesOnLoad(), 1), (IntoOtherMemory(), 0.5)):
            loaded = {f"renamed.{name}": torch.zeros_like(value) for name, value in state_of(0).items()}
            dcp.load(loaded, storage_reader=READERS[reader](path), planner=planner, no_dist=True)
            assert same(loaded, {f"renamed.{name}": value * factor for name, value in state_of(3).items()}), (writer, reader, planner)


def test_flat_nested_partial_and_strict_loads(t):
    nested = {"a": {"w": torch.arange(4.), "l": [torch.ones(2), {"x": 3}]}, "n": None, "t": (1, 2), "f": 2.5, "s": "text", "by": b"\xff", "d": torch.float16}
    blank = {"a": {"w": torch.zeros(4), "l": [torch.zeros(2), {"x": 0}]}, "n": 0, "t": 0, "f": 0.0, "s": "", "by": b"", "d": None}
    for writer, reader in PAIRINGS:
        path, load = t.at(f"{writer}-{reader}"), lambda state, **options: dcp.load(state, storage_reader=READERS[reader](path), no_dist=True, **options)
        dcp.save(nested, storage_writer=WRITERS[writer](path), no_dist=True)
        state = {**blank, "a": {"w": torch.zeros(4), "l": [torch.zeros(2), {"x": 0}]}}
        load(state)
        assert same(state, nested), (writer, reader, state)
        some = {"a": {"w": torch.zeros(4)}, "missing": torch.full((2,), 7.)}
        fails((CheckpointException, RuntimeError), lambda: load(some), "missing")
        if has(dcp.DefaultLoadPlanner, "allow_partial_load"):
            load(some, planner=dcp.DefaultLoadPlanner(allow_partial_load=True))
            assert torch.equal(some["a"]["w"], nested["a"]["w"]) and torch.equal(some["missing"], torch.full((2,), 7.))
        if has(StorageMeta):  # the planner of PyTorch 2.3 does not compare sizes, and fills a part
            fails((CheckpointException, ValueError), lambda: load({"a": {"w": torch.zeros(5)}}), "a.w")
        flat = {"whole": {"w": torch.arange(3.), "k": 1}, "x": torch.ones(2)}
        dcp.save(flat, storage_writer=WRITERS[writer](path + "flat"), planner=dcp.DefaultSavePlanner(flatten_state_dict=False), no_dist=True)
        planner = dcp.DefaultLoadPlanner(flatten_state_dict=False)  # PyTorch puts objects into its own copy of the state dict
        dcp.load({"whole": None, "x": torch.zeros(2)}, storage_reader=READERS[reader](path + "flat"), planner=planner, no_dist=True)
        assert same(planner.state_dict, flat), (writer, reader, planner.state_dict)


class Counted:
    """Is asked for its state, as a model or a data loader is, and gets it back."""

    def __init__(self, count):
        self.count, self.w = count, torch.full((3,), float(count))

    def state_dict(self):
        return {"count": self.count, "w": self.w}

    def load_state_dict(self, state):
        self.count, self.w = state["count"], state["w"]


def test_stateful_objects_get_their_state_back(t):
    for writer, reader in PAIRINGS:
        path = t.at(f"{writer}-{reader}")
        dcp.save({"loader": Counted(5), "net": Net()}, storage_writer=WRITERS[writer](path), no_dist=True)
        counted, net = Counted(0), Net()
        dcp.load({"loader": counted, "net": net}, storage_reader=READERS[reader](path), no_dist=True)
        assert counted.count == 5 and torch.equal(counted.w, torch.full((3,), 5.))
        again = tessera.torch.load(path)
        assert all(torch.equal(again[f"net.{name}"], value) for name, value in net.state_dict().items())
