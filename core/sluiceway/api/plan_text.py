"""Text of a plan that notebooks show as a picture."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["PlanText"]


class PlanText(str):
    """Result of ``explain()``: a string that is shown as text at a prompt and as a drawing in a notebook.

    Args:
        text: the plan.
        picture: returns it as HTML.
    """

    __slots__ = ("_picture",)

    def __new__(cls, text: str, picture: Callable[[], str]) -> PlanText:
        """Make one."""
        made = super().__new__(cls, text)
        made._picture = picture
        return made

    _picture: Callable[[], str]

    def _repr_html_(self) -> str:
        return self._picture()

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)
