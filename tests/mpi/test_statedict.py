"""State dicts between PyTorch and C programs, through checkpoints that all ranks write and read."""
import os
import subprocess
import tempfile

from harness import FULL, ROOT, mpirun, need, side_by_side, test, tree
from test_death import count_calls, killed
from torch_ranks import repeat_notes


def torch_run(program, *arguments):
    python = subprocess.run([f"{ROOT}/samples/python-env"], capture_output=True, text=True, check=True).stdout.split()[-1]
    return subprocess.run([python, f"{ROOT}/tests/mpi/{program}", *map(str, arguments)], capture_output=True, text=True)


def torch_side(*arguments):
    p = torch_run("torch_side.py", *arguments)
    need(p.returncode == 0 and p.stdout == "done\n", f"torch_side {arguments}: {p.stderr[-1500:]}")
    repeat_notes(p.stderr)


def interchange(directory, source, destination, *how):
    """Three ranks of a C program load and save the checkpoint."""
    job = mpirun(3, f"{directory}/interchange", source, destination, *how)
    need(job.status == 0, f"{source}: {job.err}")


def tessera(directory, *arguments):
    p = subprocess.run([f"{directory}/tessera", *arguments], capture_output=True, text=True)
    need(p.returncode == 0, f"{arguments}: {p.stdout[-1000:]}{p.stderr[-1000:]}")


def torch_to_c_to_torch(directory, save, check):
    with tempfile.TemporaryDirectory() as scratch:
        torch_side(save, 4, f"{scratch}/a")
        interchange(directory, f"{scratch}/a", f"{scratch}/b")
        tessera(directory, "validate", "--deep", f"{scratch}/b")
        torch_side(check, 2, f"{scratch}/b")


@test
def torch_on_4_to_c_on_3_to_torch_on_2(directory):
    torch_to_c_to_torch(directory, "save", "check")


@test
def trained_by_fsdp2_on_4_to_c_on_3_to_fsdp2_on_2(directory):
    """The state that PyTorch's own wrappers and AdamW make is changed in C, and training continues with it in PyTorch."""
    torch_to_c_to_torch(directory, "train", "resume")


@test
def redistribution_over_nodes(directory):
    """As on several machines (native/live/transfer/transfer.h), to which ranks are assigned unevenly and in no order."""
    for ranks, nodes in ((3, "0,1,1"), (4, "0,1,1,0"), (6, "1,0,0,2,1,1"), (7, "3,0,0,2,0,2,0")):
        for program in ("test_statedict_redistribute_mpi", "test_statedict_oracle_mpi"):
            job = mpirun(ranks, f"{directory}/{program}", env={"TESSERA_NODES": nodes}, limit=120)
            need(job.status == 0 and "[       OK ]" in job.out, f"{program} on {ranks} ranks, nodes {nodes}: {job.out[-1500:]}{job.err[-1500:]}")


@test
def redistribution_without_room_in_shared_memory(directory):
    """With a /dev/shm that has no space for a rank's segment, and one that only fits the first segment, the ranks exchange
    messages instead."""
    if subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/dev/shm"], capture_output=True).returncode:
        print("skip redistribution_without_room_in_shared_memory: no file system can be mounted here")
        return
    with tempfile.TemporaryDirectory(prefix="tessera-mpi-") as scratch:
        for size in ("64k", "3m"):
            small = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size={size} none /dev/shm && "$@" && test -z "$(ls /dev/shm)"', "sh")
            job = mpirun(3, f"{directory}/test_statedict_redistribute_mpi", on=small, options=("--mca", "btl_vader_backing_directory", scratch))
            need(job.status == 0 and "[       OK ]" in job.out, f"{size}: {job.status}: {job.out[-1500:]}{job.err[-1500:]}")


@test
def every_form_is_loaded_by_ranks(directory):
    samples = f"{ROOT}/samples/checkpoints"
    for name in ("dcp_fsdp2", "dcp_tp_fsdp2", "dcp_zstd", "dcp_hf_sharded", "safetensors_index", "safetensors_dtypes", "torch_train_state", "torch_legacy", "torch_ranks_tp_fsdp2", "torch_views"):
        source = f"{samples}/{name}"
        need(os.path.exists(source), f"no sample {name}")
        with tempfile.TemporaryDirectory() as scratch:
            interchange(directory, source, f"{scratch}/out", "same")
            tessera(directory, "diff", "--values", source, f"{scratch}/out")


