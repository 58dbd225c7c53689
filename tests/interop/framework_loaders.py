"""Saves and loads checkpoints by PyTorch, accelerate, Transformers' Trainer, Lightning, DeepSpeed and Megatron-Core, in an environment that
has them.

Usage: PYTHON framework_loaders.py FRAMEWORK DIRECTORY [DIGESTS [--live] | --killed]

Saves a checkpoint in DIRECTORY and prints its path. Then reads the paths of copies, one per line, and answers each with one line:
"equal" if the framework loads what was saved, "changed" if it loads other values without an error, or "refused" with the error. All
values are changed before each load.

With --live it saves one step after another instead, each with other values, until it is killed. The digest of each is in DIGESTS before its
save begins, and loads of a process that is given DIGESTS are compared with that of the path's step. RANK, WORLD_SIZE and MASTER_PORT make
it one of several ranks, which are all told the same paths. With --killed it saves step 3 in processes that are killed (killed_saves)."""
import ctypes
import datetime
import hashlib
import itertools
import logging
import os
import re
import shutil
import sys
import warnings

warnings.filterwarnings("ignore")
GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # the frameworks print to stdout
for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": str(20000 + os.getpid() % 10000)}.items():
    os.environ.setdefault(name, value)
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.environ.update(LOCAL_RANK=str(RANK), LOCAL_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")

import torch  # noqa: E402

logging.disable(logging.ERROR)


def content(value):
    """The values of a state, for comparison."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().cpu().reshape(-1).tolist()
    if isinstance(value, dict):
        return {str(k): content(v) for k, v in sorted(value.items(), key=lambda item: str(item[0]))}
    if isinstance(value, (list, tuple)):
        return [content(v) for v in value]
    return value if isinstance(value, (int, float, str, bytes, bool, type(None))) else type(value).__name__


def scramble(model, optimizers=(), schedulers=()):
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(-3)
        for optimizer in optimizers:
            for state in optimizer.state.values():
                for value in state.values():
                    if isinstance(value, torch.Tensor):
                        value.fill_(-5)
    for scheduler in schedulers:
        scheduler.last_epoch = -7


def change(model, optimizers=()):
    """As a step of training would, but everything changes, and no value is that of another step."""
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.125)
        for state in (state for optimizer in optimizers for state in optimizer.state.values()):
            state["exp_avg"].add_(0.25)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 5))


class Accelerate:
    name = "checkpoint_{}"

    def __init__(self, directory):
        from accelerate import Accelerator
        self.directory, self.path = directory, os.path.join(directory, "checkpoint_1")
        self.accelerator = Accelerator(cpu=True)
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2))
        for step in range(3):
            self.accelerator.backward(self.model(torch.randn(4, 5)).square().sum())
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
        self.accelerator.save_state(self.path)

    def train(self, step):
        change(self.model, [self.optimizer.optimizer])

    def save(self, step):
        self.accelerator.save_state(os.path.join(self.directory, self.name.format(step)))

    def state(self):
        return self.model.state_dict(), self.optimizer.state_dict(), self.scheduler.state_dict()

    def load(self, path):
        scramble(self.model, [self.optimizer.optimizer], [self.scheduler.scheduler])
        self.accelerator.load_state(path)


class AccelerateFsdp:
    """Two FSDP models, whose states accelerate saves as DCPs."""

    def __init__(self, directory):
        sys.path.insert(0, GOLDEN)
        import make_accelerate as made
        from torch.distributed.fsdp import FullyShardedDataParallel
        torch.distributed.init_process_group("gloo")
        self.path, self.full_state = os.path.join(directory, "checkpoint_1"), made.full_state
        self.accelerator = made.with_fsdp("SHARDED_STATE_DICT")
        self.models = [FullyShardedDataParallel(network(), device_id=torch.device("cpu"), use_orig_params=True) for _ in range(2)]
        self.optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in self.models]
        self.schedulers = [torch.optim.lr_scheduler.StepLR(self.optimizers[0], 2)]
        self.accelerator._models, self.accelerator._optimizers, self.accelerator._schedulers = self.models, self.optimizers, self.schedulers
        for model, optimizer in zip(self.models, self.optimizers):
            model(torch.randn(4, 5)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        self.schedulers[0].step()
        self.accelerator.save_state(self.path)

    def state(self):
        return [model.state_dict() for model in self.models], [optimizer.state_dict() for optimizer in self.optimizers], self.schedulers[0].state_dict()

    def load(self, path):
        for model, optimizer in zip(self.models, self.optimizers):
            scramble(model, [optimizer])
        scramble(self.models[0], schedulers=self.schedulers)
        self.accelerator.load_state(path)


class Trainer:
    """Makes the model from the checkpoint alone, and resumes. A load ends where the training would begin, so that nothing is trained after it, whatever
    step the name of the directory states."""
    name = "checkpoint-{}"

    class Loaded(Exception):
        pass

    def __init__(self, directory):
        import transformers
        self.config = transformers.LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                                               num_key_value_heads=1, max_position_embeddings=16)
        self.directory, self.path = directory, os.path.join(directory, "checkpoint-2")
        self.trainer(2).train()

    def live(self, digests):
        self.trainer(1 << 20, save_steps=1, digests=digests).train()

    def trainer(self, steps, save_steps=2, digests=None):
        import transformers
        torch.manual_seed(len(os.listdir(self.directory)))
        data = [{"input_ids": torch.arange(8) + i, "labels": torch.arange(8) + i} for i in range(8)]
        arguments = transformers.TrainingArguments(self.directory, max_steps=steps, save_steps=save_steps, per_device_train_batch_size=8, report_to=[], use_cpu=True,
                                                   disable_tqdm=True, logging_steps=100)
        outer = self

        class Keep(transformers.TrainerCallback):
            def on_train_begin(self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **kwargs):
                outer.keep(model, optimizer, lr_scheduler, state)

            on_train_end = on_train_begin

            def on_step_end(self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **kwargs):
                if digests:
                    outer.keep(model, optimizer, lr_scheduler, state)
                    put_digest(digests, state.global_step, outer.state())

        model = transformers.LlamaForCausalLM(self.config)
        return transformers.Trainer(model, arguments, train_dataset=data, callbacks=[Keep])

    def keep(self, model, optimizer, lr_scheduler, state):
        optimizer = getattr(optimizer, "optimizer", optimizer)
        self.kept = model.state_dict(), optimizer.state_dict(), lr_scheduler.state_dict(), state.global_step

    def state(self):
        return self.kept

    def load(self, path):
        import transformers
        self.kept = None
        transformers.AutoModelForCausalLM.from_pretrained(path)
        trainer = self.trainer(1 << 20)
        trainer.add_callback(type("Stop", (transformers.TrainerCallback,), {"on_train_begin": self.stop}))
        try:
            trainer.train(resume_from_checkpoint=path)
        except self.Loaded:
            pass

    def stop(self, *args, **kwargs):
        raise self.Loaded


class Lightning:
    name = "epoch=0-step={}.ckpt"

    def __init__(self, directory):
        import lightning

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = network()

            def training_step(self, batch, _):
                return self.net(batch).square().sum()

            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters())

        self.module, self.lightning = Module, lightning
        self.directory, self.path = directory, os.path.join(directory, "epoch=0-step=2.ckpt")
        self.trained, self.model = self.trainer(), Module()
        self.trained.fit(self.model, self.data())
        self.trained.save_checkpoint(self.path)
        self.keep(self.model, self.trained)

    def keep(self, model, trainer):
        self.kept = model.state_dict(), trainer.optimizers[0].state_dict(), trainer.global_step

    def train(self, step):
        change(self.model, self.trained.optimizers)
        self.keep(self.model, self.trained)

    def save(self, step):
        self.trained.save_checkpoint(os.path.join(self.directory, self.name.format(step)))

    def trainer(self):
        return self.lightning.Trainer(max_steps=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                                      enable_model_summary=False)

    def data(self):
        return torch.utils.data.DataLoader(torch.arange(40, dtype=torch.float32).reshape(8, 5) / 7, batch_size=4)

    def state(self):
        return self.kept

    def load(self, path):
        self.kept = None
        model, trainer = self.module(), self.trainer()
        scramble(model)
        trainer.fit(model, self.data(), ckpt_path=path)
        self.keep(model, trainer)


class DeepSpeed:
    """A load that only some of the ranks refuse leaves the others in a collective, so these processes end then, and others do the next loads."""
    name = "global_step{}"
    stage, forks, meeting = 1, True, None  # the file by which the ranks of a load find each other

    @staticmethod
    def prepare():
        import deepspeed
        import torch._dynamo  # the first step of an optimizer would import it, in each load: 1,400 modules
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, for more ranks than there are

    def __init__(self, directory):
        import deepspeed
        self.prepare()
        deepspeed.init_distributed(dist_backend="gloo", verbose=False, timeout=datetime.timedelta(seconds=100), init_method=self.meeting and f"file://{self.meeting}", rank=RANK, world_size=WORLD)
        self.directory, self.path = directory, os.path.join(directory, "global_step2")
        model = self.model()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        config = {"train_micro_batch_size_per_gpu": 4, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
                  "zero_optimization": {"stage": self.stage}, "bf16": {"enabled": True}, "pipeline": {"activation_checkpoint_interval": 0}}
        self.engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)[0]
        for _ in range(2):
            self.step()
        self.save(2)

    def train(self, step):
        self.step()

    def save(self, step):
        self.engine.save_checkpoint(self.directory, tag=self.name.format(step), client_state={"epoch": 3})

    def model(self):
        return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 5))

    def step(self):
        self.engine.backward(self.engine(torch.randn(4, 5, dtype=torch.bfloat16)).float().square().sum())
        self.engine.step()

    def state(self):
        from deepspeed.utils import safe_get_full_fp32_param
        trained = [(n, p) for n, p in self.engine.module.named_parameters() if p.requires_grad]
        frozen = [(n, p) for n, p in self.engine.module.named_parameters() if not p.requires_grad]
        return ({n: safe_get_full_fp32_param(p) for n, p in trained}, list(self.engine.optimizer.optimizer.state.values()),
                dict(frozen), self.engine.global_steps)

    def load(self, path):
        with torch.no_grad():
            for tensor in (*self.engine.module.parameters(), *self.engine.module.buffers()):
                tensor.data.fill_(-3)
        self.engine.global_steps = -1
        loaded, _ = self.engine.load_checkpoint(os.path.dirname(path), tag=os.path.basename(path))
        if loaded is None:
            raise FileNotFoundError("load_checkpoint found nothing")


class DeepSpeed3(DeepSpeed):
    stage = 3


class DeepSpeedPipeline(DeepSpeed):
    """Layer 2 is a function, layer 3 is frozen, layers 1 and 4 are tied."""

    def model(self):
        from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
        linear = torch.nn.Linear
        model = PipelineModule([LayerSpec(linear, 5, 6), TiedLayerSpec("mix", linear, 6, 6), torch.tanh, LayerSpec(linear, 6, 6), TiedLayerSpec("mix", linear, 6, 6),
                                LayerSpec(linear, 6, 5)], num_stages=1, loss_fn=lambda out, _: out.float().square().mean(), partition_method="uniform")
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.startswith("3."))
        return model

    def step(self):
        self.engine.train_batch(iter([(torch.randn(4, 5, dtype=torch.bfloat16), torch.zeros(4))] * 8))


class Megatron:
    name = "iter_{:07d}"

    def __init__(self, directory):
        import numpy
        numpy.product = numpy.prod  # Megatron-Core 0.14 was written for an older numpy
        torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
        torch.cuda.current_device = lambda *_: "cpu"
        torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=100))
        from megatron.core import dist_checkpointing
        self.core, self.directory, self.path = dist_checkpointing, directory, os.path.join(directory, "iter_0000002")
        self.train(3)
        self.save(2)
        self.load(self.path)

    def sharded(self, model, seed):
        """Moments are sharded over the ranks, and the rest is the same on each."""
        from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
        tensors = {name: ShardedTensor.from_rank_offsets(name, value.clone(), replica_id=RANK) for name, value in model.state_dict().items()}
        moments = {name: ShardedTensor.from_rank_offsets(f"optimizer.{name}", value * (seed + RANK), (0, RANK, WORLD)) for name, value in model.named_parameters()}
        return {"model": tensors, "optimizer": moments, "rng": ShardedObject("rng_state", [{"seed": seed + RANK}], (WORLD,), (RANK,)),
                "iteration": seed, "scheduler": {"lr": seed / 8, "style": "cosine"}}

    def train(self, step):
        def plain(value):
            return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else getattr(value, "data", value)
        model = network()
        with torch.no_grad():
            for tensor in model.parameters():
                tensor.fill_(step / 4)
        self.kept, self.made = plain(self.sharded(model, step)), self.sharded(model, step)

    def save(self, step):
        path = os.path.join(self.directory, self.name.format(step))
        if RANK == 0:
            os.makedirs(path)
        torch.distributed.barrier()
        self.core.save(self.made, path)

    def state(self):
        return self.kept

    def load(self, path):
        self.kept, model = None, network()
        scramble(model)
        self.kept = self.core.load(self.sharded(model, -3), path)


class MegatronAsync(Megatron):
    """As Megatron-LM trains with --async-save: a forked process of each rank writes, while training goes on. When all of them are done,
    rank 0 writes metadata.json, and last the file that names the newest iteration."""

    def save(self, step):
        from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
        path, calls = os.path.join(self.directory, self.name.format(step)), AsyncCallsQueue()
        if RANK == 0:
            os.makedirs(path)
        torch.distributed.barrier()
        request = self.core.save(self.made, path, ("torch_dist", 1), async_sharded_save=True)
        request.add_finalize_fn(lambda: self.track(step))
        calls.schedule_async_request(request)
        while calls.get_num_unfinalized_calls():
            calls.maybe_finalize_async_calls(blocking=False)
        calls.close()

    def track(self, step):
        if RANK == 0:
            with open(os.path.join(self.directory, "latest_checkpointed_iteration.txt"), "w") as f:
                f.write(str(step))


class Dcp:
    """PyTorch's async_save, in a thread or in a process of its own for each rank."""
    name, kind = "step-{}", "THREAD"

    def __init__(self, directory):
        from torch.distributed.device_mesh import init_device_mesh
        torch.distributed.init_process_group("gloo")
        self.mesh, self.directory, self.path = init_device_mesh("cpu", (WORLD,)), directory, os.path.join(directory, "step-2")
        self.train(2)
        self.save(2)

    def made(self, step):
        from torch.distributed.tensor import DTensor, Shard
        rows = torch.arange(600.).reshape(20, 30) + 1000 * RANK + step
        return {"rows": DTensor.from_local(rows, self.mesh, [Shard(0)]), f"own{RANK}": torch.full((50,), step + RANK / 8), "all": torch.full((70,), step / 4), "step": step,
                "groups": [{"lr": step / 8}]}

    def train(self, step):
        self.kept = self.made(step)

    def save(self, step):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
        dcp.async_save(self.kept, checkpoint_id=os.path.join(self.directory, self.name.format(step)), async_checkpointer_type=AsyncCheckpointerType[self.kind]).result()

    def state(self):
        return {name: value.to_local() if hasattr(value, "to_local") else value for name, value in self.kept.items()}

    def load(self, path):
        import torch.distributed.checkpoint as dcp
        self.kept = self.made(-3)
        dcp.load(self.kept, checkpoint_id=path)


class DcpProcess(Dcp):
    kind = "PROCESS"


class HuggingFace:
    """Two shards, and then their index."""
    name = "checkpoint-{}"

    def __init__(self, directory):
        self.directory, self.path = directory, os.path.join(directory, "checkpoint-2")
        self.train(2)
        self.save(2)

    def train(self, step):
        self.kept = {"model.a.weight": torch.arange(900.).reshape(30, 30) + step, "model.b.weight": torch.full((50, 7), step / 4)}

    def save(self, step):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        path = os.path.join(self.directory, self.name.format(step))
        dcp.save(self.kept, storage_writer=HuggingFaceStorageWriter(path, fqn_to_index_mapping={"model.a.weight": 1, "model.b.weight": 2}), no_dist=True)

    def state(self):
        return self.kept

    def load(self, path):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        self.train(-3)
        dcp.load(self.kept, storage_reader=HuggingFaceStorageReader(path), no_dist=True)


class DcpAlone(HuggingFace):
    """dcp.save by two threads of one process, which write a file each."""
    name = "checkpoint-{}"

    def save(self, step):
        import torch.distributed.checkpoint as dcp
        path = os.path.join(self.directory, self.name.format(step))
        dcp.save(self.kept, storage_writer=dcp.FileSystemWriter(path, thread_count=2), no_dist=True)

    def load(self, path):
        import torch.distributed.checkpoint as dcp
        self.train(-3)
        dcp.load(self.kept, checkpoint_id=path, no_dist=True)


class Transformers(HuggingFace):
    """save_pretrained in shards."""
    name = "step-{}"

    def __init__(self, directory):
        import transformers
        self.directory, self.path = directory, os.path.join(directory, "step-2")
        self.model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                                                                            num_key_value_heads=1, max_position_embeddings=16))
        self.train(2)
        self.save(2)

    def train(self, step):
        change(self.model)
        self.kept = self.model.state_dict()

    def save(self, step):
        self.model.save_pretrained(os.path.join(self.directory, self.name.format(step)), max_shard_size="30KB")

    def load(self, path):
        import transformers
        model, told = transformers.AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
        assert not told["missing_keys"], "these are made up"
        self.kept = model.state_dict()


