"""Sides of remote_jobs.py. `count REPORT COMMAND…` runs a command and prints what the proxy (delay.py) counted meanwhile, as a line of JSON;
`boto3 BUCKET DIRECTORY KEY…` downloads objects with boto3, whose transfers CRT does, and prints the seconds that this took."""
import json
import os
import resource
import subprocess
import sys
import time


def read(report):
    time.sleep(1.5)  # the proxy writes once a second
    with open(report) as f:
        return json.load(f)


def count(report, *command):
    before = read(report)
    start = time.perf_counter()
    subprocess.run(command, check=True)
    wall = time.perf_counter() - start
    after, usage = read(report), resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after["busy"] - before["busy"]
    print(json.dumps({"wall": wall, "cpu": usage.ru_utime + usage.ru_stime, "peak_mib": usage.ru_maxrss / 1024, "requests": after["requests"] - before["requests"],
                      "under_way": (after["weighted"] - before["weighted"]) / busy if busy else 0}))


def boto3_with_crt(bucket, directory, *keys):
    import botocore.session
    from s3transfer.crt import BotocoreCRTRequestSerializer, CRTTransferManager, create_s3_crt_client
    where = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], "region_name": os.environ["AWS_REGION"]}
    for key in keys:
        os.makedirs(os.path.dirname(os.path.join(directory, key)), exist_ok=True)
    start, cpu = time.perf_counter(), time.process_time()
    client = create_s3_crt_client(where["region_name"], use_ssl=False)  # boto3's own choice cannot be told that the server has no TLS
    with CRTTransferManager(client, BotocoreCRTRequestSerializer(botocore.session.get_session(), where)) as manager:
        for future in [manager.download(bucket, key, os.path.join(directory, key)) for key in keys]:
            future.result()
    print(json.dumps({"wall": time.perf_counter() - start, "cpu": time.process_time() - cpu}))


if __name__ == "__main__":
    {"count": count, "boto3": boto3_with_crt}[sys.argv[1]](*sys.argv[2:])
