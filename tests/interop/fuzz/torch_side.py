"""PyTorch's side of a draw on one rank: builds it, does its jobs, and tells them as bytes with what came out."""
import ctypes
import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint import state_dict as dsd
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from torch.distributed.fsdp.api import FullOptimStateDictConfig, FullStateDictConfig, ShardedOptimStateDictConfig, ShardedStateDictConfig
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import _StridedShard

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "samples"))
from describe_modules import modules_document

import changes
import codec
import draws
import nested
import optimizers
import strategies
import values
from trees import ExtraNode

KNOWN = ("SGD", "Adam", "AdamW")


# ---- tensors ----

def bytes_of(t):
    t = t.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return ctypes.string_at(t.data_ptr(), t.numel() * t.element_size()) if t.numel() else b""


def placement_text(p):
    if isinstance(p, _StridedShard):
        return f"strided_shard({p.dim}, {p.split_factor})"
    return f"shard({p.dim})" if p.is_shard() else "replicate" if p.is_replicate() else "partial"


def mesh_text(mesh):
    names = mesh.mesh_dim_names
    return ",".join(f"{n}={s}" for n, s in zip(names, mesh.shape)) if names else ",".join(map(str, mesh.shape))


def over_mesh(v):
    """Mesh and placements in words. Ours span all ranks: of a mesh cut out of another it is that one, replicated along the
    other dimensions."""
    mesh, places = v.device_mesh, [placement_text(p) for p in v.placements]
    if mesh.size() != dist.get_world_size():
        root = mesh._get_root_mesh()
        of = dict(zip(mesh.mesh_dim_names, places))
        mesh, places = root, [of.get(n, "replicate") for n in root.mesh_dim_names]
    return mesh_text(mesh), ",".join(places)


def tensor(v):
    """codec.Tensor of one of PyTorch's; None for other values."""
    if not isinstance(v, (torch.Tensor, ShardedTensor)):
        return None
    dtype, shape = str(v.dtype).removeprefix("torch."), tuple(v.size())
    if isinstance(v, ShardedTensor):
        parts = tuple((tuple(s.metadata.shard_offsets), tuple(s.metadata.shard_sizes), bytes_of(s.tensor)) for s in v.local_shards())
        return codec.Tensor("X", dtype, shape, "", "", parts)
    if isinstance(v, DTensor):
        return codec.Tensor("M", dtype, shape, *over_mesh(v), (((), (), bytes_of(v.to_local())),))
    return codec.Tensor("T", dtype, shape, "", "", None if v.is_meta else (((), (), bytes_of(v)),))


def encode(value):
    return codec.encode(value, tensor)


# ---- a model with its optimizers ----

