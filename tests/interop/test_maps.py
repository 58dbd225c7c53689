"""Maps against torch: random tensors and steps, in safetensors and in sharded DCP; the inverse; refusals; scaled numbers."""
import json
import os
import random

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from map_fuzz import DIFFERED_ONCE, run_seeds

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


def write(directory, name, document):
    path = os.path.join(directory, name)
    with open(path, "w") as f:
        json.dump(document, f)
    return path


def same(got, want, what):
    need(set(got) == set(want), f"{what}: names {sorted(set(got) ^ set(want))[:5]}")
    for k in want:
        need(got[k].dtype == want[k].dtype and torch.equal(got[k], want[k]), f"{what}: {k}")


def test_transposes_of_every_size_of_element(t):
    """Larger than the tiles that elements are turned in, and not a multiple of them; in little memory rows are read apart."""
    dtypes = [torch.uint8, torch.bfloat16, torch.float32, torch.float64]
    shapes = [(200, 331), (64, 4096), (3, 130, 515), (1031, 1999)]
    steps = {2: [1, 0], 3: [0, 2, 1]}
    stored = {f"{n}.{len(shape)}.{i}": torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8).view(dtype).squeeze(-1)
              for n, dtype in enumerate(dtypes) for i, shape in enumerate(shapes)}
    source = os.path.join(t.scratch, "in.safetensors")
    save_file(stored, source)
    rules = [{"from": [f"{{n}}.{ndim}.{{i}}"], "to": [f"turned.{{n}}.{ndim}.{{i}}"], "do": [{"transpose": dims}]} for ndim, dims in steps.items()]
    document = write(t.scratch, "map.json", {"schema": "tessera.map/1", "rules": rules})
    for memory in ("256KiB", "1MiB", "16MiB"):
        out = os.path.join(t.scratch, f"{memory}.safetensors")
        t.run("convert", source, out, "--map", document, "--max-mem", memory)
        got = load_file(out)
        need(set(got) == {"turned." + n for n in stored}, sorted(got))
        for name, x in stored.items():
            y = x.permute(steps[x.ndim]).contiguous()
            need(torch.equal(got["turned." + name].view(torch.uint8), y.view(torch.uint8)), f"{name} with {memory}")


