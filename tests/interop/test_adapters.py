"""--lora with adapters of models whose output layer is their embedding, of classifiers, of experts, of convolutions, and with DoRA: bit for bit what PEFT merges them to.

tests/golden/adapters has the adapters, their bases and PEFT's results (make_adapters.py).
"""
import json
import os
import re
import shutil

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from test_maps import need, save_sharded

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden", "adapters")
# Of these, PEFT replaces only some of the layers that share an embedding, and the base does not have the names of the others.
UNNAMED = {"t5_saved_words": "shared.weight", "bert_words_saved": "bert.embeddings.word_embeddings.weight"}
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
    got = load_file(out)
    same(load_file(again), got, f"{name}, merge and convert")  # but for the sign of zeros, which sums lose
    return got, " ".join(doc["warnings"])


def check_notes(name, case, said):
    was_tied = read_json("base", case["base"], "config.json").get("tie_word_embeddings")
    need((UNTIED in said) == bool(was_tied and not case["tied"]), f"{name}: {said}")
    need((SHARED in said) == (not case["faithful"]), f"{name}: {said}")
    base, merged = (set(load_file(p)) for p in (os.path.join(base_of(case), "model.safetensors"), os.path.join(GOLDEN, "merged", f"{name}.safetensors")))
    added = merged - base - {"lm_head.weight"}
    need(("'%s'; state the class" % min(added, default="") in said) == bool(added), f"{name}: {said}")
    need(("output layer of the base is left out" in said) == bool(base - merged), f"{name}: {said}")


def check_cases(t, bases):
    cases = {name: case for name, case in read_json("cases.json").items() if case["base"] in bases}
    need({c["base"] for c in cases.values()} == bases, "a base has no adapter")
    for name, case in cases.items():
        if is_ensured(name):
            need(case["tied"] and not case["faithful"], f"{name}: PEFT merges it well")
            text = t.run("convert", base_of(case), t.at("refused.safetensors"), "--lora", os.path.join(GOLDEN, "adapter", name), status=2).stderr.decode()
            need(TWICE in text and not os.path.exists(t.at("refused.safetensors")), text)
            continue
        if name in UNNAMED:
            text = t.run("convert", base_of(case), t.at("refused.safetensors"), "--lora", os.path.join(GOLDEN, "adapter", name), status=2).stderr.decode()
            need(f"the adapter replaces '{UNNAMED[name]}', but not the layers tied to it; fold this adapter with PEFT" in text, text)
            need(not os.path.exists(t.at("refused.safetensors")), "a refusal left a file")
            continue
        got, said = folded(t, base_of(case), name)
        same(got, load_file(os.path.join(GOLDEN, "merged", f"{name}.safetensors")), name)
        check_notes(name, case, said)


def test_adapters_of_classifiers_as_peft(t):
    """With bias="all", PEFT saves the biases of a saved module three times, under three names."""
    check_cases(t, {"qwen2_tokens", "bert", "roberta"})


def test_adapters_of_tied_models_as_peft(t):
    check_cases(t, {"llama", "qwen2", "gpt2", "llama_classes"})


def test_embeddings_of_other_names_as_peft(t):
    """GPT-NeoX, Mamba and T5 do not name their embeddings as Llama does; they are tied all the same."""
    check_cases(t, {"neox", "mamba", "t5"})
    need(set(UNNAMED) <= set(read_json("cases.json")), "an adapter that is to be refused")


