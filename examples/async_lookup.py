"""Enrich orders with the names of customers, which a server tells, many questions at a time.

The server is part of the example: it listens on 127.0.0.1, takes its time for every answer, is too busy for
some questions at first, and never answers one of them.

Run it::

    sluiceway run examples/async_lookup.py
    python examples/async_lookup.py [--assert]
"""

import asyncio
import socketserver
import sys
import threading
import time
from typing import ClassVar

import sluiceway as sw

ANSWER_S = 0.02
ORDERS = [(number, f"c{number % 40}" if number != 150 else "nobody") for number in range(200)]


class Customers(socketserver.StreamRequestHandler):
    """Answers each line, the id of a customer, with a line: the name, or ``busy``."""

    asked: ClassVar[set[str]] = set()

    def handle(self) -> None:
        """Talk to one client until it hangs up."""
        for line in self.rfile:
            customer = line.decode().strip()
            if customer == "nobody":
                continue
            time.sleep(ANSWER_S)
            first = customer not in self.asked
            self.asked.add(customer)
            busy = first and customer.endswith("7")
            self.wfile.write(b"busy\n" if busy else f"Customer {customer[1:]}\n".encode())


class Server(socketserver.ThreadingTCPServer):
    """A thread for each client, none of which keeps the program from ending."""

    daemon_threads = True
    request_queue_size = 100


def serve() -> int:
    """Start the server; the port it listens on."""
    server = Server(("127.0.0.1", 0), Customers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


class LookUp(sw.AsyncFunction[tuple[int, str], tuple[int, str]]):
    """Asks over connections that are kept open: those that are free lie in ``self.free``.

    All methods but the constructor run in one event loop, so nothing here needs a lock.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.opened = 0

    async def async_invoke(self, value: tuple[int, str]) -> list[tuple[int, str]]:
        """The order with the name of its customer."""
        number, customer = value
        if self.free:
            reader, writer = self.free.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            self.opened += 1
        answered = False
        try:
            writer.write(f"{customer}\n".encode())
            name = (await reader.readline()).decode().strip()
            answered = True
        finally:
            # A connection on which an answer may still come is of no use to anybody else.
            if answered:
                self.free.append((reader, writer))
            else:
                writer.close()
        if name == "busy":
            raise ConnectionError(f"the server is too busy for {customer}")
        return [(number, name)]

    def timeout(self, value: tuple[int, str]) -> list[tuple[int, str]]:
        """Return the result for an order without an answer in time."""
        return [(value[0], "unknown")]

    async def close(self) -> None:
        """Hang up."""
        for _, writer in self.free:
            writer.close()
            await writer.wait_closed()


flow = sw.Pipeline("async lookup")
look_up = LookUp(serve())
named = flow.from_collection(ORDERS).async_map(
    look_up,
    timeout="1s",
    capacity=50,
    retry=sw.AsyncRetryStrategy.exponential_backoff(3, "10ms", "200ms", if_exception=ConnectionError),
)
named.filter(lambda order: order[0] % 25 == 0).print()
seen = named.collect()

if __name__ == "__main__":
    result = flow.run()
    print(f"{len(seen)} orders in {result.metrics.elapsed_s:.1f} s, over {look_up.opened} connections")
    if "--assert" in sys.argv:
        assert [number for number, _ in seen] == list(range(200))
        assert seen[150] == (150, "unknown")
        assert all(name == f"Customer {number % 40}" for number, name in seen if number != 150)
        assert look_up.opened <= 50 + 5
        assert result.metrics.elapsed_s < 200 * ANSWER_S  # what one question after the other takes
