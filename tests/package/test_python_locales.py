"""The package in a program that has set its locale: numbers have a '.' in options and documents, whatever the locale's decimal point is."""
import json
import os
import shutil
import subprocess
import sys

import torch
from harness import Skip
from safetensors.torch import load_file, save_file
from test_python import INSTALLED

USE = """
import json, locale, sys
assert locale.setlocale(locale.LC_ALL, sys.argv[1]) == sys.argv[1]
import tessera
print(json.dumps({"point": locale.localeconv()["decimal_point"], "same": tessera.diff("a.safetensors", "b.safetensors", atol=0.5)["same"],
                  "stats": tessera.inspect("a.safetensors", stats=True)["entries"][0]["stats"], "objects": tessera.inspect("objects.pt")["entries"],
                  "plan": tessera.plan("a.safetensors", mesh="dp=2", placements="shard(0)")}))
tessera.merge("merged.safetensors", "a.safetensors", "b.safetensors", method="linear", weight=[0.25, 0.75], overwrite=True)
tessera.convert("a.safetensors", "shards", max_shard_size="0.5KiB")
json.loads(tessera.report_diff("a.safetensors", "b.safetensors", "sarif", values=True))
"""


def use(t, locale):
    shutil.rmtree(t.at("shards"), ignore_errors=True)
    env = {**os.environ, "PYTHONPATH": INSTALLED, "LOCPATH": t.at()}
    p = subprocess.run([sys.executable, "-c", USE, locale], cwd=t.at(), capture_output=True, text=True, env=env, timeout=120)
    assert p.returncode == 0, p.stderr[-3000:]
    found = json.loads(p.stdout)
    point = found.pop("point")
    files = {name: open(t.at("shards", name), "rb").read() for name in sorted(os.listdir(t.at("shards")))}
    return point, found, load_file(t.at("merged.safetensors"))["w"].clone(), files


def test_numbers_do_not_depend_on_the_locale(t):
    a = torch.arange(600.).reshape(60, 10) / 7
    save_file({"w": a, "v": a[:3].clone()}, t.at("a.safetensors"))
    save_file({"w": a + 0.25, "v": a[:3] - 0.25}, t.at("b.safetensors"))
    torch.save({"lr": 0.125, "betas": [0.9, 0.999], "w": a}, t.at("objects.pt"))
    expected = use(t, "C")
    assert expected[0] == "." and expected[1]["same"] and torch.allclose(expected[2], a + 0.1875), expected[1]
    for locale in ("de_DE", "ps_AF"):
        if subprocess.run(["localedef", "-i", locale, "-f", "UTF-8", t.at(locale + ".UTF-8")], capture_output=True).returncode:
            raise Skip(f"localedef cannot make {locale} (Debian: the package locales)")
        point, *found = use(t, locale + ".UTF-8")
        assert point != "." and found[0] == expected[1] and torch.equal(found[1], expected[2]) and found[2] == expected[3], (locale, point)
