"""Every sample, converted to every container: real PyTorch and safetensors must load what was written, bit for bit."""
import filecmp
import os
import sys
import zipfile

from harness import ROOT, load_dcp, load_safetensors, load_torch, sample_names, sample_path, sha256
from torch_ranks import run_ranks

sys.path.insert(0, os.path.join(ROOT, "samples"))  # classes that sample objects are of

# What a container cannot hold, by dtype; the samples' own tools list such tensors as ordinary entries.
NOT_IN_SAFETENSORS = {"complex32", "complex128", "qint8", "quint8", "qint32", "quint4x2", "quint2x4", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"}
NOT_IN_TORCH = {"float6_e2m3", "float6_e3m2"}


def short(dtype):
    return dtype.replace("torch.", "", 1)


def literal(name):
    """A GLOB that matches this name only."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def convertible(want, form):
    """The entries and the names that must stay behind."""
    never = NOT_IN_SAFETENSORS if form == "safetensors" else NOT_IN_TORCH
    entries = {k: w for k, w in want["entries"].items() if short(w["dtype"]) not in never}
    if form == "safetensors":
        entries = {k: w for k, w in entries.items() if k and "\0" not in k}
    behind = [k for k in want["entries"] if k not in entries] + list(want.get("opaque", {}))
    return entries, behind


def convert(t, source, dest, form, behind, *more):
    objects = ("--objects", "drop") if form == "safetensors" else ()
    t.run("convert", source, dest, "--to", form, *objects, *(a for k in behind for a in ("--exclude", literal(k))), *more)


def check_tensors(got, entries, what):
    import torch
    tensors = {k for k, v in got.items() if isinstance(v, torch.Tensor)}
    assert tensors == set(entries), f"{what}: missing {sorted(set(entries) - tensors)[:4]}, unexpected {sorted(tensors - set(entries))[:4]}"
    for k, w in entries.items():
        assert short(str(got[k].dtype)) == short(w["dtype"]), f"{what}: {k} is {got[k].dtype}, was {w['dtype']}"
        if "float4" not in w["dtype"]:  # torch counts pairs, safetensors elements
            assert list(got[k].shape) == w["shape"], f"{what}: {k} is {list(got[k].shape)}, was {w['shape']}"
        assert sha256(got[k]) == w["sha256"], f"{what}: {k} has other bytes"


def plain(value):
    """Whether torch.load(weights_only=True) takes it, going by the sample's own notation."""
    if isinstance(value, dict):
        return not any(k.startswith("$") and k not in ("$tuple", "$float") for k in value) and all(map(plain, value.values()))
    if isinstance(value, int):
        return value.bit_length() < 2000
    return not isinstance(value, list) or all(map(plain, value))


def same(want, got):
    if isinstance(want, dict):
        return any(k.startswith("$") for k in want) or isinstance(got, dict) and set(want) == set(got) and all(same(want[k], got[k]) for k in want)
    if isinstance(want, list):
        return isinstance(got, list) and len(want) == len(got) and all(map(same, want, got))
    return type(want) is type(got) and want == got


def parts(name, value):
    """What flattening makes of an object that PyTorch 2.3 saved whole: newer versions split lists of dicts."""
    if not isinstance(value, list) or not any(isinstance(v, dict) and not any(k.startswith("$") for k in v) for v in value):
        return {name: value}
    return {f"{name}.{i}.{k}": v for i, row in enumerate(value) for k, v in row.items()}


def check_objects(got, want, what):
    objects = [pair for k, v in want.get("objects", {}).items() for pair in parts(k, v).items()]
    for k, v in objects:
        assert k in got, f"{what}: object {k} is missing"
        assert same(v, got[k]), f"{what}: object {k} is {got[k]!r}, was {v!r}"


def samples():
    """Names and expectations; where PyTorch misreads its own file, what the writing machine had in memory counts."""
    return [(n, {**w, "entries": w.get("written", w["entries"])}) for n, w in sample_names() if "entries" in w and w["format"] != "unsupported"]


def test_every_sample_to_safetensors(t):
    for name, want in samples():
        if "float6" in name:
            continue  # torch has no such type to load it as: see test_float6_survives
        entries, behind = convertible(want, "safetensors")
        for more in ((), ("--max-shard-size", "300")):
            dest = t.at(name + ("_shards" if more else ".safetensors"))
            convert(t, sample_path(name, want), dest, "safetensors", behind, *more)
            check_tensors(load_safetensors(dest), entries, dest)


def test_every_sample_to_torch(t):
    import torch
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    for name, want in samples():
        entries, behind = convertible(want, "torch")
        behind += [k for k, v in want.get("objects", {}).items() if not plain(v)]
        dest = t.at(name + ".pt")
        convert(t, sample_path(name, want), dest, "torch", behind)
        with zipfile.ZipFile(dest) as z:
            assert z.testzip() is None, f"{dest}: a CRC is wrong"
        if list(entries) == [""]:
            assert sha256(torch.load(dest, weights_only=True)) == entries[""]["sha256"]
            continue
        got = load_torch(dest)
        check_tensors(got, entries, dest)
        check_objects(got, {"objects": {k: v for k, v in want.get("objects", {}).items() if k not in behind}}, dest)
        mapped, _ = flatten_state_dict(torch.load(dest, weights_only=True, mmap=True))
        check_tensors(mapped, entries, f"{dest} by mmap")


def test_every_sample_to_dcp(t):
    for name, want in samples():
        entries, behind = convertible(want, "dcp")
        dest = t.at(name)
        convert(t, sample_path(name, want), dest, "dcp", behind)
        got = load_dcp(dest)
        check_tensors(got, entries, dest)
        check_objects(got, want, dest)
        t.run("validate", dest, "--deep")


WHOLE_OBJECTS = {"dcp_v2_3_fsdp1_sharded": "optim.param_groups", "megatron_dist": "rng_state"}


def test_what_we_wrote_reads_back_the_same(t):
    for name, want in samples():
        _, behind = convertible(want, "dcp")
        source, dest, again = sample_path(name, want), t.at(name), t.at(name + ".pt")
        convert(t, source, dest, "dcp", behind)
        convert(t, dest, again, "torch", ())
        if name in WHOLE_OBJECTS:
            differ_in_the_names_of_objects(t, dest, again, WHOLE_OBJECTS[name])
            continue
        t.run("diff", dest, again, "--values")
        if not behind:
            keys = ["int_keys.0", "int_keys.7.8"] if name == "torch_objects" else []  # a DCP has only texts as keys
            doc = t.json("diff", source, again, "--values", "--json", status=1 if keys else 0)
            assert not doc["added"] and not doc["removed"], (name, doc["added"], doc["removed"])
            assert [(c["fqn"], c["what"]) for c in doc["changed"]] == [(k, ["key"]) for k in keys], (name, doc["changed"])


def differ_in_the_names_of_objects(t, whole, split, name):
    """A DCP of PyTorch 2.3 or of Megatron-Core holds one object where the same value in a torch.save file has a name for each of its
    parts."""
    doc = t.json("diff", whole, split, "--values", "--json", status=1)
    assert doc["removed"] == [name] and not doc["changed"] and not doc["renamed"], doc
    assert doc["added"] and all(n.startswith(name + ".") for n in doc["added"]), doc["added"]


def test_the_output_does_not_depend_on_threads(t):
    for name, want in samples():
        for form in ("safetensors", "torch", "dcp"):
            _, behind = convertible(want, form)
            one, two = t.at(f"{name}.{form}.1"), t.at(f"{name}.{form}.2")
            convert(t, sample_path(name, want), one, form, behind, "--threads", "1")
            convert(t, sample_path(name, want), two, form, behind, "--threads", "2", "--max-mem", "256KiB")
            files = [""] if os.path.isfile(one) else sorted(os.listdir(one))
            assert files and (files == [""] or files == sorted(os.listdir(two))), f"{one} and {two} have other files"
            for file in files:
                assert filecmp.cmp(one + "/" * bool(file) + file, two + "/" * bool(file) + file, shallow=False), f"'{file}' of {one} and {two} differ"


def test_dcp_loads_with_the_ordinary_and_the_flattened_planners(t):
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import DefaultLoadPlanner
    sd = {"model": {"w": torch.arange(12.).reshape(3, 4), "b": torch.arange(3, dtype=torch.int16)},
          "optim": {"state": {0: {"m": torch.ones(3)}}, "groups": [{"lr": 0.1, "params": [0]}]}, "step": 7, "t": (1, 2)}
    torch.save(sd, t.at("a.pt"))
    t.run("convert", t.at("a.pt"), t.at("nested"), "--to", "dcp")

    def empty():
        return {"model": {"w": torch.zeros(3, 4), "b": torch.zeros(3, dtype=torch.int16)},
                "optim": {"state": {0: {"m": torch.zeros(3)}}, "groups": [{"lr": 0.0, "params": [9]}]}, "step": 0, "t": (0, 0)}

    got = empty()
    dcp.load(got, checkpoint_id=t.at("nested"), no_dist=True)
    assert torch.equal(got["model"]["w"], sd["model"]["w"]) and torch.equal(got["optim"]["state"][0]["m"], torch.ones(3))
    assert got["step"] == 7 and got["optim"]["groups"] == sd["optim"]["groups"] and got["t"] == (1, 2)
    flat = {"model.w": torch.zeros(3, 4)}
    dcp.load(flat, checkpoint_id=t.at("nested"), no_dist=True, planner=DefaultLoadPlanner(flatten_state_dict=False))
    assert torch.equal(flat["model.w"], sd["model"]["w"])


def test_structure_of_torch_files_survives(t):
    """Int keys, lists, shared storage, parameters and views as PyTorch wrote them."""
    import torch
    w = torch.arange(20.).reshape(4, 5)
    sd = {"a": w, "tied": w, "view": w[1:3, ::2], "t": w.t(), 3: {7: [w + 1, {"x": None}]}, "p": torch.nn.Parameter(torch.ones(2), requires_grad=True),
          "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False), "set": {1, 2}, "size": torch.Size([2, 3]), "dt": torch.bfloat16, "c": 1 + 2j,
          "big": 2**200, "neg": -2**63, "bytes": b"\x00\xffab", "nan": float("nan"), "dots.in.key": w * 2, "unicode é": "ключ", "empty": {}, "conj": torch.ones(2, dtype=torch.complex64).conj(), "alone": torch.ones(100)[3:5]}
    torch.save(sd, t.at("a.pt"))
    t.run("convert", t.at("a.pt"), t.at("b.pt"))
    got = torch.load(t.at("b.pt"), weights_only=True)
    assert list(got) == list(sd) and got["empty"] == {}
    assert torch.equal(got[3][7][0], w + 1) and got[3][7][1] == {"x": None}
    storages = {k: got[k].untyped_storage().data_ptr() for k in ("a", "tied", "view", "t")}
    assert len(set(storages.values())) == 1 and got["view"].stride() == (5, 2) and torch.equal(got["view"], sd["view"]) and torch.equal(got["t"], w.t())
    assert isinstance(got["p"], torch.nn.Parameter) and got["p"].requires_grad and not got["frozen"].requires_grad and isinstance(got["frozen"], torch.nn.Parameter)
    for k in ("set", "size", "dt", "c", "big", "neg", "bytes", "unicode é"):
        assert got[k] == sd[k] and type(got[k]) is type(sd[k]), k
    assert got["nan"] != got["nan"] and torch.equal(got["dots.in.key"], w * 2) and torch.equal(got["conj"].resolve_conj(), sd["conj"].resolve_conj())
    assert got["alone"].untyped_storage().nbytes() == 8  # not the 100 elements it was cut from


def test_storages_that_are_values_load_again(t):
    """torch.load makes typed ones of all."""
    import torch
    floats, shared = torch.arange(3.), torch.arange(5, dtype=torch.uint8)
    sd = {"typed": floats.storage(), "untyped": (torch.ones(4, dtype=torch.int16).untyped_storage(), 1), "again": [shared.untyped_storage()], "shared": shared, "w": torch.ones(2)}
    torch.save(sd, t.at("a.pt"))
    t.run("convert", t.at("a.pt"), t.at("b.pt"))
    t.run("convert", t.at("a.pt"), t.at("c"), "--to", "dcp")
    want, got = (torch.load(t.at(name), weights_only=False) for name in ("a.pt", "b.pt"))
    flat = load_dcp(t.at("c"))
    for one, ours, stored in ((want["typed"], got["typed"], flat["typed"]), (want["untyped"][0], got["untyped"][0], flat["untyped"][0]), (want["again"][0], got["again"][0], flat["again"][0])):
        for kept in (ours, stored):
            assert type(kept) is type(one) and kept.dtype == one.dtype and kept.tolist() == one.tolist(), (one, kept)
    assert torch.equal(got["shared"], shared)


def same_tree(want, got, at=""):
    """Equal in every type, order and attribute."""
    import torch
    assert type(want) is type(got), f"{at}: {type(got)}, was {type(want)}"
    if isinstance(want, dict):
        assert list(want) == list(got), f"{at}: {list(got)}, was {list(want)}"
        assert getattr(want, "__dict__", None) == getattr(got, "__dict__", None), f"{at}: other attributes"
        for k in want:
            same_tree(want[k], got[k], f"{at}.{k}")
    elif isinstance(want, (list, tuple)):
        assert len(want) == len(got), f"{at}: {len(got)} items, was {len(want)}"
        for i, (a, b) in enumerate(zip(want, got)):
            same_tree(a, b, f"{at}[{i}]")
    else:
        assert torch.equal(want, got) if isinstance(want, torch.Tensor) else want == got, at


def test_state_dicts_keep_their_metadata_and_empty_parts(t):
    import collections
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    sd = model.state_dict()
    assert sd._metadata["1"] == {"version": 2}
    run = {"model": sd, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1).state_dict(), "empty": {}, "ordered": collections.OrderedDict(),
           "list": [{}, {"a": torch.ones(1)}, {}], "only": [{}, {}], "step": 3, "deep": {"q": {"r": {}}}, "tuple": (sd, {}), "last": {}}
    for name, tree in (("sd", sd), ("run", run), ("root", [sd, {}]), ("pair", (sd, {})), ("nothing", {})):
        for legacy in (False, True):
            source, dest = t.at(f"{name}{legacy}.pt"), t.at(f"{name}{legacy}.out.pt")
            torch.save(tree, source, _use_new_zipfile_serialization=not legacy)
            t.run("convert", source, dest)
            same_tree(tree, torch.load(dest, weights_only=True), name)
    t.run("convert", t.at("runFalse.pt"), t.at("some.pt"), "--include", "model.1.**", "--include", "list.**")
    got = torch.load(t.at("some.pt"), weights_only=True)
    same_tree(run["list"], got.pop("list"))
    assert list(got) == ["model"] and list(got["model"]) == [k for k in sd if k.startswith("1.")] and got["model"]._metadata == sd._metadata
    t.run("convert", t.at("runFalse.pt"), t.at("flat.pt"), "--include", "model.**", "--rename", "model.=")
    assert list(torch.load(t.at("flat.pt"), weights_only=True)) == list(sd)
    t.run("reshard", t.at("runFalse.pt"), t.at("ranks"), "--mesh", "dp=2", "--placements", "shard(0)", "--to", "torch")
    t.run("convert", t.at("ranks"), t.at("again.pt"))
    same_tree(run, torch.load(t.at("again.pt"), weights_only=True))


