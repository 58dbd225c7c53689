"""Removing old checkpoints: `tessera prune`. The checkpoints are those that the real libraries wrote (samples, tests/golden); what has to
stay and what has to go is stated by which directory is the newest one that was left whole."""
import atexit
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
import zlib

from harness import Skip, need, preloadable, sample, test
from test_directories import golden
from test_latest import FORMS, copies, damage, deepspeed, trainer

HOUR = 3600


def age(path, seconds=HOUR):
    """Sets the times of all files back, as after a night; those of directories stay, because removing a file changes them, too."""
    then = time.time() - seconds
    for top, _, files in os.walk(path):
        for name in files:
            os.utime(os.path.join(top, name), (then, then), follow_symlinks=False)


def aged(t, source, *names):
    run = copies(t, source, *names)
    age(run)
    return run


def tree(path):
    """Every name below a directory, with the bytes of files and the targets of links."""
    found = {}
    for top, directories, files in os.walk(path):
        for name in directories + files:
            at = os.path.join(top, name)
            kind = os.readlink(at) if os.path.islink(at) else None if os.path.isdir(at) else open(at, "rb").read()
            found[os.path.relpath(at, path)] = kind
    return found


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)
    os.utime(path, (time.time() - HOUR,) * 2)


def prune(t, *options, removed, status=0, run=None, kept=None):
    """Checks that exactly `removed` (paths below the run, the newest first) are removed, that --dry-run says the same before and
    changes nothing, and that everything else keeps its bytes. Returns the document."""
    run = run or t.at("run")
    before = tree(run)
    dry = t.json("prune", run, *options, "--dry-run", "--json", status=status)
    need(tree(run) == before, "--dry-run changed something")
    doc = t.json("prune", run, *options, "--json", status=status)
    need({**dry, "dry_run": False} == doc, f"--dry-run showed {dry['removed']}, and then {doc['removed']} was done")
    names = [os.path.relpath(one["path"], run) for one in doc["removed"]]
    need(names == list(removed), f"removed {names} instead of {list(removed)}; kept {[(k['path'], k['reason']) for k in doc['kept']]}")
    after = tree(run)
    left = {os.path.relpath(path, run) for one in doc["removed"] for path in one["left"]}
    gone = {name for name in before if name not in after}
    inside = [name for name in before if any(name == r or name.startswith(r + "/") for r in names)]
    stay = left | {os.path.dirname(name) for name in left} | {p for name in left for p in parents(name)}
    need(gone == {name for name in inside if name not in stay}, f"gone {sorted(gone)}; left {sorted(left)}")
    need({k: v for k, v in before.items() if k not in gone} == after, f"something else changed: {sorted(set(after) ^ set(before))}")
    if kept:
        reasons = {os.path.relpath(k["path"], run): k["reason"] for k in doc["kept"]}
        for name, reason in kept.items():
            need(reason in reasons.get(name, ""), f"{name}: {reasons}")
    return doc


def parents(name):
    while os.path.dirname(name):
        name = os.path.dirname(name)
        yield name


@test
def test_prune_of_every_form_keeps_the_newest_and_removes_the_rest_with_its_directory(t):
    for form, source, name, _ in FORMS:
        shutil.rmtree(t.at("run"), ignore_errors=True)
        names = [name.format(n) for n in (9, 10, 100)]
        aged(t, source(), *names)
        try:
            prune(t, "--keep", "2", removed=names[:1])
            need(not os.path.exists(t.at("run", names[0])), f"files were left in {names[0]}")
            prune(t, "--keep", "1", removed=names[1:2])
            prune(t, "--keep", "1", removed=[])
            need(t.text("latest", t.at("run")).strip() == t.at("run", names[2]), "the newest is whole")
        except Exception as e:
            raise AssertionError(f"{form}: {e}") from e


@test
def test_prune_of_files_with_a_step_in_their_names(t):
    path = os.path.join(golden("trainer")[0], "optimizer.pt")
    names = ["epoch=0-step=9.ckpt", "epoch=0-step=10.ckpt", "epoch=0-step=10-v1.ckpt", "last.ckpt"]
    aged(t, path, *names)
    write(t.at("run", "hparams.yaml"), "lr: 1\n")
    prune(t, "--keep", "2", removed=names[:1])
    prune(t, "--keep", "1", removed=names[1:2])
    need(sorted(os.listdir(t.at("run"))) == sorted([names[2], "last.ckpt", "hparams.yaml"]), os.listdir(t.at("run")))


@test
def test_prune_keeps_multiples_and_needs_a_number(t):
    run = aged(t, sample("dcp_small")[0], *(f"step-{n}" for n in (100, 150, 200, 250, 300, 350)))
    p = t.run("prune", run, status=2)
    need(b"--keep" in p.stderr, p.stderr)
    for wrong in (["--keep", "0"], ["--keep", "-1"], ["--keep", "x"], ["--keep", "1", "--keep-every", "0"]):
        t.run("prune", run, *wrong, status=2)
    need(len(os.listdir(run)) == 6, "a refusal removes nothing")
    prune(t, "--keep", "1", "--keep-every", "100", removed=["step-250", "step-150"])
    text = t.text("prune", run, "--keep", "1", "--dry-run")
    need([line.split(" (")[0] for line in text.splitlines()] == [f"would remove {run}/step-{n}" for n in (300, 200, 100)], text)
    text = t.text("prune", run, "--keep", "1")
    need([line.split(" (")[0] for line in text.splitlines()] == [f"removed {run}/step-{n}" for n in (300, 200, 100)], text)


