"""Plans: executing them in parts, resuming after a kill, and FSDP1 as a target."""
import atexit
import functools
import json
import os
import shutil
import subprocess
import tempfile

from harness import need, preloadable, sample, st_write, test


@test
def test_plan_covers_every_rank(t):
    path, want = sample("dcp_fsdp2")
    doc = t.json("plan", path, "--mesh", "dp=3,tp=2", "--placements", "shard(0),replicate", "--items")
    need(doc["totals"]["ranks"] == 6 and doc["target"]["mesh"] == {"shape": [3, 2], "dim_names": ["dp", "tp"]}, doc["target"])
    need(doc["totals"]["bytes"] == sum(r["read"] for r in doc["ranks"]), "reads do not add up")
    for rank in range(6):
        for name, w in want["entries"].items():
            rows, rest = (w["shape"] or [1])[0], w["shape"][1:]
            part = -(-rows // 3)  # torch.chunk
            low = min(rank // 2 * part, rows)
            expect = {(r, *c) for r in range(min(part, rows - low)) for c in points(rest)} if w["shape"] else {()}
            got = [q for i in doc["items"] if i["dest_rank"] == rank and i["fqn"] == name for q in points(i["lengths"], i["dest_offsets"])]
            need(len(got) == len(set(got)) and set(got) == expect, f"rank {rank}: {name} {w['shape']}: {sorted(got)[:4]}… for {sorted(expect)[:4]}…")
    need("imbalance" in t.text("plan", path, "--mesh", "4", "--placements", "shard(0)"), "text")


def points(sizes, offsets=None):
    import itertools
    return itertools.product(*(range(o, o + s) for o, s in zip(offsets or [0] * len(sizes), sizes)))


@test
def test_plan_with_rules(t):
    path, want = sample("dcp_fsdp2")
    target = {"schema": "tessera.target/1", "mesh": {"shape": [2], "dim_names": ["dp"]}, "rules": [{"match": "**.weight", "placements": ["shard(0)"]}]}
    json.dump(target, open(t.at("target.json"), "w"))
    doc = t.json("plan", path, "--target", t.at("target.json"), "--json")
    need(doc["target"] == {**target, "default": ["replicate"]}, doc["target"])
    need(doc["source"]["digest"] == t.json("plan", path, "--target", t.at("target.json"), "--json")["source"]["digest"], "the digest changes")
    for args, message in ((("--mesh", "dp=2"), "--mesh with --placements"), (("--mesh", "dp=2", "--placements", "shard(0),shard(1)"), "one placement per mesh dim"),
                          (("--mesh", "dp=x", "--placements", "shard(0)"), "dp=x"), (("--mesh", "dp=2", "--placements", "partial"), "partial"),
                          (("--target", path), "is a directory")):
        p = t.run("plan", path, *args, status=2)
        need(message in p.stderr.decode(), f"{args}: {p.stderr}")


def many_units(t):
    """A checkpoint of several units of work (16 MiB): one large tensor, one of medium size, and small ones."""
    path = t.at("big.safetensors")
    random_bytes = os.urandom(1 << 20)
    rows = lambda n: b"".join(random_bytes[(i * 7919) % (1 << 19):][:4092] + i.to_bytes(4, "little") for i in range(n))
    st_write(path, {"big": ("F32", [10000, 1024], rows(10000)), "mid": ("BF16", [1000, 2048], rows(1000)),
                    "a": ("F32", [5], b"\1" * 20), "b": ("I64", [3], b"\2" * 24)})
    return path


def tree(path):
    if os.path.isfile(path):
        return {"": open(path, "rb").read()}
    return {f: open(os.path.join(path, f), "rb").read() for f in sorted(os.listdir(path))}


@functools.lru_cache(None)
def fatal_xfsz():
    """A library that keeps SIGXFSZ fatal, as the program's own handling of it would turn a kill into an error."""
    library = os.path.join(tempfile.mkdtemp(prefix="tessera-killed-"), "fatal_xfsz.so")
    code = """#include <signal.h>
void (*signal(int number, void (*handler)(int)))(int)
{
    struct sigaction action = {.sa_handler = handler}, before;
    if (number == SIGXFSZ) return SIG_DFL;
    return sigaction(number, &action, &before) == 0 ? before.sa_handler : SIG_ERR;
}
"""
    atexit.register(shutil.rmtree, os.path.dirname(library), ignore_errors=True)
    return preloadable(library, code)


def killed(t, *args, limit):
    """Runs the program so that it is killed (SIGXFSZ) when a file becomes larger than `limit`."""
    import resource
    p = subprocess.run([t.path, *map(str, args)], capture_output=True, timeout=60, env={**os.environ, "LD_PRELOAD": fatal_xfsz()},
                       preexec_fn=lambda: (resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)), resource.setrlimit(resource.RLIMIT_CORE, (0, 0))))
    need(p.returncode < 0, f"not killed: {p.returncode} {p.stderr}")


