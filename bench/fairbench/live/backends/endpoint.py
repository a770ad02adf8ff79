"""A server that runs already: nothing is started, and little is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.config.backend import AS_SERVED, Endpoint
from fairbench.live.backends.base import LiveBackend, LiveOptions, Served
from fairbench.live.driver.target import Target
from fairbench.live.processes.start import Recipe


class EndpointBackend(LiveBackend[Endpoint]):
    """An endpoint at its URL, with whatever scheduler it has."""

    @property
    def running_at(self) -> str:
        return self.config.base_url

    def recipes(self, options: LiveOptions) -> list[Recipe]:
        return []

    def served(self, info: Mapping[str, Any]) -> Served:
        model = "" if self.spec.model == AS_SERVED else f", {self.spec.model}"
        return Served(
            self.config.kind,
            name=f"{self.config.base_url}{model}",
            workers=1,
            unbounded="the scheduler is the server's own",
        )

    def target(self, url: str, options: LiveOptions) -> Target:
        config = self.config
        return Target(
            url,
            api=config.api,
            model=None if self.spec.model == AS_SERVED else self.spec.model,
            headers=options.headers,
            lengths=config.output_lengths,
            max_concurrency=config.max_concurrency,
        )


BACKEND = EndpointBackend
