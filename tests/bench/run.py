#!/usr/bin/env python3
"""Runs benchmark jobs and prints the table; see run."""
import argparse
import datetime
import json
import os
import platform
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", ".."))
sys.path.insert(0, HERE)

from jobs import JOBS, Bench  # noqa: E402
from measure import run_job, table  # noqa: E402


def machine():
    with open("/proc/cpuinfo") as f:
        cpu = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), platform.machine())
    return {"date": datetime.date.today().isoformat(), "cpu": cpu, "cores": len(os.sched_getaffinity(0)), "system": platform.platform()}


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
    ap.add_argument("--samples", default=os.path.join(ROOT, ".local", "samples"))
    ap.add_argument("--scratch", help="where outputs go (default: a temporary directory)")
    ap.add_argument("--runs", type=int, default=5)
    ap.add_argument("--mib", type=int, default=2048, help="size of the data made in the scratch directory: P19, P21, P28 (default: %(default)s)")
    ap.add_argument("jobs", nargs="*", help=f"some of {' '.join(JOBS)}")
    a = ap.parse_args()
    scratch = a.scratch or tempfile.mkdtemp(prefix="tessera-bench-")
    os.makedirs(scratch, exist_ok=True)
    bench, results = Bench(a.build, a.samples, scratch, a.mib), []
    print(json.dumps(machine()))
    try:
        for name in a.jobs or JOBS:
            for make in JOBS[name]:
                made = make(bench)
                if isinstance(made, str):  # why it cannot be done here
                    print(f"{name}: not measured: {made}", flush=True)
                    results.append({"id": name, "not_measured": made})
                    break
                for job in made if isinstance(made, list) else [made]:
                    job = run_job(job, a.runs)
                    print(f"{table(job)}   (load {os.getloadavg()[0]:.0f})", flush=True)
                    results.append({"id": job.id, "what": job.what, "data": job.data, "target": job.target, "sides": job.results})
    finally:
        if not a.scratch:
            shutil.rmtree(scratch, ignore_errors=True)
    out = os.path.join(ROOT, "build", "bench", "results.json")
    os.makedirs(os.path.dirname(out), exist_ok=True)
    with open(out, "w") as f:
        json.dump({"machine": machine(), "results": results}, f, indent=1)


if __name__ == "__main__":
    main()
