"""`tessera merge` and --lora against mergekit and PEFT (tests/golden/merging), and against sums that PyTorch computes."""
import json
import os
import shutil
import signal
import subprocess
import time

import torch
from safetensors.torch import load_file, save_file

from test_maps import need, save_sharded

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden", "merging")
REFUSED = {"square": ("lora/square/base", "'transformer.h.0.attn.c_proj.weight' is square")}
INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16}


def steps_between(a, b):
    """Units in the last place between two tensors of one dtype: their bits, ordered as the numbers are."""
    size = a.element_size()
    x, y = (t.contiguous().view(INTEGERS[size]).long() for t in (a, b))
    x, y = (torch.where(t < 0, -(1 << (8 * size - 1)) - t, t) for t in (x, y))
    return (x - y).abs()


def close(got, want, what, slack=2.0 ** -22):
    """Within a unit in the last place, or, where terms cancel, within `slack` of the largest element."""
    need(set(got) == set(want), f"{what}: names {sorted(set(got) ^ set(want))[:5]}")
    for k, w in want.items():
        need(got[k].dtype == w.dtype and got[k].shape == w.shape, f"{what}: {k} is {got[k].dtype} {tuple(got[k].shape)}")
        if not w.is_floating_point() or not w.numel():
            need(torch.equal(got[k], w), f"{what}: {k}")
            continue
        far = (steps_between(got[k], w) > 1) & ((got[k].double() - w.double()).abs() > slack * w.double().abs().max())
        need(not far.any(), f"{what}: {int(far.sum())} elements of {k} differ, such as {got[k][far][:3]} and {w[far][:3]}")


def test_merges_as_mergekit(t):
    with open(os.path.join(GOLDEN, "merges.json")) as f:
        cases = json.load(f)
    need({c["options"][1] for c in cases} == {"linear", "slerp", "task-arithmetic"}, "a method has no golden")
    for case in cases:
        out = os.path.join(t.scratch, case["merged"])
        options = [os.path.join(GOLDEN, "a.safetensors") if o == "a" else o for o in case["options"]]
        t.run("merge", out, *(os.path.join(GOLDEN, f"{n}.safetensors") for n in case["inputs"]), *options)
        close(load_file(out), load_file(os.path.join(GOLDEN, case["merged"])), case["merged"])


def test_adapters_as_peft(t):
    for name in sorted(os.listdir(os.path.join(GOLDEN, "lora"))):
        directory, out = os.path.join(GOLDEN, "lora", name), os.path.join(t.scratch, f"{name}.safetensors")
        if name in REFUSED:
            base, says = REFUSED[name]
            text = t.run("convert", os.path.join(GOLDEN, base), out, "--lora", os.path.join(directory, "adapter"), status=2).stderr.decode()
            need(says in text and not os.path.exists(out), text)
            continue
        base, adapter = os.path.join(directory, "base.safetensors"), os.path.join(directory, "adapter")
        t.run("convert", base, out, "--lora", adapter)
        # PyTorch adds DoRA's squares in an order that depends on the processor, and in float32
        close(load_file(out), load_file(os.path.join(directory, "merged.safetensors")), name, 2.0 ** -21 if name == "dora" else 2.0 ** -22)
        again = os.path.join(t.scratch, f"{name}-merge.safetensors")
        t.run("merge", again, base, "--lora", adapter)
        need(open(again, "rb").read() == open(out, "rb").read(), f"{name}: merge and convert write other bytes")
        need(not torch.equal(*(torch.cat([v.flatten().double() for v in load_file(p).values()]) for p in (base, out))), f"{name}: the adapter changed nothing")


def models(dtype, count):
    torch.manual_seed(7)
    names = {"layers.0.w": (37, 53), "layers.1.w": (19, 8, 6), "v": (11,), "empty": (4, 0)}
    made = [{k: torch.randn(s).to(dtype) for k, s in names.items()} for _ in range(count)]
    for m in made:
        m["steps"] = torch.arange(12).reshape(3, 4)
    return made


