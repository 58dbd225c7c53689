"""`tessera view`: what it serves, to whom, and what it does not serve."""
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time

from harness import need, sample, test


class View:
    def __init__(self, url, pid):
        m = re.fullmatch(r"http://(127\.0\.0\.1:\d+)(/[0-9a-f]{32,}/)", url)
        need(m, url)
        self.url, self.where, self.root, self.pid = url, m[1], m[2], pid

    def raw(self, target, method="GET", **headers):
        """Sends a request for any target, unchanged."""
        c = http.client.HTTPConnection(self.where, timeout=60)
        c.putrequest(method, target, skip_host="Host" in headers)
        for k, v in headers.items():
            c.putheader(k, v)
        c.endheaders()
        r = c.getresponse()
        return r.status, r.read(), dict(r.getheaders())

    def ask(self, name, method="GET", **headers):
        return self.raw(self.root + name, method, **headers)

    def listing(self):
        return json.loads(self.ask("checkpoint.json")[1])

    def connect(self):
        host, port = self.where.split(":")
        return socket.create_connection((host, int(port)), timeout=60)


@contextlib.contextmanager
def viewing(t, *paths):
    pages = t.at("pages")
    if not os.path.exists(pages):
        os.makedirs(os.path.join(pages, "assets"))
        for name in ("index.html", "assets/a.js", ".env", "assets/.hidden"):
            open(os.path.join(pages, name), "w").write(name)
        os.symlink(t.at("secret"), os.path.join(pages, "link.js"))
    open(t.at("secret"), "w").write("secret")
    p = subprocess.Popen([t.path, "view", *paths, "--pages", pages], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield View(p.stdout.readline().decode().strip(), p.pid)
    finally:
        p.send_signal(signal.SIGTERM)
        _, err = p.communicate(timeout=60)
        need(p.returncode == -signal.SIGTERM, f"it did not end of the signal: {p.returncode} {err[-300:]}")


@test
def test_view_serves_the_checkpoint(t):
    path = sample("dcp_fsdp2")[0]
    with viewing(t, path) as v:
        listing = v.listing()
        need({f["name"]: f["size"] for f in listing["files"]} == {n: os.path.getsize(os.path.join(path, n)) for n in os.listdir(path)}, listing)
        data = open(os.path.join(path, "__1_0.distcp"), "rb").read()
        status, body, headers = v.ask("checkpoint/__1_0.distcp", Range="bytes=10-19")
        need(status == 206 and body == data[10:20] and headers["Content-Range"] == f"bytes 10-19/{len(data)}", "a range")
        need(headers["Cache-Control"] == "no-store" and headers["Referrer-Policy"] == "no-referrer", headers)
        need(not any(k.lower().startswith("access-control") for k in headers), headers)
        need(v.ask("checkpoint/__1_0.distcp")[:2] == (200, data), "a whole file")
        need(v.ask("checkpoint/__1_0.distcp", Range="bytes=5-")[1] == data[5:], "an open range")
        need(v.ask("checkpoint/__1_0.distcp", Range="bytes=x")[0] == 200, "a range that is none")
        need(v.ask("checkpoint/%5f_1_0.distcp")[1] == data, "an escaped letter")
        status, body, headers = v.ask("")
        need(body == b"index.html" and "default-src 'none'" in headers["Content-Security-Policy"], "the page")
        need(v.ask("?view")[1] == b"index.html", "the page with a query")
        need(v.ask("assets/a.js")[2]["Content-Type"] == "text/javascript", "a script")
        need(v.ask("", method="POST")[0] == 405, "POST")


@test
def test_view_serves_nothing_else(t):
    directory = t.at("ck")
    shutil.copytree(sample("dcp_fsdp2")[0], directory)
    for name in (".env", "notes.txt", "config.json", "lora.safetensors", "__9_9.distcp", "-metadata"):
        open(os.path.join(directory, name), "w").write("secret")
    os.makedirs(os.path.join(directory, "below"))
    open(os.path.join(directory, "below", "secret"), "w").write("secret")
    os.symlink(t.at("secret"), os.path.join(directory, "notes"))
    os.symlink(t.directory, os.path.join(directory, "up"))
    with viewing(t, directory) as v:
        need({f["name"] for f in v.listing()["files"]} == set(os.listdir(sample("dcp_fsdp2")[0])), v.listing())
        for gone in ("../secret", "checkpoint/../secret", "checkpoint/%2e%2e/secret", "checkpoint/..%2fsecret", "nosuch", "checkpoint/nosuch", "/etc/passwd",
                     "checkpoint/.env", "checkpoint/.env%00.metadata", "checkpoint/.metadata%00", "checkpoint/.metadata%00.env", "checkpoint//.metadata",
                     "checkpoint/./.metadata", "checkpoint/notes", "checkpoint/notes.txt", "checkpoint/up/secret", "checkpoint/below/secret",
                     "checkpoint/below%2fsecret", "checkpoint/config.json", "checkpoint/lora.safetensors", "checkpoint/__9_9.distcp", "checkpoint/", "checkpoint",
                     "other/.metadata", "other/", ".env", "assets/.hidden", "assets", "assets/", "link.js", "%2e%2e/secret", "..%2fsecret", "assets/..%2f..%2fsecret",
                     "index.html%00.js"):
            status, body, _ = v.ask(gone)
            need(status == 404 and body == b"not found\n", f"{gone}: {status} {body[:80]}")
        need(v.ask("checkpoint/.metadata")[0] == 200, ".metadata")


@test
def test_view_wants_the_token(t):
    tokens = set()
    for _ in range(2):
        with viewing(t, sample("dcp_small")[0]) as v:
            tokens.add(v.root)
            token = v.root.strip("/")
            for way in ("/", "/index.html", "/checkpoint.json", "/checkpoint/.metadata", "/?" + token, "/assets/a.js", f"/{token}", f"/{token[:-1]}/", f"/{token}0/", "//",
                        f"/{token[:-1]}{'0' if token[-1] != '0' else '1'}/checkpoint.json", f"/{'0' * len(token)}/checkpoint/.metadata", f"//{token}/", f"/{token.upper()}x/"):
                for method in ("GET", "POST", "OPTIONS"):
                    status, body, headers = v.raw(way, method)
                    need(status == 404 and body == b"not found\n" and token not in str(headers), f"{method} {way}: {status} {body[:60]}")
            for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1:80@evil", "", "127.0.0.1:", "127.0.0.2", "localhostx:80"):
                status, body, _ = v.ask("checkpoint.json", Host=host)
                need(status in (400, 403) and b"title" not in body, f"Host {host}: {status}")
            for host in ("localhost", v.where, "localhost:9000", "[::1]:9000"):
                need(v.ask("checkpoint.json", Host=host)[0] == 200, host)
    need(len(tokens) == 2, "the same token twice")


@test
def test_view_follows_links_of_the_checkpoint(t):
    """As the Hugging Face cache stores models: snapshots/REV/NAME is a link to ../../blobs/HASH."""
    os.makedirs(t.at("hub", "blobs"))
    os.makedirs(t.at("hub", "snapshots", "main"))
    source = os.path.dirname(sample("safetensors_index")[0])
    for i, name in enumerate(sorted(os.listdir(source))):
        shutil.copy(os.path.join(source, name), t.at("hub", "blobs", f"b{i}"))
        os.symlink(f"../../blobs/b{i}", t.at("hub", "snapshots", "main", name))
    os.symlink(t.at("secret"), t.at("hub", "snapshots", "main", "README.md"))
    os.symlink(t.at("secret"), t.at("hub", "snapshots", "main", "other.safetensors.bak"))
    for path in (t.at("hub", "snapshots", "main"), t.at("hub", "snapshots", "main", "model.safetensors.index.json")):
        with viewing(t, path) as v:
            names = {f["name"] for f in v.listing()["files"]}
            need(names == {n for n in os.listdir(source)}, names)
            for name in names:
                need(v.ask("checkpoint/" + name)[1] == open(os.path.join(source, name), "rb").read(), name)
            need(v.ask("checkpoint/README.md")[0] == 404 and v.ask("checkpoint/other.safetensors.bak")[0] == 404, "a link that is not listed")


@test
def test_view_serves_what_every_form_lists(t):
    for name in ("dcp_fsdp2", "safetensors_index", "torch_bin_index", "torch_plain", "safetensors_model"):
        path = sample(name)[0]
        with viewing(t, path) as v:
            doc = t.json("inspect", path, "--json")
            used = {c["file"] for e in doc["entries"] for c in e.get("chunks", []) if c.get("file")}
            names = {f["name"] for f in v.listing()["files"]}
            need(used <= names, f"{name}: {used - names}")
            for file in names:
                at = os.path.join(path if os.path.isdir(path) else os.path.dirname(path), file)
                need(v.ask("checkpoint/" + file)[1] == open(at, "rb").read(), f"{name}: {file}")


@test
def test_view_two_checkpoints(t):
    a, b = sample("dcp_fsdp2")[0], sample("dcp_small")[0]
    with viewing(t, a, b) as v:
        listing = v.listing()
        need(listing["title"] == "dcp_fsdp2" and listing["other"]["title"] == "dcp_small", listing)
        need({f["name"] for f in listing["other"]["files"]} == set(os.listdir(b)), listing["other"])
        for side, path in (("checkpoint", a), ("other", b)):
            need(v.ask(side + "/.metadata")[1] == open(os.path.join(path, ".metadata"), "rb").read(), side)


@test
def test_view_idle_connections_keep_nobody_out(t):
    with viewing(t, sample("dcp_small")[0]) as v:
        idle = []
        begun = time.monotonic()
        for i in range(300):
            s = v.connect()
            if i % 3 == 1:
                s.sendall(b"GET / HTTP/1.1\r\nHost: 127")
            if i % 3 == 2:  # kept open after an answer
                s.sendall(f"GET {v.root}checkpoint.json HTTP/1.1\r\nHost: {v.where}\r\n\r\n".encode())
            idle.append(s)
        for _ in range(5):
            need(v.ask("checkpoint.json")[0] == 200, "a new client is kept out")
        slow = idle[1::3][-20:]
        over = {}
        while len(over) < len(idle) and time.monotonic() < begun + 60:
            for k, s in enumerate(idle):
                if k in over:
                    continue
                s.setblocking(False)
                try:
                    if s in slow:
                        s.send(b"x")  # single bytes now and then do not make a request
                    while s.recv(65536):
                        pass
                    over[k] = time.monotonic() - begun
                except BlockingIOError:
                    pass
                except OSError:
                    over[k] = time.monotonic() - begun
            time.sleep(0.25)
        need(len(over) == len(idle), f"{len(idle) - len(over)} of {len(idle)} idle connections are still open after a minute")
        need(v.ask("checkpoint.json")[0] == 200, "afterwards")
        for s in idle:
            s.close()
        wanted = len(os.listdir(f"/proc/{v.pid}/fd"))
        need(wanted < 60, f"{wanted} descriptors are still open")


def answers(socket, count, has_body=True):
    """Status and body of `count` answers that arrive on one connection; the rest of what arrives must be nothing."""
    data, found = b"", []
    while len(found) < count:
        head, end, rest = data.partition(b"\r\n\r\n")
        size = int(re.search(rb"(?i)content-length: (\d+)", head)[1]) if end and has_body else 0
        if end and len(rest) >= size:
            found.append((int(head.split()[1]), rest[:size], head))
            data = rest[size:]
            continue
        more = socket.recv(65536)
        need(more, f"the connection ended after {len(found)} answers: {data[:200]}")
        data += more
    need(not data, f"more than was asked for: {data[:200]}")
    return found


@test
def test_view_speaks_http(t):
    path = sample("dcp_fsdp2")[0]
    data = open(os.path.join(path, "__1_0.distcp"), "rb").read()
    with viewing(t, path) as v:
        host = f"Host: {v.where}\r\n"
        get = f"GET {v.root}checkpoint/__1_0.distcp HTTP/1.1\r\n{host}"
        with v.connect() as s:  # one connection for several requests, which may come together, or byte by byte
            s.sendall((f"{get}range:  bytes=0-9 \r\n\r\n" + f"{get}RANGE: bytes=10-11\r\n\r\n\r\n{get}\r\n").encode())
            need([a[1] for a in answers(s, 3)] == [data[:10], data[10:12], data], "three requests at a time")
            for byte in f"{get}Range: bytes=3-4\r\n\r\n".encode():
                s.sendall(bytes([byte]))
            need(answers(s, 1)[0][:2] == (206, data[3:5]), "a request in single bytes")
            s.sendall(get.replace("GET", "HEAD", 1).encode() + b"\r\n")
            status, _, head = answers(s, 1, has_body=False)[0]
            need(status == 200 and b"Content-Length: %d\r\n" % len(data) in head, head)
            s.sendall(get.encode() + b"Connection: close\r\n\r\n")
            need(answers(s, 1)[0][1] == data and s.recv(1) == b"", "the connection is kept")
        for text, want in ((get.replace("1.1", "1.0") + "\r\n", 200), (f"POST {v.root} HTTP/1.1\r\n{host}Content-Length: 30\r\n\r\nGET {v.root} HTTP/1.1", 405),
                           (get + host + "\r\n", 403), (f"GET {v.root} HTTP/1.1\r\n\r\n", 403), ("GET\r\n\r\n", 400), (f"GET {v.root}\r\n{host}\r\n", 400),
                           (get + "X: \0\r\n\r\n", 400), (get + " folded: 1\r\n\r\n", 400), (get + "X: " + "x" * 9000, 431)):
            with v.connect() as s:
                s.sendall(text.encode())
                s.shutdown(socket.SHUT_WR)
                status, body, _ = answers(s, 1)[0]
                need(status == want and (want == 200) == (body == data) and s.recv(1) == b"", f"{text[:60]!r}: {status}, expected {want}")


@test
def test_view_slow_readers_keep_nobody_out(t):
    with open(t.at("big.safetensors"), "wb") as f:
        text = json.dumps({"w": {"dtype": "U8", "shape": [64 << 20], "data_offsets": [0, 64 << 20]}}).encode()
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + (64 << 20))
    with viewing(t, t.at("big.safetensors")) as v:
        slow = [v.connect() for _ in range(20)]
        for s in slow:
            s.sendall(f"GET {v.root}checkpoint/big.safetensors HTTP/1.1\r\nHost: {v.where}\r\n\r\n".encode())
            s.recv(1)
        for _ in range(5):
            need(v.ask("checkpoint.json")[0] == 200, "a new client is kept out")
        need(len(v.ask("checkpoint/big.safetensors")[1]) == os.path.getsize(t.at("big.safetensors")), "a file of many blocks")
        for s in slow:
            s.close()


@test
def test_view_refuses(t):
    need(b"web/build" in t.run("view", sample("dcp_small")[0], "--pages", t.at("none"), status=2).stderr, "no pages")
    os.mkdir(t.at("pages"))
    open(t.at("pages", "index.html"), "w").close()
    need(b"nosuch" in t.run("view", t.at("nosuch"), "--pages", t.at("pages"), status=2).stderr, "no checkpoint")
    need(b"nosuch" in t.run("view", sample("dcp_small")[0], t.at("nosuch"), "--pages", t.at("pages"), status=2).stderr, "no second checkpoint")
    need(b"index.html" in t.run("view", t.at("pages"), "--pages", t.at("pages"), status=2).stderr, "no checkpoint in a directory")
    with viewing(t, sample("dcp_small")[0]) as v:
        port = v.where.split(":")[1]
        said = t.run("view", sample("dcp_small")[0], "--pages", t.at("pages"), "--port", port, status=2).stderr
        need(f"cannot listen on 127.0.0.1:{port}: Address already in use".encode() in said, said)
    need(b"--port takes a number from 1 to 65535, not '70000'" in t.run("view", sample("dcp_small")[0], "--pages", t.at("pages"), "--port", "70000", status=2).stderr, "port 70000")
