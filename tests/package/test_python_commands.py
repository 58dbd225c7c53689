"""The commands as functions of the Python package, beside the command line and PyTorch."""
import filecmp
import inspect
import json
import os
import shutil
import subprocess
import sys
import warnings

import numpy
import torch
from harness import ROOT, SAMPLES
from safetensors.torch import load_file, save_file
from test_python import INSTALLED, WHEEL, save, tessera
from test_python_torch import fails
from shell import check

GOLDEN = os.path.join(ROOT, "tests/golden")
TRAINER = os.path.join(GOLDEN, "directories/trainer")
FSDP2, TP = os.path.join(SAMPLES, "dcp_fsdp2"), os.path.join(SAMPLES, "dcp_tp_fsdp2")
ASIDE = {"json", "format", "output", "print", "tree", "color", "quiet", "no-progress", "list-rules", "fail-on", "no-mpi", "help", "version", "changed-files"}


def table(t):
    return json.loads(t.run("completions", "json").stdout)


def counts(document):
    """A document about what was written, without the place and the time."""
    return {**document, "destination": None, "summary": {**document["summary"], "seconds": None}}


def same_files(a, b):
    found = {os.path.relpath(os.path.join(directory, name), a) for directory, _, names in os.walk(a) for name in names}
    assert found == {os.path.relpath(os.path.join(directory, name), b) for directory, _, names in os.walk(b) for name in names} and found
    for name in found:
        assert filecmp.cmp(os.path.join(a, name), os.path.join(b, name), shallow=False), name


# ---- what there is ----


def test_functions_have_the_options_of_their_commands(t):
    """Every option of the command line is a keyword, but those about output and terminal."""
    found = table(t)
    shared = {o["name"] for o in found["options"]} - ASIDE
    for command in found["commands"]:
        assert command["python"] or command["name"] in ("view", "help", "completions"), command["name"]
        want = ({o["name"] for o in command["options"]} | shared) - ASIDE
        for function in command["python"]:
            keywords = {k.replace("_", "-") for k, p in inspect.signature(getattr(tessera, function)).parameters.items()
                        if p.default is not inspect.Parameter.empty} - {"on-progress", "progress"}
            operands = {"fqn": {"modules"}, "explain": {"rule"}, "doctor": {"directory"}}.get(function, set())
            options = shared if function in ("map_list", "map_show") else want
            assert keywords - operands == (set() if function in ("map_list", "map_show") else options), (function, (keywords - operands) ^ options)
    assert "convert" in tessera.__all__ and all(getattr(tessera, name).__doc__ for name in tessera.__all__)


def test_the_functions_are_made_from_the_table(t):
    check(sys.executable, os.path.join(ROOT, "native/python/commands.py"), t.path, "--check")


def test_python_m_is_the_command(t):
    check(sys.executable, "-m", "venv", t.at("venv"))
    check(t.at("venv/bin/pip"), "install", "--no-index", "--disable-pip-version-check", WHEEL)
    for arguments in (("inspect", FSDP2, "--json"), ("validate", os.path.join(SAMPLES, "broken_dcp_hole")), ("latest",)):
        ours = subprocess.run([t.at("venv/bin/python"), "-m", "tessera", *arguments], capture_output=True)
        theirs = subprocess.run([t.path, *arguments], capture_output=True)
        assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr), arguments


# ---- documents ----


