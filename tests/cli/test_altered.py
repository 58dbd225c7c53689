"""Unpublished files that someone changes between writing and publication."""
import os
import shutil

from harness import need, test
from test_planted import leftovers
from test_plans import many_units

TARGET = ("--mesh", "dp=3", "--placements", "shard(0)")


def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 0x10]))


def parts(t, to, path):
    """Writes all parts of a plan without publishing them, and keeps a copy of what they left."""
    plan = t.at(f"{to}.json")
    with open(plan, "wb") as f:
        f.write(t.run("plan", path, *TARGET, "--to", to, "--json").stdout)
    for part in (2, 1, 3):
        t.run("exec", plan, t.at(to), "--share", f"{part}/3")
    directory = next(f for f in leftovers(t, to) if os.path.isdir(f))
    shutil.rmtree(t.at("copy"), ignore_errors=True)
    os.mkdir(t.at("copy"))
    for left in leftovers(t, to):
        (shutil.copytree if os.path.isdir(left) else shutil.copy)(left, t.at("copy", os.path.basename(left)))
    return plan, directory


def restore(t, to):
    for left in [*leftovers(t, to), t.at(to)]:
        if os.path.isdir(left):
            shutil.rmtree(left)
        elif os.path.exists(left):
            os.unlink(left)
    shutil.copytree(t.at("copy"), t.directory, dirs_exist_ok=True)


@test
def test_finish_notices_every_change_of_parts(t):
    path = many_units(t)
    for to in ("dcp", "torch", "safetensors"):
        plan, directory = parts(t, to, path)
        for name in sorted(os.listdir(directory)):
            size = os.path.getsize(os.path.join(directory, name))
            for at in (size // 2, 100000, size - 70000):
                restore(t, to)
                flip(os.path.join(directory, name), at)
                p = t.run("exec", plan, t.at(to), "--finish", status=2)
                need(name.encode() in p.stderr and b"changed" in p.stderr, f"{to} {name} byte {at}: {p.stderr}")
                need(not os.path.exists(t.at(to)), "published")
            restore(t, to)
            flip(os.path.join(directory, name), 100000)
            p = t.run("exec", plan, t.at(to), "--finish", "--no-verify")
            need(os.path.exists(t.at(to)), "--no-verify reads")
            for change in ("short", "long", "gone"):
                restore(t, to)
                with open(os.path.join(directory, name), "r+b") as f:
                    f.truncate(size - 5 if change == "short" else size + 5)
                if change == "gone":
                    os.unlink(os.path.join(directory, name))
                for more in ((), ("--no-verify",)):
                    p = t.run("exec", plan, t.at(to), "--finish", *more, status=2)
                    need(name.encode() in p.stderr and (b"removed" if change == "gone" else b"changed") in p.stderr, f"{to} {name} {change}: {p.stderr}")
                    need(not os.path.exists(t.at(to)), "published")
        restore(t, to)
        t.run("exec", plan, t.at(to), "--finish")
        t.run("diff", path, t.at(to), "--values", "-q")
        need(not leftovers(t, to), leftovers(t, to))


@test
def test_a_swapped_file_of_the_same_size_is_noticed(t):
    path = many_units(t)
    plan, directory = parts(t, "torch", path)
    a, b = (os.path.join(directory, f"rank{i}.pt") for i in (0, 1))
    if os.path.getsize(a) == os.path.getsize(b):
        os.rename(a, a + "x")
        os.rename(b, a)
        os.rename(a + "x", b)
        p = t.run("exec", plan, t.at("torch"), "--finish", status=2)
        need(b"rank0.pt" in p.stderr, p.stderr)


@test
def test_a_whole_run_notices_changes_of_the_parts_before_it(t):
    path = many_units(t)
    plan = t.at("plan.json")
    with open(plan, "wb") as f:
        f.write(t.run("plan", path, *TARGET, "--to", "dcp", "--json").stdout)
    for more, status in (((), 2), (("--no-verify",), 0)):
        t.run("exec", plan, t.at("e"), "--share", "1/2")
        directory = next(f for f in leftovers(t, "e") if os.path.isdir(f))
        flip(os.path.join(directory, "__0_0.distcp"), 1 << 20)
        p = t.run("exec", plan, t.at("e"), *more, status=status)
        need(status == 0 or (b"__0_0.distcp" in p.stderr and not os.path.exists(t.at("e"))), p.stderr)
        for left in leftovers(t, "e"):
            shutil.rmtree(left) if os.path.isdir(left) else os.unlink(left)


@test
def test_no_verify_is_refused_where_nothing_would_be_verified(t):
    """What this run itself writes is not read again, so that --no-verify means something only where an earlier run has written."""
    path = many_units(t)
    p = t.run("reshard", path, t.at("out"), *TARGET, "--to", "dcp", "--no-verify", status=2)
    need(b"--no-verify needs --resume" in p.stderr and not os.path.exists(t.at("out")), p.stderr)
    for command in (("convert", path, t.at("out.safetensors")), ("merge", t.at("out.safetensors"), path, path, "--method", "linear")):
        p = t.run(*command, "--no-verify", status=2)
        need(b"--no-verify needs --resume" in p.stderr and not os.path.exists(t.at("out.safetensors")), p.stderr)
    t.run("convert", path, t.at("out.safetensors"), "--no-verify", "--resume")
    t.run("diff", path, t.at("out.safetensors"), "--values", "-q")
