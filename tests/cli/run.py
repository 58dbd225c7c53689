"""Runs the built `tessera` as a user would: compares real samples with what PyTorch reports of them, and tests usage, every
command, and documents against their schemas. Needs only Python's standard library. Usage: run.py --tessera PATH
[--jobs N] [NAME-PART…]"""
import argparse
import collections
import functools
import glob
import importlib
import json
import os
import re
import struct
import subprocess
import sys

import schema

from harness import SAMPLES, SCHEMAS, TESTS, Tessera, need, sample, st_write, test

import runner
import test_plans

for file in sorted(glob.glob("test_*.py", root_dir=os.path.dirname(__file__))):
    importlib.import_module(file.removesuffix(".py"))


# ---- real samples against their goldens ----


def same_value(want, got):
    if isinstance(want, dict) and any(k.startswith("$") for k in want):
        return True  # not a JSON value; the golden's tag states what it is
    if isinstance(want, dict):
        return isinstance(got, dict) and set(want) == set(got) and all(same_value(want[k], got[k]) for k in want)
    if isinstance(want, list):
        return isinstance(got, list) and len(want) == len(got) and all(map(same_value, want, got))
    return type(want) is type(got) and want == got


def check_entries(doc, want):
    rows = {e["fqn"]: e for e in doc["entries"]}
    need(len(rows) == len(doc["entries"]), "a name is listed twice")
    tensors = {k for k, e in rows.items() if e["kind"] == "tensor"}
    need(tensors == set(want["entries"]), f"tensors differ: {sorted(tensors ^ set(want['entries']))[:4]}")
    for k, w in want["entries"].items():
        e = rows[k]
        need(w["dtype"].removeprefix("torch.") == e["dtype"], f"{k}: dtype {e['dtype']}, PyTorch says {w['dtype']}")
        need(e["shape"] == w["shape"], f"{k}: shape {e['shape']}, PyTorch says {w['shape']}")
        # the written value counts where PyTorch reads something else
        digest = want.get("written", {}).get(k, w).get("sha256")
        need("hash" in e and digest in (None, e["hash"]["digest"]), f"{k}: other bytes than PyTorch's")
        if "chunks" in w:
            boxes = [sorted((c["offsets"], c["sizes"]) for c in chunks) for chunks in (w["chunks"], e["chunks"])]
            need(boxes[0] == boxes[1], f"{k}: other chunks: {boxes[1]}, PyTorch has {boxes[0]}")
    for k, v in want.get("objects", {}).items():
        need(k in rows and rows[k]["kind"] != "tensor", f"object {k} is not listed")
        need("value" not in rows[k] or same_value(v, rows[k]["value"]), f"object {k}: {rows[k].get('value')!r}, PyTorch has {v!r}")
    for k in want.get("opaque", {}):
        need(k in rows and rows[k]["kind"] != "tensor", f"opaque {k} is not listed as such")
    need(doc["summary"]["tensors"] == len(tensors), "the summary counts other tensors")
    if not any(e.get("per_rank") for e in doc["entries"]):
        counts, totals = collections.Counter(w["dtype"].removeprefix("torch.") for w in want["entries"].values()), doc["summary"]["dtypes"]
        need({k: v["tensors"] for k, v in totals.items()} == counts, f"the summary has {totals}, PyTorch has {counts}")
    for group in want.get("shared_storage", []):
        for k in group:
            need(set(rows[k].get("shares_storage_with", [])) == set(group) - {k}, f"{k} shares storage with {rows[k].get('shares_storage_with')}, PyTorch says {group}")


def check_good(t, path, want):
    check_entries(t.json("inspect", path, "--json", "--hash", "sha256"), want)
    for view in ((), ("--tree",)):
        t.text("inspect", path, *view)
    t.json("layout", path)
    doc = t.json("validate", path, "--deep", "--format", "json", status=(0, 1) if want.get("opaque") else 0)
    errors = [f for f in doc["findings"] if f["level"] == "error" and f["rule"] != "pickle/unlisted-call"]
    need(not errors, f"valid, but {errors[:2]}")  # an unknown class whose pickle makes calls is an error, but can be listed
    need(not want.get("warnings") or doc["findings"], f"nothing is said about: {want.get('warnings')}")


def check_problem(t, path, want):
    p = t.run("validate", path, "--deep", "--json", status=(0, 1, 2) if want.get("judge") == "either" else (1, 2))
    if p.returncode == 1:
        need(any(f["level"] == "error" for f in json.loads(p.stdout)["findings"]), "no error among the findings")
    if t.run("inspect", path, "--json", status=(0, 2)).returncode == 0:
        t.json("inspect", path, "--json", "--hash", "sha256")
        t.text("inspect", path)


def add_samples():
    for path in sorted(glob.glob(os.path.join(SAMPLES, "*.expect.json"))):
        name = os.path.basename(path)[:-len(".expect.json")]

        def check(t, name=name):
            path, want = sample(name)
            (check_problem if want.get("problems") else check_good)(t, path, want)
        TESTS.append((f"sample/{name}", check))


# ---- usage ----


