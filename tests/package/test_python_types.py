"""The types of the Python package, as type checkers see them in an installed wheel, and by themselves."""
import inspect
import json
import os
import re
import shutil
import subprocess
import sys

from shell import TOOLS, check
from test_python import INSTALLED, WHEEL, tessera
from test_python_commands import table
from torch_names import StorageMeta, needs

RIGHT = """
import pathlib
import tessera
import tessera.torch

with tessera.open(pathlib.Path("run"), part="model", step=100, also=["node1", pathlib.Path("node2")], shards={"schema": ""}) as checkpoint:
    shape: tuple[int, ...] = checkpoint["w"].shape
    rows: memoryview = checkpoint["w"][0:8, 1]
    against = tessera.validate("run", against=checkpoint, rule=["values/nan=error"])["findings"]
for finding in tessera.check("run", deep=True, against=["a", "b"], step="latest"):
    where: int | None = finding.byte_offset
same: object = tessera.diff("a", "b", values=True, part="model")["same"]
sarif: str = tessera.report("run", "sarif", deep=True, part="model")
junit: str = tessera.report_diff("a", "b", "junit", values=True)
missing, unexpected = tessera.torch.load_into({}, "run", part="model", shards="vllm", staged=True)
bias: object = tessera.torch.load("run", ["**.bias"], prefix="model.", map={"schema": ""}, inverse=True, dtype="bfloat16")["a.bias"]
names: list[str] = missing + unexpected
reader = tessera.torch.StorageReader("run", step=3)
writer = tessera.torch.StorageWriter("run", overwrite=True, thread_count=2, single_file_per_rank=False, sync_files=False)
writer = tessera.torch.StorageWriter("run", form="safetensors", fqn_to_index_mapping={"w": 1}, save_distributed=True, enable_consolidation=True)
error: tessera.Error = tessera.TesseraError("", "i/o", 3)
"""
# The values of options, by the type that the table of commands gives them; and those of parameters that are not options, or have another type.
VALUES = {"flag": "True", "text": '"x"', "texts": '["x", "y"]', "real": "0.5", "number": "3", "count": "3", "size": '"1GB"', "document": '{"schema": ""}',
          "checkpoint": 'pathlib.Path("x")', "model": '{"a", "b"}'}
OTHERS = {
    "on_progress": "lambda done, total: None", "progress": "True", "step": "100", "also": '[pathlib.Path("node1"), "node2"]', "weight": "[0.25, \"0.75\"]", "against": "checkpoint",
    "lora": "checkpoint", "modules": '{"schema": ""}', "names": '["**.bias"]', "plan": '{"schema": ""}', "manifest": '{"schema": ""}', "form": '"safetensors"', "what": '"to-fqn"', "directory": '"x"',
    "strict": "False", "no_dist": "True", "staged": "True", "verify": "False", "process_group": "None", "map_location": '"cpu"', "state_dict": "{}", "model_state_dict": "{}",
    "unsafe_objects": "True", "single_file_per_rank": "True", "sync_files": "False", "thread_count": "2", "per_thread_copy_ahead": "0", "cache_staged_state_dict": "True",
    "_extensions": "[]", "_extension_registry": "None", "serialization_format": '"torch_save"', "checksums": "False", "fqn_to_index_mapping": '{"w": 1}', "save_distributed": "True",
    "enable_consolidation": "True", "thread_count_consolidation": "2", "threads": "3", "io_depth": "3"}
