"""Claims 18 to 29 and 51 to 56 of the VTC paper, judged by simulations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fairbench_studies.kit.parts import Claim, Part
from fairbench_studies.vtc.arena import MEASURED_RPM, MEASURED_VTC, TABLE, judge_arena, judge_limits
from fairbench_studies.vtc.measures import listed
from fairbench_studies.vtc.response import judge_limited_times, judge_response_times
from fairbench_studies.vtc.synthetic import (
    judge_isolation,
    judge_on_off,
    judge_overload,
    judge_pauses,
    judge_poisson,
    judge_pool,
    judge_predictions,
    judge_proportional,
    judge_shares,
    judge_shift,
    judge_weights,
)
from fairbench_studies.vtc.theorems import judge_lead, judge_response, judge_share


def _claim(
    number: int,
    text: str,
    paper: str,
    source: str,
    judge: Callable[[Any], Sequence[Part]],
    cause: str = "",
) -> Claim:
    return Claim(number, text, paper, source, "vtc", judge, cause)


MEASURED = "measured: "
WRONG = "a bound is exceeded only if the scheduler or its accounting is wrong"
CLAIMS = (
    _claim(18, "two overloaded clients: the difference in service stays flat under VTC, and grows "
           "under FCFS", f"{MEASURED}VTC 9,050, FCFS 237,738", "[VTC] Fig. 3", judge_overload),
    _claim(19, "under FCFS, shares follow rates: Jain's index from 30 to 300 s",
           f"{MEASURED}FCFS 0.899, VTC 0.9996", "[VTC-artifact]", judge_shares),
    _claim(20, "clients below their share are served at once and 1 : 2, as they ask; the "
    "third client has the rest", f"{MEASURED}189 : 378 : 778; 4.8, 4.9 and 124 s", "[VTC] Fig. 4",
           judge_proportional),
    _claim(21, "on-off clients that stay backlogged: equal service", f"{MEASURED}662 : 660; 7,541",
           "[VTC] Fig. 6", judge_on_off),
    _claim(22, "the difference is bounded for Poisson arrivals of unlike lengths",
           f"{MEASURED}5,235 (FCFS 204,786); 1,281", "[VTC] Fig. 7, 8", judge_poisson,
           "client 1 asks for little more than its half and does not always wait, so a "
           "difference, above all from the beginning, includes service that it did not ask for"),
    _claim(23, "isolation: a client below its share does not feel another's rise",
           f"{MEASURED}P99 VTC 0.7 s, FCFS 48 s", "[VTC] Fig. 9", judge_isolation),
    _claim(24, "LCF serves client 0 above its share after an on-off phase",
           f"{MEASURED}mean time to first token LCF 4.1 s, VTC 16.3 s", "[VTC] Fig. 10",
           judge_shift),
    _claim(25, "a rate limit: throughput rises with the limit and stays below VTC's",
           f"{MEASURED}{listed(tuple(MEASURED_RPM.values()))} tok/s, VTC {MEASURED_VTC}; "
           "refused 919, 600, 447, 342, 176", "[VTC] Fig. 13", judge_limits),
    _claim(26, "the Arena trace: the mean service difference and its variance are ordered",
           MEASURED + "; ".join(f"{name} {one.mean}/{one.variance:,}" for name, one in
                                TABLE.items()) + " (mean/variance)",
           "[VTC-artifact]", judge_arena,
           "the arrivals are recorded, so every seed gives the same numbers, and each difference "
           "counts as decided; by mean the oracle and the average are 5% apart as measured; the "
           "variance of 19 windows depends on single windows, and changes as much with the form "
           "of VTC (vtc.form)"),
    _claim(27, "better predictions of lengths make the difference smaller",
           f"{MEASURED}VTC 193/104/6981; off by 50% 34/12.5/112; oracle 5.9/0.5/1.7; 893 to 904 "
           "tok/s", "[VTC-artifact]", judge_predictions),
    _claim(28, "weights 1 : 2 : 3 : 4", f"{MEASURED}135 : 271 : 406 : 541", "[VTC] §4.3",
           judge_weights,
           "client 0 is served about 50 requests in the 300 s, so a request is 2% of its share"),
    _claim(29, "a larger pool lets service differ by more",
           f"{MEASURED}33,092 to 64,916 (Llama-2-13b)", "[VTC] Fig. 14", judge_pool),
    _claim(51, "a client below its share is served while it is on; in its pauses the other client "
           "has everything, and the total stays the same", "shown, not stated in numbers",
           "[VTC] Fig. 5", judge_pauses),
    _claim(52, "the Arena trace: under FCFS all clients' times to first token rise drastically, "
           "under VTC only those of clients over their share", "shown, not stated in numbers",
           "[VTC] Fig. 11", judge_response_times),
    _claim(53, "rate limits: a low limit makes all times alike and costs throughput, higher limits "
           "approach FCFS", "5 requests a minute: about 220 output tok/s, 20: 450, VTC about 500",
           "[VTC] Fig. 12", judge_limited_times),
    _claim(54, "a backlogged client's service is at most 4U below any other client's",
           "Theorem 4.9", "[VTC] Theorem 4.9", judge_lead, WRONG),
    _claim(55, "the next request of a client without requests is dispatched within 2 (n - 1) U / a",
           "Theorem 4.11; a, a lower bound of the capacity, is not given", "[VTC] Theorem 4.11",
           judge_response, WRONG),
    _claim(56, "a client that requests less than T / n - 5U is not backlogged",
           "Theorem 4.13, by its proof (as printed, no client meets its premise)",
           "[VTC] Theorem 4.13, Fig. 9", judge_share, WRONG),
)  # fmt: skip
