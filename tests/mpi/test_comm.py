"""Dead, stopped and slow processes below tessera's communicator (victim.c)."""
from harness import FULL, mpirun, need, side_by_side, test


def victim(directory, ranks, kind, rank, call, limit, options=()):
    return mpirun(ranks, f"{directory}/victim", kind, rank, call, limit, options=options)


@test
def a_killed_rank_ends_the_job(directory):
    def check(point):
        ranks, call, kind = point
        job = victim(directory, ranks, kind, call % ranks, call, 20)
        where = f"{kind} of rank {call % ranks} of {ranks} at call {call}"
        need(job.status != 0 and "done" not in job.out, f"{where}: status {job.status}, {job.out}")
        need(job.seconds < 30, f"{where}: {job.seconds:.0f} s")
    # at the last call, rank 0 may have finished already
    side_by_side(check, [(ranks, call, kind) for ranks in ((2, 5) if not FULL else range(2, 17)) for call in range(6)
                         for kind in ("kill", "kill-after") if (call, kind) != (5, "kill-after")])


@test
def the_watchdog_ends_what_the_launcher_leaves(directory):
    """With --enable-recovery, mpirun continues without dead ranks, as other launchers do. Its own status is then 0."""
    def check(point):
        ranks, kind, rank, call = point
        job = victim(directory, ranks, kind, rank, call, 4, ("--enable-recovery",))
        where = f"{kind} of rank {rank} of {ranks} at call {call}"
        need(f"rank {rank} is dead; ending the job" in job.err, f"{where}: {job.err}")
        need("done" not in job.out, f"{where}: the job was finished")
        need(job.seconds < 30, f"{where}: {job.seconds:.0f} s")
    side_by_side(check, [(2, "kill", 1, 0), (3, "kill", 0, 1), (4, "kill-after", 3, 2), (3, "kill", 1, 4)])


@test
def a_stopped_rank_ends_the_job(directory):
    job = victim(directory, 3, "stop", 2, 2, 4)
    need(job.status != 0 and "rank 2 has not been heard of" in job.err and "it is stopped; ending the job" in job.err, f"status {job.status}: {job.err}")


@test
def a_busy_rank_is_waited_for(directory):
    job = victim(directory, 3, "busy", 1, 2, 2)
    need(job.status == 0 and job.out == "done\n", f"status {job.status}: {job.err}")


@test
def more_bytes_than_an_int_counts_arrive(directory):
    """The ordinary run has only a few rounds of MPI calls, because gigabytes take a minute on a busy machine."""
    for ranks, size in ((2, 2**28 + 2**24),) if not FULL else ((2, 2**31 + 2**26), (3, 2**32 + 2**24), (2, 9 * 2**30)):
        job = mpirun(ranks, f"{directory}/large", size, limit=600)
        need(job.status == 0 and job.out == "done\n", f"{size} bytes on {ranks}: status {job.status}: {job.err[-600:]}")
