"""Hand-assembled pickles, and each kind of checkpoint around one of them. A *fragment* is a sequence of opcodes that leaves
one item on the stack."""
import io
import os
import pickle
import struct
import zipfile

MAGIC = 0x1950A86A20F9469CFC6C


def s(text):
    data = text.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def glob(module, name):
    """GLOBAL, with the module and the name on separate lines."""
    return f"c{module}\n{name}\n".encode()


def stack_global(module, name):
    return s(module) + s(name) + b"\x93"


def tup(*items):
    return b"(" + b"".join(items) + b"t"


def call(callee, *args):
    return callee + tup(*args) + b"R"


def new(class_, *args):
    return class_ + tup(*args) + b"\x81"


def dict_of(**items):
    return b"}(" + b"".join(s(k) + v for k, v in items.items()) + b"u"


def persistent(key="0", numel=4):
    return tup(s("storage"), glob("torch", "FloatStorage"), s(key), s("cpu"), b"K" + bytes([numel])) + b"Q"


def tensor(storage=None, offset=b"K\0", size=b"K\4\x85", stride=b"K\1\x85", rest=b"\x89" + glob("collections", "OrderedDict") + b")R"):
    return call(glob("torch._utils", "_rebuild_tensor_v2"), storage or persistent(), offset, size, stride, rest)


FLOATS = struct.pack("<4f", 1.5, -2.25, 3.0, 0.125)


def archive(data_pkl, members=(), storages=None):
    """A torch.save archive. `members` are (name below the top directory, bytes), which are added to the usual ones or
    replace them."""
    usual = {"data.pkl": data_pkl, "version": b"3\n", "byteorder": b"little"}
    usual.update({f"data/{k}": v for k, v in ({"0": FLOATS} if storages is None else storages).items()})
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
        for name, data in {**usual, **dict(members)}.items():
            if data is not None:
                z.writestr(f"archive/{name}", data)
    return out.getvalue()


def legacy(obj, before=(), keys=pickle.dumps([], 2), tail=b""):
    """The format before PyTorch 1.6. `before` replaces the pickles of magic number, version and system, by position."""
    parts = [pickle.dumps(v, 2) for v in (MAGIC, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}})]
    for i, part in before:
        parts[i] = part
    return b"".join(parts) + obj + keys + tail


META = "torch.distributed.checkpoint.metadata"


def metadata(state=b"}", storage=b"}", extra=b""):
    """The pickle of a `.metadata` file. `extra` are more attributes of Metadata: keys and values."""
    pairs = s("state_dict_metadata") + state + s("planner_data") + b"N" + s("storage_data") + storage + extra
    return b"\x80\4" + new(glob(META, "Metadata")) + b"}(" + pairs + b"ub."


def index(fqn, offset=None):
    return new(glob(META, "MetadataIndex")) + dict_of(fqn=s(fqn), offset=offset or b"N", index=b"N") + b"b"


def size(*dims):
    return call(glob("torch", "Size"), tup(*(b"K" + bytes([d]) for d in dims)))


def tensor_metadata(*dims, properties=None):
    properties = properties or tup(glob("torch", "float32"), call(glob("torch.serialization", "_get_layout"), s("torch.strided")), b"\x89", call(glob(META, "_MEM_FORMAT_ENCODING"), b"K\0"), b"\x89")
    props = new(glob(META, "TensorProperties")) + properties + b"b"
    chunk = new(glob(META, "ChunkStorageMetadata")) + dict_of(offsets=size(*(0 for _ in dims)), sizes=size(*dims)) + b"b"
    return new(glob(META, "TensorStorageMetadata")) + dict_of(properties=props, size=size(*dims), chunks=b"](" + chunk + b"e") + b"b"


def dcp(directory, item, is_tensor, meta=None):
    """A checkpoint with one entry, 'x', whose item is the archive `item`."""
    os.makedirs(directory, exist_ok=True)
    entry = meta or (tensor_metadata(4) if is_tensor else new(glob(META, "BytesStorageMetadata")))
    number = b"J" + struct.pack("<i", len(item))
    place = new(glob("torch.distributed.checkpoint.filesystem", "_StorageInfo")) + dict_of(relative_path=s("__0_0.distcp"), offset=b"K\0", length=number) + b"b"
    with open(os.path.join(directory, ".metadata"), "wb") as f:
        f.write(metadata(b"}" + s("x") + entry + b"s", b"}" + index("x", size(0) if is_tensor else None) + place + b"s"))
    with open(os.path.join(directory, "__0_0.distcp"), "wb") as f:
        f.write(item)
    return directory


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)
    return path


def kept(fragment):
    return b"\x80\4}" + s("k") + fragment + b"s."


def popped(fragment):
    return b"\x80\4" + fragment + b"0}."


def containers(directory, fragment):
    """Returns (name, path) of every kind of checkpoint that contains the fragment, once kept and once popped."""
    at = lambda *names: os.path.join(directory, *names)
    yield "zip", write(at("kept.pt"), archive(kept(fragment)))
    yield "zip, popped", write(at("popped.pt"), archive(popped(fragment)))
    yield "legacy", write(at("legacy.pt"), legacy(kept(fragment)))
    yield "legacy, version", write(at("version.pt"), legacy(b"}.", [(1, b"\x80\2" + fragment + b"0" + pickle.dumps(1001, 2)[2:])]))
    yield "legacy, system", write(at("system.pt"), legacy(b"}.", [(2, kept(fragment))]))
    yield "legacy, keys", write(at("keys.pt"), legacy(b"}.", keys=b"\x80\2" + fragment + b"0]."))
    yield "metadata", os.path.dirname(write(at("meta", ".metadata"), metadata(extra=s("later") + fragment)))
    yield "metadata, popped", os.path.dirname(write(at("meta2", ".metadata"), b"\x80\4" + fragment + b"0" + metadata()[2:]))
    yield "byte item", dcp(at("bytes"), archive(kept(fragment)), False)
    yield "tensor item", dcp(at("tensor"), archive(b"\x80\4" + fragment + b"0" + tensor() + b"."), True)
