"""The commands as functions. Made by native/python/commands.py from the table in core/commands."""
from __future__ import annotations

from typing import Any, Callable, Literal, Sequence

from ._call import Against, CheckpointOrPath, Finding, Format
from ._call import document as _document, findings as _findings, get as _get, report as _report
from ._choices import Document, StrPath

__all__ = ["check", "convert", "copy", "diff", "doctor", "exec", "explain", "fqn", "get", "inspect", "latest", "layout", "manifest", "map_list", "map_show", "map_suggest", "merge", "optim", "plan", "prune", "repair", "report", "report_diff", "reshard", "validate", "verify"]


def inspect(path: CheckpointOrPath, hash: Literal["sha256", "xxh3"] | None = None, stats: bool = False, allow_expansion: bool = False, *,
            include: str | Sequence[str] = (), exclude: str | Sequence[str] = (), part: str | None = None, step: str | int | None = None,
            also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), shards: Document | None = None, salvage: bool = False,
            threads: int | None = None, io_depth: int | None = None, on_progress: Callable[[int, int], Any] | None = None,
            progress: bool = False) -> dict[str, Any]:
    """Show what a checkpoint contains: names, dtypes, shapes, sizes, sharding and problems. Return what `tessera inspect` prints as JSON,
    as a dict.

    include: Use only names that match: * within a component, ** across components, ?, [...]
    exclude: Leave out names that match; overrides include
    hash: Compute a digest of each tensor's values, independent of sharding and format
    stats: Compute min, max, mean, std, and the number of NaN, Inf and zero values of each tensor
    allow_expansion: Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB
    part: Open only this part of a checkpoint that is made of parts (inspect lists them)
    step: Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path below it,
    or the number in its name
    also: Add the files of another directory to those of path, for nodes that wrote to local disks
    shards: Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm
    salvage: Open what is whole of a single torch.save or safetensors file that was cut short, and report what is lost
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)

    on_progress: called with the bytes that are done and the bytes of all, at most ten times a second, from any thread. progress: draw a
    bar: on a terminal, and in a notebook where tqdm is installed."""
    return _document("inspect", [("path", path)], {"include": include, "exclude": exclude, "hash": hash, "stats": stats,
        "allow_expansion": allow_expansion, "part": part, "step": step, "also": also, "shards": shards, "salvage": salvage,
        "threads": threads, "io_depth": io_depth}, on_progress, progress)


def get(path: CheckpointOrPath, name: str, *, allow_expansion: bool = False, part: str | None = None, step: str | int | None = None,
        also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), shards: Document | None = None, salvage: bool = False,
        threads: int | None = None, io_depth: int | None = None) -> Any:
    """Read a tensor, or a slice of one, such as "model.embed.weight[0:8, 1]", as a memoryview: in the tensor's type and shape if memoryview
    has that type, as bytes otherwise. The value of an object is returned as it is.

    allow_expansion: Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB
    part: Open only this part of a checkpoint that is made of parts (inspect lists them)
    step: Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path below it,
    or the number in its name
    also: Add the files of another directory to those of path, for nodes that wrote to local disks
    shards: Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm
    salvage: Open what is whole of a single torch.save or safetensors file that was cut short, and report what is lost
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)"""
    return _get("get", [("path", path), ("name", name)], {"allow_expansion": allow_expansion, "part": part, "step": step, "also": also,
        "shards": shards, "salvage": salvage, "threads": threads, "io_depth": io_depth})


def diff(a: CheckpointOrPath, b: CheckpointOrPath, values: bool = False, layout: bool = False, atol: float | None = None,
         rtol: float | None = None, allow_expansion: bool = False, *, map: Document | None = None, inverse: bool = False,
         dequantize: bool = False, canonical: bool = False, modules: Document | None = None, rule: str | Sequence[str] = (),
         baseline: Document | None = None, part: str | None = None, step: str | int | None = None,
         also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), shards: Document | None = None, salvage: bool = False,
         threads: int | None = None, io_depth: int | None = None, on_progress: Callable[[int, int], Any] | None = None,
         progress: bool = False) -> dict[str, Any]:
    """Compare two checkpoints, whatever their formats and shardings. Return what `tessera diff` prints as JSON, as a dict.

    map: Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map
    inverse: With map: apply the map backwards
    dequantize: Turn the quantized numbers of A into weights, in the dtype of config.json, or bfloat16
    values: Compare values too, bit for bit
    atol: Allow values to differ by X; NaN equals NaN (implies values)
    rtol: Allow values to differ by X times the value in B (implies values)
    layout: Report different chunks as a difference
    canonical: Match names without wrapper prefixes (module, _orig_mod, …), also in optimizer state
    modules: With canonical: take the model's names from a tessera.modules/1 document, not from the text of the names alone
    rule: Report a rule as error, warning or note, or turn it off; ID may end in * (the last match wins)
    baseline: Leave out differences that an earlier json document lists with the same name and kind
    allow_expansion: Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB
    part: Open only this part of a checkpoint that is made of parts (inspect lists them)
    step: Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path below it,
    or the number in its name
    also: Add the files of another directory to those of PATH, for nodes that wrote to local disks
    shards: Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm
    salvage: Open what is whole of a single torch.save or safetensors file that was cut short, and report what is lost
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)

    on_progress: called with the bytes that are done and the bytes of all, at most ten times a second, from any thread. progress: draw a
    bar: on a terminal, and in a notebook where tqdm is installed."""
    return _document("diff", [("a", a), ("b", b)], {"map": map, "inverse": inverse, "dequantize": dequantize, "values": values,
        "atol": atol, "rtol": rtol, "layout": layout, "canonical": canonical, "modules": modules, "rule": rule, "baseline": baseline,
        "allow_expansion": allow_expansion, "part": part, "step": step, "also": also, "shards": shards, "salvage": salvage,
        "threads": threads, "io_depth": io_depth}, on_progress, progress)


