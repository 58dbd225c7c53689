"""--part, --step, --also and --shards of the commands that do not read one complete checkpoint: optim, repair and view."""
import json
import os
import shutil

from harness import ROOT, need, sample, test
from test_shards import GOOD, ranks, write
from test_view import viewing

TRAINER = os.path.join(ROOT, "tests", "golden", "directories", "trainer")
ZERO3 = os.path.join(ROOT, "tests", "golden", "deepspeed", "zero3_bf16")


def content(path):
    with open(path, "rb") as f:
        return f.read()


def run_of(t, source, *names):
    for name in names:
        shutil.copytree(source, t.at("run", name))
    return t.at("run")


@test
def test_optim_reads_one_part(t):
    t.run("optim", "flatten", os.path.join(TRAINER, "optimizer.pt"), t.at("alone.pt"))
    t.run("optim", "flatten", TRAINER, t.at("part.pt"), "--part", "optimizer")
    need(content(t.at("part.pt")) == content(t.at("alone.pt")), "the part is not its file")
    message = t.run("optim", "flatten", TRAINER, t.at("x.pt"), status=2).stderr.decode()
    need("'training_args'" in message and "--part" in message, message)
    message = t.run("optim", "flatten", TRAINER, t.at("x.pt"), "--part", "optimiser", status=2).stderr.decode()
    need("'optimiser'" in message and "'optimizer'" in message and not os.path.exists(t.at("x.pt")), message)
    with open(t.at("flat.json"), "w") as f:
        f.write("{}")
    message = t.run("optim", "unshard", TRAINER, t.at("x.pt"), "--part", "optimizer", "--flat-params", t.at("flat.json"), status=2).stderr.decode()
    need("--part cannot be used with optim unshard" in message, message)


@test
def test_optim_reads_the_states_of_deepspeed(t):
    t.run("optim", "flatten", ZERO3, t.at("flat.pt"), "--part", "optim")
    with open(os.path.join(ZERO3, "expect.json")) as f:
        expect = json.load(f)
    want = expect["optim"]
    got = {e["fqn"]: e for e in t.json("inspect", t.at("flat.pt"), "--json", "--hash", "sha256")["entries"]}
    need({n: got[f"state.{n}"]["hash"]["digest"] for n in want} == {n: w["sha256"] for n, w in want.items()}, "other values than the engine's")
    need([got[f"param_groups.{n}.lr"]["value"] for n in ("embed.weight", "scale")] == expect["lr"], "other groups than the engine's")


@test
def test_optim_reads_one_step(t):
    path = run_of(t, TRAINER, "checkpoint-3", "checkpoint-40")
    os.remove(t.at("run", "checkpoint-3", "scheduler.pt"))
    shutil.copy(os.path.join(TRAINER, "scheduler.pt"), t.at("run", "checkpoint-3", "optimizer.pt"))  # not an optimizer's state
    t.run("optim", "flatten", os.path.join(TRAINER, "optimizer.pt"), t.at("alone.pt"))
    for number, step in enumerate(("40", "latest", "checkpoint-40")):
        out = t.at(f"{number}.pt")
        t.run("optim", "flatten", path, out, "--step", step, "--part", "optimizer")
        need(content(out) == content(t.at("alone.pt")), step)
    message = t.run("optim", "flatten", path, t.at("x.pt"), "--part", "optimizer", status=2).stderr.decode()
    need("checkpoint-3" in message and "checkpoint-40" in message, message)
    with open(os.path.join(path, "latest"), "w") as f:
        f.write("checkpoint-40")
    t.run("optim", "flatten", path, t.at("marked.pt"), "--part", "optimizer")
    need(content(t.at("marked.pt")) == content(t.at("alone.pt")), "the step that the file names")
    need("--step 3" in t.run("optim", "flatten", t.at("alone.pt"), t.at("x.pt"), "--step", "3", status=2).stderr.decode(), "a file has no steps")


