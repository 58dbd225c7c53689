"""`tessera latest` next to a job that saves one step after another: by PyTorch's async_save in a thread and in a process, its writer of
safetensors and torch.save, and, with the Python that TESSERA_FRAMEWORKS names, by accelerate, the Trainer, Lightning, DeepSpeed and
Megatron-Core's asynchronous torch_dist. What latest_checkpointed_iteration.txt names is never newer than the answer.
All ranks are stopped at random moments (SIGSTOP), which leaves their files as a kill would, and killed at the end. Each time the
answer must be a step that the framework itself loads with the values of that step, and it must refuse each newer one. Answers while the ranks go
on must be between those before and after them. With TSR_TEST_FULL there are 150 moments for each, otherwise 8."""
import fnmatch
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time

from harness import frameworks
from http_serving import free_port

LOADERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "framework_loaders.py")
MOMENTS = 150 if os.environ.get("TSR_TEST_FULL") else 8
FIRST = 2  # the step that each saves before the others
LIMIT = 600  # seconds for a start, for a load, and for a step
# Files without which the framework loads the rest and says nothing: it is right to wait for them.
OPTIONAL = {"accelerate": ("random_states_*",), "huggingface": ("model.safetensors.index.json",)}
WORLD = {"dcp": 2, "dcp-process": 2, "deepspeed": 2, "deepspeed-3": 2, "megatron-async": 2}