@test
def test_usage(t):
    small = os.path.join(SAMPLES, "dcp_small")
    for args, status, out, err in (
        ((), 2, "Commands", ""),
        (("help",), 0, "Examples", ""),
        (("--version",), 0, r"^tessera \d+\.\d+\.\d+\n", ""),
        (("inspekt",), 2, "^$", "did you mean 'inspect'"),
        (("help", "vaildate"), 2, "^$", "did you mean 'validate'"),
        (("inspect",), 2, "^$", "inspect needs PATH"),
        (("inspect", small, "--jsn"), 2, "^$", "did you mean --json"),
        (("inspect", small, "--hash", "md5"), 2, "^$", r"--hash takes sha256\|xxh3, not 'md5'"),
        (("inspect", small, "--hash"), 2, "^$", "--hash needs a value"),
        (("inspect", small, "--json=yes"), 2, "^$", "takes no value"),
        (("inspect", small, small), 2, "^$", "unexpected argument"),
        (("inspect", "absent"), 2, "^$", "cannot open 'absent': No such file"),
        (("inspect", "http://127.0.0.1:1/x"), 2, "^$", "127.0.0.1:1"),
        (("diff", small), 2, "^$", "diff needs A B"),
        (("diff", small, small, "--atol", "-1"), 2, "^$", "number of 0 or more"),
        (("convert", small, "x", "--max-shard-size", "5 pounds"), 2, "^$", "takes a size"),
        (("convert", small, "x", "--max-shard-size", "0"), 2, "^$", "takes a size .*not '0'"),
        (("convert", small, "x.pt", "--max-mem", "0.5B"), 2, "^$", "takes a size .*not '0.5B'"),
        (("doctor", "absent"), 2, "^$", "'absent': No such file"),
        (("plan", small, "--mesh", "dp=2", "--placements", ""), 2, "^$", "unknown placement ''"),
        (("explain", "layout/hol"), 2, "^$", "did you mean 'layout/hole'"),
        (("explain", "layout/hole"), 0, "not covered by any chunk", ""),
        (("validate", "--list-rules"), 0, r"zip/crc +error", ""),
        (("validate",), 2, "^$", "validate needs PATH"),
        (("--versoin",), 2, "^$", "there is no option --versoin; did you mean --version"),
        (("--quiet", "inspect", small), 2, "^$", "the command must come first"),
        (("map", "lst"), 2, "^$", "map takes list, show or suggest, not 'lst'; did you mean 'list'"),
        (("map", "list", "--values"), 2, "^$", "--values can only be used with map suggest"),
        (("map", "show"), 2, "^$", "map show needs NAME"),
        (("map", "show", "meta-lama"), 2, "^$", "did you mean 'meta-llama'"),
        (("map", "list", "all"), 2, "^$", "unexpected argument 'all'"),
        (("map", "suggest", small), 2, "^$", "map suggest needs A B"),
        (("completions", "bash", "zsh"), 2, "^$", "unexpected argument 'zsh'"),
        (("view", small, "--port", "65536"), 2, "^$", "from 1 to 65535, not '65536'"),
        (("inspect", ""), 2, "^$", "^tessera: cannot open ''"),
    ):
        p = t.run(*args, status=status)
        need(re.search(out, p.stdout.decode(), re.M), f"`tessera {' '.join(args)}` prints {p.stdout[:200]}")
        need(re.search(err, p.stderr.decode()), f"`tessera {' '.join(args)}` says {p.stderr[:200]}")


@test
def test_help_of_every_command_has_examples_first(t):
    names = re.findall(r"^  (\w+) +\w", t.text("help").split("Commands\n")[1], re.M)
    need(len(names) >= 8, f"commands: {names}")
    for name in names:
        for args in ((name, "--help"), ("help", name), (name, "-h")):
            text = t.text(*args)
            need(text.index("Examples") < text.index("Usage"), f"{args}: examples do not stand first")


@test
def test_help_has_one_form(t):
    """Summaries and the explanations of examples and options are imperatives, with a capital letter and no full stop."""
    overview = t.text("help", env={"COLUMNS": "400"})
    for name, summary in re.findall(r"^  (\w+) +(\w.*)", overview.split("Commands\n")[1], re.M):
        text = t.text("help", name, env={"COLUMNS": "400"})
        need(text.startswith(summary + "\n"), f"help {name} does not begin with its summary")
        explained = re.findall(r"^      (?! )(.*)", text.split("Usage\n")[0], re.M)
        options = re.findall(r"^  (?:-\w, |    )--[^\n]*?(?:  |\n {10,})(\S[^\n]*)", text.split("Usage\n")[1], re.M)
        need(explained and len(options) >= 7, f"help {name}: {len(explained)} examples, {len(options)} options")
        for line in [summary, *explained, *options]:
            need(re.match(r"[A-Z][a-z]+\b", line) and not line.endswith("."), f"help {name}: {line!r}")


@test
def test_commands_and_options_in_the_readme_exist(t):
    with open(os.path.join(SAMPLES, "../../README.md")) as f:
        used = re.findall(r"\btessera ([a-z]+)((?: [^\n#&|]*)?)", "\n".join(re.findall(r"^    .*tessera .*", f.read(), re.M)))
    need(len({command for command, _ in used}) >= 12, f"the README shows {len(used)} commands")
    for command, rest in used:
        known = set(re.findall(r"(?<![\w-])--?[\w-]+", t.text("help", command)))
        missing = set(re.findall(r"(?<= )--?[a-z][\w-]*", rest)) - known
        need(not missing, f"the README uses tessera {command} with {missing}")


@test
def test_colors(t):
    path = os.path.join(SAMPLES, "dcp_small")
    need(b"\x1b[" not in t.run("inspect", path).stdout, "colors without a terminal")
    need(b"\x1b[" in t.run("inspect", path, "--color", "always").stdout, "--color always gives none")
    need(b"\x1b[" not in t.run("inspect", path, "--color=never").stdout, "--color never gives some")


@test
def test_output_that_cannot_be_written(t):
    with open("/dev/full", "w") as full:
        p = subprocess.run([t.path, "inspect", os.path.join(SAMPLES, "dcp_small"), "--json"], stdout=full, stderr=subprocess.PIPE)
    need(p.returncode == 2 and p.stderr == b"tessera: cannot write to standard output: No space left on device\n", f"ended {p.returncode}: {p.stderr[:200]}")
    said = t.run("layout", sample("dcp_fsdp2")[0], "-o", "/dev/full", status=2).stderr
    need(said == b"tessera: cannot write the output: No space left on device\n", said)
    for command in (("help",), ("layout", sample("dcp_fsdp2")[0])):
        p = subprocess.run(["bash", "-c", '"$@" >&-', "bash", t.path, *command], stderr=subprocess.PIPE)
        need(p.returncode == 2 and p.stderr == b"tessera: cannot write to standard output: Bad file descriptor\n", f"{command}: {p.returncode}: {p.stderr}")


