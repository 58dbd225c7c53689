"""Checksums that files state of themselves: the same as Python's zlib computes, whoever writes a file in how many pieces, and
noticed where they do not hold."""
import json
import os
import shutil
import struct
import zipfile
import zlib

from harness import ROOT, SAMPLES, need, test
from test_header_metadata import write
from test_plans import killed, many_units

KEY, NONE = b'"tessera.crc32":"', b"00000000"


def stated(path):
    """The digits that a file states, after comparing them with its bytes."""
    with open(path, "rb") as f:
        data = f.read()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    pairs = json.loads(data[8:end], object_pairs_hook=list)
    need(pairs[-1][0] == "__metadata__" and pairs[-1][1][-1][0] == "tessera.crc32", f"{path}: {pairs[-1]}")
    at = data.rindex(KEY, 0, end) + len(KEY)
    digits = data[at:at + 8]
    need(digits == b"%08x" % zlib.crc32(data[:at] + NONE + data[at + 8:]), f"{path} states {digits}")
    need(pairs[-1][1][-1][1] == digits.decode(), pairs[-1])
    return digits


def files(path):
    return sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith(".safetensors")) if os.path.isdir(path) else [path]


def content(path):
    with open(path, "rb") as f:
        return f.read()


def rules(t, path, status):
    found = json.loads(t.run("validate", path, "--deep", "--format", "json", status=status).stdout)["findings"]
    return [f["rule"] for f in found if f["level"] == "error"]


@test
def test_every_safetensors_file_states_its_crc(t):
    model, adam = os.path.join(SAMPLES, "safetensors_model", "model.safetensors"), os.path.join(SAMPLES, "torch_train_state")
    ways = [("convert", model, "one.safetensors"),
            ("convert", model, "shards", "--max-shard-size", "300B"),
            ("convert", adam, "of_torch.safetensors", "--objects", "drop"),
            ("convert", os.path.join(SAMPLES, "dcp_fsdp2"), "of_dcp.safetensors", "--objects", "drop"),
            ("convert", os.path.join(SAMPLES, "safetensors_empty"), "empty.safetensors"),
            ("reshard", model, "ranks", "--mesh", "dp=3", "--placements", "shard(0)", "--to", "safetensors"),
            ("merge", "merged.safetensors", model, model, "--method", "linear")]
    for command, *args in ways:
        at = [t.at(a) if a.endswith(".safetensors") and not a.startswith("/") or a in ("shards", "ranks") else a for a in args]
        out = at[0] if command == "merge" else at[1]
        for threads in (1, 3):
            t.run(command, *at, "--overwrite", "--threads", threads, "-q")
            written = [(stated(path), content(path)) for path in files(out)]
            need(threads == 1 or written == before, f"{args}: other bytes with more threads")
            before = written
        need(len(written) == {"shards": 3, "ranks": 3}.get(os.path.basename(out), 1) or len(written) > 1, (args, len(written)))
        need(rules(t, out, 0) == [], out)


@test
def test_a_crc_of_shares_of_a_kill_and_of_a_resumed_run(t):
    source = many_units(t)
    t.run("convert", source, t.at("whole.safetensors"), "-q")
    whole = stated(t.at("whole.safetensors"))
    killed(t, "convert", source, t.at("resumed.safetensors"), "--resume", limit=20 << 20)
    t.run("convert", source, t.at("resumed.safetensors"), "--resume", "-q")
    need(stated(t.at("resumed.safetensors")) == whole, "another CRC after a kill")
    mesh = ("--mesh", "dp=2", "--placements", "shard(0)", "--to", "safetensors")
    with open(t.at("plan.json"), "wb") as f:
        f.write(t.run("plan", source, *mesh, "--json").stdout)
    t.run("reshard", source, t.at("alone"), *mesh, "-q")
    for share in (3, 1, 2):
        t.run("exec", t.at("plan.json"), t.at("shared"), "--share", f"{share}/3", "-q")
    t.run("exec", t.at("plan.json"), t.at("shared"), "--finish", "-q")
    for one, other in zip(files(t.at("alone")), files(t.at("shared")), strict=True):
        need(stated(one) == stated(other) and content(one) == content(other), f"{other} differs")