@test
def test_prune_removes_older_damaged_ones_and_no_newer_ones(t):
    for form, source, name, damages in FORMS:
        for file, how in damages:
            shutil.rmtree(t.at("run"), ignore_errors=True)
            old, good, new = (name.format(n) for n in (9, 10, 100))
            aged(t, source(), old, good, new)
            whole = t.json("validate", t.at("run", old), "--json")["findings"]
            for one in (old, new):
                damage(t, one, file, how)
            if t.run("validate", t.at("run", old), "--quiet", status=(0, 1, 2)).returncode == 0:
                shutil.rmtree(t.at("run", old))
                copies(t, source(), old)  # only earlier steps show that the file is missing
            age(t.at("run"))
            doc = t.json("prune", t.at("run"), "--keep", "1", "--dry-run", "--json")
            need(os.path.exists(t.at("run", new)), whole)
            gone = [os.path.relpath(one["path"], t.at("run")) for one in doc["removed"]]
            reasons = {os.path.relpath(k["path"], t.at("run")): k["reason"] for k in doc["kept"]}
            marked = "no marker" not in reasons.get(old, "")
            need(gone == ([old] if marked else []), f"{form}, {file} {how}: {gone}, {reasons}")
            if file in (".metadata", "meta.pt", "trainer_state.json", "metadata.json") and how == "missing":
                need(not marked, f"{form}: it has no {file}, so it may be a save")
            if how != "missing" and form not in ("deepspeed",):
                need(marked, f"{form}, {file} {how}: {reasons}")
            need("no marker" in reasons[new] or "not older than the newest valid one" in reasons[new], reasons)
            prune(t, "--keep", "1", removed=gone)


@test
def test_prune_removes_nothing_where_nothing_is_valid(t):
    aged(t, sample("dcp_fsdp2")[0], "step-1", "step-2")
    for n in (1, 2):
        damage(t, f"step-{n}", "__0_0.distcp", "truncated")
    age(t.at("run"))
    prune(t, "--keep", "1", removed=[], status=1)
    shutil.rmtree(t.at("run"))
    os.makedirs(t.at("run"))
    need("there are no checkpoints" in t.run("prune", t.at("run"), "--keep", "1", status=1).stderr.decode(), "an empty run")
    t.run("prune", t.at("nowhere"), "--keep", "1", status=2)
    t.run("prune", os.path.join(golden("trainer")[0], "optimizer.pt"), "--keep", "1", status=2)
    need("does not list directories" in t.run("prune", "http://127.0.0.1:9/run", "--keep", "1", status=2).stderr.decode(), "an HTTP server")
    copies(t, trainer(), "final")
    age(t.at("run"))
    prune(t, "--keep", "1", removed=[], kept={"final": "it has no step"})


@test
def test_prune_leaves_files_of_others_and_links(t):
    outside = shutil.copytree(sample("dcp_small")[0], t.at("outside"))
    aged(t, sample("dcp_fsdp2")[0], "step-1", "step-2", "step-3")
    write(t.at("run", "step-1", "notes.txt"), "mine")
    write(t.at("run", "step-1", "logs", "deep", "a.log"), "mine")
    write(t.at("run", "step-1", "__0_0.distcp.bak"), "mine")
    os.symlink(outside, t.at("run", "step-1", "linked"))
    os.symlink(os.path.join(outside, ".metadata"), t.at("run", "step-1", "linked.pt"))
    os.makedirs(t.at("run", "step-1", "empty", "empty"))
    os.symlink(outside, t.at("run", "step-99"))
    before = tree(outside)
    doc = prune(t, "--keep", "2", removed=["step-1"])
    names = sorted(os.path.relpath(p, t.at("run", "step-1")) for p in doc["removed"][0]["left"])
    need(names == ["__0_0.distcp.bak", "linked", "linked.pt", "logs/deep/a.log", "notes.txt"], names)
    need(sorted(tree(t.at("run", "step-1"))) == ["__0_0.distcp.bak", "linked", "linked.pt", "logs", "logs/deep", "logs/deep/a.log", "notes.txt"], "stays")
    need(tree(outside) == before, "what is outside")
    os.symlink("step-2", t.at("run", "final_step_2"))
    prune(t, "--keep", "1", removed=[], kept={"step-2": "the symbolic link 'final_step_2' leads to it"})
    os.remove(t.at("run", "final_step_2"))
    write(t.at("run", "step-2", "notes.txt"), "mine")
    os.symlink(outside, t.at("run", "step-2", "linked"))
    p = t.run("prune", t.at("run"), "--keep", "1")
    need(f"{t.at('run', 'step-2')}: some files are not part of the checkpoint, and stay: linked, notes.txt\n" in p.stderr.decode(), p.stderr)


