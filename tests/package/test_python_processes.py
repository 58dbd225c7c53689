"""Checkpoints of the Python package in several threads and processes: closed while they are read, and used in children of a fork."""
import copy
import multiprocessing
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import http_serving
import torch
from safetensors.torch import save_file
from test_python import INSTALLED, tessera
from test_python_torch import Held, fails
from torch_names import dcp

from tessera import _library

ROWS = 3000


def make(path):
    """Tensors of 12 MB, which several threads read together."""
    save_file({f"w{k}": torch.arange(ROWS * 1000.).reshape(ROWS, 1000) + k for k in range(4)}, path)


CHILDREN = """
import os, signal, sys
import tessera
path, rows = sys.argv[1], int(sys.argv[2])
c = tessera.open(path, threads=4)
def row(k):  # the last one, of a tensor that is read as a whole
    return list(memoryview(c[f"w{k}"].read())[rows - 1, n] for n in (0, 999))
def right(k):
    return row(k) == [(rows - 1) * 1000 + k, rows * 1000 - 1 + k]
def child(work):
    pid = os.fork()
    if not pid:
        signal.alarm(60)  # instead of waiting for threads that only the parent has
        os._exit(0 if work() else 1)
    return pid
assert right(0)
digest = c.inspect("sha256")
works = {"reads": lambda: right(1), "digests": lambda: c.inspect("sha256") == digest, "closes": lambda: c.close() or True}
children = {child(work): name for name, work in works.items()}
assert right(2), "the parent reads something else"
ended = {name: os.waitpid(pid, 0)[1] for pid, name in children.items()}
assert set(ended.values()) == {0}, ended
assert right(3)
"""


