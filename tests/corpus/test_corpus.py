"""What earlier versions have saved goes on in this one: all of it, on any backend, at any parallelism."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sluiceway.checkpoint import CheckpointMetadata, find_checkpoints, load_metadata
from sluiceway.connector.lib.dead_letter_files import dead_letter_files, read_dead_letters
from sluiceway.plugins import default_manager

HERE = Path(__file__).parent
KINDS = ("savepoint", "memory", "rocksdb", "changes", "unaligned")
FORMATS = {"rocksdb": {"rocksdb 1"}, "changes": {"rocksdb 2"}}
VERSIONS = sorted(place.name for place in HERE.iterdir() if (place / "savepoint").is_dir())


@pytest.fixture(scope="module")
def job() -> ModuleType:
    """The module that has written the corpora."""
    spec = importlib.util.spec_from_file_location("corpus_job", HERE / "write.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["corpus_job"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def saved(version: str, kind: str) -> CheckpointMetadata:
    storage = default_manager().checkpoint_storage(str(HERE / version / kind / "kept"))
    (directory,) = find_checkpoints(storage)
    return load_metadata(storage, directory)


def test_there_is_a_corpus() -> None:
    assert VERSIONS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_corpus_has_state_of_every_kind(version: str, kind: str) -> None:
    """Without that, nothing would be proved by restoring it."""
    metadata = saved(version, kind)
    assert metadata.written_by
    operators = [o for v in metadata.vertices for s in v.subtasks for o in s.operators]
    keyed = [(o.uid, o.keyed) for o in operators if o.keyed is not None]
    assert {k.native.format for _, k in keyed if k.native} == FORMATS.get(kind, set())
    kinds = {(table.kind, table.expires) for _, k in keyed for table in k.tables}
    assert kinds >= {(name, False) for name in ("value", "list", "map", "reducing", "aggregating")}
    assert kinds >= {(name, True) for name in ("value", "list", "map")}
    assert {uid for uid, _ in keyed} >= {
        "everything",
        "tumbling",
        "sliding",
        "session",
        "sevens",
        "reduce",
        "limited",
    }
    assert {kept.mode for o in operators for kept in o.lists if kept.elements} == {"list", "union list"}
    assert any(o.splits for o in operators if o.uid == "numbers")
    assert any(o.broadcast for o in operators if o.uid == "limited")
    if kind != "unaligned":
        assert any(o.pending for o in operators if o.uid == "async"), "records were under way"
    assert sum(bool(o.committables) for o in operators) == 2, "of the transactions, and of the dead letters"
    assert any(s.finished for v in metadata.vertices for s in v.subtasks), "one source had come to its end"
    assert metadata.enumerators
    in_flight = [v.name for v in metadata.vertices for s in v.subtasks if s.in_flight_size]
    assert bool(in_flight) == (kind == "unaligned"), in_flight


@pytest.mark.parametrize(
    ("backend", "parallelism"),
    [("memory", 3), ("rocksdb", 2), pytest.param("rocksdb", 1, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_all_of_it_goes_on(
    version: str, kind: str, backend: str, parallelism: int, job: Any, tmp_path: Path
) -> None:
    place = tmp_path / kind
    shutil.copytree(HERE / version / kind, place)
    job.COMMITTED.clear()
    out: list[tuple[str, int, Any]] = []
    result = job.pipeline(out).run(
        from_checkpoint=place / "kept",
        state_backend=backend,
        parallelism=parallelism,
        checkpoint_interval="1h",
        dead_letters=place / "letters",
        restart="none",
        # Records that were in flight on an edge need it: at another parallelism it might be inside a chain.
        chaining=kind != "unaligned",
    )
    assert result.metrics.records_in > 0
    found: dict[str, dict[int, Any]] = defaultdict(dict)
    for what, key, value in out:
        found[what][key] = value
    numbers = {key: list(range(key, job.COUNT, job.KEYS)) for key in range(job.KEYS)}
    hundreds = {key: mine[99::100] for key, mine in numbers.items()}
    last = {key: mine[-1] for key, mine in numbers.items()}
    read = max(min(s for what, s, _ in out if what == "operator list"), 0)
    assert read >= 100, "it went on, and did not begin"
    assert found["value"] == {
        key: (400, job.Reading(last[key], str(last[key]), ["a", "b"]), Fraction(key, 7)) for key in numbers
    }
    assert found["list"] == hundreds
    digits = {key: sorted({str(n % 10): n for n in mine}.items()) for key, mine in numbers.items()}
    assert found["map"] == digits
    assert found["reducing"] == {key: sum(mine) for key, mine in numbers.items()}
    assert found["aggregating"] == {key: Fraction(sum(mine), 400) for key, mine in numbers.items()}
    assert found["lasting"] == {key: (400, hundreds[key]) for key in numbers}
    assert found["lasting map"] == {
        key: [(n, (i + 1) * 100) for i, n in enumerate(hundreds[key])] for key in numbers
    }
    assert found["short"] == dict.fromkeys(numbers), "its time to live was over long ago"
    assert found["fired"] == dict.fromkeys(numbers, 4)
    assert found["processing time"] == dict.fromkeys(numbers, 1)
    totals = sorted(sum(mine) for mine in numbers.values())
    assert sorted(value for what, _, value in out if what == "tumbling") == [Fraction(t, 400) for t in totals]
    assert sorted(value for what, _, value in out if what == "sliding") == sorted(totals * 2)
    assert found["session"] == {key: (400, key * 10) for key in numbers}
    assert found["reduce"] == {key: sum(mine) for key, mine in numbers.items()}
    sevens = [(key, value) for what, key, value in out if what == "count window"]
    for key, mine in numbers.items():
        windows = [values for k, values in sevens if k == key]
        assert windows, "of each key"
        assert windows == [mine[i : i + 7] for i in range(0, 399, 7)][-len(windows) :]
    assert found["operator list"][1900] == list(range(0, 2000, 100))
    assert found["union list"][1900] == ["of the first run"]
    assert set(found["limit"].values()) == {7}
    letters = sorted(skipped(place / "letters"))
    assert letters == list(range(0, job.COUNT, 97))
    committed = sorted(n for numbers in job.COMMITTED.values() for n in numbers)
    assert committed == list(range(committed[0], job.COUNT)), "each number once"
    assert committed[0] == 0 if kind == "savepoint" else committed[0] < read, "what was ready is committed"


def skipped(place: Path) -> list[int]:
    return [int(letter.record) for letter in read_dead_letters(dead_letter_files(place))]
