"""What every process of a sample has in common: fixed seeds, fixed ids, one thread, and a process group where there are ranks."""
import contextlib
import logging
import os
import random
import sys
import warnings


@contextlib.contextmanager
def process(rank, ranks, work):
    """The setting of one process. Without `work` there is no process group (the readers need none)."""
    warnings.filterwarnings("ignore")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import numpy
    import torch
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.manual_seed(20)
    numpy.random.seed(20)
    random.seed(20)
    fix_ids()
    if work is None or ranks == 1:
        yield
        return
    import torch.distributed as dist
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{os.path.join(work, 'rendezvous')}", rank=rank, world_size=ranks)
    yield
    dist.barrier()


def leave():
    """Ends the process at once: gloo's threads sometimes abort an orderly end, long after the work is done."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def fix_ids():
    """DCP gives every save a random id; the samples should not change when they are made again."""
    from torch.distributed.checkpoint import filesystem
    filesystem._generate_uuid = lambda: "00000000-0000-4000-8000-000000000000"
