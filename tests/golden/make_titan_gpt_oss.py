"""Writes tests/golden/titan_gpt_oss: a small GPT-OSS under torchtitan's names, and the same model as transformers loads it.

Usage: python tests/golden/make_titan_gpt_oss.py    in an environment that has the versions below.

Made with torch 2.13.0, torchtitan 0.3.0, transformers 5.23.0. Its Triton kernels, which this does not run, are left out where Triton is
not installed.

torchtitan's own adapter is not the truth here: it knows the experts by names that the model no longer has, and leaves them all out. So the
names and layouts below are shown true by what the models compute: both are run on the same tokens and must give the same logits. torchtitan
multiplies experts in bfloat16 by a kernel of CUDA; here they are multiplied in float32, one after the other, so that the logits can be compared.

  titan.safetensors   the state dict of torchtitan's own model
  hf.safetensors      the state dict of GptOssForCausalLM
"""
import pathlib
import shutil
import sys
from unittest.mock import MagicMock

import torch
from safetensors.torch import save_file
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

HERE = pathlib.Path(__file__).resolve().parent / "titan_gpt_oss"
DIM, HIDDEN, EXPERTS, HEADS, KV_HEADS, HEAD_DIM, WINDOW, VOCABULARY, LENGTH = 48, 24, 5, 4, 2, 16, 7, 40, 33
YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}


def titan_config(titan):
    from torchtitan.models.common import CosSinRoPE, Embedding, Linear, RMSNorm
    rope = CosSinRoPE.Config(dim=HEAD_DIM, max_seq_len=2048, theta=150000.0, scaling="yarn", rope_factor=32, original_seq_len=64, **YARN)
    layers = titan._build_gptoss_layers(dim=DIM, n_layers=2, hidden_dim=HIDDEN, num_experts=EXPERTS, top_k=2, load_balance_coeff=1e-3,
                                        attn_backend="flex", moe_comm_backend="standard", rope=rope)
    for i, layer in enumerate(layers):
        layer.attention = titan._make_gptoss_attn_config(
            dim=DIM, layer_id=i, attn_backend="flex", n_heads=HEADS, n_kv_heads=KV_HEADS, head_dim=HEAD_DIM,
            sliding_window_size=None if i % 2 else WINDOW, rope=rope)
    return titan.GptOssModel.Config(
        vocab_size=VOCABULARY, dim=DIM, tok_embeddings=Embedding.Config(num_embeddings=VOCABULARY, embedding_dim=DIM),
        norm=RMSNorm.Config(normalized_shape=DIM), lm_head=Linear.Config(in_features=DIM, out_features=VOCABULARY), layers=layers)


def one_after_the_other(self, A, B_t, offs):
    out, begin = A.new_zeros(A.shape[0], B_t.shape[-1]), 0
    for expert, end in enumerate(offs.tolist()):
        out[begin:end] = A[begin:end] @ B_t[expert]
        begin = end
    return out


def run_without_cuda():
    import torchtitan.models.common.attention as attention
    from torchtitan.models.gpt_oss.moe import GptOssGroupedExperts
    attention.FlexAttention._compiled_flex_attn = flex_attention
    attention._compiled_create_block_mask = create_block_mask
    GptOssGroupedExperts._grouped_mm = one_after_the_other
    torch.Tensor.bfloat16 = torch.Tensor.float


def random_state(model):
    state = {}
    for k, v in model.state_dict().items():
        if "expert_bias" in k:  # transformers' model has no such bias; with 0 it changes nothing
            state[k] = torch.zeros_like(v)
        else:
            state[k] = torch.randn_like(v) * (0.3 if v.dim() > 1 else 0.5) + ("norm" in k)
    return state


ENDS = {"attention_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
        "attention.sinks": "self_attn.sinks", "moe.router.gate.weight": "mlp.router.weight", "moe.router.gate.bias": "mlp.router.bias"}
ENDS |= {f"attention.{a}.{e}": f"self_attn.{b}_proj.{e}" for e in ("weight", "bias")
         for a, b in (("qkv_linear.wq", "q"), ("qkv_linear.wk", "k"), ("qkv_linear.wv", "v"), ("wo", "o"))}
ENDS |= {f"moe.routed_experts.inner_experts.{a}": f"mlp.experts.{b}"
         for a, b in (("mlp1_weight_EGD", "gate_up_proj"), ("mlp1_bias_EG", "gate_up_proj_bias"), ("mlp2_weight_EDF", "down_proj"), ("mlp2_bias_ED", "down_proj_bias"))}


def to_hf(state):
    out = {"model.embed_tokens.weight": state["tok_embeddings.weight"], "model.norm.weight": state["norm.weight"], "lm_head.weight": state["lm_head.weight"]}
    for k, v in state.items():
        if k.startswith("layers.") and "expert_bias" not in k:
            layer, end = k.removeprefix("layers.").split(".", 1)
            out[f"model.layers.{layer}.{ENDS[end]}"] = v.transpose(1, 2).contiguous() if v.dim() == 3 else v.clone()
    return out


def hf_model():
    from transformers import GptOssConfig, GptOssForCausalLM
    rope = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 64, "rope_theta": 150000.0, **YARN}
    return GptOssForCausalLM(GptOssConfig(
        vocab_size=VOCABULARY, hidden_size=DIM, intermediate_size=HIDDEN, num_hidden_layers=2, num_local_experts=EXPERTS, num_experts_per_tok=2,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, sliding_window=WINDOW, max_position_embeddings=2048,
        layer_types=["sliding_attention", "full_attention"], rms_norm_eps=1e-5, rope_parameters=rope, attn_implementation="eager"))


def logits(titan, state, hf, hf_state):
    titan.load_state_dict(state, strict=True)
    hf.load_state_dict(hf_state, strict=True)
    tokens, positions = torch.randint(0, VOCABULARY, (2, LENGTH)), torch.arange(LENGTH).repeat(2, 1)
    with torch.no_grad():
        return titan(tokens, attention_masks=titan.get_attention_masks(positions), positions=positions), hf(tokens).logits


def main():
    try:
        import triton  # noqa: F401
    except ImportError:
        sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = MagicMock()
    import torchtitan.models.gpt_oss as titan
    torch.manual_seed(41)
    model, hf = titan_config(titan).build().eval(), hf_model().eval()
    run_without_cuda()
    state = random_state(model)
    ours, theirs = logits(model, state, hf, to_hf(state))
    assert (ours - theirs).abs().max() < 1e-4 * theirs.abs().max(), "the models do not compute the same"
    wrong = to_hf(state)
    wrong["model.layers.1.mlp.experts.down_proj"] = wrong["model.layers.1.mlp.experts.down_proj"].flip(0)
    ours, theirs = logits(model, state, hf, wrong)
    assert (ours - theirs).abs().max() > 0.1, "the logits do not depend on the experts"
    if HERE.exists():
        shutil.rmtree(HERE)
    HERE.mkdir()
    for i in range(2):  # dropped, whatever it is
        state[f"layers.{i}.moe.expert_bias_E"] = torch.randn(EXPERTS)
    save_file(state, HERE / "titan.safetensors")
    save_file(to_hf(state), HERE / "hf.safetensors")


if __name__ == "__main__":
    main()
