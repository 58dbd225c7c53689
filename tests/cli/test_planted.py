"""Files and links of others among the temporary names of a job: they are neither followed, changed nor removed."""
import os
import shutil
import subprocess

from harness import need, test
from test_overwrite import tree
from test_plans import killed, many_units

JOBS = {"m.safetensors": ("convert", "--to", "safetensors"), "d": ("convert", "--to", "dcp"),
        "r": ("reshard", "--to", "torch", "--mesh", "dp=2", "--placements", "shard(0)")}


def command(job, path, dest, *more):
    name, *options = JOBS[job]
    return (name, path, dest, *options, *more)


def leftovers(t, job):
    """Returns the temporary names that a killed run left, next to the destination and in it."""
    beside = [t.at(f) for f in os.listdir(t.directory) if f.startswith(f".{job}.tessera-")]
    inside = [t.at(job, f) for f in os.listdir(t.at(job)) if ".tessera-" in f] if os.path.isdir(t.at(job)) else []
    return sorted(beside + inside)


def swap_for(kind, left, victim):
    """Replaces what the killed run left by a link to the victim, or to files in it."""
    names = os.listdir(left) if os.path.isdir(left) else None
    for name in names or ():
        with open(os.path.join(victim, name), "wb") as f:
            f.write(b"precious " + name.encode())
    if kind == "inner" and names:
        for name in names:
            os.unlink(os.path.join(left, name))
            os.symlink(os.path.join(victim, name), os.path.join(left, name))
        return
    if names is None:
        os.unlink(left)
    else:
        shutil.rmtree(left)
    target = victim if names is not None else os.path.join(victim, "file")
    if kind == "hard" and names is None:
        os.link(target, left)
    else:
        os.symlink(target, left)


def clear(t, job):
    for path in [*leftovers(t, job), t.at(job)]:
        if os.path.islink(path) or os.path.isfile(path):
            os.unlink(path)
        elif os.path.isdir(path):
            shutil.rmtree(path)


@test
def test_links_in_place_of_what_a_killed_run_left(t):
    path = many_units(t)
    for job in JOBS:
        killed(t, *command(job, path, t.at(job), "--resume"), limit=8 << 20)
        shutil.rmtree(t.at("left"), ignore_errors=True)
        os.mkdir(t.at("left"))
        for left in leftovers(t, job):
            shutil.move(left, t.at("left"))
        names = os.listdir(t.at("left"))
        need(len(names) == 2, f"{job}: a journal and an output, not {names}")
        for name in names:
            for kind in ("symbolic", "hard", "inner"):
                for more in ((), ("--resume",), ("--include", "a")):
                    clear(t, job)
                    shutil.copytree(t.at("left"), t.directory, dirs_exist_ok=True, copy_function=shutil.copy2)
                    shutil.rmtree(t.at("victim"), ignore_errors=True)
                    os.mkdir(t.at("victim"))
                    with open(t.at("victim", "file"), "wb") as f:
                        f.write(b"precious" * 1000)
                    swap_for(kind, t.at(name), t.at("victim"))
                    was = {t.at("victim"): tree(t.at("victim"))}
                    p = t.run(*command(job, path, t.at(job), *more), status=(0, 2))
                    need({f: tree(f) for f in was} == was, f"{job} {name} {kind} {more}: the victim changed: {p.stderr}")
                    need(p.returncode == 0 or name.encode() in p.stderr or b"tessera-" in p.stderr, p.stderr)
                    need(more != () or p.returncode == 0, f"{job} {name} {kind}: a plain run needs no temporary of others: {p.stderr}")
                    need(not os.path.islink(t.at(job)), "the destination is a link")
        clear(t, job)


@test
def test_files_of_others_among_what_a_killed_run_left(t):
    path = many_units(t)
    for job in ("d", "r"):
        for more in ((), ("--resume",), ("--include", "a")):
            killed(t, *command(job, path, t.at(job), "--resume"), limit=8 << 20)
            directory = next(f for f in leftovers(t, job) if os.path.isdir(f))
            for name in ("precious.txt", "model.safetensors"):
                with open(os.path.join(directory, name), "wb") as f:
                    f.write(b"mine")
            p = t.run(*command(job, path, t.at(job), *more), status=(0, 2))
            there = directory if os.path.isdir(directory) else t.at(job)
            need(open(os.path.join(there, "precious.txt"), "rb").read() == b"mine", f"{job} {more}: a foreign file is gone: {p.stderr}")
            need(p.returncode == 0 or b"precious.txt" in p.stderr or b"model.safetensors" in p.stderr, p.stderr)
            need((p.returncode == 2) == ("--resume" in more), f"{job} {more}: {p.stderr}")
            clear(t, job)


