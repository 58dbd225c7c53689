"""--rule and --baseline of `validate` and `diff`: changed levels and known findings, in every format, and the exit
status."""
import json
import os
import re
import struct
import xml.etree.ElementTree as xml

from harness import SAMPLES, need, st_write, test

NAN, ONE = struct.pack("<2f", float("nan"), 1.5), struct.pack("<2f", 2.5, -1)
FORMATS = ("text", "json", "sarif", "junit", "github", "gitlab")
CKPT = os.path.join(SAMPLES, "dcp_small")


def rows(doc):
    return sorted((f["rule"], f["level"], f.get("fqn", ""), f.get("file", "")) for f in doc["findings"])


def write(path, doc):
    with open(path, "w") as f:
        f.write(doc if isinstance(doc, str) else json.dumps(doc))
    return path


def sharded(path, shards, index=None):
    """Writes {file: {name: bytes}} as float32 safetensors with an index, which by default lists every tensor."""
    os.makedirs(path)
    for file, tensors in shards.items():
        st_write(os.path.join(path, file), {n: ("F32", [len(raw) // 4], raw) for n, raw in tensors.items()})
        with open(os.path.join(path, file), "rb") as f:
            size, = struct.unpack("<Q", f.read(8))
            header, data = f.read(size), f.read()
        header += b" " * (-size % 8)  # aligned, as safetensors writes it
        with open(os.path.join(path, file), "wb") as f:
            f.write(struct.pack("<Q", len(header)) + header + data)
    where = index or {n: file for file, tensors in shards.items() for n in tensors}
    total = sum(len(raw) for file, tensors in shards.items() for n, raw in tensors.items() if where.get(n) == file)
    write(os.path.join(path, "model.safetensors.index.json"), {"metadata": {"total_size": total}, "weight_map": where})
    return path


def two_kinds(t):
    """NaN in `b` and `c` (notes), and `d`, which the index does not list (a warning)."""
    shards = {"model-1.safetensors": {"a": ONE, "b": NAN}, "model-2.safetensors": {"c": NAN, "d": ONE}}
    where = {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}
    return sharded(t.at("ck"), shards, where)


@test
def test_policy_rules_change_levels_in_every_format(t):
    path = two_kinds(t)
    before = t.json("validate", "--deep", path, "--json")
    need([r[:3] for r in rows(before)] == [("index/extra-key", "warning", "d"), ("values/nan", "note", "b"), ("values/nan", "note", "c")], rows(before))
    changed = ("--deep", path, "--rule", "values/nan=error", "--rule", "index/*=note")
    doc = t.json("validate", *changed, "--json", status=1)
    need([r[:3] for r in rows(doc)] == [("index/extra-key", "note", "d"), ("values/nan", "error", "b"), ("values/nan", "error", "c")], rows(doc))
    need([doc["summary"][k] for k in ("errors", "warnings", "notes")] == [2, 0, 1], doc["summary"])
    out = {f: t.run("validate", *changed, "--format", f, status=1).stdout.decode() for f in FORMATS}
    need(out["text"].count("error") == 3 and "2 errors, 1 note" in out["text"], out["text"])
    levels = sorted((r["ruleId"], r["level"]) for r in json.loads(out["sarif"])["runs"][0]["results"])
    need(levels == [("index/extra-key", "note"), ("values/nan", "error"), ("values/nan", "error")], levels)
    suite = xml.fromstring(out["junit"])
    need(suite.get("failures") == "1" and len(list(suite.iter("failure"))) == 2 and len(list(suite.iter("system-out"))) == 1, out["junit"])
    need(len(re.findall(r"(?m)^::error ", out["github"])) == 2 and len(re.findall(r"(?m)^::notice ", out["github"])) == 1, out["github"])
    severities = sorted((i["check_name"], i["severity"]) for i in json.loads(out["gitlab"]))
    need(severities == [("index/extra-key", "info"), ("values/nan", "critical"), ("values/nan", "critical")], severities)


@test
def test_policy_the_status_follows_the_changed_levels(t):
    path, clean = two_kinds(t), sharded(t.at("clean"), {"model-1.safetensors": {"a": ONE}})
    for rules, fail_on, status in (((), None, 0), (("values/nan=warning",), None, 0), (("values/nan=warning",), "warning", 1),
                                   (("index/extra-key=off",), "warning", 0), (("*=error",), None, 1), (("*=error", "values/*=off", "index/*=note"), None, 0),
                                   (("values/*=off", "*=error"), None, 1), (("*=off",), "note", 0), (("values/nan=error", "values/nan=note"), None, 0)):
        options = [x for r in rules for x in ("--rule", r)] + (["--fail-on", fail_on] if fail_on else [])
        for f in FORMATS:
            t.run("validate", "--deep", clean, path, *options, "--format", f, status=status)
    broken = os.path.join(SAMPLES, "broken_dcp_hole")
    t.run("validate", broken, status=1)
    t.run("validate", broken, "--rule=layout/hole=warning", status=0)
    t.run("validate", broken, t.at("absent"), "--rule", "*=off", status=2)  # an unreadable checkpoint is never a finding


@test
def test_policy_turned_off_findings_are_counted(t):
    path = two_kinds(t)
    doc = t.json("validate", "--deep", path, path, "--rule", "values/nan=off", "--json")
    need([r[0] for r in rows(doc)] == ["index/extra-key"] * 2, rows(doc))
    need(doc["summary"]["turned_off"] == 4 and doc["summary"]["notes"] == 0 and "left_out" not in doc["summary"], doc["summary"])
    need("1 warning; 2 turned off" in t.text("validate", "--deep", path, "--rule", "values/nan=off"), "the text")
    for f in FORMATS[2:]:
        p = t.run("validate", "--deep", path, "--rule", "values/nan=off", "--format", f)
        need(b"values/nan" not in (p.stdout if f != "sarif" else json.dumps(json.loads(p.stdout)["runs"][0]["results"]).encode()), p.stdout)
        need(b"note: 2 turned off" in p.stderr, p.stderr)


@test
def test_policy_unknown_rules_and_levels_are_usage_errors(t):
    for command in (("validate", CKPT), ("diff", CKPT, CKPT)):
        for rule, said in (("values/nna=error", "values/nan"), ("nan=error", "values/nan"), ("values/nan", "ID=LEVEL"), ("values/nan=eror", "'error'"),
                           ("nothing/*=off", "--list-rules"), ("=error", "--list-rules"), ("values/nan=", "error, warning, note or off"), ("values*nan=off", "rule"),
                           ("x" * 5000 + "=off", "--list-rules"), ("a\x1b[31m=off", "--list-rules")):
            if command[0] == "diff" and said == "values/nan":
                rule, said = rule.replace("values/nna", "diff/vaule").replace("nan", "value"), "diff/value"
            p = t.run(*command, "--rule", rule, status=2)
            need(said in p.stderr.decode() and not p.stdout and b"\x1b" not in p.stderr, f"{command[0]} --rule {rule[:40]}: {p.stderr}")
    need(b"not a rule of diff" in t.run("diff", CKPT, CKPT, "--rule", "values/nan=error", status=2).stderr, "another command's rule")
    need(b"not a rule of validate" in t.run("validate", CKPT, "--rule", "diff/value=off", status=2).stderr, "another command's rule")
    t.run("validate", CKPT, "--rule", status=2)


def listed(t, *command):
    return [line.split()[0] for line in t.text(*command).splitlines() if line[0] != " "]


@test
def test_policy_each_command_lists_exactly_the_rules_that_it_accepts(t):
    known = listed(t, "explain")
    lists = {"validate": listed(t, "validate", "--list-rules"), "diff": listed(t, "diff", "--list-rules")}
    need([rule["id"] for rule in t.json("explain", "--json")["rules"]] == known, "the document has other rules")
    need([rule["id"] for rule in t.json("explain", "diff/value", "--json")["rules"]] == ["diff/value"], "one rule is not alone")
    for command, rules in lists.items():
        for json in ("--json", "--format=json"):
            need([rule["id"] for rule in t.json(command, "--list-rules", json)["rules"]] == rules, f"{command} {json}: the document has other rules")
    need(sorted(lists["validate"] + lists["diff"]) == known and "diff/value" in known and "values/nan" in known, "a rule is in no list or in both")
    for command, paths in (("validate", (CKPT,)), ("diff", (CKPT, CKPT))):
        for rule in known:
            p = t.run(command, *paths, "--rule", f"{rule}=note", status=0 if rule in lists[command] else 2)
            need(p.returncode == 0 or f"not a rule of {command}".encode() in p.stderr, p.stderr)


@test
def test_policy_a_baseline_leaves_out_what_it_lists(t):
    path = two_kinds(t)
    known = write(t.at("known.json"), t.run("validate", "--deep", path, "--json").stdout.decode())
    for f in FORMATS:
        p = t.run("validate", "--deep", path, "--baseline", known, "--fail-on", "note", "--format", f)
        need(f in ("text", "json") or b"note: 3 left out by the baseline" in p.stderr, p.stderr)
    doc = t.json("validate", "--deep", path, "--baseline", known, "--json")
    need(doc["findings"] == [] and doc["summary"]["left_out"] == 3 and doc["summary"]["notes"] == 0, doc["summary"])
    need("no findings; 3 left out by the baseline" in t.text("validate", "--deep", path, "--baseline", known), "the text")
    # Findings at other places are new: another name, another file, another rule. The level and the message do not count.
    doc = json.loads(open(known).read())
    for change, new in (({"fqn": "z"}, 1), ({"file": "model-9.safetensors"}, 1), ({"rule": "zip/crc"}, 1), ({"rule": "gone/rule"}, 1),
                        ({"message": "other words", "level": "error", "byte_offset": 1, "path": "elsewhere"}, 0)):
        findings = [dict(f, **change) if f.get("fqn") == "c" else f for f in doc["findings"]]
        got = t.json("validate", "--deep", path, "--json", "--baseline", write(t.at("other.json"), {**doc, "findings": findings}))
        need([r[2] for r in rows(got)] == ["c"] * new and got["summary"]["left_out"] == 3 - new, f"{change}: {rows(got)}")
    # With a rule that is off, and one that is an error: what the baseline lists is still left out.
    t.run("validate", "--deep", path, "--baseline", known, "--rule", "*=error")
    got = t.json("validate", "--deep", path, "--baseline", known, "--rule", "values/nan=off", "--json")
    need((got["summary"]["left_out"], got["summary"]["turned_off"]) == (1, 2), got["summary"])
    # Several paths, one of which has a new finding.
    more = sharded(t.at("more"), {"model-1.safetensors": {"b": NAN, "q": NAN}})
    got = t.json("validate", "--deep", path, more, "--baseline", known, "--rule", "values/nan=error", "--json", status=1)
    need([r[2] for r in rows(got)] == ["q"] and got["summary"]["left_out"] == 4, got)


@test
def test_policy_a_baseline_of_more_findings_than_a_document_lists(t):
    names = [f"layer.{i}.w" for i in range(1300)]
    path = sharded(t.at("ck"), {"model-1.safetensors": {n: NAN for n in names}})
    doc = t.json("validate", "--deep", path, "--json")
    listed = len(doc["findings"])
    need(doc["summary"]["notes"] == 1300 and doc["summary"].get("unlisted") == {"values/nan": 1300 - listed}, doc["summary"])
    known = write(t.at("known.json"), doc)
    got = t.json("validate", "--deep", path, "--json", "--baseline", known, "--rule", "values/nan=error")
    need(got["findings"] == [] and got["summary"]["left_out"] == 1300 and got["summary"]["errors"] == 0, got["summary"])
    got = t.json("validate", "--deep", path, "--json", "--rule", "values/nan=error", status=1)
    need((got["summary"]["errors"], got["summary"]["notes"], got["summary"]["unlisted"]) == (1300, 0, doc["summary"]["unlisted"]), got["summary"])
    need(t.json("validate", "--deep", path, "--json", "--rule", "values/nan=off")["summary"]["turned_off"] == 1300, "not all are off")
    one_less = {**doc, "summary": {**doc["summary"], "unlisted": {"values/nan": 1300 - listed - 1, "gone/rule": 5}}}
    t.run("validate", "--deep", path, "--baseline", write(known, one_less), "--rule", "values/nan=error", status=1)


@test
def test_policy_a_baseline_knows_names_that_are_not_plain(t):
    names = ["a\u202eb", "\u200b", "tab\there", "\U000e0041", 'quo"te', "back\\slash", "é"]
    path = sharded(t.at("ck"), {"model-1.safetensors": {n: NAN for n in names}})
    known = write(t.at("known.json"), t.run("validate", "--deep", path, "--json").stdout.decode())
    got = t.json("validate", "--deep", path, "--json", "--baseline", known)
    need(got["findings"] == [] and got["summary"]["left_out"] == len(names), got)


BAD = (("", "baseline"), ("{", "json"), ("[]", "tessera.findings/1"), ("null", "tessera.findings/1"), ('{"findings": []}', "tessera.findings/1"),
       ('{"schema": 1}', "tessera.findings/1"), ('{"schema": "tessera.findings/2", "findings": []}', "'tessera.findings/2'"),
       ('{"schema": "tessera.layout/1", "entries": []}', "'tessera.layout/1'"), ('{"schema": "tessera.findings/1"}', "findings"),
       ('{"schema": "tessera.findings/1", "findings": {}}', "an array"), ('{"schema": "tessera.findings/1", "findings": [7]}', "findings[0]"),
       ('{"schema": "tessera.findings/1", "findings": [{"rule": "zip/crc"}, {"fqn": "w"}]}', "findings[1]"),
       ('{"schema": "tessera.findings/1", "findings": [{"rule": "zip/crc", "fqn": 1}]}', "findings[0]"),
       ('{"schema": "tessera.findings/1", "findings": [], "summary": {"unlisted": {"zip/crc": -1}}}', "summary.unlisted"),
       ('{"schema": "tessera.findings/1", "findings": [], "findings": []}', "duplicate"), ('{"schema": "tessera.findings/1", "findings": [' + "[" * 5000, "json"),
       ('{"schema": "tessera.findings/1", "findings": []} x', "json"))


@test
def test_policy_a_baseline_that_is_none_is_refused(t):
    for text, said in BAD:
        p = t.run("validate", CKPT, "--baseline", write(t.at("b.json"), text), status=2)
        need(said in p.stderr.decode() or (not text and b"b.json" in p.stderr), f"{text[:60]}: {p.stderr}")
        need(not p.stdout and b"b.json" in p.stderr, p.stderr)
    with open(t.at("b.json"), "wb") as f:
        f.write(b'{"schema": "tessera.findings/1", "findings": [{"rule": "\xff"}]}')
    t.run("validate", CKPT, "--baseline", t.at("b.json"), status=2)
    for path in (t.at("absent.json"), t.directory, os.path.join(CKPT, ".metadata")):
        need(os.path.basename(path) in t.run("validate", CKPT, "--baseline", path, status=2).stderr.decode(), path)
    diff = write(t.at("d.json"), t.run("diff", CKPT, CKPT, "--json").stdout.decode())
    need(b"'tessera.diff/1'" in t.run("validate", CKPT, "--baseline", diff, status=2).stderr, "a diff as a baseline of validate")
    findings = write(t.at("f.json"), t.run("validate", CKPT, "--json").stdout.decode())
    need(b"'tessera.findings/1'" in t.run("diff", CKPT, CKPT, "--baseline", findings, status=2).stderr, "findings as a baseline of diff")
    good = json.loads(open(diff).read())
    for wrong in ({"added": [1]}, {"added": None}, {"changed": [{"fqn": "w"}]}, {"changed": [{"fqn": "w", "what": "dtype"}]}, {"changed": [{"fqn": "w", "what": [1]}]},
                  {"renamed": [{"a": "w"}]}, {"schema": "tessera.diff/2"}):
        t.run("diff", CKPT, CKPT, "--baseline", write(diff, {**good, **wrong}), status=2)


# ---- diff ----


def pair(t):
    """Two files with every kind of difference that plain safetensors can have."""
    f = lambda *x: struct.pack(f"<{len(x)}f", *x)
    st_write(t.at("a.safetensors"), {"same": ("F32", [1], f(9)), "value": ("F32", [2], f(1, 2)), "shape": ("F32", [2], f(1, 2)), "dtype": ("I32", [1], bytes(4)),
                                     "gone": ("I8", [3], b"abc"), "old.name": ("F32", [5], f(5, 6, 7, 8, 9))})
    st_write(t.at("b.safetensors"), {"same": ("F32", [1], f(9)), "value": ("F32", [2], f(1, 3)), "shape": ("F32", [1, 2], f(1, 2)), "dtype": ("F32", [1], bytes(4)),
                                     "came": ("F64", [1], bytes(8)), "new.name": ("F32", [5], f(5, 6, 7, 8, 9))})
    return t.at("a.safetensors"), t.at("b.safetensors"), "--values"


def differences(doc):
    out = {("added", n) for n in doc["added"]} | {("removed", n) for n in doc["removed"]}
    return out | {(w, c["fqn"]) for c in doc["changed"] for w in c["what"]}


ALL = {("added", "came"), ("added", "new.name"), ("removed", "gone"), ("removed", "old.name"), ("value", "value"), ("shape", "shape"), ("dtype", "dtype")}


@test
def test_policy_diff_rules(t):
    ab = pair(t)
    doc = t.json("diff", *ab, "--json", status=1)
    need(differences(doc) == ALL and doc["summary"]["same"] == 1, doc)
    for what in ("added", "removed", "value", "shape", "dtype"):
        got = t.json("diff", *ab, "--rule", f"diff/{what}=off", "--json", status=1)
        off = {d for d in ALL if d[0] == what}
        need(differences(got) == ALL - off and got["summary"]["turned_off"] == len(off) and got["summary"]["same"] == 1, f"{what}: {got}")
    for f in FORMATS:
        t.run("diff", *ab, "--format", f, status=1)
        for rules, fail_on, status in ((("*=note",), None, 0), (("*=note",), "note", 1), (("diff/*=warning",), None, 0), (("diff/*=warning",), "warning", 1),
                                       (("*=off",), "note", 0), (("*=off", "diff/value=error"), None, 1), (("*=note", "diff/value=warning"), "warning", 1)):
            options = [x for r in rules for x in ("--rule", r)] + (["--fail-on", fail_on] if fail_on else [])
            t.run("diff", *ab, *options, "--format", f, status=status)
    got = t.json("diff", *ab, "--rule", "*=off", "--json")
    need(got["same"] and not got["renamed"] and got["summary"]["turned_off"] >= len(ALL) and got["summary"]["same"] == 1, got)
    need("nothing else differs; same: 1 name (" in t.text("diff", *ab, "--rule", "*=off"), "the text")
    sarif = json.loads(t.run("diff", *ab, "--rule", "*=note", "--rule", "diff/shape=warning", "--format", "sarif").stdout)["runs"][0]["results"]
    need({(r["ruleId"], r["level"]) for r in sarif if r["level"] != "note"} == {("diff/shape", "warning")}, sarif)
    for args in ((*ab,), (ab[0], ab[0])):
        need(t.run("diff", *args, "--fail-on", "warning", status=(0, 1)).returncode == t.run("diff", *args, status=(0, 1)).returncode, "--fail-on warning")
    need(all(line.startswith(("diff/", " ")) for line in t.text("diff", "--list-rules").splitlines()), "--list-rules")


@test
def test_policy_diff_baseline(t):
    ab = pair(t)
    doc = t.json("diff", *ab, "--json", status=1)
    known = write(t.at("known.json"), doc)
    for f in FORMATS:
        p = t.run("diff", *ab, "--baseline", known, "--fail-on", "note", "--format", f)
        need(f in ("text", "json") or b" left out by the baseline" in p.stderr, p.stderr)
    got = t.json("diff", *ab, "--baseline", known, "--json")
    need(got["same"] and not differences(got) and got["summary"]["left_out"] == len(ALL) + len(doc["renamed"]), got["summary"])
    need([got["summary"][k] for k in ("same", "changed", "added", "removed")] == [1, 0, 0, 0], got["summary"])
    need(f"{len(ALL) + len(doc['renamed'])} left out by the baseline" in t.text("diff", *ab, "--baseline", known), "the text")
    # A difference of another kind than the baseline lists is new, even for the same name.
    less = {**doc, "changed": [{**c, "what": ["layout"]} if c["fqn"] == "value" else c for c in doc["changed"]], "added": ["new.name", "gone"]}
    got = t.json("diff", *ab, "--baseline", write(t.at("less.json"), less), "--json", status=1)
    need(differences(got) == {("value", "value"), ("added", "came")} and not got["same"], got)
    need(t.json("diff", *ab[:2], "--baseline", known, "--json")["summary"]["left_out"] == len(ALL) - 1 + len(doc["renamed"]), "without values")
    t.run("diff", *ab, "--baseline", t.at("less.json"), "--rule", "diff/*=warning")
    t.run("diff", *ab, "--baseline", t.at("less.json"), "--rule", "diff/value=off", "--rule", "diff/added=off")
