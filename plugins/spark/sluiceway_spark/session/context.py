"""Spark context of a session, which only a classic one has: a session of Spark Connect has none."""

from __future__ import annotations

from typing import Any

from sluiceway.errors import ConfigurationError

__all__ = ["context_of", "need_context", "tasks_at_a_time"]


def context_of(session: Any) -> Any:
    """Return the Spark context of a session; None: it is a session of Spark Connect."""
    try:
        return session.sparkContext
    except Exception:  # an AttributeError of PySpark's own, whose class is another one in each version
        return None


def tasks_at_a_time(session: Any, otherwise: int) -> int:
    """Return how many tasks Spark runs at a time.

    Args:
        session: the session.
        otherwise: returned over Spark Connect, whose client does not know.
    """
    context = context_of(session)
    return otherwise if context is None else int(context.defaultParallelism)


def need_context(session: Any, what: str, instead: str) -> Any:
    """Return the Spark context of a session.

    Args:
        session: the session.
        what: needs it, for the message.
        instead: advice for a program whose session has none.

    Raises:
        ConfigurationError: it is a session of Spark Connect.
    """
    if (context := context_of(session)) is None:
        raise ConfigurationError(
            f"{what} a classic session of Spark, which has a Spark context, and the one of this program is of "
            f"Spark Connect: {instead}"
        )
    return context
