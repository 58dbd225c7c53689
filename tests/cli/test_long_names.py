"""Destinations with the longest names that the file system accepts. Those that begin alike do not share temporary files."""
import os
import shutil

from harness import need, sample, test
from test_plans import killed, many_units, tree

LONG = "long-" + "ä" * 110  # 225 bytes
NAMES = (LONG + "-first", LONG + "-second")
TARGET = ("--mesh", "dp=4", "--placements", "shard(0)", "--to", "dcp")


def left(t):
    return sorted(f for f in os.listdir(t.directory) if ".tessera-" in f)


@test
def test_names_that_begin_alike_share_no_leftovers(t):
    path = many_units(t)
    first, second = map(t.at, NAMES)
    killed(t, "convert", path, first, "--to", "dcp", "--resume", limit=8 << 20)
    before = left(t)
    need(before and not os.path.exists(first), before)
    for name in before:
        name.encode().decode()  # characters are not cut in two
    p = t.run("convert", path, second, "--to", "dcp", "--resume")
    need(b"nothing to resume" in p.stderr and left(t) == before, f"{p.stderr} {left(t)}")
    shutil.rmtree(second)
    t.run("convert", path, second, "--to", "torch")
    need(left(t) == before, f"what another job left is gone: {left(t)}")
    p = t.run("convert", path, first, "--to", "dcp", "--resume")
    need(b"nothing to resume" not in p.stderr and not left(t), f"{p.stderr} {left(t)}")
    need(t.json("diff", path, first, "--values", "--json")["same"], "different values")


@test
def test_parts_of_destinations_that_begin_alike_stay_apart(t):
    path = many_units(t)
    first, second = map(t.at, NAMES)
    with open(t.at("plan.json"), "wb") as f:
        f.write(t.run("plan", path, *TARGET, "--json").stdout)
    t.run("exec", t.at("plan.json"), first, "--share", "1/2")
    before = left(t)
    doc = t.json("exec", t.at("plan.json"), second, "--json")
    need(doc["published"] and not doc["work"]["found_done"] and left(t) == before, f"{doc['work']} {left(t)}")
    t.run("exec", t.at("plan.json"), first, "--share", "2/2", "--finish")
    need(tree(first) == tree(second) and not left(t), left(t))


@test
def test_long_names_leave_nothing_and_can_be_replaced(t):
    path = sample("dcp_objects")[0]
    for name in (LONG + ".safetensors", LONG + "x" * (242 - len(LONG.encode())), "x" * 255):
        options = ("--to", "safetensors", "--objects", "sidecar" if len(name.encode()) <= 242 else "drop")
        for more in ((), ("--overwrite",)):
            t.run("convert", path, t.at(name), *options, *more)
            need(not left(t) and os.path.isfile(t.at(name)), left(t))
        killed(t, "convert", path, t.at(name), *options, "--overwrite", limit=300)
        need(left(t), "a killed run left nothing")
        t.run("convert", path, t.at(name), *options, "--overwrite")
        need(not left(t), left(t))
