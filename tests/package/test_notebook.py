"""The notebook of samples/notebook, executed as Jupyter does, and the progress bar in notebooks."""
import json
import os
import subprocess
import sys

from checks import Skip
from harness import ROOT
from shell import check, made_once
from test_python import INSTALLED

PLACE = os.path.join(ROOT, ".local/package-notebook")
PINS = ("nbclient==0.11.0", "nbformat==5.11.1", "ipykernel==7.4.0", "matplotlib==3.11.2", "numpy==2.4.6", "tqdm==4.70.1")
DIRECTORY = os.path.join(ROOT, "samples/notebook")
EXECUTE = """
import json, sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": sys.argv[2]}}).execute()
nbformat.write(notebook, sys.argv[3])
"""
PROGRESS = """
import nbformat
from nbformat.v4 import new_notebook, new_code_cell
import sys
nbformat.write(new_notebook(cells=[new_code_cell("import tessera\\ndone = tessera.convert('../checkpoints/dcp_fsdp2', %r, include=['model.**'], progress=True)" % sys.argv[2])]), sys.argv[1])
"""


def python():
    """A python with Jupyter's kernel and matplotlib, but without PyTorch."""
    def make():
        check(sys.executable, "-m", "venv", PLACE)
        p = subprocess.run([f"{PLACE}/bin/pip", "install", "--timeout", "60", "--retries", "3", "--quiet", "--disable-pip-version-check", *PINS], capture_output=True, text=True, timeout=1200)
        return "" if p.returncode == 0 else f"pip cannot install {' '.join(PINS)}: {p.stderr.strip()[-300:]}"
    os.makedirs(PLACE, exist_ok=True)
    failed = made_once(PLACE, make)
    if failed:
        os.unlink(os.path.join(PLACE, "made"))  # the next run tries again
        raise Skip(failed)
    return f"{PLACE}/bin/python"


def executed(t, path):
    env = {**os.environ, "PYTHONPATH": INSTALLED, "HOME": t.scratch, "IPYTHONDIR": t.at("ipython"), "MPLCONFIGDIR": t.at("mpl")}
    check(python(), "-c", EXECUTE, path, DIRECTORY, t.at("executed.ipynb"), env=env)
    with open(t.at("executed.ipynb")) as f:
        return json.load(f)["cells"]


def shown(cells):
    """What the cells show; of pictures only that there is one, because fonts differ between machines."""
    outputs = [[{kind: text for kind, text in output.get("data", {"text": output.get("text")}).items() if kind != "image/png"} | {"picture": "image/png" in output.get("data", {})}
                for output in cell.get("outputs", [])] for cell in cells]
    return json.loads(json.dumps(outputs))


def test_the_notebook_shows_what_is_committed(t):
    with open(os.path.join(DIRECTORY, "checkpoint.ipynb")) as f:
        text = f.read()
    committed = json.loads(text)["cells"]
    assert ROOT not in text and "/home/" not in text and "/tmp" not in text
    cells = executed(t, os.path.join(DIRECTORY, "checkpoint.ipynb"))
    assert [cell["source"] for cell in cells] == [cell["source"] for cell in committed]
    assert shown(cells) == shown(committed)
    seen = [output for cell in shown(cells) for output in cell]
    assert sum(output["picture"] for output in seen) == 2 and any("<details" in str(output.get("text/html")) for output in seen)
    assert any("valid: True" in str(output.get("text")) for output in seen), seen


def test_a_notebook_draws_the_progress_bar_of_tqdm(t):
    check(python(), "-c", PROGRESS, t.at("progress.ipynb"), t.at("out.safetensors"))
    cells = executed(t, t.at("progress.ipynb"))
    text = "".join("".join(output.get("text", "")) for output in cells[0]["outputs"])
    assert "convert: 100%" in text and "█" in text, text
    assert os.path.getsize(t.at("out.safetensors"))
