"""Sink that prints records."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal, TextIO

from sluiceway.connector import Sink, SinkWriter, Wait, WriterContext
from sluiceway.errors import ConfigurationError, ConnectorError, SuppressRestartsError
from sluiceway.record_errors import record_loop

__all__ = ["OutputClosedError", "PrintSink"]


class OutputClosedError(ConnectorError, SuppressRestartsError):
    """The reader of standard output, or of standard error, is gone: no restart brings it back."""


class PrintSink(Sink[Any]):
    """Sink that prints each record on a line of its own, as ``str`` shows it.

    With several subtasks, the number of the subtask stands before it, counted from 1: ``2> value``. With a
    label it is ``label> value``, or ``label:2> value``. Lines of a batch are written at once and flushed when
    input runs dry. ``sys.stdout`` is looked up at each write, so whatever replaces it gets the lines.

    Args:
        label: put before each record.
        stream: ``stdout`` or ``stderr``.

    Raises:
        ConfigurationError: the label is no text, or there is no such stream.
    """

    def __init__(self, label: str = "", *, stream: Literal["stdout", "stderr"] = "stdout") -> None:
        if not isinstance(label, str):
            raise ConfigurationError(f"label={label!r:.60} must be a text, which is put before each record")
        if stream not in ("stdout", "stderr"):
            raise ConfigurationError(f"stream={stream!r} must be 'stdout' or 'stderr'")
        self._label = label
        self._stream: Literal["stdout", "stderr"] = stream

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        """Make a writer with its prefix."""
        marks = [self._label] if self._label else []
        if context.parallelism > 1:
            marks.append(str(context.subtask + 1))
        return _PrintWriter(f"{':'.join(marks)}> " if marks else "", self._stream)


class _PrintWriter(SinkWriter[Any]):
    def __init__(self, prefix: str, stream: Literal["stdout", "stderr"]) -> None:
        self._prefix = prefix
        self._stream = stream

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        # Not in the loop over records: what cannot be written is not the last one.
        self._print("".join(self._lines(values)))

    @record_loop
    def _lines(self, values: Sequence[Any]) -> list[str]:
        prefix = self._prefix
        lines = []
        for value in values:
            lines.append(f"{prefix}{value!s}\n")
        return lines

    def blocked(self) -> Wait | None:
        # What takes the place of a stream where a worker is far away says when there is room.
        room = getattr(getattr(sys, self._stream), "room", None)
        return None if room is None else room()

    def flush(self) -> None:
        self._print("", flush=True)

    def _print(self, text: str, flush: bool = False) -> None:
        stream: TextIO | None = getattr(sys, self._stream)
        if stream is None:  # a program without a console
            return
        try:
            stream.write(text)
            if flush:
                stream.flush()
        except UnicodeEncodeError as error:
            characters = error.object[error.start : error.end]
            line = error.object[error.object.rfind("\n", 0, error.start) + 1 :].partition("\n")[0]
            raise ConnectorError(
                f"cannot print {characters!r} of the line {line!r:.200}: {self._stream} is {error.encoding}. "
                "PYTHONIOENCODING=utf-8:backslashreplace makes it take every character"
            ) from error
        except BrokenPipeError as error:
            # Of its own class: an exception of a worker process comes without its cause.
            raise OutputClosedError(f"cannot print: {self._stream} is closed or broken ({error})") from error
        except (OSError, ValueError) as error:
            raise ConnectorError(f"cannot print: {self._stream} is closed or broken ({error})") from error
