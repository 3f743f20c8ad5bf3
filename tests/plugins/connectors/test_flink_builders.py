"""Names of Flink's connectors: each that is looked for in a package or a class of ours says what to use."""

from __future__ import annotations

import importlib
import re

import pytest

from sluiceway.util.flink_names import ELSEWHERE


@pytest.mark.parametrize(
    ("package", "owner", "name", "hint"),
    [
        ("sluiceway_kafka", "KafkaSource", "builder", r"use KafkaSource\(servers, topics, \.\.\.\), which has an"),
        ("sluiceway_kafka", "KafkaSink", "builder", r"use KafkaSink\(servers, topic, \.\.\.\), which has an"),
        (
            "sluiceway_kafka",
            "KafkaOffsets",
            "committed_offsets",
            r'use start= and stop= of KafkaSource.*"committed"',
        ),
        ("sluiceway_kafka", "", "KafkaOffsetsInitializer", r"KafkaOffsets\.timestamp\(ms\)"),
        ("sluiceway_files", "FilesSource", "for_record_stream_format", r"use FilesSource\.text\(paths\)"),
        ("sluiceway_files", "FilesSink", "for_row_format", r"use FilesSink\.text\(directory\).*roll_size"),
        ("sluiceway_files", "", "FileSink", r"use FilesSink\.text\(directory\)"),
        ("sluiceway_sql", "SqlSink", "sink", r"use SqlSink\(database, table, columns, guarantee="),
        ("sluiceway_sql", "", "JdbcSink", r"use SqlSink\(database, table, columns, guarantee="),
    ],
)
def test_a_name_of_flink_s_says_what_to_use(package: str, owner: str, name: str, hint: str) -> None:
    if package == "sluiceway_kafka" and owner:
        pytest.importorskip("confluent_kafka")
    module = importlib.import_module(package)
    with pytest.raises(AttributeError) as caught:
        getattr(getattr(module, owner) if owner else module, name)
    assert re.search(f"has no.* {re.escape(name)}.*; {hint}|attribute '{name}'; .*{hint}", str(caught.value))


@pytest.mark.parametrize("package", ["sluiceway_files", "sluiceway_kafka", "sluiceway_sql"])
def test_an_import_says_it_too(package: str) -> None:
    for name, hint in ELSEWHERE[package].items():
        with pytest.raises(ImportError) as caught:
            exec(f"from {package} import {name}")
        assert str(caught.value) == f"cannot import name {name!r} from {package!r}; {hint}"
