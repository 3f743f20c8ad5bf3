"""Redaction of credentials in everything that people see."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

__all__ = ["HIDDEN", "is_secret", "redact", "redact_option", "redact_options", "redact_urls"]

HIDDEN: Final = "***"

_WORDS: Final = (
    "password|passwd|passphrase|pwd|secret|token|api[-_.]?key|access[-_.]?key(?:[-_.]?id)?|secret[-_.]?key|private[-_.]?key"
    "|key[-_.]?pem|account[-_.]?key|client[-_.]?secret|credentials?|sas[-_.]?token|signature|authorization|sasl[-_.]?jaas[-_.]?config"
)
# scheme://user:password@host: the password goes up to the last @ before the path; a user alone may be a token. The
# scheme is bounded: otherwise long texts take time that grows with their square.
_URL: Final = r"\b([a-z][a-z0-9+.-]{0,30}://)([^\s/?#'\"@:]*)(?::([^\s/?#'\"]*))?@"
# Secret keys of S3 have slashes; a port has none before the @ of something else.
_WITH_SLASH: Final = r"\b([a-z][a-z0-9+.-]{0,30}://[^\s/?#'\"@:]*):(?!\d{1,5}/)([^\s'\"@?]{0,200})@"
_NAME: Final = rf"(?:^|[-_.\s])(?:{_WORDS})$|(?:password|secret|token)$|^key$"
_PAIR: Final = (
    rf"""((?:^|[?&;,\s({{\[])["']?[\w.-]*?(?:{_WORDS})["']?\s*[=:]\s*)"""
    r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s&;,)}\]"']+)"""
)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern when it is used: that takes milliseconds, and most programs have nothing to hide."""
    return re.compile(pattern, re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Return whether an option of this name holds a credential: ``password``, ``sasl.password``, ``api_key``."""
    return _compiled(_NAME).search(name) is not None


def redact(text: str) -> str:
    """Return a text with ``***`` in place of the passwords of its URLs and of values given to secret names.

    ``postgresql://ann:hush@db/x?sslpassword=y`` becomes ``postgresql://ann:***@db/x?sslpassword=***``.
    """
    text = redact_urls(text)
    return _compiled(_PAIR).sub(_of_pair, text) if _compiled(_WORDS).search(text) else text


def redact_urls(text: str) -> str:
    """Return a text with ``***`` in place of the passwords of its URLs; for texts that hold users' own code."""
    if "://" in text and "@" in text:
        text = _compiled(_WITH_SLASH).sub(rf"\1:{HIDDEN}@", text)
        text = _compiled(_URL).sub(_of_url, text)
    return text


def _of_url(match: re.Match[str]) -> str:
    scheme, user, password = match.groups()
    if password is None:
        # An account's name tells nobody anything; what is as long as a token may be one.
        return f"{scheme}{HIDDEN if len(user) >= 20 else user}@"
    return f"{scheme}{user}:{HIDDEN}@"


def _of_pair(match: re.Match[str]) -> str:
    before, value = match.groups()
    quote = value[0] if value[:1] in ('"', "'") else ""
    return f"{before}{quote}{HIDDEN}{quote}"


def redact_option(name: str, value: Any) -> Any:
    """Return the value of an option as it may be shown: hidden if the name says that it is secret.

    Args:
        name: of the option.
        value: strings in it, in lists and dicts, too, are redacted; anything else is returned as it is.
    """
    if value is not None and value != "" and is_secret(name):
        return HIDDEN
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return redact_options(value)
    if isinstance(value, list | tuple):
        return type(value)(redact_option("", each) for each in value) if type(value) in (list, tuple) else value
    return value


def redact_options(options: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return options as they may be shown."""
    return {name: redact_option(str(name), value) for name, value in options.items()}
