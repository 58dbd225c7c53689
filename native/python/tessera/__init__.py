"""Checkpoints of distributed PyTorch training, read without executing anything that is in them.

    with tessera.open("step-1000/") as checkpoint:
        for name, entry in checkpoint.items():
            print(name, entry.dtype, entry.shape)
        rows = checkpoint["model.embed.weight"][0:8]        # a memoryview; only these rows are read

    tessera.validate("step-1000/", deep=True)["findings"]
    tessera.diff("step-1000/", "model.safetensors", values=True)["same"]

Any format is recognized by its content: DCP directories, safetensors, torch.save files, one file per rank, and what DeepSpeed,
Megatron-Core and training loops leave. PyTorch is not needed, except for tessera.torch, which loads all of them into
torch.distributed.checkpoint.

Wherever a path is opened, four options say which checkpoint it stands for, as on the command line:

    part      open only this part of a checkpoint that is made of parts, such as "model"; its prefix is left out of the names
    step      which checkpoint of a directory that holds several: "latest", a name or path below it, or a number
    also      directories whose files belong to the same checkpoint, where nodes wrote to local disks
    shards    a tessera.shards/1 document, its path, or the name of a built-in map: how the plain tensors of several ranks are joined"""
from __future__ import annotations

from typing import Any, Mapping, Sequence

from ._checkpoint import Checkpoint, Entry
from ._choices import Document, StrPath
from ._findings import Against, Finding
from ._findings import check as _check
from ._library import FOR_FINDINGS, Error, TesseraError

__version__ = "@VERSION@"
__all__ = ["Checkpoint", "Entry", "Error", "Finding", "TesseraError", "check", "diff", "inspect", "load_sharded_optimizer_state", "open",
           "validate"]


def open(path: StrPath, threads: int = 0, allow_expansion: bool = False, *, part: str | None = None, step: str | int | None = None,
         also: StrPath | Sequence[StrPath] = (), shards: Document | None = None) -> Checkpoint:
    """Opens a checkpoint: metadata and headers are read, no tensors. threads: for reading; 0 is one per available core.
    allow_expansion: as the commands' --allow-expansion. part, step, also, shards: which checkpoint, see above."""
    return Checkpoint(path, threads, allow_expansion, part=part, step=step, also=also, shards=shards)


def inspect(path: StrPath, hash: str | None = None, stats: bool = False, allow_expansion: bool = False, *, part: str | None = None,
            step: str | int | None = None, also: StrPath | Sequence[StrPath] = (), shards: Document | None = None) -> dict[str, Any]:
    """What `tessera inspect --json` prints, as a dict."""
    with Checkpoint(path, 0, allow_expansion, part=part, step=step, also=also, shards=shards) as checkpoint:
        return checkpoint.inspect(hash, stats)


def validate(path: StrPath, deep: bool = False, layout: Document | None = None, *, against: Against | None = None,
             rule: str | Sequence[str] = (), baseline: Document | None = None, prefix: str | None = None, allow: str | None = None,
             part: str | None = None, step: str | int | None = None, also: StrPath | Sequence[StrPath] = (),
             shards: Document | None = None) -> dict[str, Any]:
    """What `tessera validate --json` prints, as a dict.

    deep: read and check every byte. layout and baseline: a document as a dict, as its text, or as the path of a file. against: what the
    checkpoint is to be loaded into: another checkpoint (opened, or its path), a module tree, an index, or a list of
    names. rule: texts "ID=LEVEL". prefix and allow: the texts of --prefix and --allow. A checkpoint whose path `against` is has the
    same part and step where it has parts and steps."""
    with Checkpoint(path, part=part, step=step, also=also, shards=shards, _purpose=FOR_FINDINGS) as checkpoint:
        return checkpoint.validate(deep, layout, against=against, rule=rule, baseline=baseline, prefix=prefix, allow=allow)


def check(path: StrPath, *, deep: bool = False, layout: Document | None = None, against: Against | None = None,
          rule: str | Sequence[str] = (), baseline: Document | None = None, prefix: str | None = None, allow: str | None = None,
          part: str | None = None, step: str | int | None = None, also: StrPath | Sequence[StrPath] = (),
          shards: Document | None = None) -> list[Finding]:
    """The findings of `validate`, with the same options, as a list of Finding. An empty list means that nothing was found."""
    choices = {"part": part, "step": step, "also": also, "shards": shards}
    return _check(path, deep, choices, {"layout": layout, "against": against, "rule": rule, "baseline": baseline, "prefix": prefix, "allow": allow})


def diff(a: StrPath, b: StrPath, values: bool = False, layout: bool = False, atol: float = 0.0, rtol: float = 0.0,
         allow_expansion: bool = False, *, part: str | None = None, step: str | int | None = None,
         also: StrPath | Sequence[StrPath] = (), shards: Document | None = None) -> dict[str, Any]:
    """What `tessera diff --json` prints, as a dict. A tolerance implies values. part and step are for both, where b has parts and
    steps; also is for a."""
    with Checkpoint(a, 0, allow_expansion, part=part, step=step, also=also, shards=shards) as first, \
            Checkpoint._compared(b, first._choices, allow_expansion=allow_expansion) as second:
        return first._session.diff(second._session, values or atol > 0 or rtol > 0, layout, atol, rtol)


def load_sharded_optimizer_state(path: StrPath, optimizer_key: str, model_state_dict: Mapping[str, Any], *, threads: int = 0,
                                 unsafe_objects: bool = False, part: str | None = None, step: str | int | None = None,
                                 also: StrPath | Sequence[StrPath] = (), shards: Document | None = None) -> dict[str, Any]:
    """The optimizer state below `optimizer_key` of any checkpoint, as torch.distributed.checkpoint's
    load_sharded_optimizer_state_dict gives it: {optimizer_key: {"state": …, "param_groups": …}}. Every rank of the default process
    group calls this; an error of one is raised on all. Needs PyTorch.

    model_state_dict: of FSDP, sharded; it tells which rows and, over tensor parallel, which slices are this rank's. Tensors of one
    element are whole, others ShardedTensors of this rank's rows alone, on the device of the process group. Parameters that only
    the checkpoint has are loaded with a warning. threads, unsafe_objects: as for tessera.torch.StorageReader."""
    from . import _optimizer
    choices = {"part": part, "step": step, "also": also, "shards": shards}
    return _optimizer.load(path, optimizer_key, model_state_dict, {"threads": threads, **choices}, unsafe_objects)
