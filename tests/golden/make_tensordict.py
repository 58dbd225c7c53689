"""Writes tests/golden/tensordict: a TensorDict as torch.save writes it, alone and in a dict, and its tensors.

Usage: python tests/golden/make_tensordict.py    in an environment with torch 2.13.0 and tensordict 0.15.3
"""
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from tensordict import TensorDict

HERE = pathlib.Path(__file__).resolve().parent / "tensordict"


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": {"c": torch.arange(2, dtype=torch.int64) + 7, "d": {"e": torch.ones(2, 1, dtype=torch.bfloat16)}}}
    torch.save(TensorDict(tensors, batch_size=[2]), HERE / "alone.pt")
    torch.save({"model": TensorDict(tensors, batch_size=[2]), "step": 3}, HERE / "inside.pt")
    save_file({"a": tensors["a"], "b.c": tensors["b"]["c"], "b.d.e": tensors["b"]["d"]["e"]}, HERE / "tensors.safetensors")


if __name__ == "__main__":
    main()
