"""Recorded sessions of coding agents with sub-agents, one session per line.

The format is defined by callanjfox/kv-cache-tester (at 94f6046); AIPerf and inference-perf replay
such files. A session contains its requests, in order of time, in the list ``requests``. Each
request has the times ``t`` and ``api_time`` in seconds, the lengths ``in`` and ``out`` in tokens,
and the ``hash_ids`` of its full blocks. A request of type ``subagent`` contains the requests of a
sub-agent, whose times count from the time ``t`` of the ``subagent`` request. Block ids of different
sessions are unrelated. Sessions are assumed to share tool definitions and system prompts that have
equal token counts. All sessions begin at time 0, because the files contain no start times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fairbench.errors import DataError, shortened
from fairbench.files.formats import FilePlace
from fairbench.workloads.traces import MAX_INPUT, MAX_OUTPUT, MAX_S
from fairbench_logs.records.layout import Record
from fairbench_logs.traces.build import TraceRow
from fairbench_logs.traces.requests import client_name

NS = 10**9
CLOCK_S = 1.0  # Turns may overlap by this time, because some logs record whole seconds.
SUBAGENT = "subagent"
RETURNED = "completed"


class _Agent(NamedTuple):
    """The session itself (``number`` 0), or a sub-agent that starts at ``starts_s`` seconds."""

    number: int
    starts_s: float
    tool_tokens: int
    system_tokens: int


class _Identities:
    """The identities of blocks, unique across all sessions of a file."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], int] = {}

    def number_of_block(self, *what: object) -> int:
        return self._known.setdefault(what, len(self._known))


class Weka:
    """The trace format ``weka``; ``--clients-from`` names the key of a session's client."""

    name, unit = "weka", "s"

    def fits(self, first: Record) -> bool:
        return {"id", "requests", "block_size", "hash_id_scope"} <= set(first)

    def rows(
        self, records: Iterator[FilePlace], names: Mapping[str, str]
    ) -> Iterator[TraceRow | None]:
        """Yield the requests of the sessions; a failed request is yielded as None.

        ``names["client"]`` is the key under which a session's record holds the client. Raises
        DataError for an invalid record; the error names the session and the turn.
        """
        identities = _Identities()
        for where, record in records:
            session = _Session(record, where, names.get("client", ""), identities)
            yield from session.rows()


