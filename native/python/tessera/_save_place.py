"""What directories and object stores have in common as destinations of tessera.torch.StorageWriter."""
import re
import secrets

from ._checkpoint import Checkpoint
from ._library import FOR_NAMES

MARKER = ".metadata"
JOURNAL = re.compile(r"\.tessera-save-([0-9a-f]{16})\.json")
MOST_JOURNAL_BYTES = 64 << 20
TO_REPLACE = "; StorageWriter(…, overwrite=True) replaces it"


def new_token():
    """Returns random text that makes a name unique."""
    return secrets.token_hex(8)


def name_of_file(number, token):
    return f"__{number}_{token}.distcp"


def token_of(name):
    """Returns the token in the name of a rank's file."""
    return name.rpartition("_")[2].removesuffix(".distcp")


def name_of_journal(token):
    return f".tessera-save-{token}.json"


class Place:
    """A destination. `set_up` starts a save on every rank: it creates nothing, and refuses to replace what may not be replaced. When all
    ranks have planned, `begin` on the coordinator removes what interrupted saves left. Then every rank writes one file, `new_file`.
    `publish` or `release` ends the save."""

    def __init__(self, path, overwrite):
        self.path, self.overwrite = path, overwrite
        self._replaced = set()  # the coordinator's: files of the checkpoint that is replaced

    def refuse_marker(self, names):
        """Raises FileExistsError if one of the names makes the destination a checkpoint that may not be replaced."""
        ours = sorted(name for name in names if not name.startswith(".tessera-"))
        marker = next((name for name in ours if name.endswith(MARKER) or name.endswith(".index.json")), None)
        if marker and (not self.overwrite or marker != MARKER):
            if marker != MARKER:
                raise FileExistsError(f"{self.path}: holds a checkpoint of another form already ({marker}); save to another path")
            raise FileExistsError(f"{self.path}: holds a checkpoint already ({marker}){TO_REPLACE}")

    def files_of_checkpoint(self):
        """Returns the names of the files that the checkpoint here lists, including `.metadata`."""
        with Checkpoint(self.path, _purpose=FOR_NAMES) as checkpoint:
            return set(checkpoint._session.own_files())