def save_sharded(directory, tensors):
    """As ranks save DTensors, without processes: every tensor in row shards and column shards of uneven sizes."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata
    from torch.distributed.checkpoint.filesystem import _StorageInfo, _StoragePrefix  # noqa: F401
    import pickle
    import io
    meta, storage = {}, {}
    os.makedirs(directory)
    with open(os.path.join(directory, "__0_0.distcp"), "wb") as f:
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
    with open(os.path.join(directory, ".metadata"), "wb") as f:
        pickle.dump(Metadata(meta, {k: [k] for k in tensors}, storage), f)


def test_random_maps(t):
    for seed in range(12):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        directory = os.path.join(t.scratch, str(seed))
        rules, sources, results = [], {}, {}
        for n in range(8):
            rule, inputs, outputs = random_rule(rng, n)
            rules.append(rule)
            sources.update(inputs)
            results.update({k: v.contiguous() for k, v in outputs.items()})
        save_sharded(directory, sources)
        loaded = {k: torch.empty_like(v) for k, v in sources.items()}
        dcp.load(loaded, checkpoint_id=directory, no_dist=True)
        same(loaded, sources, "the sample itself")
        write(directory, "config.json", {"num_heads": HEADS})
        path = write(t.scratch, f"map{seed}.json", {"schema": "tessera.map/1", "rules": rules})
        out = os.path.join(t.scratch, f"out{seed}.safetensors")
        t.run("convert", directory, out, "--to", "safetensors", "--map", path)
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


def test_random_maps_of_every_kind(t):
    """Also with what is dropped, kept and ambiguous, against an evaluator of their own; first those that went wrong once."""
    said = []
    counts, wrong = run_seeds(t.path, [*DIFFERED_ONCE, *range(1, 121), *range(2, 600, 5)], said.append)
    need(not wrong, "\n".join(said))
    need(all(counts[what] for what in ("identity", "refused", "inverse refused", "inverse guessed right and said so")), counts)


def refused(t, tensors, rules, *says, inverse=False, unmatched="refuse"):
    source = os.path.join(t.scratch, "refused.safetensors")
    save_file(tensors, source)
    path = write(t.scratch, "refused.json", {"schema": "tessera.map/1", "rules": rules, "unmatched": unmatched})
    out = os.path.join(t.scratch, "refused-out.safetensors")
    text = t.run("convert", source, out, "--to", "safetensors", "--map", path, *(["--inverse"] if inverse else []), status=2).stderr.decode()
    for word in says:
        need(word in text, f"the refusal does not name {word}: {text}")
    need(not os.path.exists(out), "a refusal wrote a file")


def test_sizes_for_the_inverse_are_true(t):
    """`from` of a step: with another size the inverse would make another tensor."""
    x = torch.randn(4, 6)
    for step, says in (({"pad": 1, "to": 8, "value": 0, "from": 5}, "size 5"), ({"trim": 0, "to": 3, "from": 5, "value": 0}, "size 5"),
                       ({"reshape": [24], "from": [6, 4]}, "size 6"), ({"reshape": [24], "from": [4, 6, 1]}, "number of dims: 3")):
        refused(t, {"a": x}, [{"from": ["a"], "to": ["b"], "do": [step]}], "'a' [4, 6]", 'in "from"', says)
    source, there, back = (os.path.join(t.scratch, f"{n}.safetensors") for n in ("source", "there", "back"))
    save_file({"a": x}, source)
    for step in ({"trim": 0, "to": 3, "from": "$not_in_config", "value": 0}, {"trim": 0, "to": 3, "from": 4, "value": 0}):
        path = write(t.scratch, "map.json", {"schema": "tessera.map/1", "rules": [{"from": ["a"], "to": ["b"], "do": [step]}]})
        t.run("convert", source, there, "--map", path, "--overwrite")
        same(load_file(there), {"b": x[:3]}, f"{step}")
    t.run("convert", there, back, "--map", path, "--inverse")
    same(load_file(back), {"a": torch.cat([x[:3], torch.zeros(1, 6)])}, "padded again")


def test_names_that_two_rules_make(t):
    """The inverse sends a name to where the map takes it from, or refuses it where that is not known."""
    def rule(a, b):
        return {"from": [a], "to": [b]}

    source, there, back = (os.path.join(t.scratch, f"{n}.safetensors") for n in ("source", "there", "back"))
    two_towers = [{**rule("a.v.{r...}", "t.{r...}"), "inverse": {"with": "t.deep.w"}}, rule("a.{r...}", "t.{r...}")]
    for rules, names in (([rule("b", "t.b"), rule("a.{x}", "t.{x}")], ["b", "a.c"]),  # an exception, then what holds for the others
                         ([rule("b", "t.b"), rule("{rest...}", "t.{rest...}")], ["b", "a.c"]),
                         ([rule("a.b", "z"), rule("a.{x}", "t.{x}"), rule("c", "t.b")], ["a.b", "a.d", "c"]),  # a.b is not made of t.b
                         (two_towers, ["a.v.deep.w", "a.v.b"]), (two_towers, ["a.flat.w", "a.b"])):  # where t.deep.w is, from a.v
        stored = {n: torch.randn(3, 2) for n in names}
        save_file(stored, source)
        path = write(t.scratch, "map.json", {"schema": "tessera.map/1", "rules": rules})
        t.run("convert", source, there, "--map", path, "--overwrite")
        t.run("convert", there, back, "--map", path, "--inverse", "--overwrite")
        same(load_file(back), stored, f"{rules}")
    x = torch.zeros(2)
    refused(t, {"t.b": x, "t.deep.w": x + 1}, [rule("a.v.{r...}", "t.{r...}"), two_towers[1]], "'t.b' may come from 'a.v.b' or from 'a.b'", inverse=True)
    refused(t, {"t.b": x}, [rule("a.{x}", "t.{x}"), rule("b", "t.b")], "'t.b' may come from 'a.b' or from 'b'", inverse=True)
    refused(t, {"n.1.x.w": x}, [rule("{r...}.u", "n.1.{r...}"), rule("{r...}.v", "n.{r...}.w")], "'n.1.x.w' may come from 'x.w.u' or from '1.x.v'", inverse=True)


def test_names_without_a_way_back(t):
    """A name that the map does not make is refused, with the rules; one that it may also have made otherwise is said."""
    def rule(a, b):
        return {"from": [a], "to": [b] if b else []}

    rest, one = [rule("x.{r...}", None), rule("{r...}.q", "{r...}")], torch.zeros(2)
    stacked = {"from": ["e.{i}.up"], "to": ["up"], "do": [{"stack": 0}]}
    for unmatched, rules, stored, *says in (
            ("keep", [rule("a", "b")], {"a": one}, "'a' has no way back to 'a', because the map's rule 'a' takes that, not 'unmatched'"),
            ("refuse", [rule("a", "b")], {"a": one}, "no rule of the map matches 'a'"),
            ("keep", rest, {"x.y": one}, "'x.y' has no way back to 'x.y.q'", "the map's rule 'x.{r...}' takes that, not '{r...}.q'"),
            ("drop", rest, {"x.y": one}, "'x.y' has no way back to 'x.y.q'", "the map's rule 'x.{r...}' takes that, not '{r...}.q'"),
            ("refuse", [rule("e.3.up", "s"), stacked], {"up": torch.zeros(4, 2)}, "'up' has no way back to 'e.3.up'", "'e.3.up' takes that, not 'e.{i}.up'"),
            ("refuse", [{"from": ["{a}.p.{b}", "p.{a}.{b}"], "to": ["{a}.{b}"], "do": [{"concat": 0, "parts": 2}]}], {"p.x": one}, "'p.x' has no way back to 'p.p.x'")):
        refused(t, stored, rules, *says, inverse=True, unmatched=unmatched)
    source, there, back = (os.path.join(t.scratch, f"{n}.safetensors") for n in ("source", "there", "back"))
    for rules, names, want, says in (([rule("{r...}.0", "{r...}.b")], ["w.0", "k"], ["w.0", "k"], "'w.b', for example, is taken to come from 'w.0', but may also come from 'w.b'\n"),
                                     ([rule("{r...}.0", "{r...}.b")], ["w.b", "v.0", "k"], ["w.0", "v.0", "k"], "but may also come from 'v.b'\n"),
                                     ([rule("b", "t.b"), rule("a.{x}", "t.{x}"), rule("t.{x}", "u.{x}")], ["b", "a.c"], ["b", "a.c"], "'t.b', for example, is taken to come from 'b', but may also come from 'a.b'\n"),
                                     ([rule("{r...}.0", "n.{r...}.b"), rule("n.{r...}", "{r...}.n")], ["w.0", "n.k"], ["w.0", "n.k"], "'k.n', for example, is taken to come from 'n.k'"),
                                     ([rule("a.{x}", "b.{x}"), rule("b.{x}", "c.{x}")], ["a.0", "k"], ["a.0", "k"], None)):
        save_file({n: torch.randn(2, 3) for n in names}, source)
        path = write(t.scratch, "map.json", {"schema": "tessera.map/1", "unmatched": "keep", "rules": rules})
        t.run("convert", source, there, "--map", path, "--overwrite")
        found = t.run("convert", there, back, "--map", path, "--inverse", "--overwrite", "--json")
        need(set(load_file(back)) == set(want), f"{rules}: {sorted(load_file(back))}")
        noted = [w for w in json.loads(found.stdout)["warnings"] if "is taken to come from" in w]
        need(bool(noted) == bool(says) and (not says or says in found.stderr.decode() and says.strip() in noted[0]), f"{rules}: {noted} {found.stderr}")


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
    steps = {"split": {"dim": 0, "sizes": [3, 3]}}, {"permute_rope": 4}, {"trim": 0, "to": [5]}, 7
    for step, at in zip(steps, ("do[1].split", "do[1].permute_rope", "do[1]", "do[1]")):
        refused(t, {"a": torch.zeros(6)}, [{"from": ["a"], "to": ["b", "c"], "do": [{"reshape": [2, 3]}, step]}], f"rules[0].{at}")
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


def test_a_scale_that_is_missing(t):
    """Of one tensor among others that have theirs; numbers that never have one are kept as they are."""
    torch.manual_seed(7)
    source, out = os.path.join(t.scratch, "s.safetensors"), os.path.join(t.scratch, "o.safetensors")
    fp8 = {f"l.{i}.{n}.weight": torch.randn(4, 32).to(torch.float8_e4m3fn) for i in range(2) for n in ("q", "k")}
    packed = {f"l.{i}.e_blocks": torch.randint(0, 256, (2, 3, 1, 16), dtype=torch.uint8) for i in range(2)}
    forms = ((fp8, {k + "_scale_inv": torch.rand(1, 1) for k in fp8}), (fp8, {k + "_scale": torch.rand(4, 1) for k in fp8}),
             (packed, {k.replace("_blocks", "_scales"): torch.full((2, 3, 1), 127 + i, dtype=torch.uint8) for i, k in enumerate(packed)}))
    for numbers, scales in forms:
        for lost in scales:
            save_file(numbers | {k: v for k, v in scales.items() if k != lost}, source)
            said = t.run("convert", source, out, "--dequantize", "--dtype", "float32", status=2).stderr.decode()
            data = next(k for k in numbers if k in (lost.removesuffix("_scale_inv"), lost.removesuffix("_scale"), lost.replace("_scales", "_blocks")))
            need(f"'{data}' is " in said and " and has no scale that fits it, unlike '" in said and not os.path.exists(out), said)
        t.run("convert", source, out, "--dequantize", "--exclude", data)
        os.remove(out)
    plain = {"table": torch.randn(3).to(torch.float8_e4m3fn), "n.weight": torch.randn(3), "m.weight": torch.arange(3, dtype=torch.int8)}
    save_file(fp8 | forms[0][1] | plain, source)
    t.run("convert", source, out, "--dequantize")
    got = load_file(out)
    need(all(got[k].dtype == v.dtype and torch.equal(got[k].float(), v.float()) for k, v in plain.items()) and len(got) == 7, "what has no scale")


def test_quantized_weights_that_lack_something_are_named(t):
    """Parts of what GPTQ, AWQ and bitsandbytes store, with and without the config.json that says whose they are."""
    directory, out = os.path.join(t.scratch, "model"), os.path.join(t.scratch, "out.safetensors")
    os.makedirs(directory)
    ints, halves = torch.arange(8, dtype=torch.int32).reshape(2, 4), torch.rand(1, 4).half()
    unknown = ("'q.scales'", "quant_method, which config.json next to it would state, is not known")
    for method, tensors, lacking, without in (("gptq", {"q.qweight": ints, "q.scales": halves}, ("is GPTQ", "no 'q.qzeros'"), unknown),
                                              ("awq", {"q.qweight": ints, "q.scales": halves}, ("is AWQ", "no 'q.qzeros'"), unknown),
                                              ("bitsandbytes", {"q.weight": torch.ones(8, 1, dtype=torch.uint8), "q.weight.absmax": torch.rand(2)},
                                               ("'q.weight.absmax'", "no quant_state"), ("'q.weight.absmax'", "no quant_state"))):
        save_file({**tensors, "n.weight": torch.ones(2)}, os.path.join(directory, "model.safetensors"))
        write(directory, "config.json", {"quantization_config": {"quant_method": method}})
        for has_config, words in ((True, lacking), (False, without)):
            if not has_config:
                os.remove(os.path.join(directory, "config.json"))
            said = t.run("convert", directory, out, "--dequantize", status=2).stderr.decode()
            need(all(w in said for w in (f"'{next(iter(tensors))}'", *words)) and not os.path.exists(out), said)


def blocks(x, s, rows, columns):
    """x times its scales in float32, as transformers multiplies them."""
    return x.float() * s.repeat_interleave(rows, 0)[:x.shape[0]].repeat_interleave(columns, 1)[:, :x.shape[1]]


def unpack_mxfp4(pairs, exponents):
    """As transformers' convert_moe_packed_tensors computes them, without its last exchange of axes."""
    values = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
    numbers = torch.stack([values[(pairs & 15).long()], values[(pairs >> 4).long()]], -1).flatten(-2)
    return torch.ldexp(numbers, (exponents.int() - 127)[..., None]).flatten(-2)


