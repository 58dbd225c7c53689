"""The package with other versions of PyTorch, in the environments of tests/interop/versions: with --full only."""
import os
import subprocess

from harness import ROOT
from test_python import INSTALLED
from test_versions import python_with
from torch_ranks import repeat_notes

WAYS = {"save", "pytorchs_own_writer", "async_save", "fsdp2", "optimizer_state"}


def ranks_of(t, version, ways):
    """Every way that tests/package/version_ranks.py has for this version."""
    p = subprocess.run([python_with(version), os.path.join(ROOT, "tests/package/version_ranks.py"), INSTALLED, t.scratch], capture_output=True, text=True,
                       timeout=900, env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"})
    repeat_notes(p.stderr)
    went = set(p.stdout.split())
    assert p.returncode == 0 and went == ways, f"PyTorch {version}: only {sorted(went)}: {p.stderr[-1500:]}"


def test_ranks_of_pytorch_2_3(t):
    ranks_of(t, "2.3.0", WAYS)


def test_ranks_of_pytorch_2_15(t):
    ranks_of(t, "2.15.0", WAYS | {"async_save_in_a_process"})
