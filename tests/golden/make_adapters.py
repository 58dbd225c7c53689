"""Writes tests/golden/adapters: LoRA adapters and what PEFT merges them to. They are of models with tied embeddings, with a classifier that
the base may lack, and with fused experts; DoRA adapters; adapters with trained tokens; and adapters of models whose embeddings have other
names than those of Llama.

Usage: python tests/golden/make_adapters.py [BASE…]    in an environment that has the versions below; with BASE, writes only these bases again, and
their adapters

Made with torch 2.13.0, transformers 5.23.0, peft 0.21.2; qwen2_vl, gemma3, llava and mistral3 with transformers 5.24.0.

  base/NAME                  config.json and model.safetensors of a small model
  adapter/NAME               adapter_config.json and adapter_model.safetensors
  merged/NAME.safetensors    what merge_and_unload and save_pretrained make of it
  cases.json                 for each adapter its base, whether PEFT's result ties the embeddings, and whether it computes what the adapter does

All weights are small multiples of 1/4, so products and sums, and the sums of squares in DoRA's norms, are exact in float32 whatever the order
in which they are added. Everything else that DoRA computes (the root, the quotient and the product) is rounded once in float32.
"""
import json
import pathlib
import shutil
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent / "adapters"
SIZES = {"vocab_size": 24, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
         "max_position_embeddings": 16}
BERT = {"vocab_size": 24, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16,
        "type_vocab_size": 1, "num_labels": 3, "pad_token_id": 0}
