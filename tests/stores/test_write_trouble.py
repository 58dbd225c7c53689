"""What can go wrong while S3 is written to: what is repeated, how often, and what is left when the run fails."""
import os
import signal
import subprocess
import threading
import time

from checks import need, preloadable, test
from fake_s3 import SECRET, serving
from harness import sample
from test_s3 import files_below
from test_write import large_file

LARGE = "x.safetensors"
PARTS = 5  # the parts of large_file


def write(t, s, *args, status=0, env=None):
    p = t.run(*args, status=status, env=env or s.env())
    for secret in (SECRET.encode(), b"Signature=", b"the-session-token"):
        need(secret not in p.stdout + p.stderr, f"a secret is shown: {p.stderr[-300:]}")
    return p.stderr.decode()


def operations(s, name=None):
    """Returns how often each write was carried out, or how often the write `name` was."""
    done = [o for o, _ in s.done]
    return done.count(name) if name else {o: done.count(o) for o in sorted(set(done))}


def asked(s, method, key, what=""):
    return sum(1 for m, k, _ in s.asked if m == method and k == key)


@test
def test_write_requests_are_counted(t):
    source = large_file(t)
    with serving({}) as s:
        write(t, s, "cp", source, "s3://b/x.safetensors", "--no-verify")
        need(operations(s) == {"CompleteMultipartUpload": 1, "CreateMultipartUpload": 1, "UploadPart": PARTS}, operations(s))
        need(s.objects[LARGE] == files_below(source)["large.safetensors"], "other bytes")
        need(len(s.asked) == 2 + 1 + PARTS + 2 + 1, f"{len(s.asked)} requests: two looks before, the upload, two looks before it appears")
        s.done.clear()
        write(t, s, "convert", sample("dcp_fsdp2")[0], "s3://b/small", "--to", "dcp")
        need(operations(s) == {"PutObject": 2} and s.done[-1] == ("PutObject", "small/.metadata"), s.done)
        need(all(h.get("If-None-Match") == "*" for m, k, h in s.asked if m == "PUT" and k.startswith("small/")), "without a condition")
        s.asked.clear()
        write(t, s, "cp", source, "s3://b/checked.safetensors")
        need(asked(s, "GET", "checked.safetensors") == 2 + PARTS, "two looks, and every part is read back")


@test
def test_write_trouble_that_passes(t):
    source = large_file(t)

    def reset(handler):
        handler.close_connection = True
        handler.connection.shutdown(2)
        return True

    for name, once in (("429", lambda h: h.error(429, "SlowDown", Retry_After=1)), ("503", lambda h: h.error(503, "SlowDown", Retry_After=1)),
                       ("500", lambda h: h.error(500, "InternalError")), ("reset", reset)):
        failed = []

        def trouble(h, key, count):
            if h.command == "PUT" and not failed:
                failed.append(time.monotonic())
                return once(h)
            return False

        with serving({}, trouble) as s:
            write(t, s, "cp", source, "s3://b/x.safetensors", "--no-verify")
            need(asked(s, "PUT", LARGE) == PARTS + 1 and operations(s, "UploadPart") == PARTS, f"{name}: {operations(s)}")
            need(s.objects[LARGE] == files_below(source)["large.safetensors"] and not s.uploads, name)


@test
def test_write_lost_replies_are_asked_about(t):
    source = large_file(t)
    for operation, repeated in (("CreateMultipartUpload", {"ListMultipartUploads": 1, "ListParts": 1}), ("CompleteMultipartUpload", {}), ("UploadPart", {"UploadPart": PARTS + 1})):
        with serving({}) as s:
            s.loses = lambda h: h.operation == operation and operations(s, operation) == 1
            write(t, s, "cp", source, "s3://b/x.safetensors", "--no-verify")
            need(operations(s) == {"CompleteMultipartUpload": 1, "CreateMultipartUpload": 1, "UploadPart": PARTS, **repeated}, f"{operation}: {operations(s)}")
            need(s.objects[LARGE] == files_below(source)["large.safetensors"] and not s.uploads, operation)
    with serving({}) as s:
        s.loses = lambda h: h.operation == "PutObject" and operations(s, "PutObject") == 2
        write(t, s, "convert", sample("dcp_fsdp2")[0], "s3://b/ck", "--to", "dcp")
        need(operations(s) == {"PutObject": 2} and len(s.objects) == 2, operations(s))
        s.done.clear()
        s.loses = lambda h: h.operation == "PutObject" and operations(s, "PutObject") == 1
        write(t, s, "convert", sample("dcp_fsdp2")[0], "s3://b/ck", "--to", "dcp", "--overwrite")
        need(operations(s)["PutObject"] == 2, "a new name is not written twice")


