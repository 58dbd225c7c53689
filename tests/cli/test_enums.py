"""Enum members that frameworks save: they are data if the class is listed and the pickle is what Python writes, and calls
otherwise."""
import json
import os
import pickle
import zipfile

from harness import ROOT, SAMPLES, need, test

GOLDEN = os.path.join(ROOT, "tests", "golden")
LISTED, MEMBER = ("transformers.trainer_utils", "IntervalStrategy"), "STEPS"


def text(value):
    data = value.encode()
    return b"X" + len(data).to_bytes(4, "little") + data


def plain(value):
    """Returns the opcodes of a plain value, as Python itself writes them."""
    return pickle.dumps(value, 2)[2:-1].replace(b"q\x00", b"")


def class_of(module, name, protocol):
    return text(module) + text(name) + b"\x93" if protocol >= 4 else f"c{module}\n{name}\n".encode()


def by_value(module, name, value, protocol=2):
    return class_of(module, name, protocol) + plain(value) + b"\x85R"


def by_name(module, name, member, protocol=2):
    getattr_ = class_of("builtins", "getattr", 4) if protocol >= 4 else b"c__builtin__\ngetattr\n"
    return getattr_ + class_of(module, name, protocol) + text(member) + b"\x86R"


def torch_file(t, items, protocol=2, name="e.pt"):
    """Makes a torch.save file of a dict whose values are given as opcodes."""
    body = b"\x80" + bytes([protocol]) + b"}(" + b"".join(text(k) + v for k, v in items.items()) + b"u."
    path = t.at(name)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        for member, data in (("data.pkl", body), ("byteorder", b"little"), ("version", b"3\n")):
            z.writestr(zipfile.ZipInfo("archive/" + member), data)
    return path


def members():
    with open(os.path.join(GOLDEN, "enum_members.tsv")) as f:
        rows = [line.rstrip("\n").split("\t") for line in f]
    return [(module, name, member, json.loads(value)) for module, name, member, value in rows]


def errors(t, path):
    found = t.json("validate", path, "--json", status=(0, 1))["findings"]
    return [f for f in found if f["rule"].startswith("pickle/")]


@test
def test_enums_every_member_of_every_listed_class_is_data(t):
    rows = members()
    need(len({r[:2] for r in rows}) > 100 and len(rows) > 600, "the list of members is short")
    for protocol in (2, 4, 5):
        items = {f"{i}.v": by_value(m, c, v, protocol) for i, (m, c, n, v) in enumerate(rows)}
        items.update({f"{i}.n": by_name(m, c, n, protocol) for i, (m, c, n, v) in enumerate(rows)})
        path = torch_file(t, items, protocol, f"{protocol}.pt")
        need(not t.json("validate", path, "--json", "--deep", "--fail-on", "note")["findings"], "a member is not data")
        entries = {e["fqn"]: e for e in t.json("inspect", path, "--json")["entries"]}
        for i, (module, name, member, value) in enumerate(rows):
            own, named = entries[f"{i}.v"], entries[f"{i}.n"]
            need(own["kind"] == named["kind"] == "object" and own["type"] == named["type"] == f"{module}.{name}", own)
            need(own["value"] == value and type(own["value"]) is type(value), own)
            need(named["repr"] == f"<{module}.{name}.{member}>" and "value" not in named, named)


@test
def test_enums_files_that_frameworks_wrote_are_healthy(t):
    directory = os.path.join(GOLDEN, "frameworks")
    for name in sorted(os.listdir(directory)):
        found = t.json("validate", os.path.join(directory, name), "--json", "--deep")["findings"]
        need(not [f for f in found if f["level"] == "error"], found)
    found = t.json("validate", os.path.join(directory, "megatron"), "--json")["findings"]
    need(not [f for f in found if f["rule"].startswith("pickle/")], found)


