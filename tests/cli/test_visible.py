"""Names and values that strangers chose, in every text for people and CI systems: what is invisible or controls a terminal
is escaped, XML stays well-formed, and JSON keeps the names as they are."""
import io
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import types
import unicodedata
import xml.etree.ElementTree as xml
import zipfile

from harness import SAMPLES, need, st_write, test

ODD = ["\x00", "\t", "\n", "\r", "\x1b[31m", "\x7f", "\x80", "\x85", "\x9b", "\xa0", "\xad", "\u034f", "\u0600", "\u061c", "\u115f", "\u1160", "\u17b4",
       "\u180b", "\u180e", "\u2000", "\u200b", "\u200c", "\u200d", "\u200e", "\u2028", "\u2029", "\u202a", "\u202e", "\u202f", "\u2060", "\u2066", "\u2069",
       "\u206f", "\u2800", "\u3000", "\u3164", "\ue000", "\ufdd0", "\ufe0f", "\ufeff", "\uffa0", "\ufff9", "\ufffe", "\uffff", "\U000110bd",
       "\U0001bca0", "\U0001d173", "\U0001fffe", "\U000e0001", "\U000e0041", "\U000e0100", "\U0010ffff"]
MARKUP = ["]]>", "<b>&amp;\"'", "::error::x", "a,b:c%0A", "|@all|", "`x`", "\\u200b", "é", "张", "😀"]
NAMES = [f"n{i}.{c}.w" for i, c in enumerate(ODD + MARKUP)]
HIDDEN = ("Cc", "Cf", "Zl", "Zp", "Zs", "Co", "Cs")
FORMATS = ("text", "json", "sarif", "junit", "github", "gitlab")


def is_hidden(c):
    """Decides by Python's Unicode tables and, for what these count as letters and marks, by the list of what fonts draw as
    nothing."""
    return c not in " \n" and (unicodedata.category(c) in HIDDEN or ord(c) & 0xfffe == 0xfffe or 0xfdd0 <= ord(c) <= 0xfdef
                               or c in "\u034f\u115f\u1160\u17b4\u180b\u2800\u3164\ufe0f\uffa0\U000e0100")


def visible(what, data):
    """Returns printed output as text, and checks that it is valid UTF-8 with nothing hidden."""
    text = data.decode()
    hidden = sorted({c for c in text if is_hidden(c)})
    need(not hidden, f"{what}: prints {[hex(ord(c)) for c in hidden]}")
    return text


def said(t, *args, **k):
    p = t.run(*args, **k)
    visible(f"{args[0]}: stderr", p.stderr)
    return visible(" ".join(map(str, args)), p.stdout)


def torch_file(path, names):
    """A torch.save file of float32 tensors [1] with NaN under these names, made by Python's own pickle."""
    class Storage:
        pass
    utils = types.ModuleType("torch._utils")
    fakes = {"torch": types.ModuleType("torch"), "torch._utils": utils}

    def _rebuild_tensor_v2():
        pass
    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    kind = type("FloatStorage", (), {"__module__": "torch"})
    fakes["torch"].FloatStorage, fakes["torch"]._utils = kind, utils

    class Tensor:
        def __init__(self, key):
            self.key = key

        def __reduce__(self):
            storage = Storage()
            storage.key = self.key
            return _rebuild_tensor_v2, (storage, 0, (1,), (1,), False, {})

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            return ("storage", kind, value.key, "cpu", 1) if isinstance(value, Storage) else None
    out, before = io.BytesIO(), {n: sys.modules.get(n) for n in fakes}
    sys.modules.update(fakes)
    try:
        Pickler(out, 2).dump({n: Tensor(str(i)) for i, n in enumerate(names)})
    finally:
        for n, module in before.items():
            sys.modules.pop(n) if module is None else sys.modules.update({n: module})
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("archive/data.pkl", out.getvalue())
        z.writestr("archive/byteorder", "little")
        for i in range(len(names)):
            z.writestr(f"archive/data/{i}", struct.pack("<f", float("nan")))
        z.writestr("archive/version", "3\n")


def made(t, form):
    """Makes a checkpoint in the format, with a NaN under every name."""
    if form == "torch":
        torch_file(t.at("ck.pt"), NAMES)
        return t.at("ck.pt")
    st_write(t.at("ck.safetensors"), {n: ("F32", [1], struct.pack("<f", float("nan"))) for n in NAMES})
    if form == "safetensors":
        return t.at("ck.safetensors")
    t.run("convert", t.at("ck.safetensors"), t.at("ck"), "--to", "dcp")
    return t.at("ck")


def escaped(name):
    """Returns the name as messages show it."""
    return "".join(c if not is_hidden(c) and c != "\n" else f"\\x{ord(c):02x}" if c < "\x80" else f"\\u{ord(c):04x}" if c < "\U00010000" else f"\\U{ord(c):08x}" for c in name)


def check_names(t, form):
    path = made(t, form)
    st_write(t.at("other.safetensors"), {"only": ("F32", [1], bytes(4))})
    for args in ((), ("--tree",), ("--hash", "sha256"), ("--stats",)):
        text = said(t, "inspect", path, *args)
        need(args or form == "dcp" or all(escaped(n) in text for n in NAMES if "\x1b" in n or "\u200b" in n), "an escape is not shown")
    doc = json.loads(said(t, "inspect", path, "--json"))
    need(sorted(e["fqn"] for e in doc["entries"]) == sorted(NAMES), f"{form}: inspect --json changes names")
    for command in ("layout", "manifest"):
        need(sorted(e["fqn"] for e in json.loads(said(t, command, path))["entries"]) == sorted(NAMES), f"{form}: {command} changes names")
    said(t, "plan", path, "--mesh", "dp=2", "--placements", "shard(0)", "--items", status=(0, 2))
    said(t, "diff", path, t.at("other.safetensors"), status=1)
    said(t, "get", path, NAMES[4], status=0)
    said(t, "get", path, "no\u202esuch\u200bname", status=2)
    said(t, "fqn", "--checkpoint", path)
    for command, options in (("validate", ("--deep", path)), ("diff", (path, t.at("other.safetensors")))):
        reports = {f: said(t, command, *options, "--format", f, status=(0, 1)) for f in FORMATS}
        check_reports(command, reports)


