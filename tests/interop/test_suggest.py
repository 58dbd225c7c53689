"""map suggest: maps between two checkpoints, found by names, shapes and values, and applied in both directions."""
import json
import os

import torch
from safetensors.torch import load_file, save_file

from test_maps import need, same, write

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")


def suggest(t, source, target, path, *options):
    """Writes the suggested map to `path`, and returns what the command printed."""
    found = t.run("map", "suggest", source, target, *options)
    with open(path, "wb") as f:
        f.write(found.stdout)
    return found


def test_suggested_maps(t):
    """From torchtitan's names to Hugging Face's: values decide everything; shapes alone decide what they can, and the rest is said."""
    llama = os.path.join(GOLDEN, "merging", "a32.safetensors")
    hf, titan, out = os.path.join(t.scratch, "hf"), os.path.join(t.scratch, "titan.safetensors"), os.path.join(t.scratch, "out.safetensors")
    os.makedirs(hf)
    save_file(load_file(llama), os.path.join(hf, "model.safetensors"))
    write(hf, "config.json", {"num_attention_heads": 2, "num_key_value_heads": 1})
    t.run("convert", hf, titan, "--map", "torchtitan-llama3", "--inverse")
    need(not set(load_file(titan)) & (set(load_file(llama)) - {"lm_head.weight"}), "the names are not other names")
    path = os.path.join(t.scratch, "map.json")
    suggest(t, titan, hf, path, "--values")
    t.run("convert", titan, out, "--map", path)
    same(load_file(out), load_file(llama), "the suggestion, applied")

    found = t.run("map", "suggest", titan, hf)
    rules = {tuple(r["from"] + r["to"]) for r in json.loads(found.stdout)["rules"]}
    true = {tuple(r["from"] + r["to"]) for r in json.load(open(path))["rules"]}
    need(rules and rules < true, f"guessed without values: {rules - true}")
    need(b"gate_proj.weight' of B could be any of 3" in found.stderr and b"--values" in found.stderr, found.stderr)
    with open(path, "wb") as f:
        f.write(found.stdout)
    need("no rule of the map matches" in t.run("convert", titan, out, "--map", path, "--overwrite", status=2).stderr.decode(), "an open suggestion was applied")


def test_suggested_stacks_and_transposes(t):
    torch.manual_seed(5)
    a = {f"m.{i}.e.{j}.down": torch.randn(3, 5) for i in range(2) for j in range(12)} | {"x": torch.randn(7, 4), "k.norm.w": torch.ones(6), "l.norm.w": torch.ones(6), "u": torch.randn(2, 3, 4)}
    b = {f"n.{i}.down": torch.stack([a[f"m.{i}.e.{j}.down"] for j in range(12)]) for i in range(2)} | {"y": a["x"].t().contiguous(), "n.k_norm.w": a["k.norm.w"], "n.l_norm.w": a["l.norm.w"]}
    b |= {f"v.{i}": a["u"][i].contiguous() for i in range(2)}
    paths = [os.path.join(t.scratch, f"{n}.safetensors") for n in ("a", "b", "out")]
    save_file(a, paths[0])
    save_file(b, paths[1])
    path = os.path.join(t.scratch, "map.json")
    for options in (["--values"], []):
        found = t.run("map", "suggest", *paths[:2], *options)
        document = json.loads(found.stdout)
        need(("could be any of 2" in found.stderr.decode()) == (not options), found.stderr)
        if not options:  # ones are ones: nothing but names tells k from l
            document["unmatched"] = "drop"
        with open(path, "w") as f:
            json.dump(document, f)
        t.run("convert", paths[0], paths[2], "--map", path, "--overwrite")
        same(load_file(paths[2]), b if options else {k: v for k, v in b.items() if k not in ("n.k_norm.w", "n.l_norm.w")}, str(options))
    b["n.1.down"][3, 0, 0] += 1
    save_file(b, paths[1])
    text = t.run("map", "suggest", *paths[:2], "--values").stderr.decode()
    need("nothing in A has the values of 'n.*.down' of B" in text, text)


