"""What PyTorch's own tests of torch.distributed.checkpoint expect of its writers and readers, of Tessera's in their place: tools that convert, stores
of fsspec, stagers, processes that save, older metadata, ShardedTensors, quantized weights."""
import json
import os
import pickle

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from safetensors.torch import save_file
from test_python import is_sound, tessera
from test_python_pairings import PAIRINGS, READERS, WRITERS, Net, same
from test_python_torch import fails
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec, ShardMetadata
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch_names import (AsyncCheckpointerType, DefaultStager, DynamicMetaLoadPlanner, FsspecReader, FsspecWriter, QuantizedHuggingFaceStorageReader,
                         Shard, StagingOptions, StorageMeta, consolidate_safetensors_files, dcp, dcp_to_torch_save, distribute_tensor, fully_shard, has, needs,
                         torch_save_to_dcp)
from torch_ranks import run_ranks


# ---- tools that convert ----


def test_pytorchs_converters_read_and_write_what_tessera_does(t):
    needs(dcp_to_torch_save)
    model = Net()
    dcp.save({"model": model}, storage_writer=tessera.torch.StorageWriter(t.at("ours")), no_dist=True)
    dcp_to_torch_save(t.at("ours"), t.at("model.pt"))
    assert same(torch.load(t.at("model.pt")), {"model": dict(model.state_dict())})
    torch_save_to_dcp(t.at("model.pt"), t.at("theirs"))
    for path in (t.at("theirs"), t.at("model.pt")):
        loaded = Net()
        dcp.load({"model": loaded}, storage_reader=tessera.torch.StorageReader(path), no_dist=True)
        assert same(dict(loaded.state_dict()), dict(model.state_dict())), path


def loads_a_torch_file(rank, world, path):
    """By a planner that makes metadata of the state dict."""
    want = torch.load(f"{path}/model.pt")["model"]
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    for file in ("model", "converted"):
        model = Net()
        fully_shard(model, mesh=mesh)
        state = {"model": model.state_dict()}
        dcp.load(state, storage_reader=tessera.torch.StorageReader(f"{path}/{file}.pt"), planner=DynamicMetaLoadPlanner())
        assert all(torch.equal(value.full_tensor(), want[name]) for name, value in state["model"].items()), file


def test_a_planner_without_metadata_loads_a_torch_file_into_shards(t):
    needs(DynamicMetaLoadPlanner)
    os.mkdir(t.at("c"))
    torch.save({"model": dict(Net().state_dict())}, t.at("c/model.pt"))
    tessera.convert(t.at("c/model.pt"), t.at("c/converted.pt"))
    run_ranks(loads_a_torch_file, 2, t.at("c"))


def test_pytorch_joins_the_shards_that_tessera_writes(t):
    needs(consolidate_safetensors_files)
    os.mkdir(t.at("joined"))
    run_ranks(saves_shards, 2, t.at("shards"))
    consolidate_safetensors_files(t.at("shards"), t.at("joined"), {"rows": 1, "columns": 2})
    read = tessera.torch.load(t.at("joined"))
    assert same(read, {"rows": torch.arange(77.).reshape(7, 11), "columns": torch.arange(24.).reshape(4, 6) + 100}), read


def saves_shards(rank, world, path):
    mesh = init_device_mesh("cpu", (world,))
    state = {"rows": distribute_tensor(torch.arange(77.).reshape(7, 11), mesh, [Shard(0)]), "columns": distribute_tensor(torch.arange(24.).reshape(4, 6) + 100, mesh, [Shard(1)])}
    dcp.save(state, storage_writer=tessera.torch.StorageWriter(path, form="safetensors", save_distributed=True))


# ---- identity, metadata ----


def test_a_save_and_a_load_have_the_ids_of_their_writer_and_reader(t):
    needs(StorageMeta)
    for writer, reader in PAIRINGS:
        to, path = WRITERS[writer](t.at(f"{writer}-{reader}")), t.at(f"{writer}-{reader}")
        dcp.save({"a": torch.ones(4)}, storage_writer=to, no_dist=True)
        of = READERS[reader](path)
        found = of.read_metadata().storage_meta
        assert (str(found.checkpoint_id), found.save_id, found.load_id) == (path, to.save_id, of.load_id), (writer, reader, found)


