"""Writes tests/golden/olmo_core: a step as the Checkpointer of OLMo-core 3.0.0 saves it, on 2 ranks, with PyTorch 2.13.

    python tests/golden/make_olmo_core.py
"""
import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "olmo_core")
RUN = "/tmp/olmo_core"  # its path is in .metadata


def save(rank, world):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29673", RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), FS_LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    from olmo_core.train.checkpoint import Checkpointer
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 4))
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(torch.arange(p.numel()).reshape(p.shape) + 100 * i)
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()

    class TrainModule:
        def state_dict_to_save(self):
            return {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer)}

    checkpointer = Checkpointer(work_dir=Path(RUN + ".work"), save_thread_count=1)
    checkpointer.save(os.path.join(RUN, "step10"), TrainModule(), {"global_step": 10, "rank": rank})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for path in (OUT, RUN):
        shutil.rmtree(path, ignore_errors=True)
    os.makedirs(RUN)
    mp.spawn(save, (2,), 2)
    shutil.move(RUN, OUT)
    shutil.rmtree(RUN + ".work", ignore_errors=True)
