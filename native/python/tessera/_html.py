"""What notebooks show: a checkpoint as a folded tree, a difference and findings as lists. All texts of checkpoints are escaped."""
from __future__ import annotations

from html import escape
from typing import Any

MOST_ROWS = 2000  # of entries or findings; beyond these, their number is said
_DIM = 'style="color:gray"'
_CODE = 'style="font-family:monospace"'


def visible(text: object) -> str:
    """Escapes a text, and shows characters that are not printable as Python does."""
    return escape("".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text)))


def size_of(count: int) -> str:
    value, unit = float(count), "B"
    for unit in ("B", "KB", "MB", "GB", "TB", "PB"):
        if value < 1000 or unit == "PB":
            break
        value /= 1000
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def _number(count: int, one: str, several: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else several or one + 's'}"


class _Node:
    def __init__(self):
        self.children, self.entry, self.count, self.bytes = {}, None, 0, 0

    def add(self, entry):
        """Adds an entry below this node, by the components of its name."""
        node = self
        for component in entry.name.split("."):
            node.count, node.bytes = node.count + 1, node.bytes + entry.nbytes
            node = node.children.setdefault(component, _Node())
        node.entry, node.count, node.bytes = entry, node.count + 1, node.bytes + entry.nbytes


def _line(name, entry):
    what = f"{visible(entry.dtype)} {list(entry.shape)}, {size_of(entry.nbytes)}" if entry.kind == "tensor" else f"{entry.kind} {visible(entry.type)}"
    return f"<div>{visible(name)} <span {_DIM}>{what}</span></div>"


def _branch(name, node, room):
    """Returns the lines of a node. `room` is a list with the number of rows that may still be shown."""
    while not node.entry and len(node.children) == 1:
        (component, node), = node.children.items()
        name = f"{name}.{component}" if name else component
    lines = []
    if node.entry and room[0] > 0:
        room[0] -= 1
        lines.append(_line(name, node.entry))
    if node.children:
        inside = "".join(_branch(component, child, room) for component, child in node.children.items() if room[0] > 0)
        lines.append(f"<details><summary>{visible(name)} <span {_DIM}>{_number(node.count, 'entry', 'entries')}, {size_of(node.bytes)}</span></summary>"
                     f'<div style="margin-left:1.5em">{inside}</div></details>')
    return "".join(lines)


def tree(checkpoint: Any) -> str:
    root, room = _Node(), [MOST_ROWS]
    for entry in checkpoint.values():
        root.add(entry)
    head = f"<div><b>{visible(checkpoint.path)}</b> <span {_DIM}>{visible(checkpoint.format)}, {_number(len(checkpoint), 'entry', 'entries')}, {size_of(root.bytes)}</span></div>"
    body = "".join(_branch(component, child, room) for component, child in root.children.items())
    more = "" if len(checkpoint) <= MOST_ROWS else f"<div {_DIM}>{MOST_ROWS:,} of {len(checkpoint):,} entries are shown</div>"
    return f"<div {_CODE}>{head}{body}{more}</div>"


def _section(title, lines):
    if not lines:
        return ""
    more = f"<div {_DIM}>and {len(lines) - MOST_ROWS:,} more</div>" if len(lines) > MOST_ROWS else ""
    is_open = " open" if len(lines) <= 20 else ""
    return f"<details{is_open}><summary>{title} <span {_DIM}>{len(lines):,}</span></summary>" f'<div style="margin-left:1.5em">{"".join(lines[:MOST_ROWS])}{more}</div></details>'


class Diff(dict):
    """A tessera.diff/1 document."""

    def _repr_html_(self) -> str:
        changed = [f"<div>{visible(one['fqn'])} <span {_DIM}>{visible(', '.join(one['what']))}</span></div>" for one in self["changed"]]
        renamed = [f"<div>{visible(one['a'])} → {visible(one['b'])} <span {_DIM}>{visible(one.get('why', ''))}</span></div>" for one in self["renamed"]]
        sections = [(name.capitalize(), [f"<div>{visible(fqn)}</div>" for fqn in self[name]]) for name in ("added", "removed")]
        found = "".join(_section(title, lines) for title, lines in [*sections, ("Changed", changed), ("Renamed, perhaps", renamed)])
        return f"<div {_CODE}><div><b>{'no differences' if self['same'] else 'different'}</b></div>{found}</div>"


class Findings(dict):
    """A tessera.findings/1 document."""

    def _repr_html_(self) -> str:
        levels = {level: [f for f in self["findings"] if f["level"] == level] for level in ("error", "warning", "note")}
        sections = [_section(_number(len(found), level), [
            f"<div><b>{visible(f['rule'])}</b> {visible(f['message'])} <span {_DIM}>{visible(' '.join(str(f[k]) for k in ('path', 'file', 'fqn') if k in f))}</span></div>"
            for f in found]) for level, found in levels.items()]
        return f"<div {_CODE}>{''.join(sections) or '<b>no findings</b>'}</div>"


SHOWN = {"tessera.diff/1": Diff, "tessera.findings/1": Findings}
