"""Another parallelism for a job graph: which steps get it, and what rules it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches

import msgspec

from sluiceway.errors import RescaleError
from sluiceway.graph.job_graph import JobGraph, JobVertex
from sluiceway.graph.parallelism import subtask_limit

__all__ = ["parallelism_of", "rescaled", "with_parallelism"]


def parallelism_of(graph: JobGraph) -> dict[str, int]:
    """Return the parallelism of each vertex by its uid."""
    return {vertex.uid: vertex.parallelism for vertex in graph.vertices}


def with_parallelism(graph: JobGraph, parallelism: Mapping[str, int]) -> JobGraph:
    """Return a graph with the same chains and edges whose vertices have the given parallelism.

    Args:
        graph: the job.
        parallelism: by uid of a vertex; those that are not named keep theirs.
    """
    return replace(
        graph, vertices=tuple(_resized(v, parallelism.get(v.uid, v.parallelism)) for v in graph.vertices)
    )


def rescaled(graph: JobGraph, parallelism: int | None, steps: Mapping[str, int]) -> JobGraph:
    """Return the graph of a job at another parallelism. Chains, key groups and edges stay as they are.

    Args:
        graph: the job.
        parallelism: of all steps for which the program chose none; a step that cannot have as many subtasks gets
            as many as it can. None: they keep theirs.
        steps: parallelism of single steps, by name, uid or id of a vertex or by the name or uid of a step in it.
            The whole chain in which a step runs gets it.

    Raises:
        RescaleError: there is no such step, or it cannot have that parallelism.
    """
    for count in (*([] if parallelism is None else [parallelism]), *steps.values()):
        if count < 1:
            raise RescaleError(f"parallelism {count} is not possible: it must be at least 1")
    named: dict[int, int] = {}
    for text, count in steps.items():
        vertex = _find(graph, text)
        if named.setdefault(vertex.id, count) != count:
            raise RescaleError(
                f"{vertex.name!r} was given parallelism {named[vertex.id]} and {count}: its steps run in one "
                "chain, so name one of them"
            )
        _check(vertex, count)
    wanted: dict[str, int] = {}
    for together in _groups(graph):
        wanted.update((v.uid, _choose(together, parallelism, named)) for v in together)
    return with_parallelism(graph, wanted)


def _choose(together: list[JobVertex], parallelism: int | None, named: Mapping[int, int]) -> int:
    """Return the parallelism of vertices that must have the same one."""
    chosen = {v.id: named[v.id] for v in together if v.id in named}
    counts = set(chosen.values())
    if len(counts) > 1:
        listed = ", ".join(f"{v.name!r} {named[v.id]}" for v in together if v.id in named)
        raise RescaleError(
            f"different parallelism was asked for where it must be the same, {listed}: records go by forward "
            "between these steps, or they are in one co-location group"
        )
    if counts:
        (count,) = counts
        for vertex in together:
            _check(vertex, count)
        return count
    now = together[0].parallelism
    if parallelism is None or any(node.parallelism_given for v in together for node in v.nodes):
        return now
    count = min([parallelism, *(limit for v in together if (limit := _limit(v)[0]) is not None)])
    for vertex in together:
        _check(vertex, count)
    return count


def _check(vertex: JobVertex, count: int) -> None:
    limit, what = _limit(vertex)
    if limit is not None and count > limit:
        raise RescaleError(
            f"{vertex.name!r} cannot have parallelism {count}: {what} {limit} subtask{'s' * (limit != 1)} at the"
            " most"
        )
    if count > vertex.max_parallelism:
        raise RescaleError(
            f"{vertex.name!r} cannot have parallelism {count}: it is divided into {vertex.max_parallelism} key "
            "groups (its max parallelism), which cannot change while there is state"
        )


def _limit(vertex: JobVertex) -> tuple[int | None, str]:
    found = [(limit, what) for limit, what in (subtask_limit(n.step) for n in vertex.nodes) if limit is not None]
    return min(found, default=(None, ""))


def _groups(graph: JobGraph) -> Iterable[list[JobVertex]]:
    """Return groups of vertices with the same parallelism, which forward edges or co-location groups connect."""
    # Sets that are merged, and shared by their members.
    group = {v.id: {v.id} for v in graph.vertices}

    def join(one: int, other: int) -> None:
        if group[one] is not group[other]:
            group[one] |= group[other]
            for each in group[other]:
                group[each] = group[one]

    for edge in graph.edges:
        if edge.edge.partitioner.name == "forward":
            join(edge.source, edge.target)
    located: dict[str, int] = {}
    for vertex in graph.vertices:
        for node in vertex.nodes:
            if node.co_location_group is not None:
                join(located.setdefault(node.co_location_group, vertex.id), vertex.id)
    for members in {id(members): members for members in group.values()}.values():
        yield [graph.vertex(each) for each in sorted(members)]


def _find(graph: JobGraph, text: str) -> JobVertex:
    # The most specific first: a uid is unique, and a chain may be named like a step in another one.
    for names in (_uid_of_vertex, _names_of_vertex, _names_of_steps):
        found = [v for v in graph.vertices if text in names(v)]
        if len(found) == 1:
            return found[0]
        if found:
            uids = ", ".join(repr(v.uid) for v in found)
            raise RescaleError(f"{len(found)} steps are called {text!r}: name one of them by its uid, {uids}")
    known = [name for v in graph.vertices for name in (v.name, *_names_of_steps(v))]
    near = get_close_matches(text, known, n=1)
    listed = ", ".join(repr(v.name) for v in graph.vertices)
    hint = f". Did you mean {near[0]!r}?" if near else ""
    raise RescaleError(f"there is no step {text!r} in the job: it has {listed}{hint}")


def _uid_of_vertex(vertex: JobVertex) -> set[str]:
    return {vertex.uid}


def _names_of_vertex(vertex: JobVertex) -> set[str]:
    return {vertex.name, str(vertex.id)}


def _names_of_steps(vertex: JobVertex) -> set[str]:
    return {name for node in vertex.nodes for name in (node.name, node.uid)}


def _resized(vertex: JobVertex, parallelism: int) -> JobVertex:
    if vertex.parallelism == parallelism:
        return vertex
    nodes = tuple(msgspec.structs.replace(node, parallelism=parallelism) for node in vertex.nodes)
    return msgspec.structs.replace(vertex, nodes=nodes, parallelism=parallelism)
