"""First states of optimizers as real PyTorch leaves them, bit for bit, for tests/optim: python tests/golden/make_first_states.py

first_states.json (row A8): _init_optim_state of torch.distributed.checkpoint.state_dict on the CPU. A case has the algorithm, the
param group's options, the default dtype, and by dtype of the parameter its elements and those of each state as hexadecimal bytes.
The elements are many enough for vectorized kernels and their tails; some are zeros of both signs, tiny and large.
"""
import json
import os
import sys
import warnings

warnings.filterwarnings("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import torch
from torch.distributed.checkpoint.state_dict import _init_optim_state

from make_optim import encode

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128]
SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
HALVES = FLOATS[2:]
SIZE, WHOLE_VECTORS = 23, 64  # zeros have another sign in tails where they are maximized without a beta


def tensor(value, dtype):
    return torch.tensor(value, dtype=dtype)


def pair(a, b, dtype):
    return tensor(a, dtype), tensor(b, dtype)


CASES = [
    (SGD, {"momentum": 0.9, "weight_decay": 0.1}), (SGD, {"momentum": 0.5, "weight_decay": 0.3, "maximize": True, "foreach": True}),
    (SGD, {"momentum": 0.9, "maximize": True}), (SGD, {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True, "fused": True}),
    (SGD, {"momentum": 0.9, "maximize": True, "fused": True}), (SGD, {"weight_decay": 0.1}),
    (Adam, {"weight_decay": 0.1}), (Adam, {"weight_decay": 1, "betas": (0.3, 0.7)}), (Adam, {"weight_decay": 0.3, "betas": (0.0, 0.0)}),
    (Adam, {"weight_decay": 0.3, "betas": (0.5, 0.25), "amsgrad": True}), (Adam, {"weight_decay": 0.07, "foreach": True, "amsgrad": True}),
    (Adam, {"weight_decay": 0.07, "foreach": True, "betas": (0.1, 0.7), "maximize": True}), (Adam, {"weight_decay": 0.1, "maximize": True}),
    (Adam, {"weight_decay": 0.1, "fused": True, "amsgrad": True}), (Adam, {"weight_decay": 0.3, "fused": True, "betas": (0.2, 0.7), "maximize": True}),
    (Adam, {"weight_decay": 0.3, "betas": (torch.tensor(0.3), torch.tensor(0.7)), "amsgrad": True, "foreach": False}),
    (Adam, {"weight_decay": 0.07, "betas": (torch.tensor([0.9]), torch.tensor([0.999])), "foreach": False, "maximize": True}),
    (Adam, {"weight_decay": 0.1, "betas": (torch.tensor(0.55, dtype=torch.float64), torch.tensor(0.95, dtype=torch.float64)), "foreach": False}),
    (Adam, {"weight_decay": torch.tensor(0.3), "betas": (0.6, 0.8), "foreach": False}),
    *[(Adam, {"weight_decay": 0.3, "betas": pair(0.3, 0.7, dtype), "foreach": False, "maximize": dtype is torch.float16}) for dtype in HALVES],
    *[(Adam, {"weight_decay": 0.07, "betas": pair([0.9], [0.96], dtype), "amsgrad": True}) for dtype in HALVES],
    *[(Adam, {"weight_decay": 0.1, "betas": (tensor(0.37, a), tensor(0.83, b)), "foreach": False}) for a in FLOATS for b in FLOATS if a != b],
    *[(Adam, {"weight_decay": tensor(0.3, dtype), "betas": pair(0.61, 0.77, dtype), "fused": True}) for dtype in FLOATS],
    *[(make, {"weight_decay": tensor(0.3, dtype), **more}) for dtype in FLOATS for make, more in ((Adam, {"foreach": True}), (SGD, {"momentum": tensor(0.3, dtype)}))],
    (Adam, {"weight_decay": tensor(1, torch.int32), "betas": pair(0, 0, torch.int64), "amsgrad": tensor(False, torch.bool)}),
    (Adam, {"weight_decay": 0.1, "betas": (tensor(0, torch.uint8), tensor(0.5, torch.float16)), "amsgrad": tensor(True, torch.bool)}),
    (SGD, {"momentum": tensor(0.0, torch.bfloat16), "weight_decay": 0.1}), (SGD, {"momentum": 0.9, "maximize": tensor(False, torch.bool)}),
    (Adam, {"maximize": True}), (Adam, {"maximize": True, "betas": (0.0, 0.5)}, WHOLE_VECTORS),
    (Adam, {"maximize": True, "betas": pair(0.001, 0.5, torch.bfloat16), "weight_decay": 0.1}, WHOLE_VECTORS),
    (AdamW, {"maximize": True, "betas": pair(0.0, 0.5, torch.float64)}, WHOLE_VECTORS), (Adam, {"maximize": True, "betas": (0.0, 0.0), "fused": True}, WHOLE_VECTORS),
    (AdamW, {"weight_decay": 0.1, "amsgrad": True}), (AdamW, {"fused": True}),
]


def elements(dtype, size):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(size, generator=generator, dtype=torch.float64)
    x[3], x[7], x[11], x[15] = 0.0, -0.0, 1e-6, -300.0
    if dtype.is_complex:
        x = torch.complex(x, torch.randn(size, generator=generator, dtype=torch.float64))
    return x.to(dtype)


def hexed(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes().hex()


def case(make, options, default, size=SIZE):
    torch.set_default_dtype(default)
    record = {"algorithm": make.__name__, "default": str(default).removeprefix("torch."), "params": []}
    for dtype in DTYPES:
        if options.get("fused") and (dtype.is_complex or (make is SGD and dtype.itemsize == 2)):
            continue  # no kernel; and one whose vectors round other than its tails
        p = torch.nn.Parameter(elements(dtype, size))
        optim = make([p], lr=0.5, **options)
        before = hexed(p)
        _init_optim_state(optim)
        record["options"] = encode({k: v for k, v in optim.param_groups[0].items() if k != "params"})
        record["params"].append({"dtype": str(dtype).removeprefix("torch."), "elements": before, "state": [
            [k, str(v.dtype).removeprefix("torch."), hexed(v)] for k, v in optim.state[p].items()]})
    torch.set_default_dtype(torch.float32)
    return record


if __name__ == "__main__":
    cases = [case(*c[:2], torch.float32, *c[2:]) for c in CASES] + [case(*c[:2], torch.float64, *c[2:]) for c in CASES if c[0] is not SGD][-2:]
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    with open(os.path.join(HERE, "first_states.json"), "w") as f:
        f.write('{"torch":"%s","cases":[\n%s\n]}\n' % (torch.__version__, lines))
