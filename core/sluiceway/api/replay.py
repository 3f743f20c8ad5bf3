"""Pipeline that reads dead letters instead of its sources, each at the step that skipped it."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final

from sluiceway.api.pipeline import Pipeline
from sluiceway.config.settings import Settings
from sluiceway.connector.lib import CollectionSource
from sluiceway.connector.lib.dead_letter_files import DEAD_LETTER_SINK
from sluiceway.errors import GraphError
from sluiceway.eventtime import ColumnTimestamps
from sluiceway.functions import DeadLetter
from sluiceway.graph import InputRef, Transformation
from sluiceway.steps import ColumnTransformStep, MapStep, SinkStep, SourceStep, Step, TimestampsStep, ToColumnsStep

__all__ = ["replaying"]

_KEPT_PARTITIONERS: Final = ("hash", "custom", "global")
"""Those by which a record gets to the subtask where it was; with others any subtask will do."""


def replaying(pipeline: Pipeline, letters: Sequence[DeadLetter], settings: Settings) -> Pipeline:
    """Make the part of a pipeline that lies behind the steps which have skipped records, fed with these.

    Each record goes into the step that skipped it, with its event time. Sources, and steps that no such record can
    reach, are left out. Steps keep their uids, and find their state in a checkpoint of the job. Sinks have uids
    that no other run has, as the job and other replays may run at the same time. The pipeline that was given
    stays as it is.

    Args:
        pipeline: the whole one.
        letters: what its steps have skipped. They are unpickled, which can run any code.
        settings: options of the run, as for :meth:`Pipeline.graph`.

    Raises:
        GraphError: the pipeline cannot become a job; it has not all of the steps; a source could not decode a
            record; a step needs a second stream that the letters do not make up for; or a step is inside a loop.
        SerializationError: a record was not pickled or cannot be unpickled.
    """
    # Nodes are in the order of the steps; behind these there may be the sink of dead letters.
    uids = {t: node.uid for t, node in zip(pipeline._steps(), pipeline.graph(settings).nodes, strict=False)}
    by_step: dict[Transformation, list[DeadLetter]] = {}
    for letter in sorted(letters, key=lambda letter: letter.time_ms):
        by_step.setdefault(_step_of(letter, pipeline, uids), []).append(letter)

    replica = copy.copy(pipeline)
    replica._transformations = []
    replica._left_out = frozenset({*uids.values(), DEAD_LETTER_SINK})
    run = uuid.uuid4().hex[:8]
    kept: dict[Transformation, Transformation] = {}
    for t, uid in uids.items():
        inputs = [replace(ref, upstream=kept[ref.upstream]) for ref in t.inputs if ref.upstream in kept]
        if isinstance(t.step, SourceStep) and any(_is_undecoded(letter, t.step) for letter in by_step.get(t, ())):
            raise GraphError(
                f"dead letters cannot be replayed: {t.label()} could not decode the records that it skipped: "
                "sluiceway dlq show shows them. Replay those of other steps with --step"
            )
        if t in by_step:
            inputs += _feeds(replica, t, by_step[t], uid)
        elif not inputs:
            # Neither has it skipped a record, nor is it behind a step that has.
            continue
        fed = {ref.port for ref in inputs}
        if len(fed) < t.step.ports:
            raise GraphError(
                f"dead letters cannot be replayed: {t.label()} takes two streams, and none of the records gets "
                f"into its input {next(port for port in range(t.step.ports) if port not in fed) + 1}"
            )
        # What a source has skipped had no timestamp so far.
        step = TimestampsStep(t.step.strategy) if isinstance(t.step, SourceStep) and t.step.strategy else t.step
        # A sink takes what an earlier run has left unfinished under its uid for its own; here that run may go on.
        own = f"replay {run} of {uid}" if isinstance(t.step, SinkStep) else uid
        kept[t] = replace(t, step=step, inputs=inputs, uid=own)
        replica._transformations.append(kept[t])
    for t in uids:
        if any((ref.upstream in kept) != (t in kept) for ref in t.feedback):
            raise GraphError(
                f"dead letters cannot be replayed: the steps that skipped them are inside the loop of {t.label()}"
            )
        if t in kept:
            kept[t].feedback = [replace(ref, upstream=kept[ref.upstream]) for ref in t.feedback]
    return replica


def _is_undecoded(letter: DeadLetter, step: SourceStep) -> bool:
    """Return whether the source could not decode the record of a letter."""
    # Letters of earlier versions do not say so. A source that assigns no timestamps skips no others.
    return letter.undecoded or step.strategy is None or step.strategy.assigner is None


def _step_of(letter: DeadLetter, pipeline: Pipeline, uids: Mapping[Transformation, str]) -> Transformation:
    for t, uid in uids.items():
        if uid == letter.uid and t.step.skips:
            return t
    raise GraphError(
        f"dead letters cannot be replayed: pipeline {pipeline.name!r} has no step with uid {letter.uid!r} any "
        f"more; it was called {letter.step!r} when it skipped records. If it is there under another uid, because "
        f"its function has another name or it comes behind other steps now, give it that one: .uid({letter.uid!r})"
    )


def _feeds(replica: Pipeline, t: Transformation, letters: Sequence[DeadLetter], uid: str) -> list[InputRef]:
    """Sources of records in front of each input of a step, without any where none was skipped there."""
    return [
        _feed(replica, t, [letter for letter in letters if letter.input == port], port, uid)
        for port in range(t.step.ports)
    ]


def _feed(replica: Pipeline, t: Transformation, letters: Sequence[DeadLetter], port: int, uid: str) -> InputRef:
    """Return a source of records and its place in front of an input of a step."""
    records = [(letter.value(), letter.timestamp) for letter in letters]
    stamped = all(timestamp is not None for _, timestamp in records)
    timestamp: Any = itemgetter(1) if stamped else None
    source = SourceStep(CollectionSource(records, timestamp=timestamp, output_type=Any), None)
    name = f"dead letters of {t.name or t.step.kind}"
    # With a uid of its own: in place of a source it would be given that of the source.
    read = Transformation(
        source, name=name, parallelism=1, location=t.location, uid=f"dead letters for {uid} at {port}"
    )
    taken = Transformation(
        MapStep(itemgetter(0)), [InputRef(read)], name="record", parallelism=1, skips_errors=False
    )
    replica._transformations += [read, taken]
    if records and _is_row(records[0][0], t.step):
        # Rows of columns were kept as record batches of one row.
        of = ToColumnsStep(records[0][0].schema, batches=True)
        taken = Transformation(of, [InputRef(taken)], name="row", parallelism=1, skips_errors=False)
        replica._transformations.append(taken)
    spec = next((ref.partitioner for ref in t.inputs if ref.port == port), None)
    kept = spec if spec is not None and spec.name in _KEPT_PARTITIONERS else None
    return InputRef(taken, partitioner=kept, port=port)


def _is_row(record: Any, step: Step) -> bool:
    """Return whether the record of a step's letter is a row of columns."""
    if isinstance(step, SourceStep | TimestampsStep):
        of_column = step.strategy is not None and isinstance(step.strategy.assigner, ColumnTimestamps)
        return of_column and hasattr(record, "schema")  # a record of a dict has its time in a column, too
    return isinstance(step, ColumnTransformStep)
