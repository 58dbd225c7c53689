"""The parts for CI, run as the services run them: the same steps in bash on good, broken and foreign checkpoints."""
import json
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree

from harness import ROOT, SAMPLES
from shell import TOOLS, check

GITHUB = os.path.join(ROOT, "samples/ci/github/action.yml")
GITLAB = os.path.join(ROOT, "samples/ci/gitlab.yml")
GOOD, BROKEN = os.path.join(SAMPLES, "dcp_fsdp2"), os.path.join(SAMPLES, "broken_dcp_hole")
LOADER = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))"


def yaml(path):
    return json.loads(check(os.path.join(TOOLS, "bin/python"), "-c", LOADER, path))


def test_all_files_follow_their_services_schemas(t):
    tool = os.path.join(TOOLS, "bin/check-jsonschema")
    check(tool, "--builtin-schema", "vendor.github-actions", GITHUB)
    for workflow in ("bucket.yml", "drift.yml"):
        check(tool, "--builtin-schema", "vendor.github-workflows", os.path.join(os.path.dirname(GITHUB), workflow))
    check(tool, "--builtin-schema", "vendor.gitlab-ci", GITLAB)
    check(os.path.join(TOOLS, "bin/pre-commit"), "validate-manifest", os.path.join(ROOT, ".pre-commit-hooks.yaml"), env={**os.environ, "HOME": t.scratch})


class Action:
    """Runs the steps of a composite action: expressions of inputs only, as here, and bash as GitHub starts it."""

    def __init__(self, t, path=True, **inputs):
        action = yaml(GITHUB)
        values = {name: i.get("default", "") for name, i in action["inputs"].items()}
        assert set(inputs) <= {n.replace("-", "_") for n in values}, inputs
        values.update({name.replace("_", "-"): str(v) for name, v in inputs.items()})
        missing = [n for n, i in action["inputs"].items() if i.get("required") and not values[n]]
        assert not missing, missing
        files = {name: t.at(name) for name in ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")}
        for file in files.values():
            open(file, "w").close()
        search = f"{os.path.dirname(t.path)}:/usr/bin:/bin" if path else "/usr/bin:/bin"
        self.log, self.status = "", 0
        for number, step in enumerate(action["runs"]["steps"]):
            assert step["shell"] == "bash" and "${{" not in step["run"], "inputs reach a script as variables only"
            env = {k: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda m: values[m[1]], v) for k, v in step.get("env", {}).items()}
            script = t.at(f"step{number}.sh")
            with open(script, "w") as f:
                f.write(step["run"])
            with open(files["GITHUB_PATH"]) as f:
                added = [line.strip() for line in f]
            p = subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", script], cwd=t.scratch, capture_output=True, text=True,
                               env={"PATH": ":".join(added[::-1] + [search]), "HOME": t.scratch, "RUNNER_TEMP": t.scratch, "GITHUB_ACTIONS": "true", **files, **env})
            self.log += p.stdout + p.stderr
            self.status = p.returncode
            if p.returncode:
                break
        with open(files["GITHUB_OUTPUT"]) as f:
            self.outputs = dict(line.rstrip("\n").split("=", 1) for line in f)
        with open(files["GITHUB_STEP_SUMMARY"]) as f:
            self.summary = f.read()


def test_the_github_action_passes_refuses_and_tells(t):
    a = Action(t, paths=GOOD, deep="true")
    assert (a.status, a.outputs["result"]) == (0, "valid") and "::error" not in a.log, a.log
    a = Action(t, paths=f"{GOOD}\n\n{BROKEN}\n")
    assert (a.status, a.outputs["result"]) == (1, "findings") and re.search(r"^::error .*layout/hole", a.log, re.M), a.log
    a = Action(t, paths=os.path.join(ROOT, "README.md"))
    assert (a.status, a.outputs["result"]) == (2, "trouble"), a.log
    a = Action(t, path=False, paths=GOOD)
    assert a.status == 2 and "not installed" in a.log and "result" not in a.outputs


