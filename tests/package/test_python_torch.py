"""tessera.torch: load, load_into, and saves by StorageWriter that are killed at every step, beside PyTorch's own reader."""
import contextlib
import enum
import errno
import inspect
import io
import itertools
import os
import pickle
import shutil
import subprocess
import sys
import threading
import warnings

import torch
from harness import SAMPLES, sample_names, sample_path
from safetensors.torch import save_file
from shell import check
from test_python import INSTALLED, is_sound, tessera
from tessera import _save_directory, _slots
from tessera._slots import dtype_of
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch_names import (BlockingAsyncStager, EmptyStateDictLoadPlanner, ExtensionRegistry, SerializationFormat, StorageMeta, StreamTransformExtension, ZStandard,
                         dcp, has, needs, set_crc32_options)

DCP = os.path.join(SAMPLES, "dcp_fsdp2")


def fails(kind, call, *said):
    try:
        call()
    except kind as e:
        assert all(word in str(e) for word in said), e
        return e
    raise AssertionError(f"no {kind}")


def pytorchs(path):
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    needs(StorageMeta)  # which the .metadata of samples has
    state = {}
    _load_state_dict(state, storage_reader=FileSystemReader(path), planner=EmptyStateDictLoadPlanner(), no_dist=True)
    return {name: value for name, value in flatten_state_dict(state)[0].items() if isinstance(value, torch.Tensor)}


# ---- errors, findings ----


def test_errors_survive_pickling(t):
    error = fails(tessera.TesseraError, lambda: tessera.open(t.at("nothing")))
    again = pickle.loads(pickle.dumps(error))
    assert tessera.Error is tessera.TesseraError and type(again) is tessera.TesseraError
    assert (str(again), again.status, again.byte_position) == (str(error), error.status, error.byte_position)


def test_check_gives_the_findings_of_the_command(t):
    hole = os.path.join(SAMPLES, "broken_dcp_hole")
    want = t.json("validate", hole, "--deep", "--json", status=1)["findings"]
    found = tessera.check(hole, deep=True)
    assert [{k: v for k, v in vars(f).items() if v is not None} for f in found] == [{k: v for k, v in f.items() if k != "path"} for f in want]
    assert tessera.check(hole, deep=True, baseline=tessera.validate(hole, deep=True)) == []
    changed = tessera.check(hole, rule=["layout/hole=warning"])
    assert [f.level for f in changed if f.rule == "layout/hole"] == ["warning"]
    fails(tessera.TesseraError, lambda: tessera.check(hole, rule=["layout/hloe=warning"]), "layout/hole")
    other = os.path.join(SAMPLES, "dcp_small")
    want = t.json("validate", DCP, "--against", other, "--json", status=1)["findings"]
    for against in (other, tessera.open(other)):
        assert [f.message for f in tessera.check(DCP, against=against)] == [f["message"] for f in want]
    names = list(tessera.open(DCP))
    assert tessera.check(DCP, against=names) == [] and [f.fqn for f in tessera.check(DCP, against=names + ["no.such"])] == ["no.such"]


# ---- load ----


def test_load_gives_what_pytorch_loads(t):
    want, got = pytorchs(DCP), tessera.torch.load(DCP)
    assert set(got) == set(want) and all(torch.equal(got[n], want[n]) and got[n].dtype == want[n].dtype for n in want)
    some = list(want)[2:5]
    assert list(tessera.torch.load(DCP, some)) == some
    fails(tessera.TesseraError, lambda: tessera.torch.load(DCP, ["no.such.name"]), "no.such.name")
    fails(TypeError, lambda: tessera.torch.load(DCP, some[0]))


ODD_NAMES = ["a.b.weight", "a.c.weight", "a.weight", "a.b.bias", "x*y", "x1y", "q?", "q1", "l[0]", "l0", "l[", "d\\w", "[!a]", "é.ü", "a..b", "", "a.", "n\nm", "-", "]", "^"]
GLOBS = ["a.*", "a.**", "**", "*", "*.weight", "**.weight", "a.*.weight", "**b**", "x*y", "x[*]y", "x?y", "q?", "q[?]", "q[0-9]", "l[0]", "l[[]0]", "l[", "l[[]", "d\\*", "[!a]",
         "[^a].?", "?.?", "[é-ü].[!é]", "a.?.[bw]*", "***", "a.***", "*a*b*", "[]]", "[!]]", "[]-^]", "[-]", "[z-a]", "[!z-a]", "[a-]*", "n*", "a.", "**.", "?", "[.]", "[!.]", "a[.]b"]


def test_globs_choose_what_they_choose_on_the_command_line(t):
    path = t.at("c.pt")
    torch.save({name: torch.full((2,), float(n)) for n, name in enumerate(ODD_NAMES)}, path)
    for glob in GLOBS:
        entries = t.json("inspect", path, "--json", "--include", glob)["entries"]
        want = {e["fqn"] for e in entries} if glob not in ODD_NAMES else {glob}  # a name that exists is not a GLOB
        if want:
            loaded = tessera.torch.load(path, [glob])
            assert set(loaded) == want and all(loaded[n][0] == ODD_NAMES.index(n) for n in loaded), (glob, set(loaded), want)
        else:
            fails(tessera.TesseraError, lambda: tessera.torch.load(path, [glob]), f"'{glob}'")
    assert list(tessera.torch.load(path, ["q1", "**.weight", "a.weight"])) == ["q1", "a.b.weight", "a.c.weight", "a.weight"]


def test_a_prefix_is_stripped(t):
    want = {"model.a.weight": 1., "model.model.b": 2., "model.b": 3., "models": 4., "optim.a.weight": 5.}
    torch.save({name: torch.full((3,), value) for name, value in want.items()}, t.at("c.pt"))
    load = lambda *given, **options: {name: value[0].item() for name, value in tessera.torch.load(t.at("c.pt"), *given, **options).items()}
    assert load(prefix="model.") == {"a.weight": 1, "model.b": 2, "b": 3} and load(prefix="") == want
    assert load(["model.b", "a.*"], prefix="model.") == {"model.b": 2, "a.weight": 1}, "a name without the prefix comes first"
    assert load(["model.a.weight", "b"], prefix="model.") == {"a.weight": 1, "b": 3} == load(["model.a.*", "b"], prefix="model.")
    fails(tessera.TesseraError, lambda: load(prefix="net."), "'net.'")
    for name in ("optim.a.weight", "optim.**", "c"):
        fails(tessera.TesseraError, lambda: load([name], prefix="model."), f"'{name}'", "'model.'")
    fails(TypeError, lambda: load(prefix=3), "prefix")


def test_a_map_gives_names_and_layouts(t):
    source = {f"net.a.{n}.w": torch.arange(6.).reshape(2, 3) + 10 * n for n in range(3)}
    dcp.save(source, checkpoint_id=t.at("c"), no_dist=True)
    rules = {"schema": "tessera.map/1", "rules": [{"from": ["net.a.{layer}.w"], "to": ["net.b.{layer}.weight"], "do": [{"transpose": [1, 0]}]}]}
    mapped = {f"net.b.{n}.weight": source[f"net.a.{n}.w"].t() for n in range(3)}
    loaded = tessera.torch.load(t.at("c"), map=rules)
    assert loaded.keys() == mapped.keys() and all(torch.equal(loaded[n], mapped[n]) for n in mapped)
    loaded = tessera.torch.load(t.at("c"), ["b.1.*", "b.2.weight"], map=rules, prefix="net.", dtype="bfloat16")
    assert list(loaded) == ["b.1.weight", "b.2.weight"] and all(torch.equal(v, mapped["net." + n].bfloat16()) for n, v in loaded.items())
    torch.save(mapped, t.at("mapped.pt"))
    loaded = tessera.torch.load(t.at("mapped.pt"), map=rules, inverse=True)
    assert loaded.keys() == source.keys() and all(torch.equal(loaded[n], source[n]) for n in source)
    fails(tessera.TesseraError, lambda: tessera.torch.load(t.at("c"), inverse=True), "inverse")


