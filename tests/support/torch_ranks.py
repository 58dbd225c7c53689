"""Ranks of PyTorch for a test: processes with a gloo group of their own."""
import gc
import os
import sys
import tempfile
import time

from ended import leave

LIMIT = 300  # seconds
NOTE = "note: ranks of"


def one_rank(rank, function, world, meeting, arguments):
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    function(rank, world, *arguments)
    try:
        dist.barrier()
    except RuntimeError:
        pass  # a rank that is through may be gone, and one that failed tells the parent itself
    dist.destroy_process_group()
    leave()  # a forked process leaves without the parent's cleanup, too


def run_ranks(function, world, *arguments, start_method="spawn", limit=LIMIT):
    """function(rank, world, *arguments) on `world` processes; raises what the first of them raised. It must be able to run twice:
    on a busy machine a thread of gloo (PyTorch 2.13) may spin in the destructor of a buffer for ever. Ranks that are still there
    after `limit` seconds are killed, and start once more; a note says so."""
    for last in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            if ended(function, (world, os.path.join(directory, "meeting"), arguments), world, start_method, limit):
                return
        print(f"{NOTE} {function.__name__} were still there after {limit} s" + ("" if last else "; they start once more"), file=sys.stderr, flush=True)
    raise TimeoutError(f"{function.__name__} hung twice on {world} ranks")


def repeat_notes(stderr):
    """Prints what run_ranks said in a program whose output was caught."""
    print("".join(line for line in stderr.splitlines(keepends=True) if line.startswith(NOTE)), end="")


def ended(function, arguments, world, start_method, limit):
    """False: the ranks did not end by themselves, and were killed."""
    import torch.multiprocessing as mp
    # A forked rank must not destroy process groups that earlier tests left in cycles: the threads of gloo are only in the parent.
    gc.collect()
    gc.freeze()
    try:
        context = mp.start_processes(one_rank, (function, *arguments), nprocs=world, join=False, start_method=start_method)
    finally:
        gc.unfreeze()
    until = time.monotonic() + limit
    try:
        while time.monotonic() < until:
            if context.join(timeout=1):
                return True
        return False
    finally:
        for process in context.processes:
            process.kill()
            process.join()
