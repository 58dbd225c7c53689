"""Writes tests/golden/megatron/NAME: small checkpoints of four ranks as Megatron-Core saves them, and NAME.json with what its own
loader says of them: shapes, dtypes and digests of load_plain_tensors, objects as load gives them.

Usage: PYTHONPATH=<megatron-core 0.14.0> python tests/golden/make_megatron.py fragments
       PYTHONPATH=<megatron-core 0.16.1> python tests/golden/make_megatron.py layers       (without CUDA)

Made with torch 2.13.0 over gloo. 0.14 is the last version that stores optimizer state as flat ranges of fragments.
"""
import argparse
import hashlib
import json
import math
import pathlib
import shutil
import sys
import tempfile

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing

numpy.product = numpy.prod  # Megatron-Core 0.14 was written for an older numpy
torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
torch.cuda.current_device = lambda *_: "cpu"

HERE = pathlib.Path(__file__).resolve().parent / "megatron"
WORLD = 4


def whole(seed, shape, dtype=torch.float32):
    return (torch.arange(math.prod(shape)) * 0.25 + 100 * seed).reshape(shape).to(dtype)


def flat(core, key, tensor, cuts, tp, dp, splits, layer=None):
    """A rank's range of its fragment. `cuts`: the dim that is cut in two between tensor-parallel ranks, or None; `splits`: where
    the data-parallel ranks' ranges of a fragment meet."""
    before = () if layer is None else ((0, *layer),)
    local = tensor if cuts is None else tensor.chunk(2, cuts)[tp]
    offsets = () if cuts is None else ((cuts + len(before), tp, 2),)
    part = slice(0, splits) if dp == 0 else slice(splits, local.numel())
    return core.ShardedTensor.from_rank_offsets_flat(key, local.reshape(-1)[part].clone(), local.shape, *before, *offsets,
                                                     flattened_range=part, prepend_axis_num=len(before),
                                                     replica_id=tp if cuts is None else 0)


def fragments(core, rank):
    tp, dp = rank % 2, rank // 2
    return {"rows": flat(core, "optimizer.rows", whole(1, (4, 6)), 0, tp, dp, 5),
            "columns": flat(core, "optimizer.columns", whole(2, (3, 8)), 1, tp, dp, 6),
            "line": flat(core, "optimizer.line", whole(3, (7,)), None, tp, dp, 3),
            "cube": flat(core, "optimizer.cube", whole(4, (2, 3, 4)), 2, tp, dp, 7),
            "layers": [flat(core, "optimizer.layers", whole(5 + n, (4, 5)), 0, tp, dp, 4 + n, (n, 2)) for n in range(2)],
            "half": flat(core, "optimizer.half", whole(7, (6, 3), torch.bfloat16), 0, tp, dp, 8)}


def layers(core, rank):
    tp, dp = rank % 2, rank // 2
    return {"layers": [core.ShardedTensor.from_rank_offsets("decoder.layers.linear.weight", whole(11 + n, (4, 6)).chunk(2, 1)[tp].clone(),
                                                            (0, n, 3), (2, tp, 2), prepend_axis_num=1, replica_id=dp) for n in range(3)]}


def state(core, rank, special):
    tp, dp = rank % 2, rank // 2
    return {**special(core, rank),
            "weight": core.ShardedTensor.from_rank_offsets("weight", whole(9, (4, 3), torch.bfloat16).chunk(2)[tp].clone(), (0, tp, 2),
                                                           replica_id=dp),
            "rng": core.ShardedObject("rng_state", [{"seed": 10 + rank, "name": f"rank {rank}"}], (WORLD,), (rank,)),
            "grid": core.ShardedObject("grid", {"tp": tp, "dp": dp}, (2, 2), (tp, dp)),
            "one": core.ShardedObject("one", "only", (1,), (0,), replica_id=rank),
            "iteration": 7, "scheduler": {"lr": 0.125, "style": "cosine", "empty": {}}, "args": argparse.Namespace(layers=3, name="small"),
            "seen": torch.tensor([3, 5])}


def sha(tensor):
    return hashlib.sha256(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def expectation(checkpointing, directory, shapes):
    tensors = checkpointing.load_plain_tensors(str(directory))
    entries = {k: {"dtype": str(v.dtype).removeprefix("torch."), "shape": list(shapes.get(k, v.shape)), "sha256": sha(v)}
               for k, v in tensors.items() if isinstance(v, torch.Tensor) and k != "seen"}
    objects = {"rng_state": [[{"seed": 10 + r, "name": f"rank {r}"}] for r in range(WORLD)],
               "grid": [{"tp": n // 2, "dp": n % 2} for n in range(4)], "one": ["only"],
               "common.iteration": 7, "common.scheduler.lr": 0.125, "common.scheduler.style": "cosine"}
    return {"entries": {**entries, "common.seen": {"dtype": "int64", "shape": [2], "sha256": sha(torch.tensor([3, 5]))}}, "objects": objects}


def save(rank, name, address):
    dist.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=WORLD)
    from megatron.core import dist_checkpointing as checkpointing
    from megatron.core.dist_checkpointing import mapping
    directory = HERE / name
    checkpointing.save(state(mapping, rank, {"fragments": fragments, "layers": layers}[name]), str(directory))
    dist.barrier()
    shapes = {"optimizer.rows": (4, 6), "optimizer.columns": (3, 8), "optimizer.cube": (2, 3, 4), "optimizer.layers": (2, 4, 5),
              "optimizer.half": (6, 3)}  # load_plain_tensors of 0.14 gives these flat
    want = expectation(checkpointing, directory, shapes)  # every rank loads
    if rank == 0:
        (HERE / f"{name}.json").write_text(json.dumps(want, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    name = sys.argv[1]
    shutil.rmtree(HERE / name, ignore_errors=True)
    (HERE / name).mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        torch.multiprocessing.spawn(save, (name, f"{scratch}/store"), WORLD)
