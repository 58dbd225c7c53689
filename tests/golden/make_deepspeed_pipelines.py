"""Writes checkpoints of DeepSpeed's PipelineModule to tests/golden/deepspeed, and what the live engines of all ranks hold.

Usage: python tests/golden/make_deepspeed_pipelines.py    in an environment that has the versions of make_deepspeed.py.

A case is the directory of a tag and expect.json: {"module": {name: tensors}, "model": …, "optim": {name.key: tensors}, "layers":
{"tied_modules.KEY": number of the layer that uses it first}, "numbers": {"mp_rank_01.3": name}}. `module` is the state dict of the
engine's module at save time, `model` the same with float32 weights where the optimizer has them, `optim` every state of the engine's
optimizer. "tensors" is a list with one tensor for each tensor-parallel rank; what two stages hold is equal, which is checked here, but
for what tied layers do not tie ("own"): a later stage's has the stage before its name ("mp_rank_01.tied_modules.KEY.…").
`numbers` names the parameters of each stage's optimizer without ZeRO.
"""
import hashlib
import json
import os
import shutil
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from make_deepspeed import HERE, describe, states_of

CASES = {
    # name: (data-parallel ranks, tensor-parallel ranks, dtype, ZeRO configuration, whether tied layers have weights of their own)
    "zero0_pipeline": (1, 1, "fp32", {"stage": 0}, False),
    "zero0_pipeline_bf16": (2, 1, "bf16", {"stage": 0}, False),
    "zero1_pipeline": (2, 1, "bf16", {"stage": 1}, False),
    "zero1_pipeline_tp": (1, 2, "fp32", {"stage": 1}, False),
    "zero0_pipeline_own": (1, 1, "fp32", {"stage": 0}, True),
    "zero0_pipeline_own_bf16": (1, 1, "bf16", {"stage": 0}, True),
    "zero1_pipeline_own": (2, 1, "bf16", {"stage": 1}, True),
}
STAGES = 2


class Norm(torch.nn.LayerNorm):
    def __init__(self, size):
        super().__init__(size)
        self.register_buffer("seen", torch.arange(4) * 7)


class Table(torch.nn.Embedding):
    """Only its weight is tied."""

    def __init__(self, count, size):
        super().__init__(count, size)
        self.positions = torch.nn.Parameter(torch.zeros(6, size))
        self.register_buffer("stage", torch.zeros(3))

    def forward(self, ids):
        return super().forward(ids) + self.positions


def logits(layer, x):
    return torch.nn.functional.linear(x, layer.weight)


def own_logits(layer, x):
    return torch.nn.functional.linear(x + layer.positions, layer.weight)


def layers(own):
    """Tied layers with and without a function for their second use, functions, buffers; frozen: layer 6, and the bias of layer 7."""
    from deepspeed.pipe import LayerSpec, TiedLayerSpec
    linear, tied = torch.nn.Linear, ["weight"] if own else ["weight", "bias"]
    table, head = (Table, own_logits) if own else (torch.nn.Embedding, logits)
    return [TiedLayerSpec("embed", table, 9, 5), LayerSpec(linear, 5, 6), torch.tanh, LayerSpec(linear, 6, 5),
            TiedLayerSpec("mix", linear, 5, 5, tied_weight_attr=tied), TiedLayerSpec("mix", linear, 5, 5, tied_weight_attr=tied), LayerSpec(linear, 5, 6, bias=False), LayerSpec(linear, 6, 5),
            LayerSpec(Norm, 5), TiedLayerSpec("embed", table, 9, 5, forward_fn=head)]


FROZEN = ("6.weight", "7.bias")
OWN = ("tied_modules.embed.positions", "tied_modules.embed.stage", "tied_modules.mix.bias")
FIRST_USE = {"tied_modules.embed": 0, "tied_modules.mix": 4}


def fill(model, tensor_rank, stage):
    """Values of their own for every name and tensor-parallel rank, and for the stage where `stage` is not None."""
    for name, buffer in model.named_buffers():
        if name in OWN:
            buffer.add_(stage + 1)
    for name, parameter in model.named_parameters():
        place = f"{name} {tensor_rank}" + (f" {stage}" if stage is not None and name in OWN else "")
        seed = int(hashlib.sha256(place.encode()).hexdigest()[:4], 16) % 97
        values = torch.arange(parameter.numel(), dtype=torch.float32).reshape(parameter.shape)
        with torch.no_grad():
            parameter.copy_((torch.sin(values * 0.37 + seed) * 0.5).to(parameter.dtype))
        parameter.requires_grad_(name not in FROZEN)


def batches(rank):
    step = 0
    while True:
        step += 1
        yield (torch.arange(18).reshape(3, 6) * (rank + 2) + step) % 9, torch.zeros(3)


def has_slices(engine):
    """The bfloat16 optimizer without ZeRO, which cuts float32 buffers nevertheless."""
    return hasattr(engine.optimizer, "fp32_groups_flat_partition")


