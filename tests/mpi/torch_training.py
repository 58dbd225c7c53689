"""Continues a training that samples/mpi_training began, in PyTorch, and prints the losses: torch_training.py DIRECTORY STEPS"""
import os
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from ended import leave  # noqa: E402

BATCH = 12
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)  # the checkpoint determines these values


def batch(step):
    i = torch.arange(step * BATCH, (step + 1) * BATCH, dtype=torch.float64)[:, None]
    columns = torch.arange(8, dtype=torch.float64)
    return torch.sin(0.7 * i + 1.3 * columns), torch.cos(0.7 * i + 0.5 * columns[:4])


model_state, optimizer_state = get_state_dict(model, optimizer)
state = {"model": model_state, "optim": optimizer_state, "trained_steps": 0}
dcp.load(state, checkpoint_id=sys.argv[1], no_dist=True)
set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
for step in range(state["trained_steps"], int(sys.argv[2])):
    x, target = batch(step)
    loss = nn.functional.mse_loss(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.17g}")
leave()