def report_diff(a: CheckpointOrPath, b: CheckpointOrPath, format: Format, *, map: Document | None = None, inverse: bool = False,
                dequantize: bool = False, values: bool = False, atol: float | None = None, rtol: float | None = None, layout: bool = False,
                canonical: bool = False, modules: Document | None = None, rule: str | Sequence[str] = (), baseline: Document | None = None,
                allow_expansion: bool = False, part: str | None = None, step: str | int | None = None,
                also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), shards: Document | None = None, salvage: bool = False,
                threads: int | None = None, io_depth: int | None = None, on_progress: Callable[[int, int], Any] | None = None,
                progress: bool = False) -> str:
    """Return what `tessera diff --format FORMAT` prints.

    map: Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map
    inverse: With map: apply the map backwards
    dequantize: Turn the quantized numbers of A into weights, in the dtype of config.json, or bfloat16
    values: Compare values too, bit for bit
    atol: Allow values to differ by X; NaN equals NaN (implies values)
    rtol: Allow values to differ by X times the value in B (implies values)
    layout: Report different chunks as a difference
    canonical: Match names without wrapper prefixes (module, _orig_mod, …), also in optimizer state
    modules: With canonical: take the model's names from a tessera.modules/1 document, not from the text of the names alone
    rule: Report a rule as error, warning or note, or turn it off; ID may end in * (the last match wins)
    baseline: Leave out differences that an earlier json document lists with the same name and kind
    allow_expansion: Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB
    part: Open only this part of a checkpoint that is made of parts (inspect lists them)
    step: Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path below it,
    or the number in its name
    also: Add the files of another directory to those of PATH, for nodes that wrote to local disks
    shards: Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm
    salvage: Open what is whole of a single torch.save or safetensors file that was cut short, and report what is lost
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)

    on_progress: called with the bytes that are done and the bytes of all, at most ten times a second, from any thread. progress: draw a
    bar: on a terminal, and in a notebook where tqdm is installed."""
    return _report("diff", [("a", a), ("b", b)], {"map": map, "inverse": inverse, "dequantize": dequantize, "values": values, "atol": atol,
        "rtol": rtol, "layout": layout, "canonical": canonical, "modules": modules, "rule": rule, "baseline": baseline,
        "allow_expansion": allow_expansion, "part": part, "step": step, "also": also, "shards": shards, "salvage": salvage,
        "threads": threads, "io_depth": io_depth}, format, on_progress, progress)


def validate(path: CheckpointOrPath | Sequence[StrPath], deep: bool = False, layout: Document | None = None, *,
             against: Against | None = None, prefix: str | None = None, exclude: str | Sequence[str] = (), allow: str | None = None,
             rule: str | Sequence[str] = (), baseline: Document | None = None, part: str | None = None, step: str | int | None = None,
             also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), shards: Document | None = None, salvage: bool = False,
             threads: int | None = None, io_depth: int | None = None, on_progress: Callable[[int, int], Any] | None = None,
             progress: bool = False) -> dict[str, Any]:
    """Find what is wrong: holes, overlaps, missing files, damaged bytes, drift from a layout. Return what `tessera validate` prints as
    JSON, as a dict.

    deep: Read every byte: check structure, checksums, dtypes, shapes and replicas, and count NaN values
    layout: Check against a file that `tessera layout` wrote; with deep, check its hashes too
    against: Check that it would load: compare names, dtypes and shapes with a checkpoint, a module tree, an index file, or a list of names,
    one per line
    prefix: With against: use only names with this prefix, such as model., and strip it
    exclude: Leave out names that match, of path and of what it is checked against
    allow: Allow these differences: missing,extra,dtype,shape,chunks,value
    rule: Report a rule as error, warning or note, or turn it off; ID may end in * (the last match wins)
    baseline: Leave out findings that an earlier json document lists with the same rule, file and name
    part: Open only this part of a checkpoint that is made of parts (inspect lists them)
    step: Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path below it,
    or the number in its name
    also: Add the files of another directory to those of path, for nodes that wrote to local disks
    shards: Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm
    salvage: Open what is whole of a single torch.save or safetensors file that was cut short, and report what is lost
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)

    on_progress: called with the bytes that are done and the bytes of all, at most ten times a second, from any thread. progress: draw a
    bar: on a terminal, and in a notebook where tqdm is installed."""
    return _document("validate", [("path", path)], {"deep": deep, "layout": layout, "against": against, "prefix": prefix,
        "exclude": exclude, "allow": allow, "rule": rule, "baseline": baseline, "part": part, "step": step, "also": also, "shards": shards,
        "salvage": salvage, "threads": threads, "io_depth": io_depth}, on_progress, progress)


def check(path: CheckpointOrPath | Sequence[StrPath], *, deep: bool = False, layout: Document | None = None, against: Against | None = None,
          prefix: str | None = None, exclude: str | Sequence[str] = (), allow: str | None = None, rule: str | Sequence[str] = (),
          baseline: Document | None = None, part: str | None = None, step: str | int | None = None,
          also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), shards: Document | None = None, salvage: bool = False,
          threads: int | None = None, io_depth: int | None = None, on_progress: Callable[[int, int], Any] | None = None,
          progress: bool = False) -> list[Finding]:
    """Return the findings of `validate`, which has the same options, as a list of Finding. It is empty if nothing was found.

    deep: Read every byte: check structure, checksums, dtypes, shapes and replicas, and count NaN values
    layout: Check against a file that `tessera layout` wrote; with deep, check its hashes too
    against: Check that it would load: compare names, dtypes and shapes with a checkpoint, a module tree, an index file, or a list of names,
    one per line
    prefix: With against: use only names with this prefix, such as model., and strip it
    exclude: Leave out names that match, of path and of what it is checked against
    allow: Allow these differences: missing,extra,dtype,shape,chunks,value
    rule: Report a rule as error, warning or note, or turn it off; ID may end in * (the last match wins)
    baseline: Leave out findings that an earlier json document lists with the same rule, file and name
    part: Open only this part of a checkpoint that is made of parts (inspect lists them)
    step: Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path below it,
    or the number in its name
    also: Add the files of another directory to those of path, for nodes that wrote to local disks
    shards: Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm
    salvage: Open what is whole of a single torch.save or safetensors file that was cut short, and report what is lost
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)

    on_progress: called with the bytes that are done and the bytes of all, at most ten times a second, from any thread. progress: draw a
    bar: on a terminal, and in a notebook where tqdm is installed."""
    return _findings("validate", [("path", path)], {"deep": deep, "layout": layout, "against": against, "prefix": prefix,
        "exclude": exclude, "allow": allow, "rule": rule, "baseline": baseline, "part": part, "step": step, "also": also, "shards": shards,
        "salvage": salvage, "threads": threads, "io_depth": io_depth}, on_progress, progress)


