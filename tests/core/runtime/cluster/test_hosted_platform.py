"""Job managers that listen on TCP, by IPv4 and by IPv6."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest

from sluiceway.runtime.cluster.worker_host import HostedPlatform, WorkerHost, connect, own_address


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize(
    ("host", "listens_at", "own"),
    [
        ("127.0.0.1", "", "127.0.0.1"),
        ("localhost", "127.0.0.1", "127.0.0.1"),
        pytest.param("::1", "", "[::1]", marks=IPV6),
        pytest.param("[::1]", "", "[::1]", marks=IPV6),
        pytest.param("[::1]", "::", "[::1]", marks=IPV6),
        pytest.param("127.0.0.1", "[::]", "127.0.0.1", marks=IPV6),
    ],
)
def test_peers_connect_by_the_family_of_the_host(tmp_path: Path, host: str, listens_at: str, own: str) -> None:
    platform = HostedPlatform(Mock(spec=WorkerHost, listens_at=listens_at), host)
    listener = platform.listen(tmp_path)
    try:
        address = platform.address(tmp_path, listener)
        with connect(address) as sock:
            assert sock.getpeername()[1] == listener.getsockname()[1]
        assert own_address(address) == own
    finally:
        listener.close()


def test_a_connection_that_cannot_be_made_is_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError) as raised:
        connect(str(tmp_path / "manager"))
    assert len(os.listdir("/proc/self/fd")) == before, raised
