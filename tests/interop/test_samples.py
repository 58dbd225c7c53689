"""The sample programs: PyTorch reads what they wrote."""
import os
import subprocess


def test_fsdp1_state(t):
    import torch
    import torch.distributed.checkpoint as dcp
    program = os.path.join(os.path.dirname(t.path), "fsdp1_state")
    p = subprocess.run([program, t.at("run")], capture_output=True, timeout=60)
    assert p.returncode == 0, p.stderr
    zeros = lambda: {"fc.weight": torch.zeros(3, 4), "fc.bias": torch.zeros(3)}
    state = {"model": zeros(), "optim": {"state": {k: {"step": torch.zeros(()), "exp_avg": v + 9, "exp_avg_sq": v + 9} for k, v in zeros().items()}}}
    dcp.load(state, checkpoint_id=t.at("run"), no_dist=True)
    numbers = 1 + torch.arange(15) / 8
    assert torch.equal(state["model"]["fc.weight"], numbers[:12].reshape(3, 4)) and torch.equal(state["model"]["fc.bias"], numbers[12:])
    for s in state["optim"]["state"].values():
        assert s["step"] == 1 and not s["exp_avg"].any() and not s["exp_avg_sq"].any(), s
    p = subprocess.run([program], capture_output=True, timeout=60)
    assert p.returncode == 2 and b"usage" in p.stderr, p
