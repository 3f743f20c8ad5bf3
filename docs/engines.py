"""``python docs/engines.py``: writes the tables of what each engine can do into docs/reference/engines.md."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from sluiceway.capabilities import Capabilities, Feature
from sluiceway.config import Settings
from sluiceway.runtime.local import LocalEngine
from sluiceway_sparkengine._engine import SparkEngine

PAGE = Path(__file__).parent / "reference" / "engines.md"
BEGIN, END = "<!-- from here on made by docs/engines.py -->\n", "<!-- to here -->\n"

LOCAL, SPARK = LocalEngine(), SparkEngine()
WAYS: dict[str, tuple[str, Capabilities]] = {
    "local": ("`local`", LOCAL.capabilities(Settings(), bounded=True)),
    "workers": ("`local`, with `--workers`", LOCAL.capabilities(Settings(workers=2), bounded=True)),
    "batch": ("`spark`, sources that end", SPARK.capabilities(Settings(engine="spark"), bounded=True)),
    "bounded": ("`spark`, where all sources end", SPARK.capabilities(Settings(engine="spark"), bounded=True)),
    "hosted": ("`spark --hosted`", SPARK.capabilities(Settings(engine="spark", hosted=True), bounded=True)),
}


def tables() -> str:
    """One for each group of features, and what is to be said of them."""
    return "\n".join(line for name, group in groupby(Feature, lambda f: f.group) for line in _table(name, group))


def page(old: str) -> str:
    """The page with the tables as they are now."""
    before, _, rest = old.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def _table(name: str, group: Iterator[Feature]) -> Iterator[str]:
    features = list(group)
    yield f"## {name}\n"
    yield f"| | {' | '.join(title for title, _ in WAYS.values())} |"
    yield f"|---|{'---|' * len(WAYS)}"
    for feature in features:
        yield f"| {feature.text} | {' | '.join(_cell(feature, way) for _, way in WAYS.values())} |"
    yield ""
    for feature in features:
        yield from _notes(feature)


def _cell(feature: Feature, way: Capabilities) -> str:
    if feature in way.lacks:
        return "**no**"
    return "yes, but" if feature in way.otherwise else "yes"


def _notes(feature: Feature) -> Iterator[str]:
    told: dict[str, list[str]] = {}
    for title, way in WAYS.values():
        text = ""
        if feature in way.lacks:
            text = f"{way.lacks[feature].why}; {way.lacks[feature].instead}."
        elif feature in way.otherwise:
            text = way.otherwise[feature]
        if text:
            told.setdefault(text[0].upper() + text[1:], []).append(title)
    for text, titles in told.items():
        yield f"- **{feature.text}**, {' and '.join(titles)}: {text}\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
