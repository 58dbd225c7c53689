"""Writes ZeRO 3 checkpoints of two steps of one job to tests/golden/deepspeed_steps, by optimizers that count no steps.

Usage: python tests/golden/make_deepspeed_steps.py    in an environment that has the versions of make_deepspeed.py.

A case is what two ranks saved after six steps, and in `earlier` the optimizer files that they had saved after four.
"""
import os
import pathlib
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from make_deepspeed import HERE as GOLDEN, Model

HERE = GOLDEN.parent / "deepspeed_steps"
STEPS = (4, 6)

CASES = {
    # name: (dtype, configuration of the dtype, momentum, whether the learning rate changes)
    "scaled": ("fp16", {"initial_scale_power": 4, "loss_scale_window": 3}, 0.0, False),
    "scheduled": ("fp32", {}, 0.0, True),
    "constant": ("bf16", {}, 0.9, False),
}


def run(rank, world, port, case, directory):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port))
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    type(get_accelerator()).is_fp16_supported = lambda self: True
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    dtype, settings, momentum, scheduled = CASES[case]
    model = Model()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=momentum)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
              "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}
    if dtype != "fp32":
        config[dtype] = {"enabled": True, **settings}
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)) if scheduled else None
    engine = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=scheduler, config=config, dist_init_required=False)[0]
    for step in range(1, STEPS[-1] + 1):
        engine.backward(engine((torch.arange(6) * (rank + 2) + step) % 9))
        engine.step()
        if step in STEPS:
            engine.save_checkpoint(directory, tag=f"global_step{step}")
    dist.barrier()
    dist.destroy_process_group()


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    for number, case in enumerate(CASES):
        with tempfile.TemporaryDirectory() as directory:
            mp.start_processes(run, args=(2, 27500 + os.getpid() % 900 + number, case, directory), nprocs=2, start_method="spawn")
            earlier, later = (pathlib.Path(directory) / f"global_step{step}" for step in STEPS)
            shutil.copytree(later, HERE / case)
            (HERE / case / "earlier").mkdir()
            for path in earlier.glob("*_optim_states.pt"):
                shutil.copy(path, HERE / case / "earlier")


if __name__ == "__main__":
    main()
