"""Arithmetic on stored numbers: casts, merges, adapters and maps do not separate quantized numbers from their scales. What casts
lose is reported, and they leave the scalars of optimizers alone."""
import json
import os
import struct

from harness import ROOT, need, st_write, test
from test_addresses import serving

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
    "comfy": ("m.q.weight", FP8, "m.q.scale_weight", F32),
    "mistral": ("m.q.weight", FP8, "m.q.qscale_weight", BF16),
    "deepseek v4": ("m.q.weight", I8, "m.q.scale", F32),
    "zero points": ("m.q.qweight", I32, "m.q.qzeros", I32),
    "shape": ("m.q.weight_packed", I32, "m.q.weight_shape", ("I64", [2], bytes(16))),
    "nf4": ("m.q.weight", U8, "m.q.weight.quant_state.bitsandbytes__nf4", ("U8", [3], b"{ }")),
    "fp4": ("m.q.weight", U8, "m.q.weight.absmax", F32),
}


def source(t, tensors, name="s.safetensors"):
    path = t.at(name)
    st_write(path, tensors)
    return path


def refused(t, data, scale, *args, advice=("--dequantize", "--raw-cast")):
    before = sorted(os.listdir(t.directory))
    said = t.run(*args, status=2).stderr.decode()
    need(f"'{data}'" in said and f"'{scale}'" in said and all(a in said for a in advice), said)
    need(sorted(os.listdir(t.directory)) == before, f"{args}: something was written")


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
    need(doc["request"]["options"]["raw-cast"] is True, doc["request"])
    need("raw-cast" not in t.json("plan", st, "--json", *mesh)["request"]["options"], "a plan without a cast has it")
    for name, raw in (("raw.json", True), ("not.json", False)):
        doc["request"]["options"]["raw-cast"] = raw
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
    golden = os.path.join(ROOT, "tests", "golden")
    for path, scale in ((os.path.join(golden, "frameworks", "torchao_float8.pt"), "scale"), (os.path.join(golden, "torchao", "nf4.pt"), "quantized_scalers")):
        for to in ("torch", "dcp", "safetensors"):
            refused(t, "weight", scale, "convert", path, t.at("out"), "--to", to, "--dtype", "float32")


# ---- sums ----

def adapter(t, modules, out=2, into=2, name="adapter"):
    """A LoRA adapter for these modules, whose weights are out x into."""
    directory = t.at(name)
    os.makedirs(directory)
    with open(os.path.join(directory, "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": [m.rsplit(".", 1)[-1] for m in modules]}, f)
    a, b = ("F32", [1, into], struct.pack(f"<{into}f", *range(1, into + 1))), ("F32", [out, 1], struct.pack(f"<{out}f", *range(1, out + 1)))
    st_write(os.path.join(directory, "adapter_model.safetensors"),
             {f"base_model.model.{m}.lora_{n}.weight": x for m in modules for n, x in (("A", a), ("B", b))})
    return directory


@test
def test_scaled_tensors_are_not_added_to(t):
    """Whatever holds the weight of a module: under its own name, or packed under another."""
    for i, (what, (data, numbers, scale, scales)) in enumerate(LAYOUTS.items()):
        path = source(t, {data: numbers, scale: scales, "m.norm.weight": F32}, f"{i}.safetensors")
        refused(t, data, scale, "merge", t.at("out.safetensors"), path, path, "--method", "linear", advice=["--dequantize", path])
        refused(t, data, scale, "merge", t.at("out.safetensors"), path, path, "--method", "slerp", "--t", "0.5", "--dry-run", advice=["--dequantize"])
        t.run("merge", t.at("norm.safetensors"), path, path, "--method", "linear", "--include", "m.norm.*", "--overwrite")
        if not data.startswith("m.q.") or data.endswith("._data"):
            continue
        if "qdata" in data:
            continue  # torchao's own file has the name of a parameter that no adapter has
        lora = adapter(t, ["m.q"], name=f"adapter{i}")
        for command in (["convert", path, t.at("out.safetensors"), "--lora", lora], ["merge", t.at("out.safetensors"), path, "--lora", lora]):
            for more in ([], ["--dry-run"], ["--dtype", "bfloat16"]):
                refused(t, data, scale, *command, *more, advice=["--dequantize"])


