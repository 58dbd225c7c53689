"""DeepSpeed's PipelineModule, whose weights are in one file per layer: the listing agrees with the live engines of all ranks
(tests/golden/make_deepspeed_pipelines.py), and missing files of layers are named."""
import json
import os
import shutil

from harness import need, test
from test_deepspeed import GOLDEN, copy_of, described, listing, named, rewrite


def expectation(case):
    with open(os.path.join(GOLDEN, case, "expect.json")) as f:
        return json.load(f)


def by_number(expect, tensors):
    """The names that layers have without ZeRO, where no tied name is stored: the numbers of the first use and of a copy."""
    out = {}
    for name, ranks in tensors.items():
        for tied, number in expect["layers"].items():
            if name.startswith(tied + "."):
                out[f"{number}{name[len(tied):]}"] = ranks[0]
                if tied == "tied_modules.mix":  # its second use also has a file
                    out[f"{number + 1}{name[len(tied):]}"] = ranks[0]
                break
        else:
            out[name] = ranks[0]
    return out


def whole(tensors):
    return {name: ranks[0] for name, ranks in tensors.items()}


@test
def test_every_weight_of_a_pipeline_is_that_of_its_engines(t):
    """DeepSpeed's bfloat16 optimizer without ZeRO also stores the names of its parameters, but no shapes."""
    for case in ("zero1_pipeline", "zero0_pipeline_bf16"):
        expect = expectation(case)
        path = copy_of(t, case, case)
        rows = listing(t, path)
        need(len(expect["module"]) == 13 and "8.seen" in expect["module"] and len(expect["optim"]) == 30, sorted(expect["optim"]))
        for section, part in (("module", "module."), ("model", "model."), ("optim", "optim.state.")):
            got, want = named(rows, part), whole(expect[section])
            need(got == want, f"{case}: {section}: {[n for n in set(got) | set(want) if got.get(n) != want.get(n)]}")
        trained = {n.rsplit(".", 1)[0] for n in expect["optim"]}
        groups = [rows[f"optim.param_groups.{g}.params"]["value"] for g in range(2)]
        need(sorted(sum(groups, [])) == sorted(trained), f"{case}: {groups}")
        t.run("validate", path, "--deep")
        for part in ("module", "model", "optim"):
            t.run("convert", path, t.at(case + part), "--to", "dcp", "--part", part)
            t.run("diff", path, t.at(case + part), "--values", "--part", part)
        t.run("convert", path, t.at(case + ".safetensors"), "--part", "model")
        need(named(listing(t, t.at(case + ".safetensors")), "") == whole(expect["model"]), f"{case}: convert")


@test
def test_a_pipeline_without_zero_is_listed_by_the_numbers_of_its_layers(t):
    expect = expectation("zero0_pipeline")
    path = copy_of(t, "zero0_pipeline", "run")
    rows = listing(t, path)
    for part in ("module", "model"):
        need(named(rows, part + ".") == by_number(expect, expect[part]), f"{part}: {sorted(named(rows, part + '.'))}")
    numbers = {number: name for number, name in expect["numbers"].items()}
    need(len(numbers) > len(set(numbers.values())), "a tied weight is in the optimizers of two stages")
    want = {f"{number}.{key}": expect["optim"][f"{name}.{key}"][0] for number, name in numbers.items() for key in ("step", "exp_avg", "exp_avg_sq")}
    need(named(rows, "optim.state.") == want, "the states of every stage, by their numbers")
    groups = [rows[f"optim.param_groups.{g}.params"]["value"] for g in range(2)]
    need(sorted(sum(groups, [])) == sorted(numbers), f"{groups}")
    notes = [f["message"] for f in t.json("validate", path, "--json", "--deep")["findings"] if f["rule"] == "parts/unnamed-states"]
    need(len(notes) == 2 and all("pipeline" in n for n in notes), notes)
    t.run("convert", path, t.at("model.safetensors"), "--part", "model")
    need(named(listing(t, t.at("model.safetensors")), "") == by_number(expect, expect["model"]), "convert")


def stored_under(name):
    """What a later stage has besides the tied weights is in the file of that layer, under its number, if there is one, and
    otherwise nowhere."""
    return {"mp_rank_01.tied_modules.mix.bias": "5.bias"}.get(name, None if name.startswith("mp_rank_01.") else name)


