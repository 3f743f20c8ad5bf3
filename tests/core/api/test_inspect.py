"""Functions that look at records in passing."""

from typing import Any

import pytest

import sluiceway as sw
from sluiceway.errors import GraphError
from sluiceway.testing import OperatorHarness


@pytest.mark.parametrize("chaining", [True, False])
def test_records_pass_and_are_looked_at(chaining: bool) -> None:
    flow = sw.Pipeline("passing", chaining=chaining)
    seen: list[int] = []
    passed = flow.from_collection([1, 2, 3]).inspect(seen.append).map(lambda n: -n).inspect(seen.append).collect()
    flow.run(batch_size=2)
    assert passed == [-1, -2, -3]
    assert sorted(seen) == [-3, -2, -1, 1, 2, 3]


def test_what_the_function_returns_is_ignored() -> None:
    with OperatorHarness(lambda records: records.inspect(lambda n: None).inspect(lambda n: "other")) as steps:
        steps.process(0, 7)
        assert steps.records == [(0, 7)]


def test_a_record_that_the_function_keeps_is_not_changed_by_a_later_step() -> None:
    seen: list[list[int]] = []

    def extended(record: list[int]) -> list[int]:
        record.append(0)
        return record

    flow = sw.Pipeline("kept")
    found = flow.from_collection([[1], [2]]).inspect(seen.append).map(extended).collect()
    flow.run()
    assert (seen, found) == ([[1], [2]], [[1, 0], [2, 0]])


def test_the_type_of_the_records_is_known_behind_it_also_where_a_filter_could_narrow_it() -> None:
    class Wider:
        pass

    class Narrower(Wider):
        pass

    flow = sw.Pipeline("types")
    flow.from_collection([Narrower()]).returns(Wider).inspect(print).name("looked at").collect()
    assert next(node.output_type for node in flow.graph().nodes if node.name == "looked at") is Wider


def test_a_record_on_which_the_function_raises_is_skipped_where_the_step_skips() -> None:
    flow = sw.Pipeline("skip")
    looked = flow.from_collection([1, 0, 2]).inspect(lambda n: 1 // n).on_error("skip")
    found, letters = looked.collect(), looked.dead_letters().collect()
    flow.run()
    assert (found, [letter.value() for letter in letters]) == ([1, 2], [0])


def test_a_function_that_raises_is_named_with_the_record() -> None:
    flow = sw.Pipeline("raise")
    flow.from_collection([1, 0]).map(lambda n: n).inspect(lambda n: 1 // n).name("audit").print()
    with pytest.raises(ZeroDivisionError) as raised:
        flow.run()
    where, what = raised.value.__notes__
    assert "in step 'audit'" in where
    assert what == "record: 0"


def test_a_list_of_the_program_is_filled_without_workers_only() -> None:
    flow = sw.Pipeline("list")
    seen: list[int] = []
    flow.from_collection([1]).inspect(seen.append).print()
    with pytest.raises(GraphError, match="others would fill copies"):
        flow.run(workers=1)


def test_other_functions_are_refused_at_the_call() -> None:
    def generator(record: int) -> Any:
        yield record

    async def asynchronous(record: int) -> None: ...

    class Mapped(sw.MapFunction[int, int]):
        def map(self, value: int) -> int:
            return value

    numbers = sw.Pipeline("wrong").from_collection([1])
    for wrong, said in [
        (generator, "generator function .* whose code a call does not run"),
        (asynchronous, "async function"),
        (Mapped(), "takes a callable; Mapped is a MapFunction"),
        (lambda a, b: None, "calls its function with 1 argument"),
        (3, "takes a callable, not 3"),
    ]:
        with pytest.raises(TypeError, match=said):
            numbers.inspect(wrong)  # type: ignore[arg-type]
