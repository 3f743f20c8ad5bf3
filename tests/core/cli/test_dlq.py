"""``sluiceway dlq``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

ROOMS = """
    from dataclasses import dataclass

    COMMA = False

    @dataclass(frozen=True)
    class Reading:
        room: str
        degrees: str

    def parse(reading):
        return reading.room, float(reading.degrees.replace(",", ".") if COMMA else reading.degrees)

    flow = sw.Pipeline("rooms")
    readings = [Reading("attic", "31"), Reading("cellar", "12,5"), Reading("attic", "warm")]
    flow.from_collection(readings, timestamp=lambda r: 7).map(parse).name("parse").print()
"""


@pytest.fixture
def skipped(write: Callable[..., Path], sluiceway: Callable[..., Result]) -> None:
    write("rooms.py", ROOMS)
    result = sluiceway("run", "-q", "--on-error", "skip", "--dead-letters", "dead", "rooms.py")
    assert (result.exit_code, result.stdout) == (0, "('attic', 31.0)\n"), result.output


@pytest.mark.usefixtures("skipped")
def test_show(sluiceway: Callable[..., Result]) -> None:
    lines = sluiceway("dlq", "show", "dead").stdout.splitlines()
    assert lines[0].startswith("parse of rooms, subtask 1, 20")
    assert lines[1:4] == [
        "  record:    Reading(room='cellar', degrees='12,5')",
        "  timestamp: 7 ms",
        "  ValueError: could not convert string to float: '12,5'",
    ]
    assert lines[-1] == "2 dead letters."
    assert "Traceback" not in "".join(lines)
    assert "in parse" in sluiceway("dlq", "show", "dead", "--traceback").stdout
    assert sluiceway("dlq", "show", "dead", "--limit", "1").stdout.endswith(
        "2 dead letters, the first 1 of them shown.\n"
    )
    assert sluiceway("dlq", "show", "dead", "--step", "other").stdout == "0 dead letters.\n"


@pytest.mark.usefixtures("skipped")
def test_show_json(sluiceway: Callable[..., Result]) -> None:
    first, _ = map(json.loads, sluiceway("dlq", "show", "dead", "--json").stdout.splitlines())
    assert first["record"] == "Reading(room='cellar', degrees='12,5')"
    assert (first["job"], first["step"], first["subtask"], first["timestamp"]) == ("rooms", "parse", 0, 7)
    assert first["replayable"] is True
    assert "data" not in first


@pytest.mark.usefixtures("skipped")
def test_replay_with_a_better_program(write: Callable[..., Path], sluiceway: Callable[..., Result]) -> None:
    write("rooms.py", ROOMS.replace("COMMA = False", "COMMA = True"))
    options = ("--quiet", "--on-error", "skip", "--dead-letters", "dead")
    result = sluiceway("dlq", "replay", *options, "--delete", "dead", "rooms.py")
    assert (result.exit_code, result.stdout) == (0, "('cellar', 12.5)\n"), result.output
    left = sluiceway("dlq", "show", "dead").stdout
    assert "degrees='warm'" in left
    assert left.endswith("1 dead letter.\n")


@pytest.mark.usefixtures("skipped")
def test_without_delete_they_stay(write: Callable[..., Path], sluiceway: Callable[..., Result]) -> None:
    write("rooms.py", ROOMS.replace("COMMA = False", "COMMA = True"))
    result = sluiceway("dlq", "replay", "--no-progress", "--on-error", "skip", "dead", "rooms.py")
    assert result.exit_code == 0
    assert (
        "2 dead letters replayed; they are still there, as --delete was not given; 1 failed again and was "
        "skipped, as --dead-letters was not given.\n"
    ) in result.stderr
    assert sluiceway("dlq", "show", "dead").stdout.endswith("2 dead letters.\n")


@pytest.mark.usefixtures("skipped")
def test_what_was_not_decoded_is_left_out_and_stays(
    write: Callable[..., Path], sluiceway: Callable[..., Result], place: Path
) -> None:
    write("rooms.py", ROOMS.replace("COMMA = False", "COMMA = True"))
    (file,) = (place / "dead").iterdir()
    parsed, warm = file.read_text().splitlines()
    warm = warm.replace('"undecoded":false', '"undecoded":true')
    file.write_text(f"{parsed}\n{warm}\n")
    result = sluiceway("dlq", "replay", "--no-progress", "--delete", "dead", "rooms.py")
    assert (result.exit_code, result.stdout) == (0, "('cellar', 12.5)\n"), result.output
    assert (
        "1 dead letter replayed and deleted; 1 that a source could not decode cannot be replayed, and stay"
    ) in result.stderr
    assert json.loads(sluiceway("dlq", "show", "dead", "--json").stdout)["replayable"] is False


@pytest.mark.usefixtures("skipped")
def test_a_replay_that_fails_deletes_nothing(sluiceway: Callable[..., Result]) -> None:
    result = sluiceway("dlq", "replay", "--delete", "dead", "rooms.py")
    assert result.exit_code == 1
    assert "could not convert string to float: '12,5'" in result.stderr
    assert sluiceway("dlq", "show", "dead").stdout.endswith("2 dead letters.\n")


@pytest.mark.usefixtures("skipped")
def test_a_replay_has_no_part_in_the_checkpoints_of_the_job(sluiceway: Callable[..., Result], place: Path) -> None:
    (place / "sluiceway.toml").write_text('checkpoints = "kept"\ncheckpoint-interval = "100ms"\n')
    result = sluiceway("dlq", "replay", "-q", "--on-error", "skip", "dead", "rooms.py")
    assert result.exit_code == 0, result.output
    assert not (place / "kept").exists()
    for option in ("--checkpoints=kept", "--resume"):
        result = sluiceway("dlq", "replay", option, "dead", "rooms.py")
        assert (result.exit_code, "is for the job itself" in result.stderr) == (2, True)


@pytest.mark.usefixtures("skipped")
def test_configured_reporters_are_the_job_s(
    sluiceway: Callable[..., Result], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEWAY_METRICS_FILE", "figures.jsonl")
    (place / "sluiceway.toml").write_text('metrics = ["jsonl"]\non-error = "skip"\n')
    for options, reports in (((), False), (("--metrics", "jsonl"), True)):
        result = sluiceway("dlq", "replay", "-q", *options, "dead", "rooms.py")
        assert result.exit_code == 0, result.output
        assert (place / "figures.jsonl").exists() == reports


@pytest.mark.usefixtures("skipped")
def test_letters_of_others(write: Callable[..., Path], sluiceway: Callable[..., Result]) -> None:
    write("rooms.py", ROOMS.replace('Pipeline("rooms")', 'Pipeline("others")'))
    result = sluiceway("dlq", "replay", "dead", "rooms.py")
    assert result.exit_code == 2
    assert (
        "no dead letters of pipeline 'others' in dead, but of: step 'parse' of pipeline 'rooms'" in result.stderr
    )


def test_nothing_there(write: Callable[..., Path], sluiceway: Callable[..., Result], place: Path) -> None:
    write("rooms.py", ROOMS)
    (place / "empty").mkdir()
    assert "there are no dead letters in empty" in sluiceway("dlq", "replay", "empty", "rooms.py").stderr
    assert "there is no directory nowhere" in sluiceway("dlq", "show", "nowhere").stderr


@pytest.mark.usefixtures("skipped")
def test_records_of_a_program_that_was_run_by_python(
    write: Callable[..., Path], sluiceway: Callable[..., Result], start: Callable[..., object], place: Path
) -> None:
    import subprocess
    import sys

    program = (
        ROOMS + '\n    if __name__ == "__main__":\n        flow.run(on_error="skip", dead_letters="by-python")\n'
    )
    write("rooms.py", program)
    subprocess.run([sys.executable, "rooms.py"], check=True, cwd=place, capture_output=True)
    write("rooms.py", program.replace("COMMA = False", "COMMA = True"))
    result = sluiceway("dlq", "replay", "-q", "--on-error", "skip", "by-python", "rooms.py")
    assert (result.exit_code, result.stdout) == (0, "('cellar', 12.5)\n"), result.output


COUNTS = """
    COMMA = False

    def parse(line):
        room, degrees = line.split()
        return room, float(degrees.replace(",", ".") if COMMA else degrees)

    flow = sw.Pipeline("counts")
    lines = flow.from_collection(["attic 31", "attic 12,5", "attic 30"]).uid("lines")
    parsed = lines.map(parse).uid("parse").on_error("skip")
    counts = parsed.key_by(lambda reading: reading[0]).count().uid("counts")
    counts.sink("files", directory="counts", format="json_lines", append=True).uid("out")
