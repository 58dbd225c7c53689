"""Runs every example that `tessera help COMMAND` and README.md print, in a directory with checkpoints of the names that they use."""
import contextlib
import functools
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading

import http_serving
from harness import ROOT, SAMPLES, Tessera, need, sample, st_write, test
from test_packed import FORMS

ADAPTERS = os.path.join(ROOT, "tests", "golden", "adapters")
NET = {"embed.weight": [64, 256], "fc.weight": [256, 256], "layers.0.fc.weight": [256, 256], "layers.1.fc.weight": [256, 256],
       "norm.weight": [256], "lm_head.weight": [64, 256]}
# The operand that is the destination, by command: it is removed first, because other examples read checkpoints of that name.
DESTINATION = {"convert": 1, "reshard": 1, "exec": 1, "merge": 0, "optim": 2, "repair": 1, "cp": 1}
# What must have happened before.
BEFORE = {
    "validate --layout layout.json ckpt/": ["tessera layout ckpt/ -o layout.json"],
    "validate step-2000/ --layout": ["tessera layout step-1000/ -o layout.json"],
    "validate ckpt/ --baseline": ["tessera validate ckpt/ --json >known.json"],
    "diff main/ branch/ --baseline": ["! tessera diff main/ branch/ --values --json >known.json"],
    "exec plan.json ckpt-3/ --finish": [f"tessera exec plan.json ckpt-3/ --share {i}/8" for i in range(1, 9)],
    "verify resharded/ manifest.json": ["tessera manifest ckpt/ -o manifest.json", "tessera reshard ckpt/ resharded --mesh dp=3 --placements 'shard(0)'"],
    "verify model.safetensors manifest.json": ["tessera manifest ckpt/ -o manifest.json", "tessera convert ckpt/ model.safetensors --include '**.fc.**' --overwrite"],
    "map suggest titan/ hf/": ["tessera convert ckpt/ titan/ --to dcp --rename model.=m.", "tessera convert ckpt/ hf/ --to safetensors"],
    "diff a/ b.safetensors": ["tessera convert a/ b.safetensors"],
    "diff ckpt/ model.safetensors --values": ["tessera convert ckpt/ model.safetensors --overwrite"],
    "manifest step-1000/ -o sums.json": ["tessera reshard step-1000/ resharded --mesh dp=3 --placements 'shard(0)'"],
    "cp s3://bucket/run/step-1000 step-1000": ["tessera cp step-900 s3://bucket/run/step-1000"],
    "validate s3://bucket/run/step-1000": ["tessera cp step-1000 s3://bucket/run/step-1000"],
    "latest s3://bucket/run": ["tessera cp step-900 s3://bucket/run/step-900"],
    "prune s3://bucket/run": ["tessera cp step-900 s3://bucket/run/step-800 --overwrite"],
    "repair step-1000/": ["rm step-1000/.metadata"],
    "completions": ["mkdir -p ~/.zsh ~/.config/fish/completions"],
}
# Examples that say so exit with another status than 0.
STATUS = {"tessera repair step-1000/ found.metadata": 1}
UNREACHABLE = re.compile(r"\b(gs|az|hf)://")
says = functools.partial(print, flush=True)


# ---- the directory ----


def rows(shape, seed):
    import random
    import struct
    count = 1
    for size in shape:
        count *= size
    values = random.Random(seed)
    return struct.pack(f"<{count}f", *(values.uniform(-1, 1) for _ in range(count)))


def net(path, prefix="", seed=0):
    st_write(path, {prefix + name: ("F32", shape, rows(shape, f"{seed} {name}")) for name, shape in NET.items()})
    return path


def module_tree(names, wrappers=()):
    """A tessera.modules/1 document of parameters with these names."""
    node = lambda kind="none": {"class": "Module", "wrapper": kind, "parameters": {}, "buffers": {}, "extra_state": False, "children": {}}
    root = inner = node(wrappers[0][0] if wrappers else "none")
    for (_, child), kind in zip(wrappers, [k for k, _ in wrappers[1:]] + ["none"]):
        inner["children"][child] = node(kind)
        inner = inner["children"][child]
    for number, (name, shape) in enumerate(names.items()):
        *path, last = name.split(".")
        at = inner
        for part in path:
            at = at["children"].setdefault(part, node())
        at["parameters"][last] = {"shape": shape, "dtype": "float32", "requires_grad": True, "id": number}
    return {"schema": "tessera.modules/1", "root": root}


