"""Several ranks of PyTorch save to object stores with tessera.torch.StorageWriter. boto3 copies the result to the disk, and
PyTorch's own reader reads it there."""
import hashlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import threading
import time

import proxy
import servers
from checks import Skip, need, test
from fake_s3 import serving
from test_write import BUCKET, Place, bucket, uploads_left
from test_write_others import azurite_place, emulator_place, google_place

RANKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "writer_ranks.py")
PYTHON = {"python": None, "package": None, "ranks": None}  # set by run.py; ranks: the socket of start_ranks
WORLD = 3
FULL = bool(os.environ.get("TSR_TEST_FULL"))


def start_ranks():
    """Starts the process that the ranks of all tests are children of, and returns the socket on which it is asked for them. It ends when
    all processes of the tests have."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen([PYTHON["python"], RANKS, str(theirs.fileno())], env={**os.environ, "PYTHONPATH": PYTHON["package"], "OMP_NUM_THREADS": "1"},
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    theirs.close()
    return ours


class Rank:
    """The pipes of one process of writer_ranks.py. `theirs` are the ends that it reads and writes."""

    def __init__(self):
        jobs, stdin = os.pipe()
        stdout, results = os.pipe()
        self.stdin, self.stdout, self.theirs = os.fdopen(stdin, "w"), os.fdopen(stdout), (jobs, results)


class Ranks:
    """Processes that save together as often as they are asked to, and one more that reads."""

    def __init__(self, t, place, world=WORLD, **env):
        if not PYTHON["python"]:
            raise Skip("there is no Python with PyTorch and the package (--python, --package)")
        self.t, self.place, self.world, self.killed = t, place, world, False
        environment = {**os.environ, **place.env, **env, "PORT": str(servers.free_port())}
        self.log = open(t.at("ranks.log"), "ab+")
        self.ranks = [Rank() for _ in range(world + 1)]
        self.ended, theirs = os.pipe()
        theirs = [theirs, *(fd for rank in self.ranks for fd in rank.theirs)]
        socket.send_fds(PYTHON["ranks"], [json.dumps(environment).encode()], [self.log.fileno(), *theirs])
        for fd in theirs:
            os.close(fd)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.ranks:
            process.stdin.close()
        is_over = select.select([self.ended], [], [], 600)[0]
        os.close(self.ended)
        for process in self.ranks:
            process.stdout.close()
        self.log.close()
        need(is_over, "the ranks do not end")

    def ask(self, ranks, job, meanwhile=lambda: None):
        for process in ranks:
            process.stdin.write(json.dumps({"world": self.world, **job}) + "\n")
            process.stdin.flush()
        meanwhile()
        lines = [process.stdout.readline() for process in ranks]
        return [json.loads(line) if line else None for line in lines]

    def save(self, key, k, meanwhile=lambda: None, **job):
        """Calls `meanwhile` while the ranks save. Returns one answer for each rank. Its "failed" is why the rank failed, or None if it did not. The whole answer is
        None if the rank was killed."""
        return self.ask(self.ranks[:-1], {"do": "save", "url": f"{self.place.url}/{key}", "k": k, **job}, meanwhile)

    def saved(self, key, k, **job):
        """Saves, and returns the objects below the key and the findings of `check`. Both readers must find step `k`:
        PyTorch's in a copy on the disk, the package's in the store."""
        done = self.save(key, k, **job)
        need(all(one == {"failed": None} for one in done), f"{done} {self.said()[-2000:]}")
        return self.read(key, k, **job)

    def is_step(self, key, k, options):
        """Whether the package's reader finds the whole of step `k`."""
        [got] = self.ask(self.ranks[-1:], {"do": "read", "url": f"{self.place.url}/{key}", "k": k, "world": 1, "options": options})
        return got["by_url"]

    def read(self, key, k, **job):
        copy, files = self.t.at("copy"), self.place.below(key + "/")
        shutil.rmtree(copy, ignore_errors=True)
        os.makedirs(copy)
        for name, data in files.items():
            with open(os.path.join(copy, name), "wb") as f:
                f.write(data)
        [got] = self.ask(self.ranks[-1:], {"do": "read", "url": f"{self.place.url}/{key}", "copy": copy, "k": k, **job})
        need(got and got["by_torch"] and got["by_url"], f"step {k}: {got} {self.said()[-2000:]}")
        return files, got["findings"]

    def said(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")


def ours(files):
    return sorted(name for name in files if name not in ("mine.txt", "__0_notes.distcp"))


def check_place(t, place, left=lambda: []):
    """Saves a first time, once more so that it is refused, once to replace, and once in the background."""
    place.put("run/step 1/mine.txt", b"not Tessera's")
    place.put("run/step 1/__0_notes.distcp", b"nor this")
    place.put("run/step 10/.metadata", b"a neighbour")
    with Ranks(t, place) as ranks:
        first, findings = ranks.saved("run/step 1", 1)
        need(len(ours(first)) == WORLD + 1 and set(findings) <= {"dcp/unreferenced-file"}, f"{sorted(first)} {findings}")
        for one in ranks.save("run/step 1", 2):
            need(one["failed"] == {"0": "FileExistsError"} and "holds a checkpoint already" in one["said"], one)
        need(place.below("run/step 1/") == first and not left(), "a refused save changed something")
        second, _ = ranks.saved("run/step 1", 3, options={"overwrite": True, "thread_count": 2})
        need(len(ours(second)) == 2 * WORLD + 1 and not set(ours(second)) & set(ours(first)) - {".metadata"}, sorted(second))
        third, findings = ranks.saved("run/step 1", 4, options={"overwrite": True, "checksums": False}, is_async=True)
        need(len(ours(third)) == WORLD + 1 and "zip/crc-absent" in findings, f"{sorted(third)} {findings}")
        need(place.below("run/step 10/") == {".metadata": b"a neighbour"} and not left(), "a neighbour, or uploads")
        need(third["mine.txt"] == b"not Tessera's" and third["__0_notes.distcp"] == b"nor this", "files that are not ours")
        need("are not given up" not in ranks.said(), ranks.said())


@test
def test_writer_to_moto(t):
    with bucket(servers.moto) as (place, client):
        check_place(t, place, lambda: uploads_left(client))


@test
def test_writer_to_azurite(t):
    with azurite_place() as place:
        check_place(t, place)


@test
def test_writer_to_google(t):
    with google_place() as place:
        check_place(t, place)


@test
def test_writer_to_a_gcs_emulator(t):
    """The JSON API alone: one process can save, several are told why they cannot."""
    with emulator_place() as place:
        with Ranks(t, place, world=1) as ranks:
            files, findings = ranks.saved("ck", 1)
            need(len(files) == 2 and set(findings) <= {"dcp/unreferenced-file"}, f"{sorted(files)} {findings}")
        with Ranks(t, place) as ranks:
            done = ranks.save("many", 2)
            need(all("write with a single process" in one["said"] for one in done), done)
        need(not place.read("many/"), "something stays of a save that failed")


def check_when_a_rank_raises(t, **form):
    with bucket(servers.moto) as (place, client):
        with Ranks(t, place) as ranks:
            for k, faulty in ((1, 1), (2, 0)):
                for one in ranks.save("ck", k, fault="raise", faulty=faulty, options=form):
                    need(one["failed"] == {str(faulty): "ArithmeticError"} and "on purpose" in one["said"], one)
                need(not place.below("ck/"), f"{sorted(place.below('ck/'))}")
            before, _ = ranks.saved("ck", 3, options=form)
            need(not uploads_left(client), f"the next save leaves {uploads_left(client)}")
            ranks.save("ck", 4, fault="raise", faulty=2, options={"overwrite": True, "thread_count": 3, **form})
            need(place.below("ck/") == before, "the old checkpoint")
        need(place.below("ck/") == before and not uploads_left(client), f"the end of the ranks leaves {uploads_left(client)}")


@test
def test_writer_when_a_rank_raises(t):
    """Nothing is visible, the same ranks can save again, and no upload is left when they end."""
    check_when_a_rank_raises(t)


@test
def test_writer_of_safetensors_when_a_rank_raises(t):
    check_when_a_rank_raises(t, form="safetensors")


def check_when_a_rank_is_killed(t, rows, **form):
    """rows: of which more than one part is complete when the rank is killed."""
    with bucket(servers.moto) as (place, client), proxy.before(place.env["AWS_ENDPOINT_URL"]) as server:
        place.env["AWS_ENDPOINT_URL"] = server.url

        def let_it_die():
            until = time.monotonic() + 120
            while not uploads_left(client) and time.monotonic() < until:
                time.sleep(0.05)
            open(t.at("dies"), "w").close()

        with Ranks(t, place, RANKS_DIE="yes") as ranks:
            before, _ = ranks.saved("ck", 3, options=form, rows=rows)
            done = ranks.save("ck", 4, let_it_die, fault="kill", faulty=1, when=t.at("dies"), options={"overwrite": True, **form}, rows=rows)
            need(done[1] is None and all(one["failed"] for one in (done[0], done[2])), f"{done}")
        server.wait_for_ended_clients()
        need(place.below("ck/") == before and uploads_left(client), f"{sorted(place.below('ck/'))} {uploads_left(client)}")
        other = client.create_multipart_upload(Bucket=BUCKET, Key="ck/somebody's.distcp")["UploadId"]
        with Ranks(t, place) as ranks:
            after, _ = ranks.saved("ck", 5, options={"overwrite": True, **form}, rows=rows)
        need([u["UploadId"] for u in uploads_left(client)] == [other] and len(after) == len(before), f"{uploads_left(client)} {sorted(after)}")


@test
def test_writer_when_a_rank_is_killed(t):
    """The old checkpoint stays. The next save gives up the upload that is left, and no upload of another program."""
    check_when_a_rank_is_killed(t, 1100)


@test
def test_writer_of_safetensors_when_a_rank_is_killed(t):
    check_when_a_rank_is_killed(t, 2100, form="safetensors")


def check_killed_at_every_request(t, **form):
    """The save is killed when request number `at` comes, before it is served (every second one in an ordinary run). The old checkpoint or the new one must be
    whole, and the next save must leave nothing but its own objects and those of other programs."""
    options = {"overwrite": True, **form}
    with serving({}) as s:
        place = Place("s3://b", s.env(), lambda prefix: {k: v for k, v in s.objects.items() if k.startswith(prefix)}, s.objects.__setitem__)
        with Ranks(t, place, world=1) as ranks:
            child, seen = ranks.ranks[0], set()  # This process opens no checkpoint itself. It forks a child for each save.

            def save(k, at=0):
                """Returns the exit code of a save that is killed at request number `at`, or that runs to its end if `at` is
                0."""
                count, ready = [0], threading.Event()

                def trouble(handler, *_):
                    ready.wait()
                    with handler.server.lock:
                        count[0] += 1
                        is_point = count[0] == at
                    if is_point:
                        os.kill(pid[0], signal.SIGKILL)
                        handler.close_connection = True
                    return is_point

                others = list(s.connections.values())
                pid, s.trouble = [], trouble
                child.stdin.write(json.dumps({"do": "child", "url": "s3://b/ck", "k": k, "rows": 1100, "options": options}) + "\n")
                child.stdin.flush()
                pid.append(json.loads(child.stdout.readline())["child"])
                ready.set()
                ended = json.loads(child.stdout.readline())["ended"]
                s.wait_for_ended_clients(others)
                s.trouble = lambda *_: False
                return ended

            need(save(1) == 0, ranks.said())
            s.objects["ck/mine.txt"] = b"not Tessera's"
            old, k, at, ended = 1, 1, 0, -9
            while ended == -9:
                at, k = at + (1 if FULL else 2), k + 2
                ended = save(k, at)
                now = next((n for n in (old, k) if ranks.is_step("ck", n, options)), None)
                need(now is not None and (now == k if ended == 0 else True), f"request {at}: neither {old} nor {k} is there: {sorted(s.objects)}")
                seen.add(now == k)
                need(save(k + 1) == 0 and ranks.is_step("ck", k + 1, options), f"the save after request {at}: {ranks.said()[-2000:]}")
                need(len(s.objects) == 3 and not s.uploads and s.objects["ck/mine.txt"] == b"not Tessera's", f"{at}: {sorted(s.objects)} {s.uploads}")
                old = k + 1
            need(ended == 0 and seen == {True, False} and at > 10, f"{ended} {seen} {at}")


@test
def test_writer_killed_at_every_request(t):
    check_killed_at_every_request(t)


@test
def test_writer_of_safetensors_killed_at_every_request(t):
    check_killed_at_every_request(t, form="safetensors")


@test
def test_writer_of_joined_safetensors_killed_at_every_request(t):
    check_killed_at_every_request(t, form="safetensors", save_distributed=True, enable_consolidation=True)


@test
def test_writer_of_safetensors_follows_no_planted_journal(t):
    with serving({}) as s:
        place = Place("s3://b", s.env(), lambda prefix: {k: v for k, v in s.objects.items() if k.startswith(prefix)}, s.objects.__setitem__)
        with Ranks(t, place, world=1) as ranks:
            form = {"form": "safetensors", "overwrite": True}
            need(ranks.save("ck", 1, options=form) == [{"failed": None}], "the first save")
            for name in ("adapter.safetensors", "model-00001-of-00002.safetensors"):
                s.objects[f"ck/{name}"] = b"mine"
                text = json.dumps({"files": [name], "replaces": [name]}).encode()
                s.objects["ck/.tessera-save-0123456789abcdef.json"] = hashlib.sha256(text).hexdigest().encode() + text
                [one] = ranks.save("ck", 2, options=form)
                need(one["failed"] == {"0": "FileExistsError"} and f"holds '{name}'" in one["said"] and s.objects.pop(f"ck/{name}") == b"mine", one)


# ---- safetensors ----


INDEX = "model.safetensors.index.json"


def need_names(files, count, before=()):
    """One index, and `count` files with names of their own."""
    names = {name for name in files if name != "mine.txt"}
    need(INDEX in names and len(names) == count + 1 and all(re.fullmatch(r"model-[0-9a-f]{16}-\d{5}-of-0000%d.safetensors" % count, name) for name in names - {INDEX})
         and not names & set(before) - {INDEX}, sorted(names))


def check_safetensors(t, place, left=lambda: []):
    """Joins the shards of three ranks: a first time, once more so that it is refused, and to replace; then with a file that is not part of it."""
    form = {"form": "safetensors"}
    mapping = {"model.large": 2, "model.small": 1, "model.none": 2}
    place.put("run/step 1/mine.txt", b"not Tessera's")
    place.put("run/step 10/model.safetensors", b"a neighbour")
    with Ranks(t, place) as ranks:
        first, findings = ranks.saved("run/step 1", 1, options=form)
        need_names(first, 1)
        need(not findings, findings)
        for one in ranks.save("run/step 1", 2, options=form):
            need(one["failed"] == {"0": "FileExistsError"} and "holds a checkpoint already" in one["said"], one)
        need(place.below("run/step 1/") == first and not left(), "a refused save changed something")
        second, findings = ranks.saved("run/step 1", 3, options={**form, "overwrite": True, "fqn_to_index_mapping": mapping, "thread_count": 2})
        need_names(second, 2, first)
        third, _ = ranks.saved("run/step 1", 4, options={**form, "overwrite": True, "save_distributed": True, "enable_consolidation": True}, is_async=True)
        need_names(third, 1, second)
        need(third["mine.txt"] == b"not Tessera's" and place.below("run/step 10/") == {"model.safetensors": b"a neighbour"} and not left(), "files that are not ours")
        place.put("run/step 1/model.safetensors", b"somebody's")
        for one in ranks.save("run/step 1", 5, options={**form, "overwrite": True}):
            need(one["failed"] == {"0": "FileExistsError"} and "holds 'model.safetensors', which is not part of the checkpoint" in one["said"], one)
        for one in ranks.save("run/step 1", 6, options={"overwrite": True}):
            need("another form" in one["said"], one)
        for one in ranks.save("other", 7, options={**form, "save_distributed": True}):
            need(one["failed"] == "TesseraError" and "have no index" in one["said"], one)
        need(place.below("run/step 1/") == {**third, "model.safetensors": b"somebody's"} and not place.below("other"), "a refused save changed something")
    with Ranks(t, place, world=1) as ranks:  # whole tensors, which nothing joins
        files, _ = ranks.saved("one", 8, options={**form, "fqn_to_index_mapping": mapping})
        need_names(files, 2)
        need(not left(), left())


@test
def test_writer_of_safetensors_to_moto(t):
    with bucket(servers.moto) as (place, client):
        check_safetensors(t, place, lambda: uploads_left(client))


@test
def test_writer_of_safetensors_to_azurite(t):
    with azurite_place() as place:
        check_safetensors(t, place)


@test
def test_writer_of_safetensors_to_google(t):
    with google_place() as place:
        check_safetensors(t, place)


@test
def test_writer_of_safetensors_to_a_gcs_emulator(t):
    with emulator_place() as place, Ranks(t, place, world=1) as ranks:
        files, _ = ranks.saved("ck", 1, options={"form": "safetensors"})
        need_names(files, 1)


@test
def test_writer_of_ranks_on_their_own(t):
    """Each rank has a marker of its own, and completes what only others saved elements of."""
    with serving({}) as s:
        place = Place("s3://b", s.env(), lambda prefix: {k: v for k, v in s.objects.items() if k.startswith(prefix)}, s.objects.__setitem__)
        alone = {"how": {"use_collectives": False}}
        with Ranks(t, place) as ranks:
            for k, options in ((1, {}), (2, {"overwrite": True})):
                need(ranks.save("ck", k, options=options, **alone) == [{"failed": None}] * WORLD, f"step {k}: {ranks.said()[-2000:]}")
                files = place.below("ck/")
                need(sorted(name for name in files if name.endswith(".metadata")) == [f"__{r}.metadata" for r in range(WORLD)], sorted(files))
                [got] = ranks.ask(ranks.ranks[-1:], {"do": "read", "url": f"{place.url}/ck", "k": k})
                need(len(files) == 2 * WORLD and got and got["by_url"], f"{sorted(files)} {got} {ranks.said()[-2000:]}")
            for one in ranks.save("ck", 3, **alone):
                need(one["failed"] == "FileExistsError", one)
            need(place.below("ck/") == files, "a refused save changed something")


@test
def test_writer_follows_no_planted_journal(t):
    """A checkpoint from an untrusted source may contain a journal of a save that seems to have been killed after its
    publication."""
    with serving({}) as s:
        place = Place("s3://b", s.env(), lambda prefix: {k: v for k, v in s.objects.items() if k.startswith(prefix)}, s.objects.__setitem__)
        with Ranks(t, place, world=1) as ranks:
            need(ranks.save("ck", 1) == [{"failed": None}], "the first save")
            data = [k.removeprefix("ck/") for k in s.objects if k.endswith(".distcp")]
            mine = {f"ck/{name}": b"mine" for name in ("notes.txt", "sub/notes.txt", "sub/__0_0.distcp")}
            names = [k.removeprefix("ck/") for k in mine]
            for replaces in (names, {name: 1 for name in names}, [1, None], None):
                s.objects.update(mine)
                text = json.dumps({"files": [*data, *names], "replaces": replaces}).encode()
                s.objects["ck/.tessera-save-0123456789abcdef.json"] = hashlib.sha256(text).hexdigest().encode() + text
                done = ranks.save("ck", 2, options={"overwrite": True})
                need(done == [{"failed": None}], done)
                need(mine.items() <= s.objects.items(), sorted(s.objects))
                data = [k.removeprefix("ck/") for k in s.objects if k.endswith(".distcp")]


TRAINS = """import sys, torch, torch.distributed.checkpoint as dcp, transformers, tessera.torch
url, copy, step = sys.argv[1:]
torch.manual_seed(5)
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, vocab_size=40))
if step == "save":
    model.config.save_pretrained(copy)
    layers = {name: "layers.1." in name for name in model.state_dict()}
    writer = tessera.torch.StorageWriter(url, form="safetensors", fqn_to_index_mapping={name: 1 + last for name, last in layers.items()})
    dcp.save(model.state_dict(), storage_writer=writer, no_dist=True)
else:
    read = transformers.LlamaForCausalLM.from_pretrained(copy).state_dict()
    sys.exit(not all(torch.equal(read[name], value) for name, value in model.state_dict().items()))"""


def python_with_transformers():
    """The one that tests/package makes, unless --python has them."""
    made = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.local/package-frameworks/frameworks/bin/python")
    for python in filter(None, (PYTHON["python"], made)):
        if os.path.exists(python) and subprocess.run([python, "-c", "import transformers"], capture_output=True, check=False).returncode == 0:
            return python
    raise Skip("there is no Python with PyTorch and transformers (--python, or what tests/package/run makes)")


@test
def test_writer_of_safetensors_that_transformers_loads(t):
    """The names of the files are those that only the index states."""
    python = python_with_transformers()
    with serving({}) as s:
        os.makedirs(t.at("copy"))
        for step in ("save", "load"):
            for key, data in s.objects.items():
                with open(t.at("copy", os.path.basename(key)), "wb") as f:
                    f.write(data)
            p = subprocess.run([python, "-c", TRAINS, "s3://b/ck", t.at("copy"), step], env={**os.environ, **s.env(), "PYTHONPATH": PYTHON["package"]},
                               capture_output=True, text=True, check=False)
            need(p.returncode == 0, f"{step} {sorted(s.objects)} {p.stderr[-2000:]}")
        need_names({key.removeprefix("ck/"): data for key, data in s.objects.items()}, 2)
