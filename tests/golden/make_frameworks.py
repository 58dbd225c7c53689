"""Writes tests/golden/frameworks: small files as training frameworks save them, with the enum members that they hold.

Usage: python tests/golden/make_frameworks.py    in an environment that has the versions below (without CUDA).

Made with CPython 3.11.2, torch 2.13.0, torchao 0.18.0, transformers 5.23.0, accelerate 1.15.0, peft 0.21.2,
deepspeed 0.19.8, megatron-core 0.16.1, lightning 2.6.6. (CPython 3.11 pickles an enum member as getattr(Class, name).)
"""
import os
import pathlib
import shutil
import tempfile
import warnings

import torch

HERE = pathlib.Path(__file__).resolve().parent / "frameworks"


def transformers_and_accelerate():
    from accelerate import Accelerator
    from transformers import TrainingArguments
    arguments = TrainingArguments(output_dir="out", use_cpu=True, save_strategy="epoch", eval_strategy="steps", eval_steps=3,
                                  debug="underflow_overflow", report_to=[])
    torch.save(arguments, HERE / "training_args.bin")
    torch.save({"distributed_type": Accelerator(cpu=True).distributed_type}, HERE / "accelerate.pt")


def peft():
    from peft import LoraConfig, TaskType
    torch.save({"config": LoraConfig(task_type=TaskType.CAUSAL_LM, r=2)}, HERE / "peft_config.pt")


def torchao():
    from torchao.quantization.quantize_.workflows.float8.float8_tensor import Float8Tensor, QuantizeTensorToFloat8Kwargs
    weight = torch.arange(32, dtype=torch.bfloat16).reshape(2, 16)
    tensor = Float8Tensor.from_hp(weight, act_quant_kwargs=QuantizeTensorToFloat8Kwargs())
    torch.save({"weight": tensor}, HERE / "torchao_float8.pt")


def lightning():
    from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus
    torch.save({"state": TrainerState(TrainerStatus.RUNNING, TrainerFn.FITTING, RunningStage.TRAINING)}, HERE / "lightning_state.pt")


def deepspeed():
    import deepspeed
    model = torch.nn.Linear(3, 4)
    config = {"train_batch_size": 1, "zero_optimization": {"stage": 2},
              "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}}}
    engine = deepspeed.initialize(model=model, config=config)[0]
    engine.backward(engine(torch.ones(1, 3)).sum())
    engine.step()
    with tempfile.TemporaryDirectory() as directory:
        engine.save_checkpoint(directory, tag="t")
        shutil.copy(os.path.join(directory, "t", "zero_pp_rank_0_mp_rank_00_optim_states.pt"), HERE / "deepspeed_optim_states.pt")


def megatron():
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
    weight = ShardedTensor.from_rank_offsets("weight", torch.arange(12.0).reshape(3, 4), replica_id=0)
    os.mkdir(HERE / "megatron")
    dist_checkpointing.save({"weight": weight, "object": ShardedObject("object", {"x": 1}, (1,), (0,))}, str(HERE / "megatron"))


def main():
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29581", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    torch.manual_seed(1)
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    for make in (transformers_and_accelerate, peft, torchao, lightning, deepspeed, megatron):
        make()


if __name__ == "__main__":
    main()
