"""Bad input of every kind ends the job with a message that says what, where and what to do. Nothing hangs."""

from __future__ import annotations

import asyncio
import io
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.connector import (
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    Sink,
    SinkWriter,
    Source,
    WriterContext,
)
from sluiceway.connector.lib.collection import CollectionSource
from sluiceway.engine import JobFailure, JobStatus
from sluiceway.errors import ConnectorError, FunctionContractError, StateError, UnstableKeyError


def failure(flow: sw.Pipeline, **options: Any) -> tuple[BaseException, str]:
    """Run it, and return what it raised with all its notes."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        flow.run(**options)
    return caught.value, "\n".join(getattr(caught.value, "__notes__", []))


def flow_of(*values: Any) -> tuple[sw.Pipeline, Any]:
    flow = sw.Pipeline("errors")
    return flow, flow.from_collection(list(values))


def parse(line: str) -> int:
    return int(line)


def test_a_failing_function_is_raised_as_it_is_with_step_subtask_and_record() -> None:
    flow, stream = flow_of("1", "2", "three")
    stream.map(parse).print()
    error, notes = failure(flow)
    assert type(error) is ValueError
    assert traceback.extract_tb(error.__traceback__)[-1].name == "parse"
    assert "in step 'map(parse)'" in notes
    assert "subtask 1 of 1" in notes
    assert "record: 'three'" in notes


def test_a_failing_key_function_is_no_step_before_it() -> None:
    flow, stream = flow_of("1", "three")
    stream.map(str).name("text").key_by(parse).count().set_parallelism(2).print()
    _, notes = failure(flow)
    assert "in step 'key_by' of 'source(CollectionSource) -> text'" in notes
    assert "record: 'three'" in notes

    flow, stream = flow_of("1", "three")
    stream.map(str).name("text").partition_custom(lambda key, n: key, parse).map(str).set_parallelism(2).print()
    _, notes = failure(flow)
    assert "in step 'partition_custom' of 'source(CollectionSource) -> text'" in notes
    assert "record: 'three'" in notes


def test_a_line_that_cannot_be_printed_is_named_and_no_record_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    flow, stream = flow_of("one", "zw\u00f6lf", "three")
    stream.map(str).print()
    error, notes = failure(flow)
    assert "of the line 'zw\u00f6lf': stdout is ascii" in str(error)
    assert "in step 'sink(PrintSink)'" in notes
    assert "three" not in notes


def test_a_failing_callback_is_named_with_its_sink_and_the_record() -> None:
    flow, stream = flow_of("1", "three")
    stream.map(str).for_each(parse)
    error, notes = failure(flow)
    assert type(error) is ValueError
    assert "in step 'sink(CallbackSink)'" in notes
    assert "record: 'three'" in notes


def test_key_and_timestamp_are_named_where_there_are_any() -> None:
    flow = sw.Pipeline("errors")
    stream = flow.from_collection([("a", 1), ("b", 0)], timestamp=lambda v: 1000 + v[1])
    stream.key_by(lambda v: v[0]).process(lambda v, ctx: [1 // v[1]]).print()
    error, notes = failure(flow)
    assert isinstance(error, ZeroDivisionError)
    assert "record: ('b', 0)" in notes
    assert "key: 'b'" in notes
    assert "timestamp: 1000 ms" in notes


def test_the_failing_subtask_is_named_when_there_are_several() -> None:
    flow, stream = flow_of(*range(20))
    stream.key_by(lambda v: v).process(lambda v, ctx: [1 // (v - 13)]).set_parallelism(4).print()
    error, notes = failure(flow)
    assert isinstance(error, ZeroDivisionError)
    assert "of 4" in notes
    assert "record: 13" in notes
    assert "key: 13" in notes


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("before", [1, 400])  # many keys that are new are routed together
def test_a_failing_key_function(parallelism: int, before: int) -> None:
    flow, stream = flow_of(*({"user": n} for n in range(before)), {})
    stream.key_by(lambda v: v["user"]).count().print()
    error, notes = failure(flow, parallelism=parallelism)
    assert isinstance(error, KeyError)
    assert "record: {}" in notes


KEYED = {
    "count": lambda keyed: keyed.count(),
    "reduce": lambda keyed: keyed.reduce(lambda a, b: a),
    "process": lambda keyed: keyed.process(lambda v, ctx: [v]),
    "sliding": lambda keyed: keyed.window(sw.windows.SlidingEventTimeWindows.of("2s", "1s")).count(),
    "session": lambda keyed: keyed.window(sw.windows.EventTimeSessionWindows.with_gap("1s")).count(),
    "count window": lambda keyed: keyed.count_window(2).reduce(lambda a, b: a),
    "window": lambda keyed: keyed.window(sw.windows.TumblingEventTimeWindows.of("1s")).reduce(lambda a, b: a),
}


@pytest.mark.parametrize("how", KEYED)
def test_a_failing_key_function_is_not_told_with_the_key_of_the_record_before(how: str) -> None:
    flow = sw.Pipeline("errors")
    stream = flow.from_collection([5, 2, 0, 1], timestamp=lambda v: v)
    KEYED[how](stream.key_by(lambda v: 10 // v)).print()
    error, notes = failure(flow)
    assert isinstance(error, ZeroDivisionError)
    assert "record: 0" in notes
    assert "key: " not in notes


def test_a_failing_reduce_names_key_and_record() -> None:
    flow, stream = flow_of(("a", 1), ("a", "x"))
    stream.key_by(lambda v: v[0]).reduce(lambda a, b: (a[0], a[1] + b[1])).print()
    error, notes = failure(flow)
    assert isinstance(error, TypeError)
    assert "in step 'reduce" in notes
    assert "record: ('a', 'x')" in notes
    assert "key: 'a'" in notes


def test_flat_map_that_returns_no_iterable() -> None:
    flow, stream = flow_of("a b")
    stream.flat_map(len).print()
    error, notes = failure(flow)
    assert isinstance(error, FunctionContractError)
    assert "'flat_map(len)' returned 3 (int)" in str(error)
    assert "use map" in str(error)
    assert "record: 'a b'" in notes


def test_process_that_returns_no_iterable() -> None:
    flow, stream = flow_of("a b")
    stream.process(lambda v, ctx: 7).print()
    error, _notes = failure(flow)
    assert isinstance(error, FunctionContractError)
    assert "returned 7 (int)" in str(error)
    assert "or None" in str(error)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_an_unhashable_key(parallelism: int) -> None:
    flow, stream = flow_of([1], [2])
    stream.key_by(lambda v: v).count().print()
    error, _ = failure(flow, parallelism=parallelism)
    assert isinstance(error, UnstableKeyError)
    assert "list is not hashable" in str(error)
    assert "tuple(key)" in str(error)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_key_that_is_hashed_by_its_identity(parallelism: int) -> None:
    class Plain:
        pass

    flow, stream = flow_of(Plain())
    stream.key_by(lambda v: v).count().print()
    error, _ = failure(flow, parallelism=parallelism)
    assert isinstance(error, UnstableKeyError)
    assert "Plain" in str(error)


def test_keyed_state_without_a_key() -> None:
    class Wrong(sw.ProcessFunction[int, int]):
        def open(self, context: sw.RuntimeContext) -> None:
            context.get_state(sw.ValueStateDescriptor("n"))

        def process_element(self, value: int, ctx: sw.ProcessFunction.Context) -> Iterable[int]:
            return [value]

    flow, stream = flow_of(1)
    stream.process(Wrong()).print()
    error, notes = failure(flow)
    assert isinstance(error, StateError)
    assert "put key_by(...) before it" in str(error)
    assert "in step 'process(Wrong)'" in notes


def test_an_error_in_open_names_the_step_and_still_closes() -> None:
    closed: list[int] = []

    class Broken(sw.MapFunction[int, int]):
        def open(self, context: sw.RuntimeContext) -> None:
            raise OSError("no model file")

        def map(self, value: int) -> int:
            return value

        def close(self) -> None:
            closed.append(1)

    flow, stream = flow_of(1)
    stream.map(Broken()).print()
    error, notes = failure(flow)
    assert isinstance(error, OSError)
    assert "in step 'map(Broken)'" in notes
    assert closed == [1]


def test_an_error_in_close_fails_the_job_but_never_hides_the_first() -> None:
    class Sloppy(sw.MapFunction[int, int]):
        def map(self, value: int) -> int:
            return 1 // value

        def close(self) -> None:
            raise RuntimeError("cannot close")

    flow, stream = flow_of(1)
    stream.map(Sloppy()).print()
    error, _ = failure(flow)
    assert str(error) == "cannot close"

    flow, stream = flow_of(0)
    stream.map(Sloppy()).print()
    error, notes = failure(flow)
    assert isinstance(error, ZeroDivisionError)
    assert "while closing step 'map(Sloppy)' after that: RuntimeError: cannot close" in notes


# ---- sources and sinks --------------------------------------------------------------------------------------


class BadReader(Reader[int]):
    def __init__(self, context: ReaderContext, what: Any) -> None:
        self.what = what
        context.request_split()

    def add_splits(self, splits: Sequence[Any]) -> None: ...

    def no_more_splits(self) -> None: ...

    def poll(self, limit: int) -> Poll[int]:
        if isinstance(self.what, BaseException):
            raise self.what
        return self.what  # type: ignore[no-any-return]

    def snapshot(self) -> list[Any]:
        return []

    def close(self) -> None: ...


class BadSource(Source[int]):
    def __init__(self, what: Any, enumerator_fails: BaseException | None = None) -> None:
        self.what = what
        self.enumerator_fails = enumerator_fails

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        if self.enumerator_fails is not None:
            raise self.enumerator_fails
        return SimpleEnumerator(context, [])

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        return BadReader(context, self.what)


def test_a_source_that_raises() -> None:
    flow = sw.Pipeline("s")
    flow.source(BadSource(OSError("cable cut"))).name("numbers").print()
    error, notes = failure(flow)
    assert str(error) == "cable cut"
    assert "in step 'numbers'" in notes


def test_an_enumerator_that_raises() -> None:
    flow = sw.Pipeline("s")
    flow.source(BadSource([], enumerator_fails=PermissionError("the bucket is not yours"))).name("bucket").print()
    error, notes = failure(flow)
    assert isinstance(error, PermissionError)
    assert "in the enumerator of source 'bucket'" in notes


@pytest.mark.parametrize("workers", [0, 1])
def test_an_enumerator_that_cannot_be_closed(workers: int) -> None:
    class Unclosed(SimpleEnumerator):
        def close(self) -> None:
            raise PermissionError("the lock is not yours")

    class Numbers(CollectionSource[int]):
        def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
            return Unclosed(context, [])

    async def go() -> tuple[BaseException, tuple[JobFailure, ...]]:
        flow = sw.Pipeline("s")
        flow.source(Numbers([1])).name("bucket").print()
        handle = await flow.start(workers=workers)
        with pytest.raises(PermissionError) as caught:
            await handle.result()
        return caught.value, handle.failures

    error, failures = asyncio.run(go())
    assert error.__notes__ == ["in the enumerator of source 'bucket'"]
    assert [failed.cause for failed in failures] == [error]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ([], "when there are none it must return a Wait"),
        ((1, 2), "must return a list, a Batch, a Wait or END_OF_INPUT"),
        (sw.Batch([1, 2], [5]), "returned a Batch with 2 records and 1 timestamps from poll()"),
    ],
)
def test_a_reader_that_breaks_its_contract(what: Any, says: str) -> None:
    flow = sw.Pipeline("s")
    flow.source(BadSource(what)).print()
    error, _ = failure(flow)
    assert isinstance(error, ConnectorError)
    assert says in str(error)
    assert "BadSource" in str(error)


class FailingSink(Sink[Any]):
    def __init__(self, where: str) -> None:
        self.where = where

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        return FailingWriter(self.where)


class FailingWriter(SinkWriter[Any]):
    def __init__(self, where: str) -> None:
        self.where = where

    def open(self) -> None:
        self._maybe("open")

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        self._maybe("write")

    def flush(self) -> None:
        self._maybe("flush")

    def close(self) -> None:
        self._maybe("close")

    def _maybe(self, here: str) -> None:
        if here == self.where:
            raise OSError(f"disk full in {here}")


@pytest.mark.parametrize("where", ["open", "write", "flush", "close"])
@pytest.mark.parametrize("chaining", [True, False])
def test_a_sink_that_fails(where: str, chaining: bool) -> None:
    flow, stream = flow_of(1, 2)
    stream.map(lambda v: v).sink(FailingSink(where)).name("archive")
    error, notes = failure(flow, chaining=chaining)
    assert str(error) == f"disk full in {where}"
    assert "in step 'archive'" in notes


def test_a_failure_ends_everything_else_too() -> None:
    flow = sw.Pipeline("two halves")
    flow.generate().for_each(lambda v: None)
    flow.from_collection([0]).map(lambda v: 1 // v).print()
    job = flow.prepare()
    with pytest.raises(ZeroDivisionError):
        job.run()
    assert job.status is JobStatus.FAILED
    assert {s.state for s in job.metrics().subtasks} == {"canceled", "failed"}


def test_a_record_whose_repr_fails_does_not_hide_the_error() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    flow, stream = flow_of(Shy())
    stream.map(lambda v: 1 // 0).print()
    error, notes = failure(flow)
    assert isinstance(error, ZeroDivisionError)
    assert "whose repr failed" in notes


def test_an_exception_is_annotated_once_even_if_it_is_raised_again() -> None:
    kept = ValueError("kept")

    def always(value: int) -> int:
        raise kept

    for _ in range(2):
        flow, stream = flow_of(1)
        stream.map(always).print()
        failure(flow)
    assert len(kept.__notes__) == 2


# ---- names and options --------------------------------------------------------------------------------------


def test_unknown_names_come_with_the_known_ones() -> None:
    flow, stream = flow_of(1)
    stream.print()
    for options, says in [
        ({"state_backend": "memry"}, "Did you mean 'memory'"),
        ({"transport": "loca"}, "Did you mean 'local'"),
        ({"engine": "storm"}, "there is no engine 'storm'"),
        ({"metrics": ("logg",)}, "Did you mean 'log'"),
        ({"parallelism": 0}, "parallelism"),
        ({"paralelism": 2}, "Did you mean 'parallelism'"),
    ]:
        error, _ = failure(flow, **options)
        assert isinstance(error, sw.SluicewayError), error
        assert says in str(error)


def test_an_unknown_connector_and_partitioner() -> None:
    flow = sw.Pipeline("names")
    with pytest.raises(sw.SluicewayError, match="Did you mean 'socket'"):
        flow.source("sockets", host="127.0.0.1", port=1)
    with pytest.raises(sw.SluicewayError, match="there is no partitioner 'no-such-partitioner'"):
        flow.from_collection([1]).partition_custom("no-such-partitioner")


# ---- exceptions that are meant to end something else ----------------------------------------------------------


class Own(BaseException):
    pass


ODD = [(SystemExit, 0), (SystemExit, 3), (GeneratorExit, "g"), (asyncio.CancelledError, "c"), (Own, "mine")]


class Odd(sw.MapFunction[int, int]):
    def __init__(self, where: str, error: BaseException) -> None:
        self.where = where
        self.error = error

    def open(self, context: sw.RuntimeContext) -> None:
        self._maybe("open")

    def map(self, value: int) -> int:
        self._maybe("map")
        return value

    def close(self) -> None:
        self._maybe("close")

    def _maybe(self, here: str) -> None:
        if here == self.where:
            raise self.error


@pytest.mark.parametrize(("kind", "text"), ODD)
@pytest.mark.parametrize("where", ["open", "map", "close"])
def test_what_is_no_exception_fails_the_job_in_one_process_too(where: str, kind: Any, text: Any) -> None:
    error = kind(text)
    flow, numbers = flow_of(3)
    numbers.map(Odd(where, error)).print()
    job = flow.prepare()
    with pytest.raises(FunctionContractError) as caught:
        job.run()
    assert job.status is JobStatus.FAILED
    assert f"step 'map(Odd)' raised {type(error).__name__}({error})" in str(caught.value)
    assert caught.value.__cause__ is error
    notes = caught.value.__notes__
    assert notes[0].startswith("in step 'map(Odd)'")
    assert ("record: 3" in notes) is (where == "map")


@pytest.mark.parametrize(("kind", "text"), ODD)
def test_sources_enumerators_and_sinks_likewise(kind: Any, text: Any) -> None:
    for source in (BadSource(kind(text)), BadSource([], enumerator_fails=kind(text))):
        flow = sw.Pipeline("s")
        flow.source(source).name("numbers").print()
        told, notes = failure(flow)
        assert isinstance(told, FunctionContractError)
        assert f"raised {kind.__name__}({text})" in str(told)
        assert "'numbers'" in notes

    def refuse(value: int) -> None:
        raise kind(text)

    flow, numbers = flow_of(3)
    numbers.for_each(refuse)
    told, notes = failure(flow)
    assert isinstance(told, FunctionContractError)
    assert "record: 3" in notes


@pytest.mark.parametrize(("kind", "text"), ODD)
def test_asynchronous_functions_likewise(kind: Any, text: Any) -> None:
    async def fail(value: int) -> int:
        raise kind(text)

    flow, numbers = flow_of(3)
    numbers.async_map(fail, timeout=None).print()
    told, notes = failure(flow)
    assert isinstance(told, Exception)
    assert "in step 'async_map(" in notes
    assert "record: 3" in notes


def test_an_interrupt_passes_and_says_where_it_was() -> None:
    flow, numbers = flow_of(3)
    numbers.map(Odd("map", KeyboardInterrupt())).print()
    error, notes = failure(flow)
    assert isinstance(error, KeyboardInterrupt)
    assert "in step 'map(Odd)'" in notes
    assert "record: 3" in notes


class AsTheyCome(sw.KeyedBatchProcessFunction[int, int, int]):
    def process_batch(self, values: Sequence[int], ctx: Any) -> Iterable[int]:
        return values


def _third_is_missing(n: int) -> int:
    return next(iter(())) if n == 3 else n


@pytest.mark.parametrize(
    "steps",
    [
        lambda numbers: numbers.map(_third_is_missing),
        lambda numbers: numbers.filter(_third_is_missing).map(abs),
        lambda numbers: numbers.flat_map(lambda n: [_third_is_missing(n)]),
        lambda numbers: numbers.key_by(_third_is_missing).count(),
        lambda numbers: numbers.key_by(lambda n: 0).reduce(lambda a, b: _third_is_missing(b)),
        lambda numbers: numbers.key_by(_third_is_missing).process(AsTheyCome()),
    ],
)
@pytest.mark.parametrize("batch_size", [1, 1024])
def test_a_stop_iteration_of_a_function_is_no_end_of_the_results(steps: Any, batch_size: int) -> None:
    results = steps(sw.Pipeline("numbers").from_collection([1, 2, 3, 4]))
    with pytest.raises(FunctionContractError, match=r"raised StopIteration, .*default") as told:
        list(results.execute_and_collect(batch_size=batch_size))
    assert "in step" in told.value.__notes__[0]


_WITHOUT_KEYS = {
    "map": lambda keyed: keyed.map(lambda n: n),
    "filter": lambda keyed: keyed.filter(lambda n: True),
    "flat_map": lambda keyed: keyed.flat_map(lambda n: [n]),
    "none": lambda keyed: keyed,
}


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("step", list(_WITHOUT_KEYS))
def test_keys_of_steps_that_need_none_are_computed_at_any_parallelism(step: str, parallelism: int) -> None:
    def run(key: Any, *, skip: bool = False) -> tuple[list[int], BaseException | None]:
        flow = sw.Pipeline("keys", parallelism=parallelism)
        made = _WITHOUT_KEYS[step](flow.from_collection([1, 2, 0]).key_by(key))
        seen = (made.on_error("skip") if skip else made).collect()
        try:
            flow.run(batch_size=100)
        except Exception as error:
            return sorted(seen), error
        return sorted(seen), None

    _, error = run(lambda n: n if n else [n])
    assert isinstance(error, UnstableKeyError)
    assert "[0] (list) cannot be a key: list is not hashable. Use tuple(key)." in str(error)
    assert any("source(CollectionSource)" in note for note in error.__notes__)
    assert isinstance(run(lambda n: 1 // n)[1], ZeroDivisionError)
    assert run(lambda n: n) == ([0, 1, 2], None)
    if step != "none":
        assert run(lambda n: 1 // n, skip=True) == ([0, 1, 2], None)
