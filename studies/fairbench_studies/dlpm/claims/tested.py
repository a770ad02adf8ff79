"""Claims 44, 46 and 48 of the DLPM paper, which fairbench's test suite checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.kit.parts import Claim, Part

TESTS = "tests"
"""The source name of claims that tests decide; all other claims name a figure as their source."""
FOLDER = "tests/schedulers/local"


class ByTests(NamedTuple):
    """The data of claims that tests decide; ``basis`` names the folder of the tests."""

    basis: str = f"named tests in {FOLDER}, on a small engine and on the simulated engine"


class Statement(NamedTuple):
    """A statement with its verdict, and the test that decides the verdict.

    ``shown`` is the result of the statement's test, in words. ``test`` names this test as
    ``FILE::NAME``, with FILE in the directory ``FOLDER``.
    """

    text: str
    outcome: Outcome
    shown: str
    test: str
    under: Mapping[str, Outcome] = {}

    @property
    def part(self) -> Part:
        """A part of a claim that contains this statement, its verdict and the name of its test."""
        return Part(self.text, self.outcome, f"{self.shown} (`{self.test}`)", under=self.under)


CREDIT = Statement(
    "the service that a client lacks or has too much is bounded",
    Outcome.HOLDS,
    "at every event each credit is above -U and at most Q^u, on two to four workers",
    "test_local_theorems_simulated.py::test_d2lpm_theorem_a_3_at_every_event",
)
INFINITE = Statement(
    "an infinite Q^w is not fair",
    Outcome.HOLDS,
    "one client stays at the worker of its prefix, and the bound of Theorem 5.1 is exceeded; with "
    "a finite Q^w, the same load keeps the bound",
    "test_local_theorems_simulated.py::test_an_endless_worker_quantum_violates_theorem_5_1",
)
CONSERVING = Statement(
    "DLPM admits every request that fits into the batch",
    Outcome.REVERSED,
    "a client with credit whose request does not fit prevents the refill, so smaller requests "
    "wait although memory is free",
    "test_local_theorems_dlpm.py::test_strict_is_fair_and_relaxed_conserves_work",
    {"Algorithm 1 as printed": Outcome.REVERSED, "dlpm.refill=relaxed": Outcome.HOLDS},
)
STATEMENTS = (CREDIT, INFINITE, CONSERVING)


def shown_by(statement: Statement) -> Callable[[Any], Sequence[Part]]:
    """Return a ``judge`` function for a claim that consists of one statement."""
    return lambda _: [statement.part]


CLAIMS = (
    Claim(
        44,
        "on several workers: a client's service differs from its quanta by at most max(Q^u, U) "
        "per worker",
        "Theorem A.3",
        "[DLPM] Theorem A.3",
        TESTS,
        shown_by(CREDIT),
        "a bound is exceeded only if the scheduler or its accounting is wrong",
    ),
    Claim(
        46,
        "D2LPM with an infinite Q^w is not fair",
        "Theorem A.5",
        "[DLPM] Theorem A.5",
        TESTS,
        shown_by(INFINITE),
        "a bound is exceeded only if the scheduler or its accounting is wrong",
    ),
    Claim(
        48,
        "DLPM is work-conserving",
        "does not reject a request if it fits into the running batch",
        "[DLPM] §4.2",
        TESTS,
        shown_by(CONSERVING),
        "Algorithm 1 refills only when no waiting client has credit ([gaps] A4); a refill that "
        "skips such clients admits every request that fits, and breaks Theorem 4.1",
    ),
)
