"""Beyond 4 GiB and, with TSR_TEST_FULL, beyond 64 GiB, in sparse files: exact sizes and places, holes kept, and real PyTorch
and safetensors read what was written by mapping it, or item by item. And very many entries."""
import io
import json
import os
import struct

from harness import load_safetensors

FULL = bool(os.environ.get("TSR_TEST_FULL"))
COLUMNS = 1 << 20  # of uint8: a row is 1 MiB


def write_header(f, tensors):
    header, at = {}, 0
    for name, dtype, shape, size in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    f.write(struct.pack("<Q", len(text)) + text)
    return 8 + len(text), at


def header_size(path):
    with open(path, "rb") as f:
        return 8 + struct.unpack("<Q", f.read(8))[0]


def write_sparse(path, rows):
    """`w` of rows MiB, zero but for marks: at both ends, on both sides of every 4 GiB; then `tail`, four numbers."""
    with open(path, "wb") as f:
        start, total = write_header(f, [("w", "U8", [rows, COLUMNS], rows << 20), ("tail", "I32", [4], 16)])
        f.truncate(start + total)
        marks = {0, (rows << 20) - 1} | {g + d for g in range(1 << 32, rows << 20, 1 << 32) for d in (-1, 0)}
        for n, at in enumerate(sorted(marks)):
            f.seek(start + at)
            f.write(bytes([n % 250 + 1]))
        f.seek(start + (rows << 20))
        f.write(struct.pack("<4i", 1, -2, 3, -4))
    return {at: n % 250 + 1 for n, at in enumerate(sorted(marks))}


def load_mapped(path):
    """torch.load by mapping; shared, because more than the machine's memory cannot be mapped otherwise."""
    import mmap
    import torch
    with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
        return torch.load(path, mmap=True, weights_only=True)


def check_marks(tensor, marks, what):
    for at, value in marks.items():
        row, column = divmod(at, COLUMNS)
        got = tensor[row:row + 1, max(column - 1, 0):min(column + 2, COLUMNS)].reshape(-1).tolist()
        around = [marks.get(row * COLUMNS + c, 0) for c in range(max(column - 1, 0), min(column + 2, COLUMNS))]
        assert got == around and value in got, f"{what}: {got} around byte {at}, not {around}"


def expect_holes(*paths):
    for path in paths:
        info = os.stat(path)
        assert info.st_blocks * 512 < (64 << 20) < info.st_size or info.st_size < (64 << 20), f"{path} takes {info.st_blocks * 512} of {info.st_size} bytes"


def room_for_sparse(t):
    with open(t.at("probe"), "wb") as f:
        f.truncate(1 << 30)
    return os.stat(t.at("probe")).st_blocks == 0


def copy_item(source, offset, length, dest):
    """A range of a sparse file as a file of its own, holes kept."""
    with open(source, "rb") as f, open(dest, "wb") as out:
        out.truncate(length)
        at = offset
        while at < offset + length:
            try:
                at = os.lseek(f.fileno(), at, os.SEEK_DATA)
            except OSError:
                return
            end = min(os.lseek(f.fileno(), at, os.SEEK_HOLE), offset + length)
            while at < end:
                f.seek(at)
                piece = f.read(min(1 << 20, end - at))
                out.seek(at - offset)
                out.write(piece)
                at += len(piece)


def check_size(t, rows):
    import torch
    from safetensors import safe_open
    from torch.distributed.checkpoint import FileSystemReader
    marks = write_sparse(t.at("m.safetensors"), rows)
    patient = dict(timeout=900)
    t.run("convert", t.at("m.safetensors"), t.at("m.pt"), **patient)
    t.run("convert", t.at("m.safetensors"), t.at("d"), "--to", "dcp", **patient)
    t.run("convert", t.at("d"), t.at("back.safetensors"), **patient)
    t.run("convert", t.at("m.pt"), t.at("shards"), "--to", "safetensors", "--max-shard-size", "1GiB", **patient)
    t.run("reshard", t.at("m.pt"), t.at("r"), "--mesh", "2", "--placements", "shard(0)", "--to", "torch", **patient)
    data = rows << 20
    assert os.path.getsize(t.at("back.safetensors")) == header_size(t.at("back.safetensors")) + data + 16
    expect_holes(t.at("m.pt"), t.at("d", "__0_0.distcp"), t.at("back.safetensors"), t.at("r", "rank0.pt"), t.at("r", "rank1.pt"))

    loaded = load_mapped(t.at("m.pt"))
    assert loaded["w"].shape == (rows, COLUMNS) and loaded["tail"].tolist() == [1, -2, 3, -4]
    check_marks(loaded["w"], marks, "torch.load")
    for name in ("m.safetensors", "back.safetensors"):
        with safe_open(t.at(name), "np") as f:  # "pt" maps it as memory to write to, which must fit
            piece = f.get_slice("w")
            assert piece.get_shape() == [rows, COLUMNS] and f.get_tensor("tail").tolist() == [1, -2, 3, -4]
            check_marks(piece, marks, name)

    metadata = FileSystemReader(t.at("d")).read_metadata()
    place = next(s for i, s in metadata.storage_data.items() if i.fqn == "w")
    assert place.length > data and metadata.state_dict_metadata["w"].size == (rows, COLUMNS)
    copy_item(t.at("d", place.relative_path), place.offset, place.length, t.at("item.pt"))
    check_marks(load_mapped(t.at("item.pt")), marks, "the DCP item")
    tail = next(s for i, s in metadata.storage_data.items() if i.fqn == "tail")
    with open(t.at("d", tail.relative_path), "rb") as f:
        f.seek(tail.offset)
        assert torch.load(io.BytesIO(f.read(tail.length)), weights_only=True).tolist() == [1, -2, 3, -4]
    t.run("diff", t.at("m.safetensors"), t.at("r"), "--values", timeout=900)


def test_more_than_4_gib(t):
    assert room_for_sparse(t), "the scratch directory's file system has no sparse files"
    check_size(t, 4103)


def test_more_than_64_gib(t):
    if FULL:
        check_size(t, 65543)
    else:
        write_sparse(t.at("m.safetensors"), 65543)  # its plan at least: places beyond 2**36
        doc = t.json("convert", t.at("m.safetensors"), t.at("d"), "--to", "dcp", "--dry-run", "--json")
        assert doc["files"][0]["bytes"] > 65543 << 20


def test_more_than_100_000_entries(t):
    import torch
    count = 100_003
    with open(t.at("m.safetensors"), "wb") as f:
        write_header(f, [(f"layers.{i}.w", "I32", [2], 8) for i in range(count)])
        f.write(b"".join(struct.pack("<2i", i, -i) for i in range(count)))
    t.run("convert", t.at("m.safetensors"), t.at("m.pt"))
    t.run("convert", t.at("m.pt"), t.at("d"), "--to", "dcp")
    t.run("convert", t.at("d"), t.at("back.safetensors"))
    back = load_safetensors(t.at("back.safetensors"))
    assert len(back) == count and all(back[f"layers.{i}.w"].tolist() == [i, -i] for i in range(0, count, 997))
    loaded = torch.load(t.at("m.pt"), mmap=True, weights_only=True)
    assert len(loaded) == count and all(loaded[f"layers.{i}.w"].tolist() == [i, -i] for i in range(0, count, 997))
    picked = {f"layers.{i}.w": torch.zeros(2, dtype=torch.int32) for i in range(0, count, 9973)}
    torch.distributed.checkpoint.load(picked, checkpoint_id=t.at("d"), no_dist=True)
    assert all(v.tolist() == [int(k.split(".")[1]), -int(k.split(".")[1])] for k, v in picked.items())