@test
def test_prune_keeps_what_an_index_of_shards_refers_to(t):
    """Transformers loads shards from the paths in an index, wherever they are: next to the steps, or in another step."""
    source = os.path.dirname(sample("safetensors_index")[0])
    with open(os.path.join(source, "model.safetensors.index.json")) as f:
        index = json.load(f)

    def refer(to, path):
        weights = {name: path + file if "00001-of" in file else file for name, file in index["weight_map"].items()}
        write(t.at("run", to, "model.safetensors.index.json"), json.dumps({**index, "weight_map": weights}))
    aged(t, source, *(f"checkpoint-{n}" for n in range(1, 7)))
    refer("checkpoint-6", "../checkpoint-1/")
    refer("exported", "../checkpoint-3/")
    prune(t, "--keep", "1", removed=["checkpoint-4", "checkpoint-2"], kept={"checkpoint-1": "refers to it", "checkpoint-3": "refers to it"})


@test
def test_prune_removes_whole_directories_if_asked(t):
    outside = shutil.copytree(sample("dcp_small")[0], t.at("outside"))
    before = tree(outside)
    aged(t, sample("dcp_fsdp2")[0], "step-1", "step-2", "step-3")
    write(t.at("run", "step-2", "logs", "a.log"), "mine")
    os.symlink(outside, t.at("run", "step-2", "linked"))
    shutil.copytree(golden("trainer")[0], t.at("run", "step-1", "export"))
    age(t.at("run"))
    doc = prune(t, "--keep", "1", "--whole-directory", removed=["step-2", "step-1"])
    need(not os.path.exists(t.at("run", "step-2")), "the directory")
    need("contains another checkpoint" in doc["removed"][1]["left_because"], doc)
    need(set(os.listdir(t.at("run", "step-1"))) == {"export"}, "another checkpoint stays")
    need(tree(t.at("run", "step-1", "export")) == tree(golden("trainer")[0]), "with its bytes")
    need(tree(outside) == before, "links are not followed")


@test
def test_prune_removes_what_a_trainer_always_writes(t):
    aged(t, golden("trainer")[0], "checkpoint-1", "checkpoint-2")
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "vocab.json"):
        if not os.path.exists(t.at("run", "checkpoint-1", name)):
            write(t.at("run", "checkpoint-1", name), "{}")
    write(t.at("run", "checkpoint-1", "eval.json"), "{}")
    prune(t, "--keep", "1", removed=["checkpoint-1"])
    need(os.listdir(t.at("run", "checkpoint-1")) == ["eval.json"], os.listdir(t.at("run", "checkpoint-1")))


@test
def test_prune_keeps_what_was_changed_within_ten_minutes(t):
    aged(t, sample("dcp_fsdp2")[0], "step-1", "step-2", "step-3", "step-4")
    age(t.at("run", "step-1"), 500)
    then = time.time() - 30
    os.utime(t.at("run", "step-2", "__1_0.distcp"), (then, then))
    prune(t, "--keep", "1", removed=["step-3"], kept={"step-1": "ten minutes", "step-2": "ten minutes"})
    age(t.at("run", "step-1"), 700)
    prune(t, "--keep", "1", removed=["step-1"], kept={"step-2": "ten minutes"})
    ahead = time.time() + HOUR
    os.utime(t.at("run", "step-2", "__1_0.distcp"), (ahead, ahead))
    prune(t, "--keep", "1", removed=[])


@test
def test_prune_goes_by_steps_in_any_time_zone_and_with_any_times(t):
    """Equal times, times in the reverse order of the steps, those around a change of the clock, before 1970 and in the future."""
    names, zone = [f"step-{n}" for n in (3, 20, 100)], os.environ.get("TZ")
    changed = 1774746000  # 2026-03-29 01:00 UTC, when clocks in Berlin go from 2 to 3
    times = {"equal": [changed] * 3, "reverse": [changed, changed - HOUR, changed - 2 * HOUR], "change": [changed + HOUR, changed - 1, changed], "old": [-5, -HOUR, 0]}
    try:
        for where in ("UTC", "Europe/Berlin", "Pacific/Kiritimati", "America/St_Johns", "Nowhere/At_All"):
            os.environ["TZ"] = where
            for one in times.values():
                shutil.rmtree(t.at("run"), ignore_errors=True)
                copies(t, sample("dcp_small")[0], *names)
                for name, then in zip(names, one):
                    for file in os.listdir(t.at("run", name)):
                        os.utime(t.at("run", name, file), (then, then))
                prune(t, "--keep", "1", "--keep-every", "10", removed=names[:1])
                prune(t, "--keep", "1", removed=names[1:2])
            copies(t, sample("dcp_small")[0], *names[:2])
            age(t.at("run", names[0]))
            ahead = time.time() + 30 * HOUR  # the clock was wrong when it was written
            for file in os.listdir(t.at("run", names[1])):
                os.utime(t.at("run", names[1], file), (ahead, ahead))
            prune(t, "--keep", "1", removed=names[:1], kept={names[1]: "ten minutes"})
    finally:
        os.environ.pop("TZ") if zone is None else os.environ.update(TZ=zone)


