"""`mpirun -n N tessera validate --deep` reports what one process reports, for every sample and for damage in any rank's
share."""
import json
import os
import shutil
import tempfile

from harness import FULL, alone, mpirun, need, safetensors, samples, test


def same_on(directory, ranks, *arguments, env=None):
    """Checks that status, document and message are those of one process."""
    tessera = f"{directory}/tessera"
    status, out, err = alone(tessera, *arguments)
    job = mpirun(ranks, tessera, *arguments, env=env)
    where = f"{' '.join(arguments)} on {ranks}"
    need(job.status == status, f"{where}: status {job.status}, of one process {status}; {job.err[-600:]}")
    need(job.out == out, f"{where}: another document:\n{job.out[:1500]}\n--- one process:\n{out[:1500]}")
    for line in err.splitlines():
        need(job.err.count(line) == 1, f"{where}: said {job.err.count(line)} times: {line}")
    return status, out


@test
def every_sample_is_judged_as_by_one_process(directory):
    findings = 0
    paths = list(samples())
    for ranks in (2, 3) if not FULL else range(2, 9):
        # first all together, so that only one job is started; then those that cannot be opened
        good = [p for p in paths if alone(f"{directory}/tessera", "validate", "--deep", "--json", p)[0] != 2]
        status, out = same_on(directory, ranks, "validate", "--deep", "--json", "--fail-on", "note", *good)
        findings += len(json.loads(out)["findings"])
        for path in [p for p in paths if p not in good][:3 if not FULL else None]:
            same_on(directory, ranks, "validate", "--deep", "--json", path)
    need(findings > 50, f"only {findings} findings: nothing was compared")


def damage(path, offset):
    with open(path, "r+b") as f:
        f.seek(offset)
        byte = f.read(1)
        f.seek(offset)
        f.write(bytes([byte[0] ^ 0xff]))


@test
def damage_across_shares_is_found_once(directory):
    tessera = f"{directory}/tessera"
    with tempfile.TemporaryDirectory(prefix="tessera-mpi-") as scratch:
        source = os.path.join(scratch, "a.safetensors")
        safetensors(source, [3_000_000, 1, 0, 17, 2_500_000, 70_000] + [1000] * 50, 1)
        for to, name in (("torch", "a.pt"), ("dcp", "a-dcp")):
            path = os.path.join(scratch, name)
            need(alone(tessera, "convert", source, path, "--to", to)[0] == 0, f"convert to {to}")
        for name in ("a.safetensors", "a.pt", "a-dcp"):
            path = os.path.join(scratch, name)
            for ranks in (2, 3, 5) if not FULL else range(2, 17):
                status, out = same_on(directory, ranks, "validate", "--deep", "--json", "--fail-on", "note", path)
                need(status == 1 and len(json.loads(out)["findings"]) == 55, f"{name}: {out[:500]}")
        for victim in ("a.pt", "a-dcp/__0_0.distcp"):
            whole = os.path.join(scratch, victim)
            size = os.path.getsize(whole)
            for k, offset in enumerate((5_000_000, 11_900_000, 12_100_000, size // 2, size - 130_000)):
                damage(whole, offset)
                status, out = same_on(directory, 2 + k % 4, "validate", "--deep", "--json", os.path.join(scratch, victim.split("/")[0]))
                need(status == 1 and out.count('"zip/crc"') == 1, f"{victim} at {offset}: {out[:500]}")
                damage(whole, offset)
        cut = os.path.join(scratch, "cut")
        shutil.copytree(os.path.join(scratch, "a-dcp"), cut)
        with open(os.path.join(cut, "__0_0.distcp"), "r+b") as f:
            f.truncate(9_000_000)
        for ranks in (2, 3, 4):
            status, _ = same_on(directory, ranks, "validate", "--deep", "--json", cut)
            need(status == 1, f"a cut file: status {status}")


@test
def digests_of_a_layout_are_shared(directory):
    """The findings are those of one process, and no rank reads another rank's share."""
    tessera = f"{directory}/tessera"
    with tempfile.TemporaryDirectory(prefix="tessera-mpi-") as scratch:
        at = lambda name: os.path.join(scratch, name)
        safetensors(at("a.safetensors"), [2_000_000, 1, 0, 2_000_000, 2_000_000, 2_000_000] + [1000] * 20, 1)
        status, _, err = alone(tessera, "manifest", at("a.safetensors"), "-o", at("sums.json"))
        need(status == 0, err)
        arguments = ["validate", "--deep", "--json", "--layout", at("sums.json"), at("a.safetensors")]
        need(same_on(directory, 3, *arguments)[0] == 0, "a sound file is not as its manifest says")
        for offset in (4_000_000, 20_000_000, os.path.getsize(at("a.safetensors")) - 10):
            damage(at("a.safetensors"), offset)
        for ranks in (2, 3, 5):
            status, out = same_on(directory, ranks, *arguments)
            need(status == 1 and out.count('"layout/digest"') == 3, f"on {ranks}: {out[:800]}")
        shell = 'exec strace -f -e trace=pread64 -o "$1.$OMPI_COMM_WORLD_RANK" "${@:2}"'
        if shutil.which("strace"):
            need(mpirun(4, "bash", "-c", shell, "-", at("trace"), tessera, *arguments).status == 1, "traced")
            total = sum(read_bytes(at(f"trace.{rank}")) for rank in range(4))
            size = os.path.getsize(at("a.safetensors"))
            need(total < 2.5 * size, f"{total} bytes were read of a file of {size}: twice is what it takes")


def read_bytes(trace):
    with open(trace) as f:
        return sum(int(line.rsplit("= ", 1)[1].split()[0]) for line in f if "pread64" in line and line.rsplit("= ", 1)[1][0].isdigit())
