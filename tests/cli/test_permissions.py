"""Whoever may read what is replaced may read the replacement, and no one else may at any time."""
import itertools
import json
import os
import shutil
import stat
import struct
import subprocess

from harness import Skip, need, sample, test
from test_overwrite import FORMS, make, source, tree
from test_plans import killed, many_units

ACL = "system.posix_acl_access"


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def modes(directory):
    return {name: mode(os.path.join(directory, name)) for name in sorted(os.listdir(directory))}


def temporary(t):
    """Returns {path: mode} of everything that a killed run left."""
    found = {}
    for directory, names, files in os.walk(t.directory):
        for name in names + files:
            path = os.path.join(directory, name)
            if ".tessera-" in os.path.relpath(path, t.directory) and not name.endswith(("-of-1", ".publishing")):
                found[os.path.relpath(path, t.directory)] = mode(path)
    return found


def with_umask(mask, function):
    before = os.umask(mask)
    try:
        return function()
    finally:
        os.umask(before)


def user_class(permissions):
    """Returns what users other than the owner may do."""
    return permissions & 0o077


@test
def test_one_replaced_file_keeps_its_mode(t):
    old, new = source(t, "old", 1), source(t, "new", 2)
    for to in ("safetensors", "torch", "torch-sidecar"):
        options = ("--to", to.split("-")[0], *(("--objects", "sidecar") if "-" in to else ()))
        for want in (0o600, 0o640, 0o400, 0o666, 0o755):
            out = t.at(f"{to}-{want:o}")
            t.run("convert", old, out, *options)
            os.chmod(out, want)
            with_umask(0o022, lambda: t.run("convert", new, out, *options, "--overwrite"))
            need(mode(out) == want, f"{to}: {want:o} became {mode(out):o}")
            need(t.json("diff", new, out, "--values", "--json")["same"], "not the new one")


@test
def test_new_files_follow_the_umask(t):
    path = source(t, "new", 2)
    for mask in (0o022, 0o027, 0o077, 0o002):
        for form in FORMS:
            out = t.at(f"{form}-{mask:o}")
            with_umask(mask, lambda: make(t, form, path, out))
            need(mode(out) == 0o777 & ~mask and set(modes(out).values()) == {0o666 & ~mask}, f"{form}, umask {mask:o}: {mode(out):o} {modes(out)}")
        with_umask(mask, lambda: t.run("convert", path, t.at(f"{mask:o}.pt"), "--to", "torch"))
        need(mode(t.at(f"{mask:o}.pt")) == 0o666 & ~mask, f"a file, umask {mask:o}")


@test
def test_a_replaced_directory_opens_to_nobody_else(t):
    old, new = source(t, "old", 1), source(t, "new", 2)
    wants = ((0o700, 0o600, 0o022), (0o750, 0o640, 0o002), (0o755, 0o644, 0o022))
    for i, (before, after) in enumerate(itertools.product(FORMS, FORMS)):
        directory_mode, file_mode, mask = wants[i % len(wants)]
        out = t.at("out")
        make(t, before, old, out)
        for name in os.listdir(out):
            os.chmod(os.path.join(out, name), file_mode)
        os.chmod(out, directory_mode)
        with_umask(mask, lambda: make(t, after, new, out, "--overwrite"))
        need(mode(out) == directory_mode, f"{after} over {before}: the directory has {mode(out):o}, not {directory_mode:o}")
        need(set(modes(out).values()) == {file_mode}, f"{after} over {before}, {file_mode:o}: {modes(out)}")
        shutil.rmtree(out)


@test
def test_files_of_the_same_name_keep_their_modes(t):
    old, new = source(t, "old", 1), source(t, "new", 2)
    wants = {"ranks": (0o600, 0o640), "dcp": (0o640, 0o600)}
    for form, (first, second) in wants.items():
        out = t.at(form)
        make(t, form, old, out)
        before = {name: (first, second)[i % 2] for i, name in enumerate(sorted(os.listdir(out)))}
        for name, want in before.items():
            os.chmod(os.path.join(out, name), want)
        make(t, form, new, out, "--overwrite")
        kept = {name: want for name, want in modes(out).items() if name in before}
        need(kept and kept == {name: before[name] for name in kept}, f"{form}: {before} became {modes(out)}")


