"""What -o writes: files that appear whole, pipes and devices written where they are."""
import os
import threading

from harness import SAMPLES, need, test

CKPT = os.path.join(SAMPLES, "dcp_small")


def through_pipe(t, *args):
    """What a reader of a named pipe gets that -o names."""
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
    need(not os.listdir(t.folder), f"{os.listdir(t.folder)} stayed")


@test
def test_outputs_that_fail_leave_the_earlier_file(t):
    with open(t.at("a.npy"), "w") as f:
        f.write("earlier")
    t.run("get", os.path.join(SAMPLES, "broken_dcp_truncated"), "bias", "-o", t.at("a.npy"), status=2)
    with open(t.at("a.npy")) as f:
        need(f.read() == "earlier", "a failed run damaged an earlier file")
    p = t.run("layout", CKPT, "-o", t.at("no", "x.json"), status=2)
    need(b"No such file" in p.stderr, "the reason is not said")
    p = t.run("layout", CKPT, "-o", t.folder, status=2)
    need(b"directory" in p.stderr, "a folder is not refused as such")
    need(os.listdir(t.folder) == ["a.npy"], f"{os.listdir(t.folder)} stayed")


@test
def test_outputs_never_replace_what_is_no_file(t):
    os.mkfifo(t.at("pipe"))
    p = t.run("convert", os.path.join(SAMPLES, "safetensors_model", "model.safetensors"), t.at("pipe"), "--to", "safetensors", "--overwrite", status=2)
    need(b"neither a file nor a folder" in p.stderr and not os.path.isfile(t.at("pipe")), "a pipe was replaced")
