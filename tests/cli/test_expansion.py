"""Small inputs that represent large ones: what sharing, strides and overlaps expand to is rejected or limited, in little
time and memory. Python's pickle makes the pickles; its memo does the sharing."""
import collections
import functools
import json
import os
import pickle
import resource
import subprocess
import sys
import types
import zipfile

from harness import need, test

SECONDS, MEMORY = 5, 1 << 30


def save(path, pickled, storages=()):
    """A torch.save archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        z.writestr("a/data.pkl", pickled)
        z.writestr("a/version", "3\n")
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


@functools.lru_cache
def is_sanitized(path):
    """AddressSanitizer reserves terabytes of address space, and is slow."""
    with open(path, "rb") as f:
        return b"__asan_init" in f.read()


def bounded(t, *args, status=(0, 1, 2), env=None, memory=MEMORY):
    """Runs a command with little processor time and address space."""
    sanitized = is_sanitized(t.path)

    def limit():
        seconds = 10 * SECONDS if sanitized else SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        if not sanitized:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    threads = () if args[0] == "help" else ("--threads", "2")  # each thread has a stack in the address space
    p = subprocess.run([t.path, *map(str, args), *threads], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, preexec_fn=limit, env={**os.environ, **(env or {})})
    allowed = (status,) if isinstance(status, int) else status
    need(p.returncode in allowed, f"`tessera {' '.join(map(str, args))}` ended {p.returncode}, expected {allowed}: {p.stderr.decode(errors='replace')[-300:]}")
    return p


DICTS = double({"w": 1}, 40, lambda d: {"a": d, "b": d})
COMMANDS = (("inspect",), ("inspect", "--json"), ("inspect", "--tree"), ("inspect", "--hash", "xxh3"), ("validate",), ("validate", "--deep"), ("manifest",), ("layout",))


def every_command(t, path, status):
    """Runs each command that opens a checkpoint within the limits."""
    for command, *options in COMMANDS:
        bounded(t, command, path, *options, status=status)
    bounded(t, "diff", path, path, "--values", status=status)
    bounded(t, "get", path, "x", status=status)
    for to in ("dcp", "torch", "safetensors"):
        bounded(t, "convert", path, t.at("out"), "--to", to, "--objects", "sidecar" if to == "safetensors" else "keep", "--overwrite", status=status)
    bounded(t, "reshard", path, t.at("out2"), "--mesh", "dp=2", "--placements", "replicate", "--overwrite", status=status)
    bounded(t, "plan", path, "--mesh", "dp=2", "--placements", "replicate", status=status)


@test
def test_expansion_of_objects_that_are_written_apart_is_refused(t):
    """A DCP has a pickle per object, and a pickle writes an int wherever it occurs. Text within one pickle stays shared."""
    text, number = "y" * 60000, b"\x8b" + (200000).to_bytes(4, "little") + b"\x7f" * 200000  # LONG4
    names = [pickle.dumps(f"a{i}", 2)[2:-1].split(b"q")[0] for i in range(4000)]
    texts = save(t.at("texts.pt"), pickle.dumps({f"a{i}": text for i in range(4000)}, 2))
    numbers = save(t.at("numbers.pt"), b"\x80\2" + number + b"q\x050}(" + b"".join(n + b"h\x05" for n in names) + b"u.")
    for path, to in ((texts, "dcp"), (numbers, "dcp"), (numbers, "torch")):
        p = bounded(t, "convert", path, t.at("out"), "--to", to, status=2)
        need(b"the objects share values" in p.stderr and not os.path.exists(t.at("out")), p.stderr)
    bounded(t, "convert", texts, t.at("out.pt"), "--to", "torch", status=0)
    need(os.path.getsize(t.at("out.pt")) < 4 * os.path.getsize(texts), "shared text is written more than once")


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
    need(b"contains itself" in p.stderr, p.stderr)
    ring = [1]
    ring.append(ring)
    path = save(t.at("y.pt"), pickle.dumps({"x": ring}, 2))
    every_command(t, path, (0, 1, 2))
    doc = t.json("inspect", path, "--json")
    need("value" not in doc["entries"][0] and doc["entries"][0]["repr"], "a list that holds itself has no repr")


@test
def test_expansion_of_values_ends_in_a_repr(t):
    """Leaves (tuples, lists of numbers) stay readable: what they expand to is not written in full."""
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
        bounded(t, "diff", path, save(t.at("same.pt"), pickle.dumps({"x": value}, 2)), status=0)
        bounded(t, "diff", path, save(t.at("same.pt"), pickle.dumps({"x": value}, 2)), "--values", status=0)
    other = save(t.at("other.pt"), pickle.dumps({"x": double((2,), 40, lambda d: (d, d))}, 2))
    one = save(t.at("same.pt"), pickle.dumps({"x": double((1,), 40, lambda d: (d, d))}, 2))
    bounded(t, "diff", one, other, status=1)
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
    """A tied embedding, defaults shared by all groups, and a state used twice: everything is listed with its value."""
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
    """Classes made for this test, which are pickled under the names of PyTorch's classes."""
    made = {module: types.ModuleType(module) for module in ("torch", "torch.distributed", "torch.distributed.checkpoint")}
    for module, names in (("torch.distributed.checkpoint.metadata", ("Metadata", "BytesStorageMetadata", "MetadataIndex")),
                          ("torch.distributed.checkpoint.filesystem", ("_StorageInfo",))):
        stand_in = types.ModuleType(module)
        for name in names:
            made[name] = type(name, (), {"__module__": module, "__init__": lambda self, **k: self.__dict__.update(k)})
            setattr(stand_in, name, made[name])
        made[module] = stand_in
    return made


