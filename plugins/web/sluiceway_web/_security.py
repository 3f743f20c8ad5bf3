"""Access control: token, host name, origin, and bounds of requests."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Iterable
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluiceway.monitoring.web_server import WebOptions
from sluiceway_web._errors import error_response

__all__ = ["HEADERS", "LONGEST_BODY", "LONGEST_UPLOAD", "Guard", "is_loopback"]

LONGEST_BODY: Final = 64 * 1024
"""Bytes of the body of a request."""
LONGEST_UPLOAD: Final = 32 * 1024 * 1024
"""Bytes of the body of an upload, where uploads are allowed."""
_MOST_DISCARDED: Final = 256 * 1024 * 1024
_DISCARD_S: Final = 5.0
"""Seconds without any data after which the rest of a refused body is not waited for."""
_DISCARD_ALL_S: Final = 60.0
"""Seconds for all of the rest: a client that sends a byte now and then does not keep its connection."""
_MOST_PER_S: Final = 200.0
"""Requests per second that are answered: for all clients with the token together, and for all without it."""
_BURST: Final = 400.0
_READS: Final = ("GET", "HEAD")

HEADERS: Final = {
    # Modules of another version must not meet those of this one: they are asked for again, and mostly not sent.
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_NO_TOKEN: Final = "The token is missing or wrong: open the printed link, or send Authorization: Bearer TOKEN."

_LINK: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>Sluiceway</title>
<main><h1>{title}</h1>
<p>{reason}</p>
<p>Open the link that was printed when the web interface was started: it has the token that this page needs.
Where it has scrolled away:</p>
<ul>
<li>a job that was started by <code>sluiceway run --web</code> prints it before its first line of output;</li>
<li>for a cluster, <code>sluiceway web</code> starts another web interface, and prints its link.</li>
</ul>
</main></html>
"""
"""Page without styles: those of the other pages need the token."""


def is_loopback(host: str) -> bool:
    """Return True if a name or an address is that of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class _Allowance:
    """Number of requests that may be answered now."""

    def __init__(self) -> None:
        self._left = _BURST
        self._refilled = time.monotonic()

    def take(self) -> bool:
        """Take one. Returns False if there is none left."""
        now = time.monotonic()
        self._left = min(_BURST, self._left + (now - self._refilled) * _MOST_PER_S)
        self._refilled = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Guard:
    """Middleware that lets only authorized requests pass.

    A request needs the token as a bearer token or as a cookie, which the link with the token sets. The Host header
    must name the server, against DNS rebinding; a request that changes something must come from a page of the same
    origin or from a program.

    Args:
        app: the application behind it.
        options: of the server.
        port: the port that is bound, which is part of the cookie's name: cookies do not differ by port.
    """

    def __init__(self, app: ASGIApp, options: WebOptions, port: int) -> None:
        self._app = app
        self._options = options
        self._token = options.token.encode()
        self.cookie = f"sluiceway-{port}"
        self._allowances = {True: _Allowance(), False: _Allowance()}
        self._open = 0
        self._last_end = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Return the seconds for which no request was open. From any thread."""
        return 0.0 if self._open else time.monotonic() - self._last_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that may not pass, and hand on the others."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        root = scope.get("root_path", "")
        if root and scope["path"].startswith(f"{root}{root}/"):
            # The proxy has left its path there, and the server has put it in front once more.
            scope = {**scope, "path": scope["path"].removeprefix(root)}
        headers = Headers(scope=scope)
        body = _Body(receive)
        send = _with_rest_discarded(send, body)
        refused = self._refusal(scope, headers)
        if refused is not None:
            await refused(scope, body.receive, send)
            return
        self._open += 1
        try:
            await self._app(scope, body.receive, _with_headers(send))
        finally:
            self._open -= 1
            self._last_end = time.monotonic()

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        bearer_sent, cookie_sent = _bearer(headers), self._of_cookie(headers)
        bearer = self._is_token(bearer_sent)
        has_token = bearer or self._is_token(cookie_sent)
        # Cheapest first; nothing about tokens is told before the host is known to be right. Whoever has no token
        # takes nothing away from those who have it.
        if not self._allowances[has_token].take():
            return error_response(429, f"More than {_MOST_PER_S:.0f} requests per second: try again later.")
        if not self._right_host(headers):
            return error_response(
                400, f"The Host header {headers.get('host', '')!r:.100} does not name this server."
            )
        method, path = scope["method"], scope["path"].removeprefix(scope.get("root_path", ""))
        if method in _READS and path in ("", "/") and (given := _token_of_query(scope)):
            return self._log_in(given, headers)
        if not has_token:
            if method in _READS and (path in ("", "/") or "text/html" in headers.get("accept", "")):
                sent = bearer_sent or cookie_sent
                reason = (
                    "The token that the browser sent is wrong: each start of a server makes a new one."
                    if sent
                    else "No token was sent."
                )
                return _ask_for_link("This page needs a token", reason)
            return error_response(401, _NO_TOKEN)
        runs = path.startswith(("/jars/", "/v1/jars/"))  # GET .../plan runs a program
        changes = method not in _READS or path.endswith("/yarn-cancel") or runs
        if changes and not bearer and not self._same_origin(headers):
            return error_response(403, "A request of another site may not change anything.")
        if changes and self._options.read_only:
            return error_response(403, "The web interface is read-only.")
        longest = LONGEST_UPLOAD if self._options.submit and path.endswith("/jars/upload") else LONGEST_BODY
        length = headers.get("content-length", "0")
        # int() refuses thousands of digits; twenty are too long a body in any case.
        if not length.isascii() or not length.isdigit() or int(length[:20]) > longest:
            return error_response(413, f"The body of a request has at most {longest} bytes.")
        return None

    def _right_host(self, headers: Headers) -> bool:
        if self._options.behind_proxy:
            return True
        try:
            host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        except ValueError:
            return False
        if is_loopback(self._options.host):
            return is_loopback(host)
        # With TLS, the certificate names the server: a rebound name has no valid one.
        return bool(host)

    def _log_in(self, given: str, headers: Headers) -> Response:
        if not self._is_token(given):
            text = "The token of this link is wrong: each start of a server makes a new one. Open its link."
            if "text/html" in headers.get("accept", ""):
                return _ask_for_link("This link does not open the web interface", text)
            return error_response(401, text)
        path = self._options.root_path.rstrip("/") + "/"
        response = RedirectResponse(path, 303, HEADERS)
        response.set_cookie(
            self.cookie,
            self._options.token,
            path=path,
            secure=bool(self._options.certificate),
            httponly=True,
            # Sent with requests of its own pages alone.
            samesite="strict",
        )
        return response

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self._token)

    def _of_cookie(self, headers: Headers) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")[:8192]).get(self.cookie)
        except CookieError:
            return ""
        return "" if found is None else str(found.value)

    def _same_origin(self, headers: Headers) -> bool:
        site = headers.get("sec-fetch-site")
        if site is not None:
            # none: the user has typed the address or opened a bookmark.
            return site in ("same-origin", "none")
        origin = headers.get("origin")
        if origin is None:
            return False  # a browser sends one of the two with a request that changes something
        try:
            return urlsplit(origin).netloc == headers.get("host")
        except ValueError:
            return False


