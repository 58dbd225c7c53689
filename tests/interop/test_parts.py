"""What was written in parts, resumed, cut flat or put in the place of another checkpoint, loaded by real PyTorch."""
import json
import subprocess

from harness import load_dcp, sample_names, sample_path, sha256


def source(name):
    return next((sample_path(n, w), w) for n, w in sample_names(name) if n == name)


def check(tensors, want, what):
    import torch
    got = {k: sha256(v) for k, v in tensors.items() if isinstance(v, torch.Tensor)}
    assert got == {k: w["sha256"] for k, w in want.items()}, f"{what}: {sorted(set(got) ^ set(want))[:4]}"


def test_parts_by_several_processes(t):
    path, want = source("dcp_tp_fsdp2")
    for strategy in (None, {"name": "fsdp1", "units": ["**.weight"]}):
        target = {"schema": "tessera.target/1", "mesh": {"shape": [3], "dim_names": ["dp"]}}
        target.update({"strategy": strategy} if strategy else {"default": ["shard(0)"]})
        with open(t.at("target.json"), "w") as f:
            json.dump(target, f)
        floats = {k: w for k, w in want["entries"].items() if w["dtype"].endswith("float32")}
        with open(t.at("plan.json"), "wb") as f:
            f.write(t.run("plan", path, "--target", t.at("target.json"), "--json", *(a for k in floats for a in ("--include", k))).stdout)
        out = t.at("flat" if strategy else "rows")
        parts = [subprocess.Popen([t.path, "exec", t.at("plan.json"), out, "--part", f"{i}/4", "-q"]) for i in (3, 1, 4, 2)]
        assert [p.wait(timeout=120) for p in parts] == [0] * 4
        t.run("exec", t.at("plan.json"), out, "--finish", "-q")
        check(load_dcp(out), floats, out)


def test_directories_that_took_the_place_of_others(t):
    path, want = source("dcp_fsdp2")
    again = ("--placements", "shard(0)", "--to", "torch", "-q")
    t.run("reshard", path, t.at("ranks"), "--mesh", "4", *again)
    t.run("reshard", path, t.at("ranks"), "--mesh", "1", "--overwrite", *again)
    import torch
    tensors = {k: v.to_local() if hasattr(v, "to_local") else v for k, v in load_ranks(t.at("ranks", "rank0.pt")).items()}
    check({k: v for k, v in tensors.items() if isinstance(v, torch.Tensor)}, want["entries"], "the only rank of the new mesh")


def load_ranks(path):
    """A file of DTensors, on a mesh of one rank."""
    import tempfile
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    with tempfile.NamedTemporaryFile() as store:
        dist.init_process_group("gloo", init_method=f"file://{store.name}x", rank=0, world_size=1)
        try:
            return flatten_state_dict(torch.load(path, weights_only=False))[0]
        finally:
            dist.destroy_process_group()
