"""Two jobs that replace one directory at the same time: one follows the other, or one is rejected; the result is never a
mixture."""
import fcntl
import os
import subprocess

from harness import need, test
from test_overwrite import FORMS, leave, make, nothing_temporary, source, tree

PAIRS = (("ranks", "sharded"), ("dcp", "ranks"), ("shards", "dcp"), ("shards", "ranks"))


def start(t, form, path, dest):
    command, *options = FORMS[form]
    return subprocess.Popen([t.path, command, path, dest, *options, "--overwrite", "-q"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)


@test
def test_two_jobs_on_one_directory_never_mix(t):
    old, first, second = (source(t, f"{n}.safetensors", i, f"{n}.") for i, n in enumerate(("old", "first", "second")))
    for turn, (there, (a, b)) in enumerate((there, pair) for there in ("dcp", None) for pair in PAIRS * 3):
        dest = t.at(f"d{turn}")
        if there:
            make(t, there, old, dest, "-q")
            leave(dest, {"notes.txt": b"mine"})
        jobs = {first: start(t, a, first, dest), second: start(t, b, second, dest)}
        errors = {path: p.communicate(timeout=60)[1] for path, p in jobs.items()}
        won = [path for path, p in jobs.items() if p.returncode == 0]
        need(won and all(p.returncode == 0 or b"another process" in errors[path] or b"File exists" in errors[path] for path, p in jobs.items()), errors)
        reads = [path for path in won if t.run("diff", path, dest, "--values", status=(0, 1, 2)).returncode == 0]
        need(len(reads) == 1, f"{there}, {a} and {b}: {sorted(os.listdir(dest))} reads as {reads}")
        need(not there or tree(dest).get("notes.txt") == b"mine", "notes.txt is gone")
        nothing_temporary(t)


@test
def test_a_directory_that_another_job_replaces_is_refused(t):
    old, new = source(t, "old.safetensors", 1), source(t, "new.safetensors", 2)
    dest = t.at("d")
    make(t, "dcp", old, dest, "-q")
    was = tree(dest)
    held = os.open(dest, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    for form in FORMS:
        p = make(t, form, new, dest, "--overwrite", status=2)
        need(b"another process is replacing" in p.stderr and tree(dest) == was, p.stderr)
        nothing_temporary(t)
    os.close(held)
    make(t, "dcp", new, dest, "--overwrite")
