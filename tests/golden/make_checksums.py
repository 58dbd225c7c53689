"""Writes checksums/: safetensors files with tessera.crc32 as the last key of a __metadata__ at the end of the header, by Python's zlib.

    damaged    of six files, three do not have the bytes that they state: one in a tensor, one in its header, one in its padding
    misspelt   one file is whole but for a letter of the key; in the other that letter is a writer's own, and the digits mean nothing
    digits     one of two files has a digit that is none
"""
import json
import os
import struct
import zlib

import numpy

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "checksums")
KEY, NONE = b"tessera.crc32", b"00000000"


def file(seed, name):
    rows = 3 + seed
    values = [numpy.random.default_rng(seed * 10 + i).standard_normal((rows, 8 << i)).astype("<f4").tobytes() for i in range(4)]
    header, at = {}, 0
    for i, raw in enumerate(values):
        header[f"{name}.{i}"] = {"dtype": "F32", "shape": [rows, 8 << i], "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    header["__metadata__"] = {"format": "pt", "writer": name, KEY.decode(): NONE.decode()}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 64)
    data = struct.pack("<Q", len(text)) + text + b"".join(values)
    return bytearray(data.replace(NONE, b"%08x" % zlib.crc32(data)))


def change(data, at, what):
    data[at:at + len(what)] = what


def write(directory, files):
    os.makedirs(os.path.join(HERE, directory), exist_ok=True)
    names = {}
    for i, data in enumerate(files):
        name = f"model-{i + 1:05d}-of-{len(files):05d}.safetensors"
        header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
        names |= {tensor: name for tensor in header if tensor != "__metadata__"}
        with open(os.path.join(HERE, directory, name), "wb") as f:
            f.write(data)
    with open(os.path.join(HERE, directory, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": names}, f, indent=1)


damaged = [file(i, f"layer{i}") for i in range(6)]
change(damaged[1], len(damaged[1]) - 300, bytes([damaged[1][-300] ^ 4]))
change(damaged[3], damaged[3].index(b"writer"), b"Writer")
change(damaged[4], damaged[4].index(b"}}") + 2, b"\t")
write("damaged", damaged)

misspelt = [file(i, f"layer{i}") for i in range(2)]
for data in misspelt:
    change(data, data.index(KEY), b"tessera.crc33")
change(misspelt[1], misspelt[1].index(b"crc33") + 8, b"01234567")
write("misspelt", misspelt)

digits = [file(i, f"layer{i}") for i in range(2)]
change(digits[1], digits[1].index(KEY) + len(KEY) + 5, b"F")
write("digits", digits)