def save_dcp(directory, items, names, paths):
    """Saves byte items: `names` maps an FQN to (item, offset, length); `paths` is planner_data."""
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
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, ".metadata"), "wb") as f:
        f.write(text)
    with open(os.path.join(directory, "__0_0.distcp"), "wb") as f:
        f.write(items)


@test
def test_expansion_of_dcp_metadata_is_bounded(t):
    with open(save(t.at("item.pt"), pickle.dumps([1] * 200000, 2)), "rb") as f:
        item = f.read()
    names = {f"w{i}": (0, len(item)) for i in range(3000)}
    save_dcp(t.at("one"), item, names, {})
    p = bounded(t, "inspect", t.at("one"), status=0)  # 3,000 entries of one item of 400 kB, which is read once, or it would take longer than it may
    need(b"w2999" in p.stdout, p.stdout[-200:])
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
    names = {f"model.w{i}": (i * len(item), len(item)) for i in range(200)}
    save_dcp(t.at("honest"), item * 200, names, {fqn: tuple(fqn.split(".")) for fqn in names})
    bounded(t, "validate", t.at("honest"), "--deep", status=0)
    bounded(t, "convert", t.at("honest"), t.at("honest.pt"), status=0)


# ---- tensors that repeat what is stored ----


class Storage:
    def __init__(self, key, count):
        self.key, self.count = key, count


class Tensor:
    """Pickles a float32 tensor as torch.save does."""

    def __init__(self, storage, offset, sizes, strides):
        self.parts = (storage, offset, tuple(sizes), tuple(strides), False, collections.OrderedDict())

    def __reduce__(self):
        return Named("torch._utils", "_rebuild_tensor_v2"), self.parts


class Named:
    """A global that need not exist."""

    def __init__(self, module, name):
        self.module, self.name = module, name

    def __call__(self):
        raise NotImplementedError


class TorchPickler(pickle._Pickler):
    view = ()  # legacy files have one more item: the viewed part of a storage

    def persistent_id(self, obj):
        if isinstance(obj, Storage):
            return ("storage", Named("torch", "FloatStorage"), obj.key, "cpu", obj.count, *self.view)
        return None

    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, Named):
            self.write(b"c" + obj.module.encode() + b"\n" + obj.name.encode() + b"\n")
        else:
            super().save(obj, save_persistent_id)


def pickled(value, view=()):
    import io
    out = io.BytesIO()
    pickler = TorchPickler(out, 2)
    pickler.view = view
    pickler.dump(value)
    return out.getvalue()


FLOATS = bytes(range(1, 17))  # four floats
BIG = (1 << 20, 1 << 20)


