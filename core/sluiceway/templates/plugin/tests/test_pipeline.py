"""Both in a job, found by the name that the plugin offers them under."""

from __future__ import annotations

from pathlib import Path

import sluiceway as sw


def test_squares(tmp_path: Path) -> None:
    flow = sw.Pipeline("squares")
    flow.source("my-plugin", count=4).map(lambda n: n * n).sink("my-plugin", path=tmp_path / "squares.txt")
    flow.run()
    assert (tmp_path / "squares.txt").read_text() == "0\n1\n4\n9\n"
