"""Writes tests/golden/titan_02: small models under the names of torchtitan 0.2, and what its state_dict_adapter makes of them.

Usage: python tests/golden/make_titan_02.py    in an environment that has the versions below.

Made with torch 2.13.0, torchtitan 0.2.2, transformers 5.23.0. Its Triton kernels, which this does not run, are left out.

  NAME.safetensors       the state dict of torchtitan's own model
  NAME.hf.safetensors    what Hugging Face's model holds
  NAME.json              Hugging Face's settings

llama3, qwen3 and deepseek_v3 are what the adapters' to_hf returns. Two adapters are not the whole truth:

- llama4's leaves out the feed-forward of layers without experts. They are added here, and the two models must give the same logits.
- gpt_oss's gives experts the names of MXFP4 blocks; their numbers, dequantized, are what transformers holds transposed.
"""
import json
import pathlib
import re
import shutil
import sys
from unittest.mock import MagicMock

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent / "titan_02"
SETTINGS = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 16, "num_hidden_layers": 3, "vocab_size": 37, "tie_word_embeddings": False}
COMMON = {"dim": 16, "n_layers": 3, "n_heads": 4, "vocab_size": 37}


def random_state(model):
    """expert_bias is 0, since Hugging Face's Llama 4, Qwen and GPT-OSS have none; DeepSeek's is made random where it is used."""
    return {k: torch.zeros_like(v) if "expert_bias" in k else torch.randn(v.shape).to(v.dtype) * 0.3 + ("norm" in k) for k, v in model.state_dict().items()}


def llama3():
    from torchtitan.models.llama3.model import args, model, state_dict_adapter
    config = args.TransformerModelArgs(**COMMON, n_kv_heads=2, multiple_of=4)
    state = random_state(model.Transformer(config))
    return state, state_dict_adapter.Llama3StateDictAdapter(config, None).to_hf(dict(state)), {**SETTINGS, "intermediate_size": 44}


def qwen3(experts):
    from torchtitan.models.moe import MoEArgs
    from torchtitan.models.qwen3.model import args, model, state_dict_adapter
    config = args.Qwen3ModelArgs(**COMMON, n_kv_heads=2, head_dim=6, hidden_dim=11, moe_enabled=experts > 0, moe_inter_dim=10,
                                 moe_args=MoEArgs(num_experts=experts, num_shared_experts=0, use_grouped_mm=False))
    state = random_state(model.Qwen3Model(config))
    settings = {**SETTINGS, "head_dim": 6} | ({"num_experts": experts, "moe_intermediate_size": 10} if experts else {"intermediate_size": 11})
    return state, state_dict_adapter.Qwen3StateDictAdapter(config, None).to_hf(dict(state)), settings


