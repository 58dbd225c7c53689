"""The built-in maps against what transformers and torchtitan stored and held, and commands that read through them."""
import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file

from test_maps import DEQUANTIZING, need, refused, same, save_sharded, scaled_model, write

MAPS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden", "maps")


def test_built_in_maps(t):
    """What transformers stores becomes what it holds in memory, and back; a lost expert is named."""
    for name in sorted(n for n in os.listdir(MAPS) if not n.endswith(".safetensors")):
        directory, held, back = os.path.join(MAPS, name), os.path.join(MAPS, f"{name}.held.safetensors"), os.path.join(t.scratch, f"{name}-back.safetensors")
        need(name in t.run("map", "list").stdout.decode().split(), f"{name} is not listed")
        stored, memory = load_file(os.path.join(directory, "model.safetensors")), load_file(held)
        need(set(stored) != set(memory), f"{name} maps nothing")
        out = os.path.join(t.scratch, f"{name}.safetensors")
        t.run("convert", directory, out, "--map", name)
        same(load_file(out), memory, name)
        t.run("convert", held, back, "--map", name, "--inverse")
        same(load_file(back), stored, f"{name} --inverse")
        lost = next(k for k in sorted(stored) if "experts.1." in k)
        save_file({k: v for k, v in stored.items() if k != lost}, back)
        text = t.run("convert", back, out, "--overwrite", "--map", name, status=2).stderr.decode()
        need(lost in text, f"{name} without {lost}: {text}")


def test_counts_are_those_of_config(t):
    """Layers, experts and heads, as config.json states them; and an expert without a weight, where the map only renames."""
    def refused_as(changes, tensors, *says, rules=None, name="transformers-qwen3_moe", back=False):
        directory, out = os.path.join(t.scratch, "model"), os.path.join(t.scratch, "out.safetensors")
        os.makedirs(directory, exist_ok=True)
        save_file(tensors, os.path.join(directory, "model.safetensors"))
        write(directory, "config.json", {**config, **changes})
        used = write(t.scratch, "rules.json", {"schema": "tessera.map/1", "rules": rules}) if rules else name
        text = t.run("convert", directory, out, "--overwrite", "--map", used, *(["--inverse"] if back else []), status=2 if says else 0).stderr.decode()
        for word in says:
            need(word in text, f"the refusal does not say {word}: {text}")
    source = os.path.join(MAPS, "transformers-qwen3_moe")
    config, stored = json.load(open(os.path.join(source, "config.json"))), load_file(os.path.join(source, "model.safetensors"))
    same_names = [{"from": ["{rest...}"], "to": ["m.{rest...}"]}]
    refused_as({}, stored)
    refused_as({}, stored, rules=same_names)
    for rules in (None, same_names):
        refused_as({"num_hidden_layers": 3}, stored, "'model.layers' has 2 layers, but num_hidden_layers of config.json is 3", rules=rules)
        refused_as({"num_local_experts": 4}, stored, "'model.layers.1.mlp.experts' has 3 experts, but num_local_experts of config.json is 4", rules=rules)
        refused_as({}, {k: v for k, v in stored.items() if "experts.2." not in k}, "has 2 experts, but num_local_experts of config.json is 3", rules=rules)
        refused_as({}, {k: v for k, v in stored.items() if "layers.1." not in k}, "has 1 layer, but num_hidden_layers of config.json is 2", rules=rules)
    lost = "model.layers.1.mlp.experts.1.up_proj.weight"
    refused_as({}, {k: v for k, v in stored.items() if k != lost}, f"expert 1 of layer 1 does not have '{lost}', which 2 of the 3 experts there have", rules=same_names)
    refused_as({"num_hidden_layers": 1, "num_nextn_predict_layers": 1}, stored)
    for part, name, status in (({}, "model.layers.1.self_attn.q_proj.weight", 0), ({lost}, "model.layers.1.mlp.experts.{i}.{rest...}", 2)):  # "drop" is about a part
        save_file({k: v for k, v in stored.items() if k not in part}, os.path.join(t.scratch, "part.safetensors"))
        document = write(t.scratch, "part.json", {"schema": "tessera.map/1", "rules": [{"from": [name], "to": ["m." + name]}], "unmatched": "drop"})
        text = t.run("convert", os.path.join(t.scratch, "part.safetensors"), os.path.join(t.scratch, "out.safetensors"), "--overwrite", "--map", document, status=status).stderr.decode()
        need(status == 0 or lost in text, text)
    held = load_file(os.path.join(MAPS, "transformers-qwen3_moe.held.safetensors"))
    refused_as({}, held, back=True)
    refused_as({"num_local_experts": 4}, held, "has 3 experts, but num_local_experts of config.json is 4", back=True)
    stacked = [{"from": ["w"], "to": ["model.layers.{layer}.w"], "do": [{"unstack": 0}]}]
    refused_as({}, {"w": torch.ones(2, 3)}, rules=stacked)
    refused_as({}, {"w": torch.ones(3, 3)}, "'model.layers' has 3 layers, but num_hidden_layers of config.json is 2", rules=stacked)
    pruned = [{"from": ["model.layers.1.{rest...}"], "to": []}, *same_names]
    refused_as({}, stored, rules=pruned)
    one = {"a": torch.randn(12, 4)}
    rope_rule = [{"from": ["a"], "to": ["b"], "do": [{"permute_rope": {"heads": "$num_attention_heads"}}]}]
    refused_as({"num_attention_heads": 3, "head_dim": 4}, one, rules=rope_rule)
    refused_as({"num_attention_heads": 2, "head_dim": 4}, one, "'a' [12, 4] has 6 rows for each of 2 heads, but config.json says 4", rules=rope_rule)


