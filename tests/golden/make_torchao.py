"""Writes tests/golden/torchao: a model with quantized weights as torch.save and DCP have them,
and what torchao's dequantize makes of some of them.

Usage: python tests/golden/make_torchao.py    in an environment that has torchao
       python tests/golden/make_torchao.py affine    after it, in one that has a torchao with AffineQuantizedTensor

Made with torch 2.13.0 and torchao 0.18.0, affine.pt with torchao 0.13.0, on CPU.
"""
import pathlib
import shutil
import sys

import torch
import torch.distributed.checkpoint as dcp
from torchao.quantization.granularity import PerRow

HERE = pathlib.Path(__file__).resolve().parent / "torchao"


def ramp(seed, *shape):
    return (torch.arange(torch.Size(shape).numel()) * 0.5 + seed).reshape(shape).to(torch.bfloat16)


def scaled():
    """What --dequantize reads: scales of rows, the tensor, blocks and groups, with and without a scale of the tensor."""
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
    from torchao.quantization import Float8Tensor
    from torchao.quantization.granularity import PerBlock, PerTensor
    torch.manual_seed(20)
    x = [torch.randn(24, 64).bfloat16() for _ in range(5)]
    return {"row": Float8Tensor.from_hp(x[0], granularity=PerRow()), "tensor": Float8Tensor.from_hp(x[1], granularity=PerTensor()),
            "block": Float8Tensor.from_hp(torch.randn(256, 384).bfloat16(), granularity=PerBlock([128, 128])),
            "nvfp4": NVFP4Tensor.to_nvfp4(x[2], per_tensor_scale=per_tensor_amax_to_scale(x[2].abs().max())),
            "nvfp4_alone": NVFP4Tensor.to_nvfp4(x[3]), "mxfp8": MXTensor.to_mx(x[4], torch.float8_e4m3fn, 32)}


def integers():
    """Integers with and without zero points, in blocks of every shape, pairs of float4, and scales in tiles."""
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    from torchao.quantization import Int8Tensor, IntxUnpackedToInt8Tensor
    from torchao.quantization.granularity import PerAxis, PerBlock, PerGroup, PerTensor
    from torchao.quantization.quant_primitives import MappingType
    torch.manual_seed(22)
    made = {}
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "f16"), (torch.float32, "f32")):
        x = lambda *shape: (torch.randn(shape) + 0.3).to(dtype)
        int8 = lambda value, by, asymmetric=True: Int8Tensor.from_hp(value, by, mapping_type=MappingType.ASYMMETRIC if asymmetric else MappingType.SYMMETRIC)
        made |= {f"{name}.row": int8(x(8, 32), PerRow(), False), f"{name}.zero": int8(x(4, 1536), PerRow()), f"{name}.tensor": int8(x(8, 32), PerTensor()),
                 f"{name}.group": int8(x(8, 32), PerGroup(8)), f"{name}.block": int8(x(12, 32), PerBlock([4, 16])),
                 f"{name}.axis": int8(x(32, 32), PerAxis(1)), f"{name}.experts": int8(x(3, 8, 32), PerRow()),
                 f"{name}.int4": IntxUnpackedToInt8Tensor.from_hp(x(8, 32), (1, 16), torch.int4, mapping_type=MappingType.ASYMMETRIC),
                 f"{name}.between": IntxUnpackedToInt8Tensor(torch.randint(-8, 8, (8, 32), dtype=torch.int8), torch.rand(8, 2).to(dtype),
                                                             (torch.randn(8, 2) * 3).to(dtype), torch.int4, (1, 16), dtype, None)}
        if dtype != torch.float16:
            made |= {f"{name}.mxfp4": MXTensor.to_mx(x(8, 64), torch.float4_e2m1fn_x2, 32),
                     f"{name}.tiled_nvfp4": NVFP4Tensor.to_nvfp4(x(136, 80), is_swizzled_scales=True),
                     f"{name}.tiled_mxfp8": MXTensor.to_mx(x(136, 160), torch.float8_e4m3fn, 32, is_swizzled_scales=True)}
    return made


def own(x, dtype=None):
    """What the class makes of a weight, in its own dtype or another one."""
    if not hasattr(x, "dequantize") or not hasattr(x, "qdata"):
        return x if dtype is None else x.to(dtype)
    return x.dequantize() if dtype is None else x.dequantize().to(dtype) if "Intx" in type(x).__name__ else x.dequantize(dtype)


