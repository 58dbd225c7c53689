"""Calls of commands: options as the command line has them, documents without files, messages as warnings and errors."""
from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import AbstractSet, Any, Literal, Sequence, Union, get_args

from ._checkpoint import Checkpoint
from ._choices import Document, StrPath, encoded, for_c, is_given, listed, path_text, real_number, text, text_of, whole_number
from ._html import SHOWN
from ._library import TesseraError, in_python, run_command, slice_of, warn
from ._options import OPTIONS

CheckpointOrPath = Union[StrPath, Checkpoint]
# What a checkpoint should load into: an opened checkpoint, its path, a document, or names.
Against = Union[Checkpoint, Document, Sequence[str], AbstractSet[str]]
# The forms of reports.
Format = Literal["json", "sarif", "junit", "github", "gitlab"]
_FORMATS = get_args(Format)
_OPTIONAL = {"directory", "modules", "rule"}  # operands
# Commands that make or remove files. They are stopped only where they can clean up.
_WRITING = {"convert", "cp", "exec", "merge", "optim", "prune", "repair", "reshard"}


@dataclass(frozen=True)
class Finding:
    """A problem, or a fact worth knowing. rule: a stable id, such as "layout/hole", which `tessera.explain` explains. level: "error",
    "warning" or "note". file, byte_offset: the location, or None. fqn: the name of the entry concerned, or None."""

    rule: str
    level: str
    message: str
    file: str | None = None
    byte_offset: int | None = None
    fqn: str | None = None


# ---- values ----


class _Texts:
    """Documents that are given as dicts or texts. Each is a file in memory, which has a path while this is open."""

    def __init__(self):
        self._files = []

    def path_of(self, content, name):
        at = os.memfd_create(name)
        self._files.append((at, name))
        with open(at, "wb", closefd=False) as f:
            f.write(content)
        return f"/proc/self/fd/{at}".encode()

    def named(self, message):
        """Returns a message, or a document, with the names of the options in place of these paths."""
        for at, name in self._files:
            path = f"/proc/self/fd/{at}"
            message = message.replace(path.encode(), name.encode()) if isinstance(message, bytes) else message.replace(path, name)
        return message

    def close(self):
        for at, _ in self._files:
            os.close(at)


def _path(given, name, what="a str or an os.PathLike"):
    if isinstance(given, Checkpoint):
        chosen = [*_choices_of(given), *(option for option, value in given._layers._asdict().items() if value)]
        if chosen:
            raise ValueError(f"{name} was opened with {', '.join(chosen)}, which a command cannot repeat for it; pass its path")
        return os.fsencode(given.path)
    return os.fsencode(path_text(given, name, what))


def _choices_of(checkpoint):
    """Returns the options that selected an opened checkpoint."""
    checkpoint._session.handle  # refuses a closed one
    return checkpoint._choices.given()


def _document(given, name, texts):
    content = text_of(given)
    if content is not None:
        return texts.path_of(content, name)
    return _path(given, name, "a document: a dict, its text, or the path of a file")


def _model(given, name, texts):
    if isinstance(given, Checkpoint) and _choices_of(given) and not any(given._layers):
        return texts.path_of(encoded(json.dumps(document("layout", [("path", given)], {}))), name)
    if isinstance(given, (list, tuple, set, frozenset)):
        for one in given:
            if not isinstance(one, str) or "\n" in one:
                raise TypeError(f"{name} takes names, which are strings of one line, not {one!r}")
        return texts.path_of(encoded("\n".join(given)), name)
    if isinstance(given, Checkpoint):
        return _path(given, name)
    return _document(given, name, texts)


def _each(given, name, what):
    """Returns the values of an option that takes several."""
    each = [given] if isinstance(given, (str, bytes, os.PathLike, Checkpoint)) else given
    if not isinstance(each, Iterable):
        raise TypeError(f"{name} takes {what}, not {type(given).__name__}")
    return list(each)


def _texts(given, name):
    if name == "also":
        return [_path(one, name) for one in _each(given, name, "paths of directories")]
    if name == "weight":
        each = _each([given] if isinstance(given, (int, float)) else given, name, "numbers")
        return [encoded(one if isinstance(one, str) else repr(real_number(one, name))) for one in each]
    each = _each(given, name, "strings such as 'values/nan=error'" if name == "rule" else "strings")
    return [encoded(text(one, f"each {name}")) for one in each]


def _values(name, kind, words, given, texts):
    """Returns the values of an option as the command line has them, one per occurrence; None for a flag."""
    if kind == "flag":
        if isinstance(given, (str, bytes)):
            raise TypeError(f"{name} is True or False, not {given!r}")
        return [None] if given else []
    if given is None:
        return []
    if kind == "real":
        return [repr(real_number(given, name, 0)).encode()]
    if kind == "texts":
        return _texts(given, name)
    if kind == "choice":
        if not isinstance(given, str) or given not in words:
            raise ValueError(f"{name} is {listed([*map(repr, words), 'None'])}, not {given!r}")
        return [given.encode()]
    if kind in ("number", "count"):
        return [str(whole_number(given, name, least=1 if kind == "count" else 0)).encode()]
    if kind == "size":
        return [encoded(given) if isinstance(given, str) else str(whole_number(given, name, 1 << 63)).encode()]
    if kind == "document":
        return [_document(given, name, texts)]
    if kind == "model":
        return [_model(given, name, texts)]
    if kind == "checkpoint" or name == "source":
        return [_path(given, name)]
    if name == "step" and isinstance(given, int) and not isinstance(given, bool):
        given = str(given)
    return [encoded(text(given, name))]