@test
def test_merges_of_equal_values_keep_negative_zeros(t):
    """So that a merge of dequantized weights with themselves is what they were dequantized to."""
    raw = struct.pack("<4f", -0.0, 0.0, -1.5, -0.0)
    path, out = source(t, {"w": ("F32", [4], raw)}), t.at("out.safetensors")
    for args in ([path, "--method", "linear", "--weight", "0.5", "--weight", "0.5"], [path, "--method", "linear", "--no-normalize", "--weight", "0.25", "--weight", "0.75"], []):
        t.run("merge", out, path, *args, "--overwrite")
        t.run("get", out, "w", "-o", t.at("w.bin"))
        with open(t.at("w.bin"), "rb") as f:
            need(f.read() == raw, f"{args}: other bits")


@test
def test_an_adapter_of_other_modules_leaves_scaled_tensors_alone(t):
    path = source(t, {"m.q.weight": FP8, "m.q.weight_scale": F32, "m.k.weight": ("F32", [2, 2], struct.pack("<4f", 1, 2, 3, 4))})
    t.run("convert", path, t.at("out.safetensors"), "--lora", adapter(t, ["m.k"]))
    t.run("get", t.at("out.safetensors"), "m.k.weight", "-o", t.at("k.bin"))
    t.run("get", t.at("out.safetensors"), "m.q.weight", "-o", t.at("q.bin"))
    with open(t.at("k.bin"), "rb") as k, open(t.at("q.bin"), "rb") as q:
        need(struct.unpack("<4f", k.read()) == (2, 4, 5, 8) and q.read() == FP8[2], "W + B.A, and the codes")


@test
def test_steps_of_maps_do_not_compute_with_scaled_tensors(t):
    path, out = source(t, {"m.q.weight": FP8, "m.q.weight_scale": F32}), t.at("out.safetensors")
    scale = {"from": ["m.q.weight_scale"], "to": ["q.weight_scale"]}

    def write(*do, rules=(scale,)):
        with open(t.at("map.json"), "w") as f:
            json.dump({"schema": "tessera.map/1", "rules": [{"from": ["m.q.weight"], "to": ["q.weight"], "do": list(do)}, *rules]}, f)
        return ["convert", path, out, "--map", t.at("map.json"), "--overwrite"]

    refused(t, "m.q.weight", "m.q.weight_scale", *write({"cast": "float32"}), advice=["--dequantize"])
    refused(t, "m.q.weight", "m.q.weight_scale", *write({"pad": 0, "to": 4, "value": 1}), advice=["--dequantize"])
    for steps in ([{"transpose": [1, 0]}], [{"pad": 0, "to": 4, "value": 0}], [{"transpose": [1, 0]}, {"reshape": [4]}]):
        t.run(*write(*steps))
    t.run(*write({"cast": "float32"}, rules=()), "--dequantize", "--dtype", "float64")
    for other in ("m.q.scale", "m.q.qscale_weight"):  # a scale that the map leaves behind
        path = source(t, {"m.q.weight": FP8, other: F32}, "t.safetensors")
        with open(t.at("kept.json"), "w") as f:
            json.dump({"schema": "tessera.map/1", "unmatched": "keep", "rules": [{"from": ["m.q.weight"], "to": ["q.weight"]}]}, f)
        said = t.run("convert", path, out, "--map", t.at("kept.json"), "--overwrite", status=2).stderr.decode()
        need("'m.q.weight'" in said and f"'{other}'" in said, said)


# ---- float8 without a known scale ----

def model(t, name, tensors, config):
    directory = t.at(name)
    os.makedirs(directory)
    st_write(os.path.join(directory, "model.safetensors"), tensors)
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(config, f)
    return directory


