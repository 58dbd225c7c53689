"""Where we differ from PyTorch on purpose: native/live/DIFFERENCES.md, row by row (quoted), and what a comparison
cannot ask for. Everything else that differs is a bug."""
import json
import re

from codec import Object, Tensor


def options(job, *names):
    return all(job["options"].get(n) for n in names)


def sets_optimizer(job):
    return job["op"] in ("set_optimizer", "set_both", "raw_set")


def sets_model(job):
    return job["op"] in ("set_model", "set_both")


# ---- refusals that PyTorch does not have: (row, whether it can be this job, our message) ----

OURS = [
    ("A tensor of another dtype is converted", lambda d, j: sets_model(j) and j["change"] == "dtype",
     r"(\w+) (\[.*\]) in the state dict, (?!\1 )\w+ \2.* in the model"),
    ("A tensor of another dtype is converted", lambda d, j: sets_model(j) and j["change"] == "dtype", r"in the state, which is not cast to the model's u?int|bool"),
    ("Original parameters' state is cut to the rank's range whatever its size", lambda d, j: sets_optimizer(j) and j["change"] in ("state key", "shape"),
     r"optim: the state '.*' of '.*' does not have as many elements as its parameter"),
    ("State of any shape is loaded", lambda d, j: sets_optimizer(j) and j["change"] == "shape",
     r"in the state dict, .* in the optimizer, in '.*', in the state of"),
    ("A flat state dict without a state that the optimizer holds", lambda d, j: sets_optimizer(j) and options(j, "flatten_optimizer_state_dict"),
     r"the flat state dict has no 'state\..*', which the optimizer holds"),
    ("Only the first parameter's options count in a flat state dict", lambda d, j: sets_optimizer(j) and options(j, "flatten_optimizer_state_dict"),
     r"are in the same group, but (differ in|only one of them has) '"),
    ("In a broadcast to FSDP1 units, only rank 0 looks at the keys of a flat state dict", lambda d, j: d.apart and d.strategy == "fsdp1" and sets_optimizer(j)
     and options(j, "full_state_dict", "flatten_optimizer_state_dict", "broadcast_from_rank0"),
     r"^rank [1-9]: the flat state dict has no 'param_groups\..*\.mine'"),
    ("Ranks may hold other names when rank 0's state is broadcast", lambda d, j: d.apart and sets_optimizer(j) and options(j, "broadcast_from_rank0"),
     r"ranks \d+ and \d+ differ: local '"),
    ("With full_state_dict the first elements of a larger tensor are loaded into a DTensor", lambda d, j: sets_model(j) and j["change"] == "shape" and options(j, "full_state_dict"),
     r" in the state dict, .* over .* in the model, in '"),
    ("Two optimizers with state under one key that is not a parameter", lambda d, j: d.user, r"optim: two optimizers have state for '"),
    ("A replicated DTensor that only some ranks hold", lambda d, j: not sets_model(j) and not sets_optimizer(j) and options(j, "full_state_dict"),
     r"^ranks \d+ and \d+ differ: '.*' is .* over .*: replicate(,replicate)* on rank \d+, but missing on rank \d+$"),
    ("names that several submodules share", lambda d, j: j["op"] in ("get_model", "get_both") and j["options"].get("keep_submodule_prefixes") is False,
     r"of several submodules"),
    ("With full_state_dict, missing keys are not reported unless the load is a strict broadcast", lambda d, j: sets_model(j) and options(j, "full_state_dict"),
     r"model state: missing key '"),
]


def originals(module, path=""):
    """The names of the originals of each flat parameter below a module."""
    if module.get("flat_param"):
        yield [path + p["fqn"] for p in module["flat_param"]["params"]]
    for name, child in module.get("children", {}).items():
        yield from originals(child, path if name == "_fsdp_wrapped_module" else f"{path}{name}.")


def frozen(module, path=""):
    """Raw names of the frozen parameters below a module."""
    yield from (path + name for name, p in module.get("parameters", {}).items() if not p["requires_grad"])
    for name, child in module.get("children", {}).items():
        yield from frozen(child, f"{path}{name}.")


def first_lacks_scalar(job, message, described):
    """PyTorch passes over a flat parameter whose first original has no state; where another has none it refuses the scalar, too."""
    lacking = re.search(r"optim: '.*' has a scalar '.*', but '(.*)' of the same flat parameter has none$", message)
    if not lacking or not sets_optimizer(job) or not units(described) or orig(described):
        return False
    given = described["optimizer_state"].get("state", {lacking[1]: None})
    return lacking[1] not in given and lacking[1] in [names[0] for names in originals(json.loads(described["modules"])["root"])]


