"""Saves and loads checkpoints by accelerate, Transformers' Trainer, Lightning, DeepSpeed and Megatron-Core, in an environment that has them.

Usage: PYTHON framework_loaders.py FRAMEWORK DIRECTORY

Saves a checkpoint in DIRECTORY and prints its path. Then reads the paths of copies, one per line, and answers each with one line:
"equal" if the framework loads what was saved, "changed" if it loads other values without an error, or "refused" with the error. All
values are changed before each load."""
import logging
import os
import sys
import warnings

warnings.filterwarnings("ignore")
GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # the frameworks print to stdout
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 10000),
                  GLOO_SOCKET_IFNAME="lo")

import torch  # noqa: E402

logging.disable(logging.ERROR)


def content(value):
    """The values of a state, for comparison."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().cpu().reshape(-1).tolist()
    if isinstance(value, dict):
        return {str(k): content(v) for k, v in value.items()}
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


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 5))


class Accelerate:
    name = "checkpoint_{}"

    def __init__(self, directory):
        from accelerate import Accelerator
        self.path = os.path.join(directory, "checkpoint_1")
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
    """Makes the model from the checkpoint alone, and resumes at the last step, so that nothing is trained after loading."""
    name = "checkpoint-{}"
    shard_size = None

    def __init__(self, directory):
        import transformers
        self.config = transformers.LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                                               num_key_value_heads=1, max_position_embeddings=16)
        self.directory, self.path = directory, os.path.join(directory, "checkpoint-2")
        self.trainer().train()

    def trainer(self):
        import transformers
        torch.manual_seed(len(os.listdir(self.directory)))
        data = [{"input_ids": torch.arange(8) + i, "labels": torch.arange(8) + i} for i in range(8)]
        arguments = transformers.TrainingArguments(self.directory, max_steps=2, save_steps=2, per_device_train_batch_size=4, report_to=[], use_cpu=True,
                                                   disable_tqdm=True, logging_steps=100)
        outer = self

        class Keep(transformers.TrainerCallback):
            def on_train_begin(self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **kwargs):
                outer.keep(model, optimizer, lr_scheduler, state)

            on_train_end = on_train_begin

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
        self.trainer().train(resume_from_checkpoint=path)


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
        self.path = os.path.join(directory, "epoch=0-step=2.ckpt")
        trainer = self.trainer()
        model = Module()
        trainer.fit(model, self.data())
        trainer.save_checkpoint(self.path)
        self.kept = model.state_dict(), trainer.optimizers[0].state_dict(), trainer.global_step

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
        self.kept = model.state_dict(), trainer.optimizers[0].state_dict(), trainer.global_step


class DeepSpeed:
    name = "global_step{}"
    stage = 1

    def __init__(self, directory):
        import deepspeed
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, for more ranks than there are
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        self.path = os.path.join(directory, "global_step2")
        model = self.model()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        config = {"train_micro_batch_size_per_gpu": 4, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
                  "zero_optimization": {"stage": self.stage}, "bf16": {"enabled": True}, "pipeline": {"activation_checkpoint_interval": 0}}
        self.engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)[0]
        for _ in range(2):
            self.step()
        self.engine.save_checkpoint(directory, tag="global_step2", client_state={"epoch": 3})

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
    def __init__(self, directory):
        import numpy
        numpy.product = numpy.prod  # Megatron-Core 0.14 was written for an older numpy
        torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
        torch.cuda.current_device = lambda *_: "cpu"
        torch.distributed.init_process_group("gloo")
        from megatron.core import dist_checkpointing
        self.core, self.path = dist_checkpointing, os.path.join(directory, "iter_0000002")
        os.makedirs(self.path)
        self.core.save(self.sharded(network(), 3), self.path)
        self.load(self.path)

    def sharded(self, model, seed):
        from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
        tensors = {name: ShardedTensor.from_rank_offsets(name, value.clone()) for name, value in model.state_dict().items()}
        moments = {name: ShardedTensor.from_rank_offsets(f"optimizer.{name}", value * seed) for name, value in model.named_parameters()}
        return {"model": tensors, "optimizer": moments, "rng": ShardedObject("rng_state", [{"seed": seed}], (1,), (0,)),
                "iteration": seed, "scheduler": {"lr": seed / 8, "style": "cosine"}}

    def state(self):
        return self.kept

    def load(self, path):
        self.kept, model = None, network()
        scramble(model)
        self.kept = self.core.load(self.sharded(model, -3), path)


FRAMEWORKS = {"accelerate": Accelerate, "accelerate-fsdp": AccelerateFsdp, "megatron": Megatron, "trainer": Trainer, "lightning": Lightning, "deepspeed": DeepSpeed, "deepspeed-3": DeepSpeed3,
              "deepspeed-pipeline": DeepSpeedPipeline}


def main():
    framework = FRAMEWORKS[sys.argv[1]](sys.argv[2])
    whole = content(framework.state())
    print(framework.path, file=answers)
    for line in sys.stdin:
        try:
            framework.load(line.rstrip("\n"))
            print("equal" if content(framework.state()) == whole else "changed", file=answers)
        except BaseException as e:  # DCP's CheckpointException is one
            print("refused", type(e).__name__, str(e).replace("\n", " ")[:150], file=answers)


if __name__ == "__main__":
    main()
