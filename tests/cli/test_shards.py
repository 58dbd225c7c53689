"""`--shards MAP`: maps that are wrong, or do not fit the tensors, and every command that accepts one. tests/interop tests
values."""
import json
import os
import shutil
import struct

import schema

from harness import SCHEMAS, need, st_write, test
from test_plans import killed

GOOD = {"schema": "tessera.shards/1", "rules": [{"match": "w", "concat": 0}, {"match": "n", "replicate": True}]}


def ranks(t, case="ranks", count=2, **tensors):
    """vLLM's names: `w` [2, 3] differs between ranks, `n` [2] does not."""
    os.makedirs(t.at(case))
    for r in range(count):
        own = {"w": ("F32", [2, 3], struct.pack("<6f", *range(10 * r, 10 * r + 6))), "n": ("F32", [2], struct.pack("<2f", 7, 8))}
        st_write(t.at(case, f"model-rank-{r}-part-0.safetensors"), {**own, **{k: v(r) for k, v in tensors.items()}})
    return t.at(case)


def write(t, document, name="map.json"):
    with open(t.at(name), "w") as f:
        f.write(document if isinstance(document, str) else json.dumps(document))
    return t.at(name)


def rules(*rules_):
    return {"schema": "tessera.shards/1", "rules": list(rules_)}


BAD = [  # what the document is, and words in the message
    ("", ["byte 0"]),
    ("[]", ["object", "array"]),
    ({}, ["schema"]),
    ({**GOOD, "schema": "tessera.shards/2"}, ["tessera.shards/2", "expected tessera.shards/1"]),
    ({"schema": "tessera.shards/1"}, ["rules"]),
    ({**GOOD, "rule": []}, ["unknown key 'rule'", "did you mean 'rules'"]),
    ({**GOOD, "rules": {}}, ["rules", "array"]),
    (rules(7), ["rules[0]", "object"]),
    (rules({"concat": 0}), ["rules[0]", "match"]),
    (rules({"match": 3, "concat": 0}), ["match", "string"]),
    (rules({"match": "w"}), ["rules[0]", "none of concat"]),
    (rules(GOOD["rules"][0], {"match": "w", "concat": 0, "stack": 1}), ["rules[1]", "several of concat"]),
    (rules({"match": "w", "concat": "0"}), ["concat"]),
    (rules({"match": "w", "concat": 0.5}), ["concat"]),
    (rules({"match": "w", "concat": -65}), ["concat", "-65"]),
    (rules({"match": "w", "replicate": False}), ["replicate can only be true"]),
    (rules({"match": "w", "only_rank": -1}), ["only_rank", "-1"]),
    (rules({"match": "w", "only_rank": 1, "trim": 3}), ["trim", "concat"]),
    (rules({"match": "w", "replicate": True, "blocks": 2}), ["blocks", "concat"]),
    (rules({"match": "w", "concat": 0, "blocks": 0}), ["blocks", "0"]),
    (rules({"match": "w", "concat": 0, "blocks": []}), ["blocks", "empty"]),
    (rules({"match": "w", "concat": 0, "blocks": [1, -1]}), ["blocks"]),
    (rules({"match": "w", "concat": 0, "blocks": 1e9}), ["blocks", "at most"]),
    (rules({"match": "w", "concat": 0, "blocks": 2, "copies": [1]}), ["1 copies for 2 blocks"]),
    (rules({"match": "w", "concat": 0, "copies": 0}), ["copies", "0"]),
    (rules({"match": "w", "concat": 0, "trim": -1}), ["trim"]),
    (rules({"match": "w", "concat": 0, "trimm": 1}), ["unknown key 'trimm'", "'trim'"]),
    ({**GOOD, "ranks": "model.safetensors"}, ["ranks", "{tp}"]),
    ({**GOOD, "ranks": "{ep}/{tp}.pt"}, ["ranks", "{tp}, {pp} and {part}"]),
    ({**GOOD, "ranks": "{tp}{pp}.pt"}, ["between two numbers"]),
    ({**GOOD, "ranks": "/etc/{tp}"}, ["relative"]),
    ({**GOOD, "stages": {"layers": [1]}}, ["pattern"]),
    ({**GOOD, "stages": {"pattern": "layers.{layer}.{rest...}"}}, ["layers"]),
    ({**GOOD, "stages": {"pattern": "layers.*", "layers": [1]}}, ["{layer} once"]),
    ({**GOOD, "stages": {"pattern": "layer{layer}.{rest...}", "layers": [1]}}, ["whole component"]),
    ({**GOOD, "stages": {"pattern": "{layer}.{x}", "layers": [1]}}, ["must not contain other braces"]),
    ({**GOOD, "stages": {"pattern": "{layer}", "layers": []}}, ["layers", "empty"]),
    ({**GOOD, "stages": {"pattern": "{layer}", "layers": [1], "first": 0}}, ["unknown key 'first'"]),
]