@test
def test_prune_leaves_what_rsync_has_not_put_in_place(t):
    """With --delay-updates whole files wait in .~tmp~ with the times of their sources, .metadata too."""
    run = aged(t, sample("dcp_fsdp2")[0], "step-1", "step-2")
    os.mkdir(t.at("run", "step-1", ".~tmp~"))
    for name in os.listdir(t.at("run", "step-1")):
        if name != ".~tmp~":
            os.rename(t.at("run", "step-1", name), t.at("run", "step-1", ".~tmp~", name))
    before = tree(run)
    prune(t, "--keep", "1", removed=[], kept={"step-1": "no marker"})
    prune(t, "--keep", "1", "--whole-directory", removed=[], kept={"step-1": "no marker"})
    need(tree(run) == before, "files that are being copied were removed")


@test
def test_prune_keeps_what_a_tracker_file_names(t):
    for tracker, line, kept in (("latest", "global_step2", 2), ("latest_universal", "global_step1\n", 1), ("latest_checkpointed_iteration.txt", "2", 2), ("dlrover_latest.txt", "1", 1),
                                ("LATEST.txt", "global_step2", 2), ("LOWEST_VAL.txt", "global_step1", 1)):
        shutil.rmtree(t.at("run"), ignore_errors=True)
        aged(t, sample("dcp_small")[0], "global_step1", "global_step2", "global_step12")
        write(t.at("run", tracker), line)
        prune(t, "--keep", "1", removed=[f"global_step{3 - kept}"], kept={f"global_step{kept}": f"'{tracker}' names it"})
    shutil.rmtree(t.at("run"))
    aged(t, sample("dcp_small")[0], "step-1", "step-2", "step-12")
    os.symlink("step-1", t.at("run", "best"))
    prune(t, "--keep", "1", removed=["step-2"], kept={"step-1": "the symbolic link 'best' leads to it"})


@test
def test_prune_finds_only_whole_names_in_what_refers_to_a_checkpoint(t):
    """Names of different lengths, with spaces, and twice in different epochs, where a text may mean either."""
    for names, line, kept in ((["step-1", "step-11", "step-111", "step-1111"], "see step-11, or /runs/step-1/\n", ["step-1"]),
                              (["my step 5", "step 5", "step 15", "step 16"], "run/my step 5", ["my step 5", "step 5"]),
                              (["my step 5", "step 5", "step 15", "step 16"], "'step 15'", ["step 15"]),
                              (["epoch_1/step_5", "epoch_2/step_5", "epoch_2/step_6", "epoch_3/step_7"], "step_5", ["epoch_1/step_5", "epoch_2/step_5"]),
                              (["epoch_1/step_5", "epoch_2/step_5", "epoch_2/step_6", "epoch_3/step_7"], "5\n", ["epoch_1/step_5", "epoch_2/step_5"]),
                              (["step-7", "step-8", "step-9", "step-10"], "8 9", [])):
        shutil.rmtree(t.at("run"), ignore_errors=True)
        run = aged(t, sample("dcp_small")[0], *names)
        before = json.loads(t.run("prune", run, "--keep", "1", "--dry-run", "--json").stdout)
        newest = {os.path.relpath(k["path"], run) for k in before["kept"]}
        need(len(newest) == 1 and len(before["removed"]) == 3, before)
        write(t.at("run", "latest"), line)
        doc = json.loads(t.run("prune", run, "--keep", "1", "--json").stdout)
        found = {os.path.relpath(k["path"], run) for k in doc["kept"] if "'latest' names it" in k["reason"]}
        need(found == set(kept), f"{line!r} names {found}")
        need(all(os.path.exists(t.at("run", name, ".metadata")) == (name in newest | found) for name in names), f"{line!r}: {doc}")


@test
def test_prune_keeps_what_a_kept_checkpoint_refers_to(t):
    run = aged(t, trainer(), *(f"checkpoint-{n}" for n in (1, 2, 3, 4, 5)))
    for n, best in ((5, 2), (2, 1), (4, 3)):
        path = t.at("run", f"checkpoint-{n}", "trainer_state.json")
        with open(path) as f:
            state = json.load(f)
        state["best_model_checkpoint"] = f"/home/me/run/checkpoint-{best}"
        write(path, json.dumps(state))
    prune(t, "--keep", "1", removed=["checkpoint-4", "checkpoint-3"], kept={"checkpoint-2": "'checkpoint-5' refers to it", "checkpoint-1": "'checkpoint-2' refers to it"})
    shutil.rmtree(run)
    aged(t, trainer(), *(f"checkpoint-{n}" for n in (1, 2, 3, 4)))
    for name, target in (("checkpoint-4", "checkpoint-1"), ("checkpoint-3", "checkpoint-2")):
        path = t.at("run", name, "model.safetensors")
        os.remove(path)
        os.symlink(os.path.join("..", target, "model.safetensors"), path)
    os.remove(t.at("run", "checkpoint-4", "optimizer.pt"))
    os.link(t.at("run", "checkpoint-3", "optimizer.pt"), t.at("run", "checkpoint-4", "optimizer.pt"))
    prune(t, "--keep", "1", removed=["checkpoint-3", "checkpoint-2"], kept={"checkpoint-1": "leads to it"})


