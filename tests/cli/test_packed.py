"""--dequantize of packed numbers: companions that are wrong, lost or hostile are refused by name; maps and adapters apply to what they
amount to. --config: the config.json next to the output."""
import json
import os
import struct

from harness import need, st_write, test

BF16 = {0: 0x0000, 1: 0x3F80, 2: 0x4000, -1: 0xBF80, -2: 0xC000, 3: 0x4040, -3: 0xC040, 7: 0x40E0, -8: 0xC100}


def words(*values):
    return struct.pack(f"<{len(values)}I", *(v & 0xFFFFFFFF for v in values))


def longs(*values):
    return ("I64", [len(values)], struct.pack(f"<{len(values)}q", *values))


def i32(shape, *values):
    return ("I32", shape, words(*values))


def half(shape, *values):
    return ("F16", shape, struct.pack(f"<{len(values)}e", *values))


def f32(shape, *values):
    return ("F32", shape, struct.pack(f"<{len(values)}f", *values))


def state(**more):
    text = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": [2, 3], **more}).encode()
    return ("U8", [len(text)], text)


def settings(method, **more):
    return {"model_type": "llama", "torch_dtype": "bfloat16", "quantization_config": {"quant_method": method, **more}}


# 8 numbers of 4 bits per word. Each: what config.json says, and the tensors of one weight of 2 rows.
FORMS = {
    "packed": (settings("compressed-tensors", config_groups={"g": {"weights": {"num_bits": 4, "group_size": 8, "symmetric": False}}}), {
        "m.weight_packed": i32([2, 2], 0x01234567, 0x89ABCDEF, 0x11111111, 0x22222222), "m.weight_scale": half([2, 2], 1, 2, 3, 4),
        "m.weight_shape": longs(2, 16), "m.weight_zero_point": i32([1, 2], 0x98, 0x76), "m.weight_g_idx": i32([16], *range(2), *range(2), *([0, 1] * 6))}),
    "gptq": (settings("gptq", bits=4, group_size=8), {
        "m.qweight": i32([2, 8], *range(16)), "m.qzeros": i32([2, 1], 1, 2), "m.scales": half([2, 8], *range(16)), "m.g_idx": i32([16], *([0] * 8 + [1] * 8))}),
    "awq": (settings("awq", bits=4, group_size=2), {
        "m.qweight": i32([4, 1], *range(4)), "m.qzeros": i32([2, 1], 1, 2), "m.scales": half([2, 8], *range(16))}),
    "nf4": (settings("bitsandbytes"), {
        "m.weight": ("U8", [3, 1], b"\x12\x34\x56"), "m.weight.absmax": ("U8", [1], b"\x05"), "m.weight.quant_map": f32([16], *range(16)),
        "m.weight.nested_absmax": f32([1], 2), "m.weight.nested_quant_map": f32([256], *range(256)),
        "m.weight.quant_state.bitsandbytes__nf4": state(nested_blocksize=256, nested_dtype="float32", nested_offset=0.5)}),
    "int8": (settings("bitsandbytes"), {"m.weight": ("I8", [2, 3], bytes([1, 2, 3, 255, 254, 253])), "m.SCB": f32([2], 127, 254), "m.weight_format": ("U8", [], b"\0")}),
}


def model(t, config, tensors, name="model"):
    os.makedirs(t.at(name), exist_ok=True)
    st_write(t.at(name, "model.safetensors"), {k: v for k, v in tensors.items() if v})
    with open(t.at(name, "config.json"), "w") as f:
        json.dump(config, f)
    return t.at(name)


def refused(t, form, changes, *says, config=None, args=()):
    base, tensors = FORMS[form]
    path = model(t, {**base, "quantization_config": {**base["quantization_config"], **(config or {})}}, {**tensors, **changes})
    said = t.run("convert", path, t.at("out.safetensors"), "--dequantize", *args, status=2).stderr.decode()
    need(all(s in said for s in says) and not os.path.exists(t.at("out.safetensors")), f"{form} {list(changes)} {config}: {said}")


