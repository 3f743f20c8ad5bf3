"""Staged partitions: files of Arrow batches, one directory per run, one or more files per partition.

The executors write and this process, or any worker, reads: both have to see the directory. A partition is there
when its manifest is, which comes last and by one link; of several attempts at a partition the first one wins.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from sluiceway_spark.persisted import StagedFile

__all__ = ["parts_of", "staged_partitions", "stager"]

_PART_BYTES: Final = 64 * 1024 * 1024


def stager(
    directory: str, schema: Any = None, part_bytes: int = _PART_BYTES
) -> Callable[[Iterable[Any]], Iterator[int]]:
    """Return the function that stages a partition on an executor and yields the number of the partition.

    It takes Arrow batches, or messages of such as the JVM makes them, which go into files as they are. It refers
    to nothing of ours, so that executors need only pyarrow and PySpark.

    Args:
        directory: for the files.
        schema: of messages; None: it is given batches, which have one.
        part_bytes: how large files become, about.
    """
    end = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream in Arrow's format
    head = None if schema is None else schema.serialize().to_pybytes()

    def stage(items: Iterable[Any]) -> Iterator[int]:
        import contextlib
        import json
        import os
        import uuid

        from pyspark import TaskContext

        context: Any = TaskContext.get()
        partition = context.partitionId()
        manifest = os.path.join(directory, f"done-{partition:05d}.json")
        if os.path.exists(manifest):  # of an attempt before, or of a run before
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
        hidden = os.path.join(directory, f".done-{partition:05d}-{attempt}")
        with open(hidden, "w") as out:
            json.dump({"partition": partition, "files": names}, out)
            out.flush()
            os.fsync(out.fileno())
        try:
            # Fails if the name exists: of two attempts one wins, whatever both have written.
            os.link(hidden, manifest)
        except FileExistsError:  # another attempt was faster
            for name in names:
                with contextlib.suppress(OSError):
                    os.remove(os.path.join(directory, name))
        finally:
            os.remove(hidden)
        yield partition

    return stage


def staged_partitions(directory: str) -> set[int]:
    """Return the numbers of the partitions that are complete."""
    with os.scandir(directory) as entries:
        return {int(e.name[5:-5]) for e in entries if e.name.startswith("done-") and e.name.endswith(".json")}


def parts_of(directory: str, partition: int) -> list[StagedFile]:
    """Return the files of a complete partition."""
    manifest = json.loads(Path(directory, f"done-{partition:05d}.json").read_text())
    return [StagedFile(directory, name, partition, number) for number, name in enumerate(manifest["files"])]