def test_a_tensor_that_only_the_target_has_twice(t):
    """As the embedding of a model in memory, which its output layer is too: the map writes both, and the inverse one, of the same values."""
    directory, out = os.path.join(t.scratch, "model"), os.path.join(t.scratch, "out.safetensors")
    os.makedirs(directory)

    def convert(rules, settings, tensors, *options, status=0):
        save_file(tensors, os.path.join(directory, "model.safetensors"))
        write(directory, "config.json", settings)
        document = write(t.scratch, "map.json", {"schema": "tessera.map/1", "unmatched": "keep", "rules": rules})
        said = t.run("convert", directory, out, "--map", document, "--overwrite", *options, status=status).stderr.decode()
        return said if status else load_file(out)
    tied, head, e, w = {"tie_word_embeddings": True}, {"from": ["head"], "to": ["lm.head"], "copy_of": "lm.embed"}, torch.randn(3, 2), torch.randn(2)
    for rules, name in (([head, {"from": ["embed"], "to": ["lm.embed"]}], "embed"), ([head, {"from": ["w"], "to": ["w"]}], "lm.embed")):  # mapped, and kept
        once, twice, other = {name: e, "w": w}, {"lm.embed": e, "lm.head": e.clone(), "w": w}, {"lm.embed": e, "lm.head": e + 1, "w": w}
        same(convert(rules, tied, once), twice, name)
        same(convert(rules, tied, twice, "--inverse"), once, f"{name} --inverse")
        same(convert(rules, tied, {**once, "head": e + 1}), other, "a head of its own")
        need("'lm.head' and 'lm.embed' differ, first in row 0" in convert(rules, tied, other, "--inverse", status=2), "a head of its own back")
        for settings in ({}, {"tie_word_embeddings": False}):
            same(convert(rules, settings, once), {"lm.embed": e, "w": w}, f"{settings}")
            same(convert(rules, settings, other, "--inverse"), {**once, "head": e + 1}, f"{settings} --inverse")
    for rule, says in (({"from": ["{a}"], "to": ["{a}"], "copy_of": "b"}, '"copy_of" is for rules from one tensor to one'), ({**head, "tied_to": "b"}, "tied to no other")):
        need(says in convert([rule], tied, once, status=2), says)


def more_layers(tensors):
    """Layers that have a router."""
    return {n.split(".")[2] for n in tensors if n.endswith(".gate.weight")}


def test_layers_without_experts_and_maps_of_other_models(t):
    """A model that lost its experts altogether, or in one layer, is not whole, even where the map keeps the rest; nor is one that the map does not change."""
    def refused_as(name, tensors, config, *says, options=()):
        directory, out = os.path.join(t.scratch, "model"), os.path.join(t.scratch, "out.safetensors")
        os.makedirs(directory, exist_ok=True)
        save_file(tensors, os.path.join(directory, "model.safetensors"))
        write(directory, "config.json", config)
        text = t.run("convert", directory, out, "--overwrite", "--map", name, *options, status=2 if says else 0).stderr.decode()
        for word in says:
            need(word in text, f"the refusal does not say {word}: {text}")
    settings = {"transformers-mixtral": "num_local_experts", "transformers-qwen3_moe": "num_local_experts", "transformers-deepseek_v3": "n_routed_experts"}
    for name, setting in settings.items():
        source = os.path.join(MAPS, name)
        config, stored, held = json.load(open(os.path.join(source, "config.json"))), load_file(os.path.join(source, "model.safetensors")), load_file(f"{source}.held.safetensors")
        router = next(n for n in stored if n.endswith(".gate.weight"))
        for tensors, options in ((stored, []), (held, ["--inverse"])):
            none = {n: x for n, x in tensors.items() if ".experts." not in n}
            refused_as(name, none, config, "experts are not whole", "is there 0 times", ".gate.weight' 1 times" if len(more_layers(none)) == 1 else "", options=options)
            refused_as(name, none, {}, "experts are not whole", options=options)
            refused_as(name, {"m." + n: x for n, x in tensors.items()}, {}, "no rule of the map matches any name", options=options)
        dense = {n: x for n, x in none.items() if ".gate." not in n}
        refused_as(name, dense, {}, "is missing, which the map requires of every model")
        need(config[setting] > 1 and router in stored, name)
        more = {n.replace("layers.1.", "layers.2."): x.clone() for n, x in stored.items() if "layers.1." in n}
        both, config["num_hidden_layers"] = {**stored, **more}, 3
        refused_as(name, both, config)
        lost = {n: x for n, x in both.items() if "layers.1." not in n or ".experts." not in n}
        refused_as(name, lost, config, "experts are not whole", "gate.weight' " + str(len(more_layers(both))) + " times")


def test_metas_llamas(t):
    """As transformers' conversion script makes them, of one file and of several, and back to what Meta distributes."""
    golden = os.path.join(os.path.dirname(MAPS), "meta")
    for name in ("llama1", "llama3", "llama3-2"):
        out, back, hf = os.path.join(t.scratch, f"{name}.safetensors"), os.path.join(t.scratch, f"{name}.pt"), os.path.join(t.scratch, name)
        shards, saved = ["--shards", "meta-llama"] if name == "llama3-2" else [], os.path.join(golden, f"{name}.safetensors")
        t.run("convert", os.path.join(golden, name), out, "--map", "meta-llama", *shards)
        same(load_file(out), load_file(saved), name)
        os.makedirs(hf)
        for file, target in ((saved, "model.safetensors"), (os.path.join(golden, f"{name}.config.json"), "config.json")):
            with open(file, "rb") as source, open(os.path.join(hf, target), "wb") as f:
                f.write(source.read())
        t.run("convert", hf, back, "--map", "meta-llama", "--inverse", "--to", "torch")
        ranks = [torch.load(os.path.join(golden, name, f)) for f in sorted(os.listdir(os.path.join(golden, name))) if f.endswith(".pth")]
        got = torch.load(back)
        same({k: v for k, v in got.items() if len(ranks) == 1 or v.shape == ranks[0][k].shape},
             {k: v for k, v in ranks[0].items() if k != "rope.freqs" and v.shape == got[k].shape}, f"{name} --inverse")
        for k, v in got.items():  # the others in parts
            parts = [rank[k] for rank in ranks]
            dim = next((d for d in range(v.dim()) if v.shape[d] != parts[0].shape[d]), None)
            need(dim is None or torch.equal(v, torch.cat(parts, dim)), f"{name} --inverse: {k}")
    lost = {k: v for k, v in torch.load(os.path.join(golden, "llama1", "consolidated.00.pth")).items() if not k.startswith("layers.1.")}
    torch.save(lost, os.path.join(t.scratch, "consolidated.00.pth"))
    params = json.load(open(os.path.join(golden, "llama1", "params.json")))
    directory = os.path.join(t.scratch, "lost")
    os.makedirs(directory)
    os.rename(os.path.join(t.scratch, "consolidated.00.pth"), os.path.join(directory, "consolidated.00.pth"))
    write(directory, "params.json", {"model": params})
    text = t.run("convert", directory, out, "--overwrite", "--map", "meta-llama", status=2).stderr.decode()
    need("'layers' has 1 layer, but n_layers of params.json is 2" in text, text)


