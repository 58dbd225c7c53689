"""DeepSpeed's directories: the listing agrees with zero_to_fp32 and the live engine (tests/golden/make_deepspeed.py), and
files that do not belong together are named."""
import json
import os
import re
import shutil
import zipfile

from harness import ROOT, need, test

GOLDEN = os.path.join(ROOT, "tests", "golden", "deepspeed")
CASES = ("zero0_fp32_groups", "zero0_bf16", "zero1_bf16", "zero1_round_robin", "zero1_elastic", "zero2_fp16", "zero3_bf16", "zero3_fp32_sgd",
         "zero3_tied_modules", "universal_zero1_bf16", "universal_zero3_bf16")
FROZEN = {"frozen.weight", "frozen.bias"}  # zero_to_fp32 leaves them out under ZeRO 1, where only the module has them
NUMBERED = "down.bias"  # has the shape of a frozen weight; under ZeRO 0 only the order in the optimizer's groups distinguishes them


def described(row):
    return {"dtype": row["dtype"], "shape": row["shape"], "sha256": row["hash"]["digest"]}


def listing(t, path):
    return {e["fqn"]: e for e in t.json("inspect", path, "--json", "--hash", "sha256")["entries"]}


def copy_of(t, case, to):
    shutil.copytree(os.path.join(GOLDEN, case), t.at(to), ignore=lambda _, names: ["expect.json"] if "expect.json" in names else [])
    return t.at(to)


@test
def test_every_weight_and_state_is_that_of_deepspeed(t):
    for case in CASES:
        with open(os.path.join(GOLDEN, case, "expect.json")) as f:
            expect = json.load(f)
        path = copy_of(t, case, case)
        rows = listing(t, path)
        need(t.json("inspect", path, "--json")["format"] == ("deepspeed-universal" if "universal" in case else "deepspeed"), case)
        for name, want in expect["model"].items():
            need(described(rows[f"model.{name}"]) == want, f"{case}: model.{name}: {described(rows[f'model.{name}'])}, expected {want}")
        listed = {n[len("model."):] for n in rows if n.startswith("model.")}
        need(listed - set(expect["model"]) <= FROZEN, f"{case}: {listed - set(expect['model'])}")
        unnamed = [described(e) for n, e in rows.items() if n.startswith("optim.state.") and n.split(".")[2].isdigit()]
        for name, want in expect["optim"].items():
            if case == "zero0_fp32_groups" and name.startswith(NUMBERED + "."):
                need(want in unnamed, f"{case}: {name} is not among the numbered states")
                continue
            need(described(rows[f"optim.state.{name}"]) == want, f"{case}: optim.state.{name}: {described(rows[f'optim.state.{name}'])}, expected {want}")
        states = [n for n, e in rows.items() if n.startswith("optim.state.") and e["kind"] == "tensor"]
        lost = [n for n in states if n.rsplit(".", 1)[1] != "step" and n[len("optim.state."):] not in expect["optim"] and not n.split(".")[2].isdigit()]
        need(not lost, f"{case}: {lost}")
        if case != "zero1_elastic":
            need([rows[f"optim.param_groups.{g}.lr"]["value"] for g in range(2)] == expect["lr"], f"{case}: lr")
        need(rows["engine.epoch"]["value"] == 3 and rows["engine.args.lr"]["value"] == 0.001, f"{case}: the user's entries")
        for deep in ((), ("--deep",)):
            t.run("validate", path, *deep)


@test
def test_parameters_that_were_not_gathered_are_named(t):
    """A rank's module under ZeRO 3 has DeepSpeed's placeholders, and so has a state dict of it. Whole checkpoints are quiet."""
    def found(path, *options):
        return [f for f in t.json("validate", path, "--json", *options)["findings"] if f["rule"] == "layout/placeholders"]
    for case in CASES:
        need(not found(copy_of(t, case, case)), case)
    for case in ("zero3_bf16", "zero3_fp32_sgd", "zero3_tied_modules"):
        saved, weights = os.path.join(GOLDEN, case, "zero_pp_rank_0_mp_rank_00_model_states.pt"), t.at(f"{case}.safetensors")
        t.run("convert", saved, weights, "--include", "module.**", "--objects", "drop")
        rows = [e for e in t.json("inspect", weights, "--json")["entries"] if "float" in e["dtype"]]
        empty = sorted(e["fqn"] for e in rows if e["shape"] == [0])
        [finding] = found(weights)
        need(finding["level"] == "warning" and finding["fqn"] in empty, finding)
        need(f"{len(empty)} of {len(rows)} floating-point tensors" in finding["message"], finding)
        need(len(found(saved)) == 1, f"{saved} has none")


