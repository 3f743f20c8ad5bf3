"""Fixtures for pytest.

To have them, write ``pytest_plugins = ["sluiceway.testing.pytest_plugin"]`` into the ``conftest.py`` beside
pytest's configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sluiceway.testing.kafka import KafkaCluster

__all__ = ["SimulationRunner", "kafka_broker", "kafka_brokers", "kafka_secured_broker", "simulation"]

_OPTION = "--simulation-seeds"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line option."""
    parser.getgroup("sluiceway").addoption(
        _OPTION,
        type=int,
        metavar="N",
        help="how many seeds each test that uses the fixture 'simulation' tries, instead of its own number",
    )


class SimulationRunner:
    """Runner of a function on many seeds: value of the fixture ``simulation``.

    Args:
        seeds: how many; None: as many as the test asks for.
    """

    def __init__(self, seeds: int | None) -> None:
        self._seeds = seeds

    def __call__(self, trial: Callable[[int], object], seeds: int | Iterable[int] = 20) -> None:
        """Call ``trial(seed)`` for so many seeds.

        ``SLUICEWAY_SIMULATION_SEED`` in the environment runs one seed alone, ``--simulation-seeds N`` another
        number of them. What a trial raises gets a note with the command that repeats that seed.

        Args:
            trial: simulates something with that seed, and checks what came of it.
            seeds: the seeds, or how many, from 0.
        """
        from sluiceway.testing.simulation import for_seeds

        for_seeds(trial, seeds if self._seeds is None else self._seeds)


@pytest.fixture
def simulation(request: pytest.FixtureRequest) -> SimulationRunner:
    """Runner of a function on many seeds: ``simulation(trial, seeds=20)``."""
    return SimulationRunner(request.config.getoption(_OPTION))


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Broker of Apache Kafka for all tests of the run, which are skipped with the reason if it cannot start."""
    yield from _cluster(tmp_path_factory, 1)


@pytest.fixture(scope="module")
def kafka_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Cluster of three brokers, each of which may be killed and started, for the tests of a module."""
    yield from _cluster(tmp_path_factory, 3)


@pytest.fixture(scope="module")
def kafka_secured_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Broker that also listens with SASL and TLS, for the tests of a module."""
    yield from _cluster(tmp_path_factory, 1, secured=True)


def _cluster(
    tmp_path_factory: pytest.TempPathFactory, brokers: int, *, secured: bool = False
) -> Iterator[KafkaCluster]:
    from sluiceway.testing.kafka import KafkaCluster, KafkaUnavailableError

    # pytest keeps the directories of the last runs, and with them the brokers' logs.
    cluster = KafkaCluster(brokers, root=tmp_path_factory.mktemp("kafka"), secured=secured)
    try:
        # Not by with: the error of a test must not skip it.
        cluster.__enter__()
    except KafkaUnavailableError as error:
        pytest.skip(str(error))
    try:
        yield cluster
    finally:
        cluster.__exit__(None, None, None)
