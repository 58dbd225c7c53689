"""Checkpoints that are written to object stores: boto3 reads back the same bytes that the same command writes on a disk."""
import contextlib
import os
import subprocess
import time

import boto3

import servers
from checks import need, test
from fake_s3 import serving
from harness import sample, st_write
from test_s3 import files_below

class Place:
    """A destination in a store, which another program can read and write: `read(prefix)` returns {key: bytes}, and `put(key,
    data)` writes an object."""

    def __init__(self, url, env, read, put):
        self.url, self.env, self.read, self.put = url, env, read, put

    def below(self, prefix):
        """Returns {name below `prefix`: bytes}. If `prefix` is an object, the only name is its own."""
        return {k[len(prefix):].lstrip("/") or os.path.basename(prefix): data for k, data in self.read(prefix).items()}


BUCKET = "bucket"


@contextlib.contextmanager
def bucket(start):
    """A bucket on a server of another project, and a boto3 client for it."""
    with start() as url:
        secret = "S3RVER"
        client = boto3.client("s3", endpoint_url=url, aws_access_key_id=secret, aws_secret_access_key=secret, region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)

        def read(prefix):
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
            return {i["Key"]: client.get_object(Bucket=BUCKET, Key=i["Key"])["Body"].read() for p in pages for i in p.get("Contents", [])}

        env = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": secret, "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": "us-east-1"}
        yield Place(f"s3://{BUCKET}", env, read, lambda key, data: client.put_object(Bucket=BUCKET, Key=key, Body=data)), client


