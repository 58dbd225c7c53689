"""Writes tests/golden/merging: small models, what mergekit makes of them, adapters of PEFT and what its merge_and_unload makes.

Usage: python tests/golden/make_merging.py    in an environment that has the versions below.

Made with torch 2.13.0, transformers 5.23.0, mergekit 0.1.5, peft 0.21.2.

  a b c           three Llama models of one shape (bfloat16, and float32 in a32 b32)
  merges.json     for each merge the options of `tessera merge` and the file that mergekit wrote
  lora/NAME       adapter, base and merged: base.safetensors, merged.safetensors, adapter/
"""
import json
import pathlib
import shutil
import tempfile

import torch
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent / "merging"


def model(seed, dtype):
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
                         num_key_value_heads=1, tie_word_embeddings=False)
    made = LlamaForCausalLM(config).to(dtype)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return made


def merges(directory):
    import yaml
    from mergekit.config import MergeConfiguration
    from mergekit.merge import MergeOptions, run_merge
    paths = {}
    for name, seed, dtype in (("a", 1, torch.bfloat16), ("b", 2, torch.bfloat16), ("c", 3, torch.bfloat16), ("a32", 4, torch.float32), ("b32", 5, torch.float32)):
        paths[name] = directory / name
        model(seed, dtype).save_pretrained(paths[name])
        shutil.copy(paths[name] / "model.safetensors", HERE / f"{name}.safetensors")
    cases = []

    def case(name, config, inputs, options):
        text = yaml.safe_load(json.dumps({**config, "tokenizer_source": None}))
        text.pop("tokenizer_source")
        out = directory / name
        run_merge(MergeConfiguration.model_validate(text), str(out), MergeOptions(copy_tokenizer=False, lazy_unpickle=False))
        got = {}
        for file in sorted(out.glob("*.safetensors")):
            got.update(load_file(file))
        save_file(got, HERE / f"{name}.safetensors")
        cases.append({"merged": f"{name}.safetensors", "inputs": inputs, "options": options})

    def models(names, weights=None):
        return [{"model": str(paths[n]), **({"parameters": {"weight": w}} if weights else {})} for n, w in zip(names, weights or names)]

    case("linear", {"merge_method": "linear", "models": models("abc", [0.7, -0.2, 1.3]), "dtype": "bfloat16"}, ["a", "b", "c"],
         ["--method", "linear", "--weight", "0.7", "--weight", "-0.2", "--weight", "1.3"])
    case("linear_sum", {"merge_method": "linear", "models": models("ab", [0.7, 0.7]), "parameters": {"normalize": False}, "dtype": "bfloat16"}, ["a", "b"],
         ["--method", "linear", "--weight", "0.7", "--weight", "0.7", "--no-normalize"])
    case("slerp", {"merge_method": "slerp", "models": models("ab"), "base_model": str(paths["a"]), "parameters": {"t": 0.3}, "dtype": "bfloat16"}, ["a", "b"],
         ["--method", "slerp", "--t", "0.3"])
    case("slerp32", {"merge_method": "slerp", "models": models(["a32", "b32"]), "base_model": str(paths["a32"]), "parameters": {"t": 0.8}, "dtype": "float32"},
         ["a32", "b32"], ["--method", "slerp", "--t", "0.8"])
    case("task", {"merge_method": "task_arithmetic", "models": models("bc", [0.6, 0.9]), "base_model": str(paths["a"]), "dtype": "float32", "out_dtype": "bfloat16"},
         ["b", "c"], ["--method", "task-arithmetic", "--base", "a", "--weight", "0.6", "--weight", "0.9"])
    case("linear32", {"merge_method": "linear", "models": models(["a32", "b32"], [-0.295, 0.535]), "dtype": "float32"}, ["a32", "b32"],
         ["--method", "linear", "--weight", "-0.295", "--weight", "0.535"])
    # inputs of several dtypes
    case("mixed", {"merge_method": "linear", "models": models(["a", "b32"], [0.4, 1.7]), "dtype": "float32", "out_dtype": "bfloat16"}, ["a", "b32"],
         ["--method", "linear", "--weight", "0.4", "--weight", "1.7", "--dtype", "bfloat16"])
    case("mixed_slerp", {"merge_method": "slerp", "models": models(["a32", "b"]), "base_model": str(paths["a32"]), "parameters": {"t": 0.6}, "dtype": "float32"},
         ["a32", "b"], ["--method", "slerp", "--t", "0.6", "--dtype", "float32"])
    case("mixed_task", {"merge_method": "task_arithmetic", "models": models(["a32", "c"], [0.6, -0.3]), "base_model": str(paths["a"]), "dtype": "float32"},
         ["a32", "c"], ["--method", "task-arithmetic", "--base", "a", "--weight", "0.6", "--weight", "-0.3", "--dtype", "float32"])
    (HERE / "merges.json").write_text(json.dumps(cases, indent=1) + "\n")


