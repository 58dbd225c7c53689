"""Directories that are not just one checkpoint: interrupted saves, indexes that cannot be read, and checkpoints below."""
import json
import os
import shutil
import struct
import zipfile

from harness import need, sample, st_write, test


def copy_of(t, name, to, without=()):
    path = sample(name)[0]
    shutil.copytree(path if os.path.isdir(path) else os.path.dirname(path), t.at(to), ignore=lambda _, names: [n for n in names if n in without])
    return t.at(to)


def write(path, data=b""):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)


def shards(t, to, numbers, total, name="model-{:05}-of-{:05}.safetensors"):
    os.makedirs(t.at(to), exist_ok=True)
    for n in numbers:
        st_write(t.at(to, name.format(n, total)), {f"w{n}": ("F32", [n + 1], struct.pack(f"<{n + 1}f", *range(n + 1)))})
    return t.at(to)


def users(t, path):
    """Yields every command that uses the tensors of PATH, with a destination that must not appear."""
    mesh = ("--mesh", "dp=2", "--placements", "shard(0)")
    for command in (["convert", path, t.at("out"), "--to", "safetensors", "--objects", "drop"], ["convert", path, t.at("out"), "--to", "torch"],
                    ["reshard", path, t.at("out"), *mesh], ["plan", path, *mesh], ["diff", path, path], ["diff", path, path, "--values"],
                    ["layout", path], ["manifest", path], ["verify", path, t.at("manifest.json")], ["get", path, "w"],
                    ["optim", "flatten", path, t.at("out")]):
        yield command


def check_refused(t, path, *says):
    donor = shards(t, "donor", [1], 1)
    if not os.path.exists(t.at("manifest.json")):
        t.run("manifest", donor, "-o", t.at("manifest.json"))
    for command in users(t, path):
        before = sorted(os.listdir(t.directory))
        message = t.run(*command, status=2).stderr.decode()
        need(all(s in message for s in says), f"{' '.join(command)} says {message}")
        need(sorted(os.listdir(t.directory)) == before, f"{' '.join(command)} left something behind")


def check_incomplete(t, path, listed, *says):
    """`listed` are the names that are known without the missing file; None if there are none."""
    for deep in ((), ("--deep",)):
        found = t.json("validate", path, "--json", *deep, status=1)["findings"]
        of = [f for f in found if f["rule"] == "parts/incomplete-save"]
        need(of and all(f["level"] == "error" for f in of), f"{path}: {found}")
        need(all(any(s in f["message"] for f in of) for s in says), of)
    if listed is None:
        message = t.run("inspect", path, status=2).stderr.decode()
        need(all(s in message for s in says), message)
    else:
        doc = t.json("inspect", path, "--json")
        need(sorted(e["fqn"] for e in doc["entries"]) == sorted(listed), [e["fqn"] for e in doc["entries"]])
        need("parts/incomplete-save" in {f["rule"] for f in doc["findings"]}, doc["findings"])
    check_refused(t, path, *says)
    for command in (["fqn", "--checkpoint", path], ["fqn", "--checkpoint", t.at("donor"), "--against", path], ["map", "suggest", path, t.at("donor")],
                    ["map", "suggest", t.at("donor"), path], ["map", "suggest", t.at("donor"), path, "--values"], ["cp", path, t.at("copied")]):
        message = t.run(*command, status=2).stderr.decode()
        need(all(s in message for s in says), f"{' '.join(command)} says {message}")
    need(not os.path.exists(t.at("copied")), "an interrupted save was copied")


@test
def test_dcp_data_files_without_metadata_are_an_interrupted_save(t):
    torch_file = sample("torch_plain")[0]
    for case, others in {"alone": {}, "megatron": {"common.pt": torch_file, "metadata.json": b'{"sharded_backend": "torch_dist"}'},
                         "lightning": {"meta.pt": torch_file}, "model": {"model.safetensors": b""}, "index": {"a.safetensors.index.json": b"{}"},
                         "config": {"config.json": b"{}", "below/x.pt": b"x"}}.items():
        path = copy_of(t, "dcp_fsdp2", case, [".metadata"])
        for name, data in others.items():
            if isinstance(data, str):
                shutil.copy(data, os.path.join(path, name))
            elif name == "model.safetensors":
                st_write(os.path.join(path, name), {"w": ("U8", [1], b"x")})
            else:
                write(os.path.join(path, name), data)
        check_incomplete(t, path, None, "'.metadata' is missing", "__0_0.distcp")
    one = t.at("one", "__0_0.distcp")
    os.makedirs(t.at("one"))
    shutil.copy(os.path.join(sample("dcp_fsdp2")[0], "__0_0.distcp"), one)
    check_incomplete(t, t.at("one"), None, "'.metadata' is missing", "__0_0.distcp")
    need("'.metadata' is missing" not in t.run("inspect", one, status=2).stderr.decode(), "of a file's neighbours nothing is known")


