"""Data, peers and checks of zero_jobs.py: zero_peers.py FUNCTION ARG… Peers print {"wall": s, "cpu": s} of the call itself."""
import contextlib
import glob
import os
import sys
import tempfile

import torch
from safetensors.torch import save_file

from map_peers import same_files  # noqa: F401
from peers import timed

WIDTH = 1024


def shapes_of(parameters):
    """Layers of a transformer of about so many parameters; one whose size no number of ranks divides."""
    layers = max(1, parameters // (8 * WIDTH * WIDTH))
    shapes = {"scale": torch.Size([1001])}
    for i in range(layers):
        shapes.update({f"layers.{i}.up.weight": torch.Size([4 * WIDTH, WIDTH]), f"layers.{i}.down.weight": torch.Size([WIDTH, 4 * WIDTH]),
                       f"layers.{i}.norm.weight": torch.Size([WIDTH])})
    return shapes


def make_zero3(path, mib, ranks):
    """What an engine of DeepSpeed 0.19.8 saves of AdamW, with its own classes, one rank after the other. DeepSpeed's tools, which are the
    peers, load it."""
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    ranks = int(ranks)
    shapes = shapes_of(int(mib) * 2**20 // 12)
    config = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
    os.makedirs(f"{path}/tag")
    for rank in range(ranks):
        torch.manual_seed(rank)
        pieces = sum(-(-shape.numel() // ranks) for shape in shapes.values())
        torch.save({"module": {n: torch.empty(0, dtype=torch.bfloat16) for n in shapes}, "buffer_names": [], "optimizer": None, "param_shapes": [shapes],
                    "frozen_param_shapes": None, "frozen_param_fragments": None, "shared_params": {}, "lr_scheduler": None, "data_sampler": None,
                    "random_ltd": None, "skipped_steps": 0, "global_steps": 7, "global_samples": 7 * ranks, "dp_world_size": ranks, "mp_world_size": 1,
                    "ds_config": config, "ds_version": "0.19.8"}, f"{path}/tag/zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        state = {0: {"step": torch.tensor(7.0), "exp_avg": torch.rand(pieces), "exp_avg_sq": torch.rand(pieces)}}
        group = {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "params": [0]}
        torch.save({"optimizer_state_dict": {
            "zero_stage": ZeroStageEnum.weights, "loss_scaler": LossScaler(1.0), "dynamic_loss_scale": False, "overflow": False, "partition_count": ranks,
            "optimizer_state_dict": {"state": state, "param_groups": [group]}, "fp32_flat_groups": [torch.rand(pieces) - 0.5]},
            "ds_config": config, "ds_version": "0.19.8"}, f"{path}/tag/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    with open(f"{path}/latest", "w") as f:
        f.write("tag")


def quietly(function):
    """DeepSpeed prints to stdout, where the figures go."""
    def call():
        with contextlib.redirect_stdout(sys.stderr):
            function()
    return call


def zero_to_fp32(source, dest):
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict
    with tempfile.TemporaryDirectory(dir=os.path.dirname(dest)) as directory:
        timed(quietly(lambda: convert_zero_checkpoint_to_fp32_state_dict(source, directory, max_shard_size=None, safe_serialization=True)))
        os.rename(os.path.join(directory, "model.safetensors"), dest)


def ds_to_universal(source, dest):
    from deepspeed.checkpoint.ds_to_universal import main, parse_arguments
    sys.argv = ["", "--input_directory", f"{source}/tag", "--output_directory", f"{dest}/tag_universal"]
    arguments = parse_arguments()
    timed(quietly(lambda: main(arguments)))


def same_universal(wanted, path):
    """Not a peer: whether a directory holds what ds_to_universal wrote. That leaves tensors flat under ZeRO 3; shapes do not count."""
    def value(file):
        held = torch.load(file, weights_only=False)
        return (held["param"] if isinstance(held, dict) else held).reshape(-1)

    root = f"{wanted}/tag_universal/zero"
    files = [f for f in glob.glob(f"{root}/**/*.pt", recursive=True) if os.path.dirname(f) != root]
    ours, = glob.glob(f"{path}/*/zero")
    if not files:
        sys.exit("ds_to_universal wrote nothing")
    for file in files:
        if not torch.equal(value(file), value(os.path.join(ours, os.path.relpath(file, root)))):
            sys.exit(f"'{os.path.relpath(file, root)}' has other values")


def without_cuda():
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
    torch.cuda.current_device = lambda *_: "cpu"


def save_rank(rank, path, parameters, ranks, address):
    import torch.distributed as dist
    without_cuda()
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.mapping import ShardedTensor
    dist.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=ranks)
    torch.manual_seed(rank)
    state = {}
    for name, shape in shapes_of(parameters).items():
        cut = len(shape) == 2  # vectors are on every rank alike
        local = torch.rand(shape[0] // ranks, shape[1]) if cut else torch.full(shape, 0.5)
        state[name] = ShardedTensor.from_rank_offsets(name, local, *([(0, rank, ranks)] if cut else []), replica_id=0 if cut else rank)
    dist_checkpointing.save({"model": state, "iteration": 7}, path)
    dist.barrier()
    dist.destroy_process_group()


def make_torch_dist(path, mib, ranks):
    """By Megatron-Core itself."""
    import torch.multiprocessing
    os.makedirs(path)
    with tempfile.TemporaryDirectory() as scratch:
        torch.multiprocessing.spawn(save_rank, (path, int(mib) * 2**20 // 4, int(ranks), f"{scratch}/store"), int(ranks))


def load_and_save(source, dest):
    without_cuda()
    import torch.distributed as dist
    from megatron.core import dist_checkpointing
    with tempfile.TemporaryDirectory() as scratch:
        dist.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=0, world_size=1)

        def convert():
            tensors = dist_checkpointing.load_plain_tensors(source)
            save_file({n: x for n, x in tensors.items() if isinstance(x, torch.Tensor)}, dest)
        timed(quietly(convert))
        dist.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
