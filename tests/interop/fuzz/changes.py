"""Changes of a state dict before it is set, which PyTorch takes or refuses."""
import torch
from torch import nn


WIDE_OPTIONS = ("tensor option", "tensors option", "option of another kind")


def whole_tensors(state):
    return [k for k, v in state.items() if type(v) in (torch.Tensor, nn.Parameter) and v.dim() > 0 and v.numel() > 0]


def shuffled(rng, state):
    keys = list(state)
    rng.shuffle(keys)
    return {k: state[k] for k in keys}


def of_model(rng, change, state):
    keys = list(state)
    if change == "order":
        return shuffled(rng, state)
    if change == "empty":
        return {}
    if change == "drop" and keys:
        state.pop(rng.choice(keys))
    elif change == "add":
        state[rng.choice(["stranger", "stranger.weight", "0.stranger"])] = torch.ones(rng.choice([1, 2]))
    elif change == "shape" and whole_tensors(state):
        key = rng.choice(whole_tensors(state))
        state[key] = torch.cat([state[key], state[key]])
    elif change == "dtype" and whole_tensors(state):
        key = rng.choice(whole_tensors(state))
        state[key] = state[key].to(rng.choice([torch.float32, torch.float64, torch.bfloat16]))
    return state


def wide_option(rng, change):
    """A value of an option that the optimizer's own differs from in kind, shape or type."""
    if change == "tensors option":
        return tuple(torch.tensor(v) for v in rng.choice([(0.25, 0.5), (0.5, 0.75)]))
    if change == "option of another kind":
        return rng.choice([7, True, "text", [1, 2.5], {"a": 1, "b": torch.ones(2)}, [torch.ones(1), 3]])
    return torch.full(rng.choice([(), (), (1,), (2,), (2, 1)]), 0.375, dtype=rng.choice([torch.float32, torch.float64, torch.bfloat16]))


def option_key(rng, change, keys):
    return rng.choice([k for k in ("betas", "etas") if k in keys] or ["extra"]) if change == "tensors option" else rng.choice(["lr", "lr", "weight_decay", "extra"])


def of_flat(rng, change, state):
    if change == "order":
        return shuffled(rng, state)
    if change in ("drop", "group option") and state:
        state.pop(rng.choice([k for k in state if k.startswith("param_groups.") == (change != "drop")] or list(state)))
    elif change in WIDE_OPTIONS:
        key = option_key(rng, change, {k.rsplit(".", 1)[-1] for k in state if k.startswith("param_groups.")})
        value = wide_option(rng, change)
        for k in [k for k in state if k.startswith("param_groups.") and k.endswith(f".{key}")]:
            state[k] = value
    elif change == "add":
        state["state.stranger.exp_avg"] = torch.ones(2)
        state["param_groups.stranger.lr"] = 0.5
    return state


def of_nested(rng, change, state):
    states, groups = state["state"], state["param_groups"]
    keys = list(states)
    if change == "order":
        state["state"] = shuffled(rng, states)
        rng.shuffle(groups)
    elif change == "drop" and keys:
        states.pop(rng.choice(keys))
    elif change == "add":
        states["stranger.weight"] = {"exp_avg": torch.ones(2)}
    elif change == "group option":
        group = rng.choice(groups)
        group[rng.choice(["lr", "extra"])] = rng.choice([0.375, 3, None])
    elif change in WIDE_OPTIONS:
        group = rng.choice(groups)
        group[option_key(rng, change, group)] = wide_option(rng, change)
    elif change == "state key" and keys:
        change_state(rng, states[rng.choice(keys)])
    elif change == "dtype" and keys:
        change_dtype(rng, states[rng.choice(keys)])
    elif change == "shape" and keys:
        change_shape(rng, states[rng.choice(keys)])
    return state


def change_state(rng, state):
    how = rng.randrange(4)
    if how == 0 and state:
        state.pop(rng.choice(list(state)))
    elif how == 1:
        state["more"] = torch.full((3,), 8.0)
    elif how == 2:
        state["count"] = rng.choice([3, 2.5])
    else:
        state["nested"] = {"a": torch.ones(2), "b": 1}


def change_dtype(rng, state):
    for key in whole_tensors(state):
        if state[key].is_floating_point():
            state[key] = state[key].to(rng.choice([torch.float32, torch.float64, torch.bfloat16]))


def change_shape(rng, state):
    for key in whole_tensors(state)[:1]:
        state[key] = torch.cat([state[key], state[key]])


def make(rng, change, states):
    if states["state"] is not None:
        states["state"] = of_model(rng, change, states["state"])
    if states["optimizer_state"] is not None:
        if change == "empty":
            states["optimizer_state"] = {}
        elif "state" in states["optimizer_state"]:
            states["optimizer_state"] = of_nested(rng, change, states["optimizer_state"])
        else:
            states["optimizer_state"] = of_flat(rng, change, states["optimizer_state"])
