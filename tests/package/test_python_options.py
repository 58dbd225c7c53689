"""Every option of every command in Python: what the function returns and writes is what the command prints and writes."""
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import warnings

import numpy
import option_cases
from test_python import tessera
from test_python_commands import ASIDE, same_files, table

# What both documents have, but with other values.
APART = ("seconds", "destination", "generated", "bytes_per_second", "modified")


def called(words, found):
    """The function, its operands and its options, for the words of a command line."""
    command = next(c for c in found["commands"] if c["name"] == words[0])
    kinds = {o["name"]: o["type"] for o in command["options"] + found["options"]} | {"o": "text", "on": "text"}
    operands, options, rest = [], {}, list(words[1:])
    while rest:
        word = rest.pop(0)
        name = "output" if word == "-o" else word[2:] if word.startswith("--") else None
        if name is None:
            operands.append(word)
            continue
        kind = kinds[name]
        value = True if kind == "flag" else rest.pop(0)
        value = int(value) if kind in ("number", "count") else float(value) if kind == "real" else value
        key = name.replace("-", "_")
        options[key] = [*options.get(key, []), value] if kind == "texts" else value
    if words[0] == "map":
        return f"map_{operands[0]}", operands[1:], options
    if words[0] == "fqn" and not operands:
        operands = [None]
    return command["python"][0] if command["python"] else None, operands, options


def plain(document):
    """A document without places and times."""
    if isinstance(document, dict):
        return {key: plain(value) for key, value in document.items() if key not in APART}
    return [plain(value) for value in document] if isinstance(document, list) else document


def printed(t, words, directory):
    p = subprocess.run([t.path, *words], cwd=directory, stdin=subprocess.DEVNULL, capture_output=True)
    assert p.returncode in (0, 1), (words, p.stderr.decode())
    return p.stdout


@contextlib.contextmanager
def silent():
    """Nothing may be printed: a result is returned, and messages are warnings."""
    with tempfile.TemporaryFile() as said:
        kept = {of: os.dup(of) for of in (1, 2)}
        for of in kept:
            os.dup2(said.fileno(), of)
        try:
            yield
        finally:
            for of, copy in kept.items():
                os.dup2(copy, of)
                os.close(copy)
        said.seek(0)
        text = said.read()
        assert not text, text


def test_every_option_of_every_command_is_in_a_case(t):
    found = table(t)
    used = {(words[0], name) for words in option_cases.commands() for name in called(words, found)[2]}
    lacking = [f"{c['name']} --{o['name']}" for c in found["commands"] if c["name"] != "view" for o in c["options"] if (c["name"], o["name"].replace("-", "_")) not in used]
    assert not lacking, f"add to tests/support/option_cases.txt: {lacking}"


def test_functions_do_what_the_commands_do(t):
    found, cases = table(t), option_cases.commands()
    ours, theirs, home = t.at("ours"), t.at("theirs"), os.getcwd()
    os.mkdir(theirs)
    option_cases.prepare(t.path, theirs)
    shutil.copytree(theirs, ours, symlinks=True)
    first, compared, not_in_python = set(), 0, {"list_rules", "changed_files"}
    for words in cases:
        function, operands, options = called(words, found)
        if function is None or not_in_python & set(options):
            printed(t, words, theirs)
            continue
        reports = {"diff": "report_diff", "validate": "report"} if "format" in options else {}
        form = options["format"] if function in reports else None
        want = printed(t, words if form else ["json" if word == options.get("format") else word for word in words], theirs)
        given = {name: value for name, value in options.items() if name.replace("_", "-") not in ASIDE}
        if function not in first and not function.startswith("map_") and function not in ("explain", "doctor", "latest", "prune"):
            given |= {"threads": 1, "io_depth": 2}  # which every function has
        first.add(function)
        os.chdir(ours)
        try:
            with warnings.catch_warnings(), silent():
                warnings.simplefilter("ignore")
                got = getattr(tessera, reports.get(function, function))(*operands, *([form] if form else []), **given)
        finally:
            os.chdir(home)
        if function == "get":
            if "output" in options:
                assert numpy.asarray(got).tobytes() == open(os.path.join(theirs, options["output"]), "rb").read(), words
                os.remove(os.path.join(theirs, options["output"]))
        elif form:
            assert got == want.decode(), words
        elif "output" in options:
            with open(os.path.join(theirs, options["output"])) as f:
                assert got == json.load(f), words
            os.remove(os.path.join(theirs, options["output"]))
        elif "json" in options or "format" in options or words[0] == "map":
            want = json.loads(want)
            assert plain(got) == plain(want) or function == "doctor" and got["schema"] == want["schema"], (words, got, want)  # of another build
        else:
            continue
        compared += 1
        if operands[1:] and os.path.exists(os.path.join(theirs, str(operands[1]))):
            both = [os.path.join(of, operands[1]) for of in (ours, theirs)]
            assert os.path.isdir(both[0]) or open(both[0], "rb").read() == open(both[1], "rb").read(), words
    same_files(theirs, ours)
    assert compared > 150, compared