@test
def test_float32_weights_that_may_be_several_are_refused_with_their_names(t):
    path = copy_of(t, "zero0_bf16_twins", "twins")
    twins = ("'norm1.weight'", "'norm2.weight'")
    for command in (["convert", path, t.at("x.safetensors")], ["get", path, "model.embed.weight", "--print"], ["manifest", path, "--part", "model"]):
        message = t.run(*command, status=2).stderr.decode()
        need(all(name in message for name in twins) and "'embed.weight'" not in message, message)
        need("--part module" in message and "ZeRO stage 1" in message, message)
    found = t.json("validate", path, "--json")["findings"]  # DeepSpeed loads it
    need([f["level"] for f in found if f["rule"] == "parts/unnamed-states"] == ["warning"] and all(name in found[0]["message"] for name in twins), found)
    with open(os.path.join(GOLDEN, "zero0_bf16_twins", "expect.json")) as f:
        expect = json.load(f)
    rows = listing(t, path)
    sure = [n for n in expect["model"] if f"'{n}'" not in twins]
    need(len(sure) == 5 and all(described(rows[f"model.{n}"]) == expect["model"][n] for n in sure), "the other float32 weights are listed")
    for part in ("module", "optim"):  # neither needs them
        t.run("convert", path, t.at(part), "--to", "dcp", "--part", part)
        t.run("diff", path, t.at(part), "--values", "--part", part)
    states = [described(e) for n, e in listing(t, t.at("optim")).items() if n.startswith("state.") and e["kind"] == "tensor"]
    need(all(want in states for want in expect["optim"].values()), "a state of the engine is missing")


WITHOUT_ZERO = ("zero0_moe", "zero0_moe_unsplit", "zero0_moe_replicated", "zero0_moe_bf16", "zero0_moe_data_first")
EXPERTS = (*WITHOUT_ZERO, "zero1_moe", "zero2_moe", "zero1_moe_data_first")


def named(rows, part):
    return {n[len(part):]: described(e) for n, e in rows.items() if n.startswith(part) and e["kind"] == "tensor"}


@test
def test_weights_and_states_of_experts_are_those_of_all_engines(t):
    """Neither zero_to_fp32 nor ds_to_universal of this DeepSpeed can read these checkpoints, so they are compared with the
    live engines."""
    for case in EXPERTS:
        with open(os.path.join(GOLDEN, case, "expect.json")) as f:
            expect = json.load(f)
        path = copy_of(t, case, case)
        rows = listing(t, path)
        for section, part in (("module", "module."), ("model", "model."), ("optim", "optim.state.")):
            need(named(rows, part) == expect[section], f"{case}: {section}")
        tied = [n for n, e in rows.items() if e.get("shares_storage_with")]
        need(not tied, f"{case}: each weight has its own values: {tied}")
        groups = [rows[f"optim.param_groups.{g}.params"]["value"] if f"optim.param_groups.{g}.params" in rows else [] for g in range(len(expect["lr"]))]
        trained = {n.rsplit(".", 1)[0] for n in expect["optim"]}
        need(case == "zero1_moe_data_first" or sorted(sum(groups, [])) == sorted(trained), f"{case}: {groups}")
        t.run("validate", path, "--deep")
        t.run("convert", path, t.at(case + ".safetensors"), "--part", "model")
        need(named(listing(t, t.at(case + ".safetensors")), "") == expect["model"], f"{case}: convert")
        t.run("diff", path, t.at(case + ".safetensors"), "--values", "--part", "model")
        t.run("convert", path, t.at(case + ".dcp"), "--to", "dcp", "--part", "optim")
        need(named(listing(t, t.at(case + ".dcp")), "state.") == expect["optim"], f"{case}: states")


@test
def test_experts_are_not_written_as_a_universal_checkpoint(t):
    message = t.run("convert", copy_of(t, "zero2_moe", "moe"), t.at("u"), "--to", "deepspeed-universal", status=2).stderr.decode()
    need("experts" in message and ".deepspeed_experts." in message and message.count("\n") == 1 and not os.path.exists(t.at("u")), message)


@test
def test_a_missing_rank_of_experts_is_named(t):
    path = copy_of(t, "zero2_moe", "moe")
    lost = "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt"  # rank 3 shares experts with rank 1
    os.remove(os.path.join(path, lost))
    message = t.run("convert", path, t.at("x.safetensors"), "--part", "model", status=2).stderr.decode()
    need(lost in message, message)
    full, left = listing_of_golden("zero2_moe"), t.json("inspect", path, "--json")
    whole = {e["fqn"] for e in left["entries"] if e["kind"] == "tensor" and e["fqn"].startswith("model.") and all(c.get("file") for c in e["chunks"])}
    need({n for n in full if ".deepspeed_experts.0." in n} <= {n[len("model."):] for n in whole}, "experts of the other ranks are whole")


