"""What the tests under mpirun share: how a job is started, and what is expected of it."""
import os
import signal
import subprocess
import time

FULL = bool(os.environ.get("TSR_TEST_FULL"))
TESTS = []


class Bad(Exception):
    pass


def need(condition, what):
    if not condition:
        raise Bad(what)


def test(f):
    TESTS.append((f.__name__, f))
    return f


class Job:
    """A finished mpirun."""

    def __init__(self, status, out, err, seconds):
        self.status, self.out, self.err, self.seconds = status, out, err, seconds


def mpirun(ranks, *command, options=(), env=None, limit=60):
    """Runs a job and waits for it. One that outlives `limit` seconds is ended and fails the test."""
    line = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *options, *map(str, command)]
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **(env or {})}
    start = time.monotonic()
    p = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True)
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
    return Job(p.returncode, out.decode(errors="replace"), err.decode(errors="replace"), time.monotonic() - start)
