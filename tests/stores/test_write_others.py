"""Checkpoints that are written to the stores of Google and Azure. Google's is a server of our own that accepts what Google
documents, Azure's is azurite."""
import contextlib
import datetime
import json
import re
import urllib.parse
import urllib.request

import fake_s3
import http_serving
import servers
from checks import Skip, need, test
from test_azure import ACCOUNT, KEY
from test_gcs import TOKEN
from test_s3 import files_below
from test_write import Place, compare_all, large_file, overwrite_all


class Google(fake_s3.Handler):
    """Both APIs of the bucket "b", with a token: JSON for reads and XML for writes. The generation of an object depends only
    on its content."""

    def serve(self, path, key, query, count):
        if not path.startswith("/storage/v1/b/b/o"):
            return super().serve(path, key, query, count)
        s, name = self.server, urllib.parse.unquote(path[len("/storage/v1/b/b/o/"):])
        if s.trouble(self, name, count):
            return None
        if self.refusal():
            return self.answer(401)
        describe = lambda n: {"name": n, "size": str(len(s.objects[n])), "generation": str(int(fake_s3.etag(s.objects[n])[1:15], 16))}
        if not name:
            names = [n for n in sorted(s.objects) if n.startswith(query["prefix"][0]) and ("delimiter" not in query or "/" not in n[len(query["prefix"][0]):])]
            return self.answer(200, json.dumps({"items": [describe(n) for n in names]}).encode())
        if name not in s.objects:
            return self.answer(404, b"{}")
        if "alt" not in query:
            return self.answer(200, json.dumps(describe(name)).encode())
        return self.give(s.objects[name], x_goog_generation=describe(name)["generation"], x_goog_hash="crc32c=" + fake_s3.crc32c(s.objects[name]))

    def is_damaged(self):
        return False

    def refusal(self):
        return None if self.headers.get("Authorization") == f"Bearer {TOKEN}" else (401, "AuthenticationRequired")


def google(objects):
    server = fake_s3.Server(objects)
    server.condition, server.RequestHandlerClass = ("x-goog-if-generation-match", "0"), Google
    return server


def place_of(server, env):
    return Place("gs://b", env, lambda prefix: {k: v for k, v in server.objects.items() if k.startswith(prefix)}, server.objects.__setitem__)


@test
def test_write_to_google_with_a_token(t):
    with http_serving.running(google({})) as s:
        place = place_of(s, {"GOOGLE_OAUTH_ACCESS_TOKEN": TOKEN, "STORAGE_EMULATOR_HOST": s.url})
        compare_all(t, place)
        need(not s.uploads, s.uploads)
        puts = [h for m, k, h in s.asked if m == "PUT" and "uploadId" not in k and "x-goog-if-generation-match" in h]
        need(len(puts) >= 5 and not any("If-None-Match" in h for _, _, h in s.asked), "the store's own precondition")
        s.objects.clear()
        overwrite_all(t, place)


@test
def test_write_to_google_with_a_key(t):
    with fake_s3.serving({}, region="auto", keys={"GOOGID": ("hmac/Secret", None)}) as s:
        s.condition = "x-goog-if-generation-match", "0"
        place = place_of(s, {"GOOGLE_HMAC_ACCESS_ID": "GOOGID", "GOOGLE_HMAC_SECRET": "hmac/Secret", "STORAGE_EMULATOR_HOST": s.url})
        compare_all(t, place)
        need(not s.uploads, s.uploads)


@test
def test_write_to_google_looks_before_parts_become_an_object(t):
    """Where there are no preconditions, an object that another program makes at the last moment is found by looking."""
    with http_serving.running(google({})) as s:
        seen = []

        def appear(h, key, count):
            if h.command == "GET" and key == "x.pt":
                seen.append(1)
                if len(seen) == 3:  # The client looks for the third time, right before the parts become an object.
                    s.objects["x.pt"] = b"another's"
            return False

        s.trouble = appear
        p = t.run("convert", large_file(t), "gs://b/x.pt", status=2, env={"GOOGLE_OAUTH_ACCESS_TOKEN": TOKEN, "STORAGE_EMULATOR_HOST": s.url})
        need(b"exists" in p.stderr and s.objects == {"x.pt": b"another's"} and not s.uploads, p.stderr)


