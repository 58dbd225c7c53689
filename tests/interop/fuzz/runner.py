"""Runs draws on both sides and tells what differs."""
import json
import os
import time

import torch

import driver
import draws
import kept
import pool
import strategies

PART = 100  # draws of a full run between two lines of its record


class Runner:
    def __init__(self, path, keep=None):
        self.pool, self.driver, self.keep = pool.Pool(), driver.Driver(path), keep
        self.jobs = self.refused = 0
        self.hung = []  # jobs in which PyTorch's ranks wait for each other for ever

    def close(self):
        self.pool.stop()
        self.driver.stop()

    def torch_did(self, draw, number):
        """The ranks' jobs and what PyTorch made of them, as bytes; None: nothing to compare with."""
        described, wants = self.pool.perform(draw, number)
        self.jobs += 1
        self.refused += any("error" in w for w in wants)
        if None in described or any(w.get("error") == pool.WAITS for w in wants) and all(w.get("error", pool.WAITS) == pool.WAITS for w in wants):
            self.hung.append(f"{draw.title()} (job {number})")
            return None
        return described, wants

    def draw(self, draw):
        """Differences of the first driver by job number."""
        found, hung = {}, len(self.hung)
        for number, job in enumerate(draw.jobs):
            try:
                did = self.torch_did(draw, number)
            except pool.Broken as e:
                return {**found, number: [f"PyTorch's side is broken: {e}"]}
            if len(self.hung) > hung:
                break  # the others would be, too
            differences = kept.differences(self.driver, draw, job, *did)
            if differences:
                found[number] = differences
                if self.keep:
                    kept.write(self.keep, draw, number, *did)
            self.others(draw, job, *did)
        return found

    def others(self, draw, job, described, wants):
        """For drivers besides the first."""


class MutantRunner(Runner):
    """Every job on every mutant that was not found yet, too."""

    def __init__(self, path, mutants):
        super().__init__(path)
        self.left = {m: driver.Driver(p) for m, p in mutants.items()}
        self.found = {}

    def close(self):
        super().close()
        for d in self.left.values():
            d.stop()

    def others(self, draw, job, described, wants):
        for name, ours in list(self.left.items()):
            differences = kept.differences(ours, draw, job, described, wants)
            if differences:
                self.found[name] = f"{draw.title()}: {job['op']}: {differences[0]}"
                self.left.pop(name).stop()


def told(draw, found):
    lines = [f"DIFFERS {draw.title()}: {draw.world} ranks, {draw.strategy}, steps {draw.steps}, apart {draw.apart}"]
    for number, differences in found.items():
        lines.append(f"  job {number}: {draw.jobs[number]}")
        lines += [f"    {d}" for d in differences[:4]]
    return "\n".join(lines)


def drawn(seed, numbers, wide):
    """In the order of worlds, so that ranks stay alive."""
    return sorted((draws.draw(seed, i, strategies.STRATEGIES, wide) for i in numbers), key=lambda d: (d.world, d.number))


def run(runner, seed, numbers, wide):
    """Titles of the draws that differ."""
    failed = []
    for d in drawn(seed, numbers, wide):
        found = runner.draw(d)
        if found:
            failed.append(d.title())
            print(told(d, found), flush=True)
    return failed


def once(a, path):
    runner, begin = Runner(path, a.keep), time.monotonic()
    numbers = [a.only] if a.only is not None else range(a.draws)
    try:
        failed = run(runner, a.seed, numbers, a.wide)
    finally:
        runner.close()
    for title in runner.hung:
        print(f"PyTorch's ranks wait for each other for ever, not compared: {title}")
    print(f"{len(numbers)} draws, {runner.jobs} jobs ({runner.refused} refused by PyTorch), {len(failed)} draws differ, "
          f"{time.monotonic() - begin:.1f} s, ranks started {runner.pool.started} times")
    return 1 if failed else 0


def recorded(a):
    """Numbers of the draws that are in the record and did not differ when they were run last."""
    done = set()
    for line in open(a.record) if os.path.exists(a.record) else []:
        r = json.loads(line)
        if r["seed"] == a.seed and r.get("wide", False) == a.wide:
            done |= set(range(r["from"], r["to"]))
            done -= {int(title.split()[3]) for title in r["failed"]}
    return done


def full(a, path):
    """In parts, each of which becomes a line of the record. Draws that are in it are not run again, but for those that differed."""
    done, status = recorded(a), 0
    for begin in range(0, a.draws, PART):
        end = min(begin + PART, a.draws)
        numbers = [n for n in range(begin, end) if n not in done]
        if numbers:
            line = part(a, path, numbers, begin, end)
            with open(a.record, "a") as f:
                f.write(json.dumps(line) + "\n")
            print(f"draws {begin} to {end}: {len(numbers)} run, {line['jobs']} jobs, {len(line['failed'])} draws differ, {line['seconds']} s", flush=True)
            status = status or bool(line["failed"])
    return int(status)


def part(a, path, numbers, begin, end):
    """The line of the record."""
    runner, start = Runner(path, a.keep), time.monotonic()
    try:
        failed = run(runner, a.seed, numbers, a.wide)
    finally:
        runner.close()
    return {"date": time.strftime("%Y-%m-%d"), "torch": torch.__version__, "seed": a.seed, **({"wide": True} if a.wide else {}), "from": begin, "to": end, "draws": len(numbers), "jobs": runner.jobs,
            "refused": runner.refused, "hung": len(runner.hung), "failed": failed, "seconds": round(time.monotonic() - start)}


def with_mutants(a, path):
    import mutants
    runner = MutantRunner(path, mutants.build(os.path.abspath(a.build)))
    try:
        failed = []
        for d in drawn(a.seed, range(a.draws), a.wide):
            failed += [d.title()] if runner.draw(d) else []
            if not runner.left:
                break
    finally:
        runner.close()
    for name in mutants.MUTANTS:
        print(f"{'found' if name in runner.found else 'NOT FOUND'} {name}: {mutants.MUTANTS[name].what}" + (f"\n    {runner.found[name][:300]}" if name in runner.found else ""))
    print(f"{len(runner.found)} of {len(mutants.MUTANTS)} mutants found, {len(failed)} draws differ without a mutant")
    return 1 if failed or runner.left else 0
