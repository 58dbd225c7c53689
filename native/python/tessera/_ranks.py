"""Errors that all ranks of a job share."""
from __future__ import annotations

from typing import Any, Callable

import torch.distributed as dist

from ._library import TesseraError


def attempt(step: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Returns (result, None) or (None, exception). Catches every kind, because the other ranks wait to learn of it."""
    try:
        return step(), None
    except Exception as e:
        return None, e


def agree(failure, shared=(), group=None):
    """Raises the failure of the lowest rank on every rank. Otherwise raises an error for the first of `shared`, [(what, text)], in which
    two ranks differ. group: the process group whose ranks agree; None is the default group."""
    mine = None
    if failure is not None:
        mine = str(failure) or type(failure).__name__, getattr(failure, "status", type(failure).__name__), getattr(failure, "byte_position", None)
    ranks: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(ranks, (mine, shared), group)
    for rank, (failed, _) in enumerate(ranks):
        if failed:
            raise TesseraError(f"rank {rank}: {failed[0]}", *failed[1:]) from (failure if rank == dist.get_rank(group) else None)
    for rank, (_, theirs) in enumerate(ranks):
        for (what, first), (_, other) in zip(ranks[0][1], theirs):
            if first != other:
                raise TesseraError(f"ranks 0 and {rank} differ: {what} is {first} on rank 0, but {other} on rank {rank}", "usage")