def test_classifiers_that_the_base_lacks(t):
    """PEFT's model has the classifier in place of the output layer, and in the dtype of the other weights."""
    check_cases(t, {"bert_words", "roberta_words"})
    name = "roberta_words_classes"
    base, adapter = base_of(read_json("cases.json")[name]), os.path.join(GOLDEN, "adapter", name)
    want = load_file(os.path.join(GOLDEN, "merged", f"{name}.safetensors"))
    torch.save(load_file(os.path.join(base, "model.safetensors")), t.at("base.pt"))
    t.run("convert", t.at("base.pt"), t.at("out.pt"), "--lora", adapter, "--dtype", "float32")
    got = torch.load(t.at("out.pt"))
    need(all(v.dtype == torch.float32 for v in got.values()), "--dtype")
    same({k: v.to(torch.bfloat16) for k, v in got.items()}, want, "from torch to torch")
    rows = t.json("convert", base, t.at("out.safetensors"), "--lora", adapter, "--overwrite", "--dry-run", "--json")["map"]
    need([r["fqn"] for r in rows] == [r["fqn"] for r in rows if r["fqn"] in want] and len(rows) == len(want), f"{rows}")
    # a name inside a module of the base is a mistake, not a new module
    shutil.copytree(adapter, t.at("adapter"))
    tensors = load_file(os.path.join(adapter, "adapter_model.safetensors"))
    for old, new, says in (("classifier.dense", "roberta.classifier.dense", "'roberta.classifier.dense.bias', which the base does not have"),
                           ("classifier.dense", "other.dense", "'other.dense.bias', which the base does not have")):
        save_file({k.replace(old, new): v for k, v in tensors.items()}, t.at("adapter/adapter_model.safetensors"))
        text = t.run("convert", base, t.at("out.safetensors"), "--lora", t.at("adapter"), status=2).stderr.decode()
        need(says in text, text)


def test_models_inside_others_as_peft(t):
    """In memory, transformers' models have other names than in their files: with and without config.json, and the other way round."""
    check_cases(t, {"qwen2_vl", "gemma3", "llava", "mistral3"})
    name = "llava_patterns"
    base, adapter, want = base_of(read_json("cases.json")[name]), os.path.join(GOLDEN, "adapter", name), load_file(os.path.join(GOLDEN, "merged", f"{name}.safetensors"))
    tensors = load_file(os.path.join(base, "model.safetensors"))
    save_file(tensors, t.at("alone.safetensors"))
    t.run("convert", t.at("alone.safetensors"), t.at("out.safetensors"), "--lora", adapter, "--overwrite")
    same(load_file(t.at("out.safetensors")), want, "without config.json")
    in_memory = {re.sub(r"^(language_model\.)?(model\.)?", lambda m: "model.language_model." if m[2] else "" if m[1] else "model.", k).replace("vision_tower.vision_model", "vision_tower"): k
                 for k in tensors}
    need("model.language_model.layers.0.self_attn.q_proj.weight" in in_memory and len(in_memory) == len(tensors), f"{in_memory}")
    save_file({new: tensors[old] for new, old in in_memory.items()}, t.at("memory.safetensors"))
    t.run("convert", t.at("memory.safetensors"), t.at("out.safetensors"), "--lora", adapter, "--overwrite")
    same({in_memory[k]: v for k, v in load_file(t.at("out.safetensors")).items()}, want, "a base that was saved from memory")
    save_file({**tensors, "model.language_model.model.layers.0.self_attn.q_proj.weight": tensors["language_model.model.layers.0.self_attn.q_proj.weight"] + 1}, t.at("twice.safetensors"))
    text = t.run("convert", t.at("twice.safetensors"), t.at("refused.safetensors"), "--lora", adapter, status=2).stderr.decode()
    need("'model.language_model.layers.0.self_attn.q_proj.weight', which the base does not have" in text, text)


