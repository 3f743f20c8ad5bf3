"""Commands in messages that install what is missing: they work where the program runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from typing import Any

__all__ = ["install_command"]

_REQUIREMENT = re.compile(r"([\w.-]+)\s*(\[[^\]]*\])?")


def install_command(*requirements: str) -> str:
    """Return the command that installs something into the environment of this process.

    A distribution that was installed from a directory, such as a checkout, or from a URL is named by that, because
    an index may have another version of it, or none.

    Args:
        requirements: as one writes them after ``pip install``, such as ``sluiceway[arrow]``.
    """
    return " ".join([*_installer(), *(word for each in requirements for word in _from_where_it_was(each))])


def _from_where_it_was(requirement: str) -> list[str]:
    match = _REQUIREMENT.match(requirement)
    name, extras = (match[1], match[2] or "") if match else (requirement, "")
    origin = _origin(name) if extras else {}  # without extras it is not there yet, or too old
    url = str(origin.get("url", ""))
    if "dir_info" in origin and url.startswith("file:"):
        # Imported here: it needs http and ssl, and every program imports this module.
        from urllib.parse import urlsplit
        from urllib.request import url2pathname

        path = url2pathname(urlsplit(url).path)
        if os.path.isdir(path):
            editable = ["-e"] if origin["dir_info"].get("editable") else []
            return [*editable, f"'{path}{extras}'" if "'" not in path else shlex.quote(path + extras)]
    elif "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return [f'"{name}{extras} @ {vcs["vcs"]}+{url}@{vcs["commit_id"]}"']
    elif "archive_info" in origin:
        return [f'"{name}{extras} @ {url}"']
    return [f'"{requirement}"' if re.search(r"[^\w.-]", requirement) else requirement]


def _origin(name: str) -> dict[str, Any]:
    """Return what installers record of a distribution's origin (PEP 610); empty if it was an index."""
    try:
        text = distribution(name).read_text("direct_url.json")
        origin = json.loads(text) if text else {}
    except (PackageNotFoundError, OSError, ValueError):
        return {}
    return origin if isinstance(origin, dict) else {}


def _installer() -> list[str]:
    """Return the command without the requirements: plain ``pip`` if that is the one that a shell finds."""
    here = os.path.dirname(sys.executable)
    found = shutil.which("pip")
    if found is not None and os.path.dirname(found) == here:
        return ["pip", "install"]
    python = shlex.quote(sys.executable)
    if find_spec("pip") is None and shutil.which("uv") is not None:
        return ["uv", "pip", "install", "--python", python]
    return [python, "-m", "pip", "install"]