def test_metas_llama_whose_output_layer_is_the_embedding(t):
    """Meta's Llama 3.2 has both, the same; its loader leaves an output layer that is missing as it was initialized."""
    golden, out = os.path.join(os.path.dirname(MAPS), "meta"), os.path.join(t.scratch, "out.safetensors")
    stored, there = torch.load(os.path.join(golden, "llama3.2", "consolidated.00.pth")), load_file(os.path.join(golden, "llama3.2.safetensors"))
    need("lm_head.weight" not in there and torch.equal(stored["output.weight"], stored["tok_embeddings.weight"]), "golden")
    t.run("convert", os.path.join(golden, "llama3.2"), out, "--map", "meta-llama")
    same(load_file(out), {**there, "lm_head.weight": there["model.embed_tokens.weight"]}, "llama3.2")
    hf = os.path.join(t.scratch, "hf")
    os.makedirs(hf)
    shutil.copy(os.path.join(golden, "llama3.2.safetensors"), os.path.join(hf, "model.safetensors"))
    shutil.copy(os.path.join(golden, "llama3.2.config.json"), os.path.join(hf, "config.json"))
    said = t.run("convert", hf, out, "--map", "meta-llama", "--inverse", "--overwrite").stderr.decode()
    same(load_file(out), stored, "llama3.2 --inverse")
    need("'output.weight' is a copy of 'model.embed_tokens.weight', because tie_word_embeddings of config.json is true" in said, said)


def test_torchtitans_deepseek(t):
    """As torchtitan's state_dict_adapter makes it, and back; an expert without a weight is refused."""
    golden, name = os.path.join(os.path.dirname(MAPS), "titan"), "torchtitan-deepseek_v3"
    out = os.path.join(t.scratch, "out.safetensors")
    for model in ("deepseek_v3", "deepseek_v3-without-q-lora"):
        titan, hf = os.path.join(golden, f"{model}.safetensors"), os.path.join(golden, f"{model}.hf.safetensors")
        t.run("convert", titan, out, "--map", name, "--overwrite")
        same(load_file(out), load_file(hf), model)
        t.run("convert", hf, out, "--map", name, "--inverse", "--overwrite")
        same(load_file(out), load_file(titan), f"{model} --inverse")
    source = os.path.join(t.scratch, "source.safetensors")
    lost = "model.layers.2.mlp.experts.10.up_proj.weight"
    save_file({k: v for k, v in load_file(hf).items() if k != lost}, source)
    need(lost in t.run("convert", source, out, "--map", name, "--inverse", "--overwrite", status=2).stderr.decode(), "the expert that lost a weight")


def test_torchtitans_further_layers(t):
    """Those that predict several tokens follow the others in Hugging Face's names, as the adapter numbers them; config.json states how many come before."""
    name, out, plain = "torchtitan-deepseek_v3", os.path.join(t.scratch, "out.safetensors"), os.path.join(t.scratch, "plain.safetensors")
    further = {"enorm.weight": "enorm.weight", "hnorm.weight": "hnorm.weight", "eh_proj.weight": "eh_proj.weight", "mtp_norm.weight": "shared_head.norm.weight"}
    for count in (1, 2):
        titan, hf = titan_model(t, f"deepseek_v3-mtp{count}", ""), titan_model(t, f"deepseek_v3-mtp{count}", ".hf")
        files = [os.path.join(directory, "model.safetensors") for directory in (titan, hf)]
        stored, there = map(load_file, files)
        need(all(f"model.layers.{3 + i}.{v}" in there and f"mtp_layers.{i}.{k}" in stored for i in range(count) for k, v in further.items()), "the golden")
        t.run("convert", titan, out, "--map", name, "--overwrite")
        same(load_file(out), there, titan)
        t.run("convert", hf, out, "--map", name, "--inverse", "--overwrite")
        same(load_file(out), stored, hf)
        table = t.run("convert", titan, out, "--map", name, "--overwrite", "--dry-run").stderr.decode()
        need(f"\nmtp_layers.{count - 1}.mtp_norm.weight -> model.layers.{2 + count}.shared_head.norm.weight float32 [8]\n" in table, table)
        for i in range(count):  # whatever such a layer loses, and all that only such a layer has
            for side, tensors, file, options, prefix in ((0, stored, files[0], [], f"mtp_layers.{i}."), (1, there, files[1], ["--inverse"], f"model.layers.{3 + i}.")):
                own = [prefix + pair[side] for pair in further.items()]
                for lost in ([k] for k in tensors if k.startswith(prefix) and ".experts." not in k), [own]:
                    for names in lost:
                        save_file({k: v for k, v in tensors.items() if k not in names}, file)
                        said = t.run("convert", os.path.dirname(file), plain, "--map", name, *options, status=2).stderr.decode()
                        missing = (f"layers.{3 + i}." if side == 0 else prefix) + names[0].removeprefix(prefix)
                        need(f"'{missing}' is missing, which" in said or "inner_experts" in missing, f"without {names}: {said}")
                save_file(tensors, file)
        copies = {f"model.layers.{3 + i}.{k}": there[v].clone() for i in range(count) for k, v in (("embed_tokens.weight", "model.embed_tokens.weight"), ("shared_head.head.weight", "lm_head.weight"))}
        save_file({**there, **copies}, files[1])  # as released models have them
        said = t.run("convert", hf, out, "--map", name, "--inverse", "--overwrite").stderr.decode()
        same(load_file(out), stored, "with copies")
        need(f"the map leaves out {len(copies)} entries, such as 'model.layers.3.embed_tokens.weight'" in said, said)
    settings = {"num_hidden_layers": 4, "num_nextn_predict_layers": 1}
    for changes, forward, inverse in ((settings, "'layers' has 3 layers, but num_hidden_layers of config.json is 4", "'model.layers.3.eh_proj.weight'"),
                                      ({}, "config.json has no number 'num_hidden_layers', which the map needs", "'model.layers.3.eh_proj.weight'"),
                                      (None, "the map takes 'num_hidden_layers' from config.json", "'model.layers.3.eh_proj.weight'")):
        for directory, options, says in ((titan, [], forward), (hf, ["--inverse"], inverse)):
            config = os.path.join(directory, "config.json")
            write(directory, "config.json", changes) if changes is not None else os.remove(config)
            need(says in t.run("convert", directory, plain, "--map", name, *options, status=2).stderr.decode(), f"{changes} {options}")