@test
def test_unpublished_files_are_no_wider_than_the_old_ones(t):
    path = many_units(t)
    jobs = {"m.pt": ("convert", "--to", "torch"), "d": ("convert", "--to", "dcp"), "s": ("convert", "--to", "safetensors", "--max-shard-size", "4MB"),
            "r": ("reshard", "--to", "torch", "--mesh", "dp=2", "--placements", "shard(0)")}
    small = source(t, "small", 1)
    for name, (command, *options) in jobs.items():
        out = t.at(name)
        t.run(command, small, out, *[option.replace("4MB", "300B") for option in options])
        for directory, _, files in os.walk(out):
            for f in files:
                os.chmod(os.path.join(directory, f), 0o600)
        os.chmod(out, 0o600 if os.path.isfile(out) else 0o700)
        with_umask(0, lambda: killed(t, command, path, out, *options, "--overwrite", "--resume", limit=3 << 20))
        left = temporary(t)
        need(left and not any(map(user_class, left.values())), f"{name}: { {k: oct(v) for k, v in left.items()} }")
        t.run(command, path, out, *options, "--overwrite", "--resume")
        need(not temporary(t) and t.json("diff", path, out, "--values", "--json")["same"], f"{name}: {temporary(t)}")
        need(mode(out) == (0o600 if os.path.isfile(out) else 0o700), f"{name}: {mode(out):o}")


@test
def test_owner_and_group_stay_where_they_may(t):
    if os.geteuid() != 0:
        raise Skip("only root may give files away")
    old, new = source(t, "old", 1), source(t, "new", 2)
    for form in ("torch", "ranks", "dcp"):
        out = t.at(f"out-{form}")
        (lambda: t.run("convert", old, out, "--to", "torch"))() if form == "torch" else make(t, form, old, out)
        for path in [out] + [os.path.join(out, n) for n in (os.listdir(out) if os.path.isdir(out) else ())]:
            os.chown(path, 1234, 5678)
            os.chmod(path, 0o750 if os.path.isdir(path) else 0o640)
        t.run("convert", new, out, "--to", "torch", "--overwrite") if form == "torch" else make(t, form, new, out, "--overwrite")
        for path in [out] + [os.path.join(out, n) for n in (os.listdir(out) if os.path.isdir(out) else ())]:
            info = os.stat(path)
            need((info.st_uid, info.st_gid) == (1234, 5678), f"{form}: {path} belongs to {info.st_uid}:{info.st_gid}")
            need(mode(path) == (0o750 if os.path.isdir(path) else 0o640), f"{form}: {path} has {mode(path):o}")


