"""Writes tests/golden/dcp_extension: a DCP whose items went through a stream extension of a user's own.

Usage: python tests/golden/make_dcp_extension.py          (torch 2.13)
"""
import io
import pathlib
import shutil

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._extension import StreamTransformExtension

HERE = pathlib.Path(__file__).resolve().parent / "dcp_extension"


class Output(io.IOBase):
    def __init__(self, inner):
        self.inner = inner

    def writable(self):
        return True

    def write(self, data):
        return self.inner.write(bytes(b ^ 0x5A for b in bytes(data)))


class Scrambled(StreamTransformExtension):
    @staticmethod
    def from_descriptor(version):
        return Scrambled()

    @staticmethod
    def registry_name():
        return "stream.acme-scramble"

    def get_descriptor(self):
        return "stream.acme-scramble/2"

    def transform_to(self, output):
        return Output(output)

    def transform_from(self, input):
        raise NotImplementedError


if __name__ == "__main__":
    shutil.rmtree(HERE, ignore_errors=True)
    state = {"model": {"w": torch.arange(6.0), "b": torch.ones(2, 3, dtype=torch.bfloat16)}, "step": 5}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(HERE, _extensions=[Scrambled()]), no_dist=True)
