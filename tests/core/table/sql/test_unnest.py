"""UNNEST gives what DuckDB gives for the same rows, whatever the batches; the rest is refused."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest

from sluiceway import Pipeline
from sluiceway.errors import GraphError

_ROWS = pa.table(
    {
        "id": range(5),
        "tags": [["a", "b"], [], None, ["c", None], ["a"]],
        "lines": [[{"what": "tea", "n": 2}], [{"what": "oil", "n": 1}, {"what": "tea", "n": 3}], [], None, [None]],
    }
)
_ITEMS = pa.table({"what": ["tea", "oil"], "price": [2.5, 9.0]})


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, unnest(tags) AS tag FROM rows",
        "SELECT *, upper(unnest(tags)) AS tag FROM rows WHERE id > 0",
        "SELECT * EXCEPT (lines, tags), unnest(lines) AS line FROM rows",
        "SELECT unnest(tags), unnest(tags) || '!' AS loud FROM rows",
        "SELECT DISTINCT unnest(tags) AS tag FROM rows",
        "SELECT tag, count(*) FROM (SELECT unnest(tags) AS tag FROM rows) GROUP BY tag",
        "SELECT id, t.tag FROM rows CROSS JOIN UNNEST(tags) AS t(tag) WHERE tag <> 'b'",
        "SELECT r.id, line.n FROM rows AS r, UNNEST(r.lines) AS l(line)",
        "SELECT id, tag, price FROM rows CROSS JOIN UNNEST(tags) AS t(tag) LEFT JOIN items ON what = tag",
        "SELECT line.what, sum(line.n) FROM rows CROSS JOIN UNNEST(lines) AS l(line) GROUP BY line.what",
        "SELECT id, line.n * price AS cost FROM rows CROSS JOIN UNNEST(lines) AS l(line) "
        "JOIN items ON line.what = items.what",
    ],
)
@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"parallelism": 3}])
def test_results_are_those_of_duckdb(query: str, options: dict[str, Any]) -> None:
    flow = Pipeline()
    found = flow.sql(query, rows=flow.table(_ROWS), items=_ITEMS).to_arrow(**options)
    rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    with duckdb.connect() as connection:
        connection.register("rows", _ROWS)
        connection.register("items", _ITEMS)
        assert sorted(rows, key=repr) == sorted(connection.sql(query).fetchall(), key=repr)


@pytest.mark.parametrize(
    ("query", "column", "says"),
    [
        ("SELECT unnest(id) FROM rows", 8, "UNNEST takes a list, and not int64"),
        ("SELECT unnest(tags), unnest(lines) FROM rows", 22, "SELECT takes one UNNEST"),
        ("SELECT unnest(tags) AS t, count(*) FROM rows GROUP BY t", 8, "no translation beside GROUP BY"),
        ("SELECT id FROM rows WHERE unnest(tags) = 'a'", 27, "UNNEST stands in SELECT, or in FROM"),
        ("SELECT id FROM rows CROSS JOIN UNNEST(tag) AS t(tag)", 39, "no column 'tag' in the tables before"),
        ("SELECT id FROM rows CROSS JOIN UNNEST(id) AS t(tag)", 39, "UNNEST takes a list, and not int64"),
        ("SELECT id FROM rows LEFT JOIN UNNEST(tags) AS t(tag) ON TRUE", 38, "joined by CROSS JOIN alone"),
        ("SELECT id FROM rows CROSS JOIN UNNEST(['a']) AS t(tag)", 40, "UNNEST takes a column of the tables"),
    ],
)
def test_a_refusal_has_the_position(query: str, column: int, says: str) -> None:
    flow = Pipeline()
    with pytest.raises(GraphError, match=says) as told:
        flow.sql(query, rows=flow.table(_ROWS))
    assert f"line 1, column {column}: " in str(told.value)
