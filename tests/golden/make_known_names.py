"""Writes which names there are in the modules that checkpoints name:

    core/formats/pickle/name_filter.h     the modules, and a ribbon filter of the pairs (module, name)

Usage: python make_known_names.py LIST.json          in an environment with PyTorch 2.13 or with some numpy: lists its names
       python make_known_names.py --write LIST.json…  joins such lists

The committed filter joins what PyTorch 2.13.0 (CPU) with numpy 2.4.6 and numpy 1.26.4 list, with CPython 3.11.2. A filter never
says of a name that there is that it is missing; of one that is missing it says so in all but one of some 1,000 cases.
"""
import builtins
import importlib
import json
import pathlib
import pkgutil
import re
import sys
import warnings

OUT = pathlib.Path(__file__).resolve().parents[2] / "core/formats/pickle/name_filter.h"
MODULES = """torch torch._utils torch._tensor torch.storage torch.autograd.variable torch.amp.grad_scaler torch.random torch.return_types torch.utils.hooks
torch.nn torch.nn.parameter torch.nn.functional
numpy numpy.ma.core numpy.dtypes numpy.rec numpy.random numpy._core.multiarray numpy.core.multiarray
collections datetime decimal fractions uuid pathlib argparse copyreg _codecs""".split()
TREES = ["torch.nn.modules", "torch.optim", "numpy.random"]
SKIP = re.compile(r"test|examples|numpy\.random\.(_bounded|_common|mtrand)")
LATER = {"builtins": ["PythonFinalizationError"], "pathlib": ["UnsupportedOperation", "ntpath"], "datetime": ["UTC"]}  # not in CPython 3.11.2
ROW_BITS, WIDTH = 10, 64
WORD = 2**64 - 1


def names_of(module):
    return [name for name in dir(importlib.import_module(module)) if not (name.startswith("__") and name.endswith("__"))]


def submodules(tree):
    package = importlib.import_module(tree)
    return [tree] + [i.name for i in pkgutil.walk_packages(package.__path__, tree + ".") if not SKIP.search(i.name)]


def list_names():
    warnings.simplefilter("ignore")
    found = {"builtins": [name for name in dir(builtins) if not name.startswith("_")]}
    for module in MODULES + TREES:
        try:
            for name in submodules(module) if module in TREES else [module]:
                found[name] = names_of(name)
        except ImportError:
            continue  # the other environment has it
    return found


def fnv(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def join(paths):
    names = {module: set(more) for module, more in LATER.items()}
    for path in paths:
        for module, some in json.loads(pathlib.Path(path).read_text()).items():
            names.setdefault(module.replace("numpy.core.", "numpy._core."), set()).update(some)  # numpy 2 has both names
    return names


def mix(x):
    for _ in range(2):
        x = (x ^ x >> 32) * 0xD6E8FEB86659FD93 & WORD
    return x ^ x >> 32


def equation(pair, seed, rows):
    """The first row that the pair's hash selects, which rows from there on, and what their exclusive or must be."""
    selects = mix(fnv(pair) + seed & WORD)
    gives = mix(selects)
    return (gives >> 32) * (rows - WIDTH + 1) >> 32, selects | 1, gives % 2**ROW_BITS


def solve(pairs, seed, rows):
    """Gaussian elimination; None where the equations contradict each other."""
    selected, numbers = [0] * rows, [0] * rows
    for pair in pairs:
        row, selects, number = equation(pair, seed, rows)
        while selects and selected[row]:
            selects, number = selects ^ selected[row], number ^ numbers[row]
            zeros = (selects & -selects).bit_length() - 1 if selects else 0
            selects, row = selects >> zeros, row + zeros
        if selects:
            selected[row], numbers[row] = selects, number
        elif number:
            return None
    for row in reversed(range(rows)):
        for i in range(1, WIDTH):
            if selected[row] >> i & 1:
                numbers[row] ^= numbers[row + i]
    return numbers


def write(names):
    pairs = [f"{module} {name}" for module in sorted(names) for name in sorted(names[module])]
    rows, seed, solution = len(pairs) * 101 // 100, 0, None
    while solution is None:
        seed += 1
        solution = solve(pairs, seed, rows)
    packed = sum(number << ROW_BITS * i for i, number in enumerate(solution)).to_bytes(rows * ROW_BITS // 8 + 2, "little")
    lines = [" ".join(f"0x{byte:02x}," for byte in packed[i:i + 20]) for i in range(0, len(packed), 20)]
    OUT.write_text("/* Made by tests/golden/make_known_names.py. */\n"
                   "static const char *const modules[] = {\n" + "".join(f'    "{m}",\n' for m in sorted(names)) + "};\n"
                   f"enum {{ ROWS = {rows}, ROW_BITS = {ROW_BITS}, SEED = {seed} }};\n"
                   "static const unsigned char filter[] = {\n" + "".join(f"    {line}\n" for line in lines) + "};\n")
    print(f"{len(pairs)} names of {len(names)} modules in {len(packed)} bytes")


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        write(join(sys.argv[2:]))
    else:
        pathlib.Path(sys.argv[1]).write_text(json.dumps(list_names()))
