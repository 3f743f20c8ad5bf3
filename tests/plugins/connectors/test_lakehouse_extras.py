"""Sources and sinks of Delta Lake and Iceberg without the libraries that they need."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.patience import PATIENT_S

# A module that is None in sys.modules cannot be imported, and has no spec.
PROGRAM = """
import sys

for name in sys.argv[1:]:
    sys.modules[name] = None
import sluiceway_lakehouse
from sluiceway.cli import main
from sluiceway.errors import MissingExtraError

for name in sluiceway_lakehouse.__all__:
    try:
        getattr(sluiceway_lakehouse, name)
    except MissingExtraError as error:
        print(error)
main(["plugins", "list"])
"""


@pytest.mark.parametrize("missing", ["pyarrow", "numpy"])
def test_a_missing_extra_is_named(missing: str) -> None:
    """In another process, which has imported none of them."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, missing], capture_output=True, text=True, timeout=PATIENT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for line, name in zip(lines, ["DeltaSink", "DeltaSource", "IcebergSink", "IcebergSource"], strict=False):
        extra = "delta" if name.startswith("Delta") else "iceberg"
        assert line.startswith(f"{name} needs {missing}: "), line
        assert f"[{extra}]" in line
    for extra in ("delta", "iceberg"):
        [listed] = [line for line in lines if line.split()[:2] == ["connector", extra]]
        assert f"needs {missing}" in listed or f" and {missing}: " in listed
        assert f"[{extra}]" in listed
