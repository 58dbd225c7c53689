"""P28: checkpoints on an HTTP server. nginx serves the scratch directory on the loopback address, plain, by TLS (and HTTP/2), and as a bucket of S3
that ignores signatures; proxies in front of it delay answers where latency is measured, one of them as if segments were lost, and count the requests under way. curl, aria2c,
wget2, and boto3 with CRT if TESSERA_BOTO3 names a Python that has it, download the same files."""
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
DELAY_MS, LOSSY_MS, LOSS, CURLS = 25, 20, 1, 16  # LOSS: percent
BUCKET = "bucket"
CONFIGURATION = """
daemon off;
pid {directory}/pid;
error_log {directory}/errors;
worker_processes 2;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    keepalive_requests 1000000;
    client_body_temp_path {directory}/1; proxy_temp_path {directory}/2; fastcgi_temp_path {directory}/3; uwsgi_temp_path {directory}/4; scgi_temp_path {directory}/5;
    ssl_certificate {directory}/certificate.pem;
    ssl_certificate_key {directory}/key.pem;
    server {{
        listen 127.0.0.1:{plain};
        listen 127.0.0.1:{tls} ssl;
        root {root};
    }}
    server {{
        listen 127.0.0.1:{http2} ssl http2;
        root {root};
    }}
    server {{
        listen 127.0.0.1:{s3};
        location = /{bucket} {{
            if ($args ~ "prefix=([A-Za-z0-9_]+)%2F") {{ set $directory $1; rewrite ^ /$directory.xml last; }}
        }}
        location ~ ^/[A-Za-z0-9_]+[.]xml$ {{ root {directory}; }}
        location /{bucket}/ {{ alias {root}/; }}
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


def listing(root, name):
    """The answer of S3 to a request for the objects below `name`. nginx makes ETags of the time and the size."""
    def etag(path):
        return f"&quot;{int(os.stat(path).st_mtime):x}-{os.path.getsize(path):x}&quot;"
    files = [(f"{name}/{file}", os.path.join(root, name, file)) for file in sorted(os.listdir(os.path.join(root, name)))]
    objects = "".join(f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{etag(path)}</ETag>"
                      f"<Size>{os.path.getsize(path)}</Size><StorageClass>STANDARD</StorageClass></Contents>" for key, path in files)
    return (f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{BUCKET}</Name>'
            f"<Prefix>{name}/</Prefix><KeyCount>{len(files)}</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{objects}</ListBucketResult>")


class Server:
    """nginx over the directory `root`; `plain`, `tls`, `http2`, `s3`, `slow` and `lossy` are its URLs. The last two are those of proxies with a delay,
    whose `reports` say how many requests were under way. `buckets`: directories of `root` that can be listed."""

    def __init__(self, root, buckets):
        directory = tempfile.mkdtemp(prefix="tessera-nginx-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        self.certificate = os.path.join(directory, "certificate.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=IP:127.0.0.1", "-keyout", os.path.join(directory, "key.pem"), "-out", self.certificate],
                       check=True, stderr=subprocess.DEVNULL)
        for name in buckets:
            with open(os.path.join(directory, f"{name}.xml"), "w") as f:
                f.write(listing(root, name))
        plain, tls, http2, s3, slow, lossy = (free_port() for _ in range(6))
        with open(os.path.join(directory, "nginx.conf"), "w") as f:
            f.write(CONFIGURATION.format(directory=directory, root=root, bucket=BUCKET, plain=plain, tls=tls, http2=http2, s3=s3))
        # Without `user`, workers of a server that root starts run as another user, who may not read the scratch directory.
        as_root = ["-g", "user root;"] if os.getuid() == 0 else []
        start([nginx(), "-c", os.path.join(directory, "nginx.conf"), "-p", directory, "-e", os.path.join(directory, "errors"), *as_root], plain)
        self.reports = {f"http://127.0.0.1:{port}": os.path.join(directory, f"requests{port}") for port in (slow, lossy)}
        for port, options in ((slow, (DELAY_MS,)), (lossy, (LOSSY_MS, "--loss", LOSS))):
            start([sys.executable, os.path.join(HERE, "delay.py"), *map(str, (port, plain, *options)), "--report", self.reports[f"http://127.0.0.1:{port}"]], port)
        self.plain, self.slow, self.lossy, self.s3 = (f"http://127.0.0.1:{port}" for port in (plain, slow, lossy, s3))
        self.tls, self.http2 = f"https://127.0.0.1:{tls}", f"https://127.0.0.1:{http2}"


def nginx():
    return shutil.which("nginx") or shutil.which("/usr/sbin/nginx")


def files_of(source):
    """The names of a checkpoint's files below the address of the server."""
    name = os.path.basename(source)
    return [f"{name}/{file}" for file in sorted(os.listdir(source))] if os.path.isdir(source) else [name]


def curl(bench, address, source, into, remove):
    """curl downloads all files into a directory, or (None) to nowhere."""
    config, _ = bench.fresh(f"curl_{re.sub(r'[^0-9a-z]', '_', address)}_{os.path.basename(source)}_{'to_files' if into else 'to_nowhere'}")
    with open(config, "w") as f:
        for name in files_of(source):
            f.write(f'url = "{address}/{name}"\noutput = "{os.path.join(into, name) if into else "/dev/null"}"\n')
    return Side("curl --parallel" + ("" if into else ", to nowhere"),
                ["curl", "--silent", "--fail", "--insecure", "--create-dirs", "--parallel", "--parallel-max", str(CURLS), "--config", config], remove)


