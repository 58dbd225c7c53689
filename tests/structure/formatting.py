"""The formatting of C files, which .clang-format defines."""
import pathlib
import re
import shutil
import subprocess

from modules import ROOT

VERSION = 14  # of Debian 12; other versions format some lines differently
DIRECTORIES = ("core", "native", "wasm", "tests", "samples")


def checks():
    tool = shutil.which("clang-format")
    version = re.search(r"version (\d+)", subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout) if tool else None
    if not version or int(version[1]) != VERSION:
        print(f"SKIP formatting of C files: needs clang-format {VERSION}, found {version[1] if version else 'none'}")
        return []
    files = sorted(str(f.relative_to(ROOT)) for directory in DIRECTORIES for end in ("c", "h", "cu") for f in pathlib.Path(ROOT, directory).rglob(f"*.{end}"))
    said = subprocess.run([tool, "--dry-run", *files], cwd=ROOT, capture_output=True, text=True, check=True).stderr
    return [("formatting of C files", sorted({f"{m[1]}:{m[2]}: run clang-format -i {m[1]}" for m in re.finditer(r"^([^:\n]+):(\d+):\d+: warning", said, re.M)}))]
