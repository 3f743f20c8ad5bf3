"""From a command line to a pipeline that answers a query."""

import argparse
from collections.abc import Sequence

import sluiceway as sw

from .generator import NexmarkConfig
from .model import Event
from .queries import QUERIES
from .source import NexmarkSource

__all__ = ["config_of", "events_of", "flow", "parser", "watermarks_of"]


def events_of(pipeline: sw.Pipeline, count: int | None, config: NexmarkConfig) -> sw.DataStream[Event]:
    """The events, with their times and with watermarks."""
    events = pipeline.source(NexmarkSource(count, config), watermark_strategy=watermarks_of(config))
    return events.name("events").uid("events")


def watermarks_of(config: NexmarkConfig) -> sw.WatermarkStrategy[Event]:
    """Return the watermark strategy for the disorder of the events."""
    return sw.WatermarkStrategy.for_bounded_out_of_orderness(config.out_of_orderness_ms)


def parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the options."""
    titles = "\n".join(f"  {query.name:4} {query.title}" for query in QUERIES.values())
    made = argparse.ArgumentParser(
        prog, description=f"The queries:\n{titles}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("query", choices=QUERIES, metavar="QUERY", help="one of them, as in q5")
    made.add_argument("--events", type=int, default=10_000, help="how many (default: %(default)s)")
    made.add_argument("--seed", type=int, default=1, help="another one gives other events")
    made.add_argument("--rate", type=int, default=10_000, help="events per second of event time")
    made.add_argument("--shuffle", type=int, default=1, help="how many events at a time come in any order")
    return made


def config_of(options: argparse.Namespace) -> NexmarkConfig:
    """The events that were asked for."""
    return NexmarkConfig(
        seed=options.seed, events_per_second=options.rate, out_of_order_group_size=options.shuffle
    )


def flow(arguments: Sequence[str]) -> sw.Pipeline:
    """The pipeline that prints the answers: what ``sluiceway run examples.nexmark`` runs."""
    options = parser("sluiceway run examples.nexmark").parse_args(arguments)
    pipeline = sw.Pipeline(f"nexmark {options.query}")
    QUERIES[options.query].build(events_of(pipeline, options.events, config_of(options))).print()
    return pipeline