@test
def test_exec_in_parts_equals_reshard(t):
    path, target = many_units(t), ("--mesh", "dp=4", "--placements", "shard(0)")
    for to in ("dcp", "torch", "safetensors"):
        plan, out, whole = t.at(f"{to}.json"), t.at(f"{to}-parts"), t.at(f"{to}-whole")
        open(plan, "wb").write(t.run("plan", path, *target, "--to", to, "--json").stdout)
        t.run("reshard", path, whole, *target, "--to", to, "-q")
        t.run("exec", plan, out, "--share", "2/3")
        doc = t.json("exec", plan, out, "--share", "2/3", "--json")
        need(not doc["published"] and doc["work"]["part"] == 2 and doc["work"]["found_done"] and doc["work"]["left"], doc["work"])
        need(not os.path.exists(out), "a part published")
        p = t.run("exec", plan, out, "--finish", status=2)
        need(b"shares 1, 3 of 3 are not done (3 of 4 units are left)" in p.stderr, p.stderr)
        both = [subprocess.Popen([t.path, "exec", plan, out, "--share", f"{i}/3"], stderr=subprocess.PIPE) for i in (1, 3)]
        need([(b.communicate(timeout=60), b.returncode)[1] for b in both] == [0, 0], "parts at the same time fail")
        doc = t.json("exec", plan, out, "--finish", "--json")
        need(doc["schema"] == "tessera.exec/1" and doc["published"] and doc["work"]["left"] == 0, doc["work"])
        need(tree(out) == tree(whole), f"--to {to}: parts write other bytes")
        t.run("exec", plan, t.at(f"{to}-one"), "-q")
        need(tree(t.at(f"{to}-one")) == tree(whole), f"--to {to}: exec writes other bytes")
        need(not [f for f in os.listdir(t.directory) if f.startswith(".")], os.listdir(t.directory))
    t.run("exec", t.at("dcp.json"), t.at("dcp-whole"), status=2)
    t.run("exec", t.at("dcp.json"), t.at("dcp-whole"), "--share", "2/2", "--overwrite", "-q")
    t.run("exec", t.at("dcp.json"), t.at("dcp-whole"), "--share", "1/2", "--finish", "--overwrite", "-q")
    need(sorted(tree(t.at("dcp-whole"))) == [".metadata"] + [f"__{r}_1.distcp" for r in range(4)], os.listdir(t.at("dcp-whole")))
    t.run("diff", t.at("dcp-parts"), t.at("dcp-whole"), "--values", "--layout")
    for part in ("0/3", "4/3", "x", "1/", "/2", "1/2x", "-1/2"):
        p = t.run("exec", t.at("dcp.json"), t.at("none"), "--share", part, status=2)
        need(b"--share" in p.stderr, p.stderr)


