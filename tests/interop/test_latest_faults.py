"""Faults are injected into the newest checkpoint of a run, and `tessera latest` must answer with what the framework's own loader accepts: the
directories of eight frameworks, killed while they were saved, cut, emptied, lost, flipped, with blocks that never reached the disk or
names that were not changed yet, half copied by rsync, and while they are being written. After every third fault `tessera prune --keep 1` runs, which must leave what `latest` answered and every newer step as it
is. With TSR_TEST_FULL there are 1,500 faults for each.

The loader of a framework that is not installed is what it calls: torch.load, safetensors, json, or PyTorch's reader of DCPs, for each file that
it opens. Classes that are not installed are read as objects without meaning."""
import fnmatch
import json
import logging
import os
import pickle
import random
import shutil
import subprocess
import threading
import types

import torch
import torch.distributed.checkpoint as dcp
from checks import ROOT
from harness import SAMPLES, load_dcp
from safetensors.torch import load_file

logging.disable(logging.ERROR)  # of PyTorch, about files that are damaged on purpose
GOLDEN = os.path.join(ROOT, "tests", "golden")
CASES = 1500 if os.environ.get("TSR_TEST_FULL") else 30
BLOCK = 512  # what is lost together when the power fails

TRAINER_WRITES = ("config.json", "generation_config.json", "model.safetensors", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth",
                  "trainer_state.json")
# Of each framework: the checkpoint, the name of a step's directory, files that its loader does not open, files whose absence it accepts or
# cannot notice, and what it writes last, in this order.
FRAMEWORKS = {
    "dcp": (f"{SAMPLES}/dcp_fsdp2", "step_{}", (), (), (".metadata",)),
    "transformers": (f"{SAMPLES}/safetensors_index", "step-{}", ("config.json",), (), ("model.safetensors.index.json",)),
    "torchtitan": (f"{SAMPLES}/dcp_tp_fsdp2", "step-{}", (), (), (".metadata",)),
    "trainer": (f"{SAMPLES}/hf_trainer/checkpoint-4", "checkpoint-{}", ("generation_config.json", "training_args.bin", "config.json"),
                ("trainer_state.json", "rng_state.pth", "scheduler.pt", "optimizer.pt"), TRAINER_WRITES),
    "deepspeed-3": (f"{SAMPLES}/deepspeed_zero3/global_step2", "global_step{}", (), (), ()),
    "deepspeed-1": (f"{GOLDEN}/deepspeed/zero1_bf16", "global_step{}", ("expect.json",), (), ()),
    "deepspeed-pipeline": (f"{GOLDEN}/deepspeed/zero1_pipeline", "global_step{}", ("expect.json",), (), ()),
    "accelerate": (f"{GOLDEN}/directories/accelerate", "checkpoint_{}", (), ("random_states_*",), ()),
    "accelerate-fsdp": (f"{GOLDEN}/directories/accelerate_fsdp_sharded", "checkpoint_{}", (), ("random_states_*", "scheduler*", "optimizer*", "*_1/*"), ()),
    "lightning": (f"{SAMPLES}/lightning_dist", "epoch=0-step={}.ckpt", (), (), (".metadata",)),
    "megatron": (f"{SAMPLES}/megatron_dist", "iter_{:07d}", (), (), (".metadata", "metadata.json")),
}


# ---- the loaders ----


