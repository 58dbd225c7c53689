"""Writes tests/golden/titan: small models under torchtitan's names, and what its state_dict_adapter makes of them for Hugging Face.

Usage: python tests/golden/make_titan.py    in an environment that has the versions below.

Made with torch 2.13.0, torchtitan 0.3.0. Its Triton kernels, which this does not run, are left out where Triton is not installed.

  NAME.safetensors       the state dict of torchtitan's own model
  NAME.hf.safetensors    DeepSeekV3StateDictAdapter.to_hf of it
"""
import pathlib
import shutil
import sys
from unittest.mock import MagicMock

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent / "titan"


def configs():
    from torchtitan.models import deepseek_v3 as titan
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
    for name, rank in (("deepseek_v3", 6), ("deepseek_v3-without-q-lora", 0)):
        layers = titan._build_dsv3_layers(
            n_layers=3, n_dense_layers=1, dim=8, n_heads=2, q_lora_rank=rank, kv_lora_rank=4, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=4, mscale=0.7,
            dense_hidden_dim=12, moe_hidden_dim=6, num_experts=11, num_shared_experts=2, router_top_k=2, router_score_func="sigmoid", attn_backend="flex",
            moe_comm_backend="standard", non_blocking_capacity_factor=None, rope=ComplexRoPE.Config(dim=2, max_seq_len=16, theta=10000.0))
        yield name, titan.DeepSeekV3Model.Config(
            vocab_size=20, dim=8, tok_embeddings=Embedding.Config(num_embeddings=20, embedding_dim=8), norm=RMSNorm.Config(normalized_shape=8),
            lm_head=Linear.Config(in_features=8, out_features=20), layers=layers, mtp_layers=[])


def main():
    try:
        import triton  # noqa: F401
    except ImportError:
        sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = MagicMock()
    from torchtitan.models.deepseek_v3 import DeepSeekV3StateDictAdapter
    if HERE.exists():
        shutil.rmtree(HERE)
    HERE.mkdir()
    for seed, (name, config) in enumerate(configs()):
        torch.manual_seed(seed)
        with torch.device("meta"):
            model = config.build()
        state = {k: torch.randn(v.shape).to(v.dtype) for k, v in model.state_dict().items()}
        save_file(state, HERE / f"{name}.safetensors")
        save_file({k: v.contiguous() for k, v in DeepSeekV3StateDictAdapter(config, None).to_hf(state).items()}, HERE / f"{name}.hf.safetensors")


if __name__ == "__main__":
    main()
