"""Directories with one torch.save file per rank: what is a replica, and what each rank holds for itself."""
import json
import os

SHARDED = (2, 4)  # of the DTensors below, on two ranks


def values(*shape, start=0.0, dtype=None):
    import torch
    count = 1
    for n in shape:
        count *= n
    return (torch.arange(count, dtype=torch.float64) + start).reshape(shape).to(dtype or torch.float32)


def save(t, case, ranks, names="rank{}.pt", **how):
    import torch
    os.makedirs(t.at(case))
    for rank, state in enumerate(ranks):
        torch.save(state, t.at(case, names.format(rank)), **how)
    return t.at(case)


def sharded(plain):
    """The state of each of two ranks: a real DTensor, and what `plain` gives for the rank."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    for rank in range(2):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        mesh = init_device_mesh("cpu", (2,))
        yield {"cut": DTensor.from_local(values(1, 4, start=10.0 * rank), mesh, [Shard(0)]), **plain(rank)}
        dist.destroy_process_group()


def save_sharded(t, case, plain):
    import torch
    os.makedirs(t.at(case))
    for rank, state in enumerate(sharded(plain)):
        torch.save(state, t.at(case, f"rank{rank}.pt"))
    return t.at(case)


def rows(t, path):
    return {e["fqn"]: e for e in t.json("inspect", path, "--json")["entries"]}


def refusals(t, path):
    """The messages of every command that would need one tensor per name."""
    commands = (["convert", path, t.at("out.safetensors"), "--objects", "drop"], ["convert", path, t.at("out"), "--to", "dcp"],
                ["reshard", path, t.at("out"), "--mesh", "dp=2", "--placements", "shard(0)"],
                ["plan", path, "--mesh", "dp=2", "--placements", "shard(0)"], ["diff", path, path], ["diff", path, path, "--values"],
                ["manifest", path], ["layout", path], ["get", path, "w"])
    for command in commands:
        yield command, t.run(*command, status=2).stderr.decode()
        assert not os.path.exists(t.at("out")) and not os.path.exists(t.at("out.safetensors")), command


def check_differs(t, path, shapes, form="shards"):
    entry = rows(t, path)["w"]
    assert entry["per_rank"] is True and entry["kind"] == "tensor" and entry["shapes"] == shapes, entry
    assert "hash" not in {e["fqn"]: e for e in t.json("inspect", path, "--json", "--hash", "sha256")["entries"]}["w"]
    assert t.json("inspect", path, "--json")["format"] == form
    for deep in ((), ("--deep",)):
        found = t.json("validate", path, "--json", *deep, status=0 if form == "shards" else 1)["findings"]
        level = [f["level"] for f in found if f["rule"] == "torch/rank-differs"]
        assert level == ["note" if form == "shards" else "error"], found
    for command, message in refusals(t, path):
        assert "'w'" in message and "--shards" in message, f"{command}: {message}"


def check_replicas(t, path, tensor):
    import torch
    assert not rows(t, path)["w"].get("per_rank")
    assert t.json("validate", "--deep", path, "--json")["findings"] == []
    t.run("convert", path, path + ".out.pt", "--to", "torch", "--include", "w")
    assert torch.equal(torch.load(path + ".out.pt", weights_only=True)["w"], tensor)


def test_plain_tensors_that_differ_are_no_replicas(t):
    import torch
    base = values(3, 4)
    nan = [torch.tensor([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7fc00001, 0x7fc00002)]
    cases = {
        "values": (base, base + 1), "last": (base, torch.cat([base[:2], base[2:] + 1])), "shapes": (base, values(2, 4)), "dims": (base, values(12)),
        "dtypes": (base, base.to(torch.bfloat16)), "nan": tuple(nan), "zero": (torch.zeros(2), -torch.zeros(2)),
        "rows": (values(6, 4)[:3], values(6, 4)[3:]), "transposed": (base, (base + 1).t().contiguous().t()),
        "complex": (base.to(torch.complex64) * 1j, base.to(torch.complex64)),
    }
    for case, (a, b) in cases.items():
        for how in ({}, {"_use_new_zipfile_serialization": False}):
            path = save(t, case + str(len(how)), [{"w": a, "same": values(2)}, {"w": b, "same": values(2)}], **how)
            check_differs(t, path, [list(a.shape), list(b.shape)])
            assert "per_rank" not in rows(t, path)["same"]


def test_equal_tensors_are_replicas_however_they_are_stored(t):
    import torch
    base = values(3, 4)
    cases = {
        "same": (base, base.clone()), "transposed": (base, base.t().contiguous().t()), "view": (base, torch.cat([values(1, 4, start=7), base, base])[1:4]),
        "columns": (base, torch.cat([base, base + 5], 1)[:, :4]), "expanded": (values(1, 4).expand(3, 4), values(1, 4).expand(3, 4).contiguous()),
        "both": (torch.cat([base, base * 2])[:3], torch.cat([base, base * 3])[:3]), "empty": (torch.zeros(0, 4), torch.zeros(0, 4)),
        "scalar": (torch.tensor(3.5), torch.tensor(3.5)), "big": (values(700, 800), values(700, 800).t().contiguous().t()),
    }
    for case, (a, b) in cases.items():
        check_replicas(t, save(t, case, [{"w": a}, {"w": b}]), a)
    path = t.at("mixed")
    save(t, "mixed", [{"w": base}, {"w": base}])
    torch.save({"w": base}, os.path.join(path, "rank1.pt"), _use_new_zipfile_serialization=False)
    check_replicas(t, path, base)


def test_without_checksums_the_bytes_decide(t):
    import torch
    torch.serialization.set_crc32_options(False)
    try:
        equal = save(t, "equal", [{"w": values(5)}] * 3)
        differ = save(t, "differ", [{"w": values(5)}, {"w": values(5)}, {"w": values(5, start=1)}])
    finally:
        torch.serialization.set_crc32_options(True)
    assert not rows(t, equal)["w"].get("per_rank")
    check_differs(t, differ, [[5]] * 3)


def test_a_tensor_that_some_ranks_lack_is_no_replica(t):
    for case, ranks in {"first": [{"a": values(2)}, {"a": values(2), "w": values(3)}], "second": [{"a": values(2), "w": values(3)}, {"a": values(2)}],
                        "object": [{"w": values(3)}, {"w": 3}]}.items():
        check_differs(t, save(t, case, ranks), [[3] if hasattr(r.get("w"), "shape") else None for r in ranks])


def test_quantized_tensors_are_compared_too(t):
    import torch
    quantized = [torch.quantize_per_tensor(values(4, start=s), 0.5, 1, torch.qint8) for s in (0, 1)]
    assert "per_rank" not in rows(t, save(t, "equal", [{"w": quantized[0]}, {"w": quantized[0]}]))["w"]
    path = save(t, "differ", [{"w": quantized[0]}, {"w": quantized[1]}])
    assert rows(t, path)["w"]["per_rank"] and rows(t, path)["w"]["kind"] == "opaque"
    for _, message in refusals(t, path):
        assert "'w'" in message, message


def test_what_is_left_out_is_no_obstacle(t):
    import torch
    path = save(t, "rng", [{"w": values(3), "rng": values(4, start=rank)} for rank in range(2)])
    assert "'rng'" in t.run("convert", path, t.at("out.pt"), status=2).stderr.decode()
    t.run("convert", path, t.at("out.pt"), "--exclude", "rng")
    assert torch.load(t.at("out.pt"), weights_only=True).keys() == {"w"}
    t.run("get", path, "w[1]", "--print")
    t.run("get", path, "rng[1]", status=2)
    t.run("reshard", path, t.at("cut"), "--mesh", "dp=2", "--placements", "shard(0)", "--include", "w", "--to", "dcp")
    plan = t.run("plan", path, "--mesh", "dp=2", "--placements", "shard(0)", "--include", "w", "--json").stdout
    with open(t.at("plan.json"), "wb") as f:
        f.write(plan)
    t.run("exec", t.at("plan.json"), t.at("executed"))


def test_next_to_sharded_tensors_a_difference_is_an_error(t):
    check_differs(t, save_sharded(t, "values", lambda rank: {"w": values(3, start=rank)}), [[3], [3]], "torch-ranks")
    check_differs(t, save_sharded(t, "shapes", lambda rank: {"w": values(3 + rank)}), [[3], [4]], "torch-ranks")
    check_differs(t, save_sharded(t, "absent", lambda rank: {"w": values(3)} if rank else {}), [None, [3]], "torch-ranks")
    path = save_sharded(t, "equal", lambda rank: {"w": values(3)})
    assert t.json("inspect", path, "--json")["format"] == "torch-ranks" and t.json("validate", "--deep", path, "--json")["findings"] == []
    t.run("convert", path, t.at("out.safetensors"))


def test_plain_tensors_of_a_pipeline_stage_are_whole(t):
    """Each stage's ranks hold their own layers as DTensors, and plain tensors that belong to these."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    os.makedirs(t.at("stages"))
    for rank in range(4):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
        stage = rank // 2
        meshes = [DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [2, 3])]
        part = DTensor.from_local(values(1, 4, start=100 * stage + 4 * (rank % 2)), meshes[stage], [Shard(0)])
        torch.save({f"layers.{stage}": part, f"steps.{stage}": torch.tensor(5.0 + stage)}, t.at("stages", f"rank{rank}.pt"))
        dist.destroy_process_group()
    t.run("convert", t.at("stages"), t.at("out.pt"))
    got = torch.load(t.at("out.pt"), weights_only=True)
    assert got["steps.1"] == 6 and torch.equal(got["layers.1"], values(2, 4, start=100)), got