def test_documents_of_what_reads(t):
    assert tessera.layout(FSDP2) == t.json("layout", FSDP2)
    assert tessera.layout(FSDP2, no_chunks=True, include="**.weight") == t.json("layout", FSDP2, "--no-chunks", "--include", "**.weight")
    manifest = t.json("manifest", FSDP2)
    assert tessera.manifest(FSDP2) == manifest and tessera.manifest(FSDP2, hash="sha256") == t.json("manifest", FSDP2, "--hash", "sha256")
    path = save(t, "manifest.json", json.dumps(manifest))
    assert tessera.verify(TP, path) == json.loads(subprocess.run([t.path, "verify", TP, path, "--json"], capture_output=True).stdout)
    assert tessera.verify(FSDP2, manifest)["findings"] == [] and tessera.verify(FSDP2, json.dumps(manifest))["findings"] == []
    mesh = {"mesh": "dp=3", "placements": "shard(0)"}
    assert tessera.plan(FSDP2, **mesh) == t.json("plan", FSDP2, "--mesh", "dp=3", "--placements", "shard(0)", "--json")
    assert tessera.plan(FSDP2, items=True, **mesh) == t.json("plan", FSDP2, "--mesh", "dp=3", "--placements", "shard(0)", "--items")
    assert tessera.fqn(checkpoint=FSDP2) == t.json("fqn", "--checkpoint", FSDP2, "--json")
    assert tessera.explain("layout/hole") == t.json("explain", "layout/hole", "--json") and tessera.explain("layout/hole")["rules"][0]["level"] == "error"
    assert tessera.explain() == t.json("explain", "--json") and len(tessera.explain()["rules"]) > 50
    assert "torchtitan-llama3" in tessera.map_list()["maps"] and tessera.map_list() == t.json("map", "list", "--json")
    assert tessera.map_show("torchtitan-llama3") == t.json("map", "show", "torchtitan-llama3")
    assert tessera.map_suggest(FSDP2, TP) == t.json("map", "suggest", FSDP2, TP)
    assert tessera.doctor()["schema"] == t.json("doctor", "--json")["schema"]
    several = tessera.validate([FSDP2, os.path.join(SAMPLES, "broken_dcp_hole")])
    assert several == t.json("validate", FSDP2, os.path.join(SAMPLES, "broken_dcp_hole"), "--json", status=1)


def test_modules_and_names(t):
    modules = {"schema": "tessera.modules/1", "root": {"class": "M", "wrapper": "compiled", "parameters": {}, "buffers": {}, "extra_state": False, "children": {
        "_orig_mod": {"class": "Linear", "wrapper": "none", "parameters": {"weight": {"shape": [2, 3], "dtype": "float32", "requires_grad": True, "id": 1}},
                      "buffers": {}, "extra_state": False, "children": {}}}}}
    path = save(t, "modules.json", json.dumps(modules))
    assert tessera.fqn(modules) == tessera.fqn(path) == t.json("fqn", path, "--json")
    assert tessera.fqn(modules, "_orig_mod.weight")["names"][0]["fqns"] == ["weight"]


def test_the_newest_step_of_a_run(t):
    assert tessera.latest(t.at("")) == {"schema": "tessera.latest/1", "run": t.at(""), "passed_over": []}
    os.mkdir(t.at("run"))
    for step in (1, 2, 3):
        tessera.copy(FSDP2, t.at(f"run/step-{step}"))
    os.remove(t.at("run/step-3/.metadata"))
    found = tessera.latest(t.at("run"))
    assert found == t.json("latest", t.at("run"), "--json") and found["path"] == t.at("run/step-2") and len(found["passed_over"]) == 1


# ---- files ----


