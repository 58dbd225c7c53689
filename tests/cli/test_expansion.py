"""Small inputs that stand for large ones: what sharing, strides and overlaps expand to is refused or bounded, in little time
and memory. Pickles are made by Python's pickle, whose memo does the sharing."""
import collections
import os
import pickle
import resource
import subprocess
import sys
import time
import types
import zipfile

from harness import need, test

SECONDS, MEMORY = 5, 1 << 30


def save(path, pickled, storages=()):
    """A torch.save archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        z.writestr("a/data.pkl", pickled)
        z.writestr("a/byteorder", "little")
        for key, data in storages:
            z.writestr(f"a/data/{key}", data)
    return path


def save_legacy(path, value):
    parts = (0x1950a86a20f9469cfc6c, 1001, {"little_endian": True}, value, [])
    with open(path, "wb") as f:
        f.write(b"".join(pickle.dumps(p, 2) for p in parts))
    return path


def double(leaf, times, make):
    for _ in range(times):
        leaf = make(leaf)
    return leaf


def bounded(t, *args, status=(0, 1, 2), env=None):
    """Runs a command in little processor time and address space."""
    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    p = subprocess.run([t.path, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, preexec_fn=limit, env={**os.environ, **(env or {})})
    allowed = (status,) if isinstance(status, int) else status
    need(p.returncode in allowed, f"`tessera {' '.join(map(str, args))}` ended {p.returncode}, expected {allowed}: {p.stderr.decode(errors='replace')[-300:]}")
    return p


DICTS = double({"w": 1}, 40, lambda d: {"a": d, "b": d})
COMMANDS = (("inspect",), ("inspect", "--json"), ("inspect", "--tree"), ("inspect", "--hash", "xxh3"), ("validate",), ("validate", "--deep"), ("manifest",), ("layout",))


def every_command(t, path, status):
    """Each command that opens a checkpoint, within the bounds."""
    for command, *options in COMMANDS:
        bounded(t, command, path, *options, status=status)
    bounded(t, "diff", path, path, "--values", status=status)
    bounded(t, "get", path, "x", status=status)
    for to in ("dcp", "torch", "safetensors"):
        bounded(t, "convert", path, t.at("out"), "--to", to, "--objects", "sidecar" if to == "safetensors" else "keep", "--overwrite", status=status)
    bounded(t, "reshard", path, t.at("out2"), "--mesh", "dp=2", "--placements", "replicate", "--overwrite", status=status)
    bounded(t, "plan", path, "--mesh", "dp=2", "--placements", "replicate", status=status)


@test
def test_expansion_of_shared_containers_is_refused_in_every_form(t):
    shapes = {
        "dicts": DICTS,
        "empty": double({}, 40, lambda d: {"a": d, "b": d}),
        "ordered": double(collections.OrderedDict(w=1), 40, lambda d: collections.OrderedDict(a=d, b=d)),
        "lists": {"x": double([{"w": 1}], 40, lambda d: [d, d])},
        "keys": {0.5: double({1.5: 2}, 40, lambda d: {2.5: d, True: d})},
        "long key": {"k" * 1000000: {f"n{i}": i for i in range(10000)}},
    }
    for name, value in shapes.items():
        for path in (save(t.at("x.pt"), pickle.dumps(value, 2)), save_legacy(t.at("y.pt"), value)):
            p = bounded(t, "inspect", path, status=2)
            need(b"expand" in p.stderr, f"{name}: {p.stderr[:200]}")
    every_command(t, save(t.at("x.pt"), pickle.dumps(DICTS, 2)), 2)
    os.mkdir(t.at("ranks"))
    for r in range(2):
        save(t.at("ranks", f"rank{r}.pt"), pickle.dumps({**DICTS, "rank": r}, 2))
    bounded(t, "inspect", t.at("ranks"), status=2)
    os.mkdir(t.at("index"))
    save(t.at("index", "a.bin"), pickle.dumps(DICTS, 2))
    with open(t.at("index", "pytorch_model.bin.index.json"), "w") as f:
        f.write('{"weight_map": {"w": "a.bin"}}')
    bounded(t, "inspect", t.at("index"), status=2)
    bounded(t, "optim", "flatten", t.at("x.pt"), t.at("flat.pt"), status=2)


@test
def test_expansion_of_containers_that_hold_themselves(t):
    cycle = {"w": 1}
    cycle["again"] = cycle
    p = bounded(t, "inspect", save(t.at("x.pt"), pickle.dumps(cycle, 2)), status=2)
    need(b"holds itself" in p.stderr, p.stderr)
    ring = [1]
    ring.append(ring)
    path = save(t.at("y.pt"), pickle.dumps({"x": ring}, 2))
    every_command(t, path, (0, 1, 2))
    doc = t.json("inspect", path, "--json")
    need("value" not in doc["entries"][0] and doc["entries"][0]["repr"], "a list that holds itself has no repr")


@test
def test_expansion_of_values_ends_in_a_repr(t):
    """Leaves (tuples, lists of numbers) stay readable: what they expand to is not written out."""
    shapes = {
        "lists": double([1], 40, lambda d: [d, d]),
        "tuples": double((1,), 40, lambda d: (d, d)),
        "dicts in a tuple": (double({"w": 1}, 40, lambda d: {"a": d, "b": d}),),
        "sets": double(frozenset([1]), 40, lambda d: frozenset([(d, d), 1])),
    }
    for name, value in shapes.items():
        path = save(t.at("x.pt"), pickle.dumps({"x": value}, 2))
        every_command(t, path, (0, 1, 2))
        doc = t.json("inspect", path, "--json")
        need("value" not in doc["entries"][0] and doc["entries"][0]["repr"], f"{name}: {doc['entries'][0]}")
    many = {f"e{i}": double([i], 18, lambda d: [d, d]) for i in range(2)}
    many.update({f"s{i}": many["e0"] for i in range(5000)})
    path = save(t.at("x.pt"), pickle.dumps(many, 2))
    every_command(t, path, (0, 1, 2))
    text = "s" * 1000000
    path = save(t.at("x.pt"), pickle.dumps({f"e{i}": text for i in range(2000)}, 2))
    p = bounded(t, "inspect", path, "--json", status=0)
    need(len(p.stdout) < 64 * os.path.getsize(path) + (80 << 20), f"{len(p.stdout)} bytes of JSON")


@test
def test_expansion_honest_sharing_stays_readable(t):
    """A tied embedding, defaults that all groups share, a state used twice: everything is listed with its value."""
    group = {"lr": 0.1, "betas": (0.9, 0.999), "params": list(range(1000))}
    value = {f"group{i}": {**group, "again": group, "name": str(i)} for i in range(300)}
    path = save(t.at("x.pt"), pickle.dumps(value, 2))
    doc = t.json("inspect", path, "--json")
    rows = {e["fqn"]: e for e in doc["entries"]}
    need(len(rows) == 300 * 7, f"{len(rows)} entries")
    for i in range(300):
        need(rows[f"group{i}.again.params"]["value"] == list(range(1000)) and rows[f"group{i}.name"]["value"] == str(i), "another value")


# ---- DCP ----


def metadata_classes():
    """Classes that pickle under the names of PyTorch's, made for this."""
    made = {module: types.ModuleType(module) for module in ("torch", "torch.distributed", "torch.distributed.checkpoint")}
    for module, names in (("torch.distributed.checkpoint.metadata", ("Metadata", "BytesStorageMetadata", "MetadataIndex")),
                          ("torch.distributed.checkpoint.filesystem", ("_StorageInfo",))):
        stand_in = types.ModuleType(module)
        for name in names:
            made[name] = type(name, (), {"__module__": module, "__init__": lambda self, **k: self.__dict__.update(k)})
            setattr(stand_in, name, made[name])
        made[module] = stand_in
    return made


