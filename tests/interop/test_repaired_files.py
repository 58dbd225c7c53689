"""`tessera repair` of single files: safetensors loads what it refused before, with the same values."""
import os
import struct

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
    return doc, open(fixed, "rb").read()


def test_bytes_behind_the_end_and_nuls_in_the_header(t):
    for want, metadata in ((tensors(), {"format": "pt", "step": "9"}), ({"only": torch.zeros(0)}, None), ({"w": torch.randn(3)}, None)):
        save_file(want, t.at("sound.safetensors"), metadata=metadata)
        sound = open(t.at("sound.safetensors"), "rb").read()
        for more in (b"\0", b"\0" * 4096, b"leftovers of a longer file", sound):
            doc, fixed = check(t, sound + more, want)
            assert (doc["trailing_bytes"], doc["header_nuls"]) == (len(more), 0) and fixed == sound, doc
        doc, fixed = check(t, with_header(sound, b"\0" * 16), want)
        assert (doc["trailing_bytes"], doc["header_nuls"]) == (0, 16) and len(fixed) == len(sound) + 16, doc
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
