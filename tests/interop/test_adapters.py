"""--lora with adapters of models whose output layer is their embedding, and of classifiers: bit for bit what PEFT merges them to.

tests/golden/adapters has the adapters, their bases and PEFT's results (make_adapters.py).
"""
import json
import os

import torch
from safetensors.torch import load_file

from test_maps import need

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden", "adapters")


def read_json(*path):
    with open(os.path.join(GOLDEN, *path)) as f:
        return json.load(f)


def base_of(case):
    return os.path.join(GOLDEN, "base", case["base"])


def same(got, want, what):
    need(set(got) == set(want), f"{what}: names {sorted(set(got) ^ set(want))}")
    for k, w in want.items():
        need(got[k].dtype == w.dtype and got[k].shape == w.shape and torch.equal(got[k], w), f"{what}: {k}")


def folded(t, base, name, *options):
    """The tensors and the notes of convert --lora, after a comparison with merge --lora."""
    out, again = t.at("out.safetensors"), t.at("again.safetensors")
    doc = t.json("convert", base, out, "--lora", os.path.join(GOLDEN, "adapter", name), "--overwrite", "--json", *options)
    t.run("merge", again, base, "--lora", os.path.join(GOLDEN, "adapter", name), "--overwrite", *options)
    need(open(out, "rb").read() == open(again, "rb").read(), f"{name}: merge and convert write other bytes")
    return load_file(out), " ".join(doc["warnings"])


def check_cases(t, bases):
    cases = {name: case for name, case in read_json("cases.json").items() if case["base"] in bases}
    need({c["base"] for c in cases.values()} == bases, "a base has no adapter")
    for name, case in cases.items():
        got, said = folded(t, base_of(case), name)
        same(got, load_file(os.path.join(GOLDEN, "merged", f"{name}.safetensors")), name)
        need(not said, said)


def test_adapters_of_classifiers_as_peft(t):
    """With bias="all", PEFT saves the biases of a saved module three times, under three names."""
    check_cases(t, {"qwen2_tokens", "bert", "roberta"})
