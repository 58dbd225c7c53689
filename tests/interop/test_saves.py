"""Checkpoints that real PyTorch writes on several ranks, and that are sound."""
import json
import os

from torch_ranks import run_ranks


def save(rank, world, directory):
    import torch
    import torch.distributed.checkpoint as dcp
    dcp.save({"weight": torch.arange(4.0)}, checkpoint_id=directory)


def test_ranks_that_have_nothing_to_write_leave_empty_files(t):
    run_ranks(save, 4, t.at("replicated"))
    files = [f for f in os.listdir(t.at("replicated")) if f.endswith(".distcp")]
    assert sum(os.path.getsize(t.at("replicated", f)) == 0 for f in files) == 3, f"PyTorch wrote {files}"
    found = json.loads(t.run("validate", t.at("replicated"), "--deep", "--json", "--rule", "dcp/newer=off").stdout)
    assert found["findings"] == [], found["findings"]


def test_programs_are_told_from_checkpoints(t):
    import torch
    with_weights, without = torch.nn.Linear(2, 2), torch.nn.ReLU()
    torch.jit.save(torch.jit.script(with_weights), t.at("script.pt"))
    for name, module in (("weights.pt2", with_weights), ("none.pt2", without)):
        torch.export.save(torch.export.export(module, (torch.ones(1, 2),)), t.at(name))
    for name, kind in (("script.pt", "torch.jit.load"), ("weights.pt2", "torch.export"), ("none.pt2", "torch.export")):
        refusal = t.run("inspect", t.at(name), status=2).stderr.decode()
        assert kind in refusal and "a program, not a checkpoint" in refusal, refusal
