"""Tensor subclasses, made by tests/golden/make_torchao.py: entries with named inner tensors, which torch.save and DCP
keep."""
import json
import os

from harness import need, test

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "torchao")
WRAPPED = {"first": ("torchao.quantization.Float8Tensor", [16, 32], "float8_e4m3fn"),
           "second": ("torchao.quantization.Int8Tensor", [8, 64], "int8"),
           "large": ("torchao.quantization.Float8Tensor", [64, 64], "float8_e4m3fn")}


def check(t, path, what):
    rows = {e["fqn"]: e for e in t.json("inspect", path, "--json")["entries"]}
    need(set(rows) == {*WRAPPED, "bias", "norm"} and rows["bias"]["kind"] == rows["norm"]["kind"] == "tensor", f"{what}: {sorted(rows)}")
    for name, (type_, shape, dtype) in WRAPPED.items():
        row = rows[name]
        need((row["kind"], row["type"], row["dtype"], row["shape"]) == ("opaque", type_, "bfloat16", shape), f"{what}: {row}")
        inner = {i["name"]: (i["dtype"], i["shape"]) for i in row["inner"]}
        need(inner["qdata"] == (dtype, shape) and inner["scale"][1] == [shape[0], 1], f"{what}: {inner}")
    need(not [f for f in t.json("validate", path, "--json", "--deep")["findings"] if f["level"] == "error"], what)


@test
def test_subclasses_are_listed_with_inner_tensors(t):
    for source in ("model.pt", "dcp"):
        check(t, os.path.join(GOLDEN, source), source)
    t.run("diff", os.path.join(GOLDEN, "model.pt"), os.path.join(GOLDEN, "dcp"), "--values")


@test
def test_subclasses_are_written_again(t):
    for source in ("model.pt", "dcp"):
        path = os.path.join(GOLDEN, source)
        for to in ("torch", "dcp"):
            out = t.at(f"{to} of {source}")
            t.run("convert", path, out, "--to", to)
            check(t, out, f"{to} of {source}")
            t.run("diff", path, out, "--values")


@test
def test_a_map_renames_subclasses_and_keeps_what_they_hold(t):
    names = t.at("names.json")
    with open(names, "w") as f:
        json.dump({"schema": "tessera.map/1", "unmatched": "keep", "rules": [{"from": ["first"], "to": ["a"]}, {"from": ["norm"], "to": ["n"]}]}, f)
    for source in ("model.pt", "dcp"):
        path, mapped, renamed = os.path.join(GOLDEN, source), t.at(f"mapped of {source}"), t.at(f"renamed of {source}")
        t.run("convert", path, mapped, "--to", "torch", "--map", names)
        t.run("convert", path, renamed, "--to", "torch", "--rename", "first=a", "--rename", "norm=n")
        with open(mapped, "rb") as one, open(renamed, "rb") as other:
            need(one.read() == other.read(), source)


@test
def test_subclasses_are_refused_by_name_for_safetensors(t):
    for source in ("model.pt", "dcp"):
        path = os.path.join(GOLDEN, source)
        for more in ((), ("--objects", "drop")):
            message = t.run("convert", path, t.at("no.safetensors"), "--to", "safetensors", *more, status=2).stderr.decode()
            need(all(f"'{n}'" in message for n in WRAPPED) and not os.path.exists(t.at("no.safetensors")), message)
        out = t.at(f"{source}.safetensors")
        t.run("convert", path, out, "--to", "safetensors", *(a for n in WRAPPED for a in ("--exclude", n)))
        need({e["fqn"] for e in t.json("inspect", out, "--json")["entries"]} == {"bias", "norm"}, source)


@test
def test_subclasses_are_dequantized_as_torchao_does(t):
    want = {e["fqn"]: e for e in t.json("inspect", os.path.join(GOLDEN, "scaled-float32.pt"), "--json")["entries"]}
    for source in ("scaled.pt", "scaled_dcp"):
        out = t.at(f"{source}.safetensors")
        t.run("convert", os.path.join(GOLDEN, source), out, "--dequantize", "--dtype", "float32")
        rows = {e["fqn"]: e for e in t.json("inspect", out, "--json")["entries"]}
        need({n: (e["dtype"], e["shape"]) for n, e in rows.items()} == {n: (e["dtype"], e["shape"]) for n, e in want.items()}, f"{source}: {rows}")
        t.run("diff", out, os.path.join(GOLDEN, "scaled-float32.pt"), "--values")
        t.run("convert", os.path.join(GOLDEN, source), t.at(f"little {source}"), "--to", "safetensors", "--dequantize", "--dtype", "float32", "--max-mem", "64KiB")
        t.run("diff", t.at(f"little {source}"), out, "--values")


@test
def test_subclasses_that_are_not_dequantized_are_named(t):
    for name, why in (("int8", "Int8Tensor"), ("swizzled", "NVFP4Tensor with swizzled scales"), ("mxfp4", "MXTensor of packed numbers"),
                      ("transposed", "NVFP4Tensor that is transposed")):
        for to in ("safetensors", "torch", "dcp"):
            message = t.run("convert", os.path.join(GOLDEN, f"refused-{name}.pt"), t.at("no"), "--to", to, "--dequantize", status=2).stderr.decode()
            need(f"'{name}' is a " in message and why in message and "torchao" in message, message)
            need(not os.path.exists(t.at("no")), name)
    message = t.run("convert", os.path.join(GOLDEN, "refused.safetensors"), t.at("no"), "--to", "dcp", "--dequantize", status=2).stderr.decode()
    need("'layer._weight_qdata' and 'layer._weight_scale' are a tensor of torchao" in message and not os.path.exists(t.at("no")), message)


@test
def test_a_subclass_that_is_not_dequantized_refuses_only_where_it_is_selected(t):
    """'second' in the file is an Int8Tensor of torchao, next to two that can be dequantized."""
    def mapped(name, *first):
        with open(t.at(name), "w") as f:
            json.dump({"schema": "tessera.map/1", "rules": [*first, {"from": ["{rest...}"], "to": ["m.{rest...}"]}]}, f)
        return t.at(name)
    renamed, dropped = mapped("renamed.json"), mapped("dropped.json", {"from": ["second"], "to": []})
    for source in ("model.pt", "dcp"):
        path = os.path.join(GOLDEN, source)
        for more in ((), ("--map", renamed), ("--exclude", "first"), ("--include", "second")):
            message = t.run("convert", path, t.at("no"), "--to", "dcp", "--dequantize", *more, status=2).stderr.decode()
            need("'second' is a torchao.quantization.Int8Tensor" in message and not os.path.exists(t.at("no")), message)
        for prefix, more in (("", ("--exclude", "second")), ("m.", ("--map", dropped)), ("m.", ("--map", renamed, "--exclude", "m.second"))):
            out = t.at(f"{source} {len(more)} {prefix}.safetensors")
            t.run("convert", path, out, "--dequantize", *more)
            rows = {e["fqn"]: (e["dtype"], e["shape"]) for e in t.json("inspect", out, "--json")["entries"]}
            need(set(rows) == {prefix + n for n in ("first", "large", "bias", "norm")} and rows[prefix + "first"] == ("bfloat16", [16, 32]), f"{more}: {rows}")
