"""Data, peers and checks of map_jobs.py: map_peers.py FUNCTION ARG… Peers print {"wall": s, "cpu": s} of the call itself."""
import json
import os
import sys

import torch
from safetensors.torch import load_file, safe_open, save_file

from peers import timed

NAME = "model.safetensors"
GROUP = {"mxfp4": 32, "nvfp4": 16}


def write_directory(path, tensors, **config):
    """As models are on the Hub: the file, its index, config.json."""
    os.makedirs(path)
    save_file(tensors, os.path.join(path, NAME), metadata={"format": "pt"})
    for name, document in (("model.safetensors.index.json", {"metadata": {}, "weight_map": {n: NAME for n in tensors}}), ("config.json", config)):
        with open(os.path.join(path, name), "w") as f:
            json.dump(document, f)


def random(*shape):
    return (torch.rand(*shape) - 0.5).bfloat16()


def make_experts(path, layers=10, experts=32, hidden=1024, width=1024):
    """2 GB: experts one by one as on the Hub, and what a layer has otherwise."""
    torch.manual_seed(22)
    tensors = {f"layers.{i}.experts.{e}.{name}": random(*((hidden, width) if name == "down" else (width, hidden)))
               for i in range(layers) for e in range(experts) for name in ("gate", "up", "down")}
    write_directory(path, {**tensors, **{f"layers.{i}.attention": random(2 * hidden, hidden) for i in range(layers)}})


def stack_experts(source, dest):
    def convert():
        tensors = load_file(os.path.join(source, NAME))
        out = {n: x for n, x in tensors.items() if "experts" not in n}
        layers, experts = (1 + max(int(n.split(".")[at]) for n in tensors if "experts" in n) for at in (1, 3))
        for i in range(layers):
            parts = [[tensors[f"layers.{i}.experts.{e}.{name}"] for e in range(experts)] for name in ("gate", "up", "down")]
            out[f"layers.{i}.gate_up"] = torch.stack([torch.cat(pair) for pair in zip(*parts[:2])]).transpose(1, 2).contiguous()
            out[f"layers.{i}.down"] = torch.stack(parts[2]).transpose(1, 2).contiguous()
        save_file(out, dest)
    timed(convert)