# ---- commands ----


@test
def test_include_and_exclude(t):
    path, want = sample("dcp_fsdp2")
    names = lambda *args: {e["fqn"] for e in t.json("inspect", path, "--json", *args)["entries"]}
    everything = names()
    weights = names("--include", "**.weight")
    need(weights and weights == {n for n in everything if n.endswith(".weight")}, f"**.weight gives {weights}")
    need(names("--exclude", "**.weight") == everything - weights, "--exclude **.weight")
    need(names("--include", "**", "--exclude", "**") == set(), "exclude does not beat include")


@test
def test_digests_do_not_depend_on_the_container(t):
    path, want = sample("dcp_fsdp2")
    t.run("convert", path, t.at("m.safetensors"), "--objects", "drop", "-q")
    digests = lambda p, a: {e["fqn"]: e["hash"]["digest"] for e in t.json("inspect", p, "--json", "--hash", a)["entries"] if e["kind"] == "tensor"}
    for algorithm in ("sha256", "xxh3"):
        need(digests(path, algorithm) == digests(t.at("m.safetensors"), algorithm), f"{algorithm} differs")


@test
def test_stats(t):
    st_write(t.at("x.safetensors"), {"x": ("F32", [5], struct.pack("<5f", 1, -3, float("nan"), float("inf"), 0)), "none": ("I64", [0], b"")})
    rows = {e["fqn"]: e for e in t.json("inspect", t.at("x.safetensors"), "--json", "--stats")["entries"]}
    s = rows["x"]["stats"]
    need((s["min"], s["max"], s["nan"], s["inf"], s["zero"]) == (-3, 1, 1, 1, 1), s)
    need(abs(s["mean"] + 2 / 3) < 1e-12 and abs(s["std"] - 2.0816659994661326) < 1e-12, s)  # statistics.stdev([1, -3, 0])
    need("-0.66667" in t.text("inspect", t.at("x.safetensors"), "--stats"), "the text lacks the mean")


@test
def test_names_cannot_drive_the_terminal(t):
    st_write(t.at("x.safetensors"), {"a\x1b[31mred\r\n\u202e\u0085.b": ("U8", [1], b"\0"), "": ("U8", [1], b"\0")})
    for args in ((), ("--tree",), ("--stats",)):
        out = t.text("inspect", t.at("x.safetensors"), *args)
        need("\\x1b" in out and "\u202e" not in out and "\u0085" not in out, out)
    t.text("get", t.at("x.safetensors"), "nowhere", status=2)


@test
def test_layers_fold_and_odd_ones_stand_out(t):
    tensors = {f"h.{i}.w": ("F32", [2, 3] if i != 2 else [2, 4], bytes(24 if i != 2 else 32)) for i in range(12)}
    st_write(t.at("x.safetensors"), tensors)
    table, tree = t.text("inspect", t.at("x.safetensors")), t.text("inspect", t.at("x.safetensors"), "--tree")
    need(re.search(r"h\.\{0,1,3-11\}\.w +×11 +float32 +\[2, 3\] +264 B", table), table)
    need(re.search(r"^h\.2\.w +float32 +\[2, 4\] +32 B", table, re.M), table)
    need(re.search(r"2\.w +32 B .*unlike its siblings", tree), tree)


@test
def test_layout_is_a_contract(t):
    path, _ = sample("dcp_fsdp2")
    t.run("layout", path, "-o", t.at("layout.json"))
    t.run("layout", path, "-o", t.at("loose.json"), "--no-chunks")
    doc = json.load(open(t.at("layout.json")))
    need([e["fqn"] for e in doc["entries"]] == sorted(e["fqn"] for e in doc["entries"]), "not sorted")
    need(not any("chunks" in e for e in json.load(open(t.at("loose.json")))["entries"]), "--no-chunks has chunks")
    t.run("validate", path, "--layout", t.at("layout.json"))
    t.run("convert", path, t.at("m.safetensors"), "--objects", "drop", "-q")
    rules = lambda p, f: {f["rule"] for f in t.json("validate", p, "--layout", f, "--json", status=(0, 1))["findings"] if f["level"] == "error"}
    need("layout/chunks" in rules(t.at("m.safetensors"), t.at("layout.json")), "another sharding is not a finding")
    need("layout/chunks" not in rules(t.at("m.safetensors"), t.at("loose.json")), "chunks counted without chunks")
    victim = next(e for e in doc["entries"] if e["kind"] == "tensor" and e["shape"])
    victim["shape"][0] += 1
    victim.pop("chunks", None)
    doc["entries"].append({"fqn": "brand.new", "kind": "object"})
    json.dump(doc, open(t.at("other.json"), "w"))
    need({"layout/shape", "layout/missing-entry"} <= rules(path, t.at("other.json")), rules(path, t.at("other.json")))


@test
def test_layout_refuses_other_documents(t):
    path, _ = sample("dcp_small")
    for text, message in (("{}", "schema"), ('{"schema":"x","entries":[]}', "tessera.layout/1"), ("[1", "json"),
                          ('{"schema":"tessera.layout/1","entries":[{"fqn":"a","kind":"blob"}]}', "kind 'blob'"),
                          ('{"schema":"tessera.layout/1","entries":[{"fqn":"a","kind":"tensor","dtype":"float33","shape":[1]}]}', "float33"),
                          ('{"schema":"tessera.layout/1","entries":[{"fqn":"a","kind":"tensor","dtype":"float32","shape":[1,2],"chunks":[{"offsets":[0],"sizes":[1]}]}]}', "2 dimensions")):
        open(t.at("l.json"), "w").write(text)
        p = t.run("validate", path, "--layout", t.at("l.json"), status=2)
        need(message in p.stderr.decode(), f"{text}: {p.stderr}")


