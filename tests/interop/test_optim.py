"""`tessera optim` against PyTorch: random models and optimizers through every form, and FSDP1 in several processes."""
import copy
import json
import os
import random
import sys

from harness import ROOT
from torch_ranks import run_ranks

sys.path.insert(0, os.path.join(ROOT, "samples"))
FULL = bool(os.environ.get("TSR_TEST_FULL"))


def random_model(r):
    import torch
    from torch import nn
    layers = [nn.Linear(r.randrange(1, 6), r.randrange(1, 5), bias=r.random() < 0.7) for _ in range(r.randrange(1, 4))]
    model = nn.ModuleDict({"body": nn.Sequential(*layers), "norm": nn.LayerNorm(r.randrange(1, 4))})
    model.temp = nn.Parameter(torch.tensor(1.0))
    model.none = nn.Parameter(torch.zeros(0, 3))
    model.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    return model.to(r.choice([torch.float32, torch.bfloat16, torch.float64]))


def random_optimizer(r, params):
    import torch
    cut = r.randrange(len(params))
    groups = [{"params": params}] if r.random() < 0.4 or cut == 0 else [{"params": params[:cut], "lr": 0.5}, {"params": params[cut:], "weight_decay": 0.25}]
    return r.choice([
        lambda: torch.optim.SGD(groups, lr=0.1),
        lambda: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
        lambda: torch.optim.AdamW(groups, lr=0.1, amsgrad=r.random() < 0.5, foreach=r.choice([None, True, False])),
        lambda: torch.optim.Adam(groups, lr=0.1, fused=True, weight_decay=0.1),
        lambda: torch.optim.Adam(groups, lr=0.1, betas=(0.5, 0.75), maximize=True),
        lambda: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
        lambda: torch.optim.Adagrad(groups, lr=0.1),
        lambda: torch.optim.RMSprop(groups, lr=0.1, centered=True),
        lambda: torch.optim.NAdam(groups, lr=0.1),
    ])()


