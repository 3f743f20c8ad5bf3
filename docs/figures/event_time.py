"""The pictures of docs/event-time.md."""

from __future__ import annotations

from drawing import Drawing

__all__ = ["FIGURES"]

# Seconds of event time, in the order in which the records come. The page's program has the same ones.
RECORDS = (1, 4, 3, 8, 6, 12, 9, 14, 7, 21, 17)
BOUND = 3
WINDOW = 10


def watermarks() -> Drawing:
    """Arrival to the right, event time upwards."""
    d = Drawing(
        960,
        480,
        "Watermarks and out-of-order records",
        "Records are drawn in the order of their arrival, as high as their event time. The watermark is a line of "
        "steps, three seconds below the highest record so far. When it passes the end of a window, the window is "
        "evaluated. A record that comes below the line, in a window that is over, is late.",
    )
    left, bottom, step, scale = 90, 420, 70, 16

    def at(index: float, seconds: float) -> tuple[float, float]:
        return left + 40 + index * step, bottom - seconds * scale

    for start in range(0, 30, WINDOW):
        top = min(start + WINDOW, 24)
        _, y = at(0, top)
        d.box(left, y, 850, (top - start) * scale, "band" if start % 20 else "band2")
        d.text(left + 10, y + 18, f"window [{start}, {start + WINDOW})", "small")
        d.text(left - 8, at(0, start)[1] + 4, f"{start} s", "small end")
    d.line([(left, bottom), (left, 30)], "line", "head")
    d.line([(left, bottom), (946, bottom)], "line", "head")
    d.text(left - 50, 24, "event time", "small")
    d.text(940, bottom + 22, "arrival", "small end")

    highest, water, path = -1, -BOUND, [at(-0.4, 0)]
    fired = set()
    late = []
    for index, seconds in enumerate(RECORDS):
        if seconds // WINDOW * WINDOW + WINDOW <= water:
            late.append(index)
        highest = max(highest, seconds)
        if highest - BOUND > water:
            before, water = water, highest - BOUND
            if water > 0:
                path += [at(index + 0.5, max(before, 0)), at(index + 0.5, water)]
            for end in range(WINDOW, 30, WINDOW):
                if end <= water and end not in fired:
                    fired.add(end)
                    x, y = at(index + 0.5, end)
                    d.line([(x, y), (x + 26, y - 26)], "thin")
                    d.text(x + 30, y - 30, f"[{end - WINDOW}, {end}) evaluated", "blue")
    path.append(at(len(RECORDS) - 0.4, water))
    d.line(path, "water")
    x, y = path[-1]
    d.text(x - 4, y - 8, "watermark", "blue end")
    for index, seconds in enumerate(RECORDS):
        x, y = at(index, seconds)
        d.dot(x, y, str(seconds), "late" if index in late else "mark")
    for index in late:
        x, y = at(index, RECORDS[index])
        d.text(x, y + 28, "late", "amber mid")
    return d


def minimum() -> Drawing:
    """A step with three inputs."""
    d = Drawing(
        960,
        300,
        "The watermark of a step with several inputs",
        "Three subtasks send watermarks to one step: 12 s, 9 s and, from one that is idle, 4 s. The step goes by "
        "the smallest of those that are not idle, 9 s, and passes that on.",
    )
    inputs = (
        ("source, subtask 1", "12 s", True),
        ("source, subtask 2", "9 s", True),
        ("source, subtask 3", "4 s", False),
    )
    for index, (name, water, active) in enumerate(inputs):
        y = 34 + index * 84
        d.box(30, y, 200, 60, "box", 8)
        d.text(130, y + 26, name, "mid")
        d.text(
            130,
            y + 45,
            "active" if active else "idle: has nothing for now",
            "small mid" if active else "amber mid",
        )
        d.line(
            [(230, y + 30), (500, 148 + (index - 1) * 22)],
            "water" if active else "dash",
            "waterhead" if active else "",
        )
        d.text(300, y + 26 + (10, -6, 24)[index], f"watermark {water}", "blue" if active else "small")
    d.box(504, 100, 200, 96, "box", 8)
    d.text(604, 136, "window", "mid title")
    d.text(604, 158, "min(12 s, 9 s) = 9 s", "small mid")
    d.line([(704, 148), (900, 148)], "water", "waterhead")
    d.text(800, 136, "watermark 9 s", "blue mid")
    return d


