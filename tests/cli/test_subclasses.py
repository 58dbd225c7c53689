"""Tensor subclasses, made by tests/golden/make_torchao.py: entries with named inner tensors, which torch.save and DCP
keep."""
import json
import os
import shutil
import struct

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
def test_integers_of_torchao_are_dequantized_bit_for_bit(t):
    """In the dtype of each weight, or in another one. DCP does not take the class of intx."""
    for wanted, more in (("integers-own.pt", ()), ("integers-float32.pt", ("--dtype", "float32"))):
        for source in ("integers.pt", "integers_dcp", "integers.safetensors"):
            out = t.at(f"{wanted} {source}.safetensors")
            t.run("convert", os.path.join(GOLDEN, source), out, "--dequantize", *more)
            found = t.json("diff", os.path.join(GOLDEN, wanted), out, "--values", "--json", status=(0, 1))
            left = [r for r in found["removed"] if source != "integers_dcp" or r.rpartition(".")[2] not in ("int4", "between")]
            need(not left and not found["added"] and not found["changed"], f"{source}: {found}")
            kept = set(t.json("inspect", out, "--json")["metadata"])  # not what torchao states of weights that are none any more
            need(kept <= {"format", "tessera.crc32"}, f"{source}: {kept}")
            little = t.at(f"little {wanted} {source}")
            t.run("convert", os.path.join(GOLDEN, source), little, "--to", "safetensors", "--dequantize", *more, "--max-mem", "64KiB")
            t.run("diff", little, out, "--values")


@test
def test_what_torchao_wrote_until_0_16_is_dequantized(t):
    source, out = os.path.join(GOLDEN, "affine.pt"), t.at("affine.safetensors")
    message = t.run("convert", source, out, "--dequantize", status=2).stderr.decode()
    need("'refused' is a torchao.dtypes.uintx.uintx_layout.UintxAQTTensorImpl in an AffineQuantizedTensor" in message, message)
    t.run("convert", source, out, "--dequantize", "--exclude", "refused")
    t.run("diff", out, os.path.join(GOLDEN, "affine-own.pt"), "--values")
    rows = {e["fqn"]: e for e in t.json("inspect", source, "--json")["entries"]}
    inner = [(i["name"], i["dtype"], i["shape"]) for i in rows["both"]["inner"]]
    need(inner == [("original_weight_tensor.tensor_impl.int_data", "int8", [8, 32]), ("original_weight_tensor.tensor_impl.scale", "float16", [8])], inner)


@test
def test_subclasses_that_are_not_dequantized_are_named(t):
    for file, name, why, reads in (("refused-transposed.pt", "transposed", "NVFP4Tensor that is transposed", "dequantize()"),
                                   ("refused-int4.pt", "int4", "torchao.quantization.Int4Tensor", "only multiplies"),
                                   ("nf4.pt", "weight", "NF4Tensor", "get_original_weight()")):
        for to in ("safetensors", "torch", "dcp"):
            message = t.run("convert", os.path.join(GOLDEN, file), t.at("no"), "--to", to, "--dequantize", status=2).stderr.decode()
            need(f"'{name}' is a " in message and why in message and reads in message, message)
            need(not os.path.exists(t.at("no")), name)
    message = t.run("convert", os.path.join(GOLDEN, "refused.safetensors"), t.at("no"), "--to", "dcp", "--dequantize", status=2).stderr.decode()
    need("'layer._weight_qdata' and 'layer._weight_scale' are a tensor of torchao" in message and not os.path.exists(t.at("no")), message)


