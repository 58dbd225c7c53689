"""Ranks that save with tessera.torch.StorageWriter, and a process that reads such saves. All of them are children of one process, which
imports PyTorch once for all tests, when the first of them asks for ranks. It is run by a Python that has PyTorch and the package, with the
number of a socket. A message asks for the ranks of one test: it is their environment, with PORT in it, as a JSON document, and comes with
file descriptors: a log, one that is closed when all of these ranks have ended, and two for each rank. Each line of a rank's first one is a job,
which is a JSON document (see test_python_writer.py), and its result is a line of the second."""
import gc
import json
import os
import signal
import socket
import sys
import time
import traceback

requests = socket.socket(fileno=int(sys.argv[1]))
if not requests.recv(1, socket.MSG_PEEK):  # No test asks for ranks, so PyTorch, which takes seconds, is not imported.
    sys.exit()

import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401  distribute_tensor would import it in each rank
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch.distributed.checkpoint import HuggingFaceStorageReader  # noqa: E402
from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402

import tessera.torch  # noqa: E402


def whole(name, k, rows, columns):
    """Returns a tensor whose values differ by name, step and position."""
    generator = torch.Generator().manual_seed(1000 * k + sum(name.encode()))
    return torch.rand(rows, columns, generator=generator)


def shapes(job):
    return {"large": (job["world"] * job.get("rows", 1100), 2048), "small": (7, 5), "none": (0, 3)}


def state_of(job, k, mesh):
    """Returns the state of step `k`. `large` and `small` are split by rows over the ranks, `small` unevenly. Every rank has
    the rest. Safetensors files hold only tensors."""
    model = {name: whole(name, k, *shape) for name, shape in shapes(job).items()}
    if mesh:
        model = {name: distribute_tensor(tensor, mesh, [Shard(0)]) if name != "none" else tensor for name, tensor in model.items()}
    return {"model": model} if of_safetensors(job) else {"model": model, "step": k, "lr": [0.1 * k, {"kind": f"cosine {k}"}]}


def of_safetensors(job):
    return job.get("options", {}).get("form") == "safetensors"


class Planner(dcp.DefaultSavePlanner):
    """Raises an exception, or kills its process when the file `when` is there, on one rank when it is asked for its last tensor."""

    def __init__(self, what, rank, when):
        super().__init__()
        self.what, self.rank, self.when, self.left = what, rank, when, None

    def finish_plan(self, plan):
        plan = super().finish_plan(plan)
        self.left = len(plan.items)
        return plan

    def resolve_data(self, item):
        self.left -= 1
        if self.left == 0 and dist.get_rank() == self.rank:
            if self.what == "raise":
                raise ArithmeticError("rank fails on purpose")
            while not os.path.exists(self.when):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().resolve_data(item)


def kinds(e):
    return {str(rank): type(failure[0]).__name__ for rank, failure in e.failures.items()} if isinstance(e, CheckpointException) else type(e).__name__


def save(job):
    if not dist.is_initialized():
        rank, port = int(os.environ["RANK"]), os.environ["PORT"]
        dist.init_process_group("gloo", rank=rank, world_size=job["world"], init_method=f"tcp://127.0.0.1:{port}")
    state = state_of(job, job["k"], init_device_mesh("cpu", (job["world"],)))
    planner = Planner(job.get("fault"), job.get("faulty", -1), job.get("when"))
    try:
        writer = tessera.torch.StorageWriter(job["url"], **job.get("options", {}))
        if job.get("is_async"):
            future = dcp.async_save(state, storage_writer=writer, planner=planner)
            for tensor in state["model"].values():
                tensor.mul_(-1)  # The saved state must be the one at the time of the call.
            future.result()
        else:
            dcp.save(state, storage_writer=writer, planner=planner, **job.get("how", {}))
    except BaseException as e:  # noqa: BLE001
        return {"failed": kinds(e), "said": str(e)[-2000:]}
    return {"failed": None}


