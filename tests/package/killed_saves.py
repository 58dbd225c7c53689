"""A job that saves in the background and is killed in the middle: killed_saves.py KIND DIRECTORY WHOM. KIND: THREAD or PROCESS, as async_save has
them; WHOM: "job" is this process, "saver" the one that saves for it."""
import os
import signal
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import tessera.torch


class Kills(dcp.DefaultSavePlanner):
    """When some of the tensors are written."""
    whom = None

    def resolve_data(self, item):
        if item.index.fqn == "c":
            if self.whom != os.getpid():
                os.kill(self.whom or os.getpid(), signal.SIGKILL)
            if self.whom:
                os.kill(os.getpid(), signal.SIGKILL)  # the job's end would end it, at some time
        return super().resolve_data(item)


def state(k):
    return {name: torch.full((1 << 20,), float(k)) for name in "abcd"}


def save_in_the_background(kind, path, whom):
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
    os.environ.update(MASTER_ADDR="127.0.0.1")
    dist.init_process_group("gloo", init_method=f"file://{path}.meeting", rank=0, world_size=1)
    planner = Kills()
    planner.whom = os.getpid() if whom == "job" and kind == "PROCESS" else None
    future = dcp.async_save(state(2), storage_writer=tessera.torch.StorageWriter(path, overwrite=True), planner=planner, async_checkpointer_type=AsyncCheckpointerType[kind])
    try:
        getattr(future, "upload_completion", future).result()
    except BaseException as e:  # noqa: BLE001
        print(type(e).__name__, file=sys.stderr)
        os._exit(0)
    raise AssertionError("it was saved")


def save(path, k):
    """Save number `k`, as any job does it."""
    dcp.save(state(k), storage_writer=tessera.torch.StorageWriter(path, overwrite=True))


def found(path):
    """The numbers of the saves that PyTorch's own reader finds values of; None without a checkpoint."""
    if not os.path.exists(os.path.join(path, ".metadata")):
        return None
    loaded = state(0)
    dcp.load(loaded, storage_reader=dcp.FileSystemReader(path))
    return {int(value[n]) for value in loaded.values() for n in (0, -1)}


if __name__ == "__main__":
    save_in_the_background(*sys.argv[1:])