@test
def test_a_subclass_that_is_not_dequantized_refuses_only_where_it_is_selected(t):
    """'refused' in the file is of a class that packs bits, next to weights that can be dequantized."""
    def mapped(name, *first):
        with open(t.at(name), "w") as f:
            json.dump({"schema": "tessera.map/1", "rules": [*first, {"from": ["{rest...}"], "to": ["m.{rest...}"]}]}, f)
        return t.at(name)
    renamed, dropped = mapped("renamed.json"), mapped("dropped.json", {"from": ["refused"], "to": []})
    path = os.path.join(GOLDEN, "affine.pt")
    for more in ((), ("--map", renamed), ("--exclude", "row"), ("--include", "refused")):
        message = t.run("convert", path, t.at("no"), "--to", "dcp", "--dequantize", *more, status=2).stderr.decode()
        need("'refused' is a torchao.dtypes." in message and not os.path.exists(t.at("no")), message)
    for prefix, more in (("", ("--exclude", "refused")), ("m.", ("--map", dropped)), ("m.", ("--map", renamed, "--exclude", "m.refused"))):
        out = t.at(f"{len(more)} {prefix}.safetensors")
        t.run("convert", path, out, "--dequantize", *more)
        rows = {e["fqn"]: (e["dtype"], e["shape"]) for e in t.json("inspect", out, "--json")["entries"]}
        need(set(rows) == {prefix + n for n in ("row", "row32", "group", "both", "int4", "intx")} and rows[prefix + "row"] == ("bfloat16", [8, 32]), f"{more}: {rows}")


SHARDED = os.path.join(os.path.dirname(GOLDEN), "torchao_sharded")  # tests/golden/make_torchao_sharded.py
MOMENTS = ("exp_avg", "exp_avg_sq")
CLASS = "torchao.optim.subclass_8bit.OptimState8bit"


def flipped(t, source, name, find):
    """A copy of a directory in which the last byte of `find` in one file differs."""
    shutil.copytree(os.path.join(SHARDED, source), t.at(f"bad {source}"))
    path = t.at(f"bad {source}", name)
    with open(path, "rb") as f:
        data = bytearray(f.read())
    need(data.count(find) >= 1, "the sample has other bytes")
    data[data.rindex(find) + len(find) - 1] ^= 1
    with open(path, "wb") as f:
        f.write(data)
    return t.at(f"bad {source}")


def scales(seed, rank, count):
    return struct.pack(f"<{count}f", *(n * 0.25 + seed + 10 * rank for n in range(count)))


@test
def test_sharded_subclasses_are_listed_chunk_by_chunk(t):
    for source, files in (("dcp", ["__0_0.distcp", "__1_0.distcp"]), ("ranks", ["rank0.pt", "rank1.pt"])):
        path = os.path.join(SHARDED, source)
        rows = {e["fqn"]: e for e in t.json("inspect", path, "--json")["entries"]}
        for name in MOMENTS:
            row = rows[name]
            need((row["kind"], row["type"], row["dtype"], row["shape"]) == ("opaque", CLASS, "float32", [11, 16]), row)
            need([(i["name"], i["dtype"]) for i in row["inner"]] == [("codes", "uint8"), ("scale", "float32"), ("qmap", "float32")], row)
            need(all(c["byte_length"] > 1024 for c in row["chunks"]), row)
            need([(c["offsets"], c["sizes"], c["file"]) for c in row["chunks"]] == [([0, 0], [6, 16], files[0]), ([6, 0], [5, 16], files[1])], row)
        need(rows["same"]["shape"] == [6, 16] and "chunks" not in rows["same"], rows["same"])
        for deep in ((), ("--deep",)):
            found = t.json("validate", path, "--json", *deep)["findings"]
            need({f["level"] for f in found} <= {"note"} and not [f for f in found if f["rule"] == "torch/rank-differs"], found)
    t.run("diff", os.path.join(SHARDED, "dcp"), os.path.join(SHARDED, "ranks"), "--values")


@test
def test_bytes_inside_sharded_subclasses_are_checked(t):
    for source, name in (("dcp", "__1_0.distcp"), ("ranks", "rank1.pt")):
        path, bad = os.path.join(SHARDED, source), flipped(t, source, name, scales(2, 1, 2))
        found = t.json("validate", bad, "--deep", "--json", status=1)["findings"]
        need([f for f in found if f["level"] == "error" and f["file"] == name], found)
        changed = t.json("diff", path, bad, "--values", "--json", status=1)["changed"]
        need([(c["fqn"], c["what"]) for c in changed] == [("exp_avg_sq", ["value"])], changed)
        digests = [{e["fqn"]: e["hash"] for e in t.json("manifest", p)["entries"]} for p in (path, bad)]
        need({n for n in digests[0] if digests[0][n] != digests[1][n]} == {"exp_avg_sq"}, digests)


