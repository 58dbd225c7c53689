"""Directories that accelerate's save_state leaves. tests/golden/directories holds what it wrote (make_accelerate.py)."""
import os
import shutil

from harness import need, test

from test_directories import check_directory, check_part, golden, rows


def incomplete(t, path, *named):
    """validate, inspect and convert name what is missing."""
    found = [f for f in t.json("validate", path, "--json", status=1)["findings"] if f["rule"] == "parts/incomplete-save"]
    need(any(all(n in f["message"] for n in named) for f in found), f"{named}: {found}")
    need(t.json("inspect", path, "--json")["entries"], "nothing is listed")
    message = t.run("convert", path, t.at("none"), "--to", "dcp", status=2).stderr.decode()
    need(all(n in message for n in named) and not os.path.exists(t.at("none")), message)


def left_out(t, path):
    return [f["message"] for f in t.json("validate", path, "--json")["findings"] if f["rule"] == "parts/left-out"]


@test
def test_what_accelerate_saves_without_fsdp_is_read_as_it_was_saved(t):
    path, want = check_directory(t, "accelerate")
    for part in ("model", "model_1"):
        t.run("convert", path, t.at(part + ".pt"), "--part", part)
        check_part(t.json("inspect", t.at(part + ".pt"), "--json", "--hash", "sha256"), want["parts"][part])
    need(not left_out(t, path), "all files are parts")


@test
def test_models_that_accelerate_saves_in_other_forms_are_its_models(t):
    """As torch.save files (safe_serialization=False), and in shards, as save_model writes them with max_shard_size."""
    path, want = golden("accelerate")
    shutil.copytree(path, t.at("bin"), ignore=lambda _, names: [n for n in names if n.endswith(".safetensors")])
    for n, part in (("", "model"), ("_1", "model_1")):
        t.run("convert", os.path.join(path, f"model{n}.safetensors"), t.at("bin", f"pytorch_model{n}.bin"), "--to", "torch")
    shutil.copytree(path, t.at("shards"), ignore=lambda _, names: ["model.safetensors"])
    t.run("convert", os.path.join(path, "model.safetensors"), t.at("cut"), "--to", "safetensors", "--max-shard-size", "64")
    need(len(os.listdir(t.at("cut"))) > 2, os.listdir(t.at("cut")))
    for name in os.listdir(t.at("cut")):
        shutil.move(t.at("cut", name), t.at("shards", name))
    for run in ("bin", "shards"):
        whole = t.json("inspect", t.at(run), "--json", "--hash", "sha256")
        need(whole["format"] == "accelerate", whole["format"])
        for part in ("model", "model_1", "optimizer"):
            check_part(whole, want["parts"][part], part + ".")
        need(not left_out(t, t.at(run)), left_out(t, t.at(run)))


@test
def test_what_accelerate_saves_with_fsdp_is_read_as_it_was_saved(t):
    for name in ("accelerate_fsdp_full", "accelerate_fsdp_ranks"):
        path, want = check_directory(t, name)
        need(not left_out(t, path), "all files are parts")
    path, want = golden("accelerate_fsdp_sharded")
    whole = t.json("inspect", path, "--json", "--hash", "sha256")
    for part, expected in want["parts"].items():  # the names in the DCPs begin with "model." and "optimizer."
        kind = part.removesuffix("_1")
        check_part(whole, expected, f"{part}.{kind}." if kind != part else f"{part}.")
    path, want = golden("accelerate_fsdp_local")
    check_part(t.json("inspect", path, "--json", "--hash", "sha256", "--part", "optimizer"), want["parts"]["optimizer"])
    t.run("validate", path)  # each rank has its own elements of the parameters that it also lists by name
    flat = rows(t.json("inspect", path, "--json"))["model._flat_param"]
    numel = sum(a * b for a, b in [e["shape"] if len(e["shape"]) == 2 else (e["shape"][0], 1) for e in want["parts"]["model"]["entries"].values()])
    need(flat["shape"][0] >= numel and sum(c["sizes"][0] for c in flat["chunks"]) == flat["shape"][0], flat)


@test
def test_the_four_forms_of_fsdp_hold_the_same(t):
    """All of them were saved after the same steps."""
    full = golden("accelerate_fsdp_full")[0]
    for name in ("accelerate_fsdp_ranks", "accelerate_fsdp_sharded"):
        for part in ("model", "optimizer"):
            t.run("diff", golden(name)[0], full, "--part", part, "--values")


@test
def test_a_part_that_is_a_dcp_replaces_a_file(t):
    """What a DCP's own reader knows of its files is not known of the part."""
    for part in ("model", "optimizer"):
        for _ in range(2):
            t.run("convert", golden("accelerate_fsdp_sharded")[0], t.at(part + ".pt"), "--part", part, "--overwrite")
        t.run("diff", golden("accelerate_fsdp_sharded")[0], t.at(part + ".pt"), "--part", part, "--values")


