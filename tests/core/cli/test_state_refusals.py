"""State that does not fit the job that wants to begin with it: told before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.operators.keyed_timers import DUE
from sluiceway.savepoint import write
from sluiceway.windows.base import TimeWindow

FLOW = """
import sluiceway as sw

{before}


def noticed(number):
    open("ran", "a").close()
    return number


flow = sw.Pipeline("numbers")
numbers = flow.from_collection(range(10)).map(noticed).uid("numbers").key_by(lambda n: n % 3)
numbers.{step}.uid("total").for_each(lambda n: None).uid("out")
"""
FUNCTION = """
{outside}


class Total(sw.KeyedProcessFunction):
    def open(self, context):
        self.total = context.get_state({descriptor})

    def process_element(self, value, ctx):
        self.total.update(value)
        yield value
"""
SUMS = "reduce(lambda a, b: a + b)"
everywhere = pytest.mark.parametrize("workers", [(), ("--workers", "1")], ids=["here", "workers"])
WINDOWS = "window(sw.windows.TumblingProcessingTimeWindows('1d')).{}"


@pytest.fixture
def flow(write: Callable[..., Path], place: Path) -> Callable[..., str]:
    """``flow(step)``: the name of a file with a pipeline; before its first record is read there is no ``ran``."""

    def make(step: str, before: str = "", name: str = "flow.py") -> str:
        write(name, FLOW.format(step=step, before=before).strip() + "\n")
        return name

    return make


@pytest.fixture
def kept(flow: Callable[..., str], sluiceway: Any, place: Path) -> Callable[..., str]:
    """Runs a first version, and returns where its checkpoint is."""

    def run(step: str, before: str = "") -> str:
        target = flow(step, before, "old.py")
        done = sluiceway("run", "--checkpoint-interval", "1h", "--checkpoints", "kept", "--quiet", target)
        assert done.exit_code == 0, done.stderr
        (place / "ran").unlink()
        return "kept"

    return run


def refused(sluiceway: Any, place: Path, *arguments: str) -> str:
    """What is said where a job is refused before it runs."""
    result = sluiceway("run", "--quiet", *arguments)
    assert result.exit_code != 0
    assert not (place / "ran").exists()
    return str(result.stderr)


@everywhere
def test_a_step_of_another_kind(
    kept: Any, flow: Any, sluiceway: Any, place: Path, workers: tuple[str, ...]
) -> None:
    kept(SUMS)
    new = flow("count()")
    said = refused(sluiceway, place, *workers, "--from", "kept", new)
    assert "state 'reduce' of step 'total' would be lost: what the step is now knows nothing of it" in said
    assert "as the reduce step that it was did" in said
    assert "leave the state behind with allow-dropped-state" in said
    done = sluiceway("run", *workers, "--quiet", "--allow-dropped-state", "--from", "kept", new)
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        (SUMS, "process(Total())", "reduce"),
        ("count()", "process(Total())", "aggregate"),
        ("process(Total())", "count()", "total"),
        ("process(Total())", WINDOWS.format("reduce(max)"), "total"),
        (SUMS, WINDOWS.format("reduce(max)"), "reduce"),
    ],
)
def test_kinds(kept: Any, flow: Any, sluiceway: Any, place: Path, old: str, new: str, lost: str) -> None:
    before = FUNCTION.format(outside="", descriptor='sw.ValueStateDescriptor("total", int)')
    kept(old, before)
    assert f"state {lost!r} of step 'total' would be lost" in refused(
        sluiceway, place, "--from", "kept", flow(new, before)
    )


def test_a_function_that_takes_the_state_over_is_let(kept: Any, flow: Any, sluiceway: Any, place: Path) -> None:
    kept(SUMS)
    before = FUNCTION.format(outside='REDUCED = sw.ValueStateDescriptor("reduce")', descriptor="REDUCED")
    done = sluiceway("run", "--quiet", "--from", "kept", flow("process(Total())", before))
    assert done.exit_code == 0, done.stderr


def test_tables_with_nothing_in_them_are_no_loss(place: Path, flow: Any, sluiceway: Any) -> None:
    with write(str(place / "first")) as savepoint:
        savepoint.put("total", sw.ValueStateDescriptor("gone", int), [])
        savepoint.put("total", sw.ValueStateDescriptor("aggregate"), [(1, 5)], key=0, value=1)
    done = sluiceway("run", "--quiet", "--from", "first", flow("count()"))
    assert done.exit_code == 0, done.stderr


@everywhere
@pytest.mark.parametrize("seen", [True, False], ids=["can be seen", "made in open()"])
def test_a_type_that_does_not_fit(
    place: Path, flow: Any, sluiceway: Any, seen: bool, workers: tuple[str, ...]
) -> None:
    with write(str(place / "first")) as savepoint:
        savepoint.put("total", sw.ValueStateDescriptor("total", str), [(1, "x")], key=0, value=1)
    made = 'sw.ValueStateDescriptor("total", int)'
    before = FUNCTION.format(outside=f"TOTAL = {made}" if seen else "", descriptor="TOTAL" if seen else made)
    options = ("--from", "first", "--restart", "fixed-delay:1000:1h", "--parallelism", "1")
    result = sluiceway("run", "--quiet", *workers, *options, flow("process(Total())", before))
    assert result.exit_code == 2
    assert "state 'total' of operator 'total' cannot be restored" in result.stderr
    assert "the snapshot holds a value table of str" in result.stderr
    assert "the job declares a value table of int" in result.stderr
    assert "Declare it as it was, give its descriptor migrate=" in result.stderr
    if seen:
        assert not (place / "ran").exists()


@pytest.mark.parametrize(
    ("step", "goes"),
    [
        ("reduce(max)", True),
        ("trigger(sw.windows.CountTrigger(5)).reduce(max)", True),
        ("process(Last())", False),
    ],
)
def test_windows(place: Path, flow: Any, sluiceway: Any, step: str, goes: bool) -> None:
    window = TimeWindow(0, 86_400_000)
    with write(str(place / "first")) as savepoint:
        reduced = sw.ValueStateDescriptor("windows: reduced")
        savepoint.put("total", reduced, [(1, 5, window)], key=0, value=1, namespace=2)
    before = "class Last(sw.ProcessWindowFunction):\n    def process(self, key, ctx, elements):\n        return ()"
    result = sluiceway("run", "--quiet", "--from", "first", flow(WINDOWS.format(step), before))
    assert (result.exit_code == 0) is goes, result.stderr
    if not goes:
        assert "step 'total' cannot go on with what it has in 'windows: reduced'" in result.stderr
        assert not (place / "ran").exists()


@pytest.mark.parametrize("new", ["map(str)", "flat_map(lambda n: [n])", "rebalance().process(lambda n, ctx: [n])"])
def test_a_step_that_has_no_key_any_more(kept: Any, flow: Any, sluiceway: Any, place: Path, new: str) -> None:
    before = FUNCTION.format(outside="", descriptor='sw.ValueStateDescriptor("total", int)')
    kept("process(Total())", before)
    unkeyed = Path(flow(new))
    unkeyed.write_text(unkeyed.read_text().replace(".key_by(lambda n: n % 3)", ""))
    said = refused(sluiceway, place, "--from", "kept", str(unkeyed))
    assert (
        "state 'total' of step 'total' would be lost: it is kept by key, and the step has no key any more" in said
    )
    compared = sluiceway("diff", "kept", str(unkeyed))
    assert compared.exit_code == 1
    assert "'total' of step 'total' would be lost" in compared.stderr
    done = sluiceway("run", "--quiet", "--allow-dropped-state", "--from", "kept", str(unkeyed))
    assert done.exit_code == 0, done.stderr


@everywhere
def test_a_state_that_a_function_asks_for_no_more(
    kept: Any, flow: Any, sluiceway: Any, place: Path, workers: tuple[str, ...]
) -> None:
    kept("process(Total())", FUNCTION.format(outside="", descriptor='sw.ValueStateDescriptor("total", int)'))
    new = flow("process(Total())", FUNCTION.format(outside="", descriptor='sw.ValueStateDescriptor("sum", int)'))
    options = ("--from", "kept", "--restart", "fixed-delay:1000:1h")
    result = sluiceway("run", "--quiet", *workers, *options, new)
    assert result.exit_code == 2
    assert "'total' of step 'total' would be lost: its function does not ask for it any more" in result.stderr
    assert "leave the state behind with allow-dropped-state" in result.stderr
    done = sluiceway("run", "--quiet", *workers, "--allow-dropped-state", *options, new)
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize(
    "later",
    [
        'LATER = sw.ValueStateDescriptor("total")',
        'LATER = "total"',
        'def helper(context):\n    return context.get_state(sw.ValueStateDescriptor("total"))\n\n\nLATER = helper',
        'class LATER:\n    def get(self):\n        return sw.ValueStateDescriptor("total")',
    ],
)
def test_a_state_that_a_function_may_ask_for_later_is_no_loss(
    kept: Any, flow: Any, sluiceway: Any, later: str
) -> None:
    kept("process(Total())", FUNCTION.format(outside="", descriptor='sw.ValueStateDescriptor("total", int)'))
    function = FUNCTION.format(outside=later, descriptor='sw.ValueStateDescriptor("sum", int)')
    new = flow("process(Total())", function.replace("yield value", "yield value if LATER else None"))
    done = sluiceway("run", "--quiet", "--from", "kept", new)
    assert done.exit_code == 0, done.stderr


def test_states_that_are_asked_for_late_are_not_missed_after_a_failure(
    flow: Any, sluiceway: Any, place: Path
) -> None:
    """A name that nobody can see, declared with the first record; then the job fails, and is restored."""
    with write(str(place / "first")) as savepoint:
        savepoint.put("total", sw.ValueStateDescriptor("total", int), [(1, 1)], key=0, value=1)
    late = """
