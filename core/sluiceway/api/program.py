"""Program under construction: the steps so far, and the settings for all of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from sluiceway.api.arguments import check_count, check_text, to_ms
from sluiceway.api.location import caller_location
from sluiceway.config.settings import Settings
from sluiceway.connector.lib import Collected
from sluiceway.graph import MAX_PARALLELISM_LIMIT, InputRef, Transformation, build_stream_graph, upstream_of
from sluiceway.steps import SinkStep, Step
from sluiceway.streamgraph import StreamGraph

__all__ = ["Program"]


class Program:
    """Steps of a pipeline, to which every stream adds its own.

    Streams know this part of a :class:`sluiceway.Pipeline`; its constructor takes the pipeline's arguments.
    """

    def __init__(
        self,
        name: str = "pipeline",
        *,
        parallelism: int | None = None,
        max_parallelism: int | None = None,
        buffer_timeout: timedelta | int | str | None = None,
        chaining: bool = True,
    ) -> None:
        self._name = check_text("Pipeline(name)", name)
        self._parallelism = None if parallelism is None else check_count("Pipeline(parallelism=)", parallelism)
        self._max_parallelism = (
            None
            if max_parallelism is None
            else check_count("Pipeline(max_parallelism=)", max_parallelism, maximum=MAX_PARALLELISM_LIMIT)
        )
        self._buffer_timeout_ms = (
            None if buffer_timeout is None else to_ms("Pipeline(buffer_timeout=)", buffer_timeout)
        )
        self._chaining = bool(chaining)
        self._transformations: list[Transformation] = []
        self._looked_at: set[Transformation] = set()
        self._collected: list[Collected[Any]] = []
        self._under_way: set[object] = set()
        self._left_out: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """Return the name used in messages, plans and metrics."""
        return self._name

    def _steps(self) -> list[Transformation]:
        """Return the steps of a run: without those that lead only to a look at a stream, as by ``take()``.

        A program without sinks keeps these, too, so that it can be shown.
        """
        sinks = [t for t in self._transformations if isinstance(t.step, SinkStep)]
        if not sinks or not self._looked_at:
            return self._transformations
        left_out = self._looked_at - upstream_of(sinks)
        return [t for t in self._transformations if t not in left_out]

    def _unfinished_graph(self, settings: Settings, *readers: Transformation) -> StreamGraph:
        """Return the graph of the program as far as it is written, with readers that are not part of it."""
        return build_stream_graph(
            self._name,
            [*self._steps(), *readers],
            self._effective(settings),
            max_parallelism=self._max_parallelism,
            partial=True,
        )

    def _effective(self, settings: Settings) -> Settings:
        """Return the options overridden by the pipeline's own settings."""
        own: dict[str, Any] = {"chaining": settings.chaining and self._chaining}
        if self._parallelism is not None:
            own["parallelism"] = self._parallelism
        if self._buffer_timeout_ms is not None:
            own["buffer_timeout_ms"] = self._buffer_timeout_ms
        return replace(settings, **own)

    def _add(self, step: Step, inputs: tuple[InputRef, ...], name: str | None = None) -> Transformation:
        t = Transformation(step, list(inputs), name=name, location=caller_location())
        self._transformations.append(t)
        return t
