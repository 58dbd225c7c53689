"""The maps for Megatron-Core's GPT, shown true by equal logits (tests/golden/make_megatron_llama.py, make_megatron_maps.py), and sizes that are
left open with -1."""
import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file

from test_maps import need, same, write

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden", "megatron_llama")
NAME = "megatron-llama"
FORMS = os.path.join(os.path.dirname(GOLDEN), "megatron_maps")
MODELS = {"llama": NAME, "qwen3": NAME, "gpt2": "megatron-gpt2", "gpt_neox": "megatron-gpt_neox", "mixtral": "megatron-mixtral", "qwen2_moe": "megatron-qwen3_moe",
          "qwen3_moe": "megatron-qwen3_moe"}


def hf(name):
    return load_file(os.path.join(GOLDEN, name, "hf", "model.safetensors"))


def test_gpt_becomes_llama_and_qwen2(t):
    """Fused q, k and v by groups of heads, gate and up, a padded vocabulary, biases, tied embeddings; and back."""
    need(sorted(os.listdir(GOLDEN)) == ["llama", "qwen2", "wide"], "a model has no golden")
    for name in os.listdir(GOLDEN):
        megatron, directory, out, plain = os.path.join(GOLDEN, name, "megatron"), os.path.join(GOLDEN, name, "hf"), t.scratch + "/out.safetensors", t.scratch + "/plain.safetensors"
        said = t.run("convert", megatron, out, "--map", NAME, "--overwrite").stderr.decode()
        same(load_file(out), hf(name), name)
        need("the map leaves out 5 entries, such as 'decoder.layers.mlp.linear_fc1._extra_state'" in said, said)
        t.run("convert", megatron, plain, "--objects", "drop", "--overwrite")
        want, padded = load_file(plain), json.load(open(os.path.join(directory, "config.json")))
        for key in ("embedding.word_embeddings.weight", "output_layer.weight"):
            if key in want:  # what pads is not in the Hugging Face model
                need(want[key].shape[0] == padded["padded_vocab_size"] > padded["vocab_size"], key)
                want[key][padded["vocab_size"]:] = 0
        t.run("convert", directory, out, "--map", NAME, "--inverse", "--overwrite")
        same(load_file(out), want, f"{name} --inverse")
        t.run("reshard", megatron, os.path.join(t.scratch, name), "--mesh", "dp=2", "--placements", "shard(0)", "--to", "dcp", "--map", NAME)
        t.run("diff", os.path.join(t.scratch, name), os.path.join(directory, "model.safetensors"), "--values")


def tensors_of(t, directory):
    plain = os.path.join(t.scratch, "plain.safetensors")
    t.run("convert", directory, plain, "--objects", "drop", "--overwrite")
    return load_file(plain)


def without_padding(tensors, config):
    """What pads the vocabulary is not in the Hugging Face model, so that an inverse writes zeros."""
    for key in ("embedding.word_embeddings.weight", "output_layer.weight"):
        if key in tensors:
            need(tensors[key].shape[0] == config["padded_vocab_size"] > config["vocab_size"], key)
            tensors[key][config["vocab_size"]:] = 0
    return tensors


def test_every_form_becomes_the_same_model(t):
    """Layers stacked or numbered, experts stacked or apart, gate and up joined or apart, tensor-parallel and expert-parallel ranks."""
    out = os.path.join(t.scratch, "out.safetensors")
    need(sorted(os.listdir(FORMS)) == sorted(MODELS), "a model has no golden")
    for name, map_name in MODELS.items():
        want = load_file(os.path.join(FORMS, name, "hf", "model.safetensors"))
        forms = sorted(set(os.listdir(os.path.join(FORMS, name))) - {"hf"})
        need("stacked" in forms, f"{name}: {forms}")
        for form in forms:
            directory = os.path.join(FORMS, name, form)
            t.run("convert", directory, out, "--map", map_name, "--overwrite")
            same(load_file(out), want, f"{name} {form}")
        dcp = os.path.join(t.scratch, name)
        t.run("reshard", directory, dcp, "--mesh", "dp=3", "--placements", "shard(0)", "--to", "dcp", "--map", map_name)
        t.run("diff", dcp, os.path.join(FORMS, name, "hf", "model.safetensors"), "--values")
        table = t.json("convert", directory, out, "--map", map_name, "--overwrite", "--dry-run", "--json")["map"]
        stored = tensors_of(t, directory)
        need({s["fqn"] for row in table for s in row["from"]} == set(stored), f"{name}: the table does not name what is stored")


