"""The modules of core and plugins import each other in one direction only.

import-linter knows floors and rooms; a circle between two modules of one room is found here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "core", *(d for d in sorted((ROOT / "plugins").iterdir()) if d.is_dir())]

# A method of one of these returns another one: DataStream.key_by() a KeyedStream, whose map() a DataStream. Types
# that name each other cannot be in modules of which only one knows the other; so the back edges are imported late.
# DataStream.to_columns() returns a TableStream, whose to_records() returns a DataStream.
STREAMS = {
    f"sluiceway.api.{name}"
    for name in ("broadcast", "connected", "iteration", "joins", "keyed", "stream", "window_joins", "windowed")
} | {f"sluiceway.api.table.{name}" for name in ("conversion", "joins", "keyed", "over", "stream")}


class When(Enum):
    AT_IMPORT = "when the module is imported"
    IN_A_CALL = "in a function"
    FOR_TYPES = "for a type checker"


def modules() -> dict[str, Path]:
    found = {}
    for source in SOURCES:
        for path in source.rglob("*.py"):
            parts = path.relative_to(source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(tree: ast.AST, when: When = When.AT_IMPORT) -> Iterator[tuple[str, When]]:
    """Yield what is imported; for ``from a import b`` both ``a.b`` and ``a``, as b may be a module."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, when) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "the project has no relative imports"
            yield from ((f"{node.module}.{alias.name}", when) for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from imports(ast.Module(node.body, []), When.FOR_TYPES)
            yield from imports(ast.Module(node.orelse, []), when)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports(node, When.IN_A_CALL)
        elif not isinstance(node, ast.expr):  # no import is in one, and most of a tree is
            yield from imports(node, when)


@cache
def imported_by(path: Path) -> list[tuple[str, When]]:
    return list(imports(ast.parse(path.read_text())))


def graph(*kinds: When) -> dict[str, set[str]]:
    """Return by module the modules that it imports, with the packages that Python imports before them."""
    known = modules()
    edges: dict[str, set[str]] = {}
    for name, path in known.items():
        targets = edges[name] = set()
        for imported, when in imported_by(path):
            if when not in kinds:
                continue
            target = imported
            while target and target not in known:
                target = target.rpartition(".")[0]  # a name in a module, or a library
            while target:
                if not f"{name}.".startswith(f"{target}."):  # its own packages are there before it
                    targets.add(target)
                target = target.rpartition(".")[0]
    return edges


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in edges[node]:
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            component = set(stack[stack.index(node) :])
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(component)

    for node in edges:
        if node not in index:
            visit(node)
    return found


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]
    edges = graph(When.AT_IMPORT)
    assert "sluiceway.elements" in edges["sluiceway.operators.base"]
    assert "sluiceway.hooks" in edges["sluiceway_memory"]


def test_no_circle_of_imports() -> None:
    assert not circles(graph(When.AT_IMPORT))


def test_no_circle_of_late_imports() -> None:
    """An import inside a function saves time at start-up; it does not break a circle."""
    # OverTable names TableStream as a type alone.
    assert circles(graph(When.AT_IMPORT, When.IN_A_CALL)) in ([], [STREAMS - {"sluiceway.api.table.over"}])


def test_no_circle_of_imports_for_types() -> None:
    """Two modules that name each other's types are one concept, or share a third one."""
    assert circles(graph(*When)) in ([], [STREAMS])
