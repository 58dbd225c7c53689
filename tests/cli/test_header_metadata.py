"""__metadata__ of safetensors: what is shown, carried, compared and dropped, and second names in it. tests/interop/test_save_model.py
has files that the library wrote."""
import json
import os
import struct

from harness import need, test


def write(t, name, pairs, tensors=(("w", (1.5, 2.5)),), file="model.safetensors"):
    """A file of float32 vectors. `pairs` is a dict, or the text of a JSON object."""
    path = t.at(name)
    if not name.endswith(".safetensors"):
        os.makedirs(path, exist_ok=True)
        path = os.path.join(path, file)
    entries, data = [], b""
    for key, values in tensors:
        raw = struct.pack(f"<{len(values)}f", *values)
        entries.append(json.dumps(key) + ":" + json.dumps({"dtype": "F32", "shape": [len(values)], "data_offsets": [len(data), len(data) + len(raw)]}))
        data += raw
    text = pairs if isinstance(pairs, str) else json.dumps(pairs)
    header = ("{" + ",".join(['"__metadata__":' + text] + entries) + "}").encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + data)
    return t.at(name)


def stored(path):
    """The pairs as they are in the file, and the names of its tensors."""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    return {k: v for k, v in header.pop("__metadata__", {}).items() if not k.startswith("tessera.")}, set(header)


def names(t, path):
    return {e["fqn"]: e.get("shares_storage_with") for e in t.json("inspect", path, "--json")["entries"]}


def index(t, name, where, metadata=()):
    with open(os.path.join(t.at(name), "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": dict(metadata), "weight_map": where}, f)
    return t.at(name)


@test
def test_metadata_is_carried_to_safetensors_and_named_where_it_is_dropped(t):
    cases = (({"format": "pt", "ss_network_dim": "16", "": "empty", "Ø\n": "\u0000\U0001f600"}, None),
             ({"format": "mlx"}, None), ({"alpha": "8"}, None), ({}, {"format": "pt"}),
             ({"format": "pt", "tessera.part": "model", "DCP_SHARDING_INFO": "{}", "a": "b"}, {"format": "pt", "a": "b"}))
    for i, (pairs, want) in enumerate(cases):
        source, want = write(t, f"{i}.safetensors", pairs), pairs if want is None else want
        shown = t.json("inspect", source, "--json")["metadata"]
        need(shown == {k: v for k, v in pairs.items() if not k.startswith("tessera.")}, (shown, pairs))
        t.text("inspect", source)
        for command in (("convert", source, t.at("one.safetensors"), "--dtype", "float16"),
                        ("convert", source, t.at("one.safetensors"), "--rename", "w=v"),
                        ("merge", t.at("one.safetensors"), source, source, "--method", "linear")):
            said = t.run(*command, "--overwrite").stderr
            need(stored(t.at("one.safetensors"))[0] == want and b"warning" not in said, (command[0], stored(t.at("one.safetensors")), said))
        for to, dest in (("torch", "one.pt"), ("dcp", "dcp")):
            said = t.run("convert", source, t.at(dest), "--to", to, "--overwrite").stderr.decode()
            lost = [k for k in shown if (k, shown[k]) != ("format", "pt")]
            need(("dropped: " in said) == bool(lost) and all(k in said for k in ("ss_network_dim", "alpha", "mlx") if k in lost), (lost, said))
        need(t.json("diff", source, t.at("one.safetensors"), "--json", status=(0, 1))["summary"]["same"] <= 1, "diff")
    many = write(t, "many.safetensors", {f"key_{i}": "x" * 200 for i in range(60)})
    need("and 52 more" in t.text("inspect", many), "the text is shortened")
    said = t.run("convert", many, t.at("many.pt"), "--to", "torch").stderr
    need(all(b"key_%d" % i in said for i in range(60)), "every key is named")


