"""Checksums in requests and answers: a byte that is damaged on its way, in either direction, is noticed."""
import base64
import hashlib
import os
import re
import shutil
import subprocess
import threading
import urllib.parse

import boto3

import fake_s3
import http_serving
import proxy
import servers
from checks import need, test
from fake_s3 import etag, serving
from harness import sample, st_write
from test_gcs import TOKEN
from test_s3 import files_below
from test_write import BUCKET, large_file
from test_write_others import azurite_place, google, json_only

LARGE = "x.safetensors"


class Damage:
    """Changes one byte of the first `count` bodies that `chooses(handler, body, up)`."""

    def __init__(self, count, chooses):
        self.left, self.chooses, self.lock, self.done = count, chooses, threading.Lock(), 0

    def __call__(self, handler, body, up=True):
        with self.lock:
            if not self.left or not body or not self.chooses(handler, body, up):
                return body
            self.left, self.done = self.left - 1, self.done + 1
        return body[:len(body) // 2] + bytes([body[len(body) // 2] ^ 1]) + body[len(body) // 2 + 1:]


class Unsigned:
    """Takes what arrives at a server of our own for what was signed, so that only the checksums can notice that it is damaged."""

    def __init__(self, damage):
        self.damage = damage

    def __call__(self, handler, key, count):
        handler.body = self.damage(handler, handler.body)
        handler.is_damaged = lambda: False
        return False


def is_part(handler, body, up):
    return up and handler.command == "PUT" and "uploadId" in handler.path


def is_object(handler, body, up):
    return up and handler.command == "PUT" and "uploadId" not in handler.path


@test
def test_request_checksums_of_uploads_are_as_s3_wants_them(t):
    source = large_file(t)
    with serving({}) as s:
        t.run("cp", source, "s3://b/x.safetensors", env=s.env())
        t.run("convert", sample("dcp_fsdp2")[0], "s3://b/small", "--to", "dcp", env=s.env())
        need(s.summed == s.objects and len(s.summed) == 3, f"{s.summed.keys()} of {s.objects.keys()} have checksums")
        begun = next(h for m, k, h in s.asked if m == "POST" and k == LARGE)
        need(begun["x-amz-checksum-algorithm"] == "CRC32" and begun["x-amz-checksum-type"] == "FULL_OBJECT", begun)


@test
def test_request_checksums_when_required(t):
    source = large_file(t)
    with open(t.at("config"), "w") as f:
        f.write("[default]\nrequest_checksum_calculation = WHEN_REQUIRED\nresponse_checksum_validation = when_required\n")
    for more in ({"AWS_REQUEST_CHECKSUM_CALCULATION": "when_required", "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required"}, {"AWS_CONFIG_FILE": t.at("config")}):
        with serving({}) as s:
            t.run("cp", source, "s3://b/x.safetensors", env=s.env(**more))
            t.run("convert", sample("dcp_fsdp2")[0], "s3://b/small", "--to", "dcp", env=s.env(**more))
            sent = {n.lower() for _, _, h in s.asked for n in h if "checksum" in n.lower()}
            need(not sent and not s.summed, f"{more}: {sent}")
    with serving({}) as s:
        p = t.run("cp", source, "s3://b/x.safetensors", status=2, env=s.env(AWS_REQUEST_CHECKSUM_CALCULATION="never"))
        need(b"AWS_REQUEST_CHECKSUM_CALCULATION" in p.stderr and b"'never'" in p.stderr and b"when_required" in p.stderr, p.stderr)


@test
def test_request_checksums_refuse_damaged_uploads_to_s3(t):
    source = large_file(t)
    for chooses, command, key in ((is_part, ("cp", source, "s3://b/x.safetensors", "--no-verify"), LARGE),
                                  (is_object, ("convert", sample("dcp_fsdp2")[0], "s3://b/ck", "--to", "dcp"), "ck/__0_1.distcp")):
        with serving({}, Unsigned(Damage(1, chooses))) as s:
            p = t.run(*command, env=s.env())
            need(s.trouble.damage.done == 1 and s.objects and b"warning" not in p.stderr, p.stderr)
            need(s.summed == s.objects, f"{key}: damaged bytes were kept")
        with serving({}, Unsigned(Damage(1000, chooses))) as s:
            p = t.run(*command, status=2, env=s.env())
            need(b"BadDigest" in p.stderr and b"other bytes" in p.stderr, p.stderr)
            need(not s.objects and not s.uploads and s.trouble.damage.done < 20, f"{key}: {s.objects.keys()} {s.trouble.damage.done}")


def reads(t, source, url, env, damage):
    """Reads everything at `url` while one byte is damaged, once and for ever."""
    damage.left, damage.done = 1, 0
    need(t.json("diff", source, url, "--values", "--json", env=env)["same"] and damage.done == 1, f"{url}: one damaged answer")
    damage.left = 1000
    p = t.run("diff", source, url, "--values", status=2, env=env)
    need(b"the bytes that arrived have the" in p.stderr and damage.done < 100, f"{url}: {p.stderr} {damage.done}")


@test
def test_request_checksums_refuse_damaged_answers_of_moto(t):
    """boto3 writes; a proxy damages what moto answers."""
    source = sample("safetensors_model")[0]
    with servers.moto() as url, proxy.before(url) as s:
        client = boto3.client("s3", endpoint_url=url, aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        damage = s.damages = Damage(0, lambda h, body, up: not up and h.command == "GET" and h.path.endswith(LARGE) and len(body) > 1)
        env = {"AWS_ENDPOINT_URL": s.url, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}
        client.put_object(Bucket=BUCKET, Key=LARGE, Body=files_below(source)["model.safetensors"], ChecksumAlgorithm="CRC32")
        reads(t, source, f"s3://{BUCKET}/{LARGE}", env, damage)
        damage.left = 1
        p = t.run("diff", source, f"s3://{BUCKET}/{LARGE}", "--values", status=1, env={**env, "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required"})
        need(damage.left == 0 and b"arrived" not in p.stderr, "the answer is compared although that is switched off")


class Flip:
    """Changes a bit of the byte `at` in the answer that has the range `of` of an object. Keeps the ranges that were asked for, and counts the
    requests for its checksum."""

    def __init__(self, key=LARGE):
        self.key, self.of, self.at, self.ranges, self.heads, self.lock = key, None, None, [], 0, threading.Lock()

    def body(self, first, last, body):
        with self.lock:
            self.ranges.append((first, last))
        at = self.at - first if self.of == (first, last) else None
        return body if at is None else body[:at] + bytes([body[at] ^ 1]) + body[at + 1:]

    def __call__(self, handler, key, count):
        m = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
        if not key.endswith(self.key) or (handler.command == "GET" and not m):
            return False
        with self.lock:
            self.heads += handler.command == "HEAD"
        if handler.command != "GET" or m[1] == m[2]:
            return False
        data = handler.server.objects[key]
        first, last = int(m[1]), min(int(m[2]), len(data) - 1)
        return handler.answer(206, self.body(int(m[1]), int(m[2]), data[first:last + 1]), Content_Range=f"bytes {first}-{last}/{len(data)}", ETag=etag(data))


def alone(ranges):
    """The ranges with a byte that no other range has, and such a byte. Of bytes that come twice, those that come first are compared."""
    found = []
    for n, (first, last) in enumerate(ranges):
        at = first
        for begin, end in sorted(ranges[:n] + ranges[n + 1:]):
            at = end + 1 if begin <= at <= end else at
        if at <= last:
            found.append(((first, last), at))
    return found


def reads_in_ranges(t, url, env, flip):
    """No request is for the whole object, but all of its bytes are read, and summed up. A damaged byte may be one that is not used; then the result
    is right."""
    for command, made in ((("cp", url, t.at("copied")), "copied"), (("convert", url, t.at("made.pt"), "--to", "torch"), "made.pt"),
                          (("validate", "--deep", url), None)):
        lonely, right, noticed = [], None, 0
        for before in (None, 0, 3):  # which range is damaged, from the end: the first ones may be read only to recognize the file
            flip.of, flip.at = lonely[-1 - before] if lonely else (None, None)
            flip.ranges, flip.heads = [], 0
            p = subprocess.run([t.path, *command], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, env={**os.environ, **env})
            need(p.returncode in (0, 2), f"{command}: {p.returncode} {p.stderr}")
            result = p.stdout + b"".join(data for _, data in sorted(files_below(t.at(made)).items())) if made and p.returncode == 0 else p.stdout
            if before is None:
                lonely, right = alone(flip.ranges), result
                need(p.returncode == 0 and len(lonely) >= 10, f"{command}: {flip.ranges}: {p.stderr}")
            elif p.returncode == 0:
                need(result == right, f"{command}, byte {flip.at} of {flip.of}: damage was not noticed: {flip.ranges}")
            else:
                noticed += 1
                need(b"of the whole object" in p.stderr + p.stdout and url.encode() in p.stderr + p.stdout, f"{command}, byte {flip.at} of {flip.of}: {p.stderr}")
            if made and os.path.isdir(t.at(made)):
                shutil.rmtree(t.at(made))
            elif made and os.path.exists(t.at(made)):
                os.remove(t.at(made))
        need(noticed, f"{command}: no damaged range was noticed")


@test
def test_request_checksums_of_objects_that_arrive_in_ranges_from_s3(t):
    source = large_file(t)
    data = files_below(source)["large.safetensors"]
    for key in (LARGE, f"run/{LARGE}"):
        flip = Flip()
        with serving({key: data}, flip) as s:
            s.summed[key] = s.objects[key]
            reads_in_ranges(t, f"s3://b/{key.rpartition('/')[0] or key}", s.env(), flip)
            need(flip.heads == 1, f"{flip.heads} requests for one checksum")
            flip.heads = 0
            t.run("inspect", f"s3://b/{key}", env=s.env())
            need(flip.heads == 0, "a checksum is asked for although most of the object is not read")
            flip.of, flip.at = alone(flip.ranges)[1]
            t.run("validate", "--deep", f"s3://b/{key}", env=s.env(AWS_RESPONSE_CHECKSUM_VALIDATION="when_required"))
            need(flip.heads == 0, "a checksum is asked for although that is switched off")


@test
def test_request_checksums_of_other_kinds_from_s3(t):
    """CRC-32C and CRC-64/NVME, with which other programs upload, of an object that arrives whole and of one that arrives in ranges."""
    need(fake_s3.crc64nvme(b"123456789") == "rosUhgp5mIg=", "the check value of CRC-64/NVME")
    small = sample("safetensors_model")[0]
    st_write(t.at("medium.safetensors"), {n: ("F32", [512 << 10], os.urandom(2 << 20)) for n in "ab"})
    with open(t.at("medium.safetensors"), "rb") as f:
        medium = f.read()
    for algorithm in ("CRC32C", "CRC64NVME"):
        with serving({LARGE: files_below(small)["model.safetensors"]}) as behind, proxy.before(behind.url) as s:
            behind.algorithm, behind.summed[LARGE] = algorithm, behind.objects[LARGE]
            s.damages = Damage(0, lambda h, body, up: not up and h.command == "GET" and h.path.endswith(LARGE) and len(body) > 1)
            reads(t, small, f"s3://b/{LARGE}", behind.env(AWS_ENDPOINT_URL=s.url), s.damages)
        flip, key = Flip(), f"run/{LARGE}"  # a listing states the algorithm
        with serving({key: medium}, flip) as s:
            s.algorithm, s.summed[key] = algorithm, s.objects[key]
            t.run("convert", "s3://b/run", t.at(algorithm), "--to", "torch", env=s.env())
            lonely = alone(flip.ranges)
            need(flip.heads == 1 and len(lonely) > 1, f"{algorithm}: {flip.heads} {flip.ranges}")
            flip.of, flip.at = lonely[1]
            p = t.run("convert", "s3://b/run", t.at(algorithm), "--to", "torch", "--overwrite", status=2, env=s.env())
            need(b"of the whole object" in p.stderr, f"{algorithm}: {p.stderr}")


@test
def test_request_checksums_that_are_composed_are_not_compared(t):
    """A checksum of the checksums of parts says nothing about the bytes, and some servers do not say which of the two they state."""
    small, large = sample("safetensors_model")[0], large_file(t)
    with serving({LARGE: files_below(small)["model.safetensors"]}) as s:
        s.checksum_type, s.summed[LARGE] = "COMPOSITE", s.objects[LARGE]
        need(t.json("diff", small, f"s3://b/{LARGE}", "--values", "--json", env=s.env())["same"], "other values")
    for kind in ("COMPOSITE", None):
        flip = Flip()
        with serving({LARGE: files_below(large)["large.safetensors"]}, flip) as s:
            s.checksum_type, s.summed[LARGE] = kind, s.objects[LARGE]
            t.run("validate", "--deep", f"s3://b/{LARGE}", env=s.env())
            need(flip.heads == 1, f"{kind}: {flip.heads} requests for a checksum")


@test
def test_request_checksums_of_objects_that_arrive_in_ranges_from_google(t):
    source = large_file(t)
    data = files_below(source)["large.safetensors"]
    server = google({LARGE: data})
    between_ranges = Flip()

    def flips(handler, body, up):
        m = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
        if up or handler.command != "GET" or not m or "alt=media" not in handler.path or len(body) < 2:
            return body
        return between_ranges.body(int(m[1]), int(m[2]), body)

    with http_serving.running(server) as s, proxy.before(s.url) as between:
        between.damages = flips
        reads_in_ranges(t, f"gs://b/{LARGE}", {"GOOGLE_OAUTH_ACCESS_TOKEN": TOKEN, "STORAGE_EMULATOR_HOST": between.url}, between_ranges)


class FlipLater(Flip):
    """Changes a bit of the byte `at` in the answers for all ranges that have it but the first."""

    def __init__(self, key, at):
        super().__init__(key)
        self.at, self.seen = at, []

    def body(self, first, last, body):
        at = self.at - first
        if not first <= self.at <= last:
            return body
        with self.lock:
            self.seen += [(first, last)] if (first, last) not in self.seen else []  # a request may be repeated
        return body if self.seen[0] == (first, last) else body[:at] + bytes([body[at] ^ 1]) + body[at + 1:]


@test
def test_request_checksums_cover_what_follows_a_header(t):
    """A header is read in a block that has bytes of the first tensor, too. They are not fetched again with the rest of the tensor, which nothing
    would compare. The same is so of the directory at the end of an archive."""
    source = large_file(t)
    t.run("convert", source, t.at("large.pt"), "--to", "torch", "-q")
    for path, at in ((source, 40 << 10), (t.at("large.pt"), 40 << 10), (t.at("large.pt"), os.path.getsize(t.at("large.pt")) - (20 << 10))):
        key = os.path.basename(path)
        with open(path, "rb") as f:
            data = f.read()
        for command in (("validate", "--deep", f"s3://b/{key}"), ("convert", f"s3://b/{key}", t.at("made"), "--to", "dcp", "--overwrite", "-q")):
            flip = FlipLater(key, at)
            with serving({key: data}, flip) as s:
                s.summed[key] = s.objects[key]
                t.run(*command, env=s.env(), status=(0, 1, 2))
            need(len(flip.seen) == 1, f"{command}: byte {at} was fetched with {flip.seen}")
        t.run("diff", path, t.at("made"), "--values", "-q")


@test
def test_request_checksums_of_azure(t):
    source, small = large_file(t), sample("dcp_fsdp2")[0]
    with azurite_place() as place:
        behind = place.env["AZURE_STORAGE_SERVICE_ENDPOINT"]
        root, _, account = behind.rstrip("/").rpartition("/")
        with proxy.before(root) as s:
            env = {**place.env, "AZURE_STORAGE_SERVICE_ENDPOINT": f"{s.url}/{account}"}
            for chooses, command, key in ((lambda h, body, up: up and h.command == "PUT" and "comp=block&" in h.path + "&" , ("cp", source, f"{place.url}/x.safetensors"), LARGE),
                                          (lambda h, body, up: up and h.command == "PUT" and "comp=" not in h.path, ("convert", small, f"{place.url}/ck", "--to", "dcp"), "ck")):
                s.damages = Damage(1000, chooses)
                p = t.run(*command, status=2, env=env)
                need(b"other bytes" in p.stderr and not place.below(key), f"{key}: {p.stderr}")
                s.damages = Damage(1, chooses)
                t.run(*command, env=env)
                need(s.damages.done == 1, key)
                t.json("diff", source if key == LARGE else small, f"{place.url}/{key}", "--values", "--json", env=place.env)
            s.damages = Damage(0, lambda h, body, up: not up and h.command == "GET" and LARGE in h.path and len(body) > 1)
            reads(t, source, f"{place.url}/x.safetensors", env, s.damages)


@test
def test_request_checksums_of_google(t):
    source, small = large_file(t), sample("dcp_fsdp2")[0]
    for chooses, command in ((is_part, ("cp", source, "gs://b/x.safetensors", "--no-verify")), (is_object, ("convert", small, "gs://b/ck", "--to", "dcp"))):
        for count, status in ((1, 0), (1000, 2)):
            server = google({})
            server.trouble = Unsigned(Damage(count, chooses))
            with http_serving.running(server) as s:
                p = t.run(*command, status=status, env={"GOOGLE_OAUTH_ACCESS_TOKEN": TOKEN, "STORAGE_EMULATOR_HOST": s.url})
                need(b"BadDigest" in p.stderr if status else s.trouble.damage.done == 1, f"{command}: {p.stderr}")
                need(not s.objects or not status, "damaged bytes were kept")
                hashes = [h["x-goog-hash"] for m, _, h in s.asked if m == "PUT"]
                need(hashes and all(h.startswith("crc32c=") for h in hashes), hashes)
    with http_serving.running(google({LARGE: files_below(sample("safetensors_model")[0])["model.safetensors"]})) as s, proxy.before(s.url) as between:
        between.damages = Damage(0, lambda h, body, up: not up and h.command == "GET" and "alt=media" in h.path and len(body) > 1)
        reads(t, sample("safetensors_model")[0], f"gs://b/{LARGE}", {"GOOGLE_OAUTH_ACCESS_TOKEN": TOKEN, "STORAGE_EMULATOR_HOST": between.url}, between.damages)


@test
def test_request_checksums_of_an_object_with_md5_alone(t):
    """Google keeps no CRC-32C of some objects, and servers other than Azure's state no Content-MD5 with a range. The MD5 of the object is compared with
    an answer that has all of it."""
    source = sample("safetensors_model")[0]
    data = files_below(source)["model.safetensors"]

    def damage(mark):
        return Damage(0, lambda h, body, up: not up and h.command == "GET" and mark in h.path and len(body) > 1)

    stated = []

    def only_md5(headers):
        stated.extend(n for n in headers if n.lower() == "x-goog-hash")
        return {n: "md5=" + base64.b64encode(hashlib.md5(data).digest()).decode() if n.lower() == "x-goog-hash" else v for n, v in headers.items()}

    with http_serving.running(google({LARGE: data})) as s, proxy.before(s.url) as between:
        between.damages, between.states = damage("alt=media"), only_md5
        reads(t, source, f"gs://b/{LARGE}", {"GOOGLE_OAUTH_ACCESS_TOKEN": TOKEN, "STORAGE_EMULATOR_HOST": between.url}, between.damages)
    need(stated, "Google stated no checksum that could be replaced")

    def only_of_the_object(headers):
        stated.extend(n for n in headers if n.lower() == "x-ms-blob-content-md5")
        return {n: v for n, v in headers.items() if n.lower() != "content-md5"}

    stated.clear()
    with azurite_place() as place:
        place.put(LARGE, data)
        root, _, account = place.env["AZURE_STORAGE_SERVICE_ENDPOINT"].rstrip("/").rpartition("/")
        with proxy.before(root) as between:
            between.damages, between.states = damage(LARGE), only_of_the_object
            reads(t, source, f"{place.url}/{LARGE}", {**place.env, "AZURE_STORAGE_SERVICE_ENDPOINT": f"{between.url}/{account}"}, between.damages)
    need(stated, "azurite stated no checksum of the object")


@test
def test_request_checksums_of_googles_json_api(t):
    with json_only(501) as (s, env):
        t.run("convert", sample("dcp_fsdp2")[0], "gs://b/ck", "--to", "dcp", env=env)
        sent = {urllib.parse.parse_qs(k)["name"][0]: h.get("x-goog-hash") for m, k, h in s.asked if m == "POST" and "uploadType=media" in k}
        wanted = {k: "crc32c=" + fake_s3.crc32c(v) for k, v in s.objects.items()}
        need(sent == wanted and len(sent) == 2, f"{sent} instead of {wanted}")


@test
def test_request_checksums_that_a_server_refuses_are_left_out(t):
    """One that does not know a header gets the request once more without it. Other refusals stay refusals."""
    source = large_file(t)
    for status, code in ((400, "InvalidArgument"), (501, "NotImplemented")):
        def refuses(handler, key, count):
            return any("checksum" in name.lower() for name in handler.headers) and handler.error(status, code)

        with serving({}, refuses) as s:
            p = t.run("cp", source, "s3://b/x.safetensors", "--no-verify", env=s.env())
            need(p.stderr.count(b"refuses checksums") == 1 and b"s3://b" in p.stderr, p.stderr)
            need(s.objects[LARGE] == files_below(source)["large.safetensors"] and not s.summed and not s.uploads, "other bytes")
            p = t.run("convert", "s3://b/x.safetensors", "s3://b/ck", "--to", "dcp", env=s.env())
            need(p.stderr.count(b"refuses checksums") == 1, p.stderr)
            need(t.json("diff", source, "s3://b/ck", "--values", "--json", env=s.env())["same"], "other values")
        # One that knows them where it gives objects, and not where it takes them.
        with serving({}, lambda h, key, count: "x-amz-checksum-algorithm" in h.headers and h.error(status, code)) as s:
            s.objects[LARGE] = b"old"
            p = t.run("cp", source, "s3://b/x.safetensors", "--no-verify", "--overwrite", env=s.env())
            need(p.stderr.count(b"refuses checksums") == 1 and s.objects[LARGE] == files_below(source)["large.safetensors"], p.stderr)
        with serving({}, lambda h, key, count: h.command == "PUT" and h.error(status, code)) as s:
            p = t.run("convert", sample("dcp_fsdp2")[0], "s3://b/ck", "--to", "dcp", status=2, env=s.env())
            need(code.encode() in p.stderr and b"refuses checksums" not in p.stderr, p.stderr)
        # This one has accepted the checksums of the data files. When it refuses the metadata, checksums are not the reason.
        with serving({}, lambda h, key, count: h.command == "PUT" and key.endswith(".metadata") and "x-amz-checksum-crc32" in h.headers and h.error(status, code)) as s:
            p = t.run("convert", sample("dcp_fsdp2")[0], "s3://b/ck", "--to", "dcp", status=2, env=s.env())
            need(code.encode() in p.stderr and b"refuses checksums" not in p.stderr, p.stderr)


@test
def test_request_checksums_when_an_upload_is_resumed(t):
    """The parts of an earlier run have checksums if its upload declared them; then all must be in the request that completes it."""
    source = large_file(t)
    data = files_below(source)["large.safetensors"]
    part = 8 << 20
    for declared in (True, False):
        with serving({}) as s:
            s.uploads["old"] = (LARGE, {1: data[:part], 3: data[2 * part:3 * part]})
            s.declared.update(["old"] if declared else [])
            p = t.run("cp", source, "s3://b/x.safetensors", "--resume", "--no-verify", env=s.env())
            need(s.objects[LARGE] == data and not s.uploads and (LARGE in s.summed) == declared, f"{declared}: {p.stderr}")
            need(sum(o == "UploadPart" for o, _ in s.done) == -(-len(data) // part) - 2, s.done)
            need(declared or p.stderr.count(b"refuses checksums") <= 1, p.stderr)
