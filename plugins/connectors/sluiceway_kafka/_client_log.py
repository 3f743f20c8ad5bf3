"""Logs of the Kafka clients with repeated lines left out."""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import Final

from sluiceway.util.overriding import override

__all__ = ["RepeatedLines", "client_log"]

_QUIET_S: Final = 30.0
_MOST_KINDS: Final = 200
_VARYING: Final = re.compile(r"^(\S+) \[[^]]*\] (?:\[thrd:[^]]*\]: )?|\d+")
"""Names of client and thread, of which each client has its own, and numbers: what differs in lines of one kind."""


class RepeatedLines(logging.Filter):
    """Filter that lets one line of a kind through each 30 s, with the number of those that it has left out.

    Without a broker each client would log some twenty lines a second, for as long as it tries to connect.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()  # clients log in the threads that poll them
        self._kinds: dict[str, tuple[float, int]] = {}  # when a line was let through, and how many were not since

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True  # asked for with the property "debug"
        text = record.getMessage()
        kind = _VARYING.sub(lambda found: found[1] or "0", text)
        now = time.monotonic()
        with self._lock:
            at, left_out = self._kinds.get(kind, (now - _QUIET_S, 0))
            if now - at < _QUIET_S:
                self._kinds[kind] = at, left_out + 1
                return False
            self._kinds.pop(kind, None)
            if len(self._kinds) >= _MOST_KINDS:
                del self._kinds[next(iter(self._kinds))]  # the one that was let through the longest time ago
            self._kinds[kind] = now, 0
        if left_out:
            record.msg = f"{text} ({left_out} more lines of this kind in the last {now - at:.0f} s)"
            record.args = None
        return True


def client_log() -> logging.Logger:
    """Return the logger for clients of librdkafka."""
    logger = logging.getLogger("sluiceway_kafka.client")
    if not any(isinstance(each, RepeatedLines) for each in logger.filters):
        logger.addFilter(RepeatedLines())
    return logger