@test
def test_float8_without_a_scale_is_refused_under_a_quantization_config(t):
    tensors = {"m.q.weight": FP8, "m.norm.weight": F32, "scaled_fp8": ("F8_E4M3", [2], bytes(2))}
    quantized = {"quantization_config": {"quant_method": "fp8"}}
    lora, out = adapter(t, ["m.q"]), t.at("out.safetensors")
    for i, config in enumerate((quantized, {"text_config": quantized}, {"compression_config": {"format": "float-quantized"}})):
        path = model(t, f"m{i}", tensors, config)
        for command in (["convert", path, out, "--dtype", "float32"], ["convert", path, out, "--lora", lora], ["convert", path, out, "--dequantize"],
                        ["merge", out, path, path, "--method", "linear"], ["reshard", path, out, "--mesh", "dp=2", "--placements", "shard(0)", "--dtype", "float32"]):
            said = t.run(*command, status=2).stderr.decode()
            need("'m.q.weight'" in said and "quantization_config" in said and not os.path.exists(out), said)
        t.run("convert", path, t.at(f"same{i}.safetensors"))
        t.run("convert", path, t.at(f"raw{i}.safetensors"), "--dtype", "float32", "--raw-cast")
        t.run("convert", path, t.at(f"norm{i}.safetensors"), "--dtype", "bfloat16", "--include", "m.norm.*")
    plain = model(t, "plain", tensors, {"model_type": "llama"})
    t.run("convert", plain, t.at("plain.safetensors"), "--dtype", "float32")
    t.run("convert", plain, t.at("lora.safetensors"), "--lora", lora)


@test
def test_a_single_file_is_quantized_as_its_directory_is(t):
    tensors = {"m.q.weight": FP8, "m.norm.weight": F32}
    lora, out = adapter(t, ["m.q"]), t.at("out.safetensors")
    for name, config, fails in (("fp8", {"quantization_config": {"quant_method": "fp8"}}, True), ("text", {"text_config": {"quantization_config": {}}}, True), ("plain", {"model_type": "llama"}, False)):
        directory = model(t, name, tensors, config)
        os.rename(os.path.join(directory, "model.safetensors"), os.path.join(directory, "model-00001-of-00002.safetensors"))
        path = os.path.join(directory, "model-00001-of-00002.safetensors")
        os.symlink(directory, t.at(f"link-{name}"))
        with serving(t.directory) as server:
            for at in (path, os.path.join(t.at(f"link-{name}"), os.path.basename(path)), f"{server.url}{name}/{os.path.basename(path)}"):
                for command in (["convert", at, out, "--dtype", "float32"], ["convert", at, out, "--lora", lora], ["merge", out, at, at, "--method", "linear"]):
                    said = t.run(*command, "--overwrite", status=2 if fails else 0).stderr.decode()
                    need(not fails or ("'m.q.weight'" in said and "quantization_config" in said), said)
                t.run("convert", at, out, "--overwrite")
                t.run("convert", at, out, "--overwrite", "--dtype", "float32", "--raw-cast")
        said = t.run("convert", path, out, "--dequantize", "--overwrite", status=2).stderr.decode()
        need(("quantization_config" in said) == fails, said)
    os.remove(os.path.join(t.at("fp8"), "config.json"))
    os.makedirs(os.path.join(t.at("fp8"), "config.json"))
    t.run("convert", os.path.join(t.at("fp8"), "model-00001-of-00002.safetensors"), out, "--dtype", "float32", "--overwrite")
    write = os.path.join(t.at("text"), "config.json")
    with open(write, "w") as f:
        f.write("{")
    said = t.run("convert", os.path.join(t.at("text"), "model-00001-of-00002.safetensors"), out, "--dtype", "float32", "--overwrite", status=2).stderr.decode()
    need("config.json" in said, said)


@test
def test_dequantize_reads_the_same_numbers_under_every_name(t):
    """What each form multiplies to is compared with its library elsewhere; a name changes nothing."""
    one, want = ("F32", [1], struct.pack("<f", 2)), struct.pack("<4f", 2, 4, -4, 1)
    for i, (name, config) in enumerate((("weight_scale", None), ("weight_scale_inv", None), ("scale_weight", None), ("qscale_weight", {"quantization_config": {}}), ("scale", None))):
        path = model(t, f"m{i}", {"m.q.weight": FP8, f"m.q.{name}": one, "m.norm.weight": F32}, config or {})
        said = t.run("convert", path, t.at(f"{i}.safetensors"), "--dequantize", "--dtype", "float32").stderr.decode()
        t.run("get", t.at(f"{i}.safetensors"), "m.q.weight", "-o", t.at("x.bin"))
        with open(t.at("x.bin"), "rb") as f:
            need(f.read() == want, f"{name}: other products")
        names = {e["fqn"] for e in t.json("inspect", t.at(f"{i}.safetensors"), "--json")["entries"]}
        need(names == {"m.q.weight", "m.norm.weight"} and ("quantization_config" in said) == bool(config), (names, said))


