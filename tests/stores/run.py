"""Tests that checkpoints in object stores are read and written correctly by the built `tessera`. Usage: run.py --tessera
PATH [--npm DIRECTORY] [--python PATH --package DIRECTORY] [NAME-PART…]"""
import argparse
import contextlib
import functools
import os
import sys

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", d) for d in ("cli", "support")]

from checks import TESTS  # noqa: E402
from harness import Tessera  # noqa: E402

import runner  # noqa: E402
import servers  # noqa: E402
import test_azure  # noqa: E402, F401
import test_broken_servers  # noqa: E402, F401
import test_costs  # noqa: E402, F401
import test_cp  # noqa: E402, F401
import test_every_reply  # noqa: E402, F401
import test_every_request  # noqa: E402, F401
import test_exec_others  # noqa: E402, F401
import test_exec_parts  # noqa: E402, F401
import test_gcs  # noqa: E402, F401
import test_hf  # noqa: E402, F401
import test_latest_step  # noqa: E402, F401
import test_prune_run  # noqa: E402, F401
import test_python_writer  # noqa: E402
import test_readme  # noqa: E402, F401
import test_request_checksums  # noqa: E402, F401
import test_resume  # noqa: E402, F401
import test_resume_disk  # noqa: E402, F401
import test_s3  # noqa: E402, F401
import test_s3_trouble  # noqa: E402, F401
import test_state_dict  # noqa: E402, F401
import test_write  # noqa: E402, F401
import test_write_commands  # noqa: E402, F401
import test_write_others  # noqa: E402, F401
import test_write_ranks  # noqa: E402, F401
import test_write_trouble  # noqa: E402, F401

# The tests must see none of this machine's own settings, and no metadata service.
FOREIGN = ("AWS_", "GOOGLE_", "CLOUDSDK_", "GCE_", "STORAGE_", "AZURE_", "HF_", "TESSERA_HTTP")


@contextlib.contextmanager
def at_home(program):
    """The program with a scratch directory, which is also the home."""
    with Tessera(program) as t:
        os.environ.update(HOME=t.directory, AWS_EC2_METADATA_DISABLED="true")
        yield t


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--tessera", required=True)
    ap.add_argument("--npm")
    ap.add_argument("--python", help="with PyTorch")
    ap.add_argument("--package", help="the directory of the Python package")
    ap.add_argument("--jobs", type=int, default=4, metavar="N", help="tests at a time, each in a process of its own. They mostly wait for servers")
    ap.add_argument("names", nargs="*")
    a = ap.parse_args()
    servers.NPM["place"] = a.npm
    test_python_writer.PYTHON.update(python=a.python, package=a.package and os.path.abspath(a.package))
    for name in [n for n in os.environ if n.startswith(FOREIGN)]:
        del os.environ[name]
    servers.MOTO["starter"] = servers.start_moto()
    if a.python:
        test_python_writer.PYTHON["ranks"] = test_python_writer.start_ranks()
    runner.main([(*test, False) for test in TESTS], a.names, functools.partial(at_home, os.path.abspath(a.tessera)), a.jobs)


if __name__ == "__main__":
    main()
