"""Export of the keyed state in Spark's store as a checkpoint, which the state tools read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sluiceway.engine import Services
from sluiceway.errors import CheckpointError
from sluiceway.operators import OperatorSnapshot
from sluiceway.runtime.microbatch.run_directory import find_runs
from sluiceway.runtime.microbatch.state_export import write_extract
from sluiceway_spark.session.configuration import SessionConf
from sluiceway_spark.structured.job_group import users_error
from sluiceway_spark.structured.query_settings import STATE_PROVIDER, for_spark
from sluiceway_spark.structured.state.placement import target_of
from sluiceway_spark.structured.state.state_log import keyed_state

__all__ = ["extract"]


def extract(location: str, into: str, services: Services, conf: SessionConf) -> None:
    """Write the keyed state of a run as a checkpoint.

    Args:
        location: path or URL of the run's directory, or of one with several: then it is the newest.
        into: path or URL of a directory for the checkpoint.
        services: open storages.
        conf: what to make a session of where none is active.

    Raises:
        CheckpointError: there is no run, or Spark cannot read its state.
    """
    storage = services.checkpoint_storage(location)
    runs = find_runs(storage)
    if not runs:
        raise CheckpointError(f"there is no run of engine 'spark' in {location}")
    run = runs[-1]
    place = storage.shown(run.directory) if run.directory else storage.location
    session = conf.session().newSession()
    session.conf.set("spark.sql.streaming.stateStore.providerClass", STATE_PROVIDER)
    states: dict[int, list[OperatorSnapshot]] = {}
    try:
        for key, records in _logs(session, f"{for_spark(place)}/spark"):
            target = target_of(key) if run.spread else key
            states[target] = [OperatorSnapshot(uid, keyed=keyed) for uid, keyed in keyed_state(records).items()]
    except Exception as error:
        told = users_error(error)
        raise CheckpointError(f"the state that Spark keeps in {place} cannot be read: {told}") from error
    write_extract(run, states, services.checkpoint_storage(into), services.clock.now_ms())


def _logs(session: Any, checkpoint: str) -> Iterator[tuple[int, list[bytes]]]:
    found = session.read.format("state-metadata").load(checkpoint).select("operatorId").distinct().collect()
    for operator in sorted(int(row[0]) for row in found):
        frame = (
            session.read.format("statestore")
            .option("operatorId", operator)
            .option("stateVarName", "log")
            .option("flattenCollectionTypes", "false")
            .load(checkpoint)
        )
        for row in frame.selectExpr("key.target", "list_value").toLocalIterator():
            yield int(row[0]), [bytes(record[0]) for record in row[1]]
