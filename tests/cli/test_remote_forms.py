"""Checkpoints of training frameworks on a server without listings: they are opened by the names that their own files imply,
with few requests. The real libraries wrote the directories (tests/golden), or they have the same files with other names."""
import json
import os
import shutil

from harness import ROOT, need, sample, test
from test_addresses import entries, serving

GOLDEN = os.path.join(ROOT, "tests", "golden")
DEEPSPEED = os.path.join(GOLDEN, "deepspeed")


def names_asked(server):
    return [path.lstrip("/") for path, _, _ in server.asked]


def absent(server, root):
    """Returns the requested names that do not exist, in order."""
    return [n for n in dict.fromkeys(names_asked(server)) if not os.path.isfile(os.path.join(root, n))]


def check_same(t, root, at, misses, purpose=("validate", "--deep")):
    """The listing of the address agrees with that of the directory. `misses` are the names that may be requested in vain,
    each once."""
    local = t.json("inspect", os.path.join(root, at), "--json", "--hash", "sha256")
    with serving(root) as server:
        remote = t.json("inspect", server.url + at, "--json", "--hash", "sha256")
        need(remote["format"] == local["format"] and entries(remote) == entries(local), f"{at}: {remote['format']}, {len(remote['entries'])} entries of {len(local['entries'])}")
        need(remote["summary"].get("parts") == local["summary"].get("parts"), f"{at}: other parts")
        need(remote["findings"] == local["findings"], f"{at}: {remote['findings'][:2]}, locally {local['findings'][:2]}")
        asked = absent(server, root)
        need(set(asked) <= set(misses), f"{at}: asked for {sorted(set(asked) - set(misses))} in vain")
        need(all(names_asked(server).count(n) == 1 for n in asked), f"{at}: an absent name was asked for twice")
        t.run(*purpose, server.url + at)
    return local


FIRST = [".metadata", "model.safetensors.index.json", "pytorch_model.bin.index.json", "model.safetensors", "pytorch_model.bin"]
ZERO = ["mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt", "zero/optimizer_state.pt"]
MARKERS = ["latest", "latest_universal", "latest_checkpointed_iteration.txt"]
OTHER = FIRST + MARKERS + ZERO + ["pytorch_model_fsdp_0/.metadata", "fsdp_config.json", "pytorch_model_fsdp.bin", "random_states_0.pkl"]


def check_requests(t, at, most):
    """Listing asks once for each name that may exist but does not, and makes at most `most` requests."""
    with serving(t.directory) as server:
        t.run("inspect", server.url + at)
        asked = names_asked(server)
        need(len(asked) <= most, f"{at}: {len(asked)} requests for {len(set(asked))} names")
        lost = absent(server, t.directory)
        need(all(asked.count(n) == 1 for n in lost), f"{at}: an absent name was asked for twice")


def check_incomplete(t, path, lost):
    """validate reports an interrupted save over HTTP, and names the missing file."""
    with serving(t.directory) as server:
        found = t.json("validate", server.url + path, "--json", status=1)["findings"]
        need(any(f["rule"] == "parts/incomplete-save" and lost in f["message"] for f in found), found)


def copied(t, case, at):
    shutil.copytree(os.path.join(DEEPSPEED, case), t.at(at), ignore=lambda _, names: [n for n in names if n == "expect.json"])


@test
def test_deepspeed_is_opened_without_a_listing(t):
    for case in ("zero0_bf16", "zero1_bf16", "zero1_round_robin", "zero1_elastic", "zero2_fp16", "zero3_bf16", "zero3_fp32_sgd", "zero1_moe"):
        os.makedirs(t.at(case))
        copied(t, case, f"{case}/run/global_step3")
        with open(t.at(f"{case}/run/latest"), "w") as f:
            f.write("global_step3")
        tag = [f"run/{n}" for n in OTHER] + [f"run/global_step3/{n}" for n in ZERO]
        check_same(t, t.at(case), "run/", tag)
        check_same(t, t.at(case), "run/global_step3/", [f"run/global_step3/{n}" for n in OTHER])


