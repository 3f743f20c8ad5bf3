"""The log of a Delta table, version by version: what was appended, and what was changed otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from sluiceway.errors import ConnectorError
from sluiceway_lakehouse._delta_table import DeltaPlace
from sluiceway_lakehouse._errors import MisfitError
from sluiceway_lakehouse._reading import LakeSplit

__all__ = ["appended", "files_of"]


def files_of(table: Any, place: DeltaPlace) -> list[LakeSplit]:
    """Return the data files of a table at its version, sorted by path, as they are in the log."""
    version = table.version()
    with place.failing_with("read"):
        with_vectors = pa.table(table.deletion_vectors())
        if with_vectors.num_rows:
            raise MisfitError(
                f"{place}, version {version}: rows of {with_vectors.num_rows} files are deleted by deletion "
                "vectors, which are not read. REORG TABLE ... APPLY (PURGE) writes such files anew"
            )
        actions = pa.table(table.get_add_actions(flatten=True))
    names = table.metadata().partition_columns
    columns = [actions.column(f"partition.{name}").to_pylist() for name in names]
    splits = []
    paths: list[Any] = actions.column("path").to_pylist()
    for at, path in enumerate(paths):
        partition = {name: column[at] for name, column in zip(names, columns, strict=True)}
        splits.append(LakeSplit(_path(path, place), version, partition))
    return sorted(splits, key=lambda split: split.path)


def appended(place: DeltaPlace, version: int, schema: pa.Schema, table_id: str) -> list[LakeSplit]:
    """Return the data files that a version has added.

    Args:
        place: of the table.
        version: whose log is read.
        schema: of the table, for the types of partition values.
        table_id: id of the table.

    Raises:
        MisfitError: it removes or changes rows, or is not in the log any more.
        ConnectorError: the log cannot be read.
    """
    splits: list[LakeSplit] = []
    for action in _actions(place, version):
        # Actions without a change of data are those of OPTIMIZE and the like: the same rows in other files.
        if (add := action.get("add")) is not None and add.get("dataChange", True):
            if add.get("deletionVector"):
                raise _changed(place, version)
            values = {name: _value(name, text, schema, place) for name, text in add["partitionValues"].items()}
            splits.append(LakeSplit(_path(add["path"], place), version, values))
        elif (
            (removed := action.get("remove")) is not None and removed.get("dataChange", True)
        ) or "cdc" in action:
            raise _changed(place, version)
        elif (metadata := action.get("metaData")) is not None and metadata.get("id") != table_id:
            raise MisfitError(f"{place}, version {version}: the table was replaced by another one")
    return splits


def _changed(place: DeltaPlace, version: int) -> MisfitError:
    return MisfitError(
        f"{place}, version {version}: rows were deleted or updated, which a stream of rows has nothing for. Read "
        f"this table without watch=, or begin after it: version={version}, with another uid of the source"
    )


def _actions(place: DeltaPlace, version: int) -> Iterator[dict[str, Any]]:
    path = f"_delta_log/{version:020d}.json"
    try:
        with place.failing_with("read"), place.files.open(path) as file:
            lines = file.read().splitlines()
    except ConnectorError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise MisfitError(
                f"{place}: version {version} is not in the log any more, so what it has added is not known. "
                "delta.logRetentionDuration says how long a version is kept. Give the source another uid, so "
                "that it begins anew"
            ) from error
        raise
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                action = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise _damaged(place, path, number, str(error)) from error
            if not _is_action(action):
                raise _damaged(place, path, number, "it is no action of Delta Lake's")
            yield action


def _is_action(action: Any) -> bool:
    if not isinstance(action, dict) or not all(isinstance(fields, dict) for fields in action.values()):
        return False
    add = action.get("add")
    return add is None or (isinstance(add.get("path"), str) and isinstance(add.get("partitionValues"), dict))


def _damaged(place: DeltaPlace, path: str, line: int, why: str) -> ConnectorError:
    return ConnectorError(f"{place}: line {line} of {path} cannot be read: {why}. Restore the file as it was")


def _path(path: str, place: DeltaPlace) -> str:
    # Paths are URLs in the log.
    decoded = unquote(path)
    if "://" in decoded or decoded.startswith(("/", "file:")):
        raise MisfitError(
            f"{place} has the file {decoded}, which is outside of it, as in a shallow clone: it is not read"
        )
    return decoded


def _value(name: str, text: str | None, schema: pa.Schema, place: DeltaPlace) -> Any:
    if text is None or text == "":
        return None
    try:
        kind = schema.field(name).type
        if pa.types.is_timestamp(kind) and kind.tz is not None and not text.endswith("Z"):
            text += "Z"
        return pa.scalar(text).cast(kind).as_py()
    except (KeyError, pa.ArrowException) as error:
        raise ConnectorError(f"{place}: the log has {text!r} for partition column {name!r}: {error}") from error
