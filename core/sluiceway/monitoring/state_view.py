"""State and dead letters of jobs as text, and the contract of access to them."""

from __future__ import annotations

import msgspec

from sluiceway.errors import SluicewayError

__all__ = ["DeadLetters", "KeyState", "KeyValue", "Letter", "StateEntry", "StateMonitor", "StateSizes"]


class StateEntry(msgspec.Struct, frozen=True):
    """Size of one keyed state.

    Attributes:
        uid: of the step.
        state: name of the state.
        kind: ``value``, ``list``, ``map``, ``reducing`` or ``aggregating``.
        keys: number of keys.
        entries: number of values.
        size: bytes of keys, namespaces and values as they are serialized, without compression.
        largest_key: key with most bytes as JSON, shortened.
        largest_size: bytes of that key.
    """

    uid: str
    state: str
    kind: str
    keys: int
    entries: int
    size: int
    largest_key: str
    largest_size: int


class StateSizes(msgspec.Struct, frozen=True):
    """Keyed state in a checkpoint, the largest first. ``place`` is the path or URL of the checkpoint."""

    place: str
    states: list[StateEntry]


class KeyValue(msgspec.Struct, frozen=True):
    """Value of a key in a namespace, both as JSON; ``shortened`` says that the value was cut."""

    namespace: str
    kind: str
    value: str
    shortened: bool
    touched_ms: int | None


class KeyState(msgspec.Struct, frozen=True):
    """Values of a key, at most a hundred. ``place`` is that of the checkpoint; empty: the task was asked."""

    place: str
    namespaces: int
    values: list[KeyValue]


class Letter(msgspec.Struct, frozen=True):
    """One dead letter; texts are shortened.

    Attributes:
        step: name of the step that has skipped the record.
        uid: its uid.
        subtask: index of the subtask.
        time_ms: when it was skipped, ms since the epoch.
        record: ``repr`` of the record.
        key: ``repr`` of its key; None: it has none.
        error: the exception in a line.
        traceback: its traceback.
        replayable: False if the record could not be kept, or not be decoded.
    """

    step: str
    uid: str
    subtask: int
    time_ms: int
    record: str
    key: str | None
    error: str
    traceback: str
    replayable: bool


class DeadLetters(msgspec.Struct, frozen=True):
    """Dead letters of a job.

    Attributes:
        directory: that they are in.
        total: number of all.
        steps: their number by name of the step, of the thousand steps first found.
        letters: the newest ones, newest first.
    """

    directory: str
    total: int
    steps: dict[str, int]
    letters: list[Letter]


class StateMonitor:
    """Access to state and dead letters of the jobs of a cluster. All methods block. From any thread.

    Values are decoded in another process, without unpickling what could run code. Each method raises
    SluicewayError with the reason if it refuses; this class, which is that of records of ended jobs, always does.
    """

    def sizes(self, job: str) -> StateSizes:
        """Measure the keyed state in the last completed checkpoint of a job."""
        raise _refused(job)

    def find(self, job: str, uid: str, state: str, key: str, *, live: bool = False) -> KeyState:
        """Return what a key has in a state.

        Args:
            job: id of the job.
            uid: of the step.
            state: name of the state.
            key: as JSON or as text.
            live: ask the task that has the key instead of reading the last completed checkpoint.
        """
        raise _refused(job)

    def dead_letters(self, job: str, directory: str, step: str = "", limit: int = 100) -> DeadLetters:
        """Return dead letters of a job.

        Args:
            job: name of the pipeline.
            directory: that they are in.
            step: name of a step; empty: all.
            limit: largest number that is returned by itself.
        """
        raise _refused(job)


def _refused(job: str) -> SluicewayError:
    return SluicewayError(f"state of job {job!r} is not read here: these pages show records of ended jobs")
