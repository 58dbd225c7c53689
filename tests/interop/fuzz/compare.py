"""Whether both sides did the same: every tensor, name, order and refusal."""
from codec import Object, Tensor

import rules


def shown(v):
    if isinstance(v, Tensor):
        data = b"".join(p[2] for p in v.parts or ())
        return f"{v.dtype} {list(v.shape)} {v.mesh} {v.placements} {[p[:2] for p in v.parts or () if p[0]] or ''} {data[:24].hex()}"
    return repr(v)[:200]


def keys_of(d):
    return [k.name if isinstance(k, Object) else k for k in d]


def walk(want, got, path, rule, found):
    """Adds the first differences, "PATH: PyTorch …; here …"."""
    if rule.same(path, want, got) or len(found) > 5:
        return
    if isinstance(want, dict) and isinstance(got, dict):
        if rule.ordered(path) and keys_of(want) != keys_of(got) or set(keys_of(want)) != set(keys_of(got)):
            found.append(f"{path}: PyTorch has the keys {keys_of(want)}; here {keys_of(got)}")
        else:
            for key in want:
                walk(want[key], got[key], f"{path}/{key}", rule, found)
    elif isinstance(want, (list, tuple)) and type(want) is type(got):
        if len(want) != len(got):
            found.append(f"{path}: PyTorch has {shown(want)}; here {shown(got)}")
        for i, (a, b) in enumerate(zip(want, got)):
            walk(a, b, f"{path}/{i}", rule, found)
    elif type(want) is not type(got) or (want != got and not (want != want and got != got)):
        found.append(f"{path}: PyTorch has {shown(want)}; here {shown(got)}")


def refusals(draw, job, described, wants, answers):
    """None: both did it. A list: both refused, or what differs."""
    errors = sorted((f"rank {r}: {w['error']}" for r, w in enumerate(wants) if "error" in w), key=lambda e: "waits for" in e)
    failed = [a["status"] != 0 for a in answers]
    if any(failed) and not all(failed):
        return [f"here only ranks {[r for r, f in enumerate(failed) if f]} refuse: {[a['error'] for a in answers if a['status']]}"]
    if errors and failed[0]:
        return []
    if failed[0]:
        message = answers[0]["error"]
        return [] if rules.ours_refuses(draw, job, message, described[0]) else [f"here it is refused: {message}"]
    if errors:
        return [] if rules.torch_refuses(draw, job, errors[0], described[0]) else [f"PyTorch refuses: {errors[0]}"]
    return None


def compare(draw, job, described, wants, answers):
    """Differences; `wants` and `answers` are decoded, by rank."""
    for rank, a in enumerate(answers):
        if not a["opened"]:
            return [f"rank {rank}: cannot take what PyTorch has: {a['error']}"]
    found = refusals(draw, job, described, wants, answers)
    if found is not None:
        return found + untouched(job, described, answers)
    found = []
    for rank, (w, a) in enumerate(zip(wants, answers)):
        rule = rules.Rule(draw, job, described, rank)
        out, ours = dict(w["out"]), {k: a.get(k) for k in w["out"]}
        if rules.not_loaded(job, out, described[rank]):
            continue
        if out.get("missing") is not None:
            first = wants[0]["out"] if job["options"].get("broadcast_from_rank0") else out  # PyTorch's other ranks have lists of their own
            keys, mine = rules.unmatched(draw, job, first, ours, described[0])
            out.update(keys)
            ours.update(mine)
        for key, value in out.items():
            walk(value, ours[key], f"rank {rank}: {key}", rule, found)
    return found


def kept_optimizers(described, optimizers):
    """Options of the optimizers, and the states of those that had any before the set: first states remain."""
    had = [any(s for g in o["groups"] for s in g["state"]) for o in described["optimizers"]]
    return [[(g["options"], g["state"] if kept else None) for g in o["groups"]] for o, kept in zip(optimizers, had)]


def untouched(job, described, answers):
    """A set that is refused changes nothing."""
    found = []
    for rank, (d, a) in enumerate(zip(described, answers)):
        if a["status"] == 0 or not job["op"].startswith("set_") or a["now"] is None:
            continue
        rule = rules.Untouched()
        walk(d["tensors"], a["now"]["tensors"], f"rank {rank}: refused, but tensors", rule, found)
        walk(d["extra"], a["now"]["extra"], f"rank {rank}: refused, but extra", rule, found)
        walk(d.get("units"), a["now"]["units"], f"rank {rank}: refused, but units", rule, found)
        walk(kept_optimizers(d, d["optimizers"]), kept_optimizers(d, a["now"]["optimizers"]), f"rank {rank}: refused, but optimizers", rule, found)
    return found
