"""Checkpoints that tessera.torch.StorageWriter writes into an object store.

Every rank uploads its files in parts and leaves the uploads open, so nothing of them is visible. When all ranks have done so, the coordinator
completes the uploads. It writes `.metadata` last and, unless it replaces a checkpoint, only if there is none. The files that the old
checkpoint lists are removed afterwards.

    __R_TOKEN.distcp          a rank's file; TOKEN is random. __R_N_TOKEN.distcp if it has several
    .tessera-save-TOKEN.json  the coordinator's journal, from before the first file is visible until the end: what a later save may remove
                              if this one is killed

A rank that saves on its own is its own coordinator, with the marker `__R.metadata`."""
from __future__ import annotations

import json
import re
import weakref
from typing import Any

from ._library import TesseraError, warn
from ._save_place import TO_REPLACE, Place, names_of_files
from ._saving import PUBLISHES, REPLACES, SENDS, Saving

SCHEMES = ("s3://", "gs://", "az://")
_JOURNAL = re.compile(r"\.tessera-save-([0-9a-f]{16})\.json")


def _name_of_journal(token):
    return f".tessera-save-{token}.json"


class SentFile:
    """One of a rank's files while it is sent."""

    def __init__(self, place, name, expected):
        self.name, self._size = name, 0
        self.saving = Saving(place.path, SENDS, place.marker)
        self.saving.create(self.name, expected)

    def write(self, view):
        self.write_at(self._size, view)

    def write_at(self, offset, view):
        self.saving.write(offset, view)
        self._size = max(self._size, offset + len(view))

    def finish(self):
        return self._size, self.saving.hand_over(self._size)


class SentFiles(list):
    def finish(self):
        pass  # every file has been handed over

    def discard(self):
        for file in self:
            file.saving.close()


class Objects(Place):
    def __init__(self, path, overwrite):
        super().__init__(path, overwrite)
        self._lead: Any = None  # the coordinator's
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
            self.refuse_others(set(names) - self._clean(names))
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
        return self.send(zip(names_of_files(number, self.new_token(), len(expected)), expected))

    def send(self, sizes):
        """sizes: (name, bytes, about)."""
        files = SentFiles()
        try:
            for name, size in sizes:
                files.append(SentFile(self, name, size))
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
        def make():
            for name, (size, note) in files.items():
                self._lead.take_over(name, size, note)
            self._lead.publish(self.marker, data)
        self.publish_made(make, files)

    def publish_made(self, make, files, temporary=()):
        """files: the names of all that `make` makes, next to the marker, which is the last. temporary: those that nobody needs then."""
        journal, files = _name_of_journal(self.new_token()), {*files, *temporary}
        replaced = sorted(self._replaced - files - {self.marker})
        self._lead.put_note(journal, json.dumps({"files": sorted(files), "replaces": replaced}).encode())
        try:
            make()
        except TesseraError as e:
            self._lead.close()  # which removes what was made
            self._forget(journal, files, temporary)
            if e.status == "exists":
                raise FileExistsError(f"{self.path}: holds a checkpoint already ({self.marker}), which appeared during the save{TO_REPLACE}") from None
            raise
        for saving in self._open_uploads():
            saving.keep()
        for name in (*temporary, *replaced):
            self._lead.remove(name)
        self._lead.remove(journal)

    def _forget(self, journal, files, temporary):
        """Removes the journal, but only if everything that it lists is gone."""
        try:
            place = Saving(self.path, REPLACES, self.marker)
            left = files.intersection(place.names())
            for name in left.intersection(temporary):
                place.remove(name)
            if left.issubset(temporary):
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

    def may_be_data(self, name, is_new):
        """Whether a journal may cause this name to be removed. A checkpoint from somebody else may contain a journal that names any object.
        is_new: as a file of the save; otherwise as one that it was to replace."""
        return "/" not in name and name.endswith(".distcp")

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
        files, replaces = ([name for name in document.get(key) or [] if isinstance(name, str) and self.may_be_data(name, key == "files")]
                           for key in ("files", "replaces"))
        return files + (replaces if self._replaced.intersection(files) else [])

    def _clean(self, names):
        """Removes what interrupted saves left, except the files of the checkpoint that is there, and returns its names. Every object that no
        journal lists stays."""
        removed = set()
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
                    removed.add(name)
            self._lead.remove(journal)
        if self.rank is not None:  # the open uploads may be those of the other ranks
            return removed
        try:
            self._lead.give_up_uploads()
        except TesseraError as e:
            if e.status != "unsupported":
                raise
            warn(f"{e}: uploads that a killed save has left are not given up")
        return removed
