"""Writes tests/golden/megatron_maps: small models of Megatron-Core in the forms in which it saves them, and the same models as transformers
loads them.

Usage: python tests/golden/make_megatron_maps.py [NAME…]    in an environment that has the versions below.

Made with torch 2.13.0, megatron-core 0.16.1, transformers 5.23.0, without CUDA. The kernels of grouped experts are written in torch here.

The names and layouts are shown true by what the models compute: both are run on the same tokens and must give the same logits. The other
forms are loaded from the first one by Megatron-Core's own loader, run again, and saved.

  NAME/FORM               dist_checkpointing.save of the model's sharded_state_dict, and config.json
  NAME/hf                 model.safetensors and config.json of the Hugging Face model; padded_vocab_size is Megatron's own
"""
import functools
import json
import os
import pathlib
import shutil
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from safetensors.torch import save_file

from make_megatron_llama import PADDED, VOCABULARY, run_without_cuda

HERE = pathlib.Path(__file__).resolve().parent / "megatron_maps"
NUMBERED, SINGLE = {"non_homogeneous_layers": True}, {"singleton_local_shards": True}
# Form: tensor-parallel ranks, expert-parallel ranks, whether experts are grouped, metadata of the sharded state dict
FORMS = {"stacked": (1, 1, False, {}), "numbered": (1, 1, False, NUMBERED), "single": (1, 1, False, SINGLE), "tensor": (2, 1, False, {}), "experts": (1, 2, True, {}),
         "grouped": (1, 1, True, SINGLE), "meshed": (2, 2, True, {})}
LLAMA = {"activation_func": F.silu, "gated_linear_unit": True, "normalization": "RMSNorm", "add_bias_linear": False, "layernorm_epsilon": 1e-6}
MOE = {**LLAMA, "num_moe_experts": 4, "moe_router_topk": 2, "moe_router_load_balancing_type": "none", "moe_token_dispatcher_type": "allgather", "moe_ffn_hidden_size": 6}
# Name: settings of TransformerConfig, those of GPTModel, Hugging Face's, forms
MODELS = {
    "llama": ({**LLAMA, "num_layers": 2, "hidden_size": 12, "num_attention_heads": 6, "num_query_groups": 2, "kv_channels": 4, "ffn_hidden_size": 10}, {},
              ("LlamaForCausalLM", "LlamaConfig", {"rms_norm_eps": 1e-6, "head_dim": 4}), ("stacked", "numbered", "single", "tensor")),
    "qwen3": ({**LLAMA, "num_layers": 2, "hidden_size": 10, "num_attention_heads": 4, "num_query_groups": 2, "kv_channels": 4, "ffn_hidden_size": 14, "qk_layernorm": True},
              {"share_embeddings_and_output_weights": True}, ("Qwen3ForCausalLM", "Qwen3Config", {"rms_norm_eps": 1e-6, "head_dim": 4}), ("stacked",)),
    "mixtral": ({**MOE, "num_layers": 2, "hidden_size": 12, "num_attention_heads": 4, "num_query_groups": 2, "kv_channels": 4, "ffn_hidden_size": 6}, {},
                ("MixtralForCausalLM", "MixtralConfig", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "rms_norm_eps": 1e-6, "head_dim": 4, "num_local_experts": 4, "num_experts_per_tok": 2}),
                ("stacked", "numbered", "experts", "grouped", "meshed")),
    "qwen3_moe": ({**MOE, "num_layers": 3, "hidden_size": 12, "num_attention_heads": 6, "num_query_groups": 2, "kv_channels": 4, "ffn_hidden_size": 10, "qk_layernorm": True,
                   "moe_layer_freq": [0, 1, 1]}, {},
                  ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {"rms_norm_eps": 1e-6, "head_dim": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6,
                                                             "mlp_only_layers": [0], "norm_topk_prob": True}), ("stacked", "single", "experts")),
    "qwen2_moe": ({**MOE, "num_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "num_query_groups": 2, "kv_channels": 4, "ffn_hidden_size": 6, "add_qkv_bias": True,
                   "moe_router_pre_softmax": True, "moe_shared_expert_intermediate_size": 8, "moe_shared_expert_gate": True}, {},
                  ("Qwen2MoeForCausalLM", "Qwen2MoeConfig", {"rms_norm_eps": 1e-6, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6,
                                                             "shared_expert_intermediate_size": 8, "norm_topk_prob": False}), ("stacked",)),
    "gpt2": ({"num_layers": 2, "hidden_size": 12, "num_attention_heads": 3, "ffn_hidden_size": 20, "activation_func": functools.partial(F.gelu, approximate="tanh"),
              "layernorm_epsilon": 1e-5}, {"position_embedding_type": "learned_absolute", "share_embeddings_and_output_weights": True},
             ("GPT2LMHeadModel", "GPT2Config", {"n_inner": 20}), ("stacked",)),
    "gpt_neox": ({"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "ffn_hidden_size": 20, "activation_func": F.gelu, "layernorm_epsilon": 1e-5},
                 {"rotary_percent": 0.5}, ("GPTNeoXForCausalLM", "GPTNeoXConfig", {"use_parallel_residual": False, "rotary_pct": 0.5, "hidden_act": "gelu"}),
                 ("stacked", "numbered", "tensor")),
}


