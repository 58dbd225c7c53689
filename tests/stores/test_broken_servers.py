"""Servers that stay broken: whatever a command does with them, it ends soon, with a message. The tests shorten the time that a
command may lose (TESSERA_RETRY_SECONDS), so a command that ignores the limit is stopped by its own limit, which is far off."""
import concurrent.futures
import contextlib
import functools
import os
import re
import subprocess
import threading
import time

import fake_s3
import http_serving
from checks import need, test
from fake_s3 import etag
from harness import sample
from test_s3 import files_below
from test_write import large_file

SECONDS, LIMIT = "3", 40


def ends(t, name, *args, env):
    """Runs a command that has to fail, and returns its messages."""
    try:
        p = subprocess.run([t.path, *args], env={**os.environ, **env, "TESSERA_RETRY_SECONDS": SECONDS}, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT)
    except subprocess.TimeoutExpired as e:
        raise AssertionError(f"{name}: {args[0]} was still running after {LIMIT} s") from e
    need(p.returncode in (1, 2) and (p.stderr + p.stdout).strip(), f"{name}: {args[0]} ends with {p.returncode}: {p.stderr[-300:]}")
    return p.stdout + p.stderr


def together(function, t, names):
    """Calls function(t, name) for each of these names at the same time, because the commands mostly wait."""
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(functools.partial(function, t), names))  # raises what one of them raised


def hang(h):
    h.server.over.wait(LIMIT)
    h.close_connection = True
    return True


def reset(h):
    h.close_connection = True
    h.connection.shutdown(2)
    return True


def asked_for(h):
    m = re.fullmatch(r"bytes=(\d+)-(\d+)", h.headers.get("Range", ""))
    data = h.server.objects.get(h.key, b"")
    first, last = (int(m[1]), min(int(m[2]), len(data) - 1)) if m else (0, len(data) - 1)
    return data, first, last


def short(h):
    data, first, last = asked_for(h)
    some = data[first:last + 1][:-1]
    return h.answer(206, some, Content_Range=f"bytes {first}-{first + len(some) - 1}/{len(data)}", ETag=etag(data))


def shifted(h):
    data, first, last = asked_for(h)
    return h.answer(206, data[first + 1:last + 2], Content_Range=f"bytes {first + 1}-{last + 1}/{len(data)}", ETag=etag(data))


# Ways of answering a request that never pass.
FAULTS = {"503": lambda h: h.error(503, "SlowDown"), "500": lambda h: h.error(500, "InternalError"), "hang": hang, "reset": reset, "short": short,
          "shifted": shifted, "wait": lambda h: h.error(503, "SlowDown", Retry_After=90)}


@contextlib.contextmanager
def broken(objects):
    """Yields an S3 server. What hangs ends with it."""
    with fake_s3.serving(objects) as s:
        s.over = threading.Event()
        try:
            yield s
        finally:
            s.over.set()


def set_trouble(s, fault, applies):
    def trouble(h, key, count):
        h.key = key
        return applies(h, key) and fault(h)

    s.trouble = trouble


def read_from_broken(t, name):
    directory, _ = sample("dcp_fsdp2")
    with broken({"ck/" + n: d for n, d in files_below(directory).items()}) as s:
        set_trouble(s, FAULTS[name], lambda h, key: key.endswith(".distcp"))
        need(b"b/ck" in ends(t, name, "validate", "--deep", "s3://b/ck", env=s.env()), name)
        ends(t, name, "cp", "s3://b/ck", t.at("copy-" + name), env=s.env())
        if name in ("short", "shifted"):
            return  # listings and descriptions are not ranges
        set_trouble(s, FAULTS[name], lambda h, key: True)
        ends(t, name, "inspect", "s3://b/ck", env=s.env())
        ends(t, name, "diff", "s3://b/ck", "s3://b/ck", env=s.env())


@test
def test_broken_servers_that_are_read(t):
    together(read_from_broken, t, FAULTS)
    need(not any(n.startswith(("copy", ".")) for n in os.listdir(t.directory)), os.listdir(t.directory))


def write_to_broken(t, name):
    source = t.at("large.safetensors")
    with broken({}) as s:
        for method in ("POST", "PUT"):
            set_trouble(s, FAULTS[name], lambda h, key: h.command in (method, "DELETE"))
            ends(t, f"{name} {method}", "cp", source, "s3://b/x.safetensors", env=s.env())
        set_trouble(s, FAULTS[name], lambda h, key: h.command != "GET" or "uploads" in h.path)
        ends(t, name, "convert", source, "s3://b/ck", "--to", "dcp", env=s.env())
        need(not s.objects, f"{name}: {sorted(s.objects)}")


@test
def test_broken_servers_that_are_written_to(t):
    large_file(t)
    together(write_to_broken, t, ("503", "500", "hang", "reset", "wait"))


@test
def test_broken_servers_of_urls(t):
    """Without listings there are many names to ask for."""
    over = threading.Event()
    for name in ("503", "hang", "reset"):
        class Handler(http_serving.Handler):
            def do_GET(self):
                if name == "503":
                    return self.answer(503)
                over.wait(LIMIT if name == "hang" else 0)
                self.close_connection = True
                return None

        server = http_serving.Server(Handler)
        with http_serving.running(server):
            for path in ("/run/", "/run/model.safetensors"):
                ends(t, name, "inspect", server.url + path, env={})
            if name == "hang":
                over.set()


@test
def test_broken_servers_are_told_from_slow_ones(t):
    """Bytes that arrive slowly are progress: a command may take far longer than it may lose."""
    directory, _ = sample("dcp_fsdp2")
    objects = {"ck/" + n: d for n, d in files_below(directory).items()}
    with broken(objects) as s:
        def slowly(h, key, count):
            if not key.endswith(".distcp"):
                return False
            data = objects[key]
            m = re.fullmatch(r"bytes=(\d+)-(\d+)", h.headers.get("Range", f"bytes=0-{len(data) - 1}"))
            first = int(m[1])
            some = data[first:int(m[2]) + 1]
            h.send_response(206 if "Range" in h.headers else 200)
            for k, v in {"Content-Length": len(some), "Content-Range": f"bytes {first}-{first + len(some) - 1}/{len(data)}", "ETag": etag(data)}.items():
                h.send_header(k, str(v))
            h.end_headers()
            for i in range(20):
                h.wfile.write(some[len(some) * i // 20:len(some) * (i + 1) // 20])
                time.sleep(0.5)
            return True

        s.trouble = slowly
        began = time.monotonic()
        t.run("cp", "s3://b/ck", t.at("slow"), env=s.env(TESSERA_RETRY_SECONDS="8"))
        need(files_below(t.at("slow")) == files_below(directory) and time.monotonic() - began > 8, "a slow server is waited for")
    p = t.run("inspect", "s3://b/ck", status=2, env=s.env(TESSERA_RETRY_SECONDS="soon"))
    need(b"TESSERA_RETRY_SECONDS is 'soon'" in p.stderr and b"1 to 3600" in p.stderr, p.stderr)
