"""The jobs of the table: ours, the peer, the physical limit. `all_jobs(bench)` makes those whose data can be made."""
import functools
import os
import shutil
import subprocess
import sys

import cold_jobs
import many_jobs
import map_jobs
import remote_jobs
import slow_jobs
import store_jobs
import sum_jobs
import zero_jobs
from data import write_once, write_safetensors
from measure import Job, Side

HERE = os.path.dirname(os.path.abspath(__file__))


class Bench:
    """Paths of one run: the built programs, a scratch directory, the sample data."""

    def __init__(self, build, samples, scratch, mib):
        self.tessera = os.path.join(build, "bin", "tessera")
        self.build, self.samples, self.scratch, self.mib = build, samples, scratch, mib

    def program(self, name, *args):
        return [os.path.join(self.build, "bin", name), *map(str, args)]

    def peer(self, function, *args):
        return [sys.executable, os.path.join(HERE, "peers.py"), function, *map(str, args)]

    def sample(self, name):
        """A large sample, made on first use."""
        path = os.path.join(self.samples, name)
        if not os.path.exists(path):
            maker = os.path.join(HERE, "..", "..", "samples", "make_checkpoints.py")
            subprocess.run([sys.executable, maker, "--out", self.samples, name], check=True, stdout=sys.stderr)
        return path

    def fresh(self, name):
        """A path in scratch, and the function that empties it before a run."""
        path = os.path.join(self.scratch, name)

        def remove():
            if os.path.isdir(path):
                shutil.rmtree(path)
            elif os.path.exists(path):
                os.unlink(path)
        return path, remove


def size_of(path):
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(path) for f in fs)


def mib(path):
    return f"{size_of(path) / 2**20:.0f} MiB"


def copy_limit(bench, source):
    """cp, and the fsync that ours does too."""
    dest, remove = bench.fresh("copy")
    return Side("cp + sync", ["sh", "-c", 'cp -r --reflink=never "$0" "$1" && find "$1" -type f -exec sync {} +', source, dest], remove)


def p1(bench):
    d = bench.sample("large_metadata")
    return Job("P1", "open a DCP of 1,000,000 chunks", mib(os.path.join(d, ".metadata")) + " .metadata",
               [Side("tessera (whole program)", bench.program("bench_open", d)),
                Side("FileSystemReader.read_metadata", bench.peer("read_metadata", d))], "≥ 40× less CPU", metric="cpu")


def p2(bench):
    d = os.path.join(HERE, "..", "..", "samples", "checkpoints", "dcp_fsdp2")
    return Job("P2", "list a small DCP, whole programs", "samples/checkpoints/dcp_fsdp2",
               [Side("tessera inspect", [bench.tessera, "inspect", d]), Side("a Python script", bench.peer("listing", d))], "≤ 5 ms, ≤ 16 MiB")


def p3(bench):
    return Job("P3", "validate a [4096, 16384] tensor under shard(0) over 4,096 ranks", "one tensor",
               [Side("tsr_tiling_check", bench.program("bench_tiling", 4096, 4096, 16384)),
                Side("_validate_global_plan", bench.peer("validate_plan", 4096, 4096, 16384))], "≥ 5,000×")


def p4(bench):
    what, shape = "1,024 → 512 ranks, shard(0), [8192, 1024]", (8192, 1024)
    return Job("P4", "full plan of all ranks, a tensor", what,
               [Side("tessera (of 512 tensors)", bench.program("bench_plan", "full", 1024, 512, 512, *shape)),
                Side("create_read_items_for_chunk_list", bench.peer("plan_items", 1024, 512, 1, *shape, "all"))], "≥ 200×")


def p5(bench):
    what, shape = "1,024 → 512 ranks, shard(0), 512 × [8192, 1024]", (8192, 1024)
    return Job("P5", "one rank's load plan, 512 tensors", what,
               [Side("tessera", bench.program("bench_plan", "rank", 1024, 512, 512, *shape)),
                Side("create_read_items_for_chunk_list", bench.peer("plan_items", 1024, 512, 512, *shape, "one"))], "≥ 1,000×")


