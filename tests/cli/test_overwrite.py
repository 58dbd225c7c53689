"""What --overwrite replaces, what it leaves alone, and what it refuses: every format over every format, among files that
belong to someone else."""
import itertools
import json
import os
import shlex
import shutil
import struct
import subprocess

from harness import need, sample, st_write, test

MESH = ("--mesh", "dp=2", "--placements", "shard(0)")
FORMS = {  # what writes a directory in each format
    "dcp": ("convert", "--to", "dcp"),
    "shards": ("convert", "--to", "safetensors", "--max-shard-size", "300B"),
    "dcp-ranks": ("reshard", "--to", "dcp", *MESH),
    "ranks": ("reshard", "--to", "torch", *MESH),
    "sharded": ("reshard", "--to", "safetensors", *MESH),
}
NOTES = {  # no checkpoint lists any of them
    "rank_notes.pt": b"not a checkpoint",
    "objects_of_mine.json": b"{}",
    "notes.txt": b"mine",
    "config.json": b'{"heads": 8}',
    "rank7.txt": b"x",
}


def values(seed, rows):
    return b"".join(struct.pack("<f", seed * 1000 + i) for i in range(rows * 4))


def source(t, name, seed, prefix=""):
    path = t.at(name)
    st_write(path, {f"{prefix}{n}": ("F32", [rows, 4], values(seed + rows, rows)) for n, rows in (("a", 12), ("b", 5), ("c", 8))})
    return path


def make(t, form, path, dest, *more, status=0):
    command, *options = FORMS[form]
    return t.run(command, path, dest, *options, *more, status=status)


def tree(directory):
    found = {}
    for root, _, files in os.walk(directory):
        for f in files:
            with open(os.path.join(root, f), "rb") as opened:
                found[os.path.relpath(os.path.join(root, f), directory)] = opened.read()
    return found


def leave(directory, files):
    for name, content in files.items():
        with open(os.path.join(directory, name), "wb") as f:
            f.write(content)


def nothing_temporary(t):
    left = [os.path.join(r, n) for r, directories, files in os.walk(t.directory) for n in directories + files if ".tessera-" in n]
    need(not left, f"left behind: {left}")


@test
def test_every_form_replaces_every_form_and_nothing_else(t):
    old, new = source(t, "old.safetensors", 1), source(t, "new.safetensors", 2, "renamed.")
    for before, after in itertools.product(FORMS, FORMS):
        dest = t.at(f"{before}-{after}")
        make(t, before, old, dest)
        listed = set(os.listdir(dest))
        leave(dest, NOTES)
        p = make(t, after, new, dest, "--overwrite")
        t.run("diff", new, dest, "--values")
        got = tree(dest)
        for name, content in NOTES.items():
            need(got.get(name) == content, f"{before} → {after}: {name} is gone")
            need(name.encode() in p.stderr, f"{before} → {after}: no note about {name}: {p.stderr}")
        clean = t.at("clean")
        make(t, after, new, clean)
        left = set(got) - set(NOTES)
        need(len(left) == len(os.listdir(clean)), f"{before} → {after}: {sorted(left)} of {sorted(listed)}")
        shutil.rmtree(clean)
        t.run("validate", dest, "--deep", "--fail-on", "error")
        nothing_temporary(t)


@test
def test_tensors_that_no_list_names_stay_or_are_refused(t):
    old, new = source(t, "old.safetensors", 1), source(t, "new.safetensors", 2)
    t.run("convert", old, t.at("torch.pt"), "--to", "torch", "-q")
    strays = {"my_lora_adapter.safetensors": old, "adapter.pt": t.at("torch.pt")}
    for before, after, (stray, content) in itertools.product(("dcp", "shards"), FORMS, strays.items()):
        dest = t.at(f"{before}-{after}-{stray}")
        make(t, before, old, dest, "-q")
        shutil.copy(content, os.path.join(dest, stray))
        was = tree(dest)
        has_marker = after in ("dcp", "dcp-ranks", "shards")
        p = make(t, after, new, dest, "--overwrite", status=0 if has_marker else 2)
        need(stray.encode() in p.stderr, p.stderr)
        if has_marker:
            need(tree(dest)[stray] == was[stray], f"{before} → {after}: {stray} is gone")
            t.run("diff", new, dest, "--values")
        else:
            need(tree(dest) == was, f"{before} → {after} was refused and changed something")
        nothing_temporary(t)