@test
def test_metadata_reaches_every_writer_of_safetensors(t):
    pairs = {"format": "pt", "rank": "16", "alpha": "8"}
    source = write(t, "in.safetensors", pairs, (("a", (1, 2, 3, 4)), ("b", (5, 6, 7, 8))))
    t.run("reshard", source, t.at("sharded"), "--to", "safetensors", "--mesh", "dp=2", "--placements", "shard(0)")
    for file in os.listdir(t.at("sharded")):
        got = stored(t.at("sharded", file))[0]
        need(got.pop("DCP_SHARDING_INFO") and got.pop("DCP_VERSION") == "1.0" and got == pairs, (file, got))
    doc = t.json("inspect", t.at("sharded"), "--json")
    need(doc["metadata"] == {**pairs, "DCP_VERSION": "1.0"} and not [f for f in doc["findings"] if f["rule"] == "safetensors/metadata-differs"], doc["findings"])
    t.run("convert", t.at("sharded"), t.at("back.safetensors"))
    need({k: v for k, v in stored(t.at("back.safetensors"))[0].items() if k != "DCP_VERSION"} == pairs, stored(t.at("back.safetensors")))
    with open(t.at("plan.json"), "wb") as f:
        f.write(t.run("plan", source, "--mesh", "dp=2", "--placements", "shard(0)", "--to", "safetensors", "--json").stdout)
    t.run("exec", t.at("plan.json"), t.at("executed"))
    need(all(stored(t.at("executed", f)) == stored(t.at("sharded", f)) for f in os.listdir(t.at("sharded"))), "exec")
    for to, dropped in (("model-rank-{tp}-part-{part}.safetensors", False), ("rank{tp}.pt", True)):
        with open(t.at("map.json"), "w") as f:
            json.dump({"schema": "tessera.shards/1", "rules": [{"match": "**", "concat": 0}], "ranks": to}, f)
        said = t.run("convert", source, t.at("ranks"), "--to", "ranks", "--shards", t.at("map.json"), "--world-size", 2, "--overwrite").stderr.decode()
        need(("dropped: rank, alpha" in said) == dropped, (to, said))
        files = [t.at("ranks", f) for f in os.listdir(t.at("ranks")) if f.endswith(".safetensors")]
        need(dropped or len(files) == 2 and all(stored(f)[0] == pairs for f in files), (to, files))
    t.run("convert", source, t.at("shards"), "--to", "safetensors", "--max-shard-size", "20")
    files = [f for f in os.listdir(t.at("shards")) if f.endswith(".safetensors")]
    need(len(files) == 2 and all(stored(t.at("shards", f))[0] == pairs for f in files), files)


@test
def test_metadata_that_differs_between_files_or_inputs_is_named_and_left_out(t):
    one = {"format": "pt", "license": "MIT", "epoch": "7", "only": "here", "tessera.crc32": "00000000"}
    write(t, "dir", one, (("a", (1, 2)),), "model-00001-of-00002.safetensors")
    write(t, "dir", {**one, "epoch": "8", "tessera.crc32": "11111111"} | {"only": "here"}, (("b", (3, 4)),), "model-00002-of-00002.safetensors")
    path = index(t, "dir", {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})
    doc = t.json("inspect", path, "--json")
    need(doc["metadata"] == {"format": "pt", "license": "MIT", "only": "here"}, doc["metadata"])
    found = [f for f in doc["findings"] if f["rule"] == "safetensors/metadata-differs"]
    need([f["level"] for f in found] == ["note"] and "'epoch'" in found[0]["message"] and "tessera" not in found[0]["message"], found)
    said = t.run("convert", path, t.at("out.safetensors")).stderr.decode()
    need("dropped: epoch\n" in said and stored(t.at("out.safetensors"))[0] == doc["metadata"], said)
    a, b = write(t, "a.safetensors", one), write(t, "b.safetensors", {**one, "license": "BSD"})
    said = t.run("merge", t.at("merged.safetensors"), a, b, "--method", "linear").stderr.decode()
    need("dropped: license\n" in said, said)
    need(stored(t.at("merged.safetensors"))[0] == {k: v for k, v in one.items() if k not in ("license", "tessera.crc32")}, stored(t.at("merged.safetensors")))