@test
def test_a_megatron_save_that_ended_after_its_first_file_is_an_interrupted_save(t):
    os.makedirs(t.at("begun"))
    shutil.copy(os.path.join(sample("megatron_dist")[0], "common.pt"), t.at("begun", "common.pt"))
    check_incomplete(t, t.at("begun"), None, "'.metadata' and all data files are missing", "Megatron")
    need(t.json("inspect", t.at("begun", "common.pt"), "--json")["format"] == "torch-zip", "the file itself")


@test
def test_metadata_that_was_not_finished_is_an_interrupted_save(t):
    path = copy_of(t, "dcp_fsdp2", "empty", [".metadata"])
    write(os.path.join(path, ".metadata"))
    check_incomplete(t, path, None, "'.metadata' is empty")
    path = copy_of(t, "dcp_fsdp2", "temporary")
    os.rename(os.path.join(path, ".metadata"), os.path.join(path, ".metadata.tmp"))
    check_incomplete(t, path, None, "only '.metadata.tmp' is there")
    whole = copy_of(t, "dcp_fsdp2", "whole")
    write(os.path.join(whole, ".metadata.tmp"), b"left over")
    t.run("validate", whole)


@test
def test_an_interrupted_save_can_be_repaired(t):
    path = copy_of(t, "dcp_fsdp2", "lost", [".metadata"])
    shutil.copy(sample("torch_plain")[0], os.path.join(path, "common.pt"))
    t.run("repair", path, t.at("new"), "--like", sample("dcp_fsdp2")[0])
    os.rename(t.at("new"), os.path.join(path, ".metadata"))
    t.run("validate", path)


@test
def test_ranks_without_their_metadata_are_an_interrupted_save(t):
    whole = sample("dcp_rank_local")[0]
    names = [e["fqn"] for e in t.json("inspect", whole, "--json")["entries"]]
    t.run("validate", whole)
    for rank in (0, 1):
        path = copy_of(t, "dcp_rank_local", f"lost{rank}", [f"__{rank}.metadata"])
        rest = [e["fqn"] for e in t.json("inspect", path, "--json")["entries"]]
        need(set(rest) <= set(names), rest)
        check_incomplete(t, path, rest, f"'__{rank}.metadata'")


@test
def test_which_of_several_ranks_copies_is_used_is_said(t):
    """With use_collectives=False every rank saves all it has, and nothing says that the copies are equal."""
    path = sample("dcp_rank_local")[0]
    said = ("ranks 0, 1 saved", "'model.steps_seen' and 1 more", "the copy of the lowest rank is used")
    for args in (["get", path, "step"], ["diff", path, path], ["manifest", path]):
        err = " ".join(t.run(*args).stderr.decode().split())
        need(all(text in err for text in said), (args, err))
    warnings = t.json("convert", path, t.at("x.pt"), "--json")["warnings"]
    need([w for w in warnings if all(text in w for text in said)], warnings)
    for quiet in (["validate", path], ["inspect", path], ["get", sample("dcp_fsdp2")[0], "loss"]):
        need("lowest rank" not in t.run(*quiet).stderr.decode(), quiet)


@test
def test_files_whose_names_count_them_must_all_be_there(t):
    check_incomplete(t, shards(t, "hf", [1, 3], 3), ["w1", "w3"], "1 of 3 files is missing: 'model-00002-of-00003.safetensors'")
    check_incomplete(t, shards(t, "first", [1], 12), ["w1"], "11 of 12 files are missing: 'model-00002-of-00012.safetensors'")
    t.run("validate", shards(t, "all", [1, 2, 3], 3))
    t.run("validate", t.at("hf", "model-00001-of-00003.safetensors"))  # a file states nothing about its neighbours
    t.run("convert", t.at("hf", "model-00001-of-00003.safetensors"), t.at("one.safetensors"))
    two = shards(t, "two", [1, 2], 2)
    shards(t, "two", [2], 2, "extra-{:05}-of-{:05}.safetensors")
    os.rename(t.at("two", "extra-00002-of-00002.safetensors"), t.at("two", "other-00002-of-00002.safetensors"))
    st_write(t.at("two", "other-00002-of-00002.safetensors"), {"v": ("U8", [1], b"x")})
    check_incomplete(t, two, ["v", "w1", "w2"], "'other-00001-of-00002.safetensors'")
    for odd in ("a-00005-of-00002.safetensors", "a-0-of-0.safetensors", "a-1-of-99999999.safetensors", "a-of-3.safetensors", "1-of-.safetensors"):
        os.makedirs(t.at(odd + ".d"))
        st_write(t.at(odd + ".d", odd), {"v": ("U8", [1], b"x")})
        t.run("validate", t.at(odd + ".d"))