@test
def test_a_directory_without_a_checkpoint_is_not_emptied(t):
    new = source(t, "new.safetensors", 2)
    t.run("convert", new, t.at("m.pt"), "--to", "torch", "-q")
    contents = {"one": {"other_model.safetensors": open(new, "rb").read()},
                "notes": NOTES,
                "unfinished": {"__0_0.distcp": b"half", "__1_0.distcp": b"half"},
                "torch": {"step-1.pt": open(t.at("m.pt"), "rb").read(), "x.pt": open(t.at("m.pt"), "rb").read()}}
    for (name, files), after in itertools.product(contents.items(), FORMS):
        dest = t.at(f"{name}-{after}")
        os.mkdir(dest)
        leave(dest, files)
        p = make(t, after, new, dest, "--overwrite", status=(0, 2))
        got = tree(dest)
        need(all(got.get(f) == c for f, c in files.items()), f"{after} into {name}: {sorted(got)}")
        if after in ("dcp", "dcp-ranks") or name == "notes" or (after == "shards" and name in ("one", "torch")):
            need(p.returncode == 0, p.stderr)
            t.run("diff", new, dest, "--values")
        else:
            need(p.returncode == 2 or name == "unfinished", f"{after} beside {name} cannot be read")
        if p.returncode == 2:
            need(got == files, "refused, and something changed")
        nothing_temporary(t)


@test
def test_unreadable_metadata_is_refused(t):
    old, new = source(t, "old.safetensors", 1), source(t, "new.safetensors", 2)
    broken = {"dcp": (".metadata", b"\x80\x02}q"), "shards": ("model.safetensors.index.json", b'{"weight_map": {"a"')}
    for (before, (name, content)), after in itertools.product(broken.items(), FORMS):
        dest = t.at(f"{before}-{after}")
        make(t, before, old, dest, "-q")
        leave(dest, {name: content})
        was = tree(dest)
        p = make(t, after, new, dest, "--overwrite", status=2)
        need(name.encode() in p.stderr and b"cannot be read" in p.stderr, p.stderr)
        need(tree(dest) == was, f"{before} → {after}: changed")
        nothing_temporary(t)


@test
def test_two_indexes_are_not_one_checkpoint(t):
    old, new = source(t, "old.safetensors", 1), source(t, "new.safetensors", 2)
    dest = t.at("d")
    make(t, "shards", old, dest, "-q")
    leave(dest, {"other.safetensors.index.json": json.dumps({"weight_map": {"x": "other-1.safetensors"}}).encode()})
    shutil.copy(old, os.path.join(dest, "other-1.safetensors"))
    was = tree(dest)
    make(t, "dcp", new, dest, "--overwrite", status=2)
    need(tree(dest) == was, "changed")
    # `.metadata` decides what this checkpoint is; an index next to it belongs to someone else.
    both = t.at("both")
    make(t, "dcp", old, both, "-q")
    for name in was:
        shutil.copy(os.path.join(dest, name), both)
    os.unlink(os.path.join(both, "other.safetensors.index.json"))
    beside = tree(both)
    p = make(t, "shards", new, both, "--overwrite", status=2)
    need(b"model.safetensors.index.json" in p.stderr and tree(both) == beside, p.stderr)
    make(t, "dcp", new, both, "--overwrite")
    need({k for k in beside if not k.startswith("__") and k != ".metadata"} <= set(tree(both)), sorted(tree(both)))
    t.run("diff", new, both, "--values")


@test
def test_a_name_that_somebody_else_has_is_refused(t):
    old, new = source(t, "old.safetensors", 1), source(t, "new.safetensors", 2)
    for before, after, name in (("dcp", "shards", "model.safetensors.index.json"), ("dcp", "ranks", "rank0.pt"), ("shards", "sharded", "objects.json")):
        dest = t.at(f"{before}-{after}")
        make(t, before, old, dest, "-q")
        leave(dest, {name: b"precious"})
        was = tree(dest)
        more = ("--objects", "sidecar") if name == "objects.json" else ()
        p = make(t, after, new, dest, "--overwrite", *more, status=(0, 2) if more else 2)
        need(tree(dest).get(name) == b"precious", f"{name} was overwritten")
        need(p.returncode == 0 or (name.encode() in p.stderr and tree(dest) == was), p.stderr)
        nothing_temporary(t)


