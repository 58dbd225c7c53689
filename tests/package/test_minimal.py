"""A build with libcjson alone, on a machine that has MPI's compiler without its header, as openmpi-bin leaves it."""
import hashlib
import json
import os
import shlex
import shutil
import stat
import tempfile

import torch
from harness import ROOT, SAMPLES, load_dcp, sha256
from safetensors.torch import load_file
from shell import check, made_once

DCP = os.path.join(SAMPLES, "dcp_fsdp2")
ZSTD = os.path.join(SAMPLES, "dcp_zstd")
PACKAGES = ["libisal-dev", "libssl-dev", "libcurl4-openssl-dev", "libxxhash-dev", "libzstd-dev", "libexpat1-dev", "libopenmpi-dev"]
BUILD = os.path.join(ROOT, "build/minimal")  # next to the others and of the same type, so that ccache knows most of it
KEPT = tempfile.TemporaryDirectory(prefix="tessera-minimal-")  # until the interpreter ends; tests run in several processes

# Prints what Open MPI's compiler prints without libopenmpi-dev: directories that do not exist.
MPICC = """#!/bin/sh
case $1 in
    -show*) echo gcc -I/nonexistent/openmpi/include -L/nonexistent/openmpi/lib -lmpi ;;
    *) exec gcc -I/nonexistent/openmpi/include "$@" ;;
esac
"""


def configure(*options):
    """What configuring prints. pkg-config finds libcjson and nothing else."""
    packages = os.path.join(KEPT.name, "pkgconfig")
    if not os.path.exists(packages):
        os.mkdir(packages)
        directory = check("pkg-config", "--variable=pcfiledir", "libcjson").strip()
        os.symlink(os.path.join(directory, "libcjson.pc"), os.path.join(packages, "libcjson.pc"))
    compiler = os.path.join(KEPT.name, "mpicc")
    with open(compiler, "w") as f:
        f.write(MPICC)
    os.chmod(compiler, stat.S_IRWXU)
    return check("cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DTSR_CUDA=OFF", "-DTSR_TESTS=OFF",
                 f"-DTSR_WERROR={os.environ.get('TSR_WERROR', 'OFF')}", f"-DMPI_C_COMPILER={compiler}", *options, env={**os.environ, "PKG_CONFIG_LIBDIR": packages})


def build():
    shutil.rmtree(BUILD, ignore_errors=True)
    out = configure()
    check("cmake", "--build", BUILD, "--target", "installed", "--", "-j2", timeout=1800)
    return out


def built():
    """(what configuring printed, the program), built once for all tests of this run."""
    return made_once(KEPT.name, build), os.path.join(BUILD, "bin/tessera")


def run(*args, status=0):
    return check(built()[1], *args, status=status)


def test_what_is_missing_is_named_when_it_is_configured_and_by_doctor(t):
    out, _ = built()
    lines = [line for line in out.splitlines() if "was not found:" in line]
    assert len(lines) == len(PACKAGES) and all(any(f"(Debian: {p})" in line for line in lines) for p in PACKAGES), out
    missing = json.loads(run("doctor", "--json"))["missing"]
    assert len(missing) == len(PACKAGES) and all(any(f"(Debian: {p})" in text for text in missing.values()) for p in PACKAGES), missing
    text = run("doctor")
    assert all(p in text for p in PACKAGES), text
    assert "built with: crc32 portable, sha256 portable, xxh3 portable, zstd none" in run("--version")


def test_what_was_built_to_be_installed_is_all_that_an_installation_needs(t):
    """As samples/run builds it and prints the next line; and the README's lines for C."""
    built()
    tree = t.at(".local")
    check("cmake", "--install", BUILD, "--prefix", tree)
    assert "dcp_fsdp2" in check(os.path.join(tree, "bin/tessera"), "inspect", DCP)
    shutil.copy(os.path.join(ROOT, "samples/c/list.c"), t.at("list.c"))
    lines = "cc list.c $(pkg-config --cflags --libs tessera) -Wl,-rpath,$(pkg-config --variable=libdir tessera) -o list\n./list " + shlex.quote(DCP)
    out = check("bash", "-ec", lines, cwd=t.scratch, env={**os.environ, "PKG_CONFIG_PATH": os.path.join(tree, "lib/pkgconfig")})
    want = [f"{n} " for n, v in load_dcp(DCP).items() if isinstance(v, torch.Tensor)]
    assert want and all(any(line.startswith(n) for line in out.splitlines()) for n in want), out


