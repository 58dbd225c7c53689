"""Writes tests/golden/deepspeed_tensor_ranks: what tensor-parallel ranks hold, with DeepSpeed's description, and what DeepSpeed joins it to.

Usage: python tests/golden/make_deepspeed_tensor_ranks.py    in an environment with torch 2.13.0 and deepspeed 0.19.8, which needs no GPU.

  NAME/mp_rank_RR_model_states.pt   of three or four ranks without ZeRO: the module, and universal_checkpoint_info
  NAME.safetensors                  what deepspeed.checkpoint.ds_to_universal.merge_tp_slices makes of it

`boxes` has an affine_map, `patterns` the lists of patterns alone, as DeepSpeed before 0.19 and other trainers write them.
"""
import pathlib
import shutil
import tempfile

import torch
from deepspeed.checkpoint import affine
from deepspeed.checkpoint.ds_to_universal import merge_tp_slices
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent / "deepspeed_tensor_ranks"


def numbered(*shape, start=0):
    return torch.arange(start, start + torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def boxes(ranks):
    """Whole tensors, which DeepSpeed's maps split."""
    whole = {"embed.weight": numbered(7, 6), "norm.weight": numbered(6, start=100), "a.weight": numbered(12, 6, start=200), "b.weight": numbered(6, 12, start=300),
             "qkv.weight": numbered(20, 6, start=400), "fused.weight": numbered(6, 20, start=600), "head.weight": numbered(9, 6, start=800), "gqa.weight": numbered(14, 6, start=900)}
    maps = {"embed.weight": affine.replicated_map((7, 6), ranks), "norm.weight": affine.replicated_map((6,), ranks),
            "a.weight": affine.contiguous_split_map((12, 6), [5, 4, 3], 0), "b.weight": affine.contiguous_split_map((6, 12), [2, 4, 6], 1),
            "qkv.weight": affine.sub_param_map((20, 6), [12, 5, 3], [[4, 4, 4], [2, 2, 1], [1, 1, 1]], 0),
            "fused.weight": affine.sub_param_map((6, 20), [14, 6], [[5, 5, 4], [2, 2, 2]], 1),
            "head.weight": affine.contiguous_split_map((9, 6), [3, 3, 3], 0), "gqa.weight": affine.segmented_map((14, 6), [(12, False), (2, True)], 0, ranks, [[4, 4, 4]])}
    held = [{name: maps[name].extract(tensor, rank) for name, tensor in whole.items()} for rank in range(ranks)]
    info = {"universal_checkpoint_version": 0.4, "vocabulary_parameter_patterns": ["^head\\.weight$"], "original_vocab_size": 8,
            "affine_map": {"version": 1, "params": {f"^{name.replace('.', chr(92) + '.')}$": of.to_dict() for name, of in maps.items()}}}
    return held, info


def patterns(ranks):
    held = [{"layers.0.norm.weight": numbered(6), "layers.0.up.weight": numbered(4, 6, start=100 * r), "layers.1.up.weight": numbered(4, 6, start=1000 + 100 * r),
             "layers.0.down.weight": numbered(6, 3, start=2000 + 100 * r), "layers.0.glu.weight": numbered(4, 6, start=3000 + 100 * r),
             "layers.0.qkv.weight": numbered(6, 5, start=4000 + 100 * r), "layers.0.gqa.weight": numbered([7, 6, 6, 5][r], 5, start=5000 + 100 * r),
             "word_embeddings.weight": numbered(4, 6, start=6000 + 100 * r)} for r in range(ranks)]
    info = {"universal_checkpoint_version": 0.4, "tp_replicated_parameter_patterns": [r"layers\.\d+\.norm\.weight"],
            "parameter_with_row_parallelism_patterns": [r".*\.down\.weight"], "parameter_with_2_sub_params_cat_dim_0": [r"layers.\d.glu.weight"],
            "parameter_with_sub_params": [{"patterns": [r"^layers\.\d+\.(qkv)\.weight$"], "shape": ((8, 8, 8), 5), "partition_dim": 0},
                                          {"patterns": [r"^layers\.\d+\.gqa\.weight$"], "shape": ((16, 4, 4), -1), "partition_dim": 0}],
            "sub_param_shard_widths": {r"^layers\.\d+\.(qkv)\.weight$": [[2, 2, 2, 2]] * 3, r"^layers\.\d+\.gqa\.weight$": [[5, 4, 4, 3], [1, 1, 1, 1], [1, 1, 1, 1]]},
            "vocabulary_parameter_patterns": ["word_embeddings.weight"], "original_vocab_size": 13}
    return held, info


def joined(name, held, info):
    """DeepSpeed's converter reads a file per state of a parameter; states are joined as the parameter is, so that zeros do for them."""
    with tempfile.TemporaryDirectory() as directory:
        for rank, tensors in enumerate(held):
            for state in ("fp32", "exp_avg", "exp_avg_sq"):
                path = pathlib.Path(directory) / "slices" / name / str(rank)
                path.mkdir(parents=True, exist_ok=True)
                torch.save(tensors[name].flatten() if state == "fp32" else torch.zeros(tensors[name].numel()), path / f"{state}.00")
        merge_tp_slices(info, directory + "/made", directory + "/slices", len(held), (name, [tensors[name].shape for tensors in held]))
        return torch.load(f"{directory}/made/{name}/fp32.pt", weights_only=False)["param"].contiguous()


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    for case, (held, info) in (("boxes", boxes(3)), ("patterns", patterns(4))):
        (HERE / case).mkdir(parents=True)
        for rank, tensors in enumerate(held):
            states = {"module": tensors, "buffer_names": [], "optimizer": None, "param_shapes": None, "mp_world_size": len(held), "dp_world_size": 1, "global_steps": 3,
                      "universal_checkpoint_info": info}
            torch.save(states, HERE / case / f"mp_rank_{rank:02}_model_states.pt")
        save_file({name: joined(name, held, info) for name in held[0]}, HERE / f"{case}.safetensors")


if __name__ == "__main__":
    main()
