"""optim and repair to object stores write the same files as the same command on a disk."""
import json
import os
import shutil

import servers
from checks import need, test
from fake_s3 import serving
from harness import sample
from test_s3 import files_below
from test_write import bucket


def flat_parameters(t, path, world):
    """Writes a description of FSDP1's flat parameters for a sample's optimizer state, and returns its path."""
    names = {n[len("optim.state."):-len(".exp_avg")]: e["shape"] for n, e in sample("dcp_fsdp2")[1]["entries"].items() if n.startswith("optim.state.") and n.endswith(".exp_avg")}
    volume = lambda shape: shape[0] * volume(shape[1:]) if shape else 1
    unit = {"fsdp_module": "", "raw_name": "_flat_param", "params": [{"fqn": n, "shape": s} for n, s in names.items()], "numels_with_padding": [volume(s) for s in names.values()],
            "is_padding_mask": [False] * len(names), "sharding_strategy": "FULL_SHARD"}
    with open(path, "w") as f:
        json.dump({"schema": "tessera.flat-params/1", "world_size": world, "use_orig_params": False, "files": [f"r{i}.pt" for i in range(world)], "units": [unit],
                   "param_groups": [["_flat_param"]]}, f)
    return path


def optim_all(t, place):
    path = sample("dcp_fsdp2")[0]
    flat = flat_parameters(t, t.at("flat.json"), 3)
    put = lambda name, data: place.put(name, data)
    for name, args in (("flat.pt", ("flatten", path)), ("ranks", ("shard", path, "--flat-params", flat))):
        command, source, *options = args
        t.run("optim", command, source, t.at(name), *options)
        doc = t.json("optim", command, source, f"{place.url}/o/{name}", *options, "--json", env=place.env)
        need(place.below(f"o/{name}") == files_below(t.at(name)) and doc["files"] == len(files_below(t.at(name))), f"{name}: other bytes")
        p = t.run("optim", command, source, f"{place.url}/o/{name}", *options, status=2, env=place.env)
        need(b"exists" in p.stderr and b"--overwrite" in p.stderr, p.stderr)
    t.run("optim", "unshard", f"{place.url}/o/ranks", f"{place.url}/o/full.pt", "--flat-params", flat, env=place.env)
    t.run("optim", "unshard", t.at("ranks"), t.at("full.pt"), "--flat-params", flat)
    need(place.below("o/full.pt") == files_below(t.at("full.pt")), "from a store to a store")
    put("o/old.pt", files_below(t.at("flat.pt"))["flat.pt"])
    t.run("optim", "unshard", t.at("ranks"), f"{place.url}/o/old.pt", "--flat-params", flat, "--overwrite", env=place.env)
    need(list(place.below("o/old.pt").values()) == list(files_below(t.at("full.pt")).values()), "one object is replaced")
    before = place.below("o/ranks")
    p = t.run("optim", "shard", path, f"{place.url}/o/ranks", "--flat-params", flat, "--overwrite", status=2, env=place.env)
    need(b"no marker" in p.stderr and place.below("o/ranks") == before, p.stderr)
    p = t.run("optim", "unshard", f"{place.url}/o/ranks", f"{place.url}/o/ranks/full.pt", "--flat-params", flat, status=2, env=place.env)
    need(b"inside the source" in p.stderr and place.below("o/ranks") == before, p.stderr)


@test
def test_optim_to_moto_is_what_a_disk_gets(t):
    with bucket(servers.moto) as (place, _):
        optim_all(t, place)


@test
def test_optim_that_fails_leaves_nothing(t):
    path = sample("dcp_fsdp2")[0]
    flat = flat_parameters(t, t.at("flat.json"), 3)
    with serving({}) as s:
        s.trouble = lambda h, k, count: h.command == "PUT" and k.endswith("r1.pt") and h.error(403, "AccessDenied")
        p = t.run("optim", "shard", path, "s3://b/ranks", "--flat-params", flat, status=2, env=s.env())
        need(b"AccessDenied" in p.stderr and not s.objects and not s.uploads, f"{p.stderr} {list(s.objects)}")


@test
def test_repair_to_moto(t):
    """The marker is written to its place in the store, on the condition that none is there."""
    path = sample("dcp_fsdp2")[0]
    with bucket(servers.moto) as (place, _):
        for name, data in files_below(path).items():
            if name != ".metadata":
                place.put("lost/" + name, data)
        shutil.copytree(path, t.at("lost"))
        os.remove(t.at("lost", ".metadata"))
        t.run("repair", t.at("lost"), t.at("new"), "--like", path)
        url = place.url + "/lost"
        doc = t.json("repair", url, url + "/.metadata", "--like", path, "--json", env=place.env)
        need(doc["written"] == url + "/.metadata" and doc["unnamed"] == doc["lost"] == 0, doc)
        need(place.read("lost/.metadata")["lost/.metadata"] == files_below(t.at("new"))["new"], "other bytes than on a disk")
        need(t.json("diff", path, url, "--values", "--json", env=place.env)["same"], "another checkpoint")
        p = t.run("repair", t.at("lost"), url + "/.metadata", "--like", path, status=2, env=place.env)
        need(b"exists" in p.stderr, p.stderr)
        p = t.run("repair", t.at("lost"), "hf://org/name/.metadata", "--like", path, status=2, env=place.env)
        need(b"hf:// is read only" in p.stderr, p.stderr)


