"""Checkpoints at addresses, on a server of the loopback address: ranges, redirects, retries, and every odd answer."""
import collections
import contextlib
import filecmp
import json
import os
import re
import shutil
import struct
import subprocess
import time
import urllib.parse

import http_serving
from harness import SAMPLES, need, sample, st_write, test


class Server(http_serving.Server):
    """Serves `root` by ranges. `oddity(handler, path, count)` may answer instead, and then returns True."""

    def __init__(self, root, oddity=lambda *a: False, host="127.0.0.1"):
        self.root, self.oddity, self.sent, self.counts = root, oddity, 0, {}
        super().__init__(Handler, host)
        self.url += "/"


class Handler(http_serving.Handler):
    def answer(self, status, body=b"", **headers):
        with self.server.lock:
            self.server.sent += len(body)
        return super().answer(status, body, **headers)

    def do_GET(self):
        s = self.server
        name = urllib.parse.unquote(self.path.split("?")[0])
        with s.lock:
            s.asked.append((self.path, self.headers.get("Range"), dict(self.headers)))
            s.counts[name] = count = s.counts.get(name, 0) + 1
        if s.oddity(self, name, count):
            return
        file = os.path.join(s.root, name.lstrip("/"))
        if not os.path.isfile(file):
            return self.answer(404, b"no")
        with open(file, "rb") as f:
            data = f.read()
        self.give(data, **({"ETag": '"v1"'} if "Range" in self.headers else {}))


@contextlib.contextmanager
def serving(root, oddity=lambda *a: False, host="127.0.0.1"):
    with http_serving.running(Server(root, oddity, host)) as server:
        yield server


def entries(doc):
    return [(e["fqn"], e["kind"], e.get("dtype"), e.get("shape"), e.get("hash")) for e in doc["entries"]]


@test
def test_addresses_read_as_files_do(t):
    with serving(SAMPLES) as s:
        for name, where in (("dcp_fsdp2", "dcp_fsdp2/"), ("dcp_fsdp2", "dcp_fsdp2/.metadata"), ("torch_plain", None), ("safetensors_model", None),
                            ("safetensors_index", "safetensors_index/"), ("torch_bin_index", "torch_bin_index/")):
            path = sample(name)[0]
            where = where or os.path.relpath(path, SAMPLES)
            if os.path.isdir(path) and not where.endswith(("/", ".metadata")):
                where += "/" + os.listdir(path)[0]
            local = t.json("inspect", path, "--json", "--hash", "sha256")
            remote = t.json("inspect", s.url + where, "--json", "--hash", "sha256")
            need(entries(local) == entries(remote), f"{where}: other entries")
            need(not [f for f in remote["findings"] if f["level"] == "error"], f"{where}: {remote['findings'][:2]}")
            t.run("validate", "--deep", s.url + where)
        same = t.json("diff", sample("dcp_fsdp2")[0], s.url + "dcp_fsdp2/", "--values", "--json")
        need(same["same"], "the values differ")
        t.run("convert", s.url + "dcp_fsdp2/", t.at("x.safetensors"), "--to", "safetensors", "--objects", "drop")
        need(t.json("diff", t.at("x.safetensors"), sample("dcp_fsdp2")[0], "--values", "--json", status=1)["changed"] == [], "the converted values differ")


@test
def test_addresses_of_optimizers_are_read(t):
    t.run("optim", "flatten", sample("dcp_fsdp2")[0], t.at("flat.pt"))
    t.run("optim", "unflatten", t.at("flat.pt"), t.at("local.pt"))
    with serving(t.directory) as s:
        t.run("optim", "unflatten", s.url + "flat.pt", t.at("remote.pt"))
    need(filecmp.cmp(t.at("local.pt"), t.at("remote.pt"), False), "other bytes")


@test
def test_addresses_of_a_file_need_no_config_next_to_it(t):
    """S3 answers 403 for what does not exist if the client may not list the bucket."""
    st_write(t.at("x.safetensors"), {"w": ("F32", [4], os.urandom(15) + b"\x3f")})
    for status in (404, 403, 401, 400):
        with serving(t.directory, lambda handler, name, count: name == "/config.json" and (handler.answer(status, b"no"), True)[1]) as s:
            url = s.url + "x.safetensors"
            p = t.run("merge", t.at("out.safetensors"), url, url, "--method", "linear", "--overwrite", status=2 if status == 400 else 0)
            need((b"config.json: the server answered 400" in p.stderr) == (status == 400), p.stderr)