@test
def test_packed_weights_replace_their_parts(t):
    shapes = {"packed": [2, 16], "gptq": [8, 16], "awq": [8, 4], "nf4": [2, 3], "int8": [2, 3]}
    for form, (config, tensors) in FORMS.items():
        t.run("convert", model(t, config, {**tensors, "m.bias": half([2], 1, 2)}), t.at("out.safetensors"), "--dequantize", "--overwrite")
        got = {e["fqn"]: (e["dtype"], e["shape"]) for e in t.json("inspect", t.at("out.safetensors"), "--json")["entries"]}
        need(got == {"m.weight": ("bfloat16", shapes[form]), "m.bias": ("float16", [2])}, f"{form}: {got}")


@test
def test_companions_that_do_not_fit_are_refused_by_name(t):
    for form, changes, says in (
            ("packed", {"m.weight_scale": half([2, 3], *range(6))}, ("'m.weight_packed'", "'m.weight_scale'")),
            ("packed", {"m.weight_scale": half([3, 2], *range(6))}, ("'m.weight_packed'", "'m.weight_scale'")),
            ("packed", {"m.weight_scale": half([2, 1], 1, 2)}, ("'m.weight_packed'", "'m.weight_scale'", "config_groups")),
            ("packed", {"m.weight_scale": None}, ("'m.weight_packed'", "m.weight_scale'")),
            ("packed", {"m.weight_shape": None}, ("'m.weight_packed'", "m.weight_shape'")),
            ("packed", {"m.weight_shape": longs(3, 16)}, ("'m.weight_packed'", "'m.weight_shape'")),
            ("packed", {"m.weight_shape": longs(2, -16)}, ("'m.weight_packed'", "'m.weight_shape'")),
            ("packed", {"m.weight_shape": longs(2, 1 << 62)}, ("'m.weight_packed'", "'m.weight_s")),
            ("packed", {"m.weight_shape": longs(2, 3)}, ("'m.weight_packed'", "'m.weight_s")),
            ("packed", {"m.weight_zero_point": None}, ("'m.weight_packed'", "'m.weight_scale'", "zero")),
            ("packed", {"m.weight_zero_point": i32([2, 2], *range(4))}, ("'m.weight_packed'", "'m.weight_zero_point'")),
            ("packed", {"m.weight_g_idx": i32([16], *range(16))}, ("'m.weight_g_idx'", "'m.weight_packed'", "'m.weight_scale'")),
            ("packed", {"m.weight_g_idx": i32([15], *([0] * 15))}, ("'m.weight_g_idx'", "'m.weight_packed'")),
            ("gptq", {"m.g_idx": i32([16], *([0] * 15 + [2]))}, ("'m.g_idx'", "'m.qweight'", "'m.scales'")),
            ("gptq", {"m.g_idx": i32([16], *([0] * 15 + [-1]))}, ("'m.g_idx'", "'m.qweight'", "'m.scales'")),
            ("gptq", {"m.g_idx": i32([3], 0, 0, 0)}, ("'m.g_idx'", "'m.qweight'")),
            ("gptq", {"m.qzeros": None}, ("'m.qweight'", "m.qzeros'")),
            ("gptq", {"m.qzeros": i32([2, 2], 1, 2, 3, 4)}, ("'m.qweight'", "'m.qzeros'")),
            ("gptq", {"m.scales": half([2, 7], *range(14))}, ("'m.qweight'", "'m.scales'")),
            ("gptq", {"m.scales": None}, ("'m.qweight'", "m.scales'")),
            ("awq", {"m.qzeros": None}, ("'m.qweight'", "m.qzeros'")),
            ("awq", {"m.scales": half([3, 8], *range(24))}, ("'m.qweight'", "'m.scales'")),
            ("awq", {"m.scales": half([2, 16], *range(32))}, ("'m.qweight'", "'m.scales'")),
            ("awq", {"m.qzeros": i32([1, 2], 1, 2)}, ("'m.qweight'", "'m.qzeros'")),
            ("nf4", {"m.weight.absmax": ("U8", [2], b"\x05\x06")}, ("'m.weight'", "'m.weight.absmax'")),
            ("nf4", {"m.weight.absmax": f32([1], 1)}, ("'m.weight'", "'m.weight.absmax'")),
            ("nf4", {"m.weight.absmax": None}, ("'m.weight'", "m.weight.absmax'")),
            ("nf4", {"m.weight.nested_absmax": None}, ("'m.weight'", "m.weight.nested_absmax'")),
            ("nf4", {"m.weight.nested_quant_map": f32([255], *range(255))}, ("'m.weight'", "'m.weight.nested_quant_map'")),
            ("nf4", {"m.weight.quant_state.bitsandbytes__nf4": None}, ("'m.weight'", "'m.weight.absmax'")),
            ("int8", {"m.SCB": f32([3], 1, 2, 3)}, ("'m.weight'", "'m.SCB'")),
            ("int8", {"m.SCB": half([2], 1, 2)}, ("'m.weight'", "'m.SCB'")),
            ("int8", {"m.weight_format": ("U8", [], b"\1")}, ("'m.weight'", "'m.SCB'"))):
        refused(t, form, changes, *says)


