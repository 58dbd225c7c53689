"""Digests of many tensors, which several threads read ahead, against hashlib over torch's tensors."""
import json
import os
import random

from harness import sha256


def state_dict():
    """Tensors of every size that is read in another way: none, one element, some, and one that all threads read together."""
    import torch
    rng, generator = random.Random(22), torch.Generator().manual_seed(22)
    tensors = {"none": torch.zeros(0, 3), "one": torch.tensor(7.5), "step": 12, "large": torch.randn(17 << 20, generator=generator)}
    for i in range(80):
        dtype = rng.choice([torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool, torch.uint8])
        x = torch.randn(rng.randrange(1, 700), rng.randrange(1, 700), generator=generator).mul(100).to(dtype)
        tensors[f"layers.{i}.weight"] = x.t() if i % 5 == 0 else x[::2] if i % 7 == 0 else x
        if i % 9 == 0:
            tensors[f"layers.{i}.note"] = f"object {i}"
    return tensors


def hashes(document):
    return {e["fqn"]: e["hash"]["digest"] for e in document["entries"] if e["kind"] == "tensor"}


def test_digests_of_many_tensors(t):
    import torch
    import torch.distributed.checkpoint as dcp
    tensors = state_dict()
    want = {k: sha256(v) for k, v in tensors.items() if isinstance(v, torch.Tensor)}
    torch.save(tensors, t.at("model.pt"))
    dcp.save({k: v.contiguous() if isinstance(v, torch.Tensor) else v for k, v in tensors.items()}, checkpoint_id=t.at("dcp"))
    t.run("reshard", t.at("dcp"), t.at("columns"), "--mesh", "3", "--placements", "shard(1)", "-q")
    for path in (t.at("model.pt"), t.at("dcp"), t.at("columns")):
        texts = [t.run("manifest", path, "--hash", "sha256", "--threads", n).stdout for n in ("1", "2")]
        assert texts[0] == texts[1], f"{path}: threads change the manifest"
        got = hashes(json.loads(texts[0]))
        assert got == want, f"{path}: {sorted(k for k in want if got.get(k) != want[k])[:5]}"
        each = json.loads(t.run("inspect", path, "--json", "--hash", "xxh3").stdout)
        all_of = json.loads(t.run("manifest", path, "--threads", "2").stdout)
        assert hashes(all_of) == {e["fqn"]: e["hash"]["digest"] for e in each["entries"] if e["kind"] == "tensor"}, path
        with open(t.at("m.json"), "wb") as f:
            f.write(texts[0])
        t.run("verify", path, t.at("m.json"), "--threads", "2")


def test_digests_name_the_first_tensor_that_cannot_be_read(t):
    """Whichever thread fails first."""
    import torch
    from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
    import torch.distributed.checkpoint as dcp
    tensors = {f"t{i:02}": torch.randn(60_000) + i for i in range(40)}
    dcp.save(tensors, storage_writer=FileSystemWriter(t.at("dcp"), single_file_per_rank=False))
    files = {index.fqn: info.relative_path for index, info in FileSystemReader(t.at("dcp")).read_metadata().storage_data.items()}
    for name in ("t31", "t07", "t23"):
        os.truncate(t.at("dcp", files[name]), 100_000)
    said = [t.run("manifest", t.at("dcp"), "--threads", n, status=2).stderr for n in ("1", "2")]
    assert said[0] == said[1] and b"'t07'" in said[0], said
