"""End of a hosted worker, carried to the driver in the message of the exception that ends its task."""

from __future__ import annotations

import base64
import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

__all__ = ["MARK", "WorkerEnd", "ends_in"]

MARK: Final = "sluiceway-worker-ended"
# Base64 has neither braces nor spaces, so whatever a worker said, the end of a message is where it ends.
_ENDED: Final = re.compile(rf"{MARK} ([A-Za-z0-9+/=]+)\.")


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """Report of how a worker ended.

    Attributes:
        worker: its name.
        how: clause that follows the name in messages.
        said: what it wrote to standard error before it was up.
        killed: whether somebody or something else ended it.
        hopeless: whether another one would end in the same way.
    """

    worker: str
    how: str
    said: str = ""
    killed: bool = False
    hopeless: bool = False

    def encoded(self) -> str:
        """Return it as a message, for :func:`ends_in`."""
        return f"{MARK} {base64.b64encode(json.dumps(asdict(self)).encode()).decode()}."


def ends_in(text: str) -> dict[str, WorkerEnd]:
    """Return the reports in a text of Spark, by worker. What cannot be decoded is left out."""
    found = {}
    for encoded in _ENDED.findall(text):
        with suppress(ValueError, TypeError):  # cut off by Spark, or somebody else's
            end = WorkerEnd(**json.loads(base64.b64decode(encoded, validate=True)))
            found[end.worker] = end
    return found
