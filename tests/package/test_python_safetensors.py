"""tessera.torch.StorageWriter(form="safetensors") beside PyTorch's HuggingFaceStorageWriter, on one rank and on several."""
import contextlib
import gc
import json
import os
import pickle
import signal
import struct
import subprocess
import time

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file
from test_python import tessera
from tessera import _save_safetensors
from test_python_torch import CHANGES_FILES, Fails, fails
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch_names import BlockingAsyncStager, DTensor, HuggingFaceStorageReader, HuggingFaceStorageWriter, Replicate, Shard, ZStandard, dcp, distribute_tensor, has, needs
from torch_ranks import run_ranks

INDEX = "model.safetensors.index.json"


def state_of(k):
    return {"a.weight": torch.arange(12.).reshape(3, 4) * k, "a.bias": torch.arange(5.).bfloat16() + k, "one": torch.tensor(2.5 * k), "none": torch.zeros(0, 3),
            "é\"\\": torch.arange(7_000.).reshape(7, -1) + k}  # too few for PyTorch's threads, which a forked child would not have


MAPPING = {"a.weight": 2, "a.bias": 1, "one": 2, "none": 3, "é\"\\": 1}
CHOICES = ({}, {"fqn_to_index_mapping": MAPPING, "thread_count": 2}, {"save_distributed": True}, {"save_distributed": True, "enable_consolidation": True},
           {"save_distributed": True, "enable_consolidation": True, "fqn_to_index_mapping": MAPPING, "thread_count_consolidation": 2})


def save(path, state, writes=None, **options):
    dcp.save(state, storage_writer=tessera.torch.StorageWriter(path, form="safetensors", **options), no_dist=True, **({"planner": writes} if writes else {}))


def files_below(path):
    return sorted(os.path.relpath(os.path.join(directory, name), path) for directory, _, names in os.walk(path) for name in names)


def same(a, b):
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def loads(path, want, **kwargs):
    for reader in readers(path):
        state = {name: torch.full_like(value, 7) for name, value in want.items()}
        dcp.load(state, storage_reader=reader, no_dist=True)
        assert same(state, want), (path, reader)


def readers(path):
    """PyTorch's own, which it has from 2.7 on, and ours."""
    return [*([HuggingFaceStorageReader(path)] if has(HuggingFaceStorageReader) else []), tessera.torch.StorageReader(path)]


def metadata_of(path):
    with safe_open(path, "pt") as f:
        return f.metadata()


def test_the_files_are_those_of_pytorchs_writer(t):
    for n, options in enumerate(CHOICES):
        ours, theirs = t.at(f"ours{n}"), t.at(f"theirs{n}")
        dcp.save(state_of(1), storage_writer=HuggingFaceStorageWriter(theirs, **options), no_dist=True)
        for k, more in ((1, {}), (2, {"overwrite": True}), (1, {"overwrite": True, "checksums": False})):
            save(ours, state_of(k), **options, **more)
            names = files_below(ours)
            assert names == files_below(theirs) and os.listdir(t.scratch).count(f"ours{n}") == 1, names
            loads(ours, state_of(k))
            assert tessera.check(ours, deep=True, rule=["dcp-safetensors/lone-shard=off"]) == []
            for name in (name for name in names if name.endswith(".safetensors")):
                a, b = (load_file(os.path.join(of, name)) for of in (ours, theirs))
                assert a.keys() == b.keys() and all(torch.equal(a[key], state_of(k)[key]) for key in a), name
                said = metadata_of(os.path.join(ours, name))
                assert ("tessera.crc32" in said) == ("checksums" not in more) and said["format"] == "pt"
                if "shard-" in name:
                    want = metadata_of(os.path.join(theirs, name))
                    assert said["DCP_VERSION"] == want["DCP_VERSION"] and json.loads(said["DCP_SHARDING_INFO"]) == json.loads(want["DCP_SHARDING_INFO"])
            if INDEX in names:
                with open(os.path.join(ours, INDEX)) as a, open(os.path.join(theirs, INDEX)) as b:
                    assert json.load(a) == json.load(b)
        assert not [name for name in os.listdir(t.scratch) if name.startswith(".")], "something is left next to the checkpoint"


