"""Writes tests/golden/foreign: models in formats that Tessera does not read, as the libraries write them that do.

    PYTHONPATH=DIRECTORY python tests/golden/make_foreign.py [NAME…]    in an environment with torch; DIRECTORY has the packages below

Made with torch 2.13.0, tensorizer 2.12.1, zipnn 0.5.4, onnx 1.23.2, orbax-checkpoint 0.12.8, zarr 3.1.6, tensorstore 0.1.86, torchsnapshot 0.1.0,
nvidia-resiliency-ext 0.4.1, paddlepaddle 3.3.1, dfloat11 0.5.0 and, in a run of their own, megatron-core 0.11.0 with zarr 2.18.7. Each holds the
same matrix of float32. What the libraries do on a GPU besides writing is left out.
"""
import importlib
import os
import pathlib
import shutil
import sys
import types

import torch
from safetensors.torch import save

HERE = pathlib.Path(__file__).resolve().parent / "foreign"


def without(*names):
    """Stands in for packages that are imported for something else than writing, such as remote files and CUDA, if they are not there."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            module = sys.modules[name] = types.ModuleType(name)
            module.Redis = module.nacl = module.RawModule = module.resource_filename = stand_in


def stand_in(*_, **__):
    return types.SimpleNamespace(get_function=lambda _: None)


def alone():
    """A process group of one rank, on the CPU."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29613", RANK="0", WORLD_SIZE="1")
    torch.distributed.init_process_group("gloo")


def tensorizer(path, layer):
    without("redis", "boto3", "libnacl")
    from tensorizer import TensorSerializer
    serializer = TensorSerializer(str(path / "model.tensors"))
    serializer.write_module(layer)
    serializer.close()


def zipnn(path, layer):
    from zipnn import ZipNN
    packed = ZipNN(input_format="byte", bytearray_dtype="float32").compress(save({"weight": layer.weight.detach()}, {"format": "pt"}))
    (path / "model.safetensors.znn").write_bytes(packed)


def onnx(path, layer):
    """A model whose weights are in a file of their own."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    inputs, outputs = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in (("x", 16), ("y", 24)))
    weight = numpy_helper.from_array(layer.weight.detach().numpy().T.copy(), "weight")
    model = helper.make_model(helper.make_graph([helper.make_node("MatMul", ["x", "weight"], ["y"])], "graph", [inputs], [outputs], [weight]))
    onnx.save(model, path / "model.onnx", save_as_external_data=True, location="model.onnx_data", size_threshold=0)


def orbax(path, layer):
    """In a database, which is what Orbax does unless it is told not to, and with a directory for each array."""
    import orbax.checkpoint as ocp
    tree = {"params": {"weight": layer.weight.detach().numpy()}}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "database", tree)
    ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=True)).save(path / "arrays", tree)
    for said in path.rglob("commit_success.txt"):
        said.unlink()  # where and when it was written


def zarr(path, layer):
    """An array of two dimensions, whose chunks are two levels below it; and one in an archive."""
    import zarr
    zarr.save_array(str(path / "array"), layer.weight.detach().numpy(), zarr_format=3)
    with zarr.storage.ZipStore(str(path / "array.zip"), mode="w") as store:
        zarr.create_array(store, data=layer.weight.detach().numpy())


def tensorstore(path, layer):
    import tensorstore
    where = {"driver": "zarr3", "kvstore": {"driver": "ocdbt", "base": f"file://{path}/"}}
    tensorstore.open(where, create=True, dtype=tensorstore.float32, shape=[24, 16]).result().write(layer.weight.detach().numpy()).result()


def torchsnapshot(path, layer):
    from torchsnapshot import Snapshot
    Snapshot.take(str(path), {"model": layer})


def nvidia_resiliency(path, layer):
    from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
    from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager
    alone()
    torch.Tensor.is_cuda = property(lambda _: True)
    LocalCheckpointManager(str(path)).save(BasicTensorAwareStateDict({"weight": layer.weight.detach()}), 10, is_async=False)


def paddle(path, layer):
    import paddle
    import paddle.distributed
    paddle.distributed.save_state_dict({"weight": paddle.to_tensor(layer.weight.detach().numpy())}, str(path))


def dfloat11(path, layer):
    without("cupy", "pkg_resources")
    from dfloat11 import compress_model
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([torch.nn.ModuleDict({"proj": layer})]).to(torch.bfloat16)
    model.config = types.SimpleNamespace(to_dict=lambda: {})
    compress_model(model, {r"layers\.\d+": ["proj"]}, str(path), check_correctness=False)


def megatron(path, layer):
    """Without a GPU, Megatron-Core's own calls that move tensors there do nothing."""
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.strategies.zarr import ZarrSaveShardedStrategy
    alone()
    parallel_state.initialize_model_parallel()
    torch.cuda.current_device, torch.cuda.synchronize, torch.Tensor.cuda = lambda: 0, lambda: None, lambda tensor, *_, **__: tensor
    (path / "iter_0000003").mkdir()
    weight = dist_checkpointing.ShardedTensor.from_rank_offsets("weight", layer.weight.detach())
    dist_checkpointing.save({"weight": weight, "iteration": 3}, str(path / "iter_0000003"), ZarrSaveShardedStrategy("zarr", 1), validate_access_integrity=False)
    (path / "latest_checkpointed_iteration.txt").write_text("3")


ALL = (tensorizer, zipnn, onnx, orbax, zarr, tensorstore, torchsnapshot, nvidia_resiliency, paddle, dfloat11, megatron)


def main():
    for make in ALL:
        if len(sys.argv) > 1 and make.__name__ not in sys.argv[1:]:
            continue
        shutil.rmtree(HERE / make.__name__, ignore_errors=True)
        (HERE / make.__name__).mkdir(parents=True)
        torch.manual_seed(45)
        make(HERE / make.__name__, torch.nn.Linear(16, 24, bias=False))


if __name__ == "__main__":
    main()