@test
def test_dequantize_names_what_it_does_not_support(t):
    norm = {"m.norm.weight": F32, "m.k.weight": FP8, "m.k.weight_scale": F32}
    for i, (data, numbers, scale, scales) in enumerate((("m.q.qweight", I32, "m.q.scales", F16), ("m.q.weight_packed", I32, "m.q.weight_scale", F16),
                                                        ("m.q.weight", U8, "m.q.weight.absmax", F32))):
        for others in ({}, norm):
            path = source(t, {data: numbers, scale: scales, **others}, f"{i}.safetensors")
            for more in ([], ["--dtype", "float32"]):
                refused(t, data, scale, "convert", path, t.at("out.safetensors"), "--dequantize", *more,
                        advice=["no quant_state" if scale.endswith("absmax") else "does not support"])
    said = t.run("convert", source(t, {"m.norm.weight": F32}), t.at("out.safetensors"), "--dequantize", status=2).stderr.decode()
    need("there are no" in said, said)


# ---- what casts lose ----

def lossy(t):
    """Values of which float16 loses 5 and 3: PyTorch's own rounding is in tests/stream."""
    values = [1e-9, -2e-8, 0.0, -0.0, 1.0, 7e4, -65520.0, 65519.0, float("inf"), float("nan"), 1e-30, 3e-8, 1e38, 2.9e-8, -1e-9]
    return source(t, {"a.ones": ("F32", [600], struct.pack("<600f", *[1] * 600)), "b.mixed": ("F32", [15], struct.pack("<15f", *values)),
                      "c.small": ("F32", [4, 3000], struct.pack("<12000f", *([1e-9, 1] * 6000)))}, "lossy.safetensors")


ZEROS, OVERFLOWS = "6,005 values became zero in the cast to float16, first in '{}'", "3 values became infinite in the cast to float16, first in '{}'"


@test
def test_values_that_casts_lose_are_counted(t):
    path, half, mesh = lossy(t), ["--dtype", "float16"], ["--mesh", "dp=2", "--placements", "shard(0)"]
    with open(t.at("map.json"), "w") as f:
        json.dump({"schema": "tessera.map/1", "rules": [{"from": ["{n...}"], "to": ["x.{n...}"], "do": [{"cast": "float16"}]}]}, f)
    commands = [(["convert", path, t.at("0.safetensors"), *half], ""), (["convert", path, t.at("1"), "--to", "dcp", *half, "--threads", "2"], ""),
                (["convert", path, t.at("2.pt"), *half, "--max-mem", "64KiB"], ""), (["reshard", path, t.at("3"), "--to", "dcp", *mesh, *half], ""),
                (["merge", t.at("4.safetensors"), path, path, "--method", "linear", *half], ""),
                (["convert", path, t.at("5.safetensors"), "--map", t.at("map.json")], "x."), (["reshard", path, t.at("6"), "--to", "dcp", *mesh, "--map", t.at("map.json")], "x.")]
    for command, prefix in commands:
        want = [ZEROS.format(prefix + "b.mixed"), OVERFLOWS.format(prefix + "b.mixed")]
        done = t.run(*command, "--json")
        doc = json.loads(done.stdout)
        need(doc["warnings"] == want and all(w in done.stderr.decode() for w in want), (command, doc["warnings"]))
    need(t.json("convert", path, t.at("dry"), "--to", "dcp", *half, "--dry-run", "--json")["warnings"] == [], "nothing was cast")
    for dtype in ("float64", "bfloat16"):
        want = ["1 value became infinite in the cast to bfloat16, first in 'b'"] if dtype == "bfloat16" else []
        source(t, {"b": ("F32", [4], struct.pack("<4f", 1e-9, 3.4e38, 0, float("inf")))}, "wide.safetensors")
        need(t.json("convert", t.at("wide.safetensors"), t.at("w.safetensors"), "--dtype", dtype, "--json", "--overwrite")["warnings"] == want, dtype)
    for dtype, what in (("float8_e4m3fn", "became the largest number of"), ("float8_e5m2", "became infinite"), ("float8_e4m3fnuz", "became NaN")):
        source(t, {"b": ("BF16", [2], struct.pack("<2H", 0x4780, 0x3f80))}, "large.safetensors")  # 65536, 1
        got = t.json("convert", t.at("large.safetensors"), t.at("w.safetensors"), "--dtype", dtype, "--json", "--overwrite")["warnings"]
        need(len(got) == 1 and got[0].startswith(f"1 value {what}"), got)