@test
def test_validate_several_paths_in_every_format(t):
    good, bad, gone = sample("dcp_small")[0], sample("broken_dcp_hole")[0], t.at("gone")
    doc = t.json("validate", good, bad, "--json", status=1)
    need(doc["summary"]["paths"] == 2 and {f["path"] for f in doc["findings"] if f["level"] == "error"} == {bad}, doc["summary"])
    for paths, end in (((good, gone), "2 paths, of which 1 could not be checked: no findings\n"), ((gone, t.at("away")), "2 paths, of which 2 could not be checked\n")):
        need(t.text("validate", *paths, status=2).endswith(end), f"{paths}: not {end!r}")
    t.run("validate", good, bad, gone, status=2)
    need("layout/hole" in t.text("validate", bad, status=1), "text")
    need(re.search(r"^::error file=.*,title=layout/hole::", t.run("validate", bad, "--format", "github", status=1).stdout.decode(), re.M), "github")
    sarif = json.loads(t.run("validate", bad, "--format", "sarif", status=1).stdout)
    need(sarif["version"] == "2.1.0" and any(r["ruleId"] == "layout/hole" for r in sarif["runs"][0]["results"]), "sarif")
    gitlab = json.loads(t.run("validate", bad, "--format", "gitlab", status=1).stdout)
    need(all({"description", "check_name", "fingerprint", "severity", "location"} <= set(g) for g in gitlab) and gitlab, "gitlab")
    import xml.etree.ElementTree as xml
    junit = xml.fromstring(t.run("validate", good, bad, gone, "--format", "junit", status=2).stdout)
    need(junit.tag == "testsuite" and len(junit) == 3 and junit.find(".//failure") is not None and junit.find(".//error") is not None, "junit")
    need([junit.get(k) for k in ("tests", "failures", "errors")] == ["3", "1", "1"], junit.attrib)


@test
def test_fail_on(t):
    path, _ = sample("dcp_crc_off")  # only a note
    t.run("validate", path, "--deep")
    t.run("validate", path, "--deep", "--fail-on", "warning")
    t.run("validate", path, "--deep", "--fail-on", "note", status=1)


@test
def test_diff(t):
    f = lambda *v: struct.pack(f"<{len(v)}f", *v)
    a = {"w": ("F32", [2, 2], f(1, 2, 3, 4)), "gone": ("I8", [3], b"abc"), "n": ("F32", [1], f(float("nan")))}
    b = {"w": ("F32", [2, 2], f(1, 2, 3, 4.5)), "came": ("F64", [1], bytes(8)), "n": ("F32", [1], f(float("nan")))}
    st_write(t.at("a.safetensors"), a)
    st_write(t.at("b.safetensors"), b)
    run = lambda *args, **k: t.json("diff", t.at("a.safetensors"), t.at("b.safetensors"), "--json", *args, **k)
    doc = run(status=1)
    need((doc["added"], doc["removed"], doc["changed"], doc["same"]) == (["came"], ["gone"], [], False), doc)
    doc = run("--values", status=1)
    c = doc["changed"]
    need(len(c) == 1 and c[0]["fqn"] == "w" and c[0]["what"] == ["value"] and c[0]["differing"] == 1 and c[0]["max_abs"] == 0.5, c)
    need(run("--atol", "0.5", status=1)["changed"] == [], "--atol")
    need(run("--rtol", "0.2", status=1)["changed"] == [], "--rtol")
    text = t.text("diff", t.at("a.safetensors"), t.at("b.safetensors"), "--values", status=1)
    need("- gone" in text and "+ came" in text and re.search(r"~ w +1 of 4 values differ, by at most 0.5", text), text)
    t.run("diff", t.at("a.safetensors"), t.at("a.safetensors"), "--values", "--layout")
    t.run("diff", t.at("a.safetensors"), t.at("absent"), status=2)


@test
def test_diff_across_shardings_and_containers(t):
    path, _ = sample("dcp_fsdp2")
    t.run("convert", path, t.at("m.safetensors"), "--objects", "drop", "-q")
    doc = t.json("diff", path, t.at("m.safetensors"), "--values", "--json", status=(0, 1))
    need(doc["changed"] == [] and doc["added"] == [], "values differ")
    doc = t.json("diff", path, t.at("m.safetensors"), "--layout", "--json", status=1)
    need(any(c["what"] == ["layout"] for c in doc["changed"]), "no layout change")


@test
def test_diff_canonical(t):
    x = ("U8", [1], b"x")
    st_write(t.at("a.safetensors"), {"module.w": x, "module.sub._checkpoint_wrapped_module.w": x})
    st_write(t.at("b.safetensors"), {"w": x, "sub.w": x})
    t.run("diff", t.at("a.safetensors"), t.at("b.safetensors"), status=1)
    t.run("diff", t.at("a.safetensors"), t.at("b.safetensors"), "--canonical", "--values")