def test_numbers_of_captures(t):
    """{l+N}: the number of the capture plus N, in renames and in steps, and back; other names do not match."""
    source, there, back = (os.path.join(t.scratch, f"{n}.safetensors") for n in ("source", "there", "back"))
    x = {f"a.{i}.{k}": torch.randn(2, 3) for i in range(12) for k in "wv"}
    rules = [{"from": ["a.{i}.w", "a.{i}.v"], "to": ["b.{i+5}.u"], "do": [{"concat": 0, "parts": 2}, {"transpose": [1, 0]}]}]
    want = {f"b.{i + 5}.u": torch.cat([x[f"a.{i}.w"], x[f"a.{i}.v"]]).T.contiguous() for i in range(12)}
    save_file({**x, "k": torch.ones(2)}, source)
    path = write(t.scratch, "map.json", {"schema": "tessera.map/1", "rules": rules, "unmatched": "keep"})
    t.run("convert", source, there, "--map", path)
    same(load_file(there), {**want, "k": torch.ones(2)}, "+5")
    t.run("convert", there, back, "--map", path, "--inverse")
    same(load_file(back), {**x, "k": torch.ones(2)}, "+5 and back")
    save_file({"b.4.u": torch.ones(3, 4), "b.05.u": torch.ones(3, 4), "b.x.u": torch.ones(3, 4), "b.5.u": torch.ones(3, 4)}, there)
    t.run("convert", there, back, "--map", path, "--inverse", "--overwrite")
    need(set(load_file(back)) == {"b.4.u", "b.05.u", "b.x.u", "a.0.w", "a.0.v"}, sorted(load_file(back)))
    refused(t, {"a.x": torch.ones(2)}, [{"from": ["a.{i}"], "to": ["b.{i+1}"]}], "no rule of the map matches 'a.x'")
    for names, says in ((["a.{i+}", "b.{i}"], "'{i+}' is not a component"), (["a.{i+x}", "b.{i}"], "'{i+x}' is not a component"),
                        (["a.{i+01}", "b.{i}"], "'{i+01}'"), (["a.{+1}", "b.{i}"], "'{+1}'"), (["a.{i+$}", "b.{i}"], "'{i+$}'")):
        refused(t, {"a.1": torch.ones(2)}, [{"from": names[:1], "to": names[1:]}], says)
    refused(t, {"a.1": torch.ones(2)}, [{"from": ["a.{i+1}"], "to": ["b"], "do": [{"stack": 0}]}], "and none with +")
    refused(t, {"a.1": torch.ones(2)}, [{"from": ["a.{i}", "c.{i+1}"], "to": ["b.{i}"], "do": [{"concat": 0}]}], "do not have the same captures")
    refused(t, {"a.1": torch.ones(2)}, [{"from": ["a.{i}"], "to": ["b.{i+$n}"]}], "the map takes 'n' from config.json")


def titan_model(t, name, file):
    """A directory with config.json and a model of tests/golden/titan: "" is torchtitan's, ".hf" Hugging Face's."""
    golden, directory = os.path.join(os.path.dirname(MAPS), "titan"), os.path.join(t.scratch, f"{name}{file or '.titan'}")
    os.makedirs(directory)
    shutil.copy(os.path.join(golden, f"{name}{file}.safetensors"), os.path.join(directory, "model.safetensors"))
    shutil.copy(os.path.join(golden, f"{name}.json"), os.path.join(directory, "config.json"))
    return directory


def test_torchtitans_llama_and_qwen(t):
    """As the adapters of torchtitan make them, and back; what they drop without a word is named."""
    out = os.path.join(t.scratch, "out.safetensors")
    for name in ("llama3", "llama3-tied", "qwen3", "qwen3-tied", "qwen3_moe", "qwen3_moe-tied", "qwen3_moe-dense-inside", "qwen3_moe-dense-outside"):
        titan, hf = titan_model(t, name, ""), titan_model(t, name, ".hf")
        stored, there = (load_file(os.path.join(directory, "model.safetensors")) for directory in (titan, hf))
        for source, want, inverse in ((titan, there, []), (hf, {k: v for k, v in stored.items() if not k.endswith("expert_bias_E")}, ["--inverse"])):
            said = t.run("convert", source, out, "--map", f"torchtitan-{name.split('_')[0].split('-')[0]}", "--overwrite", *inverse).stderr.decode()
            same(load_file(out), want, f"{name} {inverse}")
            says = "does not bring back what the map drops, 'layers.{layer}.moe.expert_bias_E'" if inverse else {"inside": "the map leaves out 2 entries, such as 'layers.0.moe.expert_bias_E'", "outside": "the map leaves out 'layers.1.moe.expert_bias_E'"}.get(
                name.split("-")[-1], "the map leaves out 3 entries, such as 'layers.0.moe.expert_bias_E'")
            need((says in said) == ("qwen3_moe" in name or bool(inverse) and "qwen3" in name), said)
            tie = "'lm_head.weight' is a copy of 'model.embed_tokens.weight'" if inverse else "'lm_head.weight' is left out as the same tensor as 'tok_embeddings.weight'"
            need((tie + ", because tie_word_embeddings of config.json is true" in said) == ("tied" in name), said)
        if "tied" not in name:
            continue
        both = {**there, "lm_head.weight": there["model.embed_tokens.weight"] + 1}  # some are stored with both; then nothing is copied
        save_file(both, os.path.join(hf, "model.safetensors"))
        t.run("convert", hf, out, "--map", f"torchtitan-{name.split('_')[0].split('-')[0]}", "--overwrite", "--inverse")
        need(torch.equal(load_file(out)["lm_head.weight"], both["lm_head.weight"]), f"{name} with an output layer of its own")
        save_file({**stored, "lm_head.weight": stored["lm_head.weight"][1:].clone()}, os.path.join(titan, "model.safetensors"))
        said = t.run("convert", titan, out, "--map", f"torchtitan-{name.split('_')[0].split('-')[0]}", "--overwrite", status=2).stderr.decode()
        need("'lm_head.weight' and 'tok_embeddings.weight' do not have one dtype and shape" in said, said)