def all_states(engine, trained):
    if not has_slices(engine):
        return states_of(engine, trained)
    from deepspeed.utils import safe_get_full_optimizer_state
    engine.optimizer._hp_optimizer_states_linked = False
    engine.optimizer._lazy_init_hp_params_optimizer_state()
    step = next(s["step"] for s in engine.optimizer.optimizer.state.values())
    states = {f"{n}.{key}": safe_get_full_optimizer_state(p, key) for n, p in trained for key in ("exp_avg", "exp_avg_sq")}
    return {**states, **{f"{n}.step": step for n, _ in trained}}


def weights_of(engine):
    """The float32 weights where the optimizer has some, and the stored ones."""
    from deepspeed.utils import safe_get_full_fp32_param
    weights = dict(engine.module.state_dict())
    if engine.zero_optimization_stage() or has_slices(engine):
        weights.update({n: safe_get_full_fp32_param(p) for n, p in engine.module.named_parameters() if p.requires_grad})
    return weights


def numbers_of(engine, named):
    names = {id(p): n for n, p in named}
    groups = engine.optimizer.param_groups
    return {f"mp_rank_{engine.grid.get_stage_id():02d}.{i}": names[id(p)] for i, p in enumerate(p for g in groups for p in g["params"])}


def is_own(name, own):
    return own and name.startswith(OWN)


def expectation(engine, trained, world, tensor_ranks, has_own):
    by_stage = engine.zero_optimization_stage() == 0 and not has_slices(engine)
    own = {"module": engine.module.state_dict(), "model": weights_of(engine), "optim": all_states(engine, trained)}
    own = {section: {n: describe(t) for n, t in tensors.items()} for section, tensors in own.items()}
    tensor_rank = engine.grid.get_slice_parallel_rank() if tensor_ranks > 1 else 0
    gathered = [None] * world
    dist.all_gather_object(gathered, (tensor_rank, own, numbers_of(engine, trained) if by_stage else {}, engine.grid.get_stage_id()))
    out = {"module": {}, "model": {}, "optim": {}, "layers": FIRST_USE, "numbers": {}}
    for tensor_rank, sections, numbers, stage in gathered:
        out["numbers"].update(numbers)
        for section, tensors in sections.items():
            for name, tensor in tensors.items():
                name = f"mp_rank_{stage:02d}.{name}" if stage and is_own(name, has_own) else name
                ranks = out[section].setdefault(name, [None] * tensor_ranks)
                assert ranks[tensor_rank] in (None, tensor), f"{name} is not the same in two stages"
                ranks[tensor_rank] = tensor
    return out


def run(rank, world, port, case, directory):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port))
    import deepspeed
    from deepspeed.pipe import PipelineModule
    from deepspeed.runtime.pipe.topology import PipeDataParallelTopology, PipeModelDataParallelTopology
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    data_ranks, tensor_ranks, dtype, zero, own = CASES[case]
    topology = PipeModelDataParallelTopology(STAGES, tensor_ranks, data_ranks) if tensor_ranks > 1 else PipeDataParallelTopology(STAGES, data_ranks)
    model = PipelineModule(layers(own), topology=topology, loss_fn=lambda out, _: out.float().square().mean(), partition_method="uniform")
    fill(model, model.mpu().get_slice_parallel_rank() if tensor_ranks > 1 else 0, model.stage_id if own else None)
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    groups = [{"params": [p for n, p in trained if p.ndim > 1], "weight_decay": 0.1},
              {"params": [p for n, p in trained if p.ndim <= 1], "weight_decay": 0.0}]
    config = {"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2, "zero_allow_untested_optimizer": True,
              "zero_force_ds_cpu_optimizer": False, "zero_optimization": zero, "pipeline": {"activation_checkpoint_interval": 0}}
    if dtype != "fp32":
        config[dtype] = {"enabled": True}
    engine = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=1e-3), config=config, dist_init_required=False)[0]
    data = batches(rank)
    for _ in range(2):
        engine.train_batch(data)
    engine.save_checkpoint(directory, tag="t", client_state={"epoch": 3, "args": {"lr": 0.001}})
    expect = expectation(engine, trained, world, tensor_ranks, own)
    if rank == 0:
        with open(os.path.join(directory, "t", "expect.json"), "w") as f:
            json.dump(expect, f, indent=0, sort_keys=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    for number, case in enumerate(sys.argv[1:] or CASES):
        world = STAGES * CASES[case][0] * CASES[case][1]
        with tempfile.TemporaryDirectory() as directory:
            mp.start_processes(run, args=(world, 28500 + os.getpid() % 900 + number, case, directory), nprocs=world, start_method="spawn")
            shutil.rmtree(HERE / case, ignore_errors=True)
            shutil.copytree(os.path.join(directory, "t"), HERE / case)


if __name__ == "__main__":
    main()
