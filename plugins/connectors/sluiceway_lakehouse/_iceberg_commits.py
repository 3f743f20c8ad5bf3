"""Commits to a table of Iceberg, each of which is in the table once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from sluiceway.errors import ConnectorError
from sluiceway_lakehouse._errors import MisfitError
from sluiceway_lakehouse._iceberg_table import IcebergFiles, IcebergPlace

__all__ = ["Committable", "IcebergCommits", "WrittenDataFile"]

_MARKS: Final = "sluiceway.commits"
_JOB: Final = "sluiceway.job"
_TRIES: Final = 10
"""Attempts at a commit while others change the table, and one more for each writer of the sink."""

WrittenDataFile: TypeAlias = tuple[str, int, tuple[Any, ...], dict[str, Any]]
"""Path, size in bytes, partition values, statistics."""
Committable: TypeAlias = tuple[str, str, int, int, tuple[WrittenDataFile, ...]]
"""Mark, id of the table, id of its partition spec, its last sequence number before, files."""


class IcebergCommits:
    """Commits of written files.

    Each committable has a mark of its own, which goes into the summary of the snapshot that adds its files. A
    commit is made against the snapshot that was looked through for the mark, and the catalog refuses it if that
    is not the current one any more. So a commit that is repeated, by whatever process, finds its mark. Retries of
    pyiceberg are not used: they do not look for it.

    Args:
        place: of the table.
        job_name: for the summary of snapshots.
        writers: number of subtasks that may commit at the same time.
    """

    def __init__(self, place: IcebergPlace, job_name: str, writers: int) -> None:
        self._place = place
        self._job_name = job_name
        self._tries = _TRIES + writers

    def commit(self, catalog: Any, committables: Sequence[Committable], *, again: bool) -> None:
        """Add files to the table, unless that was done already: all of them in one snapshot.

        Args:
            catalog: of the table.
            committables: what was written.
            again: whether it may have been committed already.

        Raises:
            MisfitError: the table does not take them any more, or cannot tell whether it has them.
            ConnectorError: the catalog or the object store fails; the commit may have been made or not.
        """
        from pyiceberg.exceptions import CommitFailedException

        for left in reversed(range(self._tries if committables else 0)):
            table = self._place.find(catalog)
            if table is None:
                raise MisfitError(
                    f"{self._place} is not there any more; rows that were written cannot be committed"
                )
            self._check_id(table, committables)
            pending = [one for one in committables if not self._is_in(table, one)]
            if not pending:
                return
            self._check_unchanged(table, pending, again=again)
            try:
                self._append(catalog, table, pending)
            except CommitFailedException as error:
                if not left:
                    raise ConnectorError(
                        f"cannot commit to {self._place}: others have changed it {self._tries} times meanwhile: "
                        f"{self._place.reason(error)}"
                    ) from None
            else:
                return

    def _check_id(self, table: Any, committables: Sequence[Committable]) -> None:
        if any(one[1] != str(table.metadata.table_uuid) for one in committables):
            raise MisfitError(
                f"{self._place} was replaced by another table since rows were written for it. To write to "
                "the new one, start the job without the checkpoint, or give the sink another uid"
            )

    def _is_in(self, table: Any, committable: Committable) -> bool:
        """Return whether the table has the files of a committable. Raises MisfitError: that is not known."""
        mark, _, _, sequence, files = committable
        metadata = table.metadata
        summaries = (one.summary for one in metadata.snapshots)
        if any(summary is not None and mark in (summary[_MARKS] or "").split(",") for summary in summaries):
            return True
        # No snapshot that could be the commit is missing, and none has the mark.
        if _has_all_since(metadata, sequence):
            return False
        with self._place.failing_with("look through"):
            # A snapshot with the mark may have expired. Files of one commit come together, so the first one
            # answers for all.
            if _has_file(table, files[0][0]):
                return True
        raise MisfitError(
            f"{self._place}: it is not known whether rows that were written before the checkpoint were "
            f"committed: snapshots that were made since have expired, and {files[0][0]} is not in the current "
            "one. It may have been committed, and rewritten or deleted later. Keep snapshots for longer than a "
            "job may take to continue from a checkpoint. To go on, look whether the rows of this file are in "
            "the table, add it with add_files() if not, and give the sink another uid"
        )

    def _check_unchanged(self, table: Any, pending: Sequence[Committable], *, again: bool) -> None:
        """Raise MisfitError if the table does not take files that were written for it."""
        for one in pending:
            if one[2] != table.metadata.default_spec_id:
                raise MisfitError(
                    f"{self._place}: the partition spec was changed while the job was running: rows were "
                    f"written for spec {one[2]}, and the table has spec {table.metadata.default_spec_id}. "
                    "Change it when a job has ended. To go on, add their files with add_files(), such as "
                    f"{one[4][0][0]}, and give the sink another uid"
                )
        if again:
            paths = [path for one in pending for path, *_ in one[4]]
            with self._place.failing_with("commit to"):
                missing = IcebergFiles(table.io).missing(paths)
            if missing:
                raise MisfitError(
                    f"cannot commit to {self._place}: {missing[0]} is not there any more. Was it removed as an "
                    "orphan file, because the checkpoint is older than the age of such files?"
                )

    def _append(self, catalog: Any, table: Any, pending: Sequence[Committable]) -> None:
        """Add files to the table as it was looked at. Raises CommitFailedException: it has changed since."""
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.table.update import AssertTableUUID
        from pyiceberg.typedef import Record

        properties = {_MARKS: ",".join(one[0] for one in pending), _JOB: self._job_name}
        # Of this attempt alone: the transaction's own commit() would try again without a look for the marks, and
        # removes manifests after a conflict, also if the commit was made and its answer lost.
        with self._place.failing_with("commit to"):
            transaction = table.transaction()
            update = transaction.update_snapshot(snapshot_properties=properties)
            merges = table.metadata.properties.get("commit.manifest-merge.enabled", "true").lower() == "true"
            with update.merge_append() if merges else update.fast_append() as append:
                for one in pending:
                    for path, size, partition, statistics in one[4]:
                        append.append_data_file(
                            DataFile.from_args(
                                content=DataFileContent.DATA,
                                file_path=path,
                                file_format=FileFormat.PARQUET,
                                partition=Record(*partition),
                                file_size_in_bytes=size,
                                sort_order_id=None,
                                spec_id=one[2],
                                equality_ids=None,
                                key_metadata=None,
                                **statistics,
                            )
                        )
            requirements = (*transaction._requirements, AssertTableUUID(uuid=table.metadata.table_uuid))
            try:
                table._do_commit(updates=transaction._updates, requirements=requirements)
                return
            except CommitFailedException as error:
                refused = error
            # Its manifests go, if no snapshot has them: the answer of an earlier request may have been lost.
            now = self._place.find(catalog)
            if now is not None and now.metadata.snapshot_by_id(append.snapshot_id) is None:
                append._clean_all_uncommitted()
        raise refused


def _has_all_since(metadata: Any, sequence: int) -> bool:
    """Return whether no snapshot after a sequence number has expired: each one, of any branch, has the next."""
    found = {one.sequence_number for one in metadata.snapshots}
    return all(number in found for number in range(sequence + 1, metadata.last_sequence_number + 1))


def _has_file(table: Any, path: str) -> bool:
    """Return whether the current snapshot has, or removes, a file."""
    snapshot = table.current_snapshot()
    return snapshot is not None and any(
        entry.data_file.file_path == path
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    )