def test_dtype_casts_floating_point_tensors_as_pytorch_does(t):
    torch.manual_seed(5)
    stored = {"f64": torch.randn(70, 9, dtype=torch.float64) * 1e3, "f32": torch.randn(1000), "f16": torch.randn(3, 4, 5).half(), "bf16": torch.randn(33).bfloat16(),
              "odd": torch.tensor([float("nan"), float("inf"), 1e30, -0.0, 1e-30, 1 + 2**-9, 1 + 3 * 2**-9]), "f8": torch.randn(64).to(torch.float8_e5m2),
              "int": torch.arange(9), "bool": torch.tensor([True, False]), "complex": torch.randn(4, dtype=torch.complex64), "scalar": torch.tensor(1001.25),
              "strided": torch.randn(8, 6).t(), "state.0.step": torch.tensor(100001.)}
    dcp.save(stored, checkpoint_id=t.at("c"), no_dist=True)
    torch.save(stored, t.at("c.pt"))
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float32):
        for given in (dtype, str(dtype).removeprefix("torch.")):
            for path in (t.at("c"), t.at("c.pt")):
                loaded = tessera.torch.load(path, dtype=given)
                for name, value in stored.items():
                    want = value.to(dtype) if value.is_floating_point() and name != "state.0.step" else value
                    assert loaded[name].dtype == want.dtype, name
                    assert torch.equal(loaded[name].contiguous().reshape(-1).view(torch.uint8), want.contiguous().reshape(-1).view(torch.uint8)), (name, dtype)
    for wrong in ("int64", torch.int64, "bfloat61", 3, "empty"):
        fails(ValueError, lambda: tessera.torch.load(t.at("c"), dtype=wrong), "dtype", str(wrong))


def test_dtype_does_not_cast_numbers_without_their_scale(t):
    torch.save({"a.weight": torch.arange(4, dtype=torch.int8), "a.weight_scale": torch.ones(1)}, t.at("int8.pt"))
    fails(tessera.TesseraError, lambda: tessera.torch.load(t.at("int8.pt"), dtype="bfloat16"), "'a.weight'", "'a.weight_scale'", "dequantize")
    torch.save({"a.weight": torch.randn(4).to(torch.float8_e4m3fn), "a.scale_of_something": torch.ones(1)}, t.at("no.pt"))
    assert tessera.torch.load(t.at("no.pt"), dtype="bfloat16")["a.weight"].dtype == torch.bfloat16, "a name that merely contains 'scale' is not a scale"
    for n, (name, scale) in enumerate((("a.weight", "a.weight_scale_inv"), ("a.weight", "a.scale"), ("w", "w_scale"), ("a.weight", "a.qscale_weight"), ("weight", "weight_scale_2"))):
        torch.save({name: torch.randn(4).to(torch.float8_e4m3fn), scale: torch.ones(1), "b.bias": torch.ones(2)}, t.at(f"c{n}.pt"))
        fails(tessera.TesseraError, lambda: tessera.torch.load(t.at(f"c{n}.pt"), dtype="bfloat16"), f"'{name}'", f"'{scale}'", "dequantize")
        assert tessera.torch.load(t.at(f"c{n}.pt"), ["b.bias"], dtype="bfloat16")["b.bias"].dtype == torch.bfloat16
        assert tessera.torch.load(t.at(f"c{n}.pt"), dtype=torch.float8_e4m3fn, names=[name])[name].dtype == torch.float8_e4m3fn


def test_load_into_fills_or_changes_nothing(t):
    want = pytorchs(DCP)
    blank = lambda: {name: torch.full_like(value, 7) for name, value in want.items()}
    state = blank()
    assert tessera.torch.load_into(state, DCP) == ([], []) and all(torch.equal(state[n], want[n]) for n in want)
    nested = {"model": {k.removeprefix("model."): torch.zeros_like(v) for k, v in want.items() if k.startswith("model.")}, "step": 5}
    missing, unexpected = tessera.torch.load_into(nested, DCP, strict=False)
    assert missing == [] and set(unexpected) == {n for n in want if not n.startswith("model.")} and nested["step"] == 5
    assert all(torch.equal(v, want["model." + k]) for k, v in nested["model"].items())
    first = next(n for n in want if want[n].dim())
    for change, strict, said in (({"extra": torch.zeros(2)}, True, "extra"), ({first: torch.zeros(1, 1, 1)}, False, first),
                                 ({first: want[first].to(torch.float64)}, False, first)):
        state = {**blank(), **change}
        before = {n: v.clone() for n, v in state.items()}
        fails(tessera.TesseraError, lambda: tessera.torch.load_into(state, DCP, strict=strict), said)
        assert all(torch.equal(state[n], before[n]) for n in state)


def test_load_into_changes_nothing_where_a_tensor_cannot_be_filled(t):
    want = {"before": torch.arange(3.), "it": torch.arange(6.).reshape(2, 3), "after": torch.arange(4.)}
    dcp.save(want, checkpoint_id=t.at("c"), no_dist=True)
    for it in (torch.zeros(1, 3).expand(2, 3), torch.zeros(1).expand(2, 3), torch.zeros(2, 3).to_sparse(), torch.zeros(2, 3).to_sparse_csr()):
        blank = lambda: {"before": torch.full((3,), 7.), "it": it, "after": torch.full((4,), 7.)}
        fails(CheckpointException, lambda: dcp.load(blank(), checkpoint_id=t.at("c"), no_dist=True))
        state = blank()
        fails(tessera.TesseraError, lambda: tessera.torch.load_into(state, t.at("c")), "'it'")
        assert all(torch.equal(state[n], blank()[n]) for n in ("before", "after")), state


def test_load_into_makes_no_second_copy_unless_it_is_staged(t):
    want = {f"w{n}": torch.arange(float(1 << 18)).reshape(512, 512) + n for n in range(6)}
    dcp.save(want, checkpoint_id=t.at("c"), no_dist=True)
    made, real = [], torch.empty

    def empty(*shape, **options):
        made.append(real(*shape, **options))
        return made[-1]
    for staged in (False, True):
        state = {name: torch.zeros_like(value) if name != "w5" else torch.zeros(512, 512).t() for name, value in want.items()}
        made.clear()
        with SmallSlots():
            torch.empty = empty
            try:
                tessera.torch.load_into(state, t.at("c"), staged=staged)
            finally:
                torch.empty = real
        assert all(torch.equal(state[n], want[n]) for n in want)
        assert (sum(made.nbytes for made in made) > 6 << 20) == staged, "the memory of every tensor once more"


def test_what_cannot_be_read_changes_nothing(t):
    state = lambda k: {f"w{n}": torch.arange(3000.) * k + n for n in range(5)}
    damages = (os.unlink, lambda path: os.truncate(path, 900), lambda path: os.truncate(path, os.path.getsize(path) - 5))
    for n, (damage, extensions) in enumerate(itertools.product(damages, ((), (ZStandard(),)))):
        path = t.at(f"c{n}")
        dcp.save(state(2), storage_writer=dcp.FileSystemWriter(path, thread_count=3, _extensions=extensions), no_dist=True)
        damage(os.path.join(path, "__0_2.distcp"))
        for staged in (False, True):
            filled = state(7)
            error = fails(tessera.TesseraError, lambda: tessera.torch.load_into(filled, path, staged=staged))
            assert "partly" not in str(error) and all(torch.equal(filled[name], state(7)[name]) for name in filled), error
    hole = os.path.join(SAMPLES, "broken_dcp_hole")
    filled = {name: torch.full(entry.shape, 7, dtype=dtype_of(entry)) for name, entry in tessera.open(hole).items() if entry.kind == "tensor"}
    fails(tessera.TesseraError, lambda: tessera.torch.load_into(filled, hole), "in no chunk")
    assert all((value == 7).all() for value in filled.values())


