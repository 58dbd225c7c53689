"""Errors that name the problem: missing data files, directories below the levels that are searched, tensors without
names."""
import os
import shutil
import struct
import subprocess

import pickles
from harness import SAMPLES, need, sample, test
from pickles import archive, call, dict_of, glob, s, tup, write


@test
def test_missing_data_files_are_named_where_objects_are_in_them(t):
    for gone in (["__1_0.distcp"], ["__0_0.distcp", "__1_0.distcp"]):
        path = t.at(f"dcp{len(gone)}")
        shutil.copytree(os.path.join(SAMPLES, "dcp_fsdp2_flat_optim"), path)
        for name in gone:
            os.remove(os.path.join(path, name))
        for command in (("convert", path, t.at("a.pt"), "--to", "torch"), ("convert", path, t.at("a"), "--to", "dcp"), ("reshard", path, t.at("b"), "--mesh", "dp=2", "--placements", "shard(0)"),
                        ("manifest", path), ("diff", path, path, "--values"), ("convert", path, t.at("a.safetensors"), "--to", "safetensors", "--objects", "drop"), ("optim", "unflatten", path, t.at("c"))):
            message = t.run(*command, status=2).stderr.decode()
            need("are missing" in message and all(repr(name) in message for name in gone), f"{command[:2]}: {message}")
    need(not any(os.path.exists(t.at(name)) for name in ("a.pt", "a", "b", "c", "a.safetensors")), "something was written")


@test
def test_a_directory_whose_checkpoints_are_further_down_is_not_called_empty(t):
    def made(*names, file=None):
        os.makedirs(t.at(*names))
        if file:
            write(t.at(*names, "model.pt"), archive(b"\x80\2}" + s("w") + pickles.tensor() + b"s."))
        return t.at(names[0])
    deep = made("deep", "b", "c", "d", "e", file=True)
    noted = made("noted", "b", "c", "d", "e", file=True)
    write(os.path.join(noted, "notes.txt"), b"text\n")
    for path in (deep, noted):
        message = t.run("inspect", path, status=2).stderr.decode()
        need("nothing was found within three levels" in message and "empty" not in message, message)
    near = made("near", "b", "c", "d", file=True)
    need("b/c/d (torch-zip)" in t.run("validate", near, status=2).stderr.decode(), "three levels are not listed")
    need("is empty" in t.run("inspect", made("empty"), status=2).stderr.decode(), "an empty directory")
    flat = made("flat")
    write(os.path.join(flat, "notes.txt"), b"text\n")
    need("within three levels" not in t.run("inspect", flat, status=2).stderr.decode(), "a directory without others")


@test
def test_an_expansion_that_optim_refuses_names_the_tensor(t):
    sizes = b"J" + struct.pack("<i", 1 << 30)
    huge = call(glob("torch._utils", "_rebuild_tensor_v2"), pickles.persistent(), b"K\0", tup(sizes), tup(b"K\0"), b"\x89", call(glob("collections", "OrderedDict")))
    state = dict_of(**{"fc.weight": dict_of(exp_avg=huge, step=b"K\1")})
    group = b"]" + dict_of(params=b"](" + s("fc.weight") + b"e", lr=b"K\1") + b"a"
    path = write(t.at("a.pt"), archive(b"\x80\2" + dict_of(optimizer=dict_of(state=state, param_groups=group)) + b"."))
    message = t.run("optim", "flatten", path, t.at("b.pt"), status=2).stderr.decode()
    need("'state.fc.weight.exp_avg' (4.0 GiB from 4 B stored)" in message, message)
    need("'optimizer.state.fc.weight.exp_avg'" in t.run("convert", path, t.at("c.pt"), "--to", "torch", status=2).stderr.decode(), "convert")


@test
def test_messages_state_what_was_given(t):
    """Numbers as they were written, one thing in the singular, and no word missing."""
    write(t.at("m.pt"), archive(b"\x80\2" + dict_of(w=pickles.tensor(), **{f"o{n}": b"N" for n in range(6)}) + b"."))
    says = lambda *command: t.run(*command, status=2).stderr.decode()
    need("index 99999999999999999999 of dim 0 is beyond" in says("get", t.at("m.pt"), "w[ 99999999999999999999 ]"), "an index beyond 2^63")
    message = says("convert", t.at("m.pt"), t.at("o.safetensors"))
    need("and 1 more entry cannot be written" in message, message)
    need("'o0' is an object, which safetensors cannot store (pass --objects drop or --objects sidecar), likewise 'o1', 'o2', 'o3', 'o4', and" in message, message)
    message = says("convert", t.at("m.pt"), t.at("m.pt"))
    need("' is the source '" in message, message)


