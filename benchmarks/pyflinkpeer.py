"""PyFlink, in a virtual environment of its own, as its requirements do not go with ours."""

from __future__ import annotations

import shutil
import sys
import venv
from pathlib import Path

from benchmarks.peerprogram import PeerProgram, PeerUnavailableError, done

__all__ = ["VERSION", "PyFlink"]

VERSION = "2.3.0"
_PROGRAM = Path(__file__).parent / "peerfiles" / "pyflink_peer.py"


class PyFlink(PeerProgram):
    """Python process, its JVM, and the process in which Flink calls the Python functions.

    Args:
        directory: where the environment is kept.

    Raises:
        PeerUnavailableError: Java or the network is not there, or PyFlink cannot be installed for this Python.
    """

    NAME = f"PyFlink {VERSION}"

    def __init__(self, directory: Path) -> None:
        if shutil.which("java") is None:
            raise PeerUnavailableError("java is not installed")
        super().__init__([str(_python(directory)), str(_PROGRAM)])


def _python(directory: Path) -> Path:
    """The interpreter of the environment, which is made if it is not there."""
    environment = directory / f"pyflink-{VERSION}-{sys.version_info.major}.{sys.version_info.minor}"
    python = environment / "bin" / "python"
    complete = environment / "complete"
    if not complete.exists():
        venv.create(environment, with_pip=True, clear=True)
        done([str(python), "-m", "pip", "install", "--quiet", f"apache-flink=={VERSION}"])
        complete.touch()
    return python
