"""Writes the enum classes whose members training frameworks save, from the frameworks themselves:

    core/formats/pickle/enum_table.h      the (module, class) pairs that readers take as data
    tests/golden/enum_members.tsv  every member of those of today: module, class, name, value as JSON

Usage: python tests/golden/make_enum_names.py     in an environment that has all of the versions below (without CUDA).
Every member is pickled, and must be one call on its class, with protocols 2, 4 and 5; anything else stops the script. What
Python writes is `Class(value)` (up to 3.10, and from 3.12), or `getattr(Class, name)` (3.11).

Made with CPython 3.11.2, torch 2.13.0, torchao 0.18.0, transformers 5.23.0, accelerate 1.15.0, peft 0.21.2, sentence-transformers 6.2.0,
deepspeed 0.19.8, megatron-core 0.16.1, lightning 2.6.6, pytorch-lightning 2.6.6.
"""
import contextlib
import enum
import importlib
import io
import json
import pathlib
import pickle
import pkgutil
import re
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "torchao", "accelerate", "transformers", "peft", "sentence_transformers", "lightning", "pytorch_lightning", "megatron", "deepspeed")

# Modules whose enums configure or describe what is saved: arguments, plugins, trainer states, plans, quantized tensors.
# Compilers, exporters, profilers, servers and command-line menus do not save anything.
SAVED = re.compile(r"""
    torch\.(amp\.grad_scaler|serialization|nn\.(attention\.bias|utils\.parametrizations|parallel\.distributed)|utils\.checkpoint)
  | torch\.ao\.quantization\..*
  | torch\.distributed\.(_shard\.)?checkpoint\.(filesystem|metadata|planner|state_dict_saver)
  | torch\.distributed\.(_shard|_sharded_tensor)\.(sharded_tensor\.)?metadata
  | torch\.distributed\.fsdp\.(api|fully_sharded_data_parallel|_flat_param|_common_utils|_fully_shard\._fsdp_(common|param))
  | torch\.distributed\.(algorithms\._checkpoint\.checkpoint_wrapper|optim\.zero_redundancy_optimizer)
  | torch\.distributed\.(pipelining\.schedules|tensor\.placement_types)
  | torchao\.(dtypes|float8|quantization|experimental|prototype\.(moe_training|mx_formats))\..*
  | transformers\.(debug_utils|trainer_utils|training_args|image_utils|image_transforms|backbone_utils|tokenization_\w+)
  | transformers\.(integrations\.integration_utils|generation\.configuration_utils|utils\.(generic|quantization_config))
  | accelerate\.(state|utils\.dataclasses)
  | peft\..*
  | sentence_transformers\.base\.sampler
  | (lightning\.pytorch|pytorch_lightning)\..*
  | megatron\.core\.(enums|rerun_state_machine|transformer\..*|dist_checkpointing\..*|datasets\..*|distributed\..*)
  | deepspeed\.(comm\.reduce_op|utils\.types)
  | deepspeed\.runtime\.(zero|fp16|tensor_parallel|swap_tensor)\..*
""", re.X)

