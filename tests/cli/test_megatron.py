"""Checkpoints in Megatron-Core's torch_dist format, made by tests/golden/make_megatron.py, compared with what its own loader
reads."""
import json
import os
import shutil

from harness import need, test
from test_forms import check_incomplete

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "megatron")
MESHES = (("tp=2", "shard(0)"), ("tp=3", "shard(1)"), ("dp=2,tp=2", "shard(0),shard(1)"))


def golden(name):
    with open(os.path.join(GOLDEN, f"{name}.json")) as f:
        return os.path.join(GOLDEN, name), json.load(f)


def rows_of(t, path, want, what):
    """Returns the entries by name, and checks that the tensors are the wanted ones."""
    doc = t.json("inspect", path, "--json", "--hash", "sha256")
    need(doc["format"] == "megatron-dist", f"{what}: {doc['format']}")
    rows = {e["fqn"]: e for e in doc["entries"]}
    got = {k: {"dtype": e["dtype"], "shape": e["shape"], "sha256": e["hash"]["digest"]} for k, e in rows.items() if e["kind"] == "tensor"}
    need(got == want["entries"], f"{what}: {[k for k in {**got, **want['entries']} if got.get(k) != want['entries'].get(k)]}")
    return rows


def check_listing(t, path, want, what):
    rows = rows_of(t, path, want, what)
    for k, v in want["objects"].items():
        need(k in rows and rows[k].get("value") == v, f"{what}: {k} is {rows.get(k)}")
    need("common.args" in rows and not any("/shard_" in k for k in rows), f"{what}: {sorted(rows)}")


@test
def test_megatron_tensors_have_their_true_shapes_and_objects_are_lists(t):
    for name in ("fragments", "layers"):
        path, want = golden(name)
        check_listing(t, path, want, name)
        for deep in ((), ("--deep",)):
            found = t.json("validate", path, "--json", *deep)["findings"]
            need(not [f for f in found if f["level"] == "error" or f["rule"] == "dcp/unreferenced-file"], found)


@test
def test_megatron_is_written_as_it_was(t):
    for name in ("fragments", "layers"):
        path, want = golden(name)
        t.run("convert", path, t.at(name), "--to", "megatron-dist")
        need(sorted(os.listdir(t.at(name))) == [".metadata", "__0_0.distcp", "common.pt", "metadata.json"], os.listdir(t.at(name)))
        check_listing(t, t.at(name), want, f"{name}, converted")
        t.run("diff", path, t.at(name), "--values")
        t.run("validate", t.at(name), "--deep")


EXPERT_MESHES = (("ep=4", "shard(0)"), ("pp=2,ep=2", "shard(0),shard(1)"), ("tp=3", "shard(1)"))


def check_experts(t, path, want, what):
    """Like check_listing; also checks that every object is a list with one item per layer and expert that has it."""
    rows = rows_of(t, path, want, what)
    objects = {k: e["value"] for k, e in rows.items() if k in want["objects"]}
    need(objects == want["objects"] and not any("/shard_" in k for k in rows), f"{what}: {objects}")
    need({k for k, e in rows.items() if e["kind"] != "tensor" and not k.startswith("common.")} <= set(want["objects"]), f"{what}: {sorted(rows)}")


@test
def test_experts_of_two_pipeline_stages_are_those_of_megatron(t):
    """Stacked layers, and layers and experts with their own names (tests/golden/make_megatron_moe.py)."""
    for name in ("moe", "moe_layers"):
        path, want = golden(name)
        check_experts(t, path, want, name)
        for deep in ((), ("--deep",)):
            need(t.json("validate", path, "--json", *deep)["findings"] == [], name)
        t.run("convert", path, t.at(name), "--to", "megatron-dist")
        check_experts(t, t.at(name), want, f"{name}, converted")
        t.run("diff", path, t.at(name), "--values")
        t.run("convert", path, t.at(name + ".safetensors"), "--exclude", "common.**", "--objects", "drop")
        listed = t.json("inspect", t.at(name + ".safetensors"), "--json", "--hash", "sha256")["entries"]
        need({e["fqn"]: e["hash"]["digest"] for e in listed} == {k: w["sha256"] for k, w in want["entries"].items()}, f"{name}: safetensors")
        for number, (mesh, placements) in enumerate(EXPERT_MESHES):
            out = t.at(f"{name}{number}")
            t.run("reshard", path, out, "--mesh", mesh, "--placements", placements)
            check_experts(t, out, want, f"{name} on {mesh}")


