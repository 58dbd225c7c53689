"""The types of the Python package, as a type checker sees them in an installed wheel."""
import os
import subprocess
import sys

from shell import TOOLS, check
from test_python import WHEEL

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


def test_a_type_checker_knows_the_package(t):
    check(sys.executable, "-m", "venv", t.at("venv"))
    check(t.at("venv/bin/pip"), "install", "--no-index", "--disable-pip-version-check", WHEEL)
    with open(t.at("right.py"), "w") as f:
        f.write(RIGHT)
    with open(t.at("wrong.py"), "w") as f:
        f.write("import tessera\nimport tessera.torch\n" + "".join(line + "\n" for line, _ in WRONG))
    mypy = [os.path.join(TOOLS, "bin/mypy"), "--strict", "--cache-dir", t.at("cache"), "--python-executable", t.at("venv/bin/python")]
    check(*mypy, t.at("right.py"))
    p = subprocess.run([*mypy, t.at("wrong.py")], capture_output=True, text=True, timeout=300)
    lines = [line for line in p.stdout.splitlines() if ": error: " in line]
    assert p.returncode == 1 and len(lines) == len(WRONG), p.stdout + p.stderr
    for number, (line, word) in enumerate(WRONG, 3):
        assert any(f"wrong.py:{number}:" in found and word in found for found in lines), (line, p.stdout)
