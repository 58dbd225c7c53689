"""Checkpoints of torchtitan 0.2, whose names 0.3 changed, and its Llama 4: as its state_dict_adapters make them (make_titan_02.py)."""
import json
import os
import re
import shutil

from safetensors.torch import load_file, save_file

from test_maps import need, same, write

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "titan_02")
MAPS = {"llama3": "llama3", "qwen3": "qwen3", "qwen3_moe": "qwen3", "deepseek_v3": "deepseek_v3", "gpt_oss": "gpt_oss", "llama4": "llama4", "llama4-dense": "llama4"}
# What 0.3 names otherwise.
RENAMED = [(r"^output\.", "lm_head."), (r"\.attention\.(w[qkv])\.", r".attention.qkv_linear.\1."), (r"\.moe\.experts\.(w[13])$", r".moe.routed_experts.inner_experts.\1_EFD"),
           (r"\.moe\.experts\.w2$", r".moe.routed_experts.inner_experts.w2_EDF"), (r"\.moe\.expert_bias$", r".moe.expert_bias_E"),
           (r"\.moe\.experts\.mlp1_(weight|bias)$", lambda m: f".moe.routed_experts.inner_experts.mlp1_{m[1]}_{'EGD' if m[1] == 'weight' else 'EG'}"),
           (r"\.moe\.experts\.mlp2_(weight|bias)$", lambda m: f".moe.routed_experts.inner_experts.mlp2_{m[1]}_{'EDF' if m[1] == 'weight' else 'ED'}")]


def model(t, name, side):
    directory = os.path.join(t.scratch, name + side)
    os.makedirs(directory, exist_ok=True)
    shutil.copy(os.path.join(GOLDEN, f"{name}{side}.safetensors"), os.path.join(directory, "model.safetensors"))
    shutil.copy(os.path.join(GOLDEN, f"{name}.json"), os.path.join(directory, "config.json"))
    return directory, load_file(os.path.join(directory, "model.safetensors"))


def name_of_03(name, kind):
    if kind == "llama4":  # 0.3 no longer has it
        return name
    for pattern, new in RENAMED:
        if kind != "deepseek_v3" or "qkv_linear" not in str(new):
            name = re.sub(pattern, new, name)
    return name


def test_models_of_torchtitan_02(t):
    out = os.path.join(t.scratch, "out.safetensors")
    for name, kind in MAPS.items():
        (titan, ours), (hf, theirs) = model(t, name, ""), model(t, name, ".hf")
        seen = {k for k in theirs if k.startswith(("vision_model.", "multi_modal_projector."))}
        biases = {k for k in ours if k.endswith("expert_bias")} if kind != "deepseek_v3" else set()
        need(bool(seen) == (kind == "llama4") and (not biases) == (name in ("llama3", "qwen3", "deepseek_v3")), f"{name}: {seen} {biases}")
        said = t.run("convert", titan, out, "--map", f"torchtitan-{kind}", "--overwrite").stderr.decode()
        same(load_file(out), {k: v for k, v in theirs.items() if k not in seen}, name)
        need(("leaves out" in said) == bool(biases), said)
        said = t.run("convert", hf, out, "--map", f"torchtitan-{kind}", "--overwrite", "--inverse").stderr.decode()
        same(load_file(out), {name_of_03(k, kind): v for k, v in ours.items() if k not in biases}, f"{name} --inverse")
        need((f"leaves out {len(seen)} entries, such as 'vision_model." in said) == bool(seen) and ("does not bring back" in said) == (kind in ("qwen3", "gpt_oss", "llama4")), said)


def test_what_llama4_lacks(t):
    out, options = os.path.join(t.scratch, "out.safetensors"), ["--map", "torchtitan-llama4", "--overwrite"]
    titan, ours = model(t, "llama4-dense", "")
    file, config = os.path.join(titan, "model.safetensors"), json.load(open(os.path.join(titan, "config.json")))
    for missing, says in (("layers.0.feed_forward.w3.weight", "feed_forward.w3.weight"), ("layers.1.moe.experts.w3", "moe.experts.w3"), ("layers.2.attention.wk.weight", "attention.wk.weight"),
                          ("output.weight", "output.weight"), ("layers.1.moe.shared_experts.w2.weight", "shared_experts.w2")):
        save_file({k: v for k, v in ours.items() if k != missing}, file)
        said = t.run("convert", titan, out, *options, status=2).stderr.decode()
        need(says in said, said)
    save_file(ours, file)
    for setting, value in (("num_attention_heads", 2), ("num_key_value_heads", 1), ("num_local_experts", 6), ("intermediate_size", 28), ("intermediate_size_mlp", 28),
                           ("num_hidden_layers", 4), ("hidden_size", 12), ("vocab_size", 38), ("head_dim", 4)):
        write(titan, "config.json", {**config, "text_config": {**config["text_config"], setting: value}})
        said = t.run("convert", titan, out, *options, status=2).stderr.decode()
        need("config.json" in said, f"{setting}: {said}")


def test_names_of_both_releases(t):
    """One tensor under two names is not decided by chance."""
    titan, ours = model(t, "llama3", "")
    save_file({**ours, "lm_head.weight": ours["output.weight"] + 1}, os.path.join(titan, "model.safetensors"))
    said = t.run("convert", titan, os.path.join(t.scratch, "out.safetensors"), "--map", "torchtitan-llama3", status=2).stderr.decode()
    need("lm_head.weight" in said and "output.weight" in said, said)