def test_settings_next_to_a_single_file(t):
    """The file is what its directory is: config.json next to it shows that the output layer is the embedding, that a layer is lost, and how many heads there are."""
    directory, out = titan_model(t, "qwen3-tied", ""), os.path.join(t.scratch, "out.safetensors")
    file, options = os.path.join(directory, "model.safetensors"), ["--map", "torchtitan-qwen3", "--overwrite"]
    for n, path in enumerate((directory, file)):
        need("warning" not in t.run("convert", path, os.path.join(t.scratch, f"{n}.safetensors"), *options).stderr.decode(), path)
    same(load_file(os.path.join(t.scratch, "0.safetensors")), load_file(os.path.join(t.scratch, "1.safetensors")), "the file and its directory")
    save_file({k: v for k, v in load_file(file).items() if not k.startswith("layers.2.")}, file)
    for path in (directory, file):
        need("'layers' has 2 layers, but num_hidden_layers of config.json is 3" in t.run("convert", path, out, *options, status=2).stderr.decode(), f"a lost layer: {path}")
    llama = titan_model(t, "llama3", "")
    for path in (llama, os.path.join(llama, "model.safetensors")):
        t.run("convert", path, os.path.join(t.scratch, f"llama{len(path)}.safetensors"), "--map", "torchtitan-llama3")
    same(*(load_file(os.path.join(t.scratch, f"llama{len(path)}.safetensors")) for path in (llama, os.path.join(llama, "model.safetensors"))), "the numbers of heads")
    os.remove(os.path.join(llama, "config.json"))
    said = t.run("convert", os.path.join(llama, "model.safetensors"), out, "--map", "torchtitan-llama3", "--overwrite", status=2).stderr.decode()
    need("from config.json, which is not among the checkpoint's files" in said, said)


def test_buffers_that_older_releases_store(t):
    """torchtitan's from_hf drops inv_freq of Llama and Qwen and does not know it in DeepSeek; transformers 5.23 ignores it when it loads Llama, and masks of GPT-2 and GPT-NeoX."""
    golden, source, out = os.path.dirname(MAPS), os.path.join(t.scratch, "model"), os.path.join(t.scratch, "out.safetensors")
    inv_freq, megatron = "model.layers.{}.self_attn.rotary_emb.inv_freq", os.path.join(golden, "megatron_maps")
    models = [("torchtitan-llama3", titan_model(t, "llama3", ".hf"), [inv_freq]), ("torchtitan-qwen3", titan_model(t, "qwen3", ".hf"), [inv_freq]),
              ("meta-llama", os.path.join(t.scratch, "llama3.hf"), [inv_freq]),
              ("megatron-llama", os.path.join(megatron, "llama", "hf"), [inv_freq]), ("megatron-gpt2", os.path.join(megatron, "gpt2", "hf"), ["transformer.h.{}.attn.bias"]),
              ("megatron-gpt_neox", os.path.join(megatron, "gpt_neox", "hf"), ["gpt_neox.layers.{}.attention." + n for n in ("bias", "masked_bias", "rotary_emb.inv_freq")])]
    os.makedirs(source)
    for name, directory, buffers in models:
        stored = load_file(os.path.join(directory, "model.safetensors"))
        shutil.copy(os.path.join(directory, "config.json"), source)
        t.run("convert", directory, out, "--map", name, "--inverse", "--overwrite")
        want = load_file(out)
        save_file(stored | {b.format(i): torch.ones(3) for b in buffers for i in range(2)}, os.path.join(source, "model.safetensors"))
        said = t.run("convert", source, out, "--map", name, "--inverse", "--overwrite").stderr.decode()
        same(load_file(out), want, f"{name} with buffers")
        need(f"the map leaves out {2 * len(buffers)} entries, such as '{buffers[0].format(0)}'" in said, said)
        save_file(stored | {buffers[0].format(0) + ".more": torch.ones(3)}, os.path.join(source, "model.safetensors"))
        t.run("convert", source, out, "--map", name, "--inverse", "--overwrite", status=2)
    save_file(load_file(os.path.join(golden, "titan", "deepseek_v3.hf.safetensors")) | {inv_freq.format(0): torch.ones(3)}, out)
    need(f"no rule of the map matches '{inv_freq.format(0)}'" in t.run("convert", out, source + ".safetensors", "--map", "torchtitan-deepseek_v3", "--inverse", status=2).stderr.decode(), "inv_freq of DeepSeek")


def test_rules_that_are_only_for_the_inverse(t):
    source, out = os.path.join(t.scratch, "in.safetensors"), os.path.join(t.scratch, "out.safetensors")
    plain, rule = {"from": ["a"], "to": ["b"]}, {"from": [], "to": ["{m...}.mask"]}

    def run(tensors, rules, *options, status=0):
        save_file({k: torch.arange(4.0) for k in tensors}, source)
        document = write(t.scratch, "map.json", {"schema": "tessera.map/1", "rules": rules})
        said = t.run("convert", source, out, "--map", document, "--overwrite", *options, status=status).stderr.decode()
        return said if status else list(load_file(out))

    need(run(["a"], [plain, rule]) == ["b"] and run(["b", "l.0.mask"], [plain, rule], "--inverse") == ["a"], "names")
    need("'l.0.mask'" in run(["a", "l.0.mask"], [plain, rule], status=2), "it is not for the map itself")
    for more in ({"required": True}, {"required": "mask"}, {"inverse": False}, {"to": []}):
        need("a rule has an empty 'from'" in run(["a"], [plain, {**rule, **more}], status=2), more)
    for more in ({"do": [{"transpose": [0]}]}, {"shape": ["n"]}):
        need("'{m...}.mask': a rule that drops takes no steps and no shape" in run(["a"], [plain, {**rule, **more}], status=2), more)


