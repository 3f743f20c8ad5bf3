"""Registry of the handlers of messages: methods, found by the type of the message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from sluiceway.runtime.messages.base import Message

__all__ = ["Handlers", "handles"]

S = TypeVar("S")
M = TypeVar("M", bound=Message)
P = ParamSpec("P")


def handles(
    kind: type[M],
) -> Callable[[Callable[Concatenate[S, M, P], None]], Callable[Concatenate[S, M, P], None]]:
    """Register the decorated method of a subclass of :class:`Handlers` as the handler of a type of message."""

    def register(method: Callable[Concatenate[S, M, P], None]) -> Callable[Concatenate[S, M, P], None]:
        method.__handles__ = kind  # type: ignore[attr-defined]
        return method

    return register


class Handlers:
    """Base of classes that receive messages: :meth:`dispatch` calls the method that :func:`handles` registered.

    Attributes:
        handlers: by type of message, the name of the method.
    """

    handlers: ClassVar[dict[type[Message], str]] = {}

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        own: dict[type[Message], str] = {}
        for name, value in vars(cls).items():
            kind = getattr(value, "__handles__", None)
            if kind is not None and own.setdefault(kind, name) != name:
                raise TypeError(f"{cls.__name__} has two handlers of {kind.__name__}: {own[kind]} and {name}")
        # By name, so that an override in a subclass is called.
        cls.handlers = {**cls.handlers, **own}

    def dispatch(self, message: Message, *context: Any) -> bool:
        """Call the handler of a message; return False if there is none.

        Args:
            message: the first argument of the handler.
            context: its other arguments, the same for every handler of the class.
        """
        name = self.handlers.get(type(message))
        if name is None:
            return False
        getattr(self, name)(message, *context)
        return True