def group_without_kernels():
    import types
    import megatron.core.transformer.moe.experts as experts
    import megatron.core.transformer.moe.moe_utils as utils
    utils.te_general_gemm = None  # not defined without Transformer Engine

    def gmm(a, b, batch_sizes, trans_b=False):
        parts = a.split(batch_sizes.tolist())
        return torch.cat([x @ (w.T if trans_b else w) for x, w in zip(parts, b)])

    experts.gg = types.SimpleNamespace(assert_grouped_gemm_is_available=lambda: None, ops=types.SimpleNamespace(gmm=gmm))


def megatron_model(name, form):
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    settings, more, _, _ = MODELS[name]
    tensor, experts, grouped, _ = FORMS[form]
    config = TransformerConfig(
        **settings, moe_grouped_gemm=grouped, tensor_model_parallel_size=tensor, expert_model_parallel_size=experts,
        use_cpu_initialization=True, hidden_dropout=0, attention_dropout=0, bias_activation_fusion=False, masked_softmax_fusion=False, persist_layer_norm=False,
        apply_rope_fusion=False, bias_dropout_fusion=False)
    if isinstance(config.moe_layer_freq, list):
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=config.normalization)
    else:
        spec = get_gpt_layer_local_spec(config.num_moe_experts, grouped, config.qk_layernorm, normalization=config.normalization)
    more = {"position_embedding_type": "rope", "share_embeddings_and_output_weights": False, **more}
    model = GPTModel(config=config, transformer_layer_spec=spec, vocab_size=PADDED, max_sequence_length=32, rotary_base=10000, parallel_output=False, **more).eval()
    for module in model.modules():
        if hasattr(module, "config"):
            module.config.bf16 = grouped  # which grouped experts ask for; the numbers stay float32
    return model


def hf_model(name):
    import transformers as tf
    settings, more, (kind, config, own), _ = MODELS[name]
    common = {"vocab_size": VOCABULARY, "hidden_size": settings["hidden_size"], "num_hidden_layers": settings["num_layers"], "num_attention_heads": settings["num_attention_heads"],
              "max_position_embeddings": 32, "tie_word_embeddings": more.get("share_embeddings_and_output_weights", False)}
    if kind != "GPT2LMHeadModel":
        common["intermediate_size"] = settings["ffn_hidden_size"]
    if "num_query_groups" in settings:
        common["num_key_value_heads"] = settings["num_query_groups"]
    return getattr(tf, kind)(getattr(tf, config)(**common, **own)).eval()


# ---- to Hugging Face's names, as they are stored ----


def heads_of(x, groups, size):
    """Of every group its queries, then its key and its value."""
    each = x.reshape(groups, -1, size, *x.shape[1:])
    return [rows.reshape(-1, *x.shape[1:]) for rows in (each[:, :-2], each[:, -2:-1], each[:, -1:])]


