"""Layouts with rules and hashes, manifests, what would load into what, and the reports of a diff."""
import json
import os
import subprocess
import xml.etree.ElementTree as xml

from harness import need, sample, test


def rules(doc):
    return sorted((f["rule"], f.get("fqn", "")) for f in doc["findings"])


def write(path, doc):
    with open(path, "w") as f:
        f.write(doc if isinstance(doc, str) else json.dumps(doc))
    return path


@test
def test_manifest_is_the_same_for_other_shardings_and_containers(t):
    path, _ = sample("dcp_fsdp2")
    t.run("reshard", path, t.at("three"), "--mesh", "dp=3", "--placements", "shard(0)")
    t.run("convert", path, t.at("one.pt"), "--to", "torch")
    t.run("manifest", path, "-o", t.at("m.json"))
    want = open(t.at("m.json")).read()
    need(t.run("manifest", t.at("three")).stdout.decode() == want, "the manifest on three ranks differs")
    tensors = lambda doc: {e["fqn"]: e["hash"] for e in doc["entries"] if e["kind"] == "tensor"}
    need(tensors(t.json("manifest", t.at("one.pt"))) == tensors(json.loads(want)), "the manifest of the torch file differs")
    for where in (t.at("three"), t.at("one.pt")):
        need(rules(t.json("verify", where, t.at("m.json"), "--json")) == [], where)
    hashes = {e["fqn"]: e["hash"]["digest"] for e in t.json("inspect", path, "--json", "--hash", "sha256")["entries"] if "hash" in e}
    layout = t.json("layout", path, "--hash", "sha256")
    need({e["fqn"]: e["hash"]["digest"] for e in layout["entries"] if e["kind"] == "tensor"} == hashes, "layout --hash is not inspect --hash")


@test
def test_a_manifest_has_a_schema_of_its_own(t):
    """Manifests written before it had one are called layouts, and are still read."""
    path, _ = sample("dcp_fsdp2")
    doc = t.json("manifest", path)
    need(doc["schema"] == "tessera.manifest/1", doc["schema"])
    need(t.json("layout", path, "--no-chunks", "--hash", "sha256")["schema"] == "tessera.layout/1", "a layout with hashes")
    for schema in ("tessera.manifest/1", "tessera.layout/1"):
        m = write(t.at("m.json"), {**doc, "schema": schema})
        need(rules(t.json("verify", path, m, "--json")) == rules(t.json("validate", path, "--layout", m, "--deep", "--json")) == [], schema)
    p = t.run("verify", path, write(t.at("m.json"), {**doc, "schema": "tessera.manifest/2"}), status=2)
    need(b"'tessera.manifest/2'" in p.stderr and b"tessera.manifest/1" in p.stderr, p.stderr)


@test
def test_verify_finds_what_changed(t):
    path, _ = sample("dcp_fsdp2")
    doc = t.json("manifest", path)
    one = next(e for e in doc["entries"] if e["fqn"] == "model.emb.weight")
    one["hash"]["digest"] = "0" * 32
    step = next(e for e in doc["entries"] if e["fqn"] == "step")
    step["hash"]["digest"] = "1" * 32
    m = write(t.at("m.json"), doc)
    need(rules(t.json("verify", path, m, "--json", status=1)) == [("layout/digest", "model.emb.weight"), ("layout/digest", "step")], "findings")
    need(rules(t.json("validate", path, "--layout", m, "--json")) == [], "hashes counted without --deep")
    need(len(rules(t.json("validate", path, "--layout", m, "--deep", "--json", status=1))) == 2, "hashes did not count with --deep")
    need(rules(t.json("verify", path, m, "--json", "--allow", "value")) == [], "--allow value")
    t.run("layout", path, "-o", t.at("l.json"))
    need(b"has no hashes" in t.run("verify", path, t.at("l.json"), status=2).stderr, "a layout without hashes")
    doc["entries"][0]["hash"]["algorithm"] = "md5"
    need(b"'md5'" in t.run("verify", path, write(t.at("m.json"), doc), status=2).stderr, "md5")


