"""What only some of the supported versions of PyTorch have."""
import inspect

import torch.distributed.checkpoint as dcp

try:
    from torch.distributed.checkpoint.metadata import StorageMeta
except ImportError:  # before PyTorch 2.4
    StorageMeta = None
try:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
except ImportError:  # before PyTorch 2.5
    from torch.distributed._tensor._utils import compute_local_shape_and_global_offset

try:
    from torch.distributed._state_dict_utils import _create_cpu_state_dict as create_cpu_state_dict
    from torch.distributed.checkpoint.staging import BlockingAsyncStager
except ImportError:  # before PyTorch 2.4, whose async_save stages itself
    BlockingAsyncStager = create_cpu_state_dict = None
try:
    from torch.distributed.checkpoint.filesystem import _StorageWriterTransforms as StreamTransforms
except ImportError:  # before PyTorch 2.7
    StreamTransforms = None


def meta_fields(**ids):
    """Returns the field of PyTorch's Metadata that identifies the save or load, by its name; empty if Metadata has no such field."""
    return {"storage_meta": StorageMeta(**ids)} if StorageMeta else {}


# Whether dcp.save can write metadata per rank, and dcp.load falls back on it: it asks a reader again, with the rank.
ASKS_FOR_RANK = "use_collectives" in inspect.signature(dcp.save).parameters
