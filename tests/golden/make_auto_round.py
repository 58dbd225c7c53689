"""Writes tests/golden/auto_round: models as AutoRound packs them, and the weights that its own layers compute.

Usage: python tests/golden/make_auto_round.py DIRECTORY    in an environment with torch and transformers; DIRECTORY has auto_round 0.8.0
                                                           (pip install --no-deps --target)

Made with torch 2.13.0, transformers 5.24.0, on a CPU. Only the layers are loaded, as the package itself imports much more. A weight is what a
layer makes of the identity.

  NAME/model.safetensors   the stored tensors        NAME/config.json   what AutoRound would store with them
  NAME.safetensors         the weights, in float16"""
import importlib.util
import json
import os
import pathlib
import sys
import types

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent / "auto_round"
LAYERS = {"auto_round:auto_gptq": "qlinear_torch_zp", "auto_round": "qlinear_torch"}
SIZES = ((64, 32, 32), (96, 64, 32), (128, 32, 64), (64, 32, -1))  # columns, rows, columns per group


def layer_class(directory, module):
    for name in ("auto_round", "auto_round.utils"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["auto_round.utils"]._get_packing_device = lambda device: torch.device("cpu")
    spec = importlib.util.spec_from_file_location(module, os.path.join(directory, "auto_round_extension", "torch", module + ".py"))
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found.QuantLinear


def packed(kind, bits, minus_one, columns, rows, group):
    layer = kind(bits, group, columns, rows, False)
    layer.device = torch.device("cpu")  # which `pack` asks for, and no layer has
    groups = 1 if group == -1 else columns // group
    scales, zeros = torch.rand(rows, groups) / 20 + 0.01, torch.randint(1, 2**bits, (rows, groups)).int()
    zeros[0, 0] = 2**bits if minus_one else 0  # stored as the largest and as the least number
    layer.pack(torch.nn.Linear(columns, rows, bias=False).half(), scales, zeros, None)
    stored = {key: getattr(layer, key).contiguous() for key in ("qweight", "qzeros", "scales")}
    return stored, layer(torch.eye(columns).half()).t().contiguous()


def write(directory, packing, bits):
    tensors, want, own = {}, {}, {}
    kind = layer_class(directory, LAYERS[packing])
    for i, (columns, rows, group) in enumerate(SIZES):
        own_bits = 8 if i == 2 and bits == 4 else bits
        stored, want[f"l{i}.weight"] = packed(kind, own_bits, packing.endswith("gptq"), columns, rows, group)
        tensors.update({f"l{i}.{key}": value for key, value in stored.items()})
        differs = {key: value for key, value in (("bits", own_bits), ("group_size", group)) if value != {"bits": bits, "group_size": 32}[key]}
        own.update({f"l{i}": differs} if differs else {})
    config = {"quant_method": "auto-round", "packing_format": packing, "bits": bits, "group_size": 32, "sym": False, "data_type": "int", "extra_config": own}
    name = f"{packing.rpartition(':')[2]}_{bits}"
    (HERE / name).mkdir(parents=True, exist_ok=True)
    save_file(tensors, HERE / name / "model.safetensors", {"format": "pt"})
    (HERE / name / "config.json").write_text(json.dumps({"dtype": "bfloat16", "quantization_config": config}))
    save_file(want, HERE / f"{name}.safetensors", {"format": "pt"})


if __name__ == "__main__":
    torch.manual_seed(44)
    for packing, bits in (("auto_round:auto_gptq", 4), ("auto_round:auto_gptq", 3), ("auto_round", 4), ("auto_round", 2)):
        write(sys.argv[1], packing, bits)