def expanded(sizes=BIG, strides=(0, 0), key="0"):
    return Tensor(Storage(key, 4), 1, sizes, strides)


def values_are_refused(t, path, name, *selection):
    """Every command that uses values stays within the limits, fails, and names the tensor and the option."""
    runs = [("inspect", path, "--hash", "xxh3"), ("inspect", path, "--stats"), ("inspect", path, "--json", "--hash", "sha256"), ("manifest", path),
            ("manifest", path, "-o", t.at("sums.json")), ("layout", path, "--hash", "xxh3"), ("diff", path, path, "--values")]
    for to in ("torch", "dcp", "safetensors"):
        runs.append(("convert", path, t.at("made"), "--to", to))
        runs.append(("reshard", path, t.at("made"), "--to", to, "--mesh", "dp=2", "--placements", "shard(0)"))
    runs += [("get", path, name), ("get", path, name, "--print"), ("get", path, name, "-o", t.at("made.npy"))]
    for run in runs:
        p = bounded(t, *run, status=2)
        need(b"--allow-expansion" in p.stderr and (name.encode() in p.stderr), f"{run}: {p.stderr[:300]}")
        need(not [f for f in os.listdir(t.directory) if "made" in f or "sums" in f], f"{run} left {os.listdir(t.directory)}")


def listing_is_free(t, path):
    for run in (("inspect", path), ("inspect", path, "--json"), ("inspect", path, "--tree"), ("layout", path), ("validate", path), ("diff", path, path),
                ("plan", path, "--mesh", "dp=2", "--placements", "shard(0)", "--json")):
        bounded(t, *run, status=0)
    doc = t.json("validate", path, "--deep", "--json", status=0)
    need([f["rule"] for f in doc["findings"]] == ["limits/expansion"] and doc["findings"][0]["level"] == "warning", doc["findings"])


def save_dcp_tensor(directory, fqn, item, sizes, times=1):
    """Saves a float32 tensor with `times` chunks along dim 0, which all refer to the same item."""
    meta = b"torch.distributed.checkpoint.metadata\n"

    def numbers(values):
        return b"(" + b"".join(b"I%d\n" % v for v in values) + b"t"

    def at(i):
        return [i * sizes[0], *[0] * (len(sizes) - 1)]
    chunks = b"(" + b"".join(b"c" + meta + b"ChunkStorageMetadata\n)\x81(S'offsets'\n" + numbers(at(i)) + b"S'sizes'\n" + numbers(sizes) + b"db" for i in range(times)) + b"l"
    entry = b"S'" + fqn + b"'\nc" + meta + b"TensorStorageMetadata\n)\x81(S'properties'\nc" + meta + b"TensorProperties\n)\x81(ctorch\nfloat32\nNI00\nc" + meta + b"_MEM_FORMAT_ENCODING\n(I0\ntRI00\ntbS'size'\n" \
        + numbers([sizes[0] * times, *sizes[1:]]) + b"S'chunks'\n" + chunks + b"db"
    stored = b"".join(b"c" + meta + b"MetadataIndex\n)\x81(S'fqn'\nS'" + fqn + b"'\nS'offset'\n" + numbers(at(i)) + b"S'index'\nNdb"
                      + b"ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n)\x81(S'relative_path'\nS'__0_0.distcp'\nS'offset'\nI0\nS'length'\nI%d\ndb" % len(item) for i in range(times))
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, ".metadata"), "wb") as f:
        f.write(b"c" + meta + b"Metadata\n)\x81(S'state_dict_metadata'\n(" + entry + b"dS'planner_data'\n(dS'storage_data'\n(" + stored + b"ddb.")
    with open(os.path.join(directory, "__0_0.distcp"), "wb") as f:
        f.write(item)


