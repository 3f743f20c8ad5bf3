"""Serve lines of text over TCP, for examples that read from a socket.

What is piped or typed into it goes to whoever connects, line by line, as it comes; or the lines of a file do::

    python3 examples/serve_lines.py --port 9999
    ls | python3 examples/serve_lines.py --port 9999
    python3 examples/serve_lines.py --port 9999 README.md

At the end of the input the connection is closed, and the server ends. A client that goes away earlier makes room
for the next one, which gets the lines from there on; what was on its way to the first is lost. Only programs on
this machine can connect. The other way round, what a client sends is printed until it closes the connection::

    python3 examples/serve_lines.py --port 9998 --receive

To see it work at once::

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


def receive(server: socket.socket, out: BinaryIO) -> None:
    """Write what a client sends, as it comes."""
    client, _ = server.accept()
    with client:
        while data := client.recv(65536):
            out.write(data)
            out.flush()


def sent(client: socket.socket, line: bytes) -> bool:
    """Return whether the client received it."""
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
    parser.add_argument("--receive", action="store_true", help="print what a client sends; serve nothing")
    options = parser.parse_args()
    try:
        with (
            open(options.file, "rb") if options.file else sys.stdin.buffer as lines,
            socket.create_server(("127.0.0.1", options.port)) as server,
        ):
            print(f"serving lines on port {server.getsockname()[1]}", file=sys.stderr)
            if options.receive:
                receive(server, sys.stdout.buffer)
            else:
                serve(server, lines)
    except OSError as error:
        sys.exit(f"serve_lines: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def check() -> None:
    """Serve two lines and read them, and receive one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server, io.BytesIO(b"to be\nor not")))
        thread.start()
        with socket.create_connection(server.getsockname()) as client, client.makefile("rb") as file:
            lines = file.readlines()
        thread.join()
    assert lines == [b"to be\n", b"or not\n"]
    received = io.BytesIO()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=receive, args=(server, received))
        thread.start()
        with socket.create_connection(server.getsockname()) as client:
            client.sendall(b"that is\n")
        thread.join()
    assert received.getvalue() == b"that is\n"


if __name__ == "__main__":
    if "--assert" in sys.argv:
        check()
    else:
        main()
