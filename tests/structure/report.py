"""Figures about the structure, read off the sources: they show where a module grows too large or its files call in circles."""
import collections
import re

from modules import CORE, LIVE_HEADERS, OUTSIDE, PUBLIC, ROOT, sources

MOST_PARAMETERS = 8
# Functions of tessera/*.h. What programs call is promised to stay and has to be learned, so this grows only on purpose: a function that
# no sample or README needs and that our own modules alone call belongs in tessera/sys.
MOST_PUBLIC = {"libtessera": 81, "live state dicts": 43}  # the second with ranks as threads and as MPI processes
FOREIGN = {"__libc_start_main"}  # whose parameters another library decides (glibc)
COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"", re.S)
DEFINITION = re.compile(r"^(?!static\b|typedef\b|#|\s)[\w][\w \t*]*?\b(\w+)\(([^;{}]*?)\)\s*\{", re.M)
ANY_DEFINITION = re.compile(r"^(?!typedef\b|#|\s)[\w][\w \t*()]*?\b(\w+)\(([^;{}]*?)\)\s*\{", re.M)
OBJECT = re.compile(r"^(?!static\b|typedef\b|extern\b|#|\s)(?:const )?\w[\w ]*[ *]+(?:const )?(\w+)(?:\[\w*\])? = ", re.M)
DECLARATION = re.compile(r"^(?!static\b|typedef\b|#|\s)[a-z][\w ]*[ *](tsr_\w+)\(([^;{]*?)\);", re.M)


def parameters(text):
    """How many parameters a list declares: commas outside of parentheses."""
    depth = count = 0
    for c in text:
        depth += (c == "(") - (c == ")")
        count += c == "," and depth == 0
    return 0 if text.strip() in ("", "void") else count + 1


def plain(path):
    """The text without comments, strings, and the attribute that says where a format string is."""
    return re.sub(r"\s*TSR_PRINTF_LIKE\(\d+, \d+\)", "", COMMENTS.sub(" ", path.read_text()))


def graph_of(paths):
    """File → the files of the same module whose functions or objects it uses."""
    text = {p: plain(p) for p in paths}
    home = {name: p for p, t in text.items() for pattern in (DEFINITION, OBJECT) for name in (m[1] for m in pattern.finditer(t))}
    words = {p: set(re.findall(r"\w+", t)) for p, t in text.items()}
    return {p: {home[w] for w in words[p] if w in home and home[w] != p} for p in paths}


def circles_of(graph):
    """Groups of files that reach each other (Tarjan's algorithm over a small graph, by reachability)."""
    reach = {}
    for start in graph:
        seen, stack = set(), [start]
        while stack:
            for q in graph[stack.pop()] - seen:
                seen.add(q)
                stack.append(q)
        reach[start] = seen
    groups = {frozenset(q for q in reach[p] if p in reach[q]) for p in graph if p in reach[p]}
    return [sorted(p.stem for p in g) for g in groups]


def layers_of(graph):
    """Length of the longest chain of files, each using the next; a circle counts as one place."""
    depth, active = {}, set()

    def walk(p):
        if p in depth:
            return depth[p]
        if p in active:
            return 0
        active.add(p)
        depth[p] = 1 + max((walk(q) for q in graph[p]), default=0)
        active.discard(p)
        return depth[p]

    return max((walk(p) for p in graph), default=0)


def show_modules():
    print(f"{'module':25} {'.c':>4} {'.h':>4} {'layers':>7}  circles")
    for module in [*(f"core/{m}" for m in CORE), *OUTSIDE]:
        own = sorted((ROOT / module).glob("*.c"))
        graph = graph_of(own)
        circles = "; ".join(" ↔ ".join(c) for c in circles_of(graph))
        print(f"{module:25} {len(own):4} {len(list((ROOT / module).glob('*.h'))):4} {layers_of(graph):7}  {circles or '–'}")


def functions():
    """Every function of core and native: its file, its name, and how many parameters it takes."""
    return [(p, m[1], parameters(m[2])) for p in sources("core", "native") for m in ANY_DEFINITION.finditer(plain(p))]


def public_functions(tier):
    """The functions that headers of "tessera" or of "sys" declare, and how many parameters each takes."""
    return {m[1]: parameters(m[2]) for p in PUBLIC if p.parent.name == tier for m in DECLARATION.finditer(plain(p))}


def checks():
    many = [f"{p.relative_to(ROOT)}: {name} takes {n} parameters; at most {MOST_PARAMETERS}, or a struct that says what belongs together"
            for p, name, n in functions() if n > MOST_PARAMETERS and name not in FOREIGN]
    circles = []
    for module in [*(f"core/{m}" for m in CORE), *OUTSIDE]:
        circles += [f"{module}: {' and '.join(c)} call each other" for c in circles_of(graph_of(sorted((ROOT / module).glob("*.c"))))]
    first = [p for p in PUBLIC if p.parent.name == "tessera"]
    live = [p for p in first if p.is_relative_to(LIVE_HEADERS) or p.stem.startswith("comm_")]
    large = []
    for library, headers in (("libtessera", [p for p in first if p not in live]), ("live state dicts", live)):
        count = len({m[1] for p in headers for m in DECLARATION.finditer(plain(p))})
        if count > MOST_PUBLIC[library]:
            large.append(f"{library}: tessera/*.h declare {count} functions; at most {MOST_PUBLIC[library]}, or move what programs do not call to tessera/sys")
    return [("few parameters", many), ("no circles", circles), ("few public functions", large), ("public functions are used", uncalled())]


def uncalled():
    """A function of tessera/*.h is what a sample or the command line calls; a value that no sample makes is declared in tessera/sys."""
    callers = [*(ROOT / "samples").rglob("*.c"), *(ROOT / "native/cli").rglob("*.c"), *(p for p in PUBLIC if p.parent.name == "tessera")]
    words = collections.Counter(w for p in callers for w in set(re.findall(r"\w+", plain(p))))
    return [f"{name}: no sample calls it, nor does the command line; declare it in tessera/sys"
            for p in PUBLIC if p.parent.name == "tessera" and not p.is_relative_to(LIVE_HEADERS) and not p.stem.startswith("comm_")
            for name in (m[1] for m in DECLARATION.finditer(plain(p))) if words[name] < 2]


def served():
    """External function of core and native → the other files of core, native and wasm that name it."""
    words = {p: set(re.findall(r"\w+", plain(p))) for p in sources("core", "native", "wasm")}
    homes = {m[1]: p for p in sources("core", "native") for m in DEFINITION.finditer(plain(p))}
    return {name: [p for p in words if name in words[p] and p != home and p.suffix == ".c"] for name, home in homes.items()}


def show_functions():
    every = functions()
    users = served()
    for tier in ("tessera", "sys"):
        headers = [p for p in PUBLIC if p.parent.name == tier]
        public = public_functions(tier)
        print(f"public functions in {'tessera/' if tier == 'tessera' else 'tessera/sys/'}: {len(public)} in {len(headers)} headers; "
              f"with more than {MOST_PARAMETERS} parameters: {sum(n > MOST_PARAMETERS for n in public.values())}")
    print(f"functions of core and native: {len(every)}; with more than {MOST_PARAMETERS} parameters: "
          f"{sum(n > MOST_PARAMETERS for _, _, n in every)}")
    first = public_functions("tessera")
    ones = [name for name, files in users.items() if len(files) == 1]
    print(f"external functions of core and native: {len(users)}; that serve exactly one other file: {len(ones)}, "
          f"of these in tessera/: {sum(name in first for name in ones)}")


def show():
    show_modules()
    show_functions()
