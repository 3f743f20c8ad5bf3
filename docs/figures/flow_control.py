"""The picture of docs/howto/transports.md."""

from __future__ import annotations

from drawing import Drawing

__all__ = ["FIGURES"]


def credit() -> Drawing:
    """Two channels between two workers, one of them with a backlog."""
    d = Drawing(
        960,
        430,
        "Credit between two workers",
        "On the left two source subtasks, each with a channel to the same consumer on another worker. Each result "
        "partition has a local pool of buffers, of which each channel has one for itself. On the right the input "
        "gate of the consumer: each channel has two credits of its own, and eight floating ones are shared. The "
        "first channel has a backlog, which it reports with each batch, and was lent all eight; ten of its "
        "batches wait to be read, three more wait for credit. The second channel has two of its own all the "
        "same. Batches go to the right, each for one credit; grants go to the left.",
    )
    d.box(20, 30, 350, 370, "band2", 10)
    d.text(40, 56, "worker 1, produces", "title")
    d.text(40, 76, "result partitions of two sources, with a channel each", "small")
    d.box(590, 30, 350, 370, "band2", 10)
    d.text(610, 56, "worker 2, consumes", "title")
    d.text(610, 76, "input gate of the subtask that both send to", "small")
    for index, (name, backlog, waiting, floats) in enumerate((("source 1", 3, 10, 8), ("source 2", 0, 1, 0))):
        y = 100 + index * 118
        d.box(40, y, 310, 96, "box", 8)
        d.text(56, y + 24, name)
        d.text(56, y + 46, f"backlog: {backlog} batches without credit" if backlog else "no backlog", "small")
        for n in range(backlog):
            d.dot(66 + n * 26, y + 72, "b", "late", 10)
        d.box(610, y, 310, 96, "box", 8)
        d.text(626, y + 24, f"{waiting} batches wait to be read" if waiting > 1 else "1 batch waits to be read")
        d.text(626, y + 46, f"2 credits of its own, {floats} lent to it", "small")
        for n in range(2 + floats):
            d.box(626 + n * 28, y + 58, 24, 26, "band", 4)
            if n < waiting:
                d.dot(638 + n * 28, y + 71, "b", "mark", 10)
        d.line([(350, y + 34), (604, y + 34)], "line", "head")
        d.text(477, y + 26, "batch, and how many wait behind it", "small mid")
        d.line([(610, y + 66), (356, y + 66)], "water", "waterhead")
        d.text(483, y + 84, "so many more may come", "blue mid")
    d.box(40, 336, 310, 48, "box", 8)
    d.text(56, 356, "each has a local pool: a buffer for each channel,", "small")
    d.text(56, 374, "the rest for whichever needs it", "small")
    d.box(610, 336, 310, 48, "box", 8)
    d.text(626, 356, "floating credits: all 8 are lent", "small")
    for n in range(8):
        d.box(626 + n * 22, 363, 18, 14, "late", 3)
    return d


FIGURES = {"flow-control.svg": credit}
