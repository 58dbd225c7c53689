"""cp --resume from an object store onto a disk: what a killed run wrote is kept where its digests agree, and the rest is
fetched."""
import contextlib
import glob
import os
import shutil
import time

from checks import need, test
from fake_s3 import serving
from harness import sample
from test_resume import kill
from test_s3 import files_below

CHUNK = 32 << 20  # the same as CLI_COPY_CHUNK
NAMES = ("A.bin", "B.bin", "deep/c.bin")


def source():
    """Returns three files of data with 1, 4 and 1 chunks, and a checkpoint, whose marker is read before anything is
    copied. The names are in the order of copying; `latest` is last."""
    sizes = dict(zip(NAMES, (CHUNK, 3 * CHUNK + 12345, 54321)))
    return {**{name: os.urandom(size) for name, size in sizes.items()}, "empty": b"", "latest": b"1", **files_below(sample("dcp_fsdp2")[0])}


def objects(files, prefix="ck"):
    return {f"{prefix}/{name}": data for name, data in files.items()}


def is_read(name, at=0):
    """Returns a function that recognizes a request for bytes of an object that starts at `at` or later."""
    def is_point(handler):
        first = handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0]
        return handler.command == "GET" and handler.path == f"/b/ck/{name}" and first.isdigit() and int(first) >= at
    return is_point


def sleeps(process):
    """Whether no thread of a process computes or waits for a disk."""
    states = []
    for path in glob.glob(f"/proc/{process.pid}/task/*/stat"):
        with contextlib.suppress(FileNotFoundError), open(path) as f:
            states.append(f.read().rpartition(")")[2].split()[0])
    return set(states) == {"S"}


def is_settled(t, s):
    """Returns a function that says whether the program waits for nothing but the requests that are never answered: in the last
    second, nothing else has arrived at the server, no thread of the program has done anything, and its journal has not grown."""
    seen = {"sizes": {}, "since": 0}

    def enough(process, held):
        sizes = {n: os.path.getsize(t.at(n)) for n in os.listdir(t.directory) if n.endswith(".1-of-1")}
        if not sizes or seen["sizes"] != sizes or s.active != len(held) or not s.is_idle(held) or not sleeps(process):
            seen.update(sizes=sizes, since=time.monotonic())
        return time.monotonic() - seen["since"] > 1
    return enough


def kill_copy(t, s, is_point, *args):
    """Kills a copy as soon as all before the point is written. It has one thread: requests of a second one that are never answered could take
    all places of --io-depth, and the first one would not get the rest of its chunk."""
    kill(t, s, is_point, is_settled(t, s), s.env(), "cp", "--threads", "1", *args)


def fetched(s):
    """Returns how many bytes of each object were asked for."""
    found = {}
    for command, key, headers in s.asked:
        first, _, last = headers.get("Range", f"bytes=0-{len(s.objects.get(key, b'')) - 1}").removeprefix("bytes=").partition("-")
        if command == "GET" and last.isdigit():
            found[key] = found.get(key, 0) + int(last) - int(first) + 1
    return found


def left(t):
    """Returns the path of the output that the killed run left. Its journal is beside it."""
    outputs = [n for n in os.listdir(t.directory) if n.startswith(".copy.tessera-") and n.count(".") == 2]
    need(len(outputs) == 1, f"{os.listdir(t.directory)}")
    return t.at(outputs[0])


def resume(t, s, *more, at="copy"):
    s.asked.clear()
    return t.json("cp", "s3://b/ck", t.at(at), "--resume", "--json", *more, env=s.env())["resumed"]


def is_done(t, files, name="copy"):
    need(files_below(t.at(name)) == files, f"{list(files_below(t.at(name)))}")
    need(not [n for n in os.listdir(t.directory) if ".tessera-" in n], f"left behind: {os.listdir(t.directory)}")


@test
def test_resume_onto_a_disk_fetches_what_is_missing(t):
    files = source()
    points = ((is_read("B.bin"), 1, 0, CHUNK), (is_read("B.bin", 2 * CHUNK), 1, 2, 3 * CHUNK), (is_read("latest"), 1, 3, 4 * CHUNK))
    with serving(objects(files)) as s:
        for i, (is_point, whole, parts, least) in enumerate(points):
            kill_copy(t, s, is_point, "s3://b/ck", t.at("copy"))
            need(not os.path.exists(t.at("copy")), "visible before it is whole")
            resumed = resume(t, s)
            is_done(t, files)
            need(resumed["objects"] >= whole and resumed["bytes"] >= least and resumed["differing"] == 0, f"{i}: {resumed}")
            need(resumed["parts"] == parts or resumed["objects"] > whole, f"{i}: {resumed}")
            need(sum(fetched(s).values()) <= sum(map(len, files.values())) - least + (1 << 20), f"{i}: {fetched(s)}")
            shutil.rmtree(t.at("copy"))


