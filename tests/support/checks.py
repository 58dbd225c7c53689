"""How the scripts of tests/cli, tests/mpi and tests/interop name their tests and report what is wrong."""
import os
import signal
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SAMPLES = os.path.join(ROOT, "samples", "checkpoints")
TESTS = []

# A shell starts its background jobs with SIGINT and SIGQUIT ignored, nohup starts a program with SIGHUP ignored, and what they start inherits
# that: here signals are tested.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)


class Bad(Exception):
    pass


class Skip(Exception):
    """The reason why a test cannot run here."""


def need(condition, what):
    if not condition:
        raise Bad(what)


def preloadable(library, code):
    """Compiles C code to a library that LD_PRELOAD can name. Returns its path."""
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-ldl", "-o", library], input=b"#define _GNU_SOURCE\n" + code.encode(), check=True)
    return library


def test(f):
    TESTS.append((f.__name__, f))
    return f