def first_lacks_state(described, given):
    """Of a flat parameter whose other originals have some. `given`: the states that are set, by name."""
    if not units(described) or orig(described):
        return False
    return any(names[0] not in given and set(names) & set(given) for names in originals(json.loads(described["modules"])["root"]))


def other_original_has(job, message, described):
    """Which of a flat parameter's originals is the first that PyTorch asks for options depends on the order of a set."""
    lacking = re.search(r"the flat state dict has no 'param_groups\.(.*)\.(\w+)': it must have every option", message)
    if not lacking or not sets_optimizer(job) or not units(described) or orig(described):
        return False
    flat = next((u for u in originals(json.loads(described["modules"])["root"]) if lacking[1] in u), ())
    return any(f"param_groups.{name}.{lacking[2]}" in described["optimizer_state"] for name in flat)


def ours_refuses(draw, job, message, described):
    """The row of a refusal that only we have, or None."""
    if other_original_has(job, message, described):
        return "Only the first parameter's options count in a flat state dict"
    if first_lacks_scalar(job, message, described):
        return "A flat parameter whose first original has no state"
    shape = re.search(r" in the state dict, .* in the model, in '(.*)'$", message)
    if sets_model(job) and job["change"] == "shape" and shape and shape[1] in canonical(draw, described["seconds"]):
        return "Fails: second names of shared modules"  # PyTorch does not load them at all
    if units(described) and sets_model(job) and described["state"] == {} and "has no attribute '_extra_state'" in message:
        return "Nothing to load into a unit around a module with extra state"
    return next((row for row, can, text in OURS if can(draw, job) and re.search(text, message)), None)


# ---- what PyTorch refuses and we do ----

def second_names(draw, error, described):
    """It stumbles over names that shared modules have besides their first."""
    lists = " ".join(re.findall(r"(?:in state_dict: |(?:parameter|buffer) named )(.*)", error))
    names = re.findall(r'"([^" ]*)"', lists) or re.findall(r"KeyError: '([^']*)'$", error)
    return bool(names) and set(canonical(draw, names)) <= set(canonical(draw, described["seconds"]))


def within_units(described):
    """A job's second names without the component of units."""
    return {"seconds": [n.replace("_fsdp_wrapped_module.", "") for n in described["seconds"]]}


def units(described):
    return bool(described.get("units"))


def orig(described):
    return '"use_orig_params": true' in described.get("modules", "")


def wrapped(described):
    return '"wrapper": "checkpoint"' in described.get("modules", "")


def hidden_module(module):
    """A child named `module` of what a unit inside a checkpoint wrapper wraps: the unit's own attribute `module` is found in its place."""
    children = module["children"].values()
    inner = [unit["children"].get("_fsdp_wrapped_module") for unit in children if module["wrapper"] == "checkpoint" and unit["wrapper"] == "fsdp1"]
    return any("module" in m["children"] for m in inner) or any(map(hidden_module, children))