@test
def test_prune_keeps_the_best_that_lightning_remembers(t):
    try:
        import torch
    except ImportError as e:
        raise Skip("PyTorch is not installed") from e
    os.makedirs(t.at("run"))
    for n, best in ((10, 10), (20, 10), (30, 10)):
        callbacks = {"ModelCheckpoint{'monitor': 'val_loss', 'mode': 'min'}": {"monitor": "val_loss", "best_model_path": f"/data/run/epoch=0-step={best}.ckpt"}}
        torch.save({"epoch": 0, "global_step": n, "state_dict": {"w": torch.full((3,), float(n))}, "callbacks": callbacks}, t.at("run", f"epoch=0-step={n}.ckpt"))
    age(t.at("run"))
    prune(t, "--keep", "1", removed=["epoch=0-step=20.ckpt"], kept={"epoch=0-step=10.ckpt": "'epoch=0-step=30.ckpt' refers to it"})


@test
def test_prune_keeps_a_dcp_whose_files_are_in_another_step(t):
    """PyTorch follows a relative path out of the directory; Tessera does not, so it cannot know whether the checkpoint is whole."""
    aged(t, sample("dcp_small")[0], "step-0001", "step-0002", "step-0004")
    shutil.copytree(sample("broken_dcp_path_traversal")[0], t.at("run", "step-0003"))
    path = t.at("run", "step-0003", ".metadata")
    with open(path, "rb") as f:
        data = f.read()
    need(data.count(b"../dcp_small/") == 1, "the sample refers to its neighbor")
    with open(path, "wb") as f:
        f.write(data.replace(b"../dcp_small/", b"../step-0001/"))
    age(t.at("run"))
    prune(t, "--keep", "1", removed=["step-0002"], kept={"step-0003": "is not known", "step-0001": "'step-0003' refers to it"})


@test
def test_prune_removes_what_frameworks_write_together(t):
    copies(t, trainer(), "checkpoint-1", "checkpoint-2", "checkpoint-3")
    for n in (1, 2, 3):
        shutil.rmtree(t.at("run", f"checkpoint-{n}", "checkpoint-4"), ignore_errors=True)
        shutil.copytree(deepspeed(), t.at("run", f"checkpoint-{n}", f"global_step{n}"))
        for name in ("zero_to_fp32.py", "latest"):
            write(t.at("run", f"checkpoint-{n}", name), f"global_step{n}")
    age(t.at("run"))
    prune(t, "--keep", "2", removed=["checkpoint-1"])
    need(not os.path.exists(t.at("run", "checkpoint-1")), "DeepSpeed below the Trainer's directory")
    shutil.rmtree(t.at("run"))
    for source, name in ((golden("accelerate_deepspeed")[0], "checkpoint_{}"), (sample("safetensors_consolidated")[0], "step-{}")):
        shutil.rmtree(t.at("run"), ignore_errors=True)
        aged(t, source if os.path.isdir(source) else os.path.dirname(source), name.format(1), name.format(2))
        prune(t, "--keep", "1", removed=[name.format(1)])
        need(os.listdir(t.at("run")) == [name.format(2)], os.listdir(t.at("run")))
    shutil.rmtree(t.at("run"))
    ranks = sample("torch_ranks_tp_fsdp2")[0]
    files = sorted(f for f in os.listdir(ranks) if f.endswith((".pt", ".pth")))
    for n in (1, 2):
        for rank, file in enumerate(files):
            os.makedirs(t.at("run", f"global_step_{n}", "actor", "huggingface"), exist_ok=True)
            shutil.copy(os.path.join(ranks, file), t.at("run", f"global_step_{n}", "actor", f"model_world_size_{len(files)}_rank_{rank}.pt"))
        shutil.copy(os.path.join(golden("trainer")[0], "scheduler.pt"), t.at("run", f"global_step_{n}", "data.pt"))
        write(t.at("run", f"global_step_{n}", "actor", "fsdp_config.json"), json.dumps({"FSDP_version": 2, "world_size": len(files)}))
        write(t.at("run", f"global_step_{n}", "actor", "huggingface", "config.json"), "{}")
    age(t.at("run"))
    copies(t, t.at("run", "global_step_2"), "global_step_3", "global_step_4")
    damage(t, "global_step_1", f"actor/model_world_size_{len(files)}_rank_1.pt", "truncated")
    damage(t, "global_step_2", f"actor/model_world_size_{len(files)}_rank_1.pt", "missing")
    age(t.at("run"))
    prune(t, "--keep", "1", removed=["global_step_3", "global_step_1"], kept={"global_step_2": "no marker"})
    need(sorted(os.listdir(t.at("run"))) == ["global_step_2", "global_step_4"], "verl")


@test
def test_prune_of_a_step_with_several_checkpoints(t):
    source = sample("dcp_fsdp2")[0]
    for n in (5, 10, 15):
        copies(t, source, f"global_step_{n}/actor", f"global_step_{n}/critic")
    os.remove(t.at("run", "global_step_15", "critic", ".metadata"))
    os.remove(t.at("run", "global_step_5", "critic", ".metadata"))
    age(t.at("run"))
    prune(t, "--keep", "1", removed=[], kept={"global_step_5": "no marker", "global_step_15": "no marker"})
    shutil.copy(os.path.join(source, ".metadata"), t.at("run", "global_step_5", "critic", ".metadata"))
    age(t.at("run"))
    prune(t, "--keep", "1", removed=["global_step_5"])


