"""`mpirun -n N tessera convert|reshard|merge` writes what one process writes, or nothing and one message."""
import json
import os
import shutil
import subprocess
import tempfile

from harness import FULL, ROOT, SAMPLES, alone, mpirun, need, ordinary, safetensors, test, tree

MESH = ["--mesh", "dp=3,tp=2", "--placements", "shard(0),shard(0)"]


def same_output(tessera, ranks, reference, scratch, *arguments):
    """`arguments` are the command, the source, and what follows the destination."""
    made = os.path.join(scratch, f"made-{ranks}")
    command, source, *rest = arguments
    job = mpirun(ranks, tessera, command, source, made, *rest, limit=120)
    where = f"{command} {os.path.basename(source)} {' '.join(rest)} on {ranks}"
    need(job.status == 0, f"{where}: status {job.status}: {job.err[-600:]}")
    need(job.err.count("wrote ") == 1, f"{where}: {job.err[-600:]}")
    need(tree(made) == reference, f"{where}: other bytes than one process")
    need(set(os.listdir(scratch)) == {"one", os.path.basename(made)}, f"{where}: left {os.listdir(scratch)}")
    shutil.rmtree(made) if os.path.isdir(made) else os.remove(made)


def compare(directory, source, counts, *arguments):
    tessera = f"{directory}/tessera"
    command, *rest = arguments
    with tempfile.TemporaryDirectory(prefix="tessera-mpi-") as scratch:
        one = os.path.join(scratch, "one")
        status, _, err = alone(tessera, command, source, one, *rest)
        need(status == 0, f"{command} {source}: {err}")
        reference = tree(one)
        for ranks in counts:
            same_output(tessera, ranks, reference, scratch, command, source, *rest)


FORMS = [("convert", "--to", "safetensors", "--objects", "drop"), ("convert", "--to", "torch"), ("convert", "--to", "dcp"),
         ("convert", "--to", "safetensors", "--max-shard-size", "2MB", "--objects", "drop"),
         ("convert", "--to", "torch", "--dtype", "bfloat16"),
         ("reshard", "--to", "dcp", *MESH), ("reshard", "--to", "safetensors", "--objects", "drop", *MESH),
         ("reshard", "--to", "torch", *MESH)]


def dcp_samples():
    for name in sorted(os.listdir(SAMPLES)):
        if name.startswith("dcp_") and os.path.isdir(os.path.join(SAMPLES, name)):
            yield os.path.join(SAMPLES, name)


@test
def options_without_effect_are_reported_once(directory):
    """Every rank sees the same names: they agree, and one of them speaks."""
    source = os.path.join(SAMPLES, "dcp_fsdp2")
    with tempfile.TemporaryDirectory(prefix="tessera-mpi-") as scratch:
        out = os.path.join(scratch, "out.pt")
        job = mpirun(3, f"{directory}/tessera", "convert", source, out, "--include", "model.**", "--exclude", "model.emb", limit=120)
        need(job.status == 0 and job.err.count("warning: --exclude 'model.emb' matches no name") == 1, f"status {job.status}: {job.err}")
        os.remove(out)
        job = mpirun(3, f"{directory}/tessera", "convert", source, out, "--include", "modle.**", limit=120)
        need(job.status == 2 and job.err.count("nothing is selected") == 1, f"status {job.status}: {job.err}")
        need(os.listdir(scratch) == [], os.listdir(scratch))


@test
def small_outputs_are_those_of_one_process(directory):
    tessera = f"{directory}/tessera"
    tried = 0
    for path in list(dcp_samples())[:None if FULL else 2]:
        for form in FORMS if FULL else FORMS[1::3]:
            if alone(tessera, form[0], path, "/nonexistent", "--dry-run", *form[1:])[0] == 0:
                compare(directory, path, (3,), *form)
                tried += 1
    need(tried >= 4, f"only {tried} outputs were compared")


@test
def shared_outputs_are_those_of_one_process(directory):
    """The source is large enough that every rank has its own units."""
    with tempfile.TemporaryDirectory(prefix="tessera-mpi-source-") as scratch:
        source = os.path.join(scratch, "a.safetensors")
        safetensors(source, [9_000_000, 1, 0, 17, 5_500_000, 70_000] + [1000] * 200, 2)
        forms = FORMS if FULL else FORMS[0:3] + FORMS[5:6]
        counts = range(1, 9) if FULL else (2, 3)
        for form in forms:
            compare(directory, source, counts, *form)
        if not FULL:
            compare(directory, source, (5, 8), *FORMS[4])


