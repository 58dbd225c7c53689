"""Writes tests/golden/packed_fp4: weights in FP8 checkpoints of transformers that are not float8 with float scales, and their products; and
MXFP4 as compressed-tensors stores it.

Usage: python tests/golden/make_packed_fp4.py    in an environment that has the versions below.

Made with torch 2.13.0, transformers 5.23.0, compressed-tensors 0.20.0.

  scaled.safetensors     NAME and NAME_scale_inv: pairs of FP4 numbers in int8 with one E8M0 exponent per 32 numbers, in float8_e8m0fnu or
                         in uint8; and float8 numbers in blocks whose exponents are E8M0 in uint8
  products.safetensors   NAME as Fp8Dequantize computes it, in float32
  compressed.safetensors           NAME_packed and NAME_scale, both uint8, as compressed-tensors stores MXFP4
  compressed-bfloat16.safetensors  NAME as its MXFP4PackedCompressor.decompress computes it; it knows bfloat16 only
"""
import pathlib
import shutil

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent / "packed_fp4"


def exponents(*shape):
    return torch.randint(90, 160, shape, dtype=torch.uint8)


def weights():
    """NAME -> numbers and scales."""
    torch.manual_seed(29)
    every = torch.arange(-128, 128, dtype=torch.int8).reshape(16, 16)
    return {"every.weight": (every, exponents(16, 1).view(torch.float8_e8m0fnu)),
            "wide.weight": (torch.randint(-128, 128, (3, 5 * 16), dtype=torch.int8), exponents(3, 5)),
            "experts.gate_up_proj": (torch.randint(-128, 128, (3, 7, 48), dtype=torch.int8), exponents(3, 7, 3).view(torch.float8_e8m0fnu)),
            "block.weight": (torch.randn(256, 128).to(torch.float8_e4m3fn), exponents(2, 1)),
            "group.weight": (torch.randn(5, 96).to(torch.float8_e4m3fn), exponents(5, 3))}


def compressed():
    torch.manual_seed(31)
    return {"every.weight": (torch.arange(256).to(torch.uint8).reshape(16, 16), exponents(16, 1)),
            "scales.weight": (torch.arange(254 * 16).to(torch.uint8).reshape(254, 16), torch.arange(254).to(torch.uint8)[:, None]),
            "wide.weight": (torch.randint(0, 256, (3, 5 * 16), dtype=torch.uint8), exponents(3, 5))}


def by_compressed_tensors(numbers, scales):
    from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
    from compressed_tensors.quantization.quant_scheme import MXFP4, QuantizationScheme
    scheme = QuantizationScheme(targets=["Linear"], **MXFP4)
    return MXFP4PackedCompressor.decompress({"weight_packed": numbers, "weight_scale": scales}, scheme)["weight"]


def main():
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize
    if HERE.exists():
        shutil.rmtree(HERE)
    HERE.mkdir()
    made = weights()
    save_file({k: x for k, (x, _) in made.items()} | {k + "_scale_inv": s for k, (_, s) in made.items()}, HERE / "scaled.safetensors")
    operation = Fp8Dequantize(None)
    save_file({k: operation._dequantize_one(x, s, torch.float32) for k, (x, s) in made.items()}, HERE / "products.safetensors")
    made = compressed()
    save_file({k + e: v for k, x in made.items() for e, v in zip(("_packed", "_scale"), x)}, HERE / "compressed.safetensors")
    save_file({k: by_compressed_tensors(*x).contiguous() for k, x in made.items()}, HERE / "compressed-bfloat16.safetensors")


if __name__ == "__main__":
    main()