def test_an_error_while_tensors_are_filled_says_so(t):
    """Damage that only reading finds: in the middle of what is compressed."""
    numbers = torch.randint(0, 60, (1 << 19,), generator=torch.Generator().manual_seed(6)).float()
    state = lambda k: {"a": numbers * k, "b": numbers * k + 1}
    dcp.save(state(2), storage_writer=dcp.FileSystemWriter(t.at("c"), _extensions=[ZStandard()]), no_dist=True)
    found = FileSystemReader(t.at("c")).read_metadata().storage_data
    info = next(info for index, info in found.items() if index.fqn == "b")
    with open(t.at("c", info.relative_path), "r+b") as f:
        f.seek(info.offset + info.length * 2 // 3)
        f.write(b"\xff" * (info.length // 4))
    filled = state(7)
    error = fails(tessera.TesseraError, lambda: tessera.torch.load_into(filled, t.at("c"), staged=True))
    assert "partly" not in str(error) and all(torch.equal(filled[name], state(7)[name]) for name in filled)
    error = fails(tessera.TesseraError, lambda: tessera.torch.load_into(filled, t.at("c")), "'b'", "partly filled", "staged=True")
    assert error.status not in ("i/o", "")


def test_tensors_that_share_memory_are_filled_in_their_order(t):
    stored = {"a": torch.arange(12.), "b": torch.arange(12.) + 100, "c": torch.arange(6.) + 200, "d": torch.arange(3.) + 300, "e": torch.arange(4.) + 400}
    dcp.save(stored, checkpoint_id=t.at("c"), no_dist=True)

    def state(order):
        memory = torch.zeros(16)
        views = {"a": memory[:12], "b": memory[4:16], "c": memory[::2][:6], "d": torch.zeros(3), "e": memory[:4]}
        return memory, {name: views[name] for name in order}
    for order in ("abcde", "edcba", "cabed", "bca"):
        theirs, into = state(order)
        for name in into:
            into[name].copy_(stored[name])
        for staged in (False, True):
            ours, into = state(order)
            tessera.torch.load_into(into, t.at("c"), strict=False, staged=staged)
            assert torch.equal(ours, theirs), (order, staged, ours, theirs)


def test_of_tied_tensors_the_last_name_counts_as_in_load_state_dict(t):
    def tied(order):
        module = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.zeros(3)) for name in order})
        for name in order[1:]:
            module[name] = module[order[0]]
        return module
    dcp.save({"a": torch.ones(3), "b": torch.full((3,), 2.), "c": torch.full((3,), 3.)}, checkpoint_id=t.at("c"), no_dist=True)
    for order in ("abc", "cab", "bca"):
        theirs, ours = tied(order), tied(order)
        theirs.load_state_dict(pytorchs(t.at("c")))
        tessera.torch.load_into(ours.state_dict(), t.at("c"))
        assert torch.equal(ours["a"], theirs["a"]), f"{order}: {ours['a']}, not {theirs['a']}"


# ---- checksums ----


def _flip(directory, tensor, byte=70_001):
    """Changes one byte of a tensor in the files below a directory. The bytes before it are looked for, so they must be unique."""
    data = tensor.contiguous().reshape(-1).view(torch.uint8)
    before = data[byte - 64:byte].numpy().tobytes()
    for at, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(at, name)
            with open(path, "r+b") as f:
                place = f.read().find(before)
                if place >= 0:
                    f.seek(place + 64)
                    old = f.read(1)[0]
                    f.seek(place + 64)
                    f.write(bytes([old ^ 4]))
                    return name
    raise AssertionError("the tensor is not in the files as it is")


def _checked_forms(t, tensors):
    """Yields (path, whether one checksum covers a whole file) of the same tensors: written by PyTorch, and by tessera."""
    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(t.at("dcp")), no_dist=True)
    yield t.at("dcp"), False
    os.mkdir(t.at("torch"))
    torch.save(tensors, t.at("torch", "x.pt"))
    yield t.at("torch", "x.pt"), False
    for name, options in (("columns", {"mesh": "tp=2", "placements": "shard(1)"}), ("rows", {"mesh": "dp=3", "placements": "shard(0)"})):
        tessera.reshard(t.at("dcp"), t.at(name), to="dcp", **options)
        yield t.at(name), False
    tessera.convert(t.at("dcp"), t.at("safetensors", "x.safetensors"))
    yield t.at("safetensors", "x.safetensors"), True
    tessera.convert(t.at("dcp"), t.at("shards"), to="safetensors", max_shard_size="9MB")
    yield t.at("shards"), True


def test_a_flipped_byte_is_an_error_that_says_where(t):
    torch.manual_seed(7)
    tensors = {"a.weight": torch.randn(600, 1000), "b.weight": torch.randn(2048, 1024), "c.weight": torch.randn(3, 5, 7000).bfloat16(), "d": torch.arange(3)}
    os.mkdir(t.at("safetensors"))
    for path, by_file in list(_checked_forms(t, tensors)):
        empty = lambda: {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        loads = lambda **more: (tessera.torch.load(path, **more), (x := empty(), tessera.torch.load_into(x, path, **more))[0],
                                (x := empty(), tessera.torch.load_into(x, path, staged=True, **more))[0],
                                (x := empty(), dcp.load(x, storage_reader=tessera.torch.StorageReader(path, **more), no_dist=True))[0])
        for loaded in loads():
            assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items()), path
        name = _flip(os.path.dirname(path) if os.path.isfile(path) else path, tensors["b.weight"])
        said = (f"'{name}' is damaged" if by_file else "'b.weight' is damaged", "CRC-32")
        fails(tessera.TesseraError, lambda: tessera.torch.load(path), *said)
        fails(tessera.TesseraError, lambda: tessera.torch.load_into(empty(), path), *said, "partly filled")
        target = empty()
        fails(tessera.TesseraError, lambda: tessera.torch.load_into(target, path, staged=True), *said)
        assert all(not tensor.any() for tensor in target.values()), "changed"
        fails(CheckpointException, lambda: dcp.load(empty(), storage_reader=tessera.torch.StorageReader(path), no_dist=True), *said)
        transposed = {"b.weight": torch.zeros(1024, 2048).T}  # is filled through slots
        if not by_file:
            fails(tessera.TesseraError, lambda: tessera.torch.load_into(transposed, path, strict=False), *said)
        for loaded in loads(verify=False):
            assert int((loaded["b.weight"].view(torch.uint8) != tensors["b.weight"].view(torch.uint8)).sum()) == 1, path
        other = tessera.torch.load(path, ["a.weight", "c.weight"])  # in the same file, but it is not read whole
        assert all(torch.equal(other[name], tensors[name]) for name in other)


def test_what_has_no_checksum_loads(t):
    tensors = {"w": torch.randn(3000, 100), "v": torch.randn(50)}
    save_file(tensors, t.at("x.safetensors"), metadata={"format": "pt"})
    set_crc32_options(False)
    try:
        torch.save(tensors, t.at("x.pt"))
    finally:
        set_crc32_options(True)
    for name in ("x.safetensors", "x.pt"):
        os.makedirs(t.at("d-" + name))
        path = t.at("d-" + name, name)
        shutil.copy(t.at(name), path)
        _flip(os.path.dirname(path), tensors["w"])
        assert not torch.equal(tessera.torch.load(path)["w"], tensors["w"]), "nothing says that it is damaged"


# ---- memory that is used in turn ----


class SmallSlots:
    """Slots of 2 KiB, so that tensors are cut and slots are used again."""

    def __enter__(self):
        self.before, _slots.SLOT_BYTES = _slots.SLOT_BYTES, 2048

    def __exit__(self, *_):
        _slots.SLOT_BYTES = self.before


def odd_targets(want):
    """Tensors of the same sizes that bytes cannot be read into: other strides, other dtypes, lazily negated or conjugated."""
    for n, (name, value) in enumerate(want.items()):
        wide = torch.full((*value.shape, 2), 7, dtype=value.dtype)
        shapes = [wide[..., 0], torch.full(value.shape[::-1], 7, dtype=value.dtype).permute(list(reversed(range(value.dim())))), torch.full_like(value, 7)]
        yield name, torch._neg_view(shapes[2]) if value.is_floating_point() and n % 4 == 3 else shapes[n % 3]


