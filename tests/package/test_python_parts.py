"""part, step, also and shards in the Python package: beside the native command's documents and PyTorch's own tensors."""
import json
import os
import pathlib
import shutil
import warnings

import torch
from harness import ROOT, SAMPLES, sha256
from safetensors.torch import load_file, save_file
from test_python import tessera
from test_python_torch import fails
from torch_names import dcp

GOLDEN = os.path.join(ROOT, "tests/golden")
TRAINER = os.path.join(GOLDEN, "directories/trainer")
ZERO3 = os.path.join(GOLDEN, "deepspeed/zero3_bf16")
DCP = os.path.join(SAMPLES, "dcp_fsdp2")


def same(ours, theirs):
    assert set(ours) == set(theirs), set(ours) ^ set(theirs)
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype and torch.equal(ours[name], tensor), name


# ---- part ----


def test_a_part_is_that_of_the_command(t):
    for path, part in ((TRAINER, "model"), (TRAINER, "optimizer"), (ZERO3, "model"), (ZERO3, "optim")):
        assert tessera.inspect(path, hash="sha256", part=part) == t.json("inspect", path, "--json", "--hash", "sha256", "--part", part)
        document = t.json("validate", path, "--json", "--deep", "--part", part)
        assert tessera.validate(path, deep=True, part=part) == document
        assert [f.message for f in tessera.check(path, deep=True, part=part)] == [f["message"] for f in document["findings"]]
    assert len(tessera.open(TRAINER)) > len(tessera.open(TRAINER, part="model")) == 12
    fails(tessera.TesseraError, lambda: tessera.open(TRAINER, part="modle"), "'modle'", "'model'", "'trainer_state'")
    fails(TypeError, lambda: tessera.open(TRAINER, part=1), "part", "int")


def test_a_part_loads_with_the_tensors_of_its_library(t):
    model = load_file(os.path.join(TRAINER, "model.safetensors"))
    same(tessera.torch.load(TRAINER, part="model"), model)
    same(tessera.torch.load(TRAINER), {**tessera.torch.load(TRAINER), **{"model." + name: tensor for name, tensor in model.items()}})
    saved = torch.load(os.path.join(TRAINER, "optimizer.pt"), weights_only=True)
    moments = tessera.torch.load(TRAINER, part="optimizer")
    assert saved["state"] and all(torch.equal(moments[f"state.{n}.exp_avg"], state["exp_avg"]) for n, state in saved["state"].items())
    with open(os.path.join(ZERO3, "expect.json")) as f:  # what zero_to_fp32 gives
        want = json.load(f)["model"]
    got = tessera.torch.load(ZERO3, part="model")
    assert {n: sha256(got[n]) for n in want} == {n: w["sha256"] for n, w in want.items()}


def test_a_part_fills_a_state_dict(t):
    model = load_file(os.path.join(TRAINER, "model.safetensors"))
    state = {name: torch.zeros_like(tensor) for name, tensor in model.items()}
    assert tessera.torch.load_into(state, TRAINER, part="model") == ([], [])
    same(state, model)
    fails(tessera.TesseraError, lambda: tessera.torch.load_into(state, TRAINER), "lm_head.weight")
    state = {name: torch.zeros_like(tensor) for name, tensor in model.items()}
    dcp.load(state, storage_reader=tessera.torch.StorageReader(TRAINER, part="model"), no_dist=True)
    same(state, model)


def test_what_a_part_is_compared_with_needs_no_parts(t):
    plain = os.path.join(TRAINER, "model.safetensors")
    assert tessera.diff(TRAINER, plain, values=True, part="model") == t.json("diff", TRAINER, plain, "--values", "--json", "--part", "model")
    shutil.copytree(TRAINER, t.at("again"))
    tensors = load_file(plain)
    tensors["model.norm.weight"] += 1
    save_file(tensors, t.at("again/model.safetensors"), metadata={"format": "pt"})
    changed = tessera.diff(TRAINER, t.at("again"), values=True, part="model")
    assert [c["fqn"] for c in changed["changed"]] == ["model.norm.weight"]
    assert changed == t.json("diff", TRAINER, t.at("again"), "--values", "--json", "--part", "model", status=1)
    assert tessera.check(TRAINER, part="model", against=plain) == [] and tessera.check(TRAINER, part="model", against=TRAINER) == []
    t.run("validate", TRAINER, "--part", "model", "--against", plain)
    t.run("validate", TRAINER, "--part", "model", "--against", TRAINER)
    fails(tessera.TesseraError, lambda: tessera.diff(TRAINER, ZERO3, part="optimizer"), "'optimizer'", "deepspeed")


# ---- step ----


def steps(t, *numbers):
    for n in numbers:
        dcp.save({"w": torch.arange(6.0) + n, "n": n}, checkpoint_id=t.at("run", f"step-{n}"), no_dist=True)
    return t.at("run")