def test_state_dicts_of_whole_models(t):
    """A base saved from a PEFT model, wrapped or not, as torch file or DCP; and an adapter with the names of one."""
    for name in ("llama_untied_dora", "vit_dora", "llama_untied_rows", "llava_patterns"):
        case, adapter = read_json("cases.json")[name], os.path.join(GOLDEN, "adapter", name)
        base, stored, want = load_file(os.path.join(base_of(case), "model.safetensors")), load_file(os.path.join(adapter, "adapter_model.safetensors")), load_file(os.path.join(GOLDEN, "merged", f"{name}.safetensors"))
        named = {re.sub(r"(lora_(?:(?:embedding_)?[AB]|magnitude_vector)|trainable_tokens_delta)\b", r"\1.default", k) + (".weight" if k.endswith("lora_magnitude_vector") else ""): v for k, v in stored.items()}
        need(set(named) != set(stored), f"{name}: no name changed")
        saved = {k.removeprefix("base_model.model.") for k in stored} & set(base)
        named = {re.sub(r"\.(\w+)$", r".modules_to_save.default.\1", k) if k.removeprefix("base_model.model.") in saved else k: v for k, v in named.items()}
        own = {m[1]: m[2] for m in (re.match(r"base_model\.model\.(.*)\.(lora_(?:embedding_)?A|token_adapter)\.", k) for k in named) if m} | {k.rsplit(".", 1)[0]: "saved" for k in saved}
        state = {"base_model.model." + re.sub(r"\.(weight|bias)$", lambda m: {None: "", "token_adapter": ".original_module", "saved": ".original_module"}.get(own.get(m.string[:m.start()]), ".base_layer") + m[0], k): v for k, v in base.items()}
        state |= {k.replace(".original_module", ".token_adapter.base_layer"): v for k, v in state.items() if "embed_tokens.original_module" in k}
        wrapped = {re.sub(r"(layers\.0)\.", r"\1._checkpoint_wrapped_module.", k.replace("base_model.model.", "module.base_model.model._fsdp_wrapped_module.")): v for k, v in {**state, **named}.items()}
        other = t.at("adapter")
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(adapter, other)
        for form in ("torch", "dcp", "wrapped"):
            path = t.at(f"{name}-{form}")
            tensors = wrapped if form == "wrapped" else {**state, **named}
            dcp.save({k: v.clone() for k, v in tensors.items()}, checkpoint_id=path, no_dist=True) if form == "dcp" else torch.save(tensors, path)
            doc = t.json("convert", path, t.at("out.safetensors"), "--lora", adapter, "--overwrite", "--json")
            same(load_file(t.at("out.safetensors")), want, f"{name}, {form}")
            need([w for w in doc["warnings"] if "the base is the state dict of a PEFT model" in w], doc["warnings"])
            save_file({k: v for k, v in (wrapped if form == "wrapped" else named).items() if k.rsplit(".default", 1)[0] != k}, os.path.join(other, "adapter_model.safetensors"))
            t.run("convert", base_of(case), t.at("out.safetensors"), "--lora", other, "--overwrite")
            same(load_file(t.at("out.safetensors")), want, f"{name}, adapter from {form}")
    save_file({**named, **{k.replace(".default", ".second"): v + 1 for k, v in named.items()}}, os.path.join(other, "adapter_model.safetensors"))
    text = t.run("convert", base_of(case), t.at("refused.safetensors"), "--lora", other, status=2).stderr.decode()
    need("several adapters, 'default' and 'second'" in text, text)


def test_dora_as_peft(t):
    check_cases(t, {"llama_untied"})
    need({c["base"] for name, c in read_json("cases.json").items() if "_dora" in name} >= {"llama", "llama_untied", "qwen2", "qwen2_tokens", "gpt2"}, "an untested base")


def test_rows_of_embeddings(t):
    """test_adapters_of_tied_models_as_peft and test_dora_as_peft compare them with PEFT's results; here are adapters whose rows do not fit."""
    name = "llama_untied_rows"
    base = base_of(read_json("cases.json")[name])
    tensors, config = load_file(os.path.join(GOLDEN, "adapter", name, "adapter_model.safetensors")), read_json("adapter", name, "adapter_config.json")
    words = next(k for k in tensors if "embed_tokens.token_adapter" in k)
    refused = refusals(t, base, tensors, config)
    refused("has 24, but 'model.embed_tokens.weight' of the base has 24 rows", trainable_token_indices={"embed_tokens": [23, 24], "lm_head": [5]})
    refused("each of the 1 trainable_token_indices", trainable_token_indices={"embed_tokens": [23], "lm_head": [5]})
    refused("each of the 0 trainable_token_indices", trainable_token_indices={"lm_head": [5]})
    refused("each of the 2 trainable_token_indices", {**tensors, words: tensors[words][:, :5].contiguous()})
    lora = {f"base_model.model.model.embed_tokens.lora_embedding_{x}": torch.ones(s) for x, s in (("A", (2, 24)), ("B", (8, 2)))}
    refused("both rows of 'model.embed_tokens.weight' and a change of all of it", {**tensors, **lora})
    refused("and another change of the tied embedding", base=base_of({"base": "llama"}))


