"""The web server ``web``: Flink's REST API v1 and pages about jobs."""

from __future__ import annotations

from sluiceway.hooks import Offer, hookimpl


@hookimpl
def sluiceway_web_servers() -> list[Offer]:
    """Offer the server."""

    def load() -> object:
        from sluiceway_web._server import UvicornServer

        return UvicornServer

    about = "REST API and pages about jobs, for --web and sluiceway web"
    return [Offer("web", load, about, requires=("starlette", "uvicorn"), extra="web")]
