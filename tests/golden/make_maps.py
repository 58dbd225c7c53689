"""Writes tests/golden/maps: small models as transformers stores them and as it holds them in memory.

Usage: python tests/golden/make_maps.py    in an environment that has the versions below.

Made with torch 2.13.0, transformers 5.23.0.

  NAME/model.safetensors, NAME/config.json   what save_pretrained wrote
  NAME.held.safetensors                      the model's state dict after from_pretrained
"""
import pathlib
import shutil
import tempfile

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent / "maps"
SMALL = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
         "max_position_embeddings": 16, "tie_word_embeddings": False}


def configs():
    import transformers as tf
    yield "transformers-mixtral", tf.MixtralConfig(**SMALL, num_local_experts=3, num_experts_per_tok=2)
    yield "transformers-qwen3_moe", tf.Qwen3MoeConfig(**SMALL, head_dim=4, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=6,
                                                      decoder_sparse_step=1, mlp_only_layers=[0])
    yield "transformers-deepseek_v3", tf.DeepseekV3Config(**{**SMALL, "num_key_value_heads": 2}, n_routed_experts=4, num_experts_per_tok=2,
                                                          moe_intermediate_size=6, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1,
                                                          kv_lora_rank=4, q_lora_rank=6, qk_rope_head_dim=2, qk_nope_head_dim=4, v_head_dim=4)


def main():
    import transformers as tf
    if HERE.exists():
        shutil.rmtree(HERE)
    for name, config in configs():
        torch.manual_seed(len(name))
        model = tf.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for tensor in model.state_dict().values():
                if tensor.is_floating_point():
                    tensor.copy_(torch.randn_like(tensor))
        (HERE / name).mkdir(parents=True)
        with tempfile.TemporaryDirectory() as directory:
            model.save_pretrained(directory)
            for file in ("model.safetensors", "config.json"):
                shutil.copy(pathlib.Path(directory) / file, HERE / name)
            held = tf.AutoModelForCausalLM.from_pretrained(directory, dtype="auto").state_dict()
        save_file({k: v.contiguous() for k, v in held.items()}, HERE / f"{name}.held.safetensors")


if __name__ == "__main__":
    main()