def test_children_of_a_fork_read_what_was_opened_before(t):
    make(t.at("x.safetensors"))
    with open(t.at("x.safetensors"), "rb") as f:
        data = f.read()

    class File(http_serving.Handler):
        def do_GET(self):
            self.give(data, ETag='"1"')
    server = http_serving.Server(File)
    with http_serving.running(server):
        for path in (t.at("x.safetensors"), server.url + "/x.safetensors"):
            p = subprocess.run([sys.executable, "-c", CHILDREN, path, str(ROWS)], capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": INSTALLED})
            assert p.returncode == 0, (path, p.stderr[-1500:])


FORKED_WHILE_READ = """
import os, signal, sys, threading
import tessera
c = tessera.open(sys.argv[1])
reading = threading.Thread(target=lambda: c["w0"].read())
reading.start()
sys.stdin.readline()  # until the server has been asked for the values, which it holds back
pid = os.fork()
if not pid:
    signal.alarm(60)
    try:
        c["w0"][0]
    except ValueError as e:
        print(e, flush=True)
        c.close()
        os._exit(0)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0 and reading.is_alive()
print("forked", flush=True)
reading.join()
assert c["w0"][0].nbytes == 4000
"""


def test_what_is_read_during_a_fork_is_to_be_opened_again(t):
    make(t.at("x.safetensors"))
    with open(t.at("x.safetensors"), "rb") as f:
        data = f.read()
    asked, may_read = threading.Event(), threading.Event()

    class File(http_serving.Handler):
        def do_GET(self):
            if int(re.match(r"bytes=(\d+)-|", self.headers.get("Range", ""))[1] or 0) > 0:
                asked.set()
                may_read.wait(120)
            self.give(data, ETag='"1"')
    server = http_serving.Server(File)
    with http_serving.running(server):
        p = subprocess.Popen([sys.executable, "-c", FORKED_WHILE_READ, server.url + "/x.safetensors"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, "PYTHONPATH": INSTALLED})
        try:
            assert asked.wait(120), "it does not read"
            p.stdin.write("\n")
            p.stdin.flush()
            said = [p.stdout.readline(), p.stdout.readline()]
        finally:
            may_read.set()
            errors = p.communicate(timeout=120)[1]
    assert p.returncode == 0 and "open it again" in said[0] and said[1] == "forked\n", (p.returncode, said, errors[-1500:])


class Rows(torch.utils.data.Dataset):
    """One tensor per item, read by the worker that is asked for it."""

    def __init__(self, checkpoint):
        self.checkpoint = checkpoint

    def __len__(self):
        return 4

    def __getitem__(self, k):
        return torch.frombuffer(self.checkpoint[f"w{k}"].read(), dtype=torch.float32)[-1]


def test_workers_of_a_data_loader_share_a_checkpoint(t):
    make(t.at("x.safetensors"))
    with tessera.open(t.at("x.safetensors"), threads=4) as checkpoint:
        checkpoint["w0"].read()
        loader = torch.utils.data.DataLoader(Rows(checkpoint), num_workers=2, multiprocessing_context="fork", timeout=120)
        assert [float(value) for value in loader] == [ROWS * 1000 - 1. + k for k in range(4)]


def test_close_ends_what_other_threads_read(t):
    make(t.at("x.safetensors"))
    for _ in range(5):
        checkpoint, said = tessera.open(t.at("x.safetensors"), threads=2), []
        begun = threading.Barrier(3)

        def read(k, checkpoint=checkpoint, said=said, begun=begun):
            try:
                begun.wait(60)
                while True:
                    checkpoint[f"w{k}"].read()
            except BaseException as e:
                said.append(e)
        threads = [threading.Thread(target=read, args=(k,)) for k in range(2)]
        for thread in threads:
            thread.start()
        begun.wait(60)
        checkpoint.close()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert [(type(e), str(e)) for e in said] == [(ValueError, "the checkpoint is closed")] * 2, said


def test_an_opened_checkpoint_is_not_copied(t):
    make(t.at("x.safetensors"))
    reader = tessera.torch.StorageReader(t.at("x.safetensors"))
    with tessera.open(t.at("x.safetensors")) as checkpoint:
        for thing in (checkpoint, checkpoint["w1"]):
            for copied in (pickle.dumps, copy.deepcopy):
                fails(TypeError, lambda: copied(thing), "open it where it is used")
    for again in (lambda: reader, lambda: pickle.loads(pickle.dumps(reader)), lambda: copy.deepcopy(reader)):
        state = {"w1": torch.zeros(ROWS, 1000)}
        dcp.load(state, storage_reader=again(), no_dist=True)
        assert state["w1"][-1, -1] == ROWS * 1000


def test_a_child_of_a_fork_does_not_give_up_an_upload(t):
    """Without a server: what closing would call in the library is noted in a file."""
    from tessera import _saving

    def noted(handle):
        with open(t.at("closed"), "a") as f:
            f.write(f"{os.getpid()} {handle}\n")
    real, _saving._close, _saving._open = (_saving._close, _saving._open), noted, lambda *_: 7
    saving = _saving.Saving("s3://bucket/key", _saving.SENDS, ".metadata")
    try:
        child = os.fork()
        if not child:
            saving.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert not os.path.exists(t.at("closed"))
        saving.close()
        with open(t.at("closed")) as f:
            assert f.read() == f"{os.getpid()} 7\n"
    finally:
        saving._handle = None  # 7 is not one of the library's
        _saving._close, _saving._open = real


# ---- children of a fork and saves of their parents ----


def sleeping_child():
    """A child that lives on without doing anything, as the workers of a data loader do. Returns its pid."""
    pid = os.fork()
    if not pid:
        signal.alarm(120)
        signal.pause()
        os._exit(0)
    return pid


def test_children_that_are_forked_during_a_save_do_not_keep_its_directory(t):
    make(t.at("x.safetensors"))
    for form, options in (("dcp", {}), ("safetensors", {"form": "safetensors"})):
        path, planner, children = t.at(form), Held(), []
        state = lambda k: {"w": torch.arange(6.) + k}
        save = lambda k, **more: dcp.save(state(k), storage_writer=tessera.torch.StorageWriter(path, overwrite=True, **options), no_dist=True, **more)
        saving = threading.Thread(target=lambda: save(1, planner=planner))
        saving.start()
        try:
            assert planner.began.wait(60)
            children.append(sleeping_child())
            planner.may_end.set()
            saving.join(60)
            assert torch.equal(tessera.torch.load(path)["w"], state(1)["w"])
            save(2)
            t.run("convert", t.at("x.safetensors"), path, "--to", form, *(["--max-shard-size", "50MB"] if form == "safetensors" else []), "--overwrite")
            assert len(tessera.open(path)) == 4
        finally:
            planner.may_end.set()
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


DIES_WITH_A_CHILD = """
import os, signal, sys
sys.path[:0] = sys.argv[2:]
import torch, tessera.torch, torch.distributed.checkpoint as dcp
class Forks(dcp.DefaultSavePlanner):
    def resolve_data(self, item):
        pid = os.fork()
        if not pid:
            signal.alarm(120)
            os.close(1)  # of which the test waits for the end
            os.close(2)
            signal.pause()
        print(pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
dcp.save({"w": torch.ones(3)}, storage_writer=tessera.torch.StorageWriter(sys.argv[1]), planner=Forks())
"""


def test_children_of_a_job_that_was_killed_during_a_save_do_not_keep_its_directory(t):
    p = subprocess.run([sys.executable, "-W", "ignore", "-c", DIES_WITH_A_CHILD, t.at("c"), INSTALLED], stdout=subprocess.PIPE, text=True, timeout=120)
    child = int(p.stdout)
    try:
        assert p.returncode == -signal.SIGKILL and os.path.exists(f"/proc/{child}")
        dcp.save({"w": torch.arange(3.)}, storage_writer=tessera.torch.StorageWriter(t.at("c")), no_dist=True)
        assert torch.equal(tessera.torch.load(t.at("c"))["w"], torch.arange(3.)) and len(os.listdir(t.at("c"))) == 2, os.listdir(t.at("c"))
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_child_does_not_end_the_save_of_its_parent(t):
    """It saves to the same directory, which is refused, and its parent's save goes on."""
    path, planner = t.at("c"), Held()
    save = lambda k, **more: dcp.save({"w": torch.full((3,), float(k))}, storage_writer=tessera.torch.StorageWriter(path, overwrite=True), no_dist=True, **more)
    save(1)
    saving = threading.Thread(target=lambda: save(2, planner=planner))
    saving.start()
    try:
        assert planner.began.wait(60)
        child = os.fork()
        if not child:
            signal.alarm(60)
            try:
                save(3)
            except BaseException as e:
                os._exit(0 if "another process is saving to this directory" in str(e) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        planner.may_end.set()
        saving.join(60)
    assert torch.equal(tessera.torch.load(path)["w"], torch.full((3,), 2.)) and len(os.listdir(path)) == 2


# ---- every way to start a process ----


def everything(path, to):
    """What a process gets from the package: by a command, from an opened checkpoint, as tensors, and from a file that it writes."""
    with tessera.open(path, threads=3) as checkpoint:
        row = checkpoint["w1"][ROWS - 1].tolist()
    tessera.convert(path, to, to="dcp", threads=2)
    dcp.save(tessera.torch.load(to), storage_writer=tessera.torch.StorageWriter(to, overwrite=True), no_dist=True)
    return row, tessera.manifest(path, threads=3)["entries"], tessera.diff(path, to, values=True)["same"], tessera.check(to, deep=True, rule=["dcp/newer=off"])


def test_commands_work_in_processes_of_every_start_method(t):
    """While threads of the parent run commands, too."""
    path, over = t.at("x.safetensors"), threading.Event()
    make(path)
    want = everything(path, t.at("own"))
    assert want[0] == [[(ROWS - 1) * 1000 + 1. + n for n in range(1000)]] and want[2:] == (True, [])

    def busy():
        while not over.is_set():
            tessera.manifest(path, threads=2)
    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for method in multiprocessing.get_all_start_methods():
            with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
                found = [pool.submit(everything, path, t.at(f"{method}{n}")) for n in range(4)]
                assert [each.result(300) for each in found] == [want] * 4, method
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_many_threads_share_a_checkpoint(t):
    """Every member of an opened checkpoint, of all kinds of entries."""
    state = {f"w{k}": torch.arange(700_000.).reshape(700, 1000) * (k + 1) for k in range(4)} | {"o": {f"k{k}": (k, "x", 2.5) for k in range(20)}}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(t.at("c"), thread_count=3), no_dist=True)
    with tessera.open(t.at("c"), threads=3) as checkpoint:
        saved = {name: entry.save() for name, entry in checkpoint.items() if entry.kind == "object"}
        listed = checkpoint.inspect()

        def use(seed):
            rng = random.Random(seed)
            for _ in range(60):
                k, at = rng.randrange(4), rng.randrange(700)
                size = min(rng.choice((1, 5, 700)), 700 - at)
                read = checkpoint[f"w{k}"][at:at + size].cast("B").cast("f")
                assert read[0] == at * 1000. * (k + 1) and read[-1] == ((at + size) * 1000. - 1) * (k + 1), (k, at, size)
                name = rng.choice(list(saved))
                assert checkpoint[name].save() == saved[name] and checkpoint[name].is_data() and checkpoint[f"w{k}"].chunks == [((0, 0), (700, 1000))]
            assert checkpoint.inspect() == listed
            return len(checkpoint)
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(use, range(16), timeout=300)) == [len(state) - 1 + len(saved)] * 16