@test
def test_layout_rules(t):
    path, _ = sample("dcp_fsdp2")
    doc = t.json("layout", path, "--no-chunks", "--exclude", "optim.**")
    for e in doc["entries"]:
        if e["fqn"] == "model.emb.weight":
            e["dtype"] = "bfloat16"
        if e["fqn"] == "model.few.weight":
            e["shape"] = [9, 9]
    doc["entries"].append({"fqn": "ema.w", "kind": "tensor", "dtype": "float32", "shape": [1]})
    strict = rules(t.json("validate", path, "--layout", write(t.at("l.json"), doc), "--json", status=1))
    need({r for r, _ in strict} == {"layout/dtype", "layout/shape", "layout/missing-entry", "layout/unexpected-entry"}, strict)
    doc["rules"] = [{"match": "optim.**", "allow": ["extra"]}, {"match": "ema.**", "allow": ["missing"]},
                    {"match": "model.emb.*", "dtypes": ["float32", "float16"]}, {"match": "model.few.*", "allow": ["shape"]}]
    need(rules(t.json("validate", path, "--layout", write(t.at("l.json"), doc), "--json")) == [], "the rules")
    need(rules(t.json("validate", path, "--layout", t.at("l.json"), "--json", "--allow", "missing")) == [], "--allow beside rules")
    for bad, word in (({"match": "x", "allow": ["everything"]}, "everything"), ({"allow": []}, "match"), ({"match": "x", "dtypes": ["float33"]}, "float33"), (3, "rules[0]")):
        need(word in t.run("validate", path, "--layout", write(t.at("b.json"), {**doc, "rules": [bad]}), status=2).stderr.decode(), bad)


@test
def test_would_this_load(t):
    index = sample("safetensors_index")[0]
    path = os.path.dirname(index)
    need(rules(t.json("validate", path, "--against", index, "--json")) == [], "its own index")
    names = sorted(json.load(open(index))["weight_map"])
    lines = write(t.at("names.txt"), "# keys\n" + "\n".join(n for n in names[1:]) + "\nnew.key\r\n")
    need(rules(t.json("validate", path, "--against", lines, "--json", status=1)) == [("layout/missing-entry", "new.key"), ("layout/unexpected-entry", names[0])], "a list of names")
    need(rules(t.json("validate", path, "--against", lines, "--json", "--allow", "missing,extra")) == [], "--allow")
    need(b"--allow expects missing, extra" in t.run("validate", path, "--against", lines, "--allow", "much", status=2).stderr, "--allow much")
    model = {"class": "Net", "wrapper": "none", "parameters": {"a": {"shape": [11, 6], "dtype": "float32", "requires_grad": True}, "b": {"shape": [2], "dtype": "float32", "requires_grad": True}}, "buffers": {}, "extra_state": False, "children": {}}
    tree = write(t.at("modules.json"), {"schema": "tessera.modules/1", "root": {**model, "parameters": {}, "children": {"emb": {**model, "parameters": {"weight": model["parameters"]["a"]}}, "few": {**model, "parameters": {"weight": model["parameters"]["b"]}}}}})
    got = rules(t.json("validate", sample("dcp_fsdp2")[0], "--against", tree, "--prefix", "model.", "--json", "--allow", "extra", status=1))
    need(got == [("layout/shape", "model.few.weight")], got)
    other = t.json("validate", sample("dcp_fsdp2")[0], "--against", sample("dcp_hsdp")[0], "--json", "--allow", "extra")
    need(rules(other) == [], other)


