"""The lines under "Install" of README.md, run as they are printed, in a home directory of their own."""
import os
import re
import shlex

from harness import ROOT, SAMPLES
from roots import System
from shell import check
from viewer import expect_page

RUNS_ALONE = True  # it builds in this checkout, whose page and wheel others look at


def printed():
    """The commands, in order; a shell drops the comments."""
    with open(os.path.join(ROOT, "README.md")) as f:
        section = re.search(r"\n## Install\n(.*?)\n## ", f.read(), re.S)[1]
    lines = re.findall(r"^    (\S.*)$", section, re.M)
    assert any(line.startswith("samples/run") for line in lines) and any("native/python/build" in line for line in lines), lines
    return lines


def script():
    """One shell runs all of them, as a user's does; each must succeed."""
    lines = "\n".join(f"echo {shlex.quote('$ ' + line)}\n{line}" for line in printed())
    return f"set -e\nexport PATH=$HOME/.local/bin:$PATH\n{lines}\nprintf 'program: %s\\n' $(command -v tessera) $(find ~ -path '*/bin/tessera' | sort)\n"


def programs(out):
    """The installed programs that the script printed: one by CMake, one by pip, perhaps the same again."""
    found = re.findall(r"^program: (\S+)$", out, re.M)
    assert len(set(found)) >= 2, out[-3000:]
    return sorted(set(found))


def test_the_lines_of_the_readme_install_in_a_home_directory(t):
    """On this machine, where what they need is installed already."""
    os.makedirs(t.at("home"))
    kept = {k: v for k, v in os.environ.items() if k.startswith(("CCACHE_", "CMAKE_", "TSR_", "PIP_", "npm_config_"))}
    out = check("bash", "-c", script(), cwd=ROOT, timeout=1200, env={**kept, "HOME": t.at("home"), "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8"})
    for program in programs(out):
        assert program.startswith(t.at("home") + "/"), program
        assert "dcp_fsdp2" in check(program, "inspect", os.path.join(SAMPLES, "dcp_fsdp2"))
        expect_page([program], os.path.join(SAMPLES, "dcp_fsdp2"))


def put_sources(system, name):
    """What git lists of this checkout, as a clone has it."""
    names = check("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    with open(system.path + "/files", "w") as f:
        f.write("\0".join(n for n in names if n and os.path.lexists(os.path.join(ROOT, n))))
    os.makedirs(system.path + name)
    check("sh", "-c", f"tar -C {shlex.quote(ROOT)} --null -T {shlex.quote(system.path)}/files -cf - | tar -C {shlex.quote(system.path + name)} -xf - --no-same-owner")


def test_the_lines_of_the_readme_install_on_a_bare_system(t):
    """First as root; then as an ordinary user, who finds Debian's packages installed."""
    system = System(t, "bookworm")
    put_sources(system, "/root/tessera")
    system.run("apt-get", "update", "-qq")
    run = ["bash", "-c", f"cd ~/tessera\n{script()}"]
    for program in programs(system.run(*run, timeout=5400)):
        expect_page(system.command(program), "/root/tessera/samples/checkpoints/dcp_fsdp2")
    system.run("useradd", "--create-home", "someone")
    put_sources(system, "/home/someone/tessera")
    system.run("chown", "-R", "someone:someone", "/home/someone/tessera")
    for program in programs(system.run(*run, user="someone", timeout=5400)):
        assert program.startswith("/home/someone/"), program
        expect_page(system.command(program, user="someone"), "/home/someone/tessera/samples/checkpoints/dcp_fsdp2")
