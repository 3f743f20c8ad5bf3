"""A small way to write programs down as transformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluiceway.config.settings import Settings
from sluiceway.connector import Boundedness, Enumerator, Reader, Sink, SinkWriter, Source
from sluiceway.functions import OutputTag
from sluiceway.graph import InputRef, JobGraph, Transformation, build_job_graph, build_stream_graph
from sluiceway.steps import (
    FilterStep,
    FlatMapStep,
    IterationHeadStep,
    KeyedAggregateStep,
    KeyedProcessStep,
    KeyedReduceStep,
    MapStep,
    ProcessStep,
    SinkStep,
    SourceStep,
    Step,
)
from sluiceway.streamgraph import PartitionerSpec, StreamGraph


class Numbers(Source[int]):
    def __init__(self, max_readers: int | None = None, output_type: Any = None, bounded: bool = True) -> None:
        self._max_readers = max_readers
        self._output_type = output_type
        self._bounded = bounded

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self._bounded else Boundedness.UNBOUNDED

    @property
    def output_type(self) -> Any:
        return self._output_type

    @property
    def max_readers(self) -> int | None:
        return self._max_readers

    def create_enumerator(self, context: Any, restored: Any = None) -> Enumerator:
        raise AssertionError("nothing runs here")

    def create_reader(self, context: Any) -> Reader[int]:
        raise AssertionError("nothing runs here")


class Drain(Sink[Any]):
    def __init__(self, max_writers: int | None = None, input_type: Any = None) -> None:
        self._max_writers = max_writers
        self._input_type = input_type

    @property
    def max_writers(self) -> int | None:
        return self._max_writers

    @property
    def input_type(self) -> Any:
        return self._input_type

    def create_writer(self, context: Any) -> SinkWriter[Any]:
        raise AssertionError("nothing runs here")


def same(value: Any) -> Any:
    return value


class Program:
    """Collects transformations; each method adds one and returns it."""

    def __init__(self) -> None:
        self.steps: list[Transformation] = []

    def add(self, step: Step, *inputs: Transformation | InputRef, **settings: Any) -> Transformation:
        refs = [i if isinstance(i, InputRef) else InputRef(i) for i in inputs]
        made = Transformation(step, refs, **settings)
        self.steps.append(made)
        return made

    def source(self, source: Source[Any] | None = None, **settings: Any) -> Transformation:
        return self.add(SourceStep(source or Numbers()), **settings)

    def map(self, *inputs: Transformation | InputRef, fn: Any = same, **settings: Any) -> Transformation:
        return self.add(MapStep(fn), *inputs, **settings)

    def flat_map(self, *inputs: Transformation | InputRef, fn: Any = same, **settings: Any) -> Transformation:
        return self.add(FlatMapStep(fn), *inputs, **settings)

    def filter(self, *inputs: Transformation | InputRef, fn: Any = same, **settings: Any) -> Transformation:
        return self.add(FilterStep(fn), *inputs, **settings)

    def process(self, *inputs: Transformation | InputRef, fn: Any = same, **settings: Any) -> Transformation:
        return self.add(ProcessStep(fn), *inputs, **settings)

    def reduce(self, *inputs: Transformation, fn: Any = same, key: Any = same, **settings: Any) -> Transformation:
        return self.add(KeyedReduceStep(fn, key), *(self.keyed(i, key) for i in inputs), **settings)

    def aggregate(
        self, *inputs: Transformation, fn: Any, key: Any = same, with_key: bool = False, **settings: Any
    ) -> Transformation:
        return self.add(KeyedAggregateStep(fn, key, with_key), *(self.keyed(i, key) for i in inputs), **settings)

    def keyed_process(self, *inputs: Transformation, fn: Any, key: Any = same, **settings: Any) -> Transformation:
        return self.add(KeyedProcessStep(fn, key), *(self.keyed(i, key) for i in inputs), **settings)

    def iterate(self, *inputs: Transformation | InputRef, **settings: Any) -> Transformation:
        return self.add(IterationHeadStep(), *inputs, **settings)

    def sink(
        self, *inputs: Transformation | InputRef, sink: Sink[Any] | None = None, **settings: Any
    ) -> Transformation:
        return self.add(SinkStep(sink or Drain()), *inputs, **settings)

    @staticmethod
    def keyed(upstream: Transformation, key: Any = same) -> InputRef:
        return InputRef(upstream, None, PartitionerSpec("hash", key))

    @staticmethod
    def by(name: str, upstream: Transformation, **spec: Any) -> InputRef:
        return InputRef(upstream, None, PartitionerSpec(name, **spec))

    @staticmethod
    def tagged(upstream: Transformation, tag: OutputTag[Any]) -> InputRef:
        return InputRef(upstream, tag)

    def graph(self, parallelism: int = 1, **settings: Any) -> StreamGraph:
        return build_stream_graph("test", self.steps, Settings(parallelism=parallelism, **settings))

    def job(self, parallelism: int = 1, **settings: Any) -> JobGraph:
        return build_job_graph(self.graph(parallelism, **settings))


@pytest.fixture
def program() -> Program:
    """An empty program."""
    return Program()


@pytest.fixture(scope="session")
def new_program() -> Callable[[], Program]:
    """Makes empty programs, for tests that need more than one."""
    return Program


@pytest.fixture(scope="session")
def numbers() -> type[Numbers]:
    """A source class: ``numbers(max_readers, output_type, bounded)``."""
    return Numbers


@pytest.fixture(scope="session")
def drain() -> type[Drain]:
    """A sink class: ``drain(max_writers, input_type)``."""
    return Drain