@test
def test_optim_refuses_to_write_over_the_step_that_it_reads(t):
    path = run_of(t, TRAINER, "checkpoint-3", "checkpoint-40")
    source = t.at("run", "checkpoint-40", "optimizer.pt")
    before = content(source)
    message = t.run("optim", "flatten", path, source, "--step", "40", "--part", "optimizer", "--overwrite", status=2).stderr.decode()
    need(content(source) == before and source in message, message)


@test
def test_a_torch_file_of_a_step_is_read_with_all_its_containers(t):
    """A marker leads to a directory whose only file is a torch.save file: its empty states are kept."""
    shutil.copytree(TRAINER, t.at("run", "step-5"), ignore=lambda _, names: [n for n in names if n != "optimizer.pt"])
    for n in range(3):  # the files of the step have other numbers below the root
        with open(t.at("run", f"{n}.txt"), "w") as f:
            f.write("notes")
    with open(t.at("run", "latest"), "w") as f:
        f.write("step-5")
    t.run("optim", "flatten", os.path.join(TRAINER, "optimizer.pt"), t.at("alone.pt"))
    for options in ((), ("--step", "5")):
        p = t.run("optim", "flatten", t.at("run"), t.at("out.pt"), *options, "--overwrite")
        need(content(t.at("out.pt")) == content(t.at("alone.pt")), p.stderr)


@test
def test_repair_rebuilds_the_metadata_of_a_step(t):
    sound = sample("dcp_fsdp2")[0]
    path = run_of(t, sound, "step-1", "step-2")
    os.remove(t.at("run", "step-2", ".metadata"))
    doc = t.json("repair", path, t.at("new"), "--step", "2", "--like", t.at("run", "step-1"), "--json")
    need(doc["items"] and doc["unnamed"] == doc["lost"] == 0, doc)
    os.rename(t.at("new"), t.at("run", "step-2", ".metadata"))
    t.run("diff", t.at("run", "step-2"), sound, "--values", "--layout")
    need("nothing to repair" in t.run("repair", path, t.at("x"), "--step", "1", status=2).stderr.decode(), "a sound step")
    need("step-1" in t.run("repair", path, t.at("x"), "--step", "3", status=2).stderr.decode(), "the steps are listed")


@test
def test_repair_reads_the_directories_of_several_nodes(t):
    sound = sample("dcp_fsdp2")[0]
    data = sorted(f for f in os.listdir(sound) if f.endswith(".distcp"))
    for node, names in (("a", data[:1]), ("b", data[1:])):
        os.makedirs(t.at(node))
        for name in names:
            shutil.copy(os.path.join(sound, name), t.at(node))
    doc = t.json("repair", t.at("a"), t.at("new"), "--also", t.at("b"), "--like", sound, "--json")
    need(doc["files"] == len(data) and doc["unnamed"] == doc["lost"] == 0, doc)
    os.rename(t.at("new"), t.at("a", ".metadata"))
    t.run("diff", t.at("a"), sound, "--also", t.at("b"), "--values")


@test
def test_view_serves_the_files_of_a_step(t):
    path = run_of(t, sample("dcp_fsdp2")[0], "step-1", "step-2")
    with viewing(t, path, "--step", "2") as v:
        names = {f["name"] for f in v.listing()["files"]}
        need(names == set(os.listdir(t.at("run", "step-2"))), names)
        need(v.ask("checkpoint/.metadata")[1] == content(t.at("run", "step-2", ".metadata")), "the metadata")
        need(v.ask("checkpoint/step-1/.metadata")[0] == 404, "another step is served")
    with viewing(t, path, os.path.join(TRAINER, "model.safetensors"), "--step", "2") as v:
        need(v.listing()["other"]["primary"] == "model.safetensors", v.listing())


@test
def test_view_tells_the_page_which_part_to_show(t):
    plain = os.path.join(TRAINER, "model.safetensors")
    with viewing(t, TRAINER, plain, "--part", "model") as v:
        listing = v.listing()
        need(listing["part"] == "model" and {"model.safetensors", "trainer_state.json"} <= {f["name"] for f in listing["files"]}, listing)
        need(listing["other"].get("part") is None and listing["other"]["primary"] == "model.safetensors", listing)
    need("'modle'" in t.run("view", TRAINER, "--part", "modle", "--pages", t.at("pages"), status=2).stderr.decode(), "a part that is not there")


