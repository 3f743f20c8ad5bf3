"""Renewal of the ES modules of others in ``sluiceway_web/static/vendor`` from npm: versions, hashes and licences.

    make vendored                       the recorded versions; says what differs
    make vendored ARGS=htm=3.1.1        another version of a package

``modules.json`` records what is there, and ``README.md`` shows it. A file of the recorded version whose hash is
not the recorded one is refused: packages of npm do not change.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

VENDOR = Path(__file__).parent / "sluiceway_web" / "static" / "vendor"
RECORD = VENDOR / "modules.json"


@dataclass(frozen=True, slots=True)
class Vendored:
    """File from a package of npm.

    Attributes:
        file: its name here.
        package: name of the package.
        version: version of the package.
        path: path of the file in the package.
        licence: SPDX name of its licence.
        sha256: of its bytes.
    """

    file: str
    package: str
    version: str
    path: str
    licence: str
    sha256: str


class VendorError(Exception):
    """The files were not renewed."""


def recorded(record: Path = RECORD) -> list[Vendored]:
    """Return the files that are here."""
    return [Vendored(**each) for each in json.loads(record.read_text())]


def table(files: list[Vendored]) -> str:
    """Return the text of the README."""
    rows = [
        f"| `{f.file}` | `{f.package}`, `{f.path}` | {f.version} | `{f.sha256}` | {f.licence} |" for f in files
    ]
    head = [
        "# Files of others",
        "",
        "Written by `make vendored`, which takes them from npm again. The module of htm contains Preact.",
        "",
        "| file | from the npm package | version | sha256 | licence |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def package_of_npm(package: str, version: str) -> bytes:
    """Return the archive of a package, whose integrity npm has checked. Raises VendorError."""
    with tempfile.TemporaryDirectory() as place:
        command = ["npm", "pack", "--silent", "--pack-destination", place, f"{package}@{version}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, cwd=place)
        except FileNotFoundError as error:
            raise VendorError("npm is not installed: it comes with Node.js") from error
        archives = list(Path(place).glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            raise VendorError(f"npm pack {package}@{version} has failed:\n{done.stderr.strip()}")
        return archives[0].read_bytes()


def renew(
    wanted: Mapping[str, str], vendor: Path = VENDOR, fetch: Callable[[str, str], bytes] = package_of_npm
) -> list[str]:
    """Write the files again, and what is recorded of them.

    Args:
        wanted: versions by package; of others the recorded ones.
        vendor: directory of the files.
        fetch: returns the archive of a package.

    Returns:
        list[str]: a line for each file that has changed.

    Raises:
        VendorError: a package cannot be had or lacks a file, or a file of the recorded version is another one. No
            file has been written then.
    """
    files = recorded(vendor / RECORD.name)
    if unknown := wanted.keys() - {f.package for f in files}:
        packages = ", ".join(sorted({f.package for f in files}))
        raise VendorError(f"nothing here is from {', '.join(sorted(unknown))}: the packages are {packages}")
    archives: dict[str, bytes] = {}
    found: dict[Vendored, bytes] = {}
    said = []
    for known in files:
        version = wanted.get(known.package, known.version)
        if known.package not in archives:
            archives[known.package] = fetch(known.package, version)
        content = _member(archives[known.package], known)
        renewed = replace(known, version=version, sha256=hashlib.sha256(content).hexdigest())
        if version == known.version and renewed.sha256 != known.sha256:
            raise VendorError(
                f"{known.path} of {known.package} {version} has the sha256 {renewed.sha256}, recorded is "
                f"{known.sha256}"
            )
        there = vendor / known.file
        if not there.is_file() or there.read_bytes() != content or renewed != known:
            said.append(f"{known.file}: {known.package} {known.version} -> {version}, sha256 {renewed.sha256}")
        found[renewed] = content
    for each, content in found.items():
        (vendor / each.file).write_bytes(content)
    rows = [{name: getattr(each, name) for name in Vendored.__slots__} for each in found]
    (vendor / RECORD.name).write_text(json.dumps(rows, indent=2) + "\n")
    (vendor / "README.md").write_text(table(list(found)))
    return said


def _member(archive: bytes, wanted: Vendored) -> bytes:
    with tempfile.TemporaryFile() as file:
        file.write(archive)
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:gz") as packed:
            try:
                member = packed.extractfile(f"package/{wanted.path}")
            except KeyError:
                member = None
            if member is None:
                raise VendorError(f"{wanted.package} has no file {wanted.path}")
            return member.read()


def main() -> None:
    """Renew the files."""
    parser = argparse.ArgumentParser(description=renew.__doc__.splitlines()[0] if renew.__doc__ else "")
    parser.add_argument("versions", nargs="*", metavar="PACKAGE=VERSION", help="another version of a package")
    given = parser.parse_args().versions
    if wrong := [each for each in given if not re.fullmatch(r"[a-z0-9@/._-]+=[0-9][0-9A-Za-z.+-]*", each)]:
        parser.error(f"{wrong[0]!r} is not PACKAGE=VERSION, as htm=3.1.1")
    try:
        said = renew(dict(each.split("=", 1) for each in given))
    except VendorError as error:
        sys.exit(f"error: {error}")
    print("\n".join(said) if said else "all files are what is recorded")


if __name__ == "__main__":
    main()
