"""Keys and splits of classes that a script defines, over two runs of it on Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENT_S

from sluiceway_spark.session.pyspark_version import MICRO_BATCHES, too_old

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(too_old(MICRO_BATCHES) is not None, reason=f"micro-batches: {too_old(MICRO_BATCHES)}"),
]

SCRIPT = """
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import sluiceway as sw
from sluiceway_files import FilesSink

class Kind(Enum):
    EVEN = 0
    ODD = 1

@dataclass(frozen=True)
class Meter:
    kind: Kind

NOTE = "failed"

def line(pair):
    meter, n = pair
    assert type(meter) is Meter
    if n == 100 and not Path(NOTE).exists():
        Path(NOTE).touch()
        raise ValueError("the 100th")
    return f"{meter.kind.name} {n}"

flow = sw.Pipeline("meters", parallelism=2)
meters = flow.generate(count=400, rate=400).uid("numbers").map(lambda n: Meter(Kind(n % 2)))
counted = meters.key_by(lambda meter: meter).count().uid("count")
counted.map(line).sink(FilesSink.text("out")).uid("files")

if __name__ == "__main__":
    flow.run(engine="spark", checkpoints="runs", restart="none", resume=len(sys.argv) > 1)
"""


def test_a_script_goes_on_with_its_own_classes(tmp_path: Path) -> None:
    script = tmp_path / "meters.py"
    script.write_text(SCRIPT)
    for options, code in (([], 1), (["again"], 0)):
        done = subprocess.run(
            [sys.executable, script, *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENT_S,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert code == 0 or "the 100th" in done.stderr
    lines = [line for file in (tmp_path / "out").iterdir() for line in file.read_text().splitlines()]
    assert sorted(lines) == sorted(f"{kind} {n}" for kind in ("EVEN", "ODD") for n in range(1, 201))
