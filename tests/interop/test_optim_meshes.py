"""Optimizer state that real PyTorch saves on 4 ranks over one and two dims of a mesh, flattened, converted and resharded by `tessera`."""
import json
import os
import sys

from harness import ROOT, load_dcp
from test_optim import same
from torch_ranks import run_ranks

CASES = {"tp": {"mesh": {"tp": 4}, "hidden": 6}, "hsdp": {"mesh": {"replicate": 2, "shard": 2}, "hidden": 5},
         "fsdp2_tp": {"mesh": {"shard": 2, "tp": 2}, "hidden": 8}, "fsdp1_tp": {"mesh2d": [2, 2], "world_group": True, "fsdp1": True},
         "fsdp1_orig_tp": {"mesh2d": [2, 2], "orig": True, "fsdp1": True}}


def import_makers():
    """Those of the goldens have the models, and values that each part has alone."""
    for directory in ("samples", "tests/golden"):
        sys.path.insert(0, os.path.join(ROOT, directory))
    import make_optimizer_mesh
    return make_optimizer_mesh


def alike(optimizers):
    """DCP saves one rank's copy of what is not a DTensor, so all ranks have the same."""
    import torch
    from torch.distributed.tensor import DTensor
    for o in optimizers:
        for i, g in enumerate(o.param_groups):
            g["lr"] = 0.5 + i
        for i, state in enumerate(o.state.values()):
            for name, t in state.items():
                if not isinstance(t, DTensor) and t.dim() == 0:
                    t.fill_(7 + i)
                elif not isinstance(t, DTensor):
                    t.copy_(torch.arange(t.numel()).reshape(t.shape) + 100 * i + len(name))


def build(case):
    makers = import_makers()
    if case.get("fsdp1"):  # each rank has other values, in replicas too
        import make_fsdp_tp
        model, optimizers = make_fsdp_tp.base.build({**make_fsdp_tp.TP, **case})
        optimizers[0].param_groups[0]["lr"] = 0.5
        return model, optimizers
    model, optimizers = makers.build(case)
    alike(optimizers)
    return model, optimizers


def rank_main(rank, world, case, directory):
    import logging
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, StateDictOptions
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # of gathers in two steps
    import_makers()
    from describe_modules import modules_document
    get = lambda **options: get_optimizer_state_dict(*build(case), options=StateDictOptions(**options))
    for name, flat in (("nested", False), ("flat", True)):
        dcp.save({"optim": get(flatten_optimizer_state_dict=flat)}, checkpoint_id=os.path.join(directory, name))
        whole = get(full_state_dict=True, flatten_optimizer_state_dict=flat)
        if rank == 0:
            torch.save({"optim": whole}, os.path.join(directory, f"{name}.want.pt"))
    model, _ = build(case)
    if rank == 0:
        json.dump(modules_document(model), open(os.path.join(directory, "modules.json"), "w"))


def flat_of(names):
    """What PyTorch reads of the nested form, under the names of the flat one; options as they are."""
    return {k.removeprefix("optim."): v for k, v in names.items() if k.startswith("optim.state.")}


def check(t, name, case):
    import torch
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    at = lambda n: t.at(name, n)
    load = lambda n: torch.load(at(n), weights_only=True)
    read, whole, flat = load_dcp(at("nested")), flatten_state_dict(load("nested.want.pt"))[0], load("flat.want.pt")["optim"]
    assert read.keys() == whole.keys() and len(read) > 40, f"{name}: {read.keys() ^ whole.keys()}"
    if not case.get("fsdp1"):  # there DCP saves one of the replicas, which differ
        assert same(read, whole), name
        for form in ("nested", "flat"):
            t.run("diff", "--values", at(form), at(f"{form}.want.pt"))
    for form in ("nested", "flat"):
        t.run("validate", "--deep", at(form))
    t.run("convert", at("nested"), at("full.pt"), "--to", "torch")
    assert same(flatten_state_dict(load("full.pt"))[0], read), f"{name}: convert"
    for mesh, placements in (("dp=3,tp=2", "shard(0),shard(1)"), ("dp=5", "shard(0)")):
        t.run("reshard", at("nested"), at(mesh), "--mesh", mesh, "--placements", placements, "--to", "dcp")
        assert same(load_dcp(at(mesh)), read), f"{name}: {mesh}"
        t.run("optim", "flatten", at(mesh), at("out.pt"), "--at", "optim", "--modules", at("modules.json"), "--overwrite")
        got = load("out.pt")
        states = {k: v for k, v in got.items() if k.startswith("state.")}
        assert got.keys() == flat.keys() and same(states, flat_of(read)), f"{name}: {mesh}: {got.keys() ^ flat.keys()}"
        assert same({k: got[k] for k in got.keys() - states.keys()}, {k: flat[k] for k in flat.keys() - states.keys()}), f"{name}: options"


def test_optimizer_state_over_two_mesh_dims(t):
    for i, (name, case) in enumerate(CASES.items()):
        os.makedirs(t.at(name))
        run_ranks(rank_main, 4, case, t.at(name), start_method="fork")
        check(t, name, case)
