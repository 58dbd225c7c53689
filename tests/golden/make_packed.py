"""Writes tests/golden/packed: models of packed numbers as libraries store them, and what the libraries' own code makes of them.

Usage: python tests/golden/make_packed.py [DIRECTORY]    in an environment that has the versions below; DIRECTORY has compressed-tensors 0.10.2,
                                                      which is the last that knows orders by activation (pip install --no-deps --target)

Made with torch 2.13.0, compressed-tensors 0.20.1, bitsandbytes 0.50.2 on a CPU.

  NAME/model.safetensors   the stored tensors        NAME/config.json   what transformers would store with them
  NAME.safetensors         NAME.weight as decompress(), dequantize() or dequantize_4bit() computes it, in the library's dtype

The weights are random, and so are the shapes, of which few are multiples of a word. tests/interop/test_packed_numbers.py makes more of them."""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent / "packed"
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)  # of bitsandbytes' 4 bits


def pick(*of):
    return of[int(torch.randint(len(of), ()))]


def size(most):
    return int(torch.randint(1, most + 1, ()))


# ---- compressed-tensors ----

def scheme(bits, group, symmetric, **more):
    return {"targets": ["Linear"], "weights": {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group" if group else "channel", "group_size": group or None, **more}}


def compressed_module(bits, group, symmetric, shape, dtype):
    """Random numbers, scales and zero points, of all values, as the compressor stores them, and what it decompresses them to."""
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    low, high = -(1 << bits - 1), 1 << bits - 1
    groups = shape[-1] // group if group else 1
    stored = {"weight_packed": pack_to_int32(torch.randint(low, high, shape, dtype=torch.int8), bits),
              "weight_scale": (torch.randn(*shape[:-1], groups) / 50).to(dtype), "weight_shape": torch.tensor(shape)}
    if not symmetric:
        stored["weight_zero_point"] = pack_to_int32(torch.randint(low, high, (*shape[:-1], groups), dtype=torch.int8), bits, packed_dim=0).contiguous()
    args = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, strategy="group" if group else "channel", group_size=group or None)
    return stored, PackedQuantizationCompressor.decompress(dict(stored), QuantizationScheme(targets=["Linear"], weights=args))["weight"]


def compressed(count, bits_of=(4, 8)):
    tensors, want, groups = {}, {}, {}
    for i in range(count):
        bits, group, symmetric, dtype = pick(*bits_of), pick(0, 0, 8, 32), pick(True, False), pick(*FLOATS)
        columns = group * size(5) if group else 32 + size(70)
        shape = pick((size(40), columns), (size(40), columns), (size(3), size(20), columns))
        if not symmetric and len(shape) == 3:
            shape = (shape[0], max(shape[1], 2), columns)
        stored, weight = compressed_module(bits, group, symmetric, shape, dtype)
        tensors.update({f"l{i}.{k}": v for k, v in stored.items()})
        want[f"l{i}.weight"] = weight
        groups[f"group_{i}"] = scheme(bits, group, symmetric)
    config = {"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}}
    return tensors, config, want


def ordered(directory, count):
    """Columns in the order of their activations, which only older releases know."""
    sys.path.insert(0, directory)
    from compressed_tensors.compressors.quantized_compressors.pack_quantized import pack_to_int32
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    tensors, want = {}, {}
    for i in range(count):
        rows, groups, zeros = 8 * size(4), size(6), pick(True, False)
        index = torch.arange(groups).repeat_interleave(16)[torch.randperm(16 * groups)].int()
        numbers, scale = torch.randint(-8, 8, (rows, 16 * groups), dtype=torch.int8), (torch.randn(rows, groups) / 50).to(pick(*FLOATS))
        zero = torch.randint(-8, 8, (rows, groups), dtype=torch.int8) if zeros else None
        args = QuantizationArgs(num_bits=4, symmetric=not zeros, strategy="group", group_size=16)
        want[f"l{i}.weight"] = dequantize(numbers, scale, zero, args, g_idx=index)
        tensors.update({f"l{i}.weight_packed": pack_to_int32(numbers, 4), f"l{i}.weight_scale": scale, f"l{i}.weight_shape": torch.tensor(numbers.shape), f"l{i}.weight_g_idx": index})
        if zeros:
            tensors[f"l{i}.weight_zero_point"] = pack_to_int32(zero, 4, packed_dim=0).contiguous()
    config = {"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"a": scheme(4, 16, True), "b": scheme(4, 16, False)}}}
    return tensors, config, want


# ---- bitsandbytes ----

def dequantized_4bit(numbers, state):
    """What bitsandbytes makes of these numbers, by the kernel whose blocks are those of quantize_4bit, which go on from one row to the next.
    On processors with AVX-512, 0.50.2 has another one for rows of a multiple of 16 numbers. It takes the scale row · (columns // blocksize) +
    column // blocksize, which is that of another block wherever rows are not whole blocks: the weight that was quantized does not come
    back (the mean error doubles). It also makes 0 of FP4's code 8, of which this kernel makes -0. The same numbers in rows of two keep to
    this kernel; with blocks of 2048 and more they would not, so those are stated as several smaller ones. Rows of an odd length have a
    third implementation, in Python."""
    from bitsandbytes import functional as bnb
    if state.shape[-1] % 2:
        return bnb.dequantize_4bit(numbers, state)
    scale = state.absmax
    if state.nested:
        scale = bnb.dequantize_blockwise(scale, state.state2) + state.offset
    parts = max(state.blocksize // 1024, 1)
    rows = bnb.QuantState(absmax=scale.float().repeat_interleave(parts), shape=torch.Size((state.shape.numel() // 2, 2)), dtype=state.dtype,
                          blocksize=state.blocksize // parts, code=state.code, quant_type=state.quant_type)
    return bnb.dequantize_4bit(numbers, rows).view(state.shape)


def bitsandbytes(count):
    from bitsandbytes import functional as bnb
    tensors, want = {}, {}
    for i in range(count):
        shape, dtype, kind = pick((size(40), size(90)), (size(40), 2 * size(60)), (size(9), size(9), size(9))), pick(*FLOATS), pick("nf4", "fp4", "int8")
        weight = (torch.randn(shape) * pick(0.02, 3)).to(dtype)
        if kind == "int8":
            weight = weight.reshape(shape[0], -1)
            numbers, scale, _ = bnb.int8_vectorwise_quant(weight.half())
            tensors.update({f"l{i}.weight": numbers, f"l{i}.SCB": scale, f"l{i}.weight_format": torch.tensor(0, dtype=torch.uint8)})
            want[f"l{i}.weight"] = bnb.int8_vectorwise_dequant(numbers, scale)
            continue
        storage = pick(torch.uint8, torch.uint8, torch.bfloat16) if weight.numel() % 4 == 0 else torch.uint8
        numbers, state = bnb.quantize_4bit(weight, blocksize=pick(*BLOCKS), compress_statistics=pick(True, False), quant_type=kind, quant_storage=storage)
        tensors[f"l{i}.weight"] = numbers
        tensors.update({f"l{i}.weight.{k}": v for k, v in state.as_dict(packed=True).items()})
        want[f"l{i}.weight"] = dequantized_4bit(numbers, state)
    return tensors, {"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "bitsandbytes"}}, want


def write(directory, name, tensors, config, want):
    (directory / name).mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in tensors.items()}, directory / name / "model.safetensors", {"format": "pt"})
    (directory / name / "config.json").write_text(json.dumps(config))
    save_file({k: v.contiguous() for k, v in want.items()}, directory / f"{name}.safetensors", {"format": "pt"})


if __name__ == "__main__":
    torch.manual_seed(43)
    if len(sys.argv) > 1:
        write(HERE, "ordered", *ordered(sys.argv[1], 4))
    else:
        write(HERE, "compressed", *compressed(12))
        write(HERE, "bitsandbytes", *bitsandbytes(12))