def listing_of_golden(case):
    with open(os.path.join(GOLDEN, case, "expect.json")) as f:
        return json.load(f)["model"]


def with_model_states(path, change):
    """Changes the files of a checkpoint whose model states were written by torch's own pickle."""
    import torch
    file = os.path.join(path, "mp_rank_00_model_states.pt")
    saved = torch.load(file, weights_only=False)
    change(saved)
    torch.save(saved, file)
    return path


@test
def test_experts_that_cannot_be_numbered_are_refused(t):
    def auto(saved):
        saved["ds_autoep_layers"] = [{"moe_layer_id": 0, "module_path": "first"}]

    def tied(saved):
        names = [n for n in saved["param_shapes"][4]]
        saved["shared_params"] = {names[1]: names[0]}

    def more(saved):
        saved["num_experts"] = [4, 7]

    for number, (change, want) in enumerate(((auto, "AutoEP"), (tied, "tied weights"), (more, "second.deepspeed_moe.experts.deepspeed_experts.0.weight"))):
        path = with_model_states(copy_of(t, "zero2_moe", f"moe{number}"), change)
        for part in ("model", "optim"):
            message = t.run("convert", path, t.at("x"), "--to", "dcp", "--part", part, status=2).stderr.decode()
            need(want in message and message.count("\n") == 1, message)


@test
def test_the_stored_weights_of_experts_are_read(t):
    path = copy_of(t, "zero1_moe", "moe")
    with open(os.path.join(GOLDEN, "zero1_moe", "expect.json")) as f:
        expect = json.load(f)["module"]
    need(sum("deepspeed_experts" in n for n in expect) == 8, "four experts have a weight and a bias each")
    need({n[len("module."):]: described(e) for n, e in listing(t, path).items() if n.startswith("module.")} == expect, "inspect")
    t.run("convert", path, t.at("module.safetensors"), "--part", "module")
    need({n: described(e) for n, e in listing(t, t.at("module.safetensors")).items()} == expect, "convert")
    t.run("validate", path, "--part", "module", "--deep")


def expert_states(rank):
    return f"expp_rank_{rank}_mp_rank_00_optim_states.pt"


def change_states(path, rank, change):
    import torch
    file = os.path.join(path, expert_states(rank))
    saved = torch.load(file, weights_only=False)
    change(saved["optimizer"])
    torch.save(saved, file)


@test
def test_without_zero_files_of_expert_ranks_that_do_not_belong_together_are_named(t):
    def later(optimizer):
        for state in optimizer["state"].values():
            state["step"] += 1

    for case in ("zero0_moe", "zero0_moe_replicated"):
        path = copy_of(t, case, f"later_{case}")
        change_states(path, 0, later)
        check_refused(t, path, expert_states(0))
    for case in ("zero0_moe", "zero0_moe_unsplit"):
        for rank in range(2):
            path = copy_of(t, case, f"{case}_{rank}")
            os.remove(os.path.join(path, expert_states(rank)))
            check_refused(t, path, expert_states(rank))
    path = copy_of(t, "zero0_moe", "more")
    shutil.copy(os.path.join(path, expert_states(1)), os.path.join(path, expert_states(3)))
    check_refused(t, path, expert_states(3))


@test
def test_files_of_experts_of_another_step_are_named(t):
    """They state no step: under ZeRO, the float32 weights show it; without, nothing does, which is a note."""
    import torch
    for case, file, change in (("zero1_moe", "layer_0_expert_2_mp_rank_00_model_states.pt", lambda saved: [w.mul_(1.5) for w in saved.values()]),
                               ("zero1_moe", "mp_rank_00_model_states.pt", lambda saved: (saved.update(global_steps=1), [w.mul_(1.5) for w in saved["module"].values()])),
                               ("zero0_moe_bf16", "layer_0_expert_2_mp_rank_00_model_states.pt", lambda saved: [w.mul_(1.5) for w in saved.values()])):
        path = copy_of(t, case, f"{case}_{file}")
        saved = torch.load(os.path.join(path, file), weights_only=False)
        change(saved)
        torch.save(saved, os.path.join(path, file))
        of = file if case == "zero1_moe" else expert_states(1)
        found = [f for f in t.json("validate", path, "--json", status=1)["findings"] if f["level"] == "error"]
        need([(f["rule"], f["file"]) for f in found] == [("parts/incomplete-save", of)], found)
        need(of in t.run("convert", path, t.at("x"), "--to", "dcp", status=2).stderr.decode(), case)
    for case, unchecked in (("zero0_moe", True), ("zero0_moe_bf16", False), ("zero1_moe", False)):
        found = t.json("validate", copy_of(t, case, case), "--json")["findings"]
        need(any(f["rule"] == "parts/unchecked-save" for f in found) == unchecked, found)


