"""Program of somebody else's engine, in a process of its own that is told what to run, line by line."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, ClassVar

__all__ = ["PeerProgram", "PeerUnavailableError", "done"]

_INSTALLATION_S = 1200


class PeerUnavailableError(Exception):
    """The peer cannot be run here; the text says why."""


class PeerProgram:
    """One process makes all runs, so that all but the first find its code compiled.

    Args:
        command: what to start. It reads a command from each line of standard input, with tabs between its words:
            ``check|run words|windows INPUT [OUTPUT]``. It prints the seconds of each run; ``check`` writes the
            results to a file, a line each, and prints 0.
    """

    NAME: ClassVar[str]
    """With the version."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def check(self, job: str, source: Path, results: Path) -> Sequence[str]:
        """Run ``words`` or ``windows`` and return a line of text for each result."""
        self._tell("check", job, str(source), str(results))
        return results.read_text().splitlines()

    def run(self, job: str, source: Path) -> float:
        """Run it, discard its results, and return the seconds that it took in the local cluster."""
        return self._tell("run", job, str(source))

    def close(self) -> None:
        _stream(self._process.stdin).close()
        self._process.wait()
        _stream(self._process.stdout).close()

    def _tell(self, *words: str) -> float:
        commands = _stream(self._process.stdin)
        commands.write("\t".join(words) + "\n")
        commands.flush()
        answer = _stream(self._process.stdout).readline()
        if not answer:
            raise RuntimeError(f"{self.NAME} ended with exit code {self._process.wait()} at {' '.join(words)}")
        return float(answer)


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def done(command: list[str]) -> None:
    """Run a step of the installation.

    Raises:
        PeerUnavailableError: it failed or took too long; the text has the first line that it said.
    """
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALLATION_S)
    except subprocess.TimeoutExpired:
        raise PeerUnavailableError(f"{command[0]} took longer than {_INSTALLATION_S} s") from None
    if ended.returncode:
        said = (ended.stdout + ended.stderr).strip().splitlines() or [f"exit code {ended.returncode}"]
        raise PeerUnavailableError(f"{command[0]} failed: {said[0]}")
