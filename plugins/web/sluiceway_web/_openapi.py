"""OpenAPI document of the REST API, from the routes and the types of their answers."""

from __future__ import annotations

import re
import typing
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sluiceway_web._errors import JsonResponse

__all__ = ["document", "openapi"]


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the document. Routes under ``/v1`` are left out: they are the same ones again."""
    shown = [route for route in routes if not route.path.startswith("/v1/")]
    types = [_type_of(route) for route in shown]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for route, schema in zip(shown, schemas, strict=True):
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)
        for method in sorted(route.methods or ()):
            if method != "HEAD":
                paths.setdefault(path, {})[method.lower()] = _operation(route, path, schema)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sluiceway",
            "version": "v1",
            "description": "Flink's REST API v1 over jobs of Sluiceway, with additional fields.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, path: str, schema: dict[str, Any]) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]
    if path.endswith("metrics"):
        parameters.append(_query("get", "Names of metrics, separated by commas; without it, names are returned."))
    if path.endswith("flamegraph"):
        parameters += [
            _query("type", "`full`, `on_cpu` or `off_cpu`."),
            _query("from", "Begin of the samples, ms since the epoch. Default: one minute before the end."),
            _query("to", "Their end. Default: now."),
        ]
        if "{vertex}" in path:
            parameters.append(_query("subtaskindex", "One subtask only."))
    if re.search(r"/(log|stdout|logs/\{file\})$", path):
        parameters += [
            _query("offset", "First byte of the file. Default: the end of the file is returned."),
            _query("size", "Most bytes, up to 1 MiB. A Range header may be sent in place of the two."),
        ]
    if path.endswith("/state/key"):
        parameters += [
            _query("uid", "Uid of the step."),
            _query("state", "Name of the state."),
            _query("key", "Key, as JSON or as text."),
            _query(
                "live", "`true`: ask the task that has the key. Default: the last completed checkpoint is read."
            ),
        ]
    if path.endswith("/dead-letters"):
        parameters += [
            _query("step", "Name of a step. Default: all."),
            _query("limit", "Largest number of letters, up to 200. Default: 100."),
        ]
    if path.endswith("hot-keys"):
        parameters.append(_query("seconds", "Time to count, at most 10. Default: 2."))
    refused = {"description": "Refused; `errors` has the reason.", "content": {"application/json": {}}}
    return {
        "summary": (route.endpoint.__doc__ or "").partition("\n")[0],
        "parameters": parameters,
        "responses": {
            "200": {"description": "The answer.", "content": {"application/json": {"schema": schema}}},
            "4XX": refused,
            "503": refused,
        },
    }


def _query(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": {"type": "string"}}


def _type_of(route: Route) -> Any:
    found = typing.get_type_hints(route.endpoint).get("return", Any)
    return Any if found in (Response, None, type(None)) else found


def openapi(routes: Sequence[Route]) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of the document."""
    made: list[dict[str, Any]] = []

    async def answer(request: Request) -> Response:
        if not made:
            made.append(document(routes))
        return JsonResponse(made[0])

    return answer
