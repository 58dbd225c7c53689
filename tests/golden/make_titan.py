"""Writes tests/golden/titan: small models under torchtitan's names, and what its state_dict_adapter makes of them for Hugging Face.

Usage: python tests/golden/make_titan.py    in an environment that has the versions below.

Made with torch 2.13.0, torchtitan 0.3.0. Its Triton kernels, which this does not run, are left out where Triton is not installed.

  NAME.safetensors       the state dict of torchtitan's own model
  NAME.hf.safetensors    to_hf of it by the adapter of its model (DeepSeekV3StateDictAdapter, …), whose from_hf goes back
  NAME.json              Hugging Face's settings, for the models of which the adapter uses some
"""
import json
import pathlib
import shutil
import sys
from unittest.mock import MagicMock

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent / "titan"


def deepseeks(*models):
    """(name, config of the model) for (name, q_lora_rank, dense layers, layers that predict further tokens)."""
    from torchtitan.models import deepseek_v3 as titan
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
    for name, rank, dense, further in models:
        layers = titan._build_dsv3_layers(
            n_layers=3, n_dense_layers=dense, dim=8, n_heads=2, q_lora_rank=rank, kv_lora_rank=4, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=4, mscale=0.7,
            dense_hidden_dim=12, moe_hidden_dim=6, num_experts=11, num_shared_experts=2, router_top_k=2, router_score_func="sigmoid", attn_backend="flex",
            moe_comm_backend="standard", non_blocking_capacity_factor=None, rope=ComplexRoPE.Config(dim=2, max_seq_len=16, theta=10000.0))
        yield name, titan.DeepSeekV3Model.Config(
            vocab_size=20, dim=8, tok_embeddings=Embedding.Config(num_embeddings=20, embedding_dim=8), norm=RMSNorm.Config(normalized_shape=8),
            lm_head=Linear.Config(in_features=8, out_features=20), layers=layers, mtp_layers=titan._build_mtp_layers(layers[-1], dim=8, num_mtp_layers=further))


def mixed_qwens():
    """Experts in some layers only, as mlp_only_layers and decoder_sparse_step of Hugging Face's settings have it."""
    from torchtitan.models import qwen3
    from torchtitan.models.common import CosSinRoPE, Embedding, Linear, RMSNorm
    common = {"n_layers": 3, "dim": 14, "n_heads": 4, "n_kv_heads": 2, "attn_backend": "flex", "head_dim": 6, "rope": CosSinRoPE.Config(dim=6, max_seq_len=16, theta=1e6)}
    dense = qwen3._build_qwen3_layers(hidden_dim=11, **common)
    moe = qwen3._build_qwen3_moe_layers(moe_hidden_dim=10, num_experts=3, top_k=2, moe_comm_backend="standard", **common)
    for name, layers, dense_ones in (("qwen3_moe-dense-inside", [moe[0], dense[1], moe[2]], [1]), ("qwen3_moe-dense-outside", [dense[0], moe[1], dense[2]], [0, 2])):
        config = qwen3.Qwen3Model.Config(vocab_size=37, dim=14, enable_weight_tying=False, tok_embeddings=Embedding.Config(num_embeddings=37, embedding_dim=14),
                                         norm=RMSNorm.Config(normalized_shape=14), lm_head=Linear.Config(in_features=14, out_features=37), layers=layers)
        settings = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "hidden_size": 14, "num_hidden_layers": 3, "vocab_size": 37,
                    "tie_word_embeddings": False, "num_experts": 3, "mlp_only_layers": dense_ones}
        yield name, config, qwen3.Qwen3StateDictAdapter, settings


# Name: heads, heads of keys, their size, hidden size, experts (0: none), and whether the output layer is the embedding
OTHERS = {"llama3": (5, 1, 6, 30, 0, False), "llama3-tied": (6, 3, 4, 24, 0, True), "qwen3": (5, 1, 6, 14, 0, False), "qwen3-tied": (3, 3, 4, 9, 0, True),
          "qwen3_moe": (4, 2, 6, 14, 3, False), "qwen3_moe-tied": (5, 1, 2, 9, 11, True)}


