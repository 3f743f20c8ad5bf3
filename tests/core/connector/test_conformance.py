"""The built-in sources and sinks keep the contracts."""

from __future__ import annotations

from typing import Any

import pytest

from sluiceway.connector import Sink, Source
from sluiceway.connector.lib import (
    CallbackSink,
    CollectionSource,
    CollectSink,
    FunctionSource,
    GeneratorSource,
    PrintSink,
)
from sluiceway.testing.conformance.sink import SinkConformance
from sluiceway.testing.conformance.source import SourceConformance


class TestCollection(SourceConformance):
    def make_source(self) -> Source[Any]:
        return CollectionSource([f"record {i}" for i in range(53)])

    def expected(self) -> list[Any]:
        return [f"record {i}" for i in range(53)]


class TestCollectionWithTimestamps(TestCollection):
    def make_source(self) -> Source[Any]:
        return CollectionSource([f"record {i}" for i in range(53)], timestamp=len)


class TestNumbers(SourceConformance):
    def make_source(self) -> Source[Any]:
        return GeneratorSource(count=50)

    def expected(self) -> list[Any]:
        return list(range(50))


class TestNumbersAtARate(SourceConformance):
    def make_source(self) -> Source[Any]:
        return GeneratorSource(lambda i: {"n": i}, 20, rate=20_000)

    def expected(self) -> list[Any]:
        return [{"n": i} for i in range(20)]


class TestFunction(SourceConformance):
    def make_source(self) -> Source[Any]:
        return FunctionSource(lambda: (f"record {i}" for i in range(40)))

    def expected(self) -> list[Any]:
        return [f"record {i}" for i in range(40)]


class TestCollect(SinkConformance):
    def make_sink(self) -> Sink[Any]:
        sink: CollectSink[Any] = CollectSink()
        self.collected = sink.collected
        return sink

    def written(self) -> list[Any]:
        return list(self.collected)


class TestCallback(SinkConformance):
    def make_sink(self) -> Sink[Any]:
        sink: CollectSink[Any] = CollectSink()  # a list would be copied with the function
        self.collected = collected = sink.collected
        return CallbackSink(lambda record: collected._values.append(record))

    def written(self) -> list[Any]:
        return list(self.collected)


class TestCallbackWithBatches(TestCallback):
    def make_sink(self) -> Sink[Any]:
        super().make_sink()
        collected = self.collected
        return CallbackSink(lambda records: collected._values.extend(records), batch=True)


class TestPrint(SinkConformance):
    @pytest.fixture(autouse=True)
    def _capture(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def make_sink(self) -> Sink[Any]:
        self.capsys.readouterr()
        self.lines: list[str] = []
        return PrintSink()

    def written(self) -> list[Any]:
        self.lines += self.capsys.readouterr().out.splitlines()
        return self.lines

    def identity(self, record: Any) -> Any:
        return str(record).split("> ")[-1]