# Where older versions had them, as their sources say.
OLDER = """
accelerate 0.5.1: accelerate.state ComputeEnvironment DistributedType SageMakerDistributedType
accelerate 0.5.1: accelerate.utils RNGType
deepspeed 0.7.7: deepspeed.comm.comm ReduceOp
megatron-core 0.12.0: megatron.core.distributed.custom_fsdp.fully_sharded_data_parallel TrainingState
Megatron-LM of 2023: megatron.model.enums AttnMaskType AttnType LayerType ModelType PositionEmbeddingType
Megatron-LM of 2024: megatron.legacy.model.enums AttnMaskType AttnType LayerType ModelType
peft 0.4.0: peft.tuners.p_tuning PromptEncoderReparameterizationType
peft 0.4.0: peft.tuners.prompt_tuning PromptTuningInit
peft 0.4.0: peft.utils.config PeftType TaskType
pytorch-lightning 1.5.10: pytorch_lightning.utilities.enums DeviceType DistributedType ModelSummaryMode
pytorch-lightning 1.9.5: pytorch_lightning.utilities.enums AMPType AutoRestartBatchKeys PrecisionType
sentence-transformers 5.1.0: sentence_transformers.training_args BatchSamplers MultiDatasetBatchSamplers
torch 1.12.1: torch.distributed.fsdp.fully_sharded_data_parallel BackwardPrefetch ShardingStrategy StateDictType
torchao 0.10.0: torchao.float8.float8_tensor GemmInputRole
torchao 0.10.0: torchao.prototype.mx_formats.mx_tensor ScaleCalculationMode
torchao 0.13.0: torchao.dtypes.nf4tensor CompareOp
torchao 0.13.0: torchao.dtypes.uintx.packed_linear_int8_dynamic_activation_intx_weight_layout Target
torchao 0.13.0: torchao.prototype.moe_training.conversion_utils MoEScalingType
torchao 0.13.0: torchao.prototype.mx_formats.config MXGemmKernelChoice MXLinearRecipeName
torchao 0.13.0: torchao.prototype.mx_formats.nvfp4_tensor NVFP4MMConfig
transformers 4.5.1: transformers.file_utils PaddingStrategy TensorType
transformers 4.30.2: transformers.trainer_utils EvaluationStrategy ShardedDDPOption
transformers 4.46.3: transformers.image_utils AnnotionFormat
transformers 4.46.3: transformers.utils.backbone_utils BackboneType
transformers 4.46.3: transformers.utils.quantization_config AWQLinearVersion AwqBackendPackingMethod
trl 0.24.0: trl.trainer.dpo_config FDivergenceType
"""


def import_all():
    warnings.simplefilter("ignore")
    for package in PACKAGES:
        for info in pkgutil.walk_packages(importlib.import_module(package).__path__, package + ".", onerror=lambda name: None):
            if not SAVED.fullmatch(info.name):
                continue
            with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
                importlib.import_module(info.name)


def subclasses(cls):
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


def is_plain(value):
    return value is None or isinstance(value, (bool, int, float, str))


def check_pickle(member):
    cls = type(member)
    for protocol in (2, 4, 5):
        assert pickle.loads(pickle.dumps(member, protocol)) is member
        function, arguments, *more = member.__reduce_ex__(protocol)
        assert not any(more), member
        assert (function, arguments) in ((cls, (member.value,)), (getattr, (cls, member.name))), member


def todays():
    found = {}
    for cls in subclasses(enum.Enum):
        members = list(cls)
        if not SAVED.fullmatch(cls.__module__) or not members or not all(is_plain(m.value) for m in members):
            continue
        assert cls.__qualname__ == cls.__name__ or issubclass(cls, enum.Flag), cls
        for member in members:
            check_pickle(member)
        found[cls.__module__, cls.__name__] = members
    return found


def write_table(pairs):
    modules = {}
    for module, name in sorted(pairs):
        modules.setdefault(module, []).append(name)
    lines = ["/* Made by tests/golden/make_enum_names.py: one module a line, its classes separated by spaces. */"]
    lines += [f'{{"{module}", "{" ".join(names)}"}},' for module, names in modules.items()]
    (ROOT / "core/formats/pickle/enum_table.h").write_text("\n".join(lines) + "\n")


def main():
    import_all()
    members = todays()
    older = set()
    for line in OLDER.strip().splitlines():
        module, *names = line.split(": ")[1].split()
        older |= {(module, name) for name in names}
    write_table(older | set(members))
    with open(ROOT / "tests/golden/enum_members.tsv", "w") as out:
        for (module, name), values in sorted(members.items()):
            for value in values:
                print(module, name, value.name, json.dumps(value.value), sep="\t", file=out)


if __name__ == "__main__":
    main()
