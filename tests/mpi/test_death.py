"""A rank of `tessera` is killed before or after any of its collectives and any change of a file (kill_at.c): the job ends,
nothing incomplete is visible, and the next run writes what the killed one would have written."""
import json
import os
import random
import shutil
import tempfile

from harness import FULL, SAMPLES, alone, mpirun, need, safetensors, side_by_side, test, tree

RESHARD = ["--mesh", "dp=3", "--placements", "shard(0)", "--to", "dcp"]


def killed(directory, ranks, rank, call, after, *command, options=(), env=None):
    environment = {"KILL_AT_RANK": str(rank), "KILL_AT_CALL": str(call), **({"KILL_AT_AFTER": "1"} if after else {}), **(env or {})}
    return mpirun(ranks, *command, options=("-x", f"LD_PRELOAD={directory}/libkill_at.so", *options), env=environment)


def count_calls(directory, scratch, ranks, rank, *command):
    path = os.path.join(scratch, "calls")
    job = killed(directory, ranks, rank, 0, False, *command, env={"KILL_AT_LIST": path})
    need(job.status == 0, f"an undisturbed run: {job.err[-500:]}")
    with open(path) as f:
        names = f.read().split()
    os.remove(path)
    return names


def points(directory, scratch, counts, most, make):
    """Returns (ranks, rank, call, after, name) for an even selection of `most` calls, or with --full for 20 times as many.
    `make` returns a new command each time."""
    found = []
    for ranks in counts:
        for rank in range(ranks) if FULL and ranks <= 4 else sorted({0, ranks - 1}):
            names = count_calls(directory, scratch, ranks, rank, *make())
            for call, name in enumerate(names, 1):
                found += [(ranks, rank, call, after, name) for after in (False, True)]
    most *= 20 if FULL else 1
    if len(found) <= most:
        return found
    return [found[(2 * i + 1) * len(found) // (2 * most)] for i in range(most)]


class Place:
    """A scratch directory with a source of several units of work, and what one process makes of it."""

    def __init__(self, directory, elements=10_000_000):
        self.tessera = f"{directory}/tessera"
        self.scratch = tempfile.mkdtemp(prefix="tessera-mpi-death-")
        self.source, self.out = os.path.join(self.scratch, "a.safetensors"), os.path.join(self.scratch, "out")
        safetensors(self.source, [elements, 1, 0] + [5000] * 20, 4)
        status, _, err = alone(self.tessera, "reshard", self.source, self.out, *RESHARD)
        need(status == 0, err)
        self.reference = tree(self.out)
        self.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.scratch, ignore_errors=True)

    def clear(self):
        for name in os.listdir(self.scratch):
            path = os.path.join(self.scratch, name)
            if path != self.source:
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

    def command(self, *more):
        return [self.tessera, "reshard", self.source, self.out, *RESHARD, *more]

    def fresh(self):
        self.clear()
        return self.command()


def check_death(place, directory, point, options=(), env=None):
    ranks, rank, call, after, name = point
    where = f"rank {rank} of {ranks} killed {'behind' if after else 'before'} call {call}, {name}"
    place.clear()
    job = killed(directory, ranks, rank, call, after, *place.command(), options=options, env=env)
    need(job.seconds <= 30, f"{where}: the job went on for {job.seconds:.0f} s")
    if not options:
        need(job.status != 0, f"{where}: status 0")
    there = tree(place.out)
    need(there is None or there == place.reference, f"{where}: something half-written is visible")
    return where, there


def check_rerun(place, where, there, ranks, resume):
    more = ["--overwrite"] if there is not None else ["--resume"] if resume else []
    job = mpirun(ranks, *place.command(*more))
    need(job.status == 0, f"{where}, then run again {more}: {job.err[-600:]}")
    if there is None:
        need(tree(place.out) == place.reference, f"{where}: the run behind it {more} wrote other bytes")
    status, _, err = alone(place.tessera, "diff", "--values", place.source, place.out)
    need(status == 0, f"{where}: the run behind it {more} wrote other values: {err}")
    left = sorted(set(os.listdir(place.scratch)) - {"a.safetensors", "out"})
    need(not left, f"{where}: the run behind it left {left}")


def check_deaths(directory, chosen, options=(), env=None):
    """Checks two deaths at a time, each in its own directory."""
    def check(some):
        with Place(directory) as place:
            for i, point in some:
                where, there = check_death(place, directory, point, options, env)
                check_rerun(place, where, there, random.Random(i).choice((1, 2, 3)), i % 2)
    numbered = list(enumerate(chosen))
    side_by_side(check, (numbered[::2], numbered[1::2]))


@test
def a_rank_killed_at_any_call_leaves_nothing_half_written(directory):
    with Place(directory) as place:
        chosen = points(directory, place.scratch, (2, 3) if not FULL else (2, 3, 4, 8, 16), 16, place.fresh)
    check_deaths(directory, chosen)


@test
def survivors_of_a_killed_rank_publish_nothing(directory):
    """The launcher lets the survivors run (--enable-recovery); tessera's watchdog ends them."""
    with Place(directory) as place:
        chosen = points(directory, place.scratch, (3,) if not FULL else (2, 3, 8), 4, place.fresh)
    # the launcher itself waits for ranks that never start
    chosen = [point for point in chosen if point[4] != "MPI_Init_thread" or point[3]]
    check_deaths(directory, chosen, ("--enable-recovery",), {"TESSERA_PEER_LIMIT": "4"})


@test
def a_resumed_run_takes_over_what_other_ranks_had_done(directory):
    """Rank 0 dies when it receives what all ranks have done. One process continues from their journals."""
    with Place(directory) as place:
        names = count_calls(directory, place.scratch, 3, 0, *place.fresh())
        place.clear()
        call = len(names) - names[::-1].index("MPI_Allgatherv")
        job = killed(directory, 3, 0, call, False, *place.command())
        need(job.status != 0 and tree(place.out) is None, f"status {job.status}, {os.listdir(place.scratch)}")
        status, out, err = alone(*place.command("--resume", "--json"))
        need(status == 0 and tree(place.out) == place.reference, f"status {status}: {err}")
        work = json.loads(out)["work"]
        need(0 < work["found_done"] <= work["units"] and work["left"] == 0, f"{work}")


@test
def a_killed_job_does_not_outlive_the_next_run(directory):
    """Another job that writes to the same place removes its journals and output. --resume names what differs. A series of
    jobs is not affected."""
    with Place(directory) as place:
        left = lambda: sorted(set(os.listdir(place.scratch)) - {"a.safetensors", "plan.json"})
        names = count_calls(directory, place.scratch, 3, 0, *place.fresh())
        place.clear()
        call = len(names) - names[::-1].index("MPI_Allgatherv")
        killed(directory, 3, 0, call, False, *place.command())
        need(sum("-by-3" in name for name in left()) == 3, f"what a killed job leaves: {left()}")
        other = [place.tessera, "reshard", place.source, place.out, "--mesh", "dp=2", *RESHARD[2:]]
        status, _, err = alone(*other, "--resume")
        need(status == 2 and "had 'mesh dp=3'" in err and "mesh dp=2" in err, f"--resume of another job: {status} {err}")
        job = mpirun(2, *other)
        need(job.status == 0 and job.err.count("removing the remains of an interrupted run") == 1 and left() == ["out"], f"{left()}: {job.err}")
        place.clear()
        plan = os.path.join(place.scratch, "plan.json")
        with open(plan, "w") as f:
            f.write(alone(place.tessera, "plan", place.source, *RESHARD, "--json")[1])
        need(alone(place.tessera, "exec", plan, place.out, "--share", "1/2")[0] == 0, "part 1")
        parts = left()
        status, _, err = alone(*other)
        need(status == 0 and "unfinished job of 2 shares" in err and left() == sorted(parts + ["out"]), f"{left()}: {err}")
        shutil.rmtree(place.out)
        status, _, err = alone(place.tessera, "exec", plan, place.out, "--share", "2/2", "--finish")
        need(status == 0 and tree(place.out) == place.reference and left() == ["out"], f"the row of jobs went on: {err}, {left()}")


@test
def a_replaced_checkpoint_is_the_old_or_the_new_one(directory):
    old = os.path.join(SAMPLES, "dcp_crc_off")
    with Place(directory) as place:
        def fresh():
            place.clear()
            shutil.copytree(old, place.out)
            return place.command("--overwrite")
        for ranks, rank, call, after, name in points(directory, place.scratch, (2,) if not FULL else (2, 5), 8, fresh):
            where = f"rank {rank} of {ranks} killed {'behind' if after else 'before'} call {call}, {name}"
            job = killed(directory, ranks, rank, call, after, *fresh())
            need(job.status != 0, f"{where}: status 0")
            is_old = [alone(place.tessera, "diff", "--values", reference, place.out)[0] == 0 for reference in (old, place.source)]
            need(is_old.count(True) == 1, f"{where}: neither the old checkpoint nor the new one")
            job = mpirun(2, *place.command("--overwrite"))
            need(job.status == 0, f"{where}, then run again: {job.err[-600:]}")
            need(alone(place.tessera, "diff", "--values", place.source, place.out)[0] == 0, f"{where}: the next run wrote other values")
            need(alone(place.tessera, "validate", "--deep", "--fail-on", "warning", place.out)[0] == 0, f"{where}: what the next run wrote is not valid")


@test
def a_killed_check_is_no_verdict(directory):
    with Place(directory) as place:
        arguments = [place.tessera, "validate", "--deep", "--json", place.source]
        want = alone(*arguments)[1]
        for ranks, rank, call, after, name in points(directory, place.scratch, (3,), 4, lambda: arguments):
            job = killed(directory, ranks, rank, call, after, *arguments)
            where = f"rank {rank} of {ranks} killed {'behind' if after else 'before'} call {call}, {name}"
            need(job.status not in (0, 1) and job.seconds <= 30, f"{where}: status {job.status} after {job.seconds:.0f} s")
            need(job.out == want or not is_json(job.out), f"{where}: another document")
        need(mpirun(3, *arguments).out == want, "the next check says something else")


def is_json(text):
    try:
        json.loads(text)
        return True
    except ValueError:
        return False
