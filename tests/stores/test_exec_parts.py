"""exec --share and exec --finish to object stores: the parts run on machines that share nothing but the bucket."""
import os
import subprocess
import threading

import proxy
import servers
from checks import need, test
from fake_s3 import serving
from harness import sample
from test_resume import container, kill
from test_s3 import files_below
from test_write import bucket, large_file
from test_write_others import azurite_place, google_place

FULL = bool(os.environ.get("TSR_TEST_FULL"))
TARGET = ("--mesh", "dp=5", "--placements", "shard(0)")


def make_plan(t, source, to="dcp", target=TARGET):
    name = t.at(f"{to}.json")
    with open(name, "wb") as f:
        f.write(t.run("plan", source, *target, "--to", to, "--json").stdout)
    if not os.path.exists(t.at(f"{to}-wanted")):
        t.run("reshard", source, t.at(f"{to}-wanted"), *target, "--to", to)
    return name, files_below(t.at(f"{to}-wanted"))


def notes(names):
    return sorted(name for name in names if ".tessera-" in name)


def check_parts(t, place, plan, wanted, key):
    """Runs the parts in any order and at the same time. Nothing may be visible before the end, and then the bytes must be
    those of `reshard`."""
    url = f"{place.url}/{key}"
    doc = t.json("exec", plan, url, "--share", "2/3", "--json", env=place.env)
    need(not doc["published"] and doc["work"]["part"] == 2 and doc["work"]["left"], f"{doc['work']}")
    need(len(notes(place.below(key))) == 1 == len(place.below(key)), f"{sorted(place.below(key))}")
    p = t.run("exec", plan, url, "--finish", status=2, env=place.env)
    need(b"shares 1, 3 of 3 are not done" in p.stderr, p.stderr)
    both = [subprocess.Popen([t.path, "exec", plan, url, "--share", f"{i}/3"], env={**os.environ, **place.env}, stderr=subprocess.PIPE) for i in (1, 3)]
    need([(b.communicate(timeout=60), b.returncode)[1] for b in both] == [0, 0], "parts at the same time")
    need(len(notes(place.below(key))) == 3 == len(place.below(key)), f"{sorted(place.below(key))}")
    doc = t.json("exec", plan, url, "--finish", "--json", env=place.env)
    need(doc["schema"] == "tessera.exec/1" and doc["published"] and doc["work"]["left"] == 0, f"{doc['work']}")
    need(place.below(key) == wanted, f"{key}: {sorted(place.below(key))}")
    p = t.run("exec", plan, url, "--share", "1/3", status=2, env=place.env)
    need(b"exists" in p.stderr and place.below(key) == wanted, p.stderr)


def check_place(t, place):
    for source, name in ((large_file(t), "large"), (sample("dcp_fsdp2")[0], "small")):
        for to in ("dcp", "safetensors", "torch"):
            target = ("--mesh", "dp=2", "--placements", "shard(0)") if name == "small" else TARGET
            if (name, to) == ("small", "safetensors"):
                continue  # This sample has objects, and a plan cannot leave them out.
            plan, wanted = make_plan(t, source, to, target)
            check_parts(t, place, plan, wanted, f"{name}/{to}")
            t.run("exec", plan, f"{place.url}/{name}/{to}-whole", env=place.env)
            need(place.below(f"{name}/{to}-whole") == wanted, f"exec without parts, {to}")
        subprocess.run(["rm", "-r", *(t.at(f"{to}-wanted") for to in ("dcp", "torch"))], check=True)


@test
def test_exec_parts_to_moto(t):
    with bucket(servers.moto) as (place, client):
        check_place(t, place)
        need(not client.list_multipart_uploads(Bucket="bucket").get("Uploads"), "unfinished uploads")


@test
def test_exec_parts_to_s3rver(t):
    with bucket(servers.s3rver) as (place, _):
        check_place(t, place)


@test
def test_exec_parts_to_azurite(t):
    with azurite_place() as place:
        check_place(t, place)


@test
def test_exec_parts_to_google(t):
    with google_place() as place:
        check_place(t, place)


def run_parts(t, s, plan, url, parts, *more):
    for i in parts:
        t.run("exec", plan, url, "--share", f"{i}/3", *more, env=s.env())


