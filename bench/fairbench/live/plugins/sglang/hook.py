"""A hook of the plugin around a function of SGLang's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Hook(NamedTuple):
    """Goes around a function whose parameters have to begin with these.

    Beside ``self``, unless it is ``static``.
    """

    method: Callable[..., Any]
    parameters: tuple[str, ...] = ()
    static: bool = False

    @property
    def expected(self) -> tuple[str, ...]:
        """The expected first parameters of the hooked function."""
        return self.parameters if self.static else ("self", *self.parameters)
