"""`tessera repair` of single files: safetensors loads what it refused before, with the same values."""
import json
import os
import struct
import zlib

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file


def tensors():
    torch.manual_seed(7)
    return {"layers.0.weight": torch.randn(5, 3), "layers.0.bias": torch.randn(5).to(torch.bfloat16), "empty": torch.zeros(0, 4),
            "ids": torch.arange(7), "flag": torch.tensor(True)}


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)
    return path


def with_header(data, more):
    """The same file, with `more` bytes behind the header's text."""
    length = struct.unpack("<Q", data[:8])[0]
    return struct.pack("<Q", length + len(more)) + data[8:8 + length] + more + data[8 + length:]


def metadata_of(data):
    """Returns __metadata__ without the checksum, which has to be that of the file."""
    pairs = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]]).get("__metadata__", {})
    digits = pairs.pop("tessera.crc32")
    assert digits == f"{zlib.crc32(data.replace(digits.encode(), b'0' * 8, 1)):08x}"
    return pairs


def is_refused(path):
    try:
        load_file(path)
    except SafetensorError:
        return True
    return False


def check(t, data, want):
    broken, fixed = write(t.at("broken.safetensors"), data), t.at("fixed.safetensors")
    assert is_refused(broken)
    if os.path.exists(fixed):
        os.remove(fixed)
    doc = t.json("repair", broken, fixed, "--json")
    assert open(broken, "rb").read() == data and doc["written"] == fixed and doc["entries"] == len(want), doc
    got = load_file(fixed)
    assert set(got) == set(want) and all(got[n].dtype == want[n].dtype and torch.equal(got[n], want[n]) for n in want)
    t.run("validate", "--deep", fixed)
    return doc, metadata_of(open(fixed, "rb").read())


def test_bytes_behind_the_end_and_nuls_in_the_header(t):
    for want, metadata in ((tensors(), {"format": "pt", "step": "9"}), ({"only": torch.zeros(0)}, None), ({"w": torch.randn(3)}, None)):
        save_file(want, t.at("sound.safetensors"), metadata=metadata)
        sound = open(t.at("sound.safetensors"), "rb").read()
        for more in (b"\0", b"\0" * 4096, b"leftovers of a longer file", sound):
            doc, fixed = check(t, sound + more, want)
            assert (doc["trailing_bytes"], doc["header_nuls"]) == (len(more), 0) and fixed == (metadata or {"format": "pt"}), doc
        doc, fixed = check(t, with_header(sound, b"\0" * 16), want)
        assert (doc["trailing_bytes"], doc["header_nuls"]) == (0, 16) and fixed == (metadata or {"format": "pt"}), doc
        doc, fixed = check(t, with_header(sound, b" \0 \0\0") + b"\0\0\0", want)
        assert (doc["trailing_bytes"], doc["header_nuls"]) == (3, 3), doc


def test_what_lacks_something_is_refused(t):
    want = tensors()
    save_file(want, t.at("sound.safetensors"))
    sound = open(t.at("sound.safetensors"), "rb").read()
    for data in (sound[:-1], sound[:40], sound[:5], with_header(sound, b"\0 x"), sound[:8] + b"\0" + sound[9:]):
        said = t.run("repair", write(t.at("broken.safetensors"), data), t.at("out.safetensors"), status=2).stderr.decode()
        assert not os.path.exists(t.at("out.safetensors")) and "broken.safetensors" in said, said
    said = t.run("repair", t.at("sound.safetensors"), t.at("out.safetensors"), status=2).stderr.decode()
    assert "nothing to repair" in said and not os.path.exists(t.at("out.safetensors")), said
    write(t.at("out.safetensors"), b"mine")
    t.run("repair", write(t.at("broken.safetensors"), sound + b"\0"), t.at("out.safetensors"), status=2)
    assert open(t.at("out.safetensors"), "rb").read() == b"mine"


def test_truncated_files_of_before_1_6(t):
    """torch.save's form before zip archives: its storages follow the pickle one after the other, so a cut loses the last ones. What is lost is
    named, what is whole loads, and a cut in the pickle is refused."""
    torch.manual_seed(3)
    want = {f"layers.{i}.weight": torch.randn(40 + i, 7) for i in range(5)}
    torch.save({"model": want, "step": 9}, t.at("whole.pt"), _use_new_zipfile_serialization=False)
    data = open(t.at("whole.pt"), "rb").read()
    size = sum(8 + 4 * x.numel() for x in want.values())
    seen = set()
    for i, cut in enumerate((1, 500, 1200, 2500, 4000, size - 9 - 4 * 7 * 44)):
        write(t.at("cut.pt"), data[:-cut])
        doc = t.json("repair", t.at("cut.pt"), t.at(f"{i}.pt"), "--json", status=1)
        got = torch.load(t.at(f"{i}.pt"), weights_only=True)
        lost = {f["fqn"].removeprefix("model.") for f in doc["report"]["findings"] if f["rule"] == "repair/lost"}
        assert got["step"] == 9 and set(got.get("model", {})) == set(want) - lost and lost, (cut, lost)
        assert all(torch.equal(x, want[n]) for n, x in got.get("model", {}).items()), cut
        seen.add(len(lost))
    assert len(seen) > 2, seen
    write(t.at("cut.pt"), data[:200])
    assert t.run("repair", t.at("cut.pt"), t.at("none.pt"), status=2).stderr and not os.path.exists(t.at("none.pt"))
    assert open(t.at("whole.pt"), "rb").read() == data
