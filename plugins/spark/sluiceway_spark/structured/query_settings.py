"""Settings of Spark for the session of one streaming query."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["CHANGELOG", "FILE_MANAGER", "STATE_PROVIDER", "apply_settings", "for_spark"]

STATE_PROVIDER: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FILE_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
CHANGELOG: Final = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"

_WITHOUT_FILE_CONTEXT: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_RETAINED: Final = 10
"""Micro-batches that Spark can go back; it needs one."""


def apply_settings(session: Any, users: Any, *, partitions: int, location: str) -> None:
    """Set what a query needs, and what makes it fast unless the user has set that.

    Args:
        session: of this query alone.
        users: session of the program, whose settings at run time a new session does not have.
        partitions: of state.
        location: path or URL of the directory of the run.
    """
    settings: dict[str, str | int] = {
        "spark.sql.shuffle.partitions": partitions,
        "spark.sql.streaming.stateStore.providerClass": STATE_PROVIDER,
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.minBatchesToRetain": _RETAINED,
        "spark.sql.execution.arrow.maxRecordsPerBatch": 512,  # each row is many records
    }
    fast = _fast(session, location)
    for name in (FILE_MANAGER, CHANGELOG):
        if value := users.conf.get(name, None) or session.conf.get(name, None) or fast.get(name):
            settings[name] = value
    for name, setting in settings.items():
        session.conf.set(name, str(setting))


def _fast(session: Any, location: str) -> dict[str, str]:
    """Return settings that change the price of a micro-batch and nothing else.

    A micro-batch of two state partitions makes 44 processes without them, and 8 with them. Checkpoints of
    either kind are read with either.
    """
    # A snapshot of RocksDB per partition and micro-batch is two forks of `rm` and many files.
    found = {CHANGELOG: "true"}
    # FileContext on local files forks `readlink` for each file. Elsewhere it is what renames without overwriting.
    if for_spark(location).startswith("file:") and _has_class(session, _WITHOUT_FILE_CONTEXT):
        found[FILE_MANAGER] = _WITHOUT_FILE_CONTEXT
    return found


def _has_class(session: Any, name: str) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        session.sparkContext._jvm.java.lang.Class.forName(name)
    except Py4JJavaError:
        return False
    return True


def for_spark(location: str) -> str:
    """Return a path or URL in the form that Hadoop reads."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        return f"file://{location}"
    return f"s3a://{rest}" if scheme == "s3" else location