class _Session:
    """A reader of the requests in one session."""

    def __init__(self, record: Any, where: str, client: str, identities: _Identities) -> None:
        if not isinstance(record, Mapping):
            raise DataError(f"{where}: must be a session, an object with id and requests")
        self._record = record
        self._identities = identities
        name = record.get("id")
        if not isinstance(name, str) or not name:
            raise DataError(
                f"{where}: id = {shortened(repr(name))}: must be a non-empty "
                "string that names the session"
            )
        self._name = name
        self._where = f"{where}: session {shortened(name)}"
        self._client = client_name(record.get(client) if client else None, self._where)
        self._size = self._whole_number(record, "block_size", self._where, least=1)
        self._agents = 0

    def rows(self) -> Iterator[TraceRow | None]:
        """Yield the requests of the session and its sub-agents; a failed request becomes None."""
        tools, system = self._shared_tokens(self._record, self._where)
        yield from self._turns(self._record, _Agent(0, 0.0, tools, system), self._where)

    def _turns(self, record: Record, agent: _Agent, where: str) -> Iterator[TraceRow | None]:
        turns = record.get("requests")
        if not isinstance(turns, Sequence) or isinstance(turns, str) or not turns:
            raise DataError(f"{where}: requests: must be a list of at least one turn")
        answered_s, answered = 0.0, 0
        for number, turn in enumerate(turns, start=1):
            at = f"{where}, turn {number}"
            if not isinstance(turn, Mapping):
                raise DataError(f"{at}: must be an object")
            t_s = self._seconds(turn, "t", at)
            if turn.get("type") == SUBAGENT:
                yield from self._subagent(turn, agent.starts_s + t_s, at)
                continue
            if t_s < answered_s - CLOCK_S:
                raise DataError(
                    f"{at}: begins at {t_s:g} s, but must not begin before turn "
                    f"{answered} is answered, at {answered_s:g} s"
                )
            took_s = self._seconds(turn, "api_time", at) if "api_time" in turn else None
            if "think_time" in turn:
                self._seconds(turn, "think_time", at)
            answered_s, answered = t_s + (took_s or 0.0), number
            yield self._turn_row(turn, agent, t_s, took_s, at)

    def _subagent(self, turn: Record, starts_s: float, where: str) -> Iterator[TraceRow | None]:
        called = turn.get("agent_id", "")
        where = f"{where}, sub-agent {shortened(str(called))}"
        status = turn.get("status", RETURNED)
        if status != RETURNED:
            raise DataError(
                f"{where}: status = {shortened(repr(status))}: only sub-agents with the "
                f"status {RETURNED!r} are supported"
            )
        self._agents += 1
        tools, system = self._shared_tokens(turn, where)
        yield from self._turns(turn, _Agent(self._agents, starts_s, tools, system), where)

    def _turn_row(
        self, turn: Record, agent: _Agent, t_s: float, took_s: float | None, where: str
    ) -> TraceRow | None:
        tokens = self._whole_number(turn, "in", where, least=1, most=MAX_INPUT)
        output = self._whole_number(turn, "out", where, most=MAX_OUTPUT)
        if not output:
            return None  # Failed requests have no output.
        at_ns = round((agent.starts_s + t_s) * NS)
        return TraceRow(
            at_ns,
            self._client,
            tokens,
            output,
            session=self._name,
            end_ns=None if took_s is None else at_ns + round(took_s * NS),
            blocks=self._blocks(turn, agent, tokens, where),
            block_size=self._size,
            branch=agent.number,
            shared=min(tokens, self._shared_blocks(agent) * self._size),
        )

    def _blocks(self, turn: Record, agent: _Agent, tokens: int, where: str) -> list[int]:
        given = turn.get("hash_ids", [])
        if not isinstance(given, list) or not all(type(one) is int for one in given):
            raise DataError(f"{where}: hash_ids: must be a list of integers")
        most = -(-tokens // self._size)
        if len(given) > most:
            raise DataError(
                f"{where}: hash_ids: has {len(given)} blocks of {self._size} tokens, but "
                f"an input of {tokens:,} tokens has at most {most}"
            )
        number_of_block, size = self._identities.number_of_block, self._size
        tools = agent.tool_tokens // size
        both = self._shared_blocks(agent)
        return [
            number_of_block("tools", agent.tool_tokens, place)
            if place < tools
            else number_of_block("system", agent.tool_tokens, agent.system_tokens, place)
            if place < both
            else number_of_block(self._name, one)
            for place, one in enumerate(given)
        ]

    def _shared_blocks(self, agent: _Agent) -> int:
        """Return how many blocks lie wholly in the tool definitions and the system prompt."""
        return (agent.tool_tokens + agent.system_tokens) // self._size

    def _shared_tokens(self, record: Record, where: str) -> tuple[int, int]:
        keys = ("tool_tokens", "system_tokens")
        tools, system = (
            self._whole_number(record, key, where) if key in record else 0 for key in keys
        )
        return tools, system

    @staticmethod
    def _whole_number(
        record: Record, key: str, where: str, *, least: int = 0, most: int = MAX_INPUT
    ) -> int:
        value = record.get(key)
        if type(value) is not int or not least <= value <= most:
            shown = shortened(repr(value))
            raise DataError(
                f"{where}: {key} = {shown}: must be a whole number from {least} to {most:,}"
            )
        return value

    @staticmethod
    def _seconds(record: Record, key: str, where: str) -> float:
        value = record.get(key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        seconds = float(value or 0) if number else -1.0
        if not 0 <= seconds <= MAX_S:
            shown = shortened(repr(value))
            raise DataError(f"{where}: {key} = {shown}: must be a number of seconds of at least 0")
        return seconds


WEKA = Weka()
