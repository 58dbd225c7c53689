"""What headers and READMEs say: every public function is documented and exported, what a README names exists, and the top level
has nothing that came there by accident."""
import pathlib
import re
import subprocess

from modules import LIVE_HEADERS, ROOT, include_name

DECLARATION = re.compile(r"^[a-z][\w ]*[ *](tsr_\w+)\([^;{]*[;{].*", re.M)


def exported(headers):
    for p in headers:
        text = p.read_text()
        if p.stem in ("api", "tessera", "live"):
            continue
        if text.count("\nTSR_API_BEGIN\n") != 1 or text.count("\nTSR_API_END\n") != 1:
            yield f"{include_name(p)}: declarations stand between TSR_API_BEGIN and TSR_API_END (tessera/api.h)"
        ours = {ROOT / "core/include/tessera/tessera.h": p.parent == ROOT / "core/include/tessera",
                LIVE_HEADERS / "live.h": p.stem == "comm_threads" or (p.parent == LIVE_HEADERS and p.stem != "gpu")}
        for umbrella, wanted in ours.items():
            included = f'#include "{include_name(p)}"' in umbrella.read_text()
            if included != wanted:
                yield f"{include_name(umbrella)} {'includes' if included else 'does not include'} {include_name(p)}"


def documented(headers):
    """Every public function has a comment: above its paragraph, above itself, or at its end."""
    for p in headers:
        text = p.read_text()
        for m in DECLARATION.finditer(text):
            paragraph = text[text.rfind("\n\n", 0, m.start()) + 2:m.start()]
            if "/*" not in m[0] and not re.search(r"^/\*", paragraph, re.M):
                yield f"{include_name(p)}: {m[1]} has no comment"


def unique_names(paths):
    seen = {}
    for p in paths:
        if p.name in seen and p.suffix == ".c":
            yield f"{p.relative_to(ROOT)}: the file name is taken by {seen[p.name].relative_to(ROOT)}"
        seen[p.name] = p


def names_in_readmes(headers):
    """Functions and types that a README of core or native/live names exist."""
    known = set(re.findall(r"\b(?:tsr|TSR)_\w+", "".join(p.read_text() for p in headers)))
    for readme in [*sorted((ROOT / "core").rglob("*.md")), *sorted((ROOT / "native/live").rglob("README.md"))]:
        for name in sorted(set(re.findall(r"\btsr_[a-z0-9_]+\b", readme.read_text())) - known):
            yield f"{readme.relative_to(ROOT)}: there is no {name}"


DOCUMENTS = {"README.md", "RECORDS.md", "ARCHITECTURE.md", "SEEDS.md"}


def files_in_readmes():
    """Files that a README names are there; PyTorch's own are named with their directory, "distributed/…", and what
    is built with its own, "build/…"."""
    directories = [ROOT / d for d in ("core", "native", "samples", "tests", "wasm", "web/src")]
    known = {p.name for d in directories for p in d.rglob("*")} | {p.name for p in ROOT.glob("web/*")}
    for readme in [*ROOT.glob("*.md"), ROOT / "web/README.md", *(p for d in directories for p in sorted(d.rglob("*.md")) if p.name in DOCUMENTS)]:
        prose = re.sub(r"^```.*?^```", "", readme.read_text(), flags=re.M | re.S)  # code includes system headers
        for name in sorted(set(re.findall(r"[\w./-]+\.(?:c|h|cu|py|tsx?|mjs|js|cmake)\b", prose))):
            if "distributed/" not in name and not name.startswith("build/") and pathlib.Path(name).name not in known:
                yield f"{readme.relative_to(ROOT)}: there is no {name}"


CONVERSION = re.compile(r"%[-+ #0-9.*]*(?:hh|h|ll|l|z|j|t|L)?[a-zA-Z]")
KNOWN_CONVERSION = re.compile(r"%((0(\*|\d+)|\.(\*|\d+))?((ll)?[ux]|zu)|(\.(\*|\d+))?s|c|(ll)?[di])")


def unknown_formats(paths):
    """The module's printf knows few conversions (wasm/platform/print.c): core and wasm use no other. Floating-point numbers are printed by
    tsr_real_text."""
    for p in paths:
        if p.suffix == ".c" and p.name not in ("real_text.c", "print.c") and p.relative_to(ROOT).parts[0] in ("core", "wasm"):
            code = re.sub(r"/\*.*?\*/|^#include[^\n]*", "", p.read_text(), flags=re.S | re.M)
            for literal in re.findall(r'"(?:[^"\\\n]|\\.)*"', code):
                for m in CONVERSION.finditer(literal.replace("%%", "")):
                    if not KNOWN_CONVERSION.fullmatch(m[0]):
                        yield f"{p.relative_to(ROOT)}: {literal} has {m[0]}, which the module does not print (wasm/platform/print.c)"


TOP_LEVEL = {".ci", ".clang-format", ".clang-tidy", ".dockerignore", ".gitignore", ".pre-commit-hooks.yaml", "CHANGELOG.md", "CMakeLists.txt", "CMakePresets.json",
             "CONTRIBUTING.md", "LICENSE", "README.md", "core", "native", "samples", "tests", "wasm", "web"}


def strangers():
    try:
        files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as e:
        print(f"SKIP files of the top level: {getattr(e, 'stderr', None) or e}".strip())
        return
    for name in sorted({f.split("/")[0] for f in files.splitlines()} - TOP_LEVEL):
        yield f"{name} is not in TOP_LEVEL"


def unique_types(paths):
    """A reader who looks for a type's definition finds one. Types of a single source, without the prefix, are its own matter."""
    defined = {}
    for path in paths:
        for name in re.findall(r"^} (tsr_\w+);", path.read_text(), re.M):
            defined.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return [f"{name} is defined in {' and in '.join(places)}" for name, places in sorted(defined.items()) if len(places) > 1]


def checks(public, paths):
    return [("top level", list(strangers())),
            ("exported headers", list(exported(public))),
            ("documented headers", list(documented(public))),
            ("file names", list(unique_names(paths))),
            ("names of types", unique_types(paths)),
            ("formats of printf", list(unknown_formats(paths))),
            ("names in READMEs", list(names_in_readmes(p for p in paths if p.suffix == ".h"))),
            ("files in READMEs", list(files_in_readmes()))]
