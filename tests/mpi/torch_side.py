"""PyTorch's part of the interchange, on RANKS processes over gloo:

    torch_side.py save RANKS DIRECTORY      saves a model, an optimizer and the rest with torch.distributed.checkpoint
    torch_side.py check RANKS DIRECTORY     loads what `interchange` made of it, on another mesh, and compares every element
    torch_side.py train RANKS DIRECTORY     saves a model trained with fully_shard and AdamW; DIRECTORY.pt receives the full tensors
    torch_side.py resume RANKS DIRECTORY    loads what `interchange` made of that by set_state_dict, compares model and optimizer
                                         with the a.pt next to DIRECTORY, and continues training
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from torch_ranks import run_ranks  # noqa: E402


def ramp(shape, dtype=torch.float32, start=0.0):
    return (torch.arange(torch.Size(shape).numel(), dtype=torch.float64) % 97 + start).reshape(shape).to(dtype)


def full_tensors():
    """Returns the whole tensors by name."""
    return {"model.fc1.weight": ramp([10, 7]), "model.fc1.bias": ramp([10], start=3), "model.fc2.weight": ramp([3, 10], start=0.5),
            "model.embed": ramp([23, 4], torch.bfloat16), "model.small": ramp([2, 2]), "model.count": ramp([5], torch.int64),
            "optim.state.fc1.weight.exp_avg": ramp([10, 7], start=0.25), "optim.state.fc1.weight.step": torch.tensor(9.0),
            "optim.mask": ramp([6, 6]) > 20, "optim.wide": ramp([4, 12], torch.float64)}


def placements(name, mesh):
    if mesh.ndim == 2:
        return {"model.fc2.weight": [Shard(0), Shard(1)], "optim.wide": [Replicate(), Shard(1)],
                "model.embed": [Shard(0), Shard(0)]}.get(name, [Replicate(), Shard(0)])
    return [Shard(1)] if name in ("optim.wide", "model.fc2.weight") else [Shard(0)]


def nest(flat):
    root = {}
    for name, value in flat.items():
        parts = name.split(".")
        if name.startswith("optim.state."):
            parts = ["optim", "state", name[len("optim.state."):].rsplit(".", 1)[0], parts[-1]]
        elif name.startswith("model."):
            parts = ["model", name[len("model."):]]
        at = root
        for p in parts[:-1]:
            at = at.setdefault(p, {})
        at[parts[-1]] = value
    return root


def objects(root, extra):
    root["optim"]["param_groups"] = [{"lr": 0.125, "betas": (0.9, 0.999), "amsgrad": False, "params": ["fc1.weight"], "fused": None}]
    root["steps"] = 41 + extra
    root["note"] = "text \u00e4"
    return root


def distributed(full, mesh):
    return {n: distribute_tensor(t, mesh, placements(n, mesh)) if t.dim() and n != "model.small" else t for n, t in full.items()}


def save(world, directory):
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    dcp.save(objects(nest(distributed(full_tensors(), mesh)), 0), checkpoint_id=directory)


def changed(t):
    return t + 1 if t.dtype == torch.float32 else t


def check(world, directory):
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    empty = distributed({n: torch.full_like(t, 77) for n, t in full_tensors().items()}, mesh)
    state = objects(nest(empty), -100)
    state["note"] = ""
    dcp.load(state, checkpoint_id=directory)
    for name, want in full_tensors().items():
        got = empty[name]
        got = got.full_tensor() if isinstance(got, DTensor) else got
        assert torch.equal(got, changed(want)), name
    group = state["optim"]["param_groups"][0]
    assert state["steps"] == 42 and state["note"] == "text \u00e4", (state["steps"], state["note"])
    assert group == {"lr": 0.125, "betas": (0.9, 0.999), "amsgrad": False, "params": ["fc1.weight"], "fused": None}, group


def sharded_training(world):
    """Makes a model sharded over all ranks and its optimizer, with the same initial values on every rank."""
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.LayerNorm(13), torch.nn.Linear(13, 5))
    mesh = init_device_mesh("cpu", (world,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW([{"params": model[0].parameters(), "lr": 0.01}, {"params": list(model.parameters())[2:], "lr": 0.02}])


def train_a_step(model, optimizer):
    loss = model(torch.linspace(-1, 1, 28).reshape(4, 7)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def whole_state(model, optimizer):
    return get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))


def train(world, directory):
    model, optimizer = sharded_training(world)
    for _ in range(3):
        train_a_step(model, optimizer)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    assert all(isinstance(t, DTensor) for t in model_state.values())
    dcp.save({"model": model_state, "optim": optimizer_state}, checkpoint_id=directory)
    full = whole_state(model, optimizer)
    if dist.get_rank() == 0:
        torch.save(full, f"{directory}.pt")


def resume(world, directory):
    model, optimizer = sharded_training(world)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.load({"model": model_state, "optim": optimizer_state}, checkpoint_id=directory)
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    got_model, got_optimizer = whole_state(model, optimizer)
    want_model, want_optimizer = torch.load(os.path.join(os.path.dirname(directory), "a.pt"))
    assert list(got_model) == list(want_model) and len(got_model) == 6
    for name, want in want_model.items():
        assert torch.equal(got_model[name], want + 1), name
    for name, states in want_optimizer["state"].items():
        assert set(states) == {"step", "exp_avg", "exp_avg_sq"}
        for key, want in states.items():
            assert torch.equal(got_optimizer["state"][name][key], want + 1), (name, key)
    groups = got_optimizer["param_groups"]
    assert groups == want_optimizer["param_groups"] and [g["lr"] for g in groups] == [0.01, 0.02], groups
    assert torch.isfinite(torch.tensor(train_a_step(model, optimizer)))
    assert all(s["step"] == 5 for s in whole_state(model, optimizer)[1]["state"].values())  # 3 + 1 in C + 1


def run(_, world, what, directory):
    {"save": save, "check": check, "train": train, "resume": resume}[what](world, directory)


if __name__ == "__main__":
    run_ranks(run, int(sys.argv[2]), sys.argv[1], sys.argv[3])
    print("done")
