"""Writes tests/golden/folders: what training loops leave in a directory, and what the tensors in it are.

Usage: python tests/golden/make_folders.py [NAME…]    in an environment that has the versions below (without CUDA).

Made with torch 2.13.0, transformers 5.23.0, accelerate 1.15.0, torch_checkpointing 0.1.1. That last one gathers its metadata on
a GPU and writes past the page cache: here it does both without (see `without_gpu`).

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

HERE = pathlib.Path(__file__).resolve().parent / "folders"
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


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for make in [globals()[n] for n in sys.argv[1:] or ("trainer", "torch_checkpointing")]:
        shutil.rmtree(HERE / make.__name__, ignore_errors=True)
        make()