def write_json(path, document):
    with open(path, "w") as f:
        json.dump(document, f)


def perturb(source, path):
    """A model of the same names whose float32 numbers differ in their last bits."""
    data = bytearray(open(source, "rb").read())
    start = 8 + int.from_bytes(data[:8], "little")
    data[start::4] = bytes(b ^ 5 for b in data[start::4])
    with open(path, "wb") as f:
        f.write(data)


def training(t, at):
    shutil.copytree(os.path.join(SAMPLES, "hf_trainer", "checkpoint-4"), at("checkpoint-500"))
    shutil.copytree(at("checkpoint-500"), at("step-500"))
    net(at("step-500", "model.safetensors"))
    os.makedirs(at("run"))
    shutil.copytree(os.path.join(SAMPLES, "deepspeed_zero3", "global_step2"), at("run", "global_step100"))
    write_json(at("modules.json"), module_tree(NET, [("ddp", "module"), ("compiled", "_orig_mod")]))
    write_json(at("model.json"), module_tree({"model." + name: shape for name, shape in NET.items()}))
    os.makedirs(at("llama-70b"))
    write_json(at("llama-70b", "params.json"), {"dim": 16, "n_layers": 1, "n_heads": 2, "vocab_size": 32})
    for rank in range(2):
        names = {"tok_embeddings.weight": [32, 8], "layers.0.attention.wq.weight": [8, 16], "layers.0.attention.wo.weight": [16, 8], "norm.weight": [16], "output.weight": [16, 16]}
        st_write(t.at("rank.safetensors"), {n: ("F32", s, rows(s, n if n == "norm.weight" else f"{n} {rank}")) for n, s in names.items()})
        t.run("convert", t.at("rank.safetensors"), at("llama-70b", f"consolidated.{rank:02}.pth"))


def optimizer(t, at):
    """The native state of a torch.save file, and FSDP1 states of ranks, of an optimizer and of a model, with what describes them."""
    path, want = sample("torch_train_state")
    shutil.copy(path, at("optim.pt"))
    names = {n[len("model."):]: w["shape"] for n, w in want["entries"].items() if n.startswith("model.") and "running" not in n and "tracked" not in n}
    ids = {group: doc for group, doc in want["objects"].items() if group.endswith(".params")}
    write_json(at("optim-modules.json"), {**module_tree(names), "groups": [[list(names)[i] for i in ids[group]] for group in sorted(ids)]})
    path, want = sample("dcp_fsdp2")
    shapes = {n[len("optim.state."):-len(".exp_avg")]: w["shape"] for n, w in want["entries"].items() if n.startswith("optim.state.") and n.endswith(".exp_avg")}
    volume = lambda shape: shape[0] * volume(shape[1:]) if shape else 1
    unit = {"fsdp_module": "", "raw_name": "_flat_param", "params": [{"fqn": n, "shape": s} for n, s in shapes.items()], "numels_with_padding": [volume(s) for s in shapes.values()],
            "is_padding_mask": [False] * len(shapes)}
    write_json(at("flat.json"), {"schema": "tessera.flat-params/1", "world_size": 2, "use_orig_params": False, "files": ["rank0.pt", "rank1.pt"], "units": [unit],
                                 "param_groups": [["_flat_param"]]})
    t.run("optim", "shard", path, at("ranks"), "--flat-params", at("flat.json"))
    t.run("optim", "unshard", at("ranks"), at("full.pt"), "--flat-params", at("flat.json"))
    size = [sum(unit["numels_with_padding"])]
    st_write(t.at("flat.safetensors"), {"_flat_param": ("F32", size, rows(size, "_flat_param"))})
    t.run("reshard", t.at("flat.safetensors"), at("local-state"), "--mesh", "dp=2", "--placements", "shard(0)", "--to", "torch")


