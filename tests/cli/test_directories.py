"""Directories of training loops: parts, steps, and files of several nodes. tests/golden/directories contains what the real
libraries wrote (make_directories.py)."""
import json
import os
import shutil
import struct
import subprocess

from harness import ROOT, Skip, need, sample, st_write, test

DIRECTORIES = os.path.join(ROOT, "tests", "golden", "directories")


def golden(name):
    with open(os.path.join(DIRECTORIES, name + ".expect.json")) as f:
        return os.path.join(DIRECTORIES, name), json.load(f)


def rows(doc):
    return {e["fqn"]: e for e in doc["entries"]}


def tensors(doc):
    return {k: {"dtype": e["dtype"], "shape": e["shape"], "sha256": e["hash"]["digest"]} for k, e in rows(doc).items() if e["kind"] == "tensor"}


def check_part(doc, want, prefix=""):
    got = tensors(doc)
    for name, entry in want["entries"].items():
        need(got.get(prefix + name) == entry, f"{prefix + name}: {got.get(prefix + name)}, the library has {entry}")
    for name, value in want["objects"].items():
        need(prefix + name in rows(doc), f"{prefix + name} is not listed")
        found = rows(doc)[prefix + name].get("value")
        need(type(found) is type(value) and found == value, f"{prefix + name}: {found!r}, the library has {value!r}")


def check_directory(t, name):
    path, want = golden(name)
    whole = t.json("inspect", path, "--json", "--hash", "sha256")
    need(whole["format"] == want["format"], whole["format"])
    listed = {p["name"]: p for p in whole["summary"]["parts"]}
    for part, expected in want["parts"].items():
        check_part(whole, expected, part + ".")
        alone = t.json("inspect", path, "--json", "--hash", "sha256", "--part", part)
        check_part(alone, expected)
        need(listed[part]["tensors"] == sum(e["kind"] == "tensor" for e in alone["entries"]), listed[part])
        need(listed[part]["tensors"] + listed[part]["objects"] == len(alone["entries"]), listed[part])
        need(part in t.text("inspect", path).splitlines()[1], "the head names the parts")
    t.run("validate", path, "--deep")
    return path, want


def check_written(t, source, want, part):
    """convert --part writes the tensors of the part, in every format."""
    for to, dest in (("safetensors", "one.safetensors"), ("torch", "one.pt"), ("dcp", "one")):
        t.run("convert", source, t.at(dest), "--to", to, "--part", part)
        check_part(t.json("inspect", t.at(dest), "--json", "--hash", "sha256"), {"entries": want["entries"], "objects": {}})


@test
def test_torch_checkpointing_is_read_as_the_package_wrote_it(t):
    path, want = check_directory(t, "torch_checkpointing")
    check_written(t, path, want["parts"]["model"], "model")
    shutil.copytree(path, t.at("lost"), ignore=lambda _, names: ["model_0.pt"])
    found = t.json("validate", t.at("lost"), "--json", status=1)["findings"]
    need(any(f["rule"] == "parts/incomplete-save" and "model_0.pt" in f["message"] for f in found), found)
    need("model_0.pt" in t.run("convert", t.at("lost"), t.at("x.pt"), "--to", "torch", status=2).stderr.decode(), "what is missing")


@test
def test_a_trainer_checkpoint_is_read_as_the_trainer_wrote_it(t):
    path, want = check_directory(t, "trainer")
    check_written(t, path, want["parts"]["model"], "model")
    t.run("convert", path, t.at("parts"), "--to", "safetensors", "--objects", "drop")
    need(sorted(os.listdir(t.at("parts"))) == ["model.safetensors", "optimizer.safetensors", "rng_state.safetensors"], os.listdir(t.at("parts")))
    for part in ("model", "optimizer"):
        check_part(t.json("inspect", t.at("parts", part + ".safetensors"), "--json", "--hash", "sha256"), {"entries": want["parts"][part]["entries"], "objects": {}})
    t.run("diff", path, os.path.join(path, "model.safetensors"), "--part", "model", "--values")


@test
def test_a_lightning_checkpoint_is_read_as_the_trainer_wrote_it(t):
    """Its tensors have no part in front of their names, and what is not a tensor is in meta.pt, which Lightning writes
    last."""
    path, want = golden("lightning")
    whole = t.json("inspect", path, "--json", "--hash", "sha256")
    need(whole["format"] == want["format"] and [p["name"] for p in whole["summary"]["parts"]] == ["", "meta"], whole["summary"])
    need(tensors(whole) == want["parts"][""]["entries"], set(tensors(whole)) ^ set(want["parts"][""]["entries"]))
    check_part(whole, want["parts"]["meta"], "meta.")
    need(t.json("validate", path, "--deep", "--json")["findings"] == [], "a whole checkpoint")
    t.run("convert", path, t.at("one.safetensors"), "--include", "state_dict.**", "--rename", "state_dict.=")
    weights = {k[len("state_dict."):]: e for k, e in want["parts"][""]["entries"].items() if k.startswith("state_dict.")}
    need(tensors(t.json("inspect", t.at("one.safetensors"), "--json", "--hash", "sha256")) == weights, "the weights")
    shutil.copytree(path, t.at("killed"), ignore=lambda _, names: ["meta.pt"])
    found = t.json("validate", t.at("killed"), "--json", status=1)["findings"]
    need(any(f["rule"] == "parts/incomplete-save" and "meta.pt" in f["message"] for f in found), found)


@test
def test_parts_that_were_written_one_file_each_open_as_parts_again(t):
    """The model and the module of a ZeRO-1 checkpoint have all names in common."""
    for case in ("zero1_bf16", "zero3_bf16"):
        source, out = os.path.join(ROOT, "tests", "golden", "deepspeed", case), t.at(case)
        t.run("convert", source, out, "--to", "safetensors", "--objects", "drop")
        before, after = (tensors(t.json("inspect", p, "--json", "--hash", "sha256")) for p in (source, out))
        need(before == after and before, set(before) ^ set(after))
        listed = [p["name"] for p in t.json("inspect", out, "--json")["summary"]["parts"]]
        need(sorted(p + ".safetensors" for p in listed) == sorted(os.listdir(out)), listed)
        t.run("validate", out, "--deep", "--fail-on", "note", "--rule", "safetensors/misaligned=off")
        t.run("diff", source, out, "--part", "model", "--values")
        need(tensors(t.json("inspect", t.at(case, "model.safetensors"), "--json", "--hash", "sha256")) ==
             tensors(t.json("inspect", out, "--json", "--hash", "sha256", "--part", "model")), "one file alone has no prefix")
    t.run("convert", t.at("zero1_bf16"), t.at("again"), "--to", "safetensors")
    need(all(open(t.at("again", n), "rb").read() == open(t.at("zero1_bf16", n), "rb").read() for n in os.listdir(t.at("again"))), "written again")


@test
def test_a_file_that_was_a_part_can_be_part_of_another_checkpoint(t):
    path, want = golden("trainer")
    t.run("convert", path, t.at("parts"), "--to", "safetensors", "--objects", "drop")
    shutil.copytree(path, t.at("run"))
    shutil.copy(t.at("parts", "model.safetensors"), t.at("run"))
    whole = t.json("inspect", t.at("run"), "--json", "--hash", "sha256")
    need(whole["format"] == "hf-trainer", whole["format"])
    check_part(whole, want["parts"]["model"], "model.")
    t.run("diff", t.at("run"), path, "--values")


@test
def test_parts_are_not_mixed_with_those_of_another_checkpoint(t):
    deepspeed = os.path.join(ROOT, "tests", "golden", "deepspeed")
    t.run("convert", os.path.join(deepspeed, "zero1_bf16"), t.at("out"), "--to", "safetensors", "--objects", "drop")
    before = {n: open(t.at("out", n), "rb").read() for n in os.listdir(t.at("out"))}
    p = t.run("convert", os.path.join(deepspeed, "zero3_bf16"), t.at("out"), "--to", "safetensors", "--objects", "drop", "--overwrite", status=2)
    # it has no module, so the old one would remain
    need("cannot be replaced" in p.stderr.decode() and ".safetensors" in p.stderr.decode(), p.stderr)
    need(before == {n: open(t.at("out", n), "rb").read() for n in os.listdir(t.at("out"))}, "the old parts changed")