def test_the_github_action_checks_the_layout(t):
    with open(t.at("my layout.json"), "wb") as f:
        f.write(t.run("layout", GOOD).stdout)
    shutil.copytree(GOOD, t.at("a checkpoint; touch ran"))
    a = Action(t, paths=t.at("a checkpoint; touch ran"), layout="my layout.json")
    assert a.status == 0 and not os.path.exists(t.at("ran")), a.log
    a = Action(t, paths=os.path.join(SAMPLES, "dcp_tp"), layout="my layout.json")
    assert a.status == 1 and "layout/" in a.log, a.log
    shutil.copytree(os.path.join(SAMPLES, "dcp_crc_off"), t.at("warned"))
    strict, lax = Action(t, paths=t.at("warned"), deep="true", fail_on="note"), Action(t, paths=t.at("warned"), deep="true")
    assert (strict.status, lax.status) == (1, 0), (strict.log, lax.log)


def write(t, name, data):
    with open(t.at(name), "wb") as f:
        f.write(data)


def test_the_github_action_changes_levels_and_leaves_out_what_is_known(t):
    a = Action(t, paths=BROKEN, rules="layout/hole=warning\n\ndcp/*=note\n")
    assert (a.status, a.outputs["result"]) == (0, "valid") and re.search(r"^::warning .*layout/hole", a.log, re.M), a.log
    write(t, "known findings.json", t.run("validate", BROKEN, "--json", status=1).stdout)
    a = Action(t, paths=f"{GOOD}\n{BROKEN}", baseline="known findings.json", fail_on="note")
    assert a.status == 0 and "::error" not in a.log and "left out by the baseline" in a.log, a.log
    a = Action(t, paths=BROKEN, baseline="known findings.json", rules="layout/hole=error", sarif_file="out.sarif")
    with open(t.at("out.sarif")) as f:
        assert a.status == 0 and not json.load(f)["runs"][0]["results"], a.log
    a = Action(t, paths=BROKEN, rules="layout/hloe=off; touch ran")
    assert (a.status, a.outputs["result"]) == (2, "trouble") and not os.path.exists(t.at("ran")), a.log
    write(t, "empty.json", b"{}")
    assert Action(t, paths=GOOD, baseline="empty.json").status == 2


def test_the_gitlab_template_changes_levels_and_leaves_out_what_is_known(t):
    assert run_gitlab(t, TESSERA_PATHS=BROKEN)[0] == 1
    assert run_gitlab(t, TESSERA_PATHS=BROKEN, TESSERA_RULES="dcp/*=note\nlayout/hole=warning")[0] == 0
    with open(t.at("tessera-codequality.json")) as f:
        assert [i["severity"] for i in json.load(f) if i["check_name"] == "layout/hole"] == ["minor"]
    write(t, "known findings.json", t.run("validate", BROKEN, "--json", status=1).stdout)
    assert run_gitlab(t, TESSERA_PATHS=f"{GOOD}\n{BROKEN}", TESSERA_BASELINE="known findings.json")[0] == 0
    assert run_gitlab(t, TESSERA_PATHS=GOOD, TESSERA_BASELINE="absent.json")[0] == 2
    assert run_gitlab(t, TESSERA_PATHS=GOOD, TESSERA_RULES="layout/hloe=off")[0] == 2


def test_the_github_action_writes_sarif(t):
    a = Action(t, paths=BROKEN, sarif_file="out.sarif")
    assert a.status == 1 and a.outputs == {"sarif-file": "out.sarif", "result": "findings"}
    with open(t.at("out.sarif")) as f:
        document = json.load(f)
    assert document["version"] == "2.1.0" and document["runs"][0]["results"][0]["ruleId"]


def test_the_github_action_installs_the_wheel(t):
    from test_python import WHEEL
    a = Action(t, path=False, paths=GOOD, tessera=WHEEL)
    assert (a.status, a.outputs["result"]) == (0, "valid"), a.log


def run_gitlab(t, **variables):
    job = yaml(GITLAB)[".tessera-validate"]
    assert job["artifacts"]["when"] == "always"
    env = {"PATH": f"{os.path.dirname(t.path)}:/usr/bin:/bin", "HOME": t.scratch, **job["variables"], **variables}
    with open(t.at("job.sh"), "w") as f:
        f.write("\n".join(job["script"]))
    logs = []
    for shell in (["bash", "-eo", "pipefail"], ["sh", "-e"]):  # runners have one or the other
        for name in job["artifacts"]["reports"].values():
            if os.path.exists(t.at(name)):
                os.unlink(t.at(name))
        p = subprocess.run([*shell, t.at("job.sh")], cwd=t.scratch, capture_output=True, text=True, env=env)
        logs.append((p.returncode, p.stdout + p.stderr))
    assert logs[0][0] == logs[1][0], logs
    return logs[0]


