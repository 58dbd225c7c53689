"""Checkpoints as mappings of names to entries. Needs only Python: tensors are read as memoryviews."""
from __future__ import annotations

import ctypes
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Iterator, Literal, Sequence, Union

from ._choices import Choices, Document, Layers, StrPath
from ._library import FOR_NAMES, Session, TesseraError

if TYPE_CHECKING:
    from types import EllipsisType
    from ._call import Against

Index = Union[int, slice, "EllipsisType"]

# The dtypes that memoryview has a format for. Tensors of other dtypes are read as bytes.
_MEMORYVIEW_FORMATS: dict[str, Any] = {"float64": "d", "float32": "f", "int64": "q", "int32": "i", "int16": "h", "int8": "b",
                                       "uint64": "Q", "uint32": "I", "uint16": "H", "uint8": "B", "bool": "?"}


class Entry:
    """An entry of a checkpoint: a tensor, an object, or something opaque (quantized, sparse, or of a class that is not data).

    name            the fully qualified name
    kind            "tensor", "object" or "opaque"
    dtype           PyTorch's name without "torch."; None if the entry is not a tensor
    shape           the shape of the whole tensor, whatever its sharding
    nbytes          the size of the whole tensor in bytes; 0 if the entry is not a tensor
    type            the class of an entry that is not a tensor; None for tensors
    path            keys and list positions from the root of the nested state dict; None if the name is a single flat key
    requires_grad   as stored"""

    __slots__ = ("_checkpoint", "_index", "name", "kind", "dtype", "shape", "nbytes", "type", "path", "requires_grad", "_chunks", "_has_copies")
    name: str
    kind: str
    dtype: str | None
    shape: tuple[int, ...]
    nbytes: int
    type: str | None
    path: tuple[str | int, ...] | None
    requires_grad: bool

    def __init__(self, checkpoint: Checkpoint, index: int) -> None:
        session = checkpoint._session
        info = session.entry(index)
        self._checkpoint, self._index = checkpoint, index
        self.name, self.kind, self.type = info.fqn.text(), info.kind.decode(), info.type.text() or None
        self.dtype = info.dtype.decode() if self.kind == "tensor" else None
        self.shape = tuple(info.shape[:info.ndim])
        self.nbytes, self._chunks = info.bytes, info.chunks
        self.path = session.keys(index, info.path_length) if info.path_length else None
        self.requires_grad, self._has_copies = bool(info.requires_grad), bool(info.has_copies)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.dtype} {list(self.shape)}>" if self.kind == "tensor" else f"<{self.name}: {self.kind} {self.type}>"

    @property
    def chunks(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """The chunks in which the checkpoint stores the tensor, as (offsets, sizes), in elements."""
        return [self._checkpoint._session.chunk(self._index, n, len(self.shape)) for n in range(self._chunks)]

    def read(self, offsets: Sequence[int] | None = None, sizes: Sequence[int] | None = None, out: Any = None) -> memoryview:
        """Read the box [offsets, offsets + sizes), in elements; by default, the whole tensor. Only the bytes of the box are read.

        The result is contiguous, row-major and little-endian, whatever the chunks, strides or compression. It is a memoryview of `out`, a
        writable contiguous buffer of exactly the box's size, or of new memory. It has the tensor's type and shape if memoryview
        has that type, and is one of bytes otherwise.

        Raises TypeError if the entry is not a tensor, ValueError for a box beyond the tensor or an unsuitable `out`, and
        TesseraError if the values cannot be read."""
        if self.kind != "tensor":
            raise TypeError(f"'{self.name}' is not one dense tensor but {self.type}")
        offsets = tuple(map(operator.index, offsets)) if offsets is not None else (0,) * len(self.shape)
        sizes = tuple(map(operator.index, sizes)) if sizes is not None else tuple(n - o for n, o in zip(self.shape, offsets))
        if len(offsets) != len(self.shape) or len(sizes) != len(self.shape) or any(n < 0 for n in (*offsets, *sizes)):
            raise ValueError(f"offsets and sizes of '{self.name}' are {len(self.shape)} numbers of 0 or more")
        if any(o + n > t for o, n, t in zip(offsets, sizes, self.shape)):
            raise ValueError(f"the box {list(sizes)} at {list(offsets)} is beyond '{self.name}' {list(self.shape)}")
        whole = sizes == self.shape
        elements, total = 1, 1
        for n, t in zip(sizes, self.shape):
            elements, total = elements * n, total * t
        size = self.nbytes if whole else elements * (self.nbytes // total if total else 0)
        view = memoryview(bytearray(size) if out is None else out)
        if view.readonly or not view.c_contiguous or view.nbytes != size:
            raise ValueError(f"out must be writable, contiguous and of {size} bytes")
        view = view.cast("B")
        if size:
            address = ctypes.addressof(ctypes.c_char.from_buffer(view))
            self._checkpoint._session.read([(self._index, offsets, sizes, address, size)])
        letter = _MEMORYVIEW_FORMATS.get(self.dtype or "")
        if letter is None or not size:
            return view
        return view.cast(letter, sizes) if sizes else view.cast(letter)

    def __getitem__(self, key: Index | tuple[Index, ...]) -> memoryview:
        """Read a slice, such as entry[2:5, 0] or entry[..., 0]. Slices may not have steps, and indexed dimensions keep size 1. See `read`."""
        return self.read(*self._box(key))

    def _box(self, key):
        """Returns the offsets and sizes of a slice."""
        if self.kind != "tensor":
            raise TypeError(f"'{self.name}' is not one dense tensor but {self.type}")
        key = key if isinstance(key, tuple) else (key,)
        rest = [at for at, part in enumerate(key) if part is ...]
        if len(rest) > 1:
            raise IndexError(f"a slice of '{self.name}' may have only one ...")
        if len(key) - len(rest) > len(self.shape):
            raise IndexError(f"'{self.name}' has {len(self.shape)} dims, not {len(key) - len(rest)}")
        at = rest[0] if rest else len(key)
        key = key[:at] + (slice(None),) * (len(self.shape) - len(key) + len(rest)) + key[at + 1:]
        offsets, sizes = [], []
        for n, part in zip(self.shape, key):
            if not isinstance(part, slice):
                if isinstance(part, bool) or not hasattr(part, "__index__"):
                    raise TypeError(f"'{self.name}' is indexed by integers, slices and ..., not by {type(part).__name__}")
                part = operator.index(part)
                at = part + n if part < 0 else part
                if not 0 <= at < n:
                    raise IndexError(f"{part} is outside a dim of {n} of '{self.name}'")
                part = slice(at, at + 1)
            start, stop, step = part.indices(n)
            if step != 1:
                raise IndexError(f"a slice of '{self.name}' may not have a step, which is {step}")
            offsets.append(start)
            sizes.append(max(0, stop - start))
        return offsets, sizes

    def array(self, key: Index | tuple[Index, ...] = ()) -> Any:
        """Read a slice as a numpy array, without a second copy; by default, the whole tensor. Indexed dimensions keep size 1. bfloat16,
        float8 and complex numbers of 32 bits need the package ml_dtypes."""
        import numpy
        kind, (_, sizes) = _numpy_dtype(self), self._box(key)
        return numpy.ndarray(sizes, kind, self[key].cast("B"))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Read the whole tensor as a numpy array; numpy.asarray(entry) calls this. bfloat16, float8 and complex numbers of 32 bits need the
        package ml_dtypes. Raises TypeError if the entry is not a tensor or numpy lacks its dtype, and ValueError for copy=False, because every read makes a copy."""
        import numpy
        if self.kind != "tensor":
            raise TypeError(f"'{self.name}' is not one dense tensor but {self.type}")
        if copy is False:
            raise ValueError(f"'{self.name}' is read from a file, which always makes a copy; pass copy=None or copy=True")
        memory = bytearray(self.nbytes)
        self.read(out=memory)
        array = numpy.ndarray(self.shape, _numpy_dtype(self), memory)
        return array if dtype is None else array.astype(dtype, copy=False)

    def is_data(self) -> bool:
        """Whether an object consists only of Python's and PyTorch's own data types, so that unpickling it runs no other code."""
        return self._checkpoint._session.foreign(self._index) is None

    def _check_data(self, caller):
        """Raises TesseraError for an object that is not data. caller: the function that accepts it with unsafe_objects."""
        foreign = self._checkpoint._session.foreign(self._index)
        if foreign is not None:
            raise TesseraError(f"{self._checkpoint.path}: '{self.name}' is not data: it contains {foreign or self.type}. Save plain values instead, such as the "
                               f"value of an enum's member, or pass {caller}(…, unsafe_objects=True), which lets PyTorch import and run what objects name", "unsupported")

    def save(self) -> bytes:
        """Return an object, or what is known of an opaque entry, as the bytes of a torch.save file. Raises TypeError for tensors and
        for opaque entries of which nothing was kept."""
        if self.kind == "tensor" or not self._checkpoint._session.has_value(self._index):
            raise TypeError(f"'{self.name}' cannot be saved as an object: {self.dtype or self.type}")
        return self._checkpoint._session.object(self._index)


def _numpy_dtype(entry):
    import numpy
    kind = entry.dtype
    if kind in ("bfloat16", "complex32", "bcomplex32") or kind.startswith("float8"):
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(f"'{entry.name}' is {kind}, which numpy has only with the package ml_dtypes: install it, or read bytes with "
                            "entry.read()") from None
        kind = getattr(ml_dtypes, kind, "")
    try:
        return numpy.dtype(kind or "none")
    except TypeError:
        raise TypeError(f"'{entry.name}' is {entry.dtype}, which numpy does not have; read bytes with entry.read()") from None


class Checkpoint(Mapping[str, Entry]):
    """An opened checkpoint: a mapping from names to entries. Close it, or use it in a `with`. Threads may share it; it cannot be
    pickled. path: as it was opened. format: the recognized format, such as "dcp"."""

    path: str
    format: str

    def __init__(self, path: StrPath, threads: int = 0, allow_expansion: bool = False, *, part: str | None = None,
                 step: str | int | None = None, also: StrPath | Sequence[StrPath] = (), shards: Document | None = None, salvage: bool = False, io_depth: int = 0,
                 map: Document | None = None, inverse: bool = False, lora: StrPath | Checkpoint | None = None, dequantize: bool = False,
                 canonical: bool = False, _purpose: int = FOR_NAMES, _is_compared: bool = False, _metadata_rank: int | None = None,
                 _warns: bool = True) -> None:
        self._choices = Choices(part, step, also, shards, bool(salvage), _is_compared)
        self._shared = {"threads": threads or None, "io_depth": io_depth or None, "allow_expansion": allow_expansion}  # as commands have them
        if isinstance(lora, Checkpoint):
            lora = lora.path
        self._layers = Layers(map, bool(inverse), lora, bool(dequantize), bool(canonical))
        self._session = Session(path, self._choices, self._layers, threads=threads, io_depth=io_depth, purpose=_purpose, allow_expansion=allow_expansion,
                                metadata_rank=_metadata_rank, warns=_warns)
        self.path = self._session.path
        self.format = self._session.format()
        entries = [Entry(self, i) for i in range(self._session.count())]
        self._entries = {entry.name: entry for entry in entries}

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the checkpoint. Calls of other threads that are using it end with a ValueError. Memoryviews stay valid."""
        self._session.close()

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<tessera.Checkpoint {self.path!r}: {self.format}, {len(self)} entries>"

    def _repr_html_(self) -> str:
        from ._html import tree
        return tree(self)

    def inspect(self, hash: Literal["sha256", "xxh3"] | None = None, stats: bool = False) -> dict[str, Any]:
        """Return the tessera.inspect/1 document. hash: add a digest of each tensor, "sha256" or "xxh3". stats: add statistics of
        the values. Both read every byte. The files are opened again for it."""
        from ._commands import inspect
        return inspect(self, hash, stats)

    def validate(self, deep: bool = False, layout: Document | None = None, *, against: Against | None = None, rule: str | Sequence[str] = (),
                 baseline: Document | None = None, prefix: str | None = None, exclude: str | Sequence[str] = (),
                 allow: str | None = None) -> dict[str, Any]:
        """Return the tessera.findings/1 document. The options are those of tessera.validate. The files are opened again for it."""
        from ._commands import validate
        return validate(self, deep, layout, against=against, rule=rule, baseline=baseline, prefix=prefix, exclude=exclude, allow=allow)

    def unchanged(self) -> None:
        """Raise TesseraError if a file that was read has changed since the checkpoint was opened."""
        self._session.unchanged()