@test
def test_tensors_without_the_dim_of_the_default_are_said_to_be_replicated(t):
    path, target = sample("dcp_tp")[0], ("--mesh", "dp=3", "--placements", "shard(1)")
    shapes = {e["fqn"]: e["shape"] for e in t.json("inspect", path, "--json")["entries"] if e["kind"] == "tensor"}
    few = {fqn for fqn, shape in shapes.items() if len(shape) < 2}
    need(0 < len(few) < len(shapes) and any(shapes[fqn] == [] for fqn in few), shapes)
    for to in ("dcp", "torch", "safetensors"):
        extra = ["--objects", "drop"] if to == "safetensors" else []
        p = t.run("reshard", path, t.at(to), *target, "--to", to, *extra)
        need(f", {len(few)} replicated (too few dims);".encode() in p.stderr, p.stderr)
        doc = t.json("reshard", path, t.at(f"{to}-again"), *target, "--to", to, "--json", *extra)
        need({e["fqn"] for e in doc["entries"] if e.get("replicated")} == few, doc["entries"])
    need(t.json("plan", path, *target, "--json")["totals"]["replicated"] == len(few), "plan's document")
    said = next(line for line in t.text("plan", path, *target).splitlines() if "too few dims: " in line)
    need(set(said.split(": ")[1].split(", ")) == few, said)
    written = {e["fqn"]: e["chunks"] for e in t.json("layout", t.at("dcp"), "--json")["entries"] if e["kind"] == "tensor"}
    need(all((len(chunks) == 1) == (fqn in few) for fqn, chunks in written.items()), written)
    p = t.run("reshard", path, t.at("by-rows"), "--mesh", "dp=3", "--placements", "replicate")
    need(b"replicated" not in p.stderr, p.stderr)


@test
def test_a_default_without_placements_is_not_taken_for_replicate(t):
    path, target = sample("dcp_fsdp2")[0], {"schema": "tessera.target/1", "mesh": {"shape": [2], "dim_names": ["dp"]}}
    for more, status in (({}, 0), ({"default": []}, 2)):
        with open(t.at("target.json"), "w") as f:
            json.dump({**target, **more}, f)
        p = t.run("plan", path, "--target", t.at("target.json"), status=status)
        need(b"replicate" in (p.stderr if status else p.stdout), f"{more}: {p}")


@test
def test_plan_refuses_a_dtype_that_exec_refuses(t):
    path, target = sample("dcp_fsdp2")[0], ("--mesh", "dp=2", "--placements", "shard(0)")
    for dtype in ("int8", "complex64", "bool"):
        said = [t.run(*command, *target, "--dtype", dtype, status=2).stderr for command in (("plan", path), ("plan", path, "--json"), ("reshard", path, t.at("out")))]
        need(said[0] == said[1] == said[2] and dtype.encode() in said[0], said)


@test
def test_exec_refuses_stale_plans(t):
    source = t.at("source")
    shutil.copytree(sample("dcp_fsdp2")[0], source)
    plan = json.loads(t.run("plan", source, "--mesh", "dp=2", "--placements", "shard(0)", "--json").stdout)

    def refused(doc, *messages):
        json.dump(doc, open(t.at("plan.json"), "w"))
        p = t.run("exec", t.at("plan.json"), t.at("out"), status=2)
        need(all(m in p.stderr.decode() for m in messages), p.stderr)
        need(not os.path.exists(t.at("out")), "wrote in spite of it")

    def edited(**source_changes):
        return {**plan, "source": {**plan["source"], **source_changes}}

    json.dump(plan, open(t.at("plan.json"), "w"))
    doc = t.json("exec", t.at("plan.json"), t.at("out"), "--dry-run", "--json")
    need(doc["dry_run"] and doc["files"] and not os.path.exists(t.at("out")), "a dry run wrote")
    said = t.run("exec", t.at("plan.json"), t.at("out"), "--share", "1/2", "--dry-run").stderr.decode()
    need(said == f"would write share 1 of 2 of {t.at('out')}\n", said)
    file = plan["source"]["files"][0]
    refused(edited(format="torch-zip"), "format is dcp", "made for torch-zip")
    refused(edited(digest={"algorithm": plan["source"]["digest"]["algorithm"], "digest": "00"}), "digest is", "made for 00")
    refused(edited(files=[{**file, "bytes": 7}, *plan["source"]["files"][1:]]), file["file"], "made for 7")
    refused(edited(files=plan["source"]["files"][:-1]), "files with tensors")
    refused(edited(path=t.at("gone")), "gone")
    os.utime(os.path.join(source, file["file"]))
    refused(plan, file["file"], "has the time or version")
    refused({**plan, "schema": "tessera.plan/2"}, "tessera.plan/1")
    request = plan["request"]
    refused({**plan, "request": {**request, "options": {"to": "onnx"}}}, "onnx")
    refused({**plan, "request": {**request, "options": {"colour": "red"}}}, "reshard has no option 'colour'")
    refused({**plan, "request": {**request, "options": {"to": ["dcp"]}}}, "to has a value of a type")
    refused({**plan, "request": {**request, "command": "prune", "options": {}}}, "'prune'", "convert or reshard")
    refused({k: v for k, v in plan.items() if k != "request"}, "0.2", "make it again")
    refused({k: v for k, v in plan.items() if k != "target"}, "target")


