"""Optimizer state as real PyTorch converts it, for tests/optim: python tests/golden/make_optim.py [FSDP case to make again]...

optim.json: flatten, unflatten, ids to names, merge and split of torch.distributed.checkpoint.state_dict (rows A8-A11).
fsdp_optim.json: FSDP1 on gloo, worlds of 1 to 5 ranks: raw state of every rank, FULL state, and what other worlds load of
it (rows B1-B11). Values are written as {"T": [dtype, shape, numbers]}, {"D": [[key, value]...]}, {"L": []}, {"U": []}
(tuple), {"i": int}, {"f": float}, {"b": bool}, {"s": text}, {"n": 0}.
"""
import copy
import json
import os
import sys
import tempfile
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "samples"))
warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint import state_dict as dsd
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from torch.distributed.fsdp.api import FullOptimStateDictConfig, FullStateDictConfig

from describe_modules import flat_params_document, modules_document


def encode(v):
    if isinstance(v, torch.Tensor):
        return {"T": [str(v.dtype).removeprefix("torch."), list(v.shape), v.detach().reshape(-1).to(torch.float64).tolist()]}
    if isinstance(v, dict):
        return {"D": [[encode(k), encode(x)] for k, x in v.items()]}
    if isinstance(v, (list, tuple)):
        return {"L" if isinstance(v, list) else "U": [encode(x) for x in v]}
    if v is None:
        return {"n": 0}
    return {{bool: "b", int: "i", float: "f", str: "s"}[type(v)]: v}


# ---- one process ----

class Net(nn.Module):
    def __init__(self, tie=True):
        super().__init__()
        self.temp = nn.Parameter(torch.tensor(1.5))
        self.emb = nn.Embedding(5, 3)
        self.blocks = nn.ModuleList([nn.Linear(3, 2), nn.Linear(2, 3, bias=False)])
        self.head = nn.Linear(3, 5, bias=False)
        if tie:
            self.head.weight = self.emb.weight
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)


class Shampoo(torch.optim.Optimizer):
    """State with nested dicts, as Shampoo-like optimizers keep it."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1, "opts": [1, 2], "range": (0, 1)})

    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s.update(step=0, ratio=0.5, inner={"left": {0: torch.ones(2), 1: torch.zeros(1)}, "right": torch.full((3,), 2.0)})
                s["step"] += 1


def train(net, *optims, steps=2):
    torch.manual_seed(3)
    for i in range(steps):
        for p in net.parameters():
            if p.requires_grad:
                p.grad = torch.randn_like(p)
        for o in optims:
            o.step()
    for o in optims:
        o.zero_grad()


def decay_groups(net):
    return [{"params": [p for p in net.parameters() if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in net.parameters() if p.dim() <= 1], "weight_decay": 0.0, "lr": 0.5}]


OPTIMS = {
    "adamw_groups": lambda n: [torch.optim.AdamW(decay_groups(n), lr=0.01, amsgrad=True)],
    "adam_tensor_free": lambda n: [torch.optim.Adam(n.parameters(), lr=0.01)],
    "sgd": lambda n: [torch.optim.SGD(n.parameters(), lr=0.01)],
    "sgd_momentum": lambda n: [torch.optim.SGD([p for p in n.parameters() if p.requires_grad], lr=0.01, momentum=0.9)],
    "adagrad": lambda n: [torch.optim.Adagrad(n.parameters(), lr=0.01)],
    "named": lambda n: [torch.optim.AdamW(list(n.named_parameters()), lr=0.01)],
    "shampoo": lambda n: [Shampoo(n.parameters())],
    "two_optimizers": lambda n: [torch.optim.SGD([n.temp], lr=0.5, momentum=0.1),
                                 torch.optim.AdamW([p for p in n.parameters() if p is not n.temp], lr=0.01)],
    "empty_group": lambda n: [torch.optim.SGD([{"params": [p for p in n.parameters()], "momentum": 0.9}, {"params": [], "momentum": 0.3}], lr=0.1)],
}


def one_process(name, build):
    torch.manual_seed(0)
    net = Net()
    optims = build(net)
    train(net, *optims)
    natives = [copy.deepcopy(o.state_dict()) for o in optims]
    options = dsd.StateDictOptions()
    info = dsd._verify_options(net, tuple(optims), True, options=options)
    nested = dsd.get_optimizer_state_dict(net, optims)
    names = [[[next(iter(info.fqn_param_mapping[p] & set(sum((g["params"] for g in nested["param_groups"]), [])))) for p in g["params"]]
              for g in o.param_groups] for o in optims]
    flat = dsd._flatten_optim_state_dict(copy.deepcopy(nested))
    out = {"modules": modules_document(net), "natives": [encode(n) for n in natives], "names": names, "nested": encode(nested), "flat": encode(flat), "split": []}
    unflattened = []
    for o in optims:
        try:
            unflattened.append(dsd._unflatten_optim_state_dict(o, copy.deepcopy(flat), info))
        except Exception as e:  # a group without parameters has no flat key to read
            unflattened.append({"error": type(e).__name__})
        out["split"].append(encode(dsd._split_optim_state_dict(net, o, copy.deepcopy(nested), info)))
    out["unflattened"] = [u if "error" in u else encode(u) for u in unflattened]
    return out


# ---- FSDP1 ----

class Small(nn.Module):
    def __init__(self, tie=True):
        super().__init__()
        self.emb = nn.Embedding(11, 3)
        self.a = nn.Linear(3, 7)
        self.b = nn.Sequential(nn.Linear(7, 2, bias=False), nn.Linear(2, 2))
        self.c = nn.Linear(2, 3)
        self.head = nn.Linear(3, 11, bias=False)
        if tie:
            self.head.weight = self.emb.weight
        self.idle = nn.Linear(5, 1)

    def forward(self, x):
        return self.head(self.c(self.b(self.a(self.emb(x)))))


class Mixed(nn.Module):
    """Only one part is wrapped: the rest is not FSDP's."""

    def __init__(self):
        super().__init__()
        self.plain = nn.Linear(3, 3)
        self.part = Small(tie=False)

    def forward(self, x):
        return self.part(x) + self.plain.weight.sum() + self.plain.bias.sum()


