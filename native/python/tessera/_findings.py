"""The options of validate, and its findings as objects."""
from __future__ import annotations

import os
from dataclasses import dataclass
from collections.abc import Iterable
from typing import AbstractSet, Sequence, Union

from ._checkpoint import Checkpoint
from ._choices import Document, document, encoded, looks_like_json, text
from ._library import FOR_FINDINGS, FOR_NAMES, TesseraError

# What a checkpoint should load into: an opened checkpoint, its path, a document, or names.
Against = Union[Checkpoint, Document, Sequence[str], AbstractSet[str]]


@dataclass(frozen=True)
class Finding:
    """A problem, or a fact worth knowing. rule: a stable id, such as "layout/hole", which `tessera explain` explains. level: "error",
    "warning" or "note". file, byte_offset: the location, or None. fqn: the name of the entry concerned, or None."""

    rule: str
    level: str
    message: str
    file: str | None = None
    byte_offset: int | None = None
    fqn: str | None = None


def _open_other(path, choices):
    """Opens a path given as `against`, as the command line does. Returns (bytes of a document, None) or (None, a Checkpoint)."""
    if os.path.isfile(path):
        with open(path, "rb") as f:
            if looks_like_json(f.read(4096)):
                f.seek(0)
                return f.read(), None
    try:
        return None, Checkpoint._compared(path, choices, purpose=FOR_NAMES)
    except TesseraError as e:
        if e.status != "unsupported" or not os.path.isfile(path):
            raise
    with open(path, "rb") as f:  # a list of names
        return f.read(), None


def against(given, choices):
    """Returns (bytes of a document or None, a Checkpoint or None, whether it was opened here)."""
    if isinstance(given, Checkpoint):
        return None, given, False
    if isinstance(given, (list, tuple, set, frozenset)):
        for name in given:
            if not isinstance(name, str) or "\n" in name:
                raise TypeError(f"against takes names, which are strings of one line, not {name!r}")
        return encoded("\n".join(given)), None, False
    is_path = isinstance(given, os.PathLike) or (isinstance(given, str) and not looks_like_json(encoded(given)))
    if not is_path:
        return document(given, "against"), None, False
    return *_open_other(given, choices), True


def validate(checkpoint, deep, options, form=None):
    """Returns the tessera.findings/1 document of an opened checkpoint, or the text of a report in this form. options: those of
    tessera.validate, by name."""
    rules = options.get("rule") or ()
    rules = [rules] if isinstance(rules, str) else rules
    if not isinstance(rules, Iterable) or not all(isinstance(rule, str) for rule in rules):
        raise TypeError("rule takes texts ID=LEVEL")
    rules = list(rules)
    texts = {name: encoded(text(options[name], name)) for name in ("prefix", "allow") if options.get(name) is not None}
    texts.update({name: document(options[name], name) for name in ("layout", "baseline") if options.get(name) is not None})
    other, opened = None, False
    if options.get("against") is not None:
        document_text, other, opened = against(options["against"], checkpoint._choices)
        if document_text is not None:
            texts["against"] = document_text
    try:
        return checkpoint._session.validate(deep, texts, other._session if other else None, rules, form)
    finally:
        if other and opened:
            other.close()


def check(path, deep, choices, options):
    with Checkpoint(path, **choices, _purpose=FOR_FINDINGS) as checkpoint:
        found = validate(checkpoint, deep, options)["findings"]
    return [Finding(**{name: f[name] for name in Finding.__dataclass_fields__ if name in f}) for f in found]


def report(path, form, deep, choices, options):
    with Checkpoint(path, **choices, _purpose=FOR_FINDINGS) as checkpoint:
        return validate(checkpoint, deep, options, text(form, "format"))