@test
def test_files_of_subdirectories_that_a_killed_copy_left(t):
    """The next run removes them and their directories, does not follow a link that replaces a directory, and keeps what it
    does not know."""
    os.makedirs(t.at("source", "step-7"))
    shutil.move(many_units(t), t.at("source", "step-7", "model.safetensors"))
    with open(t.at("source", "latest"), "w") as f:
        f.write("step-7")
    for what in ("plain", "link", "foreign"):
        killed(t, "cp", t.at("source"), t.at("copy"), limit=8 << 20)
        directory = next(f for f in leftovers(t, "copy") if os.path.isdir(f))
        need(os.path.exists(os.path.join(directory, "step-7", "model.safetensors")), os.listdir(directory))
        if what == "link":
            shutil.move(os.path.join(directory, "step-7"), t.at("victim"))
            os.symlink(t.at("victim"), os.path.join(directory, "step-7"))
        if what == "foreign":
            with open(os.path.join(directory, "step-7", "mine.txt"), "w") as f:
                f.write("mine")
        t.run("cp", t.at("source"), t.at("copy"))
        need(what == "plain" or os.path.isdir(directory), f"{what}: the directory is gone")
        need(what != "plain" or not leftovers(t, "copy"), leftovers(t, "copy"))
        need(what != "link" or os.listdir(t.at("victim")) == ["model.safetensors"], "a file behind a link is gone")
        need(what != "foreign" or os.listdir(os.path.join(directory, "step-7")) == ["mine.txt"], "a foreign file is gone")
        clear(t, "copy")


@test
def test_plans_refuse_what_no_part_has_made(t):
    """Parts must find each other's files, so their names can be predicted."""
    path = many_units(t)
    plan = t.at("plan.json")
    with open(plan, "wb") as f:
        f.write(t.run("plan", path, "--mesh", "dp=2", "--placements", "shard(0)", "--to", "dcp", "--json").stdout)
    t.run("exec", plan, t.at("e"), "--share", "1/2")
    journal, directory = sorted(leftovers(t, "e"), key=os.path.isdir)
    for kind in ("link", "directory"):
        os.unlink(journal)
        shutil.rmtree(directory)
        os.mkdir(t.at("victim"))
        with open(t.at("victim", "__0_0.distcp"), "wb") as f:
            f.write(b"precious")
        was = tree(t.at("victim"))
        if kind == "link":
            os.symlink(t.at("victim"), directory)
        else:
            shutil.copytree(t.at("victim"), directory)
        p = t.run("exec", plan, t.at("e"), "--share", "1/2", status=2)
        need(os.path.basename(directory).encode() in p.stderr, p.stderr)
        need(tree(t.at("victim")) == was and tree(directory) == was, f"{kind}: files of others changed")
        shutil.rmtree(t.at("victim"))
        if kind == "link":
            os.unlink(directory)
            t.run("exec", plan, t.at("e"), "--share", "1/2")
            journal, directory = sorted(leftovers(t, "e"), key=os.path.isdir)
    shutil.rmtree(directory)
    parts = [subprocess.Popen([t.path, "exec", plan, t.at("e"), "--share", f"{i}/4"], stderr=subprocess.PIPE) for i in range(1, 5)]
    need(all(p.wait(60) == 0 for p in parts), [p.stderr.read() for p in parts])
    t.run("exec", plan, t.at("e"), "--finish")
    t.run("diff", path, t.at("e"), "--values", "-q")
    need(not leftovers(t, "e"), leftovers(t, "e"))


@test
def test_plans_refuse_files_of_others_in_the_destination(t):
    path = many_units(t)
    plan = t.at("plan.json")
    with open(plan, "wb") as f:
        f.write(t.run("plan", path, "--mesh", "dp=2", "--placements", "shard(0)", "--to", "dcp", "--json").stdout)
    t.run("exec", plan, t.at("e"), "-q")
    t.run("exec", plan, t.at("e"), "--share", "1/2", "--overwrite")
    left = leftovers(t, "e")
    journal, inside = [f for f in left if f.endswith("-of-2")], [f for f in left if os.path.dirname(f) == t.at("e")]
    need(len(journal) == 1 and len(inside) == 2, left)
    for name in left:
        os.unlink(name)
    for kind in ("file", "link"):
        with open(t.at("victim"), "wb") as f:
            f.write(b"precious")
        if kind == "file":
            shutil.copy(t.at("victim"), inside[1])
        else:
            os.symlink(t.at("victim"), inside[1])
        for _ in range(2):  # a failed run must not make the next one accept it
            p = t.run("exec", plan, t.at("e"), "--share", "1/2", "--overwrite", status=2)
            need(os.path.basename(inside[1]).encode() in p.stderr, p.stderr)
            need(leftovers(t, "e") == [inside[1]] and open(inside[1], "rb").read() == b"precious", leftovers(t, "e"))
        os.unlink(inside[1])
