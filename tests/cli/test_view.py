"""`tessera view`: what it serves, to whom, and what it does not."""
import http.client
import json
import os
import signal
import subprocess

from harness import need, sample, test


@test
def test_view_serves_the_checkpoint_and_nothing_else(t):
    path = sample("dcp_fsdp2")[0]
    os.mkdir(t.at("pages"))
    for name in ("index.html", "a.js"):
        open(t.at("pages", name), "w").write(name)
    open(t.at("secret"), "w").write("secret")
    p = subprocess.Popen([t.path, "view", path, "--pages", t.at("pages")], stdout=subprocess.PIPE)
    try:
        url = p.stdout.readline().decode().strip()
        need(url.startswith("http://127.0.0.1:") and url.endswith("/?view"), url)
        where = url[len("http://"):].split("/")[0]

        def ask(name, method="GET", **headers):
            c = http.client.HTTPConnection(where, timeout=20)
            c.request(method, name, headers=headers)
            r = c.getresponse()
            return r.status, r.read(), dict(r.getheaders())

        listing = json.loads(ask("/checkpoint.json")[1])
        need({f["name"]: f["size"] for f in listing["files"]} == {n: os.path.getsize(os.path.join(path, n)) for n in os.listdir(path)}, listing)
        data = open(os.path.join(path, "__1_0.distcp"), "rb").read()
        status, body, headers = ask("/checkpoint/__1_0.distcp", Range="bytes=10-19")
        need(status == 206 and body == data[10:20] and headers["Content-Range"] == f"bytes 10-19/{len(data)}", "a range")
        need(ask("/checkpoint/__1_0.distcp")[:2] == (200, data), "a whole file")
        need(ask("/checkpoint/__1_0.distcp", Range="bytes=5-")[1] == data[5:], "an open range")
        need(ask("/checkpoint/__1_0.distcp", Range="bytes=x")[0] == 200, "a range that is none")
        status, body, headers = ask("/")
        need(body == b"index.html" and "default-src 'none'" in headers["Content-Security-Policy"], "the page")
        need(ask("/a.js")[2]["Content-Type"] == "text/javascript", "a script")
        for gone in ("/../secret", "/checkpoint/../secret", "/checkpoint/%2e%2e/secret", "/nosuch", "/checkpoint/nosuch", "//etc/passwd"):
            need(ask(gone)[0] == 404, gone)
        need(ask("/", method="POST")[0] == 405, "POST")
        need(ask("/checkpoint.json", Host="evil.example")[0] == 403, "another host")
        need(ask("/checkpoint.json", Host="localhost")[0] == 200, "localhost")
    finally:
        p.send_signal(signal.SIGTERM)
        need(p.wait(timeout=20) == -signal.SIGTERM, "it did not end of the signal")


@test
def test_view_refuses(t):
    need(b"web/build" in t.run("view", sample("dcp_small")[0], "--pages", t.at("none"), status=2).stderr, "no pages")
    os.mkdir(t.at("pages"))
    open(t.at("pages", "index.html"), "w").close()
    need(b"nosuch" in t.run("view", t.at("nosuch"), "--pages", t.at("pages"), status=2).stderr, "no checkpoint")
    need(b"ports end" in t.run("view", sample("dcp_small")[0], "--pages", t.at("pages"), "--port", "70000", status=2).stderr, "port 70000")
