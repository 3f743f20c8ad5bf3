"""Discovery of installed plugins: the entry points of the group ``sluiceway``, read without importing any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import Distribution, EntryPoint, distributions

import msgspec

from sluiceway.errors import PluginError

__all__ = ["GROUP", "Found", "find_plugins"]

GROUP = "sluiceway"


class Found(msgspec.Struct, frozen=True):
    """An entry point of the group.

    Attributes:
        name: the entry point's name, which is the plugin's.
        target: the module, or ``module:attribute``, that it points to.
        distribution: name of the installed distribution that declares it.
        version: version of that distribution.
        load: imports the target and returns it.
    """

    name: str
    target: str
    distribution: str
    version: str
    load: Callable[[], object]


def find_plugins(
    complain: Callable[[str], None], installed: Iterable[Distribution] | None = None
) -> Iterator[Found]:
    """Look through the installed distributions once.

    Args:
        complain: told of a distribution whose metadata cannot be read, and of a name that one declares twice; the
            others go on.
        installed: the distributions to look through; None: all on ``sys.path``.
    """
    seen: set[str] = set()
    for distribution in distributions() if installed is None else installed:
        # Not importlib.metadata.entry_points(): one unreadable file anywhere would hide every plugin, and it
        # parses the files of every other group's distributions too.
        try:
            text = distribution.read_text("entry_points.txt")
            if not text or GROUP not in text:
                continue
            name, metadata = distribution.name, distribution.metadata
            # Later versions of Python warn, or raise, where a field is read that is not there.
            version = metadata["Version"] if "Version" in metadata else ""  # noqa: SIM401 - it has no get()
            if not name:
                raise ValueError("its metadata gives no name")
            points = list(distribution.entry_points.select(group=GROUP))
        except Exception as error:
            where = getattr(distribution, "_path", None) or "an installed distribution"
            complain(f"{where}: its plugins cannot be listed ({type(error).__name__}: {error})")
            continue
        # The first on sys.path wins, as it does for imports.
        key = name.lower().replace("_", "-")
        if not points or key in seen:
            continue
        seen.add(key)
        taken: dict[str, str] = {}
        for point in points:
            if point.name in taken:
                complain(
                    f"{name} {version} declares the plugin {point.name!r} twice: {point.value!r} is left out, "
                    f"{taken[point.name]!r} is taken"
                )
                continue
            taken[point.name] = point.value
            yield Found(point.name, point.value, name, version, partial(_load, point))


def _load(point: EntryPoint) -> object:
    if point.pattern.match(point.value) is None:
        raise PluginError(f"its entry point is {point.value!r}, which is no 'module' and no 'module:attribute'")
    return point.load()
