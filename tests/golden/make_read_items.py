#!/usr/bin/env python3
"""Which read items PyTorch's planner makes of stored chunks and one wanted box.

    make_read_items.py            writes read_items.txt beside this script

One case a line, boxes as OFFSETS:SIZES with numbers joined by x:
    SHAPE WANTED CHUNK[;CHUNK…] ITEM[;ITEM…]
an item is CHUNK_NUMBER:DEST_OFFSETS:STORAGE_OFFSETS:LENGTHS.
"""
import os
import random

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

HERE = os.path.dirname(os.path.abspath(__file__))


def join(numbers):
    return "x".join(map(str, numbers))


def cut_up(rng, offsets, sizes, depth):
    """A random tiling of a box, by cutting it again and again."""
    d = rng.randrange(len(sizes))
    if depth == 0 or sizes[d] < 2:
        return [(offsets, sizes)]
    at = rng.randint(1, sizes[d] - 1)
    low, high = list(sizes), list(sizes)
    low[d], high[d] = at, sizes[d] - at
    far = list(offsets)
    far[d] += at
    return cut_up(rng, offsets, low, depth - 1) + cut_up(rng, far, high, depth - 1)


def main():
    rng = random.Random(2013)
    lines = []
    for _ in range(500):
        shape = [rng.randint(1, 12) for _ in range(rng.randint(1, 3))]
        boxes = cut_up(rng, [0] * len(shape), shape, rng.randint(0, 5))
        rng.shuffle(boxes)
        begin = [rng.randrange(n) for n in shape]
        size = [rng.randint(1, n - b) for n, b in zip(shape, begin)]
        chunks = [ChunkStorageMetadata(torch.Size(o), torch.Size(s)) for o, s in boxes]
        md = TensorStorageMetadata(TensorProperties(), torch.Size(shape), chunks)
        items = create_read_items_for_chunk_list("w", md, [ChunkStorageMetadata(torch.Size(begin), torch.Size(size))])
        where = {tuple(o): i for i, (o, _) in enumerate(boxes)}
        lines.append(" ".join([
            join(shape), f"{join(begin)}:{join(size)}", ";".join(f"{join(o)}:{join(s)}" for o, s in boxes),
            ";".join(f"{where[tuple(i.storage_index.offset)]}:{join(i.dest_offsets)}:{join(i.storage_offsets)}:{join(i.lengths)}"
                     for i in sorted(items, key=lambda i: where[tuple(i.storage_index.offset)]))]))
    with open(os.path.join(HERE, "read_items.txt"), "w") as f:
        f.write(f"# {os.path.basename(__file__)}, PyTorch {torch.__version__}\n" + "\n".join(lines) + "\n")
    print("read_items.txt", len(lines))


if __name__ == "__main__":
    main()
