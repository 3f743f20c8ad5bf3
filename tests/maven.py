"""Artifacts of Maven Central for tests, unpacked once into the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["MavenUnavailableError", "unpacked"]


class MavenUnavailableError(Exception):
    """An artifact is not in the cache, and cannot be fetched. The message is a reason to skip a test."""


def unpacked(artifact: str, name: str, what: str, unpack: Callable[[Path, Path], object]) -> Path:
    """Return the directory of an artifact's content.

    Args:
        artifact: ``group:artifact:version``, with packaging and classifier where it is no jar.
        name: name of the directory in the cache, with the version.
        what: name of the content, for messages.
        unpack: writes the content of the artifact's file into a directory.

    Raises:
        MavenUnavailableError: there is no Maven, or Maven does not get the artifact.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluiceway"
    place = cache / name
    if place.is_dir():
        return place
    if shutil.which("mvn") is None:
        raise MavenUnavailableError(
            f"{what} is not in {place}, and Maven, which fetches it, is not installed "
            "(Debian: apt-get install maven)"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        done = subprocess.run(
            ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={temporary}"],
            cwd=temporary,
            timeout=600,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise MavenUnavailableError(f"Maven cannot fetch {what}:\n{done.stdout[-2000:]}")
        [file] = Path(temporary).iterdir()
        content = Path(temporary) / "unpacked"
        unpack(file, content)
        try:
            content.rename(place)
        except OSError:  # another process was faster
            assert place.is_dir()
    return place
