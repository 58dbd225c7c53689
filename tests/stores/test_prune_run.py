"""Removing old checkpoints from a bucket: the same ones as on a disk, the marker first, and nothing that was written meanwhile."""
import contextlib
import json
import os
import threading
import time

import proxy
import servers
from checks import need, test
from fake_s3 import serving
from harness import sample
from test_latest_step import golden, objects_of
from test_resume import bucket, container
from test_s3 import files_below
from test_write_others import emulator_place


def pruned(t, s, *options, status=0, run="run"):
    doc = t.json("prune", f"s3://b/{run}", *options, "--json", status=status, env=s.env())
    return [one["path"].split(f"s3://b/{run}/")[1] for one in doc["removed"]], doc


def steps_of(objects, run="run"):
    return sorted({key.split("/")[1] for key in objects if key.startswith(run + "/")})


@test
def test_prune_in_a_bucket_removes_what_it_removes_on_a_disk(t):
    trees = {
        "dcp": ("step-{}", sample("dcp_fsdp2")[0]),
        "trainer": ("checkpoint-{}", golden("trainer")),
        "deepspeed": ("global_step{}", os.path.join(sample("deepspeed_zero3")[0], "global_step2")),
        "megatron": ("iter_{:07}", sample("megatron_dist")[0]),
        "accelerate": ("checkpoints/checkpoint_{}", golden("accelerate_fsdp_sharded")),
        "files": ("epoch=0-step={}.ckpt", os.path.join(golden("trainer"), "optimizer.pt")),
    }
    for name, (pattern, path) in trees.items():
        objects = {}
        for n in (1, 2, 3, 12):
            for file, data in files_below(path).items():
                objects[os.path.normpath(os.path.join("run", pattern.format(n), "" if os.path.isfile(path) else file))] = data
        if os.path.isdir(path):
            objects[f"run/{pattern.format(1)}/notes.txt"] = b"mine"
            objects[f"run/{pattern.format(2)}/"] = b""
        for key, data in objects.items():
            if key.endswith("/"):
                continue
            at = t.at(name, key)
            os.makedirs(os.path.dirname(at), exist_ok=True)
            with open(at, "wb") as f:
                f.write(data)
            os.utime(at, (time.time() - 3600,) * 2)
        with serving(dict(objects)) as s:
            dry, _ = pruned(t, s, "--keep", "2", "--dry-run")
            need(s.objects == objects and not s.done, f"{name}: --dry-run wrote {s.done}")
            got, doc = pruned(t, s, "--keep", "2")
            here = t.json("prune", t.at(name, "run"), "--keep", "2", "--json")
            need(got == dry == [os.path.relpath(one["path"], t.at(name, "run")) for one in here["removed"]], f"{name}: {got}, {dry}, {here['removed']}")
            need([one["files"] for one in doc["removed"]] == [one["files"] for one in here["removed"]], f"{name}: {doc['removed']}, {here['removed']}")
            left = {os.path.relpath(os.path.join(top, f), t.at(name)) for top, _, files in os.walk(t.at(name)) for f in files}
            need(set(s.objects) == left, f"{name}: {set(s.objects) ^ left}")
            need(all(s.objects[key] == objects[key] for key in left), f"{name}: bytes")
            deleted = [key for operation, key in s.done if operation == "DeleteObject" and "/.tessera-" not in key]
            for n in (1, 2):
                own = [key for key in deleted if key.startswith("run/" + pattern.format(n))]
                need(own[0].endswith((".metadata", "trainer_state.json", "_model_states.pt", ".ckpt", "metadata.json")), f"{name}: {own[0]} is removed first")


@test
def test_prune_in_a_bucket_killed_at_any_write_is_finished_by_the_next(t):
    source = sample("dcp_fsdp2")[0]
    objects = objects_of({f"step-{n}": source for n in (1, 2, 3)})
    objects["run/step-1/notes.txt"] = b"mine"
    whole = {key: data for key, data in objects.items() if key.startswith("run/step-3/")}
    for n in range(1, 100):
        count = [0]
        lock = threading.Lock()

        def stops(handler, key, _):
            """Refuses every write from the nth on, as if the process had been killed there."""
            with lock:
                if handler.command in ("PUT", "DELETE"):
                    count[0] += 1
                return handler.command in ("PUT", "DELETE") and count[0] >= n and (handler.error(403, "AccessDenied") or True)
        with serving(dict(objects), stops) as s:
            p = t.run("prune", "s3://b/run", "--keep", "1", "--threads", "1", "--io-depth", "1", status=(0, 2), env=s.env())
            if p.returncode == 0:
                break
            for step in (1, 2):
                of = {k: v for k, v in s.objects.items() if k.startswith(f"run/step-{step}/")}
                need(f"run/step-{step}/.metadata" not in of or of == {k: v for k, v in objects.items() if k.startswith(f"run/step-{step}/")}, f"write {n}: {sorted(of)}")
            s.trouble = lambda *a: False
            need(t.run("latest", "s3://b/run", env=s.env()).stdout == b"s3://b/run/step-3\n", "latest")
            pruned(t, s, "--keep", "1")
            need(s.objects == {**whole, "run/step-1/notes.txt": b"mine"}, f"write {n}: {sorted(s.objects)}")
    need(n > 6, f"{n} writes")


