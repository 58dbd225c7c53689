"""State dicts between PyTorch and C programs, through checkpoints that all ranks write and read."""
import os
import subprocess
import tempfile

from harness import mpirun, need, test

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def torch_side(*arguments):
    python = subprocess.run([f"{ROOT}/samples/python-env"], capture_output=True, text=True, check=True).stdout.split()[-1]
    p = subprocess.run([python, f"{ROOT}/tests/mpi/torch_side.py", *map(str, arguments)], capture_output=True, text=True)
    need(p.returncode == 0 and p.stdout == "done\n", f"torch_side {arguments}: {p.stderr[-1500:]}")


@test
def torch_on_4_to_c_on_3_to_torch_on_2(folder):
    with tempfile.TemporaryDirectory() as scratch:
        torch_side("save", 4, f"{scratch}/a")
        job = mpirun(3, f"{folder}/interchange", f"{scratch}/a", f"{scratch}/b")
        need(job.status == 0, job.err)
        p = subprocess.run([f"{folder}/tessera", "validate", "--deep", f"{scratch}/b"], capture_output=True, text=True)
        need(p.returncode == 0, p.stdout)
        torch_side("check", 2, f"{scratch}/b")


@test
def every_form_is_loaded_by_ranks(folder):
    samples = f"{ROOT}/samples/checkpoints"
    for name in ("dcp_fsdp2", "dcp_tp_fsdp2", "dcp_zstd", "dcp_hf_sharded", "safetensors_index", "safetensors_dtypes", "torch_train_state", "torch_legacy", "torch_ranks_tp_fsdp2", "torch_views"):
        source = f"{samples}/{name}"
        need(os.path.exists(source), f"no sample {name}")
        with tempfile.TemporaryDirectory() as scratch:
            job = mpirun(3, f"{folder}/interchange", source, f"{scratch}/out", "same")
            need(job.status == 0, f"{name}: {job.err}")
            p = subprocess.run([f"{folder}/tessera", "diff", "--values", source, f"{scratch}/out"], capture_output=True, text=True)
            need(p.returncode == 0, f"{name}: {p.stdout[-1000:]}")
