"""Writes tests/golden/renamed_modules: models whose modules transformers renames when it loads them, and what PEFT merges into them.

Usage: python tests/golden/make_renamed_modules.py [NAME…]    in an environment with torch 2.13.0, transformers 5.24.0 and peft 0.21.2

  NAME/base      as save_pretrained writes it
  NAME/adapter   of the model in memory, as PEFT writes it
  NAME/merged    merge_and_unload of both, saved again

All numbers are small multiples of powers of two, so that the order of sums does not matter.
"""
import pathlib
import shutil
import sys

import peft
import torch
import transformers
from transformers.models.step3p7.modeling_step3p7 import Step3p7VisionModel

HERE = pathlib.Path(__file__).resolve().parent / "renamed_modules"
SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
IMAGES = {"image_size": 8, "patch_size": 4}


def models():
    yield "vit", transformers.ViTForImageClassification(transformers.ViTConfig(**SIZES, **IMAGES, intermediate_size=12)), ["q_proj", "v_proj", "o_proj", "fc1"]
    yield "beit", transformers.BeitForImageClassification(transformers.BeitConfig(**SIZES, **IMAGES, intermediate_size=12)), ["k_proj", "fc2"]
    yield "dinov2", transformers.Dinov2Model(transformers.Dinov2Config(**SIZES, **IMAGES)), ["q_proj", "o_proj", "fc1"]
    yield "swin", transformers.SwinModel(transformers.SwinConfig(image_size=16, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=2)), ["q_proj", "o_proj", "fc1"]
    yield "segformer", transformers.SegformerModel(transformers.SegformerConfig(
        num_encoder_blocks=2, depths=[2, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], num_attention_heads=[1, 2], patch_sizes=[3, 3], strides=[2, 2], mlp_ratios=[2, 2],
        decoder_hidden_size=8)), ["q_proj", "fc1", "fc2"]
    words = {"vocab_size": 16, "num_key_value_heads": 1, "intermediate_size": 12, **SIZES}
    yield "exaone", transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("exaone", **words)), ["embed_tokens", "q_proj", "o_proj", "gate_proj", "down_proj"]
    yield "deepseek_v4", transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(
        "deepseek_v4", **{**words, "hidden_size": 16, "moe_intermediate_size": 8, "n_routed_experts": 2, "num_experts_per_tok": 1, "q_lora_rank": 8, "o_lora_rank": 8, "o_groups": 2,
                          "head_dim": 8, "qk_rope_head_dim": 4, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 2, "num_hidden_layers": 4})), {
        "target_modules": [
            "embed_tokens", "q_a_proj", "q_b_proj", "kv_proj", "o_b_proj", "shared_experts.gate_proj", "shared_experts.down_proj", "weights_proj", "compressor.gate_proj"],
        "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}
    experts = {"moe_intermediate_size": 8, "n_routed_experts": 2, "num_experts_per_tok": 1, "mlp_layer_types": ["dense", "sparse"]}
    latent = {"q_lora_rank": 8, "kv_lora_rank": 4, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4}
    yield "hy_v4", transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(
        "hy_v4", **{**words, "num_key_value_heads": 2, "pad_token_id": 0}, **experts, **latent, index_n_heads=2, index_head_dim=8, n_group=1, topk_group=1, indexer_types=["full", "shared"],
        layer_types=["indexed_attention"] * 2)), {
        "target_modules": ["embed_tokens", "q_a_proj", "o_proj", "gate_proj", "down_proj"], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}
    yield "dory", transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(
        "dory", **{**words, "num_hidden_layers": 8, "pad_token_id": 0}, head_dim=4, layer_types=["sliding_attention", "mlp"] * 4, n_input_layers=2, n_recurrent_layers=4, n_output_layers=2)), ["q_proj", "down_proj"]
    yield "mistral_large4", transformers.AutoModelForImageTextToText.from_config(transformers.AutoConfig.for_model(
        "mistral_large4", vision_config={"model_type": "pixtral", **SIZES, **IMAGES, "num_hidden_layers": 1, "intermediate_size": 12, "head_dim": 4},
        text_config={**words, "num_key_value_heads": 2, "moe_intermediate_size": 8, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "q_lora_rank": None,
                     "kv_lora_rank": 4, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4, "qk_head_dim": 8, "head_dim": 4, "layer_types": None, "mlp_layer_types": None,
                     "indexer_types": None})), (
        r".*language_model.*(q_proj|kv_a_proj_with_mqa|kv_b_proj|o_proj)|.*embed_tokens")
    # What follows is fused in the files: q, k and v, and gate and up, with biases that the adapter has whole; k and v of fewer rows than q; rows in another order.
    yield "gte", transformers.AutoModel.from_config(transformers.AutoConfig.for_model("gte", **words)), {"target_modules": ["q_proj", "v_proj", "gate_proj"], "bias": "all"}
    yield "dinov2_swiglu", transformers.Dinov2Model(transformers.Dinov2Config(**SIZES, **IMAGES, use_swiglu_ffn=True)), ["up_proj", "down_proj"]
    yield "sarvam_moe", transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(
        "sarvam_moe", **{**words, "pad_token_id": 0}, **{k: v for k, v in experts.items() if k != "mlp_layer_types"}, head_dim=4, first_k_dense_replace=2, n_group=1, topk_group=1)), ["v_proj", "o_proj"]
    yield "step3p5_vision", Step3p7VisionModel(transformers.AutoConfig.for_model("step3p5_vision", **SIZES, **IMAGES, intermediate_size=12)), ["q_proj", "k_proj", "fc1"]
    yield "hrm_text", transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(
        "hrm_text", vocab_size=16, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, head_dim=4)), ["gate_proj", "k_proj", "up_proj"]
    # Rows of a gated delta net, whose sizes are in config.json; rows of gate and up that alternate; what memory has as one, and the files do not.
    yield "lara_mini", transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(
        "lara_mini", vocab_size=16, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=4, linear_key_head_dim=4, linear_value_head_dim=6, linear_num_key_heads=2,
        linear_num_value_heads=4, moe_intermediate_size=8, shared_expert_intermediate_size=8, num_experts=2, num_experts_per_tok=1, eos_token_id=1,
        layer_types=["linear_attention", "full_attention"])), ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "q_proj"]
    yield "inkling2_text", transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(
        "inkling2_text", vocab_size=16, unpadded_vocab_size=16, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=4, swa_num_attention_heads=2,
        swa_num_key_value_heads=1, swa_head_dim=4, d_rel=2, rel_extent=4, moe_intermediate_size=6, n_routed_experts=2, num_experts_per_tok=1, eos_token_id=1, n_layers_per_attn_res_block=1,
        sliding_window_size=4)), {"target_modules": ["embed_tokens"], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}
    yield "minimax_m3_vl", transformers.AutoModelForImageTextToText.from_config(transformers.AutoConfig.for_model(
        "minimax_m3_vl", projector_hidden_size=8, text_config={
            **words, "head_dim": 4, "rotary_dim": 2, "dense_intermediate_size": 12, "shared_intermediate_size": 6, "num_local_experts": 2, "num_experts_per_tok": 1, "bos_token_id": 1,
            "eos_token_id": 2, "index_n_heads": 1, "index_head_dim": 4, "mlp_layer_types": ["dense", "sparse"]},
        vision_config={**SIZES, **IMAGES, "num_hidden_layers": 1, "intermediate_size": 12})), ["gate_up_proj", "down_proj", "o_proj"]
    vision = {**SIZES, **IMAGES, "num_hidden_layers": 1, "mlp_ratio": 1.5}
    yield "step3p7", transformers.AutoModelForImageTextToText.from_config(transformers.AutoConfig.for_model(
        "step3p7", vision_config=vision, text_config={
            **words, "head_dim": 4, "moe_intermediate_size": 6, "n_routed_experts": 2, "share_expert_dim": 6, "num_experts_per_tok": 1, "mlp_layer_types": ["dense", "sparse"]})), {
        "target_modules": ["o_proj"], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}


def fill(parameters, numbers):
    with torch.no_grad():
        for p in parameters:
            p.copy_(torch.randint(-8, 9, p.shape, generator=numbers).to(p.dtype) / 8)


def main():
    for name, model, targets in models():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        shutil.rmtree(HERE / name, ignore_errors=True)
        numbers = torch.Generator().manual_seed(1)
        base, adapter = HERE / name / "base", HERE / name / "adapter"
        fill(model.parameters(), numbers)
        model.save_pretrained(base)
        trained = peft.get_peft_model(type(model).from_pretrained(base), peft.LoraConfig(r=2, lora_alpha=4, **(targets if isinstance(targets, dict) else {"target_modules": targets})))
        fill((p for n, p in trained.named_parameters() if "lora_" in n), numbers)
        trained.save_pretrained(adapter)
        peft.PeftModel.from_pretrained(type(model).from_pretrained(base), adapter).merge_and_unload().save_pretrained(HERE / name / "merged")
        for extra in (adapter / "README.md", HERE / name / "merged" / "config.json"):
            extra.unlink()
        config = adapter / "adapter_config.json"
        config.write_text(config.read_text().replace(str(base), "base"))


if __name__ == "__main__":
    main()