def stored(t, number, tensors):
    """Each input in another form: safetensors, torch.save, sharded DCP."""
    path = os.path.join(t.scratch, f"in{number}")
    if number % 3 == 0:
        save_file(tensors, path + ".safetensors")
        return path + ".safetensors"
    if number % 3 == 1:
        torch.save({k: v.t().contiguous().t() if v.dim() == 2 else v for k, v in tensors.items()}, path + ".pt")
        return path + ".pt"
    save_sharded(path, {k: v for k, v in tensors.items() if v.numel()})
    return path


def test_sums_of_any_forms(t):
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        inputs = models(dtype, 3)
        for m in inputs:
            del m["empty"]
        paths = [stored(t, i, m) for i, m in enumerate(inputs)]
        weights = torch.tensor([0.3, 1.7, -0.4], dtype=wide)
        options = [o for w in weights.tolist() for o in ("--weight", repr(w))]
        floats = [k for k, v in inputs[0].items() if v.is_floating_point()]
        x = {k: [m[k].to(wide) for m in inputs] for k in floats}
        want = {k: sum(w * v for w, v in zip(weights, x[k])) / weights.sum() for k in floats}
        delta = {k: x[k][0] + sum(w * (v - x[k][0]) for w, v in zip(weights[1:], x[k][1:])) for k in floats}
        for form in ("safetensors", "torch", "dcp"):
            out = os.path.join(t.scratch, f"out-{form}")
            t.run("merge", out, *paths, "--method", "linear", *options, "--to", form, "--overwrite")
            plain = os.path.join(t.scratch, "plain.safetensors")
            t.run("convert", out, plain, "--overwrite")
            close(load_file(plain), {**{k: v.to(dtype) for k, v in want.items()}, "steps": inputs[0]["steps"]}, f"{dtype} to {form}")
        t.run("merge", plain, *paths[1:], "--base", paths[0], "--method", "task-arithmetic", "--weight", "1.7", "--weight", "-0.4", "--dtype", "float32",
              "--overwrite", "--max-mem", "256KiB")
        close(load_file(plain), {**{k: v.to(torch.float32) for k, v in delta.items()}, "steps": inputs[0]["steps"]}, f"{dtype}: task arithmetic in float32")
        for path in paths:
            subprocess.run(["rm", "-r", path], check=True)


def test_slerp_by_its_formula(t):
    for dtype, slack in ((torch.float64, 1e-13), (torch.float32, 1e-6), (torch.bfloat16, 1e-6)):
        a, b = models(dtype, 2)
        b["v"] = (a["v"].double() * 3).to(dtype)  # nearly parallel: along the line
        b["layers.1.w"] = torch.zeros_like(b["layers.1.w"])
        for name, m in (("a", a), ("b", b)):
            save_file(m, os.path.join(t.scratch, f"{name}.safetensors"))
        out = os.path.join(t.scratch, "out.safetensors")
        t.run("merge", out, *(os.path.join(t.scratch, f"{n}.safetensors") for n in "ab"), "--method", "slerp", "--t", "0.25", "--overwrite")
        want = {"steps": a["steps"], "empty": a["empty"]}
        for k in ("layers.0.w", "layers.1.w", "v"):
            x, y = a[k].double(), b[k].double()
            cosine = (x * y).sum() / (x.norm() * (y.norm() if y.norm() > 1e-8 else 1))
            angle = torch.acos(cosine.clamp(-1, 1))
            parts = (0.75, 0.25) if cosine.abs() > 0.9995 else (torch.sin(0.75 * angle) / torch.sin(angle), torch.sin(0.25 * angle) / torch.sin(angle))
            want[k] = (parts[0] * x + parts[1] * y).to(dtype)
        close(load_file(out), want, str(dtype), slack)


