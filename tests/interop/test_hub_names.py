"""Names on the Hub against those that transformers 5 holds in memory (tests/golden/hub_names): the maps and their inverses, models of random
sizes in mixed forms, and what is not the model's or not whole."""
import json
import os
import random
import re
import types

import torch
from safetensors.torch import load_file, save_file

from test_maps import need, same, write

HERE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden", "hub_names")
MODELS = {name.removesuffix(".json"): json.load(open(os.path.join(HERE, name))) for name in sorted(os.listdir(HERE))}
# The maps that write an output layer which config.json ties to the embedding, and its name in memory.
TIED = {"transformers-gpt_neox": "gpt_neox.embed_in.weight", "transformers-exaone": "model.embed_tokens.weight"}
LAYER = re.compile(r"\b(layers|layer|blocks|h)\.0\.")


def make(rows, choose=lambda forms: 0):
    """(what is in memory, what is stored): choose() picks each tensor's form."""
    held, stored = {}, {}
    for name, shape, *forms in rows:
        held[name], source = torch.randn(shape), forms[choose(forms)]
        turned = source.startswith("TURNED ")
        stored[source.removeprefix("TURNED ")] = held[name].transpose(1, 2).contiguous() if turned else held[name]
    return held, stored


def place(t, name, tensors, config=None):
    directory = os.path.join(t.scratch, name)
    os.makedirs(directory, exist_ok=True)
    save_file(tensors, os.path.join(directory, "model.safetensors"))
    write(directory, "config.json", config or {})
    return directory


def convert(t, source, name, *options, status=0):
    """The result of a conversion, or what a refusal says."""
    out = os.path.join(t.scratch, "out.safetensors")
    found = t.run("convert", source, out, "--map", name, "--overwrite", *options, status=status)
    return load_file(out) if status == 0 else found.stderr.decode()


def with_tied(model, held):
    """All that is in memory, where the map writes that: tensors under both of their names."""
    return {**held, **{n: held[TIED[model["map"]]].clone() for n in model["tied"] if model["map"] in TIED}}


def test_every_form(t):
    """What is stored becomes what is in memory; the inverse gives the names of releases."""
    need({m["map"] for m in MODELS.values() if m["tied"]} >= set(TIED), "a map has no model with a tied output layer")
    need({m["map"] for m in MODELS.values()} <= set(t.run("map", "list").stdout.decode().split()), "a map is not listed")
    for name, model in MODELS.items():
        for number, form in enumerate(model["forms"]):
            torch.manual_seed(number)
            held, stored = make(model["tensors"], lambda _: number)
            extra = {n: torch.full((2,), float(i)) for i, n in enumerate(model["dropped"])} if form == "hub" else {}
            source = place(t, f"{name}-{form}", {**stored, **extra}, model["config"])
            held = with_tied(model, held)
            same(convert(t, source, model["map"]), held, f"{name}, {form}")
            t.run("diff", source, place(t, f"{name}-held", held), "--values", "--map", model["map"])
        held, stored = make(model["tensors"])
        held = with_tied(model, held)
        same(convert(t, place(t, f"{name}-held", held, model["config"]), model["map"], "--inverse"), stored, f"{name} --inverse")


def test_tied_names(t):
    """A state dict has the output layer twice: the inverse writes it where transformers reads it."""
    model = MODELS["Gemma3ForConditionalGeneration"]
    held, stored = make(model["tensors"])
    need(model["tied"] == ["lm_head.weight"], "the golden")
    head = held["model.language_model.embed_tokens.weight"].clone()
    found = convert(t, place(t, "tied", {**held, "lm_head.weight": head}, model["config"]), model["map"], "--inverse")
    same(found, {**stored, "language_model.lm_head.weight": head}, "tied")


def grown(rows, rng):
    """The model with as many layers in each tower as the numbers of the generator say; every layer is like the first."""
    counts = {}
    for name, shape, *forms in rows:
        if not LAYER.search(name):
            if not re.search(r"\b(layers|layer|blocks)\.[1-9]", name):
                yield [name, shape, *forms]
            continue
        count = counts.setdefault(name[:LAYER.search(name).start()], rng.randrange(1, 13))
        for n in range(count):
            yield [LAYER.sub(rf"\1.{n}.", name), shape, *(LAYER.sub(rf"\1.{n}.", form) for form in forms)]


