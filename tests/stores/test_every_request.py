"""Every kind of trouble at every request of a command in turn. The command must succeed in spite of it or end with a clear
message. Nothing unfinished may become visible, and no secret may be shown or sent to another host."""
import concurrent.futures
import json
import os
import shutil
import urllib.parse

import http_serving
from checks import need, test
from fake_s3 import ID, SECRET, serving
from harness import sample
from test_s3 import files_below, st_write

FULL = bool(os.environ.get("TSR_TEST_FULL"))  # otherwise every kind at every second request, a different half for each kind
TOKEN = "the-session-token"
SECRETS = (SECRET.encode(), TOKEN.encode(), b"Signature=")
PREFIX = "ck/"


class Elsewhere(http_serving.Handler):
    """Another host. It keeps a record of the requests that are sent to it."""

    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server.lock:
            self.server.asked.append((self.command, self.path, dict(self.headers)))
        return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    do_PUT = do_POST = do_DELETE = do_GET


def reset(h):
    h.close_connection = True
    h.connection.shutdown(2)
    return True


def half(h):
    """Answers with fewer bytes than the header promises. Where there is no object or listing to answer with, the connection
    is reset."""
    if h.command != "GET" or "list-type" not in h.path and urllib.parse.unquote(h.path)[len("/b/"):] not in h.server.objects:
        return reset(h)
    h.send_response(206 if "Range" in h.headers else 200)
    h.send_header("Content-Length", "65536")
    h.send_header("Content-Range", "bytes 0-65535/65536")
    h.end_headers()
    h.wfile.write(b"half")
    h.close_connection = True
    return True


def other_region(h):
    h.server.region = "us-other-2"  # This holds for all later requests.
    return h.error(400, "AuthorizationHeaderMalformed", "<Region>us-other-2</Region>")


# PASSING is trouble after which the command must succeed, STAYING is trouble after which it may fail. Each entry has the
# answer and whether it is given from that request on (True) or only once (False). An entry of STAYING also has the text that
# the message must contain.
PASSING = {
    "429": (lambda h: h.error(429, "SlowDown", Retry_After=0), False),
    "500": (lambda h: h.error(500, "InternalError", Retry_After=0), False),
    "503": (lambda h: h.error(503, "SlowDown", Retry_After=0), False),
    "reset": (reset, False),
    "half": (half, False),
    "another region": (other_region, False),
}
STAYING = {
    "denied": (lambda h: h.error(403, "AccessDenied"), False, b"AccessDenied"),
    "clock": (lambda h: h.error(403, "RequestTimeTooSkewed"), True, b"clock"),
    "expired": (lambda h: h.error(400, "ExpiredToken"), True, b"expired"),
    "error in a good answer": (lambda h: h.error(200, "InternalError"), True, b""),
    "redirect": (lambda h: h.answer(307, Location=h.server.elsewhere + h.path), False, b""),
}


def at(index, what, stays):
    """Returns a function that makes trouble at request number `index`, counted from 0, and if `stays` also at every later
    request."""
    seen = [-1]

    def trouble(handler, *_):
        with handler.server.lock:
            seen[0] += 1
            number = seen[0]
        return (number >= index if stays else number == index) and what(handler)
    return trouble


def small(t):
    """A checkpoint of one file that is uploaded in two parts, files that are uploaded in one part, and a marker."""
    directory = t.at("source")
    if not os.path.exists(directory):
        os.mkdir(directory)
        st_write(os.path.join(directory, "a.safetensors"), {"a": ("F32", [2304 << 10], os.urandom(9 << 20)), "b": ("F32", [2], bytes(8))})
        for name, data in files_below(sample("dcp_fsdp2")[0]).items():
            with open(os.path.join(directory, name), "wb") as f:
                f.write(data)
    return directory


def jobs(t):
    """Returns {name: (objects that are there before, arguments without the destination, whether the destination is in the
    store)}. The last is None if there is no destination."""
    objects = {PREFIX + k: v for k, v in files_below(small(t)).items()}
    dcp = {k: v for k, v in objects.items() if not k.endswith(".safetensors")}
    return {
        "inspect": (dcp, ("inspect", "s3://b/ck", "--json", "--hash", "sha256"), None),
        "convert from": (dcp, ("convert", "s3://b/ck", "--to", "torch"), False),
        "cp from": (objects, ("cp", "s3://b/ck"), False),
        "cp to": ({}, ("cp", small(t)), True),
        "convert to": ({}, ("convert", os.path.join(small(t), "a.safetensors"), "--to", "dcp"), True),
        "resume to": ({}, ("cp", small(t), "--resume"), True),
    }


