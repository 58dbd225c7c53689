"""The newest checkpoint of a run in a bucket: the same answers as on a disk, few requests, and never "none" in an outage."""
import os
import re

from checks import ROOT, need, test
from fake_s3 import serving
from harness import sample
from test_s3 import files_below

STEPS, FILES = 300, 16


def golden(name):
    return os.path.join(ROOT, "tests", "golden", "directories", name)


def objects_of(steps, run="run"):
    return {f"{run}/{name}/{file}": data for name, path in steps.items() for file, data in files_below(path).items()}


@test
def test_latest_in_a_bucket_lists_the_run_once_and_reads_what_it_needs(t):
    source = sample("dcp_fsdp2")[0]
    objects = objects_of({f"step-{n}": source for n in range(STEPS)})
    own = len(files_below(source))
    objects.update({f"run/step-{n}/extra{k}.txt": b"x" for n in range(STEPS) for k in range(FILES - own)})
    for n in (STEPS - 1, STEPS - 2):
        del objects[f"run/step-{n}/.metadata"]
    with serving(objects) as s:
        p = t.run("latest", "s3://b/run", env=s.env())
        need(p.stdout == f"s3://b/run/step-{STEPS - 3}\n".encode(), p.stdout)
        need(p.stderr.count(b"passed over s3://b/run/step-") == 2, p.stderr)
        listings = [key for _, key, _ in s.asked if key.startswith("?")]
        need(len(listings) == -(-len(objects) // 1000), f"{len(objects)} names need {-(-len(objects) // 1000)} pages, not {len(listings)}")
        reads = {key for _, key, _ in s.asked if not key.startswith("?")}
        need(f"run/step-{STEPS - 3}/.metadata" in reads and {os.path.dirname(key) for key in reads} == {f"run/step-{STEPS - 3}"}, f"{sorted(reads)[:5]}")
        need(len(s.asked) <= len(listings) + own, f"{len(s.asked)} requests")
        print(f"{STEPS} steps of {FILES} files: {len(s.asked)} requests")


@test
def test_latest_in_a_bucket_answers_as_on_a_disk(t):
    trees = {
        "titan": {"checkpoint/step-9": sample("dcp_fsdp2")[0], "checkpoint/step-10": sample("dcp_fsdp2")[0]},
        "trainer": {"checkpoint-9": golden("trainer"), "checkpoint-10": golden("trainer")},
        "deepspeed": {n: os.path.join(sample("deepspeed_zero3")[0], "global_step2") for n in ("global_step9", "global_step10")},
        "megatron": {n: sample("megatron_dist")[0] for n in ("iter_0000009", "iter_0000010")},
        "accelerate": {n: golden("accelerate_fsdp_sharded") for n in ("checkpoints/checkpoint_9", "checkpoints/checkpoint_10")},
        "verl": {f"global_step_{n}/{role}": sample("dcp_fsdp2")[0] for n in (9, 10) for role in ("actor", "critic")},
        "files": {f"epoch=0-step={n}.ckpt": os.path.join(golden("trainer"), "optimizer.pt") for n in (9, 10)},
        "itself": {".": golden("accelerate_fsdp_sharded")},
        "final": {"final": sample("dcp_small")[0]},
    }
    for name, steps in trees.items():
        objects = {}
        for step, path in steps.items():
            for file, data in files_below(path).items():
                objects[os.path.normpath(os.path.join(name, step, "" if os.path.isfile(path) else file))] = data
        lost = [None, *sorted(k for k in objects if "10" in k and not k.endswith((".json", ".pkl")))]
        for key in lost:
            rest = {k: v for k, v in objects.items() if k != key}
            for path, data in rest.items():
                os.makedirs(os.path.dirname(t.at(path)), exist_ok=True)
                with open(t.at(path), "wb") as f:
                    f.write(data)
            if key and os.path.exists(t.at(key)):
                os.remove(t.at(key))
            with serving(rest) as s:
                there = t.run("latest", f"s3://b/{name}", status=(0, 1), env=s.env())
            here = t.run("latest", t.at(name), status=(0, 1))
            need((here.returncode, here.stdout.replace(t.directory.encode(), b"s3://b")) == (there.returncode, there.stdout), f"{name} without {key}: {here.stdout}, {there.stdout} {there.stderr}")
            need(key or there.returncode == 0, f"{name}: {there.stderr}")


@test
def test_latest_tells_an_outage_from_an_empty_run(t):
    objects = objects_of({f"step-{n}": sample("dcp_small")[0] for n in (1, 2)})
    with serving(objects) as s:
        need(b"there are no checkpoints" in t.run("latest", "s3://b/new", status=1, env=s.env()).stderr, "an empty run")
        need(t.run("latest", "s3://b/run/", env=s.env()).stdout == b"s3://b/run/step-2\n", "a slash at the end")
        t.run("latest", "s3://other/run", status=2, env=s.env())
    for trouble in (lambda h, key, count: not key and h.error(403, "AccessDenied"),
                    lambda h, key, count: not key and h.error(404, "NoSuchBucket"),
                    lambda h, key, count: key == "run/step-2/.metadata" and h.error(403, "AccessDenied")):
        with serving(objects, trouble) as s:
            p = t.run("latest", "s3://b/run", status=2, env=s.env())
            need(not p.stdout, p.stdout)
    gone = re.compile(r"run/step-2/")
    with serving(objects, lambda h, key, count: bool(gone.match(key)) and h.error(404, "NoSuchKey")) as s:
        p = t.run("latest", "s3://b/run", env=s.env())
        need(p.stdout == b"s3://b/run/step-1\n" and b"passed over s3://b/run/step-2" in p.stderr, f"it was removed since it was listed: {p.stderr}")


@test
def test_step_latest_valid_in_a_bucket(t):
    source = sample("dcp_fsdp2")[0]
    objects = objects_of({"step-9": source, "step-10": source})
    del objects["run/step-10/.metadata"]
    with serving(objects) as s:
        p = t.run("convert", "s3://b/run", t.at("x.pt"), "--step", "latest-valid", env=s.env())
        need(b"'step-10' is newer" in p.stderr, p.stderr)
    t.run("diff", t.at("x.pt"), source, "--values")