def report(path: CheckpointOrPath | Sequence[StrPath], format: Format, *, deep: bool = False, layout: Document | None = None,
           against: Against | None = None, prefix: str | None = None, exclude: str | Sequence[str] = (), allow: str | None = None,
           rule: str | Sequence[str] = (), baseline: Document | None = None, part: str | None = None, step: str | int | None = None,
           also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), shards: Document | None = None, salvage: bool = False,
           threads: int | None = None, io_depth: int | None = None, on_progress: Callable[[int, int], Any] | None = None,
           progress: bool = False) -> str:
    """Return what `tessera validate --format FORMAT` prints: "sarif", "junit", "github" or "gitlab" for CI systems, or "json".

    deep: Read every byte: check structure, checksums, dtypes, shapes and replicas, and count NaN values
    layout: Check against a file that `tessera layout` wrote; with deep, check its hashes too
    against: Check that it would load: compare names, dtypes and shapes with a checkpoint, a module tree, an index file, or a list of names,
    one per line
    prefix: With against: use only names with this prefix, such as model., and strip it
    exclude: Leave out names that match, of path and of what it is checked against
    allow: Allow these differences: missing,extra,dtype,shape,chunks,value
    rule: Report a rule as error, warning or note, or turn it off; ID may end in * (the last match wins)
    baseline: Leave out findings that an earlier json document lists with the same rule, file and name
    part: Open only this part of a checkpoint that is made of parts (inspect lists them)
    step: Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path below it,
    or the number in its name
    also: Add the files of another directory to those of path, for nodes that wrote to local disks
    shards: Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm
    salvage: Open what is whole of a single torch.save or safetensors file that was cut short, and report what is lost
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)

    on_progress: called with the bytes that are done and the bytes of all, at most ten times a second, from any thread. progress: draw a
    bar: on a terminal, and in a notebook where tqdm is installed."""
    return _report("validate", [("path", path)], {"deep": deep, "layout": layout, "against": against, "prefix": prefix, "exclude": exclude,
        "allow": allow, "rule": rule, "baseline": baseline, "part": part, "step": step, "also": also, "shards": shards, "salvage": salvage,
        "threads": threads, "io_depth": io_depth}, format, on_progress, progress)


def latest(run: StrPath, *, deep: bool = False, threads: int | None = None, io_depth: int | None = None) -> dict[str, Any]:
    """Find the newest checkpoint of a run that would load, to resume from. Return what `tessera latest` prints as JSON, as a dict.

    deep: Read every byte of the checkpoints, as `validate --deep` does
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)"""
    return _document("latest", [("run", run)], {"deep": deep, "threads": threads, "io_depth": io_depth})


def prune(run: StrPath, *, keep: int | None = None, keep_every: int | None = None, deep: bool = False, whole_directory: bool = False,
          dry_run: bool = False, threads: int | None = None, io_depth: int | None = None) -> dict[str, Any]:
    """Remove old checkpoints of a run, and keep the newest that would load. Return what `tessera prune` prints as JSON, as a dict.

    keep: Keep the N newest checkpoints without errors (required)
    keep_every: Keep each checkpoint without errors whose step is a multiple of STEPS, too
    deep: Read every byte to decide which checkpoints are without errors
    whole_directory: Remove a checkpoint's directory with all other files in it, unless it holds another checkpoint or a mount
    dry_run: Show what would be removed, but remove nothing
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)"""
    return _document("prune", [("run", run)], {"keep": keep, "keep_every": keep_every, "deep": deep, "whole_directory": whole_directory,
        "dry_run": dry_run, "threads": threads, "io_depth": io_depth})


def explain(rule: str | None = None, *, threads: int | None = None, io_depth: int | None = None) -> dict[str, Any]:
    """Explain a rule of validate or diff. Return what `tessera explain` prints as JSON, as a dict.

    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)"""
    return _document("explain", [("rule", rule)], {"threads": threads, "io_depth": io_depth})


def layout(path: CheckpointOrPath, *, no_chunks: bool = False, hash: Literal["sha256", "xxh3"] | None = None,
           include: str | Sequence[str] = (), exclude: str | Sequence[str] = (), allow_expansion: bool = False, part: str | None = None,
           step: str | int | None = None, also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), shards: Document | None = None,
           salvage: bool = False, threads: int | None = None, io_depth: int | None = None,
           on_progress: Callable[[int, int], Any] | None = None, progress: bool = False) -> dict[str, Any]:
    """Write a layout file for CI to check later checkpoints against. Return what `tessera layout` prints as JSON, as a dict.

    no_chunks: Leave out the chunks: record only names, dtypes and shapes
    hash: Add a digest of each entry's values (reads every byte)
    include: Use only names that match: * within a component, ** across components, ?, [...]
    exclude: Leave out names that match; overrides include
    allow_expansion: Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB
    part: Open only this part of a checkpoint that is made of parts (inspect lists them)
    step: Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path below it,
    or the number in its name
    also: Add the files of another directory to those of path, for nodes that wrote to local disks
    shards: Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm
    salvage: Open what is whole of a single torch.save or safetensors file that was cut short, and report what is lost
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)

    on_progress: called with the bytes that are done and the bytes of all, at most ten times a second, from any thread. progress: draw a
    bar: on a terminal, and in a notebook where tqdm is installed."""
    return _document("layout", [("path", path)], {"no_chunks": no_chunks, "hash": hash, "include": include, "exclude": exclude,
        "allow_expansion": allow_expansion, "part": part, "step": step, "also": also, "shards": shards, "salvage": salvage,
        "threads": threads, "io_depth": io_depth}, on_progress, progress)


def manifest(path: CheckpointOrPath, *, hash: Literal["sha256", "xxh3"] | None = None, include: str | Sequence[str] = (),
             exclude: str | Sequence[str] = (), canonical: bool = False, modules: Document | None = None, map: Document | None = None,
             inverse: bool = False, dequantize: bool = False, allow_expansion: bool = False, part: str | None = None,
             step: str | int | None = None, also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), shards: Document | None = None,
             salvage: bool = False, threads: int | None = None, io_depth: int | None = None,
             on_progress: Callable[[int, int], Any] | None = None, progress: bool = False) -> dict[str, Any]:
    """Write checksums of all values that are the same for any sharding and format. Return what `tessera manifest` prints as JSON, as a
    dict.

    hash: Use this digest algorithm (default: xxh3)
    include: Use only names that match: * within a component, ** across components, ?, [...]
    exclude: Leave out names that match; overrides include
    canonical: Remove wrapper prefixes (module, _orig_mod, …) from all names first, also in optimizer state; all other options mean the
    resulting names
    modules: With canonical: take the model's names from a tessera.modules/1 document, not from the text of the names alone
    map: Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map
    inverse: With map: apply the map backwards
    dequantize: Turn quantized numbers into weights, in the dtype of config.json, or bfloat16
    allow_expansion: Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB
    part: Open only this part of a checkpoint that is made of parts (inspect lists them)
    step: Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path below it,
    or the number in its name
    also: Add the files of another directory to those of path, for nodes that wrote to local disks
    shards: Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm
    salvage: Open what is whole of a single torch.save or safetensors file that was cut short, and report what is lost
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)

    on_progress: called with the bytes that are done and the bytes of all, at most ten times a second, from any thread. progress: draw a
    bar: on a terminal, and in a notebook where tqdm is installed."""
    return _document("manifest", [("path", path)], {"hash": hash, "include": include, "exclude": exclude, "canonical": canonical,
        "modules": modules, "map": map, "inverse": inverse, "dequantize": dequantize, "allow_expansion": allow_expansion, "part": part,
        "step": step, "also": also, "shards": shards, "salvage": salvage, "threads": threads, "io_depth": io_depth}, on_progress, progress)


