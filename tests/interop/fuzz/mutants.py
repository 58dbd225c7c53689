"""Deliberate faults of the library, two for each of the five listings (A to E): the fuzzer must find them all. A mutant is
a copy of a source file with one text replaced, compiled outside of the tree and linked in place of the library's own."""
import os
import subprocess
from dataclasses import dataclass

from driver import build_driver, ROOT


@dataclass(frozen=True)
class Mutant:
    what: str
    path: str
    old: str
    new: str


MUTANTS = {
    "A1": Mutant("ignore_frozen_params is not looked at", "native/live/model/model_state.c",
                 "    if (tsr_map_get(g->frozen, item->fqn, 0)) return TSR_OK;\n", ""),
    "A2": Mutant("frozen parameters must have state, too", "native/live/optim/optim_live.c",
                 "    if (!param->tensor->requires_grad) return TSR_OK;\n    uint32_t at", "    uint32_t at"),
    "B1": Mutant("state outside of units is rank 0's", "core/optim/fsdp_unshard.c",
                 "    const tsr_value *state = state_on(u, u->rank, id);\n    return state ?", "    const tsr_value *state = state_on(u, 0, id);\n    return state ?"),
    "B2": Mutant("slices begin with an original's first elements", "core/optim/fsdp_shard.c",
                 "c->values[p]->as.tensor, low - param->flat_begin, high - param->flat_begin,", "c->values[p]->as.tensor, 0, high - low,"),
    "C1": Mutant("every rank loads an original's first elements", "native/live/fsdp/fsdp_load.c",
                 "if (from) from += range.offset * tsr_dtype_size(whole->entry.dtype);", ""),
    "C2": Mutant("NO_SHARD stays SHARDED", "native/live/fsdp/fsdp_model.c",
                 "    return node->unit && !node->sharded ? (tsr_fsdp_settings){0} : node->settings;", "    return node->settings;"),
    "D1": Mutant("distributing keeps the local values that are not tensors", "native/live/ops/state_broadcast.c",
                 "    *result = full;\n    if (!whole) return TSR_OK;", "    *result = local && !whole ? local : full;\n    if (!whole) return TSR_OK;"),
    "D2": Mutant("broadcasting keeps the local values that are not tensors", "native/live/ops/state_broadcast.c",
                 "    if (!full) return TSR_OK;\n    if (full->entry.ndim", "    if (!full) s->values[at] = local;\n    if (!full) return TSR_OK;\n    if (full->entry.ndim"),
    "E1": Mutant("a remainder of one row belongs to nobody", "core/optim/load.c",
                 "size / world + (size % world != 0)", "size / world + (size % world > 1)"),
    "E2": Mutant("the last rows of an uneven tensor are cut off", "core/optim/load.c",
                 "size - *begin < part ? size : *begin + part", "size - *begin < part ? size - (size - *begin > 1) : *begin + part"),
}


def compile_mutant(mutant, directory):
    source = os.path.join(ROOT, mutant.path)
    with open(source) as f:
        text = f.read()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"state_dict_fuzz: {mutant.path} does not have the text of the mutant '{mutant.what}' once: {mutant.old!r}")
    patched = os.path.join(directory, os.path.basename(source))
    with open(patched, "w") as f:
        f.write(text.replace(mutant.old, mutant.new))
    include = [f"-I{os.path.dirname(source)}", *(f"-I{ROOT}/{d}" for d in ("core/include", "native/include", "native/live/include", "native", "core"))]
    p = subprocess.run(["cc", "-std=c11", "-O1", "-fPIC", "-D_GNU_SOURCE", *include, "-c", patched, "-o", patched + ".o"], capture_output=True, text=True)
    if p.returncode:
        raise SystemExit(f"state_dict_fuzz: cannot compile the mutant '{mutant.what}':\n{p.stderr[-2000:]}")
    return patched + ".o"


def build(release):
    """Drivers by name."""
    out = {}
    for name, mutant in MUTANTS.items():
        directory = os.path.join(release, "state_dict_fuzz", name)
        os.makedirs(directory, exist_ok=True)
        out[name] = os.path.join(directory, "driver")
        build_driver(release, out[name], [compile_mutant(mutant, directory)])
    return out
