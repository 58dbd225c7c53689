"""The wheel: its tag, its installation, its bindings, and its StorageReader beside PyTorch's own readers."""
import glob
import hashlib
import io
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import zipfile

import torch
from ended import leaving
from harness import ROOT, SAMPLES, sample_names, sample_path, sha256
from shell import TOOLS, VERSION, check
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch_names import EmptyStateDictLoadPlanner, StorageMeta, dcp, has, needs

WHEEL = glob.glob(os.path.join(ROOT, "build/wheel/dist/*.whl"))[0]
INSTALLED = os.path.join(ROOT, "build/wheel/installed")
sys.path.insert(0, INSTALLED)
sys.path.append(os.path.join(ROOT, "samples"))  # classes of the samples' objects, for PyTorch
import tessera  # noqa: E402
import tessera.torch  # noqa: E402
from tessera._slots import dtype_of  # noqa: E402


def is_sound(path):
    """Whether a deep check finds nothing. Metadata that PyTorch 2.15 writes may have the finding that older versions cannot load it."""
    return tessera.check(path, deep=True, rule="dcp/newer=off") == []


def test_the_tag_is_what_auditwheel_finds(t):
    tag = os.path.basename(WHEEL).removesuffix(".whl").split("-")[-1]
    out = " ".join(check(os.path.join(TOOLS, "bin/auditwheel"), "show", WHEEL).split())
    assert tag.startswith("manylinux_2_28_") and f'consistent with the following platform tag: "{tag}"' in out.replace("platform tag: \"", "platform tag: \""), out


def test_nothing_in_the_wheel_needs_a_newer_glibc_than_2_28(t):
    binaries = [name for name in zipfile.ZipFile(WHEEL).namelist() if zipfile.ZipFile(WHEEL).read(name)[:4] == b"\x7fELF"]
    assert len(binaries) == 2, binaries
    for name in binaries:
        path = zipfile.ZipFile(WHEEL).extract(name, t.at("binaries"))
        versions = {tuple(map(int, v.split("."))) for v in re.findall(r"Name: GLIBC_([0-9.]+)", check("readelf", "-W", "--version-info", path))}
        assert versions and max(versions) <= (2, 28), f"{name} needs glibc {max(versions)}"


def test_pip_installs_the_command_and_a_package_without_torch(t):
    check(sys.executable, "-m", "venv", t.at("venv"))
    check(t.at("venv/bin/pip"), "install", "--no-index", "--disable-pip-version-check", WHEEL)
    assert f"tessera {VERSION}" in check(t.at("venv/bin/tessera"), "--version")
    assert "dcp_small" in check(t.at("venv/bin/tessera"), "inspect", os.path.join(SAMPLES, "dcp_small"))
    program = ("import sys, tessera\nc = tessera.open(sys.argv[1])\nprint(tessera.__version__, c.format, len(c), c['weight'][0:1].nbytes)\n"
               "assert 'torch' not in sys.modules\n")
    assert check(t.at("venv/bin/python"), "-c", program, os.path.join(SAMPLES, "dcp_small")).split()[:2] == [VERSION, "dcp"]
    check(t.at("venv/bin/pip"), "check", "--disable-pip-version-check")
    check(t.at("venv/bin/pip"), "uninstall", "-y", "tessera-checkpoint", "--disable-pip-version-check")
    assert not os.path.exists(t.at("venv/bin/tessera"))


def test_the_wheel_carries_the_licences_of_what_is_linked_in(t):
    names = zipfile.ZipFile(WHEEL).namelist()
    for part in ("LICENSE", "cjson", "libdeflate", "libexpat", "libssl", "libzstd", "libxxhash"):
        assert any("/licenses/" in n and part in n for n in names), f"no licence of {part}"


