"""A Slurm cluster for the tests: starts `cluster`, runs commands in it, and ends it with all its processes."""
import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time

from harness import Bad, Job, ROOT, Skip, need

CLUSTER = os.path.join(ROOT, "tests", "slurm", "cluster")
NODES = 3
RUNNING = None


def cluster():
    """The one cluster of a run, started by the first test that needs it. Raises Skip where there can be none."""
    global RUNNING
    if RUNNING is None:
        RUNNING = start()
    if isinstance(RUNNING, str):
        raise Skip(RUNNING)
    return RUNNING


def start():
    probe = subprocess.run([CLUSTER, "probe"], capture_output=True, text=True)
    if probe.returncode:
        return f"Slurm cannot start here: {probe.stdout.strip()}"
    made = Cluster()
    atexit.register(made.close)
    return made if made.is_ready() else f"Slurm did not start: {made.why()}"


class Cluster:
    def __init__(self):
        self.directory = tempfile.mkdtemp(prefix="tessera-slurm-")
        with open(self.path("out"), "wb") as log:
            # they end with this process, however it ends
            self.daemons = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", CLUSTER, str(NODES), self.directory], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def is_ready(self, limit=60):
        until = time.monotonic() + limit
        while not os.path.exists(self.path("ready")):
            if self.daemons.poll() is not None or time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def why(self):
        text = ""
        for name in ("out", "slurmctld.out", "slurmd.n1.out"):
            if os.path.exists(self.path(name)):
                with open(self.path(name), errors="replace") as f:
                    text += f.read()
        errors = [line for line in text.splitlines() if "error" in line or "fatal" in line]
        return " / ".join(errors[-3:] or text.splitlines()[-1:])

    def close(self):
        """The daemons and their jobs are in a process namespace that ends with the process that `unshare` started."""
        if self.daemons.poll() is None:
            self.daemons.kill()
        self.daemons.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def first_process(self):
        with open(f"/proc/{self.daemons.pid}/task/{self.daemons.pid}/children") as f:
            return f.read().split()[0]

    def start(self, *command, env=None, cwd=None):
        line = ["nsenter", "--target", self.first_process(), "--net", "--uts", "--mount", "--pid", f"--wd={cwd or self.directory}", "--", *map(str, command)]
        environment = {**os.environ, "SLURM_CONF": self.path("slurm.conf"), **(env or {})}
        return subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)

    def run(self, *command, limit=60, **more):
        began = time.monotonic()
        p = self.start(*command, **more)
        return self.finish(p, began, limit)

    def finish(self, p, began, limit=60):
        try:
            out, err = p.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            p.kill()
            out, err = p.communicate()
            raise Bad(f"{p.args[8:]} did not end in {limit} s: {err.decode(errors='replace')[-800:]}")
        return Job(p.returncode, out.decode(errors="replace"), err.decode(errors="replace"), time.monotonic() - began)

    def submit(self, script, *arguments, options=(), **more):
        """Of a batch script: the number of its job. What it prints goes to DIRECTORY/job-NUMBER."""
        job = self.run("sbatch", "--parsable", f"--output={self.path('job-%A')}", *options, script, *arguments, **more)
        need(job.status == 0, f"sbatch {script}: {job.err}")
        return job.out.strip()

    def printed(self, number):
        with open(self.path(f"job-{number}"), errors="replace") as f:
            return f.read()

    def facts(self, number):
        """What `scontrol show job` reports, of the last job of an array."""
        return dict(word.split("=", 1) for word in self.run("scontrol", "-o", "show", "job", number).out.split() if "=" in word)

    def ended(self, number, limit=60):
        """Waits for a batch job: its facts."""
        until = time.monotonic() + limit
        while time.monotonic() < until:
            facts = self.facts(number)
            if facts.get("JobState") not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", None) and "EndTime" in facts:
                return facts
            time.sleep(0.2)
        raise Bad(f"job {number} did not end in {limit} s: {facts}")


    def slurmd_of(self, node):
        """The process of a node's slurmd; None: it is dead."""
        for name in os.listdir("/proc"):
            try:
                with open(f"/proc/{name}/cmdline", "rb") as f:
                    line = f.read().split(b"\0")
                with open(f"/proc/{name}/environ", "rb") as f:
                    own = self.path("slurm.conf").encode() in f.read()
            except OSError:
                continue
            if own and line[:4] == [b"slurmd", b"-D", b"-N", node.encode()]:
                return int(name)
        return None

    @contextlib.contextmanager
    def without_slurmd(self, node):
        """The node's slurmd is killed, and starts again at the end. What it started lives on."""
        mark = self.path(f"dead.{node}")
        open(mark, "w").close()
        try:
            kill(self.slurmd_of(node))
            wait_for("the end of slurmd", lambda: self.slurmd_of(node) is None)
            yield
        finally:
            os.unlink(mark)
            wait_for("slurmd", lambda: self.slurmd_of(node))

    def lose(self, node):
        """Marks the node as slurmctld does when a slurmd has not reported for SlurmdTimeout."""
        need(self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost").status == 0, "scontrol update")

    def wait_for_nodes(self):
        """Until all nodes are idle."""
        wait_for("idle nodes", lambda: len(set(self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").out.split())) == NODES)


def ranks_of(mark):
    """{rank: process} of the processes that run tessera-mpi with `mark` among their arguments."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as f:
                line = f.read()
            if b"tessera-mpi" not in line.split(b"\0")[0] or mark.encode() not in line:
                continue
            with open(f"/proc/{name}/environ", "rb") as f:
                environment = dict(word.split(b"=", 1) for word in f.read().split(b"\0") if b"=" in word)
            found[int(environment[b"SLURM_PROCID"])] = int(name)
        except (OSError, KeyError):
            continue
    return found


def wait_for(what, condition, limit=40):
    until = time.monotonic() + limit
    while not condition():
        need(time.monotonic() < until, f"{what} did not come in {limit} s")
        time.sleep(0.05)


def kill(process, number=signal.SIGKILL):
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass
