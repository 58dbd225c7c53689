"""What -o writes: files that appear completely; pipes and devices are written in place."""
import os
import shutil
import stat
import threading

from harness import SAMPLES, need, test
from test_plans import killed

CKPT = os.path.join(SAMPLES, "dcp_small")


def through_pipe(t, *args):
    """Returns what a reader of a named pipe receives if -o names the pipe."""
    pipe, got = t.at("pipe.npy"), []
    os.mkfifo(pipe)

    def drain():
        with open(pipe, "rb") as f:
            got.append(f.read())
    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    t.run(*args, "-o", pipe)
    reader.join(20)
    need(got and not os.path.isfile(pipe), "the pipe was replaced by a file")
    os.unlink(pipe)
    return got[0]


@test
def test_outputs_into_pipes_links_and_standard_output(t):
    for args in (("layout", CKPT), ("manifest", CKPT)):
        said = t.run(*args).stdout
        need(through_pipe(t, *args) == said, "other bytes went into the pipe")
        need(t.run(*args, "-o", "-").stdout == said, "-o - is not standard output")
        need(t.run(*args, "-o", "/dev/stdout").stdout == said, "-o /dev/stdout is not standard output")
        with open(t.at("real.json"), "w") as f:
            f.write("earlier")
        os.symlink("real.json", t.at("link.json"))
        t.run(*args, "-o", t.at("link.json"))
        with open(t.at("real.json"), "rb") as f:
            need(f.read() == said and os.path.islink(t.at("link.json")), "the link was replaced, not its file")
        os.unlink(t.at("link.json"))
        os.unlink(t.at("real.json"))
    need(through_pipe(t, "get", CKPT, "bias").startswith(b"\x93NUMPY"), "no array went into the pipe")
    need(not os.listdir(t.directory), f"{os.listdir(t.directory)} stayed")


@test
def test_outputs_that_fail_leave_the_earlier_file(t):
    with open(t.at("a.npy"), "w") as f:
        f.write("earlier")
    t.run("get", os.path.join(SAMPLES, "broken_dcp_truncated"), "bias", "-o", t.at("a.npy"), status=2)
    with open(t.at("a.npy")) as f:
        need(f.read() == "earlier", "a failed run damaged an earlier file")
    p = t.run("layout", CKPT, "-o", t.at("no", "x.json"), status=2)
    need(b"No such file" in p.stderr, "the reason is not said")
    p = t.run("layout", CKPT, "-o", t.directory, status=2)
    need(b"directory" in p.stderr, "a directory is not refused as such")
    need(os.listdir(t.directory) == ["a.npy"], f"{os.listdir(t.directory)} stayed")


@test
def test_outputs_never_replace_what_is_no_file(t):
    os.mkfifo(t.at("pipe"))
    p = t.run("convert", os.path.join(SAMPLES, "safetensors_model", "model.safetensors"), t.at("pipe"), "--to", "safetensors", "--overwrite", status=2)
    need(b"neither a file nor a directory" in p.stderr and not os.path.isfile(t.at("pipe")), "a pipe was replaced")


def contents(directory):
    """Returns {name: bytes} of a directory, following links. Names that appear or vanish are noticed, too."""
    out = {}
    for base, _, names in os.walk(directory):
        for name in names:
            with open(os.path.join(base, name), "rb") as f:
                out[os.path.relpath(os.path.join(base, name), directory)] = f.read()
    return out


def refused_onto(t, source, first, target):
    """Every command that has an output refuses `target`, and changes nothing."""
    before = contents(t.directory)
    for args in (("layout", source), ("manifest", source), ("layout", source, "--hash", "sha256"), ("get", source, first)):
        p = t.run(*args, "-o", target, status=2)
        need(args[0] == "get" or b"that is being read" in p.stderr, f"{args} -o {target}: {p.stderr}")
        need(contents(t.directory) == before, f"{args} -o {target}: files changed")


FORMS = ("dcp_fsdp2", "dcp_rank_local", "dcp_hf_sharded", "safetensors_index", "safetensors_model", "torch_bin_index", "torch_ranks_fsdp2", "torch_plain", "torch_legacy")


