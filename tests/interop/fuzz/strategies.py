"""How the ranks of a draw share its model."""
import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from trees import ExtraNode, Kit, model

STRATEGIES = {1: ["plain", "plain", "ddp"], 2: ["plain", "ddp"], 3: ["plain", "ddp"], 4: ["ddp"]}


@functools.lru_cache
def mesh_of(shape, names):
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def plain(draw):
    return model(Kit(draw.rng(), True))


def ddp(draw):
    kit = Kit(draw.rng(), True)
    made = model(kit)
    if kit.chance(0.2):
        made = torch.compile(made)
    return DistributedDataParallel(made)


def build(draw):
    """The model of a draw, with nothing in its tensors yet."""
    made = globals()[draw.strategy](draw)
    if draw.strategy == "plain" and draw.rng("root").random() < 0.2:
        made = torch.compile(made)
    return made
