#!/usr/bin/env python3
"""Writes tessera/_commands.py: the functions of the commands, with their options, types and help, made from the table of all commands
and options (core/commands/table.c).

Usage: commands.py TESSERA [--check]   TESSERA: the native program; --check: only compare"""
import json
import os
import re
import subprocess
import sys
import textwrap

TO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tessera", "_commands.py")

# The types of parameters, by the type of the option.
TYPES = {"flag": "bool", "text": "str | None", "texts": "str | Sequence[str]", "real": "float | None", "number": "int | None", "count": "int | None",
         "size": "int | str | None", "document": "Document | None", "checkpoint": "CheckpointOrPath | None", "model": "Against | None"}
# Options whose values are not what the type of the table says.
OTHER_TYPES = {"also": "CheckpointOrPath | Sequence[CheckpointOrPath]", "step": "str | int | None", "weight": "float | str | Sequence[float | str]",
               "source": "StrPath | None"}

PATH, FORM = ("path", "CheckpointOrPath"), ("format", "Format")
DICT, BAR = "dict[str, Any]", ["on_progress", "progress"]
# Functions: the operands, the options that may be given by position, the result, how it is made of the document, and what is drawn.
FUNCTIONS = {
    "inspect": ([PATH], ["hash", "stats", "allow_expansion"], DICT, "document", BAR),
    "get": ([PATH, ("name", "str")], [], "Any", "get", []),
    "diff": ([("a", "CheckpointOrPath"), ("b", "CheckpointOrPath")], ["values", "layout", "atol", "rtol", "allow_expansion"], DICT, "document", BAR),
    "report_diff": ([("a", "CheckpointOrPath"), ("b", "CheckpointOrPath"), FORM], [], "str", "report", BAR),
    "validate": ([("path", "CheckpointOrPath | Sequence[StrPath]")], ["deep", "layout"], DICT, "document", BAR),
    "check": ([("path", "CheckpointOrPath | Sequence[StrPath]")], [], "list[Finding]", "findings", BAR),
    "report": ([("path", "CheckpointOrPath | Sequence[StrPath]"), FORM], [], "str", "report", BAR),
    "explain": ([("rule", "str | None", "None")], [], DICT, "document", []),
    "layout": ([PATH], [], DICT, "document", BAR),
    "manifest": ([PATH], [], DICT, "document", BAR),
    "verify": ([PATH, ("manifest", "Document")], [], DICT, "document", BAR),
    "latest": ([("run", "StrPath")], [], DICT, "document", []),
    "prune": ([("run", "StrPath")], [], DICT, "document", []),
    "convert": ([PATH, ("dest", "StrPath")], [], DICT, "document", BAR),
    "merge": ([("out", "StrPath"), ("*paths", "CheckpointOrPath")], [], DICT, "document", BAR),
    "plan": ([PATH], [], DICT, "document", []),
    "reshard": ([PATH, ("dest", "StrPath")], [], DICT, "document", BAR),
    "exec": ([("plan", "Document"), ("dest", "StrPath")], [], DICT, "document", BAR),
    "optim": ([("what", 'Literal["flatten", "unflatten", "to-fqn", "to-id", "unshard", "shard"]'), PATH, ("dest", "StrPath")], [], DICT, "document", BAR),
    "copy": ([("path", "StrPath"), ("dest", "StrPath")], [], DICT, "document", BAR),
    "repair": ([("path", "StrPath"), ("file", "StrPath")], [], DICT, "document", []),
    "fqn": ([("modules", "Document | None", "None"), ("*names", "str")], [], DICT, "document", []),
    "map_list": ([], [], DICT, "document", []),
    "map_show": ([("name", "str")], [], DICT, "document", []),
    "map_suggest": ([("a", "CheckpointOrPath"), ("b", "CheckpointOrPath")], [], DICT, "document", []),
    "doctor": ([("directory", "StrPath | None", "None")], [], DICT, "document", []),
}
# Operands that are not those of the function: words that come first.
FIRST = {"map_list": ["list"], "map_show": ["show"], "map_suggest": ["suggest"]}
# Options of the command that only some of its functions have.
ONLY = {"map_list": [], "map_show": []}
INTRODUCTIONS = {
    "check": "Return the findings of `validate`, which has the same options, as a list of Finding. It is empty if nothing was found.",
    "report": 'Return what `tessera validate --format FORMAT` prints: "sarif", "junit", "github" or "gitlab" for CI systems, or "json".',
    "report_diff": "Return what `tessera diff --format FORMAT` prints.",
    "get": "Read a tensor, or a slice of one, such as \"model.embed.weight[0:8, 1]\", as a memoryview: in the tensor's type and shape if memoryview has that type, "
           "as bytes otherwise. The value of an object is returned as it is.",
    "latest": "Find the newest checkpoint of a run that would load, to resume from. Return what `tessera latest` prints as JSON, as a dict.",
    "map_list": "List the built-in maps.",
    "map_show": "Return a built-in map, as a start for your own.",
    "map_suggest": "Suggest the map that gives the first checkpoint the names and layouts of the second.",
}
OPERAND_HELP = {
    "manifest": "what `manifest` returned: a dict, its text, or the path of a file", "modules": "a tessera.modules/1 document: a dict, its text, or the path of a file",
    "plan": "what `plan` returned: a dict, its text, or the path of a file", "path": "", "format": "",
}
BAR_HELP = ("on_progress: called with the bytes that are done and the bytes of all, at most ten times a second, from any thread. progress: "
            "draw a bar: on a terminal, and in a notebook where tqdm is installed.")


def snake(name):
    return name.replace("-", "_")


