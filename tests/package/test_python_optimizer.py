"""tessera.load_sharded_optimizer_state of the wheel, on ranks over gloo."""
import os
import subprocess
import sys

from harness import ROOT, SAMPLES
from torch_ranks import repeat_notes

INSTALLED = os.path.join(ROOT, "build/wheel/installed")


def python(*arguments):
    return subprocess.run([sys.executable, "-W", "ignore", *map(str, arguments)], capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONPATH": INSTALLED})


def test_ranks_load_optimizer_state_as_pytorch_does(t):
    os.mkdir(t.at("saved"))
    for ranks in (2, 4):  # those of 4 also load what 2 saved
        p = python(os.path.join(ROOT, "tests/package/optimizer_ranks.py"), ranks, t.at("saved"))
        assert p.returncode == 0 and p.stdout == "done\n", p.stdout + p.stderr[-3000:]
        repeat_notes(p.stderr)
    assert {"from2", "from4"} <= set(os.listdir(t.at("saved")))


def test_optimizer_state_needs_a_process_group(t):
    program = "import sys, tessera\ntry:\n    tessera.load_sharded_optimizer_state(sys.argv[1], 'optim', {})\nexcept tessera.Error as e:\n    print(e)\n"
    p = python("-c", program, os.path.join(SAMPLES, "dcp_small"))
    assert p.returncode == 0 and "call torch.distributed.init_process_group first" in p.stdout, p.stdout + p.stderr[-1000:]