@test
def test_get(t):
    raw = struct.pack("<24h", *range(24))
    st_write(t.at("x.safetensors"), {"a": ("I16", [2, 3, 4], raw), "odd[0]": ("I16", [1], raw[:2]), "b": ("BF16", [2], raw[:4]), "s": ("I16", [], raw[2:4])})
    x = t.at("x.safetensors")
    for slice_, values, shape in (("", list(range(24)), (2, 3, 4)), ("[1]", list(range(12, 24)), (3, 4)), ("[0:1,:,3]", [3, 7, 11], (1, 3)),
                                  ("[-1,-2:,0]", [16, 20], (2,)), ("[...,1:2]", [1, 5, 9, 13, 17, 21], (2, 3, 1)), ("[1,2,3]", [23], ()),
                                  ("[:,5:,:]", [], (2, 0, 4)), ("[:, 1]", [4, 5, 6, 7, 16, 17, 18, 19], (2, 4))):
        t.run("get", x, "a" + slice_, "-o", t.at("o.npy"))
        head, data = npy_read(t.at("o.npy"))
        need(head == {"descr": "<i2", "fortran_order": False, "shape": shape}, f"{slice_}: {head}")
        need(list(struct.unpack(f"<{len(data) // 2}h", data)) == values, f"{slice_}: {data}")
        t.run("get", x, "a" + slice_, "-o", t.at("o.bin"))
        need(open(t.at("o.bin"), "rb").read() == data, f"{slice_}: .bin differs")
    need(t.text("get", x, "a[0,:2,:3]") == "[[0 1 2]\n [4 5 6]]\n", t.text("get", x, "a[0,:2,:3]"))
    need(t.text("get", x, "s") == "1\n" and t.text("get", x, "odd[0]") == "[0]\n" and t.text("get", x, "odd[0][0]") == "0\n", "0-d, or a name with brackets")
    for args, message in ((("a[2]",), "beyond its size 2"), (("a[x]",), "not an index of dim 0"), (("a[0,0,0,0]",), "4 indices"), (("a[::2]",), "not an index"),
                          (("c",), "no entry 'c'"), (("b", "-o", t.at("b.npy")), "NumPy has no dtype for bfloat16"), (("a", "-o", t.at("a.txt")), "name it .npy")):
        p = t.run("get", x, *args, status=2)
        need(message in p.stderr.decode(), p.stderr)
    need(not os.path.exists(t.at("b.npy")), "a refused output was left")
    for name, message in (("emb.weight[0]", "no entry 'emb.weight'; did you mean 'model.emb.weight'?"), ("weight", "no entry 'weight'; `tessera inspect` lists them"),
                          ("model.emb.wieght", "no entry 'model.emb.wieght'; did you mean 'model.emb.weight'?"), ("nope", "no entry 'nope'; `tessera inspect` lists them"), ("[0]", "the name of the entry is missing")):
        p = t.run("get", sample("torch_train_state")[0], name, status=2)  # several names end in ".weight"
        need(message in p.stderr.decode(), p.stderr)


def npy_read(path):
    data = open(path, "rb").read()
    need(data[:8] == b"\x93NUMPY\1\0", data[:8])
    size = 10 + struct.unpack("<H", data[8:10])[0]
    need(size % 64 == 0 and data[size - 1:size] == b"\n", "the header is not aligned")
    return eval(data[10:size], {}), data[size:]


@test
def test_get_across_chunks(t):
    path, want = sample("dcp_fsdp2")
    name, w = next((k, w) for k, w in want["entries"].items() if len(w.get("chunks", ())) > 1 and len(w["shape"]) == 2)
    rows, columns = w["shape"]
    t.run("get", path, name, "-o", t.at("whole.bin"))
    whole = open(t.at("whole.bin"), "rb").read()
    item = len(whole) // (rows * columns)
    t.run("get", path, f"{name}[:,1:3]", "-o", t.at("part.bin"))
    need(open(t.at("part.bin"), "rb").read() == b"".join(whole[(r * columns + 1) * item:(r * columns + 3) * item] for r in range(rows)), "columns 1 to 3")


@test
def test_convert_refuses_and_replaces(t):
    path, want = sample("dcp_small")
    out = t.at("m.safetensors")
    p = t.run("convert", path, out, status=2)
    need(b"step" in p.stderr and not os.path.exists(out), f"objects are not refused by name: {p.stderr}")
    doc = t.json("convert", path, out, "--objects", "drop", "--json", "--dry-run")
    need(doc["dry_run"] and not os.path.exists(out), "--dry-run wrote")
    p = t.run("convert", path, t.at("absent", "m.safetensors"), "--objects", "drop", "--dry-run", status=2)
    need(b"'" + t.at("absent").encode() in p.stderr, p.stderr)
    doc = t.json("convert", path, out, "--objects", "drop", "--json")
    need([e["fqn"] for e in doc["entries"] if "left_out" in e] == ["step"] and doc["summary"]["tensors"] == 2, doc)
    p = t.run("convert", path, out, "--objects", "drop", status=2)
    need(b"exists" in p.stderr, p.stderr)
    before = open(out, "rb").read()
    for args in ((path, out, "--objects", "drop"), (path, path, "--to", "dcp"), (path, out, "--to", "dcp", "--overwrite"), (out, out, "--overwrite")):
        said = [t.run("convert", *args, *more, status=2).stderr for more in ((), ("--dry-run",))]
        need(said[0] == said[1], f"a dry run says what the run does not: {said}")
        need("dcp" not in args or out not in args or b"exists and is a file, but a directory would be written" in said[0], said[0])
    t.run("convert", path, out, "--objects", "drop", "--overwrite", "-q")
    need(open(out, "rb").read() == before, "the same conversion gave other bytes")
    p = t.run("convert", path, os.path.join(path, "x.safetensors"), "--objects", "drop", status=2)
    need(b"inside the source" in p.stderr, p.stderr)
    need(os.listdir(t.directory) == ["m.safetensors"], os.listdir(t.directory))
    p = t.run("convert", path, t.at("x.unknown"), status=2)
    need(b"--to" in p.stderr, p.stderr)


@test
def test_convert_refuses_damaged_tensors_before_it_writes(t):
    for name in ("broken_dcp_hole", "broken_dcp_overlap", "broken_dcp_missing_file", "broken_dcp_truncated"):
        for to in ("safetensors", "dcp", "torch"):
            args = ("convert", sample(name)[0], t.at("out"), "--to", to, "--objects", "drop")
            said = [t.run(*args, *more, status=2).stderr for more in ((), ("--dry-run",))]
            need(said[0] == said[1] and (b"missing" in said[0] or b"do not tile" in said[0]), f"{name} to {to}: {said}")
            need(os.listdir(t.directory) == [], f"{name} to {to}: {os.listdir(t.directory)} was written")


@test
def test_a_plan_that_would_be_refused_warns(t):
    """Of bytes that are missing. Where none is needed, nothing is said."""
    for name in ("broken_dcp_missing_file", "broken_dcp_truncated"):
        path = sample(name)[0]
        gone, here = ([e["fqn"] for e in t.json("inspect", path, "--json")["entries"] if e["kind"] == "tensor" and all(c.get("file") for c in e["chunks"]) == whole] for whole in (False, True))
        for target in (["--to", "dcp"], ["--mesh", "dp=2", "--placements", "shard(0)"], ["--to", "torch", "--json"]):
            said = t.run("plan", path, *target).stderr
            need(said.count(b"warning") == 1 and b"are missing" in said, f"{name} {target}: {said}")
            quiet = [t.run("plan", path, *target, "--include", fqn).stderr for fqn in here]
            need(not any(quiet) and len(gone) + len(here) > 0, f"{name} {target}: {quiet}")


