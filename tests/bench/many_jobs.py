"""MANY: 900,000 tensors of 1 KiB, 100,000 files, plans for 10,000 ranks, runs of 100,000 steps, each next to a tenth of it. What takes more than ten times as
long, or more than ten times the memory, grows faster than its input. The processor's time counts, because it says the same on a
busy machine; --scratch should be in memory (12 GB)."""
import functools
import json
import os
import struct
import subprocess
import time

from data import write_once, write_safetensors
from measure import Job, Side

TARGET = "≤ 10 × the time of a tenth"
TENSORS, FILES, RANKS, STEPS = 900_000, 100_000, 10_000, 100_000
MAP = {"schema": "tessera.map/1", "rules": [{"from": ["l.{l}.e.{e}"], "to": ["model.{l}.mlp.{e}"]}]}


def rows_from(first, count):
    """Rows of 256 numbers, which differ by row and by `first`. They begin again after 4,093 rows."""
    return (struct.pack("<256f", *range(first + i % 4093, first + i % 4093 + 256)) for i in range(count))


def tensors(bench, count, base=0):
    """A safetensors file of `count` tensors, whose values differ by tensor and by `base`. The names are short, because safetensors allows
    headers of 100 MB."""
    named = ((f"l.{i // 1000}.e.{i % 1000}", [16, 16]) for i in range(count))
    return write_once(os.path.join(bench.scratch, f"tensors{count}_{base}.safetensors"), lambda path: write_safetensors(path, named, rows_from(base, count)))


def made(bench, name, *command):
    return write_once(os.path.join(bench.scratch, name), lambda path: subprocess.run([bench.tessera, *(path if word == "OUT" else word for word in command), "--quiet"], check=True))


def tensors_dcp(bench, count):
    return made(bench, f"dcp{count}", "convert", tensors(bench, count), "OUT", "--to", "dcp")


def into_files(bench, count):
    """The words of a reshard to a DCP of `count` files: one tensor in chunks of 1 KiB, each in a file of its own."""
    source = write_once(os.path.join(bench.scratch, f"rows{count}.safetensors"), lambda path: write_safetensors(path, [("weight", [count, 256])], rows_from(0, count)))
    return ["reshard", source, "OUT", "--to", "dcp", "--mesh", f"dp={count}", "--placements", "shard(0)"]


def files_dcp(bench, count):
    return made(bench, f"files{count}", *into_files(bench, count))


def one(bench, what, make, whole):
    """A job of two sides: a command for the whole, and for a tenth of it. `make(bench, count)` returns the words after the program;
    OUT is where it writes."""
    out, remove = bench.fresh("out")

    def side(count):
        words = [out if word == "OUT" else word for word in make(bench, count)]
        return Side(f"{count:,}", [bench.tessera, *words, "--quiet"] if words[0] != "inspect" else [bench.tessera, *words], remove)
    return Job(f"MANY {what}", what, f"{whole:,} and {whole // 10:,}", [side(whole), side(whole // 10)], TARGET, metric="cpu")


def map_file(bench):
    def write(path):
        with open(path, "w") as f:
            json.dump(MAP, f)
    return write_once(os.path.join(bench.scratch, "many_map.json"), write)


OF_TENSORS = {
    "inspect --json": lambda b, n: ["inspect", tensors(b, n), "--json"],
    "validate": lambda b, n: ["validate", tensors(b, n)],
    "validate --deep": lambda b, n: ["validate", "--deep", tensors(b, n)],
    "convert --to dcp": lambda b, n: ["convert", tensors(b, n), "OUT", "--to", "dcp"],
    "validate --deep of that DCP": lambda b, n: ["validate", "--deep", tensors_dcp(b, n)],
    "convert of that DCP --to safetensors": lambda b, n: ["convert", tensors_dcp(b, n), "OUT", "--to", "safetensors"],
    "convert --to torch": lambda b, n: ["convert", tensors(b, n), "OUT", "--to", "torch"],
    "convert --map": lambda b, n: ["convert", tensors(b, n), "OUT", "--to", "safetensors", "--map", map_file(b)],
    "diff --values": lambda b, n: ["diff", "--values", tensors(b, n), tensors_dcp(b, n)],
    "merge": lambda b, n: ["merge", "OUT", tensors(b, n), tensors(b, n, 1), "--to", "safetensors", "--method", "linear", "--weight", "0.5", "--weight", "0.5"],
    "reshard to 4 ranks": lambda b, n: ["reshard", tensors_dcp(b, n), "OUT", "--to", "dcp", "--mesh", "dp=4", "--placements", "shard(0)"],
}
OF_FILES = {
    "inspect --json": lambda b, n: ["inspect", files_dcp(b, n), "--json"],
    "validate": lambda b, n: ["validate", files_dcp(b, n)],
    "validate --deep": lambda b, n: ["validate", "--deep", files_dcp(b, n)],
    "convert --to safetensors": lambda b, n: ["convert", files_dcp(b, n), "OUT", "--to", "safetensors"],
    "cp": lambda b, n: ["cp", files_dcp(b, n), "OUT"],
    "reshard to as many ranks": into_files,
}


def plan(b, n):
    return ["plan", files_dcp(b, RANKS), "--mesh", f"dp={n}", "--placements", "shard(0)", "--items", "--json"]


def steps(bench, count):
    """A run of small DCPs, an hour old."""
    def write(path):
        source = tensors(bench, 2)
        subprocess.run([bench.tessera, "convert", source, path + ".step", "--to", "dcp", "--quiet"], check=True)
        files = {name: open(os.path.join(path + ".step", name), "rb").read() for name in os.listdir(path + ".step")}
        os.makedirs(path)
        for n in range(count):
            os.mkdir(os.path.join(path, f"step-{n}"))
            for name, data in files.items():
                with open(os.path.join(path, f"step-{n}", name), "wb") as f:
                    f.write(data)
                os.utime(f.name, (time.time() - 3600,) * 2)
    return write_once(os.path.join(bench.scratch, f"steps{count}"), write)


OF_STEPS = {
    "latest": lambda b, n: ["latest", steps(b, n)],
    "prune --keep 10 --keep-every 2 --dry-run": lambda b, n: ["prune", steps(b, n), "--keep", "10", "--keep-every", "2", "--dry-run", "--json"],
}


JOBS = {"MANY": [*(functools.partial(one, what=f"tensors: {what}", make=make, whole=TENSORS) for what, make in OF_TENSORS.items()),
                 *(functools.partial(one, what=f"files: {what}", make=make, whole=FILES) for what, make in OF_FILES.items()),
                 functools.partial(one, what="plan --items of ranks", make=plan, whole=RANKS),
                 *(functools.partial(one, what=f"steps: {what}", make=make, whole=STEPS) for what, make in OF_STEPS.items())]}