@test
def test_expansion_of_tensors_is_refused_in_every_form(t):
    one = pickled({"w": expanded()})
    path = save(t.at("x.pt"), one, [("0", FLOATS)])
    values_are_refused(t, path, "w")
    listing_is_free(t, path)
    with open(t.at("legacy.pt"), "wb") as f:
        f.write(b"".join(pickle.dumps(p, 2) for p in (0x1950a86a20f9469cfc6c, 1001, {"little_endian": True})) + pickled({"w": expanded()}, (None,))
                + pickle.dumps(["0"], 2) + (4).to_bytes(8, "little") + FLOATS)
    values_are_refused(t, t.at("legacy.pt"), "w")
    listing_is_free(t, t.at("legacy.pt"))
    with open(save(t.at("item.pt"), pickled(expanded()), [("0", FLOATS)]), "rb") as f:
        save_dcp_tensor(t.at("dcp"), b"w", f.read(), BIG)
    values_are_refused(t, t.at("dcp"), "w")
    listing_is_free(t, t.at("dcp"))
    os.mkdir(t.at("index"))
    save(t.at("index", "a.bin"), one, [("0", FLOATS)])
    with open(t.at("index", "pytorch_model.bin.index.json"), "w") as f:
        f.write('{"weight_map": {"w": "a.bin"}}')
    values_are_refused(t, t.at("index"), "w")
    listing_is_free(t, t.at("index"))
    os.mkdir(t.at("ranks"))
    for r in range(2):
        save(t.at("ranks", f"rank{r}.pt"), one, [("0", FLOATS)])
    bounded(t, "manifest", t.at("ranks"), status=2)
    bounded(t, "validate", t.at("ranks"), "--deep", status=(0, 1))


