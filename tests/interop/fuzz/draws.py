"""What one draw is: everything follows from the run's seed and the draw's number."""
import random
from dataclasses import dataclass, field

WORLDS = [1, 2, 2, 3, 4]


@dataclass
class Draw:
    seed: int
    number: int
    world: int = 0
    strategy: str = ""
    apart: bool = False  # what every rank has for itself differs
    steps: int = 0
    missing: float = 0.0  # of gradients
    wide: bool = False    # with what `widen` draws
    named: bool = False   # optimizers made of named parameters
    user: bool = False    # optimizers with state that belongs to no parameter
    jobs: list = field(default_factory=list)

    def rng(self, what="model"):
        return random.Random(f"{self.seed}/{self.number}/{what}")

    def title(self):
        return f"--seed {self.seed} --only {self.number}" + " --wide" * self.wide


GETS, SETS = ["get_model", "get_optimizer", "get_both"], ["set_model", "set_optimizer", "set_both"]
NESTED = ["gather", "flatten", "flatten_dcp"]  # of state dicts alone
CHANGES = [None, None, None, "drop", "add", "shape", "dtype", "order", "group option", "empty", "state key"]

WIDE_CHANGES = ["tensor option", "tensor option", "tensors option", "option of another kind", "shape"]


def options(rng, op):
    drawn = {}
    for name, chance in (("full_state_dict", 0.45), ("cpu_offload", 0.25), ("ignore_frozen_params", 0.15), ("flatten_optimizer_state_dict", 0.25)):
        if rng.random() < chance:
            drawn[name] = True
    if op.startswith("set_") and rng.random() < 0.3:
        drawn["strict"] = False
    if rng.random() < (0.6 if drawn.get("full_state_dict") and op.startswith("set_") else 0.03):
        drawn["broadcast_from_rank0"] = True
    return drawn


def job(rng, op):
    made = {"op": op, "options": options(rng, op), "change": None}
    if op in ("get_model", "get_both") and rng.random() < 0.15:
        made["submodules"] = rng.choice([1, 1, 2])
        if rng.random() < 0.4:
            made["options"]["keep_submodule_prefixes"] = False
    if op.startswith("set_"):
        made["change"] = rng.choice(CHANGES)
        made["of"] = {k: v for k, v in made["options"].items() if k in ("full_state_dict", "flatten_optimizer_state_dict")}
    return made


def widen(d):
    """From a stream of its own, so that the draws without it stay what they are."""
    rng = d.rng("wide")
    d.wide, d.named, d.user = True, rng.random() < 0.3, rng.random() < (0.4 if d.strategy == "fsdp1" else 0.2)
    for made in d.jobs:
        if made["op"].startswith("set_") and rng.random() < 0.5:
            made["change"] = rng.choice(WIDE_CHANGES)
    if d.strategy == "fsdp1":
        d.jobs += [raw_job(rng, "raw_get"), raw_job(rng, "raw_set")]


def raw_job(rng, op):
    """FSDP's own calls around an optimizer's own; the options say in which form (StateDictType)."""
    made = {"op": op, "options": dict(rng.choice([{}, {"full_state_dict": True}, {"full_state_dict": True, "cpu_offload": True}])), "change": None}
    if op == "raw_set":
        made["change"] = rng.choice([None, None, "group option", "state key", *WIDE_CHANGES])
        made["of"] = dict(made["options"])
    return made


def draw(seed, number, strategies, wide=False):
    d = Draw(seed, number)
    rng = d.rng("draw")
    d.world = rng.choice(WORLDS)
    d.strategy = rng.choice(strategies[d.world])
    d.apart = rng.random() < 0.5
    d.steps = rng.choice([0, 0, 1, 1, 2])
    d.missing = rng.choice([0.0, 0.0, 0.3])
    d.jobs = [job(rng, op) for op in ("get_model", "get_optimizer", "set_model", "set_optimizer")]
    if rng.random() < 0.3:
        d.jobs.append(job(rng, rng.choice(["get_both", "set_both"])))
    if rng.random() < 0.5:
        d.jobs.append({"op": rng.choice(NESTED), "options": {}})
    if d.strategy == "fsdp1":
        for made in d.jobs:  # on the CPU PyTorch frees what it offloads: it crashes
            if made["op"] in ("get_model", "get_both") and made["options"].get("full_state_dict"):
                made["options"].pop("cpu_offload", None)
    if wide:
        widen(d)
    return d
