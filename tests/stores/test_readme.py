"""The lines of README.md about stores that tests/cli/test_examples.py has no server for, and that of native/python/README.md that saves to one."""
import json
import os
import re
import subprocess
import urllib.request

import fake_hub
import fake_s3
import servers
import test_python_writer
from checks import ROOT, Skip, need, test
from ended import leaving
from harness import sample
from test_hf import A, TOKEN
from test_s3 import files_below

LINE = re.compile(r"^    (tessera .*(?:gs|az|hf)://.*)$", re.M)


def lines():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        found = LINE.findall(f.read())
    need(len(found) >= 2, f"README.md has only {found}")
    return found


def run_line(t, line, env):
    path = f"{os.path.dirname(t.path)}:{os.environ['PATH']}"
    p = subprocess.run(["bash", "-c", line], cwd=t.directory, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, env={**os.environ, **env, "PATH": path})
    need(p.returncode == 0, f"`{line}` ended {p.returncode}: {p.stderr.decode(errors='replace')[-600:]}")
    return p.stdout.decode()


@test
def test_readme_lines_of_the_hub_and_of_google_work(t):
    source = sample("dcp_fsdp2")[0]
    os.symlink(source, t.at("step-1000"))
    ran = []
    with servers.gcs_emulator() as url, fake_hub.serving({"models/org/model": {"token": TOKEN, "refs": {"main": A}, "commits": {A: files_below(source)}}}) as hub:
        request = urllib.request.Request(url + "/storage/v1/b", data=json.dumps({"name": "bucket"}).encode(), headers={"Content-Type": "application/json"}, method="POST")
        urllib.request.urlopen(request, timeout=20).read()
        env = {"STORAGE_EMULATOR_HOST": url, "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}
        for line in lines():
            out = run_line(t, line, env)
            ran.append(line)
            if "hf://" in line:
                names = {e["fqn"] for e in t.json("inspect", source, "--json")["entries"]}
                need(names and all(name in out for name in names), f"{line}: {out}")
            else:
                need("gs://bucket/run/step-1000" in line, f"{line} goes to another place than this test looks at")
                need(t.json("diff", source, "gs://bucket/run/step-1000", "--values", "--json", env=env)["same"], line)
    need(any("hf://" in line for line in ran) and any("gs://" in line for line in ran), str(ran))


PROGRAM = """import torch, tessera.torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
dist.init_process_group("gloo", init_method="file://%s", rank=0, world_size=1)
state_dict = {"w": torch.arange(6.), "of": {"step": 3}}
saving = %s
getattr(saving, "upload_completion", saving).result()
"""


@test
def test_readme_program_saves_to_a_bucket(t):
    python = test_python_writer.PYTHON
    if not python["python"]:
        raise Skip("no Python with PyTorch was given (--python)")
    with open(os.path.join(ROOT, "native/python/README.md"), encoding="utf-8") as f:
        (line,) = re.findall(r"^    (dcp\.async_save\(.*s3://bucket/.*)$", f.read(), re.M)
    with fake_s3.serving({}) as s:
        program = PROGRAM % (t.at("meeting"), line.replace("s3://bucket/", "s3://b/"))
        p = subprocess.run([python["python"], "-c", leaving(program)], env={**os.environ, **s.env(), "PYTHONPATH": python["package"]}, capture_output=True, text=True, timeout=300)
        need(p.returncode == 0, p.stderr[-1000:])
        need("run/step-2000/.metadata" in s.objects, sorted(s.objects))
        t.run("validate", "s3://b/run/step-2000", "--deep", env=s.env())