@test
def test_resume_onto_a_disk_without_an_interrupted_run(t):
    files = source()
    with serving(objects(files)) as s:
        need(resume(t, s)["bytes"] == 0, "nothing was there")
        is_done(t, files)
        need(b"already complete" in t.run("cp", "s3://b/ck", t.at("copy"), "--resume", env=s.env()).stderr, "a second time")
        is_done(t, files)
        kill_copy(t, s, is_read("B.bin", CHUNK), "s3://b/ck/B.bin", t.at("one.bin"))
        s.asked.clear()
        r = t.json("cp", "s3://b/ck/B.bin", t.at("one.bin"), "--resume", "--json", env=s.env())["resumed"]
        need(r["parts"] == 1 and r["bytes"] == CHUNK and fetched(s)["ck/B.bin"] <= 2 * CHUNK + (1 << 20), f"{r} {fetched(s)}")
        need(files_below(t.at("one.bin"))["one.bin"] == files["B.bin"], "a single file")


@test
def test_resume_onto_a_disk_twice_and_with_a_failure(t):
    """A run with --resume keeps what it wrote when it fails, too. A run without --resume starts over."""
    files = source()
    with serving(objects(files)) as s:
        kill_copy(t, s, is_read("B.bin", CHUNK), "s3://b/ck", t.at("copy"))
        before, s.trouble = s.trouble, lambda h, *_: is_read("B.bin", 2 * CHUNK)(h) and h.error(403, "AccessDenied")
        need(b"AccessDenied" in t.run("cp", "s3://b/ck", t.at("copy"), "--resume", status=2, env=s.env()).stderr, "the failure is not shown")
        need(not os.path.exists(t.at("copy")) and left(t), "the failed run has to leave what it wrote")
        s.trouble = before
        r = resume(t, s)
        need(r["objects"] == 1 and r["parts"] == 2 and r["bytes"] == 3 * CHUNK, f"{r}")
        is_done(t, files)
        shutil.rmtree(t.at("copy"))
        kill_copy(t, s, is_read("B.bin", CHUNK), "s3://b/ck", t.at("copy"))
        t.run("cp", "s3://b/ck", t.at("copy"), env=s.env())
        is_done(t, files)


@test
def test_resume_onto_a_disk_checks_what_is_there(t):
    """Bytes that were changed are fetched again. If the source has changed, everything is copied again. An incomplete record
    is ignored."""
    files = source()
    with serving(objects(files)) as s:
        kill_copy(t, s, is_read("B.bin", 2 * CHUNK), "s3://b/ck", t.at("copy"))
        with open(os.path.join(left(t), "B.bin"), "r+b") as f:
            f.seek(CHUNK + 7)
            f.write(b"other bytes")
        r = resume(t, s)
        need(r["differing"] == 1 and r["objects"] == 1 and r["parts"] == 1, f"{r}")
        is_done(t, files)
        shutil.rmtree(t.at("copy"))

        kill_copy(t, s, is_read("B.bin", 2 * CHUNK), "s3://b/ck", t.at("copy"))
        with open(left(t) + ".1-of-1", "r+b") as f:
            f.truncate(os.path.getsize(f.name) - 5)
        r = resume(t, s)
        need(r["differing"] == 0 and r["bytes"] == 2 * CHUNK, f"{r}")
        is_done(t, files)
        shutil.rmtree(t.at("copy"))

        kill_copy(t, s, is_read("B.bin", 2 * CHUNK), "s3://b/ck", t.at("copy"))
        files["A.bin"] = os.urandom(CHUNK)
        s.objects["ck/A.bin"] = files["A.bin"]
        p = t.run("cp", "s3://b/ck", t.at("copy"), "--resume", env=s.env())
        need(b"source changed" in p.stderr and b"nothing that can be continued" in p.stderr, p.stderr)
        is_done(t, files)


@test
def test_resume_onto_a_disk_touches_nothing_of_others(t):
    """A file of another program in the unpublished output is neither removed nor published. A link there is not followed."""
    files = source()
    with serving(objects(files)) as s:
        kill_copy(t, s, is_read("latest"), "s3://b/ck", t.at("copy"))
        with open(os.path.join(left(t), "notes.txt"), "wb") as f:
            f.write(b"mine")
        refused = t.run("cp", "s3://b/ck", t.at("copy"), "--resume", status=2, env=s.env()).stderr.decode()
        need("notes.txt" in refused and not os.path.exists(t.at("copy")), refused)
        with open(os.path.join(left(t), "notes.txt"), "rb") as f:
            need(f.read() == b"mine", "the file of somebody else")
        os.remove(os.path.join(left(t), "notes.txt"))

        os.mkdir(t.at("elsewhere"))
        with open(t.at("elsewhere/c.bin"), "wb") as f:
            f.write(b"mine")
        shutil.rmtree(os.path.join(left(t), "deep"))
        os.symlink(t.at("elsewhere"), os.path.join(left(t), "deep"))
        t.run("cp", "s3://b/ck", t.at("copy"), "--resume", status=2, env=s.env())
        need(files_below(t.at("elsewhere")) == {"c.bin": b"mine"}, "written through a link")
        os.remove(os.path.join(left(t), "deep"))
        resume(t, s)
        shutil.rmtree(t.at("elsewhere"))
        is_done(t, files)