class Ranks:
    """The processes of a job, in a process group of their own."""

    def __init__(self, t, framework, python, *arguments):
        self.log = open(t.at(f"log-{arguments[0]}"), "wb")
        world, port = WORLD.get(framework, 1), str(free_port())
        self.processes = []
        for rank in range(world):
            env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
            group = self.processes[0].pid if rank else 0
            self.processes.append(subprocess.Popen([python, LOADERS, framework, t.at(arguments[0]), *arguments[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
                                                   text=True, bufsize=1, env=env, process_group=group))
        self.group = self.processes[0].pid
        first = os.path.basename(self.lines()[0])
        self.name = re.compile(re.sub(r"\d+(?!.*\d)", r"\\d+", first))  # of the framework's steps

    def lines(self):
        lines = self.answers()
        assert all(lines), open(self.log.name, errors="replace").read()[-3000:]
        return lines

    def answers(self):
        """A line of each rank; empty if it has ended or hangs."""
        return [p.stdout.readline().rstrip("\n") if select.select([p.stdout], [], [], LIMIT)[0] else "" for p in self.processes]

    def states(self):
        """Of all threads of the group's processes."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.getpgid(int(pid)) == self.group:
                    for task in os.listdir(f"/proc/{pid}/task"):
                        with open(f"/proc/{pid}/task/{task}/stat") as f:
                            found.append(f.read().rpartition(")")[2].split()[0])
            except (OSError, ProcessLookupError):
                pass
        return found

    def stop(self):
        os.killpg(self.group, signal.SIGSTOP)
        until = time.monotonic() + LIMIT
        while any(state not in "TtZX" for state in self.states()):
            assert time.monotonic() < until, self.states()

    def go_on(self):
        os.killpg(self.group, signal.SIGCONT)

    def kill(self):
        os.killpg(self.group, signal.SIGKILL)
        for p in self.processes:
            p.wait()
            p.stdin.close()
            p.stdout.close()
        self.log.close()


class Loader:
    """What the framework makes of a path. If only some of the ranks refuse it, DeepSpeed's others wait for them or fail in a collective: then
    the ranks start again."""

    def __init__(self, *arguments):
        self.arguments, self.ranks = arguments, Ranks(*arguments)

    def verdict(self, path):
        for p in self.ranks.processes:
            print(path, file=p.stdin, flush=True)
        lines = self.ranks.answers()
        if not all(lines):
            self.ranks.kill()
            self.ranks = Ranks(*self.arguments)
        return next((line or "refused by some ranks" for line in lines if line != "equal"), "equal")


def step_of(name):
    return int(re.findall(r"\d+", os.path.basename(name))[-1])


def answer(t, run):
    """The step that `latest` answers, or 0 for none."""
    p = subprocess.run([t.path, "latest", run], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert p.returncode in (0, 1), p.stderr
    return step_of(p.stdout.rstrip("\n")) if p.stdout else 0


def tracked(run):
    """The step that Megatron's tracker file names; 0 if there is none, or if it is just being written."""
    try:
        with open(os.path.join(run, "latest_checkpointed_iteration.txt")) as f:
            return int(f.read() or 0)
    except FileNotFoundError:
        return 0


def steps_in(run, name):
    """{step: path} of what is named like a step."""
    return {step_of(one): os.path.join(run, one) for one in os.listdir(run) if name.fullmatch(one)}


def copy(path, to):
    shutil.copytree(path, to) if os.path.isdir(path) else shutil.copy(path, to)


def watch(t, writer, run):
    """Stops the writer at random moments. Returns [(the answer, the copied steps from it on)] of these, and all answers in their order."""
    rng, moments, answers = random.Random(47), [], []
    until = time.monotonic() + LIMIT
    while max(steps_in(run, writer.name)) <= FIRST:
        assert time.monotonic() < until and all(p.poll() is None for p in writer.processes), open(writer.log.name, errors="replace").read()[-3000:]
        time.sleep(0.1)
    moment, is_last = 0, False
    while not is_last:
        time.sleep(rng.random() * 0.3)
        answers.append(answer(t, run))
        time.sleep(rng.random() * 0.1)
        is_last = moment >= MOMENTS - 1 and (len(set(answers)) > 2 or time.monotonic() > until + LIMIT)
        writer.kill() if is_last else writer.stop()
        answers.append(answer(t, run))
        assert tracked(run) <= answers[-1], f"Megatron would load step {tracked(run)}, and the answer is {answers[-1]}"
        frame = t.at(f"frame{moment}")
        os.makedirs(frame)
        for step, path in steps_in(run, writer.name).items():
            if step >= answers[-1]:
                copy(path, os.path.join(frame, os.path.basename(path)))
            elif step < answers[-1] - 4:
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
        moments.append((answers[-1], steps_in(frame, writer.name)))
        if not is_last:
            writer.go_on()
        moment += 1
    return moments, answers


def files_of(path):
    return {os.path.relpath(os.path.join(at, name), path) for at, _, names in os.walk(path) for name in names}


def lacks_optional(framework, path, whole):
    """Whether an optional file is not whole yet: it is not there, or is shorter than that of a whole step."""
    names = [name for name in files_of(whole) if any(fnmatch.fnmatch(name, p) for p in OPTIONAL.get(framework, ()))]
    sizes = [(os.path.join(path, name), os.path.getsize(os.path.join(whole, name))) for name in names]
    return any(not os.path.exists(file) or os.path.getsize(file) < size for file, size in sizes)


def check(t, framework, python):
    for name in ("run", "loader", "digests"):
        os.makedirs(t.at(name))
    loader = Loader(t, framework, python, "loader", t.at("digests"))
    try:
        writer = Ranks(t, framework, python, "run", t.at("digests"), "--live")
        try:
            moments, answers = watch(t, writer, t.at("run"))
        finally:
            if writer.processes[0].poll() is None:
                writer.kill()
        assert answers == sorted(answers), f"the answers go back: {answers}"
        assert len(set(answers)) > 2, f"the job did not go on: {answers}"
        bad, newer, loaded = [], 0, {FIRST: "equal", 0: "equal"}  # the first step has no digest
        for moment, (found, steps) in enumerate(moments):
            for step, path in sorted(steps.items()):
                if step == found and step in loaded:
                    continue
                verdict = loader.verdict(path)
                newer += step > found
                if step == found:
                    loaded[step] = verdict
                elif verdict == "equal" and not lacks_optional(framework, path, steps.get(found, t.at("nowhere"))):
                    bad.append(f"moment {moment}: step {step} loads, and the answer was {found}")
        bad += [f"step {step}: {verdict}" for step, verdict in loaded.items() if verdict != "equal"]
        assert not bad, f"{framework}: " + "\n".join(bad)
        print(f"{framework}: {len(moments)} moments in {len(set(answers))} steps, {newer} unfinished")
    finally:
        loader.ranks.kill()


def test_next_to_async_save_in_a_thread(t):
    check(t, "dcp", sys.executable)


def test_next_to_async_save_in_a_process(t):
    check(t, "dcp-process", sys.executable)


def test_next_to_a_writer_of_safetensors(t):
    check(t, "huggingface", sys.executable)


def test_next_to_torch_save(t):
    check(t, "torch-file", sys.executable)


def test_next_to_accelerate(t):
    check(t, "accelerate", frameworks("accelerate"))


def test_next_to_the_trainer(t):
    check(t, "trainer", frameworks("transformers"))


def test_next_to_lightning(t):
    check(t, "lightning", frameworks("lightning"))


def test_next_to_deepspeed(t):
    check(t, "deepspeed", frameworks("deepspeed"))


def test_next_to_deepspeed_3(t):
    check(t, "deepspeed-3", frameworks("deepspeed"))


def test_next_to_megatron(t):
    check(t, "megatron-async", frameworks("megatron-core"))