@test
def test_resume_after_a_kill(t):
    path = many_units(t)
    for to, name, extra in (("safetensors", "m.safetensors", ()), ("torch", "m.pt", ()), ("dcp", "d", ())):
        whole = t.at("whole-" + name)
        t.run("convert", path, whole, "--to", to, "-q", *extra)
        killed(t, "convert", path, t.at(name), "--to", to, limit=20 << 20)
        left = [f for f in os.listdir(t.directory) if f.startswith(f".{name}.tessera-")]
        need(left and not os.path.exists(t.at(name)), f"nothing is left of the killed run: {left}")
        p = t.run("convert", path, t.at(name), "--to", to, "--resume", "--dtype", "float16", status=2)
        need(b"did not have 'dtype float16'" in p.stderr, p.stderr)
        t.run("convert", path, t.at(name), "--to", to, "--resume")
        need(tree(t.at(name)) == tree(whole), f"--to {to}: resumed to other bytes")
        killed(t, "convert", path, t.at("again-" + name), "--to", to, limit=20 << 20)
        p = t.run("convert", path, t.at("again-" + name), "--to", to)
        need(b"would have continued" in p.stderr, p.stderr)
        need(tree(t.at("again-" + name)) == tree(whole), f"--to {to}: other bytes after a killed run")
        killed(t, "convert", path, t.at("other-" + name), "--to", to, limit=20 << 20)
        p = t.run("convert", path, t.at("other-" + name), "--to", to, "--dtype", "float16")
        need(b"interrupted" in p.stderr, p.stderr)
        need(not [f for f in os.listdir(t.directory) if f.startswith(".")], os.listdir(t.directory))
    p = t.run("convert", path, t.at("new.pt"), "--resume")
    need(b"nothing to resume" in p.stderr, p.stderr)
    killed(t, "convert", path, t.at("changed.pt"), limit=20 << 20)
    os.utime(path)
    p = t.run("convert", path, t.at("changed.pt"), "--resume", status=2)
    need(b"'files 1 with sizes and times" in p.stderr, p.stderr)


def deep_tree(path):
    found = {}
    for directory, _, files in os.walk(path):
        for name in files:
            with open(os.path.join(directory, name), "rb") as f:
                found[os.path.relpath(os.path.join(directory, name), path)] = f.read()
    return found


