"""Random nested state dicts and how PyTorch's flatten_state_dict names their leaves: torch_flatten.pt, torch_flatten.txt.

    $(samples/python-env) tests/golden/make_torch_flatten.py

A line of the text is a leaf: t (tensor) or o (object), the path items (k: str key, i: list position), the type of an object.
Made with PyTorch 2.13.0."""
import collections
import os
import random

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

HERE = os.path.dirname(os.path.abspath(__file__))
LEAVES = [1, 2.5, "text", None, True, (1, 2), (), (torch.zeros(2), 3), b"bytes", torch.Size([1]), {1, 2}]


def node(rng, depth):
    kind = rng.choice(["tensor", "leaf", "leaf", "dict", "ordered", "list", "list", "numbers", "empty"] if depth else ["tensor", "leaf"])
    if kind == "tensor":
        return torch.full((rng.randrange(3), 2), 1.0)
    if kind == "leaf":
        return rng.choice(LEAVES)
    if kind == "numbers":
        return [rng.randrange(9) for _ in range(rng.randrange(4))] + [[rng.randrange(9)]] * rng.randrange(2)
    if kind == "empty":
        return rng.choice([{}, [], [[]], [{}], collections.OrderedDict()])
    if kind == "list":
        return [node(rng, depth - 1) for _ in range(rng.randrange(4))]
    make = dict if kind == "dict" else collections.OrderedDict
    return make((rng.choice([f"key{i}", i, f"k.{i}"]), node(rng, depth - 1)) for i in range(rng.randrange(4)))


def main():
    rng = random.Random(7)
    state = {f"case{i}": node(rng, 5) for i in range(250)}
    torch.save(state, os.path.join(HERE, "torch_flatten.pt"))
    flat, paths = flatten_state_dict(state)
    with open(os.path.join(HERE, "torch_flatten.txt"), "w") as f:
        for fqn, path in paths.items():
            items = " ".join(f"i:{p}" if isinstance(p, int) else f"k:{p}" for p in path)
            tensor = isinstance(flat[fqn], torch.Tensor)
            f.write(f"{'t' if tensor else 'o'} {items} = {'tensor' if tensor else type(flat[fqn]).__name__}\n")


if __name__ == "__main__":
    main()
