#!/usr/bin/env python3
"""Runs every test_*(t) of the test_*.py files of folders: by default here, real PyTorch and safetensors against the built
program.

    run.py --tessera PATH [--tests FOLDER]… [--jobs N] [name…]

`t` is a harness.Tessera. A test passes unless it raises; Skip(reason) is counted and printed."""
import argparse
import concurrent.futures
import importlib
import os
import sys
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from harness import Skip, Tessera  # noqa: E402


def tests(folders, picked):
    sys.path[:0] = folders
    for file in (f for folder in folders for f in sorted(os.listdir(folder))):
        if not (file.startswith("test_") and file.endswith(".py")):
            continue
        module = importlib.import_module(file[:-3])
        for name, function in list(vars(module).items()):
            if name.startswith("test_") and callable(function) and (not picked or any(p in f"{file[:-3]}.{name}" for p in picked)):
                yield f"{file[:-3]}.{name}", function


def run(tessera, name, function):
    """"passed", "failed" or "skipped", and what to print."""
    with Tessera(tessera) as t:
        try:
            function(t)
            return "passed", None
        except Skip as reason:
            return "skipped", f"skip {name}: {reason}"
        except Exception:  # of ours, or of the library that reads what tessera wrote
            return "failed", f"FAIL {name}\n{traceback.format_exc(limit=-4)}"


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tessera", required=True)
    ap.add_argument("--tests", action="append", metavar="FOLDER")
    ap.add_argument("--jobs", type=int, default=1, metavar="N", help="tests at a time, where they wait for programs")
    ap.add_argument("names", nargs="*")
    a = ap.parse_args()
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        # Before a test starts: two threads cannot import torch at once.
        picked = list(tests([os.path.abspath(f) for f in a.tests or [HERE]], a.names))
        for result, text in pool.map(lambda pair: run(os.path.abspath(a.tessera), *pair), picked):
            counts[result] += 1
            if text:
                print(text)
    print(f"{counts['passed']} passed, {counts['failed']} failed" + (f", {counts['skipped']} skipped" if counts["skipped"] else ""))
    sys.exit(1 if counts["failed"] or not counts["passed"] else 0)


if __name__ == "__main__":
    main()
