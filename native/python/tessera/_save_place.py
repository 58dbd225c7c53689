"""What directories and object stores have in common as destinations of tessera.torch.StorageWriter."""
import ctypes
import re
import secrets

from ._checkpoint import Checkpoint
from ._library import FOR_NAMES, _Error, _char, _function, _int, _p, _raise

_end_sum = _function("end_sum", _int, _char, ctypes.c_size_t, _p, _p)
_END_SUM_SIZE = 65

MARKER = ".metadata"
RANK_MARKER = re.compile(r"__(\d+)\.metadata")
TO_REPLACE = "; StorageWriter(…, overwrite=True) replaces it"


def names_of_files(number, token, count):
    """Returns the names of a rank's files."""
    return [f"__{number}_{token}.distcp"] if count == 1 else [f"__{number}_{n}_{token}.distcp" for n in range(count)]


def token_of(name):
    """Returns the token in the name of a rank's file."""
    return name.rpartition("_")[2].removesuffix(".distcp")


def with_end_sum(document):
    """Returns the bytes of a document, followed by their checksum (tessera/sys/end_sum.h)."""
    checksum, err = ctypes.create_string_buffer(_END_SUM_SIZE), _Error()
    if _end_sum(document, len(document), checksum, ctypes.byref(err)) != 0:
        _raise(err, None)
    return document + checksum.raw


class Place:
    """A destination of a save that all ranks make together, or, with use_collectives=False, of what one rank saves on its own: the same
    with a marker, a lock and journals of its own.

    `set_up` starts a save on every rank: it creates nothing, and refuses to replace what may not be replaced. When all
    ranks have planned, `begin` on the coordinator removes what interrupted saves left. Then every rank writes its files, `new_files`.
    `publish` or `release` ends the save."""

    rank = None  # of a save on its own
    marker = MARKER

    def __init__(self, path, overwrite, sync_files=True):
        """sync_files: wait until files are on disk."""
        self.path, self.overwrite, self.sync_files = path, overwrite, sync_files
        self._replaced = set()  # the coordinator's: files of the checkpoint that is replaced

    def is_of(self, rank, world):
        """What is saved is that of one of `world` ranks on its own, or, if `rank` is None, of all ranks together."""
        self.rank, self._world = rank, world
        self.marker = MARKER if rank is None else f"__{rank}{MARKER}"

    def new_token(self):
        """Returns random text that makes a name unique. That of a rank on its own begins with its number, by which its next save
        distinguishes what a killed one left from what the other ranks are writing."""
        return secrets.token_hex(8) if self.rank is None else f"{self.rank:08x}{secrets.token_hex(4)}"

    def keep_while(self, results, files):
        """What has been written of this rank's files may be given up when `results` are freed. Files in a directory stay, and are listed in
        their journal."""

    def release(self) -> None:
        """Ends a save, whether it succeeded or not."""
        raise NotImplementedError

    def give_up(self):
        """Ends a save whose coordinator could not write its files, while other ranks may still be writing theirs."""
        self.release()

    def refuse_marker(self, names):
        """Raises FileExistsError if one of the names makes the destination a checkpoint that may not be replaced."""
        ours = sorted(name for name in names if not name.startswith(".tessera-"))
        for marker in (name for name in ours if name.endswith(MARKER) or name.endswith(".index.json")):
            rank = self._rank_of(marker)
            if marker == self.marker:
                if not self.overwrite:
                    raise FileExistsError(f"{self.path}: holds a checkpoint already ({marker}){TO_REPLACE}")
            elif rank is None:
                raise FileExistsError(f"{self.path}: holds a checkpoint of another form already ({marker}); save to another path")
            elif rank >= self._world:
                raise FileExistsError(f"{self.path}: holds a checkpoint of more than {self._world} ranks ({marker}), which would be mixed with this one; "
                                      "save to another path")

    def refuse_others(self, names):
        """Raises FileExistsError if one of the names, which are all that are there, would be loaded with the new checkpoint."""

    def _rank_of(self, marker):
        """Returns the rank whose own metadata this is, if ranks save on their own, otherwise None."""
        match = RANK_MARKER.fullmatch(marker)
        return int(match[1]) if match and self.rank is not None else None

    def files_of_checkpoint(self):
        """Returns the names of the files that the checkpoint here lists, including its marker."""
        with Checkpoint(self.path, _purpose=FOR_NAMES, _metadata_rank=self.rank) as checkpoint:
            return set(checkpoint._session.own_files())
