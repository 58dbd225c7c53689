"""Targets that put tensors on some ranks only: experts by their ranks, layers by pipeline stages. PyTorch loads what each rank has."""
import json
import os

from harness import load_dcp
from test_rank_maps import check, tensor


def source(t):
    import torch
    from safetensors.torch import save_file
    state = {"embed.weight": tensor(1, 8, 4), "norm.weight": tensor(2, 4), "empty": torch.zeros(0, 3)}
    for n in range(5):
        state[f"layers.{n}.w.weight"] = tensor(10 + n, 6, 4)
        state[f"layers.{n}.mlp.experts.{n % 2}.weight"] = tensor(20 + n, 4, 2)
    save_file(state, t.at("source.safetensors"))
    return state, t.at("source.safetensors")


STAGE = {"dim": "pp", "layers": {"capture": "layers.{n}.", "ranges": [[0, 2], [2, 5]]}}
TARGET = {"schema": "tessera.target/1", "mesh": {"shape": [2, 2], "dim_names": ["pp", "tp"]}, "rules": [
    {"match": "layers.0.**.experts.0.*", "ranks": [3]},
    {"match": "layers.1.**.experts.*.weight", "ranks": [2, 0], "placements": ["replicate", "replicate"]},
    {"match": "**.weight", "stage": STAGE, "placements": ["replicate", "shard(0)"]},
    {"match": "norm.*", "ranks": [2, 3], "placements": ["replicate", "shard(0)"]}], "default": ["replicate", "shard(0)"]}


def expected(state, rank):
    """What rank (pp, tp) holds."""
    pp, tp = divmod(rank, 2)
    held = {}
    for name, value in state.items():
        layer = int(name.split(".")[1]) if name.startswith("layers.") else None
        if name == "layers.0.mlp.experts.0.weight":
            if rank == 3:
                held[name] = value
        elif layer == 1 and "experts" in name:
            if rank in (0, 2):
                held[name] = value
        elif layer is not None:
            if pp == (layer >= 2):
                held[name] = value.chunk(2)[tp]
        elif name != "norm.weight" or rank >= 2:
            held[name] = value.chunk(2)[tp] if value.shape[0] else value
    return held


def write(t, target, name="target.json"):
    with open(t.at(name), "w") as f:
        json.dump(target, f)
    return t.at(name)


def test_each_rank_has_what_its_rules_say(t):
    import torch
    state, path = source(t)
    target = write(t, TARGET)
    t.run("reshard", path, t.at("ranks"), "--to", "torch", "--target", target)
    for rank in range(4):
        # Real DTensors; their meshes need no process group to be read as data.
        got = torch.load(t.at("ranks", f"rank{rank}.pt"), weights_only=False)
        check({k: v._local_tensor for k, v in got.items()}, expected(state, rank))
    assert t.json("diff", t.at("ranks"), path, "--values", "--json")["same"]


def test_every_form_and_process_agrees(t):
    state, path = source(t)
    target = write(t, TARGET)
    t.run("reshard", path, t.at("dcp"), "--to", "dcp", "--target", target)
    check(load_dcp(t.at("dcp")), state)
    rows = {e["fqn"]: {c["file"] for c in e["chunks"]} for e in t.json("inspect", t.at("dcp"), "--json")["entries"]}
    assert rows["layers.0.mlp.experts.0.weight"] == {"__3_0.distcp"}, rows
    assert rows["layers.4.w.weight"] == {"__2_0.distcp", "__3_0.distcp"} and rows["layers.1.w.weight"] == {"__0_0.distcp", "__1_0.distcp"}, rows
    assert rows["norm.weight"] == {"__2_0.distcp", "__3_0.distcp"} and rows["layers.1.mlp.experts.1.weight"] <= {"__0_0.distcp", "__2_0.distcp"}, rows
    t.run("reshard", path, t.at("st"), "--to", "safetensors", "--target", target)
    assert t.json("diff", t.at("st"), path, "--values", "--json")["same"]
    with open(t.at("plan.json"), "wb") as f:
        f.write(t.run("plan", path, "--to", "dcp", "--target", target, "--json").stdout)
    t.run("exec", t.at("plan.json"), t.at("again"))
    for name in os.listdir(t.at("dcp")):
        assert open(t.at("dcp", name), "rb").read() == open(t.at("again", name), "rb").read(), name


def test_a_plan_counts_what_ranks_hold(t):
    state, path = source(t)
    doc = t.json("plan", path, "--items", "--target", write(t, TARGET))
    for rank, load in enumerate(doc["ranks"]):
        assert load["held"] == sum(x.numel() * 4 for x in expected(state, rank).values()), (rank, load)
        names = {i["fqn"] for i in doc["items"] if i["dest_rank"] == rank}
        assert names == {k for k, v in expected(state, rank).items() if v.numel()}, (rank, names)
    assert sum(r["read"] for r in doc["ranks"]) == sum(x.numel() * 4 for x in state.values()) == doc["totals"]["bytes"]
    assert all(r["read"] + r["received"] == r["held"] for r in doc["ranks"])


def test_rules_that_cannot_be_are_refused(t):
    _, path = source(t)

    def refused(says, **rule):
        target = {**TARGET, "rules": [{"match": "**", **rule}]}
        for command in (("plan", path), ("reshard", path, t.at("no"))):
            message = t.run(*command, "--target", write(t, target, "bad.json"), status=2).stderr.decode()
            assert says in message and not os.path.exists(t.at("no")), message

    refused("names rank 4", ranks=[4])
    refused("twice", ranks=[1, 1])
    refused("is empty", ranks=[])
    refused("one of them", ranks=[1], stage=STAGE)
    refused("leaves some of its elements without a rank", ranks=[0, 2], placements=["replicate", "shard(0)"])
    refused("leaves some of its elements without a rank", stage=STAGE, placements=["shard(0)", "replicate"])
    refused("placements")
    refused("'dp'", stage={**STAGE, "dim": "dp"})
    refused("{n}", stage={"dim": "pp", "layers": {"capture": "layers.", "ranges": [[0, 2], [2, 5]]}})
    refused("3 ranges", stage={"dim": "pp", "layers": {"capture": "layers.{n}.", "ranges": [[0, 2], [2, 4], [4, 5]]}})
    refused("layers.4.", stage={"dim": "pp", "layers": {"capture": "layers.{n}.", "ranges": [[0, 2], [2, 4]]}})
    refused("ends before", stage={"dim": "pp", "layers": {"capture": "layers.{n}.", "ranges": [[2, 0], [2, 4]]}})
    refused("two numbers", stage={"dim": "pp", "layers": {"capture": "layers.{n}.", "ranges": [[0], [2, 4]]}})
    refused("capture", stage={"dim": "pp", "layers": {"ranges": [[0, 2], [2, 4]]}})
