"""Runs under another version of PyTorch for test_versions.py: saves a state, or loads one and compares it with that state.

    exchange.py save DIRECTORY         DIRECTORY/dcp and DIRECTORY/state.pt
    exchange.py load-dcp PATH       into an empty state of the same form, as a script resumes
    exchange.py load-torch FILE     with weights_only=True
    exchange.py load-ranks DIRECTORY   rank0.pt and rank1.pt with DTensors, cut on dim 0
"""
import os
import sys
import warnings

import torch
import torch.distributed.checkpoint as dcp

warnings.filterwarnings("ignore")


def state():
    """Every value differs; some tensors are views, and dicts are with and without tensors below them."""
    count = torch.arange(48.0)
    newer = [name for name in ("bcomplex32",) if hasattr(torch, name)]  # dtypes that only newer versions have
    return {"newer": {name: torch.complex(count[:8], count[8:16].neg()).to(getattr(torch, name)) for name in newer},
            "model": {"weight": count.reshape(8, 6).clone(), "transposed": count.reshape(6, 8).mul(3).t(), "half": count[:10].to(torch.bfloat16),
                      "small": count[:6].to(torch.float8_e4m3fn), "words": torch.arange(7, dtype=torch.int16), "scalar": torch.tensor(2.5), "empty": torch.empty(0, 4)},
            "optim": {"state": {"weight": {"step": torch.tensor(4.0), "exp_avg": count.reshape(8, 6).neg()}},
                      "param_groups": [{"lr": 0.25, "betas": (0.9, 0.95), "params": ["weight"]}, {"lr": 0.5, "betas": (0.8, 0.85), "params": []}]},
            "args": {"name": "run", "more": {"layers": [1, 2], "flag": True}}, "epoch": 3}


def cleared(value):
    """The same form, with other values."""
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape, dtype=value.dtype)
    if isinstance(value, dict):
        return {k: cleared(v) for k, v in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [cleared(v) for v in value]
    return None


def compare(got, want, name):
    if isinstance(want, torch.Tensor):
        assert got.dtype == want.dtype and got.shape == want.shape, f"{name}: {got.dtype} {tuple(got.shape)}"
        assert raw(got) == raw(want), f"{name} has other values"
    elif isinstance(want, dict):
        assert set(got) == set(want), f"{name}: {sorted(got)}"
        for k in want:
            compare(got[k], want[k], f"{name}.{k}")
    elif isinstance(want, list) and want and isinstance(want[0], dict):
        assert len(got) == len(want), f"{name}: {len(got)} items"
        for i, w in enumerate(want):
            compare(got[i], w, f"{name}.{i}")
    else:
        assert type(got) is type(want) and got == want, f"{name} is {got!r}, not {want!r}"


def raw(tensor):
    plain = tensor.detach().contiguous().reshape(-1)
    return b"" if plain.numel() == 0 else plain.view(torch.uint8).numpy().tobytes()


def save(directory):
    dcp.save(state(), checkpoint_id=os.path.join(directory, "dcp"))
    torch.save(state(), os.path.join(directory, "state.pt"))


def load_dcp(path):
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
    got = cleared(state())
    _load_state_dict(got, storage_reader=dcp.FileSystemReader(path), planner=dcp.DefaultLoadPlanner(), no_dist=True)
    compare(got, state(), "state")


def load_torch(path):
    compare(torch.load(path, weights_only=True), state(), "state")


def load_ranks(directory):
    from torch.distributed.tensor import DTensor, Shard
    for safe in (True, False):
        ranks = [torch.load(os.path.join(directory, f"rank{r}.pt"), weights_only=safe) for r in (0, 1)]
        mesh = ranks[0]["model"]["weight"].device_mesh
        assert mesh == ranks[1]["model"]["half"].device_mesh and hash(mesh) == hash(ranks[0]["model"]["half"].device_mesh), mesh
        for name, want in state()["model"].items():
            tensors = [r["model"][name] for r in ranks]
            assert all(isinstance(t, DTensor) and t.shape == want.shape for t in tensors), name
            cut = all(t.placements == (Shard(0),) for t in tensors)
            for rank, t in enumerate(tensors):
                rows = -(-want.shape[0] // 2) if cut else 0
                compare(t._local_tensor, want[rank * rows:(rank + 1) * rows] if cut else want, f"{name} of rank {rank}")


def main():
    action, path = sys.argv[1:]
    {"save": save, "load-dcp": load_dcp, "load-torch": load_torch, "load-ranks": load_ranks}[action](path)


main()
