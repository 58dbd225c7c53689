"""More files than the process may have open (ulimit -n): stores and outputs close those that nobody uses."""
import filecmp
import json
import os
import resource
import struct
import subprocess

from harness import need, st_write, test

FILES = 200


def sharded(directory):
    """An index of FILES safetensors files, with a tensor in each."""
    os.makedirs(directory)
    names = [f"model-{i + 1:05}-of-{FILES:05}.safetensors" for i in range(FILES)]
    for i, name in enumerate(names):
        st_write(os.path.join(directory, name), {f"layers.{i}.w": ("F32", [2, 2], struct.pack("<4f", i, i + .25, -i, i * i))})
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": 16 * FILES}, "weight_map": {f"layers.{i}.w": name for i, name in enumerate(names)}}, f)
    return directory


def run(t, limit, *args):
    """Runs the program where it may have so many files open."""
    p = subprocess.run([t.path, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
    need(p.returncode == 0, f"`tessera {' '.join(args)}` with {limit} descriptors: {p.stderr.decode()[-300:]}")
    return p.stdout


def same_tree(a, b):
    files = sorted(os.listdir(a))
    return sorted(os.listdir(b)) == files and filecmp.cmpfiles(a, b, files, shallow=False)[0] == files


@test
def test_many_files_are_read_and_written_with_few_descriptors(t):
    a = sharded(t.at("a"))
    jobs = {"file": ("convert", a, "@", "--to", "safetensors"), "shards": ("convert", a, "@", "--max-shard-size", "16B"), "copy": ("cp", a, "@"),
            "dcp": ("reshard", a, "@", "--mesh", "100", "--placements", "shard(0)", "--to", "dcp"),
            "ranks": ("reshard", a, "@", "--mesh", "100", "--placements", "shard(0)", "--to", "torch")}
    for name, job in jobs.items():
        few, many = t.at(name), t.at(name + "-unlimited")
        run(t, 64, *(few if word == "@" else word for word in job))
        t.run(*(many if word == "@" else word for word in job))
        need(same_tree(few, many) if os.path.isdir(few) else filecmp.cmp(few, many, shallow=False), f"{name}: other bytes")
    for args in (("validate", "--deep", a), ("validate", "--deep", t.at("shards")), ("diff", "--values", a, t.at("shards")), ("manifest", a)):
        need(run(t, 64, *args) == t.run(*args).stdout, f"{args}: prints something else")


@test
def test_many_checkpoints_of_many_files_are_merged_with_few_descriptors(t):
    """Each of the inputs has fewer files than one checkpoint may keep open."""
    a = sharded(t.at("a"))
    run(t, 128, "merge", t.at("sum.safetensors"), *[a] * 20, "--method", "linear")
    t.run("convert", a, t.at("whole.safetensors"))
    t.run("diff", t.at("sum.safetensors"), t.at("whole.safetensors"), "--rtol", "1e-6")
