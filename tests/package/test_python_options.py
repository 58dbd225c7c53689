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
import torch
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


# ---- defaults, zeros and nothing ----

# By command: the operands and the options of a call that succeeds. OUT is a destination.
CALLS = {
    "inspect": (["{fsdp2}"], {}), "diff": (["{fsdp2}", "{tp}"], {}), "validate": (["{fsdp2}"], {}), "latest": (["run"], {}), "prune": (["run"], {"keep": 5, "dry_run": True}),
    "explain": (["layout/hole"], {}), "layout": (["{fsdp2}"], {}), "manifest": (["{fsdp2}"], {}), "verify": (["{fsdp2}", "manifest.json"], {}), "doctor": (["run"], {}),
    "plan": (["{fsdp2}"], {"mesh": "dp=2", "placements": "shard(0)"}), "convert": (["a.safetensors", "OUT"], {}), "exec": (["plan.json", "OUT"], {}), "cp": (["a.safetensors", "OUT"], {}),
    "reshard": (["a.safetensors", "OUT"], {"mesh": "dp=2", "placements": "shard(0)", "to": "dcp"}), "fqn": ([], {"checkpoint": "{fsdp2}"}),
    "merge": (["OUT", "a.safetensors", "b.safetensors"], {"method": "linear"}), "optim": (["flatten", "optim.pt", "OUT"], {})}
UNSET = {"flag": [False, 0], "texts": [[], ()]}  # what means that an option was not given; None always does
# What is passed on: the value, and the value on the command line.
PASSED = {"flag": [(1, None)], "text": [("", "")], "texts": [("", ""), ([""], "")], "choice": [("", "")], "checkpoint": [("", "")], "size": [(0, "0"), ("", "")],
          "count": [(0, "0"), (1, "1")], "number": [(0, "0")], "document": [({}, "braces.json"), ("", ""), (b"", "empty")], "model": [([], "empty"), ({}, "braces.json"), ("", "")],
          "real": [(0, "0"), (0.0, "0.0"), (float("inf"), "inf"), (float("nan"), "nan"), (-1.0, "-1")]}


def written(path):
    """The files of a destination, which is removed."""
    directory, files = os.path.dirname(path) or ".", {}
    for name in [n for n in os.listdir(directory) if os.path.basename(path) in n]:
        for at, _, names in os.walk(os.path.join(directory, name)):
            files |= {os.path.join(at, n): open(os.path.join(at, n), "rb").read() for n in names}
        if os.path.isfile(os.path.join(directory, name)):
            files[name] = open(os.path.join(directory, name), "rb").read()
            os.remove(os.path.join(directory, name))
        else:
            shutil.rmtree(os.path.join(directory, name))
    return files


def test_defaults_zeros_and_empty_values_are_the_commands_own(t):
    """What Python is given explicitly is what the command line is given, also where it is the value that has an effect of its own although it
    looks like nothing: the same document and files, or an error of both."""
    found, home = table(t), os.getcwd()
    places = {"{fsdp2}": os.path.join(option_cases.SAMPLES, "dcp_fsdp2"), "{tp}": os.path.join(option_cases.SAMPLES, "dcp_tp_fsdp2")}
    os.chdir(t.scratch)
    prepare_calls(t, places["{fsdp2}"])
    asked = {}

    def command(words):
        """The status, document and files of the command."""
        if tuple(words) not in asked:
            p = subprocess.run([t.path, *words, *(["--json"] if words[0] not in ("layout", "manifest") else [])], stdin=subprocess.DEVNULL, capture_output=True)
            asked[tuple(words)] = ("error", p.stderr.decode()) if p.returncode == 2 else (plain(json.loads(p.stdout)), written("OUT"))
        return asked[tuple(words)]

    def function(name, operands, options):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                document = getattr(tessera, name)(*([None] if name == "fqn" else operands), **options)
        except (tessera.TesseraError, TypeError, ValueError) as e:
            return "error", str(e)
        return plain(json.loads(json.dumps(document))), written("OUT")

    try:
        compared = 0
        for command_of in (c for c in found["commands"] if c["name"] in CALLS):
            name, (operands, base) = command_of["name"], CALLS[command_of["name"]]
            operands, base = [places.get(o, o) for o in operands], {key: places.get(value, value) for key, value in base.items()}
            own = {o["name"].replace("-", "_"): o for o in command_of["options"] + found["options"] if o["name"] not in ASIDE and o["not_in_python"] is None}
            words = lambda options: [name, *operands, *(w for key, value in options.items() for w in (f"--{key.replace('_', '-')}", *([] if value in (True, None) else [str(value)])))]
            calls = [(base | {key: None for key in own if key not in base}, words(base))]
            for nth in range(2):
                calls.append((base | {key: UNSET[o["type"]][nth] for key, o in own.items() if key not in base and o["type"] in UNSET}, words(base)))
            for key, o in own.items():
                others = {k: value for k, value in base.items() if k != key}
                calls += [(base | {key: value}, words(others | {key: text})) for value, text in PASSED[o["type"]]]
            for options, line in calls:
                want, got = command(line), function(command_of["python"][0], operands, options)
                assert (got[0] == "error") == (want[0] == "error"), (line, options, got, want)
                assert want[0] == "error" or got == want or name == "doctor", (line, options)
                compared += want[0] != "error"
        assert compared > 100, compared
    finally:
        os.chdir(home)


def prepare_calls(t, source):
    """Makes the files of CALLS and PASSED in the current directory."""
    os.mkdir("run")
    for step in (1, 2):
        t.run("cp", source, f"run/step-{step}")
    for name, words in (("manifest.json", ["manifest", source]), ("plan.json", ["plan", source, "--mesh", "dp=2", "--placements", "shard(0)", "--json"])):
        with open(name, "wb") as f:
            f.write(t.run(*words).stdout)
    for name in "ab":
        t.run("convert", source, f"{name}.safetensors", "--objects", "drop")
    torch.save({"state": {0: {"exp_avg": torch.arange(3.0), "exp_avg_sq": torch.ones(3)}}, "param_groups": [{"lr": 0.5, "params": [0]}]}, "optim.pt")
    with open("braces.json", "w") as f:
        f.write("{}")
    open("empty", "w").close()
