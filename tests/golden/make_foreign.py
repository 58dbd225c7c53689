"""Writes tests/golden/foreign: models in formats that Tessera does not read, as the libraries write them that do.

    PYTHONPATH=DIRECTORY python tests/golden/make_foreign.py    in an environment with torch; DIRECTORY has the packages below
                                                                (pip install --no-deps --target)

Made with torch 2.13.0, tensorizer 2.12.1, zipnn 0.5.4, onnx 1.23.2 and its ml_dtypes. Each holds the same matrix of float32.

  tensorizer/model.tensors    TensorSerializer.write_module        zipnn/model.safetensors.znn    ZipNN.compress of a safetensors file
  onnx/model.onnx, model.onnx_data    a model whose weights are in a file of their own
"""
import importlib
import pathlib
import shutil
import sys
import types

import torch
from safetensors.torch import save

HERE = pathlib.Path(__file__).resolve().parent / "foreign"


def place(name):
    (HERE / name).parent.mkdir(parents=True)
    return str(HERE / name)


def without(*names):
    """Stands in for packages that tensorizer imports for remote and for encrypted files, if they are not there."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            module = sys.modules[name] = types.ModuleType(name)
            module.Redis = module.nacl = object


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    torch.manual_seed(45)
    layer = torch.nn.Linear(16, 24, bias=False)

    without("redis", "boto3", "libnacl")
    from tensorizer import TensorSerializer
    serializer = TensorSerializer(place("tensorizer/model.tensors"))
    serializer.write_module(layer)
    serializer.close()

    from zipnn import ZipNN
    packed = ZipNN(input_format="byte", bytearray_dtype="float32").compress(save({"weight": layer.weight.detach()}, {"format": "pt"}))
    pathlib.Path(place("zipnn/model.safetensors.znn")).write_bytes(packed)

    import onnx
    from onnx import TensorProto, helper, numpy_helper
    inputs, outputs = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in (("x", 16), ("y", 24)))
    weight = numpy_helper.from_array(layer.weight.detach().numpy().T.copy(), "weight")
    model = helper.make_model(helper.make_graph([helper.make_node("MatMul", ["x", "weight"], ["y"])], "graph", [inputs], [outputs], [weight]))
    onnx.save(model, place("onnx/model.onnx"), save_as_external_data=True, location="model.onnx_data", size_threshold=0)


if __name__ == "__main__":
    main()
