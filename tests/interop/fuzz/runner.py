"""Runs draws on both sides and tells what differs."""
import os
import sys
import time

import codec
import compare
import driver
import draws
import pool
import strategies


class Runner:
    def __init__(self, path):
        self.pool, self.driver = pool.Pool(), driver.Driver(path)
        self.jobs = self.refused = 0
        self.hung = []  # jobs in which PyTorch's ranks wait for each other for ever

    def close(self):
        self.pool.stop()
        self.driver.stop()

    def job(self, draw, number):
        job = draw.jobs[number]
        try:
            described, wants = self.pool.perform(draw, number)
        except pool.Broken as e:
            return [f"PyTorch's side is broken: {e}"]
        self.jobs += 1
        self.refused += any("error" in w for w in wants)
        if any(w.get("error") == pool.WAITS for w in wants) and all(w.get("error", pool.WAITS) == pool.WAITS for w in wants):
            self.hung.append(f"{draw.title()} (job {number})")  # there is nothing to compare with
            return []
        try:
            answers = [codec.decode(a) for a in self.driver.perform(described)]
        except driver.Died as e:
            return [f"our side {e}"]
        wants = [w if "error" in w else {"out": codec.decode(w["out"])} for w in wants]
        return compare.compare(draw, job, [codec.decode(d) for d in described], wants, answers)

    def draw(self, draw):
        """Differences by job number."""
        found = {}
        hung = len(self.hung)
        for number in range(len(draw.jobs)):
            if len(self.hung) > hung:
                break  # the others would be, too
            differences = self.job(draw, number)
            if differences:
                found[number] = differences
            if any("is broken" in d for d in differences):
                break
        return found


def told(draw, found):
    lines = [f"DIFFERS {draw.title()}: {draw.world} ranks, {draw.strategy}, steps {draw.steps}, apart {draw.apart}"]
    for number, differences in found.items():
        job = draw.jobs[number]
        lines.append(f"  job {number}: {job}")
        lines += [f"    {d}" for d in differences[:4]]
    return "\n".join(lines)


def run(a):
    path = os.path.join(os.path.abspath(a.build), "state_dict_fuzz", "driver")
    driver.build_driver(os.path.abspath(a.build), path)
    numbers = [a.only] if a.only is not None else range(a.draws)
    todo = sorted((draws.draw(a.seed, i, strategies.STRATEGIES) for i in numbers), key=lambda d: (d.world, d.number))
    runner, failed, begin = Runner(path), 0, time.monotonic()
    try:
        for d in todo:
            found = runner.draw(d)
            failed += bool(found)
            if found:
                print(told(d, found), flush=True)
    finally:
        runner.close()
    for title in runner.hung:
        print(f"PyTorch's ranks wait for each other for ever, not compared: {title}")
    print(f"{len(todo)} draws, {runner.jobs} jobs ({runner.refused} refused by PyTorch), {failed} draws differ, "
          f"{time.monotonic() - begin:.1f} s, ranks started {runner.pool.started} times")
    return 1 if failed else 0