@test
def test_enums_other_uses_of_listed_classes_are_calls(t):
    module, name = LISTED
    cls = class_of(module, name, 2)
    get = b"c__builtin__\ngetattr\n"
    # name, opcodes of the value, the rules that it must violate
    cases = [
        ("an unlisted class of a listed module", by_value(module, "Trainer", "x"), {"pickle/unlisted-call"}),
        ("a listed class of another module", by_value("transformers.trainer", name, "x"), {"pickle/unlisted-call"}),
        ("the beginning of a class", by_value(module, name[:-1], "x"), {"pickle/unlisted-call"}),
        ("two classes", by_value(module, f"{name} SaveStrategy", "x"), {"pickle/unlisted-call"}),
        ("a class with a dot", by_value("transformers", f"trainer_utils.{name}", "x"), {"pickle/unlisted-call"}),
        ("no argument", cls + b")R", {"pickle/unlisted-call"}),
        ("two arguments", cls + text("a") + text("b") + b"\x86R", {"pickle/unlisted-call"}),
        ("a list", cls + b"]\x85R", {"pickle/unlisted-call"}),
        ("a tuple of an int", cls + b"K\x01\x85\x85R", {"pickle/unlisted-call"}),
        ("a dict of members", cls + text("X") + b"}" + text("a") + b"K\x01s\x86R", {"pickle/unlisted-call"}),
        ("another call", cls + by_value(module, name, "no") + b"\x85R", {"pickle/unlisted-call"}),
        ("a state", by_value(module, name, "no") + b"}" + text("_value_") + text("x") + b"sb", {"pickle/unlisted-call"}),
        ("built, not called", cls + text("no") + b"\x85\x81", {"pickle/unlisted-class"}),
        ("its globals", get + cls + text("__init_subclass__") + b"\x86R", {"pickle/unlisted-call"}),
        ("its members", get + cls + text("_member_map_") + b"\x86R", {"pickle/unlisted-call"}),
        ("no identifier", get + cls + text("a.b") + b"\x86R", {"pickle/unlisted-call"}),
        ("a member that is called", by_name(module, name, MEMBER) + b")R", {"pickle/unlisted-call"}),
        ("a method that is called", by_name(module, name, "format") + text("{}") + b"\x85R", {"pickle/unlisted-call"}),
        ("a member by value that is called", by_value(module, name, "no") + b")R", {"pickle/unlisted-call"}),
        ("a named member with a state", by_name(module, name, MEMBER) + b"}" + text("_value_") + text("x") + b"sb", {"pickle/unlisted-call"}),
        ("no name", get + cls + text("") + b"\x86R", {"pickle/unlisted-call"}),
        ("an int", get + cls + b"K\x01\x86R", {"pickle/unlisted-call"}),
        ("an unlisted class", by_name("transformers.trainer", "Trainer", "STEPS"), {"pickle/unlisted-call"}),
    ]
    for what, value, rules in cases:
        found = errors(t, torch_file(t, {"x": value, "good": by_value(module, name, "no")}))
        need({f["rule"] for f in found if f["level"] != "note"} == rules, f"{what}: {found}")


@test
def test_enums_of_users_are_listed_with_their_class(t):
    """By name they are calls of getattr, which could give anything."""
    for protocol in (2, 4):
        path = torch_file(t, {"by name": by_name("mine.colors", "Color", "RED", protocol), "by value": by_value("mine.colors", "Color", 1, protocol)}, protocol)
        entries = {e["fqn"]: e for e in t.json("inspect", path, "--json")["entries"]}
        need([entries[name]["type"] for name in ("by name", "by value")] == ["mine.colors.Color"] * 2, entries)
        found = [f["message"] for f in errors(t, path)]
        need(any("builtins.getattr for 'RED' of mine.colors.Color, which may be a member of an enum" in message for message in found), found)
    for module, name, member in (("os", "path", "join"), ("mine", "Color", "__class__"), ("builtins", "eval", "mro")):
        path = torch_file(t, {"x": by_name(module, name, member)})
        need("may be a member" not in str(errors(t, path)), errors(t, path))
        need(all(e["type"] == "builtins.getattr" for e in t.json("inspect", path, "--json")["entries"]), path)