TORCH = [
    ("a child named `module` of a unit inside a checkpoint wrapper", lambda d, j, e, s: units(s) and j["op"] in ("get_model", "get_both")
     and re.search(r"AttributeError: '\w+' object has no attribute '\w+'$", e) and hidden_module(json.loads(s["modules"])["root"])),
    ("checkpoint wrappers within or around a unit", lambda d, j, e, s: units(s) and wrapped(s) and (sets_model(j) or sets_optimizer(j)
     or options(j, "ignore_frozen_params") and "_fsdp_wrapped_module" in e and "KeyError" in e)),
    ("missing keys with full_state_dict and strict=False", lambda d, j, e, s: units(s) and sets_model(j) and options(j, "full_state_dict")
     and j["options"].get("strict") is False and j["change"] in ("drop", "empty")),
    ("Parameters that never had a gradient must have state", lambda d, j, e, s: orig(s) and "is not in the optimizer state" in e),
    ("an optimizer whose first state is of no parameter is taken for a named one", lambda d, j, e, s: units(s) and re.search(r"KeyError: \d+$|calculated _sharded_numel_padded is incorrect", e)
     and (d.user and d.apart or any(o.get("user") and not any(state for g in o["groups"] for state in g["state"]) for o in s["optimizers"]))),
    ("tied parameters with broadcast_from_rank0", lambda d, j, e, s: units(s) and sets_model(j) and options(j, "broadcast_from_rank0") and '"shared": [{' in s["modules"]),
    ("flat state of units without state", lambda d, j, e, s: units(s) and sets_optimizer(j) and options(j, "flatten_optimizer_state_dict")
     and "is empty. This should happen when use_orig_params=True" in e),
    ("states that are dicts", lambda d, j, e, s: units(s) and sets_optimizer(j) and re.search("unhashable type: 'dict'|'dict' object has no attribute 'cpu'", e)),
    ("states that are numbers, where only rank 0 has the state dict or keeps it", lambda d, j, e, s: units(s) and sets_optimizer(j) and j["change"] == "state key"
     and options(j, "full_state_dict") and (options(j, "cpu_offload") or options(j, "broadcast_from_rank0"))
     and re.search("'(int|float)' object has no attribute 'cpu'", e)),
    ("missing states with strict=False", lambda d, j, e, s: units(s) and sets_optimizer(j) and j["options"].get("strict") is False and j["change"] == "drop"
     and "KeyError" in e),
    ("nothing to load into units", lambda d, j, e, s: units(s) and sets_optimizer(j) and not s.get("optimizer_state") and e.endswith("KeyError: 'state'")),
    ("an empty state in a broadcast to units", lambda d, j, e, s: units(s) and sets_optimizer(j) and options(j, "broadcast_from_rank0")
     and "is empty. This should happen when use_orig_params=True" in e and {} in (s.get("optimizer_state") or {}).get("state", {}).values()),
    ("A flat state dict without a state that the optimizer holds: {} is loaded", lambda d, j, e, s: sets_optimizer(j) and options(j, "flatten_optimizer_state_dict")
     and re.search("not '?dict'?$|'dict' object has no attribute", e)),
    ("second names of shared modules within wrappers", lambda d, j, e, s: sets_model(j) and second_names(d, e, s)),
    ("keys that the model lacks, in a broadcast with cpu_offload", lambda d, j, e, s: sets_model(j) and options(j, "broadcast_from_rank0", "cpu_offload")
     and (j["change"] == "add" and re.search("KeyError: '.*stranger", e) or second_names(d, e, within_units(s)))),
    ("a state without `step`", lambda d, j, e, s: sets_optimizer(j) and j["change"] == "state key" and "KeyError: 'step'" in e),
    ("a state without what __setstate__ reads", lambda d, j, e, s: sets_optimizer(j) and (d.apart or j["change"] == "state key") and any(
        o["algorithm"] == name and e.endswith(f"KeyError: '{key}'") for o in s["optimizers"] for name, key in (("NAdam", "mu_product"), ("ASGD", "eta"), ("ASGD", "mu")))),
    ("names that the walk over the model leaves out, in a broadcast", lambda d, j, e, s: units(s) and sets_model(j) and options(j, "broadcast_from_rank0")
     and re.match("rank [1-9]: ", e) and second_names(d, e, within_units(s))),
    ("flatten_optimizer_state_dict with full_state_dict", lambda d, j, e, s: sets_optimizer(j) and options(j, "full_state_dict", "flatten_optimizer_state_dict")
     and re.search(r"KeyError: '(state|param_groups)", e)),
    ("nothing to load into an optimizer without state tensors", lambda d, j, e, s: sets_optimizer(j) and (j["change"] == "empty" or s.get("optimizer_state") == {}) and "Expected device to be set" in e),
    ("nothing to load into an optimizer whose state has lists", lambda d, j, e, s: not units(s) and sets_optimizer(j) and s.get("optimizer_state") == {}
     and options(j, "full_state_dict", "flatten_optimizer_state_dict") and e.endswith("dict states now. Type is <class 'list'>.")
     and any(o["algorithm"] == "LBFGS" for o in s["optimizers"])),
    ("FSDP2 over tensor parallelism that leaves a rank nothing", lambda d, j, e, s: d.strategy == "fsdp2_tp" and options(j, "full_state_dict")
     and "Expected cond to be True, but got False" in e),
    ("ignore_frozen_params with submodules", lambda d, j, e, s: options(j, "ignore_frozen_params") and j.get("submodules") and "KeyError" in e),
]


def torch_refuses(draw, job, error, described):
    return next((row for row, is_it in TORCH if is_it(draw, job, error, described)), None)


