"""What the interop tests share: the program under test, a scratch directory, the samples, and PyTorch's own readers."""
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

from checks import ROOT, SAMPLES, Skip  # noqa: E402, F401

warnings.filterwarnings("ignore")


def frameworks(libraries):
    """Returns the Python that TESSERA_FRAMEWORKS names, which has the `libraries`; without one the test is skipped."""
    python = os.environ.get("TESSERA_FRAMEWORKS")
    if not python:
        raise Skip(f"TESSERA_FRAMEWORKS names no Python with {libraries}")
    return python


class Tessera:
    def __init__(self, path):
        self.path = path

    def __enter__(self):
        self.scratch = tempfile.mkdtemp(prefix="tessera-interop-")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.scratch, ignore_errors=True)

    def at(self, *names):
        """A path in this test's scratch directory."""
        return os.path.join(self.scratch, *names)

    def run(self, *args, status=0, timeout=120):
        p = subprocess.run([self.path, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout)
        if p.returncode != status:
            raise AssertionError(f"tessera {' '.join(map(str, args))} ended {p.returncode}, expected {status}: {p.stderr.decode(errors='replace')[-600:]}")
        return p

    def json(self, *args, status=0):
        return json.loads(self.run(*args, status=status).stdout)


def sample_names(*prefixes):
    """Names of committed samples that real PyTorch or safetensors reads, with their goldens."""
    for path in sorted(glob.glob(os.path.join(SAMPLES, "*.expect.json"))):
        name = os.path.basename(path)[:-len(".expect.json")]
        with open(path) as f:
            want = json.load(f)
        if name.startswith(prefixes or ("",)) and not want.get("problems"):
            yield name, want


def sample_path(name, want):
    return os.path.join(SAMPLES, want.get("path", name))


def sha256(tensor):
    """Digest of a tensor's contiguous row-major little-endian bytes, conjugate and negative bits resolved."""
    import torch
    x = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return hashlib.sha256(b"" if x.numel() == 0 else x.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def load_dcp(path):
    """{flat name: tensor or object} of a DCP directory, by PyTorch."""
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
    sd = {}
    _load_state_dict(sd, storage_reader=FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return flatten_state_dict(sd)[0]


def load_torch(path):
    import torch
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    return flatten_state_dict(torch.load(path, weights_only=True))[0]


def load_safetensors(path):
    from safetensors.torch import load_file
    files = [path] if os.path.isfile(path) else sorted(glob.glob(os.path.join(path, "*.safetensors")))
    return {k: v for f in files for k, v in load_file(f).items()}
