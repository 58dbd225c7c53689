"""Optimizers' state dicts as real PyTorch gives and takes them, for tests/statedict: python tests/golden/make_optimizer_state.py

optimizer_state.json: torch/distributed/checkpoint/state_dict.py on gloo, 2 ranks (rows A12, A13). A case is a model of
make_model_state.py with its optimizers after two steps (or none: "fresh"): by rank the tensors, the groups with parameters by raw
name and their states, what get_optimizer_state_dict makes of them under several options, and what is there after
set_optimizer_state_dict of a changed state dict, or the error. Values are written as in make_state_dict.py. `unlike`: the optimizers
do not hold what the state dict has, or other than it: what they held before ("optimizers") and hold afterwards ("then").
`user` is state of no parameter; "param_names" are in groups that were made of named parameters.
`raws`: Optimizer.state_dict() or NamedOptimizer's, changed, and what is there after load_state_dict of it.
"""
from make_model_state import MODELS, Net, WORLD, encode, modules_document, tensors, write

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import _NamedOptimizer
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict, StateDictOptions

FULL = {"full_state_dict": True}
SPREAD = {"full_state_dict": True, "broadcast_from_rank0": True}
FLAT = {"flatten_optimizer_state_dict": True}


def adamw(params):
    return [torch.optim.AdamW([p for _, p in params], lr=0.5, betas=(0.5, 0.75), foreach=False)]


def two(params):
    """Two optimizers, one of them with two groups; parameters in another order than the model's."""
    a, b = [p for n, p in params if "body" in n], [p for n, p in params if "body" not in n]
    return [torch.optim.SGD([{"params": b[::-1]}], lr=0.25, momentum=0.5, weight_decay=0.5),
            torch.optim.Adam([{"params": a[:1], "lr": 0.125}, {"params": a[1:], "amsgrad": True}], betas=(0.5, 0.75), weight_decay=0.25, foreach=False)]


def stateless(params):
    return [torch.optim.SGD([p for _, p in params], lr=0.25)]


def tensor_lr(params):
    """Options that are tensors: flat state dicts have one for each parameter."""
    a, b = [p for n, p in params if "body" in n], [p for n, p in params if "body" not in n]
    return [torch.optim.AdamW([{"params": a}, {"params": b, "lr": torch.tensor(0.25)}], lr=torch.tensor(0.5), foreach=False)]


def named(params):
    """Made of named parameters."""
    a, b = [(n, p) for n, p in params if "body" in n], [(n, p) for n, p in params if "body" not in n]
    return [torch.optim.AdamW([{"params": a}, {"params": b[::-1], "lr": 0.25}], lr=0.5, betas=(0.5, 0.75), foreach=False)]


def others(params):
    """One parameter for each of the other algorithms whose __setstate__ completes old state dicts."""
    p = {n.removeprefix("module."): p for n, p in params}
    return [torch.optim.Adagrad([p["scale"]], lr=0.5), torch.optim.RMSprop([p["emb.weight"]], lr=0.5, centered=True, momentum=0.5),
            torch.optim.Adadelta([p["body.0.weight"]], lr=0.5), torch.optim.Adamax([p["body.0.bias"]], lr=0.5, betas=(0.5, 0.75)),
            torch.optim.NAdam([p["body.1.0.weight"]], lr=0.5, betas=(0.5, 0.75)), torch.optim.RAdam([p["extra.weight"]], lr=0.5, betas=(0.5, 0.75)),
            torch.optim.ASGD([p["extra.bias"]], lr=0.5)]


def rprop(params):
    return [torch.optim.Rprop([p for _, p in params], lr=0.5)]


def half():
    """FSDP2 of parameters of bfloat16."""
    net = Net().bfloat16()
    fully_shard(net, mesh=init_device_mesh("cpu", (WORLD,), mesh_dim_names=("dp",)))
    return net


MODELS = {**MODELS, "half": half}
CASES = {"ddp": ("ddp", adamw, 2), "compiled two": ("compiled", two, 2), "sharded": ("sharded", adamw, 2),
         "sharded two": ("sharded", two, 2), "fresh": ("sharded", two, 0),
         "named": ("ddp", named, 2), "named sharded": ("sharded", named, 2),
         "stateless": ("ddp", stateless, 2), "tensor lr": ("sharded", tensor_lr, 2), "half": ("half", adamw, 2),
         "others": ("ddp", others, 2), "rprop": ("ddp", rprop, 2)}


