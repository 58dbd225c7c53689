"""Writes tests/golden/deepspeed: checkpoints that DeepSpeed saved on several ranks, and what its own tools say of them.

Usage: python tests/golden/make_deepspeed.py    in an environment that has the versions below (over gloo, without CUDA).

A case is the directory of a tag and expect.json: {"model": {name: tensor}, "optim": {name.key: tensor}, "lr": […]} (of experts also
{"module": …}), a tensor as {dtype, shape, sha256}. `model` is what zero_to_fp32 gives (ZeRO 0: the module's state dict or the
optimizer's float32 copies; experts, which zero_to_fp32 cannot read: the float32 weights of the live engines of all ranks);
`optim` is each state of the live engine, gathered. Made with CPython 3.11.2, torch 2.13.0, deepspeed 0.19.8.
"""
import hashlib
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HERE = pathlib.Path(__file__).resolve().parent / "deepspeed"

CASES = {
    # name: (ranks, dtype, ZeRO configuration, optimizer, further configuration)
    "zero0_fp32_groups": (2, "fp32", {"stage": 0}, "adamw", {}),
    "zero0_bf16": (2, "bf16", {"stage": 0}, "adamw", {}),
    "zero0_bf16_twins": (2, "bf16", {"stage": 0}, "still", {}),
    "zero0_bf16_reversed": (1, "bf16", {"stage": 0}, "alike", {}),
    "zero0_fp32_reversed": (1, "fp32", {"stage": 0}, "alike", {}),
    "zero1_bf16": (3, "bf16", {"stage": 1}, "adamw", {}),
    "zero1_round_robin": (2, "fp32", {"stage": 1, "round_robin_gradients": True}, "adamw", {}),
    "zero1_elastic": (2, "bf16", {"stage": 1, "elastic_checkpoint": True}, "adamw", {}),
    "zero0_moe": (2, "fp32", {"stage": 0}, "moe", {}),
    "zero0_moe_unsplit": (2, "bf16", {"stage": 0}, "unsplit", {}),
    "zero0_moe_replicated": (2, "fp32", {"stage": 0}, "replicated", {}),
    "zero0_moe_bf16": (2, "bf16", {"stage": 0}, "moe", {}),
    "zero0_moe_data_first": (4, "fp32", {"stage": 0}, "moe", {"use_data_before_expert_parallelism": True}),
    "zero1_moe": (2, "bf16", {"stage": 1}, "moe", {}),
    "zero2_moe": (4, "bf16", {"stage": 2}, "mixtures", {}),
    "zero1_moe_data_first": (4, "fp32", {"stage": 1, "elastic_checkpoint": True}, "mixtures", {"use_data_before_expert_parallelism": True}),
    "zero2_fp16": (2, "fp16", {"stage": 2}, "rmsprop", {}),
    "zero3_bf16": (3, "bf16", {"stage": 3, "stage3_param_persistence_threshold": 0, "sub_group_size": 90}, "adamw", {}),
    "zero3_tied_modules": (2, "bf16", {"stage": 3, "stage3_param_persistence_threshold": 0}, "tied", {}),
    "zero3_fp32_sgd": (2, "fp32", {"stage": 3, "stage3_param_persistence_threshold": 0}, "sgd", {}),
}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(9, 5)
        self.up = torch.nn.Linear(5, 6)
        self.down = torch.nn.Linear(6, 5)
        self.frozen = torch.nn.Linear(5, 5)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.head = torch.nn.Linear(5, 9, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.arange(4) * 7)
        self.register_buffer("running", torch.linspace(-1, 1, 3))
        for number, parameter in enumerate(self.parameters()):
            with torch.no_grad():
                values = torch.arange(parameter.numel(), dtype=torch.float32).reshape(parameter.shape)
                parameter.copy_(torch.sin(values * 0.37 + number * 1.9) * 0.5)
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)

    def forward(self, ids):
        hidden = self.embed(ids)
        hidden = hidden + self.down(torch.tanh(self.up(hidden))) * self.scale + self.frozen(hidden)
        return self.head(hidden).float().square().mean()


