"""What a scheduler does with Tessera: steps on several nodes, arrays, preemption, dead ranks and nodes, time limits, statuses.
Slurm itself runs the jobs (cluster); samples/slurm has the batch scripts. Skipped, with the reason, where it cannot start."""
import contextlib
import json
import os
import re
import shutil
import signal
import tempfile
import time

from cluster import cluster, kill, ranks_of, wait_for
from harness import ROOT, SAMPLES, alone, need, safetensors, side_by_side, test, tree
from test_signals import huge

SCRIPTS = os.path.join(ROOT, "samples", "slurm")
RESHARD = ["--mesh", "dp=3", "--placements", "shard(0)", "--to", "dcp"]
SRUN = ["srun", "--mpi=pmix", "--kill-on-bad-exit=1"]
ATTEMPTS = 4  # where a rank may die in Open MPI's MPI_Init (samples/slurm/README.md)


@contextlib.contextmanager
def place(*names):
    """A directory, and the paths of these names in it."""
    with tempfile.TemporaryDirectory(prefix="tessera-slurm-job-") as scratch:
        yield [os.path.join(scratch, name) for name in names]


def on_path(directory):
    return {"PATH": f"{directory}:{os.environ['PATH']}"}


def step(*command, env=None):
    """A step of srun, again where a rank died before it began."""
    for _ in range(ATTEMPTS):
        job = cluster().run(*command, env=env)
        if "Segmentation fault" not in job.err:
            break
        print("note: a rank died in MPI_Init; the step runs again")
    return job


@test
def slurm_steps_write_what_one_process_writes(directory):
    tessera = f"{directory}/tessera"
    with place("a.safetensors", "one", "many") as (source, one, many):
        safetensors(source, [300_000, 1, 0, 250_000] + [1000] * 50, 5)
        rows = [(["convert", source], ["--to", "torch"], 1, 2), (["convert", os.path.join(SAMPLES, "dcp_crc_off")], ["--to", "dcp"], 2, 2),
                (["reshard", source], RESHARD, 3, 6)]
        for command, options, nodes, tasks in rows:
            need(alone(tessera, *command, one, *options)[0] == 0, f"{command} by one process")
            job = step(*SRUN, f"-N{nodes}", f"-n{tasks}", tessera, *command, many, *options)
            need(job.status == 0 and tree(many) == tree(one), f"{command} on {nodes} nodes: {job.status} {job.err[-800:]}")
            need(job.err.count("wrote ") == 1, f"not said once: {job.err}")
            for path in (one, many):
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


@test
def slurm_steps_end_with_the_statuses_of_one_process(directory):
    """0, 1 and 2, with one document or one sentence that no other rank's output cuts in two."""
    tessera = f"{directory}/tessera"
    bad, good = (os.path.join(SAMPLES, name) for name in ("broken_dcp_byte_flipped", "dcp_crc_off"))
    for path, want, kills in ((good, 0, (0,)), (bad, 1, (0, 1)), (good + "-missing", 2, (1,))):  # kills: the others, when one ends with 1 or 2
        status, out, err = alone(tessera, "validate", "--deep", "--json", path)
        need(status == want, f"{path} by one process: {status} {err}")
        for kill_others in kills:
            job = step("srun", "--mpi=pmix", f"--kill-on-bad-exit={kill_others}", "-N3", "-n6", tessera, "validate", "--deep", "--json", path)
            said = [line for line in job.err.splitlines() if line.startswith("tessera: ")]
            need(job.status == want and said == err.splitlines(), f"{path}: {job.status} {job.err}")
            need(json.loads(job.out) == json.loads(out), f"{path}: another document: {job.out[:500]}")
    facts = cluster().ended(cluster().submit(os.path.join(SCRIPTS, "validate.sbatch"), bad, env=on_path(directory)))
    need(facts["ExitCode"] == "1:0", f"validate.sbatch: {facts['ExitCode']} {cluster().printed(facts['JobId'])}")