@test
def test_a_prefix_that_explains_the_names_is_stated(t):
    whole = sample("dcp_fsdp2")[0]
    t.run("convert", whole, t.at("model.safetensors"), "--include", "model.**", "--rename", "model.=")
    names = [e["fqn"] for e in t.json("inspect", t.at("model.safetensors"), "--json")["entries"]]

    def notes(*arguments, status=1):
        return [f["message"] for f in t.json("validate", *arguments, "--json", status=status)["findings"] if f["rule"] == "layout/prefix"]
    (note,) = notes(whole, "--against", t.at("model.safetensors"))
    need(f"{len(names)} of the {len(names)} names" in note and "with 'model.' before them; --prefix strips it" in note, note)
    (note,) = notes(t.at("model.safetensors"), "--against", whole)
    need(f"{len(names)} of the checkpoint's {len(names)} names" in note and "--rename =model." in note, note)
    need(notes(whole, "--against", t.at("model.safetensors"), "--prefix", "model.", status=0) == [], "with the prefix")
    need(notes(whole, "--against", t.at("model.safetensors"), "--allow", "missing,extra", status=0) == [], "with all names allowed")
    need(notes(whole, "--against", write(t.at("others.txt"), "\n".join(["w"] + names[:len(names) // 2])), status=1) == [], "half of the names")
    refused = t.run("convert", whole, t.at("x.pt"), "--against", t.at("model.safetensors"), status=2).stderr.decode()
    need("with 'model.' before them; --prefix strips it" in refused, refused)
    t.run("convert", whole, t.at("x.pt"), "--prefix", "model.", "--against", t.at("model.safetensors"))


@test
def test_swapped_arguments_of_verify_are_recognized(t):
    path = sample("dcp_fsdp2")[0]
    t.run("manifest", path, "-o", t.at("m.json"))
    message = t.run("verify", t.at("m.json"), path, status=2).stderr.decode()
    need(f"the manifest comes second: tessera verify {path} {t.at('m.json')}" in message, message)
    need("comes second" not in t.run("verify", path, path, status=2).stderr.decode(), "no manifest at all")


@test
def test_fqn_asks_only_for_a_module_tree_that_it_was_not_given(t):
    path = sample("dcp_fsdp2")[0]
    leaf = {"class": "Net", "wrapper": "none", "parameters": {"weight": {"shape": [11, 6], "dtype": "float32", "requires_grad": True}}, "buffers": {}, "extra_state": False, "children": {}}
    tree = write(t.at("modules.json"), {"schema": "tessera.modules/1", "root": {**leaf, "parameters": {}, "children": {"emb": leaf}}})
    need(b"pass MODULES.json to be certain" in t.run("fqn", "--checkpoint", path).stderr, "by text alone")
    need(b"in place of --against" in t.run("fqn", "--checkpoint", path, "--against", path).stderr, "against a checkpoint")
    need(b"certain" not in t.run("fqn", tree, "--checkpoint", path).stderr, "with a module tree")


@test
def test_a_name_that_is_listed_twice_counts_once(t):
    path, _ = sample("safetensors_model")
    one = t.json("inspect", path, "--json")["entries"][0]["fqn"]
    names = write(t.at("names.txt"), "\n".join(["gone", one, "gone", "gone.too", one, "gone"]))
    missing = [f["fqn"] for f in t.json("validate", path, "--json", "--against", names, "--allow", "extra", status=1)["findings"] if f["rule"] == "layout/missing-entry"]
    need(missing == ["gone", "gone.too"], str(missing))


@test
def test_diff_reports(t):
    a, b = sample("dcp_fsdp2")[0], sample("dcp_tp_fsdp2")[0]
    doc = t.json("diff", a, b, "--json", status=1)
    changes = len(doc["added"]) + len(doc["removed"]) + sum(len(c["what"]) for c in doc["changed"])
    sarif = json.loads(t.run("diff", a, b, "--format", "sarif", status=1).stdout)["runs"][0]
    need(len(sarif["results"]) == changes + len(doc["renamed"]), "results of sarif")
    known = {r["id"] for r in sarif["tool"]["driver"]["rules"]}
    need(all(r["ruleId"] in known and r["partialFingerprints"] and r["locations"][0]["logicalLocations"] for r in sarif["results"]), "sarif")
    need(len({json.dumps(r["partialFingerprints"]) for r in sarif["results"]}) == len(sarif["results"]), "fingerprints repeat")
    junit = xml.fromstring(t.run("diff", a, b, "--format", "junit", status=1).stdout)
    need(len(junit.findall(".//failure")) == changes, "failures of junit")
    need(len(json.loads(t.run("diff", a, b, "--format", "gitlab", status=1).stdout)) == len(sarif["results"]), "gitlab")
    need(json.loads(t.run("diff", a, a, "--format", "sarif").stdout)["runs"][0]["results"] == [], "sarif of the same")


@test
def test_github_shows_what_it_can_and_summarizes_the_rest(t):
    a, b = sample("dcp_fsdp2")[0], sample("dcp_tp_fsdp2")[0]
    summary = write(t.at("summary.md"), "before\n")
    lines = t.run("diff", a, b, "--format", "github", status=1, env={"GITHUB_STEP_SUMMARY": summary}).stdout.decode().splitlines()
    errors = [line for line in lines if line.startswith("::error ")]
    need(len(errors) == 10 and "findings more" in errors[-1], errors)
    text = open(summary).read()
    need(text.startswith("before\n### ") and text.count("| error |") > 10, text)
    t.run("validate", sample("dcp_small")[0], "--format", "github", env={"GITHUB_STEP_SUMMARY": summary})
    need("0 errors" in open(summary).read(), "no summary for a sound checkpoint")


@test
def test_convert_refuses_what_validate_would(t):
    """`convert --against` writes exactly those outputs that `validate --against` accepts."""
    path = sample("torch_train_state")[0]
    model = ("--include", "model.**", "--rename", "model.=")
    t.run("convert", path, t.at("model.safetensors"), *model, "-q")
    t.run("convert", path, t.at("half.pt"), *model, "--dtype", "bfloat16", "-q")
    open(t.at("layout.json"), "wb").write(t.run("layout", t.at("model.safetensors")).stdout)
    names = [e["fqn"] for e in t.json("inspect", t.at("model.safetensors"), "--json")["entries"]]
    open(t.at("names"), "w").write("\n".join(names) + "\n")
    open(t.at("more"), "w").write("\n".join([*names, "head.bias"]) + "\n")
    verdicts = []
    for against in ("model.safetensors", "half.pt", "layout.json", "names", "more"):
        for n, options in enumerate((model, (*model, "--dtype", "bfloat16"), ("--include", "model.**"), (*model, "--exclude", "model.bn.*"))):
            for form, extra in (("safetensors", ()), ("dcp", ("--for-torch", "2.6"))):
                plain, checked = t.at(f"plain-{against}-{n}.{form}"), t.at(f"checked-{against}-{n}.{form}")
                t.run("convert", path, plain, "--to", form, *options, *extra, "-q")
                says = subprocess.run([t.path, "validate", plain, "--against", t.at(against)], capture_output=True).returncode
                for more in (("--dry-run",), ()):
                    p = subprocess.run([t.path, "convert", path, checked, "--to", form, *options, *extra, "--against", t.at(against), *more], capture_output=True)
                    need(p.returncode == (2 if says else 0), f"{against} {options}: {says} {p}")
                    need(b"the result would not load: " in p.stderr or not says, p.stderr)
                need(os.path.exists(checked) == (says == 0), f"{checked}: {os.listdir(t.directory)}")
                verdicts.append(says)
    need(verdicts.count(0) >= 6 and verdicts.count(1) >= 20, verdicts)
    p = t.run("convert", path, t.at("no"), "--to", "dcp", *model, "--against", t.at("more"), status=2)
    need(b"'head.bias'" in p.stderr, p.stderr)
    t.run("convert", path, t.at("model.safetensors"), *model, "--against", t.at("model.safetensors"), "--overwrite", status=2)
    t.run("validate", "--deep", t.at("model.safetensors"))


@test
def test_names_of_shared_modules_are_bounded(t):
    """Modules that hold another one twice, 40 levels deep: 2^40 names in a few KiB."""
    node, path = {}, ["a"] * 40
    for depth in range(40, -1, -1):
        children = {"a": node, "b": {"same_as": ".".join(path[:depth + 1])}} if depth < 40 else {}
        node = {"class": "M", "wrapper": "none", "parameters": {}, "buffers": {}, "extra_state": False, "children": children}
    tree = write(t.at("modules.json"), {"schema": "tessera.modules/1", "root": node})
    need(b"too many names" in t.run("validate", sample("safetensors_model")[0], "--against", tree, status=2).stderr, "not refused")
