"""`tessera cp --no-verify` on file systems that share blocks: the copy takes no space, and is independent when it is
changed."""
import contextlib
import fcntl
import os
import shutil
import struct
import subprocess

from harness import Skip, need, sample, test

FIEMAP, SYNC, SHARED, LAST, EXTENTS = 0xC020660B, 1, 0x2000, 1, 64
SIZE, LARGE = 320 << 20, (24 << 20) + 12345  # of the file system, and of a file in it that does not end at a block boundary


def extents(path):
    """Returns [(physical offset, length, flags)] of a file, as reported by the kernel."""
    with open(path, "rb") as f:
        asked = bytearray(struct.pack("=QQIIII", 0, 2**64 - 1, SYNC, 0, EXTENTS, 0) + bytes(56 * EXTENTS))
        fcntl.ioctl(f, FIEMAP, asked)
    count = struct.unpack_from("=I", asked, 20)[0]
    rows = [struct.unpack_from("=QQQQQIIII", asked, 32 + 56 * i) for i in range(count)]
    need(rows and rows[-1][5] & LAST, f"{path}: more than {EXTENTS} extents")
    return [(row[1], row[2], row[5]) for row in rows]


def used(path):
    subprocess.run(["sync", "-f", path], check=True)
    info = os.statvfs(path)
    return (info.f_blocks - info.f_bfree) * info.f_frsize


@contextlib.contextmanager
def mounted(t, kind):
    """Makes a new file system in a file. Skips the test, with the reason, if that is not possible."""
    mkfs = shutil.which("mkfs." + kind, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if os.geteuid() != 0:
        raise Skip(f"only root mounts {kind}")
    if not mkfs:
        raise Skip(f"mkfs.{kind} is not installed")
    image, place = t.at(kind + ".image"), t.at(kind)
    os.mkdir(place)
    with open(image, "wb") as f:
        f.truncate(SIZE)
    subprocess.run([mkfs, "-q", image], check=True, capture_output=True)
    made = subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, text=True)
    if made.returncode:
        raise Skip(f"{kind} cannot be mounted here: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def check_clones(t, kind):
    with mounted(t, kind) as place:
        source, clone, copy = (os.path.join(place, name) for name in ("source", "clone", "copy"))
        shutil.copytree(sample("dcp_fsdp2")[0], source)
        large = os.path.join(source, "large.bin")
        with open(large, "wb") as f:
            f.write(os.urandom(LARGE))
        before = used(place)
        t.run("cp", source, clone, "--no-verify")
        grown = used(place) - before
        need(grown < 2 << 20, f"{kind}: the clone takes {grown} bytes")
        for name in sorted(os.listdir(source)):
            with open(os.path.join(source, name), "rb") as a, open(os.path.join(clone, name), "rb") as b:
                need(a.read() == b.read(), f"{kind}: {name} has other bytes")
        at = extents(large)
        need(extents(os.path.join(clone, "large.bin")) == at and all(flags & SHARED for _, _, flags in at), f"{kind}: {at} is not shared")
        t.run("cp", source, copy)
        need(used(place) - before > LARGE, f"{kind}: a copy that is read back takes room")
        need(not {p for p, _, _ in extents(os.path.join(copy, "large.bin"))} & {p for p, _, _ in at}, f"{kind}: a copy that is read back shares blocks")
        with open(large, "rb") as f:
            was = f.read()
        with open(os.path.join(clone, "large.bin"), "r+b") as f:
            f.write(b"changed")
        with open(large, "rb") as f:
            need(f.read() == was, f"{kind}: a change of the clone changes the source")
        need(t.json("diff", source, clone, "--values", "--json")["same"], f"{kind}: another checkpoint")


@test
def test_cp_clones_on_xfs(t):
    check_clones(t, "xfs")


@test
def test_cp_clones_on_btrfs(t):
    check_clones(t, "btrfs")
