"""Samples that PyTorch 2.11 wrote from CUDA tensors on an H100, with tests/cuda/python_on_a_gpu.py. Without a GPU they cannot be
made again, so they are kept as they are, and only the values that PyTorch reads from them on the CPU are computed again."""
import os
import shutil

from . import torch_cases
from .dcp_cases import read_dcp
from .registry import case

CHECKPOINTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "checkpoints")


def keep(name):
    shutil.copytree(os.path.join(CHECKPOINTS, name), name, dirs_exist_ok=True)


case("torch_cuda_training", torch_cases.reader("cuda_training.pt"), "a training script's dict with fused AdamW, states of random generators, every dtype and views, on cuda:0")(keep)
case("dcp_cuda_fsdp2", read_dcp, "FSDP2 and AdamW on a CUDA mesh of one rank")(keep)
case("dcp_cuda_fsdp1", read_dcp, "FSDP1 SHARDED_STATE_DICT (ShardedTensors on cuda:0) with its optimizer state")(keep)
case("dcp_cuda_async", read_dcp, "dcp.async_save of CUDA tensors of every dtype, of views and of transposed ones")(keep)