class Tied(torch.nn.Module):
    """Two modules, a frozen one and one that is trained, under two names each."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.embed = torch.nn.Embedding(9, 5)
        self.up = torch.nn.Linear(5, 5)
        self.frozen = torch.nn.Linear(5, 5)
        self.again = self.up
        self.still = self.frozen
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)

    def forward(self, ids):
        return self.still(torch.tanh(self.again(self.frozen(self.up(self.embed(ids)))))).float().square().mean()


class Alike(torch.nn.Module):
    """Layers of equal shapes, which the optimizer is given in the reverse order."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.first, self.second, self.third = (torch.nn.Linear(5, 5) for _ in range(3))

    def forward(self, ids):
        hidden = torch.nn.functional.one_hot(ids % 5, 5).to(self.first.weight.dtype)
        return self.third(torch.tanh(self.second(torch.tanh(self.first(hidden))))).float().square().mean()


class Twins(torch.nn.Module):
    """The weights of its norms stay 1 in bfloat16, while their float32 copies do not."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embed = torch.nn.Embedding(9, 5)
        self.norm1 = torch.nn.LayerNorm(5)
        self.norm2 = torch.nn.LayerNorm(5)
        self.head = torch.nn.Linear(5, 9)

    def forward(self, ids):
        return self.head(self.norm2(torch.tanh(self.norm1(self.embed(ids))))).float().square().mean()


class Experts(torch.nn.Module):
    """A mixture of four experts, two on each rank."""

    def __init__(self):
        super().__init__()
        from deepspeed.moe.layer import MoE
        torch.manual_seed(5)
        self.embed = torch.nn.Embedding(9, 4)
        self.moe = MoE(4, torch.nn.Linear(4, 4), num_experts=4, ep_size=2, use_rts=False)
        self.head = torch.nn.Linear(4, 9)
        first = 2 * int(os.environ["RANK"])
        for number, expert in enumerate(self.moe.deepspeed_moe.experts.deepspeed_experts):
            with torch.no_grad():
                expert.weight.copy_(torch.sin(torch.arange(16.0).reshape(4, 4) * 0.3 + first + number))
                expert.bias.copy_(torch.cos(torch.arange(4.0) + first + number))

    def forward(self, ids):
        return self.head(self.moe(self.embed(ids))[0]).float().square().mean()


class Replicated(torch.nn.Module):
    """A mixture of three experts, all of them on each rank, between weights of the same shapes, in one param group."""

    def __init__(self):
        super().__init__()
        from deepspeed.moe.layer import MoE
        torch.manual_seed(8)
        self.embed = torch.nn.Embedding(9, 4)
        self.before = torch.nn.Linear(4, 4)
        self.moe = MoE(4, torch.nn.Linear(4, 4), num_experts=3, ep_size=1, use_rts=False, use_residual=True)
        self.after = torch.nn.Linear(4, 4)

    def forward(self, ids):
        return self.after(self.moe(self.before(self.embed(ids)))[0]).float().square().mean()


class Mixtures(torch.nn.Module):
    """Two layers with 4 and 6 experts over two expert-parallel ranks of a job of four; some experts and a weight are frozen."""

    def __init__(self):
        super().__init__()
        from deepspeed.moe.layer import MoE
        torch.manual_seed(6)
        self.embed = torch.nn.Embedding(9, 4)
        self.first = MoE(4, torch.nn.Linear(4, 4), num_experts=4, ep_size=2, use_rts=False)
        self.frozen = torch.nn.Linear(4, 4)
        self.second = MoE(4, torch.nn.Linear(4, 4), num_experts=6, ep_size=2, use_rts=False, use_residual=True)
        self.head = torch.nn.Linear(4, 9)
        self.register_buffer("seen", torch.arange(4) * 7)

    def number_experts(self, expert_rank):
        """Values by the number of each expert among all ranks."""
        for layer in (self.first, self.second):
            own, experts = expert_rank * layer.num_local_experts, layer.deepspeed_moe.experts.deepspeed_experts
            for number, expert in enumerate(experts):
                with torch.no_grad():
                    expert.weight.copy_(torch.sin(torch.arange(16.0).reshape(4, 4) * 0.3 + own + number + len(experts)))
                    expert.bias.copy_(torch.cos(torch.arange(4.0) + own + number - len(experts)))
                expert.bias.requires_grad_(number != 1)
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)

    def forward(self, ids):
        hidden = self.first(self.embed(ids))[0]
        return self.head(self.second(hidden + self.frozen(hidden))[0]).float().square().mean()


def offset_of(layer):
    """The number of a rank's first expert among all of the layer."""
    from deepspeed.utils import groups
    return groups._get_expert_parallel_rank(layer.expert_group_name) * layer.num_local_experts