def weights(t, at):
    config, tensors = FORMS["awq"]
    os.makedirs(at("awq"))
    st_write(at("awq", "model.safetensors"), tensors)
    write_json(at("awq", "config.json"), config)
    net(at("padded.safetensors"))
    with open(at("padded.safetensors"), "ab") as f:
        f.write(bytes(512))
    net(at("model.safetensors"))
    t.run("convert", at("model.safetensors"), t.at("uncut.pt"))
    with open(t.at("uncut.pt"), "rb") as whole, open(at("truncated.pt"), "wb") as cut:
        cut.write(whole.read()[:-200])  # the zip directory is lost, and no tensor
    net(t.at("prefixed.safetensors"), "model.")
    t.run("reshard", t.at("prefixed.safetensors"), at("ckpt"), "--mesh", "dp=2", "--placements", "shard(0)", "--to", "dcp")
    for name in ("step-900", "step-1000", "step-2000", "step-100", "step-200", "main", "old", "new", "on-8-ranks", "on-64-ranks"):
        shutil.copytree(at("ckpt"), at(name))
    perturb(t.at("prefixed.safetensors"), t.at("later.safetensors"))
    t.run("reshard", t.at("later.safetensors"), at("branch"), "--mesh", "dp=2", "--placements", "shard(0)", "--to", "dcp")
    st_write(t.at("w.safetensors"), {"w": ("F32", [8, 8], rows([8, 8], "w"))})
    t.run("convert", t.at("w.safetensors"), at("run.pt"))
    t.run("convert", at("model.safetensors"), at("a.pt"))
    perturb(at("model.safetensors"), t.at("b.safetensors"))
    t.run("convert", t.at("b.safetensors"), at("b.pt"))
    os.makedirs(at("model"))
    net(at("model", "model.safetensors"))
    shutil.copytree(os.path.join(ADAPTERS, "base", "llama"), at("base"))
    shutil.copytree(os.path.join(ADAPTERS, "adapter", "llama_patterns"), at("adapter"))
    for name in ("a", "b", "math", "code"):
        os.makedirs(at(name))
        perturb(at("base", "model.safetensors"), at(name, "model.safetensors"))


@functools.lru_cache(1)
def scene(program):
    """The directory of all names that the examples read."""
    t = Tessera(program)
    at = lambda *names: t.at("scene", *names)
    os.makedirs(at())
    weights(t, at)
    training(t, at)
    optimizer(t, at)
    write_json(at("target.json"), {"schema": "tessera.target/1", "mesh": {"shape": [2], "dim_names": ["dp"]}, "rules": [{"match": "**.weight", "placements": ["shard(0)"]}]})
    storage = {"schema": "tessera.storage/1", "servers": 2, "bandwidth": 1e9, "files": [{"file": f"__{rank}_0.distcp", "first": rank} for rank in range(2)]}
    for name in ("storage.json", "servers.json"):
        write_json(at(name), storage)
    plan = subprocess.run([program, "plan", "ckpt/", "--mesh", "dp=3", "--placements", "shard(0)", "--json"], cwd=at(), capture_output=True, check=True)
    with open(at("plan.json"), "wb") as f:
        f.write(plan.stdout)
    return at()


# ---- servers ----


@contextlib.contextmanager
def files_served(directory):
    handler = functools.partial(type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *a: None}), directory=directory)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.handle_error = lambda *a: None  # clients close a connection when they have what they want of a file
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def bucket_served():
    """An S3 server on the loopback address, or None with the reason printed."""
    sys.path.insert(0, os.path.join(ROOT, "tests", "stores"))
    try:
        import fake_s3
    except ImportError as e:
        says(f"examples with s3:// are checked by parsing only: {e}")
        return None
    return fake_s3.serving({})


# ---- running ----


def is_shown(line, key):
    return line.startswith(("tessera " + key, key))


def remove_destination(line, directory):
    words = line.split(" ")
    if words[0] != "tessera" or words[1] not in DESTINATION or "--finish" in words:
        return
    operands = []
    for word in words[2:]:
        if word.startswith("-"):
            break
        operands.append(word)
    path = os.path.join(directory, operands[DESTINATION[words[1]]].rstrip("/"))
    shutil.rmtree(path) if os.path.isdir(path) else os.path.exists(path) and os.unlink(path)


def parsed_only(t, line, why):
    says(f"checked by parsing only, because {why}: {line}")
    words = re.sub(r" +#.*| [<>].*|&&.*", "", line)
    p = subprocess.run(["bash", "-c", f"{words} --help"], capture_output=True, timeout=60, env={**os.environ, "PATH": f"{os.path.dirname(t.path)}:{os.environ['PATH']}"})
    need(p.returncode == 0, f"{line}: {p.stderr.decode()}")