def same(a, b):
    import torch
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and set(a) == set(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_flatten_and_ids(t):
    import torch
    from torch.distributed.checkpoint import state_dict as dsd
    from describe_modules import modules_document
    for seed in range(40 if FULL else 10):
        r = random.Random(seed)
        torch.manual_seed(seed)
        model = random_model(r)
        params = [p for p in model.parameters() if p.requires_grad or r.random() < 0.8]
        optim = random_optimizer(r, params)
        for p in params:
            p.grad = torch.randn_like(p) if p.requires_grad else None
        optim.step()
        native = copy.deepcopy(optim.state_dict())
        nested = dsd.get_optimizer_state_dict(model, optim)
        info = dsd._verify_options(model, (optim,), True)
        flat = dsd._flatten_optim_state_dict(copy.deepcopy(nested))
        doc = modules_document(model)
        doc["groups"] = [g["params"] for g in nested["param_groups"]]
        json.dump(doc, open(t.at("m.json"), "w"))
        modules = ["--modules", t.at("m.json"), "--overwrite"]
        torch.save({"epoch": 1, "optim": native}, t.at("native.pt"))
        torch.save(flat, t.at("flat.pt"))
        wants = {"to-fqn": ("native.pt", nested), "flatten": ("native.pt", flat), "unflatten": ("flat.pt", dsd._unflatten_optim_state_dict(optim, copy.deepcopy(flat), info))}
        for action, (source, want) in wants.items():
            t.run("optim", action, t.at(source), t.at("out.pt"), *modules)
            got = torch.load(t.at("out.pt"), weights_only=True)
            assert same(got, want), f"seed {seed}: {action} gives {got}, PyTorch {want}"
        t.run("optim", "to-fqn", t.at("native.pt"), t.at("nested.pt"), *modules)
        t.run("optim", "to-id", t.at("nested.pt"), t.at("out.pt"), "--overwrite")
        assert same(torch.load(t.at("out.pt"), weights_only=True), native), f"seed {seed}: to-id"


def test_refused_states(t):
    """Flat state that PyTorch cannot unflatten for the same optimizer is refused, and so is what it does not look at."""
    import torch
    from torch.distributed.checkpoint import state_dict as dsd
    from describe_modules import modules_document
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 3), "b": torch.nn.Linear(3, 1)})
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optim.step()
    nested = dsd.get_optimizer_state_dict(model, optim)
    flat = dsd._flatten_optim_state_dict(copy.deepcopy(nested))
    info = dsd._verify_options(model, (optim,), True)
    json.dump({**modules_document(model), "groups": [g["params"] for g in nested["param_groups"]]}, open(t.at("m.json"), "w"))
    # PyTorch 2.13 looks at the first parameter of a group only: what the others say, and whether they agree, is seen here
    changes = {"lr missing": (lambda d: d.pop("param_groups.a.weight.lr"), b"a.weight", True),
               "lr of another missing": (lambda d: d.pop("param_groups.b.weight.lr"), b"b.weight", False),
               "lr of another": (lambda d: d.update({"param_groups.b.weight.lr": 0.5}), b"0.5", False),
               "no group of another": (lambda d: [d.pop(k) for k in list(d) if k.startswith("param_groups.b.bias.")], b"b.bias", False)}
    for name, (change, part, refused) in changes.items():
        changed = copy.deepcopy(flat)
        change(changed)
        try:
            dsd._unflatten_optim_state_dict(optim, copy.deepcopy(changed), info)
            assert not refused, f"PyTorch takes {name}"
        except KeyError:
            assert refused, f"PyTorch refuses {name}"
        torch.save(changed, t.at("changed.pt"))
        p = t.run("optim", "unflatten", t.at("changed.pt"), t.at("out.pt"), "--modules", t.at("m.json"), status=2)
        assert part in p.stderr, f"{name}: {p.stderr}"
    nested["state"]["a.weight"]["note"] = "text"
    torch.save(nested, t.at("changed.pt"))
    assert b"state.a.weight.note" in t.run("optim", "flatten", t.at("changed.pt"), t.at("out.pt"), status=2).stderr
    try:
        dsd._flatten_optim_state_dict(nested)
        raise AssertionError("PyTorch flattens a text")
    except NotImplementedError:
        pass


def test_tensor_options(t):
    """Options that are tensors have a copy for each parameter in a flat state dict: equal values are one group."""
    import torch
    from torch.distributed.checkpoint import state_dict as dsd
    from describe_modules import modules_document
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1), torch.nn.LayerNorm(1))
    rate = lambda *values: torch.tensor(values[0] if len(values) == 1 else values)
    optim = torch.optim.AdamW([{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": rate(0.25), "betas": (0.5, 0.75)},
                               {"params": model[2].parameters(), "betas": (rate(0.5), rate(0.75))}], lr=rate(0.5), foreach=False, capturable=True)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optim.param_groups[0]["vector"] = rate(1.0, 2.0)
    for g in optim.param_groups[1:]:
        g["vector"] = rate(1.0, 3.0)
    for p in model.parameters():
        optim.state[p] = {"step": torch.tensor(1.0), "exp_avg": torch.full_like(p, 2.0)}
    nested = dsd.get_optimizer_state_dict(model, optim)
    flat = dsd._flatten_optim_state_dict(copy.deepcopy(nested))
    apart = torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.clone(), flat)
    want = dsd._unflatten_optim_state_dict(optim, copy.deepcopy(apart), dsd._verify_options(model, (optim,), True))
    torch.save(apart, t.at("flat.pt"))
    json.dump(modules_document(model), open(t.at("names.json"), "w"))
    json.dump({**modules_document(model), "groups": [g["params"] for g in nested["param_groups"]]}, open(t.at("groups.json"), "w"))
    for modules in (["--modules", t.at("names.json")], ["--modules", t.at("groups.json")], []):
        t.run("optim", "unflatten", t.at("flat.pt"), t.at("out.pt"), *modules, "--overwrite")
        got = torch.load(t.at("out.pt"), weights_only=True)
        assert same(got, want), f"{modules}: {got}, PyTorch {want}"
    for key, value in {"lr": rate(0.75), "vector": rate(1.0, 2.5)}.items():  # one parameter of a group differs
        changed = {**apart, f"param_groups.1.bias.{key}": value}
        torch.save(changed, t.at("changed.pt"))
        p = t.run("optim", "unflatten", t.at("changed.pt"), t.at("none.pt"), "--modules", t.at("groups.json"), status=2)
        assert f"differ in '{key}'".encode() in p.stderr, p.stderr
        t.run("optim", "unflatten", t.at("changed.pt"), t.at("out.pt"), "--overwrite")
        assert len(torch.load(t.at("out.pt"), weights_only=True)["param_groups"]) == 4, key