def test_suggested_transposes_of_stacked_experts(t):
    """Experts that one model stacks as they are multiplied, the other one transposed, stacked or apart; square ones show by their values."""
    torch.manual_seed(7)
    a, b, document, out = (os.path.join(t.scratch, n) for n in ("a.safetensors", "b.safetensors", "map.json", "out.safetensors"))
    for size, options in ((5, []), (5, ["--values"]), (3, ["--values"])):
        both, stacked, apart = ({f"{i}.{n}": torch.randn(4, 3, size) for i in range(2)} for n in "xyz")
        save_file({f"m.{k}": v for k, v in both.items()} | {f"m.{k}.{e}.w": v[e].clone() for k, v in stacked.items() for e in range(4)} | {f"m.{k}": v for k, v in apart.items()}, a)
        want = {f"n.{k}.weight": v.transpose(1, 2).contiguous() for k, v in both.items()} | {f"n.{k}": v.transpose(1, 2).contiguous() for k, v in stacked.items()}
        want |= {f"n.{k}.{e}.v": v[e].T.contiguous() for k, v in apart.items() for e in range(4)}
        if not options:  # all have one shape: only their names would tell them apart
            want = {k: v for k, v in want.items() if ".y" in k}
            save_file({k: v for k, v in load_file(a).items() if ".y" in k}, a)
        save_file(want, b)
        found = suggest(t, a, b, document, *options)
        t.run("convert", a, out, "--map", document, "--overwrite")
        same(load_file(out), want, f"{size} {options}")
        t.run("convert", out, b, "--map", document, "--inverse", "--overwrite")
        same(load_file(b), load_file(a), f"{size} {options} and back")


def test_a_suggestion_states_what_shapes_do_not_show(t):
    """A square matrix may be transposed, and rows may have another order, although no other tensor fits."""
    torch.manual_seed(9)
    a, b, document, out = (os.path.join(t.scratch, n) for n in ("a.safetensors", "b.safetensors", "map.json", "out.safetensors"))
    x, y = {f"l.{i}.w": torch.randn(4, 4) for i in range(2)}, torch.randn(3, 3)
    want = {f"m.{i}.w": x[f"l.{i}.w"].t().contiguous() for i in range(2)} | {"z": y, "k": torch.ones(2, 3)}
    save_file({**x, "y": y, "q": torch.ones(2, 3)}, a)
    save_file(want, b)
    said = t.run("map", "suggest", a, b).stderr.decode()
    need("of B and 1 more are square, so their shapes do not show whether they are transposed" in said and "only names and shapes were compared" in said, said)
    found = suggest(t, a, b, document, "--values")
    need(not found.stderr.strip(), found.stderr)
    t.run("convert", a, out, "--map", document)
    same(load_file(out), want, "decided by values")
    save_file({"y": y}, a)
    save_file({"x": torch.randn(3, 3), "z": y}, b)
    said = t.run("map", "suggest", a, b).stderr.decode()
    need("'x' of B could be 'y' of A, which fits other tensors of B as well" in said and "any of 1" not in said, said)


def test_suggested_parts(t):
    """Fused q, k and v, gate and up, along either dim, and of stacked experts, in both directions: values alone show the order."""
    torch.manual_seed(6)
    a, b = {"norm": torch.randn(6)}, {"n.norm": None}
    b["n.norm"] = a["norm"]
    for i in range(2):
        q, k, v, gate, up, c, d = torch.randn(8, 6), torch.randn(4, 6), torch.randn(4, 6), torch.randn(5, 6), torch.randn(5, 6), torch.randn(6, 7), torch.randn(6, 7)
        a |= {f"m.{i}.q": q, f"m.{i}.k": k, f"m.{i}.v": v, f"m.{i}.up": up, f"m.{i}.gate": gate, f"m.{i}.c": c, f"m.{i}.d": d}
        experts = [[torch.randn(3, 4), torch.randn(3, 4)] for _ in range(11)]
        a |= {f"m.{i}.experts.{e}.{name}": x for e, pair in enumerate(experts) for name, x in zip(("w3", "w1"), pair)}
        b |= {f"n.{i}.qkv": torch.cat([v, q, k]), f"n.{i}.gate_up": torch.cat([gate, up]), f"n.{i}.cd": torch.cat([d, c], 1),
              f"n.{i}.experts": torch.stack([torch.cat([w1, w3]) for w3, w1 in experts])}
    apart, fused, out, path = (os.path.join(t.scratch, n) for n in ("a.safetensors", "b.safetensors", "out.safetensors", "map.json"))
    save_file(a, apart)
    save_file(b, fused)
    for source, target, want in ((apart, fused, b), (fused, apart, a)):
        found = suggest(t, source, target, path, "--values")
        need(not found.stderr.strip() or b"could be" not in found.stderr and b"no rule" not in found.stderr, found.stderr)
        t.run("convert", source, out, "--map", path, "--overwrite")
        same(load_file(out), want, "suggested parts")
        t.run("convert", target, out, "--map", path, "--inverse", "--overwrite")
        same(load_file(out), a if want is b else b, "suggested parts, back")
    b["n.1.qkv"][9, 0] += 1
    save_file(b, fused)
    text = t.run("map", "suggest", apart, fused, "--values").stderr.decode()
    need("nothing in A has the values of 'n.*.qkv' of B" in text and "'m.*.q' of A" in text and "gate_up" not in text, text)


