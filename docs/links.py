"""Additions to the site's pages: the version, and links from names of the API to the reference."""

from __future__ import annotations

import re
from functools import cache
from html import unescape
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sluiceway.errors import PluginError

_REFERENCE = Path(__file__).parent / "reference"
_SHOWN = re.compile(r"^::: ([\w.]+)$", re.M)
_LINKED = re.compile(r"<(a|pre|h[1-6])\b.*?</\1>|<code>([\w.]+)(\([^<]*\))?</code>", re.S)


def on_config(config: Any) -> Any:
    """Show the version beside the name, and in each page's title."""
    config.site_name = f"{config.site_name} {version('sluiceway')}"
    return config


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Have names of the API in running text link to the reference, where it has them."""
    if page.file.src_uri.startswith("reference/"):
        return html
    return _LINKED.sub(_link, html)


def _link(found: re.Match[str]) -> str:
    name = found[2]
    target = _targets().get(unescape(name).removeprefix("sw.")) if name else None
    if target is None:
        return found[0]
    return f'<autoref identifier="{target}" optional>{found[0]}</autoref>'


@cache
def _targets() -> dict[str, str]:
    """By what pages call it, the full name of each class and function in the reference, and of their members."""
    targets: dict[str, str] = {}
    for page in sorted(_REFERENCE.glob("*.md")):
        for full in _SHOWN.findall(page.read_text()):
            owner, _, name = full.rpartition(".")
            try:
                thing = getattr(import_module(owner), name)
            except (
                ImportError,
                AttributeError,
                PluginError,
            ):  # a module, or a library is missing
                continue
            # A word such as `register` or `Event` means something else on most pages.
            if full.count(".") <= 2 and (name[0].isupper() or "_" in name):
                targets.setdefault(name, full)
            if isinstance(thing, type):
                for member in dir(thing):
                    if not member.startswith("_"):
                        targets.setdefault(f"{name}.{member}", f"{full}.{member}")
    return targets