@test
def test_files_of_which_not_all_are_parts_are_one_checkpoint(t):
    source = os.path.join(ROOT, "tests", "golden", "deepspeed", "zero1_bf16")
    t.run("convert", source, t.at("out"), "--to", "safetensors", "--objects", "drop")
    st_write(t.at("out", "other.safetensors"), {"extra": ("F32", [1], struct.pack("<f", 7))})
    message = t.run("inspect", t.at("out"), status=2).stderr.decode()
    need("two entries have the name" in message and "model.safetensors" in message and "module.safetensors" in message, message)
    os.remove(t.at("out", "module.safetensors"))
    names = rows(t.json("inspect", t.at("out"), "--json"))
    need({"extra", "up.weight"} <= set(names) and "parts" not in t.json("inspect", t.at("out"), "--json")["summary"], list(names))
    os.remove(t.at("out", "other.safetensors"))
    shutil.copy(t.at("out", "optim.safetensors"), t.at("out", "copy.safetensors"))
    message = t.run("inspect", t.at("out"), status=2).stderr.decode()
    need("copy.safetensors" in message and "optim.safetensors" in message, message)


@test
def test_what_was_written_into_a_directory_is_what_it_is_read_as(t):
    shutil.copytree(golden("trainer")[0], t.at("used"))
    t.run("convert", sample("dcp_fsdp2")[0], t.at("used"), "--to", "dcp", "--overwrite")
    t.run("diff", t.at("used"), sample("dcp_fsdp2")[0], "--values")


@test
def test_a_trainer_checkpoint_without_its_state_was_interrupted(t):
    path = golden("trainer")[0]
    shutil.copytree(path, t.at("lost"), ignore=lambda _, names: ["trainer_state.json"])
    found = t.json("validate", t.at("lost"), "--json", status=1)["findings"]
    need(any(f["rule"] == "parts/incomplete-save" and "trainer_state.json" in f["message"] for f in found), found)
    need("model.lm_head.weight" in rows(t.json("inspect", t.at("lost"), "--json")), "what is there is listed")
    message = t.run("convert", t.at("lost"), t.at("x.safetensors"), "--part", "model", status=2).stderr.decode()
    need("trainer_state.json" in message and not os.path.exists(t.at("x.safetensors")), message)
    shutil.copytree(path, t.at("final"), ignore=lambda _, names: ["trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth"])
    t.run("validate", t.at("final"))


@test
def test_the_trainer_names_the_checkpoint_of_deepspeed_below_it(t):
    """The Trainer's files next to what the engine's save_checkpoint wrote, as the Trainer leaves them under DeepSpeed."""
    shutil.copytree(golden("trainer")[0], t.at("both"), ignore=lambda _, names: ["optimizer.pt"])
    shutil.copytree(sample("deepspeed_zero3")[0], t.at("both"), dirs_exist_ok=True)
    for command in ("inspect", "validate"):
        found = [f for f in t.json(command, t.at("both"), "--json")["findings"] if f["rule"] == "parts/left-out"]
        need(len(found) == 1 and "'global_step2'" in found[0]["message"] and "--step global_step2" in found[0]["message"], found)
    need("deepspeed" in t.text("inspect", t.at("both"), "--step", "global_step2"), "it is opened so")
    message = t.run("convert", t.at("both"), t.at("out.pt"), "--to", "torch").stderr.decode()
    need(message.count("latest: DeepSpeed's checkpoint 'global_step2'") == 1 and "warning: " + t.at("both") in message, message)
    need(b"left-out" not in t.run("convert", t.at("both"), t.at("model.pt"), "--to", "torch", "--part", "model").stderr, "it was asked for")
    shutil.rmtree(t.at("both", "global_step2"))
    need(not any(f["rule"] == "parts/left-out" for f in t.json("validate", t.at("both"), "--json")["findings"]), "nothing is left out")


@test
def test_a_file_of_a_part_that_cannot_be_read_is_a_finding(t):
    shutil.copytree(golden("trainer")[0], t.at("cut"))
    os.truncate(t.at("cut", "optimizer.pt"), 1000)
    found = t.json("validate", t.at("cut"), "--json", status=1)["findings"]
    need(any(f["level"] == "error" and f.get("file") == "optimizer.pt" for f in found), found)
    need("model.lm_head.weight" in rows(t.json("inspect", t.at("cut"), "--json")), "what is there is listed")
    need("optimizer.pt" in t.run("convert", t.at("cut"), t.at("x"), "--to", "dcp", status=2).stderr.decode(), "the file is named")


@test
def test_files_of_another_number_of_ranks_are_named(t):
    """The names in verl's checkpoints state it. What most files of a kind state counts, even if others are listed first."""
    files = sorted(os.listdir(sample("torch_ranks_tp_fsdp2")[0]))
    ranks = [os.path.join(sample("torch_ranks_tp_fsdp2")[0], f) for f in files]

    def save(run, worlds):
        os.makedirs(t.at(run))
        for kind, world in (("model", 4), ("optim", 4), ("extra_state", 4)):
            for rank, file in enumerate(ranks):
                shutil.copy(file, t.at(run, f"{kind}_world_size_{worlds.get((kind, rank), world)}_rank_{rank}.pt"))
        return t.at(run)

    def check(path, named):
        of = [f for f in t.json("validate", path, "--json", status=1)["findings"] if f["rule"] == "parts/incomplete-save"]
        need(named in {f.get("file") for f in of}, f"{named}: {of}")
        need(t.json("inspect", path, "--json")["entries"], "nothing is listed")
        for command in (["convert", path, t.at("out"), "--to", "safetensors", "--part", "model"], ["manifest", path]):
            need(named in t.run(*command, status=2).stderr.decode(), f"{command[0]} does not name {named}")
            need(not os.path.exists(t.at("out")), "an output was left")

    need(len(ranks) == 4, files)
    t.run("inspect", save("whole", {}))
    for rank, world in ((0, 2), (3, 8)):
        check(save(f"mixed{rank}", {("model", rank): world}), f"model_world_size_{world}_rank_{rank}.pt")
    check(save("optimizer", {("optim", rank): 8 for rank in range(4)}), "optim_world_size_8_rank_0.pt")
    os.remove(os.path.join(save("gone", {}), "extra_state_world_size_4_rank_2.pt"))
    check(t.at("gone"), "extra_state_world_size_4_rank_2.pt")


@test
def test_numbers_that_json_does_not_know_are_those_of_python(t):
    shutil.copytree(golden("trainer")[0], t.at("nan"))
    with open(t.at("nan", "trainer_state.json"), "w") as f:
        f.write('{"log_history": [{"loss": NaN, "note": "NaN -Infinity 1"}], "best": -Infinity, "epoch": 2.0, "steps": 12}')
    got = rows(t.json("inspect", t.at("nan"), "--json", "--part", "trainer_state"))
    need(got["epoch"]["value"] == 2.0 and isinstance(got["epoch"]["value"], float) and got["steps"]["value"] == 12, got)
    need("nan" in got["log_history.0.loss"]["repr"] and "-inf" in got["best"]["repr"], got)
    need(got["log_history.0.note"]["value"] == "NaN -Infinity 1", got)


@test
def test_a_part_that_is_not_there_is_refused_with_those_that_are(t):
    message = t.run("inspect", golden("trainer")[0], "--part", "modle", status=2).stderr.decode()
    need("'modle'" in message and all(f"'{p}'" in message for p in ("model", "optimizer", "trainer_state")), message)
    plain = sample("dcp_fsdp2")[0]
    need("does not consist of parts" in t.run("inspect", plain, "--part", "model", status=2).stderr.decode(), "a plain DCP has none")