@test
def test_outputs_never_replace_a_file_of_the_checkpoint_that_is_read(t):
    for form in FORMS:
        where = os.path.join(SAMPLES, form)
        shutil.copytree(where, t.at(form)) if os.path.isdir(where) else shutil.copy(where, t.at(form))
        source = t.at(form)
        doc = t.json("inspect", source, "--json")
        first = next(e["fqn"] for e in doc["entries"] if e["kind"] == "tensor")
        names = sorted(contents(source)) if os.path.isdir(source) else [""]
        for name in names:
            refused_onto(t, source, first, os.path.join(source, name) if name else source)
        inner = os.path.join(source, names[-1]) if names[-1] else source
        os.link(inner, t.at("hard.npy"))
        os.symlink(inner, t.at("soft.bin"))
        os.symlink("soft.bin", t.at("twice.npy"))
        for target in ("hard.npy", "soft.bin", "twice.npy", os.path.join("..", os.path.basename(t.directory), "hard.npy")):
            refused_onto(t, source, first, t.at(target))
        for args in (("layout", inner), ("get", inner, first)):  # PATH by its file, the output by a link
            p = t.run(*args, "-o", t.at("hard.npy"), status=2)
            need(form.startswith("dcp_") or b"that is being read" in p.stderr or b"no entry" in p.stderr, p.stderr)
        for name in ("hard.npy", "soft.bin", "twice.npy"):
            os.unlink(t.at(name))
        shutil.rmtree(source) if os.path.isdir(source) else os.unlink(source)


@test
def test_outputs_in_the_checkpoint_s_directory_can_be_written_again(t):
    source = t.at("ck")
    shutil.copytree(os.path.join(SAMPLES, "safetensors_index"), source)
    first = next(e["fqn"] for e in t.json("inspect", source, "--json")["entries"])
    before = contents(source)
    for args in (("layout", source), ("manifest", source), ("get", source, first)):
        out = os.path.join(source, "out.npy" if args[0] == "get" else "out.json")
        for _ in range(2):
            t.run(*args, "-o", out)
    need({k: v for k, v in contents(source).items() if not k.startswith("out.")} == before, "other files changed")
    with open(os.path.join(source, "config.json"), "w") as f:
        f.write("{}")
    p = t.run("layout", source, "-o", os.path.join(source, "config.json"), status=2)
    need(b"'config.json'" in p.stderr, p.stderr)


@test
def test_outputs_do_not_follow_what_is_planted_at_their_temporary_names(t):
    """Whatever name a temporary file has, nothing is written through a link with that name."""
    with open(t.at("victim"), "w") as f:
        f.write("keep")
    for pid in range(os.getpid(), os.getpid() + 400):  # most likely the next processes of this machine
        os.symlink(t.at("victim"), t.at(f".layout.json.tessera-{pid}"))
    t.run("layout", CKPT, "-o", t.at("layout.json"))
    with open(t.at("victim")) as f:
        need(f.read() == "keep" and not os.path.islink(t.at("layout.json")), "a planted link was followed")


OUTPUTS = {"a.json": ("layout", CKPT), "b.json": ("manifest", CKPT), "c.npy": ("get", CKPT, "bias")}


@test
def test_outputs_that_were_killed_are_removed_by_the_next_run(t):
    for name, args in OUTPUTS.items():
        said = t.run(*args, "-o", t.at(f"whole-{name}"))
        killed(t, *args, "-o", t.at(name), limit=60)
        left = [f for f in os.listdir(t.directory) if ".tessera-" in f]
        need(left and not os.path.exists(t.at(name)), f"{args[0]}: {left}")
        with open(t.at(f".{name}.tessera-w0123456789abcdef"), "w") as f:
            f.write("not listed by any journal")
        t.run(*args, "-o", t.at(name))
        need(sorted(os.listdir(t.directory)) == sorted([f".{name}.tessera-w0123456789abcdef", name, f"whole-{name}"]), f"{args[0]}: {os.listdir(t.directory)} {said.stderr}")
        with open(t.at(name), "rb") as a, open(t.at(f"whole-{name}"), "rb") as b:
            need(a.read() == b.read(), f"{args[0]}: another file than an undisturbed run writes")
        for f in os.listdir(t.directory):
            os.unlink(t.at(f))


@test
def test_outputs_keep_the_modes_of_what_they_replace(t):
    for name, args in OUTPUTS.items():
        for want in (0o600, 0o640, 0o444):
            t.run(*args, "-o", t.at(name))
            os.chmod(t.at(name), want)
            t.run(*args, "-o", t.at(name))
            need(stat.S_IMODE(os.stat(t.at(name)).st_mode) == want, f"{args[0]}: {want:o} became {os.stat(t.at(name)).st_mode:o}")
            os.unlink(t.at(name))