def large_file(t, name="large.safetensors"):
    """Writes a file of tensors: some are small, some end within a part, and some span several parts. Returns its path."""
    sizes = {"a": 3 << 20, "b": (19 << 20) + 4, "c": 8, "d": (11 << 20) + 12, "e": 100, "f": 5 << 20}
    st_write(t.at(name), {n: ("F32", [size // 4], os.urandom(size)) for n, size in sizes.items()})
    return t.at(name)


def compare(t, place, command, source, name, *options):
    """Runs the command to the store and to a disk, and compares the results."""
    local, key = t.at("out", name), f"run/epoch=0 step=1/{name}"
    os.makedirs(os.path.dirname(local), exist_ok=True)
    t.run(command, source, local, *options)
    t.run(command, source, f"{place.url}/{key}", *options, env=place.env)
    wrote, wanted = place.below(key), files_below(local)
    need(wrote == wanted, f"{command} {options}: {sorted(wrote)} instead of {sorted(wanted)}, or other bytes")


def compare_all(t, place):
    large = large_file(t)
    for to, name in (("dcp", "dcp"), ("torch", "x.pt"), ("safetensors", "x.safetensors")):
        compare(t, place, "convert", large, "large-" + name, "--to", to)
        compare(t, place, "convert", sample("dcp_fsdp2")[0], name, "--to", to, *(["--objects", "drop"] if to == "safetensors" else []))
    compare(t, place, "convert", large, "sharded", "--to", "safetensors", "--max-shard-size", "15MB")
    for to in ("dcp", "torch", "safetensors"):
        compare(t, place, "reshard", large, "mesh-" + to, "--to", to, "--mesh", "dp=3", "--placements", "shard(0)")
    compare(t, place, "cp", t.at("out", "mesh-dcp"), "copy")
    compare(t, place, "cp", large, "copy.safetensors", "--no-verify")


def uploads_left(client):
    try:
        return client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    except client.exceptions.ClientError as e:
        need(e.response["Error"]["Code"] == "NotImplemented", e)
        return []


@test
def test_write_to_moto_is_what_a_disk_gets(t):
    with bucket(servers.moto) as (place, client):
        compare_all(t, place)
        need(not uploads_left(client), "uploads are left")


@test
def test_write_to_s3rver_is_what_a_disk_gets(t):
    with bucket(servers.s3rver) as (place, client):
        compare_all(t, place)
        need(not uploads_left(client), "uploads are left")


def overwrite_all(t, place):
    first, second, url, env = sample("dcp_fsdp2")[0], large_file(t), place.url + "/ck", place.env
    t.run("convert", first, url, "--to", "dcp", env=env)
    place.put("ck/notes.txt", b"mine")
    place.put("ck2/x", b"a neighbour")
    before = place.below("ck/")
    for command in (("convert", second, url, "--to", "dcp"), ("cp", first, url), ("convert", second, place.url + "/ck2/", "--to", "dcp")):
        p = t.run(*command, status=2, env=env)
        need(b"exists" in p.stderr and b"--overwrite" in p.stderr, p.stderr)
    need(place.below("ck/") == before, "a refused run changed something")
    p = t.run("convert", second, url, "--to", "dcp", "--overwrite", env=env)
    need(b"notes.txt" in p.stderr, p.stderr)
    need(sorted(place.below("ck/")) == [".metadata", "__0_1.distcp", "notes.txt"], sorted(place.below("ck/")))
    need(t.json("diff", second, url, "--values", "--json", env=env)["same"], "another checkpoint")
    t.run("cp", first, url, "--overwrite", env=env)
    need(place.below("ck/") == {**files_below(first), "notes.txt": b"mine"}, "the copy, and what is not the checkpoint's")
    t.run("convert", second, place.url + "/one.pt", env=env)
    t.run("convert", first, place.url + "/one.pt", "--to", "torch", "--overwrite", env=env)
    need(t.json("diff", first, place.url + "/one.pt", "--values", "--json", status=(0, 1), env=env)["changed"] == [], "one object is replaced")
    place.put("alien/.metadata", b"not a checkpoint")
    p = t.run("convert", second, place.url + "/alien", "--to", "dcp", "--overwrite", status=2, env=env)
    need(b"cannot be read" in p.stderr and place.below("alien/") == {".metadata": b"not a checkpoint"}, p.stderr)
    p = t.run("reshard", second, url, "--to", "torch", "--mesh", "dp=2", "--placements", "shard(0)", "--overwrite", status=2, env=env)
    need(b"no marker" in p.stderr and place.below("ck/") == {**files_below(first), "notes.txt": b"mine"}, p.stderr)
    for to in (url, url + "/below", place.url):
        need(b"source" in t.run("cp", url, to, "--overwrite", status=2, env=env).stderr, to)


@test
def test_write_by_a_program_of_the_library(t):
    """samples/c/convert.c calls tsr_path_write. It is built next to `tessera`."""
    program, source = os.path.join(os.path.dirname(t.path), "convert"), large_file(t)
    with bucket(servers.moto) as (place, _):
        run = lambda *args: subprocess.run([program, *args], capture_output=True, text=True, timeout=120, env={**os.environ, **place.env})
        for form in ("safetensors", "dcp"):
            local, key = t.at(f"library.{form}"), f"library/{form}"
            for to in (local, f"{place.url}/{key}"):
                p = run(source, to, form)
                need(p.returncode == 0, p.stderr)
            need(place.below(key) == {os.path.basename(key): open(local, "rb").read()} if form == "safetensors" else place.below(key) == files_below(local), form)
            before = place.read("")
            p = run(source, f"{place.url}/{key}", form)
            need(p.returncode and "exists" in p.stderr and place.read("") == before, p)


@test
def test_write_over_what_is_there_on_moto(t):
    with bucket(servers.moto) as (place, _):
        overwrite_all(t, place)


@test
def test_write_over_what_is_there_on_s3rver(t):
    with bucket(servers.s3rver) as (place, _):
        overwrite_all(t, place)


@test
def test_write_from_bucket_to_bucket(t):
    source = large_file(t)
    with bucket(servers.moto) as (place, client):
        client.upload_file(source, BUCKET, "in/large.safetensors")
        place.put("in/deep/er/config.json", b"{}")
        t.run("cp", place.url + "/in", place.url + "/out", env=place.env)
        need(place.below("in/") == place.below("out/"), "another copy")
        t.run("convert", place.url + "/in/large.safetensors", place.url + "/ck", "--to", "dcp", env=place.env)
        need(t.json("diff", source, place.url + "/ck", "--values", "--json", env=place.env)["same"], "another checkpoint")


def own_memory(pid):
    """Returns the bytes of memory that do not belong to mapped files, or 0 if the process has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as f:
        for line in f:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    return 0


@test
def test_write_within_a_bound_of_memory(t):
    """The memory stays below the limit for the buffers plus 84 MiB, whatever the size and the number of the files."""
    size = 24 << 20
    st_write(t.at("x.safetensors"), {f"t{i}": ("F32", [size // 4], os.urandom(size)) for i in range(6)})
    with serving({}) as s:
        with open(t.at("x.safetensors"), "rb") as f:
            s.objects["x.safetensors"] = f.read()
        for source, *options in (("s3://b/x.safetensors", "x.pt"), (t.at("x.safetensors"), "many", "--to", "safetensors", "--max-shard-size", "20MB"),
                                 (t.at("x.safetensors"), "ck", "--to", "dcp")):
            args = [t.path, "convert", source, "s3://b/" + options[0], *options[1:], "--max-mem", "16MiB"]
            p = subprocess.Popen(args, env={**os.environ, **s.env()}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            most = 0
            while p.poll() is None:
                most = max(most, own_memory(p.pid))
                time.sleep(0.005)
            need(p.returncode == 0 and 16 << 20 < most <= (16 + 84) << 20, f"{options}: ended {p.returncode} with {most >> 20} MiB")
        need(not s.uploads and len(s.objects["x.pt"]) > 6 * size, "all of it was written")


@test
def test_write_refuses_what_it_does_not_do(t):
    source = sample("dcp_fsdp2")[0]
    with serving({}) as s:
        for args, words in ((("convert", source, "hf://org/name", "--to", "dcp"), "hf:// is read only"), (("cp", source, "hf://org/name"), "hf:// is read only"),
                            (("convert", source, "s3://b", "--to", "torch"), "name the object"),
                            (("convert", source, "s3://b/x.safetensors", "--objects", "sidecar"), "a file of objects")):
            p = t.run(*args, status=2, env=s.env())
            need(words in p.stderr.decode(), p.stderr)
        need(not s.objects and not s.uploads, "something was written")
