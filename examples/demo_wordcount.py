"""The pipeline that demo.py runs: words from a TCP server, counted; the final counts go into a file.

sluiceway run examples/demo_wordcount.py --port 9999 --counts counts.json
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

import sluiceway as sw
from sluiceway.connector import SinkWriter, WriterContext
from sluiceway_socket import SocketSource

WORD = re.compile(r"[^\W\d]\w*")


class FinalCounts(sw.Sink[tuple[str, int]]):
    """Remembers the last count of each word, and writes all of them when the input has ended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def max_writers(self) -> int:
        """One file, one writer."""
        return 1

    def create_writer(self, context: WriterContext) -> SinkWriter[tuple[str, int]]:
        """Make the writer."""
        return FinalCountsWriter(self.path)


class FinalCountsWriter(SinkWriter[tuple[str, int]]):
    """Writes for a FinalCounts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: dict[str, int] = {}

    def write(self, values: Sequence[tuple[str, int]], timestamps: Sequence[int] | None) -> None:
        """Take running counts: a later one of a word takes the place of an earlier one."""
        self.counts.update(values)

    def finish(self) -> None:
        """Write the file."""
        self.path.write_text(json.dumps(self.counts))


def words(line: str) -> list[str]:
    """The words of a line."""
    return WORD.findall(line.lower())


def flow(arguments: list[str]) -> sw.Pipeline:
    """Build the pipeline from the arguments that follow the file's name."""
    parser = argparse.ArgumentParser(prog="demo_wordcount.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True, help="where the server listens")
    parser.add_argument("--counts", type=Path, required=True, help="the file to write")
    options = parser.parse_args(arguments)

    pipeline = sw.Pipeline("demo-wordcount")
    (
        pipeline.source(SocketSource(options.host, options.port))
        .flat_map(words)
        .key_by(lambda word: word)
        .count()
        .sink(FinalCounts(options.counts))
    )
    return pipeline
