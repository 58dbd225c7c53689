"""For every request of a command in turn: its reply is lost, or the objects change, or the server is slow. The result must
be the same, or the message must be clear. The requests are counted: before a write that may have been carried out is
repeated, the server must be asked about it."""
import collections
import concurrent.futures
import os
import time

from checks import need, test
from fake_s3 import serving
from harness import st_write
from test_every_request import PREFIX, at, destination, jobs, outcome, remove, small
from test_s3 import files_below

CREATE, PART, COMPLETE, PUT, DELETE, LIST, LIST_PARTS = ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "PutObject", "DeleteObject",
                                                         "ListMultipartUploads", "ListParts")


class Run:
    """Runs a command against a server of its own, which `setup(server)` prepares. `made` is what the command made visible.
    `operations` are the operations that the server saw, in order."""

    def __init__(self, t, name, job, setup=lambda server: None):
        before, args, is_remote = job
        self.operations, self.keys = [], []
        local = f"{name}-{time.monotonic_ns()}"
        with serving(dict(before)) as s:
            setup(s)
            inner = s.trouble

            def trouble(handler, key, count):
                with s.lock:
                    self.operations.append(handler.operation)
                    self.keys.append(key)
                return inner(handler, key, count)
            s.trouble = trouble
            self.p = t.run(*args[:2], *destination(t, local, is_remote), *args[2:], status=(0, 1, 2), env=s.env())
            self.made = outcome(t, s, local, is_remote, self.p)
            self.uploads = list(s.uploads)
        if is_remote is False:
            remove(t.at(local))

    def counts(self):
        return collections.Counter(self.operations)


def all_jobs(t):
    """Returns the jobs of test_every_request.py, with names that can be used as paths, one more that resumes, and one that
    replaces a checkpoint."""
    found = {name.replace(" ", "-"): job for name, job in jobs(t).items()}
    old = {f"out/{k}": v for k, v in files_below(small(t)).items() if k != "a.safetensors"}
    found["resume-from"] = (found["cp-from"][0], ("cp", "s3://b/ck", "--resume"), False)
    return {**found, "overwrite-to": (old, ("convert", os.path.join(small(t), "a.safetensors"), "--to", "dcp", "--overwrite"), True)}


def in_turn(check, cases, at_a_time=8):
    """Runs `check` on each case, several at a time, and returns the results in the order of the cases. Fails with the
    messages of the cases that failed."""
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        done = [pool.submit(check, *case) for case in cases]
    failed = [str(e) for e in (d.exception() for d in done) if e]
    need(not failed, f"{len(failed)} of {len(cases)}: " + "\n  ".join(failed[:8]))
    return [d.result() for d in done]


# ---- lost replies ----

# What must follow when the reply to an operation is lost: the first request about that key, and the requests that are sent
# in addition to those of a run without trouble.
AFTER = {CREATE: (LIST, {LIST: 1, LIST_PARTS: 1}), COMPLETE: ("GET", {"GET": 1}), PUT: ("GET", {"GET": 2}), PART: (PART, {PART: 1}), DELETE: (DELETE, {DELETE: 1}),
         LIST: (LIST, {LIST: 1})}
REPLACING = PUT, {PUT: 1}  # A PUT that replaces an object and has no condition. Writing it twice does no harm.


def check_lost(t, name, job, wanted, index):
    lost = []

    def setup(s):
        seen = [-1]

        def loses(handler):
            with s.lock:
                seen[0] += 1
                if seen[0] == index:
                    lost.append((handler.operation, handler.path.partition("?")[0][len("/b/"):], len(s.asked), "If-None-Match" in handler.headers))
                return seen[0] == index
        s.loses = loses
    r = Run(t, name, job, setup)
    operation, key, when, is_conditional = lost[0]
    need(r.p.returncode == 0 and r.made == wanted.made and not r.uploads, f"{name} {index} {operation}: {r.p.returncode} {r.p.stderr.decode()} {r.uploads}")
    first, more = AFTER[operation] if operation != PUT or is_conditional else REPLACING
    asked = [o for o, k in list(zip(r.operations, r.keys))[when:] if k == key or (o == LIST and not k)]
    need(asked and asked[0] == first, f"{name} {index}: after {operation} of {key} come {asked[:4]}")
    extra = r.counts() - wanted.counts()
    need(extra == collections.Counter(more) and not wanted.counts() - r.counts(), f"{name} {index}: {operation} of {key} costs {dict(extra)}")
    return operation, is_conditional