class TorchFile(HuggingFace):
    """One file, which torch.save writes under its name."""
    name = "step_{}.pt"

    def __init__(self, directory):
        self.directory, self.path = directory, os.path.join(directory, "step_2.pt")
        self.train(2)
        self.save(2)

    def save(self, step):
        torch.save(self.kept, os.path.join(self.directory, self.name.format(step)))

    def load(self, path):
        self.kept = torch.load(path)


FRAMEWORKS = {"dcp": Dcp, "dcp-process": DcpProcess, "dcp-alone": DcpAlone, "huggingface": HuggingFace, "transformers": Transformers, "torch-file": TorchFile, "accelerate": Accelerate, "accelerate-fsdp": AccelerateFsdp, "megatron": Megatron, "megatron-async": MegatronAsync, "trainer": Trainer, "lightning": Lightning, "deepspeed": DeepSpeed, "deepspeed-3": DeepSpeed3,
              "deepspeed-pipeline": DeepSpeedPipeline}


def step_of(path):
    return int(re.findall(r"\d+", os.path.basename(path))[-1])


def digest_of(state):
    return hashlib.sha256(repr(content(state)).encode()).hexdigest()


def put_digest(digests, step, state):
    path = os.path.join(digests, f"{step}.{RANK}")
    with open(path + ".new", "w") as f:
        f.write(digest_of(state))
    os.rename(path + ".new", path)


