"""Live exchange with other versions of PyTorch than the one that the other tests run on: the oldest that is supported, the
one that Tessera writes for by default, and the newest. What each saves is read, and each loads what was written for it."""
import os
import subprocess

from harness import ROOT, Skip

EXCHANGE = os.path.join(ROOT, "tests", "interop", "versions", "exchange.py")
MADE = {}


def python_with(version):
    """The python of an environment with that version, or Skip with the reason."""
    if not os.environ.get("TSR_TEST_FULL"):
        raise Skip("only with --full")
    if version not in MADE:
        p = subprocess.run([os.path.join(ROOT, "tests", "interop", "versions", "python-env"), version], capture_output=True, text=True)
        MADE[version] = p.stdout.split("\n")[-2] if p.returncode == 0 else Skip(p.stderr.strip().split("\n")[-1] or f"no environment with PyTorch {version}")
    if isinstance(MADE[version], Skip):
        raise MADE[version]
    return MADE[version]


def exchange(version, action, path):
    """What went wrong in the other version: the end of what it wrote on stderr, or None."""
    p = subprocess.run([python_with(version), EXCHANGE, action, path], capture_output=True, text=True, timeout=300,
                       env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    return None if p.returncode == 0 else p.stderr.strip()[-400:]


def must(version, action, path):
    why = exchange(version, action, path)
    assert why is None, f"PyTorch {version} cannot {action} {path}: {why}"


def both_ways(t, version, default):
    """`default`: whether this version loads a DCP that was written without --for-torch."""
    must(version, "save", t.scratch)
    saved = t.at("dcp"), t.at("state.pt")
    for i, source in enumerate(saved):
        t.run("validate", source, "--deep")
        dcp, pt = t.at(f"{i}.dcp"), t.at(f"{i}.pt")
        t.run("convert", source, dcp, "--to", "dcp", "--for-torch", version)
        t.run("convert", source, pt, "--to", "torch", "--for-torch", version)
        t.run("validate", dcp, "--deep")
        must(version, "load-dcp", dcp)
        must(version, "load-torch", pt)
    cut = t.at("cut")
    t.run("reshard", saved[1], cut, "--to", "dcp", "--mesh", "dp=3", "--placements", "shard(0)", "--for-torch", version)
    must(version, "load-dcp", cut)
    plain = t.at("plain")
    t.run("convert", saved[1], plain, "--to", "dcp")
    why = exchange(version, "load-dcp", plain)
    assert (why is None) == default, why


def test_with_pytorch_2_3(t):
    both_ways(t, "2.3.0", default=False)
    t.run("reshard", t.at("state.pt"), t.at("ranks"), "--to", "torch", "--mesh", "dp=2", "--placements", "shard(0)", "--for-torch", "2.3", status=2)


def test_with_pytorch_2_4(t):
    both_ways(t, "2.4.0", default=True)


def test_with_pytorch_2_15(t):
    both_ways(t, "2.15.0", default=True)
    t.run("reshard", t.at("state.pt"), t.at("ranks"), "--to", "torch", "--mesh", "dp=2", "--placements", "shard(0)", "--for-torch", "2.15")
    must("2.15.0", "load-ranks", t.at("ranks"))