@test
def test_pairs_are_carried_before_the_crc(t):
    source = write(t, "source.safetensors", {"format": "pt", "tessera.crc32": "01234567", "a": "b", "tessera.other": "c"})
    need(rules(t, source, 0) == [], "a copied key counts")
    t.run("convert", source, t.at("out.safetensors"), "-q")
    first = stated(t.at("out.safetensors"))
    t.run("convert", t.at("out.safetensors"), t.at("again.safetensors"), "-q")
    need(stated(t.at("again.safetensors")) == first and content(t.at("out.safetensors")) == content(t.at("again.safetensors")), "not the same")
    shown = t.json("inspect", t.at("out.safetensors"), "--json")["metadata"]
    need(shown == {"format": "pt", "a": "b"}, shown)
    t.run("convert", source, t.at("none.safetensors"), "--no-checksums", "-q")
    need(b"tessera.crc32" not in content(t.at("none.safetensors")), "a key")
    t.run("diff", "--values", t.at("out.safetensors"), t.at("none.safetensors"))
    differs = t.json("diff", t.at("out.safetensors"), t.at("none.safetensors"), "--json")
    need(differs["same"] and not any(differs.get("metadata", {}).values()), differs)
    t.run("convert", t.at("out.safetensors"), t.at("out.pt"))
    said = t.run("convert", t.at("out.safetensors"), t.at("out2.pt")).stderr
    need(b"tessera." not in said, said)
    t.run("cp", t.at("none.safetensors"), t.at("copy.safetensors"), "-q")
    need(content(t.at("copy.safetensors")) == content(t.at("none.safetensors")), "cp changed a file")


@test
def test_what_does_not_fit_is_reported(t):
    golden = os.path.join(ROOT, "tests", "golden", "checksums")
    for name, want in (("damaged", [2, 4, 5]), ("misspelt", [1]), ("digits", [2])):
        found = json.loads(t.run("validate", os.path.join(golden, name), "--deep", "--format", "json", status=1).stdout)["findings"]
        errors = [f for f in found if f["level"] == "error"]
        need(all(f["rule"] == "safetensors/crc" for f in errors), errors)
        need([int(f["file"][6:11]) for f in errors] == want, errors)
        t.run("validate", os.path.join(golden, name))  # the bytes are not read
    need("tessera.crc32" in t.text("explain", "safetensors/crc"), "explain")


@test
def test_every_byte_of_a_file_counts(t):
    source = write(t, "source.safetensors", {"format": "pt", "a\n": "Ø"}, (("w", (1.5, 2.5)), ("v", (3.5,))))
    t.run("convert", source, t.at("out.safetensors"), "-q")
    data = content(t.at("out.safetensors"))
    at = data.rindex(b"tessera.crc32")
    for i in [*range(0, 8), *range(8, 60, 9), *range(at - 4, at + 13 + 12), *range(at + 26, len(data), 7)]:
        flipped = bytearray(data)
        flipped[i] ^= 1 + i % 7
        with open(t.at("flipped.safetensors"), "wb") as f:
            f.write(flipped)
        status = t.run("validate", "--deep", t.at("flipped.safetensors"), "-q", status=(1, 2)).returncode
        need(status, f"byte {i} of {len(data)}")


@test
def test_no_checksums_in_archives(t):
    source = os.path.join(SAMPLES, "torch_train_state")
    t.run("convert", source, t.at("out.pt"), "--to", "torch", "--no-checksums", "-q")
    with zipfile.ZipFile(t.at("out.pt")) as archive:
        need({i.CRC for i in archive.infolist()} == {0}, archive.infolist())
    t.run("convert", source, t.at("dcp"), "--to", "dcp", "--no-checksums", "-q")
    t.run("convert", source, t.at("with"), "--to", "dcp", "-q")
    t.run("diff", "--values", source, t.at("out.pt"))
    t.run("diff", "--values", t.at("with"), t.at("dcp"))
    found = json.loads(t.run("validate", t.at("dcp"), "--deep", "--format", "json").stdout)["findings"]
    need({f["rule"] for f in found} == {"zip/crc-absent"}, found)
    need(json.loads(t.run("validate", t.at("with"), "--deep", "--format", "json").stdout)["findings"] == [], "findings")
    shutil.rmtree(t.at("dcp"))


def bits(end):
    """The CRC-32 that the last 65 bytes of a document state."""
    need(end[-1:] == b"\n" and set(end[:-1]) <= set(b" \t"), end)
    pairs = [end[i:i + 2] for i in range(0, 64, 2)]
    return int("".join(str([b" \t", b"\t "].index(pair)) for pair in pairs), 2)


