"""Names and strings with lone surrogates, as torch.save pickles them: documents give Python the same str, and are read back."""
import json
import os

NAMES = ["a\udc80", "a\udc81", "a\ufffd\ufffd\ufffd", "\ud800.b\udfff"]


def state_dict():
    import torch
    tensors = {name: torch.arange(6 + n, dtype=torch.float32) * 7 + n for n, name in enumerate(NAMES)}
    return {**tensors, "k\udc80": 1, "k\udc81": 2, "text": "x\udc80y", "list": ["\ud800", "\udfff\U0001F600"]}


def save(t):
    import torch
    import torch.distributed.checkpoint as dcp
    torch.save(state_dict(), t.at("s.pt"))
    dcp.save(state_dict(), checkpoint_id=t.at("s.dcp"))
    return t.at("s.pt"), t.at("s.dcp")


def document(t, *args, **k):
    return json.loads(t.run(*args, **k).stdout)


def test_documents_give_the_same_names(t):
    want = set(state_dict())
    for path in save(t):
        entries = {e["fqn"]: e for e in document(t, "inspect", path, "--json", "--stats")["entries"]}
        assert set(entries) >= {*NAMES, "text"}, ascii(sorted(entries))
        assert {entries[n]["stats"]["max"] for n in NAMES} == {(5 + n) * 7 + n for n in range(len(NAMES))}
        assert entries["text"]["repr"] == "'x\udc80y'", ascii(entries["text"])
        if path.endswith(".pt"):
            assert set(entries) == want, ascii(sorted(set(entries) ^ want))
            assert (entries["k\udc80"]["value"], entries["k\udc81"]["value"]) == (1, 2)


def test_documents_are_read_back(t):
    import torch
    for path in save(t):
        t.run("layout", path, "-o", t.at("layout.json"))
        t.run("validate", path, "--layout", t.at("layout.json"))
        t.run("manifest", path, "-o", t.at("manifest.json"))
        t.run("verify", path, t.at("manifest.json"))
    changed = {**state_dict(), "a\udc81": torch.zeros(7)}
    torch.save(changed, t.at("changed.pt"))
    found = document(t, "verify", t.at("changed.pt"), t.at("manifest.json"), "--json", status=1)["findings"]
    assert [f["fqn"] for f in found if f["rule"] == "layout/digest" and f["fqn"].startswith("a")] == ["a\udc81"], ascii(found)
    known = t.run("diff", t.at("s.pt"), t.at("changed.pt"), "--values", "--json", status=1).stdout
    assert [c["fqn"] for c in json.loads(known)["changed"]] == ["a\udc81"], ascii(known)
    with open(t.at("known.json"), "wb") as f:
        f.write(known)
    t.run("diff", t.at("s.pt"), t.at("changed.pt"), "--values", "--baseline", t.at("known.json"))
    torch.save({**changed, "a\udc80": torch.zeros(6)}, t.at("more.pt"))
    more = document(t, "diff", t.at("s.pt"), t.at("more.pt"), "--values", "--json", "--baseline", t.at("known.json"), status=1)
    assert [c["fqn"] for c in more["changed"]] == ["a\udc80"], ascii(more)


def test_conversions_keep_the_names(t):
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    path, _ = save(t)
    want = state_dict()
    t.run("convert", path, t.at("o.dcp"), "--to", "dcp")
    dcp_to_torch_save(t.at("o.dcp"), t.at("back.pt"))
    t.run("convert", path, t.at("o.pt"))
    for got in (torch.load(t.at("o.pt")), torch.load(t.at("back.pt"))):
        assert set(got) - {"list"} >= set(want) - {"list"} and got["text"] == want["text"], ascii(list(got))
        assert all(torch.equal(got[n], want[n]) for n in NAMES)
    refused = t.run("convert", path, t.at("o.safetensors"), "--objects", "drop", status=2).stderr
    assert b"not UTF-8" in refused and not os.path.exists(t.at("o.safetensors")), refused


def test_sarif_holds_no_lone_surrogates(t):
    import torch
    path = t.at("sarif.pt")
    torch.save({"a\ud800b": torch.tensor([float("nan")]), "c\udfff": torch.tensor([float("inf")])}, path)
    sarif = json.loads(t.run("validate", "--deep", path, "--format", "sarif").stdout)
    names = [r["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] for r in sarif["runs"][0]["results"]]
    assert names == ["a\ufffdb", "c\ufffd"], names
    names = [f["fqn"] for f in json.loads(t.run("validate", "--deep", path, "--json").stdout)["findings"]]
    assert names == ["a\ud800b", "c\udfff"], names
