"""Long calls that Ctrl-C ends, and background saves that are killed: nothing is left behind, or the next save removes it."""
import os
import shutil
import subprocess
import sys
import time

import killed_saves
import torch
from harness import ROOT
from interrupted import CALLS
from safetensors.torch import save_file
from test_python import INSTALLED, tessera
from torch_names import AsyncCheckpointerType, needs

from tessera import _library

HERE = os.path.join(ROOT, "tests", "package")


def output(script, *arguments, status=0):
    """What a script of this directory writes to stdout and to stderr."""
    p = subprocess.run([sys.executable, "-W", "ignore", os.path.join(HERE, script), *arguments], capture_output=True, text=True, timeout=600,
                       env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (INSTALLED, os.environ.get("PYTHONPATH"))))})
    assert p.returncode == status, (arguments, p.returncode, p.stdout, p.stderr[-1500:])
    return p.stdout, p.stderr


def everything(path):
    return sorted(os.path.relpath(os.path.join(directory, name), path) for directory, directories, names in os.walk(path) for name in directories + names)


def test_ctrl_c_in_every_long_call_leaves_nothing_and_the_interpreter_works(t):
    for call in CALLS:
        os.mkdir(t.at(call))
        save_file({"a": torch.arange(5.), "b": torch.ones(2, 2)}, t.at(call, "small.safetensors"))
    said, errors = output("interrupted.py", t.scratch)
    assert set(said.splitlines()) == set(CALLS), (set(CALLS) - set(said.splitlines()), errors[-3000:])
    for call in CALLS:
        if call == "exec":  # which continues what it has begun; any other run removes that
            assert {name[:14] for name in set(everything(t.at(call))) - {"small.safetensors"}} == {".out.tessera-w"}, everything(t.at(call))
            tessera.convert(t.at(call, "small.safetensors"), t.at(call, "out"), to="dcp")
            shutil.rmtree(t.at(call, "out"))
        assert everything(t.at(call)) == ["small.safetensors"], (call, everything(t.at(call)))


def interrupted_at(line, is_quick):
    """A call of the library in which KeyboardInterrupt is raised before the given line that Python runs of it, as a signal would do. Returns how
    often the call was made, whether one was still in progress afterwards, and whether so many lines were run."""
    stop, made, left = _library._Stop(), [], line

    def call():
        made.append(True)
        while not is_quick and not stop.flag.value:
            time.sleep(0.001)

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code is not _library._interruptible.__code__:
            return None
        left -= event == "line"
        if left == 0 and event == "line":
            raise KeyboardInterrupt
        return trace
    sys.settrace(trace)
    try:
        _library._interruptible([stop], call)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    in_progress = bool(stop.calls)
    stop.end()
    return len(made), in_progress, left <= 0


def test_an_interruption_at_any_line_waits_for_the_call(t):
    for line in range(1, 30):  # the lines of waiting come again and again
        made, in_progress, reached = interrupted_at(line, False)
        assert made <= 1 and not in_progress and reached, (line, made, in_progress, reached)
    line, reached = 0, True
    while reached:
        line += 1
        made, in_progress, reached = interrupted_at(line, True)
        assert made <= 1 and not in_progress, (line, made, in_progress)
    assert made == 1 and line > 10, line


# ---- saves in the background ----


def killed(t, kind, whom, overwrite):
    """A save that is killed in the middle: its process, or that of the job. Returns what the directory has then."""
    path = t.at(f"{kind}-{whom}-{overwrite}")
    if overwrite:
        killed_saves.save(path, 1)
    output("killed_saves.py", kind, path, whom, status=-9 if whom == "job" else 0)
    return path, killed_saves.found(path)


def test_a_background_save_that_is_killed_leaves_the_old_checkpoint_or_none(t):
    needs(AsyncCheckpointerType)
    for kind, whom in (("THREAD", "job"), ("PROCESS", "job"), ("PROCESS", "saver")):
        for overwrite in (False, True):
            path, found = killed(t, kind, whom, overwrite)
            assert found == ({1} if overwrite else None), (kind, whom, overwrite, found)
            killed_saves.save(path, 3)
            assert killed_saves.found(path) == {3} and len(os.listdir(path)) == 2, os.listdir(path)
