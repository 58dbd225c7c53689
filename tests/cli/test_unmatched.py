"""Patterns of --include, --exclude, --rename, --no-quantize and --target that match nothing: a warning for each, and an error
where nothing would be left to write. Options that need another one."""
import json
import os
import struct

from harness import need, sample, st_write, test

NAMES = ["model.layers.0.self_attn.weight", "model.layers.1.self_attn.weight", "model.norm.weight"]
CUT = ("--mesh", "dp=2", "--placements", "shard(0)")


def model(t, name="m.safetensors"):
    raw = lambda n, size: struct.pack(f"<{size}f", *(n * 100 + i for i in range(size)))
    tensors = {fqn: ("F32", [2, 3], raw(n, 6)) for n, fqn in enumerate(NAMES[:2])}
    st_write(t.at(name), {**tensors, NAMES[2]: ("F32", [3], raw(7, 3))})
    return t.at(name)


def writers(t, path):
    """Every command that writes a selection, as (where, its arguments)."""
    return [(t.at("out.safetensors"), ("convert", path, t.at("out.safetensors"))), (t.at("cut"), ("reshard", path, t.at("cut"), *CUT)),
            (t.at("sum.safetensors"), ("merge", t.at("sum.safetensors"), path, model(t, "n.safetensors"), "--method", "linear"))]


def readers(path):
    return [("layout", path), ("manifest", path), ("plan", path, *CUT)]


def warnings(p):
    return [line for line in p.stderr.decode().splitlines() if "warning: --" in line]


@test
def test_a_selection_of_nothing_is_refused(t):
    path = model(t)
    why = "--include 'modle.**' matches no name; the most similar is 'model.layers.0.self_attn.weight'"
    for out, args in [*writers(t, path), *((None, a) for a in readers(path))]:
        message = t.run(*args, "--include", "modle.**", "--include", "x", "--exclude", "model.norm.*", status=2).stderr.decode()
        need(f"nothing is selected: {why}" in message, f"{args[0]}: {message}")
        need(not out or not os.path.exists(out), f"{args[0]} wrote {out}")


@test
def test_excluding_everything_is_a_warning(t):
    path = model(t)
    for options, why in ((("--include", "model.norm.*", "--exclude", "*.norm.weight"), "--exclude leaves out every name that --include matches"),
                         (("--exclude", "**"), "--exclude leaves out every name")):
        for out, args in [*writers(t, path), *((None, a) for a in readers(path)), (None, ("inspect", path))]:
            message = t.run(*args, *options, *(("--overwrite",) if out else ())).stderr.decode()
            need(f"warning: nothing is selected: {why}\n" in message, f"{args[0]}: {message}")


@test
def test_each_pattern_without_a_match_is_a_warning(t):
    path = model(t)
    options = ("--include", "**.weight", "--include", "layers.*", "--include", "*.weight", "--exclude", "model.norm", "--exclude", "model.layers.1.**")
    want = ["--include 'layers.*' matches no name; '**.layers.**' would match 'model.layers.0.self_attn.weight'",
            "--include '*.weight' matches no name; '**.weight' would match 'model.layers.0.self_attn.weight'",
            "--exclude 'model.norm' matches no name; 'model.norm.**' would match 'model.norm.weight'"]
    for args in [*(a for _, a in writers(t, path)), *readers(path), ("inspect", path)]:
        got = warnings(t.run(*args, *options))
        need(got == [f"tessera: warning: {w}" for w in want], f"{args[0]}: {got}")
    need(warnings(t.run("inspect", path, "--include", "nothing", "--json")), "inspect --json says nothing")
    need(not t.run("inspect", path, "--include", "nothing", "--quiet").stderr, "--quiet")
    document = t.json("convert", path, t.at("again.safetensors"), *options, "--json")
    need([w for w in document["warnings"] if w.startswith("--")] == want, document["warnings"])


@test
def test_an_empty_checkpoint_is_not_a_selection_of_nothing(t):
    st_write(t.at("empty.safetensors"), {})
    p = t.run("convert", t.at("empty.safetensors"), t.at("copy.safetensors"), "--exclude", "optimizer.**")
    need(warnings(p) == ["tessera: warning: --exclude 'optimizer.**' matches no name"], p.stderr)


@test
def test_each_rename_without_effect_is_a_warning(t):
    path = model(t)
    p = t.run("convert", path, t.at("out.safetensors"), "--rename", "modle.=", "--rename", "model.norm.=last.", "--rename", "*.norm.weight=*.n",
              "--rename", "model.layers.0.=first.", "--exclude", "model.layers.0.**")
    need(warnings(p) == ["tessera: warning: --rename 'modle.=' matches no selected name; the most similar is 'model.layers.0.self_attn.weight'",
                         "tessera: warning: --rename '*.norm.weight=*.n' has no effect: earlier ones rename every name that it matches",
                         "tessera: warning: --rename 'model.layers.0.=first.' matches no selected name; the most similar is 'model.layers.0.self_attn.weight'"],
         p.stderr.decode())
    got = {e["fqn"] for e in t.json("inspect", t.at("out.safetensors"), "--json")["entries"]}
    need(got == {NAMES[1], "last.weight"}, got)


