"""Faults are injected into the newest checkpoint of a run that accelerate, Transformers' Trainer, Lightning, DeepSpeed or Megatron-Core has
saved, and `tessera latest` must answer with what the framework itself loads (framework_loaders.py). TESSERA_FRAMEWORKS names a Python that has
them; with TSR_TEST_FULL there are 300 faults for each, otherwise 20."""
import json
import os
import random
import shutil
import subprocess

import torch
from harness import frameworks

LOADERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "framework_loaders.py")
CASES = 300 if os.environ.get("TSR_TEST_FULL") else 20
NAMES = {"accelerate": "checkpoint_{}", "accelerate-fsdp": "checkpoint_{}", "megatron": "iter_{:07d}", "trainer": "checkpoint-{}", "lightning": "epoch=0-step={}.ckpt"}
# Files whose damage the framework does not notice, or notices only when it goes on to train: both answers are right.
UNREAD = {"accelerate": ("random_states_0.pkl",), "accelerate-fsdp": ("random_states_0.pkl",), "trainer": ("rng_state.pth", "training_args.bin", "generation_config.json")}


def copy(path, step):
    shutil.rmtree(step, ignore_errors=True)
    if os.path.isdir(path):
        shutil.copytree(path, step)
    else:
        shutil.copy(path, step)


def fault(rng, step):
    """Returns (what was done, the damaged file, whether only --deep can see it)."""
    names = sorted(os.path.relpath(os.path.join(at, name), step) for at, _, names in os.walk(step) for name in names)
    name = rng.choice(names) if names else ""
    file = os.path.join(step, name) if name else step
    size = os.path.getsize(file)
    kind = rng.choice(("lost", "cut", "emptied", "flipped", "dropped"))
    if kind == "lost":
        os.remove(file)
    elif kind in ("cut", "emptied"):
        os.truncate(file, rng.randrange(size) if kind == "cut" else 0)
    else:
        with open(file, "r+b") as f:
            at = rng.randrange(size)
            f.seek(at)
            was = f.read(1 if kind == "flipped" else 512)
            f.seek(at)
            f.write(bytes([was[0] ^ 1 << rng.randrange(8)]) if kind == "flipped" else bytes(len(was)))
            kind += f" at {at}"
    return f"'{name}' {kind}", name, kind[:4] in ("flip", "drop")


def states_other_settings(step, file):
    """Whether the file is a document that is still a dict, in which only the framework can tell which keys and values are right."""
    if not file.endswith(".json"):
        return False
    try:
        with open(os.path.join(step, file), encoding="utf-8") as f:
            return isinstance(json.load(f), dict)
    except ValueError:
        return False


