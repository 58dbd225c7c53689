"""--dtype and quantized tensors: numbers are not separated from their scales, unless --raw-cast asks for it."""
import json
import os
import struct

from harness import ROOT, need, st_write, test

FP8 = ("F8_E4M3", [2, 2], bytes([0x38, 0x40, 0xC0, 0x30]))  # 1, 2, -2, 0.5
FP8_AS_BF16 = struct.pack("<4H", 0x3F80, 0x4000, 0xC000, 0x3F00)
I8 = ("I8", [2, 2], bytes([1, 2, 253, 4]))
U8 = ("U8", [2, 2], bytes([17, 2, 253, 4]))
I32 = ("I32", [2], struct.pack("<2i", 7, -9))
U32 = ("U32", [2], struct.pack("<2I", 7, 9))
F32 = ("F32", [2], struct.pack("<2f", 0.1, 3.7))
F16 = ("F16", [2], struct.pack("<2e", 0.1, 3.7))
BF16 = ("BF16", [2], struct.pack("<2H", 0x3F81, 0x4012))

# What the libraries write: {name: tensor} for the numbers, then for their scale.
LAYOUTS = {
    "deepseek": ("m.q.weight", FP8, "m.q.weight_scale_inv", F32),
    "channel": ("m.q.weight", FP8, "m.q.weight_scale", F32),
    "channel int8": ("m.q.weight", I8, "m.q.weight_scale", BF16),
    "experts": ("m.experts.gate_up_proj", FP8, "m.experts.gate_up_proj_scale_inv", F32),
    "mxfp4": ("m.experts.down_proj_blocks", U8, "m.experts.down_proj_scales", U8),
    "nvfp4": ("m.q.weight_packed", U8, "m.q.weight_scale", FP8),
    "modelopt": ("m.q.weight", U8, "m.q.weight_scale_2", F32),
    "packed": ("m.q.weight_packed", I32, "m.q.weight_scale", F16),
    "quanto": ("m.q.weight._data", I8, "m.q.weight._scale", F32),
    "torchao": ("m.q._weight_qdata", FP8, "m.q._weight_scale", F32),
    "gptq": ("m.q.qweight", I32, "m.q.scales", F16),
    "mlx": ("m.q.weight", U32, "m.q.scales", F16),
    "deepseek's own": ("m.q.weight", FP8, "m.q.scale", F32),
    "bitsandbytes": ("m.q.weight", I8, "m.q.SCB", F32),
    "at the root": ("weight", FP8, "weight_scale", F32),
}


def source(t, tensors, name="s.safetensors"):
    path = t.at(name)
    st_write(path, tensors)
    return path


def refused(t, data, scale, *args):
    before = sorted(os.listdir(t.folder))
    said = t.run(*args, status=2).stderr.decode()
    need(f"'{data}'" in said and f"'{scale}'" in said and "--raw-cast" in said, said)
    need(sorted(os.listdir(t.folder)) == before, f"{args}: something was written")


@test
def test_scaled_tensors_are_not_cast_without_their_scales(t):
    for what, (data, numbers, scale, scales) in LAYOUTS.items():
        path = source(t, {data: numbers, scale: scales, "m.norm.weight": F32})
        for dtype in ("bfloat16", "float64"):
            refused(t, data, scale, "convert", path, t.at("out.safetensors"), "--dtype", dtype)
        t.run("convert", path, t.at("out.safetensors"), "--dtype", "bfloat16", "--raw-cast")
        got = {e["fqn"]: e["dtype"] for e in t.json("inspect", t.at("out.safetensors"), "--json")["entries"]}
        floats = {"F8_E4M3", "F32", "F16", "BF16"}
        need(got["m.norm.weight"] == "bfloat16" and all((got[n] == "bfloat16") == (x[0] in floats) for n, x in ((data, numbers), (scale, scales))), got)
        os.unlink(t.at("out.safetensors"))


@test
def test_scaled_tensors_in_every_form_and_command(t):
    data, numbers, scale, scales = LAYOUTS["deepseek"]
    st = source(t, {data: numbers, scale: scales, "m.norm.weight": F32})
    mesh = ["--mesh", "dp=2", "--placements", "shard(0)"]
    t.run("convert", st, t.at("one.pt"), "--to", "torch")
    t.run("convert", st, t.at("dcp"), "--to", "dcp")
    t.run("convert", st, t.at("shards"), "--to", "safetensors", "--max-shard-size", "10")
    t.run("reshard", st, t.at("ranks"), "--to", "torch", *mesh)
    t.run("reshard", st, t.at("dcp_safetensors"), "--to", "safetensors", *mesh)
    for path in (st, t.at("one.pt"), t.at("dcp"), t.at("shards"), t.at("ranks"), t.at("dcp_safetensors")):
        for to in ("safetensors", "torch", "dcp"):
            refused(t, data, scale, "convert", path, t.at("out"), "--to", to, "--dtype", "bfloat16")
            refused(t, data, scale, "convert", path, t.at("out"), "--to", to, "--dtype", "bfloat16", "--dry-run")
            refused(t, data, scale, "reshard", path, t.at("out"), "--to", to, "--dtype", "bfloat16", *mesh)
        refused(t, data, scale, "plan", path, "--dtype", "bfloat16", "--json", *mesh)
        t.run("plan", path, "--dtype", "bfloat16", "--json", *mesh, "--include", "m.norm.*")