def save_in_child(job):
    """Saves in a child process without other ranks, so that it can be killed from outside. Prints the child's process id and
    returns how it ended."""
    child = os.fork()
    if not child:
        try:
            state = state_of({**job, "world": 1}, job["k"], None)
            dcp.save(state, storage_writer=tessera.torch.StorageWriter(job["url"], **job["options"]), no_dist=True)
            os._exit(0)
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            os._exit(1)
    answer({"child": child})
    return {"ended": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}


def compare(job, load):
    """Whether the state that `load` fills is that of step `k`, bit for bit."""
    want, state = state_of(job, job["k"], None), state_of(job, 0, None)
    load(state)
    same = {name: torch.equal(state["model"][name], tensor) for name, tensor in want.pop("model").items()}
    return all(same.values()) and all(state[name] == value for name, value in want.items())


def load_by_index(state, copy):
    """Loads what the index lists, as transformers does."""
    with open(os.path.join(copy, "model.safetensors.index.json")) as f:
        files = json.load(f)["weight_map"]
    for name in state["model"]:
        state["model"][name] = load_file(os.path.join(copy, files[f"model.{name}"]))[f"model.{name}"]


def read(job):
    """Reads with PyTorch from a copy on this machine, and with the package from the URL."""
    copy = job.get("copy")
    reader = HuggingFaceStorageReader if of_safetensors(job) else dcp.FileSystemReader
    by_torch = copy and compare(job, lambda state: dcp.load(state, storage_reader=reader(copy), no_dist=True))
    if copy and of_safetensors(job):
        by_torch = by_torch and compare(job, lambda state: load_by_index(state, copy))
    by_url = compare(job, lambda state: dcp.load(state, storage_reader=tessera.torch.StorageReader(job["url"]), no_dist=True))
    return {"by_torch": by_torch, "by_url": by_url, "findings": [f.rule for f in tessera.check(job["url"], deep=True)]}


def equals(job):
    """Whether PyTorch reads the tensors of a safetensors file, bit for bit, from a copy of a DCP."""
    want = load_file(job["file"])
    state = {name: torch.zeros_like(tensor) for name, tensor in want.items()}
    dcp.load(state, checkpoint_id=job["copy"], no_dist=True)
    return all(torch.equal(state[name].view(torch.uint8), tensor.view(torch.uint8)) for name, tensor in want.items())


def answer(result):
    print(json.dumps(result), file=results, flush=True)


def next_request():
    """Forks for each message, until no test is left that could send one. Returns what came with the message, in the child."""
    gc.collect()
    gc.freeze()  # Otherwise each collection in each rank would visit, and so copy, all objects of PyTorch.
    while True:
        message, fds, _, _ = socket.recv_fds(requests, 1 << 18, 64)
        if not message:
            sys.exit()
        if os.fork() == 0:
            return json.loads(message), fds
        for fd in fds:
            os.close(fd)


environment, (log, ended, *pipes) = next_request()
requests.close()
os.environ.clear()
os.environ.update(environment)
os.dup2(log, sys.stderr.fileno())
os.close(log)
for rank in range(len(pipes) // 2):
    if os.fork() == 0:
        break
else:
    for fd in pipes:
        os.close(fd)
    for _ in range(len(pipes) // 2):
        os.wait()
    sys.exit()
os.environ["RANK"] = str(rank)
jobs, results = os.fdopen(pipes[2 * rank]), os.fdopen(pipes[2 * rank + 1], "w")
for other in {*pipes} - {pipes[2 * rank], pipes[2 * rank + 1]}:
    os.close(other)
for line in jobs:
    asked = json.loads(line)
    answer({"save": save, "read": read, "child": save_in_child, "equals": equals}[asked["do"]](asked))
if os.environ.get("RANKS_DIE"):
    os._exit(0)  # Another rank has died, so this one ends without the destructors of PyTorch's process groups.
if dist.is_initialized():
    dist.destroy_process_group()
