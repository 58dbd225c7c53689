#!/usr/bin/env python3
"""Runs every test_*(t) of the test_*.py files of a folder: by default here, real PyTorch and safetensors against the built
program.

    run.py --tessera PATH [--tests FOLDER] [name…]

`t` is a harness.Tessera. A test passes unless it raises; Skip(reason) is counted and printed."""
import argparse
import importlib
import os
import sys
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from harness import Skip, Tessera  # noqa: E402


def tests(folder, picked):
    sys.path.insert(0, folder)
    for file in sorted(os.listdir(folder)):
        if not (file.startswith("test_") and file.endswith(".py")):
            continue
        module = importlib.import_module(file[:-3])
        for name, function in list(vars(module).items()):
            if name.startswith("test_") and callable(function) and (not picked or any(p in f"{file[:-3]}.{name}" for p in picked)):
                yield f"{file[:-3]}.{name}", function


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tessera", required=True)
    ap.add_argument("--tests", default=HERE, metavar="FOLDER")
    ap.add_argument("names", nargs="*")
    a = ap.parse_args()
    passed = failed = skipped = 0
    for name, function in tests(os.path.abspath(a.tests), a.names):
        with Tessera(os.path.abspath(a.tessera)) as t:
            try:
                function(t)
                passed += 1
            except Skip as reason:
                skipped += 1
                print(f"skip {name}: {reason}")
            except Exception:  # of ours, or of the library that reads what tessera wrote
                failed += 1
                print(f"FAIL {name}\n{traceback.format_exc(limit=-4)}")
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
