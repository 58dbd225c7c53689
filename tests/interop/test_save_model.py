"""Files of safetensors.torch.save_model, whose metadata has the second names of tied weights, and pairs that save_file writes."""
import os

import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn

from harness import load_dcp


class Tied(nn.Module):
    """An output layer that is the embedding, and a module under three names."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(11, 6)
        self.block = nn.ModuleList([nn.Linear(6, 6), nn.LayerNorm(6)])
        self.again = self.block[0]
        self.third = self.block[0]
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight


def pairs_of(path):
    with safe_open(path, "pt") as f:
        return {k: v for k, v in (f.metadata() or {}).items() if not k.startswith("tessera.")}


def same_state(a, b):
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)


def test_second_names_load_as_in_the_model(t):
    model = Tied(1)
    want = model.state_dict()
    save_model(model, t.at("in.safetensors"), metadata={"format": "pt", "note": "head.weight"[:4]})
    assert len(load_file(t.at("in.safetensors"))) == 5 and len(want) == 10
    torch.save(want, t.at("want.pt"))
    doc = t.json("diff", t.at("in.safetensors"), t.at("want.pt"), "--values", "--json")
    assert doc["same"] and doc["summary"]["same"] == len(want) and [p["key"] for p in doc["metadata"]["removed"]] == ["note"], doc
    for source in ("in.safetensors", "out.safetensors"):
        if source == "out.safetensors":
            t.run("convert", t.at("in.safetensors"), t.at(source))
            assert pairs_of(t.at(source)) == pairs_of(t.at("in.safetensors"))
        loaded = Tied(2)
        load_model(loaded, t.at(source))  # strict
        assert same_state(loaded.state_dict(), want) and loaded.head.weight is loaded.embed.weight
        t.run("convert", t.at(source), t.at("out.pt"), "--to", "torch", "--overwrite")
        got = torch.load(t.at("out.pt"), weights_only=True)
        assert same_state(got, want)
        for names in (("embed.weight", "head.weight"), ("block.0.weight", "again.weight", "third.weight"), ("block.0.bias", "again.bias", "third.bias")):
            assert len({got[name].untyped_storage().data_ptr() for name in names}) == 1, names
        assert len({x.untyped_storage().data_ptr() for x in got.values()}) == 5
        t.run("convert", t.at(source), t.at("dcp"), "--to", "dcp", "--overwrite")
        assert same_state(load_dcp(t.at("dcp")), want)


def test_second_names_of_a_sum(t):
    for i in (1, 2):
        save_model(Tied(i), t.at(f"{i}.safetensors"))
    t.run("merge", t.at("sum.safetensors"), t.at("1.safetensors"), t.at("2.safetensors"), "--method", "linear")
    loaded = Tied(3)
    load_model(loaded, t.at("sum.safetensors"))
    a, b = Tied(1).state_dict(), Tied(2).state_dict()
    for name, got in loaded.state_dict().items():
        assert torch.equal(got, (a[name] + b[name]) / 2), name
    # Where only one input is tied, the merge is not.
    untied = Tied(2)
    untied.head.weight = nn.Parameter(torch.randn(11, 6))
    save_model(untied, t.at("untied.safetensors"))
    t.run("merge", t.at("both.safetensors"), t.at("1.safetensors"), t.at("untied.safetensors"), "--method", "linear")
    got = load_file(t.at("both.safetensors"))
    assert torch.equal(got["head.weight"], (a["head.weight"] + untied.head.weight.detach()) / 2)
    assert torch.equal(got["embed.weight"], (a["embed.weight"] + b["embed.weight"]) / 2)


def test_pairs_that_save_file_wrote_are_kept(t):
    pairs = {"format": "mlx", "ss_network_dim": "16", "ss_network_alpha": "8.0", "modelspec.title": "Ø \"quoted\" \\ \n \u2028 \U0001f600",
             "ss_tag_frequency": '{"a": {"b": 1}}', "": "", "long": "x" * 5000}
    tensors = {"lora_up.weight": torch.randn(7, 5), "lora_down.weight": torch.randn(5, 7), "alpha": torch.tensor(8.0)}
    save_file(tensors, t.at("in.safetensors"), metadata=pairs)
    assert t.json("inspect", t.at("in.safetensors"), "--json")["metadata"] == pairs
    t.run("convert", t.at("in.safetensors"), t.at("out.safetensors"), "--dtype", "bfloat16")
    t.run("convert", t.at("in.safetensors"), t.at("shards"), "--to", "safetensors", "--max-shard-size", "150")
    files = [t.at("out.safetensors"), *(t.at("shards", f) for f in os.listdir(t.at("shards")) if f.endswith(".safetensors"))]
    assert len(files) > 2 and all(pairs_of(f) == pairs for f in files)
    t.run("convert", t.at("shards"), t.at("again.safetensors"))
    assert pairs_of(t.at("again.safetensors")) == pairs and same_state(load_file(t.at("again.safetensors")), tensors)