def test_junit_reports_follow_the_schema_of_jenkins(t):
    schema = os.path.join(TOOLS, "junit-10.xsd")
    for name, status, arguments in (("one", 0, ["validate", GOOD]), ("all", 2, ["validate", GOOD, BROKEN, t.at("absent")]), ("diff", 1, ["diff", GOOD, BROKEN])):
        with open(t.at(name), "wb") as f:
            f.write(t.run(*arguments, "--format", "junit", status=status).stdout)
        check("xmllint", "--noout", "--schema", schema, t.at(name))


def test_the_gitlab_template_passes_refuses_and_reports(t):
    status, log = run_gitlab(t, TESSERA_PATHS=GOOD, TESSERA_DEEP="true")
    assert status == 0, log
    with open(t.at("tessera-codequality.json")) as f:
        assert not [i for i in json.load(f) if i["severity"] in ("major", "critical", "blocker")]
    status, log = run_gitlab(t, TESSERA_PATHS=f"{GOOD}\n{BROKEN}")
    assert status == 1 and "findings" in log, log
    with open(t.at("tessera-codequality.json")) as f:
        issues = json.load(f)
    assert any(i["check_name"] == "layout/hole" and i["fingerprint"] for i in issues), issues
    status, log = run_gitlab(t, TESSERA_PATHS=BROKEN, TESSERA_REPORT="junit")
    assert status == 1 and xml.etree.ElementTree.parse(t.at("tessera-junit.xml")).getroot().iter("failure")
    status, log = run_gitlab(t, TESSERA_PATHS=t.at("absent"))
    assert status == 2, log
    with open(t.at("layout.json"), "wb") as f:
        f.write(t.run("layout", GOOD).stdout)
    assert run_gitlab(t, TESSERA_PATHS=GOOD, TESSERA_LAYOUT="layout.json")[0] == 0
    assert run_gitlab(t, TESSERA_PATHS=os.path.join(SAMPLES, "dcp_tp"), TESSERA_LAYOUT="layout.json")[0] == 1


def git(directory, *arguments):
    options = ("user.name=t", "user.email=t@localhost", "init.defaultBranch=main", "protocol.file.allow=always")
    return check("git", "-C", directory, *(word for option in options for word in ("-c", option)), *arguments)


class PreCommit:
    """A repository with checkpoints, whose hooks come from another one, as a user's do."""

    def __init__(self, t):
        self.t, self.hooks, self.work = t, t.at("hooks"), t.at("work")
        for directory in (self.hooks, self.work):
            os.makedirs(directory)
            check("git", "init", "-q", directory)
        shutil.copy(os.path.join(ROOT, ".pre-commit-hooks.yaml"), self.hooks)
        git(self.hooks, "add", ".")
        git(self.hooks, "commit", "-q", "-m", "hooks")
        self.revision = git(self.hooks, "rev-parse", "HEAD").strip()

    def at(self, *names):
        return os.path.join(self.work, *names)

    def configure(self, hooks):
        with open(self.at(".pre-commit-config.yaml"), "w") as f:
            f.write(f"repos:\n- repo: {self.hooks}\n  rev: {self.revision}\n  hooks:\n{hooks}")

    def layout(self, checkpoint, name):
        os.makedirs(os.path.dirname(self.at(name)), exist_ok=True)
        with open(self.at(name), "wb") as f:
            f.write(self.t.run("layout", checkpoint).stdout)

    def commit(self):
        git(self.work, "add", ".")
        git(self.work, "commit", "-q", "--no-verify", "-m", "state")

    def run(self, *arguments, status=0):
        git(self.work, "add", ".")
        env = {"PATH": f"{os.path.dirname(self.t.path)}:/usr/bin:/bin", "HOME": self.t.scratch, "PRE_COMMIT_HOME": self.t.at("cache")}
        return check(os.path.join(TOOLS, "bin/pre-commit"), "run", "--verbose", *arguments, status=status, cwd=self.work, env=env)


def flip(path):
    """Changes a byte in the middle of a file."""
    with open(path, "r+b") as f:
        middle = os.path.getsize(path) // 2
        f.seek(middle)
        byte = f.read(1)[0]
        f.seek(middle)
        f.write(bytes([byte ^ 1]))


