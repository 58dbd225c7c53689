"""Writes tests/golden/directories: what training loops leave in a directory, and what the tensors in it are.

Usage: python tests/golden/make_directories.py [NAME…]    in an environment that has the versions below (without CUDA).

Made with torch 2.13.0, transformers 5.23.0, accelerate 1.15.0, lightning 2.6.6, torch_checkpointing 0.1.1. That last one gathers its
metadata on a GPU and writes past the page cache: here it does both without (see `without_gpu`).

NAME/ is the checkpoint. NAME.expect.json has its format, and of each part the tensors (dtype, shape, SHA-256 of the row-major
little-endian bytes) and objects, as the loop held them when it saved.
"""
import hashlib
import json
import os
import pathlib
import shutil
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HERE = pathlib.Path(__file__).resolve().parent / "directories"
PORT = "29633"


def digest(tensor):
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "sha256": hashlib.sha256(data).hexdigest()}


def walk(tree, name=""):
    """The leaves of a state dict, named as PyTorch's flatten_state_dict names them."""
    holds = lambda x: isinstance(x, (dict, torch.Tensor)) or (isinstance(x, list) and any(map(holds, x)))
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) and holds(tree) else None
    if items is None:
        yield name, tree
        return
    for key, value in items:
        yield from walk(value, f"{name}.{key}" if name else str(key))


def part(tree):
    leaves = list(walk(tree))
    plain = (bool, int, float, str)
    return {"entries": {k: digest(v) for k, v in leaves if isinstance(v, torch.Tensor)},
            "objects": {k: v for k, v in leaves if isinstance(v, plain)}}


def write_expected(name, format, parts):
    text = json.dumps({"format": format, "parts": parts}, indent=1, sort_keys=True)
    (HERE / f"{name}.expect.json").write_text(text + "\n")


def trainer():
    """transformers' Trainer, two steps of a tiny Llama; the checkpoint of the last one."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(hidden_size=8, intermediate_size=12, num_attention_heads=2, num_hidden_layers=1, vocab_size=11))
    data = [{"input_ids": torch.arange(i, i + 5) % 11, "labels": torch.arange(i, i + 5) % 11} for i in range(4)]
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(output_dir=out, use_cpu=True, max_steps=2, save_steps=2, logging_steps=1, report_to=[],
                                      per_device_train_batch_size=2, disable_tqdm=True)
        loop = Trainer(model=model, args=arguments, train_dataset=data)
        loop.train()
        shutil.copytree(os.path.join(out, "checkpoint-2"), HERE / "trainer")
        state = json.load(open(os.path.join(out, "checkpoint-2", "trainer_state.json")))
    write_expected("trainer", "hf-trainer", {"model": part(dict(model.state_dict())), "optimizer": part(loop.optimizer.state_dict()),
                                             "scheduler": part(loop.lr_scheduler.state_dict()), "trainer_state": part(state)})


def without_gpu():
    """torch_checkpointing 0.1.1 names the device "cuda" where it gathers metadata; nothing that it writes depends on it."""
    from torch_checkpointing import metadata_manager
    source = pathlib.Path(metadata_manager.__file__).read_text()
    source = source.replace('"cuda"', '"cpu"').replace("torch.cuda.current_device()", '"cpu"').replace(".cuda()", ".cpu()")
    exec(compile(source, metadata_manager.__file__, "exec"), metadata_manager.__dict__)


def save_items(rank, world, out):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT)
    dist.init_process_group("gloo")
    without_gpu()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch_checkpointing.builder import make_sync_checkpoint_saver
    from torch_checkpointing.checkpoint_base import CheckpointBase, CheckpointItem
    from torch_checkpointing.metadata_manager import DefaultMetadataManager
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig
    from torch_checkpointing.types import RankInfo

    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    torch.manual_seed(7)
    weights = {"embed.weight": torch.randn(7, 4), "norm.weight": torch.randn(5)}
    moments = {k: torch.randn_like(v) for k, v in weights.items()}
    cut = {k: distribute_tensor(v, mesh, [Shard(0) if v.ndim > 1 else Replicate()]) for k, v in weights.items()}
    state = {k: {"exp_avg": distribute_tensor(v, mesh, [Shard(0)]), "step": torch.tensor(3.0)} for k, v in moments.items()}
    items = {"model": cut, "optimizer": {"state": state, "param_groups": [{"lr": 0.125, "params": list(weights)}]}, "train": {"epoch": 2}}

    class Checkpoint(CheckpointBase):
        def get_items(self):
            return {k: CheckpointItem(v) for k, v in items.items()}

        def load_state_dict(self, state_dict):
            pass

    info = RankInfo(global_world_size=world, global_rank=rank, role_rank=rank, role_world_size=world)
    saver = make_sync_checkpoint_saver(checkpoint_metadata_manager=DefaultMetadataManager(info),
                                       storage_config=LocalFileSystemStorageConfig(use_direct_io=False))
    saver.save(out, Checkpoint())
    if rank == 0:
        whole = {"state": {k: {"exp_avg": v, "step": torch.tensor(3.0)} for k, v in moments.items()}, "param_groups": [{"lr": 0.125}]}
        write_expected("torch_checkpointing", "torch-checkpointing",
                       {"model": part(weights), "optimizer": part(whole), "train": part({"epoch": 2}),
                        "metadata": part({"world_size": world, "version": "2.0"})})
    dist.barrier()
    dist.destroy_process_group()


def torch_checkpointing():
    mp.start_processes(save_items, args=(2, str(HERE / "torch_checkpointing")), nprocs=2, start_method="spawn")


def lightning_rank(rank, world, out):
    """Lightning takes ranks that a launcher started as they are."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world), GROUP_RANK="0",
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT, TORCHELASTIC_RUN_ID="one")
    import lightning
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment
    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
    from torch.distributed.fsdp import fully_shard

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(5)
            self.save_hyperparameters({"width": 6, "name": "small"})
            self.net = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 5))

        def configure_model(self):
            if not isinstance(self.net, torch.distributed.fsdp.FSDPModule):
                fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch, _):
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.125)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    data = torch.utils.data.DataLoader(torch.linspace(-1, 1, 40).reshape(8, 5), batch_size=2)
    loop = lightning.Trainer(accelerator="cpu", devices=world, max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                             enable_model_summary=False, plugins=[TorchElasticEnvironment()],
                             strategy=ModelParallelStrategy(data_parallel_size=world, tensor_parallel_size=1, process_group_backend="gloo"))
    model = Model()
    loop.fit(model, data)
    loop.save_checkpoint(out)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = {"state_dict": get_model_state_dict(model, options=options), "optimizer_0": get_optimizer_state_dict(model, loop.optimizers[0], options=options)}
    if rank == 0:
        entries = {k: digest(v) for k, v in walk(whole) if isinstance(v, torch.Tensor)}
        meta = {"epoch": loop.current_epoch, "global_step": loop.global_step, "hyper_parameters": dict(model.hparams)}
        write_expected("lightning", "lightning-dist", {"": {"entries": entries, "objects": {}}, "meta": part(meta)})
    dist.barrier()
    dist.destroy_process_group()


def lightning():
    mp.start_processes(lightning_rank, args=(2, str(HERE / "lightning")), nprocs=2, start_method="spawn")


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for make in [globals()[n] for n in sys.argv[1:] or ("trainer", "torch_checkpointing", "lightning")]:
        shutil.rmtree(HERE / make.__name__, ignore_errors=True)
        make()
