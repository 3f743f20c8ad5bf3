"""Hottest keys of a job that runs, by the REST API and in the diagnosis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from plugins.web.conftest import Page
from plugins.web.test_diagnosis_of_jobs import HEAD, SKEW, finding

from sluiceway.monitoring.key_samples import StepKeys


def test_a_skewed_key_is_named_once_keys_were_counted(show: Callable[..., Page]) -> None:
    page = show(HEAD + SKEW, "--workers", "1")
    told = page.until("/jobs/planted/diagnosis", lambda told: finding(told)[0] == "skew")
    assert "hottest key" not in finding(told)[1]
    source, keyed, *_ = page.get("/jobs/planted")["vertices"]
    path = f"/jobs/planted/vertices/{keyed['id']}/hot-keys"

    def steady(told: dict[str, Any]) -> bool:
        # Of so short a time more than half may be what the other subtasks had in their queues.
        return bool(told["keys"] and told["keys"][0]["share"] > 0.5)

    found = msgspec.convert(page.until(f"{path}?seconds=0.5", steady), StepKeys)
    assert found.keys[0].key == "0"
    assert found.records > 50
    told = page.until("/jobs/planted/diagnosis", lambda told: "hottest key" in finding(told)[1])
    assert "The hottest key, 0, has " in finding(told)[1]
    assert told["slow"][0]["key"] == "0"

    refused = page.get(f"{path}?seconds=11", 400)
    assert refused["errors"] == ["seconds is a number up to 10, not '11'"]
    refused = page.get(f"/jobs/planted/vertices/{source['id']}/hot-keys?seconds=0.1", 404)
    assert refused["errors"] == ["no keys of job 'planted' were counted: no task that runs has keys"]
    page.end()