@test
def test_a_rank_without_its_file_is_named(t):
    for case, file in (("accelerate_fsdp_ranks", "pytorch_model_fsdp_0_rank0.bin"), ("accelerate_fsdp_ranks", "optimizer_1_rank1.bin"),
                       ("accelerate_fsdp_local", "pytorch_model_fsdp_rank1.bin"), ("accelerate_fsdp_full", "random_states_0.pkl")):
        shutil.copytree(golden(case)[0], t.at(case, file), ignore=lambda _, names: [file])
        incomplete(t, t.at(case, file), f"'{file}'", "1 of 2 ranks")
    for case, file in (("accelerate_fsdp_sharded", "pytorch_model_fsdp_0/__1_0.distcp"), ("accelerate_fsdp_local", "optimizer_0/__0_0.distcp")):
        shutil.copytree(golden(case)[0], t.at(case + "_cut"))
        os.remove(t.at(case + "_cut", file))
        found = t.json("validate", t.at(case + "_cut"), "--json", status=1)["findings"]
        need(any(file in f["message"] or f.get("file") == file for f in found), found)
        need(file in t.run("convert", t.at(case + "_cut"), t.at("none"), "--to", "dcp", "--part", file.split("/")[0].removesuffix("_0").removeprefix("pytorch_").removesuffix("_fsdp"), status=2).stderr.decode(), file)


@test
def test_the_first_of_several_models_and_optimizers_is_missed(t):
    for name in ("model.safetensors", "optimizer.bin"):
        shutil.copytree(golden("accelerate")[0], t.at(name), ignore=lambda _, names: [name])
        found = t.json("validate", t.at(name), "--json", status=1)["findings"]
        need([f["file"] for f in found if f["rule"] == "parts/incomplete-save"] == [name], found)


@test
def test_a_rank_of_the_trainer_without_its_random_states_is_named(t):
    shutil.copytree(golden("trainer")[0], t.at("run"), ignore=lambda _, names: ["rng_state.pth"])
    for rank in (0, 1, 3):
        shutil.copy(os.path.join(golden("trainer")[0], "rng_state.pth"), t.at("run", f"rng_state_{rank}.pth"))
    incomplete(t, t.at("run"), "'rng_state_2.pth'", "1 of 4 ranks")
    t.run("convert", t.at("run"), t.at("model.pt"), "--to", "torch", "--part", "model")


@test
def test_what_is_not_a_part_of_accelerates_directory_is_named(t):
    """Programs have accelerate save models of their own below it, as diffusers does."""
    shutil.copytree(golden("accelerate")[0], t.at("run"), ignore=lambda _, names: ["model.safetensors", "model_1.safetensors"])
    os.makedirs(t.at("run", "unet"))
    shutil.copy(os.path.join(golden("accelerate")[0], "model.safetensors"), t.at("run", "unet", "diffusion_pytorch_model.safetensors"))
    shutil.copy(os.path.join(golden("accelerate")[0], "model_1.safetensors"), t.at("run", "pytorch_lora_weights.safetensors"))
    with open(t.at("run", "notes.txt"), "w") as f:
        f.write("mine")
    messages = left_out(t, t.at("run"))
    need(len(messages) == 1 and "'unet/'" in messages[0] and "'pytorch_lora_weights.safetensors'" in messages[0] and "notes" not in messages[0], messages)
    need("unet/" in t.run("convert", t.at("run"), t.at("out"), "--to", "dcp").stderr.decode(), "convert says it, too")
    check_part(t.json("inspect", t.at("run"), "--json", "--hash", "sha256"), golden("accelerate")[1]["parts"]["optimizer"], "optimizer.")
    t.run("inspect", t.at("run"), "--step", "unet")


@test
def test_what_accelerate_saves_next_to_deepspeed_is_named(t):
    path, want = golden("accelerate_deepspeed")
    whole = t.json("inspect", path, "--json", "--hash", "sha256")
    need(whole["format"] == "deepspeed", whole["format"])
    for part, expected in want["parts"].items():
        check_part(whole, expected, part + ".")
    for options in ((), ("--step", "pytorch_model")):
        messages = [f["message"] for f in t.json("validate", path, *options, "--json")["findings"] if f["rule"] == "parts/left-out"]
        need(len(messages) == 1 and all(f"'{n}'" in messages[0] for n in ("random_states_0.pkl", "random_states_1.pkl", "scheduler.bin")), messages)
    need("scheduler.bin" in t.run("convert", path, t.at("out"), "--to", "dcp").stderr.decode(), "convert says it, too")
    for options, at in ((("--part", "optim"), path), ((), os.path.join(path, "pytorch_model"))):
        need(not [f for f in t.json("validate", at, *options, "--json")["findings"] if f["rule"] == "parts/left-out"], "they were not asked for")