def test_suggested_parts_that_are_transposed(t):
    """Experts that one model stacks, joins and transposes, and the other one has apart: values decide; shapes only where a name shows the order."""
    torch.manual_seed(11)
    apart, fused, out, path = (os.path.join(t.scratch, n) for n in ("a.safetensors", "b.safetensors", "out.safetensors", "map.json"))

    for hidden, up in ((6, 5), (4, 4)):  # not square, and square
        a, b = {}, {}
        for i in range(2):
            experts = [(torch.randn(up, hidden), torch.randn(up, hidden), torch.randn(hidden, up)) for _ in range(11)]
            a |= {f"m.{i}.experts.{e}.{n}.weight": x for e, three in enumerate(experts) for n, x in zip(("up_proj", "gate_proj", "down_proj"), three)}
            q, k, v = torch.randn(8, hidden), torch.randn(2, hidden), torch.randn(2, hidden)
            a |= {f"m.{i}.q.weight": q, f"m.{i}.k.weight": k, f"m.{i}.v.weight": v}
            b |= {f"n.{i}.experts.gate_up_proj": torch.stack([torch.cat([g, u]).T for u, g, _ in experts]), f"n.{i}.experts.down_proj": torch.stack([d.T for _, _, d in experts]),
                  f"n.{i}.c_attn.weight": torch.cat([k, q, v]).T.contiguous()}
        b = {n: x.contiguous() for n, x in b.items()}
        save_file(a, apart)
        save_file(b, fused)
        for source, target, want in ((apart, fused, b), (fused, apart, a)):
            found = suggest(t, source, target, path, "--values")
            need(not found.stderr.strip(), found.stderr)
            t.run("convert", source, out, "--map", path, "--overwrite")
            same(load_file(out), want, f"{hidden} and values")
            t.run("convert", target, out, "--map", path, "--inverse", "--overwrite")
            same(load_file(out), a if want is b else b, f"{hidden} and values, back")
            found = t.run("map", "suggest", source, target)
            said, names = found.stderr.decode(), ["B", "A"] if want is b else ["A", "B"]
            need(f"'n.*.c_attn.weight' of {names[0]} could be these of {names[1]} joined and transposed, but only values show in which order: 'm.*.k.weight', 'm.*.q.weight', 'm.*.v.weight'\n" in said, said)
            rules = json.loads(found.stdout)["rules"]
            proposed = [r for r in rules if "gate_up" in str(r)]
            if up == hidden:
                need(not proposed and f"'n.*.experts.gate_up_proj' of {names[0]} could be some of these of {names[1]} joined, but only values show in which order, along which" in said, said)
                continue
            need(f"'n.*.experts.gate_up_proj' of {names[0]} is taken to be these of {names[1]} joined and transposed, in the order of its name, which shapes do not show: "
                 "'m.*.experts.*.gate_proj.weight', 'm.*.experts.*.up_proj.weight'" in said, said)
            need(len(proposed) == 1 and "nothing in A fits" not in said and "no rule applies" not in said, said)
            write(t.scratch, "map.json", {**json.loads(found.stdout), "unmatched": "drop"})
            t.run("convert", source, out, "--map", path, "--overwrite")
            same(load_file(out), {n: x for n, x in want.items() if "experts" in n}, "shapes and names")
        save_file({n.replace("gate_proj", "w1").replace("up_proj", "w3"): x for n, x in a.items()}, apart)  # a name that shows no order
        said = t.run("map", "suggest", apart, fused).stderr.decode()
        some, more = ("some of ", ", along which dim and whether transposed: 'm.*.experts.*.down_proj.weight', ") if up == hidden else ("", ": ")
        turned = "" if up == hidden else " and transposed"
        need(f"'n.*.experts.gate_up_proj' of B could be {some}these of A joined{turned}, but only values show in which order{more}'m.*.experts.*.w" in said, said)


