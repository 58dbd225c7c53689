"""Shared by the tests under mpirun: starts jobs, and checks what is expected of them."""
import array
import concurrent.futures
import glob
import json
import operator
import os
import random
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

from checks import ROOT, SAMPLES, TESTS, Bad, Skip, need, test  # noqa: E402, F401

FULL = bool(os.environ.get("TSR_TEST_FULL"))
# A waiting rank yields its core. By default Open MPI does so only if it counts more ranks than slots. Otherwise, a test
# whose ranks share the cores with anything else takes ten times as long.
os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")


class Job:
    """A finished mpirun."""

    def __init__(self, status, out, err, seconds):
        self.status, self.out, self.err, self.seconds = status, out, err, seconds


def job_mark():
    """Returns a text that is in the environment of each process of one job, and of no other process."""
    return f"TSR_TEST_JOB={os.getpid()}-{time.monotonic_ns()}"


def job_environment(mark, **more):
    """mpirun passes TSR_TEST_JOB to the ranks with -x."""
    return {**os.environ, "TSR_TEST_JOB": mark.partition("=")[2], "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **more}


def mpirun(ranks, *command, options=(), env=None, limit=60, on=()):
    """Runs a job and waits for it. A job that takes longer than `limit` seconds is ended, and the test fails. `on` is a
    command that starts mpirun."""
    line = [*on, "mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), "-x", "TSR_TEST_JOB", *options, *map(str, command)]
    mark = job_mark()
    start = time.monotonic()
    p = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=job_environment(mark, **(env or {})),
                         start_new_session=True)
    try:
        out, err = p.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        p.terminate()  # mpirun passes it on to its processes
        try:
            p.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            p.communicate()
        raise Bad(f"{' '.join(line)} did not end in {limit} s")
    seconds = time.monotonic() - start
    wait_for_end(mark)
    return Job(p.returncode, out.decode(errors="replace"), err.decode(errors="replace"), seconds)


def side_by_side(function, items, workers=4):
    """Calls function(item) for all items, several at a time, for jobs that wait more than they compute. Raises the first
    failure."""
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(function, item) for item in items]:
            done.result()


def wait_for_end(mark, limit=60):
    """Waits for the job's processes, because mpirun may return while ranks that it killed are still ending."""
    until = time.monotonic() + limit
    while any(may_hold_files(path, mark) for path in glob.glob("/proc/[0-9]*")):
        if time.monotonic() > until:
            raise Bad(f"processes of the job {mark} are still there {limit} s after mpirun's end")
        time.sleep(0.02)


EXITING, KERNEL_THREAD = 0x4, 0x200000  # PF_EXITING and PF_KTHREAD of the flags in proc(5)


def may_hold_files(path, mark):
    """Whether a thread of the process has the mark in its environment, or is ending. Threads release the environment before they
    close files, which unlocks the files. So the owner of such a thread is unknown, and it counts until it is a zombie. Other
    threads of a process that was killed may outlive the first one."""
    return any(thread_may_hold_files(thread, mark) for thread in glob.glob(f"{path}/task/*"))


def thread_may_hold_files(path, mark):
    try:
        with open(f"{path}/environ", "rb") as f:
            if mark.encode() in f.read():
                return True
        with open(f"{path}/stat") as f:
            state, flags = operator.itemgetter(0, 6)(f.read().rpartition(")")[2].split())
            return state not in "ZX" and int(flags) & (EXITING | KERNEL_THREAD) == EXITING
    except OSError:  # it has ended, or belongs to another user
        return False


def alone(program, *arguments, limit=120):
    """Runs a single process and returns its status, stdout and stderr."""
    p = subprocess.run([program, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, timeout=limit)
    return p.returncode, p.stdout.decode(errors="replace"), p.stderr.decode(errors="replace")


def samples():
    for path in sorted(glob.glob(os.path.join(SAMPLES, "*.expect.json"))):
        with open(path) as f:
            want = json.load(f)
        yield os.path.join(SAMPLES, want.get("path", os.path.basename(path)[:-len(".expect.json")]))


def with_nan(rng, elements):
    """Returns any finite float32 numbers, and up to three NaN."""
    data = bytearray(rng.randbytes(4 * elements))
    for k in range(0, len(data), 4):
        if data[k + 3] & 0x7f == 0x7f and data[k + 2] & 0x80:  # only the chosen numbers are NaN, and none is infinite
            data[k + 3] ^= 0x10
    for _ in range(min(3, elements)):
        k = 4 * rng.randrange(elements)
        data[k:k + 4] = struct.pack("<f", float("nan"))
    return data


def ordinary(rng, elements):
    """Returns numbers whose products stay finite."""
    return array.array("f", [rng.gauss(0, 1) for _ in range(elements)]).tobytes()


def safetensors(path, sizes, seed, numbers=with_nan):
    """Writes a file of one-dimensional float32 tensors."""
    rng = random.Random(seed)
    header, at = {}, 0
    for i, elements in enumerate(sizes):
        header[f"t.{i}"] = {"dtype": "F32", "shape": [elements], "data_offsets": [at, at + 4 * elements]}
        at += 4 * elements
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for elements in sizes:
            f.write(numbers(rng, elements))


def tree(path):
    """Returns {name: bytes} for a file or directory, or None if there is nothing."""
    if not os.path.exists(path):
        return None
    if os.path.isfile(path):
        with open(path, "rb") as f:
            return {"": f.read()}
    found = {}
    for directory, _, names in os.walk(path):
        for name in names:
            with open(os.path.join(directory, name), "rb") as f:
                found[os.path.relpath(os.path.join(directory, name), path)] = f.read()
    return found
