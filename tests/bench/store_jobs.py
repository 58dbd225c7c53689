"""A conversion within an object store: by one command, against down, convert, up, through the same local server (moto, of tests/stores)."""
import atexit
import os
import socket
import subprocess
import time

from measure import Job, Side

HERE = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(HERE, "..", "..", ".local", "stores", "venv", "bin")


def server(bench):
    """The address of a server that runs until the benchmarks end, and its log."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    log, _ = bench.fresh("moto.log")
    with open(log, "wb") as f:
        process = subprocess.Popen([os.path.join(VENV, "moto_server"), "-H", "127.0.0.1", "-p", str(port)], stdin=subprocess.DEVNULL, stdout=f, stderr=f)
    atexit.register(process.wait)
    atexit.register(process.terminate)
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            return f"http://127.0.0.1:{port}", log
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("moto_server does not listen")


def s3_convert(bench):
    if not os.path.exists(os.path.join(VENV, "moto_server")):
        return "moto is not installed; tests/stores/run installs it"
    source = bench.sample("large_dcp_rows")
    url, log = server(bench)
    disk, remove = bench.fresh("store_disk")

    def peer(mode):
        return [os.path.join(VENV, "python"), os.path.join(HERE, "store_peers.py"), mode, url, log, bench.tessera, disk]
    subprocess.run([*peer("upload"), source], check=True)
    size = sum(os.path.getsize(os.path.join(source, f)) for f in os.listdir(source))
    return Job("S3", "convert a DCP in a bucket to safetensors in the bucket", f"{size / 2**20:.0f} MiB",
               [Side("tessera convert s3 s3", peer("direct"), remove), Side("cp down, convert, cp up", peer("by_disk"), remove)],
               "≤ 1 × the three steps, no disk", check=lambda: subprocess.run(peer("compare"), check=True))


JOBS = {"S3": [s3_convert]}
