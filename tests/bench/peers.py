"""What people use today, one function a job: peers.py FUNCTION ARG…

Each prints {"wall": s, "cpu": s} of the call itself, imports and start-up left out, unless the job is about whole
programs (`listing`)."""
import json
import os
import sys
import time
import warnings

warnings.filterwarnings("ignore")


def timed(call):
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    print(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}))


def read_metadata(path):
    from torch.distributed.checkpoint import FileSystemReader
    timed(lambda: FileSystemReader(path).read_metadata())


def safetensors_to_cuda(path):
    """Into device memory, the third time in this process, as ours is measured. Needs a PyTorch with CUDA."""
    import torch
    from safetensors.torch import load_file

    def load():
        load_file(path, device="cuda")
        torch.cuda.synchronize()
    load()
    load()
    timed(load)


def listing(path):
    from torch.distributed.checkpoint import FileSystemReader
    for fqn, item in FileSystemReader(path).read_metadata().state_dict_metadata.items():
        print(fqn, getattr(item, "size", "object"), len(getattr(item, "chunks", ())))


def make_zero3(path, ranks, width, layers):
    import torch
    ranks, width, layers = int(ranks), int(width), int(layers)
    shapes = {f"layers.{i}.{name}": torch.Size(shape) for i in range(layers) for name, shape in (("up", (width, width)), ("down", (width, width)), ("norm", (width,)))}
    pieces = sum(-(-shape.numel() // ranks) for shape in shapes.values())
    config = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": False}}
    os.makedirs(path)
    for rank in range(ranks):
        name = f"{path}/zero_pp_rank_{rank}_mp_rank_00_"
        torch.save({"module": {n: torch.empty(0) for n in shapes}, "buffer_names": [], "param_shapes": [shapes], "frozen_param_shapes": None, "shared_params": {},
                    "frozen_param_fragments": None, "dp_world_size": ranks, "mp_world_size": 1, "global_steps": 7, "ds_config": config, "ds_version": "0.19.8"}, name + "model_states.pt")
        state = {0: {"step": torch.tensor(7.0), "exp_avg": torch.full((pieces,), rank / 2), "exp_avg_sq": torch.full((pieces,), rank / 4)}}
        group = {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "params": [0]}
        torch.save({"optimizer_state_dict": {"zero_stage": 3, "partition_count": ranks, "optimizer_state_dict": {"state": state, "param_groups": [group]},
                                             "fp32_flat_groups": [torch.full((pieces,), float(rank))]}, "ds_config": config, "ds_version": "0.19.8"}, name + "optim_states.pt")


def load_files(path):
    import torch
    for name in sorted(os.listdir(path)):
        torch.load(os.path.join(path, name), map_location="cpu", weights_only=True, mmap=True)


def validate_plan(ranks, rows, columns):
    """_validate_global_plan over one tensor sharded shard(0) over `ranks`."""
    import torch
    from torch.distributed.checkpoint.default_planner import _validate_global_plan
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorProperties, TensorStorageMetadata
    from torch.distributed.checkpoint.planner import SavePlan
    ranks, rows, columns = int(ranks), int(rows), int(columns)
    step = rows // ranks
    chunks = [ChunkStorageMetadata(torch.Size([r * step, 0]), torch.Size([step, columns])) for r in range(ranks)]
    md = Metadata({"w": TensorStorageMetadata(TensorProperties(), torch.Size([rows, columns]), chunks)})
    timed(lambda: _validate_global_plan([SavePlan([])], md) and sys.exit("refused"))


def plan_items(source, dest, tensors, rows, columns, one_rank):
    """create_read_items_for_chunk_list of `tensors` tensors, shard(0) over `source` ranks, for all `dest` ranks or one."""
    import torch
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
    source, dest, tensors, rows, columns = map(int, (source, dest, tensors, rows, columns))

    def rows_of(ranks):
        step = -(-rows // ranks)
        cuts = [min(r * step, rows) for r in range(ranks + 1)]
        return [ChunkStorageMetadata(torch.Size([a, 0]), torch.Size([b - a, columns])) for a, b in zip(cuts, cuts[1:])]

    md = TensorStorageMetadata(TensorProperties(), torch.Size([rows, columns]), rows_of(source))
    wanted = rows_of(dest)[dest // 2:dest // 2 + 1] if one_rank == "one" else rows_of(dest)
    timed(lambda: [create_read_items_for_chunk_list(f"w{t}", md, [chunk]) for t in range(tensors) for chunk in wanted])


def load_dcp(path):
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
    sd = {}
    _load_state_dict(sd, storage_reader=FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return sd


def tensors_of(sd):
    import torch
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    return {k: v.contiguous() for k, v in flatten_state_dict(sd)[0].items() if isinstance(v, torch.Tensor)}


def dcp_to_safetensors(path, dest):
    import torch  # noqa: F401
    from safetensors.torch import save_file
    import torch.distributed.checkpoint  # noqa: F401
    timed(lambda: save_file(tensors_of(load_dcp(path)), dest))


def dcp_to_torch(path, dest):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    timed(lambda: dcp_to_torch_save(path, dest))


def torch_to_dcp(path, dest):
    from torch.distributed.checkpoint.format_utils import torch_save_to_dcp
    timed(lambda: torch_save_to_dcp(path, dest))


def torch_to_safetensors(path, dest):
    import torch
    from safetensors.torch import save_file
    timed(lambda: save_file(tensors_of(torch.load(path, mmap=True)), dest))


def safetensors_to_torch(path, dest):
    import torch
    from safetensors.torch import load_file
    timed(lambda: torch.save(load_file(path), dest))


def load_items(path):
    """torch.load of every item of every data file: what a check of all bytes costs with PyTorch (no CRC)."""
    import io
    import torch
    from torch.distributed.checkpoint import FileSystemReader
    infos = sorted(FileSystemReader(path).read_metadata().storage_data.values(), key=lambda i: (i.relative_path, i.offset))

    def all_items():
        for i in infos:
            with open(os.path.join(path, i.relative_path), "rb") as f:
                f.seek(i.offset)
                torch.load(io.BytesIO(f.read(i.length)), weights_only=False)
    timed(all_items)


def equal_dcp(a, b):
    import torch

    def compare():
        x, y = tensors_of(load_dcp(a)), tensors_of(load_dcp(b))
        if x.keys() != y.keys() or not all(torch.equal(x[k], y[k]) for k in x):
            sys.exit("they differ")
    timed(compare)


def same_tensors(dcp, safetensors):
    """Not a peer: whether a conversion holds what PyTorch reads of its source."""
    import torch
    from safetensors.torch import load_file
    a, b = tensors_of(load_dcp(dcp)), load_file(safetensors)
    if a.keys() != b.keys() or not all(torch.equal(a[k], b[k]) for k in a):
        sys.exit("what tessera wrote differs from what PyTorch reads of the source")


def open_safetensors(path):
    from safetensors import safe_open

    def count():
        with safe_open(path, "pt") as f:
            len(f.keys())
    timed(count)


def our_wheel():
    """tessera.torch as native/python/install has put it."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build/wheel/installed"))
    import tessera.torch
    return tessera.torch


def dcp_save(writer, source, dest, joined=""):
    """dcp.save of the tensors of a DCP, by FileSystemWriter, which syncs what it writes as tessera.torch does, or HuggingFaceStorageWriter. joined: shards, and
    the whole tensors that they are joined to."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, HuggingFaceStorageWriter
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    metadata = FileSystemReader(source).read_metadata().state_dict_metadata
    state = {k: torch.full(m.size, 1, dtype=m.properties.dtype) for k, m in metadata.items() if isinstance(m, TensorStorageMetadata)}
    dcp.load(state, storage_reader=FileSystemReader(source), planner=dcp.DefaultLoadPlanner(flatten_state_dict=False), no_dist=True)

    def save():
        options = {"save_distributed": True, "enable_consolidation": True} if joined else {}
        made = {"tessera": lambda: our_wheel().StorageWriter(dest), "safetensors": lambda: our_wheel().StorageWriter(dest, form="safetensors", **options),
                "FileSystemWriter": lambda: FileSystemWriter(dest, sync_files=True),
                "HuggingFaceStorageWriter": lambda: HuggingFaceStorageWriter(dest, **options)}[writer]()
        dcp.save(state, storage_writer=made, no_dist=True)
    timed(save)


def dcp_load(reader, path):
    """dcp.load into tensors that are there already, by FileSystemReader, HuggingFaceStorageReader or tessera.torch."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import FileSystemReader, HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    def open_reader():
        if reader == "tessera":
            return our_wheel().StorageReader(path)
        return {"FileSystemReader": FileSystemReader, "HuggingFaceStorageReader": HuggingFaceStorageReader}[reader](path)

    def planner():
        return dcp.DefaultLoadPlanner(flatten_state_dict=False)
    metadata = open_reader().read_metadata().state_dict_metadata
    state = {k: torch.full(m.size, 1, dtype=m.properties.dtype) for k, m in metadata.items() if isinstance(m, TensorStorageMetadata)}
    timed(lambda: dcp.load(state, storage_reader=open_reader(), planner=planner(), no_dist=True))
    digest = sum(int(v.view(-1).view(torch.uint8).sum(dtype=torch.int64)) for v in state.values() if v.numel())
    with open(os.path.join(os.environ["TESSERA_BENCH_SUMS"], reader), "w") as f:
        f.write(str(digest))


def consolidate(path, dest):
    from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
    from safetensors import safe_open
    names = set()
    for f in os.listdir(path):
        with safe_open(os.path.join(path, f), "pt") as shard:
            names.update(shard.keys())
    os.makedirs(dest)
    timed(lambda: consolidate_safetensors_files(path, dest, dict.fromkeys(sorted(names), 1), num_threads=len(os.sched_getaffinity(0))))


def reshard_rank(rank, path, dest, ranks, store, results):
    import resource
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, zeros
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    sd = {}
    for name, item in FileSystemReader(path).read_metadata().state_dict_metadata.items():
        if hasattr(item, "size"):
            sd[name] = zeros(*item.size, dtype=item.properties.dtype, device_mesh=mesh, placements=[Shard(0)]) if len(item.size) else torch.zeros((), dtype=item.properties.dtype)
        else:
            sd[name] = None
    dcp.load(sd, checkpoint_id=path)
    dcp.save(sd, checkpoint_id=dest)
    dist.barrier()
    results.put((time.perf_counter() - wall, time.process_time() - cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
    dist.destroy_process_group()


def reshard_dcp(path, dest, ranks):
    """What a job of `ranks` processes does to have a checkpoint cut anew: the longest rank's time, all ranks' CPU and memory."""
    import tempfile
    import torch.multiprocessing as mp
    ranks, context = int(ranks), mp.get_context("spawn")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as scratch:
        processes = [context.Process(target=reshard_rank, args=(r, path, dest, ranks, os.path.join(scratch, "store"), results)) for r in range(ranks)]
        for p in processes:
            p.start()
        got = [results.get() for _ in processes]
        for p in processes:
            p.join()
    walls, cpus, peaks = zip(*got)
    print(json.dumps({"wall": max(walls), "cpu": sum(cpus), "peak_mib": sum(peaks)}))


def redistribute_rank(rank, world, rows, columns, turns, directory):
    import statistics

    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    own = rows // world
    local = (torch.arange(own * columns, dtype=torch.int64) + rank * own * columns).to(torch.float32).reshape(own, columns)
    by_rows, seconds = DTensor.from_local(local, mesh, [Shard(0)]), []
    for turn in range(turns + 1):
        dist.barrier()
        start = time.perf_counter()
        out = by_rows.redistribute(mesh, [Shard(1)]).to_local()
        if hasattr(out, "wait"):
            out = out.wait()
        dist.barrier()
        if turn:
            seconds.append(time.perf_counter() - start)
    assert out.shape == (rows, columns // world) and torch.equal(out[rank * own:(rank + 1) * own], local[:, rank * (columns // world):(rank + 1) * (columns // world)])
    if rank == 0:
        print(json.dumps({"wall": statistics.median(seconds)}), flush=True)
    dist.destroy_process_group()


def redistribute(world, rows, columns, turns):
    """DTensor, rows to columns over gloo."""
    import tempfile

    import torch.multiprocessing as mp
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(redistribute_rank, (int(world), int(rows), int(columns), int(turns), directory), nprocs=int(world))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
