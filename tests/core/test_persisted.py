"""Persisted classes are stored by a tag that does not depend on where their code is."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from typing import Any

import pytest
from effort import first

from sluiceway import persisted as registry
from sluiceway.persisted import EARLIER, PLACES, persisted
from sluiceway.windows import TimeWindow

# The tags of released versions. One that is missing would make what those have stored unreadable.
TAGS = {
    "BatchPlan",
    "BatchRead",
    "BoundedOutOfOrderness",
    "CollectionSplit",
    "CommitRecord",
    "DeadLetter",
    "FunctionSplit",
    "GeneratorSplit",
    "GlobalWindow",
    "HybridSplit",
    "HybridState",
    "ListSnapshot",
    "NoWatermarks",
    "OperatorSnapshot",
    "PollRead",
    "ProgramClass",
    "ScriptSplit",
    "SpooledSplit",
    "StateMeta",
    "SubtaskPosition",
    "TableKind",
    "TimeWindow",
}


def test_no_tag_is_added_or_removed_unnoticed() -> None:
    assert set(PLACES) == TAGS


@pytest.mark.parametrize("tag", sorted(TAGS))
def test_each_class_is_at_its_place_and_pickled_by_its_tag(tag: str) -> None:
    module, _, name = PLACES[tag].partition(":")
    cls = getattr(importlib.import_module(module), name)
    assert pickle.loads(pickle.dumps(cls)) is cls
    assert module.encode() not in pickle.dumps(cls)
    assert pickle.dumps(cls, 0) == f"csluiceway.persisted\n{tag}\np0\n.".encode()


@pytest.mark.parametrize(("module", "name"), first(4, [(m, n) for m, names in EARLIER.items() for n in names]))
def test_a_class_is_found_under_its_earlier_name(module: str, name: str) -> None:
    """In a process that has imported nothing else, as a reader of checkpoints may be."""
    tag = EARLIER[module][name]
    code = (
        "import pickle, sys; import sluiceway.persisted\n"
        f"found = pickle.loads({f'c{module}{chr(10)}{name}{chr(10)}.'.encode()!r})\n"
        f"assert found.__qualname__ == {tag!r}, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_earlier_module_has_nothing_else() -> None:
    found: Any = registry._EarlierModules
    assert found.find_spec("sluiceway.nothing") is None
    assert found.find_spec("sluiceway.windowing").loader is found


def test_a_class_cannot_take_the_tag_of_another() -> None:
    with pytest.raises(TypeError, match="'TimeWindow' is registered for sluiceway"):
        persisted("TimeWindow")(type("TimeWindow", (), {"__module__": "elsewhere"}))
    with pytest.raises(KeyError):
        persisted("Unheard")
    assert pickle.loads(pickle.dumps(TimeWindow(0, 1))) == TimeWindow(0, 1)


def test_an_unknown_tag_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Unheard'"):
        registry.Unheard  # noqa: B018
