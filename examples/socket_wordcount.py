"""Count the words that a TCP server sends, while they come.

Give it a server to read from, in one terminal::

    python3 examples/serve_lines.py --port 9999

and in another one::

    sluiceway run examples/socket_wordcount.py --host 127.0.0.1 --port 9999
    python examples/socket_wordcount.py --port 9999 --retries 3

Every line typed into the first terminal shows as running counts in the second. It ends when the server closes
the connection; with ``--retries N`` it connects again, up to N times. To see it work at once::

    python examples/socket_wordcount.py --assert

which brings a server of its own and checks what is counted.
"""

import argparse
import socketserver
import sys
import threading

import sluiceway as sw


def flow(arguments: list[str]) -> sw.Pipeline:
    """The pipeline for these command-line arguments: ``sluiceway run`` calls this by its name."""
    parser = argparse.ArgumentParser(prog="socket_wordcount", description="count words from a socket")
    parser.add_argument("--host", default="127.0.0.1", help="where the server is (default: %(default)s)")
    parser.add_argument("--port", type=int, default=9999, help="its TCP port (default: %(default)s)")
    parser.add_argument("--retries", type=int, default=0, help="how often to connect again; -1: for ever")
    options = parser.parse_args(arguments)

    pipeline = sw.Pipeline("socket wordcount")
    counts(pipeline, options.host, options.port, options.retries).print()
    return pipeline


def counts(pipeline: sw.Pipeline, host: str, port: int, retries: int) -> sw.DataStream[tuple[str, int]]:
    """Pairs of a word and how often it has come so far."""
    return (
        pipeline.source("socket", host=host, port=port, max_retries=retries)
        .returns(str)
        .uid("lines")
        .flat_map(lambda line: line.lower().split())
        .key_by(lambda word: word)
        .count()
        .uid("counts")
    )


class ToBe(socketserver.BaseRequestHandler):
    """Says its line and hangs up."""

    def handle(self) -> None:
        self.request.sendall(b"to be or not to be\n")


def check() -> None:
    """Count what a server on this machine sends over two connections."""
    with socketserver.TCPServer(("127.0.0.1", 0), ToBe) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            pipeline = sw.Pipeline("socket wordcount")
            seen = counts(pipeline, "127.0.0.1", server.server_address[1], retries=1).collect()
            pipeline.run()
        finally:
            server.shutdown()
            thread.join()
    assert dict(seen) == {"to": 4, "be": 4, "or": 2, "not": 2}
    assert len(seen) == 12


if __name__ == "__main__":
    if "--assert" in sys.argv:
        check()
    else:
        flow(sys.argv[1:]).run()