def verify(path: CheckpointOrPath, manifest: Document, *, allow: str | None = None, map: Document | None = None, inverse: bool = False,
           dequantize: bool = False, allow_expansion: bool = False, part: str | None = None, step: str | int | None = None,
           also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), shards: Document | None = None, salvage: bool = False,
           threads: int | None = None, io_depth: int | None = None, on_progress: Callable[[int, int], Any] | None = None,
           progress: bool = False) -> dict[str, Any]:
    """Check all values against a manifest, whatever the sharding and format. Return what `tessera verify` prints as JSON, as a dict.

    manifest: what `manifest` returned: a dict, its text, or the path of a file
    allow: Allow these differences: missing,extra,dtype,shape,chunks,value
    map: Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map
    inverse: With map: apply the map backwards
    dequantize: Turn quantized numbers into weights, in the dtype of config.json, or bfloat16
    allow_expansion: Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB
    part: Open only this part of a checkpoint that is made of parts (inspect lists them)
    step: Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path below it,
    or the number in its name
    also: Add the files of another directory to those of path, for nodes that wrote to local disks
    shards: Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm
    salvage: Open what is whole of a single torch.save or safetensors file that was cut short, and report what is lost
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)

    on_progress: called with the bytes that are done and the bytes of all, at most ten times a second, from any thread. progress: draw a
    bar: on a terminal, and in a notebook where tqdm is installed."""
    return _document("verify", [("path", path), ("manifest", manifest)], {"allow": allow, "map": map, "inverse": inverse,
        "dequantize": dequantize, "allow_expansion": allow_expansion, "part": part, "step": step, "also": also, "shards": shards,
        "salvage": salvage, "threads": threads, "io_depth": io_depth}, on_progress, progress)


def convert(path: CheckpointOrPath, dest: StrPath, *,
            to: Literal["safetensors", "torch", "dcp", "megatron-dist", "deepspeed-universal", "ranks"] | None = None,
            world_size: int | None = None, canonical: bool = False, modules: Document | None = None, prefix: str | None = None,
            rename: str | Sequence[str] = (), flat_params: Document | None = None, max_shard_size: int | str | None = None,
            against: Against | None = None, map: Document | None = None, inverse: bool = False, dequantize: bool = False,
            quantize: Literal["fp8-block"] | None = None, no_quantize: str | Sequence[str] = (), config: bool = False,
            lora: CheckpointOrPath | None = None, include: str | Sequence[str] = (), exclude: str | Sequence[str] = (),
            dtype: str | None = None, for_torch: str | None = None, raw_cast: bool = False,
            objects: Literal["keep", "drop", "sidecar", "refuse"] | None = None, max_mem: int | str | None = None, ignore_crc: bool = False,
            no_checksums: bool = False, overwrite: bool = False, resume: bool = False, discard_parts: bool = False, no_verify: bool = False,
            dry_run: bool = False, allow_expansion: bool = False, part: str | None = None, step: str | int | None = None,
            also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), shards: Document | None = None, salvage: bool = False,
            threads: int | None = None, io_depth: int | None = None, on_progress: Callable[[int, int], Any] | None = None,
            progress: bool = False) -> dict[str, Any]:
    """Convert a checkpoint to another format, to other names, or to another dtype. Return what `tessera convert` prints as JSON, as a dict.

    to: Write this format; ranks: one file per rank, cut by shards (default: inferred from the extension of dest, or safetensors with
    max_shard_size)
    world_size: With to ranks: write files for N ranks, those of all pipeline stages together
    canonical: Remove wrapper prefixes (module, _orig_mod, …) from all names first, also in optimizer state; all other options mean the
    resulting names
    modules: With canonical: take the model's names from a tessera.modules/1 document, not from the text of the names alone
    prefix: Use only names with this prefix, such as model., and strip it, after canonical; all other options mean the resulting names
    rename: Rename: a literal prefix, or one * on each side (each applies to the result of those before it)
    flat_params: Cut the flat parameters of FSDP1's LOCAL_STATE_DICT into the model's parameters, as a tessera.flat-params/1 document states
    max_shard_size: Write a directory of safetensors files of at most SIZE, with an index
    against: Refuse to write what would not load: compare names, dtypes and shapes with a checkpoint, a module tree, an index file, or a
    list of names, one per line
    map: Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map
    inverse: With map: apply the map backwards
    dequantize: Turn quantized numbers into weights, in dtype; without it, in the dtype of config.json, or bfloat16
    quantize: Write linear weights as float8_e4m3fn in blocks of 128 x 128, with NAME.weight_scale_inv, as transformers does
    no_quantize: With quantize: also leave weights that match as they are; embeddings, norms, output layers and routers are never quantized
    config: Copy config.json next to the output, with what the conversion changes: quantization_config, the dtype, and the vocabulary and
    tied embeddings of an adapter; a dest that ends in / then is safetensors
    lora: Fold a LoRA adapter of PEFT into path, as its merge_and_unload does
    include: Use only names that match: * within a component, ** across components, ?, [...]
    exclude: Leave out names that match; overrides include
    dtype: Cast floating-point tensors, rounding correctly
    for_torch: Write what this version of PyTorch loads, 2.3 to 2.15 (default: 2.4, or the oldest that can)
    raw_cast: Let dtype cast quantized numbers and their scales as stored, without applying the scales
    objects: Treat non-tensor objects this way; sidecar writes JSON (default: keep for torch and dcp, refuse for safetensors)
    max_mem: Limit the memory for buffers (default: 16MiB, or 4MiB per thread if that is more)
    ignore_crc: Accept tensors whose bytes do not match the source's CRC-32
    no_checksums: Write no checksums: leave out tessera.crc32 in safetensors files, and zeros for the CRC-32s in torch files and DCP
    overwrite: Replace the checkpoint at dest once the new one is complete; keep files that it does not list
    resume: Continue an interrupted run of the same job, or succeed if dest is what it has written; keep finished work if this run fails
    discard_parts: Remove what unfinished shares of another plan (exec share) left at dest
    no_verify: With resume: do not check again what the interrupted run wrote
    dry_run: Report what would be written, but write nothing
    allow_expansion: Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB
    part: Open only this part of a checkpoint that is made of parts (inspect lists them)
    step: Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path below it,
    or the number in its name
    also: Add the files of another directory to those of path, for nodes that wrote to local disks
    shards: Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm
    salvage: Open what is whole of a single torch.save or safetensors file that was cut short, and report what is lost
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)

    on_progress: called with the bytes that are done and the bytes of all, at most ten times a second, from any thread. progress: draw a
    bar: on a terminal, and in a notebook where tqdm is installed."""
    return _document("convert", [("path", path), ("dest", dest)], {"to": to, "world_size": world_size, "canonical": canonical,
        "modules": modules, "prefix": prefix, "rename": rename, "flat_params": flat_params, "max_shard_size": max_shard_size,
        "against": against, "map": map, "inverse": inverse, "dequantize": dequantize, "quantize": quantize, "no_quantize": no_quantize,
        "config": config, "lora": lora, "include": include, "exclude": exclude, "dtype": dtype, "for_torch": for_torch,
        "raw_cast": raw_cast, "objects": objects, "max_mem": max_mem, "ignore_crc": ignore_crc, "no_checksums": no_checksums,
        "overwrite": overwrite, "resume": resume, "discard_parts": discard_parts, "no_verify": no_verify, "dry_run": dry_run,
        "allow_expansion": allow_expansion, "part": part, "step": step, "also": also, "shards": shards, "salvage": salvage,
        "threads": threads, "io_depth": io_depth}, on_progress, progress)