@test
def test_exec_parts_of_which_one_is_killed(t):
    """With --resume the uploads of the killed part are continued, without it they are sent again. Either way --finish makes
    the right bytes."""
    plan, wanted = make_plan(t, large_file(t), target=("--mesh", "dp=3", "--placements", "shard(0)"))
    for more in ((), ("--resume",)):
        with serving({}) as s:
            run_parts(t, s, plan, "s3://b/ck", (1, 3), *more)
            is_point = lambda h: h.command == "PUT" and "partNumber=2&" in h.path  # noqa: E731
            kill(t, s, is_point, lambda *_: len(s.uploads) > 2, s.env(), "exec", plan, "s3://b/ck", "--share", "2/3", *more)
            need(b"is not done" in t.run("exec", plan, "s3://b/ck", "--finish", status=2, env=s.env()).stderr, "a part is missing")
            need(not [k for k in s.objects if ".tessera-" not in k], f"{sorted(s.objects)}")
            run_parts(t, s, plan, "s3://b/ck", (2,), *more)
            t.run("exec", plan, "s3://b/ck", "--finish", "--resume", env=s.env())
            need(s.objects == {f"ck/{k}": v for k, v in wanted.items()} and not s.uploads, f"{sorted(s.objects)} {list(s.uploads)}")


def kill_after(t, s, stop, objects, uploads, plan, *more):
    """Puts the bucket back to these objects and uploads, runs `exec --finish`, and kills it after `stop` requests were
    answered."""
    s.objects.clear(), s.objects.update(objects)
    s.uploads.clear(), s.uploads.update(uploads)
    seen, lock = [0], threading.Lock()

    def is_point(_):
        with lock:
            seen[0] += 1
            return seen[0] > stop
    kill(t, s, is_point, lambda *_: True, s.env(), "exec", plan, "s3://b/ck", "--finish", *more)


@test
def test_exec_finish_that_is_killed(t):
    """--finish is killed at every request of the publication. There is then no marker or a whole checkpoint, and running
    --finish again completes it."""
    plan, wanted = make_plan(t, large_file(t))
    files = {f"ck/{k}": v for k, v in wanted.items()}
    with serving({}) as s:
        run_parts(t, s, plan, "s3://b/ck", (1, 2, 3))
        before, uploads = dict(s.objects), dict(s.uploads)
        s.asked.clear()
        t.run("exec", plan, "s3://b/ck", "--finish", env=s.env())
        count = len(s.asked)
        need(s.objects == files and s.done[-1][0] == "DeleteObject", f"{s.done[-5:]}")
        marker = [key for operation, key in s.done if operation in ("PutObject", "CompleteMultipartUpload") and ".tessera-" not in key][-1]
        need(marker == "ck/.metadata", marker)
        for stop in range(3, count):
            kill_after(t, s, stop, before, uploads, plan)
            need(all(files[k] == v for k, v in s.objects.items() if k in files), f"{stop}: other bytes")
            if "ck/.metadata" in s.objects:
                need(all(k in s.objects for k in files), f"{stop}: a marker of a checkpoint that is not whole")
            if s.objects != files:
                t.run("exec", plan, "s3://b/ck", "--finish", env=s.env())
            need(s.objects == files and not s.uploads, f"{stop}: {sorted(s.objects)}")


@test
def test_exec_parts_that_replace(t):
    plan, wanted = make_plan(t, large_file(t))
    old = {f"ck/{k}": v for k, v in files_below(sample("dcp_fsdp2")[0]).items()}
    with serving({**old, "ck/mine.txt": b"mine"}) as s:
        before = dict(s.objects)
        need(b"exists" in t.run("exec", plan, "s3://b/ck", "--share", "1/3", status=2, env=s.env()).stderr, "an old checkpoint")
        run_parts(t, s, plan, "s3://b/ck", (3, 1, 2), "--overwrite")
        need({k: v for k, v in s.objects.items() if ".tessera-" not in k} == before, "the old one stays until the end")
        t.run("exec", plan, "s3://b/ck", "--finish", "--overwrite", env=s.env())
        need(s.objects.pop("ck/mine.txt") == b"mine" and not notes(s.objects) and not s.uploads, f"{sorted(s.objects)}")
        need(sorted(map(len, s.objects.values())) == sorted(map(len, wanted.values())), f"{sorted(s.objects)}")
        t.run("validate", "s3://b/ck", "--deep", env=s.env())


def old_checkpoint(t, form):
    """Returns a DCP, whose marker the new checkpoint's marker replaces, or shards with an index, whose marker has another
    name."""
    if form == "dcp":
        return files_below(sample("dcp_fsdp2")[0])
    t.run("convert", large_file(t, "old.safetensors"), t.at("old"), "--to", "safetensors", "--max-shard-size", "15MB")
    return files_below(t.at("old"))


def check_replacing(s, old, mine, form, stop):
    """Checks that a marker is there only with a whole checkpoint, and that files of neither checkpoint stay. Returns whether
    the new marker is there."""
    markers = [k for k in (".metadata", "model.safetensors.index.json") if "ck/" + k in s.objects]
    need(all(s.objects.get(k) == v for k, v in mine.items()), f"{form} {stop}: other files changed")
    is_old = bool(markers) and s.objects["ck/" + markers[0]] == old.get("ck/" + markers[0])
    if is_old:
        need(all(s.objects.get(k) == v for k, v in old.items()), f"{form} {stop}: a marker of the old one, which is not whole")
    need(len(markers) <= 1, f"{form} {stop}: {markers}")
    return bool(markers) and not is_old


