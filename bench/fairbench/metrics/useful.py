"""Useful service: clients' service without padding, for runs with padding clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.metrics.notes import Notes
from fairbench.metrics.parties import useful
from fairbench.metrics.records import PLAIN, Facts
from fairbench.metrics.tables import Tables

KEY = "useful_service_tok_s"


def useful_service(tables: Tables, facts: Facts, notes: Notes) -> list[dict[str, Any]]:
    """Return each client's useful rate in the window, and its padding; empty without any."""
    padding = {index: client.padding for index, client in enumerate(facts.clients)}
    if all(one == PLAIN for one in padding.values()):
        return [{}] * len(padding)
    served = useful(tables, padding, facts.window, facts.weights)
    length_s = facts.window.length_s or float("nan")
    rows: list[dict[str, Any]] = []
    for client, tokens in zip(facts.clients, served.tolist(), strict=True):
        rate = notes.value(f"clients.{client.name}.{KEY}", tokens / length_s)
        rows.append({KEY: rate} | told(client.padding._asdict()))
    return rows


def told(padding: Mapping[str, int]) -> dict[str, int]:
    """Return the padding for a row of a summary, without zero entries."""
    plain = PLAIN._asdict()
    names = {"input_tokens": "padding_tokens"}
    return {names.get(key, key): one for key, one in padding.items() if one != plain[key]}