"""


def test_a_replay_begins_with_state_of_the_steps_that_it_runs(
    write: Callable[..., Path], sluiceway: Callable[..., Result], place: Path
) -> None:
    """The checkpoint has positions of a source, output of sinks and letters as well."""
    write("counts.py", COUNTS)
    options = ("--dead-letters", "dead", "--checkpoints", "kept", "--checkpoint-interval", "1h")
    result = sluiceway("run", "-q", *options, "counts.py")
    assert result.exit_code == 0, result.output
    (checkpoint,) = (place / "kept").glob("*/chk-*")
    write("counts.py", COUNTS.replace("COMMA = False", "COMMA = True"))
    result = sluiceway("dlq", "replay", "-q", "--from", str(checkpoint), "dead", "counts.py")
    assert result.exit_code == 0, result.output
    written = [line for path in (place / "counts").iterdir() for line in path.read_text().splitlines()]
    assert sorted(written) == ['["attic",1]', '["attic",2]', '["attic",3]']
    # State of a step that the program has no more is lost, as in a run.
    write("counts.py", COUNTS.replace('uid("counts")', 'uid("other")'))
    result = sluiceway("dlq", "replay", "-q", "--from", str(checkpoint), "dead", "counts.py")
    assert (result.exit_code, "has state of 'counts', which no step" in result.stderr) == (2, True), result.output