DEQUANTIZING = {"schema": "tessera.map/1", "rules": [
    {"from": ["l.{layer}.e.{i}.gate.weight", "l.{layer}.e.{i}.up.weight"], "to": ["layers.{layer}.gate_up"],
     "do": [{"dequantize": {"scale": ["l.{layer}.e.{i}.gate.weight_scale_inv", "l.{layer}.e.{i}.up.weight_scale_inv"], "scheme": "block", "block": [4, "$width"],
                            "dtype": "float32"}}, {"concat": 0}, {"stack": 0}, {"transpose": [0, 2, 1]}]},
    {"from": ["row.weight"], "to": ["row.w"], "do": [{"dequantize": {"scale": "row.weight_scale", "scheme": "row"}}]},
    {"from": ["{n}.one"], "to": ["one.{n}"], "do": [{"dequantize": {"scale": "{n}.one_scale", "scheme": "tensor", "dtype": "float16"}}]},
    {"from": ["x_blocks"], "to": ["x"], "do": [{"dequantize": {"scale": "x_scales", "scheme": "mxfp4"}}, {"transpose": [0, 2, 1]}]},
    {"from": ["norm"], "to": ["norm"]}]}


def scaled_model():
    torch.manual_seed(8)
    def fp8(*shape):
        return torch.randn(*shape).to(torch.float8_e4m3fn)
    model = {"norm": torch.randn(3), "row.weight": torch.randint(-128, 128, (6, 5), dtype=torch.int8), "row.weight_scale": torch.rand(6, 1),
             "w.one": torch.randn(3, 4).to(torch.float8_e5m2), "w.one_scale": torch.tensor(0.3),
             "x_blocks": torch.randint(0, 256, (2, 3, 4, 16), dtype=torch.uint8), "x_scales": torch.randint(120, 134, (2, 3, 4), dtype=torch.uint8)}
    for name in (f"l.{n}.e.{i}.{part}.weight" for n in range(2) for i in range(11) for part in ("gate", "up")):
        model[name], model[name + "_scale_inv"] = fp8(10, 7), torch.rand(3, 3)
    return model


