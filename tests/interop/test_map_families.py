"""The families with experts for which transformers 5 converts names and layouts on load: what its maps make is what transformers holds in memory,
and back what it writes (tests/golden/make_map_families.py); a model that lacks something, and one of another family, is refused."""
import hashlib
import json
import os
import re
import zlib

import torch
from safetensors.torch import load_file, save_file

from test_maps import need, same, write

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden", "map_families")
DTYPES = {"F32": torch.float32, "I64": torch.int64}
FAMILIES = sorted(n.removesuffix(".json") for n in os.listdir(GOLDEN))
FUSED = ("sarvam_moe",)  # the map takes numbers from config.json to divide fused weights
COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def values(name, dtype, shape):
    """As make_map_families.py fills tensors."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 40503 + zlib.crc32(name.encode())) % 16777213).to(dtype).reshape(shape)


def unfolded(lines):
    for pattern, forms in lines.items():
        for dtype, shape, numbers in forms:
            for one in numbers.split(" "):
                left = iter(one.split("."))
                name = re.sub("#", lambda _: next(left), pattern)
                yield name, values(name, DTYPES[dtype], shape)


def family(name):
    """(config.json, stored, digests of what is held under other names or with other values, how much is held as it is stored)."""
    golden = json.load(open(os.path.join(GOLDEN, f"{name}.json")))
    return golden["config"], dict(unfolded(golden["stored"])), golden["held"], golden["kept"]


def place(t, config, tensors):
    directory = os.path.join(t.scratch, "model")
    os.makedirs(directory, exist_ok=True)
    save_file(tensors, os.path.join(directory, "model.safetensors"))
    write(directory, "config.json", config)
    return directory


def convert(t, config, tensors, name, *options):
    out = os.path.join(t.scratch, "out.safetensors")
    t.run("convert", place(t, config, tensors), out, "--map", name, "--overwrite", *options)
    return load_file(out)


def refused(t, config, tensors, name, *options):
    out = os.path.join(t.scratch, "no.safetensors")
    said = t.run("convert", place(t, config, tensors), out, "--map", name, *options, status=2).stderr.decode()
    need(not os.path.exists(out), "a refused conversion left a file")
    return said


def check_held(name, made, stored, held, kept):
    for k, (dtype, shape, digest) in held.items():
        need(k in made, f"{name}: {k} is missing")
        x = made[k]
        need(x.dtype == DTYPES[dtype] and list(x.shape) == shape, f"{name}: {k} {x.dtype} {list(x.shape)}")
        need(hashlib.sha256(x.numpy().tobytes()).hexdigest()[:12] == digest, f"{name}: the values of {k}")
    others = {k: x for k, x in made.items() if k not in held}
    need(len(others) == kept, f"{name}: {len(others)} tensors as they were stored, not {kept}")
    same(others, {k: stored.get(k, torch.empty(0)) for k in others}, name)


def test_every_family(t):
    """Bit by bit, and back; `map list` has a name for each."""
    listed = t.run("map", "list").stdout.decode().split()
    need(listed == sorted(listed), f"not in order: {listed}")
    for name in FAMILIES:
        config, stored, held, kept = family(name)
        need(f"transformers-{name}" in listed, f"{name} is not listed")
        need(held, f"{name} maps nothing")
        made = convert(t, config, stored, f"transformers-{name}")
        check_held(name, made, stored, held, kept)
        same(convert(t, config, made, f"transformers-{name}", "--inverse"), stored, f"{name} --inverse")
        untied = {k: x for k, x in made.items() if k != "lm_head.weight" or not config.get("tie_word_embeddings")}
        if name in FUSED:
            need("config.json has no number 'head_dim', which the map needs" in refused(t, {}, untied, f"transformers-{name}", "--inverse"), name)
            continue
        same(convert(t, {}, untied, f"transformers-{name}", "--inverse"), stored, f"{name} --inverse without config.json")


def test_what_is_missing_shows(t):
    """One weight of an expert, one in every expert of a layer, its router, and all of its experts."""
    for name in FAMILIES:
        config, stored, _, _ = family(name)
        layers = sorted({k.split(".")[2] for k in stored if ".experts." in k or ".block_sparse_moe." in k and name.startswith("granite")})
        last = layers[-1]
        need(layers, f"{name} has no experts")
        for what in (rf"layers\.{last}\..*experts\.0\.[a-z0-9_]+\.weight$", rf"layers\.{last}\..*(gate|router)(\.wg|\.gate|\.layer)?\.weight$", rf"layers\.{last}\..*(experts\.|_linear)"):
            lost = [k for k in stored if re.search(what, k) and "shared" not in k and "_gate.weight" not in k]
            need(lost or name.startswith("granite"), f"{name}: nothing is {what}")
            for left in ([lost[:1], lost] if lost else []):
                said = refused(t, config, {k: x for k, x in stored.items() if k not in left}, f"transformers-{name}")
                need("missing" in said or "not whole" in said or "have" in said or "is there" in said or " experts, but" in said or "nothing below" in said, f"{name} without {left}: {said}")


def test_settings_of_another_model_are_refused(t):
    """How many experts there are, and how large they are, under the names that the family has for it."""
    for name in FAMILIES:
        config, stored, _, _ = family(name)
        made = convert(t, config, stored, f"transformers-{name}")
        size = "moe_intermediate_size" if "moe_intermediate_size" in config else "intermediate_size"
        for setting in ("hidden_size", size, next(k for k in COUNTS if k in config)):
            for tensors, options in ((stored, []), (made, ["--inverse"])):
                said = refused(t, {**config, setting: config[setting] + 1}, tensors, f"transformers-{name}", *options)
                fused = name in FUSED and f"the step 'reshape' states in \"from\" the size {config[setting] + 1}" in said
                need(f"{setting} {config[setting] + 1}" in said or f"{setting} of config.json is" in said or fused, f"{name} {options}: {said}")


def test_the_map_of_another_family_is_named(t):
    """A map keeps the names that it does not know, so a model of another family would look whole."""
    for name, wrong in (("exaone_moe", "qwen3_moe"), ("phimoe", "mixtral"), ("olmoe", "qwen3_moe"), ("mixtral", "minimax_m2")):
        config, stored, _, _ = family(name)
        made = convert(t, config, stored, f"transformers-{name}")
        for tensors, options in ((stored, []), (made, ["--inverse"])):
            said = refused(t, config, tensors, f"transformers-{wrong}", *options)
            need(f"model_type of config.json, '{name}'; use the map transformers-{name}" in said, said)
    config, stored, held, kept = family("qwen3_moe")
    for own in ({**config, "model_type": "mine"}, {k: v for k, v in config.items() if k != "model_type"}):
        check_held("qwen3_moe", convert(t, own, stored, "transformers-qwen3_moe"), stored, held, kept)
    shown = t.run("map", "show", "transformers-olmoe").stdout
    need("flex_olmo" in json.loads(shown)["models"] and shown == t.run("map", "show", "transformers-flex_olmo").stdout, "further names of a map")


def test_an_output_layer_that_is_the_embedding(t):
    """transformers holds it under both names and stores it once; where values differ, the inverse does not leave one out."""
    for name in FAMILIES:
        config, stored, held, _ = family(name)
        if not config.get("tie_word_embeddings"):
            continue
        need("lm_head.weight" not in stored and "lm_head.weight" in held, name)
        out = os.path.join(t.scratch, "out.safetensors")
        noted = t.run("convert", place(t, config, stored), out, "--map", f"transformers-{name}", "--overwrite").stderr.decode()
        words = "model.embed_tokens.weight" if "model.embed_tokens.weight" in stored else "model.word_embeddings.weight"
        need(f"'lm_head.weight' is a copy of '{words}'" in noted, noted)
        made = load_file(out)
        apart = {**made, "lm_head.weight": made["lm_head.weight"] + 1}
        need("'lm_head.weight' and 'model.embed_tokens.weight' differ" in refused(t, config, apart, f"transformers-{name}", "--inverse"), name)
        same(convert(t, {**config, "tie_word_embeddings": False}, apart, f"transformers-{name}", "--inverse"), {**stored, "lm_head.weight": apart["lm_head.weight"]}, name)
        need("lm_head.weight" not in convert(t, {**config, "tie_word_embeddings": False}, stored, f"transformers-{name}"), f"{name} is not tied")


def test_layers_that_predict_further_tokens(t):
    """transformers does not load them; the map gives their experts the same form, and keeps those under other names."""
    for name in ("deepseek_v3", "glm4_moe", "ernie4_5_moe"):
        config, stored, held, kept = family(name)
        more = {k.replace("layers.2.", "layers.3."): x + 1 for k, x in stored.items() if "layers.2." in k} | {"model.layers.3.eh_proj.weight": torch.ones(2, 4)}
        other = {k.replace("model.layers.2.", "mtp.layers.0."): x + 2 for k, x in stored.items() if "layers.2." in k}
        made = convert(t, {**config, "num_nextn_predict_layers": 1}, {**stored, **more, **other}, f"transformers-{name}")
        need("model.layers.3.mlp.experts.gate_up_proj" in made and "model.layers.3.eh_proj.weight" in made, name)
        check_held(name, {k: x for k, x in made.items() if "layers.3." not in k and k not in other}, stored, held, kept)
        same({k: x for k, x in made.items() if k in other}, other, name)


def test_the_first_names_of_deepseek_v4(t):
    """DeepSeek's own names, which transformers loads as well as those that it saves (seen with 5.23): the same model."""
    config, stored, held, kept = family("deepseek_v4")
    first = {"model.embed_tokens.weight": "embed.weight", **{f"model.hc_head.hc_{x}": f"hc_head_{x}" for x in ("fn", "base", "scale")}}
    own = {first.get(k, k.removeprefix("model.")): x for k, x in stored.items()}
    need(not any(k.startswith("model.") for k in own), "names")
    check_held("deepseek_v4", convert(t, config, own, "transformers-deepseek_v4"), stored, held, kept)


def test_dense_layers_of_kimi_linear(t):
    """Stored under "mlp" by their makers, and under "block_sparse_moe" by transformers (seen with 5.23)."""
    config, stored, held, kept = family("kimi_linear")
    own = {k.replace("block_sparse_moe", "mlp") if "layers.0." in k else k: x for k, x in stored.items()}
    need(own.keys() != stored.keys(), "names")
    same(convert(t, config, own, "transformers-kimi_linear"), {k.replace("layers.0.block_sparse_moe", "layers.0.mlp"): x for k, x in convert(t, config, stored, "transformers-kimi_linear").items()}, "dense layers")
