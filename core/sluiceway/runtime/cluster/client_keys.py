"""Request of a client for samples of the keys that tasks of a job receive."""

from __future__ import annotations

from typing import Final

from sluiceway.errors import SluicewayError
from sluiceway.monitoring.key_samples import KeySample
from sluiceway.runtime.cluster.client import ClusterClient
from sluiceway.runtime.messages.keys import JobKeysSampled, SampleJobKeys

__all__ = ["client_keys"]

_ANSWER_S: Final = 30.0


def client_keys(client: ClusterClient, job: str, vertices: list[int], seconds: float) -> list[KeySample]:
    """Count the keys of the records that keyed tasks of a job receive, and return the samples.

    Args:
        client: of the cluster.
        job: id of the job.
        vertices: ids of its vertices; empty: all.
        seconds: time, at most 60.

    Raises:
        SluicewayError: the job does not run, or no such task is keyed.
    """
    answer = client.request(lambda number: SampleJobKeys(number, job, vertices, seconds), seconds + _ANSWER_S)
    assert isinstance(answer, JobKeysSampled)
    if not answer.samples:
        why = "; ".join(answer.problems) or "no task that runs has keys"
        raise SluicewayError(f"no keys of job {job!r} were counted: {why}")
    return answer.samples