@test
def test_pipelines_are_opened_without_a_listing(t):
    """Only some names of layers are stored, so other numbers, and a few beyond them, are tried."""
    for case in ("zero0_pipeline", "zero0_pipeline_bf16", "zero1_pipeline", "zero1_pipeline_tp", "zero1_pipeline_own"):
        os.makedirs(t.at(case))
        copied(t, case, f"{case}/run")
        numbers = range(17)
        layers = [f"layer_{n:02d}-model_states.pt" for n in numbers] + [f"layer_{n:02d}-model_{r:02d}-model_states.pt" for n in numbers for r in (0, 1)]
        local = check_same(t, t.at(case), "run/", [f"run/{n}" for n in OTHER + layers], ("inspect",))
        need({"model.6.weight", "module.6.weight"} <= {e["fqn"] for e in local["entries"]}, f"{case}: the frozen layer")


@test
def test_universal_checkpoints_are_opened_without_a_listing(t):
    for case in ("universal_zero1_bf16", "universal_zero3_bf16"):
        copied(t, case, f"{case}/run/global_step3_universal")
        with open(t.at(f"{case}/run/latest_universal"), "w") as f:
            f.write("global_step3_universal")
        local = t.json("inspect", t.at(f"{case}/run"), "--json", "--hash", "sha256")
        with serving(t.at(case)) as server:
            remote = t.json("inspect", server.url + "run/", "--json", "--hash", "sha256")
            need(remote["format"] == "deepspeed-universal", remote["format"])
            need(entries(remote) == entries(local), f"{case}: {len(remote['entries'])} entries of {len(local['entries'])}: "
                 f"{sorted({e[0] for e in entries(local)} - {e[0] for e in entries(remote)})[:5]}")


@test
def test_absent_files_of_deepspeed_are_named(t):
    copied(t, "zero3_bf16", "run")
    names = [f"bf16_zero_pp_rank_{r}_mp_rank_00_optim_states.pt" for r in range(3)]
    for lost in (names[1:2], names):
        for name in lost:
            if os.path.exists(t.at("run/" + name)):
                os.remove(t.at("run/" + name))
        with serving(t.directory) as server:
            found = t.json("validate", server.url + "run/", "--json", status=1)["findings"]
            found = [f for f in found if f["rule"] == "parts/incomplete-save"]
            need(found and all(name in found[0]["message"] for name in lost), found)
            need(all(names_asked(server).count("run/" + name) == 1 for name in lost), "an absent file was asked for again")
            t.run("inspect", server.url + "run/")
            message = t.run("convert", server.url + "run/", t.at("x.safetensors"), "--part", "model", status=2).stderr.decode()
            need(lost[0] in message, message)
        local = t.json("validate", t.at("run"), "--json", status=1)["findings"]
        need([f["message"] for f in local if f["rule"] == "parts/incomplete-save"] == [f["message"] for f in found], f"{found}, locally {local}")


@test
def test_deepspeed_is_converted_from_an_address(t):
    copied(t, "zero2_fp16", "run")
    with serving(t.directory) as server:
        t.run("convert", server.url + "run/", t.at("there.safetensors"), "--part", "model")
    t.run("convert", t.at("run"), t.at("here.safetensors"), "--part", "model")
    with open(t.at("there.safetensors"), "rb") as a, open(t.at("here.safetensors"), "rb") as b:
        need(a.read() == b.read(), "the files differ")


TRAINER = ["optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth", "rng_state_0.pth", "trainer_state.json", "training_args.bin",
           "random_states_0.pkl"]