MISFITS = [  # maps that do not fit the tensors
    (rules({"match": "w", "concat": 2}), ["'w'", "dim 2", "2 dims"]),
    (rules({"match": "w", "concat": -3}), ["'w'", "dim -3"]),
    (rules({"match": "w", "stack": 3}), ["'w'", "dim 3"]),
    (rules({"match": "w", "concat": 0, "blocks": 3}), ["'w'", "blocks"]),
    (rules({"match": "w", "concat": 0, "blocks": [1, 2]}), ["'w'", "sum of the blocks"]),
    (rules({"match": "w", "concat": 0, "blocks": [2**52, 2**52]}), ["'w'", "blocks"]),
    (rules({"match": "w", "concat": 0, "trim": 5}), ["'w'", "trims"]),
    (rules({"match": "w", "concat": 0, "copies": 3}), ["copies", "2 ranks"]),
    (rules({"match": "w", "concat": 0, "copies": 2}), ["'w'", "should be replicas"]),
    (rules({"match": "w", "replicate": True}), ["'w'", "differs between", "model-rank-1-part-0.safetensors"]),
    (rules({"match": "w", "only_rank": 2}), ["'w'", "rank 2"]),
    (rules(), ["'w'", "no rule"]),
    (rules({"match": "*x", "concat": 0}), ["'w'", "no rule"]),
    ({**GOOD, "ranks": "rank-{tp}.safetensors"}, ["rank-{tp}.safetensors", "no file"]),
    ({**GOOD, "stages": {"pattern": "{layer}", "layers": [1, 1]}}, ["2 pipeline stages", "files of 1"]),
]


def refused(t, path, document, words):
    need(not os.path.exists(t.at("out.pt")), "an earlier refusal left its output")
    p = t.run("convert", path, t.at("out.pt"), "--to", "torch", "--shards", write(t, document), status=2)
    for word in words:
        need(word in p.stderr.decode(), f"{document}: the message does not say {word}: {p.stderr.decode()}")
    need(not os.path.exists(t.at("out.pt")), f"{document}: refused, and there is an output")


@test
def shards_bad_maps_are_named(t):
    path = ranks(t)
    for document, words in BAD:
        refused(t, path, document, words)


@test
def shards_maps_that_do_not_fit_are_named(t):
    path = ranks(t)
    need(not list(schema.problems(GOOD, SCHEMAS["tessera.shards/1"])), "the schema refuses a good map")
    for document, words in MISFITS:
        need(not list(schema.problems(document, SCHEMAS["tessera.shards/1"])), f"the schema refuses {document}")
        refused(t, path, document, words)
    p = t.run("inspect", path, "--shards", t.at("none.json"), status=2)
    need(b"meta-llama" in p.stderr and b"none.json' is neither a file nor" in p.stderr, f"a missing map: {p.stderr}")


@test
def shards_tensors_that_are_not_on_every_rank(t):
    path = ranks(t, w2=lambda r: ("F32", [2 + r, 3], bytes(12 * (2 + r))), w3=lambda r: ("F32" if r else "F16", [1], bytes(4 if r else 2)))
    refused(t, path, rules({"match": "w2", "concat": 1}, *GOOD["rules"]), ["'w2'", "ranks 0 and 1"])
    refused(t, path, rules({"match": "w2", "stack": 0}, *GOOD["rules"]), ["'w2'"])
    refused(t, path, rules({"match": "w[23]", "concat": 0}, *GOOD["rules"]), ["'w3'", "float16", "float32"])
    st_write(os.path.join(path, "model-rank-1-part-1.safetensors"), {"w4": ("F32", [1], bytes(4))})
    st_write(os.path.join(path, "model-rank-0-part-1.safetensors"), {"w5": ("F32", [1], bytes(4))})
    refused(t, path, rules({"match": "w2", "concat": 0}, {"match": "w3", "only_rank": 0}, {"match": "w4", "concat": 0}, *GOOD["rules"]), ["rank 0 has no 'w4'"])


