"""Adapters of every model type whose modules transformers renames when it loads a model: folded bit for bit as PEFT merges them, or refused.

TESSERA_FRAMEWORKS names a Python with transformers and peft. Its own table is listed, so a type that a newer transformers adds fails here
until it is folded or stated below. With TSR_TEST_FULL all types are tried, otherwise one of eight."""
import os
import shutil
import subprocess
import zlib

import torch
from safetensors.torch import load_file

from harness import frameworks
from test_adapters import same
from test_maps import need

MAKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "transformers_adapters.py")
FULL = bool(os.environ.get("TSR_TEST_FULL"))

REFUSED = {}  # model types that are refused, and why


def run(*arguments):
    python = frameworks("transformers and peft")
    return subprocess.run([python, MAKER, *arguments], capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "critical"})


def load_all(directory):
    return {k: v for name in sorted(os.listdir(directory)) if name.endswith(".safetensors") for k, v in load_file(os.path.join(directory, name)).items()}


def check(t, model_type):
    base, adapter, merged, out = (t.at(model_type, name) for name in ("base", "adapter", "merged", "out.safetensors"))
    if model_type in REFUSED:
        text = t.run("convert", base, out, "--lora", adapter, status=2).stderr.decode()
        need("fold this adapter with PEFT" in text and not os.path.exists(out), f"{model_type} ({REFUSED[model_type]}): {text}")
        return
    t.run("convert", base, out, "--lora", adapter)
    want, before = load_all(merged), load_all(base)
    need(any(k not in before or not torch.equal(before[k], v) for k, v in want.items()), f"{model_type}: PEFT changes nothing")
    same(load_file(out), want, model_type)


def test_every_type_of_the_table(t):
    listed = run("list")
    types = sorted(listed.stdout.split())
    need(not listed.returncode and len(types) > 100, listed.stderr[-2000:])
    gone = sorted((set(REFUSED) | UNTRIED) - set(types))
    need(not gone, f"not in this transformers' table: {gone}")
    tried = [model_type for model_type in types if FULL or not zlib.crc32(model_type.encode()) % 8]
    failures, number = [], 0
    for first in range(0, len(tried), 16):  # so that no more than these are on the disk
        some = tried[first : first + 16]
        p = run("make", t.at(""), *some)
        lines = dict(line.split("\t") for line in p.stdout.splitlines() if line.split("\t")[0] in some)
        need(not p.returncode and sorted(lines) == some, f"{sorted(set(some) - set(lines))}: {p.stderr[-2000:]}")
        for model_type, why in lines.items():
            try:
                if why:
                    print(f"    not tried: {model_type}: {why}")
                    need(model_type in UNTRIED or model_type in REFUSED, "no tiny model: extend transformers_adapters.py, or state the type in UNTRIED")
                else:
                    check(t, model_type)
                    number += 1
            except Exception as e:
                failures.append(f"{model_type}: {e}")
            shutil.rmtree(t.at(model_type), ignore_errors=True)
    print(f"    {number} of {len(types)} types tried")
    need(not failures, "\n".join(failures))


# The script knows no sizes that these types' classes, or PEFT, accept. What transformers renames in them is what it renames in types that are tried.
UNTRIED = {"aya_vision", "d_fine", "deepseek_ocr2", "deformable_detr", "dots1", "emu3", "ernie4_5_vl_moe", "esm", "gemma3n_text", "granite_speech", "granite_speech_plus", "granitemoehybrid", "hunyuan_v1_moe",
           "hunyuan_vl", "hy_v4_vl", "hy_v4_vl_text", "jev", "lfm2_moe", "molmo2", "nemotron_h", "pp_doclayout_v4", "qwen3_omni_moe", "qwen4_exp_text", "rt_detr_v2", "shieldgemma2", "t5gemma2_encoder"}
