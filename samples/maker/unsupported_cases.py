"""Containers that are recognized by name and refused: TorchScript archives, the tar form that came before all others, others' zips."""
import os
import pickle
import struct
import tarfile

import torch
from torch import nn

from . import golden
from .registry import case


def reader(file, why):
    def read(case):
        path = os.path.join(case.name, file)
        try:
            loaded = torch.load(path, weights_only=False)
            said = {"load": "ok", **({"entries": golden.sort_out(loaded)["entries"]} if type(loaded) is dict else {})}
        except Exception as e:
            said = {"load": f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:200]}"}
        return {"format": "unsupported", "path": path, "problems": [why], "reference": said}
    return read


@case("unsupported_torchscript", reader("scripted.pt", "a TorchScript archive: a program, not a checkpoint"), "torch.jit.save of a module: a zip with code, which must be refused by name")
def make_torchscript(name):
    torch.jit.save(torch.jit.script(nn.Linear(2, 3)), os.path.join(name, "scripted.pt"))


@case("unsupported_tar", reader("model.tar", "the tar form of PyTorch before 0.1.10"), "the tar format of PyTorch before 0.1.10, assembled by hand; torch.load still reads it")
def make_tar(name):
    members = {"storages": pickled(1) + pickled((7, "cpu", torch.FloatStorage)) + struct.pack("<q4f", 4, 1, 2, 3, 4) + pickled([]),
               "tensors": pickled(1) + pickled((9, 7, None)) + struct.pack("<ii2q2qq", 2, 0, 2, 2, 2, 1, 0), "pickle": by_id({"w": Reference(9)})}
    with tarfile.open(os.path.join(name, "model.tar"), "w", format=tarfile.PAX_FORMAT) as tar:
        for member, data in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, opened(data))


def opened(data):
    import io
    return io.BytesIO(data)


def pickled(value):
    return pickle.dumps(value, protocol=2)


class Reference:
    """Stands for a tensor by its number."""

    def __init__(self, number):
        self.number = number


def by_id(value):
    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            return str(obj.number) if isinstance(obj, Reference) else None
    out = opened(b"")
    Pickler(out, protocol=2).dump(value)
    return out.getvalue()


@case("unsupported_zip", reader("notes.pt", "a zip that holds no pickle of PyTorch"), "an ordinary zip named .pt")
def make_zip(name):
    import zipfile
    with zipfile.ZipFile(os.path.join(name, "notes.pt"), "w") as z:
        z.writestr(zipfile.ZipInfo("notes.txt"), "nothing to see here")
