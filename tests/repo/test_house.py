"""Habits that a reader of any file here relies on."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git work tree: which files belong to the project is not known", allow_module_level=True)
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


FILES = tracked()
PYTHON = [f for f in FILES if f.suffix == ".py"]

# Told in pieces, so that this file does not break its own rule.
UNWANTED = {
    "a mark of unfinished work": re.compile(r"\b(TO" + "DO|FIX" + "ME|XX" + r"X|HA" + r"CK)\b"),
    "a merge conflict": re.compile("^(<{7} |={7}$|>{7} )", re.M),
    "a directory of somebody's machine": re.compile(r"/(ho" + r"me|Us" + r"ers|ro" + r"ot|wo" + r"rk)/\w"),
    "a number of an issue, which says nothing here": re.compile(r"\b(issue|see|fixes) #?\d+\b|\(#\d+\)", re.I),
}


def test_there_is_a_tree_to_look_at() -> None:
    assert ROOT / "pyproject.toml" in FILES
    assert len(PYTHON) > 20


@pytest.mark.parametrize("what", UNWANTED)
def test_no_file_holds(what: str) -> None:
    found = []
    for path in FILES:
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for match in UNWANTED[what].finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[line - 1].strip()}")
    assert not found, what


def test_no_test_sleeps() -> None:
    """A poll with a deadline says so in a comment on its line: ``# polls``.

    A coroutine that a test gives to a pipeline may take its time: that is its work, and nothing waits by it.
    """
    found = []
    for path in PYTHON:
        if "tests" not in path.relative_to(ROOT).parts:
            continue
        text = path.read_text()
        if "sleep" not in text:  # to parse every file takes seconds
            continue
        lines = text.splitlines()
        tree = ast.parse("\n".join(lines))
        work = {
            id(node)
            for coroutine in ast.walk(tree)
            if isinstance(coroutine, ast.AsyncFunctionDef) and not coroutine.name.startswith("test_")
            for node in ast.walk(coroutine)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.sleep"
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or id(node) in work:
                continue
            if ast.unparse(node.func) in ("time.sleep", "sleep", "asyncio.sleep"):
                line = lines[node.lineno - 1]
                if "# polls" not in line:
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {line.strip()}")
    assert not found, "a sleep stands for no synchronisation"


def test_no_test_file_is_run_by_nobody() -> None:
    """Under tests/, pytest collects test_*.py; contrib/ and the templates have tests of their own."""
    odd = [
        f.relative_to(ROOT)
        for f in PYTHON
        if "tests" in f.relative_to(ROOT).parts and re.search(r"^def test_|^class Test", f.read_text(), re.M)
        if not f.name.startswith("test_")
    ]
    assert not odd


@pytest.mark.parametrize("page", [f for f in FILES if f.suffix == ".md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Those to files; templates are not pages of this repository."""
    if "templates" in page.parts:
        assert "](" not in page.read_text()
        return
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.M | re.S)
    targets = re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", text)
    gone = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not gone


def test_docstrings_begin_with_a_noun_phrase_or_a_verb() -> None:
    """A name is looked up to find a fact: the first word has to lead to it."""
    questions = re.compile(r"(What|Where|How|Whether|Who|Whom|Which|When|That|The way)\b")
    begins = re.compile(rf"""["']{questions.pattern}""")
    found = []
    for path in PYTHON:
        if "tests" in path.relative_to(ROOT).parts:
            continue
        text = path.read_text()
        if not begins.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            # A string that stands alone is a docstring, also behind a constant or an attribute.
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                told = node.value.value
                if isinstance(told, str) and questions.match(told):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {told.splitlines()[0]}")
    assert not found, "a docstring begins like a question"


def test_docstrings_of_classes_begin_with_a_noun_phrase() -> None:
    """As in "Writer of rows": the sentence says of what kind an object is."""
    verb = r"([A-Z][a-z]+s (a|all|an|each|every|everything|one|rows|the|what)|It|This|Subclass|Never)\b"
    begins = re.compile(rf'^ *class .*:\n *"""{verb}', re.M)
    found = []
    for path in PYTHON:
        if path.relative_to(ROOT).parts[0] in ("core", "plugins"):
            for match in begins.finditer(text := path.read_text()):
                line = text.count("\n", 0, match.end())
                found.append(f"{path.relative_to(ROOT)}:{line + 1}: {text.splitlines()[line].strip()}")
    assert not found, "a docstring says what a class does, not what it is"


def test_names_in_docstrings_exist() -> None:
    """Those that begin with the package; others are looked up by the reference, from their own module."""
    gone = []
    for path in PYTHON:
        if path.relative_to(ROOT).parts[0] in ("core", "plugins"):
            text = path.read_text()
            gone += [
                f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match[1]}"
                for match in re.finditer(r":(?:attr|class|data|func|meth|mod):`~?(sluiceway[\w.]*)`", text)
                if not _exists(match[1])
            ]
    assert not gone


def _exists(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except AttributeError:
        # Of an attribute of instances the docstring of the class tells.
        owner, _, attribute = name.rpartition(".")
        return f"{attribute}:" in (pkgutil.resolve_name(owner).__doc__ or "")
    except ImportError:
        return False
    return True
