"""The checkpoints of one run: completed by one write, listed, dropped, and what nobody refers to collected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from sluiceway.checkpoints.metadata import CheckpointMetadata, Section, decode_metadata, encode_metadata
from sluiceway.checkpoints.stored import join
from sluiceway.checkpoints.subtasks import SHARED, SectionWriter
from sluiceway.errors import CheckpointError
from sluiceway.storage import CheckpointStorage, StoredFile

__all__ = [
    "METADATA",
    "CheckpointDirectory",
    "Orphans",
    "find_checkpoints",
    "load_metadata",
    "split_location",
    "write_enumerators",
]

METADATA: Final = "metadata.json"
"""The file that makes a checkpoint: written last, and deleted first."""


def split_location(location: str) -> tuple[str, str]:
    """Where the storage of a checkpoint is to be opened, and its directory there.

    Args:
        location: path or URL of a checkpoint's directory, or of its metadata.
    """
    scheme, separator, path = location.rpartition("://")
    path = path.rstrip("/").removesuffix("/" + METADATA)
    if not separator and "/" not in path:
        path = f"./{path}"
    parent, _, directory = path.rpartition("/")
    return f"{scheme}{separator}{parent or '/'}", directory


def load_metadata(storage: CheckpointStorage, directory: str) -> CheckpointMetadata:
    """The metadata of the checkpoint in a directory.

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
    """The directories of all complete checkpoints and savepoints in a directory and below it, sorted."""
    names = sorted(file.name for file in storage.files(under))
    for name in names:
        directory, _, file = name.rpartition("/")
        if file == METADATA:
            yield directory


def write_enumerators(
    storage: CheckpointStorage, directory: str, enumerators: Mapping[str, Any]
) -> dict[str, Section]:
    """Write what the enumerators keep, in the job manager. Returns what the metadata says of it.

    Raises:
        CheckpointError: it cannot be written.
        SerializationError: a value cannot be.
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


@dataclass(frozen=True, slots=True)
class Orphans:
    """What a collection has found, or deleted.

    Attributes:
        files: the files.
        kept: files that nothing refers to and that are too young to tell.
    """

    files: tuple[StoredFile, ...]
    kept: tuple[StoredFile, ...]

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return sum(file.size for file in self.files)


class CheckpointDirectory:
    """The checkpoints of one run of a job; used by its job manager alone.

    Every checkpoint has a directory of its own, ``chk-N``, and ``shared`` is beside them: files in it belong
    to every checkpoint that refers to them. A checkpoint is there when its metadata is there.

    Methods may block, and raise CheckpointError.

    Args:
        storage: where they are.
        path: of the run, relative to the storage's location; empty: that location itself.
    """

    def __init__(self, storage: CheckpointStorage, path: str = "") -> None:
        self.storage = storage
        self.path = path
        self._known: dict[int, CheckpointMetadata] = {}

    def directory(self, checkpoint_id: int) -> str:
        """The directory of a checkpoint, for :func:`write_subtask` and :func:`read_operators`."""
        return join(self.path, f"chk-{checkpoint_id}")

    def location(self, checkpoint_id: int) -> str:
        """Path or URL of a checkpoint."""
        return self.storage.shown(self.directory(checkpoint_id))

    def complete(self, metadata: CheckpointMetadata) -> str:
        """Make a checkpoint of what was written. Returns its path or URL."""
        number = metadata.checkpoint_id
        self.storage.write(join(self.directory(number), METADATA), (encode_metadata(metadata),))
        self._known[number] = metadata
        return self.location(number)

    def ids(self) -> list[int]:
        """The complete checkpoints, oldest first."""
        found = []
        for directory in find_checkpoints(self.storage, self.path):
            parent, _, name = directory.rpartition("/")
            if parent == self.path and name.startswith("chk-") and name[4:].isdecimal():
                found.append(int(name[4:]))
        return sorted(found)

    def load(self, checkpoint_id: int) -> CheckpointMetadata:
        """The metadata of a checkpoint."""
        known = self._known.get(checkpoint_id)
        if known is None:
            known = self._known[checkpoint_id] = load_metadata(self.storage, self.directory(checkpoint_id))
        return known

    def retain(self, count: int) -> list[int]:
        """Drop all complete checkpoints but the newest ``count``. Returns the ids of those that were dropped."""
        dropped = self.ids()[: -count or None]
        for checkpoint_id in dropped:
            self.discard(checkpoint_id)
        return dropped

    def discard(self, checkpoint_id: int) -> None:
        """Drop a checkpoint, complete or not, and the shared files that no complete one refers to.

        Files of a checkpoint that is under way need no care: a shared file that it refers to is in the last
        complete one, too, or was written for it, and only what a complete one refers to is looked at here.

        If this is interrupted, what is left over are orphans.
        """
        directory = self.directory(checkpoint_id)
        shared: set[str] = set()
        # Where it is incomplete or damaged, its own directory goes; what it shares is for the
        # collection of orphans; so it is where another one is damaged, which may need the same files.
        with suppress(CheckpointError):
            mine = {name for name in self._files(checkpoint_id) if not name.startswith(directory + "/")}
            others = (other for other in self.ids() if other != checkpoint_id) if mine else ()
            shared = mine.difference(*map(self._files, others))
        self.storage.delete([join(directory, METADATA)])
        self._known.pop(checkpoint_id, None)
        own = [file.name for file in self.storage.files(directory)]
        self.storage.delete([*own, *sorted(shared)])

    def collect(self, now_ms: int, older_than_ms: int, *, dry_run: bool = False) -> Orphans:
        """Delete what no complete checkpoint refers to: what broken writes and given-up checkpoints have left.

        Args:
            now_ms: the time, ms since the epoch.
            older_than_ms: younger files are kept, since they may be part of a checkpoint that is under way.
            dry_run: delete nothing.

        Raises:
            CheckpointError: also if a metadata file cannot be read: what it refers to is not known then, and
                nothing is deleted.
        """
        files = {file.name: file for file in self.storage.files(self.path)}
        needed: set[str] = set()
        for name in files:
            directory, _, file = name.rpartition("/")
            if file == METADATA:
                needed.add(name)
                found = load_metadata(self.storage, directory)
                needed.update(join(directory, part) for part in found.files())
        orphans = sorted((f for n, f in files.items() if n not in needed), key=lambda file: file.name)
        old = tuple(f for f in orphans if f.modified_ms <= now_ms - older_than_ms and _is_ours(self.path, f.name))
        young = tuple(f for f in orphans if f not in old and _is_ours(self.path, f.name))
        if not dry_run:
            self.storage.delete(file.name for file in old)
        return Orphans(old, young)

    def _files(self, checkpoint_id: int) -> set[str]:
        directory = self.directory(checkpoint_id)
        return {join(directory, name) for name in self.load(checkpoint_id).files()}


def _is_ours(path: str, name: str) -> bool:
    """Whether a file is in a place where only checkpoints have files."""
    parts: Iterable[str] = name.removeprefix(path).strip("/").split("/")[:-1]
    return any(part == SHARED or (part.startswith("chk-") and part[4:].isdecimal()) for part in parts)
