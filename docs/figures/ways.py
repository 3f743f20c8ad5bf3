"""The pictures of docs/architecture.md: the steps of each way through the core, as docs/map.py has them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from drawing import Drawing

__all__ = ["FIGURES"]


def _map() -> Any:
    # By its place, as "map" on the path would be found by accident only.
    spec = importlib.util.spec_from_file_location("map_of_the_core", Path(__file__).parents[1] / "map.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WAYS: dict[str, list[tuple[str, str]]] = _map().WAYS
HEIGHT = 62


def way(name: str) -> Drawing:
    """One box for each step; bands on the left are the rooms that it passes through."""
    steps = WAYS[name]
    said = "; ".join(f"{place.partition(':')[2]} {what}" for place, what in steps)
    d = Drawing(960, 24 + HEIGHT * len(steps), f"The way of a {name}", f"From top to bottom: {said}.")
    rooms = [place.partition(":")[0].rpartition("/")[0] or place.partition(".")[0] for place, _ in steps]
    begin = 0
    for index in range(1, len(steps) + 1):
        if index == len(steps) or rooms[index] != rooms[begin]:
            top, height = 14 + begin * HEIGHT, (index - begin) * HEIGHT - 8
            d.box(16, top, 928, height, "band", 8)
            d.text(30, top + 24, rooms[begin], "title")
            begin = index
    for index, (place, what) in enumerate(steps):
        y = 18 + index * HEIGHT
        file, _, symbol = place.partition(":")
        d.box(220, y, 716, 46, "box", 6)
        d.text(234, y + 19, symbol, "title")
        d.text(922, y + 19, file.rpartition("/")[2], "small end")
        d.text(234, y + 37, what, "small")
        if index:
            d.line([(578, y - HEIGHT + 46), (578, y - 2)], "line", "head")
    return d


FIGURES: dict[str, Callable[[], Drawing]] = {f"map-{name}.svg": partial(way, name) for name in WAYS}