@test
def test_metadata_is_compared(t):
    a = write(t, "a.safetensors", {"format": "pt", "rank": "16", "gone": "1", "tessera.x": "1", "same": "="})
    b = write(t, "b.safetensors", {"rank": "8", "came": "2", "same": "="})
    doc = t.json("diff", a, b, "--values", "--json")
    want = {"added": [{"key": "came", "value": "2"}], "removed": [{"key": "gone", "value": "1"}], "changed": [{"key": "rank", "a": "16", "b": "8"}]}
    need(doc["metadata"] == want and doc["same"], doc["metadata"])
    text = t.text("diff", a, b)
    need(all(w in text for w in ("metadata rank  16 → 8", "metadata gone  1 (only in A)", "metadata came  only in B: 2")), text)
    sarif = json.loads(t.run("diff", a, b, "--format", "sarif").stdout)["runs"][0]["results"]
    need([(r["ruleId"], r["level"]) for r in sarif] == [("diff/metadata", "note")] * 3, sarif)
    t.run("diff", a, b, "--fail-on", "note", status=1)
    t.run("diff", a, b, "--rule", "diff/metadata=error", status=1)
    with open(t.at("known.json"), "w") as f:
        json.dump(doc, f)
    got = t.json("diff", a, b, "--baseline", t.at("known.json"), "--fail-on", "note", "--json")
    need(got["metadata"] == {"added": [], "removed": [], "changed": []} and got["summary"]["left_out"] == 3, got)
    mlx = write(t, "mlx.safetensors", {"format": "mlx"})
    need(t.json("diff", a, mlx, "--json")["metadata"]["changed"] == [{"key": "format", "a": "pt", "b": "mlx"}], "a format")
    need(t.json("diff", b, b, "--json")["metadata"] == {"added": [], "removed": [], "changed": []}, "itself")


@test
def test_second_names_are_only_what_can_be_names_of_tensors(t):
    """Keys whose text happens to be a tensor's name, chains, cycles, duplicates, and keys with a meaning of their own."""
    tensors = (("w", (1.5, 2.5)), ("pt", (3.5,)), ("v", (4.5,)))
    pairs = {"format": "pt", "tessera.part": "w", "DCP_VERSION": "w", "": "w", "a": "w", "chain": "a", "cycle": "cycle", "v": "w", "text": "w is tied", "b": "w", "c": "v"}
    path = write(t, "names.safetensors", pairs, tensors)
    got = names(t, path)
    need(got == {"w": ["a", "b"], "pt": None, "v": ["c"], "a": ["w", "b"], "b": ["w", "a"], "c": ["v"]}, got)
    need(t.json("inspect", path, "--json")["metadata"] == {k: pairs[k] for k in ("format", "DCP_VERSION", "", "chain", "cycle", "v", "text")}, "the rest is text")
    t.run("validate", "--deep", path)
    need(t.run("get", path, "a", "--print").stdout == t.run("get", path, "w", "--print").stdout, "get")
    t.run("convert", path, t.at("out.safetensors"))
    need(stored(t.at("out.safetensors")) == ({k: v for k, v in pairs.items() if k != "tessera.part"}, {"w", "pt", "v"}), stored(t.at("out.safetensors")))
    need(names(t, write(t, "twice.safetensors", '{"a":"w","a":"x"}')) == {"w": None}, "the last value of a key counts")
    need(names(t, write(t, "again.safetensors", '{"a":"x","a":"w"}')) == {"w": ["a"], "a": ["w"]}, "the last value of a key counts")
    many = write(t, "many.safetensors", {f"n{i}": "w" for i in range(50000)})
    need(json.loads(t.run("inspect", many, "--json").stdout)["summary"]["tensors"] == 50001, "many")
    t.run("convert", many, t.at("many_out.safetensors"))
    need(len(stored(t.at("many_out.safetensors"))[0]) == 50001, "many")


