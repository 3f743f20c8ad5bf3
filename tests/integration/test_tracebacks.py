"""Tracebacks of failed jobs show the user's frames, those of the engine on demand."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Callable
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.errors import FunctionContractError, UnknownNameError
from sluiceway.util.source_paths import CORE


def flow_of(function: Callable[[Any], Any], *values: Any) -> sw.Pipeline:
    flow = sw.Pipeline("fails")
    flow.from_collection(list(values)).map(function).for_each(print)
    return flow


def parse(line: str) -> int:
    return int(line)


def look_up(line: str) -> int:
    try:
        return parse(line)
    except ValueError as error:
        raise LookupError(line) from error


def run(flow: sw.Pipeline, **options: Any) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        flow.run(**options)
    return caught.value


def names(error: BaseException | None) -> list[str]:
    assert error is not None
    return [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]


def told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_the_users_frame_follows_the_call_of_run() -> None:
    error = run(flow_of(parse, "x"))
    assert names(error) == ["run", "parse"]
    assert CORE not in told(error)


def test_causes_have_the_users_frames_alone_too() -> None:
    error = run(flow_of(look_up, "x"))
    assert names(error) == ["run", "look_up"]
    assert names(error.__cause__) == ["look_up", "parse"]


def test_all_frames_stay_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_TRACEBACK", "1")
    assert len(names(run(flow_of(parse, "x")))) > 5


def test_the_frame_of_a_failing_builtin_is_the_last_one() -> None:
    assert names(run(flow_of(int, "x"))) == ["run", "loop"]


def test_an_error_that_was_raised_on_purpose_needs_no_frame() -> None:
    error = run(flow_of(parse, "1"), paralelism=2)
    assert isinstance(error, UnknownNameError)
    assert names(error) == ["run"]


def test_a_fault_outside_of_a_step_keeps_the_engines_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object) -> None:
        raise AttributeError("a fault")

    # What raises must not count as the user's code.
    fault.__code__ = fault.__code__.replace(co_filename=CORE + "fault.py")
    monkeypatch.setattr("sluiceway.runtime.local.engine.LocalJob.begin", fault)
    assert len(names(run(flow_of(parse, "1")))) > 3


def test_the_text_of_a_worker_has_the_users_frames_once() -> None:
    flow = sw.Pipeline("fails")
    # A consumer on another worker fails with what it receives through its channel.
    flow.from_collection(["1", "2", "x"]).map(parse).key_by(lambda n: n % 2).sum().for_each(str)
    error = run(flow, workers=2)
    assert names(error) == ["run"]
    text = told(error)
    assert CORE not in text
    assert text.count("in a worker process") == 1
    assert text.count("in parse\n") == 1
    assert "record: 'x'" in error.__notes__


def test_an_error_of_a_worker_with_a_way_to_be_pickled_keeps_its_notes() -> None:
    error = run(flow_of(json.loads, "x"), workers=1)
    assert type(error) is json.JSONDecodeError
    assert "record: 'x'" in error.__notes__


def test_an_error_of_a_worker_that_was_raised_on_purpose_has_no_cause() -> None:
    flow = sw.Pipeline("fails")
    flow.from_collection([1]).flat_map(lambda n: n).for_each(print)
    error = run(flow, workers=1)
    assert isinstance(error, FunctionContractError)
    assert error.__cause__ is None
    assert names(error) == ["run"]


def test_the_result_of_a_handle_fails_with_the_users_frame_last() -> None:
    async def result() -> None:
        await (await flow_of(parse, "x").start()).result()

    with pytest.raises(ValueError, match="invalid literal") as caught:
        asyncio.run(result())
    assert names(caught.value)[-3:] == ["result", "result", "parse"]


def test_results_fail_with_the_users_frame_last() -> None:
    flow = sw.Pipeline("fails")
    results = flow.from_collection(["x"]).map(parse).execute_and_collect()
    with pytest.raises(ValueError, match="invalid literal") as caught:
        list(results)
    assert names(caught.value)[-2:] == ["__next__", "parse"]