@test
def slurm_refuses_older_pmi_before_mpi_begins(directory):
    """srun --mpi=pmi2: the ranks of Open MPI cannot find each other. One task needs nobody."""
    with place("x.pt") as (out,):
        command = [f"{directory}/tessera", "convert", os.path.join(SAMPLES, "dcp_crc_off"), out]
        for nodes, tasks, kill_others in ((1, 3, 0), (3, 3, 1)):
            job = cluster().run("srun", "--mpi=pmi2", f"-N{nodes}", f"-n{tasks}", f"--kill-on-bad-exit={kill_others}", *command)
            said = [line for line in job.err.splitlines() if not line.startswith(("srun: ", "slurmstepd"))]
            need(job.status == 2 and len(said) == 1 and "use srun --mpi=pmix" in said[0] and not os.path.exists(out), f"{job.status}: {job.err}")
        job = cluster().run("srun", "--mpi=pmi2", "-N1", "-n1", *command)
        need(job.status == 0 and os.path.exists(out), f"one task: {job.status} {job.err}")


@test
def slurm_array_does_the_parts_of_a_plan(directory):
    tessera = f"{directory}/tessera"
    with place("a.safetensors", "one", "many") as (source, one, many):
        safetensors(source, [10_000_000, 7, 0, 2_500_000] + [1000] * 20, 6)
        need(alone(tessera, "reshard", source, one, *RESHARD)[0] == 0, "one process")
        job = cluster().run(os.path.join(SCRIPTS, "submit-parts"), 4, source, many, *RESHARD, env=on_path(directory))
        need(job.status == 0, f"submit-parts: {job.err}")
        facts = cluster().ended(job.out.strip())
        need(facts["JobState"] == "COMPLETED" and tree(many) == tree(one), f"{facts['JobState']}, {facts.get('ExitCode')}")


@test
def slurm_finish_waits_for_all_parts(directory):
    """A part that never ran: --finish fails and there is no marker. When it is done too, the checkpoint is whole."""
    tessera = f"{directory}/tessera"
    with place("a.safetensors", "one", "many", "plan.json") as (source, one, many, plan):
        safetensors(source, [10_000_000, 7, 2_500_000] + [1000] * 20, 7)
        need(alone(tessera, "reshard", source, one, *RESHARD)[0] == 0, "one process")
        with open(plan, "w") as f:
            f.write(alone(tessera, "plan", source, *RESHARD, "--json")[1])

        def finished():
            number = cluster().submit(os.path.join(SCRIPTS, "finish.sbatch"), plan, many, env=on_path(directory))
            return cluster().ended(number)

        def parts(which):
            number = cluster().submit(os.path.join(SCRIPTS, "part.sbatch"), plan, many, 3, options=[f"--array={which}"], env=on_path(directory))
            cluster().ended(number)
        parts("1,3")
        facts = finished()
        need(facts["JobState"] == "FAILED" and facts["ExitCode"] == "2:0" and not os.path.exists(os.path.join(many, ".metadata")), f"{facts}")
        parts("2")
        facts = finished()
        need(facts["JobState"] == "COMPLETED" and tree(many) == tree(one), f"{facts['JobState']}: {cluster().printed(facts['JobId'])}")


def journals(out):
    directory, name = os.path.split(out)
    return [n for n in os.listdir(directory) if n.startswith(f".{name}.tessera-") and "-by-" in n]


@test
def slurm_preempted_job_resumes_when_it_is_requeued(directory):
    """A rank is stopped in the middle of its work, so that the job cannot be done before another one takes its nodes."""
    tessera = f"{directory}/tessera"
    with place("a.safetensors", "one", "many") as (source, one, many):
        safetensors(source, [10_000_000, 7, 1_500_000] + [5000] * 20, 8)
        need(alone(tessera, "reshard", source, one, *RESHARD)[0] == 0, "one process")
        number = cluster().submit(os.path.join(SCRIPTS, "reshard.sbatch"), source, many, *RESHARD, "--max-mem", "1MiB", options=["-pbatch", "--exclusive"],
                                  env=on_path(directory))
        wait_for("the ranks", lambda: len(ranks_of(source)) == 6)
        kill(ranks_of(source)[5], signal.SIGSTOP)
        urgent = cluster().run("srun", "-purgent", "--exclusive", "-N3", "-n3", "true")
        need(urgent.status == 0, f"the urgent job: {urgent.err}")
        need(not os.path.exists(os.path.join(many, ".metadata")), "a marker of a job that was preempted")
        need(cluster().facts(number)["Restarts"] == "1", f"not requeued: {cluster().facts(number)}")
        facts = cluster().ended(number, 90)
        need(facts["JobState"] == "COMPLETED" and tree(many) == tree(one), f"{facts['JobState']}: {cluster().printed(number)}")