@test
def test_write_completing_fails_in_a_good_answer(t):
    source, answers = large_file(t), []

    def trouble(h, key, count):
        if h.command == "POST" and "uploadId" in h.path and not answers:
            answers.append(1)
            return h.error(200, "InternalError")
        return False

    with serving({}, trouble) as s:
        write(t, s, "cp", source, "s3://b/x.safetensors", "--no-verify")
        need(operations(s, "CompleteMultipartUpload") == 1 and s.objects[LARGE] == files_below(source)["large.safetensors"], operations(s))


@test
def test_write_another_run_was_faster(t):
    """An object that another run makes in the meantime is not replaced. The server's condition prevents it, and where the
    server knows no condition, the client looks again."""
    for knows in (True, False):
        for key, args in ((LARGE, ("cp", large_file(t), "s3://b/x.safetensors")), ("ck/.metadata", ("convert", large_file(t), "s3://b/ck", "--to", "dcp"))):
            with serving({}) as s:
                s.knows_conditions = knows
                s.trouble = lambda h, k, count: h.command == "PUT" and s.objects.setdefault(key, b"another's") and False
                text = write(t, s, *args, status=2)
                need("exists" in text and s.objects == {key: b"another's"} and not s.uploads, f"{text} {list(s.objects)}")


@test
def test_write_the_condition_decides_at_the_last_moment(t):
    with serving({}) as s:
        s.trouble = lambda h, k, count: h.command == "PUT" and k == "ck/.metadata" and s.objects.setdefault(k, b"another's") and False
        text = write(t, s, "convert", sample("dcp_fsdp2")[0], "s3://b/ck", "--to", "dcp", status=2)
        need("exists" in text and s.objects == {"ck/.metadata": b"another's"}, f"{text} {list(s.objects)}")


@test
def test_write_a_failure_leaves_nothing(t):
    source = large_file(t)
    for command in ("UploadPart", "CompleteMultipartUpload", "CreateMultipartUpload"):
        with serving({}, keys=None) as s:
            method, query = {"UploadPart": ("PUT", "partNumber=3"), "CompleteMultipartUpload": ("POST", "uploadId"), "CreateMultipartUpload": ("POST", "uploads=")}[command]
            s.trouble = lambda h, k, count: h.command == method and query in h.path and h.error(403, "AccessDenied")
            text = write(t, s, "convert", source, "s3://b/many", "--to", "safetensors", "--max-shard-size", "25MB", status=2)
            need("AccessDenied" in text and not s.objects and not s.uploads, f"{command}: {text} {list(s.objects)} {s.uploads}")
    with serving({}) as s:
        s.trouble = lambda h, k, count: h.command == "PUT" and k.endswith(".metadata") and h.error(403, "AccessDenied")
        text = write(t, s, "convert", source, "s3://b/ck", "--to", "dcp", status=2)
        need("AccessDenied" in text and not s.objects and not s.uploads, f"{text} {list(s.objects)}")


@test
def test_write_what_was_written_is_read_back(t):
    source = large_file(t)
    with serving({}) as s:
        def damage(h, k, count):
            if h.command == "GET" and LARGE in s.objects and "Range" in h.headers:
                s.objects[LARGE] = s.objects[LARGE][:30 << 20] + b"damaged" + s.objects[LARGE][(30 << 20) + 7:]
            return False

        s.trouble = damage
        text = write(t, s, "cp", source, "s3://b/x.safetensors", status=2)
        need("read back" in text and not s.objects, f"{text} {list(s.objects)}")