def test_the_reader_fills_tensors_of_any_strides_and_dtypes(t):
    torch.manual_seed(4)
    want = {"scalar": torch.tensor(3.5), "empty": torch.zeros(0, 3), "row": torch.randn(1, 1500), "deep": torch.randn(3, 1, 17, 40), "cube": torch.randn(11, 12, 13).half(),
            "bytes": torch.randint(0, 255, (37, 61), dtype=torch.uint8), "long": torch.randint(-9, 9, (70, 9)), "complex": torch.randn(33, 9, dtype=torch.complex64)}
    dcp.save(want, checkpoint_id=t.at("c"), no_dist=True)
    for small in (False, True):
        state = dict(odd_targets(want))
        with SmallSlots() if small else contextlib.nullcontext():
            dcp.load(state, storage_reader=tessera.torch.StorageReader(t.at("c")), no_dist=True)
        assert all(torch.equal(state[n], want[n]) for n in want), [n for n in want if not torch.equal(state[n], want[n])]
    cast = {"cube": torch.zeros(11, 12, 13, dtype=torch.float64), "long": torch.zeros(70, 9)}
    with SmallSlots():
        dcp.load(cast, storage_reader=tessera.torch.StorageReader(t.at("c")), no_dist=True)
    assert torch.equal(cast["cube"], want["cube"].double()) and torch.equal(cast["long"], want["long"].float())


def test_compressed_tensors_are_read_once(t):
    zstd = os.path.join(SAMPLES, "dcp_zstd")
    want = pytorchs(zstd)
    with SmallSlots():
        state = {name: torch.empty((*value.shape, 2), dtype=value.dtype)[..., 0] for name, value in want.items()}
        dcp.load(state, storage_reader=tessera.torch.StorageReader(zstd), no_dist=True)
    assert all(torch.equal(state[n], want[n]) for n in want)


# ---- saves ----


def state_of(k):
    return {"model": {"a": torch.arange(600.).reshape(20, 30) + k, "b": [torch.ones(3) * k, {"c": torch.zeros(0)}]}, "step": k}


def save(path, k, **options):
    dcp.save(state_of(k), storage_writer=tessera.torch.StorageWriter(path, **options), no_dist=True)


def step_of(path):
    """Which save is there, whole, by PyTorch's own reader; None: no checkpoint."""
    if not os.path.exists(os.path.join(path, ".metadata")):
        return None
    state = {**state_of(0), "step": 0}
    dcp.load(state, storage_reader=FileSystemReader(path), no_dist=True)
    want = state_of(state["step"])
    assert torch.equal(state["model"]["a"], want["model"]["a"]) and torch.equal(state["model"]["b"][0], want["model"]["b"][0])
    return state["step"]


def test_a_save_loads_in_pytorch_and_validates(t):
    path = t.at("new/step")
    save(path, 1)
    assert step_of(path) == 1 and is_sound(path)
    error = fails(CheckpointException, lambda: save(path, 2), "holds a checkpoint already")
    assert isinstance(error.failures[0][0], FileExistsError) and step_of(path) == 1
    with open(os.path.join(path, "mine.distcp"), "w") as f:
        f.write("not Tessera's")
    save(path, 3, overwrite=True)
    files = os.listdir(path)
    assert step_of(path) == 3 and "mine.distcp" in files and len(files) == 3, files
    save(path, 4, overwrite=True, checksums=False)
    assert step_of(path) == 4 and {f.rule for f in tessera.check(path, deep=True)} <= {"zip/crc-absent", "dcp/unreferenced-file", "dcp/newer"}
    a, b = t.at("a"), t.at("b")
    save(a, 5)
    save(b, 5)
    if has(StorageMeta):
        ids = [FileSystemReader(p).read_metadata().storage_meta.save_id for p in (a, b)]
        assert ids[0] == ids[1], "the digest of equal content differs"
    for url in ("hf://org/repo", "https://host/c?sig=secret"):
        error = fails(tessera.TesseraError, lambda: tessera.torch.StorageWriter(url), url.partition("?")[0], "s3://")
        assert "secret" not in str(error)
    assert not os.path.exists("hf:") and not os.path.exists("https:"), "a directory was made for a URL"


def save_alone(path, k, **options):
    dcp.save(state_of(k), storage_writer=tessera.torch.StorageWriter(path, **options), no_dist=True, use_collectives=False)


def markers(path):
    return sorted(name for name in os.listdir(path) if not name.endswith(".distcp"))


def journal(*names):
    return "tessera.journal/3\na save of ranks in place\ngeneration 0\n" + "".join(f"file {name}\n" for name in names)


def test_a_rank_that_saves_on_its_own_replaces_only_what_is_its_own(t):
    path = t.at("alone")
    save_alone(path, 1)
    state = state_of(0)
    dcp.load(state, storage_reader=FileSystemReader(path), no_dist=True)
    assert state["step"] == 1 and torch.equal(state["model"]["a"], state_of(1)["model"]["a"]) and markers(path) == ["__0.metadata"]
    fails(FileExistsError, lambda: save_alone(path, 2), "__0.metadata", "overwrite=True")
    fails(CheckpointException, lambda: save(path, 2, overwrite=True), "another form", "__0.metadata")
    whole = t.at("whole")
    save(whole, 1)
    fails(FileExistsError, lambda: save_alone(whole, 2, overwrite=True), "another form", ".metadata")
    foreign = {".tessera-save-00000001aaaaaaaa.journal": journal("__1_00000001aaaaaaaa.distcp"), "__1_00000001aaaaaaaa.distcp": "rank 1 is writing this",
               ".tessera-save-1.lock": "", "mine.distcp": "not Tessera's"}
    for name, text in foreign.items():
        with open(os.path.join(path, name), "w") as f:
            f.write(text)
    with open(os.path.join(path, ".tessera-save-00000000aaaaaaaa.journal"), "w") as f:  # what a killed save of this rank left
        f.write(journal("__0_00000000aaaaaaaa.distcp", "mine.distcp"))
    with open(os.path.join(path, "__0_00000000aaaaaaaa.distcp"), "w") as f:
        f.write("half")
    save_alone(path, 3, overwrite=True)
    files = set(os.listdir(path))
    assert files > foreign.keys() and len(files) == len(foreign) + 2 and "__0.metadata" in files, files
    dcp.load(state, storage_reader=tessera.torch.StorageReader(path), no_dist=True)
    assert state["step"] == 3
    with open(os.path.join(path, "__1.metadata"), "w") as f:  # of a job with more ranks
        f.write("")
    fails(FileExistsError, lambda: save_alone(path, 4, overwrite=True), "more than 1 ranks", "__1.metadata")
    dcp.load(state, storage_reader=tessera.torch.StorageReader(path), no_dist=True)
    assert state["step"] == 3 and set(os.listdir(path)) == files | {"__1.metadata"}


def test_a_failed_save_of_one_rank_leaves_nothing(t):
    class Fails(dcp.DefaultSavePlanner):
        def resolve_data(self, item):
            raise ValueError("planned")
    path = t.at("new/failed")
    writer = tessera.torch.StorageWriter(path)
    fails(ValueError, lambda: dcp.save(state_of(1), storage_writer=writer, planner=Fails(), no_dist=True, use_collectives=False), "planned")
    assert not os.path.exists(t.at("new"))
    dcp.save(state_of(2), storage_writer=writer, no_dist=True, use_collectives=False)
    assert markers(path) == ["__0.metadata"]


class Held(dcp.DefaultSavePlanner):
    """Waits in the middle of the save, where nothing of it is in place yet."""

    def __init__(self):
        super().__init__()
        self.began, self.may_end = threading.Event(), threading.Event()

    def resolve_data(self, item):
        self.began.set()
        assert self.may_end.wait(60)
        return super().resolve_data(item)


