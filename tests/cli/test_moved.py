"""A directory above the output that is moved during the run: what was written goes away, and what is there stays."""
import fcntl
import json
import os
import shutil
import signal
import struct
import time

from harness import need, sample, test
from test_signals import start, tree


def wait_written(p, directory):
    """Until there is a file of the output, not only its journal."""
    until = time.monotonic() + 60
    while p.poll() is None and time.monotonic() < until:
        if any(".tessera-" in name and not name.endswith("-of-1") for name in tree(directory)):
            return
        time.sleep(0.002)


def wait_stopped(p):
    """The signal has stopped all threads when its state says so."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with open(f"/proc/{p.pid}/stat") as f:
            if f.read().rpartition(")")[2].split()[0] == "T":
                return
        time.sleep(0.005)


def jobs(t):
    """Each with the path of its output below `par` and what is there before."""
    big, size = t.at("big.safetensors"), 1 << 30
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with open(big, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        f.truncate(8 + len(header) + size)
    for overwrite in ((), ("--overwrite",)):
        yield ("convert", big, "par/out.safetensors", *overwrite), overwrite and "file"
        yield ("convert", big, "par/out", "--to", "dcp", *overwrite), overwrite and "dcp"
        yield ("cp", t.at("ck"), "par/out", *overwrite), overwrite and "dcp"


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
    with open(t.at("ck", "large.bin"), "wb") as f:
        f.write(os.urandom(1 << 20) * 300)
    for args, before in jobs(t):
        for end in (None, signal.SIGTERM):
            was = prepare(t, before)
            p = start(t, *args, cwd=t.directory)
            wait_written(p, t.at("par"))
            p.send_signal(signal.SIGSTOP)
            need(p.poll() is None, f"{args}: it ended before the move")
            wait_stopped(p)
            os.rename(t.at("par"), t.at("moved"))
            os.makedirs(t.at("par"))
            if end:
                p.send_signal(end)
            p.send_signal(signal.SIGCONT)
            err = p.communicate(timeout=120)[1].decode()
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
