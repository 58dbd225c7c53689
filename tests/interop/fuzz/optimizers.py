"""Random optimizers of torch.optim with their states."""
import inspect
import warnings

import torch
from torch import optim
from torch.distributed.tensor import DTensor

# name → options that may be drawn, each with its choices
OPTIONS = {
    "SGD": {"lr": [0.1, 0.25], "momentum": [0.0, 0.5, 0.9], "weight_decay": [0.0, 0.5], "nesterov": [False]},
    "Adam": {"lr": [0.1, 0.25], "betas": [(0.5, 0.75), (0.9, 0.999)], "weight_decay": [0.0, 0.25], "amsgrad": [False, True]},
    "AdamW": {"lr": [0.1, 0.25], "betas": [(0.5, 0.75), (0.9, 0.999)], "amsgrad": [False, True]},
    "NAdam": {"lr": [0.1], "momentum_decay": [0.004, 0.25], "decoupled_weight_decay": [False, True]},
    "RAdam": {"lr": [0.1], "betas": [(0.5, 0.75)]},
    "Adamax": {"lr": [0.1], "betas": [(0.5, 0.75)], "eps": [1e-8, 0.5]},
    "Adadelta": {"lr": [0.1], "rho": [0.5, 0.9]},
    "Adagrad": {"lr": [0.1], "lr_decay": [0.0, 0.25], "initial_accumulator_value": [0.0, 0.5]},
    "Adafactor": {"lr": [0.1]},
    "ASGD": {"lr": [0.1], "t0": [1e6, 2.0]},
    "RMSprop": {"lr": [0.1], "momentum": [0.0, 0.5], "centered": [False, True]},
    "Rprop": {"lr": [0.1], "etas": [(0.5, 1.2)]},
    "Muon": {"lr": [0.1]},
    "LBFGS": {"lr": [0.1], "history_size": [3]},
    "SparseAdam": {"lr": [0.1]},
}
COMMON = ["SGD", "Adam", "AdamW"]
TENSOR_LR = ["Adam", "AdamW", "SGD", "RMSprop", "Adamax", "NAdam", "RAdam", "Adadelta", "Rprop"]
FUSED = ["SGD", "Adam", "AdamW", "Adagrad"]
RARE = ["Muon", "LBFGS", "SparseAdam"]
NOT_DISTRIBUTED = RARE + ["Adafactor", "Rprop"]  # by what DTensor can do


def options(rng, name, part):
    drawn = {key: rng.choice(choices) for key, choices in OPTIONS[name].items() if rng.random() < 0.7}
    if name in TENSOR_LR and rng.random() < 0.2:
        drawn["lr"] = torch.tensor(drawn.get("lr", 0.5))
        drawn["foreach"] = False
    elif name in FUSED and rng.random() < 0.15 and not any(p.is_complex() for p in part):
        drawn["fused"] = True
    elif name not in RARE + ["Adafactor"] and rng.random() < 0.3:
        drawn["foreach"] = rng.choice([False, True])
    kinds_of = {isinstance(p, DTensor) for p in part}
    if True in kinds_of and name not in ("Adam", "AdamW"):
        drawn.pop("fused", None)  # DTensor has no such operation
    if len(kinds_of) > 1 and "foreach" in inspect.signature(getattr(optim, name)).parameters:
        drawn.pop("fused", None)
        drawn["foreach"] = False  # does not mix both
    return drawn


def suits(name, p):
    if name == "Muon":
        return p.ndim == 2 and not p.is_complex()
    if name == "Adafactor":
        return not p.is_complex() and p.dtype != torch.float64 and p.numel() > 0
    return name != "SparseAdam" or not p.is_complex()


def kinds(rng, strategy):
    if rng.random() < 0.6:
        return rng.choice(COMMON)
    several = strategy not in ("plain", "ddp")
    return rng.choice([n for n in OPTIONS if n not in COMMON and not (several and n in NOT_DISTRIBUTED)])


def groups(rng, parameters, name):
    """Several groups, some with options of their own, perhaps without the last parameters."""
    if name == "LBFGS":
        return [{"params": parameters}]
    cuts = sorted(rng.sample(range(1, len(parameters)), min(rng.choice([0, 0, 1, 2]), len(parameters) - 1)))
    made = [{"params": parameters[a:b]} for a, b in zip([0, *cuts], [*cuts, len(parameters)])]
    for g in made[1:]:
        if rng.random() < 0.6:
            g["lr"] = rng.choice([0.01, 0.5])
        if rng.random() < 0.2:
            g["note"] = rng.choice(["text", 3, None, [1, 2]])
    return made