def test_metadata_of_the_first_releases_loads(t):
    """Its TensorProperties are those of ShardedTensor."""
    from torch.distributed._shard.sharded_tensor.metadata import TensorProperties
    dcp.save({"a": torch.arange(12.).reshape(3, 4), "k": 3}, storage_writer=FileSystemWriter(t.at("old")), no_dist=True)
    metadata = FileSystemReader(t.at("old")).read_metadata()
    metadata.state_dict_metadata["a"].properties = TensorProperties(dtype=torch.float32)
    with open(t.at("old/.metadata"), "wb") as f:
        pickle.dump(metadata, f)
    assert is_sound(t.at("old"))
    for reader in READERS.values():
        state = {"a": torch.zeros(3, 4), "k": 0}
        dcp.load(state, storage_reader=reader(t.at("old")), no_dist=True)
        assert same(state, {"a": torch.arange(12.).reshape(3, 4), "k": 3}), reader
    ours, theirs = (reader(t.at("old")).read_metadata() for reader in (tessera.torch.StorageReader, FileSystemReader))
    assert ours.state_dict_metadata == theirs.state_dict_metadata and ours.storage_data == theirs.storage_data


# ---- stores, stagers, processes ----


def test_what_fsspec_stores_is_read_and_what_tessera_writes_is_read_by_fsspec(t):
    needs(FsspecWriter, "overwrite")
    state = lambda k: {"model": {"w": torch.arange(20.).reshape(4, 5) * k}, "step": k}
    for writer in (FsspecWriter, tessera.torch.StorageWriter):
        for k in (1, 2):
            dcp.save(state(k), storage_writer=writer(t.at(writer.__name__), overwrite=k == 2), no_dist=True)
        fails(CheckpointException, lambda: dcp.save(state(3), storage_writer=writer(t.at(writer.__name__), overwrite=False), no_dist=True), "already")
        for reader in (FsspecReader, tessera.torch.StorageReader, FileSystemReader):
            loaded = {"model": {"w": torch.zeros(4, 5)}, "step": 0}
            dcp.load(loaded, storage_reader=reader(t.at(writer.__name__)), no_dist=True)
            assert same(loaded, state(2)), (writer, reader)


def test_any_stager_stages_for_the_writer(t):
    needs(DefaultStager)
    state = {"w": torch.arange(6.), "tied": torch.zeros(0), "of": {"step": 3, "view": torch.arange(12.).reshape(3, 4).t()}}
    state["tied"] = state["w"]
    want = {"w": state["w"].clone(), "tied": state["w"].clone(), "of": {"step": 3, "view": state["of"]["view"].clone()}}
    for n, options in enumerate(({}, {"use_shared_memory": True}, {"use_async_staging": True})):
        config = {"use_pinned_memory": False, "use_shared_memory": False, "use_async_staging": False, "use_non_blocking_copy": False, **options}
        stager = DefaultStager(StagingOptions(**config))
        for writer, reader in PAIRINGS:
            path = t.at(f"{n}-{writer}-{reader}")
            saving = checkpoint.async_save(state, storage_writer=WRITERS[writer](path), async_stager=stager, no_dist=True)
            if options.get("use_async_staging"):
                saving.staging_completion.result()
            state["w"].zero_()
            getattr(saving, "upload_completion", saving).result()
            state["w"].copy_(want["w"])
            loaded = {"w": torch.zeros(6), "tied": torch.zeros(6), "of": {"step": 0, "view": torch.zeros(4, 3)}}
            dcp.load(loaded, storage_reader=READERS[reader](path), no_dist=True)
            assert same(loaded, want), (options, writer, reader)
        stager.close()


