"""Names in one command: several --rename, --prefix, --canonical, validate --exclude."""
import json
import struct

import pickles
from harness import need, sample, st_write, test


def numbers(*values):
    return ("F32", [len(values)], struct.pack(f"<{len(values)}f", *values))


def names_in(t, path):
    return {e["fqn"] for e in t.json("inspect", path, "--json")["entries"]}


@test
def test_renames_apply_to_the_result_of_those_before_them(t):
    st_write(t.at("m.safetensors"), {"net.enc.w": numbers(1), "net.dec.w": numbers(2), "head.w": numbers(3)})
    for options, want in ((("net.=m.", "m.enc.=m.encoder."), {"m.encoder.w", "m.dec.w", "head.w"}),
                          (("net.*=b.*", "b.*=a.*.z"), {"a.enc.w.z", "a.dec.w.z", "head.w"}),
                          (("net.dec.=net.old.", "net.enc.=net.dec."), {"net.old.w", "net.dec.w", "head.w"}),
                          (("m.enc.=x.", "net.=m."), {"m.enc.w", "m.dec.w", "head.w"})):
        p = t.run("convert", t.at("m.safetensors"), t.at("out.safetensors"), "--overwrite", *(a for o in options for a in ("--rename", o)))
        need(names_in(t, t.at("out.safetensors")) == want, f"{options}: {names_in(t, t.at('out.safetensors'))}")
        unused = [o for o in options if o == "m.enc.=x."]
        need(p.stderr.decode().count("warning: --rename") == len(unused), p.stderr)


@test
def test_a_key_without_characters_is_not_the_root(t):
    """Names that do not change keep their paths, also where no path could be told from the name."""
    path, _ = sample("torch_objects")
    need("" in names_in(t, path) and len(names_in(t, path)) > 1, "the sample has no such key")
    t.run("convert", path, t.at("out.pt"), "--to", "torch", "--canonical")
    t.run("diff", path, t.at("out.pt"), "--values")


@test
def test_warnings_name_an_object_that_is_the_whole_file(t):
    path = pickles.write(t.at("root.pt"), pickles.archive(b"\x80\x02" + pickles.call(pickles.glob("datetime", "timedelta"), b"K\1", b"K\2", b"K\3") + b"."))
    said = t.run("convert", path, t.at("out.pt"), "--to", "torch").stderr
    need(b"will refuse: (root)\n" in said, said)


@test
def test_validate_leaves_excluded_names_out(t):
    st_write(t.at("m.safetensors"), {"model.a.w": numbers(1), "model.b.w": numbers(float("nan")), "model.c.w": numbers(1, 2)})
    json.dump({"weight_map": {n: "x.safetensors" for n in ("a.w", "c.w", "d.w")}}, open(t.at("want.json"), "w"))
    check = ("validate", t.at("m.safetensors"), "--against", t.at("want.json"), "--prefix", "model.", "--json")
    found = lambda *options, status: {(f["rule"], f.get("fqn")) for f in t.json(*check, *options, status=status)["findings"]}
    extra, missing = ("layout/unexpected-entry", "model.b.w"), ("layout/missing-entry", "d.w")
    need(found(status=1) == {extra, missing}, found(status=1))
    need(found("--exclude", "b.*", status=1) == {missing}, "b, without the prefix")
    need(found("--exclude", "model.b.*", status=1) == {missing}, "b, with the prefix")
    need(found("--exclude", "b.*", "--exclude", "d.*", status=0) == set(), "b and d")
    deep = lambda *options: {(f["rule"], f.get("fqn")) for f in t.json("validate", t.at("m.safetensors"), "--deep", "--json", *options)["findings"]}
    need(("values/nan", "model.b.w") in deep(), deep())
    need(deep("--exclude", "**.b.w") == set(), "findings of values about a name that is left out")


@test
def test_a_parameter_with_two_names_is_refused_by_every_command(t):
    """A parameter inside torch.compile's wrapper and outside: the wrapper's `_orig_mod` has siblings then, and looks like an attribute."""
    twice, once = t.at("twice.safetensors"), t.at("once.safetensors")
    st_write(twice, {"module.fc.w": numbers(1), "module._orig_mod.fc.w": numbers(2)})
    st_write(once, {"module.fc.w": numbers(1), "module.fc.b": numbers(2)})
    refused = lambda *command: t.run(*command, "--canonical", status=2).stderr.decode()
    for command in (["convert", twice, t.at("out.safetensors")], ["manifest", twice], ["diff", twice, twice], ["diff", once, twice], ["diff", twice, once, "--values"],
                    ["reshard", twice, t.at("out"), "--to", "dcp", "--mesh", "dp=2", "--placements", "shard(0)"], ["plan", twice, "--mesh", "dp=2", "--placements", "shard(0)"]):
        message = refused(*command)
        need("'module._orig_mod.fc.w'" in message and "'module.fc.w'" in message and twice in message, f"{command[0]}: {message}")
    # wrapped twice, so that the names differ in more than `_orig_mod` once `module` is removed
    st_write(t.at("nested.safetensors"), {"module.a": numbers(1), "_orig_mod.module.a": numbers(2)})
    for command in (["convert", t.at("nested.safetensors"), t.at("out.safetensors")], ["diff", once, t.at("nested.safetensors")]):
        message = refused(*command)
        need("'_orig_mod.module.a' and 'module.a' would both be named 'module.a'" in message and t.at("nested.safetensors") in message, f"{command[0]}: {message}")
    # a compiled part of a model with other parameters next to it, in one of two checkpoints
    st_write(t.at("compiled.safetensors"), {"net._orig_mod.w": numbers(1), "head.w": numbers(2)})
    st_write(t.at("plain.safetensors"), {"net.w": numbers(1), "head.w": numbers(2)})
    need(t.json("diff", t.at("compiled.safetensors"), t.at("plain.safetensors"), "--values", "--canonical", "--json")["same"], "not the same names")
