"""`tessera repair`: lost metadata, with and without another checkpoint of the job, and truncated data files."""
import os
import resource
import shutil
import struct
import subprocess
import zipfile

from harness import need, sample, test
from test_plans import killed


def without_metadata(t, name):
    path = sample(name)[0]
    shutil.copytree(path, t.at("lost"))
    os.remove(t.at("lost", ".metadata"))
    return path, t.at("lost")


@test
def test_repair_with_another_checkpoint_is_whole(t):
    for name in ("dcp_fsdp2", "dcp_tp_fsdp2", "dcp_hsdp", "dcp_dtypes", "dcp_objects", "dcp_file_per_item", "dcp_threads"):
        path, lost = without_metadata(t, name)
        before = {f: os.stat(os.path.join(lost, f)).st_mtime_ns for f in os.listdir(lost)}
        doc = t.json("repair", lost, t.at("new"), "--like", path, "--json")
        need(doc["unnamed"] == doc["lost"] == 0 and doc["items"], f"{name}: {doc}")
        need(before == {f: os.stat(os.path.join(lost, f)).st_mtime_ns for f in os.listdir(lost)}, f"{name}: something was touched")
        os.rename(t.at("new"), t.at("lost", ".metadata"))
        need(t.json("diff", lost, path, "--values", "--layout", "--json")["same"], f"{name}: it differs")
        need(t.run("validate", "--deep", lost, status=(0, 1)).returncode == t.run("validate", "--deep", path, status=(0, 1)).returncode, f"{name}: findings")
        shutil.rmtree(lost)


@test
def test_repair_without_names(t):
    path, lost = without_metadata(t, "dcp_small")
    doc = t.json("repair", lost, t.at("new"), "--json", status=1)
    need(doc["unnamed"] == doc["items"] == doc["entries"], doc)
    need([f["rule"] for f in doc["report"]["findings"]] == ["repair/unnamed"], doc)
    os.rename(t.at("new"), t.at("lost", ".metadata"))
    chunks = sum(len(e.get("chunks", [0])) for e in t.json("inspect", path, "--json")["entries"])
    rows = t.json("inspect", lost, "--json")["entries"]
    need(len(rows) == chunks and all(".distcp#" in e["fqn"] for e in rows), f"{len(rows)} entries, {chunks} chunks")
    t.run("validate", "--deep", lost)


@test
def test_repair_asks_only_for_a_move_that_is_left_to_do(t):
    path, lost = without_metadata(t, "dcp_small")
    hint = "move it to .metadata"
    for name in ("new", "step-1.metadata"):
        need(hint in t.run("repair", lost, t.at(name), "--like", path).stdout.decode(), name)
    need(hint not in t.run("repair", lost, t.at("lost", ".metadata"), "--like", path).stdout.decode(), "it is there already")
    t.run("validate", "--deep", lost)


@test
def test_repair_says_what_is_lost(t):
    path, lost = without_metadata(t, "dcp_fsdp2")
    file = max((f for f in os.listdir(lost)), key=lambda f: os.path.getsize(os.path.join(lost, f)))
    os.truncate(t.at("lost", file), os.path.getsize(t.at("lost", file)) - 100)
    doc = t.json("repair", lost, t.at("new"), "--like", path, "--json", status=1)
    need({f["rule"] for f in doc["report"]["findings"]} == {"repair/no-item", "repair/lost"} and doc["lost"] == 1, doc)
    os.remove(t.at("lost", file))
    need(t.json("repair", lost, t.at("new1"), "--like", path, "--json", status=1)["lost"] > 1, "a lost file")
    shutil.copy(t.at("new1"), t.at("lost", ".metadata"))
    need("layout/hole" in {f["rule"] for f in t.json("validate", lost, "--json", status=1)["findings"]}, "no hole where the file was")
    os.remove(t.at("lost", ".metadata"))
    other = t.json("repair", lost, t.at("new2"), "--like", sample("dcp_tp_fsdp2")[0], "--json", status=1)
    need("repair/unlike" in {f["rule"] for f in other["report"]["findings"]} and other["unnamed"], other)


@test
def test_repair_is_not_misled_by_bytes_of_tensors(t):
    data = b"PK\5\6" * 1000 + b"PK\3\4" * 100
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (len(data), len(data))
    with open(t.at("a.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + data)
    t.run("convert", t.at("a.safetensors"), t.at("dcp"), "--to", "dcp")
    os.rename(t.at("dcp", ".metadata"), t.at("kept"))
    doc = t.json("repair", t.at("dcp"), t.at("dcp", ".metadata"), "--json", status=1)
    need(doc["items"] == 1, doc)
    need(t.run("get", t.at("dcp"), "__0_0.distcp#0", "-o", t.at("w.bin")) and open(t.at("w.bin"), "rb").read() == data, "the bytes")


@test
def test_repair_of_a_header_that_no_file_can_have_needs_no_memory_for_it(t):
    """A damaged length may state almost the whole file."""
    with open(t.at("damaged.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", 1 << 30))
        f.truncate((1 << 30) + 4096)
    p = subprocess.run([t.path, "repair", t.at("damaged.safetensors"), t.at("x")], capture_output=True,
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20)))
    need(p.returncode == 2 and b"1073741824" in p.stderr, p.stderr)