class Made:
    """As the members of a user's enum are stored."""

    def __reduce__(self):
        return Made, ()


def test_refused_objects_are_named(t):
    import torch

    sd = {"model": {"w": torch.arange(3)}, "optimizer": {"param_groups": [{"lr": 0.1, "norm": Made()}]}, "pair": (1, Made())}
    torch.save(sd, t.at("a.pt"))
    for to, drop in (("torch", ()), ("dcp", ()), ("torch", ("--exclude", "optimizer.**"))):
        text = t.run("convert", t.at("a.pt"), t.at("out"), "--to", to, *drop, status=2).stderr.decode()
        where = "pair" if drop else "optimizer.param_groups.0.norm" if to == "torch" else "optimizer.param_groups"
        assert f"a call of {__name__}.Made cannot be written again (pass --objects drop), in '{where}" in text and not os.path.exists(t.at("out")), text
    t.run("convert", t.at("a.pt"), t.at("out"), "--to", "torch", "--objects", "drop")
    assert torch.equal(torch.load(t.at("out"), weights_only=True)["model"]["w"], sd["model"]["w"])


def test_packed_weights_of_a_pickled_module_are_not_passed_over(t):
    """They are attributes of a quantized module, not buffers, but its state_dict has them. The plain layer next to it shows that
    other attributes are not listed."""
    import torch

    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.LSTM(6, 5), torch.nn.LayerNorm(5))
    model.extra = torch.ones(3)  # not in the state_dict either
    quantized = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear, torch.nn.LSTM}, dtype=torch.qint8)
    torch.save(quantized, t.at("module.pt"))
    packed = {k for k, v in quantized.state_dict().items() if "ScriptObject" in type(v).__name__ or "_packed_params._packed_params" in k}
    entries = {e["fqn"]: e for e in t.json("inspect", t.at("module.pt"), "--json")["entries"]}
    assert packed and packed | {"2.weight", "2.bias"} == set(entries), (packed, set(entries))
    assert {entries[name]["type"] for name in packed} == {"torch.ScriptObject"}
    text = t.run("convert", t.at("module.pt"), t.at("out.safetensors"), status=2).stderr.decode()
    assert all(f"'{name}'" in text for name in packed) and not os.path.exists(t.at("out.safetensors")), text


