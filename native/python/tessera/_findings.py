"""What validate takes besides a checkpoint, and its findings as objects."""
import json
import os
from dataclasses import dataclass

from ._checkpoint import Checkpoint
from ._library import FOR_FINDINGS, FOR_NAMES, TesseraError


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing. rule: a stable id, "area/what"; level: "error", "warning" or "note"; file and
    byte_offset: where, if it is in one place; fqn: the entry that it concerns, or None."""

    rule: str
    level: str
    message: str
    file: "str | None" = None
    byte_offset: "int | None" = None
    fqn: "str | None" = None


def _looks_like_json(text):
    return text.lstrip()[:1] in (b"{", b"[")


def document(given, what):
    """The bytes of a document that is given as a dict, as its text, or as the path of a file."""
    if isinstance(given, dict):
        return json.dumps(given).encode("utf-8", "surrogatepass")
    if isinstance(given, str) and _looks_like_json(given.encode("utf-8", "surrogatepass")):
        return given.encode("utf-8", "surrogatepass")
    if isinstance(given, (bytes, bytearray)):
        return bytes(given)
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"{what} is a document: a dict, its text, or the path of a file, not {type(given).__name__}")
    with open(given, "rb") as f:
        return f.read()


def _open_other(path):
    """What a path stands for in `against`, as the command line decides it: (bytes of a document, None) or (None, a Checkpoint)."""
    if os.path.isfile(path):
        with open(path, "rb") as f:
            if _looks_like_json(f.read(4096)):
                f.seek(0)
                return f.read(), None
    try:
        return None, Checkpoint(path, _purpose=FOR_NAMES)
    except TesseraError as e:
        if e.status != "unsupported" or not os.path.isfile(path):
            raise
    with open(path, "rb") as f:  # a list of names
        return f.read(), None


def against(given):
    """(bytes of a document or None, a Checkpoint or None, whether it was opened here)."""
    if isinstance(given, Checkpoint):
        return None, given, False
    if isinstance(given, (list, tuple, set, frozenset)):
        for name in given:
            if not isinstance(name, str) or "\n" in name:
                raise TypeError(f"against takes names, which are strings of one line, not {name!r}")
        return "\n".join(given).encode("utf-8", "surrogatepass"), None, False
    is_path = isinstance(given, os.PathLike) or (isinstance(given, str) and not _looks_like_json(given.encode("utf-8", "surrogatepass")))
    if not is_path:
        return document(given, "against"), None, False
    return *_open_other(given), True


def validate(checkpoint, deep, options):
    """The tessera.findings/1 document of an opened checkpoint. options: those of tessera.validate, by name."""
    rules = options.get("rule") or ()
    rules = [rules] if isinstance(rules, str) else list(rules)
    if not all(isinstance(rule, str) for rule in rules):
        raise TypeError("rule takes texts ID=LEVEL")
    texts = {name: options[name].encode("utf-8", "surrogatepass") for name in ("prefix", "allow") if options.get(name) is not None}
    texts.update({name: document(options[name], name) for name in ("layout", "baseline") if options.get(name) is not None})
    other, opened = None, False
    if options.get("against") is not None:
        text, other, opened = against(options["against"])
        if text is not None:
            texts["against"] = text
    try:
        return checkpoint._session.validate(deep, texts, other._session if other else None, rules)
    finally:
        if other and opened:
            other.close()


def check(path, deep, options):
    with Checkpoint(path, _purpose=FOR_FINDINGS) as checkpoint:
        found = validate(checkpoint, deep, options)["findings"]
    return [Finding(**{name: f[name] for name in Finding.__dataclass_fields__ if name in f}) for f in found]
