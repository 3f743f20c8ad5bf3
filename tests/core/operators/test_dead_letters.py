"""Steps that skip records on which their function raises: nothing is lost or doubled but these."""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.config.settings import Settings
from sluiceway.errors import ConfigurationError

Expand = Callable[[int], list[int]]


class Poison(Exception):
    pass


def no_poison(value: int, part: int) -> None:
    if value % 7 == part:
        raise Poison(value)


SEEN = sw.OutputTag[int]("seen", int)


class Stepped:
    """A step of a chain, and what it makes of a record according to the model."""

    def __init__(self, kind: str, part: int, skips: bool = True) -> None:
        self.kind, self.part, self.skips = kind, part, skips

    def __repr__(self) -> str:
        return f"{self.kind}({self.part})"

    def model(self, value: int) -> list[int]:
        no_poison(value, self.part)
        if self.kind == "filter":
            return [value] if value % 3 else []
        return [value + 1] if self.kind in ("map", "process_list") else [value + 1, value * 2]

    def add(self, stream: sw.DataStream[int]) -> sw.DataStream[int]:
        part = self.part

        def map_(value: int) -> int:
            no_poison(value, part)
            return value + 1

        def filter_(value: int) -> bool:
            no_poison(value, part)
            return value % 3 != 0

        def flat(value: int) -> list[int]:
            no_poison(value, part)
            return [value + 1, value * 2]

        def late(value: int) -> Iterator[int]:
            yield value + 1
            no_poison(value, part)  # one result was given already
            yield value * 2

        def process(value: int, ctx: sw.ProcessFunction.Context) -> Iterator[int]:
            ctx.output(SEEN, value)
            yield value + 1
            no_poison(value, part)
            yield value * 2

        def process_list(value: int, ctx: sw.ProcessFunction.Context) -> list[int]:
            ctx.output(SEEN, value)
            no_poison(value, part)
            return [value + 1]

        made: dict[str, Callable[[], sw.DataStream[int]]] = {
            "map": lambda: stream.map(map_),
            "filter": lambda: stream.filter(filter_),
            "flat": lambda: stream.flat_map(flat),
            "late": lambda: stream.flat_map(late),
            "process": lambda: stream.process(process),
            "process_list": lambda: stream.process(process_list),
            "keyed": lambda: stream.key_by(lambda v: v % 5).process(process),  # type: ignore[arg-type]
        }
        return made[self.kind]().on_error("skip")


kinds = st.sampled_from(["map", "filter", "flat", "late", "process", "process_list", "keyed"])
chains = st.lists(st.builds(Stepped, kinds, st.integers(0, 6)), min_size=1, max_size=5)


@examples(20, 40)
@given(
    chain=chains, values=st.lists(st.integers(0, 60), max_size=25), stamped=st.booleans(), size=st.integers(1, 9)
)
def test_a_chain_gives_what_it_gives_without_the_records_that_it_skips(
    chain: list[Stepped], values: list[int], stamped: bool, size: int
) -> None:
    flow = sw.Pipeline()
    stream = flow.from_collection(
        list(enumerate(values)), timestamp=(lambda pair: pair[0]) if stamped else None
    ).map(lambda pair: pair[1])
    letters, seen = [], []
    for step in chain:
        stream = step.add(stream)
        letters.append(stream.dead_letters().collect())
        seen.append(stream.get_side_output(SEEN).collect() if "process" in step.kind else None)
    got = stream.process(lambda value, ctx: [(value, ctx.timestamp())]).collect()
    flow.run(batch_size=size)

    expected = [(value, stamp if stamped else None) for stamp, value in enumerate(values)]
    for step, dead, noted in zip(chain, letters, seen, strict=True):
        out, skipped, went = [], [], []
        for value, stamp in expected:
            try:
                out += [(made, stamp) for made in step.model(value)]
                went.append(value)
            except Poison:
                skipped.append((value, stamp))
        expected = out
        assert [(letter.value(), letter.timestamp) for letter in dead] == skipped
        assert noted is None or list(noted) == went
    assert list(got) == expected


class Total(sw.MapFunction[int, int]):
    def open(self, ctx: sw.RuntimeContext) -> None:
        self.total = ctx.get_state(sw.ValueStateDescriptor("total"))

    def map(self, value: int) -> int:
        no_poison(value, 3)
        total: int = (self.total.value() or 0) + value
        self.total.update(total)
        return total