def fails_in_a_process(rank, world, path):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")

    def save(k, **options):
        state = {"w": torch.full((5,), float(k)), f"own{rank}": torch.full((2,), float(rank + k))}
        saving = dcp.async_save(state, storage_writer=tessera.torch.StorageWriter(path, **options), async_checkpointer_type=AsyncCheckpointerType.PROCESS)
        return getattr(saving, "upload_completion", saving)
    save(1).result()
    failure = save(2).exception()  # of the process that the next save finds at work
    assert isinstance(failure, CheckpointException) and all(isinstance(e, FileExistsError) and "overwrite=True" in str(e) for e, _ in failure.failures.values()), failure
    assert save(3, overwrite=True).result() is not None
    loaded = {"w": torch.zeros(5), f"own{rank}": torch.zeros(2)}
    dcp.load(loaded, storage_reader=FileSystemReader(path))
    assert same(loaded, {"w": torch.full((5,), 3.), f"own{rank}": torch.full((2,), rank + 3.)}), loaded
    dist.barrier()


def test_a_process_that_saves_goes_on_after_a_save_that_failed(t):
    needs(AsyncCheckpointerType)
    run_ranks(fails_in_a_process, 2, t.at("c"))
    assert is_sound(t.at("c"))


# ---- ShardedTensors ----


def sharding_specs():
    """Of a tensor [10, 20] on two ranks: one shard per rank, several, uneven ones, ranks the other way round, columns."""
    enumerated = lambda rows: EnumerableShardingSpec([ShardMetadata([at, 0], [size, 20], f"rank:{rank}/cpu") for at, size, rank in rows])
    chunks = lambda dim, *ranks: ChunkShardingSpec(dim=dim, placements=[f"rank:{rank}/cpu" for rank in ranks])
    return [chunks(0, 0, 1), chunks(0, 0, 1, 1, 0), enumerated([(0, 2, 0), (2, 1, 1), (3, 3, 0), (6, 3, 1), (9, 1, 0)]), enumerated([(0, 8, 1), (8, 2, 0)]), chunks(1, 1, 0), chunks(0, 1)]


def whole_of(tensor, rank):
    out = torch.zeros(tensor.size()) if rank == 0 else None
    tensor.gather(out=out)
    return out


def reshards_sharded_tensors(rank, world, path):
    full = torch.arange(200.).reshape(10, 20)

    def made(spec, fills):
        tensor = sharded_tensor.zeros(spec, 10, 20)
        for shard in tensor.local_shards() if fills else []:
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.copy_(full[row:row + rows, column:column + columns])
        return tensor
    specs = sharding_specs()
    for n, saved in enumerate(specs):
        for writer, to in WRITERS.items():
            dcp.save({"w": made(saved, True), "plain": full + n}, storage_writer=to(f"{path}/{n}-{writer}", thread_count=1 + n % 2))
        for m, wanted in enumerate(specs):
            writer, reader = PAIRINGS[(n + m) % 4]
            state = {"w": made(wanted, False), "plain": torch.zeros(10, 20)}
            dcp.load(state, storage_reader=READERS[reader](f"{path}/{n}-{writer}"))
            found = whole_of(state["w"], rank)
            assert torch.equal(state["plain"], full + n) and (rank != 0 or torch.equal(found, full)), (n, m, writer, reader)
            tensor = {"w": torch.zeros(10, 20)}  # as a tensor of each rank
            dcp.load(tensor, storage_reader=READERS[reader](f"{path}/{n}-{writer}"))
            assert torch.equal(tensor["w"], full), (n, m, writer, reader)


def test_sharded_tensors_load_with_any_other_shards(t):
    os.mkdir(t.at("c"))
    run_ranks(reshards_sharded_tensors, 2, t.at("c"))
    for n in range(len(sharding_specs())):
        assert is_sound(t.at(f"c/{n}-ours")) and tessera.diff(t.at(f"c/{n}-ours"), t.at(f"c/{n}-theirs"), values=True)["same"]


# ---- quantized weights ----


def quantized(path, dtype=torch.float8_e4m3fn):
    """A weight in blocks of 128 × 128 with their scales, in two files, as DeepSeek stores it."""
    torch.manual_seed(4)
    os.mkdir(path)
    weight, scales, bias = torch.randn(200, 300).to(dtype), torch.rand(2, 3) + 0.5, torch.arange(7.).bfloat16()
    save_file({"a.weight": weight, "a.weight_scale_inv": scales}, f"{path}/model-00001-of-00002.safetensors")
    save_file({"a.bias": bias}, f"{path}/model-00002-of-00002.safetensors")
    names = {"a.weight": 1, "a.weight_scale_inv": 1, "a.bias": 2}
    with open(f"{path}/model.safetensors.index.json", "w") as f:
        json.dump({"metadata": {"total_size": 1}, "weight_map": {name: f"model-0000{n}-of-00002.safetensors" for name, n in names.items()}}, f)
    with open(f"{path}/config.json", "w") as f:
        json.dump({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}, "torch_dtype": "bfloat16"}, f)
    return weight, scales