SIGNALLED = """
import signal, sys, threading
import tessera
sent = []
def send(*_):
    if not sent:
        sent.append(threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT)))
        sent[0].start()
        sent[0].join()
try:
    tessera.manifest(sys.argv[1], on_progress=send)
except KeyboardInterrupt:
    print("interrupted")
elsewhere = []
working = threading.Thread(target=lambda: elsewhere.append(tessera.manifest(sys.argv[1])))
working.start()
try:  # Ctrl-C is for the main thread, and others finish what they do
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    working.join()
    print(len(elsewhere[0]["entries"]))
"""


def test_a_signal_that_another_thread_receives_ends_the_call_of_the_main_thread(t):
    make(t.at("x.safetensors"))
    p = subprocess.run([sys.executable, "-c", SIGNALLED, t.at("x.safetensors")], capture_output=True, text=True, timeout=300,
                       env={**os.environ, "PYTHONPATH": INSTALLED})
    assert (p.returncode, p.stdout) == (0, "interrupted\n4\n"), (p.returncode, p.stdout, p.stderr[-1500:])


INTERPRETERS = """
import sys
try:
    import _interpreters as interpreters  # from Python 3.13 on
except ImportError:
    import _xxsubinterpreters as interpreters
import tessera
program = f'''
import sys
sys.path[:] = {sys.path!r}
import tessera
path = {sys.argv[1]!r}
with tessera.open(path) as checkpoint:
    assert memoryview(checkpoint["w1"].read())[2999, 999] == 3_000_000
assert tessera.validate(path, deep=True)["findings"] == []
tessera.convert(path, {sys.argv[2]!r}, to="torch", overwrite=True)
assert tessera.diff(path, {sys.argv[2]!r}, values=True)["same"]
print("works", flush=True)
'''
for _ in range(2):
    one = interpreters.create()
    print(interpreters.run_string(one, program) or "", flush=True)
    interpreters.destroy(one)
print(len(tessera.open(sys.argv[1])), flush=True)
"""