def deepseek_v3():
    from torchtitan.models.deepseek_v3.model import args, model, state_dict_adapter
    from torchtitan.models.moe import MoEArgs
    config = args.DeepSeekV3ModelArgs(**COMMON, inter_dim=12, moe_inter_dim=6, n_dense_layers=1, q_lora_rank=6, kv_lora_rank=4, qk_nope_head_dim=4, qk_rope_head_dim=2,
                                      v_head_dim=4, moe_args=MoEArgs(num_experts=11, num_shared_experts=2, use_grouped_mm=False))
    config.moe_impl = "standard"
    state = random_state(model.DeepSeekV3Model(config))
    state = {k: torch.randn_like(v) if "expert_bias" in k else v for k, v in state.items()}
    settings = {**SETTINGS, "intermediate_size": 12, "moe_intermediate_size": 6, "n_shared_experts": 2, "n_routed_experts": 11, "q_lora_rank": 6, "kv_lora_rank": 4,
                "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4, "num_key_value_heads": 4}
    return state, state_dict_adapter.DeepSeekV3StateDictAdapter(config, None).to_hf(dict(state)), settings


def gpt_oss():
    from torchtitan.models.gpt_oss.model import args, model, state_dict_adapter
    from torchtitan.models.moe import MoEArgs
    config = args.GptOssModelArgs(**COMMON, n_kv_heads=2, head_dim=6, moe_inter_dim=10,
                                  moe_args=MoEArgs(num_experts=5, num_shared_experts=0, gate_bias=True, use_grouped_mm=False))
    state = random_state(model.GptOssModel(config))
    made = state_dict_adapter.GptOssStateDictAdapter(config, None).to_hf(dict(state))
    made = {k.removesuffix("_blocks"): v.transpose(-1, -2) if k.endswith("_blocks") else v for k, v in made.items()}
    return state, made, {**SETTINGS, "head_dim": 6, "intermediate_size": 10, "num_local_experts": 5}


def same_logits(model, state, made, settings, step):
    """Runs both models on the same tokens. Returns some tensors of Hugging Face's vision model, which torchtitan does not have."""
    from transformers import Llama4Config, Llama4ForConditionalGeneration
    text = {**settings["text_config"], "use_qk_norm": False, "attn_temperature_tuning": False, "max_position_embeddings": 64, "no_rope_layers": [1] * 3,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "interleave_moe_layer_step": step, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 28, "patch_size": 14,
              "vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16}
    other = Llama4ForConditionalGeneration(Llama4Config(text_config=text, vision_config=vision, attn_implementation="eager")).eval()
    lacks = other.load_state_dict(made, strict=False)
    assert not lacks.unexpected_keys and not [k for k in lacks.missing_keys if k.startswith("language_model.")]
    model.load_state_dict(state)
    tokens = torch.randint(3, 37, (2, 17))
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(tokens), other.language_model(input_ids=tokens).logits, rtol=1e-4, atol=1e-4)
    return {k: v for k, v in other.state_dict().items() if not k.startswith("language_model.") and v.numel() <= 256}


def llama4(step):
    from torchtitan.models.llama4.model import args, model, state_dict_adapter
    from torchtitan.models.moe import MoEArgs
    config = args.TransformerModelArgs(**{**COMMON, "dim": 8}, n_kv_heads=2, multiple_of=4, max_seq_len=64, interleave_moe_layer_step=step, auto_scale_hidden_dim=False,
                                       moe_args=MoEArgs(num_experts=5, num_shared_experts=1, top_k=1, use_grouped_mm=False))
    whole = model.Transformer(config)
    with torch.no_grad():
        whole.init_weights()
    state = random_state(whole)
    made = state_dict_adapter.Llama4StateDictAdapter(config, None).to_hf(dict(state))
    for k, v in state.items():
        dense = re.fullmatch(r"layers\.(\d+)\.feed_forward\.(w\d)\.weight", k)
        if dense:
            name = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}[dense[2]]
            made[f"language_model.model.layers.{dense[1]}.feed_forward.{name}.weight"] = v
    width = next(v.shape[0] for k, v in state.items() if k.endswith("shared_experts.w1.weight"))
    settings = {"tie_word_embeddings": False,
                "text_config": {**SETTINGS, "hidden_size": 8, "head_dim": 2, "intermediate_size": width, "intermediate_size_mlp": 24, "num_local_experts": 5}}
    vision = same_logits(whole, state, made, settings, step)
    return state, made | vision, settings


def main():
    sys.modules["torchtitan.models.moe.kernels"] = MagicMock()
    count = torch.histc
    torch.histc = lambda x, **options: count(x.float(), **options).long()  # of integers it needs CUDA
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    models = {"llama3": llama3, "qwen3": lambda: qwen3(0), "qwen3_moe": lambda: qwen3(3), "deepseek_v3": deepseek_v3, "gpt_oss": gpt_oss,
              "llama4": lambda: llama4(1), "llama4-dense": lambda: llama4(2)}
    for seed, (name, make) in enumerate(models.items()):
        torch.manual_seed(seed)
        state, made, settings = make()
        save_file({k: v.contiguous() for k, v in state.items()}, HERE / f"{name}.safetensors")
        save_file({k: v.contiguous() for k, v in made.items()}, HERE / f"{name}.hf.safetensors")
        (HERE / f"{name}.json").write_text(json.dumps(settings) + "\n")


if __name__ == "__main__":
    main()
