"""Ranks on several hosts: network namespaces on one wire, connected only by TCP (hosts). Skipped, with the reason, if they
cannot be created."""
import glob
import os
import re
import select
import signal
import subprocess
import tempfile
import time

from harness import FULL, ROOT, SAMPLES, alone, job_environment, job_mark, mpirun, need, safetensors, test, tree, wait_for_end

HOSTS = os.path.join(ROOT, "tests", "mpi", "hosts")


def reason_to_skip():
    probe = subprocess.run([HOSTS, "probe"], capture_output=True, text=True)
    return probe.stdout.strip() or None if probe.returncode else None


def on_hosts(f):
    def run(directory):
        reason = reason_to_skip()
        if reason:
            print(f"skip {f.__name__}: {reason}")
        else:
            f(directory)
    run.__name__ = f.__name__
    return test(run)


def job(hosts, ranks, *command, limit=120, **more):
    return mpirun(ranks, *command, on=(HOSTS, str(hosts)), limit=limit, **more)


@on_hosts
def ranks_lie_on_different_hosts(directory):
    out = job(3, 6, "sh", "-c", "hostname").out.split()
    need(sorted(out) == ["host1", "host1", "host2", "host2", "host3", "host3"], f"{out}")


@on_hosts
def hosts_write_and_judge_as_one_process(directory):
    tessera = f"{directory}/tessera"
    with tempfile.TemporaryDirectory(prefix="tessera-mpi-") as scratch:
        at = lambda name: os.path.join(scratch, name)
        safetensors(at("a.safetensors"), [3_000_000, 1, 0, 2_500_000] + [1000] * 50, 5)
        rows = [["convert", at("a.safetensors"), "--to", "torch"], ["convert", os.path.join(SAMPLES, "dcp_crc_off"), "--to", "dcp"],
                ["reshard", at("a.safetensors"), "--mesh", "dp=3", "--placements", "shard(0)", "--to", "dcp"]]
        for i, (command, source, *options) in enumerate(rows):
            one = at(f"one{i}")
            need(alone(tessera, command, source, one, *options)[0] == 0, f"{command} by one process")
            for hosts, ranks in ((2, 2), (3, 5)):
                many = at(f"{i}-on-{hosts}")
                ended = job(hosts, ranks, tessera, command, source, many, *options)
                need(ended.status == 0 and tree(many) == tree(one), f"{command} on {hosts} hosts: {ended.status} {ended.err[-600:]}")
            status, out, _ = alone(tessera, "validate", "--deep", "--json", one)
            ended = job(2, 3, tessera, "validate", "--deep", "--json", one)
            need(ended.status == status and ended.out == out, f"validate on 2 hosts: {ended.status}: {ended.out[:500]} {ended.err[-500:]}")


@on_hosts
def programs_over_ranks_pass_on_hosts(directory):
    """Shared memory connects only some of the ranks."""
    programs = sorted(glob.glob(os.path.join(directory, "test_*_mpi")))
    chosen = [path for path in programs if FULL or re.search("redistribute|check_shared", path)]
    need(chosen, f"no program in {directory}")
    for path in chosen:
        for hosts, ranks in ((2, 3),) if not FULL else ((2, 2), (2, 5), (3, 8)):
            ended = job(hosts, ranks, path, limit=600)
            count = len(re.findall(r"^\[ +OK +\] ", ended.out, re.M))
            need(ended.status == 0 and count, f"{os.path.basename(path)}, {ranks} ranks on {hosts} hosts: {ended.status}: {ended.out[-1500:]} {ended.err[-1500:]}")


@on_hosts
def a_rank_killed_on_another_host_ends_the_job(directory):
    tessera = f"{directory}/tessera"
    with tempfile.TemporaryDirectory(prefix="tessera-mpi-") as scratch:
        source, out, reference = (os.path.join(scratch, name) for name in ("a.safetensors", "out", "reference"))
        safetensors(source, [5_000_000] + [5000] * 20, 4)
        options = ["--mesh", "dp=3", "--placements", "shard(0)", "--to", "dcp"]
        need(alone(tessera, "reshard", source, reference, *options)[0] == 0, "one process")
        for call in (1, 6, 12, 18) if not FULL else range(1, 40):
            environment = {"KILL_AT_RANK": "1", "KILL_AT_CALL": str(call)}
            killed = job(2, 4, tessera, "reshard", source, out, *options, options=("-x", f"LD_PRELOAD={directory}/libkill_at.so", "-x", "KILL_AT_RANK", "-x", "KILL_AT_CALL"),
                         env=environment)
            if killed.status == 0:
                need(call > 6, f"call {call}: nobody died")
                break
            need(killed.seconds <= 30, f"call {call}: the job went on for {killed.seconds:.0f} s")
            need(not os.path.exists(out), f"call {call}: something half-written is visible")
        ended = job(2, 3, tessera, "reshard", source, out, *options, *(["--overwrite"] if os.path.exists(out) else ["--resume"]))
        need(ended.status == 0 and tree(out).keys() == tree(reference).keys(), f"the run after it: {ended.err[-500:]}")
        need(alone(tessera, "diff", "--values", reference, out)[0] == 0, "the run after it wrote other values")
        need(sorted(os.listdir(scratch)) == ["a.safetensors", "out", "reference"], f"left {os.listdir(scratch)}")


@on_hosts
def ranks_end_when_a_host_vanishes(directory):
    """The wire of the second host is cut during the work. mpirun itself waits for that host until someone ends it (Open MPI
    4.1), which is not tested here."""
    tessera = f"{directory}/tessera"
    with tempfile.TemporaryDirectory(prefix="tessera-mpi-") as scratch:
        source, out = os.path.join(scratch, "a.safetensors"), os.path.join(scratch, "out")
        safetensors(source, [5_000_000] + [5000] * 20, 4)
        options = ["--mesh", "dp=3", "--placements", "shard(0)", "--to", "dcp"]
        # cut once the second host has begun its journal, which it is slow to finish, so the job cannot end before the cut
        cut = f'(until ls {scratch}/.out.*.2-by-2; do sleep 0.02; done; ip link set eth0 down) >/dev/null 2>&1 &'
        shell = f'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then {cut} fi; exec "$0" "$@"'
        mark = job_mark()
        line = [HOSTS, "2", "mpirun", "-n", "2", "-x", "TSR_TEST_JOB", "-x", "TESSERA_PEER_LIMIT",
                "-x", f"LD_PRELOAD={directory}/libslow_journals.so", "bash", "-c", shell, tessera, "reshard", source, out, *options]
        p = subprocess.Popen(line, env=job_environment(mark, TESSERA_PEER_LIMIT="4"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, start_new_session=True)
        said = heard(p, b"dead or cut off", 40)
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()
        wait_for_end(mark)  # a rank that is still ending holds its locks, and the next run would be rejected
        need(b"rank 1 has not been heard of" in said, f"rank 0 said: {said.decode()}")
        need(not os.path.exists(out), "something half-written is visible")
        status, _, err = alone(tessera, "reshard", source, out, *options)
        need(status == 0, f"the run after it: {status} {err}")
        need(sorted(os.listdir(scratch)) == ["a.safetensors", "out"], f"left {os.listdir(scratch)}")


def heard(process, word, limit):
    """Returns what the process writes to stderr, up to the word or until the limit in seconds."""
    said, end = b"", time.monotonic() + limit
    while word not in said and time.monotonic() < end:
        ready, _, _ = select.select([process.stderr], [], [], 1)
        more = os.read(process.stderr.fileno(), 65536) if ready else b""
        if ready and not more:
            break
        said += more
    return said
