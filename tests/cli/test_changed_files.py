"""`validate --changed-files`: which checkpoint each file belongs to, and that each is validated once."""
import json
import os
import shutil
import struct
from xml.etree import ElementTree

from harness import SAMPLES, need, st_write, test


def paths(t, *files, status=0):
    """The checkpoints that were validated, in order, and what was said about the rest."""
    p = t.run("validate", "--changed-files", *files, "--format", "junit", status=status)
    return [case.get("name") for case in ElementTree.fromstring(p.stdout).iter("testcase")], p.stderr.decode()


def files_below(directory):
    return sorted(os.path.join(d, n) for d, _, names in os.walk(directory) for n in names)


@test
def test_every_file_of_a_checkpoint_leads_to_it(t):
    for name in ("dcp_fsdp2", "dcp_safetensors_items", "dcp_rank_local", "lightning_dist", "megatron_dist", "safetensors_index", "torch_bin_index", "torch_ranks_fsdp2",
                 "hf_trainer/checkpoint-2", "deepspeed_zero3/global_step2"):
        directory = os.path.join(SAMPLES, name)
        found = files_below(directory)
        need(len(found) > 1, directory)
        for file in found:
            need(paths(t, file)[0] == [directory], f"{file}: {paths(t, file)}")
        need(paths(t, *found)[0] == [directory], f"{directory}: not once")


@test
def test_models_next_to_each_other_are_checkpoints_of_their_own(t):
    os.makedirs(t.at("models"))
    st_write(t.at("models/a.safetensors"), {"w": ("F32", [2], struct.pack("<2f", 1, 2))})
    st_write(t.at("models/b.safetensors"), {"v": ("F32", [1], struct.pack("<f", 3))})
    for name in ("torch_plain", "torch_train_state"):
        shutil.copy(os.path.join(SAMPLES, name, "model.pt" if name == "torch_plain" else os.listdir(os.path.join(SAMPLES, name))[0]), t.at("models", name + ".pt"))
    found = files_below(t.at("models"))
    need(paths(t, *found)[0] == found, paths(t, *found))


@test
def test_a_checkpoint_that_does_not_open_is_not_passed_over(t):
    for name, file, status in (("broken_dcp_metadata_truncated", "__0_0.distcp", 2), ("broken_dcp_metadata_truncated", ".metadata", 2), ("broken_dcp_no_metadata", "__0_0.distcp", 1),
                               ("broken_safetensors_truncated", "model.safetensors", (1, 2)), ("broken_torch_truncated", "model.pt", (1, 2))):
        file = os.path.join(SAMPLES, name, file)
        need(os.path.exists(file), file)
        t.run("validate", "--changed-files", file, status=status)
    need(b"absent.pt" in t.run("validate", "--changed-files", t.at("absent.pt"), status=2).stderr, "a file that is not there")


@test
def test_other_files_are_named_and_left_out(t):
    open(t.at("notes.txt"), "w").write("nothing")
    shutil.copytree(os.path.join(SAMPLES, "dcp_small"), t.at("ckpt"))
    found, said = paths(t, t.at("notes.txt"), t.at("ckpt/.metadata"))
    need(found == [t.at("ckpt")] and f"'{t.at('notes.txt')}' does not belong to a checkpoint" in said, (found, said))
    need(json.loads(t.run("validate", "--changed-files", t.at("notes.txt"), "--json").stdout)["summary"]["paths"] == 0, "no checkpoint at all")
