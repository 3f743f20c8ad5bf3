"""Unaligned checkpoints complete while nothing moves, and what was in flight comes out once, wherever it goes."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from effort import diagonal

import sluiceway as sw
from sluiceway.api.replay import replaying
from sluiceway.checkpoint import CheckpointMetadata, find_checkpoints, load_metadata
from sluiceway.cli.app import app
from sluiceway.clock import SystemClock
from sluiceway.config.settings import Settings
from sluiceway.connector import Sink, SinkWriter, Wait, WriterContext
from sluiceway.connector.lib import dead_letter_files, read_dead_letters
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.engine import JobStatus
from sluiceway.errors import CheckpointError, CheckpointFailedError, ConfigurationError, StateError
from sluiceway.plugins import default_manager
from sluiceway.testing import FailOnce, KeySequence

KEYS = 12
COUNT = 60_000
UNALIGNED: dict[str, Any] = {"checkpoint_interval": "20ms", "checkpoint_unaligned": True}


class LockedSink(Sink[int]):
    """Writes numbers into a file for each writer, and takes none before another file is there."""

    def __init__(self, directory: Path, key: Path) -> None:
        self.directory = str(directory)
        self.key = str(key)

    def create_writer(self, context: WriterContext) -> SinkWriter[int]:
        return _LockedWriter(self, context)

    def numbers(self) -> list[list[int]]:
        return [list(map(int, file.read_text().split())) for file in sorted(Path(self.directory).iterdir())]


class _LockedWriter(SinkWriter[int]):
    def __init__(self, sink: LockedSink, context: WriterContext) -> None:
        self._sink = sink
        self._clock = context.clock
        os.makedirs(sink.directory, exist_ok=True)
        self._file = Path(sink.directory, str(context.subtask))
        self._file.touch()

    def blocked(self) -> Wait | None:
        return None if os.path.exists(self._sink.key) else Wait(until=self._clock.monotonic() + 0.01)

    def write(self, values: Sequence[int], timestamps: Sequence[int] | None) -> None:
        with self._file.open("a") as file:
            file.write("".join(f"{value}\n" for value in values))


def locked(sink: LockedSink, last: str = "rebalance", count: int = COUNT) -> sw.Pipeline:
    """Numbers that compare with their key's last one, on their way to a sink that may take none."""
    flow = sw.Pipeline("locked", max_parallelism=16)
    numbers = flow.source(GeneratorSource(count=count)).uid("numbers")
    counted = numbers.key_by(lambda n: n % KEYS).map(KeySequence(KEYS)).uid("counted")
    if last == "keyed":
        counted = counted.key_by(lambda n: n % KEYS).map(KeySequence(KEYS)).uid("again")
    getattr(counted, "rebalance" if last == "keyed" else last)().sink(sink).uid("sink")
    return flow


def completed(place: Path) -> list[CheckpointMetadata]:
    storage = default_manager().checkpoint_storage(str(place))
    found = []
    for directory in find_checkpoints(storage):
        with suppress(CheckpointError):  # deleted meanwhile
            found.append(load_metadata(storage, directory))
    return found


def in_flight(metadata: CheckpointMetadata) -> int:
    return sum(s.in_flight_size for v in metadata.vertices for s in v.subtasks)


def taken_while_blocked(flow: sw.Pipeline, place: Path, **options: Any) -> CheckpointMetadata:
    """Run it until three checkpoints have found as much in flight: nothing moves any more. Then cancel it."""

    async def go() -> None:
        async with await flow.start(checkpoints=place, **{**UNALIGNED, **options}) as handle:
            # Not for want of progress for some time: metrics of workers come twice a second, and on a machine
            # under load a process stands still for longer than that.
            found: dict[int, int] = {}
            while not (
                len(last := [found[number] for number in sorted(found)[-3:]]) == 3 and len({*last, 0}) == 2
            ):
                assert not handle.status.ended, handle.failures
                await asyncio.sleep(0.01)
                found.update((m.checkpoint_id, in_flight(m)) for m in completed(place))
            handle.cancel()
            assert (await handle.result()).status is JobStatus.CANCELED

    asyncio.run(go())
    return max(completed(place), key=lambda metadata: metadata.checkpoint_id)