def test_suggested_parts_in_turns(t):
    """Parts that alternate in a joined tensor, by heads, by single rows, along either dim, as one dim and stacked: only values show it."""
    torch.manual_seed(3)
    apart, joined, out, path = (os.path.join(t.scratch, n) for n in ("a.safetensors", "b.safetensors", "out.safetensors", "map.json"))
    a, b = {}, {}
    for i in range(3):
        parts = {f"m.{i}.{n}": torch.randn(2 * s, 6) for n, s in (("k", 4), ("q", 12), ("v", 4))}
        biases = {f"m.{i}.{n}_bias": torch.randn(2 * s) for n, s in (("k", 4), ("q", 12), ("v", 4))}
        experts = torch.randn(2, 11, 7, 6)
        a |= parts | biases | {f"m.{i}.e.{e}.{n}": experts[j, e] for e in range(11) for j, n in enumerate(("gate", "up"))}
        order = [f"m.{i}.{n}" for n in "qkv"]
        b[f"n.{i}.qkv"] = torch.cat([parts[n].view(2, -1, 6) for n in order], 1).reshape(-1, 6)
        b[f"n.{i}.qkv_bias"] = torch.cat([biases[n + "_bias"].view(2, -1) for n in order], 1).reshape(-1)
        b[f"n.{i}.gate_up"] = torch.stack([experts[1], experts[0]], 2).reshape(11, 14, 6).transpose(1, 2).contiguous()  # up first
    large, long = torch.randn(2, 1100, 1300), torch.randn(2, 700000)  # more than one tile
    a |= {"large_gate": large[0], "large_up": large[1], "long_gate": long[0], "long_up": long[1]}
    b |= {"large": torch.stack([large[0], large[1]], 1).reshape(2200, 1300).T.contiguous(), "long": long.T.reshape(-1).contiguous()}
    save_file(a, apart)
    save_file(b, joined)
    for source, target, want, back in ((apart, joined, b, a), (joined, apart, a, b)):
        found = suggest(t, source, target, path, "--values")
        need(not found.stderr.strip(), found.stderr)
        t.run("convert", source, out, "--map", path, "--overwrite")
        same(load_file(out), want, "parts in turns")
        t.run("convert", target, out, "--map", path, "--inverse", "--overwrite")
        same(load_file(out), back, "parts in turns, back")
    b["n.2.gate_up"][10, 5, 13] += 1
    b["large"][1299, 2199] += 1
    b["long"][1399998] += 1
    save_file(b, joined)
    said = t.run("map", "suggest", apart, joined, "--values").stderr.decode()
    need(all(f"nothing in A has the values of '{n}' of B" in said for n in ("n.*.gate_up", "large", "long")) and "'m.*.e.*.up' of A" in said and "qkv" not in said, said)


def test_suggested_maps_of_megatron(t):
    """Megatron-Core's names to Hugging Face's: q, k and v by groups of heads, padded rows, and entries that are not tensors."""
    for model, form in (("llama", "numbered"), ("mixtral", "numbered"), ("qwen3_moe", "single"), ("gpt_neox", "numbered")):
        megatron, hf = os.path.join(GOLDEN, "megatron_maps", model, form), os.path.join(GOLDEN, "megatron_maps", model, "hf")
        found = t.run("map", "suggest", megatron, hf, "--values")
        said = found.stderr.decode()
        need(said.count("has the first 37 of the 40 rows of") == 2 and "nothing in A" not in said, said)
        need("linear_qkv._extra_state' of A: " in said and " objects that are not tensors\n" in said, said)
        write(t.scratch, "map.json", {**json.loads(found.stdout), "unmatched": "drop"})
        out = os.path.join(t.scratch, "out.safetensors")
        t.run("convert", megatron, out, "--map", os.path.join(t.scratch, "map.json"), "--overwrite")
        same(load_file(out), load_file(os.path.join(hf, "model.safetensors")), model)
        said = t.run("map", "suggest", hf, megatron, "--values").stderr.decode()
        need(said.count(" of A and 3 more, which are not zeros\n") == 2, said)


def test_suggested_padding(t):
    """Rows of zeros that B has more than A; the first part of a joined tensor is not taken for its first rows."""
    a, b, path, out = (os.path.join(t.scratch, n) for n in ("a.safetensors", "b.safetensors", "map.json", "out.safetensors"))
    x = {"embed": torch.randn(5, 3), "bias": torch.randn(5)}
    save_file(x, a)
    want = {"e": torch.cat([x["embed"], torch.zeros(3, 3)]), "b": torch.cat([x["bias"], torch.zeros(1)])}
    save_file(want, b)
    found = suggest(t, a, b, path, "--values")
    need(not found.stderr.strip(), found.stderr)
    t.run("convert", a, out, "--map", path)
    same(load_file(out), want, "padded")
    t.run("convert", b, out, "--map", path, "--inverse", "--overwrite")
    same(load_file(out), x, "padded, back")
    parts = {"p": torch.randn(2, 3), "q": torch.randn(1, 3), "r": torch.randn(2)}
    save_file({"joined": torch.cat([parts["q"], parts["p"]]), "s": torch.cat([parts["r"], torch.ones(1)])}, a)
    save_file(parts, b)
    found = suggest(t, a, b, path, "--values")
    need(found.stderr.decode() == "tessera: note: 'r' of B has the first 2 of the 3 rows of 's' of A; the rule leaves out the others\n", found.stderr)
    t.run("convert", a, out, "--map", path, "--overwrite")
    same(load_file(out), parts, "parts and rows")
