"""Reads s3:// from moto and s3rver, to which boto3 writes, and from a server of our own that checks signatures."""
import json
import os
import ssl
import struct
import subprocess
import sys

import boto3

import http_serving
import servers
from checks import SAMPLES, need, test
from fake_s3 import ENV, ID, SECRET, serving
from harness import sample, st_write

READ = ("dcp_fsdp2", "dcp_objects", "torch_plain", "torch_nested", "safetensors_model", "safetensors_index", "torch_bin_index", "torch_ranks_tp_fsdp2")


def files_below(path):
    """Returns {name below `path`: bytes}. If `path` is a file, the only name is its own."""
    if os.path.isfile(path):
        with open(path, "rb") as f:
            return {os.path.basename(path): f.read()}
    found = {}
    for directory, _, names in os.walk(path):
        for name in names:
            with open(os.path.join(directory, name), "rb") as f:
                found[os.path.relpath(os.path.join(directory, name), path)] = f.read()
    return found


def shown(doc):
    """Returns what inspect reports, without the places of the files."""
    return [{k: v for k, v in e.items() if k != "chunks"} for e in doc["entries"]], doc["findings"], doc["summary"], doc["format"]


def findings(t, path, **more):
    return [{**f, "path": ""} for f in t.json("validate", "--deep", path, "--json", status=(0, 1), **more)["findings"]]


def compare_samples(t, put, url, env):
    """Runs every command on samples at `url` and compares with the same command on this machine. put(name, bytes) uploads a
    file."""
    for name in READ:
        path = sample(name)[0]
        for file, data in files_below(os.path.dirname(path) if path.endswith(".json") else path).items():
            put(f"runs/{name}=1.ckpt/{file}", data)
        where = f"{url}/runs/{name}=1.ckpt"
        if os.path.isfile(path):
            where += "/" + os.path.basename(path)
        local, remote = t.json("inspect", path, "--json", "--hash", "sha256"), t.json("inspect", where, "--json", "--hash", "sha256", env=env)
        need(shown(local) == shown(remote), f"{name}: another inspect document")
        need(remote["path"] == where, remote["path"])
        need(findings(t, path) == findings(t, where, env=env), f"{name}: other findings")
        need(t.json("diff", path, where, "--values", "--json", env=env)["same"], f"{name}: other values")
    out = t.at("converted.safetensors")
    t.run("convert", f"{url}/runs/dcp_fsdp2=1.ckpt/", out, "--to", "safetensors", "--objects", "drop", env=env)
    need(t.json("diff", out, sample("dcp_fsdp2")[0], "--values", "--json", status=1)["changed"] == [], "the converted values differ")


