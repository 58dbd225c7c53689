"""P33 and P33b: what checksums cost. Each job is done with and without them: loads and saves in Python, and the program's commands. The data is
256 MiB of float32. The processor's time counts, because it says the same on a busy machine; --scratch should be in memory."""
import functools
import os
import subprocess
import sys

from measure import Job, Side

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 256
FORMS = {"torch": "of_torch.pt", "safetensors": "of_safetensors.safetensors", "dcp": "of_dcp"}
TARGET = "≤ 1.03 × without"


def peer(function, *args):
    return [sys.executable, os.path.join(HERE, "sum_peers.py"), function, *map(str, args)]


def source(bench, form):
    """The data in a form, which the program writes of a file of torch.save."""
    path = os.path.join(bench.scratch, FORMS[form])
    if not os.path.exists(path):
        if form == "torch":
            subprocess.run([os.path.join(HERE, "..", "..", "native", "python", "install"), "--without-page"], check=True, stdout=sys.stderr)
            subprocess.run(peer("make", path + ".new", MIB), check=True, stdout=sys.stderr)
            os.rename(path + ".new", path)
        else:
            subprocess.run([bench.tessera, "convert", source(bench, "torch"), path, "--to", form, "--quiet"], check=True)
    return path


def load(bench, form, how):
    source(bench, "torch")
    sides = [Side(name, peer(how, source(bench, form), verify)) for name, verify in (("CRCs compared", 1), ("verify=False", 0))]
    return Job(f"P33 {how}, {form}", f"tessera.torch.{how} into {'new memory' if how == 'load' else 'tensors that are there'}", f"{MIB} MiB", sides, TARGET, metric="cpu")


def birth(bench, form, command):
    """A command of the program, in which TORCH, SAFETENSORS, DCP and OUT are paths."""
    paths = {name.upper(): source(bench, name) for name in FORMS}
    out, remove = bench.fresh({"torch": "born.pt", "safetensors": "born.safetensors", "dcp": "born"}[form])
    words = [{**paths, "OUT": out}.get(word, word) for word in command]
    sides = [Side(name, [bench.tessera, *words, *more, "--quiet"], remove) for name, more in (("with CRCs", []), ("--no-checksums", ["--no-checksums"]))]
    return Job(f"P33b {command[0]}, {form}", " ".join(command), f"{MIB} MiB", sides, TARGET, metric="cpu",
               check=lambda: subprocess.run([bench.tessera, "diff", paths["TORCH"], out, "--values", "--quiet"], check=True))


def save(bench, form):
    out, remove = bench.fresh("saved")
    path = source(bench, "torch")
    sides = [Side(name, peer("save", path, out, form, checksums), remove) for name, checksums in (("with CRCs", 1), ("checksums=False", 0))]
    return Job(f"P33 save, {form}", "dcp.save by tessera.torch.StorageWriter", f"{MIB} MiB", sides, TARGET, metric="cpu",
               check=lambda: subprocess.run([bench.tessera, "diff", path, out, "--values", "--quiet"], check=True))


MERGE = ["merge", "OUT", "TORCH", "SAFETENSORS", "--method", "linear", "--weight", "0.5", "--weight", "0.5"]
COMMANDS = {"safetensors": [["convert", "TORCH", "OUT"], MERGE], "torch": [["convert", "DCP", "OUT"]],
            "dcp": [["convert", "SAFETENSORS", "OUT", "--to", "dcp"], ["reshard", "DCP", "OUT", "--mesh", "3", "--placements", "shard(0)", "--to", "dcp"]]}
JOBS = {"P33": [*(functools.partial(load, form=form, how=how) for form in FORMS for how in ("load", "load_into")),
                *(functools.partial(save, form=form) for form in ("dcp", "safetensors"))],
        "P33b": [functools.partial(birth, form=form, command=command) for form, commands in COMMANDS.items() for command in commands]}
