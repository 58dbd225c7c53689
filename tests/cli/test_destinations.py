"""Destinations: names that end in '/', '-', --max-shard-size, --resume of a job that is complete, and files that would be loaded
instead of the new checkpoint."""
import json
import os
import re
import shutil
import struct

from harness import need, sample, st_write, test
from test_plans import deep_tree, killed, many_units, tree

FLOATS = struct.Struct("<12f")


def model(t, name="model.safetensors", first=1.0, **more):
    """Two tensors whose values differ from each other, and between files with another `first`."""
    path = t.at(name)
    rows = lambda at: FLOATS.pack(*(first + at + i / 8 for i in range(12)))
    st_write(path, {"m.a": ("F32", [3, 4], rows(0)), "m.b": ("F32", [3, 4], rows(100)), **more})
    return path


def names(path):
    return sorted(os.listdir(path))


@test
def test_dest_with_a_slash_is_a_directory(t):
    path = model(t)
    for command in (["convert", path, "{}"], ["merge", "{}", path, path, "--method", "linear"]):
        for to, wanted in (("safetensors", ["model.safetensors"]), ("torch", ["pytorch_model.bin"])):
            out = t.at(f"{command[0]}-{to}")
            t.run(*(a.format(out + "/") for a in command), "--to", to)
            need(names(out) == wanted, f"{command[0]} --to {to}: {names(out)}")
            t.run("diff", path, out, "--values")
            single = t.at("single." + wanted[0].split(".")[1])
            t.run(*(a.format(single) for a in command), "--to", to)
            need(tree(out)[wanted[0]] == open(single, "rb").read(), "other bytes than those of a single file")
            os.unlink(single)
            p = t.run(*(a.format(out + "/") for a in command), "--to", to, status=2)
            need(b"exists; --overwrite replaces the checkpoint in it" in p.stderr, p.stderr)
            open(os.path.join(out, "config.json"), "w").write("{}")
            t.run(*(a.format(out + "/") for a in command), "--to", to, "--overwrite", "--dtype", "bfloat16")
            need(names(out) == sorted([*wanted, "config.json"]), f"--overwrite: {names(out)}")
            need({e["dtype"] for e in t.json("inspect", os.path.join(out, wanted[0]), "--json")["entries"]} == {"bfloat16"}, "not replaced")
    need(not [f for f in names(t.directory) if ".tessera-" in f], names(t.directory))
    p = t.run("convert", path, t.at("convert-torch"), "--to", "torch", status=2)
    need(b"exists and is a directory" in p.stderr and b"give the file's name" in p.stderr, p.stderr)
    p = t.run("convert", path, t.at("nothing/"), status=2)
    need(b"cannot infer" in p.stderr and not os.path.exists(t.at("nothing")), p.stderr)
    p = t.run("convert", path, model(t, "file") + "/", "--to", "torch", status=2)
    need(b"exists and is a file, but a directory" in p.stderr, p.stderr)


@test
def test_dest_with_a_slash_keeps_the_name_of_a_file(t):
    path = model(t)
    t.run("cp", path, t.at("copies/"))
    t.run("cp", model(t, "other.safetensors", 2.0), t.at("copies/"))
    need(names(t.at("copies")) == ["model.safetensors", "other.safetensors"], names(t.at("copies")))
    p = t.run("cp", path, t.at("copies/"), status=2)
    need(b"copies/model.safetensors' exists; --overwrite replaces it" in p.stderr, p.stderr)
    t.run("cp", t.at("other.safetensors"), t.at("model.safetensors"), "--overwrite")
    t.run("cp", path, t.at("copies/"), "--overwrite")
    need(len(set(tree(t.at("copies")).values())) == 1, "not replaced, or another file was touched")

    state, _ = sample("torch_train_state")
    file = next(os.path.join(state, f) for f in os.listdir(state)) if os.path.isdir(state) else state
    for _ in range(2):
        t.run("optim", "flatten", file, t.at("flat/"), "--resume")
        need(names(t.at("flat")) == [os.path.basename(file)], names(t.at("flat")))
    t.run("optim", "flatten", sample("dcp_fsdp2")[0] + "/", t.at("flat/"))
    need(names(t.at("flat")) == sorted([os.path.basename(file), "dcp_fsdp2.pt"]), "the state of a directory")

    ckpt = t.at("ckpt")
    shutil.copytree(sample("dcp_small")[0], ckpt)
    os.unlink(os.path.join(ckpt, ".metadata"))
    t.run("repair", ckpt, t.at("rebuilt/"), "--like", sample("dcp_small")[0], status=(0, 1))
    need(names(t.at("rebuilt")) == [".metadata"], names(t.at("rebuilt")))