@test
def test_what_tied_layers_do_not_tie_is_listed_for_every_stage(t):
    """DeepSpeed's engines of all stages load and train their own values, so neither may be lost."""
    for case in ("zero1_pipeline_own", "zero0_pipeline_own_bf16"):
        expect = expectation(case)
        path = copy_of(t, case, case)
        rows = listing(t, path)
        own = sorted(n for n in expect["model"] if n.startswith("mp_rank_01."))
        need(own == ["mp_rank_01.tied_modules.embed.positions", "mp_rank_01.tied_modules.embed.stage", "mp_rank_01.tied_modules.mix.bias"], own)
        need(all(expect["model"][n] != expect["model"][n[len("mp_rank_01."):]] for n in own), "the stages hold different values")
        module = {stored_under(n): tensor for n, tensor in whole(expect["module"]).items() if stored_under(n)}
        model = {n: tensor for n, tensor in whole(expect["model"]).items() if n != "mp_rank_01.tied_modules.embed.stage"}
        for part, want in (("module.", module), ("model.", model), ("optim.state.", whole(expect["optim"]))):
            got = named(rows, part)
            need(got == want, f"{case}: {part}: {[n for n in set(got) | set(want) if got.get(n) != want.get(n)]}")
        trained = {n.rsplit(".", 1)[0] for n in expect["optim"]}
        groups = [rows[f"optim.param_groups.{g}.params"]["value"] for g in range(2)]
        need(sorted(sum(groups, [])) == sorted(trained), f"{case}: {groups}")
        found = [f for f in t.json("validate", path, "--json", "--deep")["findings"] if f["rule"].startswith(("parts/", "layout/"))]
        need([(f["rule"], f["level"]) for f in found] == [("parts/stages-differ", "warning")] * 2 and "mp_rank_01.tied_modules.mix.bias" in found[1]["message"], found)
        t.run("convert", path, t.at(case + ".safetensors"), "--part", "model")
        need(named(listing(t, t.at(case + ".safetensors")), "") == model, f"{case}: convert")


@test
def test_a_tied_layer_with_a_buffer_is_there_without_zero(t):
    """Without ZeRO, the name of the buffer is the only name of the layer that is stored."""
    expect = expectation("zero0_pipeline_own")
    path = copy_of(t, "zero0_pipeline_own", "run")
    model = {n: tensor for n, tensor in expect["model"].items() if not n.startswith("mp_rank_01.")}
    want = {**by_number(expect, model), "5.bias": expect["model"]["mp_rank_01.tied_modules.mix.bias"][0]}
    rows = listing(t, path)
    for part in ("module.", "model."):
        got = named(rows, part)
        need(got == want, f"{part}: {[n for n in set(got) | set(want) if got.get(n) != want.get(n)]}")
    t.run("validate", path, "--deep")
    t.run("convert", path, t.at("model.safetensors"), "--part", "model")
    need(named(listing(t, t.at("model.safetensors")), "") == want, "convert")
    os.remove(os.path.join(path, "layer_00-model_states.pt"))
    check_missing(t, path, "'embed'")


@test
def test_tied_weights_that_differ_between_stages_are_not_taken_for_one(t):
    """As if one stage's files were copied from another step: the later stage's weights get their own names, and a
    warning."""
    path = copy_of(t, "zero1_pipeline", "run")
    file = os.path.join(path, "bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt")
    rewrite(file, lambda name, data: bytes(b ^ 64 for b in data) if "/data/" in name and len(data) > 64 else data)
    found = [f for f in t.json("validate", path, "--json", "--deep")["findings"] if f["rule"] == "parts/stages-differ"]
    need(found and all("tied_modules." in f["message"] for f in found), found)
    rows = listing(t, path)
    for name in {f["message"].split("'")[1] for f in found}:
        need(described(rows[f"model.{name}"]) != described(rows[f"model.mp_rank_01.{name}"]), name)


def save_layer_like_mix(path):
    """Layer 6 is frozen, so none of its names is stored. With these shapes it may be the tied layer 'mix'."""
    import torch
    torch.save({"weight": torch.full((5, 5), 2.0, dtype=torch.bfloat16), "bias": torch.arange(5).bfloat16()}, os.path.join(path, "layer_06-model_states.pt"))


@test
def test_float32_weights_of_unknown_shape_are_refused(t):
    path = copy_of(t, "zero0_pipeline_bf16", "run")
    save_layer_like_mix(path)
    for arguments in ((), ("--part", "model"), ("--part", "optim")):
        message = t.run("convert", path, t.at("x"), "--to", "dcp", *arguments, status=2).stderr.decode()
        need("model_states.pt" in message and "param_shapes" in message and "--part module" in message, message)
    t.run("convert", path, t.at("module"), "--to", "dcp", "--part", "module")
    t.run("diff", path, t.at("module"), "--values", "--part", "module")


def check_missing(t, path, lost, arguments=()):
    found = t.json("validate", path, "--json", *arguments, status=1)["findings"]
    errors = [f for f in found if f["level"] == "error"]
    need({f["rule"] for f in errors} == {"parts/incomplete-save"} and lost in errors[0]["message"], f"{lost}: {errors}")
    need(t.json("inspect", path, "--json", *arguments)["entries"], "nothing is listed")
    for command in (["convert", path, t.at("out.safetensors")], ["manifest", path], ["diff", path, path], ["get", path, "model.1.bias", "--print"]):
        message = t.run(*command, status=2).stderr.decode()
        need(lost in message and not os.path.exists(t.at("out.safetensors")), message)
    return errors[0]