class Total(sw.KeyedProcessFunction):
    def open(self, context):
        self.context = context
        self.attempt = context.attempt_number

    def process_element(self, value, ctx):
        total = self.context.get_state(sw.ValueStateDescriptor("latot"[::-1], int))
        total.update(value)
        if value == 9 and not self.attempt:
            raise OSError("once")
        yield value
"""
    options = ("--checkpoint-interval", "1h", "--checkpoints", "kept", "--restart", "fixed-delay:3:10ms")
    allowed = ("--allow-dropped-state", "--from", "first")
    done = sluiceway("run", "--quiet", *options, *allowed, flow("process(Total())", late))
    assert done.exit_code == 0, done.stderr
    refused_ = sluiceway("run", "--quiet", "--from", "first", flow("process(Total())", late))
    assert "state 'total' of step 'total' would be lost" in refused_.stderr


def test_timers_that_were_firing_are_no_loss(place: Path, flow: Any, sluiceway: Any) -> None:
    with write(str(place / "first")) as savepoint:
        savepoint.put("total", DUE, [(1, 5)], key=0, value=1)
        savepoint.put_timers("total", [(1, 5)], key=0, at=1, domain="event time")
    before = FUNCTION.format(outside="", descriptor='sw.ValueStateDescriptor("total", int)')
    done = sluiceway("run", "--quiet", "--from", "first", flow("process(Total())", before))
    assert done.exit_code == 0, done.stderr
    done = sluiceway("run", "--quiet", "--from", "first", flow("process(lambda n, ctx: [n])"))
    assert done.exit_code == 0, done.stderr


KEYS = """
def by(number: int) -> {kind}:
    return {key}
