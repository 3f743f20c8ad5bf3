"""Flink, by a small Java program: the jars of one version from Maven Central, each checked against its checksum.

They are downloaded by Maven into a directory of the user's choice, and stay there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from benchmarks.peerprogram import PeerProgram, PeerUnavailableError, done

__all__ = ["VERSION", "Flink"]

VERSION = "1.20.3"
_FILES = Path(__file__).parent / "peerfiles"
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_OPENED = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.util", "java.time")]


class Flink(PeerProgram):
    """JVM that runs the jobs when it is told to.

    Args:
        directory: where the jars and the compiled program are kept.

    Raises:
        PeerUnavailableError: Java, Maven or the network is not there, or a jar is not the expected one.
    """

    NAME = f"Flink {VERSION}"

    def __init__(self, directory: Path) -> None:
        for program in ("java", "javac"):
            if shutil.which(program) is None:
                raise PeerUnavailableError(f"{program} is not installed")
        jars = _jars(directory)
        classes = directory / "classes"
        path = f"{jars}/*"
        done(["javac", "-nowarn", "-cp", path, "-d", str(classes), str(_FILES / "FlinkPeer.java")])
        super().__init__(["java", *_OPENED, "-cp", os.pathsep.join((path, str(classes))), "FlinkPeer"])


def _jars(directory: Path) -> Path:
    """The directory with all jars, downloaded unless they are there."""
    jars = directory / f"flink-{VERSION}"
    expected = dict(reversed(line.split()) for line in (_FILES / "jars.sha256").read_text().splitlines())
    if not jars.is_dir():
        if shutil.which("mvn") is None:
            raise PeerUnavailableError(f"{jars} is not there, and mvn is not installed to download it")
        directory.mkdir(parents=True, exist_ok=True)
        partial = directory / f"flink-{VERSION}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        options = [f"-Dmaven.repo.local={directory / 'maven'}", f"-DoutputDirectory={partial.absolute()}"]
        done(["mvn", "-q", "-B", "-f", str(_FILES / "pom.xml"), _PLUGIN, *options])
        _verify(partial, expected)
        partial.rename(jars)
    _verify(jars, expected)
    return jars


def _verify(jars: Path, expected: dict[str, str]) -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in jars.glob("*.jar")}
    wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    if wrong:
        raise PeerUnavailableError(f"jars in {jars} are not those of jars.sha256: {', '.join(wrong)}")