@test
def test_a_source_in_the_destination_is_refused(t):
    new = source(t, "new.safetensors", 2)
    for form, after in itertools.product(FORMS, FORMS):
        dest = t.at(f"{form}-{after}")
        make(t, form, new, dest, "-q")
        was = tree(dest)
        first = next(f for f in sorted(was) if not f.startswith("__") and not f.endswith(".json") or f == ".metadata")
        os.symlink(os.path.join(dest, first), t.at("link"))
        os.link(os.path.join(dest, first), t.at("hard"))
        inside = [os.path.join(dest, first), t.at("link"), t.at("hard"), dest]
        inside += [os.path.join(dest, f) for f in was if f in (".metadata", "model.safetensors.index.json")]
        for path in inside:
            command, *options = FORMS[after]
            p = t.run(command, path, dest, *options, "--overwrite", "--include", "a", status=2)
            need(tree(dest) == was, f"{after} from {path} into {dest} changed it: {p.stderr}")
        os.unlink(t.at("link"))
        os.unlink(t.at("hard"))
        nothing_temporary(t)


@test
def test_a_single_file_that_is_read_is_not_replaced(t):
    path = source(t, "m.safetensors", 3)
    os.symlink(path, t.at("link.safetensors"))
    os.link(path, t.at("hard.safetensors"))
    with open(path, "rb") as f:
        content = f.read()
    for dest in ("m.safetensors", "link.safetensors", "hard.safetensors"):
        t.run("convert", path, t.at(dest), "--overwrite", "--include", "a", status=2)
        need(open(path, "rb").read() == content and os.path.islink(t.at("link.safetensors")), dest)
    make(t, "shards", path, t.at("s"), "-q")
    shard = next(f for f in os.listdir(t.at("s")) if f.endswith(".safetensors"))
    was = tree(t.at("s"))
    os.link(t.at("s", shard), t.at("linked-shard.safetensors"))
    t.run("convert", t.at("s"), t.at("linked-shard.safetensors"), "--overwrite", status=2)
    t.run("convert", t.at("s", "model.safetensors.index.json"), t.at("s", shard), "--overwrite", status=2)
    need(tree(t.at("s")) == was, "the shards changed")


@test
def test_documents_that_are_read_are_not_replaced(t):
    path = source(t, "m.safetensors", 3)
    target = t.at("d", "rank0.pt")
    make(t, "ranks", path, t.at("d"), "-q")
    with open(t.at("t.json"), "w") as f:
        json.dump({"schema": "tessera.target/1", "mesh": {"shape": [2]}, "rules": [], "default": ["shard(0)"]}, f)
    os.unlink(target)
    shutil.copy(t.at("t.json"), target)
    was = tree(t.at("d"))
    t.run("reshard", path, t.at("d"), "--to", "torch", "--target", target, "--overwrite", status=2)
    need(tree(t.at("d")) == was, "the target was replaced")


@test
def test_subdirectories_stay(t):
    old, new = source(t, "old.safetensors", 1), source(t, "new.safetensors", 2)
    for before, after in itertools.product(FORMS, FORMS):
        dest = t.at(f"{before}-{after}")
        make(t, before, old, dest, "-q")
        os.mkdir(os.path.join(dest, "logs"))
        leave(dest, {"logs/x": b"mine"})
        was = tree(dest)
        p = make(t, after, new, dest, "--overwrite", status=(0, 2))
        need(tree(dest).get("logs/x") == b"mine", f"{before} → {after}")
        same_marker = before == after == "shards" or {before, after} <= {"dcp", "dcp-ranks"}
        need((p.returncode == 0) == same_marker, f"{before} → {after}: {p.stderr}")
        need(p.returncode == 0 or (b"logs" in p.stderr and tree(dest) == was), p.stderr)
        if p.returncode == 0:
            t.run("diff", new, dest, "--values")
        nothing_temporary(t)


@test
def test_what_is_not_a_file_stays_and_is_named(t):
    old, new = source(t, "old.safetensors", 1), source(t, "new.safetensors", 2)
    for before, after in itertools.product(FORMS, FORMS):
        dest = t.at(f"{before}-{after}")
        make(t, before, old, dest, "-q")
        os.symlink("/nowhere", os.path.join(dest, "dead.bin"))
        os.symlink(t.directory, os.path.join(dest, "elsewhere"))
        os.mkfifo(os.path.join(dest, "pipe.safetensors"))
        in_place = before in ("dcp", "dcp-ranks") and after in ("dcp", "dcp-ranks") or before == after == "shards"
        names = ["dead.bin", "elsewhere", "pipe.safetensors"]
        if in_place:
            os.mkdir(os.path.join(dest, "logs"))
            names.append("logs")
        p = make(t, after, new, dest, "--overwrite")
        need(all(os.path.lexists(os.path.join(dest, n)) for n in names), f"{before} → {after}: {os.listdir(dest)}")
        need(all(f"'{n}'".encode() in p.stderr for n in names), f"{before} → {after}: {p.stderr}")
        t.run("diff", new, dest, "--values")


