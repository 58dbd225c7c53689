"""Reads hf:// from a hub of our own, which huggingface_hub itself can read too."""
import os
import subprocess
import sys

from checks import Skip, need, test
from fake_hub import serving
from harness import sample
from test_s3 import READ, files_below, findings, shown

A, B = "a" * 40, "b" * 40
TOKEN = "hf_tokenOfTheTests"


def repositories(files, token=TOKEN, kind="models"):
    return {f"{kind}/org/name": {"token": token, "refs": {"main": A, "refs/pr/3": B, "v1.0": B}, "commits": {A: files, B: {**files, "only-in-b.txt": b"b"}}}}


def samples():
    files = {"README.md": b"---\n---\n"}
    for name in READ:
        path = sample(name)[0]
        for file, data in files_below(os.path.dirname(path) if path.endswith(".json") else path).items():
            files[f"runs/{name}=1.ckpt/{file}"] = data
    return files


@test
def test_hf_real_client_reads_the_fake_hub(t):
    script = """
import sys
from huggingface_hub import HfApi, hf_hub_download
api = HfApi(endpoint=sys.argv[1], token=sys.argv[2])
names = sorted(f.path for f in api.list_repo_tree("org/name", recursive=True) if hasattr(f, "size"))
print(len(names), api.repo_info("org/name").sha)
path = hf_hub_download("org/name", names[-1], endpoint=sys.argv[1], token=sys.argv[2], cache_dir=sys.argv[3])
print(len(open(path, "rb").read()), names[-1])
"""
    files = samples()
    with serving(repositories(files), page=7) as s:
        p = subprocess.run([sys.executable, "-c", script, s.url, TOKEN, t.at("cache")], capture_output=True, text=True, env={**os.environ, "HF_HUB_DISABLE_XET": "1"})
        if "No module named 'huggingface_hub'" in p.stderr:
            raise Skip("huggingface_hub is not installed")
        last = max(files)
        need(p.stdout.split() == [str(len(files)), A, str(len(files[last])), last], p.stdout + p.stderr[-600:])


@test
def test_hf_reads_as_a_path_does(t):
    with serving(repositories(samples()), page=7) as s:
        env = {"HF_ENDPOINT": s.url, "HF_TOKEN": TOKEN}
        for name in READ:
            path = sample(name)[0]
            where = f"hf://org/name/runs/{name}=1.ckpt" + ("" if os.path.isdir(path) else "/" + os.path.basename(path))
            local, remote = t.json("inspect", path, "--json", "--hash", "sha256"), t.json("inspect", where, "--json", "--hash", "sha256", env=env)
            need(shown(local) == shown(remote) and remote["path"] == where, f"{name}: another inspect document")
            need(findings(t, path) == findings(t, where, env=env), f"{name}: other findings")
        need(not any("Authorization" in h for _, _, h in s.cdn.asked) and s.cdn.asked, "the token goes to the hub only")
        p = t.run("convert", sample("dcp_fsdp2")[0], "hf://org/name/new", "--to", "dcp", status=2, env=env)
        need(b"cannot write to 'hf://org/name/new'" in p.stderr, p.stderr)


@test
def test_hf_listings_are_complete_or_refused(t):
    """A hub behind a mirror links to the next page by its own address. Files of later pages must not be missing in silence."""
    for following, words in (("https://huggingface.co/api/models/org/name/tree/main?cursor=7", "the listing continues on a server other than http://127.0.0.1:"),
                             ("SAME", "the server's listing does not advance")):
        with serving(repositories(samples()), page=7, following=following) as s:
            p = t.run("inspect", "hf://org/name", status=2, env={"HF_ENDPOINT": s.url, "HF_TOKEN": TOKEN})
            need(words.encode() in p.stderr, p.stderr)


@test
def test_hf_revisions_are_one_commit(t):
    small = {"model.safetensors": files_below(sample("safetensors_model")[0] if os.path.isfile(sample("safetensors_model")[0]) else os.path.dirname(sample("safetensors_model")[0])).popitem()[1]}
    with serving({**repositories(small), **repositories(small, None, "datasets")}) as s:
        env = {"HF_ENDPOINT": s.url + "/", "HF_TOKEN": TOKEN}
        for url, commit in (("hf://org/name", A), ("hf://org/name@v1.0/", B), ("hf://org/name@refs/pr/3/model.safetensors", B), ("hf://org/name/model.safetensors", A),
                            (f"hf://org/name@{B}", B), ("hf://datasets/org/name", A), ("hf://datasets/org/name@refs/pr/3/model.safetensors", B)):
            s.asked.clear()
            t.json("inspect", url, "--json", env=env)
            paths = [p for _, p, _ in s.asked]
            need(sum("/revision/" in p for p in paths) == 1 and paths[0].count("/revision/"), paths)
            need(all(f"/{commit}" in p for p in paths[1:]), f"{url}: {paths}")
            need(len(paths) <= 4, f"{url}: {paths}")
        for url, words in (("hf://org/none", "HF_TOKEN"), ("hf://org/name@nothing", "404"), ("hf://org", "hf://[datasets/]ORG/REPO"), ("hf://org/name/none.pt", "no such"),
                           ("hf://spaces/org/name", "Space")):
            p = t.run("inspect", url, status=2, env={"HF_ENDPOINT": s.url})
            need(words in t.run("inspect", url, status=2, env=env).stderr.decode() or words in p.stderr.decode(), f"{url}: {p.stderr}")
            need(TOKEN.encode() not in p.stderr, p.stderr)
        os.makedirs(t.at("hf"))
        with open(t.at("hf", "token"), "w") as f:
            f.write(TOKEN + "\n")
        t.json("inspect", "hf://org/name", "--json", env={"HF_ENDPOINT": s.url, "HF_HOME": t.at("hf")})
        os.makedirs(t.at(".cache", "huggingface"))
        os.rename(t.at("hf", "token"), t.at(".cache", "huggingface", "token"))
        t.json("inspect", "hf://org/name", "--json", env={"HF_ENDPOINT": s.url})