class Running:
    """A step that cannot be done before it is disturbed: 64 GiB on three nodes, of which every rank has begun to write."""

    def __init__(self, directory, source, out, *options, env=None):
        for _ in range(ATTEMPTS):
            self.began = time.monotonic()
            self.step = cluster().start("srun", "--mpi=pmix", "-N3", "-n3", *options, f"{directory}/tessera", "convert", source, out, "--to", "dcp", "--dtype", "bfloat16",
                                        env=env)
            wait_for("the journals", lambda: len(journals(out)) == 3 or self.step.poll() is not None)
            if self.step.poll() is None:
                break
            print("note: a rank died in MPI_Init; the step runs again")
        need(self.step.poll() is None, f"it ended before it was disturbed: {self.step.poll()}")
        self.source, self.ranks = source, ranks_of(source)
        need(len(self.ranks) == 3, f"{self.ranks}")

    def ended(self, limit):
        """How the step ended, at most `limit` seconds from here."""
        job = cluster().finish(self.step, time.monotonic(), limit + 20)
        wait_for("the end of all ranks", lambda: not ranks_of(self.source), 20)
        need(job.seconds <= limit, f"it went on for {job.seconds:.1f} s: {job.err[-800:]}")
        return job


@contextlib.contextmanager
def huge_place():
    with place("a.safetensors", "out/d") as (source, out):
        os.mkdir(os.path.dirname(out))
        huge(source)
        yield source, out


@test
def slurm_signals_and_time_limits_end_jobs(directory):
    """At the same time, because Slurm looks for jobs beyond their limit only every 30 seconds."""
    cluster()
    side_by_side(lambda check: check(directory), (check_signals, check_time_limit))


def check_signals(directory):
    """srun sees the signal, nothing is left, and a dead rank does not keep the others from ending. Where Slurm itself ends the step
    at the first rank that fails, its SIGTERM can reach a rank before our SIGINT does: no SIGINT in those steps."""
    for number, how, dead in ((signal.SIGTERM, "step", None), (signal.SIGINT, "step", None), (signal.SIGTERM, "job", None), (signal.SIGTERM, "step", 2),
                              (signal.SIGTERM, "rank", None)):
        with huge_place() as (source, out):
            kill_others = 0 if dead or number == signal.SIGINT else 1
            running = Running(directory, source, out, "--job-name=signals", f"--kill-on-bad-exit={kill_others}")
            if dead:
                kill(running.ranks[dead])
                time.sleep(2)
            job_id = cluster().run("squeue", "-h", "--name=signals", "-o", "%i").out.strip()
            if how == "rank":
                kill(running.ranks[1], number)
            else:
                cluster().run("scancel", *([f"--signal={number.name[3:]}"] if how == "step" else []), job_id)
            what = f"{number.name} to the {how}{f' with rank {dead} dead' if dead else ''}"
            job = running.ended(5)
            need(job.status == 128 + number or dead and job.status == 137, f"{what}: status {job.status} {job.err[-800:]}")
            if how != "rank":
                need(os.listdir(os.path.dirname(out)) == [], f"{what}: left {os.listdir(os.path.dirname(out))}")


