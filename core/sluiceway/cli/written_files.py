"""Files that a command writes where its user wants them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sluiceway.errors import ConfigurationError

__all__ = ["writing"]


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn an error of the file system into a ConfigurationError that says what cannot be written, and why.

    Args:
        what: the option and its value, or the path.
    """
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{what} cannot be written: {error.strerror or error}") from error