@test
def test_trainer_is_opened_without_a_listing(t):
    source = os.path.join(GOLDEN, "directories", "trainer")
    shutil.copytree(source, t.at("one"))
    check_same(t, t.directory, "one/", [f"one/{n}" for n in FIRST + TRAINER])
    shutil.copytree(source, t.at("five"))
    os.rename(t.at("five/rng_state.pth"), t.at("five/rng_state_0.pth"))
    for rank in range(1, 5):
        shutil.copy(t.at("five/rng_state_0.pth"), t.at(f"five/rng_state_{rank}.pth"))
    check_same(t, t.directory, "five/", [f"five/{n}" for n in FIRST + TRAINER] + [f"five/rng_state_{r}.pth" for r in range(5, 10)])
    shutil.copytree(source, t.at("full"))  # FSDP with full state dicts: accelerate names the optimizer's file
    os.rename(t.at("full/optimizer.pt"), t.at("full/optimizer.bin"))
    local = check_same(t, t.directory, "full/", [f"full/{n}" for n in FIRST + TRAINER + ["latest"]])
    need(any(e["fqn"].startswith("optimizer.state.") for e in local["entries"]), "the optimizer is there")
    shutil.copytree(source, t.at("engine"), ignore=lambda _, names: ["optimizer.pt"])
    shutil.copytree(sample("deepspeed_zero3")[0], t.at("engine"), dirs_exist_ok=True)
    local = check_same(t, t.directory, "engine/", [f"engine/{n}" for n in FIRST + TRAINER + ["optimizer.bin", "global_step2/mp_rank_00_model_states.pt"]])
    need(any(f["rule"] == "parts/left-out" for f in local["findings"]), local["findings"])
    adapter = "adapter_model.safetensors"  # what the Trainer saves instead of the model if that is a PeftModel
    shutil.copytree(source, t.at("adapter"))
    os.rename(t.at("adapter/model.safetensors"), t.at(f"adapter/{adapter}"))
    check_same(t, t.directory, "adapter/", [f"adapter/{n}" for n in OTHER + TRAINER + ["adapter_model.bin"]])
    os.makedirs(t.at("alone"))
    shutil.copy(t.at(f"adapter/{adapter}"), t.at(f"alone/{adapter}"))
    check_same(t, t.directory, "alone/", [f"alone/{n}" for n in OTHER + ["adapter_model.bin", "trainer_state.json", "training_args.bin", "random_states_0.pkl"]])
    shutil.copytree(source, t.at("killed"))
    os.remove(t.at("killed/trainer_state.json"))
    check_incomplete(t, "killed/", "trainer_state.json")


@test
def test_accelerate_is_opened_without_a_listing(t):
    """The directories of a DCP sample replace those that accelerate writes, because only the names matter here."""
    for part, stands in (("pytorch_model_fsdp_0", "dcp_fsdp2"), ("optimizer_0", "dcp_dtypes")):
        shutil.copytree(sample(stands)[0], t.at(f"run/{part}"))
    trainer = os.path.join(GOLDEN, "directories", "trainer")
    for name in ("scheduler.pt", "trainer_state.json", "training_args.bin"):
        shutil.copy(os.path.join(trainer, name), t.at("run/" + name))
    for rank in range(2):
        shutil.copy(os.path.join(trainer, "rng_state.pth"), t.at(f"run/rng_state_{rank}.pth"))
    misses = OTHER + ["pytorch_model_fsdp_1/.metadata", "optimizer_1/.metadata", "scaler.pt", "rng_state.pth",
                      "rng_state_2.pth", "rng_state_3.pth"]
    local = check_same(t, t.directory, "run/", [f"run/{n}" for n in misses], ("inspect",))
    need([p["name"] for p in local["summary"]["parts"]] == ["model", "optimizer", "scheduler", "rng_state", "trainer_state", "training_args"], local["summary"]["parts"])
    for case, misses in (("accelerate", FIRST + ["trainer_state.json", "training_args.bin", "model_2.safetensors"]),
                         ("accelerate_fsdp_full", OTHER + ["pytorch_model_fsdp_2.bin", "scheduler_1.bin", "custom_checkpoint_0.pkl"])):
        shutil.copytree(os.path.join(GOLDEN, "directories", case), t.at(case))
        misses = misses + ["optimizer_2.bin", "scheduler_2.bin", "sampler.bin", "dl_state_dict.bin", "scaler.pt", "custom_checkpoint_1.pkl",
                           "random_states_2.pkl", "random_states_3.pkl"]
        check_same(t, t.directory, case + "/", [f"{case}/{n}" for n in misses], ("inspect",))


