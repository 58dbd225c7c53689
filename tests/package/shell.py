"""Running other people's tools."""
import fcntl
import os
import subprocess

from harness import ROOT

VERSION = "0.2.0"  # stated again here on purpose: a release changes both places knowingly
TOOLS = os.path.join(ROOT, ".local/package-tools")  # those that pip installs: a virtual environment of their own


def check(*command, status=0, timeout=1200, **k):
    """stdout and stderr of a command that must end with this status."""
    p = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, **k)
    out = p.stdout.decode(errors="replace")
    assert p.returncode == status, f"{' '.join(map(str, command))[:300]} ended {p.returncode}, expected {status}: {out[-2500:]}"
    return out


def made_once(directory, make):
    """What make() prints, from the first process of this run that asks for it; the others wait until it is made."""
    made = os.path.join(directory, "made")
    with open(os.path.join(directory, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(made):
            out = make()
            with open(made, "w") as f:
                f.write(out)
    with open(made) as f:
        return f.read()
