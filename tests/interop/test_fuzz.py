"""State dicts of random models, optimizers and ranks against real PyTorch: what state_dict_fuzz does, in an ordinary run."""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def fuzz(t, *args):
    build = os.path.dirname(os.path.dirname(t.path))
    p = subprocess.run([sys.executable, os.path.join(HERE, "state_dict_fuzz"), "--build", build, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900)
    assert p.returncode == 0, p.stdout[-4000:] + p.stderr[-2000:]
    return p.stdout


def test_random_state_dicts_are_pytorchs(t):
    out = fuzz(t, "--draws", "300")
    assert out.splitlines()[-1].startswith("300 draws, ") and " 0 draws differ" in out, out