def merge(out: StrPath, *paths: CheckpointOrPath, method: Literal["linear", "slerp", "task-arithmetic"] | None = None,
          weight: float | str | Sequence[float | str] = (), no_normalize: bool = False, base: CheckpointOrPath | None = None,
          t: float | None = None, to: Literal["safetensors", "torch", "dcp", "megatron-dist", "deepspeed-universal"] | None = None,
          max_shard_size: int | str | None = None, dequantize: bool = False, quantize: Literal["fp8-block"] | None = None,
          no_quantize: str | Sequence[str] = (), lora: CheckpointOrPath | None = None, include: str | Sequence[str] = (),
          exclude: str | Sequence[str] = (), dtype: str | None = None, for_torch: str | None = None, raw_cast: bool = False,
          objects: Literal["keep", "drop", "sidecar", "refuse"] | None = None, max_mem: int | str | None = None, ignore_crc: bool = False,
          no_checksums: bool = False, overwrite: bool = False, resume: bool = False, discard_parts: bool = False, no_verify: bool = False,
          dry_run: bool = False, allow_expansion: bool = False, part: str | None = None, step: str | int | None = None,
          also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), shards: Document | None = None, salvage: bool = False,
          threads: int | None = None, io_depth: int | None = None, on_progress: Callable[[int, int], Any] | None = None,
          progress: bool = False) -> dict[str, Any]:
    """Merge checkpoints of one model into a weighted sum. Return what `tessera merge` prints as JSON, as a dict.

    method: Add weighted tensors; follow the arc between two; or add to base the weighted differences from it
    weight: The weight of the next checkpoint, in their order (default: 1 each)
    no_normalize: With method linear: do not divide by the sum of the weights
    base: With method task-arithmetic: the checkpoint that the others were trained from
    t: With method slerp: where on the arc, from 0 for the first checkpoint to 1 for the second
    to: Write this format (default: inferred from the extension of out, or safetensors with max_shard_size)
    max_shard_size: Write a directory of safetensors files of at most SIZE, with an index
    dequantize: Turn quantized numbers into weights, in dtype; without it, in the dtype of config.json, or bfloat16
    quantize: Write linear weights as float8_e4m3fn in blocks of 128 x 128, with NAME.weight_scale_inv, as transformers does
    no_quantize: With quantize: also leave weights that match as they are; embeddings, norms, output layers and routers are never quantized
    lora: Fold a LoRA adapter of PEFT into A, as its merge_and_unload does
    include: Use only names that match: * within a component, ** across components, ?, [...]
    exclude: Leave out names that match; overrides include
    dtype: Cast floating-point tensors, rounding correctly
    for_torch: Write what this version of PyTorch loads, 2.3 to 2.15 (default: 2.4, or the oldest that can)
    raw_cast: Let dtype cast quantized numbers and their scales as stored, without applying the scales
    objects: Treat non-tensor objects this way; sidecar writes JSON (default: keep for torch and dcp, refuse for safetensors)
    max_mem: Limit the memory for buffers (default: 16MiB, or 4MiB per thread if that is more)
    ignore_crc: Accept tensors whose bytes do not match the source's CRC-32
    no_checksums: Write no checksums: leave out tessera.crc32 in safetensors files, and zeros for the CRC-32s in torch files and DCP
    overwrite: Replace the checkpoint at DEST once the new one is complete; keep files that it does not list
    resume: Continue an interrupted run of the same job, or succeed if DEST is what it has written; keep finished work if this run fails
    discard_parts: Remove what unfinished shares of another plan (exec share) left at DEST
    no_verify: With resume: do not check again what the interrupted run wrote
    dry_run: Report what would be written, but write nothing
    allow_expansion: Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB
    part: Open only this part of a checkpoint that is made of parts (inspect lists them)
    step: Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path below it,
    or the number in its name
    also: Add the files of another directory to those of PATH, for nodes that wrote to local disks
    shards: Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm
    salvage: Open what is whole of a single torch.save or safetensors file that was cut short, and report what is lost
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)

    on_progress: called with the bytes that are done and the bytes of all, at most ten times a second, from any thread. progress: draw a
    bar: on a terminal, and in a notebook where tqdm is installed."""
    return _document("merge", [("out", out), *(("paths", one) for one in paths)], {"method": method, "weight": weight,
        "no_normalize": no_normalize, "base": base, "t": t, "to": to, "max_shard_size": max_shard_size, "dequantize": dequantize,
        "quantize": quantize, "no_quantize": no_quantize, "lora": lora, "include": include, "exclude": exclude, "dtype": dtype,
        "for_torch": for_torch, "raw_cast": raw_cast, "objects": objects, "max_mem": max_mem, "ignore_crc": ignore_crc,
        "no_checksums": no_checksums, "overwrite": overwrite, "resume": resume, "discard_parts": discard_parts, "no_verify": no_verify,
        "dry_run": dry_run, "allow_expansion": allow_expansion, "part": part, "step": step, "also": also, "shards": shards,
        "salvage": salvage, "threads": threads, "io_depth": io_depth}, on_progress, progress)


