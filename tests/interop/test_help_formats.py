"""`tessera help formats`: every example is written to a file and run, on checkpoints that PyTorch wrote, and what it writes is read back
by PyTorch."""
import json
import os
import re
import shlex
import subprocess

import torch
import torch.distributed.checkpoint as dcp
from harness import ROOT, load_dcp
from safetensors.torch import load_file


def examples(t):
    """(format, file, contents, command) of each example."""
    text = t.run("help", "formats").stdout.decode()
    for section in re.split(r"\n\n(?=\S)", text)[2:]:
        found = re.findall(r"^  Example, in (\S+):\n((?:    .*\n|\n)+?)  (tessera .*)$", section, re.M)
        assert found, section
        for file, contents, command in found:
            yield section.splitlines()[0], file, re.sub(r"^    ", "", contents, flags=re.M), command


def state():
    torch.manual_seed(3)
    names = {"embed.weight": (8, 4), "head.weight": (8, 4)}
    for n in range(2):
        names |= {f"layers.{n}.attn.weight": (4, 4), f"layers.{n}.norm.weight": (4,)}
    return {name: torch.randn(shape) for name, shape in names.items()}


def rank_file(rank):
    return {"a.qkv.weight": torch.arange(12.0).view(6, 2) + 100 * rank, "a.norm.weight": torch.ones(3), "embed.weight": torch.full((4, 2), float(rank))}


def make_inputs(t):
    """What the examples read."""
    dcp.save(state(), checkpoint_id=t.at("ckpt"), no_dist=True)
    dcp.save(state() | {"head.weight": torch.full((8, 4), float("nan"))}, checkpoint_id=t.at("nan"), no_dist=True)
    os.mkdir(t.at("ranks"))
    for rank in range(2):
        torch.save(rank_file(rank), t.at(f"ranks/rank{rank}.pt"))
    fc = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(fc.parameters())
    fc(torch.ones(3)).sum().backward()
    optimizer.step()
    full = optimizer.state_dict()
    names = ["fc.weight", "fc.bias"]
    full = {"state": {names[i]: s for i, s in full["state"].items()}, "param_groups": [g | {"params": names} for g in full["param_groups"]]}
    torch.save(full, t.at("optim.pt"))


def run_all(t):
    """Runs every example in the scratch directory. Returns its output by file."""
    make_inputs(t)
    out = {}
    for _, file, contents, command in examples(t):
        with open(t.at(file), "w") as f:
            f.write(contents)
        p = subprocess.run([t.path, *shlex.split(command)[1:]], cwd=t.scratch, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        assert p.returncode == 0, f"{command}: {p.stderr.decode()[-800:]}"
        assert file in command, f"{command} does not read {file}"
        out[file] = p.stdout.decode()
    return out


def test_every_example_of_the_formats_works(t):
    out = run_all(t)
    want = state()
    got = load_dcp(t.at("ckpt-4"))
    assert set(got) == set(want) and all(torch.equal(got[n], v) for n, v in want.items())
    chunks = {n: len(m.chunks) for n, m in dcp.FileSystemReader(t.at("ckpt-4")).read_metadata().state_dict_metadata.items()}
    assert chunks == {"embed.weight": 2, "head.weight": 2} | {f"layers.{n}.attn.weight": 2 for n in range(2)} | {f"layers.{n}.norm.weight": 1 for n in range(2)}
    assert sorted(os.listdir(t.at("flat-ranks"))) == ["rank0.pt", "rank1.pt"]
    assert "oss0" in out["storage.json"] and "slow" in out["storage.json"], out["storage.json"]
    joined = load_file(t.at("joined.safetensors"))
    ranks = [rank_file(r) for r in range(2)]
    blocks = [r["a.qkv.weight"].chunk(3) for r in ranks]
    assert torch.equal(joined["a.qkv.weight"], torch.cat([b[i] for i in range(3) for b in blocks]))
    assert torch.equal(joined["a.norm.weight"], torch.ones(3)) and torch.equal(joined["embed.weight"], torch.cat([r["embed.weight"] for r in ranks])[:7])
    mapped = load_file(t.at("mapped.safetensors"))
    assert torch.equal(mapped["lm_head.weight"], want["head.weight"].T) and torch.equal(mapped["model.embed_tokens.weight"], want["embed.weight"])
    for n in range(2):
        q, k = want[f"layers.{n}.attn.weight"].chunk(2)
        assert torch.equal(mapped[f"model.layers.{n}.attn.q.weight"], q) and torch.equal(mapped[f"model.layers.{n}.attn.k.weight"], k)
        assert torch.equal(mapped[f"model.layers.{n}.norm.weight"], want[f"layers.{n}.norm.weight"])
    assert set(out["modules.json"].split()) >= {"embed.weight", "layers.0.attn.weight", "layers.0.norm.weight"}, out["modules.json"]
    files = sorted(os.listdir(t.at("optim-ranks")))
    assert len(files) == 2, files
    flat = [torch.load(t.at("optim-ranks", file), weights_only=True)["state"] for file in files]
    full = torch.load(t.at("optim.pt"), weights_only=True)["state"]
    whole = torch.cat([full["fc.weight"]["exp_avg"].reshape(-1), full["fc.bias"]["exp_avg"]])
    assert torch.equal(torch.cat([s["exp_avg"] for rank in flat for s in rank.values() if "exp_avg" in s]), whole)


def test_examples_would_fail_where_they_should(t):
    """What is checked is read: without it, the same commands end otherwise."""
    run_all(t)
    with open(t.at("layout.json")) as f:
        layout = json.load(f)
    for rules in ([], layout["rules"][:1], layout["rules"][1:]):
        with open(t.at("strict.json"), "w") as f:
            json.dump(layout | {"rules": rules}, f)
        t.run("validate", t.at("ckpt"), "--layout", t.at("strict.json"), status=1)
    t.run("validate", "--deep", t.at("nan"), "--rule", "values/nan=error", status=1)
    with open(t.at("names.txt"), "a") as f:
        f.write("another.weight\n")
    t.run("validate", t.at("ckpt"), "--against", t.at("names.txt"), status=1)


def test_every_format_is_described_and_follows_its_schema(t):
    """Each document that an option reads has a section; the schemas of what tessera alone writes need none."""
    directory = os.path.join(ROOT, "native/cli/schemas")
    schemas = {json.load(open(os.path.join(directory, f)))["$id"]: json.load(open(os.path.join(directory, f))) for f in os.listdir(directory)}
    named = " ".join(title for title, *_ in examples(t))
    read = {s for s, d in schemas.items() if re.search(r"--(target|storage|shards|map|layout|against)\b|Read by|`verify`, `validate", d.get("description", ""))}
    assert len(read) >= 8 and all(s in named for s in read), read - set(named.replace(",", "").split())
    for title, file, contents, _ in examples(t):
        if not file.endswith(".json"):
            continue
        document = json.loads(contents)
        assert document["schema"] in title and document["schema"] in schemas, title
        known = schemas[document["schema"]]["properties"]
        assert set(document) <= set(known), set(document) - set(known)
