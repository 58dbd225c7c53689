"""State dicts of random models, optimizers and ranks against real PyTorch: what state_dict_fuzz does, in an ordinary run."""
import glob
import os
import subprocess
import sys

from harness import ROOT

HERE = os.path.dirname(os.path.abspath(__file__))
FULL = bool(os.environ.get("TSR_TEST_FULL"))
KEPT = os.path.join(ROOT, "tests", "golden", "state_dict_fuzz")


def fuzz(t, *args):
    build = os.path.dirname(os.path.dirname(t.path))
    p = subprocess.run([sys.executable, os.path.join(HERE, "state_dict_fuzz"), "--build", build, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800)
    assert p.returncode == 0, p.stdout[-4000:] + p.stderr[-2000:]
    return p.stdout


def test_random_state_dicts_are_pytorchs(t):
    draws = 300 if FULL else 150
    out = fuzz(t, "--draws", str(draws))
    assert out.splitlines()[-1].startswith(f"{draws} draws, ") and " 0 draws differ" in out, out


def test_wider_state_dicts_are_pytorchs(t):
    out = fuzz(t, "--wide", "--draws", "60")
    assert out.splitlines()[-1].startswith("60 draws, ") and " 0 draws differ" in out, out


def test_draws_that_differed_once_do_not(t):
    files = sorted(glob.glob(os.path.join(KEPT, "*.job")))
    assert f"{len(files)} jobs, 0 differ" in fuzz(t, "--replay", *files) and files


def test_mutants_are_found(t):
    """That their texts are in the library, always; that they are found, with TSR_TEST_FULL=1."""
    sys.path.insert(0, os.path.join(HERE, "fuzz"))
    from mutants import MUTANTS
    for name, mutant in MUTANTS.items():
        with open(os.path.join(ROOT, mutant.path)) as f:
            assert f.read().count(mutant.old) == 1, (name, mutant.path)
    assert sorted(name[0] for name in MUTANTS) == sorted("ABCDE" * 2)
    if FULL:
        assert "10 of 10 mutants found, 0 draws differ" in fuzz(t, "--mutants")
