"""Every program of native/python/README.md, in a directory with checkpoints of the names that it uses. Those that need a server are run by
tests/stores/test_readme.py."""
import json
import os
import re
import shutil
import sys

import torch
from ended import leaving
from harness import ROOT, SAMPLES
from safetensors.torch import save_file
from shell import check
from test_python import INSTALLED, tessera
from torch_names import dcp

PAGE = os.path.join(ROOT, "native/python/README.md")
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
          "num_hidden_layers": 2, "vocab_size": 24, "tie_word_embeddings": False, "dtype": "float32"}
FSDP = """
torch.cuda.synchronize = lambda: None  # which FSDP1 of PyTorch 2.3 calls whatever the device is
import torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
warnings.simplefilter("ignore")
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting", rank=0, world_size=1)
model = FSDP(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)), device_id=torch.device("cpu"), use_orig_params=True)
FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
shutil.rmtree("step-1000")
dcp.save({"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}, checkpoint_id="step-1000")
optimizer.param_groups[0]["lr"] = 0.5
"""
BEFORE = "import os, shutil, sys, warnings, numpy, torch, tessera, tessera.torch\nwarnings.simplefilter('error')\nwarnings.filterwarnings('ignore', module='torch')\n"
# By what a program contains: what the text around it says that there is, and what it must have done.
CASES = {
    "checkpoint.items()": ("", "assert rows.shape == (6, 4) and array.tolist() == torch.arange(24.).reshape(6, 4).tolist() and '$schema' in sarif and '<testsuite' in junit\n"),
    "tessera.convert(": ("os.remove('model.safetensors')\nshutil.copytree('step-1000', 'run/step-9')\n", "assert resume == 'run/step-9', resume\n"),
    "inverse=True": ("", "assert rows.shape == (8, 8) and rows.dtype == numpy.float32\n"),
    "also=[": (f"shutil.rmtree('run')\nshutil.copytree({os.path.join(SAMPLES, 'hf_trainer')!r}, 'run')\n", ""),
    "prefix=": ("model = torch.nn.ModuleDict({'model': torch.nn.ModuleDict({'embed': torch.nn.Embedding(6, 4), 'other': torch.nn.Linear(2, 1)})})\n",
                "assert 'model.embed_tokens.weight' in weights and sorted(missing) == ['model.other.bias', 'model.other.weight'] and 'model.norm.weight' in unexpected, (list(weights), missing, unexpected)\n"),
    "dcp.load(": ("state_dict = {'model.embed.weight': torch.zeros(6, 4)}\n",
                  "assert torch.equal(state_dict['model.embed.weight'], torch.arange(24.).reshape(6, 4)) and tessera.check('step-2000', deep=True) == []\n"),
    "form=\"safetensors\"": ("import torch.distributed.checkpoint as dcp\nmodel = torch.nn.Linear(3, 2)\n", "assert list(tessera.open('export')) == ['bias', 'weight']\n"),
    "load_sharded_optimizer_state": (f"exec({FSDP!r})\n", "assert optimizer.state_dict()['param_groups'][0]['lr'] == 0.25\n"),
}


def programs():
    """The indented programs of the page, but not its shell lines."""
    with open(PAGE) as f:
        found = re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", f.read(), re.M)
    texts = ["\n".join(line[4:] for line in text.splitlines()) + "\n" for text in found]
    return [text for text in texts if "pip install" not in text]