@test
def test_experts_left_over_from_a_larger_mixture_are_named(t):
    for case in ("zero0_moe", "zero1_moe"):
        path = copy_of(t, case, case)
        for layer, expert in ((0, 4), (1, 0)):
            file = f"layer_{layer}_expert_{expert}_mp_rank_00_model_states.pt"
            shutil.copy(os.path.join(path, "layer_0_expert_3_mp_rank_00_model_states.pt"), os.path.join(path, file))
            check_refused(t, path, file)
            os.remove(os.path.join(path, file))


@test
def test_without_zero_every_copy_of_a_state_is_compared(t):
    """Each expert-parallel rank stores the states of the weights that all ranks share, and rank 0 stores all of its own twice."""
    for case, rank in (("zero0_moe", 1), ("zero0_moe_replicated", 0)):
        path = copy_of(t, case, case)
        change_states(path, rank, lambda optimizer: optimizer["state"][0]["exp_avg"].add_(1))
        found = [f for f in t.json("validate", path, "--deep", "--json", status=1)["findings"] if f["level"] == "error"]
        need([(f["rule"], f["fqn"]) for f in found] == [("layout/replica-differs", "optim.state.embed.weight.exp_avg")], found)
        message = t.run("convert", path, t.at("x"), "--to", "dcp", "--part", "optim", status=2).stderr.decode()
        need("embed.weight.exp_avg" in message and not os.path.exists(t.at("x")), message)


@test
def test_without_zero_states_that_may_be_of_several_experts_keep_their_numbers(t):
    path = copy_of(t, "zero0_moe", "moe")

    def split(optimizer):
        whole = optimizer["param_groups"][1]
        optimizer["param_groups"][1:] = [{**whole, "name": "one", "params": [4, 5]}, {**whole, "name": "other", "params": [6, 7]}]

    for rank in range(2):
        change_states(path, rank, split)
    rows = listing(t, path)
    with open(os.path.join(GOLDEN, "zero0_moe", "expect.json")) as f:
        expect = json.load(f)
    states = named(rows, "optim.state.")
    experts = {n: row for n, row in expect["optim"].items() if "deepspeed_experts" in n and not n.endswith(".step")}
    need(all(row in [v for k, v in states.items() if k.startswith("expp_rank_")] for row in experts.values()), states)
    need(named(rows, "model.") == expect["model"], "the weights have names")
    notes = [f for f in t.json("validate", path, "--json")["findings"] if f["rule"] == "parts/unnamed-states"]
    need({expert_states(0), expert_states(1)} <= {f["file"] for f in notes}, notes)


@test
def test_without_zero_the_order_of_the_optimizer_is_not_taken_on_trust(t):
    """The optimizer was given layers of equal shapes in the reverse order. With float32 copies, values tell; without, nothing does."""
    with open(os.path.join(GOLDEN, "zero0_bf16_reversed", "expect.json")) as f:
        expect = json.load(f)
    path = copy_of(t, "zero0_bf16_reversed", "bf16")
    rows = listing(t, path)
    need(named(rows, "model.") == expect["model"], rows)
    need(named(rows, "optim.state.") == expect["optim"], rows)
    need(not t.json("validate", path, "--deep", "--json")["findings"], "everything has its name")
    found = t.json("validate", copy_of(t, "zero0_fp32_reversed", "fp32"), "--json")["findings"]
    need([f["rule"] for f in found] == ["parts/unnamed-states"] and "order" in found[0]["message"] and "'first.weight'" in found[0]["message"], found)