@test
def test_resume_of_files_of_ranks(t):
    """Kills the job while each of the files is written, in both formats. With another map or number of ranks it is another
    job."""
    path = many_units(t)
    rules = [{"match": "big", "concat": 0}, {"match": "**", "replicate": True}]
    torch = {"schema": "tessera.shards/1", "rules": rules}
    safetensors = {**torch, "ranks": "model-rank-{tp}-part-{part}.safetensors"}
    for name, document in (("torch", torch), ("safetensors", safetensors), ("columns", {**torch, "rules": [{"match": "big", "concat": 1}, rules[1]]})):
        with open(t.at(name + ".json"), "w") as f:
            json.dump(document, f)
    job = lambda name, out, world=2: ("convert", path, t.at(out), "--to", "ranks", "--shards", t.at(name + ".json"), "--world-size", world)
    for name in ("torch", "safetensors"):
        t.run(*job(name, name + "-whole"))
        want = deep_tree(t.at(name + "-whole"))
        need(len(want) == 2 and all(len(data) > 20 << 20 for data in want.values()), {n: len(d) for n, d in want.items()})
        for limit in (1 << 20, 10 << 20, 17 << 20, 22 << 20):
            out = f"{name}-{limit}"
            killed(t, *job(name, out), "--resume", limit=limit)
            need(not os.path.exists(t.at(out)), "a killed run published")
            if limit == 17 << 20:
                for other in (job("columns", out), job(name, out, 4)):
                    p = t.run(*other, "--resume", status=2)
                    need(b"cannot resume" in p.stderr, f"another job's work is continued: {p.stderr}")
                killed(t, *job(name, out), "--resume", limit=limit + (1 << 20))
            t.run(*job(name, out), "--resume")
            need(deep_tree(t.at(out)) == want, f"{name}, killed at {limit}: resumed to other bytes")
            need(not [f for f in os.listdir(t.directory) if f.startswith(".")], os.listdir(t.directory))
        p = t.run(*job(name, name + "-new"), "--resume")
        need(b"nothing to resume" in p.stderr and deep_tree(t.at(name + "-new")) == want, p.stderr)


