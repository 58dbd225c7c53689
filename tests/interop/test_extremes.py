"""The extremes of integers in `inspect --stats`, against torch's: exact in the document and in the table."""
import json
import random


def integers():
    """Tensors of all integer dtypes, whose extremes beyond 2^53 are odd: a double cannot hold them. One is read in many tiles."""
    import torch
    rng = random.Random(73)
    signed, unsigned = lambda: rng.randrange(-2**63, 2**63) | 1, lambda: rng.randrange(2**64) | 1
    long = torch.tensor([signed() >> 3 | 1 for _ in range(4096)], dtype=torch.int64).repeat(1200)
    long[4_000_001], long[17] = 2**62 + 3, -2**61 - 5
    tensors = {"ends": torch.tensor([[2**63 - 1, 5], [-2**63, 0]]), "long": long, "one": torch.tensor(2**53 + 1), "none": torch.zeros(0, 3, dtype=torch.int64),
               "negative": torch.tensor([-2**53 - 1, -2**60 - 7]), "some": torch.tensor([signed() for _ in range(99)]).reshape(9, 11).t(),
               "u64": torch.tensor([unsigned() for _ in range(7)], dtype=torch.uint64), "u64.large": torch.tensor([2**64 - 1, 2**63 + 1], dtype=torch.uint64)}
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32):
        info = torch.iinfo(dtype)
        tensors[str(dtype)[6:]] = torch.tensor([rng.randrange(info.min, info.max + 1) for _ in range(5)], dtype=dtype)
    return tensors


def extremes(tensors):
    lists = {k: v.flatten().tolist() for k, v in tensors.items()}
    return {k: (min(v), max(v)) if v else (0, 0) for k, v in lists.items()}


def test_extremes_of_integers_are_exact(t):
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file
    tensors = integers()
    want = extremes(tensors)
    torch.save(tensors, t.at("model.pt"))
    save_file({k: v.contiguous() for k, v in tensors.items()}, t.at("model.safetensors"))
    dcp.save({k: v.contiguous() for k, v in tensors.items()}, checkpoint_id=t.at("dcp"))
    for path in (t.at("model.pt"), t.at("model.safetensors"), t.at("dcp")):
        for n in ("1", "2"):
            document = json.loads(t.run("inspect", path, "--stats", "--json", "--threads", n).stdout)
            got = {e["fqn"]: (e["stats"]["min"], e["stats"]["max"]) for e in document["entries"]}
            assert got == want, {k: (got[k], want[k]) for k in want if got[k] != want[k]}
        head, *lines = t.run("inspect", path, "--stats").stdout.decode().splitlines()
        rows = {line.split()[-1]: line.split()[:2] for line in lines}
        assert {k: tuple(map(int, v)) for k, v in rows.items()} == want, rows
        assert {len(line) - len(line.split()[-1]) for line in lines} == {len(head) - len("TENSOR")}, "the columns are not aligned"