@test
def test_resume_onto_a_disk_that_replaces_a_checkpoint(t):
    """With --overwrite the old checkpoint stays until the new one is whole."""
    files = {k: v for k, v in source().items() if "/" not in k}
    path = sample("dcp_fsdp2")[0]
    old = files_below(path)
    with serving(objects(files)) as s:
        shutil.copytree(path, t.at("copy"))
        kill_copy(t, s, is_read("B.bin", CHUNK), "s3://b/ck", t.at("copy"), "--overwrite")
        need(files_below(t.at("copy")) == old, "the old checkpoint")
        r = resume(t, s, "--overwrite")
        need(r["bytes"] == 2 * CHUNK, f"{r}")
        is_done(t, files)


@test
def test_resume_from_disk_to_disk(t):
    files = source()
    with serving(objects(files)) as s:
        t.run("cp", "s3://b/ck", t.at("first"), env=s.env())
        kill_copy(t, s, is_read("B.bin", CHUNK), "s3://b/ck", t.at("copy"))
        p = t.run("cp", t.at("first"), t.at("copy"), "--resume")
        need(b"source changed" in p.stderr, p.stderr)
        is_done(t, files)


def put_back_journal(t, s, *args):
    """Makes the state after a kill between the last rename of a copy and the removal of its journal: finishes a killed run
    and puts back the journal that the end of the run has removed. Returns the journal's name."""
    kill(t, s, is_read("latest"), is_settled(t, s), s.env(), *args)
    name = next(n for n in os.listdir(t.directory) if n.endswith(".1-of-1"))
    with open(t.at(name), "rb") as f:
        journal = f.read()
    t.run(*args, "--resume", env=s.env())
    need(not os.path.exists(t.at(name)), "the journal is removed at the end")
    with open(t.at(name), "wb") as f:
        f.write(journal)
    return name


@test
def test_resume_onto_a_disk_after_the_last_rename(t):
    """The copy is whole and is read back, so --resume succeeds. A destination that is not that copy is refused and stays as
    it is."""
    files = source()
    with serving(objects(files)) as s:
        put_back_journal(t, s, "cp", "s3://b/ck", t.at("copy"))
        p = t.run("cp", "s3://b/ck", t.at("copy"), "--resume", env=s.env())
        need(b"already complete" in p.stderr, p.stderr)
        is_done(t, files)
        need(b"already complete" in t.run("cp", "s3://b/ck", t.at("copy"), "--resume", env=s.env()).stderr, "no journal")

        shutil.rmtree(t.at("copy"))
        put_back_journal(t, s, "cp", "s3://b/ck", t.at("copy"))
        r = resume(t, s)
        need(r["objects"] == len(files) and r["bytes"] == sum(map(len, files.values())), f"{r}")
        is_done(t, files)

        for change in (lambda: s.objects.update({"ck/c.bin": b"more"}), lambda: s.objects.update({"ck/deep/c.bin": os.urandom(54321)})):
            before = dict(s.objects)
            shutil.rmtree(t.at("copy"))
            put_back_journal(t, s, "cp", "s3://b/ck", t.at("copy"))
            change()
            need("exists, and is not" in t.run("cp", "s3://b/ck", t.at("copy"), "--resume", status=2, env=s.env()).stderr.decode(), "another source")
            need(files_below(t.at("copy")) == files, "the copy")
            s.objects.clear()
            s.objects.update(before)

        for name, at in (("A.bin", 5), ("B.bin", 3 * CHUNK + 12000), ("deep/c.bin", 0)):
            shutil.rmtree(t.at("copy"))
            put_back_journal(t, s, "cp", "s3://b/ck", t.at("copy"))
            with open(os.path.join(t.at("copy"), name), "r+b") as f:
                f.seek(at)
                byte = f.read(1)
                f.seek(at)
                f.write(bytes([byte[0] ^ 1]))
            changed = files_below(t.at("copy"))
            need("exists, and is not" in t.run("cp", "s3://b/ck", t.at("copy"), "--resume", status=2, env=s.env()).stderr.decode(), name)
            need(files_below(t.at("copy")) == changed, f"{name} was touched")
