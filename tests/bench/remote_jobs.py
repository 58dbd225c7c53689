"""P28: checkpoints on an HTTP server. nginx serves the scratch folder on the loopback address, plain and by TLS, and a proxy in
front of it delays answers where latency is measured. curl downloads the same files."""
import atexit
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from measure import Job, Side

HERE = os.path.dirname(os.path.abspath(__file__))
DELAY_MS, CURLS, COUNT = 30, 16, 12  # COUNT: of the jobs
CONFIGURATION = """
daemon off;
pid {folder}/pid;
error_log {folder}/errors;
worker_processes 2;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    keepalive_requests 1000000;
    client_body_temp_path {folder}/1; proxy_temp_path {folder}/2; fastcgi_temp_path {folder}/3; uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;
    ssl_certificate {folder}/certificate.pem;
    ssl_certificate_key {folder}/key.pem;
    server {{
        listen 127.0.0.1:{plain};
        listen 127.0.0.1:{tls} ssl;
        root {root};
    }}
}}
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(command, port):
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    atexit.register(process.wait)
    atexit.register(process.terminate)
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{command[0]} does not listen")


class Server:
    """nginx over the folder `root`; `plain`, `tls` and `slow` are its URLs, the last of them with a delay."""

    def __init__(self, root):
        folder = tempfile.mkdtemp(prefix="tessera-nginx-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self.certificate = os.path.join(folder, "certificate.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=IP:127.0.0.1", "-keyout", os.path.join(folder, "key.pem"), "-out", self.certificate],
                       check=True, stderr=subprocess.DEVNULL)
        plain, tls, slow = free_port(), free_port(), free_port()
        with open(os.path.join(folder, "nginx.conf"), "w") as f:
            f.write(CONFIGURATION.format(folder=folder, root=root, plain=plain, tls=tls))
        # Without `user`, workers of a server that root starts run as another user, who may not read the scratch folder.
        as_root = ["-g", "user root;"] if os.getuid() == 0 else []
        start([nginx(), "-c", os.path.join(folder, "nginx.conf"), "-p", folder, "-e", os.path.join(folder, "errors"), *as_root], plain)
        start([sys.executable, os.path.join(HERE, "delay.py"), str(slow), str(plain), str(DELAY_MS)], slow)
        self.plain, self.tls, self.slow = f"http://127.0.0.1:{plain}", f"https://127.0.0.1:{tls}", f"http://127.0.0.1:{slow}"


def nginx():
    return shutil.which("nginx") or shutil.which("/usr/sbin/nginx")


def curl(bench, url, source, into, remove):
    """curl downloads all files of the directory `source` into a folder, or (None) to nowhere."""
    files = sorted(os.listdir(source))
    listing, _ = bench.fresh(f"curl_{re.sub(r'[^0-9a-z]', '_', url)}{'to_files' if into else 'to_nowhere'}")
    with open(listing, "w") as f:
        for name in files:
            f.write(f'url = "{url}{name}"\noutput = "{os.path.join(into, name) if into else "/dev/null"}"\n')
    return Side("curl --parallel" + ("" if into else ", to nowhere"),
                ["curl", "--silent", "--fail", "--insecure", "--create-dirs", "--parallel", "--parallel-max", str(CURLS), "--config", listing], remove)


def jobs_of(bench, server, address, what, source):
    """cp, convert and a deep check of one directory from one address of the server."""
    url = f"{address}/{os.path.basename(source)}/"
    tessera = ["env", f"CURL_CA_BUNDLE={server.certificate}", bench.tessera]
    size = f"{sum(os.path.getsize(os.path.join(source, n)) for n in os.listdir(source)) / 2**20:.0f} MiB in {len(os.listdir(source))} files, {what}"
    copy, remove_copy = bench.fresh("remote_copy")
    out, remove_out = bench.fresh("remote.safetensors")
    theirs, remove_theirs = bench.fresh("remote_curl")
    to_files, to_nowhere = curl(bench, url, source, theirs, remove_theirs), curl(bench, url, source, None, None)
    return [
        Job("P28", "cp from a server", size, [Side("tessera cp", [*tessera, "cp", url, copy, "--quiet"], remove_copy), to_files], "≤ 1.0 × curl",
            check=lambda: subprocess.run(["diff", "-r", source, copy], check=True)),
        Job("P28", "convert from a server", size,
            [Side("tessera convert", [*tessera, "convert", url, out, "--objects", "drop", "--quiet"], remove_out), to_files], "≤ 1.1 × curl",
            check=lambda: subprocess.run([bench.tessera, "diff", source, out, "--values", "--quiet"], check=True)),
        Job("P28", "validate --deep from a server", size, [Side("tessera validate --deep", [*tessera, "validate", url, "--deep", "--quiet"]), to_nowhere],
            "≤ 1.5 × curl"),
    ]


def jobs(bench, large, many):
    """`large`: a DCP of few large files, `many`: one of many small ones; both in the scratch folder."""
    server = Server(bench.scratch)
    made = [*jobs_of(bench, server, server.plain, "http", large), *jobs_of(bench, server, server.tls, "https", large),
            *jobs_of(bench, server, server.plain, "http", many), *jobs_of(bench, server, server.slow, f"http, answers begin {DELAY_MS} ms late", many)]
    assert len(made) == COUNT
    return made
