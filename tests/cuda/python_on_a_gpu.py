"""The Python package beside PyTorch on a GPU: checkpoints that PyTorch writes from CUDA tensors, and CUDA tensors that the package
fills and saves. Run by on_a_gpu, which needs no more than PyTorch for CUDA, safetensors and the unpacked wheel:

    python_on_a_gpu.py test [SAMPLES]     every test below; prints "N passed, N failed". SAMPLES: keep what PyTorch wrote there
    python_on_a_gpu.py bench GIB          seconds to load weights into device memory and to save them, with the peers, sides in turn: a
                                          table"""
import io
import os
import shutil
import statistics
import sys
import tempfile
import time
import traceback
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType, fully_shard
from torch.distributed.tensor import DTensor

import tessera
import tessera.torch
from tessera import _slots

warnings.filterwarnings("ignore")
GPU = torch.device("cuda", 0)


# ---- what is compared ----


def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def equal(a, b):
    """Bits, shapes and dtypes, wherever the tensors are."""
    a, b = (whole(x).detach().cpu().contiguous() for x in (a, b))
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def must_equal(got, want, where=""):
    if isinstance(want, dict):
        assert got.keys() == want.keys(), f"{where}: {set(got) ^ set(want)}"
        for key in want:
            must_equal(got[key], want[key], f"{where}.{key}")
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), where
        for n, pair in enumerate(zip(got, want)):
            must_equal(*pair, f"{where}[{n}]")
    elif isinstance(want, torch.Tensor):
        assert equal(got, want), where
    else:
        assert got == want, f"{where}: {got}, not {want}"


def tensors_of(state, prefix=""):
    """{fqn: tensor} of a nested state dict, by the names that Tessera gives."""
    if isinstance(state, torch.Tensor):
        return {prefix: state}
    pairs = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, (list, tuple)) else ()
    return {name: t for key, value in pairs for name, t in tensors_of(value, f"{prefix}.{key}" if prefix else str(key)).items()}


def poisoned(state):
    """The same tensors with other bits, of the same strides."""
    if isinstance(state, dict):
        return {key: poisoned(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(map(poisoned, state))
    if not isinstance(state, torch.Tensor):
        return None
    other = torch.empty_strided(state.shape, state.stride(), dtype=state.dtype, device=state.device)
    other.untyped_storage().fill_(0x5a)
    return other


# ---- state dicts on the GPU ----


def trained():
    """A model and a fused AdamW after three steps."""
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.GELU(), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 5)).to(GPU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    train(model, optimizer)
    return model, optimizer


def train(model, optimizer):
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 24, device=GPU)).square().mean().backward()
        optimizer.step()


DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.int64, torch.int32,
          torch.int16, torch.int8, torch.uint8, torch.bool)


def of_every_dtype():
    torch.manual_seed(9)
    return {str(dtype).removeprefix("torch."): (torch.randn(7, 12, device=GPU) * 50).to(dtype) for dtype in DTYPES}


def awkward():
    """Views, transposes, shared and empty memory, scalars, and what cannot be contiguous."""
    base = torch.randn(64, 48, device=GPU)
    return {"base": base, "rows": base[8:24], "columns": base[:, 3:9], "transposed": base.t(), "scalar": torch.tensor(2.5, device=GPU),
            "empty": torch.zeros(0, 4, device=GPU), "channels_last": torch.randn(2, 3, 4, 5, device=GPU).to(memory_format=torch.channels_last)}


def training_state():
    model, optimizer = trained()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all()},
            "scaler": torch.amp.GradScaler("cuda").state_dict(), "dtypes": of_every_dtype(), "views": awkward(), "step": 3}


# ---- tests: what PyTorch wrote from CUDA tensors ----


def keep(t, path):
    if t["samples"]:
        to = os.path.join(t["samples"], os.path.basename(path))
        shutil.copytree(path, to) if os.path.isdir(path) else shutil.copy(path, to)


