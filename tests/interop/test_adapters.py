"""--lora with adapters of models whose output layer is their embedding, and of classifiers: bit for bit what PEFT merges them to.

tests/golden/adapters has the adapters, their bases and PEFT's results (make_adapters.py).
"""
import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file

from test_maps import need, save_sharded

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden", "adapters")
UNTIED, SHARED = "set tie_word_embeddings to false in config.json", "does not compute what the adapter does"
TWICE = "PEFT's merge adds twice what ensure_weight_tying trains"


def read_json(*path):
    with open(os.path.join(GOLDEN, *path)) as f:
        return json.load(f)


def is_ensured(name):
    """PEFT adds the one change that such an adapter trains twice."""
    config = read_json("adapter", name, "adapter_config.json")
    return config["ensure_weight_tying"] and not config["modules_to_save"]


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


def check_notes(name, case, said):
    was_tied = read_json("base", case["base"], "config.json").get("tie_word_embeddings")
    need((UNTIED in said) == bool(was_tied and not case["tied"]), f"{name}: {said}")
    need((SHARED in said) == (not case["faithful"]), f"{name}: {said}")


def check_cases(t, bases):
    cases = {name: case for name, case in read_json("cases.json").items() if case["base"] in bases}
    need({c["base"] for c in cases.values()} == bases, "a base has no adapter")
    for name, case in cases.items():
        if is_ensured(name):
            need(case["tied"] and not case["faithful"], f"{name}: PEFT merges it well")
            text = t.run("convert", base_of(case), t.at("refused.safetensors"), "--lora", os.path.join(GOLDEN, "adapter", name), status=2).stderr.decode()
            need(TWICE in text and not os.path.exists(t.at("refused.safetensors")), text)
            continue
        got, said = folded(t, base_of(case), name)
        same(got, load_file(os.path.join(GOLDEN, "merged", f"{name}.safetensors")), name)
        check_notes(name, case, said)


def test_adapters_of_classifiers_as_peft(t):
    """With bias="all", PEFT saves the biases of a saved module three times, under three names."""
    check_cases(t, {"qwen2_tokens", "bert", "roberta"})


def test_adapters_of_tied_models_as_peft(t):
    check_cases(t, {"llama", "qwen2", "gpt2", "llama_classes"})


def test_other_files_next_to_an_adapter(t):
    """PEFT reads adapter_model.safetensors alone. A merged model that was saved to the same directory has names of the base."""
    name = "llama_head"
    case = read_json("cases.json")[name]
    shutil.copytree(os.path.join(GOLDEN, "adapter", name), t.at("adapter"))
    save_file({k: v + 1 for k, v in load_file(os.path.join(base_of(case), "model.safetensors")).items()}, t.at("adapter/model.safetensors"))
    doc = t.json("convert", base_of(case), t.at("out.safetensors"), "--lora", t.at("adapter"), "--json")
    same(load_file(t.at("out.safetensors")), load_file(os.path.join(GOLDEN, "merged", f"{name}.safetensors")), name)
    need([w for w in doc["warnings"] if "are ignored, such as 'model." in w], doc["warnings"])


def save_in_two(folder, tensors, config):
    os.makedirs(folder)
    files = {f"model-0000{i + 1}-of-00002.safetensors": {k: v for n, (k, v) in enumerate(tensors.items()) if n % 2 == i} for i in range(2)}
    for file, some in files.items():
        save_file(some, os.path.join(folder, file), metadata={"format": "pt"})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": {k: file for file, some in files.items() for k in some}}, f)
    shutil.copy(config, folder)


def save_dcp(folder, tensors, config):
    save_sharded(folder, tensors)
    shutil.copy(config, folder)


def words_name(tensors):
    return next(k for k in tensors if k.endswith(("embed_tokens.weight", "wte.weight")))


def test_tied_bases_of_other_forms(t):
    """Shards with an index, DCP with one name and with both, torch.save with two names of one storage, and no config.json."""
    for name in ("llama_head", "qwen2_both", "llama_patterns", "qwen2_saved_words", "llama_saved_head", "qwen2_ensured_words", "qwen2_words_saved_head", "gpt2_head"):
        case = read_json("cases.json")[name]
        config = os.path.join(base_of(case), "config.json")
        tensors, want = (load_file(p) for p in (os.path.join(base_of(case), "model.safetensors"), os.path.join(GOLDEN, "merged", f"{name}.safetensors")))
        words = words_name(tensors)
        both = {**tensors, "lm_head.weight": tensors[words]}
        want_both = {"lm_head.weight": want[words], **want}
        for path in ("two", "dcp", "dcp-both", "torch"):
            shutil.rmtree(t.at(path), ignore_errors=True)
        save_in_two(t.at("two"), tensors, config)
        save_dcp(t.at("dcp"), tensors, config)
        save_dcp(t.at("dcp-both"), {k: v.clone() for k, v in both.items()}, config)
        os.makedirs(t.at("torch"))
        torch.save(both, t.at("torch/model.pt"))
        for base, expected in (("two", want), ("dcp", want), ("dcp-both", want_both), ("torch/model.pt", want_both)):
            got, said = folded(t, t.at(base), name)
            same(got, expected, f"{name} {base}")
            check_notes(name, case, said)
        got, said = folded(t, os.path.join(base_of(case), "model.safetensors"), name)
        same(got, want, f"{name}, one file")
        t.run("convert", t.at("torch/model.pt"), t.at("out.pt"), "--lora", os.path.join(GOLDEN, "adapter", name), "--overwrite")
        got = torch.load(t.at("out.pt"))
        same(got, want_both, f"{name} to torch")
        need((got[words].data_ptr() == got["lm_head.weight"].data_ptr()) == case["tied"], f"{name}: tied in the torch file")


