"""Plain functions that are given the state of their key: map_with_state and its kin."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.errors import FunctionContractError
from sluiceway.testing import OperatorHarness

Pair = tuple[str, int]


def running(record: Pair, total: int | None) -> tuple[Pair, int]:
    total = (total or 0) + record[1]
    return (record[0], total), total


def changes(record: Pair, last: int | None) -> tuple[list[int], int]:
    return [] if last is None else [record[1] - last], record[1]


def toggled(record: str, seen: bool | None) -> tuple[bool, bool | None]:
    return seen is not None, None if seen else True


def gathered(record: Pair, found: list[int] | None) -> tuple[list[int], list[int]]:
    found = found or []
    found.append(record[1])
    return found, found


def is_new(record: Pair, last: int | None) -> tuple[bool, int]:
    return record[1] != last, record[1]


def keyed(records: sw.DataStream[Any]) -> sw.KeyedStream[Any, Any]:
    return records.key_by(lambda record: record[0])


def harness(fn: Callable[..., Any], method: str = "map_with_state", **options: Any) -> OperatorHarness:
    return OperatorHarness(lambda records: getattr(keyed(records), method)(fn, **options))


def outputs(records: Iterable[Any], fn: Callable[..., Any], method: str = "map_with_state") -> list[Any]:
    with harness(fn, method) as steps:
        return [result for record in records for result in steps.process(record)]


RECORDS = [("a", 1), ("b", 2), ("a", 3), ("a", 5), ("b", 4)]


def test_each_key_has_its_state() -> None:
    assert outputs(RECORDS, running) == [("a", 1), ("b", 2), ("a", 4), ("a", 9), ("b", 6)]


def test_any_number_of_results() -> None:
    assert outputs(RECORDS, changes, "flat_map_with_state") == [2, 2, 2]


def test_records_are_kept_by_the_state_of_their_key() -> None:
    repeated = [("a", 1), ("a", 1), ("b", 1), ("a", 2), ("a", 1), ("b", 1)]
    assert outputs(repeated, is_new, "filter_with_state") == [("a", 1), ("b", 1), ("a", 2), ("a", 1)]


def test_a_record_that_is_its_own_state_stays_as_it_was_emitted() -> None:
    def appended(record: list[Any], before: list[Any] | None) -> tuple[bool, list[Any]]:
        if before is not None:
            before.append("again")
        return before is None, before or record

    flow = sw.Pipeline("emitted")
    found = keyed(flow.from_collection([["a"], ["a"]])).filter_with_state(appended).collect()
    flow.run()
    assert found == [["a"]]


def test_a_generator_of_results_may_run_after_the_function() -> None:
    found = outputs(
        RECORDS[:2], lambda record, _: ((record[0] for _ in range(record[1])), None), "flat_map_with_state"
    )
    assert found == ["a", "b", "b"]


def test_none_removes_the_state() -> None:
    assert outputs(["a", "a", "a", "b"], toggled) == [False, True, False, False]


def test_a_state_that_is_emitted_does_not_change_in_the_results() -> None:
    assert outputs(RECORDS[:4], gathered) == [[1], [2], [1, 3], [1, 3, 5]]


def test_the_state_is_in_snapshots_and_moves_with_its_key() -> None:
    with harness(running) as steps:
        steps.process(("a", 1))
        steps.process(("b", 2))
        snapshot = steps.snapshot()
    with OperatorHarness(
        lambda records: keyed(records).map_with_state(running), restored=snapshot, parallelism=3
    ) as restored:
        assert restored.process(("a", 10)) + restored.process(("b", 10)) == [("a", 11), ("b", 12)]


def test_the_state_expires() -> None:
    with harness(running, ttl=sw.StateTtlConfig("1h")) as steps:
        assert steps.process(("a", 1)) == [("a", 1)]
        steps.advance(3_600_000)
        assert steps.process(("a", 1)) == [("a", 1)]


def test_hints_declare_the_types_of_records_results_and_state() -> None:
    flow = sw.Pipeline("types")
    source = flow.from_collection(RECORDS)
    keyed(source).map_with_state(running).name("totals").collect()
    keyed(source).flat_map_with_state(changes).name("changes").collect()
    keyed(source).filter_with_state(is_new).name("new").collect()
    types = {node.name: node.output_type for node in flow.graph().nodes}
    assert types["totals"] == tuple[str, int]
    assert types["changes"] is int
    assert types["new"] is types["source(CollectionSource)"]
    assert "pickled state" not in flow.explain()


def test_records_of_another_type_are_found_before_the_run() -> None:
    flow = sw.Pipeline("clash")
    flow.from_collection([1, 2]).key_by(lambda n: n).map_with_state(toggled).collect()
    assert "type-clash" in {finding.code for finding in flow.check()}


def test_a_record_on_which_the_function_raises_changes_no_state() -> None:
    def inverse(record: Pair, total: float | None) -> tuple[float, float]:
        total = (total or 0) + 1 / record[1]
        return total, total

    flow = sw.Pipeline("skip")
    found = (
        keyed(flow.from_collection([("a", 1), ("a", 0), ("a", 2)]))
        .map_with_state(inverse)
        .on_error("skip")
        .collect()
    )
    flow.run()
    assert found == [1, 1.5]


@pytest.mark.parametrize("returned", [3, ("result",), ("result", 1, 2), ["result", 1], None])
@pytest.mark.parametrize("method", ["map_with_state", "flat_map_with_state", "filter_with_state"])
def test_anything_but_a_pair_is_refused_with_the_record(returned: Any, method: str) -> None:
    with (
        pytest.raises(
            FunctionContractError, match=rf"{method}\(\) must return a pair.*for \('a', 1\) it returned"
        ),
        harness(lambda record, state: returned, method) as steps,
    ):
        steps.process(("a", 1))


def test_functions_that_cannot_be_called_are_refused_at_the_call() -> None:
    stream = keyed(sw.Pipeline("wrong").from_collection(RECORDS))
    with pytest.raises(TypeError, match=r"map_with_state\(\) at .* calls its function with 2 arguments"):
        stream.map_with_state(lambda record: record)  # type: ignore[misc, arg-type]
    with pytest.raises(TypeError, match="ttl takes a StateTtlConfig"):
        stream.map_with_state(running, ttl="1h")  # type: ignore[arg-type]