def test_a_torch_file_of_cuda_tensors(t):
    state, path = training_state(), t["at"]("cuda_training.pt")
    torch.save(state, path)
    keep(t, path)
    want = tensors_of(state)
    for device in ("cpu", "cuda", "cuda:0"):
        got = tessera.torch.load(path, map_location=device)
        must_equal(got, want, path)
        assert all(x.device.type == device.partition(":")[0] for x in got.values())
    assert [f.rule for f in tessera.check(path, deep=True) if f.level == "error"] == []
    assert torch.load(io.BytesIO(tessera.open(path)["step"].save())) == 3


def test_a_safetensors_file_of_cuda_tensors(t):
    state, path = {k: v for k, v in of_every_dtype().items() if "complex" not in k}, t["at"]("cuda.safetensors")
    save_file(state, path)
    must_equal(tessera.torch.load(path, map_location="cuda"), state)
    assert tessera.check(path, deep=True) == []


def fsdp2():
    mesh = init_device_mesh("cuda", (1,), mesh_dim_names=("fsdp",))
    torch.manual_seed(11)
    model = torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.Linear(16, 5)).to(GPU)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
    train(model, optimizer)
    return {"model": model.state_dict(), "optim": {str(k): v for k, v in optimizer.state_dict()["state"].items()}}


def test_a_dcp_of_cuda_dtensors(t):
    state, path = fsdp2(), t["at"]("cuda_fsdp2")
    dcp.save(state, checkpoint_id=path)
    keep(t, path)
    must_equal(tessera.torch.load(path, map_location="cuda"), tensors_of(state))
    assert [f for f in tessera.check(path, deep=True) if f.level == "error"] == []


def test_an_async_dcp_of_cuda_tensors(t):
    state, path = {"of": {**of_every_dtype(), **awkward()}}, t["at"]("cuda_async")
    dcp.async_save(state, checkpoint_id=path).result()
    keep(t, path)
    must_equal(tessera.torch.load(path, map_location="cuda"), tensors_of(state))


# ---- tests: the package fills CUDA tensors ----


def checkpoints(t, state):
    """One state in three formats."""
    flat = {name: value.contiguous().clone() for name, value in tensors_of(state).items()}
    torch.save(flat, t["at"]("flat.pt"))
    dcp.save(flat, checkpoint_id=t["at"]("flat_dcp"))
    save_file(flat, t["at"]("flat.safetensors"))
    return flat, [t["at"](name) for name in ("flat.pt", "flat_dcp", "flat.safetensors")]


def without_complex():
    return {**{k: v for k, v in of_every_dtype().items() if "complex" not in k}, **awkward()}


def test_load_into_fills_cuda_tensors_of_any_strides(t):
    state = without_complex()
    flat, paths = checkpoints(t, state)
    for path in paths:
        to = poisoned(state)
        strides = {name: x.stride() for name, x in to.items()}
        addresses = {name: x.data_ptr() for name, x in to.items()}
        assert tessera.torch.load_into(to, path) == ([], [])
        must_equal(to, flat, path)
        assert strides == {name: x.stride() for name, x in to.items()} and addresses == {name: x.data_ptr() for name, x in to.items()}


def test_the_reader_fills_cuda_tensors_of_any_strides(t):
    state = without_complex()
    flat, paths = checkpoints(t, state)
    for path in paths:
        to = poisoned(state)
        dcp.load(to, storage_reader=tessera.torch.StorageReader(path))
        must_equal(to, flat, path)
        assert all(x.device == GPU for x in to.values())


def test_the_reader_fills_cuda_dtensors(t):
    want, path = fsdp2(), t["at"]("from_fsdp2")
    dcp.save(want, checkpoint_id=path)
    for load in (lambda s: dcp.load(s, storage_reader=tessera.torch.StorageReader(path)), lambda s: tessera.torch.load_into(s, path)):
        blank = fsdp2()
        for x in tensors_of(blank).values():
            (x._local_tensor if isinstance(x, DTensor) else x).fill_(-3)
        load(blank)
        must_equal(blank, want)


