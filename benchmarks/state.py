"""State backends: keyed counts on the disk against a plain loop over RocksDB, snapshots, restores."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.harness import Plan, Row
from sluiceway.keygroups import KeyGroupRange, key_group, stable_hash
from sluiceway.serializers import serializer_for
from sluiceway.state import (
    BackendContext,
    KeyedSnapshot,
    KeyedStateBackend,
    StateBackend,
    StateTable,
    ValueStateDescriptor,
)
from sluiceway_memory._backend import MemoryStateBackend

__all__ = ["measure"]

KEYS = 1_000_000
RECORDS = 2_000_000
BATCH = 1_000
COUNT = ValueStateDescriptor("count", int)
WAYS = (("Zipf, exponent 1.2", 1.2, 10.0), ("Zipf, exponent 1", 1.0, None), ("uniform", 0.0, 1.0))
ROWS = (
    "pause for a snapshot",
    "making the snapshot beside the processing",
    "restore",
    "restore of half of the key groups",
)
MISSING = object()


def measure(plan: Plan) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as directory:
        place = Path(directory)
        if find_spec("rocksdict") is None:
            for way, *_ in WAYS:
                yield Row(f"keyed count on RocksDB, {way}", "x speed", (), note="rocksdict is not installed")
        else:
            yield from _counts(plan, place)
        yield from _snapshots(plan, "memory", MemoryStateBackend())
        if find_spec("rocksdict") is None:
            for row in ROWS:
                yield Row(f"{row}, rocksdb", "s", (), note="rocksdict is not installed")
        else:
            yield from _snapshots(plan, "rocksdb", _rocksdb(place))


def _rocksdb(place: Path, **changes: Any) -> StateBackend:
    from sluiceway_rocksdb._backend import RocksDBStateBackend
    from sluiceway_rocksdb._options import RocksDBOptions

    return RocksDBStateBackend(replace(RocksDBOptions(str(place)), **changes))


def _keyed(backend: StateBackend, groups: int = 128) -> KeyedStateBackend:
    return backend.create_keyed(BackendContext("count", 0, KeyGroupRange(0, groups), 128))


# -- counting -------------------------------------------------------------------------------------------------


def _counts(plan: Plan, place: Path) -> Iterator[Row]:
    from rocksdict import Options, Rdict

    keys, records = plan.size(KEYS, 20_000), plan.size(RECORDS, 20_000)
    random = Random(7)
    names = [f"key{i}" for i in range(keys)]
    random.shuffle(names)
    # A quarter of the objects fit into memory.
    backend = _rocksdb(place, cache=keys // 4 * 270)
    ours = _keyed(backend)
    table = ours.table(COUNT)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    plain = Rdict(str(place / "plain"), options)
    _count(table, names)
    _count_plainly(plain, names)
    for way, exponent, aim in WAYS:
        cumulated = list(itertools.accumulate(1 / i**exponent for i in range(1, keys + 1)))
        ratios, speeds = [], []
        for _ in range(plan.runs):
            chosen = random.choices(names, cum_weights=cumulated, k=records)
            _count(table, chosen[: records // 2])
            a = _timed(lambda chosen=chosen: _count(table, chosen[records // 2 :]))
            b = _timed(lambda chosen=chosen: _count_plainly(plain, chosen[records // 2 :]))
            ratios.append(b / a)
            speeds.append((records / 2 / a, records / 2 / b))
        speed, their = (statistics.median(column) for column in zip(*speeds, strict=True))
        yield Row(
            f"keyed count on RocksDB, {way}",
            "x speed",
            tuple(ratios),
            aim=aim,
            note=f"{speed:,.0f} records/s, by get and put {their:,.0f}; {keys:,} keys",
        )
    ours.close()
    plain.close()


def _count(table: StateTable, keys: list[str]) -> None:
    """As the step that counts does it: a batch at a time."""
    for begin in range(0, len(keys), BATCH):
        batch = keys[begin : begin + BATCH]
        entries = table.working(batch)
        get = entries.get
        for key in batch:
            count = get(key, MISSING)
            if count is MISSING:
                stable_hash(key)
                count = 0
            entries[key] = count + 1


def _count_plainly(database: Any, keys: list[str]) -> None:
    serializer = serializer_for(int)
    get, put, dumps, loads = database.get, database.put, serializer.dumps, serializer.loads
    for key in keys:
        place = key.encode()
        data = get(place)
        put(place, dumps(1 if data is None else loads(data) + 1))


# -- snapshots ------------------------------------------------------------------------------------------------


def _snapshots(plan: Plan, name: str, backend: StateBackend) -> Iterator[Row]:
    keys = plan.size(KEYS, 20_000)
    mine = next(f"key{i}" for i in range(1, keys, 10) if key_group(f"key{i}", 128) < 64)
    keyed = _keyed(backend)
    entries = keyed.table(COUNT).entries()
    for i in range(keys):
        entries[f"key{i}"] = 1
    pauses, whole = list[float](), list[float]()
    restores, halves = list[float](), list[float]()
    snapshot: KeyedSnapshot | None = None
    for round_ in range(max(plan.runs, 3)):
        for i in range(0, keys, 10):
            entries[f"key{i}"] = round_
        began = time.perf_counter()
        snapshot = keyed.snapshot()
        pauses.append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        files = snapshot.native.files if snapshot.native is not None else len(snapshot.groups)
        assert files
        whole.append(time.perf_counter() - began)
        for groups, seconds in ((128, restores), (64, halves)):
            other = _keyed(backend, groups)
            began = time.perf_counter()
            other.restore([snapshot])
            assert other.table(COUNT).entries()[mine] == 1
            seconds.append(time.perf_counter() - began)
            other.close()
        snapshot.release()
    keyed.close()
    aim = {"memory": 50.0, "rocksdb": 20.0}[name]
    note = f"{keys:,} keys"
    yield Row(f"{ROWS[0]}, {name}", "ms", tuple(pauses), aim=aim, note=note)
    yield Row(f"{ROWS[1]}, {name}", "s", tuple(whole), note=note)
    yield Row(f"{ROWS[2]}, {name}", "s", tuple(restores), note=note)
    yield Row(f"{ROWS[3]}, {name}", "s", tuple(halves), note=note)


def _timed(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
