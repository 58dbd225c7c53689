"""`tessera latest` names a checkpoint that its own library loads, and passes over only those that it refuses: DCPs, torch.save files and
safetensors, cut, lost or emptied at random while they are the newest of a run."""
import os
import random
import shutil

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file


def state(step):
    g = torch.Generator().manual_seed(step)
    return {"model": {f"layers.{i}.weight": torch.randn(16, 8, generator=g) for i in range(4)}, "optim": {"exp_avg": torch.randn(64, generator=g)}, "step": step}


def save_dcp(path, step):
    dcp.save(state(step), storage_writer=dcp.FileSystemWriter(path, single_file_per_rank=False, thread_count=2))


def load_dcp(path):
    loaded = {"model": {k: torch.zeros_like(v) for k, v in state(0)["model"].items()}, "optim": {"exp_avg": torch.zeros(64)}, "step": 0}
    dcp.load(loaded, checkpoint_id=path)
    return loaded["step"], loaded["model"]


def save_torch(path, step):
    torch.save(state(step), path)


def load_torch(path):
    loaded = torch.load(path)
    return loaded["step"], loaded["model"]


def save_safetensors(path, step):
    os.makedirs(path)
    save_file({**state(step)["model"], "step": torch.tensor(step)}, os.path.join(path, "model.safetensors"))


def load_safetensors(path):
    loaded = load_file(os.path.join(path, "model.safetensors"))
    return int(loaded.pop("step")), loaded


FORMS = {"dcp": (save_dcp, load_dcp, "step-{}"), "torch": (save_torch, load_torch, "step_{}.pt"), "safetensors": (save_safetensors, load_safetensors, "checkpoint-{}")}


def loads(load, path, step):
    try:
        found, model = load(path)
    except (Exception, dcp.api.CheckpointException):  # the latter is a BaseException
        return False
    return found == step and all(torch.equal(model[k], v) for k, v in state(step)["model"].items())


def damage(rng, path):
    """Cuts, empties or removes a file of the checkpoint. Returns what was done."""
    files = [path] if os.path.isfile(path) else [os.path.join(path, n) for n in sorted(os.listdir(path))]
    file = rng.choice(files)
    how = rng.choice(("cut", "cut", "emptied", "removed"))
    if how == "removed":
        os.remove(file)
    else:
        os.truncate(file, rng.randrange(1, os.path.getsize(file)) if how == "cut" else 0)
    return f"{os.path.basename(file)} {how}"


def test_the_latest_is_what_the_library_loads(t):
    rng = random.Random(44)
    for form, (save, load, name) in FORMS.items():
        for step in (9, 10, 100):
            os.makedirs(t.at(form, "whole"), exist_ok=True)
            save(t.at(form, "whole", name.format(step)), step)
        for case in range(12):
            run = t.at(form, "run")
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(t.at(form, "whole"), run)
            done = [damage(rng, os.path.join(run, name.format(step))) for step in (100, 10)[:rng.choice((1, 1, 2))]]
            p = t.run("latest", run)
            answer = p.stdout.decode().strip()
            wanted = next(s for s in (100, 10, 9) if loads(load, os.path.join(run, name.format(s)), s))
            assert answer == os.path.join(run, name.format(wanted)), f"{form}, case {case}: {done}: {answer} instead of step {wanted}: {p.stderr.decode()}"
            newer = [s for s in (100, 10) if s > wanted and os.path.exists(os.path.join(run, name.format(s)))]
            assert p.stderr.decode().count("passed over") == len(newer), p.stderr.decode()