def downloaders(bench, address, source, into, remove):
    """The others that are installed, each of which downloads large files in parts."""
    urls, _ = bench.fresh(f"urls_{re.sub(r'[^0-9a-z]', '_', address)}_{os.path.basename(source)}")
    with open(urls, "w") as f:
        f.writelines(f"{address}/{name}\n" for name in files_of(source))
    commands = {"aria2c": ["--quiet", "--check-certificate=false", "--file-allocation=none", f"--max-concurrent-downloads={CURLS}", f"--split={CURLS}",
                           f"--max-connection-per-server={CURLS}", "--min-split-size=8M", f"--dir={into}", f"--input-file={urls}"],
                "wget2": ["--quiet", "--no-check-certificate", f"--max-threads={CURLS}", "--chunk-size=8M", "--no-robots", f"--directory-prefix={into}", f"--input-file={urls}"]}
    return [Side(name, [name, *arguments], remove) for name, arguments in commands.items() if shutil.which(name)]


def counting(report, command):
    """The command, whose requests under way the proxy counts; its figures are added."""
    return [sys.executable, os.path.join(HERE, "remote_peers.py"), "count", report, *command]


def jobs_of(bench, server, address, what, source):
    """cp, convert and a deep check of one directory or file from one address of the server, or of the bucket (s3://…)."""
    is_s3, report = address.startswith("s3:"), server.reports.get(address)
    url = f"{address}/{os.path.basename(source)}" + ("/" if os.path.isdir(source) else "")
    served = f"{server.s3}/{BUCKET}" if is_s3 else address
    env = ["env", f"CURL_CA_BUNDLE={server.certificate}", f"AWS_ENDPOINT_URL={server.s3}", "AWS_ACCESS_KEY_ID=a", "AWS_SECRET_ACCESS_KEY=b", "AWS_REGION=us-east-1"]
    size = f"{sum(os.path.getsize(os.path.join(os.path.dirname(source), n)) for n in files_of(source)) / 2**20:.0f} MiB in {len(files_of(source))} files, {what}"
    copy, remove_copy = bench.fresh("remote_copy")
    out, remove_out = bench.fresh("remote.safetensors")
    made, remove_made = bench.fresh("remote_ranks")
    theirs, remove_theirs = bench.fresh("remote_curl")
    to_files, to_nowhere = curl(bench, served, source, theirs, remove_theirs), curl(bench, served, source, None, None)
    peers = downloaders(bench, served, source, theirs, remove_theirs)
    if is_s3 and os.environ.get("TESSERA_BOTO3"):
        peers.append(Side("boto3 with CRT", [*env, os.environ["TESSERA_BOTO3"], os.path.join(HERE, "remote_peers.py"), "boto3", BUCKET, theirs, *files_of(source)], remove_theirs))

    def ours(*arguments, before=None):
        command = [*env, bench.tessera, *arguments, "--quiet"]
        return Side(f"tessera {arguments[0]}", counting(report, command) if report else command, before)

    def same_values(path):
        return lambda: subprocess.run([bench.tessera, "diff", source, path, "--values", "--quiet"], check=True)
    jobs = [
        Job("P28", "cp from a server", size, [ours("cp", url, copy, before=remove_copy), to_files, *peers], "≤ 1.0 × curl",
            check=lambda: subprocess.run(["diff", "-r", source, copy], check=True)),
        Job("P28", "convert from a server", size, [ours("convert", url, out, "--objects", "drop", before=remove_out), to_files], "≤ 1.1 × curl", check=same_values(out)),
        Job("P28", "validate --deep from a server", size, [ours("validate", url, "--deep"), to_nowhere], "≤ 1.5 × curl"),
    ]
    if address == server.slow:  # what else reads values
        jobs += [Job("P28", "diff --values from a server", size, [ours("diff", url, url, "--values"), to_nowhere], "all requests under way"),
                 Job("P28", "merge from a server", size, [ours("merge", out, url, url, "--method", "linear", before=remove_out), to_nowhere], "all requests under way"),
                 Job("P28", "reshard from a server", size, [ours("reshard", url, made, "--mesh", "4", "--placements", "shard(0)", before=remove_made), to_files],
                     "all requests under way", check=same_values(made))]
    return jobs


def jobs(bench, large, many, one, small):
    """`large`: a DCP of few large files, `many`: one of many small ones, `one`: a large file, `small`: a file as large as `many`; all in the
    scratch directory."""
    server = Server(bench.scratch, [os.path.basename(large), os.path.basename(many)])
    late, lossy = f"http, answers begin {DELAY_MS} ms late", f"http, {LOSSY_MS} ms late, {LOSS} % of segments wait for a timeout"
    return [*jobs_of(bench, server, server.plain, "http", large), *jobs_of(bench, server, server.tls, "https", large), *jobs_of(bench, server, server.http2, "https, HTTP/2", large),
            *jobs_of(bench, server, server.plain, "http", one), *jobs_of(bench, server, server.tls, "https", one),
            *jobs_of(bench, server, f"s3://{BUCKET}", "S3", large), *jobs_of(bench, server, server.plain, "http", many),
            *jobs_of(bench, server, server.slow, late, many), *jobs_of(bench, server, server.slow, late, small),
            *jobs_of(bench, server, server.lossy, lossy, many)]
