"""Data of jobs, made in the scratch directory on first use."""
import json
import math
import os
import struct


def write_once(path, write):
    """Calls `write` with a temporary path unless the path exists, so that what an interrupted run left is not used. Returns the path."""
    if not os.path.exists(path):
        write(path + ".new")
        os.rename(path + ".new", path)
    return path


def write_safetensors(path, tensors, blocks):
    """Writes tensors of float32, which are (name, shape). `blocks` are their bytes, one after another."""
    header, end = {}, 0
    for name, shape in tensors:
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.writelines(blocks)