@test
def test_prune_refuses_several_runs(t):
    aged(t, sample("dcp_small")[0], "a/step-1", "a/step-2", "b/step-1")
    p = t.run("prune", t.at("run"), "--keep", "1", status=2)
    need(b"several runs" in p.stderr and len(os.listdir(t.at("run", "a"))) == 2, p.stderr)
    prune(t, "--keep", "1", removed=["step-1"], run=t.at("run", "a"))
    shutil.rmtree(t.at("run"))
    aged(t, sample("dcp_small")[0], "epoch_1/step_100", "epoch_1/step_200", "epoch_2/step_300")
    prune(t, "--keep", "1", removed=["epoch_1/step_200", "epoch_1/step_100"])


@test
def test_prune_deep_reads_every_byte(t):
    aged(t, sample("dcp_fsdp2")[0], "step-7", "step-8", "step-9")
    path = t.at("run", "step-8", "__0_0.distcp")
    with open(path, "r+b") as f:
        data = bytearray(f.read())
        data[data.index(b"archive/data/") + 80] ^= 0xff
        f.seek(0)
        f.write(data)
    age(t.at("run"))
    dry = t.json("prune", t.at("run"), "--keep", "2", "--dry-run", "--json")
    need([os.path.basename(one["path"]) for one in dry["removed"]] == ["step-7"], dry)
    doc = prune(t, "--keep", "2", "--deep", removed=["step-8"])
    need(doc["removed"][0]["because"] == "damaged", doc)


# ---- killed, and several at the same time ----


@functools.lru_cache(None)
def killer():
    """A library that kills the process before (or with KILL_AFTER after) its Nth call that changes a file system."""
    library = os.path.join(tempfile.mkdtemp(prefix="tessera-killed-"), "killer.so")
    code = r"""#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>
static long left = -1;
static void count(void)
{
    if (left < 0) left = atol(getenv("KILL_AT"));
    if (--left == 0) kill(getpid(), SIGKILL);
}
#define CALL(name, parameters, arguments) \
    int name parameters { int (*real) parameters = dlsym(RTLD_NEXT, #name); \
        if (!getenv("KILL_AFTER")) count(); \
        int result = real arguments; \
        if (getenv("KILL_AFTER")) count(); \
        return result; }
CALL(unlinkat, (int directory, const char *name, int flags), (directory, name, flags))
CALL(fsync, (int fd), (fd))
CALL(fdatasync, (int fd), (fd))
CALL(flock, (int fd, int how), (fd, how))
ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    ssize_t (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, "pwrite");
    if (!getenv("KILL_AFTER")) count();
    const ssize_t result = real(fd, data, size, at);
    if (getenv("KILL_AFTER")) count();
    return result;
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { return pwrite(fd, data, size, at); }
int openat(int directory, const char *name, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    int (*real)(int, const char *, int, ...) = dlsym(RTLD_NEXT, "openat");
    if ((flags & O_CREAT) && !getenv("KILL_AFTER")) count();
    const int fd = real(directory, name, flags, mode);
    if ((flags & O_CREAT) && getenv("KILL_AFTER")) count();
    return fd;
}
int openat64(int directory, const char *name, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return openat(directory, name, flags, mode);
}
"""
    atexit.register(shutil.rmtree, os.path.dirname(library), ignore_errors=True)
    return preloadable(library, code)


def killed_at(t, n, after, *args):
    env = {**os.environ, "LD_PRELOAD": killer(), "KILL_AT": str(n), **({"KILL_AFTER": "1"} if after else {})}
    return subprocess.run([t.path, "prune", t.at("run"), *args], capture_output=True, env=env, timeout=60)


def names_in_run(t):
    """All but empty files with a record's name: a prune that is killed before it writes the first line of its record leaves one, which
    the next cannot tell from another program's."""
    names = sorted(os.listdir(t.at("run")))
    return [name for name in names if not name.startswith(".tessera-prune-") or os.path.getsize(t.at("run", name))]


# A form, and the file without which it is visibly not whole.
MARKERS = [
    ("dcp", lambda: sample("dcp_fsdp2")[0], "step-{}", lambda path: os.path.exists(os.path.join(path, ".metadata"))),
    ("trainer", trainer, "checkpoint-{}", lambda path: os.path.exists(os.path.join(path, "trainer_state.json"))),
    ("accelerate fsdp", lambda: golden("accelerate_fsdp_sharded")[0], "checkpoint_{}",
     lambda path: all(os.path.exists(os.path.join(path, d, ".metadata")) for d in ("pytorch_model_fsdp_0", "optimizer_0"))),
    ("safetensors index", lambda: os.path.dirname(sample("safetensors_index")[0]), "checkpoint-{}",
     lambda path: os.path.exists(os.path.join(path, "model.safetensors.index.json"))),
    ("deepspeed", deepspeed, "global_step{}", lambda path: os.path.exists(path) and len([f for f in os.listdir(path) if f.endswith("_model_states.pt")]) == 2),
]


