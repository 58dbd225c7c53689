"""The newest checkpoint of a run that would load: `tessera latest` and `--step latest-valid`. The directories are those that the real
libraries wrote (samples, tests/golden), damaged here; the answers are stated by which directory was left whole."""
import json
import os
import shutil
import subprocess
import warnings

from harness import ROOT, Skip, need, sample, test
from test_directories import golden

GOLDEN = os.path.join(ROOT, "tests", "golden")


def deepspeed():
    return os.path.join(sample("deepspeed_zero3")[0], "global_step2")


def trainer():
    return sample("hf_trainer")[0]


def copies(t, source, *names):
    """Copies of a checkpoint, a directory or a file, below the run, without what tests expect of it."""
    for name in names:
        os.makedirs(os.path.dirname(t.at("run", name)), exist_ok=True)
        if os.path.isdir(source):
            shutil.copytree(source, t.at("run", name), ignore=shutil.ignore_patterns("expect.json"))
        else:
            shutil.copy(source, t.at("run", name))
    return t.at("run")


def answer(t, path, *options, status=0):
    p = t.run("latest", path, *options, status=status)
    return os.path.relpath(p.stdout.decode().removesuffix("\n"), path) if status == 0 else p.stderr.decode()


def latest(t, want, passed=(), path=None):
    """Checks the answer, the text and the document, and that exactly the steps in `passed` are named, each once."""
    path = path or t.at("run")
    p = t.run("latest", path, status=0 if want else 1)
    need(p.stdout.decode() == (os.path.join(path, want) + "\n" if want else ""), f"{p.stdout} instead of {want}: {p.stderr.decode()}")
    said = [line for line in p.stderr.decode().splitlines() if "passed over" in line]
    need([line.split("passed over ")[1].split(": ")[0] for line in said] == [os.path.join(path, n) for n in passed], f"{said} instead of {passed}")
    doc = t.json("latest", path, "--json", status=0 if want else 1)
    need(doc.get("path") == (os.path.join(path, want) if want else None), doc)
    need([one["path"] for one in doc["passed_over"]] == [os.path.join(path, n) for n in passed], doc)
    return doc


