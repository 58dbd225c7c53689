"""Writes tests/golden/renamed_modules: models whose modules transformers renames when it loads them, and what PEFT merges into them.

Usage: python tests/golden/make_renamed_modules.py    in an environment with torch 2.13.0, transformers 5.24.0 and peft 0.21.2

  NAME/base      as save_pretrained writes it
  NAME/adapter   of the model in memory, as PEFT writes it
  NAME/merged    merge_and_unload of both, saved again

All numbers are small multiples of powers of two, so that the order of sums does not matter.
"""
import pathlib
import shutil

import peft
import torch
import transformers

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


def fill(parameters, numbers):
    with torch.no_grad():
        for p in parameters:
            p.copy_(torch.randint(-8, 9, p.shape, generator=numbers).to(p.dtype) / 8)


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    numbers = torch.Generator().manual_seed(1)
    for name, model, targets in models():
        base, adapter = HERE / name / "base", HERE / name / "adapter"
        fill(model.parameters(), numbers)
        model.save_pretrained(base)
        trained = peft.get_peft_model(type(model).from_pretrained(base), peft.LoraConfig(r=2, lora_alpha=4, target_modules=targets))
        fill((p for n, p in trained.named_parameters() if "lora_" in n), numbers)
        trained.save_pretrained(adapter)
        peft.PeftModel.from_pretrained(type(model).from_pretrained(base), adapter).merge_and_unload().save_pretrained(HERE / name / "merged")
        for extra in (adapter / "README.md", HERE / name / "merged" / "config.json"):
            extra.unlink()
        config = adapter / "adapter_config.json"
        config.write_text(config.read_text().replace(str(base), "base"))


if __name__ == "__main__":
    main()