@test
def test_an_index_without_its_files_is_not_taken_for_the_old_checkpoint(t):
    old, new = source(t, "old.safetensors", 1), source(t, "new.safetensors", 2)
    make(t, "shards", old, t.at("adapter"), "-q")
    for before, after in itertools.product(("ranks", "sharded"), FORMS):
        dest = t.at(f"{before}-{after}")
        make(t, before, old, dest, "-q")
        shutil.copy(t.at("adapter", "model.safetensors.index.json"), os.path.join(dest, "adapter.safetensors.index.json"))
        was = tree(dest)
        p = make(t, after, new, dest, "--overwrite", status=2)
        need(b"adapter.safetensors.index.json" in p.stderr and tree(dest) == was, p.stderr)
        nothing_temporary(t)


@test
def test_a_link_that_leads_nowhere_is_a_destination_that_exists(t):
    new = source(t, "new.safetensors", 2)
    os.symlink(t.at("nowhere"), t.at("link"))
    for form, more in itertools.product(FORMS, ((), ("--overwrite",))):
        p = make(t, form, new, t.at("link"), *more, status=2)
        need(b"symbolic link" in p.stderr and os.path.islink(t.at("link")), p.stderr)
    p = t.run("convert", new, t.at("link"), "--to", "torch", status=2)
    need(b"symbolic link" in p.stderr and os.path.islink(t.at("link")), p.stderr)
    nothing_temporary(t)


@test
def test_a_mount_point_is_not_replaced_as_a_whole(t):
    old, new = source(t, "old.safetensors", 1), source(t, "new.safetensors", 2)
    here = t.at("mounted")
    for before, after, refused in (("shards", "dcp", True), ("ranks", "ranks", True), ("dcp", "dcp", False)):
        there = t.at(f"{before}-{after}")
        make(t, before, old, there, "-q")
        leave(there, {"notes.txt": b"mine"})
        was = tree(there)
        os.makedirs(here, exist_ok=True)
        command, *options = FORMS[after]
        inner = " ".join(map(shlex.quote, [t.path, command, new, here, *options, "--overwrite"]))
        p = subprocess.run(["unshare", "--map-root-user", "--mount", "sh", "-c",
                            f"mount --bind {shlex.quote(there)} {shlex.quote(here)} || exit 77; {inner}"], capture_output=True, timeout=60)
        if p.returncode in (1, 77):
            print(f"a mount point is not tested: {p.stderr.decode().strip()}")
            return
        need(p.returncode == (2 if refused else 0), p.stderr)
        need(not refused or (b"mount point" in p.stderr and tree(there) == was), p.stderr)
        nothing_temporary(t)


@test
def test_kept_files_are_in_the_document(t):
    old, new = source(t, "old.safetensors", 1), source(t, "new.safetensors", 2)
    make(t, "dcp", old, t.at("d"), "-q")
    leave(t.at("d"), NOTES)
    for more in ((), ("--dry-run",)):
        doc = t.json("convert", new, t.at("d"), "--to", "dcp", "--overwrite", "--json", "-q", *more)
        need(all(any(n in w for w in doc["warnings"]) for n in NOTES), doc["warnings"])
    need(t.json("convert", new, t.at("e"), "--to", "dcp", "--json")["warnings"] == [], "a new directory has warnings")


@test
def test_a_copy_names_the_files_that_stay(t):
    old, new = source(t, "old.safetensors", 1), source(t, "new.safetensors", 2)
    make(t, "dcp", old, t.at("d"), "-q")
    make(t, "dcp", new, t.at("n"), "-q")
    leave(t.at("d"), NOTES)
    p = t.run("cp", t.at("n"), t.at("d"), "--overwrite")
    for n in NOTES:
        need(f"'{n}' in '{t.at('d')}' is not listed by the replaced checkpoint; it is kept".encode() in p.stderr, p.stderr)
        need(os.path.exists(os.path.join(t.at("d"), n)), n)
    nothing_temporary(t)


