"""Runs all tests that need several processes. Usage: run.py --release DIRECTORY --asan DIRECTORY [NAME-PART…]"""
import argparse
import glob
import importlib
import os
import re
import sys
import time

import harness

HERE = os.path.dirname(os.path.abspath(__file__))
SLURM = os.path.join(os.path.dirname(HERE), "slurm")
sys.path.append(SLURM)
for directory in (HERE, SLURM):
    for module in sorted(glob.glob(os.path.join(directory, "test_*.py"))):
        importlib.import_module(os.path.basename(module)[:-len(".py")])

OK = re.compile(r"^\[ +OK +\] (\S+)", re.M)


def processes_for(name):
    """The unit suite runs the same bodies on threads: 2, 3, 4, 7 and 16 of them."""
    if harness.FULL:
        return range(1, 17)
    return (2, 3) if name.endswith("_faults_mpi") else (2, 3, 5)


def run_programs(directory, parts):
    """Runs the cmocka programs built with tests/support/ranks.h. Each of their tests counts once per number of processes."""
    passed = failed = 0
    programs = sorted(glob.glob(os.path.join(directory, "test_*_mpi")))
    for path in programs:
        name = os.path.basename(path)
        if parts and not any(p in name for p in parts):
            continue
        for ranks in processes_for(name):
            # Open MPI itself does not free everything
            try:
                job = harness.mpirun(ranks, path, env={"ASAN_OPTIONS": "detect_leaks=0"}, limit=600)
            except harness.Bad as bad:
                print(f"FAIL {name} on {ranks}: {bad}")
                failed += 1
                continue
            count = len(OK.findall(job.out))
            passed += count
            print(f"{'ok  ' if job.status == 0 and count else 'FAIL'} {name} on {ranks} processes: {count} tests, {job.seconds:.1f} s")
            if job.status != 0 or not count:
                failed += 1
                print(job.out[-1500:], job.err[-3000:])
    if not programs:
        print(f"FAIL no test program in {directory}")
        failed += 1
    return passed, failed


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--release", required=True)
    ap.add_argument("--asan", required=True)
    ap.add_argument("parts", nargs="*")
    args = ap.parse_args()
    passed, failed = run_programs(args.asan, args.parts)
    skipped = 0
    for name, function in harness.TESTS:
        if args.parts and not any(p in name for p in args.parts):
            continue
        start = time.monotonic()
        try:
            function(os.path.abspath(args.release))
            passed += 1
            print(f"ok   {name}, {time.monotonic() - start:.1f} s")
        except harness.Skip as reason:
            skipped += 1
            print(f"skip {name}: {reason}")
        except Exception as bad:  # a test that breaks must not hide the others
            failed += 1
            print(f"FAIL {name}: {bad!r}")
        sys.stdout.flush()
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
