"""The interface of charging. Its methods are the engine events of ``LocalScheduler``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fairbench.core import Request
from fairbench.schedulers.accounts.account import Account
from fairbench.schedulers.setup import Setup
from fairbench.schedulers.views import Read


class Charging:
    """Turns engine events into ``account.charge(client, amount)``.

    By default, events cost nothing.
    """

    refunds: ClassVar[bool] = True  # gives back outputs that were charged ahead and did not come
    no_bound = ""  # why no theorem bounds what is charged, such as "charges ..."

    def __init__(self, account: Account) -> None:
        self.account = account

    def prepare(self, name: str, setup: Setup) -> None:
        """Take the facts of the experiment. Raises UsageError naming the scheduler."""

    def admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        """Charge a request for the part of its prompt that will be computed.

        Args:
            request: Request that is admitted.
            extend_tokens: Tokens of the prompt that are not cached.
            recompute: Whether a retracted request is admitted again.
        """

    def tokens(self, client: str, tokens: int) -> None:
        """Charge output tokens; a negative number is a refund."""

    def request_tokens(self, request: Request, tokens: int) -> None:
        """Charge output tokens of a request, for schedulers that count them by request."""

    def steps(self, steps: int, running: Mapping[str, int]) -> None:
        """Charge the decode steps of a whole batch."""

    def prompt_time(self, request: Request, gpu_ps: int, complete: bool) -> None:
        """Charge the part of an iteration's time that was spent on a prompt.

        Args:
            request: Request whose prompt was computed.
            gpu_ps: GPU time, in picoseconds.
            complete: Whether the chunk is the last of the prompt.
        """

    def gpu_time(self, client: str, gpu_ps: int) -> None:
        """Charge the time of decode steps."""

    def read(self, request: Request, read: Read) -> None:
        """Charge the difference between the prompt as charged and the prompt as read."""

    def retracted(self, request: Request) -> None:
        """Refund the amount charged in advance for a request that has lost its memory."""

    def finished(self, request: Request) -> None:
        """Refund the unused amount charged in advance for a request that has ended."""

    def forget(self, client: str) -> None:
        """Forget what is remembered of a client without requests."""
