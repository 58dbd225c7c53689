"""Metadata of DCP checkpoints that states what PyTorch cannot use, as a flipped bit can make it."""
import os
import pickle

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save


def saved_with(t, name, change):
    """Saves a nested state dict, lets `change` alter its metadata, and returns the checkpoint's path."""
    path = t.at(name)
    state = {"model": {"layers": [{"w": torch.arange(6.).reshape(2, 3)}, {"w": torch.ones(4)}], "seen": torch.tensor([3, 5])}, "step": 7,
             "many": [torch.tensor(float(i)) for i in range(1002)]}
    dcp.save(state, checkpoint_id=path, no_dist=True)
    with open(os.path.join(path, ".metadata"), "rb") as f:
        metadata = pickle.load(f)
    change(metadata)
    with open(os.path.join(path, ".metadata"), "wb") as f:
        pickle.dump(metadata, f, protocol=2)
    return path


def test_paths_that_do_not_lead_to_their_names_are_errors(t):
    """PyTorch does not find such an entry when it rebuilds the nested state dict."""
    name = "model.layers.1.w"
    paths = {"sound": ("model", "layers", 1, "w"), "text": ("model", "layers", 1, "v"), "position": ("model", "layers", 0, "w"),
             "shorter": ("model", "layers", 1), "longer": ("model", "layers", 1, "w", "w"), "bool": ("model", "layers", False, "w"), "one": (name,)}
    for case, path in paths.items():
        at = saved_with(t, case, lambda metadata, path=path: metadata.planner_data.update({name: path}))
        try:
            dcp_to_torch_save(at, t.at("torch.pt"))
            refused = False
        except (Exception, CheckpointException):  # depends on where PyTorch notices it
            refused = True
        assert refused == (case not in ("sound", "one")), case
        found = t.json("validate", "--deep", at, "--json", status=int(refused))["findings"]
        assert [(f["rule"], f["fqn"]) for f in found] == [("file/unreadable", name)] * refused, (case, found)


def test_integers_whose_metadata_claims_a_gradient_can_be_loaded(t):
    """PyTorch loads them from the checkpoint, but cannot make such a tensor from a torch.save file."""
    def claim(metadata):
        for entry in ("model.seen", "model.layers.0.w"):
            metadata.state_dict_metadata[entry].properties.requires_grad = True

    at = saved_with(t, "claims", claim)
    target = {"model": {"layers": [{"w": torch.zeros(2, 3)}, {"w": torch.zeros(4)}], "seen": torch.zeros(2, dtype=torch.int64)}, "step": 0}
    dcp.load(target, checkpoint_id=at, no_dist=True)
    t.run("convert", at, t.at("out.pt"), "--to", "torch")
    t.run("convert", at, t.at("dcp"), "--to", "dcp")
    loaded = torch.load(t.at("out.pt"), weights_only=True)["model"]
    assert loaded["seen"].tolist() == target["model"]["seen"].tolist() == [3, 5] and not loaded["seen"].requires_grad
    assert loaded["layers"][0]["w"].requires_grad and loaded["layers"][0]["w"].tolist() == target["model"]["layers"][0]["w"].tolist()
    with open(t.at("dcp", ".metadata"), "rb") as f:
        written = pickle.load(f).state_dict_metadata
    assert not written["model.seen"].properties.requires_grad and written["model.layers.0.w"].properties.requires_grad