@contextlib.contextmanager
def emulator_place():
    """An emulator of another project, which has the JSON API only."""
    with servers.gcs_emulator() as url:
        def call(method, path, data=None, kind="application/octet-stream"):
            request = urllib.request.Request(url + path, data=data, headers={"Content-Type": kind}, method=method)
            return urllib.request.urlopen(request, timeout=20).read()

        def read(prefix):
            found = json.loads(call("GET", "/storage/v1/b/b/o?" + urllib.parse.urlencode({"prefix": prefix})))
            return {i["name"]: call("GET", f"/storage/v1/b/b/o/{urllib.parse.quote(i['name'], safe='')}?alt=media") for i in found["items"]}

        def put(key, data):
            call("POST", f"/upload/storage/v1/b/b/o?uploadType=media&name={urllib.parse.quote(key, safe='')}", data)

        call("POST", "/storage/v1/b", b'{"name": "b"}', "application/json")
        yield Place("gs://b", {"STORAGE_EMULATOR_HOST": url}, read, put)


@test
def test_write_to_a_gcs_emulator(t):
    with emulator_place() as place:
        compare_all(t, place)
        overwrite_all(t, place)
        source = large_file(t)
        with open(t.at("plan.json"), "wb") as f:
            f.write(t.run("plan", source, "--mesh", "dp=2", "--placements", "shard(0)", "--to", "dcp", "--json").stdout)
        p = t.run("exec", t.at("plan.json"), place.url + "/parts", "--part", "1/2", status=2, env=place.env)
        need(b"write with a single process" in p.stderr and not place.read("parts/"), p.stderr)
        t.run("exec", t.at("plan.json"), place.url + "/parts", env=place.env)
        need(t.json("diff", source, place.url + "/parts", "--values", "--json", env=place.env)["same"], "other values")
        p = t.run("cp", source, place.url + "/resumed.safetensors", "--resume", env=place.env)
        need(place.read("resumed.safetensors") == {"resumed.safetensors": files_below(source)["large.safetensors"]}, p.stderr)


class JsonOnly(Google):
    """The JSON API alone. A resumable upload is at an address of another server, which must not get the token. `kept` is how
    many bytes of each of the next chunks are kept, last first, and `losses` the replies to chunks that get lost."""

    def serve(self, path, key, query, count):
        s = self.server
        one = {k: v[0] for k, v in query.items()}
        if path == "/upload/storage/v1/b/b/o" and self.command == "POST":
            name = one["name"]
            if self.refusal():
                return self.answer(401)
            if "ifGenerationMatch" in one and name in s.objects:
                return self.answer(412)
            if one["uploadType"] == "media":
                s.objects[name] = self.body
                return self.answer(200, b"{}")
            s.sessions[f"session-{len(s.sessions)}"] = [name, b""]
            return self.answer(200, Location=f"{s.elsewhere}/sessions/session-{len(s.sessions) - 1}")
        if path.startswith("/sessions/"):
            need("Authorization" not in self.headers, "the token is sent to another server")
            return self.resume(s.sessions[path.rpartition("/")[2]])
        if self.command == "DELETE" and path.startswith("/storage/v1/b/b/o/"):
            s.objects.pop(urllib.parse.unquote(path[len("/storage/v1/b/b/o/"):]), None)
            return self.answer(204)
        return super().serve(path, key, query, count) if path.startswith("/storage/v1/") else self.answer(s.unknown)

    def resume(self, session):
        s, (name, had) = self.server, session
        m = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)", self.headers["Content-Range"])
        s.chunks.append(self.headers["Content-Range"])
        total = int(m[3])
        if m[1]:
            need(int(m[1]) == len(had) and int(m[2]) + 1 - len(had) == len(self.body) and (int(m[2]) + 1 == total or len(self.body) % (256 << 10) == 0 or s.kept), m[0])
            session[1] = had = had + (self.body[:s.kept.pop()] if s.kept else self.body)
        if len(had) == total:
            s.objects[name] = had
        if s.losses and m[1]:
            s.losses.pop()
            self.close_connection = True
            return self.connection.shutdown(2)
        if len(had) == total:
            return self.answer(200, b"{}")
        return self.answer(308, **({"Range": f"bytes=0-{len(had) - 1}"} if had else {}))