def test_what_writes_writes_the_bytes_of_the_command(t):
    done = tessera.convert(FSDP2, t.at("a.safetensors"), objects="drop", dtype="bfloat16")
    command = t.json("convert", FSDP2, t.at("b.safetensors"), "--objects", "drop", "--dtype", "bfloat16", "--json")
    assert counts(done) == counts(command) and filecmp.cmp(t.at("a.safetensors"), t.at("b.safetensors"), shallow=False)
    tessera.reshard(FSDP2, t.at("a"), mesh="dp=3", placements="shard(0)")
    t.run("reshard", FSDP2, t.at("b"), "--mesh", "dp=3", "--placements", "shard(0)")
    same_files(t.at("a"), t.at("b"))
    plan = tessera.plan(FSDP2, mesh="dp=2", placements="shard(0)", to="safetensors", objects="drop")
    tessera.exec(plan, t.at("c"), share="1/2")
    tessera.exec(plan, t.at("c"), share="2/2")
    tessera.exec(plan, t.at("c"), finish=True)
    t.run("exec", save(t, "plan.json", json.dumps(plan)), t.at("d"))
    same_files(t.at("c"), t.at("d"))
    one, two = {"w": torch.arange(6.0).reshape(2, 3)}, {"w": torch.arange(6.0, 12.0).reshape(2, 3)}
    save_file(one, t.at("one.safetensors"))
    save_file(two, t.at("two.safetensors"))
    tessera.merge(t.at("merged.safetensors"), t.at("one.safetensors"), t.at("two.safetensors"), method="linear", weight=[0.25, 0.75])
    assert torch.equal(load_file(t.at("merged.safetensors"))["w"], one["w"] * 0.25 + two["w"] * 0.75)
    tessera.merge(t.at("beyond.safetensors"), t.at("one.safetensors"), t.at("two.safetensors"), method="linear", weight=[-0.5, 1.5])
    assert torch.equal(load_file(t.at("beyond.safetensors"))["w"], one["w"] * -0.5 + two["w"] * 1.5)
    assert tessera.copy(t.at("a"), t.at("e"))["schema"] == "tessera.cp/1"
    same_files(t.at("a"), t.at("e"))
    os.remove(t.at("e/.metadata"))
    tessera.repair(t.at("e"), t.at("e/.metadata"), like=t.at("a"))
    assert tessera.diff(t.at("e"), t.at("a"), values=True)["same"]
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2, 3) * n) for n in (1, 2)])
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = parameter.detach() * 0.5
    optimizer.step()
    torch.save(optimizer.state_dict(), t.at("optimizer.pt"))
    modules = {"schema": "tessera.modules/1", "root": {"class": "M", "wrapper": "none", "parameters": {
        name: {"shape": [2, 3], "dtype": "float32", "requires_grad": True, "id": name} for name in ("a", "b")}, "buffers": {}, "extra_state": False, "children": {}}}
    tessera.optim("to-fqn", t.at("optimizer.pt"), t.at("named.pt"), modules=modules)
    named = torch.load(t.at("named.pt"), weights_only=True)
    assert torch.equal(named["state"]["b"]["exp_avg"], optimizer.state_dict()["state"][1]["exp_avg"])


def test_parts_and_opened_checkpoints(t):
    tessera.convert(TRAINER, t.at("model.safetensors"), part="model")
    with tessera.open(TRAINER, part="model") as checkpoint:
        tessera.convert(checkpoint, t.at("again.safetensors"))
        assert filecmp.cmp(t.at("model.safetensors"), t.at("again.safetensors"), shallow=False)
        assert tessera.check(t.at("model.safetensors"), against=checkpoint) == []  # what it was opened with counts
        fails(ValueError, lambda: tessera.diff(t.at("model.safetensors"), checkpoint), "part")
        fails(ValueError, lambda: tessera.inspect(checkpoint, part="optimizer"), "part")
    fails(ValueError, lambda: tessera.layout(checkpoint), "closed")