def test_groups_of_a_live_optimizer(t):
    """describe_modules takes the optimizer: its groups, in any order and of wrapped models, name the ids and regroup flat state."""
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint import state_dict as dsd
    from torch.distributed.fsdp import FullyShardedDataParallel
    from describe_modules import modules_document
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for wrap in (lambda m: m, torch.nn.parallel.DistributedDataParallel, lambda m: torch.compile(m, backend="eager"),
                     lambda m: FullyShardedDataParallel(m, device_id=torch.device("cpu"), use_orig_params=True)):
            torch.manual_seed(3)
            model = wrap(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 1)))
            params = list(model.parameters())
            optim = torch.optim.AdamW([{"params": [params[4], params[0]], "lr": 0.5}, {"params": [params[1]], "lr": 0.25},
                                       {"params": [params[5], params[3], params[2]], "lr": 0.125}])
            model(torch.randn(4, 2)).square().sum().backward()
            optim.step()
            nested = dsd.get_optimizer_state_dict(model, optim)
            document = modules_document(model, optimizer=optim)
            assert document["groups"] == [g["params"] for g in nested["param_groups"]], document["groups"]
            json.dump(document, open(t.at("m.json"), "w"))
            torch.save(dsd._flatten_optim_state_dict(copy.deepcopy(nested)), t.at("flat.pt"))
            torch.save(optim.state_dict(), t.at("ids.pt"))
            for what, source in (("unflatten", "flat.pt"), ("to-fqn", "ids.pt")):
                if what == "to-fqn" and isinstance(model, FullyShardedDataParallel):
                    continue  # its ids are those of one rank's shards, which `unshard` is for
                t.run("optim", what, t.at(source), t.at("out.pt"), "--modules", t.at("m.json"), "--overwrite")
                got = torch.load(t.at("out.pt"), weights_only=True)
                assert same(got["state"], nested["state"]), (what, got)
                assert [(g["params"], g["lr"]) for g in got["param_groups"]] == [(g["params"], g["lr"]) for g in nested["param_groups"]], what
    finally:
        dist.destroy_process_group()


def test_from_dcp(t):
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict as dsd
    from describe_modules import modules_document
    r = random.Random(7)
    model = random_model(r)
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    for p in model.parameters():
        p.grad = torch.randn_like(p) if p.requires_grad else None
    optim.step()
    nested = dsd.get_optimizer_state_dict(model, optim)
    dcp.save({"model": model.state_dict(), "optim": nested}, checkpoint_id=t.at("ckpt"), no_dist=True)
    json.dump(modules_document(model), open(t.at("m.json"), "w"))
    t.run("reshard", t.at("ckpt"), t.at("rows"), "--mesh", "dp=3", "--placements", "shard(0)", "--to", "dcp")
    t.run("reshard", t.at("ckpt"), t.at("ranks"), "--mesh", "dp=2", "--placements", "shard(1)", "--to", "torch")
    native = copy.deepcopy(optim.state_dict())
    for source in ("ckpt", "rows", "ranks"):
        modules = ["--at", "optim", "--modules", t.at("m.json"), "--overwrite"]
        t.run("optim", "flatten", t.at(source), t.at("out.pt"), *modules)
        want = dsd._flatten_optim_state_dict(copy.deepcopy(nested))
        assert same(torch.load(t.at("out.pt"), weights_only=True), want), source
        t.run("optim", "to-id", t.at(source), t.at("out.pt"), *modules)
        assert same(torch.load(t.at("out.pt"), weights_only=True), native), source


