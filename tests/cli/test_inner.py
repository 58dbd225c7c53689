"""Tensors inside entries that are not dense tensors: their values count, too."""
import os
import re

from harness import SAMPLES, need, test


def changed_copy(t, name, find, put):
    """Copies a sample's archive with changed bytes in one of its storages. A diff does not use checksums."""
    with open(os.path.join(SAMPLES, name), "rb") as f:
        data = f.read()
    need(data.count(find) >= 1, "the sample has other bytes")
    at = data.rindex(find)
    path = t.at(os.path.basename(name))
    with open(path, "wb") as f:
        f.write(data[:at] + put + data[at + len(find):])
    return path


@test
def test_inner_values_of_sparse_and_quantized_tensors_are_compared(t):
    for name in ("torch_quantized/quantized.pt", "torch_sparse/sparse.pt", "torch_nested/nested.pt"):
        path = os.path.join(SAMPLES, name)
        t.run("diff", path, path, "--values")
        rows = t.json("inspect", path, "--json")["entries"]
        need(any(e["kind"] == "opaque" for e in rows), f"{name} holds nothing of its kind")
    for name, find in (("torch_sparse/sparse.pt", b"\x00\x00\x80\x3f" * 4), ("torch_nested/nested.pt", b"\x00\x00\x80\x3f" * 6)):
        path = os.path.join(SAMPLES, name)
        with open(path, "rb") as f:
            at = [m.start() for m in re.finditer(re.escape(find), f.read())]
        need(at, f"{name} has other bytes")
        other = changed_copy(t, name, find, b"\x00\x00\x00\x40" + find[4:])
        t.run("diff", path, other)
        doc = t.json("diff", path, other, "--values", "--json", status=1)
        kinds = {c["a"]["kind"] for c in doc["changed"]}
        need(all(c["what"] == ["value"] and c["differing"] == 1 and c["max_abs"] == 1.0 for c in doc["changed"]) and "opaque" in kinds, doc["changed"])


@test
def test_inner_values_of_objects_in_a_dcp_are_compared(t):
    for name in ("dcp_objects", "dcp_zstd", "dcp_rank_local"):
        t.run("diff", os.path.join(SAMPLES, name), os.path.join(SAMPLES, name), "--values")


@test
def test_inner_tensors_have_digests(t):
    for name, find in (("torch_sparse/sparse.pt", b"\x00\x00\x80\x3f" * 4), ("torch_nested/nested.pt", b"\x00\x00\x80\x3f" * 6)):
        path = os.path.join(SAMPLES, name)
        t.run("manifest", path, "-o", t.at("m.json"))
        t.run("verify", path, t.at("m.json"))
        found = t.json("verify", changed_copy(t, name, find, b"\x00\x00\x00\x40" + find[4:]), t.at("m.json"), "--json", status=1)["findings"]
        kinds = {e["fqn"]: e["kind"] for e in t.json("inspect", path, "--json")["entries"]}
        need("opaque" in {kinds[f["fqn"]] for f in found if f["rule"] == "layout/digest"}, found)


@test
def test_inner_values_of_objects_have_digests(t):
    path = os.path.join(SAMPLES, "torch_objects", "objects.pt")
    entries = t.json("manifest", path)["entries"]
    need({e.get("type") for e in entries if "hash" in e} >= {"tuple", "bytes", "float", "complex", "int", "list"}, "a kind has no digest")
    other = changed_copy(t, "torch_objects/objects.pt", b"X\x03\x00\x00\x00two", b"X\x03\x00\x00\x00owt")  # in (1, "two", (3.0,))
    t.run("manifest", path, "-o", t.at("m.json"))
    found = t.json("verify", other, t.at("m.json"), "--json", status=1)["findings"]
    need([f["fqn"] for f in found if f["level"] == "error"] == ["tuple"], found)