@test
def shards_every_command_takes_the_map(t):
    path, shards = ranks(t), write(t, GOOD)
    rows = {e["fqn"]: e for e in t.json("inspect", path, "--json", "--shards", shards)["entries"]}
    need(rows["w"]["shape"] == [4, 3] and len(rows["w"]["chunks"]) == 2 and rows["n"]["shape"] == [2], f"inspect: {rows}")
    need(t.json("inspect", path, "--json")["format"] == "shards", "format")
    need(t.json("validate", path, "--json", "--deep", "--shards", shards)["findings"] == [], "validate --deep has findings")
    need("12" in t.text("get", path, "w[2:3]", "--print", "--shards", shards), "get")
    t.json("layout", path, "--shards", shards)
    manifest = t.run("manifest", path, "--shards", shards).stdout
    with open(t.at("manifest.json"), "wb") as f:
        f.write(manifest)
    t.run("verify", path, t.at("manifest.json"), "--shards", shards)
    t.run("convert", path, t.at("whole.safetensors"), "--to", "safetensors", "--shards", shards)
    t.run("verify", t.at("whole.safetensors"), t.at("manifest.json"))
    p = t.run("diff", path, t.at("whole.safetensors"), "--values", "--shards", shards)
    need(b"--shards is not used for" in p.stderr, f"diff does not say that the second has no ranks: {p.stderr}")
    for unused in (["convert", t.at("whole.safetensors"), t.at("again.pt")], ["reshard", t.at("whole.safetensors"), t.at("again"), "--mesh", "dp=2", "--placements", "shard(0)", "--to", "dcp"]):
        warnings = t.json(*unused, "--json", "--shards", shards)["warnings"]
        need(warnings == ["--shards is not used for this checkpoint: its tensors are not plain tensors of several ranks"], f"{unused[0]}: {warnings}")
    need(t.json("convert", path, t.at("again.safetensors"), "--json", "--shards", shards)["warnings"] == [], "a map that is used is not warned of")
    mesh = ["--mesh", "dp=2", "--placements", "shard(0)", "--shards", shards]
    need(t.json("plan", path, "--json", *mesh)["totals"]["tensors"] == 2, "plan")
    t.run("reshard", path, t.at("mesh"), "--to", "dcp", *mesh)
    t.run("diff", t.at("mesh"), t.at("whole.safetensors"), "--values")
    with open(t.at("plan.json"), "wb") as f:
        f.write(t.run("plan", path, "--json", "--to", "dcp", *mesh).stdout)
    t.run("exec", t.at("plan.json"), t.at("mesh2"), "--shards", shards)
    t.run("diff", t.at("mesh2"), t.at("whole.safetensors"), "--values")


@test
def shards_missing_ranks_and_odd_files(t):
    for r in range(3):
        os.makedirs(t.at("odd", f"mp_rank_{r:02}"), exist_ok=True)
    path = ranks(t, count=3)
    named = {**GOOD, "ranks": "model-rank-{tp}-part-{part}.safetensors"}
    os.remove(os.path.join(path, "model-rank-1-part-0.safetensors"))
    refused(t, path, named, ["rank 1"])
    shutil.rmtree(path)
    path = ranks(t, count=1)
    refused(t, path, {**GOOD, "ranks": "model-rank-{tp}-part-{pp}.safetensors"} | {"stages": {"pattern": "{layer}", "layers": [1, 1]}}, ["2 pipeline stages"])
    shutil.copy(os.path.join(path, "model-rank-0-part-0.safetensors"), os.path.join(path, "model-rank-00-part-0.safetensors"))
    refused(t, path, named, ["the same rank"])
    p = t.run("inspect", os.path.join(path, "model-rank-0-part-0.safetensors"), "--shards", write(t, named), status=2)
    need(b"directory" in p.stderr, f"one rank's file: {p.stderr}")


@test
def shards_resume_is_of_one_map(t):
    rows = 6 << 20  # of 4 bytes, which makes several units of work
    path, one = ranks(t, w2=lambda r: ("F32", [rows, 1], bytes([r + 1]) * (4 * rows))), write(t, {**GOOD, "rules": [{"match": "w*", "concat": 0}, GOOD["rules"][1]]})
    two = write(t, {**GOOD, "rules": [{"match": "w*", "concat": 1}, GOOD["rules"][1]]}, "two.json")
    plain = ["convert", path, t.at("out.safetensors"), "--to", "safetensors"]
    killed(t, *plain, "--shards", one, limit=30 << 20)
    p = t.run(*plain, "--resume", "--shards", two, status=2)
    need(b"cannot resume" in p.stderr, f"another map's work is continued: {p.stderr}")
    t.run(*plain, "--resume", "--shards", one)
    t.run("convert", path, t.at("want.safetensors"), "--to", "safetensors", "--shards", one)
    with open(t.at("out.safetensors"), "rb") as got, open(t.at("want.safetensors"), "rb") as want:
        need(got.read() == want.read(), "resumed to other bytes")