def test_pinned_and_streams(t):
    """What is loaded is there without a wait, for kernels on other streams too."""
    flat, paths = checkpoints(t, {"a": torch.randn(1 << 22, device=GPU), "b": torch.randn(3, 1 << 20, device=GPU)})
    for _ in range(5):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            got = tessera.torch.load(paths[1], map_location="cuda")
        assert all(bool((got[name] == flat[name]).all()) for name in flat)


def test_tensors_larger_than_a_slot(t):
    """Through slots of 1 MiB, which are used again while copies are under way."""
    before, _slots.SLOT_BYTES = _slots.SLOT_BYTES, 1 << 20
    try:
        state = {f"w{i}": torch.randn(3 + i, 700, 500, device=GPU).transpose(0, i % 3) for i in range(6)}
        flat, paths = checkpoints(t, state)
        for path in paths:
            must_equal(tessera.torch.load(path, map_location="cuda"), flat, path)
            for load in (lambda s: tessera.torch.load_into(s, path), lambda s: dcp.load(s, storage_reader=tessera.torch.StorageReader(path))):
                to = poisoned(state)
                load(to)
                must_equal(to, flat, path)
    finally:
        _slots.SLOT_BYTES = before


# ---- tests: the package saves CUDA tensors ----


def saved(path, state):
    blank = poisoned(state)
    dcp.load(blank, storage_reader=FileSystemReader(path))
    return blank


def test_the_writer_saves_cuda_tensors(t):
    for number, save in enumerate((lambda s, w: dcp.save(s, storage_writer=w), lambda s, w: dcp.async_save(s, storage_writer=w).result())):
        state, path = {**of_every_dtype(), **awkward()}, t["at"](f"ours{number}")
        save(state, tessera.torch.StorageWriter(path))
        must_equal(saved(path, state), state, path)
        must_equal(tessera.torch.load(path, map_location="cuda"), state, path)
        assert tessera.check(path, deep=True) == []


def test_an_async_save_holds_what_was_there_when_it_began(t):
    state, path = {"a": torch.arange(1 << 22, device=GPU, dtype=torch.float32), "b": torch.full((1 << 20,), 4., device=GPU)}, t["at"]("staged")
    before = {name: x.clone() for name, x in state.items()}
    saving = dcp.async_save(state, storage_writer=tessera.torch.StorageWriter(path))
    for x in state.values():
        x.zero_()
    saving.result()
    must_equal(tessera.torch.load(path), before)


def test_the_writer_saves_cuda_dtensors(t):
    state, path = fsdp2(), t["at"]("ours_fsdp2")
    dcp.save(state, storage_writer=tessera.torch.StorageWriter(path))
    blank = fsdp2()
    for x in tensors_of(blank).values():
        (x._local_tensor if isinstance(x, DTensor) else x).fill_(-3)
    dcp.load(blank, checkpoint_id=path)
    must_equal(blank, state)


# ---- tests: FSDP1's optimizer state ----


def test_sharded_optimizer_state_on_the_gpu(t):
    """The state is on the GPU, since the group is for nothing else."""
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(24, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    model = FSDP(net, dist.new_group(backend="nccl"), device_id=GPU, use_orig_params=True)
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25, amsgrad=True)
    train(model, optimizer)
    path = t["at"]("cuda_fsdp1")
    dcp.save({"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}, checkpoint_id=path)
    keep(t, path)
    theirs = load_sharded_optimizer_state_dict(model.state_dict(), "optimizer", FileSystemReader(path))
    ours = tessera.load_sharded_optimizer_state(path, "optimizer", model.state_dict())
    same_state(ours, theirs, "")
    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, ours["optimizer"]))


def same_state(ours, theirs, where):
    assert type(ours) is type(theirs), f"{where}: {type(ours)}, {type(theirs)}"
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs), where
        for key in theirs:
            same_state(ours[key], theirs[key], f"{where}.{key}")
    elif hasattr(theirs, "local_shards"):
        assert ours.metadata() == theirs.metadata(), where
        for a, b in zip(ours.local_shards(), theirs.local_shards(), strict=True):
            assert a.tensor.device == b.tensor.device and equal(a.tensor, b.tensor), where
    elif isinstance(theirs, torch.Tensor):
        assert ours.device == theirs.device and equal(ours, theirs), f"{where}: {ours}, {theirs}"
    else:
        assert ours == theirs, f"{where}: {ours}, {theirs}"