def loads_quantized(rank, world, path):
    mesh = init_device_mesh("cpu", (world,))
    state = lambda shard: {"a.weight": distribute_tensor(torch.zeros(200, 300, dtype=torch.bfloat16), mesh, [shard]), "a.bias": torch.zeros(7, dtype=torch.bfloat16)}
    for shard in (Shard(0), Shard(1)):
        ours, theirs = state(shard), state(shard)
        dcp.load(ours, storage_reader=tessera.torch.StorageReader(path, dequantize=True))
        dcp.load(theirs, storage_reader=QuantizedHuggingFaceStorageReader(path, target_dtype=torch.float32))
        assert torch.equal(ours["a.weight"].to_local(), theirs["a.weight"].to_local()) and ours["a.weight"].to_local().abs().sum() > 1000, shard
        assert torch.equal(ours["a.bias"], torch.arange(7.).bfloat16())


def test_quantized_weights_load_as_by_pytorchs_reader_for_them(t):
    needs(QuantizedHuggingFaceStorageReader)
    quantized(t.at("c"))
    run_ranks(loads_quantized, 3, t.at("c"))


def test_quantized_weights_are_not_cast_without_their_scales(t):
    weight, scales = quantized(t.at("c"))
    load = lambda state, **options: dcp.load(state, storage_reader=tessera.torch.StorageReader(t.at("c"), **options), no_dist=True)
    for dtype in (torch.bfloat16, torch.float32, torch.float8_e5m2):
        fails(CheckpointException, lambda: load({"a.weight": torch.zeros(200, 300).to(dtype)}), "'a.weight'", "'a.weight_scale_inv'", "dequantize=True")
    fails(CheckpointException, lambda: load({"a.weight_scale_inv": torch.zeros(2, 3, dtype=torch.bfloat16)}), "'a.weight_scale_inv'")
    stored = {"a.weight": torch.zeros(200, 300).to(torch.float8_e4m3fn), "a.weight_scale_inv": torch.zeros(2, 3), "a.bias": torch.zeros(7)}
    load(stored)  # its own numbers; and a cast of what has no scale
    assert torch.equal(stored["a.weight"].view(torch.uint8), weight.view(torch.uint8)) and torch.equal(stored["a.weight_scale_inv"], scales) and torch.equal(stored["a.bias"], torch.arange(7.))


def test_a_reader_gives_what_is_between_the_files_and_the_names(t):
    """The options of tessera.open that change what is read."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    torch.save({"_orig_mod.module.a.w": torch.arange(6.).reshape(2, 3)}, t.at("wrapped.pt"))
    dcp.save({"a.w": torch.arange(6.).reshape(2, 3)}, storage_writer=FileSystemWriter(t.at("dcp")), no_dist=True)
    rules = {"schema": "tessera.map/1", "rules": [{"from": ["a.w"], "to": ["a.w"], "do": [{"transpose": [1, 0]}]}]}
    for path, options, shape in ((t.at("wrapped.pt"), {"canonical": True}, (2, 3)), (t.at("dcp"), {"map": rules}, (3, 2)), (t.at("dcp"), {"map": rules, "inverse": True}, (3, 2))):
        reader = tessera.torch.StorageReader(path, **options)
        found = reader.read_metadata().state_dict_metadata
        assert list(found) == ["a.w"] and isinstance(found["a.w"], TensorStorageMetadata) and tuple(found["a.w"].size) == shape, found
        for again in (reader, pickle.loads(pickle.dumps(reader))):
            state = {"a.w": torch.zeros(shape)}
            dcp.load(state, storage_reader=again, no_dist=True)
            assert torch.equal(state["a.w"], torch.arange(6.).reshape(2, 3).reshape(shape) if shape == (2, 3) else torch.arange(6.).reshape(2, 3).t()), options
