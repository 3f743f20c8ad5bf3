"""Words of files, counted by one pipeline wherever it can run: here, on worker processes, and on Apache Spark.

``make demo`` ends with this, as far as it is installed; ``make demo-spark`` installs Spark and runs this alone.
Runs wordcount_files.py in each way, compares the totals with a count made here, and exits with 1 if they differ.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

PIPELINE = Path(__file__).with_name("wordcount_files.py")
WORD = re.compile(r"[a-z']+")
FILES = 4
NO_SPARK = "Spark is not installed; make demo-spark installs it (about 500 MB) and runs all four"


@dataclass
class Way:
    """One way to run the pipeline, and what came of it."""

    name: str
    options: list[str]
    spark: bool = False
    seconds: float = 0.0
    totals: dict[str, int] | None = None
    """None: not run."""


def ways() -> list[Way]:
    """All of them."""
    two = ["--workers", "2", "--parallelism", "2"]
    return [
        Way("in one process", []),
        Way("two workers", two),
        Way("Spark's own batch job", ["--engine", "spark", "--parallelism", "2"], spark=True),
        Way("two workers, run by Spark", ["--engine", "spark", "--hosted", *two], spark=True),
    ]


def write(text: str, directory: Path) -> None:
    """Put the lines into some files."""
    directory.mkdir()
    lines = text.splitlines(keepends=True)
    size = -(-len(lines) // FILES)
    for number in range(FILES):
        (directory / f"part-{number}.txt").write_text("".join(lines[number * size :][:size]), encoding="utf-8")


def run(way: Way, files: Path, totals: Path) -> None:
    """Have the pipeline count, through the command line. Exits if it fails."""
    command = ["run", *way.options, os.path.relpath(PIPELINE), str(totals), str(files)]
    print("$", shlex.join(["sluiceway", *command[:-2], totals.name, files.name]), flush=True)
    started = time.perf_counter()
    ended = subprocess.run([sys.executable, "-m", "sluiceway", *command])
    way.seconds = time.perf_counter() - started
    if ended.returncode:
        sys.exit(f"sluiceway run failed with exit code {ended.returncode}")
    way.totals = read(totals)


def read(totals: Path) -> dict[str, int]:
    """Return the pipeline's output: a word and its total in each line, no word twice."""
    found: dict[str, int] = {}
    for path in sorted(totals.iterdir()):
        for line in path.read_text(encoding="utf-8").splitlines():
            word, _, total = line.rpartition(" ")
            # Whoever counts a word in two places has not counted it.
            found[word] = -1 if word in found else int(total)
    return found


def agree(way: Way, expected: Counter[str]) -> bool:
    """Compare, and tell of what is wrong."""
    if way.totals is None or way.totals == expected:
        return True
    wrong = [word for word in way.totals.keys() | expected.keys() if way.totals.get(word, 0) != expected[word]]
    print(f"\n{way.name}: {len(wrong):,} TOTALS ARE WRONG, for instance:")
    for word in sorted(wrong)[:10]:
        print(f"  {word}: counted {way.totals.get(word, 0):,}, should be {expected[word]:,}")
    return False


def compare(text: str, no_workers: str | None = None) -> int:
    """Run every way that is installed, and print how they compare; the exit code.

    Args:
        text: what to count.
        no_workers: why there cannot be two workers here, or None.
    """
    no_spark = None if find_spec("pyspark") else NO_SPARK
    expected = Counter(WORD.findall(text.lower()))
    print(f"\nOne pipeline, {PIPELINE.name}, wherever it can run: {len(text) / 1e6:,.1f} MB in {FILES} files")
    tried = ways()
    reasons = {way.name: (way.spark and no_spark) or (way.options and no_workers) for way in tried}
    with tempfile.TemporaryDirectory(prefix="sluiceway-demo-") as place:
        write(text, Path(place, "text"))
        for number, way in enumerate(tried):
            if not reasons[way.name]:
                run(way, Path(place, "text"), Path(place, f"totals-{number}"))
    if wrong := [way for way in tried if not agree(way, expected)]:
        print(f"\n{len(wrong)} of {len(tried)} ways are wrong")
        return 1
    print(f"\n{expected.total():,} words, {len(expected):,} totals: the same in every way. From start to exit:")
    for way in tried:
        ran = way.totals is not None
        print(f"  {way.name:<28}" + (f"{way.seconds:>6.1f} s" if ran else f"not run: {reasons[way.name]}"))
    return 0


def main() -> int:
    """Run the comparison alone."""
    from demo import sources

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=float, default=5, help="how much text at the most (5)")
    text, _ = sources(parser.parse_args().megabytes)
    return compare(text)


if __name__ == "__main__":
    sys.exit(main())