class Subject:
    def __init__(self, draw, rank, variant):
        """`variant`: other elements, and another number of steps where there were any."""
        self.draw, self.rank = draw, rank
        self.model = strategies.build(draw)
        self.units = strategies.handles(self.model)
        self.managed = strategies.managed(self.model)
        self.optimizers = optimizers.draw(draw.rng("optimizers"), self.model, draw)
        self.fill((draw.seed, draw.number, variant))
        steps = draw.steps if variant == 0 else max(draw.steps, 1)
        optimizers.train(draw.rng("train"), self.optimizers, steps, 0 if self.units else draw.missing)
        self.fill((draw.seed, draw.number, variant))
        if draw.user and (variant == 0 or self.units):  # PyTorch gets it with FSDP1 alone, and a donor must give something
            of = (rank, draw.world) if draw.apart else (0, 1)
            optimizers.put_user_state(draw.rng(("user", variant)), self.optimizers, *of)
        if draw.apart and draw.world > 1:
            optimizers.part(draw.rng(("apart", variant)), self.optimizers, rank, draw.world, self.own())
        if variant == 0 and draw.rng("gradients").random() < 0.15:
            optimizers.put_gradients(draw.rng("put"), self.optimizers, 0.5)

    def fill(self, seed):
        own, slice_ = self.rank if self.draw.apart else 0, self.rank
        if self.units and not self.draw.apart:
            slice_ = self.rank % strategies.fsdp1_options(self.draw)["replica"]
        values.fill_model(self.model, seed, own, self.managed)
        values.fill_units(self.units, seed, slice_)
        whole = strategies.managed_whole(self.model)
        cut = {i: own if i in whole else slice_ for i in self.managed}
        values.fill_optimizers(self.optimizers, seed, own, cut)

    def own(self):
        """Identities of the parameters that every rank has for itself."""
        return {id(p) for p in self.model.parameters() if id(p) not in self.managed and not isinstance(p, DTensor)}

    def tensors(self):
        """Every parameter and persistent buffer that no unit manages once, under its first name."""
        seen, out = set(self.managed), {}
        for path, m in self.model.named_modules():
            kept = {n: t for n, t in m._buffers.items() if n not in m._non_persistent_buffers_set}
            for name, t in {**m._parameters, **kept}.items():
                if t is not None and id(t) not in seen:
                    seen.add(id(t))
                    out[f"{path}.{name}" if path else name] = t
        return out

    def extra(self):
        """Under all names of a shared module."""
        bare = (lambda n: n.replace("_fsdp_wrapped_module.", "").replace("_checkpoint_wrapped_module.", "")) if self.units else str
        return {bare(f"{name}._extra_state" if name else "_extra_state"): m.get_extra_state()
                for name, m in self.model.named_modules(remove_duplicate=False) if isinstance(m, ExtraNode)}

    def names(self):
        """Of all that is in the model's state, also under the second names that shared modules give."""
        for path, m in self.model.named_modules(remove_duplicate=False):
            kept = [n for n in m._buffers if n not in m._non_persistent_buffers_set]
            for name in [*m._parameters, *kept, *["_extra_state"] * isinstance(m, ExtraNode)]:
                yield f"{path}.{name}" if path else name

    def optimizer_state(self, o):
        raw = {p: n for n, p in self.model.named_parameters()}
        return [{"options": {k: v for k, v in g.items() if k != "params"}, "params": [raw[p] for p in g["params"]],
                 "gradients": [p.grad is not None for p in g["params"]],
                 "state": [dict(o.state[p]) if p in o.state else None for p in g["params"]]} for g in o.param_groups]

    def user_state(self, o):
        """State of no parameter; None: nothing."""
        return {k: v for k, v in o.state.items() if not isinstance(k, torch.Tensor)} or None

    def now(self):
        return {"tensors": self.tensors(), "extra": self.extra(),
                "optimizers": [{"groups": [{"options": g["options"], "state": g["state"]} for g in self.optimizer_state(o)], "user": self.user_state(o)} for o in self.optimizers],
                "units": self.slices() if self.units else None}

    def slices(self):
        return [{"module": n, "strategy": h._sharding_strategy.name, "slice": h.flat_param.data} for n, h in self.units.items()]

    def describe(self):
        """What a job needs to know of it."""
        out = {"modules": json.dumps(modules_document(self.model)), "tensors": self.tensors(), "extra": self.extra(), "optimizers": []}
        iterated = {name for name, _ in dsd._iterate_valid_model_state(self.model)}
        out["seconds"] = [n for n in self.names() if n not in iterated]
        if self.units:
            o = strategies.fsdp1_options(self.draw)
            two = o["replica"] != self.draw.world
            out["units"], out["fsdp_group"] = self.slices(), self.rank // o["replica"]
            out["fsdp_mesh"] = ("replicate=2,shard=2" if two else f"shard={self.draw.world}") if o["mesh"] else None
            out["ignored"] = [n for n, m in self.model.named_modules() if m in self.model.left_out]
        for o in self.optimizers:
            known = type(o).__name__ in KNOWN
            out["optimizers"].append({"algorithm": type(o).__name__, "groups": self.optimizer_state(o), "user": self.user_state(o), "has_first": not known})
        if not all(o.state or type(o).__name__ in KNOWN for o in self.optimizers):
            self.add_first(out["optimizers"])
        return out

    def add_first(self, described):
        """The first states of other algorithms, for the callback that makes them."""
        twin = Subject(self.draw, self.rank, 0)
        for o, optimizer in zip(described, twin.optimizers):
            if o["has_first"]:
                try:
                    dsd._init_optim_state(optimizer)
                except Exception as e:  # SparseAdam takes no zeros
                    o["first_error"] = str(e)[:80]
            for g, group in zip(o["groups"], twin.optimizer_state(optimizer)):
                g["first"] = group["state"]


# ---- jobs ----

def submodules(subject, job):
    names = [n for n, _ in subject.model.named_modules() if n]
    rng = subject.draw.rng(("submodules", job["number"]))
    return rng.sample(names, min(job.get("submodules", 0), len(names)))


def set_form(subject, job):
    """Of FSDP1's units, for its own calls."""
    if not job["options"].get("full_state_dict"):
        FSDP.set_state_dict_type(subject.model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(), ShardedOptimStateDictConfig())
        return
    alone = job["options"].get("cpu_offload", False)
    FSDP.set_state_dict_type(subject.model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig(offload_to_cpu=alone, rank0_only=alone))


