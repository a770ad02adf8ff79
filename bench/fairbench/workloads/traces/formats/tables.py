"""Formats that are tables of requests: a row or a list each, and their columns by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairbench.errors import DataError, UsageError
from fairbench.files import column_names
from fairbench.files.json_text import Place
from fairbench.workloads.traces.columns import Columns
from fairbench.workloads.traces.format import Asked, PlacedRow, Record
from fairbench.workloads.traces.rows import NEEDED


@dataclass(frozen=True)
class Plain:
    """A format of one record a request.

    The format is recognised by the columns in ``needs`` and by whether cells are texts, as in CSV;
    ``usual`` are its names of fields without a common name, ``unit`` is the unit of its times if
    their names do not state it, and ``block_size`` the number of tokens in a block of prompts.
    """

    name: str
    texts: bool | None = None
    needs: tuple[str, ...] = ()
    usual: Mapping[str, str] = field(default_factory=dict)
    unit: str | None = None
    block_size: int = 0

    def fits(self, first: Record) -> bool:
        texts = all(isinstance(value, str) for value in first.values())
        return (self.texts is None or texts is self.texts) and set(self.needs) <= set(first)

    def rows(self, records: Iterator[Place], asked: Asked) -> Iterator[PlacedRow]:
        columns = Columns(asked, self.usual, unit=self.unit, block_size=self.block_size)
        yield from columns.rows(records)


CSV = Plain("csv", texts=True)
JSON_LINES = Plain("jsonl")


@dataclass(frozen=True)
class Columnwise:
    """A format with one run per object. ``usual`` maps fields to lists, in seconds.

    ``inside`` is the key of the object that contains the lists, empty if they are the run's own.
    """

    name: str
    usual: Mapping[str, str] = field(default_factory=dict)
    inside: str = ""

    def fits(self, first: Record) -> bool:
        lists = self._lists(first)
        return all(isinstance(lists.get(self.usual[name]), list) for name in NEEDED)

    def rows(self, records: Iterator[Place], asked: Asked) -> Iterator[PlacedRow]:
        """Yield the rows of the requested run, or of the only run."""
        where, chosen = _chosen(records, asked.line)
        run = self._lists(chosen)
        wanted = {**self.usual, **asked.names}
        lists = {name: run[name] for name in wanted.values() if isinstance(run.get(name), list)}
        if len({len(one) for one in lists.values()}) > 1:
            raise DataError(f"{where}: {', '.join(lists)}: must be lists of the same length")
        for name in NEEDED:
            if wanted[name] not in lists:
                raise DataError(f"{where}: {wanted[name]}: must be a list")
        columns = Columns(asked, self.usual, unit="s")
        for number, values in enumerate(zip(*lists.values(), strict=True), start=1):
            place = f"{where}, request {number}"
            record: dict[str, Any] = dict(zip(lists, values, strict=True))
            yield PlacedRow(place, columns.row(record, place))
        columns.check_named()

    def _lists(self, run: Record) -> Record:
        found = run.get(self.inside) if self.inside else run
        return found if isinstance(found, Mapping) else {}


def _chosen(records: Iterator[Place], line: int) -> Place:
    """Return the record on a line, from 1. Raises UsageError if the choice is ambiguous."""
    for number, record in enumerate(records, start=1):
        if number == (line or 1):
            if not line and next(records, None) is not None:
                raise UsageError(
                    f"{record.where}: the file holds several runs; choose one with --trace-line N"
                )
            return record
    raise UsageError(
        f"--trace-line {line}: must be at most {number}, the number of runs in the file"
    )


# Sessions of agents in the form of LMCache/lmcache-agent-trace (at 16a14ad) and of Exgentic
# (inference-sim/inference-sim at c358946), with common block identities for all. ``src`` names the
# collection of a session, and is the client. Sessions were recorded on different days: those of one
# source follow each other in recorded order.
AGENT = Plain(
    "agent",
    needs=("t", "session", "step", "input_length", "output_length", "hash_ids"),
    usual={"client": "src"},
    block_size=16,
)
# The trace of Chatbot Arena that VTC-artifact samples ([VTC] §5.3), with a model as a client;
# ``arrivals`` of kind ``trace`` read the same trace.
ARENA = Plain("arena", needs=("t", "client", "prompt_len", "output_len"), unit="s")
# Azure's LLM inference traces of 2023 and 2024, without clients: Azure/AzurePublicDataset at
# b469a11, AzureLLMInferenceDataset2023.md.
AZURE = Plain("azure", texts=True, needs=("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
# HPMLL/BurstGPT (releases 1.1 and 2.0), with conversations and durations in later releases:
# failures have no response tokens. ``--clients-from Model`` uses the two models as clients.
BURSTGPT = Plain(
    "burstgpt",
    texts=True,
    needs=("Timestamp", "Request tokens", "Response tokens", "Log Type"),
    usual={"latency": "Elapsed time"},
    unit="s",
)
# Runs measured by VTC-artifact, ``all_results*.jsonl``: only the requested values are read.
VTC = Columnwise("vtc", {field: column_names.VTC[field] for field in (*NEEDED, "client")})
# Runs measured on servers, one run per line, which ``fairbench validate`` also reads. Failed
# requests have no output.
SERVING = Columnwise(
    "serving",
    {
        "time": "submit_s",
        "client": "client",
        "input_tokens": "prompt_tokens",
        "output_tokens": "output_tokens",
        "latency": "latency_s",
    },
    inside="columns",
)
# A run of ``vllm bench serve``: one client; failed requests have no output.
VLLM = Columnwise("vllm", {field: column_names.VLLM[field] for field in NEEDED})
