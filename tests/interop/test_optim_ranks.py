"""`tessera optim unshard` where ranks differ in optimizer state that FSDP1 does not shard: what each rank of real PyTorch gets."""
import json
import os
import sys

from harness import ROOT
from test_optim import loaded, same
from torch_ranks import run_ranks

CASES = {"flat": {}, "orig": {"orig": True}, "no_shard": {"strategy": "NO_SHARD"}, "orig_no_shard": {"orig": True, "strategy": "NO_SHARD"},
         "hybrid": {"mesh": (2, 2), "strategy": "HYBRID_SHARD"}}
UNMANAGED = ["expert.weight.exp_avg", "expert.weight.exp_avg_sq", "expert.weight.mine"]


def model_of(case, rank):
    """A unit, and an expert that it ignores; after one step each rank's own state is changed."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
    torch.manual_seed(3)
    net = nn.ModuleDict({"body": nn.Linear(3, 5), "expert": nn.Linear(3, 2, bias=False)})
    mesh = {"device_mesh": init_device_mesh("cpu", case["mesh"], mesh_dim_names=("replicate", "shard"))} if "mesh" in case else {}
    fsdp = FSDP(net, ignored_modules=[net["expert"]], use_orig_params=case.get("orig", False), device_id=torch.device("cpu"),
                sharding_strategy=ShardingStrategy[case.get("strategy", "FULL_SHARD")], **mesh)
    optim = torch.optim.AdamW(fsdp.parameters(), lr=0.25)
    for i, p in enumerate(fsdp.parameters()):
        p.grad = torch.full_like(p, i + 1.0)
    optim.step()
    return net, fsdp, optim


def part(case, net, optim, rank):
    """Values and keys of the expert differ by rank, of what is not sharded too."""
    import torch
    optim.param_groups[0]["lr"] += rank / 8
    for p, state in optim.state.items():
        expert = p is net["expert"].weight
        if expert and rank == 1:
            state["mine"] = torch.ones(2, 3)
        for name in [n for n in state if state[n].dim()]:
            if expert or case.get("strategy") == "NO_SHARD":
                state[name] = state[name] + 1000 + rank
            elif case.get("strategy") == "HYBRID_SHARD":
                state[name] = state[name] + rank // 2
    optim.state["seen"] = {"samples": 100 * (rank + 1)}  # of no parameter


def take_away(net, optim, rank, lacks):
    """Only the other rank has state of the expert."""
    if rank == lacks:
        del optim.state[net["expert"].weight]


def rank_main(rank, world, case, directory):
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
    from torch.distributed.fsdp.api import FullOptimStateDictConfig, FullStateDictConfig
    sys.path.insert(0, os.path.join(ROOT, "samples"))
    from describe_modules import flat_params_document
    torch.set_num_threads(1)
    at = lambda name: os.path.join(directory, name)
    net, fsdp, optim = model_of(case, rank)
    FSDP.set_state_dict_type(fsdp, StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig(offload_to_cpu=False))
    same_raw = optim.state_dict()
    torch.save(same_raw, at(f"same/rank{rank}.pt"))
    if rank == 0:
        json.dump(flat_params_document(fsdp, optim, [f"rank{r}.pt" for r in range(world)]), open(at("flat.json"), "w"))
    part(case, net, optim, rank)
    take_away(net, optim, rank, case.get("lacks"))
    raw = optim.state_dict()
    torch.save(raw, at(f"rank{rank}.pt"))
    if "lacks" not in case:  # PyTorch refuses it, or drops the state
        torch.save(FSDP.optim_state_dict(fsdp, optim, raw), at(f"want{rank}.pt"))
    torch.save(optim.state.get(net["expert"].weight), at(f"expert{rank}.pt"))


def check(t, name, case, directory):
    at = lambda n: os.path.join(directory, n)
    world = 4 if "mesh" in case else 2
    flat = ["--flat-params", at("flat.json")]
    p = t.run("optim", "unshard", directory, t.at("full.pt"), *flat, status=2)
    names = UNMANAGED + ["seen", "param_groups[0].lr"]
    if case.get("strategy"):
        names += ["body.weight.exp_avg", "body.bias.exp_avg_sq"] if case.get("orig") else ["_fsdp_wrapped_module._flat_param.exp_avg"]
    missing = [n for n in names if f"'{n}'".encode() not in p.stderr]
    assert not missing and b"--rank N" in p.stderr and not os.path.exists(t.at("full.pt")), f"{name}: {missing}: {p.stderr}"
    assert b".step'" not in p.stderr, f"{name}: steps are equal: {p.stderr}"
    for rank in range(world):
        t.run("optim", "unshard", directory, t.at("full.pt"), *flat, "--rank", rank, "--overwrite")
        got, want = loaded(t.at("full.pt"), at(f"want{rank}.pt"))
        assert same(got, want), f"{name}: rank {rank} gives {got}, PyTorch {want}"
    for wrong in (world, -1, "x", ""):
        assert b"--rank" in t.run("optim", "unshard", directory, t.at("none.pt"), *flat, f"--rank={wrong}", status=2).stderr, wrong
    os.unlink(t.at("full.pt"))
    t.run("optim", "unshard", at("same"), t.at("one.pt"), *flat, "--overwrite")  # nothing differs
    t.run("optim", "unshard", directory, t.at(name + ".rows"), *flat, "--sharded")
    for rank in range(world):
        got, want = (x["state"]["expert.weight"] for x in loaded_rows(t.at(f"{name}.rows/rank{rank}.pt"), at(f"want{rank}.pt")))
        assert same(got, want), f"{name}: --sharded gives rank {rank} {got}, PyTorch {want}"


def check_lacking(t, name, case, directory):
    """State that is on one rank only is neither dropped nor refused once it is said whose to take."""
    at = lambda n: os.path.join(directory, n)
    flat = ["--flat-params", at("flat.json")]
    p = t.run("optim", "unshard", directory, t.at("none.pt"), *flat, status=2)
    assert b"'expert.weight.exp_avg'" in p.stderr, p.stderr
    for rank in range(2):
        t.run("optim", "unshard", directory, t.at("full.pt"), *flat, "--rank", rank, "--overwrite")
        got, want = loaded(t.at("full.pt"), at(f"expert{rank}.pt"))
        assert same(got["state"].get("expert.weight"), want) and (want is None) == (rank == case["lacks"]), f"{name}: rank {rank}: {got}"
        assert got["state"].keys() - {"expert.weight"} == {"body.weight", "body.bias", "seen"}, got["state"].keys()
    os.unlink(t.at("full.pt"))


def test_fsdp1_state_of_one_rank_only(t):
    for i, case in enumerate(({"lacks": 0}, {"lacks": 1}, {"orig": True, "lacks": 0})):
        directory = t.at(f"lacks{i}")
        os.makedirs(os.path.join(directory, "same"))
        run_ranks(rank_main, 2, case, directory, start_method="fork")
        check_lacking(t, f"case {i}", case, directory)


def broken_rank(rank, world, directory, orig):
    """Two units in one group. What is broken is so on every rank, so that the ranks agree."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, FullOptimStateDictConfig, FullStateDictConfig, StateDictType
    from describe_modules import flat_params_document
    import torch
    torch.manual_seed(3)
    wrapped = lambda *sizes: FSDP(torch.nn.Linear(*sizes), device_id=torch.device("cpu"), use_orig_params=orig)
    model = FSDP(torch.nn.Sequential(wrapped(4, 6), wrapped(6, 8)), device_id=torch.device("cpu"), use_orig_params=orig)
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig(offload_to_cpu=False))

    def save(name, optimizer, change=lambda raw: None):
        model(torch.full((2, 4), rank + 1.)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        raw = optimizer.state_dict()
        change(raw)
        os.makedirs(os.path.join(directory, name), exist_ok=True)
        torch.save(raw, os.path.join(directory, name, f"rank{rank}.pt"))
        if rank == 0:
            json.dump(flat_params_document(model, optimizer, [f"rank{r}.pt" for r in range(world)]), open(os.path.join(directory, name, "flat.json"), "w"))

    def without(state):
        def change(raw):
            for key in (0, 1) if orig else (0,):  # of the first unit
                raw["state"].get(key, {}).pop(state, None)
        return change

    adam, amsgrad = (lambda: torch.optim.AdamW(model.parameters(), lr=0.1)), lambda: torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True)
    save("half", adam(), without("exp_avg_sq"))
    save("other half", adam(), without("exp_avg"))
    save("amsgrad", amsgrad(), without("max_exp_avg_sq"))
    save("healthy", adam())
    save("healthy amsgrad", amsgrad())
    save("healthy sgd", torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    save("healthy sgd without", torch.optim.SGD(model.parameters(), lr=0.1))
    save("healthy rmsprop", torch.optim.RMSprop(model.parameters(), lr=0.1, centered=True))
    save("healthy adamax", torch.optim.Adamax(model.parameters(), lr=0.1))


def test_broken_states_of_fsdp1_are_refused_when_they_are_joined(t):
    for orig in (False, True):
        directory = t.at(f"orig{orig}")
        run_ranks(broken_rank, 2, directory, orig)
        said = {"half": "no exp_avg_sq", "other half": "no exp_avg,", "amsgrad": "no max_exp_avg_sq"}
        for name in sorted(os.listdir(directory)):
            at = os.path.join(directory, name)
            for more in ([], ["--sharded"]):
                out = t.at("out", name + "".join(more) + ("" if more else ".pt"))
                os.makedirs(t.at("out"), exist_ok=True)
                p = t.run("optim", "unshard", at, out, "--flat-params", os.path.join(at, "flat.json"), *more, "--overwrite", status=2 if name in said else 0)
                if name in said:
                    err = " ".join(p.stderr.decode().split())
                    assert said[name] in err and "'0.weight'" in err and not os.path.exists(out), (name, orig, err)


def loaded_rows(*paths):
    import logging
    import torch
    logging.disable(logging.WARNING)  # of meshes loaded before their groups exist
    return [torch.load(p, weights_only=False) for p in paths]


def test_fsdp1_state_that_is_not_sharded(t):
    for i, (name, case) in enumerate(CASES.items()):
        directory = t.at(name)
        os.makedirs(os.path.join(directory, "same"))
        world = 4 if "mesh" in case else 2
        run_ranks(rank_main, world, case, directory, start_method="fork")
        check(t, name, case, directory)