def with_names(model, grouped):
    """Groups of named parameters, as Optimizer takes them."""
    names = {id(p): n for n, p in model.named_parameters()}
    return [{**g, "params": [(names[id(p)], p) for p in g["params"]]} for g in grouped]


def tensor_betas(chosen):
    """Which PyTorch takes one by one only."""
    chosen.pop("fused", None)
    chosen.update(betas=tuple(torch.tensor(b) for b in chosen.get("betas", (0.5, 0.75))), foreach=False)


def draw(rng, model, of):
    """One optimizer or two, over the parameters of draw `of`'s model or some of them."""
    parameters = list(model.parameters())
    if rng.random() < 0.2:
        rng.shuffle(parameters)
    if rng.random() < 0.15 and len(parameters) > 1:
        parameters.pop(rng.randrange(len(parameters)))
    parts = [parameters]
    if rng.random() < 0.25 and len(parameters) > 1:
        cut = rng.randrange(1, len(parameters))
        parts = [parameters[:cut], parameters[cut:]]
    made = []
    for part in parts:
        name = rng.choice(COMMON) if of.strategy == "fsdp1" and rng.random() < 0.7 else kinds(rng, of.strategy)
        if not all(suits(name, p) for p in part):
            name = rng.choice(COMMON)
        chosen, grouped = options(rng, name, part), groups(rng, part, name)
        if of.wide and name in ("Adam", "AdamW") and of.rng(("betas", len(made))).random() < 0.3:
            tensor_betas(chosen)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.append(getattr(optim, name)(with_names(model, grouped) if of.named else grouped, **chosen))
    return made


def put_gradients(rng, optimizers, missing):
    for o in optimizers:
        sparse = type(o).__name__ == "SparseAdam"
        for g in o.param_groups:
            for p in g["params"]:
                if not p.requires_grad or rng.random() < missing:
                    continue
                p.grad = torch.full_like(p, 0.5).detach()
                if sparse:
                    p.grad = p.grad.to_sparse()


# What PyTorch cannot do, and without which option it can
CANNOT = {"on inputs with different meshes": "foreach",  # DTensors over several meshes; ASGD comes to it in its second step
          "expected Tensor as element": "fused"}  # SGD in its second step, where a parameter had no gradient in the first


def step(o):
    if type(o).__name__ == "LBFGS":
        return o.step(lambda: torch.tensor(1.0))
    try:
        return o.step()
    except (RuntimeError, TypeError) as e:
        option = next((key for text, key in CANNOT.items() if text in str(e)), None)
        if not option:
            raise
    for g in o.param_groups:
        g[option] = False
    return o.step()


def train(rng, optimizers, steps, missing):
    """So many steps; parameters without a gradient in any have no state."""
    for _ in range(steps):
        put_gradients(rng, optimizers, missing)
        for o in optimizers:
            step(o)
            o.zero_grad()


def part(rng, optimizers, rank, world, own):
    """What one rank's optimizers have for themselves: values of options, an option, a state. `own`: identities of the parameters
    that no other rank has a part of."""
    for o in optimizers:
        for g in o.param_groups:
            if rng.random() < 0.3 and type(g["lr"]) is float:
                g["lr"] += rank / 8
        one, whole = rng.randrange(world) == rank, [p for p in o.state if id(p) in own and o.state[p]]
        if rng.random() < 0.1 and one:
            o.param_groups[0]["mine"] = rank
        if rng.random() < 0.2 and one and whole:
            part_state(rng, o, rng.choice(whole))


def put_user_state(rng, optimizers, rank, world):
    """State under keys that are not parameters, which ranks of `world` may differ in, or which one of them has alone."""
    for o in optimizers:
        alone = rng.randrange(world) if world > 1 and rng.random() < 0.3 else rank
        state = rng.choice([{"calls": 3 + rank, "mean": torch.full((2,), 1.5 + rank)}, {"mean": torch.full((3,), 2.5)}, {"calls": 7}])
        if rng.random() < 0.7 and alone == rank:
            o.state["user"] = state


def part_state(rng, o, p):
    how = rng.randrange(3)
    if how == 0:
        o.state[p]["mine"] = torch.full((2,), 3.0)
    elif how == 1:
        o.state[p].pop(rng.choice([k for k in o.state[p] if k != "step"] or ["step"]), None)
    else:
        del o.state[p]