# ---- the runner ----


def run_tests(samples):
    if samples:
        os.makedirs(samples, exist_ok=True)
    passed = failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_"):
            continue
        with tempfile.TemporaryDirectory() as directory:
            try:
                test({"at": lambda path: os.path.join(directory, path), "samples": samples})
                passed += 1
            except Exception:
                failed += 1
                print(f"FAIL {name}\n{traceback.format_exc(limit=-4)}")
    print(f"{passed} passed, {failed} failed")
    return failed


# ---- loading and saving, with the peers ----


def sides(directory, state):
    """{name: (load, the file it reads)}; each returns or fills CUDA tensors."""
    pt, st, dc = (os.path.join(directory, name) for name in ("w.pt", "w.safetensors", "w_dcp"))
    torch.save(state, pt)
    save_file(state, st)
    dcp.save(state, checkpoint_id=dc)
    blank = {name: torch.empty_like(x) for name, x in state.items()}

    def fill(reader):
        dcp.load(blank, storage_reader=reader)
        return blank

    def ours_into(path):
        tessera.torch.load_into(blank, path)
        return blank
    return {"tessera.torch.load, .safetensors": lambda: tessera.torch.load(st, map_location="cuda"),
            "safetensors load_file(device='cuda')": lambda: load_file(st, device="cuda"),
            "tessera.torch.load_into, .safetensors": lambda: ours_into(st),
            "tessera.torch.load, .pt": lambda: tessera.torch.load(pt, map_location="cuda"),
            "torch.load(map_location='cuda')": lambda: torch.load(pt, map_location="cuda", weights_only=True),
            "torch.load(mmap=True, map_location='cuda')": lambda: torch.load(pt, map_location="cuda", weights_only=True, mmap=True),
            "tessera StorageReader, DCP": lambda: fill(tessera.torch.StorageReader(dc)),
            "PyTorch FileSystemReader, DCP": lambda: fill(FileSystemReader(dc))}


def load_once(job, state):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    got = job()
    torch.cuda.synchronize()
    wall = time.perf_counter() - begin
    assert all(torch.equal(got[key], state[key]) for key in state)
    return wall


def save_once(writer, state):
    with tempfile.TemporaryDirectory() as directory:
        begin = time.perf_counter()
        dcp.save(state, storage_writer=writer(os.path.join(directory, "c")))
        return time.perf_counter() - begin


def run_bench(gib):
    state = {f"layers.{i}.weight": torch.randn(int(gib * (1 << 28)) // 32 // 4096, 4096, device=GPU) for i in range(32)}
    total, walls = sum(x.numel() * x.element_size() for x in state.values()), {}
    with tempfile.TemporaryDirectory() as directory:
        jobs = {name: lambda job=job: load_once(job, state) for name, job in sides(directory, state).items()}
        for name, writer in (("tessera StorageWriter", tessera.torch.StorageWriter), ("PyTorch FileSystemWriter", FileSystemWriter)):
            jobs[f"{name}, saves"] = lambda writer=writer: save_once(writer, state)
        for _ in range(3):
            for name, job in jobs.items():
                walls.setdefault(name, []).append(job())
    print(f"| {total / 1e9:.2f} GB of float32 in device memory | seconds | GB/s |\n|---|---|---|")
    for name, times in walls.items():
        wall = statistics.median(times)
        print(f"| {name} | {wall:.3f} | {total / wall / 1e9:.2f} |")


def main():
    if not torch.cuda.is_available():
        sys.exit("python_on_a_gpu: PyTorch sees no CUDA device")
    torch.cuda.set_device(GPU)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=GPU)
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name(GPU)}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
    try:
        job, *arguments = sys.argv[1:] or ["test"]
        status = run_bench(float(arguments[0])) if job == "bench" else run_tests(arguments[0] if arguments else None)
    finally:
        dist.destroy_process_group()
    sys.exit(1 if status else 0)


if __name__ == "__main__":
    main()
