"""Calls that Ctrl-C ends in the middle: interrupted.py DIRECTORY. Each call is made in a process of its own, in a directory of DIRECTORY that has its
name and small.safetensors. What the call reads comes from a server that takes its time, so that no call ends before the signal. Prints the names of
the calls that ended by KeyboardInterrupt, after which the interpreter still worked."""
import contextlib
import functools
import io
import os
import signal
import sys
import threading
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import http_serving  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402

import tessera  # noqa: E402

HANDLED = threading.Event()


def handle(*arguments):
    HANDLED.set()
    signal.default_int_handler(*arguments)


def interrupt():
    """Sends the signal, and waits until the main thread has it, however late that is: meanwhile a call would end."""
    os.kill(os.getpid(), signal.SIGINT)
    HANDLED.wait(60)


class Once:
    """on_progress, until it has sent the signal."""

    def __init__(self):
        self.sent = False

    def __call__(self, done, total):
        if done and not self.sent:
            self.sent = True
            interrupt()


class Slow(http_serving.Handler):
    """Serves a file. Requests for its bytes after the fourth one take long; where the server interrupts, it sends the signal at the fourth."""

    def do_GET(self):
        if not self.path.endswith(self.server.name):
            return self.answer(404, b"not here")
        with self.server.lock:
            self.server.asked.append(self.path)
            number = len(self.server.asked)
        if number == 4 and self.server.interrupts:
            interrupt()
        elif number > 4:
            time.sleep(0.2)
        self.give(self.server.data)


@contextlib.contextmanager
def served(data, name="x.safetensors", interrupts=False):
    """The URL of a file of these bytes."""
    server = http_serving.Server(Slow)
    server.data, server.name, server.interrupts = data, name, interrupts
    with http_serving.running(server):
        yield f"{server.url}/{name}"


def tensors():
    """A state dict of 128 MiB."""
    return {f"w{n}": torch.full((1 << 18,), float(n)) for n in range(128)}


def while_it_reads(load):
    """load(url, state dict), interrupted by the server."""
    state = tensors()
    with served(safetensors.torch.save(state), interrupts=True) as url:
        load(url, state)


def when_it_reports(call):
    """call(url, on_progress=), interrupted by on_progress."""
    with served(safetensors.torch.save(tensors())) as url:
        call(url, on_progress=Once())


def optim(dest, **options):
    state = {n: {"exp_avg": torch.full((1 << 22,), float(n)), "step": torch.tensor(1.)} for n in range(8)}
    file = io.BytesIO()
    torch.save({"state": state, "param_groups": [{"lr": 1., "params": list(state)}]}, file)
    with served(file.getvalue(), "optimizer.pt") as url:
        tessera.optim("flatten", url, dest, on_progress=Once(), **options)


def load(path, _):
    import tessera.torch
    tessera.torch.load(path)


def load_into(path, state):
    import tessera.torch
    tessera.torch.load_into(state, path)


def dcp_load(path, state):
    import tessera.torch
    try:
        dcp.load(state, storage_reader=tessera.torch.StorageReader(path))
    except dcp.api.CheckpointException as e:
        raise e.failures[0][0]


def dcp_save(at="b", **options):
    """A save that is interrupted when it is asked for this tensor."""
    import tessera.torch

    class Interrupts(dcp.DefaultSavePlanner):
        def resolve_data(self, item):
            if item.index.fqn == at:
                interrupt()  # in the main thread, it raises
                time.sleep(0.5)
            return super().resolve_data(item)
    try:
        dcp.save({name: torch.ones(1 << 20) for name in "abc"}, storage_writer=tessera.torch.StorageWriter("out", **options), planner=Interrupts())
    except dcp.api.CheckpointException as e:
        raise e.failures[0][0]


def dcp_save_in_threads(**options):
    """Threads take so long to start that a signal which one of them sends as soon as it writes comes during that."""
    start = threading.Thread.start

    def slow(thread):
        start(thread)
        HANDLED.wait(2)
    threading.Thread.start = slow
    try:
        dcp_save("a", thread_count=3, **options)
    finally:
        threading.Thread.start = start


def manifest():
    return {"schema": "tessera.manifest/1", "algorithm": "xxh3", "entries": [
        {"fqn": name, "kind": "tensor", "dtype": "float32", "shape": list(tensor.shape), "hash": {"algorithm": "xxh3", "digest": "0" * 16}}
        for name, tensor in tensors().items()]}


PLAN = {"mesh": "dp=2", "placements": "shard(0)", "to": "dcp"}
REPORTING = {
    "inspect": lambda url, **more: tessera.inspect(url, hash="sha256", **more),
    "validate": lambda url, **more: tessera.validate(url, deep=True, **more),
    "check": lambda url, **more: tessera.check(url, deep=True, **more),
    "diff": lambda url, **more: tessera.diff(url, url, values=True, **more),
    "layout": lambda url, **more: tessera.layout(url, hash="sha256", **more),
    "manifest": lambda url, **more: tessera.manifest(url, **more),
    "verify": lambda url, **more: tessera.verify(url, manifest(), **more),
    "convert": lambda url, **more: tessera.convert(url, "out.pt", **more),
    "reshard": lambda url, **more: tessera.reshard(url, "out", **PLAN, **more),
    "exec": lambda url, **more: tessera.exec(tessera.plan(url, **PLAN), "out", **more),
    "merge": lambda url, **more: tessera.merge("out.safetensors", url, url, method="linear", **more),
    "copy": lambda url, **more: tessera.copy(url, "out.safetensors", **more),
}
CALLS = {
    **{name: functools.partial(when_it_reports, call) for name, call in REPORTING.items()},
    "optim": lambda: optim("out.pt"), "optim to DCP": lambda: optim("out", to="dcp"),
    "load": lambda: while_it_reads(load), "load_into": lambda: while_it_reads(load_into), "dcp.load": lambda: while_it_reads(dcp_load), "dcp.save": dcp_save, "dcp.save to safetensors": lambda: dcp_save(form="safetensors"),
    "dcp.save in threads": dcp_save_in_threads, "dcp.save to safetensors in threads": lambda: dcp_save_in_threads(form="safetensors", fqn_to_index_mapping={"a": 1, "b": 2, "c": 3}),
}

AT_A_TIME = 3  # they mostly wait for the server


def interrupted(call, directory):
    os.chdir(directory)
    signal.signal(signal.SIGINT, handle)
    try:
        CALLS[call]()
    except KeyboardInterrupt:
        assert tessera.convert("small.safetensors", "after.pt")["summary"]["tensors"] == 2 and tessera.validate("after.pt", deep=True)["findings"] == []
        os.remove("after.pt")
        sys.exit()
    sys.exit("the call was not interrupted")


def ended(running):
    """Waits for one of these processes, and prints its call if it exits with 0."""
    process, status = os.wait()
    call = running.pop(process)
    if status == 0:
        print(call, flush=True)
    else:
        print(f"{call}: status {os.waitstatus_to_exitcode(status)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    import tessera.torch  # noqa: F401  once for all processes
    running = {}
    for call in CALLS:
        if len(running) == AT_A_TIME:
            ended(running)
        child = os.fork()
        if not child:
            interrupted(call, os.path.join(sys.argv[1], call))
        running[child] = call
    while running:
        ended(running)
