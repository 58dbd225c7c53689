#!/usr/bin/env python3
"""Make the sample checkpoints with real PyTorch, and golden files that state what PyTorch and safetensors read from them.

    $(samples/python-env) samples/make_checkpoints.py                 make all small samples in samples/checkpoints
    $(samples/python-env) samples/make_checkpoints.py dcp_fsdp2       make this sample
    $(samples/python-env) samples/make_checkpoints.py --set large     make those that are too big to commit, in .local/samples
    $(tests/interop/versions/python-env 2.15.0) samples/make_checkpoints.py   make those that PyTorch 2.15 writes

Each sample names the version of PyTorch that writes it. Only samples of the running version are made.
"""
import argparse
import importlib.util
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
DIRECTORIES = {"small": os.path.join(HERE, "checkpoints"), "large": os.path.join(HERE, "..", ".local", "samples")}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="DIR", help="write the samples here")
    parser.add_argument("--set", choices=["small", "large", "all"], help="which samples to make (default: small, or those that are named)")
    parser.add_argument("--list", action="store_true", help="print the names and exit")
    parser.add_argument("--table", action="store_true", help="rewrite the table in samples/checkpoints/README.md and exit")
    parser.add_argument("names", metavar="NAME", nargs="*", help="a sample's name, or a prefix of several")
    return parser.parse_args()


def picked(args):
    import torch
    from maker.every_case import CASES
    version = ".".join(torch.__version__.split(".")[:2])
    which = args.set or ("all" if args.names else "small")
    chosen = {name for n in args.names for name in ([n] if n in CASES else [c for c in CASES if c.startswith(n)])} if args.names else set(CASES)
    found = [c for c in CASES.values() if c.name in chosen and which in ("all", c.set) and (args.list or c.torch == version)]
    lacking = {c.name: n for c in found for n in c.needs if not args.list and not importlib.util.find_spec(n.partition(".")[0])}
    for name, package in lacking.items():
        print(f"{name} is left as it is: it needs {package} (samples/requirements-frameworks.txt)", file=sys.stderr)
    found = [c for c in found if c.name not in lacking]
    if not found and not lacking:
        sys.exit(f"no such sample for PyTorch {version}: {' '.join(args.names)}; --list shows the names")
    return found


def write_table():
    """Rewrites the README from the first line of its table on."""
    from maker.every_case import CASES
    from maker.registry import TORCH
    path = os.path.join(DIRECTORIES["small"], "README.md")
    with open(path) as f:
        head = f.read().partition("| name |")[0]
    rows = [f"| `{c.name}` | {c.ranks} | {c.what}{f' (from `{c.base}`)' if c.base else ''}{f' (PyTorch {c.torch})' if c.torch != TORCH else ''} |" for c in CASES.values() if c.set == "small"]
    with open(path, "w") as f:
        f.write(head + "| name | ranks | what it is |\n| --- | --- | --- |\n" + "\n".join(sorted(rows)) + "\n")


def main():
    args = arguments()
    if args.table:
        return write_table()
    from maker import registry
    failed = []
    for case in picked(args):
        if args.list:
            print(f"{case.name:<32} {case.set:<6} {case.torch:<5} {case.what}")
            continue
        out = os.path.abspath(args.out or DIRECTORIES[case.set])
        os.makedirs(out, exist_ok=True)
        start = time.monotonic()
        try:
            registry.make(case, out)
        except RuntimeError as e:
            failed.append(str(e))
        print(f"{case.name} ({time.monotonic() - start:.1f} s)", file=sys.stderr)
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