def llama_layer(name, key, x, settings):
    """Megatron's name below a layer → Hugging Face's names."""
    experts = {"mixtral": ("block_sparse_moe.experts.{}.w{}.weight", ("1", "3"), "2")}.get(name, ("mlp.experts.{}.{}_proj.weight", ("gate", "up"), "down"))
    plain = {"self_attention.linear_proj.weight": "self_attn.o_proj.weight", "mlp.linear_fc2.weight": "mlp.down_proj.weight", "input_layernorm.weight": "input_layernorm.weight",
             "pre_mlp_layernorm.weight": "post_attention_layernorm.weight", "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
             "self_attention.k_layernorm.weight": "self_attn.k_norm.weight", "mlp.router.weight": ("block_sparse_moe" if name == "mixtral" else "mlp") + ".gate.weight",
             "mlp.shared_experts.linear_fc2.weight": "mlp.shared_expert.down_proj.weight", "mlp.shared_experts.gate_weight": "mlp.shared_expert_gate.weight"}
    if key in plain:
        return {plain[key]: x}
    if "linear_qkv" in key:
        return {f"self_attn.{n}_proj.{key.rsplit('.', 1)[1]}": rows for n, rows in zip("qkv", heads_of(x, settings["num_query_groups"], settings["kv_channels"]))}
    if key in ("mlp.linear_fc1.weight", "mlp.shared_experts.linear_fc1.weight"):
        module = "mlp.shared_expert" if "shared" in key else "mlp"
        return {f"{module}.{n}_proj.weight": half for n, half in zip(("gate", "up"), x.chunk(2))}
    number, part = key.removeprefix("mlp.experts.local_experts.").split(".")[:2]
    if part == "linear_fc2":
        return {experts[0].format(number, experts[2]): x}
    return {experts[0].format(number, n): half for n, half in zip(experts[1], x.chunk(2))}


