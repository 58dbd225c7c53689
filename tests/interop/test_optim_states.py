"""Optimizer state in checkpoints: ids through a DCP and back, states that are broken, and healthy ones that look like it. Every state is
made by a real optimizer, and the checks are those of PyTorch: what load_state_dict gives, and whether the next steps are the same."""
import copy
import json
import os
import shutil
import sys

from harness import ROOT, load_dcp

sys.path.insert(0, os.path.join(ROOT, "samples"))


def trained(make, model=None, steps=3, frozen=(), unused=()):
    """A model, and an optimizer that make(model) returned, after some steps."""
    import torch
    from torch import nn
    torch.manual_seed(7)
    if model is None:
        model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))
    optim = make(model)
    for _ in range(steps):
        step(model, optim, frozen, unused)
    return model, optim


def step(model, optim, frozen=(), unused=()):
    import torch
    for i, (name, p) in enumerate(model.named_parameters()):
        p.requires_grad_(name not in frozen)
        p.grad = None if name in frozen or name in unused else torch.sin(torch.arange(p.numel(), dtype=torch.float32).reshape(p.shape) + p.detach().sum() + i)
    optim.step()


def save_dcp(state, path):
    import torch.distributed.checkpoint as dcp
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path), no_dist=True)


def same(a, b):
    import torch
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and [*map(repr, a)] == [*map(repr, b)] and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def two_groups(model):
    import torch
    params = list(model.parameters())
    return torch.optim.AdamW([{"params": params[:2]}, {"params": params[2:], "weight_decay": 0.0, "lr": 0.02}], lr=0.01, amsgrad=True)


def momentum(model):
    import torch
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_ids_return_from_a_dcp(t):
    """torch.save → DCP → torch.save, and PyTorch's own DCP → torch.save: load_state_dict finds every state, and training goes on the same."""
    import torch
    nest = {"plain": (lambda o: {"optim": o}, lambda s: s["optim"]), "root": (lambda o: o, lambda s: s),
            "list": (lambda o: {"optimizer_states": [o], "epoch": 3}, lambda s: s["optimizer_states"][0]),
            "deep": (lambda o: {"trainer": {"state": {"optimizers": [{"x": 1}, o]}}}, lambda s: s["trainer"]["state"]["optimizers"][1])}
    for make in (two_groups, momentum):
        for name, (put, get) in nest.items():
            model, optim = trained(make)
            start = {"model": copy.deepcopy(model.state_dict()), "optim": copy.deepcopy(optim.state_dict())}
            for _ in range(3):
                step(model, optim)
            base = t.at(f"{make.__name__}-{name}")
            torch.save(put(start["optim"]) if name == "root" else {"model": start["model"], **put(start["optim"])}, base + ".pt")
            save_dcp(torch.load(base + ".pt", weights_only=True), base + "-torch")
            told = t.run("convert", base + ".pt", base + "-ours", "--to", "dcp").stderr
            assert b"warning" not in told, told
            for way in ("torch", "ours"):
                t.run("convert", f"{base}-{way}", f"{base}-{way}.pt")
                back = torch.load(f"{base}-{way}.pt", weights_only=True)
                assert same(get(back)["state"], start["optim"]["state"]), (name, way, get(back))
                again, other = trained(make, steps=0)
                again.load_state_dict(start["model"])
                other.load_state_dict(get(back))
                for _ in range(3):
                    step(again, other)
                assert same(dict(again.state_dict()), dict(model.state_dict())), f"{make.__name__} {name} {way}: training goes on differently"
                assert t.json("diff", base + ".pt", f"{base}-{way}.pt", "--values", "--json")["same"], (name, way)


