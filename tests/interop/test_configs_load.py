"""convert --config: transformers' from_pretrained loads the result as it is, with the weights that it has, whatever the conversion changed.

TESSERA_FRAMEWORKS names a Python with transformers."""
import json
import os
import subprocess

import torch
from safetensors.torch import load_file, save_file

from harness import frameworks
from test_maps import need
from test_packed_numbers import gptq

SIZES = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}

# Makes models, and loads them: one JSON list a line, the answer on another.
TRANSFORMERS = """
import json, sys, torch, transformers
from safetensors.torch import save_file
torch.set_num_threads(1)
torch.manual_seed(3)
for line in sys.stdin:
    what, path, *more = json.loads(line)
    if what == "make":
        config = transformers.AutoConfig.for_model(**more[0])
        config.dtype = "bfloat16"
        transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(path)
        said = {}
    else:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
        model(torch.arange(8)[None])
        once, all_names = dict(model.named_parameters()), list(model.named_parameters(remove_duplicate=False))
        save_file({n: p.detach() for n, p in once.items()}, more[0])
        said = {"dtype": str(model.dtype), "tied": len(once) < len(all_names), **{k: sorted(map(str, v)) for k, v in info.items() if v}}
    print("\\n" + json.dumps(said), flush=True)
"""


class Transformers:
    """The library, in a process of its own."""

    def __init__(self, t):
        path, self.t = frameworks("transformers"), t
        self.log = open(t.at("transformers.log"), "w")
        self.process = subprocess.Popen([path, "-c", TRANSFORMERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, bufsize=1,
                                        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        self.log.close()

    def ask(self, *request):
        print(json.dumps(request), file=self.process.stdin)
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        with open(self.t.at("transformers.log")) as f:
            raise AssertionError(f.read()[-1500:])

    def make(self, name, kind, **more):
        """A model of random weights, as it saves it."""
        self.ask("make", self.t.at(name), {"model_type": kind, **SIZES, **more})
        return self.t.at(name)

    def load(self, path, dtype, tied=False):
        """The parameters that it has in memory."""
        said = self.ask("load", path, self.t.at("loaded.safetensors"))
        need(said == {"dtype": f"torch.{dtype}", "tied": tied}, f"{path}: {said}")
        return load_file(self.t.at("loaded.safetensors"))


def stored(path):
    return {k: v for n in sorted(os.listdir(path)) if n.endswith(".safetensors") for k, v in load_file(os.path.join(path, n)).items()}


def same(got, want, what):
    need(set(got) == set(want), f"{what}: {sorted(set(got) ^ set(want))}")
    for name, w in want.items():
        need(got[name].dtype == w.dtype and torch.equal(got[name], w), f"{what}: {name}")


def quantized(t, plain):
    """The model with each linear layer in GPTQ's 4 bits, and what these amount to."""
    torch.manual_seed(4)
    tensors, want = load_file(os.path.join(plain, "model.safetensors")), {}
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        rows, columns = tensors.pop(name).shape
        parts, want[name] = gptq(4, False, True, columns, rows, 16, torch.float16)
        del parts["bias"]
        tensors.update({name[:-len("weight")] + k: v for k, v in parts.items()})
    os.makedirs(t.at("gptq"))
    save_file(tensors, t.at("gptq", "model.safetensors"), {"format": "pt"})
    with open(os.path.join(plain, "config.json")) as f:
        config = json.load(f)
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True}
    with open(t.at("gptq", "config.json"), "w") as f:
        json.dump(config, f)
    return t.at("gptq"), {**{k: v for k, v in tensors.items() if "_proj." not in k}, **want}


def test_a_dequantized_model_loads(t):
    with Transformers(t) as library:
        source, want = quantized(t, library.make("plain", "llama"))
        for name, dtype, more in (("one", "bfloat16", ()), ("many", "bfloat16", ("--max-shard-size", "30KB")), ("wide", "float32", ("--dtype", "float32", "--max-shard-size", "1MB"))):
            t.run("convert", source, t.at(name) + "/", "--dequantize", "--config", *more)
            need(len([n for n in os.listdir(t.at(name)) if n.endswith(".safetensors")]) == (1 if name != "many" else 2), os.listdir(t.at(name)))
            same(library.load(t.at(name), dtype), {k: v.to(getattr(torch, dtype)) for k, v in want.items()}, name)

        # A map to transformers' names, from those of another program; and one to the names that transformers has in memory.
        os.makedirs(t.at("other"))
        tensors = load_file(os.path.join(source, "model.safetensors"))
        save_file({k.replace("model.layers", "blocks"): v for k, v in tensors.items()}, t.at("other", "model.safetensors"))
        os.link(os.path.join(source, "config.json"), t.at("other", "config.json"))
        names = {"schema": "tessera.map/1", "unmatched": "keep", "rules": [{"from": ["blocks.{rest...}"], "to": ["model.layers.{rest...}"]}]}
        t.run("convert", t.at("other"), t.at("mapped") + "/", "--dequantize", "--config", "--map", json.dumps(names))
        same(library.load(t.at("mapped"), "bfloat16"), {k: v.to(torch.bfloat16) for k, v in want.items()}, "mapped")
        mixtral = library.make("mixtral", "mixtral", num_local_experts=4, num_experts_per_tok=2)
        t.run("convert", mixtral, t.at("memory") + "/", "--config", "--map", "transformers-mixtral")
        got = library.load(t.at("memory"), "bfloat16")
        need(any(k.endswith("experts.gate_up_proj") for k in stored(t.at("memory"))), sorted(stored(t.at("memory"))))
        same(got, library.load(mixtral, "bfloat16"), "in memory")


def adapter(t, tensors, **more):
    os.makedirs(t.at("adapter"), exist_ok=True)
    save_file({f"base_model.model.{k}": v for k, v in tensors.items()}, t.at("adapter/adapter_model.safetensors"))
    with open(t.at("adapter/adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"], **more}, f)
    return t.at("adapter")