@test
def test_dest_is_never_standard_output(t):
    path, ckpt = model(t), sample("dcp_small")[0]
    here = os.getcwd()
    os.chdir(t.directory)
    try:
        for args in (["convert", path, "-"], ["merge", "-", path, path, "--method", "linear"], ["convert", path, "-", "--to", "safetensors"], ["convert", path, "-", "--to", "dcp", "--dry-run"], ["convert", path, "-", "--max-shard-size", "1KB"],
                     ["merge", "-", path, path, "--method", "linear", "--to", "torch"], ["reshard", path, "-", "--mesh", "dp=2", "--placements", "shard(0)"],
                     ["cp", path, "-"], ["cp", ckpt, "-", "--resume"], ["optim", "flatten", sample("dcp_fsdp2")[0], "-"]):
            p = t.run(*args, status=2)
            need(b"'-' cannot be a destination" in p.stderr and not os.path.lexists("-"), f"{args}: {p.stderr}")
        t.run("convert", path, "./-", "--to", "safetensors")
        need(os.path.isfile("-"), "./- is a name like any other")
    finally:
        os.chdir(here)


@test
def test_max_shard_size_implies_safetensors(t):
    path = model(t)
    for out in ("plain", "slash/", "named.safetensors"):
        t.run("convert", path, t.at(out), "--max-shard-size", "60B")
        need(len([f for f in names(t.at(out)) if f.endswith(".safetensors")]) == 2, f"{out}: {names(t.at(out))}")
        t.run("diff", path, t.at(out), "--values")
    t.run("merge", t.at("sum"), path, path, "--method", "linear", "--max-shard-size", "60B")
    t.run("diff", path, t.at("sum"), "--values")
    p = t.run("convert", path, t.at("x.pt"), "--max-shard-size", "60B", status=2)
    need(b"--max-shard-size can only be used with --to safetensors" in p.stderr, p.stderr)


# What can be resumed: a command for (source, destination), and options with which it is another job.
JOBS = {
    "file": (["convert", "{}", "out.safetensors"], [["--dtype", "bfloat16"], ["--rename", "m.=n."], ["--include", "m.a"]]),
    "torch": (["convert", "{}", "out.pt"], [["--dtype", "float16"], ["--rename", "m.a=n"]]),
    "directory": (["convert", "{}", "out/", "--to", "torch"], [["--dtype", "bfloat16"], ["--exclude", "m.b"]]),
    "shards": (["convert", "{}", "out", "--max-shard-size", "60B"], [["--dtype", "bfloat16"], ["--max-shard-size", "70B"], ["--max-shard-size", "1KB"]]),
    "dcp": (["convert", "{}", "out", "--to", "dcp"], [["--rename", "m.=n."], ["--include", "m.a"]]),
    "reshard": (["reshard", "{}", "out", "--mesh", "dp=2", "--placements", "shard(0)", "--to", "dcp"], [["--placements", "shard(1)"], ["--mesh", "dp=3"], ["--to", "safetensors"]]),
    "ranks": (["reshard", "{}", "out", "--mesh", "dp=2", "--placements", "shard(0)", "--to", "torch"], [["--placements", "replicate"]]),
    "merge": (["merge", "out.safetensors", "{}", "base.safetensors", "--method", "linear"], [["--weight", "1", "--weight", "3"], ["--no-normalize"]]),
    "cp": (["cp", "{}", "out.safetensors"], []),
}


