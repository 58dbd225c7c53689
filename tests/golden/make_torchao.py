"""Writes tests/golden/torchao: a model with quantized weights as torch.save and DCP have them,
and what torchao's dequantize makes of some of them.

Usage: python tests/golden/make_torchao.py    in an environment that has torchao

Made with torch 2.13.0 and torchao 0.18.0 on CPU.
"""
import pathlib
import shutil

import torch
import torch.distributed.checkpoint as dcp
from torchao.quantization import Float8Tensor, Int8Tensor
from torchao.quantization.granularity import PerRow

HERE = pathlib.Path(__file__).resolve().parent / "torchao"


def ramp(seed, *shape):
    return (torch.arange(torch.Size(shape).numel()) * 0.5 + seed).reshape(shape).to(torch.bfloat16)


def scaled():
    """What --dequantize reads: scales of rows, the tensor, blocks and groups, with and without a scale of the tensor."""
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
    from torchao.quantization.granularity import PerBlock, PerTensor
    torch.manual_seed(20)
    x = [torch.randn(24, 64).bfloat16() for _ in range(5)]
    return {"row": Float8Tensor.from_hp(x[0], granularity=PerRow()), "tensor": Float8Tensor.from_hp(x[1], granularity=PerTensor()),
            "block": Float8Tensor.from_hp(torch.randn(256, 384).bfloat16(), granularity=PerBlock([128, 128])),
            "nvfp4": NVFP4Tensor.to_nvfp4(x[2], per_tensor_scale=per_tensor_amax_to_scale(x[2].abs().max())),
            "nvfp4_alone": NVFP4Tensor.to_nvfp4(x[3]), "mxfp8": MXTensor.to_mx(x[4], torch.float8_e4m3fn, 32)}


def refused():
    """What it refuses by name."""
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    x = ramp(5, 128, 64)
    return {"int8": Int8Tensor.from_hp(x, PerRow()), "swizzled": NVFP4Tensor.to_nvfp4(x, is_swizzled_scales=True),
            "mxfp4": MXTensor.to_mx(x, torch.float4_e2m1fn_x2, 32), "transposed": NVFP4Tensor.to_nvfp4(x).t()}


def nf4():
    from torchao.quantization import NF4Tensor
    torch.manual_seed(21)
    torch.save({"weight": NF4Tensor.from_tensor(torch.randn(64, 64).bfloat16(), 64, 64), "bias": torch.ones(2)}, HERE / "nf4.pt")


def main():
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
    tensors, metadata = flatten_tensor_state_dict({"layer.weight": scaled()["row"], "layer.bias": ramp(7, 16)})
    save_file(tensors, HERE / "refused.safetensors", metadata=metadata)


if __name__ == "__main__":
    main()