def test_dequantize_steps(t):
    """Scales are bound like tensors; their products go through the steps behind; every name is used."""
    model, directory, out = scaled_model(), os.path.join(t.scratch, "in"), os.path.join(t.scratch, "out.safetensors")
    os.makedirs(directory)
    save_file(model, os.path.join(directory, "model.safetensors"))
    write(directory, "config.json", {"width": 3, "torch_dtype": "bfloat16"})
    path = write(t.scratch, "map.json", DEQUANTIZING)
    t.run("convert", directory, out, "--map", path)
    want = {"norm": model["norm"], "row.w": (model["row.weight"].float() * model["row.weight_scale"]).bfloat16(), "one.w": (model["w.one"].float() * model["w.one_scale"]).half(),
            "x": unpack_mxfp4(model["x_blocks"], model["x_scales"]).bfloat16().transpose(1, 2)}
    for n in range(2):
        experts = [torch.cat([blocks(model[f"l.{n}.e.{i}.{p}.weight"], model[f"l.{n}.e.{i}.{p}.weight_scale_inv"], 4, 3) for p in ("gate", "up")]) for i in range(11)]
        want[f"layers.{n}.gate_up"] = torch.stack(experts).transpose(1, 2)
    same(load_file(out), want, "dequantize steps")
    t.run("diff", directory, out, "--values", "--map", path)
    t.run("reshard", directory, os.path.join(t.scratch, "dcp"), "--mesh", "dp=2", "--placements", "shard(0)", "--to", "dcp", "--map", path)
    t.run("diff", os.path.join(t.scratch, "dcp"), out, "--values")
    table = t.run("convert", directory, out, "--overwrite", "--map", path, "--dry-run").stderr.decode()
    need("row.weight, row.weight_scale -> dequantize -> row.w bfloat16 [6, 5]" in table, table)