def test_empty_states_return_from_a_dcp(t):
    """A DCP has no trace of an empty dict, without which load_state_dict fails: SGD without momentum, and Adam before its first step."""
    import torch
    path, dcp, back = t.at("a.pt"), t.at("dcp"), t.at("b.pt")
    for make, steps in ((lambda m: torch.optim.SGD(m.parameters(), lr=0.1), 2), (two_groups, 0)):
        model, optim = trained(make, steps=steps)
        state = optim.state_dict()
        named = {"state": {}, "param_groups": [{**g, "params": [f"p{i}" for i in g["params"]]} for g in state["param_groups"]]}
        for saved, at in ((state, lambda s: s), ({"model": model.state_dict(), "optim": state}, lambda s: s["optim"]), ({"optims": [state, state]}, lambda s: s["optims"][1]), ({"deep": {"optim": named}}, lambda s: s["deep"]["optim"])):
            torch.save(saved, path)
            t.run("convert", path, dcp, "--to", "dcp", "--overwrite")
            for source in [dcp] + ([t.at("theirs")] if "optims" not in saved else []):
                if source != dcp:
                    save_dcp(saved, source)
                t.run("convert", source, back, "--to", "torch", "--overwrite")
                got = at(torch.load(back))
                assert got["state"] == {} and same(got["param_groups"], at(saved)["param_groups"]), got
                if at(saved) is state:
                    make(copy.deepcopy(model)).load_state_dict(got)
                if source != dcp:
                    shutil.rmtree(source)
    torch.save({"optim.param_groups.0.params": [0], "optim.param_groups.0.lr": 0.1}, path)  # a flat dict stays one
    t.run("convert", path, t.at("flat"), "--to", "dcp")
    t.run("convert", t.at("flat"), back, "--to", "torch", "--overwrite")
    assert torch.load(back) == torch.load(path), torch.load(back)
    t.run("convert", dcp, back, "--to", "torch", "--overwrite", "--exclude", "**.params")
    assert "state" not in torch.load(back)["deep"]["optim"], "no list of parameters is written"


def test_keys_that_stay_texts(t):
    """A parameter whose name is a number, and ints that are not an optimizer's ids."""
    import torch
    from torch import nn
    model = nn.ParameterList([nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(4))])
    model, optim = trained(lambda m: torch.optim.Adam(m.parameters()), model)
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
    named = {"optim": get_optimizer_state_dict(model, optim)}
    assert set(named["optim"]["state"]) == {"0", "1"}
    torch.save(named, t.at("named.pt"))
    save_dcp(named, t.at("named"))
    t.run("convert", t.at("named"), t.at("back.pt"))
    assert set(torch.load(t.at("back.pt"))["optim"]["state"]) == {"0", "1"}
    assert not t.json("validate", t.at("named.pt"), "--json")["findings"]
    other = {"experts": {0: torch.ones(2), 1: torch.ones(3)}, "flags": {True: torch.zeros(1)}, "w": {"0": torch.ones(4)}, "optim": optim.state_dict()}
    torch.save(other, t.at("other.pt"))
    told = t.run("convert", t.at("other.pt"), t.at("other"), "--to", "dcp").stderr.decode()
    assert "become texts" in told and "experts" in told and "flags" in told and "optim" not in told and " w" not in told.split("in:")[1], told
    t.run("convert", t.at("other"), t.at("back2.pt"))
    back = torch.load(t.at("back2.pt"), weights_only=True)
    assert set(back["experts"]) == {"0", "1"} and set(back["w"]) == {"0"} and set(back["optim"]["state"]) == {0, 1}
    # without the list of ids, nothing says that the keys were ints
    told = t.run("convert", t.at("other.pt"), t.at("states"), "--to", "dcp", "--include", "optim.state.**").stderr.decode()
    assert "become texts" in told and "optim.state" in told, told


def test_keys_of_another_type(t):
    import torch
    model, optim = trained(two_groups)
    right = {"model": model.state_dict(), "optim": optim.state_dict()}
    wrong = copy.deepcopy(right)
    wrong["optim"]["state"] = {str(k): v for k, v in wrong["optim"]["state"].items()}
    torch.save(right, t.at("right.pt"))
    torch.save(wrong, t.at("wrong.pt"))
    other = trained(two_groups, steps=0)[1]
    other.load_state_dict(torch.load(t.at("wrong.pt"))["optim"])
    assert not [p for p in model.parameters() if p in other.state], "PyTorch gives no parameter a state"
    found = t.json("validate", t.at("wrong.pt"), "--json")["findings"]
    assert [(f["rule"], f["level"]) for f in found] == [("optim/ids-are-texts", "warning")], found
    assert not t.json("validate", t.at("right.pt"), "--json")["findings"]
    doc = t.json("diff", t.at("right.pt"), t.at("wrong.pt"), "--json", "--values", status=1)
    assert {c["fqn"] for c in doc["changed"]} == {f"optim.state.{i}.{n}" for i, s in right["optim"]["state"].items() for n in s}
    assert all(c["what"] == ["key"] and c["a"]["key"] == c["fqn"].split(".")[2] and c["b"]["key"] == f"'{c['a']['key']}'" for c in doc["changed"]), doc["changed"][:2]
    assert b"key 0 \xe2\x86\x92 '0'" in t.run("diff", t.at("right.pt"), t.at("wrong.pt"), status=1).stdout
    assert not t.json("diff", t.at("right.pt"), t.at("wrong.pt"), "--json", "--rule", "diff/key=off")["changed"]
    save_dcp(wrong, t.at("dcp"))
    assert t.json("diff", t.at("right.pt"), t.at("dcp"), "--json", "--values")["same"], "a DCP has texts only"
    assert not t.json("validate", t.at("dcp"), "--json")["findings"]


