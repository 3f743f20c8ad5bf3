"""Classes of the program that runs, which are in no module that every process can import.

A script's classes are written by value, so that other processes, and tools without the program, can read them.
What one run has written would have other classes than the next run's program, though, and equal keys would differ.
So they are written with their names, by which the program's own are found where it has them.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from sluiceway.persisted import persisted

__all__ = [
    "SKELETONS",
    "ClassCollector",
    "OwnClasses",
    "ProgramClass",
    "ProgramClasses",
    "loads_with_classes",
    "using",
]

SKELETONS: Final = ("_make_skeleton_class", "_make_skeleton_enum")
"""Functions of cloudpickle that make a class."""

_SCRIPTS: Final = ("__main__", "__sluiceway__", "__mp_main__")
"""Modules of a program that is executed as a file: which of them depends on how it is started."""

_AMBIGUOUS: Final = object()


class ProgramClasses:
    """Classes that came with a job's program, by module and qualified name."""

    def __init__(self) -> None:
        self._classes: dict[tuple[str, str], Any] = {}

    def add(self, classes: Iterable[type]) -> None:
        """Add classes. Of two that have one name neither is found."""
        for cls in classes:
            name = _name_of(cls.__module__), cls.__qualname__
            if self._classes.setdefault(name, cls) is not cls:
                self._classes[name] = _AMBIGUOUS

    def find(self, module: str, qualname: str) -> type | None:
        """Return a class, or None if there is no such one."""
        found = self._classes.get((_name_of(module), qualname))
        return None if found is _AMBIGUOUS else found


class OwnClasses(ProgramClasses):
    """Classes of a program where its steps are: those of its modules, and those that only a step refers to.

    The latter, as classes that a function defines, are searched when one is asked for.

    Args:
        search: returns them; called once at the most.
    """

    def __init__(self, search: Callable[[], Iterable[type]]) -> None:
        super().__init__()
        self._search: Callable[[], Iterable[type]] | None = search

    def find(self, module: str, qualname: str) -> type | None:
        """Return a class, or None if there is no such one."""
        found = _in_modules(module, qualname)
        if found is not None:
            return found
        search, self._search = self._search, None
        if search is not None:
            self.add(search())
        return super().find(module, qualname)


_in_use: ContextVar[ProgramClasses | None] = ContextVar("sluiceway_program_classes", default=None)


@contextmanager
def using(classes: ProgramClasses | None) -> Iterator[None]:
    """Have what is unpickled in this context find these classes; None: those of the modules that are here."""
    before = _in_use.set(classes)
    try:
        yield
    finally:
        _in_use.reset(before)


def _name_of(module: str) -> str:
    return _SCRIPTS[0] if module in _SCRIPTS else module


def _found(module: str, qualname: str) -> type | None:
    """Return the class of the program that runs here, or None."""
    classes = _in_use.get()
    return _in_modules(module, qualname) if classes is None else classes.find(module, qualname)


def _in_modules(module: str, qualname: str) -> type | None:
    for name in _SCRIPTS if module in _SCRIPTS else (module,):
        found: Any = sys.modules.get(name)
        for part in qualname.split("."):
            found = getattr(found, part, None)
        if isinstance(found, type) and found.__qualname__ == qualname:
            return found
    return None


class ClassCollector:
    """Collector of the classes that are made while a program is unpickled.

    Attributes:
        made: the classes.
    """

    def __init__(self) -> None:
        self.made: list[type] = []

    def find_class(self, found: Any, module: str, name: str) -> Any:
        """Return what an unpickler has found under a name, or what does the same and keeps the class it makes."""
        if name not in SKELETONS or not module.startswith("cloudpickle"):
            return found
        make: Callable[..., type] = found

        def making(*args: Any) -> type:
            cls = make(*args)
            self.made.append(cls)
            return cls

        return making


@persisted("ProgramClass")
class ProgramClass:
    """Class of a program, by its name; where the program has none, as it was when it was written."""

    def __new__(cls, module: str, qualname: str, data: bytes) -> Any:
        """Return the class; ``data`` is what :func:`.dumps_by_value` made of it."""
        found = _found(module, qualname)
        return pickle.loads(data) if found is None else found


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            found = _found(module, name)
            if found is None:
                raise
            return found


def loads_with_classes(data: bytes) -> Any:
    """Unpickle a value that names classes of a program, in whichever way that was started."""
    return _Unpickler(io.BytesIO(data)).load()