def adapters(directory):
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel
    gpt2 = GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=8, tie_word_embeddings=False)
    cases = {
        "plain": (lambda: model(6, torch.bfloat16), {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "v_proj", "down_proj"]}),
        "rslora": (lambda: model(7, torch.float32), {"r": 4, "lora_alpha": 6, "use_rslora": True, "target_modules": "all-linear"}),
        "patterns": (lambda: model(8, torch.float32), {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "k_proj", "up_proj"],
                                                       "rank_pattern": {"q_proj": 5}, "alpha_pattern": {"layers.0.mlp.up_proj": 7}}),
        "saved": (lambda: model(9, torch.bfloat16), {"r": 2, "lora_alpha": 3, "target_modules": ["o_proj", "embed_tokens"], "modules_to_save": ["lm_head", "norm"]}),
        "conv1d": (lambda: GPT2LMHeadModel(gpt2), {"r": 2, "lora_alpha": 3, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "lora_bias": True}),
        "dora": (lambda: model(11, torch.float32), {"r": 3, "lora_alpha": 4, "use_dora": True, "target_modules": ["q_proj", "down_proj"]}),
        "half": (lambda: model(10, torch.float16), {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj"]}),
    }
    for name, (make, options) in cases.items():
        here, work = HERE / "lora" / name, directory / name
        here.mkdir(parents=True)
        torch.manual_seed(len(name))
        make().save_pretrained(work / "base")
        reload = type(make()).from_pretrained
        wrapped = get_peft_model(reload(work / "base", dtype="auto"), LoraConfig(**options))
        with torch.no_grad():
            for key, p in wrapped.named_parameters():
                if p.requires_grad:
                    p.copy_(torch.randn_like(p) * 0.2 + (p if "magnitude" in key else 0))
        if name == "half":
            wrapped.half()
        wrapped.save_pretrained(here / "adapter")
        merged = PeftModel.from_pretrained(reload(work / "base", dtype="auto"), here / "adapter").merge_and_unload()
        shutil.copy(work / "base" / "model.safetensors", here / "base.safetensors")
        merged.save_pretrained(work / "merged")
        shutil.copy(work / "merged" / "model.safetensors", here / "merged.safetensors")
        clean(here / "adapter")
    ambiguous()


def clean(adapter):
    """Without the card, and without the path of the base on this machine."""
    for extra in adapter.glob("*"):
        if extra.name not in ("adapter_config.json", "adapter_model.safetensors"):
            extra.unlink()
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "base"}, indent=2) + "\n")


def ambiguous():
    """An adapter whose files do not say what PEFT does with it, to be refused by name. What it does is checked here."""
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel
    config = GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=8, tie_word_embeddings=False)
    here, square, load = HERE / "lora" / "square", "transformer.h.0.attn.c_proj", GPT2LMHeadModel.from_pretrained
    torch.manual_seed(6)
    here.mkdir(parents=True)
    GPT2LMHeadModel(config).save_pretrained(here / "base")
    for extra in (here / "base").glob("generation_config.json"):
        extra.unlink()
    wrapped = get_peft_model(load(here / "base"), LoraConfig(r=2, target_modules=["c_proj", "lm_head"], task_type="CAUSAL_LM"))
    with torch.no_grad():
        for key, p in wrapped.named_parameters():
            if p.requires_grad:
                p.copy_(torch.randn_like(p) * 0.2)
    wrapped.save_pretrained(here / "adapter")
    clean(here / "adapter")
    base, adapter = load_file(here / "base" / "model.safetensors"), load_file(here / "adapter" / "adapter_model.safetensors")
    merged = PeftModel.from_pretrained(load(here / "base"), here / "adapter").merge_and_unload().state_dict()
    a, b = (adapter[f"base_model.model.{square}.lora_{x}.weight"] for x in "AB")
    # a Conv1D, although fan_in_fan_out was saved as what holds for lm_head
    assert not json.loads((here / "adapter" / "adapter_config.json").read_text())["fan_in_fan_out"] and a.shape[1] == b.shape[0]
    torch.testing.assert_close(merged[f"{square}.weight"] - base[f"{square}.weight"], (b @ a).T * 8 / 2)


def main():
    if HERE.exists():
        shutil.rmtree(HERE)
    HERE.mkdir()
    with tempfile.TemporaryDirectory() as directory:
        merges(pathlib.Path(directory))
        adapters(pathlib.Path(directory))


if __name__ == "__main__":
    main()
