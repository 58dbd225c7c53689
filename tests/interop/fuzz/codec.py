"""State dicts as bytes between the fuzzer's two sides; wire.c is the other end.

A value is a tag and what follows. Numbers are little-endian, texts and lists begin with their length in four bytes:

    N  B bool  I int64  F float64  C complex128  S text  Y bytes  O class name of an object
    L list  U tuple  D dict: keys and values alternate
    T  number, dtype, ndim, shape, size, bytes                              a tensor
    M  number, dtype, ndim, shape, mesh, placements, size, bytes            a DTensor: the bytes are the local tensor's
    X  number, dtype, ndim, shape, count, boxes, then size and bytes each   a ShardedTensor: a box is offsets and sizes

Tensors are numbered as they come: one that occurs again is its number alone. Size 2**64 - 1 is a meta tensor. What is read
has Tensor in place of tensors."""
import struct
from dataclasses import dataclass

NO_BYTES = 2**64 - 1
NEW = 2**32 - 1


@dataclass(frozen=True)
class Tensor:
    """`parts`: (offsets, sizes, bytes) for each box of a ShardedTensor, or one for the local tensor; None: meta."""
    kind: str
    dtype: str
    shape: tuple
    mesh: str
    placements: str
    parts: tuple


class Writer:
    def __init__(self, tensors=None):
        self.out, self.numbers, self.kept = [], {}, []
        self.tensors = tensors  # what torch_side.py has for PyTorch's tensors: object → Tensor or None

    def text(self, data):
        data = data if isinstance(data, bytes) else data.encode()
        self.out += [struct.pack("<I", len(data)), data]

    def sizes(self, sizes):
        self.out.append(struct.pack(f"<{len(sizes)}Q", *sizes))

    def data(self, data):
        self.out += [struct.pack("<Q", len(data)), data]

    def tensor(self, key, t):
        self.out.append(t.kind.encode())
        known = self.numbers.get(key)
        if known is not None:
            self.out.append(struct.pack("<I", known))
            return
        self.numbers[key] = len(self.numbers)
        self.out.append(struct.pack("<I", NEW))
        self.text(t.dtype)
        self.out.append(struct.pack("<I", len(t.shape)))
        self.sizes(t.shape)
        if t.kind == "X":
            self.out.append(struct.pack("<I", len(t.parts)))
            for offsets, sizes, _ in t.parts:
                self.sizes(offsets)
                self.sizes(sizes)
        if t.kind == "M":
            self.text(t.mesh)
            self.text(t.placements)
        if t.parts is None:
            self.out.append(struct.pack("<Q", NO_BYTES))
        for _, _, data in t.parts or ():
            self.data(data)

    def items(self, tag, items):
        self.out += [tag, struct.pack("<I", len(items))]
        for item in items:
            self.value(item)

    def value(self, v):
        made = v if isinstance(v, Tensor) else self.tensors(v) if self.tensors else None
        if made is not None:
            self.kept.append(v)  # ids stay what they are
            return self.tensor(id(v), made)
        if v is None:
            self.out.append(b"N")
        elif isinstance(v, bool):
            self.out.append(b"B" + bytes([v]))
        elif isinstance(v, int):
            self.out.append(struct.pack("<cq", b"I", v))
        elif isinstance(v, float):
            self.out.append(struct.pack("<cd", b"F", v))
        elif isinstance(v, complex):
            self.out.append(struct.pack("<cdd", b"C", v.real, v.imag))
        elif isinstance(v, (str, bytes)):
            self.out.append(b"S" if isinstance(v, str) else b"Y")
            self.text(v)
        elif isinstance(v, dict):
            self.items(b"D", [x for pair in v.items() for x in pair])
        elif isinstance(v, (list, tuple)):
            self.items(b"L" if isinstance(v, list) else b"U", v)
        elif isinstance(v, Object):
            self.out.append(b"O")
            self.text(v.name)
        else:
            self.out.append(b"O")
            self.text(type(v).__name__)
        return None


@dataclass(frozen=True)
class Object:
    name: str


class Reader:
    def __init__(self, data):
        self.data, self.at, self.tensors = data, 0, []

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def bytes(self, size):
        self.at += size
        return self.data[self.at - size:self.at]

    def text(self):
        return self.bytes(self.take("I")[0]).decode()

    def tensor(self, kind):
        number, = self.take("I")
        if number < len(self.tensors):
            return self.tensors[number]
        dtype, dims = self.text(), self.take("I")[0]
        shape, mesh, placements = self.take(f"{dims}Q"), "", ""
        if kind == "X":
            boxes = [(self.take(f"{dims}Q"), self.take(f"{dims}Q")) for _ in range(self.take("I")[0])]
        elif kind == "M":
            mesh, placements = self.text(), self.text()
        if kind != "X":
            boxes = [((), ())]
        parts = []
        for offsets, sizes in boxes:
            size, = self.take("Q")
            if size == NO_BYTES:
                parts = None
                break
            parts.append((offsets, sizes, self.bytes(size)))
        self.tensors.append(Tensor(kind, dtype, shape, mesh, placements, None if parts is None else tuple(parts)))
        return self.tensors[-1]

    def value(self):
        tag = self.bytes(1)
        if tag in b"TMX":
            return self.tensor(tag.decode())
        if tag in b"LUD":
            items = [self.value() for _ in range(self.take("I")[0])]
            if tag == b"D":
                return dict(zip(items[::2], items[1::2]))
            return items if tag == b"L" else tuple(items)
        if tag == b"N":
            return None
        if tag == b"B":
            return self.take("B")[0] != 0
        if tag in b"IF":
            return self.take({b"I": "q", b"F": "d"}[tag])[0]
        if tag == b"C":
            return complex(*self.take("dd"))
        if tag == b"Y":
            return self.bytes(self.take("I")[0])
        if tag == b"O":
            return Object(self.text())
        assert tag == b"S", tag
        return self.text()


def encode(value, tensors=None):
    writer = Writer(tensors)
    writer.value(value)
    return b"".join(writer.out)


def decode(data):
    return Reader(data).value()
