"""Requests: a plan contains one, and `tessera exec` does what the command itself would do with its options, as a whole and in shares."""
import json
import os
import struct

from harness import ROOT, need, sample, st_write, test
from test_plans import deep_tree, tree
from test_scaled import FP8, adapter, model

MESH = ("--mesh", "dp=2", "--placements", "shard(0)")
MAP = {"schema": "tessera.map/1", "rules": [{"from": ["{rest...}"], "to": ["net.{rest...}"]}]}
SHARDS = {"schema": "tessera.shards/1", "rules": [{"match": "big", "concat": 0}, {"match": "**", "replicate": True}]}


def document(t, name, content):
    with open(t.at(name), "w") as f:
        json.dump(content, f)
    return t.at(name)


def two_units(t):
    """A file of two units of work (16 MiB), each of whose rows is different."""
    path = t.at("big.safetensors")
    st_write(path, {"big": ("F32", [4500, 1024], b"".join(struct.pack("<f", i / 7) * 1024 for i in range(4500))),
                    "mid": ("BF16", [10, 2048], bytes(range(1, 41)) * 1024), "a": ("F32", [5], struct.pack("<5f", 1, 2, 3, 4, 5)), "b": ("I64", [3], bytes(range(24)))})
    return path


def planned(t, name, *args):
    plan = t.at(name + ".json")
    with open(plan, "wb") as f:
        f.write(t.run("plan", *args, "--json").stdout)
    return plan


def same(t, name, dest, path, *args, command="convert"):
    """Compares what the command writes with what exec writes, in two shares and as a whole."""
    want, out, whole = t.at(f"{name}-want{dest}"), t.at(f"{name}-shares{dest}"), t.at(f"{name}-whole{dest}")
    t.run(command, path, want, *args)
    plan = planned(t, name, path, *args)
    for share in ("2/2", "1/2"):
        t.run("exec", plan, out, "--share", share)
        need(not os.path.exists(out), f"{name}: a share is published")
    t.run("exec", plan, out, "--finish")
    t.run("exec", plan, whole)
    read = deep_tree if os.path.isdir(want) else tree
    need(read(out) == read(want) == read(whole), f"{name}: exec writes other bytes than {command}")
    return plan


@test
def test_exec_does_what_convert_does(t):
    path, ranks = two_units(t), document(t, "rules.json", SHARDS)
    mapped = document(t, "map.json", MAP)
    for name, dest, args in (("cast", ".safetensors", ("--dtype", "bfloat16")), ("torch", ".pt", ("--to", "torch", "--for-torch", "2.3")),
                             ("dcp", "", ("--to", "dcp", "--no-checksums")), ("shards", "", ("--max-shard-size", "24MB")),
                             ("chosen", ".safetensors", ("--include", "*", "--exclude", "mid", "--rename", "big=large", "--rename", "a=z")),
                             ("canonical", ".safetensors", ("--rename", "*=module.*", "--canonical")), ("stripped", ".safetensors", ("--prefix", "m")),
                             ("mapped", ".safetensors", ("--map", mapped)), ("unmapped", ".safetensors", ("--map", json.dumps(MAP))),
                             ("ranks", "", ("--to", "ranks", "--shards", ranks, "--world-size", "2")),
                             ("directory", "/", ("--to", "safetensors",))):
        plan = same(t, name, dest, path, *args)
        request = json.load(open(plan))["request"]
        need(request["command"] == "convert" and json.load(open(plan))["target"] is None, request)
    need("big" in t.text("inspect", t.at("chosen-want.safetensors")) or "large" in t.text("inspect", t.at("chosen-want.safetensors")), "renamed")