@test
def test_no_quantize_without_a_match_is_a_warning(t):
    path = model(t)
    for out, args in writers(t, path):
        p = t.run(*args, "--quantize", "fp8-block", "--no-quantize", "layers.1.**", "--no-quantize", "**.1.**")
        need(warnings(p) == ["tessera: warning: --no-quantize 'layers.1.**' matches no name; '**.layers.1.**' would match "
                             "'model.layers.1.self_attn.weight'"], p.stderr.decode())
        got = {e["fqn"]: e["dtype"] for e in t.json("inspect", out, "--json")["entries"]}
        need(got[NAMES[0]] == "float8_e4m3fn" and got[NAMES[1]] == "float32", got)


@test
def test_patterns_match_the_names_after_mapping(t):
    path = model(t)
    with open(t.at("map.json"), "w") as f:
        json.dump({"schema": "tessera.map/1", "rules": [{"from": ["model.{rest...}"], "to": ["net.{rest...}"]}]}, f)
    options = ("--map", t.at("map.json"), "--include", "net.**", "--exclude", "model.norm.*")
    for args in (("convert", path, t.at("out.safetensors")), ("manifest", path), ("plan", path, *CUT)):
        got = warnings(t.run(*args, *options))
        need(got == ["tessera: warning: --exclude 'model.norm.*' matches no name; the first name is 'net.layers.0.self_attn.weight'"], f"{args[0]}: {got}")


@test
def test_a_plan_of_nothing_is_refused_by_exec(t):
    path, _ = sample("dcp_fsdp2")
    document = t.json("plan", path, *CUT, "--json")
    document["request"]["options"]["include"] = ["nothing.**"]
    with open(t.at("plan.json"), "w") as f:
        json.dump(document, f)
    message = t.run("exec", t.at("plan.json"), t.at("out"), status=2).stderr.decode()
    need("nothing is selected" in message and not os.path.exists(t.at("out")), message)


@test
def test_each_rule_of_a_target_without_a_match_is_a_warning(t):
    path = model(t)
    says = lambda p: [line for line in p.stderr.decode().splitlines() if "target" in line]
    match = lambda *globs: [{"match": g, "placements": ["shard(0)"]} for g in globs]
    first = "tessera: warning: the target's rule 'layers.*' matches no name; '**.layers.**' would match 'model.layers.0.self_attn.weight'"
    for rules, want in ((match("layers.*", "model.**"), [first]), (match("**.norm.weight", "**"), []),
                        (match("layers.*", *(f"none.{i}" for i in range(6))), [first, "tessera: warning: 4 more rules of the target match no name"])):
        with open(t.at("target.json"), "w") as f:
            json.dump({"schema": "tessera.target/1", "mesh": {"shape": [2], "dim_names": ["dp"]}, "rules": rules, "default": ["replicate"]}, f)
        p = t.run("plan", path, "--target", t.at("target.json"))
        got = says(p)
        need(got[:1] + got[-1:] == (want[:1] + want[-1:]) and len(got) in (len(want), 4), got)
        need(says(t.run("reshard", path, t.at("cut"), "--target", t.at("target.json"), "--overwrite")) == got, "reshard")
        document = t.json("reshard", path, t.at("cut"), "--target", t.at("target.json"), "--overwrite", "--json")
        need([f"tessera: warning: {w}" for w in document["warnings"]] == got, document["warnings"])


@test
def test_options_of_contracts_need_a_contract(t):
    path = model(t)
    t.run("layout", path, "-o", t.at("layout.json"))
    need(b"--prefix needs --against FILE" in t.run("validate", path, "--prefix", "model.", status=2).stderr, "--prefix alone")
    need(b"--prefix needs --against FILE" in t.run("validate", path, "--layout", t.at("layout.json"), "--prefix", "model.", status=2).stderr, "--prefix with --layout")
    need(b"--allow needs --layout FILE or --against FILE" in t.run("validate", path, "--allow", "missing", status=2).stderr, "--allow alone")
    t.run("validate", path, "--layout", t.at("layout.json"), "--allow", "missing")
    p = t.run("fqn", "--checkpoint", path, "--prefix", "modle.")
    need(b"--prefix 'modle.' matches no key of" in p.stderr and not p.stdout, p.stderr)
    need(b"--prefix" not in t.run("fqn", "--checkpoint", path, "--prefix", "model.").stderr, "a prefix of every key")
