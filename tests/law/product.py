"""The library as those who use it meet it: one version everywhere, and public headers that every compiler takes alone.

Each check is a pair of a name and a list of errors, as run.py prints them."""
import concurrent.futures
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = sorted(p for d in ("core", "native") for p in (ROOT / d / "include/tessera").glob("*.h"))
INCLUDE_PATH = ["-I", str(ROOT / "core/include"), "-I", str(ROOT / "native/include")]
# MPI's own C++ classes, which its header declares unless told otherwise, do not compile without warnings.
WARNINGS = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX"]


def version():
    """The version as tessera/version.h states it."""
    text = (ROOT / "core/include/tessera/version.h").read_text()
    return ".".join(re.search(rf"#define TSR_VERSION_{part} (\d+)$", text, re.M)[1] for part in ("MAJOR", "MINOR", "PATCH"))


# What cannot read the header states the version again: file, and the pattern of the line.
STATED = [
    ("wasm/package.json", r'^  "version": "([^"]+)",$'),
    ("samples/packaging/conda/recipe.yaml", r'^  version: "([^"]+)"$'),
    ("tests/package/shell.py", r'^VERSION = "([^"]+)"'),
]


def versions_agree():
    for name, pattern in STATED:
        found = re.search(pattern, (ROOT / name).read_text(), re.M)
        if not found or found[1] != version():
            yield f"{name} states version {found[1] if found else 'nothing'}, tessera/version.h states {version()}"


def compilers():
    """(name, command) of every C11 and C++17 compiler that is installed."""
    c, cxx = ["-std=c11", "-x", "c"], ["-std=c++17", "-x", "c++"]
    found = [(name, [name, *flags]) for names, flags in ((("gcc",), c), (("g++",), cxx)) for name in names if shutil.which(name)]
    clang = next((n for n in ("clang", "clang-19", "clang-18", "clang-17", "clang-16", "clang-15", "clang-14") if shutil.which(n)), None)
    return found + ([(f"{clang} (C)", [clang, *c]), (f"{clang} (C++)", [clang, *cxx])] if clang else [])


def mpi_include():
    """Where mpi.h is, for any compiler; None without MPI."""
    if not shutil.which("mpicc"):
        return None
    shown = subprocess.run(["mpicc", "-show"], capture_output=True, text=True).stdout
    return [flag for word in shown.split() if word.startswith("-I") for flag in ("-isystem", word[2:])]


def compile_text(command, text, needs_mpi):
    extra = mpi_include() if needs_mpi else []
    if extra is None:
        return None
    p = subprocess.run([*command, *WARNINGS, *extra, *INCLUDE_PATH, "-"], input=text, capture_output=True, text=True)
    return "" if p.returncode == 0 else next((line for line in p.stderr.splitlines() if "error" in line), p.stderr[:200])


def compiles_alone(compiler):
    name, command = compiler
    for header in HEADERS:
        text = f'#include "tessera/{header.name}"\nextern int not_empty;\n'
        error = compile_text(command, text, "#include <mpi.h>" in header.read_text())
        if error:
            yield f"tessera/{header.name} does not compile alone with {name}: {error}"


def checks():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        compiled = list(pool.map(lambda c: (f"public headers alone, {c[0]}", list(compiles_alone(c))), compilers()))
    return [("versions", list(versions_agree())), *compiled]
