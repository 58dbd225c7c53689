"""tessera.torch on several ranks with a gloo group, beside PyTorch's own reader and writer."""
import os
import shutil
import types
import warnings

import torch
import torch.distributed as dist
from harness import SAMPLES
from test_python import is_sound, tessera
from test_python_torch import fails
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType
from torch.distributed.device_mesh import init_device_mesh
from torch_names import DTensor, Partial, Replicate, Shard, StridedShard, ZStandard, dcp, distribute_tensor, needs
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
    for k, options in enumerate(({"thread_count": 2}, {"checksums": False, "single_file_per_rank": False, "overwrite": True}, {"overwrite": True})):
        dcp.save(state_of(rank, k), storage_writer=tessera.torch.StorageWriter(path, **options))
        for reader in (FileSystemReader(path), tessera.torch.StorageReader(path)):
            assert same(loaded(rank, reader), state_of(rank, k)), (rank, k)
        dist.barrier()


def test_a_save_of_several_ranks_loads_in_pytorch(t):
    run_ranks(saves, 3, t.at("step"))
    files = os.listdir(t.at("step"))
    assert len(files) == 4 and sum(name.endswith(".distcp") for name in files) == 3, files
    assert is_sound(t.at("step"))


def fills_fsdp1(rank, world, path):
    """Of three rows the last rank has no shard."""
    model = FSDP(torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3)), device_id=torch.device("cpu"), use_orig_params=True)
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    state = model.state_dict()
    shards = [shard.tensor for value in state.values() for shard in value.local_shards()]
    assert rank < 3 or len(shards) < len(state), "every rank has a shard of every tensor"
    dcp.save(state, checkpoint_id=path)
    for load in (lambda: dcp.load(state, checkpoint_id=path), lambda: tessera.torch.load_into(state, path),
                 lambda: tessera.torch.load_into(state, path, staged=True)):
        before = [shard.clone() for shard in shards]
        for shard in shards:
            shard.zero_()
        load()
        assert all(map(torch.equal, shards, before)), rank


def test_load_into_fills_sharded_tensors_of_which_a_rank_has_none(t):
    run_ranks(fills_fsdp1, 4, t.at("fsdp1"))


