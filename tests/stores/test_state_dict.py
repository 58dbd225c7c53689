"""Ranks of a C program (tests/mpi/interchange.c) load and save state dicts in object stores with tsr_state_dict_load and
tsr_state_dict_save. boto3 copies what they saved to the disk, and PyTorch's own reader reads it there."""
import os
import shutil
import subprocess
import threading

import servers
from checks import Skip, need, test
from fake_s3 import serving
from test_python_writer import FULL, Ranks
from test_s3 import files_below
from test_write import bucket, large_file
from test_write_others import azurite_place, google_place
from test_write_ranks import MPI

def start(t, ranks, env, *args):
    program = os.path.join(os.path.dirname(t.path), "interchange")
    if not shutil.which("mpirun") or not os.path.exists(program):
        raise Skip("there is no mpirun, or tests/mpi/interchange.c is not built")
    line = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), program, *args]
    return subprocess.Popen(line, env={**os.environ, **MPI, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def save(t, ranks, env, *args, fails=False):
    p = start(t, ranks, env, *args, "same")
    _, err = p.communicate(timeout=120)
    need(bool(p.returncode) == fails, f"{args} on {ranks} ranks: {p.returncode} {err.decode()}")
    return err.decode()


def need_torch_to_read(t, place, files, source):
    """PyTorch reads the tensors of a safetensors file from what was saved."""
    shutil.rmtree(t.at("copy"), ignore_errors=True)
    os.makedirs(t.at("copy"))
    for name, data in files.items():
        with open(t.at("copy", name), "wb") as f:
            f.write(data)
    with Ranks(t, place, world=0) as reader:
        [is_equal] = reader.ask(reader.ranks, {"do": "equals", "file": source, "copy": t.at("copy")})
        need(is_equal, f"{sorted(files)} {reader.said()[-1000:]}")


def check_place(t, place):
    """Saves a first time, once more so that it is refused, and once to replace; then loads from there."""
    first, second = large_file(t, "first.safetensors"), large_file(t, "second.safetensors")
    url = f"{place.url}/run/step 1"
    place.put("run/step 10/.metadata", b"a neighbour")
    save(t, 3, place.env, first, url)
    files = place.below("run/step 1/")
    need(sorted(files) == [".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"], sorted(files))
    need_torch_to_read(t, place, files, first)
    need("exists" in save(t, 2, place.env, second, url, fails=True) and place.below("run/step 1/") == files, "a refused save changed something")
    place.put("run/step 1/mine.txt", b"not Tessera's")
    save(t, 2, place.env, second, url, "overwrite")
    files = place.below("run/step 1/")
    need(sorted(files) == [".metadata", "__0_1.distcp", "__1_1.distcp", "mine.txt"] and files["mine.txt"] == b"not Tessera's", sorted(files))
    need_torch_to_read(t, place, files, second)
    save(t, 3, place.env, url, t.at("loaded"))
    need_torch_to_read(t, place, files_below(t.at("loaded")), second)
    need(place.below("run/step 10/") == {".metadata": b"a neighbour"}, "a neighbour")


@test
def test_state_dict_to_moto(t):
    with bucket(servers.moto) as (place, client):
        check_place(t, place)
        need(not client.list_multipart_uploads(Bucket="bucket").get("Uploads"), "unfinished uploads")


@test
def test_state_dict_to_azurite(t):
    with azurite_place() as place:
        check_place(t, place)


@test
def test_state_dict_to_google(t):
    with google_place() as place:
        check_place(t, place)


@test
def test_state_dict_of_ranks_that_fail(t):
    """One rank is refused: nothing is visible, and no upload is left."""
    source = large_file(t)
    with serving({}, lambda h, key, count: h.command in ("PUT", "POST") and key.endswith("__1_0.distcp") and h.error(403, "AccessDenied")) as s:
        said = save(t, 3, s.env(), source, "s3://b/ck", fails=True)
        need("AccessDenied" in said and not s.objects and not s.uploads, f"{said} {sorted(s.objects)} {s.uploads.keys()}")


@test
def test_state_dict_killed_at_every_write(t):
    """All ranks are killed when write number `at` comes, before it is served (every third one in an ordinary run). The old checkpoint or the
    new one must be whole, byte for byte."""
    first, second = large_file(t, "first.safetensors"), large_file(t, "second.safetensors")
    with serving({}) as s:
        save(t, 3, s.env(), first, "s3://b/ck")
        old = dict(s.objects)
        save(t, 3, s.env(), second, "s3://b/ck", "overwrite")
        new = dict(s.objects)
    need(set(old) & set(new) == {"ck/.metadata"}, f"{sorted(old)} {sorted(new)}")
    at, seen, ended = 0, [], False
    while not ended:
        at += 1 if FULL else 3
        with serving(old) as s:
            count, reached = [0], threading.Event()

            def trouble(handler, *_, server=s, count=count, reached=reached, at=at):
                if handler.command not in ("PUT", "POST", "DELETE"):
                    return False
                with server.lock:
                    count[0] += 1
                    is_past = count[0] >= at
                if is_past:
                    reached.set()
                    handler.close_connection = True
                return is_past

            s.objects, s.trouble = dict(old), trouble
            p = start(t, 3, s.env(), second, "s3://b/ck", "same", "overwrite")
            while p.poll() is None and not reached.wait(0.05):
                pass
            ended = not reached.is_set()
            p.kill()
            _, err = p.communicate()
            s.wait_for_ended_clients()
            need(not ended or p.returncode == 0, err.decode())
            whole = [k for k, files in enumerate((old, new)) if files.items() <= s.objects.items()]
            need(len(whole) == 1, f"write {at}: {sorted(s.objects)}")
            seen += whole
    need(seen[0] == 0 and seen[-1] == 1 and seen == sorted(seen) and len(seen) > 4, f"{seen}")