def test_get_reads_what_indexing_gives(t):
    tensor = torch.arange(4 * 5 * 6, dtype=torch.float32).reshape(4, 5, 6)
    torch.save({"w": tensor, "half": tensor.to(torch.bfloat16), "v[0]": torch.ones(3), "v": tensor, "step": 7, "zero": torch.tensor(2.5)}, t.at("x.pt"))
    array = tensor.numpy()
    for inside in ("0", "-1", "1:3", ":2, 3", "..., 1:4", "2, ..., 0", ":, 1:, -2:", "3,4,5", "5:", "..."):
        want = eval(f"array[{inside}]", {"array": array})
        got = numpy.asarray(tessera.get(t.at("x.pt"), f"w[{inside}]"))
        if want.size:
            assert got.shape == want.shape and (got == want).all(), inside
    assert tessera.get(t.at("x.pt"), "v[0]").tolist() == [1.0] * 3  # a name comes before a slice
    assert tessera.get(t.at("x.pt"), "step") == 7 and tessera.get(t.at("x.pt"), "zero").tolist() == 2.5
    with tessera.open(t.at("x.pt")) as checkpoint:
        assert tessera.get(checkpoint, "step") == 7
        fails(ValueError, lambda: tessera.get(checkpoint, "step", part="model"), "the checkpoint is open already; pass its path to choose part")
    assert bytes(tessera.get(t.at("x.pt"), "half[1:2]")) == tensor.to(torch.bfloat16)[1:2].view(torch.uint8).numpy().tobytes()
    for wrong, reason in (("w[4]", "beyond its size 4"), ("w[0,0,0,0]", "3 dimensions"), ("w[x]", "'x' is not an index of dim 0"), ("no", "no 'no'")):
        fails(tessera.TesseraError, lambda: tessera.get(t.at("x.pt"), wrong), reason)


# ---- layers ----


def test_a_checkpoint_is_read_through_a_map(t):
    source = {f"a.{n}.w": torch.arange(6.0).reshape(2, 3) + 10 * n for n in range(3)}
    save_file(source, t.at("model.safetensors"))
    rules = {"schema": "tessera.map/1", "rules": [{"from": ["a.{layer}.w"], "to": ["b.{layer}.weight"], "do": [{"transpose": [1, 0]}]}]}
    for given in (rules, json.dumps(rules), save(t, "map.json", json.dumps(rules))):
        with tessera.open(t.at("model.safetensors"), map=given) as checkpoint:
            assert set(checkpoint) == {f"b.{n}.weight" for n in range(3)}
            for n in range(3):
                assert numpy.asarray(checkpoint[f"b.{n}.weight"][1:3]).tolist() == source[f"a.{n}.w"].T[1:3].tolist()
            assert tessera.get(checkpoint, "b.2.weight[2,1]").tolist() == source["a.2.w"][1, 2].item()
            tessera.convert(checkpoint, t.at("through.safetensors"), overwrite=True)
    assert all(torch.equal(load_file(t.at("through.safetensors"))[f"b.{n}.weight"], source[f"a.{n}.w"].T) for n in range(3))
    with tessera.open(t.at("through.safetensors"), map=rules, inverse=True) as checkpoint:
        assert numpy.asarray(checkpoint["a.1.w"]).tolist() == source["a.1.w"].tolist()
    fails(tessera.TesseraError, lambda: tessera.open(t.at("model.safetensors"), map="no-such-map"), "no-such-map", "llama")
    fails(tessera.TesseraError, lambda: tessera.open(t.at("model.safetensors"), map={"schema": "tessera.map/1", "rules": [{"from": ["c"], "to": ["d"]}]}), "a.0.w")
    fails(TypeError, lambda: tessera.open(t.at("model.safetensors"), map=3), "map is a document")
    fails(tessera.TesseraError, lambda: tessera.open(t.at("model.safetensors"), inverse=True), "inverse")
    with tessera.open(t.at("model.safetensors"), map=rules) as checkpoint:
        fails(ValueError, lambda: tessera.layout(checkpoint), "map")


