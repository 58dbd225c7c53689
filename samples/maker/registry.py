"""The list of samples, and how one is made: in new processes, one per rank, in a clean work directory.

A sample is a function that writes files into the directory `<name>`, which is empty or a copy of its base. On rank 0 it returns what is known
of the values before they were saved, or None. A new process, which only reads, then computes the golden file.
"""
import dataclasses
import json
import multiprocessing
import os
import shutil
import tempfile

CASES = {}
TORCH = "2.13"


@dataclasses.dataclass
class Case:
    name: str
    make: callable
    read: callable  # (case) -> the golden, with the work directory as the current directory
    what: str  # one line for the table in README.md
    ranks: int = 1
    set: str = "small"
    base: str | None = None  # a sample that this one is derived from: it starts as a copy of it
    torch: str = TORCH  # the PyTorch that writes it and its golden
    needs: tuple = ()  # packages besides those of requirements.txt


def case(name, read, what, **options):
    """Registers the decorated function as the maker of a sample; options are the fields of Case after `what`."""
    def register(make):
        assert name not in CASES, name
        CASES[name] = Case(name, make, read, what, **options)
        return make
    return register


def make(case, out):
    """Makes one sample and its golden, and moves both into `out`."""
    if case.base and not os.path.exists(os.path.join(out, case.base)):
        make(CASES[case.base], out)
    work = tempfile.mkdtemp(prefix=".making-", dir=out)
    try:
        in_processes(write_rank, case.ranks, case.name, work, os.path.abspath(out))
        in_processes(write_golden, 1, case.name, work, os.path.abspath(out))
        for name in (case.name, case.name + ".expect.json"):
            publish(os.path.join(work, name), os.path.join(out, name))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def publish(made, dest):
    if os.path.isdir(dest):
        shutil.rmtree(dest)
    os.replace(made, dest)


def in_processes(target, ranks, *args):
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=target, args=(rank, ranks, *args)) for rank in range(ranks)]
    for p in processes:
        p.start()
    for p in processes:
        p.join()
    if any(p.exitcode for p in processes):
        raise RuntimeError(f"{args[0]}: {target.__name__} failed")


def write_rank(rank, ranks, name, work, out):
    from . import every_case, setting
    os.chdir(work)
    start(every_case.CASES[name], out)
    with setting.process(rank, ranks, work):
        known = every_case.CASES[name].make(name)
    if rank == 0 and known is not None:
        with open(os.path.join(work, "known.json"), "w") as f:
            json.dump(known, f)
    setting.leave()


def start(case, out):
    """The sample's directory: empty, or a copy of the sample that it is derived from."""
    if case.base:
        shutil.copytree(os.path.join(out, case.base), case.name)
    else:
        os.makedirs(case.name, exist_ok=True)


def write_golden(rank, ranks, name, work, out):
    from . import every_case, golden, setting
    os.chdir(work)
    with setting.process(0, 1, None):
        case = every_case.CASES[name]
        if case.base:
            os.symlink(os.path.join(out, case.base), case.base)
        expect = case.read(case)
    golden.check_known(name, expect, "known.json")
    golden.write(expect, name + ".expect.json")