def test_models_of_random_sizes(t):
    """Each tensor in any of the forms that were read: transformers looks at one name at a time."""
    for seed, name in enumerate(list(MODELS) * 3):
        rng, model = random.Random(seed), MODELS[name]
        torch.manual_seed(seed)
        rows = list(grown(model["tensors"], rng))
        held, stored = make(rows, lambda forms: rng.randrange(len(forms)))
        same(convert(t, place(t, "mixed", stored), model["map"]), held, f"{name}, seed {seed}")
        held, stored = make(rows)
        same(convert(t, place(t, "held", held), model["map"], "--inverse"), stored, f"{name} --inverse, seed {seed}")


def test_what_is_missing(t):
    """What every model has, layers that others follow, and layers that config.json counts."""
    llava, qwen, experts, neox, exaone = "LlavaForConditionalGeneration", "Qwen2VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration", "GPTNeoXForCausalLM", "LlamaForCausalLM"
    for name, lost, config, says in ((llava, "language_model.model.embed_tokens.weight", False, "'language_model.model.embed_tokens.weight' is missing"),
                                     (llava, "multi_modal_projector.", False, "'multi_modal_projector.{rest...}' is missing"),
                                     (llava, "language_model.model.layers.0.", False, "but not 'language_model.model.layers.0'"),
                                     (llava, "language_model.model.layers.1.", True, "'language_model.model.layers' has 1 layer, but num_hidden_layers of config.json is 2"),
                                     (qwen, "model.layers.0.", False, "but not 'model.layers.0'"), (qwen, "visual.", False, "'visual.{rest...}' is missing"),
                                     (qwen, "model.layers.1.", True, "'model.layers' has 1 layer, but num_hidden_layers of config.json is 2"),
                                     (experts, "model.language_model.layers.1.mlp.experts.down_proj", False, "'model.language_model.layers.1.mlp.experts.down_proj' is missing"),
                                     (f"{experts}-2", "model.language_model.layers.1.mlp.", False, "but not 'model.language_model.layers.1'"),
                                     (exaone, "transformer.wte.weight", False, "'transformer.wte.weight' is missing"), (exaone, "transformer.h.0.", False, "but not 'transformer.h.0'"),
                                     (exaone, "transformer.h.1.mlp.c_fc_1.", False, "'transformer.h.1.mlp.c_fc_1.weight' is missing"),
                                     (exaone, "transformer.h.1.attn.attention.k_proj.", False, "'transformer.h.1.attn.attention.k_proj.weight' is missing"),
                                     (exaone, "transformer.h.1.ln_2.", False, "'transformer.h.1.ln_2.weight' is missing"), (exaone, "lm_head.", True, "'lm_head.weight' is missing"),
                                     (neox, "embed_out.weight", True, "'embed_out.weight' is missing"), (neox, "gpt_neox.embed_in.weight", False, "'gpt_neox.embed_in.weight' is missing"),
                                     (neox, "gpt_neox.layers.1.", True, "'gpt_neox.layers' has 1 layer, but num_hidden_layers of config.json is 2")):
        model = MODELS[name]
        stored = {k: v for k, v in make(model["tensors"])[1].items() if not k.startswith(lost)}
        said = convert(t, place(t, "lost", stored, model["config"] if config else None), model["map"], status=2)
        need(says in said, f"{name} without {lost}: {said}")


def test_a_layer_that_lacks_a_weight(t):
    """Where a rule takes the names of layers as they are, such a layer is noted, in every tower; a whole model is not, and layers that differ are not."""
    says, checked = "may be incomplete: it lacks", set()
    for name, model in MODELS.items():
        rows = list(grown(model["tensors"], types.SimpleNamespace(randrange=lambda *_: 4)))
        held, stored = make(rows)
        for tensors, options in ((stored, []), (held, ["--inverse"])):
            said = t.run("convert", place(t, "whole", tensors), os.path.join(t.scratch, "out.safetensors"), "--map", model["map"], "--overwrite", *options).stderr.decode()
            need("incomplete" not in said, f"{name} {options}: {said}")
        if model["map"] not in ("transformers-llava", "transformers-qwen2_vl", "transformers-clip") or "Mllama" in name:
            continue
        towers = {}
        for key, _, *forms in rows:
            layer = re.search(r"^(.*\b(?:layers|layer|blocks)\.)2\.(.*)$", key)
            if layer:
                towers.setdefault(layer[1], []).append((layer[2], forms[0]))
        for number, (stack, names) in enumerate(towers.items()):
            for rest, lost in names if name.startswith(("LlavaFor", "Qwen2VL", "CLIPText")) else names[number:number + 1]:
                said = t.run("convert", place(t, "lost", {k: x for k, x in stored.items() if k != lost}), os.path.join(t.scratch, "out.safetensors"), "--map", model["map"], "--overwrite").stderr.decode()
                need(f"note: '{stack}2' {says} '{rest}', but is otherwise like '{stack}0'" in said, f"{name} without {lost}: {said}")
                checked.add(model["map"])
    need(len(checked) == 3, f"checked {checked}")


