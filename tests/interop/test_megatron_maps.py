"""The map for Megatron-Core's GPT, shown true by equal logits (tests/golden/make_megatron_llama.py), and sizes that are left open with -1."""
import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file

from test_maps import need, same, write

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden", "megatron_llama")
NAME = "megatron-llama"


def hf(name):
    return load_file(os.path.join(GOLDEN, name, "hf", "model.safetensors"))


def test_gpt_becomes_llama_and_qwen2(t):
    """Fused q, k and v by groups of heads, gate and up, a padded vocabulary, biases, tied embeddings; and back."""
    need(sorted(os.listdir(GOLDEN)) == ["llama", "qwen2", "wide"], "a model has no golden")
    for name in os.listdir(GOLDEN):
        megatron, folder, out, plain = os.path.join(GOLDEN, name, "megatron"), os.path.join(GOLDEN, name, "hf"), t.scratch + "/out.safetensors", t.scratch + "/plain.safetensors"
        said = t.run("convert", megatron, out, "--map", NAME, "--overwrite").stderr.decode()
        same(load_file(out), hf(name), name)
        need("the map leaves out 5 entries, such as 'decoder.layers.mlp.linear_fc1._extra_state'" in said, said)
        t.run("convert", megatron, plain, "--objects", "drop", "--overwrite")
        want, padded = load_file(plain), json.load(open(os.path.join(folder, "config.json")))
        for key in ("embedding.word_embeddings.weight", "output_layer.weight"):
            if key in want:  # what pads is not in the Hugging Face model
                need(want[key].shape[0] == padded["padded_vocab_size"] > padded["vocab_size"], key)
                want[key][padded["vocab_size"]:] = 0
        t.run("convert", folder, out, "--map", NAME, "--inverse", "--overwrite")
        same(load_file(out), want, f"{name} --inverse")
        t.run("reshard", megatron, os.path.join(t.scratch, name), "--mesh", "dp=2", "--placements", "shard(0)", "--to", "dcp", "--map", NAME)
        t.run("diff", os.path.join(t.scratch, name), os.path.join(folder, "model.safetensors"), "--values")


def test_what_comes_before_the_rules(t):
    """Rules of "before" are applied first and keep what they do not match; the inverse applies them last, without those that say "inverse": false."""
    source, there, back = (os.path.join(t.scratch, f"{n}.safetensors") for n in ("source", "there", "back"))
    torch.manual_seed(6)
    apart, stacked, plain = {f"l.{i}.w_{n}": torch.randn(2, 3) for i in range(2) for n in "ab"}, {"l.w": torch.randn(2, 4, 3)}, {"n": torch.randn(2), "o": torch.randn(2)}
    before = [{"from": ["l.{i}.w_a", "l.{i}.w_b"], "to": ["l.{i}.w"], "do": [{"concat": 0, "parts": 2}], "inverse": False},
              {"from": ["l.w"], "to": ["l.{i}.w"], "do": [{"unstack": 0}]}, {"from": ["o"], "to": []}]
    rules = [{"from": ["l.{i}.w"], "to": ["layers.{i}.w"], "do": [{"transpose": [1, 0]}]}, {"from": ["n"], "to": ["norm"]}]
    document = write(t.scratch, "map.json", {"schema": "tessera.map/1", "before": before, "rules": rules})
    for stored, layers in ((stacked, stacked["l.w"]), (apart, torch.stack([torch.cat([apart[f"l.{i}.w_{n}"] for n in "ab"]) for i in range(2)]))):
        save_file({**stored, **plain}, source)
        t.run("convert", source, there, "--map", document, "--overwrite")
        same(load_file(there), {"norm": plain["n"], **{f"layers.{i}.w": x.T.contiguous() for i, x in enumerate(layers)}}, "before")
        t.run("convert", there, back, "--map", document, "--inverse", "--overwrite")
        same(load_file(back), {"n": plain["n"], "l.w": layers}, "before, and back")
    for bad, says in (({"before": {}}, "before"), ({"before": [{"from": ["a"]}]}, "before[0]"), ({"before": [], "rules": [{**rules[1], "inverse": "no"}]}, "rules[0].inverse must be true or false")):
        path = write(t.scratch, "bad.json", {"schema": "tessera.map/1", "rules": rules, **bad})
        said = t.run("convert", source, there, "--map", path, "--overwrite", status=2).stderr.decode()
        need(says in said, f"{bad}: {said}")


