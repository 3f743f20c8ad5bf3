"""Registry of persisted classes: the tag under which each is stored, and where its code is today.

Checkpoints, savepoints and micro-batch logs contain pickled instances of a few classes of the core. A pickle names
a class by its module and its name. For the classes here that module is always ``sluiceway.persisted`` and the name
is a tag of :data:`PLACES`, so that a class can move without a change to what is stored. To move one, change its
place; a tag is never changed or removed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, TypeVar

__all__ = ["EARLIER", "PLACES", "persisted", "register_earlier"]

C = TypeVar("C", bound=type)

PLACES: Final[dict[str, str]] = {
    "BatchPlan": "sluiceway.runtime.microbatch.batch_log:BatchPlan",
    "BatchRead": "sluiceway.runtime.microbatch.batch_log:BatchRead",
    "BoundedOutOfOrderness": "sluiceway.eventtime:BoundedOutOfOrderness",
    "CollectionSplit": "sluiceway.connector.lib.collection:_Slice",
    "CommitRecord": "sluiceway.runtime.microbatch.commit_log:CommitRecord",
    "DeadLetter": "sluiceway.functions.dead_letters:DeadLetter",
    "FunctionSplit": "sluiceway.connector.lib.function:_Taken",
    "GeneratorSplit": "sluiceway.connector.lib.generator:_Lane",
    "GlobalWindow": "sluiceway.windows.base:GlobalWindow",
    "HybridSplit": "sluiceway.connector.lib.hybrid.messages:Part",
    "HybridState": "sluiceway.connector.lib.hybrid.messages:HybridState",
    "ListSnapshot": "sluiceway.operators.list_snapshot:ListSnapshot",
    "NoWatermarks": "sluiceway.eventtime:NoWatermarks",
    "OperatorSnapshot": "sluiceway.operators.snapshot:OperatorSnapshot",
    "PollRead": "sluiceway.runtime.microbatch.batch_log:PollRead",
    "ProgramClass": "sluiceway.serializers.program_classes:ProgramClass",
    "ScriptSplit": "sluiceway.testing.script:_Lane",
    "SpooledSplit": "sluiceway.runtime.microbatch.spooled_source:SpooledSplit",
    "StateMeta": "sluiceway.state.tables:StateMeta",
    "SubtaskPosition": "sluiceway.runtime.stepped.stepped_task:Position",
    "TableKind": "sluiceway.state.tables:TableKind",
    "TimeWindow": "sluiceway.windows.base:TimeWindow",
}
"""Place of the class of each tag, as ``module:class``."""

EARLIER: Final[dict[str, dict[str, str]]] = {
    "sluiceway.connectors.collection": {"_Slice": "CollectionSplit"},
    "sluiceway.connectors.function": {"_Taken": "FunctionSplit"},
    "sluiceway.connectors.generator": {"_Lane": "GeneratorSplit"},
    "sluiceway.functions.deadletters": {"DeadLetter": "DeadLetter"},
    "sluiceway.operators.base": {"OperatorSnapshot": "OperatorSnapshot"},
    "sluiceway.operators.lists": {"ListSnapshot": "ListSnapshot"},
    "sluiceway.runtime.embedded.chain": {"Position": "SubtaskPosition"},
    "sluiceway.runtime.microbatch.commits": {"CommitRecord": "CommitRecord"},
    "sluiceway.runtime.microbatch.sidefiles": {
        "BatchPlan": "BatchPlan",
        "BatchRead": "BatchRead",
        "PollRead": "PollRead",
    },
    "sluiceway.runtime.microbatch.stored": {"StoredSplit": "SpooledSplit"},
    "sluiceway.state.tables": {"StateMeta": "StateMeta", "TableKind": "TableKind"},
    "sluiceway.windowing": {"GlobalWindow": "GlobalWindow", "TimeWindow": "TimeWindow"},
}
"""Tag of each class that was stored under its module and name before it had one."""


def persisted(tag: str) -> Any:
    """Return a class decorator that has pickle store a class by its tag.

    The tag replaces ``__module__`` and ``__qualname__`` of the class, so ``typing.get_type_hints`` cannot resolve
    annotations of the class that are not built in.

    Args:
        tag: a tag of :data:`PLACES`.

    Raises:
        KeyError: the tag is not registered.
    """
    module, _, name = PLACES[tag].partition(":")

    def decorate(cls: C) -> C:
        # Checked here as a wrong place would be noticed only when something stored is read.
        if (cls.__module__, cls.__qualname__) != (module, name):
            raise TypeError(f"{tag!r} is registered for {PLACES[tag]}, not {cls.__module__}:{cls.__qualname__}")
        cls.__module__, cls.__qualname__ = __name__, tag
        globals()[tag] = cls
        return cls

    return decorate


def __getattr__(tag: str) -> Any:
    """Import the class of a tag; pickle asks for it so."""
    place = PLACES.get(tag)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {tag!r}")
    module, _, _ = place.partition(":")
    importlib.import_module(module)
    return globals()[tag]


def register_earlier(module: str, classes: Mapping[str, type]) -> None:
    """Let pickles find classes of a plugin in a module that they were stored under and that no longer exists.

    Args:
        module: name of the module.
        classes: by the name that each class had in it.
    """
    _OF_PLUGINS[module] = dict(classes)
    parts = module.split(".")
    _PARENTS.update(".".join(parts[:count]) for count in range(1, len(parts)))


_OF_PLUGINS: Final[dict[str, dict[str, type]]] = {}
_PARENTS: Final = {name.rpartition(".")[0] for name in EARLIER} - {"sluiceway"}


class _EarlierModules:
    """Finder and loader of modules of :data:`EARLIER` that no longer exist, with nothing but persisted classes."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in EARLIER and name not in _PARENTS and name not in _OF_PLUGINS:
            return None
        return ModuleSpec(name, _EarlierModules, is_package=name in _PARENTS)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        return None

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        for name, tag in EARLIER.get(module.__name__, {}).items():
            setattr(module, name, getattr(sys.modules[__name__], tag))
        vars(module).update(_OF_PLUGINS.get(module.__name__, {}))


# Last, so that it is asked only for modules that do not exist.
sys.meta_path.append(_EarlierModules)
