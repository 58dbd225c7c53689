"""Read checkpoints of distributed PyTorch training without executing anything in them.

    with tessera.open("step-1000/") as checkpoint:
        for name, entry in checkpoint.items():
            print(name, entry.dtype, entry.shape)
        rows = checkpoint["model.embed.weight"][0:8]        # a memoryview; only these rows are read

    tessera.validate("step-1000/", deep=True)["findings"]
    tessera.diff("step-1000/", "model.safetensors", values=True)["same"]

The format is recognized by content: DCP directories, safetensors, torch.save files, one file per rank, and the directories of
DeepSpeed, Megatron-Core and training loops. Only tessera.torch and load_sharded_optimizer_state need PyTorch.

Every function that opens a path accepts four options that select the checkpoint, as on the command line:

    part      open only this part of a checkpoint that is made of parts, such as "model", and strip its prefix from the names
    step      open this checkpoint of a directory that holds several: "latest", "latest-valid" (the newest without errors), a name
              or path below it, or a number
    also      directories whose files belong to the same checkpoint, because nodes wrote to local disks
    shards    join the plain tensors of several ranks by this map: a tessera.shards/1 document, its path, or a built-in map's name

A checkpoint that cannot be opened or read is a TesseraError."""
from __future__ import annotations

from typing import Any, Literal, Mapping, Sequence

from ._checkpoint import Checkpoint, Entry
from ._choices import Document, StrPath
from ._choices import text as _text
from ._findings import Against, Finding
from ._findings import check as _check
from ._findings import report as _report
from ._library import FOR_FINDINGS, Error, TesseraError

__version__ = "@VERSION@"
__all__ = ["Checkpoint", "Entry", "Error", "Finding", "TesseraError", "check", "diff", "inspect", "load_sharded_optimizer_state", "open",
           "report", "report_diff", "validate"]

# The forms of reports.
Format = Literal["json", "sarif", "junit", "github", "gitlab"]


def open(path: StrPath, threads: int = 0, allow_expansion: bool = False, *, part: str | None = None, step: str | int | None = None,
         also: StrPath | Sequence[StrPath] = (), shards: Document | None = None) -> Checkpoint:
    """Open a checkpoint. This reads metadata and headers, but no tensors. The caller closes the checkpoint, or uses it in a `with`.

    threads: how many threads read; 0 is one per available core. allow_expansion: accept tensors that repeat stored elements more than
    1,024 times, even beyond 1 GiB. part, step, also, shards: select the checkpoint; see the module's description."""
    return Checkpoint(path, threads, allow_expansion, part=part, step=step, also=also, shards=shards)


def inspect(path: StrPath, hash: str | None = None, stats: bool = False, allow_expansion: bool = False, *, part: str | None = None,
            step: str | int | None = None, also: StrPath | Sequence[StrPath] = (), shards: Document | None = None) -> dict[str, Any]:
    """Return what `tessera inspect --json` prints, as a dict.

    hash: add a digest of each tensor, "sha256" or "xxh3". stats: add min, max, mean, std, and the numbers of NaN, infinite and zero
    values. Both read every byte. The other options are those of `open`."""
    with Checkpoint(path, 0, allow_expansion, part=part, step=step, also=also, shards=shards) as checkpoint:
        return checkpoint.inspect(hash, stats)


def validate(path: StrPath, deep: bool = False, layout: Document | None = None, *, against: Against | None = None,
             rule: str | Sequence[str] = (), baseline: Document | None = None, prefix: str | None = None, allow: str | None = None,
             part: str | None = None, step: str | int | None = None, also: StrPath | Sequence[StrPath] = (),
             shards: Document | None = None) -> dict[str, Any]:
    """Return what `tessera validate --json` prints, as a dict.

    deep: read and check every byte. layout: the layout that the checkpoint must have. baseline: an earlier result, whose findings are
    left out. Both are documents: a dict, its text, or the path of a file. against: report what would not load into this: a
    checkpoint (opened, or its path), a module tree, an index, or a list of names. rule: "ID=LEVEL", or a list of these. prefix, allow:
    the values of --prefix and --allow. `part` and `step` also apply to a checkpoint whose path is given as `against`, if it has parts
    or steps."""
    with Checkpoint(path, part=part, step=step, also=also, shards=shards, _purpose=FOR_FINDINGS) as checkpoint:
        return checkpoint.validate(deep, layout, against=against, rule=rule, baseline=baseline, prefix=prefix, allow=allow)


def check(path: StrPath, *, deep: bool = False, layout: Document | None = None, against: Against | None = None,
          rule: str | Sequence[str] = (), baseline: Document | None = None, prefix: str | None = None, allow: str | None = None,
          part: str | None = None, step: str | int | None = None, also: StrPath | Sequence[StrPath] = (),
          shards: Document | None = None) -> list[Finding]:
    """Return the findings of `validate`, which has the same options, as a list of Finding. It is empty if nothing was found."""
    choices = {"part": part, "step": step, "also": also, "shards": shards}
    return _check(path, deep, choices, {"layout": layout, "against": against, "rule": rule, "baseline": baseline, "prefix": prefix, "allow": allow})


def diff(a: StrPath, b: StrPath, values: bool = False, layout: bool = False, atol: float = 0.0, rtol: float = 0.0,
         allow_expansion: bool = False, *, part: str | None = None, step: str | int | None = None,
         also: StrPath | Sequence[StrPath] = (), shards: Document | None = None) -> dict[str, Any]:
    """Return what `tessera diff --json` prints, as a dict.

    values: compare values bit for bit. atol, rtol: allow values to differ by atol + rtol * abs(value in b), as torch.isclose does;
    either of them implies values. layout: report different chunks as a difference. part and step apply to a, and to b if it has parts
    or steps; also applies only to a."""
    with Checkpoint(a, 0, allow_expansion, part=part, step=step, also=also, shards=shards) as first, \
            Checkpoint._compared(b, first._choices, allow_expansion=allow_expansion) as second:
        return first._session.diff(second._session, values, layout, atol, rtol)


def report(path: StrPath, format: Format, *, deep: bool = False, layout: Document | None = None, against: Against | None = None,
           rule: str | Sequence[str] = (), baseline: Document | None = None, prefix: str | None = None, allow: str | None = None,
           part: str | None = None, step: str | int | None = None, also: StrPath | Sequence[StrPath] = (),
           shards: Document | None = None) -> str:
    """Return what `tessera validate --format FORMAT` prints: "sarif", "junit", "github" or "gitlab" for CI systems, or "json". The other
    options are those of `validate`."""
    choices = {"part": part, "step": step, "also": also, "shards": shards}
    return _report(path, format, deep, choices, {"layout": layout, "against": against, "rule": rule, "baseline": baseline, "prefix": prefix, "allow": allow})


def report_diff(a: StrPath, b: StrPath, format: Format, *, values: bool = False, layout: bool = False, atol: float = 0.0, rtol: float = 0.0,
                allow_expansion: bool = False, part: str | None = None, step: str | int | None = None,
                also: StrPath | Sequence[StrPath] = (), shards: Document | None = None) -> str:
    """Return what `tessera diff --format FORMAT` prints. The other options are those of `diff`."""
    with Checkpoint(a, 0, allow_expansion, part=part, step=step, also=also, shards=shards) as first, \
            Checkpoint._compared(b, first._choices, allow_expansion=allow_expansion) as second:
        return first._session.diff(second._session, values, layout, atol, rtol, _text(format, "format"))


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
