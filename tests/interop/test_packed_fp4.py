"""FP4 numbers in int8, and E8M0 scales in uint8, against transformers' own code, and MXFP4 of compressed-tensors against its code
(tests/golden/make_packed_fp4.py)."""
import json
import os

import torch
from safetensors.torch import load_file, save_file

from test_nvfp4 import need, path, same

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden", "packed_fp4")
SCALED = os.path.join(GOLDEN, "scaled.safetensors")


def test_products_are_those_of_transformers(t):
    want, out = load_file(os.path.join(GOLDEN, "products.safetensors")), path(t, "out.safetensors")
    need(want["every.weight"].shape == (16, 32), "the golden is not packed")
    for dtype, memory in ((torch.float32, "16MiB"), (torch.bfloat16, "16MiB"), (torch.float32, "64KiB")):
        t.run("convert", SCALED, out, "--dequantize", "--dtype", str(dtype)[6:], "--max-mem", memory, "--overwrite")
        same(load_file(out), {k: v.to(dtype) for k, v in want.items()}, f"{dtype} in {memory}")


def test_mxfp4_of_compressed_tensors(t):
    stored, want = (load_file(os.path.join(GOLDEN, f"compressed{n}.safetensors")) for n in ("", "-bfloat16"))
    source, out = os.path.join(GOLDEN, "compressed.safetensors"), path(t, "out.safetensors")
    for dtype in (torch.bfloat16, torch.float32):
        t.run("convert", source, out, "--dequantize", "--dtype", str(dtype)[6:], "--overwrite")
        same(load_file(out), {k: v.to(dtype) for k, v in want.items()}, f"{dtype}")
    t.run("reshard", source, path(t, "dcp"), "--dequantize", "--mesh", "tp=3", "--placements", "shard(1)", "--to", "dcp")
    t.run("diff", path(t, "dcp"), os.path.join(GOLDEN, "compressed-bfloat16.safetensors"), "--values")
    changed = path(t, "changed.safetensors")
    for changes, says in (({"wide.weight_zero_point": torch.zeros(3, 5, dtype=torch.uint8)}, "'wide.weight_packed' has a zero point, 'wide.weight_zero_point'"),
                          ({"wide.weight_scale": stored["wide.weight_scale"][:, :4].clone()}, "'wide.weight_packed' is uint8 and has no scale that fits it, unlike 'every.weight_packed'")):
        save_file({**stored, **changes}, changed)
        said = t.run("convert", changed, path(t, "not.safetensors"), "--dequantize", status=2).stderr.decode()
        need(says in said and not os.path.exists(path(t, "not.safetensors")), said)


def test_the_step_of_a_map(t):
    source, out, document = path(t, "in.safetensors"), path(t, "out.safetensors"), path(t, "map.json")
    stored, want = load_file(SCALED), load_file(os.path.join(GOLDEN, "products.safetensors"))
    name = "experts.gate_up_proj"
    save_file({k: stored[k] for k in (name, name + "_scale_inv")}, source)
    step = {"dequantize": {"scale": name + "_scale_inv", "scheme": "mxfp4", "dtype": "float32"}}
    with open(document, "w") as f:
        json.dump({"schema": "tessera.map/1", "rules": [{"from": [name], "to": ["e"], "do": [step, {"transpose": [0, 2, 1]}]}]}, f)
    t.run("convert", source, out, "--map", document)
    same(load_file(out), {"e": want[name].transpose(1, 2).contiguous()}, "a step")


def test_int8_that_may_be_either_is_refused(t):
    """transformers takes int8 with weight_scale_inv for FP4; models in int8 blocks have the same names, but another quant_method."""
    directory, out = path(t, "model"), path(t, "out.safetensors")
    os.makedirs(directory)
    numbers = torch.randint(-128, 128, (256, 256), dtype=torch.int8)

    def convert(scale, method, status):
        save_file({"a.weight": numbers, "a.weight_scale_inv": scale}, os.path.join(directory, "model.safetensors"))
        with open(os.path.join(directory, "config.json"), "w") as f:
            json.dump({"quantization_config": {"quant_method": method, "weight_block_size": [128, 128]}}, f)
        return t.run("convert", directory, out, "--dequantize", "--dtype", "float32", "--overwrite", status=status).stderr.decode()

    blocks, groups = torch.rand(2, 2), torch.rand(256, 16)
    for scale, method in ((blocks, "fp8"), (groups, "fp8"), (groups, "blockwise_int8")):
        said = convert(scale, method, 2)
        need("'a.weight' is int8" in said and "'a.weight_scale_inv'" in said and not os.path.exists(out), said)
    convert(blocks, "blockwise_int8", 0)
    want = numbers.float() * blocks.repeat_interleave(128, 0).repeat_interleave(128, 1)
    same(load_file(out), {"a.weight": want}, "int8 in blocks")
