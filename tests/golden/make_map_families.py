"""Writes tests/golden/map_families: small models of the families with experts for which transformers converts names and layouts on load.

Usage: python tests/golden/make_map_families.py [FAMILY…]    in an environment that has the versions below.

Made with torch 2.13.0, transformers 5.23.0; bailing_hybrid, sarvam_mla and sarvam_moe with transformers 5.24.0.

  FAMILY.json   {config, stored: {name: [[dtype, shape, numbers]…]}, held: {name: [dtype, shape, first 12 digits of the SHA-256 of its bytes]}, kept}

FAMILY is the model_type. A name in `stored` is for several tensors: its # are the numbers of one of them, such as "1.0". `stored` are the names that save_pretrained writes, and `held` is the state dict after from_pretrained read them with
the values that `values` below gives; of `held` only what is not also in `stored`, alike in everything, is written, and how much is (`kept`). save_pretrained is checked to
write the model that was read again, bit for bit.
"""
import hashlib
import json
import pathlib
import re
import shutil
import sys
import tempfile
import zlib

import torch
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent / "map_families"
DTYPES = {torch.float32: "F32", torch.int64: "I64"}
# Of these settings a family takes those that it has.
SIZES = {"vocab_size": 11, "hidden_size": 12, "intermediate_size": 7, "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 3,
         "head_dim": 4, "max_position_embeddings": 64, "moe_intermediate_size": 5, "num_experts": 3, "num_local_experts": 3, "n_routed_experts": 3,
         "moe_num_experts": 3, "num_experts_per_tok": 2, "num_experts_per_token": 2, "moe_k": 2, "moe_topk": 2, "n_shared_experts": 1, "num_shared_experts": 1,
         "moe_num_shared_experts": 1, "shared_expert_intermediate_size": 6, "moe_shared_expert_intermediate_size": 6, "shared_intermediate_size": 6,
         "first_k_dense_replace": 1, "moe_layer_start_index": 1, "num_dense_layers": 1, "n_group": 1, "topk_group": 1, "q_lora_rank": 5, "kv_lora_rank": 4,
         "qk_rope_head_dim": 2, "qk_nope_head_dim": 4, "v_head_dim": 3, "index_n_heads": 2, "index_head_dim": 4, "index_topk": 2, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": 2, "num_nextn_predict_layers": 0, "linear_num_value_heads": 2, "linear_num_key_heads": 1, "linear_key_head_dim": 4,
         "linear_value_head_dim": 3, "linear_num_heads": 3, "linear_head_dim": 2, "mamba_d_state": 4, "mamba_d_conv": 2, "mamba_expand": 2, "mamba_n_heads": 4,
         "mamba_d_head": 6, "mamba_n_groups": 1, "mamba_num_heads": 4, "mamba_head_dim": 2, "mamba_dt_rank": 3, "ssm_state_size": 4, "n_groups": 2,
         "tie_word_embeddings": False, "layer_types": None, "mlp_layer_types": None}
FAMILIES = {
    "afmoe": {"tie_word_embeddings": True}, "axk1": {}, "axk2": {}, "bailing_hybrid": {"attention_bias": True, "layer_group_size": 2}, "beam": {"num_hidden_layers": 5}, "cohere2_moe": {"tie_word_embeddings": True},
    "deepseek_v2": {"q_lora_rank": None}, "deepseek_v3": {"tie_word_embeddings": True}, "deepseek_v32": {},
    "deepseek_v4": {"o_lora_rank": 2, "o_groups": 3, "num_key_value_heads": 1, "hc_mult": 2}, "dots1": {"tie_word_embeddings": True},
    "ernie4_5_moe": {"use_bias": True}, "exaone_moe": {"tie_word_embeddings": True}, "flex_olmo": {"num_key_value_heads": 1}, "flint": {"num_hidden_layers": 4},
    "glm4_moe": {"attention_bias": True, "use_qk_norm": True}, "glm4_moe_lite": {}, "glm_moe_dsa": {}, "granitemoe": {"tie_word_embeddings": True}, "granitemoehybrid": {},
    "granitemoeshared": {}, "hunyuan_v1_moe": {"num_experts": 1, "num_local_experts": 1, "moe_topk": 1}, "hy_v3": {}, "jamba": {"layer_types": ..., "layers_block_type": ..., "attn_layer_period": 2, "attn_layer_offset": 1, "num_hidden_layers": 4},
    "kimi_linear": {}, "kolibri1": {}, "laguna": {}, "lfm2_moe": {"tie_word_embeddings": True, "layer_types": ["conv", "full_attention", "conv"]}, "mellum": {},
    "mimo_v2_flash": {}, "minimax": {"num_key_value_heads": 1}, "minimax_m2": {"tie_word_embeddings": True}, "mixtral": {"tie_word_embeddings": True, "num_key_value_heads": 1},
    "nemotron_h": {"moe_latent_size": 6, "layers_block_type": ["moe", "linear_attention", "full_attention", "moe", "mlp"], "num_hidden_layers": ..., "layer_types": ...}, "olmoe": {"num_local_experts": ..., "num_experts": 12},
    "phimoe": {"num_key_value_heads": 1, "lm_head_bias": True}, "qwen2_moe": {"tie_word_embeddings": True, "mlp_only_layers": [1]}, "qwen3_5_moe_text": {}, "qwen3_moe": {"num_key_value_heads": 1},
    "qwen3_next": {"num_key_value_heads": 1, "mlp_only_layers": [0]}, "sarvam_mla": {}, "sarvam_moe": {"attention_bias": True, "num_key_value_heads": 1, "num_attention_heads": 5, "tie_word_embeddings": True}, "solar_open": {},
}