SHM = {"workers": 2, "transport": "shm"}
ZMQ = {"workers": 2, "transport": "zmq"}
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("options", "timeout"),
    [
        pytest.param({}, "0ms", id="in one process, at once"),
        pytest.param({}, "50ms", id="in one process, in time"),
        pytest.param(SHM, "0ms", id="shared memory, at once", marks=slow),
        pytest.param(SHM, "50ms", id="shared memory, in time"),
        pytest.param(ZMQ, "0ms", id="zmq, at once", marks=slow),
        pytest.param(ZMQ, "50ms", id="zmq, in time", marks=slow),
    ],
)
def test_it_completes_while_nothing_moves_and_everything_comes_out_once(
    options: dict[str, Any], timeout: str, tmp_path: Path
) -> None:
    sink = LockedSink(tmp_path / "out", tmp_path / "key")
    found = taken_while_blocked(
        locked(sink, "keyed"), tmp_path / "kept", parallelism=2, checkpoint_aligned_timeout=timeout, **options
    )
    assert in_flight(found) > 1000
    assert sink.numbers() == [[], []]
    (tmp_path / "key").touch()
    locked(sink, "keyed").run(from_checkpoint=tmp_path / "kept", parallelism=2, **options)
    assert sorted(n for numbers in sink.numbers() for n in numbers) == list(range(COUNT))


def test_it_turns_unaligned_in_time_while_the_wall_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter(range(10**13, 0, -60_000))
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: next(readings))
    sink = LockedSink(tmp_path / "out", tmp_path / "key")
    found = taken_while_blocked(
        locked(sink, "keyed"), tmp_path / "kept", parallelism=2, checkpoint_aligned_timeout="50ms", restart="none"
    )
    assert in_flight(found) > 1000


@pytest.mark.parametrize(
    "options", [{}, pytest.param(SHM, marks=slow), pytest.param(ZMQ, marks=slow)], ids=["alone", "shm", "zmq"]
)
def test_an_aligned_one_does_not(options: dict[str, Any], tmp_path: Path) -> None:
    sink = LockedSink(tmp_path / "out", tmp_path / "key")
    aligned = {"checkpoint_interval": "20ms", "checkpoint_timeout": "500ms", "restart": "none"}
    with pytest.raises(CheckpointFailedError, match=r"after 0.5 s \d of 8 subtasks had not acknowledged it"):
        locked(sink, "keyed").run(parallelism=2, **aligned, **options)


@pytest.mark.parametrize(
    ("subtasks", "last"),
    diagonal([(2, 3), (3, 1), (1, 2), (2, 2)], ["rebalance", "shuffle", "global_", "keyed"]),
)
def test_what_was_in_flight_goes_to_who_has_the_state(
    subtasks: tuple[int, int], last: str, tmp_path: Path
) -> None:
    before, after = subtasks
    sink = LockedSink(tmp_path / "out", tmp_path / "key")
    found = taken_while_blocked(locked(sink, last), tmp_path / "kept", parallelism=before)
    assert in_flight(found) > 1000
    (tmp_path / "key").touch()
    # KeySequence raises at once where a key's numbers come to another subtask, or in another order.
    locked(sink, last).run(from_checkpoint=tmp_path / "kept", parallelism=after)
    assert sorted(n for numbers in sink.numbers() for n in numbers) == list(range(COUNT))


def test_what_is_in_flight_again_is_kept_again(tmp_path: Path) -> None:
    sink = LockedSink(tmp_path / "out", tmp_path / "key")
    place = tmp_path / "kept"
    first = taken_while_blocked(locked(sink), place, parallelism=2)
    second = taken_while_blocked(locked(sink), tmp_path / "more", parallelism=3, from_checkpoint=place)
    assert in_flight(second) >= in_flight(first) - 1000
    assert {part.stage for v in second.vertices for s in v.subtasks for part in s.in_flight} >= {0, 1}
    (tmp_path / "key").touch()
    locked(sink).run(from_checkpoint=tmp_path / "more", parallelism=2)
    assert sorted(n for numbers in sink.numbers() for n in numbers) == list(range(COUNT))


def test_pointwise_and_broadcast_edges_align(tmp_path: Path) -> None:
    sink = LockedSink(tmp_path / "out", tmp_path / "key")
    for last in ("rescale", "broadcast"):
        with pytest.raises(CheckpointFailedError, match="had not acknowledged it"):
            locked(sink, last).run(
                parallelism=2, **UNALIGNED, checkpoint_timeout="300ms", restart="none", chaining=False
            )