@test
def test_prune_killed_at_any_call_leaves_whole_or_unmarked_checkpoints_and_is_finished_by_the_next(t):
    for form, source, name, is_marked in MARKERS:
        old, other, new = (name.format(n) for n in (1, 2, 3))
        whole = tree(source())
        total = 0
        for after in (False, True) if form == "dcp" else (False,):
            for n in range(1, 1000):
                shutil.rmtree(t.at("run"), ignore_errors=True)
                copies(t, source(), old, other, new)
                write(t.at("run", old, "notes.txt"), "mine")
                age(t.at("run"))
                p = killed_at(t, n, after, "--keep", "1")
                if p.returncode == 0:
                    break
                need(p.returncode == -signal.SIGKILL, p)
                total += 1
                for step in (old, other, new):
                    path = t.at("run", step)
                    found = {k: v for k, v in tree(path).items() if k != "notes.txt"} if os.path.exists(path) else {}
                    need(found == whole if is_marked(path) else step != new, f"{form}, call {n}: {step} has {sorted(found)}")
                    need(not is_marked(path) or found, step)
                if form == "dcp":
                    need(t.text("latest", t.at("run")).strip() == t.at("run", new), f"call {n}")
                t.run("prune", t.at("run"), "--keep", "1")
                need(names_in_run(t) == [old, new], f"{form}, call {n}: {names_in_run(t)}")
                need(sorted(tree(t.at("run", old))) == ["notes.txt"], f"{form}, call {n}: {sorted(tree(t.at('run', old)))}")
                need(tree(t.at("run", new)) == whole, f"{form}, call {n}")
            need(n > 8, f"{form}: {n} calls")
        print(f"{form}: killed {total} times")


@test
def test_a_changed_byte_in_a_record_removes_nothing(t):
    """A prune was killed before it removed the first marker. Whatever byte of its record changes, the checkpoints that it lists are whole, and
    the next prune decides again: one that keeps them all removes nothing."""
    rng = random.Random(44)
    run = aged(t, sample("dcp_fsdp2")[0], "step-1", "step-2", "step-3")
    before = tree(run)
    records = []
    for n in range(1, 100):
        killed_at(t, n, False, "--keep", "1")
        records = [(name, text) for name, text in tree(run).items() if name not in before and b".metadata" in text]
        if records:
            break
    need(before.items() <= tree(run).items(), "killed before the first removal")
    name, record = records[0]
    marker = range(record.index(b".metadata"), record.index(b".metadata") + len(".metadata"))  # as if it were gone already
    for at in (*marker, *(range(len(record)) if os.environ.get("TSR_TEST_FULL") else rng.sample(range(len(record)), 40))):
        with open(t.at("run", name), "wb") as f:
            f.write(record[:at] + bytes([record[at] ^ (1 if at in marker else rng.randrange(1, 256))]) + record[at + 1:])
        doc = t.json("prune", run, "--keep", "3", "--json")
        need(not doc["removed"] and before.items() <= tree(run).items(), f"byte {at} of {record}: {doc['removed']}")


@test
def test_prune_finishes_only_what_a_record_lists(t):
    """A save that was interrupted has no marker either, and files that were written again are others."""
    source = sample("dcp_fsdp2")[0]

    def stopped():
        """A run with three steps, whose step 2 has lost its marker to a killed prune."""
        shutil.rmtree(t.at("run"), ignore_errors=True)
        aged(t, source, "step-1", "step-2", "step-3")
        os.remove(t.at("run", "step-1", ".metadata"))
        for n in range(1, 100):
            killed_at(t, n, True, "--keep", "1")
            if not os.path.exists(t.at("run", "step-2", ".metadata")):
                break
        need(os.path.exists(t.at("run", "step-2", "__0_0.distcp")), "killed after the marker")
    stopped()
    dry = t.json("prune", t.at("run"), "--keep", "1", "--json", "--dry-run")
    doc = t.json("prune", t.at("run"), "--keep", "1", "--json")
    need(doc == {**dry, "dry_run": False}, f"{dry} was shown, and {doc} was done")
    need([(os.path.basename(one["path"]), one["because"]) for one in doc["removed"]] == [("step-2", "unfinished")], doc)
    need(names_in_run(t) == ["step-1", "step-3"], names_in_run(t))
    stopped()
    shutil.rmtree(t.at("run", "step-2"))
    copies(t, source, "step-2")
    os.remove(t.at("run", "step-2", ".metadata"))
    for name in os.listdir(t.at("run", "step-2")):
        os.utime(t.at("run", "step-2", name))
    before = tree(t.at("run", "step-2"))
    doc = t.json("prune", t.at("run"), "--keep", "1", "--json")
    need(not doc["removed"] and tree(t.at("run", "step-2")) == before, "a new save under the same name")
    stopped()
    for name in os.listdir(t.at("run")):
        if name.startswith(".tessera-"):
            write(t.at("run", name), "a file of somebody else\n")
    write(t.at("run", ".tessera-prune-0123456789abcdef"), "")
    write(t.at("run", ".tessera-prune-0123456789abcdee"), "tessera.prune-rec")
    before = tree(t.at("run"))
    doc = t.json("prune", t.at("run"), "--keep", "1", "--json")
    need(not doc["removed"] and tree(t.at("run")) == before, "a record is recognized by its content")