def check_killed_replacement(t, s, plan, form):
    old, mine = {f"ck/{k}": v for k, v in old_checkpoint(t, form).items()}, {"ck/mine.txt": b"mine", "ck/below/mine.bin": b"too"}
    s.objects.clear(), s.objects.update({**old, **mine})
    run_parts(t, s, plan, "s3://b/ck", (1, 2, 3), "--overwrite")
    before, uploads = dict(s.objects), dict(s.uploads)
    s.asked.clear()
    t.run("exec", plan, "s3://b/ck", "--finish", "--overwrite", env=s.env())
    count, wanted = len(s.asked), dict(s.objects)
    need(not notes(wanted) and not s.uploads and not set(old) & set(wanted) - {"ck/.metadata"}, f"{form}: {sorted(wanted)}")
    t.run("validate", "s3://b/ck", "--deep", env=s.env())
    need(t.json("diff", t.at("large.safetensors"), "s3://b/ck", "--values", "--json", env=s.env())["same"], f"{form}: another checkpoint")
    ends = set()
    for stop in sorted({*range(3, count, 1 if FULL else 2), count - 1}):
        kill_after(t, s, stop, before, uploads, plan, "--overwrite")
        if check_replacing(s, old, mine, form, stop):
            t.run("validate", "s3://b/ck", "--deep", env=s.env())
            ends.add("new")
        else:
            ends.add("old" if all(k in s.objects for k in old) else "no marker")
        p = t.run("exec", plan, "s3://b/ck", "--finish", "--overwrite", status=(0, 2), env=s.env())
        if p.returncode:  # Everything was done and only the last reply is missing.
            need(b"is not done" in p.stderr and s.objects == wanted, f"{form} {stop}: {p.stderr.decode()}")
        need(s.objects == wanted and not s.uploads, f"{form} {stop} of {count}: {sorted(s.objects)} instead of {sorted(wanted)}")
    return ends


@test
def test_exec_finish_that_is_killed_while_it_replaces(t):
    """--finish is killed at every request (every second one in an ordinary run). There is then the old checkpoint, the new one, or no marker. The same command run
    again completes the replacement and removes nothing else."""
    plan, _ = make_plan(t, large_file(t))
    with serving({}) as s:
        need(check_killed_replacement(t, s, plan, "dcp") == {"old", "new"}, "the old one is whole until the marker switches")
        need(check_killed_replacement(t, s, plan, "index") >= {"old", "no marker", "new"}, "points that are reached")


def stop_at_delete(t, s, plan, key, *more):
    """Kills a publication before it removes this object. Other objects may be gone by then, because removals run at the same
    time."""
    kill(t, s, lambda h: h.command == "DELETE" and h.path.endswith(key), lambda *_: True, s.env(), "exec", plan, "s3://b/ck", "--overwrite", *more)


@test
def test_exec_finish_again_removes_only_what_was_replaced(t):
    """If another program has written to an old name in the meantime, that object is kept and named."""
    plan, wanted = make_plan(t, large_file(t))
    old = {f"ck/{k}": v for k, v in files_below(sample("dcp_fsdp2")[0]).items()}
    gone = sorted(k for k in old if k.endswith(".distcp"))[-1]
    for parts in (True, False):
        with serving(dict(old)) as s:
            if parts:
                run_parts(t, s, plan, "s3://b/ck", (1, 2, 3), "--overwrite")
            stop_at_delete(t, s, plan, gone, *(["--finish"] if parts else []))
            need(gone in s.objects and notes(s.objects), f"{sorted(s.objects)}")
            s.objects[gone] = b"somebody's"
            p = t.run("exec", plan, "s3://b/ck", "--finish" if parts else "--overwrite", "--overwrite", env=s.env())
            need(gone[len("ck/"):].encode() in p.stderr and s.objects.pop(gone) == b"somebody's", f"{p.stderr.decode()} {sorted(s.objects)}")
            need(sorted(s.objects) == sorted(f"ck/{k}".replace("_0.distcp", "_1.distcp") for k in wanted) and not s.uploads, f"{sorted(s.objects)}")


