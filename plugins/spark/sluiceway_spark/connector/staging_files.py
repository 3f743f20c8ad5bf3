"""Staged partitions: files of Arrow batches, one directory per run, one or more files per partition.

The executors write and this process, or any worker, reads: both have to see the directory. A task whose executor
or driver goes away, or that Spark cancels, sees the end of its input too early, and cannot tell: its files look
complete. So files count once Spark has told the driver that the task which wrote them was successful. It tells
that of one task per partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

__all__ = ["StagedPartition", "stager"]

_PART_BYTES: Final = 64 * 1024 * 1024

StagedPartition: TypeAlias = tuple[int, list[str]]
"""Number of a partition, and the names of its files in the order of its rows."""


def stager(
    directory: str,
    schema: Any = None,
    *,
    known: frozenset[int] = frozenset(),
    finished: Any = None,
    part_bytes: int = _PART_BYTES,
) -> Callable[[Iterable[Any]], Iterator[StagedPartition]]:
    """Return the function that stages a partition on an executor and yields what it has written.

    It takes Arrow batches, or messages of such as the JVM makes them, which go into files as they are. It refers
    to nothing of ours, so that executors need only pyarrow and PySpark.

    Args:
        directory: for the files.
        schema: of messages; None: it is given batches, which have one.
        known: partitions that an earlier run has staged, which are left out.
        finished: accumulator of lists, to which what was written is added; None: there is none.
        part_bytes: how large files become, about.
    """
    end = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream in Arrow's format
    head = None if schema is None else schema.serialize().to_pybytes()

    def stage(items: Iterable[Any]) -> Iterator[StagedPartition]:
        import contextlib
        import os
        import uuid

        from pyspark import TaskContext

        context: Any = TaskContext.get()
        partition = context.partitionId()
        if partition in known:
            return
        attempt = uuid.uuid4().hex[:12]
        names: list[str] = []
        file: Any = None
        try:
            for item in items:
                if head is None and not item.num_rows:
                    continue
                if file is None:
                    names.append(f"part-{partition:05d}-{len(names):05d}-{attempt}.arrow")
                    file = open(os.path.join(directory, names[-1]), "wb")  # noqa: SIM115 - closed below
                    file.write(item.schema.serialize() if head is None else head)
                file.write(item.serialize() if head is None else item)
                if file.tell() >= part_bytes:
                    file.write(end)
                    file.close()
                    file = None
            if file is not None:
                file.write(end)
                file.close()
                file = None
        except BaseException:
            if file is not None:
                file.close()
            for name in names:
                with contextlib.suppress(OSError):
                    os.remove(os.path.join(directory, name))
            raise
        if finished is not None:
            finished.add([(partition, names)])
        yield partition, names

    return stage