@test
def test_repair_refuses(t):
    path = sample("dcp_fsdp2")[0]
    need(b"nothing to repair" in t.run("repair", path, t.at("x"), status=2).stderr, "a sound one")
    need(b"nothing to repair" in t.run("repair", sample("safetensors_model")[0], t.at("x"), status=2).stderr, "a sound safetensors file")
    need(b"whole checkpoint in the format torch-zip" in t.run("repair", sample("torch_alignment")[0], t.at("x"), status=2).stderr, "another form")
    os.mkdir(t.at("empty"))
    need(b"the directory is empty" in t.run("repair", t.at("empty"), t.at("x"), status=2).stderr, "an empty directory")
    _, lost = without_metadata(t, "dcp_small")
    open(t.at("there"), "w").write("mine")
    need(b"exists" in t.run("repair", lost, t.at("there"), status=2).stderr and open(t.at("there")).read() == "mine", "a file that is there")
    need(b"nosuch" in t.run("repair", lost, t.at("x"), "--like", t.at("nosuch"), status=2).stderr, "--like nosuch")
    need(not os.path.exists(t.at("x")), "something was written")


@test
def test_what_a_killed_repair_left_is_removed_by_the_next(t):
    path, lost = without_metadata(t, "dcp_fsdp2")
    t.run("repair", lost, t.at("whole"), "--like", path)
    killed(t, "repair", lost, t.at("new"), "--like", path, limit=400)
    left = [name for name in os.listdir(t.directory) if ".tessera-" in name]
    need(left and not os.path.exists(t.at("new")), left)
    t.run("repair", lost, t.at("new"), "--like", path)
    need(sorted(os.listdir(t.directory)) == ["lost", "new", "whole"], os.listdir(t.directory))
    with open(t.at("new"), "rb") as a, open(t.at("whole"), "rb") as b:
        need(a.read() == b.read(), "another file than an undisturbed run writes")


def cut_at(t, path, length):
    with open(path, "rb") as f, open(t.at("cut.pt"), "wb") as out:
        out.write(f.read(length))
    return t.at("cut.pt")


def repaired(t, path, name):
    """What `repair` says, and that it left out what it calls lost, changed nothing, and invented nothing."""
    doc = t.json("repair", t.at("cut.pt"), t.at(name), "--json", status=(0, 1))
    lost = {f["fqn"] for f in doc["report"]["findings"]}
    need({f["rule"] for f in doc["report"]["findings"]} <= {"repair/lost"} and doc["lost"] == len(lost), doc)
    found = t.json("diff", path, t.at(name), "--values", "--json", status=(0, 1))
    need({e if isinstance(e, str) else e["fqn"] for e in found["removed"]} == lost and not found["added"] and not found["changed"], found)
    t.run("validate", t.at(name), "--deep", "--rule", "optim/*=note")  # parts of an optimizer's state may be lost
    return lost


@test
def test_repair_keeps_what_is_whole_of_a_truncated_torch_file(t):
    for sample_name in ("torch_views", "torch_train_state", "torch_crc_off"):
        path = sample(sample_name)[0]
        with zipfile.ZipFile(path) as z:
            headers = sorted(i.header_offset for i in z.infolist()) + [z.start_dir]
            needed = max(i.header_offset for i in z.infolist() if "/data/" not in i.filename and "version" not in i.filename and "/.data/" not in i.filename)
        rows = t.json("inspect", path, "--json")["entries"]
        ends = {}  # of the members that hold an entry's bytes
        for row in rows:
            places = [c["byte_offset"] for c in row.get("chunks", []) if c["byte_length"]]
            ends[row["fqn"]] = max((min(h for h in headers if h > place) for place in places), default=0)
        start = min(h for h in headers if h > needed)
        for i, cut in enumerate(sorted({start, *(h + (0, 1, -1, 40)[n % 4] for n, h in enumerate(headers[:-1]) if h > start and n % 3 == 0), headers[-1]})):
            cut_at(t, path, cut)
            if not [n for n, end in ends.items() if end <= cut]:
                continue
            lost = repaired(t, path, f"{sample_name}-{i}.pt")
            opaque = {r["fqn"] for r in rows if r["kind"] == "opaque"}
            need(lost - opaque == {n for n, end in ends.items() if end > cut} - opaque, f"{sample_name} cut at {cut}: {lost}")


@test
def test_repair_of_a_torch_file_without_its_pickle_or_with_flipped_bytes(t):
    path = sample("torch_train_state")[0]
    cut_at(t, path, 100)
    message = t.run("repair", t.at("cut.pt"), t.at("no.pt"), status=2).stderr.decode()
    need("whole" in message and not os.path.exists(t.at("no.pt")), message)
    with zipfile.ZipFile(path) as z:
        first = [i for i in z.infolist() if "/data/" in i.filename and i.file_size][0]
        end = z.start_dir
    with open(path, "rb") as f:
        data = bytearray(f.read(end - 1))
    row = next(e for e in t.json("inspect", path, "--json")["entries"] if any(c["byte_length"] and c["byte_offset"] > first.header_offset for c in e.get("chunks", [])))
    data[row["chunks"][0]["byte_offset"]] ^= 1
    with open(t.at("cut.pt"), "wb") as f:
        f.write(data)
    need(row["fqn"] in repaired(t, path, "flipped.pt"), "bytes with another CRC-32 were kept")
