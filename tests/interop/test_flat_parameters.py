"""FSDP1's LOCAL_STATE_DICT of a model, cut by `convert --flat-params`, next to its own full state dict."""
import json
import os
import sys

from checks import ROOT
from harness import load_dcp, load_safetensors
from test_maps import need
from torch_ranks import run_ranks

CASES = {
    "plain": {},
    "nested": {"nested": True, "wrapped": (0, 2)},
    "mixed": {"half": 1, "frozen": 2},
    "recomputed": {"recomputed": 1},
    "gathered_gradients": {"strategy": "SHARD_GRAD_OP"},
    "unsharded": {"strategy": "NO_SHARD"},
    "original": {"use_orig_params": True},
}


def sharded_model(case):
    """Units of uneven sizes; an embedding that is the output layer too; every value is another."""
    import torch
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    class Block(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.up, self.down, self.norm = torch.nn.Linear(width, 7), torch.nn.Linear(7, width, bias=False), torch.nn.LayerNorm(width)
            self.register_buffer("steps", torch.tensor([width, width + 1]))

    net = torch.nn.ModuleDict({"embed": torch.nn.Embedding(11, 5), "blocks": torch.nn.ModuleList([Block(5), Block(6), Block(7)]),
                               "head": torch.nn.Linear(5, 11, bias=False), "scale": torch.nn.LayerNorm(1, bias=False)})
    net["head"].weight = net["embed"].weight
    numbers = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=numbers))
    options = {"device_id": torch.device("cpu"), "use_orig_params": case.get("use_orig_params", False)}
    if "strategy" in case:
        options["sharding_strategy"] = ShardingStrategy[case["strategy"]]
    blocks = net["blocks"]
    if "half" in case:
        blocks[case["half"]].to(torch.bfloat16)
    if "frozen" in case:
        blocks[case["frozen"]].requires_grad_(False)
    if "nested" in case:
        blocks[0].up = FullyShardedDataParallel(blocks[0].up, **options)
    for i in case.get("wrapped", range(3)):
        blocks[i] = FullyShardedDataParallel(blocks[i], **options)
    if "recomputed" in case:
        blocks[case["recomputed"]] = checkpoint_wrapper(blocks[case["recomputed"]])
    return FullyShardedDataParallel(net, **options)


def rank_saves(rank, world, directory):
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
    sys.path.insert(0, os.path.join(ROOT, "samples"))
    from describe_modules import flat_params_document
    for name, case in CASES.items():
        at = lambda *names: os.path.join(directory, name, *names)
        for part in ("ranks", "states"):
            os.makedirs(at(part), exist_ok=True)
        net = sharded_model(case)
        with FullyShardedDataParallel.state_dict_type(net, StateDictType.FULL_STATE_DICT):
            full = {k: v.clone() for k, v in net.state_dict().items()}
        with FullyShardedDataParallel.state_dict_type(net, StateDictType.LOCAL_STATE_DICT):
            local = net.state_dict()
        torch.save(local, at("ranks", f"rank{rank}.pt"))
        torch.save({"model": local, "step": 7}, at("states", f"rank{rank}.pt"))
        if rank == 0:
            torch.save(full, at("full.pt"))
            with open(at("flat.json"), "w") as f:
                json.dump(flat_params_document(net, None, [f"rank{r}.pt" for r in range(world)]), f)


def same(got, want, what):
    import torch
    need(set(got) == set(want), f"{what}: names {sorted(set(got) ^ set(want))}")
    for name, tensor in want.items():
        need(got[name].dtype == tensor.dtype and torch.equal(got[name], tensor), f"{what}: {name}")


def changed(flat, path, change):
    with open(flat) as f:
        document = json.load(f)
    change(document["units"])
    with open(path, "w") as f:
        json.dump(document, f)
    return path


def test_local_state_of_models(t):
    """Every strategy and way to wrap, by 2 and 3 ranks, into every form; as a whole state dict and inside a larger one; by a plan."""
    import torch
    for world in (2, 3):
        run_ranks(rank_saves, world, t.at(str(world)))
        for name in CASES:
            at = lambda *names: t.at(str(world), name, *names)
            want, flat = torch.load(at("full.pt"), weights_only=True), ("--flat-params", at("flat.json"))
            t.run("convert", at("ranks"), at("out.safetensors"), *flat)
            t.run("convert", at("ranks"), at("out.pt"), *flat)
            t.run("convert", at("ranks"), at("dcp"), "--to", "dcp", *flat)
            t.run("convert", at("states"), at("model.safetensors"), "--prefix", "model.", *flat)
            same(load_safetensors(at("out.safetensors")), want, f"{name}, safetensors")
            same(torch.load(at("out.pt"), weights_only=True), want, f"{name}, torch")
            same(load_dcp(at("dcp")), want, f"{name}, DCP")
            same(load_safetensors(at("model.safetensors")), want, f"{name}, inside a state dict")
    t.run("validate", "--deep", at("dcp"))


def test_what_flat_parameters_refuse(t):
    """Documents of another model, and files without their flat parameters; a plan carries the document."""
    import torch
    run_ranks(rank_saves, 2, t.scratch)
    ranks, flat, out = t.at("nested", "ranks"), t.at("nested", "flat.json"), t.at("out.safetensors")
    with open(t.at("plan.json"), "wb") as f:
        f.write(t.run("plan", ranks, "--to", "safetensors", "--flat-params", flat, "--json").stdout)
    t.run("exec", t.at("plan.json"), t.at("planned.safetensors"))
    same(load_safetensors(t.at("planned.safetensors")), torch.load(t.at("nested", "full.pt"), weights_only=True), "a plan")

    def shorter(units):
        units[1]["params"].pop()
        units[1]["numels_with_padding"].pop()
        units[1]["is_padding_mask"].pop()

    for name, change, says in (("without", lambda units: units.pop(1), b"is not a flat parameter of the units"),
                               ("shorter", shorter, b"is not a tensor of the"),
                               ("another", lambda units: units.append({**units[1], "fsdp_module": "other", "raw_name": "other._flat_param"}), b"neither")):
        p = t.run("convert", ranks, out, "--flat-params", changed(flat, t.at(f"{name}.json"), change), status=2)
        need(says in p.stderr and not os.path.exists(out), f"{name}: {p.stderr}")
    p = t.run("convert", t.at("nested", "full.pt"), out, "--flat-params", flat, status=2)
    need(b"_flat_param" in p.stderr, f"a full state dict: {p.stderr}")
