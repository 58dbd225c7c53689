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


def test_a_file_that_was_lengthened_is_the_answer_if_it_loads(t):
    """PyTorch searches the end of an archive in the last 69,584 bytes of a file, and reads nothing of what follows it. It fails with some sizes if
    the archive is small."""
    rng = random.Random(45)
    os.makedirs(t.at("run"))
    for step in (9, 10):
        save_torch(t.at("run", f"step_{step}.pt"), step)
    path = t.at("run", "step_10.pt")
    with open(path, "rb") as f:
        whole = f.read()
    tails = [bytes(n) for n in (1, 22, 512, 4096, 65535, 65536, 69562, 69563, 1 << 20)] + [rng.randbytes(n) for n in (1, 700, 5000)] + [whole[-22:-1], whole[:4000], b"PK\5\6", b"PK\5\6" + bytes(40)]
    taken = 0
    for tail in tails:
        with open(path, "wb") as f:
            f.write(whole + tail)
        is_loaded = loads(load_torch, path, 10)
        for options in ((), ("--deep",)):
            assert t.run("latest", t.at("run"), *options).stdout.decode().strip() == t.at("run", f"step_{10 if is_loaded else 9}.pt"), (len(tail), tail[:8], is_loaded)
        if is_loaded:
            taken += 1
            findings = t.json("validate", path, "--deep", "--json")["findings"]
            assert [(f["rule"], f["level"]) for f in findings] == [("pickle/trailing-bytes", "warning")] and str(len(tail)) in findings[0]["message"], findings
    assert 10 < taken < len(tails), taken
    torch.save({"step": 10}, path)
    with open(path, "rb") as f:
        whole = f.read()
    verdicts = []
    for size in (4096, 4097, 5500, 8188, 8189, 8190, 9000, 12282, 12283):
        with open(path, "wb") as f:
            f.write(whole.ljust(size, b"\0"))
        try:
            verdicts.append(torch.load(path) == {"step": 10})
        except (OSError, RuntimeError):
            verdicts.append(False)
        assert t.run("latest", t.at("run")).stdout.decode().strip() == t.at("run", f"step_{10 if verdicts[-1] else 9}.pt"), (size, verdicts)
    assert len(set(verdicts)) == 2, verdicts
