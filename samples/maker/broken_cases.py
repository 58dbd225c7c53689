"""Broken and suspicious samples. Each is a copy of a good one with one change, and has a golden file that states what is wrong and
what the reference does with it. `problems` are errors; `warnings` are oddities of a checkpoint that can be read. Two samples have pickles
that call `os.system("exit 0")`. They are never loaded here, and reading them as data runs nothing.
"""
import dataclasses
import functools
import json
import os
import pickle
import struct

import torch
from safetensors import SafetensorError

from . import dcp_cases, golden, safetensors_cases, torch_cases
from .registry import case

CALL = b"cos\nsystem\nX\x06\x00\x00\x00exit 0\x85R0"  # a pickle that calls os.system("exit 0") and drops the result


def broken(name, base, read, what, problem=None, warning=None, **more):
    """Registers a broken sample. `problem` or `warning` states the one thing that is wrong."""
    verdict = {"problems": [problem] if problem else [], **({"warnings": [warning]} if warning else {}), **more}
    return case(name, functools.partial(read, verdict=verdict), what, base=base)


def expect(case, form, path, verdict, reference):
    return {"format": form, "path": path, **({"base": case.base} if case.base else {}), **verdict, "reference": reference}


# DCP

def read_dcp(case, verdict, form="dcp"):
    metadata = os.path.join(case.name, ".metadata")
    if "call" in case.name:
        return expect(case, form, case.name, verdict, "not loaded: PyTorch reads .metadata with plain pickle, which would call")
    if not os.path.exists(metadata):
        return expect(case, form, case.name, verdict, "no .metadata")
    return expect(case, form, case.name, verdict, compared(case))


def compared(case):
    """PyTorch's error when it loads the sample, or which tensors then equal those of the base."""
    try:
        metadata = dcp_cases.dcp.FileSystemReader(case.name).read_metadata()
        flat = dcp_cases.load_flat(metadata, dcp_cases.dcp.FileSystemReader(case.name))
    except BaseException as e:  # CheckpointException is not an Exception
        return {"load": error_text(e)}
    base = dcp_cases.load_flat(dcp_cases.dcp.FileSystemReader(case.base).read_metadata(), dcp_cases.dcp.FileSystemReader(case.base))
    same = {k for k in flat if k in base and golden.sort_out({k: flat[k]}) == golden.sort_out({k: base[k]})}
    return {"load": "ok", "same_as_base": sorted(same), "different": sorted(set(flat) - same)}


def error_text(e):
    lines = str(e).strip().splitlines() or [""]
    line = lines[-1] if type(e).__name__ == "CheckpointException" else lines[0]
    return f"{type(e).__name__}: {line[:200]}"


def metadata_of(name):
    with open(os.path.join(name, ".metadata"), "rb") as f:
        return pickle.load(f)


def write_metadata(name, metadata):
    with open(os.path.join(name, ".metadata"), "wb") as f:
        pickle.dump(metadata, f)


def index_of(metadata, fqn, offset):
    return next(i for i in metadata.storage_data if i.fqn == fqn and list(i.offset or ()) == offset)


def patch_storage(name, fqn, chunk, **changes):
    metadata = metadata_of(name)
    index = index_of(metadata, fqn, chunk)
    metadata.storage_data[index] = dataclasses.replace(metadata.storage_data[index], **changes)
    write_metadata(name, metadata)


def cut(path, keep):
    """Keeps the first bytes of a file; a negative number drops so many at its end."""
    with open(path, "rb") as f:
        data = f.read()
    with open(path, "wb") as f:
        f.write(data[:keep])


def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        old = f.read(1)
        f.seek(at)
        f.write(bytes([old[0] ^ 0x10]))


def find(path, needle):
    with open(path, "rb") as f:
        at = f.read().index(needle)
    return at


@broken("broken_dcp_truncated", "dcp_small", read_dcp, "the last 600 bytes of a data file are gone", "__1_0.distcp ends before the items that .metadata places in it")
def break_truncated(name):
    cut(os.path.join(name, "__1_0.distcp"), -600)


@broken("broken_dcp_byte_flipped", "dcp_small", read_dcp, "one bit of a tensor's bytes is flipped; PyTorch loads it", "CRC of the blob of weight [0, 0] does not match its bytes")
def break_byte_flipped(name):
    path = os.path.join(name, "__0_0.distcp")
    info = next(v for k, v in metadata_of(name).storage_data.items() if k.fqn == "weight" and v.relative_path == "__0_0.distcp")
    values = dcp_cases.read_blob(name, info).numpy().tobytes()
    flip(path, find(path, values) + 5)