@test
def test_convert_says_what_was_wrong_with_the_source(t):
    for name, status, part in (("broken_torch_call", 0, b"warning: model.pt: loading this file with pickle would call os.system"),
                               ("broken_safetensors_trailing_bytes", 0, b"(safetensors/trailing-bytes)"),
                               ("broken_index_missing_file", 2, b"'emb.weight' is not in any of the files")):
        p = t.run("convert", os.path.join(SAMPLES, name), t.at(name), "--to", "torch", status=status)
        need(part in p.stderr and os.path.exists(t.at(name)) == (status == 0), (name, p.stderr))


@test
def test_convert_shards_renames_and_sidecar(t):
    path, want = sample("dcp_fsdp2")
    doc = t.json("convert", path, t.at("hf"), "--to", "safetensors", "--max-shard-size", "1KB", "--objects", "sidecar", "--rename", "model.=net.", "--json")
    need(len(doc["files"]) > 2, doc["files"])
    need(os.path.exists(t.at("hf", "model.safetensors.index.json")), os.listdir(t.at("hf")))
    json.load(open(t.at("hf", "objects.json")))
    got = t.json("inspect", t.at("hf"), "--json", "--hash", "sha256")
    names = {e["fqn"]: e["hash"]["digest"] for e in got["entries"]}
    need(names == {re.sub(r"^model\.", "net.", k): w["sha256"] for k, w in want["entries"].items()}, "names or bytes differ")
    open(t.at("hf", "notes.txt"), "w").write("mine")
    t.run("convert", path, t.at("hf"), "--to", "safetensors", "--max-shard-size", "1MB", "--objects", "drop", "--overwrite", "-q")
    files = sorted(os.listdir(t.at("hf")))
    need("notes.txt" in files and len([f for f in files if f.endswith(".safetensors")]) == 1 and "model.safetensors.index.json" in files, files)
    need(len(t.json("inspect", t.at("hf"), "--json")["entries"]) == len(want["entries"]), "the replaced checkpoint is not whole")


@test
def test_a_sidecar_without_objects_is_not_written(t):
    path = sample("torch_train_state")[0]
    for include, has_objects in (("**", True), ("**.param_groups.**", True), ("**.weight", False)):
        doc = t.json("convert", path, t.at("one.safetensors"), "--objects", "sidecar", "--include", include, "--include", "**.weight", "--json")
        aside = [e["fqn"] for e in doc["entries"] if e.get("left_out") == "written to the sidecar"]
        sidecar = t.at("one.safetensors.objects.json")
        need(bool(aside) == os.path.exists(sidecar) == has_objects != any("objects.json is not written" in w for w in doc["warnings"]), (include, doc))
        need(not aside or [o["fqn"] for o in json.load(open(sidecar))["objects"]] == aside, (include, aside))
        os.remove(t.at("one.safetensors"))
        if aside:
            os.remove(sidecar)


@test
def test_replacing_a_dcp_directory(t):
    first, second = sample("torch_train_state")[0], sample("dcp_fsdp2")
    t.run("convert", first, t.at("d"), "--to", "dcp", "-q")
    t.run("convert", second[0], t.at("d"), "--to", "dcp", status=2)
    t.run("convert", second[0], t.at("d"), "--to", "dcp", "--overwrite", "-q")
    need(sorted(os.listdir(t.at("d"))) == [".metadata", "__0_1.distcp"], os.listdir(t.at("d")))
    t.run("diff", second[0], t.at("d"), "--values")
    t.run("validate", t.at("d"), "--deep", "--fail-on", "warning")


@test
def test_round_trips(t):
    path, want = sample("dcp_fsdp2")
    t.run("convert", path, t.at("m.pt"), "-q")
    t.run("convert", t.at("m.pt"), t.at("d"), "--to", "dcp", "-q")
    for made in ("m.pt", "d"):
        t.run("diff", path, t.at(made), "--values")
        t.run("validate", "--deep", t.at(made))


