"""NVFP4 against torchao's and compressed-tensors' own code (tests/golden/make_nvfp4.py): --dequantize, the step of a map, refusals."""
import json
import os

import torch
from safetensors.torch import load_file, save_file

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden", "nvfp4")
MODELOPT, COMPRESSED = (os.path.join(GOLDEN, n + ".safetensors") for n in ("modelopt", "compressed"))
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def need(condition, what):
    if not condition:
        raise AssertionError(what)


def expected(name):
    return load_file(os.path.join(GOLDEN, name + ".safetensors"))


def bits(x):
    """The bytes, with one pattern for every NaN."""
    return x.nan_to_num(nan=1.25, posinf=torch.inf, neginf=-torch.inf).contiguous().reshape(-1).view(torch.uint8)


def same(got, want, what):
    need(set(got) == set(want), f"{what}: names {sorted(set(got) ^ set(want))}")
    for k, x in want.items():
        need(got[k].dtype == x.dtype and got[k].shape == x.shape, f"{what}: {k} is {got[k].dtype} {tuple(got[k].shape)}")
        need(torch.equal(got[k].isnan(), x.isnan()) and torch.equal(bits(got[k]), bits(x)), f"{what}: {k}")


def path(t, name):
    return os.path.join(t.scratch, name)


def test_modelopt_is_what_torchao_computes(t):
    want, out = expected("modelopt-float32"), path(t, "out.safetensors")
    for name, dtype in DTYPES.items():
        t.run("convert", MODELOPT, out, "--dequantize", "--dtype", name, "--overwrite")
        same(load_file(out), {k: v.to(dtype) for k, v in want.items()}, name)
    t.run("convert", MODELOPT, out, "--dequantize", "--overwrite")
    same(load_file(out), {k: v.bfloat16() for k, v in want.items()}, "without --dtype")
    t.run("convert", MODELOPT, out, "--dequantize", "--dtype", "float32", "--max-mem", "64KiB", "--overwrite")
    same(load_file(out), want, "in little memory")
    t.run("convert", MODELOPT, out, "--dequantize", "--max-mem", "64KiB", "--overwrite")
    same(load_file(out), {k: v.bfloat16() for k, v in want.items()}, "bfloat16 in little memory")


def test_columns_that_begin_inside_a_group(t):
    out, columns = path(t, "out.safetensors"), path(t, "columns")
    t.run("reshard", MODELOPT, columns, "--dequantize", "--mesh", "tp=5", "--placements", "shard(1)", "--to", "dcp")
    t.run("convert", columns, out)
    same(load_file(out), {k: v.bfloat16() for k, v in expected("modelopt-float32").items()}, "columns")


def test_compressed_tensors(t):
    out = path(t, "out.safetensors")
    t.run("convert", COMPRESSED, out, "--dequantize")
    same(load_file(out), expected("compressed-bfloat16"), "compressed-tensors")


def test_every_form_and_what_is_not_scaled(t):
    """Sharded sources and outputs; scales of activations and other tensors stay."""
    stored, want = load_file(MODELOPT), expected("modelopt-float32")
    others = {"whole.input_scale": torch.tensor(0.25), "norm.weight": torch.randn(7), "ids": torch.arange(5, dtype=torch.uint8)}
    torch.save({**stored, **others}, path(t, "in.pt"))
    mesh = ["--mesh", "dp=3", "--placements", "shard(0)"]
    t.run("reshard", path(t, "in.pt"), path(t, "dcp"), "--to", "dcp", *mesh)
    said = t.run("convert", path(t, "dcp"), path(t, "out.safetensors"), "--dequantize", "--dtype", "float32").stderr.decode()
    same(load_file(path(t, "out.safetensors")), {**want, **others}, "from shards")
    assert "'whole.input_scale' is only loaded by quantized layers; --exclude '**.input_scale' leaves it out" in said, said
    t.run("convert", path(t, "dcp"), path(t, "fewer.safetensors"), "--dequantize", "--dtype", "float32", "--exclude", "**.input_scale")
    same(load_file(path(t, "fewer.safetensors")), {**want, **{k: others[k] for k in ("norm.weight", "ids")}}, "without them")
    t.run("reshard", path(t, "in.pt"), path(t, "wide"), "--to", "dcp", "--dequantize", "--dtype", "float32", *mesh)
    t.run("diff", path(t, "wide"), path(t, "out.safetensors"), "--values")
    os.makedirs(path(t, "model"))
    save_file(stored, path(t, "model/model.safetensors"))
    json.dump({"torch_dtype": "float16"}, open(path(t, "model/config.json"), "w"))
    t.run("convert", path(t, "model"), path(t, "half.safetensors"), "--dequantize")
    same(load_file(path(t, "half.safetensors")), {k: v.half() for k, v in want.items()}, "the dtype of config.json")


def rule(source, target, **step):
    return {"from": source, "to": [target], "do": [{"dequantize": {"scheme": "nvfp4", **step}}]}


def mapped(t, rules, source, **more):
    json.dump({"schema": "tessera.map/1", "rules": rules}, open(path(t, "map.json"), "w"))
    return t.run("convert", source, path(t, "mapped.safetensors"), "--overwrite", "--map", path(t, "map.json"), **more)