def train(model, make, steps):
    """The optimizers that `make` gives, after some steps."""
    named = list(model.named_parameters())
    before = [p.detach().clone() for _, p in named]
    optimizers = make(named)
    for step in range(steps):
        for i, (_, p) in enumerate(named):
            if p.requires_grad:
                p.grad = torch.full_like(p, i + step + 1)
        for o in optimizers:
            o.step()
            o.zero_grad()
    with torch.no_grad():  # short numbers
        for b, (_, p) in zip(before, named):
            p.copy_(b)
    return optimizers


def build(kind, make, steps):
    model = MODELS[kind]()
    return model, train(model, make, steps)


def user(optimizer):
    """State of no parameter."""
    state = {k: v for k, v in optimizer.state.items() if not isinstance(k, torch.Tensor)}
    return {"user": encode(state)} if state else {}


def groups(model, optimizers):
    raw = {p: n for n, p in model.named_parameters()}
    return [{"algorithm": type(o).__name__, "groups": [
        {"options": encode({k: v for k, v in g.items() if k != "params"}), "params": [raw[p] for p in g["params"]],
         "state": [encode(dict(o.state[p])) if p in o.state else None for p in g["params"]]} for g in o.param_groups], **user(o)} for o in optimizers]


def changed(value):
    if isinstance(value, ShardedTensor):
        for s in value.local_shards():
            s.tensor = s.tensor + 1
        return value
    if isinstance(value, torch.Tensor):
        return value + 1
    if isinstance(value, dict):
        return {k: changed(v) for k, v in value.items()}
    if isinstance(value, list):
        return [changed(v) for v in value]
    return value * 2 if type(value) is float else value


def gets(kind):
    for options in ({}, FULL, {**FULL, "cpu_offload": True}, FLAT, {**FULL, **FLAT}):
        model, optimizers = build(*kind)
        try:
            yield {"options": options, "out": encode(get_optimizer_state_dict(model, optimizers, options=StateDictOptions(**options)))}
        except Exception as e:
            yield {"options": options, "error": type(e).__name__}


def without(state):
    return {**state, "state": {k: v for k, v in state["state"].items() if k != "body.0.bias"}}


def sets(kind):
    same = lambda state: state
    for name, options, change in (
        ("as it is", {}, same), ("as it is", FULL, same), ("as it is", SPREAD, same), ("as it is", FLAT, same),
        ("missing", {}, without), ("missing", {"strict": False}, without), ("nothing", {}, lambda s: {}),
        ("no groups", {}, lambda s: {**s, "param_groups": s["param_groups"][:-1]}),
    ):
        model, optimizers = build(*kind)
        given = {k: v for k, v in options.items() if k in ("full_state_dict", "flatten_optimizer_state_dict")}
        state = change(changed(get_optimizer_state_dict(model, optimizers, options=StateDictOptions(**given))))
        if "broadcast_from_rank0" in options and dist.get_rank():
            state = {}
        record = {"of": name, "options": options, "state": encode(state)}
        try:
            set_optimizer_state_dict(model, optimizers, state, options=StateDictOptions(**options))
            after = get_optimizer_state_dict(model, optimizers)
            for group in after["param_groups"]:
                if "betas" in group:  # a list after full_state_dict, whatever it was
                    group["betas"] = tuple(group["betas"])
            record["after"] = encode(after)
        except Exception as e:
            record["error"] = type(e).__name__
        yield record


def lacks(name):
    """One optimizer has no state of a parameter, as if it never had a gradient."""
    def change(model, optimizers):
        p = next(p for n, p in model.named_parameters() if name in n)
        for o in optimizers:
            o.state.pop(p, None)
    return change


def gradients(model, optimizers):
    """Nothing was stepped yet, and there are gradients: PyTorch makes no first state then."""
    for o in optimizers:
        o.state.clear()
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.full_like(p, 2)


def stranger(state):
    """Of another stage of a pipeline."""
    return {**state, "state.stranger.weight.exp_avg": torch.ones(2), "param_groups.stranger.weight.lr": 3.0}


