"""Directory of a run's checkpoints: completed by one write, listed, discarded, and cleared of orphaned files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from sluiceway.checkpoint.files import join
from sluiceway.checkpoint.metadata import CheckpointMetadata, Section, decode_metadata, encode_metadata
from sluiceway.checkpoint.state_file import SHARED, SectionWriter
from sluiceway.checkpoint_storage import CheckpointStorage, StoredFile
from sluiceway.errors import CheckpointError

__all__ = [
    "METADATA",
    "CheckpointDirectory",
    "Orphans",
    "checkpoint_name",
    "checkpoint_number",
    "find_checkpoints",
    "load_metadata",
    "split_location",
    "write_enumerators",
]

METADATA: Final = "metadata.json"
"""The file that makes a checkpoint: written last, and deleted first."""

_TRIES: Final = 5
_CHECKPOINT: Final = re.compile(r"chk-\d+")
_SAVEPOINT: Final = re.compile(r"savepoint-.+-\d+-\d+")
_RUN: Final = re.compile(r".+-\d+-[0-9a-f]{4}")
"""The directories of these, and that of a run, in which checkpoints are."""


def checkpoint_name(checkpoint_id: int) -> str:
    """Return the name of a checkpoint's directory in that of its run."""
    return f"chk-{checkpoint_id}"


def checkpoint_number(name: str) -> int | None:
    """Return the id of the checkpoint whose directory has a name; None: it is not that of a checkpoint."""
    return int(name.removeprefix("chk-")) if _CHECKPOINT.fullmatch(name) else None


def split_location(location: str) -> tuple[str, str]:
    """Return the location at which to open the storage of a checkpoint, and its directory there.

    Args:
        location: path or URL of a checkpoint's directory, or of its metadata.
    """
    scheme, separator, path = location.rpartition("://")
    path = path.rstrip("/").removesuffix("/" + METADATA)
    if not separator and "/" not in path:
        # A bare name is in the working directory, and not in the root.
        path = f"./{path}"
    parent, _, directory = path.rpartition("/")
    return f"{scheme}{separator}{parent or '/'}", directory


def load_metadata(storage: CheckpointStorage, directory: str) -> CheckpointMetadata:
    """Return the metadata of the checkpoint in a directory.

    Raises:
        CheckpointError: there is none, or it is damaged or of a newer version; names the file.
    """
    name = join(directory, METADATA)
    try:
        data = storage.read(name)
    except CheckpointError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            shown = storage.shown(directory) if directory else storage.location
            raise CheckpointError(f"there is no complete checkpoint in {shown}: it has no {METADATA}") from error
        raise
    return decode_metadata(data, storage.shown(name))


def find_checkpoints(storage: CheckpointStorage, under: str = "") -> Iterator[str]:
    """Return the directories of all complete checkpoints and savepoints in a directory and below it, sorted."""
    names = sorted(file.name for file in storage.files(under))
    for name in names:
        directory, _, file = name.rpartition("/")
        if file == METADATA:
            yield directory


def write_enumerators(
    storage: CheckpointStorage, directory: str, enumerators: Mapping[str, Any]
) -> dict[str, Section]:
    """Write the state of the enumerators, in the job manager, and return its entries for the metadata.

    Raises:
        CheckpointError: it cannot be written.
        SerializationError: a value cannot be serialized.
    """
    writer = SectionWriter(storage, directory, "enumerators.state")
    sections: dict[str, Section] = {}

    def content() -> Iterator[None]:
        for uid, value in enumerators.items():
            section = writer.add_values((value,))
            assert section is not None
            sections[uid] = section
            yield

    writer.write(content)
    return sections


class Orphans(msgspec.Struct, frozen=True):
    """Files that a collection has found, or deleted.

    Attributes:
        files: the files.
        kept: files without references that are too young to be deleted.
    """

    files: tuple[StoredFile, ...]
    kept: tuple[StoredFile, ...]

    @property
    def size(self) -> int:
        """Size of the files in bytes."""
        return sum(file.size for file in self.files)


