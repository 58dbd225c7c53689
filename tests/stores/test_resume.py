"""--resume into object stores: what a killed run uploaded is used where its checksums agree, and only there."""
import collections
import contextlib
import datetime
import os
import signal
import subprocess
import threading
import time

import http_serving
import proxy
import servers
from checks import Skip, need, test
from fake_s3 import serving
from harness import sample, st_write
from test_azure import ACCOUNT, KEY
from test_gcs import TOKEN
from test_s3 import files_below
from test_write import BUCKET, Place, bucket, large_file
from test_write_others import google
from test_write_trouble import LARGE, PARTS, operations

LARGE_PART = 8 << 20


def kill(t, server, is_point, enough, env, *args, number=signal.SIGKILL):
    """Starts a command. Requests for which `is_point` holds are never answered, nor is what they send kept, even if the server looks
    at them only after the command's end; all others that it sent are carried out when this returns. When `enough(process, held)` holds too, where `held` are the handlers of these requests, the
    command is ended by the signal."""
    held, reached, over = [], threading.Event(), threading.Event()

    def trouble(handler, *_):
        if is_point(handler):
            held.append(handler)
            reached.set()
            over.wait(120)
            handler.close_connection = True
            return True
        return False

    before, server.trouble = server.trouble, trouble
    p = subprocess.Popen([t.path, *args], env={**os.environ, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    need(reached.wait(60), f"the point is not reached: {args}")
    for _ in range(1200):
        if enough(p, held):
            break
        time.sleep(0.05)
    need(enough(p, held), "the other parts do not come")
    p.send_signal(number)
    if number == signal.SIGKILL:
        p.wait()
        over.set()
    else:
        need(p.wait(60) == -number, f"ended {p.returncode}: {p.stderr.read()}")
        over.set()
    p.stderr.close()
    server.wait_for_ended_clients()
    server.trouble = before


def is_part(*numbers):
    return lambda h: h.command == "PUT" and any(f"partNumber={n}&" in h.path for n in numbers)


def has_parts(s, *numbers):
    return lambda *_: any(set(numbers) <= set(parts) for _, parts in s.uploads.values())


def resume(t, s, *args, status=0, env=None):
    s.done.clear()
    s.asked.clear()
    if status:
        return t.run(*args, "--resume", "--json", status=status, env=env or s.env()).stderr.decode()
    return t.json(*args, "--resume", "--json", env=env or s.env())["resumed"]


def counts(**more):
    return {"objects": 0, "parts": 0, "bytes": 0, "differing": 0, "uploads_given_up": 0, "uploads_left": 0, **more}


COPY = "s3://b/x.safetensors"


@test
def test_resume_sends_what_is_not_there(t):
    """The run is killed when parts 1, 2 and 5 of 5 are there. Only parts 3 and 4 are sent, and each page of the listings is
    asked for once."""
    source = large_file(t)
    whole = files_below(source)["large.safetensors"]
    for page in (1000, 2):
        with serving({}, page=page) as s:
            kill(t, s, is_part(3, 4), has_parts(s, 1, 2, 5), s.env(), "cp", source, COPY)
            need(not s.objects and len(s.uploads) == 1, s.uploads)
            found = resume(t, s, "cp", source, COPY)
            size = 2 * LARGE_PART + len(whole) % LARGE_PART
            need(found == counts(parts=3, bytes=size), found)
            need(operations(s, "UploadPart") == 2 and operations(s, "CreateMultipartUpload") == 0 and operations(s, "CompleteMultipartUpload") == 1, operations(s))
            need((operations(s, "ListMultipartUploads"), operations(s, "ListParts")) == (1, 1 if page > 3 else 2), operations(s))
            need(s.objects == {LARGE: whole} and not s.uploads, "other bytes, or uploads are left")


@test
def test_resume_says_what_was_there(t):
    source = large_file(t)
    with serving({}) as s:
        kill(t, s, is_part(3, 4), has_parts(s, 1, 2, 5), s.env(), "cp", source, COPY)
        p = t.run("cp", source, COPY, "--resume", env=s.env())
        need(b"resumed: 0 objects and 3 parts (" in p.stderr and b"were uploaded already" in p.stderr, p.stderr)
        p = t.run("cp", source, "s3://b/second", "--resume", env=s.env())
        need(b"nothing that can be continued was found" in p.stderr, p.stderr)
        p = t.run("convert", source, "s3://b/third.pt", "--resume", env=s.env())
        need(b"nothing that can be continued was found" in p.stderr, p.stderr)
        p = t.run("convert", source, "s3://b/fourth.pt", "--resume", "--quiet", env=s.env())
        need(not p.stderr, p.stderr)


@test
def test_resume_trusts_no_part_that_differs(t):
    """A part has one wrong byte, another is too short, and then the source is another file of the same size."""
    source = large_file(t)
    whole = files_below(source)["large.safetensors"]
    with serving({}) as s:
        kill(t, s, is_part(4), has_parts(s, 1, 2, 3, 5), s.env(), "cp", source, COPY)
        (_, parts), = s.uploads.values()
        parts[1] = parts[1][:-1] + bytes([parts[1][-1] ^ 1])
        parts[2] = parts[2][:-1]
        found = resume(t, s, "cp", source, COPY)
        need((found["parts"], found["differing"]) == (2, 2) and operations(s, "UploadPart") == 3, f"{found} {operations(s)}")
        need(s.objects == {LARGE: whole} and not s.uploads, "other bytes")
        s.objects.clear()
        kill(t, s, is_part(4), has_parts(s, 1, 2, 3, 5), s.env(), "cp", source, COPY)
        changed = large_file(t)
        need(os.path.getsize(changed) == len(whole) and files_below(changed)["large.safetensors"] != whole, "not another source")
        found = resume(t, s, "cp", changed, COPY)
        need((found["parts"], found["differing"]) == (0, 4) and operations(s, "UploadPart") == PARTS, found)
        need(s.objects == {LARGE: files_below(changed)["large.safetensors"]} and not s.uploads, "a mixture")


def add_upload(s, name, key, **parts):
    s.uploads[name] = (key, {int(n[1:]): data for n, data in parts.items()})


@test
def test_resume_leaves_no_upload_behind(t):
    """The upload with the most parts that fit is continued. The other uploads of the same object are given up, those of
    other objects are kept."""
    source = large_file(t)
    whole = files_below(source)["large.safetensors"]
    first, second = whole[:LARGE_PART], whole[LARGE_PART:2 * LARGE_PART]
    neighbours = {"ck2/large.safetensors", "other"}

    def prepare(s):
        add_upload(s, "few", "ck/large.safetensors", p1=first)
        add_upload(s, "fullest", "ck/large.safetensors", p1=first, p2=second)
        add_upload(s, "beyond", "ck/large.safetensors", p1=first, p2=second, p9=first)
        add_upload(s, "elsewhere", "ck/another name+", p1=first)
        for key in neighbours:
            add_upload(s, key, key, p1=first)

    os.mkdir(t.at("d"))
    os.rename(source, t.at("d/large.safetensors"))
    for options in ((), ("--overwrite",)):
        with serving({}) as s:
            prepare(s)
            found = resume(t, s, "cp", t.at("d"), "s3://b/ck", *options)
            need(found == counts(parts=2, bytes=2 * LARGE_PART, uploads_given_up=2, uploads_left=1), found)
            need({k for k, _ in s.uploads.values()} == neighbours | {"ck/another name+"}, s.uploads.keys())
            need(s.objects == {"ck/large.safetensors": whole}, list(s.objects))
    with serving({}) as s:
        prepare(s)
        p = t.run("cp", t.at("d"), "s3://b", "--resume", env=s.env())
        need(b"6 unfinished uploads of objects that this run does not write" in p.stderr and len(s.uploads) == 6, f"{p.stderr} {len(s.uploads)}")


@test
def test_resume_after_a_kill_while_it_is_published(t):
    """Objects that are there already are read and compared. They are not sent again, and an object with other bytes is
    refused."""
    source = large_file(t)
    for args in (("convert", source, "s3://b/ck", "--to", "dcp"), ("reshard", source, "s3://b/ck", "--to", "dcp", "--mesh", "dp=2", "--placements", "shard(0)")):
        with serving({}) as s:
            t.run(*args, env=s.env())
            fresh = dict(s.objects)
            s.objects.clear()
            kill(t, s, lambda h: h.command == "PUT" and h.path.endswith("/.metadata"), lambda *_: True, s.env(), *args)
            data = set(fresh) - {"ck/.metadata"}
            need(set(s.objects) == data and data, list(s.objects))
            p = t.run(*args, status=2, env=s.env())
            need(b"exists" in p.stderr, p.stderr)
            key = max(data)
            good, s.objects[key] = s.objects[key], s.objects[key][:-1] + bytes([s.objects[key][-1] ^ 1])
            damaged = dict(s.objects)
            text = resume(t, s, *args, status=2)
            need("is not what this run writes" in text and s.objects == damaged and not s.uploads, f"{text} {list(s.objects)}")
            s.objects[key] = good
            found = resume(t, s, *args)
            need(found == counts(objects=len(data), bytes=sum(len(fresh[k]) for k in data)), found)
            need(operations(s) == {"PutObject": 1, "ListMultipartUploads": 1} and s.objects == fresh, f"{operations(s)}")
            found = resume(t, s, *args)
            need(found["objects"] == len(fresh) and "PutObject" not in operations(s) and s.objects == fresh, "what is complete")
            s.objects["ck/notes.txt"] = b"mine"
            need(resume(t, s, *args)["objects"] == len(fresh), "objects of others do not matter")
            before = dict(s.objects)
            text = resume(t, s, *args, "--include", "a*", status=2)
            need("exists" in text and s.objects == before, text)


@test
def test_resume_keeps_what_it_sent_when_it_ends_early(t):
    """After a failure or a signal the uploads stay, but there is no marker. The next run finds the uploads."""
    source = large_file(t)
    with serving({}) as s:
        s.trouble = lambda h, k, count: h.command == "POST" and "uploadId" in h.path and h.error(403, "AccessDenied")
        text = resume(t, s, "convert", source, "s3://b/ck", "--to", "dcp", status=2)
        need("AccessDenied" in text and not s.objects and len(s.uploads) == 1, text)
        s.trouble = lambda *a: False
        found = resume(t, s, "convert", source, "s3://b/ck", "--to", "dcp")
        need(found["parts"] == PARTS and operations(s, "UploadPart") == 0 and not s.uploads, f"{found} {operations(s)}")
        s.objects.clear()
        kill(t, s, is_part(4), has_parts(s, 1, 2, 3), s.env(), "convert", source, "s3://b/ck", "--to", "dcp", "--resume", number=signal.SIGTERM)
        need(not s.objects and len(s.uploads) == 1, s.uploads)
        need(resume(t, s, "convert", source, "s3://b/ck", "--to", "dcp")["parts"] >= 3, "nothing was kept")
        s.objects.clear()
        s.trouble = lambda h, k, count: h.command == "PUT" and k.endswith(".metadata") and h.error(403, "AccessDenied")
        resume(t, s, "convert", source, "s3://b/ck", "--to", "dcp", status=2)
        need(len(s.objects) == 1 and "ck/.metadata" not in s.objects, list(s.objects))


@test
def test_resume_of_a_merge(t):
    args = "merge", "s3://b/m.safetensors", large_file(t, "a.safetensors"), large_file(t, "b.safetensors"), "--method", "linear"
    with serving({}) as s:
        t.run(*args, env=s.env())
        fresh = dict(s.objects)
        s.objects.clear()
        kill(t, s, is_part(3, 4), has_parts(s, 1, 2, 5), s.env(), *args)
        found = resume(t, s, *args)
        need(found["parts"] == 3 and operations(s, "UploadPart") == 2 and s.objects == fresh and not s.uploads, f"{found} {operations(s)}")


@test
def test_resume_with_overwrite_keeps_the_old_checkpoint(t):
    old, new = sample("dcp_fsdp2")[0], large_file(t)
    with serving({f"ck/{n}": d for n, d in files_below(old).items()}) as s:
        args = "convert", new, "s3://b/ck", "--to", "dcp", "--overwrite"
        kill(t, s, is_part(4), has_parts(s, 1, 2, 3), s.env(), *args)
        need(t.json("diff", old, "s3://b/ck", "--values", "--json", env=s.env())["same"], "the old checkpoint")
        found = resume(t, s, *args)
        need(found["parts"] >= 3 and found["parts"] + operations(s, "UploadPart") == PARTS and not s.uploads, f"{found} {operations(s)}")
        need(t.json("diff", new, "s3://b/ck", "--values", "--json", env=s.env())["same"], "the new checkpoint")


@test
def test_resume_to_google(t):
    """Here the listings are those of the XML API, and parts have MD5 sums."""
    source = large_file(t)
    env = lambda s: {"GOOGLE_OAUTH_ACCESS_TOKEN": TOKEN, "STORAGE_EMULATOR_HOST": s.url}
    with http_serving.running(google({})) as s:
        kill(t, s, is_part(3, 4), has_parts(s, 1, 2, 5), env(s), "cp", source, "gs://b/x.safetensors")
        found = resume(t, s, "cp", source, "gs://b/x.safetensors", env=env(s))
        need(found["parts"] == 3 and operations(s, "UploadPart") == 2 and found["differing"] == 0 and not s.uploads, f"{found} {operations(s)}")
        need(s.objects == {LARGE: files_below(source)["large.safetensors"]}, "other bytes")


def through(t, place, server, left):
    """Kills a run when two parts are there, resumes it, and compares the result with that of a run that was not killed.
    `left()` returns the unfinished uploads."""
    source = large_file(t)
    for command, options in (("cp", ()), ("convert", ("--to", "dcp")),
                             ("reshard", ("--to", "dcp", "--mesh", "dp=2", "--placements", "shard(0)"))):
        url = f"{place.url}/{command}"
        server.asked.clear()
        t.run(command, source, f"{place.url}/fresh/{command}", *options, env=place.env)
        sent = len(server.parts())
        server.asked.clear()
        passed = set()

        def is_held(h):
            with server.lock:
                if h.command == "PUT" and ("partNumber=" in h.path or "blockid=" in h.path) and len(passed) < 2:
                    passed.add(h.path)
                return h.command == "PUT" and ("partNumber=" in h.path or "blockid=" in h.path) and h.path not in passed

        kill(t, server, is_held, lambda *_: len(server.parts()) == 2, place.env, command, source, url, *options)
        need(not place.below(command), f"{command}: it is visible")
        server.asked.clear()
        found = t.json(command, source, url, *options, "--resume", "--json", env=place.env)["resumed"]
        need(found["parts"] == 2 and found["differing"] == 0 and len(server.parts()) == sent - 2, f"{command}: {found}, {len(server.parts())} of {sent} parts are sent again")
        need(place.below(command) == place.below("fresh/" + command) and not left(), f"{command}: other bytes, or uploads are left")


@test
def test_resume_to_moto(t):
    with bucket(servers.moto) as (place, client), proxy.before(place.env["AWS_ENDPOINT_URL"]) as server:
        place.env["AWS_ENDPOINT_URL"] = server.url
        through(t, place, server, lambda: client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []))


@contextlib.contextmanager
def container():
    """A container of azurite, behind a proxy."""
    try:
        from azure.storage.blob import AccountSasPermissions, BlobServiceClient, ResourceTypes, generate_account_sas
    except ImportError as e:
        raise Skip("azure-storage-blob is not installed (PyPI)") from e
    with servers.azurite() as url, proxy.before(url) as server:
        client = BlobServiceClient(f"{url}/{ACCOUNT}", credential=KEY).create_container("container")
        later = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
        allowed = AccountSasPermissions(read=True, list=True, write=True, create=True, delete=True)
        sas = generate_account_sas(ACCOUNT, KEY, ResourceTypes(service=True, container=True, object=True), allowed, later)
        env = {"AZURE_STORAGE_ACCOUNT": ACCOUNT, "AZURE_STORAGE_SERVICE_ENDPOINT": f"{server.url}/{ACCOUNT}", "AZURE_STORAGE_SAS_TOKEN": sas}
        read = lambda prefix: {b.name: client.download_blob(b.name).readall() for b in client.list_blobs(name_starts_with=prefix)}
        yield Place(f"az://{ACCOUNT}/container", env, read, lambda key, data: client.upload_blob(key, data, overwrite=True)), client, server


@test
def test_resume_to_azurite(t):
    with container() as (place, client, server):
        through(t, place, server, lambda: [b.name for b in client.list_blobs(include=["uncommittedblobs"]) if b.size is None or (b.size == 0 and b.name != "empty")])
        source = large_file(t)
        server.asked.clear()
        kill(t, server, lambda h: h.command == "PUT" and "comp=blocklist" in h.path, lambda *_: len(server.parts()) == PARTS, place.env, "cp", source, place.url + "/one")
        changed = large_file(t)
        server.asked.clear()
        found = t.json("cp", changed, place.url + "/one", "--resume", "--json", env=place.env)["resumed"]
        need(found["parts"] == 0 and len(server.parts()) == PARTS, f"another source: {found}")
        need(place.read("one")["one"] == files_below(changed)["large.safetensors"], "a mixture")


@test
def test_resume_where_the_server_lists_no_uploads(t):
    with bucket(servers.s3rver) as (place, _):
        start = time.monotonic()
        p = t.run("cp", large_file(t), place.url + "/x", "--resume", status=2, env=place.env)
        need(b"--resume needs the list of unfinished uploads, which the server does not give" in p.stderr and b"501" in p.stderr and b"run without --resume" in p.stderr, p.stderr)
        need(not place.read("x") and time.monotonic() - start < 20, "something was written, or it was asked for long")
        t.run("cp", large_file(t), place.url + "/x", env=place.env)


def whole_checkpoint(s, old, sizes, mine, what):
    """Checks what a killed run that replaces a checkpoint leaves: if there is a marker, the old or the new checkpoint is
    whole, and files of others stay."""
    need(all(s.objects.get(k) == v for k, v in mine.items()), f"{what}: other files changed")
    if "ck/.metadata" in s.objects:
        is_old = s.objects["ck/.metadata"] == old["ck/.metadata"]
        need(all(s.objects.get(k) == v for k, v in old.items()) if is_old else sizes <= collections.Counter(map(len, s.objects.values())),
             f"{what}: a marker of a checkpoint that is not whole: {sorted(s.objects)}")


@test
def test_resume_of_a_killed_run_that_replaces(t):
    """The run is killed at every request, and the same command run again must end with the new checkpoint. Between the first
    new object and the last removal, nothing distinguishes what the killed run left from the objects of others. Such
    objects stay, and each is named."""
    old = {f"ck/{k}": v for k, v in files_below(sample("dcp_fsdp2")[0]).items()}
    mine = {"ck/mine.txt": b"mine", "ck/below/mine.bin": b"too"}
    source = t.at("source.safetensors")
    st_write(source, {"a": ("F32", [(17 << 18) + 1], os.urandom((17 << 20) + 4)), "b": ("F32", [2], bytes(8))})  # uploaded in three parts
    command = ("convert", source, "s3://b/ck", "--to", "dcp", "--overwrite", "--resume")
    with serving({**old, **mine}) as s:
        t.run(*command, env=s.env())
        count, wanted, left = len(s.asked), dict(s.objects), 0
        sizes = collections.Counter(len(v) for k, v in wanted.items() if k not in mine)
        for stop in range(count):
            seen = iter(range(count + 99))
            s.objects.clear(), s.objects.update({**old, **mine}), s.uploads.clear()
            kill(t, s, lambda _: next(seen) >= stop, lambda *_: True, s.env(), *command)
            whole_checkpoint(s, old, sizes, mine, stop)
            p = t.run(*command, env=s.env())
            whole_checkpoint(s, old, sizes, mine, f"{stop}, again")
            t.run("diff", source, "s3://b/ck", "--values", env=s.env())
            extra = [k.removeprefix("ck/") for k in set(s.objects) - set(mine) - {"ck/.metadata"}]
            extra = [name for name in extra if name.encode() not in s.objects["ck/.metadata"]]
            need(all(name.encode() in p.stderr for name in extra) and not s.uploads, f"{stop}: {extra} are not named: {p.stderr.decode()}")
            left += bool(extra)
        need(0 < left < count / 2, f"{left} of {count} points leave objects")