def test_pre_commit_stops_the_commit_of_a_broken_checkpoint(t):
    p = PreCommit(t)
    p.configure("  - id: tessera-validate\n    args: [--deep]\n  - id: tessera-layout\n")
    p.layout(GOOD, "layout.json")
    shutil.copytree(GOOD, p.at("good"))
    out = p.run("--all-files")
    assert out.count("Passed") == 2, out
    shutil.copytree(BROKEN, p.at("broken"))
    out = p.run("--all-files", status=1)
    assert "layout/hole" in out and out.count("Failed") == 2, out
    with open(p.at("known.json"), "wb") as f:
        f.write(t.run("validate", "--deep", p.at("broken"), "--json", status=1).stdout)
    for args, status in (("[--deep, --rule, layout/hole=warning]", 0), ("[--deep, --baseline, known.json]", 0), ("[--deep, --rule, '*=error']", 1)):
        p.configure(f"  - id: tessera-validate\n    args: {args}\n")
        p.run("--all-files", status=status)


def test_pre_commit_validates_the_checkpoint_that_a_changed_file_belongs_to_once(t):
    p = PreCommit(t)
    p.configure("  - id: tessera-validate\n    args: [--deep]\n    files: ^runs/\n")
    for name in ("dcp_fsdp2", "dcp_tp", "safetensors_index"):
        shutil.copytree(os.path.join(SAMPLES, name), p.at("runs", name))
    with open(p.at("runs/notes.txt"), "w") as f:
        f.write("nothing")
    p.commit()
    flip(p.at("runs/dcp_fsdp2/__1_0.distcp"))
    out = p.run(status=1)
    assert "runs/dcp_fsdp2  dcp" in out and "dcp_tp" not in out, out
    shutil.copytree(GOOD, p.at("runs/dcp_fsdp2"), dirs_exist_ok=True)
    for name in os.listdir(p.at("runs/dcp_tp")):  # several files of one checkpoint, one of another, and one of none
        with open(p.at("runs/dcp_tp", name), "ab") as f:
            f.write(b"\0" * (name != ".metadata"))
    with open(p.at("runs/notes.txt"), "w") as f:
        f.write("more")
    git(p.work, "mv", "runs/safetensors_index/model-00002-of-00003.safetensors", "runs/safetensors_index/second.safetensors")
    out = p.run(status=1)
    assert "'runs/notes.txt' does not belong to a checkpoint" in out and "dcp_fsdp2" not in out, out
    assert len(re.findall("^runs/dcp_tp  ", out, re.M)) == 1 and len(re.findall("^runs/safetensors_index  ", out, re.M)) == 1 and "2 paths" in out, out


def test_the_example_configuration_of_pre_commit_has_a_layout_per_checkpoint(t):
    p = PreCommit(t)
    with open(os.path.join(ROOT, "samples/ci/pre-commit-config.yaml")) as f:
        text = f.read()
    with open(p.at(".pre-commit-config.yaml"), "w") as f:
        f.write(text.replace("https://github.com/OWNER/tessera", p.hooks).replace("VERSION\n    hooks", f"{p.revision}\n    hooks"))
    for name, source in (("base", "dcp_fsdp2"), ("tuned", "torch_plain")):
        shutil.copytree(os.path.join(SAMPLES, source), p.at("checkpoints", name))
        p.layout(p.at("checkpoints", name), f"layouts/{name}.json")
    out = p.run("--all-files")
    assert out.count("Passed") == 3, out
    p.commit()
    shutil.rmtree(p.at("checkpoints/base"))
    shutil.copytree(os.path.join(SAMPLES, "dcp_tp"), p.at("checkpoints/base"))
    out = p.run(status=1)
    assert re.search(r"layout of checkpoints/base\.+Failed", out) and not re.search(r"layout of checkpoints/tuned\.+(Failed|Passed)", out) and "layout/" in out, out


