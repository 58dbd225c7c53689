"""Makes tiny random models of types in transformers' table of renamed modules, with a LoRA adapter of all their modules, and PEFT's merge of both.

Usage: python transformers_adapters.py list              prints the types of the table
       python transformers_adapters.py make DIR TYPE…    writes DIR/TYPE/base, adapter and merged of each; prints a line per type: its name, a tab, and
                                                         the reason if no tiny model can be made

Numbers are small multiples of powers of two, so that the order of sums does not matter. No model computes anything, so the sizes of a
configuration need not make sense together as long as the model's class accepts them.
"""
import json
import re
import shutil
import sys

import peft
import torch
import transformers
from transformers import conversion_mapping
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

LAYERS, EXPERTS, WORDS, LARGEST = 4, 4, 64, 60_000_000
SIZE = re.compile(r"(hidden_sizes?|hidden_dim|intermediate_size|d_model|d_ff|d_kv|n_embd|n_inner|_dim|ffn_dim|_rank|head_size|channels|embed_size|num_filters|width|embed_dims?|dims|input_size|output_size)$")
NOT_SIZE = re.compile(r"num_channels|in_channels|patch|image_size|vocab|kernel|window|input_dim|num_mel|n_mels|feature_size|merge_size")
LAYER_COUNT = re.compile(r"(num_hidden_layers|num_layers|n_layers?|_layers|^layers|depth|num_blocks)$")
EXPERT_COUNT = re.compile(r"(n_routed_experts|num_experts|num_local_experts|moe_num_experts|n_experts|num_routed_experts)$")
LEFT_OUT = ("architectures", "transformers_version", "id2label", "label2id", "dtype", "torch_dtype", "_name_or_path", "out_features", "out_indices", "stage_names", "per_layer_config")
# Numbers that a configuration or its class checks against each other, and what has no default.
STATED = {
    "cosmos3_edge": {"text_config": {"head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}},
    "dory": {"num_hidden_layers": 8, "layer_types": ["sliding_attention", "mlp"] * 4, "n_input_layers": 2, "n_recurrent_layers": 4, "n_output_layers": 2},
    "kimi_k25": {"vision_config": {"hidden_size": 64, "num_attention_heads": 4}},
    "sapiens2": {"head_config": {"upsample_out_channels": [8], "upsample_kernel_sizes": [4], "conv_out_channels": [8], "conv_kernel_sizes": [1]}},
}
TASKS = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "MASKED_LM", "IMAGE_CLASSIFICATION", "OBJECT_DETECTION")


def smaller(name, value, by):
    """A number of a configuration, made small according to its name."""
    if LAYER_COUNT.search(name) and value > 1:
        return min(value, LAYERS)
    if EXPERT_COUNT.search(name) and value > 1:
        return EXPERTS
    if name in ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"):
        return min(value, 2)
    if name in ("n_group", "topk_group") or "first_k_dense" in name:
        return 1
    if "vocab" in name or name.startswith("max_"):
        return min(value, WORDS)
    if re.search(r"(token_id|token_index|_id|_idx)$", name):
        return value if value < WORDS - 4 else 7
    return max(value // by, 2) if SIZE.search(name) and not NOT_SIZE.search(name) and value >= by else value


def shrink(config, by):
    layers = next((config[k] for k in ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth") if isinstance(config.get(k), int)), 0)
    small = {}
    for name, value in config.items():
        if name in LEFT_OUT:
            continue
        if isinstance(value, dict) and ("model_type" in value or name.endswith("_config")):
            value = shrink(value, by)
        elif isinstance(value, list) and layers and len(value) == layers:
            kinds = list({str(v): v for v in value}.values())
            value = [kinds[min(i, len(kinds) - 1)] for i in range(LAYERS)]
        elif isinstance(value, int) and not isinstance(value, bool):
            value = smaller(name, value, by)
        elif isinstance(value, list) and all(type(v) is int for v in value):
            value = [smaller(name, v, by) if SIZE.search(name) else v for v in value]
        small[name] = value
    return small


def class_of(config):
    others = [n for n in vars(modeling_auto) if re.fullmatch(r"MODEL_FOR_\w+_MAPPING", n)]
    for name in [f"MODEL_FOR_{task}_MAPPING" for task in TASKS] + others + ["MODEL_MAPPING"]:
        classes = getattr(modeling_auto, name, {})
        if type(config) in classes:
            found = classes[type(config)]
            return found[0] if isinstance(found, (tuple, list)) else found
    module = __import__(type(config).__module__.replace("configuration_", "modeling_"), fromlist=["x"])
    return [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, transformers.PreTrainedModel) and c.config_class is type(config) and not c.__name__.endswith("PreTrainedModel")][-1]


def make_model(model_type, by):
    config = CONFIG_MAPPING[model_type]
    small = shrink(json.loads(json.dumps(config().to_dict(), default=str)), by)
    small.pop("model_type", None)
    for name, value in STATED.get(model_type, {}).items():
        small[name] = {**(small.get(name) or {}), **value} if isinstance(value, dict) else value
    config = config(**small)
    model_class = class_of(config)
    with torch.device("meta"):
        if sum(p.numel() for p in model_class(config).parameters()) > LARGEST:
            return None
    return model_class(config)


def fill(parameters, numbers=torch.Generator().manual_seed(1)):
    with torch.no_grad():
        for p in parameters:
            if p.is_floating_point():
                p.copy_((torch.randint(-8, 9, p.shape, generator=numbers) / 8).to(p.dtype))


def targets_of(model):
    """Everything that PEFT can adapt and merge. Tied embeddings have tests of their own."""
    kinds = {torch.nn.Linear, torch.nn.Embedding}
    output = getattr(model, "get_output_embeddings", lambda: None)()
    tied = output is not None and (getattr(model.config, "tie_word_embeddings", False) or model._tied_weights_keys)
    modules = [n for n, m in model.named_modules() if (type(m) in kinds or type(m) is torch.nn.Conv2d and m.groups == 1) and not (tied and (m is output or type(m) is torch.nn.Embedding))]
    experts = sorted({m[1] for n, _ in model.named_parameters() if (m := re.search(r"\.(experts\.(?:gate_up_proj|down_proj))$", n))})
    return {"target_modules": modules, **({"target_parameters": experts} if experts else {})}


def merge(model, directory):
    """Saves the model, an adapter of all that it has, and PEFT's merge. Returns why not, or an empty string."""
    fill(model.parameters())
    model.save_pretrained(f"{directory}/base")
    model, info = type(model).from_pretrained(f"{directory}/base", output_loading_info=True)
    if info["missing_keys"] or info["unexpected_keys"]:
        return "transformers does not read all that it writes"
    trained = peft.get_peft_model(model, peft.LoraConfig(r=2, lora_alpha=4, **targets_of(model)))
    fill(p for n, p in trained.named_parameters() if "lora_" in n)
    trained.save_pretrained(f"{directory}/adapter")
    trained.merge_and_unload().save_pretrained(f"{directory}/merged")
    return ""


def make(directory, model_type):
    """Takes the smallest model that its class and PEFT accept. Returns why there is none, or an empty string."""
    why = "it is too large"
    for by in (32, 8, 2, 1):
        torch.manual_seed(1)
        shutil.rmtree(directory, ignore_errors=True)
        try:
            model = make_model(model_type, by)
            if not model:
                break
            why = merge(model, directory)
            if not why:
                break
        except Exception as e:  # whatever a class, or PEFT, raises for sizes that it does not accept
            why = f"{type(e).__name__}: {e}"
    return why


def main():
    if sys.argv[1] == "list":
        print("\n".join(t for t in conversion_mapping._build_checkpoint_conversion_mapping() if t in CONFIG_MAPPING))
        return
    for model_type in sys.argv[3:]:
        why = make(f"{sys.argv[2]}/{model_type}", model_type)
        print(f"{model_type}\t{' '.join(why.split())[:200]}", flush=True)


if __name__ == "__main__":
    main()