def check(t, framework):
    python = frameworks("accelerate, transformers, lightning, deepspeed and megatron-core")
    rng = random.Random(f"{framework} 46")
    os.makedirs(t.at("saved"))
    os.makedirs(t.at("run"))
    name = NAMES.get(framework, "global_step{}")
    bad = []
    with open(t.at("log"), "wb") as log, subprocess.Popen([python, LOADERS, framework, t.at("saved")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                                                          bufsize=1) as loader:
        path = loader.stdout.readline().rstrip("\n")
        assert path, open(t.at("log"), errors="replace").read()[-2000:]
        old, new = (t.at("run", name.format(n)) for n in (10, 100))
        copy(path, old)
        for case in range(CASES):
            copy(path, new)
            done, file, deep = fault(rng, new) if case else ("nothing", None, False)
            print(new, file=loader.stdin)
            verdict = loader.stdout.readline().rstrip("\n")
            p = subprocess.run([t.path, "latest", t.at("run"), *(["--deep"] if deep else [])], capture_output=True, text=True, timeout=120)
            found = p.stdout.rstrip("\n")
            right = {"equal": [new], "changed": [old], "refused": [old]}.get(verdict.split(" ")[0], [])
            if deep and (verdict == "equal" or file.endswith(".safetensors")):
                right = [new, old]  # the loader does not look at what is damaged, or safetensors' own writer states no checksum
            if file in UNREAD.get(framework, ()) or deep and states_other_settings(new, file):
                right = [new, old]
            if p.returncode or found not in right:
                bad.append(f"case {case}: {done}: {framework} says '{verdict}', and the answer is {os.path.basename(found)}: {p.stderr}")
    assert not bad, f"{framework}: {len(bad)} of {CASES}:\n" + "\n".join(bad[:20])
    print(f"{framework}: {CASES} faults")


def test_accelerate_loads_the_answer(t):
    check(t, "accelerate")


def test_accelerate_with_fsdp_loads_the_answer(t):
    check(t, "accelerate-fsdp")


def test_megatron_loads_the_answer(t):
    check(t, "megatron")


def test_the_trainer_loads_the_answer(t):
    check(t, "trainer")


def test_lightning_loads_the_answer(t):
    check(t, "lightning")


TRAIN_WITH_LIGHTNING = """
import sys, lightning, torch

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(5, 7)
    def training_step(self, batch, _):
        return self.net(batch).square().sum()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

where, names = sys.argv[1], sys.argv[2:]
callbacks = [lightning.pytorch.callbacks.ModelCheckpoint(dirpath=where, filename=name, save_top_k=-1, every_n_train_steps=3) for name in names]
trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=None if names else lightning.pytorch.loggers.CSVLogger(where), callbacks=callbacks, enable_progress_bar=False,
                            enable_model_summary=False)
trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(40, 5), batch_size=4))
"""


def test_lightning_chooses_the_directories(t):
    """Without a path, and with directories in the names of files, the answer has the highest global_step of all that Lightning wrote."""
    python = frameworks("lightning")
    for at, names in enumerate(([], ["{epoch}/{step}"], ["{epoch:02d}/{step:05d}"])):
        run = t.at(f"run{at}")
        subprocess.run([python, "-c", TRAIN_WITH_LIGHTNING, run, *names], check=True, capture_output=True, timeout=300)
        files = [os.path.join(at, name) for at, _, found in os.walk(run) for name in found if name.endswith(".ckpt")]
        steps = {torch.load(file, weights_only=False)["global_step"]: file for file in files}
        assert len(files) == len(steps) >= 1, files
        p = subprocess.run([t.path, "latest", run, "--deep"], capture_output=True, text=True, timeout=120)
        assert (p.returncode, p.stdout.rstrip("\n"), p.stderr) == (0, steps[max(steps)], ""), (p, steps)


TRAIN_WORSE_AND_WORSE = TRAIN_WITH_LIGHTNING[:TRAIN_WITH_LIGHTNING.index("where, names")].replace("return self", 'self.log("score", float(self.global_step))\n        return self') + """
where = sys.argv[1]
for epochs in (2, 3):  # the second time from last.ckpt, next to which it writes last-v1.ckpt if another callback has that name
    kept = [lightning.pytorch.callbacks.ModelCheckpoint(dirpath=where, monitor="score", save_top_k=1, save_last=True, every_n_train_steps=3)]
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, callbacks=kept, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(40, 5), batch_size=4), ckpt_path="last" if epochs == 3 else None)
print("resumed", trainer.global_step)
"""


def test_lightning_takes_its_last_one(t):
    """Where the best one has a name with a step, and the newest is last.ckpt, the answer is what `ckpt_path="last"` resumes from."""
    python = frameworks("lightning")
    p = subprocess.run([python, "-c", TRAIN_WORSE_AND_WORSE, t.at("run")], check=True, capture_output=True, text=True, timeout=300)
    steps = {name: torch.load(t.at("run", name), weights_only=False)["global_step"] for name in os.listdir(t.at("run"))}
    newest = max(steps, key=steps.get)
    assert len(steps) >= 2 and newest.startswith("last") and "resumed 30" in p.stdout, (steps, p.stdout)
    p = subprocess.run([t.path, "latest", t.at("run"), "--deep"], capture_output=True, text=True, timeout=120)
    assert (p.returncode, p.stdout.rstrip("\n"), p.stderr) == (0, t.at("run", newest), ""), (p, steps)


def test_deepspeed_loads_the_answer(t):
    check(t, "deepspeed")
    for name in ("saved", "run"):
        shutil.rmtree(t.at(name))
    check(t, "deepspeed-3")


def test_deepspeed_pipelines_load_the_answer(t):
    check(t, "deepspeed-pipeline")
