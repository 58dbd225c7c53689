"""`tessera optim` against PyTorch: random models and optimizers through every form, and FSDP1 in several processes."""
import copy
import json
import os
import random
import sys

from harness import ROOT

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

def fsdp_model(seed, orig):
    import torch
    from torch import nn
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    r = random.Random(seed)
    torch.manual_seed(seed)
    wrap = lambda m: FSDP(m, use_orig_params=orig, device_id=torch.device("cpu"))
    width = [r.randrange(1, 7) for _ in range(4)]
    layers = [nn.Sequential(nn.Linear(a, a, bias=r.random() < 0.6), nn.Linear(a, b)) for a, b in zip(width, width[1:])]
    net = nn.Sequential(*[wrap(x) if r.random() < 0.6 else x for x in layers])
    return wrap(net), width[0]


def fsdp_rank(rank, world, port, seed, folder, load):
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
    from torch.distributed.fsdp.api import FullOptimStateDictConfig, FullStateDictConfig
    sys.path.insert(0, os.path.join(ROOT, "samples"))
    from describe_modules import flat_params_document
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    net, width = fsdp_model(seed, bool(seed % 2))
    optim = torch.optim.AdamW(net.parameters(), lr=0.01)
    FSDP.set_state_dict_type(net, StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig(offload_to_cpu=False))
    if load:
        raw = FSDP.optim_state_dict_to_load(net, optim, torch.load(load, weights_only=True))
        torch.save(raw, os.path.join(folder, f"want{rank}.pt"))
    else:
        net(torch.randn(3, width)).sum().backward()
        optim.step()
        raw = optim.state_dict()
        torch.save(raw, os.path.join(folder, f"rank{rank}.pt"))
        full = FSDP.optim_state_dict(net, optim, raw)
        if rank == 0:
            torch.save(full, os.path.join(folder, "full.pt"))
            json.dump(flat_params_document(net, optim, [f"rank{r}.pt" for r in range(world)]), open(os.path.join(folder, "flat.json"), "w"))
    dist.barrier()
    dist.destroy_process_group()


def test_fsdp1(t):
    import torch
    import torch.multiprocessing as mp
    for seed in range(8 if FULL else 2):
        world, other = 2 + seed % 3, 1 + (seed * 3 + 2) % 5
        folder = t.at(f"s{seed}")
        os.mkdir(folder)
        at = lambda name: os.path.join(folder, name)
        port = 30100 + (os.getpid() * 7 + seed * 2) % 1500
        mp.spawn(fsdp_rank, (world, port, seed, folder, None), nprocs=world)
        t.run("optim", "unshard", folder, t.at("full.pt"), "--flat-params", at("flat.json"), "--overwrite")
        want, got = (torch.load(p, weights_only=True) for p in (at("full.pt"), t.at("full.pt")))
        assert same(got, want), f"seed {seed}: unshard gives {got}, PyTorch {want}"
        t.run("optim", "shard", t.at("full.pt"), at("back"), "--flat-params", at("flat.json"))
        for rank in range(world):
            want, got = (torch.load(p, weights_only=True) for p in (at(f"rank{rank}.pt"), at(f"back/rank{rank}.pt")))
            assert same(got["state"], want["state"]), f"seed {seed}: rank {rank} gives {got}, PyTorch had {want}"
        mp.spawn(fsdp_rank, (other, port + 1, seed, folder, at("full.pt")), nprocs=other)
        for source, path in full_in_every_form(t, at, torch.load(at("full.pt"), weights_only=True)).items():
            t.run("optim", "shard", path, at(source), "--flat-params", at("flat.json"), "--world-size", other)
            for rank in range(other):
                name = f"rank{rank}.pt" if other == world else f"rank{rank}.optim.pt"
                want, got = (torch.load(p, weights_only=True) for p in (at(f"want{rank}.pt"), at(f"{source}/{name}")))
                if source == "safetensors":  # holds no groups
                    assert set(got) == {"state"}, got.keys()
                    got["param_groups"] = want["param_groups"]
                assert same(got, want), f"seed {seed}: rank {rank} of {other} from {source} gives {got}, PyTorch {want}"


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
