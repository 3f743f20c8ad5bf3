"""A PostgreSQL server of one's own, where it is installed: in a new directory, on a socket there."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["programs", "server"]

USER = "tests"


def programs() -> Path | None:
    """Return the directory of initdb and pg_ctl, which distributions keep out of PATH."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return places[-1].parent if places else None


def _other_user() -> str | None:
    """Return the user that runs the server, None for this one. The server refuses root."""
    if os.getuid():
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"


@contextmanager
def server(where: Path, *, durable: bool = False) -> Iterator[str]:
    """Start a server; gives the directory of its socket.

    Args:
        where: the directory of its programs.
        durable: whether commits are to outlive a loss of power.
    """
    user = _other_user()
    place = tempfile.mkdtemp(prefix="sluiceway-pg-", dir="/tmp")  # a socket's path is short
    if user is not None:
        os.chown(place, pwd.getpwnam(user).pw_uid, -1)

    def call(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [where / program, "-D", f"{place}/data", *arguments],
            user=user,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.decode())

    fsync = "on" if durable else "off"
    settings = f"-k {place} -c listen_addresses='' -c fsync={fsync} -c dynamic_shared_memory_type=mmap"
    try:
        call("initdb", "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        call("pg_ctl", "-w", "-l", f"{place}/log", "-o", settings, "start")
        try:
            yield place
        finally:
            call("pg_ctl", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(place)