@test
def test_exec_multiplies_folds_and_quantizes(t):
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [2, 2]}, "torch_dtype": "bfloat16"}
    tensors = {"m.q.weight": FP8, "m.q.weight_scale_inv": ("F32", [1, 1], struct.pack("<f", 0.375)), "m.norm.weight": ("F32", [2], struct.pack("<2f", 0.1, 3.7))}
    scaled = model(t, "scaled", tensors, config)
    same(t, "dequantized", ".safetensors", scaled, "--dequantize")
    same(t, "configured", "/", scaled, "--dequantize", "--config", "--to", "safetensors")
    need("quantization_config" not in json.load(open(t.at("configured-shares", "config.json"))), "config.json of exec")
    same(t, "resharded", "", scaled, "--dequantize", "--dtype", "float32", *MESH, "--to", "dcp", command="reshard")
    plain = model(t, "plain", {"m.q.weight": ("F32", [2, 2], struct.pack("<4f", 0.5, 1.5, -2, 3)), "m.k.weight": ("F32", [2, 2], struct.pack("<4f", 5, 6, 7, 8))}, {})
    plan = json.load(open(same(t, "built-in", ".safetensors", os.path.join(ROOT, "tests/golden/adapters/base/llama"), "--map", "torchtitan-llama3", "--inverse")))
    need(json.loads(plan["request"]["options"]["map"])["schema"] == "tessera.map/1", "the text of a built-in map")
    lora = adapter(t, ["m.q"])
    plan = same(t, "folded", ".safetensors", plain, "--lora", lora)
    same(t, "both", ".safetensors", scaled, "--dequantize", "--lora", lora, "--map", json.dumps(MAP))
    with open(os.path.join(lora, "adapter_model.safetensors"), "ab") as f:
        f.write(b"\0")
    said = t.run("exec", plan, t.at("stale.safetensors"), status=2).stderr.decode()
    need("adapter" in said and not os.path.exists(t.at("stale.safetensors")), said)
    large = t.at("large.safetensors")
    st_write(large, {f"layers.{i}.mlp.weight": ("F32", [128, 256], struct.pack("<f", 0.25 + i) * (128 * 256)) for i in range(3)})
    same(t, "quantized", ".safetensors", large, "--quantize", "fp8-block", "--no-quantize", "layers.1.**")


@test
def test_a_plan_keeps_the_documents_that_it_was_made_with(t):
    path, mapped, want = two_units(t), document(t, "map.json", MAP), t.at("want.safetensors")
    t.run("convert", path, want, "--map", mapped)
    plan = planned(t, "plan", path, "--map", mapped, "--to", "safetensors")
    document(t, "map.json", {**MAP, "rules": [{"from": ["{rest...}"], "to": ["other.{rest...}"]}]})
    t.run("exec", plan, t.at("out.safetensors"))
    need(tree(t.at("out.safetensors")) == tree(want), "exec read the map that was changed")
    os.mkdir(t.at("moved"))
    os.rename(path, t.at("moved", os.path.basename(path)))
    p = t.run("exec", plan, t.at("again.safetensors"), "--source", t.at("moved", os.path.basename(path)))
    need(tree(t.at("again.safetensors")) == tree(want), p.stderr)


@test
def test_a_plan_refuses_options_of_the_other_command(t):
    path = sample("dcp_fsdp2")[0]
    for args, words in (((*MESH, "--rename", "a=b"), "reshard has no option --rename"), ((*MESH, "--to", "ranks"), "'ranks'"),
                        (("--storage", document(t, "storage.json", {"schema": "tessera.storage/1", "servers": [{"name": "a"}], "bandwidth": 1e9, "latency": 0.001})), "convert has no option --storage"),
                        (("--mesh", "dp=2"), "--mesh with --placements")):
        said = t.run("plan", path, *args, "--json", status=2).stderr.decode()
        need(words in said, f"{args}: {said}")
    text = t.text("plan", path, "--to", "safetensors")
    need("→ safetensors" in text and "RANK" not in text, text)


@test
def test_documents_in_place_of_paths(t):
    path, target = sample("dcp_fsdp2")[0], {"schema": "tessera.target/1", "mesh": {"shape": [3]}, "default": ["shard(0)"]}
    need(t.json("plan", path, "--target", json.dumps(target), "--json") == t.json("plan", path, "--target", document(t, "target.json", target), "--json"), "--target")
    need(t.json("manifest", path, "--map", json.dumps(MAP))["entries"] == t.json("manifest", path, "--map", document(t, "map.json", MAP))["entries"], "--map")
    for args in (("--target", '{"schema": "tessera.target/2"}'), ("--target", "{")):
        said = t.run("plan", path, *args, status=2).stderr.decode()
        need(args[1] not in said or len(args[1]) < 5, said)
