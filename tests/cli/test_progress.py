"""The progress line on a terminal: it never wraps, and needs nothing from the terminal but that a carriage return goes to the start of the
line."""
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

from harness import need, test
from test_signals import huge


def shown(t, columns, *args, **env):
    """What a terminal of so many columns receives until the progress line was drawn a few times."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    p = subprocess.Popen([t.path, *args], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=slave, env={**os.environ, **env})
    os.close(slave)
    got = b""
    try:
        while got.count(b"\r") < 8:
            got += os.read(master, 1 << 16)
    except OSError:  # the program has ended
        pass
    finally:
        p.terminate()
        p.wait()
        os.close(master)
    return got.decode()


@test
def test_progress_fits_in_the_line(t):
    path = huge(t.at("huge.safetensors"))
    for columns in (40, 60, 200):
        for term in ("xterm", "dumb"):
            lines = [line for line in re.split(r"[\r\n]", shown(t, columns, "validate", "--deep", path, TERM=term)) if line][:-1]
            need(len(lines) > 2 and all(re.match(r"checking +\d+ %", line) for line in lines), lines)
            need(all(len(line) < columns and "\x1b" not in line for line in lines), f"{columns} columns: {lines}")
            need(all(re.fullmatch(r"checking +\d+ %  [\d.]+ \w+ of [\d.]+ \w+(  [\d.]+ \w+/s(  \d+ s left)?)? *", line) for line in lines), f"{columns} columns: {lines}")
        need(columns < 200 or "/s" in lines[-1], lines)