def forms(t, name, model, optim, change=lambda state, of: None):
    """Writes a checkpoint in every form that an optimizer's state has, and yields the paths. change(state, FQN → key in it)."""
    import torch
    from torch.distributed.checkpoint import state_dict as dsd
    names = [n for n, _ in model.named_parameters()]
    numbers = {id(p): i for i, p in enumerate(q for g in optim.param_groups for q in g["params"])}
    ids = {n: numbers.get(id(p)) for n, p in model.named_parameters()}
    native = copy.deepcopy(optim.state_dict())
    nested = {"state": {n: copy.deepcopy(native["state"][ids[n]]) for n in names if ids[n] in native["state"]},
              "param_groups": [{**g, "params": [next(n for n in names if ids[n] == i) for i in g["params"]]} for g in native["param_groups"]]}
    change(native["state"], ids)
    change(nested["state"], {n: n for n in names})
    flat = {f"state.{n}.{k}": v for n, s in nested["state"].items() for k, v in s.items()}
    flat.update({f"param_groups.{n}.{k}": v for g in nested["param_groups"] for n in g["params"] for k, v in g.items() if k != "params"})
    weights = copy.deepcopy(model.state_dict())
    wrapped = {f"module.{k}": v for k, v in weights.items()}
    for form, state in (("ids", {"model": weights, "optim": native}), ("wrapped", {"model": wrapped, "optim": nested}), ("names", {"model": weights, "optim": nested}), ("flat", {"model": weights, "optim": flat}),
                        ("list", {"state_dict": {f"net.{k}": v for k, v in weights.items()}, "optimizer_states": [native]})):
        torch.save(state, t.at(f"{name}-{form}.pt"))
        yield form, t.at(f"{name}-{form}.pt")
        save_dcp(state, t.at(f"{name}-{form}"))
        yield form, t.at(f"{name}-{form}")


def findings(t, path, status=0):
    return t.json("validate", path, "--json", status=status)["findings"]


def test_broken_states(t):
    import torch
    cases = {
        "half": ("optim/state-incomplete", "exp_avg_sq", lambda s: s.pop("exp_avg_sq")),
        "other half": ("optim/state-incomplete", "exp_avg", lambda s: s.pop("exp_avg")),
        "amsgrad": ("optim/state-incomplete", "max_exp_avg_sq", lambda s: s.pop("max_exp_avg_sq")),
        "shape": ("optim/state-shape", "exp_avg_sq", lambda s: s.update(exp_avg_sq=torch.ones(9, 9))),
        "rows": ("optim/state-shape", "exp_avg", lambda s: s.update(exp_avg=s["exp_avg"][:-1].clone())),
        "maximum": ("optim/state-shape", "max_exp_avg_sq", lambda s: s.update(max_exp_avg_sq=s["max_exp_avg_sq"].t().clone())),
    }
    model, optim = trained(two_groups)
    for name, (rule, part, change) in cases.items():
        for form, path in forms(t, name, model, optim, lambda state, of: change(state[of["0.weight"]])):
            found = findings(t, path, status=1)
            assert [(f["rule"], f["level"]) for f in found] == [(rule, "error")], (name, path, found)
            assert part in found[0]["message"] and ("0.weight" in found[0]["message"] or "parameter 0 " in found[0]["message"]), found
            action = "unflatten" if form == "flat" else "flatten"
            told = t.run("optim", action, path, t.at("no.pt"), status=2).stderr.decode()
            assert part in told and not os.path.exists(t.at("no.pt")), told
    model, optim = trained(momentum)
    for form, path in forms(t, "sgd", model, optim, lambda state, of: state[of["2.weight"]].update(momentum_buffer=torch.ones(3, 8))):
        found = findings(t, path, status=1)
        assert [f["rule"] for f in found] == ["optim/state-shape"] and "[3, 8]" in found[0]["message"] and "[3, 7]" in found[0]["message"], (path, found)
    # PyTorch fails with each of these, too
    broken = copy.deepcopy(trained(two_groups)[1].state_dict())
    del broken["state"][0]["exp_avg_sq"]
    model, optim = trained(two_groups, steps=0)
    optim.load_state_dict(broken)
    try:
        step(model, optim)
        raise AssertionError("PyTorch steps without exp_avg_sq")
    except (KeyError, RuntimeError, IndexError):
        pass


