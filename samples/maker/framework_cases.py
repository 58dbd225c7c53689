"""Directories that training frameworks leave, each written by the framework itself and read by its own tools.

They need the packages of samples/requirements-frameworks.txt; without them these samples are left as they are.
"""
import glob
import json
import os
import shutil
import tempfile

import torch
import torch.distributed as dist

from . import dcp_cases, golden
from .registry import case


class Net(torch.nn.Module):
    """A tied weight, shapes that two ranks cannot halve, a buffer, a frozen weight."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(7, 3)
        self.up = torch.nn.Linear(3, 5)
        self.frozen = torch.nn.Linear(5, 3)
        self.head = torch.nn.Linear(3, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("running", torch.linspace(-1, 1, 3))
        self.frozen.requires_grad_(False)

    def forward(self, ids):
        hidden = self.frozen(torch.tanh(self.up(self.embed(ids))))
        return self.head(hidden + self.running.to(hidden.dtype)).float().square().mean()


# ---- DeepSpeed ----


def states_by_weights(directory):
    """zero_to_fp32 joins the float32 weights only: each state is put in their place in a copy."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    trained, out = set(torch.load(glob.glob(f"{directory}/*rank_0*model_states.pt")[0], weights_only=False)["param_shapes"][0]), {}
    for key in ("exp_avg", "exp_avg_sq"):
        with tempfile.TemporaryDirectory() as copy:
            shutil.copytree(directory, f"{copy}/t")
            for path in glob.glob(f"{copy}/t/*_optim_states.pt"):
                saved = torch.load(path, weights_only=False)
                inner = saved["optimizer_state_dict"]
                inner["fp32_flat_groups"] = [state[key] for state in inner["optimizer_state_dict"]["state"].values()]
                torch.save(saved, path)
            joined = get_fp32_state_dict_from_zero_checkpoint(copy, tag="t")
            out.update({f"optim.state.{n}.{key}": joined[n] for n in trained})
    return out, trained


def read_deepspeed(case):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    weights = get_fp32_state_dict_from_zero_checkpoint(case.name, tag="global_step2")
    states, trained = states_by_weights(f"{case.name}/global_step2")
    first = torch.load(glob.glob(f"{case.name}/global_step2/*rank_0*optim_states.pt")[0], weights_only=False)["optimizer_state_dict"]["optimizer_state_dict"]
    steps = {f"optim.state.{n}.step": first["state"][0]["step"] for n in trained}
    model = torch.load(glob.glob(f"{case.name}/global_step2/*rank_0*model_states.pt")[0], weights_only=False)
    objects = {"engine.epoch": model["epoch"], "engine.global_steps": model["global_steps"], "optim.param_groups.0.lr": first["param_groups"][0]["lr"]}
    flat = {**{f"model.{n}": t for n, t in weights.items()}, **states, **steps, **objects}
    return {"format": "deepspeed", "path": case.name, **golden.sort_out(flat), "shared_storage": [["model.embed.weight", "model.head.weight"]]}


@case("deepspeed_zero3", read_deepspeed, "DeepSpeed ZeRO 3, bfloat16, AdamW: tied, frozen and uneven weights", ranks=2, needs=("deepspeed",))
def make_deepspeed_zero3(name):
    os.environ.update(RANK=str(dist.get_rank()), LOCAL_RANK=str(dist.get_rank()), WORLD_SIZE="2", LOCAL_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29687")
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    model = Net()
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    config = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "bf16": {"enabled": True},
              "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}
    optimizer = torch.optim.AdamW([p for _, p in trained], lr=1e-3)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)[0]
    for step in range(2):
        engine.backward(engine((torch.arange(6) * (dist.get_rank() + 2) + step) % 7))
        engine.step()
    engine.save_checkpoint(name, client_state={"epoch": 3})
    states = {f"optim.state.{n}.{key}": safe_get_full_optimizer_state(p, key) for n, p in trained for key in ("exp_avg", "exp_avg_sq")}
    known = {**{f"model.{n}": safe_get_full_fp32_param(p) for n, p in trained}, **states}
    if dist.get_rank() == 0:
        for script in glob.glob(f"{name}/*.py"):  # DeepSpeed's converters, of another licence
            os.remove(script)
    return {n: golden.tensor_entry(t) for n, t in known.items()}


# ---- Megatron-Core ----


def without_cuda():
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
    torch.cuda.current_device = lambda *_: "cpu"


def read_megatron(case):
    without_cuda()
    from megatron.core import dist_checkpointing as checkpointing
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    with tempfile.TemporaryDirectory() as scratch:
        dist.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=0, world_size=1)
        tensors = checkpointing.load_plain_tensors(case.name)
        random = checkpointing.load({f"{r}": ShardedObject("rng_state", None, (2,), (r,)) for r in range(2)}, case.name)
        dist.destroy_process_group()
    common = checkpointing.load_common_state_dict(case.name)
    flat = {**{n: t for n, t in tensors.items() if isinstance(t, torch.Tensor)}, "rng_state": [random["0"], random["1"]],
            "common.iteration": common["iteration"], "common.lr": common["lr"]}
    return {"format": "megatron-dist", "path": case.name, **golden.sort_out(flat)}


@case("megatron_dist", read_megatron, "Megatron-Core torch_dist: stacked layers cut in two, an object per rank, common.pt", ranks=2, needs=("megatron.core",))
def make_megatron_dist(name):
    without_cuda()
    from megatron.core import dist_checkpointing as checkpointing
    from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
    rank = dist.get_rank()
    whole = {f"layer{n}": torch.sin(torch.arange(24.0) + 30 * n).reshape(4, 6) for n in range(2)}
    layers = [ShardedTensor.from_rank_offsets("decoder.layers.linear.weight", whole[f"layer{n}"].chunk(2, 1)[rank].clone(), (0, n, 2), (2, rank, 2), prepend_axis_num=1)
              for n in range(2)]
    norm = torch.cos(torch.arange(5.0)).bfloat16()
    checkpointing.save({"layers": layers, "norm": ShardedTensor.from_rank_offsets("final_norm.weight", norm, replica_id=rank),
                        "rng": ShardedObject("rng_state", {"seed": 10 + rank}, (2,), (rank,)), "iteration": 7, "lr": 0.125}, name)
    known = {"decoder.layers.linear.weight": torch.stack(list(whole.values())), "final_norm.weight": norm}
    return {n: golden.tensor_entry(t) for n, t in known.items()}


# ---- Lightning ----


def read_lightning(case):
    expect = dcp_cases.read_dcp(case)
    meta = torch.load(os.path.join(case.name, "meta.pt"), weights_only=False)
    expect["format"] = "lightning-dist"
    expect["objects"].update({f"meta.{k}": golden.tagged(meta[k]) for k in ("epoch", "global_step", "pytorch-lightning_version")})
    del expect["paths"]  # of the DCP alone
    return expect


@case("lightning_dist", read_lightning, "Lightning's ModelParallelStrategy: a DCP and meta.pt", ranks=2, needs=("lightning",))
def make_lightning_dist(name):
    rank = str(dist.get_rank())
    os.environ.update(RANK=rank, WORLD_SIZE="2", LOCAL_RANK=rank, LOCAL_WORLD_SIZE="2", GROUP_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29688",
                      TORCHELASTIC_RUN_ID="one")
    import lightning
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment
    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))

        def configure_model(self):
            if not isinstance(self.net, torch.distributed.fsdp.FSDPModule):
                fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch, _):
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.125, momentum=0.9)

    data = torch.utils.data.DataLoader(torch.linspace(-1, 1, 12).reshape(4, 3), batch_size=1)
    loop = lightning.Trainer(accelerator="cpu", devices=2, max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                             enable_model_summary=False, plugins=[TorchElasticEnvironment()],
                             strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo"))
    model = Model()
    loop.fit(model, data)
    loop.save_checkpoint(os.path.abspath(name))
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return {f"state_dict.{n}": golden.tensor_entry(t) for n, t in whole.items()}


# ---- The Trainer of transformers ----


def read_trainer(case):
    """What safetensors, torch.load and json read of the last checkpoint's files."""
    from safetensors.torch import load_file
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    at = os.path.join(case.name, "checkpoint-4")
    parts = {p: torch.load(os.path.join(at, f), weights_only=False)
             for p, f in (("optimizer", "optimizer.pt"), ("scheduler", "scheduler.pt"), ("rng_state", "rng_state.pth"), ("training_args", "training_args.bin"))}
    with open(os.path.join(at, "trainer_state.json")) as f:
        parts["trainer_state"] = json.load(f)
    weights = {f"model.{n}": t for n, t in load_file(os.path.join(at, "model.safetensors")).items()}
    return {"format": "hf-trainer", "path": at, **golden.sort_out(weights | flatten_state_dict(parts)[0])}


@case("hf_trainer", read_trainer, "transformers' Trainer: two checkpoints, tied embeddings, AdamW with a schedule, random states", needs=("transformers", "accelerate"))
def make_hf_trainer(name):
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
    model = LlamaForCausalLM(LlamaConfig(hidden_size=6, intermediate_size=10, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=2,
                                         vocab_size=9, tie_word_embeddings=True))
    data = [{"input_ids": torch.arange(i, i + 5) % 9, "labels": torch.arange(i, i + 5) % 9} for i in range(8)]
    arguments = TrainingArguments(output_dir=name, use_cpu=True, max_steps=4, save_steps=2, logging_steps=1, report_to=[], learning_rate=0.125,
                                  lr_scheduler_type="cosine", weight_decay=0.25, per_device_train_batch_size=2, disable_tqdm=True)
    loop = Trainer(model=model, args=arguments, train_dataset=data)
    loop.train()
    weights = {n: t for n, t in model.state_dict().items() if n != "lm_head.weight"}  # the second name of a tied weight is not stored
    moments = {f"optimizer.state.{i}.{k}": t for i, state in loop.optimizer.state_dict()["state"].items() for k, t in state.items()}
    return {n: golden.tensor_entry(t) for n, t in ({f"model.{n}": t for n, t in weights.items()} | moments).items()}