@broken("broken_dcp_hole", "dcp_small", read_dcp, "a chunk is missing from the metadata; PyTorch loads the checkpoint", "rows 3 to 5 of weight are covered by no chunk")
def break_hole(name):
    metadata = metadata_of(name)
    del metadata.storage_data[index_of(metadata, "weight", [3, 0])]
    weight = metadata.state_dict_metadata["weight"]
    weight.chunks[:] = [c for c in weight.chunks if list(c.offsets) != [3, 0]]
    write_metadata(name, metadata)


@broken("broken_dcp_storage_missing", "dcp_small", read_dcp, "a chunk whose location is not in storage_data", "chunk [3, 0] of weight has no entry in storage_data")
def break_storage_missing(name):
    metadata = metadata_of(name)
    del metadata.storage_data[index_of(metadata, "weight", [3, 0])]
    write_metadata(name, metadata)


@broken("broken_dcp_overlap", "dcp_small", read_dcp, "the second chunk begins one row too early", "chunks [0, 0] and [2, 0] of weight overlap in row 2, row 5 is covered by none")
def break_overlap(name):
    metadata = metadata_of(name)
    index = index_of(metadata, "weight", [3, 0])
    info, moved = metadata.storage_data.pop(index), torch.Size([2, 0])
    metadata.storage_data[dataclasses.replace(index, offset=moved)] = info
    chunks = metadata.state_dict_metadata["weight"].chunks
    chunks[1] = dataclasses.replace(chunks[1], offsets=moved)
    write_metadata(name, metadata)


@broken("broken_dcp_dtype", "dcp_small", read_dcp, "the metadata states a different dtype than the items; PyTorch loads and casts them", "weight is float64 in .metadata and float32 in its blobs")
def break_dtype(name):
    metadata = metadata_of(name)
    metadata.state_dict_metadata["weight"].properties.dtype = torch.float64
    write_metadata(name, metadata)


@broken("broken_dcp_tensor_size", "dcp_small", read_dcp, "the tensor is larger than its chunks; PyTorch loads it", "weight is [7, 4], its chunks cover 6 rows")
def break_tensor_size(name):
    metadata = metadata_of(name)
    metadata.state_dict_metadata["weight"].size = torch.Size([7, 4])
    write_metadata(name, metadata)


@broken("broken_dcp_blob_shape", "dcp_small", read_dcp, "an item has a different shape than its chunk", "the blob of weight [0, 0] is [4, 3], its chunk is [3, 4]")
def break_blob_shape(name):
    path = os.path.join(name, "__0_0.distcp")
    info = next(v for k, v in metadata_of(name).storage_data.items() if k.fqn == "weight" and v.relative_path == "__0_0.distcp")
    with open(path, "r+b") as f:
        f.seek(info.offset)
        blob = f.read(info.length)
        reshaped = blob_of(torch.load(bytes_file(blob)).reshape(4, 3))
        assert len(reshaped) == len(blob)
        f.seek(info.offset)
        f.write(reshaped)


def bytes_file(data):
    import io
    return io.BytesIO(data)


def blob_of(tensor):
    out = bytes_file(b"")
    torch.save(tensor.clone(), out)
    return out.getvalue()


@broken("broken_dcp_path_traversal", "dcp_small", read_dcp, "a relative path that leaves the directory", "weight [0, 0] is placed in ../dcp_small/__0_0.distcp, outside the directory")
def break_path_traversal(name):
    patch_storage(name, "weight", [0, 0], relative_path="../dcp_small/__0_0.distcp")


@broken("broken_dcp_absolute_path", "dcp_small", read_dcp, "an absolute path", "weight [0, 0] is placed in /nowhere/__0_0.distcp, an absolute path")
def break_absolute_path(name):
    patch_storage(name, "weight", [0, 0], relative_path="/nowhere/__0_0.distcp")


@broken("broken_dcp_beyond_end", "dcp_small", read_dcp, "an item that ends beyond the end of its file", "weight [0, 0] ends beyond the end of __0_0.distcp")
def break_beyond_end(name):
    patch_storage(name, "weight", [0, 0], length=100_000)


@broken("broken_dcp_huge_offset", "dcp_small", read_dcp, "an offset near 2^63", "weight [0, 0] begins at 9223372036854775800, beyond its file, and its end is no 64-bit number")
def break_huge_offset(name):
    patch_storage(name, "weight", [0, 0], offset=2**63 - 8)


@broken("broken_dcp_negative_offset", "dcp_small", read_dcp, "a negative offset", "weight [0, 0] begins at -1")
def break_negative_offset(name):
    patch_storage(name, "weight", [0, 0], offset=-1)


