"""Writes tests/golden/torchao: a model with quantized weights as torch.save and DCP have them.

Usage: python tests/golden/make_torchao.py    in an environment that has torchao

Made with torch 2.13.0 and torchao 0.18.0 on CPU.
"""
import pathlib
import shutil

import torch
import torch.distributed.checkpoint as dcp
from torchao.quantization import Float8Tensor, Int8Tensor
from torchao.quantization.granularity import PerRow

HERE = pathlib.Path(__file__).resolve().parent / "torchao"


def ramp(seed, *shape):
    return (torch.arange(torch.Size(shape).numel()) * 0.5 + seed).reshape(shape).to(torch.bfloat16)


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    state = {"first": Float8Tensor.from_hp(ramp(1, 16, 32), granularity=PerRow()), "second": Int8Tensor.from_hp(ramp(2, 8, 64), PerRow()),
             "large": Float8Tensor.from_hp(ramp(3, 64, 64), granularity=PerRow()), "bias": ramp(4, 16), "norm": torch.ones(5) * 3}
    torch.save(state, HERE / "model.pt")
    dcp.save(state, checkpoint_id=HERE / "dcp", no_dist=True)


if __name__ == "__main__":
    main()
