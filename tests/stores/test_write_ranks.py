"""Several ranks under mpirun write one checkpoint to an object store, and each rank uploads its own files."""
import json
import os
import shutil
import signal
import struct
import subprocess
import threading

import servers
from checks import Skip, need, test
from fake_s3 import SECRET, serving
from harness import sample
from test_s3 import files_below
from test_write import bucket, large_file
from test_write_others import azurite_place, google_place

MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def needs_mpi(t):
    if not shutil.which("mpirun") or not os.path.exists(t.path + "-mpi"):
        raise Skip("there is no mpirun, or no tessera-mpi")


def start(t, ranks, env, *args):
    line = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), t.path, *args]
    return subprocess.Popen(line, env={**os.environ, **MPI, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(t, ranks, env, *args, status=0):
    p = start(t, ranks, env, *args)
    out, err = p.communicate(timeout=120)
    need(bool(p.returncode) == bool(status), f"{args} on {ranks} ranks: {p.returncode} {err.decode()}")
    return out.decode(), err.decode()


def jobs(t):
    """Returns (command, source, name, options) for outputs of many files, of one file, with files that only rank 0 writes,
    and with a file of objects."""
    large, path = large_file(t), sample("dcp_fsdp2")[0]
    mesh = ("--mesh", "dp=5", "--placements", "shard(0)")
    return (("reshard", large, "mesh-dcp", ("--to", "dcp", *mesh)), ("reshard", large, "mesh-st", ("--to", "safetensors", *mesh)),
            ("convert", large, "sharded", ("--to", "safetensors", "--max-shard-size", "15MB")), ("convert", large, "x.pt", ("--to", "torch")),
            ("convert", path, "dcp", ("--to", "dcp")), ("convert", path, "universal", ("--to", "deepspeed-universal")),
            ("convert", path, "sidecar", ("--to", "safetensors", "--max-shard-size", "2KB", "--objects", "sidecar")))


def write_all(t, place, counts):
    for command, source, name, options in jobs(t):
        local = t.at("out", name)
        os.makedirs(t.at("out"), exist_ok=True)
        if not os.path.exists(local):
            t.run(command, source, local, *options)
        for ranks in counts:
            url = f"{place.url}/{ranks}/{name}"
            run(t, ranks, place.env, command, source, url, *options)
            need(place.below(f"{ranks}/{name}") == files_below(local), f"{command} {options} on {ranks} ranks: {sorted(place.below(f'{ranks}/{name}'))}")
            _, err = run(t, ranks, place.env, command, source, url, *options, status=2)
            need("exists" in err and place.below(f"{ranks}/{name}") == files_below(local), err)


@test
def test_ranks_write_to_moto(t):
    needs_mpi(t)
    with bucket(servers.moto) as (place, client):
        write_all(t, place, (2, 3))
        need(not client.list_multipart_uploads(Bucket="bucket").get("Uploads"), "unfinished uploads")


@test
def test_ranks_write_to_s3rver(t):
    needs_mpi(t)
    with bucket(servers.s3rver) as (place, _):
        write_all(t, place, (4,))


@test
def test_ranks_write_to_azurite(t):
    needs_mpi(t)
    with azurite_place() as place:
        write_all(t, place, (3,))


@test
def test_ranks_write_to_google(t):
    needs_mpi(t)
    with google_place() as place:
        write_all(t, place, (3,))


def reshard(t):
    return "reshard", large_file(t), "s3://b/ck", "--to", "dcp", "--mesh", "dp=5", "--placements", "shard(0)"


def wanted(t, args):
    t.run(*args[:2], t.at("wanted"), *args[3:])
    return {f"ck/{name}": data for name, data in files_below(t.at("wanted")).items()}


@test
def test_ranks_share_the_uploads(t):
    """Every object is made once, the marker last, and every rank makes some. An old checkpoint is replaced."""
    needs_mpi(t)
    args = reshard(t)
    files = wanted(t, args)
    keys = [f"AKIDRANK{i}" for i in range(4)]  # Each rank has a key of its own, so that the server can tell the ranks apart.
    with serving({}) as s:
        s.keys = {**s.keys, **{k: (SECRET, None) for k in keys}}
        line = ["mpirun", "--oversubscribe", "--bind-to", "none"]
        for key in keys:
            line += [*([":"] if key != keys[0] else []), "-n", "1", "-x", f"AWS_ACCESS_KEY_ID={key}", t.path, *args]
        env = {**os.environ, **MPI, **s.env(AWS_SECRET_ACCESS_KEY=SECRET)}
        env.pop("AWS_ACCESS_KEY_ID")
        subprocess.run(line, env=env, check=True, capture_output=True, timeout=120)
        writers = {k for k in keys for command, _, headers in s.asked if command == "PUT" and f"Credential={k}/" in headers.get("Authorization", "")}
        need(writers == set(keys), f"only {writers} uploaded")
        need(s.objects == files and not s.uploads, f"{sorted(s.objects)}")
        made = [key for operation, key in s.done if operation in ("PutObject", "CompleteMultipartUpload")]
        need(sorted(made) == sorted(files) and made[-1] == "ck/.metadata", f"{made}")
        run(t, 3, s.env(), *args, "--overwrite")
        need(len(s.objects) == len(files) and not s.uploads, f"{sorted(s.objects)}")
        need("ck/.metadata" in s.objects, "no marker")


def kill_one(t, s, ranks, which, is_point, args):
    """Kills the rank with number `which` when a request comes for which `is_point` holds."""
    reached, over = threading.Event(), threading.Event()

    def trouble(handler, *_):
        with s.lock:
            is_first = is_point(handler) and not reached.is_set()
            reached.set() if is_first else None
        if is_first:
            over.wait(180)
            handler.close_connection = True
        return is_first

    s.trouble = trouble
    p = start(t, ranks, s.env(), *args)
    need(reached.wait(60), "the point is not reached")
    children = subprocess.run(["pgrep", "-P", str(p.pid)], capture_output=True, text=True, check=False).stdout.split()
    need(len(children) == ranks, f"{children}")
    os.kill(int(children[which]), signal.SIGKILL)
    _, err = p.communicate(timeout=120)
    over.set()
    s.wait_for_ended_clients()
    s.trouble = lambda *a: False
    need(p.returncode, f"mpirun succeeded: {err}")


@test
def test_ranks_of_which_one_dies(t):
    """There is no marker after the failure, and --resume with another number of ranks ends with the right bytes."""
    needs_mpi(t)
    args = reshard(t)
    files = wanted(t, args)
    points = (lambda h: h.command == "PUT" and "partNumber=1&" in h.path, lambda h: h.command == "POST" and "uploadId=" in h.path)
    for is_point in points:
        for which in (0, 2):
            with serving({}) as s:
                kill_one(t, s, 3, which, is_point, (*args, "--resume"))
                need("ck/.metadata" not in s.objects, "a marker of a checkpoint that is not whole")
                need(all(files[k] == v for k, v in s.objects.items()), "other bytes")
                run(t, 2, s.env(), *args, "--resume")
                need(s.objects == files and not s.uploads, f"{sorted(s.objects)} {s.uploads.keys()}")


@test
def test_ranks_that_fail_leave_nothing(t):
    needs_mpi(t)
    args = reshard(t)
    with serving({}, lambda h, key, count: h.command == "PUT" and key.endswith("__3_0.distcp") and h.error(403, "AccessDenied")) as s:
        _, err = run(t, 3, s.env(), *args, status=2)
        need("AccessDenied" in err and not s.objects and not s.uploads, f"{err} {sorted(s.objects)} {s.uploads.keys()}")


def many_tensors(t, count=60000):
    """Writes a safetensors file of one-element tensors: most of a file made from it is headers and directories, not
    values."""
    header = json.dumps({f"layers.{i:06d}.weight": {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i in range(count)}).encode()
    path = t.at("many.safetensors")
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + bytes(range(256)) * (4 * count // 256) + bytes(4 * count % 256))
    return path


@test
def test_ranks_hand_out_what_surrounds_many_tensors(t):
    """Headers and directories of several MiB are handed in several rounds to the ranks that upload the files."""
    needs_mpi(t)
    path = many_tensors(t)
    for name, options in (("x.pt", ("--to", "torch")), ("st", ("--to", "safetensors", "--max-shard-size", "20KB"))):
        t.run("convert", path, t.at(name), *options)
        wanted = {f"{name}/{n}" if os.path.isdir(t.at(name)) else name: data for n, data in files_below(t.at(name)).items()}
        with serving({}) as s:
            run(t, 3, s.env(), "convert", path, f"s3://b/{name}", *options)
            need(s.objects == wanted, f"{name}: {sorted(s.objects)}")
