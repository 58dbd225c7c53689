"""Random module trees: nesting, shared modules and tensors, frozen parameters, buffers, extra state, and the wrappers that
rename what they wrap."""
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper, offload_wrapper

NAMES = ["weight", "bias", "fc", "fc1", "a", "b", "layers", "0", "1", "state", "step", "module", "emb", "norm", "x-y", "exp_avg"]
FLOATS = [torch.float32] * 6 + [torch.bfloat16, torch.float16, torch.float64, torch.complex64]
BUFFERS = [torch.float32, torch.int64, torch.bool, torch.uint8, torch.bfloat16, torch.float64]


class Node(nn.Module):
    pass


class ExtraNode(Node):
    """A module with state of its own."""
    kept = None

    def get_extra_state(self):
        return self.kept

    def set_extra_state(self, state):
        self.kept = state


class Kit:
    """What a tree may hold. `plain`: nothing that sharding strategies refuse by themselves."""

    def __init__(self, rng, plain, dtype=None, shared=True, frozen=True, shared_modules=True, compiled=True, wrappers=0.2):
        self.rng, self.plain, self.dtype = rng, plain, dtype
        self.shared, self.frozen, self.shared_modules, self.compiled = shared, frozen, shared_modules, compiled
        self.parameters, self.buffers, self.modules = [], [], []
        self.wrappers = wrappers
        self.wide = None  # a stream of its own for what only wide draws have
        self.sizes, self.tp_dims = [1, 2, 3, 4, 5, 7], [0, 1, 2]

    def chance(self, of):
        return self.rng.random() < of

    def shape(self):
        low = 0 if self.plain else 1
        return [self.rng.choice(self.sizes + [0] * (self.plain and self.chance(0.1))) for _ in range(self.rng.choice([low, 1, 1, 2, 2, 2, 3]))]

    def parameter(self):
        if self.shared and self.parameters and self.chance(0.12):
            return self.rng.choice(self.parameters)
        dtype = self.dtype or self.rng.choice(FLOATS)
        made = nn.Parameter(torch.zeros(self.shape(), dtype=dtype), requires_grad=not (self.frozen and self.chance(0.15)))
        self.parameters.append(made)
        return made

    def buffer(self):
        if self.shared and self.buffers and self.chance(0.12):
            return self.rng.choice(self.buffers)
        made = torch.zeros(self.shape(), dtype=self.rng.choice(BUFFERS))
        self.buffers.append(made)
        return made

    def extra(self):
        number = self.rng.randrange(100)
        return self.rng.choice([{"steps": number}, {"steps": number, "note": "text"}, {"scale": number / 8}, {"at": torch.full((2,), float(number))}])


def names(kit, count, depth):
    """Not `module` in what DDP wraps: PyTorch renames keys in place, and one of two that meet is lost."""
    return kit.rng.sample([n for n in NAMES if depth or n != "module"], count)


def wrapped(kit, module):
    if not kit.chance(kit.wrappers):
        return module
    how = kit.rng.choice([*[torch.compile] * kit.compiled, checkpoint_wrapper, checkpoint_wrapper, offload_wrapper])
    return how(module)


def tree(kit, depth=0):
    """A module with what is below it, not wrapped itself."""
    module = ExtraNode() if kit.chance(0.15) else Node()
    if isinstance(module, ExtraNode):
        module.kept = kit.extra()
    parameters = kit.rng.choice([1, 2, 2, 3] if depth == 0 else [0, 1, 1, 2])
    buffers = kit.rng.choice([0, 0, 1, 2])
    children = kit.rng.choice([1, 2, 3] if depth == 0 else [0, 0, 1, 2]) if depth < 3 else 0
    free = names(kit, parameters + buffers + children, depth)
    for name in free[:parameters]:
        module.register_parameter(name, kit.parameter())
    for name in free[parameters:parameters + buffers]:
        module.register_buffer(name, kit.buffer(), persistent=kit.chance(0.75))
    if kit.wide and kit.wide.random() < 0.3:
        twice(kit, module, f"d{depth}")
    for name in free[parameters + buffers:]:
        if kit.shared and kit.shared_modules and kit.modules and kit.chance(0.1):
            module.add_module(name, kit.rng.choice(kit.modules))
            continue
        child = wrapped(kit, tree(kit, depth + 1))
        kit.modules.append(child)
        module.add_module(name, child)
    return module


def twice(kit, module, name):
    """A parameter as a buffer, or one buffer under two names of which only the first, the second or both are persistent."""
    if kit.parameters and kit.wide.random() < 0.5:
        module.register_buffer(name, kit.wide.choice(kit.parameters), persistent=kit.wide.random() < 0.7)
        return
    same = torch.zeros(kit.wide.choice([1, 2, 3]), dtype=kit.wide.choice([torch.float32, torch.int64]))
    for end in "ab":
        module.register_buffer(name + end, same, persistent=kit.wide.random() < 0.6)


def model(kit):
    """A tree with at least one parameter that can be trained."""
    root = tree(kit)
    if not any(p.requires_grad for p in root.parameters()):
        next(root.parameters()).requires_grad = True
    return root