class CheckpointDirectory:
    """Checkpoints of one run of a job; used by its job manager alone.

    Every checkpoint has a directory of its own, ``chk-N``, and ``shared`` is beside them: files in it belong
    to every checkpoint that refers to them. A checkpoint exists when its metadata exists.

    Methods may block, and raise CheckpointError.

    Args:
        storage: storage of the checkpoints.
        path: directory of the run, relative to the storage's location; empty: that location itself.
    """

    def __init__(self, storage: CheckpointStorage, path: str = "") -> None:
        self.storage = storage
        self.path = path
        self._known: dict[int, CheckpointMetadata] = {}

    def directory(self, checkpoint_id: int) -> str:
        """Return the directory of a checkpoint, for :func:`write_subtask` and :func:`read_operators`."""
        return join(self.path, checkpoint_name(checkpoint_id))

    def location(self, checkpoint_id: int) -> str:
        """Return the path or URL of a checkpoint."""
        return self.storage.shown(self.directory(checkpoint_id))

    def complete(self, metadata: CheckpointMetadata) -> str:
        """Make a checkpoint of what was written. Returns its path or URL."""
        number = metadata.checkpoint_id
        self.storage.write(join(self.directory(number), METADATA), (encode_metadata(metadata),))
        self._known[number] = metadata
        return self.location(number)

    def ids(self) -> list[int]:
        """Return the ids of the complete checkpoints, oldest first."""
        found = []
        for directory in find_checkpoints(self.storage, self.path):
            parent, _, name = directory.rpartition("/")
            if parent == self.path and (number := checkpoint_number(name)) is not None:
                found.append(number)
        return sorted(found)

    def load(self, checkpoint_id: int) -> CheckpointMetadata:
        """Return the metadata of a checkpoint."""
        # The metadata of a checkpoint never change once they are written.
        known = self._known.get(checkpoint_id)
        if known is None:
            known = self._known[checkpoint_id] = load_metadata(self.storage, self.directory(checkpoint_id))
        return known

    def retain(self, count: int) -> list[int]:
        """Drop all complete checkpoints but the newest ``count``. Returns the ids of those that were dropped."""
        # `or None`: -0 would keep all of them.
        dropped = self.ids()[: -count or None]
        for checkpoint_id in dropped:
            self.discard(checkpoint_id)
        return dropped

    def discard(self, checkpoint_id: int, *, shared: bool = True) -> None:
        """Delete a checkpoint, complete or not, and the shared files that no complete one refers to.

        Checkpoints in progress are safe if a newer one is complete: a shared file that one refers to is in that,
        too, or in no older one.

        If this is interrupted, the remaining files are orphans.

        Args:
            checkpoint_id: id of the checkpoint.
            shared: False if no newer one is complete: shared files stay, for :meth:`delete_shared`.
        """
        directory = self.directory(checkpoint_id)
        unused: set[str] = set()
        # Where it is incomplete or damaged, its own directory goes; what it shares is for the
        # collection of orphans; so it is where another one is damaged, which may need the same files.
        with suppress(CheckpointError):
            files = self._files(checkpoint_id) if shared else set()
            mine = {name for name in files if not name.startswith(directory + "/")}
            others = (other for other in self.ids() if other != checkpoint_id) if mine else ()
            unused = mine.difference(*map(self._files, others))
        # The metadata first: from here on there is no checkpoint that could be restored from half of its files.
        self.storage.delete([join(directory, METADATA)])
        self._known.pop(checkpoint_id, None)
        self.storage.delete_directory(directory)
        self.storage.delete(sorted(unused))

    def delete_shared(self, names: Iterable[str]) -> None:
        """Delete files that aborted checkpoints have put into ``shared``, but not those of complete ones.

        Call it only after a newer complete one: what that does not refer to, no later one will.

        Args:
            names: names of the files in that directory.
        """
        mine = {join(self.path, f"{SHARED}/{name}") for name in names}
        self.storage.delete(sorted(mine.difference(*map(self._files, self.ids()))))

    def collect(self, now_ms: int, older_than_ms: int, *, dry_run: bool = False) -> Orphans:
        """Delete the files of broken writes and aborted checkpoints, to which no complete one refers.

        Jobs, and other collections, may run meanwhile. The files in the directory of an incomplete checkpoint or
        savepoint are as young as its youngest file, and those in ``shared`` as young as the youngest incomplete
        checkpoint beside it.

        Args:
            now_ms: the time, ms since the epoch.
            older_than_ms: younger files are kept, since they may be part of a checkpoint in progress. So are those
                of a storage that knows no times, unless it is 0.
            dry_run: delete nothing.

        Raises:
            CheckpointError: also if a metadata file cannot be read: its references are not known then, and
                nothing is deleted.
        """
        for _ in range(_TRIES):
            files = list(self.storage.files(self.path))
            before = {file.name for file in files if _is_metadata(file.name)}
            needed, gone = self._needed(before)
            after = {file.name for file in self.storage.files(self.path) if _is_metadata(file.name)}
            # A listing is not of one moment: what was completed meanwhile may have taken the place of what was
            # in it, and refer to the same files. A run that was not at rest keeps what it shares; so does one
            # that is at work, and has nothing complete in the listing.
            restless = {_place_of(name)[0] for name in (before ^ after) | gone}
            sharing = {run for run, part in (_place_of(file.name) for file in files) if part == SHARED}
            nothing = sharing - {_place_of(name)[0] for name in before}
            if not restless and not nothing:
                break
        # What is not referred to, in directories that hold nothing but files of checkpoints.
        runs = {run for run, part in (_place_of(file.name) for file in files) if _CHECKPOINT.fullmatch(part)}
        orphans = [f for f in files if f.name not in needed and self._is_ours(f.name, runs)]
        orphans.sort(key=lambda file: file.name)
        limit = now_ms - older_than_ms

        def is_young(file: StoredFile) -> bool:
            # Some storages know no times: their files may be of a checkpoint in progress.
            return file.modified_ms > limit or (not file.modified_ms and older_than_ms > 0)

        # A directory is as young as its youngest file. What is shared is as young as the youngest incomplete
        # checkpoint of the run, which may refer to it.
        at_work = {_place_of(file.name)[0] for file in files if is_young(file)}
        young = {(run, SHARED) for run in restless | (at_work & nothing)}
        for run, part in (_place_of(file.name) for file in orphans if is_young(file)):
            young |= {(run, part), (run, SHARED)} if part != SHARED else set()
        old: list[StoredFile] = []
        kept: list[StoredFile] = []
        for file in orphans:
            (kept if is_young(file) or _place_of(file.name) in young else old).append(file)
        if not dry_run:
            self.storage.delete(file.name for file in old)
        return Orphans(tuple(old), tuple(kept))

    def _needed(self, metadata: Iterable[str]) -> tuple[set[str], set[str]]:
        """Return the files of complete checkpoints, and the names of metadata deleted meanwhile."""
        needed, gone = set(metadata), set()
        for name in sorted(needed):
            directory = name.rpartition("/")[0]
            try:
                found = load_metadata(self.storage, directory)
            except CheckpointError:
                if any(file.name == name for file in self.storage.files(directory)):
                    raise
                # Deleted between the listing and the reading.
                gone.add(name)
            else:
                needed.update(join(directory, part) for part in found.files())
        return needed, gone

    def _is_ours(self, name: str, runs: set[str]) -> bool:
        """Return whether a file is in a directory that holds files of checkpoints only."""
        run, part = _place_of(name)
        if part != SHARED:
            return (_CHECKPOINT.fullmatch(part) or _SAVEPOINT.fullmatch(part)) is not None
        return run in runs or _RUN.fullmatch((run or self.storage.location).rpartition("/")[2]) is not None

    def _files(self, checkpoint_id: int) -> set[str]:
        directory = self.directory(checkpoint_id)
        return {join(directory, name) for name in self.load(checkpoint_id).files()}


def _place_of(name: str) -> tuple[str, str]:
    """Return the directory of the run that a file belongs to, and the name of its own directory."""
    run, _, part = name.rpartition("/")[0].rpartition("/")
    return run, part


def _is_metadata(name: str) -> bool:
    return name == METADATA or name.endswith("/" + METADATA)
