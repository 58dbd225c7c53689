"""Conversions compare what they read with the CRCs that the source's archives state for its tensors."""
import io
import json
import os
import shutil
import struct
import zipfile

from harness import SAMPLES, need, test

WAYS = [("convert", "--to", to) for to in ("dcp", "safetensors", "torch")] + \
    [("reshard", "--mesh", "dp=3", "--placements", "shard(0)", "--to", to) for to in ("dcp", "safetensors", "torch")] + \
    [("reshard", "--mesh", "dp=2", "--placements", "replicate", "--to", "dcp")]


def storages(data):
    """Returns the positions of the first bytes of all storages of the archives in a file."""
    at = 0
    while (at := data.find(b"PK\x03\x04", at)) >= 0:
        name_size, extra_size = struct.unpack_from("<HH", data, at + 26)
        name = data[at + 30:at + 30 + name_size]
        if b"/data/" in name and not name.endswith(b"serialization_id"):
            yield at + 30 + name_size + extra_size
        at += 4


def damaged(t, sample, name, which):
    """Copies a sample, and changes the first byte of one storage of one file."""
    copy = t.at(f"{sample}.{which}")
    shutil.copytree(os.path.join(SAMPLES, sample), copy)
    with open(os.path.join(copy, name), "r+b") as f:
        data = bytearray(f.read())
        data[list(storages(bytes(data)))[which]] ^= 0x40
        f.seek(0)
        f.write(data)
    return copy


def owner(t, path):
    """Returns the damaged tensor, according to the deep check."""
    found = json.loads(t.run("validate", path, "--deep", "--format", "json", status=1).stdout)["findings"]
    return next(f["fqn"] for f in found if f["rule"] == "zip/crc")


def args_of(way, path, out):
    return [way[0], path, out, *way[1:], "--objects", "drop", "-q"]


@test
def test_source_crc_damaged_tensors_are_refused_whatever_becomes_of_them(t):
    seen = set()
    for sample, name, which in [("dcp_fsdp2", "__0_0.distcp", 0), ("dcp_fsdp2", "__1_0.distcp", 3), ("dcp_small", "__0_0.distcp", 1), ("torch_train_state", "train.pt", 0)]:  # two tensors are tied there
        path = damaged(t, sample, name, which)
        fqn = owner(t, path)
        seen.add(fqn)
        for i, way in enumerate(WAYS):
            out = t.at(f"out{i}")
            p = t.run(*args_of(way, path, out), status=2)
            need(f"'{fqn}' is damaged in the source".encode() in p.stderr, f"{way}: {p.stderr}")
            need(sorted(os.listdir(t.directory)) == [os.path.basename(path)], f"{way} left {os.listdir(t.directory)}")
            t.run(*args_of(way, path, out), "--exclude", "model.*.weight" if sample == "torch_train_state" else fqn)
            shutil.rmtree(out) if os.path.isdir(out) else os.unlink(out)
            t.run(*args_of(way, path, out), "--ignore-crc")
            changed = json.loads(t.run("diff", path, out, "--values", "--json", status=(0, 1)).stdout)["changed"]
            need(not changed, f"{way} changed {changed}")
            shutil.rmtree(out) if os.path.isdir(out) else os.unlink(out)
        shutil.rmtree(path)
    need(len(seen) > 2, "the same tensor was damaged each time")


@test
def test_source_crc_a_failed_run_goes_on_without_reading_again(t):
    path = damaged(t, "dcp_fsdp2", "__0_0.distcp", 0)
    out = t.at("out.safetensors")
    way = ["convert", path, out, "--to", "safetensors", "--objects", "drop"]
    t.run(*way, "--resume", status=2)
    need(not os.path.exists(out), "what is damaged was published")
    t.run(*way, "--resume", "--ignore-crc")
    t.run("diff", path, out, "--values", status=(0, 1))


@test
def test_source_crc_parts_of_a_plan_are_checked_when_they_are_joined(t):
    path = damaged(t, "dcp_fsdp2", "__1_0.distcp", 0)
    plan = t.at("plan.json")
    with open(plan, "wb") as f:
        f.write(t.run("plan", path, "--mesh", "dp=3", "--placements", "shard(0)", "--to", "dcp", "--json").stdout)
    for part in ("1/2", "2/2"):
        t.run("exec", plan, t.at("out"), "--share", part)
    p = t.run("exec", plan, t.at("out"), "--finish", status=2)
    need(b"is damaged in the source" in p.stderr and not os.path.exists(t.at("out")), f"{p.stderr}")
    t.run("exec", plan, t.at("out"), "--finish", "--ignore-crc")


@test
def test_source_crc_archives_without_them_state_nothing(t):
    path = damaged(t, "dcp_crc_off", "__0_0.distcp", 0)
    for i, way in enumerate(WAYS):
        t.run(*args_of(way, path, t.at(f"out{i}")))


SKIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "skip_data")  # tests/golden/make_skip_data.py


@test
def test_storages_that_skip_data_left_room_for_have_no_checksum(t):
    plain, filled = os.path.join(SKIPPED, "plain.pt"), os.path.join(SKIPPED, "filled.pt")
    found = t.json("validate", filled, "--deep", "--json")["findings"]
    need([(f["rule"], f["level"]) for f in found] == [("zip/crc-absent", "note")] and "skip_data" in found[0]["message"], found)
    t.run("diff", plain, filled, "--values")
    for name in ("x.safetensors", "x.pt"):
        t.run("convert", filled, t.at(name))
        t.run("diff", plain, t.at(name), "--values")
    need(t.json("validate", t.at("x.pt"), "--deep", "--json")["findings"] == [], "the copy has checksums")


@test
def test_a_zero_among_the_checksums_of_storages_is_a_mismatch(t):
    """skip_data leaves none of them: one that is 0 while another is not is damage, and so is one of the pickle."""
    with open(os.path.join(SKIPPED, "plain.pt"), "rb") as f:
        data = f.read()
    with zipfile.ZipFile(io.BytesIO(data)) as z:
        sums = {m.filename: m.CRC for m in z.infolist()}
    for member in ("plain/data/0", "plain/data.pkl"):
        with open(t.at("bad.pt"), "wb") as f:
            f.write(data.replace(struct.pack("<I", sums[member]), bytes(4)))
        found = t.json("validate", t.at("bad.pt"), "--deep", "--json", status=1)["findings"]
        need("zip/crc" in {f["rule"] for f in found if f["level"] == "error"}, found)
    t.run("convert", t.at("bad.pt"), t.at("x.safetensors"))