@test
def test_documents_end_with_their_crc(t):
    model = os.path.join(SAMPLES, "safetensors_model", "model.safetensors")
    t.run("convert", model, t.at("index"), "--max-shard-size", "300B", "-q")
    t.run("convert", os.path.join(SAMPLES, "dcp_small"), t.at("dcp"), "--to", "dcp", "-q")
    t.run("convert", os.path.join(SAMPLES, "megatron_dist"), t.at("megatron"), "--to", "megatron-dist", "-q")
    documents = (("index", "model.safetensors.index.json"), ("dcp", ".metadata"), ("megatron", ".metadata"), ("megatron", "metadata.json"))
    for directory, name in documents:
        path = t.at(directory, name)
        data = content(path)
        need(bits(data[-65:]) == zlib.crc32(data[:-65]), f"{path} states another CRC")
        need(rules(t, t.at(directory), 0) == [], directory)
        for i in [*range(0, len(data) - 65, 1 + len(data) // 12), *range(len(data) - 65, len(data), 9), len(data) - 1]:
            with open(path, "wb") as f:
                f.write(data[:i] + bytes([data[i] ^ (1 + i % 3)]) + data[i + 1:])
            t.run("validate", "--deep", t.at(directory), "-q", status=(1, 2))
        with open(path, "wb") as f:
            f.write(data)
    json.loads(content(t.at("megatron", "metadata.json")))
    # Documents that another program wrote again, or padded.
    with open(t.at("index", "model.safetensors.index.json"), "r+") as f:
        document = json.load(f)
        for text in (json.dumps(document, indent=1), json.dumps(document) + " " * 65, json.dumps(document) + " " * 64 + "\n", json.dumps(document) + "\t" * 70):
            f.seek(0)
            f.truncate()
            f.write(text)
            f.flush()
            need(rules(t, t.at("index"), 0) == [], text[-80:])
    t.run("convert", os.path.join(SAMPLES, "dcp_small"), t.at("none"), "--to", "dcp", "--no-checksums", "-q")
    need(content(t.at("none", ".metadata"))[-1:] == b".", "a CRC")


@test
def test_archives_that_another_program_packed_again(t):
    t.run("convert", os.path.join(SAMPLES, "torch_train_state"), t.at("out.pt"), "--to", "torch", "-q")
    with zipfile.ZipFile(t.at("out.pt")) as archive, zipfile.ZipFile(t.at("again.pt"), "w") as again:
        for member in archive.infolist():
            again.writestr(member.filename, archive.read(member))
    need(rules(t, t.at("again.pt"), 0) == [], "an error")
    data = bytearray(content(t.at("out.pt")))
    data[data.index(b"FB") + 6] ^= 1  # padding
    with open(t.at("out.pt"), "wb") as f:
        f.write(data)
    need(rules(t, t.at("out.pt"), 1) == ["zip/around-members"], rules(t, t.at("out.pt"), 1))


@test
def test_flips_between_the_members_of_archives_that_pytorch_wrote(t):
    """In files of torch.save and items of DCPs, of PyTorch 2.3 to 2.15: each padding, descriptor and entry of a directory."""
    for name, file in (("torch_v2_3_train_state", None), ("torch_v2_15_train_state", None), ("torch_nested", None), ("dcp_small", "__0_0.distcp"),
                       ("dcp_v2_3_layouts", "__0_0.distcp"), ("dcp_v2_15_layouts", "__0_0.distcp")):
        path = shutil.copytree(os.path.join(SAMPLES, name), t.at(name))
        file = os.path.join(path, file or next(n for n in os.listdir(path) if n.endswith(".pt")))
        data = content(file)
        need(b"ZZZZ" in data, f"{file} has no padding")
        places = [data.rindex(mark) + more for mark, more in ((b"FB", 2), (b"ZZZZ", 3), (b"PK\3\4", 4), (b"PK\3\4", 11), (b"PK\1\2", 5), (b"PK\1\2", 12),
                                                              (b"PK\1\2", 38), (b"PK\6\6", 12))]
        for at in places:
            with open(file, "r+b") as f:
                f.seek(at)
                f.write(bytes([data[at] ^ 4]))
            need("zip/around-members" in rules(t, path, 1), f"{file}, byte {at}: {rules(t, path, 1)}")
            with open(file, "r+b") as f:
                f.seek(at)
                f.write(data[at:at + 1])
        need("zip/around-members" not in rules(t, path, 0), f"{file}, as it was")