def damage(t, name, file, how):
    path = t.at("run", name, file)
    if how == "missing":
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    elif how == "truncated":
        os.truncate(path, os.path.getsize(path) // 2)
    elif how == "empty":
        os.truncate(path, 0)


def resumed(t, run):
    """Runs the line of samples/slurm that finds the checkpoint to resume from, and prints RESUME."""
    with open(os.path.join(ROOT, "samples", "slurm", "train.sbatch")) as f:
        line = next(line for line in f if line.startswith("RESUME="))
    with open(os.path.join(ROOT, "samples", "ci", "README.md")) as f:
        need(line.split(" #")[0].replace("$run", "$RUN") in f.read(), "samples/ci shows the same line")
    env = {**os.environ, "PATH": f"{os.path.dirname(t.path)}:{os.environ['PATH']}"}
    return subprocess.run(["bash", "-c", 'run=$1\n' + line + 'printf %s "$RESUME"', "bash", run], capture_output=True, env=env)


# A form, a directory that its library wrote, how its steps are called, and files without which the library refuses to load it.
FORMS = [
    ("dcp", lambda: sample("dcp_fsdp2")[0], "step-{}", [(".metadata", "missing"), (".metadata", "truncated"), ("__0_0.distcp", "missing"), ("__1_0.distcp", "truncated"), ("__2_0.distcp", "empty")]),
    ("torchtitan", lambda: sample("dcp_tp_fsdp2")[0], "checkpoint/step-{}", [(".metadata", "missing"), ("__3_0.distcp", "truncated")]),
    ("trainer", trainer, "checkpoint-{}", [("model.safetensors", "missing"), ("model.safetensors", "truncated"), ("trainer_state.json", "missing"), ("optimizer.pt", "truncated"), ("optimizer.pt", "missing"), ("scheduler.pt", "missing"), ("config.json", "truncated"), ("config.json", "empty")]),
    ("deepspeed", deepspeed, "global_step{}", [("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "missing"), ("zero_pp_rank_0_mp_rank_00_model_states.pt", "truncated")]),
    # 4 and 5 are uses of a tied layer by two stages, and 6 is frozen: no other file says that these layers exist.
    ("deepspeed pipeline", lambda: os.path.join(ROOT, "tests", "golden", "deepspeed", "zero1_pipeline"), "global_step{}", [(f"layer_0{n}-model_states.pt", "missing") for n in (0, 1, 3, 4, 5, 6, 7, 8)]),
    ("megatron", lambda: sample("megatron_dist")[0], "iter_{:07}", [(".metadata", "missing"), ("metadata.json", "missing"), ("common.pt", "missing"), ("__0_0.distcp", "truncated")]),
    ("nemo", lambda: os.path.join(ROOT, "tests", "golden", "nemo", "model_name=0--val_loss=1.25-step=7-consumed_samples=56.0"), "step={}", [("weights/.metadata", "missing"), ("weights/metadata.json", "missing"), ("weights/__1_0.distcp", "truncated"), ("weights/common.pt", "missing"), ("context/io.json", "truncated")]),
    ("olmo-core", lambda: os.path.join(ROOT, "tests", "golden", "olmo_core", "step10"), "step{}", [(".metadata.json", "missing"), ("train/rank0.pt", "missing"), ("model_and_optim/.metadata", "missing")]),
    ("accelerate", lambda: golden("accelerate")[0], "checkpoints/checkpoint_{}", [("model.safetensors", "truncated"), ("scheduler.bin", "truncated"), ("scheduler.bin", "missing"), ("scheduler_1.bin", "missing"), ("optimizer_1.bin", "missing"), ("model_1.safetensors", "missing"), ("custom_checkpoint_0.pkl", "missing")]),
    ("accelerate fsdp", lambda: golden("accelerate_fsdp_sharded")[0], "checkpoint_{}", [("pytorch_model_fsdp_0/.metadata", "missing"), ("optimizer_0/.metadata", "missing"), ("optimizer_0", "missing"), ("optimizer_1", "missing")]),
    ("lightning", lambda: sample("lightning_dist")[0], "epoch=0-step={}.ckpt", [("meta.pt", "missing"), (".metadata", "missing"), ("meta.pt", "truncated")]),
    ("safetensors index", lambda: os.path.dirname(sample("safetensors_index")[0]), "checkpoint-{}", [("model-00002-of-00003.safetensors", "missing"), ("model-00003-of-00003.safetensors", "truncated")]),
]


@test
def test_latest_of_every_form_passes_over_what_is_damaged(t):
    for form, source, name, damages in FORMS:
        shutil.rmtree(t.at("run"), ignore_errors=True)
        names = [name.format(n) for n in (9, 10, 100)]
        copies(t, source(), *names)
        latest(t, names[2])
        need(answer(t, t.at("run"), "--deep") == names[2], f"{form}: --deep")
        for file, how in damages or [(next(f for f in sorted(os.listdir(source())) if f.endswith((".safetensors", ".bin", ".pt"))), "truncated")]:
            shutil.rmtree(t.at("run", names[2]))
            copies(t, source(), names[2])
            if not os.path.exists(t.at("run", names[2], file)):
                raise AssertionError(f"{form}: there is no {file} in {os.listdir(source())}")
            damage(t, names[2], file, how)
            try:
                latest(t, names[1], [names[2]])
            except Exception as e:
                raise AssertionError(f"{form}, {file} {how}: {e}") from e
        os.makedirs(t.at("run", name.format(200)))
        latest(t, names[1], [name.format(200), names[2]])


def passes_over_one_file(t, library, form, file, older, newer):
    """The newer step has one file only, which prune keeps, too: it may be a save or a copy under way."""
    copies(t, sample(form)[0], older, newer)
    for name in os.listdir(t.at("run", newer)):
        if name != file:
            os.remove(t.at("run", newer, name))
    doc = latest(t, older, [newer])
    need(library in doc["passed_over"][0]["reason"], doc)
    t.run("prune", t.at("run"), "--keep", "1")
    need(os.listdir(t.at("run", newer)) == [file], os.listdir(t.at("run", newer)))


@test
def test_latest_passes_over_a_lightning_save_of_which_the_last_file_is_left(t):
    """A copy in another order than Lightning's, or a disk that lost the entries of the other files."""
    passes_over_one_file(t, "Lightning", "lightning_dist", "meta.pt", "epoch=0-step=10.ckpt", "epoch=0-step=20.ckpt")
    t.run("validate", t.at("run", "epoch=0-step=20.ckpt", "meta.pt"), "--deep")  # by its own path it is a file like any other


@test
def test_latest_passes_over_a_megatron_save_that_ended_after_its_first_file(t):
    passes_over_one_file(t, "Megatron", "megatron_dist", "common.pt", "iter_0000010", "iter_0000020")


def automodel(t, *names):
    """Steps as Automodel 0.7 leaves them: a file .incomplete is there from the first to the last moment of a save."""
    for name in names:
        copies(t, sample("dcp_fsdp2")[0], f"{name}/model")
        copies(t, sample("dcp_tp_fsdp2")[0], f"{name}/optim")
        for file in ("config.yaml", "losses.json"):
            with open(t.at("run", name, file), "w") as f:
                f.write("{}")


@test
def test_latest_passes_over_what_automodel_has_not_finished(t):
    names = [f"epoch_0_step_{n}" for n in (10, 20, 30, 40, 50)]
    automodel(t, *names)
    latest(t, names[-1])
    for name, lost in zip(names[1:], (("model", "optim", "config.yaml", "losses.json"), ("optim", "config.yaml"), ("optim/.metadata",), ())):
        open(t.at("run", name, ".incomplete"), "w").close()
        for file in lost:
            path = t.at("run", name, file)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    doc = latest(t, names[0], names[:0:-1])
    need(all(".incomplete" in one["reason"] or ".metadata" in one["reason"] for one in doc["passed_over"]), doc)
    found = t.json("validate", t.at("run", names[-1]), "--json", status=1)["findings"]
    need([(f["rule"], f["file"]) for f in found if f["level"] == "error"] == [("parts/incomplete-save", ".incomplete")], found)
    need(b".incomplete" in t.run("convert", t.at("run", names[-1]), t.at("out"), "--to", "dcp", status=2).stderr, "converted")
    t.run("prune", t.at("run"), "--keep", "1")
    need(sorted(os.listdir(t.at("run"))) == names, "it may be a save under way")


@test
def test_latest_passes_over_weights_that_prime_rl_has_not_finished(t):
    names = ["step_5", "step_10", "step_20"]
    copies(t, os.path.dirname(sample("safetensors_index")[0]), *names)
    latest(t, "step_20")
    for name in names:
        open(t.at("run", name, "STABLE"), "w").close()
    latest(t, "step_20")
    os.remove(t.at("run", "step_20", "STABLE"))
    latest(t, "step_10", ["step_20"])
    t.run("prune", t.at("run"), "--keep", "1")
    os.utime(t.at("run", "step_5"), (1e9, 1e9))
    for name in os.listdir(t.at("run", "step_5")):
        os.utime(t.at("run", "step_5", name), (1e9, 1e9))
    t.run("prune", t.at("run"), "--keep", "1")
    need(sorted(os.listdir(t.at("run"))) == ["step_10", "step_20"], os.listdir(t.at("run")))


@test
def test_latest_of_a_run_of_nemo(t):
    """NeMo keeps the best steps and a copy of the last one, which it resumes from, and a file next to what it is writing or removing."""
    names = ["m--val_loss=2.50-step=4-consumed_samples=40.0", "m--val_loss=1.50-step=9-consumed_samples=80.0"]
    names.append(names[1] + "-last")
    for name in names:
        copies(t, sample("megatron_dist")[0], f"{name}/weights")
        os.makedirs(t.at("run", name, "context"))
        with open(t.at("run", name, "context", "io.json"), "w") as f:
            f.write("{}")
    latest(t, names[2])
    open(t.at("run", names[2] + "-unfinished"), "w").close()
    doc = latest(t, names[1], names[2:])
    need("NeMo" in doc["passed_over"][0]["reason"], doc)
    open(t.at("run", names[1] + "-unfinished"), "w").close()
    latest(t, names[0], names[:0:-1])
    t.run("prune", t.at("run"), "--keep", "1")
    need(all(os.path.isdir(t.at("run", name)) for name in names), os.listdir(t.at("run")))


@test
def test_documents_that_from_pretrained_reads_are_checked(t):
    """What json.load of Python makes a dict of is quiet, and so is a step that never had the document."""
    copies(t, trainer(), "checkpoint-4", "checkpoint-5")
    with open(t.at("run", "checkpoint-5", "config.json")) as f:
        config = f.read()
    adapter = os.path.join(ROOT, *"tests/golden/adapters/adapter/llama_dora_both".split("/"))
    copies(t, adapter, "adapter")
    good = (config, "{}", ' {"a": NaN, "b": -Infinity, "a": 1e300}\n\n', '{"a": "\\ud800"}')
    bad = (config[:-2], config + "x", config.replace(":", ";", 1), "[]", '"x"', "null", "\ufeff{}", "{}\0", '{"a": 1,}', '// a\n{}', '{"a": "\1"}', b'{"a": "\xff"}')
    for directory, name in (("checkpoint-5", "config.json"), ("adapter", "adapter_config.json")):
        path = t.at("run", directory)
        for texts, want in ((good, 0), (bad, 1)):
            for text in texts:
                with open(os.path.join(path, name), "wb") as f:
                    f.write(text if isinstance(text, bytes) else text.encode())
                found = t.json("validate", path, "--json", status=want)["findings"]
                need([(f["rule"], f["file"]) for f in found if f["level"] == "error"] == [("file/unreadable", name)] * want, (name, text, found))
                t.run("inspect", path)
    shutil.rmtree(t.at("run", "adapter"))
    doc = latest(t, "checkpoint-4", ["checkpoint-5"])
    need("config.json" in doc["passed_over"][0]["reason"], doc)
    os.remove(t.at("run", "checkpoint-5", "config.json"))
    doc = latest(t, "checkpoint-4", ["checkpoint-5"])
    need("lacks 'config.json'" in doc["passed_over"][0]["reason"], doc)
    os.remove(t.at("run", "checkpoint-4", "config.json"))
    latest(t, "checkpoint-5")


@test
def test_latest_takes_steps_that_other_settings_wrote(t):
    """What an earlier step has is missing only if nothing takes its place."""
    def renamed(source, *changes):
        shutil.rmtree(t.at("run"), ignore_errors=True)
        copies(t, source, "checkpoint_1", "checkpoint_2")
        for old, new in changes:
            os.rename(t.at("run", "checkpoint_2", old), t.at("run", "checkpoint_2", new)) if new else os.remove(t.at("run", "checkpoint_2", old))
    save_only_model = [(name, None) for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth")]
    renamed(trainer(), *save_only_model)
    latest(t, "checkpoint_2")
    renamed(trainer(), *save_only_model[:1])
    latest(t, "checkpoint_1", ["checkpoint_2"])
    copies(t, trainer(), "checkpoint_3")
    os.remove(t.at("run", "checkpoint_3", "optimizer.pt"))
    latest(t, "checkpoint_3")  # all steps have to have it
    for source, names in ((trainer(), ("optimizer.pt", "trainer_state.json")), (golden("accelerate")[0], ("model.safetensors", "optimizer_1.bin", "scheduler.bin"))):
        for name in names:
            for copy in (f".{name}.kE3aB1", f"{name}.part", f"{name}~", f".~{name}"):
                renamed(source, (name, copy))
                latest(t, "checkpoint_1", ["checkpoint_2"])  # it is still being written, or copied
    renamed(trainer(), ("optimizer.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"))
    latest(t, "checkpoint_2")  # DeepSpeed's, next to the scheduler that the Trainer writes in either case
    pipeline = os.path.join(ROOT, "tests", "golden", "deepspeed", "zero1_pipeline")
    renamed(pipeline, ("layer_06-model_states.pt", "layer_09-model_states.pt"))
    latest(t, "checkpoint_2")


@test
def test_a_final_export_of_the_model_does_not_stop_a_run_from_resuming(t):
    """accelerate's load_state refuses a directory without an optimizer. What save_model wrote is passed over, and is not called damaged; it
    is a checkpoint of its own for every other command, and prune leaves it where it is."""
    run = copies(t, golden("accelerate")[0], "checkpoint_1", "checkpoint_2")
    os.makedirs(t.at("run", "checkpoint_3"))
    shutil.copy(t.at("run", "checkpoint_2", "model.safetensors"), t.at("run", "checkpoint_3"))
    passed = latest(t, "checkpoint_2", ["checkpoint_3"])["passed_over"]
    need("only a model was exported" in passed[0]["reason"] and "damaged" not in passed[0]["reason"], passed)
    t.run("validate", "--deep", t.at("run", "checkpoint_3"))
    for at, _, names in os.walk(run):
        for name in (*names, "."):
            os.utime(os.path.join(at, name), (1e9, 1e9))
    t.run("prune", run, "--keep", "1")
    need(sorted(os.listdir(run)) == ["checkpoint_2", "checkpoint_3"] and os.listdir(t.at("run", "checkpoint_3")) == ["model.safetensors"], os.listdir(run))
    latest(t, "checkpoint_2", ["checkpoint_3"])


@test
def test_latest_of_files_with_a_step_in_their_names(t):
    path = os.path.join(golden("trainer")[0], "optimizer.pt")
    names = ["epoch=0-step=9.ckpt", "epoch=0-step=10.ckpt", "epoch=0-step=10-v1.ckpt", "last.ckpt"]
    copies(t, path, *(os.path.join("version_3", "checkpoints", n) for n in names))
    run = t.at("run", "version_3", "checkpoints")
    latest(t, names[2], path=run)
    os.truncate(os.path.join(run, names[2]), 100)
    latest(t, names[1], [names[2]], path=run)
    os.truncate(os.path.join(run, names[1]), 100)
    latest(t, names[0], names[2:0:-1], path=run)
    need(t.text("inspect", run, "--step", "latest-valid").splitlines()[1].endswith(names[0]), "the file is opened")
    shutil.rmtree(t.at("run"))
    copies(t, path, "epoch=2-val_loss=0.90.ckpt", "epoch=10-val_loss=0.12.ckpt", "epoch=9-val_loss=0.31.ckpt")
    latest(t, "epoch=10-val_loss=0.12.ckpt")  # named by ModelCheckpoint's filename="{epoch}-{val_loss:.2f}"
    shutil.rmtree(t.at("run"))
    copies(t, path, "model_step_100.pt", "model_step_20.pt", "args.pt", "model_step_0007.pt")
    latest(t, "model_step_100.pt")


@test
def test_latest_orders_steps_by_value_and_takes_numbers_that_are_large(t):
    source = sample("dcp_small")[0]
    copies(t, source, "step-9", "step-10", "step-0000000008", f"step-{2**53 + 1}", f"step-{2**53}", f"step-{2**64 - 1}")
    doc = latest(t, f"step-{2**64 - 1}")
    need(doc["step"] == 2**64 - 1, doc["step"])
    for n in (2**64 - 1, 2**53 + 1, 2**53):
        os.remove(t.at("run", f"step-{n}", ".metadata"))
    latest(t, "step-10", [f"step-{n}" for n in (2**64 - 1, 2**53 + 1, 2**53)])


@test
def test_latest_orders_steps_that_do_not_fit_into_64_bits(t):
    """As numbers: a date with microseconds is one. Documents state no step for them, and prune leaves them."""
    source, dates = sample("dcp_small")[0], ("20261130103000123456", "20261129103000123456", f"0{2**64}")
    run = copies(t, source, "step-10", f"step-{2**64 - 1}", *(f"step-{n}" for n in dates))
    doc = latest(t, f"step-{dates[0]}")
    need("step" not in doc, doc)
    for n in (1, 2, 3):
        os.remove(t.at("run", f"step-{dates[n - 1]}", ".metadata"))
        doc = latest(t, f"step-{dates[n]}" if n < 3 else f"step-{2**64 - 1}", [f"step-{one}" for one in dates[:n]])
        need(doc.get("step") == (2**64 - 1 if n == 3 else None) and not any("step" in one for one in doc["passed_over"]), doc)
    shutil.rmtree(run)
    copies(t, os.path.join(golden("trainer")[0], "optimizer.pt"), "epoch=0-step=10.ckpt", f"epoch=0-step={2**64}.ckpt", f"model_step_{2**65}.pt")
    latest(t, f"model_step_{2**65}.pt")
    for name in os.listdir(run):
        os.utime(t.at("run", name), (1e9, 1e9))
    kept = t.json("prune", run, "--keep", "1", "--json")["kept"]
    need([one["reason"] for one in kept] == ["it has no step below 2^64"] * 2 + ["it is the newest valid one"], kept)


@test
def test_latest_takes_the_last_that_lightning_wrote(t):
    """With save_top_k and save_last, last.ckpt is newer than the best ones, which have names with steps. Its step is in it: 2."""
    source = sample("lightning_dist")[0]
    run = copies(t, source, "epoch=0-step=1.ckpt", "last.ckpt")
    need(latest(t, "last.ckpt")["step"] == 2, "meta.pt states global_step")
    copies(t, source, "epoch=0-step=2.ckpt")
    latest(t, "epoch=0-step=2.ckpt")  # of which last.ckpt is a copy
    damage(t, "epoch=0-step=2.ckpt", ".metadata", "truncated")
    latest(t, "last.ckpt", ["epoch=0-step=2.ckpt"])
    copies(t, source, "epoch=1-step=4.ckpt")
    latest(t, "epoch=1-step=4.ckpt")
    damage(t, "last.ckpt", "meta.pt", "truncated")
    latest(t, "epoch=1-step=4.ckpt", ["last.ckpt"])  # the step that it has is unknown
    shutil.rmtree(t.at("run", "last.ckpt"))
    os.symlink("epoch=1-step=4.ckpt", t.at("run", "last.ckpt"))
    latest(t, "epoch=1-step=4.ckpt")
    shutil.rmtree(run)
    copies(t, source, "last.ckpt")
    latest(t, "last.ckpt")
    shutil.rmtree(run)
    file = os.path.join(golden("trainer")[0], "optimizer.pt")
    copies(t, file, "best.ckpt", "best-v1.ckpt")
    need("so the newest is unknown: 'best-v1.ckpt', 'best.ckpt'" in answer(t, run, status=2), "they state no step")
    copies(t, file, "epoch=0-step=3.ckpt", "epoch=0-step=4.ckpt", "last-v7.ckpt", "epoch=0-v5.ckpt")
    latest(t, "epoch=0-step=4.ckpt")  # the number behind "-v" is not a step
    for name in os.listdir(run):
        os.utime(t.at("run", name), (1e9, 1e9))
    gone = [os.path.relpath(one["path"], run) for one in t.json("prune", run, "--keep", "1", "--json")["removed"]]
    need(gone == ["epoch=0-step=3.ckpt", "epoch=0-v5.ckpt"], gone)


def saved_by_torch(path, state):
    try:
        import torch.distributed.checkpoint as dcp
    except ImportError as e:
        raise Skip("PyTorch is not installed") from e
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, storage_writer=dcp.FileSystemWriter(path, overwrite=True), no_dist=True)


@test
def test_latest_passes_over_a_dcp_with_only_the_model(t):
    """torchtitan writes only the model at the end (last_save_model_only), and does not load that to resume."""
    for n in (10, 20, 30, 40):
        model = {"layers.0.weight": torch_full(8, n), "norm.weight": torch_full(3, n)}
        optimizer = {"optimizer": {"state": {"norm.weight": {"exp_avg": torch_full(3, -n)}}, "param_groups": {"norm.weight": {"lr": n / 8}}}, "train_state": {"step": n}}
        saved_by_torch(t.at("run", f"step-{n}"), {**model, **(optimizer if n < 30 else {})})
    os.rename(t.at("run", "step-40"), t.at("later"))
    doc = latest(t, "step-20", ["step-30"])
    need("only a model was exported" in doc["passed_over"][0]["reason"], doc)
    for at, _, names in os.walk(t.at("run")):
        for name in names:
            os.utime(os.path.join(at, name), (1e9, 1e9))
    t.run("prune", t.at("run"), "--keep", "1")
    need(sorted(os.listdir(t.at("run"))) == ["step-20", "step-30"], os.listdir(t.at("run")))
    os.rename(t.at("later"), t.at("run", "step-40"))
    latest(t, "step-40")  # the one before lacks it, too, so the job no longer saves it
    shutil.rmtree(t.at("run", "step-20"))
    latest(t, "step-40")


@test
def test_latest_passes_over_a_file_that_was_not_renamed(t):
    """safetensors writes a whole file under a hidden name, and then renames it; so does rsync. transformers writes a model's documents first."""
    source, name = sample("safetensors_model")[0], "model.safetensors"
    for hidden in (".tmpwDujyp", f".{name}.kE3aB1", f".{name}"):
        for others in ((), ("config.json", "generation_config.json")):
            shutil.rmtree(t.at("run"), ignore_errors=True)
            copies(t, os.path.dirname(sample("safetensors_index")[0]), "step-10")  # in shards, so that no name in it is missing
            os.makedirs(t.at("run", "step-20"))
            shutil.copy(source, t.at("run", "step-20", hidden))
            for other in others:
                with open(t.at("run", "step-20", other), "w") as f:
                    f.write('{"model_type": "llama"}')
            doc = latest(t, "step-10", ["step-20"])
            need(f"'{hidden}', whose name no loader takes for one" in doc["passed_over"][0]["reason"], doc)
            os.rename(t.at("run", "step-20", hidden), t.at("run", "step-20", name))
            shutil.copy(source, t.at("run", "step-20", hidden))
            latest(t, "step-20")
    t.run("validate", t.at("run", "step-20", hidden), "--deep")  # by its own path it is a file like any other


@test
def test_latest_takes_no_hidden_index(t):
    """transformers does not load shards whose index has another name. macOS puts "._NAME" next to each file that it copies to another file system."""
    name = "model.safetensors.index.json"
    copies(t, os.path.dirname(sample("safetensors_index")[0]), "step-10", "step-20")
    for step in ("step-10", "step-20"):
        with open(t.at("run", step, "config.json"), "w") as f:
            f.write('{"model_type": "llama"}')
    for hidden in (f"._{name}", f".~{name}", f".{name}"):
        os.rename(t.at("run", "step-20", name), t.at("run", "step-20", hidden))
        latest(t, "step-10", ["step-20"])
        os.rename(t.at("run", "step-20", hidden), t.at("run", "step-20", name))
    with open(t.at("run", "step-20", f"._{name}"), "wb") as f:
        f.write(b"\0\5\x16\7\0\2\0\0Mac OS X        ")
    latest(t, "step-20")
    need(t.json("inspect", t.at("run", "step-20"), "--json")["format"] == "safetensors-index", "the index is not read")


@test
def test_latest_passes_over_shards_of_which_one_was_not_renamed(t):
    """The index is missing, too, as rsync copies it last. Files with the marks of DCP's HuggingFaceStorageWriter are shards like any others."""
    for shard in (False, True):
        shutil.rmtree(t.at("run"), ignore_errors=True)
        copies(t, sample("dcp_hf_sharded")[0], "step-10", "step-20")
        for step in ("step-10", "step-20"):
            for name in os.listdir(t.at("run", step)):
                if not shard and name.startswith("shard-00001-"):
                    os.rename(t.at("run", step, name), t.at("run", step, name.removeprefix("shard-00001-")))
                elif not shard or name == "shard-00004-model-00001-of-00002.safetensors":  # a rank has files only for tensors that it writes
                    os.remove(t.at("run", step, name))
        latest(t, "step-20")
        for name in os.listdir(t.at("run", "step-20")):
            if "model-00002" in name:
                os.rename(t.at("run", "step-20", name), t.at("run", "step-20", f".{name}.kE3aB1"))
        doc = latest(t, "step-10", ["step-20"])
        need("is missing: 'model-00002-of-00002.safetensors'" in doc["passed_over"][0]["reason"], doc)


@test
def test_latest_passes_over_files_under_each_others_names(t):
    """Each file is whole, and no framework loads them from these names."""
    steps = {"checkpoint-10": None, "checkpoint-20": None}
    for source, pairs in ((trainer(), [("model.safetensors", "scheduler.pt"), ("model.safetensors", "trainer_state.json"), ("optimizer.pt", "scheduler.pt"), ("optimizer.pt", "training_args.bin"),
                                ("scheduler.pt", "rng_state.pth"), ("training_args.bin", "rng_state.pth")]),
                          (golden("accelerate")[0], [("model.safetensors", "optimizer.bin"), ("model.safetensors", "scheduler.bin"), ("optimizer_1.bin", "scheduler.bin"), ("optimizer.bin", "random_states_0.pkl"),
                                                   ("scheduler.bin", "random_states_0.pkl")])):
        for one, other in pairs:
            shutil.rmtree(t.at("run"), ignore_errors=True)
            copies(t, source, *steps)
            a, b = t.at("run", "checkpoint-20", one), t.at("run", "checkpoint-20", other)
            latest(t, "checkpoint-20")
            os.rename(a, t.at("kept"))
            os.rename(b, a)
            os.rename(t.at("kept"), b)
            latest(t, "checkpoint-10", ["checkpoint-20"])
    shutil.rmtree(t.at("run"))
    for step in ("step-10", "step-20"):
        os.makedirs(t.at("run", step))
        shutil.copy(sample("safetensors_model")[0], t.at("run", step, "model.safetensors" if step == "step-10" else "generation_config.json"))
        shutil.copy(os.path.join(trainer(), "config.json"), t.at("run", step, "config.json"))
    shutil.copy(os.path.join(trainer(), "config.json"), t.at("run", "step-20", "model.safetensors"))
    latest(t, "step-10", ["step-20"])
    # What its content is, and not its name, decides how a file is read, but its name decides whether it would load.
    shutil.copy(os.path.join(trainer(), "optimizer.pt"), t.at("named.safetensors"))
    need(b"exp_avg" in t.run("inspect", t.at("named.safetensors")).stdout, "it is read by its content")
    need(b"'named.safetensors' is not in the format of its name" in t.run("validate", t.at("named.safetensors"), status=1).stdout, "no loader takes it")


@test
def test_latest_passes_over_the_metadata_of_an_earlier_save(t):
    """A save into a directory with a checkpoint replaces .metadata last. Killed before that, PyTorch refuses what it left. Where every tensor
    has its old shape, no byte of a file says to which save it belongs."""
    saved_by_torch(t.at("run", "step-10"), {"w": torch_full(1000, 1)})
    for name, tensors in (("longer", {"w": 1000, "z": 90}), ("larger", {"w": 3000, "z": 50}), ("other", {"w": 1000, "z": 50, "zz": 9})):
        step = t.at("run", "step-20")
        saved_by_torch(step, {"w": torch_full(1000, 1), "z": torch_full(50, 1)})
        latest(t, "step-20")
        shutil.copy(os.path.join(step, ".metadata"), t.at("metadata"))
        saved_by_torch(step, {key: torch_full(n, 2) for key, n in tensors.items()})
        latest(t, "step-20")
        shutil.copy(t.at("metadata"), os.path.join(step, ".metadata"))
        import torch.distributed.checkpoint as dcp
        refused, state = False, {"w": torch_full(1000, 0), "z": torch_full(50, 0)}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dcp.load(state, checkpoint_id=step, no_dist=True)
        except BaseException:
            refused = True
        doc = latest(t, *(("step-10", ["step-20"]) if refused else ("step-20",)))
        need(refused == (name != "other"), f"{name}: PyTorch {'refuses' if refused else 'loads'} it")
        need(not refused or "may be left from an earlier save" in doc["passed_over"][0]["reason"], doc)
        shutil.rmtree(step)


def torch_full(count, value):
    import torch
    return torch.full((count,), float(value))


@test
def test_latest_of_a_step_with_several_checkpoints_needs_all_of_them(t):
    source = sample("dcp_fsdp2")[0]
    for n in (5, 10):
        copies(t, source, f"global_step_{n}/actor", f"global_step_{n}/critic")
        shutil.copy(os.path.join(golden("trainer")[0], "scheduler.pt"), t.at("run", f"global_step_{n}", "data.pt"))
    latest(t, "global_step_10")
    os.remove(t.at("run", "global_step_10", "critic", ".metadata"))
    doc = latest(t, "global_step_5", ["global_step_10"])
    need(doc["passed_over"][0]["reason"].startswith("critic: "), doc)
    shutil.rmtree(t.at("run", "global_step_10", "critic"))
    doc = latest(t, "global_step_5", ["global_step_10"])
    need("lacks 'critic', which 'global_step_5' has" in doc["passed_over"][0]["reason"], "verl writes the actor first")
    copies(t, source, "global_step_4/actor")
    latest(t, "global_step_10")  # not every earlier step has it
    shutil.rmtree(t.at("run"))
    ranks = sample("torch_ranks_tp_fsdp2")[0]
    for n in (5, 10):
        for role in ("actor", "critic")[:3 - n // 5]:
            os.makedirs(t.at("run", f"global_step_{n}", role))
            for rank, file in enumerate(sorted(f for f in os.listdir(ranks) if f.endswith((".pt", ".pth")))):
                world = len([f for f in os.listdir(ranks) if f.endswith((".pt", ".pth"))])
                shutil.copy(os.path.join(ranks, file), t.at("run", f"global_step_{n}", role, f"model_world_size_{world}_rank_{rank}.pt"))
        shutil.copy(os.path.join(golden("trainer")[0], "scheduler.pt"), t.at("run", f"global_step_{n}", "data.pt"))
    doc = latest(t, "global_step_5", ["global_step_10"])
    need("lacks 'critic'" in doc["passed_over"][0]["reason"], "files of ranks, next to data.pt")
    shutil.copytree(t.at("run", "global_step_5", "critic"), t.at("run", "global_step_10", "critic"))
    for n in (5, 10):  # SkyRL, which writes trainer_state.pt last and does not load a step without it
        shutil.copy(t.at("run", f"global_step_{n}", "data.pt"), t.at("run", f"global_step_{n}", "trainer_state.pt"))
    latest(t, "global_step_10")
    os.remove(t.at("run", "global_step_10", "trainer_state.pt"))
    latest(t, "global_step_5", ["global_step_10"])


@test
def test_latest_passes_over_a_universal_checkpoint_without_its_model_states(t):
    copies(t, os.path.join(GOLDEN, "deepspeed", "universal_zero1_bf16"), "global_step9", "global_step10")
    latest(t, "global_step10")
    os.remove(t.at("run", "global_step10", "mp_rank_00_model_states.pt"))
    latest(t, "global_step9", ["global_step10"])


@test
def test_latest_passes_over_shards_of_transformers_without_their_index(t):
    """from_pretrained does not load them, and the index is written last. Without config.json another program wrote them."""
    run = copies(t, os.path.dirname(sample("safetensors_index")[0]), "step-9", "step-10")
    os.remove(t.at("run", "step-10", "model.safetensors.index.json"))
    need(answer(t, run) == "step-10", "shards of another program, which are all there")
    with open(t.at("run", "step-10", "config.json"), "w") as f:
        f.write('{"model_type": "llama"}')
    found = t.json("validate", t.at("run", "step-10"), "--json", status=1)["findings"]
    need([(f["rule"], f["level"]) for f in found] == [("index/absent", "error")], found)
    need(answer(t, run) == "step-9", "shards without the index of transformers")
    t.run("diff", t.at("run", "step-10"), t.at("run", "step-9"), "--values")


@test
def test_latest_of_several_runs(t):
    source = sample("dcp_small")[0]
    copies(t, source, "a/checkpoints/step-10", "a/checkpoints/step-20", "b/checkpoints/step-15")
    latest(t, "a/checkpoints/step-20")
    copies(t, source, "b/checkpoints/step-0020")
    message = answer(t, t.at("run"), status=2)
    need("step 20, the newest, is in several runs" in message and "'a/checkpoints/step-20', 'b/checkpoints/step-0020'" in message, message)
    need(answer(t, t.at("run", "b")) == "checkpoints/step-0020", "one run")
    for run, name in (("a", "step-20"), ("b", "step-0020")):
        os.remove(t.at("run", run, "checkpoints", name, ".metadata"))
    latest(t, "b/checkpoints/step-15", ["a/checkpoints/step-20", "b/checkpoints/step-0020"])


@test
def test_latest_of_the_same_step_twice(t):
    """Of the same step in one run, the one that is whole is the answer; between two that are whole nothing decides."""
    copies(t, sample("dcp_small")[0], "step-10", "step-010", "step-9")
    need("there more than once" in answer(t, t.at("run"), status=2), "two directories")
    os.remove(t.at("run", "step-10", ".metadata"))
    latest(t, "step-010", ["step-10"])
    os.remove(t.at("run", "step-010", ".metadata"))
    copies(t, os.path.join(golden("trainer")[0], "optimizer.pt"), "step-10.pt")
    latest(t, "step-10.pt", ["step-010", "step-10"])


@test
def test_latest_ignores_what_is_not_a_checkpoint(t):
    copies(t, sample("dcp_small")[0], "checkpoints/step-10")
    for name in ("logs/step-99/events.out", "results/checkpoint_50/metrics.json", "checkpoints/.step-20.tessera-7/.metadata", "host99/x.txt"):
        os.makedirs(os.path.dirname(t.at("run", name)))
        with open(t.at("run", name), "w") as f:
            f.write("x")
    latest(t, "checkpoints/step-10")
    os.makedirs(t.at("run", "checkpoints", "step-30", ".tessera-1-2"))
    os.makedirs(t.at("run", "checkpoints", "step-40", "logs"))
    with open(t.at("run", "checkpoints", "step-50"), "w") as f:
        f.write("a file")
    latest(t, "checkpoints/step-10", ["checkpoints/step-40", "checkpoints/step-30"])


@test
def test_latest_follows_steps_and_not_trackers_or_links(t):
    copies(t, sample("dcp_small")[0], "step-9", "step-10")
    for tracker, line in (("latest", "step-9"), ("latest_checkpointed_iteration.txt", "9"), ("latest_universal", "step-9"), ("dlrover_latest.txt", "9")):
        with open(t.at("run", tracker), "w") as f:
            f.write(line)
        latest(t, "step-10")
        os.remove(t.at("run", tracker))
    os.symlink("step-9", t.at("run", "latest"))
    latest(t, "step-10")
    os.symlink("nowhere", t.at("run", "step-99"))  # as if the file system that it leads to were not mounted
    os.symlink("nowhere", t.at("run", "best"))
    doc = latest(t, "step-10", ["step-99"])
    need("leads nowhere" in doc["passed_over"][0]["reason"], doc)
    with open(t.at("run", "latest_checkpointed_iteration.txt"), "w") as f:
        f.write("9")
    need("step-10" in t.text("inspect", t.at("run"), "--step", "latest-valid").splitlines()[1], "--step latest-valid")


@test
def test_links_to_the_run_or_above_it_are_not_checkpoints(t):
    """The directory that a Trainer writes to has its steps, and the final model with a trainer_state.json."""
    trainer_files = golden("trainer")[0]
    run = copies(t, trainer_files, "checkpoint-4", "checkpoint-5")
    shutil.copytree(trainer_files, run, dirs_exist_ok=True, ignore=shutil.ignore_patterns("expect.json"))
    for target in (".", run, "..", t.directory, "checkpoint-98"):
        os.symlink(target, t.at("run", "checkpoint-98"))
        doc = latest(t, "checkpoint-5", ["checkpoint-98"])
        need("symbolic link" in doc["passed_over"][0]["reason"] and ("to the run itself" in doc["passed_over"][0]["reason"]) == (target != "checkpoint-98"), doc)
        if target != "checkpoint-98":
            need(t.text("inspect", run, "--step", "latest-valid").splitlines()[1].endswith("checkpoint-5"), target)
        os.remove(t.at("run", "checkpoint-98"))
    os.makedirs(t.at("elsewhere"))
    os.rename(t.at("run", "checkpoint-5"), t.at("elsewhere", "model"))
    os.symlink("../elsewhere/model", t.at("run", "checkpoint-5"))
    latest(t, "checkpoint-5")
    shutil.rmtree(run)
    copies(t, os.path.join(trainer_files, "optimizer.pt"), "epoch=0-step=9.ckpt", "epoch=0-step=10.ckpt")
    os.symlink(".", t.at("run", "checkpoints"))
    latest(t, "epoch=0-step=10.ckpt")


@test
def test_a_link_to_a_step_of_the_run_is_not_another_checkpoint(t):
    """The answer is the step under its own name, for every command that takes a step. A copy is another checkpoint, and nothing decides."""
    source = sample("dcp_fsdp2")[0]
    run = copies(t, source, "step-9", "step-100")
    links = {"final_step_100": "step-100", "best_step_100": "final_step_100", "latest": "step-100", "step-200": "step-100", "step-100.old": t.at("run", "step-9")}
    for name, target in links.items():
        os.symlink(target, t.at("run", name))
    latest(t, "step-100")
    for step in ("100", "latest", "latest-valid", "final_step_100"):
        need(t.run("inspect", run, "--step", step).stdout, step)
    need(os.path.basename(t.json("inspect", run, "--step", "latest", "--json")["path"]) == "run", "--step latest")
    damage(t, "step-100", "__0_0.distcp", "truncated")
    latest(t, "step-9", ["step-100"])
    damage(t, "step-9", ".metadata", "missing")
    latest(t, None, ["step-100", "step-9"])
    shutil.copytree(source, t.at("run", "copy", "step_300"))
    os.symlink("step_300", t.at("run", "copy", "final_step_300"))  # deeper ones are not followed
    os.symlink("../step-100", t.at("run", "copy", "step_100"))
    latest(t, "copy/step_300")


@test
def test_a_link_that_names_a_step_does_not_hide_plain_numbers(t):
    run = copies(t, sample("dcp_fsdp2")[0], "100", "200")
    latest(t, "200")
    os.symlink("100", t.at("run", "final_step_100"))
    os.makedirs(t.at("run", "kept"))
    os.symlink("../100", t.at("run", "kept", "step_100"))
    latest(t, "200")
    need(t.json("prune", run, "--keep", "1", "--dry-run", "--json")["kept"][0]["step"] == 200, "prune")


@test
def test_links_of_files_and_hard_links_are_one_checkpoint(t):
    source = os.path.join(golden("trainer")[0], "optimizer.pt")
    run = copies(t, source, "checkpoints/epoch=0-step=9.ckpt", "checkpoints/epoch=0-step=10.ckpt")
    os.symlink("epoch=0-step=10.ckpt", t.at("run", "checkpoints", "best-step=10.ckpt"))
    os.symlink("checkpoints", t.at("run", "latest"))
    os.symlink("checkpoints/epoch=0-step=10.ckpt", t.at("run", "linked-step=10.ckpt"))
    latest(t, "checkpoints/epoch=0-step=10.ckpt")
    need(t.run("inspect", run, "--step", "10").stdout and t.run("inspect", run, "--step", "latest").stdout, "--step")
    need(t.run("inspect", run, "--step", "best-step=10.ckpt").stdout, "by its name")
    os.link(t.at("run", "checkpoints", "epoch=0-step=10.ckpt"), t.at("run", "hard-step=10.ckpt"))
    need(answer(t, run) in ("checkpoints/epoch=0-step=10.ckpt", "hard-step=10.ckpt"), "a hard link")
    os.remove(t.at("run", "hard-step=10.ckpt"))
    shutil.copy(source, t.at("run", "checkpoints", "copy-step=10.ckpt"))
    need("there more than once" in answer(t, run, status=2), "a copy")
    shutil.rmtree(run)
    copies(t, sample("dcp_fsdp2")[0], "step-9", "step-10")
    shutil.copytree(t.at("run", "step-10"), t.at("run", "snapshot_step_10"), copy_function=os.link)
    need(answer(t, run) in ("step-10", "snapshot_step_10"), "a directory of hard links")
    os.remove(t.at("run", "snapshot_step_10", "__0_0.distcp"))
    shutil.copy(t.at("run", "step-10", "__0_0.distcp"), t.at("run", "snapshot_step_10"))
    need("there more than once" in answer(t, run, status=2), "one file is a copy")


@test
def test_links_to_a_step_of_another_run(t):
    source = sample("dcp_fsdp2")[0]
    run = copies(t, source, "a/step-10", "b/step-9")
    os.symlink("../a/step-10", t.at("run", "b", "step-10"))
    latest(t, "a/step-10")
    os.symlink(t.at("run", "a", "step-10"), t.at("run", "step-10"))
    latest(t, "a/step-10")
    need(answer(t, t.at("run", "b")) == "step-10", "a link out of the run is a step of it")
    shutil.rmtree(t.at("run", "a", "step-10"))
    os.remove(t.at("run", "step-10"))
    doc = latest(t, "b/step-9", ["b/step-10"])
    need("leads nowhere" in doc["passed_over"][0]["reason"], doc)
    shutil.copytree(source, t.at("run", ".kept", "x"))
    os.symlink(".kept/x", t.at("run", "step-11"))  # what it leads to is not listed under a name with a step
    latest(t, "step-11", path=run)


@test
def test_links_that_cannot_be_followed_are_not_an_empty_run(t):
    """As if the file system that has the checkpoints were not mounted: a launcher must not start from the beginning."""
    os.makedirs(t.at("run", "logs"))
    for name, target in (("step-5", "nowhere"), ("checkpoints", "nowhere"), ("inner/step-5", sample("dcp_small")[0])):
        os.makedirs(os.path.dirname(t.at("run", name)), exist_ok=True)
        os.symlink(target, t.at("run", name))
        message = t.run("latest", t.at("run"), status=2).stderr.decode()
        need(f"'{name}' is a symbolic link" in message and "whether there are checkpoints is unknown" in message, message)
        need(resumed(t, t.at("run")).returncode == 2, "the launcher's line")
        os.remove(t.at("run", name))
    os.symlink("nowhere", t.at("run", "latest"))
    os.symlink("nowhere", t.at("run", "train.log"))
    need("there are no checkpoints" in t.run("latest", t.at("run"), status=1).stderr.decode(), "links that are not checkpoints")


@test
def test_hidden_directories_are_not_searched(t):
    """What was moved to the trash of a file manager, what fsck found, and copies that file servers keep."""
    run = copies(t, sample("dcp_small")[0], "step-5", ".Trash-1000/files/step-98", ".step-97", "lost+found/step-99", ".snapshot/hourly.0/step-5")
    copies(t, os.path.join(golden("trainer")[0], "optimizer.pt"), "._epoch=0-step=9.ckpt", ".epoch=0-step=9.ckpt")
    os.makedirs(t.at("run", ".step-96"))
    latest(t, "step-5")
    for at, _, names in os.walk(run):
        for name in (*names, "."):
            os.utime(os.path.join(at, name), (1e9, 1e9))
    doc = t.json("prune", run, "--keep", "1", "--json")
    need(not doc["removed"] and len(doc["kept"]) == 1, doc)
    os.rename(t.at("run", "step-5"), t.at("run", "final"))
    latest(t, "final")
    need(answer(t, t.at("run", ".Trash-1000")) == "files/step-98", "unless its path is given")


@test
def test_latest_in_the_directories_that_lightning_chooses(t):
    """Its logger's directory without a path, and ModelCheckpoint's filename="{epoch}/{step}"."""
    source = os.path.join(golden("trainer")[0], "optimizer.pt")
    copies(t, source, *(f"lightning_logs/version_{v}/checkpoints/epoch={v}-step={20 * v + 20}.ckpt" for v in (0, 1)))
    latest(t, "lightning_logs/version_1/checkpoints/epoch=1-step=40.ckpt")
    shutil.rmtree(t.at("run"))
    names = [f"epoch={step // 4}/step={step}.ckpt" for step in (5, 4, 3, 2)]
    run = copies(t, source, *names)
    latest(t, names[0])
    damage(t, ".", names[0], "truncated")
    latest(t, names[1], names[:1])
    for name in names:
        os.utime(t.at("run", name), (1e9, 1e9))
    doc = t.json("prune", run, "--keep", "1", "--keep-every", "3", "--json")
    need([os.path.relpath(one["path"], run) for one in doc["removed"]] == names[3:], doc)
    latest(t, names[1], names[:1])


@test
def test_latest_passes_over_what_a_trainer_has_not_renamed(t):
    run = copies(t, trainer(), "checkpoint-4", "tmp-checkpoint-8")
    latest(t, "checkpoint-4", ["tmp-checkpoint-8"])
    t.run("prune", run, "--keep", "1")
    need(sorted(os.listdir(run)) == ["checkpoint-4", "tmp-checkpoint-8"], "it may be a save under way")


@test
def test_latest_of_a_run_without_steps(t):
    for path in (sample("dcp_fsdp2")[0], golden("trainer")[0], golden("accelerate_fsdp_sharded")[0], golden("accelerate_deepspeed")[0], deepspeed()):
        p = t.run("latest", path)
        need(p.stdout.decode() == path + "\n" and not p.stderr, f"{path} is a checkpoint itself: {p.stdout}")
    copies(t, trainer(), "checkpoint-4")
    shutil.copytree(deepspeed(), t.at("run", "checkpoint-4", "global_step4"))
    need(answer(t, t.at("run", "checkpoint-4")) == ".", "DeepSpeed's directory is part of the Trainer's step")
    latest(t, "checkpoint-4")
    shutil.rmtree(t.at("run"))
    for name in os.listdir(golden("trainer")[0]):
        copies(t, os.path.join(golden("trainer")[0], name), name)
    copies(t, golden("trainer")[0], "checkpoint-5")
    latest(t, "checkpoint-5")
    os.truncate(t.at("run", "checkpoint-5", "model.safetensors"), 90)
    latest(t, None, ["checkpoint-5"])
    shutil.rmtree(t.at("run"))
    os.makedirs(t.at("run"))
    need("there are no checkpoints" in t.run("latest", t.at("run"), status=1).stderr.decode(), "an empty run")
    shutil.copytree(deepspeed(), t.at("run"), dirs_exist_ok=True)
    for name in os.listdir(t.at("run")):
        if "model_states" in name or "rank_1" in name:
            os.remove(t.at("run", name))
    need(t.run("latest", t.at("run"), status=1).stderr.decode().startswith(f"tessera: warning: passed over {t.at('run')}: "), "a checkpoint itself, damaged")
    shutil.rmtree(t.at("run"))
    os.makedirs(t.at("run"))
    copies(t, sample("dcp_small")[0], "final")
    latest(t, "final")
    copies(t, sample("dcp_small")[0], "best")
    need("so the newest is unknown: 'best', 'final'" in answer(t, t.at("run"), status=2), "nothing says which is newer")
    shutil.rmtree(t.at("run"))
    for name in ("model_100.pt", "model_200.pt"):
        copies(t, sample("torch_plain")[0], name)
    need("so the newest is unknown: 'model_100.pt', 'model_200.pt'" in answer(t, t.at("run"), status=2), "numbers of steps or of ranks, but not an empty run")
    need("is a file" in t.run("latest", os.path.join(golden("trainer")[0], "optimizer.pt"), status=2).stderr.decode(), "a file")
    need("No such file" in t.run("latest", t.at("nowhere"), status=2).stderr.decode(), "no directory")
    need("does not list directories" in t.run("latest", "http://127.0.0.1:9/run", status=2).stderr.decode(), "an HTTP server")


@test
def test_numbers_in_names_of_different_models_are_not_steps(t):
    """"llama-2" and "qwen-3" are two models, and the name of a commit in a Hugging Face cache may end with digits. Neither is newer, and
    prune removes none of them. Names that differ only in their number are one series, as before."""
    source = sample("dcp_small")[0]
    hashes = ("5f0b02c75b57c5855da9ae460ce51323ea669d8a", "8afb486c1db24fe5011ec46dfbe5b5dccdb57502", "8afb486c1db24fe5011ec46dfbe5b5dccdb5c917")
    for names, listed in ((("llama-2", "qwen-3"), "'llama-2', 'qwen-3'"), ([f"models--org--m/snapshots/{h}" for h in hashes], hashes[2])):
        run = copies(t, source, *names)
        for command in (["latest", run], ["prune", run, "--keep", "1"]):
            why = t.run(*command, status=2).stderr.decode()
            need("do not state a step, so the newest is unknown" in why and listed in why, why)
        need(all(os.path.isdir(t.at("run", name)) for name in names), "removed")
        shutil.rmtree(run)
    copies(t, source, "run1", "run2", "run10")
    latest(t, "run10")


@test
def test_latest_prints_names_as_they_are_and_reports_them_escaped(t):
    for name in ("a\nb", "a b'$(x)", "\x1b[31m"):
        copies(t, sample("dcp_small")[0], f"{name}/step-1", f"{name}/step-2")
        os.remove(t.at("run", name, "step-2", ".metadata"))
        p = t.run("latest", t.at("run"))
        need(p.stdout.decode() == t.at("run", name, "step-1") + "\n", p.stdout)
        need(p.stderr.count(b"\n") == 1 and b"\x1b" not in p.stderr, p.stderr)
        got = resumed(t, t.at("run"))
        need(got.returncode == 0, got)
        need(got.stdout.decode() == t.at("run", name, "step-1"), got.stdout)
        shutil.rmtree(t.at("run"))


@test
def test_latest_fails_where_a_newer_directory_cannot_be_read(t):
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        raise Skip("root can read everything, and setpriv is not installed")
    as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    copies(t, sample("dcp_small")[0], "step-1", "step-2", "step-3")
    os.makedirs(t.at("run", "private"))
    program = shutil.copy(t.path, t.at("program"))
    os.chmod(t.directory, 0o755)

    def asked(name, mode):
        os.chmod(t.at("run", name), mode)
        try:
            return subprocess.run([*as_user, program, "latest", t.at("run")], capture_output=True, text=True)
        finally:
            os.chmod(t.at("run", name), 0o755)
    for mode in (0, 0o444):
        p = asked("step-3", mode)
        need(p.returncode == 2 and "'step-3'" in p.stderr and "Permission denied" in p.stderr and not p.stdout, f"{mode:o}: {p}")
        p = asked("step-1", mode)
        need(p.returncode == 0 and p.stdout.endswith("step-3\n") and not p.stderr, f"older: {p}")
    p = asked("step-3/.metadata", 0)
    need(p.returncode == 2 and not p.stdout, p)
    p = asked("private", 0)
    need(p.returncode == 0 and p.stdout.endswith("step-3\n") and "'private' cannot be listed" in p.stderr, p)
    for n in (1, 2, 3):
        shutil.rmtree(t.at("run", f"step-{n}"))
    p = asked("private", 0)
    need(p.returncode == 2 and not p.stdout and "'private' cannot be listed" in p.stderr, p)
    p = asked(".", 0)
    need(p.returncode == 2 and not p.stdout, p)


@test
def test_step_latest_valid_and_the_warning_of_step_latest(t):
    run = copies(t, sample("dcp_fsdp2")[0], "step-9", "step-10", "step-11")
    whole = t.json("inspect", t.at("run", "step-9"), "--json")["entries"]
    p = t.run("convert", run, t.at("whole.pt"), "--step", "latest")
    need(b"warning" not in p.stderr, p.stderr)
    damage(t, "step-11", "__0_0.distcp", "truncated")
    damage(t, "step-10", ".metadata", "missing")
    p = t.run("manifest", run, "--step", "latest", status=(0, 2))
    need(p.stderr.decode().count("the newest checkpoint, step-11, has errors: ") == 1 and "--step latest-valid" in p.stderr.decode(), p.stderr)
    p = t.run("convert", run, t.at("valid.pt"), "--step", "latest-valid")
    for step in (10, 11):
        need(p.stderr.decode().count(f"'step-{step}' is newer") == 1, p.stderr)
    t.run("diff", t.at("whole.pt"), t.at("valid.pt"), "--values")
    need(t.json("inspect", run, "--step", "latest-valid", "--json")["entries"] == whole, "inspect")
    found = t.json("validate", run, "--step", "latest-valid", "--json")["findings"]
    need([f["rule"] for f in found] == ["parts/passed-over"] * 2, found)
    damage(t, "step-9", ".metadata", "empty")
    message = t.run("inspect", run, "--step", "latest-valid", status=2).stderr.decode()
    need("no checkpoint in the directory is without errors" in message and "'step-11'" in message, message)


@test
def test_latest_deep_reads_every_byte(t):
    source = sample("dcp_fsdp2")[0]
    copies(t, source, "step-7", "step-8")
    path = t.at("run", "step-8", "__0_0.distcp")
    with open(path, "r+b") as f:
        data = bytearray(f.read())
        at = data.index(b"archive/data/") if b"archive/data/" in data else len(data) // 2
        data[at + 80] ^= 0xff
        f.seek(0)
        f.write(data)
    need(answer(t, t.at("run")) == "step-8", "sizes are right")
    need(answer(t, t.at("run"), "--deep") == "step-7", "bytes are not")


@test
def test_the_line_of_the_samples_tells_a_new_run_from_an_outage(t):
    os.makedirs(t.at("run"))
    got = resumed(t, t.at("run"))
    need((got.returncode, got.stdout) == (0, b""), f"a new run: {got}")
    got = resumed(t, t.at("absent"))
    need((got.returncode, got.stdout) == (2, b""), f"no directory: {got}")
    copies(t, sample("dcp_small")[0], "step-1")
    need(resumed(t, t.at("run")).stdout.decode() == t.at("run", "step-1"), "a checkpoint")
