"""Checkpoints that tessera.torch.StorageWriter writes into an object store.

Every rank uploads its files in parts and leaves the uploads open, so nothing of them is visible. When all ranks have done so, the coordinator
completes the uploads. It writes `.metadata` last and, unless it replaces a checkpoint, only if there is none. The files that the old
checkpoint lists are removed afterwards.

    __R_TOKEN.distcp          a rank's file; TOKEN is random. __R_N_TOKEN.distcp if it has several
    .tessera-save-TOKEN.json  the coordinator's journal, from before the first file is visible until the end: what a later save may remove
                              if this one is killed

A rank that saves on its own is its own coordinator, with the marker `__R.metadata`."""
import json
import re
import weakref

from ._library import TesseraError, warn
from ._save_place import TO_REPLACE, Place, names_of_files
from ._saving import PUBLISHES, REPLACES, SENDS, Saving

SCHEMES = ("s3://", "gs://", "az://")
_JOURNAL = re.compile(r"\.tessera-save-([0-9a-f]{16})\.json")


def _name_of_journal(token):
    return f".tessera-save-{token}.json"


def _may_be_data(name):
    """Whether a journal may cause this name to be removed. A checkpoint from somebody else may contain a journal that names any object."""
    return isinstance(name, str) and "/" not in name and name.endswith(".distcp")


class _File:
    """One of a rank's files while it is sent."""

    def __init__(self, place, name, expected):
        self.name, self._size = name, 0
        self.saving = Saving(place.path, SENDS, place.marker)
        self.saving.create(self.name, expected)

    def write(self, view):
        self.saving.write(self._size, view)
        self._size += len(view)

    def finish(self):
        return self._size, self.saving.hand_over(self._size)


class _Files(list):
    def finish(self):
        pass  # every file has been handed over

    def discard(self):
        for file in self:
            file.saving.close()


class Objects(Place):
    def __init__(self, path, overwrite):
        super().__init__(path, overwrite)
        self._lead = None  # the coordinator's
        self._sent = ()  # references to this rank's files, as long as their uploads are open

    def __reduce__(self):  # for saves in other processes
        return Objects, (self.path, self.overwrite)

    def set_up(self):
        self.release()

    def begin(self):
        try:
            self._lead = Saving(self.path, REPLACES if self.overwrite else PUBLISHES, self.marker)
            names = self._lead.names()
            self.refuse_marker(name for name in names if "/" not in name)
            self._replaced = self.files_of_checkpoint() if self.marker in names else set()
            self._clean(names)
        except TesseraError as e:
            self.release()
            if e.status == "exists":
                raise FileExistsError(f"{self.path}: holds a checkpoint already ({self.marker}){TO_REPLACE}") from None
            if "exists and is a file" in str(e):
                raise FileExistsError(f"{self.path}: exists and is not a directory") from None
            raise
        except BaseException:
            self.release()
            raise

    def new_files(self, number, expected):
        """expected: bytes of each file, about."""
        files = _Files()
        try:
            for name, size in zip(names_of_files(number, self.new_token(), len(expected)), expected):
                files.append(_File(self, name, size))
        except BaseException:
            files.discard()
            raise
        return files

    def keep_while(self, results, files):
        """Abandons the uploads when `results` are freed, the next save begins or the process ends, whichever comes first, because PyTorch does
        not tell a writer that another rank has failed. Uploads that have been completed are not affected."""
        self._sent = [weakref.ref(file.saving) for file in files]
        weakref.finalize(results, files.discard)

    def _open_uploads(self):
        return [saving for saving in (sent() for sent in self._sent) if saving]

    def publish(self, data, files):
        """files: the results of `finish`, by the names of all ranks' files."""
        journal = _name_of_journal(self.new_token())
        replaced = sorted(self._replaced - set(files) - {self.marker})
        self._lead.put_note(journal, json.dumps({"files": sorted(files), "replaces": replaced}).encode())
        try:
            for name, (size, note) in files.items():
                self._lead.take_over(name, size, note)
            self._lead.publish(self.marker, data)
        except TesseraError as e:
            self._lead.close()  # which removes what was made
            self._forget(journal, files)
            if e.status == "exists":
                raise FileExistsError(f"{self.path}: holds a checkpoint already ({self.marker}), which appeared during the save{TO_REPLACE}") from None
            raise
        for saving in self._open_uploads():
            saving.keep()
        for name in replaced:
            self._lead.remove(name)
        self._lead.remove(journal)

    def _forget(self, journal, files):
        """Removes the journal, but only if everything that it lists is gone."""
        try:
            place = Saving(self.path, REPLACES, self.marker)
            if set(files).isdisjoint(place.names()):
                place.remove(journal)
            place.close()
        except TesseraError:
            pass  # the failure of the save itself is what counts, and the next one removes this

    def release(self):
        for saving in (self._lead, *self._open_uploads()):
            if saving:
                saving.close()
        self._lead, self._sent = None, ()

    # ---- what interrupted saves left ----

    def _left_by(self, journal):
        """Returns the names that an interrupted save may have created and, if its checkpoint is in place, those that it was to replace."""
        try:
            document = json.loads(self._lead.read_note(journal))
        except (TesseraError, ValueError) as e:
            if getattr(e, "status", "malformed") not in ("malformed", "not found"):
                raise
            return None  # not a journal
        if not isinstance(document, dict):
            return None
        files, replaces = ([name for name in document.get(key) or [] if _may_be_data(name)] for key in ("files", "replaces"))
        return files + (replaces if self._replaced.intersection(files) else [])

    def _clean(self, names):
        """Removes what interrupted saves left, except the files of the checkpoint that is there. Every object that no journal lists stays."""
        for match in filter(None, map(_JOURNAL.fullmatch, names)):
            journal = match[0]
            if self.rank is not None and not match[1].startswith(f"{self.rank:08x}"):
                continue
            left = self._left_by(journal)
            if left is None:
                continue
            for name in left:
                if name not in self._replaced and name in names:
                    self._lead.remove(name)
            self._lead.remove(journal)
        if self.rank is not None:  # the open uploads may be those of the other ranks
            return
        try:
            self._lead.give_up_uploads()
        except TesseraError as e:
            if e.status != "unsupported":
                raise
            warn(f"{e}: uploads that a killed save has left are not given up")
