"""Models that are parallel in several ways at once, and every option with which PyTorch gets and sets their state, in all pairings of Tessera's and
PyTorch's own writers and readers."""
import os

import torch
import torch.distributed as dist
from test_python import is_sound, tessera
from test_python_pairings import PAIRINGS, READERS, WRITERS, Net, same, whole
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch_names import Replicate, dcp, fully_shard, needs
from torch_ranks import run_ranks


def stepped(model, seed):
    """Its optimizer after two steps. Gradients follow from the parameters."""
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.1 + seed, weight_decay=seed / 8)
    for step in range(2):
        for number, parameter in enumerate(p for p in model.parameters() if p.requires_grad):
            parameter.grad = parameter.detach() * (number + step + 1) + 0.01
        optimizer.step()
    return optimizer


def made(mesh, seed, frozen=()):
    """A model on a mesh of some of the dimensions replicate, shard and tp."""
    torch.manual_seed(seed)
    model = Net()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    names = mesh.mesh_dim_names or ()
    if "tp" in names:
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(output_layouts=Replicate()), "down": RowwiseParallel(input_layouts=Replicate())})
    data = tuple(name for name in names if name != "tp")
    if data:
        fully_shard(model, mesh=mesh[data] if len(data) > 1 else mesh[data[0]])
    return model, stepped(model, seed)


def state_of(model, optimizer, options=None):
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer, options=options)))


def set_to(model, optimizer, state, options=None):
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=options)


# ---- data and tensor parallelism ----


def saves_on_three_dimensions(rank, world, path):
    meshes = {"hsdp-tp": init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("replicate", "shard", "tp")), "hsdp": init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard")),
              "fsdp-tp": init_device_mesh("cpu", (4, 2), mesh_dim_names=("shard", "tp"))}
    for n, (kind, mesh) in enumerate(meshes.items()):
        model, optimizer = made(mesh, n + 1)
        want = whole(state_of(model, optimizer))
        for writer, to in WRITERS.items():
            dcp.save(state_of(model, optimizer), storage_writer=to(f"{path}/{kind}-{writer}"))
        other = list(meshes)[(n + 1) % 3]
        for writer, reader in PAIRINGS:
            for on in (kind, other):
                model, optimizer = made(meshes[on], 7)
                state = state_of(model, optimizer)
                dcp.load(state, storage_reader=READERS[reader](f"{path}/{kind}-{writer}"))
                set_to(model, optimizer, state)
                assert same(whole(state_of(model, optimizer)), want), (kind, on, writer, reader, rank)
        filled = state_of(*made(meshes[other], 7))
        tessera.torch.load_into(filled, f"{path}/{kind}-theirs")
        assert same({**whole(filled)["model"], **whole(filled)["optimizer"]["state"]}, {**want["model"], **want["optimizer"]["state"]}), (kind, rank)


def test_hsdp_with_tensor_parallelism_loads_on_other_meshes(t):
    needs(dcp.DefaultSavePlanner, "dedup_save_to_lowest_rank")  # since when fully_shard works with both
    os.mkdir(t.at("c"))
    run_ranks(saves_on_three_dimensions, 8, t.at("c"), start_method="fork")
    for kind in ("hsdp-tp", "hsdp", "fsdp-tp"):
        assert is_sound(t.at(f"c/{kind}-ours")) and tessera.diff(t.at(f"c/{kind}-ours"), t.at(f"c/{kind}-theirs"), values=True)["same"]


# ---- options of get_state_dict and set_state_dict ----

OPTIONS = [{}, {"cpu_offload": True}, {"full_state_dict": True}, {"full_state_dict": True, "cpu_offload": True}, {"ignore_frozen_params": True}, {"strict": False},
           {"flatten_optimizer_state_dict": True}, {"full_state_dict": True, "broadcast_from_rank0": True}, {"full_state_dict": True, "flatten_optimizer_state_dict": True, "cpu_offload": True},
           {"keep_submodule_prefixes": True}]