@test
def test_values_that_casts_lose_are_counted_in_parts(t):
    """Each part counts its own; the one that finishes reports all of them. Products of scales count, too."""
    plan = t.json("plan", lossy(t), "--mesh", "dp=2", "--placements", "shard(0)", "--to", "dcp", "--dtype", "float16", "--json")
    with open(t.at("plan.json"), "w") as f:
        json.dump(plan, f)
    for i in (1, 2):
        t.run("exec", t.at("plan.json"), t.at("out"), "--share", f"{i}/2")
    doc = t.json("exec", t.at("plan.json"), t.at("out"), "--finish", "--json")
    need(doc["warnings"] == [ZEROS.format("b.mixed"), OVERFLOWS.format("b.mixed")], doc["warnings"])
    numbers = ("F8_E4M3", [128, 128], bytes([0x7E, 0x38, 0x00, 0x01] * 4096))  # 448, 1, 0, 2^-9
    path = source(t, {"m.weight": numbers, "m.weight_scale": ("F32", [1], struct.pack("<f", 1000))}, "fp8.safetensors")
    small = source(t, {"m.weight": numbers, "m.weight_scale": ("F32", [1], struct.pack("<f", 1e-5))}, "small.safetensors")
    for command in (["convert", path, t.at("p.safetensors")], ["convert", path, t.at("q.safetensors"), "--max-mem", "64KiB"]):
        got = t.json(*command, "--dequantize", "--dtype", "float16", "--json")["warnings"]
        need(got == ["4,096 values became infinite in the cast to float16, first in 'm.weight'"], got)
    got = t.json("convert", small, t.at("r.safetensors"), "--dequantize", "--dtype", "float16", "--json")["warnings"]
    need(got == ["4,096 values became zero in the cast to float16, first in 'm.weight'"], got)


# ---- scalars of optimizers ----

STEP = ("F32", [], struct.pack("<f", 1001))
KEPT = {  # names of one optimizer's state in each form, of which "step" stays float32
    "nested": ["optim.state.fc.weight.step", "optim.param_groups.0.lr"],
    "without groups": ["optimizer.state.0.step", "optimizer.state.0.exp_avg"],
    "several": ["optimizers_1.state.0.step", "optimizers_1.state.1.step"],
    "in a list": ["optimizer_states.0.state.3.step", "optimizer_states.0.param_groups.0.lr"],
    "under another name": ["app.sgd.state.fc.weight.step", "app.sgd.param_groups.0.lr"],
    "alone": ["state.fc.weight.step", "state.fc.bias.exp_avg"],
    "megatron": ["common.optimizer.param_state.0.step"],
    "flat": ["optim.state.fc.weight.step", "optim.param_groups.fc.weight.lr"],
}


@test
def test_scalars_of_optimizers_are_not_cast(t):
    for what, names in KEPT.items():
        path = source(t, {n: STEP for n in names} | ({} if what == "alone" else {"model.logit_scale": STEP, "model.state.step": STEP}) | {names[0][:-4] + "moment": F32})
        for command in (["convert", path, t.at("out.safetensors"), "--dtype", "bfloat16"], ["merge", t.at("out.safetensors"), path, path, "--method", "linear", "--dtype", "bfloat16"]):
            doc = t.json(*command, "--json", "--overwrite")
            got = {e["fqn"]: e["dtype"] for e in t.json("inspect", t.at("out.safetensors"), "--json")["entries"]}
            kept = {n for n, d in got.items() if d == "float32"}
            need(kept == set(names), f"{what}: {command[0]}: {got}")
            need(command[0] == "merge" or doc["summary"]["kept"] == len(names), (what, doc["summary"]))
    said = t.run("convert", path, t.at("x.safetensors"), "--dtype", "bfloat16").stderr.decode()
    need("2 scalars of optimizer state not cast" in said, said)