@test
def test_dest_with_a_slash_in_a_bucket(t):
    """A single object gets a name below the URL. It is replaced, refused and found complete like a file in a directory."""
    path, other = sample("safetensors_model")[0], t.at("other.safetensors")
    path = os.path.join(path, "model.safetensors") if os.path.isdir(path) else path
    t.run("convert", path, other, "--dtype", "bfloat16")
    with serving({}) as s:
        run = lambda *args, status=0: t.run(*args, env=s.env(), status=status).stderr
        for to, name in (("safetensors", "model.safetensors"), ("torch", "pytorch_model.bin")):
            dest = f"s3://b/{to}/"
            job = ("convert", path, dest, "--to", to)
            run(*job)
            need(list(s.objects) == [f"{to}/{name}"], list(s.objects))
            s.objects[f"{to}/config.json"] = b"{}"
            before = dict(s.objects)
            need(b"exists" in run(*job, status=2) and b"exists" in run("convert", other, dest, "--to", to, "--resume", status=2), "it exists")
            s.done.clear()
            for more in ((), ("--overwrite",)):
                need(b"already complete" in run(*job, "--resume", *more) and not s.done and s.objects == before, f"--resume {more}: {s.done}")
            run("convert", other, dest, "--to", to, "--overwrite")
            need(set(s.objects) == set(before) and s.objects[f"{to}/{name}"] != before[f"{to}/{name}"], "it was not replaced")
            s.objects.clear()
        run("cp", path, "s3://b/copies/")
        need(b"exists" in run("cp", path, "s3://b/copies/", status=2), "a copy exists")
        run("cp", other, "s3://b/copies/")
        need(b"already complete" in run("cp", path, "s3://b/copies/", "--resume"), "the copy is complete")
        need(b"exists" in run("cp", path, "s3://b/copies/other.safetensors", "--resume", status=2), "another file's copy")
        need(list(s.objects) == ["copies/model.safetensors", "copies/other.safetensors"], list(s.objects))
        run("optim", "flatten", sample("torch_train_state")[0], "s3://b/optim/")
        need("optim/train.pt" in s.objects, list(s.objects))
        need(b"already complete" in run("optim", "flatten", sample("torch_train_state")[0], "s3://b/optim/", "--resume"), "the state is complete")
        p = run("optim", "flatten", sample("torch_train_state")[0], "s3://b/optim/train.pt", "--at", "optimizer", "--resume")
        need(b"already complete" in p, "the same state, told by its place")


@test
def test_dest_in_a_bucket_whose_reader_would_load_a_kept_object(t):
    path = sample("safetensors_index")[0]
    with serving({f"hf/{n}": d for n, d in files_below(sample("dcp_small")[0]).items()}) as s:
        s.objects["hf/model.safetensors"] = files_below(sample("safetensors_model")[0]).popitem()[1]
        before = dict(s.objects)
        p = t.run("convert", path, "s3://b/hf", "--max-shard-size", "2KB", "--overwrite", env=s.env(), status=2)
        need(b"'model.safetensors'" in p.stderr and b"transformers" in p.stderr and s.objects == before, p.stderr)


@test
def test_config_json_in_a_bucket(t):
    """It is what a disk gets, replaces no other one, and is written by a run that finds its checkpoint complete."""
    os.makedirs(t.at("model"))
    shutil.copy(os.path.join(sample("safetensors_model")[0]), t.at("model", "model.safetensors"))
    with open(t.at("model", "config.json"), "w") as f:
        json.dump({"dtype": "float32", "vocab_size": 3}, f)
    with serving({f"in/{n}": d for n, d in files_below(t.at("model")).items()}) as s:
        run = lambda *args, status=0: t.run("convert", *args, env=s.env(), status=status).stderr
        for more in ((), ("--max-shard-size", "1KB")):
            t.run("convert", t.at("model"), t.at("out") + "/", "--config", "--dtype", "bfloat16", *more)
            want = {f"out/{n}": d for n, d in files_below(t.at("out")).items()}
            need(json.loads(want["out/config.json"]) == {"dtype": "bfloat16", "vocab_size": 3} and len(want) > 1, want["out/config.json"])
            job = ("s3://b/in", "s3://b/out/", "--config", "--dtype", "bfloat16", *more)
            run(*job)
            below = lambda: {n: d for n, d in s.objects.items() if n.startswith("out/")}
            need(below() == want and s.done[-1][1].endswith("config.json"), f"{list(s.objects)} {s.done}")
            need(b"already complete" in run(*job, "--resume") and below() == want, "--resume")
            del s.objects["out/config.json"]
            need(b"already complete" in run(*job, "--resume") and below() == want, "--resume after a kill in between")
            s.objects["out/config.json"] = b"mine"
            for how in ("--resume", "--overwrite"):
                need(b"config.json' already exists" in run(*job, how, status=2) and below() == {**want, "out/config.json": b"mine"}, how)
            shutil.rmtree(t.at("out"))
            for name in want:
                del s.objects[name]
        run("s3://b/in", "s3://b/one.safetensors", "--config")
        need(s.objects["config.json"] == s.objects["in/config.json"], list(s.objects))