def viewed(t, line, directory):
    """Reads the page of `tessera view`, and stops it as the example says."""
    port = http_serving.free_port()
    pages = os.path.join(directory, "pages")
    os.makedirs(pages)
    open(os.path.join(pages, "index.html"), "w").write("<!doctype html>")
    words = re.sub(r"--port \d+", f"--port {port}", re.sub(r" +#.*", "", line)).split()[1:] + ["--pages", pages]
    with subprocess.Popen([t.path, *words], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        url = re.search(r"http://127\.0\.0\.1:\d+/[0-9a-f]+/", p.stdout.readline())
        p.send_signal(signal.SIGINT)
        need(url, f"{line}: {p.stderr.read()}")


def run_example(t, line, directory, urls, env):
    shell = line
    if shell.startswith("ssh "):
        says(f"only the command on the other machine is run: {line}")
        shell = shell[shell.index("tessera "):]
    if shell.startswith("mpirun ") and not (os.path.exists(t.path + "-mpi") and shutil.which("mpirun")):
        says(f"run by one process, because there is no {'mpirun' if os.path.exists(t.path + '-mpi') else 'tessera-mpi'}: {line}")
        shell = shell[shell.index("tessera "):]
    if UNREACHABLE.search(re.sub(r" +#.*", "", line)):
        return parsed_only(t, line, "there is no such server here")
    if "s3://" in line and not urls.get("s3://bucket"):
        return parsed_only(t, line, "there is no S3 server here")
    if shell.startswith("tessera view"):
        return viewed(t, shell, directory)
    if shell.startswith("tessera optim ") and "modules.json" in shell:
        shutil.copy(os.path.join(directory, "optim-modules.json"), os.path.join(directory, "modules.json"))
    remove_destination(shell, directory)
    before = [command for key, commands in BEFORE.items() if is_shown(shell, key) or key == "completions" and "completions" in shell for command in commands]
    script = "\n".join(["set -e", *before, shell])
    for shown, url in urls.items():
        script = script.replace(shown, url) if url else script
    script = script.replace("/mnt/other", os.path.join(directory, "mnt")).replace("doctor /scratch", f"doctor {directory}")
    os.makedirs(os.path.join(directory, "mnt"), exist_ok=True)
    env = {**os.environ, **env, "PATH": f"{os.path.dirname(t.path)}:{os.environ['PATH']}", "HOME": directory, "SLURM_ARRAY_TASK_ID": "3",
           "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    p = subprocess.run(["bash", "-c", script], cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, env=env)
    wanted = next((status for shown, status in STATUS.items() if line.startswith(shown)), 0)
    need(p.returncode == wanted, f"`{line}` ended {p.returncode}, expected {wanted}: {p.stderr.decode(errors='replace')[-600:]}")


def run_examples(t, lines):
    failed = []
    served = bucket_served() if any("s3://" in line for line in lines) else None
    with files_served(scene(t.path)) as url, served or contextlib.nullcontext() as s3:
        urls = {"https://host": url, "s3://bucket": "s3://b" if s3 else None}
        for i, line in enumerate(lines):
            if s3:
                s3.objects.clear()
            directory = t.at(f"example-{i}")
            shutil.copytree(scene(t.path), directory)
            try:
                run_example(t, line, directory, urls, s3.env() if s3 else {})
            except Exception as e:
                failed.append(str(e))
            shutil.rmtree(directory)
    need(not failed, "\n" + "\n".join(failed))


def examples_of(text):
    return re.findall(r"^  (\S.*)$", text.split("Examples\n")[1].split("\n\n")[0], re.M)


def commands(t):
    return re.findall(r"^  (\w+) +\w", t.text("help").split("Commands\n")[1], re.M)


@test
def test_every_example_of_help_works(t):
    lines = examples_of(t.text("help"))
    for command in commands(t):
        shown = examples_of(t.text("help", command))
        need(shown, f"help {command} has no example")
        lines += [line for line in shown if line not in lines]
    run_examples(t, lines)


@test
def test_every_line_of_the_readme_works(t):
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        lines = re.findall(r"^    ((?:tessera |mpirun |source <\(tessera).*)$", f.read(), re.M)
    need(len(lines) > 20, f"README.md has only {len(lines)} lines with commands")
    run_examples(t, lines)
