"""The programs of native/python/FRAMEWORKS.md, each with its framework, in a virtual environment of their own."""
import importlib
import json
import os
import re
import subprocess
import sys
import sysconfig

import torch
from checks import Skip
from ended import leaving
from harness import ROOT
from shell import check, made_once
from test_python import INSTALLED, tessera

PAGE = os.path.join(ROOT, "native/python/FRAMEWORKS.md")
with open(os.path.join(ROOT, "samples/requirements.txt")) as f:
    IS_PINNED = f"torch=={torch.__version__.partition('+')[0]}\n" in f
# Environments find the PyTorch that these tests run on, so another one than the pinned one, which other suites look for here, has its own.
PLACE = os.path.join(ROOT, ".local/package-frameworks" + ("" if IS_PINNED else f"-{torch.__version__}"))
PINS = ("lightning==2.6.6", "accelerate==1.15.0", "transformers==5.23.0")
TORCHTITAN = ("torchtitan==0.3.0", "torch_checkpointing", "spmd_types==0.2.3", "tyro", "einops", "docstring-parser", "shtab", "typeguard")  # what its checkpoints import


def programs():
    """The program of each section of the page, by its heading."""
    with open(PAGE) as f:
        sections = re.split(r"^## ", f.read(), flags=re.MULTILINE)[1:]
    return {section.splitlines()[0]: "\n".join(line[4:] for line in section.splitlines() if line.startswith("    ") or not line) for section in sections}


def needs_pytorchs(name, what):
    """Skips if the PyTorch of these tests lacks what a program or its framework imports of it."""
    module, _, member = name.rpartition(".")
    if not hasattr(importlib.import_module(module), member):
        raise Skip(f"PyTorch {torch.__version__} does not have {name}, which {what} needs")


def python_with(module, *pins, deps=True):
    """A python with PyTorch and these packages."""
    place = os.path.join(PLACE, module)

    def make():
        check(sys.executable, "-m", "venv", place)
        with open(os.path.join(sysconfig.get_path("purelib", vars={"base": place, "platbase": place}), "torch.pth"), "w") as f:
            f.write(sysconfig.get_path("purelib") + "\n")
        p = subprocess.run([f"{place}/bin/pip", "install", "--timeout", "60", "--retries", "3", "--quiet", "--disable-pip-version-check", *([] if deps else ["--no-deps"]), *pins],
                           capture_output=True, text=True, timeout=1200)
        return "" if p.returncode == 0 else f"pip cannot install {' '.join(pins)}: {p.stderr.strip()[-300:]}"
    os.makedirs(place, exist_ok=True)
    failed = made_once(place, make)
    if failed:
        os.unlink(os.path.join(place, "made"))  # the next run tries again
        raise Skip(failed)
    return f"{place}/bin/python"


