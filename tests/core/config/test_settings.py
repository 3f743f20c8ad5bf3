"""Where the options of a run come from, and what is said of bad ones."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluiceway.config.settings import OPTIONS, Resolved, Settings, duration_ms, resolve
from sluiceway.errors import ConfigurationError, UnknownNameError


def look(folder: Path, chosen: dict[str, object] | None = None, **environ: str) -> Resolved:
    return resolve(chosen, flag=lambda k: "--" + k.replace("_", "-"), environ=environ, directory=folder)


def complaint(folder: Path, chosen: dict[str, object] | None = None, **environ: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        look(folder, chosen, **environ)
    return str(caught.value)


def test_without_anything_all_is_default(tmp_path: Path) -> None:
    resolved = look(tmp_path)
    assert resolved.settings == Settings()
    assert set(resolved.origins.values()) == {"default"}
    assert resolved.file is None


def test_every_setting_is_an_option_and_the_other_way_round() -> None:
    assert {o.field for o in OPTIONS.values()} == {f.name for f in fields(Settings)}


def test_flag_before_environment_before_file_before_default(tmp_path: Path) -> None:
    (tmp_path / "sluiceway.toml").write_text("parallelism = 2\nbatch-size = 10\nbuffer_timeout = '1s'\n")
    resolved = look(
        tmp_path, {"parallelism": 4, "seed": None}, SLUICEWAY_PARALLELISM="3", SLUICEWAY_BATCH_SIZE="20"
    )
    assert resolved.settings == Settings(parallelism=4, batch_size=20, buffer_timeout_ms=1000)
    assert resolved.file == tmp_path / "sluiceway.toml"
    named = {k: v for k, v in resolved.origins.items() if v != "default"}
    assert named == {
        "parallelism": "--parallelism",
        "batch-size": "SLUICEWAY_BATCH_SIZE",
        "buffer-timeout": f"buffer_timeout in {tmp_path}/sluiceway.toml",
    }


def test_a_value_that_is_overruled_is_not_even_looked_at(tmp_path: Path) -> None:
    assert look(tmp_path, {"parallelism": 2}, SLUICEWAY_PARALLELISM="x").settings.parallelism == 2


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    assert look(tmp_path, SLUICEWAY_PARALLELISM="", SLUICEWAY_METRICS="").settings == Settings()


# -- files --------------------------------------------------------------------------------------------------


def test_the_nearest_file_upwards_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "sluiceway.toml").write_text("parallelism = 2")
    assert look(inner).settings.parallelism == 2
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.sluiceway]\nparallelism = 3\n")
    assert look(inner).settings.parallelism == 3
    (tmp_path / "a" / "sluiceway.toml").write_text("parallelism = 4")
    assert look(inner).settings.parallelism == 4


def test_a_project_file_without_our_table_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "sluiceway.toml").write_text("parallelism = 2")
    inner = tmp_path / "a"
    inner.mkdir()
    (inner / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["sluiceway"]\n')
    assert look(inner).settings.parallelism == 2
    # One that is of no concern to us may be as broken as it likes.
    (inner / "pyproject.toml").write_text("not [ TOML")
    assert look(inner).settings.parallelism == 2


def test_the_search_begins_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sluiceway.toml").write_text("parallelism = 2")
    monkeypatch.chdir(tmp_path)
    assert resolve(environ={}).settings.parallelism == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("parallelism = ", "is not valid TOML: Invalid value (at end of document)"),
        ("paralelism = 2", ": there is no option 'paralelism'. Did you mean 'parallelism'? Known: 'allow-"),
        ("parallelism = 'two'", "parallelism = 'two' in {} is not a whole number from 1 to 32768"),
        ("parallelism = 2.0", "parallelism = 2.0 in {} is not a whole number from 1 to 32768"),
        ("parallelism = true", "parallelism = True in {} is not a whole number from 1 to 32768"),
        ("batch-size = 1\nbatch_size = 2", "{} gives batch-size twice, with '-' and with '_': take one away"),
        ("[parallelism]\nx = 1", "parallelism = {{'x': 1}} in {} is not a whole number from 1 to 32768"),
        ("metrics = [1]", "metrics = [1] in {} is not a list of names of metrics reporters"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_name(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "sluiceway.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        look(tmp_path)
    assert says.format(file) in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [("sluiceway.toml", "parallelism = 2"), ("pyproject.toml", "[tool.sluiceway]\nparallelism = 2")],
)
def test_a_byte_order_mark_is_skipped(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert look(tmp_path).settings.parallelism == 2


def test_other_files_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text("[tool]\nsluiceway = 3")
    assert complaint(tmp_path) == f"{file}: tool.sluiceway is not a table"
    file.write_text("[tool.sluiceway")
    assert complaint(tmp_path).startswith(f"{file} is not valid TOML: ")
    (tmp_path / "sluiceway.toml").write_bytes(b"# \xff")
    assert complaint(tmp_path).startswith(f"{tmp_path}/sluiceway.toml is not valid TOML: ")


# -- values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value", "expects"),
    [
        ("PARALLELISM", "x", "a whole number from 1 to 32768"),
        ("PARALLELISM", "0", "a whole number from 1 to 32768"),
        ("PARALLELISM", "1.5", "a whole number from 1 to 32768"),
        ("PARALLELISM", "²", "a whole number from 1 to 32768"),
        ("PARALLELISM", "+-5", "a whole number from 1 to 32768"),
        ("PARALLELISM", "9" * 5000, "a whole number from 1 to 32768"),
        ("PARALLELISM", "32769", "a whole number from 1 to 32768"),
        ("MAX_PARALLELISM", "32769", "a whole number from 1 to 32768"),
        ("WORKERS", "-1", "a whole number from 0 to 32768"),
        ("WORKERS", "32769", "a whole number from 0 to 32768"),
        ("NETWORK_BUFFERS", "1048577", "a whole number from 2 to 1048576"),
        ("SEED", str(2**63), "a whole number from -9223372036854775808 to 9223372036854775807"),
        ("ENGINE", " ", "the name of an engine"),
        ("CHAINING", "perhaps", "true or false"),
        ("BUFFER_TIMEOUT", "-2", "-1 or a duration such as 100ms, 5s or a whole number of ms"),
        ("BUFFER_TIMEOUT", "5 parsecs", "-1 or a duration such as 100ms, 5s or a whole number of ms"),
        ("BATCH_SIZE", "none", "a whole number >= 1"),
        ("LATENCY_INTERVAL", "-1", "a duration such as 100ms, 5s or a whole number of ms"),
        ("METRICS", "log,,jsonl", "a list of names of metrics reporters"),
        ("METRICS_INTERVAL", "0", "a duration such as 100ms, 5s or a whole number of ms, at least 1ms"),
        ("LOCAL_RECOVERY", "9" * 5000, "a size such as 512mb, 2gb or a number of bytes"),
        ("SEED", "lucky", "a whole number from -9223372036854775808 to 9223372036854775807"),
    ],
)
def test_a_bad_value_is_told_with_its_variable(tmp_path: Path, variable: str, value: str, expects: str) -> None:
    variable = f"SLUICEWAY_{variable}"
    assert complaint(tmp_path, **{variable: value}) == f"{variable}={value!r} is not {expects}"


def test_a_bad_flag_is_told_as_it_was_written(tmp_path: Path) -> None:
    assert complaint(tmp_path, {"batch_size": "many"}) == "--batch-size='many' is not a whole number >= 1"


def test_a_bad_argument_of_a_call_is_told_as_one() -> None:
    with pytest.raises(ConfigurationError, match=r"^the argument batch_size=0 is not a whole number >= 1$"):
        resolve({"batch_size": 0}, environ={}, directory="/")


def test_an_argument_that_does_not_exist_is_told_with_the_one_that_was_meant(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError) as caught:
        look(tmp_path, {"bufer_timeout": None})
    assert str(caught.value).startswith(
        "there is no option 'bufer_timeout'. Did you mean 'buffer_timeout'? Known: 'allow_dropped_state', "
    )


@pytest.mark.parametrize("name", ["web", "web_address"])
def test_the_command_that_serves_the_web_interface_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=f"there is no option '{name}': .*'sluiceway run --web FILE'"):
        look(tmp_path, {name: True})


def test_no_name_is_suggested_that_python_keeps_for_itself(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError) as caught:
        look(tmp_path, {"from_": "kept"})
    assert str(caught.value).startswith("there is no option 'from_'. Known: ")
    assert "'from_checkpoint', 'heartbeat_timeout'" in str(caught.value)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"parallelism": " 4 "}, Settings(parallelism=4)),
        ({"chaining": "off"}, Settings(chaining=False)),
        ({"chaining": "Yes"}, Settings()),
        ({"metrics": "log, jsonl,log"}, Settings(metrics=("log", "jsonl"))),
        ({"metrics": ["log"]}, Settings(metrics=("log",))),
        ({"metrics": ()}, Settings()),
        ({"seed": "-3"}, Settings(seed=-3)),
        ({"buffer_timeout": -1}, Settings(buffer_timeout_ms=-1)),
        ({"buffer_timeout": "-1"}, Settings(buffer_timeout_ms=-1)),
        ({"buffer_timeout": timedelta(seconds=2)}, Settings(buffer_timeout_ms=2000)),
        ({"latency_interval": 250}, Settings(latency_interval_ms=250)),
        ({"workers": "0"}, Settings()),
    ],
)
def test_values_in_every_form(tmp_path: Path, chosen: dict[str, object], expected: Settings) -> None:
    assert look(tmp_path, chosen).settings == expected


def test_settings_that_contradict_each_other_are_told_with_both_origins(tmp_path: Path) -> None:
    (tmp_path / "sluiceway.toml").write_text("max-parallelism = 2")
    assert complaint(tmp_path, {"parallelism": 3}) == (
        "parallelism is 3 (--parallelism), and max-parallelism only 2 "
        f"(max-parallelism in {tmp_path}/sluiceway.toml): raise the one or lower the other"
    )


def test_the_checkpoint_to_begin_with_has_a_keyword_of_its_own(tmp_path: Path) -> None:
    assert look(tmp_path, {"from_checkpoint": "/x"}).settings.from_checkpoint == "/x"
    assert look(tmp_path, SLUICEWAY_FROM="s3://bucket/x").settings.from_checkpoint == "s3://bucket/x"
    assert look(tmp_path, {"checkpoints": "here"}).settings.checkpoints == str(Path("here").absolute())


def test_resume_needs_a_place_and_goes_with_nothing_else_to_begin_with(tmp_path: Path) -> None:
    assert look(tmp_path, SLUICEWAY_RESUME="yes", SLUICEWAY_CHECKPOINTS="/x").settings.resume
    (tmp_path / "sluiceway.toml").write_text("resume = true")
    assert complaint(tmp_path) == (
        f"resume (resume in {tmp_path}/sluiceway.toml) begins with the job's newest checkpoint in the place that "
        "checkpoints names, and there is none: name one with --checkpoints"
    )
    assert complaint(tmp_path, {"checkpoints": "/x", "from_checkpoint": "/y"}) == (
        f"resume (resume in {tmp_path}/sluiceway.toml) and from (--from-checkpoint) both say what the job begins "
        "with: leave one out; --no-resume overrides a configured resume"
    )
    assert not look(tmp_path, {"resume": False, "from_checkpoint": "/y"}).settings.resume


def test_a_variable_that_looks_like_a_slip_is_hinted_at(tmp_path: Path) -> None:
    resolved = look(
        tmp_path,
        SLUICEWAY_PARALELISM="4",
        SLUICEWAY_ROCKSDB_CACHE="1G",  # some plugin's own
        SLUICEWAY_TRACEBACK="1",
        PARALLELISM="3",
    )
    assert resolved.settings == Settings()
    assert resolved.hints == ("SLUICEWAY_PARALELISM is not an option: did you mean SLUICEWAY_PARALLELISM?",)


# -- durations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (0, 0),
        ("7", 7),
        ("100ms", 100),
        (" 5 S ", 5000),
        ("1.5s", 1500),
        ("0.001s", 1),
        ("2m", 120_000),
        ("2min", 120_000),
        ("1h", 3_600_000),
        ("1d", 86_400_000),
        (timedelta(minutes=1, milliseconds=3), 60_003),
    ],
)
def test_durations(value: Any, ms: int) -> None:
    assert duration_ms(value) == ms
    assert type(duration_ms(value)) is int


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (-1, "-1 is not a whole number of milliseconds >= 0"),
        ("0.5ms", "'0.5ms' is not a whole number of milliseconds >= 0"),
        (timedelta(microseconds=1), "is not a whole number of milliseconds >= 0"),
        (timedelta(seconds=-1), "is not a whole number of milliseconds >= 0"),
        ("5 weeks", "'5 weeks' has no unit that is known: ms, s, m, min, h, d"),
        ("-5s", "'-5s' is not a duration"),
        ("", "'' is not a duration"),
        (1.5, "1.5 is not a duration"),
        (True, "True is not a duration"),
        (None, "None is not a duration"),
    ],
)
def test_what_is_no_duration(value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        duration_ms(value)


@given(st.integers(0, 10**12))
@example(8_427_840_719)  # as a float, its seconds are no whole number of ms
def test_a_duration_means_the_same_in_every_form(ms: int) -> None:
    assert duration_ms(ms) == duration_ms(f"{ms}ms") == duration_ms(timedelta(milliseconds=ms)) == ms
    assert duration_ms(f"{ms // 1000}.{ms % 1000:03}s") == ms


def test_with_workers_the_parallelism_is_as_many_as_they_are(tmp_path: Path) -> None:
    resolved = look(tmp_path, SLUICEWAY_WORKERS="3")
    assert (resolved.settings.parallelism, resolved.origins["parallelism"]) == (3, "default with workers")
    assert look(tmp_path, SLUICEWAY_WORKERS="0").settings.parallelism == 1
    assert look(tmp_path, SLUICEWAY_WORKERS="3", SLUICEWAY_PARALLELISM="1").settings.parallelism == 1
    assert look(tmp_path, SLUICEWAY_WORKERS="3", SLUICEWAY_MAX_PARALLELISM="2").settings.parallelism == 2
