"""Describe a live nn.Module for tessera: tessera.modules/1 (names, sharing, wrappers) and tessera.flat-params/1 (FSDP1).

    from describe_modules import modules_document, flat_params_document
    json.dump(modules_document(model), open("modules.json", "w"))
    json.dump(modules_document(model, optimizer=optimizer), open("modules.json", "w"))  # with its param groups
    json.dump(flat_params_document(fsdp_model, optimizer, files=["rank0.pt", "rank1.pt"]), open("flat.json", "w"))

Call it on any one rank: nothing here communicates. Written for PyTorch 2.13; older versions down to 2.3 have the same names.
"""
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

WRAPPERS = (
    (DistributedDataParallel, "ddp"),
    (FullyShardedDataParallel, "fsdp1"),
    (OptimizedModule, "compiled"),
    (ActivationWrapper, "checkpoint"),
)
INNER_NAMES = {"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"}


def modules_document(model, fqn_modifiers="_fqn_modifiers", optimizer=None):
    """The module tree of `model`, and which parameters are in which group of `optimizer`, if it is given. `fqn_modifiers` is
    StateDictOptions.dsd_fqn_modifiers."""
    document = {"schema": "tessera.modules/1", "root": _node(model, "", {}, {}, fqn_modifiers)}
    if optimizer is not None:
        names = {id(p): n for n, p in model.named_parameters()}
        document["groups"] = [[fqn for p in group["params"] for fqn in _fqns(model, names[id(p)])] for group in optimizer.param_groups]
    return document


def _fqns(model, name):
    """The canonical names of a parameter: several for FSDP1's flat parameter, in its order."""
    from torch.distributed.checkpoint.state_dict import _get_fqns
    handle = None
    if name.rpartition(".")[2] == "_flat_param":
        handle = getattr(model.get_submodule(name.rpartition("._fsdp_wrapped_module")[0]), "_handle", None)
    fqns = _get_fqns(model, name)
    if handle is None or len(fqns) < 2:
        return sorted(fqns)
    order = handle.flat_param._fqns
    return sorted(fqns, key=lambda fqn: next(i for i, f in enumerate(order) if fqn == f or fqn.endswith("." + f)))


def _node(module, path, seen, ids, fqn_modifiers):
    if module in seen:
        return {"same_as": seen[module]}
    seen[module] = path

    def tensor(t, **more):
        number = ids.setdefault(id(t), len(ids))
        return {"shape": list(t.shape), "dtype": _short(t.dtype), "requires_grad": t.requires_grad, **more, "id": number}

    node = {
        "class": type(module).__name__,
        "wrapper": next((name for cls, name in WRAPPERS if isinstance(module, cls)), "none"),
        "parameters": {n: tensor(p) for n, p in module._parameters.items() if p is not None},
        "buffers": {n: tensor(b, persistent=n not in module._non_persistent_buffers_set)
                    for n, b in module._buffers.items() if b is not None},
        "extra_state": type(module).get_extra_state is not nn.Module.get_extra_state,
        "children": {n: _node(c, f"{path}.{n}" if path else n, seen, ids, fqn_modifiers) for n, c in module._modules.items() if c is not None},
    }
    if callable(getattr(type(module), fqn_modifiers, None)):
        node["fqn_modifiers"] = getattr(module, fqn_modifiers)()
    handle = getattr(module, "_handle", None) if node["wrapper"] == "fsdp1" else None
    if handle is not None:
        flat = handle.flat_param
        node["flat_param"] = {
            "use_orig_params": handle._use_orig_params,
            "alignment": handle._aligned_numel,
            "params": [{"fqn": f, "shape": list(s)} for f, s in zip(flat._fqns, flat._shapes)],
            "shared": _shared(flat),
        }
    return node


def _shared(flat):
    join = lambda module_name, name: f"{module_name}.{name}" if module_name else name
    return [{"fqn": join(s.module_name, s.param_name), "of": join(s.prim_module_name, s.prim_param_name)}
            for s in flat._shared_param_infos]


def flat_params_document(model, optimizer, files):
    """The flat parameters of an FSDP1 model, and which of them the optimizer's ids name.

    `files`: one raw `optimizer.state_dict()` a rank, in rank order. Without an optimizer (None) it describes the model's own state
    alone, which `tessera convert --flat-params` cuts.
    """
    units, use_orig_params = [], False
    for name, module in model.named_modules():
        handle = getattr(module, "_handle", None) if isinstance(module, FullyShardedDataParallel) else None
        if handle is None:
            continue
        flat, prefix = handle.flat_param, _clean(name)
        use_orig_params = handle._use_orig_params
        globally = lambda fqn: _clean(f"{prefix}.{fqn}" if prefix else fqn)
        raw = f"{name}._fsdp_wrapped_module._flat_param" if name else "_fsdp_wrapped_module._flat_param"
        units.append({
            "fsdp_module": name,
            "raw_name": None if use_orig_params else raw,
            "params": [{"fqn": globally(f), "shape": list(s), "requires_grad": (flat._params[i] if flat._params else flat).requires_grad}
                       for i, (f, s) in enumerate(zip(flat._fqns, flat._shapes))],
            "numels_with_padding": list(flat._numels_with_padding),
            "is_padding_mask": list(flat._is_padding_mask),
            "sharding_strategy": handle._sharding_strategy.name,
            "shared": [{k: globally(f) for k, f in s.items()} for s in _shared(flat)],
        })
    names = {id(p): n for n, p in model.named_parameters()}
    groups = _shard_groups(model)
    return {
        "schema": "tessera.flat-params/1",
        **({"shard_groups": groups} if groups else {}),
        "world_size": len(files),
        "use_orig_params": use_orig_params,
        "files": list(files),
        "units": units,
        "param_groups": [[names[id(p)] for p in group["params"]] for group in (optimizer.param_groups if optimizer else [])],
    }


def _shard_groups(model):
    """HYBRID strategies: the ranks of every replica, in the order of their slices; None without one."""
    import torch.distributed as dist
    for module in model.modules():
        handle = getattr(module, "_handle", None) if isinstance(module, FullyShardedDataParallel) else None
        if handle is None or "HYBRID" not in handle._sharding_strategy.name:
            continue
        if module._device_mesh is not None:
            return module._device_mesh.mesh.tolist()
        mine = dist.get_process_group_ranks(module.process_group)
        return [[r + q - dist.get_rank() for r in mine] for q in dist.get_process_group_ranks(module._inter_node_pg)]
    return None


def _clean(name):
    return ".".join(c for c in name.split(".") if c not in INNER_NAMES)


def _short(dtype):
    return str(dtype).removeprefix("torch.")