def global_name(module, name):
    """A name with the expert's number among all of the layer in place of that on this rank."""
    match = re.match(r"(.*)(\.deepspeed_moe\.experts\.deepspeed_experts\.)(\d+)(\..*)", name)
    if match is None:
        return name
    return f"{match[1]}{match[2]}{offset_of(module.get_submodule(match[1])) + int(match[3])}{match[4]}"


def of_all_ranks(module, tensors, world):
    """The tensors of all ranks, an expert by its number among all of them."""
    gathered = [None] * world
    dist.all_gather_object(gathered, {global_name(module, n): describe(t) for n, t in tensors.items()})
    return {name: row for rows in reversed(gathered) for name, row in rows.items()}


def expectation_of_experts(engine, trained, world):
    """zero_to_fp32 and ds_to_universal cannot read experts: the engines of all ranks are the truth."""
    from deepspeed.utils import safe_get_full_fp32_param
    states = states_of(engine, trained)  # links the states, all ranks together
    weights = {n: safe_get_full_fp32_param(p) for n, p in trained} if engine.zero_optimization_stage() else copies_of(engine)
    stored = dict(engine.module.state_dict())
    weights.update({n: t for n, t in stored.items() if n not in weights})
    return {"module": of_all_ranks(engine.module, stored, world), "model": of_all_ranks(engine.module, weights, world),
            "optim": of_all_ranks(engine.module, states, world), "lr": [g["lr"] for g in engine.optimizer.param_groups]}


def optimizer_of(kind, groups):
    if kind == "still":
        return torch.optim.AdamW(groups, lr=1e-6)
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    return torch.optim.RMSprop(groups, lr=0.01) if kind == "rmsprop" else torch.optim.AdamW(groups, lr=1e-3)


def describe(tensor):
    tensor = tensor.detach().cpu().contiguous()
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return {"dtype": str(tensor.dtype).replace("torch.", ""), "shape": list(tensor.shape), "sha256": hashlib.sha256(data).hexdigest()}


def states_of(engine, named):
    """Every state of every trained parameter, whole, from the live engine."""
    from deepspeed.utils import safe_get_full_optimizer_state
    out = {}
    inner = engine.optimizer.optimizer if hasattr(engine.optimizer, "optimizer") else engine.optimizer
    if engine.zero_optimization_stage() in (1, 2):
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    keys = sorted({k for state in inner.state.values() for k, v in state.items()})
    for name, parameter in named:
        for key in keys:
            if key == "step":
                step = next(s["step"] for s in inner.state.values() if "step" in s)
                out[f"{name}.step"] = torch.as_tensor(step)
            elif engine.zero_optimization_stage() == 0:
                held = inner.state[parameter] if parameter in inner.state else None
                if held is None:  # float32 copies, in the order of the optimizer's groups
                    flat = [p for g in engine.optimizer.fp16_groups for p in g]
                    copies = [p for g in engine.optimizer.fp32_groups for p in g]
                    held = inner.state[copies[[id(p) for p in flat].index(id(parameter))]]
                out[f"{name}.{key}"] = held[key]
            else:
                out[f"{name}.{key}"] = safe_get_full_optimizer_state(parameter, key)
    return out