def p18(bench):
    return Job("P18", "plan and totals, 100,000 ranks × 1,000 tensors", "from 1,024 ranks, shard(0), [1000000, 64]",
               [Side("tessera", bench.program("bench_plan", "totals", 1024, 100000, 1000, 1000000, 64))], "seconds, ≤ 2 GiB")


def p18_servers(bench):
    return Job("P18b", "plan, totals and loads of 1,000 servers, 100,000 ranks × 10,000 tensors", "from 1,024 ranks, shard(0), [1000000, 64]",
               [Side("tessera", bench.program("bench_plan", "servers", 1024, 100000, 10000, 1000000, 64))], "seconds, ≤ 2 GiB")


def zero_ranks(bench, ranks=256, width=512, layers=24):
    """A ZeRO-3 directory of 2 files per rank with the entries and flat buffers of DeepSpeed's, saved by PyTorch alone."""
    path = os.path.join(bench.samples, "zero3_256_ranks")
    if not os.path.exists(path):
        subprocess.run(bench.peer("make_zero3", path + ".new", ranks, width, layers), check=True, stdout=sys.stderr)
        os.rename(path + ".new", path)
    return path


def p20(bench):
    d = zero_ranks(bench)
    return Job("P20", "list a ZeRO-3 checkpoint of 512 rank files", f"{mib(d)}, 256 ranks",
               [Side("tessera inspect", [bench.tessera, "inspect", d]), Side("torch.load of each, mmap", bench.peer("load_files", d))],
               "≤ 0.1 s of CPU", metric="cpu")


def conversion(bench, id, what, source, form, dest, peer, check=None):
    out, remove = bench.fresh(dest)
    theirs, remove_theirs = bench.fresh("peer_" + dest)
    objects = ["--objects", "drop"] if form == "safetensors" else []
    return Job(id, what, mib(source),
               [Side("tessera convert", [bench.tessera, "convert", source, out, "--to", form, *objects, "--quiet"], remove),
                Side(peer, bench.peer(peer, source, theirs), remove_theirs), copy_limit(bench, source)], "≤ 1.15 × cp, ≤ 64 MiB",
               check=check and (lambda: subprocess.run(bench.peer(check, source, out), check=True)))


def p8(bench):
    return conversion(bench, "P8", "DCP → safetensors", bench.sample("large_dcp_rows"), "safetensors", "out.safetensors", "dcp_to_safetensors", "same_tensors")


def p8_torch(bench):
    return conversion(bench, "P8b", "DCP → torch.save", bench.sample("large_dcp_rows"), "torch", "out.pt", "dcp_to_torch")


def torch_file(bench):
    d = bench.sample("large_torch")
    return os.path.join(d, next(n for n in os.listdir(d) if n.endswith(".pt")))


def p9_dcp(bench):
    return conversion(bench, "P9", "torch.save → DCP", torch_file(bench), "dcp", "out_dcp", "torch_to_dcp")


def p9_safetensors(bench):
    return conversion(bench, "P9b", "torch.save → safetensors", torch_file(bench), "safetensors", "of_torch.safetensors", "torch_to_safetensors")


def sharded(bench, ranks, placement):
    """The large sample as safetensors of many ranks."""
    path, _ = bench.fresh(f"shards{ranks}")
    if not os.path.exists(path):
        subprocess.run([bench.tessera, "reshard", bench.sample("large_dcp_rows"), path, "--mesh", str(ranks), "--placements", placement, "--to", "safetensors",
                        "--objects", "drop", "--quiet"], check=True)
    return path


