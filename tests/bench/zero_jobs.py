"""P19: checkpoints of DeepSpeed and Megatron-Core against those libraries' own tools. TESSERA_FRAMEWORKS names a Python that has
deepspeed, megatron-core and safetensors; `run.py --mib` the size of the data."""
import os
import subprocess
import sys

from measure import Job, Side

HERE = os.path.dirname(os.path.abspath(__file__))
RANKS = 8
TARGET = "≤ 1.3 × cp, ≤ 64 MiB"


def peer(function, *args):
    return [os.environ["TESSERA_FRAMEWORKS"], os.path.join(HERE, "zero_peers.py"), function, *map(str, args)]


def missing():
    return None if os.environ.get("TESSERA_FRAMEWORKS") else "TESSERA_FRAMEWORKS names no Python with deepspeed and megatron-core"


def made(bench, name, function, *args):
    """Data that zero_peers.FUNCTION writes, on first use."""
    path = os.path.join(bench.scratch, f"{name}_{bench.mib}")
    if not os.path.exists(path):
        subprocess.run(peer(function, path + ".new", bench.mib, *args), check=True, stdout=sys.stderr)
        os.rename(path + ".new", path)
    return path


def mib(path):
    return f"{sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(path) for f in fs) >> 20} MiB"


def check(function, *args):
    return lambda: subprocess.run(peer(function, *args), check=True, stdout=sys.stderr)


def copy(bench, name, source):
    """cp and the fsync that ours does too: of the peer's result, which has as many bytes as are read and written."""
    dest, remove = bench.fresh("copy")
    return Side(name, ["sh", "-c", 'cp -r --reflink=never "$0" "$1" && find "$1" -type f -exec sync {} +', source, dest], remove)


def to_safetensors(bench, id, what, source, options, side):
    """One file of both; a function of zero_peers, and what it is called in the table. The peer goes first: cp takes its result."""
    function, name = side
    out, remove = bench.fresh("out.safetensors")
    theirs, remove_theirs = bench.fresh("theirs.safetensors")
    return Job(id, what, f"{mib(source)}, {RANKS} ranks",
               [Side("tessera convert", [bench.tessera, "convert", source, out, *options, "--quiet"], remove, ours=True),
                Side(name, peer(function, source, theirs), remove_theirs), copy(bench, "cp + sync of the result", theirs)], TARGET,
               check=check("same_files", theirs, out))


def p19(bench):
    if missing():
        return missing()
    return to_safetensors(bench, "P19", "ZeRO-3 → safetensors", made(bench, "zero3", "make_zero3", RANKS), ["--part", "model"],
                          ("zero_to_fp32", "zero_to_fp32"))


def p19_universal(bench):
    source = made(bench, "zero3", "make_zero3", RANKS)
    out, remove = bench.fresh("universal")
    theirs, remove_theirs = bench.fresh("theirs_universal")
    return Job("P19b", "ZeRO-3 → universal", f"{mib(source)}, {RANKS} ranks",
               [Side("tessera convert", [bench.tessera, "convert", source, out, "--to", "deepspeed-universal", "--quiet"], remove, ours=True),
                Side("ds_to_universal", peer("ds_to_universal", source, theirs), remove_theirs), copy(bench, "cp + sync of the source", source)],
               "≤ 1.5 × cp, ≤ 64 MiB", check=check("same_universal", theirs, out))


def p19_torch_dist(bench):
    return to_safetensors(bench, "P19c", "torch_dist → safetensors", made(bench, "torch_dist", "make_torch_dist", RANKS),
                          ["--objects", "drop"], ("load_and_save", "load_plain_tensors + save_file"))


JOBS = {"P19": [p19, p19_universal, p19_torch_dist]}