@test
def test_lost_reply_at_every_request(t):
    """No upload is begun, no upload is completed and no object is written twice: the server is asked first, which takes one
    or two requests. Parts, removals and listings may be done twice and are simply sent again."""
    seen = collections.Counter()
    for name, job in all_jobs(t).items():
        wanted = Run(t, name, job)
        need(wanted.p.returncode == 0, wanted.p.stderr)
        writes = sum(n for o, n in wanted.counts().items() if o in AFTER)
        seen.update(in_turn(check_lost, [(t, name, job, wanted, i) for i in range(writes)]))
    need({o for o, _ in seen} == set(AFTER) and seen[PUT, True] and seen[PUT, False], f"{seen}")


def cut_off_at_the_marker(server):
    """The marker is written, but its reply is lost. From then on every attempt to look whether it is there is denied."""
    lost = []

    def loses(handler):
        is_marker = handler.operation == PUT and ".metadata" in handler.path
        lost.extend([handler.path] * is_marker)
        return is_marker
    server.loses = loses
    server.trouble = lambda handler, key, count: bool(lost) and handler.command in ("GET", "HEAD") and handler.error(403, "AccessDenied")


@test
def test_marker_that_may_be_there_keeps_its_data(t):
    """Without the permission to look, a failed run cannot know whether the marker was written. It must keep the data,
    because a marker without its data is a checkpoint that cannot be loaded."""
    for before, more in (({}, ()), (all_jobs(t)["overwrite-to"][0], ("--overwrite",))):
        job = before, ("convert", os.path.join(small(t), "a.safetensors"), "--to", "dcp", *more), True
        wanted, r = Run(t, "sound", job), Run(t, "cut-off", job, cut_off_at_the_marker)
        need(wanted.p.returncode == 0 and r.p.returncode == 2, f"{wanted.p.stderr} {r.p.returncode} {r.p.stderr}")
        data = {k: v for k, v in wanted.made.items() if ".metadata" not in k}
        need(data and data.items() <= r.made.items() and len(r.made) >= len(wanted.made), f"{sorted(wanted.made)} {sorted(r.made)}")


# ---- slow servers ----

def check_slow(t, name, job, wanted, index, how):
    r = Run(t, name, job, lambda s: setattr(s, "trouble", at(index, how, False)))
    need(r.p.returncode == wanted.p.returncode and r.made == wanted.made and not r.uploads, f"{name} {index}: {r.p.returncode} {r.p.stderr.decode()}")
    need(r.counts() == wanted.counts(), f"{name} {index}: {r.counts()} instead of {wanted.counts()}")


def late(handler):
    time.sleep(0.4)  # This is longer than any wait before a request is repeated.