def refusals(t, base, tensors, config):
    """Checks what `tessera convert` says about an adapter with other tensors, or another configuration."""
    os.makedirs(t.at("adapter"), exist_ok=True)

    def refused(says, tensors=tensors, base=base, **more):
        save_file(tensors, t.at("adapter/adapter_model.safetensors"))
        with open(t.at("adapter/adapter_config.json"), "w") as f:
            json.dump({**config, **more}, f)
        text = t.run("convert", base, t.at("refused.safetensors"), "--lora", t.at("adapter"), status=2).stderr.decode()
        need(says in text and not os.path.exists(t.at("refused.safetensors")), text)

    return refused


def test_experts_as_peft(t):
    """transformers fuses the experts of Mixtral and Qwen3-MoE when it loads them, and separates them again when it saves them."""
    check_cases(t, {"gpt_oss", "llama4", "qwen3_moe", "mixtral"})
    name = "gpt_oss_experts"
    base = base_of(read_json("cases.json")[name])
    tensors, config = load_file(os.path.join(GOLDEN, "adapter", name, "adapter_model.safetensors")), read_json("adapter", name, "adapter_config.json")
    refused = refusals(t, base, tensors, config)
    refused("does not fit any tensor of the base that target_parameters selects", target_parameters=["mlp.experts.down_proj"])
    refused("does not fit any tensor of the base that target_parameters selects", target_parameters=["other.mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
    refused("has rank 2, but adapter_config.json states 4", r=4)
    down = {k: v for k, v in tensors.items() if ".base_layer." not in k}
    weights = load_file(os.path.join(base, "model.safetensors"))
    save_file({k: v for k, v in weights.items() if not k.endswith("gate_up_proj_bias")}, t.at("base.safetensors"))
    refused("'model.layers.0.mlp.experts.down_proj' are square", down, t.at("base.safetensors"), target_parameters=["mlp.experts.down_proj"])
    twin = "model.layers.0.mlp.experts.twin"
    save_file({**weights, twin: weights["model.layers.0.mlp.experts.down_proj"] + 1}, t.at("base.safetensors"))
    refused("fits both", tensors, t.at("base.safetensors"), target_parameters=[*config["target_parameters"], "mlp.experts.twin"])


def test_many_experts(t):
    """More columns of B, and larger matrices, than are in memory at a time."""
    torch.manual_seed(5)
    experts, rank, sizes = 96, 20, {"up": (31, 1100), "down": (700, 17)}
    base, adapter, want = {}, {}, {}
    for (name, (outputs, inputs)), level in zip(sizes.items(), (".base_layer", "")):
        for turned in (False, True):
            key = f"m{int(turned)}.{name}"
            a, b = torch.randn(experts, rank, inputs) / 4, torch.randn(experts, outputs, rank) / 4
            w = torch.randn(experts, outputs, inputs).to(torch.bfloat16)
            changes = ((b @ a) * (7 / rank)).to(torch.bfloat16)
            base[key], want[key] = ((v.transpose(1, 2) if turned else v).contiguous() for v in (w, w + changes))
            adapter[f"base_model.model.m{int(turned)}{level}.lora_A.weight"] = a.reshape(experts * rank, inputs)
            adapter[f"base_model.model.m{int(turned)}{level}.lora_B.weight"] = b.permute(1, 2, 0).reshape(outputs, rank * experts).contiguous()
    os.makedirs(t.at("adapter"))
    save_file(base, t.at("base.safetensors"))
    save_file(adapter, t.at("adapter/adapter_model.safetensors"))
    with open(t.at("adapter/adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": 7, "target_parameters": list(sizes)}, f)
    t.run("convert", t.at("base.safetensors"), t.at("out.safetensors"), "--lora", t.at("adapter"))
    for k, got in load_file(t.at("out.safetensors")).items():
        apart = (got.double() - want[k].double()).abs()
        need(bool((apart <= want[k].double().abs() * 2.0 ** -7 + 2.0 ** -8).all()) and float((apart > 0).double().mean()) < 0.01, f"{k}: {apart.max()}")


def test_convolutions_as_peft(t):
    check_cases(t, {"vit"})
    name = "vit_convolution"
    tensors, config = load_file(os.path.join(GOLDEN, "adapter", name, "adapter_model.safetensors")), read_json("adapter", name, "adapter_config.json")
    a = next(k for k in tensors if k.endswith("lora_A.weight"))
    refused = refusals(t, base_of(read_json("cases.json")[name]), tensors, config)
    refused("does not fit 'vit.embeddings.patch_embeddings.projection.weight'", {**tensors, a: tensors[a].reshape(4, 12, 1, 1)})


def dora_of_sizes(t, sizes):
    """A bfloat16 base and a DoRA adapter with linear layers and an embedding of these sizes. Returns what DoRA is: every output has its magnitude."""
    torch.manual_seed(9)
    base, adapter, want = {}, {}, {}
    for number, (name, (rows, columns)) in enumerate(sizes.items()):
        embedding, rank = name == "embed_tokens", 3
        weight = torch.randn(rows, columns).to(torch.bfloat16)
        outputs, inputs = (columns, rows) if embedding else (rows, columns)
        a, b, magnitude = torch.randn(rank, inputs) / 4, torch.randn(outputs, rank) / 4, torch.rand(outputs) + number
        ends = ("lora_embedding_A", "lora_embedding_B") if embedding else ("lora_A.weight", "lora_B.weight")
        base[f"model.{name}.weight"] = weight
        adapter |= {f"base_model.model.model.{name}.{end}": v for end, v in zip((*ends, "lora_magnitude_vector"), (a, b, magnitude))}
        changed = (weight.T if embedding else weight).float() + (b @ a) * (5 / rank)
        scaled = (magnitude / changed.norm(dim=1))[:, None] * changed
        want[f"model.{name}.weight"] = scaled.T if embedding else scaled
    os.makedirs(t.at("adapter"))
    save_file(base, t.at("base.safetensors"))
    save_file(adapter, t.at("adapter/adapter_model.safetensors"))
    with open(t.at("adapter/adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "r": 3, "lora_alpha": 5, "use_dora": True, "target_modules": list(sizes)}, f)
    return want


def test_dora_of_large_matrices(t):
    """Rows that are longer than what is computed at a time, rows that are cut, and columns, of which all rows are needed first."""
    want = dora_of_sizes(t, {"long": (3, 140000), "many": (700, 301), "thin": (90001, 2), "embed_tokens": (1501, 307)})
    lora = ("--lora", t.at("adapter"))
    for dtype in (torch.bfloat16, torch.float32):
        t.run("convert", t.at("base.safetensors"), t.at("out.safetensors"), *lora, "--overwrite", "--dtype", str(dtype).removeprefix("torch."), "--max-mem", "64MiB")
        got = load_file(t.at("out.safetensors"))
        for k, w in want.items():
            need(got[k].dtype == dtype, f"{k} is {got[k].dtype}")
            apart = (got[k].double() - w.double()).abs()
            allowed = w.double().abs() * (2.0 ** -8 if dtype == torch.bfloat16 else 2.0 ** -19) + w.double().abs().max() * 2.0 ** -19
            need(bool((apart <= allowed).all()), f"{dtype} {k}: {apart.max()} apart")


def test_dora_that_is_incomplete(t):
    dora_of_sizes(t, {"q": (4, 6), "v": (5, 6)})
    tensors, config = load_file(t.at("adapter/adapter_model.safetensors")), json.load(open(t.at("adapter/adapter_config.json")))
    magnitude = "base_model.model.model.v.lora_magnitude_vector"
    refused = refusals(t, t.at("base.safetensors"), tensors, config)
    refused("no lora_magnitude_vector for 'model.v.weight'", {k: v for k, v in tensors.items() if k != magnitude})
    refused("use_dora of adapter_config.json is not set", use_dora=False)
    refused("no matrices for its module", {k: v for k, v in tensors.items() if "model.v.lora_A" not in k and "model.v.lora_B" not in k})
    refused("each of the 5 outputs of 'model.v.weight'", {**tensors, magnitude: torch.ones(6)})


def test_other_files_next_to_an_adapter(t):
    """PEFT reads adapter_model.safetensors alone. A merged model that was saved to the same directory has names of the base."""
    name = "llama_head"
    case = read_json("cases.json")[name]
    shutil.copytree(os.path.join(GOLDEN, "adapter", name), t.at("adapter"))
    save_file({k: v + 1 for k, v in load_file(os.path.join(base_of(case), "model.safetensors")).items()}, t.at("adapter/model.safetensors"))
    doc = t.json("convert", base_of(case), t.at("out.safetensors"), "--lora", t.at("adapter"), "--json")
    same(load_file(t.at("out.safetensors")), load_file(os.path.join(GOLDEN, "merged", f"{name}.safetensors")), name)
    need([w for w in doc["warnings"] if "are ignored, such as 'model." in w], doc["warnings"])


def save_in_two(directory, tensors, config):
    os.makedirs(directory)
    files = {f"model-0000{i + 1}-of-00002.safetensors": {k: v for n, (k, v) in enumerate(tensors.items()) if n % 2 == i} for i in range(2)}
    for file, some in files.items():
        save_file(some, os.path.join(directory, file), metadata={"format": "pt"})
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": {k: file for file, some in files.items() for k in some}}, f)
    shutil.copy(config, directory)


def save_dcp(directory, tensors, config):
    save_sharded(directory, tensors)
    shutil.copy(config, directory)


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


def test_adapters_as_training_leaves_them(t):
    """A Trainer's directory, one of FSDP's, and names of wrapped models: what PEFT merges the adapter alone to."""
    name, case = next((name, case) for name, case in read_json("cases.json").items()
                      if "layers." in "".join(load_file(os.path.join(GOLDEN, "adapter", name, "adapter_model.safetensors"))) and not is_ensured(name) and name not in UNNAMED)
    adapter, merged = os.path.join(GOLDEN, "adapter", name), load_file(os.path.join(GOLDEN, "merged", f"{name}.safetensors"))
    stored = load_file(os.path.join(adapter, "adapter_model.safetensors"))
    trainer, fsdp, wrapped = t.at("checkpoint-5"), t.at("checkpoint-6"), t.at("wrapped")
    for directory in (trainer, fsdp):
        os.mkdir(directory)
        shutil.copy(os.path.join(adapter, "adapter_config.json"), directory)
        with open(os.path.join(directory, "trainer_state.json"), "w") as f:
            json.dump({"global_step": 5}, f)
        torch.save({"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": [{"params": [0]}]}, os.path.join(directory, "optimizer.pt"))
        torch.save({"last_epoch": 5}, os.path.join(directory, "scheduler.pt"))
    shutil.copy(os.path.join(adapter, "adapter_model.safetensors"), trainer)
    dcp.save({"model": stored}, checkpoint_id=os.path.join(fsdp, "pytorch_model_fsdp_0"), no_dist=True)
    shutil.copytree(adapter, wrapped)
    renamed = {re.sub(r"(layers\.1)\.", r"\1._checkpoint_wrapped_module.", "base_model.model._fsdp_wrapped_module." + k.removeprefix("base_model.model.")): v for k, v in stored.items()}
    need(len(renamed) == len(stored) and set(renamed) != set(stored), "no name is that of a wrapped model")
    save_file(renamed, os.path.join(wrapped, "adapter_model.safetensors"))
    for directory in (trainer, fsdp, wrapped):
        out = t.at(os.path.basename(directory) + ".safetensors")
        t.run("convert", base_of(case), out, "--lora", directory)
        same(load_file(out), merged, os.path.basename(directory))


def test_a_larger_vocabulary(t):
    """After resize_token_embeddings, PEFT stores the embedding and the output layer whole, and they replace the base's."""
    base = {"model.embed_tokens.weight": torch.arange(12.0).reshape(4, 3), "lm_head.weight": torch.arange(12.0).reshape(4, 3) * 2, "model.norm.weight": torch.ones(3)}
    more = {"base_model.model.model.embed_tokens.weight": torch.arange(15.0).reshape(5, 3) - 7, "base_model.model.lm_head.weight": torch.arange(15.0).reshape(5, 3) * 0.5}
    os.mkdir(t.at("adapter"))
    save_file(base, t.at("base.safetensors"))
    save_file(more, t.at("adapter/adapter_model.safetensors"))
    with open(t.at("adapter/adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}, f)
    doc = t.json("convert", t.at("base.safetensors"), t.at("out.safetensors"), "--lora", t.at("adapter"), "--json")
    need(any("vocab_size" in w and "'lm_head.weight' has 5 rows" in w for w in doc["warnings"]), doc["warnings"])
    same(load_file(t.at("out.safetensors")), {**base, **{k.removeprefix("base_model.model."): v for k, v in more.items()}}, "a larger vocabulary")
    for name, wrong in (("model.norm.weight", torch.ones(4)), ("lm_head.weight", torch.ones(3, 3)), ("lm_head.weight", torch.ones(5, 4))):
        save_file({f"base_model.model.{name}": wrong}, t.at("adapter/adapter_model.safetensors"))
        need("does not fit" in t.run("convert", t.at("base.safetensors"), t.at("refused.safetensors"), "--lora", t.at("adapter"), status=2).stderr.decode(), name)


def test_modules_that_transformers_renames(t):
    """The base has the names that transformers stores, and the adapter those that modules have in memory. Names that could be two tensors are refused."""
    root = os.path.join(os.path.dirname(GOLDEN), "renamed_modules")
    for name in sorted(os.listdir(root)):
        at = lambda *names: os.path.join(root, name, *names)
        out, base, merged = t.at(f"{name}.safetensors"), load_file(at("base", "model.safetensors")), load_file(at("merged", "model.safetensors"))
        need(any(not torch.equal(merged[n], base[n]) for n in base), f"{name}: PEFT changes nothing")
        t.run("convert", at("base"), out, "--lora", at("adapter"))
        same(load_file(out), merged, name)
        said = t.run("convert", at("base", "model.safetensors"), out, "--overwrite", "--lora", at("adapter")).stderr  # config.json is next to it
        same(load_file(out), merged, f"{name}, a single file")
        need(b"is that of the config.json next to it" in said, said)
    shutil.copytree(at("base"), t.at("two"))
    tensors = load_file(t.at("two", "model.safetensors"))
    query = next(n for n in tensors if n.endswith("attention.attention.query.weight"))
    save_file({**tensors, query.replace("attention.attention.query", "attention.self.query"): tensors[query].clone()}, t.at("two", "model.safetensors"))
    p = t.run("convert", t.at("two"), t.at("two.safetensors"), "--lora", at("adapter"), status=2)
    need(b"which the base does not have" in p.stderr, p.stderr)


def test_a_part_is_folded_as_its_own_config_says(t):
    """Two models of a pipeline: what transformers renames in one, or takes apart, follows from the model_type of that one."""
    at = lambda *names: os.path.join(os.path.dirname(GOLDEN), "renamed_modules", *names)
    for part, name in (("image_encoder", "dinov2_swiglu"), ("text_encoder", "gte")):
        shutil.copytree(at(name, "base"), t.at("pipeline", part))
    with open(t.at("pipeline", "model_index.json"), "w") as f:
        json.dump({part: ["transformers", "Model"] for part in ("image_encoder", "text_encoder")}, f)
    for part, name in (("image_encoder", "dinov2_swiglu"), ("text_encoder", "gte")):
        t.run("convert", t.at("pipeline"), t.at(f"{part}.safetensors"), "--part", part, "--lora", at(name, "adapter"))
        same(load_file(t.at(f"{part}.safetensors")), load_file(at(name, "merged", "model.safetensors")), part)


def mixers(tensors):
    """Names of dory's files on the Hub: each layer is two blocks."""
    kinds = {"self_attn": (0, "mixer"), "mlp": (1, "mixer"), "lambda_1": (0, "attn_alpha"), "lambda_2": (1, "mlp_alpha")}

    def name(old):
        parts = old.split(".")
        if parts[1] == "layers":
            half, parts[3] = kinds[parts[3]]
            parts[2] = str(2 * int(parts[2]) + half)
        return ".".join(parts)

    return {name(k): v for k, v in tensors.items()}


def test_layers_that_are_two_blocks(t):
    """transformers loads either form of dory's files, LayerPairCollapse, but writes only the other one."""
    at = lambda *names: os.path.join(os.path.dirname(GOLDEN), "renamed_modules", "dory", *names)
    shutil.copytree(at("base"), t.at("base"))
    save_file(mixers(load_file(at("base", "model.safetensors"))), t.at("base", "model.safetensors"))
    t.run("convert", t.at("base"), t.at("out.safetensors"), "--lora", at("adapter"))
    same(load_file(t.at("out.safetensors")), mixers(load_file(at("merged", "model.safetensors"))), "blocks")


def test_fused_modules(t):
    """What transformers takes apart in memory is taken apart as its table says for the type of the model, and only then. The rest of a tensor stays as it is."""
    at = lambda *names: os.path.join(os.path.dirname(GOLDEN), "renamed_modules", "gte", *names)
    base, config = load_file(at("base", "model.safetensors")), json.load(open(at("base", "config.json")))
    qkv = next(k for k in base if k.endswith("qkv_proj.weight"))

    def place(name, tensors, settings):
        os.makedirs(t.at(name), exist_ok=True)
        save_file(tensors, t.at(name, "model.safetensors"))
        if settings:
            with open(t.at(name, "config.json"), "w") as f:
                json.dump(settings, f)
        return t.at(name)

    def refused(where, says):
        text = t.run("convert", where, t.at("refused.safetensors"), "--lora", at("adapter"), status=2).stderr.decode()
        need(says in text and not os.path.exists(t.at("refused.safetensors")), text)

    refused(place("other", base, {**config, "model_type": "bert"}), "which the base does not have")
    refused(place("unknown", base, None), "which the base does not have")
    scaled = {**base, qkv: base[qkv].to(torch.float8_e4m3fn), f"{qkv}_scale": torch.tensor(2.0)}
    refused(place("scaled", scaled, config), f"{qkv}_scale")

    out = t.at("half.safetensors")
    t.run("convert", at("base"), out, "--lora", at("adapter"), "--dtype", "float16")
    merged = load_file(at("merged", "model.safetensors"))
    same(load_file(out), {k: v.half() if v.is_floating_point() else v for k, v in merged.items()}, "cast to float16")
    os.mkdir(t.at("nested"))
    torch.save({"model": base}, t.at("nested", "pytorch_model.bin"))
    shutil.copy(at("base", "config.json"), t.at("nested"))
    t.run("convert", t.at("nested"), t.at("nested.pt"), "--lora", at("adapter"))
    same(torch.load(t.at("nested.pt"))["model"], merged, "nested")
    rows = t.run("convert", at("base"), t.at("none.safetensors"), "--lora", at("adapter"), "--dry-run").stdout.decode()
    need(not os.path.exists(t.at("none.safetensors")), rows)
