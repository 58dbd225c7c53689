"""Small rules of state dicts as real PyTorch applies them: python tests/golden/make_state_rules.py > tests/golden/state_rules.json

rows: ChunkShardingSpec and torch.chunk over dim 0 (E1); reads: _ReaderWithOffset's plan for 2-D optimizer state (E2, E3), one
rank at a time over a fake process group; keys: _flatten_state_dict (D9); checks: which options _verify_options and
_verify_state_dict refuse (A4, A5).
"""
import itertools
import json
import os
import sys
import warnings
from types import SimpleNamespace

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import TensorProperties as ShardTensorProperties
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed._state_dict_utils import _flatten_state_dict
from torch.distributed.checkpoint import state_dict as dsd
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.optimizer import _ReaderWithOffset
from torch.testing._internal.distributed.fake_pg import FakeStore

from make_optim import encode


def rows():
    for size, world in itertools.product((0, 1, 2, 3, 7, 8, 100), (1, 2, 3, 5, 8)):
        spec = ChunkShardingSpec(0, [f"rank:{r}/cpu" for r in range(world)])
        shards = spec.build_metadata(torch.Size([size, 2]), ShardTensorProperties()).shards_metadata
        chunks = torch.arange(size).chunk(world)
        starts = [int(c[0]) if c.numel() else 0 for c in chunks]
        yield {"size": size, "world": world, "spec": [[s.shard_offsets[0], s.shard_sizes[0]] for s in shards],
               "chunk": [[s, c.numel()] for s, c in zip(starts, chunks)]}


def grid(shape, rows, columns):
    """Chunks of a tensor saved by rows × columns ranks."""
    cut = lambda n, w: [(i, min(-(-n // w), n - i)) for i in range(0, n, -(-n // w))]
    return [ChunkStorageMetadata(torch.Size([a, b]), torch.Size([x, y])) for a, x in cut(shape[0], rows) for b, y in cut(shape[1], columns)]


def reads():
    for (shape, saved), (tp, dp) in itertools.product((((8, 12), (4, 2)), ((7, 5), (2, 3)), ((3, 4), (1, 1))), ((2, 2), (2, 3), (1, 4))):
        md = TensorStorageMetadata(TensorProperties(), torch.Size(shape), grid(shape, *saved))
        width = shape[1] // tp
        for t, d in itertools.product(range(tp), range(dp)):
            offset, size = [0, t * width], [shape[0], width]
            dist.init_process_group("fake", rank=d, world_size=dp, store=FakeStore())
            spec = ChunkShardingSpec(0, [f"rank:{r}/cpu" for r in range(dp)])
            st_md = spec.build_metadata(torch.Size(size), ShardTensorProperties())
            mine = st_md.shards_metadata[d]
            shard = Shard(torch.empty(mine.shard_sizes), mine)
            st = ShardedTensor._init_from_local_shards_and_global_metadata([shard], st_md)
            reader = _ReaderWithOffset({"o": offset})
            reader.metadata, reader.state_dict = Metadata({"o": md}), {"o": st}
            items = reader.create_local_plan().items
            at = lambda i: [a + b for a, b in zip(i.storage_index.offset, i.storage_offsets)]
            yield {"shape": list(shape), "slice_offsets": offset, "slice_sizes": size, "rank": d, "world": dp,
                   "items": [[at(i), list(i.lengths), [a + b for a, b in zip(reader.translation[i.dest_index].offset, i.dest_offsets)]] for i in items]}
            dist.destroy_process_group()


def keys():
    for nested in ({"a": 1, "b": {"c": [1, {"d": 2}], "t": (3, [4, 5])}, "e": {}, 7: {"x": []}}, {"m": {"w": torch.ones(2)}, "s": torch.Size([2, 3])}, {},
                   {"a": {"b": 1}, "a.b": 2}):
        try:
            flat, mapping = _flatten_state_dict(nested)
            yield {"nested": encode(nested), "flat": [[k, [p if isinstance(p, int) else p for p in mapping[k]], encode(v)] for k, v in flat.items()]}
        except ValueError:
            yield {"nested": encode(nested), "flat": None}


OPTIONS = ["full_state_dict", "cpu_offload", "ignore_frozen_params", "keep_submodule_prefixes", "strict", "broadcast_from_rank0", "flatten_optimizer_state_dict"]


def checks():
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    net = torch.nn.Linear(1, 1)
    optim = torch.optim.SGD(net.parameters(), lr=0.1)
    for bits in itertools.product((False, True), repeat=len(OPTIONS)):
        options = dict(zip(OPTIONS, bits))
        out = {"options": list(bits), "refused": [], "empty": []}
        for optims, only in (((), False), ((), True), ((optim,), True)):
            try:
                dsd._verify_options(net, optims, only, options=dsd.StateDictOptions(**options))
                out["refused"].append(False)
            except (RuntimeError, ValueError):
                out["refused"].append(True)
        for submodules, keys_, optimizer in itertools.product((False, True), ((), ("w",), ("a._flat_param",)), ({}, {"state": 1})):
            info = SimpleNamespace(**options, handle_model=True, handle_optim=True, submodule_prefixes={"x."} if submodules else set(), fsdp_modules=[])
            try:
                dsd._verify_state_dict(dict.fromkeys(keys_, 1), optimizer, info)
                out["empty"].append(False)
            except RuntimeError:
                out["empty"].append(True)
        yield out
    dist.destroy_process_group()


if __name__ == "__main__":
    json.dump({"torch": torch.__version__, "rows": list(rows()), "reads": list(reads()), "keys": list(keys()), "checks": list(checks())}, sys.stdout,
              separators=(",", ":"))
    print()