def gpt2_layer(name, key, x, settings):
    module, kind = key.rsplit(".", 1)
    names = {"input_layernorm": "ln_1", "pre_mlp_layernorm": "ln_2", "self_attention.linear_qkv": "attn.c_attn", "self_attention.linear_proj": "attn.c_proj",
             "mlp.linear_fc1": "mlp.c_fc", "mlp.linear_fc2": "mlp.c_proj"}
    if "linear_qkv" in key:
        heads = settings["num_attention_heads"]
        x = torch.cat(heads_of(x, heads, settings["hidden_size"] // heads))
    return {f"{names[module]}.{kind}": x.T if "layernorm" not in key and kind == "weight" else x}


def neox_layer(name, key, x, settings):
    names = {"input_layernorm": "input_layernorm", "pre_mlp_layernorm": "post_attention_layernorm", "self_attention.linear_qkv": "attention.query_key_value",
             "self_attention.linear_proj": "attention.dense", "mlp.linear_fc1": "mlp.dense_h_to_4h", "mlp.linear_fc2": "mlp.dense_4h_to_h"}
    module, kind = key.rsplit(".", 1)
    return {f"{names[module]}.{kind}": x}


def to_hf(name, state):
    settings = MODELS[name][0]
    layers, ends, each = {"gpt2": ("transformer.h", ("transformer.wte", "transformer.wpe", "transformer.ln_f", "lm_head"), gpt2_layer),
                          "gpt_neox": ("gpt_neox.layers", ("gpt_neox.embed_in", None, "gpt_neox.final_layer_norm", "embed_out"), neox_layer)}.get(
        name, ("model.layers", ("model.embed_tokens", None, "model.norm", "lm_head"), llama_layer))
    names, out = dict(zip(("embedding.word_embeddings", "embedding.position_embeddings", "decoder.final_layernorm", "output_layer"), ends)), {}
    for key, x in state.items():
        if key.startswith("decoder.layers."):
            number, end = key.split(".", 3)[2:]
            out.update({f"{layers}.{number}.{k}": v for k, v in each(name, end, x, settings).items()})
            continue
        module, kind = key.rsplit(".", 1)
        out[f"{names[module]}.{kind}"] = x[:VOCABULARY] if "word" in key or "output" in key else x
    return {k: v.contiguous().clone() for k, v in out.items()}


# ---- the runs ----


def logits(model):
    torch.manual_seed(9)
    tokens = torch.randint(0, VOCABULARY, (2, 16))
    places, mask = torch.arange(16).expand(2, -1), torch.triu(torch.ones(1, 1, 16, 16, dtype=torch.bool), 1)
    with torch.no_grad():
        return tokens, model(tokens, places, mask)[..., :VOCABULARY]


def store(name, form, model, config):
    from megatron.core import dist_checkpointing
    directory = HERE / name / form
    if dist.get_rank() == 0:
        directory.mkdir(parents=True)
    dist.barrier()
    os.chdir(HERE / name)  # .metadata holds the path as it is given
    state = {"checkpoint_version": 3.0, "model": model.sharded_state_dict(metadata=dict(FORMS[form][3]))}
    dist_checkpointing.save(state, form)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.copy(config, directory)


def first_form(name, form):
    torch.manual_seed(len(name))
    model, other, hf = megatron_model(name, form), hf_model(name), HERE / name / "hf"
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * 0.3 + ("norm" in key and "weight" in key))
    made = to_hf(name, {k: v for k, v in model.state_dict().items() if isinstance(v, torch.Tensor)})
    hf.mkdir(parents=True)
    save_file(made, hf / "model.safetensors", {"format": "pt"})
    (hf / "config.json").write_text(json.dumps({**json.loads(other.config.to_json_string()), "padded_vocab_size": PADDED}, indent=1) + "\n")
    loaded, said = type(other).from_pretrained(hf, output_loading_info=True)
    assert not said["missing_keys"] and not said["unexpected_keys"] and not said["mismatched_keys"], said
    loaded.config._experts_implementation = "eager"  # others need larger matrices
    tokens, ours = logits(model)
    with torch.no_grad():
        theirs = loaded.eval()(tokens).logits
    assert theirs.std() > 0.1
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    torch.save(ours, HERE / name / "logits.pt")
    store(name, form, model, hf / "config.json")


def other_form(name, form, first):
    from megatron.core import dist_checkpointing
    model = megatron_model(name, form)
    for p in model.parameters():
        p.data.zero_()
    plain = {**FORMS[form][3], "singleton_local_shards": False}
    if form == "numbered" or "moe_layer_freq" not in MODELS[name][0]:
        plain["non_homogeneous_layers"] = False
    os.chdir(HERE / name)
    model.load_state_dict(dist_checkpointing.load({"model": model.sharded_state_dict(metadata=plain)}, first)["model"])
    torch.testing.assert_close(logits(model)[1], torch.load(HERE / name / "logits.pt"), rtol=1e-5, atol=1e-5)
    store(name, form, model, HERE / name / "hf" / "config.json")


def run(rank, name, form, address):
    run_without_cuda()
    group_without_kernels()
    tensor, experts = FORMS[form][:2]
    dist.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=tensor * experts)
    from megatron.core import parallel_state
    parallel_state.initialize_model_parallel(tensor, 1, expert_model_parallel_size=experts, create_gloo_process_groups=False)
    first = MODELS[name][3][0]
    first_form(name, form) if form == first else other_form(name, form, first)
    dist.barrier()
    dist.destroy_process_group()


def main():
    for name in sys.argv[1:] or MODELS:
        shutil.rmtree(HERE / name, ignore_errors=True)
        for form in MODELS[name][3]:
            print(name, form, flush=True)
            with tempfile.TemporaryDirectory() as scratch:
                torch.multiprocessing.spawn(run, (name, form, f"{scratch}/store"), FORMS[form][0] * FORMS[form][1])
        (HERE / name / "logits.pt").unlink()


if __name__ == "__main__":
    main()