@test
def test_a_page_in_place_of_a_config_next_to_a_file_is_none(t):
    """Many servers answer every request with a page and 200. A config.json that is not JSON next to a local file is none either, but one in the directory that is opened is an error."""
    os.makedirs(t.at("in"))
    st_write(t.at("in", "x.safetensors"), {"w": ("F32", [4], os.urandom(15) + b"\x3f"), "a.weight": ("F8_E4M3", [1, 4], b"\x38\x39\x3a\x3b"), "a.weight_scale": ("F32", [], b"\0\0\0\x40")})
    page, said = b"<!DOCTYPE html><html><body>Not here</body></html>", b"the config.json next to the file is not JSON, and is not used"
    with open(t.at("in", "config.json"), "wb") as f:
        f.write(page)
    with serving(t.at("in")) as s:
        for path in (s.url + "x.safetensors", t.at("in", "x.safetensors")):
            for job in (("merge", t.at("out.safetensors"), path, path, "--method", "linear", "--include", "w"), ("convert", path, t.at("out.safetensors"), "--dequantize", "--dtype", "float32")):
                p = t.run(*job, "--overwrite")
                need(p.stderr.count(said) == (job[0] == "convert"), p.stderr)
            p = t.run("convert", path, t.at("other.safetensors"), "--config", status=2)
            need(b"--config: there is no config.json with the checkpoint" in p.stderr, p.stderr)
    p = t.run("convert", t.at("in"), t.at("other.safetensors"), "--dequantize", status=2)
    need(b"json: expected a value" in p.stderr, p.stderr)


@test
def test_addresses_of_files_are_copied(t):
    data = os.urandom(3 << 20)
    with open(t.at("large.bin"), "wb") as f:
        f.write(data)
    with serving(t.directory) as s:
        for more in ("large.bin", "large.bin?X-Amz-Signature=secret"):
            t.run("cp", s.url + more, t.at("copy.bin"), "--overwrite")
            with open(t.at("copy.bin"), "rb") as f:
                need(f.read() == data, "other bytes")
        p = t.run("cp", s.url + "large.bin", t.at("copy.bin"), status=2)
        need(b"exists; --overwrite replaces it" in p.stderr, p.stderr)
        p = t.run("cp", s.url + "absent.bin", t.at("absent.bin"), status=2)
        need(b"404" in p.stderr and sorted(os.listdir(t.directory)) == ["copy.bin", "large.bin"], p.stderr)


def files_below(directory):
    found = {}
    for at, _, names in os.walk(directory):
        for name in names:
            with open(os.path.join(at, name), "rb") as f:
                found[os.path.relpath(os.path.join(at, name), directory)] = f.read()
    return found


def dcp_of(t, ranks, rows):
    """A DCP of so many files, with two tensors of 1 KiB rows, at t.at("ck")."""
    st_write(t.at("x.safetensors"), {f"t{i}": ("F32", [rows, 256], os.urandom(rows << 10).replace(b"\x7f", b"\x3f").replace(b"\xff", b"\xbf")) for i in range(2)})
    t.run("reshard", t.at("x.safetensors"), t.at("ck"), "--to", "dcp", "--mesh", str(ranks), "--placements", "shard(0)", "--quiet")
    need(len(os.listdir(t.at("ck"))) == ranks + 1, os.listdir(t.at("ck")))


@test
def test_addresses_of_directories_are_copied(t):
    """A server lists no directories, so what is copied are the files that the checkpoint names, and this is said."""
    with serving(SAMPLES) as s:
        for name, more in (("dcp_fsdp2", "/"), ("dcp_fsdp2", ""), ("safetensors_index", "/"), ("torch_bin_index", "/")):
            p = t.run("cp", f"{s.url}{name}{more}", t.at("copy"), "--overwrite")
            need(files_below(t.at("copy")) == files_below(os.path.join(SAMPLES, name)), f"{name}: {sorted(files_below(t.at('copy')))}")
            need(b"nothing else that may be next to" in p.stderr, p.stderr)
    dcp_of(t, 4, 8)
    with open(t.at("ck", "notes.txt"), "w") as f:
        f.write("not of the checkpoint")
    with serving(t.directory) as s:
        t.run("cp", s.url + "ck", t.at("copy"), "--overwrite")
        need(sorted(files_below(t.at("copy"))) == [".metadata", *(f"__{i}_0.distcp" for i in range(4))], sorted(files_below(t.at("copy"))))
        os.unlink(t.at("ck", "__2_0.distcp"))
        p = t.run("cp", s.url + "ck", t.at("new"), status=2)
        need(b"'__2_0.distcp'" in p.stderr and not os.path.exists(t.at("new")), p.stderr)
        p = t.run("cp", s.url, t.at("new"), status=2)
        need(b"none of the files" in p.stderr and not os.path.exists(t.at("new")), p.stderr)


