"""Reader of state or dead letters, as a process for one question: standard input has one line of JSON with it.

It writes one line of JSON to standard output, with ``answer`` or ``error``. What a job has written is decoded here
and not in the process of the web server, which is given texts of a bounded size.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any, Final, TypeVar

import msgspec

from sluiceway.connector.lib import dead_letter_files, read_dead_letters
from sluiceway.errors import CheckpointError, SluicewayError
from sluiceway.functions import DeadLetter
from sluiceway.monitoring.state_view import (
    DeadLetters,
    KeyState,
    KeyValue,
    Letter,
    StateEntry,
    StateMonitor,
    StateSizes,
)
from sluiceway.runtime.cluster.client import ClusterClient
from sluiceway.runtime.cluster.home import Known
from sluiceway.savepoint import state_sizes
from sluiceway.savepoint.json_text import as_json
from sluiceway.savepoint.lookup import KeyValue as Found
from sluiceway.savepoint.lookup import find_last_state, find_live_state
from sluiceway.util.engine_processes import engine_command
from sluiceway.util.overriding import override
from sluiceway.util.surrogates import json_bytes

__all__ = ["ProcessStateMonitor", "main"]

_LONGEST_S: Final = 60.0
_LIVE_S: Final = 10.0
_AT_ONCE: Final = 2
_LONGEST: Final = 20_000
_VALUES: Final = 100
_STATES: Final = 1_000
_STEPS: Final = 1_000
_MOST_LETTERS: Final = 200
_RECORD: Final = 2_000
_TRACEBACK: Final = 8_000

T = TypeVar("T")


class ProcessStateMonitor(StateMonitor):
    """State monitor that starts a process for each question, two at a time.

    Args:
        known: address and secret of the job manager; None: those of this user's cluster.
    """

    def __init__(self, known: Known | None = None) -> None:
        self._known = None if known is None else msgspec.to_builtins(known)
        self._running = BoundedSemaphore(_AT_ONCE)

    @override
    def sizes(self, job: str) -> StateSizes:
        return self._ask(StateSizes, "sizes", job=job)

    @override
    def find(self, job: str, uid: str, state: str, key: str, *, live: bool = False) -> KeyState:
        return self._ask(KeyState, "find", job=job, uid=uid, state=state, key=key, live=live)

    @override
    def dead_letters(self, job: str, directory: str, step: str = "", limit: int = 100) -> DeadLetters:
        return self._ask(DeadLetters, "letters", job=job, directory=directory, step=step, limit=limit)

    def _ask(self, kind: type[T], question: str, **about: Any) -> T:
        if not self._running.acquire(blocking=False):
            raise SluicewayError(f"{_AT_ONCE} questions about state are being answered already: try again")
        try:
            done = subprocess.run(
                engine_command("sluiceway.entrypoint.statereader"),
                input=json.dumps({"known": self._known, "question": question, "about": about}).encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_LONGEST_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            what = "state size and state get of the command line have no such limit"
            raise SluicewayError(f"reading took longer than {_LONGEST_S:g} s and was ended: {what}") from None
        finally:
            self._running.release()
        try:
            told = json.loads(done.stdout)
            if "error" in told:
                raise SluicewayError(told["error"])
            return msgspec.convert(told["answer"], kind)
        except (ValueError, KeyError, TypeError) as error:
            raise SluicewayError(f"the process that reads state has ended with code {done.returncode}") from error


def main() -> None:
    """Answer the question on standard input."""
    asked = json.loads(sys.stdin.buffer.readline())
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints
    known = None if asked["known"] is None else Known(**asked["known"])
    try:
        answer = _QUESTIONS[asked["question"]](known, **asked["about"])
        told = json_bytes({"answer": answer})
    except (SluicewayError, OSError) as error:
        told = json_bytes({"error": str(error)[:_RECORD]})
    answers.write(told)
    answers.close()


def _sizes(known: Known | None, job: str) -> StateSizes:
    with ClusterClient(known) as client:
        place = client.latest_checkpoint(job)
        while True:
            try:
                found = state_sizes(place)
                break
            except CheckpointError:
                # A later checkpoint may have been completed meanwhile, and that one was removed.
                before, place = place, client.latest_checkpoint(job)
                if place == before:
                    raise
    return StateSizes(
        place,
        [
            StateEntry(
                s.uid,
                s.state,
                s.kind,
                s.keys,
                s.entries,
                s.size,
                as_json(s.largest_key)[:200] if s.keys else "",
                s.largest_size,
            )
            for s in found[:_STATES]
        ],
    )


def _find(known: Known | None, job: str, uid: str, state: str, key: str, live: bool) -> KeyState:
    with ClusterClient(known) as client:
        if live:
            place, found = "", find_live_state(client, job, uid, state, key, within_s=_LIVE_S)
        else:
            place, found = find_last_state(client, job, uid, state, key)
    return KeyState(place, len(found), [_value(one) for one in found[:_VALUES]])


def _value(found: Found) -> KeyValue:
    value = found.value
    if isinstance(value, dict) and not all(isinstance(name, str) for name in value):
        value = [list(pair) for pair in value.items()]
    text = as_json(value)
    longest = max(200, _LONGEST // 10)
    return KeyValue(
        as_json(found.namespace)[:200],
        found.kind,
        text[:longest],
        len(text) > longest,
        found.touched_ms,
    )


def _letters(known: Known | None, job: str, directory: str, step: str, limit: int) -> DeadLetters:
    total = 0
    steps: dict[str, int] = {}
    newest: deque[DeadLetter] = deque(maxlen=max(1, min(limit, _MOST_LETTERS)))
    # A file has the letters of one writer in their order; the files are taken by age.
    files = sorted(dead_letter_files(directory), key=_age) if Path(directory).is_dir() else []
    for letter in read_dead_letters(files):
        if letter.job != job:
            continue
        # Bounded, as the names come from files of a job.
        if letter.step in steps or len(steps) < _STEPS:
            steps[letter.step] = steps.get(letter.step, 0) + 1
        total += 1
        if not step or letter.step == step:
            newest.append(letter)
    shown = list(reversed(newest))
    shown.sort(key=lambda letter: -letter.time_ms)
    return DeadLetters(directory, total, steps, [_letter(letter) for letter in shown])


def _age(file: Path) -> tuple[int, str]:
    try:
        return file.stat().st_mtime_ns, file.name
    except FileNotFoundError:
        return 0, file.name


def _letter(letter: DeadLetter) -> Letter:
    return Letter(
        letter.step,
        letter.uid,
        letter.subtask,
        letter.time_ms,
        letter.record[:_RECORD],
        None if letter.key is None else letter.key[:200],
        letter.error[:_RECORD],
        letter.traceback[-_TRACEBACK:],
        letter.replayable,
    )


_QUESTIONS: Final[dict[str, Callable[..., msgspec.Struct]]] = {"sizes": _sizes, "find": _find, "letters": _letters}

if __name__ == "__main__":
    main()
