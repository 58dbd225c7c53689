"""Plain tensors of several ranks, cut from whole ones by torch as the frameworks cut them, and joined again by maps."""
import argparse
import json
import os

from harness import load_dcp, load_safetensors


def tensor(seed, *shape, dtype=None):
    """Values that differ by tensor and by element."""
    import torch
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype or torch.float32)


def write_map(t, name, rules, **more):
    path = t.at(name)
    with open(path, "w") as f:
        json.dump({"schema": "tessera.shards/1", **more, "rules": rules}, f)
    return path


def save(t, case, files):
    """{relative path: state dict} by torch.save or safetensors, after the path's end."""
    import torch
    from safetensors.torch import save_file
    for name, state in files.items():
        path = t.at(case, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if name.endswith(".safetensors"):
            save_file({k: v.contiguous() for k, v in state.items()}, path)
        else:
            torch.save(state, path)
    return t.at(case)


def check(got, want):
    import torch
    assert set(got) == set(want), sorted(set(got) ^ set(want))[:4]
    for name, tensor_ in want.items():
        assert got[name].dtype == tensor_.dtype and got[name].shape == tensor_.shape, (name, got[name].shape, tensor_.shape)
        assert torch.equal(got[name], tensor_), f"{name}: different values"


def joined(t, path, shards, *args):
    """What every form that is written holds, by its own library."""
    import torch
    out, dcp, pt = t.at("joined.safetensors"), t.at("joined"), t.at("joined.pt")
    t.run("convert", path, out, "--to", "safetensors", "--shards", shards, "--objects", "drop", "--overwrite", *args)
    t.run("convert", path, dcp, "--to", "dcp", "--shards", shards, "--objects", "drop", "--overwrite", *args)
    t.run("convert", path, pt, "--to", "torch", "--shards", shards, "--objects", "drop", "--overwrite", *args)
    got = load_safetensors(out)
    check(load_dcp(dcp), got)
    t.run("diff", out, pt, "--values")
    t.run("validate", path, "--deep", "--shards", shards)
    assert torch is not None
    return got


def written(t, source, shards, files, *args):
    """`--to ranks` writes these files, and nothing else: {name: state dict}; and they join to the source again."""
    import shutil
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    import torch
    shutil.rmtree(t.at("cut"), ignore_errors=True)
    t.run("convert", source, t.at("cut"), "--to", "ranks", "--shards", shards, *args)
    assert sorted(os.listdir(t.at("cut"))) == sorted(files), os.listdir(t.at("cut"))
    for name, state in files.items():
        got = load_safetensors(t.at("cut", name)) if name.endswith(".safetensors") else flatten_state_dict(torch.load(t.at("cut", name), weights_only=True))[0]
        want = flatten_state_dict(state)[0]
        check({k: v for k, v in got.items() if isinstance(v, torch.Tensor)}, {k: v for k, v in want.items() if isinstance(v, torch.Tensor)})
        assert {k: v for k, v in got.items() if not isinstance(v, torch.Tensor)} == {k: v for k, v in want.items() if not isinstance(v, torch.Tensor)}, name


def fused(parts, ranks, dim=0):
    """Each rank's tensor of several that are fused: its share of each, one after another."""
    import torch
    return [torch.cat([p.chunk(ranks, dim)[r] for p in parts], dim) for r in range(ranks)]


# ---- rules ----


def test_every_rule_in_every_container(t):
    import torch
    for ending in ("pt", "safetensors"):
        for ranks in (1, 2, 3):
            whole = {"rows": tensor(1, 6 * ranks, 4), "cols": tensor(2, 4, 3 * ranks, dtype=torch.bfloat16), "mid": tensor(3, 2, 2 * ranks, 5),
                     "bias": tensor(4, 4 * ranks), "norm": tensor(5, 7), "scalar": tensor(6)}
            gate, up, q, k = tensor(7, 2 * ranks, 3), tensor(8, 2 * ranks, 3), tensor(9, 3, 4 * ranks), tensor(10, 3, 2 * ranks)
            glu, qk = fused([gate, up], ranks), fused([q, k], ranks, 1)
            state = [{"rows": whole["rows"].chunk(ranks)[r], "cols": whole["cols"].chunk(ranks, 1)[r], "mid": whole["mid"].chunk(ranks, 1)[r],
                      "bias": whole["bias"].chunk(ranks)[r], "norm": whole["norm"], "scalar": whole["scalar"], "glu": glu[r], "qk": qk[r],
                      "expert": tensor(20 + r, 3, 2), "last": tensor(30 + r, 3, 2), "own": tensor(40 + r, 5)} for r in range(ranks)]
            whole.update({"glu": torch.cat([gate, up]), "qk": torch.cat([q, k], 1), "own": state[ranks - 1]["own"],
                          "expert": torch.stack([s["expert"] for s in state]), "last": torch.stack([s["last"] for s in state], -1)})
            rules = [{"match": "rows", "concat": 0}, {"match": "cols", "concat": -1}, {"match": "mid", "concat": 1}, {"match": "bias", "concat": 0},
                     {"match": "glu", "concat": 0, "blocks": 2}, {"match": "qk", "concat": 1, "blocks": [4, 2]}, {"match": "expert", "stack": 0},
                     {"match": "last", "stack": -1}, {"match": "own", "only_rank": ranks - 1}, {"match": "norm", "replicate": True}]
            path = save(t, f"rules_{ending}_{ranks}", {f"shard.{r}.{ending}": s for r, s in enumerate(state)})
            shards = write_map(t, "rules.json", rules, ranks=f"shard.{{tp}}.{ending}")
            check(joined(t, path, shards), whole)
            # What only one rank has, others do not get back; the rest is cut as it was.
            cut = {f"shard.{r}.{ending}": {k: v for k, v in s.items() if k != "own" or r == ranks - 1} for r, s in enumerate(state)}
            written(t, path, shards, cut)
            written(t, t.at("joined.safetensors"), shards, cut, "--world-size", ranks)


def test_a_padded_vocabulary_is_trimmed_through_whole_ranks(t):
    import torch
    embed = tensor(1, 10, 3)
    for size, dim in ((10, 0), (9, 0), (5, 0), (4, 0), (0, 0), (2, 1)):
        padded = torch.cat([embed, torch.zeros(2, 3)])
        rows = padded if dim == 0 else torch.cat([padded, torch.zeros(12, 1)], 1)
        path = save(t, f"trim_{size}_{dim}", {f"model-rank-{r}-part-0.safetensors": {"e": c, "n": tensor(3, 2)} for r, c in enumerate(rows.chunk(4, dim))})
        shards = write_map(t, "trim.json", [{"match": "e", "concat": dim, "trim": size}])
        check(joined(t, path, shards), {"e": rows[:size] if dim == 0 else rows[:, :size], "n": tensor(3, 2)})


def test_uneven_shards_and_equal_ones_are_concatenated(t):
    import torch
    whole = {"uneven": tensor(1, 7, 2), "zeros": torch.zeros(6)}
    parts = whole["uneven"].split([3, 3, 1])
    path = save(t, "uneven", {f"rank{r}.pt": {"uneven": parts[r].clone(), "zeros": torch.zeros(2)} for r in range(3)})
    shards = write_map(t, "uneven.json", [{"match": "**", "concat": 0}])
    check(joined(t, path, shards), whole)


def test_views_of_larger_storages_and_transposed_shards(t):
    import torch
    whole = {"w": tensor(1, 8, 6), "v": tensor(2, 4, 10)}
    store = [whole["w"].t().contiguous().t().chunk(2)[r] for r in range(2)]  # column-major views of one storage
    path = save(t, "views", {f"rank{r}.pt": {"w": store[r], "v": whole["v"].chunk(2, 1)[r]} for r in range(2)})
    shards = write_map(t, "views.json", [{"match": "w", "concat": 0, "blocks": 2}, {"match": "v", "concat": 1}])
    got = joined(t, path, shards)
    halves = [s.chunk(2) for s in store]
    check(got, {"w": torch.cat([halves[0][0], halves[1][0], halves[0][1], halves[1][1]]), "v": whole["v"]})


def test_copies_of_blocks_are_kept_once_and_compared(t):
    import torch
    q, k = tensor(1, 8, 3), tensor(2, 4, 3)
    state = [{"qk": torch.cat([q.chunk(4)[r], k.chunk(2)[r // 2]])} for r in range(4)]
    path = save(t, "copies", {f"rank{r}.pt": s for r, s in enumerate(state)})
    shards = write_map(t, "copies.json", [{"match": "qk", "concat": 0, "blocks": [2, 2], "copies": [1, 2]}])
    check(joined(t, path, shards), {"qk": torch.cat([q, k])})
    state[3]["qk"] = state[3]["qk"] + torch.tensor([0.0, 0, 0, 1]).reshape(4, 1)
    path = save(t, "copies_differ", {f"rank{r}.pt": s for r, s in enumerate(state)})
    assert b"qk" in t.run("convert", path, t.at("no.safetensors"), "--to", "safetensors", "--shards", shards, status=2).stderr


def test_ranks_are_written_for_another_number(t):
    import torch
    q, k = tensor(1, 8, 3, dtype=torch.float16), tensor(2, 4, 3, dtype=torch.float16)
    path = save(t, "two", {f"rank{r}.pt": {"qk": fused([q, k], 2)[r], "n": tensor(3, 4), "step": 5} for r in range(2)})
    shards = write_map(t, "two.json", [{"match": "qk", "concat": 0, "blocks": [4, 2]}])
    four = write_map(t, "four.json", [{"match": "qk", "concat": 0, "blocks": [2, 2], "copies": [1, 2]}])
    t.run("convert", path, t.at("whole.pt"), "--to", "torch", "--shards", shards)
    written(t, t.at("whole.pt"), four, {f"rank{r}.pt": {"qk": torch.cat([q.chunk(4)[r], k.chunk(2)[r // 2]]), "n": tensor(3, 4), "step": 5} for r in range(4)}, "--world-size", 4)
    check(joined(t, t.at("cut"), four), {"qk": torch.cat([q, k]), "n": tensor(3, 4)})
    written(t, path, shards, {f"rank{r}.pt": {"qk": fused([q, k], 2)[r].float(), "n": tensor(3, 4), "step": 5} for r in range(2)}, "--dtype", "float32")


def test_what_cannot_be_cut_is_refused(t):
    import torch
    torch.save({"w": tensor(1, 6, 5), "s": tensor(2, 3, 2), "layers.4.x": tensor(3, 2)}, t.at("source.pt"))

    def refused(says, rules, *args, **more):
        shards = write_map(t, "bad.json", rules, **more)
        message = t.run("convert", t.at("source.pt"), t.at("no"), "--to", "ranks", "--shards", shards, *args, status=2).stderr.decode()
        assert says in message and not os.path.exists(t.at("no")), message

    refused("--world-size", [])
    refused("'w' has size 5", [{"match": "w", "concat": 1}], "--world-size", 2)
    refused("'w' has size 6", [{"match": "w", "concat": 0, "blocks": 2}], "--world-size", 2)
    refused("'w' has size 6", [{"match": "w", "concat": 0, "blocks": [1, 1]}], "--world-size", 2)
    refused("'s' has size 3", [{"match": "s", "stack": 0}], "--world-size", 2)
    refused("dim 2", [{"match": "w", "concat": 2}], "--world-size", 2)
    refused("rank 2", [{"match": "w", "only_rank": 2}], "--world-size", 2)
    refused("3 pipeline stages", [], "--world-size", 2, stages={"pattern": "**.{layer}.**", "layers": [1, 1, 1]}, ranks="{tp}-{pp}.pt")
    refused("layer 4", [], "--world-size", 2, stages={"pattern": "layers.{layer}.{rest...}", "layers": [1, 1]}, ranks="{tp}-{pp}.pt")
    refused("one file for several", [], "--world-size", 2, stages={"pattern": "layers.{layer}.{rest...}", "layers": [9]}, ranks="{pp}.pt")
    message = t.run("convert", t.at("source.pt"), t.at("no"), "--to", "ranks", "--shards", "vllm", "--world-size", 2, status=2).stderr
    assert b"can only be used for reading" in message, message


# ---- pipeline stages ----


def staged(layers, ranks, tied=False):
    """Whole tensors, and the state of every (tp, pp), in nested dicts as Megatron's older files have them."""
    whole = {"model.embed.weight": tensor(1, 4 * ranks, 3), "model.norm.weight": tensor(2, 3)}
    state, first = {}, 0
    for pp, count in enumerate(layers):
        for tp in range(ranks):
            local = {}
            for n in range(count):
                w = whole.setdefault(f"model.layers.{first + n}.w.weight", tensor(100 + first + n, 2, 2 * ranks))
                b = whole.setdefault(f"model.layers.{first + n}.norm.bias", tensor(200 + first + n, 3))
                local[str(n)] = {"w": {"weight": w.chunk(ranks, 1)[tp]}, "norm": {"bias": b}}
            model = {"layers": local}
            if pp == 0 or tied:
                model["embed"] = {"weight": whole["model.embed.weight"].chunk(ranks)[tp]}
            if pp == len(layers) - 1:
                model["norm"] = {"weight": whole["model.norm.weight"]}
            state[tp, pp] = {"model": model, "iteration": 3}
        first += count
    return whole, state


RULES = [{"match": "**.w.weight", "concat": 1}, {"match": "model.embed.weight", "concat": 0}, {"match": "**", "replicate": True}]


def test_layers_of_stages_get_their_global_numbers(t):
    import torch
    for layers, ranks in (([2, 3, 1], 2), ([1, 11], 1), ([4], 2)):
        whole, state = staged(layers, ranks, tied=True)
        path = save(t, f"pp_{len(layers)}_{ranks}", {f"tp{tp}/pp{pp:02}/weights.pt": s for (tp, pp), s in state.items()})
        more = {"ranks": "tp{tp}/pp{pp}/weights.pt", "stages": {"pattern": "**.layers.{layer}.{rest...}", "layers": layers}}
        shards = write_map(t, "pp.json", RULES, **more)
        check(joined(t, path, shards), whole)
        t.run("convert", path, t.at("nested.pt"), "--to", "torch", "--shards", shards, "--overwrite")
        flat = write_map(t, "flat.json", RULES, **{**more, "ranks": "tp{tp}-pp{pp}.pt"})
        everywhere = {n: whole[n] for n in ("model.embed.weight", "model.norm.weight")}
        for (tp, _), s in state.items():  # what is in no layer is in every stage
            s["model"].update(embed={"weight": everywhere["model.embed.weight"].chunk(ranks)[tp]}, norm={"weight": everywhere["model.norm.weight"]})
        written(t, t.at("nested.pt"), flat, {f"tp{tp}-pp{pp}.pt": s for (tp, pp), s in state.items()}, "--world-size", ranks * len(layers))
        check(joined(t, t.at("cut"), flat), whole)
        t.run("convert", path, t.at("nested.pt"), "--to", "torch", "--shards", shards, "--overwrite")
        nested = torch.load(t.at("nested.pt"), weights_only=True)
        assert sorted(nested["model"]["layers"], key=int) == [str(n) for n in range(sum(layers))]
        assert nested["iteration"] == 3


def test_stages_that_do_not_agree_are_refused(t):
    import torch
    whole, state = staged([1, 1], 2, tied=True)
    files = {f"mp_rank_{tp:02}_{pp:03}/model_optim_rng.pt": s for (tp, pp), s in state.items()}
    path = save(t, "stages", files)
    stages = {"pattern": "**.layers.{layer}.{rest...}", "layers": [1, 1]}
    check(joined(t, path, write_map(t, "ok.json", RULES, stages=stages)), whole)

    def refused(says, path=path, **more):
        message = t.run("convert", path, t.at("no.pt"), "--to", "torch", "--shards", write_map(t, "bad.json", RULES, **more), status=2).stderr.decode()
        assert says in message and not os.path.exists(t.at("no.pt")), message

    refused("needs \"stages\"")
    refused("3 pipeline stages", stages={**stages, "layers": [1, 1, 1]})
    refused("model.layers.0.w.weight", stages={**stages, "layers": [0, 2]})
    os.remove(t.at("stages", "mp_rank_01_001", "model_optim_rng.pt"))
    refused("rank 1 of pipeline stage 1", stages=stages)
    state[1, 1]["model"]["embed"]["weight"] = torch.zeros(4, 3)
    refused("model.embed.weight", save(t, "other", files), stages=stages)


# ---- built-in maps ----


def megatron(tp, pp, layers, gated, old=False):
    """A GPT of megatron.core (or of before), cut as ColumnParallelLinear and RowParallelLinear cut it."""
    import torch
    names = {"embed": "embedding.word_embeddings.weight", "position": "embedding.position_embeddings.weight", "head": "output_layer.weight",
             "layer": "decoder.layers", "norm": "decoder.final_layernorm", "qkv": "self_attention.linear_qkv", "proj": "self_attention.linear_proj",
             "fc1": "mlp.linear_fc1", "fc2": "mlp.linear_fc2", "before": "input_layernorm", "after": "pre_mlp_layernorm"}
    if old:
        names.update({k: "language_model." + names[k] for k in ("embed", "position", "head")}, layer="language_model.encoder.layers",
                     norm="language_model.encoder.final_layernorm", qkv="self_attention.query_key_value", proj="self_attention.dense",
                     fc1="mlp.dense_h_to_4h", fc2="mlp.dense_4h_to_h", after="post_attention_layernorm")
    args = argparse.Namespace(num_layers=sum(layers), tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, swiglu=gated, params_dtype=torch.float32)
    files = {(r, s): {"args": args, "checkpoint_version": 3.0, "iteration": 7, "model": {}} for r in range(tp) for s in range(pp)}
    whole, seed, hidden, ffn = {}, 0, 4, 6 * tp

    def put(stage, name, shape, dim=None, blocks=1, local=None):
        nonlocal seed
        seed += 1
        value = whole["model." + name] = tensor(seed, *shape)
        for r in range(tp):
            parts = value.chunk(blocks, 0) if dim == 0 else [value]
            files[r, stage]["model"][local or name] = value if dim is None else torch.cat([p.chunk(tp, dim)[r] for p in parts], dim).clone()

    put(0, names["embed"], (8 * tp, hidden), 0)
    put(0, names["position"], (5, hidden))
    number = 0
    for stage, count in enumerate(layers):
        for n in range(count):
            for part, shape, dim, blocks in (("before.weight", (hidden,), None, 1), ("qkv.weight", (6 * tp, hidden), 0, 1), ("qkv.bias", (6 * tp,), 0, 1),
                                             ("proj.weight", (hidden, 2 * tp), 1, 1), ("proj.bias", (hidden,), None, 1), ("after.weight", (hidden,), None, 1),
                                             ("fc1.weight", ((2 if gated else 1) * ffn, hidden), 0, 2 if gated else 1),
                                             ("fc1.bias", ((2 if gated else 1) * ffn,), 0, 2 if gated else 1), ("fc2.weight", (hidden, ffn), 1, 1),
                                             ("fc2.bias", (hidden,), None, 1)):
                key, end = part.split(".")
                put(stage, f"{names['layer']}.{number}.{names[key]}.{end}", shape, dim, blocks, f"{names['layer']}.{n}.{names[key]}.{end}")
            number += 1
    put(pp - 1, names["norm"] + ".weight", (hidden,))
    put(pp - 1, names["head"], (8 * tp, hidden), 0)
    name = "mp_rank_{:02}_{:03}/model_optim_rng.pt" if pp > 1 else "mp_rank_{:02}/model_optim_rng.pt"
    return whole, {name.format(*rank): state for rank, state in files.items()}


def test_megatron_gpt(t):
    for number, (tp, pp, layers, gated, old) in enumerate(((2, 1, [2], True, False), (2, 2, [2, 1], True, False), (3, 1, [1], False, True), (1, 2, [1, 2], True, True),
                                                          (1, 1, [1], True, False))):
        whole, files = megatron(tp, pp, layers, gated, old)
        check(joined(t, save(t, f"megatron{number}", files), "megatron-gpt"), whole)


def test_megatron_gpt_refuses_what_it_does_not_know(t):
    import torch
    whole, files = megatron(2, 1, [1], True)
    for r, state in enumerate(files.values()):
        state["model"]["decoder.layers.0.mlp.experts.weight1"] = tensor(r, 2, 2)
        state["rng_state"] = [{"cuda_rng_state": torch.full((3,), r, dtype=torch.uint8)}]
    path = save(t, "experts", files)
    message = t.run("convert", path, t.at("no.pt"), "--to", "torch", "--shards", "megatron-gpt", status=2).stderr.decode()
    assert "experts.weight1" in message and "rng_state.0.cuda_rng_state" in message, message
    check(joined(t, path, "megatron-gpt", "--exclude", "rng_state.**", "--exclude", "**.experts.**"), whole)
    rows = {e["fqn"]: e for e in t.json("inspect", path, "--json", "--shards", "megatron-gpt")["entries"]}
    assert rows["rng_state.0.cuda_rng_state"]["per_rank"] and rows["model.output_layer.weight"]["shape"] == [16, 4]
    for state in files.values():
        state["args"].tensor_model_parallel_size = 4
    message = t.run("inspect", save(t, "four", files), "--shards", "megatron-gpt", status=2).stderr.decode()
    assert "tensor_model_parallel_size" in message, message


def llama(ranks, embedding_dim, kv_copies=1):
    import torch
    dim, heads, kv, vocabulary, ffn = 8 * ranks, 2 * ranks, ranks // kv_copies, 4 * ranks, 12 * ranks
    head = dim // heads
    cuts = {"tok_embeddings.weight": ((vocabulary, dim), embedding_dim), "output.weight": ((vocabulary, dim), 0), "norm.weight": ((dim,), None), "rope.freqs": ((head // 2,), None)}
    for n in range(2):
        cuts.update({f"layers.{n}.attention.wq.weight": ((dim, dim), 0), f"layers.{n}.attention.wk.weight": ((kv * head, dim), "kv"),
                     f"layers.{n}.attention.wv.weight": ((kv * head, dim), "kv"), f"layers.{n}.attention.wo.weight": ((dim, dim), 1),
                     f"layers.{n}.feed_forward.w1.weight": ((ffn, dim), 0), f"layers.{n}.feed_forward.w2.weight": ((dim, ffn), 1),
                     f"layers.{n}.feed_forward.w3.weight": ((ffn, dim), 0), f"layers.{n}.attention_norm.weight": ((dim,), None), f"layers.{n}.ffn_norm.weight": ((dim,), None)})
    whole = {name: tensor(i, *shape, dtype=torch.bfloat16) for i, (name, (shape, _)) in enumerate(cuts.items())}

    def part(name, r):
        _, cut = cuts[name]
        value = whole[name]
        return value if cut is None else value.chunk(kv)[r // kv_copies].clone() if cut == "kv" else value.chunk(ranks, cut)[r].clone()

    params = {"dim": dim, "n_layers": 2, "n_heads": heads, "n_kv_heads": kv, "vocab_size": vocabulary, "norm_eps": 1e-5}
    return whole, params, [{name: part(name, r) for name in cuts} for r in range(ranks)]


def save_llama(t, case, params, state):
    path = save(t, case, {f"consolidated.{r:02}.pth": s for r, s in enumerate(state)})
    with open(t.at(case, "params.json"), "w") as f:
        json.dump(params, f)
    return path


def test_meta_llama(t):
    for ranks, dim, copies in ((1, 0, 1), (2, 1, 1), (8, 0, 1), (4, 0, 2)):
        whole, params, state = llama(ranks, dim, copies)
        check(joined(t, save_llama(t, f"llama_{ranks}", params, state), "meta-llama"), whole)


def test_meta_llama_refuses_what_its_settings_contradict(t):
    def refused(says, change=lambda params, state: None):
        _, params, state = llama(2, 0)
        change(params, state)
        refused.count = getattr(refused, "count", 0) + 1
        path = save_llama(t, f"no_{refused.count}", params, state)
        message = t.run("convert", path, t.at("no.pt"), "--to", "torch", "--shards", "meta-llama", status=2).stderr.decode()
        assert says in message, message
        return path

    refused("tok_embeddings.weight", lambda p, s: p.update(dim=64, n_heads=4))
    refused("tok_embeddings.weight", lambda p, s: p.update(vocab_size=9))
    refused("n_heads", lambda p, s: p.update(n_heads="four"))
    refused("params.json", lambda p, s: p.pop("dim"))
    refused("layers.0.feed_forward.experts.w1", lambda p, s: [x.update({"layers.0.feed_forward.experts.w1": tensor(9, 2, 2)}) for x in s])
    refused("layers.1.ffn_norm.weight", lambda p, s: s[1].update({"layers.1.ffn_norm.weight": s[1]["norm.weight"] + 1}))
    refused("layers.1.attention.wo.weight", lambda p, s: s[1].pop("layers.1.attention.wo.weight"))
    _, params, state = llama(2, 0)
    path = save_llama(t, "alone", params, state)
    assert b"directory" in t.run("inspect", os.path.join(path, "consolidated.00.pth"), "--shards", "meta-llama", status=2).stderr
    os.remove(os.path.join(path, "params.json"))
    assert b"params.json" in t.run("inspect", path, "--shards", "meta-llama", status=2).stderr


def test_vllm(t):
    import torch
    for ranks, heads, kv, vocabulary in ((2, 4, 2, 100), (4, 4, 2, 130), (2, 2, 1, 64), (1, 2, 2, 60)):
        head, hidden, ffn = 6, 5, 4 * ranks
        padded = (vocabulary + 63) // 64 * 64
        q, k, v = tensor(1, heads * head, hidden), tensor(2, kv * head, hidden), tensor(3, kv * head, hidden)
        gate, up = tensor(4, ffn, hidden), tensor(5, ffn, hidden)
        w13 = [tensor(6, 3, ffn, hidden), tensor(7, 3, ffn, hidden)]
        whole = {"model.embed_tokens.weight": tensor(8, vocabulary, hidden), "lm_head.weight": tensor(9, vocabulary, hidden), "model.norm.weight": tensor(10, hidden),
                 "model.layers.0.self_attn.qkv_proj.weight": torch.cat([q, k, v]), "model.layers.0.self_attn.o_proj.weight": tensor(11, hidden, heads * head),
                 "model.layers.0.mlp.gate_up_proj.weight": torch.cat([gate, up]), "model.layers.0.mlp.down_proj.weight": tensor(12, hidden, ffn),
                 "model.layers.0.input_layernorm.weight": tensor(13, hidden), "model.layers.1.mlp.experts.w13_weight": torch.cat(w13, 1),
                 "model.layers.1.mlp.experts.w2_weight": tensor(14, 3, hidden, ffn), "model.layers.1.mlp.gate.weight": tensor(15, 3, hidden)}
        files, copies = {}, max(1, ranks // kv)
        for r in range(ranks):
            state = {name: torch.cat([whole[name], torch.zeros(padded - vocabulary, hidden)]).chunk(ranks)[r] for name in ("model.embed_tokens.weight", "lm_head.weight")}
            shared = [x.chunk(ranks // copies)[r // copies] for x in (k, v)]
            state["model.layers.0.self_attn.qkv_proj.weight"] = torch.cat([q.chunk(ranks)[r], *shared])
            state["model.layers.0.mlp.gate_up_proj.weight"] = fused([gate, up], ranks)[r]
            state["model.layers.1.mlp.experts.w13_weight"] = fused(w13, ranks, 1)[r]
            for name, dim in (("0.self_attn.o_proj.weight", 1), ("0.mlp.down_proj.weight", 1), ("1.mlp.experts.w2_weight", 2)):
                state["model.layers." + name] = whole["model.layers." + name].chunk(ranks, dim)[r]
            for name in ("model.norm.weight", "model.layers.0.input_layernorm.weight", "model.layers.1.mlp.gate.weight"):
                state[name] = whole[name]
            names = sorted(state)
            files[f"model-rank-{r}-part-0.safetensors"] = {n: state[n] for n in names[:5]}
            files[f"model-rank-{r}-part-1.safetensors"] = {n: state[n] for n in names[5:]}
        path = save(t, f"vllm_{ranks}_{kv}", files)
        with open(os.path.join(path, "config.json"), "w") as f:
            json.dump({"hidden_size": hidden, "head_dim": head, "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": vocabulary}, f)
        check(joined(t, path, "vllm"), whole)
    path = save(t, "vllm_2_2", {f"model-rank-{r}-part-2.safetensors": {"model.layers.9.mystery": tensor(2, 2)} for r in range(2)})
    message = t.run("convert", path, t.at("no.pt"), "--to", "torch", "--shards", "vllm", status=2).stderr.decode()
    assert "model.layers.9.mystery" in message, message