def save_dcp(folder, items, names, paths):
    """Byte items: `names` maps an FQN to (item, offset, length); `paths` is planner_data."""
    c = metadata_classes()
    modules = {name: stand_in for name, stand_in in c.items() if isinstance(stand_in, types.ModuleType)}
    kept = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        one = c["BytesStorageMetadata"]()
        stored = {}
        for fqn, (offset, length) in names.items():
            index = c["MetadataIndex"](fqn=fqn, offset=None, index=None)
            stored[index] = c["_StorageInfo"](relative_path="__0_0.distcp", offset=offset, length=length)
        text = pickle.dumps(c["Metadata"](state_dict_metadata={fqn: one for fqn in names}, planner_data=paths, storage_data=stored), 2)
    finally:
        for name, before in kept.items():
            if before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = before
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, ".metadata"), "wb") as f:
        f.write(text)
    with open(os.path.join(folder, "__0_0.distcp"), "wb") as f:
        f.write(items)


@test
def test_expansion_of_dcp_metadata_is_bounded(t):
    with open(save(t.at("item.pt"), pickle.dumps([1] * 200000, 2)), "rb") as f:
        item = f.read()
    names = {f"w{i}": (0, len(item)) for i in range(3000)}
    save_dcp(t.at("one"), item, names, {})
    start = time.monotonic()
    p = bounded(t, "inspect", t.at("one"), status=0)  # 3,000 entries, one item of 400 kB: read once
    need(time.monotonic() - start < SECONDS and b"w2999" in p.stdout, "an item that many entries name is read for each")
    names = {f"w{i}": (0, len(item) - i) for i in range(3000)}
    save_dcp(t.at("overlapping"), item, names, {})
    p = bounded(t, "inspect", t.at("overlapping"), status=2)
    need(b"overlaps" in p.stderr, p.stderr[:200])
    key = "k" * 1000000
    with open(save(t.at("item.pt"), pickle.dumps(7, 2)), "rb") as f:
        item = f.read()
    names = {f"w{i}": (0, len(item)) for i in range(5000)}
    save_dcp(t.at("paths"), item, names, {fqn: (key, fqn) for fqn in names})
    p = bounded(t, "inspect", t.at("paths"), status=2)
    need(b"expand" in p.stderr, p.stderr[:200])
    way = tuple(f"step{i}" for i in range(5000))
    save_dcp(t.at("long"), item, names, {fqn: way for fqn in names})
    need(b"expand" in bounded(t, "inspect", t.at("long"), status=2).stderr, "long shared paths")
    names = {f"w{i}": (i * len(item), len(item)) for i in range(200)}
    save_dcp(t.at("honest"), item * 200, names, {fqn: ("model", fqn) for fqn in names})
    bounded(t, "validate", t.at("honest"), "--deep", status=0)
    bounded(t, "convert", t.at("honest"), t.at("honest.pt"), status=0)