@test
def test_reshard(t):
    path, want = sample("dcp_fsdp2")
    for to, form in (("dcp", "dcp"), ("torch", "torch-ranks"), ("safetensors", "dcp-safetensors")):
        extra = ["--objects", "drop"] if to == "safetensors" else []
        doc = t.json("reshard", path, t.at(to), "--mesh", "dp=3", "--placements", "shard(0)", "--to", to, "--json", *extra)
        need(doc["summary"]["tensors"] == len(want["entries"]), doc["summary"])
        got = t.json("inspect", t.at(to), "--json", "--hash", "sha256")
        need(got["format"] == form, got["format"])
        digests = {e["fqn"]: e["hash"]["digest"] for e in got["entries"] if e["kind"] == "tensor"}
        need(digests == {k: w["sha256"] for k, w in want["entries"].items()}, f"--to {to}: other bytes")
        t.run("validate", "--deep", t.at(to))
        t.run("reshard", path, t.at(to), "--mesh", "dp=3", "--placements", "shard(0)", "--to", to, *extra, status=2)
    wide = next(e for e in t.json("inspect", t.at("dcp"), "--json")["entries"] if e["shape"] and e["shape"][0] > 3)
    need(all(c["sizes"][0] <= -(-wide["shape"][0] // 3) for c in wide["chunks"]), wide["chunks"])
    for to, extra in (("torch", ()), ("safetensors", ("--objects", "drop"))):
        again = ("reshard", path, t.at(to), "--mesh", "2", "--placements", "shard(0)", "--to", to, "--overwrite", "-q", *extra)
        open(t.at(to, "notes.txt"), "w").write("mine")
        t.run(*again)
        need("notes.txt" in os.listdir(t.at(to)) and len(os.listdir(t.at(to))) == 3, os.listdir(t.at(to)))
        t.run("diff", path, t.at(to), "--values", status=1 if extra else 0)
        os.mkdir(t.at(to, "directory"))
        p = t.run(*again, status=2)
        need(b"contains the directory 'directory'" in p.stderr, p.stderr)
        need(not [f for f in os.listdir(t.directory) if f.startswith(".")], os.listdir(t.directory))
    t.run("reshard", path, t.at("dcp"), "--mesh", "2", "--placements", "shard(0)", "--overwrite", "-q")
    t.run("diff", path, t.at("dcp"), "--values")
    need(not os.path.exists(t.at("none")), "")
    t.run("reshard", path, t.at("none"), "--mesh", "2", "--placements", "shard(0)", "--dry-run", "-q")
    need(not os.path.exists(t.at("none")), "--dry-run wrote")


@test
def test_output_is_the_same_for_any_number_of_threads(t):
    path, _ = sample("torch_train_state")
    for to in ("dcp", "torch", "safetensors"):
        made = []
        for threads in (1, 4):
            out = t.at(f"{to}{threads}")
            t.run("convert", path, out, "--to", to, "--threads", threads, "-q", *(["--objects", "drop"] if to == "safetensors" else []))
            files = [out] if os.path.isfile(out) else [os.path.join(out, f) for f in sorted(os.listdir(out))]
            made.append([open(f, "rb").read() for f in files])
        need(made[0] == made[1], f"--to {to}: bytes depend on the number of threads")


@test
def test_doctor(t):
    doc = t.json("doctor", "--json")
    need(doc["program"]["crc32"] and doc["machine"]["threads"] >= 1, doc)
    need(("reason" in doc["cuda"]) == (doc["cuda"]["devices"] == 0), doc["cuda"])
    text = t.text("doctor", t.directory)
    need("file_system" in text, "the text lacks the file system")
    need(re.search(r"^  memory +\d.* [KMGT]iB$", text, re.M) and "bytes" not in text, "amounts of memory have their unit in the value, not in the name")


@test
def test_a_listing_is_quick_and_small(t):
    import resource
    path = os.path.join(SAMPLES, "dcp_small")
    t.run("inspect", path)
    usage = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        t.run("inspect", path)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        usage.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    need(min(usage) < 0.1, f"{min(usage):.3f} s of CPU")  # finds only gross mistakes; tests/bench measures


@test
def test_fqn_against(t):
    path, want = sample("dcp_small")
    names = [e["fqn"] for e in t.json("inspect", path, "--json")["entries"]]
    t.run("convert", path, t.at("moved"), "--to", "dcp", "--rename", "=net.")
    doc = t.json("fqn", "--checkpoint", path, "--against", t.at("moved"), "--json")["against"]
    need(doc["renames"] == [{"rename": "=net.", "names": len(names)}] and not doc["missing"] and not doc["unexpected"], doc)
    need([p["to"] for p in doc["pairs"]] == ["net." + n for n in names], doc["pairs"])
    need("--rename '=net.'" in t.text("fqn", "--checkpoint", path, "--against", t.at("moved")), "no rename in the text")
    need(t.json("fqn", "--checkpoint", path, "--against", path, "--json")["against"]["renames"] == [], "renames for equal names")
    need(b"needs --checkpoint" in t.run("fqn", "--against", path, status=2).stderr, "--against alone")
    need(b"nosuch" in t.run("fqn", "--checkpoint", path, "--against", t.at("nosuch"), status=2).stderr, "a missing path")


@test
def test_fqn_prefix(t):
    """Keys with the prefix are judged on their own: a sibling without it does not make a wrapper's component stay."""
    x = ("U8", [1], b"x")
    st_write(t.at("a.safetensors"), {"model.module.w": x, "model.module.b": x, "ema.module.w": x, "modelled": x})
    doc = t.json("fqn", "--checkpoint", t.at("a.safetensors"), "--prefix", "model.", "--json")
    need({n["raw"]: n["fqns"] for n in doc["names"]} == {"module.w": ["w"], "module.b": ["b"]}, doc["names"])
    need(t.json("fqn", "--checkpoint", t.at("a.safetensors"), "--prefix", "none.", "--json")["names"] == [], "names without the prefix")
    st_write(t.at("b.safetensors"), {"w": x, "b": x})
    doc = t.json("fqn", "--checkpoint", t.at("a.safetensors"), "--prefix", "model.", "--against", t.at("b.safetensors"), "--json")["against"]
    need(sorted((p["from"], p["to"]) for p in doc["pairs"]) == [("module.b", "b"), ("module.w", "w")] and not doc["missing"] and not doc["unexpected"], doc)
    need(b"--prefix needs --checkpoint" in t.run("fqn", t.at("m.json"), "--prefix", "model.", status=2).stderr, "--prefix alone")
    for option in (("--part", "model"), ("--step", "latest"), ("--also", t.at("b")), ("--shards", "vllm"), ("--salvage",)):
        need(b"need --checkpoint" in t.run("fqn", t.at("m.json"), *option, status=2).stderr, f"{option} alone")


@test
def test_optim_there_and_back(t):
    """From nested to flat state and back; also ids. Missing and unknown names are reported."""
    path, want = sample("dcp_fsdp2")
    doc = t.json("optim", "flatten", path, t.at("flat.pt"), "--json")
    names = {e["fqn"] for e in t.json("inspect", t.at("flat.pt"), "--json")["entries"]}
    nested = {n[len("optim."):] for n in want["entries"] if n.startswith("optim.state.")}
    need(doc["action"] == "flatten" and doc["files"] == 1 and nested <= names, nested - names)
    p = t.run("optim", "unflatten", t.at("flat.pt"), t.at("nested.pt"))
    need(p.stderr.startswith(f"wrote {t.at('nested.pt')}: ".encode()) and b" in 1 file; " in p.stderr, p.stderr)
    p = t.run("optim", "flatten", t.at("nested.pt"), t.at("again.pt"), "-q")
    need(not p.stderr, p.stderr)
    t.run("diff", t.at("flat.pt"), t.at("again.pt"), "--values")
    digests = {e["fqn"]: e["hash"]["digest"] for e in t.json("inspect", t.at("nested.pt"), "--json", "--hash", "sha256")["entries"] if e["kind"] == "tensor"}
    need(digests == {n[len("optim."):]: w["sha256"] for n, w in want["entries"].items() if n.startswith("optim.state.")}, "other bytes after a round trip")
    for args, part in ((("flaten", path, t.at("x.pt")), "did you mean 'flatten'"), (("shard", path, t.at("x")), "--flat-params"), (("to-fqn", path, t.at("x.pt")), "--modules"),
                       (("flatten", path, t.at("x.pt"), "--at", "nosuch"), "no 'nosuch'"), (("shard", path, t.at("x"), "--sharded"), "--sharded can only be used with optim unshard"),
                       (("flatten", path, t.at("x.pt"), "--world-size", 2), "--world-size can only be used with optim shard"),
                       (("flatten", path, t.at("flat.pt")), "exists")):
        need(part in t.run("optim", *args, status=2).stderr.decode(), f"optim {args[0]}: no '{part}'")
    need(sorted(os.listdir(t.directory)) == ["again.pt", "flat.pt", "nested.pt"], os.listdir(t.directory))


@test
def test_optim_shards_of_flat_parameters(t):
    """A DCP's optimizer state becomes the raw states of FSDP1 ranks, and those become the full and the sharded state without
    any loss."""
    path, want = sample("dcp_fsdp2")
    state = {n[len("optim.state."):]: w for n, w in want["entries"].items() if n.startswith("optim.state.")}
    shapes = {n[:-len(".exp_avg")]: w["shape"] for n, w in state.items() if n.endswith(".exp_avg")}
    volume = lambda shape: shape[0] * volume(shape[1:]) if shape else 1
    for orig, groups in ((False, None), (True, None), (False, [[0, 1], [2, 3]])):
        world = 4 if groups else 3
        unit = {"fsdp_module": "", "raw_name": "_flat_param", "params": [{"fqn": n, "shape": s} for n, s in shapes.items()],
                "numels_with_padding": [volume(s) for s in shapes.values()], "is_padding_mask": [False] * len(shapes),
                "sharding_strategy": "HYBRID_SHARD" if groups else "FULL_SHARD"}
        doc = {"schema": "tessera.flat-params/1", "world_size": world, "use_orig_params": orig, "files": [f"r{i}.pt" for i in range(world)],
               "units": [unit], "param_groups": [list(shapes) if orig else ["_flat_param"]], **({"shard_groups": groups} if groups else {})}
        wrong = list(schema.problems(doc, SCHEMAS["tessera.flat-params/1"]))
        need(not wrong, wrong)
        with open(t.at("flat.json"), "w") as f:
            json.dump(doc, f)
        at = lambda name: t.at(f"{name}-{orig}-{world}")
        t.run("optim", "shard", path, at("ranks"), "--flat-params", t.at("flat.json"))
        need(sorted(os.listdir(at("ranks"))) == doc["files"], os.listdir(at("ranks")))
        t.run("optim", "unshard", at("ranks"), at("full.pt"), "--flat-params", t.at("flat.json"))
        t.run("optim", "unshard", at("ranks"), at("rows"), "--flat-params", t.at("flat.json"), "--sharded")
        for result in ("full.pt", "rows"):
            got = {e["fqn"]: e["hash"]["digest"] for e in t.json("inspect", at(result), "--json", "--hash", "sha256")["entries"] if e["kind"] == "tensor"}
            need(got == {"state." + n: w["sha256"] for n, w in state.items()}, f"{result} of orig={orig}, {world} ranks")
        t.run("validate", at("rows"), "--deep")
        for name, again in (("ranks", ("shard", path)), ("rows", ("unshard", at("ranks"), "--sharded"))):
            was = sorted(os.listdir(at(name)))
            open(at(name) + "/rank_notes.pt", "w").write("mine")
            p = t.run("optim", again[0], again[1], at(name), *again[2:], "--flat-params", t.at("flat.json"), "--overwrite")
            need(b"rank_notes.pt" in p.stderr, p.stderr)
            need(sorted(os.listdir(at(name))) == sorted([*was, "rank_notes.pt"]), os.listdir(at(name)))
            os.unlink(at(name) + "/rank_notes.pt")
        test_plans.killed(t, "optim", "unshard", at("ranks"), at("killed.pt"), "--flat-params", t.at("flat.json"), limit=1000)
        left = [f for f in os.listdir(t.directory) if ".tessera-" in f]
        need(left and not os.path.exists(at("killed.pt")), left)
        t.run("optim", "unshard", at("ranks"), at("killed.pt"), "--flat-params", t.at("flat.json"))
        need(not [f for f in os.listdir(t.directory) if ".tessera-" in f], "a killed run's files are left")
        flat = open(t.at("flat.json")).read()
        t.run("optim", "unshard", at("ranks"), t.at("flat.json"), "--flat-params", t.at("flat.json"), "--overwrite", status=2)
        need(open(t.at("flat.json")).read() == flat, "a document that was read is gone")
    doc["shard_groups"] = [[0, 2], [1, 3]]
    with open(t.at("flat.json"), "w") as f:
        json.dump(doc, f)
    p = t.run("optim", "unshard", at("ranks"), t.at("x"), "--flat-params", t.at("flat.json"), "--sharded", status=2)
    need(b"consecutive ranks" in p.stderr and not os.path.exists(t.at("x")), p.stderr)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tessera", required=True)
    ap.add_argument("--jobs", type=int, default=2, metavar="N", help="tests at a time, each in a process of its own")
    ap.add_argument("pick", nargs="*")
    a = ap.parse_args()
    add_samples()
    runner.main([(*test, False) for test in TESTS], a.pick, functools.partial(Tessera, os.path.abspath(a.tessera)), a.jobs)


if __name__ == "__main__":
    main()
