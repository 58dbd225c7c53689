"""The programs of samples/c: built against the installed library, run on real checkpoints, and checked with PyTorch."""
import glob
import json
import os
import re
import sys
import tempfile

import torch
import torch.distributed.checkpoint as dcp
from harness import ROOT, SAMPLES, load_dcp, load_torch
from shell import check, made_once

sys.path.insert(0, os.path.join(ROOT, "samples"))
SOURCES = os.path.join(ROOT, "samples/c")
DCP = os.path.join(SAMPLES, "dcp_fsdp2")
PROGRAMS = ["list", "read", "validate", "diff", "convert", "canonicalize", "optimizer", "reshard_mpi", "save_from_ranks"]


KEPT = tempfile.TemporaryDirectory(prefix="tessera-samples-")  # until the interpreter ends; tests run in several processes
BUILD = os.path.join(KEPT.name, "build")


def build():
    tree = os.path.join(KEPT.name, "usr")
    check("cmake", "--install", os.path.join(ROOT, "build/package"), "--prefix", tree)
    check("cmake", "-S", SOURCES, "-B", BUILD, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={tree}", "-DCMAKE_C_FLAGS=-Wall -Wextra -Wpedantic -Werror")
    return check("cmake", "--build", BUILD)


def built():
    """The directory of the programs, built once for all tests of this run; warnings are errors."""
    made_once(KEPT.name, build)
    return BUILD


def run(program, *args, status=0):
    return check(os.path.join(built(), program), *args, status=status)


def run_ranks(ranks, program, *args, status=0):
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]
    return check(*launcher, os.path.join(built(), program), *args, status=status, env={**os.environ, "HOME": KEPT.name})


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return a == b


def tensors(state):
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def files(path):
    return {os.path.relpath(p, path): open(p, "rb").read() for p in glob.glob(os.path.join(path, "**"), recursive=True, include_hidden=True) if os.path.isfile(p)}


def test_each_program_is_short_and_is_built(t):
    assert sorted(os.path.splitext(f)[0] for f in os.listdir(SOURCES) if f.endswith(".c")) == sorted(PROGRAMS)
    for program in PROGRAMS:
        with open(os.path.join(SOURCES, program + ".c")) as f:
            lines = f.read().splitlines()
        assert len(lines) < 80 and max(map(len, lines)) <= 125, program
        assert os.access(os.path.join(built(), program), os.X_OK), f"{program} was not built"


def test_list_prints_what_pytorch_finds(t):
    want = {f"{name} {str(value.dtype).removeprefix('torch.')} {list(value.shape)}" for name, value in tensors(load_dcp(DCP)).items()}
    assert set(run("list", DCP).splitlines()) == want and want
    assert "does-not-exist" in run("list", t.at("does-not-exist"), status=2)
    assert run("list", status=2) == "usage: list PATH\n"


def test_read_prints_the_first_elements(t):
    for name, tensor in tensors(load_dcp(DCP)).items():
        if tensor.dtype != torch.float32:
            assert "is not a float32 tensor" in run("read", DCP, name, status=2)
        else:
            row = tensor if tensor.ndim == 0 else tensor[(0,) * (tensor.ndim - 1)][:8]
            assert run("read", DCP, name) == " ".join(f"{x:g}" for x in row.flatten().tolist()) + "\n"
    assert "there is no 'absent'" in run("read", DCP, "absent", status=2)
    torch.save({"n": torch.arange(4)}, t.at("n.pt"))
    assert "is not a float32 tensor" in run("read", t.at("n.pt"), "n", status=2)


def test_validate_reports_damage_and_nothing_else(t):
    assert run("validate", os.path.join(SAMPLES, "dcp_small")) == ""
    assert re.search("^error: zip/crc: .*distcp", run("validate", os.path.join(SAMPLES, "broken_dcp_byte_flipped"), status=1), re.M)
    assert "error: layout/hole: " in run("validate", os.path.join(SAMPLES, "broken_dcp_hole"), status=1)
    assert run("validate", os.path.join(SAMPLES, "unsupported_tar"), status=2).startswith("validate: ")


def test_diff_finds_exactly_what_was_changed(t):
    state = {"a": torch.arange(12.0).view(3, 4), "b": torch.ones(5), "c": torch.zeros(2), "step": 7}
    torch.save(state, t.at("a.pt"))
    dcp.save(state, checkpoint_id=t.at("a-dcp"), no_dist=True)
    assert run("diff", t.at("a.pt"), t.at("a-dcp")) == ""
    changed = {"a": state["a"].clone(), "b": torch.ones(6), "d": torch.zeros(2), "step": 8}
    changed["a"][2, 3] = 4
    dcp.save(changed, checkpoint_id=t.at("b-dcp"), no_dist=True)
    assert sorted(run("diff", t.at("a.pt"), t.at("b-dcp"), status=1).splitlines()) == ["+ d", "- c", "~ a values", "~ b shape", "~ step object"]
    assert "absent" in run("diff", t.at("a.pt"), t.at("absent"), status=2)