def test_a_list_at_the_root_becomes_a_dcp_that_pytorch_loads(t):
    import torch
    torch.save([torch.arange(3), [1, {"a": torch.ones(2)}]], t.at("list.pt"))
    t.run("convert", t.at("list.pt"), t.at("dcp"), "--to", "dcp")
    got = load_dcp(t.at("dcp"))
    assert set(got) == {"0", "1.0", "1.1.a"} and got["0"].tolist() == [0, 1, 2] and got["1.0"] == 1 and got["1.1.a"].tolist() == [1, 1]


def test_casts_are_torchs(t):
    import torch
    torch.manual_seed(0)
    x = torch.cat([torch.randn(5000), torch.randn(200) * 1e5, torch.randn(200) * 1e-6, torch.tensor([0.0, -0.0, 448, 460, 480, 1e30, -1e30, 65504, 65519, 65520, 3e-8, 6e-8, float("inf"), -float("inf"), float("nan")])])
    torch.save({"x": x, "i": torch.arange(3)}, t.at("a.pt"))
    for dtype in ("bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
        t.run("convert", t.at("a.pt"), t.at(dtype + ".pt"), "--dtype", dtype)
        got, want = torch.load(t.at(dtype + ".pt"), weights_only=True), x.to(getattr(torch, dtype))
        assert got["x"].dtype == want.dtype and got["i"].dtype == torch.int64
        both_nan = want.float().isnan() & got["x"].float().isnan()
        raw = torch.uint8 if want.itemsize == 1 else torch.int16 if want.itemsize == 2 else torch.int64
        assert bool(((got["x"].view(raw) == want.view(raw)) | both_nan).all()), dtype


def test_float6_survives(t):
    for name, want in sample_names("safetensors_float6"):
        t.run("convert", sample_path(name, want), t.at("out.safetensors"))
        t.run("diff", sample_path(name, want), t.at("out.safetensors"), "--values")


def test_large_members_need_zip64(t):
    """A tensor beyond 4 GiB, all zeros on disk; loaded by mmap and looked at in places."""
    import torch
    with open(t.at("big.safetensors"), "wb") as f:
        n = (1 << 32) + 64
        header = b'{"big":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]},"tail":{"dtype":"U8","shape":[4],"data_offsets":[%d,%d]}}' % (n, n, n, n + 4)
        header += b" " * (-len(header) % 8)
        f.write(len(header).to_bytes(8, "little") + header)
        f.seek(n - 5, os.SEEK_CUR)
        f.write(b"\x01\x02\x03\x04\x05tail")
    if os.statvfs(t.at()).f_bavail * os.statvfs(t.at()).f_frsize < 10 << 30:
        from harness import Skip
        raise Skip("less than 10 GiB free")
    if not os.environ.get("TSR_TEST_FULL"):
        from harness import Skip
        raise Skip("only with --full")
    t.run("convert", t.at("big.safetensors"), t.at("big.pt"), timeout=600)
    got = torch.load(t.at("big.pt"), weights_only=True, mmap=True)
    assert got["big"].numel() == n and got["big"][-5:].tolist() == [1, 2, 3, 4, 5] and bytes(got["tail"].tolist()) == b"tail"
    with zipfile.ZipFile(t.at("big.pt")) as z:
        assert z.testzip() is None
    t.run("validate", t.at("big.pt"), "--deep", timeout=600)


# ---- resharding: one process a rank, gloo ----

def full_state():
    import torch
    torch.manual_seed(3)
    return {"model": {"w": torch.randn(7, 6), "b": torch.randn(5), "deep": torch.randn(4, 3, 2).to(torch.bfloat16), "scalar": torch.tensor(2.5), "ids": torch.arange(11)}, "step": 12}


TARGETS = [("dp=3", "shard(0)", (3,), ("dp",)), ("dp=2,tp=2", "shard(0),shard(1)", (2, 2), ("dp", "tp")), ("2,2", "replicate,shard(0)", (2, 2), None),
           ("a=1,b=3,c=2", "shard(0),replicate,shard(1)", (1, 3, 2), ("a", "b", "c"))]


def placements_of(text, rank):
    from torch.distributed.tensor import Replicate, Shard
    made = [Replicate() if p == "replicate" else Shard(int(p[6:-1])) for p in text.split(",")]
    return [Replicate() if p.is_shard() and p.dim >= rank else p for p in made]


def rank_loads_its_file(rank, world, directory, target):
    import warnings
    warnings.filterwarnings("ignore")
    import torch
    from torch.distributed.tensor import DTensor, distribute_tensor, init_device_mesh
    _, placements, shape, names = target
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    got = torch.load(os.path.join(directory, f"rank{rank}.pt"), weights_only=False)
    assert got["step"] == 12
    for k, full in full_state()["model"].items():
        want = distribute_tensor(full, mesh, placements_of(placements, full.dim()))
        x = got["model"][k]
        assert isinstance(x, DTensor) and x.shape == full.shape and x.dtype == full.dtype, k
        assert list(x.placements) == list(want.placements), (k, x.placements, want.placements)
        assert tuple(x.device_mesh.shape) == shape and x.device_mesh.mesh.tolist() == mesh.mesh.tolist() and x.device_mesh.mesh_dim_names == names, k
        assert list(x.device_mesh.get_coordinate()) == list(mesh.get_coordinate()), (k, x.device_mesh.get_coordinate())
        assert x.device_mesh._dim_group_names == mesh._dim_group_names, (k, x.device_mesh._dim_group_names, mesh._dim_group_names)
        assert torch.equal(x.to_local(), want.to_local()), k
        assert torch.equal(x.full_tensor(), full), k


def rank_loads_dcp(rank, world, directory, target):
    import warnings
    warnings.filterwarnings("ignore")
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import distribute_tensor, init_device_mesh
    _, placements, shape, names = target
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    model = {k: distribute_tensor(torch.zeros_like(v), mesh, placements_of(placements, v.dim())) for k, v in full_state()["model"].items()}
    state = {"model": model, "step": 0}
    dcp.load(state, checkpoint_id=directory)
    assert state["step"] == 12
    for k, full in full_state()["model"].items():
        assert torch.equal(state["model"][k].full_tensor(), full), k


def test_every_rank_of_a_reshard_loads_what_pytorch_would_give_it(t):
    import math
    import torch
    torch.save(full_state(), t.at("full.pt"))
    for i, target in enumerate(TARGETS):
        dest = t.at(f"ranks{i}")
        t.run("reshard", t.at("full.pt"), dest, "--mesh", target[0], "--placements", target[1], "--to", "torch")
        run_ranks(rank_loads_its_file, math.prod(target[2]), dest, target)
        t.run("diff", t.at("full.pt"), dest, "--values")


def test_a_resharded_dcp_directory_loads_on_its_mesh_and_on_others(t):
    import torch
    torch.save(full_state(), t.at("full.pt"))
    target = TARGETS[1]
    t.run("reshard", t.at("full.pt"), t.at("dcp"), "--mesh", target[0], "--placements", target[1], "--to", "dcp")
    run_ranks(rank_loads_dcp, 4, t.at("dcp"), target)
    run_ranks(rank_loads_dcp, 3, t.at("dcp"), TARGETS[0])


def test_resharded_safetensors_consolidate_with_pytorch(t):
    import torch
    from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
    # PyTorch's own tool fails on integers and makes 0 of 0-d tensors
    state = {k: v for k, v in full_state()["model"].items() if v.is_floating_point() and v.dim()}
    torch.save(state, t.at("full.pt"))
    t.run("reshard", t.at("full.pt"), t.at("shards"), "--mesh", "dp=3", "--placements", "shard(0)", "--to", "safetensors")
    t.run("diff", t.at("full.pt"), t.at("shards"), "--values")
    os.mkdir(t.at("one"))
    consolidate_safetensors_files(t.at("shards"), t.at("one"), fqn_to_index_mapping={k: 1 for k in state})
    got = load_safetensors(t.at("one"))
    assert set(got) == set(state) and all(torch.equal(got[k], state[k]) for k in state)


# ---- FSDP1's flat parameters in the files of ranks ----

def flat_model():
    import torch
    torch.manual_seed(5)
    block = lambda: torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 6, bias=False))
    return torch.nn.ModuleDict({"a": block(), "b": block(), "head": torch.nn.Linear(6, 3)})


