"""Maps against torch: random tensors and steps, in safetensors and in sharded DCP; the inverse; refusals; scaled numbers."""
import json
import os
import random

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file


HEADS = 3


def need(condition, what):
    if not condition:
        raise AssertionError(what)


def rope(x, back=False):
    half = x.shape[0] // HEADS // 2
    pairs = x.view(HEADS, 2, half, *x.shape[1:]) if back else x.view(HEADS, half, 2, *x.shape[1:])
    return pairs.transpose(1, 2).reshape(x.shape)


def interleave(x, dim, parts):
    return torch.stack(x.chunk(parts, dim), dim + 1).flatten(dim, dim + 1)


# (step, what torch does, shape that fits)
ONE_TO_ONE = [
    ({"transpose": [1, 0]}, lambda x: x.t()),
    ({"permute_rope": {"heads": "$num_heads"}}, rope),
    ({"interleave": 0, "parts": 4}, lambda x: interleave(x, 0, 4)),
    ({"interleave": 1, "parts": 6}, lambda x: interleave(x, 1, 6)),
]


def random_rule(rng, n):
    """A rule, its sources, and what torch makes of them."""
    def tensor(*shape):
        return torch.randn(*shape)

    kind = rng.randrange(6)
    if kind == 0:
        x, steps = tensor(12, 12), rng.choices(ONE_TO_ONE, k=rng.randrange(1, 5))
        y = x
        for _, function in steps:
            y = function(y)
        return {"from": [f"a{n}"], "to": [f"b{n}"], "do": [s for s, _ in steps]}, {f"a{n}": x}, {f"b{n}": y}
    if kind == 1:
        dim, parts = rng.randrange(-2, 2), [tensor(6, 4), tensor(6, 4), tensor(6, 4)]
        rule = {"from": [f"a{n}.{i}" for i in "qkv"], "to": [f"b{n}"], "do": [{"concat": dim, "parts": 3}]}
        return rule, dict(zip(rule["from"], parts)), {f"b{n}": torch.cat(parts, dim)}
    if kind == 2:
        x, sizes = tensor(5, 12), [7, 2, 3]
        rule = {"from": [f"a{n}"], "to": [f"b{n}.{i}" for i in range(3)], "do": [{"split": 1, "sizes": sizes}]}
        return rule, {f"a{n}": x}, dict(zip(rule["to"], x.split(sizes, 1)))
    if kind == 3:
        dim, x = rng.randrange(-3, 3), [[tensor(4, 6) for _ in range(11)] for _ in range(2)]
        rule = {"from": [f"a{n}.{{layer}}.{{i}}.w"], "to": [f"b{n}.{{layer}}"], "do": [{"stack": dim}, {"transpose": [2, 0, 1]}]}
        return rule, {f"a{n}.{j}.{i}.w": t for j, row in enumerate(x) for i, t in enumerate(row)}, {f"b{n}.{j}": torch.stack(row, dim).permute(2, 0, 1) for j, row in enumerate(x)}
    if kind == 4:
        dim, x = rng.randrange(3), tensor(4, 6, 8)
        rule = {"from": [f"a{n}"], "to": [f"b{n}.{{i}}.u", f"b{n}.{{i}}.v"], "do": [{"unstack": dim}, {"split": 0, "parts": 2}]}
        return rule, {f"a{n}": x}, {f"b{n}.{i}.{'uv'[h]}": half for i, y in enumerate(x.unbind(dim)) for h, half in enumerate(y.chunk(2, 0))}
    x, shape = tensor(12, 10), rng.choice([[10, 12], [4, 3, 5, 2], [120], [2, 60], [1, 12, 1, 10], [8, 15]])
    rule = {"from": [f"a{n}"], "to": [f"b{n}"], "do": [{"reshape": shape, "from": [12, 10]}, {"trim": -1, "to": shape[-1] - shape[-1] // 3, "from": shape[-1], "value": 0}]}
    y = x.reshape(shape)
    keep = shape[-1] - shape[-1] // 3
    return (rule, {f"a{n}": x}, {f"b{n}": y[..., :keep]})


def write(folder, name, document):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        json.dump(document, f)
    return path


def same(got, want, what):
    need(set(got) == set(want), f"{what}: names {sorted(set(got) ^ set(want))[:5]}")
    for k in want:
        need(got[k].dtype == want[k].dtype and torch.equal(got[k], want[k]), f"{what}: {k}")


def save_sharded(folder, tensors):
    """As ranks save DTensors, without processes: every tensor in row shards and column shards of uneven sizes."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata
    from torch.distributed.checkpoint.filesystem import _StorageInfo, _StoragePrefix  # noqa: F401
    import pickle
    import io
    meta, storage = {}, {}
    os.makedirs(folder)
    with open(os.path.join(folder, "__0_0.distcp"), "wb") as f:
        for name, t in tensors.items():
            dim = len(storage) % t.dim()
            pieces, at, chunks = t.split([3, t.shape[dim] - 3], dim), 0, []
            for piece in pieces:
                offsets = [0] * t.dim()
                offsets[dim], begin, buffer = at, f.tell(), io.BytesIO()
                torch.save(piece.contiguous(), buffer)
                f.write(buffer.getvalue())
                index = MetadataIndex(name, torch.Size(offsets))
                storage[index] = _StorageInfo("__0_0.distcp", begin, f.tell() - begin)
                chunks.append(ChunkStorageMetadata(torch.Size(offsets), piece.shape))
                at += piece.shape[dim]
            meta[name] = TensorStorageMetadata(TensorProperties(t.dtype), t.shape, chunks)
    with open(os.path.join(folder, ".metadata"), "wb") as f:
        pickle.dump(Metadata(meta, {k: [k] for k in tensors}, storage), f)


def test_random_maps(t):
    for seed in range(12):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        folder = os.path.join(t.scratch, str(seed))
        rules, sources, results = [], {}, {}
        for n in range(8):
            rule, inputs, outputs = random_rule(rng, n)
            rules.append(rule)
            sources.update(inputs)
            results.update({k: v.contiguous() for k, v in outputs.items()})
        save_sharded(folder, sources)
        loaded = {k: torch.empty_like(v) for k, v in sources.items()}
        dcp.load(loaded, checkpoint_id=folder, no_dist=True)
        same(loaded, sources, "the sample itself")
        write(folder, "config.json", {"num_heads": HEADS})
        path = write(t.scratch, f"map{seed}.json", {"schema": "tessera.map/1", "rules": rules})
        out = os.path.join(t.scratch, f"out{seed}.safetensors")
        t.run("convert", folder, out, "--to", "safetensors", "--map", path)
        same(load_file(out), results, f"seed {seed}")
        whole = os.path.join(t.scratch, f"whole{seed}")
        os.makedirs(whole)
        save_file(results, os.path.join(whole, "model.safetensors"))
        write(whole, "config.json", {"num_heads": HEADS})
        back = os.path.join(t.scratch, f"back{seed}.safetensors")
        t.run("convert", whole, back, "--to", "safetensors", "--map", path, "--inverse")
        got = load_file(back)
        for rule in rules:  # what was trimmed is zero
            for step in rule["do"]:
                if "trim" in step:
                    lost = sources[rule["from"][0]].reshape(rule["do"][0]["reshape"]).clone()
                    lost[..., step["to"]:] = 0
                    sources[rule["from"][0]] = lost.reshape(12, 10)
        same(got, sources, f"inverse of seed {seed}")


def refused(t, tensors, rules, *says, inverse=False, unmatched="refuse"):
    source = os.path.join(t.scratch, "refused.safetensors")
    save_file(tensors, source)
    path = write(t.scratch, "refused.json", {"schema": "tessera.map/1", "rules": rules, "unmatched": unmatched})
    out = os.path.join(t.scratch, "refused-out.safetensors")
    text = t.run("convert", source, out, "--to", "safetensors", "--map", path, *(["--inverse"] if inverse else []), status=2).stderr.decode()
    for word in says:
        need(word in text, f"the refusal does not name {word}: {text}")
    need(not os.path.exists(out), "a refusal wrote a file")


def test_refusals(t):
    w = {f"e.{i}.{k}": torch.randn(4, 6) for i in range(4) for k in ("up", "down")}
    stack = [{"from": [f"e.{{i}}.{k}"], "to": [k], "do": [{"stack": 0}]} for k in ("up", "down")]
    for lost in ("e.0.up", "e.2.down", "e.3.up"):  # the first, one inside, the last
        refused(t, {k: v for k, v in w.items() if k != lost}, stack, lost)
    refused(t, w, stack[:1], "e.0.down")
    layers = {f"{layer}.{k}": v.clone() for layer in range(2) for k, v in w.items()}
    by_layer = [{"from": [f"{{l}}.e.{{i}}.{k}"], "to": [f"{{l}}.{k}"], "do": [{"stack": 0}]} for k in ("up", "down")]
    refused(t, {k: v for k, v in layers.items() if not (k.startswith("1.") and k.endswith("down"))}, by_layer, "'1.e'", "down")
    refused(t, {"a": torch.zeros(4), "b": torch.zeros(3)}, [{"from": ["a", "b"], "to": ["c"], "do": [{"concat": 1}]}], "'a'", "dim 1")
    refused(t, {"a": torch.zeros(4)}, [{"from": ["a"], "to": ["c"], "do": [{"reshape": [5]}]}], "'a' [4]", "reshape")
    refused(t, {"a": torch.zeros(6)}, [{"from": ["a"], "to": ["c"], "do": [{"permute_rope": {"heads": "$num_heads"}}]}], "num_heads", "config.json")
    refused(t, {"a": torch.zeros(6)}, [{"from": ["a", "b"], "to": ["c"], "do": [{"concat": 0}]}], "'b' is missing")
    refused(t, {"c": torch.zeros(6)}, [{"from": ["a", "b"], "to": ["c"], "do": [{"concat": 0}]}], "concat", "no inverse", inverse=True)
    refused(t, {"a": torch.zeros(6), "b": torch.zeros(6)}, [{"from": ["a"], "to": ["b"]}], "'b' would be written twice", unmatched="keep")


def test_scaled(t):
    torch.manual_seed(1)
    w, s = torch.randn(2, 300, 200).to(torch.float8_e4m3fn), torch.rand(2, 3, 2)
    q, r = torch.randint(-128, 128, (7, 64), dtype=torch.int8), torch.rand(7, 4)
    h, one = torch.randn(9, 5).to(torch.float8_e5m2), torch.tensor(0.37)
    source, out = os.path.join(t.scratch, "s.safetensors"), os.path.join(t.scratch, "o.safetensors")
    save_file({"w": w, "w_scale_inv": s, "q.weight": q, "q.weight_scale": r, "h": h, "h_scale": one, "n": torch.randn(3)}, source)
    full = s.repeat_interleave(128, 1)[:, :300].repeat_interleave(128, 2)[:, :, :200]
    want = {"w": w.float() * full, "q.weight": q.float() * r.repeat_interleave(16, 1), "h": h.float() * one}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        t.run("convert", source, out, "--to", "safetensors", "--dequantize", "--dtype", str(dtype)[6:], "--overwrite")
        got = load_file(out)
        need(set(got) == {*want, "n"}, f"names {sorted(got)}")
        for k in want:
            need(torch.equal(got[k], want[k].to(dtype)), f"{k} as {dtype}")
    save_file({"w": w, "w_scale": torch.rand(2, 7, 2)}, source)
    text = t.run("convert", source, out, "--to", "safetensors", "--dequantize", "--overwrite", status=2).stderr.decode()
    need("w_scale" in text and "[2, 7, 2]" in text, text)