def llama():
    """The tensors of a model of this config, under the names of transformers."""
    hidden, heads, groups, inner = CONFIG["hidden_size"], CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"] * CONFIG["head_dim"], CONFIG["intermediate_size"]
    shapes = {"model.embed_tokens.weight": (CONFIG["vocab_size"], hidden), "model.norm.weight": (hidden,), "lm_head.weight": (CONFIG["vocab_size"], hidden)}
    for n in range(CONFIG["num_hidden_layers"]):
        layer = {"self_attn.q_proj": (heads * CONFIG["head_dim"], hidden), "self_attn.k_proj": (groups, hidden), "self_attn.v_proj": (groups, hidden), "self_attn.o_proj": (hidden, hidden),
                 "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
        shapes.update({f"model.layers.{n}.{name}.weight": shape for name, shape in layer.items()})
    torch.manual_seed(1)
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def write_json(path, document):
    with open(path, "w") as f:
        json.dump(document, f)


def models(at):
    """hf/, of which the torchtitan job's step is the inverse; base/ with an adapter of PEFT; fp8/."""
    for name in ("hf", "base", "fp8", "adapter"):
        os.mkdir(at(name))
        write_json(at(name, "config.json"), CONFIG)
    save_file(llama(), at("hf/model.safetensors"))
    save_file(llama(), at("base/model.safetensors"))
    save_file({"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.randn(2, 8), "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": torch.randn(8, 2)},
              at("adapter/adapter_model.safetensors"))
    write_json(at("adapter/adapter_config.json"), {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]})
    save_file({"a.weight": torch.randn(4, 4).to(torch.float8_e4m3fn), "a.weight_scale": torch.tensor([0.5])}, at("fp8/model.safetensors"))


def run_of(at):
    """step-1000/, the same as one file, a run of steps, two models to merge, and nodes that have the files of two ranks."""
    state = {"model.embed.weight": torch.arange(24.).reshape(6, 4), "model.norm.weight": torch.ones(4),
             **{f"model.layers.{n}.attention.{name}.weight": torch.full((4, 4), float(n)) for n in range(2) for name in ("wq", "wk")}}
    dcp.save(state, checkpoint_id=at("step-1000"), no_dist=True)
    save_file(state, at("model.safetensors"))
    for n, name in enumerate("ab"):
        save_file({"w": torch.full((3,), float(n))}, at(f"{name}.safetensors"))
    os.mkdir(at("run"))
    shutil.copytree(os.path.join(SAMPLES, "deepspeed_zero3", "global_step2"), at("zero3"))
    sample = os.path.join(SAMPLES, "dcp_fsdp2")
    for node, pick in (("node0", lambda name: name in (".metadata", "__0_0.distcp")), ("node1", lambda name: name == "__1_0.distcp"), ("node2", lambda name: name not in (".metadata", "__0_0.distcp", "__1_0.distcp"))):
        os.mkdir(at(node))
        for name in filter(pick, os.listdir(sample)):
            shutil.copy(os.path.join(sample, name), at(node))
    os.mkdir(at("Llama-3"))
    write_json(at("Llama-3/params.json"), {"dim": 16, "n_layers": 1, "n_heads": 2, "vocab_size": 32})
    for rank in range(2):
        shapes = {"tok_embeddings.weight": (32, 8), "layers.0.attention.wq.weight": (8, 16), "layers.0.attention.wo.weight": (16, 8), "output.weight": (16, 16)}
        torch.save({"norm.weight": torch.ones(16), **{name: torch.full(shape, float(rank)) for name, shape in shapes.items()}}, at(f"Llama-3/consolidated.0{rank}.pth"))


def test_every_program_of_the_page_works(t):
    models(t.at)
    run_of(t.at)
    os.mkdir(t.at("titan"))
    tessera.convert(t.at("hf"), t.at("titan/step-1000"), to="dcp", map="torchtitan-llama3", inverse=True)
    write_json(t.at("titan/step-1000/config.json"), CONFIG)
    texts, seen = programs(), set()
    for number, text in enumerate(texts):
        (given, done), *more = [case for words, case in CASES.items() if words in text]
        assert not more, text
        seen.add((given, done))
        scene = t.at(f"program{number}")
        shutil.copytree(t.scratch, scene, ignore=shutil.ignore_patterns("program*"))
        lines = "".join(line + "\n" for line in text.splitlines() if "s3://" not in line)
        with open(os.path.join(scene, "program.py"), "w") as f:
            f.write(leaving(BEFORE + given + lines + done))
        check(sys.executable, "program.py", cwd=scene, env={**os.environ, "PYTHONPATH": INSTALLED, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
    assert len(seen) == len(CASES) == len(texts)