@test
def test_experts_of_old_versions_are_among_the_stored_weights(t):
    """DeepSpeed still loads expert_N_mp_rank_00_model_states.pt where `num_experts` is a number (engine.py, old_moe_load)."""
    path = with_model_states(copy_of(t, "zero0_moe", "old"), lambda saved: saved.update(num_experts=4, ds_autoep_layers=None))
    for expert in range(4):
        os.rename(os.path.join(path, f"layer_0_expert_{expert}_mp_rank_00_model_states.pt"), os.path.join(path, f"expert_{expert}_mp_rank_00_model_states.pt"))
    with open(os.path.join(GOLDEN, "zero0_moe", "expect.json")) as f:
        expect = json.load(f)["module"]
    t.run("convert", path, t.at("module.safetensors"), "--part", "module")
    need({n: described(e) for n, e in listing(t, t.at("module.safetensors")).items()} == expect, "module")
    for arguments in ((), ("--part", "model"), ("--part", "optim")):
        message = t.run("convert", path, t.at("x"), "--to", "dcp", *arguments, status=2).stderr.decode()
        need("old version" in message and "--part module" in message and message.count("\n") == 1, message)
    os.remove(os.path.join(path, "expert_2_mp_rank_00_model_states.pt"))
    message = t.run("convert", path, t.at("y.safetensors"), "--part", "module", status=2).stderr.decode()
    need("expert_2_mp_rank_00_model_states.pt" in message and not os.path.exists(t.at("y.safetensors")), message)


@test
def test_a_missing_expert_is_named(t):
    for expert in (0, 3):
        path = copy_of(t, "zero1_moe", f"moe{expert}")
        file = f"layer_0_expert_{expert}_mp_rank_00_model_states.pt"
        os.remove(os.path.join(path, file))
        for arguments in (["convert", path, t.at("x.safetensors"), "--part", "module"], ["manifest", path, "--part", "module"]):
            message = t.run(*arguments, status=2).stderr.decode()
            need(file in message and not os.path.exists(t.at("x.safetensors")), message)
        found = t.json("validate", path, "--json", "--part", "module", status=1)["findings"]
        need(any(f.get("file") == file and f["level"] == "error" for f in found), found)


@test
def test_groups_list_their_parameters_by_name(t):
    for case in ("zero1_bf16", "zero3_bf16", "universal_zero1_bf16"):
        rows = listing(t, copy_of(t, case, case))
        need(rows["optim.param_groups.0.params"]["value"] == ["embed.weight", "up.weight", "down.weight"], rows["optim.param_groups.0.params"])
        need(rows["optim.param_groups.1.params"]["value"] == ["scale", "up.bias", "down.bias"], rows["optim.param_groups.1.params"])


@test
def test_the_weights_are_converted_with_their_bytes(t):
    for case in ("zero1_bf16", "zero3_bf16"):
        with open(os.path.join(GOLDEN, case, "expect.json")) as f:
            expect = json.load(f)["model"]
        t.run("convert", copy_of(t, case, case), t.at(case + ".safetensors"), "--include", "model.**", "--rename", "model.=")
        rows = listing(t, t.at(case + ".safetensors"))
        need({n: described(rows[n]) for n in expect} == expect, case)


def check_refused(t, path, named):
    found = t.json("validate", path, "--json", status=1)["findings"]
    of = [f for f in found if f["rule"] == "parts/incomplete-save"]
    need(any(named in f.get("file", "") and f["level"] == "error" for f in of), f"{named}: {of}")
    need(t.json("inspect", path, "--json")["entries"], "nothing is listed")
    for command in (["convert", path, t.at("out.safetensors")], ["manifest", path], ["get", path, "model.scale", "--print"], ["diff", path, path]):
        message = t.run(*command, status=2).stderr.decode()
        need(named in message, f"{command[0]}: {message}")
        need(not os.path.exists(t.at("out.safetensors")), "an output was left")


def optim_file(rank, prefix="bf16_"):
    return f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


@test
def test_second_names_of_a_tied_module_are_named(t):
    """DeepSpeed does not list them in `shared_params`, and zero_to_fp32 does not return them."""
    found = t.json("validate", "--deep", os.path.join(GOLDEN, "zero3_tied_modules"), "--json")["findings"]
    notes = [f for f in found if f["rule"] == "parts/tied-modules"]
    need(len(notes) == 1 and notes[0]["level"] == "note" and "4, beginning with 'again.weight'" in notes[0]["message"], found)


@test
def test_a_missing_rank_is_named(t):
    for case in ("zero1_bf16", "zero3_bf16"):
        for rank in range(3):
            path = copy_of(t, case, f"{case}_{rank}")
            os.remove(os.path.join(path, optim_file(rank)))
            check_refused(t, path, optim_file(rank))
    path = copy_of(t, "zero3_bf16", "model_states")
    os.remove(os.path.join(path, "zero_pp_rank_1_mp_rank_00_model_states.pt"))
    check_refused(t, path, "zero_pp_rank_1_mp_rank_00_model_states.pt")
    path = copy_of(t, "universal_zero1_bf16", "universal")
    os.remove(os.path.join(path, "zero", "up.weight", "exp_avg.pt"))
    check_refused(t, path, "zero/up.weight/exp_avg.pt")


