"""Word count over TCP, from end to end: ``make demo``.

Streams the sources of this Python installation from a TCP server, has ``sluiceway run`` count their words, and
compares with a count made here by other means. Then the same on two worker processes, over each transport that
works here. At last demo_files.py: files, counted by one pipeline in every way to run it, on Spark where that is
installed. Ends with a link to pages about the runs, where the extra ``web`` is installed. Exits with 1 if the
counts do not agree.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

PIPELINE = Path(__file__).with_name("demo_wordcount.py")
WORD = re.compile(r"[^\W\d]\w*")
MOST_IN_FILES = 5_000_000
HISTORY = Path(sys.prefix, "demo-history")
"""Records of the runs, for the pages about them."""


@dataclass
class Way:
    """One way to run the pipeline, and what came of it."""

    name: str
    options: list[str]
    transport: str = "local"
    seconds: float = 0.0
    counts: dict[str, int] | None = None
    """None: not run."""


IN_PROCESS = Way("in one process", [])
ON_WORKERS = [
    Way(f"two workers, {name}", ["--workers", "2", "--parallelism", "2", "--transport", transport], transport)
    for name, transport in (("shared memory", "shm"), ("ZeroMQ", "zmq"))
]


def sources(megabytes: float) -> tuple[str, int]:
    """The text of Python's own library, up to about that size, and of how many files."""
    left = int(megabytes * 1_000_000)
    texts = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts or "dist-packages" in path.parts:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")[:left]
        texts.append(text if text.endswith("\n") else text + "\n")
        left -= len(text)
        if left <= 0:
            break
    return "".join(texts), len(texts)


def serve(server: socket.socket, data: bytes) -> None:
    """Send everything to the first that connects."""
    try:
        connection, _ = server.accept()
        with connection:
            connection.sendall(data)
    except OSError:
        pass  # nobody came, or nobody stayed: the pipeline has told why


def run(way: Way, data: bytes) -> None:
    """Have the pipeline count, through the command line. Exits if it fails."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        tempfile.TemporaryDirectory(prefix="sluiceway-demo-") as directory,
    ):
        port = server.getsockname()[1]
        counts = Path(directory) / "counts.json"
        thread = threading.Thread(target=serve, args=(server, data), daemon=True)
        thread.start()
        options = ["--history", os.path.relpath(HISTORY), *way.options]
        pipeline = [os.path.relpath(PIPELINE), "--port", str(port), "--counts", str(counts)]
        print("$", shlex.join(["sluiceway", "run", *options, *pipeline]), flush=True)
        started = time.perf_counter()
        ended = subprocess.run([sys.executable, "-m", "sluiceway", "run", *options, *pipeline])
        way.seconds = time.perf_counter() - started
        socket.create_connection(server.getsockname()).close()  # lets the thread go if nobody else came
        thread.join()
        if ended.returncode:
            sys.exit(f"sluiceway run failed with exit code {ended.returncode}")
        way.counts = json.loads(counts.read_text())


def missing() -> dict[str, str]:
    """Why a transport does not work here, by its name."""
    command = [sys.executable, "-m", "sluiceway", "plugins", "list", "--json"]
    offers = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["offers"]
    transports = {offer["name"]: offer for offer in offers if offer["kind"] == "transport"}
    reasons = {}
    for way in ON_WORKERS:
        offer = transports.get(way.transport)
        if offer is None:
            reasons[way.transport] = "its plugin is not loaded (sluiceway plugins list)"
        elif offer["missing"]:
            reasons[way.transport] = f"it needs {', '.join(offer['missing'])}: {offer['install']}"
        elif way.transport == "shm" and not hasattr(os, "memfd_create"):
            reasons[way.transport] = "it needs Linux"
    return reasons


def agree(way: Way, expected: Counter[str]) -> bool:
    """Compare, and tell of what is wrong."""
    if way.counts is None:
        return True
    wrong = [word for word in way.counts.keys() | expected.keys() if way.counts.get(word, 0) != expected[word]]
    if wrong:
        print(f"\n{way.name}: {len(wrong):,} COUNTS ARE WRONG, for instance:")
    for word in sorted(wrong)[:10]:
        print(f"  {word}: counted {way.counts.get(word, 0):,}, should be {expected[word]:,}")
    return not wrong


def row(way: Way, words: int, reason: str | None) -> str:
    """Row of the table: the result of one way to run."""
    if way.counts is None:
        return f"  {way.name:<28}not run: {reason}"
    return f"  {way.name:<28}{way.seconds:>6.1f} s{words / way.seconds:>12,.0f} words/s"


def show_pages() -> None:
    """Serve pages about the runs, and print their link. The server outlives this process."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        print('\nPages about these runs need the extra web: pip install -e ".[web]"')
        return
    command = [sys.executable, "-m", "sluiceway", "web", "--history", str(HISTORY), "--idle-timeout", "10m"]
    null = subprocess.DEVNULL
    server = subprocess.Popen(command, stdin=null, stdout=subprocess.PIPE, stderr=null, start_new_session=True)
    assert server.stdout is not None
    with server.stdout as said:
        link = said.readline().decode().strip().removeprefix("web interface: ")
    if not link:
        print("\nThe pages about these runs could not be served: try", shlex.join(command[1:]))
        return
    print(f"\nPages about these runs, until nobody has looked for ten minutes (process {server.pid}):\n  {link}")
    server.returncode = 0  # it is nobody's child to wait for