@test
def test_enums_of_c_plus_plus_are_objects(t):
    # As PyTorch 2.13 pickles ReduceOp.SUM and ReduceOp(ReduceOp.AVG), with protocols 2 and 4.
    get = b"c__builtin__\ngetattr\nctorch.distributed.distributed_c10d\nReduceOp\n" + text("RedOpType") + b"\x86R"
    kind = class_of("torch._C._distributed_c10d", "ReduceOp.RedOpType", 4)
    for protocol, cls, op in ((2, get, b"ctorch.distributed.distributed_c10d\nReduceOp\n"),
                              (4, kind, class_of("torch.distributed.distributed_c10d", "ReduceOp", 4))):
        member = cls + b")\x81K\x01b"
        path = torch_file(t, {"sum": cls + b")\x81K\x00b", "average": op + b")\x81" + member + b"N\x86b"}, protocol)
        need(not errors(t, path), errors(t, path))
        t.run("convert", path, t.at("again.pt"), "--to", "torch", "--overwrite")
        need(not errors(t, t.at("again.pt")), f"what was written from protocol {protocol} is something else")
        with zipfile.ZipFile(t.at("again.pt")) as z:
            data = z.read(next(n for n in z.namelist() if n.endswith("data.pkl")))
        need(b"c__builtin__\ngetattr\n" in data and b"_c10d\nReduceOp\n" in data and b"ReduceOp\nRedOpType" not in data, data)
    path = torch_file(t, {"x": by_name("torch.distributed.distributed_c10d", "ReduceOp", "__init_subclass__")})
    need([f["rule"] for f in errors(t, path)] == ["pickle/unlisted-call"], "any attribute is taken")


def metadata_with(t, value, name):
    """Makes a DCP whose `.metadata` has one more attribute, like Megatron's all_local_plans."""
    directory = t.at(name)
    os.mkdir(directory)
    source = os.path.join(SAMPLES, "dcp_small")
    for file in os.listdir(source):
        with open(os.path.join(source, file), "rb") as f:
            data = f.read()
        if file == ".metadata":
            need(data.endswith(b"ub."), "the sample's metadata ends otherwise")
            frame = data.index(b"\x95")  # its length no longer fits; a frame is optional
            data = data[:frame] + data[frame + 9:-3] + text("all_local_plans") + value + b"ub."
        with open(os.path.join(directory, file), "wb") as f:
            f.write(data)
    return directory


@test
def test_enums_in_the_metadata_of_a_dcp(t):
    planner = "torch.distributed.checkpoint.planner"
    good = [by_value(planner, "WriteItemType", 2, 4), by_name(planner, "WriteItemType", "SHARD", 4), by_value(*LISTED, "steps", 4)]
    bad = [by_value(planner, "SavePlanner", 2, 4), class_of(planner, "WriteItemType", 4) + b"K\x02\x85\x85R",
           class_of(planner, "WriteItemType", 4) + b"K\x02K\x03\x86R", by_name(planner, "WriteItemType", "__dict__", 4),
           by_name(planner, "SavePlan", "SHARD", 4), by_name(planner, "WriteItemType", "mro", 4) + b")R",
           by_value(planner, "WriteItemType", 2, 4) + b")R"]
    for i, value in enumerate(good):
        need(not errors(t, metadata_with(t, value, f"good{i}")), f"case {i} is not data")
    for i, value in enumerate(bad):
        found = errors(t, metadata_with(t, value, f"bad{i}"))
        need([f["rule"] for f in found] == ["pickle/unlisted-call"], f"case {i}: {found}")
    state = by_value(planner, "WriteItemType", 2, 4) + b"}" + text("_value_") + b"K\x03sb"
    t.run("validate", metadata_with(t, state, "state"), status=2)


@test
def test_enums_are_written_again_as_they_were(t):
    module, name = LISTED
    items = {"v": by_value(module, name, "steps"), "n": by_name(module, name, MEMBER), "list": b"](" + by_value(module, name, "no") + b"K\x01e"}
    path = torch_file(t, items)
    for form, out in (("torch", t.at("out.pt")), ("dcp", t.at("out"))):
        p = t.run("convert", path, out, "--to", form)
        need(b"weights_only=True) will refuse: v, n, list" in p.stderr, p.stderr)
        need(t.json("diff", path, out, "--json")["same"], f"{form} holds something else")
        need(not errors(t, out), f"{form}: a member is not data any more")
    with zipfile.ZipFile(t.at("out.pt")) as z:
        data = z.read(next(n for n in z.namelist() if n.endswith("data.pkl")))
    need(data.count(b"ctransformers.trainer_utils\nIntervalStrategy\n") == data.count(b"c__builtin__\ngetattr\n") == 1, data)
    t.run("convert", path, t.at("out.safetensors"), status=2)
    other = torch_file(t, {**items, "v": by_value(module, name, "epoch"), "n": by_name(module, name, "NO")}, name="other.pt")
    need({c["fqn"] for c in t.json("diff", path, other, "--json", status=1)["changed"]} == {"v", "n"}, "a change is not seen")