@test
def test_a_plan_remembers_its_part_and_its_step(t):
    path, want = golden("trainer")
    shutil.copytree(path, t.at("run", "checkpoint-7"))
    target = ("--mesh", "dp=2", "--placements", "shard(0)")
    source = (t.at("run"), "--step", "7", "--part", "model")
    with open(t.at("plan.json"), "w") as f:
        json.dump(t.json("plan", *source, *target, "--to", "torch", "--json"), f)
    t.run("exec", t.at("plan.json"), t.at("planned"))
    t.run("reshard", *source, t.at("resharded"), *target, "--to", "torch")
    for name in ("rank0.pt", "rank1.pt"):
        planned, resharded = (open(t.at(d, name), "rb").read() for d in ("planned", "resharded"))
        need(planned == resharded, name)
    check_part(t.json("inspect", t.at("planned"), "--json", "--hash", "sha256"), {"entries": want["parts"]["model"]["entries"], "objects": {}})


@test
def test_what_a_part_would_be_loaded_into_need_not_have_parts(t):
    path = golden("trainer")[0]
    for against in (os.path.join(path, "model.safetensors"), path):
        t.run("validate", path, "--part", "model", "--against", against)
    found = t.json("validate", path, "--part", "model", "--against", sample("dcp_fsdp2")[0], "--json", status=1)["findings"]
    need({f["rule"] for f in found} >= {"layout/missing-entry"} and any(f["fqn"] == "lm_head.weight" for f in found), found)
    message = t.run("validate", path, "--part", "scheduler", "--against", golden("torch_checkpointing")[0], status=2).stderr.decode()
    need("'scheduler'" in message and "torch-checkpointing" in message, message)


def run_of_steps(t, *steps, below="checkpoint"):
    for n in steps:
        shutil.copytree(sample("dcp_fsdp2")[0], t.at("run", below, f"step-{n}"))
        with open(t.at("run", below, f"step-{n}", "notes.txt"), "w") as f:
            f.write(str(n))
    return t.at("run")


@test
def test_a_step_is_found_by_its_name_its_number_and_its_age(t):
    path = run_of_steps(t, 2, 10)
    message = t.run("inspect", path, status=2).stderr.decode()
    need("checkpoint/step-2 (dcp)" in message and "checkpoint/step-10 (dcp)" in message, message)
    for asked, step in (("2", "step-2"), ("latest", "step-10"), ("step-10", "step-10"), ("checkpoint/step-2", "step-2")):
        need(f"step checkpoint/{step}" in t.text("inspect", path, "--step", asked).splitlines()[1], asked)
    need("there is no step '3'" in t.run("inspect", path, "--step", "3", status=2).stderr.decode(), "the steps are listed")
    need("matches 2 checkpoints" in t.run("inspect", path, "--step", "checkpoint", status=2).stderr.decode(), "both are listed")
    t.run("diff", path, os.path.join(path, "checkpoint", "step-2"), "--step", "10", status=2)
    t.run("convert", path, t.at("out.pt"), "--to", "torch", "--step", "2")
    need("not with a file" in t.run("inspect", t.at("out.pt"), "--step", "2", status=2).stderr.decode(), "a file has no steps")


@test
def test_a_step_of_lightning_is_found_by_its_number(t):
    """The names of ModelCheckpoint; a name that was taken before gets a version."""
    below = ("version_3", "checkpoints")
    for name in ("epoch=0-step=2.ckpt", "epoch=1-step=10.ckpt", "last.ckpt"):
        shutil.copytree(sample("lightning_dist")[0], t.at("run", *below, name))
    for asked, name in (("2", "epoch=0-step=2.ckpt"), ("10", "epoch=1-step=10.ckpt"), ("latest", "epoch=1-step=10.ckpt"), ("last.ckpt", "last.ckpt")):
        need(t.text("inspect", t.at("run"), "--step", asked).splitlines()[1].endswith("/" + name), asked)
    os.rename(t.at("run", *below, "last.ckpt"), t.at("run", *below, "epoch=1-step=10-v1.ckpt"))
    need("matches 2 checkpoints" in t.run("inspect", t.at("run"), "--step", "latest", status=2).stderr.decode(), "both are of step 10")


@test
def test_a_step_that_is_one_file_of_lightning_is_found(t):
    """One process writes a torch.save file per step, and last.ckpt on request."""
    below = ("version_3", "checkpoints")
    os.makedirs(t.at("run", *below))
    names = ("epoch=0-step=2.ckpt", "epoch=1-step=10.ckpt", "last.ckpt")
    for name, stands in zip(names, ("torch_plain", "torch_views", "torch_storages")):
        path = sample(stands)[0]
        shutil.copy(os.path.join(path, os.listdir(path)[0]) if os.path.isdir(path) else path, t.at("run", *below, name))
    for path in (t.at("run"), t.at("run", *below)):
        for asked, name in (("2", names[0]), ("10", names[1]), ("latest", names[1]), *((n, n) for n in names)):
            alone = t.json("inspect", t.at("run", *below, name), "--json", "--hash", "sha256")
            need(tensors(t.json("inspect", path, "--step", asked, "--json", "--hash", "sha256")) == tensors(alone), f"{path}: {asked}")
            need(t.text("inspect", path, "--step", asked).splitlines()[1].endswith(name), "the head names it")
        message = t.run("inspect", path, "--step", "3" if path != t.at("run") else "7", status=2).stderr.decode()
        need("there is no step" in message and all(n in message for n in names[:2]), message)
    t.run("convert", t.at("run"), t.at("out.pt"), "--to", "torch", "--step", "latest")
    t.run("diff", t.at("out.pt"), t.at("run", *below, names[1]), "--values")
    with open(t.at("plan.json"), "w") as f:
        json.dump(t.json("plan", t.at("run"), "--step", "2", "--mesh", "dp=2", "--placements", "replicate", "--to", "torch", "--json"), f)
    t.run("exec", t.at("plan.json"), t.at("planned"))
    shutil.copy(t.at("run", *below, names[1]), t.at("run", *below, "epoch=1-step=10-v1.ckpt"))
    need("matches 2 files" in t.run("inspect", t.at("run"), "--step", "latest", status=2).stderr.decode(), "both are of step 10")


@test
def test_the_latest_of_a_directory_that_is_a_checkpoint_is_itself(t):
    for path in (sample("dcp_fsdp2")[0], golden("trainer")[0], golden("lightning")[0], golden("accelerate")[0]):
        need(t.json("inspect", path, "--step", "latest", "--json")["entries"] == t.json("inspect", path, "--json")["entries"], path)
        message = t.run("inspect", path, "--step", "3", status=2).stderr.decode()
        need("there is no step '3': the directory is a checkpoint itself" in message and "leave out --step" in message, message)
    shutil.copytree(golden("trainer")[0], t.at("run"))
    shutil.copytree(golden("trainer")[0], t.at("run", "checkpoint-5"))
    need("checkpoint-5" in t.text("inspect", t.at("run"), "--step", "latest").splitlines()[1], "the last model of a run, above its steps")


@test
def test_the_same_step_of_two_models_must_be_chosen_by_its_path(t):
    for model in ("actor", "critic"):
        shutil.copytree(sample("dcp_fsdp2")[0], t.at("run", "global_step_5", model))
    message = t.run("inspect", t.at("run"), "--step", "5", status=2).stderr.decode()
    need("global_step_5/actor" in message and "global_step_5/critic" in message, message)
    t.run("inspect", t.at("run"), "--step", "global_step_5/critic")


@test
def test_a_marker_file_is_followed_and_named(t):
    path = run_of_steps(t, 1, 2, below=".")
    for marker, line, step in (("latest", "step-1", "step-1"), ("latest_checkpointed_iteration.txt", "2\n", "global_step_2")):
        with open(os.path.join(path, marker), "w") as f:
            f.write(line)
        if marker != "latest":
            os.remove(os.path.join(path, "latest"))
            os.makedirs(t.at("run", "global_step_2"))
            os.rename(t.at("run", "step-2"), t.at("run", "global_step_2", "actor"))
            step += "/actor"
        need(f"step {step}, which the file '{marker}' names" in t.text("inspect", path).splitlines()[1], t.text("inspect", path))
    with open(os.path.join(path, "latest"), "w") as f:
        f.write("step-9")
    message = t.run("inspect", path, status=2).stderr.decode()
    need("'latest' names the checkpoint 'step-9', which is not in the directory" in message, message)
    t.run("inspect", path, "--step", "1")