LABELS = {"num_labels": 3, "pad_token_id": 0}
EXPERTS = {"vocab_size": 24, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 16}
NEOX = {k: v for k, v in SIZES.items() if k != "num_key_value_heads"}
SEEN = {"depth": 1, "embed_dim": 8, "hidden_size": 8, "num_heads": 2, "mlp_ratio": 2, "patch_size": 4}
ROPE = {"rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 1e4}
TEXT = {**SIZES, "head_dim": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGES = {"image_size": 4, "patch_size": 2, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 3}


def fill(parameters):
    with torch.no_grad():
        for p in parameters:
            p.copy_(torch.randint(-6, 7, p.shape).to(p.dtype) / 4)


def bases():
    import transformers as t
    return {
        "llama": (t.LlamaForCausalLM, t.LlamaConfig(**SIZES, tie_word_embeddings=True), torch.bfloat16),
        "qwen2": (t.Qwen2ForCausalLM, t.Qwen2Config(**SIZES, tie_word_embeddings=True), torch.float32),
        "gpt2": (t.GPT2LMHeadModel, t.GPT2Config(vocab_size=24, n_embd=8, n_layer=1, n_head=2, n_positions=16), torch.float32),
        "llama_classes": (t.LlamaForSequenceClassification, t.LlamaConfig(**SIZES, **LABELS, tie_word_embeddings=True), torch.bfloat16),
        "qwen2_tokens": (t.Qwen2ForTokenClassification, t.Qwen2Config(**SIZES, **LABELS), torch.bfloat16),
        "bert": (t.BertForSequenceClassification, t.BertConfig(**BERT), torch.float32),
        "roberta": (t.RobertaForSequenceClassification, t.RobertaConfig(**BERT), torch.float32),
        "llama_untied": (t.LlamaForCausalLM, t.LlamaConfig(**SIZES, **LABELS), torch.float16),
        "bert_words": (t.BertForPreTraining, t.BertConfig(**BERT), torch.float32),
        "roberta_words": (t.RobertaForMaskedLM, t.RobertaConfig(**{**BERT, "num_labels": 2}), torch.bfloat16),
        "mixtral": (t.MixtralForCausalLM, t.MixtralConfig(**EXPERTS, intermediate_size=16, num_local_experts=2, num_experts_per_tok=1), torch.bfloat16),
        "vit": (t.ViTForImageClassification, t.ViTConfig(**IMAGES), torch.float32),
        "gpt_oss": (t.GptOssForCausalLM, t.GptOssConfig(**EXPERTS, intermediate_size=8, num_local_experts=4, num_experts_per_tok=2, layer_types=["full_attention"]), torch.bfloat16),
        "llama4": (t.Llama4ForCausalLM, t.Llama4TextConfig(**EXPERTS, intermediate_size=12, intermediate_size_mlp=12, num_local_experts=3, interleave_moe_layer_step=1), torch.float32),
        "qwen3_moe": (t.Qwen3MoeForCausalLM, t.Qwen3MoeConfig(**EXPERTS, moe_intermediate_size=12, num_experts=3, num_experts_per_tok=2, decoder_sparse_step=1), torch.float32),
        "neox": (t.GPTNeoXForCausalLM, t.GPTNeoXConfig(**NEOX, tie_word_embeddings=True), torch.bfloat16),
        "mamba": (t.MambaForCausalLM, t.MambaConfig(vocab_size=24, hidden_size=8, num_hidden_layers=1, state_size=4), torch.float32),
        "t5": (t.T5ForConditionalGeneration, t.T5Config(vocab_size=24, d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2), torch.float32),
        **inner_bases(),
    }


def inner_bases():
    """Language models inside models that see, whose names transformers changes when it loads and saves them."""
    import transformers as t
    clip, siglip, pixtral = ({"model_type": name, **{k: v for k, v in IMAGES.items() if k != "num_labels"}} for name in ("clip_vision_model", "siglip_vision_model", "pixtral"))
    gemma = {"model_type": "gemma3_text", **TEXT, "tie_word_embeddings": True}
    return {
        "qwen2_vl": (t.Qwen2VLForConditionalGeneration, t.Qwen2VLConfig(text_config={**TEXT, "rope_parameters": ROPE}, vision_config=SEEN), torch.float32),
        "gemma3": (t.Gemma3ForConditionalGeneration, t.Gemma3Config(text_config=gemma, vision_config=siglip, mm_tokens_per_image=4), torch.bfloat16),
        "llava": (t.LlavaForConditionalGeneration, t.LlavaConfig(text_config={"model_type": "llama", **TEXT}, vision_config={**clip, "projection_dim": 8}), torch.float16),
        "mistral3": (t.Mistral3ForConditionalGeneration, t.Mistral3Config(text_config={"model_type": "mistral", **TEXT}, vision_config={**pixtral, "head_dim": 4}), torch.bfloat16),
    }


def cases():
    q, head, words = ["q_proj"], ["lm_head"], ["embed_tokens"]
    plain, root = {"r": 2, "lora_alpha": 3}, {"r": 4, "lora_alpha": 6, "use_rslora": True}
    patterns = {"r": 2, "lora_alpha": 3, "rank_pattern": {"lm_head": 3, "embed_tokens": 5}, "alpha_pattern": {"lm_head": 7}}
    ensure = {"ensure_weight_tying": True}
    # LoRA matrices of the output layer, of the embedding, and of both
    for base, more in (("llama", plain), ("qwen2", root)):
        yield f"{base}_head", base, {**more, "target_modules": q + head}
        yield f"{base}_words", base, {**more, "target_modules": q + words}
        yield f"{base}_both", base, {**more, "target_modules": q + head + words}
        yield f"{base}_ensured", base, {**more, **ensure, "target_modules": q + (head if base == "llama" else words)}
    yield "llama_patterns", "llama", {**patterns, "target_modules": q + head + words}
    yield "qwen2_regular", "qwen2", {**patterns, "target_modules": ".*(q_proj|lm_head)"}
    # whole modules
    for base in ("llama", "qwen2"):
        yield f"{base}_saved_head", base, {**plain, "target_modules": q, "modules_to_save": head}
        yield f"{base}_saved_words", base, {**plain, "target_modules": q, "modules_to_save": words}
    yield "llama_saved_both", "llama", {**plain, "target_modules": q, "modules_to_save": head + words}
    yield "llama_ensured_head", "llama", {**plain, **ensure, "target_modules": q, "modules_to_save": head}
    yield "qwen2_ensured_words", "qwen2", {**plain, **ensure, "target_modules": q, "modules_to_save": words}
    yield "gpt2_saved_words", "gpt2", {**plain, "target_modules": ["c_attn"], "modules_to_save": ["wte"]}
    yield "gpt2_head", "gpt2", {**plain, "target_modules": ["c_attn", "lm_head"]}
    # one of each
    yield "llama_head_saved_words", "llama", {**plain, "target_modules": q + head, "modules_to_save": words}
    yield "qwen2_words_saved_head", "qwen2", {**root, "target_modules": q + words, "modules_to_save": head}
    # classifiers, with biases
    yield "llama_classes_words", "llama_classes", {**plain, "target_modules": q, "modules_to_save": words + ["score"], "bias": "all"}
    for base, targets in (("qwen2_tokens", q), ("bert", ["query"]), ("roberta", ["query"])):
        yield f"{base}_all", base, {**plain, "target_modules": targets, "bias": "all"}
        yield f"{base}_lora_only", base, {**plain, "target_modules": targets, "bias": "lora_only"}
    yield "qwen2_tokens_keys", "qwen2_tokens", {**root, "target_modules": q, "modules_to_save": ["k_proj"], "bias": "all"}
    yield from dora_cases(plain, root)
    yield from other_cases(plain, root)
    yield from embedding_cases(plain)
    yield from inner_cases(plain)


def dora_cases(plain, root):
    plain, root = {**plain, "use_dora": True}, {**root, "use_dora": True}
    patterns = {"rank_pattern": {"down_proj": 5}, "alpha_pattern": {"self_attn.q_proj": 7}}
    yield "llama_untied_dora", "llama_untied", {**plain, **patterns, "target_modules": ["q_proj", "down_proj", "lm_head", "embed_tokens"]}
    yield "qwen2_dora_words", "qwen2", {**root, "target_modules": ["v_proj", "embed_tokens"]}
    yield "llama_dora_both", "llama", {**plain, "target_modules": ["q_proj", "lm_head", "embed_tokens"]}
    yield "llama_dora_head", "llama", {**root, "target_modules": ["q_proj", "lm_head"]}
    yield "qwen2_tokens_dora", "qwen2_tokens", {**root, "target_modules": ["q_proj", "up_proj"], "bias": "all"}
    yield "gpt2_dora", "gpt2", {**root, "target_modules": ["c_attn", "mlp.c_proj"], "bias": "lora_only", "fan_in_fan_out": True}


def other_cases(plain, root):
    q, fused = ["q_proj"], ["experts.gate_up_proj", "experts.down_proj"]
    # a classifier that the base does not have
    yield "llama_score", "llama", {**plain, "target_modules": q, "of": "LlamaForSequenceClassification"}
    yield "llama_untied_score", "llama_untied", {**plain, "target_modules": q, "of": "LlamaForSequenceClassification", "use_dora": True}
    yield "bert_words_classes", "bert_words", {**plain, "target_modules": ["query"], "of": "BertForSequenceClassification"}
    yield "roberta_words_classes", "roberta_words", {**plain, "target_modules": ["query"], "of": "RobertaForSequenceClassification"}
    yield "roberta_words_spans", "roberta_words", {**root, "target_modules": ["query"], "of": "RobertaForQuestionAnswering"}
    # rows of the embedding
    yield "llama_rows", "llama", {**plain, "target_modules": q, "trainable_token_indices": [20, 3, 7]}
    yield "llama_untied_rows", "llama_untied", {**plain, "target_modules": q, "trainable_token_indices": {"embed_tokens": [23, 0], "lm_head": [5]}}
    # parameters of experts
    yield "gpt_oss_experts", "gpt_oss", {**plain, "target_modules": q, "target_parameters": ["mlp." + f for f in fused]}
    yield "gpt_oss_down", "gpt_oss", {**plain, "target_modules": q, "target_parameters": ["0.mlp.experts.down_proj"]}
    yield "llama4_experts", "llama4", {**root, "target_modules": q, "target_parameters": fused, "rank_pattern": {"experts.down_proj": 1}}
    yield "qwen3_moe_experts", "qwen3_moe", {**root, "target_modules": q, "target_parameters": fused}
    yield "qwen3_moe_router", "qwen3_moe", {**plain, "target_modules": q, "target_parameters": ["gate.weight"]}
    yield "mixtral_experts", "mixtral", {**plain, "target_modules": q, "target_parameters": fused}
    # convolutions
    yield "vit_convolution", "vit", {**root, "target_modules": ["projection"], "modules_to_save": ["classifier"], "lora_bias": True}
    yield "vit_dora", "vit", {**plain, "use_dora": True, "target_modules": ["projection"], "modules_to_save": ["classifier"]}


def embedding_cases(plain):
    """Embeddings with other names. Of T5, PEFT replaces one that encoder and decoder do not read, so its result is not the adapter's."""
    for base, target, words in (("neox", "query_key_value", "embed_in"), ("mamba", "in_proj", "embeddings")):
        yield f"{base}_saved_words", base, {**plain, "target_modules": [target], "modules_to_save": [words]}
        yield f"{base}_words", base, {**plain, "target_modules": [target, words]}
        yield f"{base}_head", base, {**plain, "target_modules": [target, "lm_head"]}
        yield f"{base}_rows", base, {**plain, "target_modules": [target], "trainable_token_indices": {words: [20, 3, 7]}}
    yield "t5_saved_head", "t5", {**plain, "target_modules": ["q"], "modules_to_save": ["lm_head"]}
    yield "t5_saved_words", "t5", {**plain, "target_modules": ["q"], "modules_to_save": ["shared"]}
    yield "t5_rows", "t5", {**plain, "target_modules": ["q"], "trainable_token_indices": {"shared": [20, 3]}}
    yield "bert_words_saved", "bert_words", {**plain, "target_modules": ["query"], "modules_to_save": ["word_embeddings"], "of": "BertForMaskedLM"}


def inner_cases(plain):
    patterns = {"rank_pattern": {r"^model\.language_model\.layers\.\d+\..*(q|v)_proj": 3, "mlp.*": 1}, "alpha_pattern": {r"(model\.)?vision_tower\..*": 5, r"layers\.[0-2]\.mlp.+": 7}}
    yield "qwen2_vl_layers", "qwen2_vl", {**plain, "target_modules": ["o_proj", "k_proj", "qkv", "lm_head"], "modules_to_save": ["embed_tokens"]}
    yield "gemma3_head", "gemma3", {**plain, "target_modules": ["q_proj", "lm_head"]}
    yield "gemma3_saved_head", "gemma3", {**plain, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
    yield "llava_patterns", "llava", {**plain, **patterns, "target_modules": "all-linear"}
    yield "mistral3_rows", "mistral3", {**plain, **patterns, "target_modules": ["q_proj"], "trainable_token_indices": [20, 3, 7]}


def task(name, base):
    if base == "t5" or name == "bert_words_saved" or base in inner_bases():
        return "SEQ_2_SEQ_LM" if base == "t5" else None
    if name.endswith("_spans"):
        return "QUESTION_ANS"
    if name.endswith(("_classes", "_score")) or base in ("bert", "roberta", "llama_classes"):
        return "SEQ_CLS"
    return "TOKEN_CLS" if base.endswith("_tokens") else None if base == "vit" else "CAUSAL_LM"


def outputs(model, base):
    """What the model computes: scores, or those of the starts and ends of answers."""
    torch.manual_seed(3)
    given = {"pixel_values": torch.randn(1, 3, 4, 4, dtype=model.dtype)} if base == "vit" else {"input_ids": torch.arange(1, 9)[None]}
    given |= {"decoder_input_ids": torch.arange(2, 7)[None]} if base == "t5" else {}
    made = model(**given)
    return (made.logits if "logits" in made else torch.cat([made.start_logits, made.end_logits])).double()


def make_base(name, kind, config, dtype):
    torch.manual_seed(len(name))
    model = kind(config).to(dtype)
    fill(model.parameters())
    model.save_pretrained(HERE / "base" / name)
    (HERE / "base" / name / "generation_config.json").unlink(missing_ok=True)


def make_case(number, name, kind, base, options):
    """What tests need to know about the case; its files are written."""
    from peft import LoraConfig, PeftModel, get_peft_model
    import transformers
    at, here, of = HERE / "base" / base, HERE / "adapter" / name, options.pop("of", None)
    kind = getattr(transformers, of) if of else kind
    torch.manual_seed(100 + number)
    wrapped = get_peft_model(kind.from_pretrained(at, dtype="auto"), LoraConfig(task_type=task(name, base), **options))
    fill(p for p in wrapped.parameters() if p.requires_grad)
    wrapped.save_pretrained(here)
    for extra in here.glob("*"):
        if extra.name not in ("adapter_config.json", "adapter_model.safetensors"):
            extra.unlink()
    text = json.loads((here / "adapter_config.json").read_text())
    text.update(base_model_name_or_path="base", target_modules=text["target_modules"] if isinstance(text["target_modules"], str) else sorted(text["target_modules"]))
    (here / "adapter_config.json").write_text(json.dumps(text, indent=2) + "\n")
    adapted = PeftModel.from_pretrained(kind.from_pretrained(at, dtype="auto"), here).eval()
    before = outputs(adapted, base)
    merged = adapted.merge_and_unload()
    after = outputs(merged, base)
    with tempfile.TemporaryDirectory() as directory:
        merged.save_pretrained(directory)
        config = json.loads((pathlib.Path(directory) / "config.json").read_text())
        tensors = load_file(pathlib.Path(directory) / "model.safetensors")
    save_file(tensors, HERE / "merged" / f"{name}.safetensors")
    apart = float((before - after).abs().max() / before.abs().max())
    assert apart < 0.1 or apart > 0.3, (name, apart)
    return {"base": base, "tied": config.get("tie_word_embeddings"), "faithful": apart < 0.1}


def main():
    kinds, some = bases(), sys.argv[1:]
    made = json.loads((HERE / "cases.json").read_text()) if some else {}
    if not some:
        shutil.rmtree(HERE, ignore_errors=True)
    for part in ("base", "adapter", "merged"):
        (HERE / part).mkdir(parents=True, exist_ok=True)
    for name, (kind, config, dtype) in kinds.items():
        if not some or name in some:
            make_base(name, kind, config, dtype)
    for number, (name, base, options) in enumerate(cases()):
        if not some or base in some:
            made[name] = make_case(number, name, kinds[base][0], base, options)
            print(name, made[name])
    (HERE / "cases.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
