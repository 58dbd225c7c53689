"""--quantize fp8-block against transformers' Fp8Quantize (tests/golden/make_quantized.py): bytes, which weights, refusals, every way out."""
import json
import math
import os

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")
WEIGHTS, BLOCKS = (os.path.join(GOLDEN, "quantized", n) for n in ("weights.safetensors", "fp8-block.safetensors"))
QUANTIZE = ["--quantize", "fp8-block"]


def need(condition, what):
    if not condition:
        raise AssertionError(what)


def same(got, want, what):
    need(set(got) == set(want), f"{what}: names {sorted(set(got) ^ set(want))[:5]}")
    for k in want:
        need(got[k].dtype == want[k].dtype and got[k].shape == want[k].shape, f"{what}: {k} is {got[k].dtype} {tuple(got[k].shape)}")
        need(torch.equal(got[k].contiguous().view(torch.uint8), want[k].contiguous().view(torch.uint8)), f"{what}: the bytes of {k}")


def path(t, name):
    return os.path.join(t.scratch, name)


def quantized(t, source, *options, name="out.safetensors"):
    t.run("convert", source, path(t, name), "--overwrite", *QUANTIZE, *options)
    return load_file(path(t, name))


def refused(t, source, *options, says):
    text = t.run("convert", source, path(t, "refused.safetensors"), *QUANTIZE, *options, status=2).stderr.decode()
    for part in says:
        need(part in text, f"{part!r} is not in: {text}")
    need(not os.path.exists(path(t, "refused.safetensors")), "a refused conversion left a file")


def test_the_bytes_are_those_of_transformers(t):
    want = load_file(BLOCKS)
    same(quantized(t, WEIGHTS), want, "convert")
    for options in (["--threads", "4", "--max-mem", "1MiB"], ["--threads", "1"]):
        same(quantized(t, WEIGHTS, *options), want, str(options))


def test_every_way_out(t):
    want, weights = load_file(BLOCKS), load_file(WEIGHTS)
    t.run("convert", WEIGHTS, path(t, "shards"), "--max-shard-size", "30KB", "--to", "safetensors", *QUANTIZE)
    index = json.load(open(path(t, "shards/model.safetensors.index.json")))["weight_map"]
    need(len(set(index.values())) > 1, "one shard only")
    same({k: v for n in set(index.values()) for k, v in load_file(path(t, f"shards/{n}")).items()}, want, "shards")
    t.run("reshard", WEIGHTS, path(t, "dcp"), "--mesh", "dp=3", "--placements", "shard(0)", "--to", "dcp", *QUANTIZE)
    held = {k: torch.empty_like(v) for k, v in want.items()}
    dcp.load(held, checkpoint_id=path(t, "dcp"), no_dist=True)
    same(held, want, "reshard")
    torch.save({"model": {"a": {"weight": weights["tall.weight"]}, "step": 3}}, path(t, "nested.pt"))
    t.run("convert", path(t, "nested.pt"), path(t, "out.pt"), "--to", "torch", *QUANTIZE)
    nested = torch.load(path(t, "out.pt"))
    need(nested["model"]["step"] == 3 and set(nested["model"]["a"]) == {"weight", "weight_scale_inv"}, f"nested: {nested}")
    same({"tall." + k: v for k, v in nested["model"]["a"].items()}, {k: v for k, v in want.items() if k.startswith("tall.")}, "nested")
    rules = [{"from": ["{name}.weight"], "to": ["m.{name}.weight"], "do": [{"transpose": [1, 0]}, {"transpose": [1, 0]}]}]
    json.dump({"schema": "tessera.map/1", "rules": rules}, open(path(t, "map.json"), "w"))
    same(quantized(t, WEIGHTS, "--map", path(t, "map.json")), {f"m.{k}": v for k, v in want.items()}, "--map")


def test_the_cast_comes_first(t):
    x, norm = torch.randn(200, 140), torch.randn(5)
    save_file({"x.weight": x, "norm.weight": norm}, path(t, "full.safetensors"))
    save_file({"x.weight": x.bfloat16(), "norm.weight": norm.bfloat16()}, path(t, "half.safetensors"))
    want = quantized(t, path(t, "half.safetensors"), name="want.safetensors")
    got = quantized(t, path(t, "full.safetensors"), "--dtype", "bfloat16")
    same(got, want, "--dtype")
    need(got["norm.weight"].dtype == torch.bfloat16 and got["x.weight_scale_inv"].dtype == torch.float32, "dtypes")
    need(not torch.equal(quantized(t, path(t, "full.safetensors"))["x.weight"].float(), got["x.weight"].float()), "the cast changes nothing")


