"""Writes tests/golden/directories/accelerate…: what accelerate's save_state leaves, and what the tensors in it are.

Usage: python tests/golden/make_accelerate.py [NAME…]    in an environment that has the versions below (without CUDA).

Made with torch 2.13.0, accelerate 1.15.0, deepspeed 0.19.8, safetensors 0.8.0. accelerate asks for a GPU where it uses FSDP: here the process
states that it has FSDP after it was started on CPUs (see `with_fsdp`), and FSDP wraps the models as PyTorch documents it. The files are
written by save_state and by what it calls.

The expectations are as in make_directories.py: of each part, what the program held when it saved.
"""
import functools
import glob
import os
import shutil
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from make_directories import HERE, part, write_expected

PORT = "29634"


def start(rank, world):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=PORT, ACCELERATE_USE_CPU="true", OMP_NUM_THREADS="1", CCL_WORKER_COUNT="0")
    torch.manual_seed(5)


def net(*sizes):
    layers = [layer for a, b in zip(sizes, sizes[1:]) for layer in (torch.nn.Linear(a, b), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers)


def train(accelerator, models, optimizers, schedulers=()):
    """Two steps, on values that differ on each rank."""
    for step in range(2):
        for model, width in models:
            accelerator.backward(model(torch.linspace(-1, 1, 4 * width).reshape(4, width) * (accelerator.process_index + step + 1)).square().mean())
        for stepped in (*optimizers, *schedulers):
            stepped.step()
        for optimizer in optimizers:
            optimizer.zero_grad()


class Registered:
    """What a program has accelerate save with the rest."""

    def state_dict(self):
        return {"seen": torch.arange(3) * 7, "name": "mine"}

    def load_state_dict(self, state):
        pass


def plain(rank, world, out):
    """Without FSDP: several models, optimizers and schedulers, and the random states of each rank."""
    start(rank, world)
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    first, second = net(3, 5, 2), net(4, 3)
    adam, sgd = torch.optim.AdamW(first.parameters(), lr=0.125), torch.optim.SGD(second.parameters(), lr=0.5, momentum=0.75)
    steps, gamma = torch.optim.lr_scheduler.StepLR(adam, 1), torch.optim.lr_scheduler.ExponentialLR(sgd, 0.5)
    first, second, adam, sgd, steps, gamma = accelerator.prepare(first, second, adam, sgd, steps, gamma)
    accelerator.register_for_checkpointing(Registered())
    train(accelerator, ((first, 3), (second, 4)), (adam, sgd), (steps, gamma))
    torch.manual_seed(100 + rank)
    accelerator.save_state(out)
    states = [None] * world
    dist.all_gather_object(states, torch.get_rng_state())
    if rank == 0:
        held = {"model": first.module, "model_1": second.module, "optimizer": adam, "optimizer_1": sgd, "scheduler": steps, "scheduler_1": gamma,
                "custom_checkpoint_0": Registered()}
        rng = {f"rank_{r}": {"torch_manual_seed": state, "step": accelerator.step} for r, state in enumerate(states)}
        write_expected(os.path.basename(out), "accelerate", {**{k: part(dict(v.state_dict())) for k, v in held.items()}, "rng_state": part(rng)})


def with_fsdp(kind):
    """accelerate chooses FSDP only where the process was started on GPUs; what it saves depends on its state, which is set here."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState, DistributedType, PartialState
    accelerator = Accelerator(cpu=True)
    keep_on_cpu()
    plugin = FullyShardedDataParallelPlugin(fsdp_version=1, state_dict_type=kind)
    for shared in (AcceleratorState._shared_state, PartialState._shared_state):
        shared.update(distributed_type=DistributedType.FSDP)
    AcceleratorState._shared_state["fsdp_plugin"] = plugin
    return accelerator


def keep_on_cpu():
    """accelerate moves full states from the GPU to the CPU; FSDP frees those that are on the CPU already, so what
    is saved would be whatever came into their memory."""
    from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig
    for config in (FullStateDictConfig, FullOptimStateDictConfig):
        config.__setattr__ = lambda self, name, value: object.__setattr__(self, name, value and name != "offload_to_cpu")


def full_state(models, optimizers):
    from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType
    for n, (model, optimizer) in enumerate(zip(models, optimizers)):
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig()):
            number = f"_{n}" if n else ""
            yield f"model{number}", part(dict(model.state_dict()))
            yield f"optimizer{number}", part(FSDP.optim_state_dict(model, optimizer))


def fsdp(kind, save, rank, world, out):
    start(rank, world)
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    accelerator = with_fsdp(kind)
    models = [FSDP(net(*sizes), device_id=torch.device("cpu"), use_orig_params=True) for sizes in ((3, 5, 2), (4, 3))]
    optimizers = [torch.optim.AdamW(models[0].parameters(), lr=0.125), torch.optim.SGD(models[1].parameters(), lr=0.5, momentum=0.75)]
    accelerator._models, accelerator._optimizers = models, optimizers
    accelerator._schedulers = [torch.optim.lr_scheduler.StepLR(optimizers[0], 1)]
    train(accelerator, ((models[0], 3), (models[1], 4)), optimizers, accelerator._schedulers)
    torch.manual_seed(100 + rank)
    save(accelerator, out)
    parts = dict(full_state(models, optimizers))
    if rank == 0:
        parts["scheduler"] = part(accelerator._schedulers[0].state_dict())
        write_expected(os.path.basename(out), "accelerate-fsdp", parts)


def whole(accelerator, out):
    accelerator.save_state(out)


def by_ranks(accelerator, out):
    """Each rank's shards in a file of its own, as accelerate offers it for many ranks, next to what save_state saves."""
    from accelerate.utils import save_fsdp_model, save_fsdp_optimizer
    models, optimizers = accelerator._models, accelerator._optimizers
    for n, (model, optimizer) in enumerate(zip(models, optimizers)):
        save_fsdp_model(accelerator.state.fsdp_plugin, accelerator, model, out, n, use_dcp=False)
        save_fsdp_optimizer(accelerator.state.fsdp_plugin, accelerator, optimizer, model, out, n, use_dcp=False)
    accelerator._models, accelerator._optimizers = [], []
    accelerator.save_state(out)


def engine(rank, world, out):
    """With DeepSpeed: its checkpoint below the directory, and the rest next to it."""
    os.environ.update(DS_ACCELERATOR="cpu", LOCAL_SIZE=str(world))
    start(rank, world)
    import deepspeed
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, DistributedType, PartialState
    from deepspeed.utils import safe_get_full_optimizer_state
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    model = net(3, 5, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
              "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    model = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)[0]
    for step in range(2):
        model.backward(model(torch.linspace(-1, 1, 12).reshape(4, 3).bfloat16() * (rank + step + 1)).float().square().mean())
        model.step()
    accelerator = Accelerator(cpu=True)
    for shared in (AcceleratorState._shared_state, PartialState._shared_state):
        shared.update(distributed_type=DistributedType.DEEPSPEED)
    accelerator._models, accelerator._schedulers = [model], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]
    accelerator.save_state(out)
    moments = {n: {key: safe_get_full_optimizer_state(p, key) for key in ("exp_avg", "exp_avg_sq")} for n, p in model.module.named_parameters()}
    if rank == 0:
        for script in glob.glob(f"{out}/*.py"):  # DeepSpeed's converters, of another licence
            os.remove(script)
        write_expected(os.path.basename(out), "deepspeed", {"module": part(dict(model.module.state_dict())), "optim": part({"state": moments})})


CASES = {"accelerate": plain,
         "accelerate_fsdp_full": functools.partial(fsdp, "FULL_STATE_DICT", whole),
         "accelerate_fsdp_sharded": functools.partial(fsdp, "SHARDED_STATE_DICT", whole),
         "accelerate_fsdp_ranks": functools.partial(fsdp, "SHARDED_STATE_DICT", by_ranks),
         "accelerate_fsdp_local": functools.partial(fsdp, "LOCAL_STATE_DICT", whole),
         "accelerate_deepspeed": engine}


def run(rank, world, name, out):
    CASES[name](rank, world, out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        shutil.rmtree(HERE / name, ignore_errors=True)
        mp.start_processes(run, args=(2, name, str(HERE / name)), nprocs=2, start_method="spawn")
