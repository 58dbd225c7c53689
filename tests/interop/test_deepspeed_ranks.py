"""Tensor-parallel ranks of DeepSpeed, joined as DeepSpeed's own converter joins them (tests/golden/make_deepspeed_tensor_ranks.py)."""
import os
import shutil

import torch
from safetensors.torch import load_file

from test_maps import need

RANKS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden", "deepspeed_tensor_ranks")


def same_tensors(got, want, what):
    need(set(got) == set(want), f"{what}: names {sorted(set(got) ^ set(want))}")
    for name, tensor in want.items():
        need(got[name].dtype == tensor.dtype and torch.equal(got[name], tensor), f"{what}: {name}")


def test_ranks_that_are_described(t):
    """universal_checkpoint_info joins the ranks to what ds_to_universal joins them to."""
    for case in ("boxes", "patterns"):
        directory, want = os.path.join(RANKS, case), load_file(os.path.join(RANKS, f"{case}.safetensors"))
        for part in ("model", "module"):
            t.run("convert", directory, t.at(f"{case}-{part}.safetensors"), "--part", part)
            same_tensors(load_file(t.at(f"{case}-{part}.safetensors")), want, f"{case}, {part}")
        t.run("validate", "--deep", directory)
        need(t.run("get", directory, "model.gqa.weight[1:3]" if case == "boxes" else "model.layers.0.gqa.weight[5:8]", "--print").stdout, "a slice")


def change_ranks(t, case, name, change):
    """A copy of a case whose files `change` changes, given the rank, the states and universal_checkpoint_info."""
    directory = t.at(name)
    shutil.copytree(os.path.join(RANKS, case), directory)
    for rank, file in enumerate(sorted(os.listdir(directory))):
        states = torch.load(os.path.join(directory, file), weights_only=False)
        change(rank, states, states["universal_checkpoint_info"])
        torch.save(states, os.path.join(directory, file))
    return directory


def test_ranks_that_are_not_described(t):
    """What no box or pattern describes stays listed per rank and is refused by its name; everything else is joined."""
    boxes = "^{}\\.weight$".format

    def first_piece(info, name):
        return info["affine_map"]["params"][boxes(name)]["ranks"][0]["pieces"][0]

    cases = {
        "averaged": ("patterns", "layers.0.up.weight", lambda rank, states, info: info.update(parameter_to_average_patterns=[r".*0\.up"])),
        "unsupported": ("patterns", "layers.0.up.weight", lambda rank, states, info: info.update(autotp_unsupported_parameter_patterns={r".*0\.up": "shape"})),
        "widths": ("patterns", "layers.0.gqa.weight", lambda rank, states, info: info["sub_param_shard_widths"].update({r"^layers\.\d+\.gqa\.weight$": [[5, 4, 4, 4], [1] * 4, [1] * 4]})),
        "buffer": ("patterns", "layers.0.up.weight", lambda rank, states, info: states["buffer_names"].append("layers.0.up.weight")),
        "scaled": ("boxes", "a.weight", lambda rank, states, info: first_piece(info, "a").update(scale=0.5)),
        "gap": ("boxes", "a.weight", lambda rank, states, info: info["affine_map"]["params"][boxes("a")].update(logical_shape=[13, 6])),
        "overlap": ("boxes", "a.weight", lambda rank, states, info: first_piece(info, "a").update(source=[6, [6, 1]])),
        "outside": ("boxes", "b.weight", lambda rank, states, info: first_piece(info, "b").update(source=[999, [12, 1]])),
        "strides": ("boxes", "b.weight", lambda rank, states, info: first_piece(info, "b").update(dest=[0, [1, 6]])),
        "words": ("boxes", "b.weight", lambda rank, states, info: first_piece(info, "b").update(shape="six")),
        "shape": ("boxes", "b.weight", lambda rank, states, info: states["module"].update({"b.weight": states["module"]["b.weight"].T.contiguous()})),
    }
    for name, (case, lost, change) in cases.items():
        directory, want = change_ranks(t, case, name, change), load_file(os.path.join(RANKS, f"{case}.safetensors"))
        text = t.run("convert", directory, t.at("refused.safetensors"), "--part", "model", status=2).stderr.decode()
        need(f"'{lost}'" in text and not os.path.exists(t.at("refused.safetensors")), f"{name}: {text}")
        t.run("convert", directory, t.at(f"{name}.safetensors"), "--part", "model", "--exclude", lost)
        same_tensors(load_file(t.at(f"{name}.safetensors")), {k: v for k, v in want.items() if k != lost}, name)
    for name, change in (("newer", lambda rank, states, info: info["affine_map"].update(version=2)),
                         ("lookahead", lambda rank, states, info: info.update(parameter_to_average_patterns=["(?=a)b"])),
                         ("many", lambda rank, states, info: info.update(parameter_to_average_patterns=[f"x{i}" for i in range(100)]))):
        notes = [f["message"] for f in t.json("inspect", change_ranks(t, "boxes", name, change), "--json")["findings"]]
        need([n for n in notes if "universal_checkpoint_info is not understood" in n], f"{name}: {notes}")
