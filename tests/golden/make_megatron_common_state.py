"""Writes tests/golden/megatron/common_state: what dist_checkpointing.save of Megatron-Core 0.19 leaves, by the storage writer that it
uses. There is no common.pt: what is not sharded is the object common_state, whose item is a list of one, as that of every object.

Usage: python tests/golden/make_megatron_common_state.py          (torch 2.13)
"""
import json
import pathlib
import shutil

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

HERE = pathlib.Path(__file__).resolve().parent / "megatron"
COMMON = {"iteration": 12, "scheduler": {"lr": 0.25, "style": "linear"}, "seen": torch.tensor([3, 5, 8])}

if __name__ == "__main__":
    directory = HERE / "common_state"
    shutil.rmtree(directory, ignore_errors=True)
    state = {"alpha.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3), "common_state/shard_0_1": [COMMON],
             "rng_state/shard_0_2": [{"seed": 1}], "rng_state/shard_1_2": [{"seed": 2}], "zeta.weight": torch.arange(4, dtype=torch.bfloat16)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(directory), planner=DefaultSavePlanner(flatten_state_dict=False), no_dist=True)
    (directory / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