def start(t, s, *args, **env):
    return subprocess.Popen([t.path, *args], env={**os.environ, **s.env(), **env}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


@test
def test_write_a_signal_aborts_the_uploads(t):
    """What became of the output is said, also where the server does not abort them."""
    source = large_file(t)
    for number, is_refused in ((signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGTERM, True)):
        reached, go_on = threading.Event(), threading.Event()

        def trouble(h, key, count):
            if h.command == "PUT" and "partNumber=4" in h.path:
                reached.set()
                go_on.wait(120)
            return is_refused and h.command == "DELETE" and h.error(403, "AccessDenied")

        with serving({}, trouble) as s:
            p = start(t, s, "convert", source, "s3://b/x.pt")
            need(reached.wait(60), "part 4 is not sent")
            p.send_signal(number)
            status, said = p.wait(60), p.stderr.read()
            need(status == -number, f"ended {status}: {said}")
            go_on.set()
            need(not s.objects and bool(s.uploads) == is_refused and operations(s, "AbortMultipartUpload") == (not is_refused), f"{list(s.objects)} {operations(s)}")
            need((b"could not be removed" in said) == is_refused != (b"the unfinished output was removed" in said), said)
            p.stderr.close()


def says_that_it_locks(t):
    """A library that makes a file `locks` when the thread that acts on a signal has the lock, with which it keeps a publication from ending. With
    LATE it makes it before, and lets all other threads be a second faster."""
    code = """#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
int pthread_mutex_timedlock(pthread_mutex_t *lock, const struct timespec *until)
{
    int (*real)(pthread_mutex_t *, const struct timespec *) = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    const int result = getenv("LATE") ? 0 : real(lock, until);
    close(open(getenv("LOCKS"), O_CREAT | O_WRONLY, 0600));
    return getenv("LATE") ? sleep(1), real(lock, until) : result;
}
"""
    return {"LD_PRELOAD": preloadable(t.at("says_that_it_locks.so"), code), "LOCKS": t.at("locks")}


def end_while_it_is_published(t, there, key, *args, **env):
    """Ends a run by a signal when it writes this object, which is carried out after the run has noticed the signal. Returns the server."""
    reached, go_on = threading.Event(), threading.Event()

    def trouble(h, k, count):
        if h.command in ("PUT", "POST") and k == key and "uploads=" not in h.path and "partNumber" not in h.path:
            reached.set()
            go_on.wait(60)
        return False

    with serving({f"ck/{n}": d for n, d in there.items()}, trouble) as s:
        p = start(t, s, *args, **env)
        need(reached.wait(60), f"{key} is not written")
        p.send_signal(signal.SIGTERM)
        while not os.path.exists(env["LOCKS"]):
            need(p.poll() is None, f"ended {p.returncode}: {p.stderr.read() if p.returncode is not None else ''}")
            time.sleep(0.01)
        go_on.set()
        need(p.wait(60) == -signal.SIGTERM, f"ended {p.returncode}: {p.stderr.read()}")
        p.stderr.close()
        os.remove(env["LOCKS"])
        s.wait_for_ended_clients()
        need(not s.uploads, s.uploads)
        if "ck/.metadata" in s.objects:
            need(t.json("diff", args[1], "s3://b/ck", "--values", "--json", env=s.env())["same"], "the new checkpoint")
    return s


@test
def test_write_a_signal_while_it_is_published(t):
    """The step that is in progress ends first. Then what was made is removed, the marker before the data. If the marker has
    replaced an old one, it stays, and so does its data."""
    env, old, new = says_that_it_locks(t), files_below(sample("dcp_fsdp2")[0]), large_file(t)
    for key in ("ck/.metadata", "ck/__0_0.distcp"):
        s = end_while_it_is_published(t, {}, key, "convert", new, "s3://b/ck", "--to", "dcp", **env)
        need(not s.objects, list(s.objects))
    s = end_while_it_is_published(t, old, "ck/.metadata", "convert", new, "s3://b/ck", "--to", "dcp", "--overwrite", **env)
    need("ck/.metadata" in s.objects, list(s.objects))


@test
def test_write_a_signal_that_comes_before_the_end_ends_the_process(t):
    """Also if the publication is over before the thread that acts on the signal gets its turn."""
    end_while_it_is_published(t, {}, "ck/.metadata", "convert", large_file(t), "s3://b/ck", "--to", "dcp", LATE="yes", **says_that_it_locks(t))


@test
def test_write_killed_before_the_marker(t):
    """The run is killed when the data is there and the marker is not. Then there is no marker if there was none before, and
    the old checkpoint if there was one. If the old and the new checkpoint share names, there is no marker either."""
    old, new = sample("dcp_fsdp2")[0], large_file(t)

    def kill_at_marker(s, *args):
        reached, over = threading.Event(), threading.Event()

        def trouble(h, key, count):
            if h.command == "PUT" and key == "ck/.metadata":
                reached.set()
                over.wait(120)
                h.close_connection = True
                return True
            return False

        s.trouble = trouble
        p = start(t, s, *args)
        need(reached.wait(60), "the marker is not written")
        p.kill()
        p.wait()
        p.stderr.close()
        over.set()
        s.trouble = lambda *a: False

    with serving({}) as s:
        kill_at_marker(s, "convert", new, "s3://b/ck", "--to", "dcp")
        need(list(s.objects) == ["ck/__0_0.distcp"], list(s.objects))
        before = {f"ck/{n}": d for n, d in files_below(old).items()}
        s.objects.clear()
        s.objects.update(before)
        kill_at_marker(s, "convert", new, "s3://b/ck", "--to", "dcp", "--overwrite")
        need(before.items() <= s.objects.items(), "the old checkpoint is not whole")
        need(t.json("diff", old, "s3://b/ck", "--values", "--json", env=s.env())["same"], "the old checkpoint")
        kill_at_marker(s, "cp", old, "s3://b/ck", "--overwrite")
        need("ck/.metadata" not in s.objects, "a marker above a mixture")
        write(t, s, "cp", old, "s3://b/ck", "--overwrite")
        need(t.json("diff", old, "s3://b/ck", "--values", "--json", env=s.env())["same"], "written again")


@test
def test_write_over_what_another_program_saves_meanwhile(t):
    """--overwrite applies only to the checkpoint that was there when the run began. If a training job saves to the same
    place during the upload, its files stay."""
    new, old = large_file(t), sample("dcp_fsdp2")[0]
    t.run("convert", new, t.at("new"), "--to", "dcp")
    jobs = (("convert", new, "s3://b/ck", "--to", "dcp"), ("cp", t.at("new"), "s3://b/ck"), ("cp", new, "s3://b/ck.safetensors"))
    for args in jobs:
        single = args[2].endswith(".safetensors")
        there = {"ck.safetensors": b"old"} if single else {f"ck/{n}": d for n, d in files_below(old).items()}
        for saved in there:
            with serving({**there, "ck2/notes": b"mine"}) as s:
                before = dict(s.objects)

                def trouble(h, key, count):
                    if h.command == "PUT" and "uploadId" in h.path:
                        s.objects[saved] = before[saved] = b"newer"
                    return False

                s.trouble = trouble
                said = write(t, s, *args, "--overwrite", status=2)
                need("another program has written" in said and saved in said, said)
                need(s.objects == before, f"{args[0]} {saved}: {sorted(s.objects)}")
                need(not s.uploads, s.uploads)
                s.trouble = lambda *a: False
                if single:
                    write(t, s, *args, "--overwrite")
                    need(s.objects["ck.safetensors"] == files_below(new)["large.safetensors"], "the next run")


@test
def test_write_over_a_marker_that_another_program_saves_late(t):
    """The data is read back before the marker is replaced, which may take long. A marker that another program saves in that
    time stays."""
    new, old = large_file(t), sample("dcp_fsdp2")[0]
    t.run("convert", new, t.at("new"), "--to", "dcp")
    for args in (("convert", new, "s3://b/ck", "--to", "dcp"), ("cp", t.at("new"), "s3://b/ck")):
        with serving({f"ck/{n}": d for n, d in files_below(old).items()}) as s:

            def trouble(h, key, count):
                if h.command == "POST" and "uploadId" in h.path:
                    s.objects["ck/.metadata"] = b"newer"
                return False

            s.trouble = trouble
            said = write(t, s, *args, "--overwrite", status=2)
            need("another program has written" in said and "ck/.metadata" in said, said)
            need(s.objects["ck/.metadata"] == b"newer" and not s.uploads, f"{args[0]}: {sorted(s.objects)}")