INTERRUPTED = """
import os, signal, sys, threading, time
import tessera
c = tessera.open(sys.argv[1])
room = bytearray(1 << 30)
calls = {"inspect": lambda: c.inspect("sha256"), "stats": lambda: c.inspect(stats=True), "validate": lambda: c.validate(deep=True), "diff": lambda: tessera.diff(sys.argv[1], sys.argv[2], values=True),
         "read": lambda: [c["w"].read([k << 20, 0], [1 << 20, 1024], out=room) for k in range(1 << 16)]}
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
try:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    calls[sys.argv[3]]()
except KeyboardInterrupt:
    assert c["w"].read([0, 0], [1, 1024]).nbytes == 1024, "the checkpoint is of no use afterwards"
    print("interrupted")
"""


def test_ctrl_c_ends_what_the_library_does(t):
    for name in ("a", "b"):  # 64 GiB of nothing: no call is done with it before the signal comes
        text = json.dumps({"w": {"dtype": "U8", "shape": [1 << 26, 1024], "data_offsets": [0, 1 << 36]}}).encode()
        with open(t.at(name), "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text)
            f.truncate(8 + len(text) + (1 << 36))
    for call in ("inspect", "stats", "validate", "diff", "read"):
        p = subprocess.run([sys.executable, "-c", INTERRUPTED, t.at("a"), t.at("b"), call], capture_output=True, timeout=600, env={**os.environ, "PYTHONPATH": INSTALLED})
        assert p.returncode == 0 and p.stdout == b"interrupted\n", (call, p.returncode, p.stderr[-500:])


WITHOUT_SESSIONS = """
import os, signal, threading
from tessera._library import _interruptible
handled, ended = threading.Event(), []
def handle(*arguments):
    handled.set()
    signal.default_int_handler(*arguments)
signal.signal(signal.SIGINT, handle)
def call(result):
    if result == 8:
        os.kill(os.getpid(), signal.SIGINT)
        handled.wait(60)
    ended.append(result)
    return result
assert _interruptible([], call, 7) == 7 and ended == [7], ended
try:
    _interruptible([], call, 8)
except KeyboardInterrupt:
    print("interrupted", ended)
"""


def test_a_call_without_sessions_is_waited_for(t):
    p = subprocess.run([sys.executable, "-c", WITHOUT_SESSIONS], capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONPATH": INSTALLED})
    assert p.returncode == 0 and p.stdout == "interrupted [7, 8]\n", (p.returncode, p.stdout, p.stderr[-500:])


OPENED = """
import os, signal, sys, threading, time
import tessera
from tessera import _library
enough = float(sys.argv[2])  # seconds of the processor in the library's thread, after which the signal comes; 0: none
clocks, stopped, ended = [], [], []  # of that thread: its clock, and what it showed when the call was to stop, and at its end
counted = _library._counted
def timed(*arguments):
    clocks.append(time.pthread_getcpuclockid(threading.get_ident()))
    try:
        return counted(*arguments)
    finally:
        ended.append(time.thread_time())
_library._counted = timed
def send():
    while not clocks or time.clock_gettime(clocks[0]) < enough:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)
def trace(frame, event, _):
    if frame.f_code is not _library._interruptible.__code__:
        return None
    if not stopped and any(stop.flag.value for stop in frame.f_locals["stops"]):
        stopped.append(time.clock_gettime(clocks[0]))
    return trace
signal.signal(signal.SIGINT, signal.default_int_handler)
if enough:
    threading.Thread(target=send, daemon=True).start()
sys.settrace(trace)
try:
    assert len(tessera.open(sys.argv[1])) == 400000
    print("opened", ended[0], flush=True)
except KeyboardInterrupt:
    print("interrupted", ended[0] - stopped[0], flush=True)
os._exit(0)  # before a signal that comes late
"""


def test_ctrl_c_ends_the_parsing_of_names(t):
    """Measured in time of the processor, which nothing else on the machine takes, and from the moment at which the main thread has asked the
    library to stop: on a busy machine it does that late."""
    torch.save({f"layers.{i}.weight": i for i in range(400000)}, t.at("many.pt"))

    def opened(enough):
        p = subprocess.run([sys.executable, "-c", OPENED, t.at("many.pt"), str(enough)], capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONPATH": INSTALLED})
        assert p.returncode == 0, p.stderr[-500:]
        how, seconds = p.stdout.split()
        return how, float(seconds)
    how, whole = opened(0)
    assert how == "opened"
    for part in (0.15, 0.3, 0.5):  # the pickle is read, and then nothing until the next part
        how, seconds = opened(whole * part)
        assert how == "interrupted" and seconds < whole * 0.07, (how, seconds, whole, part)


def resolved(tensor):
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def test_every_sample_reads_as_pytorch_reads_it(t):
    seen = 0
    for name, want in sample_names():
        want_entries = want.get("entries") or want.get("written")
        if want_entries is None or "base" in want:
            continue
        with tessera.open(sample_path(name, want)) as checkpoint:
            tensors = {n: e for n, e in checkpoint.items() if e.kind == "tensor"}
            assert set(tensors) == set(want_entries), name
            for key, w in want_entries.items():
                entry = tensors[key]
                digest = want.get("written", {}).get(key, w).get("sha256")
                assert entry.dtype == w["dtype"].removeprefix("torch.") and digest in (None, hashlib.sha256(entry.read()).hexdigest()), f"{name}: {key}"
                seen += 1
    assert seen > 500, seen


def test_slices_are_those_of_torch(t):
    needs(StorageMeta)  # which the .metadata of samples has
    rng = random.Random(7)
    path = os.path.join(SAMPLES, "dcp_tp_fsdp2")
    state = load_with(FileSystemReader(path))
    with tessera.open(path) as checkpoint:
        for name, value in flatten_state_dict(state)[0].items():
            if not isinstance(value, torch.Tensor) or value.dim() == 0:
                continue
            entry = checkpoint[name]
            for _ in range(4):
                starts = [rng.randint(0, n) for n in value.shape]
                key = tuple(slice(s, rng.randint(s, n)) for s, n in zip(starts, value.shape))
                got = entry[key]
                want = resolved(value[key])
                assert got.nbytes == want.numel() * want.element_size() and bytes(got) == want.numpy().tobytes(), f"{name}{key}"
                assert not got.nbytes or got.shape == tuple(want.shape)
            for key in (..., (..., slice(0, 2)), (0, ...), (-1, ...) + (slice(None),) * (value.dim() - 1)):
                want = value[key if key is ... else tuple(slice(k, k + 1 or None) if isinstance(k, int) else k for k in key)]
                assert bytes(entry[key]) == resolved(want).numpy().tobytes() and entry.array(key).shape == tuple(want.shape), f"{name}{key}"
            last = entry[-1]
            assert last.tolist() == resolved(value[-1:]).tolist()


def refused(call, kind, *parts):
    try:
        call()
    except kind as e:
        assert all(part in str(e) for part in parts), str(e)
        return e
    raise AssertionError(f"nothing was raised: {parts}")


def test_misuse_and_damage_are_exceptions_with_the_reason(t):
    path = os.path.join(SAMPLES, "dcp_small")
    e = refused(lambda: tessera.open(t.at("absent")), tessera.Error, "No such file")
    assert e.status == "not found" and e.byte_position is None
    e = refused(lambda: tessera.open(os.path.join(SAMPLES, "broken_safetensors_not_json/model.safetensors")), tessera.Error, "safetensors")
    assert e.status == "malformed" and e.byte_position is not None
    with tessera.open(path) as checkpoint:
        weight = checkpoint["weight"]
        refused(lambda: weight.read(out=bytes(weight.nbytes)), ValueError, "writable")
        refused(lambda: weight.read(out=bytearray(3)), ValueError, str(weight.nbytes))
        refused(lambda: weight.read([0] * 5, [1] * 5), ValueError, "2 numbers")
        refused(lambda: weight.read([0, 0], [2**40, 1]), ValueError, "beyond 'weight'")
        refused(lambda: weight[::2], IndexError, "may not have a step, which is 2")
        refused(lambda: weight[99], IndexError, "99")
        refused(lambda: weight[..., 0, ...], IndexError, "only one ...")
        refused(lambda: weight[0, ..., 0, 0], IndexError, "2 dims, not 3")
        for key in (True, None, 1.0, [0], "0"):
            refused(lambda: weight[key], TypeError, "indexed by integers")
        refused(lambda: checkpoint["step"].read(), TypeError, "not one dense tensor")
        refused(lambda: checkpoint["absent"], KeyError, "absent")
    refused(lambda: weight.read(), ValueError, "closed")
    with tessera.open(os.path.join(SAMPLES, "broken_dcp_missing_file")) as checkpoint:
        for entry in checkpoint.values():
            if entry.kind == "tensor":
                refused(entry.read, tessera.Error, "missing")
                break


def test_what_expands_without_end_is_refused(t):
    path = t.at("x.pt")
    torch.save({"w": torch.arange(4.0)[1:2].expand(1 << 40), "v": torch.arange(3.0), "few": torch.ones(1).expand(1 << 15, 1 << 14)}, path)
    assert len(tessera.inspect(path)["entries"]) == 3
    for work in (lambda: tessera.inspect(path, hash="xxh3"), lambda: tessera.inspect(path, stats=True), lambda: tessera.diff(path, path, values=True)):
        assert refused(work, tessera.Error, "'w'").status == "limit exceeded"
    with tessera.open(path) as checkpoint:
        assert torch.frombuffer(bytearray(checkpoint["w"].read([7], [2])), dtype=torch.float32).tolist() == [1.0, 1.0]
    twin = t.at("y.pt")
    torch.save({"few": torch.ones(1).expand(1 << 15, 1 << 14)}, twin)  # 2 GiB
    refused(lambda: tessera.inspect(twin, stats=True), tessera.Error, "'few'")
    assert tessera.inspect(twin, stats=True, allow_expansion=True)["entries"][0]["stats"]["mean"] == 1.0
    shared = {"w": 1}
    for _ in range(40):
        shared = {"a": shared, "b": shared}
    torch.save(shared, path)
    refused(lambda: tessera.open(path), tessera.Error, "expand")


def test_documents_are_those_of_the_command(t):
    a, b = os.path.join(SAMPLES, "dcp_fsdp2"), os.path.join(SAMPLES, "dcp_tp_fsdp2")
    assert tessera.inspect(a, hash="sha256", stats=True) == t.json("inspect", a, "--json", "--hash", "sha256", "--stats")
    assert tessera.diff(a, b, values=True) == t.json("diff", a, b, "--json", "--values", status=1)
    assert tessera.diff(a, a, atol=1e-6)["same"]
    hole = os.path.join(SAMPLES, "broken_dcp_hole")
    assert tessera.validate(hole, deep=True) == t.json("validate", hole, "--deep", "--json", status=1)
    for form in ("json", "sarif", "junit", "github", "gitlab"):
        assert tessera.report(hole, form).encode() == t.run("validate", hole, "--format", form, status=1).stdout
        assert tessera.report(hole, form, deep=True, rule=["layout/hole=note"]).encode() == t.run("validate", hole, "--deep", "--rule", "layout/hole=note", "--format", form).stdout
        assert tessera.report_diff(a, b, form, values=True).encode() == t.run("diff", a, b, "--values", "--format", form, status=1).stdout
    layout = t.run("layout", a).stdout.decode()
    assert tessera.validate(a, layout=layout)["summary"]["errors"] == 0
    assert tessera.validate(b, layout=layout) == t.json("validate", b, "--json", "--layout", save(t, "layout.json", layout), status=1)


def save(t, name, text):
    with open(t.at(name), "w") as f:
        f.write(text)
    return t.at(name)


# ---- torch.distributed.checkpoint ----


def load_with(reader):
    state = {}
    _load_state_dict(state, storage_reader=reader, planner=EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and sha256(a) == sha256(b)
    if isinstance(a, dict):
        return type(a) is type(b) and set(a) == set(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if type(a).__module__ == "numpy":
        return type(a) is type(b) and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if hasattr(a, "__dict__") and not isinstance(a, type):
        return type(a) is type(b) and same(vars(a), vars(b))
    return type(a) is type(b) and (a == b or a != a)


# PyTorch's reader decodes no zstd without its extension, and needs the one .metadata.
READS_ITSELF = {name for name, want in sample_names("dcp_") if os.path.exists(os.path.join(sample_path(name, want), ".metadata"))
                and name not in ("dcp_zstd", "dcp_safetensors_items")}


def test_dcp_loads_as_by_pytorchs_own_reader(t):
    seen = 0
    for name in sorted(READS_ITSELF):
        path = os.path.join(SAMPLES, name)
        try:
            want = load_with(FileSystemReader(path))
        except (Exception, CheckpointException) as e:  # what PyTorch cannot load, its own samples' goldens tell
            print(f"note: PyTorch itself does not load {name}: {type(e).__name__}: {str(e)[:100]}")
            continue
        got = load_with(tessera.torch.StorageReader(path, unsafe_objects=True))
        flat, ours = flatten_state_dict(want)[0], flatten_state_dict(got)[0]
        assert same(want, got), f"{name} differs: {[(k, flat[k], ours.get(k)) for k in flat if not same(flat[k], ours.get(k))][:5]}"
        seen += 1
    assert seen > 10 or seen and not has(StorageMeta), seen  # which PyTorch 2.3 does not have, and .metadata of later versions does


def test_every_sample_loads_through_dcp(t):
    formats = set()
    for name, want in sample_names():
        entries = want.get("entries") or want.get("written")
        if entries is None or "base" in want:
            continue
        path = sample_path(name, want)
        with tessera.open(path) as checkpoint:
            state = {n: torch.empty(e.shape, dtype=dtype_of(e)) for n, e in checkpoint.items()
                     if e.kind == "tensor" and dtype_of(e)}
            formats.add(checkpoint.format)
        if not state:
            continue
        dcp.load(state, storage_reader=tessera.torch.StorageReader(path), planner=dcp.DefaultLoadPlanner(flatten_state_dict=False), no_dist=True)
        for key, value in state.items():
            w = entries[key]
            digest = want.get("written", {}).get(key, w).get("sha256")
            assert str(value.dtype) == "torch." + w["dtype"].removeprefix("torch.") and digest in (None, sha256(value)), f"{name}: {key}"
    assert formats >= {"dcp", "dcp-safetensors", "safetensors", "safetensors-index", "torch-zip", "torch-legacy", "torch-ranks", "torch-index"}, formats


def test_tensors_of_any_kind_are_filled(t):
    state = {"rows": torch.randn(40, 30), "wide": torch.randn(3, 1000, 1000), "scalar": torch.tensor(3.5), "empty": torch.zeros(0, 4),
             "half": torch.randn(5, 6).half(), "note": {"lr": 0.1, "betas": (0.9, 0.95), "tags": ["a", None, True]}}
    dcp.save(state, checkpoint_id=t.at("saved"), no_dist=True)
    target = {"rows": torch.zeros(30, 40).t(), "wide": torch.zeros(3, 1000, 1000, dtype=torch.float64), "scalar": torch.zeros(()),
              "empty": torch.ones(0, 4), "half": torch.zeros(5, 6, dtype=torch.bfloat16), "note": {"lr": 0, "betas": None, "tags": None}}
    other = {k: v.clone() if isinstance(v, torch.Tensor) else dict(v) for k, v in target.items()}
    dcp.load(target, storage_reader=tessera.torch.StorageReader(t.at("saved")), no_dist=True)
    dcp.load(other, checkpoint_id=t.at("saved"), no_dist=True)
    assert same(target, other) and torch.equal(target["rows"], state["rows"]) and target["note"] == state["note"]
    refused(lambda: dcp.load({"absent": torch.zeros(1)}, storage_reader=tessera.torch.StorageReader(t.at("saved")), no_dist=True), (Exception, CheckpointException), "absent")
    refused(lambda: dcp.load({"rows": torch.zeros(1)}, storage_reader=tessera.torch.StorageReader(t.at("saved")), no_dist=True), (Exception, CheckpointException), "rows")


RANK = r"""
import os, sys, torch, torch.distributed as dist
sys.path[:0] = sys.argv[1].split(os.pathsep)
import tessera.torch
from torch.distributed.device_mesh import init_device_mesh
from torch_names import DTensor, Shard, Replicate, dcp, distribute_tensor
rank, world, source, out, rendezvous = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5], sys.argv[6]
dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=world)
mesh = init_device_mesh("cpu", (world,))
def state():
    return {"rows": distribute_tensor(torch.zeros(10, 7), mesh, [Shard(0)]), "columns": distribute_tensor(torch.zeros(10, 7), mesh, [Shard(1)]),
            "whole": distribute_tensor(torch.zeros(6), mesh, [Replicate()]), "step": 0}
ours, theirs = state(), state()
dcp.load(ours, storage_reader=tessera.torch.StorageReader(source))
if not source.endswith(".pt"):
    dcp.load(theirs, checkpoint_id=source)
full = {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in ours.items()}
same = {k: source.endswith(".pt") or (torch.equal(v.to_local(), theirs[k].to_local()) if isinstance(v, DTensor) else v == theirs[k]) for k, v in ours.items()}
assert all(same.values()), same
if rank == 0:
    torch.save(full, out)
dist.destroy_process_group()
"""


def test_ranks_load_their_shards_of_dcp_and_of_one_torch_file(t):
    state = {"rows": torch.randn(10, 7), "columns": torch.randn(10, 7), "whole": torch.randn(6), "step": 17}
    dcp.save(state, checkpoint_id=t.at("saved"), no_dist=True)
    torch.save(state, t.at("state.pt"))
    for source in ("saved", "state.pt"):
        ranks = [subprocess.Popen([sys.executable, "-c", leaving(RANK), os.pathsep.join((INSTALLED, *(os.path.join(ROOT, "tests", of) for of in ("package", "support")))), str(r), "3", t.at(source), t.at("full.pt"), t.at(f"meet-{source}")],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for r in range(3)]
        for rank in ranks:
            out = rank.communicate(timeout=120)[0].decode()
            assert rank.returncode == 0, out[-2000:]
        assert same(torch.load(t.at("full.pt")), state), source
        os.unlink(t.at("full.pt"))


class Innocent:
    def __reduce__(self):
        return (open, (os.environ["TESSERA_TEST_RAN"], "w"))


def test_nothing_of_a_checkpoint_is_executed_unless_asked_for(t):
    os.environ["TESSERA_TEST_RAN"] = t.at("ran")
    torch.save({"w": torch.ones(2), "trap": Innocent(), "fine": (1, 2.5, "x")}, t.at("trap.pt"))
    if os.path.exists(t.at("ran")):
        os.unlink(t.at("ran"))
    reader = tessera.torch.StorageReader(t.at("trap.pt"))
    state = {"w": torch.zeros(2), "fine": None}
    dcp.load(state, storage_reader=reader, no_dist=True)
    assert state["fine"] == (1, 2.5, "x") and state["w"].sum() == 2
    refused(lambda: dcp.load({"trap": 0}, storage_reader=tessera.torch.StorageReader(t.at("trap.pt")), no_dist=True), (Exception, CheckpointException), "not data")
    assert not os.path.exists(t.at("ran"))


def test_an_object_saves_as_a_file_that_torch_loads(t):
    value = {"s": "ü\n", "big": 2**80, "f": float("inf"), "c": 1 + 2j, "b": b"\0\xff", "t": (1, (2, None)), "set": {3}, "size": torch.Size([2, 3]),
             "dtype": torch.bfloat16, "nested": [{"x": [True, False]}]}
    dcp.save({"w": torch.ones(1), "o": (value,)}, checkpoint_id=t.at("saved"), no_dist=True)
    with tessera.open(t.at("saved")) as checkpoint:
        entry = checkpoint["o"]
        assert entry.is_data() and torch.load(io.BytesIO(entry.save()), weights_only=False) == (value,)


def test_errors_call_operands_as_the_function_does(t):
    path, model = os.path.join(SAMPLES, "dcp_small"), t.at("model.safetensors")
    for call, name in ((lambda: tessera.convert(5, "x"), "path"), (lambda: tessera.convert(path, 5), "dest"), (lambda: tessera.diff(path, 5), "b"),
                       (lambda: tessera.merge(5, path), "out"), (lambda: tessera.merge(model, path, 5), "paths"), (lambda: tessera.latest(5), "run"),
                       (lambda: tessera.doctor(5), "directory"), (lambda: tessera.map_suggest(path, 5), "b"), (lambda: tessera.optim("shard", path, 5), "dest")):
        refused(call, TypeError, f"{name} is a str or an os.PathLike, not int")
    for call, name in ((lambda: tessera.explain(5), "rule"), (lambda: tessera.map_show(5), "name"), (lambda: tessera.fqn(None, 5), "names")):
        refused(call, TypeError, f"{name} is a str, not int")
    for call, name in ((lambda: tessera.verify(path, 5), "manifest"), (lambda: tessera.exec(5, "x"), "plan"), (lambda: tessera.fqn(5), "modules")):
        refused(call, TypeError, f"{name} is a document")


def test_wrong_options_say_what_is_allowed(t):
    path = os.path.join(SAMPLES, "dcp_small")
    for given in ("md5", "SHA256", "", b"sha256", 5, ["sha256"]):
        refused(lambda: tessera.inspect(path, hash=given), ValueError, "sha256", "xxh3", repr(given))
    for function in (tessera.open, tessera.inspect, tessera.validate, tessera.check):
        for options in ({"part": 5}, {"step": 1.5}, {"also": 5}, {"also": [5]}, {"shards": 5}):
            refused(lambda: function(path, **options), TypeError, *options)
    for threads, kind in ((-1, ValueError), (1 << 40, ValueError), ("4", TypeError), (1.5, TypeError), (True, TypeError)):
        refused(lambda: tessera.open(path, threads=threads), kind, "threads is a whole number")
    for options in ({"rule": 5}, {"rule": [5]}, {"prefix": 5}, {"allow": 5}, {"layout": 5}, {"baseline": 5}, {"against": 5}):
        refused(lambda: tessera.validate(path, **options), TypeError, *options)
    for call in (tessera.report, lambda path, form: tessera.report_diff(path, path, form)):
        refused(lambda: call(path, "xml"), tessera.TesseraError, "format is 'json', 'sarif', 'junit', 'github' or 'gitlab', not 'xml'")
        refused(lambda: call(path, 5), TypeError, "format")
        refused(lambda: call(path, None), TypeError, "format")
    refused(lambda: tessera.inspect(path, hash="md5"), ValueError, "hash is 'sha256', 'xxh3' or None, not 'md5'")
    refused(lambda: tessera.convert(path, "x", objects="rop"), ValueError, "objects is 'keep', 'drop', 'sidecar', 'refuse' or None, not 'rop'")
    refused(lambda: tessera.convert(path, "out.xyz"), tessera.TesseraError, 'pass to="safetensors", "torch", "dcp", "megatron-dist", "deepspeed-universal" or "ranks"')
    for name in ("atol", "rtol"):
        for given, kind in ((-1, ValueError), (float("nan"), ValueError), ("1", TypeError)):
            refused(lambda: tessera.diff(path, path, **{name: given}), kind, f"{name} is a number")
    for given in (5, "weight", [5], [None]):
        refused(lambda: tessera.torch.load(path, given), TypeError, "names")
    with tessera.open(path) as checkpoint:
        for call in (lambda: checkpoint["weight"]["x"], lambda: checkpoint["weight"].read("xy"), lambda: checkpoint["weight"].read([0.5, 0])):
            refused(call, TypeError, "integer")
    refused(lambda: tessera.torch.StorageWriter(None), TypeError, "PathLike", "None")


class Named:
    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return self.path


def test_a_path_is_one_for_every_function(t):
    path = os.path.join(SAMPLES, "dcp_small")
    calls = {"open": lambda p: tessera.open(p)["weight"].shape, "torch.load": lambda p: tessera.torch.load(p)["weight"].tolist(), "inspect": lambda p: tessera.inspect(p)["entries"],
             "check": tessera.check, "validate": lambda p: tessera.validate(p)["findings"], "diff": lambda p: tessera.diff(path, p)["same"],
             "reader": lambda p: tessera.torch.StorageReader(p).read_metadata().planner_data, "writer": lambda p: tessera.torch.StorageWriter(p).path}
    for name, call in calls.items():
        want = call(path)
        for given in (pathlib.Path(path), os.fsencode(path), Named(path), Named(os.fsencode(path))):
            assert call(given) == want, (name, given)
        for given in (None, 5, [5], io.BytesIO()):
            refused(lambda: call(given), TypeError, "os.PathLike")
        refused(lambda: call(path + "\0x"), ValueError, "null characters")
    for function in (tessera.open, tessera.inspect):
        refused(lambda: function(path, also=[path + "\0x"]), ValueError, "null characters")
        refused(lambda: function(path, also=[5]), TypeError, "also")
    assert tessera.open(os.fsencode(path)).path == path
    for option in ("part", "step", "map", "shards", "lora"):
        refused(lambda: tessera.open(path, **{option: "a\0b"}), ValueError, "null")
    refused(lambda: tessera.torch.StorageWriter(""), ValueError, "path is empty")
    for missing in (lambda: tessera.convert(path, None), lambda: tessera.verify(path, None), lambda: tessera.latest(None), lambda: tessera.map_show(None)):
        refused(missing, TypeError, "not NoneType")
    assert tessera.explain(None) and tessera.doctor(None)


def test_an_entry_is_a_numpy_array(t):
    import numpy
    needs(StorageMeta)  # which the .metadata of samples has
    path = os.path.join(SAMPLES, "dcp_dtypes")
    want = {name: value for name, value in flatten_state_dict(load_with(FileSystemReader(path)))[0].items() if isinstance(value, torch.Tensor)}
    try:
        import ml_dtypes
    except ImportError:
        ml_dtypes = None
        print("note: ml_dtypes is not installed, so bfloat16 and float8 are only refused")
    with tessera.open(path) as checkpoint:
        seen = 0
        for name, tensor in want.items():
            entry = checkpoint[name]
            kind = entry.dtype
            if kind == "float4_e2m1fn_x2" or (kind.startswith(("bfloat16", "complex32", "float8")) and not hasattr(ml_dtypes, kind)):
                refused(lambda: numpy.asarray(entry), TypeError, name, entry.dtype)
                continue
            array = numpy.asarray(entry)
            assert array.dtype.name == entry.dtype and array.shape == tuple(tensor.shape) and array.flags.writeable, name
            assert array.tobytes() == tensor.contiguous().view(torch.uint8).numpy().tobytes(), name
            seen += 1
        assert seen > 12, seen
        one = next(checkpoint[name] for name, tensor in want.items() if tensor.dtype == torch.float32)
        assert numpy.array_equal(numpy.asarray(one, dtype="float64"), want[one.name].double().numpy())
        assert numpy.asarray(one, dtype="int8").dtype == numpy.int8
        refused(lambda: one.__array__(copy=False), ValueError, one.name, "copy")
    with tessera.open(os.path.join(SAMPLES, "dcp_objects")) as checkpoint:
        entry = next(entry for entry in checkpoint.values() if entry.kind != "tensor")
        refused(lambda: numpy.asarray(entry), TypeError, entry.name, entry.type)