@test
def test_expansion_by_overlapping_strides_and_shared_chunks(t):
    many = b"".join(bytes([i % 251, 0, 128, 63]) for i in range(4096))
    shapes = {"equal steps": ((2048, 2048, 2048), (1, 1, 0)), "rows that overlap": ((40000, 40000), (1, 1)[::-1]), "three": ((1000, 1000, 2000), (1, 1, 1))}
    for sizes, strides in shapes.values():
        span = sum((n - 1) * s for n, s in zip(sizes, strides)) + 1
        data = (many * (span // 4096 + 1))[:4 * span]
        path = save(t.at("x.pt"), pickled({"w": Tensor(Storage("0", span), 0, sizes, strides)}), [("0", data)])
        values_are_refused(t, path, "w")
        listing_is_free(t, path)
    with open(save(t.at("item.pt"), pickled(Tensor(Storage("0", 262144), 0, (512, 512), (512, 1))), [("0", many * 64)]), "rb") as f:
        save_dcp_tensor(t.at("dcp"), b"w", f.read(), (512, 512), 1100)
    p = bounded(t, "inspect", t.at("dcp"), "--hash", "xxh3", status=2)
    need(b"--allow-expansion" in p.stderr, p.stderr)
    with open(save(t.at("item.pt"), pickled(Tensor(Storage("0", 1 << 21), 0, (1 << 21,), (1,))), [("0", many * 512)]), "rb") as f:
        save_dcp_tensor(t.at("deep"), b"w", f.read(), (1 << 21,), 8000)  # 8 MB, 8,000 times
    doc = json.loads(bounded(t, "validate", t.at("deep"), "--deep", "--json", status=1).stdout)
    need({"layout/bytes-shared", "limits/expansion"} <= {f["rule"] for f in doc["findings"]}, doc["summary"])
    # each one alone is acceptable
    names = {f"n{i}": Tensor(Storage("0", 1 << 18), 0, (1 << 18,), (1,)) for i in range(66000)}
    path = save(t.at("x.pt"), pickled(names), [("0", many * 64)])
    p = bounded(t, "inspect", path, "--hash", "xxh3", status=2)
    need(b"--allow-expansion" in p.stderr, p.stderr)


@test
def test_expansion_within_the_bound_keeps_working(t):
    """Ordinary views are read as usual; selections, slices and --allow-expansion go beyond the limit."""
    value = {"small": expanded((300, 1000)), "w": expanded(), "v": Tensor(Storage("1", 4), 0, (2, 2), (2, 1))}
    path = save(t.at("x.pt"), pickled(value), [("0", FLOATS), ("1", FLOATS)])
    bounded(t, "inspect", path, "--hash", "xxh3", "--exclude", "w", status=0)
    bounded(t, "convert", path, t.at("a.safetensors"), "--exclude", "w", status=0)
    need(os.path.getsize(t.at("a.safetensors")) > 1200000, "the small view was not written whole")
    p = bounded(t, "get", path, "w[7:9,3:5]", status=0)
    need(p.stdout.split() == bounded(t, "get", path, "small[7:9,3:5]", status=0).stdout.split(), p.stdout)
    bounded(t, "get", path, "w[0]", "-o", t.at("row.bin"), status=0)
    need(os.path.getsize(t.at("row.bin")) == 4 << 20, "a row of 4 MiB")
    bounded(t, "convert", path, t.at("b.safetensors"), "--exclude", "w", "--allow-expansion", status=0)
    # slightly more than 1 GiB: over the limit, but quickly read
    wide = save(t.at("y.pt"), pickled({"w": expanded((1 << 14, (1 << 14) + 1))}), [("0", FLOATS)])
    bounded(t, "get", wide, "w", status=2)
    bounded(t, "get", wide, "w", "--allow-expansion", status=0)
    two = save(t.at("z.pt"), pickled({"a": expanded((1 << 14, 10000)), "b": expanded((1 << 14, 10000))}), [("0", FLOATS)])
    p = bounded(t, "manifest", two, status=2)
    need(b"'a'" in p.stderr and b"'b'" in p.stderr and b"2 tensors" in p.stderr, p.stderr)
    p = bounded(t, "validate", "--list-rules", status=0)
    need(b"limits/expansion" in p.stdout and bounded(t, "explain", "limits/expansion", status=0).stdout, "the rule is not listed")
    for command in ("inspect", "manifest", "layout", "verify", "diff", "get", "convert", "reshard", "exec", "optim", "merge"):
        need(b"--allow-expansion" in bounded(t, "help", command, status=0).stdout, f"{command} has no --allow-expansion")


@test
def test_expansion_inside_objects_plans_and_optimizers(t):
    path = save(t.at("x.pt"), pickled({"o": (expanded(), 1)}), [("0", FLOATS)])
    for run in (("convert", path, t.at("made.pt")), ("convert", path, t.at("made"), "--to", "dcp"), ("diff", path, path, "--values")):
        need(b"'o'" in bounded(t, *run, status=2).stderr, run)
    state = {"state": {0: {"exp_avg": expanded()}}, "param_groups": [{"params": [0], "lr": 0.1}]}
    path = save(t.at("optim.pt"), pickled(state), [("0", FLOATS)])
    need(b"--allow-expansion" in bounded(t, "optim", "flatten", path, t.at("made.pt"), status=2).stderr, "optim flatten")
    plan = bounded(t, "plan", path, "--mesh", "dp=2", "--placements", "shard(0)", "--json", status=0).stdout
    with open(t.at("plan.json"), "wb") as f:
        f.write(plan)
    for extra in ((), ("--share", "1/2"), ("--dry-run",)):
        need(b"--allow-expansion" in bounded(t, "exec", t.at("plan.json"), t.at("made"), *extra, status=2).stderr, extra)
    small = save(t.at("small.pt"), pickled({"w": Tensor(Storage("0", 4), 0, (4,), (1,))}), [("0", FLOATS)])
    t.run("manifest", small, "-o", t.at("sums.json"))
    with open(t.at("sums.json")) as f:
        sums = f.read().replace("[4]", str(list(BIG)))
    with open(t.at("sums.json"), "w") as f:
        f.write(sums)
    big = save(t.at("big.pt"), pickled({"w": expanded()}), [("0", FLOATS)])
    need(b"--allow-expansion" in bounded(t, "verify", big, t.at("sums.json"), status=2).stderr, "verify")


@test
def test_expansion_of_computed_tensors_is_refused(t):
    """Neither a cast nor a quantization hides that few elements are stored."""
    big = save(t.at("big.pt"), pickled({"w": expanded(), "v": Tensor(Storage("1", 4), 0, (2, 2), (2, 1))}), [("0", FLOATS), ("1", FLOATS)])
    with open(save(t.at("item.pt"), pickled(expanded()), [("0", FLOATS)]), "rb") as f:
        save_dcp_tensor(t.at("dcp"), b"w", f.read(), BIG)
    with open(t.at("cast.json"), "w") as f:
        json.dump({"schema": "tessera.map/1", "rules": [{"from": ["{rest...}"], "to": ["m.{rest...}"], "do": [{"cast": "float16"}]}]}, f)
    with open(t.at("twice.json"), "w") as f:
        json.dump({"schema": "tessera.map/1", "rules": [{"from": ["{rest...}"], "to": ["m.{rest...}"], "do": [{"cast": "float16"}, {"transpose": [1, 0]}, {"cast": "float64"}]}]}, f)
    for name in ("cast.json", "twice.json"):
        for path in (big, t.at("dcp")):
            runs = [("convert", path, t.at("made"), "--to", "dcp"), ("reshard", path, t.at("made"), "--mesh", "dp=2", "--placements", "shard(0)"), ("manifest", path)]
            for run in runs:
                p = bounded(t, *run, "--map", t.at(name), status=2)
                need(b"--allow-expansion" in p.stderr and b"'m.w'" in p.stderr, f"{run} {name}: {p.stderr[:300]}")
            bounded(t, "plan", path, "--mesh", "dp=2", "--placements", "shard(0)", "--map", t.at(name), status=0)
    linear = save(t.at("linear.pt"), pickled({"l.weight": expanded()}), [("0", FLOATS)])
    p = bounded(t, "convert", linear, t.at("made.safetensors"), "--quantize", "fp8-block", status=2)
    need(b"--allow-expansion" in p.stderr and b"'l.weight'" in p.stderr, p.stderr[:300])


@test
def test_expansion_of_merged_tensors_is_refused(t):
    """Whichever input a tensor is in that repeats stored elements, no values are compared or summed before."""
    big = save(t.at("big.pt"), pickled({"w": expanded(), "v": Tensor(Storage("1", 4), 0, (2, 2), (2, 1))}), [("0", FLOATS), ("1", FLOATS)])
    small = save(t.at("small.pt"), pickled({"w": expanded((2, 2)), "v": expanded((2, 2))}), [("0", FLOATS)])
    for inputs in ((big, big), (small, big), (big, small), (small, small, "--base", big)):
        method = "task-arithmetic" if "--base" in inputs else "linear"
        p = bounded(t, "merge", t.at("made.safetensors"), *inputs, "--method", method, status=2)
        need(b"--allow-expansion" in p.stderr and b"'w'" in p.stderr, f"merge {inputs}: {p.stderr[:300]}")
        need(not os.path.exists(t.at("made.safetensors")), f"merge {inputs} left an output")
    bounded(t, "merge", t.at("part.safetensors"), big, big, "--method", "linear", "--exclude", "w", status=0)
    bounded(t, "merge", t.at("all.safetensors"), small, small, "--method", "linear", status=0)
    # over the limit, but quickly summed
    wide = save(t.at("wide.pt"), pickled({"w": expanded((1 << 14, (1 << 14) + 1))}), [("0", FLOATS)])
    p = bounded(t, "merge", t.at("made.safetensors"), wide, wide, "--method", "linear", status=2)
    need(b"--allow-expansion" in p.stderr and b"'w'" in p.stderr, p.stderr[:300])
    p = bounded(t, "merge", t.at("made.safetensors"), wide, wide, "--method", "linear", "--allow-expansion", "--dry-run", status=0)


@test
def test_rows_of_a_computed_tensor_are_looked_up_once(t):
    """Each of the result's 3,000 boxes is part of one computed tensor, which 1,500 stored ones make up."""
    count = 1500
    names = {f"e.{i}": {"dtype": "F32", "shape": [2, 1], "data_offsets": [8 * i, 8 * i + 8]} for i in range(count)}
    header = json.dumps(names).encode()
    with open(t.at("experts.safetensors"), "wb") as f:
        f.write(len(header).to_bytes(8, "little") + header + bytes(8 * count))
    steps = [{"stack": 0}, {"reshape": [2 * count, 1]}, {"cast": "float16"}, {"interleave": 0, "parts": 2}]
    with open(t.at("map.json"), "w") as f:
        json.dump({"schema": "tessera.map/1", "rules": [{"from": ["e.{i}"], "to": ["w"], "do": steps}]}, f)
    bounded(t, "convert", t.at("experts.safetensors"), t.at("made.safetensors"), "--map", t.at("map.json"), status=0, memory=MEMORY // 8)