def wrap(case):
    torch.manual_seed(0)
    orig, kind = case["orig"], case["model"]
    f = lambda m: FSDP(m, use_orig_params=orig, device_id=torch.device("cpu"))
    if kind == "mixed":
        net = Mixed()
        net.part.b = f(net.part.b)
        net.part = f(net.part)
        return net
    net = Small(kind == "tied")
    if kind == "bf16":
        net = net.to(torch.bfloat16)
    net.a, net.b, net.idle = f(net.a), f(net.b), f(net.idle)
    return f(net)


def optimizer(case, net):
    if case["optim"] == "sgd":
        return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    if case["optim"] == "plain_sgd":
        return torch.optim.SGD(net.parameters(), lr=0.1)
    params = list(net.parameters())
    return torch.optim.AdamW([{"params": params[:2], "weight_decay": 0.1}, {"params": params[2:], "lr": 0.005}], lr=0.01)


def run_rank(rank, world, port, case, directory, load):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    net = wrap(case)
    optim = optimizer(case, net)
    result = {}
    # offload_to_cpu on the CPU: torch 2.13 then returns every state of an original parameter as views of one buffer, all equal
    # to the last one gathered
    FSDP.set_state_dict_type(net, StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig(offload_to_cpu=False))
    if load:
        full = torch.load(load, weights_only=False)
        result["raw"] = encode(FSDP.optim_state_dict_to_load(net, optim, full))
    else:
        torch.manual_seed(5)
        for _ in range(2):
            optim.zero_grad()
            net(torch.arange(4)).float().pow(2).sum().backward()
            optim.step()
        raw = optim.state_dict()
        if case.get("user_state"):
            raw["state"]["__seen"] = 7
        result["raw"] = encode(raw)
        full = FSDP.optim_state_dict(net, optim, raw)
        result["full"] = encode(full)
        if rank == 0:
            torch.save(full, os.path.join(directory, "full.pt"))
    result["flat"] = flat_params_document(net, optim, [f"rank{r}.pt" for r in range(world)])
    json.dump(result, open(os.path.join(directory, f"{world}.{rank}.json"), "w"))
    dist.barrier()
    dist.destroy_process_group()


PORT = [29700]


def spawn(world, case, directory, load=None):
    PORT[0] += 1
    mp.spawn(run_rank, (world, PORT[0], case, directory, load), nprocs=world)
    return [json.load(open(os.path.join(directory, f"{world}.{r}.json"))) for r in range(world)]


FSDP_CASES = {
    "flat_w3": {"orig": False, "model": "tied", "optim": "adamw", "world": 3, "loads": [1, 2, 5]},
    "orig_w3": {"orig": True, "model": "tied", "optim": "adamw", "world": 3, "loads": [2, 4]},
    "flat_w2_sgd": {"orig": False, "model": "untied", "optim": "sgd", "world": 2, "loads": [3]},
    "orig_w4_bf16": {"orig": True, "model": "bf16", "optim": "sgd", "world": 4, "loads": []},
    "flat_w1": {"orig": False, "model": "tied", "optim": "adamw", "world": 1, "loads": [2]},
    "orig_w1": {"orig": True, "model": "tied", "optim": "adamw", "world": 1, "loads": [2]},
    "flat_w2_plain": {"orig": False, "model": "tied", "optim": "plain_sgd", "world": 2, "loads": []},
    "flat_w2_mixed": {"orig": False, "model": "mixed", "optim": "adamw", "world": 2, "loads": [3]},
    "orig_w2_mixed": {"orig": True, "model": "mixed", "optim": "adamw", "world": 2, "loads": [3]},
    "flat_w2_user": {"orig": False, "model": "tied", "optim": "adamw", "world": 2, "loads": [], "user_state": True},
}


def fsdp(case):
    with tempfile.TemporaryDirectory() as directory:
        ranks = spawn(case["world"], case, directory)
        out = {"flat": ranks[0]["flat"], "raw": [r["raw"] for r in ranks], "full": ranks[0]["full"], "loads": []}
        out["loaded_back"] = [r["raw"] for r in spawn(case["world"], case, directory, os.path.join(directory, "full.pt"))]
        for world in case["loads"]:
            out["loads"].append({"world": world, "raw": [r["raw"] for r in spawn(world, case, directory, os.path.join(directory, "full.pt"))]})
        return out


def main():
    directory = os.path.dirname(os.path.abspath(__file__))
    write = lambda name, cases: json.dump({"torch": torch.__version__, "cases": cases}, open(os.path.join(directory, name), "w"), separators=(",", ":"))
    write("optim.json", {name: one_process(name, build) for name, build in OPTIMS.items()})
    picked = sys.argv[1:] or list(FSDP_CASES)
    cases = json.load(open(os.path.join(directory, "fsdp_optim.json")))["cases"] if sys.argv[1:] else {}
    for name, case in FSDP_CASES.items():
        if name not in picked:
            continue
        try:
            cases[name] = fsdp(case)
        except Exception as e:
            print(f"{name}: {type(e).__name__}: {str(e)[-600:]}", file=sys.stderr)
    write("fsdp_optim.json", cases)


if __name__ == "__main__":
    main()