def test_subinterpreters_use_the_package(t):
    """Where ctypes can be imported there: in Python 3.12 it cannot, which Python says."""
    make(t.at("x.safetensors"))
    p = subprocess.run([sys.executable, "-c", INTERPRETERS, t.at("x.safetensors"), t.at("x.pt")], capture_output=True, text=True, timeout=120,
                       env={**os.environ, "PYTHONPATH": INSTALLED})
    assert (p.returncode, p.stdout.split()) == (0, ["works", "works", "4"]), (p.returncode, p.stdout, p.stderr[-1500:])


def closed_at(opcode, path, closed):
    """Closes a checkpoint in one thread, and before the given instruction of that also in another one, as a Python without a global lock allows.
    Returns whether so many instructions were run."""
    checkpoint, left = tessera.open(path), opcode

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code is not _library.Session.close.__code__:
            return None
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left == 0 and event == "opcode":
            other = threading.Thread(target=checkpoint.close)
            other.start()
            other.join()
        return trace
    del closed[:]
    sys.settrace(trace)
    try:
        checkpoint.close()
    finally:
        sys.settrace(None)
    return left <= 0


def test_threads_that_close_a_checkpoint_at_once_free_it_once(t):
    save_file({"a": torch.arange(3.)}, t.at("a.safetensors"))
    closed, close, opcode = [], _library._close, 0
    _library._close = lambda handle: closed.append(handle) or (close(handle) if closed == [handle] else None)
    try:
        reached = True
        while reached:
            opcode += 1
            reached = closed_at(opcode, t.at("a.safetensors"), closed)
            assert len(closed) == 1, (opcode, closed)
    finally:
        _library._close = close
    assert opcode > 10, opcode