def test_back_to_stacked_layers(t):
    """And to layers with names of their own, where "before" is left out."""
    out = os.path.join(t.scratch, "out.safetensors")
    for name, map_name in MODELS.items():
        directory = os.path.join(FORMS, name, "hf")
        config = json.load(open(os.path.join(directory, "config.json")))
        document = json.loads(t.run("map", "show", map_name).stdout)
        del document["before"]
        numbered = write(t.scratch, f"{name}.json", document)
        for form, use in (("stacked", map_name), ("numbered", numbered)):
            if form == "numbered" and not os.path.isdir(os.path.join(FORMS, name, form)):
                continue
            want = norms_of_te(without_padding(tensors_of(t, os.path.join(FORMS, name, form)), config))
            said = t.run("convert", directory, out, "--map", use, "--inverse", "--overwrite").stderr.decode()
            same(load_file(out), want, f"{name} {form}")
            need("may also come from" not in said and ("numbered, not stacked" in said) == (name == "qwen3_moe"), said)


def norms_of_te(tensors):
    """The goldens' layers are not Transformer Engine's, which names the norm before experts, but not the one before a dense MLP, as the map does."""
    moe = {k.removesuffix("router.weight") for k in tensors if k.endswith("mlp.router.weight")}
    norm = "mlp.linear_fc1.layer_norm_weight"
    return {k.replace(norm, "pre_mlp_layernorm.weight") if k.endswith(norm) and k.replace("linear_fc1.layer_norm_weight", "") in moe else k: v for k, v in tensors.items()}


def with_two_dense_layers(tensors):
    """Layer 1, which has experts, becomes one without, with twice the numbers of layer 0."""
    norm = "decoder.layers.1.pre_mlp_layernorm.weight"
    made = {k: v for k, v in tensors.items() if ".layers.1.mlp." not in k and k != norm}
    made |= {k.replace("layers.0", "layers.1", 1): v * 2 for k, v in tensors.items() if ".layers.0.mlp." in k and "norm" not in k}
    return made | ({norm.replace("pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"): tensors[norm]} if norm in tensors else {})


def test_back_to_layers_that_differ(t):
    """Megatron-Core numbers the layers of a model of which some have no experts, wherever these are; a weight that is lost is still named."""
    source, out, map_name = os.path.join(t.scratch, "model"), os.path.join(t.scratch, "out.safetensors"), MODELS["qwen3_moe"]
    golden = os.path.join(FORMS, "qwen3_moe")
    stored, config = hf(golden), json.load(open(os.path.join(golden, "hf", "config.json")))
    own = norms_of_te(without_padding(tensors_of(t, os.path.join(golden, "stacked")), config))
    os.makedirs(source)
    more = [with_two_dense_layers(m) for m in (stored, own)]
    for order, count in ((o, n) for o in ("012", "102", "120") for n in (1, 2)):  # where the dense layers are
        def moved(tensors):
            return {".".join(order[int(c)] if at and words[at - 1] == "layers" else c for at, c in enumerate(words)): v for words, v in ((k.split("."), v) for k, v in tensors.items())}

        model, its = (stored, own) if count == 1 else more
        write(source, "config.json", {**config, "mlp_only_layers": [int(o) for o in order[:count]]})
        save_file(moved(model), os.path.join(source, "model.safetensors"))
        t.run("convert", source, out, "--map", map_name, "--inverse", "--overwrite")
        same(load_file(out), moved(its), f"dense layers {order[:count]}")
        shutil.move(out, os.path.join(source, "model.safetensors"))
        t.run("convert", source, out, "--map", map_name)
        same(load_file(out), moved(model), f"dense layers {order[:count]}, there and back")
    for lost in stored:
        save_file({k: v for k, v in stored.items() if k != lost}, os.path.join(source, "model.safetensors"))
        write(source, "config.json", {k: v for k, v in config.items() if k != "tie_word_embeddings"} | {"tie_word_embeddings": False})
        os.path.exists(out) and os.remove(out)
        said = t.run("convert", source, out, "--map", map_name, "--inverse", status=2).stderr.decode()
        words = lost.split(".")
        need(lost in said or ".".join(["model.layers.{layer}", *words[3:]]) in said or ".experts." in lost and (f"experts.{words[5]}." in said or f"expert {words[5]} " in said),
             f"without {lost}: {said}")