@test
def test_an_error_in_a_step_that_was_chosen_names_the_step(t):
    path = run_of_steps(t, 1, 2, below=".")
    os.remove(t.at("run", "step-2", ".metadata"))
    for step in ("latest", "2"):
        message = t.run("inspect", path, "--step", step, status=2).stderr.decode()
        need("'.metadata' is missing" in message and message.endswith(", in step-2\n"), message)
    need(", in" not in t.run("inspect", t.at("run", "step-2"), status=2).stderr.decode(), "there is no step to name")


@test
def test_a_marker_of_a_directory_that_may_not_be_read_says_so(t):
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        raise Skip("root can read everything, and setpriv is not installed")
    path = run_of_steps(t, 1, 2, below=".")
    with open(os.path.join(path, "latest"), "w") as f:
        f.write("step-2")
    as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    program = shutil.copy(t.path, t.at("program"))
    for directory in (t.directory, path):
        os.chmod(directory, 0o755)
    os.chmod(os.path.join(path, "step-2"), 0)
    try:
        p = subprocess.run([*as_user, program, "inspect", path], capture_output=True, text=True)
    finally:
        os.chmod(os.path.join(path, "step-2"), 0o755)
    need(p.returncode == 2 and "'latest' names the checkpoint 'step-2': " in p.stderr and "Permission denied" in p.stderr, p.stderr)


@test
def test_directories_of_several_nodes_are_one_checkpoint(t):
    whole = sample("dcp_fsdp2")[0]
    files = sorted(os.listdir(whole))
    data = [f for f in files if f.endswith(".distcp")]
    for node, kept in (("a", [".metadata", data[0]]), ("b", data[1:])):
        os.makedirs(t.at(node))
        for name in kept:
            shutil.copy(os.path.join(whole, name), t.at(node, name))
    need(data[1] in t.run("convert", t.at("a"), t.at("x.pt"), "--to", "torch", status=2).stderr.decode(), "one node alone lacks files")
    t.run("validate", t.at("a"), "--also", t.at("b"), "--deep")
    t.run("diff", t.at("a"), whole, "--also", t.at("b"), "--values")
    t.run("validate", t.at("a"), "--also", t.at("b"), "--against", whole)
    shutil.copy(os.path.join(whole, data[0]), t.at("b"))
    t.run("validate", t.at("a"), "--also", t.at("b"))
    with open(t.at("b", data[0]), "r+b") as f:
        f.seek(40)
        byte = f.read(1)
        f.seek(40)
        f.write(bytes([byte[0] ^ 1]))
    for command in (["inspect", t.at("a")], ["convert", t.at("a"), t.at("y.pt"), "--to", "torch"]):
        message = t.run(*command, "--also", t.at("b"), status=2).stderr.decode()
        need(data[0] in message and "different bytes" in message, message)
    need("is a file" in t.run("inspect", t.at("a"), "--also", t.at("a", ".metadata"), status=2).stderr.decode(), "directories only")


@test
def test_what_is_left_out_is_named_with_the_tool_that_reads_it(t):
    member = lambda name: b"PK\3\4" + bytes(22) + struct.pack("<HH", len(name), 0) + name + bytes(40)
    for name, data, tool in (("m.gguf", b"GGUF\3\0\0\0" + bytes(40), "llama.cpp"), ("m.h5", b"\x89HDF\r\n\x1a\n" + bytes(40), "keras"),
                             ("m.npz", member(b"w.npy"), "numpy.load"), ("m.keras", member(b"metadata.json"), "keras.models.load_model"),
                             ("m.nemo", b"\x1f\x8b" + bytes(400), "NeMo"), ("m.onnx", b"\x08\x07\x12\x07pytorch", "onnx.load"),
                             ("n.onnx", b"\x08\x0a:\x10\x12\x02gr" + bytes(8), "onnx.load"), ("m.tensors", b"|TZR|\r\n\x1a\n" + bytes(40), "TensorDeserializer"),
                             ("m.znn", b"ZN\0\5" + bytes(40), "ZipNN")):
        with open(t.at(name), "wb") as f:
            f.write(data)
        message = t.run("inspect", t.at(name), status=2).stderr.decode()
        need(tool in message and message.count("\n") == 1, message)
    for name, tool in (("_CHECKPOINT_METADATA", "orbax.checkpoint"), (".zgroup", "zarr"), (".snapshot_metadata", "torchsnapshot.Snapshot")):
        os.makedirs(t.at("d" + name, "array"))
        for path in (name, "array/0"):
            with open(t.at("d" + name, path), "w") as f:
                f.write("{}")
        need(tool in t.run("inspect", t.at("d" + name), status=2).stderr.decode(), name)


FOREIGN = {
    "TensorDeserializer": ("tensorizer", "tensorizer/model.tensors"), "zipnn": ("zipnn", "zipnn/model.safetensors.znn"),
    "onnx.load": ("onnx", "onnx/model.onnx", "onnx/model.onnx_data"), "DFloat11Model": ("dfloat11", "dfloat11/model.safetensors"),
    "orbax.checkpoint": ("orbax/database", "orbax/database/_METADATA", "orbax/database/_CHECKPOINT_METADATA", "orbax/database/manifest.ocdbt", "orbax/database/ocdbt.process_0",
                         "orbax/database/d", "orbax/arrays", "orbax/arrays/_METADATA", "tensorstore", "tensorstore/manifest.ocdbt"),
    "the Python package zarr": ("zarr/array", "zarr/array/zarr.json", "zarr/array.zip", "orbax/arrays/params.weight", "megatron/iter_0000003/weight", "megatron/iter_0000003/weight/.zarray"),
    "torchsnapshot.Snapshot": ("torchsnapshot", "torchsnapshot/.snapshot_metadata"), "LocalCheckpointManager": ("nvidia_resiliency/0", "nvidia_resiliency/0/iter_0000010_0_local.pt"),
    "paddle.distributed.load_state_dict": ("paddle",), "Megatron-Core that still has this format": ("megatron", "megatron/iter_0000003")}


@test
def test_formats_of_other_libraries_are_named_by_every_command_that_reads_values(t):
    """What these libraries wrote (tests/golden/make_foreign.py): directories, and what they consist of by its own path."""
    for tool, paths in FOREIGN.items():
        for path in (os.path.join(ROOT, "tests", "golden", "foreign", path) for path in paths):
            for command in (["inspect", path], ["validate", path], ["convert", path, t.at("out.safetensors")], ["manifest", path], ["diff", path, path, "--values"],
                            ["merge", t.at("out.safetensors"), path], ["get", path, "weight"], ["repair", path, t.at("new")]):
                message = t.run(*command, status=2).stderr.decode()
                need(tool in message and not os.path.exists(t.at("out.safetensors")), f"{command[0]} {path}: {message}")


@test
def test_directories_that_look_like_those_of_other_libraries_open(t):
    """Files of these names next to a model, and PyTorch's own checkpoints next to a file that is named as Paddle's."""
    for name in ("_METADATA", "zarr.json", ".zgroup", "manifest.ocdbt", "0.metadata"):
        os.makedirs(t.at("model" + name))
        shutil.copy(sample("safetensors_model")[0], t.at("model" + name, "model.safetensors"))
        for path in (t.at("model" + name), shutil.copytree(sample("dcp_small")[0], t.at("dcp" + name))):
            with open(os.path.join(path, name), "w") as f:
                f.write("{}")
            t.run("manifest", path)


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