@test
def test_sharded_subclasses_stay_as_they_are_in_a_dcp(t):
    manifest = t.json("manifest", os.path.join(SHARDED, "dcp"))
    for source in ("dcp", "ranks"):
        out = t.at(f"of {source}")
        t.run("convert", os.path.join(SHARDED, source), out, "--to", "dcp")
        rows = {e["fqn"]: e for e in t.json("inspect", out, "--json")["entries"]}
        need([(c["offsets"], c["sizes"]) for c in rows["exp_avg"]["chunks"]] == [([0, 0], [6, 16]), ([6, 0], [5, 16])], rows["exp_avg"])
        need({f["level"] for f in t.json("validate", out, "--deep", "--json")["findings"]} <= {"note"}, source)
        t.run("diff", os.path.join(SHARDED, "dcp"), out, "--values")
        need({e["fqn"]: e for e in t.json("manifest", out)["entries"]} == {e["fqn"]: e for e in manifest["entries"]}, source)


@test
def test_what_cannot_hold_a_sharded_subclass_refuses_it_with_its_class(t):
    mesh = ("--mesh", "dp=4", "--placements", "shard(0)")
    for source in ("dcp", "ranks"):
        path = os.path.join(SHARDED, source)
        for command in (["convert", path, t.at("x.safetensors")], ["convert", path, t.at("x.pt"), "--to", "torch"], ["reshard", path, t.at("x"), *mesh],
                        ["plan", path, *mesh], ["merge", t.at("x.safetensors"), path, path, "--method", "linear", "--exclude", "same"]):
            message = t.run(*command, status=2).stderr.decode()
            need("'exp_avg'" in message and CLASS in message, f"{command}: {message}")
            need(not any(os.path.exists(t.at(n)) for n in ("x", "x.pt", "x.safetensors")), command)
        t.run("reshard", path, t.at(f"{source} rest"), *mesh, *(a for n in (*MOMENTS, "same") for a in ("--exclude", n)))
        message = t.run("reshard", path, t.at("x"), *mesh, "--exclude", "exp_avg*", status=2).stderr.decode()
        need("'same'" in message and "cannot be cut" in message, message)
        t.run("reshard", path, t.at(f"{source} whole"), "--mesh", "dp=4", "--placements", "replicate", "--exclude", "exp_avg*")
        t.run("convert", path, t.at(f"{source}.pt"), "--to", "torch", "--exclude", "exp_avg*")


@test
def test_an_item_that_is_another_rank_s_is_found(t):
    """An item of the other dtype or shape than the metadata states is damage, whatever its class."""
    shutil.copytree(os.path.join(SHARDED, "dcp"), t.at("swapped"))
    with open(t.at("swapped", "__1_0.distcp"), "r+b") as f:
        data = f.read()
        at = data.index(b"K\x05K\x10\x86")
        f.seek(at + 1)
        f.write(b"\x04")
    found = t.json("validate", t.at("swapped"), "--json", "--deep", status=1)["findings"]
    need([f for f in found if f["rule"] == "dcp/item" and f["fqn"] == "exp_avg" and CLASS in f["message"]], found)
    need("exp_avg" in t.run("convert", t.at("swapped"), t.at("x"), "--to", "dcp", status=2).stderr.decode(), "not refused")


@test
def test_the_table_shows_what_a_quantized_tensor_stands_for(t):
    """Its own dtype and shape; its class and the start of its state do not show them."""
    for name in ("model.pt", "dcp", "nf4.pt", "affine.pt"):
        path = os.path.join(GOLDEN, name)
        opaque = [e for e in t.json("inspect", path, "--json")["entries"] if e["kind"] == "opaque"]
        rows = t.text("inspect", path).splitlines()
        for e in opaque:
            row = [r for r in rows if r.split()[:1] == [e["fqn"]]]
            need(len(row) == 1 and row[0].endswith(f"  opaque {e['dtype']} {e['shape']}"), f"{name}: {e['fqn']}: {row}")
        need(opaque, name)