def gets_and_sets(rank, world, path):
    """full_state_dict with cpu_offload is a state of rank 0 alone: it is compared as it was loaded."""
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
    for n, given in enumerate(OPTIONS):
        frozen = ("up.weight", "down.bias") if "ignore_frozen_params" in given else ()
        options = StateDictOptions(**given)
        model, optimizer = made(mesh, n + 1, frozen)
        want, got = whole(state_of(model, optimizer)), state_of(model, optimizer, options)
        for writer, to in WRITERS.items():
            dcp.save(state_of(model, optimizer, options), storage_writer=to(f"{path}/{n}-{writer}"))
        for writer, reader in PAIRINGS:
            model, optimizer = made(mesh, 7, frozen)
            kept = {name: value.full_tensor().clone() for name, value in model.named_parameters() if name in frozen}
            state = state_of(model, optimizer, options)
            dcp.load(state, storage_reader=READERS[reader](f"{path}/{n}-{writer}"))
            if given.get("full_state_dict") and given.get("cpu_offload"):
                assert same(state, got) and bool(got["model"]) == (rank == 0), (given, writer, reader, rank)
                continue
            set_to(model, optimizer, state, StateDictOptions(**{**given, "strict": False}) if frozen else options)
            found = whole(state_of(model, optimizer))
            expected = {**want, "model": {**want["model"], **kept}}
            assert same(found, expected), (given, writer, reader, rank)


def test_every_option_of_a_state_dict_saves_and_loads(t):
    needs(StateDictOptions, "broadcast_from_rank0", "flatten_optimizer_state_dict")
    os.mkdir(t.at("c"))
    run_ranks(gets_and_sets, 2, t.at("c"), start_method="fork")
    for n in range(len(OPTIONS)):
        assert is_sound(t.at(f"c/{n}-ours")) and tessera.diff(t.at(f"c/{n}-ours"), t.at(f"c/{n}-theirs"), values=True)["same"], OPTIONS[n]


# ---- pipeline stages ----


class Layers(torch.nn.Module):
    """Some of four layers, under the names that they have in the whole model."""

    def __init__(self, numbers):
        super().__init__()
        self.layers = torch.nn.ModuleDict({str(n): torch.nn.Linear(6, 5 + n) for n in numbers})


def stage(numbers, mesh, seed):
    torch.manual_seed(seed)
    model = Layers(numbers)
    fully_shard(model, mesh=mesh)
    return model, stepped(model, 3)  # with equal options: stages that are joined have one group


def saves_stages(rank, world, path):
    """Two stages of two ranks each save as one job, and four stages of one rank and one stage of four ranks load."""
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    mesh, apart, flat = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "shard")), init_device_mesh("cpu", (4, 1), mesh_dim_names=("pp", "shard")), init_device_mesh("cpu", (4,))
    number = mesh.get_local_rank("pp")
    model, optimizer = stage((2 * number, 2 * number + 1), mesh["shard"], 3 + number)
    mine = whole(state_of(model, optimizer, options))
    everything = [None] * world
    dist.all_gather_object(everything, mine)
    want = {kind: {name: value for one in everything for name, value in one[kind].items()} for kind in ("model", "optimizer")}
    for writer, to in WRITERS.items():
        dcp.save(state_of(model, optimizer, options), storage_writer=to(f"{path}/{writer}"))
    for writer, reader in PAIRINGS:
        for numbers, on in (((rank,), apart["shard"]), (range(4), flat), ((2 * number, 2 * number + 1), mesh["shard"])):
            model, optimizer = stage(numbers, on, 9)
            state = state_of(model, optimizer, options)
            dcp.load(state, storage_reader=READERS[reader](f"{path}/{writer}"))
            set_to(model, optimizer, state, options)
            found = whole(state_of(model, optimizer, options))
            assert all(same(found[kind], {name: want[kind][name] for name in found[kind]}) for kind in want), (numbers, writer, reader, rank)


def test_pipeline_stages_load_as_other_stages(t):
    needs(StateDictOptions, "flatten_optimizer_state_dict")
    os.mkdir(t.at("c"))
    run_ranks(saves_stages, 4, t.at("c"), start_method="fork")
    assert is_sound(t.at("c/ours")) and tessera.diff(t.at("c/ours"), t.at("c/theirs"), values=True)["same"]
