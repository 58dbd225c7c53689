"""The formatting of C files, which .clang-format defines."""
import re
import shutil
import subprocess

from modules import ROOT

VERSION = 14  # of Debian 12; other versions format some lines differently
FOLDERS = ("core", "native", "wasm", "tests", "samples")


def checks():
    tool = shutil.which("clang-format")
    version = re.search(r"version (\d+)", subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout) if tool else None
    if not version or int(version[1]) != VERSION:
        print(f"SKIP formatting of C files: needs clang-format {VERSION}, found {version[1] if version else 'none'}")
        return []
    files = subprocess.run(["git", "-C", ROOT, "ls-files", *(f"{folder}/*.{end}" for folder in FOLDERS for end in ("c", "h", "cu"))],
                           capture_output=True, text=True, check=True).stdout.splitlines()
    said = subprocess.run([tool, "--dry-run", *files], cwd=ROOT, capture_output=True, text=True, check=True).stderr
    return [("formatting of C files", sorted({f"{m[1]}:{m[2]}: run clang-format -i {m[1]}" for m in re.finditer(r"^([^:\n]+):(\d+):\d+: warning", said, re.M)}))]
