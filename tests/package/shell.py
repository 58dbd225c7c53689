"""Running other people's tools."""
import os
import subprocess

from harness import ROOT

VERSION = "0.2.0"  # stated again here on purpose: a release changes both places knowingly
TOOLS = os.path.join(ROOT, ".local/package-tools")  # those that pip installs: a virtual environment of their own


def check(*command, status=0, timeout=300, **k):
    """stdout and stderr of a command that must end with this status."""
    p = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, **k)
    out = p.stdout.decode(errors="replace")
    assert p.returncode == status, f"{' '.join(map(str, command))[:300]} ended {p.returncode}, expected {status}: {out[-2500:]}"
    return out