@test
def test_hostile_quant_states_are_refused(t):
    name = "m.weight.quant_state.bitsandbytes__nf4"
    whole = {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5}
    for more in ({"blocksize": 0}, {"blocksize": 63}, {"blocksize": -64}, {"shape": [2, 4]}, {"shape": []}, {"shape": [-2, -3]}, {"shape": [1 << 40, 1 << 40]}, {"shape": "2"}, {"dtype": "int8"},
                 {"dtype": None}, {"nested_blocksize": 0}, {"nested_offset": None}, {"nested_dtype": "float16"}):
        refused(t, "nf4", {name: state(**{**whole, **more})}, f"'{name}'", "m.weight")
    for raw in (b"", b"[]", b"{", b'{"blocksize": NaN}', b"\xff" * 70000):
        refused(t, "nf4", {name: ("U8", [len(raw)], raw)}, f"'{name}'", "'m.weight'")


@test
def test_layouts_that_config_json_does_not_name_are_refused(t):
    by_auto_round = {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}
    for form, config, says in (("gptq", {"checkpoint_format": "gptq_p"}, "gptq_p"), ("gptq", {"quant_method": "quip"}, "quip"),
                               ("gptq", {**by_auto_round, "packing_format": "auto_round:llm_compressor"}, "'auto_round:llm_compressor'"),
                               ("gptq", {**by_auto_round, "extra_config": {"model\\..*": {"bits": 8}}}, "'model\\..*'"),
                               ("awq", {"version": "gemv"}, "gemv"), ("awq", {"bits": 3}, "bits"), ("awq", {"group_size": 4}, "'m.scales'")):
        refused(t, form, {}, "'m.qweight'", "'m.scales'", says, config=config)
    refused(t, "gptq", {"m.g_idx": None}, "'m.qweight'", "g_idx", config={"desc_act": True})
    refused(t, "gptq", {"m.g_idx": None}, "'m.qweight'", "'m.scales'", config={"group_size": 4})
    refused(t, "gptq", {"m.g_idx": None}, "'m.qweight'", "'m.scales'", config={**by_auto_round, "extra_config": {"m": {"bits": 8}}})
    refused(t, "gptq", {"m.g_idx": None}, "'m.qweight'", "'model.m'", config={**by_auto_round, "extra_config": {"model.m": {"bits": 8, "group_size": 4}}})  # 16 columns fit, too
    _, tensors = FORMS["gptq"]
    st_write(t.at("lone.safetensors"), tensors)
    said = t.run("convert", t.at("lone.safetensors"), t.at("out.safetensors"), "--dequantize", status=2).stderr.decode()
    need("'m.qweight'" in said and "config.json" in said, said)
    need(b"there are no quantized tensors" in t.run("convert", model(t, {}, {"m.bias": half([2], 1, 2)}), t.at("out.safetensors"), "--dequantize", status=2).stderr, "it dequantized nothing")


