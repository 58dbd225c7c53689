"""Checkpoints of distributed PyTorch training, read without executing anything that is in them.

    with tessera.open("step-1000/") as checkpoint:
        for name, entry in checkpoint.items():
            print(name, entry.dtype, entry.shape)
        rows = checkpoint["model.embed.weight"][0:8]        # a memoryview; only these rows are read

    tessera.validate("step-1000/", deep=True)["findings"]
    tessera.diff("step-1000/", "model.safetensors", values=True)["same"]

Any format is recognized by its content: DCP folders, safetensors, torch.save files, one file a rank. PyTorch is not
needed, except for tessera.torch, which loads all of them into torch.distributed.checkpoint."""
from ._checkpoint import Checkpoint, Entry
from ._findings import Finding
from ._findings import check as _check
from ._library import FOR_FINDINGS, Error, TesseraError

__version__ = "@VERSION@"
__all__ = ["Checkpoint", "Entry", "Error", "Finding", "TesseraError", "check", "diff", "inspect", "load_sharded_optimizer_state", "open",
           "validate"]


def open(path, threads=0, allow_expansion=False):
    """Opens a checkpoint: metadata and headers are read, no tensors. threads: for reading; 0 is as many as allowed.
    allow_expansion: as the commands' --allow-expansion."""
    return Checkpoint(path, threads, allow_expansion)


def inspect(path, hash=None, stats=False, allow_expansion=False):
    """What `tessera inspect --json` prints, as a dict."""
    with Checkpoint(path, allow_expansion=allow_expansion) as checkpoint:
        return checkpoint.inspect(hash, stats)


def validate(path, deep=False, layout=None, **options):
    """What `tessera validate --json` prints, as a dict.

    deep: read and check every byte. layout and baseline: a document as a dict, as its text, or as the path of a file. against: what the
    checkpoint is to be loaded into: another checkpoint (opened, or its path), a module tree, an index, or a list of
    names. rule: texts "ID=LEVEL". prefix and allow: the texts of --prefix and --allow."""
    with Checkpoint(path, _purpose=FOR_FINDINGS) as checkpoint:
        return checkpoint.validate(deep, layout, **options)


def check(path, *, deep=False, layout=None, against=None, rule=(), baseline=None, prefix=None, allow=None):
    """The findings of `validate`, with the same options, as a list of Finding. An empty list means that nothing was found."""
    return _check(path, deep, {"layout": layout, "against": against, "rule": rule, "baseline": baseline, "prefix": prefix, "allow": allow})


def diff(a, b, values=False, layout=False, atol=0.0, rtol=0.0, allow_expansion=False):
    """What `tessera diff --json` prints, as a dict. A tolerance implies values."""
    with Checkpoint(a, allow_expansion=allow_expansion) as first, Checkpoint(b, allow_expansion=allow_expansion) as second:
        return first._session.diff(second._session, values or atol > 0 or rtol > 0, layout, atol, rtol)


def load_sharded_optimizer_state(path, optimizer_key, model_state_dict, *, threads=0, unsafe_objects=False):
    """The optimizer state below `optimizer_key` of any checkpoint, as torch.distributed.checkpoint's
    load_sharded_optimizer_state_dict gives it: {optimizer_key: {"state": …, "param_groups": …}}. Every rank of the default process
    group calls this; an error of one is raised on all. Needs PyTorch.

    model_state_dict: of FSDP, sharded; it tells which rows and, over tensor parallel, which slices are this rank's. Tensors of one
    element are whole, others ShardedTensors of this rank's rows alone, on the device of the process group. Parameters that only
    the checkpoint has are loaded with a warning. threads, unsafe_objects: as for tessera.torch.StorageReader."""
    from . import _optimizer
    return _optimizer.load(path, optimizer_key, model_state_dict, threads, unsafe_objects)
