"""Samples of the Python stacks of a process, and what flame graphs are made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

__all__ = [
    "NO_TASK",
    "FlameNode",
    "Kind",
    "StackCount",
    "StackSamples",
    "flame_graph",
    "folded",
    "hottest_function",
]

Kind = Literal["full", "on_cpu", "off_cpu"]
"""Samples to count: all, those with the thread on a CPU, or those without."""

NO_TASK: Final = -1
"""Vertex of samples that belong to no task: the engine itself, and threads that user code has started."""

_ENGINE: Final = ("sluiceway.", "sluiceway_")
_LARGE: Final = 0.5


class StackCount(msgspec.Struct, frozen=True):
    """Number of samples with one stack.

    Attributes:
        vertex: id of the job vertex whose task ran, or NO_TASK.
        subtask: its number.
        on_cpu: True if the thread had the CPU for most of the time before the sample.
        frames: the stack, outermost first, as indexes into the names.
        count: number of samples.
    """

    vertex: int
    subtask: int
    on_cpu: bool
    frames: list[int]
    count: int


class StackSamples(msgspec.Struct, frozen=True):
    """Stacks of one process over some seconds.

    Attributes:
        worker: name of the worker; empty for a job in one process.
        began_ms: first sample, ms since the epoch.
        ended_ms: last sample.
        moments: number of times that stacks were read; each has one sample per thread.
        names: functions as ``module.function (file:line)``; the line is that of the ``def``.
        stacks: each stack with the number of its samples.
    """

    worker: str
    began_ms: int
    ended_ms: int
    moments: int
    names: list[str]
    stacks: list[StackCount]


class FlameNode(msgspec.Struct):
    """Function in a flame graph: ``value`` is the number of samples with it at this place of the stack."""

    name: str
    value: int = 0
    children: list[FlameNode] = []


def flame_graph(
    processes: Iterable[StackSamples],
    kind: Kind = "full",
    vertex: int | None = None,
    subtask: int | None = None,
) -> FlameNode:
    """Merge samples into a tree of functions, with the largest first among siblings.

    Args:
        processes: samples of all processes of a job.
        kind: samples to count.
        vertex: id of a job vertex; None: all, and what belongs to no task.
        subtask: of that vertex; None: all of them.
    """
    root = FlameNode("root", 0, [])
    known: dict[int, dict[str, FlameNode]] = {}
    for names, count in _chosen(processes, kind, vertex, subtask):
        node = root
        node.value += count
        for name in names:
            children = known.setdefault(id(node), {})
            child = children.get(name)
            if child is None:
                child = children[name] = FlameNode(name, 0, [])
                node.children.append(child)
            child.value += count
            node = child
    _sort(root)
    return root


def _sort(root: FlameNode) -> None:
    nodes = [root]  # a stack may be deeper than Python's own limit allows a function to follow
    while nodes:
        node = nodes.pop()
        node.children.sort(key=lambda child: (-child.value, child.name))
        nodes += node.children


def folded(processes: Iterable[StackSamples], kind: Kind = "full", vertex: int | None = None) -> list[str]:
    """Return lines ``frame;frame;... count``, the text format that flame graph tools read."""
    counts: dict[str, int] = {}
    for names, count in _chosen(processes, kind, vertex, None):
        line = ";".join(name.replace(";", ":") for name in names)
        counts[line] = counts.get(line, 0) + count
    return [f"{line} {count}" for line, count in sorted(counts.items())]


def hottest_function(processes: Iterable[StackSamples], vertex: int) -> tuple[str, float] | None:
    """Find the function outside of the engine in which a task spends its time.

    Returns:
        The innermost function that at least half of the task's samples have, and its share of them; None if there
        are no samples, or no function has so many.
    """
    total = 0
    within: dict[str, int] = {}
    depth: dict[str, int] = {}
    for names, count in _chosen(processes, "full", vertex, None):
        total += count
        for at, name in enumerate(names):
            if not name.startswith(_ENGINE):
                depth[name] = max(depth.get(name, 0), at)
        # Once per sample: a recursive function is in a stack several times.
        for name in {each for each in names if not each.startswith(_ENGINE)}:
            within[name] = within.get(name, 0) + count
    large = [name for name, count in within.items() if count >= _LARGE * total]
    if not large:
        return None
    innermost = max(large, key=lambda name: (depth[name], within[name]))
    return innermost, within[innermost] / total


def _chosen(
    processes: Iterable[StackSamples], kind: Kind, vertex: int | None, subtask: int | None
) -> Iterator[tuple[list[str], int]]:
    for samples in processes:
        for stack in samples.stacks:
            if vertex is not None and stack.vertex != vertex:
                continue
            if subtask is not None and stack.subtask != subtask:
                continue
            if kind == "full" or stack.on_cpu == (kind == "on_cpu"):
                yield [samples.names[at] for at in stack.frames], stack.count
