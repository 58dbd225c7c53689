"""What the tests take from PyTorch 2.3 to 2.15, whatever module a release has it in. A test that needs what the release at hand does not have is
skipped, and the reason names both."""
import functools
import importlib
import inspect

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from checks import Skip
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict


def _lacking(what):
    return Skip(f"PyTorch {torch.__version__} does not have {what}")


class _Absent(type):
    """Makes classes that can be imported and derived from, but not used."""

    def __call__(cls, *_, **__):
        raise _lacking(cls.lacking)

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise _lacking(f"{cls.lacking}.{name}")


def _from(name, *modules):
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            pass
    return type.__new__(_Absent, name, (), {"lacking": f"{modules[0]}.{name}"})


def has(thing, *options):
    """Whether this release has a class or function, and its options."""
    return not isinstance(thing, _Absent) and set(options) <= set(inspect.signature(thing).parameters)


def needs(thing, *options):
    """Called by a test before its ranks start, which could not skip it."""
    if isinstance(thing, _Absent):
        thing()
    for option in options:
        if not has(thing, option):
            raise _lacking(f"{option}= of {thing.__name__}")


def _with_options(function):
    """PyTorch before 2.4 has no no_dist, and does without ranks where none are initialized."""
    @functools.wraps(function)
    def called(*arguments, no_dist=False, **options):
        if has(function, "no_dist"):
            options["no_dist"] = no_dist
        elif no_dist and dist.is_initialized():
            raise _lacking(f"no_dist= of {function.__name__}")
        if options.get("use_collectives") and not has(function, "use_collectives"):
            del options["use_collectives"]  # there is no other way
        needs(function, *options)
        return function(*arguments, **options)
    return called


def _load(state_dict, *, checkpoint_id=None, storage_reader=None, planner=None, process_group=None, no_dist=False):
    """load of PyTorch before 2.4 loads into a copy, from which objects do not get back into the state dict."""
    given = {key: value.state_dict() if hasattr(value, "state_dict") else value for key, value in state_dict.items()}
    _load_state_dict(given, storage_reader or torch.distributed.checkpoint.FileSystemReader(checkpoint_id), process_group,
                     no_dist=no_dist or not dist.is_initialized(), planner=planner or torch.distributed.checkpoint.DefaultLoadPlanner())
    for key, value in state_dict.items():
        if hasattr(value, "load_state_dict"):
            value.load_state_dict(given[key])
        else:
            state_dict[key] = given[key]


class _Dcp:
    """torch.distributed.checkpoint."""

    def __init__(self):
        self.save, self.load, self.async_save = (_with_options(getattr(torch.distributed.checkpoint, name)) for name in ("save", "load", "async_save"))
        if not has(torch.distributed.checkpoint.load, "no_dist"):
            self.load = _load

    def __getattr__(self, name):
        return getattr(torch.distributed.checkpoint, name)


dcp = _Dcp()
_CHECKPOINT, _TENSOR = "torch.distributed.checkpoint", ("torch.distributed.tensor", "torch.distributed._tensor")
DTensor, Partial, Replicate, Shard, distribute_tensor = (_from(name, *_TENSOR, "torch.distributed._tensor.placement_types")
                                                         for name in ("DTensor", "Partial", "Replicate", "Shard", "distribute_tensor"))
StridedShard = _from("_StridedShard", "torch.distributed.tensor.placement_types")
fully_shard = _from("fully_shard", "torch.distributed.fsdp", "torch.distributed._composable.fsdp")
ExtensionRegistry, StreamTransformExtension, ZStandard = (_from(name, f"{_CHECKPOINT}._extension") for name in ("ExtensionRegistry", "StreamTransformExtension", "ZStandard"))
HuggingFaceStorageReader, HuggingFaceStorageWriter, QuantizedHuggingFaceStorageReader = (
    _from(name, _CHECKPOINT) for name in ("HuggingFaceStorageReader", "HuggingFaceStorageWriter", "QuantizedHuggingFaceStorageReader"))
consolidate_safetensors_files = _from("consolidate_safetensors_files", f"{_CHECKPOINT}._consolidate_hf_safetensors")
FsspecReader, FsspecWriter = (_from(name, f"{_CHECKPOINT}._fsspec_filesystem", f"{_CHECKPOINT}.fsspec") for name in ("FsspecReader", "FsspecWriter"))
DynamicMetaLoadPlanner, dcp_to_torch_save, torch_save_to_dcp = (
    _from(name, f"{_CHECKPOINT}.format_utils") for name in ("DynamicMetaLoadPlanner", "dcp_to_torch_save", "torch_save_to_dcp"))
AsyncCheckpointerType = _from("AsyncCheckpointerType", f"{_CHECKPOINT}.state_dict_saver")
BlockingAsyncStager, DefaultStager, StagingOptions = (_from(name, f"{_CHECKPOINT}.staging") for name in ("BlockingAsyncStager", "DefaultStager", "StagingOptions"))
SerializationFormat = _from("SerializationFormat", f"{_CHECKPOINT}.filesystem")
safe_globals, set_crc32_options = (_from(name, "torch.serialization") for name in ("safe_globals", "set_crc32_options"))
StorageMeta = _from("StorageMeta", f"{_CHECKPOINT}.metadata")
EmptyStateDictLoadPlanner = _from("_EmptyStateDictLoadPlanner", f"{_CHECKPOINT}.default_planner")
if isinstance(EmptyStateDictLoadPlanner, _Absent):
    class EmptyStateDictLoadPlanner(dcp.DefaultLoadPlanner):
        """Loads everything that there is into an empty state dict, as that of PyTorch 2.4 does."""

        def set_up_planner(self, state_dict, metadata, is_coordinator):
            for name, stored in metadata.state_dict_metadata.items():
                value = torch.empty(stored.size, dtype=stored.properties.dtype) if hasattr(stored, "properties") else name
                set_element(state_dict, (metadata.planner_data or {}).get(name, (name,)), value)
            super().set_up_planner(state_dict, metadata, is_coordinator)
