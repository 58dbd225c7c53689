"""`python -m tessera` is the command `tessera` of this package."""
from __future__ import annotations

import importlib.metadata
import os
import shutil
import signal
import sys
from typing import NoReturn


def program() -> str | None:
    """Returns the path of the program that was installed with this package, or of another one that is in PATH."""
    try:
        for file in importlib.metadata.distribution("tessera-checkpoint").files or ():
            if file.name == "tessera" and file.parent.name == "bin" and os.access(file.locate(), os.X_OK):
                return os.fspath(file.locate())
    except importlib.metadata.PackageNotFoundError:
        pass
    return shutil.which("tessera")


def main() -> NoReturn:
    found = program()
    if not found:
        sys.exit("tessera: the program `tessera` was not installed with this package and is not in PATH; install tessera-checkpoint with pip")
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores these, and what it starts would, too
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    os.execv(found, ["tessera", *sys.argv[1:]])


if __name__ == "__main__":
    main()
