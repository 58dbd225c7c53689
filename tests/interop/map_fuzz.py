#!/usr/bin/env python3
"""Random maps against an evaluator of their own, in torch: what a map makes, what its inverse makes of that, and what is refused.

    map_fuzz.py --tessera PATH [--first SEED] [--count N]

A draw is a map of up to four rules and a checkpoint, both of one seed. `evaluate` reads the document as the contract has it; names that a
map may have made in several ways are found by `origins`. Of each draw:

- what the map makes, or that it is refused;
- the table of --dry-run names every source and every target;
- --against notices a missing, an unexpected and an odd tensor;
- what the inverse makes: the map makes the same of it again, and it is the checkpoint itself where every name has one origin. Where a
  name has two, the inverse says so or is refused; nothing else is.

Exits with 1 when a draw differs."""
import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

WORDS = ["a", "b", "w", "layers", "0", "1", "2", "10", "01", "x-y", "é"]
# What Tessera refuses of its own accord, because the tensors of experts or layers are not equally many: the evaluator has no such rule.
STRICTER = ("which the map needs together with", "nothing that", "nothing below")
# Seeds whose inverses went to wrong names, or were compared wrongly by this evaluator.
DIFFERED_ONCE = (10228, 10429, 11755, 12835)


class Refused(Exception):
    pass


# ---- names ----

def cut(part):
    """("{l}", 2) of "{l+2}", ("{l}", 0) of "{l}"."""
    name, _, plus = part.partition("+")
    return (name + "}", int(plus[:-1])) if plus else (part, 0)


def is_index(text):
    return text.isascii() and text.isdigit() and str(int(text)) == text


def match(pattern, name):
    """{capture: text}, or None."""
    parts, words = pattern.split("|"), name.split(".")
    for at, part in enumerate(parts):
        if part.endswith("...}"):
            more = len(words) - len(parts) + 1
            if more < 1:
                return None
            words[at:at + more] = [".".join(words[at:at + more])]
    if len(words) != len(parts):
        return None
    values = {}
    for part, word in zip(parts, words):
        if part[0] == "{":
            capture, plus = cut(part)
            if plus and (not is_index(word) or int(word) < plus):
                return None
            values[capture] = str(int(word) - plus) if plus else word
        elif part != word:
            return None
    return values


def expand_part(part, values):
    capture, plus = cut(part)
    return str(int(values[capture]) + plus) if plus else values[capture]


def expand(pattern, values):
    return ".".join(expand_part(part, values) if part[0] == "{" else part for part in pattern.split("|"))


def captures(patterns):
    return {cut(part)[0] for pattern in patterns for part in pattern.split("|") if part[0] == "{"}


def fits(patterns, values):
    """Whether what gets another number is an index."""
    return all(is_index(values.get(cut(part)[0], "0")) for pattern in patterns for part in pattern.split("|") if part[0] == "{" and cut(part)[1])


def take(rules, name):
    """(rule, pattern, values) of the first rule that matches, or None."""
    for r, rule in enumerate(rules):
        for p, pattern in enumerate(rule["from"]):
            values = match(pattern, name)
            if values is not None and fits(rule["to"], values):
                return r, p, values
    return None


def origins(rules, unmatched, name):
    """How the map may have made the name: (rule, values) of rules whose sources it takes by that rule, and None if it may have kept it."""
    found = []
    for r, rule in enumerate(rules):
        for pattern in rule["to"]:
            values = match(pattern, name)
            if values is None or not fits(rule["from"], values):
                continue
            values.update({c: "0" for c in captures(rule["from"]) - set(values)})
            taken = [take(rules, expand(source, values)) for source in rule["from"]]
            if all(t and t[:2] == (r, p) for p, t in enumerate(taken)):
                found.append((r, values))
            break
    if unmatched == "keep" and not take(rules, name):
        found.append(None)
    return found


# ---- steps, as the contract has them ----