def test_back_to_numbered_layers(t):
    """Megatron-Core 0.16.1 numbers the layers wherever moe_layer_freq is a list, such as [1, 1], and a list in config.json says that it is one."""
    source, out = os.path.join(t.scratch, "model"), os.path.join(t.scratch, "out.safetensors")
    os.makedirs(source)
    for name, freq in (("mixtral", [1, 1]), ("qwen2_moe", [1, 1]), ("mixtral", 1), ("qwen2_moe", 1)):
        golden = os.path.join(FORMS, name)
        config = json.load(open(os.path.join(golden, "hf", "config.json")))
        want = norms_of_te(without_padding(tensors_of(t, os.path.join(golden, "stacked")), config))
        if freq != 1:
            stacked = {k: v for k, v in want.items() if k.startswith("decoder.layers.")}
            want = {k: v for k, v in want.items() if k not in stacked}
            want |= {k.replace("layers.", f"layers.{i}.", 1): v[i].contiguous() for k, v in stacked.items() for i in range(len(v))}
        if freq != 1 and name == "mixtral":
            same(want, norms_of_te(without_padding(tensors_of(t, os.path.join(golden, "numbered")), config)), "what Megatron-Core numbers")
        write(source, "config.json", {**config, "moe_layer_freq": freq})
        shutil.copy(os.path.join(golden, "hf", "model.safetensors"), source)
        said = t.run("convert", source, out, "--map", MODELS[name], "--inverse", "--overwrite").stderr.decode()
        same(load_file(out), want, f"{name} {freq}")
        need(("because moe_layer_freq is a list" in said) == (freq != 1), said)
        shutil.move(out, os.path.join(source, "model.safetensors"))
        t.run("convert", source, out, "--map", MODELS[name])
        same(load_file(out), hf(golden), f"{name} {freq}, there and back")


def test_losses_of_mixtral_show(t):
    """A weight that is lost is named, and does not become layers that differ."""
    source, out = os.path.join(t.scratch, "model"), os.path.join(t.scratch, "out.safetensors")
    golden = os.path.join(FORMS, "mixtral")
    shutil.copytree(os.path.join(golden, "hf"), source)
    for lost in (stored := hf(golden)):
        save_file({k: v for k, v in stored.items() if k != lost}, os.path.join(source, "model.safetensors"))
        said = t.run("convert", source, out, "--map", MODELS["mixtral"], "--inverse", status=2).stderr.decode()
        words = lost.split(".")
        need(not os.path.exists(out), f"without {lost}")
        need(lost in said or ".".join(["model.layers.{layer}", *words[3:]]) in said or ".experts." in lost and (f"experts.{words[5]}." in said or f"expert {words[5]} " in said),
             f"without {lost}: {said}")


def test_inverses_of_some_layers(t):
    """"alike": rules that stack layers are inverted together or not at all; "with": only where another name is there."""
    torch.manual_seed(8)
    source, there, back = (os.path.join(t.scratch, f"{n}.safetensors") for n in ("source", "there", "back"))
    before = [{"from": ["l.{i}.up.norm"], "to": ["l.{i}.norm"], "inverse": {"with": "l.{i}.up.w"}},
              {"from": ["l.a"], "to": ["l.{i}.a"], "do": [{"unstack": 0}], "inverse": "alike"},
              {"from": ["l.norm"], "to": ["l.{i}.norm"], "do": [{"unstack": 0}], "inverse": "alike"},
              {"from": ["l.up.{r...}"], "to": ["l.{i}.up.{r...}"], "do": [{"unstack": 0}], "inverse": "alike"}]
    rules = [{"from": ["l.{i}.{r...}"], "to": ["layers.{i}.{r...}"]}]
    document = write(t.scratch, "map.json", {"schema": "tessera.map/1", "before": before, "rules": rules})
    three = {k: torch.randn(3, 2, 4) for k in ("l.a", "l.norm")}
    apart = {f"l.{i}.{k}": torch.randn(2, 4) for i in range(3) for k in ("a", "norm")} | {f"l.{i}.up.w": torch.randn(5) for i in (0, 2)}
    apart = {k.replace("norm", "up.norm") if k.replace("norm", "up.w") in apart else k: v for k, v in apart.items()}
    for stored in (three, apart, {k: v for k, v in apart.items() if k.startswith("l.1.")} | {"l.0.a": torch.ones(1), "l.2.a": torch.ones(1)}):
        save_file(stored, source)
        t.run("convert", source, there, "--map", document, "--overwrite")
        said = t.run("convert", there, back, "--map", document, "--inverse", "--overwrite").stderr.decode()
        same(load_file(back), stored, "back")
        need(("layers are numbered, not stacked, because not all of them have a tensor like 'l." in said) == (stored is not three), said)
    for bad in ("no", "", {}, {"with": 1}, {"with": "l.{x}.w"}, {"with": "l.w", "more": 1}, ["alike"], None):
        path = write(t.scratch, "bad.json", {"schema": "tessera.map/1", "before": [{**before[0], "inverse": bad}], "rules": rules})
        said = t.run("convert", source, there, "--map", path, "--overwrite", status=2).stderr.decode()
        need("before[0].inverse must be true, false" in said, f"{bad}: {said}")


