"""What can go wrong between a client and S3, and how many requests each kind of trouble may cost."""
import email.utils
import re
import time

import http_serving
from checks import need, test
from fake_s3 import ID, SECRET, etag, serving
from test_s3 import tensor_file

KEY = "x.safetensors"
SOON = "8"  # TESSERA_RETRY_SECONDS where the trouble stays: enough for some repeated requests


def inspect(t, s, status=0, env=None):
    p = t.run("inspect", f"s3://b/{KEY}", "--json", "--hash", "sha256", status=status, env=env or s.env())
    everything = p.stdout + p.stderr
    for secret in (SECRET.encode(), b"Signature=", b"the-session-token"):
        need(secret not in everything, f"a secret is shown: {everything[-300:]}")
    return p.stderr.decode()


def gets(s):
    return sum(1 for method, key, _ in s.asked if key == KEY and method == "GET")


@test
def test_s3_trouble_that_passes(t):
    _, data = tensor_file(t, 3 << 20)

    def cut(handler):
        handler.send_response(206)
        handler.send_header("Content-Length", "65536")
        handler.send_header("Content-Range", f"bytes 0-65535/{len(data)}")
        handler.send_header("ETag", etag(data))
        handler.end_headers()
        handler.wfile.write(data[:1000])
        handler.close_connection = True
        return True

    def reset(handler):
        handler.close_connection = True
        handler.connection.shutdown(2)
        return True

    def short(handler):
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers["Range"]).groups())
        part = data[first:min(last, len(data) - 1) + 1][:100]
        return handler.answer(206, part, Content_Range=f"bytes {first}-{first + len(part) - 1}/{len(data)}", ETag=etag(data))

    for name, once in (("429", lambda h: h.error(429, "SlowDown", Retry_After=1)), ("503", lambda h: h.error(503, "SlowDown")), ("500", lambda h: h.error(500, "InternalError")),
                       ("date", lambda h: h.error(503, "SlowDown", Retry_After=email.utils.formatdate(time.time() + 2, usegmt=True))),
                       ("cut", cut), ("reset", reset), ("short", short)):
        with serving({KEY: data}) as s:
            inspect(t, s)
            usual = gets(s)
        started = time.monotonic()
        with serving({KEY: data}, lambda h, key, count: key == KEY and count == 2 and once(h)) as s:
            inspect(t, s)
            need(gets(s) == usual + 1, f"{name}: {gets(s)} requests instead of {usual + 1}")
        if name in ("429", "date"):
            need(time.monotonic() - started >= 0.9, f"{name}: Retry-After is not heeded")


@test
def test_s3_trouble_that_stays(t):
    _, data = tensor_file(t)
    with serving({KEY: data}, lambda h, key, count: key == KEY and h.error(403, "AccessDenied")) as s:
        need("AccessDenied" in inspect(t, s, 2) and gets(s) == 1, "403 is not tried again")
    with serving({KEY: data}, lambda h, key, count: key == KEY and h.error(503, "SlowDown")) as s:
        need("503" in inspect(t, s, 2, s.env(TESSERA_RETRY_SECONDS=SOON)) and 5 <= s.counts[KEY] <= 20, s.counts)
    with serving({KEY: data}, lambda h, key, count: h.error(403, "RequestTimeTooSkewed") if key else False) as s:
        need("clock" in inspect(t, s, 2), "clock skew")
    with serving({KEY: data}, lambda h, key, count: h.error(400, "ExpiredToken") if key else False, keys={ID: (SECRET, "the-session-token")}) as s:
        need("expired" in inspect(t, s, 2, s.env(AWS_SESSION_TOKEN="the-session-token")), "expired credentials")
    for where in ("object", "listing"):
        with serving({KEY: data, "d/" + KEY: data}, lambda h, key, count: (key == KEY) == (where == "object") and h.error(200, "InternalError")) as s:
            url = f"s3://b/{KEY}" if where == "object" else "s3://b/d"
            p = t.run("inspect", url, status=2, env=s.env(TESSERA_RETRY_SECONDS=SOON))
            need(SECRET.encode() not in p.stderr, p.stderr)
    with serving({KEY: data}, lambda h, key, count: not key and h.answer(200, b"<ListBucketResult><Contents><Key>x</Key></Contents>")) as s:
        need("without a name or a size" in t.run("inspect", "s3://b/d", status=2, env=s.env()).stderr.decode(), "an item without a size")


@test
def test_s3_trouble_an_object_that_changes(t):
    _, data = tensor_file(t, 3 << 20)
    def change(handler, key, count):
        if key == KEY and count == 4:
            handler.server.objects[KEY] = bytes(len(data))
        return False

    with serving({KEY: data}, change) as s:
        p = t.run("convert", f"s3://b/{KEY}", t.at("out.pt"), "--to", "torch", status=2, env=s.env())
        need(b"changed while it was read" in p.stderr, p.stderr)


@test
def test_s3_trouble_a_wrong_region(t):
    _, data = tensor_file(t)
    with serving({KEY: data}, region="ap-other-2") as s:
        inspect(t, s)
    with serving({KEY: data}, lambda h, key, count: "/eu-test-1/" in h.headers["Authorization"] and h.answer(301, x_amz_bucket_region="ap-other-2", Location="http://127.0.0.1:1/"),
                 region="ap-other-2") as s:
        inspect(t, s)
        need(sum("/eu-test-1/" in h["Authorization"] for _, _, h in s.asked) == 1, "the region that was found is kept")


@test
def test_s3_trouble_a_redirect_gets_no_secret(t):
    _, data = tensor_file(t)
    seen = []

    class Other(http_serving.Handler):
        def do_GET(self):
            seen.append(dict(self.headers))
            self.answer(403)

    other = http_serving.Server(Other)
    where = f"{other.url}/elsewhere"
    with http_serving.running(other), serving({KEY: data}, lambda h, key, count: h.answer(307, Location=where), keys={ID: (SECRET, "the-session-token")}) as s:
        inspect(t, s, 2, s.env(AWS_SESSION_TOKEN="the-session-token"))
    need(seen and not any(k.lower() in ("authorization", "x-amz-security-token", "x-amz-content-sha256") for h in seen for k in h), seen)
