"""Writes tests/golden/meta: small Llamas as Meta distributes them, and what transformers' conversion script makes of them.

Usage: python tests/golden/make_meta.py    in an environment that has the versions below.

Made with torch 2.13.0, transformers 4.46.3 (the last releases of 4 and those of 5 do not have the script), accelerate 1.1.1.

  NAME/consolidated.0N.pth, NAME/params.json   as Meta's; `rope.freqs` is in the files of Llama 1 and 2
  NAME.safetensors, NAME.config.json           what write_model of convert_llama_weights_to_hf.py saved
"""
import json
import pathlib
import shutil
import tempfile

import torch

HERE = pathlib.Path(__file__).resolve().parent / "meta"
# Name: (version, shards, params.json)
MODELS = {
    "llama1": ("1", 1, {"dim": 16, "n_heads": 4, "n_layers": 2, "norm_eps": 1e-6, "multiple_of": 8, "vocab_size": -1}),
    "llama3": ("3", 1, {"dim": 24, "n_heads": 6, "n_kv_heads": 2, "n_layers": 3, "norm_eps": 1e-5, "multiple_of": 8, "vocab_size": 20, "rope_theta": 5e5}),
    "llama3-2": ("3", 2, {"dim": 16, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2, "norm_eps": 1e-5, "multiple_of": 8, "vocab_size": 20, "rope_theta": 5e5}),
    "llama3.2": ("3.2", 1, {"dim": 12, "n_heads": 6, "n_kv_heads": 3, "n_layers": 1, "norm_eps": 1e-5, "multiple_of": 8, "vocab_size": 20, "rope_theta": 5e5}),
}
VOCABULARY = 20
# Dim along which each rank holds its part, in Llama 3; None: the whole tensor.
SHARDED = {"tok_embeddings": 0, "output": 0, "norm": None, "attention_norm": None, "ffn_norm": None, "wq": 0, "wk": 0, "wv": 0, "wo": 1, "w1": 0, "w2": 1, "w3": 0}


def tensors(version, params):
    from transformers.models.llama.convert_llama_weights_to_hf import compute_intermediate_size
    dim, heads = params["dim"], params["n_heads"]
    rows, hidden = dim // heads * params.get("n_kv_heads", heads), compute_intermediate_size(dim, 1, params["multiple_of"])
    shapes = {"tok_embeddings": (VOCABULARY, dim), "output": (VOCABULARY, dim), "norm": (dim,)}
    for n in range(params["n_layers"]):
        for name, shape in {"attention.wq": (dim, dim), "attention.wk": (rows, dim), "attention.wv": (rows, dim), "attention.wo": (dim, dim), "feed_forward.w1": (hidden, dim),
                            "feed_forward.w2": (dim, hidden), "feed_forward.w3": (hidden, dim), "attention_norm": (dim,), "ffn_norm": (dim,)}.items():
            shapes[f"layers.{n}.{name}"] = shape
    out = {f"{name}.weight": torch.randn(*shape).bfloat16() for name, shape in shapes.items()}
    if version == "1":
        out["rope.freqs"] = torch.rand(dim // heads // 2)
    if version == "3.2":  # its output layer is the embedding; transformers stores it once
        out["output.weight"] = out["tok_embeddings.weight"]
    return out


def shard(name, x, rank, count):
    dim = SHARDED[name.split(".")[-2]]
    return x if dim is None else x.chunk(count, dim)[rank].clone()


def main():
    from transformers.models.llama.convert_llama_weights_to_hf import write_model
    if HERE.exists():
        shutil.rmtree(HERE)
    for seed, (name, (version, count, params)) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        directory, model = HERE / name, tensors(version, params)
        directory.mkdir(parents=True)
        for rank in range(count):
            torch.save(model if count == 1 else {k: shard(k, v, rank, count) for k, v in model.items()}, directory / f"consolidated.{rank:02}.pth")
        (directory / "params.json").write_text(json.dumps(params) + "\n")
        with tempfile.TemporaryDirectory() as saved:
            write_model(saved, str(directory), llama_version=version, vocab_size=VOCABULARY, num_shards=count)
            shutil.copy(pathlib.Path(saved) / "model.safetensors", HERE / f"{name}.safetensors")
            shutil.copy(pathlib.Path(saved) / "config.json", HERE / f"{name}.config.json")


if __name__ == "__main__":
    main()