def main() -> int:
    """Run the demonstration, and show pages about it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=float, default=20, help="how much text at the most (20)")
    parser.add_argument("--top", type=int, default=10, help="how many words to show (10)")
    parser.add_argument(
        "run_options", nargs="*", help="options of sluiceway run, after --: one run with these only"
    )
    parser.add_argument("--no-pages", action="store_true", help="serve no pages about the runs at the end")
    options = parser.parse_args()

    shutil.rmtree(HISTORY, ignore_errors=True)
    status = count(options)
    if not options.no_pages:
        show_pages()
    return status


def count(options: argparse.Namespace) -> int:
    """Count in all ways and compare; the exit code."""
    text, files = sources(options.megabytes)
    expected = Counter(WORD.findall(text.lower()))
    data, words = text.encode(), expected.total()
    print(f"{len(data) / 1e6:,.1f} MB of Python's own sources: {files:,} files, {text.count(chr(10)):,} lines")
    first = Way(shlex.join(options.run_options), options.run_options) if options.run_options else IN_PROCESS
    run(first, data)
    assert first.counts is not None
    print(f"\nThe {options.top} most frequent words:")
    for word, count in sorted(first.counts.items(), key=lambda pair: (-pair[1], pair[0]))[: options.top]:
        print(f"{count:>10,}  {word}")
    ways, reasons = [first], {}
    if not options.run_options:
        print("\nThe same on two worker processes:")
        ways, reasons = [first, *ON_WORKERS], missing()
        for way in ON_WORKERS:
            if way.transport not in reasons:
                run(way, data)
    wrong = [way for way in ways if not agree(way, expected)]
    if wrong:
        return 1
    print(f"\n{words:,} words, {len(expected):,} different ones: all counts agree with an independent count")
    print("(collections.Counter). From start to exit:")
    for way in ways:
        print(row(way, words, reasons.get(way.transport)))
    if any(way.seconds > first.seconds for way in ways):
        print("Words are little work. When workers pay, and what they cost: docs/howto/workers.md.")
    if options.run_options:
        return 0
    from demo_files import compare

    none_works = all(way.transport in reasons for way in ON_WORKERS)
    return compare(text[:MOST_IN_FILES], reasons[ON_WORKERS[0].transport] if none_works else None)


if __name__ == "__main__":
    sys.exit(main())
