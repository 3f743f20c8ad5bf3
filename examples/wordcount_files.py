"""Count the words of files, and write the totals to files: the same in one process, on workers, and on Spark.

Run it, in a directory with text files of yours::

    sluiceway run examples/wordcount_files.py totals *.txt
    sluiceway run examples/wordcount_files.py --workers 2 totals *.txt
    sluiceway run examples/wordcount_files.py --engine spark --hosted --workers 2 totals *.txt
    python examples/wordcount_files.py [--assert]
"""

import re
import sys
import tempfile
from pathlib import Path

import sluiceway as sw
from sluiceway.windows import GlobalWindows
from sluiceway_files import FilesSink, FilesSource

WORD = re.compile(r"[a-z']+")


def words(line: str) -> list[tuple[str, int]]:
    """Each word of a line, with how often it is there so far."""
    return [(word, 1) for word in WORD.findall(line.lower())]


def add(one: tuple[str, int], other: tuple[str, int]) -> tuple[str, int]:
    """The same word, as often as both."""
    return one[0], one[1] + other[1]


def flow(arguments: list[str]) -> sw.Pipeline:
    """Take the directory for the totals, which must not have any yet, and the files to read."""
    if len(arguments) < 2:
        sys.exit("wordcount_files takes a directory for the totals, and files to read: totals *.txt")
    totals, *files = arguments
    flow = sw.Pipeline("wordcount-files")
    (
        flow.source(FilesSource.text(files))
        .flat_map(words)
        .key_by(lambda pair: pair[0])
        .window(GlobalWindows.create_with_end_of_stream_trigger())
        .reduce(add)
        .sink(FilesSink.text(totals, to_text=lambda pair: f"{pair[0]} {pair[1]}"))
    )
    return flow


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        text = Path(place, "hamlet.txt")
        text.write_text("To be, or not to be,\nthat is the question\n")
        flow([f"{place}/totals", str(text)]).run()
        lines = sorted(line for file in Path(place, "totals").iterdir() for line in file.read_text().splitlines())
        print(*lines, sep="\n")
        if "--assert" in sys.argv:
            assert lines == ["be 2", "is 1", "not 1", "or 1", "question 1", "that 1", "the 1", "to 2"]