@test
def test_view_serves_directories_of_several_nodes(t):
    sound = sample("dcp_fsdp2")[0]
    files = sorted(os.listdir(sound))
    for node, names in (("a", files[:2]), ("b", files[2:])):
        os.makedirs(t.at(node))
        for name in names:
            shutil.copy(os.path.join(sound, name), t.at(node))
    with viewing(t, t.at("a"), "--also", t.at("b")) as v:
        need({f["name"] for f in v.listing()["files"]} == set(files), v.listing())
        for name in files:
            need(v.ask(f"checkpoint/{name}")[1] == content(os.path.join(sound, name)), name)

def lost_metadata(t):
    """What accelerate saves under FSDP, as far as repair uses it: a DCP per model and per optimizer."""
    sound = sample("dcp_fsdp2")[0]
    for name in ("pytorch_model_fsdp_0", "optimizer_0", "optimizer_1"):
        shutil.copytree(sound, t.at("run", name))
        os.remove(t.at("run", name, ".metadata"))
    return sound, t.at("run")


@test
def test_repair_rebuilds_the_metadata_of_a_part(t):
    sound, path = lost_metadata(t)
    for part, directory in (("model", "pytorch_model_fsdp_0"), ("optimizer", "optimizer_0"), ("optimizer_1", "optimizer_1")):
        doc = t.json("repair", path, t.at("new"), "--part", part, "--like", sound, "--json")
        need(doc["items"] and doc["unnamed"] == doc["lost"] == 0, doc)
        os.rename(t.at("new"), t.at("run", directory, ".metadata"))
        t.run("diff", t.at("run", directory), sound, "--values", "--layout")
        need("nothing to repair" in t.run("repair", path, t.at("x"), "--part", part, status=2).stderr.decode(), part)
    for part in ("model_1", "model_0", "pytorch_model_fsdp_0", "modle", "optimizer_0"):
        message = t.run("repair", path, t.at("x"), "--part", part, status=2).stderr.decode()
        need(f"'{part}'" in message and "optimizer_N" in message and not os.path.exists(t.at("x")), message)
    message = t.run("repair", ZERO3, t.at("x"), "--part", "optim", status=2).stderr.decode()
    need("'optim'" in message and ".metadata of its own" in message, message)


@test
def test_a_map_of_ranks_is_refused_where_it_means_nothing(t):
    for arguments, hint in ((["repair", ZERO3, t.at("x")], "inspect or convert"), (["optim", "flatten", ZERO3, t.at("x")], "tessera convert")):
        for given in (["--shards", "meta-llama"], ["--shards=meta-llama"]):
            message = t.run(*arguments, *given, status=2).stderr.decode()
            need("has no option --shards: " in message and hint in message and message.count("\n") == 1, message)
            need(not os.path.exists(t.at("x")), "something was written")


@test
def test_view_tells_the_page_how_to_join_ranks(t):
    document = write(t, GOOD)
    path = ranks(t)
    with viewing(t, path, sample("dcp_fsdp2")[0], "--shards", document) as v:
        listing = v.listing()
        need(listing["shards"] == json.dumps(GOOD) and "shards" not in listing["other"], listing)
        need({f["name"] for f in listing["files"]} == set(os.listdir(path)), listing)
    need("--shards" in t.run("view", path, "--pages", t.at("pages"), status=2).stderr.decode(), "without a map")
    meta = os.path.join(ROOT, "tests", "golden", "meta", "llama3")
    with viewing(t, meta, "--shards", "meta-llama") as v:
        need(v.listing()["shards"] == "meta-llama" and "params.json" in {f["name"] for f in v.listing()["files"]}, v.listing())
    need("none.json" in t.run("view", path, "--shards", t.at("none.json"), "--pages", t.at("pages"), status=2).stderr.decode(), "a map that is not there")
