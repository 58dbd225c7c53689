"""Checkpoints behind addresses, on a server of the loopback address: ranges, redirects, retries, and every odd answer."""
import contextlib
import http.server
import json
import os
import re
import struct
import threading
import urllib.parse

from harness import SAMPLES, need, sample, test


class Server(http.server.ThreadingHTTPServer):
    """Serves `root` by ranges; `oddity(handler, path, count)` may answer itself and return True."""
    daemon_threads = True

    def __init__(self, root, oddity=lambda *a: False):
        self.root, self.oddity, self.asked, self.sent, self.counts, self.lock = root, oddity, [], 0, {}, threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for k, v in {"Content-Length": len(body), **headers}.items():
            self.send_header(k.replace("_", "-"), str(v))
        self.end_headers()
        self.wfile.write(body)
        with self.server.lock:
            self.server.sent += len(body)

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
        m = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not m:
            return self.answer(200, data)
        first, last = int(m[1]), min(int(m[2]), len(data) - 1)
        if first > last:
            return self.answer(416, Content_Range=f"bytes */{len(data)}")
        self.answer(206, data[first:last + 1], Content_Range=f"bytes {first}-{last}/{len(data)}", ETag='"v1"')


@contextlib.contextmanager
def serving(root, oddity=lambda *a: False):
    server = Server(root, oddity)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


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
def test_addresses_read_only_what_is_needed(t):
    size = 32 << 20
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with open(t.at("big model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        f.truncate(8 + len(header) + size)
    with serving(t.folder) as s:
        doc = t.json("inspect", s.url + "big%20model.safetensors?token=abc#part", "--json")
        need(doc["summary"]["bytes"] == size, doc["summary"])
        need(s.sent < 300_000, f"{s.sent} bytes were read for a listing")
        need(all(path.endswith("?token=abc") for path, _, _ in s.asked), "the query was lost")
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
            h.wfile.write(bytes(1 << 16))
        h.close_connection = True
        return True

    def changing(h, name, count):
        data = open(SAMPLES + name, "rb").read()
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
    for oddity, message in ((huge, "206"), (changing, "changed while it was read"), (other_length, "gave"),
                            (lambda h, n, c: h.answer(403) or True, "403"), (lambda h, n, c: h.answer(404) or True, "404"),
                            (lambda h, n, c: h.answer(302, Location="file:///etc/passwd") or True, "rotocol")):
        with serving(SAMPLES, oddity) as s:
            p = t.run("inspect", s.url + name, status=2)
            need(message in p.stderr.decode(), f"{message}: {p.stderr}")
    with serving(SAMPLES, lambda h, n, c: h.answer(500) or True) as s:
        need("500" in t.run("inspect", s.url + name, status=2).stderr.decode(), "500")
        need(s.counts["/" + name] == 4, f"{s.counts} tries")
    with serving(SAMPLES) as s:
        url = s.url
        need("none of the files" in t.run("inspect", s.url + "no/such/", status=2).stderr.decode(), "an empty folder")
        missing = t.json("inspect", s.url + "broken_dcp_missing_file/", "--json")
        need(any(f["rule"] == "dcp/missing-file" for f in missing["findings"]), "a missing data file")
    need("127.0.0.1" in t.run("inspect", url, status=2).stderr.decode(), "no server")