def _ask_for_link(title: str, reason: str) -> Response:
    """Return the page, for people, that says what is missing."""
    return HTMLResponse(_LINK.format(title=title, reason=reason), 401, {**HEADERS, "Cache-Control": "no-store"})


def _bearer(headers: Headers) -> str:
    kind, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else ""


def _token_of_query(scope: Scope) -> str:
    query = scope.get("query_string", b"").decode("ascii", errors="replace")
    try:
        found: list[str] = parse_qs(query, max_num_fields=20).get("token", [])
        return found[0] if found else ""
    except ValueError:
        return ""


class _Body:
    """Body of a request, of which the rest can be discarded."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._more = True

    async def receive(self) -> Message:
        """Return the next message of the request."""
        message = await self._receive()
        self._more = message["type"] == "http.request" and message.get("more_body", False)
        return message

    async def discard(self) -> None:
        """Receive the rest, up to a size and a time, as long as data comes."""
        left = _MOST_DISCARDED
        with suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_ALL_S):
                while self._more and left > 0:
                    async with asyncio.timeout(_DISCARD_S):
                        left -= len((await self.receive()).get("body", b""))


def _with_rest_discarded(send: Send, body: _Body) -> Send:
    """Return a sender that ends the response to a body that is too long when the client has sent the body.

    A connection that is closed with data unread is reset: a client that asks for its close, and sends everything
    before it reads, would not see the response.
    """
    too_long = False

    async def sending(message: Message) -> None:
        nonlocal too_long
        if message["type"] == "http.response.start":
            too_long = message["status"] == 413
        elif too_long and not message.get("more_body", False):
            await send({**message, "more_body": True})
            await body.discard()
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    return sending


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *_missing(present)]
        await send(message)

    return sending


def _missing(present: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    every = {name.lower().encode(): value.encode() for name, value in HEADERS.items()}
    return [(name, value) for name, value in every.items() if name not in present]
