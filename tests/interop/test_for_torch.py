"""--for-torch as the PyTorch that the tests run on (2.13) shows it; other versions are asked in test_versions.py."""
import filecmp
import os

from harness import SAMPLES, load_dcp, sample_names, sample_path, sha256


def metadata_of(path):
    from torch.distributed.checkpoint import FileSystemReader
    return FileSystemReader(path).read_metadata()


def written(t, source, version):
    dest = t.at(f"{os.path.basename(source)}.{version}")
    t.run("convert", source, dest, "--to", "dcp", *(("--for-torch", version) if version else ()))
    return dest


def test_versions_that_write_the_same_read_the_same(t):
    for name, want in sample_names("dcp_fsdp2", "torch_train_state"):
        source = sample_path(name, want)
        default, *others = [written(t, source, v) for v in (None, "2.4", "2.14.1", "2.13.0+cpu")]
        assert all(filecmp.cmp(os.path.join(default, ".metadata"), os.path.join(d, ".metadata"), False) for d in others), name
        got = load_dcp(others[-1])
        assert all(sha256(got[k]) == v["sha256"] for k, v in want["entries"].items()), name


def test_2_15_gets_strides_that_2_13_refuses(t):
    newest = written(t, os.path.join(SAMPLES, "dcp_small"), "2.15")
    try:
        metadata_of(newest)
    except ValueError as e:
        assert "too many values to unpack" in str(e), e
    else:
        raise AssertionError("PyTorch 2.13 reads six properties: the finding dcp/newer is wrong")
    findings = t.json("validate", newest, "--deep", "--json")["findings"]
    assert [(f["rule"], f["level"]) for f in findings] == [("dcp/newer", "note")], findings
    assert "only PyTorch 2.15 and newer" in findings[0]["message"], findings
    again = written(t, newest, "2.4")
    assert set(metadata_of(again).state_dict_metadata) == set(metadata_of(os.path.join(SAMPLES, "dcp_small")).state_dict_metadata)


def test_2_3_gets_whole_objects_and_no_storage_meta(t):
    import torch
    from torch.distributed.checkpoint._traverse import traverse_state_dict_v_2_3
    state = {"model": {"w": torch.arange(6.0), "note": {"a": 1, "b": [2, {"c": 3}]}}, "args": {"lr": 0.5, "more": {"x": [1, 2]}, "7": {"y": None}},
             "groups": [{"lr": 0.1, "betas": (0.9, 0.95)}, {"lr": 0.2, "betas": (0.8, 0.85)}], "mixed": [{"t": torch.ones(2), "n": {"k": 4}}, {"s": 5}], "a.b": {"c.d": 6}, "epoch": 3}
    torch.save(state, t.at("state.pt"))
    want = {}
    traverse_state_dict_v_2_3(state, lambda path, value: want.update({".".join(map(str, path)): (path, value)}))
    oldest = written(t, t.at("state.pt"), "2.3")
    metadata = metadata_of(oldest)
    with open(os.path.join(oldest, ".metadata"), "rb") as f:
        assert b"storage_meta" not in f.read()
    assert set(metadata.state_dict_metadata) == set(want), sorted(set(metadata.state_dict_metadata) ^ set(want))
    assert {k: p for k, (p, _) in want.items()} == metadata.planner_data, metadata.planner_data
    got = load_dcp_whole(oldest, want)
    for name, (_, value) in want.items():
        assert torch.equal(got[name], value) if isinstance(value, torch.Tensor) else got[name] == value, f"{name} is {got[name]!r}, not {value!r}"
    cut = t.at("cut")
    t.run("reshard", t.at("state.pt"), cut, "--to", "dcp", "--mesh", "dp=2", "--placements", "shard(0)", "--for-torch", "2.3")
    assert metadata_of(cut).planner_data == metadata.planner_data
    rows = {r["fqn"]: r.get("name", r["fqn"]) for r in t.json("convert", t.at("state.pt"), t.at("again"), "--to", "dcp", "--for-torch", "2.3", "--json")["entries"]}
    assert rows["args.lr"] == rows["args.more.x"] == "args" and rows["model.note.a"] == "model.note" and rows["model.w"] == "model.w", rows


def load_dcp_whole(path, names):
    """Every item under the name that it is stored by."""
    import torch
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
    flat = {k: torch.zeros_like(v) if isinstance(v, torch.Tensor) else None for k, (_, v) in names.items()}
    _load_state_dict(flat, storage_reader=FileSystemReader(path), planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False), no_dist=True)
    return flat


def test_what_a_version_does_not_have_is_refused_by_name(t):
    import torch
    torch.save({"scales": torch.zeros(4, dtype=torch.float8_e8m0fnu), "pairs": torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "w": torch.ones(2)}, t.at("new.pt"))
    source, mesh = os.path.join(SAMPLES, "dcp_small"), ("--mesh", "dp=2", "--placements", "shard(0)")
    rows = [(["convert", t.at("new.pt"), "--to", "dcp", "--for-torch", "2.6"], b"'scales' has a dtype that this version of PyTorch does not have, likewise 'pairs'"),
            (["convert", t.at("new.pt"), "--to", "torch", "--for-torch", "2.7"], b"'pairs' has a dtype that this version"),
            (["reshard", source, "--to", "torch", *mesh, "--for-torch", "2.12"], b"PyTorch 2.12 cannot load DTensors as Tessera writes them, which takes 2.13 or newer; write DCP instead"),
            (["convert", source, "--to", "safetensors", "--objects", "drop", "--for-torch", "2.13"], b"--for-torch cannot be used with --to safetensors"),
            (["convert", source, "--to", "dcp", "--for-torch", "2.16"], b"'2.16' is not a supported version of PyTorch; choose one from 2.3 to 2.15"),
            (["convert", source, "--to", "dcp", "--for-torch", "newest"], b"'newest' is not a supported version")]
    for (command, path, *options), says in rows:
        why = t.run(command, path, t.at("out"), *options, status=2).stderr
        assert says in why, why
        assert not os.path.exists(t.at("out"))
    t.run("convert", t.at("new.pt"), t.at("out"), "--to", "dcp", "--for-torch", "2.8")
    t.run("reshard", source, t.at("ranks"), "--to", "torch", *mesh, "--for-torch", "2.13")
