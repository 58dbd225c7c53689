"""Writes tests/golden/map_configs: the config.json that transformers saves for the models of tests/golden/titan and titan_gpt_oss.

Usage: python tests/golden/make_map_configs.py    in an environment that has transformers 5.23

Made with torch 2.13.0, transformers 5.23.0. Each is checked: the model that transformers makes from it saves tensors of the names and shapes
that NAME.hf.safetensors has.
"""
import json
import pathlib
import shutil
import tempfile

import torch
import transformers
from safetensors import safe_open

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "map_configs"


def deepseek(q_lora, dense, further):
    return transformers.DeepseekV3Config(
        vocab_size=20, hidden_size=8, intermediate_size=12, moe_intermediate_size=6, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2,
        n_routed_experts=11, n_shared_experts=2, num_experts_per_tok=2, q_lora_rank=q_lora, kv_lora_rank=4, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=4,
        first_k_dense_replace=dense, n_group=1, topk_group=1, num_nextn_predict_layers=further, tie_word_embeddings=False)


def other(config, heads, kv, size, dim, tied, **more):
    return config(vocab_size=37, hidden_size=dim, num_hidden_layers=3, num_attention_heads=heads, num_key_value_heads=kv, head_dim=size, intermediate_size=11,
                  tie_word_embeddings=tied, **more)


def configs():
    """(file of the model, config), with the sizes that make_titan.py and make_titan_gpt_oss.py give."""
    from transformers import GptOssConfig, LlamaConfig, Qwen3Config, Qwen3MoeConfig
    for name, *sizes in (("deepseek_v3", 6, 1, 0), ("deepseek_v3-without-q-lora", None, 1, 0), ("deepseek_v3-mtp1", 12, 2, 1)):
        yield f"titan/{name}", deepseek(*sizes)
    yield "titan/llama3", other(LlamaConfig, 5, 1, 6, 30, False)
    yield "titan/llama3-tied", other(LlamaConfig, 6, 3, 4, 24, True)
    yield "titan/qwen3", other(Qwen3Config, 5, 1, 6, 14, False)
    yield "titan/qwen3-tied", other(Qwen3Config, 3, 3, 4, 9, True)
    yield "titan/qwen3_moe", other(Qwen3MoeConfig, 4, 2, 6, 14, False, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=10)
    yield "titan/qwen3_moe-dense-inside", other(Qwen3MoeConfig, 4, 2, 6, 14, False, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=10, mlp_only_layers=[1])
    yield "titan_gpt_oss/", GptOssConfig(
        vocab_size=40, hidden_size=48, intermediate_size=24, num_hidden_layers=2, num_local_experts=5, num_experts_per_tok=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, layer_types=["sliding_attention", "full_attention"])


def shapes(file):
    with safe_open(file, "pt") as f:
        return {k: f.get_slice(k).get_shape() for k in f.keys()}


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    for name, config in configs():
        with tempfile.TemporaryDirectory() as directory:
            transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(directory)
            saved, text = shapes(pathlib.Path(directory) / "model.safetensors"), (pathlib.Path(directory) / "config.json").read_text()
        golden = shapes(HERE / (f"{name}.hf.safetensors" if name[-1] != "/" else f"{name}hf.safetensors"))
        without = {k: v for k, v in golden.items() if not k.startswith(f"model.layers.{config.num_hidden_layers}.") and (k != "lm_head.weight" or k in saved)}
        assert saved == without, (name, {k: (saved.get(k), without.get(k)) for k in saved.keys() | without.keys() if saved.get(k) != without.get(k)})
        stated = json.loads(text)
        (OUT / f"{name.replace('titan/', '').rstrip('/')}.json").write_text(json.dumps(stated) + "\n")


if __name__ == "__main__":
    main()
