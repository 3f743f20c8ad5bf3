"""Raising of an exception that was raised before."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["raise_again"]


def raise_again(error: BaseException) -> NoReturn:
    """Raise an exception with the cause and the context that it has, also in a handler of another one.

    ``raise error from error.__cause__`` sets ``__suppress_context__``, so that the traceback lacks the exception
    that a user's function was handling; a plain ``raise error`` makes the exception handled here its context.
    """
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