@test
def test_messages_about_the_destination_do_not_begin_with_the_source(t):
    path = sample("dcp_fsdp2")[0]
    os.mkdir(t.at("taken"))
    write(t.at("taken.pt"), b"not a checkpoint")
    for command in (("convert", path, t.at("none/x.pt")), ("cp", path, t.at("none/x")), ("layout", path, "-o", t.at("none/x.json")), ("get", path, "model.emb.weight", "-o", t.at("none/x.npy"))):
        message = t.run(*command, status=2).stderr.decode()
        need(message == f"tessera: cannot open the directory '{t.at('none')}/': No such file or directory\n", f"{command[0]}: {message}")
    for command in (("convert", path, t.at("taken.pt")), ("convert", path, t.at("taken"), "--to", "torch"), ("convert", path, t.at("x.abc")), ("layout", path, "-o", t.at("taken"))):
        message = t.run(*command, status=2).stderr.decode()
        need(path not in message and f"'{command[-1 if command[-1] != 'torch' else 2]}'" in message, f"{command[0]}: {message}")
    write(t.at("x.safetensors.objects.json"), b"notes")
    write(t.at("m.pt"), archive(b"\x80\2" + dict_of(w=pickles.tensor(), o=b"N") + b"."))
    for options, advice in (([], "; --overwrite replaces it"), (["--overwrite"], " and was not written by a conversion; move it away")):
        message = t.run("convert", t.at("m.pt"), t.at("x.safetensors"), "--objects", "sidecar", *options, status=2).stderr.decode()
        need(message == f"tessera: '{t.at('x.safetensors.objects.json')}' exists{advice}\n", message)


@test
def test_a_message_names_the_path_even_if_a_word_of_it_is_the_same(t):
    for name in ("dcp", "step", "a"):
        for below in ("step-1", "step-2"):
            shutil.copytree(sample("dcp_fsdp2")[0], t.at(name, below))
        for command in ("inspect", "validate"):
            p = subprocess.run([t.path, command, name], cwd=t.directory, capture_output=True)
            need(p.returncode == 2 and p.stderr.decode().startswith(f"tessera: {name}: the directory contains several checkpoints (2): step-1 (dcp)"), p.stderr)
    with open(t.at("zip"), "wb") as f:
        f.write(b"junk")
    p = subprocess.run([t.path, "inspect", "zip"], cwd=t.directory, capture_output=True)
    need(p.stderr.decode().startswith("tessera: zip is not in a recognized"), p.stderr)


@test
def test_messages_about_a_document_do_not_begin_with_the_source(t):
    """A document that an option gives is blamed alone; what is wrong with the source begins with its name."""
    path, source, document = sample("dcp_fsdp2_flat_optim")[0], t.at("state.pt"), t.at("other.json")
    t.run("optim", "unflatten", path, source)
    write(document, b'{"schema": "tessera.modules/1"}')
    out = t.at("out.pt")
    for command in (["convert", source, out, "--canonical", "--modules", document], ["convert", source, out, "--map", document], ["convert", source, out, "--shards", document],
                    ["optim", "to-id", source, out, "--modules", document], ["reshard", path, out, "--target", document], ["plan", path, "--target", document], ["validate", path, "--layout", document]):
        message = t.run(*command, status=2).stderr.decode()
        option = next(a for a in command if a.startswith("--") and a != "--canonical")
        need((option == "--shards" or option in message) and source not in message and path not in message, f"{command}: {message}")
        need(document in message or "--canonical" in command, f"{command}: {message}")
    # and what is written as the option's value itself
    for command in (["reshard", path, out, "--target", '{"schema": 1}'], ["plan", path, "--mesh", "dp=2", "--placements", "shard(0)", "--storage", '{"schema": 1}'],
                    ["convert", source, out, "--map", '{"schema": 1}']):
        message = t.run(*command, status=2).stderr.decode()
        need(message.endswith(f", in {command[-2]} document\n") and source not in message and path not in message, f"{command}: {message}")
    message = t.run("validate", path, "--baseline", document, status=2).stderr.decode()
    need(message.endswith(f", in --baseline {document}\n") and path not in message, message)
    nowhere = t.at("nowhere")
    for command in (["inspect", path, "--also", nowhere], ["convert", path, out, "--also", nowhere], ["fqn", "--checkpoint", path, "--against", nowhere], ["convert", path, out, "--against", nowhere],
                    ["convert", path, out, "--lora", nowhere]):
        message = t.run(*command, status=2).stderr.decode()
        need(nowhere in message and path not in message, f"{command}: {message}")
    for command in (["optim", "flatten", source, out, "--at", "none"], ["optim", "unflatten", source, out]):
        message = t.run(*command, status=2).stderr.decode()
        need(message.startswith(f"tessera: {source}: ") and message.count(source) == 1, f"{command}: {message}")


