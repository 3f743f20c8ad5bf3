"""Checks and adaptation of a checkpoint's metadata before a job is restored from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from sluiceway.checkpoint import CheckpointMetadata, SubtaskEntry
from sluiceway.connector.lib.dead_letter_files import DEAD_LETTER_SINK
from sluiceway.engine import Services
from sluiceway.errors import SluicewayError
from sluiceway.graph import JobGraph

__all__ = ["refusals", "saved_key_groups", "with_dead_letters", "wrong_key_groups"]

T = TypeVar("T", bound=Any)


def saved_key_groups(metadata: CheckpointMetadata) -> dict[str, int]:
    """Return the saved number of key groups, by uid of the step with keyed state."""
    return {
        operator.uid: vertex.max_parallelism
        for vertex, _, operator in metadata.operators()
        if operator.keyed is not None
    }


def wrong_key_groups(saved: Mapping[str, int], graph: JobGraph) -> dict[str, str]:
    """Return messages about steps whose number of key groups, which is fixed, does not fit the state, by uid."""
    now = {node.uid: vertex for vertex in graph.vertices for node in vertex.nodes}
    wrong = {}
    for uid in sorted(saved.keys() & now.keys()):
        groups, vertex = saved[uid], now[uid]
        told = f"the state of step {uid!r} was saved in {groups} key groups, and the job "
        if vertex.parallelism > groups:
            wrong[uid] = (
                f"{told}has {vertex.parallelism} subtasks for it: its parallelism can be {groups} at the most, "
                "for ever"
            )
        elif vertex.max_parallelism != groups:
            wrong[uid] = (
                f"{told}divides it into {vertex.max_parallelism}: set max-parallelism to {groups}, or leave it out"
            )
    return wrong


def refusals(metadata: CheckpointMetadata, services: Services) -> dict[str, str]:
    """Return messages about state in files of state backends that cannot be loaded, by uid of the step."""
    formats: dict[str, str] = {}
    for _, _, operator in metadata.operators():
        if operator.keyed is not None and operator.keyed.native is not None:
            formats[operator.uid] = operator.keyed.native.format.partition(" ")[0]
    problems: dict[str, SluicewayError] = {}
    # Once per backend: loading one may import its library.
    for name in set(formats.values()):
        try:
            services.state_backend(name)
        except SluicewayError as error:
            problems[name] = error
    return {
        uid: f"the state of step {uid!r} is in files of state backend {name!r}, which any other backend goes on "
        f"from, but only that one reads: {problems[name]}"
        for uid, name in formats.items()
        if name in problems
    }


def with_dead_letters(metadata: CheckpointMetadata, graph: JobGraph) -> CheckpointMetadata:
    """Return metadata in which the sink of the option ``dead-letters`` has the uid that it has today.

    Earlier versions made it of the uids of the steps before it.
    """
    known = {node.uid for vertex in graph.vertices for node in vertex.nodes}
    named = {s.uid for v in metadata.vertices for s in v.steps if (s.name, s.kind) == (DEAD_LETTER_SINK, "sink")}
    if DEAD_LETTER_SINK not in known or len(named - known) != 1:
        return metadata
    (old,) = named - known

    def renamed(part: T, field: str = "uid") -> T:
        return replace(part, **{field: DEAD_LETTER_SINK}) if getattr(part, field) == old else part

    def subtask(entry: SubtaskEntry) -> SubtaskEntry:
        in_flight = tuple(renamed(part, "target") for part in entry.in_flight)
        return replace(entry, operators=tuple(map(renamed, entry.operators)), in_flight=in_flight)

    vertices = (
        replace(renamed(v), steps=tuple(map(renamed, v.steps)), subtasks=tuple(map(subtask, v.subtasks)))
        for v in metadata.vertices
    )
    return replace(metadata, vertices=tuple(vertices))
