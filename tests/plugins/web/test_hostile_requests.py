"""Every path of the REST API with values that no client should send: an answer each time, never a status 500."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import pytest

PROGRAM: Final = """
import sluiceway as sw

flow = sw.Pipeline("numbers")
flow.generate(count=None).key_by(lambda n: n % 7).count().uid("count").for_each(lambda pair: None)
"""

VALUES: Final = (
    *("", "0", "-1", "1e309", "9" * 40, "0x10", "None", "null", "true", "١٢", "a" * 300),
    *("..", "../../etc/passwd", "%2e%2e", "\0", "\r\nSet-Cookie: a=b", "<script>", "'; drop", "$(id)", "\udcff"),
    *("*", ",", ",".join("ab" * 100), "nan", "-inf", "2147483648", "9223372036854775808", "{", "[]", "\u2028"),
)

BODIES: Final = (
    *(b"", b"{", b"[]", b"null", b"1", b'"x"', b"\xff\xfe", b"{}" * 9, b"[" * 5_000, b'{"a":' * 500),
    b'{"target-directory": 1}',
    b'{"target-directory": "\\u0000", "cancel-job": "no"}',
    b'{"checkpointType": {}}',
    b'{"drain": 1e400}',
    b'{"programArgs": "\\"", "parallelism": -1}',
    b'{"0": {"parallelism": {"lowerBound": -1, "upperBound": 1e30}}}',
)

ENDS: Final = ("/stop", "/yarn-cancel", "/cluster")
"""Paths that would end what is asked."""

PARAMETERS: Final = (
    "agg",
    "from",
    "get",
    "job",
    "maxExceptions",
    "mode",
    "parallelism",
    "subtaskindex",
    "to",
    "type",
)

REAL: Final = 0.7
"""Share of the path's values that name something that exists, and of the parameters that are given."""


def _text(value: str) -> str:
    return quote(value, safe="", errors="surrogatepass")


def _asked(page: Any, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Ask as fast as the server allows."""
    while True:
        status, _, answer = page.request(method, path, body)
        if status != 429:
            return status, answer
        time.sleep(0.05)  # polls


@pytest.mark.parametrize("rounds", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_no_value_leads_to_an_internal_error(show: Callable[..., Any], rounds: int) -> None:
    page = show(PROGRAM)
    job = page.until("/jobs/overview", lambda found: found["jobs"])["jobs"][0]["jid"]
    vertex = page.until(f"/jobs/{job}", lambda found: found["vertices"])["vertices"][-1]["id"]
    real = {"job": job, "vertex": vertex, "subtask": "0", "checkpoint": "1", "worker": "(local)"}
    document = page.get("/openapi.json")
    dice = random.Random(20)
    asked = 0
    for path, methods in sorted(document["paths"].items()):
        for method in sorted(methods):
            names = re.findall(r"{(\w+)}", path)
            for _ in range(rounds * (1 + len(names))):
                values = {
                    name: real.get(name, "1") if dice.random() < REAL else _text(dice.choice(VALUES))
                    for name in names
                }
                ends = path.endswith(ENDS) or (method, path) == ("patch", "/jobs/{job}")
                if ends and values.get("job", job) == job:
                    continue
                query = "&".join(
                    f"{name}={_text(dice.choice(VALUES))}" for name in PARAMETERS if dice.random() < REAL
                )
                body = dice.choice(BODIES) if method != "get" else None
                target = path.format(**values) + (f"?{query}" if query else "")
                status, answer = _asked(page, method.upper(), target, body)
                asked += 1
                assert status < 500 or status == 503, (method, target, body, answer)
                if status >= 400:
                    errors = json.loads(answer)["errors"]
                    assert errors, (method, target)
                    assert "Traceback" not in errors[0], (method, target, body, answer)
    assert asked > len(document["paths"])
    assert page.get(f"/jobs/{job}")["state"] == "RUNNING"
    for other in ("/jobs", "/live/jobs", "/static/app.mjs", "/"):
        for name in ("PUT", "DELETE", "TRACE", "X" * 50):
            assert _asked(page, name, other)[0] in (400, 404, 405)
    assert page.get("/overview")
    page.end()