def raw_get(subject, job):
    set_form(subject, job)
    optimizer = subject.optimizers[0]
    return {"model": None, "optimizer": FSDP.optim_state_dict(subject.model, optimizer, optimizer.state_dict())}


def raw_given(subject, job):
    try:
        out = {"state": None, "optimizer_state": raw_get(Subject(subject.draw, subject.rank, 1), job)["optimizer"]}
    except Exception:
        return {"state": None, "optimizer_state": {}}
    if job.get("change") and out["optimizer_state"]:
        changes.make(subject.draw.rng(("change", job["number"])), job["change"], out)
    return out


def raw_put(subject, job, states):
    set_form(subject, job)
    optimizer = subject.optimizers[0]
    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(subject.model, optimizer, states["optimizer_state"]))
    return {"missing": None, "unexpected": None}


def get(subject, job):
    if job["op"] == "raw_get":
        return raw_get(subject, job)
    options, of = StateDictOptions(**job["options"]), {}
    if job.get("submodules"):
        of["submodules"] = {subject.model.get_submodule(n) for n in submodules(subject, job)}
    if job["op"] == "get_model":
        return {"model": dsd.get_model_state_dict(subject.model, options=options, **of), "optimizer": None}
    if job["op"] == "get_optimizer":
        return {"model": None, "optimizer": dsd.get_optimizer_state_dict(subject.model, subject.optimizers, options=options)}
    model, optimizer = dsd.get_state_dict(subject.model, subject.optimizers, options=options, **of)
    return {"model": model, "optimizer": optimizer}


def not_empty(model):
    """A model's state that a broadcast replaces: set_state_dict takes an empty one for the wish to set optimizers alone."""
    name, value = next((n, t) for n, t in dsd._iterate_valid_model_state(model) if isinstance(t, torch.Tensor))
    return {next(iter(dsd._get_fqns(model, name, skip_ddp_prefix=False, skip_compiler_prefix=False))): value.detach().clone()}


def given(subject, job):
    """The states that are set: a donor's, changed."""
    donor = Subject(subject.draw, subject.rank, 1)
    options = StateDictOptions(**job["of"])
    out = {"state": None, "optimizer_state": None}
    try:
        if job["op"] != "set_optimizer":
            out["state"] = {}
            out["state"] = dict(dsd.get_model_state_dict(donor.model, options=options))
        if job["op"] != "set_model":
            out["optimizer_state"] = {}
            out["optimizer_state"] = dsd.get_optimizer_state_dict(donor.model, donor.optimizers, options=options)
    except Exception:  # a get of this draw refuses, too; what there is instead is empty
        return out
    if job.get("change"):
        changes.make(subject.draw.rng(("change", job["number"])), job["change"], out)
    if job["options"].get("broadcast_from_rank0") and subject.rank:
        if out["state"]:
            out["state"] = {} if job["op"] == "set_model" else not_empty(subject.model)
        out["optimizer_state"] = out["optimizer_state"] and {}
    return out


def put(subject, job, states):
    if job["op"] == "raw_set":
        return raw_put(subject, job, states)
    options, keys = StateDictOptions(**job["options"]), None
    if job["op"] == "set_optimizer":
        dsd.set_optimizer_state_dict(subject.model, subject.optimizers, states["optimizer_state"], options=options)
    elif job["op"] == "set_model":
        keys = dsd.set_model_state_dict(subject.model, states["state"], options=options)
    else:
        keys = dsd.set_state_dict(subject.model, subject.optimizers, model_state_dict=states["state"],
                                  optim_state_dict=states["optimizer_state"], options=options)
    return {"missing": keys and list(keys.missing_keys), "unexpected": keys and list(keys.unexpected_keys)}


def perform(draw, number, rank, tell):
    """Does job `number` of a draw. `tell` gets the job's bytes before PyTorch does it; the result is what came out."""
    job = {**draw.jobs[number], "number": number}
    if job["op"] in draws.NESTED:
        described = nested.make(draw, number, rank)
        tell(encode(described))
        try:
            return {"out": encode(nested.perform(described))}
        except Exception as e:
            return {"error": f"{type(e).__name__}: {e}"[:4000]}
    subject = Subject(draw, rank, 0)
    described = {"op": job["op"], "options": job["options"], **subject.describe(), "submodules": submodules(subject, job)}
    setting = job["op"].startswith("set_") or job["op"] == "raw_set"
    states = {} if not setting else raw_given(subject, job) if job["op"] == "raw_set" else given(subject, job)
    tell(encode({**described, **states}))
    try:
        out = put(subject, job, states) if setting else get(subject, job)
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"[:4000]}
    return {"out": encode({**out, "now": None if job["op"] == "get_model" else subject.now()})}