@test
def test_resume_of_a_complete_job(t):
    """A second run with --resume ends 0, and touches nothing. Another job is refused, also where only values differ, and so is
    a destination that is not what the job wrote, down to a flipped bit anywhere."""
    model(t, "base.safetensors", 7.0)
    source, twin = model(t, "source.safetensors", 1.0), model(t, "twin.safetensors", 3.0)
    need(os.path.getsize(source) == os.path.getsize(twin), "the twin has other sizes")
    here = os.getcwd()
    os.chdir(t.directory)
    try:
        for kind, (command, others) in JOBS.items():
            run = lambda path, *more, status=0: t.run(*(a.format(path) for a in command), *more, status=status)
            out = next(a for a in command if a.startswith("out")).rstrip("/")
            run(source)
            before = tree(out)
            stamp = lambda: {f: os.stat(os.path.join(out, f)).st_mtime_ns for f in before if f}
            times = stamp()
            for more in ([], ["--overwrite"]):
                p = run(source, "--resume", *more)
                need(b"already complete" in p.stderr and b"nothing to resume" not in p.stderr, f"{kind}: {p.stderr}")
            need(tree(out) == before and stamp() == times, f"{kind}: it was written again")
            for other in others:
                p = run(source, "--resume", *other, status=2)
                need(b"exist" in p.stderr and tree(out) == before, f"{kind} {other}: {p.stderr}")
            p = run(twin, "--resume", status=2)
            need(b"exists, and is not what this job writes" in p.stderr and tree(out) == before, f"{kind}: {p.stderr}")
            damaged(t, kind, out, before, lambda: run(source, "--resume", status=2))
            if os.path.isdir(out):
                open(os.path.join(out, "config.json"), "w").write("{}")
                need(b"already complete" in run(source, "--resume").stderr, f"{kind}: next to a file of the user")
            run(twin, "--resume", "--overwrite")
            need({f: d for f, d in tree(out).items() if f != "config.json"} != before, f"{kind}: --overwrite does not replace another job's")
            need(b"already complete" in run(twin, "--resume", "--overwrite").stderr, f"{kind}: after --overwrite")
            need(b"already complete" in run(twin, "--resume").stderr, f"{kind}: later")
            shutil.rmtree(out) if os.path.isdir(out) else os.unlink(out)
            need(not [f for f in names(t.directory) if f.startswith(".")], f"{kind}: {names(t.directory)}")
    finally:
        os.chdir(here)


