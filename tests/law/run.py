#!/usr/bin/env python3
"""The dependency law of the house, read off the include lines; every public header compiles alone and says what each function
does. What concerns users of the library is in product.py.

    tests/law/run.py
"""
import argparse
import pathlib
import re
import sys

import product

ROOT = pathlib.Path(__file__).resolve().parents[2]

FORMATS = [f"formats/{m}" for m in ("common", "pickle", "torch", "safetensors", "dcp", "recognize")]
# room: the rooms of core it may include (itself always).
ROOMS = {
    "base": set(),
    "io": {"base"},
    "codec": {"base", "io"},  # zip directories are read through io's store vtable
    "model": {"base"},
    "fqn": {"base", "model"},
    "layout": {"base", "model"},
    "optim": {"base", "io", "model", "fqn", "layout"},  # of io the comm vtable only, see PURE
    "formats/common": {"base", "io", "codec", "model", "layout"},
    "formats/pickle": {"base", "io", "codec", "model", "formats/common"},
    "formats/torch": {"base", "io", "codec", "model", "layout", "formats/common", "formats/pickle"},
    "formats/safetensors": {"base", "io", "codec", "model", "layout", "formats/common", "formats/torch"},
    "formats/dcp": {"base", "io", "codec", "model", "layout", *(f"formats/{m}" for m in ("common", "pickle", "torch", "safetensors"))},
    "formats/recognize": {"base", "io", "codec", "model", "layout", *(f"formats/{m}" for m in ("common", "torch", "safetensors", "dcp"))},
    "stream": {"base", "io", "codec", "model", "layout", "optim", *FORMATS},
    "check": {"base", "io", "codec", "model", "layout", *FORMATS, "stream"},
    "write": {"base", "io", "codec", "model", "layout", *FORMATS, "stream"},
    "convert": {"base", "io", "codec", "model", "layout", *FORMATS, "stream", "check", "write"},
    "documents": {"base", "io", "codec", "model", "layout", *FORMATS, "stream", "check", "write", "convert", "fqn", "optim"},
    "optim_convert": {"base", "io", "model", "fqn", "layout", "optim", *FORMATS, "stream", "check", "write", "documents"},
}
# Public header → its room.
HEADERS = {
    "base": "api version str status memory host map findings json",
    "io": "store output comm",
    "model": "dtype value catalog modules",
    "fqn": "glob fqn",
    "layout": "box layout mesh target plan validate diff",
    "optim": "optim optim_comm optim_keys optim_load optim_states flat_params",
    "formats/common": "checkpoint",
    "formats/dcp": "salvage dcp_item",
    "formats/recognize": "trees",
    "stream": "cast read repeats optim_read",
    "check": "check compare tally",
    "write": "write_tree",
    "convert": "convert work",
    "documents": "document document_read policy",
    "optim_convert": "optim_convert",
}
ROOM_OF = {header: room for room, names in HEADERS.items() for header in names.split()}
PURE = {"fqn": {"store", "output"}, "optim": {"store", "output"}, "layout": {"store", "output"}}
FORBIDDEN_SYSTEM = {"stdio.h": {"base"}, "unistd.h": set(), "fcntl.h": set(), "pthread.h": set(), "sys/stat.h": set(), "time.h": set()}
NATIVE_HEADERS = ROOT / "native/include/tessera"  # public too: what needs an operating system, on top of core's
DECLARATION = re.compile(r"^[a-z][\w ]*[ *](tsr_\w+)\([^;{]*[;{].*", re.M)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def includes(path):
    return INCLUDE.findall(path.read_text())


def room_of_include(name):
    if name.startswith("tessera/"):
        header = name[len("tessera/"):-2]
        return ("*", header) if header == "tessera" else (ROOM_OF.get(header), header)
    return name.rpartition("/")[0], None


def check_core(path):
    room = str(path.relative_to(ROOT / "core").parent)
    public = room == "include/tessera"
    if public:
        room = ROOM_OF.get(path.stem)
        if path.stem == "tessera":
            return
        if room is None:
            yield f"{path.relative_to(ROOT)}: a public header without a room: add it to tests/law/run.py"
            return
    for kind, name in includes(path):
        if kind == "<":
            if name in FORBIDDEN_SYSTEM and room not in FORBIDDEN_SYSTEM[name]:
                yield f"{path.relative_to(ROOT)}: <{name}> in {room}: core makes no OS call"
            continue
        target, header = room_of_include(name)
        if target != room and target not in ROOMS[room]:
            yield f"{path.relative_to(ROOT)}: {room} may not include {name}"
        elif header in PURE.get(room, ()):
            yield f"{path.relative_to(ROOT)}: {room} does no I/O: {name}"
        elif public and not name.startswith("tessera/"):
            yield f"{path.relative_to(ROOT)}: a public header includes the private {name}"