def test_missing_states(t):
    """Frozen parameters and those without a gradient: a note where others of the group have state, and no more."""
    import torch
    model, optim = trained(two_groups, unused=["1.bias"])
    for _, path in forms(t, "unused", model, optim):
        found = findings(t, path)
        assert [(f["rule"], f["level"]) for f in found] == [("optim/state-missing", "note")] and found[0]["message"].startswith("1 of 4 parameters"), (path, found)
    model, optim = trained(two_groups, steps=0)
    for _, path in forms(t, "new", model, optim):
        assert not findings(t, path), path
    model, optim = trained(lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
    for _, path in forms(t, "sgd", model, optim):
        assert not findings(t, path), path


def look_alikes():
    """Optimizers whose states differ from Adam's, or from parameter to parameter, as the libraries that are named write them."""
    import torch

    class Of(torch.optim.Optimizer):
        def __init__(self, params, first, **options):
            super().__init__(params, {"lr": 0.1, **options})
            self.first = first

        def step(self):
            for g in self.param_groups:
                for p in g["params"]:
                    if p.grad is not None:
                        self.state[p] = self.first(p, g)

    zeros = torch.zeros_like

    def factored(p, g):  # transformers' Adafactor with beta1
        if p.ndim < 2:
            return {"step": 1, "exp_avg": zeros(p), "exp_avg_sq": zeros(p), "RMS": 0}
        return {"step": 1, "exp_avg": zeros(p), "exp_avg_sq_row": zeros(p[:, 0]), "exp_avg_sq_col": zeros(p[0]), "RMS": 0}

    def galore(p, g):
        s = zeros(p[:2]) if p.ndim > 1 and "rank" in g else zeros(p)
        return {"step": 1, "exp_avg": s, "exp_avg_sq": s.clone()}

    def groups_of(m):
        matrices, others = [p for p in m.parameters() if p.ndim > 1], [p for p in m.parameters() if p.ndim < 2]
        return matrices, others

    yield "Adafactor", lambda m: torch.optim.Adafactor(m.parameters())
    yield "Adamax", lambda m: torch.optim.Adamax(m.parameters())
    yield "NAdam", lambda m: torch.optim.NAdam(m.parameters())
    yield "RAdam", lambda m: torch.optim.RAdam(m.parameters())
    yield "RMSprop", lambda m: torch.optim.RMSprop(m.parameters(), momentum=0.5, centered=True)
    yield "Adagrad", lambda m: torch.optim.Adagrad(m.parameters())
    yield "Rprop", lambda m: torch.optim.Rprop(m.parameters())
    yield "Adadelta", lambda m: torch.optim.Adadelta(m.parameters())
    yield "ASGD", lambda m: torch.optim.ASGD(m.parameters())
    yield "factored", lambda m: Of(m.parameters(), factored, beta1=0.9)
    yield "Lion", lambda m: Of(m.parameters(), lambda p, g: {"exp_avg": zeros(p)}, betas=(0.9, 0.99))
    yield "Sophia", lambda m: Of(m.parameters(), lambda p, g: {"step": 1, "exp_avg": zeros(p), "hessian": zeros(p)}, rho=0.04)
    yield "AdaBelief", lambda m: Of(m.parameters(), lambda p, g: {"step": 1, "exp_avg": zeros(p), "exp_avg_var": zeros(p), "max_exp_avg_var": zeros(p)}, amsgrad=True)
    yield "bitsandbytes", lambda m: Of(m.parameters(), lambda p, g: {"step": 1, "state1": torch.zeros(p.shape, dtype=torch.uint8), "absmax1": torch.zeros(1)})
    yield "Muon in one optimizer", lambda m: Of([{"params": groups_of(m)[0], "use_muon": True}, {"params": groups_of(m)[1], "use_muon": False}],
                                                lambda p, g: {"momentum_buffer": zeros(p)} if g["use_muon"] else {"step": 1, "exp_avg": zeros(p), "exp_avg_sq": zeros(p)})
    yield "decay and no decay", lambda m: torch.optim.AdamW([{"params": groups_of(m)[0]}, {"params": groups_of(m)[1], "weight_decay": 0.0}])
    yield "the last layer first", lambda m: torch.optim.AdamW([{"params": m[2].parameters()}, {"params": m[0].parameters()}, {"params": m[1].parameters()}])
    yield "part of the model", lambda m: torch.optim.AdamW(m[2].parameters())
    yield "GaLore", lambda m: Of([{"params": groups_of(m)[0], "rank": 2, "proj_type": "std"}, {"params": groups_of(m)[1]}], galore)


def test_healthy_states(t):
    import torch
    from torch import nn
    for name, make in look_alikes():
        model, optim = trained(make)
        for form, path in forms(t, name, model, optim):
            found = findings(t, path)
            # ids do not say which parameters GaLore's groups have, because their order is not the model's
            want = {"optim/state-shape"} if name == "GaLore" and form in ("names", "flat", "wrapped") else set()
            assert {f["rule"] for f in found} == want and all(f["level"] == "warning" for f in found), (name, path, found)
    # buffers between the parameters, tied weights, and a second model with the same names
    tied = nn.Sequential(nn.Embedding(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 6))
    tied[2].weight = tied[0].weight
    model, optim = trained(lambda m: torch.optim.Adam(m.parameters()), tied)
    for _, path in forms(t, "tied", model, optim):
        assert not findings(t, path), path
    small, optim = trained(lambda m: torch.optim.Adam(m.parameters()), nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))
    large, _ = trained(lambda m: torch.optim.Adam(m.parameters()), nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)))
    torch.save({"critic": large.state_dict(), "actor": small.state_dict(), "optim": optim.state_dict()}, t.at("two.pt"))
    assert not findings(t, t.at("two.pt"))
    # FSDP1 with use_orig_params: the state of a rank is flat, in the order of the parameters
    raw = copy.deepcopy(trained(two_groups)[1].state_dict())
    for s in raw["state"].values():
        s.update({k: v.reshape(-1)[: max(1, v.numel() // 2)].clone() for k, v in s.items() if v.ndim})
    torch.save({"model": trained(two_groups)[0].state_dict(), "optim": raw}, t.at("raw.pt"))
    assert not findings(t, t.at("raw.pt"))


def test_options_of_torch(t):
    """Every optimizer of torch.optim and every scheduler adds options of PyTorch only: a wrong shape is an error with all of them."""
    import torch
    from torch.optim import lr_scheduler
    schedulers = (lambda o: None, lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9), lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0, cycle_momentum=False),
                  lambda o: lr_scheduler.LambdaLR(o, lambda e: 1.0), lambda o: torch.optim.swa_utils.SWALR(o, 0.1))
    classes = [c for c in vars(torch.optim).values() if isinstance(c, type) and issubclass(c, torch.optim.Optimizer) and c is not torch.optim.Optimizer]
    assert len(classes) > 10
    for cls in classes:
        for schedule in schedulers:
            model = torch.nn.Sequential(torch.nn.Linear(3, 2, bias=False), torch.nn.Linear(2, 4, bias=False))
            optim = cls([("0.weight", model[0].weight), ("1.weight", model[1].weight)], lr=0.1)
            try:
                schedule(optim)
            except (ValueError, KeyError):  # OneCycleLR wants a momentum
                pass
            state = optim.state_dict()
            state["state"] = {0: {"momentum_buffer": torch.zeros(2, 3)}, 1: {"momentum_buffer": torch.zeros(4, 1)}}
            torch.save({"model": model.state_dict(), "optim": state}, t.at("options.pt"))
            found = findings(t, t.at("options.pt"), status=1)
            assert [(f["rule"], f["level"]) for f in found] == [("optim/state-shape", "error")] and "1.weight" in found[0]["message"], (cls, found)


def test_frozen_state_is_kept(t):
    import torch
    from describe_modules import modules_document
    from torch.distributed.checkpoint import state_dict as dsd
    model, optim = trained(lambda m: torch.optim.AdamW(m.parameters()))
    nested = dsd.get_optimizer_state_dict(model, optim)
    flat = dsd._flatten_optim_state_dict(copy.deepcopy(nested))
    torch.save(flat, t.at("flat.pt"))
    for frozen in ([], ["0.weight", "1.bias"]):
        for name, p in model.named_parameters():
            p.requires_grad_(name not in frozen)
        json.dump(modules_document(model), open(t.at("m.json"), "w"))
        told = t.run("optim", "unflatten", t.at("flat.pt"), t.at("out.pt"), "--modules", t.at("m.json"), "--overwrite").stderr.decode()
        assert ("warning" in told) == bool(frozen) and all(f"'{n}'" in told for n in frozen), told
        assert same(torch.load(t.at("out.pt"))["state"], nested["state"]), frozen


def test_written_as_dcp(t):
    """--to dcp writes what PyTorch would: the keys of its own DCP of the same state dict, and the values."""
    import torch
    from describe_modules import modules_document
    from torch.distributed.checkpoint import state_dict as dsd
    model, optim = trained(two_groups)
    nested = dsd.get_optimizer_state_dict(model, optim)
    flat = dsd._flatten_optim_state_dict(copy.deepcopy(nested))
    json.dump({**modules_document(model), "groups": [g["params"] for g in nested["param_groups"]]}, open(t.at("m.json"), "w"))
    torch.save({"optim": optim.state_dict()}, t.at("native.pt"))
    torch.save(flat, t.at("flat.pt"))
    torch.save(nested, t.at("nested.pt"))
    wants = {"to-fqn": ("native.pt", nested), "flatten": ("native.pt", flat), "unflatten": ("flat.pt", nested), "to-id": ("nested.pt", optim.state_dict())}
    for action, (source, want) in wants.items():
        modules = [] if action == "to-id" else ["--modules", t.at("m.json")]
        t.run("optim", action, t.at(source), t.at(action), "--to", "dcp", *modules)
        save_dcp(want, t.at(f"{action}-want"))
        got, expected = load_dcp(t.at(action)), load_dcp(t.at(f"{action}-want"))
        assert set(got) == set(expected) and all(same(got[k], expected[k]) for k in got), (action, set(got) ^ set(expected))
        t.run("optim", action, t.at(source), t.at(action), "--to", "dcp", *modules, status=2)
        doc = t.json("optim", action, t.at(source), t.at(action), "--to", "dcp", *modules, "--overwrite", "--json")
        assert doc["files"] == len([f for f in os.listdir(t.at(action)) if f.endswith(".distcp")]) and doc["bytes"], doc
    t.run("convert", t.at("to-id"), t.at("ids.pt"))
    assert set(torch.load(t.at("ids.pt"), weights_only=True)["state"]) == set(optim.state_dict()["state"])


def test_positions_in_lists(t):
    import torch
    from describe_modules import modules_document
    from torch.distributed.checkpoint import state_dict as dsd
    pairs = [trained(two_groups), trained(momentum)]
    torch.save({"epoch": 1, "optimizer_states": [o.state_dict() for _, o in pairs], "a.b": {"c": {7: pairs[1][1].state_dict()}}}, t.at("last.ckpt"))
    for at, (model, optim) in {"optimizer_states.0": pairs[0], "optimizer_states.1": pairs[1], "a.b.c.7": pairs[1]}.items():
        nested = dsd.get_optimizer_state_dict(model, optim)
        json.dump({**modules_document(model), "groups": [g["params"] for g in nested["param_groups"]]}, open(t.at("m.json"), "w"))
        t.run("optim", "to-fqn", t.at("last.ckpt"), t.at("out.pt"), "--at", at, "--modules", t.at("m.json"), "--overwrite")
        assert same(torch.load(t.at("out.pt"))["state"], nested["state"]), at
    for at in ("optimizer_states.2", "optimizer_states", "optimizer_states.0.", "optimizer_states.00", "epoch.0", ""):
        t.run("optim", "flatten", t.at("last.ckpt"), t.at("no.pt"), "--at", at, status=2)
    told = t.run("optim", "flatten", t.at("last.ckpt"), t.at("no.pt"), status=2).stderr.decode()
    assert "'optimizer_states.0'" in told and "'optimizer_states.1'" in told, told
    torch.save({"optimizer_states": [pairs[1][1].state_dict()]}, t.at("one.ckpt"))
    t.run("optim", "flatten", t.at("one.ckpt"), t.at("one.pt"))
    assert "state.0.momentum_buffer" in torch.load(t.at("one.pt"))
