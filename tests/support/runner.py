"""The runner of cli, interop, package and stores: calls every test, counts, and exits.

A test is (name, function, whether it runs alone). It passes unless it raises; Skip(reason) is counted and printed."""
import collections
import concurrent.futures
import functools
import multiprocessing
import resource
import sys
import time
import traceback

from checks import Bad, Skip

PICKED = []  # workers inherit it


def cpu():
    """The seconds of CPU time of this process, and of those it has waited for."""
    return sum(sum(resource.getrusage(of)[:2]) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def run(around, at):
    """"passed", "failed" or "skipped", what to print, and the seconds it took: by the clock, and of CPU time."""
    name, function, _ = PICKED[at]
    began, used = time.monotonic(), cpu()
    result, text = "passed", None
    try:
        with around() as t:
            function(t)
    except Skip as reason:
        result, text = "skipped", f"skip {name}: {reason}"
    except Bad as what:
        result, text = "failed", f"FAIL {name}: {what}"
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:  # of ours, or of the library that reads what tessera wrote: PyTorch's CheckpointException is not an Exception
        summary = " ".join(traceback.format_exception_only(e)[-1].split())  # the end of a run repeats only the line that begins with FAIL
        result, text = "failed", f"FAIL {name}: {summary}\n{traceback.format_exc(limit=-4)}"
    return result, text, (time.monotonic() - began, cpu() - used)


def results(around, jobs):
    """What run() returns of each test, in order."""
    alone = sum(test[2] for test in PICKED)
    yield from map(functools.partial(run, around), range(alone))
    # Processes, because tests put their own functions in place of others, and change the environment.
    with concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        yield from pool.map(functools.partial(run, around), range(alone, len(PICKED)))


def main(tests, names, around, jobs=2):
    """Runs the tests whose names contain one of `names`, or all, `jobs` at a time, those that run alone first. `around` returns a
    context manager that gives what a test gets."""
    PICKED.extend(sorted((test for test in tests if not names or any(n in test[0] for n in names)), key=lambda test: not test[2]))
    counts, seconds = collections.Counter(), []
    for (name, *_), (result, text, took) in zip(PICKED, results(around, jobs)):
        counts[result] += 1
        seconds.append((took, name))
        if text:
            print(text, flush=True)
    for kind, which in (("longest", 0), ("most CPU time", 1)):
        print(f"{kind}: " + ", ".join(f"{name} {took[which]:.0f} s" for took, name in sorted(seconds, key=lambda row: -row[0][which])[:8]))
    print(f"{counts['passed']} passed, {counts['failed']} failed" + (f", {counts['skipped']} skipped" if counts["skipped"] else ""))
    sys.exit(1 if counts["failed"] or not counts["passed"] + counts["skipped"] else 0)