@test
def test_torch_shards_without_their_index_are_an_interrupted_save(t):
    path = copy_of(t, "torch_bin_index", "bin")
    index = next(n for n in os.listdir(path) if n.endswith(".index.json"))
    os.remove(os.path.join(path, index))
    check_incomplete(t, path, None, f"'{index}' is missing")


BROKEN_INDEXES = {"brace": b"{", "empty": b"", "cut": b'{"metadata": {}, "weight_map": {"w1": "model-0000', "array": b"[]", "text": b"not JSON", "null": b"null",
                  "no map": b'{"metadata": {}}', "map is a list": b'{"weight_map": ["w1"]}', "map is null": b'{"weight_map": null}',
                  "file is a number": b'{"weight_map": {"w1": 1}}', "file is null": b'{"weight_map": {"w1": null}}', "twice": b'{"weight_map": {}} {}',
                  "binary": b"\x00\x01\x02", "utf-16": '{"weight_map": {}}'.encode("utf-16"), "outside": b'{"weight_map": {"w1": "../x.safetensors"}}', "outside by another way": b'{"weight_map": {"w1": "./../x.safetensors"}}',
                  "nothing in it": b'{"weight_map": {}}', "metadata is a list": b'{"metadata": [], "weight_map": {"w1": "model-00001-of-00001.safetensors"}}'}


@test
def test_an_index_that_cannot_be_read_is_an_error(t):
    for case, text in BROKEN_INDEXES.items():
        path = shards(t, case, [1], 1)
        write(os.path.join(path, "model.safetensors.index.json"), text)
        for command in (["inspect", path], ["validate", path], ["validate", "--deep", path], *users(t, path)):
            if command[0] == "verify":
                continue
            message = t.run(*command, status=2).stderr.decode()
            need("model.safetensors.index.json" in message, f"{case}: {command[0]} says {message}")
        t.run("inspect", os.path.join(path, "model.safetensors.index.json"), status=2)
        torch = copy_of(t, "torch_bin_index", case + " torch")
        index = next(n for n in os.listdir(torch) if n.endswith(".index.json"))
        write(os.path.join(torch, index), text.replace(b".safetensors", b".bin"))
        need(index in t.run("validate", torch, status=2).stderr.decode(), case)


@test
def test_an_index_may_name_files_as_paths_of_its_directory(t):
    """Transformers joins both to the path of the directory."""
    for name, ending in (("safetensors_index", "safetensors"), ("torch_bin_index", "bin")):
        whole, path = copy_of(t, name, ending), copy_of(t, name, ending + " dots")
        index = os.path.join(path, next(n for n in os.listdir(path) if n.endswith(".index.json")))
        with open(index) as f:
            doc = json.load(f)
        write(index, json.dumps({**doc, "weight_map": {k: "./" + v for k, v in doc["weight_map"].items()}}).encode())
        t.run("diff", whole, path, "--values")
        need(not t.json("validate", path, "--json")["findings"], f"{name}: a healthy index has findings")
        os.remove(os.path.join(path, next(iter(doc["weight_map"].values()))))
        need([f["rule"] for f in t.json("validate", path, "--json", status=1)["findings"] if f["level"] == "error"], f"{name}: a missing file")


@test
def test_several_indexes_are_not_chosen_from(t):
    path = shards(t, "both", [1], 1)
    text = json.dumps({"weight_map": {"w1": "model-00001-of-00001.safetensors"}}).encode()
    write(os.path.join(path, "model.safetensors.index.json"), text)
    t.run("validate", path)
    for second in (text, b"{", b""):
        write(os.path.join(path, "other.safetensors.index.json"), second)
        for command in (["inspect", path], ["validate", path], ["convert", path, t.at("out"), "--to", "torch"]):
            message = t.run(*command, status=2).stderr.decode()
            need("model.safetensors.index.json" in message and "other.safetensors.index.json" in message, message)
    t.run("validate", os.path.join(path, "model.safetensors.index.json"))
    os.rename(os.path.join(path, "other.safetensors.index.json"), os.path.join(path, "pytorch_model.bin.index.json"))
    found = t.json("validate", path, "--json")["findings"]  # transformers chooses between these two
    need([(f["rule"], f["file"]) for f in found if f["level"] != "note"] == [("index/other-model", "pytorch_model.bin.index.json")], found)


@test
def test_what_an_index_names_and_no_file_has_is_not_read(t):
    path = shards(t, "lost", [1], 2)
    names = {f"w{n}": f"model-{n:05}-of-00002.safetensors" for n in (1, 2)}
    write(os.path.join(path, "model.safetensors.index.json"), json.dumps({"weight_map": names}).encode())
    need("index/missing-file" in {f["rule"] for f in t.json("validate", path, "--json", status=1)["findings"]}, "not found")
    need({e["fqn"] for e in t.json("inspect", path, "--json")["entries"]} == {"w1", "w2"}, "not listed")
    for command in users(t, path):
        if command[0] not in ("verify", "get"):
            message = t.run(*command, status=2).stderr.decode()
            need("'w2'" in message and "'model-00002-of-00002.safetensors'" in message, f"{command[0]} says {message}")
    need("'w2'" in t.run("get", path, "w2", status=2).stderr.decode(), "get w2")
    t.run("get", path, "w1")
    t.run("convert", path, t.at("out.safetensors"), "--exclude", "w2")