class Totals(sw.FlatMapFunction[int, int]):
    def open(self, ctx: sw.RuntimeContext) -> None:
        self.total = ctx.get_state(sw.ValueStateDescriptor("total"))

    def flat_map(self, value: int) -> Iterator[int]:
        total: int = (self.total.value() or 0) + value
        yield total
        no_poison(value, 3)
        self.total.update(total)


class Rising(sw.FilterFunction[int]):
    def open(self, ctx: sw.RuntimeContext) -> None:
        self.last = ctx.get_state(sw.ValueStateDescriptor("last"))

    def filter(self, value: int) -> bool:
        no_poison(value, 3)
        last, _ = self.last.value() or 0, self.last.update(value)
        return value > last


class Sum(sw.AggregateFunction[int, int, int]):
    def __init__(self, where: str) -> None:
        self.where = where

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        if self.where == "add":
            no_poison(value, 3)
        self.value = value
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        if self.where == "result":
            no_poison(self.value, 3)
        return accumulator


def reduce_(reduced: int, value: int) -> int:
    no_poison(value, 3)
    return reduced + value


KEYED: dict[str, Callable[[sw.KeyedStream[int, int]], sw.DataStream[Any]]] = {
    "map": lambda keyed: keyed.map(Total()),
    "flat_map": lambda keyed: keyed.flat_map(Totals()),
    "filter": lambda keyed: keyed.filter(Rising()),
    "aggregate": lambda keyed: keyed.aggregate(Sum("add")),
    "result": lambda keyed: keyed.aggregate(Sum("result")),
    "sum": lambda keyed: keyed.sum(lambda value: no_poison(value, 3) or value),
    "reduce": lambda keyed: keyed.reduce(reduce_),
}


@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize("parallelism", [1, 2])
@examples(4, 8)
@given(values=st.lists(st.integers(0, 60), max_size=25), stamped=st.booleans(), size=st.integers(1, 9))
def test_running_results_are_those_of_the_other_records(
    kind: str, parallelism: int, values: list[int], stamped: bool, size: int
) -> None:
    first = set()

    def poisonous(value: int) -> bool:
        if kind == "reduce" and value % 4 not in first:  # a reduction is not called for the first record of a key
            first.add(value % 4)
            return False
        return value % 7 == 3

    fine = [not poisonous(value) for value in values]

    def run(records: list[tuple[int, int]]) -> tuple[list[Any], list[Any]]:
        flow = sw.Pipeline(parallelism=parallelism)
        keyed = (
            flow.from_collection(records, timestamp=(lambda pair: pair[0]) if stamped else None)
            .set_parallelism(1)
            .map(lambda pair: pair[1])
            .set_parallelism(1)
            .key_by(lambda value: value % 4)
        )
        results = KEYED[kind](keyed).on_error("skip")
        dead = results.dead_letters().collect()
        got = results.process(lambda value, ctx: [(value, ctx.timestamp())]).collect()
        flow.run(batch_size=size)
        return sorted(got, key=repr), sorted((d.value(), d.key, d.timestamp) for d in dead)

    records = list(enumerate(values))
    all_of_them, dead = run(records)
    only_fine, none = run([record for record, is_fine in zip(records, fine, strict=True) if is_fine])
    assert all_of_them == only_fine
    assert none == []
    assert dead == sorted(
        (value, repr(value % 4), stamp if stamped else None)
        for (stamp, value), is_fine in zip(records, fine, strict=True)
        if not is_fine
    )


def fail_on_x(value: str) -> int:
    return int(value)


def test_a_letter_tells_all_of_its_record() -> None:
    flow = sw.Pipeline("readings")
    parsed = (
        flow.from_collection(["1", "x"], timestamp=len).key_by(str.upper).map(Parse()).name("parse").uid("parse-1")
    )
    letters = parsed.on_error("skip").dead_letters().collect()
    result = flow.run()
    (letter,) = letters
    assert (letter.job, letter.step, letter.uid, letter.subtask, letter.attempt) == (
        "readings",
        "parse",
        "parse-1",
        0,
        0,
    )
    assert letter.error == "ValueError: invalid literal for int() with base 10: 'x'\nat second sight"
    assert "in map\n    return fail_on_x(value)" in letter.traceback
    assert "sluiceway" not in letter.traceback.partition("in map")[0].splitlines()[0]
    assert (letter.record, letter.value(), letter.key, letter.timestamp) == ("'x'", "x", "'X'", 1)
    assert letter.time_ms > 1_600_000_000_000
    assert result.metrics.subtasks[-1].user["deadLetters"] == 1