def damaged(t, kind, out, good, resume):
    for name, data in good.items():
        path = os.path.join(out, name) if name else out
        for at in {0, len(data) // 3, len(data) // 2, len(data) - 1}:
            with open(path, "wb") as f:
                f.write(data[:at] + bytes([data[at] ^ 4]) + data[at + 1:])
            p = resume()
            need(b"exists, and is not what this job writes" in p.stderr, f"{kind}: byte {at} of '{name}' was changed: {p.stderr}")
        for changed in (data[:-1], data + b"\0", data[:len(data) // 2]):
            with open(path, "wb") as f:
                f.write(changed)
            need(b"exists" in resume().stderr and open(path, "rb").read() == changed, f"{kind}: {len(changed)} bytes of '{name}'")
        if name:
            os.unlink(path)
            need(b"exists" in resume().stderr and not os.path.exists(path), f"{kind}: without '{name}'")
        with open(path, "wb") as f:
            f.write(data)


@test
def test_resume_compares_objects_of_a_sidecar(t):
    path, _ = sample("dcp_small")
    out = t.at("out.safetensors")
    job = lambda objects, status=0: t.run("convert", path, out, "--objects", objects, "--resume", status=status).stderr
    job("sidecar")
    need(b"already complete" in job("sidecar"), "the same job")
    need(b".objects.json' is not written by it" in job("drop", 2), "a job without a sidecar")
    data = open(out + ".objects.json", "rb").read()
    for changed in (data.replace(b"step", b"stop"), data[:-1]):
        open(out + ".objects.json", "wb").write(changed)
        need(b"exists, and is not" in job("sidecar", 2), changed)
    os.unlink(out + ".objects.json")
    need(b"is missing" in job("sidecar", 2) and b"already complete" in job("drop"), "without the sidecar")


@test
def test_resume_of_a_complete_plan_and_of_a_kill(t):
    path = many_units(t)
    with open(t.at("plan.json"), "w") as f:
        f.write(t.text("plan", path, "--mesh", "dp=2", "--placements", "shard(0)", "--json"))
    job = lambda *more, status=0: t.run("exec", t.at("plan.json"), t.at("out"), *more, status=status)
    killed(t, "exec", t.at("plan.json"), t.at("out"), limit=20 << 20)
    need(not os.path.exists(t.at("out")), "published")
    p = job("--resume")
    need(b"already complete" not in p.stderr, f"an unfinished run: {p.stderr}")
    before = tree(t.at("out"))
    for more in ((), ("--share", "2/3"), ("--finish",), ("--dry-run",)):
        need(b"already complete" in job("--resume", *more).stderr and tree(t.at("out")) == before, more)
    doc = t.json("exec", t.at("plan.json"), t.at("out"), "--resume", "--json")
    need(doc["published"] and doc["work"]["left"] == 0 and doc["work"]["found_done"] == doc["work"]["units"], doc["work"])
    need(b"exists" in job(status=2).stderr, "without --resume")
    with open(t.at("plan.json"), "w") as f:
        f.write(t.text("plan", path, "--mesh", "dp=3", "--placements", "shard(0)", "--json"))
    need(b"exists, and is not" in job("--resume", status=2).stderr, "another plan")
    # A run that was interrupted while it replaced a checkpoint continues; it is not complete.
    killed(t, "convert", path, t.at("out"), "--to", "dcp", "--overwrite", "--resume", limit=20 << 20)
    p = t.run("convert", path, t.at("out"), "--to", "dcp", "--overwrite", "--resume")
    need(b"nothing to resume" not in p.stderr and b"already complete" not in p.stderr, p.stderr)


@test
def test_resume_of_a_complete_optimizer(t):
    source, other = t.at("optim.pt"), t.at("other.pt")
    t.run("optim", "unflatten", sample("dcp_fsdp2_flat_optim")[0], source)
    t.run("optim", "unflatten", sample("dcp_fsdp2_flat_optim")[0], other)
    data = open(other, "rb").read()
    job = lambda path, *more, status=0: t.run("optim", "flatten", path, t.at("flat.pt"), *more, status=status).stderr
    need(b"already complete" not in job(source, "--resume"), "the first run")
    before = tree(t.at("flat.pt"))
    need(b"already complete" in job(source, "--resume") and tree(t.at("flat.pt")) == before, "the second")
    doc = t.json("optim", "flatten", source, t.at("flat.pt"), "--resume", "--json")
    need(doc["files"] == 1, doc)
    need(b"exists" in job(source, status=2), "without --resume")
    flipped = bytearray(before[""])
    flipped[len(flipped) // 2] ^= 1
    open(t.at("flat.pt"), "wb").write(flipped)
    need(b"exists, and is not what this job writes" in job(source, "--resume", status=2), "a flipped bit")
    job(source, "--resume", "--overwrite")
    need(tree(t.at("flat.pt")) == before, "--overwrite")
    need(data == open(other, "rb").read(), "an input was touched")


@test
def test_resume_of_a_complete_optimizer_in_a_dcp(t):
    """The same as of a torch file: what --resume does, and what the two forms report, as text and as JSON."""
    source = t.at("optim.pt")
    t.run("optim", "unflatten", sample("dcp_fsdp2_flat_optim")[0], source)
    job = lambda action, *more, status=0: t.run("optim", action, source, t.at("out"), "--to", "dcp", *more, status=status)
    wrote = job("flatten")
    need(wrote.stderr.startswith(f"wrote {t.at('out')}: ".encode()) and wrote.stderr.count(b"\n") == 1 and not wrote.stdout, wrote)
    before = tree(t.at("out"))
    for more in (["--resume"], ["--resume", "--overwrite"]):
        need(b"already complete" in job("flatten", *more).stderr and tree(t.at("out")) == before, more)
    p = job("flatten", "--resume", "--json")
    need(json.loads(p.stdout)["files"] == 1 and not p.stderr, p)
    p = job("flatten", "--overwrite", "--json")
    need(json.loads(p.stdout)["schema"] == "tessera.optim/1" and not p.stderr, p)
    before = tree(t.at("out"))
    need(b"exists" in job("flatten", status=2).stderr, "without --resume")
    t.run("optim", "flatten", source, t.at("flat.pt"))
    source = t.at("flat.pt")
    need(b"exists, and is not what this job writes" in job("unflatten", "--resume", status=2).stderr and tree(t.at("out")) == before, "another job")


@test
def test_a_complete_output_is_counted_as_it_was_when_it_was_written(t):
    path = sample("dcp_fsdp2_flat_optim")[0]
    job = lambda *more: t.run("reshard", path, t.at("out"), "--mesh", "dp=3", "--placements", "shard(0)", *more)
    contents = lambda p: re.search(r"[0-9]+ tensors.* in 3 files", p.stderr.decode()).group()
    wrote = contents(job())
    need(" objects, " in wrote and contents(job("--resume")) == wrote, wrote)


@test
def test_resume_of_a_complete_copy(t):
    path = t.at("source")
    shutil.copytree(sample("dcp_fsdp2")[0], path)
    os.makedirs(os.path.join(path, "deep"))
    open(os.path.join(path, "deep", "notes.txt"), "w").write("more")
    t.run("cp", path, t.at("copy"), "--resume")
    before = deep_tree(t.at("copy"))
    open(t.at("copy", "mine.txt"), "w").write("mine")
    p = t.run("cp", path, t.at("copy"), "--resume")
    need(b"already complete" in p.stderr and deep_tree(t.at("copy")) == {**before, "mine.txt": b"mine"}, p.stderr)
    open(os.path.join(path, "deep", "notes.txt"), "w").write("most")
    p = t.run("cp", path, t.at("copy"), "--resume", status=2)
    need(b"'deep/notes.txt' has other contents" in p.stderr, p.stderr)
    open(os.path.join(path, "deep", "notes.txt"), "w").write("more")
    open(os.path.join(path, "new.txt"), "w").write("new")
    p = t.run("cp", path, t.at("copy"), "--resume", status=2)
    need(b"'new.txt' is missing" in p.stderr, p.stderr)
    # Without a list of its files, a directory is what it contains.
    os.makedirs(t.at("two"))
    model(t, "two/a.safetensors"), model(t, "two/b.safetensors", 5.0)
    t.run("cp", t.at("two"), t.at("twice"))
    model(t, "twice/c.safetensors", 9.0)
    p = t.run("cp", t.at("two"), t.at("twice"), "--resume", status=2)
    need(b"'c.safetensors' is not written by it" in p.stderr, p.stderr)


@test
def test_dest_whose_reader_would_load_a_kept_file(t):
    """transformers loads the first that exists of model.safetensors, its index, pytorch_model.bin and its index."""
    new, old = model(t, "new.safetensors", 1.0), model(t, "old.safetensors", 2.0)
    shards = ["--max-shard-size", "60B", "--overwrite"]
    refused = lambda name, *args: need(name in t.run("convert", new, t.at("out"), *args, status=2).stderr, f"{args} does not name {name}")
    t.run("convert", old, t.at("out"), "--to", "dcp")
    shutil.copy(old, t.at("out", "model.safetensors"))
    before = tree(t.at("out"))
    refused(b"'model.safetensors'", *shards)
    refused(b"'model.safetensors'", *shards, "--dry-run")
    need(tree(t.at("out")) == before, "something was written")
    os.unlink(t.at("out", "model.safetensors"))
    t.run("convert", old, t.at("out", "pytorch_model.bin"))  # loaded only where there is no safetensors
    t.run("convert", new, t.at("out"), *shards)
    t.run("diff", new, t.at("out"), "--values")
    before = tree(t.at("out"))
    need("pytorch_model.bin" in before and ".metadata" not in before, list(before))

    shutil.rmtree(t.at("out"))
    os.makedirs(t.at("out"))
    shutil.copy(old, t.at("out", "model.safetensors"))
    p = t.run("convert", new, t.at("out/"), "--to", "torch", "--overwrite", status=2)
    need(b"'model.safetensors'" in p.stderr and names(t.at("out")) == ["model.safetensors"], p.stderr)
    p = t.run("convert", new, t.at("out", "pytorch_model.bin"))
    need(b"transformers loads 'model.safetensors'" in p.stderr, p.stderr)
    p = t.run("convert", new, t.at("elsewhere.bin"))
    need(b"transformers" not in p.stderr, p.stderr)

    t.run("convert", new, t.at("shards"), "--max-shard-size", "60B")
    shutil.rmtree(t.at("out"))
    t.run("convert", old, t.at("out"), "--to", "dcp")
    shutil.copy(old, t.at("out", "model.safetensors"))
    p = t.run("cp", t.at("shards"), t.at("out"), "--overwrite", status=2)
    need(b"'model.safetensors'" in p.stderr, p.stderr)
    shutil.copy(old, t.at("shards", "model.safetensors"))
    t.run("cp", t.at("shards"), t.at("out"), "--overwrite")  # the copy has it too
    need(open(t.at("out", "model.safetensors"), "rb").read() == open(old, "rb").read(), "the copy")
    t.run("convert", old, t.at("out"), "--to", "dcp", "--overwrite", status=(0, 2))  # PyTorch reads .metadata only
