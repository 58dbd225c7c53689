"""tessera cp, from object stores and from disks, makes the same files. It makes all of them or none."""
import os
import shutil
import signal
import subprocess
import time

from checks import ROOT, SAMPLES, need, test
from fake_s3 import serving
from harness import sample
from test_s3 import files_below


@test
def test_cp_copies_every_file(t):
    path = sample("dcp_fsdp2")[0]
    files = {**files_below(path), "deep/er/and/deeper/notes.txt": b"notes", "empty": b"", "large.bin": os.urandom(20 << 20)}
    with serving({**{f"run/step=1/{n}": d for n, d in files.items()}, "run/step=1/": b"", "run/step=1/.tessera-x": b"x"}) as s:
        p = t.run("cp", "s3://b/run/step=1", t.at("copy"), env=s.env())
        out = p.stdout.decode()
        need(b"1 file whose names" in p.stderr and b"'.tessera-x'" in p.stderr, p.stderr)
        need(files_below(t.at("copy")) == files and f"{len(files)} files" in out and "read back" in out, out)
        need(t.json("diff", path, t.at("copy"), "--values", "--json")["same"], "another checkpoint")
        p = t.run("cp", "s3://b/run/step=1", t.at("copy"), status=2, env=s.env())
        need(b"exists; --overwrite replaces" in p.stderr, p.stderr)
        t.run("cp", "s3://b/run/step=1/large.bin", t.at("one.bin"), env=s.env())
        need(files_below(t.at("one.bin"))["one.bin"] == files["large.bin"], "a single file")
    t.run("cp", t.at("copy"), t.at("second"))
    t.run("cp", t.at("copy"), t.at("third"), "--no-verify")
    need(files_below(t.at("second")) == files == files_below(t.at("third")), "from disk to disk")
    need(sorted(os.listdir(t.directory)) == ["copy", "one.bin", "second", "third"], os.listdir(t.directory))


@test
def test_cp_copies_files_whose_names_only_look_like_its_own(t):
    files = {**files_below(sample("dcp_fsdp2")[0]), "weights.tessera-v2.bin": b"mine", "a.tessera-b/notes": b"notes"}
    with serving({f"run/{n}": d for n, d in files.items()}) as s:
        p = t.run("cp", "s3://b/run", t.at("copy"), env=s.env())
        need(files_below(t.at("copy")) == files and p.stderr == b"", p.stderr)
    with open(t.at("copy", ".copy.tessera-1"), "wb") as f:
        f.write(b"left")
    p = t.run("cp", t.at("copy"), t.at("second"))
    need(files_below(t.at("second")) == files and b"'.copy.tessera-1'" in p.stderr, p.stderr)


@test
def test_cp_refuses_a_source_that_lacks_files_of_its_checkpoint(t):
    dcp, index = files_below(sample("dcp_fsdp2")[0]), files_below(os.path.join(SAMPLES, "safetensors_index"))
    for files, lost in ((dcp, [n for n in sorted(dcp) if n.endswith(".distcp")][:1]), (index, [n for n in sorted(index) if n.endswith(".safetensors")][:2])):
        for below in ("", "step-1/", "runs/a/checkpoints/step-1/"):
            kept = {f"run/{below}{n}": d for n, d in files.items() if n not in lost}
            with serving({**kept, "run/notes.txt": b"notes"}) as s:
                for name, data in kept.items():
                    os.makedirs(os.path.dirname(t.at("disk", name[4:])), exist_ok=True)
                    with open(t.at("disk", name[4:]), "wb") as f:
                        f.write(data)
                for source in ("s3://b/run", t.at("disk")):
                    for dest in (t.at("copy"), "s3://b/copy"):
                        p = t.run("cp", source, dest, status=2, env=s.env())
                        need(all(f"'{below}{n}'" in p.stderr.decode() for n in lost) and b"nothing was copied" in p.stderr, p.stderr)
                        need(not os.path.exists(t.at("copy")) and not [k for k in s.objects if k.startswith("copy")], "something was written")
            shutil.rmtree(t.at("disk"))


def write_all(directory, files):
    for name, data in files.items():
        os.makedirs(os.path.dirname(os.path.join(directory, name)), exist_ok=True)
        with open(os.path.join(directory, name), "wb") as f:
            f.write(data)
    return directory