def destination(t, name, is_remote):
    return [] if is_remote is None else ["s3://b/out" if is_remote else t.at(name)]


def outcome(t, s, name, is_remote, p):
    """Returns what a run has made visible."""
    if is_remote is None:
        return p.stdout
    if is_remote:
        return {k: v for k, v in s.objects.items() if k.startswith("out")}
    if not os.path.exists(t.at(name)):
        return {}
    return files_below(t.at(name)) if os.path.isdir(t.at(name)) else {"": next(iter(files_below(t.at(name)).values()))}


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)


def run(t, job, name, elsewhere, trouble, **env):
    before, args, is_remote = job
    with serving(dict(before), trouble, keys={ID: (SECRET, TOKEN)}) as s:
        s.elsewhere = elsewhere.url
        p = t.run(*args[:2], *destination(t, name, is_remote), *args[2:], status=(0, 2), env=s.env(AWS_SESSION_TOKEN=TOKEN, **env))
        made, uploads, count = outcome(t, s, name, is_remote, p), dict(s.uploads), len(s.asked)
    if is_remote is False:
        remove(t.at(name))
    need(not any(secret in p.stdout + p.stderr for secret in SECRETS), f"{name}: a secret is shown: {p.stderr[-300:]}")
    return p, made, uploads, count


def is_whole_or_hidden(made, wanted):
    """Whether every byte that is there is right, and a marker is there only if everything else is."""
    if isinstance(wanted, bytes):
        return True
    marked = any(k.endswith(".metadata") for k in made)
    return all(wanted.get(k) == v for k, v in made.items()) and (not marked or made == wanted)


def check_one(t, elsewhere, job, wanted, case):
    name, kind, index = case
    what, stays, text = (*PASSING[kind], None) if kind in PASSING else STAYING[kind]
    # Where requests are repeated because of it, nothing is gained by doing so for as long as a command usually does. Elsewhere a server that is
    # slow because the machine is busy must not be taken for one that stopped answering.
    soon = {"TESSERA_RETRY_SECONDS": "4"} if stays and not text else {}
    p, made, uploads, _ = run(t, job, f"{name}-{kind}-{index}".replace(" ", "-"), elsewhere, at(index, what, stays), **soon)
    need(is_whole_or_hidden(made, wanted), f"{case}: {sorted(made)}")
    if p.returncode:
        need(kind not in PASSING, f"{case}: {p.stderr.decode()}")
        need(len(p.stderr) > 20 and text in p.stderr, f"{case}: {p.stderr.decode()}")
        need(isinstance(made, bytes) or not made or stays or "resume" in name, f"{case} leaves {sorted(made)}: {p.stderr.decode()}")
    elif kind in PASSING or made != wanted:  # inspect reports an object that cannot be read as a finding.
        need(made == wanted or (name == "inspect" and kind in STAYING and json.loads(made)["findings"] and text in made), f"{case}: another outcome, {p.stderr.decode()}")
    need(stays or not uploads or "resume" in name, f"{case} leaves {uploads.keys()}")


@test
def test_every_trouble_at_every_request(t):
    elsewhere = http_serving.Server(Elsewhere)
    total = 0
    with http_serving.running(elsewhere), concurrent.futures.ThreadPoolExecutor(12) as pool:
        for name, job in jobs(t).items():
            p, wanted, _, count = run(t, job, name.replace(" ", "-"), elsewhere, lambda *_: False)
            need(p.returncode == 0 and count > 2, f"{name}: {p.stderr}")
            kinds = (*PASSING, *STAYING)
            cases = [(name, kinds[k], i) for k in range(len(kinds)) for i in range(count) if FULL or (i + k) % 2 == 0]
            done = [pool.submit(check_one, t, elsewhere, job, wanted, case) for case in cases]
            failed = [str(e) for e in (d.exception() for d in done) if e]
            need(not failed, f"{len(failed)} of {len(cases)}: " + "\n  ".join(failed[:8]))
            total += len(cases)
        for command, path, headers in elsewhere.asked:
            shown = f"{path} {headers}".encode()
            need(not any(secret in shown for secret in SECRETS) and "Authorization" not in headers, f"sent elsewhere: {command} {shown}")
        need(total > (300 if FULL else 150), f"only {total} cases")