def compares_with_base(t, checkpoint, allowed="false", base="newest"):
    """Runs the last step of drift.yml in a pull request that has this checkpoint. base: where the base branch has its own. Returns the status and output
    of the step."""
    origin, clone = t.at("origin"), t.at("clone")
    for directory in (origin, clone):
        shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(GOOD, os.path.join(origin, "checkpoints", base))
    git(origin, "init", "-q")
    git(origin, "add", "-A")
    git(origin, "commit", "-qm", "base")
    git(t.scratch, "clone", "-q", origin, clone)
    shutil.rmtree(os.path.join(clone, "checkpoints", base))
    shutil.copytree(checkpoint, os.path.join(clone, "checkpoints/newest"))
    step = yaml(os.path.join(os.path.dirname(GITHUB), "drift.yml"))["jobs"]["drift"]["steps"][-1]
    assert set(step["env"]) == {"BASE", "LAYOUT_CHANGES"} and "${{" not in step["run"], "expressions reach a script as variables only"
    shutil.rmtree(t.at("runner"), ignore_errors=True)
    os.mkdir(t.at("runner"))
    p = subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]], cwd=clone, capture_output=True, text=True,
                       env={"PATH": f"{os.path.dirname(t.path)}:/usr/bin:/bin", "HOME": t.scratch, "RUNNER_TEMP": t.at("runner"), "BASE": "main", "LAYOUT_CHANGES": allowed})
    return p.returncode, p.stdout + p.stderr


def test_the_workflow_refuses_a_drifted_checkpoint(t):
    status, out = compares_with_base(t, GOOD)
    assert status == 0, out
    other = os.path.join(SAMPLES, "dcp_v2_15_fsdp2")  # a tensor less and one more
    status, out = compares_with_base(t, other)
    assert status == 1 and "::" in out and "plain" in out, (status, out)
    status, out = compares_with_base(t, other, "true")
    assert status == 0 and "new-layout" in out, out
    os.mkdir(t.at("damaged"))
    assert compares_with_base(t, t.at("damaged"), "true")[0] == 2, "the label allows differences, not what cannot be compared"
    status, out = compares_with_base(t, GOOD, base="elsewhere")
    assert status == 0 and "::notice::" in out and "no checkpoints/newest" in out, out


# ---- samples/launcher ----

LAUNCHER = os.path.join(ROOT, "samples/launcher/train")
TRAINS = """
echo "from '$RESUME'" >>log
n=$(wc -l <log)
[ "$n" != "$1" ] || kill -9 $$
if [ "$n" -le "$2" ]; then cp -r "$GOOD" "run/step-$n"; fi
[ "$n" -ge "$3" ] || exit 7
"""


def launch(t, *arguments, run="run", **env):
    for name in ("run", "log"):
        shutil.rmtree(t.at(name), ignore_errors=True) if name == "run" else open(t.at(name), "w").close()
    os.mkdir(t.at("run"))
    p = subprocess.run([LAUNCHER, run, "bash", "-c", TRAINS, "train", *map(str, arguments)], cwd=t.scratch, capture_output=True, text=True, timeout=120,
                       env={"PATH": f"{os.path.dirname(t.path)}:/usr/bin:/bin", "GOOD": GOOD, **env})
    with open(t.at("log")) as f:
        return p.returncode, f.read().split("\n")[:-1], p.stderr


def test_the_launcher_resumes_from_the_newest_checkpoint_that_would_load(t):
    status, log, said = launch(t, 2, 4, 5)  # it is killed in its second run, and saves in the others
    assert status == 0 and log == ["from ''", "from 'run/step-1'", "from 'run/step-1'", "from 'run/step-3'", "from 'run/step-4'"], (log, said)
    status, log, said = launch(t, 0, 2, 99, RESTARTS="2")  # saves twice, then crashes without a newer checkpoint
    assert status == 7 and log == ["from ''", "from 'run/step-1'"] + ["from 'run/step-2'"] * 3, (log, said)
    status, log, said = launch(t, 0, 0, 1, run="unmounted")
    assert status == 2 and log == [] and "'unmounted'" in said


def test_the_launcher_passes_a_signal_on_and_ends(t):
    os.mkdir(t.at("run"))
    program = "trap 'echo saved >saved; exit 0' TERM; echo >ready; while true; do sleep 0.1; done"
    p = subprocess.Popen([LAUNCHER, "run", "bash", "-c", program], cwd=t.scratch, env={"PATH": f"{os.path.dirname(t.path)}:/usr/bin:/bin"})
    while not os.path.exists(t.at("ready")):
        assert p.poll() is None
    p.terminate()
    assert p.wait(60) == 143 and os.path.exists(t.at("saved"))
