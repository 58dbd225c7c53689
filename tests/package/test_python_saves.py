"""Saves by tessera.torch.StorageWriter into directories, and runs of the program: each is safe from the other, and removes what the other left
when it was killed."""
import contextlib
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
import zipfile

import http_serving
import test_python_safetensors as files
import torch
from safetensors.torch import load_file, save_file
from test_python_torch import Held, fails, killed_at, save, save_alone, state_of, step_of
from test_python import INSTALLED, is_sound, tessera
from torch_names import StorageMeta, dcp, has, needs, safe_globals, set_crc32_options
from torch.distributed.checkpoint.api import CheckpointException

BYTES = 4 << 20


class Held_back(http_serving.Handler):
    """Gives a file, but not the bytes of its tensors before they may be read."""

    def do_GET(self):
        asked = self.headers.get("Range", "")
        if self.command == "GET" and asked and int(asked.removeprefix("bytes=").partition("-")[0]) > 0:
            self.server.may_read.wait(60)
        self.give(self.server.data)


@contextlib.contextmanager
def stuck(t, destination, *options):
    """A run of the program that has begun to write to `destination` and does not get further. Yields its process and the event that lets it
    continue."""
    path = t.at("source.safetensors")
    tensors = {f"w{n}": torch.arange(BYTES // 4 + n) for n in range(3)}
    save_file(tensors, path)
    with open(path, "rb") as f:
        data = f.read()
    server = http_serving.Server(Held_back)
    server.data, server.may_read = data, threading.Event()
    with http_serving.running(server):
        p = subprocess.Popen([t.path, "convert", f"{server.url}/source.safetensors", destination, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            until = time.monotonic() + 60
            while not beside(destination):
                assert p.poll() is None and time.monotonic() < until, p.stderr.read()
                time.sleep(0.01)
            yield p, server.may_read
        finally:
            server.may_read.set()
            p.kill()
            p.communicate()


def beside(destination):
    """What the program has next to a destination before it is published."""
    directory, name = os.path.split(destination)
    return [n for n in os.listdir(directory) if n.startswith(f".{name}.tessera-")]


def hidden(path):
    return sorted(n for n in os.listdir(path) if ".tessera-" in n)


def test_a_run_does_not_replace_what_is_being_saved(t):
    other = t.at("other")
    save(other, 7)
    for together in (True, False) if has(dcp.save, "use_collectives") else (True,):
        path, planner = t.at(f"saved{together}"), Held()
        (save if together else save_alone)(path, 1)

        def again():
            writer = tessera.torch.StorageWriter(path, overwrite=True)
            dcp.save(state_of(2), storage_writer=writer, planner=planner, no_dist=True, use_collectives=together)
        thread = threading.Thread(target=again)
        thread.start()
        assert planner.began.wait(60)
        try:
            p = t.run("convert", other, path, "--to", "dcp", "--overwrite", status=2)
            assert f"another process is replacing 'saved{together}'" in p.stderr.decode(), p.stderr
        finally:
            planner.may_end.set()
            thread.join()
        assert hidden(path) == [] and len(os.listdir(path)) == 2, os.listdir(path)
        if together:
            assert step_of(path) == 2
            t.run("convert", other, path, "--to", "dcp", "--overwrite", "--for-torch", "2.3")  # which every release loads
            assert step_of(path) == 7 and len(os.listdir(path)) == 2, os.listdir(path)


def test_a_save_does_not_replace_what_a_run_is_replacing(t):
    path = t.at("replaced")
    save(path, 1)
    with stuck(t, path, "--to", "dcp", "--overwrite") as (p, may_read):
        fails(CheckpointException, lambda: save(path, 2, overwrite=True), "another process is replacing 'replaced'")
        assert step_of(path) == 1
        may_read.set()
        _, said = p.communicate(timeout=60)
        assert p.returncode == 0, said
    loaded = tessera.torch.load(path)
    assert torch.equal(loaded["w2"], torch.arange(BYTES // 4 + 2)) and hidden(path) == []


def test_a_run_and_a_save_of_safetensors_files_exclude_each_other(t):
    path, planner = t.at("c"), Held()
    files.save(path, files.state_of(1))
    thread = threading.Thread(target=lambda: files.save(path, files.state_of(2), planner, overwrite=True))
    thread.start()
    assert planner.began.wait(60)
    try:
        save(t.at("other"), 7)
        p = t.run("convert", t.at("other"), path, "--to", "safetensors", "--max-shard-size", "1MB", "--overwrite", status=2)
        assert "another process is replacing 'c'" in p.stderr.decode(), p.stderr
    finally:
        planner.may_end.set()
        thread.join()
    assert files.value_in(path) == 2 and beside(path) == []
    with stuck(t, path, "--to", "safetensors", "--max-shard-size", "5MB", "--overwrite") as (p, may_read):
        fails(CheckpointException, lambda: files.save(path, files.state_of(3), overwrite=True), "another process is replacing 'c'")
        assert files.value_in(path) == 2
        may_read.set()
        _, said = p.communicate(timeout=60)
        assert p.returncode == 0, said
    assert torch.equal(tessera.torch.load(path)["w2"], torch.arange(BYTES // 4 + 2)) and beside(path) == []


def test_a_run_removes_what_a_killed_save_of_safetensors_files_left(t):
    number, ended, left = 0, True, set()
    other = t.at("other")
    save(other, 7)
    while ended:
        number += 1
        path = t.at(f"killed{number}")
        files.save(path, files.state_of(1))
        ended = files.killed_at(number, path, overwrite=True)
        left.add(bool(beside(path)))
        t.run("convert", other, path, "--to", "safetensors", "--max-shard-size", "1MB", "--objects", "drop", "--overwrite")
        assert beside(path) == [] and hidden(path) == [] and is_sound(path)
        assert tessera.torch.load(path).keys() == {"model.a", "model.b.0", "model.b.1.c"}
    assert left == {True, False} and number > 10, (left, number)


def test_a_save_of_safetensors_files_removes_what_a_killed_run_left(t):
    path = t.at("c")
    files.save(path, files.state_of(1))
    with stuck(t, path, "--to", "safetensors", "--max-shard-size", "5MB", "--overwrite") as (p, _):
        p.send_signal(signal.SIGKILL)
        p.wait()
    assert beside(path), "nothing was left"
    files.save(path, files.state_of(2), overwrite=True)
    assert beside(path) == [] and hidden(path) == [] and files.value_in(path) == 2


def test_a_run_removes_what_a_killed_save_left(t):
    needs(StorageMeta)  # which the run writes into .metadata
    number, ended, said = 0, True, set()
    other = t.at("other")
    save(other, 7)
    while ended:
        number += 1
        path = t.at(f"killed{number}")
        save(path, 1)
        with open(os.path.join(path, "notes.txt"), "w") as f:
            f.write("a user's file")
        ended = killed_at(number, path, True)
        p = t.run("convert", other, path, "--to", "dcp", "--overwrite")
        said.add(b"removed the remains of an interrupted save" in p.stderr)
        assert step_of(path) == 7 and {n for n in os.listdir(path) if not n.endswith((".distcp", ".lock"))} == {".metadata", "notes.txt"}, os.listdir(path)
        assert len([n for n in os.listdir(path) if n.endswith(".distcp")]) == 1, os.listdir(path)
    assert said == {True, False} and number > 10, (said, number)


def test_a_save_removes_what_a_killed_run_left(t):
    for is_there, options in ((False, ()), (True, ("--overwrite",))):
        path = t.at(f"of_run{is_there}")
        if is_there:
            save(path, 1)
        with stuck(t, path, "--to", "dcp", *options) as (p, _):
            p.send_signal(signal.SIGKILL)
            p.wait()
        assert beside(path), "nothing was left"
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            save(path, 2, overwrite=True)
        assert any("removing the remains of an interrupted run" in str(w.message) for w in said), [str(w.message) for w in said]
        assert beside(path) == [] and hidden(path) == [] and step_of(path) == 2
        assert len(os.listdir(path)) == 2, os.listdir(path)


def test_a_save_keeps_the_shares_of_a_plan_and_names_them(t):
    source, plan, path = t.at("shared.safetensors"), t.at("plan.json"), t.at("shared")
    save_file({"a": torch.arange(1000.), "b": torch.arange(500.)}, source)
    with open(plan, "w") as f:
        f.write(t.run("plan", source, "--mesh", "dp=2", "--placements", "shard(0)", "--json").stdout.decode())
    t.run("exec", plan, path, "--share", "1/2")
    left = beside(path)
    assert left
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        save(path, 1)
    assert any("unfinished job of 2 shares" in str(w.message) for w in said) and beside(path) == left and step_of(path) == 1


MAPPING = {"w": 2, "b": 1}
# Of StorageWriter: options, and the document that states the checksums at its end; None where each file states its own.
FLIPPED = {"dcp": ({"form": "dcp"}, ".metadata"),
           "dcp in files": ({"form": "dcp", "single_file_per_rank": False, "thread_count": 2}, ".metadata"),
           "safetensors": ({"form": "safetensors"}, "model.safetensors.index.json"),
           "safetensors by mapping": ({"form": "safetensors", "fqn_to_index_mapping": MAPPING}, "model.safetensors.index.json"),
           "shards": ({"form": "safetensors", "save_distributed": True, "fqn_to_index_mapping": MAPPING}, None),
           "shards joined": ({"form": "safetensors", "save_distributed": True, "enable_consolidation": True, "fqn_to_index_mapping": MAPPING}, None)}


def flip(rng, file):
    """Changes one byte, and returns its offset and what it was."""
    with open(file, "r+b") as f:
        at = rng.randrange(os.path.getsize(file))
        f.seek(at)
        was = f.read(1)
        f.seek(at)
        f.write(bytes([was[0] ^ rng.randrange(1, 256)]))
    return at, was


def test_a_deep_check_reports_every_flip_in_the_files_of_a_save(t):
    rng = random.Random(44)
    for form, (options, document) in FLIPPED.items():
        path = t.at(form)
        more = {"empty": torch.empty(0, 3), "object": {"step": 7, "names": ["a", "b"]}} if options["form"] == "dcp" else {}
        dcp.save({"w": torch.randn(4, 5), "b": torch.arange(3.), **more}, storage_writer=tessera.torch.StorageWriter(path, **options), no_dist=True)
        findings = json.loads(t.run("validate", "--deep", "--json", path, "--rule", "dcp/newer=off").stdout)["findings"]
        assert {f["rule"] for f in findings} <= ({"dcp-safetensors/no-global-shape"} if form == "shards" else set()), findings
        files = sorted(os.path.join(at, name) for at, _, names in os.walk(path) for name in names)
        for file in files * (300 if os.environ.get("TSR_TEST_FULL") else 12):
            at, was = flip(rng, file)
            # The shards that were joined are a checkpoint of their own, as PyTorch leaves them.
            p = subprocess.run([t.path, "validate", "--deep", os.path.dirname(file)], capture_output=True)
            assert p.returncode in (1, 2), f"{form}: {file} of {files}, byte {at}: {p.stdout}"
            with open(file, "r+b") as f:
                f.seek(at)
                f.write(was)
        if options["form"] == "dcp":
            state = {"w": torch.zeros(4, 5), "b": torch.zeros(3)}
            dcp.load(state, checkpoint_id=path, no_dist=True)
            assert torch.equal(state["b"], torch.arange(3.))
        if not document:
            continue
        dcp.save({"w": torch.ones(2)}, storage_writer=tessera.torch.StorageWriter(path, **options, overwrite=True, checksums=False), no_dist=True)
        with open(os.path.join(path, document), "rb") as f:
            assert f.read()[-1:] == (b"." if options["form"] == "dcp" else b"}")


def items_of(path):
    """Returns the archive of each item that a save wrote."""
    stored = dcp.FileSystemReader(path).read_metadata().storage_data
    items = {}
    for index, info in stored.items():
        with open(os.path.join(path, info.relative_path), "rb") as f:
            f.seek(info.offset)
            items[index.fqn] = f.read(info.length)
    return items


class Asks(dcp.DefaultSavePlanner):
    """Notes PyTorch's setting for CRC-32s, which is that of the process, while a save writes."""
    settings = set()

    def resolve_data(self, item):
        self.settings.add(torch.serialization.get_crc32_options())
        return super().resolve_data(item)


def test_archives_are_those_of_torch_save(t):
    """But for the id, which follows from the content, too."""
    sizes = (0, 1, (512 << 10) - 1, 512 << 10, (512 << 10) + 1, (1 << 20) - 1, (3 << 20) + 7)
    state = {f"bytes{size}": torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes}
    state |= {str(dtype): (torch.rand(3, 5) * 3).to(dtype) for dtype in (torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.int16, torch.bool, torch.complex64)}
    state |= {"parameter": torch.nn.Parameter(torch.rand(2)), "0-dim": torch.tensor(5.5), "view": torch.arange(24.).reshape(4, 6).t()[1:], "conjugate": torch.rand(3, dtype=torch.complex64).conj()}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(t.at("theirs")), no_dist=True)
    try:
        for summed in (True, False):
            path = t.at(f"ours_{summed}")
            Asks.settings.clear()
            set_crc32_options(not summed)
            dcp.save(state, storage_writer=tessera.torch.StorageWriter(path, checksums=summed), planner=Asks(), no_dist=True)
            assert Asks.settings == {not summed}, Asks.settings
            ours, theirs = items_of(path), items_of(t.at("theirs"))
            assert ours.keys() == theirs.keys() == state.keys()
            for name, archive in ours.items():
                same_archives(name, archive, theirs[name], summed)
    finally:
        set_crc32_options(True)
    loaded = {name: torch.zeros_like(value) for name, value in state.items()}
    dcp.load(loaded, checkpoint_id=t.at("ours_True"), no_dist=True)
    assert all(torch.equal(loaded[name], value) for name, value in state.items() if value.dtype != torch.float8_e4m3fn)


class Tagged(torch.Tensor):
    """A tensor that is pickled with its class."""


def test_tensors_of_other_classes_and_of_several_storages_are_saved_as_pytorch_saves_them(t):
    """Their save's id follows from all of their bytes, also if PyTorch's archives have no CRC-32s."""
    scales, zeros, large = torch.rand(4) + 0.5, torch.arange(4), torch.rand(300_000)
    state = {"quantized": torch.quantize_per_tensor(torch.rand(5), 0.1, 3, torch.quint8),
             "channels": torch.quantize_per_channel(torch.rand(4, 6), scales, zeros, 0, torch.qint8), "tagged": large.as_subclass(Tagged), "plain": torch.rand(3)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(t.at("theirs")), no_dist=True)
    dcp.save(state, storage_writer=tessera.torch.StorageWriter(t.at("ours")), no_dist=True)
    ours, theirs = items_of(t.at("ours")), items_of(t.at("theirs"))
    with safe_globals([Tagged]):
        for name, value in state.items():
            same_archives(name, ours[name], theirs[name], True)
            loaded = torch.load(io.BytesIO(ours[name]))
            assert type(loaded) is type(value) and torch.equal(loaded, value), name
    ids = set()
    try:
        set_crc32_options(False)
        for changed in (0, 1):
            large[150_000] = changed
            dcp.save(state, storage_writer=tessera.torch.StorageWriter(t.at("ids"), overwrite=True), no_dist=True)
            ids.add(dcp.FileSystemReader(t.at("ids")).read_metadata().storage_meta.save_id)
    finally:
        set_crc32_options(True)
    assert len(ids) == 2, ids


def test_saves_need_no_function_that_pytorch_may_remove(t):
    """torch.serialization._save, by which torch.save makes its archives."""
    theirs = torch.serialization._save
    try:
        del torch.serialization._save
        dcp.save({"w": torch.arange(7.)}, storage_writer=tessera.torch.StorageWriter(t.at("saved")), no_dist=True)
    finally:
        torch.serialization._save = theirs
    assert torch.equal(torch.load(io.BytesIO(items_of(t.at("saved"))["w"])), torch.arange(7.))


def test_what_a_pytorch_lacks_is_named_with_its_version(t):
    """The names of PyTorch that begin with an underscore, or are in such a module, are used in one module, which says so if one is missing."""
    program = """if True:
        import sys, warnings
        warnings.filterwarnings("ignore")
        sys.path.insert(0, sys.argv[1])
        import torch, torch.distributed.checkpoint as dcp, torch.distributed.checkpoint.filesystem as filesystem
        names = [name for name in sys.argv[2:] if hasattr(filesystem, name)]
        kept = {name: filesystem.__dict__.pop(name) for name in names}
        torch.__version__ = "2.99.0"
        import tessera.torch
        """
    left = lambda *names: subprocess.run([sys.executable, "-c", program, INSTALLED, *names], capture_output=True, text=True).stderr.strip().splitlines()
    assert left("_StorageWriterTransforms", "_split_by_size_and_type") == []
    assert "filesystem._StorageInfo" in left("_StorageInfo")[-1] and "PyTorch 2.99.0 does not have" in left("_StorageInfo")[-1], left("_StorageInfo")
    others = [name for name in os.listdir(os.path.join(INSTALLED, "tessera")) if name.endswith(".py") and name != "_torch_versions.py"]
    for name in others:
        with open(os.path.join(INSTALLED, "tessera", name)) as f:
            found = re.findall(r'from torch[\w.]* import (?:.*, )?_\w+|(?<!")\btorch(?:\.\w+)*\._[a-z]\w+', f.read())
        assert not found, (name, found)


def same_archives(name, ours, theirs, summed):
    with zipfile.ZipFile(io.BytesIO(ours)) as a, zipfile.ZipFile(io.BytesIO(theirs)) as b:
        of_id = "archive/.data/serialization_id"
        places = [[(m.filename, m.header_offset, m.file_size, m.flag_bits, m.extra) for m in z.infolist()] for z in (a, b)]
        assert places[0] == places[1] and len(ours) == len(theirs), (name, places)
        for mine, other in zip(a.infolist(), b.infolist()):
            if mine.filename != of_id:
                assert mine.CRC == (other.CRC if summed else 0), (name, mine, other)
        if summed:
            assert a.testzip() is None and all(a.read(m) == b.read(m) for m in a.namelist() if m != of_id), name
    assert torch.load(io.BytesIO(ours)).dtype == torch.load(io.BytesIO(theirs)).dtype, name


def test_a_converted_file_is_whole(t):
    """The source of these tests, without the server that holds it back."""
    path = t.at("whole.safetensors")
    with stuck(t, path) as (p, may_read):
        may_read.set()
        _, said = p.communicate(timeout=60)
        assert p.returncode == 0, said
    assert torch.equal(load_file(path)["w1"], torch.arange(BYTES // 4 + 1))
