"""Commands of ``sluiceway`` that load a program, each in a process of its own and not in the server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from sluiceway_web._errors import RequestError

__all__ = ["MOST_TEXT", "ProgramRuns"]

MOST_TEXT: Final = 20_000
"""Characters of a program's output or error in an answer."""
_END_S: Final = 5.0
_MOST_OUTPUT: Final = 4 * 1024 * 1024
"""Bytes of standard output or error that are kept, from the end."""


class ProgramRuns:
    """Processes that run commands on programs; :meth:`close` ends them. In the event loop's thread.

    Args:
        most: number of processes at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: set[asyncio.subprocess.Process] = set()
        self._closed = False

    async def run(
        self, command: Sequence[str], environ: Mapping[str, str], *, within_s: float, late: str
    ) -> tuple[str, str]:
        """Run a command of ``sluiceway``, and return its standard output and error.

        Args:
            command: its name and arguments.
            environ: environment variables on top of the server's.
            within_s: time in seconds after which it is ended.
            late: message if it is ended so.

        Raises:
            RequestError: it failed; has what the command has written to standard error.
        """
        if self._closed or len(self._running) >= self._most:
            raise RequestError(503, f"{self._most} programs run already: try again later")
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "sluiceway", *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **environ, "NO_COLOR": "1"},
                start_new_session=True,  # what it starts ends with it
            )  # fmt: skip
        except ValueError as error:  # a NUL character, or one that cannot be encoded
            raise RequestError(400, f"An argument or option cannot be used: {error}") from None
        except OSError as error:
            raise RequestError(503, f"The program cannot be started: {error.strerror or error}") from None
        self._running.add(process)
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(within_s):
                out, err = await asyncio.gather(_last(process.stdout), _last(process.stderr))
                code = await process.wait()
        except TimeoutError:
            raise RequestError(400, late) from None
        finally:
            # Also after its end: what it has started in its session may still run.
            _kill(process)
            # Its pipes are closed when they were read to the end.
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await asyncio.gather(_last(process.stdout), _last(process.stderr), process.wait())
            self._running.discard(process)
        if code:
            raise RequestError(400, err.strip()[-MOST_TEXT:] or f"The program ended with code {code}")
        return out, err

    def close(self) -> None:
        """End all processes, and start none any more."""
        self._closed = True
        for process in self._running:
            _kill(process)


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill a process and what it has started in its session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def _last(stream: asyncio.StreamReader) -> str:
    """Return the end of what a stream brings."""
    parts: deque[bytes] = deque()
    size = 0
    while part := await stream.read(65_536):
        parts.append(part)
        size += len(part)
        while size - len(parts[0]) >= _MOST_OUTPUT:
            size -= len(parts.popleft())
    return b"".join(parts).decode(errors="replace")
