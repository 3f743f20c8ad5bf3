"""The collector's settings: changed as long as somebody wants it, and then as they were found."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.util.garbage_collector import (
    freeze_at_exit,
    freeze_between_tasks,
    freeze_imports,
    gc_frozen,
    gc_paused,
    seldom,
)

DEFAULT = (700, 10, 10)


@pytest.fixture(autouse=True)
def _defaults(unfrozen: None) -> Iterator[None]:
    found = gc.get_threshold()
    gc.set_threshold(*DEFAULT)
    yield
    gc.set_threshold(*found)
    gc.enable()
    gc.unfreeze()  # what a test has frozen, which may hold what is not needed any more


def test_thresholds_are_raised_and_restored() -> None:
    with seldom():
        assert gc.get_threshold() == (50_000, 10, 10)
        assert gc.isenabled()
    assert gc.get_threshold() == DEFAULT


def test_the_older_generations_keep_their_thresholds() -> None:
    gc.set_threshold(2000, 10, 3)  # as later versions of Python have it
    with seldom():
        assert gc.get_threshold()[0] == 50_000
        assert gc.get_threshold()[2] == 3
    assert gc.get_threshold() == (2000, 10, 3)


@pytest.mark.parametrize("own", [0, 1, 699, 701, 50_000, 1_000_000])
def test_thresholds_that_the_program_has_chosen_stay(own: int) -> None:
    gc.set_threshold(own, 5, 5)
    with seldom():
        assert gc.get_threshold() == (own, 5, 5)
    assert gc.get_threshold() == (own, 5, 5)


@pytest.mark.parametrize("own", [1234, 700])
def test_thresholds_that_somebody_sets_meanwhile_stay(own: int) -> None:
    with seldom():
        gc.set_threshold(own, 5, 6)
        with seldom():
            assert gc.get_threshold() == (own, 5, 6)
    assert gc.get_threshold() == (own, 5, 6)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_thresholds_are_restored_after_every_kind_of_end(error: type[BaseException]) -> None:
    with pytest.raises(error), seldom():
        raise error
    assert gc.get_threshold() == DEFAULT


def test_a_collector_that_the_program_has_disabled_stays_so() -> None:
    gc.disable()
    with seldom():
        assert not gc.isenabled()
    assert not gc.isenabled()
    assert gc.get_threshold() == DEFAULT


@given(st.lists(st.integers(0, 4), max_size=30))
def test_the_last_of_several_restores_in_whatever_order_they_end(moves: list[int]) -> None:
    running = {}
    for move in moves:
        if move in running:
            running.pop(move).__exit__(None, None, None)
        else:
            running[move] = seldom()
            running[move].__enter__()
        assert gc.get_threshold() == ((50_000, 10, 10) if running else DEFAULT)
    for each in running.values():
        each.__exit__(None, None, None)
    assert gc.get_threshold() == DEFAULT


def test_many_threads_leave_the_thresholds_as_they_were() -> None:
    wrong = []

    def work() -> None:
        for _ in range(500):
            with seldom():
                if gc.get_threshold()[0] != 50_000:
                    wrong.append(gc.get_threshold())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert gc.get_threshold() == DEFAULT


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_the_programs_settings_at_once() -> None:
    """The thread that would restore them is not in the child."""
    with seldom(), gc_paused():
        child = os.fork()
        if not child:
            os._exit(0 if gc.get_threshold() == DEFAULT and gc.isenabled() else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert gc.get_threshold() == (50_000, 10, 10)
        assert not gc.isenabled()
    assert gc.get_threshold() == DEFAULT
    assert gc.isenabled()


def test_what_the_program_has_frozen_stays_frozen() -> None:
    kept = [[n] for n in range(1000)]
    gc.freeze()
    frozen = gc.get_freeze_count()
    assert frozen > len(kept)
    with seldom(), gc_frozen():
        made = [[n] for n in range(1000)]
    assert gc.get_freeze_count() == pytest.approx(frozen, abs=100)
    assert gc.isenabled()
    del made


def test_settling_makes_old_objects_and_freezes_none() -> None:
    with gc_frozen():
        made = [[n] for n in range(100)]
    old = {id(o) for o in gc.get_objects(generation=2)}
    assert all(id(each) in old for each in made)
    assert gc.get_freeze_count() < 2_000, "Python 3.12 has some of its own"


def test_settling_goes_on_where_the_imports_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluiceway.util.garbage_collector._imports_are_frozen", False)
    freeze_imports()
    assert gc.get_freeze_count() > 10_000
    with gc_frozen():
        made = [[n] for n in range(100)]
    old = {id(o) for o in gc.get_objects(generation=2)}
    assert all(id(each) in old for each in made)


def test_a_process_of_many_tasks_freezes_once_at_its_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluiceway.util.garbage_collector._tasks", 0)
    freeze_between_tasks()
    assert gc.get_freeze_count() < 2_000, "what the first one imports is not there yet"
    freeze_between_tasks()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    made = [[n] for n in range(20_000)]
    freeze_between_tasks()
    assert gc.get_freeze_count() == pytest.approx(frozen, abs=1_000), "what later ones leave may be garbage"
    del made


def test_a_process_that_ends_does_not_look_for_garbage_once_more() -> None:
    made = [[n] for n in range(20_000)]
    freeze_at_exit()
    assert gc.get_freeze_count() > len(made)


def test_an_interpreter_without_thresholds_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluiceway.util.garbage_collector._get_threshold", None)
    monkeypatch.setattr("sluiceway.util.garbage_collector._set_threshold", None)
    monkeypatch.setattr("sluiceway.util.garbage_collector._freeze", None)
    with seldom(), gc_frozen():
        assert gc.get_threshold() == DEFAULT
    freeze_imports()
    freeze_at_exit()
    assert gc.get_threshold() == DEFAULT
    assert gc.get_freeze_count() < 2_000, "Python 3.12 has some of its own"