def write_index(t, directory, files):
    os.makedirs(t.at(directory), exist_ok=True)
    with open(os.path.join(t.at(directory), "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": 8 * len(files)}, "weight_map": {f"w{i}": file for i, file in enumerate(files)}}, f)


def value_of(t, path, name="w0", *more):
    return t.run("get", path, name, "--print", *more).stdout.decode()


@test
def test_an_index_that_save_pretrained_left_does_not_hide_the_model(t):
    """transformers 5.23 writes one file where the model fits, keeps an older index, and loads the file (from_pretrained)."""
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    write_index(t, "old", shards)
    st_write(os.path.join(t.at("old"), "model.safetensors"), {"w0": ("F32", [2], floats(1.5, 2.5)), "w1": ("F32", [2], floats(3, 4))})
    found = [f for f in t.json("validate", t.at("old"), "--deep", "--json")["findings"] if f["level"] != "note"]
    need([(f["rule"], f["level"], f["file"]) for f in found] == [("index/other-model", "warning", "model.safetensors.index.json")], found)
    need(t.json("inspect", t.at("old"), "--json")["format"] == "safetensors" and "1.5" in value_of(t, t.at("old")), "the file is the model")
    t.run("convert", t.at("old"), t.at("x.pt"), "--to", "torch")
    index = os.path.join(t.at("old"), "model.safetensors.index.json")  # by its own path, it is what the user asked for
    need(shards[0] in t.run("get", index, "w0", "--print", status=2).stderr.decode(), "an index that was named")


FORMS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def write_form(t, path, form):
    """Writes a model of one tensor in one of the forms that transformers tries, in this order; its value says which it is."""
    value = FORMS.index(form) + 1.5
    file = form.removesuffix(".index.json").replace(".", "-00001-of-00001.", 1) if form.endswith(".json") else form
    st_write(t.at("value.safetensors"), {"w0": ("F32", [2], floats(value, 0))})
    t.run("convert", t.at("value.safetensors"), t.at("value.bin"), "--to", "torch", "--overwrite")
    shutil.copy(t.at("value.bin" if ".bin" in file else "value.safetensors"), os.path.join(path, file))
    if form.endswith(".json"):
        with open(os.path.join(path, form), "w") as f:
            json.dump({"metadata": {"total_size": 8}, "weight_map": {"w0": file}}, f)
    return value, [form] + ([file] if file != form else [])


@test
def test_the_model_that_transformers_loads_is_read_and_the_others_are_named(t):
    """_get_resolved_checkpoint_files of transformers tries the forms in this order."""
    for bits in range(1, 1 << len(FORMS)):
        path = t.at(f"forms-{bits}")
        os.mkdir(path)
        open(os.path.join(path, "config.json"), "w").write("{}")
        there = [write_form(t, path, form) for i, form in enumerate(FORMS) if bits >> i & 1]
        others = {file for _, files in there[1:] for file in files}
        read = t.run("get", path, "w0", "--print")
        need(str(there[0][0]) in read.stdout.decode(), f"{bits:04b}: {read.stdout}")
        found = [f for f in t.json("validate", path, "--deep", "--json")["findings"] if f["level"] == "warning"]
        need(all(f["rule"] in ("index/other-model", "index/unreferenced-file") for f in found) and bool(found) == bool(others), f"{bits:04b}: {found}")
        for command in (("get", path, "w0", "--print"), ("diff", path, path), ("manifest", path), ("merge", t.at("out.safetensors"), path, "--method", "linear", "--overwrite"),
                        ("convert", path, t.at("out.pt"), "--to", "torch", "--rename", "w=v", "--overwrite"), ("plan", path, "--mesh", "dp=2", "--placements", "shard(0)")):
            said = t.run(*command).stderr.decode()
            need(all(f"'{file}'" in said for file in others), f"{bits:04b}: {command[0]} does not name {others}: {said}")
            need(others or "not read" not in said, f"{bits:04b}: {command[0]} names files without reason: {said}")


@test
def test_the_model_that_diffusers_and_peft_load_is_read_and_variants_are_named(t):
    """Which file counts was tried with from_pretrained of diffusers 0.42 and load_peft_weights of PEFT 0.21. Each case: the files in order of
    creation, and the one that is read; the value says which."""
    d, shards = "diffusion_pytorch_model", "-00001-of-00002"
    for n, (files, want) in enumerate((
            ([f"{d}.safetensors", f"{d}.fp16.safetensors", f"{d}.bin"], 0), ([f"{d}.non_ema.bin", f"{d}.bin"], 1), ([f"{d}.bin", f"{d}.safetensors"], 1),
            ([f"{d}.safetensors", f"{d}.fp16{shards}.safetensors", f"{d}{shards}.safetensors"], 0), (["model.fp16.safetensors", "model.safetensors"], 1),
            (["pytorch_model.fp16.bin", "pytorch_model.bin"], 1), (["adapter_model.bin", "adapter_model.safetensors"], 1))):
        path = t.at(f"library-{n}")
        os.mkdir(path)
        for i, file in enumerate(files):
            st_write(t.at("value.safetensors"), {"w0": ("F32", [2], floats(i + 1.5, 0))})
            t.run("convert", t.at("value.safetensors"), os.path.join(path, file), "--to", "torch" if file.endswith(".bin") else "safetensors")
        said = t.run("get", path, "w0", "--print")
        need(f"{want + 1.5}" in said.stdout.decode(), f"{files}: {said.stdout}")
        need(all((f"'{file}'" in said.stderr.decode().split("not read:")[1]) == (i != want) for i, file in enumerate(files)), f"{files}: {said.stderr}")
    path = t.at("sharded")
    os.mkdir(path)
    for i, file in enumerate((f"{d}.safetensors", f"{d}{shards}.safetensors")):
        st_write(os.path.join(path, file), {"w0": ("F32", [2], floats(i + 1.5, 0))})
    with open(os.path.join(path, f"{d}.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": 8}, "weight_map": {"w0": f"{d}{shards}.safetensors"}}, f)
    said = t.run("get", path, "w0", "--print")
    need("2.5" in said.stdout.decode() and "transformers" not in said.stderr.decode() and f"'{d}.safetensors'" in said.stderr.decode(), said)
    for i, file in enumerate(("model.safetensors", "other.safetensors")):  # not a variant: both are read
        os.makedirs(t.at("two"), exist_ok=True)
        st_write(os.path.join(t.at("two"), file), {f"w{i}": ("F32", [2], floats(i + 1.5, 0))})
    need(list(rows(t.json("inspect", t.at("two"), "--json"))) == ["w0", "w1"], "two files of one model")


@test
def test_indexes_of_variants(t):
    """save_pretrained(variant="fp16") of transformers 5.24 and diffusers 0.42 writes model.safetensors.index.fp16.json."""
    for stem, ending in (("model", "safetensors"), ("diffusion_pytorch_model", "safetensors"), ("pytorch_model", "bin")):
        path, variant = t.at(stem), f"{stem}.{ending}.index.fp16.json"
        os.mkdir(path)
        shards = [f"{stem}.fp16-0000{i + 1}-of-00002.{ending}" for i in range(2)]
        for i, file in enumerate(shards):
            st_write(t.at("value.safetensors"), {f"w{i}": ("F32", [2], floats(i + 1.5, 0))})
            t.run("convert", t.at("value.safetensors"), os.path.join(path, file), "--to", "torch" if ending == "bin" else "safetensors")
        with open(os.path.join(path, variant), "w") as f:
            json.dump({"metadata": {"total_size": 16}, "weight_map": {f"w{i}": file for i, file in enumerate(shards)}}, f)
        need(t.json("inspect", path, "--json")["format"] == ("torch-index" if ending == "bin" else "safetensors-index"), f"{stem}: not its index")
        found = t.json("validate", path, "--deep", "--json")["findings"]
        need(not found, f"{stem}: {found}")
        st_write(t.at("value.safetensors"), {"w0": ("F32", [2], floats(7.5, 0)), "w1": ("F32", [2], floats(8.5, 0))})
        t.run("convert", t.at("value.safetensors"), os.path.join(path, f"{stem}.{ending}"), "--to", "torch" if ending == "bin" else "safetensors")
        found = t.json("validate", path, "--json")["findings"]
        need("7.5" in value_of(t, path) and [f["rule"] for f in found] == ["index/other-model"] and f"'{variant}'" in found[0]["message"], f"{stem}: {found}")
        os.remove(os.path.join(path, f"{stem}.{ending}"))
        os.remove(os.path.join(path, shards[1]))
        found = t.json("validate", path, "--json", status=1)["findings"]
        need([f["rule"] for f in found] == ["index/missing-file"] and shards[1] in found[0]["message"], f"{stem}: {found}")