def test_the_table_is_whole(t):
    """Every source of a tensor that thousands make, in lines that are not too long and in JSON; through all layers; and no escape sequences."""
    source, out = os.path.join(t.scratch, "in.safetensors"), os.path.join(t.scratch, "out.safetensors")
    names = [f"m.experts.{i}.{part}.weight" for part in ("up", "down") for i in range(1500)]
    odd, long = "clear\x1b[2Jscreen\n", "x" * 3000
    save_file({n: torch.zeros(2, 3) for n in names} | {odd: torch.zeros(1), long: torch.zeros(1), "gone": torch.zeros(4)}, source)
    rules = [{"from": [f"m.experts.{{i}}.{part}.weight" for part in ("up", "down")], "to": ["all"], "do": [{"concat": 0}, {"stack": 0}]}, {"from": ["gone"], "to": []}]
    path = write(t.scratch, "map.json", {"schema": "tessera.map/1", "rules": rules, "unmatched": "keep"})
    table = t.run("convert", source, out, "--map", path, "--dry-run").stderr.decode()
    listed = table[table.index("m.experts.0"):table.index(" -> concat, stack -> all float32 [1500, 4, 3]\n")]
    need(listed.replace(",\n    ", ", ").split(", ") == names, listed[:300])
    need(max(map(len, listed.split("\n"))) <= 122, "a line is too long")
    need("\x1b" not in table and "clear\\x1b[2Jscreen\\x0a -> clear\\x1b" in table and f"{long} -> {long} float32 [1]\n" in table and "gone -> (dropped)\n" in table, table[-400:])
    found = t.json("convert", source, out, "--map", path, "--dry-run", "--json")
    rows = {r["fqn"]: r for r in found["map"]}
    need(set(rows) == {"all", odd, long} and [s["fqn"] for s in rows["all"]["from"]] == names and rows["all"]["steps"] == ["concat", "stack"], "the table in JSON")
    need(found["dropped"] == [{"fqn": "gone", "dtype": "float32", "shape": [4]}] and not os.path.exists(out), found["dropped"])
    need("map" not in t.json("convert", source, out, "--dry-run", "--json") and "map" not in t.json("convert", source, out, "--map", path, "--json"), "a table without need")
    w = torch.randn(256, 128).to(torch.float8_e4m3fn)
    save_file({"w.weight": w, "w.weight_scale_inv": torch.rand(2, 1), "n": torch.ones(3)}, source)
    path = write(t.scratch, "map.json", {"schema": "tessera.map/1", "rules": [{"from": ["{r...}"], "to": ["m.{r...}"]}]})
    options = ["--dequantize", "--map", path, "--quantize", "fp8-block", "--dry-run", "--overwrite"]
    table = t.run("convert", source, out, *options).stderr.decode()
    for ending, kind in (("", "float8_e4m3fn [256, 128]"), ("_scale_inv", "float32 [2, 1]")):
        need(f"w.weight, w.weight_scale_inv -> dequantize, quantize -> m.w.weight{ending} {kind}\n" in table, table)
    need("\nn -> m.n float32 [3]\n" in table, table)
    rows = {r["fqn"]: r for r in t.json("convert", source, out, *options, "--json")["map"]}
    need(rows["m.w.weight"]["from"][0] == {"fqn": "w.weight", "dtype": "float8_e4m3fn", "shape": [256, 128]} and rows["m.n"]["steps"] == [], rows)


