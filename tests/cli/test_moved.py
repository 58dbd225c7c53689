"""A directory above the output that is moved during the run: what was written goes away, and what is there stays."""
import contextlib
import fcntl
import os
import shutil
import signal
import threading
import time

import http_serving
from harness import need, sample, st_write, test
from test_signals import start, tree


class Files(http_serving.Handler):
    """The files of a directory. What the server's `is_held` chooses waits until `may_go_on`."""

    def do_GET(self):
        path = os.path.join(self.server.root, self.path.lstrip("/"))
        if not os.path.isfile(path):
            return self.answer(404)
        first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        if self.path.endswith("__1_0.distcp") and self.headers.get("Range") != "bytes=0-0" or first > 8 << 20:
            self.server.may_go_on.wait(120)
        with open(path, "rb") as f:
            return self.give(f.read(), ETag='"1"')


@contextlib.contextmanager
def holding_back(directory):
    """A server that does not give the second file of a DCP, nor what is behind the first 8 MiB of any file, until `may_go_on` is set."""
    server = http_serving.Server(Files)
    server.root, server.may_go_on = directory, threading.Event()
    with http_serving.running(server):
        try:
            yield server
        finally:
            server.may_go_on.set()


def wait_written(p, directory):
    """Until there is a file of the output, not only its journal."""
    until = time.monotonic() + 60
    while not any(".tessera-" in name and not name.endswith("-of-1") for name in tree(directory)):
        need(p.poll() is None and time.monotonic() < until, f"it writes nothing: {p.poll()} {tree(directory)}")
        time.sleep(0.002)


def jobs(url):
    """Each with the path of its output below `par` and what is there before."""
    for overwrite in ((), ("--overwrite",)):
        yield ("convert", f"{url}/big.safetensors", "par/out.safetensors", *overwrite), overwrite and "file"
        yield ("convert", f"{url}/big.safetensors", "par/out", "--to", "dcp", *overwrite), overwrite and "dcp"
        yield ("cp", f"{url}/ck/", "par/out", *overwrite), overwrite and "dcp"


def prepare(t, before):
    for name in ("par", "moved"):
        shutil.rmtree(t.at(name), ignore_errors=True)
    os.makedirs(t.at("par"))
    with open(t.at("par", "notes.txt"), "w") as f:
        f.write("mine")
    if before == "file":
        shutil.copy(os.path.join(os.path.dirname(sample("safetensors_index")[0]), "model-00001-of-00003.safetensors"), t.at("par", "out.safetensors"))
    if before == "dcp":
        shutil.copytree(sample("dcp_fsdp2")[0], t.at("par", "out"))
    return {n: open(t.at("par", n), "rb").read() for n in tree(t.at("par"))}


@test
def test_an_output_whose_directory_is_moved_is_not_published(t):
    shutil.copytree(sample("dcp_fsdp2")[0], t.at("ck"))
    st_write(t.at("big.safetensors"), {"w": ("U8", [1024, 32 << 10], os.urandom(32 << 20))})
    with holding_back(t.directory) as server:
        for args, before in jobs(server.url):
            for end in (None, signal.SIGTERM):
                was = prepare(t, before)
                server.may_go_on.clear()
                p = start(t, *args, cwd=t.directory, env={"TESSERA_RETRY_SECONDS": "600"})  # it waits for as long as this test takes
                wait_written(p, t.at("par"))
                os.rename(t.at("par"), t.at("moved"))
                os.makedirs(t.at("par"))
                p.send_signal(end) if end else server.may_go_on.set()
                err = p.communicate(timeout=120)[1].decode()
                server.may_go_on.set()
                need(p.returncode == (-end if end else 2), f"{args}: ended {p.returncode}: {err}")
                need(end or ("moved or replaced the directory 'par" in err and "not published" in err), f"{args}: {err}")
                need(tree(t.at("par")) == [], f"{args}: {tree(t.at('par'))} in the new directory")
                left = {n: open(t.at("moved", n), "rb").read() for n in tree(t.at("moved"))}
                need(left == was, f"{args}, {end}: {sorted(left)}, before {sorted(was)}")


def has_open(p, directory):
    """Whether the process has a descriptor of the directory."""
    try:
        return any(os.path.realpath(f"/proc/{p.pid}/fd/{n}") == os.path.realpath(directory) for n in os.listdir(f"/proc/{p.pid}/fd"))
    except FileNotFoundError:
        return False


def move_while_held(t, args):
    """Moves `par` and puts a copy in its place, after the program has opened it for its journals, and while the lock of the old
    checkpoint keeps it from going on. Returns the process; None if it gave up waiting first, on a busy machine."""
    lock = os.open(t.at("par", "out"), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        p = start(t, *args, cwd=t.directory)
        while p.poll() is None and not has_open(p, t.at("par")):
            time.sleep(0.001)
        p.send_signal(signal.SIGSTOP)
        os.rename(t.at("par"), t.at("moved"))
        shutil.copytree(t.at("moved"), t.at("par"))
    finally:
        os.close(lock)
    p.send_signal(signal.SIGCONT)
    out, err = p.communicate(timeout=120)
    return None if b"is replacing" in err else (p.returncode, err.decode())


@test
def test_an_output_is_not_opened_in_a_directory_that_replaced_its_own(t):
    """The decisions are about the directory in which the journal is. Another one at its path must not be written to."""
    shutil.copytree(sample("dcp_fsdp2")[0], t.at("ck"))
    for args in (("convert", "ck", "par/out", "--to", "dcp", "--overwrite"), ("cp", "ck", "par/out", "--overwrite")):
        done = None
        while not done:
            was = prepare(t, "dcp")
            done = move_while_held(t, args)
        need(done[0] == 2 and "moved or replaced the directory 'par" in done[1], f"{args}: ended {done[0]}: {done[1]}")
        for where in ("par", "moved"):
            now = {n: open(t.at(where, n), "rb").read() for n in tree(t.at(where))}
            need(now == was, f"{args}: {where} has {sorted(now)}, before {sorted(was)}")
