"""Errors that all ranks of a job share."""
import torch.distributed as dist

from ._library import TesseraError


def attempt(step):
    """The result, or the exception: of any kind, because the other ranks are waiting to hear of it."""
    try:
        return step(), None
    except Exception as e:
        return None, e


def agree(failure, facts=()):
    """Raises the lowest rank's failure on every rank; of facts, [(what, text)], the first that two ranks differ in."""
    mine = None
    if failure is not None:
        mine = str(failure) or type(failure).__name__, getattr(failure, "status", type(failure).__name__), getattr(failure, "byte_position", None)
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, (mine, facts))
    for rank, (failed, _) in enumerate(ranks):
        if failed:
            raise TesseraError(f"rank {rank}: {failed[0]}", *failed[1:]) from (failure if rank == dist.get_rank() else None)
    for rank, (_, theirs) in enumerate(ranks):
        for (what, first), (_, other) in zip(ranks[0][1], theirs):
            if first != other:
                raise TesseraError(f"ranks 0 and {rank} differ: {what} is {first} on rank 0, but {other} on rank {rank}", "usage")