# ---- values ----

def stateless_parameters(described):
    """Raw names of the parameters of optimizers without any state: getting and setting makes their first states."""
    return {n for o in described["optimizers"] if not any(s for g in o["groups"] for s in g["state"]) for g in o["groups"] for n in g["params"]}



def canonical(draw, names):
    """Without the components of wrappers. DDP is at the root alone."""
    inner = [re.sub(r"_orig_mod\.|_checkpoint_wrapped_module\.", "", n) for n in names]
    return [n.removeprefix("module.") for n in inner] if draw.strategy == "ddp" else inner


def shell(t):
    """All of a tensor but its elements."""
    return t.kind, t.dtype, t.shape, t.mesh, t.placements, [(*p[:2], len(p[2])) for p in t.parts]


class Rule:
    """Of one rank's result."""

    def __init__(self, draw, job, described, rank):
        """`described`: the job of every rank."""
        self.draw, self.job, self.rank, self.described, self.first = draw, job, rank, described[rank], described[0]
        self.nothing = self.first.get("optimizer_state") == {}  # the optimizer state that counts

    def ordered(self, path):
        if self.job.get("submodules", 0) > 1 and self.job["options"].get("keep_submodule_prefixes") is False:
            return not path.endswith(": model")  # PyTorch walks a set of prefixes
        # From a flat state dict options and states come in its order; PyTorch's are in that of the optimizer
        if sets_optimizer(self.job) and options(self.job, "flatten_optimizer_state_dict") and self.job["change"] == "order":
            return "now/optimizers" not in path
        if units(self.described) and ("optimizer" in path or "now/optimizers" in path):
            return "/options" in path  # PyTorch takes names of states out of sets
        # States are in the order of their groups; PyTorch's are in that of the steps that made them
        return not (path.endswith(": optimizer/state") or path.endswith(": optimizer")) or not self.draw.missing or self.draw.steps < 2

    def same(self, path, want, got):
        """Whether a difference is a row of the page, or none; False: compare on."""
        place = path.split(": ", 1)[1]
        if place.startswith("optimizer") and orig(self.described) and options(self.job, "cpu_offload") and isinstance(want, Tensor):
            return shell(want) == shell(got)  # views of one buffer, all equal to the last one gathered
        if place == "model" and isinstance(want, dict) and isinstance(got, dict) and self.named_as_frozen(want, got):
            return True
        if place.startswith("now/optimizers") and sets_optimizer(self.job):
            return self.same_optimizer(place, want, got)
        if place.startswith("now/extra/") and want == Object("_EXTRA_STATE"):
            return got == self.described["extra"][place[10:]]  # A missing extra state becomes the placeholder
        if place.startswith("now/tensors/") and self.left_out(want, got, self.described["tensors"][place[12:]]):
            return True
        first = self.job["op"] not in ("get_model", "set_model") and "tensors" in self.described and isinstance(got, Tensor)
        if first and (place.startswith("now/tensors/") or place.startswith("model/")):
            # The step that makes the first states writes into parameters
            before, stateless = self.described["tensors"], stateless_parameters(self.described)
            return place[12:] in stateless and got == before[place[12:]] if place.startswith("now/") else got in [before.get(n) for n in stateless]
        return False

    def named_as_frozen(self, want, got):
        """Without their prefixes PyTorch also drops what then has the name of a frozen parameter."""
        if not options(self.job, "ignore_frozen_params") or self.job["options"].get("keep_submodule_prefixes") is not False:
            return False
        more = set(got) - set(want)
        names = canonical(self.draw, frozen(json.loads(self.described["modules"])["root"]))
        return bool(more) and more <= set(names) and want == {k: v for k, v in got.items() if k not in more}

    def left_out(self, want, got, before):
        """With `strict` off PyTorch does not load second names of shared modules inside wrappers; and in a broadcast, ranks
        other than 0 do not load any name that _iterate_valid_model_state leaves out."""
        if not sets_model(self.job) or self.job["options"].get("strict") is not False or want != before:
            return False
        broadcast = options(self.job, "broadcast_from_rank0")
        everywhere = broadcast and self.rank > 0
        seconds = [c for n, c in zip(self.described["seconds"], canonical(self.draw, self.described["seconds"])) if everywhere or n != c]
        given = (self.first if broadcast else self.described)["state"] or {}
        return any(n in seconds and got == v for n, v in zip(canonical(self.draw, given), given.values()))

    def same_optimizer(self, place, want, got):
        full = options(self.job, "full_state_dict")
        if full and self.nothing and isinstance(want, Tensor) and isinstance(got, Tensor):
            any_shape = any(o["algorithm"] == "LBFGS" for o in self.first["optimizers"])  # whose state has the type of all parameters together
            return want.shape == got.shape and (any_shape or got.shape == ()) and want.dtype != got.dtype  # PyTorch loads the optimizer's own state, which casts it
        if full and units(self.described) and self.rank and re.search("/(options|user)/", place) and isinstance(got, Tensor) and got.shape:
            return want == (got.shape, Object("dtype"))  # a description of a tensor with dimensions
        if full and "/options/" in place and isinstance(want, list) and isinstance(got, tuple):
            return tuple(want) == got  # full_state_dict turns tuples such as betas into lists
        if full and isinstance(want, dict) and isinstance(got, dict):
            lists = {k for k, v in got.items() if v == [] and k not in want}  # it drops empty lists
            left = {k: v for k, v in got.items() if k not in lists}
            if lists and list(want) == list(left) and all(v == left[k] or self.same_optimizer(f"{place}/{k}", v, left[k]) for k, v in want.items()):
                return True
        states = self.given_optimizer().get("state", {})
        if self.job["change"] == "drop" and first_lacks_state(self.described, states):  # PyTorch leaves the states of the others under their names
            if want is None and isinstance(got, dict):
                return "/state/" in place
            if place.endswith("/user") and isinstance(want, dict):
                return {k: v for k, v in want.items() if k not in states} == (got or {})
        if not options(self.job, "flatten_optimizer_state_dict"):
            return False
        if place.endswith("/options") and isinstance(want, dict) and isinstance(got, dict):
            return self.more_options(want, got)
        if isinstance(want, dict) and isinstance(got, dict) and {} in want.values() and self.job["options"].get("strict") is False:
            return got == {k: v for k, v in want.items() if v != {}}  # with `strict` off a state that it lacks is gone
        if isinstance(want, dict) and got is None and want and set(map(repr, want.values())) == {"{}"} and self.job["options"].get("strict") is False:
            return True  # nothing is left of it then
        # A flat state dict's states are loaded where the optimizer holds none, or not those
        return isinstance(got, dict) and (want in ({}, None) or ("/state/" in place and isinstance(want, dict) and self.more_states(want, got)))

    def more_states(self, want, got):
        given = [k.rsplit(".", 1)[-1] for k in self.given_optimizer() if k.startswith("state.")]
        return bool(set(got) - set(want)) and set(got) - set(want) <= set(given) and want == {k: v for k, v in got.items() if k in want}

    def more_options(self, want, got):
        """An option in a flat state dict that the optimizer's group does not have is loaded."""
        given = [k.rsplit(".", 1)[-1] for k in self.given_optimizer() if k.startswith("param_groups.")]
        return bool(set(got) - set(want)) and set(got) - set(want) <= set(given) and want == {k: v for k, v in got.items() if k in want}

    def given_optimizer(self):
        of_first = options(self.job, "broadcast_from_rank0") or (units(self.first) and options(self.job, "full_state_dict", "cpu_offload"))
        return (self.first if of_first else self.described)["optimizer_state"] or {}


def not_loaded(job, want, described):
    """PyTorch passes over what checkpoint wrappers within or around units rename: it is missing and unexpected at once."""
    return units(described) and wrapped(described) and bool(set(want.get("missing") or ()) & set(want.get("unexpected") or ()))


class Untouched:
    def ordered(self, path):
        return True

    def same(self, path, want, got):
        return False


def unmatched(draw, job, want, got, described):
    """Missing and unexpected keys of both sides in a form to be compared: without wrappers' components, and without what
    PyTorch's own names hide. `described`: rank 0's job."""
    seconds, given = set(canonical(draw, described["seconds"])), set(canonical(draw, described.get("state") or {}))
    got = {k: canonical(draw, got[k]) for k in ("missing", "unexpected")}
    want = {k: [n for n in canonical(draw, want[k]) if n not in seconds] for k in ("missing", "unexpected")}
    got["missing"] = [n for n in got["missing"] if n not in seconds]
    if options(job, "full_state_dict"):  # PyTorch reports none, or not all: every missing key is reported here
        got["missing"] = [n for n in got["missing"] if n in given or n in want["missing"]]
    return want, got
