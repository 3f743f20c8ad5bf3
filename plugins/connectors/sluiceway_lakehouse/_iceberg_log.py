"""Snapshots of an Iceberg table: the files of one, and what later ones have appended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sluiceway.columns.filters import Alternatives, Condition
from sluiceway_lakehouse._errors import MisfitError
from sluiceway_lakehouse._iceberg_table import IcebergPlace
from sluiceway_lakehouse._reading import LakeSplit

__all__ = ["appended", "files_of", "row_filter", "snapshots_since"]

_CONSTANT: Final = frozenset(
    {"binary", "boolean", "date", "decimal", "int", "long", "string", "timestamp", "timestamptz"}
)
"""Types of columns whose partition values are those of the rows, exactly."""


def files_of(table: Any, snapshot: int | None, place: IcebergPlace, kept: Any) -> list[LakeSplit]:
    """Return the data files of a snapshot, sorted by path.

    Args:
        table: ``pyiceberg.table.Table``.
        snapshot: id of the snapshot; None: the table has none.
        place: of the table.
        kept: expression of pyiceberg; files that have no such rows are left out.

    Raises:
        MisfitError: rows of them are deleted by other files, or they are not in Parquet.
        ConnectorError: the catalog or the object store fails.
    """
    if snapshot is None:
        return []
    with place.failing_with("read"):
        tasks = list(table.scan(row_filter=kept, snapshot_id=snapshot).plan_files())
    splits = []
    for task in tasks:
        if task.delete_files:
            raise MisfitError(
                f"{place}, snapshot {snapshot}: rows of {task.file.file_path} are deleted by delete files, "
                "which are not read. CALL ....system.rewrite_data_files(...) of Spark, with "
                "delete-file-threshold 1, writes such files anew"
            )
        splits.append(_split(table, task.file, snapshot, place))
    return sorted(splits, key=lambda split: split.path)


def snapshots_since(table: Any, last: int | None, sequence: int, place: IcebergPlace) -> list[Any]:
    """Return the snapshots after one, up to the current one, in their order.

    Args:
        table: ``pyiceberg.table.Table``.
        last: id of that snapshot; None: there was none yet.
        sequence: its sequence number.
        place: of the table.

    Raises:
        MisfitError: one of them has expired, or that one is none of the current history.
    """
    metadata = table.metadata
    found: list[Any] = []
    at = table.current_snapshot()
    while at is not None and at.sequence_number > sequence:
        found.append(at)
        at = None if at.parent_snapshot_id is None else metadata.snapshot_by_id(at.parent_snapshot_id)
    if (None if at is None else at.snapshot_id) == last:
        is_known = at is not None
    else:
        if at is not None or not found or metadata.snapshot_by_id(last) is not None:
            raise MisfitError(
                f"{place} was rolled back, or changed to another branch: snapshot {last}, up to which it was "
                "read, is not in the history of the current one. Give the source another uid, so that it begins "
                "anew"
            )
        is_known = found[-1].parent_snapshot_id == last
    # Not by the parent alone: where pyiceberg lets snapshots expire, the next one has none.
    numbers = {one.sequence_number for one in metadata.snapshots}
    if found and not is_known and any(n not in numbers for n in range(sequence + 1, found[-1].sequence_number)):
        raise MisfitError(
            f"{place}: a snapshot after {last or 'the first look at the empty table'} has expired, so what it "
            "has added is not known. history.expire.max-snapshot-age-ms says how long a snapshot is kept. Give "
            "the source another uid, so that it begins anew"
        )
    return found[::-1]


def appended(table: Any, snapshot: Any, place: IcebergPlace) -> Iterator[LakeSplit]:
    """Yield the data files that a snapshot has added.

    Args:
        table: ``pyiceberg.table.Table``.
        snapshot: ``pyiceberg.table.snapshots.Snapshot``.
        place: of the table.

    Raises:
        MisfitError: it removes or changes rows.
        ConnectorError: the object store fails.
    """
    from pyiceberg.manifest import ManifestContent, ManifestEntryStatus

    number = snapshot.snapshot_id
    operation = "" if snapshot.summary is None else snapshot.summary.operation.value
    if operation == "replace":  # files were rewritten, with the same rows
        return
    if operation != "append":
        raise _changed(place, number, operation)
    with place.failing_with("read"):
        for manifest in snapshot.manifests(table.io):
            # A snapshot lists the manifests of earlier ones, too.
            if manifest.added_snapshot_id != number:
                continue
            if manifest.content == ManifestContent.DELETES:
                raise _changed(place, number, operation)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id in (None, number):
                    yield _split(table, entry.data_file, number, place)


def row_filter(alternatives: Alternatives | None, schema: Any) -> Any:
    """Return conditions as an expression of pyiceberg, without those that it does not have.

    Args:
        alternatives: conjunctions, one of which has to hold; None: all rows are kept.
        schema: ``pyiceberg.schema.Schema`` of the table.
    """
    from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, Or

    if alternatives is None:
        return AlwaysTrue()
    kept: Any = AlwaysFalse()
    for conjunction in alternatives:
        each: Any = AlwaysTrue()
        for condition in conjunction:
            each = And(each, _expression(condition, schema))
        kept = Or(kept, each)
    return kept


def _expression(condition: Condition, schema: Any) -> Any:
    from pyiceberg import expressions as of

    kinds = {
        "=": of.EqualTo,
        "==": of.EqualTo,
        "!=": of.NotEqualTo,
        "<": of.LessThan,
        "<=": of.LessThanOrEqual,
        ">": of.GreaterThan,
        ">=": of.GreaterThanOrEqual,
        "in": of.In,
        "not in": of.NotIn,
    }
    value = condition.value
    values = value if isinstance(value, tuple) else (value,)
    # Nothing is gained by those that exclude single values, and zeros are of either sign.
    if "!=" in condition.operator or "not" in condition.operator or any(isinstance(one, float) for one in values):
        return of.AlwaysTrue()
    try:
        expression = kinds[condition.operator](of.Reference(condition.column), value)
        expression.bind(schema, case_sensitive=True)
    except Exception:  # a value or type that it does not compare; the rows are looked at later
        return of.AlwaysTrue()
    return expression


def _split(table: Any, file: Any, snapshot: int, place: IcebergPlace) -> LakeSplit:
    from pyiceberg.manifest import FileFormat

    if file.file_format != FileFormat.PARQUET:
        raise MisfitError(f"{place}: {file.file_path} is in {file.file_format.value}; Parquet alone is read")
    partition: dict[str, Any] = {}
    for at, field in enumerate(table.specs()[file.spec_id].fields):
        if str(field.transform) == "identity":
            try:
                of = table.schema().find_field(field.source_id).field_type
            except ValueError:
                continue  # of a column that is not there any more
            if str(of).partition("(")[0] in _CONSTANT:
                partition[str(field.source_id)] = file.partition[at]
    return LakeSplit(file.file_path, snapshot, partition)


def _changed(place: IcebergPlace, snapshot: int, operation: str) -> MisfitError:
    return MisfitError(
        f"{place}, snapshot {snapshot} ({operation or 'of an unknown operation'}): rows were deleted or "
        "updated, which a stream of rows has nothing for. Read this table without watch=, or begin after it: "
        f"snapshot_id={snapshot}, with another uid of the source"
    )