@test
def test_addresses_of_directories_that_may_not_be_listed(t):
    """nginx redirects the address of a directory to the same with a slash, for which it then answers 403."""
    def oddity(handler, path, count):
        if os.path.isdir(os.path.join(SAMPLES, path.strip("/"))):
            return handler.answer(403) if path.endswith("/") else handler.answer(301, Location=path + "/")
        return path == "/secret.pt" and handler.answer(403)

    with serving(SAMPLES, oddity) as s:
        need(t.json("inspect", s.url + "dcp_fsdp2", "--json")["summary"] == t.json("inspect", s.url + "dcp_fsdp2/", "--json")["summary"], "another checkpoint")
        p = t.run("inspect", s.url + "secret.pt", status=2)
        need(b"answered 403" in p.stderr and len([path for path, _, _ in s.asked if "secret" in path]) == 1, f"{p.stderr} {s.asked}")


@test
def test_addresses_of_many_files_are_requested_together(t):
    """Latency counts once for many requests, over files as well as within one: when sizes are asked for, in a deep check, in a copy, and where a
    copy is compared with a complete one."""
    dcp_of(t, 24, 24 * 8)

    def slow(handler, path, count):
        if path.endswith(".distcp"):  # the metadata comes first
            together["sizes" if handler.headers.get("Range") == "bytes=0-0" else "data"].hold()

    commands = {"inspect": ["inspect"], "validate": ["validate", "--deep"], "cp": ["cp", "--overwrite"], "compared": ["cp", "--resume"]}
    for depth, least in ((1, 1), (6, 5)):
        for name, command in commands.items():
            with serving(t.directory, slow) as s:
                together = {what: http_serving.Together(least) for what in ("sizes", "data")}
                t.run(*command, s.url + "ck/", *([t.at("copy")] if "cp" in command else []), "--threads", "2", "--io-depth", str(depth))
                for what in ("sizes",) if name == "inspect" else ("sizes", "data"):
                    need(least <= together[what].most <= depth, f"{name} --io-depth {depth}: {together[what].most} requests for {what} at once")
                of_data = [path for path, range_, _ in s.asked if path.endswith(".distcp") and range_ != "bytes=0-0"]
                need(len(of_data) == len(set(of_data)) == (0 if name == "inspect" else 24), f"{name}: {len(of_data)} requests for data: {[(p, r) for p, r, _ in s.asked if of_data.count(p) > 1]}")
    need(files_below(t.at("copy")) == files_below(t.at("ck")), "another copy")


def large_tensors(t, count, rows):
    """Tensors of rows of 64 KiB, all different, as one file and as a DCP of `rows` files."""
    words = [os.urandom(1 << 16).replace(b"\x7f", b"\x3f").replace(b"\xff", b"\xbf") for _ in range(rows)]
    st_write(t.at("one.safetensors"), {f"t{i}": ("F32", [rows, 1 << 14], b"".join(words[i:] + words[:i])) for i in range(count)})
    t.run("reshard", t.at("one.safetensors"), t.at("ck"), "--to", "dcp", "--mesh", str(rows), "--placements", "shard(0)", "--quiet")


@test
def test_addresses_of_values_are_requested_together(t):
    """Commands that read values in another order than that of the files keep as many requests under way as they may."""
    large_tensors(t, 12, 16)

    def slow(handler, path, count):
        first, _, last = handler.headers["Range"].removeprefix("bytes=").partition("-")
        if path.endswith(".distcp") and last != "0" or int(first) >= 4 << 20:  # a header comes first, and a file is read ahead further and further
            together.hold()

    commands = {"convert": ("convert", "SOURCE", "OUT.pt"), "diff": ("diff", "SOURCE", "SOURCE", "--values"),
                "merge": ("merge", "OUT.safetensors", "SOURCE", "SOURCE", "--method", "linear"),
                "reshard": ("reshard", "SOURCE", "OUT", "--mesh", "3", "--placements", "shard(0)")}
    for source in ("one.safetensors", "ck/"):
        for depth, least in ((1, 1), (6, 5)):
            for name, command in commands.items():
                if depth == 1 and name != "convert":
                    continue  # one request at a time is slow, and the bound is the same for all
                made = t.at(f"{name}{depth}")
                with serving(t.directory, slow) as s:
                    together = http_serving.Together(least, patience=1)  # diff waits for one of its inputs at first
                    t.run(*(part.replace("SOURCE", s.url + source).replace("OUT", made) for part in command), "--threads", "1", "--io-depth", str(depth))
                    bound = 2 * depth if name in ("diff", "merge") else depth  # of each of the two
                    need(least <= together.most <= bound, f"{name} {source} --io-depth {depth}: {together.most} requests at once")
                for path in (made + ".pt", made + ".safetensors", made):
                    if os.path.exists(path):
                        t.run("diff", "--values", t.at("one.safetensors"), path, "--quiet")
                        (shutil.rmtree if os.path.isdir(path) else os.unlink)(path)


