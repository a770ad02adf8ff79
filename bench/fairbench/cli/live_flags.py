"""The flags of ``fairbench run`` and ``serve`` that real servers need."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairbench.errors import UsageError

if TYPE_CHECKING:
    from fairbench.config import ExperimentSpec
    from fairbench.live.backends.base import LiveOptions


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not None."""
    return {key: value for key, value in options.items() if value is not None}


def split_args(texts: list[str]) -> list[str]:
    """The words of every ``--server-arg``, as a shell would have them."""
    try:
        return [word for text in texts for word in shlex.split(text)]
    except ValueError as error:
        raise UsageError(f"--server-arg: {error}") from None


def parse_headers(texts: list[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts as a mapping. A wrong one is not repeated, since it may be secret."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not (equals and name.strip()):
            raise UsageError("--header: write NAME=VALUE, such as Authorization='Bearer KEY'")
    return {name.strip(): value for name, _, value in pairs}


def check_live(spec: ExperimentSpec, options: LiveOptions) -> None:
    """Raise UsageError, before anything is written or started, if the run is impossible here."""
    from fairbench.live.backends import registry

    registry.check_live(spec, options)