def test_convert_writes_what_pytorch_reads(t):
    want = load_dcp(DCP)
    assert re.fullmatch(rf"wrote \d+ bytes of tensors to '{t.at('out.pt')}'\n", run("convert", DCP, t.at("out.pt"), "torch"))
    got = load_torch(t.at("out.pt"))
    assert set(tensors(got)) == set(tensors(want)) and all(same(value, got[name]) for name, value in tensors(want).items())
    torch.save({"w": torch.randn(40, 3), "n": torch.arange(4)}, t.at("w.pt"))
    run("convert", t.at("w.pt"), t.at("w.safetensors"), "safetensors", "bfloat16")
    from safetensors.torch import load_file
    got = load_file(t.at("w.safetensors"))
    assert same(got["w"], load_torch(t.at("w.pt"))["w"].bfloat16()) and same(got["n"], torch.arange(4))
    assert "exists" in run("convert", t.at("w.pt"), t.at("w.safetensors"), "safetensors", status=2)
    assert "'float33' is not a dtype" in run("convert", t.at("w.pt"), t.at("x.pt"), "torch", "float33", status=2)
    assert "'2.0'" in run("convert", t.at("w.pt"), t.at("x"), "dcp", "float32", "2.0", status=2)
    assert not os.path.exists(t.at("x.pt")) and not os.path.exists(t.at("x"))
    metas = {}
    for version in ("2.3", "2.13"):
        run("convert", t.at("w.pt"), t.at(version), "dcp", "float32", version)
        metas[version] = open(os.path.join(t.at(version), ".metadata"), "rb").read()
        state = {"w": torch.empty(40, 3), "n": torch.empty(4, dtype=torch.int64)}
        dcp.load(state, checkpoint_id=t.at(version), no_dist=True)
        assert all(same(state[name], value) for name, value in load_torch(t.at("w.pt")).items())
    assert metas["2.3"] != metas["2.13"]


def test_reshard_mpi_writes_the_same_bytes_for_any_number_of_ranks(t):
    for ranks in (1, 3):
        run_ranks(ranks, "reshard_mpi", DCP, t.at(f"out{ranks}"), "dp=3", "shard(0)")
    assert files(t.at("out1")) == files(t.at("out3"))
    want, got = load_dcp(DCP), load_dcp(t.at("out3"))
    assert set(want) == set(got) and all(same(value, got[name]) for name, value in tensors(want).items())
    metadata = dcp.FileSystemReader(t.at("out3")).read_metadata()
    cut = [m for m in metadata.state_dict_metadata.values() if len(getattr(m, "size", ())) and m.size[0] % 3 == 0]
    assert cut and all(len(m.chunks) == 3 for m in cut), "tensors whose rows divide by 3 have a chunk on each rank"
    assert run_ranks(2, "reshard_mpi", DCP, t.at("out3"), "dp=3", "shard(0)", status=2).count("exists") == 1


def wrapped_model():
    from torch import nn
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    model = nn.Sequential(nn.Linear(3, 5), checkpoint_wrapper(nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 2))))
    return torch.compile(model)


def test_canonicalize_names_parameters_as_pytorch_does(t):
    from describe_modules import modules_document
    from torch.distributed.checkpoint.state_dict import _get_fqns
    model = wrapped_model()
    with open(t.at("modules.json"), "w") as f:
        json.dump(modules_document(model), f)
    out = run("canonicalize", t.at("modules.json"))
    got = dict(line.split(" -> ") for line in out.splitlines() if " -> " in line)
    want = {raw: next(iter(_get_fqns(model, raw))) for raw, _ in model.named_parameters()}
    assert got == want and "_checkpoint_wrapped_module" in "".join(want) and "    without _orig_mod: " in out
    with open(t.at("bad.json"), "w") as f:
        f.write('{"schema": "tessera.modules/1"}')
    assert run("canonicalize", t.at("bad.json"), status=2).startswith("canonicalize: ")
    assert "is a directory" in run("canonicalize", SAMPLES, status=2)


def test_optimizer_names_its_state_as_pytorch_does(t):
    from describe_modules import modules_document
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
    model = wrapped_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    torch.save(optimizer.state_dict(), t.at("optim.pt"))
    with open(t.at("modules.json"), "w") as f:
        json.dump(modules_document(model), f)
    want = get_optimizer_state_dict(model, optimizer)
    assert run("optimizer", t.at("optim.pt"), t.at("modules.json"), t.at("named.pt")).splitlines() == list(want["state"])
    got = torch.load(t.at("named.pt"), weights_only=True)
    assert same(dict(want["state"]), dict(got["state"])) and want["param_groups"] == got["param_groups"]
    assert "exists" in run("optimizer", t.at("optim.pt"), t.at("modules.json"), t.at("named.pt"), status=2)


def test_save_from_ranks_writes_what_pytorch_loads(t):
    want = torch.arange(10.0)[:, None] + torch.tensor([0.0, 1.0, 2.0]) / 10
    for ranks in (1, 4):
        run_ranks(ranks, "save_from_ranks", t.at(f"step{ranks}"), ranks * 1000)
        state = {"model": {"weight": torch.empty(10, 3)}, "step": 0, "note": ""}
        dcp.load(state, checkpoint_id=t.at(f"step{ranks}"), no_dist=True)
        assert torch.equal(state["model"]["weight"], want) and state["step"] == ranks * 1000 and state["note"] == f"of {ranks} ranks"
    assert "usage: save_from_ranks DEST STEP" in run_ranks(2, "save_from_ranks", status=2)
