"""Writes tests/golden/torchao_sharded: the 8-bit state of an optimizer, sharded over two ranks, as DCP and as one torch.save file per
rank have it.

Usage: python tests/golden/make_torchao_sharded.py    in an environment that has torchao

Made with torch 2.13.0 and torchao 0.18.0 on CPU. The ranks hold unequal parts.
"""
import pathlib
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torchao.optim.subclass_8bit import OptimState8bit

HERE = pathlib.Path(__file__).resolve().parent / "torchao_sharded"
ROWS = (6, 5)


def moments(seed, rank):
    """Rows of a quantized tensor: each rank quantizes its own, so that codes and scales differ from rank to rank."""
    codes = ((torch.arange(ROWS[rank] * 16) * 7 + 31 * seed + 101 * rank) % 256).to(torch.uint8).reshape(ROWS[rank], 16)
    scale = torch.arange(ROWS[rank] // 2) * 0.25 + seed + 10 * rank
    return OptimState8bit(codes, scale, torch.linspace(-1, 1, 256) * seed, True)


def save(rank, address):
    dist.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    state = {"exp_avg": DTensor.from_local(moments(1, rank), mesh, [Shard(0)], run_check=False, shape=(11, 16), stride=(16, 1)),
             "exp_avg_sq": DTensor.from_local(moments(2, rank), mesh, [Shard(0)], run_check=False, shape=(11, 16), stride=(16, 1)),
             "same": DTensor.from_local(moments(3, 0), mesh, [Replicate()], run_check=False),
             "weight": distribute_tensor(torch.arange(22.0).reshape(11, 2), mesh, [Shard(0)]), "step": torch.tensor(7.0)}
    dcp.save(state, checkpoint_id=HERE / "dcp")
    (HERE / "ranks").mkdir(exist_ok=True)
    torch.save(state, HERE / "ranks" / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    shutil.rmtree(HERE, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        torch.multiprocessing.spawn(save, (f"{scratch}/store",), 2)