def in_drops(handler):
    """Sends the answer a few bytes at a time."""
    written, write = handler.wfile, handler.wfile.write

    class Drops:
        def write(self, data):
            step = max(1, len(data) // 6)
            for i in range(0, len(data), step):
                write(data[i:i + step])
                written.flush()
                time.sleep(0.05)
            return len(data)

        def __getattr__(self, name):
            return getattr(written, name)
    handler.wfile = Drops()


@test
def test_slow_server_at_every_request(t):
    """A late answer is waited for, and the request is never sent twice."""
    cases = []
    for name, job in all_jobs(t).items():
        wanted = Run(t, name, job)
        need(wanted.p.returncode == 0, wanted.p.stderr)
        cases += [(t, name, job, wanted, i, how) for i in range(len(wanted.operations)) for how in (late, in_drops)]
    need(len(cases) > 100, f"only {len(cases)} cases")
    in_turn(check_slow, cases, 16)  # which mostly wait


# ---- objects that change ----

def two_versions(t):
    """Makes two checkpoints of several files. Names and sizes are the same in both, the values differ in each file."""
    made = []
    for version in "ab":
        if not os.path.exists(t.at(version)):
            st_write(t.at(version + ".safetensors"), {f"t{i}": ("F32", [768 << 10], os.urandom(3 << 20)) for i in range(4)})
            t.run("convert", t.at(version + ".safetensors"), t.at(version), "--to", "safetensors", "--max-shard-size", "7MB")
        made.append({PREFIX + k: v for k, v in files_below(t.at(version)).items()})
    need({k: len(v) for k, v in made[0].items()} == {k: len(v) for k, v in made[1].items()} and len(made[0]) == 3, f"{[sorted(m) for m in made]}")
    return made


READING = {"inspect": (("inspect", "s3://b/ck", "--json", "--hash", "sha256"), None), "convert-from": (("convert", "s3://b/ck", "--to", "torch"), False),
           "cp-from": (("cp", "s3://b/ck"), False), "resume-from": (("cp", "s3://b/ck", "--resume"), False),
           "cp-within": (("cp", "s3://b/ck"), True),
           "convert-within": (("convert", "s3://b/ck", "--to", "dcp"), True)}


def check_changed(t, name, job, wanted, index):
    def change(handler):
        with handler.server.lock:
            handler.server.objects.update(wanted["b"].before)
    r = Run(t, name, job, lambda s: setattr(s, "trouble", at(index, change, False)))
    if r.p.returncode == 0 and r.made in (wanted["a"].made, wanted["b"].made):
        return "a" if r.made == wanted["a"].made else "b"
    findings = r.p.stdout if name == "inspect" else b""
    need((r.p.returncode == 2 or findings) and b"changed" in r.p.stderr + findings, f"{name} {index}: {r.p.returncode} {r.p.stderr.decode()}")
    need(name == "inspect" or not r.made and not r.uploads, f"{name} {index} leaves {sorted(r.made)}")
    # A read that finds a changed object is not tried again. The additional GET requests come from threads that waited for
    # the same window of ranges and then ask for it themselves. inspect goes on with the other tensors.
    more = r.counts() - wanted["a"].counts()
    need(set(more) <= {"GET", "AbortMultipartUpload", DELETE} and more["GET"] <= (len(wanted["a"].operations) // 2 if name == "inspect" else 8),
         f"{name} {index}: {dict(more)} more")
    return "refused"


@test
def test_change_of_the_source_at_every_request(t):
    """The result is that of one version, or the run fails. It is never a mixture, and a changed object is not asked for
    again."""
    a, b = two_versions(t)
    for name, (args, is_remote) in READING.items():
        wanted = {}
        for version, objects in (("a", a), ("b", b)):
            wanted[version] = Run(t, name, (objects, args, is_remote))
            wanted[version].before = objects
            need(wanted[version].p.returncode == 0, wanted[version].p.stderr)
        need(wanted["a"].made != wanted["b"].made, "two versions")
        seen = in_turn(check_changed, [(t, name, (a, args, is_remote), wanted, i) for i in range(len(wanted["a"].operations))])
        need(set(seen) >= {"b", "refused"}, f"{name}: {collections.Counter(seen)}")


def check_changed_copy(t, job, wanted, index):
    """Another program writes to an object of the destination while the copy is made."""
    def change(handler):
        with handler.server.lock:
            for k in [k for k in handler.server.objects if k.startswith("out/") and not k.endswith(".metadata")][:1]:
                handler.server.objects[k] = bytes(len(handler.server.objects[k]))
    r = Run(t, "cp-to", job, lambda s: setattr(s, "trouble", at(index, change, False)))
    if r.p.returncode == 0:
        return "before" if r.made == wanted.made else "after"
    need(b"not those that were written" in r.p.stderr and not r.uploads and "out/.metadata" not in r.made, f"{index}: {r.p.stderr.decode()} {sorted(r.made)}")
    return "refused"


@test
def test_change_of_the_copy_at_every_request(t):
    """If the bytes that are read back are not those that were written, there is no marker. A change after the object was
    read back cannot be noticed."""
    job = all_jobs(t)["cp-to"]
    wanted = Run(t, "cp-to", job)
    reads = [i for i, o in enumerate(wanted.operations) if o == "GET"]
    seen = in_turn(check_changed_copy, [(t, job, wanted, i) for i in range(len(wanted.operations))])
    need("refused" in seen and "before" in seen, f"{seen}")
    need(not reads or seen[reads[-1] + 1:].count("refused") == 0, f"{seen}")