def test_a_step_is_chosen_as_by_the_command(t):
    path = steps(t, 3, 20)
    error = fails(tessera.TesseraError, lambda: tessera.open(path), "step-3", "step-20")
    assert error.status in ("unsupported", "usage")
    for step, n in ((3, 3), ("3", 3), ("step-20", 20), ("latest", 20)):
        assert tessera.torch.load(path, step=step)["w"].tolist() == [n + i for i in range(6)]
        assert tessera.inspect(path, step=step) == t.json("inspect", path, "--json", "--step", step)
        assert tessera.validate(path, step=step)["summary"]["errors"] == 0
    state = {"w": torch.zeros(6)}
    dcp.load(state, storage_reader=tessera.torch.StorageReader(path, step=20), no_dist=True)
    assert state["w"].tolist() == [20.0 + i for i in range(6)]
    with open(os.path.join(path, "latest"), "w") as f:
        f.write("step-3")
    assert tessera.torch.load(path)["w"][0] == 3
    fails(tessera.TesseraError, lambda: tessera.open(path, step=4), "there is no step '4'")
    for wrong in (True, 1.5):
        fails(TypeError, lambda: tessera.open(path, step=wrong), "step")


# ---- also ----


def test_directories_of_several_nodes_are_one_checkpoint(t):
    data = sorted(f for f in os.listdir(DCP) if f.endswith(".distcp"))
    for node, names in (("a", [".metadata", data[0]]), ("b", data[1:])):
        os.makedirs(t.at(node))
        for name in names:
            shutil.copy(os.path.join(DCP, name), t.at(node))
    fails(tessera.TesseraError, lambda: tessera.torch.load(t.at("a")), data[1])
    whole = tessera.torch.load(DCP)
    for also in (t.at("b"), pathlib.Path(t.at("b")), [t.at("b")]):
        same(tessera.torch.load(t.at("a"), also=also), whole)
    assert tessera.validate(t.at("a"), deep=True, also=[t.at("b")]) == t.json("validate", t.at("a"), "--json", "--deep", "--also", t.at("b"))
    assert tessera.diff(t.at("a"), DCP, values=True, also=[t.at("b")])["same"]
    assert tessera.check(t.at("a"), also=[t.at("b")], against=DCP) == []
    t.run("validate", t.at("a"), "--also", t.at("b"), "--against", DCP)
    with tessera.open(t.at("a"), also=[t.at("b")]) as checkpoint:
        entry = next(e for e in checkpoint.values() if e.kind == "tensor" and e.nbytes)
        entry.read()
        checkpoint.unchanged()
        for node in "ab":
            for name in os.listdir(t.at(node)):
                os.utime(t.at(node, name), ns=(1, 1))
        fails(tessera.TesseraError, checkpoint.unchanged, "changed while it was being read")
    shutil.copy(os.path.join(DCP, data[0]), t.at("b"))
    with open(t.at("b", data[0]), "ab") as f:
        f.write(b"x")
    fails(tessera.TesseraError, lambda: tessera.open(t.at("a"), also=[t.at("b")]), data[0], "different bytes")
    fails(TypeError, lambda: tessera.open(t.at("a"), also=[3]), "also", "int")


# ---- shards ----

RULES = {"schema": "tessera.shards/1", "rules": [{"match": "w", "concat": 1}, {"match": "n", "replicate": True}]}


def ranks(t):
    """Two ranks' files under vLLM's names, and the tensors that they hold together."""
    whole = {"w": torch.arange(24.0).reshape(3, 8).bfloat16(), "n": torch.arange(5)}
    os.makedirs(t.at("ranks"))
    for rank, w in enumerate(whole["w"].chunk(2, 1)):
        save_file({"w": w.contiguous(), "n": whole["n"]}, t.at(f"ranks/model-rank-{rank}-part-0.safetensors"))
    with open(t.at("map.json"), "w") as f:
        json.dump(RULES, f)
    return t.at("ranks"), whole


def test_a_map_joins_the_tensors_of_ranks(t):
    path, whole = ranks(t)
    fails(tessera.TesseraError, lambda: tessera.torch.load(path), "'w'", "shards=MAP")
    for shards in (t.at("map.json"), pathlib.Path(t.at("map.json")), RULES, json.dumps(RULES), json.dumps(RULES).encode()):
        same(tessera.torch.load(path, shards=shards), whole)
    assert tessera.inspect(path, hash="sha256", shards=RULES) == t.json("inspect", path, "--json", "--hash", "sha256", "--shards", t.at("map.json"))
    assert tessera.validate(path, deep=True, shards=RULES) == t.json("validate", path, "--json", "--deep", "--shards", t.at("map.json"))
    state = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    dcp.load(state, storage_reader=tessera.torch.StorageReader(path, shards=RULES), no_dist=True)
    same(state, whole)
    assert tessera.open(path, shards=RULES)["w"][1:2, 3:5].tobytes() == whole["w"][1:2, 3:5].contiguous().view(torch.int16).numpy().tobytes()


def test_maps_that_are_wrong_are_refused(t):
    path, _ = ranks(t)
    error = fails(tessera.TesseraError, lambda: tessera.open(path, shards=t.at("none.json")), "none.json", "meta-llama", "megatron-gpt")
    assert error.status == "not found"
    fails(tessera.TesseraError, lambda: tessera.open(path, shards={"schema": "tessera.shards/2"}), "tessera.shards/2")
    with open(t.at("map.json"), "w") as f:
        f.write("{}")
    fails(tessera.TesseraError, lambda: tessera.open(path, shards=t.at("map.json")), "map.json", "schema")
    fails(TypeError, lambda: tessera.open(path, shards=7), "shards", "int")
    fails(tessera.TesseraError, lambda: tessera.torch.load(path, shards="megatron-gpt"), "megatron-gpt")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(tessera.open(DCP, shards="vllm")) == len(tessera.open(DCP))
    assert [str(w.message) for w in caught] == [f"{DCP}: shards is not used: its tensors are not plain tensors of several ranks"]