@test
def test_scalars_of_models_are_cast(t):
    """Names such as "step" and "state" alone do not make an optimizer."""
    for i, names in enumerate((["step", "scaler.scale"], ["state.step", "state.weight"], ["model.state.step", "model.optim_scale"], ["optimizer.weight", "optim"],
                               ["ema.state.step", "optim.param_groups.0.lr"])):
        path = source(t, {n: STEP for n in names}, f"{i}.safetensors")
        t.run("convert", path, t.at("out.safetensors"), "--dtype", "bfloat16", "--overwrite")
        got = {e["fqn"]: e["dtype"] for e in t.json("inspect", t.at("out.safetensors"), "--json")["entries"]}
        need(all(got[n] == "bfloat16" for n in names if "param_groups" not in n), got)


@test
def test_what_comfyui_states_about_layers(t):
    """In a tensor next to the weight, or in the metadata of the file, where names may lack what precedes the model's: forms of comfy-kitchen 0.2.40. Rotated numbers and scales in another order are
    refused; what is multiplied is not called quantized any more."""
    one = b"\x38\x40\x30\xb8"  # 1, 2, 0.5, -1 as float8_e4m3fn
    plain = {"a.weight": ("F8_E4M3", [1, 4], one), "a.weight_scale": ("F32", [], struct.pack("<f", 2)), "n": ("F32", [1], struct.pack("<f", 7))}
    int8 = {"a.weight": ("I8", [2, 2], bytes([1, 2, 255, 254])), "a.weight_scale": ("F32", [2, 1], struct.pack("<2f", 2, 4))}
    blocks = {"a.weight": ("U8", [128, 32], bytes(4096)), "a.weight_scale": ("F8_E4M3", [128, 4], b"\x38" * 512), "a.weight_scale_2": ("F32", [], struct.pack("<f", 1))}

    def place(tensors, layer, by, prefix="model.diffusion_model."):
        named = {prefix + k: v for k, v in tensors.items()}
        text = json.dumps(layer).encode()
        if by == "marker":
            named[prefix + "a.comfy_quant"] = ("U8", [len(text)], text)
        layers = {prefix + "a" if by == "metadata" else "a": layer}
        st_write(t.at("in.safetensors"), named, metadata=None if by == "marker" else {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": layers}), "kept": "yes"})

    for by in ("marker", "metadata", "short"):
        for tensors, layer, want in ((plain, {"format": "float8_e4m3fn"}, [2, 4, 1, -2]), (int8, {"format": "int8_tensorwise", "convrot": False}, [2, 4, -4, -8])):
            place(tensors, layer, by)
            t.run("convert", t.at("in.safetensors"), t.at("out.safetensors"), "--dequantize", "--dtype", "float32", "--overwrite")
            doc = t.json("inspect", t.at("out.safetensors"), "--json")
            names = [e["fqn"] for e in doc["entries"]]
            kept = {k: v for k, v in (doc.get("metadata") or {}).items() if k != "format"}
            need(not any("comfy" in n or "scale" in n for n in names) and kept == ({} if by == "marker" else {"kept": "yes"}), f"{by}: {names}, {kept}")
            shown = t.run("get", t.at("out.safetensors"), "model.diffusion_model.a.weight", "--print").stdout.decode()
            need([float(x) for x in shown.replace("[", " ").replace("]", " ").replace(",", " ").split()] == want, shown)
        for tensors, layer in ((int8, {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 256}), (int8, {"format": "asym_w4a8_int8"}), (blocks, {"format": "nvfp4"}), (plain, {"format": "mxfp8"}), (plain, {})):
            place(tensors, layer, by)
            p = t.run("convert", t.at("in.safetensors"), t.at("refused.safetensors"), "--dequantize", status=2)
            need(b"'model.diffusion_model.a.weight' is in ComfyUI's form '" + layer.get("format", "").encode() in p.stderr and not os.path.exists(t.at("refused.safetensors")), p.stderr)
