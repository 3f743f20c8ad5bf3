"""Serve lines of text over TCP, for examples that read from a socket.

What is piped or typed into it goes to whoever connects, line by line, as it comes; or the lines of a file do::

    python3 examples/serve_lines.py --port 9999
    ls | python3 examples/serve_lines.py --port 9999
    python3 examples/serve_lines.py --port 9999 README.md

At the end of the input the connection is closed, and the server ends. A client that goes away earlier makes room
for the next one, which gets the lines from there on; what was on its way to the first is lost. Only programs on
this machine can connect. To see it work at once::

    python3 examples/serve_lines.py --assert

This needs nothing but Python.
"""

import argparse
import io
import socket
import sys
import threading
from typing import BinaryIO


def serve(server: socket.socket, lines: BinaryIO) -> None:
    """Send lines to a client at a time, each as soon as it is read, and close the connection behind the last."""
    client, _ = server.accept()
    try:
        # readline() and not a loop over the file, which reads ahead.
        while line := lines.readline():
            while not sent(client, line if line.endswith(b"\n") else line + b"\n"):
                client.close()
                client, _ = server.accept()
    finally:
        client.close()


def sent(client: socket.socket, line: bytes) -> bool:
    """Whether the client was there to take it."""
    try:
        client.sendall(line)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def main() -> None:
    """Serve standard input or a file."""
    parser = argparse.ArgumentParser(prog="serve_lines", description="serve lines of text over TCP")
    parser.add_argument("file", nargs="?", help="serve its lines; without it, standard input")
    parser.add_argument("--port", type=int, default=9999, help="TCP port, 0 for a free one (default: %(default)s)")
    options = parser.parse_args()
    try:
        with (
            open(options.file, "rb") if options.file else sys.stdin.buffer as lines,
            socket.create_server(("127.0.0.1", options.port)) as server,
        ):
            print(f"serving lines on port {server.getsockname()[1]}", file=sys.stderr)
            serve(server, lines)
    except OSError as error:
        sys.exit(f"serve_lines: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def check() -> None:
    """Serve two lines, and read them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server, io.BytesIO(b"to be\nor not")))
        thread.start()
        with socket.create_connection(server.getsockname()) as client, client.makefile("rb") as received:
            lines = received.readlines()
        thread.join()
    assert lines == [b"to be\n", b"or not\n"]


if __name__ == "__main__":
    if "--assert" in sys.argv:
        check()
    else:
        main()
