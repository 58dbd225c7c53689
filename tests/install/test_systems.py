"""The wheel and the Debian packages on bare systems (tests/run --full)."""
import glob
import os

from harness import SAMPLES
from roots import System
from shell import VERSION, check
from test_layouts import BUILD, wheel
from viewer import expect_page

USE = """
import sys, tessera
path = sys.argv[1]
with tessera.open(path) as checkpoint:
    tensors = [name for name, entry in checkpoint.items() if entry.dtype and checkpoint[name].read()]
print(len(tensors), len(tessera.validate(path, deep=True)["findings"]), tessera.diff(path, path, values=True)["same"])
"""


def put_checkpoint(system):
    system.put(os.path.join(SAMPLES, "dcp_fsdp2"), "/checkpoint")


def expect_wheel(t, suite):
    """The system's own Python installs the wheel, and what is in it works with the system's C library alone."""
    system = System(t, suite, ("ca-certificates", "python3", "python3-venv"))
    put_checkpoint(system)
    system.put(wheel(), f"/{os.path.basename(wheel())}")
    system.run("python3", "-m", "venv", "/venv")
    system.run("/venv/bin/pip", "install", "--no-index", f"/{os.path.basename(wheel())}")
    assert f"tessera {VERSION}" in system.run("/venv/bin/tessera", "--version")
    assert "no findings" in system.run("/venv/bin/tessera", "validate", "--deep", "/checkpoint")
    system.run("/venv/bin/tessera", "convert", "/checkpoint", "/model.safetensors", "--objects", "drop")
    assert system.run("/venv/bin/python", "-c", USE, "/checkpoint").split() == ["29", "0", "True"]
    expect_page(system.command("/venv/bin/tessera"), "/checkpoint")


def test_the_wheel_runs_on_debian_11(t):
    expect_wheel(t, "bullseye")


def test_the_wheel_runs_on_debian_12(t):
    expect_wheel(t, "bookworm")


def test_the_packages_install_on_debian_12(t):
    check("cpack", "-G", "DEB", "-B", t.at("debs"), "--config", os.path.join(BUILD, "CPackConfig.cmake"), cwd=t.scratch)
    system = System(t, "bookworm")
    put_checkpoint(system)
    for deb in glob.glob(t.at("debs/*.deb")):
        if "mpi" not in os.path.basename(deb):
            system.put(deb, f"/debs/{os.path.basename(deb)}")
    system.run("apt-get", "update", "-qq")
    system.run("sh", "-c", "apt-get install -y --no-install-recommends /debs/*.deb", timeout=1200)
    assert "no findings" in system.run("tessera", "validate", "--deep", "/checkpoint")
    expect_page(system.command("tessera"), "/checkpoint")
    system.run("dpkg", "-i", *(f"/debs/{n}" for n in os.listdir(system.path + "/debs")))
    system.run("dpkg", "--purge", "tessera-checkpoint", "libtessera-dev", "libtessera0.2")
    assert not os.path.exists(system.path + "/usr/bin/tessera") and not os.path.exists(system.path + "/usr/share/tessera")
