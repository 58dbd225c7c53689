"""Reads option_cases.txt."""
import os
import shutil
import subprocess

from checks import ROOT, SAMPLES

CASES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "option_cases.txt")
PLACES = {"{samples}": SAMPLES, "{golden}": os.path.join(ROOT, "tests", "golden")}


def lines():
    with open(CASES) as f:
        for line in f.read().splitlines():
            if line and not line.startswith("#"):
                for word, place in PLACES.items():
                    line = line.replace(word, place)
                yield line


def commands():
    """The commands, as lists of words."""
    return [line.split(" ") for line in lines() if not line.startswith("= ")]


def prepare(program, directory):
    """Makes the files that the commands need."""
    at = lambda name: os.path.join(directory, name)
    run = lambda words: subprocess.run([program, *words], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for line in (line for line in lines() if line.startswith("= ")):
        what, first, rest = line[2:].split(" ", 2) if line.count(" ") > 2 else (*line[2:].split(" "), "")
        if what == "copy":
            os.makedirs(os.path.dirname(at(rest)), exist_ok=True)
            (shutil.copytree if os.path.isdir(at(first)) else shutil.copy)(at(first), at(rest))
        elif what == "remove":
            os.remove(at(first))
        elif what == "cut":
            os.truncate(at(first), int(rest))
        elif what == "write":
            with open(at(first), "w") as f:
                f.write(rest)
        elif what in ("native", "output"):
            p = run(rest.split(" ") if what == "output" else [first, *rest.split(" ")])
            assert p.returncode in (0, 1), (line, p.stderr.decode())
            if what == "output":
                with open(at(first), "wb") as f:
                    f.write(p.stdout)
        else:
            raise AssertionError(f"{CASES}: {line}")
