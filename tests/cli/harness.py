"""Shared by the command line's tests: the program with a scratch directory, and samples with what PyTorch reports of
them."""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import schema

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

from checks import ROOT, SAMPLES, TESTS, Bad, Skip, need, preloadable, test  # noqa: E402, F401

SCHEMAS = schema.load(os.path.join(ROOT, "native", "cli", "schemas"))
CONTROL = re.compile(rb"[\x00-\x09\x0b-\x1f\x7f]")


class Tessera:
    """The program, with a scratch directory for one test."""

    def __init__(self, path):
        self.path = path
        self.directory = tempfile.mkdtemp(prefix="tessera-cli-")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.directory, ignore_errors=True)

    def at(self, *names):
        return os.path.join(self.directory, *names)

    def run(self, *args, status=(0,), env=None):
        p = subprocess.run([self.path, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, env={**os.environ, **(env or {})})
        allowed = (status,) if isinstance(status, int) else status
        need(p.returncode in allowed, f"`tessera {' '.join(map(str, args))}` ended {p.returncode}, expected {allowed}: {p.stderr.decode(errors='replace')[-400:]}")
        need(p.returncode != 2 or p.stderr.startswith(b"tessera: ") or not args, f"status 2 without a message: {p.stderr[:200]}")
        return p

    def text(self, *args, **k):
        """Returns stdout of a text command: valid UTF-8 without control characters, however hostile the names."""
        out = self.run(*args, **k).stdout
        need(not CONTROL.search(out), f"`tessera {' '.join(map(str, args))}` prints control characters")
        return out.decode()

    def json(self, *args, **k):
        out = self.run(*args, **k).stdout
        doc = json.loads(out)
        wrong = list(schema.problems(doc, SCHEMAS[doc["schema"]]))
        need(not wrong, f"`tessera {' '.join(map(str, args))}`: {doc['schema']}: {wrong[:3]}")
        return doc


def sample(name):
    with open(os.path.join(SAMPLES, name + ".expect.json")) as f:
        want = json.load(f)
    if not want.get("problems") and "entries" not in want:
        # An odd copy of a good sample, or what PyTorch itself cannot read back.
        want = {**sample(want["base"])[1], **want} if "base" in want else {**want, "entries": want["written"]}
    return os.path.join(SAMPLES, want.get("path", name)), want


def st_write(path, tensors, order=None, metadata=None):
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
