"""Copies of replicated DTensors that differ between the ranks' files: nothing is written from them."""
import os
import shutil
import zipfile

from harness import SAMPLES, need, test


def rewrite(path, member, change):
    """Changes one member of the archive, and recomputes its checksums."""
    with zipfile.ZipFile(path) as z:
        members = [(name, z.read(name)) for name in z.namelist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        for name, data in members:
            z.writestr(name, change(data) if name.endswith(f"/data/{member}") else data)


def storages(path):
    with zipfile.ZipFile(path) as z:
        return sorted((i.filename.split("/data/")[1] for i in z.infolist() if "/data/" in i.filename and i.file_size), key=int)


def differing(t, path):
    """Returns the names whose copies differ, according to a check of every byte."""
    found = t.json("validate", path, "--deep", "--json", status=(0, 1))["findings"]
    return {f["fqn"] for f in found if f["rule"] == "layout/replica-differs"}, {f["fqn"] for f in found if f["rule"] == "torch/rank-differs"}


@test
def test_copies_that_differ_between_ranks_are_not_written(t):
    source = os.path.join(SAMPLES, "torch_ranks_tp_fsdp2")
    last = sorted(os.listdir(source))[-1]
    kept = refused = 0
    for member in storages(os.path.join(source, last)):
        path = t.at(f"ranks{member}")
        shutil.copytree(source, path)
        rewrite(os.path.join(path, last), member, lambda data: bytes([data[0] ^ 1]) + data[1:])
        names, plain = differing(t, path)
        if plain:
            continue  # other tests use plain tensors
        for i, command in enumerate((("convert", path, t.at(f"{member}.pt"), "--to", "torch"), ("convert", path, t.at(f"{member}d"), "--to", "dcp"), ("reshard", path, t.at(f"{member}r"), "--mesh", "dp=2", "--placements", "shard(0)"))):
            p = t.run(*command, status=2 if names else 0)
            need(not names or (any(f"'{n}'" in p.stderr.decode() for n in names) and last in p.stderr.decode() and not os.path.exists(command[2])), p.stderr)
        if names:
            t.run("convert", path, t.at(f"{member}x.pt"), "--to", "torch", *(arg for n in names for arg in ("--exclude", n)))
        kept, refused = kept + (not names), refused + bool(names)
        shutil.rmtree(path)
    need(kept and refused, f"{kept} were no copies, {refused} were")


def without_checksums(path):
    """Makes the checksums of all members 0, as torch.serialization.set_crc32_options(False) does."""
    with zipfile.ZipFile(path) as z:
        offsets = [i.header_offset for i in z.infolist()]
    with open(path, "rb") as f:
        data = bytearray(f.read())
    for at in offsets:
        data[at + 14:at + 18] = bytes(4)
    at = data.find(b"PK\1\2", offsets[-1])
    while at >= 0:
        data[at + 16:at + 20] = bytes(4)
        at = data.find(b"PK\1\2", at + 4)
    with open(path, "wb") as f:
        f.write(data)


@test
def test_copies_without_checksums_are_read(t):
    source = os.path.join(SAMPLES, "torch_ranks_tp_fsdp2")
    last = sorted(os.listdir(source))[-1]
    refused = 0
    for member in [None, *storages(os.path.join(source, last))]:
        path = t.at(f"ranks{member}")
        shutil.copytree(source, path)
        for name in os.listdir(path):
            rewrite(os.path.join(path, name), member if name == last else None, lambda data: bytes([data[0] ^ 1]) + data[1:])
            without_checksums(os.path.join(path, name))
        if member and differing(t, path)[1]:
            continue
        p = t.run("convert", path, t.at(f"{member}.pt"), "--to", "torch", status=(0, 2) if member else 0)
        refused += b"is replicated, but" in p.stderr
        need(p.returncode == 0 or b"is replicated, but" in p.stderr, p.stderr)
    need(refused, "no altered copy was found")