def test_tied_weights_stay_tied(t):
    paths = []
    for seed in range(2):
        torch.manual_seed(seed)
        w = torch.randn(5, 3)
        paths.append(os.path.join(t.scratch, f"{seed}.pt"))
        torch.save({"model": {"embed": w, "head": w, "other": torch.randn(2)}, "step": 3}, paths[-1])
    out = os.path.join(t.scratch, "out.pt")
    t.run("merge", out, *paths, "--method", "linear")
    got, a, b = (torch.load(p) for p in (out, *paths))
    need(got["step"] == 3 and set(got["model"]) == {"embed", "head", "other"}, got)
    need(got["model"]["embed"].data_ptr() == got["model"]["head"].data_ptr(), "the merged weights are not tied")
    need(torch.equal(got["model"]["embed"], (a["model"]["embed"] + b["model"]["embed"]) / 2), "embed")


def quantized_merge(t, paths, *options, more=()):
    """What merge --quantize wrote and printed, after a comparison with merge and then convert --quantize."""
    at = {n: os.path.join(t.scratch, n) for n in ("sum.safetensors", "then.safetensors", "once.safetensors")}
    t.run("merge", at["sum.safetensors"], *paths, *options, "--overwrite")
    t.run("convert", at["sum.safetensors"], at["then.safetensors"], "--quantize", "fp8-block", *more, "--overwrite")
    p = t.run("merge", at["once.safetensors"], *paths, *options, "--quantize", "fp8-block", *more, "--overwrite")
    need(open(at["once.safetensors"], "rb").read() == open(at["then.safetensors"], "rb").read(), f"{options} {more}: other bytes")
    return load_file(at["once.safetensors"]), p.stderr.decode()


def test_quantized_merges(t):
    """merge --quantize writes what merge and then convert --quantize write."""
    torch.manual_seed(12)
    shapes = {"l.0.q.weight": (300, 200), "l.1.q.weight": (129, 5), "l.1.wide.weight": (3, 700), "embed.weight": (40, 8), "norm.weight": (9,)}
    inputs = [{**{k: torch.randn(s) * (i + 1) for k, s in shapes.items()}, "steps": torch.arange(3)} for i in range(3)]
    paths = [stored(t, i, m) for i, m in enumerate(inputs)]
    for options in (["--method", "linear", "--weight", "2", "--weight", "-0.5", "--weight", "1"], ["--method", "linear", "--dtype", "bfloat16"],
                    ["--method", "task-arithmetic", "--base", paths[1]], ["--method", "linear", "--exclude", "l.1.wide.*"]):
        got, _ = quantized_merge(t, paths, *options)
        numbers = {k for k, v in got.items() if v.dtype == torch.float8_e4m3fn}
        need(numbers == {k for k in shapes if k.startswith("l.") and k in got}, f"{options}: {sorted(numbers)}")
        need(got["embed.weight"].dtype == (torch.bfloat16 if "bfloat16" in options else torch.float32), f"{options}: embed.weight")
    got, said = quantized_merge(t, paths[:2], "--method", "slerp", "--t", "0.4", more=("--no-quantize", "l.1.**"))
    need({k for k, v in got.items() if v.dtype == torch.float8_e4m3fn} == {"l.0.q.weight"}, sorted(got))
    need('"modules_to_not_convert": ["' in said, said)
    first, second = os.path.join(t.scratch, "fp8-a.safetensors"), os.path.join(t.scratch, "fp8-b.safetensors")
    for path, source in ((first, paths[0]), (second, paths[2])):
        t.run("convert", source, path, "--to", "safetensors", "--quantize", "fp8-block")
    quantized_merge(t, [first, second], "--method", "linear", "--dequantize", "--dtype", "float32")
    out = os.path.join(t.scratch, "refused.safetensors")
    for options, says in ((["--no-quantize", "x"], "--no-quantize needs --quantize"),
                          (["--quantize", "fp8-block", "--dtype", "bfloat16", "--raw-cast"], "--raw-cast and --quantize cannot be used together")):
        text = t.run("merge", out, *paths, "--method", "linear", *options, status=2).stderr.decode()
        need(says in text and not os.path.exists(out), text)