def test_adapters_and_scales_and_wrappers_are_undone(t):
    base, a, b = torch.arange(12.0).reshape(4, 3), torch.arange(6.0).reshape(2, 3) - 2, torch.arange(8.0).reshape(4, 2) * 0.5
    save_file({"model.q_proj.weight": base}, t.at("base.safetensors"))
    os.mkdir(t.at("adapter"))
    save_file({"base_model.model.model.q_proj.lora_A.weight": a, "base_model.model.model.q_proj.lora_B.weight": b}, t.at("adapter/adapter_model.safetensors"))
    save(t, "adapter/adapter_config.json", json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj"]}))
    with tessera.open(t.at("base.safetensors"), lora=t.at("adapter")) as checkpoint:
        assert torch.equal(torch.from_numpy(numpy.asarray(checkpoint["model.q_proj.weight"])), base + 3 * (b @ a))
    scaled = torch.tensor([[1.5, -2.0], [0.25, 448.0]]).to(torch.float8_e4m3fn)
    save_file({"w.weight": scaled, "w.weight_scale": torch.tensor([0.5])}, t.at("scaled.safetensors"))
    with tessera.open(t.at("scaled.safetensors"), dequantize=True) as checkpoint:
        assert set(checkpoint) == {"w.weight"} and checkpoint["w.weight"].dtype == "bfloat16"
        read = torch.frombuffer(bytearray(checkpoint["w.weight"].read()), dtype=torch.bfloat16).reshape(2, 2)
        assert torch.equal(read.float(), scaled.float() * 0.5)
    torch.save({"_orig_mod.module.w": torch.arange(3.0), "_orig_mod.module.v": torch.ones(2)}, t.at("wrapped.pt"))
    with tessera.open(t.at("wrapped.pt"), canonical=True) as checkpoint:
        assert numpy.asarray(checkpoint["w"]).tolist() == [0, 1, 2] and len(checkpoint) == 2, list(checkpoint)
    torch.save({"_orig_mod.module.w": torch.ones(2), "_orig_mod.w": torch.ones(3), "w": torch.ones(4)}, t.at("collides.pt"))
    fails(tessera.TesseraError, lambda: tessera.open(t.at("collides.pt"), canonical=True), "'_orig_mod.w'", "'w'")
    half = torch.arange(24.0).reshape(2, 3, 4).to(torch.bfloat16)
    save_file({"half": half, "w": half.double()}, t.at("half.safetensors"))
    with tessera.open(t.at("half.safetensors")) as checkpoint:
        assert checkpoint["w"].array((slice(None), 1, slice(1, 3))).tolist() == half.double()[:, 1:2, 1:3].tolist()
        try:
            import ml_dtypes
        except ImportError:
            fails(TypeError, lambda: checkpoint["half"].array(1), "ml_dtypes")
        else:
            array = checkpoint["half"].array(1)
            assert array.dtype == ml_dtypes.bfloat16 and array.astype("float32").tolist() == half[1:2].float().tolist()


def test_notebooks_show_trees_and_lists(t):
    torch.save({"<b>model": {f"layers.{n}": {"w": torch.ones(n + 1)} for n in range(3)}, "step": 7, "x\x1b": torch.ones(2)}, t.at("x.pt"))
    with tessera.open(t.at("x.pt")) as checkpoint:
        shown = checkpoint._repr_html_()
    assert "&lt;b&gt;model.layers" in shown and "<b>model" not in shown and "\x1b" not in shown and "<details>" in shown and "float32 [3]" in shown
    assert "no findings" in tessera.validate(FSDP2)._repr_html_() or tessera.validate(FSDP2)["findings"]
    assert "layout/hole" in tessera.validate(os.path.join(SAMPLES, "broken_dcp_hole"))._repr_html_()
    save_file({"a": torch.ones(2), "c": torch.ones(3)}, t.at("a.safetensors"))
    save_file({"a": torch.zeros(2), "<i>": torch.ones(3)}, t.at("b.safetensors"))
    shown = tessera.diff(t.at("a.safetensors"), t.at("b.safetensors"), values=True)._repr_html_()
    assert "&lt;i&gt;" in shown and "Changed" in shown and "Removed" in shown, shown


# ---- what is said ----


def test_errors_speak_of_keywords_and_warnings_are_warnings(t):
    fails(tessera.TesseraError, lambda: tessera.convert(FSDP2, t.at("x.safetensors")), 'objects="drop"')
    tessera.convert(FSDP2, t.at("x.safetensors"), objects="drop")
    e = fails(tessera.TesseraError, lambda: tessera.convert(FSDP2, t.at("x.safetensors"), objects="drop"), "overwrite=True", "exists")
    assert e.status == "usage" or e.status == "exists", e.status
    assert "--" not in str(e), str(e)
    fails(ValueError, lambda: tessera.convert(FSDP2, t.at("y"), to="onnx"), "to is", "'safetensors'", "'onnx'")
    fails(TypeError, lambda: tessera.convert(FSDP2, t.at("y"), no_such=True), "no_such")
    fails(TypeError, lambda: tessera.convert(FSDP2, t.at("y"), resume="yes"), "resume")
    fails(tessera.TesseraError, lambda: tessera.plan(FSDP2, target={"schema": "no"}), "target")
    fails(tessera.TesseraError, lambda: tessera.convert(FSDP2, t.at("y"), to="dcp", map={"schema": "tessera.map/1", "rules": [{"from": ["a"], "to": 3}]}), "map")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        tessera.convert(FSDP2, t.at("z.safetensors"), objects="drop", exclude="no.such.name")
    assert any("no.such.name" in str(w.message) and w.filename == __file__ for w in said), [str(w.message) for w in said]


PROGRESS = """
import os, signal, sys, threading, time
import tessera
seen = []
signal.signal(signal.SIGINT, signal.default_int_handler)
def on_progress(done, total):
    seen.append((done, total))
    if len(seen) == 1:
        if sys.argv[3] == "signal":
            os.kill(os.getpid(), signal.SIGINT)
        elif sys.argv[3] == "raise":
            raise ZeroDivisionError("mine")
try:
    tessera.convert(sys.argv[1], sys.argv[2], on_progress=on_progress)
    print("done", seen[-1][0] == seen[-1][1] > 0, seen == sorted(seen))
except KeyboardInterrupt:
    print("interrupted")
except ZeroDivisionError as e:
    print(e)
"""


def test_progress_ends_with_all_bytes(t):
    save_file({"w": torch.arange(1000.), "v": torch.ones(3)}, t.at("x.safetensors"))
    torch.save({"w": torch.arange(1000.)}, t.at("x.pt"))
    for path in (t.at("x.safetensors"), t.at("x.pt"), FSDP2):
        for name, operands, options in (("inspect", (), {"hash": "sha256"}), ("validate", (), {"deep": True}), ("check", (), {"deep": True}), ("layout", (), {"hash": "xxh3"}),
                                        ("manifest", (), {}), ("diff", (path,), {"values": True}), ("convert", (t.at("out.safetensors"),), {"objects": "drop", "overwrite": True}),
                                        ("copy", (t.at("copy"),), {})):
            seen = []
            getattr(tessera, name)(path, *operands, **options, on_progress=lambda done, total: seen.append((done, total)))
            assert seen and seen[-1][0] == seen[-1][1] > 0 and seen == sorted(seen), (path, name, seen)
        (shutil.rmtree if os.path.isdir(t.at("copy")) else os.remove)(t.at("copy"))


def test_progress_and_interruption(t):
    size = 3 << 30
    text = json.dumps({"w": {"dtype": "U8", "shape": [size >> 10, 1024], "data_offsets": [0, size]}}).encode()
    with open(t.at("big.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + size)
    for what, said in (("raise", "mine"), ("signal", "interrupted")):
        p = subprocess.run([sys.executable, "-c", PROGRESS, t.at("big.safetensors"), t.at(f"{what}.pt"), what], capture_output=True, text=True, timeout=600,
                           env={**os.environ, "PYTHONPATH": INSTALLED})
        assert p.stdout.strip() == said and p.returncode == 0, (what, p.stdout, p.stderr[-500:])
        assert os.listdir(t.at("")) == ["big.safetensors"], os.listdir(t.at(""))
    os.truncate(t.at("big.safetensors"), 8)
    save_file({"w": torch.ones(1 << 22)}, t.at("small.safetensors"))
    p = subprocess.run([sys.executable, "-c", PROGRESS, t.at("small.safetensors"), t.at("small.pt"), "none"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": INSTALLED})
    assert p.stdout.strip() == "done True True", (p.stdout, p.stderr[-500:])
