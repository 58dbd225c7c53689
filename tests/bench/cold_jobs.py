"""First reads: the source is not in the page cache, as it is where a checkpoint was written long ago or elsewhere."""
import os
import subprocess

from measure import Job, Side


def files_of(path):
    return [path] if os.path.isfile(path) else [os.path.join(path, f) for f in sorted(os.listdir(path))]


def forget(path):
    """Drops the pages of these files, and of these alone: other work on the machine keeps its own, and no root is needed."""
    for name in files_of(path):
        fd = os.open(name, os.O_RDONLY)
        try:
            os.fsync(fd)  # pages that are not on the disk yet would stay
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def cached_bytes(path):
    """How much of these files is in the page cache; None where `fincore` cannot say."""
    try:
        p = subprocess.run(["fincore", "--bytes", "--noheadings", "--output", "RES", *files_of(path)], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return sum(map(int, p.stdout.split())) if p.returncode == 0 else None


def not_cold(path):
    """Why no read of these files can be cold here, or None."""
    forget(path)
    left = cached_bytes(path)
    if left is None:
        return "fincore (util-linux) cannot say what is in the page cache"
    return f"{left >> 20} MiB of the source stay in memory" if left > 1 << 20 else None


def cold(path, sides):
    """The same sides, each with the source dropped from the page cache before it runs."""
    def before(side):
        def run(own=side.before):
            if own:
                own()
            forget(path)
        return run
    for side in sides:
        side.before = before(side)
    return sides


def readers(path):
    """The limits: what only reads the same bytes, through the page cache and past it."""
    direct = 'for f; do dd if="$f" of=/dev/null bs=4M iflag=direct status=none; done'
    return [Side("cat > /dev/null", ["sh", "-c", 'exec cat "$@" >/dev/null', "cat", *files_of(path)]),
            Side("dd iflag=direct", ["sh", "-c", direct, "dd", *files_of(path)])]


def job(bench, id, what, source, sides, target, check=None):
    reason = not_cold(source)
    size = sum(os.path.getsize(f) for f in files_of(source))
    return reason or Job(id, what + ", cold", f"{size >> 20} MiB", cold(source, [*sides, *readers(source)]), target, check)