def access_list(*entries):
    """(tag, permissions, id) as the kernel stores them: 1 owner, 2 user, 4 group, 8 named group, 16 mask, 32 others."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, bits, 0xffffffff if who is None else who) for tag, bits, who in entries)


@test
def test_access_lists_stay(t):
    old, new = source(t, "old", 1), source(t, "new", 2)
    want = access_list((1, 6, None), (2, 4, 4321), (4, 0, None), (16, 4, None), (32, 0, None))
    wide = access_list((1, 7, None), (2, 7, 4321), (4, 7, None), (16, 7, None), (32, 5, None))
    t.run("convert", old, t.at("a.pt"), "--to", "torch")
    try:
        os.setxattr(t.at("a.pt"), ACL, want)
    except OSError as e:
        raise Skip(e)
    t.run("convert", new, t.at("a.pt"), "--to", "torch", "--overwrite")
    need(os.getxattr(t.at("a.pt"), ACL) == want and mode(t.at("a.pt")) == 0o640, f"{mode(t.at('a.pt')):o}")
    # the list that the directory gives to new files is not given to one that replaces a file without a list
    t.run("convert", old, t.at("b.pt"), "--to", "torch")
    os.chmod(t.at("b.pt"), 0o640)
    os.setxattr(t.directory, "system.posix_acl_default", wide)
    t.run("convert", new, t.at("b.pt"), "--to", "torch", "--overwrite")
    need(ACL not in os.listxattr(t.at("b.pt")) and mode(t.at("b.pt")) == 0o640, f"{os.listxattr(t.at('b.pt'))} {mode(t.at('b.pt')):o}")


@test
def test_a_directory_that_may_not_be_written_is_named(t):
    """Not the hidden file that would be created in it. A destination that exists there is said to exist."""
    if os.geteuid() != 0:
        raise Skip("needs root, to run the program as another user")
    path, mesh = source(t, "source", 1), ("--mesh", "dp=2", "--placements", "shard(0)")
    os.mkdir(t.at("closed"))
    os.chmod(t.directory, 0o755)
    for out, options in (("m.safetensors", ()), ("m.pt", ()), ("d", ("--to", "dcp"))):
        for command in (("convert", path), ("cp", path), ("reshard", path, *mesh)):
            for exists in (False, True):
                if exists:
                    os.mkdir(t.at("closed", out))
                args = [*command[:2], t.at("closed", out), *command[2:], *(options if command[0] == "convert" else ())]
                p = subprocess.run([t.path, *args], capture_output=True, text=True, user=65534, group=65534, extra_groups=[])
                need(p.returncode == 2 and t.at("closed") in p.stderr and ".tessera-" not in p.stderr, f"{args}: {p.stderr}")
                need(("exists" in p.stderr) == exists, f"{args}: {p.stderr}")
                if exists:
                    os.rmdir(t.at("closed", out))


@test
def test_a_file_that_may_not_be_linked_is_refused_before_writing(t):
    """fs.protected_hardlinks: a user cannot link to a file of someone else that it may not write."""
    with open("/proc/sys/fs/protected_hardlinks") as f:
        protected = f.read().strip() == "1"
    if os.geteuid() != 0 or not protected:
        raise Skip("needs root and fs.protected_hardlinks=1")
    nobody = 65534
    old, new, out = source(t, "old", 1), source(t, "new", 2), t.at("place", "out")
    os.mkdir(t.at("place"))
    make(t, "ranks", old, out)
    for path in (t.at("place"), out, *(os.path.join(out, name) for name in os.listdir(out))):
        os.chown(path, nobody, nobody)
    with open(os.path.join(out, "notes.txt"), "w") as f:
        f.write("root's")
    os.chmod(t.directory, 0o755)
    program = shutil.copy(t.path, t.at("tessera"))  # the other user may not reach the build directory
    before = tree(out)
    command, *options = FORMS["ranks"]
    p = subprocess.run([program, command, new, out, *options, "--overwrite"], capture_output=True, text=True, user=nobody, group=nobody, extra_groups=[])
    need(p.returncode == 2 and "'notes.txt' in 'out'" in p.stderr and "Operation not permitted" in p.stderr, f"{p.returncode} {p.stderr}")
    need(tree(out) == before and os.listdir(t.at("place")) == ["out"], f"{os.listdir(t.at('place'))}")
    os.chown(os.path.join(out, "notes.txt"), nobody, nobody)
    p = subprocess.run([program, command, new, out, *options, "--overwrite"], capture_output=True, text=True, user=nobody, group=nobody, extra_groups=[])
    need(p.returncode == 0 and tree(out)["notes.txt"] == b"root's", p.stderr)


@test
def test_a_file_that_may_not_be_read_is_reported_once(t):
    path = t.at("ckpt")
    shutil.copytree(sample("dcp_fsdp2")[0], path)
    closed = os.path.join(path, "__1_0.distcp")
    os.chmod(closed, 0)
    # root without capabilities is subject to permissions, too
    bare = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []
    for options, status in ((("--deep",), 2), ((), 1)):
        p = subprocess.run([*bare, t.path, "validate", path, *options, "--json"], capture_output=True, timeout=60)
        findings = json.loads(p.stdout)["findings"]
        need(p.returncode == status and [(f["rule"], f["file"]) for f in findings] == [("file/io", "__1_0.distcp")], f"{options}: {p.returncode} {findings}")
        need("Permission denied" in findings[0]["message"], findings)
    p = subprocess.run([*bare, t.path, "validate", path, "--deep", "--rule", "file/io=warning"], capture_output=True, timeout=60)
    need(p.returncode == 2, f"lowered: {p.returncode}")
    for command in (("inspect", path, "--hash", "xxh3"), ("convert", path, t.at("out"), "--to", "dcp"), ("diff", path, path, "--values")):
        p = subprocess.run([*bare, t.path, *command], capture_output=True, timeout=60)
        need(p.returncode == 2 and p.stderr.count(b"Permission denied") == 1, f"{command[0]}: {p.returncode} {p.stderr}")
    os.chmod(closed, 0o600)
    t.run("validate", path, "--deep")