class Parse(sw.MapFunction[str, int]):
    def open(self, ctx: sw.RuntimeContext) -> None: ...

    def map(self, value: str) -> int:
        try:
            return fail_on_x(value)
        except ValueError as error:
            error.add_note("at second sight")
            raise


def test_the_option_goes_for_all_steps_that_do_not_say() -> None:
    def run(**options: Any) -> list[int]:
        flow = sw.Pipeline()
        out = flow.from_collection(["1", "x"]).map(int).map(lambda v: v).collect()
        flow.run(**options)
        return list(out)

    assert run(on_error="skip") == [1]
    with pytest.raises(ValueError, match="invalid literal"):
        run(on_error="fail")


def test_a_step_may_fail_where_the_others_skip() -> None:
    flow = sw.Pipeline()
    flow.from_collection(["x"]).map(int).on_error("fail").collect()
    with pytest.raises(ValueError, match="invalid literal") as failed:
        flow.run(on_error="skip")
    assert "record: 'x'" in failed.value.__notes__


def test_a_failing_step_in_a_loop_with_one_that_skips_is_named() -> None:
    flow = sw.Pipeline()
    numbers = flow.from_collection(["x", "2"], timestamp=len).map(int).on_error("skip")
    numbers.map(lambda v: 1 // (v - 2)).name("divide").collect()
    with pytest.raises(ZeroDivisionError) as failed:
        flow.run()
    assert failed.value.__notes__ == [
        "in step 'divide' of 'source(CollectionSource) -> map(int) -> divide -> sink(CollectSink)', "
        "subtask 1 of 1",
        "record: 2",
        "timestamp: 1 ms",
    ]


STEPS: dict[str, Callable[[sw.DataStream[str]], sw.DataStream[Any]]] = {
    "map": lambda s: s.map(int),
    "flat_map": lambda s: s.flat_map(lambda v: [int(v)]),
    "process": lambda s: s.process(lambda v, ctx: [int(v)]),
    "keyed process": lambda s: s.key_by(len).process(lambda v, ctx: [int(v)]),
    "keyed map": lambda s: s.key_by(len).map(Parse()),
    "aggregate": lambda s: s.key_by(len).sum(int),
}


@pytest.mark.parametrize("kind", STEPS)
def test_too_many_fail_with_the_first_that_is_one_too_many(kind: str) -> None:
    flow = sw.Pipeline()
    step = STEPS[kind](flow.from_collection(["a", "1", "b", "c"])).name("parse").on_error("skip", max=2)
    step.collect()
    with pytest.raises(ValueError, match="'c'") as failed:
        flow.run()
    assert "step 'parse' skips at most 2 records in a subtask, and has done so" in failed.value.__notes__
    assert "record: 'c'" in failed.value.__notes__


def test_the_option_says_how_many_at_most() -> None:
    flow = sw.Pipeline()
    flow.from_collection(["a", "b"]).map(int).collect()
    with pytest.raises(ValueError, match="'b'"):
        flow.run(on_error="skip", max_dead_letters=1)


def test_misuse_of_state_is_no_fault_of_the_record() -> None:
    class Asks(sw.MapFunction[int, int]):
        def open(self, ctx: sw.RuntimeContext) -> None:
            self.ctx = ctx

        def map(self, value: int) -> int:
            self.ctx.get_state(sw.ValueStateDescriptor("x"))
            return value

    flow = sw.Pipeline()
    flow.from_collection([1]).map(Asks()).on_error("skip").collect()
    with pytest.raises(sw.StateError):
        flow.run()


@pytest.mark.parametrize("kind", [ConfigurationError, BdbQuit])
def test_who_quits_the_debugger_or_has_set_an_option_wrong_loses_no_record(kind: type[Exception]) -> None:
    def stopped(value: int) -> int:
        raise kind

    flow = sw.Pipeline()
    flow.from_collection([1]).map(stopped).on_error("skip").collect()
    with pytest.raises(kind):
        flow.run()


def test_the_steps_around_stay_in_one_loop() -> None:
    flow = sw.Pipeline()
    first = flow.from_collection(["1", "x"]).map(int).on_error("skip").name("first")
    letters = first.dead_letters().collect()
    first.map(lambda v: v).name("second").collect()
    flow.run(dead_letters=None)
    assert "first -> second" in letters[0].traceback


def test_results_are_refused_as_those_of_a_step_that_fails() -> None:
    flow = sw.Pipeline()
    text = flow.from_collection([1]).process(lambda v, ctx: "text").on_error("skip").dead_letters().collect()
    flow.run()
    assert "which would be taken apart" in text[0].error


def test_what_cannot_skip_says_so() -> None:
    flow = sw.Pipeline()
    stream = flow.from_collection([1])
    with pytest.raises(sw.GraphError, match=r"'source' .* cannot skip records; map, flat_map, filter"):
        stream.on_error("skip")
    with pytest.raises(sw.GraphError, match=r"cannot skip records, so there are none"):
        stream.dead_letters()
    with pytest.raises(sw.GraphError, match=r"cannot skip records"):
        stream.print().on_error("skip")
    with pytest.raises(sw.GraphError, match=r"dead_letters\(\) gives what a step has skipped"):
        stream.process(lambda v, ctx: None).get_side_output(sw.OutputTag("dead letters"))
    assert stream.on_error("fail") is stream


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("ignore",), {}, r"on_error\('ignore'\) at .*: it is 'fail' or 'skip'"),
        (("fail",), {"max": 3}, r"max= goes with 'skip'"),
        (("skip",), {"max": 0}, r"on_error\(max=\).* must be at least 1"),
    ],
)
def test_wrong_arguments(arguments: Any, options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        sw.Pipeline().from_collection([1]).map(str).on_error(*arguments, **options)


def test_a_record_that_cannot_be_pickled_is_told_by_its_text() -> None:
    flow = sw.Pipeline()
    made = flow.from_collection([1]).map(lambda v: (n for n in [v])).map(lambda g: 1 // 0).on_error("skip")
    letters = made.dead_letters().collect()
    flow.run()
    assert letters[0].data is None
    assert "generator object" in letters[0].record
    with pytest.raises(sw.SerializationError, match="could not be pickled"):
        letters[0].value()


def test_the_option_wants_a_directory() -> None:
    with pytest.raises(sw.ConfigurationError, match="a directory"):
        sw.Pipeline().check(dead_letters="s3://bucket/x")
    assert Settings().on_error == "fail"


def test_the_sink_of_the_option_is_known_again_when_steps_are_added(tmp_path: Path) -> None:
    def run(more: bool, **options: Any) -> None:
        flow = sw.Pipeline("job")
        stream = flow.from_collection([1, 0, 2]).uid("numbers").map(lambda n: 1 // n).uid("inverse")
        if more:
            stream = stream.filter(lambda n: True).uid("more")
        stream.for_each(lambda n: None).uid("out")
        places: Any = {"dead_letters": tmp_path / "letters", "checkpoints": tmp_path / "kept"}
        flow.run(on_error="skip", checkpoint_interval="1h", **places, **options)

    run(False)
    run(True, from_checkpoint=tmp_path / "kept")


def test_plans_and_checks_tell() -> None:
    flow = sw.Pipeline()
    flow.from_collection(["x"]).map(int).on_error("skip", max=5).print()
    assert "on error skip, 5 at most" in flow.explain()
    assert '"on_error": "skip"' in flow.explain("json")
    assert '"max_dead_letters": 5' in flow.explain("json")
    assert "on error skip, 5 at most" in flow.explain("html")
    (found,) = [finding for finding in flow.check() if finding.code == "dropped-records"]
    assert "'map(int)'" in found.message
    assert "option dead-letters, or take them with dead_letters()" in found.message
    assert "dropped-records" not in {finding.code for finding in flow.check(dead_letters="somewhere")}
    assert "on error" not in sw.Pipeline().from_collection([1]).map(str)._pipeline.explain()