@test
def test_missing_layers_are_named(t):
    """The stored names of tied layers contain no numbers, so the message offers numbers that have no file."""
    for case, number, also in (("zero1_pipeline", 0, ["layer_02"]), ("zero1_pipeline", 1, []), ("zero1_pipeline", 3, []), ("zero1_pipeline", 8, []),
                               ("zero0_pipeline_bf16", 7, [])):
        path = copy_of(t, case, f"lost{number}")
        lost = f"layer_{number:02d}-model_states.pt"
        os.remove(os.path.join(path, lost))
        error = check_missing(t, path, lost)
        need(error["file"] == lost and all(a in error["message"] for a in also), error)
    path = copy_of(t, "zero1_pipeline", "several")
    for number in (1, 8):
        os.remove(os.path.join(path, f"layer_{number:02d}-model_states.pt"))
    check_missing(t, path, "'layer_08-model_states.pt'")
    path = copy_of(t, "zero1_pipeline", "cut")
    with open(os.path.join(path, "layer_03-model_states.pt"), "r+b") as f:
        f.truncate(200)
    errors = [f for f in t.json("validate", path, "--json", status=1)["findings"] if f["level"] == "error"]
    need(all(f["file"] == "layer_03-model_states.pt" for f in errors), errors)
    need("layer_03" in t.run("convert", path, t.at("x"), "--to", "dcp", status=2).stderr.decode(), "a layer that cannot be read is refused")


@test
def test_missing_layers_without_zero_are_noticed_by_their_shapes(t):
    path = copy_of(t, "zero0_pipeline", "run")
    os.remove(os.path.join(path, "layer_00-model_states.pt"))  # the only one with its shape
    check_missing(t, path, "mp_rank_00_model_states.pt")
    for name in os.listdir(path):
        if name.startswith("layer_"):
            os.remove(os.path.join(path, name))
    message = t.run("convert", path, t.at("x"), "--to", "dcp", status=2).stderr.decode()
    need("layer_08-model_states.pt" in message, message)  # which has a buffer


@test
def test_a_layer_that_may_be_a_tied_one_keeps_its_number(t):
    path = copy_of(t, "zero1_pipeline", "run")
    save_layer_like_mix(path)
    rows = listing(t, path)
    stored = {n for n in rows if n.startswith(("module.4.", "module.5.", "module.6."))}
    need(stored == {f"module.{n}.{key}" for n in (4, 5, 6) for key in ("weight", "bias")} and "module.tied_modules.mix.weight" not in rows, stored)
    need({"model.6.weight", "model.6.bias", "model.tied_modules.mix.weight"} <= set(rows), sorted(rows))
    notes = [f["message"] for f in t.json("validate", path, "--json")["findings"] if f["rule"] == "parts/unnamed-states"]
    need(len(notes) == 1 and "'mix'" in notes[0], notes)


@test
def test_ranks_of_a_pipeline_with_tensor_parallelism_are_listed_side_by_side(t):
    case = "zero1_pipeline_tp"
    expect = expectation(case)
    path = copy_of(t, case, "run")
    rows = listing(t, path)
    for part, section in (("module", "module"), ("model", "model"), ("optim.state", "optim")):
        got = {n[len(part) + 1:]: e for n, e in rows.items() if n.startswith(part + ".") and (e["kind"] == "tensor" or e.get("per_rank"))}
        need(set(got) == set(expect[section]), f"{part}: {sorted(set(got) ^ set(expect[section]))}")
        for name, ranks in expect[section].items():
            need(got[name].get("per_rank") and got[name]["shapes"] == [r["shape"] for r in ranks], f"{part}.{name}: {got[name]}")
    message = t.run("convert", path, t.at("x"), "--to", "dcp", "--part", "model", status=2).stderr.decode()
    need("tied_modules.embed.weight" in message and "--shards MAP" not in message and "cannot be joined" in message, message)
    again = t.run("convert", path, t.at("x"), "--to", "dcp", "--part", "model", "--shards", "megatron-gpt", status=2).stderr.decode()
    need(again == message, again)
    for number, rank in ((1, 1), (8, 0)):
        lost = f"layer_{number:02d}-model_{rank:02d}-model_states.pt"
        shutil.move(os.path.join(path, lost), t.at("kept"))
        check_missing(t, path, lost)
        shutil.move(t.at("kept"), os.path.join(path, lost))


@test
def test_a_pipeline_is_not_written_as_a_universal_checkpoint(t):
    """A DeepSpeed engine rejects one with the model states of one stage: "checkpoint count 1 is different from saved
    mp_world_size 2"."""
    for case in ("zero1_pipeline", "zero0_pipeline_bf16"):
        message = t.run("convert", copy_of(t, case, case), t.at("u"), "--to", "deepspeed-universal", status=2).stderr.decode()
        need("2 model-parallel ranks" in message and message.count("\n") == 1 and not os.path.exists(t.at("u")), message)
