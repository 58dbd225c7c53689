"""Writes tests/golden/skip_data: plain.pt, and filled.pt with the same tensors, for whose bytes torch.serialization.skip_data left room.

Usage: python tests/golden/make_skip_data.py          (torch 2.13)
"""
import pathlib

import torch

HERE = pathlib.Path(__file__).resolve().parent / "skip_data"

if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    state = {"a": torch.arange(6.0).reshape(2, 3), "none": torch.zeros(0), "n": {"b": torch.tensor([3, 5, 8]), "c": torch.ones(4, dtype=torch.bfloat16)}}
    torch.save(state, HERE / "plain.pt")
    with torch.serialization.skip_data():
        torch.save(state, HERE / "filled.pt")
    reader = torch._C.PyTorchFileReader(str(HERE / "filled.pt"))
    storages = {f"data/{i}": t for i, t in enumerate((state["a"], state["none"], state["n"]["b"], state["n"]["c"]))}
    with open(HERE / "filled.pt", "r+b") as f:
        for name, tensor in storages.items():
            f.seek(reader.get_record_offset(name))
            f.write(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
