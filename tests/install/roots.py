"""Bare Debian systems to install in: made by debootstrap, kept in .local/install, copied for each test, entered by chroot."""
import os
import shlex
import shutil
import subprocess

from harness import ROOT, Skip
from shell import check

KEPT = os.path.join(os.path.realpath(os.path.join(ROOT, ".local")), "install")
FULL = os.environ.get("TSR_TEST_FULL")
# What a system needs to reach the package registries as this machine does.
SETTINGS = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/xdg/pip", "/etc/npmrc", "/root/.npmrc", "/etc/ssl/certs", "/usr/local/share/ca-certificates", "/etc/apt/apt.conf.d/99proxy")


def mirror():
    """The address that this machine's apt gets Debian from."""
    for line in check("apt-get", "indextargets", "--format", "$(REPO_URI) $(SUITE) $(CODENAME)").splitlines():
        if line.split()[1:] in (["oldstable", "bookworm"], ["stable", "bookworm"], ["oldoldstable", "bookworm"]):
            return line.split()[0]
    raise Skip("apt has no list of Debian's packages that a bare system could be made of")


def made(suite, packages):
    """The kept system of this suite with these packages; Skip with the reason where it cannot be made."""
    if not FULL:
        raise Skip("a bare Debian system is only made with TSR_TEST_FULL=1 (tests/run --full)")
    if os.getuid() != 0:
        raise Skip("a bare Debian system can only be made by root")
    if not shutil.which("debootstrap"):
        raise Skip("debootstrap is not installed")
    path = os.path.join(KEPT, "-".join((suite, *packages)))
    if not os.path.exists(path):
        os.makedirs(KEPT, exist_ok=True)
        shutil.rmtree(path + ".new", ignore_errors=True)
        p = subprocess.run(["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", suite, path + ".new", mirror()], capture_output=True, text=True)
        if p.returncode:
            raise Skip(f"debootstrap cannot make {suite}: {(p.stdout + p.stderr).strip().splitlines()[-1]}")
        os.rename(path + ".new", path)
    return path


class System:
    """A copy of a bare system, for one test."""

    def __init__(self, t, suite, packages=("ca-certificates",)):
        self.path = t.at(suite)
        check("cp", "-a", "--reflink=auto", made(suite, packages), self.path)
        for name in filter(os.path.exists, SETTINGS):
            os.makedirs(os.path.dirname(self.path + name), exist_ok=True)
            check("rm", "-rf", self.path + name)  # a link in it would lead to this machine's own file
            check("cp", "-aLT", name, self.path + name)

    def put(self, source, name):
        """Copies a file or directory of this machine to `name` in the system."""
        os.makedirs(os.path.dirname(self.path + name), exist_ok=True)
        check("cp", "-aT", source, self.path + name)

    def command(self, *command, user="root"):
        """What runs a command in it, with /proc and /dev; the mounts end with the command."""
        inside = ["chroot", self.path] if user == "root" else ["chroot", f"--userspec={user}", self.path]
        home = "/root" if user == "root" else f"/home/{user}"
        environment = ["env", "-i", f"HOME={home}", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
                       *(f"{k}={v}" for k, v in os.environ.items() if k.startswith(("PIP_CERT", "npm_config_", "NPM_CONFIG_", "NODE_EXTRA_CA_CERTS")))]
        mounts = f"mount -t proc proc {shlex.quote(self.path)}/proc && mount --rbind /dev {shlex.quote(self.path)}/dev && exec \"$@\""
        return ["unshare", "--mount", "sh", "-c", mounts, "sh", *inside, *environment, *map(str, command)]

    def run(self, *command, user="root", status=0, timeout=300):
        return check(*self.command(*command, user=user), status=status, timeout=timeout)