def run(t, python, program, *arguments, ranks=None):
    with open(t.at("program.py"), "w") as f:
        f.write(leaving(program))
    started = [python, *(["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []), t.at("program.py"), *map(str, arguments)]
    return check(*started, env={**os.environ, "PYTHONPATH": INSTALLED, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}, cwd=t.scratch)


def test_every_section_has_one_program(t):
    assert list(programs()) == ["A bare loop", "Lightning", "accelerate", "torchtitan"]
    for heading, program in programs().items():
        compile(program, heading, "exec")


def test_a_bare_loop_resumes_on_another_number_of_ranks(t):
    needs_pytorchs("torch.distributed.fsdp.fully_shard", "the program")
    bare = programs()["A bare loop"]
    for run_of in ("resumed", "whole"):
        os.mkdir(t.at(run_of))
    run(t, sys.executable, bare, t.at("whole"), 6, ranks=1)
    run(t, sys.executable, bare, t.at("resumed"), 4, ranks=1)
    with open(t.at("resumed/step-4/.metadata"), "r+b") as f:  # would not load: the run goes on from step 2
        f.truncate(100)
    os.rename(t.at("resumed/step-4"), t.at("resumed/damaged"))
    run(t, sys.executable, bare, t.at("resumed"), 6, ranks=2)
    a, b = (tessera.torch.load(t.at(name, "step-6")) for name in ("whole", "resumed"))
    assert a.keys() == b.keys() and len(a) > 8 and all(torch.allclose(a[name], b[name], atol=1e-5) for name in a)
    assert tessera.get(t.at("resumed/step-6"), "step") == 6


def test_lightning_saves_and_resumes(t):
    python = python_with("frameworks", *PINS)
    os.mkdir(t.at("run"))
    check_state = ("\nimport json\nprint('STATE', json.dumps({name: value.flatten().tolist() for name, value in model.state_dict().items()}), "
                   "json.dumps(sorted(os.listdir(run))), trainer.optimizers[0].state_dict()['state'][0]['step'].item())\n")
    program = programs()["Lightning"]
    for steps in (6, 2):  # of the resumed run: two more
        out = run(t, python, program.replace("max_steps=6", f"max_steps={steps}") + check_state, t.at("run"))
        state, names, step = re.search(r"STATE (\{.*\}) (\[.*\]) (\S+)$", out, re.MULTILINE).groups()
        assert json.loads(names) == ["last.ckpt", "step-2", "step-4", "step-6"] and float(step) == (6 if steps == 6 else 8)
        if steps == 6:
            saved = tessera.torch.load(t.at("run/step-6"), prefix="model.")
            assert {name: value.flatten().tolist() for name, value in saved.items()} == json.loads(state)
        last = tessera.torch.load(t.at("run/last.ckpt"), prefix="state_dict.")
        assert {name: value.flatten().tolist() for name, value in last.items()} == json.loads(state)


def test_accelerate_saves_and_transformers_loads(t):
    needs_pytorchs("torch.distributed.tensor.DTensor", PINS[-1])
    more = ("\nassert (missing, unexpected) == ([], [])\nassert all(torch.equal(exported.state_dict()[name], weights[name].cpu()) for name in exported.state_dict())\n"
            "accelerator.save_state(f'{run}/state')\n"
            "read = tessera.torch.load(f'{run}/state', part='model') if 'model' in str(tessera.inspect(f'{run}/state').get('parts')) else tessera.torch.load(f'{run}/state/model.safetensors')\n"
            "assert all(torch.equal(read[name], weights[name].cpu()) for name in read) and read\n")
    run(t, python_with("frameworks", *PINS), programs()["accelerate"] + more, t.at("run"))
    assert tessera.check(t.at("run/export"), deep=True) == [] == tessera.check(t.at("run/step-1"), deep=True)


def test_torchtitan_saves_and_loads(t):
    needs_pytorchs("torch.distributed.tensor.DTensor", TORCHTITAN[0])
    more = """
import sys, torch, torchtitan.components.checkpointer.dcp as theirs
manager = Checkpoints.__new__(Checkpoints)
manager.enable, manager.pg, manager.states = False, None, {}
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meeting", rank=0, world_size=1)
for k, mode in ((1, AsyncMode.DISABLED), (2, AsyncMode.ASYNC)):
    future = manager.dcp_save({"w": torch.arange(6.) * k, "train_state": {"step": k}}, f"{sys.argv[1]}/step-{k}", mode)
    if future is not None:
        future.result()
    state = {"w": torch.zeros(6), "train_state": {"step": 0}}
    manager.dcp_load(state, f"{sys.argv[1]}/step-{k}", False, False)
    assert torch.equal(state["w"], torch.arange(6.) * k) and state["train_state"] == {"step": k}
torch.distributed.destroy_process_group()
"""
    os.mkdir(t.at("run"))
    run(t, python_with("torchtitan", *TORCHTITAN, deps=False), programs()["torchtitan"] + more, t.at("run"))
    assert tessera.latest(t.at("run"))["path"].endswith("step-2")