def popped(state, key):
    del state[key]
    return state


def copies(state):
    """Each tensor in memory of its own, as after loading."""
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.clone(), state)


def of_type(dtype, fused=False):
    """State of another type than the parameters', as a master copy has it; ints, too."""
    def change(state):
        for s in state["state"].values():
            for name, v in s.items():
                s[name] = v.double() if name == "step" else (v * 1.0078125).to(dtype)
            s["count"] = torch.tensor([300, 5])
        for g in state["param_groups"]:
            g["fused"] = fused
        return state
    return change


def keep(model, optimizers):
    pass


def with_state(name, value):
    def change(state):
        state["state"]["body.0.bias"][name] = value
        return state
    return change


def with_option(state):
    state["param_groups"][0]["extra"] = 0.5
    return state


def without_option(state):
    state["param_groups"][0].pop("lr")
    return state


def without_names(state):
    for g in state["param_groups"]:
        del g["param_names"]
    return state


def other_names(state):
    for k, v in state.items():
        if k.endswith("param_names"):
            state[k] = ["other." + n for n in v]
    for g in state.get("param_groups", []):
        g["param_names"] = ["other." + n for n in g["param_names"]]
    return state


def forget_names(model, optimizers):
    for g in optimizers[0].param_groups:
        del g["param_names"]


def add_user(model, optimizers):
    """State of no parameter, other on each rank."""
    optimizers[0].state["seen"] = {"samples": 100 * (dist.get_rank() + 1), "ema": torch.full((2,), 1.5 + dist.get_rank())}


def given_user(state):
    return {**state, "state": {**state["state"], "given": {"samples": 5}}}


def numbered(kind):
    """The optimizer's own state dict, with state of no parameter."""
    def change(state):
        state = build(*kind)[1][0].state_dict()
        state["state"][77] = {"samples": 5, "ema": torch.full((2,), 2.5 + dist.get_rank())}
        return changed(state)
    return change


def of_adam(state):
    """Saved by Adam, which has another default of an option that decides what AdamW is."""
    for g in state["param_groups"]:
        g["decoupled_weight_decay"] = False
    return state


def old(state):
    """As before these states were tensors, and before these options."""
    for s in state["state"].values():
        s.update({k: int(v) if k == "step" else float(v) for k, v in s.items() if k in ("step", "eta", "mu", "mu_product")})
    for g in state["param_groups"]:
        for k in ("foreach", "maximize", "differentiable", "capturable", "fused", "momentum", "centered", "decoupled_weight_decay"):
            g.pop(k, None)
    return state


same = lambda state: state
NAMED = [("no names", keep, without_names), ("other names", keep, other_names), ("no names here", forget_names, same)]
USER = [("user", add_user, same), ("user given", keep, given_user), ("user in both", add_user, given_user)]
UNLIKE = {
    "ddp": [("gradients", gradients, same), ("lacks", lacks("body.0.bias"), same), ("option", keep, with_option), ("no option", keep, without_option),
            ("tensor", keep, with_state("more", torch.full((3,), 8.0))), ("scalar", keep, with_state("count", torch.tensor(3.0))),
            ("number", keep, with_state("count", 3)), ("of Adam", keep, of_adam), *USER],
    "others": [("old", keep, old)], "rprop": [("old", keep, old)],
    "sharded": USER,
    "named": NAMED, "named sharded": NAMED,
    "sharded two": [("gradients", gradients, same), ("lacks", lacks("body.0.bias"), same), ("lacks", lacks("scale"), same)],
    "stateless": [("stateless", keep, same)],
    "tensor lr": [("apart", keep, copies)],
    "half": [("float32", keep, of_type(torch.float32)), ("float64", keep, of_type(torch.float64)), ("float16", keep, of_type(torch.float16, True))],
}
UNLIKE_FLAT = {"ddp": [("stranger", keep, stranger), ("no option", keep, lambda s: popped(s, "param_groups.scale.lr")), ("no betas", keep, lambda s: popped(s, "param_groups.scale.betas"))],
               "sharded two": [("first only", keep, same), ("stranger", keep, stranger), ("no option", keep, lambda s: popped(s, "param_groups.body.0.weight.amsgrad"))],
               "named": [("other names", keep, other_names), ("no names", keep, lambda s: {k: v for k, v in s.items() if not k.endswith("param_names")})],
               "tensor lr": [("apart", keep, copies), ("no option", keep, lambda s: popped(s, "param_groups.body.0.weight.lr"))]}


