"""Servers of other projects. Each is started for the tests on a port of the loopback address. A test whose server is not
installed is skipped."""
import contextlib
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from checks import Skip
from http_serving import free_port

NPM = {"place": None}  # set by run.py
MOTO = {"starter": None}  # set by run.py: the socket of start_moto


def wait_for(port, has_ended, name):
    for _ in range(600):
        if has_ended():
            raise Skip(f"{name} does not start")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.05)
    raise Skip(f"{name} does not listen")


@contextlib.contextmanager
def program(name, arguments, port, env=None):
    directory = tempfile.mkdtemp(prefix="tessera-stores-")
    with open(os.path.join(directory, "log"), "wb") as log:
        process = subprocess.Popen([a.replace("DIRECTORY", directory) for a in arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory,
                                   env={**os.environ, **(env or {})})
        try:
            wait_for(port, lambda: process.poll() is not None, name)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            shutil.rmtree(directory, ignore_errors=True)


def npm_program(name):
    path = os.path.join(NPM["place"] or "", "node_modules", ".bin", name)
    if not os.path.exists(path):
        raise Skip(f"{name} is not installed (npm)")
    return path


def python_program(name):
    path = os.path.join(os.path.dirname(sys.executable), name)
    if not os.path.exists(path):
        raise Skip(f"{name} is not installed (PyPI)")
    return path


def start_moto():
    """Starts the process that starts moto's servers, and returns the socket on which it is asked for them. It ends when all processes of the
    tests have."""
    # moto copies the whole object for each range that is read. Without these, the object is on the disk, and each copy in new memory.
    env = {"MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "moto_servers.py")
    subprocess.Popen([sys.executable, script, str(theirs.fileno())], env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                     stderr=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    theirs.close()
    return ours


@contextlib.contextmanager
def moto():
    python_program("moto_server")
    port = free_port()
    ours, theirs = socket.socketpair()
    with ours:
        socket.send_fds(MOTO["starter"], [str(port).encode()], [theirs.fileno()])
        theirs.close()
        wait_for(port, lambda: select.select([ours], [], [], 0)[0], "moto")
        yield f"http://127.0.0.1:{port}"


def s3rver():
    port = free_port()
    return program("s3rver", [npm_program("s3rver"), "-d", "DIRECTORY/data", "-a", "127.0.0.1", "-p", str(port), "--silent"], port)


def azurite():
    port = free_port()
    return program("azurite", [npm_program("azurite-blob"), "-l", "DIRECTORY", "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent",
                               "--skipApiVersionCheck"], port)


def gcs_emulator():
    port = free_port()
    return program("gcp-storage-emulator", [python_program("gcp-storage-emulator"), "start", "--host=127.0.0.1", f"--port={port}", "--in-memory"], port)