def test_objects_that_differ_are_a_note(t):
    path = save(t, "objects", [{"w": values(3), "epoch": rank, "pair": (values(1, start=rank), 1)} for rank in range(2)])
    found = t.json("validate", path, "--json")["findings"]
    assert sorted((f["rule"], f["level"], f["fqn"]) for f in found) == [("torch/rank-object", "note", "epoch"), ("torch/rank-object", "note", "pair")], found


def test_values_of_every_rank_are_looked_at(t):
    import torch
    bad = values(4)
    bad[2] = float("nan")
    path = save(t, "nan", [{"w": values(4)}, {"w": bad}, {"w": values(4, start=2)}], names="consolidated.{:02}.pth")
    found = t.json("validate", "--deep", path, "--json")["findings"]
    assert [f["fqn"] for f in found if f["rule"] == "values/nan"] == ["w"], found
    with open(t.at("nan", "consolidated.01.pth"), "r+b") as f:
        data = f.read()
        f.seek(data.index(bad.numpy().tobytes()))
        f.write(b"\1")
    found = t.json("validate", "--deep", path, "--json", status=1)["findings"]
    assert [f["file"] for f in found if f["rule"] == "zip/crc"] == ["consolidated.01.pth"], found


def test_files_of_pytorchs_experimental_checkpointer(t):
    """torch.distributed.checkpoint._experimental writes checkpoint_{rank}.pt with each rank's own state; what the ranks hold alike is whole."""
    import torch
    from torch.distributed.checkpoint._experimental import RankInfo, make_sync_checkpointer
    given = [{"model": {"w": values(2, 3), "own": values(4, start=10 * rank, dtype=torch.bfloat16)}, "step": 7} for rank in range(2)]
    for rank, state in enumerate(given):
        make_sync_checkpointer(rank_info=RankInfo(global_world_size=2, global_rank=rank)).save(t.at("step"), state)
    assert sorted(os.listdir(t.at("step"))) == ["checkpoint_0.pt", "checkpoint_1.pt"], os.listdir(t.at("step"))
    found = t.json("validate", "--deep", t.at("step"), "--json")["findings"]
    assert [(f["rule"], f["level"]) for f in found] == [("torch/rank-differs", "note")], found
    assert "'model.own'" in t.run("convert", t.at("step"), t.at("out.pt"), status=2).stderr.decode()
    t.run("convert", t.at("step"), t.at("out.pt"), "--exclude", "model.own")
    got = torch.load(t.at("out.pt"), weights_only=True)
    assert torch.equal(got["model"]["w"], given[0]["model"]["w"]) and got["step"] == 7, got
    for rank, state in enumerate(given):
        t.run("convert", t.at("step", f"checkpoint_{rank}.pt"), t.at(f"{rank}.pt"))
        assert torch.equal(torch.load(t.at(f"{rank}.pt"), weights_only=True)["model"]["own"], state["model"]["own"]), rank
