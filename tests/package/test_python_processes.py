"""Checkpoints of the Python package in several threads and processes: closed while they are read, and used in children of a fork."""
import copy
import os
import pickle
import subprocess
import sys
import threading

import http_serving
import torch
from safetensors.torch import save_file
from test_python import INSTALLED, tessera
from test_python_torch import fails
from torch_names import dcp

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
import os, signal, sys, threading, time
import tessera
c = tessera.open(sys.argv[1])
room = bytearray(1 << 30)
reading = threading.Thread(target=lambda: [c["w"].read([k << 20, 0], [1 << 20, 1024], out=room) for k in range(4)])
reading.start()
time.sleep(0.05)
assert reading.is_alive()
pid = os.fork()
if not pid:
    signal.alarm(60)
    try:
        c["w"][0]
    except ValueError as e:
        print(e, flush=True)
        c.close()
        os._exit(0)
    os._exit(1)
reading.join()
assert os.waitpid(pid, 0)[1] == 0 and c["w"][0].nbytes == 1024
"""


def test_what_is_read_during_a_fork_is_to_be_opened_again(t):
    text = b'{"w":{"dtype":"U8","shape":[%d,1024],"data_offsets":[0,%d]}}' % (1 << 22, 1 << 32)
    with open(t.at("x.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + (1 << 32))
    p = subprocess.run([sys.executable, "-c", FORKED_WHILE_READ, t.at("x.safetensors")], capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": INSTALLED})
    assert p.returncode == 0 and "open it again" in p.stdout, (p.returncode, p.stdout, p.stderr[-1500:])


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