@test
def test_a_lost_expert_is_named(t):
    """A file that only one pipeline stage and expert-parallel rank writes."""
    for name in ("moe", "moe_layers"):
        path, _ = golden(name)
        shutil.copytree(path, t.at(name))
        os.remove(os.path.join(t.at(name), "__3_0.distcp"))
        message = t.run("convert", t.at(name), t.at("x"), "--to", "megatron-dist", status=2).stderr.decode()
        need("__3_0.distcp" in message and not os.path.exists(t.at("x")), message)


@test
def test_megatron_is_resharded(t):
    for name in ("fragments", "layers"):
        path, want = golden(name)
        for n, (mesh, placements) in enumerate(MESHES):
            out = t.at(f"{name}{n}")
            # megatron-dist, which is the format of the source
            t.run("reshard", path, out, "--mesh", mesh, "--placements", placements)
            check_listing(t, out, want, f"{name} on {mesh}")
            t.run("validate", out, "--deep")


@test
def test_megatron_in_other_forms(t):
    path, want = golden("fragments")
    for to, more in (("safetensors", ("--objects", "drop")), ("torch", ())):
        out = t.at(f"all.{to}")
        t.run("convert", path, out, "--to", to, *more)
        rows = {e["fqn"]: e for e in t.json("inspect", out, "--json", "--hash", "sha256")["entries"] if e["kind"] == "tensor"}
        need({k: (e["shape"], e["hash"]["digest"]) for k, e in rows.items()} ==
             {k: (w["shape"], w["sha256"]) for k, w in want["entries"].items()}, f"{to} has other tensors")
    t.run("convert", path, t.at("dcp"), "--to", "dcp")
    t.run("diff", path, t.at("dcp"), "--values")


@test
def test_megatron_of_another_form(t):
    """Names stay, an object becomes one shard, and common.pt is empty."""
    path, _ = golden("layers")
    t.run("convert", path, t.at("flat"), "--to", "dcp", "--exclude", "common.**", "--exclude", "grid")
    t.run("convert", t.at("flat"), t.at("out"), "--to", "megatron-dist")
    rows = {e["fqn"]: e for e in t.json("inspect", t.at("out"), "--json")["entries"]}
    need(set(rows) == {"decoder.layers.linear.weight", "weight", "rng_state", "one"} and rows["one"]["value"] == [["only"]], rows)
    message = t.run("convert", t.at("flat"), t.at("no"), "--to", "megatron-dist", "--rename", "one=a/b", status=2).stderr.decode()
    need("'one'" in message and "'/'" in message and not os.path.exists(t.at("no")), message)


@test
def test_megatron_saves_that_were_interrupted(t):
    for name in ("fragments", "layers"):
        path, want = golden(name)
        names = [e["fqn"] for e in t.json("inspect", path, "--json")["entries"]]
        for file in ("metadata.json", "common.pt"):
            shutil.copytree(path, t.at(name, file), ignore=lambda _, files: [f for f in files if f == file])
            listed = [n for n in names if file != "common.pt" or not n.startswith("common.")]
            check_incomplete(t, t.at(name, file), listed, file)
        shutil.copytree(path, t.at(name, "cut"))
        os.truncate(t.at(name, "cut", "common.pt"), 900)
        check_incomplete(t, t.at(name, "cut"), [n for n in names if not n.startswith("common.")], "common.pt")
        for size in (0, 20):
            shutil.copytree(path, t.at(name, f"json-{size}"))
            os.truncate(t.at(name, f"json-{size}", "metadata.json"), size)
            check_incomplete(t, t.at(name, f"json-{size}"), names, "metadata.json")