@test
def test_verl_is_opened_without_a_listing(t):
    """fsdp_config.json states the number of ranks; the optimizer and other state may not have been saved."""
    def save(actor, world, kinds):
        os.makedirs(t.at(actor))
        with open(t.at(actor, "fsdp_config.json"), "w") as f:
            json.dump({"FSDP_version": 2, "world_size": world}, f)
        for kind in kinds:
            for rank in range(world):
                shutil.copy(os.path.join(GOLDEN, "directories", "torch_checkpointing", f"model_{rank}.pt"), t.at(actor, f"{kind}_world_size_{world}_rank_{rank}.pt"))

    for run, kinds in (("all", ("model", "optim", "extra_state")), ("some", ("model",))):
        save(f"{run}/global_step_7/actor", 2, kinds)
        with open(t.at(f"{run}/latest_checkpointed_iteration.txt"), "w") as f:
            f.write("7")
        tag = [f"{run}/{n}" for n in OTHER] + [f"{run}/iter_0000007/.metadata", f"{run}/iter_0000007/metadata.json"] + [f"{run}/7/{n}" for n in ZERO]
        actor = f"{run}/global_step_7/actor/"
        check_same(t, t.directory, f"{run}/", tag + [f"{actor}{k}_world_size_2_rank_0.pt" for k in ("optim", "extra_state")], ("inspect",))
    os.remove(t.at("some/global_step_7/actor/model_world_size_2_rank_1.pt"))
    check_incomplete(t, "some/", "model_world_size_2_rank_1.pt")


@test
def test_lightning_is_opened_without_a_listing(t):
    shutil.copytree(os.path.join(GOLDEN, "directories", "lightning"), t.at("run"))
    check_same(t, t.directory, "run/", [])  # .metadata names its files, and meta.pt belongs to such names
    check_requests(t, "run/", 8)
    os.remove(t.at("run/meta.pt"))
    check_incomplete(t, "run/", "meta.pt")


@test
def test_few_requests_open_directories_of_training_loops(t):
    shutil.copytree(os.path.join(GOLDEN, "directories", "trainer"), t.at("trainer"))
    check_requests(t, "trainer/", 21)  # 6 names that exist, 6 that do not
    for case, most in (("zero1_bf16", 23), ("zero3_bf16", 27), ("zero1_pipeline_own", 64)):
        copied(t, case, case)
        check_requests(t, case + "/", most)


@test
def test_few_requests_find_many_ranks(t):
    """For every name that exists, one request finds that out, and others read it: names are not requested rank by rank."""
    copied(t, "zero3_bf16", "run")
    with serving(t.directory) as server:
        t.run("inspect", server.url + "run/")
        found = [r for _, r, _ in server.asked if r == "bytes=0-65535"]
        need(len(found) == len(OTHER) + 5, f"{len(found)} requests to find 6 files")


@test
def test_the_slash_of_a_directory_may_be_left_out(t):
    """Servers answer with a redirect to their own page of the directory, or with 404 if they have none."""
    want = entries(t.json("inspect", sample("dcp_fsdp2")[0], "--json"))
    shutil.copytree(sample("dcp_fsdp2")[0], t.at("step-1000"))
    os.makedirs(t.at("empty"))
    page = b"<!DOCTYPE HTML>\n<title>Directory listing</title>\n"

    def as_page(handler, name, count):
        if name.strip("/") not in ("step-1000", "empty"):
            return False
        handler.answer(200, page)
        return True
    for oddity, said in ((as_page, "HTML"), (lambda *a: False, "404")):
        with serving(t.directory, oddity) as server:
            need(entries(t.json("inspect", server.url + "step-1000", "--json")) == want, said)
            message = t.run("inspect", server.url + "empty", status=2).stderr.decode()
            need(said in message, message)