@test
def test_without_model_states_there_are_no_names(t):
    path = copy_of(t, "zero1_bf16", "ckpt")
    os.remove(os.path.join(path, "mp_rank_00_model_states.pt"))
    message = t.run("inspect", path, status=2).stderr.decode()
    need("mp_rank_00_model_states.pt" in message, message)


@test
def test_a_universal_checkpoint_without_model_states_is_listed(t):
    path = copy_of(t, "universal_zero1_bf16", "ckpt")
    with open(os.path.join(path, "mp_rank_00_model_states.pt"), "r+b") as f:
        f.truncate(100)
    check_refused(t, path, "mp_rank_00_model_states.pt")


@test
def test_a_state_or_rank_that_a_universal_checkpoint_lacks_is_named(t):
    for case, lost in (("universal_zero1_bf16", "zero/embed.weight/exp_avg_sq.pt"), ("universal_zero1_bf16", "zero/up.bias/exp_avg.pt"),
                       ("universal_zero3_bf16", "zero/embed.weight/exp_avg.pt"), ("universal_zero3_bf16", "zero_pp_rank_1_mp_rank_00_model_states.pt"),
                       ("universal_zero3_bf16", "zero_pp_rank_0_mp_rank_00_model_states.pt")):
        path = copy_of(t, case, f"{case}_{os.path.basename(lost)}_{lost.count('up.')}")
        os.remove(os.path.join(path, lost))
        found = [f for f in t.json("validate", path, "--json", status=1)["findings"] if f["level"] == "error"]
        states = [f for f in found if f["rule"] == "optim/state-incomplete"]  # of the parameter whose file is lost
        need([(f["rule"], f["file"]) for f in found if f not in states] == [("parts/incomplete-save", lost)], found)
        need(all(f["fqn"].split("state.")[-1] in lost for f in states), states)
        need(lost in t.run("convert", path, t.at("x"), "--to", "dcp", status=2).stderr.decode(), lost)


