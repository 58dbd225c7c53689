#!/usr/bin/env python3
"""Runs every test_*(t) of the test_*.py files of directories: by default here, real PyTorch and safetensors against the built
program.

    run.py --tessera PATH [--tests DIRECTORY]… [--jobs N] [name…]

`t` is a harness.Tessera. The tests of a module with RUNS_ALONE = True run before the others, one by one."""
import argparse
import functools
import importlib
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from harness import Tessera  # noqa: E402

import runner  # noqa: E402


def tests(directories):
    sys.path[:0] = directories
    for file in (f for directory in directories for f in sorted(os.listdir(directory))):
        if file.startswith("test_") and file.endswith(".py"):
            module = importlib.import_module(file[:-3])
            for name, function in list(vars(module).items()):
                if name.startswith("test_") and callable(function):
                    yield f"{file[:-3]}.{name}", function, getattr(module, "RUNS_ALONE", False)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tessera", required=True)
    ap.add_argument("--tests", action="append", metavar="DIRECTORY")
    ap.add_argument("--jobs", type=int, default=2, metavar="N", help="tests at a time, each in a process of its own")
    ap.add_argument("names", nargs="*")
    a = ap.parse_args()
    runner.main(tests([os.path.abspath(f) for f in a.tests or [HERE]]), a.names, functools.partial(Tessera, os.path.abspath(a.tessera)), a.jobs)


if __name__ == "__main__":
    main()
