"""A call that Ctrl-C ends in the middle: interrupted.py CALL DIRECTORY. DIRECTORY has big.safetensors (w and v, 1.5 GiB each), optimizer.pt (256 MiB) and
small.safetensors. Prints "interrupted" if the call ended by KeyboardInterrupt and the interpreter still works."""
import os
import signal
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import http_serving  # noqa: E402
import safetensors.torch  # noqa: E402

import tessera  # noqa: E402

BIG = "big.safetensors"


def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)


class Once:
    """on_progress, until it has sent the signal."""

    def __init__(self):
        self.sent = False

    def __call__(self, done, total):
        if done and not self.sent:
            self.sent = True
            interrupt()


class Interrupts(http_serving.Handler):
    """Serves a file, and sends the signal at the fourth request for its bytes; those after it take long."""

    def do_GET(self):
        with self.server.lock:
            self.server.asked.append(self.path)
            number = len(self.server.asked)
        if number == 4:
            interrupt()
        elif number > 4:
            time.sleep(0.2)
        self.give(self.server.data)


def while_it_reads(load):
    """load(url, state dict) of 128 MiB."""
    import torch
    state = {f"w{n}": torch.zeros(1 << 20, dtype=torch.uint8) for n in range(128)}
    server = http_serving.Server(Interrupts)
    server.data = safetensors.torch.save(state)
    with http_serving.running(server):
        load(server.url + "/x.safetensors", state)


def load(path, _):
    import tessera.torch
    tessera.torch.load(path)


def load_into(path, state):
    import tessera.torch
    tessera.torch.load_into(state, path)


def dcp_load(path, state):
    import tessera.torch
    import torch.distributed.checkpoint as dcp
    try:
        dcp.load(state, storage_reader=tessera.torch.StorageReader(path))
    except dcp.api.CheckpointException as e:
        raise e.failures[0][0]


def dcp_save(**options):
    import tessera.torch
    import torch
    import torch.distributed.checkpoint as dcp

    class Interrupts(dcp.DefaultSavePlanner):
        def resolve_data(self, item):
            if item.index.fqn == "b":
                interrupt()
            return super().resolve_data(item)
    try:
        dcp.save({name: torch.ones(1 << 20) for name in "abc"}, storage_writer=tessera.torch.StorageWriter("out", **options), planner=Interrupts())
    except dcp.api.CheckpointException as e:
        raise e.failures[0][0]


PLAN = {"mesh": "dp=2", "placements": "shard(0)", "to": "dcp"}
CALLS = {
    "inspect": lambda: tessera.inspect(BIG, hash="sha256", on_progress=Once()),
    "validate": lambda: tessera.validate(BIG, deep=True, on_progress=Once()),
    "check": lambda: tessera.check(BIG, deep=True, on_progress=Once()),
    "diff": lambda: tessera.diff(BIG, "copy.safetensors", values=True, on_progress=Once()),
    "layout": lambda: tessera.layout(BIG, hash="sha256", on_progress=Once()),
    "manifest": lambda: tessera.manifest(BIG, on_progress=Once()),
    "verify": lambda: tessera.verify(BIG, {"schema": "tessera.manifest/1", "algorithm": "xxh3", "entries": [
        {"fqn": name, "kind": "tensor", "dtype": "float32", "shape": [1536 << 8, 1024], "hash": {"algorithm": "xxh3", "digest": "0" * 16}} for name in "wv"]}, on_progress=Once()),
    "convert": lambda: tessera.convert(BIG, "out.pt", on_progress=Once()),
    "reshard": lambda: tessera.reshard(BIG, "out", on_progress=Once(), **PLAN),
    "exec": lambda: tessera.exec(tessera.plan(BIG, **PLAN), "out", on_progress=Once()),
    "merge": lambda: tessera.merge("out.safetensors", BIG, BIG, method="linear", on_progress=Once()),
    "optim": lambda: tessera.optim("flatten", "optimizer.pt", "out.pt", on_progress=Once()),
    "optim to DCP": lambda: tessera.optim("flatten", "optimizer.pt", "out", to="dcp", on_progress=Once()),
    "copy": lambda: tessera.copy(BIG, "out.safetensors", on_progress=Once()),
    "load": lambda: while_it_reads(load), "load_into": lambda: while_it_reads(load_into), "dcp.load": lambda: while_it_reads(dcp_load), "dcp.save": dcp_save, "dcp.save to safetensors": lambda: dcp_save(form="safetensors"),
}

if __name__ == "__main__":
    os.chdir(sys.argv[2])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
    try:
        CALLS[sys.argv[1]]()
    except KeyboardInterrupt:
        assert tessera.convert("small.safetensors", "after.pt")["summary"]["tensors"] == 2 and tessera.validate("after.pt", deep=True)["findings"] == []
        os.remove("after.pt")
        print("interrupted")
