"""Signals: whatever a command is doing, they end it soon, and nothing remains. The checkpoints are holes of 64 GiB, so no
command finishes with its values before the signal comes."""
import contextlib
import http.server
import json
import os
import shutil
import signal
import socketserver
import struct
import subprocess
import threading
import time

from harness import need, sample, st_write, test

HUGE = 64 << 30
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def huge(path, dtype="U8"):
    """Writes a safetensors file of one tensor that is a hole."""
    elements = HUGE // (1 if dtype == "U8" else 4)
    header = json.dumps({"w": {"dtype": dtype, "shape": [elements // 1024, 1024], "data_offsets": [0, HUGE]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        f.truncate(8 + len(header) + HUGE)
    return path


def tree(directory):
    return sorted(os.path.relpath(os.path.join(d, f), directory) for d, _, files in os.walk(directory) for f in files)


def start(t, *args, env=None, **more):
    return subprocess.Popen([t.path, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env={**os.environ, **(env or {})}, **more)


def ends_by(p, number, what):
    """Sends the signal. How long the end takes on a busy machine does not matter here, but it must come."""
    need(p.poll() is None, f"{what}: it ended with {p.returncode} before the signal: {p.stderr.read()[-300:] if p.returncode is not None else ''}")
    p.send_signal(number)
    try:
        _, err = p.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        p.kill()
        p.communicate()
        need(False, f"{what}: still there a minute after {number.name}")
    need(p.returncode == -number, f"{what}: {number.name} ended it with {p.returncode}: {err[-300:]}")


def appears(p, directory, part, limit=60):
    """Waits until there is a file whose name contains `part` somewhere below the directory."""
    until = time.monotonic() + limit
    while p.poll() is None and time.monotonic() < until:
        if any(part in name for name in tree(directory)):
            return
        time.sleep(0.005)
    need(False, f"no {part} appeared: {p.poll()} {tree(directory)} {p.stderr.read() if p.poll() is not None else ''}")


@test
def test_signals_end_commands_that_read(t):
    a, b = huge(t.at("a.safetensors")), huge(t.at("b.safetensors"))
    before = tree(t.directory)
    jobs = [("inspect", a, "--hash", "sha256"), ("inspect", a, "--stats", "--json"), ("layout", a, "--hash", "sha256"), ("manifest", a),
            ("diff", a, b, "--values"), ("diff", a, b, "--values", "--atol", "1"), ("validate", a, "--deep")]
    for i, job in enumerate(jobs):
        p = start(t, *job)
        time.sleep(0.15)
        ends_by(p, ENDS[i % len(ENDS)], " ".join(job))
        need(tree(t.directory) == before, f"{job}: {tree(t.directory)}")
    small = t.at("small.safetensors")
    st_write(small, {"w": ("U8", [1, 1024], bytes(1024))})
    manifest = json.loads(t.run("manifest", small).stdout)
    text = json.dumps(manifest).replace("1, 1024", f"{HUGE // 1024}, 1024").replace('[1,1024]', f"[{HUGE // 1024},1024]")
    doc = json.loads(text)
    for entry in doc["entries"]:
        entry["shape"] = [HUGE // 1024, 1024]
        if "bytes" in entry:
            entry["bytes"] = HUGE
    with open(t.at("m.json"), "w") as f:
        json.dump(doc, f)
    p = start(t, "verify", a, t.at("m.json"))
    time.sleep(0.15)
    ends_by(p, signal.SIGINT, "verify")


@test
def test_signals_remove_what_o_began(t):
    a = huge(t.at("a.safetensors"))
    for i, job in enumerate((("layout", a, "--hash", "sha256"), ("manifest", a), ("get", a, "w"))):
        for name in ("new", "old"):
            os.mkdir(t.at("out"))
            place = t.at("out", f"{name}.bin")
            if name == "old":
                open(place, "w").write("an earlier file")
            p = start(t, *job, "-o", place)
            appears(p, t.at("out"), ".tessera-")
            ends_by(p, ENDS[i % len(ENDS)], f"{job[0]} -o {name}")
            want = ["old.bin"] if name == "old" else []
            need(tree(t.at("out")) == want, f"{job[0]}: {tree(t.at('out'))}")
            need(name != "old" or open(place).read() == "an earlier file", "the earlier file changed")
            shutil.rmtree(t.at("out"))


@test
def test_signals_remove_what_writers_began(t):
    a = huge(t.at("a.safetensors"), "F32")
    target = ("--mesh", "dp=2", "--placements", "shard(0)")
    jobs = [("convert", a, "D", "--to", "safetensors", "--dtype", "bfloat16"), ("convert", a, "D", "--to", "torch", "--dtype", "bfloat16"),
            ("convert", a, "D", "--to", "dcp", "--dtype", "bfloat16"), ("convert", a, "D", "--to", "dcp"),
            ("convert", a, "D", "--to", "safetensors", "--max-shard-size", "30GB", "--dtype", "bfloat16"),
            ("reshard", a, "D", *target, "--to", "dcp"), ("reshard", a, "D", *target, "--to", "torch"),
            ("reshard", a, "D", *target, "--to", "safetensors")]
    for i, job in enumerate(jobs):
        os.mkdir(t.at("out"))
        p = start(t, *[t.at("out", "d") if x == "D" else x for x in job])
        appears(p, t.at("out"), ".tessera-")
        time.sleep(0.1 * (i % 3))
        p.send_signal(ENDS[i % len(ENDS)])  # and again, while it cleans up
        time.sleep(0.001 * (i % 4))
        with contextlib.suppress(ProcessLookupError):
            p.send_signal(ENDS[(i + 1) % len(ENDS)])
        try:
            _, err = p.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            p.kill()
            need(False, f"{job}: still there")
        need(p.returncode in (-ENDS[i % len(ENDS)], -ENDS[(i + 1) % len(ENDS)]), f"{job}: {p.returncode} {err}")  # whichever came first
        need(os.listdir(t.at("out")) == [], f"{job}: {tree(t.at('out'))}")
        os.rmdir(t.at("out"))


@test
def test_signals_keep_what_is_resumed(t):
    a = huge(t.at("a.safetensors"), "F32")
    os.mkdir(t.at("out"))
    p = start(t, "convert", a, t.at("out", "d.pt"), "--dtype", "bfloat16", "--resume")
    appears(p, t.at("out"), ".tessera-")
    ends_by(p, signal.SIGINT, "convert --resume")
    left = tree(t.at("out"))
    need(left and all(n.startswith(".d.pt.tessera-") for n in left), left)
    shutil.rmtree(t.at("out"))
    os.mkdir(t.at("out"))
    plan = t.at("plan.json")
    open(plan, "wb").write(t.run("plan", a, "--mesh", "dp=2", "--placements", "shard(0)", "--json").stdout)
    p = start(t, "exec", plan, t.at("out", "d"), "--share", "1/2")
    appears(p, t.at("out"), ".tessera-")
    ends_by(p, signal.SIGTERM, "exec --share")
    need(tree(t.at("out")), "the part is gone")


@test
def test_signals_at_any_moment_leave_old_or_new(t):
    """From the first instruction to the last: the destination is what it was, or the new one, and there is nothing else."""
    path = sample("dcp_fsdp2")[0]
    jobs = [("convert", path, "D", "--to", "torch"), ("convert", path, "D", "--to", "dcp", "--overwrite"), ("reshard", path, "D", "--mesh", "dp=3", "--placements", "shard(0)", "--overwrite"),
            ("layout", path, "-o", "D")]
    for job in jobs:
        os.mkdir(t.at("whole"))
        os.mkdir(t.at("out"))
        line = lambda directory: [t.at(directory, "d") if x == "D" else x for x in job]
        begun = time.monotonic()
        t.run(*line("whole"))
        length = time.monotonic() - begun
        contents = lambda directory: {n: open(t.at(directory, n), "rb").read() for n in tree(t.at(directory))}
        whole = contents("whole")
        stopped = 0
        for k in range(24):
            p = start(t, *line("out"))
            time.sleep(length * 1.1 * k / 24)
            p.send_signal(ENDS[k % 3])
            p.communicate(timeout=60)
            need(p.returncode in (0, -ENDS[k % 3]), f"{job}: {p.returncode}")
            stopped += p.returncode != 0
            got = contents("out")
            need(got == {} or sorted(got) == sorted(whole) or ("--overwrite" in job and t.run("validate", t.at("out", "d"))), f"{job}, moment {k}: {sorted(got)}")
            need(not any(".tessera-" in n for n in got), f"{job}, moment {k}: {sorted(got)}")
            if "--overwrite" not in job:
                need(got == {} or got == whole, f"{job}, moment {k}: other bytes")
                shutil.rmtree(t.at("out"))
                os.mkdir(t.at("out"))
        # the first signal comes immediately; how many of the others have an effect depends on the machine
        need(stopped, f"{job}: no run was stopped")
        shutil.rmtree(t.at("whole"))
        shutil.rmtree(t.at("out"))


@test
def test_kills_never_leave_a_sidecar_without_its_file(t):
    path, more = sample("dcp_small")[0], ("--objects", "sidecar", "-q")
    one, sidecar = t.at("m.safetensors"), t.at("m.safetensors.objects.json")
    command = ("convert", path, one, *more)
    began = time.monotonic()
    t.run(*command)
    took = time.monotonic() - began
    with open(sidecar, "rb") as f:
        want = f.read()
    for turn in range(60):
        again = ("--resume",) if turn % 3 == 0 else ()
        for name in (one, sidecar):
            os.unlink(name)
        p = start(t, *command, *again)
        time.sleep(took * (0.4 + turn % 20 / 20))
        p.kill()
        p.communicate()
        written = os.path.exists(one)
        need(written or not os.path.exists(sidecar), "the sidecar is there and the file is not")
        t.run(*command, *again, status=2 if written and not again else (0, 2))  # it exists; or a resumed run was complete
        need([*map(os.path.exists, (one, sidecar))] == [True, True], f"turn {turn}: {os.listdir(t.directory)}")
        with open(sidecar, "rb") as f:
            need(f.read() == want, "another sidecar")
        need(sorted(os.listdir(t.directory)) == ["m.safetensors", "m.safetensors.objects.json"], os.listdir(t.directory))


@test
def test_signals_end_waiting_for_a_server(t):
    class Silent(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(4096)
            self.server.asked.set()
            self.server.over.wait(120)

    for args in (("inspect", "U"), ("validate", "--deep", "U"), ("convert", "U", t.at("x.pt")), ("diff", "U", "U", "--values")):
        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Silent) as server:
            server.asked, server.over, server.daemon_threads = threading.Event(), threading.Event(), True
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            url = f"http://127.0.0.1:{server.server_address[1]}/m.safetensors"
            p = start(t, *[url if x == "U" else x for x in args])
            need(server.asked.wait(60), "no request")
            ends_by(p, signal.SIGINT, f"{args[0]} of a silent server")
            server.over.set()
            server.shutdown()
        need(tree(t.directory) == [], tree(t.directory))


@test
def test_signals_while_a_server_stalls_in_the_values(t):
    """The output has begun, and the rest of a tensor never comes."""
    size = 256 << 20
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    whole = struct.pack("<Q", len(header)) + header

    class Stalling(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            first, last = map(int, self.headers["Range"][len("bytes="):].split("-"))
            last = min(last, len(whole) + size - 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(whole) + size}")
            self.send_header("Content-Length", str(last - first + 1))
            self.end_headers()
            if last > 100 << 20:
                self.server.over.wait(120)
                self.close_connection = True
                return
            with contextlib.suppress(OSError):
                self.wfile.write((whole + bytes(max(0, last + 1 - len(whole))))[first:last + 1] if first < len(whole) else bytes(last - first + 1))

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stalling) as server:
        server.over = threading.Event()
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        p = start(t, "convert", f"http://127.0.0.1:{server.server_address[1]}/m.safetensors", t.at("x.pt"))
        appears(p, t.directory, ".tessera-")
        time.sleep(0.5)
        ends_by(p, signal.SIGTERM, "convert from a stalling server")
        server.over.set()
        server.shutdown()
    need(tree(t.directory) == [], tree(t.directory))


@test
def test_signals_do_not_wait_for_a_store_that_stopped_answering(t):
    """Uploads are aborted before the end, but only as long as a scheduler waits, however long requests may be repeated."""
    class Store(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def answer(self, body, status=200):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            is_list = "list-type=" in self.path
            self.answer(b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>" if is_list else b"", 200 if is_list else 404)

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.answer(b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")

        def silent(self):
            self.server.asked.set()
            self.server.over.wait(200)
            self.close_connection = True

        do_PUT = do_DELETE = do_HEAD = silent

    a = huge(t.at("a.safetensors"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        server.asked, server.over, server.handle_error = threading.Event(), threading.Event(), lambda *_: None
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        p = start(t, "convert", a, "s3://bucket/b.pt", env={"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_address[1]}", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
                                                            "AWS_REGION": "us-east-1", "TESSERA_RETRY_SECONDS": "3600"})
        need(server.asked.wait(60), "no part was sent")
        p.send_signal(signal.SIGTERM)
        try:
            err = p.communicate(timeout=150)[1].decode()
        except subprocess.TimeoutExpired:
            p.kill()
            need(False, f"it waits for the store: {p.communicate()}")
        finally:
            server.over.set()
            server.shutdown()
    need(p.returncode == -signal.SIGTERM and "took too long, and some of it may be left" in err, f"{p.returncode} {err}")


@test
def test_signals_that_are_ignored_stay_so(t):
    """nohup: a job continues without its terminal."""
    path = sample("dcp_fsdp2")[0]
    p = start(t, "convert", path, t.at("x.pt"), preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    for _ in range(40):
        p.send_signal(signal.SIGHUP)
        time.sleep(0.002)
    p.communicate(timeout=60)
    need(p.returncode == 0 and tree(t.directory) == ["x.pt"], f"{p.returncode} {tree(t.directory)}")


@test
def test_signals_closed_pipes(t):
    a = huge(t.at("a.safetensors"), "F32")
    os.mkdir(t.at("out"))
    read, write = os.pipe()
    os.close(read)
    p = subprocess.Popen([t.path, "inspect", sample("dcp_fsdp2")[0], "--json"], stdout=write, stderr=subprocess.PIPE)
    p.communicate(timeout=60)
    need(p.returncode == -signal.SIGPIPE, p.returncode)
    os.close(write)
    p = start(t, "convert", a, t.at("out", "x.pt"), "--dtype", "bfloat16")
    appears(p, t.at("out"), ".tessera-")
    ends_by(p, signal.SIGPIPE, "convert whose messages nobody reads")
    need(tree(t.at("out")) == [], tree(t.at("out")))


@test
def test_signals_end_optim_and_repair(t):
    path = sample("dcp_fsdp2")[0]
    shutil.copytree(path, t.at("lost"))
    os.remove(t.at("lost", ".metadata"))
    for job, name in ((("optim", "flatten", path, "D"), "o.pt"), (("repair", t.at("lost"), "D"), "m")):
        for k in range(12):
            os.mkdir(t.at("out"))
            p = start(t, *[t.at("out", name) if x == "D" else x for x in job])
            time.sleep(0.001 * k)
            p.send_signal(ENDS[k % 3])
            p.communicate(timeout=60)
            need(p.returncode in (0, 1, -ENDS[k % 3]), f"{job}: {p.returncode}")
            got = tree(t.at("out"))
            need(got in ([], [name]), f"{job}: {got}")
            shutil.rmtree(t.at("out"))


@test
def test_a_limit_on_the_size_of_files_is_an_error_and_leaves_nothing(t):
    import resource
    limit = 1 << 20
    path = st_write(t.at("a.safetensors"), {"w": ("U8", [4 << 20], bytes(range(256)) * (16 << 10))}) or t.at("a.safetensors")
    before = tree(t.directory)
    for job in (("convert", path, t.at("b.pt")), ("convert", path, t.at("dcp"), "--to", "dcp"), ("cp", path, t.at("c.safetensors")), ("get", path, "w", "-o", t.at("w.npy")),
                ("merge", t.at("m.safetensors"), path, "--to", "safetensors")):
        p = subprocess.run([t.path, *job], capture_output=True, timeout=60, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        need(p.returncode == 2 and b"File too large" in p.stderr, f"{job[0]}: {p.returncode} {p.stderr}")
        need(tree(t.directory) == before, f"{job[0]}: {tree(t.directory)}")


@test
def test_what_became_of_the_output_is_said(t):
    a = huge(t.at("a.safetensors"))
    for options, said in (((), "the unfinished output was removed"), (("--resume",), "the finished work was kept; run the same command with --resume")):
        for number in ENDS:
            p = start(t, "convert", a, t.at("b.pt"), *options)
            appears(p, t.directory, ".tessera-")
            p.send_signal(number)
            err = p.communicate(timeout=60)[1].decode()
            need(p.returncode == -number and f"tessera: ended by {number.name}; {said}" in err, f"{options} {number.name}: {p.returncode} {err}")
            for name in tree(t.directory):
                if ".tessera-" in name:
                    os.remove(t.at(name))