@test
def test_fsdp1_as_a_target(t):
    """The items of every rank make up its slice of the flat parameter: the parameters one after the other, padded and
    divided evenly."""
    path, want = sample("dcp_fsdp2")
    names = [e["fqn"] for e in t.json("inspect", path, "--json")["entries"] if e["kind"] == "tensor" and e["dtype"] == "float32"]
    keep = [a for n in names for a in ("--include", n)]
    strategy = {"name": "fsdp1", "units": ["**.weight"], "use_orig_params": False}
    json.dump({"schema": "tessera.target/1", "mesh": {"shape": [3]}, "strategy": strategy}, open(t.at("target.json"), "w"))
    doc = t.json("plan", path, "--target", t.at("target.json"), "--items", *keep)
    need(doc["target"]["strategy"] == strategy, doc["target"])
    numel = lambda shape: 1 if not shape else shape[0] * numel(shape[1:])
    shapes = {n: want["entries"][n]["shape"] for n in names}
    for unit in ([n for n in names if n.endswith(".weight")], [n for n in names if not n.endswith(".weight")]):
        total, at = sum(numel(shapes[n]) for n in unit), 0
        part = -(-total // 3)
        for n in unit:
            for rank in range(3):
                low, high = max(at, rank * part), min(at + numel(shapes[n]), (rank + 1) * part)
                places = sorted((i["dest_offsets"] or [0])[0] + k for i in doc["items"] if i["fqn"] == n and i["dest_rank"] == rank for k in range(numel(i["lengths"])))
                need(places == list(range(max(high - low, 0))), f"{n} on rank {rank}: {len(places)} elements, not {high - low}")
            at += numel(shapes[n])
    t.run("reshard", path, t.at("flat"), "--target", t.at("target.json"), *keep, "-q")
    got = {e["fqn"]: e["hash"]["digest"] for e in t.json("inspect", t.at("flat"), "--json", "--hash", "sha256")["entries"] if e["kind"] == "tensor"}
    need(got == {n: want["entries"][n]["sha256"] for n in names}, "other bytes")
    open(t.at("plan.json"), "wb").write(t.run("plan", path, "--target", t.at("target.json"), "--json", *keep).stdout)
    t.run("exec", t.at("plan.json"), t.at("again"), "-q")
    need(tree(t.at("again")) == tree(t.at("flat")), "exec of such a plan writes other bytes")
    p = t.run("reshard", path, t.at("ranks"), "--target", t.at("target.json"), "--to", "torch", *keep, status=2)
    need(b"'**.weight' does not name a single module" in p.stderr and not os.path.exists(t.at("ranks")), p.stderr)
    strategy.update(units=[], use_orig_params=True)
    json.dump({"schema": "tessera.target/1", "mesh": {"shape": [3]}, "strategy": strategy}, open(t.at("target.json"), "w"))
    p = t.run("reshard", path, t.at("ranks"), "--target", t.at("target.json"), "--to", "torch", *keep, status=2)
    need(b"use_orig_params" in p.stderr and not os.path.exists(t.at("ranks")), p.stderr)
    strategy.update(ignored=["**.weight"])
    json.dump({"schema": "tessera.target/1", "mesh": {"shape": [3]}, "strategy": strategy}, open(t.at("target.json"), "w"))
    doc = t.json("plan", path, "--target", t.at("target.json"), "--items", *keep)
    need(doc["target"]["strategy"] == strategy, doc["target"])
    held = {n: [sum(numel(i["lengths"]) for i in doc["items"] if i["fqn"] == n and i["dest_rank"] == r) for r in range(3)] for n in names}
    need(all((sum(h) == numel(shapes[n])) != n.endswith(".weight") and (h == [numel(shapes[n])] * 3) == n.endswith(".weight") for n, h in held.items()), held)
    json.dump({"schema": "tessera.target/1", "mesh": {"shape": [3]}, "strategy": {"name": "zero3"}}, open(t.at("bad.json"), "w"))
    need(b"zero3" in t.run("plan", path, "--target", t.at("bad.json"), status=2).stderr, "an unknown strategy")


def server_of(files, name, at):
    """Returns the server of a byte according to the stripes that tessera.storage/1 describes."""
    stripe_size, servers = files[name]
    return servers[at // stripe_size % len(servers)]


@test
def test_a_storage_shows_servers_and_orders_reads(t):
    """Eight layers, each in its own safetensors file on one of four servers; ranks read rows of all of them."""
    names, size = [f"model-{i:05d}-of-00008.safetensors" for i in range(1, 9)], 64 * 64 * 4
    os.mkdir(t.at("ckpt"))
    weights = {}
    for i, name in enumerate(names):
        st_write(t.at("ckpt", name), {f"layers.{i}.w{k}": ("F32", [64, 64], os.urandom(size)) for k in range(4)})
        weights.update({f"layers.{i}.w{k}": name for k in range(4)})
    json.dump({"metadata": {"total_size": 32 * size}, "weight_map": weights}, open(t.at("ckpt", "model.safetensors.index.json"), "w"))
    where = {n: (4096, [i % 4, (i + 1) % 4]) if i == 7 else (1 << 20, [i % 4]) for i, n in enumerate(names)}
    storage = {"schema": "tessera.storage/1", "servers": [{"name": f"oss{s}"} for s in range(4)], "bandwidth": 1e9, "latency": 0.001,
               "files": [{"file": n, "first": where[n][1][0], "stripe_count": len(where[n][1]), "stripe_size": where[n][0]} for n in names]}
    json.dump(storage, open(t.at("storage.json"), "w"))
    target = ("--mesh", "dp=8", "--placements", "shard(0)")
    doc = t.json("plan", t.at("ckpt"), *target, "--storage", t.at("storage.json"), "--items")
    need([f["first_server"] for f in doc["files"]] == [f"oss{i % 4}" for i in range(8)], doc["files"])
    need([f["stripe_count"] for f in doc["files"]] == [1] * 7 + [2], doc["files"])
    need(doc["totals"]["assumed_files"] == 0 and sum(s["bytes"] for s in doc["servers"]) == doc["totals"]["bytes"] == 32 * size, doc["servers"])
    want = [0] * 4
    for entry in t.json("inspect", t.at("ckpt"), "--json")["entries"]:
        c = entry["chunks"][0]
        for at in range(c["byte_offset"], c["byte_offset"] + c["byte_length"]):
            want[server_of(where, c["file"], at)] += 1
    need([s["bytes"] for s in doc["servers"]] == want, (doc["servers"], want))
    need(abs(doc["totals"]["server_seconds"] - max(want) / 1e9) < 1e-9, doc["totals"])
    plain = t.json("plan", t.at("ckpt"), *target, "--items")
    key = lambda i: json.dumps(i, sort_keys=True)
    begun = []
    for rank in range(8):
        by_file, by_server = ([i for i in d["items"] if i["dest_rank"] == rank] for d in (plain, doc))
        need(sorted(map(key, by_file)) == sorted(map(key, by_server)), f"rank {rank} reads something else")
        need(by_file[0]["file"] == names[0], by_file[0])
        begun.append(where[by_server[0]["file"]][1][0])
    need(set(begun) == {0, 1, 2, 3} and max(map(begun.count, begun)) <= 3, f"ranks begin at servers {begun}")  # server 0 has more
    text = t.text("plan", t.at("ckpt"), *target, "--storage", t.at("storage.json"))
    need("4 servers" in text and "oss3" in text and names[7] + ", oss3" in text, text)

    t.run("reshard", t.at("ckpt"), t.at("whole"), *target, "--to", "dcp", "-q")
    t.run("reshard", t.at("ckpt"), t.at("stored"), *target, "--to", "dcp", "--storage", t.at("storage.json"), "-q")
    open(t.at("plan.json"), "wb").write(t.run("plan", t.at("ckpt"), *target, "--to", "dcp", "--storage", t.at("storage.json"), "--json").stdout)
    for part in (2, 1, 3):
        t.run("exec", t.at("plan.json"), t.at("parts"), "--share", f"{part}/3", "-q")
    t.run("exec", t.at("plan.json"), t.at("parts"), "--finish", "-q")
    need(tree(t.at("whole")) == tree(t.at("stored")) == tree(t.at("parts")), "a storage changes bytes")


@test
def test_storages_that_are_wrong_are_refused(t):
    path, target = sample("dcp_fsdp2")[0], ("--mesh", "dp=2", "--placements", "shard(0)")
    good = {"schema": "tessera.storage/1", "servers": 2, "bandwidth": 1e9, "files": [{"file": "__0_0.distcp", "first": 1}]}

    def refused(message, **changes):
        doc = {k: v for k, v in {**good, **changes}.items() if v is not None}
        json.dump(doc, open(t.at("storage.json"), "w"))
        for command in (("plan", path), ("reshard", path, t.at("out"))):
            p = t.run(*command, *target, "--storage", t.at("storage.json"), status=2)
            need(message in p.stderr.decode(), f"{changes}: {p.stderr}")
        need(not os.path.exists(t.at("out")), "wrote in spite of it")

    json.dump(good, open(t.at("storage.json"), "w"))
    doc = t.json("plan", path, *target, "--storage", t.at("storage.json"), "--json")
    need(doc["totals"]["assumed_files"] == 3 and [s["server"] for s in doc["servers"]] == ["0", "1"], doc["totals"])
    need("3 files not listed" in t.text("plan", path, *target, "--storage", t.at("storage.json")), "assumed files")
    refused("tessera.storage/1", schema="tessera.target/1")
    refused("servers", servers=None)
    refused("0 servers", servers=0)
    refused("no bandwidth", bandwidth=None)
    refused("at least 1 byte per second", bandwidth=-5)
    refused("at least 0 seconds", latency=-1)
    refused("stripe_count is 3; expected a number from 1 to 2", stripe_count=3)
    refused("stripe_size is 0", stripe_size=0)
    refused("files[0].first is 2", files=[{"file": "__0_0.distcp", "first": 2}])
    refused("either `first`", files=[{"file": "__0_0.distcp"}])
    refused("lists server 7", files=[{"file": "__0_0.distcp", "servers": [0, 7]}])
    refused("twice", files=good["files"] * 2)
    refused("none of the 1 files", files=[{"file": "other.distcp", "first": 0}])