def test_every_dtype_that_safetensors_has_is_written_as_its_library_writes_it(t):
    names = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool", "complex64", "float8_e4m3fn",
             "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    bits = torch.randint(0, 2, (4, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    state = {name: bits.clone().view(getattr(torch, name)) for name in names if hasattr(torch, name)}
    state.update(strided=torch.arange(6.).reshape(2, 3).t(), view=torch.arange(100.)[20:40], conj=torch.tensor([1 + 2j, 3j], dtype=torch.complex64).conj())
    save(t.at("c"), state)
    read = load_file(t.at("c/model-00001-of-00001.safetensors"))
    for name, value in state.items():
        assert read[name].dtype == value.dtype and torch.equal(read[name].contiguous().view(torch.uint8), value.resolve_conj().contiguous().view(torch.uint8)), name
    assert tessera.check(t.at("c"), deep=True) == []
    with open(t.at("c/model-00001-of-00001.safetensors"), "rb") as f:
        assert struct.unpack("<Q", f.read(8))[0] % 64 == 56


def test_a_changed_byte_is_found(t):
    save(t.at("c"), state_of(1))
    with open(t.at("c/model-00001-of-00001.safetensors"), "r+b") as f:
        f.seek(-9, os.SEEK_END)
        f.write(b"\x01")
    assert [f.rule for f in tessera.check(t.at("c"), deep=True)] == ["safetensors/crc"]


def test_what_safetensors_cannot_hold_is_refused_before_anything_is_written(t):
    refused = lambda state, *said, **options: fails(CheckpointException, lambda: save(t.at("above/c"), state, **options), *said)
    refused({"w": torch.ones(2), "step": 3}, "'step'", 'form="dcp"')
    refused({"w": torch.ones(2, dtype=torch.complex128)}, "'w'", "complex128")
    refused({"": torch.ones(2)}, "''")
    refused({"__metadata__": torch.ones(2)}, "'__metadata__'")
    refused({"\ud800": torch.ones(2)}, "ud800")
    refused({"v": torch.ones(2)}, "'v'", fqn_to_index_mapping={"w": 1})
    writer = lambda path=t.at("above/c"), **options: tessera.torch.StorageWriter(path, **{"form": "safetensors", **options})
    fails(CheckpointException, lambda: dcp.save(state_of(1), storage_writer=writer(), no_dist=True, planner=Fails("write", OSError("planned"))), "planned")
    assert not os.path.exists(t.at("above"))
    for options in ({"single_file_per_rank": False}, {"_extensions": [object()]})[:2 if has(ZStandard) else 1]:
        fails(tessera.TesseraError, lambda: writer(**options), "safetensors")
    fails(tessera.TesseraError, lambda: writer(path="hf://org/model"), "cannot write to 'hf://org/model'")
    fails(tessera.TesseraError, lambda: writer(path="s3://bucket/c", save_distributed=True), "save_distributed=True", "'s3://bucket/c'", "no index")
    for options in ({"form": "safetensor"}, {"fqn_to_index_mapping": {"w": 0}}, {"fqn_to_index_mapping": {}}, {"thread_count_consolidation": 0},
                    {"form": "dcp", "save_distributed": True}, {"form": "dcp", "fqn_to_index_mapping": {"w": 1}}):
        fails(ValueError, lambda: writer(**options), list(options)[-1])
    fails(tessera.TesseraError, lambda: dcp.save(state_of(1), storage_writer=writer(), no_dist=True, use_collectives=False), "use_collectives")
    again = pickle.loads(pickle.dumps(writer(save_distributed=True)))
    assert type(again) is type(writer()) and isinstance(again, tessera.torch.StorageWriter) and again.save_distributed and again.path == t.at("above/c")


