"""The small models of the samples, a few training steps on seeded data, and what is known of their values before a save."""
import torch
from torch import nn

from . import golden


class Block(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    """11 rows on 4 ranks leave a short last shard; `few` has fewer rows than ranks, so that some shards are empty."""

    def __init__(self, dim=6, hidden=7, rows=11, few=2):
        super().__init__()
        self.emb = nn.Embedding(rows, dim)
        self.block = Block(dim, hidden)
        self.few = nn.Linear(dim, few, bias=False)
        self.register_buffer("steps_seen", torch.tensor(3))

    def forward(self, tokens):
        return self.few(self.block(self.emb(tokens)))


class TiedNet(nn.Module):
    """A head tied to the embedding, and a batch norm with its running buffers."""

    def __init__(self, dim=6, rows=11):
        super().__init__()
        self.emb = nn.Embedding(rows, dim)
        self.bn = nn.BatchNorm1d(dim)
        self.head = nn.Linear(dim, rows, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, tokens):
        return self.head(self.bn(self.emb(tokens).flatten(0, 1)))


def seeded(cls, *args, **kwargs):
    """The same weights on every rank."""
    torch.manual_seed(20)
    return cls(*args, **kwargs)


def adamw(module):
    return torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.1)


def train(module, optimizer, steps=2, rows=11):
    generator = torch.Generator().manual_seed(21)
    for _ in range(steps):
        tokens = torch.randint(0, rows, (3, 5), generator=generator)
        optimizer.zero_grad()
        module(tokens).square().sum().backward()
        optimizer.step()


def known(state_dict):
    """Collective: the full values behind a state dict of DTensors, ShardedTensors and plain tensors, as entries of a golden."""
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    flat, _ = flatten_state_dict(state_dict)
    return {fqn: golden.tensor_entry(full(value)) for fqn, value in flat.items() if is_tensor(value) and not golden_opaque(value)}


def golden_opaque(value):
    return type(value) in (torch.Tensor, nn.Parameter) and golden.opaque_class(value)


def is_tensor(value):
    from torch.distributed._shard.sharded_tensor import ShardedTensor
    return isinstance(value, (torch.Tensor, ShardedTensor))


def full(value):
    from torch.distributed._shard.sharded_tensor import ShardedTensor
    from torch.distributed.tensor import DTensor
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, ShardedTensor):
        return joined(value)
    return value


def joined(sharded):
    """A ShardedTensor put together from the shards that the ranks hold."""
    import torch.distributed as dist
    mine = [(shard.metadata.shard_offsets, shard.tensor.detach().clone()) for shard in sharded.local_shards()]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    whole = torch.empty(sharded.size(), dtype=sharded.metadata().tensor_properties.dtype)
    for offsets, part in (shard for shards in everyone for shard in shards):
        whole[tuple(slice(o, o + n) for o, n in zip(offsets, part.shape))] = part
    return whole
