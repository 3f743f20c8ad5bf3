"""Freed memory that stays in the process, seen by the page faults of arrays that come and go."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

numpy = pytest.importorskip("numpy")

_PROGRAM = """
import resource
import numpy as np
from sluiceway.util.allocator import keep_freed_memory

changed = {call}
made = [np.ones(1 << 17) for _ in range(4)]
del made
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    made = [np.ones(1 << 17) for _ in range(4)]
    del made
print(changed, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(call: str, **environment: str) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.replace("{call}", call)],
        check=True,
        capture_output=True,
        text=True,
        env={**{k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}, **environment},
    )
    changed, faults = done.stdout.split()
    return changed, int(faults)


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", ()), reason="needs glibc")
def test_arrays_that_are_made_again_cause_no_page_faults():
    changed, faults = _faults("keep_freed_memory()")
    assert changed == "True"
    assert faults < 5_000
    assert _faults("None")[1] > 20_000  # each array anew: 50 times 4 times 256 pages


@pytest.mark.parametrize(
    "environment", [{"MALLOC_TRIM_THRESHOLD_": "0"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=0"}]
)
def test_parameters_of_the_environment_stay(environment):
    assert _faults("keep_freed_memory()", **environment)[0] == "False"