def refused():
    """What it refuses by name."""
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    from torchao.quantization import Int4Tensor
    x = ramp(5, 128, 64)
    return {"transposed": NVFP4Tensor.to_nvfp4(x).t(), "int4": Int4Tensor(torch.arange(64, dtype=torch.int8).reshape(8, 8), torch.ones(1, 8), torch.zeros(1, 8), [1, 16], (8, 16))}


def affine():
    """What torchao wrote before it had a class per form."""
    from torchao.quantization import PerGroup, quantize_
    from torchao.quantization.quant_api import (IntxWeightOnlyConfig, float8_weight_only, int8_dynamic_activation_int4_weight,
                                                int8_dynamic_activation_int8_weight, int8_weight_only, uintx_weight_only)
    torch.manual_seed(23)
    made, plain = {}, {}
    for name, config, dtype in (("row", int8_weight_only(), torch.bfloat16), ("row32", int8_weight_only(), torch.float32),
                                ("group", int8_weight_only(group_size=16), torch.bfloat16), ("both", int8_dynamic_activation_int8_weight(), torch.float16),
                                ("int4", int8_dynamic_activation_int4_weight(group_size=16), torch.bfloat16),
                                ("intx", IntxWeightOnlyConfig(torch.int4, PerGroup(16)), torch.bfloat16), ("refused", uintx_weight_only(torch.uint4, group_size=16, pack_dim=-1), torch.bfloat16)):
        layer = torch.nn.Linear(32, 8).to(dtype)
        quantize_(layer, config)
        made[name] = layer.weight.data
        weight = getattr(layer.weight, "original_weight_tensor", layer.weight)
        plain[name] = weight.dequantize()
    torch.save(made, HERE / "affine.pt")
    del plain["refused"]
    torch.save(plain, HERE / "affine-own.pt")


def nf4():
    from torchao.quantization import NF4Tensor
    torch.manual_seed(21)
    torch.save({"weight": NF4Tensor.from_tensor(torch.randn(64, 64).bfloat16(), 64, 64), "bias": torch.ones(2)}, HERE / "nf4.pt")


def main():
    if sys.argv[1:] == ["affine"]:
        return affine()
    from torchao.quantization import Float8Tensor, Int8Tensor
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    state = {"first": Float8Tensor.from_hp(ramp(1, 16, 32), granularity=PerRow()), "second": Int8Tensor.from_hp(ramp(2, 8, 64), PerRow()),
             "large": Float8Tensor.from_hp(ramp(3, 64, 64), granularity=PerRow()), "bias": ramp(4, 16), "norm": torch.ones(5) * 3}
    torch.save(state, HERE / "model.pt")
    dcp.save(state, checkpoint_id=HERE / "dcp", no_dist=True)
    state = {**scaled(), "bias": ramp(6, 16)}
    torch.save(state, HERE / "scaled.pt")
    dcp.save(state, checkpoint_id=HERE / "scaled_dcp", no_dist=True)
    torch.save({n: x.dequantize(torch.float32) if hasattr(x, "qdata") else x.float() for n, x in state.items()}, HERE / "scaled-float32.pt")
    for name, x in refused().items():
        torch.save({name: x}, HERE / f"refused-{name}.pt")
    nf4()
    from safetensors.torch import save_file
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    state = {**{f"m.{n}": x for n, x in integers().items()}, "m.bias": ramp(7, 16)}
    torch.save(state, HERE / "integers.pt")
    dcp.save({n: x for n, x in state.items() if "Intx" not in type(x).__name__}, checkpoint_id=HERE / "integers_dcp", no_dist=True)
    tensors, metadata = flatten_tensor_state_dict(state)
    save_file(tensors, HERE / "integers.safetensors", metadata=metadata)
    save_file(flatten_tensor_state_dict({"layer.weight": scaled()["row"]})[0], HERE / "refused.safetensors", metadata={"format": "pt"})
    torch.save({n: own(x) for n, x in state.items()}, HERE / "integers-own.pt")
    torch.save({n: own(x, torch.float32) for n, x in state.items()}, HERE / "integers-float32.pt")


if __name__ == "__main__":
    main()
