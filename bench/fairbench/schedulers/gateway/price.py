"""The price of a request at a gateway, charged before the output length is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt
from pydantic import FiniteFloat

from fairbench.core import Request
from fairbench.schedulers.base import Read


@dataclass(frozen=True)
class PriceParams:
    """Prices: ``input_weight`` for a prompt token and ``output_weight`` for an output token.

    ``assumed_output_tokens`` are charged when a request goes; with ``corrected`` the difference to
    what it took is charged, or given back, when it is over.
    """

    input_weight: Annotated[FiniteFloat, Gt(0)] = 1.0
    output_weight: Annotated[FiniteFloat, Ge(0)] = 2.0
    assumed_output_tokens: Annotated[int, Ge(0)] = 128
    corrected: bool = True

    def of(self, request: Request) -> float:
        """Return the charge when a request is sent."""
        outputs = self.output_weight * self.assumed_output_tokens
        return self.input_weight * request.input_tokens + outputs

    def correction(self, request: Request, read: Read, output_tokens: int) -> float:
        """Return the additional charge at a request's end; negative if too much was charged.

        Args:
            request: Request that has ended.
            read: Prompt as the worker read it.
            output_tokens: Number of output tokens of the request.
        """
        if not self.corrected:
            return 0.0
        inputs = self.input_weight * (read.input_tokens - request.input_tokens)
        return inputs + self.output_weight * (output_tokens - self.assumed_output_tokens)