def make_quantized(path, scheme, count=20, rows=4096, columns=12288):
    """1 GB of FP8, or half of it in packed pairs: 2 GB of bfloat16."""
    torch.manual_seed(23)
    tensors = {}
    for i in range(count):
        name = f"layers.{i}.weight"
        if scheme == "fp8-block":
            tensors[name] = (torch.randn(rows, columns) * 30).to(torch.float8_e4m3fn)
            tensors[name + "_scale_inv"] = torch.rand(rows // 128, columns // 128)
            continue
        groups = columns // GROUP[scheme]
        pairs = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
        if scheme == "mxfp4":
            tensors[name + "_blocks"] = pairs.view(rows, groups, 16)[None]
            tensors[name + "_scales"] = torch.randint(110, 135, (1, rows, groups), dtype=torch.uint8)
        else:
            tensors[name] = pairs
            tensors[name + "_scale"] = (torch.rand(rows, groups) * 400).to(torch.float8_e4m3fn)
            tensors[name + "_scale_2"] = torch.tensor(0.0123)
    write_directory(path, tensors)


def words(*shape):
    return torch.randint(-1 << 31, 1 << 31, shape, dtype=torch.int64).int()


def scales(*shape):
    return (torch.rand(*shape) / 50 + 0.001).half()


def by_compressed_tensors(rows, columns):
    return {"weight_packed": words(rows, columns // 8), "weight_scale": scales(rows, columns // 128).bfloat16(), "weight_shape": torch.tensor([rows, columns])}


def by_gptq(rows, columns, ordered=False):
    groups = torch.arange(columns) // 128
    return {"qweight": words(columns // 8, rows), "qzeros": words(columns // 128, rows // 8), "scales": scales(columns // 128, rows),
            "g_idx": (groups[torch.randperm(columns)] if ordered else groups).int()}


def by_awq(rows, columns):
    return {"qweight": words(columns, rows // 8), "qzeros": words(columns // 128, rows // 8), "scales": scales(columns // 128, rows)}


def by_bitsandbytes(rows, columns, kind):
    state = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": [rows, columns]}
    if kind == "nf4":
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.02}
    blocks = rows * columns // 64
    nested = {"weight.absmax": torch.randint(0, 256, (blocks,), dtype=torch.uint8), "weight.nested_absmax": torch.rand(blocks // 256), "weight.nested_quant_map": torch.rand(256)}
    return {"weight": torch.randint(0, 256, (rows * columns // 2, 1), dtype=torch.uint8), "weight.quant_map": torch.rand(16),
            f"weight.quant_state.bitsandbytes__{kind}": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
            **(nested if kind == "nf4" else {"weight.absmax": torch.rand(blocks)})}


def by_llm_int8(rows, columns):
    return {"weight": torch.randint(-127, 128, (rows, columns), dtype=torch.int8), "SCB": torch.rand(rows), "weight_format": torch.tensor(0, dtype=torch.uint8)}


def by_deepseek_v4(rows, columns):
    return {"weight": torch.randint(-128, 128, (rows, columns // 2), dtype=torch.int8),
            "scale": torch.randint(110, 135, (rows, columns // 32), dtype=torch.uint8).view(torch.float8_e8m0fnu)}


def by_int8(rows, columns):
    return {"weight": torch.randint(-128, 128, (rows, columns), dtype=torch.int8), "weight_scale": scales(rows, 1).bfloat16()}


def by_fp8_blocks(rows, columns):
    return {"weight": (torch.randn(rows, columns) * 30).to(torch.float8_e4m3fn), "weight_scale_inv": torch.rand(rows // 128, columns // 128)}


def by_mxfp4(rows, columns):
    return {"weight_blocks": torch.randint(0, 256, (1, rows, columns // 32, 16), dtype=torch.uint8),
            "weight_scales": torch.randint(110, 135, (1, rows, columns // 32), dtype=torch.uint8)}


def by_nvfp4(rows, columns):
    return {"weight": torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8), "weight_scale": (torch.rand(rows, columns // 16) * 400).to(torch.float8_e4m3fn),
            "weight_scale_2": torch.tensor(0.0123)}


# What a layer has, and the quantization_config of the model.
PACKED = {
    "pack-quantized": (by_compressed_tensors, {"quant_method": "compressed-tensors", "format": "pack-quantized",
                                               "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 128, "symmetric": True}}}}),
    "gptq": (by_gptq, {"quant_method": "gptq", "bits": 4, "group_size": 128}),
    "gptq-ordered": (lambda *sizes: by_gptq(*sizes, ordered=True), {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}),
    "awq": (by_awq, {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}),
    "nf4": (lambda *sizes: by_bitsandbytes(*sizes, "nf4"), {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    "fp4": (lambda *sizes: by_bitsandbytes(*sizes, "fp4"), {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    "bnb-int8": (by_llm_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "deepseek-v4": (by_deepseek_v4, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "int8": (by_int8, {"quant_method": "compressed-tensors", "format": "int-quantized"}),
    "fp8-blocks": (by_fp8_blocks, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "mxfp4-weights": (by_mxfp4, {"quant_method": "mxfp4"}),
    "nvfp4-weights": (by_nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
}


def make_packed(path, scheme, count=8, rows=4096, columns=8192):
    """512 MiB of bfloat16, when they are dequantized."""
    torch.manual_seed(24)
    layer, config = PACKED[scheme]
    write_directory(path, {f"layers.{i}.{k}": v for i in range(count) for k, v in layer(rows, columns).items()}, torch_dtype="bfloat16", quantization_config=config)


def dequantize_packed(scheme, source):
    """By PyTorch's operators: its reader of quantized models reads the first 16 numbers of an MXFP4 row and leaves the rest as it is (2.13)."""
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    tensors = load_file(os.path.join(source, NAME))
    ending = "weight_blocks" if scheme == "mxfp4" else "weight"
    out = {}
    for name in [n for n in tensors if n.endswith(ending)]:
        pairs, stem = tensors.pop(name), name.removesuffix("_blocks")
        if scheme == "mxfp4":
            scale = tensors.pop(stem + "_scales").view(torch.float8_e8m0fnu).float()
        else:
            scale = tensors.pop(stem + "_scale").float() * tensors.pop(stem + "_scale_2")
        values = numbers[torch.stack([pairs & 15, pairs >> 4], -1).int()].view(*scale.shape, GROUP[scheme])
        out[stem] = (values * scale[..., None]).flatten(-2).bfloat16()
    return out


def read_quantized(source):
    """By PyTorch's reader of quantized models, into tensors that are there already."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader
    reader = QuantizedHuggingFaceStorageReader(source, target_dtype=torch.bfloat16, thread_count=2)
    sizes = {n: x.size for n, x in reader.read_metadata().state_dict_metadata.items() if not n.endswith("_scale_inv")}
    state = {n: torch.empty(size, dtype=torch.bfloat16) for n, size in sizes.items()}
    dcp.load(state, storage_reader=reader, no_dist=True)
    return state


def dequantize(scheme, source, dest):
    timed(lambda: save_file(read_quantized(source) if scheme == "fp8-block" else dequantize_packed(scheme, source), dest))


def write_only(like, dest):
    """Writes as many bytes as `like` has from 1 MiB of memory, with the fsync that ours does too: no program that writes the result is faster
    by much, because a file system lets one thread at a time write to a file."""
    size, block = os.path.getsize(like), os.urandom(1 << 20)

    def write():
        file = os.open(dest, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        for at in range(0, size, len(block)):
            os.pwrite(file, block[:size - at], at)
        os.fsync(file)
        os.close(file)
    timed(write)


def make_llama(path, seed, layers=16, hidden=2048, width=8192, vocabulary=32000):
    """2 GB with the names and config.json of a Llama, which mergekit knows."""
    torch.manual_seed(int(seed))
    shapes = {"model.embed_tokens": (vocabulary, hidden), "lm_head": (vocabulary, hidden), "model.norm": (hidden,)}
    for i in range(layers):
        layer = f"model.layers.{i}."
        shapes.update({layer + f"self_attn.{n}_proj": (hidden, hidden) for n in "qkvo"})
        shapes.update({layer + f"mlp.{n}_proj": (width, hidden) for n in ("gate", "up")})
        shapes.update({layer + "mlp.down_proj": (hidden, width), layer + "input_layernorm": (hidden,), layer + "post_attention_layernorm": (hidden,)})
    write_directory(path, {n + ".weight": random(*s) for n, s in shapes.items()}, architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=hidden, intermediate_size=width,
                 num_hidden_layers=layers, num_attention_heads=16, num_key_value_heads=16, vocab_size=vocabulary, tie_word_embeddings=False, torch_dtype="bfloat16")


def merge(one, two, dest):
    def add():
        with safe_open(os.path.join(one, NAME), "pt") as a, safe_open(os.path.join(two, NAME), "pt") as b:
            save_file({n: (0.7 * a.get_tensor(n).float() + 0.3 * b.get_tensor(n).float()).bfloat16() for n in a.keys()}, dest)
    timed(add)


def compare(wanted, path, same):
    """Not a peer: whether a file holds what PyTorch computed."""
    with safe_open(wanted, "pt") as a, safe_open(path, "pt") as b:
        if set(a.keys()) != set(b.keys()):
            sys.exit(f"other names: {sorted(set(a.keys()) ^ set(b.keys()))[:5]}")
        for name in a.keys():
            if not same(a.get_tensor(name), b.get_tensor(name)):
                sys.exit(f"'{name}' has other values")


def same_files(wanted, path):
    compare(wanted, path, lambda a, b: a.dtype == b.dtype and torch.equal(a, b))


def close_files(wanted, path):
    """Sums in another order differ by one unit in the last place at most."""
    def close(a, b):
        return a.dtype == b.dtype and a.shape == b.shape and bool(((a.view(torch.int16).int() - b.view(torch.int16).int()).abs() <= 1).logical_or(a == b).all())
    compare(wanted, path, close)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
