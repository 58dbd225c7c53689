"""PyTorch's ranks: processes forked from this one, which has imported torch, that stay alive from draw to draw."""
import ctypes
import logging
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import tempfile
import time
import traceback

import torch
import torch.distributed as dist

GRACE = 1.5    # seconds that ranks have after one has refused: the others may wait for it for ever
PATIENCE = 15  # seconds for a job: PyTorch's ranks may wait for each other for ever


def serve(pipe, rank, world, directory):
    import torch_side
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=world)
    while True:
        draw, number = pipe.recv()
        try:
            pipe.send(("out", torch_side.perform(draw, number, rank, lambda job: pipe.send(("job", job)))))
        except Exception:
            pipe.send(("broken", traceback.format_exc(limit=-3)[-500:]))


def end_with_parent():
    """A rank inherits the other ranks' pipes, so that none of them sees its own closed when the parent is killed."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def child(pipe, rank, world, directory):
    end_with_parent()
    try:
        serve(pipe, rank, world, directory)
    except (EOFError, KeyboardInterrupt):
        pass
    finally:
        os._exit(0)


def warm():
    """Imports in this process what draws would import in each of its children."""
    import torch_side  # noqa: F401
    from torch import nn
    torch.set_num_threads(1)
    torch.compile(nn.Linear(1, 1))
    for name in ("Adam", "SGD"):
        parameter = nn.Parameter(torch.zeros(1))
        parameter.grad = torch.zeros(1)
        getattr(torch.optim, name)([parameter]).step()


WAITS = "waits for another rank"


class Broken(Exception):
    """The fuzzer's own fault: PyTorch's side could not be set up."""


class Pool:
    def __init__(self):
        self.world, self.children, self.pipes, self.started = 0, [], [], 0
        warm()

    def start(self, world):
        if self.world == world:
            return
        self.stop()
        self.directory, self.world, self.started = tempfile.mkdtemp(prefix="state-dict-fuzz-"), world, self.started + 1
        context = multiprocessing.get_context("fork")
        for rank in range(world):
            mine, its = context.Pipe()
            process = context.Process(target=child, args=(its, rank, world, self.directory), daemon=True)
            process.start()
            its.close()
            self.children.append(process)
            self.pipes.append(mine)

    def stop(self):
        for process in self.children:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        for pipe in self.pipes:
            pipe.close()
        if self.world:
            shutil.rmtree(self.directory, ignore_errors=True)
        self.world, self.children, self.pipes = 0, [], []

    def perform(self, draw, number):
        """By rank: the job's bytes (None: PyTorch waits for ever before there is one), and {"out": bytes} or {"error": text}."""
        self.start(draw.world)
        for pipe in self.pipes:
            pipe.send((draw, number))
        jobs, results = [None] * draw.world, [None] * draw.world
        end = time.monotonic() + PATIENCE
        while None in results and time.monotonic() < end:
            waiting = [p for p, r in zip(self.pipes, results) if r is None]
            for pipe in multiprocessing.connection.wait(waiting, max(0, end - time.monotonic())):
                rank = self.pipes.index(pipe)
                self.take(pipe, rank, jobs, results)
                if results[rank] and "error" in results[rank]:
                    end = min(end, time.monotonic() + GRACE)
        if any(r is None or "error" in r for r in results) and draw.world > 1:
            self.stop()  # ranks that refused in different places do not belong together any more
        return jobs, [r or {"error": WAITS} for r in results]

    def take(self, pipe, rank, jobs, results):
        try:
            kind, value = pipe.recv()
        except EOFError:
            kind, value = "broken", f"rank {rank} of PyTorch ended"
        if kind == "broken":
            self.stop()
            raise Broken(value)
        if kind == "job":
            jobs[rank] = value
        else:
            results[rank] = value
