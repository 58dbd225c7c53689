"""More sharded optimizer state, loaded by real PyTorch, for tests/statedict: python tests/golden/make_sharded_optimizer_forms.py

sharded_optimizer_forms/<name>/ and sharded_optimizer_forms.json (rows E2 and E4): as of make_sharded_optimizer.py, with states of other
shapes, types, nesting and keys, each a checkpoint of its own. Every element has a value of its own. A record has `error` where PyTorch
refuses to load.
"""

import json
import os
import re
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from make_optim_load import start
from make_sharded_optimizer import describe, KEY, sharded_model, sliced_state
from make_state_dict import encode, sharded, rows_of

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor, Replicate, Shard

DIRECTORY = os.path.join(HERE, "sharded_optimizer_forms")
count = 0


def fresh(*shape, dtype=torch.float32):
    """Numbers that no other tensor has."""
    global count
    numel = torch.Size(shape).numel()
    out = torch.arange(count, count + numel).reshape(shape)
    count += numel
    return out % 2 == 1 if dtype is torch.bool else (out % 120).to(dtype) if dtype.itemsize == 1 else out.to(dtype)


def by_ranks(world):
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    return {"0.weight": {"step": torch.tensor(5.0), "exp_avg": distribute_tensor(fresh(5, 6), mesh, [Shard(0)]), "exp_avg_sq": distribute_tensor(fresh(5, 6), mesh, [Shard(1)])},
            "0.bias": {"step": torch.tensor(6.0), "exp_avg": distribute_tensor(fresh(5), mesh, [Replicate()]), "exp_avg_sq": sharded(fresh(5), [[((a,), (b - a,))] if b > a else [] for a, b in rows_of(5, world)])}}


# name: ranks that save, whether slices load it, what they save
FORMS = {
    "dimensions": (1, False, lambda: {KEY: {"state": {"a": {"three": fresh(3, 2, 2), "thirteen": fresh(13, 2), "ones": fresh(1, 1, 1), "row": fresh(1, 4), "scalar": fresh()}}, "param_groups": []}}),
    "empty": (1, False, lambda: {KEY: {"state": {"a": {"rows": torch.zeros(0, 3), "columns": torch.zeros(3, 0)}, "b": {}}, "param_groups": [{"params": []}, {}]}}),
    "types": (1, True, lambda: {KEY: {"state": {"0.weight": {str(d)[6:]: fresh(5, 6, dtype=d) for d in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.float16, torch.float64)}}}}),
    "deep": (1, True, lambda: {KEY: {"state": {"0.weight": {"blocks": {"left": fresh(5, 6), "right": {"x": fresh(5, 6), "n": 3}}, "list": [fresh(5, 6), fresh(5, 6)]}}, "param_groups": [{"lr": 0.5}]}}),
    "numbers": (1, False, lambda: {KEY: {"state": {0: {"exp_avg": fresh(5, 6)}, 1: {"exp_avg": fresh(3)}}, "param_groups": [{"params": [0, 1], "lr": 0.25}]}}),
    "loose": (1, False, lambda: {KEY: {"loose": fresh(4, 2), "n": 3, "state": {"0.bias": {"exp_avg": fresh(5)}}}}),
    "loose in slices": (1, True, lambda: {KEY: {"loose": fresh(4, 2), "state": {"0.bias": {"exp_avg": fresh(5)}}}}),
    "one tensor": (1, False, lambda: {KEY: fresh(4, 2), "other": fresh(3)}),
    "other keys": (1, True, lambda: {KEY: {"state": {"0.bias": {"exp_avg": fresh(5)}}}, KEY + "2": {"state": {"0.bias": {"exp_avg": fresh(5)}}}, "optim": {"state": {"2.bias": {"exp_avg": fresh(3)}}}}),
    "dots": (1, True, lambda: {KEY: {"state": {"0.weight": {"a.b": fresh(5, 6), "a": fresh(5, 6)}, "0": {"weight.c": fresh(2, 2)}}}}),
    "groups": (1, True, lambda: {KEY: {"state": {"2.bias": {"exp_avg": fresh(3)}}, "param_groups": [{"lr": fresh(1), "per_row": fresh(5), "betas": (0.5, 0.75), "betas_list": [fresh(), fresh(2)], "params": ["2.bias"]},
                                                                                           {"nesterov": False, "name": "x", "none": None, "big": 2 ** 40, "params": []}]}}),
    "by ranks": (3, False, lambda: {KEY: {"state": by_ranks(3), "param_groups": [{"lr": 0.5, "params": ["0.weight", "0.bias"]}]}}),
}


def save(rank, world, port):
    global count
    start(rank, world, port)
    for i, (name, (ranks, _, make)) in enumerate(FORMS.items()):
        count = 1000 * i
        if ranks == world:
            dcp.save(make(), checkpoint_id=os.path.join(DIRECTORY, name.replace(" ", "_")))
    dist.destroy_process_group()


def load(rank, world, port, t, out):
    start(rank, world, port)
    records = {}
    for name, (_, slices, _) in FORMS.items():
        if t is not None and not slices:
            continue
        state = sharded_model().state_dict() if t is None else sliced_state(t)
        described = describe(state)
        try:
            got = {"got": encode(load_sharded_optimizer_state_dict(state, KEY, dcp.FileSystemReader(os.path.join(DIRECTORY, name.replace(" ", "_")))))}
        except Exception as e:
            got = {"error": f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:200]}
        records[name] = {"model": described, **got}
        dist.barrier()
    with open(os.path.join(out, f"{rank}.json"), "w") as f:
        json.dump(records, f)
    dist.barrier()
    dist.destroy_process_group()


def main():
    cases, port = [], 29700
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    for world in sorted({ranks for ranks, _, _ in FORMS.values()}):
        port += 1
        mp.spawn(save, (world, port), nprocs=world)
    for t, worlds in ((None, (1, 2, 3, 4)), (0, (1, 2)), (1, (2,))):
        for world in worlds:
            port += 1
            with tempfile.TemporaryDirectory() as out:
                mp.spawn(load, (world, port, t, out), nprocs=world)
                ranks = [json.load(open(os.path.join(out, f"{r}.json"))) for r in range(world)]
            for name in ranks[0]:
                cases.append({"saved": name.replace(" ", "_"), "world": world, "slice": t, "ranks": [r[name] for r in ranks]})
                print(name, world, t, [r[name].get("error") for r in ranks], file=sys.stderr)
    text = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    with open(os.path.join(HERE, "sharded_optimizer_forms.json"), "w") as f:
        f.write('{"torch":"%s","cases":[\n%s\n]}\n' % (torch.__version__, re.sub(r"(?<=\d)\.0(?=[,\]}])", "", text)))


if __name__ == "__main__":
    main()