def plan(path: CheckpointOrPath, *, target: Document | None = None, mesh: str | None = None, placements: str | None = None,
         map: Document | None = None, inverse: bool = False, dequantize: bool = False, quantize: Literal["fp8-block"] | None = None,
         no_quantize: str | Sequence[str] = (), canonical: bool = False, modules: Document | None = None, prefix: str | None = None,
         lora: CheckpointOrPath | None = None, include: str | Sequence[str] = (), exclude: str | Sequence[str] = (),
         rename: str | Sequence[str] = (), flat_params: Document | None = None,
         to: Literal["safetensors", "torch", "dcp", "megatron-dist", "deepspeed-universal", "ranks"] | None = None, config: bool = False,
         max_shard_size: int | str | None = None, objects: Literal["keep", "drop", "sidecar", "refuse"] | None = None,
         dtype: str | None = None, for_torch: str | None = None, raw_cast: bool = False, no_checksums: bool = False,
         storage: Document | None = None, world_size: int | None = None, items: bool = False, part: str | None = None,
         step: str | int | None = None, also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), shards: Document | None = None,
         salvage: bool = False, threads: int | None = None, io_depth: int | None = None) -> dict[str, Any]:
    """Preview a reshard, or a conversion, and write the plan that exec carries out. Return what `tessera plan` prints as JSON, as a dict.

    target: Read mesh and placements from a tessera.target/1 document
    mesh: Use this device mesh, such as dp=4,tp=2
    placements: Place every tensor this way, with one placement per mesh dimension: shard(0),replicate
    map: Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map
    inverse: With map: apply the map backwards
    dequantize: Turn quantized numbers into weights, in dtype; without it, in the dtype of config.json, or bfloat16
    quantize: Write linear weights as float8_e4m3fn in blocks of 128 x 128, with NAME.weight_scale_inv, as transformers does
    no_quantize: With quantize: also leave weights that match as they are; embeddings, norms, output layers and routers are never quantized
    canonical: Remove wrapper prefixes (module, _orig_mod, …) from all names first, also in optimizer state; all other options mean the
    resulting names
    modules: With canonical: take the model's names from a tessera.modules/1 document, not from the text of the names alone
    prefix: Use only names with this prefix, such as model., and strip it, after canonical; all other options mean the resulting names
    lora: Fold a LoRA adapter of PEFT into path, as its merge_and_unload does
    include: Use only names that match: * within a component, ** across components, ?, [...]
    exclude: Leave out names that match; overrides include
    rename: Rename: a literal prefix, or one * on each side (each applies to the result of those before it)
    flat_params: Cut the flat parameters of FSDP1's LOCAL_STATE_DICT into the model's parameters, as a tessera.flat-params/1 document states
    to: Let exec write this format (default: as reshard and convert)
    config: Copy config.json next to the output, with what the conversion changes: quantization_config, the dtype, and the vocabulary and
    tied embeddings of an adapter; a DEST that ends in / then is safetensors
    max_shard_size: Write a directory of safetensors files of at most SIZE, with an index
    objects: Let exec treat non-tensor objects this way
    dtype: Let exec cast floating-point tensors
    for_torch: Write what this version of PyTorch loads, 2.3 to 2.15 (default: 2.4, or the oldest that can)
    raw_cast: Let dtype cast quantized numbers and their scales as stored, without applying the scales
    no_checksums: Write no checksums: leave out tessera.crc32 in safetensors files, and zeros for the CRC-32s in torch files and DCP
    storage: Show the load of each server of this tessera.storage/1 document, and order reads and shares by server
    world_size: With to ranks: write files for N ranks, those of all pipeline stages together
    items: Print the document with every read of every rank
    part: Open only this part of a checkpoint that is made of parts (inspect lists them)
    step: Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path below it,
    or the number in its name
    also: Add the files of another directory to those of path, for nodes that wrote to local disks
    shards: Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm
    salvage: Open what is whole of a single torch.save or safetensors file that was cut short, and report what is lost
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)"""
    return _document("plan", [("path", path)], {"target": target, "mesh": mesh, "placements": placements, "map": map, "inverse": inverse,
        "dequantize": dequantize, "quantize": quantize, "no_quantize": no_quantize, "canonical": canonical, "modules": modules,
        "prefix": prefix, "lora": lora, "include": include, "exclude": exclude, "rename": rename, "flat_params": flat_params, "to": to,
        "config": config, "max_shard_size": max_shard_size, "objects": objects, "dtype": dtype, "for_torch": for_torch,
        "raw_cast": raw_cast, "no_checksums": no_checksums, "storage": storage, "world_size": world_size, "items": items, "part": part,
        "step": step, "also": also, "shards": shards, "salvage": salvage, "threads": threads, "io_depth": io_depth})