def test_what_is_there_stays_unless_it_is_replaced(t):
    save(t.at("c"), state_of(1))
    fails(CheckpointException, lambda: save(t.at("c"), state_of(2)), "holds a checkpoint already", "overwrite=True")
    dcp.save(state_of(1), checkpoint_id=t.at("dcp"), no_dist=True)
    fails(CheckpointException, lambda: save(t.at("dcp"), state_of(2), overwrite=True), "another form", ".metadata")
    fails(CheckpointException, lambda: dcp.save(state_of(2), storage_writer=tessera.torch.StorageWriter(t.at("c"), overwrite=True), no_dist=True), "another form")
    tessera.convert(t.at("dcp"), t.at("c/model.safetensors"))
    before = files_below(t.at("c"))
    fails(CheckpointException, lambda: save(t.at("c"), state_of(2), overwrite=True), "model")
    assert files_below(t.at("c")) == before
    os.unlink(t.at("c/model.safetensors"))
    for name in ("config.json", "notes/mine.txt"):
        os.makedirs(os.path.dirname(t.at("c", name)), exist_ok=True)
        with open(t.at("c", name), "w") as f:
            f.write("a user's file")
    save(t.at("c"), state_of(2), overwrite=True, save_distributed=True, enable_consolidation=True)
    assert files_below(t.at("c")) == ["config.json", "model-00001-of-00001.safetensors", INDEX, "notes/mine.txt", "sharded/shard-00001-model-00001-of-00001.safetensors"]
    loads(t.at("c"), state_of(2))
    save(t.at("c"), state_of(3), overwrite=True, fqn_to_index_mapping=MAPPING)
    assert [name for name in files_below(t.at("c")) if "0000" in name] == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    loads(t.at("c"), state_of(3))


# ---- killed ----


def killed_at(number, path, **options):
    """As in test_python_torch, of a save of safetensors files. PyTorch's threads are not there in the child."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    left = [number]

    def counted(real):
        def call(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                os._exit(9)
            return real(*args, **kwargs)
        return call
    try:
        for name in (*CHANGES_FILES, "rmdir"):
            setattr(os, name, counted(getattr(os, name)))
        for name in ("_open_files", "_begin_files", "_join_files", "_publish_files", "_close_files", "_write_journal"):  # tests/native/test_native_rank_files.c ends in each of them
            setattr(_save_safetensors, name, counted(getattr(_save_safetensors, name)))
        save(path, state_of(2), **options)
        os._exit(0)
    finally:
        os._exit(1)


def value_in(path):
    """Of which save the checkpoint is that PyTorch's reader finds, or None; never a part of one."""
    if not any(name.endswith(".safetensors") for name in files_below(path) if not name.startswith(".")):
        return None
    state = {name: torch.zeros_like(value) for name, value in state_of(1).items()}
    dcp.load(state, storage_reader=readers(path)[0], no_dist=True)
    k = int(state["one"].item() / 2.5)
    assert same(state, state_of(k)), "parts of two saves"
    return k


def test_a_save_that_is_killed_leaves_the_old_or_the_new_checkpoint_whole(t):
    for n, (old, options) in enumerate(((None, {"save_distributed": True, "fqn_to_index_mapping": MAPPING}),
                                        (1, {"save_distributed": True, "enable_consolidation": True, "overwrite": True}))):
        seen, number, ended = set(), 0, True
        while ended:
            number += 1
            path = t.at(f"{n}/killed{number}")
            if old:
                save(path, state_of(old), **options)
            elif number % 2:
                os.makedirs(path)
            ended = killed_at(number, path, **options)
            now = value_in(path)
            assert now in (old, 2), (options, number, now)
            seen.add(now)
            save(path, state_of(3), **{**options, "overwrite": True})
            assert value_in(path) == 3 and not [name for name in files_below(path) if "tessera" in name] and os.listdir(os.path.dirname(path)).count(f"killed{number}") == 1
            assert not [name for name in os.listdir(os.path.dirname(path)) if name.startswith(".")], os.listdir(os.path.dirname(path))
        assert seen == {old, 2} and number > 10, (options, seen, number)


def test_ctrl_c_ends_the_joining_and_leaves_the_old_checkpoint(t):
    options = {"save_distributed": True, "enable_consolidation": True, "overwrite": True}
    save(t.at("c"), state_of(1), **options)
    real, ended = _save_safetensors._join_files, []

    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        while not arguments[1]._obj._stop.flag.value:  # until the main thread has handled the signal
            time.sleep(0.01)
        ended.append(real(*arguments))
        return ended[0]
    _save_safetensors._join_files = interrupted
    try:
        e = fails(CheckpointException, lambda: save(t.at("c"), state_of(2), **options))
    finally:
        _save_safetensors._join_files = real
    assert isinstance(e.failures[0][0], KeyboardInterrupt) and ended and ended[0] != 0, (e, ended)
    assert value_in(t.at("c")) == 1 and os.listdir(t.scratch) == ["c"], os.listdir(t.scratch)