def test_a_second_save_of_one_process_at_the_same_time_is_refused(t):
    for overwrite in (False, True):
        path, planner, failed = t.at(f"twice{overwrite}"), Held(), []
        if overwrite:
            save(path, 1)
        writer = tessera.torch.StorageWriter(path, overwrite=overwrite)

        def first():
            try:
                dcp.save(state_of(2), storage_writer=writer, planner=planner, no_dist=True)
            except BaseException as e:
                failed.append(e)
        thread = threading.Thread(target=first)
        thread.start()
        assert planner.began.wait(60)
        try:
            fails(CheckpointException, lambda: save(path, 3, overwrite=overwrite), "another thread is saving")
        finally:
            planner.may_end.set()
            thread.join()
        assert failed == [] and step_of(path) == 2 and is_sound(path)
        save(path, 4, overwrite=True)
        assert step_of(path) == 4 and len(os.listdir(path)) == 2, os.listdir(path)


def test_a_marker_that_appears_is_kept_whatever_links_do(t):
    """The file system gives new names by links, has none, or fails in between."""
    def save_with(path, number, appears):
        real = os.link

        def link(source, to, **how):
            if os.path.dirname(to) != path:  # of another test
                return real(source, to, **how)
            if appears:
                with open(to, "w") as f:
                    f.write("somebody's")
            raise OSError(number, os.strerror(number))
        os.link = link
        try:
            save(path, 2)
        finally:
            os.link = real
    for number, word in ((errno.EPERM, "appeared during the save"), (errno.EOPNOTSUPP, "appeared during the save"), (errno.ENOSPC, "No space left")):
        path = t.at(f"appears{number}")
        fails(CheckpointException, lambda: save_with(path, number, True), word)
        with open(os.path.join(path, ".metadata")) as f:
            assert f.read() == "somebody's"
    save_with(t.at("without"), errno.EPERM, False)
    assert step_of(t.at("without")) == 2 and len(os.listdir(t.at("without"))) == 2
    fails(CheckpointException, lambda: save_with(t.at("full"), errno.ENOSPC, False), "No space left")
    assert not os.path.exists(t.at("full/.metadata"))


CHANGES_FILES = ("open", "write", "pwrite", "fsync", "rename", "link", "unlink", "mkdir")
CALLS_OF_C = ("_open_save", "_begin_save", "_unchanged", "_record", "_end_save", "_close_save", "_write_journal")  # each changes files, too