def test_both_tensors_with_other_values(t):
    """transformers unties a model that stores both with other values; the configuration then has to say so."""
    case, name = read_json("cases.json")["qwen2_head"], "qwen2_head"
    tensors = load_file(os.path.join(base_of(case), "model.safetensors"))
    words = words_name(tensors)
    os.makedirs(t.at("base"))
    save_file({**tensors, "lm_head.weight": tensors[words] + 1}, t.at("base/model.safetensors"))
    shutil.copy(os.path.join(base_of(case), "config.json"), t.at("base"))
    text = t.run("convert", t.at("base"), t.at("out.safetensors"), "--lora", os.path.join(GOLDEN, "adapter", name), status=2).stderr.decode()
    need("'lm_head.weight' and 'model.embed_tokens.weight' differ" in text and "set it to false" in text, text)
    config = read_json("base", case["base"], "config.json")
    with open(t.at("base/config.json"), "w") as f:
        json.dump({**config, "tie_word_embeddings": False}, f)
    adapter = load_file(os.path.join(GOLDEN, "adapter", name, "adapter_model.safetensors"))
    os.makedirs(t.at("adapter"))
    save_file({k: v for k, v in adapter.items() if "base_layer" not in k}, t.at("adapter/adapter_model.safetensors"))
    shutil.copy(os.path.join(GOLDEN, "adapter", name, "adapter_config.json"), t.at("adapter"))
    doc = t.json("convert", t.at("base"), t.at("out.safetensors"), "--lora", t.at("adapter"), "--json")
    got = load_file(t.at("out.safetensors"))
    a, b = (adapter[f"base_model.model.lm_head.lora_{x}.weight"] for x in "AB")
    need(torch.equal(got["lm_head.weight"], tensors[words] + 1 + (b @ a) * (6 / 2)), "lm_head.weight")
    need(torch.equal(got[words], tensors[words]) and not doc["warnings"], f"{words}: {doc['warnings']}")


def test_ensured_change_added_once(t):
    """What the refusal proposes: the embedding's change alone, which then both layers have."""
    name = "qwen2_ensured"
    case = read_json("cases.json")[name]
    adapter, tensors = load_file(os.path.join(GOLDEN, "adapter", name, "adapter_model.safetensors")), load_file(os.path.join(base_of(case), "model.safetensors"))
    os.makedirs(t.at("adapter"))
    save_file({k: v for k, v in adapter.items() if "lm_head" not in k}, t.at("adapter/adapter_model.safetensors"))
    with open(t.at("adapter/adapter_config.json"), "w") as f:
        json.dump({**read_json("adapter", name, "adapter_config.json"), "ensure_weight_tying": False}, f)
    doc = t.json("convert", base_of(case), t.at("out.safetensors"), "--lora", t.at("adapter"), "--json")
    need("are tied and both change" in " ".join(doc["warnings"]), doc["warnings"])
    a, b = (adapter[f"base_model.model.model.embed_tokens.lora_embedding_{x}"] for x in "AB")
    got = load_file(t.at("out.safetensors"))
    need(set(got) == set(tensors) and torch.equal(got["model.embed_tokens.weight"], tensors["model.embed_tokens.weight"] + (b @ a).T * (6 / 2)), "embed_tokens")


def test_two_changes_of_one_tensor_in_another_dtype(t):
    """--dtype rounds once: what the base's dtype would lose between the changes of both layers stays."""
    name = "llama_patterns"
    case = read_json("cases.json")[name]
    adapter, words = load_file(os.path.join(GOLDEN, "adapter", name, "adapter_model.safetensors")), load_file(os.path.join(base_of(case), "model.safetensors"))["model.embed_tokens.weight"]
    head, embedding = ([adapter[f"base_model.model.{stem}_{x}{end}"] for x in "AB"] for stem, end in (("lm_head.lora", ".weight"), ("model.embed_tokens.lora_embedding", "")))
    sums = words.float() + (embedding[1] @ embedding[0]).T * (3 / 5) + (head[1] @ head[0]) * (7 / 3)
    for dtype in (torch.float32, torch.float16):
        got, _ = folded(t, base_of(case), name, "--dtype", str(dtype).removeprefix("torch."))
        need(torch.equal(got["model.embed_tokens.weight"], sums.to(dtype)), f"{dtype}")
    need(not torch.equal(sums.to(torch.bfloat16), load_file(os.path.join(GOLDEN, "merged", f"{name}.safetensors"))["model.embed_tokens.weight"]), "nothing is lost in bfloat16")


def test_several_embeddings(t):
    """Nothing shows which of two embeddings the output layer shares."""
    case = read_json("cases.json")["qwen2_saved_words"]
    need(case["base"] == read_json("cases.json")["qwen2_head"]["base"], "the base of both adapters")
    tensors = load_file(os.path.join(base_of(case), "model.safetensors"))
    os.makedirs(t.at("base"))
    save_file({**tensors, "other.embed_tokens.weight": tensors[words_name(tensors)] + 1}, t.at("base/model.safetensors"))
    shutil.copy(os.path.join(base_of(case), "config.json"), t.at("base"))
    for name in ("qwen2_saved_words", "qwen2_head"):
        text = t.run("convert", t.at("base"), t.at("out.safetensors"), "--lora", os.path.join(GOLDEN, "adapter", name), status=2).stderr.decode()
        need("several input embeddings" in text, text)