def test_a_save_that_is_killed_among_other_files_keeps_them(t):
    options = {"fqn_to_index_mapping": MAPPING, "overwrite": True}
    for mine in ("config.json", ".tessera-save-files/new/model.safetensors"):  # exchanged, and moved because of the directory
        number, ended, seen = 0, True, set()
        while ended:
            number += 1
            path = t.at(f"killed{number}-{mine[:3]}")
            save(path, state_of(1), **options)
            os.makedirs(os.path.dirname(os.path.join(path, mine)), exist_ok=True)
            with open(os.path.join(path, mine), "w") as f:
                f.write("a user's file")
            ended = killed_at(number, path, **options)
            now = value_in(path)
            seen.add(now)
            save(path, state_of(3), **options)
            assert value_in(path) == 3 and files_below(path) == sorted([mine, *(f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)), INDEX]), files_below(path)
            with open(os.path.join(path, mine)) as f:
                assert f.read() == "a user's file"
        assert seen == {1, 2}, seen


def test_a_mount_point_is_saved_to_and_replaced(t):
    """Nothing can be moved there from next to it. The native tests have a directory in one that is not writable."""
    disk = t.at("disk")
    os.makedirs(disk)
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk]).returncode:
        print("note: no file system can be mounted here, so mount points are not tested")
        return
    try:
        options = {"save_distributed": True, "enable_consolidation": True, "overwrite": True}
        with open(os.path.join(disk, "mine.txt"), "w") as f:
            f.write("a user's file")
        save(disk, state_of(1), **options)
        seen, number, ended = set(), 0, True
        while ended:
            number += 1
            ended = killed_at(number, disk, **options)
            seen.add(value_in(disk))
            save(disk, state_of(1), **options)
            assert value_in(disk) == 1 and sorted(os.listdir(disk)) == ["mine.txt", "model-00001-of-00001.safetensors", INDEX, "sharded"], os.listdir(disk)
        assert seen == {1, 2} and number > 10, (seen, number)
        assert os.listdir(t.scratch) == ["disk"]
    finally:
        gc.collect()  # readers in cycles of PyTorch 2.3's own
        subprocess.run(["umount", disk], check=True)


def test_what_looks_like_the_rest_of_a_save_stays(t):
    """Names of this form, and of the one that earlier versions made."""
    save(t.at("c"), state_of(1))
    writer = tessera.torch.StorageWriter(t.at("c"), form="safetensors")
    writer._place.set_up()
    stage = os.path.basename(writer._place.stage())
    mine = [f"{stage}0/model-00001-of-00001.safetensors", ".c.tessera-save-0123456789abcdef/model-00001-of-00001.safetensors", ".c.tessera-save-0123456789abcdef/.tessera-save-files/x",
            ".c.tessera-w0123456789abcdef/" + INDEX, "c/.tessera-save-files/journal.json", "c/.tessera-save-0123456789abcdef.journal", f"c/{stage}/x"]
    for name in mine:
        os.makedirs(os.path.dirname(t.at(name)), exist_ok=True)
        with open(t.at(name), "w") as f:
            f.write("a user's file")
    save(t.at("c"), state_of(2), overwrite=True)
    assert value_in(t.at("c")) == 2
    os.makedirs(t.at(stage))
    with open(t.at(stage, INDEX), "w") as f:
        f.write("a user's file")
    fails(CheckpointException, lambda: save(t.at("c"), state_of(3), overwrite=True), stage, "move it away")
    assert value_in(t.at("c")) == 2
    for name in (*mine, f"{stage}/{INDEX}"):
        with open(t.at(name)) as f:
            assert f.read() == "a user's file", name


# ---- ranks ----


def full(k):
    return {"rows": torch.arange(35.).reshape(7, 5) + k, "columns": torch.arange(66.).reshape(6, 11) * k, "both": torch.arange(60.).reshape(5, 12) - k, "copies": torch.arange(9) + k,
            "few": torch.arange(2.).reshape(2, 1) + k}