def test_merges_of_quantized_and_plain_models(t):
    """--dequantize is about the inputs that are quantized. What they hold is what their library made of it (tests/golden/make_packed.py)."""
    packed = os.path.join(os.path.dirname(GOLDEN), "packed")
    weights = load_file(os.path.join(packed, "compressed.safetensors"))
    torch.manual_seed(7)
    plain, other = ({k: torch.randn(v.shape) for k, v in weights.items()} for _ in range(2))
    os.makedirs(t.at("plain"))
    save_file(plain, t.at("plain", "model.safetensors"))
    with open(t.at("plain", "config.json"), "w") as f:
        json.dump({"model_type": "llama", "dtype": "float32"}, f)
    save_file(other, t.at("other.safetensors"))
    held = {os.path.join(packed, "compressed"): {k: v.float() for k, v in weights.items()}, t.at("plain"): plain, t.at("other.safetensors"): other}
    quantized, out = next(iter(held)), t.at("out.safetensors")
    for paths in ([quantized, t.at("plain")], [t.at("plain"), quantized], [t.at("plain"), t.at("other.safetensors"), quantized]):
        t.run("merge", out, *paths, "--method", "linear", "--dequantize", "--dtype", "float32", "--overwrite")
        close(load_file(out), {k: sum(held[p][k] for p in paths) / len(paths) for k in weights}, str(paths))
    t.run("merge", out, t.at("plain"), "--method", "task-arithmetic", "--base", quantized, "--weight", "0.5", "--dequantize", "--dtype", "float32", "--overwrite")
    close(load_file(out), {k: held[quantized][k] + (plain[k] - held[quantized][k]) * 0.5 for k in weights}, "a quantized base")
    os.remove(out)
    with open(t.at("plain", "config.json"), "w") as f:
        json.dump({"quantization_config": {"quant_method": "hqq"}}, f)
    for paths, says in (([quantized, t.at("other.safetensors")], "pass --dtype"), ([t.at("other.safetensors")] * 2, "no quantized tensors with scales in any of the checkpoints"),
                        ([quantized, t.at("plain")], "quant_method of config.json is 'hqq'")):
        text = t.run("merge", out, *paths, "--method", "linear", "--dequantize", status=2).stderr.decode()
        need(says in text and not os.path.exists(out), text)


def test_refusals_of_merges(t):
    a, b = models(torch.float32, 2)
    out = os.path.join(t.scratch, "out.safetensors")

    def refused(change, *says, options=("--method", "linear")):
        paths = []
        for name, m in (("a", a), ("b", change({k: v.clone() for k, v in b.items()}))):
            paths.append(os.path.join(t.scratch, f"{name}.safetensors"))
            save_file(m, paths[-1])
        text = t.run("merge", out, *paths, *options, status=2).stderr.decode()
        for word in says:
            need(word in text, f"the refusal does not name {word}: {text}")
        need(not os.path.exists(out), "a refusal wrote a file")

    refused(lambda m: {k: v for k, v in m.items() if k != "v"}, "'v' is in", "a.safetensors", "not in", "b.safetensors")
    refused(lambda m: {**m, "more": m["v"].clone()}, "'more' is in", "b.safetensors' but not in")
    refused(lambda m: {**m, "v": m["v"][:7].clone()}, "'v' is float32 [11]", "float32 [7]", "b.safetensors")
    refused(lambda m: {**m, "v": m["v"].half()}, "'v' is float32 [11]", "float16 [11]", "pass --dtype")
    refused(lambda m: {**m, "v": m["v"].half()[:7].clone()}, "'v' is float32 [11]", "float16 [7]", options=("--method", "linear", "--dtype", "float32"))
    refused(lambda m: {**m, "steps": m["steps"].float()}, "'steps' is int64", "float32", options=("--method", "linear", "--dtype", "float32"))
    refused(lambda m: {**m, "steps": m["steps"] + 1}, "'steps'", "a.safetensors", "b.safetensors")
    refused(lambda m: m, "--method", options=())
    refused(lambda m: m, "--base", options=("--method", "task-arithmetic"))
    refused(lambda m: m, "--t", options=("--method", "slerp"))
    refused(lambda m: m, "2 checkpoints need as many --weight options, found 1", options=("--method", "linear", "--weight", "2"))
    refused(lambda m: m, "'x' is not a number", options=("--method", "linear", "--weight", "1", "--weight", "x"))
    refused(lambda m: m, "sum to 0", "--no-normalize", options=("--method", "linear", "--weight", "1", "--weight", "-1"))
    refused(lambda m: {**m, "v": m["v"].to(torch.float8_e4m3fn), "v_scale": torch.ones(1)}, "'v' is scaled by 'v_scale'", "--dequantize")
    t.run("merge", out, *(os.path.join(t.scratch, f"{n}.safetensors") for n in "ab"), "--method", "linear", "--exclude", "v*", "--dry-run")
    need(not os.path.exists(out), "--dry-run wrote a file")


