"""Docstrings write roles and double backquotes, as Python's own documentation does; the site wants Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|meth|func|mod|attr|data|exc):`(?:[^`<]*<)?(~?)([\w.]+)>?`")
_DOUBLE = re.compile(r"``([^`]+)``")
_MODULES = re.compile(r"^(?:[a-z_]+\.)+(?=\w)")
_BLOCK = re.compile(r"::$", re.M)


class Roles(griffe.Extension):
    """Rewrites the docstrings of everything that the reference shows."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each module, class, function and attribute when it was read."""
        if obj.docstring is not None:
            text = _ROLE.sub(_code, obj.docstring.value)
            text = _DOUBLE.sub(r"`\1`", text)
            obj.docstring.value = _BLOCK.sub(":", text)


def _code(role: re.Match[str]) -> str:
    short, name = role.groups()
    return f"`{name.rpartition('.')[2] if short else _MODULES.sub('', name)}`"
