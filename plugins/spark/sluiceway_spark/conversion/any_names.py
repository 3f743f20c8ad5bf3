"""``mapInArrow`` over columns of any name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

__all__ = ["map_in_arrow"]


def map_in_arrow(frame: Any, task: Callable[[Iterable[Any]], Iterator[Any]], schema: Any) -> Any:
    """Return ``frame.mapInArrow(task, schema)``, whatever the columns are called.

    PySpark looks up each column by a text, in which a dot leads into a struct. A name with a dot or a backtick is
    not found there, and one of two names that differ in case alone is ambiguous. Such a DataFrame is mapped under
    other names, and ``task`` gets its own ones.
    """
    names = list(frame.columns)
    if _are_found(names):
        return frame.mapInArrow(task, schema)

    def named(batches: Iterable[Any]) -> Iterator[Any]:  # with nothing of ours, which executors may lack
        import pyarrow as pa

        def renamed() -> Iterator[Any]:
            for batch in batches:
                fields = [field.with_name(name) for field, name in zip(batch.schema, names, strict=True)]
                yield pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))

        return task(renamed())

    return frame.toDF(*(f"c{number}" for number in range(len(names)))).mapInArrow(named, schema)


def _are_found(names: Sequence[str]) -> bool:
    return not any("." in name or "`" in name for name in names) and len(set(map(str.lower, names))) == len(names)