OPERANDS = {"format": '"sarif"', "names": '"w"', "paths": '"x"'}
# What is no function: what objects have.
MEMBERS = """
opened: tessera.Checkpoint = checkpoint
names: list[str] = [*opened.keys()] + [entry.name for entry in opened.values()] + [name + entry.name for name, entry in opened.items()]
found: tessera.Entry | None = opened.get("w")
opened.unchanged()
format: list[str] = [opened.format, opened.path]
listed: dict[str, object] = opened.inspect(hash="sha256", stats=True)
findings: dict[str, object] = opened.validate(deep=True, layout={"schema": ""}, against={"a"}, rule=["a=off"])
one: tessera.Entry = opened["w"]
chunks: list[tuple[tuple[int, ...], tuple[int, ...]]] = one.chunks
texts: list[str] = [one.dtype or "", one.kind, one.name, one.type or ""]
size: int | None = one.nbytes
place: object = one.path
grad: bool | None = one.requires_grad
shape: tuple[int, ...] = one.shape
read: memoryview = one.read(offsets=[0], sizes=[1], out=bytearray(4))
array: object = one.array((slice(0, 2), 1))
saved: bytes = one.save() if one.is_data() else b""
rule: str = tessera.check("run")[0].rule + tessera.check("run")[0].level + tessera.check("run")[0].message
where: tuple[str | None, int | None, str | None] = (lambda f: (f.file, f.byte_offset, f.fqn))(tessera.check("run")[0])
opened.close()
try:
    tessera.doctor()
except tessera.TesseraError as e:
    status: tuple[str, int | None] = (e.status, e.byte_position)
"""
WRONG = [  # a line, and what is wrong with it
    ("tessera.open('run', part=3)", '"part"'),
    ("tessera.open('run', step=1.5)", '"step"'),
    ("tessera.open('run', prt='model')", '"prt"'),
    ("tessera.torch.load('run', also=3)", '"also"'),
    ("tessera.torch.load_into({}, 'run', shards=3)", '"shards"'),
    ("tessera.torch.load('run', inverse='yes')", '"inverse"'),
    ("tessera.torch.StorageWriter('run', thread_count='2')", '"thread_count"'),
    ("tessera.torch.StorageWriter('run', form='pt')", '"form"'),
    ("tessera.check('run')[0].rul", '"rul"'),
    ("tessera.report('run', 'xml')", '"report"'),
    ("tessera.open('run')['w'].shap", '"shap"'),
    ("len(tessera.open('run').inspect(stats='yes'))", '"inspect"'),
]


def call_with_everything(name, function, types):
    """A call with every parameter of a function."""
    words = []
    for parameter in inspect.signature(function).parameters.values():
        is_operand = parameter.default is inspect.Parameter.empty
        value = OPERANDS.get(parameter.name) if is_operand else None
        value = value or OTHERS.get(parameter.name) or ('"x"' if is_operand else types[parameter.name])
        by_position = is_operand or parameter.kind is inspect.Parameter.VAR_POSITIONAL or any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in inspect.signature(function).parameters.values()) \
            and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        words.append(value if by_position else f"{parameter.name}={value}")
    return f"{name}({', '.join(words)})"


def program(t):
    """Uses every function, class and member of the package with every option."""
    found = table(t)
    types = {"explain": {"rule": '"x"'}}
    for command in found["commands"]:
        for function in command["python"]:
            types.setdefault(function, {}).update({o["name"].replace("-", "_"): VALUES.get(o["type"]) or repr(o["words"][0]) for o in command["options"] + found["options"]})
    functions = [(f"{module.__name__}.{name}", getattr(module, name)) for module in (tessera, tessera.torch) for name in module.__all__]
    classes = (tessera.Checkpoint, tessera.Entry, tessera.Finding, tessera.TesseraError, tessera.Error)
    members = {f".{name}" for one in classes for name in (*vars(one), *getattr(one, "__annotations__", {}), *getattr(one, "__slots__", ())) if not name.startswith("_")}
    assert len(functions) > 30 and not [name for name in members if not re.search(rf"{re.escape(name)}\b", MEMBERS)], members
    return ("import pathlib\nimport tessera\nimport tessera.torch\n\ncheckpoint = tessera.open('x')\n"
            + "".join(call_with_everything(name, function, types.get(function.__name__, types["inspect"] | types["convert"])) + "\n" for name, function in functions if function not in classes) + MEMBERS)


