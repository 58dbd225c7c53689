"""samples/kubernetes: follows the published schemas, and the commands of its containers do what they promise, run by shells."""
import json
import os
import shutil
import subprocess

from harness import ROOT, SAMPLES
from shell import TOOLS, check

DIRECTORY = os.path.join(ROOT, "samples/kubernetes")
LOADER = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))"


def manifests(name):
    return {d["metadata"]["name"]: d for d in json.loads(check(os.path.join(TOOLS, "bin/python"), "-c", LOADER, os.path.join(DIRECTORY, name)))}


def pod(manifest):
    spec = manifest["spec"]
    spec = spec["jobTemplate"]["spec"] if manifest["kind"] == "CronJob" else spec
    return spec["template"]["spec"]


def container(manifest):
    (only,) = pod(manifest)["containers"]
    return only


def start(t, manifest, paths, **env):
    """Starts the command of a container. `paths`: what stands where its volumes are mounted."""
    only = container(manifest)
    args = only["args"]
    for mount in only["volumeMounts"]:
        args = [a.replace(mount["mountPath"] + "/", paths[mount["mountPath"]] + "/") for a in args]
    own = {e["name"]: e["value"] for e in only.get("env", [])}
    return subprocess.Popen(only["command"] + args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={"PATH": f"{os.path.dirname(t.path)}:/usr/bin:/bin", **own, **env})


def ended(process, status=0):
    said = process.communicate(timeout=300)[0]
    assert process.returncode == status, (process.returncode, said)
    return said


def test_the_manifests_follow_the_published_schemas(t):
    for name in sorted(os.listdir(DIRECTORY)):
        if name.endswith(".yaml"):
            for version in ("1.33.0", "1.36.0"):
                check(os.path.join(TOOLS, "bin/kubernetes-validate"), "-k", version, "--strict", os.path.join(DIRECTORY, name))
    wrong = t.at("wrong.yaml")
    with open(os.path.join(DIRECTORY, "exec.yaml")) as f, open(wrong, "w") as to:
        to.write(f.read().replace("completionMode:", "completionsMode:"))
    p = subprocess.run([os.path.join(TOOLS, "bin/kubernetes-validate"), "-k", "1.33.0", "--strict", wrong], capture_output=True, text=True)
    assert p.returncode != 0 and "completionsMode" in p.stdout + p.stderr, p


def test_pods_run_where_only_restricted_ones_may(t):
    """By the Pod Security Standards of Kubernetes, level \"restricted\"."""
    for name in ("exec.yaml", "retain.yaml"):
        for manifest in manifests(name).values():
            if manifest["kind"] == "ConfigMap":
                continue
            spec = pod(manifest)
            assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] > 0, manifest
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, manifest
            of = container(manifest)["securityContext"]
            assert of["allowPrivilegeEscalation"] is False and of["capabilities"] == {"drop": ["ALL"]}, manifest


def test_shares_in_any_order_are_published_by_the_job_that_waits(t):
    """The sample is one unit of work, which belongs to the first share: its pod is started last, and lost once."""
    jobs, source, dest = manifests("exec.yaml"), os.path.join(SAMPLES, "dcp_fsdp2"), t.at("out")
    shares, finish = jobs["tessera-shares"], jobs["tessera-finish"]
    count = shares["spec"]["completions"]
    assert jobs["tessera-exec"]["data"]["SHARES"] == str(count) and shares["spec"]["completionMode"] == "Indexed"
    os.makedirs(t.at("plan"))
    with open(t.at("plan/plan.json"), "wb") as f:
        f.write(t.run("plan", source, "--mesh", "dp=5", "--placements", "shard(0)", "--dtype", "bfloat16", "--json").stdout)
    paths = {"/plan": t.at("plan")}
    env = {"DEST": dest, "SHARES": str(count), "PAUSE": "0.2"}
    waiting = start(t, finish, paths, **env)
    pods = [start(t, shares, paths, JOB_COMPLETION_INDEX=str(i), **env) for i in (5, 4, 7, 2, 1, 6, 3)]
    for pod in pods:
        ended(pod)
    early = ""
    while "cannot finish" not in early and "another process is writing" not in early:
        line = waiting.stdout.readline()
        assert line, f"did not wait for the last share: {early}"
        early += line
    assert not os.path.exists(dest), "published without the last share"
    lost = start(t, shares, paths, JOB_COMPLETION_INDEX="0", **env)
    lost.kill()
    lost.communicate()
    ended(start(t, shares, paths, JOB_COMPLETION_INDEX="0", **env))
    ended(waiting)
    t.run("reshard", source, t.at("want"), "--mesh", "dp=5", "--placements", "shard(0)", "--dtype", "bfloat16")
    read = lambda directory: {n: open(os.path.join(directory, n), "rb").read() for n in sorted(os.listdir(directory))}
    assert read(dest) == read(t.at("want"))
    ended(start(t, finish, paths, **env))  # its pod was lost after the publication
    ended(start(t, shares, paths, JOB_COMPLETION_INDEX="6", **env))  # as was that of a share
    os.remove(t.at("plan/plan.json"))
    assert "plan.json" in ended(start(t, finish, paths, **env), 2)  # what cannot get better is not asked again


def test_old_checkpoints_go_and_an_outage_is_a_failed_job(t):
    job = manifests("retain.yaml")["tessera-retain"]
    run = t.at("runs/llama-3b")
    for step in (100, 200, 300, 400, 500):
        shutil.copytree(os.path.join(SAMPLES, "dcp_fsdp2"), os.path.join(run, f"step-{step}"))
        for directory, _, files in os.walk(os.path.join(run, f"step-{step}")):
            for path in [directory, *(os.path.join(directory, f) for f in files)]:
                os.utime(path, (1_700_000_000 + step, 1_700_000_000 + step))
    os.remove(os.path.join(run, "step-500/.metadata"))
    env = {"RUN": run, "KEEP": "2", "KEEP_EVERY": "1000"}
    said = ended(start(t, job, {"/runs": t.at("runs")}, **env))
    assert "would load: " in said and "step-400" in said.split("would load: ")[1].splitlines()[0], said
    assert sorted(os.listdir(run)) == ["step-300", "step-400", "step-500"], os.listdir(run)
    ended(start(t, job, {"/runs": t.at("runs")}, **{**env, "RUN": t.at("not-mounted")}), 2)
