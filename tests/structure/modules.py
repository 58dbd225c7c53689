"""The modules of core, native and wasm, and which of them each may include. A new module or public header is named here."""
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]

FORMATS = [f"formats/{m}" for m in ("common", "pickle", "torch", "safetensors", "dcp", "parts", "directories", "deepspeed", "megatron", "shards",
                                    "recognize")]
# Module of core: the modules of core it may include (itself always).
CORE = {
    "base": set(),
    "io": {"base"},
    "codec": {"base", "io"},  # zip directories are read through io's store vtable
    "model": {"base"},
    "fqn": {"base", "model"},
    "layout": {"base", "model"},
    "plan": {"base", "model", "layout"},
    "optim": {"base", "io", "model", "fqn", "layout"},  # of io the comm vtable only, see PURE
    "formats/common": {"base", "io", "codec", "model", "layout"},
    "formats/pickle": {"base", "io", "codec", "model", "formats/common"},
    "formats/torch": {"base", "io", "codec", "model", "layout", "formats/common", "formats/pickle"},
    "formats/safetensors": {"base", "io", "codec", "model", "layout", "formats/common", "formats/torch"},
    "formats/dcp": {"base", "io", "codec", "model", "layout", *(f"formats/{m}" for m in ("common", "pickle", "torch", "safetensors"))},
    "formats/parts": {"base", "io", "codec", "model", "formats/common", "formats/torch"},
    "formats/directories": {"base", "io", "codec", "model", *(f"formats/{m}" for m in ("common", "torch", "dcp", "parts"))},
    "formats/deepspeed": {"base", "io", "codec", "model", "layout", *(f"formats/{m}" for m in ("common", "pickle", "torch"))},
    "formats/megatron": {"base", "io", "codec", "model", "layout", *(f"formats/{m}" for m in ("common", "torch", "dcp"))},
    "formats/shards": {"base", "io", "codec", "model", "layout", "fqn", *(f"formats/{m}" for m in ("common", "torch", "safetensors"))},
    "formats/recognize": {"base", "io", "codec", "model", "layout", *(f for f in FORMATS if f != "formats/recognize")},
    "stream": {"base", "io", "codec", "model", "layout", "optim", *FORMATS},
    "mapping": {"base", "io", "codec", "model", "layout", *FORMATS, "stream"},
    "check": {"base", "io", "codec", "model", "layout", *FORMATS, "stream"},
    "suggest": {"base", "io", "codec", "model", "layout", *FORMATS, "stream", "mapping", "check"},
    "merge": {"base", "io", "codec", "model", "layout", *FORMATS, "stream", "mapping", "check"},
    "write": {"base", "io", "codec", "model", "layout", *FORMATS, "stream"},
    "convert": {"base", "io", "codec", "model", "layout", "plan", *FORMATS, "stream", "write", "mapping"},
    "work": {"base", "io", "codec", "model", "layout", "plan", *FORMATS, "stream", "check", "write", "convert"},
    "documents": {"base", "io", "codec", "model", "layout", "plan", *FORMATS, "stream", "check", "write", "convert", "work", "fqn", "optim"},
    "commands": {"base", "codec", "layout", "plan", "check", "optim", "formats/common", "fqn", "mapping", "merge", "convert", "documents"},
    "optim_convert": {"base", "io", "model", "fqn", "layout", "optim", *FORMATS, "stream", "check", "write", "documents"},
}
# Module of core: its public headers.
HEADERS = {
    "base": "api version str status memory host containers findings json text finding_add host_calls options try little_endian",
    "io": "store output comm collectives",
    "model": "dtype torch_version value catalog modules stored_optimizers",
    "fqn": "glob fqn names",
    "layout": "box layout mesh validate diff",
    "plan": "target plan",
    "optim": "optim optim_load flat_params",
    "formats/common": "checkpoint end_sum",
    "formats/safetensors": "salvaged_file",
    "formats/dcp": "salvage dcp_item",
    "formats/torch": "loadable",
    "formats/shards": "shards shard_names",
    "formats/recognize": "latest",
    "stream": "read",
    "mapping": "mapping",
    "merge": "merge",
    "suggest": "map_suggest",
    "check": "check compare",
    "write": "write_tree",
    "convert": "convert casts",
    "work": "work",
    "documents": "document document_read",
    "commands": "commands",
    "optim_convert": "optim_convert optim_request",
}
MODULE_OF = {header: module for module, names in HEADERS.items() for header in names.split()}
# Module of core: public headers of modules below it that it may not include: names, layouts and optimizer state do no I/O.
FILES = {"store", "output"}
PURE = {"fqn": FILES, "optim": FILES, "layout": FILES, "plan": FILES}
# System header: the modules of core that may include it. Core makes no OS call.
SYSTEM = {"stdio.h": {"base"}, "unistd.h": set(), "fcntl.h": set(), "pthread.h": set(), "sys/stat.h": set(), "time.h": set()}

# Module of native or wasm: those of the same whose private headers it may include (itself always). All of them may include
# the public headers of core and native, and never a private header of core.
OUTSIDE = {
    "native/io": set(),
    "native/comm": set(),
    "native/object_store": {"native/io"},
    "native/object_output": {"native/io", "native/object_store"},
    "native/publish": {"native/io"},
    "native/live/tensor": {"native/io"},
    "native/live/transfer": {"native/io", "native/live/tensor"},
    "native/live/ops": {"native/live/tensor", "native/live/transfer"},
    "native/live/optim": {"native/live/tensor"},
    "native/live/saveload": {"native/io", *(f"native/live/{m}" for m in ("tensor", "transfer", "ops"))},
    "native/live/fsdp": {"native/io", *(f"native/live/{m}" for m in ("tensor", "transfer", "ops"))},
    "native/live/model": {"native/io", *(f"native/live/{m}" for m in ("tensor", "transfer", "ops", "fsdp"))},
    "native/live/cuda": {"native/io"},
    "native/view": {"native/io"},
    "native/python": {"native/io", "native/publish", "native/cli/program"}, # its functions run the commands
    "native/cli/program": {"native/io"},
    "native/cli/text": {"native/cli/program"},
    "native/cli/writing": {"native/io", "native/publish", "native/cli/program", "native/cli/text"},
    "native/cli/commands": {"native/io", "native/publish", "native/view", "native/cli/program", "native/cli/text",
                            "native/cli/writing"},
    "wasm/platform": set(),
    "wasm/program": {"native/cli/program"},
    "wasm": {"wasm/platform"},
}
NATIVE_HEADERS = ROOT / "native/include/tessera"  # public too: what needs an operating system, on top of core's
LIVE_HEADERS = ROOT / "native/live/include/tessera"  # those of live state dicts, in a library of their own
LIVE_USERS = ("native/live", "native/cli/commands")  # who may include them: of the program, `doctor` asks for GPUs
# All public headers. Those in tessera/ are what programs use; those in tessera/sys/ are what our own modules share, and are
# installed without a promise of compatibility.
PUBLIC = sorted(p for d in (ROOT / "core/include/tessera", NATIVE_HEADERS, LIVE_HEADERS) for p in d.rglob("*.h"))


def include_name(header):
    """How a program includes a public header."""
    return header.as_posix().partition("/include/")[2]


def sources(*directories):
    """C, C++ and CUDA files below directories of the repository, in order."""
    return sorted(p for d in directories for s in ("*.c", "*.h", "*.cu") for p in (ROOT / d).rglob(s))
