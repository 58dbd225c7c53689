"""Read checkpoints of distributed PyTorch training without executing anything in them.

    with tessera.open("step-1000/") as checkpoint:
        for name, entry in checkpoint.items():
            print(name, entry.dtype, entry.shape)
        rows = checkpoint["model.embed.weight"][0:8]        # a memoryview; only these rows are read

    tessera.validate("step-1000/", deep=True)["findings"]
    tessera.diff("step-1000/", "model.safetensors", values=True)["same"]

Every command of the command line is a function, whose result is the document that the command prints:

    tessera.convert("step-1000/", "model.safetensors", objects="drop", progress=True)

The format is recognized by content: DCP directories, safetensors, torch.save files, one file per rank, and the directories of
DeepSpeed, Megatron-Core and training loops. Only tessera.torch and load_sharded_optimizer_state need PyTorch.

Every function that opens a path accepts five options that select the checkpoint, as on the command line:

    part      open only this part of a checkpoint that is made of parts, such as "model", and strip its prefix from the names
    step      open this checkpoint of a directory that holds several: "latest", "latest-valid" (the newest without errors), a name
              or path below it, or a number
    also      directories whose files belong to the same checkpoint, because nodes wrote to local disks
    shards    join the plain tensors of several ranks by this map: a tessera.shards/1 document, its path, or a built-in map's name
    salvage   open what is whole of a single torch.save or safetensors file that was cut short (not for load_sharded_optimizer_state)

A checkpoint that cannot be opened or read is a TesseraError."""
from __future__ import annotations

from typing import Any, Mapping, Sequence

from . import _commands
from ._call import Finding
from ._checkpoint import Checkpoint, Entry
from ._choices import Document, StrPath
from ._commands import *  # noqa: F403, the functions of the commands
from ._library import Error, TesseraError

__version__ = "@VERSION@"
__all__ = ["Checkpoint", "Entry", "Error", "Finding", "TesseraError", "load_sharded_optimizer_state", "open"]
__all__ += _commands.__all__


def open(path: StrPath, threads: int = 0, allow_expansion: bool = False, *, part: str | None = None, step: str | int | None = None,
         also: StrPath | Sequence[StrPath] = (), shards: Document | None = None, salvage: bool = False, io_depth: int = 0,
         map: Document | None = None, inverse: bool = False, lora: StrPath | Checkpoint | None = None, dequantize: bool = False,
         canonical: bool = False) -> Checkpoint:
    """Open a checkpoint. This reads metadata and headers, but no tensors. The caller closes the checkpoint, or uses it in a `with`.

    threads: how many threads read; 0 is one per available core. io_depth: how many requests a server gets at once; 0 is 16. allow_expansion: accept tensors that repeat stored elements more than
    1,024 times, even beyond 1 GiB. part, step, also, shards, salvage: select the checkpoint; see the module's description.

    What is read may be something else than what is stored: dequantize multiplies scaled numbers (float8, int8, MXFP4, NVFP4), lora folds
    an adapter of PEFT in, map gives the names and layouts of another model (a tessera.map/1 document or the name of a built-in map; inverse:
    backwards), canonical strips wrapper prefixes (module, _orig_mod, …) from the names."""
    return Checkpoint(path, threads, allow_expansion, part=part, step=step, also=also, shards=shards, salvage=salvage, io_depth=io_depth, map=map, inverse=inverse,
                      lora=lora, dequantize=dequantize, canonical=canonical)


def load_sharded_optimizer_state(path: StrPath, optimizer_key: str, model_state_dict: Mapping[str, Any], *, threads: int = 0,
                                 unsafe_objects: bool = False, part: str | None = None, step: str | int | None = None,
                                 also: StrPath | Sequence[StrPath] = (), shards: Document | None = None) -> dict[str, Any]:
    """Load the optimizer state below `optimizer_key` of any checkpoint, as load_sharded_optimizer_state_dict of
    torch.distributed.checkpoint does, and return {optimizer_key: {"state": …, "param_groups": …}}. Every rank of the default process
    group must call this. An error on one rank is raised on all. Needs PyTorch.

    model_state_dict: FSDP's sharded state dict. It determines this rank's rows, and its slices if FSDP is combined with tensor
    parallelism. Tensors of one element are returned whole. All others are ShardedTensors that hold only this rank's rows, on the device
    of the process group. Parameters that only the checkpoint has are loaded with a warning. threads, unsafe_objects: as for
    tessera.torch.StorageReader."""
    from . import _optimizer
    choices = {"part": part, "step": step, "also": also, "shards": shards}
    return _optimizer.load(path, optimizer_key, model_state_dict, {"threads": threads, **choices}, unsafe_objects)
