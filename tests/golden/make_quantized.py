"""Writes tests/golden/quantized: weights, what transformers' Fp8Quantize makes of them, and which modules of models it is for.

Usage: python tests/golden/make_quantized.py    in an environment that has the versions below.

Made with torch 2.13.0, transformers 5.23.0.

  weights.safetensors     floating-point weights of several dtypes and sizes
  fp8-block.safetensors   the numbers and their weight_scale_inv; where a size is not a multiple of 128, Fp8Quantize leaves a weight
                          alone, so it is given the weight filled up with zeros, and the numbers are cut to size again
  modules.json            for the models of tests/golden/maps: the modules that transformers replaces by FP8Linear and FP8Experts
"""
import json
import pathlib
import shutil
import types

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent / "quantized"


def weights():
    torch.manual_seed(11)
    extremes = torch.randn(5, 400)
    extremes[:, :128] *= 1e-30
    extremes[:, 128:256] *= 1e30
    extremes[:, 256:384] = 0
    return {
        "whole.weight": torch.randn(256, 128).bfloat16(),
        "tall.weight": (torch.randn(300, 5) * 3).bfloat16(),
        "wide.weight": torch.randn(3, 300).half(),
        "double.weight": torch.randn(130, 4, dtype=torch.float64),
        "extremes.weight": extremes,
        "negative.weight": -torch.rand(7, 129),
    }


def fill_up(x):
    rows, columns = (-(-n // 128) * 128 for n in x.shape)
    out = torch.zeros(rows, columns, dtype=x.dtype)
    out[:x.shape[0], :x.shape[1]] = x
    return out


def quantize(tensors):
    from transformers.integrations.finegrained_fp8 import Fp8Quantize
    from transformers.utils.quantization_config import FineGrainedFP8Config
    operation = Fp8Quantize(types.SimpleNamespace(quantization_config=FineGrainedFP8Config()))
    out = {}
    for name, x in tensors.items():
        made = operation.convert({name: fill_up(x)})
        out[name] = made[name][:x.shape[0], :x.shape[1]].contiguous()
        out[name + "_scale_inv"] = made[name + "_scale_inv"]
    return out


def modules(config):
    import transformers as tf
    from transformers.integrations.finegrained_fp8 import FP8Experts, FP8Linear, replace_with_fp8_linear
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import FineGrainedFP8Config
    with torch.device("meta"):
        model = tf.AutoModelForCausalLM.from_config(config)
    skipped = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    replace_with_fp8_linear(model, skipped, FineGrainedFP8Config())
    return {"linear": [n for n, m in model.named_modules() if isinstance(m, FP8Linear)],
            "experts": [n for n, m in model.named_modules() if isinstance(m, FP8Experts)]}


def main():
    import make_maps
    if HERE.exists():
        shutil.rmtree(HERE)
    HERE.mkdir()
    tensors = weights()
    save_file(tensors, HERE / "weights.safetensors")
    save_file(quantize(tensors), HERE / "fp8-block.safetensors")
    with open(HERE / "modules.json", "w") as f:
        json.dump({name: modules(config) for name, config in make_maps.configs()}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
