"""Any byte that changes in any file that a command has written is reported: by a deep check of the output, or by the command that
finishes it. test_check_flips does the same for the forms of a conversion, in memory. TSR_TEST_FULL=1 flips 20,000 bytes instead of 500."""
import json
import os
import random
import shutil

from harness import SAMPLES, need, test
from test_shards import ranks

FLIPS = 20000 if os.environ.get("TSR_TEST_FULL") else 500
MODEL = os.path.join(SAMPLES, "safetensors_model", "model.safetensors")
STATE = os.path.join(SAMPLES, "dcp_fsdp2")


def document(t, name, value):
    with open(t.at(name), "w") as f:
        json.dump(value, f)
    return t.at(name)


def of_shards(t):
    rules = {"schema": "tessera.shards/1", "rules": [{"match": "w", "concat": 0}, {"match": "n", "replicate": True}]}
    source, shards = ranks(t), document(t, "shards.json", rules)
    for out in ("shards.safetensors", "shards.pt"):
        t.run("convert", source, t.at(out), "--shards", shards, "-q")
        yield out, [out]
    t.run("convert", source, t.at("shards"), "--to", "dcp", "--shards", shards, "-q")
    yield "shards", ["shards"]


def of_objects(t):
    more = ("--to", "safetensors", "--objects", "sidecar", "-q")
    t.run("convert", STATE, t.at("objects"), *more, "--max-shard-size", "20KB")
    yield "objects", ["objects"]
    t.run("convert", STATE, t.at("objects.safetensors"), *more)
    yield "objects.safetensors", ["objects.safetensors", "objects.safetensors.objects.json"]


def of_optim(t):
    with open(STATE + ".expect.json") as f:
        entries = json.load(f)["entries"]
    shapes = {n[len("optim.state."):-len(".exp_avg")]: e["shape"] for n, e in entries.items() if n.startswith("optim.state.") and n.endswith(".exp_avg")}
    unit = {"fsdp_module": "", "raw_name": "_flat_param", "params": [{"fqn": n, "shape": s} for n, s in shapes.items()],
            "numels_with_padding": [volume(s) for s in shapes.values()], "is_padding_mask": [False] * len(shapes), "sharding_strategy": "FULL_SHARD"}
    flat = ("--flat-params", document(t, "flat.json", {"schema": "tessera.flat-params/1", "world_size": 2, "use_orig_params": False, "files": ["rank0.pt", "rank1.pt"],
                                                       "units": [unit], "param_groups": [["_flat_param"]]}), "-q")
    t.run("optim", "shard", STATE, t.at("raw"), *flat)
    for out, *more in (("full.pt",), ("full", "--to", "dcp"), ("rows", "--sharded")):
        t.run("optim", "unshard", t.at("raw"), t.at(out), *more, *flat)
        yield out, [out]
    for to, out in (("torch", "flat.pt"), ("dcp", "flat")):
        t.run("optim", "flatten", STATE, t.at(out), "--to", to, "-q")
        yield out, [out]
    yield "raw", ["raw"]


def volume(shape):
    return shape[0] * volume(shape[1:]) if shape else 1


def of_merge(t):
    for out, *more in (("merged", "--max-shard-size", "300B"), ("merged.pt",)):
        t.run("merge", t.at(out), MODEL, MODEL, "--method", "linear", *more, "-q")
        yield out, [out]


def of_repair(t):
    t.run("convert", STATE, t.at("lost"), "--to", "dcp", "-q")
    os.remove(t.at("lost", ".metadata"))
    t.run("repair", t.at("lost"), t.at("found.metadata"), "--like", STATE, "-q", status=(0, 1))
    os.rename(t.at("found.metadata"), t.at("lost", ".metadata"))
    yield "lost", ["lost"]
    t.run("convert", MODEL, t.at("short.pt"), "-q")
    os.truncate(t.at("short.pt"), os.path.getsize(t.at("short.pt")) - 300)
    t.run("repair", t.at("short.pt"), t.at("whole.pt"), "-q", status=(0, 1))
    yield "whole.pt", ["whole.pt"]
    shutil.copy(MODEL, t.at("long.safetensors"))
    with open(t.at("long.safetensors"), "ab") as f:
        f.write(b"left over")
    t.run("repair", t.at("long.safetensors"), t.at("mended.safetensors"), "-q")
    yield "mended.safetensors", ["mended.safetensors"]


def of_copies(t):
    for source, copy in (("rows", "copied"), ("merged", "copied_index")):
        t.run("cp", t.at(source), t.at(copy), "-q")
        yield copy, [copy]


