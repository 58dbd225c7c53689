"""Goldens: what real PyTorch and safetensors read of a checkpoint, as JSON (the shape is described in samples/checkpoints/README.md)."""
import hashlib
import json
import math
import os
from collections import OrderedDict

import numpy
import torch


def sha256(tensor):
    """Of the contiguous, row-major, little-endian bytes; conjugate and negative bits resolved."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return hashlib.sha256(b"" if plain.numel() == 0 else plain.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def tensor_entry(tensor):
    return {"dtype": str(tensor.dtype), "shape": list(tensor.shape), "sha256": sha256(tensor)}


def opaque_class(value):
    """The name of what is neither a dense tensor nor plain data, else None."""
    if isinstance(value, torch.Tensor):
        if value.is_quantized:
            return "quantized"
        if value.is_nested:
            return "nested"
        if value.is_meta:
            return "meta"
        return None if value.layout is torch.strided else str(value.layout).removeprefix("torch.")
    return None if type(value) in DATA or isinstance(value, (numpy.ndarray, numpy.generic)) else class_name(value)


def class_name(value):
    return f"{type(value).__module__}.{type(value).__qualname__}"


DATA = {type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, OrderedDict,
        torch.Size, torch.dtype, torch.device, torch.layout}


def tagged(value):
    """A value as JSON; what JSON cannot hold becomes an object with one key that begins with `$`."""
    simple = tagged_scalar(value)
    if simple is not NOTHING:
        return simple
    if isinstance(value, torch.Tensor):
        return {"$opaque": opaque_class(value)} if opaque_class(value) else {"$tensor": tensor_entry(value)}
    if isinstance(value, numpy.ndarray):
        return {"$ndarray": {"dtype": str(value.dtype), "shape": list(value.shape), "sha256": hashlib.sha256(numpy.ascontiguousarray(value).tobytes()).hexdigest()}}
    if type(value) in (dict, OrderedDict):
        return tagged_dict(value)
    if type(value) is list:
        return [tagged(x) for x in value]
    for kind, tag in ((torch.Size, "$size"), (tuple, "$tuple")):
        if type(value) is kind:
            return {tag: [tagged(x) for x in value]}
    if type(value) in (set, frozenset):
        return {"$" + type(value).__name__: sorted((tagged(x) for x in value), key=json.dumps)}
    return {"$repr": repr(value) if " at 0x" not in repr(value) else None, "$class": class_name(value)}


NOTHING = object()


def tagged_scalar(value):
    if value is None or type(value) in (bool, int, str):
        return {"$str": value.encode("utf-16-be", "surrogatepass").hex()} if type(value) is str and not is_unicode(value) else value
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if type(value) is complex:
        return {"$complex": [tagged(value.real), tagged(value.imag)]}
    if type(value) in (bytes, bytearray):
        return {"$" + type(value).__name__: value.hex()}
    if isinstance(value, (torch.dtype, torch.device, torch.layout)):
        return {"$" + type(value).__name__: str(value)}
    if isinstance(value, numpy.generic):
        return {"$ndscalar": {"dtype": str(value.dtype), "value": tagged(value.item())}}
    return NOTHING


def is_unicode(text):
    return not any(0xD800 <= ord(c) < 0xE000 for c in text)


def tagged_dict(value):
    if all(type(k) is str and is_unicode(k) and not k.startswith("$") for k in value):
        return {k: tagged(v) for k, v in value.items()}
    return {"$dict": [[tagged(k), tagged(v)] for k, v in value.items()]}


def sort_out(flat):
    """{fqn: value} -> the entries, objects and opaque of a golden."""
    out = {"entries": {}, "objects": {}, "opaque": {}}
    for fqn, value in flat.items():
        if opaque_class(value):
            out["opaque"][fqn] = opaque_class(value)
        elif isinstance(value, torch.Tensor):
            out["entries"][fqn] = tensor_entry(value)
        else:
            out["objects"][fqn] = tagged(value)
    return out


def check_known(name, expect, known_file):
    """What the reader found must be what the ranks held before they saved."""
    if not os.path.exists(known_file):
        return
    with open(known_file) as f:
        known = json.load(f)
    entries = expect.get("entries")
    if entries is None:
        return
    for fqn, entry in known.items():
        found = {k: entries.get(fqn, {}).get(k) for k in entry}
        if found != entry:
            raise ValueError(f"{name}: {fqn} was {entry} before saving, is read back as {found}")
    expect["cross_checked"] = f"{len(known)} tensors equal the values gathered from the ranks before saving"


def write(expect, path):
    """JSON with one line for each name, so that a change shows as such."""
    with open(path, "w") as f:
        f.write("{\n" + ",\n".join(f" {json.dumps(k)}: {indented(v)}" for k, v in expect.items()) + "\n}\n")


def indented(value):
    if isinstance(value, dict) and value:
        return "{\n" + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "\n }"
    return json.dumps(value)