def test_numbers_are_not_parted_from_their_scales(t):
    """An FP8 model through a map that stacks its experts and keeps everything else would keep scales of weights that are no longer there."""
    torch.manual_seed(2)
    source, out = os.path.join(t.scratch, "in.safetensors"), os.path.join(t.scratch, "out.safetensors")
    for name, part, weights in (("transformers-deepseek_v3", "mlp", ("gate_proj", "up_proj", "down_proj")), ("transformers-mixtral", "block_sparse_moe", ("w1", "w3", "w2"))):
        stored, want = {}, {}
        for n, dtype in enumerate((torch.float8_e4m3fn, torch.int8)):
            ending = ("_scale_inv", "_scale")[n]
            for k in (f"model.layers.1.{part}.experts.{e}.{w}.weight" for e in range(2) for w in weights):
                stored[k] = (torch.randn(128, 128) * 9).to(dtype)
                stored[k + ending], want[k] = torch.rand(1, 1), None
                want[k] = stored[k].float() * stored[k + ending]
            stored |= {f"model.layers.1.{part}.gate.weight": torch.randn(2, 128)}
            save_file(stored, source)
            said = t.run("convert", source, out, "--map", name, status=2).stderr.decode()
            need("by which it is scaled; pass --dequantize" in said and ".weight" + ending + "'" in said and not os.path.exists(out), said)
            t.run("convert", source, out, "--map", name, "--dequantize", "--dtype", "float32")
            layer, pairs = "model.layers.1.mlp.experts.", [[want[f"model.layers.1.{part}.experts.{e}.{w}.weight"] for w in weights] for e in range(2)]
            got = load_file(out)
            need(torch.equal(got[layer + "gate_up_proj"], torch.stack([torch.cat(p[:2]) for p in pairs])) and torch.equal(got[layer + "down_proj"], torch.stack([p[2] for p in pairs])), name)
            os.remove(out)
            stored = {}
    model = {"a": torch.ones(2, 2).to(torch.float8_e4m3fn), "a_scale": torch.ones(2, 1), "b.weight": torch.ones(2, 2), "b.weight_scale": torch.ones(2, 1)}
    for rule, unmatched, status in (({"from": ["a"], "to": ["c"]}, "keep", 2), ({"from": ["a"], "to": ["c"]}, "drop", 2), ({"from": ["a"], "to": ["a"]}, "keep", 0),
                                    ({"from": ["b.weight"], "to": ["c"]}, "keep", 0), ({"from": ["{r...}"], "to": ["m.{r...}"]}, "keep", 0), ({"from": ["a"], "to": []}, "keep", 0)):
        save_file(model, source)
        document = write(t.scratch, "map.json", {"schema": "tessera.map/1", "rules": [rule], "unmatched": unmatched})
        t.run("convert", source, out, "--map", document, "--overwrite", status=status)


