"""Word count over TCP, from end to end: ``make demo``.

Streams the sources of this Python installation from a TCP server, has ``sluiceway run`` count their words, and
compares with a count made here by other means. Exits with 1 if the two do not agree.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections import Counter
from pathlib import Path

PIPELINE = Path(__file__).with_name("demo_wordcount.py")


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


def count_by_pipeline(text: str, arguments: list[str]) -> dict[str, int]:
    """Have the pipeline count, through the command line. Exits if it fails."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        tempfile.TemporaryDirectory(prefix="sluiceway-demo-") as directory,
    ):
        port = server.getsockname()[1]
        counts = Path(directory) / "counts.json"
        thread = threading.Thread(target=serve, args=(server, text.encode()), daemon=True)
        thread.start()
        pipeline = [os.path.relpath(PIPELINE), "--port", str(port), "--counts", str(counts)]
        print("$", shlex.join(["sluiceway", "run", *arguments, *pipeline]), flush=True)
        ended = subprocess.run([sys.executable, "-m", "sluiceway", "run", *arguments, *pipeline])
        socket.create_connection(server.getsockname()).close()  # lets the thread go if nobody else came
        thread.join()
        if ended.returncode:
            sys.exit(f"sluiceway run failed with exit code {ended.returncode}")
        result: dict[str, int] = json.loads(counts.read_text())
        return result


def agree(counts: dict[str, int], expected: Counter[str]) -> bool:
    """Compare, and say how it went."""
    words, different = f"{expected.total():,} words", f"{len(expected):,} different ones"
    wrong = [word for word in counts.keys() | expected.keys() if counts.get(word, 0) != expected[word]]
    if not wrong:
        print(f"\n{words}, {different}: all counts agree with an independent count (collections.Counter).")
        return True
    print(f"\n{words}, {different}: {len(wrong):,} COUNTS ARE WRONG, for instance:")
    for word in sorted(wrong)[:10]:
        print(f"  {word}: counted {counts.get(word, 0):,}, should be {expected[word]:,}")
    return False


def main() -> int:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=float, default=20, help="how much text at the most (20)")
    parser.add_argument("--top", type=int, default=10, help="how many words to show (10)")
    parser.add_argument("run_options", nargs="*", help="options of sluiceway run, after --")
    options = parser.parse_args()

    text, files = sources(options.megabytes)
    print(f"{len(text) / 1e6:,.1f} MB of Python's own sources: {files:,} files, {text.count(chr(10)):,} lines")
    counts = count_by_pipeline(text, options.run_options)
    print(f"\nThe {options.top} most frequent words:")
    for word, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[: options.top]:
        print(f"{count:>10,}  {word}")
    expected = Counter(re.findall(r"[^\W\d]\w*", text.lower()))
    return 0 if agree(counts, expected) else 1


if __name__ == "__main__":
    sys.exit(main())