def others():
    """A vocabulary of an odd size; dim is not heads times their size, but in Llama, which cannot have others."""
    from torchtitan.models import llama3, qwen3
    from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear, RMSNorm
    for name, (heads, kv, size, dim, experts, tied) in OTHERS.items():
        common = {"n_layers": 3, "dim": dim, "n_heads": heads, "n_kv_heads": kv, "attn_backend": "flex"}
        if name.startswith("llama3"):
            family, kind = llama3, llama3.Llama3Model
            layers = llama3._build_llama3_layers(hidden_dim=11, rope=ComplexRoPE.Config(dim=size, max_seq_len=16, theta=5e5, scaling="llama"), **common)
        else:
            family, kind, rope = qwen3, qwen3.Qwen3Model, CosSinRoPE.Config(dim=size, max_seq_len=16, theta=1e6)
            layers = (qwen3._build_qwen3_moe_layers(head_dim=size, moe_hidden_dim=10, num_experts=experts, top_k=2, moe_comm_backend="standard", rope=rope, **common)
                      if experts else qwen3._build_qwen3_layers(head_dim=size, hidden_dim=11, rope=rope, **common))
        config = kind.Config(vocab_size=37, dim=dim, enable_weight_tying=tied, tok_embeddings=Embedding.Config(num_embeddings=37, embedding_dim=dim),
                             norm=RMSNorm.Config(normalized_shape=dim), lm_head=Linear.Config(in_features=dim, out_features=37), layers=layers)
        settings = {"num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": size, "hidden_size": dim, "num_hidden_layers": 3, "vocab_size": 37,
                    "tie_word_embeddings": tied} | ({"num_experts": experts} if experts else {})
        adapter = family.Llama3StateDictAdapter if family is llama3 else family.Qwen3StateDictAdapter
        yield name, config, adapter, settings


def state_of(config):
    with torch.device("meta"):
        model = config.build()
    state = {k: torch.randn(v.shape).to(v.dtype) for k, v in model.state_dict().items()}
    if getattr(config, "enable_weight_tying", False):
        state["lm_head.weight"] = state["tok_embeddings.weight"].clone()
    return state


def main():
    try:
        import triton  # noqa: F401
    except ImportError:
        sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = MagicMock()
    from torchtitan.models.deepseek_v3 import DeepSeekV3StateDictAdapter
    if HERE.exists():
        shutil.rmtree(HERE)
    HERE.mkdir()
    models = [(name, config, DeepSeekV3StateDictAdapter, None) for name, config in deepseeks(("deepseek_v3", 6, 1, 0), ("deepseek_v3-without-q-lora", 0, 1, 0))] + list(others())
    for further, dense in ((1, 2), (2, 0)):
        settings = {"num_hidden_layers": 3, "num_nextn_predict_layers": further, "n_routed_experts": 11, "first_k_dense_replace": dense, "tie_word_embeddings": False}
        models += [(name, config, DeepSeekV3StateDictAdapter, settings) for name, config in deepseeks((f"deepseek_v3-mtp{further}", 6 * dense, dense, further))]
    models += mixed_qwens()
    for seed, (name, config, adapter, settings) in enumerate(models):
        torch.manual_seed(seed)
        state = state_of(config)
        save_file(state, HERE / f"{name}.safetensors")
        made = adapter(config, None).to_hf(dict(state))
        save_file({k: v.contiguous() for k, v in made.items()}, HERE / f"{name}.hf.safetensors")
        if settings:
            (HERE / f"{name}.json").write_text(json.dumps(settings) + "\n")
            back = adapter(config, None).from_hf(dict(made))
            assert set(state) - set(back) <= {k for k in state if k.endswith("expert_bias_E")} and all(torch.equal(back[k], state[k]) for k in back)


if __name__ == "__main__":
    main()