def plan(t, to):
    with open(t.at("plan.json"), "wb") as f:
        f.write(t.run("plan", MODEL, "--mesh", "dp=2", "--placements", "shard(0)", "--to", to, "--json").stdout)


def of_exec(t):
    for to in ("dcp", "safetensors", "torch"):
        plan(t, to)
        for share in ("2/2", "1/2"):
            t.run("exec", t.at("plan.json"), t.at("of_" + to), "--share", share, "-q")
        t.run("exec", t.at("plan.json"), t.at("of_" + to), "--finish", "-q")
        yield "of_" + to, ["of_" + to]


def files_in(paths):
    """The files that are not empty, with their sizes."""
    found = [os.path.join(directory, name) for path in paths for directory, _, names in os.walk(path) for name in names] + [p for p in paths if os.path.isfile(p)]
    return [(path, os.path.getsize(path)) for path in sorted(found) if os.path.getsize(path)]


def flip(rng, files):
    """Changes one byte of all files, and returns what restores it."""
    at = rng.randrange(sum(size for _, size in files))
    for path, size in files:
        if at < size:
            break
        at -= size
    with open(path, "r+b") as f:
        f.seek(at)
        was = f.read(1)
        f.seek(at)
        f.write(bytes([was[0] ^ rng.randrange(1, 256)]))
    return path, at, was


def restore(path, at, was):
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(was)


def outputs_of_all(t):
    return [output for of in (of_shards, of_objects, of_optim, of_merge, of_repair, of_copies, of_exec) for output in of(t)]


@test
def test_flips_in_what_commands_write_are_reported(t):
    outputs = outputs_of_all(t)
    rng, missed = random.Random(44), []
    for out, paths in outputs:
        t.run("validate", "--deep", t.at(out), "-q")
        files = files_in([t.at(path) for path in paths])
        for _ in range(FLIPS // len(outputs)):
            path, at, was = flip(rng, files)
            if t.run("validate", "--deep", t.at(out), "-q", status=(0, 1, 2)).returncode == 0:
                missed.append(f"{out}: byte {at} of {os.path.relpath(path, t.directory)}")
            restore(path, at, was)
        t.run("validate", "--deep", t.at(out), "-q")
    need(not missed, missed)


@test
def test_flips_are_not_all_appended_bytes_are_reported_too(t):
    """White space, which readers of JSON accept, and zeros of a copy that reserved blocks, at the end of each file."""
    missed, known = [], {"dcp/dead-bytes", "file/crc", "pickle/trailing-bytes", "safetensors/crc", "safetensors/trailing-bytes"}
    for out, paths in outputs_of_all(t):
        for path, size in files_in([t.at(path) for path in paths]):
            for tail in (b" ", b"\n", b"\t " * 32 + b"\n", bytes(5000)):
                with open(path, "ab") as f:
                    f.write(tail)
                p = t.run("validate", "--deep", t.at(out), "--json", status=(0, 1, 2))
                found = {f["rule"] for f in json.loads(p.stdout)["findings"]}
                if p.returncode != 2 and not found & known:
                    missed.append(f"{out}: {tail[:2]} * {len(tail)} after {os.path.relpath(path, t.directory)}: {found}")
                os.truncate(path, size)
    need(not missed, missed)


@test
def test_flips_in_shares_never_reach_the_output(t):
    """What `exec --finish` publishes is what it would have been, or it refuses: it checks what the shares wrote."""
    rng = random.Random(45)
    for to in ("dcp", "safetensors", "torch"):
        plan(t, to)
        os.makedirs(t.at("shares"))
        for share in ("1/2", "2/2"):
            t.run("exec", t.at("plan.json"), t.at("shares", "out"), "--share", share, "-q")
        shutil.copytree(t.at("shares"), t.at("whole"))
        t.run("exec", t.at("plan.json"), t.at("whole", "out"), "--finish", "-q")
        want = {os.path.relpath(path, t.at("whole")): open(path, "rb").read() for path, _ in files_in([t.at("whole")])}
        for _ in range(FLIPS // 50):
            shutil.copytree(t.at("shares"), t.at("flipped"))
            done = flip(rng, files_in([t.at("flipped")]))
            status = t.run("exec", t.at("plan.json"), t.at("flipped", "out"), "--finish", "-q", status=(0, 2)).returncode
            got = {os.path.relpath(path, t.at("flipped")): open(path, "rb").read() for path, _ in files_in([t.at("flipped", "out")])}
            need(got == ({} if status else want), f"{to}: status {status} after {done}: {sorted(got)}")
            shutil.rmtree(t.at("flipped"))
        shutil.rmtree(t.at("shares"))
        shutil.rmtree(t.at("whole"))
