"""The library as programs use it: one version everywhere, public headers that compile alone in C and C++, examples that compile.

Each check is a pair of a name and a list of errors, as run.py prints them."""
import concurrent.futures
import re
import shutil
import subprocess

from modules import LIVE_HEADERS, NATIVE_HEADERS, PUBLIC, ROOT, include_name

INCLUDE_PATH = ["-I", str(ROOT / "core/include"), "-I", str(ROOT / "native/include"), "-I", str(ROOT / "native/live/include")]
# MPI's own C++ classes, which its header declares unless told otherwise, do not compile without warnings.
WARNINGS = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX"]


def version():
    """The version as tessera/version.h states it."""
    text = (ROOT / "core/include/tessera/version.h").read_text()
    return ".".join(re.search(rf"#define TSR_VERSION_{part} (\d+)$", text, re.M)[1] for part in ("MAJOR", "MINOR", "PATCH"))


# What cannot read the header states the version again: file, and the pattern of each place.
STATED = [
    ("wasm/package.json", r'^  "version": "([^"]+)",$'),
    ("samples/packaging/conda/recipe.yaml", r'^  version: "([^"]+)"$'),
    ("wasm/README.md", r"tessera-checkpoint-([0-9.]+)\.tgz"),
    ("samples/kubernetes/exec.yaml", r"^ +image: [^:]+:(\S+)"),
    ("samples/kubernetes/retain.yaml", r"^ +image: [^:]+:(\S+)"),
    ("CHANGELOG.md", r"\A(?s:.*?)^## (\d+\.\d+\.\d+) \("),  # only the newest version
    ("tests/package/shell.py", r'^VERSION = "([^"]+)"'),
]


def versions_agree():
    for name, pattern in STATED:
        for found in re.findall(pattern, (ROOT / name).read_text(), re.M) or ["nothing"]:
            if found != version():
                yield f"{name} states version {found}, tessera/version.h states {version()}"


def compilers():
    """(name, command) of every C11 and C++17 compiler that is installed."""
    c, cxx = ["-std=c11", "-x", "c"], ["-std=c++17", "-x", "c++"]
    found = [(name, [name, *flags]) for name, flags in (("gcc", c), ("g++", cxx)) if shutil.which(name)]
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
    for header in PUBLIC:
        text = f'#include "{include_name(header)}"\nextern int not_empty;\n'
        error = compile_text(command, text, "#include <mpi.h>" in header.read_text())
        if error:
            yield f"{include_name(header)} does not compile alone with {name}: {error}"


# What examples may take as given: objects that a program has by then, and callbacks of its own.
GIVEN = """
#include <stdio.h>
#include "tessera/tessera.h"
extern tsr_status status;
extern tsr_error err;
extern const tsr_host *host;
extern tsr_arena *arena;
extern tsr_store *store;
extern tsr_output *output;
extern tsr_checkpoint *checkpoint, *other;
extern const tsr_catalog *catalog;
extern const tsr_entry *entry;
extern tsr_findings *findings;
extern tsr_ring *ring;
extern tsr_plan *plan;
extern tsr_comm *comm;
extern tsr_mesh mesh;
extern tsr_placement *placements;
extern tsr_modules *modules;
extern const tsr_value *state;
extern tsr_str text;
extern FILE *file;
extern int argc;
extern char **argv;
"""
# What the examples of headers in tessera/sys may take as given too.
GIVEN_SYS = """
#include "tessera/sys/flat_params.h"
#include "tessera/sys/store.h"
#include "tessera/sys/json.h"
#include "tessera/sys/read.h"
extern const tsr_flat_params *flat;
extern tsr_optim_read *reads;
extern size_t read_count;
extern void *give_buffer(void *ctx, const tsr_optim_read *read, size_t bytes);
extern tsr_unguarded_read read_unguarded;
extern tsr_write_fn write_to_stdout;
"""
GIVEN_NATIVE = """
#include "tessera/gpu.h"
#include "tessera/optimizer_state.h"
#include "tessera/save_load.h"
#include "tessera/sys/optimizer.h"
extern const tsr_live live;
extern tsr_device *device;
extern tsr_gpu *gpu;
extern void *device_memory;
extern tsr_state_dict *dict;
extern const tsr_tensor *weight, *by_rows, *by_columns;
extern const tsr_model *model;
extern tsr_model_optimizer *optimizer;
extern const tsr_fsdp_tree *tree;
extern tsr_status run_on_each_rank(void *arg, tsr_comm *comm, tsr_error *err);
"""


def examples_of(header):
    """The code below each line "Example:" in the comments of a header."""
    for comment in re.findall(r"/\*.*?\*/", header.read_text(), re.S):
        _, found, below = comment.removesuffix("*/").partition("\n * Example:\n *\n")
        lines = []
        for line in below.splitlines():
            if line.rstrip() != " *" and not line.startswith(" *     "):
                break
            lines.append(line[7:])
        if found:
            yield "\n".join(lines).strip()


def examples_compile(compiler):
    """Every public header has examples, which compile as C11 in a program that has what GIVEN lists."""
    name, command = compiler
    for header in PUBLIC:
        examples = list(examples_of(header))
        if not examples:
            yield f"{include_name(header)} has no example: see tessera/box.h for the form"
        include = f'#include "{include_name(header)}"\n'
        given = GIVEN + (GIVEN_SYS if header.parent.name == "sys" else "") + (GIVEN_NATIVE if header.is_relative_to(NATIVE_HEADERS) or header.is_relative_to(LIVE_HEADERS) else "")
        for code in examples:
            program = code if code.startswith("#include") or "int main(" in code else f"void example(void);\nvoid example(void)\n{{\n{code}\n}}\n"
            text = include + (given if program is not code else "") + f'#line 1 "the example of {header.name}"\n' + program
            error = compile_text([*command, "-Wno-unused-variable", "-Wno-unused-but-set-variable"], text, "<mpi.h>" in header.read_text())
            if error:
                yield f"{include_name(header)}: its example does not compile with {name}: {error}"


def shortest_program_is_shown():
    """The head of tessera.h and the README show samples/c/list.c as it is."""
    program = (ROOT / "samples/c/list.c").read_text().split("*/\n", 1)[1].strip()
    if program not in examples_of(ROOT / "core/include/tessera/tessera.h"):
        yield "tessera/tessera.h does not show samples/c/list.c"
    if f"```c\n{program}\n```" not in (ROOT / "README.md").read_text():
        yield "README.md does not show samples/c/list.c"


def checks():
    found = compilers()
    if not found:
        return [("compilers", ["there is no gcc, g++ or clang, so public headers cannot be checked"])]
    if mpi_include() is None:
        print("tessera/comm_mpi.h: not compiled, because there is no mpicc")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        compiled = list(pool.map(lambda c: (f"public headers alone, {c[0]}", list(compiles_alone(c))), found))
    c11 = next(c for c in found if "-std=c11" in c[1])
    examples = (f"examples of headers, {c11[0]}", list(examples_compile(c11)))
    return [("versions", list(versions_agree())), *compiled, examples, ("shortest program", list(shortest_program_is_shown()))]
