"""Dead letters in files: through failures and on workers, and the way back into the pipeline."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.api.replay import replaying
from sluiceway.config.settings import Settings
from sluiceway.connector import Source
from sluiceway.connector.lib import (
    CollectionSource,
    DiscardSink,
    dead_letter_files,
    delete_dead_letters,
    read_dead_letters,
)
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.engine import JobStatus
from sluiceway.testing import EOF, PAUSE, FailOnce, KeySequence, PipelineHarness, TestSource
from sluiceway_files import FilesSink

COUNT = 12_000


def letters_in(directory: Path) -> list[sw.DeadLetter]:
    return list(read_dead_letters(dead_letter_files(directory)))


def no_ninety_seventh(value: int) -> int:
    if value % 97 == 0:
        raise ValueError(f"no {value}")
    return value


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("moments", [{"at": (COUNT // 4, COUNT // 2 + 1)}, {"at_close": True}], ids=str)
def test_each_letter_is_there_once_whatever_fails(workers: int, moments: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    out = tmp_path / "dead"
    flow = sw.Pipeline("exactly once", parallelism=2)
    numbers = flow.source(GeneratorSource(count=COUNT, rate=60_000 if workers else None))
    counted = numbers.key_by(lambda n: n % 14).map(KeySequence(14)).uid("counted")
    checked = counted.map(FailOnce(tmp_path / "marks", **moments)).on_error("fail").map(no_ninety_seventh)
    checked.on_error("skip").rebalance().map(str).sink(DiscardSink())
    result = flow.run(
        workers=workers,
        checkpoint_interval="20ms" if workers else "3ms",
        checkpoint_tolerated_failures=3,
        restart="fixed-delay:9:1ms",
        dead_letters=out,
    )
    assert result.status is JobStatus.FINISHED
    assert result.metrics.restarts
    assert Counter(letter.value() for letter in letters_in(out)) == Counter(range(0, COUNT, 97))
    assert [path for path in out.iterdir() if path not in dead_letter_files(out)] == []


def test_letters_cross_workers_and_are_of_all_subtasks(tmp_path: Path) -> None:
    flow = sw.Pipeline("spread", parallelism=2)
    numbers = flow.from_sequence(1, 400).rebalance().map(no_ninety_seventh).on_error("skip")
    numbers.key_by(lambda n: n % 2).reduce(lambda a, b: a + b).print()
    dead = numbers.dead_letters().collect()
    flow.run(workers=2, dead_letters=tmp_path)
    assert sorted(letter.value() for letter in dead) == [97, 194, 291, 388]
    assert sorted(letter.value() for letter in letters_in(tmp_path)) == [97, 194, 291, 388]
    assert all("raise ValueError" in letter.traceback for letter in dead)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_skipped_is_no_output_of_the_job(workers: int, tmp_path: Path) -> None:
    """The closing line counted the files of dead letters as output."""
    flow = sw.Pipeline("readings")
    numbers = flow.from_sequence(1, 200).map(no_ninety_seventh).on_error("skip")
    numbers.sink(DiscardSink())
    result = flow.run(workers=workers, dead_letters=tmp_path)
    assert len(letters_in(tmp_path)) == 2
    assert (result.metrics.records_in, result.metrics.records_out) == (200, 198)


def test_what_a_job_has_skipped_before_it_failed_is_there(tmp_path: Path) -> None:
    flow = sw.Pipeline()
    numbers = flow.from_collection([97, 1, 0]).map(no_ninety_seventh).on_error("skip")
    numbers.map(lambda n: n).disable_chaining().print()
    flow.from_collection([1]).map(lambda n: n / 0).print()
    with pytest.raises(ZeroDivisionError):
        flow.run(dead_letters=tmp_path / "dead", batch_size=1)
    assert not list(tmp_path.glob("dead/*.open"))


# ---- back again ------------------------------------------------------------------------------------------------


def parsed(text: str) -> int:
    return int(text)


def test_a_record_goes_into_the_step_that_skipped_it_with_its_timestamp(tmp_path: Path) -> None:
    strict = True

    def parse(text: str) -> int:
        return int(text if strict else text.strip("?"))

    def half(value: int) -> int:
        if strict and value % 2:
            raise ValueError("odd")
        return value // 2

    flow = sw.Pipeline("halves", parallelism=2)
    text = flow.from_collection(["2", "3", "4?", "5?"], timestamp=lambda t: 100 + int(t[0])).name("text")
    numbers = text.rebalance().map(parse).on_error("skip")
    halves = numbers.key_by(lambda n: n % 3).process(lambda n, ctx: [(half(n), ctx.timestamp())]).on_error("skip")
    out = halves.collect()
    other = text.map(str.upper).collect()

    flow.run(dead_letters=tmp_path)
    assert list(out) == [(1, 102)]
    letters = letters_in(tmp_path)
    assert sorted(letter.value() for letter in letters if letter.key is None) == ["4?", "5?"]

    strict = False
    again = replaying(flow, letters, Settings())
    again.run(dead_letters=tmp_path / "still")
    assert sorted(out) == [(1, 103), (2, 104), (2, 105)]
    assert list(other) == [], "what is not behind a step that skipped does not run"
    assert not (tmp_path / "still").exists() or letters_in(tmp_path / "still") == []
    flow.run()
    assert sorted(other) == ["2", "3", "4?", "5?"], "the pipeline itself is as it was"


def test_a_replay_leaves_the_files_of_the_running_job_alone(tmp_path: Path) -> None:
    strict = True

    def parse(text: str) -> int:
        return int(text if strict else text.strip("?"))

    def beside(source: Source[str], out: Path) -> sw.Pipeline:
        flow = sw.Pipeline("beside")
        numbers = flow.source(source).map(parse).on_error("skip").uid("numbers")
        numbers.sink(FilesSink.json_lines(out, append=True)).uid("out")
        return flow

    beside(CollectionSource(["2?"]), tmp_path / "before").run(dead_letters=tmp_path / "dead")
    out, source = tmp_path / "out", TestSource(["1", PAUSE, "3", EOF])
    flow = beside(source, out)
    with PipelineHarness(flow, checkpoint_interval="1h", restart="none") as harness:
        harness.run()
        assert list(out.glob(".part-*")), "the job has a file that is not complete"
        strict = False
        replaying(flow, letters_in(tmp_path / "dead"), Settings()).run(checkpoint_interval="1h")
        source.resume()
        harness.run_to_end()
    lines = [line for file in out.glob("part-*") for line in file.read_text().split()]
    assert sorted(lines) == ["1", "2", "3"]


def test_replays_at_the_same_time_leave_each_other_s_files_alone(tmp_path: Path) -> None:
    strict, out = True, tmp_path / "out"

    def parse(text: str) -> int:
        return int(text if strict else text.strip("?"))

    flow = sw.Pipeline("twice")
    numbers = flow.from_collection(["2?", "3?"]).map(parse).on_error("skip").uid("numbers")
    numbers.sink(FilesSink.json_lines(out, append=True)).uid("out")
    flow.run(dead_letters=tmp_path / "dead")
    strict = False
    one, other = letters_in(tmp_path / "dead")
    replay = replaying(flow, [one], Settings())
    with PipelineHarness(replay, checkpoint_interval="1h", restart="none") as harness:
        while not list(out.glob(".part-*")):
            assert harness.run_once()
        replaying(flow, [other], Settings()).run(checkpoint_interval="1h")
        harness.run_to_end()
    assert sorted(line for file in out.glob("part-*") for line in file.read_text().split()) == ["2", "3"]


def test_what_fails_again_is_skipped_again_under_the_same_uid(tmp_path: Path) -> None:
    flow = sw.Pipeline()
    numbers = flow.from_collection(["x"]).map(str).map(parsed).on_error("skip")
    numbers.print()
    flow.run(dead_letters=tmp_path)
    before = dead_letter_files(tmp_path)
    replaying(flow, letters_in(tmp_path), Settings()).run(dead_letters=tmp_path)
    delete_dead_letters(before, lambda letter: True)
    (letter,) = letters_in(tmp_path)
    assert letter.uid == flow.graph().nodes[2].uid
    replaying(flow, [letter], Settings())


def test_deleting_leaves_the_others(tmp_path: Path) -> None:
    flow = sw.Pipeline()
    flow.from_collection(["x", "y", "z"]).map(parsed).on_error("skip").print()
    flow.run(dead_letters=tmp_path)
    delete_dead_letters(dead_letter_files(tmp_path), lambda letter: letter.value() == "y")
    assert [letter.value() for letter in letters_in(tmp_path)] == ["x", "z"]


def dead_letter(value: object, **changes: Any) -> sw.DeadLetter:
    flow = sw.Pipeline("other")
    dead = flow.from_collection([value]).map(parsed).on_error("skip").dead_letters().collect()
    flow.run()
    return dead[0]


def test_a_step_that_is_gone_is_named() -> None:
    flow = sw.Pipeline("new")
    flow.from_collection(["x"]).map(str).print()
    with pytest.raises(
        sw.GraphError, match=r"'new' has no step with uid '(\w+)' any more; it was .*\.uid\('\1'\)"
    ):
        replaying(flow, [dead_letter("x")], Settings())


def test_a_step_with_another_stream_is_refused() -> None:
    flow = sw.Pipeline()
    numbers = flow.from_collection(["x"]).map(parsed).on_error("skip")
    letters = numbers.dead_letters().collect()
    other = flow.from_collection([1])
    numbers.connect(other).map(lambda n: n, lambda n: n).name("both").print()
    flow.run()
    with pytest.raises(
        sw.GraphError, match=r"'both' .* takes two streams, and none of the records gets into its input 2"
    ):
        replaying(flow, list(letters), Settings())


def test_a_step_in_a_loop_is_refused() -> None:
    flow = sw.Pipeline()
    loop = flow.from_collection([3]).iterate()
    less = loop.map(lambda n: 1 // n and n - 1).on_error("skip")
    letters = less.dead_letters().collect()
    loop.close_with(less)
    less.print()
    flow.run()
    assert [letter.record for letter in letters] == ["0"]
    with pytest.raises(sw.GraphError, match="inside the loop"):
        replaying(flow, list(letters), Settings())


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.dead.jsonl").write_text("{}\n")
    with pytest.raises(
        sw.ConnectorError, match=r"x\.dead\.jsonl, line 1: no dead letter: .*missing required field"
    ):
        letters_in(tmp_path)
    with pytest.raises(sw.ConnectorError, match="there is no directory"):
        dead_letter_files(tmp_path / "nowhere")


@pytest.mark.parametrize("line", [b'{"job": "\xff"}', b'{"job": ' + b"[" * 100_000], ids=["not utf-8", "too deep"])
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "x.dead.jsonl").write_bytes(line + b"\n")
    with pytest.raises(sw.ConnectorError, match=r"x\.dead\.jsonl, line 1: no dead letter: "):
        letters_in(tmp_path)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_error_with_half_a_surrogate_pair_becomes_a_letter(tmp_path: Path, workers: int) -> None:
    def refuse(text: str) -> str:
        raise ValueError(f"no {text}")

    flow = sw.Pipeline("halves")
    flow.from_collection(["a\ud800"]).map(refuse).on_error("skip").print()
    flow.run(workers=workers, dead_letters=tmp_path)
    [letter] = letters_in(tmp_path)
    assert letter.error == "ValueError: no a\\ud800"
    assert letter.data is not None
    assert pickle.loads(letter.data) == "a\ud800"


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    flow = sw.Pipeline()
    flow.from_collection(["x"]).map(parsed).on_error("skip").print()
    with pytest.raises(sw.ConnectorError, match=r"dead letters cannot be kept in .*file"):
        flow.run(dead_letters=tmp_path / "file")


# ---- timestamp assigners ------------------------------------------------------------------------------------


def stamped_source(flow: sw.Pipeline, values: list[Any]) -> sw.DataStream[Any]:
    strategy = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v: 10 // v)
    return flow.from_collection(values, watermark_strategy=strategy)


def test_a_source_skips_records_on_which_its_timestamp_assigner_raises() -> None:
    flow = sw.Pipeline()
    source = stamped_source(flow, [1, 0, 5, 0]).on_error("skip")
    kept, letters = source.collect(), source.dead_letters().collect()
    flow.run(batch_size=2)
    assert list(kept) == [1, 5]
    assert [letter.value() for letter in letters] == [0, 0]
    assert letters[0].error.startswith("ZeroDivisionError")
    assert letters[0].step == "source(CollectionSource)"


def test_a_source_may_skip_all_of_them() -> None:
    flow = sw.Pipeline()
    source = stamped_source(flow, [0, 0, 0])
    kept, letters = source.collect(), source.dead_letters().collect()
    flow.run(on_error="skip")
    assert (list(kept), len(letters)) == ([], 3)


def test_a_source_skips_no_more_than_it_may_and_names_the_record() -> None:
    flow = sw.Pipeline()
    source = stamped_source(flow, ["a", 0, 1]).on_error("skip", max=1)
    source.collect()
    with pytest.raises(ZeroDivisionError) as caught:
        flow.run()
    assert "record: 0" in caught.value.__notes__
    assert "in step 'source(CollectionSource)'" in " ".join(caught.value.__notes__)


def test_without_it_the_job_fails_with_step_and_record() -> None:
    flow = sw.Pipeline()
    stamped_source(flow, [1, 0]).collect()
    with pytest.raises(ZeroDivisionError) as caught:
        flow.run()
    assert "record: 0" in caught.value.__notes__


def test_a_source_without_an_assigner_cannot_skip() -> None:
    source = sw.Pipeline().from_collection([1])
    with pytest.raises(sw.GraphError, match="cannot skip records"):
        source.on_error("skip")


def test_what_a_source_has_skipped_can_be_replayed() -> None:
    flow = sw.Pipeline()
    source = stamped_source(flow, [1, 0, 0]).on_error("skip")
    letters = source.dead_letters().collect()
    source.sink(DiscardSink())
    flow.run()
    repaired = sw.Pipeline()
    strategy = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v: 10 + v)
    again = repaired.from_collection([1, 2, 3], watermark_strategy=strategy).on_error("skip")
    kept = again.map(lambda v: v + 1).collect()
    replaying(repaired, list(letters), Settings()).run()
    assert list(kept) == [1, 1]


def _keyed(records: sw.DataStream[Any], step: str) -> sw.DataStream[Any]:
    keyed = records.key_by(lambda record: record["user"])
    if step == "connect":
        return keyed.connect(keyed).process(_Users())
    return {
        "count": keyed.count,
        "reduce": lambda: keyed.reduce(lambda one, other: other),
        "process": lambda: keyed.process(lambda record, ctx: [record["user"]]),
    }[step]()


class _Users(sw.CoProcessFunction[Any, Any, str]):
    """Returns who a record is about, whichever input it comes from."""

    def process_element1(self, value: Any, ctx: Any) -> list[str]:
        return [value["user"]]

    process_element2 = process_element1


@pytest.mark.parametrize("step", ["count", "reduce", "process", "connect"])
@pytest.mark.parametrize(
    "options",
    [{}, {"parallelism": 3}, {"parallelism": 3, "batch_size": 1}, {"parallelism": 2, "workers": 2}],
    ids=str,
)
def test_records_without_a_key_are_skipped_at_any_parallelism(options: dict[str, Any], step: str) -> None:
    records: list[Any] = [{"user": "ann"}, {}, {"user": "bob"}, {"name": "carl"}, {"user": "ann"}]
    flow = sw.Pipeline("users")
    results = _keyed(flow.from_collection(records, timestamp=lambda record: 7), step).on_error("skip")
    dead, out = results.dead_letters().collect(), results.collect()
    flow.run(**options)
    times = 2 if step == "connect" else 1
    assert len(out) == 3 * times
    assert sorted(map(str, (letter.value() for letter in dead))) == sorted(map(str, [{}, records[3]] * times))
    assert {letter.timestamp for letter in dead} == {7}


def test_without_skipping_the_key_fails_the_job() -> None:
    flow = sw.Pipeline("users", parallelism=2)
    _keyed(flow.from_collection([{"user": "ann"}, {}]), "count").print()
    with pytest.raises(KeyError, match="user"):
        flow.run()
