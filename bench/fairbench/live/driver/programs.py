"""Runs the program coroutines of the simulator on a live ``LLM``."""

from __future__ import annotations

from fairbench.errors import ProgramFailed
from fairbench.live.driver.caller import Caller
from fairbench.live.driver.clock import RunClock
from fairbench.live.driver.journal import Journal
from fairbench.live.driver.llm import LiveLLM
from fairbench.live.records import FINISHED, REFUSED, UNFINISHED, ProgramRecord
from fairbench.workloads.programs import Program


class ProgramRunner:
    """Runs the programs of one run, and counts them."""

    def __init__(self, caller: Caller, clock: RunClock, journal: Journal) -> None:
        self.started = 0
        self.done = 0
        self._caller = caller
        self._clock = clock
        self._journal = journal

    async def run(self, program: Program, arrival_s: float) -> None:
        """Run one program and write down how it ended; if cancelled, that it did not."""
        self.started += 1
        llm = LiveLLM(program.program_id, program.client, arrival_s, self._caller, self._clock)
        status = UNFINISHED
        try:
            await program.run(llm)
            status = FINISHED
        except ProgramFailed:
            status = REFUSED
        finally:
            self._record(program, arrival_s, llm.requests, status)
        self.done += 1

    def _record(self, program: Program, arrival_s: float, requests: int, status: str) -> None:
        demand = program.demand
        self._journal.program(
            ProgramRecord(
                program_id=program.program_id,
                client=program.client,
                arrival_s=arrival_s,
                finish_s=self._clock.now_s() if status == FINISHED else None,
                requests=requests,
                demand_requests=demand.requests,
                demand_input_tokens=demand.input_tokens,
                demand_output_tokens=demand.output_tokens,
                status=status,
            )
        )
