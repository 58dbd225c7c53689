"""Reads gs:// from gcp-storage-emulator, and from servers of our own for what the emulator lacks: tokens, generations, HMAC
keys and the metadata server."""
import contextlib
import json
import re
import struct
import urllib.parse
import urllib.request

import fake_s3
import http_serving
import servers
from checks import need, test
from test_s3 import compare_samples, tensor_file

TOKEN = "ya29.tokenOfTheTests"


@test
def test_gcs_emulator(t):
    with servers.gcs_emulator() as url:
        def call(path, data, kind):
            request = urllib.request.Request(url + path, data=data, headers={"Content-Type": kind}, method="POST")
            urllib.request.urlopen(request, timeout=20).read()

        call("/storage/v1/b", json.dumps({"name": "bucket"}).encode(), "application/json")
        put = lambda name, data: call("/upload/storage/v1/b/bucket/o?uploadType=media&name=" + urllib.parse.quote(name, safe=""), data, "application/octet-stream")
        compare_samples(t, put, "gs://bucket", {"STORAGE_EMULATOR_HOST": url})


class Handler(http_serving.Handler):
    """The JSON API with tokens and generations, and a metadata server."""

    def do_GET(self):
        s = self.server
        path, _, query = self.path.partition("?")
        query = urllib.parse.parse_qs(query)
        s.asked.append((self.path, dict(self.headers)))
        if path == "/computeMetadata/v1/instance/service-accounts/default/token" and self.headers.get("Metadata-Flavor") == "Google":
            return self.answer(200, json.dumps({"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}).encode())
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer(401, json.dumps({"error": {"code": 401, "message": "Invalid Credentials " + str(self.headers), "errors": [{"reason": "authError"}]}}).encode())
        m = re.fullmatch(r"/storage/v1/b/bucket/o(?:/([^/]+))?", path)
        if not m:
            return self.answer(404, b"{}")
        describe = lambda name: {"name": name, "size": str(len(s.objects[name][1])), "generation": str(s.objects[name][0])}
        if not m[1]:
            names = sorted(n for n in s.objects if n.startswith(query.get("prefix", [""])[0]))
            start = int(query.get("pageToken", ["p0"])[0][1:])
            page = {"items": [describe(n) for n in names[start:start + 2]], **({"nextPageToken": f"p{start + 2}"} if start + 2 < len(names) else {})}
            return self.answer(200, json.dumps(page).encode())
        name = urllib.parse.unquote(m[1])
        if name not in s.objects:
            return self.answer(404, b'{"error":{"errors":[{"reason":"notFound"}]}}')
        if query.get("alt") != ["media"]:
            return self.answer(200, json.dumps(describe(name)).encode())
        generation, data = s.objects[name]
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        part = data[first:last + 1]
        self.answer(206, part, Content_Range=f"bytes {first}-{first + len(part) - 1}/{len(data)}", ETag='"another"', x_goog_generation=generation)
        if s.changes:
            s.objects[name] = (generation + 1, data)
        return None


@contextlib.contextmanager
def serving(objects, changes=False):
    server = http_serving.Server(Handler)
    server.objects, server.changes = objects, changes
    with http_serving.running(server):
        yield server


@test
def test_gcs_tokens_and_generations(t):
    _, data = tensor_file(t, 1 << 20)
    objects = {f"a b/ü?#/{i}.safetensors": (i + 1, data) for i in range(5)}
    with serving(dict(objects)) as s:
        host = s.url.removeprefix("http://")
        for env in ({"GOOGLE_OAUTH_ACCESS_TOKEN": TOKEN, "STORAGE_EMULATOR_HOST": host}, {"CLOUDSDK_AUTH_ACCESS_TOKEN": TOKEN, "STORAGE_EMULATOR_HOST": s.url + "/"},
                    {"GCE_METADATA_HOST": host, "STORAGE_EMULATOR_HOST": host}):
            s.asked.clear()
            t.json("inspect", "gs://bucket/a b/ü?#/3.safetensors", "--json", env=env)
            need(len(s.asked) == 2 + ("GCE_METADATA_HOST" in env), [p for p, _ in s.asked])
        p = t.run("inspect", "gs://bucket/a b/ü?#", "--json", status=(0, 2), env=env)
        need(sum("pageToken" in p for p, _ in s.asked) == 2, "three pages of two")
        p = t.run("inspect", "gs://bucket/x.pt", status=2, env={"GOOGLE_OAUTH_ACCESS_TOKEN": "wrong-token", "STORAGE_EMULATOR_HOST": host})
        need(b"401 (authError)" in p.stderr and b"wrong-token" not in p.stderr, p.stderr)
        p = t.run("inspect", "gs://bucket/x", status=2, env={"GOOGLE_APPLICATION_CREDENTIALS": "/x.json", "STORAGE_EMULATOR_HOST": host})
        need(b"GOOGLE_APPLICATION_CREDENTIALS" in p.stderr, p.stderr)
    with serving(dict(objects), changes=True) as s:
        p = t.run("convert", "gs://bucket/a b/ü?#/3.safetensors", t.at("x.pt"), "--to", "torch", status=2, env={"GOOGLE_OAUTH_ACCESS_TOKEN": TOKEN, "STORAGE_EMULATOR_HOST": s.url})
        need(b"changed while it was read" in p.stderr, p.stderr)


@test
def test_a_single_object_is_quantized_as_its_directory_is(t):
    header = json.dumps({"m.weight": {"dtype": "F8_E4M3", "shape": [2, 2], "data_offsets": [0, 4]}}).encode()
    data = struct.pack("<Q", len(header)) + header + b"8@@8"
    with fake_s3.serving({"a ?#%+/x.safetensors": data, "a ?#%+/config.json": b'{"quantization_config": {}}', "plain/x.safetensors": data}, region="auto", keys={"GOOGID": ("hmac/Secret", None)}) as s:
        env = {"GOOGLE_HMAC_ACCESS_ID": "GOOGID", "GOOGLE_HMAC_SECRET": "hmac/Secret", "STORAGE_EMULATOR_HOST": s.url}
        for path, status in (("a ?#%+/x.safetensors", 2), ("a ?#%+", 2), ("plain/x.safetensors", 0)):
            p = t.run("convert", "gs://b/" + path, t.at("o.safetensors"), "--dtype", "bfloat16", "--overwrite", status=status, env=env)
            need(status == 0 or b"quantization_config" in p.stderr, p.stderr)


@test
def test_gcs_hmac_keys_use_the_xml_api(t):
    _, data = tensor_file(t)
    with fake_s3.serving({"a b/x.safetensors": data, "d/x.safetensors": data}, region="auto", keys={"GOOGID": ("hmac/Secret", None)}) as s:
        env = {"GOOGLE_HMAC_ACCESS_ID": "GOOGID", "GOOGLE_HMAC_SECRET": "hmac/Secret", "STORAGE_EMULATOR_HOST": s.url}
        for path in ("a b/x.safetensors", "d"):
            need(t.json("inspect", "gs://b/" + path, "--json", env=env)["path"] == "gs://b/" + path, path)
        p = t.run("inspect", "gs://b/d", status=2, env={**env, "GOOGLE_HMAC_SECRET": "hmac/Other"})
        need(b"gs://b" in p.stderr and b"hmac/" not in p.stderr, p.stderr)
