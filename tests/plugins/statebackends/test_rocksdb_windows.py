"""Windows over the RocksDB state backend, which has their keys in another order after each snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import sluiceway as sw
import sluiceway_rocksdb._backend
from sluiceway.operators import keyed_timers as timed
from sluiceway.operators.windows import sliding, tumbling
from sluiceway.testing import OperatorHarness
from sluiceway.windows import (
    EventTimeSessionWindows,
    EventTimeTrigger,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)

END = 2**63 - 1
KEYS = 300
TUMBLING, SLIDING = TumblingEventTimeWindows.of(100), SlidingEventTimeWindows.of(100, 50)


@pytest.fixture(autouse=True)
def _hardly_any_memory_and_small_bursts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SLUICEWAY_ROCKSDB_DIRECTORY", str(tmp_path / "databases"))
    monkeypatch.setenv("SLUICEWAY_ROCKSDB_CACHE", "1")
    monkeypatch.setattr(sluiceway_rocksdb._backend, "_LEAST", 500)
    for module in (timed, tumbling, sliding):
        monkeypatch.setattr(module, "BURST", 20)
    return


def harness(windows: Any, *, lateness: int = 0, trigger: Any = None, **options: Any) -> OperatorHarness:
    def build(stream: Any) -> Any:
        windowed = stream.key_by(lambda pair: pair[0]).window(windows).allowed_lateness(lateness)
        if trigger is not None:
            windowed = windowed.trigger(trigger)
        return windowed.reduce(lambda a, b: (a[0], a[1] + b[1]))

    return OperatorHarness(build, **options)


def records(seed: int) -> tuple[list[tuple[str, int]], list[int]]:
    random = Random(seed)
    pairs = [(f"key{random.randrange(KEYS)}", random.randrange(1, 100)) for _ in range(2_000)]
    return pairs, [random.randrange(200) for _ in pairs]


@pytest.mark.parametrize(
    ("windows", "more"),
    [
        pytest.param(TUMBLING, {}, id="tumbling"),
        pytest.param(TUMBLING, {"lateness": 50}, id="tumbling, late"),
        pytest.param(SLIDING, {}, id="sliding"),
        pytest.param(TUMBLING, {"trigger": PurgingTrigger.of(EventTimeTrigger.create())}, id="general"),
        pytest.param(EventTimeSessionWindows.with_gap(10), {}, id="sessions"),
    ],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_snapshots_while_windows_are_evaluated_neither_lose_nor_double(
    windows: Any, more: dict[str, Any], seed: int
) -> None:
    random = Random(seed)
    with harness(windows, **more) as whole:
        whole.process_batch(*records(seed))
        whole.process_watermark(END)
        expected = sorted(whole.records)
    with harness(windows, state_backend="rocksdb", **more) as h:
        values, stamps = records(seed)
        for begin in range(0, len(values), 400):
            dict(h.snapshot().operators[0].keyed.groups)
            h.process_batch(values[begin : begin + 400], stamps[begin : begin + 400])
        operator: Any = h._subtasks[0].operators[0]
        operator.control(sw.elements.Watermark(END))
        taken = []
        while operator.has_work:
            if not random.randrange(3):
                before, snapshot = list(h.records), h.snapshot()
                dict(snapshot.operators[0].keyed.groups)  # so that it is in the database from here on
                taken.append((before, snapshot))
            operator.work()
        assert sorted(h.records) == expected
    assert len(taken) >= 2
    for before, snapshot in taken[:: len(taken) // 2]:
        for backend in ("rocksdb", "memory"):
            with harness(windows, state_backend=backend, restored=snapshot, **more) as h:
                h.process_watermark(END)
                assert sorted(before + h.records) == expected
