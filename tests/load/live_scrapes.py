"""Scrapes of /metrics for tests: of a router, and of the plugins' exporter without an engine."""

import asyncio
from types import SimpleNamespace

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fairbench.core import Request
from fairbench_load import headers
from fairbench_load.client_metrics import COUNTED, Exporter, Ledger
from tests.serve.live_router import GENERATE, cluster, streamed


def samples(page):
    """Return every sample of a page: (name, labels in the order of their names) -> value."""
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(page)
        for one in family.samples
    }


def asked(client, number=0, input_tokens=100, max_new_tokens=50, arrival_s=0.0):
    return Request(number, client, 0, 0, (), input_tokens, max_new_tokens, arrival_s)


def home(weights=None, waiting=(), balances=None):
    """Return a host of a scheduler, as the exporter sees it."""
    scheduler = SimpleNamespace(balances=lambda: balances or {})
    config = SimpleNamespace(weights=weights or {})
    return SimpleNamespace(
        scheduler=scheduler,
        config=config,
        ledger=Ledger(),
        waiting=waiting,
        idle=False,
        ranks=None,
    )


class OwnRegistry:
    """A block whose metrics have their own page, which is forgotten at the end of the block."""

    def __enter__(self):
        self._before = set(REGISTRY._collector_to_names)
        return self

    def page(self):
        registry = CollectorRegistry()
        for one in set(REGISTRY._collector_to_names) - self._before:
            registry.register(one)
        return generate_latest(registry).decode()

    def __exit__(self, *_):
        for one in set(REGISTRY._collector_to_names) - self._before:
            REGISTRY.unregister(one)


def exported(use, names=COUNTED):
    """Return the samples of an exporter after ``use(exporter)``."""
    with OwnRegistry() as own:
        use(Exporter(names))
        return samples(own.page())


def routed(calls, **router):
    """Return a router's samples after ``calls``: bodies by client, sent one after the other."""

    async def run():
        async with cluster(1, router=router) as (under_test, _):
            for client, body in calls:
                async with under_test.post(GENERATE, body, **{headers.CLIENT: client}) as answer:
                    await answer.read()
            async with under_test.session.get(f"{under_test.url}/metrics") as scraped:
                return samples(await scraped.text())

    return asyncio.run(run())


STREAM = streamed(GENERATE)
