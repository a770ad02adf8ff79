"""The backend for a server that runs already, and whose scheduler and settings are unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.config.backend import AS_SERVED
from fairbench.errors import RunFailed
from fairbench_load.backends.base import LiveBackend, LiveOptions, Served
from fairbench_load.driver.target import LONGEST_WAIT_S, DriverTarget
from fairbench_load.kinds import Endpoint
from fairbench_load.launchers import Wanted
from fairbench_load.server_facts import get_json

ASK_TIMEOUT_S = 2.0


class EndpointBackend(LiveBackend[Endpoint]):
    """The backend for a running server at a URL."""

    @property
    def running_at(self) -> str:
        return self.config.base_url

    def wanted(self, options: LiveOptions) -> Wanted:
        return Wanted(0)

    def served(self, info: Mapping[str, Any]) -> Served:
        emulated = info.get("emulated") is True
        model = "" if self.spec.model == AS_SERVED else f", {self.spec.model}"
        return Served(
            self.config.kind,
            name=f"{self.config.base_url}{model}",
            emulated=emulated,
            workers=1,
            unbounded="the server uses its own scheduler",
            timing_profile=info.get("timing_profile") if emulated else None,
            timing_grade=info.get("timing_grade") if emulated else None,
        )

    def target(self, url: str, options: LiveOptions) -> DriverTarget:
        config = self.config
        return DriverTarget(
            url,
            api=config.api,
            model=None if self.spec.model == AS_SERVED else self.spec.model,
            headers=options.headers,
            lengths=config.output_lengths,
            max_concurrency=config.max_concurrency,
            extra_body=config.extra_fields,
            max_tokens_field=config.max_tokens_field or "max_tokens",
            rate_limited=config.rate_limited or "fail",
            longest_wait_s=config.longest_wait_s or LONGEST_WAIT_S,
        )


def told_by(url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return how a running server describes itself, or {} if the server does not answer.

    A router's list of models (``owned_by``) shows whether its workers are emulators of fairbench.
    """

    def ask(path: str) -> dict[str, Any]:
        try:
            return get_json(f"{url.rstrip('/')}{path}", headers=headers, timeout_s=ASK_TIMEOUT_S)
        except RunFailed:
            return {}

    if info := ask("/server_info"):
        return info
    models = ask("/v1/models").get("data")
    owners = [card.get("owned_by") for card in models or () if isinstance(card, dict)]
    return {"emulated": True} if "fairbench" in owners else {}