def reshard(path: CheckpointOrPath, dest: StrPath, *, target: Document | None = None, mesh: str | None = None,
            placements: str | None = None, to: Literal["safetensors", "torch", "dcp", "megatron-dist"] | None = None,
            storage: Document | None = None, canonical: bool = False, modules: Document | None = None, map: Document | None = None,
            inverse: bool = False, dequantize: bool = False, quantize: Literal["fp8-block"] | None = None,
            no_quantize: str | Sequence[str] = (), include: str | Sequence[str] = (), exclude: str | Sequence[str] = (),
            dtype: str | None = None, for_torch: str | None = None, raw_cast: bool = False,
            objects: Literal["keep", "drop", "sidecar", "refuse"] | None = None, max_mem: int | str | None = None, ignore_crc: bool = False,
            no_checksums: bool = False, overwrite: bool = False, resume: bool = False, discard_parts: bool = False, no_verify: bool = False,
            dry_run: bool = False, allow_expansion: bool = False, part: str | None = None, step: str | int | None = None,
            also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), shards: Document | None = None, salvage: bool = False,
            threads: int | None = None, io_depth: int | None = None, on_progress: Callable[[int, int], Any] | None = None,
            progress: bool = False) -> dict[str, Any]:
    """Reshard a checkpoint for a different device mesh. Return what `tessera reshard` prints as JSON, as a dict.

    target: Read mesh and placements from a tessera.target/1 document
    mesh: Use this device mesh, such as dp=4,tp=2
    placements: Place every tensor this way, with one placement per mesh dimension: shard(0),replicate
    to: Write this format (default: the source's format)
    storage: Spread the processes of mpirun over the file servers of this tessera.storage/1 document
    canonical: Remove wrapper prefixes (module, _orig_mod, …) from all names first, also in optimizer state; all other options mean the
    resulting names
    modules: With canonical: take the model's names from a tessera.modules/1 document, not from the text of the names alone
    map: Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map
    inverse: With map: apply the map backwards
    dequantize: Turn quantized numbers into weights, in dtype; without it, in the dtype of config.json, or bfloat16
    quantize: Write linear weights as float8_e4m3fn in blocks of 128 x 128, with NAME.weight_scale_inv, as transformers does
    no_quantize: With quantize: also leave weights that match as they are; embeddings, norms, output layers and routers are never quantized
    include: Use only names that match: * within a component, ** across components, ?, [...]
    exclude: Leave out names that match; overrides include
    dtype: Cast floating-point tensors, rounding correctly
    for_torch: Write what this version of PyTorch loads, 2.3 to 2.15 (default: 2.4, or the oldest that can)
    raw_cast: Let dtype cast quantized numbers and their scales as stored, without applying the scales
    objects: Treat non-tensor objects this way; sidecar writes JSON (default: keep for torch and dcp, refuse for safetensors)
    max_mem: Limit the memory for buffers (default: 16MiB, or 4MiB per thread if that is more)
    ignore_crc: Accept tensors whose bytes do not match the source's CRC-32
    no_checksums: Write no checksums: leave out tessera.crc32 in safetensors files, and zeros for the CRC-32s in torch files and DCP
    overwrite: Replace the checkpoint at dest once the new one is complete; keep files that it does not list
    resume: Continue an interrupted run of the same job, or succeed if dest is what it has written; keep finished work if this run fails
    discard_parts: Remove what unfinished shares of another plan (exec share) left at dest
    no_verify: With resume: do not check again what the interrupted run wrote
    dry_run: Report what would be written, but write nothing
    allow_expansion: Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB
    part: Open only this part of a checkpoint that is made of parts (inspect lists them)
    step: Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path below it,
    or the number in its name
    also: Add the files of another directory to those of path, for nodes that wrote to local disks
    shards: Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm
    salvage: Open what is whole of a single torch.save or safetensors file that was cut short, and report what is lost
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)

    on_progress: called with the bytes that are done and the bytes of all, at most ten times a second, from any thread. progress: draw a
    bar: on a terminal, and in a notebook where tqdm is installed."""
    return _document("reshard", [("path", path), ("dest", dest)], {"target": target, "mesh": mesh, "placements": placements, "to": to,
        "storage": storage, "canonical": canonical, "modules": modules, "map": map, "inverse": inverse, "dequantize": dequantize,
        "quantize": quantize, "no_quantize": no_quantize, "include": include, "exclude": exclude, "dtype": dtype, "for_torch": for_torch,
        "raw_cast": raw_cast, "objects": objects, "max_mem": max_mem, "ignore_crc": ignore_crc, "no_checksums": no_checksums,
        "overwrite": overwrite, "resume": resume, "discard_parts": discard_parts, "no_verify": no_verify, "dry_run": dry_run,
        "allow_expansion": allow_expansion, "part": part, "step": step, "also": also, "shards": shards, "salvage": salvage,
        "threads": threads, "io_depth": io_depth}, on_progress, progress)


def exec(plan: Document, dest: StrPath, *, share: str | None = None, part: str | None = None, finish: bool = False,
         source: StrPath | None = None, also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), max_mem: int | str | None = None,
         ignore_crc: bool = False, no_checksums: bool = False, overwrite: bool = False, resume: bool = False, discard_parts: bool = False,
         no_verify: bool = False, dry_run: bool = False, allow_expansion: bool = False, shards: Document | None = None,
         threads: int | None = None, io_depth: int | None = None, on_progress: Callable[[int, int], Any] | None = None,
         progress: bool = False) -> dict[str, Any]:
    """Carry out a plan, as a whole or in shares, without MPI. Return what `tessera exec` prints as JSON, as a dict.

    plan: what `plan` returned: a dict, its text, or the path of a file
    share: Write only this share of the bytes, from 1/N to N/N, in any order and on any machine
    part: An older name of share
    finish: Check that all shares are written, and publish the checkpoint
    source: Read the plan's source from here: it has moved, or its URL needs a fresh signature
    also: Add the files of another directory to those of PATH, for nodes that wrote to local disks
    max_mem: Limit the memory for buffers (default: 16MiB, or 4MiB per thread if that is more)
    ignore_crc: Accept tensors whose bytes do not match the source's CRC-32
    no_checksums: Write no checksums: leave out tessera.crc32 in safetensors files, and zeros for the CRC-32s in torch files and DCP
    overwrite: Replace the checkpoint at dest once the new one is complete; keep files that it does not list
    resume: Succeed if dest is what this plan has written; continue an interrupted upload (on a disk, exec always continues)
    discard_parts: Remove what unfinished shares of another plan (exec share) left at dest
    no_verify: Do not check again what other shares and earlier runs wrote
    dry_run: Check the plan against its source and decide everything, but write nothing
    allow_expansion: Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB
    shards: Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)

    on_progress: called with the bytes that are done and the bytes of all, at most ten times a second, from any thread. progress: draw a
    bar: on a terminal, and in a notebook where tqdm is installed."""
    return _document("exec", [("plan", plan), ("dest", dest)], {"share": share, "part": part, "finish": finish, "source": source,
        "also": also, "max_mem": max_mem, "ignore_crc": ignore_crc, "no_checksums": no_checksums, "overwrite": overwrite, "resume": resume,
        "discard_parts": discard_parts, "no_verify": no_verify, "dry_run": dry_run, "allow_expansion": allow_expansion, "shards": shards,
        "threads": threads, "io_depth": io_depth}, on_progress, progress)


def optim(what: Literal["flatten", "unflatten", "to-fqn", "to-id", "unshard", "shard"], path: CheckpointOrPath, dest: StrPath, *,
          to: Literal["torch", "dcp"] | None = None, modules: Document | None = None, flat_params: Document | None = None,
          world_size: int | None = None, sharded: bool = False, rank: int | None = None, at: str | None = None,
          max_mem: int | str | None = None, no_checksums: bool = False, overwrite: bool = False, resume: bool = False,
          allow_expansion: bool = False, part: str | None = None, step: str | int | None = None,
          also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), threads: int | None = None, io_depth: int | None = None,
          on_progress: Callable[[int, int], Any] | None = None, progress: bool = False) -> dict[str, Any]:
    """Convert optimizer state between its forms: names, ids, flat keys, FSDP1 shards. Return what `tessera optim` prints as JSON, as a
    dict.

    to: Write this format (default: torch)
    modules: Take names, frozen parameters and groups from a tessera.modules/1 document
    flat_params: Take FSDP1's flat parameters from a tessera.flat-params/1 document
    world_size: Write for N ranks (shard) (default: as many as FLAT.json has)
    sharded: Write one file per rank, with DTensors sharded by rows, instead of the full state (unshard)
    rank: Use the state of rank N where ranks differ in state that FSDP does not shard (unshard)
    at: Use the optimizer with this name, such as optimizer_states.0 (default: the only one that looks like an optimizer)
    max_mem: Limit the memory for buffers (default: 16MiB, or 4MiB per thread if that is more)
    no_checksums: Write zeros for the CRC-32s in torch files and DCP
    overwrite: Replace the checkpoint at dest; keep files that it does not list
    resume: Exit successfully if an earlier run has already written dest; an interrupted upload continues, other runs start over
    allow_expansion: Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB
    part: Open only this part of a checkpoint that is made of parts (inspect lists them)
    step: Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path below it,
    or the number in its name
    also: Add the files of another directory to those of path, for nodes that wrote to local disks
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)

    on_progress: called with the bytes that are done and the bytes of all, at most ten times a second, from any thread. progress: draw a
    bar: on a terminal, and in a notebook where tqdm is installed."""
    return _document("optim", [("what", what), ("path", path), ("dest", dest)], {"to": to, "modules": modules, "flat_params": flat_params,
        "world_size": world_size, "sharded": sharded, "rank": rank, "at": at, "max_mem": max_mem, "no_checksums": no_checksums,
        "overwrite": overwrite, "resume": resume, "allow_expansion": allow_expansion, "part": part, "step": step, "also": also,
        "threads": threads, "io_depth": io_depth}, on_progress, progress)