def live(framework, digests):
    for step in itertools.count(3):
        framework.train(step)
        put_digest(digests, step, framework.state())
        framework.save(step)


def expected(digests, path, first):
    """The digest of what is in a copy: the first checkpoint, if it is not one of another process."""
    if not digests:
        return first
    with open(os.path.join(digests, f"{step_of(path)}.{RANK}")) as f:
        return f.read()


def verdict(framework, path, want):
    try:
        error = None
        framework.load(path)
    except BaseException as e:  # DCP's CheckpointException is one
        error = f"refused {type(e).__name__} " + str(e).replace("\n", " ")[:150]
    if WORLD > 1 and not getattr(framework, "forks", False):  # the ranks that have not failed must not wait for the others
        errors = [None] * WORLD
        torch.distributed.all_gather_object(errors, error)
        error = next((e for e in errors if e), None)
    return error or ("equal" if digest_of(framework.state()) == want else "changed")


def killed_saves(framework):
    """Saves step 3 in a fork of this process, which ends at a call (kill_at_call.c), for each line: its number, 0 for none, and the moment. The
    answer is the number of calls and what another fork loads of it."""
    killer, path = ctypes.CDLL(None), os.path.join(framework.directory, framework.name.format(3))
    framework.train(3)
    want = digest_of(framework.state())
    for line in sys.stdin:
        number, moment = map(int, line.split())
        shutil.rmtree(path) if os.path.isdir(path) else os.path.exists(path) and os.remove(path)
        begun, ended = os.pipe()
        if not os.fork():
            killer.kill_at(ctypes.c_long(number), moment, framework.directory.encode())
            framework.save(3)
            os.write(ended, b"%d" % killer.calls_seen())
            os._exit(0)
        os.wait()
        os.close(ended)
        print(os.read(begun, 20).decode() or "killed", file=answers)
        os.close(begun)
        in_child(lambda: print(verdict(framework, path, want) if os.path.exists(path) else "refused: it is not there", file=answers))


