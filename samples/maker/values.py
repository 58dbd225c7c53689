"""Tensors and objects of every kind, for the samples that show them all."""
import collections
import enum
import random

import numpy
import torch

DTYPES = ("float64 float32 float16 bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 "
          "int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool complex128 complex64 complex32 bits8 bits16 bits1x8 bits2x4 bits4x2").split()

Range = collections.namedtuple("Range", ["low", "high"])


class Color(enum.Enum):
    RED = 1


class Config:
    """A class of one's own, as training scripts leave them in checkpoints."""

    def __init__(self):
        self.width, self.names = 8, ["a", "b"]


def of_dtype(name):
    """A [3, 4] tensor whose bytes count up, so that a swapped or shifted byte shows; 0 and 1 only for bool."""
    dtype = getattr(torch, name)
    count = 12 * dtype.itemsize
    raw = torch.arange(count, dtype=torch.int32).add(1).to(torch.uint8)
    return (raw % 2 if name == "bool" else raw).view(dtype).reshape(3, 4)


def every_dtype():
    return {name: of_dtype(name) for name in DTYPES}


def views():
    """Tensors whose bytes are not simply their storage's."""
    base = torch.arange(60, dtype=torch.float32).reshape(5, 12)
    spectrum = torch.arange(6, dtype=torch.float32).reshape(2, 3) * (1 + 2j)
    counting = torch.arange(16, dtype=torch.uint8)
    return {
        "base": base, "transposed": base.t(), "rows": base[1:4], "strided": base[::2, 1::3], "last_element": base[4, 11],
        "expanded": torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1).expand(3, 4), "expanded_scalar": torch.tensor(7.0).expand(2, 5),
        "as_strided": base.as_strided((4, 3), (1, 2), 5), "permuted": torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
        "channels_last": torch.arange(48, dtype=torch.float16).reshape(2, 3, 2, 4).contiguous(memory_format=torch.channels_last),
        "conj": spectrum.conj(), "conj_transposed": spectrum.mH, "neg": torch.conj(spectrum.clone()).imag, "real_part": spectrum.clone().real,
        "bytes": counting, "same_bytes_as_float8": counting.view(torch.float8_e4m3fn)[4:12],
    }


def sizes():
    return {"scalar": torch.tensor(2.5), "scalar_int": torch.tensor(-7), "one": torch.ones(1), "empty": torch.empty(0), "empty_rows": torch.empty(0, 4),
            "empty_columns": torch.empty(3, 0, dtype=torch.int64), "many_dims": torch.arange(8.0).reshape(1, 2, 1, 2, 1, 2, 1),
            "special": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45])}


def plain_objects():
    """Objects that need no class beyond those every loader knows."""
    return {
        "none": None, "true": True, "false": False, "zero": 0, "small": -1, "int32_edge": 2**31, "int53_edge": 2**53, "big": 2**53 + 1, "huge": -(2**200) - 7,
        "float": 0.1, "tiny": 5e-324, "minus_zero": -0.0, "inf": float("inf"), "minus_inf": -float("inf"), "nan": float("nan"), "complex": 1.5 - 2j,
        "str": "héllo\n\0 \U0001f600", "empty_str": "", "long_str": "x" * 300, "bytes": b"\x00\xff\x80", "empty_bytes": b"",
        "list": [1, 2.5, "x", None, [3, [4]]], "empty_list": [], "tuple": (1, "two", (3.0,)), "empty_tuple": (), "empty_dict": {},
        "nested": {"a": {"b": {"c": 1}}, "list_of_dicts": [{"x": 1}, {"y": [2]}], "list_with_tensor": [torch.ones(2), 5], "tuple_with_tensor": (torch.zeros(2), 5)},
        "int_keys": {0: "zero", 7: {8: "eight"}}, "shared_twice": SHARED_LIST, "shared_again": SHARED_LIST,
        "size": torch.Size([2, 3]), "dtype": torch.bfloat16, "device": torch.device("cpu"), "ordered": collections.OrderedDict(z=1, a=2),
        "dotted.key": 1, "": "empty key", "key with spaces / [0]*?": "odd key",
    }


SHARED_LIST = [1, 2]


def class_objects():
    """Objects that only an unrestricted pickle loader can build."""
    return {"set": {1, 2}, "frozenset": frozenset("a"), "bytearray": bytearray(b"ab"), "namedtuple": Range(1, 2.5), "enum": Color.RED, "config": Config(),
            "class_itself": Config, "function": of_dtype, "counter": collections.Counter("aab"), "defaultdict": collections.defaultdict(list, {"k": [1]}),
            "slice": slice(1, None, 2), "range": range(3), "ndarray": numpy.arange(6, dtype=numpy.int16).reshape(2, 3), "npfloat": numpy.float64(0.25),
            "list_of_namedtuples": [Range(0, 1), Range(2, 3)]}


def scheduler_state():
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    one = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=2)
    two = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
    both = torch.optim.lr_scheduler.SequentialLR(optimizer, [one, two], milestones=[2])
    parameter.grad = torch.ones(2)
    optimizer.step()
    both.step()
    return {"sequential": both.state_dict(), "optimizer": optimizer.state_dict()}


def rng_states():
    return {"torch": torch.get_rng_state(), "numpy": numpy.random.get_state(), "python": random.getstate()}
