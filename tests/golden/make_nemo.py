"""Writes tests/golden/nemo: a step as NeMo 2 saves it on two tensor-parallel ranks.

    PYTHONPATH=DIRECTORY python tests/golden/make_nemo.py    in an environment with torch 2.13, megatron-core 0.16.1 and lightning

DIRECTORY has nemo_toolkit 2.4.0 and fiddle 0.3.1 with what fiddle needs (pip install --no-deps --target DIRECTORY nemo_toolkit==2.4.0 fiddle
absl-py cloudpickle). NeMo's other dependencies take gigabytes and are not needed to save: their modules are stood in for by empty ones. The
files of `weights` are written by NeMo's MegatronCheckpointIO and those of `context` by its IOMixin.

The model is megatron_maps/llama, so what `hf` holds there is what the weights are in the names of transformers.
"""
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import pathlib
import shutil
import sys
import tempfile
import types

HERE = pathlib.Path(__file__).resolve().parent
STEP = "model_name=0--val_loss=1.25-step=7-consumed_samples=56.0"
REAL = ("nemo", "nemo.core", "nemo.utils", "nemo.utils.callbacks", "nemo.lightning", "nemo.lightning.io", "nemo.lightning.io.artifact")
EMPTY = ("nemo.lightning.pytorch", "nemo.lightning._strategy_lib", "nemo.lightning.megatron", "nemo.collections", "nemo_run", "pytorch_lightning", "hydra", "libcst",
         "tensorboard", "wandb", "webdataset", "zarr", "tensorstore", "nv_one_logger", "graphviz", "omegaconf")


class StandIn(type):
    """A class whose attributes are the class itself, also as a decorator."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing


class Nothing(metaclass=StandIn):
    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return args[0] if args and callable(args[0]) else Nothing


class EmptyModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if any(name == e or name.startswith(e + ".") for e in EMPTY):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return EmptyModule(spec.name)

    def exec_module(self, module):
        module.__path__ = []


def import_nemo():
    """Makes NeMo's packages importable without what their __init__.py imports."""
    root = pathlib.Path(importlib.util.find_spec("nemo").origin).parent
    sys.meta_path.insert(0, Finder())
    for name in REAL:
        module = sys.modules[name] = EmptyModule(name)
        module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
    sys.modules["nemo.utils"].logging = logging.getLogger("nemo")


class Settings:
    """What IOMixin writes to `context`."""

    def __init__(self, hidden_size=12, num_layers=2):
        self.hidden_size, self.num_layers = hidden_size, num_layers


def save(rank, address, directory):
    import make_nemo
    import torch.distributed as dist
    from make_megatron_maps import HERE as MODELS, megatron_model
    from make_megatron_llama import run_without_cuda
    import_nemo()
    run_without_cuda()
    dist.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=2)
    from megatron.core import dist_checkpointing, parallel_state
    from nemo.lightning.ckpt_utils import ckpt_to_context_subdir
    from nemo.lightning.io.mixin import IOMixin
    from nemo.lightning.io.pl import MegatronCheckpointIO
    parallel_state.initialize_model_parallel(2, 1, create_gloo_process_groups=False)

    model = megatron_model("llama", "tensor")
    plain = {"model": model.sharded_state_dict()}
    model.load_state_dict(dist_checkpointing.load(plain, str(MODELS / "llama" / "tensor"))["model"])
    os.chdir(directory)  # .metadata holds the path as it is given
    weights = {k: v for k, v in model.sharded_state_dict(prefix="module.").items()}
    first = dict(model.named_parameters())["decoder.final_layernorm.weight"]
    optimizer = {"param_groups": [{"lr": 0.125, "step": 7, "params": [0]}],
                 "state": {"exp_avg": dist_checkpointing.ShardedTensor.from_rank_offsets("optimizer.state.exp_avg.module.decoder.final_layernorm.weight", first.detach() / 8, replica_id=rank)}}
    checkpoint = {"state_dict": weights, "optimizer": [optimizer], "epoch": 0, "global_step": 7, "pytorch-lightning_version": "2.6.6", "loops": {"fit_loop": {"epoch": 1}},
                  "lr_schedulers": [{"last_epoch": 7}], "hparams_name": "kwargs"}
    path = STEP + ".ckpt"
    MegatronCheckpointIO(parallel_save=False).save_checkpoint(checkpoint, path)
    dist.barrier()
    if rank == 0:
        make_nemo.Settings = type("Settings", (Settings, IOMixin), {"__module__": "make_nemo"})  # io.json names the class, which must be importable
        make_nemo.Settings(hidden_size=12).io_dump(ckpt_to_context_subdir(path), yaml_attrs=[])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch.multiprocessing
    shutil.rmtree(HERE / "nemo", ignore_errors=True)
    os.makedirs(HERE / "nemo")
    with tempfile.TemporaryDirectory() as scratch:
        torch.multiprocessing.spawn(save, (f"{scratch}/store", str(HERE / "nemo")), 2)