def check_again_at(t, place, server):
    """The server lists the same versions that it returned earlier, so after a kill the replaced objects are recognized."""
    plan, wanted = make_plan(t, large_file(t))
    for name, data in {**files_below(sample("dcp_fsdp2")[0]), "mine.txt": b"mine"}.items():
        place.put(f"ck/{name}", data)
    for i in (1, 2, 3):
        t.run("exec", plan, f"{place.url}/ck", "--share", f"{i}/3", "--overwrite", env=place.env)
    is_removal = lambda h: h.command == "DELETE" and "__0_0.distcp" in h.path  # noqa: E731
    kill(t, server, is_removal, lambda *_: True, place.env, "exec", plan, f"{place.url}/ck", "--finish", "--overwrite")
    need("__0_0.distcp" in place.below("ck/") and notes(place.below("ck/")), f"{sorted(place.below('ck/'))}")
    p = t.run("exec", plan, f"{place.url}/ck", "--finish", "--overwrite", env=place.env)
    need(b"mine.txt" in p.stderr and b"distcp" not in p.stderr, p.stderr)
    names = {name.replace("_0.distcp", "_1.distcp") for name in wanted} | {"mine.txt"}
    need(set(place.below("ck/")) == names, f"{sorted(place.below('ck/'))} instead of {sorted(names)}")
    t.run("validate", f"{place.url}/ck", "--deep", env=place.env)


@test
def test_exec_finish_again_on_moto(t):
    with bucket(servers.moto) as (place, client), proxy.before(place.env["AWS_ENDPOINT_URL"]) as server:
        place.env["AWS_ENDPOINT_URL"] = server.url
        check_again_at(t, place, server)
        need(not client.list_multipart_uploads(Bucket="bucket").get("Uploads"), "unfinished uploads")


@test
def test_exec_finish_again_on_azurite(t):
    with container() as (place, _, server):
        check_again_at(t, place, server)


@test
def test_exec_finish_again_on_google(t):
    with google_place() as place, proxy.before(place.env["STORAGE_EMULATOR_HOST"]) as server:
        place.env["STORAGE_EMULATOR_HOST"] = server.url
        check_again_at(t, place, server)


@test
def test_exec_parts_of_a_destination_that_changes(t):
    """A part that was made while another checkpoint was at the destination is named, and can be run again."""
    plan, wanted = make_plan(t, large_file(t))
    old = {f"ck/{k}": v for k, v in files_below(sample("dcp_fsdp2")[0]).items()}
    with serving(dict(old)) as s:
        run_parts(t, s, plan, "s3://b/ck", (1, 2), "--overwrite")
        t.run("convert", sample("dcp_fsdp2")[0], "s3://b/ck", "--to", "dcp", "--overwrite", env=s.env())
        between = {k: v for k, v in s.objects.items() if ".tessera-" not in k}
        need(set(between) != set(old), f"{sorted(between)}")
        run_parts(t, s, plan, "s3://b/ck", (3,), "--overwrite")
        p = t.run("exec", plan, "s3://b/ck", "--finish", "--overwrite", status=2, env=s.env())
        need(b"share 1 of 3" in p.stderr and b"run the share again" in p.stderr, p.stderr)
        need({k: v for k, v in s.objects.items() if ".tessera-" not in k} == between, "a refused end changes nothing")
        run_parts(t, s, plan, "s3://b/ck", (1, 2), "--overwrite")
        t.run("exec", plan, "s3://b/ck", "--finish", "--overwrite", env=s.env())
        need(len(s.objects) == len(wanted) and not notes(s.objects), f"{sorted(s.objects)}")
        t.run("validate", "s3://b/ck", "--deep", env=s.env())


@test
def test_exec_parts_are_not_mixed(t):
    """Notes of another source and damaged notes are refused. If an upload is gone, the message says so."""
    source = large_file(t)
    plan, wanted = make_plan(t, source)
    with serving({}) as s:
        run_parts(t, s, plan, "s3://b/ck", (1, 2, 3))
        whole = dict(s.objects)
        name = notes(s.objects)[1]
        for at in (0, 70, len(whole[name]) // 2, len(whole[name]) - 1):
            data = bytearray(whole[name])
            data[at] ^= 1
            s.objects[name] = bytes(data)
            p = t.run("exec", plan, "s3://b/ck", "--finish", status=2, env=s.env())
            need(b"damaged" in p.stderr and set(s.objects) == set(whole), p.stderr)
        s.objects[name] = whole[name][:50]
        need(b"damaged" in t.run("exec", plan, "s3://b/ck", "--finish", status=2, env=s.env()).stderr, "a short one")
        s.objects[name] = whole[name]
        upload, kept = next((u, v) for u, v in s.uploads.items())
        del s.uploads[upload]
        p = t.run("exec", plan, "s3://b/ck", "--finish", status=2, env=s.env())
        need(b"run its part again" in p.stderr and "ck/.metadata" not in s.objects, p.stderr)
        run_parts(t, s, plan, "s3://b/ck", (1, 2, 3))
        t.run("exec", plan, "s3://b/ck", "--finish", "--resume", env=s.env())
        need(s.objects == {f"ck/{k}": v for k, v in wanted.items()}, f"{sorted(s.objects)}")