def check_time_limit(directory):
    """Slurm's shortest limit is a minute: the end of a job that runs is moved instead. Its ranks are stopped, to leave the cores
    to others; Slurm wakes them when it ends the job."""
    with huge_place() as (source, out):
        number = cluster().submit(os.path.join(SCRIPTS, "reshard.sbatch"), source, out, "--mesh", "dp=2", "--placements", "shard(0)", options=["-N1", "-n2"],
                                  env=on_path(directory))
        wait_for("the journals", lambda: len(journals(out)) == 2)
        for process in ranks_of(source).values():
            kill(process, signal.SIGSTOP)
        end = cluster().run("date", "-d", "3 seconds", "+%Y-%m-%dT%H:%M:%S").out.strip()
        need(cluster().run("scontrol", "update", f"JobId={number}", f"EndTime={end}").status == 0, "scontrol update")
        facts = cluster().ended(number, 90)
        need(facts["JobState"] == "TIMEOUT" and not os.path.exists(os.path.join(out, ".metadata")), f"{facts['JobState']}: {cluster().printed(number)}")


@test
def slurm_batch_script_sees_the_signal(directory):
    with huge_place() as (source, out):
        script, seen = os.path.join(os.path.dirname(source), "script"), os.path.join(os.path.dirname(source), "seen")
        with open(script, "w") as f:
            f.write(f'#!/bin/bash\nsrun --mpi=pmix {directory}/tessera convert "{source}" "{out}" --to dcp --dtype bfloat16\necho $? >>"{seen}"\n')
        for _ in range(ATTEMPTS):
            number = cluster().submit(script, options=["-N3", "-n3"])
            wait_for("the journals", lambda: len(journals(out)) == 3 or os.path.exists(seen))
            if not os.path.exists(seen):
                break
            os.remove(seen)
        cluster().run("scancel", "--signal=TERM", number)
        wait_for("what the script saw", lambda: os.path.exists(seen) and os.path.getsize(seen))
        with open(seen) as f:
            need(f.read() == "143\n", f"the script saw another status: {cluster().printed(number)}")
        need(os.listdir(os.path.dirname(out)) == [], f"left {os.listdir(os.path.dirname(out))}")


@test
def slurm_dead_ranks_end_the_step(directory):
    """At once with --kill-on-bad-exit; by the watchdog, with one sentence, without. The next run writes the whole."""
    with huge_place() as (source, out):
        running = Running(directory, source, out, "--kill-on-bad-exit=1")
        kill(running.ranks[2])
        job = running.ended(10)
        need(job.status != 0 and not os.path.exists(out), f"{job.status}, {job.err[-500:]}")
        running = Running(directory, source, out, "--kill-on-bad-exit=0", env={"TESSERA_PEER_LIMIT": "4"})
        kill(running.ranks[2])
        job = running.ended(15)
        said = re.findall(r"tessera: .*", job.err)
        need(job.status == 2 and len(said) == 1 and "rank 2 has not been heard of" in said[0], f"{job.status}: {job.err}")
        need("MPI_ABORT was invoked" not in job.err and not os.path.exists(out), f"{job.err}")
        safetensors(source, [3000], 2)
        status, _, err = alone(f"{directory}/tessera", "convert", source, out, "--to", "dcp")
        need(status == 0 and os.listdir(os.path.dirname(out)) == ["d"], f"the run behind it: {err}, {os.listdir(os.path.dirname(out))}")


@test
def slurm_ranks_that_lose_one_at_the_start_end(directory):
    """It dies as MPI_Init returns or before it, when no watchdog watches it: the others do not wait for the time limit."""
    tessera = f"{directory}/tessera"
    with place("x.pt") as (out,):
        for after, limit in (("1", 2), ("", 6)):
            environment = {"LD_PRELOAD": f"{directory}/libkill_at.so", "KILL_AT_RANK": "1", "KILL_AT_CALL": "1", "TESSERA_PEER_LIMIT": "2"}
            if after:
                environment["KILL_AT_AFTER"] = after
            words = [f"{name}={value}" for name, value in environment.items()]
            job = cluster().run("srun", "--mpi=pmix", "-N3", "-n3", "env", *words, tessera, "convert", os.path.join(SAMPLES, "dcp_crc_off"), out)
            said = re.findall(r"tessera: .*", job.err)
            need(job.status and job.seconds <= limit + 12, f"{after}: {job.status} after {job.seconds:.0f} s: {job.err}")
            need(len(said) == 1 and "did not find each other within" in said[0] and not os.path.exists(out), f"{after}: {job.err}")