def states_by_weights(directory, names, keys):
    """The states as zero_to_fp32 joins them when they stand in for the weights: it goes by `param_shapes`. Under
    round_robin_gradients the live engine goes by `param_slice_mappings`, and mixes parameters up."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    out = {}
    for key in keys:
        with tempfile.TemporaryDirectory() as copy:
            shutil.copytree(os.path.join(directory, "t"), os.path.join(copy, "t"))
            for path in pathlib.Path(copy).glob("t/*_optim_states.pt"):
                saved = torch.load(path, weights_only=False)
                inner = saved["optimizer_state_dict"]
                groups = inner["single_partition_of_fp32_groups"]
                for g, fp32 in enumerate(groups):
                    groups[g] = inner["base_optimizer_state"]["state"][g][key][:fp32.numel()].clone()
                torch.save(saved, path)
            joined = get_fp32_state_dict_from_zero_checkpoint(copy, tag="t")
            out.update({f"{n}.{key}": joined[n] for n in names})
    return out


def copies_of(engine):
    """The weights of an engine without ZeRO, float32 copies in place of those that have one."""
    weights = dict(engine.module.state_dict())
    if hasattr(engine.optimizer, "fp32_groups"):
        copies = {id(p): c for ps, cs in zip(engine.optimizer.fp16_groups, engine.optimizer.fp32_groups) for p, c in zip(ps, cs)}
        for name, parameter in engine.module.named_parameters(remove_duplicate=False):
            weights[name] = copies.get(id(parameter), parameter)
    return weights


def weights_of(engine, directory):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    return get_fp32_state_dict_from_zero_checkpoint(directory, tag="t") if engine.zero_optimization_stage() else copies_of(engine)


def run(rank, world, port, case, directory):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port))
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    type(get_accelerator()).is_fp16_supported = lambda self: True
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    _, dtype, zero, kind, further = CASES[case]
    model = {"still": Twins, "tied": Tied, "moe": Experts, "unsplit": Experts, "replicated": Replicated, "alike": Alike, "mixtures": Mixtures}.get(kind, Model)()
    if kind == "mixtures":
        model.number_experts(rank // 2 if further.get("use_data_before_expert_parallelism") else rank % 2)
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    groups = [{"params": [p for n, p in trained if p.ndim > 1], "weight_decay": 0.1},
              {"params": [p for n, p in trained if p.ndim <= 1], "weight_decay": 0.0}]
    if case == "zero0_fp32_groups":
        groups[1]["lr"] = 0.002
    if kind in ("replicated", "unsplit"):
        groups = [{"params": [p for _, p in trained]}]
    elif kind == "alike":
        groups = [{"params": [p for layer in reversed(list(model.children())) for p in layer.parameters()]}]
    elif kind == "moe":
        from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
        groups = split_params_into_different_moe_groups_for_optimizer({"params": list(model.parameters()), "name": "all"})
    elif kind == "mixtures":
        from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
        named = [{"name": name, **group} for name, group in zip(("matrices", "vectors"), groups)]
        groups = split_params_into_different_moe_groups_for_optimizer(named, max_group_size=50)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
              "zero_optimization": zero, **further}
    if dtype != "fp32":
        config[dtype] = {"enabled": True, **({"initial_scale_power": 4} if dtype == "fp16" else {})}
    engine = deepspeed.initialize(model=model, optimizer=optimizer_of(kind, groups), config=config, dist_init_required=False)[0]
    for step in range(2):
        engine.backward(engine((torch.arange(6) * (rank + 2) + step) % 9))
        engine.step()
    engine.save_checkpoint(directory, tag="t", client_state={"epoch": 3, "args": {"lr": 0.001}})
    experts = kind in ("moe", "unsplit", "replicated", "mixtures")
    expect = expectation_of_experts(engine, trained, world) if experts else None
    states = {} if experts else states_of(engine, trained)
    if rank == 0 and experts:
        with open(os.path.join(directory, "t", "expect.json"), "w") as f:
            json.dump(expect, f, indent=0, sort_keys=True)
    elif rank == 0:
        if case == "zero1_round_robin":
            states.update(states_by_weights(directory, [n for n, _ in trained], ["exp_avg", "exp_avg_sq"]))
        tag = os.path.join(directory, "t")
        expect = {"model": {n: describe(t) for n, t in weights_of(engine, directory).items()},
                  "optim": {n: describe(t) for n, t in states.items()},
                  "lr": [g["lr"] for g in engine.optimizer.param_groups]}
        with open(os.path.join(tag, "expect.json"), "w") as f:
            json.dump(expect, f, indent=0, sort_keys=True)
    dist.barrier()
    dist.destroy_process_group()


def to_universal(directory, out):
    from deepspeed.checkpoint.ds_to_universal import main, parse_arguments
    sys.argv = ["", "--input_directory", os.path.join(directory, "t"), "--output_directory", out, "--num_extract_workers", "1", "--num_merge_workers", "1",
                "--inject_missing_state"]
    main(parse_arguments())


def main():
    chosen = sys.argv[1:] or list(CASES)
    for number, case in enumerate(chosen):
        with tempfile.TemporaryDirectory() as directory:
            mp.start_processes(run, args=(CASES[case][0], 29500 + os.getpid() % 900 + number, case, directory), nprocs=CASES[case][0],
                               start_method="spawn")
            shutil.rmtree(HERE / case, ignore_errors=True)
            shutil.copytree(os.path.join(directory, "t"), HERE / case)
            if case in ("zero1_bf16", "zero3_bf16"):
                shutil.rmtree(HERE / f"universal_{case}", ignore_errors=True)
                to_universal(directory, str(HERE / f"universal_{case}"))
                (HERE / "latest_universal").unlink()
                shutil.copy(HERE / case / "expect.json", HERE / f"universal_{case}" / "expect.json")


if __name__ == "__main__":
    main()