def test_a_pipeline_without_the_edge_is_refused_unless_that_is_allowed(tmp_path: Path) -> None:
    sink = LockedSink(tmp_path / "out", tmp_path / "key")
    taken_while_blocked(locked(sink, "keyed"), tmp_path / "kept", parallelism=2)
    (tmp_path / "key").touch()
    flow = sw.Pipeline("locked", max_parallelism=16)
    numbers = flow.source(GeneratorSource(count=COUNT)).uid("numbers").key_by(lambda n: n % KEYS)
    other = numbers.map(KeySequence(KEYS)).uid("counted").rebalance().map(lambda n: n).uid("other")
    other.key_by(lambda n: n % KEYS).map(KeySequence(KEYS)).uid("again").rebalance().sink(sink).uid("sink")
    wanted = (
        "the checkpoint was unaligned and has records that were in flight from 'counted' to 'again', and job"
        " 'locked' has no such edge between two tasks: go on with the pipeline that it was taken of and take a"
        " savepoint of that, or leave the records behind, with allow-dropped-state"
    )
    with pytest.raises(StateError, match=re.escape(wanted)):
        flow.run(from_checkpoint=tmp_path / "kept", parallelism=2)


def test_an_edge_that_would_be_chained_is_restored_without_chaining(tmp_path: Path) -> None:
    sink = LockedSink(tmp_path / "out", tmp_path / "key")

    def spread() -> sw.Pipeline:
        flow = sw.Pipeline("spread", max_parallelism=16)
        numbers = flow.source(GeneratorSource(count=COUNT)).uid("numbers").set_parallelism(1)
        numbers.map(abs).uid("mapped").sink(sink).uid("sink")
        return flow

    found = taken_while_blocked(spread(), tmp_path / "kept", parallelism=2)
    assert in_flight(found) > 1000
    (tmp_path / "key").touch()
    wanted = (
        "the checkpoint was unaligned and has records that were in flight from 'numbers' to 'mapped', and job"
        " 'spread' runs these steps in one task, as their parallelism is the same now: turn chaining off"
        " (--no-chaining) until the job has taken a savepoint, or leave the records behind, with"
        " allow-dropped-state"
    )
    with pytest.raises(StateError, match=re.escape(wanted)):
        spread().run(from_checkpoint=tmp_path / "kept", parallelism=1)
    spread().run(from_checkpoint=tmp_path / "kept", parallelism=1, chaining=False)
    assert sorted(n for numbers in sink.numbers() for n in numbers) == list(range(COUNT))


def test_a_replay_of_dead_letters_leaves_what_was_in_flight_to_the_job(tmp_path: Path) -> None:
    strict = True

    def check(number: int) -> int:
        if strict and number < 3:
            raise ValueError("too small")
        return number

    def checked(sink: LockedSink) -> sw.Pipeline:
        flow = sw.Pipeline("checked")
        numbers = flow.source(GeneratorSource(count=COUNT)).uid("numbers").rebalance()
        numbers.map(check).on_error("skip").uid("check").rebalance().sink(sink).uid("sink")
        return flow

    out, key, kept, dead = (tmp_path / name for name in ("out", "key", "kept", "dead"))
    found = taken_while_blocked(checked(LockedSink(out, key)), kept, parallelism=2, dead_letters=dead)
    assert in_flight(found) > 1000
    letters = list(read_dead_letters(dead_letter_files(dead)))
    assert sorted(letter.value() for letter in letters) == [0, 1, 2]
    strict = False
    key.touch()
    replayed = LockedSink(tmp_path / "replayed", key)
    replaying(checked(replayed), letters, Settings()).run(from_checkpoint=kept, parallelism=2)
    assert sorted(n for numbers in replayed.numbers() for n in numbers) == [0, 1, 2]
    job = checked(LockedSink(out, key))
    job.run(from_checkpoint=kept, parallelism=2, allow_dropped_state=True)
    assert sorted(n for numbers in LockedSink(out, key).numbers() for n in numbers) == list(range(3, COUNT))


def test_commands_tell_what_was_in_flight_and_damage_is_found(tmp_path: Path) -> None:
    sink = LockedSink(tmp_path / "out", tmp_path / "key")
    place = tmp_path / "kept"
    found = taken_while_blocked(locked(sink), place, parallelism=2)
    (directory,) = place.glob(f"*/chk-{found.checkpoint_id}")
    shown = CliRunner().invoke(app, ["checkpoints", "show", str(directory)])
    assert shown.exit_code == 0, shown.output
    assert re.search(r"IN FLIGHT FROM +TO +SUBTASK +WAITED +BATCHES +SIZE", shown.output)
    for subtask in (1, 2):
        assert re.search(rf"counted +sink +{subtask} +to be processed +\d+ +[\d.]+ (B|KiB)", shown.output)
    told = CliRunner().invoke(app, ["checkpoints", "history", "--json", "--subtasks", str(directory)])
    assert told.exit_code == 0, told.output
    last = json.loads(told.output)[0]["checkpoints"][-1]
    assert last["in_flight"] == sum(s["in_flight"] for s in last["subtasks"]) == in_flight(found)
    part = next(part for v in found.vertices for s in v.subtasks for part in s.in_flight)
    file = directory / part.elements.file
    data = bytearray(file.read_bytes())
    data[part.elements.offset + 20] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"{part.elements.file} is damaged: the checksum of the"):
        locked(sink).run(from_checkpoint=directory, parallelism=2)


