"""torch.save files behind an HTTP server: what listing them costs, and what is checked when their data is read."""
import mmap
import os
import struct
import zipfile

from harness import ROOT  # noqa: F401 (finds tests/support)
from http_serving import Handler, Server, running


class Files(Handler):
    def do_GET(self):
        with open(os.path.join(self.server.root, self.path.lstrip("/")), "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
            sent = self.give(data, ETag='"1"')
        with self.server.lock:
            self.server.asked.append(self.headers.get("Range"))
        return sent


def bytes_of(ranges):
    return sum(int(last) - int(first) + 1 for first, last in (r[len("bytes="):].split("-") for r in ranges))


def served(directory):
    server = Server(Files)
    server.root = directory
    return running(server)


def save_many(path, **options):
    import torch
    torch.manual_seed(1)
    torch.save({f"layers.{i}.weight": torch.randn(100 + i, 96) for i in range(390)}, path, **options)


def test_listing_a_remote_file_reads_no_local_header(t):
    save_many(t.at("a.pt"))
    with served(t.at(".")) as s:
        remote = t.json("inspect", s.url + "/a.pt", "--json")
        assert len(s.asked) <= 6 and bytes_of(s.asked) <= 1 << 18, f"{len(s.asked)} requests for {bytes_of(s.asked)} bytes"
        local = t.json("inspect", t.at("a.pt"), "--json")
        assert [(e["fqn"], e["shape"], e["chunks"]) for e in remote["entries"]] == [(e["fqn"], e["shape"], e["chunks"]) for e in local["entries"]]
        s.asked.clear()
        t.run("convert", s.url + "/a.pt", t.at("remote.safetensors"))
        assert bytes_of(s.asked) < os.path.getsize(t.at("a.pt")) * 1.1, f"{bytes_of(s.asked)} bytes"
    t.run("convert", t.at("a.pt"), t.at("local.safetensors"))
    with open(t.at("remote.safetensors"), "rb") as remote, open(t.at("local.safetensors"), "rb") as local:
        assert remote.read() == local.read()


def save_aligned(path, alignment):
    """As torch.utils.serialization.config.save.storage_alignment has it."""
    from torch.utils.serialization import config
    config.save.storage_alignment, old = alignment, config.save.storage_alignment
    try:
        save_many(path)
    finally:
        config.save.storage_alignment = old


def test_storages_of_any_alignment_are_found(t):
    """Where data does not begin at multiples of 64 bytes, the directory does not say where, and the headers are read."""
    for alignment in (4096, 16):
        save_aligned(t.at("a.pt"), alignment)
        with zipfile.ZipFile(t.at("a.pt")) as z, zipfile.ZipFile(t.at("plain.pt"), "w") as plain:  # no padding, no descriptors
            for name in z.namelist():
                plain.writestr(name, z.read(name))
        with served(t.at(".")) as s:
            for name in ("a.pt", "plain.pt"):
                remote, local = (t.json("manifest", place, "--json") for place in (f"{s.url}/{name}", t.at(name)))
                assert remote["entries"] == local["entries"] and len(local["entries"]) == 390, (alignment, name)


def test_wrong_local_headers_are_found_when_their_data_is_read(t):
    save_many(t.at("a.pt"))
    with open(t.at("a.pt"), "rb") as f:
        whole = f.read()
    with zipfile.ZipFile(t.at("a.pt")) as z:
        of = {info.filename.split("/", 1)[1]: info.header_offset for info in z.infolist()}
    header, after = of["data/7"], of["data/8"]
    size = (100 + 7) * 96 * 4
    start = next(o for o in range(header + 30, after) if o % 64 == 0 and whole[o:o + size] != b"" and after - o - size in (16, 24))
    damages = [("its name", header + 30, b"b"), ("its signature", header, b"Q"), ("its flags", header + 6, b"\0"), ("its sizes", header + 18, struct.pack("<I", 5)),
               ("its length", header + 28, struct.pack("<H", 1)), ("the descriptor behind it", start + size + 4, b"\1\2\3")]
    with served(t.at(".")) as s:
        for what, at, text in damages:
            with open(t.at("bad.pt"), "wb") as f:
                f.write(whole[:at] + text + whole[at + len(text):])
            hit = 8 if what.startswith("the descriptor") else 7
            assert len(t.json("inspect", s.url + "/bad.pt", "--json")["entries"]) == 390, what
            for place in ("", "[50:51]"):
                refused = t.run("get", s.url + "/bad.pt", f"layers.{hit}.weight{place}", "--print", status=2).stderr.decode()
                assert "zip: " in refused and "data/7" in refused, f"{what}{place}: {refused}"
                t.run("get", s.url + "/bad.pt", f"layers.9.weight{place}", "--print")
            refused = t.run("convert", s.url + "/bad.pt", t.at("out.safetensors"), status=2).stderr.decode()
            assert "zip: " in refused and not os.path.exists(t.at("out.safetensors")), f"{what}: {refused}"


def test_megatrons_directory_has_the_files_that_its_metadata_does_not_name(t):
    for name in ("layers", "fragments"):
        directory = os.path.join(ROOT, "tests/golden/megatron", name)
        with served(directory) as s:
            remote = t.json("inspect", s.url + "/", "--json")
            asked = len(s.asked)
            judged = [t.json("validate", path, "--json")["findings"] for path in (s.url + "/", directory)]
        assert [{**f, "path": ""} for f in judged[0]] == [{**f, "path": ""} for f in judged[1]], judged
        assert any(e["fqn"].startswith("common.") for e in remote["entries"]), f"{name}: common.pt, which .metadata does not name, was not found"
        local = t.json("inspect", directory, "--json")
        for key in ("format", "summary", "entries", "findings"):
            assert remote[key] == local[key], f"{name}: {key}: {remote[key]} for {local[key]}"
        assert asked <= 2 * len(os.listdir(directory)) + 4, f"{name}: {asked} requests for {len(os.listdir(directory))} files"
