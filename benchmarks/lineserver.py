"""A TCP server that sends lines at a steady pace, each with the moment it was sent: ``MOMENT WORD``.

    python -m benchmarks.lineserver LINES RATE

prints the port it listens on, sends LINES lines at RATE a second to the first client, and ends. Moments are
nanoseconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import socket
import sys
import time

WORDS = ("to", "be", "or", "not", "that", "is", "the", "question")
_PATIENCE_S = 30.0


def serve(lines: int, rate: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_PATIENCE_S)
        print(server.getsockname()[1], flush=True)
        client, _ = server.accept()
        with client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            start = time.monotonic()
            for number in range(lines):
                time.sleep(max(0.0, start + number / rate - time.monotonic()))
                client.sendall(b"%d %s\n" % (time.monotonic_ns(), WORDS[number % len(WORDS)].encode()))


if __name__ == "__main__":
    serve(int(sys.argv[1]), float(sys.argv[2]))