def test_savepoints_are_aligned(tmp_path: Path) -> None:
    sink = LockedSink(tmp_path / "out", tmp_path / "key")
    (tmp_path / "key").touch()
    flow = sw.Pipeline("open", max_parallelism=16)
    numbers = flow.source(GeneratorSource(count=1_000_000, rate=20_000)).uid("numbers")
    numbers.rebalance().sink(sink).uid("sink")

    async def go() -> str:
        async with await flow.start(**UNALIGNED, checkpoints=tmp_path / "kept", parallelism=2) as handle:
            while handle.metrics().records_out < 1_000:
                await asyncio.sleep(0.005)
            return await handle.savepoint(tmp_path / "saved")

    location = Path(asyncio.run(go()))
    (found,) = completed(location.parent)
    assert in_flight(found) == 0
    assert b'"version":1' in (location / "metadata.json").read_bytes()[:60]


@pytest.mark.parametrize(
    ("workers", "timeout"),
    [pytest.param(0, "0ms", marks=slow), (0, "2ms"), (2, "0ms"), pytest.param(2, "2ms", marks=slow)],
)
def test_failures_at_any_moment(workers: int, timeout: str, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    sink = LockedSink(tmp_path / "out", tmp_path / "key")
    (tmp_path / "key").touch()
    flow = sw.Pipeline("failing", max_parallelism=16)
    numbers = flow.source(GeneratorSource(count=COUNT)).uid("numbers")
    counted = numbers.key_by(lambda n: n % KEYS).map(KeySequence(KEYS)).uid("counted")
    failing = FailOnce(marks, at=(COUNT // 4, COUNT // 2 + 1), in_snapshots=(4,))
    again = counted.rebalance().map(failing).uid("failing").key_by(lambda n: n % KEYS)
    again.process(Once()).uid("once").rebalance().sink(sink).uid("sink")
    result = flow.run(
        parallelism=2,
        workers=workers,
        **{**UNALIGNED, "checkpoint_interval": "5ms", "checkpoint_aligned_timeout": timeout},
        checkpoints=tmp_path / "kept",
        checkpoint_tolerated_failures=3,
        restart="fixed-delay:9:1ms",
    )
    assert result.status is JobStatus.FINISHED
    assert len(list(marks.iterdir())) >= 2, "it has failed"
    assert {n for numbers in sink.numbers() for n in numbers} == set(range(COUNT)), "at least once"


class Once(sw.KeyedProcessFunction[int, int, int]):
    """Fails at a number that it has had."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.had = context.get_map_state(sw.MapStateDescriptor("had", bool))

    def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> list[int]:
        assert not self.had.contains(value), f"{value} has come twice"
        self.had.put(value, True)
        return [value]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"checkpoint_unaligned": True, "checkpoint_mode": "at-least-once"},
            "checkpoint-unaligned (the argument checkpoint_unaligned) needs checkpoint-mode exactly-once, and it"
            " is at-least-once (the argument checkpoint_mode): without alignment there is nothing to overtake",
        ),
        (
            {"checkpoint_unaligned": True, "checkpoint_max_concurrent": 2},
            "checkpoint-unaligned (the argument checkpoint_unaligned) needs checkpoint-max-concurrent 1, and it is"
            " 2 (the argument checkpoint_max_concurrent): what is in flight is kept for one checkpoint at a time",
        ),
        (
            {"checkpoint_aligned_timeout": "1s"},
            "checkpoint-aligned-timeout (the argument checkpoint_aligned_timeout) says when checkpoints become"
            " unaligned, and checkpoint-unaligned is false: set that to true, or leave the timeout away",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    flow = locked(LockedSink(tmp_path / "out", tmp_path / "key"))
    with pytest.raises(ConfigurationError) as refused:
        flow.run(checkpoint_interval="1s", **options)
    assert says in str(refused.value)
