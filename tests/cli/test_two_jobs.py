"""Two jobs that replace one directory at the same time: one follows the other, or one is rejected; the result is never a
mixture."""
import fcntl
import os
import subprocess
import time

from harness import need, preloadable, test
from test_overwrite import FORMS, leave, make, nothing_temporary, source, tree

PAIRS = (("ranks", "sharded"), ("dcp", "ranks"), ("shards", "dcp"), ("shards", "ranks"))


def start(t, form, path, dest, **env):
    command, *options = FORMS[form]
    return subprocess.Popen([t.path, command, path, dest, *options, "--overwrite", "-q"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, **env})


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


def stops_after_the_exchange(t):
    """A library that makes the file EXCHANGED when the directory with the name DEST has been exchanged, and then waits for the file GO_ON."""
    code = """#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
long syscall(long number, ...)
{
    long (*real)(long, ...) = dlsym(RTLD_NEXT, "syscall"), of[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) of[i] = va_arg(rest, long);
    va_end(rest);
    const long result = real(number, of[0], of[1], of[2], of[3], of[4], of[5]);
    if (number != SYS_renameat2 || of[4] != 2 || strcmp((const char *)of[3], getenv("DEST")) != 0) return result; /* RENAME_EXCHANGE */
    close(open(getenv("EXCHANGED"), O_CREAT | O_WRONLY, 0600));
    while (access(getenv("GO_ON"), F_OK) != 0) usleep(10000);
    return result;
}
"""
    return {"LD_PRELOAD": preloadable(t.at("stops_after_the_exchange.so"), code), "DEST": "d", "EXCHANGED": t.at("exchanged"), "GO_ON": t.at("go_on")}


@test
def test_a_directory_is_held_until_the_one_that_it_replaced_is_gone(t):
    """Otherwise another job takes the new directory away while files that stay are still moved to it."""
    old, first, second = (source(t, f"{n}.safetensors", i, f"{n}.") for i, n in enumerate(("old", "first", "second")))
    env, dest = stops_after_the_exchange(t), t.at("d")
    make(t, "dcp", old, dest, "-q")
    leave(dest, {"notes.txt": b"mine"})
    p = start(t, "ranks", first, dest, **env)
    while not os.path.exists(env["EXCHANGED"]):
        need(p.poll() is None, f"it ended before the directory was exchanged: {p.returncode} {p.stderr.read() if p.returncode is not None else ''}")
        time.sleep(0.01)
    refused = make(t, "sharded", second, dest, "--overwrite", status=(0, 2))
    open(env["GO_ON"], "w").close()
    err = p.communicate(timeout=60)[1]
    need(p.returncode == 0 and refused.returncode == 2 and b"another process is replacing" in refused.stderr, f"{p.returncode} {err} {refused.returncode} {refused.stderr}")
    t.run("diff", first, dest, "--values")
    make(t, "sharded", second, dest, "--overwrite")
    t.run("diff", second, dest, "--values")
    need(tree(dest).get("notes.txt") == b"mine", "notes.txt is gone")
    nothing_temporary(t)
