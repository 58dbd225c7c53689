"""Writes tests/golden/megatron/moe and moe_layers: mixtures of experts that Megatron-Core's GPTModel saves with two pipeline stages and
two expert-parallel ranks, and NAME.json with what its own loader says of them.

Usage: python tests/golden/make_megatron_moe.py    in an environment with torch 2.13.0 and megatron-core 0.16.1 (over gloo, without CUDA)

`moe` has equal layers, which Megatron-Core stacks, experts on an axis of their own, and an optimizer's state. The layers of `moe_layers`
differ (the first one is dense), so that each has its own names, and experts have too (`singleton_local_shards`).
"""
import hashlib
import json
import math
import os
import pathlib
import shutil
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing

from make_megatron import HERE, WORLD, sha

CASES = {
    # name: (layers, which of them have experts, metadata of the sharded state dict)
    "moe": (2, 1, {}),
    "moe_layers": (2, [0, 1], {"singleton_local_shards": True}),
}


def make_model(case, stages=2, expert_ranks=2):
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig
    layers, experts, _ = CASES[case]
    config = TransformerConfig(
        num_layers=layers, hidden_size=4, num_attention_heads=2, ffn_hidden_size=6, num_moe_experts=4, moe_ffn_hidden_size=3,
        moe_router_topk=2, moe_layer_freq=experts, pipeline_model_parallel_size=stages, expert_model_parallel_size=expert_ranks, pipeline_dtype=torch.float32,
        use_cpu_initialization=True, gated_linear_unit=True, add_bias_linear=False)
    spec = get_gpt_layer_local_spec(num_experts=4) if experts == 1 else get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    return GPTModel(config, spec, vocab_size=10, max_sequence_length=4, pre_process=parallel_state.is_pipeline_first_stage(),
                    post_process=parallel_state.is_pipeline_last_stage(), share_embeddings_and_output_weights=False)


def fill(model):
    """Values of their own for each name and stage, and for the expert-parallel rank where an expert is."""
    from megatron.core import parallel_state
    for name, parameter in model.named_parameters():
        place = f"{name} {parallel_state.get_pipeline_model_parallel_rank()}"
        if ".experts." in name:
            place += f" {parallel_state.get_expert_model_parallel_rank()}"
        seed = int(hashlib.sha256(place.encode()).hexdigest()[:4], 16) % 9973
        values = torch.arange(parameter.numel(), dtype=torch.float32).reshape(parameter.shape)
        with torch.no_grad():
            parameter.copy_(torch.sin(values * 0.37 + seed) * 0.5)
        parameter.grad = torch.cos(values * 0.21 + seed)


def state_of(case, stages=2, expert_ranks=2):
    from megatron.core.dist_checkpointing.optimizer import get_param_id_to_sharded_param_map, optim_state_to_sharding_state
    model = make_model(case, stages, expert_ranks)
    fill(model)
    weights = model.sharded_state_dict(metadata=CASES[case][2])
    state = {"model": weights, "iteration": 7}
    if case == "moe":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer.step()
        state["optimizer"] = optimizer.state_dict()
        optim_state_to_sharding_state(state["optimizer"], get_param_id_to_sharded_param_map(weights, model.parameters()))
    return state, model


def objects_of(case):
    """A list of as many as a key's grid of shards has, in its order."""
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    gathered = [None] * WORLD
    weights = make_model(case).sharded_state_dict(metadata=CASES[case][2])
    objects = [v for v in weights.values() if isinstance(v, ShardedObject)]
    assert all(v.data is None for v in objects), "layers without Transformer Engine have no extra state"
    dist.all_gather_object(gathered, {v.key: math.prod(v.global_shape) for v in objects})
    return {key: [None] * count for keys in gathered for key, count in keys.items()}


def expectation(checkpointing, directory, objects):
    tensors = {k: v for k, v in checkpointing.load_plain_tensors(str(directory)).items() if isinstance(v, torch.Tensor)}
    metadata = checkpointing.load_tensors_metadata(str(directory))
    assert {k: tuple(v.global_shape) for k, v in metadata.items()} == {k: tuple(v.shape) for k, v in tensors.items()}
    entries = {k: {"dtype": str(v.dtype).removeprefix("torch."), "shape": list(v.shape), "sha256": sha(v)} for k, v in tensors.items()}
    return {"entries": entries, "objects": {**objects, "common.iteration": checkpointing.load_common_state_dict(str(directory))["iteration"]}}


def save(rank, case, address):
    dist.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=WORLD)
    from megatron.core import dist_checkpointing as checkpointing, parallel_state
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=2, expert_model_parallel_size=2, create_gloo_process_groups=False)
    os.chdir(HERE)  # .metadata holds the path as it is given
    directory = pathlib.Path(case)
    checkpointing.save(state_of(case)[0], case)
    dist.barrier()
    want = expectation(checkpointing, directory, objects_of(case))  # every rank loads
    if rank == 0:
        (HERE / f"{case}.json").write_text(json.dumps(want, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        shutil.rmtree(HERE / case, ignore_errors=True)
        (HERE / case).mkdir(parents=True)
        with tempfile.TemporaryDirectory() as scratch:
            torch.multiprocessing.spawn(save, (case, f"{scratch}/store"), WORLD)
