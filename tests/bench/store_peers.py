"""One side of a job of store_jobs.py: store_peers.py MODE URL LOG TESSERA DISK [SOURCE]. Prints wall and CPU seconds of the commands, their
memory, the requests that the server logged, and the most that DISK and temporary files had, as a line of JSON."""
import json
import os
import re
import subprocess
import sys
import threading
import time

import boto3

BUCKET, OUT = "bucket", ("direct", "by_disk")


def size_below(directory):
    total = 0
    for at, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(at, name)).st_blocks * 512
            except OSError:
                pass  # it has just gone
    return total


def size_opened(pid):
    """Of files without a name that a process has: parts of uploads wait there."""
    total = 0
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{fd}"
            if os.readlink(path).endswith(" (deleted)"):
                total += os.stat(path).st_blocks * 512
    except OSError:
        pass
    return total


class Commands:
    def __init__(self, url, log, tessera, disk):
        self.log, self.tessera, self.disk = log, tessera, disk
        keys = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
        self.env = {**os.environ, **keys, "AWS_ENDPOINT_URL": url}
        self.client = boto3.client("s3", endpoint_url=url, aws_access_key_id="bench", aws_secret_access_key="bench", region_name="us-east-1")
        self.wall = self.cpu = self.memory = self.most = 0
        self.begun = os.path.getsize(log)

    def run(self, *arguments):
        start = time.perf_counter()
        process = subprocess.Popen([self.tessera, *arguments, "--quiet"], env=self.env)
        over = threading.Event()

        def watch():
            while not over.wait(0.02):
                self.most = max(self.most, size_below(self.disk) + size_opened(process.pid))
        watcher = threading.Thread(target=watch)
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        self.wall += time.perf_counter() - start
        over.set()
        watcher.join()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{arguments} ended {process.returncode}")
        self.cpu += usage.ru_utime + usage.ru_stime
        self.memory = max(self.memory, usage.ru_maxrss / 1024)

    def report(self):
        time.sleep(0.2)  # the server logs after it has answered
        with open(self.log, "rb") as f:
            f.seek(self.begun)
            requests = len(re.findall(rb'"(?:\x1b\[\d+m)*(?:GET|PUT|POST|DELETE|HEAD) /', f.read()))
        print(json.dumps({"wall": self.wall, "cpu": self.cpu, "peak_mib": self.memory, "requests": requests, "disk_mib": self.most / 2**20}))


def remove(client, prefix):
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix):
        for item in page.get("Contents", []):
            client.delete_object(Bucket=BUCKET, Key=item["Key"])


def read_all(client, prefix):
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return {i["Key"][len(prefix):]: client.get_object(Bucket=BUCKET, Key=i["Key"])["Body"].read() for p in pages for i in p.get("Contents", [])}


def main():
    mode, url, log, tessera, disk, *source = sys.argv[1:]
    convert = ("--to", "safetensors", "--objects", "drop", "--max-shard-size", "100MB")
    client = Commands(url, log, tessera, disk).client
    if mode == "upload":
        client.create_bucket(Bucket=BUCKET)
        for name in os.listdir(source[0]):
            client.upload_file(os.path.join(source[0], name), BUCKET, f"source/{name}")
        return
    if mode == "compare":
        both = [read_all(client, f"{out}/") for out in OUT]
        if both[0] != both[1] or not both[0]:
            sys.exit(f"the two ways made other objects: {[sorted(b) for b in both]}")
        return
    remove(client, f"{mode}/")
    os.makedirs(disk, exist_ok=True)
    commands = Commands(url, log, tessera, disk)
    if mode == "direct":
        commands.run("convert", f"s3://{BUCKET}/source", f"s3://{BUCKET}/direct", *convert)
    else:
        commands.run("cp", f"s3://{BUCKET}/source", os.path.join(disk, "source"))
        commands.run("convert", os.path.join(disk, "source"), os.path.join(disk, "made"), *convert)
        commands.run("cp", os.path.join(disk, "made"), f"s3://{BUCKET}/by_disk")
    commands.report()


if __name__ == "__main__":
    main()