def test_settings_that_do_not_fit_are_refused(t):
    """Other counts or sizes of heads would give every head the rows of another one."""
    folder, out = os.path.join(t.scratch, "model"), os.path.join(t.scratch, "out.safetensors")
    for source, inverse, changes, *says in (
            ("megatron", [], {"num_key_value_heads": 1}, "the map's 'heads' is"), ("megatron", [], {"num_key_value_heads": 3}, "'decoder.layers.self_attention.linear_qkv.weight'"),
            ("megatron", [], {"head_dim": 12}, "cannot divide its elements by 576"), ("megatron", [], {"head_dim": 3}, "the map's 'heads' is"), ("megatron", [], {"num_hidden_layers": 2}, "num_hidden_layers of config.json is 2"),
            ("hf", ["--inverse"], {"num_key_value_heads": 1}, "q_proj.weight' [1, 6, 6, 24]", "expects the size 8"), ("hf", ["--inverse"], {"padded_vocab_size": None}, "no number 'padded_vocab_size'"),
            ("hf", ["--inverse"], {"vocab_size": 36}, "'model.embed_tokens.weight'", "36")):
        shutil.copytree(os.path.join(GOLDEN, "llama", source), folder)
        config = {**json.load(open(os.path.join(folder, "config.json"))), **changes}
        write(folder, "config.json", {k: v for k, v in config.items() if v is not None})
        said = t.run("convert", folder, out, "--map", NAME, *inverse, status=2).stderr.decode()
        need(all(text in said for text in says) and not os.path.exists(out), f"{changes}: {said}")
        shutil.rmtree(folder)


def test_a_size_may_be_left_open(t):
    torch.manual_seed(4)
    source, there, back = (os.path.join(t.scratch, f"{n}.safetensors") for n in ("source", "there", "back"))
    x, y = torch.randn(30, 7), torch.randn(12, 11)
    save_file({"x": x, "y": y}, source)
    rules = [{"from": ["x"], "to": ["q", "k"], "do": [{"reshape": [2, -1, 3, 7], "from": [-1, 7]}, {"split": 1, "sizes": [-1, 2]}, {"reshape": [-1, 7], "from": [2, -1, 3, 7]}]},
             {"from": ["y"], "to": ["a", "b", "c"], "do": [{"split": -1, "sizes": [2, -1, 3]}], "shape": [["rows", 2], ["rows", 6], ["rows", "more"]]}]
    document = write(t.scratch, "map.json", {"schema": "tessera.map/1", "rules": rules})
    t.run("convert", source, there, "--map", document)
    heads = x.reshape(2, 5, 3, 7)
    want = {"q": heads[:, :3].reshape(-1, 7), "k": heads[:, 3:].reshape(-1, 7), **dict(zip("abc", y.split([2, 6, 3], 1)))}
    same(load_file(there), want, "-1")
    t.run("convert", there, back, "--map", document, "--inverse")
    same(load_file(back), {"x": x, "y": y}, "-1 and back")
    for step, says in (({"reshape": [-1, -1]}, "only one size of a list may be -1"), ({"reshape": [-1, 4]}, "cannot divide its elements by 4"),
                       ({"reshape": [-2, 7]}, "rules[0]"), ({"split": 0, "sizes": [-1, 31]}, "sum is more than 30"), ({"transpose": [-1, 0]}, "rules[0]"),
                       ({"reshape": [-1, 0]}, "cannot divide its elements by 0")):
        to = ["a", "b"] if "split" in step else ["a"]
        bad = write(t.scratch, "bad.json", {"schema": "tessera.map/1", "unmatched": "keep", "rules": [{"from": ["x"], "to": to, "do": [step]}]})
        said = t.run("convert", source, back, "--map", bad, "--overwrite", status=2).stderr.decode()
        need(says in said, f"{step}: {said}")
    for shape, says in (([["rows", 2], ["rows", 5], ["rows", 3]], "dim 1 of 'b' [12, 6] must be 5"), ([["rows", 2], ["rows", 6]], "2 shapes for 3 names"),
                        ([["rows", 2], ["rows"], ["rows", 3]], "'b' [12, 6] must be a tensor of 1 dims"), ([["rows", 2], ["r", "rows"], ["r", 3]], "the map's 'rows' is 12")):
        bad = write(t.scratch, "bad.json", {"schema": "tessera.map/1", "unmatched": "keep", "rules": [{**rules[1], "shape": shape}]})
        said = t.run("convert", source, back, "--map", bad, "--overwrite", status=2).stderr.decode()
        need(says in said, f"{shape}: {said}")