def test_a_type_checker_knows_the_package(t):
    check(sys.executable, "-m", "venv", t.at("venv"))
    check(t.at("venv/bin/pip"), "install", "--no-index", "--disable-pip-version-check", WHEEL)
    with open(t.at("right.py"), "w") as f:
        f.write(RIGHT)
    with open(t.at("everything.py"), "w") as f:
        f.write(program(t))
    with open(t.at("wrong.py"), "w") as f:
        f.write("import tessera\nimport tessera.torch\n" + "".join(line + "\n" for line, _ in WRONG))
    mypy = [os.path.join(TOOLS, "bin/mypy"), "--strict", "--cache-dir", t.at("cache"), "--python-executable", t.at("venv/bin/python")]
    check(*mypy, t.at("right.py"))
    check(*mypy, t.at("everything.py"))
    p = subprocess.run([*mypy, t.at("wrong.py")], capture_output=True, text=True, timeout=300)
    lines = [line for line in p.stdout.splitlines() if ": error: " in line]
    assert p.returncode == 1 and len(lines) == len(WRONG), p.stdout + p.stderr
    for number, (line, word) in enumerate(WRONG, 3):
        assert any(f"wrong.py:{number}:" in found and word in found for found in lines), (line, p.stdout)


# ---- the package itself ----


def test_the_package_is_what_its_types_state(t):
    """By stubtest, for which the package's own files are the stubs. It begins with mypy, and stops at what that finds."""
    needs(StorageMeta)  # before which PyTorch, and the numpy that it needs, state fewer types
    with open(t.at("allowed"), "w") as f:
        f.write("tessera._call.Format  # a Literal of several words, which stubtest takes for a Union\n")
    with open(t.at("mypy.ini"), "w") as f:
        f.write("[mypy]\nignore_missing_imports = True\ndisable_error_code = annotation-unchecked\n")  # a note, with which stubtest ends
    torch = os.path.dirname(os.path.dirname(sys.modules["torch"].__file__))
    check(os.path.join(TOOLS, "bin/python"), "-m", "mypy.stubtest", "tessera", "--ignore-missing-stub", "--allowlist", t.at("allowed"), "--mypy-config-file", t.at("mypy.ini"), cwd=t.scratch,
          env={**os.environ, "MYPYPATH": INSTALLED, "PYTHONPATH": os.pathsep.join((INSTALLED, torch))})


def test_pyright_knows_the_type_of_everything_that_is_public(t):
    needs(StorageMeta)  # before which PyTorch, and the numpy that it needs, state fewer types
    pyright = os.path.join(TOOLS, "npm/node_modules/.bin/pyright")
    env = {**os.environ, "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"], "PYTHONPATH": INSTALLED}
    public = json.loads(check(pyright, "--verifytypes", "tessera", "--ignoreexternal", "--outputjson", env=env))["typeCompleteness"]
    assert public["completenessScore"] == 1 and public["exportedSymbolCounts"]["withKnownType"] > 50, public["exportedSymbolCounts"]
    for name, text in (("right.py", RIGHT), ("everything.py", program(t)), ("wrong.py", "import tessera\nimport tessera.torch\n" + "".join(line + "\n" for line, _ in WRONG))):
        with open(t.at(name), "w") as f:
            f.write(text)
    with open(t.at("pyrightconfig.json"), "w") as f:
        json.dump({"typeCheckingMode": "strict", "extraPaths": [INSTALLED]}, f)
    p = subprocess.run([pyright, "--outputjson", "--project", t.scratch], capture_output=True, text=True, timeout=1200, env=env)
    found = [(os.path.basename(one["file"]), one["range"]["start"]["line"] + 1) for one in json.loads(p.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    assert p.returncode == 1 and set(found) == {("wrong.py", number) for number, _ in enumerate(WRONG, 3)}, p.stdout


def test_pyright_finds_nothing_in_the_package(t):
    """In its private code, too. NumPy's other dtypes are optional."""
    needs(StorageMeta)  # before which PyTorch, and the numpy that it needs, state fewer types
    with open(t.at("pyrightconfig.json"), "w") as f:
        json.dump({"typeCheckingMode": "basic", "reportMissingImports": False}, f)
    shutil.copytree(os.path.join(INSTALLED, "tessera"), t.at("tessera"))
    check(os.path.join(TOOLS, "npm/node_modules/.bin/pyright"), "--project", t.scratch, env={**os.environ, "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]})
