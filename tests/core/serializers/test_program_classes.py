"""Values of a script's classes, read in other processes and by other programs."""

from __future__ import annotations

import pickle
import subprocess
import sys
from enum import Enum
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from sluiceway import Pipeline
from sluiceway.connector.lib import DiscardSink
from sluiceway.errors import SerializationError
from sluiceway.plugins import default_manager
from sluiceway.runtime.jobmanager.restore import classes_of
from sluiceway.runtime.local.engine import job_graph_of
from sluiceway.serializers.base import PICKLE
from sluiceway.serializers.byvalue import dumps_with_classes
from sluiceway.serializers.program_classes import ProgramClasses, using

CLASSES = """
from dataclasses import dataclass
from enum import Enum

class Kind(Enum):
    A = 1

@dataclass(frozen=True)
class Meter:
    site: str
    kind: Kind = Kind.A

    def shown(self):
        return {text!r}
"""
WRITE = """
import sys
from sluiceway.serializers.byvalue import dumps_with_classes
open(sys.argv[1], "wb").write(dumps_with_classes([Meter("roof"), Kind.A]))
"""


def program(text: str, module: str = "__main__") -> dict[str, Any]:
    """The classes of a program that was read in another process."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(CLASSES.format(text=text), names)
    found = {name: names[name] for name in ("Kind", "Meter")}
    for cls in found.values():
        cls.__module__ = module
    return found


def written(tmp_path: Path) -> bytes:
    file = tmp_path / "value.pickle"
    subprocess.run([sys.executable, "-c", CLASSES.format(text="old") + WRITE, str(file)], check=True)
    return file.read_bytes()


@pytest.mark.parametrize("module", ["__main__", "__sluiceway__"])
def test_they_are_those_of_the_program_that_reads_them(tmp_path: Path, module: str) -> None:
    data = written(tmp_path)
    now = program("new", module)
    classes = ProgramClasses()
    classes.add(now.values())
    with using(classes):
        meter, kind = PICKLE.loads(data)
    assert type(meter) is now["Meter"]
    assert meter == now["Meter"]("roof")
    assert meter.shown() == "new"
    assert kind is now["Kind"].A


def test_those_that_only_a_step_refers_to_are_searched_there(tmp_path: Path) -> None:
    """Also where another step cannot be pickled, which is no obstacle to a job in one process."""
    data = written(tmp_path)
    now, lock = program("new"), Lock()
    flow = Pipeline("meters")
    flow.generate().map(lambda value: (lock, value)).map(lambda pair: now["Meter"](pair[1])).sink(DiscardSink())
    with using(classes_of(job_graph_of(flow.graph(), default_manager().services()))):
        meter, kind = PICKLE.loads(data)
    assert (type(meter), kind) == (now["Meter"], now["Kind"].A)


def test_without_the_program_they_are_as_they_were(tmp_path: Path) -> None:
    meter, kind = PICKLE.loads(written(tmp_path))
    assert (meter.shown(), meter.kind is kind) == ("old", True)


def test_of_two_classes_of_one_name_none_is_taken_for_the_other(tmp_path: Path) -> None:
    classes = ProgramClasses()
    classes.add([*program("one").values(), *program("two").values()])
    with using(classes):
        meter, _ = PICKLE.loads(written(tmp_path))
    assert meter.shown() == "old"


def test_a_name_of_a_script_is_found_among_them() -> None:
    """One process writes classes of its script by name alone."""
    data = b"\x80\x05c__sluiceway__\nMeter\n."
    now = program("new")
    classes = ProgramClasses()
    classes.add(now.values())
    with using(classes):
        assert PICKLE.loads(data) is now["Meter"]
    with pytest.raises(SerializationError, match="define it in a module that can be imported"):
        PICKLE.loads(data)


def test_an_enum_of_a_function_goes_by_value() -> None:
    class Local(Enum):
        A = 1

    value = PICKLE.loads(PICKLE.dumps([Local.A]))[0]
    assert (type(value).__name__, value.value) == ("Local", 1)
    assert pickle.loads(dumps_with_classes(Local.A)) is Local.A