def values(name, dtype, shape):
    """Whole numbers that differ from name to name and from element to element, which float32 holds exactly."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 40503 + zlib.crc32(name.encode())) % 16777213).to(dtype).reshape(shape)


def config_of(family):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    kind = CONFIG_MAPPING[family]
    known = set(kind().to_dict()) | set(kind.attribute_map)
    settings = {**{k: v for k, v in SIZES.items() if k in known}, **FAMILIES[family]}
    return kind(**{k: v for k, v in settings.items() if v is not ...})


def held_from(directory, stored):
    """Replaces the tensors of the directory by `values`, and returns them, the model that transformers reads, and what it writes again."""
    import transformers as tf
    given = {k: values(k, v.dtype, v.shape) for k, v in stored.items()}
    save_file(given, directory / "model.safetensors", metadata={"format": "pt"})
    model = tf.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as again:
        model.save_pretrained(again)
        back = load_file(pathlib.Path(again) / "model.safetensors")
    return given, {k: v.contiguous() for k, v in model.state_dict().items()}, back


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def digest(tensor):
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()[:12]


def folded(tensors):
    """Tensors whose names differ only in numbers, as one line."""
    lines = {}
    for name, tensor in sorted(tensors.items()):
        numbers = re.findall(r"(?<=\.)\d+(?=\.|$)", name)
        line = lines.setdefault((re.sub(r"(?<=\.)\d+(?=\.|$)", "#", name), tensor.dtype, tuple(tensor.shape)), [])
        line.append(".".join(numbers))
    found = {}
    for (name, dtype, shape), numbers in lines.items():
        found.setdefault(name, []).append([DTYPES[dtype], list(shape), " ".join(numbers)])
    return found


def make(family):
    import transformers as tf
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        tf.AutoModelForCausalLM.from_config(config_of(family), dtype=torch.float32).float().save_pretrained(directory)
        config = json.loads((directory / "config.json").read_text())
        stored, held, back = held_from(directory, load_file(directory / "model.safetensors"))
    assert stored.keys() == back.keys() and all(same(stored[k], back[k]) for k in stored), (family, "is not written as it was read")
    lines = {"config": config, "stored": folded(stored),
             "held": {k: [DTYPES[v.dtype], list(v.shape), digest(v)] for k, v in sorted(held.items()) if k not in stored or not same(v, stored[k])},
             "kept": sum(k in stored and same(v, stored[k]) for k, v in held.items())}
    text = ",\n".join(f'"{k}": ' + ("{\n" + ",\n".join(f"{json.dumps(n)}: {json.dumps(x)}" for n, x in v.items()) + "\n}" if k in ("stored", "held") else json.dumps(v))
                      for k, v in lines.items())
    (HERE / f"{family}.json").write_text("{" + text + "}\n")


def main():
    if not sys.argv[1:]:
        shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir(exist_ok=True)
    for family in sys.argv[1:] or FAMILIES:
        make(family)


if __name__ == "__main__":
    main()
