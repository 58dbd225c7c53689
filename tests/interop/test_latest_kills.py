"""A save is killed at one of its calls that change files, and `tessera latest` must answer with it only if the framework itself loads it whole. These
are the saves of PyTorch and, with the Python that TESSERA_FRAMEWORKS names, of transformers, accelerate and Lightning. With TSR_TEST_FULL a
save is killed before and after each call and in the middle of each write; otherwise at 12 of these moments."""
import os
import re
import subprocess
import sys

from harness import frameworks
from test_latest_live import lacks_optional

HERE = os.path.dirname(os.path.abspath(__file__))
MOMENTS = ("before", "in the middle of", "after")


def check(t, framework, python, least=3):
    library, run = t.at("kill_at_call.so"), t.at("run")
    subprocess.run(["cc", "-shared", "-fPIC", os.path.join(HERE, "kill_at_call.c"), "-ldl", "-o", library], check=True)
    os.makedirs(run)
    environment = {**os.environ, "LD_PRELOAD": library, "OMP_NUM_THREADS": "1"}
    with open(t.at("log"), "wb") as log, subprocess.Popen([python, os.path.join(HERE, "framework_loaders.py"), framework, run, "--killed"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                                          stderr=log, text=True, bufsize=1, env=environment) as saver:

        def ask(number, moment):
            print(number, moment, file=saver.stdin)
            lines = [saver.stdout.readline().rstrip("\n") for _ in range(2)]
            assert all(lines), open(t.at("log"), errors="replace").read()[-3000:]
            return lines

        old = saver.stdout.readline().rstrip("\n")
        assert old, open(t.at("log"), errors="replace").read()[-3000:]
        count, verdict = ask(0, 0)
        assert verdict == "equal" and int(count) >= least, (count, verdict)
        cases = [(number, moment) for number in range(1, int(count) + 1) for moment in range(3)]
        if not os.environ.get("TSR_TEST_FULL"):
            cases = cases[::max(1, len(cases) // 12)]
        bad, whole = [], 0
        for number, moment in cases:
            _, verdict = ask(number, moment)
            p = subprocess.run([t.path, "latest", run], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
            whole += verdict == "equal"
            is_old = p.stdout.rstrip("\n") == old
            waits = verdict == "equal" and lacks_optional(framework, re.sub(r"\d+(?!.*\d)", "3", old), old)
            if p.returncode or (is_old != (verdict != "equal") and not (is_old and waits)):
                bad.append(f"killed {MOMENTS[moment]} call {number} of {count}: {framework} says '{verdict}', and the answer is {p.stdout}{p.stderr}")
        saver.stdin.close()
    assert not bad, "\n".join(bad[:10])
    print(f"{framework}: {len(cases)} kills, after {whole} of which the save was whole")


def test_killed_saves_of_torch(t):
    check(t, "torch-file", sys.executable)


def test_killed_saves_of_dcp(t):
    check(t, "dcp-alone", sys.executable)


def test_killed_saves_of_its_writer_of_safetensors(t):
    check(t, "huggingface", sys.executable)


def test_killed_saves_of_transformers(t):
    check(t, "transformers", frameworks("transformers"))


def test_killed_saves_of_accelerate(t):
    check(t, "accelerate", frameworks("accelerate"))


def test_killed_saves_of_lightning(t):
    check(t, "lightning", frameworks("lightning"), least=2)  # it opens the file and writes once