@test
def test_other_forms_of_a_model_in_one_file_are_no_part_of_it(t):
    """Mistral's repositories have consolidated.safetensors, with other names, next to the model."""
    path = t.at("mistral")
    os.mkdir(path)
    for file, name in (("model.safetensors", "w0"), ("consolidated.safetensors", "tok.weight"), ("model-00001-of-00002.safetensors", "w0")):
        st_write(os.path.join(path, file), {name: ("F32", [2], floats(1.5 + len(name), 0))})
    need(list(rows(t.json("inspect", path, "--json"))) == ["w0"] and "3.5" in value_of(t, path), "only the model")
    found = [f for f in t.json("validate", path, "--json")["findings"] if f["level"] != "note"]
    need([f["rule"] for f in found] == ["index/other-model"] and "'consolidated.safetensors'" in found[0]["message"], found)
    os.remove(os.path.join(path, "consolidated.safetensors"))
    os.rename(os.path.join(path, "model-00001-of-00002.safetensors"), os.path.join(path, "extra.safetensors"))
    need("two entries have the name 'w0'" in t.run("inspect", path, status=2).stderr.decode(), "a file that nothing explains is not passed over")


@test
def test_a_lone_shard_is_called_one_of_several(t):
    several = ("model-00001-of-00003.safetensors", "pytorch_model-00002-of-00002.bin", "shard-00002-model-00002-of-00002.safetensors",
               "model_world_size_4_rank_0.pt", "consolidated-00007-of-00010.safetensors")
    whole = ("model-00001-of-00001.safetensors", "model.safetensors", "pytorch_model-00001-of-00001.bin", "model-00004-of-00003.safetensors",
             "best-of-3.safetensors", "2-of-a-kind.safetensors", "model_world_size_1_rank_0.pt")
    st_write(t.at("value.safetensors"), {"w0": ("F32", [2], floats(1.5, 0))})
    t.run("convert", t.at("value.safetensors"), t.at("value.pt"), "--to", "torch")
    for name in several + whole:
        os.makedirs(t.at("shards"), exist_ok=True)
        path = t.at("shards", name)
        shutil.copy(t.at("value.safetensors" if name.endswith(".safetensors") else "value.pt"), path)
        found = t.json("validate", path, "--json")["findings"]
        need([(f["rule"], f["level"]) for f in found if f["level"] != "note"] == [("parts/one-of-several", "warning")] * (name in several), (name, found))
        for command in (("get", path, "w0", "--print"), ("diff", path, path), ("convert", path, t.at("out.safetensors"), "--overwrite")):
            need((b"one-of-several" in t.run(*command).stderr) == (name in several), (name, command[0]))
        os.remove(path)


@test
def test_what_else_is_next_to_the_model_of_a_trainer_is_named(t):
    path, _ = golden("trainer")
    shutil.copytree(path, t.at("run"))
    need(not any(f["rule"] == "parts/left-out" for f in t.json("validate", t.at("run"), "--json")["findings"]), "nothing is left out")
    write_index(t, "run", ["model-00001-of-00001.safetensors"])
    st_write(os.path.join(t.at("run"), "model-00001-of-00001.safetensors"), {"w0": ("F32", [2], floats(1, 2))})
    shutil.copytree(path, os.path.join(t.at("run"), "checkpoint-2"))
    found = [f["message"] for f in t.json("validate", t.at("run"), "--json")["findings"] if f["rule"] == "parts/left-out"]
    need(len(found) == 1 and "model-00001-of-00001.safetensors" in found[0] and "model.safetensors.index.json" in found[0], found)
    need("checkpoint-2" not in found[0], "an earlier step is a checkpoint of its own")


@test
def test_a_later_step_without_a_checkpoint_is_named(t):
    path, _ = golden("trainer")
    for step in (2, 4, 6):
        shutil.copytree(path, os.path.join(t.at("run"), f"checkpoint-{step}"))
    asked = ("validate", t.at("run"), "--step", "latest", "--json")
    need(not [f for f in t.json(*asked)["findings"] if f["rule"] == "parts/incomplete-save"], "the newest is whole")
    for file in os.listdir(os.path.join(t.at("run"), "checkpoint-6")):
        if file != "config.json":
            os.remove(os.path.join(t.at("run"), "checkpoint-6", file))
    with open(os.path.join(t.at("run"), "checkpoint-6", "config.json"), "w") as f:
        f.write("{}")
    os.makedirs(os.path.join(t.at("run"), "runs", "host99"))  # the Trainer's logs, named after the machine
    with open(os.path.join(t.at("run"), "runs", "host99", "events.out"), "w") as f:
        f.write("x")
    found = [f for f in t.json(*asked)["findings"] if f["rule"] == "parts/incomplete-save"]
    need(len(found) == 1 and found[0]["level"] == "warning" and "'checkpoint-4' is the newest" in found[0]["message"], found)
    need("'checkpoint-6'" in found[0]["message"] and "host99" not in found[0]["message"], found)
    need(not [f for f in t.json("validate", t.at("run"), "--step", "4", "--json")["findings"] if f["rule"] == "parts/incomplete-save"], "it was asked for")


@test
def test_a_scheduler_without_its_optimizer_is_a_warning(t):
    for name, file in (("trainer", "optimizer.pt"), ("accelerate_fsdp_sharded", None)):
        path, _ = golden(name)
        shutil.copytree(path, t.at(name))
        need(not [f for f in t.json("validate", t.at(name), "--json")["findings"] if f["rule"] == "parts/incomplete-save"], name)
        for entry in os.listdir(t.at(name)):
            if entry == file:
                os.remove(os.path.join(t.at(name), entry))
            elif file is None and entry.startswith("optimizer"):
                shutil.rmtree(os.path.join(t.at(name), entry))
        found = [f for f in t.json("validate", t.at(name), "--json")["findings"] if f["rule"] == "parts/incomplete-save"]
        need(len(found) == 1 and found[0]["level"] == "warning" and found[0]["file"].startswith("scheduler."), found)
        need(not [f for f in t.json("validate", t.at(name), "--json", "--part", "model")["findings"] if f["rule"] == "parts/incomplete-save"], "the model is whole")


def made_of(t, place, parts, files, format, own=None):
    """Makes a directory with PyTorch's DCPs in `parts` ({directory: part}), and checks that it opens as these parts."""
    root, source = t.at(place), {}
    for directory, name in parts.items():
        shutil.copytree(sample(name)[0], os.path.join(root, directory))
    for name, content in files.items():
        os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
        if os.path.isfile(str(content)):
            shutil.copy(content, os.path.join(root, name))
        else:
            with open(os.path.join(root, name), "w") as f:
                f.write(content)
    for directory, name in parts.items():
        part = {"weights": "model"}.get(directory, directory)
        source[part] = tensors(t.json("inspect", sample(name)[0], "--json", "--hash", "sha256"))
    whole = t.json("inspect", root, "--json", "--hash", "sha256")
    need(whole["format"] == format, whole["format"])
    found = tensors(whole)
    for part, want in source.items():
        need(want and all(found.get(fqn if part == own else f"{part}.{fqn}") == entry for fqn, entry in want.items()), f"{part} is not what PyTorch saved")
        if part != own:
            need(tensors(t.json("inspect", root, "--json", "--hash", "sha256", "--part", part)) == want, f"--part {part}")
    need(not [f for f in t.json("validate", root, "--deep", "--json", status=(0, 1))["findings"] if f["level"] == "error"], "a healthy directory has errors")
    t.run("diff", root, root, "--values")
    return root


