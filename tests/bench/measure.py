"""Runs the sides of a job in turn and takes medians, so that a drift of the machine hits all sides alike."""
import json
import os
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Callable, Optional

LIMIT = 120  # seconds for one run of a peer: some of them hang
LAUNCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launch.py")


@dataclass
class Side:
    """One competitor: a command, and what must be done before each run (not timed)."""
    name: str
    command: list
    before: Optional[Callable[[], None]] = None
    ok: tuple = (0,)
    ours: bool = False  # one of several sides of ours in a job; otherwise the first side is ours


@dataclass
class Job:
    id: str
    what: str
    data: str
    sides: list          # ours first, the limit (cp, cat, cmp) last where there is one
    target: str
    check: Optional[Callable[[], None]] = None  # raises when what ours wrote is wrong
    metric: str = "wall"                        # the figure the target is about
    results: dict = field(default_factory=dict)  # by side; None: it did not end


class NoAnswer(Exception):
    """A peer did not end within LIMIT seconds."""


def wait_for(process, limit):
    """What the process printed. It has a session of its own, so that what it started can be ended with it."""
    try:
        return process.communicate(timeout=limit)
    except BaseException as e:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(e, subprocess.TimeoutExpired):
            raise NoAnswer from None
        raise


def run_once(side, limit):
    """Wall and CPU seconds and peak memory of the whole process; a last stdout line of JSON {"wall":…, "cpu":…} replaces
    the seconds by those the program measured around the call itself (Python's start-up is not what is compared)."""
    if side.before:
        side.before()
    use, use_of_command = os.pipe()
    process = subprocess.Popen([sys.executable, "-I", "-S", LAUNCH, str(use_of_command), *side.command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               pass_fds=[use_of_command], start_new_session=True)
    os.close(use_of_command)
    with open(use, "rb") as f:
        out, errors = wait_for(process, limit)
        used = f.read()
    if process.returncode not in side.ok:
        raise RuntimeError(f"{side.name} ended {process.returncode}: {errors.decode(errors='replace')[-400:]}")
    figures = json.loads(used)
    last = out.strip().rsplit(b"\n", 1)[-1]
    if last.startswith(b"{") and b'"wall"' in last:
        figures.update(json.loads(last))
    return figures


def run_job(job, runs):
    samples = {side.name: [] for side in job.sides}
    for turn in range(runs + 1):
        for side in job.sides:
            if samples[side.name] is None:
                continue
            try:
                figures = run_once(side, None if side in ours_of(job) else LIMIT)
            except NoAnswer:
                samples[side.name] = None
                continue
            if turn:  # the first turn warms the page cache and is not counted
                samples[side.name].append(figures)
    if job.check:
        job.check()
    for name, list_ in samples.items():
        job.results[name] = list_ and {k: statistics.median(f[k] for f in list_) for k in list_[0]}
    return job


def ours_of(job):
    return [side for side in job.sides if side.ours] or job.sides[:1]


def ratio_line(job, side, others):
    """One of our sides next to each of the others' that ended."""
    ours = job.results[side.name]
    parts = []
    for other in [o for o in others if job.results[o.name]]:
        a, b = ours[job.metric], job.results[other.name][job.metric]
        parts.append(f"{b / a:.1f}× faster than {other.name}" if b >= 2 * a else f"{a / b:.2f}× {other.name}")
    return "; ".join(parts)


def extra(result):
    """Figures that only some jobs have."""
    shown = {"requests": "requests {:.0f}", "under_way": "under way {:.1f}", "disk_mib": "disk {:.1f} MiB", "ratio": "{:.2f} × in pairs of one process"}
    return "".join("   " + text.format(result[key]) for key, text in shown.items() if key in result)


def table(job):
    lines = [f"{job.id}  {job.what}", f"    data: {job.data}; target: {job.target}"]
    for side in job.sides:
        r = job.results[side.name]
        if not r:
            lines.append(f"    {side.name:<34} no answer in {LIMIT} s")
            continue
        lines.append(f"    {side.name:<34} wall {r['wall']:9.4f} s   cpu {r['cpu']:9.4f} s   peak {r['peak_mib']:8.1f} MiB" + extra(r))
    if not any(side.ours for side in job.sides):
        lines.append(f"    → {ratio_line(job, job.sides[0], job.sides[1:])} ({job.metric})")
    for side in [s for s in job.sides if s.ours]:
        lines.append(f"    {side.name} → {ratio_line(job, side, [s for s in job.sides if not s.ours])} ({job.metric})")
    return "\n".join(lines)