def test_quantized_and_dequantized_again(t):
    """What comes back is numbers times scales, and within the rounding of three bits of the original."""
    back, blocks = path(t, "back.safetensors"), load_file(BLOCKS)
    quantized(t, WEIGHTS)
    t.run("convert", path(t, "out.safetensors"), back, "--dequantize", "--dtype", "float32")
    got = load_file(back)
    for name, x in load_file(WEIGHTS).items():
        rows, columns = x.shape
        scale = blocks[name + "_scale_inv"].repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
        need(torch.equal(got[name], blocks[name].float() * scale), f"{name} is not numbers times scales")
        need(bool(((got[name] - x.float()).abs() <= x.float().abs() / 16 * 1.001 + scale * 2 ** -10 * 1.001).all()), f"{name} is not near")
    again = quantized(t, path(t, "out.safetensors"), "--dequantize", "--dtype", "float32", name="again.safetensors")
    same(again, quantized(t, back, name="back-quantized.safetensors"), "--dequantize --quantize")


def test_the_weights_are_those_of_transformers(t):
    for model, modules in json.load(open(os.path.join(GOLDEN, "quantized", "modules.json"))).items():
        source = os.path.join(GOLDEN, "maps", model, "model.safetensors")
        stored = load_file(source)
        want = {k for k in stored if k.removesuffix(".weight") in modules["linear"]}
        held = {k: k.replace("block_sparse_moe", "mlp") for k in stored}  # mixtral's experts have another name in memory
        want |= {k for k in stored if any(held[k].startswith(e + ".") for e in modules["experts"])}
        got = quantized(t, source)
        need({k for k in got if got[k].dtype == torch.float8_e4m3fn} == want, f"{model}: {sorted({k for k in got if got[k].dtype == torch.float8_e4m3fn} ^ want)}")
        need(set(got) == set(stored) | {k + "_scale_inv" for k in want}, f"{model}: names")
        same({k: got[k] for k in stored if k not in want}, {k: v for k, v in stored.items() if k not in want}, model)


def test_what_the_loader_must_know_is_printed(t):
    source = os.path.join(GOLDEN, "maps", "transformers-qwen3_moe", "model.safetensors")
    text = t.run("convert", source, path(t, "out.safetensors"), *QUANTIZE, "--no-quantize", "**.o_proj.weight").stderr.decode()
    line = next(line for line in text.splitlines() if "quantization_config" in line)
    config = json.loads("{" + line.split(": ", 1)[1] + "}")["quantization_config"]
    need(config["quant_method"] == "fp8" and config["weight_block_size"] == [128, 128], line)
    need(set(config["modules_to_not_convert"]) == {"lm_head", "model.embed_tokens", "mlp.gate", "self_attn.o_proj"}, line)
    only = t.run("convert", source, path(t, "only.safetensors"), *QUANTIZE, "--no-quantize", "model.layers.1.self_attn.?_proj.weight").stderr.decode()
    need('"lm_head", "model.embed_tokens", "mlp.gate", "model.layers.1.self_attn.k_proj"' in only and '"self_attn.' not in only, only)  # those of layer 0 are quantized
    need("18 weights" in text and "left as they are: 5" in text, text)
    got = load_file(path(t, "out.safetensors"))
    need(got["model.layers.0.self_attn.o_proj.weight"].dtype == torch.float32, "--no-quantize")


def test_names_in_what_the_loader_must_know_are_json(t):
    odd = 'm.qu"o\\te\x01\u202e'
    os.makedirs(path(t, "in"), exist_ok=True)
    save_file({"a.b.weight": torch.ones(2, 2), f"{odd}.weight": torch.ones(2, 2)}, path(t, "in/model.safetensors"))
    with open(path(t, "in/config.json"), "w") as f:
        json.dump({"model_type": "none"}, f)
    said = t.run("convert", path(t, "in"), path(t, "odd.safetensors"), *QUANTIZE, "--no-quantize", "m.**").stderr.decode()
    line = next(line for line in said.splitlines() if "quantization_config" in line)
    need(json.loads("{" + line.split(": ", 1)[1] + "}")["quantization_config"]["modules_to_not_convert"] == [odd], line)
    need(line.isprintable(), line)  # a name must not control the terminal
    t.run("convert", path(t, "in"), path(t, "out") + "/", "--to", "safetensors", *QUANTIZE, "--no-quantize", "m.**", "--config")
    with open(path(t, "out/config.json")) as f:
        need(json.load(f)["quantization_config"]["modules_to_not_convert"] == [odd], "config.json")