def against(t, start, key, secret):
    env = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": "us-east-1"}
    with start() as url:
        client = boto3.client("s3", endpoint_url=url, aws_access_key_id=key, aws_secret_access_key=secret, region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        compare_samples(t, lambda name, data: client.put_object(Bucket="bucket", Key=name, Body=data), "s3://bucket", {**env, "AWS_ENDPOINT_URL": url})


@test
def test_s3_moto(t):
    against(t, servers.moto, "AKIDMOTO", "secret/of+moto")


@test
def test_s3_s3rver(t):
    against(t, servers.s3rver, "S3RVER", "S3RVER")


def tensor_file(t, size=64):
    path = t.at("made.safetensors")
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(i % 251 for i in range(min(size, 1 << 16))) * -(-size // min(size, 1 << 16))
    return path, data[:8 + len(header) + size]


@test
def test_s3_keys_are_taken_as_they_are(t):
    _, data = tensor_file(t)
    keys = ["run/epoch=0-step=10.ckpt/a.safetensors", "a b+c/x.safetensors", "100%41/ü&é=?#;,:@!$'()*[]~/x.safetensors", "two//slashes/x.safetensors",
            "dots/../x.safetensors", "q?a=1&b=2#c/x.safetensors", "plain"]
    with serving({**{k: data for k in keys}, "marked/": b"", "marked/x.safetensors": data, "marked/.tessera-1.tmp": b"x"}) as s:
        for key in keys + ["plain/", "marked/", "marked"]:
            doc = t.json("inspect", "s3://b/" + key, "--json", env=s.env())
            need([e["fqn"] for e in doc["entries"]] == ["w"] and doc["path"].split("?")[0] == ("s3://b/" + key).split("?")[0], f"{key}: {doc['path']}")
            need(doc["summary"]["files"] == 1, doc["summary"])
        for key in keys[:-1]:
            t.json("inspect", "s3://b/" + key.rsplit("/", 1)[0] + "/", "--json", env=s.env())
        for url, words in (("s3://b/none", "no such object"), ("s3://b/none.pt", "no such object"), ("s3://", "s3://BUCKET/KEY"), ("s3:///x", "s3://BUCKET/KEY"),
                           ("s3://nobucket/x", "NoSuchBucket"), (f"s3://{ID}:{SECRET}@b/x", "s3://BUCKET/KEY"), (f"s3://b/x?sig={SECRET}", "no such object")):
            p = t.run("inspect", url, status=2, env=s.env())
            need(words in p.stderr.decode() and SECRET not in p.stderr.decode(), f"{url}: {p.stderr}")
    with serving({"x.safetensors": data}) as s:
        need(t.json("inspect", "s3://b", "--json", env=s.env())["summary"]["files"] == 1, "a bucket's root")


@test
def test_s3_opening_asks_for_no_data_file(t):
    """1,500 shards cost two pages of listing and the index."""
    weights, objects = {}, {}
    for i in range(1500):
        name = f"model-{i:05d}-of-01500.safetensors"
        weights[f"layers.{i}.w"] = name
        header = json.dumps({f"layers.{i}.w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
        objects["ck/" + name] = struct.pack("<Q", len(header)) + header + bytes(8)
    path = sample("dcp_fsdp2")[0]
    dcp = {"dcp/" + name: data for name, data in files_below(path).items()}
    with serving({**dcp, **{f"dcp/more/{i}": b"x" for i in range(1500)}}) as s:
        t.json("inspect", "s3://b/dcp", "--json", env=s.env())
        asked = [k for _, k, _ in s.asked]
        need(sum(k.startswith("?") for k in asked) == 2 and asked.count("dcp/.metadata") == 1, asked)
        need(len(asked) <= 3 + 3, f"{asked}: only the files of objects are read")
        before = len(s.asked)
        t.json("layout", "s3://b/dcp", "--no-chunks", env=s.env())
        need(len(s.asked) - before <= 6, f"{len(s.asked) - before} requests")


@test
def test_s3_and_a_disk_as_one_checkpoint(t):
    """--also: one file is on the disk of a node and the rest is in a bucket."""
    path = sample("dcp_fsdp2")[0]
    files = files_below(path)
    os.makedirs(t.at("node"))
    with open(t.at("node", "__1_0.distcp"), "wb") as f:
        f.write(files.pop("__1_0.distcp"))
    with serving({"ck/" + name: data for name, data in files.items()}) as s:
        for first, second in (("s3://b/ck", t.at("node")), (t.at("node"), "s3://b/ck")):
            t.run("convert", first, "--also", second, t.at("out.pt"), "--to", "torch", "--overwrite", env=s.env())
            need(t.json("diff", path, t.at("out.pt"), "--values", "--json", status=(0, 1))["changed"] == [], "other values")


@test
def test_s3_io_depth_bounds_the_requests_at_once(t):
    path, data = tensor_file(t, 40 << 20)
    with open(path, "wb") as f:
        f.write(data)

    def slow(handler, key, count):
        if not handler.headers.get("Range", "bytes=0-").startswith("bytes=0-"):  # the header comes first
            together.hold()
        return False

    local = t.json("inspect", path, "--json", "--hash", "sha256")
    for depth, least, most in ((1, 1, 1), (3, 2, 3), (None, 4, 16)):
        together = http_serving.Together(least)
        with serving({"made.safetensors": data}, slow) as s:
            options = ["--io-depth", str(depth)] if depth else []
            doc = t.json("inspect", "s3://b/made.safetensors", "--json", "--hash", "sha256", *options, env=s.env())
            need(doc["entries"][0]["hash"] == local["entries"][0]["hash"], "another hash")
            need(least <= together.most <= most, f"--io-depth {depth}: {together.most} requests at once")


@test
def test_s3_trusts_the_authorities_that_aws_tools_trust(t):
    """AWS_CA_BUNDLE, ca_bundle of the profile, and not only curl's variables; boto3 accepts the same."""
    path, data = tensor_file(t)
    certificate, key, other = t.at("certificate.pem"), t.at("key.pem"), t.at("other.pem")
    for made, its_key in ((certificate, key), (other, t.at("other_key.pem"))):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
                        "-keyout", its_key, "-out", made], check=True, stderr=subprocess.DEVNULL)
    with open(t.at("config"), "w") as f:
        f.write(f"[default]\nca_bundle = {certificate}\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving({"made.safetensors": data}, wrap=lambda s: context.wrap_socket(s, server_side=True)) as s:
        for accepted, env in ((False, {}), (True, {"AWS_CA_BUNDLE": certificate}), (True, {"AWS_CONFIG_FILE": t.at("config")}), (True, {"CURL_CA_BUNDLE": certificate}),
                              (True, {"AWS_CA_BUNDLE": certificate, "CURL_CA_BUNDLE": other}), (False, {"AWS_CA_BUNDLE": other, "CURL_CA_BUNDLE": certificate}),
                              (False, {"AWS_CA_BUNDLE": other, "AWS_CONFIG_FILE": t.at("config")})):
            p = t.run("inspect", "s3://b/made.safetensors", env=s.env(**env), status=0 if accepted else 2)
            need(accepted or b"certificate" in p.stderr, p.stderr)
            if "CURL_CA_BUNDLE" not in env:
                script = f"import boto3; print(boto3.client('s3').get_object(Bucket='b', Key='made.safetensors')['Body'].read() == {data!r})"
                theirs = subprocess.run([sys.executable, "-c", script], env={**os.environ, **s.env(**env)}, capture_output=True)
                need((theirs.stdout == b"True\n") == accepted, f"boto3 with {env}: {theirs}")


class Metadata(http_serving.Handler):
    """The metadata services of a container and of an instance."""

    def give_text(self, status, text):
        return self.answer(status, text.encode())

    def do_PUT(self):
        self.server.asked.append(self.path)
        need(self.headers["X-aws-ec2-metadata-token-ttl-seconds"], "no time to live")
        self.give_text(200, "session-of-imds")

    def do_GET(self):
        self.server.asked.append(self.path)
        credentials = json.dumps({"Code": "Success", "AccessKeyId": ID, "SecretAccessKey": SECRET, "Token": "session", "Expiration": "2099-01-01T00:00:00Z"})
        if self.path == "/container" and self.headers["Authorization"] == "container-token":
            return self.give_text(200, credentials)
        if self.headers["X-aws-ec2-metadata-token"] != "session-of-imds":
            return self.answer(401)
        role = "/latest/meta-data/iam/security-credentials/"
        return self.give_text(200, {role: "the-role", role + "the-role": credentials}.get(self.path, ""))


@test
def test_s3_credentials_come_from_where_aws_has_them(t):
    _, data = tensor_file(t)
    metadata = http_serving.Server(Metadata)
    at = metadata.url
    os.makedirs(t.at(".aws"))

    def write(name, text):
        with open(t.at(".aws", name), "w") as f:
            f.write(text)

    keys = {ID: (SECRET, None), "AKIDSESSION": (SECRET, "session")}
    with http_serving.running(metadata), serving({"x.safetensors": data}, keys=keys) as s:
        plain = {"AWS_ENDPOINT_URL": s.url, "AWS_REGION": "eu-test-1"}
        good = lambda **env: t.run("inspect", "s3://b/x.safetensors", env={**plain, **env})
        bad = lambda words, **env: need(words in t.run("inspect", "s3://b/x.safetensors", status=2, env={**plain, **env}).stderr.decode(), words)
        bad("no credentials were found")
        good(AWS_ACCESS_KEY_ID=ID, AWS_SECRET_ACCESS_KEY=SECRET)
        good(AWS_ACCESS_KEY_ID="AKIDSESSION", AWS_SECRET_ACCESS_KEY=SECRET, AWS_SESSION_TOKEN="session")
        bad("check the secret access key", AWS_ACCESS_KEY_ID=ID, AWS_SECRET_ACCESS_KEY="wrong")
        write("credentials", f"[default]\naws_access_key_id = {ID}\naws_secret_access_key = wrong\n\n[two]\naws_access_key_id={ID}\naws_secret_access_key={SECRET}\n")
        write("config", f"[default]\nregion = eu-test-1\n[profile two]\nregion=eu-test-1\nendpoint_url = {s.url}/\n[profile sso]\nsso_session = x\n[profile role]\nrole_arn=y\n")
        good(AWS_PROFILE="two")
        # The region and the endpoint come from the profile.
        t.run("inspect", "s3://b/x.safetensors", env={"AWS_PROFILE": "two"})
        t.run("inspect", "s3://b/x.safetensors", env={"AWS_PROFILE": "two", "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ENDPOINT_URL_S3": s.url})
        good(AWS_ACCESS_KEY_ID=ID, AWS_SECRET_ACCESS_KEY=SECRET)  # The environment takes precedence.
        bad("sso_session", AWS_PROFILE="sso")
        bad("role_arn", AWS_PROFILE="role")
        bad("'none'", AWS_PROFILE="none")
        os.rename(t.at(".aws", "credentials"), t.at("elsewhere"))
        good(AWS_PROFILE="two", AWS_SHARED_CREDENTIALS_FILE=t.at("elsewhere"))
        s.keys = {ID: (SECRET, "session")}
        good(AWS_CONTAINER_CREDENTIALS_FULL_URI=at + "/container", AWS_CONTAINER_AUTHORIZATION_TOKEN="container-token")
        bad("401", AWS_CONTAINER_CREDENTIALS_FULL_URI=at + "/container", AWS_CONTAINER_AUTHORIZATION_TOKEN="another")
        bad("AWS_CONTAINER_CREDENTIALS_FULL_URI", AWS_CONTAINER_CREDENTIALS_FULL_URI="http://example.org/container")
        bad("AWS_WEB_IDENTITY_TOKEN_FILE", AWS_WEB_IDENTITY_TOKEN_FILE="/x")
        metadata.asked.clear()
        good(AWS_EC2_METADATA_SERVICE_ENDPOINT=at, AWS_EC2_METADATA_DISABLED="false")
        need(metadata.asked[0] == "/latest/api/token" and len(metadata.asked) == 3, metadata.asked)
        metadata.asked.clear()
        bad("no credentials were found", AWS_EC2_METADATA_SERVICE_ENDPOINT=at, AWS_EC2_METADATA_DISABLED="true")
        need(not metadata.asked, metadata.asked)