def test_refusals_of_adapters(t):
    source = os.path.join(GOLDEN, "lora", "plain")
    base, out, work = (os.path.join(t.scratch, n) for n in ("base.safetensors", "out.safetensors", "adapter"))
    os.makedirs(work)
    with open(os.path.join(source, "adapter", "adapter_config.json")) as f:
        config = json.load(f)
    tensors, weights = load_file(os.path.join(source, "adapter", "adapter_model.safetensors")), load_file(os.path.join(source, "base.safetensors"))
    pair = [k for k in tensors if "q_proj" in k]

    def refused(*says, config=config, tensors=tensors, weights=weights):
        with open(os.path.join(work, "adapter_config.json"), "w") as f:
            json.dump(config, f)
        save_file(tensors, os.path.join(work, "adapter_model.safetensors"))
        save_file(weights, base)
        text = t.run("convert", base, out, "--lora", work, status=2).stderr.decode()
        for word in says:
            need(word in text, f"the refusal does not name {word}: {text}")

    refused("peft_type is IA3", config={**config, "peft_type": "IA3"})
    refused("pissa", config={**config, "init_lora_weights": "pissa_niter_4"})
    refused("OLoRA", config={**config, "init_lora_weights": "OLoRA"})
    refused("layer_replication", config={**config, "layer_replication": [[0, 1]]})
    refused("alpha_pattern", "a lookahead is not supported", config={**config, "alpha_pattern": {"(?!lm).*q_proj": 3}})
    refused("rank 3", "states 4", config={**config, "r": 4})
    refused("has '", "lora_A.weight' but not '", "lora_B.weight'", tensors={k: v for k, v in tensors.items() if k != next(p for p in pair if "lora_B" in p)})
    refused("'model.layers.0.self_attn.q_proj.weight'", "the base does not have", weights={k: v for k, v in weights.items() if "q_proj" not in k})
    refused("does not fit", weights={**weights, "model.layers.0.self_attn.q_proj.weight": torch.zeros(15, 16)})
    refused("not a tensor of plain LoRA", tensors={**tensors, "base_model.model.x.lora_C.weight": torch.zeros(2)})
    os.remove(os.path.join(work, "adapter_config.json"))
    need("adapter_config.json is not next to" in t.run("convert", base, out, "--lora", work, status=2).stderr.decode(), "no configuration")


def test_adapters_that_leave_modules_out(t):
    """PEFT 0.21 warns "Found missing adapter keys while loading the checkpoint", and its merge_and_unload leaves such modules as they are."""
    source = os.path.join(GOLDEN, "lora", "plain")
    base, out, work = (os.path.join(t.scratch, n) for n in ("base.safetensors", "out.safetensors", "adapter"))
    shutil.copytree(os.path.join(source, "adapter"), work)
    shutil.copy(os.path.join(source, "base.safetensors"), base)
    p = t.run("convert", base, out, "--lora", work)
    need(b"stay as they are" not in p.stderr, p.stderr)
    whole, tensors, weights = load_file(out), load_file(os.path.join(work, "adapter_model.safetensors")), load_file(base)
    lost = next(k for k in sorted(tensors) if k.endswith(".lora_B.weight")).removesuffix(".lora_B.weight")
    module = lost.removeprefix("base_model.model.")
    save_file({k: v for k, v in tensors.items() if not k.startswith(lost + ".")}, os.path.join(work, "adapter_model.safetensors"))
    doc = t.json("convert", base, out, "--lora", work, "--overwrite", "--json")
    need([w for w in doc["warnings"] if "for 1 of the modules" in w and f"'{module}'" in w], f"{doc['warnings']}")
    got, name = load_file(out), module + ".weight"
    need(torch.equal(got[name], weights[name]) and not torch.equal(whole[name], weights[name]), "the module without tensors")
    need(all(torch.equal(v, whole[k]) for k, v in got.items() if k != name), "the other tensors")


