"""Documents that come from pipes: what a shell makes of `<(command)` and of `/dev/stdin`."""
import json
import os
import shutil
import subprocess

from harness import Skip, need, sample, test


def shell(t, line, status=0):
    if not shutil.which("bash"):
        raise Skip("bash is not installed")
    p = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=t.directory, timeout=120, env={**os.environ, "T": t.path})
    need(p.returncode == status, f"{line}: ended {p.returncode}: {p.stderr}")
    return p


@test
def test_options_and_operands_that_take_documents_read_pipes(t):
    shutil.copytree(sample("dcp_fsdp2")[0], t.at("ck"))
    for name, document in (("map", {"schema": "tessera.map/1", "rules": [{"from": ["{rest...}"], "to": ["new.{rest...}"]}], "unmatched": "keep"}),
                           ("target", {"schema": "tessera.target/1", "mesh": {"shape": [2], "dim_names": ["dp"]}, "rules": [], "default": ["shard(0)"]})):
        with open(t.at(name + ".json"), "w") as f:
            json.dump(document, f)
    for line, file in (("manifest ck --map FILE", "map.json"), ("plan ck --target FILE --items", "target.json")):
        plain = shell(t, f'"$T" {line.replace("FILE", file)}').stdout
        need(plain and plain == shell(t, f'"$T" {line.replace("FILE", f"<(cat {file})")}').stdout, line)
        need(plain == shell(t, f'cat {file} | "$T" {line.replace("FILE", "/dev/stdin")}').stdout, line)
    shell(t, '"$T" convert ck out.pt --to torch --map <(cat map.json)')
    need(all(e["fqn"].startswith("new.") for e in t.json("inspect", t.at("out.pt"), "--json")["entries"] if e["kind"] == "tensor"), "the map counts")
    shell(t, '"$T" verify ck <("$T" manifest ck)')
    shell(t, '"$T" validate ck --layout <("$T" layout ck) --against <("$T" layout ck)')
    shell(t, '"$T" exec <("$T" plan ck --target <(cat target.json) --json) out')
    shell(t, '"$T" diff ck ck --baseline <("$T" diff ck ck --json)')


@test
def test_a_pipe_that_is_not_a_document_is_refused(t):
    shutil.copytree(sample("dcp_fsdp2")[0], t.at("ck"))
    p = shell(t, '"$T" manifest ck --map <(echo nonsense)', status=2)
    need("--map /dev/fd/" in p.stderr and p.stderr.count("\n") == 1, p.stderr)
    p = shell(t, '"$T" manifest ck --map <(cat </dev/null)', status=2)
    need("--map /dev/fd/" in p.stderr, p.stderr)
    p = shell(t, '(ulimit -v 4000000; "$T" plan ck --target /dev/zero)', status=2)
    need("'/dev/zero' is not a file, and more than 1 GiB came from it" in p.stderr, p.stderr)
    p = shell(t, '"$T" inspect <(cat ck/.metadata)', status=2)
    need("is neither a file nor a directory; a checkpoint is not read from start to end, so it cannot come from a pipe" in p.stderr, "a checkpoint is not a document")
    p = shell(t, '"$T" inspect - <ck/.metadata', status=2)
    need(p.stderr == "tessera: there is no file '-', and standard input is not read; give a path\n", p.stderr)