def test_refusals(t):
    source = path(t, "in.safetensors")
    for bad, word in ((math.nan, "NaN"), (math.inf, "infinite"), (-math.inf, "infinite")):
        x = torch.randn(140, 130)
        x[133, 129] = bad
        save_file({"a.weight": torch.ones(2, 2), "bad.weight": x}, source)
        refused(t, source, says=["bad.weight", word, "[133, 129]", "--no-quantize"])
    got = quantized(t, source, "--no-quantize", "bad.*")
    need(torch.equal(got["bad.weight"], x) and "bad.weight_scale_inv" not in got, "--no-quantize with infinity")
    save_file({"a.weight": torch.ones(2, 2), "a.weight_scale_inv": torch.ones(1, 1)}, source)
    refused(t, source, says=["'a.weight' has a scale already, 'a.weight_scale_inv'"])
    save_file({"a.weight": torch.ones(2, 2).to(torch.float8_e4m3fn), "a.weight_scale": torch.ones(2), "b.weight": torch.ones(2, 2)}, source)
    refused(t, source, "--dtype", "bfloat16", says=["a.weight", "a.weight_scale"])
    save_file({"m.experts.gate_up_proj": torch.ones(2, 4, 4), "a.weight": torch.ones(2, 2)}, source)
    refused(t, source, says=["m.experts.gate_up_proj", "--inverse"])
    need("m.experts.gate_up_proj" in quantized(t, source, "--no-quantize", "m.**"), "--no-quantize with stacked experts")
    save_file({"norm.weight": torch.ones(4)}, source)
    refused(t, source, says=["no linear weights"])
    refused(t, WEIGHTS, "--include", "*.weight", says=["'double.weight' without its scale 'double.weight_scale_inv'"])
    refused(t, WEIGHTS, "--dtype", "bfloat16", "--raw-cast", says=["--raw-cast and --quantize"])
    text = t.run("convert", WEIGHTS, path(t, "refused.safetensors"), "--no-quantize", "*", status=2).stderr.decode()
    need("--no-quantize needs --quantize" in text, text)


def test_a_tile_of_tiny_numbers_becomes_zeros(t):
    """Where Fp8Quantize's scale is infinite, and its zeros NaN."""
    x = torch.full((4, 200), 1e-39)
    x[1, 3], x[:, 128:] = 0, 1.0
    save_file({"a.weight": x}, path(t, "in.safetensors"))
    got = quantized(t, path(t, "in.safetensors"))
    need(bool((got["a.weight"].float()[:, :128] == 0).all()) and got["a.weight_scale_inv"][0, 0] == 1, "tiny numbers")
    need(bool((got["a.weight"].float()[:, 128:] == 448).all()), "the tile next to it")


def test_many_bands_and_threads(t):
    """More bands than are remembered, in runs that end inside bands."""
    torch.manual_seed(4)
    x = torch.randn(9000, 300).bfloat16()
    save_file({"a.weight": x, "b.weight": x[:4500] * 2}, path(t, "in.safetensors"))
    one, many = quantized(t, path(t, "in.safetensors"), "--threads", "1", name="one.safetensors"), quantized(t, path(t, "in.safetensors"), "--threads", "6")
    same(many, one, "threads")
    largest = torch.nn.functional.pad(x.float(), (0, 84, 0, 88)).view(71, 128, 3, 128).abs().amax((1, 3))
    need(torch.equal(one["a.weight_scale_inv"], 1 / (448 / largest)), "scales")
    scale = (448 / largest).repeat_interleave(128, 0)[:9000].repeat_interleave(128, 1)[:, :300]
    need(torch.equal(one["a.weight"].float(), (x.float() * scale).clamp(-448, 448).to(torch.float8_e4m3fn).float()), "numbers")