@test
def test_maps_and_adapters_apply_to_dequantized_weights(t):
    config, tensors = FORMS["int8"]
    path = model(t, config, tensors)
    with open(t.at("map.json"), "w") as f:
        json.dump({"schema": "tessera.map/1", "rules": [{"from": ["m.weight"], "to": ["n.weight"], "do": [{"transpose": [1, 0]}]}]}, f)
    os.makedirs(t.at("adapter"))
    st_write(t.at("adapter", "adapter_model.safetensors"), {"base_model.model.m.lora_A.weight": f32([1, 3], 1, 0, 0), "base_model.model.m.lora_B.weight": f32([2, 1], 0, 4)})
    with open(t.at("adapter", "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["m"]}, f)
    t.run("convert", path, t.at("out.safetensors"), "--dequantize", "--lora", t.at("adapter"), "--map", t.at("map.json"), "--dtype", "float32")
    with open(t.at("out.safetensors"), "rb") as f:
        raw = f.read()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    begin, end = header["n.weight"]["data_offsets"]
    got = struct.unpack("<6f", raw[8 + size + begin:8 + size + end])
    need(header["n.weight"]["shape"] == [3, 2] and all(abs(a - b) < 1e-5 for a, b in zip(got, (1, 2, 2, -4, 3, -6))), got)  # rows 1 2 3 and -2 -4 -6, plus 4


@test
def test_integers_with_the_name_of_packed_numbers_stay(t):
    config, tensors = FORMS["int8"]
    others = {"a.table_packed": i32([2, 2], 1, 2, 3, 4), "b.qweight": i32([2], 1, 2), "c.weight": ("U8", [3], b"abc")}
    t.run("convert", model(t, config, {**tensors, **others}), t.at("out.safetensors"), "--dequantize")
    got = {e["fqn"]: (e["dtype"], e["shape"]) for e in t.json("inspect", t.at("out.safetensors"), "--json")["entries"]}
    need(got == {"m.weight": ("bfloat16", [2, 3]), "a.table_packed": ("int32", [2, 2]), "b.qweight": ("int32", [2]), "c.weight": ("uint8", [3])}, got)


def config_of(t, *names):
    with open(t.at(*names)) as f:
        return f.read()


@test
def test_config_json_is_copied_with_what_changes(t):
    config, tensors = FORMS["awq"]
    config = {"a": [1e-05, "}\"{"], **config, "text_config": {"dtype": "float16", "quantization_config": {"x": 1}, "n": {"dtype": "float16"}}, "vision_config": {"torch_dtype": None}, "z": "é"}
    path = model(t, config, tensors)
    t.run("convert", path, t.at("plain.safetensors"), "--config")
    need(config_of(t, "config.json") == config_of(t, "model", "config.json"), "it is not the same without a change")
    t.run("convert", path, t.at("again.safetensors"), "--config")  # the same bytes are already there
    del config["quantization_config"], config["text_config"]["quantization_config"]
    said = t.run("convert", path, t.at("one") + "/", "--to", "safetensors", "--dequantize", "--config").stderr.decode()
    need(json.loads(config_of(t, "one", "config.json")) == config and "remove" not in said and "without quantization_config" in said, said)
    t.run("convert", path, t.at("many"), "--max-shard-size", "1K", "--dequantize", "--dtype", "float32", "--config")
    config["torch_dtype"] = config["text_config"]["dtype"] = "float32"
    need(json.loads(config_of(t, "many", "config.json")) == config, config_of(t, "many", "config.json"))
    need(list(json.loads(config_of(t, "many", "config.json"))) == list(config), "the order of the members has changed")
    said = t.run("convert", t.at("many"), t.at("fp8") + "/", "--to", "safetensors", "--quantize", "fp8-block", "--config").stderr.decode()
    quantized = json.loads(config_of(t, "fp8", "config.json"))
    need(quantized.pop("quantization_config")["quant_method"] == "fp8" and quantized == config and "add this" not in said, said)


@test
def test_config_json_never_replaces_another(t):
    config, tensors = FORMS["awq"]
    path, other = model(t, config, tensors), t.at("config.json")
    with open(other, "w") as f:
        f.write("mine")
    for args in ([], ["--overwrite"]):
        said = t.run("convert", path, t.at("out.safetensors"), "--dequantize", "--config", *args, status=2).stderr.decode()
        need(other in said and config_of(t, "config.json") == "mine" and not os.path.exists(t.at("out.safetensors")), said)
    t.run("convert", path, t.at("model", "out.safetensors"), "--dequantize", "--config", status=2)
    os.unlink(other)
    t.run("convert", path, t.at("out.safetensors"), "--dequantize", "--config", "--dry-run")
    need(not os.path.exists(other), "a dry run wrote it")
    os.unlink(t.at("model", "config.json"))
    said = t.run("convert", path, t.at("out.safetensors"), "--config", status=2).stderr.decode()
    need("config.json" in said and not os.path.exists(t.at("out.safetensors")), said)