@test
def test_scaled_tensors_of_a_plan(t):
    data, numbers, scale, scales = LAYOUTS["deepseek"]
    st = source(t, {data: numbers, scale: scales})
    mesh = ["--mesh", "dp=2", "--placements", "shard(0)", "--to", "safetensors"]
    doc = t.json("plan", st, "--dtype", "bfloat16", "--raw-cast", "--json", *mesh)
    need(doc["destination"]["raw_cast"] is True, doc["destination"])
    need("raw_cast" not in t.json("plan", st, "--json", *mesh)["destination"], "a plan without a cast has it")
    for name, raw in (("raw.json", True), ("not.json", False)):
        doc["destination"]["raw_cast"] = raw
        with open(t.at(name), "w") as f:
            json.dump(doc, f)
    refused(t, data, scale, "exec", t.at("not.json"), t.at("out"))
    t.run("exec", t.at("raw.json"), t.at("out"))
    t.run("get", t.at("out"), data, "-o", t.at("x.bin"))
    with open(t.at("x.bin"), "rb") as f:
        need(f.read() == FP8_AS_BF16, "the stored numbers were not cast")


@test
def test_scaled_tensors_with_names_selected_and_changed(t):
    data, numbers, scale, scales = LAYOUTS["deepseek"]
    st, out = source(t, {data: numbers, scale: scales, "m.norm.weight": F32}), t.at("out.safetensors")
    for args in (["--include", data], ["--exclude", scale], ["--include", scale], ["--exclude", data], ["--rename", "m.=model."],
                 ["--rename", f"{scale}=m.q.other"]):
        refused(t, data, scale, "convert", st, out, "--dtype", "bfloat16", *args)
    refused(t, data, scale, "convert", st, out, "--dtype", "float8_e4m3fn")  # only the scale would be cast
    for dtype, args in (("float8_e4m3fn", ["--include", data]), ("float32", ["--include", scale]), ("bfloat16", ["--include", "m.norm.*"]),
                        ("bfloat16", ["--exclude", "m.q.*"])):
        t.run("convert", st, out, "--dtype", dtype, *args, "--overwrite")
    need(b"--dtype" in t.run("convert", st, t.at("x.safetensors"), "--raw-cast", status=2).stderr, "--raw-cast alone is not refused")
    need(b"--dtype" in t.run("plan", st, "--raw-cast", "--mesh", "dp=2", "--placements", "shard(0)", status=2).stderr, "plan takes it")
    said = t.run("convert", source(t, {f"m.{i}.{n}": x for i in range(12) for n, x in (("weight", FP8), ("weight_scale", F32))}),
                 t.at("x.safetensors"), "--dtype", "bfloat16", status=2).stderr
    need(b"'m.0.weight'" in said and b"11 more" in said, said)


@test
def test_scaled_is_not_what_merely_has_a_scale_beside_it(t):
    plain = {"m.norm.scale": F32, "m.norm.weight": F32, "m.q.weight": BF16, "m.q.weight_scale": F32, "m.q.input_scale": F32,
             "logit_scale": F32, "logit": F32, "m.alone.weight": FP8, "m.ids": I32, "m.ids_scale": F32, "m.step_scale": F32,
             "m.other.weight": ("I64", [1], bytes(8)), "m.other.scale": F32, "m.mask": I8, "n.mask_scale": F32}
    path = source(t, plain)
    for to in ("safetensors", "torch", "dcp"):
        t.run("convert", path, t.at(to), "--to", to, "--dtype", "bfloat16")
        got = {e["fqn"]: e["dtype"] for e in t.json("inspect", t.at(to), "--json")["entries"]}
        need(got["m.norm.scale"] == got["m.alone.weight"] == got["logit_scale"] == "bfloat16" and got["m.ids"] == "int32", got)


@test
def test_scaled_tensors_of_torchao(t):
    path = os.path.join(ROOT, "tests", "golden", "frameworks", "torchao_float8.pt")
    for to in ("torch", "dcp", "safetensors"):
        refused(t, "weight", "scale", "convert", path, t.at("out"), "--to", to, "--dtype", "float32")
