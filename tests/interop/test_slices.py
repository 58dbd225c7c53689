"""Tensors that are slices of much larger storages: torch.save writes the storages whole, which inspect and validate note; convert
writes only the tensors."""
import json
import os

import torch


def notes(t, state, **options):
    torch.save(state, t.at("m.pt"), **options)
    found = [f for f in t.json("validate", t.at("m.pt"), "--json")["findings"] if f["rule"] == "torch/slice-of-storage"]
    listed = [f for f in t.json("inspect", t.at("m.pt"), "--json")["findings"] if f["rule"] == "torch/slice-of-storage"]
    assert found == [{**f, "path": t.at("m.pt")} for f in listed] or [f["fqn"] for f in found] == [f["fqn"] for f in listed], (found, listed)
    assert all(f["level"] == "note" for f in found)
    return {f["fqn"]: f["message"] for f in found}


def test_slices_of_large_storages_are_noted_and_convert_shrinks_them(t):
    big, other, table = torch.randn(1000, 300), torch.randn(500, 100), torch.arange(50_000)
    state = {"row": big[7], "columns": other[:, 3:5], "ids": table[10:20], "whole": torch.randn(4000), "layer": {"bias": table[30_000:30_003]}}
    for options in ({}, {"_use_new_zipfile_serialization": False}):
        got = notes(t, state, **options)
        assert set(got) == {"row", "columns", "ids"}, got
        for name, used, stored in (("row", 1200, 1_200_000), ("columns", 4000, 200_000), ("ids", 104, 400_000)):
            assert f"{used} of {stored} bytes" in got[name], got
        for name, size in (("out.pt", 60_000), ("out.safetensors", 40_000)):
            t.run("convert", t.at("m.pt"), t.at(name), "--overwrite")
            assert os.path.getsize(t.at(name)) < size < os.path.getsize(t.at("m.pt")), name
        back = torch.load(t.at("out.pt"), weights_only=True)
        assert torch.equal(back["row"], state["row"]) and torch.equal(back["columns"], state["columns"]) and torch.equal(back["layer"]["bias"], state["layer"]["bias"])
        assert notes(t, back) == {}


def test_look_alikes_are_quiet(t):
    w, flat = torch.randn(64, 64), torch.randn(10_000)
    chunks = {f"p{i}": c for i, c in enumerate(flat.split(1000))}  # a flat buffer that its parameters fill
    assert notes(t, {"w": w, "tied": w, "t": w.t(), "head": w[:32], **chunks}) == {}
    assert notes(t, {"expanded": torch.ones(1).expand(5000), "half": torch.randn(4000)[:2000], "tiny": torch.arange(100)[:2], "empty": torch.zeros(5000)[:0]}) == {}


def test_slices_in_shards_and_files_of_ranks(t):
    """Each file is noted with its own tensor; converting shrinks them. Whole storages, and slices that use most of theirs, stay quiet."""
    whole = torch.arange(100_000, dtype=torch.float32)
    os.makedirs(t.at("shards"))
    os.makedirs(t.at("ranks"))
    names = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
    for i, name in enumerate(names):
        torch.save({f"w{i}": whole[i + 3:i + 12], f"most{i}": whole[:90_000].clone()[i:]}, t.at("shards", name))
        torch.save({"w": whole[20 * i:20 * i + 20], "rest": whole.clone()}, t.at("ranks", f"rank{i}.pt"), _use_new_zipfile_serialization=i == 0)
    with open(t.at("shards", "pytorch_model.bin.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": {f"{w}{i}": name for i, name in enumerate(names) for w in ("w", "most")}}, f)
    for directory, files, tensors in (("shards", names, ["w0", "w1"]), ("ranks", ["rank0.pt", "rank1.pt"], ["w", "w"])):
        found = [f for f in t.json("validate", t.at(directory), "--json")["findings"] if f["rule"] == "torch/slice-of-storage"]
        assert [(f["level"], f["file"], f["fqn"]) for f in found] == [("note", *pair) for pair in zip(files, tensors)], found
    t.run("convert", t.at("shards"), t.at("small.pt"), "--include", "w*")
    got = torch.load(t.at("small.pt"), weights_only=True)
    assert all(torch.equal(got[f"w{i}"], whole[i + 3:i + 12]) for i in (0, 1)) and os.path.getsize(t.at("small.pt")) < 4096