@test
def test_cp_checks_every_checkpoint_below_the_source(t):
    """Also those below a directory that is a checkpoint itself, such as a Trainer's: its last model, and checkpoint-N below."""
    dcp, index = files_below(sample("dcp_fsdp2")[0]), files_below(os.path.join(SAMPLES, "safetensors_index"))
    lost = max(n for n in index if n.endswith(".safetensors"))
    for root in (dcp, index):
        tree = {**root, **{f"old/1/{n}": d for n, d in dcp.items()}, **{f"old/2/x/{n}": d for n, d in index.items()}}
        source = write_all(t.at("whole"), tree)
        p = t.run("cp", source, t.at("copy"))
        need(files_below(t.at("copy")) == tree and p.stderr == b"", p.stderr)
        os.remove(os.path.join(source, "old/2/x", lost))
        p = t.run("cp", source, t.at("second"), status=2)
        need(f"'old/2/x/{lost}'".encode() in p.stderr and b"nothing was copied" in p.stderr, p.stderr)
        need(sorted(os.listdir(t.directory)) == ["copy", "whole"], os.listdir(t.directory))
        shutil.rmtree(source)
        shutil.rmtree(t.at("copy"))


@test
def test_cp_names_what_it_could_not_check(t):
    dcp = files_below(sample("dcp_fsdp2")[0])
    for below, shown in (("", "."), ("runs/3/", "runs/3")):
        source = write_all(t.at("source"), {**{f"good/{n}": d for n, d in dcp.items()}, f"{below}.metadata": b"not a pickle", f"{below}__0_0.distcp": b"x"})
        p = t.run("cp", source, t.at("copy"))
        need(f"warning: '{shown}' cannot be opened as a checkpoint".encode() in p.stderr and p.stderr.count(b"warning") == 1, p.stderr)
        need(files_below(t.at("copy")) == files_below(source), "another copy")
        shutil.rmtree(source)
        shutil.rmtree(t.at("copy"))


@test
def test_cp_uploads_last_what_the_training_loop_writes_last(t):
    """Until this file is there, what is at the destination is an interrupted save, or not yet the latest checkpoint."""
    trainer = files_below(os.path.join(ROOT, "tests/golden/directories/trainer"))
    lightning = files_below(os.path.join(ROOT, "tests/golden/directories/lightning"))
    for files, last in ((trainer, "trainer_state.json"), ({f"checkpoint-3/{n}": d for n, d in trainer.items()}, "checkpoint-3/trainer_state.json"),
                        (lightning, "meta.pt"), ({"latest_checkpointed_iteration.txt": b"3", "iter_0000003/x.bin": b"x"}, "latest_checkpointed_iteration.txt"),
                        ({"latest_universal": b"tag", "tag/zero/w/fp32.pt": b"x"}, "latest_universal")):
        source = write_all(t.at("source"), {**files, "zz.bin": b"the last name"})
        with serving({}) as s:
            t.run("cp", source, "s3://b/run", env=s.env())
            made = [key for operation, key in s.done if operation in ("PutObject", "CompleteMultipartUpload")]
            need(len(made) == len(files) + 1 and made[-1] == f"run/{last}", made)
            need({k[4:]: d for k, d in s.objects.items()} == files_below(source), "another copy")
        shutil.rmtree(source)


@test
def test_cp_names_what_it_does_not_copy(t):
    """What is not a file cannot be copied as one. Files that may not be read would be missing from the copy."""
    files = {**files_below(sample("dcp_fsdp2")[0]), "runs/1/notes.txt": b"notes"}
    source = write_all(t.at("source"), files)
    write_all(t.at("linked"), {"model.bin": b"weights"})
    os.symlink(t.at("linked"), t.at("source/first"))
    os.symlink("nowhere", t.at("source/runs/lost"))
    os.symlink("notes.txt", t.at("source/runs/1/again"))
    os.symlink(t.at("linked"), t.at("source/runs/1/below"))
    os.mkfifo(t.at("source/pipe"))
    p = t.run("cp", source, t.at("copy"))
    need(b"warning: 3 names are not copied, such as " in p.stderr and p.stderr.count(b"warning") == 1, p.stderr)
    need(files_below(t.at("copy")) == {**files, "first/model.bin": b"weights", "runs/1/again": b"notes"}, files_below(t.at("copy")).keys())
    os.mkdir(t.at("source/runs/closed"), 0)
    for directory, _, names in [(t.directory, [], []), *os.walk(t.directory)]:
        os.chmod(directory, 0o777 if directory != t.at("source/runs/closed") else 0)
    as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    p = subprocess.run([*as_user, t.path, "cp", source, t.at("second")], capture_output=True)
    need(p.returncode == 2 and b"such as 'runs/closed'" in p.stderr and b"nothing was copied" in p.stderr, p.stderr)
    need(not os.path.exists(t.at("second")), "a copy without some of the files")
    os.chmod(t.at("source/runs/closed"), 0o700)