@test
def test_prune_in_a_bucket_keeps_what_is_new_by_the_clock_of_the_store(t):
    source = sample("dcp_fsdp2")[0]
    with serving(objects_of({f"step-{n}": source for n in (1, 2, 3)})) as s:
        s.modified = lambda key: s.began - (60 if key == "run/step-1/__0_0.distcp" else 3600)
        got, doc = pruned(t, s, "--keep", "1")
        need(got == ["step-2"] and "ten minutes" in doc["kept"][-1]["reason"], doc)
        s.modified = lambda key: s.began - 3600
        need(pruned(t, s, "--keep", "1")[0] == ["step-1"], "later")


@test
def test_prune_in_a_bucket_leaves_a_step_that_is_written_again_meanwhile(t):
    source = sample("dcp_fsdp2")[0]
    objects = objects_of({f"step-{n}": source for n in (1, 2)})
    for name, data in ((".metadata", b"another marker"), ("__1_0.distcp", b"other data"), ("__0_0.distcp", None)):
        key = f"run/step-1/{name}"
        data = data or objects[key]

        def again(handler, asked, count):
            if handler.command == "PUT" and "/.tessera-prune-" in asked:
                handler.server.objects[key] = data
                handler.server.written[key] = time.time()
            return False
        with serving(dict(objects), again) as s:
            got, doc = pruned(t, s, "--keep", "1")
            need(not got and any("written again" in k["reason"] for k in doc["kept"]), f"{name}: {doc}")
            need(s.objects == {**objects, key: data}, sorted(s.objects))


@test
def test_prune_in_a_bucket_fails_in_an_outage(t):
    objects = objects_of({f"step-{n}": sample("dcp_small")[0] for n in (1, 2)})
    for trouble in (lambda h, key, count: not key and h.error(403, "AccessDenied"), lambda h, key, count: key == "run/step-2/.metadata" and h.error(403, "AccessDenied")):
        with serving(dict(objects), trouble) as s:
            p = t.run("prune", "s3://b/run", "--keep", "1", status=2, env=s.env())
            need(not p.stdout and s.objects == objects and not s.done, s.done)
    p = t.run("prune", "hf://org/repo", "--keep", "1", status=2)
    need(b"read only" in p.stderr, p.stderr)
    with serving(dict(objects)) as s:
        need(b"there are no checkpoints" in t.run("prune", "s3://b/new", "--keep", "1", status=1, env=s.env()).stderr, "an empty run")
        need(json.loads(t.run("prune", "s3://b/run", "--keep", "5", "--json", env=s.env()).stdout)["removed"] == [], "few")


@contextlib.contextmanager
def gcs():
    with emulator_place() as place, proxy.before(place.env["STORAGE_EMULATOR_HOST"]) as server:
        place.env = {"STORAGE_EMULATOR_HOST": server.url}
        yield place, server


@contextlib.contextmanager
def azure():
    with container() as (place, _, server):
        yield place, server


@contextlib.contextmanager
def s3():
    with bucket(servers.moto) as (place, _), proxy.before(place.env["AWS_ENDPOINT_URL"]) as server:
        place.env = {**place.env, "AWS_ENDPOINT_URL": server.url}
        yield place, server


def prune_by_the_clock(t, opened):
    """A server of another project, whose objects are new until its clock, in the answers that pass a proxy, is an hour later."""
    with opened as (place, server):
        for key, data in objects_of({f"step-{n}": sample("dcp_fsdp2")[0] for n in (1, 2, 3)}).items():
            place.put(key, data)
        place.put("run/step-2/notes.txt", b"mine")
        before = place.read("run/")
        doc = t.json("prune", place.url + "/run", "--keep", "1", "--json", env=place.env)
        need(not doc["removed"] and place.read("run/") == before, doc)
        need([k["reason"] for k in doc["kept"]][1:] == ["it was changed in the last ten minutes"] * 2, doc)
        server.ahead = 3600
        doc = t.json("prune", place.url + "/run", "--keep", "1", "--json", env=place.env)
        need([one["path"] for one in doc["removed"]] == [f"{place.url}/run/step-{n}" for n in (2, 1)], doc)
        need(place.read("run/") == {k: v for k, v in before.items() if k.startswith("run/step-3/") or k.endswith("notes.txt")}, sorted(place.read("run/")))


@test
def test_prune_in_moto(t):
    prune_by_the_clock(t, s3())


@test
def test_prune_in_azurite(t):
    prune_by_the_clock(t, azure())


@test
def test_prune_in_a_gcs_emulator(t):
    prune_by_the_clock(t, gcs())