def merge(bench, id, what, source, target):
    out, remove = bench.fresh("merged.safetensors")
    theirs, remove_theirs = bench.fresh("consolidated")
    return Job(id, what, mib(source),
               [Side("tessera convert", [bench.tessera, "convert", source, out, "--quiet"], remove),
                Side("consolidate_safetensors_files", bench.peer("consolidate", source, theirs), remove_theirs), copy_limit(bench, source)], target,
               check=lambda: subprocess.run(bench.peer("same_tensors", bench.sample("large_dcp_rows"), out), check=True))


def p6(bench):
    return merge(bench, "P6", "merge the safetensors of 8 ranks, cut by rows", sharded(bench, 8, "shard(0)"), "≤ 1.1 × cp, ≤ 64 MiB")


def p7(bench):
    return merge(bench, "P7", "merge the safetensors of 64 ranks, cut by columns", sharded(bench, 64, "shard(1)"), "≤ 1.6 × cp")


def reshard(bench, id, ranks):
    source = bench.sample("large_dcp_rows")
    out, remove = bench.fresh(f"resharded{ranks}")
    theirs, remove_theirs = bench.fresh(f"peer_resharded{ranks}")
    sides = [Side("tessera reshard", [bench.tessera, "reshard", source, out, "--mesh", str(ranks), "--placements", "shard(0)", "--quiet"], remove),
             Side("dcp.load + dcp.save over gloo", bench.peer("reshard_dcp", source, theirs, ranks), remove_theirs), copy_limit(bench, source)]
    return Job(id, f"reshard 8 → {ranks} ranks, rows", mib(source), sides, "≤ 1.3 × cp",
               check=lambda: subprocess.run(bench.peer("equal_dcp", source, out), check=True, stdout=subprocess.DEVNULL))


def p10(bench):
    return reshard(bench, "P10", 3)


def p10_even(bench):
    return reshard(bench, "P10b", 4)


def large_safetensors(bench, rows=8192, columns=1024):
    """2 GiB of float32 (--mib), made in the scratch directory."""
    def write(path):
        size = 4 * rows * columns
        count, block = bench.mib * 2**20 // size, os.urandom(size)
        write_safetensors(path, ((f"layers.{i}.weight", [rows, columns]) for i in range(count)), (block[i:] + block[:i] for i in range(count)))
    return write_once(bench.fresh("large.safetensors")[0], write)


def rows_of_eight(bench):
    """The 2 GiB as a DCP of 8 ranks, cut by rows."""
    path, _ = bench.fresh("rows_of_eight")
    if not os.path.exists(path):
        subprocess.run([bench.tessera, "reshard", large_safetensors(bench), path, "--mesh", "8", "--placements", "shard(0)", "--to", "dcp", "--quiet"], check=True)
    return path


def columns(bench, id, what, mesh, placements):
    source, (out, remove) = rows_of_eight(bench), bench.fresh("columns")
    command = [bench.tessera, "reshard", source, out, "--mesh", mesh, "--placements", placements, "--quiet"]
    return Job(id, what, mib(source), [*by_threads("reshard", command, remove), copy_limit(bench, source)], "one thread ≤ 1.5 × cp, two free cores ≤ 0.9 ×",
               check=lambda: subprocess.run([bench.tessera, "diff", source, out, "--values", "--quiet"], check=True))


def p21(bench):
    return columns(bench, "P21", "reshard rows of 8 ranks to columns of 4", "tp=4", "shard(1)")


def p21_mesh(bench):
    return columns(bench, "P21b", "reshard rows of 8 ranks to a mesh of rows and columns, 2 × 4", "dp=2,tp=4", "shard(0),shard(1)")