def slices() -> Drawing:
    """Sliding windows of 10 s by 2 s over their slices."""
    d = Drawing(
        960,
        330,
        "Sliding windows share slices",
        "Windows of ten seconds begin every two seconds. Time is cut into slices of two seconds, each with a sum "
        "of its own. A window is five slices; each record is added once, to its slice.",
    )
    left, width = 60, 84
    sums = (3, 5, 1, 4, 2, 6, 0, 7, 3, 2)
    d.text(left, 34, "slices of 2 s: each record is added to one of them", "small")
    for index, total in enumerate(sums):
        x = left + index * width
        d.box(x, 46, width - 4, 40, "box", 4)
        d.text(x + width / 2 - 2, 71, str(total), "mid")
        d.text(x, 104, f"{index * 2} s", "small mid")
    d.text(left + len(sums) * width, 104, f"{len(sums) * 2} s", "small mid")
    d.text(left, 140, "windows of 10 s, one every 2 s: five slices each", "small")
    for row, start in enumerate(range(4)):
        x, y = left + start * width, 152 + row * 40
        d.box(x, y, 5 * width - 4, 30, "band", 4)
        terms = " + ".join(str(total) for total in sums[start : start + 5])
        d.text(x + 2.5 * width, y + 20, f"{terms} = {sum(sums[start : start + 5])}", "mid")
        d.text(x + 5 * width + 8, y + 20, f"[{start * 2} s, {start * 2 + 10} s)", "small")
    return d


def sessions() -> Drawing:
    """A record between two sessions makes one of them."""
    d = Drawing(
        960,
        320,
        "Sessions merge",
        "With a gap of ten seconds, records at 2 s and 7 s make one session, a record at 22 s another one. Then a "
        "record of 14 s comes: its own window, from 14 s to 24 s, touches both, and all become one session.",
    )
    left, scale = 60, 24

    def row(
        y: int, label: str, windows: list[tuple[int, int]], records: list[int], new: int | None = None
    ) -> None:
        d.text(left, y - 12, label, "small")
        for start, end in windows:
            d.box(left + start * scale, y, (end - start) * scale, 44, "box", 6)
            d.text(left + end * scale - 8, y + 15, f"[{start} s, {end} s)", "small end")
        for seconds in records:
            kind = "late" if seconds == new else "mark"
            d.dot(left + seconds * scale, y + 28, str(seconds), kind)

    row(44, "before: two sessions, gap 10 s", [(2, 17), (22, 32)], [2, 7, 22])
    row(140, "a record of 14 s comes: a session of its own", [(14, 24)], [14], 14)
    row(236, "which touches both others: one session, from 2 s to 32 s", [(2, 32)], [2, 7, 14, 22], 14)
    return d


def lateness() -> Drawing:
    """A window's life, along the watermark."""
    d = Drawing(
        960,
        250,
        "The life of a window",
        "Along the watermark: until it reaches the end of the window, records are gathered. There the window is "
        "evaluated. For as long as the allowed lateness, each record that still comes has it evaluated again. "
        "After that its state is gone, and records go to the side output for late data.",
    )
    left, y = 60, 120
    parts = ((0, 360, "band", "records are gathered"), (360, 280, "box", "each late record: evaluated again"))
    for x, width, kind, label in parts:
        d.box(left + x, y - 34, width, 68, kind)
        d.text(left + x + width / 2, y - 8, label, "mid")
    d.text(left + 750, y - 8, "late records: side output", "amber mid")
    d.line([(left - 10, y + 34), (930, y + 34)], "water", "waterhead")
    for x, label, what in (
        (0, "0 s", "start"),
        (360, "10 s", "end: evaluated"),
        (640, "10 s + allowed lateness", "state is dropped"),
    ):
        d.line([(left + x, y - 50), (left + x, y + 44)], "dash")
        d.text(left + x, y - 58, what, "small mid" if x else "small")
        d.text(left + x, y + 62, label, "blue mid" if x else "blue")
    d.text(930, y + 62, "watermark", "blue end")
    for x, kind in ((60, "mark"), (150, "mark"), (300, "mark"), (440, "mark"), (560, "mark"), (760, "late")):
        d.dot(left + x, y + 16, "", kind, 8)
    return d


FIGURES = {
    "watermarks.svg": watermarks,
    "watermark-minimum.svg": minimum,
    "sliding-slices.svg": slices,
    "session-merging.svg": sessions,
    "window-lateness.svg": lateness,
}
