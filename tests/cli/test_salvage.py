"""`--salvage`: what is whole of a file that was cut short is listed, compared and written, and what is lost is named."""
import json
import os
import struct
import zipfile

from harness import need, sample, test
from test_repair import cut_at


def header_of(path):
    """Returns the tensors of a safetensors file, and their bytes."""
    with open(path, "rb") as f:
        data = f.read()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return header, {name: data[8 + size:][slice(*row["data_offsets"])] for name, row in header.items()}, 8 + size


def lost_in(doc):
    return {f["fqn"] for f in doc["findings"] if f["rule"] == "repair/lost"}


@test
def test_salvage_of_a_safetensors_file_keeps_the_tensors_before_its_end(t):
    path = sample("safetensors_model")[0]
    header, values, start = header_of(path)
    ends = sorted({row["data_offsets"][1] for row in header.values()})
    with open(path, "rb") as f:
        data = f.read()
    for cut in (0, 1, *ends[:-1], ends[1] - 1, ends[2] + 1, ends[-1] - 1):
        source, dest = t.at("cut.safetensors"), t.at(f"{cut}.safetensors")
        with open(source, "wb") as f:
            f.write(data[:start + cut])
        whole = {name for name, row in header.items() if row["data_offsets"][1] <= cut}
        doc = t.json("inspect", source, "--salvage", "--json")
        need({e["fqn"] for e in doc["entries"]} == whole and lost_in(doc) == set(header) - whole, f"cut at {cut}: {doc}")
        need(b"truncated" in t.run("convert", source, dest, "--max-mem", "1MiB", status=2).stderr and not os.path.exists(dest), "it was converted as if it were whole")
        said = t.run("convert", source, dest, "--salvage").stderr.decode()
        lost = set(header) - whole
        need(sum(f"'{name}'" in said for name in lost) == min(len(lost), 4) and ("more; run tessera validate" in said) == (len(lost) > 4), said)
        need(lost_in(t.json("validate", source, "--salvage", "--json", status=1)) == lost, "validate lists others")
        got = header_of(dest)[1]
        need(got == {name: values[name] for name in whole}, f"cut at {cut}: {set(got) ^ whole}")
    need(b"--salvage" in t.run("repair", source, t.at("x"), status=2).stderr, "repair does not say how to keep what is whole")


@test
def test_salvage_keeps_tensors_without_bytes_wherever_they_are(t):
    header = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "b": {"dtype": "F32", "shape": [4], "data_offsets": [16, 32]},
                         "none": {"dtype": "F32", "shape": [0, 3], "data_offsets": [32, 32]}}).encode()
    with open(t.at("cut.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + struct.pack("<5f", *range(5)))
    need(lost_in(t.json("inspect", t.at("cut.safetensors"), "--salvage", "--json")) == {"b"}, "others are lost")
    t.run("convert", t.at("cut.safetensors"), t.at("whole.safetensors"), "--salvage")
    rows, values, _ = header_of(t.at("whole.safetensors"))
    need(values == {"a": struct.pack("<4f", *range(4)), "none": b""} and rows["none"]["shape"] == [0, 3], values)


@test
def test_salvage_of_a_torch_file_writes_what_repair_writes(t):
    path = sample("torch_train_state")[0]
    with zipfile.ZipFile(path) as z:
        cut = cut_at(t, path, z.start_dir - 300)
    t.run("inspect", cut, status=2)
    lost = lost_in(t.json("inspect", cut, "--salvage", "--json"))
    report = t.json("repair", cut, t.at("repaired.pt"), "--json", status=1)["report"]
    need(lost and lost == {f["fqn"] for f in report["findings"]}, lost)
    t.run("convert", cut, t.at("converted.pt"), "--to", "torch", "--salvage")
    with open(t.at("repaired.pt"), "rb") as a, open(t.at("converted.pt"), "rb") as b:
        need(a.read() == b.read(), "convert --salvage writes another file than repair")
    found = t.json("diff", path, cut, "--values", "--salvage", "--json", status=1)
    need({*found["removed"]} == lost and not found["changed"] and not found["added"], found)


@test
def test_salvage_is_carried_by_a_plan(t):
    path = sample("safetensors_model")[0]
    with open(path, "rb") as f, open(t.at("cut.safetensors"), "wb") as out:
        out.write(f.read()[:-1])
    with open(t.at("plan.json"), "wb") as f:
        f.write(t.run("plan", t.at("cut.safetensors"), "--to", "dcp", "--salvage", "--json").stdout)
    t.run("exec", t.at("plan.json"), t.at("dcp"))
    t.run("convert", t.at("cut.safetensors"), t.at("same"), "--to", "dcp", "--salvage")
    need(t.json("diff", t.at("dcp"), t.at("same"), "--values", "--json")["same"], "exec writes something else than convert")


@test
def test_salvage_of_anything_else_is_not_used_and_said(t):
    path = sample("dcp_fsdp2")[0]
    p = t.run("inspect", path, "--salvage")
    need(p.stdout == t.run("inspect", path).stdout and b"--salvage is not used" in p.stderr, p.stderr)
    whole = sample("torch_train_state")[0]
    p = t.run("inspect", whole, "--salvage")
    need(p.stdout == t.run("inspect", whole).stdout and not p.stderr, p.stderr)