def refusal(t, path):
    message = t.run("inspect", path, status=2).stderr.decode()
    for command in (["validate", path], ["convert", path, t.at("out"), "--to", "torch"], ["layout", path], ["diff", path, path]):
        need(t.run(*command, status=2).stderr.decode() == message, f"{command[0]} says something else")
    return message


@test
def test_checkpoints_below_a_directory_are_listed(t):
    dcp = sample("dcp_small")[0]
    for at in ("outputs/checkpoint/step-1", "outputs/checkpoint/step-2", "near"):
        shutil.copytree(dcp, t.at("run", at))
    shutil.copy(sample("torch_plain")[0], t.at("run", "outputs", "model.pt"))
    shards(t, "run/hf/final", [1], 1)
    write(t.at("run", "config.json"), b"{}")
    message = refusal(t, t.at("run"))
    for line in ("outputs/checkpoint/step-1 (dcp), outputs/checkpoint/step-2 (dcp)", "near (dcp)", "hf/final (safetensors)", "(5)"):
        need(line in message, f"{line}: {message}")
    need("outputs (torch-zip)" in message, message)
    shutil.copy(sample("torch_plain")[0], t.at("run", "outputs", "optimizer.pt"))
    need("outputs (several files)" in refusal(t, t.at("run")), "files that are several checkpoints")
    os.remove(t.at("run", "outputs", "checkpoint", "step-2", ".metadata"))
    need("outputs/checkpoint/step-2 (interrupted save)" in refusal(t, t.at("run")), "not named as interrupted")
    shutil.copytree(dcp, t.at("deep", "a", "b", "c"))
    need("a/b/c (dcp)" in refusal(t, t.at("deep")), "three levels below")
    shutil.copytree(dcp, t.at("deeper", "a", "b", "c", "d"))
    need("a/b/c/d" not in refusal(t, t.at("deeper")), "four levels below")
    os.makedirs(t.at("none", "a", "b"))
    need("empty" in refusal(t, t.at("none")), "nothing at all")


@test
def test_links_between_directories_are_not_walked(t):
    dcp = sample("dcp_small")[0]
    shutil.copytree(dcp, t.at("elsewhere", "x", "secret"))
    shutil.copytree(dcp, t.at("run", "a", "b", "step-1"))
    os.symlink("..", t.at("run", "a", "up"))
    os.symlink("../../..", t.at("run", "a", "b", "up"))
    os.symlink(t.at("elsewhere"), t.at("run", "a", "out"))
    os.symlink(t.at("elsewhere"), t.at("run", "out"))
    message = refusal(t, t.at("run"))
    need("a/b/step-1 (dcp)" in message and "(1)" in message and "secret" not in message, message)
    os.symlink("a/b/step-1", t.at("run", "latest"))
    need("latest" not in refusal(t, t.at("run")), "a link to a checkpoint that is listed by its own name")
    os.symlink(t.at("elsewhere", "x", "secret"), t.at("run", "other"))
    need("other (dcp)" in refusal(t, t.at("run")), "a link to a checkpoint, directly below")


@test
def test_a_huge_tree_is_not_walked_to_its_end(t):
    for i in range(60):
        os.makedirs(t.at("tree", f"d{i:02}", "more"))
        for k in range(200):
            os.mknod(t.at("tree", f"d{i:02}", "more", f"n{k}.txt")) if k else shutil.copytree(sample("dcp_small")[0], t.at("tree", f"d{i:02}", "more", "step"))
    message = refusal(t, t.at("tree"))
    need("(60)" in message and "d00/more/step (dcp)" in message and "…" in message, message)


@test
def test_a_directory_that_may_not_be_read_is_passed_over(t):
    shutil.copytree(sample("dcp_small")[0], t.at("run", "a", "step-1"))
    os.makedirs(t.at("run", "b", "closed"))
    os.chmod(t.at("run", "b", "closed"), 0)
    try:
        need("a/step-1 (dcp)" in refusal(t, t.at("run")), "not listed")
    finally:
        os.chmod(t.at("run", "b", "closed"), 0o700)


def rank_parts(t, to, value, ranks=3, parts=2):
    """As vLLM shards a state: every rank has the same names, distributed over the same parts."""
    os.makedirs(t.at(to))
    for r in range(ranks):
        for p in range(parts):
            st_write(t.at(to, f"model-rank-{r}-part-{p}.safetensors"), {f"w{p}": ("F32", [2], struct.pack("<2f", p, value(r, p)))})
    return t.at(to)