def rank_loads_flat(rank, world, directory):
    import warnings
    warnings.filterwarnings("ignore")
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
    full = flat_model().state_dict()
    model = flat_model()
    for k in ("a", "b"):
        model[k] = FullyShardedDataParallel(model[k], device_id=torch.device("cpu"))
    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        want = model.state_dict()
        got = torch.load(os.path.join(directory, f"rank{rank}.pt"), weights_only=False)["model"]
        assert set(got) == set(want), set(got) ^ set(want)
        for k, v in want.items():
            if isinstance(v, torch.Tensor) and not hasattr(v, "local_shards"):
                assert torch.equal(got[k], v), k
                continue
            a, b = v.metadata(), got[k].metadata()
            assert v.size() == got[k].size() and a.shards_metadata == b.shards_metadata and a.tensor_properties == b.tensor_properties, (a, b)
            mine, ours = v.local_shards(), got[k].local_shards()
            assert len(mine) == len(ours) and all(torch.equal(x.tensor, y.tensor) and x.metadata == y.metadata for x, y in zip(mine, ours)), k
        for p in model.parameters():
            torch.nn.init.constant_(p, 9.0)
        model.load_state_dict(got)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        assert all(torch.equal(v, full[k]) for k, v in model.state_dict().items())


def test_flat_parameters_of_ranks_load_in_fsdp1(t):
    """From a full state dict, and from one that was cut by columns; more ranks than some units have elements for, too."""
    import json
    import torch
    state = {"model": flat_model().state_dict(), "step": 3}
    torch.save(state, t.at("full.pt"))
    t.run("reshard", t.at("full.pt"), t.at("columns"), "--mesh", "2,2", "--placements", "shard(1),shard(0)", "--to", "dcp")
    for world in (1, 3, 8):
        strategy = {"name": "fsdp1", "units": ["model.a.**", "model.b.**"], "use_orig_params": False, "ignored": ["**.running_*", "**.num_batches_tracked"]}
        with open(t.at("target.json"), "w") as f:
            json.dump({"schema": "tessera.target/1", "mesh": {"shape": [world]}, "strategy": strategy}, f)
        for source in ("full.pt", "columns"):
            t.run("reshard", t.at(source), t.at(f"{source}{world}"), "--target", t.at("target.json"), "--to", "torch")
        with open(t.at("plan.json"), "wb") as f:
            f.write(t.run("plan", t.at("columns"), "--target", t.at("target.json"), "--to", "torch", "--json").stdout)
        for part in (2, 1):
            t.run("exec", t.at("plan.json"), t.at(f"parts{world}"), "--share", f"{part}/2")
        t.run("exec", t.at("plan.json"), t.at(f"parts{world}"), "--finish")
        for r in range(world):
            assert filecmp.cmp(t.at(f"columns{world}", f"rank{r}.pt"), t.at(f"parts{world}", f"rank{r}.pt"), shallow=False), "parts write other bytes"
            with zipfile.ZipFile(t.at(f"full.pt{world}", f"rank{r}.pt")) as z:
                assert z.testzip() is None
        if world != 1:
            t.run("validate", t.at(f"columns{world}"), "--deep")
        if world == 3:
            run_ranks(rank_loads_flat, world, t.at(f"full.pt{world}"))
            run_ranks(rank_loads_flat, world, t.at(f"columns{world}"))
    t.run("reshard", t.at("full.pt"), t.at("half"), "--target", t.at("target.json"), "--to", "torch", "--dtype", "bfloat16")
    t.run("convert", t.at("full.pt"), t.at("half.pt"), "--dtype", "bfloat16")
    t.run("reshard", t.at("half.pt"), t.at("half2"), "--target", t.at("target.json"), "--to", "torch")
    t.run("diff", t.at("half"), t.at("half2"), "--values")
