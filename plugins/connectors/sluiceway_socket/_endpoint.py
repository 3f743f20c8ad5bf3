"""Address of a server, and the retries of a connection to it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sluiceway.config.options import duration_ms
from sluiceway.errors import ConfigurationError

__all__ = ["Endpoint"]

_HIGHEST_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server, and the patience to have with it.

    Attributes:
        host: name or address.
        port: TCP port.
        max_retries: how often to connect again, in all; None: for ever.
        retry_delay_s: seconds before each of these.
        connect_timeout_s: seconds that one attempt may take.
    """

    host: str
    port: int
    max_retries: int | None
    retry_delay_s: float
    connect_timeout_s: float

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def of(
        cls,
        host: str,
        port: int,
        max_retries: int | None,
        retry_delay: timedelta | float | str,
        connect_timeout: timedelta | float | str,
    ) -> Endpoint:
        """Check what a user gave. Raises ConfigurationError."""
        if not isinstance(host, str) or not host.strip():
            raise ConfigurationError(f"host={host!r} must be a host name or an IP address")
        if not isinstance(port, int) or not 0 < port <= _HIGHEST_PORT:
            raise ConfigurationError(f"port={port!r} must be a number from 1 to {_HIGHEST_PORT}")
        if max_retries == -1:
            max_retries = None
        if max_retries is not None and (not isinstance(max_retries, int) or max_retries < 0):
            raise ConfigurationError(f"max_retries={max_retries!r} must be 0 or more, or None for no limit")
        return cls(
            host.strip().removeprefix("[").removesuffix("]"),
            port,
            max_retries,
            _seconds("retry_delay", retry_delay, 0.0),
            _seconds("connect_timeout", connect_timeout, 0.001),
        )


def _seconds(name: str, value: timedelta | float | str, least: float) -> float:
    seconds: Any = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(value, str) and value.strip()[-1:].isalpha():  # without a unit it would be ms
        with suppress(ValueError):
            seconds = duration_ms(value) / 1000
    if not isinstance(seconds, (int, float)) or not least <= seconds < float("inf"):
        raise ConfigurationError(
            f"{name}={value!r} must be a timedelta, a text such as '500ms', or a number of seconds, at least "
            f"{least:g}"
        )
    return float(seconds)