def in_child(work):
    """Does `work` in a fork of this process. Frameworks are imported once for all of them, and what one leaves, or waits for, ends with it. Returns
    whether `work` returned something true."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = 2 if work() else 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in (0, 2):
        print("refused: its process failed", file=answers)
    return code == 2


def answer_paths(kind, directory, digests):
    """Answers until one of the ranks does not load what it is told to. Returns whether the paths have ended."""
    framework = None
    for line in iter(sys.stdin.readline, ""):
        path = line.rstrip("\n")
        framework = framework or kind(directory)
        found = verdict(framework, path, expected(digests, path, None))
        try:
            if found == "equal":
                torch.distributed.barrier()
        except RuntimeError:
            found += ", but not for another rank"
        print(found, file=answers)
        if found != "equal":
            return False
    return True


def main():
    kind, directory, digests = FRAMEWORKS[sys.argv[1]], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None
    forks = getattr(kind, "forks", False) and digests and sys.argv[4:] != ["--live"]
    if forks:
        kind.prepare()
        in_child(lambda: print(kind(directory).path, file=answers))
    else:
        framework = kind(directory)
        first = digest_of(framework.state())
        print(framework.path, file=answers)
        if digests == "--killed":
            killed_saves(framework)
        if sys.argv[4:] == ["--live"]:
            framework.live(digests) if hasattr(framework, "live") else live(framework, digests)
    for number in itertools.count() if forks else ():
        kind.meeting = os.path.join(directory, f"meeting{number}")
        if in_child(lambda: answer_paths(kind, directory, digests)):
            return
    for line in sys.stdin:
        path = line.rstrip("\n")
        print(verdict(framework, path, expected(digests, path, first)), file=answers)


if __name__ == "__main__":
    main()
