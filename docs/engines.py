"""``python docs/engines.py``: writes the tables of what each engine can do into docs/reference/engines.md."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from sluiceway.config.settings import Settings
from sluiceway.engine import Engine
from sluiceway.engine.capabilities import Capabilities, Feature
from sluiceway.errors import NotBuiltYetError
from sluiceway.runtime.local.engine import LocalEngine
from sluiceway_spark.engine.spark_engine import SparkEngine

PAGE = Path(__file__).parent / "reference" / "engines.md"
BEGIN, END = "<!-- from here on made by docs/engines.py -->\n", "<!-- to here -->\n"

LOCAL, SPARK = LocalEngine(), SparkEngine()
COLUMNS: list[tuple[str, Engine, Settings, bool]] = [
    ("`local`", LOCAL, Settings(), True),
    ("`local`, with `--workers`", LOCAL, Settings(workers=2), True),
    ("`spark`, where all sources end", SPARK, Settings(engine="spark"), True),
    ("`spark`, without an end or with checkpoints", SPARK, Settings(engine="spark"), False),
    ("`spark --hosted`", SPARK, Settings(engine="spark", hosted=True), True),
]


def _ways() -> Iterator[tuple[str, Capabilities]]:
    for title, engine, settings, bounded in COLUMNS:
        with suppress(NotBuiltYetError):
            yield title, engine.capabilities(settings, bounded=bounded)


WAYS = dict(_ways())


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
    yield f"| | {' | '.join(WAYS)} |"
    yield f"|---|{'---|' * len(WAYS)}"
    for feature in features:
        yield f"| {feature.text} | {' | '.join(_cell(feature, way) for way in WAYS.values())} |"
    yield ""
    for feature in features:
        yield from _notes(feature)


def _cell(feature: Feature, way: Capabilities) -> str:
    if feature in way.lacks:
        return "**no**"
    return "yes, but" if feature in way.otherwise else "yes"


def _notes(feature: Feature) -> Iterator[str]:
    told: dict[str, list[str]] = {}
    for title, way in WAYS.items():
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