def test_settings_of_adapters_that_are_not_known(t):
    """PEFT 0.21 warns "Unexpected keyword arguments [...] for class LoraConfig, these are ignored"."""
    source = os.path.join(GOLDEN, "lora", "plain")
    out, work = os.path.join(t.scratch, "out.safetensors"), os.path.join(t.scratch, "adapter")
    shutil.copytree(os.path.join(source, "adapter"), work)
    with open(os.path.join(work, "adapter_config.json")) as f:
        config = json.load(f)

    def warnings(more):
        with open(os.path.join(work, "adapter_config.json"), "w") as f:
            json.dump({**config, **more}, f)
        return t.json("convert", os.path.join(source, "base.safetensors"), out, "--lora", work, "--overwrite", "--json")["warnings"]

    need(not warnings({"use_newer": False, "newer_config": {}}), "settings that are not set")
    said = warnings({"use_newer": True, "newer_config": {"a": 1}})
    need([w for w in said if "2 of the settings" in w and "'use_newer'" in w and "ignored" in w], f"{said}")


def test_objects_that_are_dropped_need_not_agree(t):
    a, b = {"w": torch.tensor([1.0, 5.0]), "epoch": 1, "old": "x"}, {"w": torch.tensor([3.0, -1.0]), "epoch": 2, "more": [1]}
    torch.save(a, t.at("a.pt"))
    torch.save(b, t.at("b.pt"))
    run = ("merge", t.at("o.safetensors"), t.at("a.pt"), t.at("b.pt"), "--method", "linear", "--objects")
    for objects in ("sidecar", "refuse"):
        assert b"'more'" in t.run(*run, objects, status=2).stderr
    t.run(*run, "drop")
    got = load_file(t.at("o.safetensors"))
    assert list(got) == ["w"] and torch.equal(got["w"], torch.tensor([2.0, 2.0])), got


def test_resume_of_a_merge(t):
    """Killed while it writes, then continued: the bytes of an undisturbed run; other options start over."""
    paths = []
    for seed in range(2):
        torch.manual_seed(seed)
        paths.append(os.path.join(t.scratch, f"{seed}.safetensors"))
        save_file({f"w{i}": torch.randn(1024, 2048 + i) for i in range(24)}, paths[-1])
    whole, out = (os.path.join(t.scratch, n) for n in ("whole", "out"))
    options = ["--method", "slerp", "--t", "0.4", "--to", "safetensors", "--max-shard-size", "40MB"]
    t.run("merge", whole, *paths, *options)
    killed, delay = 0, 0.05
    while killed < 4:
        p = subprocess.Popen([t.path, "merge", out, *paths, *options, "--resume", "--threads", "1"], stderr=subprocess.DEVNULL)
        time.sleep(delay)
        p.send_signal(signal.SIGKILL)
        p.wait()
        if not os.path.exists(out):
            killed, delay = killed + 1, delay * 1.6
        else:  # a run that was fast, or killed after it had published
            shutil.rmtree(out)
            killed, delay = 0, delay / 4
    t.run("merge", out, *paths, *options, "--resume")
    for name in sorted(os.listdir(whole)):
        need(open(os.path.join(whole, name), "rb").read() == open(os.path.join(out, name), "rb").read(), f"{name} differs after --resume")
    need(sorted(os.listdir(out)) == sorted(os.listdir(whole)), f"left {os.listdir(out)}")
