"""The picture of docs/howto/checkpoints.md: what ``python -m benchmarks --only backpressure`` has measured."""

from __future__ import annotations

from math import log10

from drawing import Drawing

__all__ = ["FIGURES"]

PRESSURE = (0, 50, 90, 100)
MEASURED: dict[str, tuple[int | None, ...]] = {
    "aligned": (58, 45, 140, None),
    "unaligned after 500 ms": (60, 49, 141, 514),
    "unaligned": (69, 57, 22, 15),
}
"""Medians in ms, for each pressure; None: not completed in 10 s."""

KINDS = {"aligned": "late", "unaligned after 500 ms": "box", "unaligned": "mark"}
TOP, BOTTOM, LEFT = 70.0, 330.0, 90.0
LEAST, MOST = 10, 10_000


def _y(ms: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * (log10(ms) - log10(LEAST)) / (log10(MOST) - log10(LEAST))


def durations() -> Drawing:
    """Bars for each pressure and way, on a scale by powers of ten."""
    told = "; ".join(
        f"{way}: "
        + ", ".join(
            f"at {pressure} % " + ("none in 10 s" if ms is None else f"{ms} ms")
            for pressure, ms in zip(PRESSURE, times, strict=True)
        )
        for way, times in MEASURED.items()
    )
    d = Drawing(
        960,
        400,
        "How long a checkpoint takes under back-pressure",
        "Bars on a scale by powers of ten, for sinks that take 100, 50, 10 and 0 % of what the job could do. "
        f"{told}.",
    )
    d.text(30, 40, "from the trigger of a checkpoint to its completion", "title")
    for ms, label in ((10, "10 ms"), (100, "100 ms"), (1_000, "1 s"), (10_000, "10 s")):
        d.line([(LEFT, _y(ms)), (930, _y(ms))], "thin")
        d.text(LEFT - 12, _y(ms) + 5, label, "small end")
    for group, pressure in enumerate(PRESSURE):
        x = LEFT + 20 + group * 208
        for n, (way, times) in enumerate(MEASURED.items()):
            ms = times[group]
            left = x + n * 60
            if ms is None:
                d.line([(left, BOTTOM), (left, TOP), (left + 52, TOP), (left + 52, BOTTOM)], "dash")
                d.text(left + 26, TOP - 8, "none", "small mid")
            else:
                d.box(left, _y(ms), 52, BOTTOM - _y(ms), KINDS[way], 2)
                d.text(left + 26, _y(ms) - 6, f"{ms} ms", "small mid")
        d.text(x + 86, BOTTOM + 22, f"{pressure} % back-pressure", "mid")
    for n, way in enumerate(MEASURED):
        d.box(LEFT + 20 + n * 208, BOTTOM + 42, 14, 14, KINDS[way], 2)
        d.text(LEFT + 42 + n * 208, BOTTOM + 54, way, "small")
    return d


FIGURES = {"checkpoints-under-back-pressure.svg": durations}
