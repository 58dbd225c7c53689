#!/usr/bin/env python3
"""Which elements of which original parameter every rank's slice of an FSDP1 flat parameter has, asked of PyTorch's own
FlatParamHandle: one process plays all ranks in turn over a fake process group.

    make_flat_ranges.py           writes flat_ranges.txt beside this script

One case a line:
    WORLD ALIGNMENT SLICE_NUMEL NUMELS RANK0 RANK1 ...
ALIGNMENT is in numel (0: none); NUMELS are the originals' joined by commas; a rank is begin-end (half-open, in the flattened
original) for every original, "-" where it has nothing of it.
"""
import os
import random
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.testing._internal.distributed.fake_pg import FakeStore

HERE = os.path.dirname(os.path.abspath(__file__))
warnings.filterwarnings("ignore")


def on_rank(rank, world, numels, dtype, use_orig_params):
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        module = nn.Module()
        for i, n in enumerate(numels):
            module.register_parameter(f"p{i}", nn.Parameter(torch.zeros(n, dtype=dtype)))
        flat = FSDP(module, use_orig_params=use_orig_params, device_id=torch.device("cpu"))._handle.flat_param
        infos = flat._shard_param_infos
        ranges = [f"{i.intra_param_start_idx}-{i.intra_param_end_idx + 1}" if i.in_shard else "-" for i in infos]
        return flat._sharded_size.numel(), ",".join(ranges)
    finally:
        dist.destroy_process_group()


def main():
    rng = random.Random(2013)
    lines = []
    while len(lines) < 200:
        world = rng.randint(1, 7)
        numels = [rng.choice([1, 1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 33]) for _ in range(rng.randint(1, 5))]
        use_orig_params = rng.random() < 0.6
        dtype = rng.choice([torch.float32, torch.bfloat16, torch.float64])
        ranks = [on_rank(r, world, numels, dtype, use_orig_params) for r in range(world)]
        alignment = 16 // dtype.itemsize if use_orig_params else 0
        lines.append(" ".join([str(world), str(alignment), str(ranks[0][0]), ",".join(map(str, numels)), *(r[1] for r in ranks)]))
    with open(os.path.join(HERE, "flat_ranges.txt"), "w") as f:
        f.write(f"# {os.path.basename(__file__)}, PyTorch {torch.__version__}\n" + "\n".join(lines) + "\n")
    print("flat_ranges.txt", len(lines))


if __name__ == "__main__":
    main()