def test_the_step_of_a_map(t):
    wide = {"dtype": "float32"}
    rules = [rule(["{n}.weight"], "{n}.w", scale="{n}.weight_scale", tensor_scale="{n}.weight_scale_2", **wide),
             rule(["{n}.gate_up_proj"], "{n}.w", scale="{n}.gate_up_proj_scale", tensor_scale=["{n}.gate_up_proj_scale_2"], **wide)]
    rules[1]["do"].append({"transpose": [0, 2, 1]})
    mapped(t, rules, MODELOPT)
    want = expected("modelopt-float32")
    same(load_file(path(t, "mapped.safetensors")),
         {k.split(".")[0] + ".w": v if k.endswith("weight") else v.transpose(1, 2) for k, v in want.items()}, "tensor_scale")
    mapped(t, [rule(["{n}.weight_packed"], "{n}.weight", scale="{n}.weight_scale", global_scale="{n}.weight_global_scale")], COMPRESSED)
    same(load_file(path(t, "mapped.safetensors")), expected("compressed-bfloat16"), "global_scale")
    two = {f"{i}.{e}": v for i, n in enumerate(("every", "tiny")) for e, v in
           (("w", f"{n}.weight"), ("s", f"{n}.weight_scale"), ("t", f"{n}.weight_scale_2"))}
    stored = load_file(MODELOPT)
    save_file({k: stored[v] for k, v in two.items()}, path(t, "two.safetensors"))
    stack = rule(["{i}.w"], "all", scale="{i}.s", tensor_scale="{i}.t", **wide)
    stack["do"].append({"stack": 0})
    mapped(t, [stack], path(t, "two.safetensors"))
    same(load_file(path(t, "mapped.safetensors")), {"all": torch.stack([want["every.weight"], want["tiny.weight"]])}, "stack")


def refused(t, tensors, *says, how=("--dequantize",)):
    save_file(tensors, path(t, "bad.safetensors"))
    text = t.run("convert", path(t, "bad.safetensors"), path(t, "bad-out.safetensors"), *how, status=2).stderr.decode()
    for word in says:
        need(word in text, f"{word!r} is not in: {text}")
    need(not os.path.exists(path(t, "bad-out.safetensors")), "a refusal wrote a file")


def test_refusals(t):
    def fp8(*shape):
        return torch.ones(*shape).to(torch.float8_e4m3fn)
    w, s, one = torch.zeros(4, 16, dtype=torch.uint8), fp8(4, 2), torch.tensor(0.5)
    refused(t, {"w": w, "w_scale": s, "w_scale_2": one}, "'w' is scaled by 'w_scale'", "--raw-cast", how=("--dtype", "bfloat16"))
    for shape in ((4, 1), (4, 4), (3, 2), (1, 4, 2)):
        refused(t, {"w": w, "w_scale": fp8(*shape), "w_scale_2": one}, f"'w_scale' {list(shape)} does not fit 'w' [4, 16]")
    refused(t, {"w": w[:, :12].contiguous(), "w_scale": s, "w_scale_2": one}, "'w_scale' [4, 2] does not fit 'w' [4, 12]")
    refused(t, {"w": w, "w_scale": s, "w_scale_2": torch.ones(4)}, "'w_scale_2' [4] does not fit 'w' [4, 16]")
    refused(t, {"w": w, "w_scale": s, "w_scale_2": one.bfloat16()}, "'w_scale_2' is bfloat16", "float32")
    stacked = {"w": w[None].repeat(3, 1, 1), "w_scale": fp8(3, 4, 2)}
    for shape in ((3,), (2, 1, 1), (1, 3, 1)):
        refused(t, {**stacked, "w_scale_2": torch.ones(shape)}, f"'w_scale_2' {list(shape)} does not fit 'w' [3, 4, 16]")
    refused(t, {"w_packed": w, "w_scale": s, "w_global_scale": one, "w_zero_point": w.clone()}, "'w_packed' has a zero point, 'w_zero_point'")
    refused(t, {"w_packed": w, "w_scale": s, "w_global_scale": one, "w": torch.ones(3)}, "'w' would be written twice")
    refused(t, {"w": w, "w_scale": s}, "'w' is scaled by 'w_scale', in a form that --dequantize does not support")  # without the scale of the tensor it could be another form
    refused(t, {"w": w, "w_scale": s, "v": fp8(2, 2), "v_scale": one}, "'w' is scaled by 'w_scale'")


def test_refusals_of_the_step(t):
    w, s, one = torch.zeros(4, 16, dtype=torch.uint8), torch.ones(4, 2).to(torch.float8_e4m3fn), torch.tensor(0.5)
    save_file({"w": w, "s": s, "t": one}, path(t, "in.safetensors"))
    for step, says in (({"scale": "s"}, "tensor_scale or global_scale with the scheme nvfp4"),
                       ({"scale": "s", "tensor_scale": "t", "scheme": "row"}, "and only with it"),
                       ({"scale": "s", "tensor_scale": "t", "global_scale": "t"}, "not both"),
                       ({"scale": "s", "tensor_scale": ["t", "t"]}, "names 2 scales for 1 tensors"),
                       ({"scale": "s", "tensor_scale": "u"}, "no rule of the map matches 't'"),
                       ({"scale": "s", "tensor_scale": "t", "block": [1, 16]}, "only with the scheme block"),
                       ({"scale": "t", "tensor_scale": "s"}, "'w' is uint8 with scales 't' in float32")):
        text = mapped(t, [rule(["w"], "v", **step)], path(t, "in.safetensors"), status=2).stderr.decode()
        need(says in text, f"{says!r} is not in: {text}")