class Unknown(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name  # a member of an enumeration


class Nothing(metaclass=Unknown):
    """An object of a class that is not installed."""

    def __init__(self, *args, **kwargs):
        pass

    def __setstate__(self, state):
        pass


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            return Unknown(name, (Nothing,), {})


def lenient():
    module = types.ModuleType("lenient")
    vars(module).update(vars(pickle), Unpickler=Unpickler, load=lambda file, **options: Unpickler(file, **options).load())
    return module


def content(value):
    """The values in what was loaded, for comparison."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    if isinstance(value, dict):
        return {str(k): content(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [content(v) for v in value]
    return value if isinstance(value, (int, float, str, bytes, bool, type(None))) else type(value).__name__


def load(path):
    if os.path.isdir(path):
        return content(load_dcp(path))
    if path.endswith(".json"):
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    return content(load_file(path) if path.endswith(".safetensors") else torch.load(path, weights_only=False, pickle_module=lenient()))


class Loader:
    """What a framework's loader makes of a copy of its whole checkpoint: "equal", "unread" if it does not read what is
    damaged, "changed" if it loads other values, "refused", or "either" if it does not look."""

    def __init__(self, whole, ignored, optional):
        self.whole, self.ignored, self.optional = whole, ignored, optional
        self.files = sorted(os.path.relpath(os.path.join(at, n), whole) for at, _, names in os.walk(whole) for n in names)
        self.data = {}
        for name in self.files:
            with open(os.path.join(whole, name), "rb") as f:
                self.data[name] = f.read()
        self.contents = {unit: load(os.path.join(whole, unit)) for unit in {self.unit(n) for n in self.files} if not self.matches(unit, ignored)}

    @staticmethod
    def matches(name, patterns):
        return any(fnmatch.fnmatch(name, p) for p in patterns)

    def unit(self, name):
        """What is loaded together with a file: its DCP, or the file alone."""
        directory = os.path.dirname(name)
        return directory or "." if name.endswith((".metadata", ".distcp")) and os.path.join(directory, ".metadata") in self.files else name

    def verdict(self, path):
        worst = "equal"
        for name in self.files:
            file = os.path.join(path, name)
            if self.matches(name, self.ignored):
                if not os.path.exists(file) or os.path.getsize(file) < len(self.data[name]):
                    worst = "either"
                continue
            if not os.path.exists(file):
                if not self.matches(name, self.optional):
                    return "refused"
                worst = "either"
                continue
            with open(file, "rb") as f:
                if f.read() == self.data[name]:
                    continue
            try:
                same = load(os.path.join(path, self.unit(name))) == self.contents[self.unit(name)]
            except (Exception, dcp.api.CheckpointException):  # the latter is a BaseException
                return "refused"
            worst = "unread" if same else "changed"  # such as chunks without elements
        return worst


# ---- the faults ----


def put(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)


def write_order(rng, loader, last):
    """The files in the order of a save: those that a framework writes last at the end, and the others in any order, as ranks write them."""
    early = [n for n in loader.files if n not in last]
    rng.shuffle(early)
    return early + [n for n in last if n in loader.files]


def unfinished_name(rng, path):
    """A name that a file has while it is written or copied, or that an editor gives to a copy."""
    directory, name = os.path.split(path)
    return os.path.join(directory, rng.choice((f".{name}.aB3x9Q", f"{name}.tmp", f"{name}.part", f"{name}.incomplete", f"{name}~", f".{name}.swp", f".~{name}", f"._{name}", ".tmpAb12Cd")))


def rsync(rng, loader, path):
    """Copies in the order of the names. The file that it was copying has a name of its own, or is written in its place, in which all of its
    blocks may be reserved. Returns (what was done, whether only --deep can see it)."""
    at, how = rng.randrange(len(loader.files)), rng.choice(("to a temporary name", "in place", "in reserved blocks"))
    for name in loader.files[at:]:
        os.remove(os.path.join(path, name))
    data, file = loader.data[loader.files[at]], os.path.join(path, loader.files[at])
    copied = data[:rng.randrange(len(data) or 1)]
    directory, name = os.path.split(file)
    put(os.path.join(directory, f".{name}.aB3x9Q") if how == "to a temporary name" else file, copied.ljust(len(data), b"\0") if how == "in reserved blocks" else copied)
    return f"'{loader.files[at]}' copied {how} up to {len(copied)}, before {loader.files[at + 1:]}", how == "in reserved blocks"


def fault(rng, loader, path, last):
    """Damages the checkpoint. Returns (what was done, whether only --deep can see it)."""
    kind = rng.choice(("killed", "cut", "emptied", "lost", "dropped", "flipped", "not renamed", "rsync"))
    name = rng.choice(loader.files)
    file, data = os.path.join(path, name), loader.data[name]
    if kind == "rsync":
        return rsync(rng, loader, path)
    if kind == "not renamed":
        put(unfinished_name(rng, file), data)
    if kind == "killed":
        order = write_order(rng, loader, last)
        at = rng.randrange(len(order))
        for later in order[at + 1:]:
            os.remove(os.path.join(path, later))
        cut = rng.randrange(len(loader.data[order[at]]) or 1)
        put(os.path.join(path, order[at]), loader.data[order[at]][:cut])
        return f"killed in '{order[at]}' after {cut} bytes, before {order[at + 1:]}", False
    if kind in ("lost", "not renamed"):
        os.remove(file)
    elif kind in ("cut", "emptied"):
        cut = rng.randrange(len(data)) if kind == "cut" and data else 0
        put(file, data[:cut])
        return f"'{name}' {kind} to {cut} bytes", False
    elif kind == "dropped":
        blocks = [at for at in range(0, len(data), BLOCK) if rng.random() < 0.5] or [0]
        damaged = bytearray(data)
        for at in blocks:
            damaged[at:at + BLOCK] = bytes(len(damaged[at:at + BLOCK]))
        put(file, bytes(damaged))
        return f"'{name}' without the blocks at {blocks}", True
    else:
        bit = rng.randrange(8 * len(data)) if data else 0
        put(file, bytes(b ^ (1 << bit % 8) if i == bit // 8 else b for i, b in enumerate(data)))
        return f"bit {bit} of '{name}' flipped", True
    return f"'{name}' {kind}", False


def answer(t, run, *options):
    p = subprocess.run([t.path, "latest", run, *options], stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    assert p.returncode in (0, 1), p.stderr.decode()
    return p.stdout.decode().rstrip("\n"), p.stderr.decode()


def run_of(t, framework):
    """Makes a run with three whole steps. Returns (loader, its path, the paths of the steps, newest first, what is written last)."""
    whole, name, ignored, optional, last = FRAMEWORKS[framework]
    if framework == "transformers":  # its save_pretrained writes this first
        whole = shutil.copytree(whole, t.at("transformers-whole"))
        put(os.path.join(whole, "config.json"), b'{"model_type": "llama"}')
    steps = [t.at(framework, name.format(step)) for step in (100, 10, 9)]
    for step in steps:
        shutil.copytree(whole, step)
    return Loader(whole, ignored, optional), t.at(framework), steps, last


def restore(loader, path):
    shutil.rmtree(path, ignore_errors=True)
    for name, data in loader.data.items():
        put(os.path.join(path, name), data)


def everything(path):
    files = sorted(os.path.join(at, name) for at, _, names in os.walk(path) for name in names)
    return {file: open(file, "rb").read() for file in files}


def prune(t, run, *options):
    """Removes all steps but one, as if nothing had been written for a while."""
    for at, _, names in os.walk(run):
        for name in (*names, "."):
            os.utime(os.path.join(at, name), (1e9, 1e9))
    p = subprocess.run([t.path, "prune", run, "--keep", "1", *options], stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    return p.returncode, p.stderr.decode()


def check_prune(t, loader, run, steps, found, options):
    """What is wrong after a prune of a run in which `found` is the newest step that loads; "" if nothing is."""
    newer = {step: everything(step) for step in steps[:steps.index(found)]}
    status, said = prune(t, run, *options)
    needed = [name for name in loader.files if not loader.matches(name, loader.ignored)]
    left = [step for step in steps if any(os.path.exists(os.path.join(step, name)) for name in needed)]
    if status != 0 or found not in left:
        return f"prune exits with {status} and leaves {left}: {said}"
    if found != steps[0] and loader.verdict(found) != "equal":
        return f"prune damaged {found}: {said}"
    if any(everything(step) != files for step, files in newer.items()):
        return f"prune changed a step newer than {found}: {said}"
    if any(step in left for step in steps[steps.index(found) + 1:]) or answer(t, run, *options)[0] != found:
        return f"prune leaves {left}, and the answer is {answer(t, run, *options)[0]}: {said}"
    return ""


def check_faults(t, framework):
    rng = random.Random(f"{framework} 44")
    loader, run, steps, last = run_of(t, framework)
    assert answer(t, run)[0] == steps[0] == answer(t, run, "--deep")[0], answer(t, run, "--deep")
    bad = []
    for case in range(CASES):
        done, deep = fault(rng, loader, steps[0], last)
        verdict = loader.verdict(steps[0])
        found, said = answer(t, run, *(["--deep"] if deep else []))
        accepted = {"refused": steps[1:2], "equal": steps[:2] if deep else steps[:1]}.get(verdict, steps[:2])
        if found not in accepted or said.count("passed over") != (found != steps[0]) * os.path.isdir(steps[0]):
            bad.append(f"case {case}: {done}: the loader's verdict is '{verdict}', and the answer {os.path.basename(found)}: {said}")
        elif case % 3 == 0:
            wrong = check_prune(t, loader, run, steps, found, ["--deep"] if deep else [])
            if wrong:
                bad.append(f"case {case}: {done}: {wrong}")
            for step in steps[1:]:
                restore(loader, step)
        restore(loader, steps[0])
    assert not bad, f"{framework}: {len(bad)} of {CASES}:\n" + "\n".join(bad[:12])


def test_dcp_faults(t):
    check_faults(t, "dcp")


def test_transformers_faults(t):
    check_faults(t, "transformers")


def test_torchtitan_faults(t):
    check_faults(t, "torchtitan")


def test_trainer_faults(t):
    check_faults(t, "trainer")


def test_deepspeed_faults(t):
    check_faults(t, "deepspeed-3")
    check_faults(t, "deepspeed-1")


def test_deepspeed_pipeline_faults(t):
    check_faults(t, "deepspeed-pipeline")


def test_accelerate_faults(t):
    check_faults(t, "accelerate")
    check_faults(t, "accelerate-fsdp")


def test_lightning_faults(t):
    check_faults(t, "lightning")


def test_megatron_faults(t):
    check_faults(t, "megatron")


# ---- a job that writes meanwhile ----


def write_slowly(loader, path, order, written, stop):
    for name in order:
        data = loader.data[name]
        os.makedirs(os.path.dirname(os.path.join(path, name)), exist_ok=True)
        with open(os.path.join(path, name), "wb", buffering=0) as f:
            for at in range(0, len(data), 1024):
                if stop.is_set():
                    return
                f.write(data[at:at + 1024])
        written.append(name)


def was_whole(loader, path, order, first, last):
    """Whether the loader accepts what was there when the first `n` files were written, for any n from `first` to `last`."""
    for count in range(first, last + 1):
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path)
        for name in order[:count]:
            put(os.path.join(path, name), loader.data[name])
        if loader.verdict(path) != "refused":
            return True
    return False


def test_a_save_at_the_same_time_is_never_the_answer_before_it_is_whole(t):
    for framework in FRAMEWORKS:
        rng = random.Random(f"{framework} 45")
        loader, run, steps, last = run_of(t, framework)
        for _ in range(max(2, CASES // 20)):
            shutil.rmtree(steps[0])
            stop, written, order = threading.Event(), [], write_order(rng, loader, last)
            writer = threading.Thread(target=write_slowly, args=(loader, steps[0], order, written, stop))
            writer.start()
            before = len(written)
            found, said = answer(t, run)
            after = min(len(written) + 1, len(order))  # the next file may be whole already, although the writer has not said so
            stop.set()
            writer.join()
            assert found in steps[:2] and (found == steps[1] or was_whole(loader, t.at("states"), order, before, after)), f"{framework}: {found}: {said}"
            restore(loader, steps[0])