def check_reports(command, reports):
    if command == "validate":
        found = {f["fqn"]: f for f in json.loads(reports["json"])["findings"] if f["rule"] == "values/nan"}
        need(set(found) == set(NAMES), "validate --json changes names")
        sarif = json.loads(reports["sarif"])["runs"][0]["results"]
        need({r["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] for r in sarif if r["ruleId"] == "values/nan"} == set(NAMES), "SARIF changes names")
    else:
        need(sorted(json.loads(reports["json"])["removed"]) == sorted(NAMES), "diff --json changes names")
    texts = [e.text for e in xml.fromstring(reports["junit"]).iter() if e.tag in ("failure", "system-out")]
    # A message ends at a NUL; all other names appear completely.
    for name in (n for n in NAMES if "\0" not in n):
        need(any(escaped(name) in (text or "") for text in texts), f"JUnit lacks {escaped(name)}: {texts[:3]}")
    need(len(json.loads(reports["gitlab"])) >= len(NAMES), "GitLab's report lacks findings")
    need(all(line.startswith("::") for line in reports["github"].splitlines()), "an annotation has several lines")


@test
def test_visible_names_of_safetensors(t):
    check_names(t, "safetensors")


@test
def test_visible_names_of_torch_files(t):
    check_names(t, "torch")


@test
def test_visible_names_of_dcp(t):
    check_names(t, "dcp")


@test
def test_visible_the_step_summary_of_github(t):
    path = made(t, "safetensors")
    t.run("validate", "--deep", path, "--format", "github", env={"GITHUB_STEP_SUMMARY": t.at("summary.md")})
    with open(t.at("summary.md"), "rb") as f:
        rows = [r for r in visible("the step summary", f.read()).splitlines() if "values/nan" in r]
    need(len(rows) == len(NAMES) and all(r.replace("\\|", "").count("|") == 4 and "<b>" not in r for r in rows), rows[:3])


@test
def test_visible_values_and_classes(t):
    value = {"text": "".join(ODD), "list": ["\u202e", {"\u200b": "\x1b"}], "bytes": b"\x00\xff\x1b", "lone": "\ud800"}
    with zipfile.ZipFile(t.at("v.pt"), "w") as z:
        z.writestr("archive/data.pkl", pickle.dumps(value, 3))
        z.writestr("archive/version", "3\n")
    for args in (("inspect",), ("inspect", "--tree"), ("validate", "--deep")):
        said(t, args[0], t.at("v.pt"), *args[1:])
    for name in ("text", "lone"):
        said(t, "get", t.at("v.pt"), name)
    doc = json.loads(said(t, "inspect", t.at("v.pt"), "--json"))
    need(next(e for e in doc["entries"] if e["fqn"] == "text")["value"] == value["text"], "inspect --json changes a value")


BAD = b"b\xff\xfe\xed\xa0\x80<&]]>\xe2\x80\xae.safetensors"


@test
def test_visible_file_names_that_are_not_utf8(t):
    directory = os.fsencode(t.at("shards"))
    os.makedirs(directory)
    for i, name in enumerate((BAD, b"a.safetensors")):
        st_write(os.path.join(directory, name), {f"w{i}": ("F32", [1], struct.pack("<f", float("nan")))})
    shutil.copytree(os.path.join(SAMPLES, "dcp_small"), t.at("dcp"))
    shutil.copy(os.path.join(SAMPLES, "dcp_small", "__0_0.distcp"), os.path.join(os.fsencode(t.at("dcp")), b"stray\xff\xc2\x85.distcp"))
    for path in (directory, os.path.join(directory, BAD), os.fsencode(t.at("dcp")), os.fsencode(t.at("absent")) + b"\xff\x1b"):
        for args in ([b"validate", b"--deep"], [b"inspect"]):
            formats = FORMATS if args[0] == b"validate" else ("text", "json")
            for f in formats:
                option = [b"--format", f.encode()] if args[0] == b"validate" else [b"--json"] if f == "json" else []
                p = subprocess.run([os.fsencode(t.path), *args, path, *option], capture_output=True, timeout=60)
                need(p.returncode in (0, 1, 2) and (p.returncode == 2) == path.endswith(b"\x1b"), f"{args} {path}: {p.stderr}")
                out, err = visible(f"{args} {f}", p.stdout), visible(f"{args} {f}: stderr", p.stderr)
                need(not path.endswith(b"\x1b") or "absent\\xff\\x1b" in err, err)
                if f == "junit":
                    case = next(xml.fromstring(out).iter("testcase"))
                    need(("\\xff" in case.get("name")) == (b"\xff" in path), case.get("name"))
                elif f in ("json", "sarif", "gitlab") and out:
                    json.loads(out)
    out = subprocess.run([os.fsencode(t.path), b"validate", b"--deep", directory], capture_output=True).stdout.decode()
    need("b\\xff\\xfe\\xed\\xa0\\x80<&]]>\\u202e.safetensors" in out, out)