@contextlib.contextmanager
def json_only(unknown):
    server, other = google({}), google({})
    shared = {"objects": {}, "sessions": {}, "chunks": [], "kept": [], "losses": [], "unknown": unknown, "elsewhere": other.url, "RequestHandlerClass": JsonOnly}
    for s in (server, other):
        s.__dict__.update(shared)
    with http_serving.running(server, other):
        yield server, {"GOOGLE_OAUTH_ACCESS_TOKEN": TOKEN, "STORAGE_EMULATOR_HOST": server.url}


@test
def test_write_to_google_with_resumable_uploads(t):
    source = large_file(t)
    wanted = files_below(source)["large.safetensors"]
    for unknown, kept, losses in ((501, [], 0), (404, [1 << 20, 3 << 20], 0), (405, [], 3), (400, [256 << 10, 0, 5 << 20], 1)):
        with json_only(unknown) as (s, env):
            s.kept += kept
            s.losses += [1] * losses
            t.run("cp", source, "gs://b/x.safetensors", env=env)
            need(s.objects == {"x.safetensors": wanted} and len(s.sessions) == 1, f"{unknown}: {[(k, len(v)) for k, v in s.objects.items()]}")
            need(len(s.chunks) == -(-len(wanted) // (8 << 20)) + len(kept) + losses, s.chunks)
            p = t.run("cp", source, "gs://b/x.safetensors", status=2, env=env)
            need(b"exists" in p.stderr and TOKEN.encode() not in p.stderr, p.stderr)
            s.kept += [0] * 40
            p = t.run("cp", source, "gs://b/y.safetensors", status=2, env=env)
            need(b"the server has 0 bytes of the upload" in p.stderr and list(s.objects) == ["x.safetensors"], p.stderr)


@test
def test_hmac_keys_on_an_emulator_with_the_json_api_alone(t):
    source = large_file(t)
    for unknown in (501, 404, 405, 400):
        with json_only(unknown) as (s, env):
            keys = {"GOOGLE_HMAC_ACCESS_ID": "GOOGID", "GOOGLE_HMAC_SECRET": "hmac/Secret", "STORAGE_EMULATOR_HOST": s.url}
            for command in (("inspect", "gs://b/d"), *([("cp", source, "gs://b/x.safetensors")] if unknown != 400 else [])):
                p = t.run(*command, status=2, env=keys)
                need(b"GOOGLE_HMAC_ACCESS_ID" in p.stderr and b"JSON API" in p.stderr and b"hmac/" not in p.stderr, f"{unknown}: {p.stderr}")
            need(not s.objects, s.objects)
            p = t.run("inspect", "gs://b/d", status=2, env=env)
            need(b"HMAC" not in p.stderr, p.stderr)


@contextlib.contextmanager
def azurite_place():
    try:
        from azure.storage.blob import AccountSasPermissions, BlobServiceClient, ResourceTypes, generate_account_sas
    except ImportError as e:
        raise Skip("azure-storage-blob is not installed (PyPI)") from e
    with servers.azurite() as url:
        endpoint = f"{url}/{ACCOUNT}"
        container = BlobServiceClient(endpoint, credential=KEY).create_container("container")
        later = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
        allowed = AccountSasPermissions(read=True, list=True, write=True, create=True, delete=True)
        sas = generate_account_sas(ACCOUNT, KEY, ResourceTypes(service=True, container=True, object=True), allowed, later)
        env = {"AZURE_STORAGE_ACCOUNT": ACCOUNT, "AZURE_STORAGE_SERVICE_ENDPOINT": endpoint, "AZURE_STORAGE_SAS_TOKEN": sas}

        def read(prefix):
            return {b.name: container.download_blob(b.name).readall() for b in container.list_blobs(name_starts_with=prefix)}

        yield Place(f"az://{ACCOUNT}/container", env, read, lambda key, data: container.upload_blob(key, data, overwrite=True))


@contextlib.contextmanager
def google_place():
    with http_serving.running(google({})) as s:
        yield place_of(s, {"GOOGLE_OAUTH_ACCESS_TOKEN": TOKEN, "STORAGE_EMULATOR_HOST": s.url})
        need(not s.uploads, f"unfinished uploads: {s.uploads.keys()}")


@test
def test_write_to_azurite_is_what_a_disk_gets(t):
    with azurite_place() as place:
        compare_all(t, place)
        overwrite_all(t, place)
        p = t.run("convert", large_file(t), place.url + "/one.pt", status=2, env=place.env)
        need(b"exists" in p.stderr and re.search(rb"sig=[^ ]", p.stderr) is None, p.stderr)