def test_what_needs_no_library_works(t):
    want = {name: value for name, value in load_dcp(DCP).items() if isinstance(value, torch.Tensor)}
    run("convert", DCP, t.at("model.safetensors"), "--to", "safetensors", "--objects", "drop")
    got = load_file(t.at("model.safetensors"))
    assert set(got) == set(want) and all(torch.equal(got[name].reshape(value.shape), value) for name, value in want.items())
    run("reshard", DCP, t.at("resharded"), "--mesh", "dp=3", "--placements", "shard(0)")
    back = load_dcp(t.at("resharded"))
    assert all(torch.equal(back[name], value) for name, value in want.items())
    run("manifest", DCP, "-o", t.at("sums.json"))
    run("verify", t.at("resharded"), t.at("sums.json"))
    run("verify", t.at("model.safetensors"), t.at("sums.json"), "--allow", "missing")
    torch.save({"w": torch.arange(6.0).view(2, 3)}, t.at("a.pt"))
    torch.save({"w": torch.ones(2, 3)}, t.at("b.pt"))
    run("merge", t.at("merged.safetensors"), t.at("a.pt"), t.at("b.pt"), "--method", "linear", "--weight", "0.5", "--weight", "0.5")
    assert torch.equal(load_file(t.at("merged.safetensors"))["w"], (torch.arange(6.0).view(2, 3) + 1) / 2)
    with open(t.at("plan.json"), "w") as f:
        f.write(run("plan", DCP, "--mesh", "dp=2", "--placements", "shard(0)", "--json"))
    run("exec", t.at("plan.json"), t.at("executed"))
    back = load_dcp(t.at("executed"))
    assert all(torch.equal(back[name], value) for name, value in want.items())
    run("validate", "--deep", t.at("executed"))


def test_digests_are_those_of_the_libraries(t):
    want = load_dcp(DCP)
    listed = {e["fqn"]: e["hash"]["digest"] for e in json.loads(run("inspect", DCP, "--hash", "sha256", "--json"))["entries"] if e["kind"] == "tensor"}
    assert listed and all(digest == sha256(want[name]) for name, digest in listed.items())
    torch.save({"w": torch.frombuffer(bytearray(hashlib.shake_128(b"w").digest(70001)), dtype=torch.uint8)}, t.at("w.pt"))
    for source in (DCP, t.at("w.pt")):
        assert run("manifest", source) == check(t.path, "manifest", source), "a manifest of another build"


def test_zstd_items_are_an_error_that_names_the_package(t):
    for args in (("validate", "--deep", ZSTD), ("validate", ZSTD), ("manifest", ZSTD), ("inspect", ZSTD, "--hash", "sha256"), ("diff", ZSTD, DCP, "--values"),
                 ("convert", ZSTD, t.at("out.pt"), "--to", "torch"), ("get", ZSTD, "model.emb.weight", "--print")):
        out = run(*args, status=2)
        assert "libzstd-dev" in out and "error" not in out, out
    assert not os.path.exists(t.at("out.pt"))
    out = run("inspect", ZSTD)
    assert "model.emb.weight" in out and "libzstd-dev" in out and "dcp/item" not in out, out
    run("layout", ZSTD)
    run("plan", ZSTD, "--mesh", "dp=2", "--placements", "shard(0)")


def test_urls_and_stores_are_an_error_that_names_the_package(t):
    for url in ("https://host.invalid/a/", "s3://bucket/key", "hf://org/model"):
        assert "libcurl4-openssl-dev" in run("inspect", url, status=2)


def test_mpi_without_its_header_does_not_break_another_configuration(t):
    built()
    assert "libopenmpi-dev" in configure()
    assert "libopenmpi-dev" not in configure("-DTSR_MPI=OFF")
    configure("-DTSR_MPI=ON")