@test
def test_safetensors_of_several_ranks_are_no_replicas(t):
    path = rank_parts(t, "differ", lambda r, p: p * r if r < 2 else p)  # part 1 differs only on rank 0
    doc = t.json("inspect", path, "--json")
    rows = {e["fqn"]: e for e in doc["entries"]}
    need(doc["format"] == "shards" and doc["summary"]["tensors"] == 2 and doc["summary"]["files"] == 6, doc["summary"])
    need(rows["w1"]["per_rank"] and rows["w1"]["shapes"] == [[2]] * 3 and rows["w1"]["dtype"] == "float32", rows["w1"])
    need([c["file"] for c in rows["w1"]["chunks"]] == [f"model-rank-{r}-part-1.safetensors" for r in range(3)], rows["w1"])
    need("per_rank" not in rows["w0"], rows["w0"])
    for deep in ((), ("--deep",)):
        found = [f for f in t.json("validate", path, "--json", *deep)["findings"] if f["rule"] != "safetensors/misaligned"]
        need([(f["rule"], f["level"]) for f in found] == [("torch/rank-differs", "note")], found)
    for command in users(t, path):
        if command[0] not in ("verify", "get"):
            need("'w1'" in t.run(*command, status=2).stderr.decode(), command)
    t.run("get", path, "w1", status=2)
    t.run("get", path, "w0")
    equal = rank_parts(t, "equal", lambda r, p: p)
    t.run("convert", equal, t.at("out.safetensors"))
    need({e["fqn"] for e in t.json("inspect", t.at("out.safetensors"), "--json")["entries"]} == {"w0", "w1"}, "not whole")
    need({f["rule"] for f in t.json("validate", "--deep", equal, "--json")["findings"]} <= {"safetensors/misaligned"}, "findings of equal ranks")
    one = rank_parts(t, "one", lambda r, p: p, ranks=1)
    need(t.json("inspect", one, "--json")["format"] == "safetensors", "one rank is a checkpoint")


@test
def test_values_of_every_rank_are_checked(t):
    path = rank_parts(t, "nan", lambda r, p: float("nan") if (r, p) == (2, 1) else p)
    found = t.json("validate", "--deep", path, "--json")["findings"]
    need([f["fqn"] for f in found if f["rule"] == "values/nan"] == ["w1"], found)


@test
def test_parts_of_ranks_must_all_be_there(t):
    path = rank_parts(t, "lost", lambda r, p: p)
    os.remove(os.path.join(path, "model-rank-1-part-0.safetensors"))
    check_incomplete(t, path, ["w0", "w1"], "1 of 6 files is missing: '…-rank-1-part-0.safetensors'")
    twice = rank_parts(t, "twice", lambda r, p: p)
    shutil.copy(os.path.join(twice, "model-rank-1-part-0.safetensors"), os.path.join(twice, "model-rank-1-part-1.safetensors"))
    message = t.run("inspect", twice, status=2).stderr.decode()
    need("'w0'" in message and "model-rank-1-part-0" in message and "model-rank-1-part-1" in message, message)


U8 = ("U8", [5], b"\x28\xb5\x2f\xfd\x01")
DELTA_INDEX = {"version": "000002", "base_version": "000001", "delta_encoding": "xor", "compression_format": "zstd"}


def st_file(t, path, tensors, metadata=None):
    os.makedirs(os.path.dirname(t.at(path)), exist_ok=True)
    st_write(t.at(path), {"a.weight": U8} if tensors is None else tensors, metadata=metadata)