@test
def directories_of_dcps_open_as_parts(t):
    """NeMo 2, Automodel, OLMo-core and prime-rl put DCPs into directories of their own, with what else belongs to the step."""
    state = sample("torch_alignment")[0]
    made_of(t, "nemo", {"weights": "dcp_fsdp2"}, {"context/io.json": '{"epoch": 3}', "context/model.yaml": "a: 1"}, "nemo")
    automodel = made_of(t, "epoch_0_step_30", {"model": "dcp_fsdp2", "optim": "dcp_tp_fsdp2"}, {"config.yaml": "a: 1", "rng/rng_dp_rank_0.pt": state}, "automodel")
    names = {p["name"] for p in t.json("inspect", automodel, "--json")["summary"]["parts"]}
    need(names == {"model", "optim", "rng"}, names)
    shards = {"model/consolidate.sh": "#!/usr/bin/env bash", "losses.json": "{}", **{f"rng/rng_global_rank_{r}.pt": state for r in (0, 1)}}  # as of 0.7
    automodel = made_of(t, "epoch_0_step_40", {"model": "dcp_hf_sharded", "optim": "dcp_tp_fsdp2"}, shards, "automodel")
    need(any(fqn.startswith("rng.rank_1.") for fqn in rows(t.json("inspect", automodel, "--json"))), "the state of the second rank is not listed")
    olmo = made_of(t, "step250", {"model_and_optim": "dcp_fsdp2"}, {"train/rank0.pt": state, "train/rank1.pt": state, "config.json": "{}", ".metadata.json": "{}"}, "olmo-core", own="model_and_optim")
    need(any(fqn.startswith("train.rank_1.") for fqn in rows(t.json("inspect", olmo, "--json"))), "the state of the second rank is not listed")
    made_of(t, "step251", {"model_and_optim": "dcp_fsdp2"}, {"config.json": "{}"}, "olmo-core", own="model_and_optim")  # a model, not a step
    made_of(t, "step_7", {"trainer": "dcp_fsdp2"}, {"orchestrator/progress.pt": state}, "prime-rl")


@test
def pipelines_of_diffusers_open_as_parts(t):
    """The models that model_index.json names, as one file, as shards or in a variant; what has no weights is not a part. Layout of diffusers 0.42.1's save_pretrained."""
    components = {"unet": "safetensors_index", "transformer_2": "safetensors_model", "text_encoder": "safetensors_model"}
    index = {"_class_name": "StableDiffusionPipeline", "_diffusers_version": "0.42.1", "feature_extractor": [None, None], "requires_safety_checker": False, "scheduler": ["diffusers", "DDIMScheduler"],
             "tokenizer": ["transformers", "CLIPTokenizer"], **{name: ["diffusers", "Model"] for name in components}}

    def place(where, **files):
        root = t.at(where)
        for name, source in components.items():
            found = sample(source)[0]
            if found.endswith(".json"):
                shutil.copytree(os.path.dirname(found), os.path.join(root, name))
            else:
                os.makedirs(os.path.join(root, name))
                shutil.copy(found, os.path.join(root, name, "diffusion_pytorch_model.safetensors"))
        for name, text in {"model_index.json": json.dumps(index), "scheduler/scheduler_config.json": "{}", "tokenizer/vocab.json": "{}", **files}.items():
            os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
            with open(os.path.join(root, name), "w") as f:
                f.write(text)
        return root

    root = place("pipeline")
    doc = t.json("inspect", root, "--json")
    need(doc["format"] == "diffusers" and {p["name"] for p in doc["summary"]["parts"]} == set(components), doc["summary"])
    findings = t.json("validate", root, "--deep", "--json")["findings"]
    need({f["rule"] for f in findings} <= {"safetensors/metadata-differs"}, findings)  # of the samples
    for name in components:
        t.run("diff", root, "--part", name, os.path.join(root, name), "--values")
    lacks = place("lacks", **{"vae/config.json": "{}", "model_index.json": json.dumps({**index, "vae": ["diffusers", "AutoencoderKL"]})})
    findings = t.json("validate", lacks, "--json", status=1)["findings"]
    need(findings[0]["rule"] == "parts/incomplete-save" and "the model 'vae'" in findings[0]["message"], findings)
    t.run("convert", lacks, t.at("out"), "--to", "dcp", status=2)
    for name in ("other", "broken"):
        root = place(name, **{"model_index.json": "{}" if name == "other" else "{"})
        need(b"several checkpoints" in t.run("inspect", root, status=2).stderr, "a directory that only has such a file")


@test
def a_part_has_its_own_config(t):
    """The one nearest to its files, and not that of another model: of a pipeline, of sentence-transformers, of what verl and Automodel keep next to
    their ranks' files."""
    def write(name, text):
        os.makedirs(os.path.dirname(t.at(name)), exist_ok=True)
        with open(t.at(name), "w") as f:
            f.write(text)

    def need_config(root, part, want):
        args = ("convert", t.at(root), t.at("out", "model.safetensors"), "--config", "--objects", "drop", *(("--part", part) if part else ()))
        shutil.rmtree(t.at("out"), ignore_errors=True)
        os.makedirs(t.at("out"))
        p = t.run(*args, status=0 if want else 2)
        if not want:
            need(b"there is no config.json" in p.stderr and not os.listdir(t.at("out")), p.stderr)
            return
        with open(t.at("out", "config.json")) as f:
            need(f.read() == want, f"{root}, {part}: another config.json")

    config = lambda name: json.dumps({"model_type": name})
    for name in ("unet", "vae", "text_encoder"):
        os.makedirs(t.at("pipeline", name))
        st_write(t.at("pipeline", name, "model.safetensors"), {"w": ("F32", [1], struct.pack("<f", len(name)))})
    write("pipeline/model_index.json", json.dumps({name: ["diffusers", "Model"] for name in ("unet", "vae", "text_encoder")}))
    write("pipeline/config.json", config("pipeline"))  # of no part
    for name in ("unet", "text_encoder"):
        write(f"pipeline/{name}/config.json", config(name))
        need_config("pipeline", name, config(name))
    need_config("pipeline", "vae", None)
    shutil.copytree(os.path.join(ROOT, "tests", "golden", "sentence_transformers", "dense"), t.at("dense"))
    for part, name in (("0_Transformer", "config.json"), ("2_Dense", "2_Dense/config.json")):
        with open(t.at("dense", name)) as f:
            need_config("dense", part, f.read())
    os.remove(t.at("dense/2_Dense/config.json"))
    need_config("dense", "2_Dense", None)
    shutil.copytree(os.path.join(DIRECTORIES, "accelerate_fsdp_sharded"), t.at("accelerate"))
    write("accelerate/config.json", config("accelerate"))
    need_config("accelerate", "model", config("accelerate"))
    files = sorted(os.listdir(sample("torch_ranks_fsdp2")[0]))
    os.makedirs(t.at("verl"))
    for rank, file in enumerate(files):
        for kind in ("model", "extra_state"):
            shutil.copy(os.path.join(sample("torch_ranks_fsdp2")[0], file), t.at("verl", f"{kind}_world_size_{len(files)}_rank_{rank}.pt"))
    write("verl/huggingface/config.json", config("verl"))
    need_config("verl", "model", config("verl"))
    shutil.copytree(sample("dcp_fsdp2")[0], t.at("automodel"))  # the directory `model` of a step
    write("automodel/.hf_metadata/config.json", config("automodel"))
    need_config("automodel", None, config("automodel"))


