"""How the scripts of tests/cli and tests/mpi name their tests and say what is wrong."""
import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SAMPLES = os.path.join(ROOT, "samples", "checkpoints")
TESTS = []


class Bad(Exception):
    pass


def need(condition, what):
    if not condition:
        raise Bad(what)


def test(f):
    TESTS.append((f.__name__, f))
    return f