def test_layers_that_differ_are_not_incomplete(t):
    """Layers with cross attention between others, as in Mllama; a lost weight still shows among them, and in the document."""
    model, out = MODELS["MllamaForConditionalGeneration"], os.path.join(t.scratch, "out.safetensors")
    layers = "language_model.model.layers."
    stored = make(model["tensors"])[1]
    kinds = [{k.removeprefix(f"{layers}{n}."): x for k, x in stored.items() if k.startswith(f"{layers}{n}.")} for n in (0, 1)]
    rest = {k: x for k, x in stored.items() if not k.startswith(layers)}
    whole = rest | {f"{layers}{n}.{k}": x.clone() for n in range(7) for k, x in kinds[n in (1, 4)].items()}
    said = t.run("convert", place(t, "whole", whole), out, "--map", model["map"]).stderr.decode()
    need(len(kinds[0]) != len(kinds[1]) and "incomplete" not in said, said)
    for number, rest in ((3, "mlp.up_proj.weight"), (6, "input_layernorm.weight")):
        lost = {k: x for k, x in whole.items() if k != f"{layers}{number}.{rest}"}
        said = json.loads(t.run("convert", place(t, "lost", lost), out, "--map", model["map"], "--overwrite", "--json").stdout)["warnings"]
        note = f"'model.language_model.layers.{number}' may be incomplete: it lacks '{rest}', but is otherwise like 'model.language_model.layers.0'"
        need(note in said, f"without {rest} of layer {number}: {said}")


def test_what_is_not_the_models(t):
    """Names that the map does not know, a tensor under both of its names, a model that is already turned, and other models."""
    def refuses(name, more, *says):
        model = MODELS[name]
        said = convert(t, place(t, "more", {**make(model["tensors"])[1], **{k: torch.ones(2) for k in more}}), model["map"], status=2)
        need(all(w in said for w in says), f"{name} with {more}: {said}")
    refuses("LlavaForConditionalGeneration", ["model.embed_tokens.weight", "talker.w"], "no rule of the map matches 'model.embed_tokens.weight', 'talker.w'")
    refuses("LlavaForConditionalGeneration", ["lm_head.weight"], "'language_model.lm_head.weight' would be written twice")
    refuses("LlavaForConditionalGeneration", ["model.vision_tower.post_layernorm.bias"], "'model.vision_tower.post_layernorm.bias' would be written twice")
    refuses("Qwen2VLForConditionalGeneration", ["thinker.model.norm.weight"], "no rule of the map matches 'thinker.model.norm.weight'")
    refuses("Qwen2VLForConditionalGeneration", ["model.language_model.norm.weight"], "'model.norm.weight' would be written twice")
    refuses("CLIPTextModel", ["logit_scale", "text_projection.weight"], "no rule of the map matches 'logit_scale', 'text_projection.weight'")
    refuses("CLIPTextModel", ["vision_model.encoder.layers.0.mlp.fc1.bias"], "'encoder.layers.0.mlp.fc1.bias' would be written twice")
    model = MODELS["Qwen3VLMoeForConditionalGeneration"]
    held = make(model["tensors"])[0]
    said = convert(t, place(t, "turned", held), model["map"], status=2)
    need("the map's 'hidden'" in said and "mlp" in said, said)
    text = {n: torch.zeros(2, 2) + i for i, n in enumerate(("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"))}
    for name in sorted({m["map"] for m in MODELS.values()}):
        for options in ([], ["--inverse"]):
            said = convert(t, place(t, "text", text), name, *options, status=2)
            need("no rule of the map matches" in said or "is missing, which the map " in said, f"{name} {options}: {said}")
