"""Hook marker and offers, all that a plugin's ``__init__`` imports.

``from sluiceway.hooks import Offer, hookimpl``. A hook is named after its kind in the plural, takes no
argument and returns a list of offers::

    @hookimpl
    def sluiceway_state_backends() -> list[Offer]:
        def load():
            from sluiceway_rocksdb._backend import RocksDBStateBackend

            return RocksDBStateBackend

        return [Offer("rocksdb", load, "larger than memory", requires=("rocksdict",), extra="rocksdb")]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pluggy

__all__ = ["PROJECT", "Offer", "hookimpl", "hookspec"]

PROJECT: Final = "sluiceway"

hookimpl: Final = pluggy.HookimplMarker(PROJECT)
hookspec: Final = pluggy.HookspecMarker(PROJECT)


@dataclass(frozen=True)
class Offer:
    """One thing that a plugin offers under a name. Making one imports nothing.

    Attributes:
        name: what people call it in options; unique within its kind.
        load: imports the plugin's private module and returns the factory that its kind asks for. Called when
            the name is used for the first time, after ``requires`` was looked for.
        summary: one line for ``sluiceway plugins list``.
        requires: import names of the third-party modules without which ``load`` would fail.
        extra: what installs them: an extra of ``sluiceway`` (``rocksdb``), or from a plugin of another
            distribution a requirement for pip (``my-plugin[fast]``).
        libraries: import names of the third-party modules that are needed when the thing is used, and not for
            loading it: options can be checked without them.
    """

    name: str
    load: Callable[[], Any]
    summary: str = ""
    requires: tuple[str, ...] = ()
    extra: str = ""
    libraries: tuple[str, ...] = ()