@test
def test_addresses_of_small_chunks_are_requested_once(t):
    """A tensor's chunks are in all files, and the checkpoint is larger than what is kept of it: each chunk is fetched whole before it is
    read, by one request."""
    ranks, tensors = 96, 6
    st_write(t.at("one.safetensors"), {f"t{i}": ("F32", [ranks, 24 << 10], os.urandom(ranks * 96 << 10)) for i in range(tensors)})
    t.run("reshard", t.at("one.safetensors"), t.at("ck"), "--mesh", str(ranks), "--placements", "shard(0)", "--to", "dcp")
    commands = {"convert": ("convert", "SOURCE", "OUT"), "rows": ("reshard", "SOURCE", "OUT", "--mesh", "3", "--placements", "shard(0)"),
                "columns": ("reshard", "SOURCE", "OUT", "--mesh", "3", "--placements", "shard(1)"), "diff": ("diff", "--values", "SOURCE", "one"),
                "manifest": ("manifest", "SOURCE")}
    for name, command in commands.items():
        with serving(t.directory) as s:
            t.run(*(part.replace("SOURCE", s.url + "ck/").replace("OUT", t.at("out.safetensors" if name == "convert" else name)).replace("one", t.at("one.safetensors"))
                    for part in command))
            asked = [path for path, range_, _ in s.asked if path.endswith(".distcp") and range_ != "bytes=0-0"]
            need(len(asked) <= 1.05 * ranks * tensors, f"{name}: {len(asked)} requests for {ranks * tensors} chunks")
    for out in ("out.safetensors", "rows", "columns"):
        t.run("diff", "--values", t.at("one.safetensors"), t.at(out), "--quiet")