@test
def test_cp_leaves_nothing_when_it_fails(t):
    data = os.urandom(3 << 20)
    for objects, trouble, words in (({"d/a": data, "d/b": data}, lambda h, key, count: key == "d/b" and h.error(403, "AccessDenied"), "AccessDenied"),
                                    ({"d/a": data, "d/../../x": data}, lambda *a: False, "cannot be the name"), ({"d//a": data}, lambda *a: False, "cannot be the name")):
        with serving(objects, trouble) as s:
            p = t.run("cp", "s3://b/d", t.at("copy"), status=2, env=s.env())
            need(words in p.stderr.decode() and os.listdir(t.directory) == [], f"{p.stderr} {os.listdir(t.directory)}")
    whole = shutil.copytree(sample("dcp_fsdp2")[0], t.at("whole"))
    need(b"inside" in t.run("cp", whole, os.path.join(whole, "copy"), status=2).stderr, "into itself")


def write_shards(t, source, out):
    t.run("convert", source, out, "--to", "safetensors", "--max-shard-size", "2KB", "--objects", "drop")
    return files_below(out)


@test
def test_cp_overwrite_replaces_what_the_old_checkpoint_lists(t):
    """Files that are in neither checkpoint stay. A name that both checkpoints have is replaced. The source is not
    changed."""
    path = sample("dcp_fsdp2")[0]
    shutil.copytree(path, t.at("new"))
    with open(t.at("new/config.json"), "wb") as f:
        f.write(b"new")
    new = files_below(t.at("new"))
    old = write_shards(t, path, t.at("d"))
    adapter, = files_below(sample("safetensors_model")[0]).values()
    for name, text in (("d/notes.txt", b"mine"), ("d/config.json", b"old"), ("d/adapter.safetensors", adapter)):
        with open(t.at(name), "wb") as f:
            f.write(text)
    kept = {name: data for name, data in files_below(t.at("d")).items() if name not in old and name not in new}
    need(len(old) >= 3 and len(kept) == 2, f"{list(old)} {list(kept)}")
    need(b"--overwrite" in t.run("cp", t.at("new"), t.at("d"), status=2).stderr, "without --overwrite")
    t.run("cp", t.at("new"), t.at("d"), "--overwrite")
    need(files_below(t.at("d")) == {**new, **kept} and sorted(os.listdir(t.directory)) == ["d", "new"], f"{os.listdir(t.at('d'))}")
    for source, out in (("d", "d"), ("d/.metadata", "d/.metadata"), ("d", "d/below")):
        t.run("cp", t.at(source), t.at(out), "--overwrite", status=2)
        need(files_below(t.at("d")) == {**new, **kept}, f"{source} to {out}")
    t.run("cp", t.at("new"), t.at("fresh"), "--overwrite")
    t.run("cp", t.at("d/config.json"), t.at("fresh/config.json"), "--overwrite")
    need(files_below(t.at("fresh")) == new, "where nothing is in the way")
    os.mkdir(t.at("d/below"))
    refused = t.run("cp", t.at("new"), t.at("d"), "--overwrite", status=2).stderr
    need(b"the directory 'below'" in refused, refused)
    os.mkdir(t.at("new/below"))
    with open(t.at("new/below/x"), "wb") as f:
        f.write(b"x")
    for options in ((), ("--resume",)):
        refused = t.run("cp", t.at("new"), t.at("fresh"), "--overwrite", *options, status=2).stderr
        need(b"subdirectories" in refused and files_below(t.at("fresh")) == {**new}, refused)
        need(sorted(os.listdir(t.directory)) == ["d", "fresh", "new"], f"{options}: a part of the copy is left: {os.listdir(t.directory)}")


@test
def test_cp_that_is_killed_leaves_the_old_or_the_new_checkpoint(t):
    for name, fill in (("old", 1), ("new", 2)):
        os.mkdir(t.at(name))
        for i in range(6):
            with open(t.at(name, f"part-{i}.bin"), "wb") as f:
                f.write(bytes([fill * 10 + i]) * (4 << 20))
    old, new = files_below(t.at("old")), files_below(t.at("new"))
    for k in range(12):
        shutil.rmtree(t.at("d"), ignore_errors=True)
        shutil.copytree(t.at("old"), t.at("d"))
        p = subprocess.Popen([t.path, "cp", t.at("new"), t.at("d"), "--overwrite"], stdout=subprocess.DEVNULL)
        time.sleep(0.005 * k)
        p.send_signal(signal.SIGKILL)
        p.wait()
        found = files_below(t.at("d"))
        need(found in (old, new), f"after {5 * k} ms: {list(found)}")
    t.run("cp", t.at("new"), t.at("d"), "--overwrite")
    need(files_below(t.at("d")) == new and sorted(os.listdir(t.directory)) == ["d", "new", "old"], f"{os.listdir(t.directory)}")