@test
def test_a_linked_directory_is_replaced_where_it_is(t):
    old, new = source(t, "old.safetensors", 1), source(t, "new.safetensors", 2)
    for before, after in (("dcp", "dcp"), ("ranks", "ranks"), ("shards", "dcp")):
        real = t.at(f"{before}-{after}")
        make(t, before, old, real, "-q")
        leave(real, NOTES)
        os.symlink(real, t.at("link"))
        make(t, after, new, t.at("link"), "--overwrite", "-q")
        need(os.path.islink(t.at("link")) and not os.path.islink(real), "the link was replaced")
        need(set(NOTES) <= set(os.listdir(real)), os.listdir(real))
        t.run("diff", new, real, "--values")
        os.unlink(t.at("link"))
        nothing_temporary(t)


@test
def test_sidecars_replace_sidecars_only(t):
    path, more = sample("dcp_small")[0], ("--objects", "sidecar", "-q")
    one, sidecar = t.at("m.safetensors"), t.at("m.safetensors.objects.json")
    t.run("convert", path, one, *more)
    t.run("convert", path, one, *more, "--overwrite")
    written = open(sidecar, "rb").read()
    for content in (b"{}", b'{"mine": "tessera.objects/1"}', b"", b"\0" * 300):
        leave(t.directory, {"m.safetensors.objects.json": content})
        p = t.run("convert", path, one, *more, "--overwrite", status=2)
        need(b"objects.json" in p.stderr and open(sidecar, "rb").read() == content, p.stderr)
    os.unlink(one)
    t.run("convert", path, one, *more, status=2)
    need(not os.path.exists(one), "written beside a sidecar that was in the way")
    for form in FORMS:
        dest = t.at(form)
        make(t, form, path, dest, *more)
        need("objects.json" in os.listdir(dest), os.listdir(dest))
        make(t, form, path, dest, *more, "--overwrite")
        made = [f for f in os.listdir(dest) if f.startswith("objects")]
        need(all(open(os.path.join(dest, f), "rb").read() == written for f in made), made)
        nothing_temporary(t)


@test
def test_a_sidecar_without_data_files_is_not_in_the_way(t):
    path, dest = sample("dcp_small")[0], t.at("out")
    more = ("--to", "safetensors", "--max-shard-size", "1KB", "--objects", "sidecar", "-q")
    t.run("convert", path, dest, *more)
    for name in [f for f in os.listdir(dest) if f.endswith(".safetensors")]:
        os.unlink(os.path.join(dest, name))
    was = tree(dest)
    t.run("convert", path, dest, *more, "--overwrite")
    need(tree(dest)["objects.json"] == was["objects.json"] == tree(dest)["objects-g1.json"], sorted(tree(dest)))
    t.run("validate", dest, "--deep")


@test
def test_a_destination_inside_any_source_is_refused(t):
    """A file more would make a directory another checkpoint."""
    for n, name in enumerate("abcd"):
        os.mkdir(t.at(name))
        source(t, os.path.join(name, f"{'model' if name != 'd' else 'more'}.safetensors"), n, "more." if name == "d" else "")
    a, b, c, d = (t.at(name) for name in "abcd")
    before = tree(t.directory)
    cases = [(b, ("merge", ".", a, b, "--method", "linear")), (b, ("merge", ".", b, a, "--method", "linear")), (d, ("convert", a, ".", "--also", d)),
             (b, ("merge", ".", a, b, "--method", "slerp", "--t", "0.5")), (b, ("merge", ".", a, "--base", b, "--method", "task-arithmetic"))]
    for (directory, command), name, more in itertools.product(cases, ("new.safetensors", "new.pt"), ((), ("--dry-run",), ("--overwrite",))):
        inside = os.path.join(directory, name)
        p = t.run(*(inside if word == "." else word for word in command), *more, status=2)
        need(f"'{inside}' is inside the source '{directory}'".encode() in p.stderr, f"{command}: {p.stderr}")
        need(tree(t.directory) == before, f"{command} changed {set(tree(t.directory)) ^ set(before)}")
    t.run("merge", os.path.join(c, "new.safetensors"), a, b, "--method", "linear", "-q")
    need(set(tree(t.directory)) - set(before) == {"c/new.safetensors"}, set(tree(t.directory)))