def annotation(option):
    if option["name"] in OTHER_TYPES:
        return OTHER_TYPES[option["name"]]
    if option["type"] == "choice":
        return "Literal[" + ", ".join(f'"{word}"' for word in option["words"]) + "] | None"
    return TYPES[option["type"]]


def default(written):
    return "False" if written == "bool" else "()" if "Sequence" in written and "None" not in written else "None"


def in_python(text, operands):
    """A help text with options as keywords and operands as parameters. Commands, which are in backticks, stay as they are."""
    parameters = {name.upper(): name for name in (o[0].lstrip("*") for o in operands) if len(name) > 1}
    text = re.sub(r"`[^`]*`|--([a-z][a-z-]*)|\b[A-Z]{2,}\b(?!\.)", lambda m: snake(m[1]) if m[1] else parameters.get(m[0], m[0]), text)
    return text.replace(" (repeatable)", "").replace("(repeatable; ", "(")


def paragraph(text):
    return textwrap.fill(text, 140, initial_indent="    ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def code(begin, items, end, indent):
    """A line of code with a list in it, wrapped between the items."""
    whole = begin + ", ".join(item.replace(" ", "\0") for item in items) + end.replace(" ", "\0")
    begin_kept = begin.replace(" ", "\0")
    lines = textwrap.wrap(begin_kept + whole[len(begin):], 140, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def function_of(name, command, options):
    operands, by_position, result, made, bar = FUNCTIONS[name]
    own = [o for o in options if snake(o["name"]) in ONLY[name]] if name in ONLY else options
    written = {snake(o["name"]): annotation(o) for o in own}
    parameters = [f"{o[0]}: {o[1]}" + (f" = {o[2]}" if len(o) > 2 else "") for o in operands]
    parameters += [f"{n}: {written[n]} = {default(written[n])}" for n in by_position]
    keywords = [f"{n}: {kind} = {default(kind)}" for n, kind in written.items() if n not in by_position]
    keywords += ["on_progress: Callable[[int, int], Any] | None = None", "progress: bool = False"] if bar else []
    if keywords and not any(o[0].startswith("*") for o in operands):
        parameters.append("*")
    lines = code(f"def {name}(", parameters + keywords, f") -> {result}:", " " * (5 + len(name)))
    text = [paragraph('"""' + INTRODUCTIONS.get(name, command["summary"] + f'. Return what `tessera {command["name"]}` prints as JSON, as a dict.'))]
    helps = [f"{o[0].lstrip('*')}: {OPERAND_HELP[o[0]]}" for o in operands if OPERAND_HELP.get(o[0])]
    helps += [f"{snake(o['name'])}: {in_python(o['help'], operands)}" for o in own]
    if helps:
        text += ["", *(paragraph(h) for h in helps)]
    if bar:
        text += ["", paragraph(BAR_HELP)]
    given = [f'"{n}": {n}' for n in written]
    values = [f'("action", "{word}")' for word in FIRST.get(name, [])]
    for operand in (o[0].lstrip("*") for o in operands if o[0] != "format"):
        several = f"*{operand}" in (o[0] for o in operands)
        values.append(f'*(("{operand}", one) for one in {operand})' if several else f'("{operand}", {operand})')
    extra = ", format" if made == "report" else ""
    rest = (", format" if made == "report" else "") + (", on_progress, progress" if bar else "")
    body = code(f'    return _{made}("{command["name"]}", [{", ".join(values)}], {{', given, f"}}{rest})", " " * 8)
    return "\n".join(lines + text) + '"""\n' + "\n".join(body) + "\n"


def main():
    program, *flags = sys.argv[1:]
    table = json.loads(subprocess.run([program, "completions", "json"], check=True, capture_output=True).stdout)
    shared = [o for o in table["options"] if o["not_in_python"] is None]
    functions, kinds = {}, {}
    for command in table["commands"]:
        options = [o for o in command["options"] if o["not_in_python"] is None] + shared
        for o in options:
            kinds.setdefault(command["name"], {})[snake(o["name"])] = (o["type"], *o.get("words", []))
        for name in command["python"]:
            functions[name] = function_of(name, command, options)
    rows = []
    for command, options in kinds.items():
        if any(c["name"] == command and c["python"] for c in table["commands"]):
            rows.append(f'    "{command}": {{\n' + "".join(f'        "{n}": {kind!r},\n' for n, kind in options.items()).replace("'", '"') + "    },\n")
    text = ('"""The commands as functions. Made by native/python/commands.py from the table in core/commands."""\n'
            "from __future__ import annotations\n\nfrom typing import Any, Callable, Literal, Sequence\n\n"
            "from ._call import Against, CheckpointOrPath, Finding, Format\n"
            "from ._call import document as _document, findings as _findings, get as _get, report as _report\n"
            "from ._choices import Document, StrPath\n\n"
            f"__all__ = {sorted(functions)!r}\n".replace("'", '"'))
    text += "\n\n" + "\n\n".join(functions.values())
    options_text = ('"""The options of the commands, with their types. Made by native/python/commands.py from the table in core/commands."""\n'
                    "from __future__ import annotations\n\n"
                    "# By command, then by keyword: the type, followed by the words of a choice.\nOPTIONS: dict[str, dict[str, tuple[str, ...]]] = {\n" + "".join(rows) + "}\n")
    stale = False
    for path, made in ((TO, text), (TO.replace("_commands", "_options"), options_text)):
        there = open(path).read() if os.path.exists(path) else None
        stale = stale or there != made
        if "--check" not in flags:
            with open(path, "w") as f:
                f.write(made)
    if "--check" in flags and stale:
        sys.exit("tessera/_commands.py and _options.py are not what native/python/commands.py makes of the table; run it")


main()