def check_outside(path):
    core_rooms = set(ROOMS)
    for kind, name in includes(path):
        if kind == '"' and name.rpartition("/")[0] in core_rooms and not name.startswith(("io/host", "io/native")) \
                and (ROOT / "core" / name).exists():
            yield f"{path.relative_to(ROOT)}: only core/include is for native and wasm, not {name}"
        elif path.parent == NATIVE_HEADERS and kind == '"' and not name.startswith("tessera/"):
            yield f"{path.relative_to(ROOT)}: a public header includes the private {name}"
        elif path.parent == NATIVE_HEADERS and (ROOT / "core/include/tessera" / path.name).exists():
            yield f"{path.relative_to(ROOT)}: core has a header of that name"


def exported(headers):
    for p in headers:
        text = p.read_text()
        if p.stem in ("api", "tessera"):
            continue
        if text.count("\nTSR_API_BEGIN\n") != 1 or text.count("\nTSR_API_END\n") != 1:
            yield f"tessera/{p.name}: declarations stand between TSR_API_BEGIN and TSR_API_END (tessera/api.h)"
        if p.parent != NATIVE_HEADERS and f'#include "tessera/{p.name}"' not in (ROOT / "core/include/tessera/tessera.h").read_text():
            yield f"tessera/tessera.h does not include {p.name}"


def documented(headers):
    """Every public function has a comment: above its paragraph, above itself, or at its end."""
    for p in headers:
        text = p.read_text()
        for m in DECLARATION.finditer(text):
            paragraph = text[text.rfind("\n\n", 0, m.start()) + 2:m.start()]
            if "/*" not in m[0] and not re.search(r"^/\*", paragraph, re.M):
                yield f"tessera/{p.name}: {m[1]} has no comment"


def unique_names(paths):
    seen = {}
    for p in paths:
        if p.name in seen and p.suffix == ".c":
            yield f"{p.relative_to(ROOT)}: the file name is taken by {seen[p.name].relative_to(ROOT)}"
        seen[p.name] = p


def names_in_readmes(headers):
    """Functions and types that a README of core or native/statedict names exist."""
    known = set(re.findall(r"\b(?:tsr|TSR)_\w+", "".join(p.read_text() for p in headers)))
    for readme in [*sorted((ROOT / "core").rglob("*.md")), ROOT / "native/statedict/README.md"]:
        for name in sorted(set(re.findall(r"\btsr_[a-z0-9_]+\b", readme.read_text())) - known):
            yield f"{readme.relative_to(ROOT)}: there is no {name}"


DOCUMENTS = {"README.md", "RECORDS.md", "ARCHITECTURE.md", "SEEDS.md"}


def files_in_readmes():
    """Files that a README names are there; PyTorch's own are named with their folder, "distributed/…"."""
    rooms = [ROOT / d for d in ("core", "native", "samples", "tests", "wasm", "web/src")]
    known = {p.name for room in rooms for p in room.rglob("*")} | {p.name for p in ROOT.glob("web/*")}
    for readme in [*ROOT.glob("*.md"), ROOT / "web/README.md", *(p for room in rooms for p in sorted(room.rglob("*.md")) if p.name in DOCUMENTS)]:
        prose = re.sub(r"^```.*?^```", "", readme.read_text(), flags=re.M | re.S)  # code includes system headers
        for name in sorted(set(re.findall(r"[\w./-]+\.(?:c|h|cu|py|tsx?|mjs|js|cmake)\b", prose))):
            if "distributed/" not in name and pathlib.Path(name).name not in known:
                yield f"{readme.relative_to(ROOT)}: there is no {name}"


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    core = sorted(p for s in ("*.c", "*.h") for p in (ROOT / "core").rglob(s))
    outside = sorted(p for d in ("native", "wasm") for s in ("*.c", "*.h", "*.cu") for p in (ROOT / d).rglob(s))
    public = sorted(p for d in (ROOT / "core/include/tessera", NATIVE_HEADERS) for p in d.glob("*.h"))
    checks = [("core includes", [e for p in core for e in check_core(p)]),
              ("native and wasm includes", [e for p in outside for e in check_outside(p)]),
              ("exported headers", list(exported(public))),
              ("documented headers", list(documented(public))),
              ("file names", list(unique_names(core + outside))),
              ("names in READMEs", list(names_in_readmes(p for p in core + outside if p.suffix == ".h"))),
              ("files in READMEs", list(files_in_readmes())),
              *product.checks()]
    failed = 0
    for name, errors in checks:
        failed += bool(errors)
        for e in errors:
            print(f"FAIL {name}: {e}")
    print(f"{len(checks) - failed} passed, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
