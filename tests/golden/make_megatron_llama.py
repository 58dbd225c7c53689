"""Writes tests/golden/megatron_llama: small GPT models of Megatron-Core as it saves them, and the same models as transformers loads them.

Usage: python tests/golden/make_megatron_llama.py    in an environment that has the versions below.

Made with torch 2.13.0, megatron-core 0.16.1, transformers 5.23.0, without CUDA.

The names and layouts are shown true by what the models compute: both are run on the same tokens and must give the same logits.

  NAME/megatron           dist_checkpointing.save of the model's sharded_state_dict, and config.json
  NAME/hf                 model.safetensors and config.json of LlamaForCausalLM or Qwen2ForCausalLM; padded_vocab_size is Megatron's own
"""
import contextlib
import json
import os
import pathlib
import shutil

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent / "megatron_llama"
VOCABULARY, PADDED, LENGTH = 37, 40, 13
# Name: layers, hidden size, heads, groups, size of a head, intermediate size, bias of q, k and v, tied
MODELS = {"llama": (3, 24, 6, 2, 6, 20, False, False), "qwen2": (2, 20, 5, 1, 4, 14, True, True), "wide": (1, 24, 4, 4, 6, 18, False, False)}
ENDS = {"linear_proj.weight": "self_attn.o_proj.weight", "linear_fc2.weight": "mlp.down_proj.weight", "input_layernorm.weight": "input_layernorm.weight",
        "pre_mlp_layernorm.weight": "post_attention_layernorm.weight"}


def run_without_cuda():
    import megatron.core.tensor_parallel.random as random
    torch.cuda.current_device = lambda *_: "cpu"
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
    random.CudaRNGStatesTracker.fork = lambda self, name=None: contextlib.nullcontext()


def megatron_model(layers, hidden, heads, groups, size, intermediate, bias, tied):
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    config = TransformerConfig(
        num_layers=layers, hidden_size=hidden, num_attention_heads=heads, num_query_groups=groups, kv_channels=size, ffn_hidden_size=intermediate,
        use_cpu_initialization=True, add_bias_linear=False, add_qkv_bias=bias, gated_linear_unit=True, activation_func=F.silu, normalization="RMSNorm",
        layernorm_epsilon=1e-6, hidden_dropout=0, attention_dropout=0, bias_activation_fusion=False, masked_softmax_fusion=False, persist_layer_norm=False,
        apply_rope_fusion=False, bias_dropout_fusion=False)
    return GPTModel(config=config, transformer_layer_spec=get_gpt_layer_local_spec(normalization="RMSNorm"), vocab_size=PADDED, max_sequence_length=32,
                    position_embedding_type="rope", rotary_base=10000, share_embeddings_and_output_weights=tied, parallel_output=False).eval()


def to_hf(state, heads, groups, size):
    out = {"model.embed_tokens.weight": state["embedding.word_embeddings.weight"][:VOCABULARY], "model.norm.weight": state["decoder.final_layernorm.weight"]}
    if "output_layer.weight" in state:
        out["lm_head.weight"] = state["output_layer.weight"][:VOCABULARY]
    for key, x in state.items():
        if not key.startswith("decoder.layers."):
            continue
        number, end = key.split(".")[2], key.split(".", 3)[3]
        layer = f"model.layers.{number}."
        if "linear_qkv" in end:  # of every group its heads, then its key and its value
            part, each = end.rsplit(".", 1)[1], x.reshape(groups, heads // groups + 2, size, *x.shape[1:])
            for name, rows in (("q", each[:, :-2]), ("k", each[:, -2:-1]), ("v", each[:, -1:])):
                out[f"{layer}self_attn.{name}_proj.{part}"] = rows.reshape(-1, *x.shape[1:])
        elif "linear_fc1" in end:
            out[layer + "mlp.gate_proj.weight"], out[layer + "mlp.up_proj.weight"] = x.chunk(2)
        else:
            out[layer + next(b for a, b in ENDS.items() if end.endswith(a))] = x
    return {k: v.contiguous().clone() for k, v in out.items()}


def hf_model(layers, hidden, heads, groups, size, intermediate, bias, tied):
    import transformers as tf
    common = {"vocab_size": VOCABULARY, "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": heads,
              "num_key_value_heads": groups, "rms_norm_eps": 1e-6, "max_position_embeddings": 32, "tie_word_embeddings": tied}
    if bias:
        return tf.Qwen2ForCausalLM(tf.Qwen2Config(**common)).eval()
    return tf.LlamaForCausalLM(tf.LlamaConfig(**common, head_dim=size)).eval()


def check_logits(model, other):
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH))
    places, mask = torch.arange(LENGTH).expand(2, -1), torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)
    with torch.no_grad():
        ours, theirs = model(tokens, places, mask)[..., :VOCABULARY], other(tokens).logits
    assert theirs.std() > 0.1
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def main():
    run_without_cuda()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    from megatron.core import dist_checkpointing, parallel_state
    parallel_state.initialize_model_parallel(1, 1)
    if HERE.exists():
        shutil.rmtree(HERE)
    for seed, (name, sizes) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        model, other, hf = megatron_model(*sizes), hf_model(*sizes), HERE / name / "hf"
        with torch.no_grad():
            for key, p in model.named_parameters():
                p.copy_(torch.randn_like(p) * 0.3 + ("norm" in key))
        state = {k: v for k, v in model.state_dict().items() if isinstance(v, torch.Tensor)}
        made = to_hf(state, *sizes[2:5])
        missing, unexpected = other.load_state_dict(made, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
        other.tie_weights()
        check_logits(model, other)
        hf.mkdir(parents=True)
        save_file(made, hf / "model.safetensors")
        (hf / "config.json").write_text(json.dumps({**json.loads(other.config.to_json_string()), "padded_vocab_size": PADDED}, indent=1) + "\n")
        there = HERE / name / "megatron"
        there.mkdir()
        os.chdir(hf.parent)  # .metadata holds the path as it is given
        dist_checkpointing.save({"checkpoint_version": 3.0, "model": model.sharded_state_dict()}, there.name)
        shutil.copy(hf / "config.json", there)


if __name__ == "__main__":
    main()