@test
def merges_are_those_of_one_process(directory):
    """The ranks also share the measuring of angles."""
    tessera = f"{directory}/tessera"
    with tempfile.TemporaryDirectory(prefix="tessera-mpi-source-") as inputs, tempfile.TemporaryDirectory(prefix="tessera-mpi-") as scratch:
        paths = [os.path.join(inputs, f"{name}.safetensors") for name in "ab"]
        for seed, path in enumerate(paths):
            safetensors(path, [2_000_000, 1, 0, 17, 70_000] + [1000] * 20, seed, ordinary)
        golden = [os.path.join(ROOT, "tests", "golden", "merging", f"{name}.safetensors") for name in "ab"]
        for paths, options in ((paths, ["--method", "slerp", "--t", "0.3"]),
                               (paths, ["--method", "linear", "--weight", "0.7", "--weight", "0.2", "--dtype", "bfloat16"]),
                               (golden, ["--method", "slerp", "--t", "0.3", "--quantize", "fp8-block"])):
            one = os.path.join(scratch, "one.safetensors")
            status, _, err = alone(tessera, "merge", one, *paths, *options)
            need(status == 0, err)
            for ranks in (2, 5):
                many = os.path.join(scratch, "many.safetensors")
                job = mpirun(ranks, tessera, "merge", many, *paths, *options, limit=120)
                need(job.status == 0 and job.err.count("wrote ") == 1, f"{options} on {ranks}: {job.err[-600:]}")
                need(tree(many) == tree(one), f"{options} on {ranks}: other bytes than one process")
                need(sorted(os.listdir(scratch)) == ["many.safetensors", "one.safetensors"], f"left {os.listdir(scratch)}")
                os.remove(many)
            os.remove(one)


@test
def replacing_and_looking_work_as_by_one_process(directory):
    tessera = f"{directory}/tessera"
    source = os.path.join(SAMPLES, "dcp_crc_off")
    with tempfile.TemporaryDirectory(prefix="tessera-mpi-") as scratch:
        at = lambda name: os.path.join(scratch, name)
        for name in ("one", "many"):
            shutil.copytree(source, at(name))
        other = next(p for p in dcp_samples() if p != source)
        arguments = ["--mesh", "dp=2", "--placements", "shard(0)", "--to", "dcp", "--overwrite", "--json"]
        status, _, err = alone(tessera, "reshard", other, at("one"), *arguments)
        need(status == 0, err)
        job = mpirun(3, tessera, "reshard", other, at("many"), *arguments)
        need(job.status == 0 and tree(at("many")) == tree(at("one")), f"--overwrite: {job.err[-500:]}")
        need(json.loads(job.out)["schema"] == "tessera.convert/1", "--json printed by one rank")
        job = mpirun(2, tessera, "convert", source, at("dry.pt"), "--to", "torch", "--dry-run")
        need(job.status == 0 and job.err.count("would write") == 1 and not os.path.exists(at("dry.pt")), f"--dry-run: {job.err}")


@test
def a_refusal_is_said_once_and_leaves_nothing(directory):
    tessera = f"{directory}/tessera"
    source = os.path.join(SAMPLES, "dcp_crc_off")
    with tempfile.TemporaryDirectory(prefix="tessera-mpi-") as scratch:
        at = lambda name: os.path.join(scratch, name)
        shutil.copytree(source, at("there"))
        rows = [(["convert", "/nonexistent/ckpt", at("x.pt")], "No such file"), (["convert", source, at("there"), "--to", "dcp"], "exists"),
                (["convert", source, at("x"), "--to", "torch", "--dtype", "float33"], "unknown dtype"), (["convert", source], "DEST"),
                (["convert", source, at("no/x.pt"), "--to", "torch"], "No such file"),
                (["reshard", source, at("x"), "--mesh", "dp=2", "--placements", "shard(7"], "at byte 7")]
        for arguments, text in rows:
            status, _, err = alone(tessera, *arguments)
            line = err.strip().splitlines()[0]
            job = mpirun(3, tessera, *arguments)
            need(status == 2 and text in err, f"one process: {status} {err}")
            need(job.status == 2, f"{arguments[:1]}: status {job.status}: {job.err}")
            need(job.err.count(line) == 1 and job.err.count("tessera: ") == 1, f"{arguments}: of one process: {line}; on 3: {job.err}")
            need(os.listdir(scratch) == ["there"] and tree(at("there")) == tree(source), f"{arguments}: left {os.listdir(scratch)}")