@test
def test_addresses_of_small_files_and_of_headers_are_requested_once(t):
    """The request for the size of a file gets its beginning, too: all of a small file, and the header of a shard. Files of a .metadata are only
    asked for their sizes before their values are read."""
    sizes = {f"t{i:02}": 4096 if i % 2 else 1 << 17 for i in range(40)}  # a shard for each tensor
    st_write(t.at("one.safetensors"), {name: ("F32", [size // 4], os.urandom(size // 4) + bytes(size - size // 4)) for name, size in sizes.items()})
    t.run("convert", t.at("one.safetensors"), t.at("shards"), "--max-shard-size", "4KB")
    t.run("reshard", t.at("one.safetensors"), t.at("ck"), "--to", "dcp", "--mesh", "4", "--placements", "shard(0)")
    large = {name for name in os.listdir(t.at("shards")) if os.path.getsize(t.at("shards", name)) > 1 << 16}
    need(len(os.listdir(t.at("shards"))) == 41 and len(large) == 20, f"{sorted(os.listdir(t.at('shards')))}")
    for command in (["inspect"], ["validate", "--deep"], ["cp"], ["convert", "--to", "torch"]):
        with serving(t.directory) as s:
            t.run(command[0], s.url + "shards/", *([t.at(command[0])] if command[0] in ("cp", "convert") else []), *command[1:])
            asked = collections.Counter(os.path.basename(path) for path, _, _ in s.asked if os.path.exists(t.directory + path))
        want = {name: 2 if name in large and command[0] != "inspect" else 1 for name in os.listdir(t.at("shards"))}
        need(asked == want, f"{command}: {asked}")
    need(files_below(t.at("cp")) == files_below(t.at("shards")), "another copy")
    t.run("diff", "--values", t.at("one.safetensors"), t.at("convert"))
    with serving(t.directory) as s:
        t.run("inspect", s.url + "ck/")
        asked = sorted((path, range_) for path, range_, _ in s.asked if os.path.exists(t.directory + path))
    need(asked == [("/ck/.metadata", "bytes=0-65535"), *((f"/ck/__{rank}_0.distcp", "bytes=0-0") for rank in range(4))], asked)


@test
def test_addresses_of_files_that_were_copied_are_not_requested_again(t):
    """What an interrupted copy has recorded is kept, and costs a continued one no request."""
    dcp_of(t, 8, 64)

    def gone(handler, path, count):
        return path == "/ck/__5_0.distcp" and count > 1 and handler.answer(404)

    with serving(t.directory, gone) as s:
        t.run("cp", s.url + "ck/", t.at("copy"), "--resume", "--io-depth", "1", status=2)
    with serving(t.directory) as s:
        p = t.run("cp", s.url + "ck/", t.at("copy"), "--resume")
        of_data = sorted(path for path, range_, _ in s.asked if path.endswith(".distcp") and range_ != "bytes=0-0")
    need(of_data == [f"/ck/__{i}_0.distcp" for i in (5, 6, 7)], of_data)
    need(files_below(t.at("copy")) == files_below(t.at("ck")), "another copy")


@test
def test_addresses_of_files_that_fail_in_a_deep_check(t):
    """A file that cannot be read any more is named, and what was fetched ahead of others is checked nevertheless."""
    dcp_of(t, 8, 64)
    damaged = t.at("ck", "__6_0.distcp")
    with open(damaged, "r+b") as f:
        f.seek(os.path.getsize(damaged) // 3)
        f.write(b"\0damaged")

    def gone(handler, path, count):
        return path == "/ck/__3_0.distcp" and count > 1 and handler.answer(404)

    with serving(t.directory, gone) as s:
        local = t.json("validate", "--deep", t.at("ck"), "--json", status=1)
        p = subprocess.run([t.path, "validate", "--deep", s.url + "ck/", "--json"], capture_output=True, timeout=60)
        doc = json.loads(p.stdout)
        need(p.returncode == 2, p.returncode)
    found = {(f["rule"], f.get("file")) for f in doc["findings"]}
    need(("file/io", "__3_0.distcp") in found, found)
    need({(f["rule"], f.get("file")) for f in local["findings"]} <= found, found)


@test
def test_addresses_read_only_what_is_needed(t):
    size = 32 << 20
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with open(t.at("big model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        f.truncate(8 + len(header) + size)
    with serving(t.directory) as s:
        doc = t.json("inspect", s.url + "big%20model.safetensors?token=abc#part", "--json")
        need(doc["summary"]["bytes"] == size, doc["summary"])
        need(s.sent < 300_000, f"{s.sent} bytes were read for a listing")
        need(all(path.endswith("?token=abc") for path, _, _ in s.asked), "the query was lost")
        need(doc["path"] == s.url + "big%20model.safetensors?token=***", doc["path"])
        t.run("get", s.url + "big%20model.safetensors", "w[5:9]", "--print")
        need(s.sent < 600_000, f"{s.sent} bytes were read for four elements")


@test
def test_addresses_redirects_retries_and_headers(t):
    def oddity(handler, name, count):
        if name.startswith("/moved/"):
            handler.answer(302, Location=handler.server.url + name[len("/moved/"):])
            return True
        if count <= 2 and name.endswith(".safetensors"):
            handler.answer(503)
            return True
        return False

    path = sample("safetensors_model")[0]
    name = os.path.relpath(path if os.path.isfile(path) else os.path.join(path, os.listdir(path)[0]), SAMPLES)
    with serving(SAMPLES, oddity) as s:
        t.json("inspect", s.url + "moved/" + name, "--json", env={"TESSERA_HTTP_HEADERS": "Authorization: Bearer x\nX-More: y"})
        need(any(h.get("Authorization") == "Bearer x" and h.get("X-More") == "y" for _, _, h in s.asked), "headers")
        need(sum(1 for p, _, _ in s.asked if p.startswith("/moved/")) >= 1, "no redirect")


@test
def test_addresses_odd_answers_are_told(t):
    whole = lambda h, name, count: h.answer(200, open(SAMPLES + name, "rb").read()) or True
    def huge(h, name, count):
        h.send_response(200)
        h.send_header("Content-Length", str(1 << 40))
        h.end_headers()
        with contextlib.suppress(OSError):
            h.wfile.write(bytes(1 << 17))
        h.close_connection = True
        return True

    def changing(h, name, count):
        data = open(t.directory + name, "rb").read()
        m = re.fullmatch(r"bytes=(\d+)-(\d+)", h.headers["Range"])
        first, last = int(m[1]), min(int(m[2]), len(data) - 1)
        h.answer(206, data[first:last + 1], Content_Range=f"bytes {first}-{last}/{len(data)}", ETag=f'"v{count}"')
        return True

    def other_length(h, name, count):
        h.answer(206, b"x" * 3, Content_Range="bytes 0-2/4000", ETag='"v1"')
        return True

    path = sample("safetensors_model")[0]
    name = os.path.relpath(path if os.path.isfile(path) else os.path.join(path, os.listdir(path)[0]), SAMPLES)
    with serving(SAMPLES, whole) as s:
        need(t.json("inspect", s.url + name, "--json")["summary"]["tensors"] > 0, "a small file without ranges")
    st_write(t.at("many.safetensors"), {f"tensor{i:05}": ("F32", [1], bytes(4)) for i in range(2000)})  # whose header takes more than one request
    with serving(t.directory, changing) as s:
        p = t.run("inspect", s.url + "many.safetensors", status=2)
        need(b"changed while it was being read" in p.stderr and s.counts["/many.safetensors"] > 1, f"{s.counts}: {p.stderr}")
    for oddity, message in ((huge, "206"), (other_length, "gave"),
                            (lambda h, n, c: h.answer(403) or True, "403"), (lambda h, n, c: h.answer(404) or True, "404"),
                            (lambda h, n, c: h.answer(302, Location="file:///etc/passwd") or True, "rotocol")):
        with serving(SAMPLES, oddity) as s:
            p = t.run("inspect", s.url + name, status=2)
            need(message in p.stderr.decode(), f"{message}: {p.stderr}")
    with serving(SAMPLES, lambda h, n, c: h.answer(500) or True) as s:
        need("500" in t.run("inspect", s.url + name, status=2).stderr.decode(), "500")
        need(s.counts["/" + name] == 10, f"{s.counts} tries")
    with serving(SAMPLES) as s:
        url = s.url
        need("none of the files" in t.run("inspect", s.url + "no/such/", status=2).stderr.decode(), "an empty directory")
        missing = t.json("inspect", s.url + "broken_dcp_missing_file/", "--json")
        need(any(f["rule"] == "dcp/missing-file" for f in missing["findings"]), "a missing data file")
    need("127.0.0.1" in t.run("inspect", url, status=2).stderr.decode(), "no server")


def file_sample():
    path = sample("safetensors_model")[0]
    return os.path.relpath(path if os.path.isfile(path) else os.path.join(path, os.listdir(path)[0]), SAMPLES)


SECRETS = {"TESSERA_HTTP_HEADERS": "Authorization: Bearer S3CRET\nX-Api-Key: S3CRET\nCookie: a=S3CRET\nX-Amz-Security-Token: S3CRET"}


@test
def test_addresses_secrets_stay_with_their_host(t):
    """Redirects to another port, to another host, and from there back: no header, no .netrc and no user of the first host
    are sent."""
    name = file_sample()
    os.mkdir(t.at("home"))
    open(t.at("home", ".netrc"), "w").write("machine 127.0.0.1 login netuser password S3CRET\nmachine 127.0.0.2 login other password S3CRET\n")
    os.chmod(t.at("home", ".netrc"), 0o600)
    env = {**SECRETS, "HOME": t.at("home")}

    def leaks(server, at):
        return [(p, h) for p, _, h in server.asked if p.startswith(at) and ("S3CRET" in str(h) or "Authorization" in h or "Cookie" in h)]

    for host in ("127.0.0.1", "127.0.0.2", "localhost"):
        with serving(SAMPLES, host=host) as far:
            def to_far(h, path, count):
                return path.startswith("/moved/") and (h.answer(302, Location=far.url + path[len("/moved/"):]) or True)
            with serving(SAMPLES, to_far) as near:
                for user in ("", "user:S3CRET@"):
                    url = near.url.replace("//", "//" + user) + "moved/" + name
                    for headers in (SECRETS["TESSERA_HTTP_HEADERS"], ""):
                        t.json("inspect", url, "--json", "--hash", "sha256", env={**env, "TESSERA_HTTP_HEADERS": headers})
                need(leaks(near, "/moved/"), "the named host gets no secrets")
                need(far.asked and not leaks(far, "/"), f"{host}: {leaks(far, '/')[:1]}")

    def there(h, path, count):
        return path.startswith("/away/") and (h.answer(307, Location=back.url + path[len("/away/"):]) or True)

    def home_again(h, path, count):
        return path.startswith("/back/") and (h.answer(308, Location=near.url + path[len("/back/"):]) or True)

    with serving(SAMPLES, there) as near, serving(SAMPLES, home_again) as back:
        t.json("inspect", near.url + "away/back/" + name, "--json", env=env)
        need(leaks(near, "/away/") and not leaks(back, "/") and not leaks(near, "/" + name), "what came back by another host is trusted")

    def within(h, path, count):
        return path.startswith("/moved/") and (h.answer(301, Location="/" + path[len("/moved/"):]) or True)

    with serving(SAMPLES, within) as near:  # the same origin receives them
        t.json("inspect", near.url.replace("//", "//user:S3CRET@") + "moved/" + name, "--json", env={"HOME": t.at("home"), "TESSERA_HTTP_HEADERS": "X-Api-Key: S3CRET"})
        later = [h for p, _, h in near.asked if p == "/" + name]
        need(later and all(h.get("X-Api-Key") == "S3CRET" and h.get("Authorization") for h in later), later[:1])
    loop = lambda h, path, count: h.answer(302, Location="/again" + path) or True
    with serving(SAMPLES, loop) as s:
        need(b"redirect" in t.run("inspect", s.url + name, status=2).stderr.lower(), "a redirect without end")
        need(s.counts and len(s.asked) <= 11, f"{len(s.asked)} requests")


@test
def test_addresses_other_parts_are_refused(t):
    """A 206 must contain the requested part, wherever in the file it is; anything else is an error."""
    name = file_sample()
    data = open(os.path.join(SAMPLES, name), "rb").read()

    def part(change, from_byte):
        def oddity(h, path, count):
            m = re.fullmatch(r"bytes=(\d+)-(\d+)", h.headers["Range"])
            first, last = int(m[1]), min(int(m[2]), len(data) - 1)
            if last < from_byte:
                return False
            body, headers = change(first, last)
            h.answer(206, body, **{"ETag": '"v1"', **headers})
            return True
        return oddity

    whole = len(data)
    changes = {
        "shifted": lambda a, b: (data[a:b + 1], {"Content_Range": f"bytes {a + 1}-{b + 1}/{whole}"}),
        "from the start": lambda a, b: (data[:b - a + 1], {"Content_Range": f"bytes 1-{b - a + 1}/{whole}"}),
        "longer": lambda a, b: (data[a:b + 2], {"Content_Range": f"bytes {a}-{b + 1}/{whole}"}),
        "longer than it says": lambda a, b: (data[a:b + 1] + b"more", {"Content_Range": f"bytes {a}-{b}/{whole}"}),
        "shorter": lambda a, b: (data[a:b], {"Content_Range": f"bytes {a}-{b - 1}/{whole}"}),
        "shorter than it says": lambda a, b: (data[a:b], {"Content_Range": f"bytes {a}-{b}/{whole}"}),
        "backwards": lambda a, b: (data[a:b + 1], {"Content_Range": f"bytes {b + 1}-{a}/{whole}"}),
        "no range": lambda a, b: (data[a:b + 1], {}),
        "no numbers": lambda a, b: (data[a:b + 1], {"Content_Range": "bytes x-y/z"}),
        "other unit": lambda a, b: (data[a:b + 1], {"Content_Range": f"items {a}-{b}/{whole}"}),
        "several parts": lambda a, b: (data[a:b + 1], {"Content_Type": "multipart/byteranges; boundary=x"}),
        "other total": lambda a, b: (data[a:b + 1], {"Content_Range": f"bytes {a}-{b}/{whole + 7}"}),
    }
    for what, change in changes.items():
        for from_byte in (0, 8):
            if what == "other total" and not from_byte:
                continue  # there is nothing to compare it with yet
            with serving(SAMPLES, part(change, from_byte)) as s:
                p = t.run("inspect", s.url + name, "--json", "--hash", "sha256", status=(0, 2))
                words = p.stderr.decode() if p.returncode else json.dumps(json.loads(p.stdout)["findings"])
                need(p.returncode == 2, f"{what}, from byte {from_byte}: taken: {words[:200]}")
                need("server gave" in words or "without saying" in words or "changed" in words, f"{what}: {words}")


@test
def test_addresses_of_files_without_a_stated_size_are_refused(t):
    """bytes 0-0/* is a valid answer, and its Content-Length is the length of the part."""
    name = file_sample()

    def unsized(h, path, count):
        h.answer(206, b"x", Content_Range="bytes 0-0/*")
        return True

    with serving(SAMPLES, unsized) as s:
        for command in ("inspect", "validate"):
            message = t.run(command, s.url + name, status=2).stderr.decode()
            need("does not report the size of the file" in message, message)


@test
def test_addresses_values_that_cannot_be_read_are_not_counted_as_more(t):
    def short(h, path, count):
        if h.headers["Range"] == "bytes=0-0" or h.headers["Range"].startswith("bytes=0-"):
            return False
        h.answer(206, b"x", Content_Range="bytes 1-1/2", ETag='"v1"')
        return True

    st_write(t.at("a.safetensors"), {"w": ("F32", [1 << 20], bytes(1 << 22))})
    with serving(t.directory, short) as s:
        p = t.run("get", s.url + "a.safetensors", "w[1000000:1000009]", status=2)
        need(p.stdout == b"" and b"the server gave" in p.stderr, f"{p.stdout} {p.stderr}")


@test
def test_addresses_secrets_are_in_no_text(t):
    """Messages, documents and journals name an address without user, password and signature."""
    path = os.path.join(SAMPLES, "dcp_fsdp2")
    query = "?versionId=7&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=S3CRET&X-Amz-Security-Token=S3CRET&sig=S3CRET&token=S3CRET&S3CRET"
    name = file_sample()
    seen = []

    def clean(p, *wanted):
        for text in (p.stdout, p.stderr):
            need(b"S3CRET" not in text and b"S3USER" not in text, f"{p.args[1:3]}: a secret: {text[max(0, text.find(b'S3') - 200):][:400]}")
        seen.append(p)
        need(all(w in p.stdout + p.stderr for w in wanted), f"{wanted}: {p.stdout[-300:]} {p.stderr}")
        return p

    def secret(url):
        return url.replace("//", "//S3USER:S3CRET@")

    with serving(SAMPLES) as s:
        file, directory, shown = secret(s.url) + name + query, secret(s.url) + "dcp_fsdp2/" + query, s.url.encode()
        for command in (("inspect", file, "--json"), ("inspect", file), ("inspect", directory), ("validate", directory, "--json"), ("validate", directory, "--format", "sarif"), ("validate", directory, "--format", "junit"),
                        ("validate", directory, "--format", "github"), ("validate", directory, "--format", "gitlab"), ("validate", file, "--deep"), ("layout", file), ("manifest", file),
                        ("diff", file, file, "--json"), ("diff", file, directory), ("plan", directory, "--mesh", "dp=2", "--placements", "shard(0)"), ("fqn", "--checkpoint", file),
                        ("get", file, "nosuch"), ("get", file, "nosuch", "-o", t.at("x.bin")), ("convert", file, t.at("c.pt"), "--to", "torch", "--json"),
                        ("convert", file, t.at("c.pt")), ("verify", file, t.at("nosuch.json")), ("repair", directory, t.at("m")), ("view", file), ("doctor", file),
                        ("optim", "flatten", file, t.at("o.pt")), (file,), ("inspect", file, "--layout", file), ("inspect", file, file), ("validate", file, "--layout", file)):
            clean(t.run(*command, status=(0, 1, 2)))
        need(json.loads(clean(t.run("inspect", file, "--json")).stdout)["path"].startswith(s.url + name), "the path")
        plan = clean(t.run("plan", directory, "--mesh", "dp=2", "--placements", "shard(0)", "--json"), shown).stdout
        open(t.at("plan.json"), "wb").write(plan)
        p = clean(t.run("exec", t.at("plan.json"), t.at("out"), status=2), b"--source")
        clean(t.run("exec", t.at("plan.json"), t.at("out"), "--source", directory, "--share", "1/2"))
        left = b"".join(open(os.path.join(d, f), "rb").read() for d, _, files in os.walk(t.directory) for f in files)
        need(b"S3CRET" not in left and b"S3USER" not in left and any(".tessera-" in n for n in os.listdir(t.directory)), "a secret in what is on the disk")
        clean(t.run("exec", t.at("plan.json"), t.at("out"), "--source", directory, "--share", "2/2", "--finish", "--json"))
        t.run("reshard", path, t.at("same"), "--mesh", "dp=2", "--placements", "shard(0)")
        t.run("diff", t.at("same"), t.at("out"), "--values", "--layout")
        clean(t.run("exec", t.at("plan.json"), t.at("out2"), "--source", path, status=2))  # the files have other versions
        need(all("S3CRET" in p for p, _, _ in s.asked), "the signature was not sent")
    url = file
    for status in (401, 403, 404):
        with serving(SAMPLES, lambda h, n, c: h.answer(status) or True) as s:
            clean(t.run("inspect", secret(s.url) + name + query, status=2), str(status).encode())
            clean(t.run("inspect", secret(s.url) + "dcp_fsdp2/" + query, status=2))
    for oddity in (lambda h, n, c: h.answer(206, b"xyz", Content_Range="bytes 1-3/9") or True, lambda h, n, c: h.answer(302, Location="file:///x") or True,
                   lambda h, n, c: h.answer(206, b"x", Content_Range="bytes 0-0/100", ETag=f'"{c}"') or True):
        with serving(SAMPLES, oddity) as s:
            clean(t.run("inspect", secret(s.url) + name + query, status=2))
    clean(t.run("inspect", url, status=2))  # the server is gone
    clean(t.run("inspect", "http://S3USER:S3CRET/S3CRET@127.0.0.1/x", status=2))
    clean(t.run("inspect", "HTTP://S3USER:S3CRET@127.0.0.1:9/x", status=2))
    clean(t.run("convert", sample("dcp_small")[0], url, status=2))
    clean(t.run("inspect", "s3://S3USER:S3CRET@bucket/key?sig=S3CRET", status=2))
