"""P22 and P23: what computes on the way, such as maps, dequantization and merging. Our sides write safetensors; what they wrote is
compared with what PyTorch computes of the same files."""
import json
import os
import shutil
import subprocess
import sys

from measure import Job, Side

HERE = os.path.dirname(os.path.abspath(__file__))


def peer(function, *args):
    return [sys.executable, os.path.join(HERE, "map_peers.py"), function, *map(str, args)]


def made(bench, name, function, *args):
    """Data that map_peers.FUNCTION writes, on first use."""
    path = os.path.join(bench.scratch, name)
    if not os.path.exists(path):
        subprocess.run(peer(function, path + ".new", *args), check=True, stdout=sys.stderr)
        os.rename(path + ".new", path)
    return path


def size_of(directory):
    return sum(os.path.getsize(os.path.join(directory, name)) for name in os.listdir(directory))


def mib(directory):
    return f"{size_of(directory) >> 20} MiB"


def check(function, *args):
    return lambda: subprocess.run(peer(function, *args), check=True)


def copy(bench, directory):
    """cp of the directory's model.safetensors, and the fsync that ours does too."""
    dest, remove = bench.fresh("copy")
    return Side("cp + sync", ["sh", "-c", 'cp --reflink=never "$0" "$1" && sync "$1"', os.path.join(directory, "model.safetensors"), dest], remove)


def p22(bench):
    source = made(bench, "experts", "make_experts")
    out, remove = bench.fresh("mapped.safetensors")
    theirs, remove_theirs = bench.fresh("peer_mapped.safetensors")
    document, _ = bench.fresh("map.json")
    with open(document, "w") as f:
        json.dump({"schema": "tessera.map/1", "unmatched": "keep", "rules": [
            {"from": ["layers.{layer}.experts.{expert}.gate", "layers.{layer}.experts.{expert}.up"], "to": ["layers.{layer}.gate_up"],
             "do": [{"concat": 0, "parts": 2}, {"stack": 0}, {"transpose": [0, 2, 1]}]},
            {"from": ["layers.{layer}.experts.{expert}.down"], "to": ["layers.{layer}.down"], "do": [{"stack": 0}, {"transpose": [0, 2, 1]}]}]}, f)
    return Job("P22", "mapped convert: experts joined, stacked and transposed", mib(source),
               [Side("tessera convert --map", [bench.tessera, "convert", source, out, "--map", document, "--quiet"], remove),
                Side("torch: cat, stack, transpose, save_file", peer("stack_experts", source, theirs), remove_theirs), copy(bench, source)],
               "≤ 1.6 × cp, ≤ 64 MiB", check=check("same_files", theirs, out))


def dequantization(bench, id, scheme, peer_name, target):
    source = made(bench, scheme, "make_quantized", scheme)
    out, remove = bench.fresh("wide.safetensors")
    theirs, remove_theirs = bench.fresh("peer_wide.safetensors")
    sides = [Side("tessera convert --dequantize", [bench.tessera, "convert", source, out, "--dequantize", "--quiet"], remove),
             Side(peer_name, peer("dequantize", scheme, source, theirs), remove_theirs), copy(bench, source)]
    bare, remove_bare = bench.fresh("only_written")
    sides.append(Side("write the result's bytes + sync", peer("write_only", theirs, bare), remove_bare))
    written, remove_copy = bench.fresh("wide_copy")
    sides.append(Side("cp + sync of the result", ["sh", "-c", 'cp --reflink=never "$0" "$1" && sync "$1"', theirs, written], remove_copy))
    return Job(id, f"{scheme} → bfloat16", mib(source), sides, target, check=check("same_files", theirs, out))


def p23_fp8(bench):
    return dequantization(bench, "P23", "fp8-block", "QuantizedHuggingFaceStorageReader + save_file", "≥ 0.5 × cp's rate of bytes read")


def p23_mxfp4(bench):
    return dequantization(bench, "P23b", "mxfp4", "torch: unpack, multiply, save_file", "≥ 0.5 × cp's rate")


def p23_nvfp4(bench):
    return dequantization(bench, "P23c", "nvfp4", "torch: unpack, multiply, save_file", "≥ 0.5 × cp's rate")


def packed(scheme):
    """Numbers that other libraries unpack. tests/interop compares the results with theirs; here only the time counts."""
    def make(bench):
        source = made(bench, scheme, "make_packed", scheme)
        result = os.path.join(bench.scratch, scheme + ".plain")
        convert = lambda dest: [bench.tessera, "convert", source, dest, "--dequantize", "--quiet"]
        if not os.path.exists(result):
            os.makedirs(result)
            subprocess.run(convert(os.path.join(result, "model.safetensors")), check=True)
        out, remove = bench.fresh("plain.safetensors")
        return Job("P23e", f"{scheme} → bfloat16", f"{mib(source)} → {mib(result)}", [Side("tessera convert --dequantize", convert(out), remove), copy(bench, result)],
                   "≥ 0.5 × cp's rate of the larger side", metric="cpu")
    return make


def find_mergekit():
    return os.environ.get("TESSERA_MERGEKIT") or shutil.which("mergekit-yaml")


def p23_merge(bench):
    one, two = (made(bench, f"model{seed}", "make_llama", seed) for seed in (1, 2))
    out, remove = bench.fresh("merged.safetensors")
    theirs, remove_theirs = bench.fresh("peer_merged")
    plain, _ = bench.fresh("sum.safetensors")
    reads, remove_reads = bench.fresh("read_both")
    sides = [Side("tessera merge", [bench.tessera, "merge", out, one, two, "--method", "linear", "--weight", "0.7", "--weight", "0.3", "--quiet"], remove),
             Side("torch: safe_open, sum, save_file", peer("merge", one, two, plain), bench.fresh("sum.safetensors")[1])]
    if find_mergekit():
        recipe, _ = bench.fresh("mergekit.yml")
        with open(recipe, "w") as f:
            json.dump({"merge_method": "linear", "dtype": "bfloat16", "models": [{"model": one, "parameters": {"weight": 0.7}}, {"model": two, "parameters": {"weight": 0.3}}]}, f)
        sides.append(Side("mergekit-yaml (whole program)", [find_mergekit(), recipe, theirs], remove_theirs))
    else:
        print("P23d: mergekit is not measured: no mergekit-yaml on PATH or in TESSERA_MERGEKIT", file=sys.stderr)
    sides.append(Side("read both, write one + sync", ["sh", "-c", 'cat "$1" > /dev/null && cp --reflink=never "$0" "$2" && sync "$2"',
                                                      *(os.path.join(m, "model.safetensors") for m in (one, two)), reads], remove_reads))
    return Job("P23d", "merge --method linear of two checkpoints", f"2 × {mib(one)}", sides, "≤ 1.3 × reading both and writing one",
               check=check("close_files", plain, out))


JOBS = {"P22": [p22], "P23": [p23_fp8, p23_mxfp4, p23_nvfp4, p23_merge],
        "P23e": [packed(s) for s in ("pack-quantized", "gptq", "gptq-ordered", "awq", "nf4", "fp4", "bnb-int8", "deepseek-v4", "int8",
                                          "fp8-blocks", "mxfp4-weights", "nvfp4-weights")]}