@test
def test_second_names_follow_their_tensors(t):
    source = write(t, "in.safetensors", {"format": "pt", "tied": "w", "more": "w"}, (("w", (1.5, 2.5)), ("v", (4.5, 0.5))))
    for options, want in ((("--rename", "w=x"), ({"tied": "x", "more": "x"}, {"x", "v"})), (("--rename", "tied=x"), ({"x": "w", "more": "w"}, {"w", "v"})),
                          (("--exclude", "w"), ({"more": "tied"}, {"tied", "v"})), (("--exclude", "w", "--exclude", "tied"), ({}, {"more", "v"})),
                          (("--exclude", "tied"), ({"more": "w"}, {"w", "v"})), (("--dtype", "float16"), ({"tied": "w", "more": "w"}, {"w", "v"})),
                          (("--rename", "tied=tessera.x"), ({"more": "w"}, {"w", "v", "tessera.x"}))):
        doc = t.json("convert", source, t.at("out.safetensors"), "--overwrite", "--json", *options)
        got = stored(t.at("out.safetensors"))
        need(({k: v for k, v in got[0].items() if k != "format"}, got[1]) == want, (options, got))
        listed = {e["fqn"]: e.get("second_name_of") for e in doc["entries"]}
        need(sum(v is not None for v in listed.values()) == len(want[0]) and doc["summary"]["bytes"] in (8 * len(want[1]), 4 * len(want[1])), (options, doc["entries"]))
    t.run("convert", source, t.at("shards"), "--to", "safetensors", "--max-shard-size", "8")
    need(names(t, t.at("shards")) == names(t, source), names(t, t.at("shards")))
    t.run("validate", "--deep", t.at("shards"))
    need(t.json("diff", source, t.at("shards"), "--values", "--json")["metadata"] == {"added": [], "removed": [], "changed": []}, "shards")
    said = t.run("reshard", source, t.at("sharded"), "--to", "safetensors", "--mesh", "dp=2", "--placements", "shard(0)").stderr
    need(b"independent copies now: w, tied, more" in said, said)
    need(set(names(t, t.at("sharded"))) == {"w", "v", "tied", "more"}, "shards of ranks have no second names")


@test
def test_second_names_in_files_of_an_index(t):
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    write(t, "dir", {"tied": "w", "v": "w"}, (("w", (1.5, 2.5)),), one)
    write(t, "dir", {"other": "v"}, (("v", (4.5,)),), two)
    for where in ({"w": one, "v": two}, {"tied": one, "w": one, "v": two, "other": two}):
        path = index(t, "dir", where)
        need(names(t, path) == {"w": ["tied"], "tied": ["w"], "v": ["other"], "other": ["v"]}, names(t, path))
        found = t.json("validate", "--deep", path, "--json")["findings"]
        need([f["rule"] for f in found] == ["safetensors/metadata-differs"] and "'v'" in found[0]["message"], found)
        need("1.5" in t.run("get", path, "tied", "--print").stdout.decode(), "the value")
    found = t.json("validate", index(t, "dir", {"tied": two, "w": one, "v": two}), "--json", status=1)["findings"]
    need("index/missing-key" in {f["rule"] for f in found}, "a name that another file states")
    write(t, "hub", {"format": "pt"}, (("w", (1.5, 2.5)),), one)
    write(t, "hub", {"format": "pt"}, (("v", (4.5,)),), two)
    path = index(t, "hub", {"w": one, "v": two}, {"total_size": 12, "tied": "w", "v": "w", "license": "MIT", "chain": "tied"})  # as huggingface_hub writes it
    need(names(t, path) == {"w": ["tied"], "v": None, "tied": ["w"]}, names(t, path))
    t.run("validate", "--deep", path)
    t.run("convert", path, t.at("hub.safetensors"))
    need(stored(t.at("hub.safetensors")) == ({"format": "pt", "tied": "w"}, {"w", "v"}), stored(t.at("hub.safetensors")))
    os.remove(os.path.join(t.at("dir"), "model.safetensors.index.json"))
    need(set(names(t, t.at("dir"))) == {"w", "tied", "v", "other"}, "without an index")


@test
def test_files_without_a_tensor_are_not_passed_over(t):
    os.makedirs(t.at("none"))
    for path in (write(t, "empty.safetensors", {"format": "pt"}, ()), index(t, "none", {})):
        found = t.json("validate", path, "--json")["findings"]
        need([(f["rule"], f["level"]) for f in found] == [("safetensors/no-tensors", "note")], (path, found))
    need(not t.json("validate", write(t, "zero.safetensors", {"format": "pt"}, (("w", ()),)), "--json")["findings"], "a tensor without elements is one")
