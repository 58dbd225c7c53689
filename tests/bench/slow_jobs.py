"""Threads on slow files: reads wait as on a file server (slow_files.c), so that what is measured is how work is dealt to threads, on
any number of cores."""
import os

from measure import Job, Side

THREADS = (1, 2, 4, 8, 16)
RENAME = '{"schema": "tessera.map/1", "rules": [{"from": ["{rest...}"], "to": ["renamed.{rest...}"]}]}'
LATENCY_US, BYTES_PER_S = 4000, 200_000_000


def environment(bench, path, threads, queue):
    """The program's environment, as arguments of env; `queue`: each file is on one server, which sends one thing after another."""
    return ["env", f"LD_PRELOAD={os.path.join(bench.build, 'bin', 'slow_files.so')}", f"SLOW_PATH={os.path.realpath(path)}",
            f"SLOW_LATENCY_US={LATENCY_US}", f"SLOW_BYTES_PER_S={BYTES_PER_S // 4 if queue else BYTES_PER_S}", f"SLOW_QUEUE={int(queue)}",
            f"SLOW_CORES={threads}"]


def by_threads(bench, name, source, command, before=None, queue=False):
    """The same command on 1 to 16 threads; the first is what the others are compared with."""
    directory = source if os.path.isdir(source) else os.path.dirname(source)
    return [Side(f"{name}, {n} thread{'s' if n > 1 else ''}", [*environment(bench, directory, n, queue), *command, "--threads", str(n)], before, ours=n > 1)
            for n in THREADS]


def jobs(bench, dcp, safetensors, torch):
    """Each source is in a directory of its own, which alone is slow."""
    target = "N threads ≥ N / 1.2 × faster than one"
    out, remove = bench.fresh("slow_out.safetensors")
    directory, remove_directory = bench.fresh("slow_out")
    made = []
    for form, source in (("DCP", dcp), ("safetensors", safetensors), ("torch.save", torch)):
        size = f"{form}, {LATENCY_US / 1000:g} ms and {BYTES_PER_S // 10**6} MB/s for each read"
        made.append(Job("SLOW", f"validate --deep of slow files: {form}", size, by_threads(bench, "validate --deep", source, [bench.tessera, "validate", source, "--deep", "--quiet"]), target))
        made.append(Job("SLOW", f"manifest of slow files: {form}", size, by_threads(bench, "manifest", source, [bench.tessera, "manifest", source]), target))
    size = f"DCP, {LATENCY_US / 1000:g} ms and {BYTES_PER_S // 10**6} MB/s for each read"
    made.append(Job("SLOW", "convert slow files to safetensors", size, by_threads(bench, "convert", dcp, [bench.tessera, "convert", dcp, out, "--objects", "drop", "--quiet"], remove), target))
    names, _ = bench.fresh("slow_map.json")
    with open(names, "w") as f:
        f.write(RENAME)
    made.append(Job("SLOW", "convert slow files through a map", size,
                    by_threads(bench, "convert --map", dcp, [bench.tessera, "convert", dcp, out, "--map", names, "--objects", "drop", "--quiet"], remove), target))
    made.append(Job("SLOW", "reshard slow files to 3 ranks, rows", size,
                    by_threads(bench, "reshard", dcp, [bench.tessera, "reshard", dcp, directory, "--mesh", "3", "--placements", "shard(0)", "--quiet"], remove_directory), target))
    size = f"DCP of 4 files, 4 ms for each read and {BYTES_PER_S // 4 // 10**6} MB/s for each file"
    made.append(Job("SLOW", "validate --deep, each file on a server of its own", size,
                    by_threads(bench, "validate --deep", dcp, [bench.tessera, "validate", dcp, "--deep", "--quiet"], queue=True), "≥ 4 × faster from 4 threads on"))
    return made