@test
def a_flip_in_what_ranks_save_is_reported(directory):
    """Any byte of any file of tsr_state_dict_save, by tests/check/test_check_flips.c."""
    samples = f"{ROOT}/samples/checkpoints"
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("dcp_fsdp2", "torch_train_state", "safetensors_dtypes"):
            interchange(directory, f"{samples}/{name}", f"{scratch}/{name}")
        p = subprocess.run([f"{directory}/test_check_flips", "3000" if FULL else "150", *(f"{scratch}/{name}" for name in os.listdir(scratch))], capture_output=True, text=True)
        need(p.returncode == 0 and p.stdout.count("flips in") == p.stdout.count(" 0 missed") == 3 and "has errors" not in p.stdout, p.stdout[-2000:] + p.stderr)


def losses(text):
    return {int(words[1]): words[3] for words in map(str.split, text.splitlines()) if words[:1] == ["step"]}


@test
def the_training_sample_goes_on_after_a_kill_on_other_ranks_and_in_torch(directory):
    with tempfile.TemporaryDirectory() as scratch:
        os.mkdir(f"{scratch}/whole")
        os.mkdir(f"{scratch}/killed")
        options = ("--steps", 20, "--save-every", 5, "--checkpoints")
        whole = mpirun(2, f"{directory}/train", *options, f"{scratch}/whole")
        need(whole.status == 0, whole.err)
        want = losses(whole.out)
        need(len(want) == 20 and float(want[19]) < 0.2 * float(want[0]), f"it does not learn: {want}")
        killed = mpirun(4, f"{directory}/train", *options, f"{scratch}/killed", "--die-at", 13)
        need(killed.status != 0, "it was to die")
        need(sorted(os.listdir(f"{scratch}/killed")) == ["step-10", "step-5"], os.listdir(f"{scratch}/killed"))
        got = losses(killed.out)
        need(set(range(10)) <= set(got) and max(got) < 13 and all(want[s] == got[s] for s in got), f"before the kill: {got}")
        resumed = mpirun(3, f"{directory}/train", *options, f"{scratch}/killed")
        need(resumed.status == 0 and "warning" not in resumed.err, resumed.err)
        got = losses(resumed.out)
        need(got == {s: want[s] for s in range(10, 20)}, f"after it: {got}, without it {want}")
        p = torch_run("torch_training.py", f"{scratch}/killed/step-10", 20)
        got = losses(p.stdout)
        need(len(got) == 10 and all(abs(float(got[s]) - float(want[s])) < 1e-12 for s in got), f"torch: {got}, {p.stderr[-1000:]}")
        tessera(directory, "diff", "--values", f"{scratch}/killed/step-20", f"{scratch}/whole/step-20")


@test
def a_rank_killed_while_saving_leaves_no_half_of_a_checkpoint(directory):
    ranks = 3
    with tempfile.TemporaryDirectory() as scratch:
        def train(name):
            os.makedirs(f"{scratch}/{name}", exist_ok=True)
            return f"{directory}/train", "--steps", 2, "--save-every", 2, "--checkpoints", f"{scratch}/{name}"
        whole = mpirun(ranks, *train("whole"))
        need(whole.status == 0, whole.err)
        reference, points = tree(f"{scratch}/whole/step-2"), []
        for rank in range(ranks):
            calls = count_calls(directory, scratch, ranks, rank, *train(f"count-{rank}"))
            points += [(rank, call, after, calls[call - 1]) for call in range(len(calls) // 2, len(calls) + 1) for after in (False, True)]
        most = len(points) if FULL else 12
        def check(i):
            rank, call, after, name = points[(2 * i + 1) * len(points) // (2 * most)]
            where = f"rank {rank} killed {'behind' if after else 'before'} call {call}, {name}"
            job = killed(directory, ranks, rank, call, after, *train(f"run-{i}"))
            need(job.status != 0 and job.seconds <= 30, f"{where}: status {job.status} after {job.seconds:.0f} s")
            there = tree(f"{scratch}/run-{i}/step-2")
            need(there in (None, reference), f"{where}: something half-written is visible")
            again = mpirun(ranks, *train(f"run-{i}"))
            need(again.status == 0, f"{where}, then run again: {again.err}")
            need(tree(f"{scratch}/run-{i}/step-2") == reference, f"{where}: the run behind it wrote other bytes")
            left = [name for name in os.listdir(f"{scratch}/run-{i}") if name != "step-2"]  # what was saved is not saved again
            need(not left or there and len(left) == 1 and left[0].endswith(".1-of-1"), f"{where}: the run behind it left {left}")
        side_by_side(check, range(most), workers=2)