@test
def models_of_sentence_transformers_open_as_parts(t):
    """tests/golden/make_sentence_transformers.py. A model of one module in the root is a model like any other."""
    root = os.path.join(ROOT, "tests", "golden", "sentence_transformers")
    with open(os.path.join(root, "expect.json")) as f:
        expect = json.load(f)
    for name, parts in expect.items():
        path = os.path.join(root, name)
        doc = t.json("inspect", path, "--json", "--hash", "sha256")
        want = {"plain": "safetensors", "trained": "hf-trainer"}.get(name, "sentence-transformers")
        need(doc["format"] == want, f"{name}: {doc['format']}")
        got = {k: [e["dtype"], e["shape"], e["sha256"]] for k, e in tensors(doc).items()}
        flat = {f"{part}.{k}" if part else k: v for part, listed in parts.items() for k, v in listed.items()}
        of_model = {k: v for k, v in got.items() if k.split(".")[0] in parts or not parts.get("model")}
        need(of_model == flat, f"{name}: {set(of_model) ^ set(flat)}")
        findings = [f for f in t.json("validate", path, "--deep", "--json")["findings"] if f["level"] != "note"]
        need(not findings or name == "trained" and {f["rule"] for f in findings} <= {"pickle/unlisted-class"}, f"{name}: {findings}")
    t.run("convert", os.path.join(root, "dense"), t.at("word.safetensors"), "--part", "0_Transformer")
    t.run("diff", t.at("word.safetensors"), os.path.join(root, "dense", "model.safetensors"), "--values")
    t.run("convert", os.path.join(root, "router"), t.at("routed"), "--to", "safetensors")
    need(sorted(os.listdir(t.at("routed"))) == sorted(f"{p}.safetensors" for p in expect["router"]), os.listdir(t.at("routed")))
    for place, lost in (("dense", "2_Dense"), ("old", "0_Transformer"), ("router", "document_0_Transformer")):
        shutil.copytree(os.path.join(root, place), t.at(place))
        os.remove(os.path.join(t.at(place), lost, "model.safetensors"))
        findings = t.json("validate", t.at(place), "--json", status=1)["findings"]
        need([f["rule"] for f in findings if f["level"] == "error"] == ["parts/incomplete-save"] and f"'{lost}'" in findings[0]["message"], findings)
        t.run("convert", t.at(place), t.at("out"), "--to", "dcp", status=2)
    with open(t.at("dense", "modules.json"), "w") as f:
        f.write("{")
    shutil.copy(os.path.join(root, "dense", "2_Dense", "model.safetensors"), t.at("dense", "2_Dense"))
    need(t.json("inspect", t.at("dense"), "--json")["format"] == "safetensors", "a document that is not a list of modules")


@test
def a_step_that_olmo_core_saved_is_read(t):
    """tests/golden/make_olmo_core.py. Its storage writer describes where items are by a class of its own, of the same fields."""
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "olmo_core")
    step = os.path.join(root, "step10")
    doc = t.json("inspect", step, "--json")
    need(doc["format"] == "olmo-core" and {p["name"] for p in doc["summary"]["parts"]} == {"", "train"}, doc["summary"])
    need(not t.json("validate", step, "--deep", "--json")["findings"], "a healthy step has findings")
    need(t.run("latest", root).stdout.decode().strip() == step, "another step")
    need("step10 (olmo-core)" in t.run("inspect", root, status=2).stderr.decode(), "the directory above")
    for i, (name, shape) in enumerate({"0.weight": (5, 3), "0.bias": (5,), "1.weight": (4, 5), "1.bias": (4,)}.items()):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        shown = t.run("get", step, f"model.{name}", "--print").stdout.decode()
        need([float(x) for x in shown.replace("[", " ").replace("]", " ").split()] == [100 * i + k for k in range(count)], shown)


@test
def a_step_that_nemo_saved_is_read(t):
    """tests/golden/make_nemo.py: NeMo writes the weights by Megatron-Core, with `module.` before the names, which the Megatron maps take."""
    golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")
    step = os.path.join(golden, "nemo", "model_name=0--val_loss=1.25-step=7-consumed_samples=56.0")
    doc = t.json("inspect", step, "--json")
    need(doc["format"] == "nemo" and {p["name"]: p["format"] for p in doc["summary"]["parts"]} == {"model": "megatron-dist", "context": "json"}, doc["summary"])
    need(not t.json("validate", step, "--deep", "--json")["findings"], "a healthy step has findings")
    need(t.run("latest", os.path.dirname(step)).stdout.decode().strip() == step, "another step")
    need(t.run("get", step, "model.common.lr_schedulers.0.last_epoch", "--print").stdout == b"7\n" and "context.root.key" in rows(doc), "the objects of the step")
    hf = os.path.join(golden, "megatron_maps", "llama", "hf")
    shutil.copytree(step, t.at("step"))
    shutil.copy(os.path.join(hf, "config.json"), t.at("step"))  # NeMo writes none, and the map needs the size of the vocabulary
    t.run("convert", t.at("step"), t.at("hf.safetensors"), "--part", "model", "--map", "megatron-llama")
    t.run("diff", t.at("hf.safetensors"), os.path.join(hf, "model.safetensors"), "--values")


@test
def directories_of_dcps_that_only_look_alike(t):
    """Directories with such names, but without what else the frameworks write, are several checkpoints, as before."""
    for place, directories in (("a", ("model", "optim")), ("b", ("trainer", "other")), ("c", ("weights", "more"))):
        for directory in directories:
            shutil.copytree(sample("dcp_fsdp2")[0], os.path.join(t.at(place), directory))
        p = t.run("inspect", t.at(place), status=2)
        need(b"several checkpoints" in p.stderr, p.stderr)


@test
def the_step_that_skyrl_names_is_opened(t):
    """Names of save_checkpoints in skyrl/train/trainer.py 0.3.0; the files of its ranks have the names of verl's."""
    for step, name in ((4, "torch_ranks_fsdp2"), (8, "torch_ranks_tp_fsdp2")):
        files = sorted(os.listdir(sample(name)[0]))
        os.makedirs(t.at(f"run/global_step_{step}/policy"))
        for rank, file in enumerate(files):
            for kind in ("model", "extra_state"):
                shutil.copy(os.path.join(sample(name)[0], file), t.at(f"run/global_step_{step}/policy", f"{kind}_world_size_{len(files)}_rank_{rank}.pt"))
    with open(t.at("run/latest_ckpt_global_step.txt"), "w") as f:
        f.write("4")
    doc = t.json("inspect", t.at("run"), "--json", "--part", "model", "--hash", "sha256")
    need(tensors(doc) == tensors(t.json("inspect", sample("torch_ranks_fsdp2")[0], "--json", "--hash", "sha256")), "another step was opened")


@test
def the_step_that_dlrover_names_is_opened(t):
    for step, name in ((4, "dcp_fsdp2"), (8, "dcp_tp_fsdp2"), (12, "dcp_fsdp2")):
        shutil.copytree(sample(name)[0], t.at(f"run/{step}"))
    with open(t.at("run/dlrover_latest.txt"), "w") as f:
        f.write("8")
    need(tensors(t.json("inspect", t.at("run"), "--json", "--hash", "sha256")) == tensors(t.json("inspect", sample("dcp_tp_fsdp2")[0], "--json", "--hash", "sha256")), "another step was opened")


@test
def test_damaged_files_of_ranks_are_named(t):
    """The others would be taken for all ranks. What only happens to be in the directory stays quiet."""
    source = sample("torch_ranks_fsdp1_local")[0]
    for name in ("rank0.pt", "rank3.pt"):
        for content in (b"", b"\0" * 4096, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"):
            shutil.copytree(source, t.at("ranks"))
            for other in ("rank.pt", "rank0.txt", "ranks7.json", "notes0"):
                with open(t.at("ranks", other), "wb") as f:
                    f.write(b"mine")
            t.run("validate", t.at("ranks"))
            with open(t.at("ranks", name), "wb") as f:
                f.write(content)
            found = t.json("validate", t.at("ranks"), "--json", status=1)["findings"]
            need([f["file"] for f in found if f["rule"] == "parts/incomplete-save"] == [name], found)
            need(name in t.run("convert", t.at("ranks"), t.at("out"), "--to", "dcp", status=2).stderr.decode(), "convert")
            shutil.rmtree(t.at("ranks"))