def fails_on_one_rank(rank, world, path):
    """The second chunk of the damaged tensor, which only rank 1 reads, has been damaged in a way that only reading finds."""
    mesh = init_device_mesh("cpu", (world,))
    numbers = torch.randint(0, 60, (2, 1 << 19), generator=torch.Generator().manual_seed(6)).float()
    state = lambda k: {"w": distribute_tensor(numbers, mesh, [Shard(0)]).mul_(k)}
    dcp.save(state(2), storage_writer=tessera.torch.StorageWriter(path, _extensions=[ZStandard()]))
    if rank == 1:
        info = next(info for index, info in FileSystemReader(path).read_metadata().storage_data.items() if tuple(index.offset) == (1, 0))
        with open(os.path.join(path, info.relative_path), "r+b") as f:
            f.seek(info.offset + info.length * 2 // 3)
            f.write(b"\xff" * (info.length // 4))
    dist.barrier()
    for staged in (True, False):
        filled = state(7)
        try:
            tessera.torch.load_into(filled, path, staged=staged)
        except tessera.TesseraError as e:
            assert "rank 1" in str(e) and "'w'" in str(e) and ("partly filled" in str(e)) == (not staged), (rank, e)
        else:
            raise AssertionError(f"rank {rank} has no error")
        assert not staged or torch.equal(filled["w"].to_local(), state(7)["w"].to_local()), rank


def test_all_ranks_learn_of_a_state_dict_that_is_partly_filled(t):
    needs(ZStandard)
    run_ranks(fails_on_one_rank, 2, t.at("damaged"))


def fills_strided_shards(rank, world, path):
    """The elements that a rank holds need not be adjacent: views make such DTensors."""
    mesh = init_device_mesh("cpu", (2, world // 2))
    whole = torch.arange(720.).reshape(24, 30)
    if rank == 0:
        dcp.save({"w": whole}, storage_writer=FileSystemWriter(path), no_dist=True)
    dist.barrier()
    held = []
    for placements in ([Replicate(), StridedShard(0, split_factor=3)], [Shard(0), StridedShard(0, split_factor=2)], [StridedShard(1, split_factor=5), Shard(0)],
                       [StridedShard(0, split_factor=2), StridedShard(1, split_factor=3)], [StridedShard(0, split_factor=2), Shard(0)]):
        tensor = distribute_tensor(whole.clone(), mesh, placements)
        want = tensor.to_local().clone()
        for staged in (False, True):
            tensor.to_local().zero_()
            tessera.torch.load_into({"w": tensor}, path, staged=staged)
            assert torch.equal(tensor.to_local(), want), (rank, placements, staged)
        rows = want[:, 0].div(30, rounding_mode="floor").diff()
        held.append(len(rows) and bool((rows > 1).any()))
    assert any(held) and not held[-1], held  # the last is what fully_shard makes of a tensor-parallel model
    short = DTensor.from_local(torch.zeros(5, 30), mesh, [Replicate(), Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride())
    fails(tessera.TesseraError, lambda: tessera.torch.load_into({"w": short}, path), "[5, 30] elements on this rank")
    partial = DTensor.from_local(torch.zeros(24, 30), mesh, [Replicate(), Partial()], run_check=False)
    fails(tessera.TesseraError, lambda: tessera.torch.load_into({"w": partial}, path), "Partial")


def test_load_into_fills_shards_whose_elements_are_not_adjacent(t):
    needs(StridedShard)
    run_ranks(fills_strided_shards, 4, t.at("whole"))


def loads_in_groups(rank, world, path):
    """Two groups of ranks, each with a checkpoint of its own, of which every rank has its own metadata."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group, path = groups[rank // 2], f"{path}{rank // 2}"
    want = {"both": torch.full((3,), 5. + rank), f"mine{rank}": torch.full((2,), 10. + rank)}
    for options in ({"use_collectives": False}, {}):
        kept = want if options else {**want, "both": torch.full((3,), 5. + rank // 2)}  # PyTorch saves it once per group
        to = path + str(len(options))
        dcp.save(kept, storage_writer=tessera.torch.StorageWriter(to), process_group=group, **options)
        dist.barrier()
        assert same(tessera.torch.load(to, list(kept), process_group=group), kept), rank
        state = {name: torch.zeros_like(value) for name, value in kept.items()}
        tessera.torch.load_into(state, to, strict=False, process_group=group)
        assert same(state, kept), (rank, state)
    if rank < 2:  # the others do not take part
        wrong = {"both": torch.zeros(3 + rank)}
        fails(tessera.TesseraError, lambda: tessera.torch.load_into(wrong, path + "0", strict=False, process_group=group), "rank 1", "[4]")
        assert not wrong["both"].any()


def test_ranks_of_a_process_group_load_what_it_saved(t):
    needs(dcp.save, "use_collectives")
    run_ranks(loads_in_groups, 4, t.at("group"))


def saves_its_own(rank, world, path):
    for k, options in enumerate(({"thread_count": 2}, {"overwrite": True, "sync_files": False})):
        want = {**state_of(rank, k), "w": torch.arange(4.) * (rank + 1) + k}
        dcp.save(want, storage_writer=tessera.torch.StorageWriter(path, **options), use_collectives=False)
        dist.barrier()
        for reader in (FileSystemReader(path), tessera.torch.StorageReader(path)):
            state = {"both": torch.zeros(12), f"mine{rank}": torch.zeros(3, rank + 1), "of": {"rank": [torch.zeros(2), None], "step": None}, "w": torch.zeros(4)}
            dcp.load(state, storage_reader=reader)
            assert same(state, want), (rank, k, state)
        assert same(tessera.torch.load(path, ["w", f"mi*{rank}"]), {name: want[name] for name in ("w", f"mine{rank}")}), rank
        dist.barrier()


def test_ranks_save_and_load_on_their_own(t):
    needs(dcp.save, "use_collectives")
    run_ranks(saves_its_own, 2, t.at("own"))
    assert sorted(name for name in os.listdir(t.at("own")) if not name.endswith(".distcp")) == ["__0.metadata", "__1.metadata"], os.listdir(t.at("own"))


def rank_state(rank, filled):
    """What differs between ranks under one name: values, a shape, a dtype, an object; and a name that only one rank has."""
    value = (lambda *shape: torch.arange(float(torch.Size(shape).numel())).reshape(shape) + 100 * rank) if filled else torch.zeros
    return {"w": value(2, 3), "shape": value(rank + 1), "dtype": value(4).to((torch.float64, torch.int64, torch.bfloat16)[rank]),
            "same": value(5) - value(5), f"only{rank}": value(2, 2), "of": {"rank": [value(1), f"rank {rank}" if filled else None]},
            "rows": distribute_tensor(torch.arange(14.).reshape(7, 2), init_device_mesh("cpu", (3,)),
                                                               [Shard(0)]).mul_(1 if filled else 0)}


def reads_its_own(rank, world, path):
    dcp.save(rank_state(rank, True), storage_writer=dcp.FileSystemWriter(path), use_collectives=False)
    want = rank_state(rank, True)
    readers = {"PyTorch": FileSystemReader(path), "tessera": tessera.torch.StorageReader(path)}
    for name, reader in readers.items():
        state = rank_state(rank, False)
        dcp.load(state, storage_reader=reader)
        for key in want:
            ours, theirs = (x.to_local() if hasattr(x, "to_local") else x for x in (state[key], want[key]))
            assert same(ours, theirs), (name, rank, key, ours, theirs)
    theirs, ours = (reader.read_metadata(rank=rank) for reader in readers.values())
    for field in ("planner_data", "storage_data", "version"):
        assert getattr(theirs, field) == getattr(ours, field), (rank, field)
    assert ours.storage_meta.save_id == theirs.storage_meta.save_id and ours.state_dict_metadata.keys() == theirs.state_dict_metadata.keys()
    for reader in readers.values():
        try:
            reader.read_metadata()
        except (OSError, tessera.TesseraError):
            continue
        raise AssertionError("one metadata for all ranks was found")
    rows, whole = path + "-rows", {"rows": torch.zeros(7, 2)}  # of which this rank saves some; PyTorch would leave the others as they were
    dcp.save({"rows": want["rows"], "w": want["w"]}, storage_writer=dcp.FileSystemWriter(rows), use_collectives=False)
    dcp.load(whole, storage_reader=tessera.torch.StorageReader(rows))
    assert torch.equal(whole["rows"], torch.arange(14.).reshape(7, 2)), (rank, whole)
    both = {"rows": torch.zeros(7, 2), "w": torch.zeros(2, 3)}
    tessera.torch.load_into(both, rows)
    assert same(both, {**whole, "w": want["w"]}), (rank, both)
    other = {f"only{(rank + 1) % world}": torch.zeros(2, 2)}  # what only another rank has
    for reader in readers.values():
        try:
            dcp.load(other, storage_reader=reader)
        except CheckpointException as e:
            assert "Missing key" in str(e), e
            continue
        raise AssertionError("a rank got what another one saved")
    tensors = {name: value for name, value in want.items() if name not in ("of", "rows")} | {"of.rank.0": want["of"]["rank"][0]}
    assert same(tessera.torch.load(path, list(tensors)), tensors), rank
    assert same(tessera.torch.load(rows), {"w": want["w"], "rows": whole["rows"]}), rank
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        only = tessera.torch.load(rows, ["w", "rows"])
        assert same(only, {"w": want["w"], "rows": whole["rows"]}) and not said, [str(w.message) for w in said]
    state = {"w": torch.zeros(2, 3), f"only{rank}": torch.zeros(2, 2)}
    if rank != 1:
        del state[f"only{rank}"]
    tessera.torch.load_into(state, path, strict=False)
    assert all(same(state[key], want[key]) for key in state), (rank, state)


def test_every_rank_reads_what_it_saved_with_its_own_metadata(t):
    needs(dcp.save, "use_collectives")
    path = t.at("local")
    run_ranks(reads_its_own, 3, path)


def saves_copies(rank, world, path):
    dcp.save({"w": torch.full((2,), float(rank)), "v": torch.ones(1), f"only{rank}": torch.ones(1)}, storage_writer=dcp.FileSystemWriter(path), use_collectives=False)


def test_copies_of_ranks_are_mentioned_where_no_rank_is_known(t):
    needs(dcp.save, "use_collectives")
    path = t.at("copies")
    run_ranks(saves_copies, 3, path)

    def said(use):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            use()
        assert all(w.filename == __file__ for w in caught), [w.filename for w in caught]
        return [str(w.message) for w in caught]
    with tessera.open(path) as checkpoint:
        for use in (lambda: tessera.torch.load(path, ["w"]), lambda: checkpoint["w"].read(), lambda: tessera.diff(path, os.path.join(SAMPLES, "dcp_fsdp2"))):
            texts = said(use)
            assert len(texts) == 1 and all(part in texts[0] for part in (path, "ranks 0, 1, 2 saved 'w' and 1 more", "lowest rank")), texts
        assert said(lambda: checkpoint["w"].read()) == [], "it is said once"
    assert said(lambda: (tessera.validate(path), tessera.inspect(path), list(tessera.open(path)), tessera.torch.load(os.path.join(SAMPLES, "dcp_fsdp2")))) == []


def test_files_that_are_not_read_are_mentioned(t):
    """What the command says of a checkpoint whose values it uses."""
    path = shutil.copytree(os.path.join(SAMPLES, "safetensors_index"), t.at("model"))
    shutil.copy(os.path.join(path, "model-00001-of-00003.safetensors"), os.path.join(path, "extra.safetensors"))
    name = next(iter(tessera.open(path)))
    command = " ".join(t.run("manifest", path).stderr.decode().split())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tessera.torch.load(path, [name])
    texts = [str(w.message) for w in caught]
    assert len(texts) == 1 and "extra.safetensors" in texts[0] and texts[0] in command, (texts, command)


def writes_objects(rank, world, path):
    tensors = [torch.arange(4.), torch.arange(4.) + (rank == 1)]
    state = {"equal": {1, 2, "x"}, "differs": {"step": rank}, "inner": types.SimpleNamespace(tensors=tensors), "tensor": torch.ones(3)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path), use_collectives=False)


def test_objects_that_differ_between_ranks_are_found(t):
    needs(dcp.save, "use_collectives")
    path = t.at("objects")
    run_ranks(writes_objects, 2, path)
    found = [f for f in tessera.check(path, deep=True) if f.rule == "torch/rank-object"]
    assert sorted(f.fqn for f in found) == ["differs.step", "inner"], found
    assert all(f.level == "note" and f.file == "__1_0.distcp" and f.byte_offset is not None for f in found), found
    with open(os.path.join(path, "__1_0.distcp"), "r+b") as f:  # the copy that is not read
        data = f.read()
        at = data.index(b"step") if b"step" in data else data.index(b"data.pkl")
        f.seek(at)
        f.write(bytes([data[at] ^ 1]))
    assert any(f.level == "error" for f in tessera.check(path, deep=True)), "a damaged copy of an object is not reported"
