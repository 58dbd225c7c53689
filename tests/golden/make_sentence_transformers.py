"""Writes tests/golden/sentence_transformers: models of several modules as sentence-transformers saves them, and what is in them.

Usage: python tests/golden/make_sentence_transformers.py    in an environment with torch 2.13.0, sentence-transformers 6.2.0 and transformers 5.24.0

  dense      a Transformer in the root, Pooling, Dense, LayerNorm and Normalize
  old        the same with the Transformer in a directory of its own, as versions before 3 save it
  router     a Router in the root, with modules for queries and for documents
  plain      a Transformer and Pooling: the root has all weights
  trained    what the Trainer of sentence-transformers writes for `dense`

expect.json has, for each, {part: {name: [dtype, shape, SHA-256]}}. All values differ.
"""
import hashlib
import json
import os
import pathlib
import shutil
import tempfile

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses, models
from transformers import BertConfig, BertModel, BertTokenizerFast

HERE = pathlib.Path(__file__).resolve().parent / "sentence_transformers"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]


def describe(tensors):
    return {k: [str(v.dtype)[6:], list(v.shape), hashlib.sha256(v.detach().contiguous().numpy().tobytes()).hexdigest()] for k, v in tensors.items()}


def transformer(directory):
    with open(os.path.join(directory, "vocab.txt"), "w") as f:
        f.write("\n".join(WORDS))
    BertTokenizerFast(vocab=os.path.join(directory, "vocab.txt")).save_pretrained(directory)
    BertModel(BertConfig(vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12, max_position_embeddings=16)).save_pretrained(directory)
    return models.Transformer(directory)


def tensors_of(module):
    inner = getattr(module, "auto_model", None)
    return describe(inner.state_dict() if inner is not None else module.state_dict())


def fill(model):
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(torch.arange(p.numel()).reshape(p.shape) / 64 + i)
    return model


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    expect = {}
    with tempfile.TemporaryDirectory() as scratch:
        word = transformer(scratch)
        dense = [word, models.Pooling(8), models.Dense(8, 6), models.LayerNorm(6), models.Normalize()]
        model = fill(SentenceTransformer(modules=dense, device="cpu"))
        model.save(str(HERE / "dense"))
        parts = {f"{i}_{type(m).__name__}": tensors_of(m) for i, m in enumerate(model) if m.state_dict()}
        expect["dense"] = expect["old"] = parts
        shutil.copytree(HERE / "dense", HERE / "old")
        moved = HERE / "old" / "0_Transformer"
        moved.mkdir()
        for name in ("config.json", "model.safetensors", "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"):
            os.rename(HERE / "old" / name, moved / name)
        listed = json.loads((HERE / "old" / "modules.json").read_text())
        listed[0]["path"] = "0_Transformer"
        (HERE / "old" / "modules.json").write_text(json.dumps(listed, indent=2))
        SentenceTransformer(str(HERE / "old"), device="cpu")  # it loads
        fill(SentenceTransformer(modules=[word, models.Pooling(8)], device="cpu")).save(str(HERE / "plain"))
        expect["plain"] = {"": tensors_of(word)}
        query = models.StaticEmbedding(word.tokenizer.backend_tokenizer if hasattr(word.tokenizer, "backend_tokenizer") else word.tokenizer, embedding_dim=8)
        router = models.Router.for_query_document([query, models.Dense(8, 8)], [transformer(scratch), models.Pooling(8)])
        routed = fill(SentenceTransformer(modules=[router, models.Normalize()], device="cpu"))
        routed.save(str(HERE / "router"))
        expect["router"] = {f"{route}_{i}_{type(m).__name__}": tensors_of(m) for route, ms in router.sub_modules.items() for i, m in enumerate(ms) if m.state_dict()}
        data = Dataset.from_dict({"anchor": ["a", "b"], "positive": ["a b", "b c"]})
        arguments = SentenceTransformerTrainingArguments(output_dir=os.path.join(scratch, "out"), max_steps=1, save_steps=1, per_device_train_batch_size=2, report_to=[], use_cpu=True)
        trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=losses.MultipleNegativesRankingLoss(model))
        trainer.train()
        shutil.copytree(os.path.join(scratch, "out", "checkpoint-1"), HERE / "trained")
        expect["trained"] = {"model" if i == 0 else f"{i}_{type(m).__name__}": tensors_of(m) for i, m in enumerate(trainer.model) if m.state_dict()}
    for name in ("README.md",):
        for path in HERE.rglob(name):
            path.unlink()
    (HERE / "expect.json").write_text(json.dumps(expect, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
