"""Sizes that config.json states are those of the tensors: real settings are accepted, those of another model of the family are refused, by
every built-in map that states sizes and its inverse. tests/golden/make_map_configs.py shows the settings of torchtitan's models true."""
import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file

from test_maps import need, write

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")
LLAMA = ["hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"]
QWEN_MOE = ["hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "moe_intermediate_size", "num_local_experts"]
MLA = ["hidden_size", "moe_intermediate_size", "num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "n_routed_experts"]
# Megatron-Core pads the vocabulary, so that its size does not show; nor do the heads of GPT-2 and GPT-NeoX, whose size follows from their number
FORMS = {"gpt2": ["n_embd", "n_inner"], "gpt_neox": ["hidden_size", "intermediate_size"], "llama": LLAMA, "qwen3": LLAMA, "mixtral": [*LLAMA, "num_local_experts"],
         "qwen2_moe": [LLAMA[0], *LLAMA[2:4], "moe_intermediate_size", "shared_expert_intermediate_size", "num_experts"], "qwen3_moe": [*QWEN_MOE, "intermediate_size"]}
MEGATRON = {"llama": "megatron-llama", "qwen3": "megatron-llama", "qwen2_moe": "megatron-qwen3_moe"}


def models():
    """(map, what it reads, what it makes, config.json, the settings that show in the shapes of tensors)."""
    titan, configs = os.path.join(GOLDEN, "titan"), os.path.join(GOLDEN, "map_configs")
    for name in sorted(n.removesuffix(".json") for n in os.listdir(configs)):
        family = name.split("-")[0].removesuffix("_moe") if name != "titan_gpt_oss" else "gpt_oss"
        files = [os.path.join(titan, f"{name}{f}.safetensors") for f in ("", ".hf")] if family != "gpt_oss" else [os.path.join(GOLDEN, name, f"{f}.safetensors") for f in ("titan", "hf")]
        lora = ["q_lora_rank"] if name in ("deepseek_v3", "deepseek_v3-mtp1") else []
        shows = {"deepseek_v3": [*MLA, *lora, "vocab_size", "intermediate_size", "n_shared_experts"], "gpt_oss": [*LLAMA, "num_local_experts", "vocab_size"], "llama3": [*LLAMA, "vocab_size"],
                 "qwen3": [*LLAMA, "vocab_size"] if "moe" not in name else [*QWEN_MOE, "vocab_size", *(["intermediate_size"] if "dense" in name else [])]}[family]
        yield f"torchtitan-{family}", *files, os.path.join(configs, f"{name}.json"), shows
    for name, shows in (("mixtral", [*LLAMA[:4], "num_local_experts"]), ("qwen3_moe", QWEN_MOE), ("deepseek_v3", [*MLA, "q_lora_rank"])):
        directory = os.path.join(GOLDEN, "maps", f"transformers-{name}")
        yield f"transformers-{name}", directory, f"{directory}.held.safetensors", os.path.join(directory, "config.json"), shows
    for name, shows in FORMS.items():
        directory = os.path.join(GOLDEN, "megatron_maps", name)
        yield MEGATRON.get(name, f"megatron-{name}"), os.path.join(directory, "stacked"), os.path.join(directory, "hf"), os.path.join(directory, "hf", "config.json"), shows
    titan_02 = os.path.join(GOLDEN, "titan_02", "llama4-dense")
    yield "torchtitan-llama4", f"{titan_02}.safetensors", f"{titan_02}.hf.safetensors", f"{titan_02}.json", [*LLAMA, "intermediate_size_mlp", "num_local_experts", "vocab_size"]
    for name in ("llama1", "llama3"):
        yield "meta-llama", os.path.join(GOLDEN, "meta", name), os.path.join(GOLDEN, "meta", f"{name}.safetensors"), os.path.join(GOLDEN, "meta", f"{name}.config.json"), [*LLAMA, "vocab_size"]


def place(source, directory):
    """The model without settings."""
    if os.path.isdir(source):
        shutil.copytree(source, directory)
        for name in ("config.json", "params.json"):
            if os.path.exists(os.path.join(directory, name)):
                os.remove(os.path.join(directory, name))
    else:
        os.makedirs(directory)
        shutil.copy(source, os.path.join(directory, "model.safetensors"))
    return directory


def refuse(t, name, directory, settings, *options):
    """Converts with these settings, which must fail, and returns what was said."""
    out = os.path.join(t.scratch, "out.safetensors")
    write(directory, "config.json", settings)
    said = t.run("convert", directory, out, "--map", name, *options, status=2).stderr.decode()
    need(not os.path.exists(out), "a refused conversion left a file")
    return said


def test_settings_of_another_model_are_refused(t):
    """Each of them doubled, and one more; the model's own are accepted."""
    seen, out = set(), os.path.join(t.scratch, "out.safetensors")
    for number, (name, source, made, config, shows) in enumerate(models()):
        seen.add(name)
        settings = json.load(open(config))
        settings |= settings.pop("text_config", {})
        for options, model in (([], source), (["--inverse"], made)):
            directory = place(model, os.path.join(t.scratch, f"{number}{''.join(options)}"))
            write(directory, "config.json", settings)
            t.run("convert", directory, out, "--map", name, *options)
            os.remove(out)
            for setting in shows:
                for other in (settings[setting] + 1, settings[setting] * 2) if settings.get(setting) else (3, 16):
                    said = refuse(t, name, directory, {**settings, setting: other}, *options)
                    stated = "in config.json (" in said and f"{setting} {other}" in said
                    # Steps that use the setting, and counts of experts, are found to be wrong first.
                    need(stated or any(w in said for w in ("rows for each", "heads is")) or f"{setting} of config.json is {other}" in said or "megatron" in name and " [" in said,
                         f"{name} {options} {config}: {setting} {settings.get(setting)} as {other}: {said}")
    listed = {n for n in t.run("map", "list").stdout.decode().split() if "dims" in json.loads(t.run("map", "show", n).stdout)}
    families = {f"transformers-{n.removesuffix('.json')}" for n in os.listdir(os.path.join(GOLDEN, "map_families"))}  # in test_map_families.py
    need(seen <= listed <= seen | families, f"no model for {listed - seen - families}")


def test_settings_that_are_not_stated_are_not_guessed(t):
    """Qwen 3 has heads of 128 where config.json does not say so; Llama and Mixtral divide the hidden size."""
    configs = os.path.join(GOLDEN, "map_configs")
    for name, map_name, file, options in (("qwen3", "torchtitan-qwen3", os.path.join(GOLDEN, "titan", "qwen3.safetensors"), []),
                                          ("titan_gpt_oss", "torchtitan-gpt_oss", os.path.join(GOLDEN, "titan_gpt_oss", "hf.safetensors"), ["--inverse"])):
        directory, settings = place(file, os.path.join(t.scratch, name)), json.load(open(os.path.join(configs, f"{name}.json")))
        for lost in ("head_dim", "hidden_size", "num_key_value_heads", "intermediate_size"):
            for stated in ({k: v for k, v in settings.items() if k != lost}, {**settings, lost: None}):
                write(directory, "config.json", stated)
                t.run("convert", directory, os.path.join(t.scratch, "out.safetensors"), "--map", map_name, "--overwrite", *options)
        os.remove(os.path.join(t.scratch, "out.safetensors"))
    directory = os.path.join(GOLDEN, "maps", "transformers-mixtral")
    settings = json.load(open(os.path.join(directory, "config.json")))
    need(settings["head_dim"] is None, "the golden states the size of heads")
    said = refuse(t, "transformers-mixtral", place(directory, os.path.join(t.scratch, "mixtral")), {**settings, "num_key_value_heads": 2})
    need("the map's 'groups' is 8 in config.json (num_key_value_heads 2, hidden_size 8, num_attention_heads 2), but 4 in" in said, said)


def test_tensors_of_one_size_are_compared_with_each_other(t):
    """Without config.json: a projection of another size than its neighbours' shows, in every torchtitan map."""
    titan = os.path.join(GOLDEN, "titan")
    for map_name, file, lost, dim in (("torchtitan-llama3", f"{titan}/llama3", "layers.1.attention.wo.weight", 0), ("torchtitan-qwen3", f"{titan}/qwen3", "layers.2.attention.wo.weight", 1),
                                      ("torchtitan-qwen3", f"{titan}/qwen3", "layers.0.attention.q_norm.weight", 0), ("torchtitan-deepseek_v3", f"{titan}/deepseek_v3", "layers.1.attention.wkv_b.weight", 1),
                                      ("torchtitan-deepseek_v3", f"{titan}/deepseek_v3", "layers.2.moe.shared_experts.w2.weight", 1),
                                      ("torchtitan-gpt_oss", f"{GOLDEN}/titan_gpt_oss/titan", "layers.1.attention.qkv_linear.wv.bias", 0)):
        source, out, tensors = os.path.join(t.scratch, "model.safetensors"), os.path.join(t.scratch, "out.safetensors"), load_file(f"{file}.safetensors")
        tensors[lost] = torch.cat([tensors[lost]] * 2, dim)
        save_file(tensors, source)
        options = ["--map", map_name] if map_name != "torchtitan-llama3" else ["--map", without_heads(t, map_name)]
        said = t.run("convert", source, out, *options, status=2).stderr.decode()
        need("the map's '" in said and f"dim {dim}" in said and lost.split(".")[1] in said and not os.path.exists(out), f"{lost}: {said}")


def without_heads(t, name):
    """The map without the steps that need config.json."""
    document = json.loads(t.run("map", "show", name).stdout)
    for rule in document["rules"]:
        rule.pop("do", None)
    return write(t.scratch, "map.json", document)


def test_shapes_of_tensors_that_can_only_be_renamed(t):
    """A torchao weight has a shape like any other tensor, and an object has none."""
    quantized = os.path.join(GOLDEN, "torchao", "model.pt")
    for shape, says in (([16, "columns"], None), ([16, 33], "dim 1 of 'a' [16, 32] must be 33"), ([16], "'a' [16, 32] must be a tensor of 1 dims")):
        document = write(t.scratch, "map.json", {"schema": "tessera.map/1", "unmatched": "keep", "rules": [{"from": ["first"], "to": ["a"], "shape": shape}]})
        said = t.run("convert", quantized, os.path.join(t.scratch, "out.pt"), "--map", document, "--dry-run", status=2 if says else 0).stderr.decode()
        need((says or "first -> a") in said, said)
    torch.save({"first": "text"}, os.path.join(t.scratch, "text.pt"))
    said = t.run("convert", os.path.join(t.scratch, "text.pt"), os.path.join(t.scratch, "out.pt"), "--map", document, "--dry-run", status=2).stderr.decode()
    need("must be a tensor of 1 dims" in said, said)
