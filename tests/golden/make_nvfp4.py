"""Writes tests/golden/nvfp4: NVFP4 weights as they are released, and what the libraries' own code makes of them.

Usage: python tests/golden/make_nvfp4.py    in an environment that has the versions below.

Made with torch 2.13.0, torchao 0.18.0, compressed-tensors 0.20.0.

  modelopt.safetensors             NAME in uint8, NAME_scale in float8_e4m3fn, NAME_scale_2 in float32, as ModelOpt stores them
  modelopt-float32.safetensors     NAME as torchao's NVFP4Tensor.dequantize computes it, in float32
  compressed.safetensors           NAME_packed, NAME_scale and NAME_global_scale, as compressed-tensors stores them
  compressed-bfloat16.safetensors  NAME as its NVFP4PackedCompressor.decompress computes it; it knows bfloat16 only
"""
import pathlib
import shutil

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent / "nvfp4"


def every_pair():
    """Each of the 16 numbers with each of the 256 scales, among them those that are NaN or negative."""
    numbers = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE], dtype=torch.uint8)
    return numbers.repeat(256, 1), torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)[:, None]


def random(*shape):
    numbers = torch.randint(0, 256, (*shape[:-1], shape[-1] // 2), dtype=torch.uint8)
    scales = torch.randint(0, 127, (*shape[:-1], shape[-1] // 16), dtype=torch.uint8)
    return numbers, scales.view(torch.float8_e4m3fn)


def quantized(x):
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
    made = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=per_tensor_amax_to_scale(x.abs().max()))
    return made.qdata, made.scale, made.per_tensor_scale


def modelopt():
    """NAME -> numbers, scales, scale of the tensor."""
    torch.manual_seed(23)
    out = {"every.weight": (*every_pair(), torch.tensor(0.0123)),
           "tiny.weight": (*every_pair(), torch.tensor(3e-41)),       # products that are subnormal, or 0
           "huge.weight": (*every_pair(), torch.tensor(3e37)),        # and infinite
           "lost.weight": (*random(2, 32), torch.tensor(float("nan"))),
           "whole.weight": quantized((torch.randn(33, 544) * 0.02).bfloat16()),  # more than is computed at once
           "row.weight": (*random(1, 16), torch.tensor([0.7])),
           "one.gate_up_proj": (*random(3, 5, 48), torch.tensor(-1.25)),
           "each.gate_up_proj": (*random(3, 79, 80), torch.rand(3, 1, 1))}
    assert len({tuple(x.flatten()[:8].tolist()) for x, _, _ in out.values()}) > 5
    return out


def by_torchao(numbers, scales, tensor_scale):
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    if tensor_scale.numel() == 1:
        tensor_scale = tensor_scale.reshape(())
    return NVFP4Tensor(numbers, scales, 16, torch.bfloat16, tensor_scale).dequantize(torch.float32)


def compressed():
    torch.manual_seed(24)
    return {"every.weight": (*every_pair(), torch.tensor([81.3])), "tiny.weight": (*every_pair(), torch.tensor([3e38])),
            "huge.weight": (*every_pair(), torch.tensor([3e-38])), "some.weight": (*random(7, 80), torch.tensor([1234.5]))}


def by_compressed_tensors(numbers, scales, global_scale):
    from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
    from compressed_tensors.quantization.quant_scheme import NVFP4, QuantizationScheme
    scheme = QuantizationScheme(targets=["Linear"], **NVFP4)
    state = {"weight_packed": numbers, "weight_scale": scales, "weight_global_scale": global_scale}
    return NVFP4PackedCompressor.decompress(state, scheme)["weight"]


def write(name, tensors):
    save_file({k: v.contiguous() for k, v in tensors.items()}, HERE / f"{name}.safetensors")


def main():
    if HERE.exists():
        shutil.rmtree(HERE)
    HERE.mkdir()
    stored = modelopt()
    write("modelopt", {k + e: v for k, x in stored.items() for e, v in zip(("", "_scale", "_scale_2"), x)})
    write("modelopt-float32", {k: by_torchao(*x) for k, x in stored.items()})
    stored = compressed()
    write("compressed", {k + e: v for k, x in stored.items() for e, v in zip(("_packed", "_scale", "_global_scale"), x)})
    write("compressed-bfloat16", {k: by_compressed_tensors(*x) for k, x in stored.items()})


if __name__ == "__main__":
    main()