def test_weights_that_a_form_lacks_show(t):
    """Every tensor of a model whose layers and experts have names of their own, one after the other; half of a gate and up, too."""
    source, out = os.path.join(t.scratch, "model"), os.path.join(t.scratch, "out.safetensors")
    for name, form in (("qwen3_moe", "single"), ("mixtral", "stacked"), ("gpt2", "stacked"), ("llama", "single")):
        directory = os.path.join(FORMS, name, form)
        stored = tensors_of(t, directory)
        os.makedirs(source, exist_ok=True)
        shutil.copy(os.path.join(directory, "config.json"), source)
        save_file(stored, os.path.join(source, "model.safetensors"))
        t.run("convert", source, out, "--map", MODELS[name])
        os.remove(out)
        for lost in stored:
            save_file({k: v for k, v in stored.items() if k != lost}, os.path.join(source, "model.safetensors"))
            said = t.run("convert", source, out, "--map", MODELS[name], status=2).stderr.decode()
            part = lost.removeprefix("decoder.layers.").split(".", 1)[-1]
            known = (lost, part.split(".experts.experts.")[-1], part.replace("weight_w", "weight").replace("weight_v", "weight"), "pre_mlp_layernorm.weight")
            need(any(k in said for k in known) and not os.path.exists(out), f"{name} {form} without {lost}: {said}")


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
    for bad, says in (({"before": {}}, "before"), ({"before": [{"from": ["a"]}]}, "before[0]"), ({"before": [], "rules": [{**rules[1], "inverse": "no"}]}, "rules[0].inverse must be true, false")):
        path = write(t.scratch, "bad.json", {"schema": "tessera.map/1", "rules": rules, **bad})
        said = t.run("convert", source, there, "--map", path, "--overwrite", status=2).stderr.decode()
        need(says in said, f"{bad}: {said}")


def test_settings_that_do_not_fit_are_refused(t):
    """Other counts or sizes of heads would give every head the rows of another one."""
    directory, out = os.path.join(t.scratch, "model"), os.path.join(t.scratch, "out.safetensors")
    for source, inverse, changes, *says in (
            ("megatron", [], {"num_key_value_heads": 1}, "the map's 'heads' is"), ("megatron", [], {"num_key_value_heads": 3}, "'decoder.layers.0.self_attention.linear_qkv.weight'"),
            ("megatron", [], {"head_dim": 12}, "cannot divide its elements by 576"), ("megatron", [], {"head_dim": 3}, "the map's 'heads' is"), ("megatron", [], {"num_hidden_layers": 2}, "num_hidden_layers of config.json is 2"),
            ("hf", ["--inverse"], {"num_key_value_heads": 1}, "q_proj.weight' [1, 6, 6, 24]", "expects the size 8"), ("hf", ["--inverse"], {"padded_vocab_size": None}, "no number 'padded_vocab_size'"),
            ("hf", ["--inverse"], {"vocab_size": 36}, "'model.embed_tokens.weight'", "36")):
        shutil.copytree(os.path.join(GOLDEN, "llama", source), directory)
        config = {**json.load(open(os.path.join(directory, "config.json"))), **changes}
        write(directory, "config.json", {k: v for k, v in config.items() if v is not None})
        said = t.run("convert", directory, out, "--map", NAME, *inverse, status=2).stderr.decode()
        need(all(text in said for text in says) and not os.path.exists(out), f"{changes}: {said}")
        shutil.rmtree(directory)


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
