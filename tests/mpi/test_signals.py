"""Signals under mpirun: whichever rank or mpirun itself receives one, the job ends without success, and nothing is left."""
import contextlib
import glob
import json
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time

from harness import Bad, alone, job_environment, job_mark, need, safetensors, test, tree, wait_for_end

RANKS, HUGE = 3, 64 << 30


def huge(path, size=HUGE):
    """Writes four tensors that are holes and so large that no job finishes before the signal comes."""
    rows = size // 4 // 4 // 1024
    text = json.dumps({f"w{i}": {"dtype": "F32", "shape": [rows, 1024], "data_offsets": [i * size // 4, (i + 1) * size // 4]} for i in range(4)}).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + size)


def ranks_of(mark):
    """Returns {rank: process} for the processes that run tessera-mpi."""
    found = {}
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as f:
                environment = f.read().split(b"\0")
            with open(path[:-len("environ")] + "cmdline", "rb") as f:
                line = f.read()
        except OSError:
            continue
        for word in environment:
            if mark.encode() in environment and b"tessera-mpi" in line and word.startswith(b"OMPI_COMM_WORLD_RANK="):
                found[int(word.split(b"=")[1])] = int(path.split("/")[2])
    return found


def wait_until(what, condition, p):
    until = time.monotonic() + 60
    while not condition():
        need(p.poll() is None and time.monotonic() < until, f"{what} did not come: {p.poll()}")
        time.sleep(0.02)


def stop(directory, out, who, number, command, options):
    """Starts a job and sends the signal to a rank, or to mpirun (None), during its work. Returns a description for
    messages."""
    mark = job_mark()
    line = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(RANKS), "-x", "TSR_TEST_JOB", *options, f"{directory}/tessera", *command]
    what = f"{command[0]}, {number.name} to {'mpirun' if who is None else f'rank {who}'}"
    p = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=job_environment(mark), start_new_session=True)
    try:
        wait_until(f"{what}: the ranks", lambda: len(ranks_of(mark)) == RANKS, p)
        if command[0] == "validate":
            time.sleep(1)
        else:
            wait_until(f"{what}: the journals", lambda: sum("-by-" in n for n in os.listdir(out)) == RANKS, p)
        if who is None:
            p.send_signal(number)
        else:
            os.kill(ranks_of(mark)[who], number)
        began = time.monotonic()
        _, err = p.communicate(timeout=40)
        need(time.monotonic() - began < 25, f"{what}: it went on for {time.monotonic() - began:.0f} s")
    except subprocess.TimeoutExpired:
        raise Bad(f"{what}: still there after 40 s")
    finally:
        if p.poll() is None:
            os.killpg(p.pid, signal.SIGKILL)
            p.communicate()
    wait_for_end(mark)
    need(p.returncode != 0, f"{what}: mpirun ended with 0")
    return f"{what}: {err[-500:]}"


def nothing(out, what):
    need(os.listdir(out) == [], f"{what}: {[*os.walk(out)]}")


def stopped(directory, out, who, number, *command, options=(), expect=nothing):
    """Checks that `expect` holds for `out` after a signal has ended a job. mpirun sends SIGKILL a second after SIGTERM,
    which is too soon for the ranks on a busy machine. If that may be the reason for a failure, the job runs again with
    five seconds in between."""
    what = stop(directory, out, who, number, command, options)
    try:
        expect(out, what)
    except Bad as bad:
        print(f"note: once more, with more time before SIGKILL: {bad}")
        for name in os.listdir(out):
            if ".tessera-" in name:
                path = os.path.join(out, name)
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
        expect(out, stop(directory, out, who, number, command, ("--mca", "odls_base_sigkill_timeout", "5", *options)))


@contextlib.contextmanager
def place():
    scratch = tempfile.mkdtemp(prefix="tessera-mpi-signals-")
    try:
        source, out = os.path.join(scratch, "a.safetensors"), os.path.join(scratch, "out")
        os.mkdir(out)
        huge(source)
        yield source, out
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@test
def test_signals_to_any_rank_end_the_job(directory, *_):
    with place() as (source, out):
        larger = source + ".larger.safetensors"  # holes are not read, so the check of the other source would be finished
        huge(larger, 32 * HUGE)
        jobs = [("convert", source, f"{out}/d", "--to", "dcp", "--dtype", "bfloat16"), ("reshard", source, f"{out}/d", "--mesh", "dp=2", "--placements", "shard(0)"),
                ("validate", larger, "--deep")]
        for i, who in enumerate([None, 0, 1, RANKS - 1]):
            for k, job in enumerate(jobs):
                if job[0] != "validate" or i % 2:
                    stopped(directory, out, who, (signal.SIGTERM, signal.SIGINT)[(i + k) % 2], *job)


@test
def test_a_signal_while_ranks_begin_their_journals_leaves_none(directory, *_):
    """Rank 0 removes a journal that another rank has created but not locked yet. That rank creates another one, and is
    ended, too."""
    with place() as (source, out):
        for number in (signal.SIGTERM, signal.SIGINT):
            stopped(directory, out, 0, number, "convert", source, f"{out}/d", "--to", "dcp", "--dtype", "bfloat16", options=("-x", f"LD_PRELOAD={directory}/libslow_journals.so"))


def old_checkpoint(directory, path, *form):
    """Makes a checkpoint from another source, and returns its content."""
    source = path + ".safetensors"
    safetensors(source, [1000, 50], 9)
    status, _, err = alone(f"{directory}/tessera", form[0], source, path, *form[1:])
    need(status == 0, err)
    os.remove(source)
    return tree(path)


@test
def test_signals_leave_the_old_checkpoint_whole(directory, *_):
    """It is replaced by renaming the marker, by exchanging directories, and by renaming a single file."""
    mesh = ("--mesh", "dp=2", "--placements", "shard(0)")
    forms = [("convert", "--to", "dcp"), ("reshard", *mesh, "--to", "torch"), ("convert", "--to", "torch")]
    with place() as (source, out):
        for i, form in enumerate(forms):
            for who in (None, 0, RANKS - 1):
                before = old_checkpoint(directory, f"{out}/d", *form)

                def whole(out, what):
                    need(tree(f"{out}/d") == before and os.listdir(out) == ["d"], f"{what}: {os.listdir(out)}")
                stopped(directory, out, who, (signal.SIGTERM, signal.SIGINT)[i % 2], form[0], source, f"{out}/d", *form[1:], "--dtype", "bfloat16", "--overwrite",
                        expect=whole)
                shutil.rmtree(out)
                os.mkdir(out)


def published(path):
    """Returns {name: bytes} without the temporary files, which are as large as the source."""
    if not os.path.exists(path):
        return None
    found = {}
    for name in os.listdir(path):
        if ".tessera-" not in name:
            with open(os.path.join(path, name), "rb") as f:
                found[name] = f.read()
    return found


@test
def test_signals_leave_the_journals_of_a_job_that_can_resume(directory, *_):
    """For an old and a new checkpoint: the journals of all ranks stay, and the next run continues from them or, without
    --resume, removes them."""
    with place() as (source, out):
        for i, who in enumerate((None, 0, 1)):
            over = ("--overwrite",) if i else ()
            before = old_checkpoint(directory, f"{out}/d", "convert", "--to", "dcp") if i else None

            def resumable(out, what):
                need(published(f"{out}/d") == before, f"{what}: not the old one")
                need(sum("-by-3" in name for name in os.listdir(out)) == RANKS, f"{what}: {os.listdir(out)}")
            job = ("convert", source, f"{out}/d", "--to", "dcp", "--dtype", "bfloat16", *over)
            stopped(directory, out, who, (signal.SIGTERM, signal.SIGINT)[i % 2], *job, "--resume", expect=resumable)
            small = os.path.join(os.path.dirname(source), "small.safetensors")
            safetensors(small, [1000], 3)
            status, _, err = alone(f"{directory}/tessera", "convert", small, f"{out}/d", "--to", "dcp", *over)
            need(status == 0 and "removing the remains of an interrupted run" in err and os.listdir(out) == ["d"], f"{err} {os.listdir(out)}")
            need(not [name for name in os.listdir(f"{out}/d") if ".tessera-" in name], os.listdir(f"{out}/d"))
            shutil.rmtree(out)
            os.mkdir(out)
