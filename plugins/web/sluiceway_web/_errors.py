"""Errors of requests, and the JSON that answers them."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from sluiceway.util.surrogates import json_bytes

__all__ = ["JsonResponse", "RequestError", "error_response"]


class RequestError(Exception):
    """Request that cannot be answered.

    Args:
        status: HTTP status.
        message: for people.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class JsonResponse(Response):
    """Response that encodes a value of builtins, structs and dataclasses as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the content."""
        return json_bytes(content)


def error_response(status: int, message: str) -> JsonResponse:
    """Return the response to a request that cannot be answered."""
    return JsonResponse({"errors": [message]}, status_code=status, headers={"Cache-Control": "no-store"})
