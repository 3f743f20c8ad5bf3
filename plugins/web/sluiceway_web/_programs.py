"""Programs that were uploaded: ``.py`` files and wheels. Each runs in a process of its own, not in the server."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message, Receive

from sluiceway_web._errors import RequestError
from sluiceway_web._program_directory import ProgramDirectory
from sluiceway_web._program_runs import ProgramRuns
from sluiceway_web._security import LONGEST_UPLOAD
from sluiceway_web._shapes import now_ms

__all__ = ["Program", "Programs"]

_MOST_KEPT: Final = 20
_MOST_AT_A_TIME: Final = 2
"""Uploads under way, and programs that run."""
_PATIENCE_S: Final = 60.0
"""Seconds that an upload may take, and a program until it has made its pipeline."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,120}\.(py|whl)", re.ASCII)


class Program(msgspec.Struct, frozen=True):
    """Program that was uploaded."""

    id: str
    name: str
    uploaded: int
    place: Path

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return self.place / self.name


class Programs:
    """Uploaded programs, in a private directory that is removed by :meth:`close`. In the event loop's thread."""

    def __init__(self) -> None:
        self._kept: dict[str, Program] = {}
        self._directory: ProgramDirectory | None = None
        self._uploads = 0
        self._runs = ProgramRuns(_MOST_AT_A_TIME)

    def all(self) -> list[Program]:
        """Return the programs, newest first."""
        return list(self._kept.values())[::-1]

    def find(self, wanted: str) -> Program:
        """Return the program with an id. Raises RequestError."""
        if wanted not in self._kept:
            raise RequestError(404, f"There is no program {wanted:.100}: GET /jars lists them")
        return self._kept[wanted]

    async def upload(self, request: Request) -> Program:
        """Keep the file of a request. Raises RequestError."""
        if len(self._kept) >= _MOST_KEPT:
            raise RequestError(409, f"{_MOST_KEPT} programs are kept already: delete one")
        if self._uploads >= _MOST_AT_A_TIME:
            raise RequestError(503, f"{_MOST_AT_A_TIME} uploads are under way: try again later")
        self._uploads += 1
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self._upload(request)
        except TimeoutError:
            raise RequestError(408, f"The upload took longer than {_PATIENCE_S:.0f} seconds") from None
        finally:
            self._uploads -= 1

    async def _upload(self, request: Request) -> Program:
        bounded = Request(request.scope, _bounded(request.receive))
        try:
            form = await bounded.form(max_files=1, max_fields=8)
        except HTTPException as error:
            raise RequestError(400, f"The body is not a form with a file: {error.detail}") from None
        try:
            files = [value for value in form.values() if isinstance(value, UploadFile)]
            if not files or not files[0].filename:
                raise RequestError(
                    400, "The body has no file: send a form with one, as curl -F jarfile=@FILE does"
                )
            name = files[0].filename
            if not _NAME.fullmatch(name):
                raise RequestError(
                    400, f"{name!r:.100} is no program: the name ends in .py or .whl, and has letters, digits, "
                    "'_', '.', '-', '+'"
                )  # fmt: skip
            # Here and not in the other thread: there may be two uploads at a time.
            if self._directory is None:
                self._directory = ProgramDirectory()
            return await asyncio.to_thread(self._keep, files[0], name, self._directory.path)
        finally:
            await form.close()

    def _keep(self, file: UploadFile, name: str, directory: Path) -> Program:
        number = secrets.token_hex(16)
        program = Program(f"{number}_{name}", name, now_ms(), directory / number)
        program.place.mkdir(mode=0o700)
        try:
            with open(program.path, "xb") as copy:
                shutil.copyfileobj(file.file, copy)
            if name.endswith(".whl"):
                _check_wheel(program.path)
        except BaseException:
            shutil.rmtree(program.place, ignore_errors=True)
            raise
        self._kept[program.id] = program
        return program

    async def delete(self, program: Program) -> None:
        """Remove a program. Jobs that it has submitted go on."""
        self._kept.pop(program.id, None)
        await asyncio.to_thread(shutil.rmtree, program.place, True)

    async def run(
        self,
        program: Program,
        command: Sequence[str],
        target: str,
        arguments: Sequence[str],
        options: Mapping[str, str],
    ) -> str:
        """Run a command of ``sluiceway`` on a program, and return its standard output.

        Args:
            program: the program.
            command: name and options of the command.
            target: what the command takes.
            arguments: of the program.
            options: of the run, by environment variable.

        Raises:
            RequestError: it failed; has the message of the command or the traceback of the program.
        """
        environ = {**options, **self.environment(program)}
        late = f"{program.name} has not made its pipeline within {_PATIENCE_S:.0f} seconds"
        try:
            out, _ = await self._runs.run([*command, target, *arguments], environ, within_s=_PATIENCE_S, late=late)
        except RequestError as error:
            raise RequestError(error.status, str(error).replace(f"{program.place}{os.sep}", "")) from None
        return out

    @staticmethod
    def environment(program: Program) -> dict[str, str]:
        """Return the environment variables with which the modules of a program are found."""
        if not program.name.endswith(".whl"):
            return {}
        path = filter(None, (str(program.path), os.environ.get("PYTHONPATH")))
        return {"PYTHONPATH": os.pathsep.join(path)}

    async def close(self) -> None:
        """End programs that run, and remove the directory."""
        self._runs.close()
        self._kept.clear()
        if self._directory is not None:
            await asyncio.to_thread(self._directory.remove)


def _bounded(receive: Receive) -> Receive:
    """Return a receiver that refuses a body in chunks that is too long: it has no length to be checked before."""
    taken = 0

    async def receiving() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > LONGEST_UPLOAD:
            raise RequestError(413, f"A program has at most {LONGEST_UPLOAD} bytes.")
        return message

    return receiving


def _check_wheel(path: Path) -> None:
    """Raise RequestError for a wheel that Python cannot import as it is."""
    try:
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise RequestError(400, f"{path.name} is no wheel: {error}") from None
    native = next((name for name in names if name.endswith((".so", ".pyd", ".dylib"))), None)
    if native is not None:
        raise RequestError(
            400,
            f"{path.name} has native code ({native:.100}): install it where the cluster runs, and submit a .py",
        )
