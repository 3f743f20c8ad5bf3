"""Exit codes of errors, also of those that a cluster refuses a request with."""

from __future__ import annotations

import pytest

from sluiceway import exit_codes
from sluiceway.errors import (
    CheckpointError,
    CheckpointFailedError,
    ConfigurationError,
    JobStoreError,
    NoResourceAvailableError,
    RescaleError,
    SluicewayError,
    StateError,
    StateQueryError,
)
from sluiceway.runtime.cluster.request_answers import RescaleAnswer
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.clients import Refused, RescaleJob


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JobStoreError("job.json cannot be written"), exit_codes.OUTSIDE),
        (CheckpointFailedError("no room"), exit_codes.OUTSIDE),
        (NoResourceAvailableError("2 slots are too few"), exit_codes.USAGE),
        (RescaleError("there is no step 'coutn'"), exit_codes.USAGE),
        (StateQueryError("the key 'ann' has no state"), exit_codes.USAGE),
        (ConfigurationError("job 'words-1' is finished already"), exit_codes.USAGE),
        (StateError("state 'last' was used without a key"), exit_codes.FAILED),
        (SluicewayError("something else"), exit_codes.FAILED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_code_of_an_error_is_the_same_where_a_cluster_refuses(error: SluicewayError, code: int) -> None:
    refused = Refused.by(1, error).error()
    assert (exit_codes.of(error), exit_codes.of(refused)) == (code, code)
    assert str(refused) == str(error)


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (None, exit_codes.USAGE),
        (NoResourceAvailableError("2 slots are too few"), exit_codes.USAGE),
        (CheckpointError("cannot be written"), exit_codes.OUTSIDE),
        (ValueError("raised in open()"), exit_codes.FAILED),
    ],
)
def test_code_of_a_refused_rescale_is_that_of_its_cause(cause: BaseException | None, code: int) -> None:
    sent: list[Message] = []
    problem = RescaleError("the job keeps its parallelism")
    problem.__cause__ = cause
    RescaleAnswer(RescaleJob(1, "words-1", 2, {}), sent.append).done(None, problem)
    (answer,) = sent
    assert isinstance(answer, Refused)
    assert exit_codes.of(answer.error()) == code
    assert "the job keeps its parallelism" in answer.reason