def then(model, optimizers):
    for o in optimizers:
        for g in o.param_groups:
            if "betas" in g:  # a list after full_state_dict, whatever it was
                g["betas"] = tuple(g["betas"])
    return groups(model, optimizers)


def get_error(model, optimizers, options):
    try:
        get_optimizer_state_dict(model, optimizers, options=StateDictOptions(**options))
    except Exception as e:
        return f"{type(e).__name__}: {e}"


def unlike(name, kind):
    rows = [(*row, o) for row in UNLIKE.get(name, []) for o in (({},) if row[0] == "old" else ({}, FULL, SPREAD))] + [(*row, FLAT) for row in UNLIKE_FLAT.get(name, [])]
    if name in ("ddp", "sharded"):
        rows += [("numbered", keep, numbered(kind), {}), ("numbered and user", add_user, numbered(kind), {})]
    for of, prepare, change, options in rows:
        got = {k: v for k, v in options.items() if k != "broadcast_from_rank0"}
        state = change(changed(get_optimizer_state_dict(*build(*kind), options=StateDictOptions(**got))))
        if "broadcast_from_rank0" in options and dist.get_rank():
            state = {}
        model, optimizers = build(*kind)
        prepare(model, optimizers)
        has = [[[p.grad is not None for p in g["params"]] for g in o.param_groups] for o in optimizers]
        record = {"of": of, "options": options, "state": encode(state), "optimizers": groups(model, optimizers), "gradients": has}
        if of == "user":
            record["get"] = get_error(model, optimizers, options)
        try:
            set_optimizer_state_dict(model, optimizers[:1] if of == "first only" else optimizers, state, options=StateDictOptions(**options))
            record["then"] = then(model, optimizers)
        except Exception as e:
            record["error"] = f"{type(e).__name__}: {e}"[:80]
        yield record


def by_name(model, optimizer):
    """The optimizer as NamedOptimizer wraps it."""
    wrapper = _NamedOptimizer(model.named_parameters(), torch.optim.AdamW, lr=0.5)
    raw = {p: n for n, p in model.named_parameters()}
    wrapper._optimizer = optimizer
    wrapper.ordered_param_keys = [raw[p] for g in optimizer.param_groups for p in g["params"]]
    return wrapper


def raws(kind):
    nested = lambda s: get_optimizer_state_dict(*build(*kind))  # parameters are matched by place, whatever their keys
    for named_keys, live in ((False, keep), (False, add_user), (True, keep), (True, add_user)):
        for of, change in (("same", same), ("user", given_user), ("no groups", lambda s: {**s, "param_groups": s["param_groups"][:-1]}), ("nested", nested)):
            if of == "nested" and (named_keys or live is add_user):
                continue
            model, (optimizer,) = build(*kind)
            live(model, [optimizer])
            target = by_name(model, optimizer) if named_keys else optimizer
            record = {"of": of, "named": named_keys, "optimizers": groups(model, [optimizer])}
            try:
                record["raw"] = encode(target.state_dict())
                record["state"] = encode(change(changed(target.state_dict())))
                target.load_state_dict(change(changed(target.state_dict())))
                record["then"] = groups(model, [optimizer])
            except Exception as e:
                record["error"] = f"{type(e).__name__}: {e}"[:80]
            yield record


def cases():
    for name, kind in CASES.items():
        model, optimizers = build(*kind)
        case = {"of": name, "modules": modules_document(model), "tensors": tensors(model), "optimizers": groups(model, optimizers)}
        if name in ("others", "rprop"):  # only what they do with old state dicts differs from the others
            yield {**case, "gets": [], "sets": [], "unlike": list(unlike(name, kind)), "raws": []}
            continue
        yield {**case, "gets": list(gets(kind)), "sets": list(sets(kind)), "unlike": list(unlike(name, kind)),
               "raws": list(raws(kind)) if name in ("ddp", "named sharded", "stateless") else []}


if __name__ == "__main__":
    write("optimizer_state.json", cases)
