"""The dependency rules, checked on the include lines of core, native and wasm."""
import re

from modules import CORE, HEADERS, LIVE_HEADERS, LIVE_USERS, MODULE_OF, NATIVE_HEADERS, OUTSIDE, PUBLIC, PURE, ROOT, SYSTEM

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def includes(path):
    return INCLUDE.findall(path.read_text())


def module_of_include(name):
    """(module of core, public header or None) of an include line in core."""
    if name.startswith("tessera/"):
        header = name.rpartition("/")[2][:-2]
        return ("*", header) if header == "tessera" else (MODULE_OF.get(header), header)
    return name.rpartition("/")[0], None


def check_core(path):
    module = str(path.relative_to(ROOT / "core").parent)
    public = module.startswith("include/tessera")
    if public:
        module = MODULE_OF.get(path.stem)
        if path.stem == "tessera":
            return
    if module not in CORE:
        yield f"{path.relative_to(ROOT)}: {'a public header' if public else 'a file'} of no module; name it in tests/structure/modules.py"
        return
    for kind, name in includes(path):
        if kind == "<":
            if name in SYSTEM and module not in SYSTEM[name]:
                yield f"{path.relative_to(ROOT)}: <{name}> in {module}: core makes no OS call"
            continue
        target, header = module_of_include(name)
        if target != module and target not in CORE[module]:
            yield f"{path.relative_to(ROOT)}: {module} may not include {name}"
        elif header in PURE.get(module, ()):
            yield f"{path.relative_to(ROOT)}: {module} does no I/O: {name}"
        elif public and not name.startswith("tessera/"):
            yield f"{path.relative_to(ROOT)}: a public header includes the private {name}"


def check_outside(path):
    module = str(path.relative_to(ROOT).parent)
    live = path.is_relative_to(LIVE_HEADERS)
    public = live or path.is_relative_to(NATIVE_HEADERS)
    if public:
        if path.stem in MODULE_OF:
            yield f"{path.relative_to(ROOT)}: core has a header of that name"
    elif module not in OUTSIDE:
        yield f"{path.relative_to(ROOT)}: a file of no module; name it in tests/structure/modules.py"
        return
    for kind, name in includes(path):
        if kind == '"' and (LIVE_HEADERS.parent / name).exists() and not live and not module.startswith(LIVE_USERS):
            yield f"{path.relative_to(ROOT)}: {name} is for programs with live state dicts (native/live)"
        if kind == "<" or name.startswith("tessera/"):
            continue
        where = "native" if (ROOT / "native" / name).exists() else module.partition("/")[0]
        target = f"{where}/{name.rpartition('/')[0]}" if "/" in name else module
        if public:
            yield f"{path.relative_to(ROOT)}: a public header includes the private {name}"
        elif (ROOT / "core" / name).exists() and not (ROOT / "native" / name).exists():
            yield f"{path.relative_to(ROOT)}: only core/include is for native and wasm, not {name}"
        elif target != module and target not in OUTSIDE[module]:
            yield f"{path.relative_to(ROOT)}: {module} may not include {name}"


def acyclic(rules, what):
    """The rules themselves have no circle: every module comes after those that it may include."""
    left, done = dict(rules), set()
    while left:
        ready = [m for m, may in left.items() if may - {m} <= done]
        if not ready:
            yield f"{what}: {', '.join(sorted(left))} include each other in a circle"
            return
        done.update(ready)
        for m in ready:
            del left[m]


# Headers for programs that include one of tessera/sys: a type in a signature is declared there.
TYPES_FROM_SYS = {"optim_convert.h": {"tessera/sys/write_tree.h"}}  # tsr_tree_file, which says where a file of the job goes


def check_programs():
    """Samples are what programs look like: they do with tessera/*.h."""
    for p in sorted(q for q in (ROOT / "samples").rglob("*.c")):
        for name in sorted({name for _, name in includes(p) if name.startswith("tessera/sys/")}):
            yield f"{p.relative_to(ROOT)}: {name} is for our own modules"


def check_tiers(headers):
    """What programs include does not bring in what our own modules share."""
    for p in headers:
        if p.parent.name == "sys":
            continue
        shared = {name for _, name in includes(p) if name.startswith("tessera/sys/")}
        for name in sorted(shared ^ TYPES_FROM_SYS.get(p.name, set())):
            yield f"{p.relative_to(ROOT)}: {name} is {'for our own modules' if name in shared else 'not included, though TYPES_FROM_SYS names it'}"


def checks(core, outside):
    rules = [*acyclic(CORE, "core"), *acyclic(OUTSIDE, "native"), *(f"{m} of HEADERS is not a module" for m in HEADERS if m not in CORE)]
    return [("the rules", rules),
            ("core includes", [e for p in core for e in check_core(p)]),
            ("native and wasm includes", [e for p in outside for e in check_outside(p)]),
            ("includes of samples", list(check_programs())),
            ("includes of public headers", list(check_tiers(PUBLIC)))]
