"""An exception that is raised again keeps its cause and its context."""

from __future__ import annotations

import traceback

import pytest

from sluiceway.util.raising import raise_again


def raised() -> KeyError:
    """Return an exception that was raised in the handler of another one."""
    try:
        try:
            int("x")
        except ValueError:
            raise KeyError("x")  # noqa: B904
    except KeyError as error:
        return error


def raise_in_handler(error: BaseException) -> None:
    """Raise it again while another one is handled."""
    try:
        raise RuntimeError("of an engine")
    except RuntimeError:
        raise_again(error)


def test_the_exception_that_was_handled_is_shown() -> None:
    error = raised()
    with pytest.raises(KeyError) as caught:
        raise_in_handler(error)
    assert caught.value is error
    text = "".join(traceback.format_exception(error))
    assert "ValueError: invalid literal" in text
    assert "During handling of the above exception" in text
    assert "of an engine" not in text


def test_a_cause_is_kept() -> None:
    error = raised()
    error.__cause__ = cause = OSError("gone")
    with pytest.raises(KeyError):
        raise_again(error)
    assert error.__cause__ is cause
    assert error.__suppress_context__


def test_none_as_the_cause_is_kept() -> None:
    error = raised()
    error.__suppress_context__ = True
    with pytest.raises(KeyError):
        raise_in_handler(error)
    assert "ValueError" not in "".join(traceback.format_exception(error))