# ---- FSDP1 ----

def optimizers():
    import torch
    return {
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
        "adam_amsgrad_foreach": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
        "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        "adamw_fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True, weight_decay=0.1),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True),
    }


def fsdp_case(seed):
    """A model, its wrapping, the world that trains it and the one that loads it."""
    r = random.Random(seed * 31 + 5)
    strategy = ["FULL_SHARD", "FULL_SHARD", "HYBRID_SHARD", "SHARD_GRAD_OP", "NO_SHARD"][seed % 5]
    world, other = (r.randrange(1, 9), r.randrange(1, 9)) if FULL else (2 + seed % 3, 1 + (seed * 3 + 2) % 5)
    shards = 1 + r.randrange(1, 3) if strategy == "HYBRID_SHARD" else None
    if shards:
        world, other = 2 * shards, shards * r.randrange(1, 3)
    mesh = bool(shards) or (strategy != "NO_SHARD" and seed % 3 == 0)
    return {"seed": seed, "orig": bool(seed % 2), "strategy": strategy, "shards": shards, "mesh": mesh, "world": world, "other": other,
            "optim": list(optimizers())[(seed // 2 + 5 * (seed % 2)) % 6]}


def fsdp_model(case):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
    r = random.Random(case["seed"])
    torch.manual_seed(case["seed"])
    more = {"sharding_strategy": ShardingStrategy[case["strategy"]]}
    if case["mesh"]:
        shape = (dist.get_world_size() // case["shards"], case["shards"]) if case["shards"] else (dist.get_world_size(),)
        more["device_mesh"] = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape):])
    wrap = lambda m: FSDP(m, use_orig_params=case["orig"], device_id=torch.device("cpu"), **more)

    def tree(a, b, depth):
        if depth == 0 or r.random() < 0.3:
            return nn.Linear(a, b, bias=r.random() < 0.7)
        middle = r.randrange(1, 7)
        parts = [tree(a, middle, depth - 1), tree(middle, b, depth - 1)]
        if r.random() < 0.3:
            parts.append(nn.LayerNorm(b))
        net = nn.Sequential(*parts)
        return wrap(net) if r.random() < 0.4 else net

    width = r.randrange(1, 7)
    return wrap(nn.Sequential(tree(width, r.randrange(1, 7), 3))), width


def first_state(full):
    return next((k for k, v in full["state"].items() if any(getattr(x, "ndim", 0) for x in v.values())), None)


def missing(full):
    del full["state"][first_state(full)]


def other_dtype(full):
    state = full["state"][first_state(full)]
    name = next(n for n, v in state.items() if getattr(v, "ndim", 0))
    state[name] = state[name].double()


def other_step(full):
    state = full["state"][first_state(full)]
    if "step" in state:
        state["step"] = state["step"] + 1


def other_name(full):
    state = full["state"][first_state(full)]
    state["renamed"] = state.pop(next(n for n, v in state.items() if getattr(v, "ndim", 0)))


def longer(full):
    import torch
    state = full["state"][first_state(full)]
    name = next(n for n, v in state.items() if getattr(v, "ndim", 0))
    state[name] = torch.cat([state[name], state[name][:1]])


def unknown_parameter(full):
    full["param_groups"][0]["params"].append("nosuch.weight")


CHANGES = [missing, other_dtype, other_step, other_name, longer, unknown_parameter]


def fsdp_rank(rank, world, case, directory, load):
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
    from torch.distributed.fsdp.api import FullOptimStateDictConfig, FullStateDictConfig, ShardedOptimStateDictConfig, ShardedStateDictConfig
    sys.path.insert(0, os.path.join(ROOT, "samples"))
    from describe_modules import flat_params_document
    torch.set_num_threads(1)
    net, width = fsdp_model(case)
    optim = optimizers()[case["optim"]](net.parameters())
    FSDP.set_state_dict_type(net, StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig(offload_to_cpu=False))
    at = lambda name: os.path.join(directory, name)
    if load:
        full = torch.load(load, weights_only=True)
        torch.save(FSDP.optim_state_dict_to_load(net, optim, copy.deepcopy(full)), at(f"want{rank}.pt"))
        for change in CHANGES if first_state(full) else []:
            changed = copy.deepcopy(full)
            change(changed)
            if rank == 0:
                torch.save(changed, at(f"{change.__name__}.pt"))
            try:
                result = FSDP.optim_state_dict_to_load(net, optim, changed)
            except Exception as e:  # what it is differs; that it is one counts
                result = f"{type(e).__name__}: {e}"
            torch.save(result, at(f"{change.__name__}{rank}.pt"))
    else:
        net(torch.randn(3, width)).sum().backward()
        optim.step()
        raw = optim.state_dict()
        torch.save(raw, at(f"rank{rank}.pt"))
        full = FSDP.optim_state_dict(net, optim, raw)
        if rank == 0:
            torch.save(full, at("full.pt"))
            with open(at("flat.json"), "w") as f:
                json.dump(flat_params_document(net, optim, [f"rank{r}.pt" for r in range(world)]), f)
        if case["mesh"]:
            FSDP.set_state_dict_type(net, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(), ShardedOptimStateDictConfig(offload_to_cpu=False))
            torch.save(FSDP.optim_state_dict(net, optim, raw), at(f"sharded/rank{rank}.pt"))


def rows_rank(rank, world, directory, full):
    """Real ranks load the DTensors and gather them."""
    import logging
    import torch
    from torch.distributed.tensor import DTensor
    logging.disable(logging.WARNING)  # of meshes loaded before their groups exist
    mine = torch.load(os.path.join(directory, f"rank{rank}.pt"), weights_only=False)
    want = torch.load(full, weights_only=True)
    if any(isinstance(v, DTensor) and v.device_mesh.ndim > 1 for s in mine["state"].values() for v in s.values()):
        from torch.distributed.device_mesh import init_device_mesh
        init_device_mesh("cpu", next(v for s in mine["state"].values() for v in s.values() if isinstance(v, DTensor)).device_mesh.shape)
    whole = {k: {n: v.full_tensor() if isinstance(v, DTensor) else v for n, v in s.items()} for k, s in mine["state"].items()}
    assert same(whole, want["state"]) and mine["param_groups"] == want["param_groups"], (whole, want)


def rank_name(case, rank):
    return f"rank{rank}.pt" if case["other"] == case["world"] else f"rank{rank}.optim.pt"


def loaded(*paths):
    import torch
    return [torch.load(p, weights_only=True) for p in paths]


def check_changes(t, case, at):
    """What PyTorch refuses is refused; what it takes gives the same. Where ranks differ (a rank without the parameter does not
    look at its state), one that refuses is enough."""
    import torch
    for change in CHANGES:
        name = change.__name__
        if not os.path.exists(at(name + ".pt")):
            continue
        wants = loaded(*[at(f"{name}{rank}.pt") for rank in range(case["other"])])
        refused = [w for w in wants if isinstance(w, str)]
        slices = 1 if case["strategy"] == "NO_SHARD" else case["shards"] or case["other"]
        stricter = case["orig"] and name == "longer" and slices > 1  # PyTorch slices whatever it is given
        command = ["optim", "shard", at(name + ".pt"), at(name), "--flat-params", at("flat.json"), "--world-size", case["other"]]
        if refused or stricter:
            p = t.run(*command, status=2)
            assert p.stderr.startswith(b"tessera: ") and not os.path.exists(at(name)), f"{case}: {name}: {p.stderr}"
            continue
        t.run(*command)
        for rank, want in enumerate(wants):
            got, = loaded(at(f"{name}/{rank_name(case, rank)}"))
            if any(isinstance(k, str) for k in want["state"]):  # without the first original, PyTorch leaves the others by name
                assert all(isinstance(k, int) for k in got["state"]), f"{case}: {name}, rank {rank}: {got['state'].keys()}"
                continue
            assert same(got, want), f"{case}: {name}, rank {rank} gives {got}, PyTorch {want}"


def test_fsdp1(t):
    import torch
    import torch.multiprocessing as mp
    for seed in range(20 if FULL else 3):
        case = fsdp_case(seed)
        directory = t.at(f"s{seed}")
        os.makedirs(os.path.join(directory, "sharded"))
        at = lambda name: os.path.join(directory, name)
        run_ranks(fsdp_rank, case["world"], case, directory, None)
        t.run("optim", "unshard", directory, t.at("full.pt"), "--flat-params", at("flat.json"), "--overwrite")
        want, got = loaded(at("full.pt"), t.at("full.pt"))
        assert same(got, want), f"{case}: unshard gives {got}, PyTorch {want}"
        t.run("optim", "shard", t.at("full.pt"), at("back"), "--flat-params", at("flat.json"))
        if case["mesh"] and first_state(want):
            rows = t.at(f"rows{seed}")
            t.run("optim", "unshard", directory, rows, "--flat-params", at("flat.json"), "--sharded")
            t.run("diff", rows, at("sharded"), "--values", "--layout")
            t.run("optim", "shard", at("sharded"), at("back-from-rows"), "--flat-params", at("flat.json"))
            run_ranks(rows_rank, case["world"], rows, at("full.pt"))
        for rank in range(case["world"]):
            for back in ("back", "back-from-rows"):
                if os.path.exists(at(back)):
                    want, got = loaded(at(f"rank{rank}.pt"), at(f"{back}/rank{rank}.pt"))
                    assert same(got["state"], want["state"]), f"{case}: {back} of rank {rank} gives {got}, PyTorch had {want}"
        run_ranks(fsdp_rank, case["other"], case, directory, at("full.pt"))
        for source, path in full_in_every_form(t, at, loaded(at("full.pt"))[0]).items():
            t.run("optim", "shard", path, at(source), "--flat-params", at("flat.json"), "--world-size", case["other"])
            for rank in range(case["other"]):
                want, got = loaded(at(f"want{rank}.pt"), at(f"{source}/{rank_name(case, rank)}"))
                if source == "safetensors":  # holds no groups
                    assert set(got) == {"state"}, got.keys()
                    got["param_groups"] = want["param_groups"]
                assert same(got, want), f"{case}: rank {rank} from {source} gives {got}, PyTorch {want}"
        check_changes(t, case, at)


def full_in_every_form(t, at, full):
    """The full state as torch.save, DCP (whole, cut by rows and by columns), flat and in safetensors."""
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file
    from torch.distributed.checkpoint import state_dict as dsd
    dcp.save({"optim": full, "epoch": 3}, checkpoint_id=at("dcp"), no_dist=True)
    for name, dim in (("rows", 0), ("columns", 1)):
        t.run("reshard", at("dcp"), at("cut-" + name), "--mesh", "dp=3", "--placements", f"shard({dim})", "--to", "dcp")
    t.run("reshard", at("dcp"), at("cut-ranks"), "--mesh", "dp=2", "--placements", "shard(0)", "--to", "torch")
    torch.save(dsd._flatten_optim_state_dict(copy.deepcopy(full)), at("flat.pt"))
    save_file({f"state.{k}.{n}": v.contiguous().clone() for k, s in full["state"].items() for n, v in s.items()}, at("full.safetensors"))
    return {"other": at("full.pt"), "whole": at("dcp"), "rows": at("cut-rows"), "columns": at("cut-columns"), "ranks": at("cut-ranks"),
            "flattened": at("flat.pt"), "safetensors": at("full.safetensors")}
