"""Unfinished parts of another plan that were left at a destination are named and kept, and they are removed on request."""
import os

import servers
from checks import need, test
from fake_s3 import serving
from harness import sample
from test_exec_parts import make_plan, notes, run_parts
from test_s3 import files_below
from test_write import bucket, large_file

OTHER = ("--mesh", "dp=2", "--placements", "shard(0)")


def two_plans(t):
    """Makes the plan whose parts are never finished, and the plan that takes its place."""
    source = large_file(t)
    old = t.at("old-plan.json")
    with open(old, "wb") as f:
        f.write(t.run("plan", source, *OTHER, "--to", "dcp", "--json").stdout)
    return (source, old, *make_plan(t, source))


@test
def test_exec_parts_of_another_plan_are_named(t):
    """Every command that writes there finds that the destination exists. The message says what is in the way and what to
    do."""
    source, old, plan, _ = two_plans(t)
    dcp = sample("dcp_fsdp2")[0]
    with serving({}) as s:
        run_parts(t, s, old, "s3://b/ck", (1, 2))
        before, uploads = dict(s.objects), list(s.uploads)
        first = notes(before)[0][len("ck/"):].encode()
        need(len(before) == 2 and len(uploads) > 1, f"{sorted(before)}")
        for command in (("exec", plan, "s3://b/ck", "--part", "1/3"), ("exec", plan, "s3://b/ck"), ("convert", source, "s3://b/ck", "--to", "dcp"),
                        ("reshard", source, "s3://b/ck", "--to", "dcp", "--mesh", "dp=2", "--placements", "shard(0)"), ("cp", dcp, "s3://b/ck")):
            p = t.run(*command, status=2, env=s.env())
            need(first + b"' and 1 more" in p.stderr and b"--discard-parts" in p.stderr and b"exec --finish" in p.stderr, f"{command}: {p.stderr.decode()}")
            need(s.objects == before and list(s.uploads) == uploads, f"{command} changed something")
        for command in (("cp", dcp, "s3://b/ck", "--overwrite"), ("convert", source, "s3://b/ck", "--to", "dcp", "--overwrite")):
            p = t.run(*command, env=s.env())
            need(first in p.stderr and b"they are kept" in p.stderr, f"{command}: {p.stderr.decode()}")
            need(all(s.objects[k] == v for k, v in before.items()) and list(s.uploads) == uploads, f"{command} removed parts of another plan")
        t.run("validate", "s3://b/ck", "--deep", env=s.env())
        s.objects["ck2/.tessera-wabc-notes.txt"] = b"mine"
        p = t.run("convert", source, "s3://b/ck2", "--to", "dcp", status=2, env=s.env())
        need(b"exists: there is '.tessera-wabc-notes.txt'" in p.stderr, p.stderr)


@test
def test_exec_discards_parts_of_another_plan(t):
    source, old, plan, wanted = two_plans(t)
    files = {f"ck/{k}": v for k, v in wanted.items()}
    with serving({}) as s:
        run_parts(t, s, old, "s3://b/ck", (1, 2, 3))
        run_parts(t, s, plan, "s3://b/ck", (1,), "--discard-parts")
        need(len(notes(s.objects)) == 1 == len(s.objects) and {k for k, _ in s.uploads.values()} <= set(files), f"{sorted(s.objects)} {s.uploads.keys()}")
        run_parts(t, s, plan, "s3://b/ck", (2, 3), "--discard-parts")
        need(len(notes(s.objects)) == 3, "parts of the same plan stay")
        t.run("exec", plan, "s3://b/ck", "--finish", "--discard-parts", env=s.env())
        need(s.objects == files and not s.uploads, f"{sorted(s.objects)} {s.uploads.keys()}")
    with serving({"ck/mine.txt": b"mine"}) as s:
        run_parts(t, s, old, "s3://b/ck", (2,), "--overwrite")
        t.run("convert", source, "s3://b/ck", "--to", "dcp", "--overwrite", "--discard-parts", env=s.env())
        need(not notes(s.objects) and not s.uploads and s.objects["ck/mine.txt"] == b"mine", f"{sorted(s.objects)} {s.uploads.keys()}")


@test
def test_exec_discards_no_damaged_note(t):
    """A file with the name of a note but without the right checksum is not removed, and neither is anything that it may
    name."""
    source, old, *_ = two_plans(t)
    for change in (lambda data: data[:-1] + b"x", lambda data: data[:70], lambda data: b"somebody's"):
        with serving({}) as s:
            run_parts(t, s, old, "s3://b/ck", (1,))
            name = notes(s.objects)[0]
            s.objects[name] = change(s.objects[name])
            before, uploads = dict(s.objects), list(s.uploads)
            p = t.run("convert", source, "s3://b/ck", "--to", "dcp", "--discard-parts", status=2, env=s.env())
            need(name.encode() in p.stderr and b"remove it yourself" in p.stderr, p.stderr)
            need(s.objects == before and list(s.uploads) == uploads, "something was removed")


@test
def test_exec_discards_parts_on_moto(t):
    source, old, *_ = two_plans(t)
    with bucket(servers.moto) as (place, client):
        for i in (1, 2):
            t.run("exec", old, place.url + "/ck", "--part", f"{i}/3", env=place.env)
        need(client.list_multipart_uploads(Bucket="bucket").get("Uploads"), "uploads of parts")
        t.run("convert", source, place.url + "/ck", "--to", "dcp", "--discard-parts", env=place.env)
        t.run("convert", source, t.at("local"), "--to", "dcp")
        need(place.below("ck/") == files_below(t.at("local")), f"{sorted(place.below('ck/'))}")
        need(not client.list_multipart_uploads(Bucket="bucket").get("Uploads"), "unfinished uploads")


@test
def test_exec_discards_parts_on_a_disk(t):
    source, old, plan, wanted = two_plans(t)
    beside = lambda: sorted(n for n in os.listdir(t.directory) if ".tessera-" in n)  # noqa: E731
    t.run("exec", old, t.at("ck"), "--part", "1/3")
    left = beside()
    p = t.run("convert", source, t.at("ck"), "--to", "dcp")
    need(b"--discard-parts removes them" in p.stderr and left and beside() == left, p.stderr)
    t.run("exec", plan, t.at("ck"), "--part", "1/3", "--overwrite", "--discard-parts")
    need(not set(left) & set(beside()) and beside(), f"{left} {beside()}")
    for part in ("2/3", "3/3"):
        t.run("exec", plan, t.at("ck"), "--part", part, "--overwrite", "--discard-parts")
    t.run("exec", plan, t.at("ck"), "--finish", "--overwrite")
    need(len(files_below(t.at("ck"))) == len(wanted) and not beside(), f"{sorted(files_below(t.at('ck')))} {beside()}")
    t.run("validate", t.at("ck"), "--deep")