def test_a_model_with_an_adapter_loads(t):
    """The vocabulary becomes the adapter's, and an output layer that the adapter has whole is no longer the embedding."""
    torch.manual_seed(5)
    rows = lambda count: torch.randn(count, 32).bfloat16()
    name = "model.layers.1.self_attn.q_proj"
    pair = {f"{name}.lora_A.weight": torch.randn(2, 32), f"{name}.lora_B.weight": torch.randn(32, 2)}
    grown = {"model.embed_tokens.weight": rows(43), "lm_head.weight": rows(43)}
    with Transformers(t) as library:
        plain = library.make("plain", "llama")
        t.run("convert", quantized(t, plain)[0], t.at("grown") + "/", "--dequantize", "--config", "--lora", adapter(t, {**grown, **pair}))
        got = library.load(t.at("grown"), "bfloat16")
        same(got, stored(t.at("grown")), "grown")
        need(all(torch.equal(got[k], v) for k, v in grown.items()), "the embeddings are not the adapter's")
        with open(os.path.join(plain, "config.json")) as f:
            config = {**json.load(f), "vocab_size": 39}
        with open(os.path.join(plain, "config.json"), "w") as f:
            json.dump(config, f)
        said = t.run("convert", plain, t.at("refused") + "/", "--config", "--lora", t.at("adapter"), status=2).stderr.decode()
        need("vocab_size of 40" in said and "43" in said and not os.path.exists(t.at("refused")), said)

        tied = library.make("tied", "llama", tie_word_embeddings=True)
        t.run("convert", tied, t.at("still") + "/", "--config", "--lora", adapter(t, pair))
        same(library.load(t.at("still"), "bfloat16", tied=True), stored(t.at("still")), "tied")
        said = t.run("convert", tied, t.at("untied") + "/", "--config", "--lora", adapter(t, {"lm_head.weight": rows(40), **pair}, modules_to_save=["lm_head"])).stderr.decode()
        need("tie_word_embeddings" not in said, said)
        same(library.load(t.at("untied"), "bfloat16"), stored(t.at("untied")), "untied")

    os.makedirs(t.at("inner"))
    save_file({"language_model.model.embed_tokens.weight": rows(40)}, t.at("inner", "model.safetensors"))
    with open(t.at("inner", "config.json"), "w") as f:
        json.dump({"text_config": {"vocab_size": 40}, "audio_config": {"vocab_size": 30}}, f)
    t.run("convert", t.at("inner"), t.at("inside") + "/", "--config", "--lora", adapter(t, {"language_model.model.embed_tokens.weight": rows(41)}))
    with open(t.at("inside", "config.json")) as f:
        need(json.load(f) == {"text_config": {"vocab_size": 41}, "audio_config": {"vocab_size": 30}}, "the vocabulary of text_config")