@test
def slurm_lost_node_ends_the_step(directory):
    """Its wire is cut. The other nodes' ranks end within the peer limit, its own too; then it comes back."""
    wire = lambda state: cluster().run("ip", "link", "set", "port3", state)
    with huge_place() as (source, out):
        running = Running(directory, source, out, env={"TESSERA_PEER_LIMIT": "4"})
        need(wire("down").status == 0, "the wire cannot be cut")
        try:
            wait_for("the end of the ranks", lambda: not ranks_of(source), 30)
        finally:
            wire("up")
        job = running.ended(60)
        need(job.status != 0 and not os.path.exists(out), f"{job.status}: {job.err[-500:]}")


@test
def slurm_dead_slurmd_lets_the_step_go_on(directory):
    """Ranks belong to the step's own daemon: without slurmd they write the whole."""
    with huge_place() as (source, out):
        running = Running(directory, source, out, "--kill-on-bad-exit=1")
        with cluster().without_slurmd("n3"):
            job = running.ended(60)
        need(job.status == 0 and os.path.exists(os.path.join(out, ".metadata")), f"{job.status}: {job.err[-800:]}")
        status, _, err = alone(f"{directory}/tessera", "validate", out)
        need(status == 0, f"what it wrote: {err}")
    cluster().wait_for_nodes()


@test
def slurm_lost_slurmd_ends_the_step(directory):
    """Slurm gives the node up. It ends the ranks that it can reach; the one that it cannot ends within the peer limit."""
    with huge_place() as (source, out):
        running = Running(directory, source, out, env={"TESSERA_PEER_LIMIT": "4"})
        with cluster().without_slurmd("n3"):
            need(len(ranks_of(source)) == 3, "the ranks ended with slurmd")
            cluster().lose("n3")
            wait_for("the end of Slurm's ranks", lambda: running.step.poll() is not None, 15)
            wait_for("the end of the rank that Slurm cannot reach", lambda: not ranks_of(source), 10)
            job = running.ended(5)
            need(job.status == 143 and "Node failure" in job.err, f"{job.status}: {job.err[-800:]}")
            need(not os.path.exists(os.path.join(out, ".metadata")), "a marker of a step that was ended")
    cluster().wait_for_nodes()


@test
def slurm_job_of_a_lost_slurmd_resumes_on_other_nodes(directory):
    """Requeued by Slurm while the node, on which the script itself ran, is still lost. A rank is stopped in the middle of its work,
    so that the job cannot be done before."""
    cluster().wait_for_nodes()
    tessera = f"{directory}/tessera"
    with place("a.safetensors", "one", "many") as (source, one, many):
        safetensors(source, [30_000_000, 7, 30_000_000] + [5000] * 20, 9)
        need(alone(tessera, "reshard", source, one, *RESHARD)[0] == 0, "one process")
        number = cluster().submit(os.path.join(SCRIPTS, "reshard.sbatch"), source, many, *RESHARD, "--max-mem", "1MiB", options=["-N2", "-n4", "--exclusive"],
                                  env={**on_path(directory), "TESSERA_PEER_LIMIT": "5"})
        wait_for("the journals", lambda: len(journals(many)) == 4)
        kill(ranks_of(source)[3], signal.SIGSTOP)
        lost = cluster().run("squeue", "-h", "-j", number, "-o", "%N").out.strip()
        need(lost == "n[1-2]", f"it runs on {lost}")
        with cluster().without_slurmd("n1"):
            cluster().lose("n1")
            facts = cluster().ended(number, 90)
            nodes = facts["NodeList"]
        need(facts["JobState"] == "COMPLETED" and facts["Restarts"] == "1" and nodes == "n[2-3]",
             f"{facts['JobState']}, {facts['ExitCode']}, {facts['Restarts']}, {nodes}: {cluster().printed(number)}")
        need(tree(many) == tree(one), f"other bytes: {cluster().printed(number)}")
        need("\nresumed: " in cluster().printed(number), f"it started over: {cluster().printed(number)}")
    cluster().wait_for_nodes()
