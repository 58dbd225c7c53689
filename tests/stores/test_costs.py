"""Counts, on the server, the requests and bytes that it costs to list or read a checkpoint of many files in a bucket."""
import json
import os
import re

import http_serving
from checks import need, test
from fake_s3 import serving
from test_s3 import files_below, st_write

RANKS = 1024
RENAME = {"schema": "tessera.map/1", "rules": [{"from": ["{rest...}"], "to": ["renamed.{rest...}"]}]}


def plain_and_mapped(t):
    """Returns the options for two conversions, a plain one and one that renames. A diff with the output takes the same
    options."""
    with open(t.at("map.json"), "w") as f:
        json.dump(RENAME, f)
    return [], ["--map", t.at("map.json")]


@test
def test_costs_of_listing_a_dcp_of_1024_files(t):
    """Listing reads at most twice as many bytes as the metadata has, and sends no request for any data file."""
    st_write(t.at("x.safetensors"), {f"layers.{i}.weight": ("F32", [RANKS, 4], os.urandom(16 * RANKS)) for i in range(8)})
    t.run("reshard", t.at("x.safetensors"), t.at("ck"), "--to", "dcp", "--mesh", f"dp={RANKS}", "--placements", "shard(0)")
    files = files_below(t.at("ck"))
    need(len(files) == RANKS + 1, f"{len(files)} files")
    with serving({f"ck/{k}": v for k, v in files.items()}) as s:
        remote, local = t.json("inspect", "s3://b/ck", "--json", env=s.env()), t.json("inspect", t.at("ck"), "--json")
        need(remote["entries"] == local["entries"] and not remote["findings"], "other entries")
        listings = [key for _, key, _ in s.asked if key.startswith("?")]
        reads = [(key, h.get("Range", "")) for _, key, h in s.asked if not key.startswith("?")]
        need(len(listings) == 2, f"{len(files)} names fit in two pages: {listings}")
        need({key for key, _ in reads} == {"ck/.metadata"}, f"{reads[:5]}")
        asked = [(range_ or "bytes=0-").removeprefix("bytes=").split("-") for _, range_ in reads]
        most = sum(min(int(last or 1 << 40), len(files[".metadata"]) - 1) - int(first) + 1 for first, last in asked)
        need(most <= 2 * len(files[".metadata"]), f"{most} bytes of a .metadata of {len(files['.metadata'])}")
        need(len(reads) <= 1 + len(files[".metadata"]) // (1 << 20), f"{len(reads)} requests for {len(files['.metadata'])} bytes")
        print(f"a DCP of {RANKS} files: {len(s.asked)} requests, {most} bytes of a .metadata of {len(files['.metadata'])}")


@test
def test_cost_of_tensors_in_many_files(t):
    """A read ends with its chunk and goes on behind it only if the bytes there are read next. So a conversion reads at most
    5 % more bytes than the files have."""
    st_write(t.at("x.safetensors"), {f"t{i}": ("F32", [5 << 20], os.urandom(20 << 20)) for i in range(5)})
    t.run("reshard", t.at("x.safetensors"), t.at("ck"), "--mesh", "4", "--placements", "shard(0)", "--to", "dcp")
    objects = {f"ck/{k}": v for k, v in files_below(t.at("ck")).items()}
    for mapped in plain_and_mapped(t):
        with serving(objects) as s:
            t.run("convert", "s3://b/ck", t.at("out"), "--to", "safetensors", "--overwrite", *mapped, env=s.env())
            ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", h["Range"]).groups() for _, _, h in s.asked if "Range" in h]
            read, size = sum(int(b) - int(a) + 1 for a, b in ranges), sum(map(len, objects.values()))
            need(len(ranges) > 100 and read <= 1.05 * size, f"{mapped}: {read / size:.3f} of the bytes by {len(ranges)} requests")
        need(t.json("diff", t.at("x.safetensors"), t.at("out"), "--values", *mapped, "--json")["same"], f"{mapped}: another checkpoint")


@test
def test_cost_of_finding_chunks_of_many_ranks(t):
    """The items of a tensor's chunks are fetched whole, at the same time and not one after the other."""
    ranks = 48
    st_write(t.at("x.safetensors"), {f"t{i}": ("F32", [ranks, 40 << 10], os.urandom(ranks * 160 << 10)) for i in range(2)})
    t.run("reshard", t.at("x.safetensors"), t.at("ck"), "--mesh", str(ranks), "--placements", "shard(0)", "--to", "dcp")
    objects = {f"ck/{k}": v for k, v in files_below(t.at("ck")).items()}
    for mapped in plain_and_mapped(t):
        together = http_serving.Together(12)
        with serving(objects, lambda handler, key, _: together.hold() if key.endswith(".distcp") else None) as s:
            t.run("convert", "s3://b/ck", t.at("out"), "--to", "safetensors", "--overwrite", "--threads", "1", *mapped, env=s.env())
            need(together.most >= 12, f"{mapped}: {together.most} requests at most at once")
            items = 2 * ranks
            need(len(s.asked) <= 3 + 1.05 * items, f"{mapped}: {len(s.asked)} requests for {items} items")
        need(t.json("diff", t.at("x.safetensors"), t.at("out"), "--values", *mapped, "--json")["same"], f"{mapped}: another checkpoint")


@test
def test_cost_of_columns_of_many_ranks(t):
    """Rows are put together from a few columns of every rank, so all files are read at the same time, a little of each. What is fetched for that
    stays until it is read."""
    for ranks, tensors, shape in ((64, 2, [4096, 2048]), (300, 2, [256, 9600]), (RANKS, 1, [1024, 32768])):
        st_write(t.at("x.safetensors"), {f"t{i}": ("F32", shape, os.urandom(4 * shape[0] * shape[1])) for i in range(tensors)})
        t.run("reshard", t.at("x.safetensors"), t.at("ck"), "--mesh", str(ranks), "--placements", "shard(1)", "--to", "dcp", "--overwrite")
        objects = {f"ck/{k}": v for k, v in files_below(t.at("ck")).items()}
        for mapped in plain_and_mapped(t) if ranks < RANKS else [[]]:
            with serving(objects) as s:
                t.run("convert", "s3://b/ck", t.at("out"), "--to", "safetensors", "--overwrite", *mapped, env=s.env())
                ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", h["Range"]).groups() for _, _, h in s.asked if "Range" in h]
                read, size, items = sum(int(b) - int(a) + 1 for a, b in ranges), sum(map(len, objects.values())), tensors * ranks
                print(f"{ranks} ranks {mapped}: {read / size:.3f} of the bytes by {len(ranges)} requests for {items} items")
                need(read <= 1.05 * size and len(ranges) <= 8 * items, f"{ranks} ranks {mapped}: {read / size:.3f} of the bytes by {len(ranges)} requests for {items} items")
            need(t.json("diff", t.at("x.safetensors"), t.at("out"), "--values", *mapped, "--json")["same"], f"{mapped}: another checkpoint")


@test
def test_cost_of_integers_that_a_merge_compares(t):
    """Tensors of integers must be equal. Each takes a read of every input, and those of several tensors are under way at the same time."""
    count, size = 48, 192 << 10
    tensors = {f"t{i:02}": ("I64", [size // 8], os.urandom(size)) for i in range(count)}
    for name, last in (("a", os.urandom(size)), ("b", os.urandom(size))):
        st_write(t.at(f"{name}.safetensors"), {**tensors, f"t{count - 1}": ("I64", [size // 8], last)})
        t.run("convert", t.at(f"{name}.safetensors"), t.at(name), "--to", "safetensors", "--max-shard-size", "200KB")
    objects = {f"{name}/{k}": v for name in "ab" for k, v in files_below(t.at(name)).items()}
    need(len(objects) == 2 * (count + 1), f"{len(objects)} files")
    together, seen = http_serving.Together(8), []  # requests for what is behind a header

    def late(handler, key, _):
        if key.startswith("b/") and re.match(r"bytes=[1-9]", handler.headers.get("Range", "")):
            seen.append(key)
            together.hold()
        return False

    with serving(objects, late) as s:
        p = t.run("merge", t.at("out.safetensors"), "s3://b/a", "s3://b/b", "--method", "linear", status=2, env=s.env())
        need(b"'t47' is not a floating-point tensor" in p.stderr, p.stderr)
    need(len(seen) >= count and together.most >= 8, f"{together.most} of {len(seen)} requests at most at once")