def test_dequantize_refusals(t):
    def rule(**step):
        return [{"from": ["w"], "to": ["v"], "do": [{"dequantize": {"scale": "s", "scheme": "block", **step}}]}]
    w, fits = torch.ones(300, 200).to(torch.float8_e4m3fn), torch.ones(3, 2)
    refused(t, {"w": w}, rule(), "'s' is missing", "together with 'w'")
    refused(t, {"w": w, "s": torch.ones(300, 1)}, rule(), "'s' [300, 1] does not fit 'w' [300, 200]")
    refused(t, {"w": w, "s": fits}, rule(scheme="row"), "'s' [3, 2] does not fit 'w'")
    refused(t, {"w": w, "s": fits}, rule(scheme="tensor"), "'s' [3, 2] does not fit 'w'")
    refused(t, {"w": w, "s": fits}, rule(scheme="mxfp4"), "'s' [3, 2] does not fit 'w'")
    refused(t, {"w": w, "s": fits}, rule(block=[0, 128]), "block of size 0")
    refused(t, {"w": w, "s": fits}, rule(block=[128]), "a block of two numbers")
    refused(t, {"w": w, "s": fits}, rule(scheme="fp4"), "the scheme is 'fp4'; allowed are block, row, tensor, mxfp4 and nvfp4")
    refused(t, {"w": w, "s": fits}, rule(dtype="int8"), "cannot become int8")
    refused(t, {"w": w, "s": fits}, rule(zero="z"), "unknown member 'zero'")
    refused(t, {"w": w, "s": fits}, rule(scale=["s", "t"]), "names 2 scales for 1 tensors")
    refused(t, {"w": w, "s": fits}, rule(scale="{a}.s"), "do not have the same captures")
    refused(t, {"w": w.float(), "s": fits}, rule(), "'w' is float32, but only float8 and int8")
    refused(t, {"w": w, "s": fits.int()}, rule(), "'s' is int32, which cannot be a scale")
    refused(t, {"w": w, "s": fits}, [{"from": ["w"], "to": ["v"], "do": [{"cast": "float32"}, *rule()[0]["do"]]}], "must be the first")
    refused(t, {"v": w}, rule(), "dequantize", "no inverse", inverse=True)
