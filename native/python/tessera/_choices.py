"""The options that select a checkpoint, and documents that are given as a dict, a text or a path."""
from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Sequence, Union

StrPath = Union[str, "os.PathLike[str]"]
# A JSON document: as a dict, as its text, or as the path of a file.
Document = Union["dict[str, Any]", str, bytes, "os.PathLike[str]"]


def is_given(value: Any) -> bool:
    """Whether the value of an option asks for anything: None, False and sequences without elements do not."""
    return value is not None and value is not False and not (isinstance(value, (list, tuple)) and not value)


def whole_number(given: Any, what: str, limit: int = 1 << 32, least: int = 0) -> int:
    """Returns a number from `least` on and below the limit. `what` names it in errors."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise TypeError(f"{what} is a whole number, not {type(given).__name__}")
    if not least <= operator.index(given) < limit:
        raise ValueError(f"{what} is a whole number from {least} to {limit - 1}, not {given}")
    return operator.index(given)


def real_number(given: Any, what: str, least: float = -math.inf) -> float:
    if isinstance(given, (bool, str)) or not hasattr(given, "__float__"):
        raise TypeError(f"{what} is a number, not {type(given).__name__}")
    if not float(given) >= least:
        raise ValueError(f"{what} is a number" + (f" of {least} or more" if least > -math.inf else "") + f", not {given}")
    return float(given)


def listed(words: Iterable[str]) -> str:
    """Returns words as a sentence has them: a, b or c."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def text(given: Any, what: str) -> str:
    if not isinstance(given, str):
        raise TypeError(f"{what} is a str, not {type(given).__name__}")
    return given


def for_c(given: bytes) -> bytes:
    """Refuses what C would read only a part of."""
    if b"\0" in given:
        raise ValueError("paths and strings may not contain null characters")
    return given


def path_text(given: Any, name: str = "path", what: str = "a str or an os.PathLike") -> str:
    """Returns a path as a str. Bytes, as os functions accept them, are decoded as these do."""
    if not isinstance(given, (str, bytes, os.PathLike)):
        raise TypeError(f"{name} is {what}, not {type(given).__name__}")
    return os.fsdecode(for_c(os.fsencode(given)))


def state_dict(given: Any, what: str = "state_dict") -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    instead = "; pass its state_dict(), as in model.state_dict()" if callable(getattr(given, "state_dict", None)) else ""
    raise TypeError(f"{what} is a dict of names and tensors, not {type(given).__name__}{instead}")


def looks_like_json(text: bytes) -> bool:
    return text.lstrip()[:1] in (b"{", b"[")


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def text_of(given: Any) -> bytes | None:
    """Returns the text of a document, or None if `given` is the path of one."""
    if isinstance(given, dict):
        return encoded(json.dumps(given))
    if isinstance(given, (bytes, bytearray)):
        return bytes(given)
    if isinstance(given, str) and looks_like_json(encoded(given)):
        return encoded(given)
    return None


class Choices(NamedTuple):
    """The options of tessera.open that select the checkpoint. is_compared: they were given for the checkpoint that this one is
    compared with. Then part and step apply only if there are parts and steps, and also does not apply."""

    part: str | None = None
    step: str | int | None = None
    also: StrPath | Sequence[StrPath] = ()
    shards: Document | None = None
    salvage: bool = False
    is_compared: bool = False

    def given(self) -> dict[str, Any]:
        """Returns the options that were given, by name."""
        return {name: value for name, value in self._asdict().items() if name != "is_compared" and is_given(value)}

    def paths(self, path: StrPath) -> list[bytes]:
        """Returns `path` and the directories that form one checkpoint with it."""
        also = [self.also] if isinstance(self.also, (str, bytes, os.PathLike)) else self.also or ()
        if not isinstance(also, Iterable):
            raise TypeError(f"also takes paths of directories, not {type(also).__name__}")
        others = [path_text(other, "each directory of also") for other in also]
        return [os.fsencode(p) for p in ([path_text(path)] if self.is_compared else [path_text(path), *others])]

    def name_of_part(self) -> bytes | None:
        if self.part is not None and not isinstance(self.part, str):
            raise TypeError(f"part is the name of a part, not {type(self.part).__name__}")
        return None if self.part is None else for_c(encoded(self.part))

    def name_of_step(self) -> bytes | None:
        if self.step is not None and (isinstance(self.step, bool) or not isinstance(self.step, (str, int))):
            raise TypeError(f"step is 'latest', 'latest-valid', a name, a path or a number, not {type(self.step).__name__}")
        return None if self.step is None else for_c(encoded(str(self.step)))

    def map_of_ranks(self) -> tuple[bytes | None, bytes | None]:
        """Returns `shards` as (its name or path, None) or as (None, its text)."""
        if self.shards is None:
            return None, None
        text = text_of(self.shards)
        if text is not None:
            return None, text
        if not isinstance(self.shards, (str, os.PathLike)):
            raise TypeError(f"shards is a document, its path, or the name of a built-in map, not {type(self.shards).__name__}")
        return for_c(os.fsencode(self.shards)), None


class Layers(NamedTuple):
    """The options of tessera.open that lie between the files and what is read: names become canonical, scaled numbers are multiplied, an
    adapter is folded in, the names and layouts of another model are given, in this order."""

    map: Document | None = None
    inverse: bool = False
    lora: StrPath | None = None
    dequantize: bool = False
    canonical: bool = False

    def map_text(self) -> bytes | None:
        """Returns the text of the map, or None if there is none or a built-in one is meant."""
        if self.map is None:
            return None
        text = text_of(self.map)
        if text is not None:
            return text
        if not isinstance(self.map, (str, os.PathLike)):
            raise TypeError(f"map is a document: a dict, its text, its path, or the name of a built-in map, not {type(self.map).__name__}")
        if not os.path.exists(self.map):
            return None
        with open(self.map, "rb") as f:
            return f.read()

    def map_name(self) -> bytes | None:
        """Returns how messages call the map; the name of a built-in one."""
        if self.map is None:
            return None
        return for_c(os.fsencode(self.map)) if text_of(self.map) is None and isinstance(self.map, (str, os.PathLike)) else b"map"