@test
def test_prune_finishes_what_a_long_record_lists(t):
    """The record of a run with 800,000 files is longer than what else a prune reads."""
    run = aged(t, sample("dcp_fsdp2")[0], "step-1", "step-2")
    for n in range(1, 100):
        killed_at(t, n, True, "--keep", "1")
        if not os.path.exists(t.at("run", "step-1", ".metadata")):
            break
    need(os.path.exists(t.at("run", "step-1", "__0_0.distcp")), "killed after the marker")
    records = [t.at("run", name) for name in os.listdir(run) if name.startswith(".tessera-prune-")]
    record = max(records, key=os.path.getsize)
    with open(record, "rb") as f:
        text = f.read()
    for one in records:
        os.remove(one)
    names = [b"step-0/" + b"%060d" % n for n in range(800000)]
    more = b"checkpoint 1 %d 0 6 step-0\n" % len(names) + b"".join(b"file 9 9 9 0  %d %s\n" % (len(name), name) for name in names)
    text = text[:text.rindex(b"end ")] + more
    text += b"end %08x\n" % zlib.crc32(text)
    need(len(text) > 64 << 20, len(text))
    with open(record, "wb") as f:
        f.write(text)
    doc = t.json("prune", run, "--keep", "1", "--json")
    need([(os.path.basename(one["path"]), one["because"]) for one in doc["removed"]] == [("step-1", "unfinished")], doc)
    need(os.listdir(run) == ["step-2"], os.listdir(run))


@test
def test_runs_with_more_than_100000_names_are_searched(t):
    """What counts is the memory that a listing takes. The names next to the steps are those of another program."""
    aged(t, sample("dcp_fsdp2")[0], "step-1", "step-2", "step-3")
    damage(t, "step-3", ".metadata", "missing")
    os.makedirs(t.at("run", "events"))
    at = os.open(t.at("run", "events"), os.O_RDONLY)
    for n in range(100001):
        os.close(os.open(str(n), os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    need(t.text("latest", t.at("run")).strip() == t.at("run", "step-2"), "the newest that loads")
    doc = t.json("prune", t.at("run"), "--keep", "1", "--json")
    need([os.path.basename(one["path"]) for one in doc["removed"]] == ["step-1"], doc)
    need(len(os.listdir(t.at("run", "events"))) == 100001, "files of another program")


@test
def test_prunes_at_the_same_time_lose_nothing(t):
    source = sample("dcp_fsdp2")[0]
    whole = tree(source)
    for _ in range(5):
        shutil.rmtree(t.at("run"), ignore_errors=True)
        aged(t, source, *(f"step-{n}" for n in range(1, 21)))
        os.remove(t.at("run", "step-20", ".metadata"))
        both = [subprocess.Popen([t.path, "prune", t.at("run"), "--keep", keep], stdout=subprocess.PIPE, stderr=subprocess.PIPE) for keep in ("3", "5", "3")]
        got = [(p.communicate(timeout=60), p.returncode) for p in both]
        need(all(code == 0 for _, code in got), got)
        need(sorted(os.listdir(t.at("run"))) == ["step-17", "step-18", "step-19", "step-20"], os.listdir(t.at("run")))
        need(all(tree(t.at("run", f"step-{n}")) == whole for n in (17, 18, 19)), "they are whole")


@test
def test_prune_next_to_a_save_and_next_to_a_reader(t):
    source = sample("dcp_fsdp2")[0]
    aged(t, source, *(f"step-{n}" for n in range(1, 9)))
    copies(t, source, "step-9")
    os.remove(t.at("run", "step-9", ".metadata"))  # it is being written
    with open(t.at("run", "step-8", "__0_0.distcp"), "rb") as reader:
        need([line.rsplit("/", 1)[1].split(" ")[0] for line in t.text("prune", t.at("run"), "--keep", "1").splitlines()] == [f"step-{n}" for n in range(7, 0, -1)], "older ones")
        need(reader.read() == open(os.path.join(source, "__0_0.distcp"), "rb").read(), "the reader")
    shutil.copy(os.path.join(source, ".metadata"), t.at("run", "step-9", ".metadata"))
    need(t.text("latest", t.at("run")).strip() == t.at("run", "step-9"), "the save goes on")


@test
def test_prune_that_cannot_remove_a_file_fails_and_is_finished_later(t):
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        raise Skip("root can remove everything, and setpriv is not installed")
    as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    aged(t, golden("accelerate_fsdp_sharded")[0], "checkpoint_1", "checkpoint_2")
    program = shutil.copy(t.path, t.at("program"))
    os.chmod(t.directory, 0o755)
    for top, _, _ in os.walk(t.at("run")):
        os.chmod(top, 0o777)
    os.chmod(t.at("run", "checkpoint_1", "optimizer_0"), 0o555)
    p = subprocess.run([*as_user, program, "prune", t.at("run"), "--keep", "1"], capture_output=True, text=True)
    need(p.returncode == 2 and "cannot remove" in p.stderr and "optimizer_0" in p.stderr, p)
    os.chmod(t.at("run", "checkpoint_1", "optimizer_0"), 0o777)
    p = subprocess.run([*as_user, program, "prune", t.at("run"), "--keep", "1"], capture_output=True, text=True)
    need(p.returncode == 0 and os.listdir(t.at("run")) == ["checkpoint_2"], f"{p} {os.listdir(t.at('run'))}")