"""


@pytest.fixture
def keyed(flow: Callable[..., str], place: Path) -> Callable[..., str]:
    """``keyed(kind, key)``: the name of a file with a pipeline whose key function returns that type."""

    def make(kind: str, key: str, step: str = "count()", name: str = "flow.py") -> str:
        target = flow(step, KEYS.format(kind=kind, key=key), name)
        (place / target).write_text((place / target).read_text().replace("lambda n: n % 3", "by"))
        return target

    return make


@everywhere
def test_keys_of_another_type(keyed: Any, sluiceway: Any, place: Path, workers: tuple[str, ...]) -> None:
    old = keyed("int", "number % 3", name="old.py")
    done = sluiceway("run", "--checkpoint-interval", "1h", "--checkpoints", "kept", "--quiet", old)
    assert done.exit_code == 0, done.stderr
    (place / "ran").unlink()
    new = keyed("str", "str(number % 3)")
    said = refused(sluiceway, place, *workers, "--from", "kept", new)
    assert "state 'aggregate' of step 'total' would be lost: it is kept by keys of type int" in said
    assert "the keys of the step are of type str now" in said
    for before in ("kept", "old.py"):
        shown = sluiceway("diff", "--open", before, new)
        assert shown.exit_code == 1
        assert ["dropped", "total"] in [line.split()[:2] for line in shown.stdout.splitlines()]
        assert "kept by keys of type int" in shown.stderr
    done = sluiceway("run", *workers, "--quiet", "--allow-dropped-state", "--from", "kept", new)
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize(
    ("kind", "key", "fits"),
    [
        ("float", "number / 2", True),
        ("int | str", "number", True),
        ("'Unknown'", "number", True),
        ("bytes", "b'0'", False),
        ("tuple[int, int]", "(number, number)", False),
        ("tuple[int, str]", "(number, '')", False),
    ],
)
@pytest.mark.parametrize("step", ["count()", "process(Total())"])
def test_types_of_keys(
    keyed: Any, sluiceway: Any, place: Path, kind: str, key: str, fits: bool, step: str
) -> None:
    function = FUNCTION.format(outside="", descriptor='sw.ValueStateDescriptor("total", int)')

    def version(kind: str, key: str, name: str) -> str:
        target = keyed(kind, key, step, name)
        (place / target).write_text((place / target).read_text().replace("\ndef by", f"{function}\ndef by"))
        return target

    old = version("int", "number % 3", "old.py")
    done = sluiceway("run", "--checkpoint-interval", "1h", "--checkpoints", "kept", "--quiet", old)
    assert done.exit_code == 0, done.stderr
    shown = sluiceway("diff", "kept", version(kind, key, "new.py"))
    assert (shown.exit_code == 0) == fits, shown.stderr
