"""Ids of jobs and vertices: 32 hexadecimal digits, derived from names, as clients of Flink expect them."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from sluiceway.monitoring.infos import JobDescription, JobInfo, VertexInfo

__all__ = ["find_job", "find_vertex", "job_id", "rescale_id", "vertex_id"]

_BYTES: Final = 16


def _hash(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=_BYTES).hexdigest()


def job_id(store: str, job: str) -> str:
    """Return the id of a job, the same for each job manager over a job store."""
    return _hash("job", store, job)


def vertex_id(job: str, uid: str) -> str:
    """Return the id of a vertex of a job."""
    return _hash("vertex", job, uid)


def rescale_id(job: str, requested_ms: int) -> str:
    """Return the id of a rescale of a job: it has one at a time."""
    return _hash("rescale", job, str(requested_ms))


def find_job(jobs: Iterable[JobInfo], store: str, wanted: str) -> JobInfo | None:
    """Return the job with an id or a name of ours; None: there is none."""
    return next((j for j in jobs if wanted in (j.job, job_id(store, j.job))), None)


def find_vertex(description: JobDescription, job: str, wanted: str) -> VertexInfo | None:
    """Return the vertex with an id, a uid or a number of ours; None: there is none."""
    return next(
        (v for v in description.vertices if wanted in (vertex_id(job, v.uid), v.uid, str(v.id))),
        None,
    )