def test_tied_values_are_compared(t):
    """What a map leaves out as the same tensor has the same values, wherever values are read; from shards of two ranks, too."""
    options = ["--map", "torchtitan-llama3"]
    titan, out = titan_model(t, "llama3-tied", ""), os.path.join(t.scratch, "out.safetensors")
    file, sharded = os.path.join(titan, "model.safetensors"), os.path.join(t.scratch, "sharded")
    stored = load_file(file)
    t.run("convert", titan, out, *options)
    rows, columns = stored["lm_head.weight"].shape
    for row, column in ((0, 0), (rows // 2, columns - 1), (rows - 1, columns - 1)):
        changed = {**stored, "lm_head.weight": stored["lm_head.weight"].clone()}
        changed["lm_head.weight"][row, column] += 1
        save_file(changed, file)
        shutil.rmtree(sharded, ignore_errors=True)
        save_sharded(sharded, {k: v for k, v in changed.items() if v.dim() == 2 and v.shape[0] > 3 and v.shape[1] > 3} | {k: v for k, v in changed.items() if v.dim() == 1})
        shutil.copy(os.path.join(titan, "config.json"), sharded)
        for source in (titan, sharded):
            for command in (["convert", source, out, "--overwrite"], ["diff", source, out, "--values"], ["manifest", source],
                            ["reshard", source, os.path.join(t.scratch, "resharded"), "--mesh", "dp=2", "--placements", "shard(0)", "--to", "dcp"]):
                said = t.run(*command, *options, status=2).stderr.decode()
                need(f"'lm_head.weight' and 'tok_embeddings.weight' differ, first in row {row}" in said, f"{command}: {said}")
        t.run("convert", titan, out, *options, "--overwrite", "--dry-run")  # reads no values
        t.run("plan", titan, "--mesh", "dp=2", "--placements", "shard(0)", *options)
    config = json.load(open(os.path.join(titan, "config.json")))
    write(titan, "config.json", {**config, "tie_word_embeddings": False})
    t.run("convert", titan, out, *options, "--overwrite")
    need(torch.equal(load_file(out)["lm_head.weight"], changed["lm_head.weight"]), "an output layer of its own")


def test_what_every_model_has_is_required(t):
    """Also where all layers lack it, so that no other layer shows it."""
    source, out = os.path.join(t.scratch, "model"), os.path.join(t.scratch, "out.safetensors")
    for name, map_name in (("llama3", "torchtitan-llama3"), ("qwen3", "torchtitan-qwen3"), ("deepseek_v3", "torchtitan-deepseek_v3")):
        rules = json.loads(t.run("map", "show", map_name).stdout)["rules"]
        for file, inverse, side, head in (("", [], "from", "lm_head.weight"), (".hf", ["--inverse"], "to", "lm_head.weight")):
            stored = load_file(os.path.join(os.path.dirname(MAPS), "titan", f"{name}{file}.safetensors"))
            os.makedirs(source, exist_ok=True)
            for rule in (r for r in rules if "required" in r):
                if rule["required"] == "experts" and name == "qwen3":
                    continue
                parts = [n.replace("{layer}", "*").replace("{expert}", "*") for n in rule[side]]
                lost = [k for k in stored for p in parts if len(k.split(".")) == len(p.split(".")) and all(b in ("*", a) for a, b in zip(k.split("."), p.split(".")))]
                need(lost, rule)
                save_file({k: v for k, v in stored.items() if k not in lost}, os.path.join(source, "model.safetensors"))
                write(source, "config.json", {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6, "tie_word_embeddings": False})
                said = t.run("convert", source, out, "--map", map_name, *inverse, status=2).stderr.decode()
                of = "every model" if rule["required"] in (True, "untied") else "models that have '"
                need(f"'{rule[side][0]}' is missing, which the map requires of {of}" in said or rule["required"] == "experts" and "experts are not whole" in said, f"{rule}: {said}")
                need(not os.path.exists(out), rule)
            if name != "deepseek_v3":  # without config.json, or where it ties them, the output layer may be the embedding
                write(source, "config.json", {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6})
                save_file({k: v for k, v in stored.items() if k != head}, os.path.join(source, "model.safetensors"))
                t.run("convert", source, out, "--map", map_name, *inverse)
                os.remove(out)
    save_file({"a": torch.ones(2)}, os.path.join(source, "model.safetensors"))
    rules = [{"from": ["a"], "to": ["b"]}, {"from": ["c"], "to": ["d"], "required": True}]
    for unmatched, status in (("refuse", 2), ("keep", 2), ("drop", 0)):  # "drop": the map is about a part of the model
        t.run("convert", source, out, "--map", write(t.scratch, "map.json", {"schema": "tessera.map/1", "unmatched": unmatched, "rules": rules}), "--overwrite", status=status)
    for value in ("", 1, None):
        bad = write(t.scratch, "bad.json", {"schema": "tessera.map/1", "rules": [{**rules[0], "required": value}]})
        need("rules[0].required must be true, false or a word" in t.run("convert", source, out, "--map", bad, status=2).stderr.decode(), value)


def test_a_layer_that_lacks_something_shows(t):
    """Without config.json: every tensor that a layer loses, all of its experts, the layer itself, and experts that the router does not have."""
    golden, source, out = os.path.join(os.path.dirname(MAPS), "titan"), os.path.join(t.scratch, "in.safetensors"), os.path.join(t.scratch, "out.safetensors")

    def refused(tensors, options, *says):
        save_file(tensors, source)
        said = t.run("convert", source, out, *options, status=2).stderr.decode()
        for text in says:
            need(text in said, f"{options}: the refusal does not say {text}: {said}")
        need(not os.path.exists(out), "a refused conversion left a file")

    for name, map_name in (("qwen3_moe", "torchtitan-qwen3"), ("qwen3", "torchtitan-qwen3"), ("deepseek_v3", "torchtitan-deepseek_v3")):
        for file, inverse, prefix, moe in (("", [], "layers.", ".moe."), (".hf", ["--inverse"], "model.layers.", ".mlp.")):
            stored, options = load_file(os.path.join(golden, f"{name}{file}.safetensors")), ["--map", map_name, *inverse]
            stored = {k: v for k, v in stored.items() if name != "qwen3_moe" or "expert_bias" not in k}
            for lost in [k for k in stored if k.startswith(f"{prefix}1.") and ".experts.0." not in k and ".experts.1" not in k]:  # those are missing below other names
                number = next((c for c in lost.split(".") if c.isdigit() and c != "1"), None)
                refused({k: v for k, v in stored.items() if k != lost}, options, lost if number is None or ".experts." not in lost else f"experts.{number}.")
            if name != "qwen3":
                refused({k: v for k, v in stored.items() if prefix + "1." not in k or moe not in k}, options, f"'{prefix}1' has nothing like '{prefix}{{layer}}.")
                one = {k: v for k, v in stored.items() if prefix + "1." not in k or "xperts" not in k or "shared" in k}
                refused(one, options, f"'{prefix}1.", "is missing, which other layers have together with", ".gate.weight'")
            refused({k: v for k, v in stored.items() if prefix + "1." not in k}, options, f"there is '{prefix}2', but not '{prefix}1'")
            if name != "qwen3":
                fewer = {k: v[:-1].clone() if k.endswith(("router.gate.weight", "mlp.gate.weight", "_bias_E", "correction_bias")) else v for k, v in stored.items()}
                refused(fewer, options, "the map's 'experts' is", "but there are", "for '")
    bad = write(t.scratch, "bad.json", {"schema": "tessera.map/1", "rules": [{"from": ["a"], "to": ["b"], "layers": "all"}]})
    refused({"a": torch.ones(2)}, ["--map", bad], 'rules[0]: "layers"')


def test_torchtitans_gpt_oss(t):
    """As transformers' model computes the same logits (tests/golden/make_titan_gpt_oss.py), and back; only the biases that balance the load are dropped."""
    golden, name = os.path.join(os.path.dirname(MAPS), "titan_gpt_oss"), "torchtitan-gpt_oss"
    titan, hf, out = os.path.join(golden, "titan.safetensors"), os.path.join(golden, "hf.safetensors"), os.path.join(t.scratch, "out.safetensors")
    t.run("convert", titan, out, "--map", name)
    same(load_file(out), load_file(hf), name)
    t.run("convert", hf, out, "--map", name, "--inverse", "--overwrite")
    stored = load_file(titan)
    same(load_file(out), {k: v for k, v in stored.items() if not k.endswith("expert_bias_E")}, f"{name} --inverse")
    table = t.run("convert", titan, out, "--map", name, "--dry-run", "--overwrite").stderr.decode()
    need(table.count("(dropped)") == 2 and "layers.1.moe.expert_bias_E -> (dropped)" in table, table)
    source, more = os.path.join(t.scratch, "source.safetensors"), "layers.0.moe.shared_experts.w1.weight"
    save_file({**stored, more: torch.ones(3)}, source)
    need(f"'{more}'" in t.run("convert", source, out, "--map", name, "--overwrite", status=2).stderr.decode(), "a tensor that GPT-OSS does not have")


def turn(tensor):
    return tensor.transpose(1, 2).contiguous() if tensor.dim() == 3 else tensor


def test_dequantized_gpt_oss_is_refused(t):
    """MXFP4 experts have their dims the other way round, which a square down_proj does not show by itself; turned round they are what the map is for."""
    name, name_of = "torchtitan-gpt_oss", os.path.join(os.path.dirname(MAPS), "titan_gpt_oss", "hf.safetensors")
    layer, experts, hidden, packed, plain, out = "model.layers.{}.mlp.", 3, 64, *(os.path.join(t.scratch, f"{n}.safetensors") for n in ("packed", "plain", "out"))
    others = {k: v for k, v in load_file(name_of).items() if ".mlp." not in k}
    model = {k: torch.randn([hidden if n == others["model.norm.weight"].shape[0] else n for n in v.shape]) for k, v in others.items()}
    sizes = {"gate_up_proj": 2 * hidden, "down_proj": hidden}
    for at in (layer.format(i) for i in range(2)):
        model |= {at + "router.weight": torch.randn(experts, hidden), at + "router.bias": torch.randn(experts)}
        for k, rows in sizes.items():
            model[f"{at}experts.{k}_blocks"] = torch.randint(0, 256, (experts, rows, hidden // 32, 16), dtype=torch.uint8)
            model[f"{at}experts.{k}_scales"] = torch.randint(120, 130, (experts, rows, hidden // 32), dtype=torch.uint8)
            model[f"{at}experts.{k}_bias"] = torch.randn(experts, rows)
    save_file(model, packed)
    inverse = ["--map", name, "--inverse", "--overwrite"]
    t.run("convert", packed, plain, "--dequantize")
    for source in ([packed, out, "--dequantize"], [plain, out]):
        said = t.run("convert", *source, *inverse, status=2).stderr.decode()
        for part in ("'hidden' is 64", "'model.embed_tokens.weight' [40, 64]", "128 in", f"'{layer.format(0)}experts.gate_up_proj' [3, 128, 64]"):
            need(part in said, f"{part} is not in: {said}")
    need(not os.path.exists(out), "a refused conversion left a file")
    held = {k: turn(v) for k, v in load_file(plain).items()}
    save_file(held, plain)
    t.run("convert", plain, out, *inverse)
    same({k: v for k, v in load_file(out).items() if "mlp" in k}, {f"layers.{i}.moe.routed_experts.inner_experts.{a}": v for i in range(2) for a, v in (
        (a, turn(held[f"{layer.format(i)}experts.{b}"])) for a, b in (("mlp1_weight_EGD", "gate_up_proj"), ("mlp1_bias_EG", "gate_up_proj_bias"),
                                                                      ("mlp2_weight_EDF", "down_proj"), ("mlp2_bias_ED", "down_proj_bias")))}, "turned round")
    turned = {k: turn(v) if k.endswith("mlp1_weight_EGD") else v for k, v in load_file(out).items()}
    save_file(turned, plain)
    need("'hidden' is 64" in t.run("convert", plain, out, "--map", name, "--overwrite", status=2).stderr.decode(), "experts turned round under torchtitan's names")


def test_every_command_reads_through_a_map(t):
    """diff, manifest, verify, fqn and reshard see PATH as the map makes it; a plan that exec could not run is refused."""
    name = "transformers-qwen3_moe"
    stored, held = os.path.join(MAPS, name, "model.safetensors"), os.path.join(MAPS, f"{name}.held.safetensors")
    manifest, out = os.path.join(t.scratch, "manifest.json"), os.path.join(t.scratch, "out")
    t.run("diff", stored, held, "--values", "--map", name)
    t.run("diff", stored, held, status=1)
    t.run("manifest", stored, "-o", manifest, "--map", name)
    t.run("verify", held, manifest)
    t.run("verify", stored, manifest, status=1)
    t.run("verify", stored, manifest, "--map", name)
    names = {n["raw"] for n in t.json("fqn", "--checkpoint", stored, "--map", name, "--json")["names"]}
    need(names == set(load_file(held)), f"fqn: {sorted(names ^ set(load_file(held)))[:4]}")
    need("--checkpoint" in t.run("fqn", manifest, "--map", name, status=2).stderr.decode(), "fqn without a checkpoint")
    mesh = ["--mesh", "dp=2", "--placements", "shard(0)"]
    t.run("plan", stored, *mesh, "--map", name)
    t.run("reshard", stored, out, *mesh, "--to", "dcp", "--map", name)
    t.run("diff", out, held, "--values")


def test_verify_where_entries_come_from_the_same_bytes(t):
    """Experts from the stack of a DCP, and an output layer that is a copy of the embedding, are not damage."""
    manifest, dcp = os.path.join(t.scratch, "manifest.json"), os.path.join(t.scratch, "dcp")
    titan, hf, options = titan_model(t, "qwen3_moe-tied", ""), titan_model(t, "qwen3_moe-tied", ".hf"), ["--map", "torchtitan-qwen3"]
    t.run("convert", titan, dcp, "--to", "dcp")
    shutil.copy(os.path.join(titan, "config.json"), dcp)
    t.run("manifest", hf, "-o", manifest)
    need(t.json("verify", dcp, manifest, *options, "--json")["findings"] == [], "experts from a stack")
    t.run("convert", hf, os.path.join(t.scratch, "back.safetensors"), *options, "--inverse")
    t.run("manifest", os.path.join(t.scratch, "back.safetensors"), "-o", manifest)
    need(t.json("verify", hf, manifest, *options, "--inverse", "--json")["findings"] == [], "tied weights")


def test_a_plan_holds_its_map(t):
    """exec writes what reshard writes, through the map in the plan alone; not once config.json, from which it takes numbers, has changed."""
    directory, path = os.path.join(t.scratch, "in"), write(t.scratch, "map.json", DEQUANTIZING)
    os.makedirs(directory)
    save_file(scaled_model(), os.path.join(directory, "model.safetensors"))
    write(directory, "config.json", {"width": 3, "torch_dtype": "bfloat16"})
    mesh = ["--mesh", "dp=2", "--placements", "shard(0)", "--to", "dcp"]
    t.run("reshard", directory, os.path.join(t.scratch, "want"), *mesh, "--map", path)
    plan = t.json("plan", directory, *mesh, "--map", path, "--items", "--json")
    options = plan["request"]["options"]
    need(json.loads(options["map"]) == DEQUANTIZING and "inverse" not in options, "the map in the plan")
    need({i["fqn"] for i in plan["items"]} == {r.replace("{layer}", str(n)).replace("{n}", "w") for r in ("layers.{layer}.gate_up", "row.w", "one.{n}", "x", "norm") for n in range(2)}, "names of items")
    need({i["file"] for i in plan["items"]} == {"model.safetensors", None}, "files of items")
    need("config.json" in {f["file"] for f in plan["source"]["files"]}, "config.json does not count")
    os.remove(path)
    document = write(t.scratch, "plan.json", plan)
    t.run("exec", document, os.path.join(t.scratch, "whole"))
    for part in ("2/2", "1/2"):
        t.run("exec", document, os.path.join(t.scratch, "parts"), "--part", part)
    t.run("exec", document, os.path.join(t.scratch, "parts"), "--finish")
    for name in sorted(os.listdir(os.path.join(t.scratch, "want"))):
        want = open(os.path.join(t.scratch, "want", name), "rb").read()
        for out in ("whole", "parts"):
            need(open(os.path.join(t.scratch, out, name), "rb").read() == want, f"{out}: {name}")
    write(directory, "config.json", {"width": 3, "torch_dtype": "float16"})
    need("'config.json' has" in t.run("exec", document, os.path.join(t.scratch, "changed"), status=2).stderr.decode(), "a changed config.json")
    stored, held = os.path.join(MAPS, "transformers-mixtral"), os.path.join(MAPS, "transformers-mixtral.held.safetensors")
    back = write(t.scratch, "back.json", t.json("plan", held, *mesh, "--map", "transformers-mixtral", "--inverse", "--json"))
    t.run("exec", back, os.path.join(t.scratch, "back"))
    t.run("diff", os.path.join(t.scratch, "back"), stored, "--values")


def test_scaled_values_are_multiplied_wherever_values_are_read(t):
    torch.manual_seed(3)
    w, s = torch.randn(40, 24).to(torch.float8_e4m3fn), torch.rand(40)
    source, want, manifest = (os.path.join(t.scratch, n) for n in ("s.safetensors", "w.safetensors", "m.json"))
    save_file({"w": w, "w_scale": s, "n": torch.randn(3)}, source)
    save_file({"w": (w.float() * s[:, None]).bfloat16(), "n": load_file(source)["n"]}, want)
    t.run("diff", source, want, "--values", "--dequantize")
    t.run("diff", source, want, "--values", status=1)
    t.run("manifest", source, "-o", manifest, "--dequantize")
    t.run("verify", want, manifest)
    t.run("verify", source, manifest, "--dequantize")
    out = os.path.join(t.scratch, "out")
    t.run("reshard", source, out, "--mesh", "dp=2", "--placements", "shard(0)", "--to", "dcp", "--dequantize", "--dtype", "float32")
    t.run("convert", out, os.path.join(t.scratch, "o.safetensors"))
    need(torch.equal(load_file(os.path.join(t.scratch, "o.safetensors"))["w"], w.float() * s[:, None]), "reshard --dequantize --dtype float32")


def test_an_expert_that_is_missing_everywhere_shows(t):
    """Without config.json too: layers and routers must agree on how many experts there are."""
    forms = {"transformers-mixtral": ("block_sparse_moe", ("w1", "w3", "w2")), "transformers-qwen3_moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
             "transformers-deepseek_v3": ("mlp", ("gate_proj", "up_proj", "down_proj"))}
    for name, (part, weights) in forms.items():
        whole = {f"model.layers.{i}.{part}.experts.{e}.{w}.weight": torch.randn((6, 10) if w == weights[2] else (10, 6)) for i in (1, 2) for e in range(4) for w in weights}
        whole.update({f"model.layers.{i}.{part}.gate.weight": torch.randn(4, 6) for i in (1, 2)})
        source, out = os.path.join(t.scratch, "in.safetensors"), os.path.join(t.scratch, f"{name}.safetensors")
        save_file(whole, source)
        t.run("convert", source, out, "--map", name)
        t.run("convert", out, os.path.join(t.scratch, "back.safetensors"), "--map", name, "--inverse", "--overwrite")
        same(load_file(os.path.join(t.scratch, "back.safetensors")), whole, f"{name} and back")
        for lost, says in ((".experts.3.", "mlp.gate.weight' [4, 6]"), ("layers.2." + part + ".experts.3.", "'model.layers.2.mlp.experts.gate_up_proj' [3, 20, 6]")):
            save_file({n: x for n, x in whole.items() if lost not in n}, source)
            text = t.run("convert", source, os.path.join(t.scratch, "no.safetensors"), "--map", name, status=2).stderr.decode()
            need("'experts'" in text and says in text, text)
