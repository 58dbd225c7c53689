"""Writes tests/golden/hub_names: the names of small models as they are stored on the Hub, and as transformers holds them in memory.

Usage: python tests/golden/make_hub_names.py    in an environment that has the versions below.

Made with torch 2.13.0, transformers 5.23.0; EXAONE with transformers 5.24.0. Each form of a model was loaded by from_pretrained, which found every tensor and no other; values
differ, so they show which stored tensor became which. "hub" has the names of releases, which transformers 4.49 and 4.57 also store; "newer" has
those of training runs with transformers 4.52 to 4.57; "plain" are those that transformers 5 stores for a model that it has not loaded.

  MODEL.json   {map, class, config: its sizes, forms, dropped: {form: names that are not in memory}, tied: names in memory that are another's,
                tensors: [[name in memory, shape, name in each form …]]}
               "TURNED NAME" is that tensor with its last two dims exchanged.
"""
import json
import pathlib
import re
import shutil
import tempfile

import torch
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent / "hub_names"
TEXT = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 16}
TOWER = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
IMAGE = {**TOWER, "image_size": 8, "patch_size": 4}
ROPE = {"rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 1e4}
OWN = r"^(language_model\.lm_head|language_model\.model|vision_tower|vision_model|audio_tower|multi_modal_projector|image_newline)\b"


def text(kind, **more):
    return {"model_type": kind, **TEXT, **more}


def pair(config, image, words, **more):
    return config(vision_config=image, text_config=words, **more)


def image(kind, **more):
    return {"model_type": kind, **IMAGE, **more}


def older(name):
    """The name that releases before 5 have: CLIP's and SigLIP's towers are inside "vision_model"."""
    return re.sub(r"^vision_tower\.(?=(embeddings\.(class|patch|position)_embedding\b|encoder\.layers|pre_layrnorm|post_layernorm|head))", "vision_tower.vision_model.", name)


def newer(name):
    place = {"language_model.lm_head": "lm_head", "language_model.model": "model.language_model"}
    return re.sub(OWN, lambda m: place.get(m[1], "model." + m[1]), older(name))


def doubled(name):
    """What a release of transformers stored by mistake, and later ones accept."""
    return name.replace("language_model.model.", "language_model.model.model.")


def newer_qwen(name):
    return re.sub(r"^model\.", "model.language_model.", name) if name.startswith("model.") else re.sub(r"^visual", "model.visual", name)


def same(name):
    return name


def inside(prefix):
    return lambda name: prefix + name


def gamma(name):
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def weight_g(name):
    return name.replace("parametrizations.weight.original0", "weight_g").replace("parametrizations.weight.original1", "weight_v")


LLAVA = {"hub": older, "newer": newer, "plain": same}
FREQUENCIES = [f"language_model.model.layers.{n}.self_attn.rotary_emb.inv_freq" for n in range(2)]
MASKS = [f"gpt_neox.layers.{n}.attention.{x}" for n in range(2) for x in ("bias", "masked_bias", "rotary_emb.inv_freq")]


def llavas(tf):
    """(class, config, {form: the name in it of what transformers stores}, names in "hub" that are not in memory)."""
    clip, siglip, pixtral = image("clip_vision_model", projection_dim=8), image("siglip_vision_model", vision_use_head=False), image("pixtral", head_dim=4)
    llama, qwen2, mistral = text("llama", num_hidden_layers=2), text("qwen2"), text("mistral", head_dim=4)
    kinds = {"layer_types": ["sliding_attention"] * TEXT["num_hidden_layers"]}
    token, tokens = {"image_token_index": 3}, {"image_token_index": 3, "video_token_index": 4}
    yield "Llava", pair(tf.LlavaConfig, clip, llama, **token), {**LLAVA, "doubled": doubled}, [*FREQUENCIES, "vision_tower.vision_model.embeddings.position_ids"]
    yield "LlavaNext", pair(tf.LlavaNextConfig, clip, mistral, **token), LLAVA, []
    yield "LlavaNextVideo", pair(tf.LlavaNextVideoConfig, clip, llama, **tokens), {"hub": older}, []
    yield "LlavaOnevision", pair(tf.LlavaOnevisionConfig, image("siglip_vision_model"), qwen2, **tokens), {"hub": older}, []
    yield "VipLlava", pair(tf.VipLlavaConfig, clip, llama, vision_feature_layers=[-1, -1], **token), {"hub": older}, []
    yield "PaliGemma", pair(tf.PaliGemmaConfig, siglip, text("gemma", head_dim=4), projection_dim=8, hidden_size=8, **token), {"hub": older}, []
    yield "Gemma3", pair(tf.Gemma3Config, siglip, text("gemma3_text", head_dim=4, sliding_window=8, **kinds), mm_tokens_per_image=4), {"hub": older, "newer": newer}, []
    yield "AyaVision", pair(tf.AyaVisionConfig, siglip, text("cohere2", **kinds), downsample_factor=2, adapter_layer_norm_eps=1e-5, **token), {"hub": older}, []
    yield "Mistral3", pair(tf.Mistral3Config, pixtral, mistral, **token), {"hub": older, "newer": newer}, []
    yield "InternVL", pair(tf.InternVLConfig, {**TOWER, "model_type": "internvl_vision", "image_size": [8, 8], "patch_size": [4, 4], "use_mask_token": True}, qwen2, image_token_id=3), {"hub": older}, []
    sam = {"hidden_size": 8, "output_channels": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 4, "mlp_dim": 12, "window_size": 2, "global_attn_indexes": [0]}
    yield "GotOcr2", pair(tf.GotOcr2Config, sam, qwen2, **token), {"hub": older}, []
    tiles = {**TOWER, "num_global_layers": 1, "attention_heads": 2, "image_size": 8, "patch_size": 4, "vision_output_dim": 16, "intermediate_layers_indices": [0],
             "supported_aspect_ratios": [[1, 1]], "max_num_tiles": 1}
    yield "Mllama", pair(tf.MllamaConfig, tiles, {**TEXT, "num_hidden_layers": 2, "cross_attention_layers": [1], "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "pad_token_id": 0}, **token), {"hub": older, "newer": newer}, []
    sound = {"d_model": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 12, "num_mel_bins": 4, "max_source_positions": 8}
    yield "Qwen2Audio", tf.Qwen2AudioConfig(audio_config={**sound, "model_type": "qwen2_audio_encoder"}, text_config=qwen2, audio_token_index=3), {"hub": older, "newer": newer}, []
    yield "Voxtral", tf.VoxtralConfig(audio_config={**TOWER, "num_mel_bins": 4, "max_source_positions": 8}, text_config=text("llama", head_dim=4)), {"hub": older}, []


def qwens(tf):
    names, windows = {"hub": same, "newer": newer_qwen}, {"depth": 1, "hidden_size": 8, "out_hidden_size": 8, "intermediate_size": 12, "num_heads": 2, "patch_size": 4, "fullatt_block_indexes": [0]}
    rope = {**TEXT, "num_hidden_layers": 2, "rope_parameters": ROPE}
    yield "Qwen2VL", pair(tf.Qwen2VLConfig, {"depth": 1, "embed_dim": 8, "hidden_size": 8, "num_heads": 2, "patch_size": 4, "mlp_ratio": 2}, rope), names, []
    yield "Qwen2_5_VL", pair(tf.Qwen2_5_VLConfig, windows, rope), names, []


def models(tf):
    """(map, class, config, forms, dropped)."""
    for name, *rest in llavas(tf):
        yield "transformers-llava", getattr(tf, f"{name}ForConditionalGeneration"), *rest
    for name, *rest in qwens(tf):
        yield "transformers-qwen2_vl", getattr(tf, f"{name}ForConditionalGeneration"), *rest
    deep = {"depth": 1, "hidden_size": 8, "out_hidden_size": 10, "intermediate_size": 12, "num_heads": 2, "patch_size": 4, "deepstack_visual_indexes": [0], "num_position_embeddings": 4}
    experts = {**TEXT, "hidden_size": 10, "num_hidden_layers": 3, "moe_intermediate_size": 6, "head_dim": 4, "num_experts": 3, "num_experts_per_tok": 2, "rope_parameters": ROPE, "decoder_sparse_step": 1}
    for dense in ([], [1]):
        yield ("transformers-qwen3_vl_moe", tf.Qwen3VLMoeForConditionalGeneration, pair(tf.Qwen3VLMoeConfig, deep, {**experts, "mlp_only_layers": dense}),
               {"hub": lambda name: "TURNED " + name if ".experts." in name else name}, [])
    words = {**TOWER, "num_hidden_layers": 2, "vocab_size": 20, "max_position_embeddings": 8}
    for config, name in ((tf.CLIPTextConfig(**words), "CLIPText"), (tf.CLIPVisionConfig(**IMAGE), "CLIPVision"), (tf.SiglipTextConfig(**words), "SiglipText"), (tf.SiglipVisionConfig(**IMAGE), "SiglipVision")):
        tower = "text_model." if "Text" in name else "vision_model."
        yield "transformers-clip", getattr(tf, f"{name}Model"), config, {"hub": inside(tower)}, [tower + "embeddings.position_ids"] if "CLIP" in name else []
    yield "transformers-gpt_neox", tf.GPTNeoXForCausalLM, tf.GPTNeoXConfig(**words), {"hub": same}, MASKS
    yield "transformers-gpt_neox", tf.GPTNeoXForCausalLM, tf.GPTNeoXConfig(**words, tie_word_embeddings=True), {"hub": same}, MASKS
    yield "transformers-legacy", tf.BertForPreTraining, tf.BertConfig(**words), {"hub": gamma}, []
    yield "transformers-legacy", tf.Wav2Vec2ForCTC, tf.Wav2Vec2Config(**TOWER, vocab_size=8, conv_dim=(4,), conv_stride=(2,), conv_kernel=(3,), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
                                                                      num_feat_extract_layers=1), {"hub": weight_g}, []
    for more in ({}, {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}):  # transformers has no class for EXAONE
        yield "transformers-exaone", tf.LlamaForCausalLM, tf.ExaoneConfig(**{**TEXT, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, **more}), {"hub": same}, []


def filled(cls, config):
    model = cls(config)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.randn_like(tensor))
    return model


def load(cls, directory, tensors):
    """The names and tensors in memory of a model that is stored so."""
    save_file({k: v.contiguous() for k, v in tensors.items()}, directory / "model.safetensors", metadata={"format": "pt"})
    model, info = cls.from_pretrained(directory, dtype="auto", output_loading_info=True)
    assert not any(info.values()), info
    return model, model.state_dict()


def origin(tensor, stored):
    """The text of tests/golden/hub_names for where it comes from, which is one place."""
    found = [n for n, t in stored.items() if t.dtype == tensor.dtype and torch.equal(t, tensor)]
    found += [f"TURNED {n}" for n, t in stored.items() if t.ndim == 3 and torch.equal(t.transpose(1, 2), tensor)]
    assert len(found) == 1, found
    return found[0]


def sizes(settings):
    return {k: sizes(v) if isinstance(v, dict) else v for k, v in settings.items() if isinstance(v, (dict, int)) and not k.endswith(("_id", "_index"))}


def table(cls, config, forms, dropped):
    with tempfile.TemporaryDirectory() as at:
        directory = pathlib.Path(at)
        model = filled(cls, config)
        held = model.state_dict()
        model.save_pretrained(directory)
        saved, columns = load_file(directory / "model.safetensors"), {}
        for form, rename in forms.items():
            named = {rename(n): t for n, t in saved.items()}
            stored = {n.removeprefix("TURNED "): t.transpose(1, 2) if n.startswith("TURNED ") else t for n, t in named.items()}
            extra = {n: torch.full((2,), float(i)) for i, n in enumerate(dropped if form == "hub" else [])}
            loaded, memory = load(cls, directory, {**stored, **extra})
            assert set(memory) == set(held) and all(torch.equal(memory[n], held[n]) for n in held), form
            loaded.save_pretrained(directory / "again")
            again = load_file(directory / "again" / "model.safetensors")
            assert set(again) == set(stored), sorted(set(again) ^ set(stored))  # transformers takes it back to these names
            columns[form] = stored
        first, tied = {}, []
        for name, tensor in held.items():
            (tied.append if tensor.data_ptr() in first else lambda n: first.setdefault(tensor.data_ptr(), n))(name)
        rows = [[n, list(held[n].shape), *[origin(held[n], stored) for stored in columns.values()]] for n in first.values()]
        settings = json.loads((directory / "config.json").read_text())
        return {"class": cls.__name__, "config": sizes(settings), "forms": list(forms), "dropped": dropped, "tied": tied}, rows


def main():
    import transformers as tf
    if HERE.exists():
        shutil.rmtree(HERE)
    HERE.mkdir()
    seen = {}
    for name, cls, config, forms, dropped in models(tf):
        torch.manual_seed(len(name))
        top, rows = table(cls, config, forms, dropped)
        seen[cls.__name__] = seen.get(cls.__name__, 0) + 1
        number = "" if seen[cls.__name__] == 1 else f"-{seen[cls.__name__]}"
        head = json.dumps({"map": name, **top})
        lines = ",\n".join(json.dumps(row) for row in rows)
        (HERE / f"{cls.__name__}{number}.json").write_text(f'{head[:-1]}, "tensors": [\n{lines}]}}\n')


if __name__ == "__main__":
    main()
