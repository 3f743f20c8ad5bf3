"""End of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from sluiceway.api.step_options import StepSettings
from sluiceway.api.unknown_names import answer
from sluiceway.graph import Transformation

__all__ = ["DataStreamSink"]


class DataStreamSink(StepSettings):
    """Sink of a stream, returned by sink(), print() and for_each(); takes settings, but no further step.

    Args:
        transformation: the step of the sink.
        stream: class of the stream that ends here, whose methods a message names.
    """

    def __init__(self, transformation: Transformation, stream: type) -> None:
        self._transformation = transformation
        self._stream = stream

    def _settable(self, setting: str) -> Transformation:
        return self._transformation

    def __repr__(self) -> str:
        return f"<DataStreamSink {self._transformation.label()}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if not name.startswith("_") and name in dir(self._stream):
                raise AttributeError(
                    f"DataStreamSink has no {name}(): a sink is the end of a stream. To go on with the records, "
                    "keep the stream in a variable and use it twice"
                )
            answer(self, name)
