"""Log lines on stderr, for the metrics reporter ``log`` in a program that has set up no logging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = ["metrics_on_stderr"]


@contextmanager
def metrics_on_stderr(reporters: Sequence[str]) -> Iterator[None]:
    """Within this context what the reporter ``log`` logs is seen, if it is among ``reporters``.

    Where the program has a handler for it already, nothing changes.
    """
    if "log" not in reporters:
        yield
        return
    import logging

    logger = logging.getLogger("sluiceway.metrics")
    if logger.hasHandlers():
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