@test
def test_a_truncated_file_is_named(t):
    for case in ("zero1_bf16", "zero3_bf16"):
        path = copy_of(t, case, case)
        file = os.path.join(path, optim_file(1))
        with open(file, "r+b") as f:
            f.truncate(os.path.getsize(file) // 2)
        check_refused(t, path, optim_file(1))


@test
def test_files_of_other_saves_are_named(t):
    path = copy_of(t, "zero1_bf16", "ranks")
    shutil.copy(os.path.join(GOLDEN, "zero1_elastic", optim_file(1)), os.path.join(path, optim_file(1)))  # from two ranks
    check_refused(t, path, optim_file(1))
    path = copy_of(t, "zero1_bf16", "more")
    shutil.copy(os.path.join(path, optim_file(2)), os.path.join(path, optim_file(3)))
    check_refused(t, path, optim_file(3))
    path = copy_of(t, "zero1_bf16", "step")
    rewrite_step(os.path.join(path, optim_file(2)))
    check_refused(t, path, optim_file(2))


@test
def test_a_file_of_another_stage_is_named(t):
    """Its buffers have other names and groups. This also holds if it comes first, because the stage is the one that most
    files state."""
    for case, other in (("zero1_bf16", "zero3_bf16"), ("zero3_bf16", "zero1_bf16")):
        for rank in range(3):
            path = copy_of(t, case, f"{case}_{rank}")
            shutil.copy(os.path.join(GOLDEN, other, optim_file(rank)), os.path.join(path, optim_file(rank)))
            check_refused(t, path, optim_file(rank))


@test
def test_two_files_of_one_rank_are_named(t):
    """A directory that a job in bfloat16 and another job have written to: zero_to_fp32 counts too many files."""
    for case, own, older in (("zero1_bf16", "bf16_", ""), ("zero2_fp16", "", "bf16_"), ("zero3_bf16", "bf16_", "")):
        path = copy_of(t, case, case)
        shutil.copy(os.path.join(path, optim_file(1, own)), os.path.join(path, optim_file(1, older)))
        check_refused(t, path, "zero_pp_rank_1_mp_rank_00_optim_states.pt")


@test
def test_the_one_file_of_another_save_is_the_one_that_is_named(t):
    """This also holds if it comes first, because what most files agree on counts."""
    for rank in range(3):
        path = copy_of(t, "zero1_bf16", f"step{rank}")
        rewrite_step(os.path.join(path, optim_file(rank)))
        check_only(t, path, optim_file(rank))
        path = copy_of(t, "zero1_bf16", f"world{rank}")
        shutil.copy(os.path.join(GOLDEN, "zero1_elastic", optim_file(rank % 2)), os.path.join(path, optim_file(rank)))
        check_refused(t, path, optim_file(rank))
        for case in ("zero1_bf16", "zero3_bf16"):
            for ranks in (2, 4):
                path = copy_of(t, case, f"{case}_{rank}_{ranks}")
                with_partition_count(os.path.join(path, optim_file(rank)), ranks)
                check_only(t, path, optim_file(rank))
        path = copy_of(t, "zero3_bf16", f"model{rank}")
        with_global_steps(os.path.join(path, f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"), 7)
        check_only(t, path, f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")


@test
def test_model_states_of_another_step_are_told_by_their_weights(t):
    """A different number of steps alone is accepted, because an optimizer that was restarted counts only its own steps."""
    for case, prefix in (("zero1_bf16", "bf16_"), ("zero2_fp16", "")):
        path = with_model_states(copy_of(t, case, case + "_anew"), lambda saved: saved.update(global_steps=9))
        t.run("validate", "--deep", path)

        def trained_on(saved):
            saved.update(global_steps=9)
            for tensor in saved["module"].values():
                tensor.mul_(2)

        path = with_model_states(copy_of(t, case, case + "_on"), trained_on)
        check_only(t, path, "mp_rank_00_model_states.pt")
        path = with_model_states(copy_of(t, case, case + "_rank"), lambda saved: saved.update(global_steps=9))
        rewrite(os.path.join(path, optim_file(1, prefix)), lambda name, data: bytes(len(data)) if "/data/" in name and len(data) > 8 else data)
        check_only(t, path, optim_file(1, prefix))


STEPS = os.path.join(ROOT, "tests", "golden", "deepspeed_steps")


def with_earlier(t, case, to, ranks):
    """A ZeRO 3 checkpoint of SGD in which the optimizer files of some ranks are from an earlier save of the same job."""
    shutil.copytree(os.path.join(STEPS, case), t.at(to), ignore=shutil.ignore_patterns("earlier"))
    for name in os.listdir(os.path.join(STEPS, case, "earlier")):
        if any(f"zero_pp_rank_{rank}_" in name for rank in ranks):
            shutil.copy(os.path.join(STEPS, case, "earlier", name), t.at(to))
    return t.at(to)


def found_of(t, path, status=0):
    findings = t.json("validate", "--deep", path, "--json", status=status)["findings"]
    return [(f["level"], f["rule"], f["file"], f["message"]) for f in findings if f["rule"].startswith("parts/")]


@test
def test_files_of_an_earlier_step_are_told_by_what_the_optimizer_files_have_in_common(t):
    """SGD does not count steps, and ZeRO 3 stores no second copy of the weights, so only a loss scaler and the learning rate
    differ."""
    for case, says in (("scaled", "loss scaler"), ("scheduled", "param groups")):
        for rank in range(2):
            path = with_earlier(t, case, f"{case}{rank}", [rank])
            check_refused(t, path, optim_file(1, ""))  # of two files, either may be the wrong one, so both are named
            (found,) = found_of(t, path, status=1)
            need(says in found[3] and optim_file(0, "") in found[3], found)


@test
def test_optimizer_files_of_another_step_than_the_model_states_are_a_warning(t):
    """It may be correct, for an optimizer that was restarted."""
    for case, says in (("scaled", "loss scaler that counts other steps"), ("scheduled", "other learning rates than the scheduler")):
        warnings = [f for f in found_of(t, with_earlier(t, case, case, range(2))) if f[0] == "warning"]
        need(len(warnings) == 1 and warnings[0][1] == "parts/unchecked-save" and says in warnings[0][3], warnings)
        need(not [f for f in found_of(t, with_earlier(t, case, case + "_whole", [])) if f[0] == "warning"], f"{case} is whole")
    path = copy_of(t, "zero3_bf16", "adam")
    need(found_of(t, path) == [], "Adam counts the steps of the model states")
    for rank in range(3):
        with_global_steps(os.path.join(path, f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"), 7)
    (found,) = found_of(t, path)
    need(found[:2] == ("warning", "parts/unchecked-save") and "counts other steps" in found[3], found)


@test
def test_a_checkpoint_that_cannot_be_checked_for_mixed_steps_says_so(t):
    for number, ranks in enumerate(([], [1])):
        path = with_earlier(t, "constant", f"constant{number}", ranks)
        (found,) = found_of(t, path)
        need(found[:2] == ("note", "parts/unchecked-save") and "another step would not be noticed" in found[3], found)
    need(found_of(t, with_earlier(t, "scaled", "scaled", [])) == [], "its loss scaler counts steps")


def check_only(t, path, named):
    check_refused(t, path, named)
    errors = [f for f in t.json("validate", path, "--json", status=1)["findings"] if f["level"] == "error"]
    need({f["file"] for f in errors} == {named}, errors)


def rewrite(path, change):
    """Rewrites the file with other members. The classes of DeepSpeed, which is not installed, need not exist."""
    with zipfile.ZipFile(path) as old:
        members = [(i.filename, old.read(i)) for i in old.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for name, data in members:
            new.writestr(name, change(name, data))


def with_partition_count(path, ranks):
    def change(name, data):
        if not name.endswith("data.pkl"):
            return data
        key = rb"(partition_count(?:q.|r....)(?:\](?:q.|r....)\()?)((?:K\x03)+)"  # 3, or a list of 3s
        need(len(re.findall(key, data, re.S)) == 1, f"{path}: no partition_count")
        return re.sub(key, lambda m: m[1] + m[2].replace(b"\x03", bytes([ranks])), data, flags=re.S)
    rewrite(path, change)


def with_global_steps(path, steps):
    import torch
    saved = torch.load(path, weights_only=False)
    saved["global_steps"] = steps
    torch.save(saved, path)


def rewrite_step(path):
    """Changes the step: the 4-byte storages contain 2.0."""
    rewrite(path, lambda _, data: b"\0\0\x40\x40" if data == b"\0\0\0\x40" else data)


# ---- written ----

def tag_of(path):
    with open(os.path.join(path, "latest_universal")) as f:
        return os.path.join(path, f.read())


@test
def test_a_universal_checkpoint_holds_what_its_source_held(t):
    for case in ("zero0_bf16", "zero1_bf16", "zero1_elastic", "zero2_fp16", "zero3_bf16", "zero3_tied_modules", "universal_zero3_bf16"):
        path, out = copy_of(t, case, case), t.at(case + "_out")
        t.run("convert", path, out, "--to", "deepspeed-universal")
        before, after = listing(t, path), listing(t, tag_of(out))
        need(t.json("inspect", tag_of(out), "--json")["format"] == "deepspeed-universal", case)
        for name, row in before.items():
            if row["kind"] != "tensor" or not name.startswith(("model.", "optim.")):
                continue
            need(name in after and described(after[name]) == described(row), f"{case}: {name}: {after.get(name)}")
        for name in ("engine.epoch", "engine.global_steps", "engine.args.lr"):
            need(after[name]["value"] == before[name]["value"], f"{case}: {name}")
        t.run("validate", "--deep", tag_of(out))


@test
def test_a_universal_checkpoint_has_the_files_of_ds_to_universal(t):
    for case in ("zero1_bf16", "zero3_bf16"):
        t.run("convert", copy_of(t, case, case), t.at(case + "_out"), "--to", "deepspeed-universal")
        theirs, ours = os.path.join(GOLDEN, "universal_" + case), tag_of(t.at(case + "_out"))
        for directory, _, names in os.walk(os.path.join(theirs, "zero")):
            below = os.path.relpath(directory, theirs)
            if below.split(os.sep)[-1].startswith(("frozen.", "head.", "running", "seen")):
                continue  # no engine reads these; they are in the model states, in their own dtype
            need(set(names) <= set(os.listdir(os.path.join(ours, below))), f"{case}: {below}: {os.listdir(os.path.join(ours, below))}, expected {names}")


@test
def test_a_universal_checkpoint_is_written_whole_or_not_at_all(t):
    path = copy_of(t, "zero1_bf16", "ckpt")
    t.run("convert", path, t.at("out"), "--to", "deepspeed-universal")
    for more in ((), ("--overwrite",)):
        message = t.run("convert", path, t.at("out"), "--to", "deepspeed-universal", *more, status=2).stderr.decode()
        need("exists" in message, message)
    for what, says in (("model.**", "optim.state.NAME.KEY"), ("optim.**", "model.")):
        message = t.run("convert", path, t.at("none"), "--to", "deepspeed-universal", "--include", what, status=2).stderr.decode()
        need(says in message, message)
    need(sorted(os.listdir(t.directory)) == ["ckpt", "out"], os.listdir(t.directory))
    t.run("convert", path, t.at("dry"), "--to", "deepspeed-universal", "--dry-run")
    need(not os.path.exists(t.at("dry")), "a dry run wrote")