@test
def a_rank_that_cannot_write_fails_all_cleanly(directory):
    """Rank 1 may write only 8 MiB of a file."""
    with tempfile.TemporaryDirectory(prefix="tessera-mpi-") as scratch:
        at = lambda name: os.path.join(scratch, name)
        safetensors(at("a.safetensors"), [14_000_000], 3)
        shell = 'trap "" XFSZ; if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then ulimit -f 8192; fi; exec "$0" "$@"'
        job = mpirun(3, "bash", "-c", shell, f"{directory}/tessera", "convert", at("a.safetensors"), at("a.pt"))
        need(job.status == 2, f"status {job.status}: {job.err}")
        need(job.err.count("rank 1: ") == 1 and job.err.count("tessera: ") == 1 and "File too large" in job.err, job.err)
        need(os.listdir(scratch) == ["a.safetensors"], f"left {os.listdir(scratch)}")


@test
def doctor_tells_of_mpi_once(directory):
    job = mpirun(3, f"{directory}/tessera", "doctor", "--json")
    facts = json.loads(job.out)["mpi"]
    need(job.status == 0 and facts["processes"] == 3 and facts["launched_by"] == "OMPI_COMM_WORLD_SIZE", f"{facts}")
    need("Open MPI" in facts["library"] and facts["cuda_aware"] in ("yes", "no"), f"{facts}")
    status, out, _ = alone(f"{directory}/tessera", "doctor", "--json")
    facts = json.loads(out)["mpi"]
    need(status == 0 and facts["processes"] == 1 and facts["launched_by"] == "none" and "Open MPI" in facts["library"], f"{facts}")


def mpirun_like(command, environment):
    p = subprocess.run(command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    return p.returncode, p.stderr.decode()


@test
def launchers_are_told_apart(directory):
    tessera = f"{directory}/tessera"
    source = os.path.join(SAMPLES, "dcp_crc_off")
    with tempfile.TemporaryDirectory(prefix="tessera-mpi-") as scratch:
        out = os.path.join(scratch, "x.pt")
        convert = [tessera, "convert", source, out]
        rows = [  # environment, command, status, message
            ({"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, convert, 2, "srun --mpi=pmix"),
            ({"SLURM_NTASKS": "4", "SLURM_PROCID": "2"}, convert, 2, ""),
            ({"PMI_SIZE": "3", "PMI_RANK": "0"}, convert, 2, "they are not connected"),
            ({"PMI_SIZE": "3", "PMI_RANK": "0", "PMI_FD": "9", "SLURM_STEP_ID": "0"}, convert, 2, "use srun --mpi=pmix"),  # srun --mpi=pmi2
            ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, [tessera, "inspect", source], 2, "runs as a single process"),
            ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, [tessera, "inspect", source, "--no-mpi"], 0, ""),
            ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, [tessera, "inspect", source], 0, ""),
            ({}, [tessera + "-mpi", "inspect", source], 2, "tessera-mpi runs"),
            ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, convert, 0, "wrote"),  # a batch script: a single process
        ]
        for environment, command, status, text in rows:
            job = mpirun_like(command, environment)
            need(job[0] == status and text in job[1], f"{environment} {command[1]}: {job}")
            need(os.path.exists(out) == (status == 0 and command is convert), f"{environment}: wrote")
        bare = os.path.join(scratch, "bin")
        os.mkdir(bare)
        shutil.copy2(tessera, bare)
        job = mpirun_like([os.path.join(bare, "tessera"), *convert[1:3], out + "2"], {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"})
        need(job[0] == 2 and "has no tessera-mpi" in job[1] and not os.path.exists(out + "2"), f"without tessera-mpi: {job}")


@test
def strangers_that_srun_starts_at_once_write_nothing(directory):
    """srun without PMIx starts four processes that do not know each other."""
    with tempfile.TemporaryDirectory(prefix="tessera-mpi-") as scratch:
        for command in (["convert", os.path.join(SAMPLES, "dcp_crc_off"), os.path.join(scratch, "x.pt")],
                        ["reshard", os.path.join(SAMPLES, "dcp_crc_off"), os.path.join(scratch, "x"), "--mesh", "dp=2", "--placements", "shard(0)"]):
            for program in ("tessera", "tessera-mpi"):
                slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4"}
                all_ = [subprocess.Popen([f"{directory}/{program}", *command], env={**os.environ, **slurm, "SLURM_PROCID": str(i)}, stdin=subprocess.DEVNULL,
                                         stderr=subprocess.PIPE, text=True) for i in range(4)]
                said = "".join(p.communicate(timeout=60)[1] for p in all_)
                need([p.returncode for p in all_] == [2] * 4, f"{program} {command[0]}: {[p.returncode for p in all_]} {said}")
                need(said.count("srun --mpi=pmix") == 1, f"said once: {said}")
                need(not os.listdir(scratch), f"{program} {command[0]} wrote {os.listdir(scratch)}")
