"""What only some of the supported versions of PyTorch have."""
try:
    from torch.distributed.checkpoint.metadata import StorageMeta
except ImportError:  # before PyTorch 2.4
    StorageMeta = None
try:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
except ImportError:  # before PyTorch 2.5
    from torch.distributed._tensor._utils import compute_local_shape_and_global_offset


def meta_fields(**facts):
    """The field of PyTorch's Metadata that says which save or load it is of, by its name; none where Metadata does not have it."""
    return {"storage_meta": StorageMeta(**facts)} if StorageMeta else {}