def _operands(command, operands, options, texts):
    """Returns the operands, (name, value), as bytes. An opened checkpoint that comes first brings the options with which it was opened."""
    taken = []
    for at, (name, operand) in enumerate(one for one in operands if one[1] is not None or one[0] not in _OPTIONAL):
        if isinstance(operand, Checkpoint) and at == (1 if command in ("map", "merge", "optim") else 0):
            choices = {**_choices_of(operand), **{name: value for name, value in operand._layers._asdict().items() if value}}
            for option, value in {**choices, **operand._shared}.items():
                if option in OPTIONS[command] and not is_given(options.get(option)):
                    options[option] = value
                elif value and option in choices:
                    raise ValueError(f"the checkpoint was opened with {option}; pass its path to choose otherwise")
            taken.append(os.fsencode(operand.path))
        elif name in ("manifest", "plan", "modules"):
            taken.append(_document(operand, name, texts))
        elif name in ("action", "what", "rule", "name", "names"):
            taken.append(encoded(text(operand, name)))
        elif command == "validate" and isinstance(operand, (list, tuple)):
            taken += [_path(one, "each path") for one in operand]
        else:
            taken.append(_path(operand, name))
    return taken


# ---- calls ----


def _is_notebook():
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class _Bar:
    """Draws what is done: with tqdm in a notebook that has it, otherwise as one line of a terminal."""

    def __init__(self, name, then):
        self._name, self._then, self._bar, self._drawn = name, then, None, False
        if _is_notebook():
            try:
                from tqdm.auto import tqdm
                self._bar = tqdm(desc=name, unit="B", unit_scale=True)
            except ImportError:
                pass

    def __call__(self, done, total):
        if self._bar is not None:
            self._bar.total = total
            self._bar.update(done - self._bar.n)
        elif sys.stderr is not None and sys.stderr.isatty():
            filled = 30 * done // total if total else 30
            sys.stderr.write(f"\r{self._name} [{'#' * filled}{'.' * (30 - filled)}] {done / 1e9:.2f} of {total / 1e9:.2f} GB\x1b[K")
            sys.stderr.flush()
            self._drawn = True
        if self._then:
            self._then(done, total)

    def close(self):
        if self._bar is not None:
            self._bar.close()
        elif self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _call(command, operands, options, form, on_progress, progress):
    """Returns what the command writes."""
    if on_progress is not None and not callable(on_progress):
        raise TypeError(f"on_progress is a function of two numbers, not {type(on_progress).__name__}")
    texts, bar = _Texts(), _Bar(command, on_progress) if progress else None
    try:
        taken = _operands(command, operands, options, texts)
        given = [(name.replace("_", "-").encode(), value) for name, (kind, *words) in OPTIONS[command].items() if name in options
                 for value in _values(name, kind, words, options[name], texts)]
        if form:
            given.append((b"format", form.encode()))
        for one in (*taken, *(value for _, value in given if value)):
            for_c(one)
        written, said, ran = run_command(command, taken, given, writes=command in _WRITING, on_progress=bar or on_progress)
    finally:
        texts.close()
        if bar:
            bar.close()
    said = [(in_python(texts.named(message.decode("utf-8", "surrogateescape")), command), *rest) for message, *rest in said]
    for message, status, _ in said:
        if status is None:
            warn(message)
    for message, status, position in said:
        if status is not None and not ran:
            raise TesseraError(message, status, position)
    return texts.named(written)


def document(command, operands, options, on_progress=None, progress=False):
    """Returns the document of a command, as a dict."""
    found = json.loads(_call(command, operands, options, None, on_progress, progress))
    return SHOWN.get(found.get("schema"), dict)(found)


def report(command, operands, options, form, on_progress, progress):
    """Returns the report of a command in a form."""
    if text(form, "format") not in _FORMATS:
        raise TesseraError(f"format is {listed(map(repr, _FORMATS))}, not {form!r}", "usage")
    return _call(command, operands, options, form, on_progress, progress).decode("utf-8")


def findings(command, operands, options, on_progress, progress):
    found = document(command, operands, options, on_progress, progress)["findings"]
    return [Finding(**{name: f[name] for name in Finding.__dataclass_fields__ if name in f}) for f in found]


# ---- get ----


def get(_command, operands, options):
    (_, path), (_, name) = operands
    if isinstance(path, Checkpoint):
        chosen = [option for option, value in options.items() if is_given(value)]
        if chosen:
            raise ValueError(f"the checkpoint is open already; pass its path to choose {listed(chosen)}")
        return _get(path, text(name, "name"))
    numbers = {option: 0 if options[option] is None else whole_number(options[option], option, least=1) for option in ("threads", "io_depth")}
    opening: dict[str, Any] = {**options, **numbers}
    with Checkpoint(path, **opening) as checkpoint:
        return _get(checkpoint, text(name, "name"))


def _get(checkpoint, name):
    inside = None
    if name not in checkpoint and name.endswith("]") and "[" in name:
        at = name.rindex("[")
        name, inside = name[:at], name[at + 1:-1]
    if name not in checkpoint:
        raise TesseraError(f"{checkpoint.path}: there is no '{name}'", "not found")
    entry = checkpoint[name]
    if entry.kind == "object" and inside is None:
        found = [e for e in checkpoint.inspect()["entries"] if e["fqn"] == name]
        if "value" not in found[0]:
            raise TesseraError(f"{checkpoint.path}: '{name}' is {entry.type}, which JSON cannot hold; tessera.open(…)[{name!r}].save() gives it to torch.load",
                               "unsupported")
        return found[0]["value"]
    offsets, sizes, shape = slice_of(inside, entry) if entry.kind == "tensor" else (None, None, None)
    view = entry.read(offsets, sizes)
    if view.format == "B" and entry.dtype != "uint8" or not view.nbytes:
        return view
    return view.cast("B").cast(view.format, shape)