def copy(path: StrPath, dest: StrPath, *, overwrite: bool = False, resume: bool = False, no_verify: bool = False,
         threads: int | None = None, io_depth: int | None = None, on_progress: Callable[[int, int], Any] | None = None,
         progress: bool = False) -> dict[str, Any]:
    """Copy a checkpoint from one place to another, and read the copy back. Return what `tessera cp` prints as JSON, as a dict.

    overwrite: Replace the checkpoint at dest; keep files that neither it nor path has
    resume: Continue an interrupted copy: keep what it wrote if the digests agree; succeed if the copy is complete; keep finished work if
    this run fails
    no_verify: Do not read the copy back; without resume, file systems that can share blocks then share them
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)

    on_progress: called with the bytes that are done and the bytes of all, at most ten times a second, from any thread. progress: draw a
    bar: on a terminal, and in a notebook where tqdm is installed."""
    return _document("cp", [("path", path), ("dest", dest)], {"overwrite": overwrite, "resume": resume, "no_verify": no_verify,
        "threads": threads, "io_depth": io_depth}, on_progress, progress)


def repair(path: StrPath, file: StrPath, *, like: CheckpointOrPath | None = None, part: str | None = None, step: str | int | None = None,
           also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), threads: int | None = None,
           io_depth: int | None = None) -> dict[str, Any]:
    """Rebuild a lost or damaged .metadata, or write what is whole of a damaged safetensors or torch.save file. Return what `tessera repair`
    prints as JSON, as a dict.

    like: Take names and shards from a sound checkpoint of the same job, such as the previous step
    part: Rebuild that of this part, where each has its own: model or optimizer of accelerate's directories
    step: Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path below it,
    or the number in its name
    also: Add the files of another directory to those of path, for nodes that wrote to local disks
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)"""
    return _document("repair", [("path", path), ("file", file)], {"like": like, "part": part, "step": step, "also": also,
        "threads": threads, "io_depth": io_depth})


def fqn(modules: Document | None = None, *names: str, checkpoint: CheckpointOrPath | None = None, against: CheckpointOrPath | None = None,
        prefix: str | None = None, map: Document | None = None, inverse: bool = False, part: str | None = None,
        step: str | int | None = None, also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), shards: Document | None = None,
        salvage: bool = False, threads: int | None = None, io_depth: int | None = None) -> dict[str, Any]:
    """Canonicalize parameter names as PyTorch does, and explain every change. Return what `tessera fqn` prints as JSON, as a dict.

    modules: a tessera.modules/1 document: a dict, its text, or the path of a file
    checkpoint: Canonicalize the keys of a checkpoint by their text; with MODULES.json: suggest renames that fit the model
    against: Suggest renames that give checkpoint the names of this checkpoint
    prefix: With checkpoint: use only keys with this prefix, and strip it ("model.")
    map: Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map
    inverse: With map: apply the map backwards
    part: Open only this part of a checkpoint that is made of parts (inspect lists them)
    step: Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path below it,
    or the number in its name
    also: Add the files of another directory to those of PATH, for nodes that wrote to local disks
    shards: Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm
    salvage: Open what is whole of a single torch.save or safetensors file that was cut short, and report what is lost
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)"""
    return _document("fqn", [("modules", modules), *(("names", one) for one in names)], {"checkpoint": checkpoint, "against": against,
        "prefix": prefix, "map": map, "inverse": inverse, "part": part, "step": step, "also": also, "shards": shards, "salvage": salvage,
        "threads": threads, "io_depth": io_depth})


def map_list() -> dict[str, Any]:
    """List the built-in maps."""
    return _document("map", [("action", "list")], {})


def map_show(name: str) -> dict[str, Any]:
    """Return a built-in map, as a start for your own."""
    return _document("map", [("action", "show"), ("name", name)], {})


def map_suggest(a: CheckpointOrPath, b: CheckpointOrPath, *, values: bool = False, allow_expansion: bool = False, part: str | None = None,
                step: str | int | None = None, also: CheckpointOrPath | Sequence[CheckpointOrPath] = (), shards: Document | None = None,
                salvage: bool = False, threads: int | None = None, io_depth: int | None = None) -> dict[str, Any]:
    """Suggest the map that gives the first checkpoint the names and layouts of the second.

    values: With suggest: compare the values of all tensors that fit, bit for bit
    allow_expansion: Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB
    part: Open only this part of a checkpoint that is made of parts (inspect lists them)
    step: Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path below it,
    or the number in its name
    also: Add the files of another directory to those of PATH, for nodes that wrote to local disks
    shards: Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm
    salvage: Open what is whole of a single torch.save or safetensors file that was cut short, and report what is lost
    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)"""
    return _document("map", [("action", "suggest"), ("a", a), ("b", b)], {"values": values, "allow_expansion": allow_expansion,
        "part": part, "step": step, "also": also, "shards": shards, "salvage": salvage, "threads": threads, "io_depth": io_depth})


def doctor(directory: StrPath | None = None, *, threads: int | None = None, io_depth: int | None = None) -> dict[str, Any]:
    """Show what this build and this machine support. Return what `tessera doctor` prints as JSON, as a dict.

    threads: Use N threads, at most 256; more than there are cores help with slow files (default: one per available core)
    io_depth: Send up to N requests at once when reading from a server (default: 16)"""
    return _document("doctor", [("directory", directory)], {"threads": threads, "io_depth": io_depth})