@broken("broken_dcp_same_blob", "dcp_small", read_dcp, "two chunks that claim the same bytes; PyTorch loads it", "chunks [0, 0] and [3, 0] of weight are placed in the same bytes of __0_0.distcp")
def break_same_blob(name):
    metadata = metadata_of(name)
    first = metadata.storage_data[index_of(metadata, "weight", [0, 0])]
    metadata.storage_data[index_of(metadata, "weight", [3, 0])] = first
    write_metadata(name, metadata)


@broken("broken_dcp_missing_file", "dcp_small", read_dcp, "a data file is missing", "__1_0.distcp is missing")
def break_missing_file(name):
    os.remove(os.path.join(name, "__1_0.distcp"))


@broken("broken_dcp_stray_file", "dcp_small", read_dcp, "a data file that nothing refers to", warning="__9_0.distcp is referenced by nothing")
def break_stray_file(name):
    with open(os.path.join(name, "__9_0.distcp"), "wb") as f:
        f.write(blob_of(torch.zeros(2)))


@broken("broken_dcp_no_metadata", "dcp_small", read_dcp, "the job died before .metadata was written", "there is no .metadata")
def break_no_metadata(name):
    os.remove(os.path.join(name, ".metadata"))


@broken("broken_dcp_metadata_truncated", "dcp_small", read_dcp, ".metadata is truncated", ".metadata ends within its pickle")
def break_metadata_truncated(name):
    cut(os.path.join(name, ".metadata"), -200)


@broken("broken_dcp_metadata_call", "dcp_small", read_dcp, ".metadata calls os.system", ".metadata would call os.system")
def break_metadata_call(name):
    path = os.path.join(name, ".metadata")
    with open(path, "rb") as f:
        data = f.read()
    with open(path, "wb") as f:
        f.write(data[:2] + CALL + data[2:])