def index_file(t, path, metadata):
    with open(t.at(path, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": metadata, "weight_map": {"a.weight": "model-00001-of-00001.safetensors"}}, f)


@test
def test_megatron_zarr_is_refused_by_every_command(t):
    """The layout of megatron-core 0.9's zarr strategy. common.pt alone opens as a torch.save file, which it is not here."""
    array = json.dumps({"chunks": [2], "compressor": None, "dtype": "<f4", "fill_value": None, "filters": None, "order": "C", "shape": [4], "zarr_format": 2})
    for case, backend in (("whole", "zarr"), ("interrupted", None)):
        for path, data in (("w/.zarray", array.encode()), ("w/0", bytes(8)), ("w/1", bytes(8))):
            write(t.at(case, "iter_0000003", path), data)
        shutil.copy(sample("torch_objects")[0], t.at(case, "iter_0000003", "common.pt"))
        write(t.at(case, "latest_checkpointed_iteration.txt"), b"3")
        if backend:
            write(t.at(case, "iter_0000003", "metadata.json"), json.dumps({"sharded_backend": backend, "sharded_backend_version": 1}).encode())
        for path in (t.at(case), t.at(case, "iter_0000003")):
            check_refused(t, path, "Megatron checkpoint in the zarr format", "tensorstore")
            for command in (["inspect", path], ["validate", path], ["validate", path, "--deep"]):
                need("in the zarr format" in t.run(*command, status=2).stderr.decode(), command)
    above = t.run("inspect", os.path.dirname(t.at("whole")), status=2).stderr.decode()
    need("whole/iter_0000003 (a Megatron checkpoint in the zarr format" in above, above)
    shutil.copy(sample("torch_objects")[0], t.at("common.pt"))
    t.run("validate", t.at("common.pt"))


@test
def test_delta_updates_are_not_models(t):
    """Indexes as slime's and ModelExpress's update_weight_from_disk_delta write them, SkyRL's DeltaManifest, TRL's PatchMetadata."""
    st_file(t, "slime/model-00001-of-00001.safetensors", None, {"a.weight": "45396f83"})
    index_file(t, "slime", DELTA_INDEX)
    st_file(t, "skyrl/payload-0.safetensors", {"t0": U8})
    with open(t.at("skyrl", "manifest.json"), "w") as f:
        json.dump({"version": 2, "base_version": 1, "payload_files": ["payload-0.safetensors"], "tensors": [
            {"name": "a.weight", "dtype": "bfloat16", "shape": [4], "payload_file": "payload-0.safetensors", "payload_key": "t0"}]}, f)
    patch = {"format": "sparse_weight_patch", "version": "1", "model_version": "4", "encoding": "gap_delta"}
    st_file(t, "trl/delta.safetensors", {"a.weight.indices": ("U16", [2], bytes(4)), "a.weight.values": ("BF16", [2], bytes(4))}, {**patch, "sparse": "True"})
    for name, reader in (("slime", "ModelExpress"), ("skyrl", "SkyRL"), ("trl", "TRL")):
        check_refused(t, t.at(name), "a delta update", reader)
        for command in (["inspect", t.at(name)], ["validate", "--deep", t.at(name)]):
            need("a delta update" in t.run(*command, status=2).stderr.decode(), command)
    need("a delta update" in t.run("inspect", t.at("slime/model-00001-of-00001.safetensors"), status=2).stderr.decode(), "a shard by itself")
    # Whole models that look like it: uint8 weights, an anchor, a version without a base, checksums of tensors that are not uint8.
    st_file(t, "plain/model-00001-of-00001.safetensors", None)
    index_file(t, "plain", {"total_size": 5, "version": "000001", "base_version": None})
    st_file(t, "anchor/model.safetensors", {"a.weight": ("BF16", [2], bytes(4))}, {**patch, "sparse": "False"})
    st_file(t, "sums/model.safetensors", {"a.weight": ("BF16", [2], bytes(4))}, {"a.weight": "45396f83"})
    st_file(t, "manifest/model.safetensors", None)
    write(t.at("manifest", "manifest.json"), b'{"version": 2, "files": ["model.safetensors"]}')
    for name in ("plain", "anchor", "sums", "manifest"):
        t.run("convert", t.at(name), t.at(name + ".pt"), "--to", "torch")


@test
def test_compressed_models_are_not_models(t):
    names = {"a.encoded_exponent": U8, "a.sign_mantissa": U8, "a.luts": U8}
    st_file(t, "dfloat11/model.safetensors", names)
    st_file(t, "config/model.safetensors", None)
    write(t.at("config", "config.json"), b'{"dfloat11_config": {"version": "0.5.0"}}')
    st_file(t, "zipnn/model.safetensors", None, {"znn_compressed_vectors": '{"a.weight": {"dtype": "torch.bfloat16", "shape": "[4]"}}'})
    for name, tool in (("dfloat11", "DFloat11Model"), ("config", "DFloat11Model"), ("zipnn", "zipnn")):
        check_refused(t, t.at(name), tool)
        need(tool in t.run("inspect", t.at(name), status=2).stderr.decode(), name)
    st_file(t, "whole/model.safetensors", {"a.weight": U8})
    write(t.at("whole", "config.json"), b'{"model_type": "llama"}')
    t.run("convert", t.at("whole"), t.at("whole.pt"), "--to", "torch")


@test
def test_orbax_next_to_other_files_is_refused(t):
    write(t.at("orbax", "_METADATA"), b'{"tree_metadata": {}, "use_zarr3": true}')
    write(t.at("orbax", "w", "c", "0"), b"\x28\xb5\x2f\xfd")  # a chunk of zarr 3, whose name is no step
    shutil.copy(sample("torch_plain")[0], t.at("orbax", "extra.pt"))
    write(t.at("marked", "_CHECKPOINT_METADATA"), b'{"item_handlers": {}, "metrics": {}, "init_timestamp_nsecs": 1795962723046228601}')
    shutil.copy(sample("torch_plain")[0], t.at("marked", "extra.pt"))
    for name in ("orbax", "marked"):
        check_refused(t, t.at(name), "an Orbax checkpoint", "orbax.checkpoint")
        for command in (["latest", t.at(name)], ["inspect", t.at(name), "--step", "latest-valid"], ["repair", t.at(name), t.at("new")]):
            need("an Orbax checkpoint" in t.run(*command, status=2).stderr.decode(), command)
    for name in ("_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt", ".snapshot_metadata", "Manifest.json"):
        st_file(t, f"named{name}/model.safetensors", None)
        write(t.at("named" + name, name), b'{"a": 1}')
        t.run("convert", t.at("named" + name), t.at(f"{name}.pt"), "--to", "torch")


def member(name, data=bytes(40)):
    return b"PK\3\4" + bytes(22) + struct.pack("<HH", len(name), 0) + name + data


# The first bytes of files that the libraries wrote: bz2, zlib and lzma of Python 3.11, flax 0.12, onnx 1.23, coremltools 9, executorch 1.5,
# tensorflow 2.21, torch 2.13, paddle 3.3. That of TensorRT is a published one.
FOREIGN = {
    "bz2": (b"BZh91AY&SY", "bzip2"), "zlib": (b"x\x9c\xa5\x55\x4d\x6c\x1b\x45", "joblib.load"), "lzma": (b"]\0\0\x40\0" + b"\xff" * 8, "LZMA"), "lz4": (b"\x04\x22\x4d\x18", "LZ4"),
    "flax": (b"\x81\xa6params\x81\xa5dense", "flax.serialization"), "flax of 40": (b"\xde\0\x28\xa2l0\xc7\x15\1\x93", "flax.serialization"),
    "flax of many": (b"\xdf\0\1\x11\x70\xa2l0\xc7", "flax.serialization"), "onnx": (b"\x08\x0e:\x91\xb9\2\n\x12\n\1x", "onnx.load"), "onnx by pytorch": (b"\x08\x0a\x12\7pytorch", "onnx.load"),
    "coreml": (b"\x08\6\x12\xcd\1\n\x0f\n\1x\x1a\n*", "coremltools"), "saved model": (b"\x08\1\x12\xf0\3\n\x20\n\4", "tf.train"), "tf index": (b"\0\0\6\x08\1\x1a\2\x08\1", "tf.train"),
    "pte": (b"<\0\0\0ET12eh00 \0\0\0", "runtime of ExecuTorch"), "ptd": (b"H\0\0\0FT01FH01(\0\0\0", "runtime of ExecuTorch"), "tflite": (b"\x1c\0\0\0TFL3", "LiteRT"), "trt": (b"ftrt\0\0\0\0", "tensorrt.Runtime"),
    "mobile": (b"8\0\0\0PTMF", "torch.jit.load"), "pickle 0": (b"(dp0\nVw\n", "bare pickle"), "pickle 1": (b"}q\0X\1\0\0\0w", "Paddle"),
    "jit": (member(b"m/extra/a.txt"), "torch.jit.load"), "export": (member(b"m/data/weights/model_weights_config.json"), "torch.export.load"),
    "paddle": (bytes(16) + b"\6\0\0\0\x08\5\x10\2\x10\2\0\0\x80?", "paddle.load"), "paddle scalar": (bytes(16) + b"\2\0\0\0\x08\5\0\0\x80?", "paddle.load"),
    "hdf5 behind 512 bytes": (bytes(512) + b"\x89HDF\r\n\x1a\n", "h5py"), "hdf5 behind 2 KiB": (b"a program's own\n" * 128 + b"\x89HDF\r\n\x1a\n", "h5py"),
    "aoti": (member(b"m/data/aotinductor/model/c.wrapper.cpp"), "aoti_load_package"), "package": (member(b"m/.data/0.storage"), "PackageImporter"), "zip": (member(b"a.txt"), "that torch.save did not write")}


@test
def test_torchscript_without_tensors_is_named(t):
    """torch.jit.save compresses code. Without tensors, nothing before it shows what the archive is."""
    with zipfile.ZipFile(t.at("m.pt"), "w") as z:
        z.writestr("m/data.pkl", b"\x80\2}q\0.")
        z.writestr("m/code/__torch__.py", "class M(Module):\n  pass\n" * 9, zipfile.ZIP_DEFLATED)
        z.writestr("m/constants.pkl", b"\x80\2).")
    need("torch.jit.load" in t.run("inspect", t.at("m.pt"), status=2).stderr.decode(), "code")
    with zipfile.ZipFile(t.at("packed.pt"), "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("m/data.pkl", b"\x80\2}q\0." * 9)
    text = t.run("inspect", t.at("packed.pt"), status=2).stderr.decode()
    need("torch.save stores members uncompressed" in text and "jit" not in text, text)


@test
def test_files_of_other_programs_are_named(t):
    for name, (head, tool) in FOREIGN.items():
        write(t.at(name, "pytorch_model.bin"), head + b"\x01" * 600)
        for path in (t.at(name), t.at(name, "pytorch_model.bin")):
            check_refused(t, path, tool)
            for command in (["inspect", path], ["validate", "--deep", path], ["repair", path, t.at("new")]):
                need(tool in t.run(*command, status=2).stderr.decode(), command)
        need(tool in t.run("latest", t.at(name), status=1).stderr.decode(), name)
        need(tool in t.run("inspect", t.at(name), "--step", "latest", status=2).stderr.decode(), name)
        st_file(t, f"next to {name}/model.safetensors", None)
        write(t.at(f"next to {name}", "other.bin2"), head + bytes(600))
        t.run("validate", t.at(f"next to {name}"))
    for name, tool in (("m.onnx.data", "onnx.load"), ("ckpt-1.data-00000-of-00001", "tf.train"), ("manifest.ocdbt", "orbax.checkpoint")):
        write(t.at("raw", name), b"\x5e\x91\xc8\x3e" * 40)
        need(tool in t.run("validate", t.at("raw", name), status=2).stderr.decode(), name)
    for head in (b"\x81\xa6\0\0", b"x\x9c\1\0", b"]\0\0\0"):  # lengths of headers that are not there
        write(t.at("cut.safetensors"), head + bytes(4) + b"{" * 40)
        message = t.run("validate", t.at("cut.safetensors"), status=(1, 2))
        need(b"flax" not in message.stderr + message.stdout and b"zlib" not in message.stderr + message.stdout and b"LZMA" not in message.stderr, message)


@test
def test_items_that_went_through_a_user_s_extension_are_listed(t):
    """tests/golden/make_dcp_extension.py. Only the program that has the extension can read the values."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "dcp_extension")
    doc = t.json("inspect", path, "--json")
    need({e["fqn"]: (e["kind"], e.get("dtype"), e.get("shape")) for e in doc["entries"]} == {
        "model.w": ("tensor", "float32", [6]), "model.b": ("tensor", "bfloat16", [2, 3]), "step": ("object", None, None)}, doc["entries"])
    for deep in ((), ("--deep",)):
        found = t.json("validate", path, "--json", *deep)["findings"]
        need([(f["rule"], f["level"]) for f in found] == [("dcp/extension", "note")] and "stream.acme-scramble/2" in found[0]["message"], found)
    t.run("layout", path)
    t.run("plan", path, "--mesh", "dp=2", "--placements", "shard(0)")
    for command in (["convert", path, t.at("x.safetensors"), "--objects", "drop"], ["convert", path, t.at("x.pt"), "--to", "torch"], ["manifest", path],
                    ["reshard", path, t.at("x"), "--mesh", "dp=2", "--placements", "shard(0)"], ["diff", path, path, "--values"], ["get", path, "model.w", "--print"]):
        message = t.run(*command, status=2).stderr.decode()
        need("stream.acme-scramble/2" in message and not any(os.path.exists(t.at(n)) for n in ("x", "x.pt", "x.safetensors")), message)


@test
def test_local_checkpoints_of_ranks_are_named(t):
    """LocalCheckpointManager of nvidia-resiliency-ext 0.4 saves one object per rank."""
    import pickles
    root = pickles.new(pickles.glob("nvidia_resiliency_ext.checkpointing.local.basic_state_dict", "BasicTensorAwareStateDict"))
    state = pickles.dict_of(state_dict=pickles.dict_of(w=pickles.s("x")), _is_hollow=b"\x89")
    for rank in range(2):
        write(t.at("ckpt", f"iter_0000010_{rank}_local.pt"), pickles.archive(b"\x80\x02" + root + state + b"b."))
    for path in (t.at("ckpt"), t.at("ckpt", "iter_0000010_1_local.pt")):
        check_refused(t, path, "nvidia-resiliency-ext", "LocalCheckpointManager")
        need("LocalCheckpointManager" in t.run("inspect", path, status=2).stderr.decode(), path)
    os.makedirs(t.at("plain"))
    shutil.copy(sample("torch_plain")[0], t.at("plain", "iter_0000010_0_local.pt"))
    t.run("validate", t.at("plain"))


@test
def test_another_storage_writer_is_named(t):
    """PyTorch's S3RdmaStorageWriter describes where items are by a class of its own."""
    path = copy_of(t, "dcp_small", "rdma")
    with open(os.path.join(path, ".metadata"), "rb") as f:
        data = f.read()
    need(b"_StorageInfo" in data, "the sample has other classes")
    for old, new in ((b"torch.distributed.checkpoint.filesystem", b"torch.distributed.checkpoint._s3_rdmaxx"), (b"_StorageInfo", b"_RdmaObjectI")):
        data = data.replace(old, new)
    write(os.path.join(path, ".metadata"), data)
    check_refused(t, path, "_RdmaObjectI", "only its own reader loads it")
    need("_RdmaObjectI" in t.run("inspect", path, status=2).stderr.decode(), "not named")