@test
def test_megatron_metadata_that_does_not_fit_is_refused(t):
    """Another shape in mcore_data, with the same length in the pickle."""
    path, _ = golden("fragments")
    with open(os.path.join(path, ".metadata"), "rb") as f:
        data = f.read()
    at = data.index(b"nd_reformulated_orig_global_shape")
    before = data[:at].rindex(b"optimizer.")
    need(data.index(b"K", at) - at < 80 and before, "the golden has another layout")
    first = data.index(b"K", at)  # BININT1: the first size
    shutil.copytree(path, t.at("bad"))
    with open(t.at("bad", ".metadata"), "wb") as f:
        f.write(data[:first + 1] + bytes([data[first + 1] + 1]) + data[first + 2:])
    message = t.run("inspect", t.at("bad"), status=2).stderr.decode()
    need("mcore_data does not match" in message and "optimizer." in message, message)


@test
def test_megatron_shards_that_are_not_all_there(t):
    """The grid of one shard is renamed: the others stay as they are stored, with a finding."""
    path, _ = golden("layers")
    shutil.copytree(path, t.at("bad"))
    with open(t.at("bad", ".metadata"), "rb") as f:
        data = f.read()
    need(b"rng_state/shard_3_4" in data, "the golden has other names")
    with open(t.at("bad", ".metadata"), "wb") as f:
        f.write(data.replace(b"rng_state/shard_3_4", b"rng_state/shard_4_5"))
    found = [f for f in t.json("validate", t.at("bad"), "--json", status=1)["findings"] if f["rule"] == "megatron/shards"]
    need([f["level"] for f in found] == ["error"] and "rng_state" in found[0]["message"], found)
    names = {e["fqn"] for e in t.json("inspect", t.at("bad"), "--json")["entries"]}
    need({"rng_state/shard_0_4", "rng_state/shard_4_5", "one"} <= names, names)


@test
def test_megatron_without_common_pt(t):
    """Megatron-Core 0.19 writes the object common_state instead (tests/golden/make_megatron_common_state.py)."""
    path = os.path.join(GOLDEN, "common_state")
    for deep in ((), ("--deep",)):
        need(t.json("validate", path, "--json", *deep)["findings"] == [], "a healthy save")
    doc = t.json("inspect", path, "--json")
    rows = {e["fqn"]: e for e in doc["entries"]}
    need([p["name"] for p in doc["summary"]["parts"]] == ["", "common"], doc["summary"])
    need({k: e.get("value") for k, e in rows.items() if e["kind"] == "object"} == {
        "common.iteration": 12, "common.scheduler.lr": 0.25, "common.scheduler.style": "linear", "rng_state": [{"seed": 1}, {"seed": 2}]}, rows)
    for name, want in (("alpha.weight[1]", "3 4 5"), ("zeta.weight", "0 1 2 3"), ("common.seen", "3 5 8")):
        got = t.run("get", path, name, "--print").stdout.decode()
        need(got.replace("[", " ").replace("]", " ").replace(",", " ").split() == want.split(), got)
    need("scheduler.lr" in {e["fqn"] for e in t.json("inspect", path, "--part", "common", "--json")["entries"]}, "the part by itself")
    t.run("convert", path, t.at("m"), "--to", "megatron-dist")
    need("common.pt" in os.listdir(t.at("m")), "the form that all versions read")
    t.run("diff", path, t.at("m"), "--values")
    t.run("convert", path, t.at("x.safetensors"), "--objects", "drop", "--exclude", "common.**")
    # With a common_backend in metadata.json, what is not sharded belongs in common.pt.
    shutil.copytree(path, t.at("lost"))
    with open(t.at("lost", "metadata.json"), "w") as f:
        json.dump({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}, f)
    check_incomplete(t, t.at("lost"), ["alpha.weight", "common_state", "rng_state", "zeta.weight"], "'common.pt' is missing")