@broken("broken_dcp_zstd", "dcp_zstd", read_dcp, "a byte inside a compressed item is flipped", "the zip inside the zstd stream of zeros is damaged")
def break_zstd(name):
    info = next(v for k, v in metadata_of(name).storage_data.items() if k.fqn == "zeros")
    flip(os.path.join(name, info.relative_path), info.offset + info.length // 2)


# Sharded safetensors of DCP

def read_hf(case, verdict):
    try:
        found = dcp_cases.read_hf(case)["entries"]
    except BaseException as e:
        return expect(case, "dcp-safetensors", case.name, verdict, {"load": error_text(e)})
    whole = {} if verdict["problems"] else {"entries": found, "objects": {}}  # where rows are missing PyTorch returns uninitialized memory
    return {**expect(case, "dcp-safetensors", case.name, verdict, {"load": "ok"}), **whole}


def drop_shard(name, number):
    for file in os.listdir(name):
        if file.startswith(f"shard-{number:05d}-"):
            os.remove(os.path.join(name, file))


@broken("broken_hf_hole", "dcp_hf_sharded", read_hf, "the files of a middle rank are missing", "rows 3 to 5 of emb.weight are in no file")
def break_hf_hole(name):
    drop_shard(name, 2)


@broken("broken_hf_tail", "dcp_hf_sharded", read_hf, "the files of the last rank are missing; global shapes are only inferred, so nothing in the other files shows it", warning="rank numbers of the files do not say whether a trailing shard is lost")
def break_hf_tail(name):
    drop_shard(name, 4)


# torch.save

def read_torch(case, verdict, file, form="torch-zip"):
    path = os.path.join(case.name, file)
    if "call" in case.name:
        return expect(case, form, path, verdict, {"weights_only": weights_only_error(path)})
    try:
        found = torch_cases.flattened(torch.load(path, weights_only=True))
    except Exception as e:
        return expect(case, form, path, verdict, {"load": error_text(e)})
    return {**expect(case, form, path, verdict, {"load": "ok"}), "entries": found["entries"], "objects": found["objects"]}


def weights_only_error(path):
    """The restricted loader calls nothing."""
    try:
        torch.load(path, weights_only=True)
        return "ok"
    except pickle.UnpicklingError as e:
        return type(e).__name__


read_model = functools.partial(read_torch, file="model.pt")


def rewrite(path, change):
    """Rewrites the zip with PyTorch's own writer, passing each member through change(name, bytes) -> bytes or None."""
    reader = torch._C.PyTorchFileReader(path)
    members = {name: reader.get_record(name) for name in reader.get_all_records()}
    writer = torch._C.PyTorchFileWriter(path)
    for name, data in members.items():
        changed = change(name, data)
        if changed is not None and not name.startswith((".", "version")):
            writer.write_record(name, changed, len(changed))
    writer.write_end_of_file()


@broken("broken_torch_truncated", "torch_plain", read_model, "the last 300 bytes are gone", "the file ends before its central directory does")
def break_torch_truncated(name):
    cut(os.path.join(name, "model.pt"), -300)


@broken("broken_torch_byte_flipped", "torch_plain", read_model, "one bit of a tensor is flipped; PyTorch loads it", "CRC of data/0 does not match its bytes")
def break_torch_byte_flipped(name):
    path = os.path.join(name, "model.pt")
    weight = torch.load(path)["emb.weight"].numpy().tobytes()
    flip(path, find(path, weight) + 9)


@broken("broken_torch_storage_missing", "torch_plain", read_model, "a storage that the pickle refers to is not in the zip", "storage '1' is not in the file")
def break_torch_storage_missing(name):
    rewrite(os.path.join(name, "model.pt"), lambda member, data: None if member == "data/1" else data)


@broken("broken_torch_storage_short", "torch_plain", read_model, "a storage is shorter than the pickle states", "storage '1' has 20 bytes, the pickle says 24")
def break_torch_storage_short(name):
    rewrite(os.path.join(name, "model.pt"), lambda member, data: data[:20] if member == "data/1" else data)


@broken("broken_torch_view_outside", "torch_plain", read_model, "a tensor that reaches beyond its storage", "emb.weight is [99, 6], its storage has 66 elements")
def break_torch_view_outside(name):
    rewrite(os.path.join(name, "model.pt"), lambda member, data: data.replace(b"K\x0bK\x06\x86", b"K\x63K\x06\x86") if member == "data.pkl" else data)


@broken("broken_torch_call", "torch_plain", read_model, "the pickle calls os.system", "data.pkl would call os.system")
def break_torch_call(name):
    rewrite(os.path.join(name, "model.pt"), lambda member, data: data[:2] + CALL + data[2:] if member == "data.pkl" else data)


@broken("broken_torch_no_pickle", "torch_plain", read_model, "a zip like PyTorch's, but without data.pkl", "there is no data.pkl")
def break_torch_no_pickle(name):
    rewrite(os.path.join(name, "model.pt"), lambda member, data: None if member == "data.pkl" else data)


@broken("broken_torch_duplicate_member", "torch_plain", read_model, "a second data.pkl is appended to the zip; readers differ in which one they use", "data.pkl is there twice", judge="either")
def break_torch_duplicate_member(name):
    import warnings
    import zipfile
    warnings.simplefilter("ignore")
    with zipfile.ZipFile(os.path.join(name, "model.pt"), "a") as z:
        member = next(n for n in z.namelist() if n.endswith("/data.pkl"))
        z.writestr(zipfile.ZipInfo(member), z.read(member))


@broken("broken_torch_deflated", "torch_plain", read_model, "repacked by an ordinary zip program, with compressed members", "members are compressed, torch.save stores them", judge="either")
def break_torch_deflated(name):
    import zipfile
    path = os.path.join(name, "model.pt")
    with zipfile.ZipFile(path) as z:
        members = {n: z.read(n) for n in z.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for member, data in members.items():
            z.writestr(zipfile.ZipInfo(member), data, zipfile.ZIP_DEFLATED)


@broken("broken_torch_legacy_truncated", "torch_legacy_dtypes", functools.partial(read_torch, file="dtypes.pt", form="torch-legacy"), "the last 40 bytes are gone", "the last storage ends beyond the file")
def break_torch_legacy_truncated(name):
    cut(os.path.join(name, "dtypes.pt"), -40)


# One file per rank

def read_ranks(case, verdict):
    return expect(case, "torch-ranks", case.name, verdict, "PyTorch reads each file by itself")


@broken("broken_ranks_differ", "torch_ranks_tp_fsdp2", read_ranks, "next to sharded tensors, a plain tensor differs between ranks", "model.steps_seen differs between rank0.pt and rank1.pt")
def break_ranks_differ(name):
    path = os.path.join(name, "rank1.pt")
    state = torch.load(path, weights_only=False)
    state["model"]["steps_seen"] += 1
    torch.save(state, path)


@broken("broken_ranks_missing", "torch_ranks_tp_fsdp2", read_ranks, "the file of one rank is missing", "what rank 2 holds of model.block.up.weight is in no file")
def break_ranks_missing(name):
    os.remove(os.path.join(name, "rank2.pt"))


# safetensors

TWO = {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "b": {"dtype": "U8", "shape": [3], "data_offsets": [16, 19]}}


def read_safetensors(case, verdict):
    path = os.path.join(case.name, "model.safetensors")
    try:
        found = safetensors_cases.entries_of(path)
    except SafetensorError as e:
        return expect(case, "safetensors", path, verdict, {"load": error_text(e)})
    return {**expect(case, "safetensors", path, verdict, {"load": "ok"}), "entries": found}


def with_header(what, problem, header=None, data=bytes(range(19)), **more):
    """Registers a safetensors file written field by field: `what` is also its name."""
    name = "broken_safetensors_" + what

    def write(name):
        text = header if isinstance(header, bytes) else json.dumps(header or TWO).encode()
        safetensors_cases.write_file(os.path.join(name, "model.safetensors"), text, data)
    broken(name, None, read_safetensors, problem, problem, **more)(write)


def changed(**tensors):
    return {**TWO, **{k: {**TWO[k], **v} for k, v in tensors.items()}}


with_header("truncated", "b ends at 19, but the data section has 15 bytes", data=bytes(15))
with_header("trailing_bytes", "5 bytes follow the last tensor", data=bytes(24))
with_header("overlap", "a and b overlap in bytes 12 to 15", changed(b={"shape": [7], "data_offsets": [12, 19]}))
with_header("hole", "bytes 16 to 17 do not belong to any tensor", changed(b={"shape": [1], "data_offsets": [18, 19]}))
with_header("shape", "a is [3, 2] of F32, which needs 24 bytes, but it has 16", changed(a={"shape": [3, 2]}))
with_header("offsets_reversed", "data_offsets of b end before they begin", changed(b={"data_offsets": [19, 16]}))
with_header("overflow", "the shape of a has more elements than 64 bits can count", changed(a={"shape": [2**33, 2**33]}))
with_header("negative", "a negative size in the shape of a", changed(a={"shape": [-2, -2]}))
with_header("unknown_dtype", "F33 is not a dtype", changed(a={"dtype": "F33"}))
with_header("not_json", "the header is not JSON", b'{"a":')
with_header("not_utf8", "the header is not UTF-8", b'{"\xff\xfe":{"dtype":"U8","shape":[19],"data_offsets":[0,19]}}')
with_header("duplicate_name", "the name a occurs twice", json.dumps(TWO).replace('"b"', '"a"').encode())
with_header("no_object", "the header is a list", b"[]", data=b"")


@broken("broken_safetensors_header_length", None, read_safetensors, "a header that is longer than the file", "the header's length is 1152921504606846976, the file has 163 bytes")
def break_header_length(name):
    path = os.path.join(name, "model.safetensors")
    safetensors_cases.write_file(path, json.dumps(TWO).encode(), bytes(range(19)))
    with open(path, "r+b") as f:
        f.write(struct.pack("<Q", 2**60))


def read_index(case, verdict):
    return expect(case, "safetensors-index", os.path.join(case.name, "model.safetensors.index.json"), verdict, "an index has no reader of its own: each file is read by itself")


def change_index(name, change):
    path = os.path.join(name, "model.safetensors.index.json")
    with open(path) as f:
        index = json.load(f)
    change(index)
    with open(path, "w") as f:
        json.dump(index, f, indent=2)


SECOND = "model-00002-of-00003.safetensors"


@broken("broken_index_missing_file", "safetensors_index", read_index, "a file that the index names is missing", SECOND + " is missing")
def break_index_missing_file(name):
    os.remove(os.path.join(name, SECOND))


@broken("broken_index_path_traversal", "safetensors_index", read_index, "a file name that leaves the directory", "emb.weight is placed in ../safetensors_index/" + SECOND)
def break_index_path_traversal(name):
    change_index(name, lambda index: index["weight_map"].update({"emb.weight": "../safetensors_index/" + SECOND}))


@broken("broken_index_missing_key", "safetensors_index", read_index, "a tensor is not in the file that the index names for it", f"ghost.weight is not in {SECOND}")
def break_index_missing_key(name):
    change_index(name, lambda index: index["weight_map"].update({"ghost.weight": SECOND}))


@broken("broken_index_key_not_listed", "safetensors_index", read_index, "a file contains a tensor that the index does not list", warning="emb.weight is in a file and not in the index")
def break_index_key_not_listed(name):
    change_index(name, lambda index: index["weight_map"].pop("emb.weight"))


@broken("broken_index_total_size", "safetensors_index", read_index, "a wrong total_size", warning="total_size is 1, the tensors have more bytes")
def break_index_total_size(name):
    change_index(name, lambda index: index["metadata"].update(total_size=1))