def chunks(x, step, parts):
    dim = step.get("split", step.get("concat"))
    sizes = step.get("sizes") or [x.shape[dim] // step["parts"]] * step["parts"]
    if sum(sizes) != x.shape[dim] or len(sizes) != parts:
        raise Refused("sizes")
    return x.split(sizes, dim)


def one_to_one(step, x):
    if "transpose" in step:
        return x.permute(step["transpose"])
    if "interleave" in step:
        dim, parts = step["interleave"] % x.dim(), step["parts"]
        if x.shape[dim] % parts:
            raise Refused("parts")
        return torch.stack(x.chunk(parts, dim), dim + 1).flatten(dim, dim + 1)
    if "reshape" in step:
        if list(x.shape) != step["from"]:
            raise Refused("from")
        return x.reshape(step["reshape"])
    if "permute_rope" in step:
        heads = step["permute_rope"]["heads"]
        return x.reshape(heads, x.shape[0] // heads // 2, 2, *x.shape[1:]).transpose(1, 2).reshape(x.shape)
    dim = step["pad"] % x.dim()
    if x.shape[dim] != step["from"] or step["to"] < step["from"]:
        raise Refused("from")
    rest = list(x.shape)
    rest[dim] = step["to"] - rest[dim]
    return torch.cat([x, torch.full(rest, step["value"], dtype=x.dtype)], dim)


def apply_step(step, slots, outputs):
    if "stack" in step:
        return [[torch.stack(s, step["stack"])] for s in slots]
    if "unstack" in step:
        return [list(s[0].unbind(step["unstack"])) for s in slots]
    if "concat" in step:
        if any(len(s) != len(slots[0]) for s in slots):
            raise Refused("members")
        joined = [torch.cat([s[i] for s in slots], step["concat"]) for i in range(len(slots[0]))]
        if "sizes" in step or "parts" in step:
            if any(c.shape != s[0].shape for c, s in zip(chunks(joined[0], step, len(slots)), slots)):
                raise Refused("sizes")
        return [joined]
    if "split" in step:
        return [list(row) for row in zip(*(chunks(x, step, outputs) for x in slots[0]))]
    return [[one_to_one(step, x) for x in s] for s in slots]


# ---- the evaluator ----

def bindings(rules, unmatched, names):
    """{(rule, values): {(pattern, index): name}}, and the names that no rule takes."""
    bound, left = collections.defaultdict(dict), []
    for name in names:
        taken = take(rules, name)
        if not taken:
            left.append(name)
            continue
        r, p, values = taken
        rule, index = rules[r], None
        for folded in captures(rule["from"]) - captures(rule["to"]) if rule["to"] else ():
            text = values.pop(folded)
            if not is_index(text):
                raise Refused(f"index of {name}")
            index = int(text)
        bound[r, tuple(sorted(values.items()))][p, index] = name
    if left and unmatched == "refuse":
        raise Refused(f"unmatched {left}")
    return bound, left


def apply_rule(rule, tensors, named):
    """The slots of one binding: a list of tensors per pattern of `to`."""
    count = 1 + max((i for _, i in named if i is not None), default=0)
    indices = range(count) if any(i is not None for _, i in named) else [None]
    try:
        slots = [[tensors[named[p, i]] for i in indices] for p in range(len(rule["from"]))]
        for step in rule.get("do", []):
            slots = apply_step(step, slots, len(rule["to"]))
    except (KeyError, RuntimeError, IndexError, ValueError) as e:
        raise Refused(f"{type(e).__name__}: {e}")
    if len(slots) != len(rule["to"]):
        raise Refused("count")
    return slots


def evaluate(rules, unmatched, tensors):
    """What the map makes: {name: tensor}, and the names that it drops."""
    bound, left = bindings(rules, unmatched, sorted(tensors))
    made, dropped = {n: tensors[n] for n in left if unmatched == "keep"}, set(left) if unmatched == "drop" else set()
    for (r, values), named in bound.items():
        rule = rules[r]
        if not rule["to"]:
            dropped |= set(named.values())
            continue
        for pattern, slot in zip(rule["to"], apply_rule(rule, tensors, named)):
            for i, x in enumerate(slot):
                name = expand(pattern, {**{c: str(i) for c in captures(rule["to"]) - captures(rule["from"])}, **dict(values)})
                if name in made:
                    raise Refused(f"twice {name}")
                made[name] = x.contiguous()
    return made, dropped


# ---- draws ----

def words(rng, low, high):
    return [rng.choice(WORDS) for _ in range(rng.randint(low, high))]


def draw_step(rng, shape):
    """A step of one tensor, and the shape it makes; None if the kind that was drawn does not fit."""
    kind, dim = rng.randrange(5), rng.randrange(-len(shape), len(shape))
    if kind == 0:
        order = rng.sample(range(len(shape)), len(shape))
        return {"transpose": order}, [shape[d] for d in order]
    if kind == 1:
        return {"interleave": dim, "parts": rng.choice([p for p in (1, 2, 3, 4, 6) if shape[dim] % p == 0])}, shape
    if kind == 2:
        left, new = torch.Size(shape).numel(), []
        while left > 1 and len(new) < 3:
            new.append(rng.choice([f for f in range(1, left + 1) if left % f == 0]))
            left //= new[-1]
        return {"reshape": [*new, left], "from": shape}, [*new, left]
    if kind == 3 and shape[0] and shape[0] % 2 == 0:
        return {"permute_rope": {"heads": rng.choice([h for h in range(1, shape[0] // 2 + 1) if shape[0] % (2 * h) == 0])}}, shape
    if kind == 4:
        new = list(shape)
        new[dim] += rng.randint(0, 3)
        return {"pad": dim, "to": new[dim], "value": rng.choice([0, 1.5, -2]), "from": shape[dim]}, new
    return None


def draw_steps(rng, sources, targets, members, unfolds, shape):
    """Steps from `sources` tensors, each of `members` where they are folded, to `targets`; None if they do not fit."""
    moves = (["stack"] if members else []) + (["concat"] if sources > 1 else [])
    ends = (["unstack"] if unfolds else []) + (["split"] if targets > 1 else [])
    rng.shuffle(moves)
    rng.shuffle(ends)
    steps, shape = [], list(shape)
    for move in [None, *moves, None, *ends]:
        drawn = draw_step(rng, shape) if move is None and rng.random() < .7 else None
        if drawn:
            steps.append(drawn[0])
            shape = drawn[1]
        if move is None:
            continue
        dim = rng.randrange(len(shape) + (move == "stack"))
        step = {move: dim if rng.random() < .5 else dim - len(shape) - (move == "stack")}
        if move == "stack":
            shape.insert(dim, members)
        elif move == "unstack":
            if len(shape) == 1:
                return None
            del shape[dim]
        elif move == "concat":
            step.update({"parts": sources} if rng.random() < .5 else {"sizes": [shape[dim]] * sources})
            shape[dim] *= sources
        elif shape[dim] % targets == 0 and rng.random() < .6:
            step["parts"] = targets
            shape[dim] //= targets
        elif move == ends[-1]:
            first = rng.randint(0, shape[dim])
            step["sizes"] = [first, shape[dim] - first]
        else:
            return None
        steps.append(step)
    return steps


def draw_patterns(rng, shared, own, count, more):
    base = words(rng, 0, 2) + shared + own
    base = base or [rng.choice("ant")]
    rng.shuffle(base)
    base = more + base
    return ["|".join(base + [tail]) for tail in rng.sample(WORDS, count)] if count > 1 or rng.random() < .5 else ["|".join(base)]


def renumber(rng, rule):
    """Gives a capture of both sides other numbers on each; returns it, or None."""
    both = sorted(c for c in captures(rule["from"]) & captures(rule["to"]) if not c.endswith("...}"))
    if not rng or not both or rng.random() < .2:
        return None
    capture = rng.choice(both)
    for side in ("from", "to"):
        plus = rng.choice(["", "+1", "+2", "+10"])
        rule[side] = [pattern.replace(capture, capture[:-1] + plus + "}") for pattern in rule[side]]
    return capture


def draw_rule(rng, shape, more):
    """A rule, and names that it may take. `more` is None where no capture gets other numbers."""
    sources, drops = rng.choice([1, 1, 1, 2, 3]), rng.random() < .12
    folds, unfolds = rng.random() < .35 and not drops, rng.random() < .2 and not drops
    targets = 0 if drops else 1 if sources == 3 else rng.choice([1, 1, 2])
    members = (rng.randint(1, 12) if rng.random() < .3 else rng.randint(1, 3)) if folds else 0
    shared = ["{%s}" % c for c in rng.sample("lik", rng.randint(0, 2))] + (["{rest...}"] if rng.random() < .35 else [])
    rule = {"from": draw_patterns(rng, shared, ["{f}"] if folds else [], sources, []), "to": []}
    if targets:
        rule["to"] = draw_patterns(rng, shared, ["{u}"] if unfolds else [], targets, ["n"] if rng.random() < .5 else [])
        plain = sources == targets and not folds and not unfolds and rng.random() < .6
        steps = [] if plain else draw_steps(rng, sources, targets, members, unfolds, shape)
        if steps is None:
            return None, []
        if steps:
            rule["do"] = steps
    names, moved = [], renumber(more, rule)
    for _ in range(rng.randint(1, 3)):
        values = {c: rng.choice(WORDS) for c in shared} | {"{rest...}": ".".join(words(rng, 1, 2))}
        if moved:
            values[moved] = str(more.choice([0, 1, 2, 8, 9, 10, 99]))
        for pattern in rule["from"] if rng.random() < .95 else rule["from"][:1]:
            for i in range(members or 1):
                if rng.random() < .995:
                    names.append(expand(pattern, {**values, "{f}": str(i)}))
    return rule, names


def draw(seed):
    """(rules, unmatched, tensors), or None."""
    rng, more = random.Random(seed), random.Random(-seed) if seed % 5 == 2 else None
    torch.manual_seed(seed)
    shape = rng.choice([[12, 8], [12, 8], [4, 6, 2]])
    rules, names = [], []
    for _ in range(rng.randint(1, 4)):
        rule, takes = draw_rule(rng, shape, more)
        if rule:
            rules.append(rule)
            names += takes
    names += [".".join(words(rng, 1, 4)) for _ in range(rng.choice([0, 0, 1, 2]))]
    if rng.random() < .25 and names:  # an exception before a rule for everything else
        one, end = rng.choice(names), rng.choice(WORDS)
        rules = [{"from": [one.replace(".", "|")], "to": ["t|" + end]}, {"from": ["{rest...}"], "to": ["t|{rest...}"]}]
        rules = rules if rng.random() < .7 else rules[:1]
    for name in list(names):  # kept under a name that a rule would make
        taken = take(rules, name) if rng.random() < .08 else None
        if taken and rules[taken[0]]["to"]:
            names.append(expand(rules[taken[0]]["to"][0], {"{u}": "0", "{f}": "0", **taken[2]}))
    if not names or not rules:
        return None
    return rules, rng.choice(["refuse", "keep", "keep", "drop"]), {n: torch.randn(shape) for n in set(names)}


# ---- comparing ----

def different(got, want):
    return sorted(set(got) ^ set(want)) + [n for n in set(got) & set(want) if got[n].shape != want[n].shape or not torch.equal(got[n], want[n])]


class Draw:
    def __init__(self, tessera, directory, seed):
        self.tessera, self.directory, self.seed = tessera, directory, seed

    def at(self, name):
        return os.path.join(self.directory, name)

    def run(self, *args, to=os.devnull):
        with open(to, "w") as out:
            p = subprocess.run([self.tessera, "convert", *args, "--map", self.at("map.json"), "--overwrite"], stdout=out, stderr=subprocess.PIPE, text=True, timeout=60)
        return p.returncode, p.stderr

    def check(self):
        """(what happened, what differs or None)"""
        drawn = draw(self.seed)
        if not drawn:
            return "nothing drawn", None
        self.rules, self.unmatched, self.tensors = drawn
        dotted = [{**r, "from": [p.replace("|", ".") for p in r["from"]], "to": [p.replace("|", ".") for p in r["to"]]} for r in self.rules]
        with open(self.at("map.json"), "w") as f:
            json.dump({"schema": "tessera.map/1", "unmatched": self.unmatched, "rules": dotted}, f)
        self.source = self.at("in.pt" if self.seed % 3 == 0 else "in.safetensors")
        torch.save(self.tensors, self.source) if self.seed % 3 == 0 else save_file(self.tensors, self.source)
        try:
            if not any(take(self.rules, n) for n in self.tensors):
                raise Refused("the map changes nothing")
            self.want, self.dropped = evaluate(*drawn)
        except Refused as e:
            status, text = self.run(self.source, self.at("out.safetensors"))
            return "refused", None if status == 2 else f"the map is not refused: {e}"
        if not self.want:
            return "nothing left", None
        return self.forward()

    def forward(self):
        status, text = self.run(self.source, self.at("out.safetensors"))
        if status == 2 and any(words in text for words in STRICTER):
            return "refused for its counts", None
        if status:
            return "forward", f"refused: {text}"
        odd = different(load_file(self.at("out.safetensors")), self.want)
        if odd:
            return "forward", f"the map makes other tensors: {odd[:4]}"
        return self.inverse(self.table() or self.against())

    def table(self):
        _, text = self.run(self.source, self.at("table.safetensors"), "--dry-run")
        lost = [n for n in [*self.tensors, *self.want] if n not in text]
        if lost:
            return f"the table does not name {lost[:3]}: {text[:400]}"
        self.run(self.source, self.at("table.safetensors"), "--dry-run", "--json", to=self.at("table.json"))
        with open(self.at("table.json")) as f:
            table = json.load(f)
        sources = {s["fqn"]: s["shape"] for row in [*table["map"], {"from": table["dropped"]}] for s in row["from"]}
        if sources != {n: list(x.shape) for n, x in self.tensors.items()} or {s["fqn"] for s in table["dropped"]} != self.dropped:
            return f"the sources of the table are {sorted(sources)}, and dropped {table['dropped']}"
        made = {row["fqn"]: row["shape"] for row in table["map"]}
        return None if made == {n: list(x.shape) for n, x in self.want.items()} else f"the table makes {made}"

    def against(self):
        rng, other = random.Random(self.seed), dict(self.want)
        name, kind = rng.choice(sorted(other)), rng.choice(["same", "missing", "unexpected", "shape"])
        if kind == "missing":
            name = "zz.more"
            other[name] = torch.zeros(3)
        elif kind == "unexpected":
            del other[name]
        elif kind == "shape":
            other[name] = other[name][..., None].contiguous()
        if not other:
            return None
        save_file(other, self.at("other.safetensors"))
        status, text = self.run(self.source, self.at("against.safetensors"), "--against", self.at("other.safetensors"))
        right = status == 0 if kind == "same" else status != 0 and name in text
        return None if right else f"--against with {kind} '{name}' exits with {status}: {text[-300:]}"

    def inverse(self, odd):
        if odd:
            return "forward", odd
        ambiguous = [n for n in self.want if len(origins(self.rules, self.unmatched, n)) > 1]
        status, text = self.run(self.at("out.safetensors"), self.at("back.safetensors"), "--inverse")
        if status:
            if any(words in text for words in STRICTER):
                return "inverse refused for its counts", None
            if "no rule of the map matches any name" in text and not any(o for n in self.want for o in origins(self.rules, self.unmatched, n)):
                return "inverse refused because it changes nothing", None
            if not any(f"'{n}'" in text for n in ambiguous):
                return "inverse refused", f"the inverse is refused although every name has one origin: {text[-300:]}"
            return "inverse refused", None
        back, noted = load_file(self.at("back.safetensors")), "is taken to come from" in text
        try:
            again = different(evaluate(self.rules, self.unmatched, back)[0], self.want)
        except Refused as e:
            again = [str(e)]
        if again:
            return "inverse", f"the map does not make the same of what its inverse made: {again[:4]}"
        if noted != bool(ambiguous):
            return "inverse", f"names of two origins are {ambiguous[:4]}, but the inverse says: {text[-300:]}"
        lost = different(back, {k: v for k, v in self.tensors.items() if k not in self.dropped})
        if lost and not noted:
            return "inverse", f"the inverse makes other tensors, and does not say so: {lost[:4]}"
        return ("inverse guessed wrong and said so" if lost else "inverse guessed right and said so" if noted else "identity"), None


def run_seeds(tessera, seeds, say=print):
    """How often each thing happened, and how many draws differ."""
    counts, wrong = collections.Counter(), 0
    with tempfile.TemporaryDirectory(prefix="tessera-maps-") as directory:
        for seed in seeds:
            draw_of = Draw(tessera, directory, seed)
            what, difference = draw_of.check()
            counts[what] += 1
            if difference:
                wrong += 1
                with open(draw_of.at("map.json")) as f:
                    say(f"seed {seed}: {difference}\n  {f.read()}\n  {sorted(draw_of.tensors)}")
    return counts, wrong


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tessera", required=True)
    ap.add_argument("--first", type=int, default=1, metavar="SEED")
    ap.add_argument("--count", type=int, default=300, metavar="N")
    a = ap.parse_args()
    counts, wrong = run_seeds(os.path.abspath(a.tessera), range(a.first, a.first + a.count))
    print(", ".join(f"{n} {what}" for what, n in counts.most_common()) + f"; {wrong} differ")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
