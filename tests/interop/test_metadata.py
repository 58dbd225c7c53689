"""Metadata of DCP checkpoints that states what PyTorch cannot use, as a flipped bit can make it."""
import os
import pickle

import torch
import torch.distributed.checkpoint as dcp


def saved_with(t, name, change):
    """Saves a nested state dict, lets `change` alter its metadata, and returns the checkpoint's path."""
    path = t.at(name)
    state = {"model": {"layers": [{"w": torch.arange(6.).reshape(2, 3)}, {"w": torch.ones(4)}], "seen": torch.tensor([3, 5])}, "step": 7}
    dcp.save(state, checkpoint_id=path, no_dist=True)
    with open(os.path.join(path, ".metadata"), "rb") as f:
        metadata = pickle.load(f)
    change(metadata)
    with open(os.path.join(path, ".metadata"), "wb") as f:
        pickle.dump(metadata, f, protocol=2)
    return path


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