@test
def test_a_failed_download_is_not_called_a_long_header(t):
    for answer in (b"Entry not found", b"Access to model x is restricted.", b"HTTP/1.1 404 Not Found\r\n"):
        with open(t.at("model.safetensors"), "wb") as f:
            f.write(answer)
        for command in (("inspect",), ("validate", "--deep")):
            message = t.run(*command, t.at("model.safetensors"), status=2).stderr.decode()
            need(f"begins with the text '{answer[:8].decode()}'" in message and "failed download" in message, message)


@test
def test_the_head_of_inspect_does_not_count_missing_tensors_as_objects(t):
    shutil.copytree(os.path.dirname(sample("safetensors_index")[0]), t.at("model"))
    os.remove(t.at("model", "model-00002-of-00003.safetensors"))
    text = t.run("inspect", t.at("model")).stdout.decode()
    need("5 tensors" in text and "3 tensors whose files are missing" in text and " objects" not in text, text)


@test
def test_pointers_of_git_lfs_in_a_dcp_are_one_error_per_file(t):
    """The metadata is text for git or was fetched, and the data was not."""
    source, names = sample("dcp_fsdp2")[0], [f"__{rank}_0.distcp" for rank in range(4)]
    shutil.copytree(source, t.at("cloned"))
    for name in names:
        with open(t.at("cloned", name), "wb") as f:
            f.write(b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"7" * 64 + b"\nsize 43000\n")
    for options in ((), ("--deep",)):
        found = t.json("validate", t.at("cloned"), "--json", *options, status=1)["findings"]
        need([(f["rule"], f["file"]) for f in found] == [("dcp/missing-file", name) for name in names], found)
        need(all("is a Git LFS pointer" in f["message"] and "git lfs pull" in f["message"] for f in found), found)
    need(len(t.json("inspect", t.at("cloned"), "--json")["entries"]) == len(t.json("inspect", source, "--json")["entries"]), "the metadata is whole")
    need(b"'__0_0.distcp'" in t.run("convert", t.at("cloned"), t.at("out"), "--to", "torch", status=2).stderr, "which file is not said")


@test
def test_a_pointer_of_git_lfs_in_place_of_a_shard_is_named(t):
    """A clone without git-lfs has the whole index and a pointer in place of each shard; `git lfs pull --include` fetches some of them."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"
    for name in ("safetensors_index", "torch_bin_index"):
        path = shutil.copytree(os.path.dirname(sample(name)[0]) if os.path.isfile(sample(name)[0]) else sample(name)[0], t.at(name))
        shards = sorted(one for one in os.listdir(path) if not one.endswith(".json"))
        for pointers, named in ((shards[-1:], shards[-1]), (shards, shards[0])):
            for shard in pointers:
                with open(os.path.join(path, shard), "wb") as f:
                    f.write(pointer)
            for command in ("inspect", "validate"):
                message = t.run(command, path, status=2).stderr.decode()
                need("Git LFS pointer" in message and named in message, message)
        (index,) = (os.path.join(path, one) for one in os.listdir(path) if one.endswith(".json"))
        with open(index) as f:
            text = f.read()
        with open(index, "w") as f:
            f.write(text.replace(f'"{shards[0][:5]}', f'"./{shards[0][:5]}'))  # the index may name files as paths
        message = t.run("inspect", path, status=2).stderr.decode()
        need("Git LFS pointer" in message and shards[0] in message, message)