def killed_at(number, path, overwrite):
    """Saves in a process that ends before the call of that number, of those that change files, or in the middle of it where that is
    a write. Whether it ended so."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    left = [number]

    def counted(name, real):
        def call(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                if name in ("write", "pwrite"):
                    real(args[0], bytes(args[1])[:len(args[1]) // 2], *args[2:])
                os._exit(9)
            return real(*args, **kwargs)
        return call
    try:
        for name in CHANGES_FILES:
            setattr(os, name, counted(name, getattr(os, name)))
        for name in CALLS_OF_C:
            setattr(_save_directory, name, counted(name, getattr(_save_directory, name)))
        save(path, 2, overwrite=overwrite)
        os._exit(0)
    finally:
        os._exit(1)


def objects():
    import collections
    import datetime
    import fractions
    import ipaddress
    import pathlib
    import re
    import time
    import numpy
    yield from (frozenset([1, frozenset()]), bytearray(b"\xffa"), b"\xffa", {1}, collections.deque([1, 2], 3), slice(1, 2), range(3))
    yield from (collections.defaultdict(list, {"a": [1]}), collections.defaultdict(None, {"a": 1}), collections.Counter("aab"),
                collections.OrderedDict(b=1, a=2))
    yield from (numpy.float32(1.5), numpy.bool_(True), numpy.dtype("float32"), numpy.random.default_rng(3).bit_generator.state)
    yield from (..., torch.strided, torch.sparse_coo, re.compile("a+", re.IGNORECASE), time.gmtime(5), ipaddress.ip_address("10.0.0.1"), ipaddress.ip_network("fe80::/16"))
    yield from (datetime.date(2020, 1, 2), fractions.Fraction(1, 3), pathlib.PurePosixPath("a/b"), 1 + 2j, 2**100, torch.Size([1, 2]),
                torch.float32, torch.device("cpu"))


def test_objects_have_the_types_that_they_were_saved_with(t):
    import numpy
    for n, value in enumerate([*objects(), numpy.random.get_state(), numpy.arange(6).reshape(2, 3)]):
        path = t.at(f"objects-{n}")
        dcp.save({"w": torch.ones(2), "kept": (value, n)}, checkpoint_id=path, no_dist=True)
        state = {"w": torch.zeros(2), "kept": None}
        dcp.load(state, storage_reader=tessera.torch.StorageReader(path), no_dist=True)
        read, number = state["kept"]
        assert type(read) is type(value) and repr(read) == repr(value) and number == n, f"{value!r} became {read!r}"


def test_objects_that_are_entries_themselves_are_kept_too(t):
    import numpy
    values = [value for value in objects() if not isinstance(value, dict)]
    for n, value in enumerate([*values, numpy.arange(6, dtype=">f4").reshape(2, 3), numpy.array(["a", "bcd"]), numpy.float64(0.1), numpy.datetime64("2020-01-01")]):
        dcp.save({"w": torch.ones(2), "kept": value}, checkpoint_id=t.at(f"dcp{n}"), no_dist=True)
        torch.save({"w": torch.ones(2), "kept": value}, t.at(f"file{n}"))
        theirs = {"w": torch.zeros(2), "kept": None}
        dcp.load(theirs, checkpoint_id=t.at(f"dcp{n}"), no_dist=True)
        for path in (t.at(f"dcp{n}"), t.at(f"file{n}")):
            state = {"w": torch.zeros(2), "kept": None}
            dcp.load(state, storage_reader=tessera.torch.StorageReader(path), no_dist=True)
            read = state["kept"]
            assert type(read) is type(value) and repr(read) == repr(theirs["kept"]), f"{value!r} became {read!r}"
            assert getattr(read, "dtype", None) == getattr(theirs["kept"], "dtype", None), value


class Home:
    """Of the tests: PyTorch would import this module to make one."""


class Color(enum.Enum):
    RED = 1


def test_objects_of_other_code_are_refused(t):
    """With the name of what PyTorch would import, wherever in the object it is."""
    import collections
    import functools
    for n, (value, named) in enumerate(((Home(), "test_python_torch.Home"), (collections.defaultdict(Home), "test_python_torch.Home"), (collections.defaultdict(functools.partial(dict, a=1)), "a factory that is not a class"),
                                        (Color.RED, "test_python_torch.Color"), ({"deep": [Color.RED]}, "test_python_torch.Color"))):
        path = t.at(f"others-{n}")
        dcp.save({"w": torch.ones(2), "kept": (value, n)}, checkpoint_id=path, no_dist=True)
        state = {"w": torch.zeros(2), "kept": None}
        fails(CheckpointException, lambda: dcp.load(state, storage_reader=tessera.torch.StorageReader(path), no_dist=True), "'kept'", named, "unsafe_objects", "an enum's member")
        assert state["kept"] is None
    dcp.save({"color": Color.RED}, checkpoint_id=t.at("enum"), no_dist=True)
    torch.save({"color": Color.RED}, t.at("enum.pt"))
    for path in (t.at("enum"), t.at("enum.pt")):
        assert tessera.inspect(path)["entries"][0]["type"] == "test_python_torch.Color" == tessera.open(path)["color"].type


def test_what_cannot_be_pickled_again_is_left_to_pytorch_where_its_code_may_run(t):
    """Kinds of tensors in tuples, which are objects, and objects of other classes."""
    values = [(torch.eye(3).to_sparse(), 1), (torch.eye(4).to_sparse_csr(),), (torch.quantize_per_tensor(torch.arange(5.), 0.5, 3, torch.quint8),),
              (torch.empty(2, device="meta"),), (torch.arange(4.).untyped_storage(),), Home(), [Home()]]
    for n, value in enumerate(values):
        path, state = t.at(f"c{n}"), lambda: {"w": torch.zeros(2), "kept": None}
        dcp.save({"w": torch.ones(2), "kept": value}, storage_writer=tessera.torch.StorageWriter(path), no_dist=True)
        theirs, ours = state(), state()
        dcp.load(theirs, storage_reader=FileSystemReader(path), no_dist=True)
        dcp.load(ours, storage_reader=tessera.torch.StorageReader(path, unsafe_objects=True), no_dist=True)
        assert torch.equal(ours["w"], torch.ones(2)) and type(ours["kept"]) is type(theirs["kept"]) and str(ours["kept"]).partition(" at 0x")[0] == str(theirs["kept"]).partition(" at 0x")[0], value
        fails(CheckpointException, lambda: dcp.load(state(), storage_reader=tessera.torch.StorageReader(path), no_dist=True), "'kept'", "unsafe_objects")


def test_quantized_tensors_load_as_by_pytorch(t):
    torch.manual_seed(8)
    state = {"tensor": torch.quantize_per_tensor(torch.rand(5), 0.1, 3, torch.quint8), "wide": torch.quantize_per_tensor(torch.rand(4, 6), 0.1, 3, torch.qint32),
             "channels": torch.quantize_per_channel(torch.rand(4, 6), torch.rand(4) + 0.5, torch.arange(4), 0, torch.qint8), "plain": torch.rand(3)}
    for writer in (dcp.FileSystemWriter, tessera.torch.StorageWriter):
        path = t.at(writer.__name__)
        dcp.save(state, storage_writer=writer(path), no_dist=True)
        assert is_sound(path) and tessera.diff(path, path, values=True)["same"]
        listed = {e["fqn"]: (e["kind"], e["dtype"], tuple(e["shape"]), e.get("type")) for e in tessera.inspect(path)["entries"]}
        assert listed == {name: ("tensor" if name == "plain" else "opaque", str(v.dtype).removeprefix("torch."), tuple(v.shape), None if name == "plain" else "torch.quantized")
                          for name, v in state.items()}
        for reader in (FileSystemReader, tessera.torch.StorageReader):
            loaded = {name: value.clone() for name, value in state.items()}
            for value in loaded.values():
                value.copy_(torch.quantize_per_channel(torch.ones(4, 6), value.q_per_channel_scales(), value.q_per_channel_zero_points(), 0, torch.qint8)
                            if value.is_quantized and value.qscheme() == torch.per_channel_affine else torch.zeros(value.shape))
            assert not torch.equal(loaded["wide"], state["wide"])
            dcp.load(loaded, storage_reader=reader(path), no_dist=True)
            assert all(torch.equal(loaded[name], value) for name, value in state.items()), (writer, reader)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert list(tessera.torch.load(path)) == ["plain"]
        assert any("left out" in str(w.message) and "channels" in str(w.message) for w in said)


def test_a_save_that_is_killed_leaves_the_old_or_the_new_checkpoint(t):
    for overwrite in (False, True):
        seen, number, ended = set(), 0, True
        while ended:
            number += 1
            path = t.at(f"killed{overwrite}{number}")
            if overwrite:
                save(path, 1)
            else:
                os.makedirs(path)
            with open(os.path.join(path, "__0_notes.distcp.txt"), "w") as f:
                f.write("a user's file")
            ended = killed_at(number, path, overwrite)
            now = step_of(path)
            assert now in ((1, 2) if overwrite else (None, 2)), (number, now)
            seen.add(now)
            save(path, 3, overwrite=True)
            assert step_of(path) == 3 and sorted(f for f in os.listdir(path) if not f.endswith(".distcp")) == [".metadata", "__0_notes.distcp.txt"], os.listdir(path)
            assert len(os.listdir(path)) == 3, os.listdir(path)
        assert seen == {1 if overwrite else None, 2} and number > 10, (seen, number)


def planted_files(path, names, identity):
    """What a checkpoint from somebody else may contain: the record and the journal of a save that seems to have been killed after it was
    published."""
    info = os.stat(os.path.join(path, ".metadata"))
    marker = f"{info.st_dev} {info.st_ino} {info.st_size} {info.st_mtime_ns // 10**9} {info.st_mtime_ns % 10**9}"
    with open(os.path.join(path, ".tessera-save-0123456789abcdef.publishing"), "w") as f:
        f.write(f"tessera.publishing/2\ninto .metadata\nbeside {os.stat(os.path.dirname(path)).st_dev}\nidentity {marker}\n")
        f.write("".join(f"old {identity} {name}\n" for name in names) + "\n")
    with open(os.path.join(path, ".tessera-save-0123456789abcdef.journal"), "w") as f:
        f.write(journal(*names))


def test_what_is_planted_in_a_checkpoint_of_somebody_else_removes_nothing(t):
    path, outside, beside = t.at("theirs"), t.at("outside.txt"), t.at("theirs/notes.txt")
    for names in ((outside, "../outside.txt", "notes.txt", "./notes.txt"), ("notes.txt",)):
        for identity in ("1 1 4 0 0", "0 0 0 0 0"):
            save(path, 1, overwrite=True)
            for name in (outside, beside):
                with open(name, "w") as f:
                    f.write("mine")
            planted_files(path, names, identity)
            save(path, 2, overwrite=True)
            assert step_of(path) == 2 and os.path.exists(outside) and os.path.exists(beside), os.listdir(t.at("."))


def test_what_another_program_saves_meanwhile_is_not_replaced(t):
    """Just before the marker gets its name."""
    def save_while(path, act):
        real = os.fsync

        def fsync(fd):  # other tests save at the same time
            directory, name = os.path.split(os.readlink(f"/proc/self/fd/{fd}"))
            if directory == os.path.realpath(path) and name.endswith(".metadata"):
                act()
            return real(fd)
        os.fsync = fsync
        try:
            save(path, 2, overwrite=True)
        finally:
            os.fsync = real

    def write(name):
        def act():
            with open(name + ".new", "w") as f:
                f.write("somebody's")
            os.rename(name + ".new", name)
        return act
    for n, which in enumerate(("marker", "data", "first")):
        path = t.at(f"meanwhile{n}")
        os.makedirs(path)
        if which != "first":
            save(path, 1)
        name = os.path.join(path, next(f for f in sorted(os.listdir(path)) if f.endswith(".distcp")) if which == "data" else ".metadata")
        fails(CheckpointException, lambda: save_while(path, write(name)), "another program", os.path.basename(name))
        with open(name) as f:
            assert f.read() == "somebody's", which


# ---- the options of PyTorch's writer and reader ----


def test_the_writer_and_the_reader_have_the_options_of_pytorchs(t):
    parameters = lambda of: list(inspect.signature(of).parameters)
    assert parameters(tessera.torch.StorageWriter)[:len(parameters(dcp.FileSystemWriter))] == parameters(dcp.FileSystemWriter)
    assert set(parameters(FileSystemReader)) <= set(parameters(tessera.torch.StorageReader))


def many(k):
    return {**{f"w{n}": torch.arange(50. * (n + 1)) * k + n for n in range(7)}, "big": torch.arange(1 << 19) + k, "of": {"step": k, "text": ["a", {"b": k}]}}


def loads_many(path, k):
    for reader in (FileSystemReader(path), tessera.torch.StorageReader(path)):
        state = many(0)
        dcp.load(state, storage_reader=reader, no_dist=True)
        assert state["of"] == many(k)["of"] and all(torch.equal(state[n], v) for n, v in many(k).items() if n != "of"), (path, k)
    assert is_sound(path)


def files_of(path):
    """The names of the tensors and objects in each file."""
    files = {}
    for index, info in FileSystemReader(path).read_metadata().storage_data.items():
        files.setdefault(info.relative_path, set()).add(index.fqn)
    return sorted(map(sorted, files.values()))


def test_options_make_the_files_that_pytorchs_writer_makes(t):
    for n, options in enumerate(({}, {"thread_count": 3}, {"single_file_per_rank": False}, {"single_file_per_rank": False, "thread_count": 2},
                                 {"per_thread_copy_ahead": 0}, {"per_thread_copy_ahead": 1 << 30, "thread_count": 40})):
        ours, theirs = t.at(f"ours{n}"), t.at(f"theirs{n}")
        dcp.save(many(n + 1), storage_writer=dcp.FileSystemWriter(theirs, **options), no_dist=True)
        dcp.save(many(n + 1), storage_writer=tessera.torch.StorageWriter(ours, **options), no_dist=True)
        assert files_of(ours) == files_of(theirs), options
        loads_many(ours, n + 1)
        dcp.save(many(n + 2), storage_writer=tessera.torch.StorageWriter(ours, overwrite=True, **options), no_dist=True)
        loads_many(ours, n + 2)
        assert len(os.listdir(ours)) == len(files_of(ours)) + 1, "files of the old checkpoint are left"


def test_sync_files_decides_whether_the_disk_is_waited_for(t):
    def synced(path, **options):
        real, seen = os.fsync, []

        def fsync(fd):
            if os.readlink(f"/proc/self/fd/{fd}").startswith(os.path.realpath(path)):  # other tests save at the same time
                seen.append(fd)
            return real(fd)
        os.fsync = fsync
        try:
            save(path, 1, **options)
        finally:
            os.fsync = real
        assert step_of(path) == 1
        return len(seen)
    assert synced(t.at("synced")) > 3 and synced(t.at("not"), sync_files=False) == 0


def test_a_thread_that_fails_ends_the_save_of_all_and_leaves_nothing(t):
    class FailsAt(dcp.DefaultSavePlanner):
        def resolve_data(self, item):
            if item.index.fqn == "w3":
                raise ValueError("planned")
            return super().resolve_data(item)
    for options in ({"thread_count": 3}, {"single_file_per_rank": False, "thread_count": 2}, {"single_file_per_rank": False}):
        path = t.at("above", "step")
        error = fails(CheckpointException, lambda: dcp.save(many(1), storage_writer=tessera.torch.StorageWriter(path, **options), planner=FailsAt(), no_dist=True), "planned")
        assert isinstance(error.failures[0][0], ValueError) and not os.path.exists(t.at("above")), options


def test_options_that_are_not_honoured_say_so(t):
    fails(tessera.TesseraError, lambda: tessera.torch.StorageWriter(t.at("c"), serialization_format=SerializationFormat.SAFETENSORS),
          "serialization_format", "FileSystemReader")
    assert tessera.torch.StorageWriter(t.at("c"), serialization_format=SerializationFormat.TORCH_SAVE)
    for options in ({"thread_count": 0}, {"thread_count": 1.5}, {"per_thread_copy_ahead": -1}):
        fails(ValueError, lambda: tessera.torch.StorageWriter(t.at("c"), **options), *options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tessera.torch.StorageWriter("s3://bucket/c", single_file_per_rank=False)
        tessera.torch.StorageWriter(t.at("c"), single_file_per_rank=False, sync_files=False)
    assert ["single_file_per_rank=False" in str(w.message) for w in caught] == [True] and caught[0].filename == __file__


class Xor(StreamTransformExtension):
    """An extension that nobody but this test knows."""
    registry_name = staticmethod(lambda: "stream.xor")
    from_descriptor = staticmethod(lambda version: Xor())

    def get_descriptor(self):
        return "stream.xor/1"

    def transform_to(self, output):
        class To(io.RawIOBase):
            writable = lambda self: True
            write = lambda self, data: output.write(bytes(x ^ 90 for x in memoryview(data).cast("B")))

            def close(self):
                output.close()
                super().close()
        return To()

    def transform_from(self, stream):
        return io.BytesIO(bytes(x ^ 90 for x in stream.read(-1)))


def test_extensions_are_written_and_read_as_by_pytorch(t):
    registry = ExtensionRegistry()
    registry.extensions["stream.xor"] = Xor
    for n, extension in enumerate((ZStandard(), Xor())):
        for writer in (dcp.FileSystemWriter, tessera.torch.StorageWriter):
            path, state = t.at(f"{writer.__name__}{n}"), lambda k: {"w": torch.arange(700.) * k, "o": {"step": k}}
            dcp.save(state(n + 2), storage_writer=writer(path, _extensions=[extension]), no_dist=True)
            for reader in (FileSystemReader(path, registry), tessera.torch.StorageReader(path, unsafe_objects=True, _extension_registry=registry)):
                read = state(0)
                dcp.load(read, storage_reader=reader, no_dist=True)
                assert torch.equal(read["w"], state(n + 2)["w"]) and read["o"] == state(n + 2)["o"], (writer, extension)
    only, careful = {"w": torch.zeros(700)}, tessera.torch.StorageReader(path, _extension_registry=registry)
    dcp.load(only, storage_reader=careful, no_dist=True)
    assert torch.equal(only["w"], state(3)["w"])
    fails(CheckpointException, lambda: dcp.load(state(0), storage_reader=careful, no_dist=True), "o.step", "unsafe_objects")
    read = {"w": torch.zeros(700), "o": {"step": 0}}
    dcp.load(read, storage_reader=tessera.torch.StorageReader(t.at("StorageWriter0")), no_dist=True)
    assert torch.equal(read["w"], state(2)["w"]) and read["o"]["step"] == 2, "ZStandard needs a registry"


class Whole(Xor):
    """Writes everything at the end, as some compressors do."""

    def transform_to(self, output):
        class To(io.BytesIO):
            def close(self):
                output.write(self.getbuffer()[::-1].tobytes())
                output.close()
        return To()


def test_equal_content_has_an_equal_id_through_an_extension_too(t):
    ids = []
    for n, k in enumerate((1, 1, 2)):
        torch.manual_seed(k)  # so large that only lengths of records would be digested
        dcp.save({"w": torch.rand(1 << 20)}, storage_writer=tessera.torch.StorageWriter(t.at(f"c{n}"), _extensions=[Whole()]), no_dist=True)
        ids.append(FileSystemReader(t.at(f"c{n}")).read_metadata().storage_meta.save_id)
    assert ids[0] == ids[1] != ids[2], ids


def test_async_save_stages_as_pytorchs_writer_does(t):
    needs(BlockingAsyncStager)
    assert issubclass(tessera.torch.StorageWriter, BlockingAsyncStager)
    for cached in (False, True):
        writer = tessera.torch.StorageWriter(t.at(f"async{cached}"), cache_staged_state_dict=cached, overwrite=True)
        staged = []
        for k in (1, 2, 3):
            state = many(k)
            saving = dcp.async_save(state, storage_writer=writer, no_dist=True)
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.fill_(0)
            saving.result()
            loads_many(writer.path, k)
            staged.append(writer.stage(many(k))["big"].data_ptr())
        assert not cached or len(set(staged)) == 1, "the memory of the last copy is not used again"
        assert (writer.state_dict_cache is not None) == cached and pickle.loads(pickle.dumps(writer)).state_dict_cache is None


# ---- read_metadata ----


def dcp_samples():
    for name, want in sample_names("dcp"):
        path = sample_path(name, want)
        if os.path.isfile(os.path.join(path, ".metadata")) and tessera.open(path).format == "dcp":
            yield name, path


def fields_of(metadata):
    """The content of a Metadata, but for the id of the load."""
    fields = {**vars(metadata)}
    if has(StorageMeta):
        fields["storage_meta"] = {**vars(metadata.storage_meta or object.__new__(StorageMeta)), "load_id": None}
    properties = {name: vars(value.properties) for name, value in metadata.state_dict_metadata.items() if isinstance(value, TensorStorageMetadata)}
    return fields, properties


def test_read_metadata_has_what_pytorchs_reader_has(t):
    save(t.at("ours"), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({**state_of(2), "odd": {"a.b": [torch.ones(2, requires_grad=True), io.BytesIO(b"x"), 1j], "": torch.zeros(3, dtype=torch.bool)},
                  "strided": torch.arange(12.).view(3, 4).t(), "channels": torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last)},
                 checkpoint_id=t.at("theirs"), no_dist=True)
    seen = [("ours", t.at("ours")), ("theirs", t.at("theirs")), *dcp_samples()]
    assert len(seen) > 8, seen
    for name, path in seen:
        reader = tessera.torch.StorageReader(path)
        ours = reader.read_metadata()
        try:
            theirs = FileSystemReader(path).read_metadata()
        except (ValueError, AttributeError):  # PyTorch 2.15 or one with StorageMeta wrote it, and this one cannot read it
            assert ("v2_15" in name or not has(StorageMeta)) and ours.state_dict_metadata.keys() == tessera.open(path).keys()
            continue
        assert type(ours) is type(theirs) and fields_of(ours) == fields_of(theirs), (name, ours, theirs)
        assert list(ours.state_dict_metadata) == list(theirs.state_dict_metadata), name
        assert not has(StorageMeta) or ours.storage_meta.load_id and ours.storage_meta.load_id == reader.load_id == reader.read_metadata().storage_meta.load_id
    reader.reset()
    assert not has(StorageMeta) or reader.load_id != ours.storage_meta.load_id


def test_elements_in_no_chunk_are_an_error_and_do_not_stay_as_they_were(t):
    reader = tessera.torch.StorageReader(os.path.join(SAMPLES, "broken_dcp_hole"))
    holes = [f.fqn for f in tessera.check(reader.path) if f.rule == "layout/hole"]
    shape = tessera.open(reader.path)[holes[0]].shape
    fails(CheckpointException, lambda: dcp.load({holes[0]: torch.zeros(shape)}, storage_reader=reader, no_dist=True), holes[0])


def test_a_reader_is_used_again_after_its_path_was_replaced(t):
    reader = tessera.torch.StorageReader(t.at("live"))
    for k, shape in ((1, (3,)), (2, (4, 2)), (1, (3,))):
        shutil.rmtree(t.at("live"), ignore_errors=True)
        want = {"w": torch.full(shape, float(k)), "pad": torch.zeros(k, 7), "k": k}
        dcp.save(want, checkpoint_id=t.at("live"), no_dist=True)
        state = {"w": torch.zeros(shape), "pad": torch.ones(k, 7), "k": 0}
        dcp.load(state, storage_reader=reader, no_dist=True)
        assert torch.equal(state["w"], want["w"]) and torch.equal(state["pad"], want["pad"]) and state["k"] == k, state


def test_a_metadata_file_neither_runs_code_nor_changes_classes(t):
    needs(StorageMeta)
    path = t.at("planted")
    dcp.save({"w": torch.ones(3)}, checkpoint_id=path, no_dist=True)
    with open(os.path.join(path, ".metadata"), "rb") as f:
        metadata = f.read()
    load = lambda: tessera.torch.StorageReader(path).read_metadata()
    # Each is run before the Metadata, whose pickle follows without its PROTO and FRAME.
    begin = metadata.index(b"\x8c")
    poison = b"ctorch.distributed.checkpoint.metadata\nStorageMeta\n(N(X\x05\0\0\0plantX\x01\0\0\0xdtb0"
    before = dict(vars(StorageMeta))
    with open(os.path.join(path, ".metadata"), "wb") as f:
        f.write(metadata[:2] + poison + metadata[begin:])
    try:
        load()
    except tessera.TesseraError:
        pass
    assert dict(vars(StorageMeta)) == before and not hasattr(StorageMeta, "plant")
    with open(os.path.join(path, ".metadata"), "wb") as f:  # a memo of 2 ^ 32 slots
        f.write(metadata[:2] + b"Nr\xff\xff\xff\xf00" + metadata[begin:])
    fails(tessera.TesseraError, load, "memo slot")
    marker = t.at("ran")
    with open(os.path.join(path, ".metadata"), "wb") as f:
        f.write(metadata[:2] + b"cposix\nsystem\n(X" + len(f"touch {marker}").to_bytes(4, "little") + f"touch {marker}".encode() + b"tR0" + metadata[begin:])
    try:
        load()
    except tessera.TesseraError:
        pass
    assert not os.path.exists(marker)


# ---- messages ----


def test_a_full_disk_is_named_and_nothing_stays(t):
    """On a small file system where this user can mount one, and with a limit on the size of files in a process of its own everywhere."""
    disk = t.at("disk")
    os.mkdir(disk)
    full = os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk]).returncode == 0
    if not full:
        print("note: no file system can be mounted here, so only a limit on the size of files is tested")
    try:
        for size in ((1 << 20, 30000) if full else ()):  # one tensor, or one of several small ones
            for path in (os.path.join(disk, "a"), os.path.join(disk, "b/c/")):
                state = {"w": torch.ones(size), "v": torch.ones(60000)}
                error = fails(CheckpointException, lambda: dcp.save(state, storage_writer=tessera.torch.StorageWriter(path), no_dist=True))
                said = error.failures[0][0]
                assert isinstance(said, OSError) and "No space left on device" in str(said) and path in str(said), said
                assert os.listdir(disk) == [], os.listdir(disk)
    finally:
        if full:
            subprocess.run(["umount", disk], check=True)
    program = ("import resource, sys, torch, torch.distributed.checkpoint as dcp, tessera.torch\nresource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))\n"
               "try:\n    dcp.save({'w': torch.ones(100000)}, storage_writer=tessera.torch.StorageWriter(sys.argv[1]))\n"
               "except BaseException as e:\n    print(repr(e.failures[0][0]), e.failures[0][0].filename)\n")
    said = check(sys.executable, "-W", "ignore", "-c", program, t.at("limited"), env={**os.environ, "PYTHONPATH": INSTALLED})
    assert "File too large" in said and t.at("limited") in said, said
    assert not os.path.exists(t.at("limited"))


class Fails(dcp.DefaultSavePlanner):
    def __init__(self, stage, error):
        super().__init__()
        self.stage, self.error = stage, error

    def create_local_plan(self):
        if self.stage == "plan":
            raise self.error
        return super().create_local_plan()

    def resolve_data(self, item):
        if self.stage == "write":
            raise self.error
        return super().resolve_data(item)

    def create_global_plan(self, plans):
        if self.stage == "global":
            raise self.error
        return super().create_global_plan(plans)


def test_a_save_that_fails_at_any_stage_leaves_nothing(t):
    for stage in ("plan", "global", "write"):
        for error in (ValueError("planned"), KeyboardInterrupt("planned")):
            path = t.at("above", "step")
            saving = lambda: dcp.save(state_of(1), storage_writer=tessera.torch.StorageWriter(path), planner=Fails(stage, error), no_dist=True)
            assert "planned" in str(fails(CheckpointException, saving)), stage
            assert not os.path.exists(t.at("above")), (stage, os.listdir(path))
    os.mkdir(t.at("empty"))  # what the user made stays
    fails(CheckpointException, lambda: dcp.save(state_of(1), storage_writer=tessera.torch.StorageWriter(t.at("empty")), planner=Fails("write", OSError("x")), no_dist=True))
    assert os.listdir(t.at("empty")) == []


def test_a_tensor_without_elements_that_could_be_saved_is_named(t):
    for form in ("dcp", "safetensors"):
        for value, said in ((torch.eye(2).to_sparse(), "sparse_coo"), (torch.eye(2).to_sparse_csr(), "sparse_csr"), (torch.empty(3, device="meta"), "meta device")):
            state, path = {"before": torch.ones(2), "layer.w": value}, t.at("c")
            error = fails(CheckpointException, lambda: dcp.save(state, storage_writer=tessera.torch.StorageWriter(path, form=form), no_dist=True), "'layer.w'", said)
            assert isinstance(error.failures[0][0], tessera.TesseraError) and not os.path.exists(path)
            fails(CheckpointException, lambda: dcp.save(state, storage_writer=dcp.FileSystemWriter(t.at("theirs")), no_dist=True))


def test_a_second_save_names_the_option_that_replaces(t):
    save(t.at("twice"), 1)
    fails(CheckpointException, lambda: save(t.at("twice"), 2), t.at("twice"), "holds a checkpoint already", "overwrite=True")


def test_a_module_in_place_of_its_state_dict_is_named(t):
    model = torch.nn.Linear(2, 2)
    for given in (model, torch.optim.SGD(model.parameters(), lr=1)):
        fails(TypeError, lambda: tessera.torch.load_into(given, DCP), type(given).__name__, "state_dict()")
    fails(TypeError, lambda: tessera.torch.load_into(list(model.parameters()), DCP), "list")