def sharded(mesh, k):
    placements = {"rows": [Shard(0), Replicate()], "columns": [Replicate(), Shard(1)], "both": [Shard(0), Shard(1)], "copies": [Replicate(), Replicate()], "few": [Shard(0), Replicate()]}
    return {name: distribute_tensor(value, mesh, placements[name]) for name, value in full(k).items()}


def own(rank, k):
    return {f"own{rank}": torch.arange(4.) * k + rank}


def everything(world, k):
    return {**full(k), **{name: value for rank in range(world) for name, value in own(rank, k).items()}}


def saves_shards(rank, world, path):
    mesh = init_device_mesh("cpu", (world // 2, 2))
    mapping = {name: n % 3 + 1 for n, name in enumerate(everything(world, 0))}
    choices = ({}, {"fqn_to_index_mapping": mapping, "thread_count": 2}, {"save_distributed": True, "fqn_to_index_mapping": mapping},
               {"save_distributed": True, "enable_consolidation": True, "fqn_to_index_mapping": mapping, "thread_count_consolidation": 3})
    for n, options in enumerate(choices):
        for k, more in ((n + 1, {}), (n + 2, {"overwrite": True})):
            to = os.path.join(path, str(n))
            dcp.save({**sharded(mesh, k), **own(rank, k)}, storage_writer=tessera.torch.StorageWriter(to, form="safetensors", **options, **more))
            other = init_device_mesh("cpu", (world,))
            for reader in readers(to):
                state = {name: distribute_tensor(torch.full_like(value, 7), other, [Shard(value.dim() - 1)]) for name, value in full(k).items()}
                state.update({name: torch.zeros(4) for name in everything(world, k) if name.startswith("own")})
                dcp.load(state, storage_reader=reader)
                whole = {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state.items()}
                assert same(whole, everything(world, k)), (rank, options)
            dist.barrier()


def test_shards_of_several_ranks_are_written_and_joined(t):
    run_ranks(saves_shards, 4, t.at("c"))
    for n in range(4):
        found = tessera.check(t.at(f"c/{n}"), deep=True, rule=["dcp-safetensors/no-global-shape=off"])
        assert found == [] and not [name for name in files_below(t.at(f"c/{n}")) if "tessera" in name], (n, found)
        if n != 2:
            with open(t.at(f"c/{n}", INDEX)) as f:
                weight_map = json.load(f)["weight_map"]
            read = {}
            for name in set(weight_map.values()):
                values = load_file(t.at(f"c/{n}", name))
                assert all(weight_map[key] == name for key in values)
                read.update(values)
            assert same(read, everything(4, n + 2)), n
    assert {name[:11] for name in files_below(t.at("c/2"))} == {f"shard-0000{rank}" for rank in (1, 2, 3, 4)}
    assert files_below(t.at("c/3/sharded")) == files_below(t.at("c/2"))


class FailsOn(dcp.DefaultSavePlanner):
    def __init__(self, fails):
        super().__init__()
        self.fails = fails

    def resolve_data(self, item):
        if self.fails:
            raise ValueError("planned")
        return super().resolve_data(item)


def fails_on_one_rank(rank, world, path):
    mesh = init_device_mesh("cpu", (world // 2, 2))
    options = {"form": "safetensors", "save_distributed": True, "enable_consolidation": True, "overwrite": True}
    dcp.save(sharded(mesh, 1), storage_writer=tessera.torch.StorageWriter(path, **options))
    for bad in (0, 1):
        with contextlib.suppress(CheckpointException):
            dcp.save(sharded(mesh, 2), storage_writer=tessera.torch.StorageWriter(path, **options), planner=FailsOn(rank == bad))
            raise AssertionError("saved")
        state = {name: torch.zeros_like(value) for name, value in full(1).items()}
        dcp.load(state, storage_reader=readers(path)[0])
        assert same(state, full(1))
        dist.barrier()
    dcp.save(sharded(mesh, 3), storage_writer=tessera.torch.StorageWriter(path, **options))
    state = {name: torch.zeros_like(value) for name, value in full(3).items()}
    dcp.load(state, storage_reader=readers(path)[0])
    assert same(state, full(3)) and not [name for name in os.listdir(path) if name.startswith(".")], os.listdir(path)


def test_a_rank_that_fails_leaves_the_old_checkpoint(t):
    run_ranks(fails_on_one_rank, 4, t.at("c"))


def two_boxes(rank, world, path):
    """ShardedTensors of two local shards, which no file can hold under one name."""
    from torch.distributed._shard.sharded_tensor import Shard as Local, init_from_local_shards
    whole = torch.arange(24.).reshape(8, 3)
    shards = [Local.from_tensor_and_offsets(whole[at:at + 2].clone(), [at, 0], rank) for at in (rank * 2, 4 + rank * 2)]
    tensor = init_from_local_shards(shards, [8, 3])
    for n, options in enumerate(({}, {"save_distributed": True})):
        to = f"{path}{n}"
        dcp.save({"w": tensor}, storage_writer=tessera.torch.StorageWriter(to, form="safetensors", **options))
        for reader in readers(to):
            state = {"w": torch.zeros(8, 3)}
            dcp.load(state, storage_reader=reader)
            assert torch.equal(state["w"], whole), (n, state)


def test_a_rank_with_several_shards_of_a_tensor_loses_none(t):
    run_ranks(two_boxes, 2, t.at("c"))


def saves_async(rank, world, path):
    mesh = init_device_mesh("cpu", (world // 2, 2))
    state = sharded(mesh, 4)
    future = dcp.async_save(state, storage_writer=tessera.torch.StorageWriter(path, form="safetensors"))
    for value in state.values():
        value.to_local().zero_()  # what is saved was staged
    getattr(future, "upload_completion", future).result()
    loaded = {name: torch.zeros_like(value) for name, value in full(4).items()}
    dcp.load(loaded, storage_reader=readers(path)[0])
    assert same(loaded, full(4))


def test_async_save_writes_what_was_staged(t):
    needs(BlockingAsyncStager)
    run_ranks(saves_async, 2, t.at("c"))


def test_a_planner_that_caches_its_plans_saves_again(t):
    needs(dcp.DefaultSavePlanner, "enable_plan_caching")
    planner = lambda: dcp.DefaultSavePlanner(enable_plan_caching=True)
    for n in range(3):
        save(t.at(f"c{n}"), state_of(n + 1), planner(), save_distributed=n == 2)
        loads(t.at(f"c{n}"), state_of(n + 1))


def gains_tensors(rank, world, path):
    """The second save has tensors of rank 1 that the first one does not have, and rank 0 saves by its plan of the first."""
    def all_loaded(writer, reader, k):
        state = {**full(k), **(own(1, k) if rank == 1 and k > 1 else {})}
        dcp.save(state, storage_writer=writer(k), planner=planner(enable_plan_caching=True))
        dist.barrier()
        want = {**full(k), **(own(1, k) if k > 1 else {})}
        loaded = {name: torch.full_like(value, 7) for name, value in want.items()}
        dcp.load(loaded, storage_reader=reader(k), no_dist=True)
        assert same(loaded, want), (writer, k)
    at = lambda n, k: os.path.join(path, f"{n}-{k}")
    ours = lambda n, **options: (lambda k: tessera.torch.StorageWriter(at(n, k), **options), lambda k: tessera.torch.StorageReader(at(n, k)))
    choices = ((lambda k: dcp.FileSystemWriter(at(0, k)), lambda k: dcp.FileSystemReader(at(0, k))), ours(1), ours(2, form="safetensors"),
               ours(3, form="safetensors", save_distributed=True), ours(4, form="safetensors", save_distributed=True, enable_consolidation=True))
    for n, (writer, reader) in enumerate(choices):
        planner = type(f"Planner{n}", (dcp.DefaultSavePlanner,), {})  # plans are cached by this name
        for k in (1, 2, 3):
            all_loaded(writer, reader, k)


def test_ranks_that_cache_their_plans_gain_tensors(t):
    """Loads as what PyTorch's FileSystemWriter saves with cached plans."""
    needs(dcp.DefaultSavePlanner, "enable_plan_caching")
    run_ranks(gains_tensors, 2, t.at("c"))
