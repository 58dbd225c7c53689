"""Data and sides of sum_jobs.py that Python does: sum_peers.py FUNCTION ARG… Loads and saves print {"wall": s, "cpu": s}, the medians of 15
calls after one that warms up."""
import json
import shutil
import statistics
import sys
import time

import torch
from peers import our_wheel


def timed(call, checks, before):
    before()
    wall, cpu = time.perf_counter(), time.process_time()
    call(checks)
    return time.perf_counter() - wall, time.process_time() - cpu


def measure(call, checks, before=lambda: None):
    """call(whether with checksums). With them, each call is next to one without, in the same memory, and `ratio` is the median of the ratios of
    such pairs: memory of two processes may differ more than what is measured."""
    samples, ratios = [], []
    for turn in range(16):
        other = timed(call, False, before) if checks and turn % 2 else None
        own = timed(call, checks, before)
        if checks and not other:
            other = timed(call, False, before)
        if turn:
            samples.append(own)
            ratios += [own[1] / other[1]] if checks else []
    figures = {"wall": statistics.median(wall for wall, _ in samples), "cpu": statistics.median(cpu for _, cpu in samples)}
    print(json.dumps({**figures, **({"ratio": statistics.median(ratios)} if checks else {})}))


def make(path, mib):
    torch.save({f"layers.{n}.weight": torch.randn(4096, 1024) + n for n in range(int(mib) // 16)}, path)


def load(path, verify):
    tessera = our_wheel()
    measure(lambda checks: tessera.load(path, verify=checks), verify == "1")


def load_into(path, verify):
    tessera = our_wheel()
    state = tessera.load(path)
    measure(lambda checks: tessera.load_into(state, path, verify=checks), verify == "1")


def save(source, out, form, checksums):
    import torch.distributed.checkpoint as dcp
    tessera = our_wheel()
    state = torch.load(source)
    measure(lambda checks: dcp.save(state, storage_writer=tessera.StorageWriter(out, form=form, checksums=checks), no_dist=True), checksums == "1",
            before=lambda: shutil.rmtree(out, ignore_errors=True))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