def p10_processes(bench):
    if not shutil.which("mpirun") or not os.path.exists(bench.tessera + "-mpi"):
        return "there is no Open MPI"
    source = large_safetensors(bench)
    one, remove_one = bench.fresh("resharded")
    two, remove_two = bench.fresh("resharded_by_two")
    arguments = ["--mesh", "dp=3", "--placements", "shard(0)", "--to", "dcp", "--quiet"]
    launcher = ["env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "mpirun", "--oversubscribe", "--bind-to", "none", "-n", "2"]
    return Job("P10c", "reshard to 3 ranks by two processes (the seconds of mpirun and MPI_Init included)", mib(source),
               [Side("mpirun -n 2 tessera reshard", [*launcher, bench.tessera, "reshard", source, two, *arguments], remove_two),
                Side("one process, one thread", [bench.tessera, "reshard", source, one, *arguments, "--threads", "1"], remove_one),
                Side("one process, all cores", [bench.tessera, "reshard", source, one, *arguments], remove_one),
                copy_limit(bench, source)], "≥ 1.6 × faster than one, where the disk allows",
               check=lambda: subprocess.run(["diff", "-r", one, two], check=True))


def by_threads(name, command, before=None):
    """The same command on one thread and on two."""
    return [Side(f"{name}, {'two threads' if threads == 2 else 'one thread'}", [*command, "--threads", str(threads)], before, ours=True)
            for threads in (1, 2)]


def every_byte(bench, id, what, source, peers):
    """What reads every byte once, against cat of the same files."""
    files = [source] if os.path.isfile(source) else [os.path.join(source, f) for f in sorted(os.listdir(source))]
    return Job(id, what, mib(source),
               [*by_threads("validate --deep", [bench.tessera, "validate", source, "--deep", "--quiet"]),
                *by_threads("manifest", [bench.tessera, "manifest", source]), *peers,
                Side("cat > /dev/null", ["sh", "-c", 'exec cat "$@" >/dev/null', "cat", *files])],
               "one thread ≤ 1.5 × cat, two free cores ≤ 0.8 ×")


def p11(bench):
    d = bench.sample("large_dcp_rows")
    return every_byte(bench, "P11", "every byte of a DCP: zip, pickle, CRC, NaN; digests", d, [Side("torch.load of every item", bench.peer("load_items", d))])


def p11_safetensors(bench):
    path, _ = bench.fresh("every_byte.safetensors")
    if not os.path.exists(path):
        subprocess.run([bench.tessera, "convert", bench.sample("large_dcp_rows"), path, "--objects", "drop", "--quiet"], check=True)
    return every_byte(bench, "P11b", "every byte of a safetensors file: NaN; digests", path, [])


def slow(bench, number):
    """One of the jobs of slow_jobs.py, on the same tensors in three forms."""
    dcp = bench.sample("large_dcp_rows")
    made = []
    for form, suffix in (("safetensors", ".safetensors"), ("torch", ".pt")):
        directory, _ = bench.fresh("slow_" + form)
        path = os.path.join(directory, "model" + suffix)
        if not os.path.exists(path):
            os.makedirs(directory, exist_ok=True)
            objects = ["--objects", "drop"] if form == "safetensors" else []
            subprocess.run([bench.tessera, "convert", dcp, path, "--to", form, *objects, "--quiet"], check=True)
        made.append(path)
    return slow_jobs.jobs(bench, dcp, *made)[number]


def cold_deep(bench):
    d = bench.sample("large_dcp_rows")
    return cold_jobs.job(bench, "COLD", "validate --deep", d, by_threads("validate --deep", [bench.tessera, "validate", d, "--deep", "--quiet"]), "as fast as the disk")


def cold_convert(bench):
    d, (out, remove) = bench.sample("large_dcp_rows"), bench.fresh("out.safetensors")
    command = [bench.tessera, "convert", d, out, "--objects", "drop", "--quiet"]
    return cold_jobs.job(bench, "COLDb", "convert DCP → safetensors", d, [*by_threads("convert", command, remove), copy_limit(bench, d)], "≤ 1.15 × cp",
                         check=lambda: subprocess.run(bench.peer("same_tensors", d, out), check=True))


def cold_reshard(bench, id, what, placements):
    d, (out, remove) = bench.sample("large_dcp_rows"), bench.fresh("resharded_cold")
    command = [bench.tessera, "reshard", d, out, "--mesh", "3", "--placements", placements, "--quiet"]
    return cold_jobs.job(bench, id, what, d, [*by_threads("reshard", command, remove), copy_limit(bench, d)], "≤ 1.3 × cp",
                         check=lambda: subprocess.run(bench.peer("equal_dcp", d, out), check=True, stdout=subprocess.DEVNULL))


def cold_rows(bench):
    return cold_reshard(bench, "COLDc", "reshard to 3 ranks, rows", "shard(0)")


def cold_columns(bench):
    return cold_reshard(bench, "COLDd", "reshard to 3 ranks, columns", "shard(1)")


def value_diff(bench, id, what, a, b):
    """Ours reads a and b; cmp, which cannot see through sharding, reads a and a copy of it."""
    copy, _ = bench.fresh("other_dcp")
    if not os.path.exists(copy):
        shutil.copytree(a, copy)
    compared = " && ".join(f"cmp {a}/{f} {copy}/{f}" for f in sorted(os.listdir(a)))
    b = b or copy
    return Job(id, what, mib(a),
               [Side("tessera diff --values", [bench.tessera, "diff", a, b, "--values", "--quiet"]),
                Side("load both + torch.equal", bench.peer("equal_dcp", a, b)), Side("cmp", ["sh", "-c", compared])], "≤ 1.15 × cmp")


def p12(bench):
    return value_diff(bench, "P12", "diff --values of two equal checkpoints, same sharding", bench.sample("large_dcp_rows"), None)


def p12_resharded(bench):
    rows = bench.sample("large_dcp_rows")
    columns, _ = bench.fresh("columns_dcp")
    if not os.path.exists(columns):
        subprocess.run([bench.tessera, "reshard", rows, columns, "--mesh", "dp=8", "--placements", "shard(1)", "--quiet"], check=True)
    return value_diff(bench, "P12b", "diff --values of one model under two shardings (rows, columns)", rows, columns)


def p14(bench):
    d = bench.sample("large_safetensors_names")
    f = os.path.join(d, next(n for n in os.listdir(d) if n.endswith(".safetensors"))) if os.path.isdir(d) else d
    return Job("P14", "open a safetensors header of 1,000,000 tensors", mib(f),
               [Side("tessera (whole program)", bench.program("bench_open", f)),
                Side("safe_open + keys", bench.peer("open_safetensors", f))], "≤ 1 s, ≤ 3 × header")


def no_gpu(bench):
    """Why the jobs of a GPU cannot run here, or None."""
    probe = subprocess.run(bench.program("bench_gpu", "probe"), capture_output=True, text=True)
    return None if probe.returncode == 0 else probe.stderr.strip()


def p17_shard(bench):
    rows, columns, parts = 16384, 32768, 2
    return no_gpu(bench) or Job("P17", f"half the columns of [{rows}, {columns}] float32 off the device", "1 GiB",
                                [Side("tessera", bench.program("bench_gpu", "shard", rows, columns, parts)),
                                 Side("one pinned copy", bench.program("bench_gpu", "copy", rows * columns // parts * 4))], "≥ 0.9 × the copy")


def p17_narrow(bench):
    rows, columns, parts = 1048576, 1024, 16
    return no_gpu(bench) or Job("P17b", f"a 16th of the columns of [{rows}, {columns}] float32 off the device, rows of 256 bytes", "256 MiB",
                                [Side("tessera", bench.program("bench_gpu", "shard", rows, columns, parts)),
                                 Side("one pinned copy", bench.program("bench_gpu", "copy", rows * columns // parts * 4))], "≥ 0.9 × the copy")


def p17_pieces(bench, size=8192, count=65536):
    return no_gpu(bench) or Job("P17c", f"{count} pieces of {size} bytes off the device", f"{size * count >> 20} MiB",
                                [Side("tessera, one call", bench.program("bench_gpu", "pieces", size, count)),
                                 Side("a copy each", bench.program("bench_gpu", "batch", size, count)),
                                 Side("one pinned copy", bench.program("bench_gpu", "copy", size * count))], "≥ 5 × copies, ≥ 0.9 × the copy")


def p17_load(bench):
    reason = no_gpu(bench)
    if reason:
        return reason
    f, _ = bench.fresh("load.safetensors")
    if not os.path.exists(f):
        subprocess.run([bench.tessera, "convert", bench.sample("large_dcp_rows"), f, "--to", "safetensors", "--objects", "drop", "--quiet"], check=True)
    return Job("P17d", "a safetensors file into device memory", mib(f),
               [Side("tessera", bench.program("bench_gpu", "load", f)),
                Side("safetensors.torch.load_file(device='cuda')", bench.peer("safetensors_to_cuda", f)),
                Side("one pinned copy", bench.program("bench_gpu", "copy", size_of(f)))], "as fast as the pinned copy")


def python_load(bench, id, what, path, peer):
    """The same dcp.load of PyTorch with our reader and with its own, into tensors that are there already."""
    subprocess.run([os.path.join(HERE, "..", "..", "native", "python", "install")], check=True, stdout=sys.stderr)
    sums, _ = bench.fresh("sums")
    os.makedirs(sums, exist_ok=True)
    os.environ["TESSERA_BENCH_SUMS"] = sums

    def check():
        values = [open(os.path.join(sums, name)).read() for name in ("tessera", peer)]
        if values[0] != values[1]:
            raise RuntimeError(f"the two readers loaded other bytes: {values}")
    files = [path] if os.path.isfile(path) else [os.path.join(path, f) for f in sorted(os.listdir(path))]
    return Job(id, what, mib(path), [Side("tessera.torch.StorageReader", bench.peer("dcp_load", "tessera", path)),
                                     Side(peer, bench.peer("dcp_load", peer, path)),
                                     Side("cat > /dev/null", ["sh", "-c", 'cat "$@" >/dev/null', "cat", *files])], "≤ 0.8 × its own", check)


def py_dcp(bench):
    return python_load(bench, "PY", "dcp.load of a DCP directory into tensors", bench.sample("large_dcp_rows"), "FileSystemReader")


def py_safetensors(bench):
    rows, directory = bench.sample("large_dcp_rows"), bench.fresh("hf")[0]
    if not os.path.exists(directory):
        os.makedirs(directory)
        subprocess.run([bench.tessera, "convert", rows, os.path.join(directory, "model.safetensors"), "--to", "safetensors", "--objects", "drop", "--quiet"], check=True)
    return python_load(bench, "PYb", "dcp.load of safetensors into tensors", directory, "HuggingFaceStorageReader")


def py_save(bench):
    """The same dcp.save of PyTorch with our writer and with its own; both sync their files."""
    subprocess.run([os.path.join(HERE, "..", "..", "native", "python", "install")], check=True, stdout=sys.stderr)
    source = bench.sample("large_dcp_rows")
    (out, remove), (theirs, remove_theirs) = bench.fresh("saved"), bench.fresh("peer_saved")
    return Job("PYc", "dcp.save of tensors, files synced", mib(source),
               [Side("tessera.torch.StorageWriter", bench.peer("dcp_save", "tessera", source, out), remove),
                Side("FileSystemWriter", bench.peer("dcp_save", "FileSystemWriter", source, theirs), remove_theirs), copy_limit(bench, source)],
               "≤ 1.0 × its own", check=lambda: subprocess.run([bench.tessera, "diff", theirs, out, "--values", "--quiet"], check=True))


def py_save_safetensors(bench, id="PYd", joined=False):
    """The same as safetensors: whole tensors, or shards and the whole tensors that they are joined to."""
    subprocess.run([os.path.join(HERE, "..", "..", "native", "python", "install")], check=True, stdout=sys.stderr)
    source = bench.sample("large_dcp_rows")
    (out, remove), (theirs, remove_theirs) = bench.fresh("saved"), bench.fresh("peer_saved")
    how = ["joined"] if joined else []
    return Job(id, f"dcp.save as safetensors, {'shards and ' * joined}whole tensors", mib(source),
               [Side("tessera.torch.StorageWriter", bench.peer("dcp_save", "safetensors", source, out, *how), remove),
                Side("HuggingFaceStorageWriter", bench.peer("dcp_save", "HuggingFaceStorageWriter", source, theirs, *how), remove_theirs), copy_limit(bench, source)],
               "≤ 1.0 × its own", check=lambda: subprocess.run([bench.tessera, "diff", theirs, out, "--values", "--quiet"], check=True))


def redistribution(bench, id, ranks, rows=8192, columns=8192, turns=3):
    """Rows to columns. A side is a job of its own, whose time is the median of its turns. (Sides that take turns within one
    job, for machines with other work: mpirun -n N bench_redistribute tessera,shared,alltoallv,copy 8192 8192 15.)"""
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")

    def side(name, which):
        return Side(name, ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *bench.program("bench_redistribute", which, rows, columns, turns)])
    return Job(id, f"redistribution in memory, rows to columns, {ranks} processes", f"{rows * columns * 4 >> 20} MiB",
               [side("tsr_redistribute", "tessera"), side("tsr_redistribute out of shared memory", "shared"), side("MPI_Alltoallw", "alltoallw"), side("pack + MPI_Alltoallv", "alltoallv"),
                Side("DTensor.redistribute over gloo", bench.peer("redistribute", ranks, rows, columns, turns)),
                side("memcpy of each rank's bytes", "copy")], "≥ 5 × gloo, ≥ 1.3 × MPI")


def p13_two(bench):
    return redistribution(bench, "P13", 2)


def p13_four(bench):
    return redistribution(bench, "P13b", 4)


def browser(*args):
    return ["node", os.path.join(HERE, "browser", "run.mjs"), *map(str, args)]


def no_browser():
    if not shutil.which("chromium"):
        return "there is no Chromium"
    if not os.path.exists(os.path.join(HERE, "..", "..", "web", "dist", "assets.json")):
        return "web/build has not made web/dist"
    return None


def browser_reads(side, *paths):
    """The limit: the browser's own read of the same bytes, each way, by as many workers as gain."""
    return [Side(f"{side} by {method}, {workers} worker{'s' if workers > 1 else ''}", browser(side, method, workers, *paths))
            for method, workers in (("arrayBuffer", 1), ("stream", 1), ("sync", 1), ("sync", 2), ("sync", 4), ("byob", 1), ("byob", 2), ("byob", 4))]


def p24_deep(bench):
    missing = no_browser()
    if missing:
        return missing
    d = rows_of_eight(bench)
    return Job("P24", "the page: check every byte", mib(d),
               [Side("page", browser("deep", d)), *browser_reads("read", d),
                Side("tessera validate --deep", [bench.tessera, "validate", d, "--deep", "--quiet"])], "≤ 1.5 × the browser's fastest read")


def p24_diff(bench):
    missing = no_browser()
    if missing:
        return missing
    a = rows_of_eight(bench)
    b, _ = bench.fresh("other_dcp")
    if not os.path.exists(b):
        shutil.copytree(a, b)
    return Job("P24b", "the page: compare values of two equal checkpoints", mib(a) + " each",
               [Side("page", browser("diff", a, b)), *browser_reads("read", a, b),
                Side("tessera diff --values", [bench.tessera, "diff", a, b, "--values", "--quiet"])], "≤ 1.5 × the browser's fastest read")


def p27(bench):
    missing = no_browser()
    if missing:
        return missing
    d = rows_of_eight(bench)
    out, remove = bench.fresh("out.safetensors")
    return Job("P27", "the page: convert a DCP to one safetensors file of the origin", mib(d),
               [Side("page", browser("convert", d)), *browser_reads("copy", d),
                Side("tessera convert", [bench.tessera, "convert", d, out, "--to", "safetensors", "--objects", "drop", "--quiet"], remove)],
               "≤ 1.5 × the browser's fastest read and write, ≤ 200 MiB")


def node_program(bench):
    """The command line for Node, as its package has it."""
    there, remove = bench.fresh("node_program")
    root = os.path.join(HERE, "..", "..")
    remove()
    shutil.copytree(os.path.join(root, "wasm", "program"), there)
    shutil.copy(os.path.join(root, "build", "node", "bin", "program.wasm"), there)
    with open(os.path.join(there, "package.json"), "w") as f:
        f.write('{"type": "module"}')
    return ["node", os.path.join(there, "main.js")]


def npx(bench, name, what, *words):
    if not os.path.exists(os.path.join(HERE, "..", "..", "build", "node", "bin", "program.wasm")):
        return "wasm/build has not made build/node/bin/program.wasm"
    d = rows_of_eight(bench)
    out, remove = bench.fresh("out.safetensors")
    words = [{"IN": d, "OUT": out}.get(word, word) for word in words]
    return Job(name, what, mib(d),
               [Side("npx tessera-checkpoint", [*node_program(bench), *words], remove),
                Side("tessera, one thread", [bench.tessera, *words, "--threads", "1"], remove),
                Side("tessera", [bench.tessera, *words], remove)], "none")


def npx_deep(bench):
    return npx(bench, "NPX", "Node: check every byte", "validate", "IN", "--deep", "--quiet")


def npx_convert(bench):
    return npx(bench, "NPXb", "Node: convert a DCP to one safetensors file", "convert", "IN", "OUT", "--objects", "drop", "--quiet")


def many_files(bench):
    """256 MiB as a DCP of 256 ranks, in files of 1 MiB with eight tensors each."""
    path, _ = bench.fresh("many_files")
    if not os.path.exists(path):
        subprocess.run([bench.tessera, "reshard", large_safetensors(bench), path, "--include", "layers.[0-7].*", "--mesh", "256", "--placements", "shard(0)", "--to", "dcp",
                        "--quiet"], check=True)
    return path


@functools.cache
def remote(bench):
    small, _ = bench.fresh("small.safetensors")
    if not os.path.exists(small):
        subprocess.run([bench.tessera, "convert", many_files(bench), small, "--quiet"], check=True)
    return remote_jobs.jobs(bench, rows_of_eight(bench), many_files(bench), large_safetensors(bench), small)


def p28(bench):
    return remote(bench) if remote_jobs.nginx() else "nginx is not installed"


JOBS = {"P1": [p1], "P2": [p2], "P3": [p3], "P4": [p4], "P5": [p5], "P18": [p18, p18_servers], "P20": [p20], "P21": [p21, p21_mesh], "P6": [p6], "P7": [p7], "P8": [p8, p8_torch], "P9": [p9_dcp, p9_safetensors], "P10": [p10, p10_even, p10_processes], "P11": [p11, p11_safetensors], "COLD": [cold_deep, cold_convert, cold_rows, cold_columns], "SLOW": [functools.partial(slow, number=n) for n in range(10)], "P12": [p12, p12_resharded], "P14": [p14], "P13": [p13_two, p13_four], "P28": [p28], "P17": [p17_shard, p17_narrow, p17_pieces, p17_load], "P24": [p24_deep, p24_diff], "P27": [p27], "NPX": [npx_deep, npx_convert], "PY": [py_dcp, py_safetensors, py_save, py_save_safetensors, functools.partial(py_save_safetensors, id="PYe", joined=True)], **many_jobs.JOBS, **map_jobs.JOBS, **store_jobs.JOBS, **sum_jobs.JOBS, **zero_jobs.JOBS}
